// SPDX-License-Identifier: Apache-2.0
/*
 * vmm.cu - separate addresses and memory: the driver's VMM calls, obtained from the runtime.
 */
#include "../job.cuh"

#include <cuda.h>

#define DRIVER(_fn) static decltype(&_fn) p_##_fn
DRIVER(cuMemAddressReserve);
DRIVER(cuMemAddressFree);
DRIVER(cuMemCreate);
DRIVER(cuMemRelease);
DRIVER(cuMemMap);
DRIVER(cuMemUnmap);
DRIVER(cuMemSetAccess);
DRIVER(cuMemGetAccess);
DRIVER(cuMemGetAllocationGranularity);
DRIVER(cuMemGetAllocationPropertiesFromHandle);
DRIVER(cuMemRetainAllocationHandle);

template <typename T> static void get(T *fn, const char *name)
{
	cudaDriverEntryPointQueryResult found;

	CHECK(cudaGetDriverEntryPointByVersion(name, (void **)fn, 13000, cudaEnableDefault, &found));
	EXPECT_EQ(found, cudaDriverEntryPointSuccess);
	EXPECT(*fn);
}
#define GET(_fn) get(&p_##_fn, #_fn)
#define CU(...) EXPECT_EQ((__VA_ARGS__), CUDA_SUCCESS)

__global__ void fill(unsigned int *p, unsigned int v, size_t n)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		p[i] = v + i;
}

static CUmemAllocationProp prop;
static CUmemAccessDesc rw;
static size_t gran;

static CUmemGenericAllocationHandle physical(size_t n)
{
	CUmemGenericAllocationHandle h;

	CU(p_cuMemCreate(&h, n, &prop, 0));
	return h;
}

static void map(CUdeviceptr at, size_t n, CUmemGenericAllocationHandle h)
{
	CU(p_cuMemMap(at, n, 0, h, 0));
	CU(p_cuMemSetAccess(at, n, &rw, 1));
}

static bool holds(CUdeviceptr at, unsigned int v)
{
	std::vector<unsigned int> got = to_host((unsigned int *)at, gran / 4);

	for (size_t i = 0; i < got.size(); i++)
		if (got[i] != v + (unsigned int)i)
			return false;
	return true;
}

/* A vector that grows in place, as an allocator with expandable segments does. */
static void growing(void)
{
	const int steps = 8;
	std::vector<CUmemGenericAllocationHandle> h;
	CUdeviceptr base;

	CU(p_cuMemAddressReserve(&base, steps * gran, 0, 0, 0));
	EXPECT(base % gran == 0);
	for (int i = 0; i < steps; i++) {
		h.push_back(physical(gran));
		map(base + i * gran, gran, h[i]);
		fill<<<8, 256>>>((unsigned int *)base, 100 * i, (i + 1) * gran / 4);
		CHECK(cudaDeviceSynchronize());
	}
	std::vector<unsigned int> all = to_host((unsigned int *)base, steps * gran / 4);
	for (size_t i = 0; i < all.size(); i++)
		EXPECT_EQ(all[i], 700 + i);
	sum_bytes(all.data(), 4096);
	/* a copy and a memset across the seams */
	CHECK(cudaMemset((void *)(base + gran - 100), 0, 200));
	CHECK(cudaMemcpy(all.data(), (void *)(base + gran - 104), 208, cudaMemcpyDeviceToHost));
	EXPECT(all[0] && !all[1] && !all[50] && all[51]);
	/* shrinks from the middle: unmapped memory is no more to be read, the rest stays */
	CU(p_cuMemUnmap(base + 3 * gran, gran));
	EXPECT(cudaMemset((void *)(base + 3 * gran), 0, 4) != cudaSuccess);
	cudaGetLastError();
	CU(p_cuMemRelease(h[3]));
	EXPECT(holds(base + 4 * gran, 700 + 4 * gran / 4));
	for (int i = 0; i < steps; i++)
		if (i != 3) {
			CU(p_cuMemUnmap(base + i * gran, gran));
			CU(p_cuMemRelease(h[i]));
		}
	CU(p_cuMemAddressFree(base, steps * gran));
}

