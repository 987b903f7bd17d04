// SPDX-License-Identifier: Apache-2.0
/*
 * replay.c - a session of an earlier process, rebuilt in this one from what a dump saved of it
 *
 *   driver, window, device ─► channel, arena ─► sv_shared is checked ─► the log, record by record ─►
 *   what programs observe is compared ─► contents ─► frozen, until the client is there
 *
 * The records pass the handlers that live ones do, in their order, each to its end before the next;
 * nobody is answered, nothing is told, and the arena is only read. What fails now, or differs,
 * is refused by name. After a failure the process ends: nothing is taken back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "content.h"
#include "control.h"
#include "uproxy_i.h"

#define CHANNEL_MAX	(256ull << 20)	/* bytes, without the arena */

/* ------------------------------------------------------------------------------ answers */

struct replay {
	struct sv_session *s;
	const struct content_progress *progress;
	pthread_mutex_t lock;
	pthread_cond_t come;
	bool answered;
	CUresult status;
	uint64_t records, bytes, all;	/* of the log */
	char *why;
	size_t n;
};

void replay_answer(struct sv_session *s, CUresult status)
{
	struct replay *r = s->replay;

	pthread_mutex_lock(&r->lock);
	r->answered = true;
	r->status = status;
	pthread_cond_signal(&r->come);
	pthread_mutex_unlock(&r->lock);
}

int replay_wait(struct sv_session *s, CUresult *status)
{
	struct replay *r = s->replay;

	pthread_mutex_lock(&r->lock);
	while (!r->answered)
		pthread_cond_wait(&r->come, &r->lock);
	r->answered = false;
	*status = r->status;
	pthread_mutex_unlock(&r->lock);
	return 0;
}

/* ------------------------------------------------------------------------------ the log */

static void blame(struct replay *r, const struct singvgpu_log_entry *e, const void *data, int rc,
		  const char *what)
{
	struct hal *h = &r->s->hal;
	const char *path = image_path(e, data), *name = NULL;

	if (rc > 0 && h->drv.cuGetErrorName)
		h->drv.cuGetErrorName(rc, &name);
	if (rc == CUDA_ERROR_FILE_NOT_FOUND && path)
		snprintf(r->why, r->n, "the module file %s is missing here or has changed since the "
			 "dump: put it back as it was, with its time (cp -p, rsync -a)", path);
	else if (rc == CUDA_ERROR_OUT_OF_MEMORY && (e->op == SV_OP_X_MAP || e->op == SV_OP_cuMemCreate))
		snprintf(r->why, r->n, "the device has not enough free memory: %llu MiB are needed",
			 (unsigned long long)(r->s->stat->device_bytes >> 20) + 2);
	else if (rc > 0)
		snprintf(r->why, r->n, "%s (record %llu%s%s) fails with %s (%d) when it is done again",
			 op_name(e->op), (unsigned long long)journal_seq(e), path ? ", " : "",
			 path ? path : "", name ? name : "an error", rc);
	else
		snprintf(r->why, r->n, "the channel's log is damaged: %s, record %llu: %s",
			 op_name(e->op), (unsigned long long)journal_seq(e),
			 what ? what : rc == -ENOSYS ? "an unknown operation" : strerror(-rc));
}

static int again(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	struct replay *r = arg;
	struct ring_record rec = { .seq = journal_seq(e), .op = e->op, .cpl = 1, .len = e->len,
				   .data = data };
	const struct hand *h = hand_find(e->op);
	const char *what = NULL;
	int rc;

	if (!(h ? h->flags & HAND_LOG : e->op < cuda_ops_count && cuda_ops[e->op].flags & SV_LOG))
		rc = -ENOSYS;
	else
		rc = serve_again(r->s, &rec, &what);
	if (!rc && r->s->failed) {
		rc = r->s->failed;
		what = r->s->failed_why;
	}
	if (rc) {
		blame(r, e, data, rc, what);
		return rc == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM :
		       rc == CUDA_ERROR_FILE_NOT_FOUND ? -ENOENT : rc > 0 ? -EIO : -EBADMSG;
	}
	r->bytes += sizeof(*e) + ((e->len + 7) & ~7u);
	if (r->records++ % 16 == 0 && r->progress && r->progress->fn(r->progress->arg, "replay",
								      r->bytes, r->all))
		return -ECANCELED;
	return 0;
}

