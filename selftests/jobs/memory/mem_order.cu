// SPDX-License-Identifier: Apache-2.0
/*
 * mem_order.cu - stream-ordered memory under load: threads with several slow streams each allocate,
 * use, check and free blocks, so that memory that is reused too early is written by two kernels at
 * once.
 */
#include "../job.cuh"

#include <thread>

#define STREAMS 3
#define THREADS 3
#define ROUNDS 150

/* Writes a block slowly: others have time to write there, too, if they wrongly have it. */
__global__ void fill(unsigned int *p, unsigned int v, int n)
{
	for (int round = 0; round < 4; round++)
		for (int i = threadIdx.x; i < n; i += blockDim.x)
			p[i] = round == 3 ? v + i : v ^ i;
}

__global__ void check(const unsigned int *p, unsigned int v, int n, unsigned int *wrong)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		if (p[i] != v + i)
			atomicAdd(wrong, 1);
}

static unsigned int total[THREADS];

static void work(int id)
{
	struct block {
		unsigned int *p, v;
		int n, s;
	};
	std::vector<block> all;
	unsigned int seed = 100 + id, *wrong, got;
	cudaStream_t s[STREAMS];
	cudaEvent_t e;

	CHECK(cudaMalloc(&wrong, 4));
	CHECK(cudaMemset(wrong, 0, 4));
	CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	for (cudaStream_t &t : s)
		CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
	for (int i = 0; i < ROUNDS; i++) {
		if (all.size() < 12 && (all.empty() || rnd(&seed) % 3)) {
			block b = { NULL, rnd(&seed), (int)(1 + rnd(&seed) % 30000),
				    (int)(rnd(&seed) % STREAMS) };

			CHECK(cudaMallocAsync(&b.p, b.n * 4, s[b.s]));
			fill<<<1, 64, 0, s[b.s]>>>(b.p, b.v, b.n);
			all.push_back(b);
			continue;
		}
		size_t k = rnd(&seed) % all.size();
		block b = all[k];
		int at = rnd(&seed) % STREAMS;

		/* sometimes another stream frees it, behind an event */
		if (at != b.s) {
			CHECK(cudaEventRecord(e, s[b.s]));
			CHECK(cudaStreamWaitEvent(s[at], e, 0));
		}
		check<<<1, 64, 0, s[at]>>>(b.p, b.v, b.n, wrong);
		CHECK(cudaFreeAsync(b.p, s[at]));
		all.erase(all.begin() + k);
		if (rnd(&seed) % 16 == 0) {
			CHECK(cudaStreamSynchronize(s[at]));
		}
		total[id] += b.v;
	}
	for (block &b : all) {
		check<<<1, 64, 0, s[b.s]>>>(b.p, b.v, b.n, wrong);
		CHECK(cudaFreeAsync(b.p, s[b.s]));
	}
	/* a stream may go while its frees are under way */
	for (cudaStream_t t : s)
		CHECK(cudaStreamDestroy(t));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemcpy(&got, wrong, 4, cudaMemcpyDeviceToHost));
	EXPECT_EQ(got, 0);
	CHECK(cudaFree(wrong));
}

/* Less memory than all streams want at once: allocations wait for the frees of others. */
static void crowded(void)
{
	const size_t size = 6 << 20;
	cudaMemPoolProps props = {};
	cudaMemPool_t pool;
	cudaStream_t s[4];
	unsigned int *wrong, got;
	int n = size / 4;

	props.allocType = cudaMemAllocationTypePinned;
	props.location.type = cudaMemLocationTypeDevice;
	props.maxSize = 32 << 20;
	CHECK(cudaMemPoolCreate(&pool, &props));
	CHECK(cudaMalloc(&wrong, 4));
	CHECK(cudaMemset(wrong, 0, 4));
	for (cudaStream_t &t : s)
		CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
	for (int i = 0; i < 24; i++) {
		unsigned int *p;

		CHECK(cudaMallocFromPoolAsync(&p, size, pool, s[i % 4]));
		fill<<<1, 256, 0, s[i % 4]>>>(p, i, n);
		check<<<1, 256, 0, s[i % 4]>>>(p, i, n, wrong);
		CHECK(cudaFreeAsync(p, s[i % 4]));
	}
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaMemcpy(&got, wrong, 4, cudaMemcpyDeviceToHost));
	EXPECT_EQ(got, 0);

	/* more than the pool may ever have */
	void *q;

	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaMallocFromPoolAsync(&q, 64 << 20, pool, s[0]));
	EXPECT_ERROR(cudaErrorMemoryAllocation, cudaGetLastError());
	CHECK(cudaMallocFromPoolAsync(&q, size, pool, s[0]));
	/* the pool is destroyed: its last allocation lives on until it is freed */
	CHECK(cudaMemPoolDestroy(pool));
	CHECK(cudaMemsetAsync(q, 1, size, s[0]));
	CHECK(cudaFreeAsync(q, s[0]));
	for (cudaStream_t t : s) {
		CHECK(cudaStreamSynchronize(t));
		CHECK(cudaStreamDestroy(t));
	}
	CHECK(cudaFree(wrong));
}

int main(void)
{
	std::vector<std::thread> t;

	CHECK(cudaFree(0));
	for (int i = 0; i < THREADS; i++)
		t.emplace_back(work, i);
	for (std::thread &x : t)
		x.join();
	crowded();
	sum_bytes(total, sizeof(total));
	return job_passed("mem_order");
}
