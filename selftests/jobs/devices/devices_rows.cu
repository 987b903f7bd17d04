// SPDX-License-Identifier: Apache-2.0
/*
 * devices_rows.cu - rows, slices, arrays and memsets of two devices: each form of copy moves exactly its bytes from
 * one device to the other, in the order of its stream, and refuses what a device alone would refuse.
 */
#include "../driver/driver.cuh"

#include <sys/mman.h>

typedef std::vector<unsigned char> bytes;

static CUcontext ctx[2];
static CUstream stream[2];

static void on(int d)
{
	CHECK(cudaSetDevice(d));
	CU(cuCtxGetCurrent(&ctx[d]));
}

static bytes numbers(size_t n, unsigned int seed)
{
	bytes v(n);

	for (size_t i = 0; i < n; i += 8) {
		unsigned long long x = (i + seed) * 0x9e3779b97f4a7c15ull;

		memcpy(&v[i], &(x ^= x >> 29), n - i < 8 ? n - i : 8);
	}
	return v;
}

/* A block of rows in linear memory. */
struct block {
	int d;			/* device; -1: pageable, -2: pinned, -3: managed, -4: registered */
	size_t pitch, height, slices;
	bytes is;		/* what it has to contain */
	unsigned char *at;

	size_t len() const { return pitch * height * slices; }
	block(int where, size_t p, size_t h, size_t s, unsigned int seed)
		: d(where), pitch(p), height(h), slices(s), is(numbers(p * h * s, seed))
	{
		size_t room = (len() + 4095) & ~4095ul;

		if (d >= 0)
			on(d);
		if (d == -1)
			at = (unsigned char *)malloc(len());
		else if (d == -2)
			CHECK(cudaHostAlloc(&at, len(), cudaHostAllocPortable));
		else if (d == -3)
			CHECK(cudaMallocManaged(&at, len()));
		else if (d == -4) {
			at = (unsigned char *)mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			EXPECT(at != MAP_FAILED);
			CHECK(cudaHostRegister(at, room, cudaHostRegisterPortable));
		} else {
			CHECK(cudaMalloc(&at, len()));
		}
		if (d < 0) {
			memcpy(at, is.data(), len());
			return;
		}
		CHECK(cudaMemcpy(at, is.data(), len(), cudaMemcpyHostToDevice));
		CU(cuCtxSynchronize());		/* what comes next may be in another stream */
	}
	~block()
	{
		if (d == -1)
			free(at);
		else if (d == -2)
			cudaFreeHost(at);
		else if (d == -4) {
			cudaHostUnregister(at);
			munmap(at, (len() + 4095) & ~4095ul);
		} else {
			cudaFree(at);
		}
	}
	void check(const char *what)
	{
		bytes got(len());

		if (d >= 0) {
			on(d);
			CHECK(cudaMemcpy(got.data(), at, len(), cudaMemcpyDeviceToHost));
		} else {
			memcpy(got.data(), at, len());
		}
		for (size_t i = memcmp(got.data(), is.data(), len()) ? 0 : len(); i < len(); i++)
			if (got[i] != is[i]) {
				printf("FAIL %s: byte %zu of %zu is %d, not %d\n", what, i, len(), got[i], is[i]);
				exit(1);
			}
		sum_vector(got);
	}
};

struct shape {
	size_t w, h, d;		/* what is copied */
	size_t x, y, z;		/* from here; and to here, exchanged */
	size_t more;		/* bytes of the pitch behind it */
};

enum way { NOW, LATER_SRC, LATER_DST, PEER, PEER_LATER, THREAD, FLAT, FLAT_LATER, UNALIGNED, BATCH, WAYS };

static void set_side(CUmemorytype *type, const void **host, CUdeviceptr *dev, const block &b, bool unified)
{
	*type = unified ? CU_MEMORYTYPE_UNIFIED : b.d >= 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
	*host = b.at;
	*dev = (CUdeviceptr)b.at;
}

static CUDA_MEMCPY3D of(const block &to, const block &from, const shape &s, bool unified)
{
	CUDA_MEMCPY3D p = {};
	const void *host;

	set_side(&p.srcMemoryType, &p.srcHost, &p.srcDevice, from, unified);
	set_side(&p.dstMemoryType, &host, &p.dstDevice, to, unified);
	p.dstHost = (void *)host;
	p.srcPitch = from.pitch;
	p.srcHeight = from.height;
	p.dstPitch = to.pitch;
	p.dstHeight = to.height;
	p.srcXInBytes = p.dstY = s.x;
	p.dstXInBytes = p.srcY = s.y;
	p.srcZ = s.z;
	p.WidthInBytes = s.w;
	p.Height = s.h;
	p.Depth = s.d;
	return p;
}

