// SPDX-License-Identifier: Apache-2.0
/*
 * api_stream.c - the order of work: streams, events, implicit synchronisation, host functions.
 */
#include "api.h"

#include <pthread.h>

static int gate, ran, saw;

static int get(const int *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static void put(int *p, int v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static void wait_gate(void *arg)
{
	while (!get(&gate))
		nap_ms(1);
	put(&ran, get(&ran) + (int)(intptr_t)arg);
}

static void count(void *arg)
{
	put(&saw, get(&ran));
	put(&ran, get(&ran) + (int)(intptr_t)arg);
}

TEST_F(gpu, work_of_a_stream_runs_in_order_and_later)
{
	CUstream s;

	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamQuery(s));
	OK(cuLaunchHostFunc(s, wait_gate, (void *)1));
	OK(cuLaunchHostFunc(s, count, (void *)10));
	FAILS(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
	EXPECT_EQ(0, get(&ran));
	put(&gate, 1);
	OK(cuStreamSynchronize(s));
	EXPECT_EQ(11, get(&ran));
	EXPECT_EQ(1, get(&saw));
	OK(cuStreamQuery(s));
	OK(cuStreamDestroy(s));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(s));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(s));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(POISON));
}

TEST_F(gpu, streams_progress_while_others_wait)
{
	CUstream blocked[40], s;

	for (int i = 0; i < 40; i++) {
		OK(cuStreamCreate(&blocked[i], CU_STREAM_NON_BLOCKING));
		OK(cuLaunchHostFunc(blocked[i], wait_gate, (void *)0));
	}
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuLaunchHostFunc(s, count, (void *)5));
	OK(cuStreamSynchronize(s));
	EXPECT_EQ(5, get(&ran));
	put(&gate, 1);
	OK(cuCtxSynchronize());
}

TEST_F(gpu, the_legacy_stream_waits_for_blocking_streams_and_they_for_it)
{
	CUstream blocking, free_one;

	OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	OK(cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING));
	OK(cuLaunchHostFunc(blocking, wait_gate, (void *)1));
	OK(cuLaunchHostFunc(NULL, count, (void *)10));		/* after blocking */
	FAILS(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
	OK(cuLaunchHostFunc(free_one, count, (void *)100));	/* after nothing */
	OK(cuStreamSynchronize(free_one));
	EXPECT_EQ(100, get(&ran));
	put(&gate, 1);
	OK(cuStreamSynchronize(NULL));
	EXPECT_EQ(111, get(&ran));
	EXPECT_EQ(101, get(&saw));
	put(&gate, 0);
	OK(cuLaunchHostFunc(NULL, wait_gate, (void *)1));
	OK(cuLaunchHostFunc(blocking, count, (void *)10));	/* after the legacy stream */
	nap_ms(20);
	EXPECT_EQ(111, get(&ran));
	put(&gate, 1);
	OK(cuStreamSynchronize(blocking));
	EXPECT_EQ(122, get(&ran));
	EXPECT_EQ(112, get(&saw));
}

TEST_F(gpu, per_thread_streams_are_blocking_streams_of_their_thread)
{
	OK(cuLaunchHostFunc(CU_STREAM_PER_THREAD, wait_gate, (void *)1));
	OK(cuLaunchHostFunc(CU_STREAM_LEGACY, count, (void *)10));
	nap_ms(10);
	EXPECT_EQ(0, get(&ran));
	put(&gate, 1);
	OK(cuStreamSynchronize(CU_STREAM_LEGACY));
	EXPECT_EQ(11, get(&ran));
	EXPECT_EQ(1, get(&saw));
}

TEST_F(gpu, events_order_streams)
{
	CUstream a, b;
	CUevent ev;

	OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING));
	OK(cuEventQuery(ev));			/* never recorded: complete */
	OK(cuStreamWaitEvent(b, ev, 0));	/* and nothing to wait for */
	OK(cuLaunchHostFunc(a, wait_gate, (void *)1));
	OK(cuEventRecord(ev, a));
	FAILS(CUDA_ERROR_NOT_READY, cuEventQuery(ev));
	OK(cuStreamWaitEvent(b, ev, 0));
	OK(cuLaunchHostFunc(b, count, (void *)10));
	nap_ms(10);
	EXPECT_EQ(0, get(&ran));
	OK(cuEventDestroy(ev));			/* what waits for it goes on waiting */
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(ev));
	put(&gate, 1);
	OK(cuStreamSynchronize(b));
	EXPECT_EQ(11, get(&ran));
	EXPECT_EQ(1, get(&saw));
}

