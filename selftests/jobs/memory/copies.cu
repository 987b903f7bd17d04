// SPDX-License-Identifier: Apache-2.0
/*
 * copies.cu - copies of every size, alignment, kind and shape, between every sort of memory.
 */
#include "../job.cuh"

#define MAX (64 << 20)
#define EDGE 64		/* bytes before and behind a copy, which must not change */

static unsigned char *src, *dst, *pinned_src, *pinned_dst, *dev_a, *dev_b;

static bool clean(const unsigned char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != 0xee)
			return false;
	return true;
}

/* Host to device, device to device, device to host; each at its own alignment. */
static void round_trip(size_t n, int off, bool pinned, bool async, cudaStream_t s)
{
	unsigned char *from = (pinned ? pinned_src : src) + EDGE + off;
	unsigned char *to = (pinned ? pinned_dst : dst) + EDGE + (off * 5 & 15);
	unsigned char *a = dev_a + EDGE + (off * 3 & 15), *b = dev_b + EDGE + (off * 7 & 15);

	memset(to - EDGE, 0xee, n + 2 * EDGE);
	CHECK(cudaMemsetAsync(b - EDGE, 0xee, n + 2 * EDGE, s));
	if (async) {
		CHECK(cudaMemcpyAsync(a, from, n, cudaMemcpyHostToDevice, s));
		CHECK(cudaMemcpyAsync(b, a, n, cudaMemcpyDeviceToDevice, s));
		CHECK(cudaMemcpyAsync(to, b, n, cudaMemcpyDeviceToHost, s));
		CHECK(cudaStreamSynchronize(s));
	} else {
		CHECK(cudaStreamSynchronize(s));
		CHECK(cudaMemcpy(a, from, n, cudaMemcpyDefault));
		CHECK(cudaMemcpy(b, a, n, cudaMemcpyDeviceToDevice));
		CHECK(cudaMemcpy(to, b, n, cudaMemcpyDefault));
	}
	EXPECT(!memcmp(from, to, n));
	EXPECT(clean(to - EDGE, EDGE) && clean(to + n, EDGE));
	CHECK(cudaMemcpy(to, b - EDGE, EDGE, cudaMemcpyDeviceToHost));
	EXPECT(clean(to, EDGE));
	CHECK(cudaMemcpy(to, b + n, EDGE, cudaMemcpyDeviceToHost));
	EXPECT(clean(to, EDGE));
}

static void sizes(cudaStream_t s)
{
	static const size_t list[] = { 1, 2, 3, 7, 8, 15, 31, 33, 63, 64, 100, 255, 1000, 4095, 4096,
		4097, 65535, 65536, 65537, 262147, (1 << 20) + 3, (4 << 20) - 1 };

	for (size_t n : list)
		for (int off = 0; off < 16; off += n < 5000 ? 1 : 7) {
			round_trip(n, off, false, false, s);
			round_trip(n, off, true, true, s);
			round_trip(n, off, false, true, s);
		}
	round_trip(MAX, 0, true, true, s);
	round_trip(MAX - 5, 5, false, false, s);
	CHECK(cudaMemcpy(dev_a, NULL, 0, cudaMemcpyHostToDevice));	/* nothing, of nowhere */
}

