// SPDX-License-Identifier: Apache-2.0
/*
 * host.c - pinned host memory, and the program's own memory that it registers
 *
 * Pinned memory is the arena's, at the same address for program, proxy and device. Registered memory
 * stays what it is: the proxy can not see it, so it is copied like pageable memory, and a device
 * address for it is refused. The list of registered ranges is for questions about pointers.
 */
#include "memory_i.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALLOC_FLAGS \
	(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTER_FLAGS \
	(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | \
	 CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)

static uint64_t addr_of(uint64_t off)
{
	return (uint64_t)(uintptr_t)arena_at(off);
}

/* Ids of memory.c grow from 1: ours have a bit of their own. */
uint64_t memory_next_id(void)
{
	static uint64_t ids;

	return __atomic_add_fetch(&ids, 1, __ATOMIC_RELAXED) | 1ull << 40;
}

/* ------------------------------------------------------------------------------ pinned memory */

CUresult host_alloc(enum memory_kind kind, uint64_t len, unsigned int flags, struct memory **out)
{
	struct memory *m = calloc(1, sizeof(*m));
	uint64_t off;
	CUresult rc;

	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*m = (struct memory){ .kind = kind, .len = len, .ctx = thread.ctx, .flags = flags,
			      .id = memory_next_id() };
	/* memory_find() reads the description as soon as the arena has it. */
	pthread_mutex_lock(&memory_lock);
	rc = arena_alloc(len, len < 4096 ? 512 : 4096, m, &off);
	if (!rc)
		m->base = addr_of(off);
	pthread_mutex_unlock(&memory_lock);
	if (rc) {
		free(m);
		return rc;
	}
	/* New memory of the driver is zero, and ours may have been used before. */
	memset(arena_at(off), 0, len);
	*out = m;
	return CUDA_SUCCESS;
}

static struct memory *take_out(uint64_t addr, enum memory_kind kind)
{
	uint64_t arena = addr_of(0), base, len;
	struct memory *m = NULL;
	void *owner = NULL;

	pthread_mutex_lock(&memory_lock);
	if (addr - arena < ring_geometry(session.ring)->arena_len &&
	    arena_find(addr - arena, &base, &len, &owner) && owner && base == addr - arena &&
	    ((struct memory *)owner)->kind == kind) {
		m = owner;
		arena_free(base);
	}
	pthread_mutex_unlock(&memory_lock);
	return m;
}

CUresult host_free(uint64_t addr, enum memory_kind kind)
{
	struct context *ctx;
	struct memory m, *gone;
	CUresult rc;

	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	if (!memory_find(addr, &m) || m.kind != kind || m.base != addr)
		return CUDA_ERROR_INVALID_VALUE;
	rc = context_sync(m.ctx && m.ctx->live ? m.ctx : ctx);
	gone = take_out(addr, kind);
	if (!gone)
		return CUDA_ERROR_INVALID_VALUE;
	free(gone->more);
	free(gone);
	return rc;
}

API CUresult cuMemHostAlloc(void **out, size_t len, unsigned int flags)
{
	struct context *ctx;
	struct memory *m;

	if (!out || !len || (flags & ~ALLOC_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	TRY(host_alloc(MEMORY_HOST, len, flags, &m));
	*out = (void *)m->base;
	return CUDA_SUCCESS;
}

API CUresult cuMemAllocHost_v2(void **out, size_t len)
{
	return cuMemHostAlloc(out, len, 0);
}

API CUresult cuMemFreeHost(void *p)
{
	TRY(session_check());
	return host_free(sv_u64(p), MEMORY_HOST);
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned int flags)
{
	struct context *ctx;
	struct memory m;

	if (!out || !p || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	if (host_registered(sv_u64(p), &m)) {
		client_log("cuMemHostGetDevicePointer of registered memory is not supported: "
			   "it is copied through staging; allocate it by cuMemHostAlloc");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (!memory_find(sv_u64(p), &m) || (m.kind != MEMORY_HOST && m.kind != MEMORY_MANAGED))
		return CUDA_ERROR_INVALID_VALUE;
	*out = sv_u64(p);
	return CUDA_SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned int *out, void *p)
{
	struct context *ctx;
	struct memory m;

	if (!out || !p)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	if (host_registered(sv_u64(p), &m)) {
		*out = m.flags;
		return CUDA_SUCCESS;
	}
	if (!memory_find(sv_u64(p), &m) || m.kind != MEMORY_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	*out = m.flags & ALLOC_FLAGS;
	return CUDA_SUCCESS;
}

/* -------------------------------------------------------------------------- registered memory */

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct memory *reg;		/* by address, not overlapping */
static size_t regs, room;

/* The first range that ends behind addr. lock is held. */
static size_t first_behind(uint64_t addr)
{
	size_t low = 0, high = regs;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (reg[mid].base + reg[mid].len <= addr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

bool host_registered(uint64_t addr, struct memory *out)
{
	bool found = false;
	size_t i;

	if (!__atomic_load_n(&regs, __ATOMIC_RELAXED))
		return false;
	pthread_rwlock_rdlock(&lock);
	i = first_behind(addr);
	if (i < regs && reg[i].base <= addr) {
		*out = reg[i];
		found = true;
	}
	pthread_rwlock_unlock(&lock);
	return found;
}

static CUresult add(const struct memory *m)
{
	CUresult rc = CUDA_SUCCESS;
	size_t i;

	pthread_rwlock_wrlock(&lock);
	i = first_behind(m->base);
	if (i < regs && reg[i].base < m->base + m->len) {
		rc = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	} else if (regs == room) {
		struct memory *more = realloc(reg, (2 * room + 16) * sizeof(*reg));

		if (more) {
			reg = more;
			room = 2 * room + 16;
		} else {
			rc = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	if (!rc) {
		memmove(reg + i + 1, reg + i, (regs - i) * sizeof(*reg));
		reg[i] = *m;
		__atomic_store_n(&regs, regs + 1, __ATOMIC_RELAXED);
	}
	pthread_rwlock_unlock(&lock);
	return rc;
}

static void remove_at(size_t i)
{
	memmove(reg + i, reg + i + 1, (regs - i - 1) * sizeof(*reg));
	__atomic_store_n(&regs, regs - 1, __ATOMIC_RELAXED);
}

/* Is memory mapped in all of the range? */
static bool is_mapped(uint64_t addr, uint64_t len)
{
	uint64_t page = sysconf(_SC_PAGESIZE), at, n;
	unsigned char in_core[1024];

	for (at = addr & -page; at < addr + len; at += n) {
		n = addr + len - at;
		if (n > sizeof(in_core) * page)
			n = sizeof(in_core) * page;
		if (mincore((void *)at, n, in_core))
			return false;
	}
	return true;
}

API CUresult cuMemHostRegister_v2(void *p, size_t len, unsigned int flags)
{
	struct memory m = { .kind = MEMORY_REGISTERED, .base = sv_u64(p), .len = len,
			    .flags = flags };
	struct memory other;

	if (!p || !len || m.base + len < m.base || (flags & ~REGISTER_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&m.ctx));
	TRY(capture_unsafe());
	if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
		return sv_unsupported("cuMemHostRegister", "the proxy can not reach I/O memory");
	if (memory_find(m.base, &other) && other.kind != MEMORY_REGISTERED)
		return other.kind == MEMORY_HOST ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED :
			CUDA_ERROR_INVALID_VALUE;
	if (!is_mapped(m.base, len))
		return CUDA_ERROR_INVALID_VALUE;
	m.id = memory_next_id();
	return add(&m);
}

API CUresult cuMemHostUnregister(void *p)
{
	CUresult rc = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	struct context *ctx;
	size_t i;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	pthread_rwlock_wrlock(&lock);
	i = first_behind(sv_u64(p));
	if (i < regs && reg[i].base == sv_u64(p)) {
		remove_at(i);
		rc = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&lock);
	return rc;
}

void host_context_gone(struct context *ctx)
{
	pthread_rwlock_wrlock(&lock);
	for (size_t i = regs; i--;)
		if (reg[i].ctx == ctx)
			remove_at(i);
	pthread_rwlock_unlock(&lock);
}