static int replay_log(struct sv_session *s, const struct content_progress *p, uint64_t *records,
		      char *why, size_t n)
{
	struct replay r = { .s = s, .progress = p, .why = why, .n = n,
			    .all = ring_log_bytes(s->ring) };
	int rc;

	pthread_mutex_init(&r.lock, NULL);
	pthread_cond_init(&r.come, NULL);
	*why = 0;
	s->restored = true;
	s->replay = &r;
	rc = ring_log_walk(s->ring, again, &r);
	/* Workers may still be at what nobody was answered for. */
	while (!worker_idle())
		nanosleep(&(struct timespec){ 0, 200000 }, NULL);
	s->replay = NULL;
	if (rc && !*why)
		snprintf(why, n, rc == -EBADMSG ? "the channel's log is damaged" : "%s",
			 rc == -ECANCELED ? "whoever asked for it has gone" : strerror(-rc));
	*records = r.records;
	pthread_cond_destroy(&r.come);
	pthread_mutex_destroy(&r.lock);
	return rc;
}

/* ------------------------------------------------------------------------------ the device */

/* Attributes that say where a device is, not what it is. */
static bool of_place(int attr)
{
	return attr == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID || attr == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID ||
	       attr == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID ||
	       attr == CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID ||
	       attr == 134 ||	/* HOST_NUMA_ID, 12.2 */
	       attr == 130;	/* NUMA_ID, 12.2 */
}

static int same_device(const struct sv_device *was, const struct sv_device *is, char *why, size_t n)
{
	if (strncmp(was->name, is->name, sizeof(was->name))) {
		snprintf(why, n, "the job ran on a \"%.100s\", this is a \"%.100s\": restore it on a device "
			 "of the same type", was->name, is->name);
		return -EXDEV;
	}
	if (is->total_mem < was->total_mem) {
		snprintf(why, n, "the job's device had %llu MiB of memory, this one has %llu MiB: restore "
			 "it on one of the same size", (unsigned long long)was->total_mem >> 20,
			 (unsigned long long)is->total_mem >> 20);
		return -EXDEV;
	}
	for (int a = 1; a < SV_ATTRS_MAX; a++) {
		if (of_place(a) || !was->attr_ok[a] || (is->attr_ok[a] && is->attr[a] == was->attr[a]))
			continue;
		snprintf(why, n, "the device differs from the job's: attribute %d is %d and was %d: restore "
			 "it on a device of the same type", a, is->attr_ok[a] ? is->attr[a] : -1,
			 was->attr[a]);
		return -EXDEV;
	}
	return 0;
}

static int check_device(const struct ctl_device *was, const struct ctl_device *is, char *why,
			size_t n)
{
	struct sv_device a = { .total_mem = was->total_mem }, b = { .total_mem = is->total_mem };

	if (!strcmp(was->name, is->name) &&
	    (is->cc_major != was->cc_major || is->cc_minor != was->cc_minor)) {
		snprintf(why, n, "the job's device has compute capability %d.%d, this one %d.%d: restore it "
			 "on a device of the same type", was->cc_major, was->cc_minor, is->cc_major,
			 is->cc_minor);
		return -EXDEV;
	}
	memcpy(a.name, was->name, sizeof(a.name));
	memcpy(b.name, is->name, sizeof(b.name));
	if (is->driver_version < was->driver_version) {
		snprintf(why, n, "the driver is of version %d, the job's was %d: update it",
			 is->driver_version, was->driver_version);
		return -EXDEV;
	}
	return same_device(&a, &b, why, n);
}

void replay_device(struct hal *h, struct ctl_device *d)
{
	struct sv_device v = { 0 };

	session_describe(h, h->dev, &v);
	*d = (struct ctl_device){ .ordinal = h->dev, .driver_version = h->version,
				  .cc_major = v.attr[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR],
				  .cc_minor = v.attr[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR],
				  .total_mem = v.total_mem };
	memcpy(d->name, v.name, sizeof(d->name));
	memcpy(d->uuid, v.uuid, sizeof(d->uuid));
}

/*
 * What the client has been told stays true: it is the device's, or it is refused. Where the device is
 * (its ordinal, its place on the bus, its uuid) stays as the client knows it.
 */
static int check_shared(struct sv_session *s, const struct ctl_restore *from, char *why, size_t n)
{
	struct sv_shared *sh = s->shared;
	struct sv_device is = { 0 };
	int rc;

	if (sh->magic != SV_SHARED_MAGIC || sh->size != sizeof(*sh) || sh->devices > SV_DEVICES_MAX ||
	    sh->device < 0 || sh->device >= (int)sh->devices || sh->arena_first != s->arena_first) {
		snprintf(why, n, "what the session shared with its client is damaged");
		return -EBADMSG;
	}
	if (sh->version != SV_PROTO_VERSION) {
		snprintf(why, n, "the client speaks version %u of the protocol, this proxy %u", sh->version,
			 SV_PROTO_VERSION);
		return -EPROTONOSUPPORT;
	}
	if (sh->window != s->hal.window || sh->window_len != s->hal.window_len) {
		snprintf(why, n, "the session's device window is not the one that was asked for");
		return -EBADMSG;
	}
	if (s->hal.version < sh->driver_version) {
		snprintf(why, n, "the driver is of version %d, the job's was %d: update it", s->hal.version,
			 sh->driver_version);
		return -EXDEV;
	}
	session_describe(&s->hal, s->hal.dev, &is);
	rc = same_device(&sh->dev[sh->device], &is, why, n);
	if (rc)
		return rc;
	if (from->budget && from->budget < sh->budget) {
		snprintf(why, n, "the job was granted %llu MiB of device memory, now it is to have %llu MiB",
			 (unsigned long long)sh->budget >> 20, (unsigned long long)from->budget >> 20);
		return -EDQUOT;
	}
	if (from->budget)
		sh->budget = from->budget & ~(SV_GRANULE - 1);
	s->budget = sh->budget;
	s->late = sh->late >> 32;	/* what the client has been told of counts on */
	memset(sh->why, 0, sizeof(sh->why));
	return 0;
}

