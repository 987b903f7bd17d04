// SPDX-License-Identifier: Apache-2.0
/*
 * rdc_c.cu - the device functions of the job rdc.
 */
#include "rdc.cuh"

__device__ float spring(float x)
{
	return -stiffness * x;
}

__device__ float gravity(float)
{
	return -9.5f;
}

__device__ void advance(body *b, force_t f, float dt)
{
	b->v += f(b->x) * dt;
	b->x += b->v * dt;
	atomicAdd(&calls, 1);
}

__device__ int ackermann(int m, int n)
{
	if (!m)
		return n + 1;
	return n ? ackermann(m - 1, ackermann(m, n - 1)) : ackermann(m - 1, 1);
}
