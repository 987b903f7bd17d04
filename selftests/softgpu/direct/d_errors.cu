// SPDX-License-Identifier: Apache-2.0
/*
 * d_errors.cu - errors that a program gets for its mistakes; each runs in a process of its own.
 */
#include "direct.cuh"

#include <cassert>
#include <sys/wait.h>
#include <unistd.h>

__global__ void store(int *p, int v)
{
	*p = v;
}

__global__ void fails(int x)
{
	assert(x == 1);
}

__global__ void traps(void)
{
	__trap();
}

__global__ void says(int x)
{
	printf("block %d thread %d: %d %s %.2f\n", blockIdx.x, threadIdx.x, x, "text", 1.5);
}

__global__ __launch_bounds__(64) void small(int *p)
{
	p[threadIdx.x] = 1;
}

static void child(void (*fn)(void))
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		fn();
		fflush(stdout);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	EXPECT(WIFEXITED(status) && !WEXITSTATUS(status));
}

static void bad_config(void)
{
	int *d;

	CHECK(cudaMalloc(&d, 4096));
	store<<<1, 2000>>>(d, 1);
	EXPECT_ERROR(cudaErrorInvalidConfiguration, cudaGetLastError());
	EXPECT_ERROR(cudaSuccess, cudaGetLastError());
	store<<<0, 1>>>(d, 1);
	EXPECT_ERROR(cudaErrorInvalidConfiguration, cudaPeekAtLastError());
	EXPECT_ERROR(cudaErrorInvalidConfiguration, cudaGetLastError());
	store<<<1, 1, 1 << 20>>>(d, 1);
	EXPECT(cudaGetLastError() != cudaSuccess);
	small<<<1, 128>>>(d);
	EXPECT(cudaGetLastError() != cudaSuccess);
	small<<<1, 64>>>(d);
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceSynchronize());
	EXPECT_ERROR(cudaErrorInvalidValue, cudaMemcpy(d, NULL, 16, cudaMemcpyHostToDevice));
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaMalloc(&d, (size_t)1 << 45));
	cudaGetLastError();
	EXPECT_ERROR(cudaErrorInvalidValue, cudaFree((void *)0x1234));
	cudaGetLastError();
	EXPECT_ERROR(cudaErrorInvalidDevice, cudaSetDevice(99));
}

static void illegal(void)
{
	int *d;

	store<<<1, 1>>>((int *)0x40, 1);
	EXPECT_ERROR(cudaErrorIllegalAddress, cudaDeviceSynchronize());
	EXPECT_ERROR(cudaErrorIllegalAddress, cudaMalloc(&d, 4));
	CHECK(cudaDeviceReset());
	CHECK(cudaMalloc(&d, 4));
	store<<<1, 1>>>(d, 1);
	CHECK(cudaDeviceSynchronize());
}

static void assertion(void)
{
	fails<<<1, 1>>>(1);
	CHECK(cudaDeviceSynchronize());
	dup2(1, 2);
	fails<<<1, 1>>>(2);
	EXPECT_ERROR(cudaErrorAssert, cudaDeviceSynchronize());
}

static void trapped(void)
{
	traps<<<1, 1>>>();
	EXPECT_ERROR(cudaErrorLaunchFailure, cudaDeviceSynchronize());
	EXPECT_ERROR(cudaErrorLaunchFailure, cudaDeviceSynchronize());
}

/* The text comes at the synchronisation, after what the host printed before. */
static void printed(void)
{
	char text[1000];
	FILE *f = tmpfile();
	int n;

	dup2(fileno(f), 1);
	setvbuf(stdout, NULL, _IONBF, 0);
	printf("host\n");
	says<<<2, 2>>>(7);
	usleep(100000);
	printf("before\n");
	CHECK(cudaDeviceSynchronize());
	printf("after\n");
	rewind(f);
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	if (strcmp(text, "host\nbefore\n"
		   "block 0 thread 0: 7 text 1.50\nblock 0 thread 1: 7 text 1.50\n"
		   "block 1 thread 0: 7 text 1.50\nblock 1 thread 1: 7 text 1.50\nafter\n")) {
		fprintf(stderr, "got: %s", text);
		_exit(1);
	}
}

int main()
{
	child(bad_config);
	child(illegal);
	child(assertion);
	child(trapped);
	child(printed);
	printf("PASS\n");
	return 0;
}