TEST_F(gpu, events_measure_time)
{
	CUevent a, b, no;
	CUstream s;
	float ms = -1;

	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuEventCreate(&no, CU_EVENT_DISABLE_TIMING));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, a, b));
	OK(cuEventRecord(a, s));
	OK(cuLaunchHostFunc(s, wait_gate, (void *)0));
	OK(cuEventRecord(b, s));
	OK(cuEventRecord(no, s));
	FAILS(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, a, b));
	nap_ms(30);
	put(&gate, 1);
	OK(cuEventSynchronize(b));
	OK(cuEventElapsedTime(&ms, a, b));
	EXPECT_GE(ms, 29);
	EXPECT_LT(ms, 20000);
	OK(cuEventElapsedTime(&ms, b, a));
	EXPECT_LE(ms, -29);
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, a, no));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&a, 0x100));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuEventCreate(NULL, 0));
}

static CUresult in_host;

static void call_cuda(void *arg)
{
	CUdeviceptr p;

	in_host = cuMemAlloc(&p, 16);
	*(int *)arg = 1;
}

static void CUDA_CB status_cb(CUstream s, CUresult status, void *arg)
{
	(void)s;
	*(CUresult *)arg = status;
}

static pthread_t caller;

static void whose(void *arg)
{
	put(&ran, get(&ran) + 1);
	put(&saw, get(&saw) + !!pthread_equal(caller, pthread_self()));
}

static void CUDA_CB whose_callback(CUstream s, CUresult r, void *arg)
{
	whose(arg);
}

TEST_F(gpu, host_functions_never_run_in_a_thread_that_waits)
{
	CUDA_HOST_NODE_PARAMS p = { .fn = whose };
	CUgraphExec ge;
	CUgraphNode n;
	CUevent ev;
	CUgraph g;
	CUstream s;

	caller = pthread_self();
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING));
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddHostNode(&n, g, NULL, 0, &p));
	OK(cuGraphInstantiate(&ge, g, 0));
	for (int i = 0; i < 2000; i++) {
		OK(cuLaunchHostFunc(s, whose, NULL));
		OK(cuStreamAddCallback(s, whose_callback, NULL, 0));
		OK(cuGraphLaunch(ge, s));
		OK(cuEventRecord(ev, s));
		OK(i & 1 ? cuStreamSynchronize(s) : i & 2 ? cuEventSynchronize(ev) : cuCtxSynchronize());
		ASSERT_EQ(3 * i + 3, get(&ran));
		ASSERT_EQ(0, get(&saw));
	}
}

TEST_F(gpu, host_functions_may_not_call_cuda)
{
	CUresult status = 77;
	int done = 0;

	OK(cuLaunchHostFunc(NULL, call_cuda, &done));
	OK(cuStreamAddCallback(NULL, status_cb, &status, 0));
	OK(cuStreamSynchronize(NULL));
	EXPECT_EQ(1, done);
	EXPECT_EQ(CUDA_ERROR_NOT_PERMITTED, in_host);
	EXPECT_EQ(CUDA_SUCCESS, status);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(NULL, NULL, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback(NULL, status_cb, NULL, 1));
}