static CUDA_MEMCPY2D flat(const CUDA_MEMCPY3D &p)
{
	CUDA_MEMCPY2D f = {};

	f.srcMemoryType = p.srcMemoryType;
	f.srcHost = p.srcHost;
	f.srcDevice = p.srcDevice + p.srcZ * p.srcPitch * p.srcHeight;
	f.srcPitch = p.srcPitch;
	f.srcXInBytes = p.srcXInBytes;
	f.srcY = p.srcY;
	f.dstMemoryType = p.dstMemoryType;
	f.dstHost = p.dstHost;
	f.dstDevice = p.dstDevice;
	f.dstPitch = p.dstPitch;
	f.dstXInBytes = p.dstXInBytes;
	f.dstY = p.dstY;
	f.WidthInBytes = p.WidthInBytes;
	f.Height = p.Height;
	return f;
}

static CUDA_MEMCPY3D_PEER peer(const CUDA_MEMCPY3D &p, CUcontext to, CUcontext from)
{
	CUDA_MEMCPY3D_PEER q = {};

	q.srcMemoryType = p.srcMemoryType;
	q.srcHost = p.srcHost;
	q.srcDevice = p.srcDevice;
	q.srcContext = from;
	q.srcPitch = p.srcPitch;
	q.srcHeight = p.srcHeight;
	q.srcXInBytes = p.srcXInBytes;
	q.srcY = p.srcY;
	q.srcZ = p.srcZ;
	q.dstMemoryType = p.dstMemoryType;
	q.dstHost = p.dstHost;
	q.dstDevice = p.dstDevice;
	q.dstContext = to;
	q.dstPitch = p.dstPitch;
	q.dstHeight = p.dstHeight;
	q.dstXInBytes = p.dstXInBytes;
	q.dstY = p.dstY;
	q.WidthInBytes = p.WidthInBytes;
	q.Height = p.Height;
	q.Depth = p.Depth;
	return q;
}

static void batch(const CUDA_MEMCPY3D &p, const block &to, const block &from, CUstream s)
{
	CUDA_MEMCPY3D_BATCH_OP op = {};

	op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
	op.src.op.ptr.ptr = p.srcDevice + (p.srcZ * p.srcHeight + p.srcY) * p.srcPitch + p.srcXInBytes;
	op.src.op.ptr.rowLength = p.srcPitch;
	op.src.op.ptr.layerHeight = p.srcHeight;
	op.src.op.ptr.locHint.type = from.d >= 0 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
	op.src.op.ptr.locHint.id = from.d >= 0 ? from.d : 0;
	op.dst.op.ptr.ptr = p.dstDevice + p.dstY * p.dstPitch + p.dstXInBytes;
	op.dst.op.ptr.rowLength = p.dstPitch;
	op.dst.op.ptr.layerHeight = p.dstHeight;
	op.dst.op.ptr.locHint.type = to.d >= 0 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
	op.dst.op.ptr.locHint.id = to.d >= 0 ? to.d : 0;
	op.extent = { p.WidthInBytes, p.Height, p.Depth };
	op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	CU(cuMemcpy3DBatchAsync(1, &op, 0, s));
}

/* The bytes that a copy moves, on the host. */
static void expect(block &to, const block &from, const shape &s)
{
	for (size_t z = 0; z < s.d; z++)
		for (size_t y = 0; y < s.h; y++)
			memcpy(&to.is[(z * to.height + s.x + y) * to.pitch + s.y],
			       &from.is[((s.z + z) * from.height + s.y + y) * from.pitch + s.x], s.w);
}

static void one_copy(block &to, block &from, const shape &s, int way, int current)
{
	CUDA_MEMCPY3D p = of(to, from, s, way == UNALIGNED || way == BATCH || current);
	CUcontext from_ctx = ctx[from.d >= 0 ? from.d : 0], to_ctx = ctx[to.d >= 0 ? to.d : 0];
	CUDA_MEMCPY3D_PEER q = peer(p, to_ctx, from_ctx);
	CUstream use = stream[current], use_src = stream[from.d >= 0 ? from.d : current];
	CUDA_MEMCPY2D f = flat(p);

	if (p.srcMemoryType == CU_MEMORYTYPE_HOST)
		f.srcHost = from.at + s.z * from.pitch * from.height;
	on(current);
	if (s.d > 1 && way >= FLAT && way <= UNALIGNED)
		way = NOW;
	switch (way) {
	case NOW:
		CU(cuMemcpy3D(&p));
		break;
	case LATER_SRC:
		CU(cuMemcpy3DAsync(&p, use = use_src));
		break;
	case LATER_DST:
		CU(cuMemcpy3DAsync(&p, use = stream[to.d >= 0 ? to.d : current]));
		break;
	case PEER:
		CU(cuMemcpy3DPeer(&q));
		break;
	case PEER_LATER:
		CU(cuMemcpy3DPeerAsync(&q, use));
		break;
	case THREAD:
		CU(cuMemcpy3DAsync(&p, use = CU_STREAM_PER_THREAD));
		break;
	case FLAT:
		CU(cuMemcpy2D(&f));
		break;
	case FLAT_LATER:
		CU(cuMemcpy2DAsync(&f, use));
		break;
	case UNALIGNED:
		CU(cuMemcpy2DUnaligned(&f));
		break;
	case BATCH:
		batch(p, to, from, use);
	}
	CU(cuStreamSynchronize(use));
	expect(to, from, s);
}

