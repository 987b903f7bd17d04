// SPDX-License-Identifier: Apache-2.0
/*
 * driver_copies.cu - memory by the driver API: each form of copy and memset moves or sets exactly its bytes;
 * between contexts, of rows, of the bytes of arrays, in batches.
 */
#include "driver.cuh"

static CUdevice dev;
static CUcontext ctx;

static std::vector<unsigned char> numbers(size_t n, unsigned int seed)
{
	std::vector<unsigned char> v(n);

	for (unsigned char &c : v)
		c = rnd(&seed);
	return v;
}

/* Between contexts of one device, which all know an address. */
static void peers(void)
{
	std::vector<unsigned char> h = numbers(4096, 1), back(4096, 0xee);
	CUdeviceptr a = room(4096, 0x11), b;
	CUcontext other;
	CUstream s;

	CU(cuMemcpyHtoD(a, h.data(), 4096));
	CU(cuCtxCreate(&other, NULL, 0, dev));
	b = room(8192, 0x22);
	CU(cuMemcpyPeer(b + 100, other, a + 50, ctx, 1000));
	CU(cuMemcpyDtoH(back.data(), b, 4096));
	for (int i = 0; i < 4096; i++)
		EXPECT_EQ(back[i], i < 100 || i >= 1100 ? 0x22 : h[i - 50]);
	CU_ERROR(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyPeer(b, NULL, a, ctx, 16));
	CU_INVALID(cuMemcpyPeer(b, other, a, ctx, 1 << 20));
	CU_INVALID(cuMemcpyPeer(0, other, a, ctx, 16));

	/* 16 x 5 x 3 bytes out of the middle of 32 x 8 x 4 */
	CUDA_MEMCPY3D_PEER p = {};
	p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	p.srcDevice = a;
	p.srcContext = ctx;
	p.srcPitch = 32;
	p.srcHeight = 8;
	p.srcXInBytes = 7;
	p.srcY = 2;
	p.srcZ = 1;
	p.dstDevice = b;
	p.dstContext = other;
	p.dstPitch = 64;
	p.dstHeight = 6;
	p.dstXInBytes = 1;
	p.WidthInBytes = 16;
	p.Height = 5;
	p.Depth = 3;
	for (int later = 0; later < 2; later++) {
		CU(cuMemsetD8(b, 0x33, 8192));
		CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
		CU(cuCtxSynchronize());
		CU(later ? cuMemcpy3DPeerAsync(&p, s) : cuMemcpy3DPeer(&p));
		CU(cuStreamSynchronize(s));
		CU(cuMemcpyDtoH(back.data(), b, 4096));
		for (int i = 0; i < 4096; i++) {
			int x = i % 64 - 1, y = i / 64 % 6, z = i / 384;
			bool in = x >= 0 && x < 16 && y < 5 && z < 3;

			EXPECT_EQ(back[i], in ? h[((z + 1) * 8 + y + 2) * 32 + x + 7] : 0x33);
		}
		CU(cuStreamDestroy(s));
	}
	CU_INVALID(cuMemcpy3DPeer(NULL));
	p.srcPitch = 8;
	CU_INVALID(cuMemcpy3DPeer(&p));
	p.srcPitch = 32;
	p.dstMemoryType = (CUmemorytype)17;
	CU_INVALID(cuMemcpy3DPeerAsync(&p, NULL));
	CU(cuCtxDestroy(other));
	CU(cuMemFree(a));
	sum_vector(back);
}

