// SPDX-License-Identifier: Apache-2.0
/*
 * pointer.c - attributes of pointers
 *
 * Frameworks query them for every pointer of every call, so they are answered without the proxy.
 */
#include "arena.h"
#include "context.h"
#include "memory_i.h"
#include "space.h"

#include <string.h>

#define SYNC_MEMOPS 0x80000000u		/* in memory->flags */

/* The allocation, and the mapping, that an address belongs to. */
struct known {
	struct memory m;
	uint64_t base, len;		/* of the mapping */
	uint64_t handle;		/* of its physical memory, or 0 */
	unsigned int access;		/* CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS */
	bool mapped;
};

static bool know(uint64_t addr, struct known *k)
{
	memset(k, 0, sizeof(*k));
	if (!addr || !memory_find(addr, &k->m))
		return false;
	k->base = k->m.base;
	k->len = k->m.len;
	k->mapped = true;
	k->access = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
	if (k->m.kind == MEMORY_REGISTERED && !k->m.more)
		k->access = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
	if (k->m.kind == MEMORY_RESERVED) {
		k->base = k->len = 0;
		k->access = 0;
		k->mapped = vmm_find(addr, &k->base, &k->len, &k->handle, &k->access);
	}
	return true;
}

static struct session *session_of(const struct known *k)
{
	return k->m.session ?: k->m.ctx ? k->m.ctx->session : here;
}

static bool on_host(const struct known *k)
{
	return k->m.kind == MEMORY_HOST || k->m.kind == MEMORY_REGISTERED;
}

static bool host_can_use(const struct known *k)
{
	return on_host(k) || k->m.kind == MEMORY_MANAGED;
}

/* Handle types of memory from a pool, by the pool; of memory from cuMemCreate, by its handle. */
static uint64_t handle_types(const struct known *k, uint64_t addr)
{
	CUmemAllocationProp prop;
	uint8_t key[16];

	if (k->m.kind == MEMORY_POOL)
		return pool_key((CUmemoryPool)pool_of(addr), false, key) ? 0 :
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	return k->handle && !cuMemGetAllocationPropertiesFromHandle(&prop, k->handle) ?
		prop.requestedHandleTypes : 0;
}

/* Attributes whose value is an address or a handle. false: the memory has none. */
static bool as_u64(const struct known *k, CUpointer_attribute a, uint64_t addr, uint64_t *out)
{
	switch (a) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*out = k->m.ctx ? k->m.ctx->o.handle : 0;
		return true;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*out = k->m.kind == MEMORY_REGISTERED ? host_moved(&k->m, addr) : addr;
		return *out;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		/* A view of registered memory: `more` has the program's address (host.c). */
		*out = k->m.kind == MEMORY_HOST && k->m.more ? addr - k->m.base +
			sv_u64(k->m.more) : addr;
		return host_can_use(k);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*out = k->m.id;
		return true;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*out = k->m.base;
		return true;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*out = k->m.len;
		return true;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*out = handle_types(k, addr);
		return true;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*out = k->m.kind == MEMORY_POOL ? pool_of(addr) : ipc_pool(&k->m);
		return true;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*out = k->len;
		return k->mapped;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*out = k->base;
		return k->mapped;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		*out = k->handle ? k->handle : k->m.id;
		return k->mapped;
	default:
		return false;
	}
}

/* Attributes whose value is a number of 32 bits. */
static bool as_u32(const struct known *k, CUpointer_attribute a, unsigned int *out)
{
	switch ((int)a) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*out = on_host(k) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		return k->mapped;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*out = !!(k->m.flags & SYNC_MEMOPS);
		return k->m.kind != MEMORY_REGISTERED;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*out = k->m.kind == MEMORY_MANAGED;
		return true;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*out = device_of(session_of(k));
		return true;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*out = k->m.kind == MEMORY_DEVICE;
		return true;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		*out = 0;
		return true;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*out = k->mapped;
		return true;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*out = k->access;
		return true;
	default:
		return false;
	}
}

static bool is_u64(CUpointer_attribute a)
{
	switch (a) {
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
		return true;
	default:
		return false;
	}
}

static bool is_attribute(CUpointer_attribute a)
{
	return a >= CU_POINTER_ATTRIBUTE_CONTEXT &&
		a <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
}

API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute a, CUdeviceptr addr)
{
	unsigned int n = 0;
	struct known k;
	uint64_t v = 0;

	if (!data || !is_attribute(a))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (a == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
		return sv_absent("CU_POINTER_ATTRIBUTE_P2P_TOKENS",
				 "device memory is not in this process");
	if (!know(addr, &k))
		return CUDA_ERROR_INVALID_VALUE;
	if (is_u64(a)) {
		if (!as_u64(&k, a, addr, &v))
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(data, &v, sizeof(v));
		return CUDA_SUCCESS;
	}
	if (!as_u32(&k, a, &n))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(data, &n, sizeof(n));
	return CUDA_SUCCESS;
}

/* An attribute that the memory lacks, and any of unknown memory, is 0 (or no device). */
API CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *a, void **data,
				    CUdeviceptr addr)
{
	struct known k;
	bool known;

	if (!n || !a || !data)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	for (unsigned int i = 0; i < n; i++)
		if (!is_attribute(a[i]) || !data[i] || a[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
			return CUDA_ERROR_INVALID_VALUE;
	known = know(addr, &k);
	for (unsigned int i = 0; i < n; i++) {
		unsigned int w = 0;
		uint64_t v = 0;

		if (is_u64(a[i])) {
			if (!known || !as_u64(&k, a[i], addr, &v))
				v = 0;
			memcpy(data[i], &v, sizeof(v));
			continue;
		}
		if (!known || !as_u32(&k, a[i], &w))
			w = a[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? CU_DEVICE_INVALID : 0;
		memcpy(data[i], &w, sizeof(w));
	}
	return CUDA_SUCCESS;
}

/*
 * CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, the only one that can be set, matters to other devices that
 * access the memory without the driver. None can here, so the value is only stored.
 */
API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute a, CUdeviceptr addr)
{
	uint64_t arena = (uint64_t)(uintptr_t)process.arena;
	CUresult rc = CUDA_ERROR_INVALID_VALUE;
	void *owner = NULL;
	struct session *s;
	struct memory *m;

	TRY(session_check());
	if (!value || a != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	lock_take(&process.locks.memory);
	if (addr - arena < process.arena_len)
		arena_find(addr - arena, NULL, NULL, &owner);
	else if ((s = session_at(addr)))
		space_find(s->window, addr, NULL, NULL, &owner);
	m = owner;
	if (m && m->kind != MEMORY_POOL && m->kind != MEMORY_RESERVED) {
		m->flags &= ~SYNC_MEMOPS;
		if (*(const unsigned int *)value)
			m->flags |= SYNC_MEMOPS;
		rc = CUDA_SUCCESS;
	}
	lock_drop(&process.locks.memory);
	return rc;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *len, CUdeviceptr addr)
{
	struct context *ctx;
	struct known k;

	TRY(context_current(&ctx));
	if (!know(addr, &k) || !k.mapped || k.m.kind == MEMORY_REGISTERED)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = k.base;
	if (len)
		*len = k.len;
	return CUDA_SUCCESS;
}
