// SPDX-License-Identifier: Apache-2.0
/*
 * rdc_a.cu - relocatable device code of three files: their kernels, functions and variables together.
 */
#include "../job.cuh"
#include "rdc.cuh"

__device__ int calls;
static __device__ int mine = 1;		/* rdc_b.cu has another of this name */

__global__ void deep(int *out)
{
	if (threadIdx.x < 3)
		out[threadIdx.x] = ackermann(2, threadIdx.x + 1);
	atomicAdd(&mine, 1);
}

int main()
{
	const int n = 100, steps = 50;
	std::vector<body> b(n), want;
	float k = 4.0f;
	int *out, v;

	for (int i = 0; i < n; i++)
		b[i] = { i * 0.1f, 0 };
	want = b;
	body *d = to_device(b);
	CHECK(cudaMemcpyToSymbol(stiffness, &k, sizeof(k)));
	for (int s = 0; s < steps; s++) {
		int which = s % 3;

		if (s & 1)
			launch_from_b(d, n, which, 0.125f);
		else
			step_all<<<(n + 31) / 32, 32>>>(d, n, which, 0.125f);
		for (body &w : want) {
			float f = which == 0 ? -4.0f * w.x : which == 1 ? -9.5f : 0.25f;

			w.v = fmaf(f, 0.125f, w.v);
			w.x = fmaf(w.v, 0.125f, w.x);
		}
	}
	CHECK(cudaGetLastError());
	b = to_host(d, n);
	for (int i = 0; i < n; i++) {
		EXPECT_NEAR(b[i].x, want[i].x, 1e-5);
		EXPECT_NEAR(b[i].v, want[i].v, 1e-5);
	}
	CHECK(cudaMemcpyFromSymbol(&v, calls, 4));
	EXPECT_EQ(v, n * steps);
	CHECK(cudaMalloc(&out, 12));
	deep<<<1, 32>>>(out);
	std::vector<int> a = to_host(out, 3);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(a[i], 2 * (i + 1) + 3);
	CHECK(cudaMemcpyFromSymbol(&v, mine, 4));
	EXPECT_EQ(v, 33);
	sum_vector(b);
	return job_passed("rdc");
}
