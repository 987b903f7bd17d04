// SPDX-License-Identifier: Apache-2.0
/*
 * api_memory.c - allocation, copies and memsets in all forms, host memory, VMM, pools, attributes.
 */
#include "api.h"

#include <sys/mman.h>

TEST_F(gpu, allocations_are_aligned_counted_and_given_back)
{
	size_t before, after, total, size;
	CUdeviceptr p[64], base;

	OK(cuMemGetInfo(&before, &total));
	EXPECT_EQ(before, total);
	for (int i = 0; i < 64; i++) {
		OK(cuMemAlloc(&p[i], (size_t)1 << (i % 25)));
		EXPECT_EQ(0, p[i] % 256);
		OK(cuMemGetAddressRange(&base, &size, p[i] + ((size_t)1 << (i % 25)) - 1));
		EXPECT_EQ(p[i], base);
		EXPECT_EQ((size_t)1 << (i % 25), size);
		OK(cuMemsetD8(p[i], i, size));
	}
	OK(cuMemGetInfo(&after, &total));
	EXPECT_LT(after, before);
	for (int i = 0; i < 64; i++) {
		unsigned char last = 0xff;

		OK(cuMemcpyDtoH(&last, p[i] + ((size_t)1 << (i % 25)) - 1, 1));
		EXPECT_EQ(i, last);
		OK(cuMemFree(p[i]));
		FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree(p[i]));
	}
	OK(cuMemGetInfo(&after, &total));
	EXPECT_EQ(before, after);
}

TEST_F(gpu, bad_allocations_are_refused)
{
	CUdeviceptr p = 77;
	size_t pitch;

	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(NULL, 16));
	FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, (size_t)1 << 50));
	FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, SIZE_MAX));
	EXPECT_EQ(77, p);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&p, &pitch, 100, 10, 3));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree(0x1234));
	OK(cuMemFree(0));
	FAILS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(NULL, NULL, 0x1234));
}

TEST(memory_ends_at_the_size_that_was_configured)
{
	CUdeviceptr p[9];
	CUcontext c;
	int n = 0;

	setenv("SINGVGPU_SOFT_MEM", "16M", 1);
	OK(cuInit(0));
	OK(cuCtxCreate(&c, NULL, 0, 0));
	while (n < 9 && !cuMemAlloc(&p[n], 2 << 20))
		n++;
	EXPECT_EQ(8, n);
	FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p[8], 1));
	OK(cuMemFree(p[3]));
	OK(cuMemAlloc(&p[3], 2 << 20));
}

TEST_F(gpu, copies_check_their_ranges)
{
	char h[256];
	CUdeviceptr p;

	OK(cuMemAlloc(&p, 100));
	OK(cuMemcpyHtoD(p, h, 100));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p, h, 101));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p + 1, h, 100));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD((CUdeviceptr)h, h, 10));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(h, 0x1000, 10));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(NULL, p, 10));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(p, 0, 101));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(p + 2, 0, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD16(p + 1, 0, 1));
	OK(cuMemcpyHtoD(p, h, 0));
	OK(cuMemFree(p));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p, h, 1));
}

TEST_F(gpu, copies_and_memsets_move_the_right_bytes)
{
	unsigned char *h = malloc(1 << 20), *back = malloc(1 << 20);
	CUdeviceptr a, b;

	OK(cuMemAlloc(&a, 1 << 20));
	OK(cuMemAlloc(&b, 1 << 20));
	for (int i = 0; i < 1 << 20; i++)
		h[i] = i * 2654435761u >> 24;
	OK(cuMemcpyHtoD(a, h, 1 << 20));
	OK(cuMemcpyDtoD(b, a, 1 << 20));
	OK(cuMemcpyDtoH(back, b, 1 << 20));
	EXPECT_EQ(0, memcmp(h, back, 1 << 20));
	OK(cuMemcpy((CUdeviceptr)back, a + 100, 50));
	EXPECT_EQ(0, memcmp(h + 100, back, 50));
	OK(cuMemsetD32(b, 0x01020304, 1000));
	OK(cuMemsetD16(b + 4000, 0x0506, 1000));
	OK(cuMemsetD8(b + 6000, 7, 1000));
	OK(cuMemcpyDtoH(back, b, 8000));
	for (int i = 0; i < 4000; i++)
		ASSERT_EQ(4 - i % 4, back[i]);
	for (int i = 4000; i < 6000; i++)
		ASSERT_EQ(6 - i % 2, back[i]);
	EXPECT_EQ(7, back[6999]);
	EXPECT_EQ(h[7000], back[7000]);
	free(h);
	free(back);
}

