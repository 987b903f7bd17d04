// SPDX-License-Identifier: Apache-2.0
/*
 * textures.cu - texture and surface objects: formats, filters, address modes, layers and volumes.
 *
 * Linear filters have weights of nine bits on real devices, so filtered values have a tolerance.
 */
#include "../job.cuh"

__global__ void lookup1(cudaTextureObject_t t, const float *at, float *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		out[i] = tex1D<float>(t, at[i]);
}

__global__ void fetch(cudaTextureObject_t t, int *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n) {
		int4 v = tex1Dfetch<int4>(t, i);

		out[i] = v.x + 2 * v.y + 3 * v.z + 4 * v.w;
	}
}

__global__ void lookup2(cudaTextureObject_t t, const float2 *at, float4 *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		out[i] = tex2D<float4>(t, at[i].x, at[i].y);
}

__global__ void lookup3(cudaTextureObject_t t, const float3 *at, float *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		out[i] = tex3D<float>(t, at[i].x, at[i].y, at[i].z);
}

__global__ void layers(cudaTextureObject_t t, unsigned short *out, int w, int h)
{
	int x = threadIdx.x, y = blockIdx.x, l = blockIdx.y;

	if (x < w)
		out[(l * h + y) * w + x] = tex2DLayered<unsigned short>(t, x + 0.5f, y + 0.5f, l);
}

__global__ void surface(cudaSurfaceObject_t s, int w, int h)
{
	int x = threadIdx.x, y = blockIdx.x;
	uchar4 v;

	if (x < w) {
		surf2Dread(&v, s, x * 4, y);
		v = make_uchar4(v.w, v.z, v.y, v.x + 1);
		surf2Dwrite(v, s, x * 4, y);
	}
}

template <typename T> static cudaArray_t array_of(const std::vector<T> &v, int w, int h, int flags = 0)
{
	cudaChannelFormatDesc f = cudaCreateChannelDesc<T>();
	cudaArray_t a;

	CHECK(cudaMallocArray(&a, &f, w, h, flags));
	CHECK(cudaMemcpy2DToArray(a, 0, 0, v.data(), w * sizeof(T), w * sizeof(T), h ? h : 1,
				  cudaMemcpyHostToDevice));
	return a;
}

static cudaTextureObject_t texture(cudaArray_t a, cudaTextureAddressMode mode, cudaTextureFilterMode f,
				   bool normal, cudaTextureReadMode read = cudaReadModeElementType)
{
	cudaResourceDesc r = {};
	cudaTextureDesc t = {};
	cudaTextureObject_t o;

	r.resType = cudaResourceTypeArray;
	r.res.array.array = a;
	t.addressMode[0] = t.addressMode[1] = t.addressMode[2] = mode;
	t.filterMode = f;
	t.normalizedCoords = normal;
	t.readMode = read;
	CHECK(cudaCreateTextureObject(&o, &r, &t, NULL));
	return o;
}

static int wrap(int i, int n, cudaTextureAddressMode m)
{
	if (m == cudaAddressModeWrap)
		return (i % n + n) % n;
	if (m == cudaAddressModeMirror) {
		i = (i % (2 * n) + 2 * n) % (2 * n);
		return i < n ? i : 2 * n - 1 - i;
	}
	if (m == cudaAddressModeBorder && (i < 0 || i >= n))
		return -1;
	return i < 0 ? 0 : i >= n ? n - 1 : i;
}

