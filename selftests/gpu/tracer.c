// SPDX-License-Identifier: Apache-2.0
/*
 * tracer.c - a libcuda.so.1 that writes down each call and passes it on to another, NVIDIA's
 *
 *   LD_PRELOAD=…/trace/libcuda.so.1 TRACE_DRIVER=/path/of/libcuda.so.1 TRACE_FILE=FILE PROGRAM
 *
 * The lines are those of SINGVGPU_SOFT_TRACE (uproxy/softgpu/api/trace.c) without details, so what a
 * program asks of NVIDIA's driver can be compared with selftests/hopper/calls. Functions that the
 * other library lacks fail with CUDA_ERROR_NOT_FOUND. Calls through its export tables are not seen.
 *
 * build.mk has tracer_calls.c made from cuda.h's prototypes: for each function a wrapper, and a row of
 * tracer_rows.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tracer.h"

static void *driver;
static int fd = -1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void begin(void)
{
	const char *file = getenv("TRACE_FILE"), *path = getenv("TRACE_DRIVER");

	driver = path && strchr(path, '/') ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!driver)
		fprintf(stderr, "tracer: TRACE_DRIVER is no driver: %s\n", path ? dlerror() : "not set");
	for (struct tracer_row *r = tracer_rows; driver && r->name; r++)
		r->real = dlsym(driver, r->name);
	if (file)
		fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

void *tracer_real(unsigned int row)
{
	pthread_once(&once, begin);
	return tracer_rows[row].real;
}

CUresult tracer_line(unsigned int row, CUresult r)
{
	static __thread unsigned int number;
	static unsigned int threads;
	char line[128];
	int n;

	if (fd < 0)
		return r;
	if (!number)
		number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
	n = snprintf(line, sizeof(line), "%u %s = %d\n", number, tracer_rows[row].name, r);
	if (write(fd, line, n) != n)
		fd = -1;		/* a full disk must not fail the program */
	return r;
}

/* The wrapper of a function that the driver has given. */
static void wrap(void **pfn)
{
	for (struct tracer_row *r = tracer_rows; r->name; r++)
		if (r->real && r->real == *pfn) {
			*pfn = r->wrapper;
			return;
		}
}

/* Not traced: every use of the runtime asks for hundreds. */
CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	CUresult (*real)(const char *, void **, int, cuuint64_t);
	CUresult r;

	pthread_once(&once, begin);
	real = driver ? dlsym(driver, "cuGetProcAddress") : NULL;
	r = real ? real(symbol, pfn, version, flags) : CUDA_ERROR_NOT_FOUND;
	if (!r && pfn)
		wrap(pfn);
	return r;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	CUresult (*real)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
	CUresult r;

	pthread_once(&once, begin);
	real = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;
	r = real ? real(symbol, pfn, version, flags, status) : CUDA_ERROR_NOT_FOUND;
	if (!r && pfn && *pfn == dlsym(driver, "cuGetProcAddress_v2"))
		*pfn = cuGetProcAddress_v2;
	else if (!r && pfn)
		wrap(pfn);
	return r;
}
