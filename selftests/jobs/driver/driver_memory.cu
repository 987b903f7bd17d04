// SPDX-License-Identifier: Apache-2.0
/*
 * driver_memory.cu - memory by the driver API: pinned memory, attributes of pointers and of ranges
 * of managed memory, prefetches in batches, pools by location.
 */
#include "driver.cuh"

static CUdevice dev;

static void host_memory(void)
{
	unsigned char *h, sum = 0;
	unsigned int flags, type;
	CUdeviceptr d;

	CU(cuMemAllocHost((void **)&h, 5000));
	CU(cuMemHostGetFlags(&flags, h));
	CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)h));
	EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
	CU(cuMemHostGetDevicePointer(&d, h, 0));
	CU(cuMemsetD8(d, 3, 5000));
	CU(cuCtxSynchronize());
	for (int i = 0; i < 5000; i++)
		sum += h[i];
	EXPECT_EQ(sum, (unsigned char)15000);
	sum_bytes(h, 5000);
	CU_INVALID(cuMemAllocHost(NULL, 5000));
	CU_INVALID(cuMemAllocHost((void **)&h, 0));
	CU(cuMemFreeHost(h));
}

/* What a batch of prefetches does to the data is nothing, and the last one is known of each page. */
static void ranges(void)
{
	const CUmem_range_attribute want[] = { CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
		CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
		CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY };
	CUmem_range_attribute attr[4];
	CUmemLocation to[2] = { { CU_MEM_LOCATION_TYPE_HOST }, { CU_MEM_LOCATION_TYPE_DEVICE } };
	size_t sizes[4] = { 4, 4, 4, 8 }, len[2] = { 4096, 4096 }, at[2] = { 0, 1 };
	int v[3], by[2];
	void *data[4] = { &v[0], &v[1], &v[2], by };
	CUdeviceptr m, part[2];
	CUstream s;

	memcpy(attr, want, sizeof(attr));
	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuMemAllocManaged(&m, 8192, CU_MEM_ATTACH_GLOBAL));
	memset((void *)m, 0x77, 8192);
	CU(cuMemRangeGetAttributes(data, sizes, attr, 4, m, 8192));
	EXPECT(!v[0] && v[1] == CU_DEVICE_INVALID && v[2] == CU_DEVICE_INVALID);
	EXPECT(by[0] == CU_DEVICE_INVALID && by[1] == CU_DEVICE_INVALID);
	CU(cuMemAdvise(m, 8192, CU_MEM_ADVISE_SET_READ_MOSTLY, to[1]));
	CU(cuMemAdvise(m, 8192, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, to[0]));
	CU(cuMemAdvise(m, 8192, CU_MEM_ADVISE_SET_ACCESSED_BY, to[1]));
	part[0] = m;
	part[1] = m + 4096;
	CU(cuMemPrefetchBatchAsync(part, len, 2, to, at, 2, 0, s));
	CU(cuStreamSynchronize(s));
	CU(cuMemRangeGetAttributes(data, sizes, attr, 4, m, 8192));
	EXPECT(v[0] == 1 && v[1] == CU_DEVICE_CPU && v[2] == CU_DEVICE_INVALID);
	EXPECT(by[0] == dev && by[1] == CU_DEVICE_INVALID);
	CU(cuMemRangeGetAttributes(data, sizes, attr, 3, m, 4096));
	EXPECT_EQ(v[2], CU_DEVICE_CPU);
	CU(cuMemRangeGetAttributes(data, sizes, attr, 3, m + 4096, 4096));
	EXPECT_EQ(v[2], dev);
	EXPECT(*(unsigned char *)m == 0x77 && *(unsigned char *)(m + 8191) == 0x77);
	/* one place for both; of what is discarded only what is not stays */
	CU(cuMemDiscardAndPrefetchBatchAsync(part, len, 1, to + 1, at, 1, 0, s));
	CU(cuMemDiscardBatchAsync(part, len, 1, 0, s));
	CU(cuMemsetD8Async(m, 0x78, 4096, s));
	CU(cuStreamSynchronize(s));
	EXPECT(*(unsigned char *)m == 0x78 && *(unsigned char *)(m + 4096) == 0x77);
	CU(cuMemRangeGetAttributes(data, sizes, attr, 3, m, 8192));
	EXPECT_EQ(v[2], dev);

	sum_bytes(v, sizeof(v));
	sum_bytes((void *)m, 8192);

	CU_INVALID(cuMemRangeGetAttributes(data, sizes, attr, 0, m, 8192));
	CU_INVALID(cuMemRangeGetAttributes(NULL, sizes, attr, 4, m, 8192));
	sizes[1] = 8;
	CU_INVALID(cuMemRangeGetAttributes(data, sizes, attr, 4, m, 8192));
	CU_INVALID(cuMemPrefetchBatchAsync(part, len, 0, to, at, 1, 0, s));
	CU_INVALID(cuMemPrefetchBatchAsync(part, len, 2, NULL, at, 1, 0, s));
	CU_INVALID(cuMemPrefetchBatchAsync(part, len, 2, to, at, 2, 1, s));
	CU_INVALID(cuMemPrefetchBatchAsync(part, len, 1, to, at, 2, 0, s));
	CU_INVALID(cuMemPrefetchBatchAsync(part, len, 2, to, at + 1, 1, 0, s));
	CU_INVALID(cuMemDiscardBatchAsync(part, NULL, 1, 0, s));
	CU_INVALID(cuMemDiscardBatchAsync(part, len, 1, 0, CU_STREAM_LEGACY));
	part[1] = room(8192);
	CU_INVALID(cuMemDiscardBatchAsync(part, len, 2, 0, s));
	CU(cuMemFree(part[1]));
	CU(cuMemFree(m));
	CU(cuStreamDestroy(s));
}

