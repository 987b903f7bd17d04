/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster.c - clusters of blocks: their size, which launches are refused, how many fit on the device
 *
 *   - a kernel's own size (.reqnctapercluster, or CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_*) and the
 *     launch's are the same where both are given
 *   - a size is at most 8 blocks, or 16 if the function allows sizes that are not portable, and at
 *     most what the kernel says (.maxclusterrank)
 *   - a grid consists of whole clusters
 *   - a cluster lies within one GPC (profile.c)
 *
 * What breaks the first three is CUDA_ERROR_INVALID_CLUSTER_SIZE.
 */
#include "module_i.h"

#include <stdlib.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include <cuda_occupancy.h>
#pragma GCC diagnostic pop

#define PORTABLE 8
#define LARGEST 16

static unsigned int volume(const unsigned int d[3])
{
	uint64_t n = (uint64_t)d[0] * d[1];

	return n <= LARGEST && n * d[2] <= LARGEST ? n * d[2] : LARGEST + 1;
}

/* The size that the function requires. false: none. */
static bool required(const struct func *f, unsigned int size[3])
{
	const struct ptx_entry_info *e = program_entry(f->mod->prog, f->entry);

	for (int i = 0; i < 3; i++)
		size[i] = e->cluster[0] ? e->cluster[i] : (unsigned int)f->attrs.cluster[i];
	for (int i = 0; size[0] && i < 3; i++)
		size[i] = size[i] ? size[i] : 1;
	return size[0] != 0;
}

/* The size that a launch would have; 1x1x1 where nobody asks for clusters. asked: somebody does. */
static CUresult cluster_size(const struct func *f, const unsigned int given[3],
			     unsigned int size[3], bool *asked)
{
	unsigned int most = program_entry(f->mod->prog, f->entry)->max_cluster;
	bool own = required(f, size);

	*asked = own || given[0];
	for (int i = 0; i < 3; i++) {
		if (own && given[0] && given[i] != size[i])
			return CUDA_ERROR_INVALID_CLUSTER_SIZE;
		if (!own)
			size[i] = given[0] ? given[i] : 1;
	}
	if (!volume(size) || volume(size) > (f->attrs.nonportable ? LARGEST : PORTABLE) ||
	    (most && volume(size) > most))
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	return CUDA_SUCCESS;
}

CUresult cluster_launch(struct launch *k)
{
	const struct ptx_entry_info *e = program_entry(k->fn->mod->prog, k->fn->entry);
	const char *why = "";
	unsigned int size[3];
	CUresult r;
	bool asked;

	r = cluster_size(k->fn, k->cluster, size, &asked);
	for (int i = 0; i < 3 && !r; i++)
		if (k->grid[i] % size[i])
			r = CUDA_ERROR_INVALID_CLUSTER_SIZE;
	if (!r && e->grid_of_clusters) {
		why = ": a grid of clusters is not supported (.blocksareclusters)";
		r = CUDA_ERROR_INVALID_CLUSTER_SIZE;
	}
	if (r)
		soft_log("kernel %s is refused: clusters of %ux%ux%u blocks, grid of %ux%ux%u%s", e->name,
			 size[0], size[1], size[2], k->grid[0], k->grid[1], k->grid[2], why);
	for (int i = 0; i < 3; i++)
		k->clusters_of[i] = asked ? size[i] : 0;
	return r;
}

