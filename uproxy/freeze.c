// SPDX-License-Identifier: Apache-2.0
/*
 * freeze.c - a session brought to a stand: the gate closed, the ring empty, the device idle
 *
 *   serving ── freeze: gate ─► drain, streams run dry ─► frozen ── thaw ─► serving
 *                                 └─ deadline: stream and cause are named ─┘
 *
 * Meanwhile the client runs on, and so do its host functions: the thread that asks for them passes
 * the gate (ring_request_anyway). What waits for anything else of the host (a value in memory, a
 * kernel that polls) holds up the dump, and is left as it was.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "content.h"
#include "uproxy_i.h"

/* ------------------------------------------------------------------------------ possible? */

struct files {
	char *why;
	size_t n;
	char seen[4096];	/* the last one that was as it should be */
};

/* Images that a restore will read from files must be in them. */
static int file_as_it_was(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	const struct sv_image *a = data;
	struct files *f = arg;
	const char *path = image_path(e, data);
	struct stat st;

	if (!path || !strcmp(path, f->seen))
		return 0;
	if (!stat(path, &st) && (uint64_t)st.st_size == a->size &&
	    (uint64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec == a->mtime_ns) {
		snprintf(f->seen, sizeof(f->seen), "%s", path);
		return 0;
	}
	snprintf(f->why, f->n, "%s, from which a module was loaded, is gone or has changed since: "
		 "put it back as it was, with its time", path);
	return -ENOTSUP;
}

/* What can be known without the device. */
static int may_be(struct sv_session *s, char *why, size_t n)
{
	struct files f = { .why = why, .n = n };
	int rc;

	pthread_mutex_lock(&s->error_lock);
	rc = s->latched || s->failed ? -ENOTSUP : 0;
	pthread_mutex_unlock(&s->error_lock);
	if (rc) {
		snprintf(why, n, "an error has broken the context for good: nothing can be read from the "
			 "device any more; restart the job or restore an earlier checkpoint");
		return rc;
	}
	if (s->bypassed) {
		snprintf(why, n, "the program uses a driver library that singvgpu does not see: what it "
			 "has on the device cannot be saved (SINGVGPU_LOG=1 names it)");
		return -ENOTSUP;
	}
	if (__atomic_load_n(&s->shares, __ATOMIC_RELAXED)) {
		snprintf(why, n, "the program has shared device memory with another process "
			 "(cuMemExportToShareableHandle, cuIpcGetMemHandle, cuMemPoolExportPointer and "
			 "what opens those), or events: what two sessions have in common cannot be saved");
		return -ENOTSUP;
	}
	if (__atomic_load_n(&s->log_full, __ATOMIC_RELAXED)) {
		snprintf(why, n, "the channel's log of what the job has made on the device is full, "
			 "and no longer complete: only a restart of the job helps");
		return -ENOTSUP;
	}
	rc = ring_log_walk(s->ring, file_as_it_was, &f);
	if (rc == -EBADMSG)
		snprintf(why, n, "the channel's log is damaged");
	return rc;
}

/* ------------------------------------------------------------------------------ idle? */

struct freezing {
	struct sv_session *s;
	uint64_t deadline;
	bool (*given_up)(void);
	unsigned int naps;
	char *why;
	size_t n;
};

static struct stream *first_of(struct context *c, struct stream **rest)
{
	*rest = c->streams;
	return &c->legacy;
}

/* The streams of a context: the legacy one, the client's, and the one for destroyed ones. */
static struct stream *next_of(struct context *c, struct stream *st, struct stream **rest)
{
	struct stream *next = *rest;

	if (next) {
		*rest = next->next;
		return next;
	}
	return st == c->grave ? NULL : c->grave;
}

/* The first stream that has something to do; *r what the driver says of it. NULL: there is none. */
static struct stream *busy_in(struct sv_session *s, struct context *c, CUresult *r)
{
	struct stream *rest;

	*r = s->hal.drv.cuCtxSetCurrent(c->real);
	context_forget();
	for (struct stream *st = first_of(c, &rest); st; st = next_of(c, st, &rest)) {
		if (!*r)
			*r = s->hal.drv.cuStreamQuery(st->real);
		if (*r)
			return st;
	}
	return NULL;
}

static struct stream *busy(struct sv_session *s, CUresult *r)
{
	struct stream *st = NULL;
	struct context **c;
	ssize_t n = handle_contexts(s, &c);

	*r = n < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	for (ssize_t i = 0; i < n && !st; i++)
		st = busy_in(s, c[i], r);
	free(c);
	return st;
}

bool freeze_idle(struct sv_session *s)
{
	CUresult r;

	return !busy(s, &r) && !r;
}

/* The driver may wait for the device before it answers what content_check asks it. */
int freeze_possible(struct sv_session *s, char *why, size_t n)
{
	CUresult r = CUDA_SUCCESS;
	int rc = may_be(s, why, n);

	if (rc || !worker_idle() || busy(s, &r) || r)
		return rc;
	return content_check(s, why, n);
}

/* The legacy stream is busy with what the others do: those are to be named. */
static struct stream *busy_other(struct sv_session *s, struct stream *st)
{
	struct context *c = st->context;

	for (struct stream *o = c->streams; st->legacy && o; o = o->next)
		if (o->blocking && s->hal.drv.cuStreamQuery(o->real) == CUDA_ERROR_NOT_READY)
			return o;
	return st;
}

static const char *cause(const struct sv_session *s, const struct stream *st, char *text, size_t n)
{
	uint64_t word;

	if (st->call) {
		word = __atomic_load_n((uint64_t *)arena_at(s, st->call_word), __ATOMIC_ACQUIRE);
		if (word < st->call)
			return "a host function of the program that has not returned yet";
	}
	if (!st->wait_addr)
		return "a kernel or copy that does not end, or waits for the program";
	snprintf(text, n, "a value in memory at 0x%llx (cuStreamWaitValue), or a kernel that runs on",
		 (unsigned long long)st->wait_addr);
	return text;
}

static void blame(struct freezing *f, uint64_t unanswered)
{
	struct sv_session *s = f->s;
	struct stream *st;
	char text[128], name[64];
	CUresult r;

	st = busy(s, &r);
	if (!st) {
		snprintf(f->why, f->n, worker_idle() ? "%llu calls of the program are not answered yet" :
			 "a module or graph is still being loaded or compiled (%llu calls are open)",
			 (unsigned long long)unanswered);
		return;
	}
	st = busy_other(s, st);
	if (st->legacy)
		snprintf(name, sizeof(name), "the default stream");
	else if (st == st->context->grave)
		snprintf(name, sizeof(name), "a stream that was destroyed");
	else
		snprintf(name, sizeof(name), "stream %u (0x%llx)", sv_handle_index(st->handle),
			 (unsigned long long)st->handle);
	snprintf(f->why, f->n, "%s waits for %s: checkpoint again later, or give it a longer deadline",
		 name, cause(s, st, text, sizeof(text)));
}

static void nap(struct freezing *f)
{
	struct timespec t = { 0, f->naps < 32 ? 20000 : f->naps < 256 ? 200000 : 1000000 };

	f->naps++;
	nanosleep(&t, NULL);
}

/* The ring is empty. Does everything stand still but the thread that asks for host functions? */
static int settled(void *arg, struct ring *r, uint64_t unanswered)
{
	struct freezing *f = arg;
	struct sv_session *s = f->s;
	struct stream *st = NULL;
	CUresult res = CUDA_SUCCESS;
	bool still;

	(void)r;
	if (f->given_up())
		return -ECANCELED;
	still = unanswered == hostfunc_open() && worker_idle();
	if (still)
		st = busy(s, &res);
	if (res && res != CUDA_ERROR_NOT_READY) {
		snprintf(f->why, f->n, "the device is in error %d", res);
		return -EIO;
	}
	if (still && !st) {
		hostfunc_release(s);
		return 1;
	}
	if (now_ns() > f->deadline) {
		blame(f, unanswered);
		return -ETIMEDOUT;
	}
	nap(f);
	return 0;
}

static int serve_one(void *arg, struct ring *r, const struct ring_record *rec)
{
	struct freezing *f = arg;

	(void)r;
	return serve_record(f->s, rec);
}

/* Nothing is left to be done; what was printed comes out, and errors that nobody asked for. */
static int flush(struct sv_session *s, char *why, size_t n)
{
	struct context **c;
	ssize_t count = handle_contexts(s, &c);
	CUresult r = count < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;

	for (ssize_t i = 0; i < count && !r; i++) {
		r = s->hal.drv.cuCtxSetCurrent(c[i]->real);
		if (!r && s->hal.drv.cuCtxSynchronize)
			r = s->hal.drv.cuCtxSynchronize();
	}
	free(c);
	context_forget();
	print_pump(s);
	if (r)
		snprintf(why, n, "the device is in error %d", r);
	return r ? -EIO : 0;
}

/* ------------------------------------------------------------------------------ freeze, thaw */

int freeze(struct sv_session *s, uint64_t deadline_ms, bool (*given_up)(void), uint64_t *ns,
	   char *why, size_t n)
{
	uint64_t begin = now_ns();
	struct freezing f = { .s = s, .given_up = given_up, .why = why, .n = n };
	int rc = may_be(s, why, n);

	if (rc)
		return rc;
	f.deadline = begin + deadline_ms * 1000000;
	if (deadline_ms > 86400000)
		f.deadline = begin + 86400000ull * 1000000;
	*why = 0;
	/* The deadline is settled's, who can say more; the ring's is for a client that minds no gate. */
	rc = ring_freeze_when(s->ring, serve_one, settled, &f, f.deadline - begin + 1000000000);
	if (rc) {
		if (!*why)
			snprintf(why, n, "%s", rc == -ECANCELED ? "whoever asked for it has gone" :
				 rc == -ETIMEDOUT ? ring_why(s->ring) : ring_strerror(rc));
		return rc;
	}
	__atomic_store_n(&s->stat->state, UPROXY_FROZEN, __ATOMIC_RELEASE);
	rc = flush(s, why, n);
	if (!rc && journal_compact(s) == -EBADMSG) {
		snprintf(why, n, "the channel's log is damaged");
		rc = -EBADMSG;
	}
	/* Now nothing moves any more: an error may have come with the last of the work. */
	if (!rc)
		rc = may_be(s, why, n) ?: content_check(s, why, n);
	if (rc)
		thaw(s);
	*ns = now_ns() - begin;
	return rc;
}

int thaw(struct sv_session *s)
{
	int rc = ring_thaw(s->ring);

	__atomic_store_n(&s->stat->state, UPROXY_SERVING, __ATOMIC_RELEASE);
	return rc;
}
