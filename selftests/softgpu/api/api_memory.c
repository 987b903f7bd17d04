// SPDX-License-Identifier: Apache-2.0
/*
 * api_memory.c - allocation, copies and memsets in all forms, host memory, VMM, pools, attributes.
 */
#include "api.h"

#include <fcntl.h>
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
	/* rows whose bytes together are few, if one counts to 2^64 only */
	FAILS(CUDA_ERROR_OUT_OF_MEMORY,
	      cuMemAllocPitch(&p, &pitch, 1 << 20, ((size_t)1 << 44) + 1, 4));
	EXPECT_EQ(77, p);
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

/* Lengths and offsets whose sums or products are small, if one counts to 2^64 only. */
TEST_F(gpu, ranges_do_not_wrap)
{
	const size_t rows = 192153584101141164;		/* 96 * (rows - 1) is 2^64 + 32 */
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 8, .Height = 4, .Depth = 2,
				      .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1 };
	CUDA_RESOURCE_DESC res = { .resType = CU_RESOURCE_TYPE_PITCH2D };
	CUDA_TEXTURE_DESC tex = { 0 };
	CUDA_MEMCPY3D c = { 0 };
	CUtexObject t = 77;
	char h[4096] = "", *q = aligned_alloc(4096, 8192);
	CUdeviceptr p;
	CUarray a;

	OK(cuMemAlloc(&p, 4096));
	OK(cuArray3DCreate(&a, &d));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(p, 1, ((size_t)1 << 62) + 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD16(p, 1, ((size_t)1 << 63) + 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(p, 1, SIZE_MAX));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D8(p, 96, 1, 16, rows));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D8(p, -32ull, 1, 16, 2));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(h, p + 8, SIZE_MAX));

#define ARRAY(change) do { \
	c = (CUDA_MEMCPY3D){ .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = h, .srcPitch = 32, \
			     .srcHeight = 4, .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = a, \
			     .WidthInBytes = 16, .Height = 2, .Depth = 2 }; \
	change; \
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&c)) TH_LOG("%s", #change); \
} while (0)
	ARRAY(c.dstXInBytes = 17);
	ARRAY(c.dstXInBytes = -8ull);
	ARRAY(c.dstY = 3);
	ARRAY(c.dstY = -1ull);
	ARRAY(c.dstZ = 1);
	ARRAY(c.dstZ = -1ull);
	ARRAY((c.WidthInBytes = 33, c.srcPitch = 64));
	ARRAY(c.Height = 5);
	ARRAY(c.Depth = 3);
	ARRAY((c.WidthInBytes = SIZE_MAX, c.srcPitch = SIZE_MAX, c.dstXInBytes = 8));

