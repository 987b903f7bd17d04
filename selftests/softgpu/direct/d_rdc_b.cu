// SPDX-License-Identifier: Apache-2.0
/*
 * d_rdc_b.cu - the device function and variable that d_rdc_a.cu uses.
 */
__device__ int shared_counter = 1000;

__device__ __noinline__ int triple(int x)
{
	return 3 * x;
}
