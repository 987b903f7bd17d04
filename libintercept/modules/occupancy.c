// SPDX-License-Identifier: Apache-2.0
/*
 * occupancy.c - how many blocks of a kernel fit on a multiprocessor, and how many clusters on a device
 *
 * For devices that NVIDIA's cuda_occupancy.h knows its arithmetic is used. For others, such as
 * the soft device, the answer is the smallest of four limits from the device's attributes:
 * threads, blocks, shared memory, and registers in units of 256 per warp. The soft device
 * computes the same, so that programs choose the same grids with the proxy and without it.
 */
#include "context.h"
#include "module.h"
#include "send.h"

#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include <cuda_occupancy.h>
#pragma GCC diagnostic pop

struct kernel {
	int max_threads, regs, shared, max_dynamic, carveout;
};

static int device(CUdevice_attribute attr)
{
	return session_device(device_of(here))->attr[attr];
}

static CUresult kernel(CUfunction f, struct kernel *k)
{
	struct context *ctx;

	TRY(context_current(&ctx));
	if (!function_find(f))
		return CUDA_ERROR_INVALID_HANDLE;
	TRY(cuFuncGetAttribute(&k->max_threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
	TRY(cuFuncGetAttribute(&k->regs, CU_FUNC_ATTRIBUTE_NUM_REGS, f));
	TRY(cuFuncGetAttribute(&k->shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f));
	TRY(cuFuncGetAttribute(&k->max_dynamic, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
			       f));
	return cuFuncGetAttribute(&k->carveout, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
				  f);
}

/* ------------------------------------------------------------------- the vendor's arithmetic */

static void describe(const struct kernel *k, cudaOccDeviceProp *p, cudaOccFuncAttributes *a)
{
	*p = (cudaOccDeviceProp){
		.computeMajor = device(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
		.computeMinor = device(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
		.maxThreadsPerBlock = device(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
		.maxThreadsPerMultiprocessor =
			device(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
		.regsPerBlock = device(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
		.regsPerMultiprocessor =
			device(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR),
		.warpSize = device(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
		.sharedMemPerBlock = device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
		.sharedMemPerMultiprocessor =
			device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
		.numSms = device(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
		.sharedMemPerBlockOptin =
			device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
		.reservedSharedMemPerBlock =
			device(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
	};
	*a = (cudaOccFuncAttributes){
		.maxThreadsPerBlock = k->max_threads,
		.numRegs = k->regs,
		.sharedSizeBytes = k->shared,
		.partitionedGCConfig = PARTITIONED_GC_OFF,
		.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN,
		.maxDynamicSharedSizeBytes = k->max_dynamic,
		.numBlockBarriers = 1,
	};
}

/* false: cuda_occupancy.h does not know the device. */
static bool by_vendor(const struct kernel *k, int threads, size_t dynamic, int *blocks)
{
	cudaOccDeviceState state = { .cacheConfig = CACHE_PREFER_NONE,
				     .carveoutConfig = k->carveout };
	cudaOccFuncAttributes a;
	cudaOccDeviceProp p;
	cudaOccResult r;
	cudaOccError e;

	describe(k, &p, &a);
	e = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &state, threads, dynamic);
	*blocks = e ? 0 : r.activeBlocksPerMultiprocessor;
	return e != CUDA_OCC_ERROR_UNKNOWN_DEVICE;
}

/* ----------------------------------------------------------------- by the device's attributes */

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static int by_attributes(const struct kernel *k, int threads, size_t dynamic)
{
	uint64_t warps = (threads + 31) / 32, shared, regs, n, by;

	if (threads <= 0 || threads > device(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK))
		return 0;
	if (dynamic > 1ull << 30)
		return 0;
	n = device(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
	by = device(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / (warps * 32);
	n = by < n ? by : n;
	shared = round_up(k->shared + dynamic +
			  device(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK), 128);
	by = shared ? device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) / shared : n;
	n = by < n ? by : n;
	regs = round_up((k->regs > 0 ? k->regs : 1) * 32, 256) * warps;
	by = device(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR) / regs;
	/* At least one block fits, since registers are spilled. */
	by = by ? by : 1;
	return by < n ? by : n;
}

static int active(const struct kernel *k, int threads, size_t dynamic)
{
	int blocks;

	if (by_vendor(k, threads, dynamic, &blocks))
		return blocks;
	return by_attributes(k, threads, dynamic);
}

/* ---------------------------------------------------------------------------------- the calls */

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, CUfunction f,
								  int threads, size_t dynamic,
								  unsigned int flags)
{
	struct kernel k;

	if (!out || threads <= 0 || (flags & ~CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(kernel(f, &k));
	*out = active(&k, threads, dynamic);
	return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction f, int threads,
							 size_t dynamic)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, f, threads, dynamic, 0);
}

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction f,
						       CUoccupancyB2DSize dynamic_of,
						       size_t dynamic, int limit,
						       unsigned int flags)
{
	int most = 0, blocks = 0, best = 0, max;
	struct kernel k;

	if (!grid || !block || (flags & ~CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(kernel(f, &k));
	max = device(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
	if (k.max_threads < max)
		max = k.max_threads;
	if (limit > 0 && limit < max)
		max = limit;
	for (int size = round_up(max, 32); size > 0; size -= 32) {
		int threads = size > max ? max : size;
		int n = active(&k, threads, dynamic_of ? dynamic_of(threads) : dynamic);

		if (n * threads > most) {
			most = n * threads;
			best = threads;
			blocks = n;
		}
	}
	*grid = blocks * device(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	*block = best;
	return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f,
					      CUoccupancyB2DSize dynamic_of, size_t dynamic,
					      int limit)
{
	return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, f, dynamic_of, dynamic, limit,
							 0);
}

API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *out, CUfunction f, int blocks,
						     int threads)
{
	int64_t reserved, all, optin, each;
	cudaOccDeviceState state = { .cacheConfig = CACHE_PREFER_NONE };
	cudaOccFuncAttributes a;
	cudaOccDeviceProp p;
	struct kernel k;
	cudaOccError e;

	if (!out || blocks <= 0 || threads <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(kernel(f, &k));
	describe(&k, &p, &a);
	state.carveoutConfig = k.carveout;
	e = cudaOccAvailableDynamicSMemPerBlock(out, &p, &a, &state, blocks, threads);
	if (e != CUDA_OCC_ERROR_UNKNOWN_DEVICE)
		return e ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	reserved = device(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
	all = device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
	optin = device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
	each = all / blocks / 128 * 128 - reserved - k.shared;
	if (each < 0)
		each = 0;
	if (each + k.shared > optin)
		each = optin - k.shared;
	*out = each;
	return CUDA_SUCCESS;
}

/* ----------------------------------------------------------------------------------- clusters */

/*
 * Where clusters fit depends on which parts of the chip work, so the driver answers. Libraries ask for
 * the same configuration before each launch: answers are kept.
 */
static CUresult clusters_ask(struct context *ctx, struct function *f, uint16_t op,
			     const struct sv_clusters *of, int *out)
{
	struct verdict v = verdict_about(f, op, of, sizeof(*of));
	struct sv_cluster_count answer = { 0 };

	if (!verdict_find(f, &v)) {
		TRY(function_load(ctx, f));
		v.rc = send_sync(op, of, sizeof(*of), NULL, 0, &answer, sizeof(answer));
		v.value = answer.n;
		if (v.rc && v.rc != CUDA_ERROR_INVALID_CLUSTER_SIZE)
			return v.rc;
		verdict_keep(f, &v);
	}
	if (!v.rc)
		*out = v.value;
	return v.rc;
}

static CUresult describe_clusters(const CUlaunchConfig *c, struct sv_clusters *to)
{
	if (c->numAttrs && !c->attrs)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < c->numAttrs; i++) {
		const CUlaunchAttributeValue *v = &c->attrs[i].value;

		switch ((unsigned int)c->attrs[i].id) {
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
			to->given |= SV_CLUSTER_SIZE;
			memcpy(to->size, &v->clusterDim, sizeof(to->size));
			break;
		case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
			to->given |= SV_CLUSTER_PREFERRED;
			memcpy(to->preferred, &v->clusterDim, sizeof(to->preferred));
			break;
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
			to->given |= SV_CLUSTER_POLICY;
			to->policy = v->clusterSchedulingPolicyPreference;
			break;
		case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
			to->given |= SV_CLUSTER_CARVEOUT;
			memcpy(&to->carveout, v, sizeof(to->carveout));
			break;
		}
	}
	return CUDA_SUCCESS;
}

/* The driver's answer; the context is that of the stream. */
static CUresult clusters(uint16_t op, int *out, CUfunction handle, const CUlaunchConfig *c)
{
	struct function *f = function_find(handle);
	struct sv_clusters a = {
		.grid = { c->gridDimX, c->gridDimY, c->gridDimZ },
		.block = { c->blockDimX, c->blockDimY, c->blockDimZ },
		.shared = c->sharedMemBytes,
	};
	struct stream *s;

	TRY(stream_find(c->hStream, &s));
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	TRY(describe_clusters(c, &a));
	a.ctx = s->o.ctx->o.handle;
	a.function = f->o.handle;
	return clusters_ask(s->o.ctx, f, op, &a, out);
}

static uint64_t cluster_of(const CUlaunchConfig *c)
{
	uint64_t n = 1;

	for (unsigned int i = 0; i < c->numAttrs; i++)
		if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			n = (uint64_t)c->attrs[i].value.clusterDim.x *
				c->attrs[i].value.clusterDim.y * c->attrs[i].value.clusterDim.z;
	return n;
}

API CUresult cuOccupancyMaxPotentialClusterSize(int *out, CUfunction f, const CUlaunchConfig *c)
{
	struct context *ctx;

	if (!out || !c)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	if (!function_find(f))
		return CUDA_ERROR_INVALID_HANDLE;
	if (device(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH))
		return clusters(SV_OP_cuOccupancyMaxPotentialClusterSize, out, f, c);
	*out = 1;
	return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveClusters(int *out, CUfunction f, const CUlaunchConfig *c)
{
	uint64_t threads;
	struct kernel k;

	if (!out || !c || (c->numAttrs && !c->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(kernel(f, &k));
	threads = sv_mul(sv_mul(c->blockDimX, c->blockDimY), c->blockDimZ);
	if (!threads)
		return CUDA_ERROR_INVALID_VALUE;
	if (device(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH))
		return clusters(SV_OP_cuOccupancyMaxActiveClusters, out, f, c);
	if (cluster_of(c) > 1) {
		*out = 0;	/* no cluster fits: not an error, cuTENSOR queries it */
		return CUDA_SUCCESS;
	}
	*out = threads > 1 << 20 ? 0 : active(&k, threads, c->sharedMemBytes) *
		device(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	return CUDA_SUCCESS;
}
