// SPDX-License-Identifier: Apache-2.0
/*
 * thrust.cu - vectors and algorithms of the toolkit's Thrust.
 */
#include "../job.cuh"

#include <algorithm>
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/host_vector.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <thrust/transform_reduce.h>

#define N 20000

struct square {
	__host__ __device__ long long operator()(int x) const { return (long long)x * x; }
};

struct in_circle {
	__host__ __device__ int operator()(unsigned int i) const
	{
		unsigned int a = i * 2654435761u, b = (a ^ a >> 15) * 0x846ca68bu;
		float x = (a >> 8) / 16777216.0f, y = (b >> 8) / 16777216.0f;

		return x * x + y * y < 1.0f;
	}
};

int main()
{
	thrust::host_vector<int> h(N);
	unsigned int seed = 95;

	for (int &x : h)
		x = (int)(rnd(&seed) % 100001) - 50000;
	thrust::device_vector<int> d = h, e(N);
	thrust::sort(d.begin(), d.end());
	std::vector<int> want(h.begin(), h.end()), got(N);
	std::sort(want.begin(), want.end());
	thrust::copy(d.begin(), d.end(), got.begin());
	EXPECT(got == want);
	sum_vector(got);

	long long sum = thrust::transform_reduce(d.begin(), d.end(), square(), 0ll,
						 thrust::plus<long long>()), w = 0;
	for (int x : want)
		w += (long long)x * x;
	EXPECT_EQ(sum, w);

	thrust::sequence(e.begin(), e.end(), 5, 3);
	thrust::transform(d.begin(), d.end(), e.begin(), e.begin(), thrust::minus<int>());
	thrust::copy(e.begin(), e.end(), got.begin());
	for (int i = 0; i < N; i++)
		EXPECT_EQ(got[i], want[i] - (5 + 3 * i));
	EXPECT_EQ((int)e[7], got[7]);
	e[7] = 1234567;
	EXPECT_EQ((int)e[7], 1234567);

	int in = thrust::transform_reduce(thrust::counting_iterator<unsigned int>(0),
					  thrust::counting_iterator<unsigned int>(200000), in_circle(),
					  0, thrust::plus<int>()), count = 0;
	for (unsigned int i = 0; i < 200000; i++)
		count += in_circle()(i);
	EXPECT(abs(in - count) <= 2);	/* the host may contract x * x + y * y otherwise */
	sum_bytes(&in, sizeof(in));
	return job_passed("thrust");
}