#define LINEAR(change) do { \
	c = (CUDA_MEMCPY3D){ .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .srcPitch = 32, \
			     .srcHeight = 4, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = h, \
			     .dstPitch = 32, .dstHeight = 4, .WidthInBytes = 16, .Height = 4, \
			     .Depth = 2 }; \
	change; \
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&c)) TH_LOG("%s", #change); \
} while (0)
	LINEAR(c.srcPitch = 15);
	LINEAR(c.srcHeight = 3);
	LINEAR(c.srcDevice = 0);
	LINEAR((c.srcPitch = -32ull, c.Height = 2, c.Depth = 1));
	LINEAR((c.srcPitch = 96, c.Height = rows, c.Depth = 1));
	LINEAR((c.srcPitch = 96, c.srcHeight = rows));
	LINEAR((c.srcPitch = 96, c.Height = 1, c.srcHeight = 1, c.Depth = rows));
	LINEAR(c.dstMemoryType = 0);
	LINEAR(c.dstMemoryType = 5);
	LINEAR(c.dstMemoryType = CU_MEMORYTYPE_ARRAY);
	LINEAR(c.dstHost = (void *)(p + (1 << 20)));	/* the device's, and nobody has it */
	LINEAR(c.srcLOD = 1);
	LINEAR(c.dstLOD = 1);
	LINEAR(c.srcMemoryType = 0);
	LINEAR(c.srcMemoryType = 5);
	LINEAR(c.srcMemoryType = CU_MEMORYTYPE_ARRAY);

	/* nothing is copied from nowhere */
	c = (CUDA_MEMCPY3D){ .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = 4096, .srcPitch = 32,
			     .srcHeight = 4, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = h,
			     .dstPitch = 32, .dstHeight = 4, .WidthInBytes = 16, .Height = 4 };
	OK(cuMemcpy3D(&c));
	c.Depth = 1;
	c.Height = 0;
	OK(cuMemcpy3D(&c));
	c.Height = 4;
	c.WidthInBytes = 0;
	OK(cuMemcpy3D(&c));
	OK(cuMemsetD8(p, 1, 0));
	OK(cuMemsetD2D8(p, 32, 1, 0, 4));
	OK(cuMemsetD2D8(p, 32, 1, 16, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D8(p, 8, 1, 16, 2));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D32(p, 34, 1, 4, 2));
	/* addresses without a type */
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpy((CUdeviceptr)h, p + (1 << 20), 16));
	OK(cuMemHostRegister(q, 4096, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemcpy(p, (CUdeviceptr)q + 2048, 4096));
	OK(cuMemcpy(p, (CUdeviceptr)q + 2048, 2048));
	OK(cuMemHostUnregister(q));
	free(q);

#define PITCHED(w, rows, step, to) do { \
	res.res.pitch2D.devPtr = to; \
	res.res.pitch2D.format = CU_AD_FORMAT_FLOAT; \
	res.res.pitch2D.numChannels = 1; \
	res.res.pitch2D.width = w; \
	res.res.pitch2D.height = rows; \
	res.res.pitch2D.pitchInBytes = step; \
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&t, &res, &tex, NULL)) \
		TH_LOG("%s, %s, %s", #w, #rows, #step); \
} while (0)
	PITCHED(4, rows, 96, p);
	PITCHED(((size_t)1 << 62) + 4, 1, 32, p);
	PITCHED(0, 1, 32, p);
	PITCHED(4, 0, 32, p);
	PITCHED(9, 1, 32, p);
	PITCHED(4, 1, 48, p);
	PITCHED(4, 1, 32, p + 16);
	PITCHED(4, 1000, 32, p);
	PITCHED(8, 2, -32ull, p);
	EXPECT_EQ(77, t);
	OK(cuArrayDestroy(a));
	OK(cuMemFree(p));
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

/* A pointer to a copy of the description with a change. */
#define CHANGED(d, change) ({ static __typeof__(d) d_, *x = &d_; *x = d; change; x; })

TEST_F(gpu, arrays_check_their_description)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 12, .Height = 12, .Depth = 6, .NumChannels = 1,
				      .Format = CU_AD_FORMAT_FLOAT }, got;
	CUmipmappedArray m = POISON;
	CUarray a = POISON, level;

#define BAD(error, change) \
	FAILS(error, cuArray3DCreate(&a, CHANGED(d, change))) TH_LOG("%s", #change)
	BAD(CUDA_ERROR_NOT_SUPPORTED, x->Flags = 1u << 20);
	BAD(CUDA_ERROR_INVALID_VALUE, x->Format = 0);
	BAD(CUDA_ERROR_INVALID_VALUE, x->Format = 0x7fffffff);
	BAD(CUDA_ERROR_INVALID_VALUE, x->NumChannels = 0);
	BAD(CUDA_ERROR_INVALID_VALUE, x->NumChannels = 3);
	BAD(CUDA_ERROR_INVALID_VALUE, x->NumChannels = 8);
	BAD(CUDA_ERROR_INVALID_VALUE, x->Format = CU_AD_FORMAT_UNORM_INT8X2);
	BAD(CUDA_ERROR_INVALID_VALUE, x->Width = 0);
	BAD(CUDA_ERROR_INVALID_VALUE, x->Width = 131073);
	BAD(CUDA_ERROR_INVALID_VALUE, x->Width = (size_t)1 << 62);
	BAD(CUDA_ERROR_INVALID_VALUE, x->Height = 131073);
	BAD(CUDA_ERROR_INVALID_VALUE, x->Height = (size_t)1 << 60);
	BAD(CUDA_ERROR_INVALID_VALUE, x->Depth = 16385);
	BAD(CUDA_ERROR_INVALID_VALUE, x->Depth = (size_t)1 << 60);
	BAD(CUDA_ERROR_INVALID_VALUE, x->Height = 0);
	BAD(CUDA_ERROR_INVALID_VALUE, (x->Flags = CUDA_ARRAY3D_LAYERED, x->Depth = 0));
	BAD(CUDA_ERROR_INVALID_VALUE, (x->Flags = CUDA_ARRAY3D_CUBEMAP, x->Height = 6));
	BAD(CUDA_ERROR_INVALID_VALUE, (x->Flags = CUDA_ARRAY3D_CUBEMAP, x->Depth = 12));
	BAD(CUDA_ERROR_INVALID_VALUE, (x->Flags = CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED,
				       x->Depth = 13));
	BAD(CUDA_ERROR_OUT_OF_MEMORY, (x->Width = x->Height = 131072, x->Depth = 16384));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&a, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayCreate(NULL, &d, 2));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayCreate(&m, NULL, 2));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayCreate(&m, &d, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayCreate(&m, CHANGED(d, x->Width = 0), 2));
	EXPECT_EQ(POISON, a);
	EXPECT_EQ(POISON, m);

	/* levels belong to their mipmap; there are as many as halves */
	OK(cuMipmappedArrayCreate(&m, &d, 100));
	OK(cuMipmappedArrayGetLevel(&level, m, 3));
	OK(cuArray3DGetDescriptor(&got, level));
	EXPECT_EQ(1, got.Width);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&a, m, 4));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&a, m, ~0u));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(NULL, m, 0));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayGetLevel(&a, POISON, 0));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayGetLevel(&a, (CUmipmappedArray)level, 0));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(level));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy((CUarray)m));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy((CUmipmappedArray)level));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuArray3DGetDescriptor(NULL, level));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuArray3DGetDescriptor(&got, POISON));
	OK(cuMipmappedArrayDestroy(m));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy(m));
	FAILS(CUDA_ERROR_INVALID_HANDLE, cuArray3DGetDescriptor(&got, level));
}