/* From and to rows of other lengths; memset of a part; cudaMallocPitch. */
static void two_dimensions(cudaStream_t s)
{
	const size_t w = 333, h = 57, hp = 400;
	std::vector<unsigned char> in(hp * h), out(hp * h, 0xee), packed(w * h);
	unsigned char *p;
	size_t pitch;
	unsigned int seed = 9;

	for (unsigned char &c : in)
		c = rnd(&seed);
	CHECK(cudaMallocPitch(&p, &pitch, w, h));
	EXPECT(pitch >= w);
	CHECK(cudaMemset2D(p, pitch, 0x11, w, h));
	CHECK(cudaMemcpy2DAsync(p, pitch, in.data(), hp, w, h, cudaMemcpyHostToDevice, s));
	CHECK(cudaMemset2DAsync(p + 10 * pitch + 20, pitch, 0x77, 30, 5, s));
	CHECK(cudaMemcpy2DAsync(out.data(), hp, p, pitch, w, h, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamSynchronize(s));
	for (size_t y = 0; y < h; y++)
		for (size_t x = 0; x < hp; x++) {
			bool set = y >= 10 && y < 15 && x >= 20 && x < 50;
			int want = x >= w ? 0xee : set ? 0x77 : in[y * hp + x];

			EXPECT_EQ(out[y * hp + x], want);
		}
	CHECK(cudaMemcpy2D(dev_b, w, p, pitch, w, h, cudaMemcpyDeviceToDevice));
	CHECK(cudaMemcpy(packed.data(), dev_b, w * h, cudaMemcpyDeviceToHost));
	for (size_t y = 0; y < h; y++)
		EXPECT(!memcmp(&packed[y * w], &out[y * hp], w));
	EXPECT_ERROR(cudaErrorInvalidPitchValue,
		     cudaMemcpy2D(p, pitch, in.data(), w - 1, w, h, cudaMemcpyHostToDevice));
	cudaGetLastError();
	sum_vector(packed);
	CHECK(cudaFree(p));
}

/* A box out of a volume into another place of another volume. */
static void three_dimensions(cudaStream_t s)
{
	const size_t w = 40, h = 30, d = 20;
	std::vector<int> in(w * h * d), out(w * h * d, -1);
	cudaPitchedPtr v;
	cudaMemcpy3DParms p = {};
	unsigned int seed = 10;

	for (int &x : in)
		x = rnd(&seed);
	CHECK(cudaMalloc3D(&v, make_cudaExtent(w * 4, h, d)));
	CHECK(cudaMemset3D(v, 0, make_cudaExtent(w * 4, h, d)));
	p.srcPtr = make_cudaPitchedPtr(in.data(), w * 4, w, h);
	p.srcPos = make_cudaPos(5 * 4, 3, 2);
	p.dstPtr = v;
	p.dstPos = make_cudaPos(7 * 4, 1, 4);
	p.extent = make_cudaExtent(20 * 4, 11, 9);
	p.kind = cudaMemcpyHostToDevice;
	CHECK(cudaMemcpy3DAsync(&p, s));
	p = {};
	p.srcPtr = v;
	p.dstPtr = make_cudaPitchedPtr(out.data(), w * 4, w, h);
	p.extent = make_cudaExtent(w * 4, h, d);
	p.kind = cudaMemcpyDeviceToHost;
	CHECK(cudaMemcpy3DAsync(&p, s));
	CHECK(cudaStreamSynchronize(s));
	for (int z = 0; z < (int)d; z++)
		for (int y = 0; y < (int)h; y++)
			for (int x = 0; x < (int)w; x++) {
				bool box = x >= 7 && x < 27 && y >= 1 && y < 12 && z >= 4 && z < 13;
				int from = ((z - 4 + 2) * h + y - 1 + 3) * w + x - 7 + 5;

				EXPECT_EQ(out[(z * h + y) * w + x], box ? in[from] : 0);
			}
	sum_vector(out);
	CHECK(cudaFree(v.ptr));
}

__global__ void twice(int *p, int n)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		p[i] *= 2;
}

