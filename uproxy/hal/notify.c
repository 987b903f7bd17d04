// SPDX-License-Identifier: Apache-2.0
/*
 * notify.c - reports when a stream has reached a point, and which errors are sticky
 *
 * Two ways. Where the driver calls its callbacks at once, a callback. NVIDIA's takes about 100 us for
 * one and holds the stream up meanwhile: there the device writes a number into a word of pinned
 * memory, and a thread of ours polls the words. hal_notify_start() measures which driver it is.
 *
 *   free ── hal_notify(): write queued ──► waiting ── the word has the number ──────► fn(arg, 0)
 *                                             ├────── its context has failed ───────► fn(arg, error)
 *                                             └────── its context has been ended ───► fn(arg, 709)
 *
 * Numbers only grow: one that a word had before ends no wait. A context that has failed writes no more
 * words: now and then an idle stream of it is queried, which also says the error. A late write must not
 * hide the number of another wait, so its words are free only when the context has ended. Callbacks
 * are those of cuStreamAddCallback, not cuLaunchHostFunc: only they run in a failed context, with the
 * error. What kernels have printed is written out by the driver before a callback, and by the
 * synchronisation of that idle stream.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "hal.h"
#include "lock.h"

#define WORDS		512		/* waits at a time; more are callbacks */
#define SLOW_NS		30000		/* of a callback: then words are used */
#define SPIN_NS		20000		/* polls without a pause */
#define PAUSE_MAX_NS	100000
#define PROBE_NS	1000000		/* between two queries of a context */

struct note {
	struct note *next;
	hal_fn fn;
	void *arg;
	CUcontext ctx;
	unsigned int word;
	uint64_t number;
	CUresult status;
};

struct probe {				/* a context in which there were waits */
	struct probe *next;
	CUcontext ctx;
	CUstream idle;
};

static struct {
	struct lock lock;		/* also held while a probe's context is used */
	pthread_cond_t more;
	uint64_t *word;			/* a page, pinned; NULL: callbacks alone */
	CUcontext user[WORDS];		/* whose write is to come, or may come late; NULL: free */
	uint64_t number;		/* the last one that was asked for */
	struct note *waiting;
	struct probe *probes;
	bool runs;
} words = { .lock = LOCK_INIT(PROXY_WORDS), .more = PTHREAD_COND_INITIALIZER };

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* ------------------------------------------------------------------------------ callbacks */

static void CUDA_CB called(CUstream stream, CUresult status, void *arg)
{
	struct note n = *(struct note *)arg;

	(void)stream;
	free(arg);
	lock_may_wait("what a notice's function waits for");
	n.fn(n.arg, status);
}

/* Takes n if it succeeds. */
static CUresult call_back(struct hal *h, CUstream stream, struct note *n)
{
	CUresult r = h->drv.cuStreamAddCallback(stream, called, n, 0);

	if (r)
		free(n);
	return r;
}

/* ------------------------------------------------------------------------------ polling */

/*
 * Moves the waits that are over to *done, the oldest first. In a context with an error all are, but
 * their words stay taken.
 */
static void collect(CUcontext failed, CUresult error, struct note **done)
{
	struct note *n, **p = &words.waiting;

	assert_held(&words.lock);
	while ((n = *p)) {
		/* pairs with the write that ask_word() has the device do */
		bool over = __atomic_load_n(&words.word[n->word], __ATOMIC_ACQUIRE) >= n->number;

		if (!over && (!error || n->ctx != failed)) {
			p = &n->next;
			continue;
		}
		n->status = over ? CUDA_SUCCESS : error;
		if (over)
			words.user[n->word] = NULL;
		*p = n->next;
		n->next = *done;
		*done = n;
	}
}