TEST_F(gpu, textures_check_their_description)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 8, .Height = 8, .Depth = 12, .NumChannels = 1,
				      .Format = CU_AD_FORMAT_UNSIGNED_INT32,
				      .Flags = CUDA_ARRAY3D_LAYERED };
	CUDA_RESOURCE_DESC arr = { .resType = CU_RESOURCE_TYPE_ARRAY }, got;
	CUDA_RESOURCE_DESC lin = { .resType = CU_RESOURCE_TYPE_LINEAR };
	CUDA_RESOURCE_DESC mip = { .resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY };
	CUDA_RESOURCE_VIEW_DESC view = { .lastLayer = 11 }, back;
	CUDA_TEXTURE_DESC tex = { 0 }, was;
	CUtexObject t = 77, s = 77;
	CUdeviceptr p, huge;

	OK(cuMemAlloc(&p, 4096));
	OK(cuMemAlloc(&huge, (256 << 20) + 32));
	OK(cuArray3DCreate(&arr.res.array.hArray, &d));
	OK(cuMipmappedArrayCreate(&mip.res.mipmap.hMipmappedArray, &d, 2));
	lin.res.linear.devPtr = p;
	lin.res.linear.format = CU_AD_FORMAT_FLOAT;
	lin.res.linear.numChannels = 1;
	lin.res.linear.sizeInBytes = 4096;
