// SPDX-License-Identifier: Apache-2.0
/*
 * mem_shapes.cu - random boxes copied between all kinds of memory, compared with a model in a
 * table: pageable, pinned, registered, managed, pitched and plain device memory, arrays of two and
 * three dimensions; synchronously and in stream order.
 */
#include "../job.cuh"

#include <sys/mman.h>

/* Every volume has these dimensions. */
#define W 200
#define H 37
#define D 9
#define BOXES 600

enum kind { PAGEABLE, PINNED, REGISTERED, ODD, MANAGED, DEVICE, PITCHED, ARRAY2, ARRAY3, KINDS };

struct volume {
	kind k;
	cudaPitchedPtr p;
	cudaArray_t a;
	char *mem;
	std::vector<unsigned char> want;	/* W * H * D, packed */
};

static int depth(const volume &v)
{
	return v.k == ARRAY2 ? 1 : D;
}

static cudaStream_t stream;

static void create(volume &v, kind k)
{
	cudaChannelFormatDesc f = cudaCreateChannelDesc<unsigned char>();
	cudaExtent all = { W, H, D };
	size_t pitch = 256, n = pitch * H * D;

	v.k = k;
	v.a = NULL;
	v.want.assign(W * H * D, 0);
	switch (k) {
	case PAGEABLE:
		v.mem = (char *)malloc(n);
		break;
	case PINNED:
		CHECK(cudaMallocHost(&v.mem, n));
		break;
	case REGISTERED:
		n = (n + 4095) / 4096 * 4096;
		v.mem = (char *)mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		EXPECT(v.mem != MAP_FAILED);
		CHECK(cudaHostRegister(v.mem, n, 0));
		break;
	case ODD:
		v.mem = (char *)malloc(n + 5) + 5;
		CHECK(cudaHostRegister(v.mem, n, 0));
		break;
	case MANAGED:
		CHECK(cudaMallocManaged(&v.mem, n));
		break;
	case DEVICE:
		CHECK(cudaMalloc(&v.mem, n));
		break;
	case PITCHED:
		CHECK(cudaMalloc3D(&v.p, all));
		EXPECT(v.p.pitch >= W && v.p.pitch % 32 == 0);
		CHECK(cudaMemset3D(v.p, 0, all));
		return;
	case ARRAY2:
		CHECK(cudaMallocArray(&v.a, &f, W, H));
		break;
	default:
		CHECK(cudaMalloc3DArray(&v.a, &f, all));
	}
	if (v.a) {
		std::vector<unsigned char> zero(W * H * depth(v));
		cudaMemcpy3DParms c = {};

		c.srcPtr = make_cudaPitchedPtr(zero.data(), W, W, H);
		c.dstArray = v.a;
		c.extent = { W, H, (size_t)depth(v) };
		c.kind = cudaMemcpyHostToDevice;
		CHECK(cudaMemcpy3D(&c));
		return;
	}
	v.p = make_cudaPitchedPtr(v.mem, pitch, W, H);
	if (k == DEVICE)
		CHECK(cudaMemset(v.mem, 0, n));
	else
		memset(v.mem, 0, n);
}

static void copy(volume &to, volume &from, unsigned int *seed)
{
	cudaMemcpy3DParms c = {};
	int w = 1 + rnd(seed) % W, h = 1 + rnd(seed) % H, d = 1 + rnd(seed) % D;
	int fx, fy, fz, tx, ty, tz;

	if (rnd(seed) % 8 == 0)
		w = W, h = H;
	if (to.k == ARRAY2 || from.k == ARRAY2)
		d = 1;
	fx = rnd(seed) % (W - w + 1);
	fy = rnd(seed) % (H - h + 1);
	fz = rnd(seed) % (depth(from) - d + 1);
	tx = rnd(seed) % (W - w + 1);
	ty = rnd(seed) % (H - h + 1);
	tz = rnd(seed) % (depth(to) - d + 1);
	c.srcPos = make_cudaPos(fx, fy, fz);
	c.dstPos = make_cudaPos(tx, ty, tz);
	c.extent = make_cudaExtent(w, h, d);
	c.kind = cudaMemcpyDefault;
	if (from.a)
		c.srcArray = from.a;
	else
		c.srcPtr = from.p;
	if (to.a)
		c.dstArray = to.a;
	else
		c.dstPtr = to.p;
	if (rnd(seed) % 2) {
		CHECK(cudaMemcpy3D(&c));
	} else {
		CHECK(cudaMemcpy3DAsync(&c, stream));
		CHECK(cudaStreamSynchronize(stream));
	}
	for (int z = 0; z < d; z++)
		for (int y = 0; y < h; y++)
			memmove(&to.want[((tz + z) * H + ty + y) * W + tx],
				&from.want[((fz + z) * H + fy + y) * W + fx], w);
}

