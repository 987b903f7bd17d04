// SPDX-License-Identifier: Apache-2.0
/*
 * reset.cu - the device reset and used again; the list of devices and their properties.
 */
#include "../job.cuh"

#include <string>
#include <sys/wait.h>
#include <unistd.h>

__device__ int counter = 3;

__global__ void count(int *out)
{
	*out = ++counter;
}

/* Everything made before a reset is gone, everything works behind it. */
static void resets(void)
{
	size_t free0, free1, total;

	CHECK(cudaFree(0));
	CHECK(cudaMemGetInfo(&free0, &total));
	for (int round = 0; round < 5; round++) {
		cudaStream_t s;
		cudaEvent_t e;
		int *d, *h, *leak;

		CHECK(cudaMalloc(&d, 4));
		CHECK(cudaMalloc(&leak, 100 << 20));
		CHECK(cudaMallocHost(&h, 4));
		CHECK(cudaStreamCreate(&s));
		CHECK(cudaEventCreate(&e));
		for (int i = 1; i <= 3; i++) {
			count<<<1, 1, 0, s>>>(d);
			CHECK(cudaMemcpyAsync(h, d, 4, cudaMemcpyDeviceToHost, s));
			CHECK(cudaEventRecord(e, s));
			CHECK(cudaEventSynchronize(e));
			EXPECT_EQ(*h, 3 + i);	/* the module's variables are new each time */
		}
		count<<<1, 1, 0, s>>>(d);	/* and work that no one waited for */
		CHECK(cudaDeviceReset());
	}
	CHECK(cudaFree(0));
	CHECK(cudaMemGetInfo(&free1, &total));
	EXPECT(free1 + (64 << 20) >= free0);
	CHECK(cudaGetLastError());
}

/* Attributes, properties and versions agree with each other. */
static void identity(void)
{
	int n, driver, runtime, v;
	cudaDeviceProp p;
	char id[32];

	CHECK(cudaDriverGetVersion(&driver));
	CHECK(cudaRuntimeGetVersion(&runtime));
	EXPECT(driver >= runtime / 1000 * 1000 && runtime == CUDART_VERSION);
	CHECK(cudaGetDeviceCount(&n));
	EXPECT(n >= 1);
	for (int dev = 0; dev < n; dev++) {
		CHECK(cudaSetDevice(dev));
		CHECK(cudaGetDevice(&v));
		EXPECT_EQ(v, dev);
		CHECK(cudaGetDeviceProperties(&p, dev));
		EXPECT(strlen(p.name) > 0 && p.warpSize == 32 && p.maxThreadsPerBlock == 1024);
		EXPECT(p.totalGlobalMem >= (64ull << 20) && p.multiProcessorCount >= 1);
		EXPECT(p.major >= 7 && p.totalConstMem == 65536 && p.sharedMemPerBlock == 48 << 10);
		EXPECT(p.unifiedAddressing && p.canMapHostMemory);
		EXPECT(p.maxGridSize[0] == 0x7fffffff && p.maxGridSize[1] == 65535 &&
		       p.maxThreadsDim[0] == 1024 && p.maxThreadsDim[2] == 64);
		struct {
			cudaDeviceAttr a;
			int v;
		} same[] = {
			{ cudaDevAttrComputeCapabilityMajor, p.major },
			{ cudaDevAttrComputeCapabilityMinor, p.minor },
			{ cudaDevAttrMultiProcessorCount, p.multiProcessorCount },
			{ cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor },
			{ cudaDevAttrMaxRegistersPerBlock, p.regsPerBlock },
			{ cudaDevAttrL2CacheSize, p.l2CacheSize },
			{ cudaDevAttrMaxSharedMemoryPerMultiprocessor,
			  (int)p.sharedMemPerMultiprocessor },
			{ cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)p.sharedMemPerBlockOptin },
			{ cudaDevAttrPciBusId, p.pciBusID },
			{ cudaDevAttrPciDeviceId, p.pciDeviceID },
			{ cudaDevAttrAsyncEngineCount, p.asyncEngineCount },
			{ cudaDevAttrConcurrentKernels, p.concurrentKernels },
			{ cudaDevAttrMaxBlocksPerMultiprocessor, p.maxBlocksPerMultiProcessor },
			{ cudaDevAttrManagedMemory, p.managedMemory },
			{ cudaDevAttrConcurrentManagedAccess, p.concurrentManagedAccess },
			{ cudaDevAttrCooperativeLaunch, p.cooperativeLaunch },
		};
		for (auto &x : same) {
			CHECK(cudaDeviceGetAttribute(&v, x.a, dev));
			EXPECT_EQ(v, x.v);
		}
		CHECK(cudaDeviceGetPCIBusId(id, sizeof(id), dev));
		CHECK(cudaDeviceGetByPCIBusId(&v, id));
		EXPECT_EQ(v, dev);
		EXPECT_ERROR(cudaErrorInvalidDevice, cudaDeviceCanAccessPeer(&v, dev, n));
		cudaGetLastError();
		if (n > 1) {
			CHECK(cudaDeviceCanAccessPeer(&v, dev, (dev + 1) % n));
			EXPECT(v == 0 || v == 1);
		}
	}
	CHECK(cudaSetDevice(0));
	p = {};
	p.major = 1;
	CHECK(cudaChooseDevice(&v, &p));
	EXPECT(v >= 0 && v < n);
	unsigned int flags;
	CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
	CHECK(cudaGetDeviceFlags(&flags));
	EXPECT_EQ(flags & cudaDeviceScheduleMask, cudaDeviceScheduleBlockingSync);
	CHECK(cudaSetDeviceFlags(cudaDeviceScheduleAuto));
	for (cudaLimit l : { cudaLimitStackSize, cudaLimitPrintfFifoSize, cudaLimitMallocHeapSize }) {
		size_t size;

		CHECK(cudaDeviceGetLimit(&size, l));
		EXPECT(size > 0);
		CHECK(cudaDeviceSetLimit(l, size * 2));
		CHECK(cudaDeviceGetLimit(&size, l));
		EXPECT(size > 0);
	}
	EXPECT(cudaDeviceSetLimit((cudaLimit)0x77, 1) != cudaSuccess);
	cudaGetLastError();
}

/* What is made visible is the driver's affair; read before the first call of a process. */
static int visible(const char *list)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		setenv("CUDA_VISIBLE_DEVICES", list, 1);
		execl("/proc/self/exe", "reset", "count", (char *)NULL);
		_exit(99);
	}
	EXPECT(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return WEXITSTATUS(status);
}

int main(int argc, char **)
{
	if (argc > 1) {
		int n = -1;
		cudaError_t e = cudaGetDeviceCount(&n);

		return e == cudaSuccess ? n : e == cudaErrorNoDevice ? 50 : 98;
	}
	EXPECT_EQ(visible("0"), 1);
	EXPECT_EQ(visible(""), 50);
	EXPECT_EQ(visible("-1"), 50);
	EXPECT_EQ(visible("0,-1,0"), 1);
	identity();
	resets();
	identity();
	return job_passed("reset");
}
