// SPDX-License-Identifier: Apache-2.0
/*
 * cluster_memory.cu - blocks of a cluster share memory: a histogram whose bins lie in several blocks,
 * messages round a ring of blocks with barriers in memory, and clusters in all shapes and ways of
 * launching.
 */
#include "../job.cuh"

#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/ptx>

#pragma nv_diag_suppress static_var_with_dynamic_init

namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
typedef cuda::barrier<cuda::thread_scope_block> barrier;

enum { THREADS = 96, BINS = 200 };

/* Bin b lies in block b / part of each cluster. */
__global__ void histogram(const int *in, int n, int *out, int part)
{
	extern __shared__ int bins[];
	cg::cluster_group c = cg::this_cluster();
	int cluster = blockIdx.x / c.num_blocks(), clusters = gridDim.x / c.num_blocks();

	for (int i = threadIdx.x; i < part; i += THREADS)
		bins[i] = 0;
	c.sync();
	for (int i = cluster + clusters * (c.block_rank() * THREADS + threadIdx.x); i < n;
	     i += clusters * c.num_threads())
		atomicAdd(c.map_shared_rank(bins, in[i] / part) + in[i] % part, 1);
	c.sync();
	for (int i = threadIdx.x; i < part; i += THREADS)
		if (c.block_rank() * part + i < BINS)
			atomicAdd(&out[c.block_rank() * part + i], bins[i]);
}

enum { ROUNDS = 12 };

/*
 * In each round a block sends its numbers to the next one, by a bulk copy that completes on the
 * receiver's barrier, and a word by st.async.  A block may send when the receiver has read.
 */
__global__ void ring(int *out)
{
	alignas(16) __shared__ int mine[THREADS], got[THREADS];
	__shared__ int word;
	__shared__ barrier full, empty;
	cg::cluster_group c = cg::this_cluster();
	int t = threadIdx.x, rank = c.block_rank(), n = c.num_blocks(), next = (rank + 1) % n;
	uint64_t *full_at = cuda::device::barrier_native_handle(full);
	uint64_t *empty_at = cuda::device::barrier_native_handle(empty);

	if (!t) {
		init(&full, 1);
		init(&empty, THREADS);
	}
	ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
	mine[t] = blockIdx.x * 1000 + t;
	c.sync();
	for (int r = 0; r < ROUNDS; r++) {
		if (r)
			while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster,
							      empty_at, (r - 1) & 1))
				;
		ptx::fence_proxy_async();
		__syncthreads();
		if (!t) {
			ptx::mbarrier_arrive_expect_tx(ptx::sem_relaxed, ptx::scope_cluster, ptx::space_shared,
						       full_at, sizeof(mine) + sizeof(word));
			uint64_t *there = c.map_shared_rank(full_at, next);
			ptx::cp_async_bulk(ptx::space_cluster, ptx::space_shared,
					   c.map_shared_rank(got, next), mine, sizeof(mine), there);
			ptx::st_async(c.map_shared_rank(&word, next), r * 7 + rank, there);
		}
		while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, full_at, r & 1))
			;
		int v = got[t] * 3 + word;
		/* the sender may overwrite `got`, and this block `mine`, which was copied before */
		ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cluster, ptx::space_cluster,
				     c.map_shared_rank(empty_at, (rank + n - 1) % n));
		__syncthreads();
		mine[t] = v;
	}
	out[blockIdx.x * THREADS + t] = mine[t];
	c.sync();
}

static void ring_want(std::vector<int> &h, int blocks, int n)
{
	for (int b = 0; b < blocks; b++)
		for (int t = 0; t < THREADS; t++)
			h[b * THREADS + t] = b * 1000 + t;
	for (int r = 0; r < ROUNDS; r++) {
		std::vector<int> old = h;

		for (int b = 0; b < blocks; b++) {
			int first = b / n * n, before = (b - first + n - 1) % n;

			for (int t = 0; t < THREADS; t++)
				h[b * THREADS + t] = (int)(3u * old[(first + before) * THREADS + t] +
							   r * 7 + before);
		}
	}
}

struct place {
	uint3 cluster, block;
	dim3 clusters, blocks;
	unsigned int rank, size, of_next;
};

/* Where each block is. All threads but the first leave before their clusters meet. */
__global__ void places(place *out)
{
	__shared__ unsigned int number;
	cg::cluster_group c = cg::this_cluster();
	unsigned int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);

	if (threadIdx.x)
		return;
	number = b * 10;
	ptx::barrier_cluster_arrive(ptx::sem_release);
	out[b].cluster = { ptx::get_sreg_clusterid_x(), ptx::get_sreg_clusterid_y(),
			   ptx::get_sreg_clusterid_z() };
	out[b].clusters = { ptx::get_sreg_nclusterid_x(), ptx::get_sreg_nclusterid_y(),
			    ptx::get_sreg_nclusterid_z() };
	out[b].block = c.block_index();
	out[b].blocks = c.dim_blocks();
	out[b].rank = c.block_rank();
	out[b].size = c.num_blocks();
	ptx::barrier_cluster_wait(ptx::sem_acquire);
	unsigned int *there = c.map_shared_rank(&number, (c.block_rank() + 1) % c.num_blocks());
	out[b].of_next = *there + c.query_shared_rank(there);
	c.sync();
}