CUresult cluster_given(const struct launch *k)
{
	const struct ptx_entry_info *e = program_entry(k->fn->mod->prog, k->fn->entry);
	unsigned int size[3];

	if (!e->explicit_cluster || k->cluster[0] || required(k->fn, size))
		return CUDA_SUCCESS;
	soft_log("kernel %s is refused: it must be launched with a cluster size (.explicitcluster)",
		 e->name);
	return CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

CUresult cluster_require(const struct ptx_entry_info *e, struct func_attrs *a, unsigned int i,
			 int value)
{
	if (e->cluster[0])
		return CUDA_ERROR_NOT_PERMITTED;
	if (value < 0 || value > LARGEST)
		return CUDA_ERROR_INVALID_VALUE;
	a->cluster[i] = value;
	return CUDA_SUCCESS;
}

/* -------------------------------------------------------------------- occupancy */

static int attr(int which)
{
	int v = 0;

	device_attr(which, 0, &v);
	return v;
}

/* By NVIDIA's own arithmetic, for a compute capability that it knows. */
int occupancy_vendor(const struct ptx_kernel_info *k, const struct func_attrs *fa,
		     unsigned int threads, size_t smem)
{
	cudaOccDeviceProp p = {
		.computeMajor = profile->cc / 10, .computeMinor = profile->cc % 10,
		.maxThreadsPerBlock = attr(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
		.maxThreadsPerMultiprocessor =
			attr(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
		.regsPerBlock = attr(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
		.regsPerMultiprocessor = attr(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR),
		.warpSize = 32,
		.sharedMemPerBlock = attr(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
		.sharedMemPerMultiprocessor =
			attr(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
		.numSms = attr(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
		.sharedMemPerBlockOptin = attr(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
		.reservedSharedMemPerBlock =
			attr(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
	};
	cudaOccFuncAttributes a = {
		.maxThreadsPerBlock = p.maxThreadsPerBlock,
		.numRegs = k->num_regs > 255 ? 255 : k->num_regs ? k->num_regs : 1,
		.sharedSizeBytes = k->static_shared, .partitionedGCConfig = PARTITIONED_GC_OFF,
		.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN,
		.maxDynamicSharedSizeBytes = fa->max_dyn >= 0 ? (size_t)fa->max_dyn :
			k->static_shared < 49152 ? 49152 - k->static_shared : 0,
		.numBlockBarriers = 1,
	};
	cudaOccDeviceState state = { .cacheConfig = CACHE_PREFER_NONE,
				     .carveoutConfig = fa->carveout };
	cudaOccResult r;

	if (cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &state, threads, smem))
		return 0;
	return r.activeBlocksPerMultiprocessor;
}

/* How many clusters of n blocks fit, `blocks` of them on each multiprocessor. */
static int clusters_at_once(unsigned int n, unsigned int blocks)
{
	int all = 0;

	for (size_t i = 0; i < sizeof(profile->gpcs); i++)
		all += profile->gpcs[i] * blocks / n;
	return all;
}

static CUresult given_cluster(const CUlaunchConfig *c, unsigned int given[3])
{
	if (c->numAttrs && !c->attrs)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < c->numAttrs; i++) {
		const CUlaunchAttributeValue *v = &c->attrs[i].value;

		if (c->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			continue;
		given[0] = v->clusterDim.x;
		given[1] = v->clusterDim.y;
		given[2] = v->clusterDim.z;
	}
	return CUDA_SUCCESS;
}

static unsigned int threads_of(const CUlaunchConfig *c)
{
	uint64_t n = (uint64_t)c->blockDimX * c->blockDimY;

	return n <= 1024 && n * c->blockDimZ <= 1024 ? n * c->blockDimZ : 1025;
}

CUresult cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func,
				      const CUlaunchConfig *config)
{
	unsigned int given[3] = { 0 }, size[3];
	struct func *f;
	struct ctx *ctx;
	CUresult r;
	bool asked;

	if (!numClusters || !config || given_cluster(config, given))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_described(func, &f, &ctx);
	if (r)
		return r;
	trace_detail("%s, block %ux%ux%u, %u bytes, clusters of %ux%ux%u",
		     program_entry(f->mod->prog, f->entry)->name, config->blockDimX,
		     config->blockDimY, config->blockDimZ, config->sharedMemBytes, given[0], given[1],
		     given[2]);
	r = cluster_size(f, given, size, &asked);
	if (!r && !asked && profile->strict_clusters)
		r = CUDA_ERROR_INVALID_CLUSTER_SIZE;
	if (r && !profile->strict_clusters) {
		*numClusters = 0;	/* cuTENSOR asks, and takes no error for an answer */
		return api_unlock(CUDA_SUCCESS);
	}
	if (!r)
		*numClusters = clusters_at_once(volume(size), occupancy(f, threads_of(config),
								       config->sharedMemBytes));
	return api_unlock(r);
}

CUresult cuOccupancyMaxPotentialClusterSize(int *clusterSize, CUfunction func,
					    const CUlaunchConfig *config)
{
	unsigned int size[3], blocks, n;
	struct func *f;
	struct ctx *ctx;
	CUresult r;

	if (!clusterSize || !config)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_described(func, &f, &ctx);
	if (r)
		return r;
	blocks = occupancy(f, threads_of(config), config->sharedMemBytes);
	n = f->attrs.nonportable ? LARGEST : PORTABLE;
	if (required(f, size)) {
		n = volume(size);
	} else {
		while (n > 1 && !clusters_at_once(n, blocks))
			n /= 2;
	}
	if (!blocks)
		r = CUDA_ERROR_INVALID_CLUSTER_SIZE;
	else
		*clusterSize = n;
	return api_unlock(r);
}
