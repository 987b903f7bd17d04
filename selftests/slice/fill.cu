// SPDX-License-Identifier: Apache-2.0
/*
 * fill.cu - a rank that fills most of its device, and finds no bytes there but its own
 *
 * fill ID PERCENT ROUNDS [wait|stray]: each word of its memory has the rank, where it is, and a value that
 * each round changes by a rule and by what an all-reduce has summed. Now and then memory is freed and
 * allocated again: what is there then may be anything but another rank's. wait: the odd ranks run small
 * kernels until the even ones, say on the CPU that they have handed in a round.
 */
#include "../nccl/ranks.h"

#include <fcntl.h>
#include <sys/mman.h>

#define PARTS	8
#define SUM	(256 << 10)	/* words that are summed each round */

/* The upper 8 bits are the owner's. */
__host__ __device__ static uint32_t word(int owner, size_t at, uint32_t round)
{
	return (uint32_t)(owner + 1) << 24 | (((uint32_t)at * 2654435761u ^ round * 40503u) & 0xffffff);
}

__global__ void begin_words(uint32_t *p, size_t n, int owner)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
		p[i] = word(owner, i, 0);
}

/* Turns the words of one round into those of the next; counts those that are not as they should be. */
__global__ void next_words(uint32_t *p, size_t n, int owner, uint32_t round, unsigned long long *wrong)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
		if (p[i] != word(owner, i, round))
			atomicAdd(wrong, 1ull);
		p[i] = word(owner, i, round + 1);
	}
}

/* Fresh memory has words of this rank, of none, or zeros. */
__global__ void find_foreign(const uint32_t *p, size_t n, int owner, int ranks, unsigned long long *wrong)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
		if (p[i] >> 24 && p[i] >> 24 != owner + 1 && p[i] >> 24 <= ranks)
			atomicAdd(wrong, 1ull);
}

__global__ void tiny(uint32_t *p)
{
	++*p;
}

/* A page that the ranks share: how many rounds each has done. */
static volatile int *rounds_done(void)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s.rounds", id_file);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	IS(fd >= 0 && !ftruncate(fd, 4096), 1);
	return (volatile int *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static unsigned long long read_count(unsigned long long *at)
{
	unsigned long long n;

	OK(cudaMemcpy(&n, at, sizeof(n), cudaMemcpyDeviceToHost));
	return n;
}

int main(int argc, char **argv)
{
	int rounds = argc > 3 ? atoi(argv[3]) : 3, waits = argc > 4 && !strcmp(argv[4], "wait");
	volatile int *done;
	unsigned long long *wrong;
	uint32_t *part[PARTS], *count;
	float *x;
	size_t free_bytes, total, n;
	ncclComm_t comm;
	float is[2];

	begin(argc, argv);
	done = rounds_done();
	comm = world(0);
	OK(cudaMemGetInfo(&free_bytes, &total));
	n = free_bytes / 100 * atoi(argv[2]) / PARTS / sizeof(uint32_t);
	OK(cudaMalloc(&wrong, sizeof(*wrong)));
	OK(cudaMemset(wrong, 0, sizeof(*wrong)));
	OK(cudaMalloc(&count, sizeof(*count)));
	OK(cudaMalloc(&x, SUM * sizeof(*x)));
	for (int i = 0; i < PARTS; i++) {
		OK(cudaMalloc(&part[i], n * sizeof(uint32_t)));
		begin_words<<<64, 256>>>(part[i], n, rank);
	}
	for (int r = 0; r < rounds; r++) {
		uint32_t *again = NULL;

		for (int i = 0; i < PARTS; i++)
			next_words<<<64, 256>>>(part[i], n, rank, r, wrong);
		if (waits && rank % 2 == 0)
			done[rank] = r + 1;
		if (waits && rank % 2)
			while (done[rank - 1] <= r) {
				tiny<<<1, 1>>>(count);
				OK(cudaDeviceSynchronize());
			}
		for (int i = 0; i < SUM; i += SUM - 1) {
			float v = rank + r + 1;

			OK(cudaMemcpyAsync(&x[i], &v, sizeof(v), cudaMemcpyHostToDevice, 0));
		}
		OK(ncclAllReduce(x, x, SUM, ncclFloat, ncclSum, comm, 0));
		/* While others work: the same part, anew. */
		OK(cudaFree(part[r % PARTS]));
		OK(cudaMalloc(&again, n * sizeof(uint32_t)));
		find_foreign<<<64, 256>>>(again, n, rank, ranks, wrong);
		part[r % PARTS] = again;
		begin_words<<<64, 256>>>(again, n, rank);
		for (int k = 0; k <= r; k++)
			next_words<<<64, 256>>>(again, n, rank, k, wrong);
		OK(cudaMemcpy(&is[0], &x[0], sizeof(float), cudaMemcpyDeviceToHost));
		OK(cudaMemcpy(&is[1], &x[SUM - 1], sizeof(float), cudaMemcpyDeviceToHost));
		for (int k = 0; k < 2; k++)
			IS(is[k], ranks * (r + 1) + ranks * (ranks - 1) / 2);
	}
	IS(read_count(wrong), 0);
	OK(ncclCommDestroy(comm));
	if (argc > 4 && !strcmp(argv[4], "stray")) {
		/* Where it has nothing, and others may have something. */
		tiny<<<1, 1>>>(part[PARTS - 1] + n + (4 << 20));
		IS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
	}
	printf("rank %d: %d rounds of %zu MiB\n", rank, rounds, PARTS * n * sizeof(uint32_t) >> 20);
	return 0;
}