/* ------------------------------------------------------------------------------ the channel */

static int restore_channel(struct sv_session *s, const struct session_options *o,
			   const struct store_ref *ref, struct store *st, uint8_t cookie[16],
			   char *why, size_t n)
{
	struct ring_params p = { .backend = o->backend };
	int fd, rc;

	if (store_ref_size(ref) > CHANNEL_MAX) {
		snprintf(why, n, "this is no saved channel");
		return -EBADMSG;
	}
	if (getrandom(p.cookie, sizeof(p.cookie), 0) != sizeof(p.cookie)) {
		snprintf(why, n, "no random numbers");
		return -EIO;
	}
	rc = content_channel_image(st, ref, &fd, why, n);
	if (rc)
		return rc;
	rc = ring_restore(&s->ring, fd, &p);
	close(fd);
	if (rc) {
		snprintf(why, n, "cannot make the channel again: %s", ring_strerror(rc));
		return rc;
	}
	memcpy(cookie, p.cookie, 16);
	rc = session_arena(s);
	if (rc)
		snprintf(why, n, "out of memory");
	return rc;
}

static int rebuild(struct sv_session *s, struct store *st, const struct ctl_restore *from,
		   const struct content_progress *p, struct ctl_restored *to, char *why, size_t n)
{
	struct content_stats stats = { 0 };
	uint64_t t[4] = { now_ns() };
	struct store_ref ref;
	int rc;

#define REF(name) (memcpy(&ref, from->name.bytes, sizeof(ref)), &ref)
	rc = kept_restore(st, REF(session), why, n);
	if (!rc)
		rc = observe_expect(st, REF(observed), why, n);
	if (!rc)
		rc = replay_log(s, p, &to->records, why, n);
	t[1] = now_ns();
	if (!rc)
		rc = observe_compare(s, st, REF(observed), why, n);
	t[2] = now_ns();
	if (!rc)
		rc = content_restore(s, st, REF(device), p, &stats, why, n);
	t[3] = now_ns();
	to->replay_ns = t[1] - t[0];
	to->compare_ns = t[2] - t[1];
	to->contents_ns = t[3] - t[2];
	to->bytes = stats.bytes;
	return rc;
}

static int from_store(struct sv_session *s, const struct session_options *o, struct store *st,
		      const struct ctl_restore *from, const struct content_progress *p,
		      struct ctl_restored *to, char *why, size_t n)
{
	uint64_t begin = now_ns();
	struct store_ref ref;
	int rc;

	rc = restore_channel(s, o, REF(channel), st, to->cookie, why, n);
	if (!rc)
		rc = content_arena_restore(s, st, REF(arena), p, why, n);
	if (!rc)
		rc = check_shared(s, from, why, n);
	if (!rc)
		rc = session_print(s, true, why, n);
	to->channel_ns = now_ns() - begin;
	return rc ?: rebuild(s, st, from, p, to, why, n);
#undef REF
}

int replay_session(struct sv_session *s, const struct session_options *o,
		   const struct ctl_restore *from, const struct content_progress *p,
		   struct ctl_restored *to, char *why, size_t n)
{
	struct store *st;
	int rc;

	if (!from->window_len || from->window % SV_GRANULE || from->window_len % SV_GRANULE ||
	    from->window_len > 1ull << 46) {
		snprintf(why, n, "this is no device window");
		return -EINVAL;
	}
	rc = session_device(s, o, from->window, from->window_len, from->ordinal, why, n);
	if (rc)
		return rc;
	replay_device(&s->hal, &to->device);
	rc = check_device(&from->was, &to->device, why, n);
	if (rc || from->check)
		return rc;
	rc = store_open(&st, from->dir, 0, why, n);
	if (rc)
		return rc;
	rc = from_store(s, o, st, from, p, to, why, n);
	store_close(st);
	return rc;
}
