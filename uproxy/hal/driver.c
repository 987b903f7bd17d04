// SPDX-License-Identifier: Apache-2.0
/*
 * driver.c - finds the driver, loads it into the generated table and starts it
 *
 * NVIDIA's library is loaded by absolute path, from the directories where packages put it: by its
 * name the loader could find our stand-in. It is not tried without a device node.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "hal.h"

#define SOFT_SPARE (1ull << 40)	/* addresses for the soft device's own allocations */

static const char *const nvidia[] = {
	"/usr/lib/x86_64-linux-gnu/libcuda.so.1",
	"/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1",
	"/usr/lib64/libcuda.so.1",
	"/usr/lib/libcuda.so.1",
	"/usr/local/nvidia/lib64/libcuda.so.1",
	"/usr/lib/wsl/lib/libcuda.so.1",
	"/run/opengl-driver/lib/libcuda.so.1",
};

static void *find_symbol(void *lib, const char *name)
{
	return dlsym(lib, name);
}

/* A required function that is missing. Calls of others fail with CUDA_ERROR_NOT_SUPPORTED. */
static const char *lacks(const struct cuda_driver *d)
{
#define NEED(f) do { if (!d->f) return #f; } while (0)
	NEED(cuInit);
	NEED(cuDriverGetVersion);
	NEED(cuDeviceGetCount);
	NEED(cuDeviceGetAttribute);
	NEED(cuDevicePrimaryCtxRetain);
	NEED(cuDevicePrimaryCtxReset_v2);
	NEED(cuCtxSetCurrent);
	NEED(cuCtxCreate_v2);
	NEED(cuCtxDestroy_v2);
	NEED(cuMemAddressReserve);
	NEED(cuMemAddressFree);
	NEED(cuMemCreate);
	NEED(cuMemRelease);
	NEED(cuMemMap);
	NEED(cuMemUnmap);
	NEED(cuMemSetAccess);
	NEED(cuMemHostRegister_v2);
	NEED(cuMemHostUnregister);
	NEED(cuMemcpyAsync);
	NEED(cuStreamAddCallback);
	NEED(cuStreamQuery);
	NEED(cuStreamSynchronize);
	NEED(cuStreamCreate);
	NEED(cuStreamDestroy_v2);
	NEED(cuStreamWaitEvent);
	NEED(cuStreamWaitValue64_v2);
	NEED(cuStreamWriteValue64_v2);
	NEED(cuEventQuery);
	NEED(cuEventSynchronize);
	NEED(cuLibraryLoadData);
	NEED(cuLibraryUnload);
	NEED(cuLibraryGetKernel);
	NEED(cuModuleLoadDataEx);
	NEED(cuModuleUnload);
	NEED(cuModuleGetFunction);
	NEED(cuKernelGetParamInfo);
	NEED(cuFuncGetParamInfo);
	NEED(cuLaunchKernel);
#undef NEED
	return NULL;
}

static int try_driver(struct hal *h, const char *path, struct why *why)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const char *text = NULL;
	CUresult r;

	if (!lib)
		return why_set(why, -ENOENT, "cannot load the driver: %s", dlerror());
	cuda_driver_load(&h->drv, find_symbol, lib);
	text = lacks(&h->drv);
	if (text) {
		dlclose(lib);
		return why_set(why, -ENOSYS, "the driver %s has no %s", path, text);
	}
	r = h->drv.cuInit(0);
	if (!r)
		r = h->drv.cuDeviceGetCount(&h->devices);
	if (!r && h->devices < 1)
		r = CUDA_ERROR_NO_DEVICE;
	if (r) {
		if (h->drv.cuGetErrorString)
			h->drv.cuGetErrorString(r, &text);
		return why_set(why, -ENODEV, "the driver %s does not start: %s (%d)", path,
			       text ? text : "unknown error", r);
	}
	h->drv.cuDriverGetVersion(&h->version);
	*(void **)&h->own_memory = dlsym(lib, "softcuda_own_memory");
	*(void **)&h->next_value = dlsym(lib, "softcuda_next_value");
	*(void **)&h->count_kernels = dlsym(lib, "softcuda_count_kernels");
	*(void **)&h->told_words = dlsym(lib, "softcuda_told_words");
	*(void **)&h->told = dlsym(lib, "softcuda_told");
	h->comm_library = dlsym(lib, "softcuda_comm_library");
	snprintf(h->path, sizeof(h->path), "%s", path);
	return 0;
}

/* The path of the soft device beside this program, or -ENOENT. */
static int hal_soft_path(char *path, size_t n)
{
	static const char *const below[] = {
		"softgpu/libsoftcuda.so", "../lib/singvgpu/libsoftcuda.so",
		"../../lib/singvgpu/libsoftcuda.so", "libsoftcuda.so",
	};
	const char *dir = getenv("SINGVGPU_LIBDIR");
	char self[PATH_MAX];
	ssize_t len;

	if (dir && *dir) {
		snprintf(path, n, "%s/libsoftcuda.so", dir);
		if (!access(path, R_OK))
			return 0;
	}
	len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (len <= 0)
		return -ENOENT;
	self[len] = 0;
	*strrchr(self, '/') = 0;
	for (size_t i = 0; i < sizeof(below) / sizeof(*below); i++) {
		if (snprintf(path, n, "%s/%s", self, below[i]) < (int)n && !access(path, R_OK))
			return 0;
	}
	return -ENOENT;
}

/* Has the soft device allocate behind our window. Other drivers ignore these variables. */
static void place_soft(uint64_t window, uint64_t len)
{
	uint64_t spare = len < SOFT_SPARE ? len : SOFT_SPARE;
	char text[32];

	snprintf(text, sizeof(text), "0x%llx", (unsigned long long)window);
	setenv("SINGVGPU_SOFT_BASE", text, 1);
	snprintf(text, sizeof(text), "0x%llx", (unsigned long long)(len + spare));
	setenv("SINGVGPU_SOFT_WINDOW", text, 1);
}

int hal_open(struct hal *h, const char *path, uint64_t window, uint64_t len, struct why *why)
{
	char soft[PATH_MAX];

	place_soft(window, len);
	if (path)
		return try_driver(h, path, why);
	if (!access("/dev/nvidiactl", F_OK) || !access("/dev/dxg", F_OK))
		for (size_t i = 0; i < sizeof(nvidia) / sizeof(*nvidia); i++) {
			if (!access(nvidia[i], R_OK) && !try_driver(h, nvidia[i], why))
				return 0;
			why_clear(why);
		}
	if (hal_soft_path(soft, sizeof(soft)))
		return why_set(why, -ENOENT, "no driver: neither NVIDIA's libcuda.so.1 with a device "
			       "nor libsoftcuda.so");
	return try_driver(h, soft, why);
}

int hal_start(struct hal *h, int dev, struct why *why)
{
	CUresult r;

	if (dev < 0 || dev >= h->devices)
		return why_set(why, -EINVAL, "there is no device %d: the driver has %d", dev,
			       h->devices);
	h->dev = dev;
	h->prop = (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE,
						       .id = dev } };
	r = h->drv.cuDevicePrimaryCtxRetain(&h->primary, dev);
	if (!r)
		r = h->drv.cuCtxSetCurrent(h->primary);
	if (r)
		return why_set(why, -EIO, "the driver makes no context on device %d: error %d", dev, r);
	return 0;
}
