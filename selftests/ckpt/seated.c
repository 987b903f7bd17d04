// SPDX-License-Identifier: Apache-2.0
/*
 * seated.c - works on its device 0, and when there is a file GO on its device 1 as well; then it waits for a file END
 *
 * seated GO END: each device's number is printed when a context and memory are there.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
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

int main(int argc, char **argv)
{
	if (argc != 3 || cuInit(0))
		return 1;
	use(0);
	wait_for(argv[1]);
	use(1);
	wait_for(argv[2]);
	return 0;
}
