// SPDX-License-Identifier: Apache-2.0
/*
 * cupti_fake.c - a CUPTI that fails at its first call, as NVIDIA's of 13.5 does without its tables
 */
#include <stdint.h>

int cuptiGetVersion(uint32_t *version);

int cuptiGetVersion(uint32_t *version)
{
	return version ? CUPTI_FAILS_WITH : 1;
}