#define RES(error, of, change) \
	FAILS(error, cuTexObjectCreate(&t, CHANGED(of, change), &tex, NULL)) TH_LOG("%s", #change)
	RES(CUDA_ERROR_INVALID_VALUE, arr, x->flags = 1);
	RES(CUDA_ERROR_INVALID_VALUE, arr, x->resType = 9);
	RES(CUDA_ERROR_INVALID_HANDLE, arr, x->res.array.hArray = POISON);
	RES(CUDA_ERROR_INVALID_HANDLE, mip, x->res.mipmap.hMipmappedArray = POISON);
	RES(CUDA_ERROR_INVALID_VALUE, lin, x->res.linear.devPtr += 4);
	RES(CUDA_ERROR_INVALID_VALUE, lin, x->res.linear.sizeInBytes = 3);
	RES(CUDA_ERROR_INVALID_VALUE, lin, x->res.linear.sizeInBytes = 4 << 20);
	RES(CUDA_ERROR_INVALID_VALUE, lin, x->res.linear.sizeInBytes = 1ull << 62);
	RES(CUDA_ERROR_INVALID_VALUE, lin, (x->res.linear.format = CU_AD_FORMAT_UNSIGNED_INT8,
					    x->res.linear.devPtr = huge,
					    x->res.linear.sizeInBytes = (256 << 20) + 1));
	RES(CUDA_ERROR_INVALID_VALUE, lin, x->res.linear.numChannels = 3);
	RES(CUDA_ERROR_INVALID_VALUE, lin, x->res.linear.numChannels = 1u << 31);
	RES(CUDA_ERROR_INVALID_VALUE, lin, x->res.linear.format = 0x7777);
	RES(CUDA_ERROR_INVALID_VALUE, lin, x->res.linear.devPtr = (CUdeviceptr)&d & -32ull);
#define TEX(change) FAILS(CUDA_ERROR_INVALID_VALUE, \
			  cuTexObjectCreate(&t, &arr, CHANGED(tex, change), NULL)) TH_LOG("%s", #change)
	TEX(x->filterMode = CU_TR_FILTER_MODE_LINEAR);		/* of integers */
	TEX(x->addressMode[0] = 4);
	TEX(x->addressMode[1] = -1);
	TEX(x->addressMode[2] = 4);
#define VIEW(of, change) FAILS(CUDA_ERROR_INVALID_VALUE, \
			       cuTexObjectCreate(&t, &of, &tex, CHANGED(view, change))) TH_LOG("%s", #change)
	VIEW(lin, );
	VIEW(arr, x->firstMipmapLevel = 1);
	VIEW(arr, x->lastMipmapLevel = 1);
	VIEW(mip, x->lastMipmapLevel = 2);
	VIEW(arr, x->lastLayer = 12);
	VIEW(arr, (x->firstLayer = 5, x->lastLayer = 4));
	VIEW(arr, x->lastLayer = ~0u);
	VIEW(arr, x->width = 4);
	VIEW(arr, x->height = 9);
	VIEW(arr, x->format = CU_RES_VIEW_FORMAT_UINT_4X32);
	VIEW(arr, x->format = 0x7777);
	FAILS(CUDA_ERROR_NOT_SUPPORTED,
	      cuTexObjectCreate(&t, &arr, &tex,
				CHANGED(view, x->format = CU_RES_VIEW_FORMAT_UNSIGNED_BC1)));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(NULL, &arr, &tex, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&t, NULL, &tex, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&t, &arr, NULL, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(NULL, &arr));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&s, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&s, &lin));
	FAILS(CUDA_ERROR_INVALID_HANDLE,
	      cuSurfObjectCreate(&s, CHANGED(arr, x->res.array.hArray = POISON)));
	EXPECT_EQ(77, t);
	EXPECT_EQ(77, s);

	/* what is filtered is floating point, in the end */
	OK(cuTexObjectCreate(&t, &lin, CHANGED(tex, x->filterMode = CU_TR_FILTER_MODE_LINEAR), NULL));
	OK(cuTexObjectDestroy(t));
	lin.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT8;
	OK(cuTexObjectCreate(&t, &lin, CHANGED(tex, x->filterMode = CU_TR_FILTER_MODE_LINEAR), NULL));
	OK(cuTexObjectDestroy(t));
	/* a texture is no surface, and the other way */
	OK(cuTexObjectCreate(&t, &arr, &tex, NULL));
	OK(cuSurfObjectCreate(&s, &arr));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(s));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectDestroy(t));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(t + 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(-64ull));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(t + (2 << 20)));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetResourceDesc(NULL, t));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetResourceDesc(&got, s));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetTextureDesc(&was, s));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetResourceViewDesc(&back, t));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectGetResourceDesc(&got, t));
	OK(cuTexObjectDestroy(t));
	OK(cuSurfObjectDestroy(s));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(t));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuSurfObjectDestroy(s));
	OK(cuMipmappedArrayDestroy(mip.res.mipmap.hMipmappedArray));
	OK(cuArrayDestroy(arr.res.array.hArray));
	OK(cuMemFree(huge));
	OK(cuMemFree(p));
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
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(q, SIZE_MAX - 4095, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(q, -(uintptr_t)q + 4096, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(&p, 0, 0));
	free(q);
}