static const shape shapes[] = {
	{ 64, 32, 1, 0, 0, 0, 0 },
	{ 13, 7, 5, 3, 5, 1, 11 },
	{ (3 << 20) + 40, 3, 1, 2, 1, 0, 24 },	/* a row is several pieces */
	{ 5000, 2200, 1, 0, 3, 0, 120 },	/* more pieces than slots */
	{ 300, 100, 100, 4, 2, 0, 0 },		/* pieces of slices */
};

/* Between the devices, either way, whichever is current. */
static void between(void)
{
	for (const shape &s : shapes)
		for (int way = 0; way < WAYS; way++) {
			int d = way & 1;
			block from(d, s.x + s.w + s.more, s.y + s.h, s.z + s.d, way * 2 + 1);
			block to(!d, s.y + s.w + s.more + 8, s.x + s.h, s.d, way * 2 + 2);

			one_copy(to, from, s, way, way % 3 & 1);
			to.check("a copy between devices");
			from.check("its source");
		}
}

/* Of the other device's memory: there, and to and from each kind of the host's. */
static void abroad(void)
{
	const int hosts[] = { 1, -1, -2, -3, -4 };
	const shape s[] = { { 1000, 70, 3, 8, 4, 1, 20 }, { 4000, 700, 1, 0, 2, 0, 96 } };

	for (int where : hosts)
		for (int way = 0; way < WAYS; way++) {
			const shape &h = s[way & 1];
			block dev(1, h.x + h.y + h.w + h.more, h.y + h.x + h.h, h.z + h.d, way + 50);
			block host(where, dev.pitch + 16, dev.height, dev.slices, way + 90);

			one_copy(host, dev, h, way, 0);
			one_copy(dev, host, { h.w - 9, h.h - 3, h.d, h.x, h.y, 0, 0 }, way, 0);
			host.check("a copy from another device to the host");
			dev.check("a copy from the host to another device");
		}
}

static CUarray array_on(int d, size_t w, size_t h, size_t depth, unsigned int channels)
{
	CUDA_ARRAY3D_DESCRIPTOR a = { w, h, depth, CU_AD_FORMAT_UNSIGNED_INT16, channels, 0 };
	CUarray out;

	on(d);
	CU(cuArray3DCreate(&out, &a));
	return out;
}

