// SPDX-License-Identifier: Apache-2.0
/*
 * probe_queue.c - how many operations a stream takes behind one that waits, and which calls of other threads wait
 * while a call waits for room
 *
 * While the proxy's consumer waits for room, another of its threads listens to the device: what may that one call?
 */
#define _GNU_SOURCE
#include "probe.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define MOST	20000		/* operations that are tried */
#define QUIET	300000		/* us after which a call is taken to wait */

static CUcontext ctx;
static CUstream full, other;
static CUdeviceptr gate_there;
static volatile uint64_t *gate;		/* [0] opens the stream, [1] and [2] are written */
static int taken;

static void *fill(void *arg)
{
	CHECK(cuCtxSetCurrent, ctx);
	for (int i = 0; i < MOST; i++) {
		CHECK(cuStreamWriteValue64, full, gate_there + 8, i, 0);
		__atomic_fetch_add(&taken, 1, __ATOMIC_RELEASE);
	}
	return arg;
}

static CUresult none(void) { return CUDA_SUCCESS; }
static CUresult query(void) { return DRIVER(cuStreamQuery)(other); }
static CUresult query_full(void) { return DRIVER(cuStreamQuery)(full); }
static CUresult synchronize(void) { return DRIVER(cuStreamSynchronize)(other); }
static CUresult write_value(void) { return DRIVER(cuStreamWriteValue64)(other, gate_there + 16, 1, 0); }
static CUresult start(void) { return launch(function("nothing"), other, 0, NULL); }

static CUresult allocate(void)
{
	CUdeviceptr p;

	return DRIVER(cuMemAlloc)(&p, 4096);
}

static const struct {
	const char *name;
	CUresult (*call)(void);
} calls[] = {
	{ "cuCtxSetCurrent", none }, { "cuStreamQuery", query }, { "cuStreamQuery of it", query_full },
	{ "cuStreamSynchronize", synchronize }, { "cuStreamWriteValue64", write_value },
	{ "cuLaunchKernel", start }, { "cuMemAlloc", allocate },
};
static int returned[COUNT(calls)];

static void *try(void *arg)
{
	int i = (int)(intptr_t)arg;

	CHECK(cuCtxSetCurrent, ctx);
	calls[i].call();
	__atomic_store_n(&returned[i], 1, __ATOMIC_RELEASE);
	return NULL;
}

static void begun(pthread_t *t, void *(*fn)(void *), int i)
{
	if (pthread_create(t, NULL, fn, (void *)(intptr_t)i))
		leave(1, "no thread");
}

int probe_queue(int argc, char **argv)
{
	pthread_t filler, caller[COUNT(calls)];
	int seen = -1;
	bool waits;

	(void)argc, (void)argv;
	begin_context();
	function("nothing");
	CHECK(cuCtxGetCurrent, &ctx);
	gate = host_words(&gate_there);
	full = new_stream();
	other = new_stream();
	CHECK(cuStreamWaitValue64, full, gate_there, 1, CU_STREAM_WAIT_VALUE_GEQ);
	begun(&filler, fill, 0);
	for (int now; (now = __atomic_load_n(&taken, __ATOMIC_ACQUIRE)) != seen; usleep(QUIET))
		seen = now;
	waits = seen < MOST;
	for (size_t i = 0; i < COUNT(calls) && waits; i++)
		begun(&caller[i], try, i);
	usleep(waits ? QUIET : 0);
	for (size_t i = 0; i < COUNT(calls) && waits; i++)
		printf("meanwhile %s %s\n", calls[i].name,
		       __atomic_load_n(&returned[i], __ATOMIC_ACQUIRE) ? "returns" : "waits");
	*gate = 1;
	pthread_join(filler, NULL);
	for (size_t i = 0; i < COUNT(calls) && waits; i++)
		pthread_join(caller[i], NULL);
	if (waits)
		printf("a stream took %d operations behind one that waits\n", seen);
	else
		printf("a stream took all of %d operations behind one that waits\n", MOST);
	return 0;
}