TEST_F(gpu, host_memory_calls_check_their_arguments)
{
	CUdeviceptr d, dev;
	unsigned int flags;
	char *q, *small, *other;
	void *p = POISON;

	OK(cuMemAlloc(&dev, 4096));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(NULL, 4096, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(&p, 4096, 0x80));
	FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemHostAlloc(&p, ((size_t)1 << 46) + 1, 0));
	FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemHostAlloc(&p, SIZE_MAX, 0));
	EXPECT_EQ(POISON, p);
	OK(cuMemHostAlloc(&p, 8192, 0));
	OK(cuMemFreeHost(NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost((char *)p + 4096));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost((void *)dev));
	FAILS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(p));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostUnregister(NULL));

	q = aligned_alloc(4096, 16384);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(NULL, 4096, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(q, 4096, 0x100));
	FAILS(CUDA_ERROR_NOT_SUPPORTED,
	      cuMemHostRegister(q, 4096, CU_MEMHOSTREGISTER_IOMEMORY));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister((void *)dev, 4096, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister((void *)(dev + (1 << 20)), 4096, 0));
	OK(cuMemHostRegister(q + 4096, 4096, CU_MEMHOSTREGISTER_READ_ONLY));
	/* over one that is there, from in front and from within; what only touches it is another */
	FAILS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(q, 4097, 0));
	FAILS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(q, 16384, 0));
	FAILS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(q + 8191, 10, 0));
	OK(cuMemHostRegister(q, 4096, 0));
	OK(cuMemHostRegister(q + 8192, 4096, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD8((CUdeviceptr)q + 4096, 1, 1));	/* read only */
	OK(cuMemsetD8((CUdeviceptr)q, 1, 1));
	FAILS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(q + 1));
	FAILS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(q + 12288));

	small = POISON;
	other = q + 12288;
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(NULL, p, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&d, NULL, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&d, p, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&d, (void *)dev, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&d, other, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetFlags(NULL, p));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetFlags(&flags, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetFlags(&flags, small));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetFlags(&flags, (void *)dev));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemHostGetFlags(&flags, q));
	for (int i = 0; i < 3; i++)
		OK(cuMemHostUnregister(q + 4096 * i));
	OK(cuMemFreeHost(p));
	OK(cuMemFree(dev));
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

/* A descriptor comes from another process; only what cannot shrink under a mapping is taken. */
TEST_F(gpu, descriptors_that_are_no_physical_memory_are_refused)
{
	const CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	const unsigned int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	static const off_t sizes[] = { 0, 4096, (2 << 20) + 4096, 2 << 20 };
	CUmemAllocationProp plain = { .type = vmm_prop.type, .location = vmm_prop.location };
	CUmemGenericAllocationHandle h = 77;
	FILE *file = tmpfile();
	int fd[2], f, i;

	ASSERT_EQ(0, pipe(fd));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd[0], type));
	close(fd[0]);
	close(fd[1]);
	for (i = 0; i < 4; i++) {
		f = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		ASSERT_EQ(0, ftruncate(f, sizes[i]));
		FAILS(CUDA_ERROR_INVALID_VALUE,
		      cuMemImportFromShareableHandle(&h, (void *)(intptr_t)f, type));
		ASSERT_EQ(0, fcntl(f, F_ADD_SEALS, seals));
		EXPECT_EQ(77, h);
		EXPECT_EQ(i < 3 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS,
			  cuMemImportFromShareableHandle(&h, (void *)(intptr_t)f, type));
		if (i == 3)
			FAILS(CUDA_ERROR_INVALID_VALUE,
			      cuMemImportFromShareableHandle(NULL, (void *)(intptr_t)f, type));
		if (i == 3)
			FAILS(CUDA_ERROR_NOT_SUPPORTED,
			      cuMemImportFromShareableHandle(&h, (void *)(intptr_t)f,
							     CU_MEM_HANDLE_TYPE_FABRIC));
		close(f);
	}
	OK(cuMemRelease(h));
	/* a file of a file system has no seals */
	ASSERT_NE(NULL, file);
	ASSERT_EQ(0, ftruncate(fileno(file), 2 << 20));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fileno(file), type));
	fclose(file);
	OK(cuMemCreate(&h, 2 << 20, &plain, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&f, h, type, 0));
	OK(cuMemRelease(h));
	OK(cuMemCreate(&h, 2 << 20, &vmm_prop, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&f, h, type, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(NULL, h, type, 0));
	OK(cuMemRelease(h));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&f, h, type, 0));
}