template <typename... A, typename... V>
static cudaError_t launch(void (*kernel)(A...), dim3 grid, dim3 cluster, size_t smem, cudaStream_t s,
			  V... args)
{
	cudaLaunchConfig_t c = {};
	cudaLaunchAttribute a = {};

	c.gridDim = grid;
	c.blockDim = dim3(THREADS);
	c.dynamicSmemBytes = smem;
	c.stream = s;
	a.id = cudaLaunchAttributeClusterDimension;
	a.val.clusterDim = { cluster.x, cluster.y, cluster.z };
	c.attrs = &a;
	c.numAttrs = 1;
	return cudaLaunchKernelEx(&c, kernel, args...);
}

static void check_places(dim3 grid, dim3 size)
{
	int n = grid.x * grid.y * grid.z;
	place *d;

	CHECK(cudaMalloc(&d, n * sizeof(place)));
	CHECK(launch(places, grid, size, 0, 0, d));
	std::vector<place> h = to_host(d, n);
	for (int b = 0; b < n; b++) {
		unsigned int x = b % grid.x, y = b / grid.x % grid.y, z = b / grid.x / grid.y;
		unsigned int cx = x % size.x, cy = y % size.y, cz = z % size.z;
		unsigned int all = size.x * size.y * size.z, rank = cx + size.x * (cy + size.y * cz);
		unsigned int next = (rank + 1) % all;
		unsigned int nx = x - cx + next % size.x, ny = y - cy + next / size.x % size.y,
			     nz = z - cz + next / size.x / size.y;

		EXPECT_EQ(h[b].cluster.x, x / size.x);
		EXPECT_EQ(h[b].cluster.y, y / size.y);
		EXPECT_EQ(h[b].cluster.z, z / size.z);
		EXPECT_EQ(h[b].clusters.x, grid.x / size.x);
		EXPECT_EQ(h[b].clusters.y, grid.y / size.y);
		EXPECT_EQ(h[b].clusters.z, grid.z / size.z);
		EXPECT(h[b].block.x == cx && h[b].block.y == cy && h[b].block.z == cz);
		EXPECT(h[b].blocks.x == size.x && h[b].blocks.y == size.y && h[b].blocks.z == size.z);
		EXPECT_EQ(h[b].rank, rank);
		EXPECT_EQ(h[b].size, all);
		EXPECT_EQ(h[b].of_next, 10 * (nx + grid.x * (ny + grid.y * nz)) + next);
	}
	sum_vector(h);
	CHECK(cudaFree(d));
}

int main()
{
	int n = 20000, has = 0, fit = 0, *d, *d_in;
	std::vector<int> in(n), want(BINS), h;
	unsigned int seed = 11;
	cudaGraphExec_t exec;
	cudaGraph_t graph;
	cudaStream_t s;

	CHECK(cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, 0));
	if (!has) {
		printf("SKIP the device has no clusters of blocks\n");
		return 4;
	}
	for (int &i : in) {
		i = rnd(&seed) % BINS * (rnd(&seed) % 8) / 8;
		want[i]++;
	}
	d_in = to_device(in);
	CHECK(cudaMalloc(&d, 64 * THREADS * sizeof(int)));
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaFuncSetAttribute(histogram, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
	for (int size : { 1, 2, 5, 8, 16 }) {
		int part = (BINS + size - 1) / size;

		CHECK(cudaMemset(d, 0, BINS * sizeof(int)));
		CHECK(launch(histogram, size * 3, size, part * sizeof(int), 0, (const int *)d_in, n, d, part));
		h = to_host(d, BINS);
		EXPECT(h == want);
		sum_vector(h);
	}
	for (int size : { 1, 2, 4, 8 }) {
		std::vector<int> w(8 * THREADS);

		CHECK(launch(ring, 8, size, 0, 0, d));
		h = to_host(d, 8 * THREADS);
		ring_want(w, 8, size);
		for (size_t i = 0; i < h.size(); i++)
			EXPECT_EQ(h[i], w[i]);
		sum_vector(h);
	}
	/* the same from a graph, captured */
	CHECK(cudaMemset(d, 0, BINS * sizeof(int)));
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	CHECK(launch(histogram, 8, 4, 50 * sizeof(int), s, (const int *)d_in, n, d, 50));
	CHECK(cudaStreamEndCapture(s, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	CHECK(cudaGraphLaunch(exec, s));
	CHECK(cudaStreamSynchronize(s));
	h = to_host(d, BINS);
	EXPECT(h == want);

	check_places(dim3(6), dim3(3));
	check_places(dim3(4, 4, 2), dim3(2, 2, 2));
	check_places(dim3(3, 8, 2), dim3(1, 4, 2));
	check_places(dim3(2, 3, 4), dim3(1));

	EXPECT_ERROR(cudaErrorInvalidClusterSize, launch(ring, 9, 2, 0, 0, d));
	EXPECT_ERROR(cudaErrorInvalidClusterSize, launch(ring, 16, 16, 0, 0, d));
	EXPECT_ERROR(cudaErrorInvalidClusterSize, launch(ring, 32, 32, 0, 0, d));
	cudaGetLastError();
	cudaLaunchConfig_t c = {};
	cudaLaunchAttribute a = {};

	c.gridDim = dim3(8);
	c.blockDim = dim3(THREADS);
	a.id = cudaLaunchAttributeClusterDimension;
	a.val.clusterDim = { 8, 1, 1 };
	c.attrs = &a;
	c.numAttrs = 1;
	CHECK(cudaOccupancyMaxActiveClusters(&fit, ring, &c));
	EXPECT(fit >= 1);
	return job_passed("cluster_memory");
}
