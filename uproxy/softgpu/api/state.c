/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - the start of every call: initialisation, fork, the thread's state, live handles
 *
 * After fork() the child has none of the threads that run the device, so each call there fails
 * with CUDA_ERROR_NOT_INITIALIZED, as with NVIDIA's driver.
 */
#include "soft_i.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define END_SECONDS 3

__thread struct tls tls;
pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;

static bool initialised, forked;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t tls_key;

/* Open addressing; a slot is free (NULL), dead (1) or a live object. */
static void **slots;
static size_t nslots, nused;

static size_t slot_of(const void *p)
{
	return ((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15ull >> 20;
}

static void slots_grow(void)
{
	void **old = slots;
	size_t n = nslots, live = 0;

	for (size_t i = 0; i < n; i++)
		live += (uintptr_t)old[i] > 1;
	nslots = 1024;
	while (nslots < live * 4)
		nslots *= 2;
	slots = calloc(nslots, sizeof(*slots));
	if (!slots)
		abort();	/* a table of a few KiB: nothing sensible is left to do */
	nused = 0;
	for (size_t i = 0; i < n; i++) {
		size_t s;

		if ((uintptr_t)old[i] <= 1)
			continue;
		for (s = slot_of(old[i]) & (nslots - 1); slots[s]; s = (s + 1) & (nslots - 1))
			;
		slots[s] = old[i];
		nused++;
	}
	free(old);
}

void obj_add(void *obj, enum obj_type type)
{
	size_t s;

	if (nused * 2 >= nslots)
		slots_grow();
	((struct obj *)obj)->type = type;
	for (s = slot_of(obj) & (nslots - 1); (uintptr_t)slots[s] > 1; s = (s + 1) & (nslots - 1))
		;
	nused += !slots[s];
	slots[s] = obj;
}

static void **slot_find(const void *obj)
{
	if (!nslots || (uintptr_t)obj <= 1)
		return NULL;
	for (size_t s = slot_of(obj) & (nslots - 1); slots[s]; s = (s + 1) & (nslots - 1))
		if (slots[s] == obj)
			return &slots[s];
	return NULL;
}

void obj_del(void *obj)
{
	void **s = slot_find(obj);

	if (s)
		*s = (void *)1;
}

bool obj_live(const void *obj, enum obj_type type)
{
	return slot_find(obj) && ((const struct obj *)obj)->type == type;
}

uint64_t next_id(void)
{
	static uint64_t id;

	return __atomic_add_fetch(&id, 1, __ATOMIC_RELAXED);
}

uint64_t soft_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static void before_fork(void)
{
	pthread_mutex_lock(&big);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&big);
}

static void after_fork_child(void)
{
	forked = initialised;
	pthread_mutex_unlock(&big);
}

/* A thread ends: its per-thread streams are freed when their work is done. */
static void thread_exit(void *arg)
{
	struct tls *t = arg;

	pthread_mutex_lock(&big);
	for (struct ctx *c = contexts; c; c = c->next)
		for (struct stream *st = c->streams, *next; st; st = next) {
			next = st->next;
			if (st->owner == t)
				stream_free(st);
		}
	pthread_mutex_unlock(&big);
	free(t->stack);
	memset(t, 0, sizeof(*t));
}

void tls_register(void)
{
	if (!tls.registered)
		tls.registered = !pthread_setspecific(tls_key, &tls);
}

bool program_ending;	/* big */

static void *end_work(void *arg)
{
	struct timespec ts = { END_SECONDS, 0 };

	nanosleep(&ts, NULL);
	pthread_mutex_lock(&big);
	program_ending = true;
	for (struct ctx *c = contexts; c; c = c->next)
		__atomic_store_n(&c->stop, 1, __ATOMIC_RELAXED);
	stream_let_go();
	pthread_mutex_unlock(&big);
	return arg;
}

/*
 * The program ends. Running work gets END_SECONDS to complete: destructors of global objects run
 * later, and may use its results. Then it is stopped, so that unloading modules (cudart's handlers
 * were registered earlier and therefore run later) does not wait for a kernel that never ends.
 */
static void program_ends(void)
{
	bool busy = false;
	pthread_t t;

	pthread_mutex_lock(&big);
	for (struct ctx *c = contexts; c; c = c->next)
		for (struct stream *st = c->streams; st; st = st->next)
			busy |= st->head != NULL;
	pthread_mutex_unlock(&big);
	if (busy && !pthread_create(&t, NULL, end_work, NULL))
		pthread_detach(t);
}

static void init_once(void)
{
	if (!profile_init())
		return;
	pthread_key_create(&tls_key, thread_exit);
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
	device_init();
	soft_memory_init();
	for (int i = 0; i < ndevices && window_len; i++)
		pool_init(&devices[i]);
	atexit(program_ends);
	initialised = true;
}

CUresult cuInit(unsigned int Flags)
{
	if (Flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_once(&once, init_once);
	if (!initialised)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	if (!window_len)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return ndevices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult api_enter(void)
{
	if (!initialised || forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	return tls.in_callback ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

CUresult api_lock(void)
{
	CUresult r = api_enter();

	if (!r)
		pthread_mutex_lock(&big);
	return r;
}

CUresult api_lock_asked(void)
{
	CUresult r = api_lock();

	if (r || !profile_context_first || ctx_current())
		return r;
	return api_unlock(CUDA_ERROR_INVALID_CONTEXT);
}

CUresult api_lock_ctx(struct ctx **out)
{
	CUresult r = api_enter();
	struct ctx *ctx;

	if (r)
		return r;
	pthread_mutex_lock(&big);
	ctx = ctx_current();
	r = ctx_check(ctx);
	if (!r)
		r = ctx->sticky;
	if (r)
		return api_unlock(r);
	*out = ctx;
	return CUDA_SUCCESS;
}

/* May exceed the real version: from it programs decide whether to leave PTX to the driver. */
int soft_driver_version(void)
{
	const char *s = getenv("SINGVGPU_SOFT_DRIVER");
	int major, minor, n = 0;

	if (!s || !*s)
		return SOFT_DRIVER_VERSION;
	if (sscanf(s, "%2d.%1d%n", &major, &minor, &n) == 2 && !s[n] &&
	    major == SOFT_DRIVER_VERSION / 1000 && major * 1000 + minor * 10 >= SOFT_DRIVER_VERSION)
		return major * 1000 + minor * 10;
	soft_log("SINGVGPU_SOFT_DRIVER is from %d.%d to %d.9, not %s", SOFT_DRIVER_VERSION / 1000,
		 SOFT_DRIVER_VERSION % 1000 / 10, SOFT_DRIVER_VERSION / 1000, s);
	return SOFT_DRIVER_VERSION;
}

CUresult cuDriverGetVersion(int *driverVersion)
{
	if (!driverVersion)
		return CUDA_ERROR_INVALID_VALUE;
	*driverVersion = soft_driver_version();
	return CUDA_SUCCESS;
}
