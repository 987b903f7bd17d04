/* SPDX-License-Identifier: Apache-2.0 */
/*
 * query.c - attributes of functions and kernels, occupancy, attributes of pointers.
 */
#include "module_i.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_SMEM 232448
#define SM_SMEM 233472
#define RESERVED_SMEM 1024

/* ------------------------------------------------------ function attributes */

/* Threads of a block whose registers fit; warps are given them in fours. */
static uint32_t by_registers(const struct ptx_kernel_info *k)
{
	uint32_t warp = ROUND_UP((k->num_regs ? k->num_regs : 1) * 32, 256);

	return 65536 / warp / 4 * 4 * 32;
}

static CUresult get_attr(int *pi, int attrib, struct program *p, unsigned int entry,
			 const struct func_attrs *a)
{
	const struct ptx_entry_info *e = program_entry(p, entry);
	const struct ptx_kernel_info *k;
	uint32_t max = 1024;
	CUresult r = program_describe(p, entry);

	if (r)
		return r;
	k = program_info(p, entry);
	if (e->maxntid[0])
		max = e->maxntid[0] * (e->maxntid[1] ? e->maxntid[1] : 1) *
		      (e->maxntid[2] ? e->maxntid[2] : 1);
	if (e->reqntid[0])
		max = e->reqntid[0] * (e->reqntid[1] ? e->reqntid[1] : 1) *
		      (e->reqntid[2] ? e->reqntid[2] : 1);
	if (p->cubin && max > by_registers(k))
		max = by_registers(k);
	switch (attrib) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*pi = max;
		break;
	case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
		*pi = k->static_shared;
		break;
	case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
		*pi = 0;
		for (unsigned int i = 0; i < program_nvars(p); i++)
			if (program_var(p, i)->space == PTX_CONST)
				*pi += program_var(p, i)->size;
		break;
	case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
		*pi = k->local_bytes;
		break;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*pi = k->num_regs > 255 ? 255 : k->num_regs;
		break;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*pi = attrib == CU_FUNC_ATTRIBUTE_PTX_VERSION ? program_target(p) : profile->cc;
		break;
	case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
		*pi = 0;
		break;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		*pi = a->max_dyn >= 0 ? a->max_dyn :
		      k->static_shared < 49152 ? 49152 - (int)k->static_shared : 0;
		break;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		*pi = a->carveout;
		break;
	case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
		*pi = e->explicit_cluster;
		break;
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
		attrib -= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH;
		*pi = e->cluster[attrib] ? (int)e->cluster[attrib] : a->cluster[attrib];
		break;
	case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		*pi = a->nonportable;
		break;
	case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		*pi = a->policy;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static CUresult set_attr(struct program *p, unsigned int entry, struct func_attrs *a, int attrib,
			 int value)
{
	uint32_t shared;
	CUresult r;

	switch (attrib) {
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		r = program_shared(p, entry, &shared);
		if (r)
			return r;
		if (value < 0 || value > MAX_SMEM || value + shared > MAX_SMEM)
			return CUDA_ERROR_INVALID_VALUE;
		a->max_dyn = value;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		if (value < -1 || value > 100)
			return CUDA_ERROR_INVALID_VALUE;
		a->carveout = value;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
		return cluster_require(program_entry(p, entry), a,
				       attrib - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, value);
	case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		a->nonportable = value != 0;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		a->policy = value;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* Of either handle: program (with a reference, so that big may be dropped), entry, attributes. */
static CUresult lock_either(void *h, bool func_ok, struct program **p, unsigned int *entry,
			    struct func_attrs **a)
{
	CUresult r = api_lock_asked();

	if (r)
		return r;
	if (func_ok && obj_live(h, OBJ_FUNC)) {
		struct func *f = h;

		*p = f->mod->prog;
		*entry = f->entry;
		*a = &f->attrs;
	} else if (obj_live(h, OBJ_KERNEL)) {
		struct kernel *k = h;

		*p = k->lib->prog;
		*entry = k->entry;
		*a = &k->attrs;
	} else {
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	}
	(*p)->refs++;
	return CUDA_SUCCESS;
}

static CUresult attribute(void *h, bool func_ok, int *pi, int attrib, int value)
{
	struct program *p;
	struct func_attrs *a, copy;
	unsigned int entry;
	CUresult r = lock_either(h, func_ok, &p, &entry, &a);

	if (r)
		return r;
	copy = *a;
	pthread_mutex_unlock(&big);
	r = pi ? get_attr(pi, attrib, p, entry, &copy) : set_attr(p, entry, &copy, attrib, value);
	pthread_mutex_lock(&big);
	if (!r && !pi && (obj_live(h, OBJ_FUNC) || obj_live(h, OBJ_KERNEL)))
		*a = copy;
	program_put(p);
	return api_unlock(r);
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
	if (!pi)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return attribute(hfunc, true, pi, attrib, 0);
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
	return attribute(hfunc, true, NULL, attrib, value);
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
	if (!pi)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	if (dev < 0 || dev >= ndevices)
		return api_enter() ?: CUDA_ERROR_INVALID_DEVICE;
	return attribute(kernel, false, pi, attrib, 0);
}

/* Sets a kernel's attribute for its functions in every context, existing and future. */
CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
	struct kernel *k = (struct kernel *)kernel;
	CUresult r;

	if (dev < 0 || dev >= ndevices)
		return api_enter() ?: CUDA_ERROR_INVALID_DEVICE;
	r = attribute(kernel, false, NULL, attrib, val);
	if (r)
		return r;
	pthread_mutex_lock(&big);
	if (obj_live(k, OBJ_KERNEL))
		for (struct ctx *c = contexts; c; c = c->next)
			for (struct module *m = c->modules; m; m = m->next)
				if (m->lib == k->lib && m->funcs[k->entry] &&
				    c->dev->ordinal == dev)
					m->funcs[k->entry]->attrs = k->attrs;
	return api_unlock(CUDA_SUCCESS);
}

static CUresult valid_func(void *h)
{
	CUresult r = api_lock_asked();

	if (r)
		return r;
	return api_unlock(obj_live(h, OBJ_FUNC) || obj_live(h, OBJ_KERNEL) ?
				  CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
	if ((int)config < 0 || config > CU_FUNC_CACHE_PREFER_EQUAL)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return valid_func(hfunc);	/* a hint without effect here */
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
	if (dev < 0 || dev >= ndevices)
		return api_enter() ?: CUDA_ERROR_INVALID_DEVICE;
	return cuFuncSetCacheConfig((CUfunction)kernel, config);
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config)
{
	if ((int)config < 0 || config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	return valid_func(hfunc);
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
	CUresult r = api_lock();

	if (r)
		return r;
	if (!hmod || !obj_live(hfunc, OBJ_FUNC))
		return api_unlock(hmod ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
	*hmod = (CUmodule)((struct func *)hfunc)->mod;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
	struct func *f = (struct func *)hfunc;
	CUresult r;

	if (!name)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	if (obj_live(hfunc, OBJ_KERNEL)) {
		api_unlock(r);
		return cuKernelGetName(name, (CUkernel)hfunc);
	}
	if (!obj_live(f, OBJ_FUNC))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	*name = program_entry(f->mod->prog, f->entry)->name;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
	CUresult r;

	if (!state)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = valid_func(function);
	if (!r)
		*state = CU_FUNCTION_LOADING_STATE_LOADED;
	return r;
}

CUresult cuFuncLoad(CUfunction function)
{
	struct func *f;
	struct ctx *ctx;
	CUresult r = api_lock_func(function, &f, &ctx);

	return r ?: api_unlock(CUDA_SUCCESS);
}

/* ---------------------------------------------------------------- occupancy */

static int dev_attr(int attr)
{
	int v = 0;

	device_attr(attr, 0, &v);
	return v;
}

int occupancy(struct func *f, unsigned int threads, size_t smem)
{
	const struct ptx_kernel_info *k = program_info(f->mod->prog, f->entry);
	unsigned int warps = (threads + 31) / 32, regs, by_regs, by_smem, by_threads, n;
	size_t shared;

	if (!threads || threads > 1024)
		return 0;
	if (profile->machine_code)
		return occupancy_vendor(k, &f->attrs, threads, smem);
	/* registers are given to a warp in units of 256 */
	regs = (k->num_regs > 255 ? 255 : k->num_regs ? k->num_regs : 1);
	regs = ROUND_UP(regs * 32, 256);
	by_regs = 65536 / regs / warps;
	shared = ROUND_UP(k->static_shared + smem + RESERVED_SMEM, 128);
	by_smem = shared > SM_SMEM ? 0 : SM_SMEM / shared;
	by_threads = 2048 / (warps * 32);
	n = dev_attr(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
	if (n > by_threads)
		n = by_threads;
	if (n > by_smem)
		n = by_smem;
	if (n > by_regs)
		n = by_regs ? by_regs : 1;
	return n;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
							       int blockSize,
							       size_t dynamicSMemSize,
							       unsigned int flags)
{
	struct func *f;
	struct ctx *ctx;
	CUresult r;

	if (!numBlocks || blockSize <= 0 || (flags & ~CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_described(func, &f, &ctx);
	if (r)
		return r;
	*numBlocks = occupancy(f, blockSize, dynamicSMemSize);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
						     size_t dynamicSMemSize)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
								     dynamicSMemSize, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize,
						   CUfunction func,
						   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
						   size_t dynamicSMemSize, int blockSizeLimit,
						   unsigned int flags)
{
	int max, best = 0, best_size = 0, blocks = 0;
	CUresult r;

	if (!minGridSize || !blockSize || (flags & ~CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = cuFuncGetAttribute(&max, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, func);
	if (r)
		return r;
	if (blockSizeLimit > 0 && blockSizeLimit < max)
		max = blockSizeLimit;
	for (int size = ROUND_UP(max, 32); size > 0; size -= 32) {
		int threads = size > max ? max : size, n;
		size_t smem = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(threads) :
							   dynamicSMemSize;

		r = cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, func, threads, smem);
		if (r)
			return r;
		if (n * threads > best) {
			best = n * threads;
			best_size = threads;
			blocks = n;
		}
	}
	*minGridSize = blocks * dev_attr(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	*blockSize = best_size;
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
					  CUoccupancyB2DSize blockSizeToDynamicSMemSize,
					  size_t dynamicSMemSize, int blockSizeLimit)
{
	return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func,
							  blockSizeToDynamicSMemSize,
							  dynamicSMemSize, blockSizeLimit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func,
						 int numBlocks, int blockSize)
{
	const struct ptx_kernel_info *k;
	struct func *f;
	struct ctx *ctx;
	size_t each;
	CUresult r;

	if (!dynamicSmemSize || numBlocks <= 0 || blockSize <= 0)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_described(func, &f, &ctx);
	if (r)
		return r;
	k = program_info(f->mod->prog, f->entry);
	each = SM_SMEM / numBlocks / 128 * 128;
	each = each > RESERVED_SMEM + k->static_shared ?
		       each - RESERVED_SMEM - k->static_shared : 0;
	if (each + k->static_shared > MAX_SMEM)
		each = MAX_SMEM - k->static_shared;
	*dynamicSmemSize = each;
	return api_unlock(CUDA_SUCCESS);
}

/* ------------------------------------------------------- pointer attributes */

static CUmemorytype pointer_type(const struct mem *m)
{
	return m->kind == MEM_HOST || m->kind == MEM_REGISTERED ? CU_MEMORYTYPE_HOST :
								  CU_MEMORYTYPE_DEVICE;
}

static CUresult pointer_attr(void *data, int attr, struct mem *m, uint64_t ptr)
{
	switch (attr) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		if (m->kind == MEM_VMM || m->kind == MEM_POOL)
			return CUDA_ERROR_INVALID_VALUE;
		*(CUcontext *)data = (CUcontext)m->ctx;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned int *)data = pointer_type(m);
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)data = ptr;
		break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (pointer_type(m) != CU_MEMORYTYPE_HOST && m->kind != MEM_MANAGED)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)data = (void *)ptr;
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*(unsigned int *)data = m->sync_memops;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = m->id;
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned int *)data = m->kind == MEM_MANAGED;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = m->dev ? m->dev->ordinal : CU_DEVICE_INVALID;
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned int *)data = 0;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = m->va;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = m->len;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned int *)data = 1;
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(unsigned long long *)data = m->kind == MEM_VMM ? vmm_handle_types(m) : 0;
		break;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		*(unsigned int *)data = 0;
		break;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*(unsigned int *)data =
			m->prot & PROT_WRITE ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE :
			m->prot ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ :
				  CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)data = m->kind == MEM_POOL ? (CUmemoryPool)soft_pool_of(m) : NULL;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*(size_t *)data = m->len;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*(void **)data = (void *)m->va;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		*(unsigned long long *)data = m->id;
		break;
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		*(unsigned int *)data = 0;
		break;
	default:
		return attr == CU_POINTER_ATTRIBUTE_P2P_TOKENS ? CUDA_ERROR_NOT_SUPPORTED :
								 CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct mem *m;
	CUresult r;

	if (!data)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	if (!ctx_current())
		return api_unlock(CUDA_ERROR_INVALID_CONTEXT);
	m = mem_find(ptr);
	if (m && m->kind == MEM_POOL_FREE)
		m = NULL;
	return api_unlock(m ? pointer_attr(data, attribute, m, ptr) : CUDA_ERROR_INVALID_VALUE);
}

static size_t attr_size(int attr)
{
	switch (attr) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return 8;
	default:
		return 4;
	}
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
				void **data, CUdeviceptr ptr)
{
	struct mem *m;
	CUresult r;

	if (!numAttributes || !attributes || !data)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	m = mem_find(ptr);
	if (m && m->kind == MEM_POOL_FREE)
		m = NULL;
	for (unsigned int i = 0; i < numAttributes; i++) {
		uint64_t scratch;

		if (!data[i] || attributes[i] <= 0 ||
		    attributes[i] > CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE ||
		    attributes[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
			return api_unlock(CUDA_ERROR_INVALID_VALUE);
		memset(data[i], 0, attr_size(attributes[i]));
		if (m && !pointer_attr(&scratch, attributes[i], m, ptr))
			memcpy(data[i], &scratch, attr_size(attributes[i]));
		else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
			*(int *)data[i] = CU_DEVICE_INVALID;
	}
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct mem *m;
	CUresult r;

	if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	m = mem_find(ptr);
	if (!m || m->kind == MEM_POOL || m->kind == MEM_POOL_FREE || m->kind == MEM_VMM)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	m->sync_memops = *(const unsigned int *)value != 0;
	return api_unlock(CUDA_SUCCESS);
}

/* ----------------------------------------------------------------- profiler */

CUresult cuProfilerStart(void)
{
	return api_enter();
}

CUresult cuProfilerStop(void)
{
	return api_enter();
}

CUresult cuProfilerInitialize(const char *configFile, const char *outputFile,
			      CUoutput_mode outputMode)
{
	(void)configFile;
	(void)outputFile;
	(void)outputMode;
	return CUDA_ERROR_PROFILER_DISABLED;
}
