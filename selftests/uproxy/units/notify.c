// SPDX-License-Identifier: Apache-2.0
/*
 * notify.c - waits by words that the device writes: this is the device, and writes when it likes,
 * also late, or never
 */
#include <kselftest_harness.h>

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "hal.h"

#define WAITS_MAX 2048
#define POOL 512	/* words of notify.c */

static CUcontext const one = (CUcontext)1, two = (CUcontext)2;

static struct {				/* a write that was queued */
	uint64_t *word, number;
} queued[WAITS_MAX];
static unsigned int queued_n, called_back, prints;
static CUresult broken[3];		/* by context */
static unsigned long callback_us;
static int has_words = 1;
static __thread CUcontext here;

static CUresult CUDAAPI get_attribute(int *value, CUdevice_attribute attr, CUdevice dev)
{
	(void)dev;
	*value = attr == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS && has_words;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI pin(void *p, size_t len, unsigned int flags)
{
	(void)p;
	(void)len;
	(void)flags;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI get_current(CUcontext *ctx)
{
	*ctx = here;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI set_current(CUcontext ctx)
{
	here = ctx;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI new_stream(CUstream *stream, unsigned int flags)
{
	(void)flags;
	*stream = (CUstream)here;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI end_stream(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI query(CUstream stream)
{
	(void)stream;
	return __atomic_load_n(&broken[(uintptr_t)here], __ATOMIC_ACQUIRE);
}

static CUresult CUDAAPI synchronize(CUstream stream)
{
	__atomic_add_fetch(&prints, 1, __ATOMIC_RELAXED);
	return query(stream);
}

static CUresult CUDAAPI write_word(CUstream stream, CUdeviceptr word, cuuint64_t number,
				   unsigned int flags)
{
	unsigned int i = __atomic_fetch_add(&queued_n, 1, __ATOMIC_RELAXED);

	(void)stream;
	(void)flags;
	if (i >= WAITS_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	queued[i].number = number;
	__atomic_store_n(&queued[i].word, (uint64_t *)(uintptr_t)word, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI add_callback(CUstream stream, CUstreamCallback fn, void *arg,
				     unsigned int flags)
{
	(void)flags;
	called_back++;
	if (callback_us)
		usleep(callback_us);
	fn(stream, CUDA_SUCCESS, arg);
	return CUDA_SUCCESS;
}

/* The device comes to the i-th write. */
static void write_queued(unsigned int i)
{
	uint64_t *word;

	while (!(word = __atomic_load_n(&queued[i].word, __ATOMIC_ACQUIRE)))
		sched_yield();
	__atomic_store_n(word, queued[i].number, __ATOMIC_RELEASE);
}

static struct hal *start(const char *way)
{
	static struct hal h = { .drv = {
		.cuDeviceGetAttribute = get_attribute, .cuMemHostRegister_v2 = pin,
		.cuCtxGetCurrent = get_current, .cuCtxSetCurrent = set_current,
		.cuStreamCreate = new_stream, .cuStreamDestroy_v2 = end_stream,
		.cuStreamQuery = query, .cuStreamSynchronize = synchronize,
		.cuStreamWriteValue64_v2 = write_word, .cuStreamAddCallback = add_callback,
	} };

	if (way)
		setenv("SINGVGPU_NOTIFY", way, 1);
	else
		unsetenv("SINGVGPU_NOTIFY");
	here = one;
	hal_notify_start(&h);
	called_back = 0;
	return &h;
}

struct wait {
	unsigned int times, place;	/* times: atomic; place: which it was of all */
	CUresult status;
};

static unsigned int ends;

static void ended(void *arg, CUresult status)
{
	struct wait *w = arg;

	w->status = status;
	w->place = __atomic_add_fetch(&ends, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&w->times, 1, __ATOMIC_RELEASE);
}

static unsigned int times(struct wait *w)
{
	return __atomic_load_n(&w->times, __ATOMIC_ACQUIRE);
}

static CUresult ask(struct hal *h, CUcontext ctx, struct wait *w)
{
	here = ctx;
	return hal_notify(h, CU_STREAM_LEGACY, ended, w);
}

/* It has ended; false: not within 20 s. */
static bool ends_soon(struct wait *w)
{
	for (int i = 0; i < 20000 && !times(w); i++)
		usleep(1000);
	return times(w) == 1;
}

/* A wait whose notice keeps the polling thread, which sees no word meanwhile. */
struct hold {
	bool held, let_go;
};

static void hold_here(void *arg, CUresult status)
{
	struct hold *hold = arg;

	(void)status;
	__atomic_store_n(&hold->held, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&hold->let_go, __ATOMIC_ACQUIRE))
		usleep(100);
}

static void hold_poller(struct hal *h, struct hold *hold)
{
	unsigned int i = queued_n;

	here = one;
	hal_notify(h, CU_STREAM_LEGACY, hold_here, hold);
	write_queued(i);
	while (!__atomic_load_n(&hold->held, __ATOMIC_ACQUIRE))
		usleep(100);
}

static void let_go(struct hold *hold)
{
	__atomic_store_n(&hold->let_go, true, __ATOMIC_RELEASE);
}

static double cpu_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

TEST(slow_callbacks_are_not_used)
{
	struct wait w = { 0 };
	struct hal *h;

	callback_us = 100;
	h = start(NULL);
	EXPECT_EQ(ask(h, one, &w), 0);
	EXPECT_EQ(called_back, 0);
	EXPECT_EQ(times(&w), 0);
	write_queued(0);
	EXPECT_TRUE(ends_soon(&w));
	EXPECT_EQ(w.status, 0);
	EXPECT_GT(prints, 0);	/* before the notice */
}

TEST(quick_callbacks_are_used)
{
	struct wait w = { 0 };
	struct hal *h = start(NULL);

	EXPECT_EQ(ask(h, one, &w), 0);
	EXPECT_EQ(called_back, 1);
	EXPECT_EQ(times(&w), 1);
	EXPECT_EQ(queued_n, 0);
}

TEST(either_can_be_asked_for)
{
	struct wait w[2] = { 0 };

	callback_us = 100;
	EXPECT_EQ(ask(start("callbacks"), one, &w[0]), 0);
	EXPECT_EQ(called_back, 1);
	callback_us = 0;
	EXPECT_EQ(ask(start("words"), one, &w[1]), 0);
	EXPECT_EQ(called_back, 0);
	write_queued(0);
	EXPECT_TRUE(ends_soon(&w[1]));
}

TEST(a_device_that_writes_no_words_has_callbacks)
{
	struct wait w = { 0 };
	struct hal *h;

	has_words = 0;
	h = start("words");
	EXPECT_EQ(ask(h, one, &w), 0);
	EXPECT_EQ(called_back, 1);
	EXPECT_EQ(times(&w), 1);
}

TEST(waits_end_in_the_order_in_which_they_were_asked_for)
{
	struct hal *h = start("words");
	struct wait w[5] = { 0 };
	struct hold hold = { 0 };

	hold_poller(h, &hold);
	for (int i = 0; i < 5; i++)
		EXPECT_EQ(ask(h, i % 2 ? one : two, &w[i]), 0);
	for (int i = 5; i; i--)
		write_queued(i);
	let_go(&hold);
	for (unsigned int i = 0; i < 5; i++) {
		EXPECT_TRUE(ends_soon(&w[i]));
		EXPECT_EQ(w[i].place, i + 1);
	}
}

TEST(a_word_that_is_used_again_ends_no_wait_before_it_is_written)
{
	struct hal *h = start("words");
	struct wait w[3] = { 0 };

	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(ask(h, one, &w[i]), 0);
		usleep(20000);
		EXPECT_EQ(times(&w[i]), 0);
		write_queued(i);
		EXPECT_TRUE(ends_soon(&w[i]));
	}
	EXPECT_EQ(queued[0].word, queued[2].word);
}

TEST(a_context_that_fails_ends_its_own_waits)
{
	struct hal *h = start("words");
	struct wait a[3] = { 0 }, b = { 0 };

	for (int i = 0; i < 3; i++)
		EXPECT_EQ(ask(h, one, &a[i]), 0);
	EXPECT_EQ(ask(h, two, &b), 0);
	write_queued(1);
	EXPECT_TRUE(ends_soon(&a[1]));
	__atomic_store_n(&broken[1], CUDA_ERROR_ILLEGAL_ADDRESS, __ATOMIC_RELEASE);
	EXPECT_TRUE(ends_soon(&a[0]));
	EXPECT_TRUE(ends_soon(&a[2]));
	EXPECT_EQ(a[0].status, CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT_EQ(a[1].status, 0);
	EXPECT_EQ(a[2].status, CUDA_ERROR_ILLEGAL_ADDRESS);
	usleep(20000);
	EXPECT_EQ(times(&b), 0);
	write_queued(3);
	EXPECT_TRUE(ends_soon(&b));
	EXPECT_EQ(b.status, 0);
}

TEST(a_context_that_is_ended_ends_its_own_waits)
{
	struct hal *h = start("words");
	struct wait a = { 0 }, b = { 0 };

	EXPECT_EQ(ask(h, one, &a), 0);
	EXPECT_EQ(ask(h, two, &b), 0);
	hal_notify_leave(h, one);
	EXPECT_EQ(times(&a), 0);
	hal_notify_left(h, one);
	EXPECT_EQ(times(&a), 1);
	EXPECT_EQ(a.status, CUDA_ERROR_CONTEXT_IS_DESTROYED);
	/* What is asked of a context that is gone would be a crash of the driver. */
	__atomic_store_n(&broken[1], CUDA_ERROR_UNKNOWN, __ATOMIC_RELEASE);
	usleep(20000);
	EXPECT_EQ(times(&b), 0);
	write_queued(1);
	EXPECT_TRUE(ends_soon(&b));
	EXPECT_EQ(times(&a), 1);
}

/* The write of a failed context comes behind that of another one, which is for the same word. */
TEST(a_late_write_ends_no_other_wait_and_hides_no_end)
{
	struct hal *h = start("words");
	struct wait a = { 0 }, b = { 0 };
	struct hold hold[2] = { 0 };

	EXPECT_EQ(ask(h, one, &a), 0);
	__atomic_store_n(&broken[1], CUDA_ERROR_ILLEGAL_ADDRESS, __ATOMIC_RELEASE);
	EXPECT_TRUE(ends_soon(&a));
	__atomic_store_n(&broken[1], CUDA_SUCCESS, __ATOMIC_RELEASE);
	hold_poller(h, &hold[0]);
	EXPECT_EQ(ask(h, two, &b), 0);
	write_queued(0);
	let_go(&hold[0]);
	usleep(20000);
	EXPECT_EQ(times(&b), 0);
	hold_poller(h, &hold[1]);
	write_queued(2);
	write_queued(0);
	let_go(&hold[1]);
	EXPECT_TRUE(ends_soon(&b));
	EXPECT_EQ(b.status, 0);
	EXPECT_EQ(times(&a), 1);
}

TEST(words_of_a_context_that_has_ended_are_used_again)
{
	static struct wait w[2 * POOL];
	struct hal *h = start("words");

	for (int i = 0; i < POOL; i++)
		EXPECT_EQ(ask(h, two, &w[i]), 0);
	EXPECT_EQ(called_back, 0);
	EXPECT_EQ(ask(h, one, &w[POOL]), 0);	/* there is no word left */
	EXPECT_EQ(called_back, 1);
	EXPECT_EQ(times(&w[POOL]), 1);
	__atomic_store_n(&broken[2], CUDA_ERROR_ILLEGAL_ADDRESS, __ATOMIC_RELEASE);
	for (int i = 0; i < POOL; i++)
		EXPECT_TRUE(ends_soon(&w[i]));
	hal_notify_leave(h, two);
	hal_notify_left(h, two);
	for (int i = POOL + 1; i < 2 * POOL; i++)
		EXPECT_EQ(ask(h, one, &w[i]), 0);
	EXPECT_EQ(called_back, 1);
	for (int i = 0; i < POOL - 1; i++)
		write_queued(POOL + i);
	for (int i = POOL + 1; i < 2 * POOL; i++)
		EXPECT_TRUE(ends_soon(&w[i]));
}

#define THREADS 8
#define EACH 200

static struct wait many[THREADS][EACH];

static void *ask_many(void *arg)
{
	struct hal *h = arg;
	static unsigned int n;
	struct wait *w = many[__atomic_fetch_add(&n, 1, __ATOMIC_RELAXED)];

	for (int i = 0; i < EACH; i++) {
		/* Some wait at once, others have several waits under way. */
		if (ask(h, i % 2 ? one : two, &w[i]) || (i % 3 == 0 && !ends_soon(&w[i])))
			return h;
	}
	return NULL;
}

TEST(many_threads_wait_at_once)
{
	struct hal *h = start("words");
	pthread_t t[THREADS];
	void *bad;

	for (int i = 0; i < THREADS; i++)
		ASSERT_EQ(pthread_create(&t[i], NULL, ask_many, h), 0);
	for (unsigned int i = 0; i < THREADS * EACH; i++)
		write_queued(i);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(t[i], &bad);
		EXPECT_EQ(bad, NULL);
	}
	for (int i = 0; i < THREADS; i++)
		for (int k = 0; k < EACH; k++) {
			EXPECT_TRUE(ends_soon(&many[i][k]));
			EXPECT_EQ(many[i][k].status, 0);
		}
	EXPECT_EQ(called_back, 0);
}

TEST(a_long_wait_takes_little_of_a_processor_and_none_takes_nothing)
{
	struct hal *h = start("words");
	struct wait w = { 0 };
	double begin, end;

	EXPECT_EQ(ask(h, one, &w), 0);
	usleep(50000);
	begin = cpu_ms();
	usleep(500000);
	end = cpu_ms();
	EXPECT_LT(end - begin, 150);
	write_queued(0);
	EXPECT_TRUE(ends_soon(&w));
	usleep(50000);
	begin = cpu_ms();
	usleep(300000);
	end = cpu_ms();
	EXPECT_LT(end - begin, 3);
}

TEST_HARNESS_MAIN
