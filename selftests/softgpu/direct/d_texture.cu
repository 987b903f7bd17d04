// SPDX-License-Identifier: Apache-2.0
/*
 * d_texture.cu - texture and surface objects over linear memory and arrays.
 */
#include "direct.cuh"

#include <cmath>

__global__ void fetch1d(cudaTextureObject_t t, float *out, int n)
{
	int i = threadIdx.x;

	if (i < n)
		out[i] = tex1Dfetch<float>(t, i);
}

__global__ void sample2d(cudaTextureObject_t t, float *out, int w, int h, float dx, float dy)
{
	int x = threadIdx.x, y = threadIdx.y;

	if (x < w && y < h)
		out[y * w + x] = tex2D<float>(t, x + dx, y + dy);
}

__global__ void invert(cudaSurfaceObject_t s, int w, int h)
{
	int x = threadIdx.x, y = threadIdx.y;
	float v;

	if (x < w && y < h) {
		surf2Dread(&v, s, x * 4, y);
		surf2Dwrite(-v, s, x * 4, y);
	}
}

/* ---- modes, layers, levels: each against the host's own idea of it ---- */

__global__ void at(cudaTextureObject_t t, const float2 *where, float *out, int n)
{
	int i = threadIdx.x;

	if (i < n)
		out[i] = tex2D<float>(t, where[i].x, where[i].y);
}

__global__ void bytes(cudaTextureObject_t t, float4 *out)
{
	out[threadIdx.x] = tex2D<float4>(t, threadIdx.x + 0.5f, 0.5f);
}

__global__ void raw_bytes(cudaTextureObject_t t, uchar4 *out)
{
	out[threadIdx.x] = tex2D<uchar4>(t, threadIdx.x, 0);
}

__global__ void layers(cudaTextureObject_t t, float *out)
{
	out[threadIdx.x] = tex2DLayered<float>(t, 1.5f, 0.5f, threadIdx.x);
}

__global__ void volume(cudaTextureObject_t t, float *out)
{
	out[threadIdx.x] = tex3D<float>(t, 1 + threadIdx.x * 0.25f, 1.25f, 0.75f + threadIdx.x * 0.125f);
}

__global__ void cube(cudaTextureObject_t t, float *out)
{
	const float v[6][3] = { { 1 }, { -1 }, { 0, 1 }, { 0, -1 }, { 0, 0, 1 }, { 0, 0, -1 } };
	int i = threadIdx.x;

	out[i] = texCubemap<float>(t, v[i][0], v[i][1], v[i][2]);
}

__global__ void levels(cudaTextureObject_t t, float *out)
{
	out[threadIdx.x] = tex2DLod<float>(t, 0.3f, 0.3f, threadIdx.x * 0.5f);
}

__global__ void four(cudaTextureObject_t t, float4 *out)
{
	*out = tex2Dgather<float4>(t, 2.0f, 3.0f, 0);
}

__global__ void edges(cudaSurfaceObject_t s, int *out, int w)
{
	int i = (int)threadIdx.x - 2, v;

	surf3Dread(&v, s, i * 4, 0, 1, cudaBoundaryModeClamp);
	out[threadIdx.x] = v;
	surf3Dread(&v, s, i * 4, 0, 1, cudaBoundaryModeZero);
	out[64 + threadIdx.x] = v;
	surf3Dwrite(1000 + i, s, i * 4, 1, 0, cudaBoundaryModeZero);
}

static float *dev, got[4096];

static void fetch_results(int n)
{
	CHECK(cudaGetLastError());
	CHECK(cudaMemcpy(got, dev, n * 4, cudaMemcpyDeviceToHost));
}

static cudaTextureObject_t texture(cudaArray_t a, cudaMipmappedArray_t m, cudaTextureDesc td)
{
	cudaResourceDesc r = {};
	cudaTextureObject_t t;

	r.resType = a ? cudaResourceTypeArray : cudaResourceTypeMipmappedArray;
	if (a)
		r.res.array.array = a;
	else
		r.res.mipmap.mipmap = m;
	CHECK(cudaCreateTextureObject(&t, &r, &td, NULL));
	return t;
}

static cudaArray_t array3d(int w, int h, int d, unsigned int flags, const float *data)
{
	cudaChannelFormatDesc fmt = cudaCreateChannelDesc<float>();
	cudaMemcpy3DParms c = {};
	cudaArray_t a;

	CHECK(cudaMalloc3DArray(&a, &fmt, make_cudaExtent(w, h, d), flags));
	c.srcPtr = make_cudaPitchedPtr((void *)data, w * 4, w, h);
	c.dstArray = a;
	c.extent = make_cudaExtent(w, h, d ? d : 1);
	c.kind = cudaMemcpyHostToDevice;
	CHECK(cudaMemcpy3D(&c));
	return a;
}

static int wrapped(int i, int n, cudaTextureAddressMode m)
{
	if (m == cudaAddressModeWrap)
		return ((i % n) + n) % n;
	if (m == cudaAddressModeMirror) {
		i = ((i % (2 * n)) + 2 * n) % (2 * n);
		return i < n ? i : 2 * n - 1 - i;
	}
	return i < 0 ? 0 : i >= n ? n - 1 : i;
}

