// SPDX-License-Identifier: Apache-2.0
/*
 * seated.c - works on its device 0, and when there is a file GO on its device 1 as well; then it waits for a file END
 *
 * seated GO END: each device's number is printed when a context and memory are there, and how many a process that it starts
 * at GO finds.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void use(int ordinal)
{
	CUdeviceptr p;
	CUcontext c;
	CUdevice d;
	int n = 0;

	if (cuDeviceGetCount(&n) || cuDeviceGet(&d, ordinal) || cuDevicePrimaryCtxRetain(&c, d) || cuCtxSetCurrent(c) ||
	    cuMemAlloc(&p, 1 << 20) || cuMemsetD8(p, ordinal, 1 << 20) || cuCtxSynchronize())
		exit(1);
	printf("device %d of %d\n", ordinal, n);
	fflush(stdout);
}

static void wait_for(const char *path)
{
	while (access(path, F_OK))
		usleep(20000);
}

/* A process that begins now: it asks the proxy anew. */
static void start_another(void)
{
	pid_t pid = fork();

	if (!pid) {
		execl("/proc/self/exe", "seated", NULL);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, NULL, 0) != pid)
		exit(1);
}

static int find(void)
{
	int n = 0;

	if (cuInit(0) || cuDeviceGetCount(&n))
		return 1;
	printf("another finds %d\n", n);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 1)
		return find();
	if (argc != 3 || cuInit(0))
		return 1;
	use(0);
	wait_for(argv[1]);
	start_another();
	use(1);
	wait_for(argv[2]);
	return 0;
}
