// SPDX-License-Identifier: Apache-2.0
/*
 * registered.c - a job with registered memory that comes to another channel: by a restore, or by a
 * context on another device
 *
 *   registered GO      registers, waits until a file of that name exists, then checks
 *   registered move    registers on device 0, destroys the context, checks on device 1
 *
 * The pages of registered memory are the arena's, which then has another file. Still a fork's child
 * has pages of its own, and memory that is unregistered is private again: what others have of the
 * arena later does not show in it.
 */
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CU(...) do {							\
	CUresult e_ = (__VA_ARGS__);					\
									\
	if (e_) {							\
		printf("FAIL %s:%d: %s: %d\n", __FILE__, __LINE__, #__VA_ARGS__, e_); \
		exit(1);						\
	}								\
} while (0)

#define EXPECT(x) do {							\
	if (!(x)) {							\
		printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #x);	\
		exit(1);						\
	}								\
} while (0)

#define SIZE (1ul << 20)

static uint8_t *pages(void)
{
	uint8_t *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EXPECT(p != MAP_FAILED);
	memset(p, 1, SIZE);
	return p;
}

/* Whether all of the memory at p has this value. */
static bool all(const uint8_t *p, uint8_t value)
{
	return p[0] == value && !memcmp(p, p + 1, SIZE - 1);
}

/* The device writes to registered memory at its own address for it. */
static void set(uint8_t *p, uint8_t value)
{
	CUdeviceptr d;

	CU(cuMemHostGetDevicePointer(&d, p, 0));
	CU(cuMemsetD8(d, value, SIZE));
	CU(cuCtxSynchronize());
	EXPECT(all(p, value));
}

static void in_child(uint8_t *p)
{
	int status = -1;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		memset(p, 99, SIZE);
		_exit(0);
	}
	EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid && !status);
}

static void unregister(uint8_t *p, uint8_t value)
{
	void *later[4];

	CU(cuMemHostUnregister(p));
	for (int i = 0; i < 4; i++) {
		CU(cuMemHostAlloc(&later[i], SIZE, 0));
		memset(later[i], 77, SIZE);
	}
	EXPECT(all(p, value));
	for (int i = 0; i < 4; i++)
		CU(cuMemFreeHost(later[i]));
}

static void begin(CUdevice dev)
{
	CUcontext ctx;

	CU(cuDevicePrimaryCtxRetain(&ctx, dev));
	CU(cuCtxSetCurrent(ctx));
}

/* Ends the context, and all that is registered in it. */
static void end(CUdevice dev)
{
	CU(cuCtxSetCurrent(NULL));
	CU(cuDevicePrimaryCtxRelease(dev));
}

static void moved(void)
{
	uint8_t *p = pages();

	begin(0);
	CU(cuMemHostRegister(p, SIZE, 0));
	set(p, 2);
	unregister(p, 2);
	end(0);
	begin(1);
	CU(cuMemHostRegister(p, SIZE, 0));
	set(p, 3);
	in_child(p);
	EXPECT(all(p, 3));
	unregister(p, 3);
	end(1);
}

static void restored(const char *go)
{
	uint8_t *p = pages(), *q = pages();

	begin(0);
	CU(cuMemHostRegister(p, SIZE, 0));
	CU(cuMemHostRegister(q, SIZE, 0));
	set(p, 2);
	set(q, 3);
	puts("registered");
	fflush(stdout);
	while (access(go, F_OK))
		usleep(10000);
	EXPECT(all(p, 2) && all(q, 3));
	in_child(p);
	EXPECT(all(p, 2));
	set(p, 4);
	unregister(p, 4);
	end(0);
	EXPECT(all(q, 3));
	begin(0);
	CU(cuMemHostRegister(p, SIZE, 0));
	set(p, 5);
	EXPECT(all(q, 3));
	unregister(p, 5);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	CU(cuInit(0));
	if (!strcmp(argv[1], "move"))
		moved();
	else
		restored(argv[1]);
	puts("PASS registered");
	return 0;
}
