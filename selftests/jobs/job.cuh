/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.cuh - what the sample jobs share: checks that end a job, random numbers, checksums of results.
 *
 * A job prints what differs and exits with 1, or ends with two lines: "checksum HEX", over the bits
 * of its results, and "PASS name". The checksum is for comparing runs; it decides nothing here.
 */
#ifndef JOB_CUH
#define JOB_CUH

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(...) do {							\
	cudaError_t _e = (__VA_ARGS__);					\
	if (_e != cudaSuccess) {					\
		printf("FAIL %s:%d: %s: %s\n", __FILE__, __LINE__, #__VA_ARGS__, \
		       cudaGetErrorName(_e));				\
		exit(1);						\
	}								\
} while (0)
#define EXPECT(...) do {						\
	if (!(__VA_ARGS__)) {						\
		printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
		exit(1);						\
	}								\
} while (0)
/* EXPECT_EQ(got, want): integers, which are printed when they differ. */
#define EXPECT_EQ(_got, _want) do {					\
	long long _g = (long long)(_got), _w = (long long)(_want);	\
	if (_g != _w) {							\
		printf("FAIL %s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #_got, _g, _w); \
		exit(1);						\
	}								\
} while (0)
#define EXPECT_ERROR(_want, ...) do {					\
	cudaError_t _e = (__VA_ARGS__);					\
	if (_e != (_want)) {						\
		printf("FAIL %s:%d: %s: %s, not %s\n", __FILE__, __LINE__, #__VA_ARGS__, \
		       cudaGetErrorName(_e), cudaGetErrorName(_want));	\
		exit(1);						\
	}								\
} while (0)
/* EXPECT_NEAR(got, want, tolerance): relative above 1, absolute below. */
#define EXPECT_NEAR(_got, _want, _tol) do {				\
	double _g = (_got), _w = (_want);				\
	if (!(fabs(_g - _w) <= (_tol) * fmax(1.0, fabs(_w)))) {		\
		printf("FAIL %s:%d: %s is %.9g, not %.9g\n", __FILE__, __LINE__, #_got, _g, _w); \
		exit(1);						\
	}								\
} while (0)

static inline unsigned int rnd(unsigned int *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

/* Uniform in [-1, 1). */
static inline float rndf(unsigned int *state)
{
	return (float)rnd(state) / (1 << 23) - 1.0f;
}

static unsigned long long job_sum = 0xcbf29ce484222325ull;

/* Adds bytes of a result to the checksum (FNV-1a, eight bytes at a time). */
static inline void sum_bytes(const void *p, size_t n)
{
	const unsigned char *c = (const unsigned char *)p;
	unsigned long long w;

	for (; n >= 8; n -= 8, c += 8) {
		memcpy(&w, c, 8);
		job_sum = (job_sum ^ w) * 0x100000001b3ull;
		job_sum ^= job_sum >> 29;
	}
	for (; n; n--, c++)
		job_sum = (job_sum ^ *c) * 0x100000001b3ull;
}

template <typename T> static inline void sum_vector(const std::vector<T> &v)
{
	sum_bytes(v.data(), v.size() * sizeof(T));
}

static inline int job_passed(const char *name)
{
	printf("checksum %016llx\nPASS %s\n", job_sum, name);
	return 0;
}

/* Device memory with the contents of a vector, and the way back. */
template <typename T> static T *to_device(const std::vector<T> &v)
{
	T *d;

	CHECK(cudaMalloc(&d, v.size() * sizeof(T)));
	CHECK(cudaMemcpy(d, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
	return d;
}

template <typename T> static std::vector<T> to_host(const T *d, size_t n)
{
	std::vector<T> v(n);

	CHECK(cudaMemcpy(v.data(), d, n * sizeof(T), cudaMemcpyDeviceToHost));
	return v;
}

#endif
