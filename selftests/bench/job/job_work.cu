// SPDX-License-Identifier: Apache-2.0
/*
 * job_work.cu - a rank whose device memory is known: job_work ID COMMON_MIB OWN_MIB DIR [ROUNDS]
 *
 * It fills memory with numbers, a part that is the same on all ranks and a part of its own, in which no page
 * occurs twice. DIR/go.N asks for stage N, and it prints "stage N" when it is there:
 *
 *   0   its memory is as it was made     1   one page in 32 has changed
 *   2   the other ranks wait for an all-reduce which rank 0, asleep on the CPU, has not posted
 *   3   rank 0 has posted it; the sums are checked; the program ends
 *
 * In stages 0 and 1 DIR/RANK.N has a copy of its memory, which is whole when the line comes.
 *
 * With ROUNDS it does so many rounds before each of three stages, 0 to 2. In a round it changes all pages of its own part, and
 * waits for an all-reduce; so ranks that share a device by slices change places for each.
 */
#include "../../nccl/ranks.h"

#include <sys/stat.h>

#define PAGE_WORDS 512

__global__ void fill(uint64_t *p, size_t words, uint64_t seed)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
		uint64_t x = (i + seed) * 0x9e3779b97f4a7c15ull;

		x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
		p[i] = x ^ x >> 27;
	}
}

__global__ void change(uint64_t *p, size_t pages)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i * 32 < pages; i += gridDim.x * blockDim.x)
		p[i * 32 * PAGE_WORDS + i % PAGE_WORDS] += 1;
}

__global__ void change_all(uint64_t *p, size_t pages)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < pages; i += gridDim.x * blockDim.x)
		p[i * PAGE_WORDS] += 1;
}

static const char *dir;

static void wait_stage(int n)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/go.%d", dir, n);
	while (access(path, F_OK))
		usleep(20000);
}

static void at_stage(int n)
{
	printf("stage %d\n", n);
	fflush(stdout);
}

static void save(int n, const void *common, size_t common_len, const void *own, size_t own_len)
{
	const void *from[] = { common, own };
	size_t len[] = { common_len, own_len };
	char path[4096], *host;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%d.%d", dir, rank, n);
	f = fopen(path, "w");
	IS(f != NULL, 1);
	for (int i = 0; i < 2; i++) {
		host = (char *)malloc(len[i] + 1);
		OK(cudaMemcpy(host, from[i], len[i], cudaMemcpyDeviceToHost));
		IS(fwrite(host, 1, len[i], f), len[i]);
		free(host);
	}
	OK(fclose(f));
	at_stage(n);
}

static void sum(float *p, ncclComm_t comm, cudaStream_t s)
{
	float want = ranks * (ranks + 1) / 2, got = rank + 1;

	OK(cudaMemcpy(p, &got, sizeof(got), cudaMemcpyHostToDevice));
	OK(cudaDeviceSynchronize());	/* the stream follows nothing else */
	OK(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, comm, s));
	OK(cudaStreamSynchronize(s));
	OK(cudaMemcpy(&got, p, sizeof(got), cudaMemcpyDeviceToHost));
	IS(got, want);
}

static void rounds(int n, uint64_t *own, size_t own_len, float *p, ncclComm_t comm, cudaStream_t s)
{
	for (int stage = 0; stage < 3; stage++) {
		wait_stage(stage);
		for (int r = 0; r < n; r++) {
			change_all<<<64, 128>>>(own, own_len / 4096);
			sum(p, comm, s);
		}
		at_stage(stage);
	}
}

int main(int argc, char **argv)
{
	uint64_t *common = NULL, *own = NULL;
	size_t common_len, own_len;
	cudaStream_t s;
	ncclComm_t comm;
	float *p;

	begin(argc, argv);
	if (argc != 5 && argc != 6)
		return 2;
	common_len = (size_t)atoi(argv[2]) << 20;
	own_len = (size_t)atoi(argv[3]) << 20;
	dir = argv[4];
	OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	OK(cudaMalloc(&common, common_len + 1));
	OK(cudaMalloc(&own, own_len + 1));
	OK(cudaMalloc(&p, sizeof(*p)));
	fill<<<64, 128>>>(common, common_len / 8, 1);
	fill<<<64, 128>>>(own, own_len / 8, (uint64_t)(rank + 1) << 40);
	comm = world(0);
	sum(p, comm, s);
	if (argc == 6) {
		rounds(atoi(argv[5]), own, own_len, p, comm, s);
		OK(ncclCommDestroy(comm));
		return 0;
	}
	save(0, common, common_len, own, own_len);
	wait_stage(1);
	change<<<64, 128>>>(common, common_len / 4096);
	change<<<64, 128>>>(own, own_len / 4096);
	sum(p, comm, s);
	save(1, common, common_len, own, own_len);
	wait_stage(2);
	at_stage(2);
	if (!rank)
		wait_stage(3);
	sum(p, comm, s);
	at_stage(3);
	OK(ncclCommDestroy(comm));
	return 0;
}