static void probe_all(struct hal *h, struct note **done)
{
	assert_held(&words.lock);
	for (struct probe *p = words.probes; p; p = p->next) {
		CUresult r = h->drv.cuCtxSetCurrent(p->ctx) ?: h->drv.cuStreamQuery(p->idle);

		if (r && r != CUDA_ERROR_NOT_READY)
			collect(p->ctx, r, done);
	}
}

static void flush_prints(struct hal *h, const struct note *done)
{
	CUcontext last = NULL;

	for (; done; done = done->next)
		for (struct probe *p = words.probes; p && done->ctx != last; p = p->next)
			if (p->ctx == done->ctx) {
				last = p->ctx;
				if (!h->drv.cuCtxSetCurrent(last))
					h->drv.cuStreamSynchronize(p->idle);
			}
}

static void deliver(struct note *done)
{
	struct note *n;

	lock_may_wait("what a notice's function waits for");
	while ((n = done)) {
		done = n->next;
		n->fn(n->arg, n->status);
		free(n);
	}
}

/* The longer nothing has come, the longer the pause. */
static void pause_after(uint64_t quiet)
{
	struct timespec t = { 0 };

	lock_may_wait("the device");
	if (quiet < SPIN_NS) {
		sched_yield();
		return;
	}
	t.tv_nsec = quiet / 16 < PAUSE_MAX_NS ? quiet / 16 : PAUSE_MAX_NS;
	nanosleep(&t, NULL);
}

static void *poll_words(void *arg)
{
	uint64_t last = 0, probed = 0, now;
	struct hal *h = arg;
	struct note *done;

	for (;;) {
		done = NULL;
		lock_take(&words.lock);
		while (!words.waiting) {
			lock_wait(&words.lock, &words.more);
			last = probed = now_ns();
		}
		collect(NULL, CUDA_SUCCESS, &done);
		now = now_ns();
		if (!done && now - probed > PROBE_NS) {
			probe_all(h, &done);
			probed = now;
		}
		flush_prints(h, done);
		lock_drop(&words.lock);
		if (done)
			last = now;
		else
			pause_after(now - last);
		deliver(done);
	}
	return NULL;
}

/* ------------------------------------------------------------------------------ words */

static bool start_thread(struct hal *h)
{
	sigset_t all, old;
	pthread_t t;

	if (words.runs)
		return true;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	words.runs = !pthread_create(&t, NULL, poll_words, h);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (words.runs)
		pthread_detach(t);
	return words.runs;
}

static bool has_probe(struct hal *h, CUcontext ctx)
{
	struct probe *p = words.probes;

	while (p && p->ctx != ctx)
		p = p->next;
	if (p)
		return true;
	p = calloc(1, sizeof(*p));
	if (!p || h->drv.cuStreamCreate(&p->idle, CU_STREAM_NON_BLOCKING)) {
		free(p);
		return false;
	}
	p->ctx = ctx;
	p->next = words.probes;
	words.probes = p;
	return true;
}

/* A free word for a note of the current context. false: there is none. */
static bool take_word(struct hal *h, struct note *n)
{
	bool took = false;

	lock_take(&words.lock);
	if (words.word && !h->drv.cuCtxGetCurrent(&n->ctx) && has_probe(h, n->ctx) &&
	    start_thread(h)) {
		for (n->word = 0; n->word < WORDS && words.user[n->word]; n->word++)
			;
		n->number = ++words.number;
		took = n->word < WORDS;
	}
	if (took)
		words.user[n->word] = n->ctx;
	lock_drop(&words.lock);
	return took;
}

/*
 * Queues the write of a word, in the current context. false: it has to be a callback. The lock is not held
 * meanwhile: a call into a full queue waits for the device, and the device may wait for what other notes start.
 */