TEST_F(gpu, two_dimensional_copies_keep_what_lies_between_rows)
{
	unsigned char h[64 * 48], back[64 * 48];
	CUDA_MEMCPY2D c = { 0 };
	CUdeviceptr p;
	size_t pitch;

	for (size_t i = 0; i < sizeof(h); i++)
		h[i] = i % 251;
	OK(cuMemAllocPitch(&p, &pitch, 64, 48, 4));
	ASSERT_GE(pitch, 64);
	OK(cuMemsetD2D8(p, pitch, 0xee, pitch, 48));
	c.srcMemoryType = CU_MEMORYTYPE_HOST;
	c.srcHost = h;
	c.srcPitch = 64;
	c.srcXInBytes = 8;
	c.srcY = 4;
	c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	c.dstDevice = p;
	c.dstPitch = pitch;
	c.dstXInBytes = 16;
	c.dstY = 2;
	c.WidthInBytes = 32;
	c.Height = 40;
	OK(cuMemcpy2D(&c));
	memset(&c, 0, sizeof(c));
	c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
	c.srcDevice = p;
	c.srcPitch = pitch;
	c.dstMemoryType = CU_MEMORYTYPE_HOST;
	c.dstHost = back;
	c.dstPitch = 64;
	c.WidthInBytes = 64;
	c.Height = 48;
	OK(cuMemcpy2D(&c));
	for (int y = 0; y < 48; y++)
		for (int x = 0; x < 64; x++)
			ASSERT_EQ(x >= 16 && x < 48 && y >= 2 && y < 42 ?
				  h[(y + 2) * 64 + x - 8] : 0xee, back[y * 64 + x]);
	c.srcPitch = 32;
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&c));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(NULL));
}

TEST_F(gpu, arrays_are_filled_and_read_in_three_dimensions)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 17, .Height = 9, .Depth = 5,
				      .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 2 };
	float h[5][9][17][2], back[5][9][17][2];
	CUDA_MEMCPY3D c = { 0 };
	CUarray a;

	for (size_t i = 0; i < sizeof(h) / 4; i++)
		((float *)h)[i] = i;
	memset(back, 0xff, sizeof(back));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(NULL, &d));
	OK(cuArray3DCreate(&a, &d));
	c.srcMemoryType = CU_MEMORYTYPE_HOST;
	c.srcHost = h;
	c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	c.dstArray = a;
	c.WidthInBytes = 17 * 8;
	c.Height = 9;
	c.Depth = 5;
	OK(cuMemcpy3D(&c));
	memset(&c, 0, sizeof(c));
	c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
	c.srcArray = a;
	c.dstMemoryType = CU_MEMORYTYPE_HOST;
	c.dstHost = back;
	c.WidthInBytes = 17 * 8;
	c.Height = 9;
	c.Depth = 5;
	OK(cuMemcpy3D(&c));
	EXPECT_EQ(0, memcmp(h, back, sizeof(h)));
	c.Depth = 6;
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&c));
	OK(cuArrayDestroy(a));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(a));
	c.Depth = 1;
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&c));
}

TEST_F(gpu, host_memory_is_pinned_registered_and_forgotten)
{
	CUdeviceptr d;
	unsigned int flags = 77, type = 77;
	void *p = POISON, *q;

	OK(cuMemHostAlloc(&p, 5000, CU_MEMHOSTALLOC_PORTABLE));
	memset(p, 1, 5000);
	OK(cuMemHostGetFlags(&flags, p));
	EXPECT_EQ(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP, flags);
	OK(cuMemHostGetDevicePointer(&d, p, 0));
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, d));
	EXPECT_EQ(CU_MEMORYTYPE_HOST, type);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&d, &flags, 0));
	OK(cuMemFreeHost(p));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(p));
	q = aligned_alloc(4096, 8192);
	OK(cuMemHostRegister(q, 8192, 0));
	FAILS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(q, 10, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(q));
	OK(cuMemHostUnregister(q));
	FAILS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(q));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(q, 0, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(&p, 0, 0));
	free(q);
}

