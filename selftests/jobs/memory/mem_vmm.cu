// SPDX-License-Identifier: Apache-2.0
/*
 * mem_vmm.cu - reserved addresses and physical memory by the driver's VMM calls: references,
 * errors, and the reuse of addresses by all kinds of allocations.
 */
#include "../job.cuh"

#include <cuda.h>

#define ENTRY(f) static decltype(&f) p_##f
ENTRY(cuMemAddressReserve);
ENTRY(cuMemAddressFree);
ENTRY(cuMemCreate);
ENTRY(cuMemRelease);
ENTRY(cuMemMap);
ENTRY(cuMemUnmap);
ENTRY(cuMemSetAccess);
ENTRY(cuMemGetAccess);
ENTRY(cuMemGetAllocationGranularity);
ENTRY(cuMemGetAllocationPropertiesFromHandle);
ENTRY(cuMemRetainAllocationHandle);

template <typename T> static void entry(const char *name, T *f)
{
	cudaDriverEntryPointQueryResult q;

	CHECK(cudaGetDriverEntryPointByVersion(name, (void **)f, 12000, cudaEnableDefault, &q));
	EXPECT(q == cudaDriverEntryPointSuccess && *f);
}
#define GET(f) entry(#f, &p_##f)
#define OK(...) EXPECT_EQ(__VA_ARGS__, CUDA_SUCCESS)

__global__ void fill(unsigned int *p, unsigned int v, size_t n)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		p[i] = v + i;
}

__global__ void check(const unsigned int *p, unsigned int v, size_t n, unsigned int *wrong)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		if (p[i] != v + i)
			atomicAdd(wrong, 1);
}

static size_t unit;
static CUmemAllocationProp prop;
static CUmemAccessDesc rw;

static CUmemGenericAllocationHandle create(size_t n)
{
	CUmemGenericAllocationHandle h;

	OK(p_cuMemCreate(&h, n, &prop, 0));
	return h;
}

static CUdeviceptr reserve(size_t n)
{
	CUdeviceptr p;

	OK(p_cuMemAddressReserve(&p, n, 0, 0, 0));
	EXPECT(p && p % unit == 0);
	return p;
}

/* One handle at two addresses is one memory; it lives while a handle or a mapping does. */
static void aliases(void)
{
	CUmemGenericAllocationHandle h = create(unit), again;
	CUdeviceptr a = reserve(4 * unit), b = a + 2 * unit;
	CUmemAllocationProp got;
	unsigned long long flags;
	unsigned int v = 7;

	OK(p_cuMemMap(a, unit, 0, h, 0));
	OK(p_cuMemMap(b, unit, 0, h, 0));
	OK(p_cuMemGetAccess(&flags, &prop.location, a));
	EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	OK(p_cuMemSetAccess(a, unit, &rw, 1));
	OK(p_cuMemSetAccess(b, unit, &rw, 1));
	OK(p_cuMemGetAccess(&flags, &prop.location, b + 5));
	EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(p_cuMemRelease(h));
	EXPECT(p_cuMemRelease(h) != CUDA_SUCCESS);
	EXPECT(p_cuMemMap(a + unit, unit, 0, h, 0) != CUDA_SUCCESS);
	fill<<<8, 128>>>((unsigned int *)a, 5, unit / 4);
	CHECK(cudaMemcpy(&v, (void *)(b + 400), 4, cudaMemcpyDeviceToHost));
	EXPECT_EQ(v, 105);
	/* a handle of it can be had again */
	OK(p_cuMemRetainAllocationHandle(&again, (void *)(a + 100)));
	OK(p_cuMemGetAllocationPropertiesFromHandle(&got, again));
	EXPECT_EQ(got.type, prop.type);
	EXPECT_EQ(got.location.type, prop.location.type);
	OK(p_cuMemMap(a + unit, unit, 0, again, 0));
	OK(p_cuMemSetAccess(a, 3 * unit, &rw, 1));
	OK(p_cuMemRelease(again));
	OK(p_cuMemUnmap(a, unit));
	EXPECT(p_cuMemRetainAllocationHandle(&again, (void *)a) != CUDA_SUCCESS);
	CHECK(cudaMemcpy(&v, (void *)(a + unit + 404), 4, cudaMemcpyDeviceToHost));
	EXPECT_EQ(v, 106);
	EXPECT(cudaMemcpy(&v, (void *)a, 4, cudaMemcpyDeviceToHost) != cudaSuccess);
	(void)cudaGetLastError();
	CHECK(cudaDeviceSynchronize());
	OK(p_cuMemUnmap(a + unit, 2 * unit));
	OK(p_cuMemAddressFree(a, 4 * unit));
}

