// SPDX-License-Identifier: Apache-2.0
/*
 * probe_behind.c - which work and which calls are blocked while streams wait for a value in memory
 *
 * A rank's stream waits so for a collective operation, which other streams and other threads of its proxy must finish. How many
 * streams can wait before a kernel in one more no longer runs? Which calls block until such a stream goes on, and which of
 * these block another thread's launch?
 */
#define _GNU_SOURCE
#include "probe.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define QUIET	100000		/* us after which a call is taken to wait */
#define MOST	128		/* streams that wait at once */

static CUcontext ctx;
static CUstream stands, other;
static CUdeviceptr gate_there;
static volatile uint64_t *gate;		/* [0] lets streams go on */
static uint64_t turn;			/* what they wait for */

/* ------------------------------------------------------------------------------ many streams */

static bool ends(CUstream s)
{
	for (int us = 0; us < QUIET; us += 100) {
		if (!DRIVER(cuStreamQuery)(s))
			return true;
		usleep(100);
	}
	return false;
}

/* Do a kernel and a write of a value in one more stream end while n wait? */
static bool runs_behind(int n, int priority)
{
	CUstream waiting[MOST], last;
	bool ran;

	turn++;
	for (int i = 0; i < n; i++) {
		waiting[i] = new_stream();
		CHECK(cuStreamWaitValue64, waiting[i], gate_there, turn, CU_STREAM_WAIT_VALUE_GEQ);
		check(launch(function("nothing"), waiting[i], 0, NULL), "cuLaunchKernel");
	}
	CHECK(cuStreamCreateWithPriority, &last, CU_STREAM_NON_BLOCKING, priority);
	check(launch(function("nothing"), last, 0, NULL), "cuLaunchKernel");
	CHECK(cuStreamWriteValue64, last, gate_there + 16, turn, 0);
	ran = ends(last);
	*gate = turn;
	for (int i = 0; i < n; i++) {
		CHECK(cuStreamSynchronize, waiting[i]);
		CHECK(cuStreamDestroy, waiting[i]);
	}
	CHECK(cuStreamSynchronize, last);
	CHECK(cuStreamDestroy, last);
	return ran;
}

/* The first number of streams behind which it does not; 0: it always does. */
static int first_stop(const char *what, int priority)
{
	static const int n[] = { 1, 4, 7, 8, 15, 16, 31, 32, 64, MOST };

	for (size_t i = 0; i < COUNT(n); i++)
		if (!runs_behind(n[i], priority)) {
			printf("behind %d streams that wait a kernel in a stream of %s priority does not run\n", n[i], what);
			return n[i];
		}
	printf("behind %d streams that wait a kernel in a stream of %s priority runs\n", MOST, what);
	return 0;
}

/* ------------------------------------------------------------------------------ calls */

static CUdeviceptr block;
static void *pinned, *pages;
static CUstream spare;
static CUlibrary library;
static CUmodule module;
static CUarray array;

static void make_objects(void)
{
	CUDA_ARRAY_DESCRIPTOR d = { .Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1 };

	CHECK(cuMemAlloc, &block, MIB);
	CHECK(cuMemAllocHost, &pinned, MIB);
	pages = aligned_alloc(2 * MIB, 2 * MIB);
	spare = new_stream();
	CHECK(cuArrayCreate, &array, &d);
	module = load_kernels();
	library = load_library();
}

static CUresult allocate(void) { CUdeviceptr p; return DRIVER(cuMemAlloc)(&p, MIB); }
static CUresult release(void) { return DRIVER(cuMemFree)(block); }
static CUresult allocate_host(void) { void *p; return DRIVER(cuMemAllocHost)(&p, MIB); }
static CUresult release_host(void) { return DRIVER(cuMemFreeHost)(pinned); }
static CUresult enroll(void) { return DRIVER(cuMemHostRegister)(pages, 2 * MIB, CU_MEMHOSTREGISTER_PORTABLE); }
static CUresult dismiss(void) { return DRIVER(cuMemHostUnregister)(pages); }
static CUresult begin_stream(void) { CUstream s; return DRIVER(cuStreamCreate)(&s, CU_STREAM_NON_BLOCKING); }
static CUresult end_stream(void) { return DRIVER(cuStreamDestroy)(spare); }
static CUresult end_array(void) { return DRIVER(cuArrayDestroy)(array); }
static CUresult end_module(void) { return DRIVER(cuModuleUnload)(module); }
static CUresult end_library(void) { return DRIVER(cuLibraryUnload)(library); }
static CUresult begin_module(void) { return load_kernels() ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND; }