/* linear → array of one device → array of the other → linear, all of them crossings. */
static void arrays(void)
{
	const size_t w = 48, h = 20, depth = 6, row = w * 8;
	CUarray a[2] = { array_on(0, w, h, depth, 4), array_on(1, w, h, depth, 4) };
	CUarray flat[2] = { array_on(0, 100000, 0, 0, 4), array_on(1, 100000, 0, 0, 4) };
	CUDA_MEMCPY3D p = {};

	for (int d = 0; d < 2; d++) {
		block from(!d, row, h, depth, d + 7), to(d, row, h, depth, d + 17);

		on(d);
		p = of(to, from, { row, h, depth, 0, 0, 0, 0 }, true);
		p.dstMemoryType = CU_MEMORYTYPE_ARRAY;
		p.dstArray = a[d];
		CU(cuMemcpy3D(&p));
		p.srcMemoryType = CU_MEMORYTYPE_ARRAY;
		p.srcArray = a[d];
		p.dstArray = a[!d];
		on(!d);
		CU(cuMemcpy3DAsync(&p, stream[!d]));
		CU(cuStreamSynchronize(stream[!d]));
		p.srcArray = a[!d];
		p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
		CU(cuMemcpy3DAsync(&p, stream[d]));
		CU(cuStreamSynchronize(stream[d]));
		to.is = from.is;
		to.check("rows through arrays");

		/* part of one, from pageable memory, and back to pinned memory; the array is not here */
		block page(-1, row, h, depth, 33), pin(-2, row, h, depth, 34);
		p = of(to, page, { row / 2, h - 3, 2, 0, 0, 0, 0 }, false);
		p.dstMemoryType = CU_MEMORYTYPE_ARRAY;
		p.dstArray = a[d];
		p.dstXInBytes = 16;
		p.dstY = 3;
		p.dstZ = 1;
		on(!d);
		CU(cuMemcpy3D(&p));
		p = of(pin, to, { row, h, depth, 0, 0, 0, 0 }, false);
		p.srcMemoryType = CU_MEMORYTYPE_ARRAY;
		p.srcArray = a[d];
		CU(cuMemcpy3DAsync(&p, stream[!d]));
		CU(cuStreamSynchronize(stream[!d]));
		pin.is = from.is;
		for (size_t z = 0; z < 2; z++)
			for (size_t y = 0; y < h - 3; y++)
				memcpy(&pin.is[((z + 1) * h + y + 3) * row + 16], &page.is[(z * h + y) * row], row / 2);
		pin.check("a part of another device's array");
	}
	/* by byte */
	{
		const size_t len = 8 * 99000;
		block from(0, len, 1, 1, 71), to(1, len, 1, 1, 72);

		on(0);
		CU(cuMemcpyDtoA(flat[1], 0, (CUdeviceptr)from.at, len));
		CU(cuMemcpyAtoA(flat[0], 0, flat[1], 0, len));
		CU(cuMemcpyAtoD((CUdeviceptr)to.at, flat[0], 0, len));
		to.is = from.is;
		to.check("an array's bytes");
		CU(cuMemcpyAtoH(to.is.data(), flat[1], 80, len - 80));
		EXPECT(!memcmp(to.is.data(), &from.is[80], len - 80));
		on(1);
		CU_INVALID(cuMemcpyAtoD((CUdeviceptr)to.at, flat[0], 0, len + 8));
	}
	for (int d = 0; d < 2; d++) {
		CU(cuArrayDestroy(a[d]));
		CU(cuArrayDestroy(flat[d]));
	}
}

static void memsets(void)
{
	const size_t pitch = 512, h = 40;
	block b(1, pitch, h, 1, 5);
	CUdeviceptr at = (CUdeviceptr)b.at;
	auto rows = [&](size_t first, size_t len, size_t n, const void *v, size_t e) {
		for (size_t y = 0; y < n; y++)
			for (size_t x = 0; x < len; x++)
				b.is[(first / pitch + y) * pitch + first % pitch + x] = ((const char *)v)[x % e];
	};
	unsigned int v = 0x12345678;

	on(0);
	CU(cuMemsetD8(at + 3, 0x77, 90));
	rows(3, 90, 1, "\x77", 1);
	CU(cuMemsetD16(at + pitch, 0x5678, 45));
	rows(pitch, 90, 1, &v, 2);
	CU(cuMemsetD32(at + 2 * pitch, v, 30));
	rows(2 * pitch, 120, 1, &v, 4);
	CU(cuMemsetD2D8(at + 5 * pitch + 1, pitch, 0x66, 33, 4));
	rows(5 * pitch + 1, 33, 4, "\x66", 1);
	CU(cuMemsetD2D16(at + 10 * pitch + 2, pitch, 0x5678, 33, 4));
	rows(10 * pitch + 2, 66, 4, &v, 2);
	CU(cuMemsetD2D32(at + 15 * pitch + 4, pitch, v, 33, 4));
	rows(15 * pitch + 4, 132, 4, &v, 4);
	CU(cuCtxSynchronize());
	CU(cuMemsetD8Async(at + 20 * pitch, 0x11, pitch, stream[0]));
	rows(20 * pitch, pitch, 1, "\x11", 1);
	CU(cuMemsetD2D8Async(at + 22 * pitch, pitch, 0x22, 20, 3, CU_STREAM_PER_THREAD));
	rows(22 * pitch, 20, 3, "\x22", 1);
	CU(cuMemsetD2D32Async(at + 30 * pitch, pitch, v, 5, 3, stream[1]));
	rows(30 * pitch, 20, 3, &v, 4);
	CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	CU(cuStreamSynchronize(stream[0]));
	CU(cuStreamSynchronize(stream[1]));
	b.check("memsets of another device's memory");
	on(0);
	CU_INVALID(cuMemsetD8(at, 0, pitch * h + 1));
	CU_INVALID(cuMemsetD16(at + 1, 0, 4));
	CU_INVALID(cuMemsetD2D8(at, 8, 0, 9, 2));
	CU_INVALID(cuMemsetD2D8(at, pitch, 0, 9, h + 1));
	CU(cuMemsetD2D8(at, pitch, 0, 0, 4));
}

/* Takes its time, so that what does not wait for it comes too early. */
__global__ void slowly(int *p, int n, int v)
{
	int x = v;

	for (int i = 0; i < n; i++)
		x = x * 1664525 + 1013904223;
	*p = v + (x == 1 ? 1 : 0);
}