TEST_F(gpu, pointers_tell_what_they_are)
{
	CUpointer_attribute want[3] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
					CU_POINTER_ATTRIBUTE_IS_MANAGED,
					CU_POINTER_ATTRIBUTE_RANGE_SIZE };
	unsigned int type = 77, managed = 77;
	size_t size = 77;
	void *out[3] = { &type, &managed, &size };
	CUdeviceptr p, m;
	CUcontext c;
	int on_stack;

	OK(cuMemAlloc(&p, 1000));
	OK(cuMemAllocManaged(&m, 1000, CU_MEM_ATTACH_GLOBAL));
	OK(cuPointerGetAttribute(&c, CU_POINTER_ATTRIBUTE_CONTEXT, p + 5));
	EXPECT_EQ(self->ctx, c);
	OK(cuPointerGetAttributes(3, want, out, m));
	EXPECT_EQ(CU_MEMORYTYPE_DEVICE, type);
	EXPECT_EQ(1, managed);
	EXPECT_EQ(1000, size);
	OK(cuPointerGetAttributes(3, want, out, (CUdeviceptr)&on_stack));
	EXPECT_EQ(0, type);
	EXPECT_EQ(0, size);
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				    (CUdeviceptr)&on_stack));
	*(int *)m = 5;		/* the host reads and writes managed memory */
	OK(cuMemcpyDtoH(&on_stack, m, 4));
	EXPECT_EQ(5, on_stack);
	OK(cuMemFree(m));
	OK(cuMemFree(p));
}

static const CUmemAllocationProp vmm_prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
};

TEST_F(gpu, reservations_honour_their_hint)
{
	CUdeviceptr hint = 0, p = 0, q = 0;

	OK(cuMemAddressReserve(&hint, 2 << 20, 0, 0, 0));
	OK(cuMemAddressFree(hint, 2 << 20));
	hint += 1 << 30;
	OK(cuMemAddressReserve(&p, 64 << 20, 0, hint, 0));
	EXPECT_EQ(hint, p);
	OK(cuMemAddressReserve(&q, 2 << 20, 0, hint, 0));	/* taken: elsewhere */
	EXPECT_NE(hint, q);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p, 2 << 20));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p + (2 << 20), 2 << 20));
	OK(cuMemAddressFree(p, 64 << 20));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p, 64 << 20));
	OK(cuMemAddressFree(q, 2 << 20));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, 1000, 0, 0, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, 0, 0, 0, 0));
}

TEST_F(gpu, physical_memory_lives_while_mapped_and_may_be_mapped_twice)
{
	CUmemAccessDesc rw = { .location = vmm_prop.location,
			       .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemAccessDesc ro = { .location = vmm_prop.location,
			       .flags = CU_MEM_ACCESS_FLAGS_PROT_READ };
	size_t gran = 0, before, now, total;
	CUmemGenericAllocationHandle h, again;
	CUdeviceptr a, b;
	unsigned int v = 0;

	OK(cuMemGetAllocationGranularity(&gran, &vmm_prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	ASSERT_EQ(2 << 20, gran);
	OK(cuMemGetInfo(&before, &total));
	OK(cuMemAddressReserve(&a, 4 * gran, 0, 0, 0));
	OK(cuMemAddressReserve(&b, 4 * gran, 0, 0, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, 1000, &vmm_prop, 0));
	OK(cuMemCreate(&h, gran, &vmm_prop, 0));
	OK(cuMemGetInfo(&now, &total));
	EXPECT_EQ(before - gran, now);
	OK(cuMemMap(a, gran, 0, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a, gran, 0, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(a, 1, 1));	/* no access yet */
	OK(cuMemSetAccess(a, gran, &rw, 1));
	OK(cuMemsetD32(a, 0xabcd, 1000));
	OK(cuMemMap(b + gran, gran, 0, h, 0));
	OK(cuMemSetAccess(b + gran, gran, &ro, 1));
	OK(cuMemcpyDtoH(&v, b + gran + 3996, 4));
	EXPECT_EQ(0xabcd, v);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(b + gran, 1, 1));
	OK(cuMemRetainAllocationHandle(&again, (void *)a));
	EXPECT_EQ(h, again);
	OK(cuMemRelease(again));
	OK(cuMemRelease(h));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemRelease(h));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(a, 4 * gran));	/* mapped */
	OK(cuMemUnmap(a, gran));
	OK(cuMemcpyDtoH(&v, b + gran, 4));
	EXPECT_EQ(0xabcd, v);
	OK(cuMemUnmap(b + gran, gran));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(b + gran, gran));
	OK(cuMemGetInfo(&now, &total));
	EXPECT_EQ(before, now);
	OK(cuMemAddressFree(a, 4 * gran));
	OK(cuMemAddressFree(b, 4 * gran));
}