/* Linear memory of 200 int4 at base, which it fills. */
static void linear_memory(char *base)
{
	const size_t size = 200 * sizeof(int4), half = 2048;
	cudaResourceDesc r = {};
	cudaTextureDesc td = {};
	cudaTextureObject_t t;
	std::vector<int4> q(200);
	int *o;

	for (int i = 0; i < 200; i++)
		q[i] = make_int4(i, -i, i * i, 7);
	CHECK(cudaMemcpy(base, q.data(), half, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(base + half, (char *)q.data() + half, size - half, cudaMemcpyHostToDevice));
	r.resType = cudaResourceTypeLinear;
	r.res.linear.devPtr = base;
	r.res.linear.desc = cudaCreateChannelDesc<int4>();
	r.res.linear.sizeInBytes = size;
	CHECK(cudaCreateTextureObject(&t, &r, &td, NULL));
	CHECK(cudaMalloc(&o, 800));
	fetch<<<2, 128>>>(t, o, 200);
	CHECK(cudaGetLastError());
	std::vector<int> h = to_host(o, 200);
	for (int i = 0; i < 200; i++)
		EXPECT_EQ(h[i], i - 2 * i + 3 * i * i + 28);
	CHECK(cudaDestroyTextureObject(t));
	CHECK(cudaFree(o));
}

static void one_dimension(void)
{
	const int w = 50, n = 300;
	std::vector<float> v(w), at(n), got;
	unsigned int seed = 130;
	float *out;

	for (float &x : v)
		x = rndf(&seed);
	for (int i = 0; i < n; i++)		/* away from the edges between texels */
		at[i] = (floorf(rndf(&seed) * 2 * w) + 0.25f + 0.5f * (i & 1)) ;
	cudaArray_t a = array_of(v, w, 0);
	CHECK(cudaMalloc(&out, n * 4));
	for (cudaTextureAddressMode m : { cudaAddressModeClamp, cudaAddressModeBorder,
					  cudaAddressModeWrap, cudaAddressModeMirror })
		for (int linear = 0; linear < 2; linear++) {
			bool normal = m == cudaAddressModeWrap || m == cudaAddressModeMirror;
			cudaTextureObject_t t = texture(a, m, linear ? cudaFilterModeLinear :
								       cudaFilterModePoint, normal);
			std::vector<float> x = at;

			if (normal)
				for (float &f : x)
					f /= w;
			lookup1<<<(n + 63) / 64, 64>>>(t, to_device(x), out, n);
			CHECK(cudaGetLastError());
			got = to_host(out, n);
			for (int i = 0; i < n; i++) {
				auto texel = [&](int k) {
					k = wrap(k, w, m);
					return k < 0 ? 0.0f : v[k];
				};
				float c = at[i] - 0.5f, k = floorf(c), f = c - k;
				float want = linear ? texel(k) * (1 - f) + texel(k + 1) * f :
						      texel((int)floorf(at[i]));

				EXPECT_NEAR(got[i], want, linear ? 0.02 : 0);
			}
			sum_vector(got);
			CHECK(cudaDestroyTextureObject(t));
		}
	CHECK(cudaFreeArray(a));
	CHECK(cudaFree(out));
	char *base;
	CHECK(cudaMalloc(&base, 200 * sizeof(int4)));
	linear_memory(base);
	CHECK(cudaFree(base));
}

/* Linear memory that goes on into the next allocation, as in NVIDIA's convolutionFFT2D. */
static void two_allocations(void)
{
	const size_t size = 4 << 20;
	char *a, *b;

	CHECK(cudaMalloc(&a, size));
	CHECK(cudaMalloc(&b, size));
	if (a > b)
		std::swap(a, b);
	if (b == a + size)	/* else there is nothing to see */
		linear_memory(b - 2048);
	CHECK(cudaFree(a));
	CHECK(cudaFree(b));
}

/* Bytes read as floats from 0 to 1, four channels, points between texels. */
static void two_dimensions(void)
{
	const int w = 33, h = 21, n = 400;
	std::vector<uchar4> v(w * h);
	std::vector<float2> at(n);
	unsigned int seed = 131;
	float4 *out;

	for (uchar4 &c : v)
		c = make_uchar4(rnd(&seed), rnd(&seed), rnd(&seed), rnd(&seed));
	for (float2 &p : at)
		p = make_float2((rndf(&seed) * 1.2f + 1) * w / 2, (rndf(&seed) * 1.2f + 1) * h / 2);
	cudaArray_t a = array_of(v, w, h);
	cudaTextureObject_t t = texture(a, cudaAddressModeClamp, cudaFilterModeLinear, false,
					cudaReadModeNormalizedFloat);
	CHECK(cudaMalloc(&out, n * sizeof(*out)));
	lookup2<<<(n + 63) / 64, 64>>>(t, to_device(at), out, n);
	CHECK(cudaGetLastError());
	std::vector<float4> got = to_host(out, n);
	for (int i = 0; i < n; i++) {
		float cx = at[i].x - 0.5f, cy = at[i].y - 0.5f, kx = floorf(cx), ky = floorf(cy);
		float fx = cx - kx, fy = cy - ky, want[4] = {};

		for (int d = 0; d < 4; d++) {
			int x = wrap(kx + (d & 1), w, cudaAddressModeClamp);
			int y = wrap(ky + (d >> 1), h, cudaAddressModeClamp);
			float g = (d & 1 ? fx : 1 - fx) * (d >> 1 ? fy : 1 - fy) / 255;
			uchar4 c = v[y * w + x];

			want[0] += g * c.x, want[1] += g * c.y, want[2] += g * c.z, want[3] += g * c.w;
		}
		EXPECT_NEAR(got[i].x, want[0], 0.02);
		EXPECT_NEAR(got[i].y, want[1], 0.02);
		EXPECT_NEAR(got[i].z, want[2], 0.02);
		EXPECT_NEAR(got[i].w, want[3], 0.02);
	}
	sum_vector(got);
	CHECK(cudaDestroyTextureObject(t));
	CHECK(cudaFreeArray(a));

	/* the same picture as a surface, changed in place */
	a = array_of(v, w, h, cudaArraySurfaceLoadStore);
	cudaResourceDesc r = {};
	cudaSurfaceObject_t s;
	r.resType = cudaResourceTypeArray;
	r.res.array.array = a;
	CHECK(cudaCreateSurfaceObject(&s, &r));
	surface<<<h, 64>>>(s, w, h);
	CHECK(cudaGetLastError());
	std::vector<uchar4> back(w * h);
	CHECK(cudaMemcpy2DFromArray(back.data(), w * 4, a, 0, 0, w * 4, h, cudaMemcpyDeviceToHost));
	for (int i = 0; i < w * h; i++)
		EXPECT(back[i].x == v[i].w && back[i].y == v[i].z && back[i].z == v[i].y &&
		       back[i].w == (unsigned char)(v[i].x + 1));
	CHECK(cudaDestroySurfaceObject(s));
	CHECK(cudaFreeArray(a));
}

static cudaArray_t volume_of(const void *data, cudaChannelFormatDesc f, int elem, int w, int h, int d,
			     int flags)
{
	cudaArray_t a;
	cudaMemcpy3DParms p = {};

	CHECK(cudaMalloc3DArray(&a, &f, make_cudaExtent(w, h, d), flags));
	p.srcPtr = make_cudaPitchedPtr((void *)data, w * elem, w, h);
	p.dstArray = a;
	p.extent = make_cudaExtent(w, h, d);
	p.kind = cudaMemcpyHostToDevice;
	CHECK(cudaMemcpy3D(&p));
	return a;
}

static void three_dimensions(void)
{
	const int w = 9, h = 7, d = 5, n = 200;
	std::vector<float> v(w * h * d), got;
	std::vector<float3> at(n);
	unsigned int seed = 132;
	float *out;

	for (float &x : v)
		x = rndf(&seed);
	for (float3 &p : at)
		p = make_float3((rndf(&seed) + 1) * w / 2, (rndf(&seed) + 1) * h / 2,
				(rndf(&seed) + 1) * d / 2);
	cudaArray_t a = volume_of(v.data(), cudaCreateChannelDesc<float>(), 4, w, h, d, 0);
	cudaTextureObject_t t = texture(a, cudaAddressModeClamp, cudaFilterModeLinear, false);
	CHECK(cudaMalloc(&out, n * 4));
	lookup3<<<(n + 63) / 64, 64>>>(t, to_device(at), out, n);
	CHECK(cudaGetLastError());
	got = to_host(out, n);
	for (int i = 0; i < n; i++) {
		float c[3] = { at[i].x - 0.5f, at[i].y - 0.5f, at[i].z - 0.5f }, want = 0;

		for (int k = 0; k < 8; k++) {
			float g = 1;
			int q[3], size[3] = { w, h, d };

			for (int j = 0; j < 3; j++) {
				float b = floorf(c[j]), f = c[j] - b;

				g *= k >> j & 1 ? f : 1 - f;
				q[j] = wrap(b + (k >> j & 1), size[j], cudaAddressModeClamp);
			}
			want += g * v[(q[2] * h + q[1]) * w + q[0]];
		}
		EXPECT_NEAR(got[i], want, 0.02);
	}
	sum_vector(got);
	CHECK(cudaDestroyTextureObject(t));
	CHECK(cudaFreeArray(a));

	std::vector<unsigned short> u(w * h * d);
	unsigned short *o;
	for (size_t i = 0; i < u.size(); i++)
		u[i] = i * 77;
	a = volume_of(u.data(), cudaCreateChannelDesc<unsigned short>(), 2, w, h, d, cudaArrayLayered);
	t = texture(a, cudaAddressModeClamp, cudaFilterModePoint, false);
	CHECK(cudaMalloc(&o, u.size() * 2));
	layers<<<dim3(h, d), 32>>>(t, o, w, h);
	CHECK(cudaGetLastError());
	EXPECT(to_host(o, u.size()) == u);
	CHECK(cudaDestroyTextureObject(t));
	CHECK(cudaFreeArray(a));
}

int main()
{
	one_dimension();
	two_allocations();
	two_dimensions();
	three_dimensions();
	return job_passed("textures");
}