static CUresult map(void)
{
	CUmemAllocationProp prop = device_memory();
	CUmemGenericAllocationHandle h;
	CUdeviceptr at;
	CUresult rc;

	rc = DRIVER(cuMemAddressReserve)(&at, 2 * MIB, 0, 0, 0) ?: DRIVER(cuMemCreate)(&h, 2 * MIB, &prop, 0);
	rc = rc ?: DRIVER(cuMemMap)(at, 2 * MIB, 0, h, 0);
	if (!rc)
		allow(at, 2 * MIB);
	return rc ?: DRIVER(cuMemUnmap)(at, 2 * MIB);
}

static CUresult copy_pageable(void)
{
	static char from[8192];

	return DRIVER(cuMemcpyHtoDAsync)(block, from, sizeof(from), other);
}

/* The last ones end what the first ones use. */
static const struct {
	const char *name;
	CUresult (*call)(void);
} calls[] = {
	{ "cuMemcpyHtoDAsync of pageable memory", copy_pageable }, { "cuMemAlloc", allocate },
	{ "cuMemAllocHost", allocate_host }, { "cuMemHostRegister", enroll }, { "cuMemHostUnregister", dismiss },
	{ "cuMemMap and cuMemUnmap", map }, { "cuStreamCreate", begin_stream }, { "cuStreamDestroy", end_stream },
	{ "cuModuleLoadData", begin_module }, { "cuModuleUnload", end_module }, { "cuLibraryUnload", end_library },
	{ "cuArrayDestroy", end_array }, { "cuMemFreeHost", release_host }, { "cuMemFree", release },
};

struct caller {
	CUresult (*call)(void);
	pthread_t thread;
	CUresult rc;
	int returned;
};

static void *in_thread(void *arg)
{
	struct caller *c = arg;

	CHECK(cuCtxSetCurrent, ctx);
	c->rc = c->call();
	__atomic_store_n(&c->returned, 1, __ATOMIC_RELEASE);
	return NULL;
}

static CUresult start(void)
{
	return launch(function("nothing"), other, 0, NULL);
}

/* Whether it returns meanwhile. */
static bool call(struct caller *c, CUresult (*fn)(void))
{
	*c = (struct caller){ .call = fn };
	if (pthread_create(&c->thread, NULL, in_thread, c))
		leave(1, "no thread");
	for (int us = 0; us < QUIET && !__atomic_load_n(&c->returned, __ATOMIC_ACQUIRE); us += 100)
		usleep(100);
	return __atomic_load_n(&c->returned, __ATOMIC_ACQUIRE);
}

static int one_by_one(void)
{
	struct caller first, second;
	int wait = 0;

	for (size_t i = 0; i < COUNT(calls); i++) {
		bool returns, runs;

		turn++;
		CHECK(cuStreamWaitValue64, stands, gate_there, turn, CU_STREAM_WAIT_VALUE_GEQ);
		check(launch(function("nothing"), stands, 0, NULL), "cuLaunchKernel");
		returns = call(&first, calls[i].call);
		runs = call(&second, start);
		*gate = turn;
		pthread_join(first.thread, NULL);
		pthread_join(second.thread, NULL);
		CHECK(cuStreamSynchronize, stands);
		CHECK(cuStreamSynchronize, other);
		printf("meanwhile %s %s%s: %s\n", calls[i].name, returns ? "returns" : "waits",
		       runs ? "" : ", and a launch of another thread waits, too", code(first.rc));
		wait += !returns;
	}
	return wait;
}

int probe_behind(int argc, char **argv)
{
	int least, greatest, stop, urgent, wait;

	(void)argc, (void)argv;
	begin_context();
	function("nothing");
	CHECK(cuCtxGetCurrent, &ctx);
	gate = host_words(&gate_there);
	stands = new_stream();
	other = new_stream();
	CHECK(cuCtxGetStreamPriorityRange, &least, &greatest);
	stop = first_stop("the usual", 0);
	urgent = first_stop("the greatest", greatest);
	make_objects();
	wait = one_by_one();
	printf("a kernel runs behind %s streams that wait%s%s; of %zu calls %d wait for such a stream\n",
	       stop ? "fewer than all" : "all", stop && !urgent ? ", and with the greatest priority behind all" : "",
	       stop && urgent ? ", with the greatest priority, too" : "", COUNT(calls), wait);
	return 0;
}
