// SPDX-License-Identifier: Apache-2.0
/*
 * devices_loop.cu - steps on two devices that exchange halves of their state, for checkpoints in between.
 *
 * devices_loop STEPS [HURRY]: a line "step N SUM" for each; from step 10 on 50 ms apart, and after half
 * of them not before the file HURRY exists, which ends all pauses. The state is in device memory, a
 * variable of each device, pinned memory that both use, and a graph on each.
 */
#include "../job.cuh"

#include <unistd.h>

#define N (1 << 16)

__device__ unsigned int turns;

__global__ void mix(unsigned int *p, const unsigned int *pinned, unsigned int salt)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	p[i] = p[i] * 1664525u + pinned[i] + salt + turns;
}

__global__ void turn(unsigned int *pinned)
{
	turns++;
	*pinned += turns;
}

static void CUDART_CB count(void *arg)
{
	++*(unsigned int *)arg;
}

static void pause_at(int step, int steps, const char *hurry)
{
	if (hurry && step >= 10 && access(hurry, F_OK))
		usleep(50000);
	while (hurry && step >= steps / 2 && access(hurry, F_OK))
		usleep(10000);
}

int main(int argc, char **argv)
{
	int steps = argc > 1 ? atoi(argv[1]) : 20;
	unsigned int *p[2], *in[2], *pinned, *out, counted = 0;
	cudaGraphExec_t x[2];
	cudaStream_t s[2];
	cudaEvent_t e[2];
	cudaGraph_t g;

	CHECK(cudaHostAlloc(&pinned, N * sizeof(*pinned), cudaHostAllocPortable));
	CHECK(cudaHostAlloc(&out, 2 * N * sizeof(*out), cudaHostAllocPortable));
	for (int i = 0; i < N; i++)
		pinned[i] = i * 2654435761u;
	for (int d = 0; d < 2; d++) {
		CHECK(cudaSetDevice(d));
		CHECK(cudaMalloc(&p[d], N * sizeof(int)));
		CHECK(cudaMalloc(&in[d], N * sizeof(int)));
		CHECK(cudaMemset(p[d], d + 1, N * sizeof(int)));
		CHECK(cudaDeviceSynchronize());		/* s[d] does not wait for the legacy stream */
		CHECK(cudaStreamCreateWithFlags(&s[d], cudaStreamNonBlocking));
		CHECK(cudaEventCreateWithFlags(&e[d], cudaEventDisableTiming));
		CHECK(cudaStreamBeginCapture(s[d], cudaStreamCaptureModeGlobal));
		mix<<<N / 256, 256, 0, s[d]>>>(p[d], in[d], d);
		CHECK(cudaStreamEndCapture(s[d], &g));
		CHECK(cudaGraphInstantiate(&x[d], g, 0));
		CHECK(cudaGraphDestroy(g));
	}
	for (int k = 0; k < steps; k++) {
		for (int d = 0; d < 2; d++) {
			CHECK(cudaSetDevice(d));
			mix<<<N / 256, 256, 0, s[d]>>>(p[d], pinned, k);
			turn<<<1, 1, 0, s[d]>>>(out + d);
			CHECK(cudaLaunchHostFunc(s[d], count, d ? &counted : out + 2));
			CHECK(cudaEventRecord(e[d], s[d]));
		}
		for (int d = 0; d < 2; d++) {
			CHECK(cudaSetDevice(d));
			CHECK(cudaStreamWaitEvent(s[d], e[!d], 0));
			CHECK(cudaMemcpyPeerAsync(in[d], d, p[!d], !d, N * sizeof(int), s[d]));
			CHECK(cudaEventRecord(e[d], s[d]));
		}
		for (int d = 0; d < 2; d++) {
			CHECK(cudaSetDevice(d));
			CHECK(cudaStreamWaitEvent(s[d], e[!d], 0));
			CHECK(cudaGraphLaunch(x[d], s[d]));
		}
		for (int d = 0; d < 2; d++) {
			CHECK(cudaMemcpyAsync(out + 16 + d * (N - 16), p[d], (N - 16) * sizeof(int),
					      cudaMemcpyDefault, s[d]));
			CHECK(cudaStreamSynchronize(s[d]));
		}
		sum_bytes(out, 2 * N * sizeof(*out) - 64);
		printf("step %d %016llx %u\n", k, job_sum, counted);
		fflush(stdout);
		pause_at(k, steps, argc > 2 ? argv[2] : NULL);
	}
	return job_passed("devices_loop");
}