/*
 * A copy waits for its stream, a memset too, and what comes later waits for them. cuMemcpy3DPeer comes after
 * what the default streams of both devices have.
 */
static void in_order(void)
{
	const size_t pitch = 40000, h = 600;
	block a(0, pitch, h, 1, 1), b(1, pitch, h, 1, 2);
	int *host;

	CHECK(cudaHostAlloc(&host, 4096, cudaHostAllocPortable));
	for (int k = 1; k <= 3; k++) {
		on(0);
		slowly<<<1, 1, 0, stream[0]>>>((int *)a.at + 5, 2000000, k);
		CHECK(cudaMemcpy2DAsync(b.at, pitch, a.at, pitch, pitch, h, cudaMemcpyDefault, stream[0]));
		CHECK(cudaMemset2DAsync(a.at, pitch, 0, pitch, h, stream[0]));
		CHECK(cudaMemcpyAsync(host, b.at + 20, 4, cudaMemcpyDefault, stream[0]));
		CHECK(cudaMemcpyAsync(host + 1, a.at + 20, 4, cudaMemcpyDefault, stream[0]));
		CHECK(cudaMemset2DAsync(b.at, pitch, k + 1, pitch, 1, stream[0]));
		CHECK(cudaMemcpyAsync(host + 2, b.at + 20, 4, cudaMemcpyDefault, stream[0]));
		CHECK(cudaStreamSynchronize(stream[0]));
		EXPECT_EQ(host[0], k);
		EXPECT_EQ(host[1], 0);
		EXPECT_EQ(host[2], (k + 1) * 0x01010101);
	}
	for (int k = 1; k <= 3; k++) {
		CUDA_MEMCPY3D p = of(b, a, { 64, 2, 1, 0, 0, 0, 0 }, false);
		CUDA_MEMCPY3D_PEER q = peer(p, ctx[1], ctx[0]);

		on(0);
		slowly<<<1, 1>>>((int *)a.at, 3000000, k);
		on(1);
		CU(cuMemcpy3DPeer(&q));
		CHECK(cudaMemcpy(host, b.at, 4, cudaMemcpyDefault));
		EXPECT_EQ(*host, k);
	}
	CHECK(cudaFreeHost(host));
}

__global__ void bump(unsigned char *p, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i]++;
}

static void CUDART_CB flip(void *arg)
{
	unsigned char *p = (unsigned char *)arg;

	for (int i = 0; i < 4096; i++)
		p[i] ^= 0x55;
}

/* A graph's copies and memsets of the other device's memory come in its order, at each launch anew. */
static void captured(void)
{
	const size_t pitch = 4096, h = 300;
	block a(0, pitch, h, 1, 21), b(1, pitch, h, 1, 22), c(0, pitch, h, 1, 23), page(-1, pitch, 1, 1, 24);
	shape all = { pitch, h, 1, 0, 0, 0, 0 };
	CUDA_MEMCPY3D p = of(b, a, all, true);
	cudaGraphExec_t x;
	cudaStream_t s = stream[0];
	cudaGraph_t g;

	on(0);
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(cudaLaunchHostFunc(s, flip, page.at));
	CHECK(cudaMemcpyAsync(a.at, page.at, pitch, cudaMemcpyHostToDevice, s));
	bump<<<16, 256, 0, s>>>(a.at, 4096);
	CU(cuMemcpy3DAsync(&p, s));					/* a → b */
	CHECK(cudaMemsetAsync(a.at, 0x31, pitch, s));
	CHECK(cudaMemset2DAsync(b.at + 2 * pitch, pitch, 0x32, 100, 3, s));
	CHECK(cudaMemsetAsync(b.at + 8 * pitch, 0x33, 64, s));
	CHECK(cudaMemcpyAsync(c.at, b.at, pitch * 20, cudaMemcpyDefault, s));
	bump<<<16, 256, 0, s>>>(c.at, 4096);
	CHECK(cudaMemcpyAsync(b.at + 30 * pitch, page.at, pitch, cudaMemcpyDefault, s));	/* pageable → b */
	CHECK(cudaMemcpyAsync(b.at + 40 * pitch, b.at + pitch, pitch, cudaMemcpyDefault, s));
	CHECK(cudaMemcpy2DAsync(page.at, pitch, b.at, pitch, 1000, 1, cudaMemcpyDefault, s));	/* b → pageable */
	CHECK(cudaStreamEndCapture(s, &g));
	CHECK(cudaGraphInstantiate(&x, g, 0));
	CHECK(cudaGraphDestroy(g));
	for (int k = 0; k < 3; k++) {
		CHECK(cudaGraphLaunch(x, s));
		CHECK(cudaGraphLaunch(x, s));
		CHECK(cudaStreamSynchronize(s));
		for (int twice = 0; twice < 2; twice++) {
			flip(page.is.data());
			memcpy(a.is.data(), page.is.data(), pitch);
			for (size_t i = 0; i < 4096; i++)
				a.is[i]++;
			expect(b, a, all);
			memset(a.is.data(), 0x31, pitch);
			for (int y = 0; y < 3; y++)
				memset(&b.is[(2 + y) * pitch], 0x32, 100);
			memset(&b.is[8 * pitch], 0x33, 64);
			memcpy(c.is.data(), b.is.data(), pitch * 20);
			for (size_t i = 0; i < 4096; i++)
				c.is[i]++;
			memcpy(&b.is[30 * pitch], page.is.data(), pitch);
			memcpy(&b.is[40 * pitch], &b.is[pitch], pitch);
			memcpy(page.is.data(), b.is.data(), 1000);
		}
		a.check("a graph's source");
		b.check("the other device's rows, copied and set by a graph");
		c.check("rows that a graph has fetched");
		page.check("the program's memory");
		on(0);
	}
	CHECK(cudaGraphExecDestroy(x));
}

