/* SPDX-License-Identifier: Apache-2.0 */
/*
 * direct.cuh - what the programs of direct mode share: checks that end them, and references.
 */
#ifndef DIRECT_CUH
#define DIRECT_CUH

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(_call) do {						\
	cudaError_t _e = (_call);					\
	if (_e != cudaSuccess) {					\
		printf("FAIL %s:%d: %s: %s\n", __FILE__, __LINE__, #_call, cudaGetErrorString(_e)); \
		exit(1);						\
	}								\
} while (0)
#define EXPECT(_cond) do {						\
	if (!(_cond)) {							\
		printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #_cond);	\
		exit(1);						\
	}								\
} while (0)
#define EXPECT_ERROR(_want, _call) do {					\
	cudaError_t _e = (_call);					\
	if (_e != (_want)) {						\
		printf("FAIL %s:%d: %s: %s, not %s\n", __FILE__, __LINE__, #_call,	\
		       cudaGetErrorName(_e), cudaGetErrorName(_want));	\
		exit(1);						\
	}								\
} while (0)

static inline unsigned int rnd(unsigned int *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

#endif