static void address_modes(void)
{
	const cudaTextureAddressMode modes[] = { cudaAddressModeWrap, cudaAddressModeMirror,
						 cudaAddressModeClamp, cudaAddressModeBorder };
	float img[4][8];
	float2 where[64], *d;
	cudaArray_t a;

	for (int i = 0; i < 32; i++)
		img[i / 8][i % 8] = i * 3 + 1;
	a = array3d(8, 4, 0, 0, img[0]);
	CHECK(cudaMalloc(&d, sizeof(where)));
	for (int i = 0; i < 64; i++)	/* centres of texels, from -2.5 to 2.5 images */
		where[i] = make_float2((i % 40 - 20 + 0.5f) / 8, (i % 23 - 11 + 0.5f) / 4);
	CHECK(cudaMemcpy(d, where, sizeof(where), cudaMemcpyHostToDevice));
	for (int m = 0; m < 4; m++) {
		cudaTextureDesc td = {};

		td.addressMode[0] = td.addressMode[1] = modes[m];
		td.normalizedCoords = 1;
		at<<<1, 64>>>(texture(a, NULL, td), d, dev, 64);
		fetch_results(64);
		for (int i = 0; i < 64; i++) {
			int x = i % 40 - 20, y = i % 23 - 11;
			bool out = x < 0 || x >= 8 || y < 0 || y >= 4;
			float want = modes[m] == cudaAddressModeBorder && out ? 0 :
				     img[wrapped(y, 4, modes[m])][wrapped(x, 8, modes[m])];

			EXPECT(got[i] == want);
		}
	}
}

static void formats(void)
{
	cudaChannelFormatDesc fmt = cudaCreateChannelDesc<uchar4>();
	uchar4 px[32], back[32];
	cudaTextureDesc td = {};
	cudaArray_t a;

	for (int i = 0; i < 32; i++)
		px[i] = make_uchar4(i, 255 - i, i * 8, 77);
	CHECK(cudaMallocArray(&a, &fmt, 32, 1));
	CHECK(cudaMemcpy2DToArray(a, 0, 0, px, sizeof(px), sizeof(px), 1, cudaMemcpyHostToDevice));
	td.readMode = cudaReadModeNormalizedFloat;
	bytes<<<1, 32>>>(texture(a, NULL, td), (float4 *)dev);
	fetch_results(128);
	for (int i = 0; i < 32; i++)
		EXPECT(got[4 * i] == i / 255.0f && got[4 * i + 1] == (255 - i) / 255.0f &&
		       got[4 * i + 2] == i * 8 / 255.0f && got[4 * i + 3] == 77 / 255.0f);
	td.readMode = cudaReadModeElementType;
	raw_bytes<<<1, 32>>>(texture(a, NULL, td), (uchar4 *)dev);
	CHECK(cudaMemcpy(back, dev, sizeof(back), cudaMemcpyDeviceToHost));
	EXPECT(!memcmp(back, px, sizeof(px)));
}

static void dimensions(void)
{
	float v[4 * 4 * 6];
	cudaTextureDesc td = {};
	cudaSurfaceObject_t s;
	cudaResourceDesc r = {};
	cudaArray_t a;

	for (int i = 0; i < 96; i++)
		v[i] = i;
	layers<<<1, 6>>>(texture(array3d(4, 4, 6, cudaArrayLayered, v), NULL, td), dev);
	fetch_results(6);
	for (int i = 0; i < 6; i++)
		EXPECT(got[i] == 16 * i + 1);
	cube<<<1, 6>>>(texture(array3d(4, 4, 6, cudaArrayCubemap, v), NULL, td), dev);
	fetch_results(6);
	for (int i = 0; i < 6; i++)	/* the middle of a face: one of four texels */
		EXPECT(got[i] >= 16 * i + 5 && got[i] <= 16 * i + 10);
	td.filterMode = cudaFilterModeLinear;
	td.addressMode[0] = td.addressMode[1] = td.addressMode[2] = cudaAddressModeClamp;
	volume<<<1, 8>>>(texture(array3d(4, 4, 6, 0, v), NULL, td), dev);
	fetch_results(8);
	for (int i = 0; i < 8; i++)	/* linear in each coordinate */
		EXPECT(fabsf(got[i] - (0.5f + i * 0.25f + 4 * 0.75f + 16 * (0.25f + i * 0.125f))) < 1e-4f);
	four<<<1, 1>>>(texture(array3d(4, 4, 0, cudaArrayTextureGather, v), NULL, td), (float4 *)dev);
	fetch_results(4);
	EXPECT(got[0] == 13 && got[1] == 14 && got[2] == 10 && got[3] == 9);

	a = array3d(4, 4, 6, cudaArraySurfaceLoadStore, v);
	r.resType = cudaResourceTypeArray;
	r.res.array.array = a;
	CHECK(cudaCreateSurfaceObject(&s, &r));
	edges<<<1, 8>>>(s, (int *)dev, 4);
	fetch_results(128);
	for (int i = 0; i < 8; i++) {
		int x = i - 2, c = x < 0 ? 0 : x > 3 ? 3 : x;

		EXPECT(got[i] == v[16 + c]);
		EXPECT(got[64 + i] == (c == x ? v[16 + x] : 0));
	}
}

