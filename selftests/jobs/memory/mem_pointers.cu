// SPDX-License-Identifier: Apache-2.0
/*
 * mem_pointers.cu - attributes of pointers into each kind of memory, and of unknown pointers.
 */
#include "../job.cuh"

#include <cuda.h>
#include <sys/mman.h>

static decltype(&cuPointerGetAttribute) pointer_get;
static decltype(&cuPointerGetAttributes) pointers_get;
static decltype(&cuMemGetAddressRange) address_range;

template <typename T> static void entry(const char *name, T *f)
{
	cudaDriverEntryPointQueryResult q;

	CHECK(cudaGetDriverEntryPointByVersion(name, (void **)f, 12000, cudaEnableDefault, &q));
	EXPECT(q == cudaDriverEntryPointSuccess && *f);
}

template <typename T> static T get(const void *p, CUpointer_attribute a)
{
	T v;

	memset(&v, 0xee, sizeof(v));
	EXPECT_EQ(pointer_get(&v, a, (CUdeviceptr)p), CUDA_SUCCESS);
	return v;
}

static int result(const void *p, CUpointer_attribute a)
{
	unsigned long long v[8];

	return pointer_get(v, a, (CUdeviceptr)p);
}

__device__ int global[1000];

static void expect(const char *p, cudaMemoryType type, int device, const void *dev, const void *host)
{
	cudaPointerAttributes a;

	memset(&a, 0xee, sizeof(a));
	CHECK(cudaPointerGetAttributes(&a, p));
	EXPECT_EQ(a.type, type);
	EXPECT_EQ(a.device, device);
	EXPECT(a.devicePointer == dev);
	EXPECT(a.hostPointer == host);
}

static void range_is(const char *p, const char *base, size_t len)
{
	CUdeviceptr b = 1;
	size_t n = 1;

	EXPECT_EQ(address_range(&b, &n, (CUdeviceptr)p), CUDA_SUCCESS);
	EXPECT(b == (CUdeviceptr)base);
	EXPECT_EQ(n, len);
	EXPECT_EQ(get<unsigned long long>(p, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), (CUdeviceptr)base);
	EXPECT_EQ(get<size_t>(p, CU_POINTER_ATTRIBUTE_RANGE_SIZE), len);
}

static void plain(void)
{
	char *a, *b;
	CUcontext ctx;

	CHECK(cudaMalloc(&a, 1000));
	CHECK(cudaMalloc(&b, 1000));
	expect(a + 10, cudaMemoryTypeDevice, 0, a + 10, NULL);
	range_is(a + 999, a, 1000);
	EXPECT(get<unsigned long long>(a, CU_POINTER_ATTRIBUTE_BUFFER_ID) !=
	       get<unsigned long long>(b, CU_POINTER_ATTRIBUTE_BUFFER_ID));
	EXPECT_EQ(get<unsigned long long>(a, CU_POINTER_ATTRIBUTE_BUFFER_ID),
		  get<unsigned long long>(a + 500, CU_POINTER_ATTRIBUTE_BUFFER_ID));
	ctx = get<CUcontext>(a, CU_POINTER_ATTRIBUTE_CONTEXT);
	EXPECT(ctx != NULL);
	EXPECT_EQ(get<int>(a, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0);
	EXPECT_EQ(get<unsigned int>(a, CU_POINTER_ATTRIBUTE_IS_MANAGED), 0);
	EXPECT_EQ(get<unsigned int>(a, CU_POINTER_ATTRIBUTE_MAPPED), 1);
	EXPECT_EQ(get<unsigned int>(a, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), CU_MEMORYTYPE_DEVICE);
	EXPECT_EQ(result(a, CU_POINTER_ATTRIBUTE_HOST_POINTER), CUDA_ERROR_INVALID_VALUE);
	EXPECT(get<void *>(a, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) == NULL);
	CHECK(cudaFree(a));
	EXPECT_EQ(result(a, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), CUDA_ERROR_INVALID_VALUE);
	CHECK(cudaFree(b));
}

static void others(void)
{
	char *h, *m, *p, *r, *dev;
	cudaMemPool_t pool;
	void *sym;

	CHECK(cudaHostAlloc(&h, 5000, cudaHostAllocMapped));
	expect(h + 7, cudaMemoryTypeHost, 0, h + 7, h + 7);
	range_is(h + 4999, h, 5000);
	EXPECT_EQ(get<unsigned int>(h, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), CU_MEMORYTYPE_HOST);
	CHECK(cudaFreeHost(h));

	CHECK(cudaMallocManaged(&m, 3000));
	expect(m + 7, cudaMemoryTypeManaged, 0, m + 7, m + 7);
	EXPECT_EQ(get<unsigned int>(m, CU_POINTER_ATTRIBUTE_IS_MANAGED), 1);
	CHECK(cudaFree(m));

	CHECK(cudaMallocAsync(&p, 2000, 0));
	expect(p + 3, cudaMemoryTypeDevice, 0, p + 3, NULL);
	range_is(p, p, 2000);
	CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
	EXPECT(get<cudaMemPool_t>(p, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) == pool);
	CHECK(cudaFreeAsync(p, 0));
	CHECK(cudaStreamSynchronize(0));

	CHECK(cudaGetSymbolAddress(&sym, global));
	expect((char *)sym + 40, cudaMemoryTypeDevice, 0, (char *)sym + 40, NULL);

	r = (char *)mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(r != MAP_FAILED);
	CHECK(cudaHostRegister(r, 8192, 0));
	CHECK(cudaHostGetDevicePointer(&dev, r, 0));
	expect(r + 100, cudaMemoryTypeHost, 0, dev + 100, r + 100);
	CHECK(cudaHostUnregister(r));
	munmap(r, 8192);
}

/* Memory that CUDA knows nothing of: no error from the runtime, and zeros from the list form. */
static void unknown(void)
{
	CUpointer_attribute a[4] = {
		CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
	};
	unsigned long long v[4];
	void *data[4] = { &v[0], &v[1], &v[2], &v[3] };
	char *p = (char *)malloc(100);
	CUdeviceptr base;
	size_t len;

	expect(p, cudaMemoryTypeUnregistered, -2, NULL, NULL);
	EXPECT_EQ(result(p, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), CUDA_ERROR_INVALID_VALUE);
	memset(v, 0xee, sizeof(v));
	EXPECT_EQ(pointers_get(4, a, data, (CUdeviceptr)p), CUDA_SUCCESS);
	EXPECT(!v[0] && !(unsigned int)v[1] && !v[2] && !v[3]);
	EXPECT(address_range(&base, &len, (CUdeviceptr)p) != CUDA_SUCCESS);
	free(p);
}

int main(void)
{
	CHECK(cudaFree(0));
	entry("cuPointerGetAttribute", &pointer_get);
	entry("cuPointerGetAttributes", &pointers_get);
	entry("cuMemGetAddressRange", &address_range);
	plain();
	others();
	unknown();
	return job_passed("mem_pointers");
}