/* Nodes that are added: branches, arrays, a node that is turned off, one that gets other rows. */
static void added(void)
{
	const size_t pitch = 512, h = 40;
	block a(0, pitch, h, 1, 31), b(1, pitch, h, 1, 32), to(0, pitch, h, 1, 33), page(-1, pitch, h, 1, 34);
	CUarray ar = array_on(1, pitch / 8, h, 0, 4);
	CUDA_MEMSET_NODE_PARAMS m = {};
	CUDA_MEMCPY3D p, q, r, back;
	CUgraphNode n[5];
	CUgraphExec x;
	CUgraph g;

	on(0);
	CU(cuGraphCreate(&g, 0));
	p = of(b, a, { 100, 10, 1, 0, 0, 0, 0 }, true);
	CU(cuGraphAddMemcpyNode(&n[0], g, NULL, 0, &p, ctx[0]));
	q = of(b, a, { pitch, h, 1, 0, 0, 0, 0 }, true);
	q.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	q.dstArray = ar;
	CU(cuGraphAddMemcpyNode(&n[1], g, NULL, 0, &q, ctx[0]));
	r = of(to, b, { pitch, h, 1, 0, 0, 0, 0 }, true);
	r.srcMemoryType = CU_MEMORYTYPE_ARRAY;
	r.srcArray = ar;
	CU(cuGraphAddMemcpyNode(&n[2], g, &n[1], 1, &r, ctx[0]));
	m.dst = (CUdeviceptr)b.at + 20 * pitch;
	m.pitch = pitch;
	m.value = 0x1234;
	m.elementSize = 2;
	m.width = 50;
	m.height = 5;
	CU(cuGraphAddMemsetNode(&n[3], g, n, 3, &m, ctx[0]));
	back = of(page, b, { 300, 4, 1, 0, 0, 0, 0 }, true);
	CU(cuGraphAddMemcpyNode(&n[4], g, &n[3], 1, &back, ctx[0]));
	CU(cuGraphInstantiate(&x, g, 0));
	CU(cuGraphLaunch(x, stream[0]));
	CU(cuStreamSynchronize(stream[0]));
	auto set = [&](int row) {
		for (int y = 0; y < 5; y++)
			for (int i = 0; i < 100; i++)
				b.is[(row + y) * pitch + i] = i & 1 ? 0x12 : 0x34;
	};
	expect(b, a, { 100, 10, 1, 0, 0, 0, 0 });
	set(20);
	to.is = a.is;
	expect(page, b, { 300, 4, 1, 0, 0, 0, 0 });
	page.check("rows for the program");
	b.check("nodes that were added");
	to.check("an array in a graph");

	on(0);
	p = of(b, a, { 200, 3, 1, 0, 0, 0, 0 }, true);
	p.dstY = 12;
	CU(cuGraphExecMemcpyNodeSetParams(x, n[0], &p, ctx[0]));
	CU(cuGraphNodeSetEnabled(x, n[2], 0));
	m.dst = (CUdeviceptr)b.at + 30 * pitch;
	CU(cuGraphExecMemsetNodeSetParams(x, n[3], &m, ctx[0]));
	back.srcY = 10;
	back.dstY = 20;
	CU(cuGraphExecMemcpyNodeSetParams(x, n[4], &back, ctx[0]));
	CHECK(cudaMemset(to.at, 0x77, to.len()));
	CU(cuCtxSynchronize());
	CU(cuGraphLaunch(x, stream[0]));
	CU(cuStreamSynchronize(stream[0]));
	for (int y = 0; y < 3; y++)
		memcpy(&b.is[(12 + y) * pitch], &a.is[y * pitch], 200);
	set(30);
	memset(to.is.data(), 0x77, to.len());
	for (int y = 0; y < 4; y++)
		memcpy(&page.is[(20 + y) * pitch], &b.is[(10 + y) * pitch], 300);
	page.check("other rows for the program");
	b.check("nodes that were changed");
	to.check("a node that was turned off");
	CU(cuGraphExecDestroy(x));
	CU(cuGraphDestroy(g));
	CU(cuArrayDestroy(ar));
}