static void mipmaps(void)
{
	cudaChannelFormatDesc fmt = cudaCreateChannelDesc<float>();
	cudaMipmappedArray_t m;
	cudaTextureDesc td = {};
	float v[64];

	CHECK(cudaMallocMipmappedArray(&m, &fmt, make_cudaExtent(8, 8, 0), 4));
	for (int l = 0; l < 4; l++) {
		cudaArray_t a;

		for (int i = 0; i < 64; i++)
			v[i] = 10 * (l + 1);
		CHECK(cudaGetMipmappedArrayLevel(&a, m, l));
		CHECK(cudaMemcpy2DToArray(a, 0, 0, v, (8 >> l) * 4, (8 >> l) * 4, 8 >> l,
					  cudaMemcpyHostToDevice));
	}
	td.normalizedCoords = 1;
	td.filterMode = td.mipmapFilterMode = cudaFilterModeLinear;
	td.maxMipmapLevelClamp = 3;
	levels<<<1, 8>>>(texture(NULL, m, td), dev);
	fetch_results(8);
	for (int i = 0; i < 8; i++)
		EXPECT(got[i] == fminf(10 + 5 * i, 40));
	td.mipmapFilterMode = cudaFilterModePoint;
	td.maxMipmapLevelClamp = 2;
	levels<<<1, 8>>>(texture(NULL, m, td), dev);
	fetch_results(8);
	for (int i = 0; i < 8; i++)
		EXPECT(got[i] == fminf(10 * ((i + 1) / 2 + 1), 30));
}

int main()
{
	const int w = 16, h = 8;
	float img[h][w], got[h][w], *d, *lin;
	cudaChannelFormatDesc fmt = cudaCreateChannelDesc<float>();
	cudaArray_t a;

	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++)
			img[y][x] = x * 10 + y;
	CHECK(cudaMalloc(&dev, sizeof(::got)));
	address_modes();
	formats();
	dimensions();
	mipmaps();
	CHECK(cudaMalloc(&d, sizeof(img)));
	CHECK(cudaMalloc(&lin, sizeof(img)));
	CHECK(cudaMemcpy(lin, img, sizeof(img), cudaMemcpyHostToDevice));

	cudaResourceDesc r = {};
	cudaTextureDesc td = {};
	cudaTextureObject_t t;
	r.resType = cudaResourceTypeLinear;
	r.res.linear.devPtr = lin;
	r.res.linear.desc = fmt;
	r.res.linear.sizeInBytes = sizeof(img);
	td.readMode = cudaReadModeElementType;
	CHECK(cudaCreateTextureObject(&t, &r, &td, NULL));
	fetch1d<<<1, 128>>>(t, d, 128);
	CHECK(cudaGetLastError());
	CHECK(cudaMemcpy(got, d, sizeof(got), cudaMemcpyDeviceToHost));
	EXPECT(!memcmp(img, got, sizeof(img)));
	CHECK(cudaDestroyTextureObject(t));

	CHECK(cudaMallocArray(&a, &fmt, w, h, cudaArraySurfaceLoadStore));
	CHECK(cudaMemcpy2DToArray(a, 0, 0, img, w * 4, w * 4, h, cudaMemcpyHostToDevice));
	r = {};
	r.resType = cudaResourceTypeArray;
	r.res.array.array = a;
	td.addressMode[0] = td.addressMode[1] = cudaAddressModeClamp;
	td.filterMode = cudaFilterModeLinear;
	CHECK(cudaCreateTextureObject(&t, &r, &td, NULL));
	sample2d<<<1, dim3(w, h)>>>(t, d, w, h, 0.5f, 0.5f);
	CHECK(cudaMemcpy(got, d, sizeof(got), cudaMemcpyDeviceToHost));
	EXPECT(!memcmp(img, got, sizeof(img)));		/* at the centres: the texels */
	sample2d<<<1, dim3(w, h)>>>(t, d, w, h, 1.0f, 0.5f);
	CHECK(cudaMemcpy(got, d, sizeof(got), cudaMemcpyDeviceToHost));
	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++) {
			float want = x < w - 1 ? (img[y][x] + img[y][x + 1]) / 2 : img[y][x];

			EXPECT(fabsf(got[y][x] - want) < 0.05f);
		}
	CHECK(cudaDestroyTextureObject(t));

	cudaSurfaceObject_t s;
	CHECK(cudaCreateSurfaceObject(&s, &r));
	invert<<<1, dim3(w, h)>>>(s, w, h);
	CHECK(cudaMemcpy2DFromArray(got, w * 4, a, 0, 0, w * 4, h, cudaMemcpyDeviceToHost));
	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++)
			EXPECT(got[y][x] == -img[y][x]);
	CHECK(cudaDestroySurfaceObject(s));
	CHECK(cudaFreeArray(a));
	printf("PASS\n");
	return 0;
}