static void mistakes(void)
{
	CUmemGenericAllocationHandle h = create(2 * unit), other;
	CUmemAllocationProp bad = prop;
	CUdeviceptr a = reserve(4 * unit), p;
	CUmemAccessDesc wrong = rw;
	unsigned long long flags;

	EXPECT_EQ(p_cuMemAddressReserve(&p, unit / 2, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemAddressReserve(&p, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemAddressReserve(&p, unit, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemAddressReserve(&p, unit, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemAddressReserve(NULL, unit, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemAddressReserve(&p, (size_t)1 << 60, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQ(p_cuMemCreate(&other, unit + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemCreate(&other, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemCreate(&other, unit, &prop, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemCreate(&other, unit, NULL, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemCreate(NULL, unit, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	bad.type = CU_MEM_ALLOCATION_TYPE_INVALID;
	EXPECT_EQ(p_cuMemCreate(&other, unit, &bad, 0), CUDA_ERROR_INVALID_VALUE);
	bad.type = prop.type;
	bad.location.id = 99;
	EXPECT(p_cuMemCreate(&other, unit, &bad, 0) != CUDA_SUCCESS);
	EXPECT_EQ(p_cuMemCreate(&other, (size_t)1 << 50, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQ(p_cuMemMap(a + 1, unit, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemMap(a, unit, 0, h + 0x100, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemMap(a, 3 * unit, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemMap(a, 0, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemMap(a, unit / 2, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemMap(a, unit, unit, h, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemMap(a, unit, 0, h, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemMap(a + 3 * unit, 2 * unit, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemMap(a - 2 * unit, 2 * unit, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemUnmap(a, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemUnmap(a, ~(size_t)0 - unit + 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemGetAccess(&flags, &prop.location, a), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemRetainAllocationHandle(&other, (void *)a), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemGetAllocationPropertiesFromHandle(&bad, h + 0x100),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemGetAllocationPropertiesFromHandle(NULL, h), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(cudaFree((void *)a), cudaErrorInvalidValue);	/* it is not cudaMalloc's */
	(void)cudaGetLastError();
	EXPECT_EQ(p_cuMemUnmap(a, unit), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemSetAccess(a, unit, &rw, 1), CUDA_ERROR_INVALID_VALUE);
	OK(p_cuMemMap(a, 2 * unit, 0, h, 0));
	EXPECT_EQ(p_cuMemMap(a + unit, unit, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
	/* nobody may use it yet */
	EXPECT(cudaMemset((void *)a, 1, 4) != cudaSuccess);
	(void)cudaGetLastError();
	CHECK(cudaDeviceSynchronize());
	EXPECT_EQ(p_cuMemSetAccess(a, 2 * unit, NULL, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemSetAccess(a, 2 * unit, &rw, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemSetAccess(a, unit, &rw, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemSetAccess(a + unit, unit, &rw, 1), CUDA_ERROR_INVALID_VALUE);
	wrong.flags = (CUmemAccess_flags)2;
	EXPECT_EQ(p_cuMemSetAccess(a, 2 * unit, &wrong, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemGetAccess(NULL, &prop.location, a), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemGetAccess(&flags, NULL, a), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemRetainAllocationHandle(NULL, (void *)a), CUDA_ERROR_INVALID_VALUE);
	EXPECT(p_cuMemSetAccess(a, 3 * unit, &rw, 1) != CUDA_SUCCESS);
	EXPECT(p_cuMemAddressFree(a, 4 * unit) != CUDA_SUCCESS);	/* something is mapped */
	EXPECT(p_cuMemUnmap(a, unit) != CUDA_SUCCESS);		/* not in parts */
	EXPECT_EQ(p_cuMemUnmap(a + unit, 2 * unit), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuMemSetAccess(a + unit, 2 * unit, &rw, 1), CUDA_ERROR_INVALID_VALUE);
	OK(p_cuMemUnmap(a, 2 * unit));
	EXPECT(p_cuMemAddressFree(a, 2 * unit) != CUDA_SUCCESS);	/* not in parts either */
	OK(p_cuMemAddressFree(a, 4 * unit));
	OK(p_cuMemRelease(h));
}

/* Addresses go round: what plain memory had, reserved ranges get, and the other way. */
static void mixed(void)
{
	struct block {
		CUdeviceptr p;
		size_t n;
		unsigned int v;
		int kind;
		CUmemGenericAllocationHandle h;
	};
	unsigned int seed = 9, *wrong, got;
	std::vector<block> all;

	CHECK(cudaMalloc(&wrong, 4));
	CHECK(cudaMemset(wrong, 0, 4));
	for (int i = 0; i < 300; i++) {
		if (all.size() < 10 && (all.empty() || rnd(&seed) % 5 < 3)) {
			block b = { 0, 0, rnd(&seed), (int)(rnd(&seed) % 3), 0 };

			b.n = unit * (1 + rnd(&seed) % 4);
			switch (b.kind) {
			case 0:
				CHECK(cudaMalloc((void **)&b.p, b.n));
				break;
			case 1:
				CHECK(cudaMallocAsync((void **)&b.p, b.n, 0));
				break;
			default:
				b.h = create(b.n);
				b.p = reserve(b.n);
				OK(p_cuMemMap(b.p, b.n, 0, b.h, 0));
				OK(p_cuMemSetAccess(b.p, b.n, &rw, 1));
				if (rnd(&seed) % 2) {
					OK(p_cuMemRelease(b.h));
					b.h = 0;
				}
			}
			fill<<<4, 256>>>((unsigned int *)b.p, b.v, b.n / 4);
			all.push_back(b);
			continue;
		}
		size_t k = rnd(&seed) % all.size();
		block b = all[k];

		check<<<4, 256>>>((unsigned int *)b.p, b.v, b.n / 4, wrong);
		switch (b.kind) {
		case 0:
			CHECK(cudaFree((void *)b.p));
			break;
		case 1:
			CHECK(cudaFreeAsync((void *)b.p, 0));
			break;
		default:
			CHECK(cudaDeviceSynchronize());
			OK(p_cuMemUnmap(b.p, b.n));
			OK(p_cuMemAddressFree(b.p, b.n));
			if (b.h)
				OK(p_cuMemRelease(b.h));
		}
		all.erase(all.begin() + k);
	}
	CHECK(cudaMemcpy(&got, wrong, 4, cudaMemcpyDeviceToHost));
	EXPECT_EQ(got, 0);
}

int main(void)
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
	OK(p_cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	EXPECT(unit >= 4096 && !(unit & (unit - 1)));
	aliases();
	mistakes();
	mixed();
	return job_passed("mem_vmm");
}
