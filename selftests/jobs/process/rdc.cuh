/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdc.cuh - what the files of the job rdc share: device code that calls from file to file.
 */
#ifndef RDC_CUH
#define RDC_CUH

struct body {
	float x, v;
};

typedef float (*force_t)(float);

extern __device__ int calls;
extern __constant__ float stiffness;
extern __device__ force_t forces[3];

__device__ float spring(float x);
__device__ float gravity(float x);
__device__ void advance(body *b, force_t f, float dt);
__device__ int ackermann(int m, int n);

/* a kernel that lies in rdc_b.cu, launched from here and there */
__global__ void step_all(body *b, int n, int which, float dt);
void launch_from_b(body *b, int n, int which, float dt);

#endif