/* An allocation has one name, and ends where it ends. */
static void bounds(void)
{
	CUdeviceptr d = room(1024), e = room(1 << 20);
	char h[2048] = "", *pinned;

	CU(cuMemcpyHtoD(d, h, 1024));
	CU_INVALID(cuMemcpyHtoD(d, h, 1536));
	CU_INVALID(cuMemcpyDtoH(h, d + 1023, 514));
	CU_INVALID(cuMemcpyDtoD(e, d, 1536));
	CU_INVALID(cuMemcpyDtoD(d + 512, e, 1024));
	CU_INVALID(cuMemsetD8(d, 1, 1536));
	CU_INVALID(cuMemsetD8(d + 8, 1, ~(size_t)0));
	CU_INVALID(cuMemFree(d + 8));
	CU_INVALID(cuMemFree(d + 512));
	CU_INVALID(cuMemFree(d - 8));
	CU(cuMemAllocHost((void **)&pinned, 64));
	CU_INVALID(cuMemFree((CUdeviceptr)pinned));	/* cuMemFreeHost's */
	CU(cuMemFreeHost(pinned));
	CU_INVALID(cuMemFreeHost(pinned));
	CU_INVALID(cuMemFreeHost(h));
	CU_INVALID(cuMemAlloc(&e, 0));
	CU_INVALID(cuMemAlloc(NULL, 64));
	CU(cuMemcpyDtoH(h, d, 1024));
	CU(cuMemFree(d));
	CU_INVALID(cuMemFree(d));
	CU(cuMemFree(e));
}

static void pointers(void)
{
	unsigned int on = 1, off = 0, v;
	CUdeviceptr d = room(64);

	CU(cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d));
	EXPECT_EQ(v, 0);
	CU(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d));
	CU(cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d + 8));
	EXPECT_EQ(v, 1);
	CU(cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d));
	CU(cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d));
	EXPECT_EQ(v, 0);
	CU_INVALID(cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d));
	CU_INVALID(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, d));
	CU_INVALID(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)&on));
	CU(cuMemFree(d));
}

static void pools(void)
{
	CUmemAllocationType pinned = CU_MEM_ALLOCATION_TYPE_PINNED;
	CUmemLocation here = { CU_MEM_LOCATION_TYPE_DEVICE, dev };
	CUmemAccessDesc access = { here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemoryPool standard, current, mine, old;
	CUmemPoolProps props = {};
	CUmemAccess_flags flags;
	CUdeviceptr d;

	CU(cuMemGetDefaultMemPool(&standard, &here, pinned));
	CU(cuDeviceGetDefaultMemPool(&old, dev));
	EXPECT(standard == old);
	CU(cuMemGetMemPool(&current, &here, pinned));
	EXPECT(current == standard);
	props.allocType = pinned;
	props.location = here;
	CU(cuMemPoolCreate(&mine, &props));
	CU(cuMemSetMemPool(&here, pinned, mine));
	CU(cuMemGetMemPool(&current, &here, pinned));
	EXPECT(current == mine);
	CU(cuMemAllocAsync(&d, 1000, NULL));
	CU(cuPointerGetAttribute(&old, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, d));
	EXPECT(old == mine);
	CU(cuMemPoolSetAccess(mine, &access, 1));
	CU(cuMemPoolGetAccess(&flags, mine, &here));
	EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	CU_INVALID(cuMemPoolSetAccess(mine, &access, 1));	/* not its own device's */
	CU_INVALID(cuMemPoolSetAccess(mine, NULL, 1));
	CU_INVALID(cuMemPoolSetAccess(NULL, &access, 1));
	CU(cuMemSetMemPool(&here, pinned, standard));
	CU_INVALID(cuMemSetMemPool(NULL, pinned, standard));
	CU_INVALID(cuMemSetMemPool(&here, pinned, NULL));
	CU_INVALID(cuMemGetMemPool(NULL, &here, pinned));
	CU_INVALID(cuMemGetDefaultMemPool(&old, NULL, pinned));
	here.id = 4711;
	CU_ERROR(CUDA_ERROR_INVALID_DEVICE, cuMemGetDefaultMemPool(&old, &here, pinned));
	CU(cuMemFreeAsync(d, NULL));
	CU(cuMemPoolDestroy(mine));
}

int main()
{
	CHECK(cudaFree(0));
	CU(cuDeviceGet(&dev, 0));
	host_memory();
	ranges();
	bounds();
	pointers();
	pools();
	CU(cuCtxSynchronize());
	return job_passed("driver_memory");
}
