// SPDX-License-Identifier: Apache-2.0
/*
 * replay.c - rebuilds a session of an earlier process from what a dump saved of it
 *
 *   driver, window, device ─► channel, arena ─► sv_shared is checked ─► the log, record by record ─►
 *   what programs observe is compared ─► contents ─► frozen, until the client is there
 *
 * The handlers of live records execute the log's, in order, each to its end before the next. Nobody
 * gets an answer, and the arena is only read. A record that fails now, or a value that differs, is
 * refused by name. After a failure the process ends: nothing is undone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "answer.h"
#include "common.h"
#include "crowd.h"
#include "content.h"
#include "control.h"
#include "device_memory.h"
#include "fail.h"
#include "held.h"
#include "journal.h"
#include "kept.h"
#include "modules.h"
#include "park.h"
#include "rebuild.h"
#include "records.h"
#include "serve.h"
#include "session.h"
#include "slice.h"
#include "stat_i.h"
#include "worker.h"

#define CHANNEL_MAX	(256ull << 20)	/* bytes, without the arena */

/* ------------------------------------------------------------------------------ the log */

struct replay {
	struct sv_session *s;
	const struct content_progress *progress;
	struct replay_answer answer;
	uint64_t records, bytes, all;	/* of the log */
	struct why *why;
};

static int errno_of(int rc)
{
	switch (rc) {
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_FILE_NOT_FOUND:
		return -ENOENT;
	}
	return rc > 0 ? -EIO : -EBADMSG;
}

/* rc: a CUresult, or -errno; rule: the one that the record breaks, or NULL. */
static int blame(struct replay *r, const struct singvgpu_log_entry *e, const void *data, int rc,
		 const char *rule)
{
	struct hal *h = &r->s->hal;
	int err = errno_of(rc);
	const char *path = image_path(e, data), *name = NULL;
	struct kept_digest d;

	if (rc > 0 && h->drv.cuGetErrorName)
		h->drv.cuGetErrorName(rc, &name);
	if (rc == CUDA_ERROR_FILE_NOT_FOUND && path)
		return why_set(r->why, err, "the module file %s is missing here or has changed since the "
			       "dump: put it back as it was%s", path,
			       kept_expected(journal_seq(e), ((const struct sv_image *)data)->len, &d) ? "" :
			       ", with its time (cp -p, rsync -a)");
	if (rc == CUDA_ERROR_OUT_OF_MEMORY && record_of(e->op)->flags & RECORD_ALLOC && common_on)
		return why_set(r->why, err, "the job has memory beyond the %llu MiB that the device's sharers have in common: give it more "
			       "devices", (unsigned long long)r->s->budget >> 20);
	if (rc == CUDA_ERROR_OUT_OF_MEMORY && record_of(e->op)->flags & RECORD_ALLOC)
		return why_set(r->why, err, "the device has not enough free memory: %llu MiB are needed",
			       (unsigned long long)(window_bytes(NULL) >> 20) + 2);
	if (rc == CUDA_ERROR_NOT_SUPPORTED && common_on)
		return why_set(r->why, err, "%s: ranks that share a device by slices can neither have memory of cuMemCreate nor share memory "
			       "with another process: give the job more devices", op_name(e->op));
	if (rc > 0)
		return why_set(r->why, err, "%s (record %llu%s%s) fails with %s (%d) when it is "
			       "executed again", op_name(e->op), (unsigned long long)journal_seq(e),
			       path ? ", " : "", path ? path : "", name ? name : "an error", rc);
	if (!rule)
		rule = rc == -ENOSYS ? "an unknown operation" : strerror(-rc);
	return why_set(r->why, err, "the channel's log is damaged: %s, record %llu: %s",
		       op_name(e->op), (unsigned long long)journal_seq(e), rule);
}

static int again(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	struct replay *r = arg;
	struct ring_record rec = { .seq = journal_seq(e), .op = e->op, .cpl = 1, .len = e->len,
				   .data = data };
	const struct record *h = record_of(e->op);
	const char *rule = NULL;
	int rc = 0;

	if (h && h->park && park_has(rec.seq))
		;		/* it was parked, and will run when it would have */
	else if (!h || !(h->flags & RECORD_LOG))
		rc = -ENOSYS;
	else
		rc = serve_again(r->s, &rec, &rule);
	if (!rc && session_failed(r->s)) {
		rc = session_failed(r->s);
		rule = r->s->failed_rule;
	}
	if (rc)
		return blame(r, e, data, rc, rule);
	r->bytes += sizeof(*e) + ((e->len + 7) & ~7u);
	if (r->records++ % 16 == 0 && r->progress && r->progress->fn(r->progress->arg, "replay",
								      r->bytes, r->all))
		return -ECANCELED;
	return 0;
}

static int replay_log(struct sv_session *s, const struct content_progress *p, uint64_t *records,
		      struct why *why)
{
	struct replay r = { .s = s, .progress = p, .why = why, .all = ring_log_bytes(s->ring) };
	int rc;