/* One piece of memory at two addresses; two pieces that change places. */
static void aliases(void)
{
	CUmemGenericAllocationHandle a = physical(gran), b = physical(gran), again;
	CUdeviceptr at;

	CU(p_cuMemAddressReserve(&at, 3 * gran, 0, 0, 0));
	map(at, gran, a);
	map(at + gran, gran, b);
	map(at + 2 * gran, gran, a);
	fill<<<8, 256>>>((unsigned int *)at, 1000, gran / 4);
	fill<<<8, 256>>>((unsigned int *)(at + gran), 2000, gran / 4);
	CHECK(cudaDeviceSynchronize());
	EXPECT(holds(at + 2 * gran, 1000));
	CU(p_cuMemUnmap(at, gran));
	CU(p_cuMemUnmap(at + gran, gran));
	map(at, gran, b);
	map(at + gran, gran, a);
	EXPECT(holds(at, 2000) && holds(at + gran, 1000));
	/* the handle may be given back while it is mapped; the memory lives as long as the map */
	CU(p_cuMemRetainAllocationHandle(&again, (void *)(at + 100)));
	EXPECT(again == b);
	CU(p_cuMemRelease(again));
	CU(p_cuMemRelease(a));
	CU(p_cuMemRelease(b));
	EXPECT(holds(at, 2000) && holds(at + 2 * gran, 1000));
	CU(p_cuMemUnmap(at, 3 * gran));
	CU(p_cuMemAddressFree(at, 3 * gran));
}

static void mistakes(void)
{
	CUmemGenericAllocationHandle h = physical(gran);
	CUmemAllocationProp back;
	CUmemLocation here = prop.location;
	unsigned long long flags;
	CUdeviceptr at;

	EXPECT_EQ(p_cuMemCreate(&h, gran + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemAddressReserve(&at, gran - 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	CU(p_cuMemAddressReserve(&at, 2 * gran, 0, 0, 0));
	CU(p_cuMemMap(at, gran, 0, h, 0));
	EXPECT_EQ(p_cuMemMap(at, gran, 0, h, 0), CUDA_ERROR_INVALID_VALUE);	/* already */
	CU(p_cuMemGetAccess(&flags, &here, at));
	EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	CU(p_cuMemSetAccess(at, gran, &rw, 1));
	CU(p_cuMemGetAccess(&flags, &here, at));
	EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	CU(p_cuMemGetAllocationPropertiesFromHandle(&back, h));
	EXPECT(back.type == prop.type && back.location.id == 0);
	CU(p_cuMemUnmap(at, gran));
	CU(p_cuMemRelease(h));
	CU(p_cuMemAddressFree(at, 2 * gran));
}

int main()
{
	CHECK(cudaFree(0));
	GET(cuMemAddressReserve);
	GET(cuMemAddressFree);
	GET(cuMemCreate);
	GET(cuMemRelease);
	GET(cuMemMap);
	GET(cuMemUnmap);
	GET(cuMemSetAccess);
	GET(cuMemGetAccess);
	GET(cuMemGetAllocationGranularity);
	GET(cuMemGetAllocationPropertiesFromHandle);
	GET(cuMemRetainAllocationHandle);
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	rw.location = prop.location;
	rw.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	CU(p_cuMemGetAllocationGranularity(&gran, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	EXPECT(gran && !(gran & (gran - 1)));
	growing();
	aliases();
	mistakes();
	/* a name that no driver has */
	cudaDriverEntryPointQueryResult found;
	void *fn;
	cudaError_t e = cudaGetDriverEntryPointByVersion("cuMemNoSuchThing", &fn, 13000,
							 cudaEnableDefault, &found);
	EXPECT(e != cudaSuccess || found == cudaDriverEntryPointSymbolNotFound);
	cudaGetLastError();
	return job_passed("vmm");
}
