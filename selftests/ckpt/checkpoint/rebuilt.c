// SPDX-License-Identifier: Apache-2.0
/*
 * rebuilt.c - a job whose program and libraries are replaced while it runs: rebuilt PLUG MADE GO
 *
 * It maps the library PLUG, makes MADE, a copy of it, and maps that. When GO.1 is there it loads the kernel of
 * PLUG, too, which was not loaded before; when GO.2 is there it runs all again. Each time it prints their numbers.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rebuilt_text.h"

static const char own_text[] = TEXT_OF(7);
static CUdeviceptr mem;

#define OK(x) \
	do { \
		int r_ = (x); \
		if (r_) { \
			printf("line %d: %s is %d\n", __LINE__, #x, r_); \
			exit(1); \
		} \
	} while (0)

static CUfunction load(const char *text)
{
	CUfunction f;
	CUmodule m;

	OK(cuModuleLoadData(&m, text));
	OK(cuModuleGetFunction(&f, m, "number"));
	return f;
}

static uint32_t run(CUfunction f)
{
	void *args[] = { &mem };
	uint32_t v = 0;

	OK(cuMemsetD32(mem, 0, 1));
	OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL));
	OK(cuMemcpyDtoH(&v, mem, 4));
	return v;
}

static const char *text_of(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW);
	const char *text = lib ? dlsym(lib, "plug_text") : NULL;

	if (!text) {
		printf("%s\n", dlerror());
		exit(1);
	}
	return text;
}

static void copy(const char *from, const char *to)
{
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_EXCL, 0755);
	struct stat st;

	OK(in < 0 || out < 0 || fstat(in, &st) || sendfile(out, in, NULL, st.st_size) != st.st_size);
	close(in);
	close(out);
}

static void wait_for(const char *go, int n)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s.%d", go, n);
	printf("waits %d\n", n);
	fflush(stdout);
	while (access(path, F_OK))
		usleep(10000);
}

int main(int argc, char **argv)
{
	CUfunction own, made, plug;
	const char *text;
	CUcontext ctx;
	CUdevice dev;

	if (argc < 4)
		return 2;
	OK(cuInit(0));
	OK(cuDeviceGet(&dev, 0));
	OK(cuDevicePrimaryCtxRetain(&ctx, dev));
	OK(cuCtxSetCurrent(ctx));
	OK(cuMemAlloc(&mem, 4));
	text = text_of(argv[1]);
	copy(argv[1], argv[2]);
	made = load(text_of(argv[2]));
	own = load(own_text);
	printf("%u %u\n", run(own), run(made));
	wait_for(argv[3], 1);
	plug = load(text);
	printf("%u %u %u\n", run(own), run(made), run(plug));
	wait_for(argv[3], 2);
	printf("%u %u %u\n", run(own), run(made), run(plug));
	return 0;
}
