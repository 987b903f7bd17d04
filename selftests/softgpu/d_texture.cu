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

int main()
{
	const int w = 16, h = 8;
	float img[h][w], got[h][w], *d, *lin;
	cudaChannelFormatDesc fmt = cudaCreateChannelDesc<float>();
	cudaArray_t a;

	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++)
			img[y][x] = x * 10 + y;
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