static void compare(volume &v)
{
	std::vector<unsigned char> got(W * H * D);
	cudaMemcpy3DParms c = {};

	if (v.a)
		c.srcArray = v.a;
	else
		c.srcPtr = v.p;
	c.dstPtr = make_cudaPitchedPtr(got.data(), W, W, H);
	c.extent = make_cudaExtent(W, H, depth(v));
	c.kind = cudaMemcpyDefault;
	CHECK(cudaMemcpy3D(&c));
	for (int i = 0; i < W * H * depth(v); i++)
		if (got[i] != v.want[i]) {
			printf("FAIL kind %d at %d: %d, not %d\n", v.k, i, got[i], v.want[i]);
			exit(1);
		}
	sum_vector(got);
}

/* Larger than any piece that is passed on at once, and rows larger than one, too. */
static void large(void)
{
	const size_t w = 5000003, h = 3, pitch = 5000192;
	std::vector<unsigned char> a(w * h), b(w * h);
	unsigned int seed = 5;
	char *d;

	for (unsigned char &x : a)
		x = rnd(&seed);
	CHECK(cudaMalloc(&d, pitch * h));
	CHECK(cudaMemcpy2D(d, pitch, a.data(), w, w, h, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy2D(b.data(), w, d, pitch, w, h, cudaMemcpyDeviceToHost));
	EXPECT(a == b);
	CHECK(cudaMemcpy2DAsync(b.data() + 1, w, d + 1, pitch, 1, h, cudaMemcpyDeviceToHost, stream));
	CHECK(cudaStreamSynchronize(stream));
	EXPECT(a == b);
	CHECK(cudaFree(d));
}

static void mistakes(volume &dev, volume &arr)
{
	cudaMemcpy3DParms c = {};
	char buf[64];

	EXPECT(cudaMemcpy2D(dev.p.ptr, 256, buf, 32, 33, 2, cudaMemcpyHostToDevice) != cudaSuccess);
	c.srcPtr = dev.p;
	c.dstArray = arr.a;
	c.kind = cudaMemcpyDefault;
	c.dstPos = make_cudaPos(W - 1, 0, 0);
	c.extent = make_cudaExtent(2, 1, 1);
	EXPECT_ERROR(cudaErrorInvalidValue, cudaMemcpy3D(&c));
	c.dstPos = make_cudaPos(0, 0, D);
	c.extent = make_cudaExtent(1, 1, 1);
	EXPECT_ERROR(cudaErrorInvalidValue, cudaMemcpy3D(&c));
	(void)cudaGetLastError();
	c.dstPos = make_cudaPos(0, 0, 0);
	c.extent = make_cudaExtent(0, 1, 1);
	CHECK(cudaMemcpy3D(&c));		/* nothing */
}

int main(void)
{
	std::vector<volume> v(2 * KINDS);
	unsigned int seed = 77;

	CHECK(cudaStreamCreate(&stream));
	for (int i = 0; i < 2 * KINDS; i++) {
		create(v[i], (kind)(i % KINDS));
		if (v[i].k != PAGEABLE)
			continue;
		for (int z = 0; z < D; z++)
			for (int y = 0; y < H; y++)
				for (int x = 0; x < W; x++)
					v[i].want[(z * H + y) * W + x] =
						v[i].mem[(z * H + y) * 256 + x] = rnd(&seed);
	}
	for (int i = 0; i < BOXES; i++) {
		int to = rnd(&seed) % v.size(), from = rnd(&seed) % v.size();

		if (to == from)
			continue;
		copy(v[to], v[from], &seed);
		if (i % 50 == 0)
			compare(v[to]);
	}
	for (volume &x : v)
		compare(x);
	large();
	mistakes(v[DEVICE], v[ARRAY3]);
	for (volume &x : v)
		if (x.a)
			CHECK(cudaFreeArray(x.a));
	return job_passed("mem_shapes");
}