	lock_init(&r.answer.lock, PROXY_ANSWER);
	pthread_cond_init(&r.answer.come, NULL);
	s->restored = true;
	s->replay = &r.answer;
	rc = ring_log_walk(s->ring, again, &r);
	/* Workers may still execute records that nobody waits for. */
	lock_may_wait("the workers");
	while (!worker_idle())
		nanosleep(&(struct timespec){ 0, 200000 }, NULL);
	s->replay = NULL;
	if (rc)
		why_set(why, rc, "%s", rc == -EBADMSG ? "the channel's log is damaged" :
			rc == -ECANCELED ? "the conductor has gone" : strerror(-rc));
	*records = r.records;
	pthread_cond_destroy(&r.answer.come);
	lock_end(&r.answer.lock);
	return rc;
}

/* ------------------------------------------------------------------------------ the device */

/* Attributes of a device's place, not of its type. */
static bool of_place(int attr)
{
	return attr == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID || attr == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID ||
	       attr == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID ||
	       attr == CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID ||
	       attr == 134 ||	/* HOST_NUMA_ID, 12.2 */
	       attr == 130;	/* NUMA_ID, 12.2 */
}

static int same_device(const struct sv_device *was, const struct sv_device *is, struct why *why)
{
	if (strncmp(was->name, is->name, sizeof(was->name)))
		return why_set(why, -EXDEV, "the job ran on a \"%.100s\", this is a \"%.100s\": restore "
			       "it on a device of the same type", was->name, is->name);
	if (is->total_mem < was->total_mem)
		return why_set(why, -EXDEV, "the job's device had %llu MiB of memory, this one has %llu "
			       "MiB: restore it on one of the same size",
			       (unsigned long long)was->total_mem >> 20,
			       (unsigned long long)is->total_mem >> 20);
	for (int a = 1; a < SV_ATTRS_MAX; a++) {
		if (of_place(a) || !was->attr_ok[a] || (is->attr_ok[a] && is->attr[a] == was->attr[a]))
			continue;
		return why_set(why, -EXDEV, "the device differs from the job's: attribute %d is %d and "
			       "was %d: restore it on a device of the same type", a,
			       is->attr_ok[a] ? is->attr[a] : -1, was->attr[a]);
	}
	return 0;
}