static void two_dimensions(void)
{
	std::vector<unsigned char> h = numbers(40 * 10, 2), back(40 * 10, 0xee);
	CUDA_MEMCPY2D up = {}, down = {};
	CUdeviceptr d;
	size_t pitch;

	CU(cuMemAllocPitch(&d, &pitch, 40, 10, 4));
	CU(cuMemsetD2D8(d, pitch, 0x44, 40, 10));
	up.srcMemoryType = CU_MEMORYTYPE_HOST;
	up.srcHost = h.data();
	up.srcPitch = 40;
	up.srcXInBytes = 3;
	up.srcY = 1;
	up.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	up.dstDevice = d;
	up.dstPitch = pitch;
	up.dstXInBytes = 5;
	up.WidthInBytes = 21;
	up.Height = 6;
	CU(cuMemcpy2D(&up));
	down.srcMemoryType = CU_MEMORYTYPE_DEVICE;
	down.srcDevice = d;
	down.srcPitch = pitch;
	down.dstMemoryType = CU_MEMORYTYPE_HOST;
	down.dstHost = back.data();
	down.dstPitch = 40;
	down.WidthInBytes = 40;
	down.Height = 10;
	CU(cuMemcpy2D(&down));
	for (int y = 0; y < 10; y++)
		for (int x = 0; x < 40; x++)
			EXPECT_EQ(back[y * 40 + x], y < 6 && x >= 5 && x < 26 ? h[(y + 1) * 40 + x - 2] :
				  0x44);
	CU_INVALID(cuMemcpy2D(NULL));
	up.srcPitch = 20;
	CU_INVALID(cuMemcpy2D(&up));
	up.srcPitch = 40;
	up.srcMemoryType = (CUmemorytype)0;
	CU_INVALID(cuMemcpy2D(&up));
	CU(cuMemFree(d));
	sum_vector(back);
}

/* Bytes of arrays: offsets are in bytes, and the elements beside them stay as they were. */
static void arrays(void)
{
	std::vector<unsigned char> h = numbers(1024, 3), back(1024, 0xee), want(1024);
	CUDA_ARRAY_DESCRIPTOR desc = { 256, 0, CU_AD_FORMAT_FLOAT, 1 }, got;
	CUdeviceptr d = room(1024, 0x55);
	CUarray a, b, plane;
	CUstream s;

	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuArrayCreate(&a, &desc));
	CU(cuArrayCreate(&b, &desc));
	POISON(got);
	CU(cuArrayGetDescriptor(&got, a));
	EXPECT(got.Width == 256 && !got.Height && got.Format == CU_AD_FORMAT_FLOAT &&
	       got.NumChannels == 1);
	CU(cuMemcpyHtoA(a, 0, want.data(), 1024));
	CU(cuMemcpyHtoA(a, 64, h.data(), 512));
	std::copy(h.begin(), h.begin() + 512, want.begin() + 64);
	CU(cuMemcpyAtoH(back.data(), a, 0, 1024));
	EXPECT(back == want);
	CU(cuMemcpyDtoA(a, 1000, d, 24));
	std::fill(want.begin() + 1000, want.end(), 0x55);
	CU(cuMemcpyAtoA(b, 0, a, 0, 1024));
	CU(cuMemcpyAtoA(b, 16, a, 64, 32));
	std::copy(h.begin(), h.begin() + 32, want.begin() + 16);
	CU(cuMemcpyAtoD(d, b, 0, 1000));
	std::fill(want.begin() + 1000, want.end(), 0x55);
	EXPECT(fetch<unsigned char>(d, 1024) == want);
	CU(cuMemcpyHtoAAsync(b, 4, h.data() + 4, 8, s));
	std::copy(h.begin() + 4, h.begin() + 12, want.begin() + 4);
	std::fill(back.begin(), back.end(), 0xee);
	CU(cuMemcpyAtoHAsync(back.data(), b, 0, 512, s));
	CU(cuStreamSynchronize(s));
	for (int i = 0; i < 1024; i++)
		EXPECT_EQ(back[i], i < 512 ? want[i] : 0xee);
	sum_vector(want);

	/* beyond the end, and not there */
	CU_INVALID(cuMemcpyHtoA(a, 1020, h.data(), 8));
	CU_INVALID(cuMemcpyAtoH(back.data(), a, 0, 1028));
	CU_INVALID(cuMemcpyAtoD(d, a, 1024, 4));
	CU_INVALID(cuMemcpyDtoA(a, 0, 0, 4));
	CU_INVALID(cuMemcpyAtoA(a, 0, b, 1000, 1000));
	CU_INVALID(cuArrayCreate(NULL, &desc));
	CU_INVALID(cuArrayCreate(&plane, NULL));
	CU_INVALID(cuArrayGetDescriptor(NULL, a));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuArrayGetDescriptor(&got, NULL));
	desc.NumChannels = 3;
	CU_INVALID(cuArrayCreate(&plane, &desc));
	CU_INVALID(cuArrayGetPlane(&plane, a, 0));	/* a format without planes */
	CU_INVALID(cuArrayGetPlane(NULL, a, 0));
	CU(cuArrayDestroy(a));
	CU(cuArrayDestroy(b));
	CU(cuStreamDestroy(s));
	CU(cuMemFree(d));
}

