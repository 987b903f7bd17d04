/* SPDX-License-Identifier: Apache-2.0 */
/*
 * solver.cuh - what the programs on cuSOLVER share: matrices compared, device memory for a block, and
 * the buffers of calls.
 */
#ifndef SOLVER_CUH
#define SOLVER_CUH

#include "lib.cuh"

template <typename D> static void same(const char *what, const D &got, const D &want, double bound)
{
	EXPECT_EQ(got.size(), want.size());
	for (size_t i = 0; i < want.size(); i++)
		near_enough(what, i, got[i], want[i], bound);
}

/* One device buffer and one of the host for calls of the 64-bit interface, and the status word(s). */
struct work {
	size_t dev = 0, host = 0;
	void *d = NULL, *h = NULL;
	int *info, count;

	explicit work(int n = 1) : count(n)
	{
		CHECK(cudaMalloc(&info, n * sizeof(int)));
		CHECK(cudaMemset(info, 0xff, n * sizeof(int)));
	}
	void take()
	{
		CHECK(cudaMalloc(&d, dev + 16));
		h = malloc(host + 16);
	}
	~work()
	{
		CHECK(cudaDeviceSynchronize());
		for (int i : to_host(info, count))
			EXPECT_EQ(i, 0);
		CHECK(cudaFree(d));
		CHECK(cudaFree(info));
		free(h);
	}
};

/* What is freed at the end of a block. */
template <typename E> struct array {
	E *p;
	size_t n;

	explicit array(const std::vector<E> &v) : p(to_device(v)), n(v.size())
	{
		CHECK(cudaDeviceSynchronize());	/* the solver's stream does not wait for others */
	}
	explicit array(size_t count) : array(std::vector<E>(count)) { }
	~array() { CHECK(cudaFree(p)); }
	array(const array &) = delete;
	operator E *() const { return p; }
	std::vector<E> now() const
	{
		CHECK(cudaDeviceSynchronize());
		return results(p, n);
	}
};

#endif
