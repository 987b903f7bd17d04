// SPDX-License-Identifier: Apache-2.0
/*
 * plugin.cu - kernels in shared libraries, loaded and unloaded: the program is its own plugin.
 *
 * Built once as a program and once, with PLUGIN defined, as a library with its own cudart.
 */
#include "../job.cuh"

__device__ int state = 1;

__global__ void bump(int *out, int by)
{
	state += by;
	*out = state;
}

/* Returns the module's counter after adding to it, or a negative error. */
extern "C" int plugin_bump(int by)
{
	int *d, v;

	if (cudaMalloc(&d, 4) != cudaSuccess)
		return -1;
	bump<<<1, 1>>>(d, by);
	if (cudaMemcpy(&v, d, 4, cudaMemcpyDeviceToHost) != cudaSuccess)
		return -2;
	return cudaFree(d) == cudaSuccess ? v : -3;
}

#ifndef PLUGIN
#include <dlfcn.h>
#include <libgen.h>
#include <unistd.h>

int main()
{
	char self[4096], other[4200];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int want = 1;

	EXPECT(n > 0);
	self[n] = 0;
	/* half of the rounds: the plugin is there before the program's own first call */
	snprintf(other, sizeof(other), "%s/libplugin.so", dirname(self));
	for (int round = 0; round < 6; round++) {
		void *h = dlopen(other, RTLD_NOW | RTLD_LOCAL);

		if (!h) {
			printf("FAIL plugin: %s\n", dlerror());
			return 1;
		}
		int (*fn)(int) = (int (*)(int))dlsym(h, "plugin_bump");
		EXPECT(fn && fn != plugin_bump);
		EXPECT_EQ(fn(10), 11);		/* each load starts with its own variables */
		EXPECT_EQ(fn(5), 16);
		want += 2;
		EXPECT_EQ(plugin_bump(2), want);	/* and ours are not touched */
		EXPECT_EQ(fn(0), 16);
		EXPECT(!dlclose(h));
		EXPECT_EQ(plugin_bump(0), want);
	}
	CHECK(cudaDeviceSynchronize());
	sum_bytes(&want, 4);
	return job_passed("plugin");
}
#endif
