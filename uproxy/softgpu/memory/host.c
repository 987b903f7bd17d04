/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - pinned and registered host memory, which kernels may address
 */
#include "soft_i.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define HOSTALLOC_FLAGS (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | \
			 CU_MEMHOSTALLOC_WRITECOMBINED)

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
	struct ctx *ctx;
	struct mem *m;
	size_t span;
	CUresult r;
	void *p;

	if (!pp || !bytesize || (Flags & ~HOSTALLOC_FLAGS))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	r = capture_forbids();
	if (r)
		return api_unlock(r);
	if (bytesize > (size_t)1 << 46)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	span = ROUND_UP(bytesize, 4096);
	p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	m = mem_insert((uint64_t)p, bytesize, MEM_HOST, ctx);
	if (!m) {
		munmap(p, span);
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	m->span = span;
	m->flags = Flags;
	*pp = p;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
	return cuMemHostAlloc(pp, bytesize, CU_MEMHOSTALLOC_DEVICEMAP);
}

CUresult cuMemFreeHost(void *p)
{
	struct ctx *ctx;
	struct mem *m;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	if (!p)
		return api_unlock(CUDA_SUCCESS);
	m = mem_find((uint64_t)p);
	if (!m || m->kind != MEM_HOST || m->va != (uint64_t)p)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	for (struct ctx *c = contexts; c; c = c->next)
		if (c == m->ctx || (m->flags & CU_MEMHOSTALLOC_PORTABLE))
			ctx_drain(c);
	m = mem_find((uint64_t)p);	/* the lock was dropped */
	if (m && m->kind == MEM_HOST && m->va == (uint64_t)p)
		mem_free(m);
	return api_unlock(CUDA_SUCCESS);
}

#define REGISTER_FLAGS (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | \
			CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
	uint64_t va = (uint64_t)p;
	struct ctx *ctx;
	struct mem *m;
	CUresult r;

	if (!p || !bytesize || (Flags & ~REGISTER_FLAGS) || va + bytesize < va)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	profile_cost(profile_slow_pins, bytesize >> 20);
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	r = capture_forbids();
	if (r)
		return api_unlock(r);
	if (Flags & CU_MEMHOSTREGISTER_IOMEMORY)
		return api_unlock(CUDA_ERROR_NOT_SUPPORTED);
	if (in_window(va, 1))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (mem_next(va, &m) && m->va < va + bytesize)
		return api_unlock(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	m = mem_insert(va, bytesize, MEM_REGISTERED, ctx);
	if (!m)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	m->flags = Flags;
	if (Flags & CU_MEMHOSTREGISTER_READ_ONLY)
		m->prot = PROT_READ;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
	return cuMemHostRegister_v2(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void *p)
{
	struct ctx *ctx;
	struct mem *m;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	if (!p)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	m = mem_find((uint64_t)p);
	if (!m || m->kind != MEM_REGISTERED || m->va != (uint64_t)p)
		return api_unlock(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	for (struct ctx *c = contexts; c; c = c->next)
		ctx_drain(c);
	m = mem_find((uint64_t)p);
	if (m && m->kind == MEM_REGISTERED && m->va == (uint64_t)p)
		mem_free(m);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
	struct ctx *ctx;
	struct mem *m;
	CUresult r;

	if (!pdptr || !p || Flags)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	m = mem_find((uint64_t)p);
	if (!m || (m->kind != MEM_HOST && m->kind != MEM_REGISTERED))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*pdptr = (CUdeviceptr)p;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
	struct ctx *ctx;
	struct mem *m;
	CUresult r;

	if (!pFlags || !p)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	m = mem_find((uint64_t)p);
	if (!m || m->kind != MEM_HOST)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*pFlags = m->flags | CU_MEMHOSTALLOC_DEVICEMAP;
	return api_unlock(CUDA_SUCCESS);
}

bool mem_pins_whole(uint64_t va, size_t len)
{
	struct mem *m;

	if (in_window(va, 1) || !mem_next(va, &m) || (m->va > va && m->va - va >= len))
		return true;
	return m->va <= va && len <= m->len - (va - m->va);
}