TEST_F(gpu, physical_memory_is_exported_as_a_descriptor)
{
	CUmemGenericAllocationHandle h, other;
	CUmemAccessDesc rw = { .location = vmm_prop.location,
			       .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr a, b;
	unsigned int v = 0;
	int fd = -1;

	OK(cuMemCreate(&h, 2 << 20, &vmm_prop, 0));
	OK(cuMemAddressReserve(&a, 4 << 20, 0, 0, 0));
	b = a + (2 << 20);
	OK(cuMemMap(a, 2 << 20, 0, h, 0));
	OK(cuMemSetAccess(a, 2 << 20, &rw, 1));
	OK(cuMemsetD32(a, 42, 100));
	FAILS(CUDA_ERROR_NOT_SUPPORTED,
	      cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_FABRIC, 0));
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&other, (void *)(intptr_t)fd,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuMemImportFromShareableHandle(&other, (void *)(intptr_t)-1,
					     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	OK(cuMemMap(b, 2 << 20, 0, other, 0));
	OK(cuMemSetAccess(b, 2 << 20, &rw, 1));
	OK(cuMemcpyDtoH(&v, b + 396, 4));
	EXPECT_EQ(42, v);
	OK(cuMemUnmap(a, 4 << 20));
	OK(cuMemRelease(h));
	OK(cuMemRelease(other));
}

TEST_F(gpu, small_pieces_of_physical_memory_take_no_descriptors)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = vmm_prop.location };
	CUmemAccessDesc rw = { .location = vmm_prop.location,
			       .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	const size_t unit = 2 << 20, n = 2000;
	CUmemGenericAllocationHandle h;
	CUdeviceptr base;
	unsigned int v;

	OK(cuMemAddressReserve(&base, n * unit, 0, 0, 0));
	for (size_t i = 0; i < n; i++) {
		OK(cuMemCreate(&h, unit, &prop, 0));
		OK(cuMemMap(base + i * unit, unit, 0, h, 0));
		OK(cuMemRelease(h));
	}
	OK(cuMemSetAccess(base, n * unit, &rw, 1));
	for (size_t i = 0; i < n; i++)
		OK(cuMemsetD32(base + i * unit, i + 1, 1));
	for (size_t i = 0; i < n; i++) {
		OK(cuMemcpyDtoH(&v, base + i * unit, 4));
		ASSERT_EQ(i + 1, v);
	}
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuMemExportToShareableHandle(&v, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemUnmap(base, n * unit));
	OK(cuMemCreate(&h, unit, &prop, 0));	/* what comes back is zero again */
	OK(cuMemMap(base, unit, 0, h, 0));
	OK(cuMemSetAccess(base, unit, &rw, 1));
	OK(cuMemcpyDtoH(&v, base, 4));
	EXPECT_EQ(0, v);
	OK(cuMemUnmap(base, unit));
	OK(cuMemRelease(h));
	OK(cuMemAddressFree(base, n * unit));
}

TEST_F(gpu, pools_reuse_in_stream_order_and_trim)
{
	cuuint64_t used = 77, reserved = 77, keep = UINT64_MAX;
	CUmemoryPool pool, own;
	CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				 .location = vmm_prop.location };
	CUdeviceptr p, q;
	CUstream s;

	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	OK(cuMemAllocAsync(&p, 100000, s));
	OK(cuMemsetD8Async(p, 1, 100000, s));
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
	EXPECT_GE(used, 100000);
	OK(cuMemFreeAsync(p, s));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, s));
	OK(cuMemAllocAsync(&q, 100000, s));
	EXPECT_EQ(p, q);
	OK(cuMemFreeAsync(q, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
	EXPECT_EQ(0, used);
	EXPECT_GT(reserved, 0);
	OK(cuMemPoolTrimTo(pool, 0));
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
	EXPECT_EQ(0, reserved);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(pool));
	OK(cuMemPoolCreate(&own, &props));
	OK(cuMemAllocFromPoolAsync(&p, 5000, own, s));
	OK(cuMemPoolDestroy(own));		/* lives on until its memory is freed */
	OK(cuMemsetD8Async(p, 1, 5000, s));
	OK(cuMemFreeAsync(p, s));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&p, 5000, own, s));
	OK(cuStreamSynchronize(s));
}

TEST_HARNESS_MAIN