/* Where the job's next pinned memory of 8 MiB is. */
static char *next_pinned(void)
{
	char *p;

	CHECK(cudaMallocHost(&p, 8 << 20));
	CHECK(cudaFreeHost(p));
	return p;
}

/* The memory through which a copy goes is its own until it has ended, and free then. */
static void slots(void)
{
	const size_t row = 1 << 20;
	block a(0, row, 12, 1, 41), b(1, row, 12, 1, 42), c(0, 4096, 1, 1, 43), d(1, 4096, 1, 1, 44);
	unsigned char *pinned[24];
	cudaStream_t other;
	char *first;
	int *gate;

	on(0);
	CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	CHECK(cudaHostAlloc(&gate, 4096, cudaHostAllocPortable));
	*gate = 0;
	CU(cuStreamWaitValue32(stream[0], (CUdeviceptr)gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
	CHECK(cudaMemcpyAsync(b.at, a.at, a.len(), cudaMemcpyDefault, stream[0]));
	CHECK(cudaMemcpyAsync(d.at, c.at, c.len(), cudaMemcpyDefault, other));
	CHECK(cudaStreamSynchronize(other));
	for (unsigned char *&p : pinned) {
		CHECK(cudaMallocHost(&p, 2 * row));
		memset(p, 0x5a, 2 * row);
	}
	*(volatile int *)gate = 1;
	CHECK(cudaStreamSynchronize(stream[0]));
	for (unsigned char *p : pinned) {
		for (size_t i = 0; i < 2 * row; i++)
			EXPECT_EQ(p[i], 0x5a);
		CHECK(cudaFreeHost(p));
	}
	b.is = a.is;
	d.is = c.is;
	b.check("a copy beside other ones");
	d.check("a copy that overtakes");

	first = next_pinned();
	for (int k = 0; k < 40; k++) {
		on(0);
		CHECK(cudaMemcpyAsync(b.at, a.at, 8 * row, cudaMemcpyDefault, stream[0]));
		CHECK(cudaStreamSynchronize(stream[0]));
	}
	EXPECT(next_pinned() < first + 100 * row);
	CHECK(cudaFreeHost(gate));
	CHECK(cudaStreamDestroy(other));
}

/* Said by whichever device is current, and as one device alone says it. */
static void errors(void)
{
	block a(0, 256, 16, 2, 1), b(1, 256, 16, 2, 2);
	CUarray ar = array_on(1, 16, 16, 0, 1);
	CUDA_MEMCPY3D p, good = of(b, a, { 64, 8, 2, 0, 0, 0, 0 }, false);
	const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .location = { CU_MEM_LOCATION_TYPE_DEVICE, 1 } };
	const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 1 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	unsigned char *gone, *large;
	CUmemGenericAllocationHandle mem;
	CUdeviceptr half;
	CUstream of_second;
	CUcontext second;
	CUgraphExec x;
	CUgraphNode n;
	size_t room;
	CUgraph g;

	/* Behind the proxy a graph with the other device's memory runs in streams of its context; a driver may run it in others. */
	on(0);
	CU(cuGraphCreate(&g, 0));
	CU(cuGraphAddMemcpyNode(&n, g, NULL, 0, &good, ctx[0]));
	CU(cuGraphInstantiate(&x, g, 0));
	CU(cuCtxCreate(&second, NULL, 0, 0));
	CU(cuStreamCreate(&of_second, CU_STREAM_NON_BLOCKING));
	if (getenv("SINGVGPU_SOCKET")) {
		EXPECT(cuGraphLaunch(x, stream[1]) != CUDA_SUCCESS);
		EXPECT(cuGraphLaunch(x, of_second) != CUDA_SUCCESS);
	}
	CU(cuCtxDestroy(second));
	on(0);
	CU(cuGraphLaunch(x, stream[0]));
	CU(cuStreamSynchronize(stream[0]));
	CU(cuGraphExecDestroy(x));
	CU(cuGraphDestroy(g));

	/* Half of a range has memory. */
	on(1);
	CU(cuMemGetAllocationGranularity(&room, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	CU(cuMemAddressReserve(&half, 2 * room, 0, 0, 0));
	CU(cuMemCreate(&mem, room, &prop, 0));
	CU(cuMemMap(half, room, 0, mem, 0));
	CU(cuMemSetAccess(half, room, &access, 1));
	on(0);
	CHECK(cudaMalloc(&large, 2 * room));
	CU(cuMemcpy(half, (CUdeviceptr)large, room));
	CU_INVALID(cuMemcpy(half, (CUdeviceptr)large, room + 1));
	CU_INVALID(cuMemcpy((CUdeviceptr)large, half + 1, room));
	/* The program's own memory is no end that a call's name puts on a device. */
	bytes own(64);
	CU_INVALID(cuMemcpyDtoD(half, (CUdeviceptr)own.data(), 16));
	CU_INVALID(cuMemcpyDtoD((CUdeviceptr)own.data(), half, 16));
	CU(cuMemcpyHtoD(half, own.data(), 16));
	CHECK(cudaFree(large));
	on(1);
	CU(cuMemUnmap(half, room));
	CU(cuMemRelease(mem));
	CU(cuMemAddressFree(half, 2 * room));

	CU(cuGraphCreate(&g, 0));
	on(1);
	CHECK(cudaMalloc(&gone, 4 << 20));
	CHECK(cudaFree(gone));
	for (int d = 0; d < 2; d++) {
		on(d);
		CU(cuMemcpy3D(&good));
		if (getenv("SINGVGPU_SOCKET")) {	/* a driver may look at the beginnings alone */
			CU_INVALID(cuMemcpy((CUdeviceptr)b.at, (CUdeviceptr)a.at, b.len() + 1));
			CU_INVALID(cuMemcpy((CUdeviceptr)b.at + 1, (CUdeviceptr)a.at, b.len()));
			CU_INVALID(cuMemcpy((CUdeviceptr)b.at, (CUdeviceptr)a.at + 1, b.len()));
		}
		(p = good).srcPitch = 63;
		CU_INVALID(cuMemcpy3D(&p));
		(p = good).dstPitch = 63;
		CU_INVALID(cuMemcpy3DAsync(&p, stream[d]));
		(p = good).dstHeight = 7;
		CU_INVALID(cuMemcpy3D(&p));
		(p = good).Depth = 3;
		CU_INVALID(cuMemcpy3D(&p));
		(p = good).dstZ = 1;
		CU_INVALID(cuMemcpy3D(&p));
		(p = good).dstDevice = 0;
		CU_INVALID(cuMemcpy3D(&p));
		(p = good).dstDevice = (CUdeviceptr)gone;
		CU_INVALID(cuMemcpy3D(&p));
		CU_INVALID(cuGraphAddMemcpyNode(&n, g, NULL, 0, &p, ctx[d]));
		p.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
		CU_INVALID(cuGraphAddMemcpyNode(&n, g, NULL, 0, &p, ctx[d]));
		CU_INVALID(cuMemcpy3D(&p));
		CU_INVALID(cuMemcpy(p.dstDevice, p.srcDevice, 64));
		CU_INVALID(cuMemsetD8(p.dstDevice, 0, 64));
		(p = good).dstMemoryType = (CUmemorytype)9;
		CU_INVALID(cuMemcpy3D(&p));
		p = good;
		p.dstMemoryType = CU_MEMORYTYPE_ARRAY;
		p.dstArray = ar;
		CU_INVALID(cuMemcpy3D(&p));	/* 64 bytes are more than a row, 2 slices more than one */
		p.WidthInBytes = 32;
		p.Depth = 1;
		CU(cuMemcpy3D(&p));
		p.dstXInBytes = 1;
		CU_INVALID(cuMemcpy3D(&p));
		(p = good).Height = 0;
		CU(cuMemcpy3D(&p));
		CUDA_MEMCPY3D_PEER q = peer(good, ctx[1], NULL);
		CU_ERROR(CUDA_ERROR_INVALID_CONTEXT, cuMemcpy3DPeer(&q));
	}
	expect(b, a, { 64, 8, 2, 0, 0, 0, 0 });
	b.check("refused copies have changed nothing");
	CU(cuArrayDestroy(ar));
	CU(cuGraphDestroy(g));
}

int main()
{
	int n;

	CHECK(cudaGetDeviceCount(&n));
	EXPECT(n >= 2);
	for (int d = 0; d < 2; d++) {
		on(d);
		CHECK(cudaFree(NULL));
		on(d);
		CU(cuStreamCreate(&stream[d], CU_STREAM_NON_BLOCKING));
	}
	between();
	abroad();
	arrays();
	memsets();
	in_order();
	captured();
	added();
	slots();
	errors();
	return job_passed("devices_rows");
}