static bool ask_word(struct hal *h, CUstream stream, struct note *n)
{
	bool asked, ended;

	if (!take_word(h, n))
		return false;
	asked = !h->drv.cuStreamWriteValue64_v2(stream, (uintptr_t)&words.word[n->word], n->number,
						CU_STREAM_WRITE_VALUE_DEFAULT);
	lock_take(&words.lock);
	ended = words.user[n->word] != n->ctx;	/* hal_notify_left() */
	if (!asked && !ended)
		words.user[n->word] = NULL;
	if (asked && !ended) {
		n->next = words.waiting;
		words.waiting = n;
		pthread_cond_signal(&words.more);
	}
	lock_drop(&words.lock);
	if (asked && ended) {
		n->status = CUDA_ERROR_CONTEXT_IS_DESTROYED;
		n->next = NULL;
		deliver(n);
	}
	return asked;
}

CUresult hal_notify(struct hal *h, CUstream stream, hal_fn fn, void *arg)
{
	struct note *n = malloc(sizeof(*n));

	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*n = (struct note){ .fn = fn, .arg = arg };
	if (ask_word(h, stream, n))
		return CUDA_SUCCESS;
	return call_back(h, stream, n);
}

void hal_notify_leave(struct hal *h, CUcontext ctx)
{
	struct probe *p, **at = &words.probes;

	(void)h;
	lock_take(&words.lock);
	while ((p = *at) && p->ctx != ctx)
		at = &p->next;
	if (p)
		*at = p->next;
	lock_drop(&words.lock);
	free(p);
}

void hal_notify_left(struct hal *h, CUcontext ctx)
{
	struct note *done = NULL;

	(void)h;
	lock_take(&words.lock);
	if (words.word)
		collect(ctx, CUDA_ERROR_CONTEXT_IS_DESTROYED, &done);
	for (unsigned int i = 0; i < WORDS; i++)
		if (words.user[i] == ctx)
			words.user[i] = NULL;
	lock_drop(&words.lock);
	deliver(done);
}

CUresult hal_notify_repin(struct hal *h)
{
	CUresult r = words.word ? hal_pin(h, words.word, WORDS * sizeof(*words.word)) : CUDA_SUCCESS;

	return r == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ? CUDA_SUCCESS : r;
}

/* ------------------------------------------------------------------------------ the choice */

static void CUDA_CB stop_watch(CUstream stream, CUresult status, void *arg)
{
	(void)stream;
	(void)status;
	__atomic_store_n((uint64_t *)arg, now_ns(), __ATOMIC_RELEASE);
}

/* Nanoseconds from the request to a callback of an idle stream, the least of a few; 0: unknown. */
static uint64_t callback_ns(struct hal *h)
{
	uint64_t least = 0;
	CUstream st;

	if (h->drv.cuStreamCreate(&st, CU_STREAM_NON_BLOCKING))
		return 0;
	for (int i = 0; i < 8; i++) {
		uint64_t begin = now_ns(), end = 0;

		if (h->drv.cuStreamAddCallback(st, stop_watch, &end, 0))
			break;
		h->drv.cuStreamSynchronize(st);
		/* pairs with stop_watch() */
		while (!__atomic_load_n(&end, __ATOMIC_ACQUIRE))
			sched_yield();
		if (!least || end - begin < least)
			least = end - begin;
	}
	h->drv.cuStreamDestroy_v2(st);
	return least;
}

void hal_notify_start(struct hal *h)
{
	const char *way = getenv("SINGVGPU_NOTIFY");
	int has_words = 0;
	void *p;

	h->drv.cuDeviceGetAttribute(&has_words, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
				    h->dev);
	if (!has_words || (way ? strcmp(way, "words") != 0 : callback_ns(h) < SLOW_NS))
		return;
	p = mmap(NULL, WORDS * sizeof(*words.word), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return;
	if (hal_pin(h, p, WORDS * sizeof(*words.word)))
		munmap(p, WORDS * sizeof(*words.word));
	else
		words.word = p;
}

int hal_sticky(CUresult r)
{
	switch ((int)r) {
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_EXTERNAL_DEVICE:
	case CUDA_ERROR_UNKNOWN:
		return 1;
	}
	return 0;
}