/* Each memset of 3 rows of 5 elements, or of 7 in a row: what lies around them stays. */
static void memsets(void)
{
	std::vector<unsigned char> want(1024), all;
	CUdeviceptr d = room(1024, 0);
	CUstream s;
	int form = 0;

	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	auto check = [&](int size, unsigned int v, bool rows) {
		std::fill(want.begin(), want.end(), 0x66);
		for (int y = 0; y < (rows ? 3 : 1); y++)
			for (int x = 0; x < (rows ? 5 : 7); x++)
				memcpy(&want[size * 3 + y * 64 + x * size], &v, size);
		CU(cuStreamSynchronize(s));
		all = fetch<unsigned char>(d, 1024);
		if (all != want)
			printf("FAIL memset %d\n", form);
		EXPECT(all == want);
		sum_vector(all);
		CU(cuMemsetD8(d, 0x66, 1024));
		CU(cuCtxSynchronize());
		form++;
	};
	CU(cuMemsetD8(d, 0x66, 1024));
	CU(cuMemsetD8(d + 3, 0x81, 7));
	check(1, 0x81, false);
	CU(cuMemsetD16(d + 6, 0x8182, 7));
	check(2, 0x8182, false);
	CU(cuMemsetD32(d + 12, 0x81828384, 7));
	check(4, 0x81828384, false);
	CU(cuMemsetD8Async(d + 3, 0x91, 7, s));
	check(1, 0x91, false);
	CU(cuMemsetD16Async(d + 6, 0x9192, 7, s));
	check(2, 0x9192, false);
	CU(cuMemsetD32Async(d + 12, 0x91929394, 7, s));
	check(4, 0x91929394, false);
	CU(cuMemsetD2D8(d + 3, 64, 0xa1, 5, 3));
	check(1, 0xa1, true);
	CU(cuMemsetD2D16(d + 6, 64, 0xa1a2, 5, 3));
	check(2, 0xa1a2, true);
	CU(cuMemsetD2D32(d + 12, 64, 0xa1a2a3a4, 5, 3));
	check(4, 0xa1a2a3a4, true);
	CU(cuMemsetD2D8Async(d + 3, 64, 0xb1, 5, 3, s));
	check(1, 0xb1, true);
	CU(cuMemsetD2D16Async(d + 6, 64, 0xb1b2, 5, 3, s));
	check(2, 0xb1b2, true);
	CU(cuMemsetD2D32Async(d + 12, 64, 0xb1b2b3b4, 5, 3, s));
	check(4, 0xb1b2b3b4, true);

	/* addresses and pitches of whole elements, rows that do not overlap, memory that is there */
	CU_INVALID(cuMemsetD16(d + 1, 1, 4));
	CU_INVALID(cuMemsetD32(d + 2, 1, 4));
	CU_INVALID(cuMemsetD16Async(d + 1, 1, 4, s));
	CU_INVALID(cuMemsetD2D16(d, 63, 1, 4, 2));
	CU_INVALID(cuMemsetD2D32(d, 66, 1, 4, 2));
	CU_INVALID(cuMemsetD2D32Async(d, 8, 1, 4, 2, s));
	CU_INVALID(cuMemsetD32(d, 1, 257));
	CU_INVALID(cuMemsetD2D16Async(d, 64, 1, 4, 17, s));
	CU_INVALID(cuMemsetD8(0, 1, 4));
	CU(cuStreamDestroy(s));
	CU(cuMemFree(d));
}

