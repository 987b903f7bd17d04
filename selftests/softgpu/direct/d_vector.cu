// SPDX-License-Identifier: Apache-2.0
/*
 * d_vector.cu - vectors of every plain type, added and scaled, as the first CUDA program does.
 */
#include "direct.cuh"

template <typename T> __global__ void axpy(T a, const T *x, T *y, size_t n)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;

	if (i < n)
		y[i] = a * x[i] + y[i];
}

template <typename T> void run(size_t n)
{
	std::vector<T> x(n), y(n), got(n);
	unsigned int seed = 1;
	T *dx, *dy;

	for (size_t i = 0; i < n; i++) {
		x[i] = (T)(rnd(&seed) % 1000);
		y[i] = (T)(rnd(&seed) % 1000);
	}
	CHECK(cudaMalloc(&dx, n * sizeof(T)));
	CHECK(cudaMalloc(&dy, n * sizeof(T)));
	CHECK(cudaMemcpy(dx, x.data(), n * sizeof(T), cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(dy, y.data(), n * sizeof(T), cudaMemcpyHostToDevice));
	axpy<T><<<(n + 255) / 256, 256>>>((T)3, dx, dy, n);
	CHECK(cudaGetLastError());
	CHECK(cudaMemcpy(got.data(), dy, n * sizeof(T), cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < n; i++)
		EXPECT(got[i] == (T)((T)3 * x[i] + y[i]));
	CHECK(cudaFree(dx));
	CHECK(cudaFree(dy));
}

int main()
{
	run<float>(100003);
	run<double>(100003);
	run<int>(100003);
	run<unsigned char>(100003);
	run<short>(1);
	run<long long>(1000000);
	CHECK(cudaDeviceReset());
	run<float>(1000);
	printf("PASS\n");
	return 0;
}