TEST_F(gpu, mappings_check_all_that_they_are_told)
{
	CUmemAccessDesc rw = { .location = vmm_prop.location,
			       .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE }, bad = rw;
	const size_t unit = 2 << 20;
	CUmemGenericAllocationHandle h, again;
	unsigned long long flags = 77;
	CUmemAllocationProp prop;
	CUdeviceptr a, plain;
	void *pinned;
	size_t gran;

	/* other memory, at lower and at higher addresses, is in nobody's way */
	OK(cuMemAlloc(&plain, unit));
	OK(cuMemHostAlloc(&pinned, unit, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(NULL, unit, 0, 0, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&a, unit, 0, 0, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&a, unit, 3, 0, 0));
	FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAddressReserve(&a, (size_t)1 << 60, 0, 0, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(NULL, unit, &vmm_prop, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, 0, &vmm_prop, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, unit, NULL, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, unit, &vmm_prop, 1));
	FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&h, (size_t)1 << 50, &vmm_prop, 0));
#define PROP(error, change) do { \
	prop = vmm_prop; \
	change; \
	FAILS(error, cuMemCreate(&h, unit, &prop, 0)) TH_LOG("%s", #change); \
	FAILS(error, cuMemGetAllocationGranularity(&gran, &prop, 0)) TH_LOG("%s", #change); \
} while (0)
	PROP(CUDA_ERROR_INVALID_VALUE, prop.type = 0);
	PROP(CUDA_ERROR_INVALID_VALUE, prop.location.type = 0);
	PROP(CUDA_ERROR_NOT_SUPPORTED, prop.location.type = CU_MEM_LOCATION_TYPE_HOST);
	PROP(CUDA_ERROR_INVALID_DEVICE, prop.location.id = 99);
	PROP(CUDA_ERROR_INVALID_DEVICE, prop.location.id = -1);
	PROP(CUDA_ERROR_NOT_SUPPORTED, prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationGranularity(NULL, &vmm_prop, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationGranularity(&gran, NULL, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationGranularity(&gran, &vmm_prop, 7));
	OK(cuMemCreate(&h, 2 * unit, &vmm_prop, 0));
	OK(cuMemAddressReserve(&a, unit, 0, 0, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a, 2 * unit, 0, h, 0));
	OK(cuMemAddressFree(a, unit));
	OK(cuMemAddressReserve(&a, 4 * unit, 0, 0, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(plain, unit, 0, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(plain, unit));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a, unit, 0, h, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a, unit, unit, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a, 0, 0, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a, unit / 2, 0, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a + 4096, unit, 0, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a, 3 * unit, 0, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a + 3 * unit, 2 * unit, 0, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a - unit, 2 * unit, 0, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a, unit, 0, a, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(a, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(a, unit, &rw, 1));
	OK(cuMemMap(a, 2 * unit, 0, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a + unit, unit, 0, h, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(a, unit));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(a + unit, unit));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(a + unit, 2 * unit));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(a, 3 * unit));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(a, 2 * unit, NULL, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(a, 2 * unit, &rw, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(a, unit, &rw, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(a, 0, &rw, 1));
	bad.flags = 2;
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(a, 2 * unit, &bad, 1));
	bad = rw;
	bad.location.type = CU_MEM_LOCATION_TYPE_HOST;
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(a, 2 * unit, &bad, 1));
	bad = rw;
	bad.location.id = 99;
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(a, 2 * unit, &bad, 1));
	bad.location.id = -1;
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(a, 2 * unit, &bad, 1));
	OK(cuMemGetAccess(&flags, &vmm_prop.location, a));
	EXPECT_EQ(CU_MEM_ACCESS_FLAGS_PROT_NONE, flags);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemGetAccess(NULL, &vmm_prop.location, a));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemGetAccess(&flags, NULL, a));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemGetAccess(&flags, &bad.location, a));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemGetAccess(&flags, &vmm_prop.location, a + 2 * unit));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree(a));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemGetAccess(&flags, &vmm_prop.location, plain));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemRetainAllocationHandle(&again, (void *)plain));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemRetainAllocationHandle(NULL, (void *)a));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(&prop, plain));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(NULL, h));
	OK(cuMemUnmap(a, 2 * unit));
	OK(cuMemRelease(h));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap(a, unit, 0, h, 0));
	OK(cuMemAddressFree(a, 4 * unit));
	OK(cuMemFreeHost(pinned));
	OK(cuMemFree(plain));
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