static int check_device(const struct ctl_device *was, const struct ctl_device *is, struct why *why)
{
	struct sv_device a = { .total_mem = was->total_mem }, b = { .total_mem = is->total_mem };

	if (!strcmp(was->name, is->name) &&
	    (is->cc_major != was->cc_major || is->cc_minor != was->cc_minor))
		return why_set(why, -EXDEV, "the job's device has compute capability %d.%d, this one "
			       "%d.%d: restore it on a device of the same type", was->cc_major,
			       was->cc_minor, is->cc_major, is->cc_minor);
	memcpy(a.name, was->name, sizeof(a.name));
	memcpy(b.name, is->name, sizeof(b.name));
	if (is->driver_version < was->driver_version)
		return why_set(why, -EXDEV,
			       "the driver is of version %d, the job's was %d: update it",
			       is->driver_version, was->driver_version);
	return same_device(&a, &b, why);
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
 * Values in sv_shared must be this device's, too, or the restore is refused. The device's place
 * (its ordinal, its bus address, its uuid) stays as the client knows it.
 */
static int check_shared(struct sv_session *s, const struct ctl_restore *from, struct why *why)
{
	struct sv_shared *sh = s->shared;
	struct sv_device is = { 0 };
	int rc;

	/* Only these two words have the same place in all versions. */
	if (sh->magic == SV_SHARED_MAGIC && sh->version != SV_PROTO_VERSION)
		return why_set(why, -EPROTONOSUPPORT,
			       "the client speaks version %u of the protocol, this proxy %u",
			       sh->version, SV_PROTO_VERSION);
	if (sh->magic != SV_SHARED_MAGIC || sh->size != sizeof(*sh) || sh->devices > SV_DEVICES_MAX ||
	    sh->device < 0 || sh->device >= (int)sh->devices || sh->arena_first != s->arena_first)
		return why_set(why, -EBADMSG, "what the session shared with its client is damaged");
	if (sh->window != s->hal.window || sh->window_len > s->hal.window_len)
		return why_set(why, -EBADMSG,
			       "the session's device window is not the one that was asked for");
	if (s->hal.version < sh->driver_version)
		return why_set(why, -EXDEV,
			       "the driver is of version %d, the job's was %d: update it",
			       s->hal.version, sh->driver_version);
	session_describe(&s->hal, s->hal.dev, &is);
	rc = same_device(&sh->dev[sh->device], &is, why);
	if (rc)
		return rc;
	if (from->budget && from->budget < sh->budget)
		return why_set(why, -EDQUOT, "the job was granted %llu MiB of device memory, now it is to "
			       "have %llu MiB", (unsigned long long)sh->budget >> 20,
			       (unsigned long long)from->budget >> 20);
	if (common_on || crowd_on)
		sh->budget = s->budget;
	else if (from->budget)
		sh->budget = from->budget & ~(SV_GRANULE - 1);
	s->budget = sh->budget;
	s->late = sh->late >> 32;	/* the client knows this count */
	s->late_error = sh->late & ~(uint32_t)SV_LATE_FULL;
	sh->late &= ~SV_LATE_FULL;	/* what is parked again says it anew */
	sh->life++;	/* this proxy watches nothing yet */
	memset(sh->why, 0, sizeof(sh->why));
	return 0;
}

/* ------------------------------------------------------------------------------ the channel */

static int restore_channel(struct sv_session *s, const struct session_options *o,
			   const struct store_ref *ref, struct store *st, int home,
			   uint8_t cookie[16], struct why *why)
{
	struct ring_params p = { .backend = o->backend };
	int fd, rc;

	if (store_ref_size(ref) > CHANNEL_MAX)
		return why_set(why, -EBADMSG, "this is no saved channel");
	if (getrandom(p.cookie, sizeof(p.cookie), 0) != sizeof(p.cookie))
		return why_set(why, -EIO, "no random numbers");
	rc = content_channel_image(st, ref, &fd, why);
	if (rc)
		return rc;
	rc = ring_restore(&s->ring, fd, &p);
	if (rc == -EPROTONOSUPPORT && ring_version_of(fd) != SINGVGPU_API_VERSION)
		why_set(why, rc, "the saved channel is of version %u, this proxy reads version %u",
			ring_version_of(fd), SINGVGPU_API_VERSION);
	else if (rc)
		why_set(why, rc, "cannot make the channel again: %s", ring_strerror(rc));
	close(fd);
	if (rc)
		return rc;
	memcpy(cookie, p.cookie, 16);
	return session_arena(s, home, why);
}

static bool given_up(void *arg)
{
	const struct content_progress *p = arg;

	return p && p->fn(p->arg, "contents", 0, 0);
}

/* By slices, the contents are restored in a slice, and taken away again with what collectives send. */
static int restore_contents(struct sv_session *s, struct store *st, const struct store_ref *device,
			    const struct content_progress *p, struct content_stats *stats, struct why *why)
{
	int rc = common_on ? slice_take(s, given_up, (void *)p, why) : 0;

	if (!rc)
		rc = content_restore(s, st, device, p, stats, why);
	if (!rc)
		rc = comms_restore(s, why);
	return rc || !common_on ? rc : slice_give(s, given_up, (void *)p, why);
}

static int rebuild(struct sv_session *s, struct store *st, const struct ctl_restore *from,
		   const struct content_progress *p, struct ctl_restored *to, struct why *why)
{
	struct content_stats stats = { 0 };
	uint64_t t[4] = { now_ns() };
	struct store_ref ref;
	int rc;

#define REF(name) (memcpy(&ref, from->name.bytes, sizeof(ref)), &ref)
	rc = kept_restore(st, REF(session), why);
	if (!rc)
		rc = comms_expect(st, REF(comms), why);
	if (!rc)
		rc = observe_expect(st, REF(observed), why);
	if (!rc)
		rc = replay_log(s, p, &to->records, why);
	t[1] = now_ns();
	if (!rc)
		rc = observe_compare(s, st, REF(observed), why);
	t[2] = now_ns();
	if (!rc)
		rc = restore_contents(s, st, REF(device), p, &stats, why);
	t[3] = now_ns();
	to->replay_ns = t[1] - t[0];
	to->compare_ns = t[2] - t[1];
	to->contents_ns = t[3] - t[2];
	to->bytes = stats.bytes;
	to->handed = stats.handed;
	return rc;
}

static int from_store(struct sv_session *s, const struct session_options *o, struct store *st,
		      const struct ctl_restore *from, int home, const struct content_progress *p,
		      struct ctl_restored *to, struct why *why)
{
	uint64_t begin = now_ns();
	struct store_ref ref;
	int rc;

	rc = restore_channel(s, o, REF(channel), st, home, to->cookie, why);
	if (!rc)
		rc = content_arena_restore(s, st, REF(arena), p, why);
	if (!rc)
		rc = check_shared(s, from, why);
	if (!rc)
		rc = session_print(s, true, why);
	if (!rc && common_on)	/* graphs and textures have addresses of the memory in common, so it is there first */
		rc = slice_start(s, why);
	to->channel_ns = now_ns() - begin;
	return rc ?: rebuild(s, st, from, p, to, why);
#undef REF
}

int replay_session(struct sv_session *s, const struct session_options *o,
		   const struct ctl_restore *from, int home, const struct content_progress *p,
		   struct ctl_restored *to, struct why *why)
{
	struct sv_window window = { from->window, from->window_len };
	struct store *st;
	int rc;

	if (!sv_window_valid(&window))
		return why_set(why, -EINVAL, "this is no device window");
	rc = uproxy_session_device(s, o, &window, 1, false, from->ordinal < 0 ? o->device : from->ordinal, why);
	if (rc)
		return rc;
	replay_device(&s->hal, &to->device);
	rc = check_device(&from->was, &to->device, why);
	if (rc || from->check)
		return rc;
	rc = session_shares(s, o, why);
	if (rc)
		return rc;
	rc = store_open_trusted(&st, from->dir, 0, from->trust, why);
	if (rc)
		return rc;
	rc = from_store(s, o, st, from, home, p, to, why);
	store_close(st);
	return rc;
}
