// SPDX-License-Identifier: Apache-2.0
/*
 * d_symbols.cu - constant, global and managed variables, function pointers, recursion, classes.
 */
#include "direct.cuh"

__constant__ float coeff[4];
__device__ int counter = 5;
__device__ double table[3] = { 1.5, 2.5, 3.5 };
__managed__ int shared_word = 11;

typedef int (*op_t)(int, int);
__device__ int add(int a, int b) { return a + b; }
__device__ int mul(int a, int b) { return a * b; }
__device__ op_t ops[2] = { add, mul };

__device__ int *pointer_to_counter = &counter;

__device__ __noinline__ long fib(int n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

struct shape {
	__device__ virtual float area() const { return 0; }
};
struct square : shape {
	float a;
	__device__ square(float a) : a(a) {}
	__device__ float area() const override { return a * a; }
};
struct disc : shape {
	float r;
	__device__ disc(float r) : r(r) {}
	__device__ float area() const override { return 3.0f * r * r; }
};

__global__ void poly(const float *x, float *y, int n)
{
	int i = threadIdx.x;

	if (i < n)
		y[i] = ((coeff[3] * x[i] + coeff[2]) * x[i] + coeff[1]) * x[i] + coeff[0];
}

__global__ void misc(long *out)
{
	shape *s[2];

	out[0] = ops[0](3, 4);
	out[1] = ops[1](3, 4);
	out[2] = fib(15);
	out[3] = (*pointer_to_counter)++;
	out[4] = (long)(table[0] + table[1] + table[2]);
	shared_word += 100;
	s[0] = new square(3);
	s[1] = new disc(2);
	out[5] = (long)(s[0]->area() + s[1]->area());
	delete (square *)s[0];
	delete (disc *)s[1];
}

int main()
{
	float c[4] = { 1, 2, 3, 4 }, x[8], y[8], *dx, *dy;
	long out[6], *dout;
	int n = 0;
	void *addr;
	size_t size;

	CHECK(cudaMemcpyToSymbol(coeff, c, sizeof(c)));
	CHECK(cudaGetSymbolAddress(&addr, table));
	CHECK(cudaGetSymbolSize(&size, table));
	EXPECT(addr && size == 24);
	for (int i = 0; i < 8; i++)
		x[i] = i;
	CHECK(cudaMalloc(&dx, sizeof(x)));
	CHECK(cudaMalloc(&dy, sizeof(y)));
	CHECK(cudaMalloc(&dout, sizeof(out)));
	CHECK(cudaMemcpy(dx, x, sizeof(x), cudaMemcpyHostToDevice));
	poly<<<1, 32>>>(dx, dy, 8);
	CHECK(cudaMemcpy(y, dy, sizeof(y), cudaMemcpyDeviceToHost));
	for (int i = 0; i < 8; i++)
		EXPECT(y[i] == ((4.0f * i + 3) * i + 2) * i + 1);
	EXPECT(shared_word == 11);
	misc<<<1, 1>>>(dout);
	CHECK(cudaMemcpy(out, dout, sizeof(out), cudaMemcpyDeviceToHost));
	EXPECT(out[0] == 7 && out[1] == 12 && out[2] == 610 && out[3] == 5 && out[4] == 7);
	EXPECT(out[5] == 21);
	CHECK(cudaMemcpyFromSymbol(&n, counter, 4));
	EXPECT(n == 6);
	EXPECT(shared_word == 111);
	printf("PASS\n");
	return 0;
}