/* A box from memory into an array and on into another, in one batch in order. */
static void batch(void)
{
	std::vector<unsigned char> h = numbers(16 * 8 * 4, 4), back(16 * 8 * 4, 0xee);
	CUDA_ARRAY3D_DESCRIPTOR desc = { 4, 8, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4 };
	CUDA_MEMCPY3D_BATCH_OP op[3] = {};
	CUdeviceptr d = room(h.size());
	CUarray a, b;
	CUstream s;

	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuArray3DCreate(&a, &desc));
	CU(cuArray3DCreate(&b, &desc));
	CU(cuMemcpyHtoD(d, h.data(), h.size()));
	for (CUDA_MEMCPY3D_BATCH_OP &o : op) {
		o.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
		o.extent = { 3, 5, 1 };
		o.src.type = o.dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
	}
	op[0].src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
	op[0].src.op.ptr.ptr = d;
	op[0].src.op.ptr.rowLength = 4;
	op[0].src.op.ptr.layerHeight = 8;
	op[0].dst.op.array.array = a;
	op[0].dst.op.array.offset = { 1, 2, 0 };
	op[1].src.op.array = op[0].dst.op.array;
	op[1].dst.op.array.array = b;
	op[2].src.op.array.array = b;
	op[2].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
	op[2].dst.op.ptr.ptr = (CUdeviceptr)back.data();
	CU(cuMemcpy3DBatchAsync(3, op, 0, s));
	CU(cuStreamSynchronize(s));
	for (size_t i = 0; i < back.size(); i++)
		EXPECT_EQ(back[i], i < 60 ? h[i / 12 * 16 + i % 12] : 0xee);
	sum_vector(back);
	CU_INVALID(cuMemcpy3DBatchAsync(0, op, 0, s));
	CU_INVALID(cuMemcpy3DBatchAsync(3, NULL, 0, s));
	CU_INVALID(cuMemcpy3DBatchAsync(3, op, 1, s));
	CU_INVALID(cuMemcpy3DBatchAsync(3, op, 0, CU_STREAM_LEGACY));
	op[2].extent.height = 9;
	CU_INVALID(cuMemcpy3DBatchAsync(3, op, 0, s));
	op[2].extent.height = 5;
	op[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
	CU_INVALID(cuMemcpy3DBatchAsync(3, op, 0, s));
	CU(cuStreamSynchronize(s));
	CU(cuArrayDestroy(a));
	CU(cuArrayDestroy(b));
	CU(cuStreamDestroy(s));
	CU(cuMemFree(d));
}

/* An end that a call's name puts on the device must not be the program's own memory, registered or not. */
static void named(void)
{
	std::vector<unsigned char> own = numbers(8192, 9), other = own;
	CUdeviceptr d = room(4096, 0x44), mine[2];

	CU(cuMemHostRegister(own.data(), 4096, 0));
	mine[0] = (CUdeviceptr)own.data();
	mine[1] = (CUdeviceptr)other.data();
	for (CUdeviceptr m : mine) {
		if (getenv("SINGVGPU_SOCKET")) {	/* the soft device itself reaches all memory */
			CU_INVALID(cuMemcpyHtoD(m, other.data(), 16));
			CU_INVALID(cuMemcpyHtoDAsync(m, other.data(), 16, NULL));
			CU_INVALID(cuMemcpyDtoH(other.data(), m, 16));
			CU_INVALID(cuMemcpyDtoHAsync(other.data(), m, 16, NULL));
			CU_INVALID(cuMemcpyDtoD(d, m, 16));
			CU_INVALID(cuMemcpyDtoD(m, d, 16));
			CU_INVALID(cuMemcpyDtoDAsync(d, m, 16, NULL));
			CU_INVALID(cuMemcpyDtoDAsync(m, d, 16, NULL));
		}
		CU(cuMemcpyHtoD(m, other.data(), 0));
		CU(cuMemcpy(d, m, 16));
		CU(cuMemcpyHtoD(d, (void *)m, 4096));
		CU(cuMemcpyDtoH((void *)m, d, 4096));
	}
	EXPECT(own == other);
	CU(cuMemHostUnregister(own.data()));
	CU(cuMemFree(d));
}

int main()
{
	CHECK(cudaFree(0));
	CU(cuDeviceGet(&dev, 0));
	CU(cuCtxGetCurrent(&ctx));
	peers();
	two_dimensions();
	arrays();
	memsets();
	batch();
	named();
	CU(cuCtxSynchronize());
	return job_passed("driver_copies");
}