TEST_F(gpu, values_in_memory_order_streams)
{
	CUdeviceptr p;
	CUstream a, b;
	uint64_t v = 77;

	OK(cuMemAlloc(&p, 64));
	OK(cuMemsetD8(p, 0, 64));
	OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	OK(cuStreamWaitValue32(a, p, 5, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuStreamWriteValue64(a, p + 8, 0x1122334455667788ull, 0));
	nap_ms(10);
	FAILS(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
	OK(cuStreamWriteValue32(b, p, 6, 0));
	OK(cuStreamSynchronize(a));
	OK(cuMemcpyDtoH(&v, p + 8, 8));
	EXPECT_EQ(0x1122334455667788ull, v);
	OK(cuStreamWaitValue64(a, p + 8, 0x1000000000000000ull, CU_STREAM_WAIT_VALUE_AND));
	OK(cuStreamWaitValue32(a, p, 6, CU_STREAM_WAIT_VALUE_EQ));
	OK(cuStreamSynchronize(a));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(a, p + 2, 6, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(a, 0x1000, 6, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(a, p, 6, 0x100));
}

/* A host's calls. */
void softcuda_told_words(const void *from, size_t len);
void softcuda_told(bool here);

static pthread_t caller;
static int calls;

static void CUDA_CB called(CUstream s, CUresult r, void *arg)
{
	(void)s;
	(void)arg;
	caller = pthread_self();
	put(&calls, calls + 1 + 100 * r);
}

TEST_F(gpu, whoever_tells_of_a_word_runs_what_waits_for_it)
{
	uint64_t *word, v = 0;
	CUdeviceptr p;
	CUstream s;

	OK(cuMemHostAlloc((void **)&word, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	OK(cuMemAlloc(&p, 8));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	word[0] = word[100] = calls = 0;
	softcuda_told_words(word, 64);
	OK(cuStreamWaitValue64(s, (CUdeviceptr)&word[0], 1, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuStreamAddCallback(s, called, NULL, 0));
	OK(cuStreamWriteValue64(s, p, 5, 0));	/* memory: not for whoever tells */
	OK(cuStreamAddCallback(s, called, NULL, 0));
	softcuda_told(true);
	put((int *)word, 1);
	nap_ms(50);
	EXPECT_EQ(0, get(&calls));		/* nobody polls it */
	FAILS(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
	softcuda_told(true);
	OK(cuStreamSynchronize(s));
	EXPECT_EQ(2, get(&calls));
	OK(cuMemcpyDtoH(&v, p, 8));
	EXPECT_EQ(5, v);

	/* here, and elsewhere */
	for (int here = 0; here < 2; here++) {
		OK(cuStreamWaitValue64(s, (CUdeviceptr)&word[0], 2 + here, CU_STREAM_WAIT_VALUE_GEQ));
		OK(cuStreamAddCallback(s, called, NULL, 0));
		put((int *)word, 2 + here);
		softcuda_told(here);
		OK(cuStreamSynchronize(s));
		EXPECT_EQ(3 + here, get(&calls));
		EXPECT_EQ(here, !!pthread_equal(caller, pthread_self()));
	}

	/* A word that has its value already holds nobody up, and others are polled. */
	OK(cuStreamWaitValue64(s, (CUdeviceptr)&word[0], 3, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuStreamWaitValue64(s, (CUdeviceptr)&word[100], 1, CU_STREAM_WAIT_VALUE_GEQ));
	nap_ms(1);
	put((int *)&word[100], 1);
	OK(cuStreamSynchronize(s));

	/* A stream that is destroyed goes on, too. */
	OK(cuStreamWaitValue64(s, (CUdeviceptr)&word[0], 4, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuStreamAddCallback(s, called, NULL, 0));
	OK(cuStreamDestroy(s));
	put((int *)word, 4);
	softcuda_told(true);
	EXPECT_EQ(5, get(&calls));
	softcuda_told_words(NULL, 0);
}

TEST_F(gpu, words_that_are_told_no_longer_are_polled)
{
	uint64_t *word;
	CUstream s;

	OK(cuMemHostAlloc((void **)&word, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	word[0] = 0;
	softcuda_told_words(word, 64);
	OK(cuStreamWaitValue64(s, (CUdeviceptr)&word[0], 1, CU_STREAM_WAIT_VALUE_GEQ));
	softcuda_told_words(word + 64, 64);
	put((int *)word, 1);
	for (int i = 0; i < 1000 && cuStreamQuery(s); i++)
		nap_ms(1);
	OK(cuStreamQuery(s));
	softcuda_told_words(NULL, 0);
}

TEST_F(gpu, a_context_that_is_over_waits_for_no_word)
{
	CUfunction die;
	uint64_t *word;
	CUstream s, t;
	CUmodule m;

	OK(cuMemHostAlloc((void **)&word, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	word[0] = calls = 0;
	softcuda_told_words(word, 64);
	OK(cuStreamWaitValue64(s, (CUdeviceptr)&word[0], 1, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuStreamAddCallback(s, called, NULL, 0));
	OK(cuModuleLoadData(&m, PTX_HEAD PTX_TRAP));
	OK(cuModuleGetFunction(&die, m, "die"));
	OK(cuLaunchKernel(die, 1, 1, 1, 1, 1, 1, 0, t, NULL, NULL));
	for (int i = 0; i < 1000 && !get(&calls); i++)
		nap_ms(1);
	EXPECT_LT(1, get(&calls));		/* with the error */
	softcuda_told_words(NULL, 0);
}

TEST_F(gpu, a_pageable_source_has_been_read_when_the_call_returns)
{
	unsigned char src[1000], back[1000];
	CUdeviceptr p;
	CUstream s;

	OK(cuMemAlloc(&p, 1000));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuLaunchHostFunc(s, wait_gate, (void *)0));
	memset(src, 7, sizeof(src));
	OK(cuMemcpyHtoDAsync(p, src, 1000, s));
	memset(src, 9, sizeof(src));		/* the copy has not run: it must not see this */
	put(&gate, 1);
	OK(cuMemcpyDtoHAsync(back, p, 1000, s));	/* has arrived when this returns */
	EXPECT_EQ(7, back[0]);
	EXPECT_EQ(7, back[999]);
	OK(cuStreamSynchronize(s));
}

TEST_F(gpu, freeing_memory_waits_for_its_users)
{
	unsigned char *pinned;
	CUdeviceptr p;
	CUstream s;

	OK(cuMemHostAlloc((void **)&pinned, 4096, 0));
	OK(cuMemAlloc(&p, 4096));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	put(&gate, 0);
	OK(cuLaunchHostFunc(s, wait_gate, (void *)1));
	OK(cuMemcpyHtoDAsync(p, pinned, 4096, s));
	nap_ms(5);
	EXPECT_EQ(0, get(&ran));
	put(&gate, 1);
	OK(cuMemFree(p));
	EXPECT_EQ(1, get(&ran));
	OK(cuMemFreeHost(pinned));
}

TEST_F(gpu, attributes_and_identities_of_streams)
{
	CUstreamAttrValue v;
	unsigned long long id = 0, id2 = 0;
	int prio = 77, least = 77, greatest = 77;
	unsigned int flags = 77;
	CUcontext c = POISON;
	CUstream s, t;

	OK(cuCtxGetStreamPriorityRange(&least, &greatest));
	EXPECT_LT(greatest, least);
	OK(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -1000));
	OK(cuStreamGetPriority(s, &prio));
	EXPECT_EQ(greatest, prio);
	OK(cuStreamGetFlags(s, &flags));
	EXPECT_EQ(CU_STREAM_NON_BLOCKING, flags);
	OK(cuStreamGetId(s, &id));
	OK(cuStreamGetId(NULL, &id2));
	EXPECT_NE(id, id2);
	OK(cuStreamGetCtx(s, &c));
	EXPECT_EQ(self->ctx, c);
	OK(cuStreamCreate(&t, 0));
	memset(&v, 0, sizeof(v));
	v.syncPolicy = CU_SYNC_POLICY_YIELD;
	OK(cuStreamSetAttribute(s, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
	OK(cuStreamCopyAttributes(t, s));
	memset(&v, 0, sizeof(v));
	OK(cuStreamGetAttribute(t, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
	EXPECT_EQ(CU_SYNC_POLICY_YIELD, v.syncPolicy);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&s, 0x80));
}

/* Many threads, each with streams of its own, at once. */
static void *hammer(void *arg)
{
	CUcontext ctx = arg;
	intptr_t bad = 0;

	if (cuCtxSetCurrent(ctx))
		return (void *)1;
	for (int round = 0; round < 50; round++) {
		unsigned int v[64], back[64];
		CUdeviceptr p;
		CUevent ev;
		CUstream s;

		for (int i = 0; i < 64; i++)
			v[i] = round * 1000 + i;
		bad += !!cuStreamCreate(&s, round & 1);
		bad += !!cuEventCreate(&ev, 0);
		bad += !!cuMemAllocAsync(&p, sizeof(v), s);
		bad += !!cuMemcpyHtoDAsync(p, v, sizeof(v), s);
		bad += !!cuEventRecord(ev, s);
		bad += !!cuMemcpyDtoHAsync(back, p, sizeof(back), s);
		bad += !!cuMemFreeAsync(p, s);
		bad += !!cuStreamWaitEvent(NULL, ev, 0);
		bad += !!cuStreamDestroy(s);
		bad += !!cuEventDestroy(ev);
		bad += !!memcmp(v, back, sizeof(v));
	}
	return (void *)bad;
}

TEST_F(gpu, many_threads_work_at_once)
{
	pthread_t t[8];
	void *ret;

	for (int i = 0; i < 8; i++)
		ASSERT_EQ(0, pthread_create(&t[i], NULL, hammer, self->ctx));
	for (int i = 0; i < 8; i++) {
		pthread_join(t[i], &ret);
		EXPECT_EQ(NULL, ret);
	}
	OK(cuCtxSynchronize());
}

TEST_HARNESS_MAIN