/* Copies of both directions beside kernels, on several streams, through pinned memory. */
static void overlapped(void)
{
	const int chunks = 16, n = 1 << 16;
	cudaStream_t s[3];
	int *in = (int *)pinned_src, *out = (int *)pinned_dst, *d = (int *)dev_a;

	for (cudaStream_t &x : s)
		CHECK(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
	for (int i = 0; i < chunks * n; i++)
		in[i] = i * 7;
	memset(out, 0, chunks * n * sizeof(int));
	for (int c = 0; c < chunks; c++) {
		cudaStream_t q = s[c % 3];

		CHECK(cudaMemcpyAsync(d + c * n, in + c * n, n * 4, cudaMemcpyHostToDevice, q));
		twice<<<8, 256, 0, q>>>(d + c * n, n);
		CHECK(cudaMemcpyAsync(out + c * n, d + c * n, n * 4, cudaMemcpyDeviceToHost, q));
	}
	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < chunks * n; i++)
		EXPECT_EQ(out[i], i * 14);
	sum_bytes(out, chunks * n * sizeof(int));
	for (cudaStream_t &x : s)
		CHECK(cudaStreamDestroy(x));
}

/* Small pageable sources may be changed as soon as an asynchronous copy has returned. */
static void staged(cudaStream_t s)
{
	std::vector<int> v(16384);
	int *d = (int *)dev_a, got[2];

	for (int i = 0; i < 50; i++) {
		std::fill(v.begin(), v.end(), i);
		CHECK(cudaMemcpyAsync(d + i * 16384, v.data(), 65536, cudaMemcpyHostToDevice, s));
	}
	CHECK(cudaStreamSynchronize(s));
	for (int i = 0; i < 50; i++) {
		CHECK(cudaMemcpy(got, d + i * 16384, 4, cudaMemcpyDeviceToHost));
		CHECK(cudaMemcpy(got + 1, d + i * 16384 + 16383, 4, cudaMemcpyDeviceToHost));
		EXPECT(got[0] == i && got[1] == i);
	}
}

/* Memsets of each width, on odd places; copies of host to host; overlapping is not promised. */
static void others(cudaStream_t s)
{
	unsigned char got[64];

	CHECK(cudaMemset(dev_a, 0xab, 64));
	CHECK(cudaMemset(dev_a + 3, 0xcd, 7));
	CHECK(cudaMemcpy(got, dev_a, 64, cudaMemcpyDeviceToHost));
	for (int i = 0; i < 64; i++)
		EXPECT_EQ(got[i], i >= 3 && i < 10 ? 0xcd : 0xab);
	CHECK(cudaMemcpy(dst, src, 100000, cudaMemcpyHostToHost));
	EXPECT(!memcmp(dst, src, 100000));
	CHECK(cudaMemcpyAsync(pinned_dst, pinned_src, 100000, cudaMemcpyDefault, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(!memcmp(pinned_dst, pinned_src, 100000));
	CHECK(cudaMemcpyPeerAsync(dev_b, 0, dev_a, 0, 64, s));
	CHECK(cudaMemcpyAsync(got, dev_b, 64, cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT(got[0] == 0xab && got[3] == 0xcd);
}

int main()
{
	cudaStream_t s;
	unsigned int seed = 8;

	src = (unsigned char *)malloc(MAX + 4 * EDGE);
	dst = (unsigned char *)malloc(MAX + 4 * EDGE);
	CHECK(cudaMallocHost(&pinned_src, MAX + 4 * EDGE));
	CHECK(cudaMallocHost(&pinned_dst, MAX + 4 * EDGE));
	CHECK(cudaMalloc(&dev_a, MAX + 4 * EDGE));
	CHECK(cudaMalloc(&dev_b, MAX + 4 * EDGE));
	for (int i = 0; i < MAX + 4 * EDGE; i += 4) {
		unsigned int r = rnd(&seed) * 2654435761u;

		memcpy(src + i, &r, 4);
	}
	memcpy(pinned_src, src, MAX + 4 * EDGE);
	CHECK(cudaStreamCreate(&s));
	sizes(s);
	two_dimensions(s);
	three_dimensions(s);
	overlapped();
	staged(s);
	others(s);
	CHECK(cudaFreeHost(pinned_src));
	CHECK(cudaFreeHost(pinned_dst));
	CHECK(cudaFree(dev_a));
	CHECK(cudaFree(dev_b));
	return job_passed("copies");
}
