/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - random numbers that are the same in each run of a test
 */
#ifndef SELFTESTS_HARNESS_RANDOM_H
#define SELFTESTS_HARNESS_RANDOM_H

#include <stdint.h>

/* A number below n; Marsaglia's xorshift. */
static inline uint32_t rnd(uint32_t n)
{
	static uint64_t seed = 88172645463325252ull;

	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 33) % n;
}

#endif /* SELFTESTS_HARNESS_RANDOM_H */
