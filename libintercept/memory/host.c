// SPDX-License-Identifier: Apache-2.0
/*
 * host.c - pinned host memory, and the program's own memory that it registers
 *
 * Pinned memory is the arena's, at the same address for program, proxy and device. The program's
 * memory is private to it, so registering whole pages of it puts pages of the arena in their place:
 *
 *   program's address ──┐ the same pages   cuMemHostRegister: contents copied, then mapped here
 *   arena's address ────┘ (shared)         cuMemHostUnregister, or a fork's child: copied back into
 *                                          private memory, where the arena is still mapped
 *
 * A range that is not made of whole private pages, or whose pages cannot be mapped twice (the
 * module forbids it), stays in place: it is copied like pageable memory and has no device
 * address.
 */
#include "arena.h"
#include "captured.h"
#include "context.h"
#include "memory_i.h"

#include <errno.h>
#include <stdio.h>
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

/* A new CU_POINTER_ATTRIBUTE_BUFFER_ID; bit 40 is always set. */
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
	/* The driver's new memory is zero, too. */
	rc = arena_zeroed(len, len < 4096 ? 512 : 4096, &off);
	if (rc) {
		free(m);
		return rc;
	}
	m->base = addr_of(off);
	arena_own(off, m);	/* from now on memory_find() reads the description */
	*out = m;
	return CUDA_SUCCESS;
}

static struct memory *take_out(uint64_t addr, enum memory_kind kind)
{
	uint64_t arena = addr_of(0), base, len;
	struct memory *m = NULL;
	void *owner = NULL;

	lock_take(&process.locks.memory);
	if (addr - arena < process.arena_len &&
	    arena_find(addr - arena, &base, &len, &owner) && owner && base == addr - arena &&
	    ((struct memory *)owner)->kind == kind &&
	    (kind != MEMORY_HOST || !((struct memory *)owner)->more)) {
		m = owner;
		arena_own(base, NULL);
	}
	lock_drop(&process.locks.memory);
	if (m)
		arena_free(base);
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
	if (rc == CUDA_ERROR_EXTERNAL_DEVICE)	/* what stands may use it yet */
		return rc;
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
	return p ? host_free(sv_u64(p), MEMORY_HOST) : CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned int flags)
{
	struct context *ctx;
	struct memory m;

	if (!out || !p || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	if (host_registered(sv_u64(p), &m)) {
		*out = host_moved(&m, sv_u64(p));
		if (*out)
			return CUDA_SUCCESS;
		return sv_unsupported("cuMemHostGetDevicePointer of registered memory",
				      "it is no whole pages of private memory; allocate it by cuMemHostAlloc");
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
	/* With unified addressing memory is always mapped for the device. */
	*out = (m.flags & ALLOC_FLAGS) | CU_MEMHOSTALLOC_DEVICEMAP;
	return CUDA_SUCCESS;
}

/* -------------------------------------------------------------------------- registered memory */

/* The first range that ends behind addr. locks.registered is held. */
static size_t first_behind(const struct regions *rg, uint64_t addr)
{
	size_t low = 0, high = rg->n;

	assert_held(&process.locks.registered);
	while (low < high) {
		size_t mid = (low + high) / 2;

		if (rg->at[mid].base + rg->at[mid].len <= addr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

bool host_registered(uint64_t addr, struct memory *out)
{
	struct regions *rg = &process.regions;
	bool found = false;
	size_t i;

	if (!__atomic_load_n(&rg->n, __ATOMIC_RELAXED))
		return false;
	lock_take(&process.locks.registered);
	i = first_behind(rg, addr);
	if (i < rg->n && rg->at[i].base <= addr) {
		*out = rg->at[i];
		found = true;
	}
	lock_drop(&process.locks.registered);
	return found;
}

static CUresult add_region(const struct memory *m)
{
	struct regions *rg = &process.regions;
	CUresult rc = CUDA_SUCCESS;
	size_t i;

	lock_take(&process.locks.registered);
	i = first_behind(rg, m->base);
	if (i < rg->n && rg->at[i].base < m->base + m->len) {
		rc = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	} else if (rg->n == rg->room) {
		struct memory *more = realloc(rg->at, (2 * rg->room + 16) * sizeof(*more));

		if (more) {
			rg->at = more;
			rg->room = 2 * rg->room + 16;
		} else {
			rc = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	if (!rc) {
		memmove(rg->at + i + 1, rg->at + i, (rg->n - i) * sizeof(*m));
		rg->at[i] = *m;
		__atomic_store_n(&rg->n, rg->n + 1, __ATOMIC_RELAXED);
	}
	lock_drop(&process.locks.registered);
	return rc;
}

static void remove_at(struct regions *rg, size_t i)
{
	memmove(rg->at + i, rg->at + i + 1, (rg->n - i - 1) * sizeof(*rg->at));
	__atomic_store_n(&rg->n, rg->n - 1, __ATOMIC_RELAXED);
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

/* ------------------------------------------------------- arena pages at the program's addresses */

struct map {			/* a line of /proc/self/maps */
	uint64_t start, end, inode;
	char prot[5];
	const char *path;
};

/* Call fn for each mapping that overlaps the range, in order. fn may change the mapping. */
static int for_maps(uint64_t addr, uint64_t len, int (*fn)(const struct map *m, void *arg),
		    void *arg)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char *line = NULL;
	size_t room = 0;
	int rc = 0;

	if (!f)
		return -errno;
	while (!rc && getline(&line, &room, f) > 0) {
		struct map m;
		int path = 0;

		if (sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu %n", &m.start, &m.end, m.prot,
			   &m.inode, &path) != 4)
			continue;
		line[strcspn(line, "\n")] = 0;
		m.path = line + path;
		if (m.start >= addr + len)
			break;
		if (m.end > addr)
			rc = fn(&m, arg);
	}
	free(line);
	fclose(f);
	return rc;
}

struct seen {
	uint64_t at;		/* end of the private memory without a gap so far */
};

static int is_private(const struct map *m, void *arg)
{
	struct seen *s = arg;

	if (m->start > s->at || m->inode || strncmp(m->prot, "rw-p", 4))
		return -EINVAL;
	s->at = m->end;
	return 0;
}

/* Whether the range is whole pages of private anonymous memory, all of them mapped. */
static bool can_move(uint64_t addr, uint64_t len)
{
	uint64_t page = sysconf(_SC_PAGESIZE);
	struct seen s = { addr };

	return !(addr % page) && !(len % page) && !for_maps(addr, len, is_private, &s) &&
		s.at >= addr + len;
}

/*
 * Map the arena's pages at addr a second time. The mapping is made elsewhere first, so that the
 * memory at addr is unchanged if a step fails.
 */
static int map_again(uint64_t off, uint64_t addr, uint64_t len)
{
	void *p = mremap(arena_at(off), 0, len, MREMAP_MAYMOVE);

	if (p == MAP_FAILED)
		return -errno;
	if (madvise(p, len, MADV_DOFORK)) {
		munmap(p, len);
		return -ENOTSUP;
	}
	memcpy(p, (const void *)addr, len);
	if (mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, addr) == MAP_FAILED) {
		munmap(p, len);
		return -errno;
	}
	return 0;
}

static int take_path(const struct map *at, void *arg)
{
	struct regions *rg = arg;

	return snprintf(rg->arena, sizeof(rg->arena), "%s", at->path) < (int)sizeof(rg->arena) ?
		0 : -ENAMETOOLONG;
}

/* Note the name of the arena's file. A restore replaces the file by another one of that name. */
static bool note_arena(void)
{
	struct regions *rg = &process.regions;
	bool noted;

	lock_take(&process.locks.registered);
	noted = !for_maps(addr_of(0), 1, take_path, rg) && *rg->arena;
	lock_drop(&process.locks.registered);
	return noted;
}

static int private_again(const struct map *at, void *arg)
{
	const struct memory *m = arg;
	uint64_t from = at->start > m->base ? at->start : m->base;
	uint64_t to = at->end < m->base + m->len ? at->end : m->base + m->len;
	void *p;

	if (strcmp(at->path, process.regions.arena))
		return 0;
	p = mmap(NULL, to - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -errno;
	memcpy(p, (const void *)from, to - from);
	if (mremap(p, to - from, to - from, MREMAP_MAYMOVE | MREMAP_FIXED, from) == MAP_FAILED) {
		munmap(p, to - from);
		return -errno;
	}
	return 0;
}

/* Put private memory back at the program's addresses, where the arena is still mapped. */
static int move_back(struct memory *m)
{
	return m->more ? for_maps(m->base, m->len, private_again, m) : 0;
}

/* The child has one thread; locks may be held by threads that it does not have. */
void host_forked(void)
{
	struct regions *rg = &process.regions;

	for (size_t i = 0; i < rg->n; i++)
		move_back(&rg->at[i]);
	rg->n = 0;
	process.locks.registered = (struct lock)LOCK_INIT(LOCK_REGISTERED);
}

/* Give a registered range an address for the device; if that fails it stays in place. */
static void move(struct memory *m)
{
	struct memory *view;
	uint64_t off;
	CUresult rc;

	if (!can_move(m->base, m->len) || !note_arena())
		return;
	view = calloc(1, sizeof(*view));
	if (!view)
		return;
	*view = (struct memory){ .kind = MEMORY_HOST, .len = m->len, .ctx = m->ctx,
				 .flags = m->flags, .id = m->id, .more = (void *)m->base };
	rc = arena_alloc(m->len, 4096, NULL, &off);
	if (!rc && !map_again(off, m->base, m->len)) {
		view->base = addr_of(off);
		arena_own(off, view);
		m->more = (void *)view->base;
		return;
	}
	if (!rc)
		arena_free(off);
	free(view);
}

static void drop_view(const struct memory *m)
{
	uint64_t off = (uint64_t)(uintptr_t)m->more - addr_of(0);
	void *owner = NULL;

	if (!m->more)
		return;
	lock_take(&process.locks.memory);
	if (arena_find(off, NULL, NULL, &owner))
		arena_own(off, NULL);
	lock_drop(&process.locks.memory);
	arena_free(off);
	free(owner);
}

uint64_t host_moved(const struct memory *m, uint64_t addr)
{
	return m->more ? (uint64_t)(uintptr_t)m->more + (addr - m->base) : 0;
}

/* ------------------------------------------------------------------------------------ the calls */

API CUresult cuMemHostRegister_v2(void *p, size_t len, unsigned int flags)
{
	struct memory m = { .kind = MEMORY_REGISTERED, .base = sv_u64(p), .len = len,
			    .flags = flags };
	struct regions *rg = &process.regions;
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
	TRY(add_region(&m)); /* from here on other threads cannot register it */
	move(&m);
	if (!m.more)
		return CUDA_SUCCESS;
	lock_take(&process.locks.registered);
	rg->at[first_behind(rg, m.base)].more = m.more;
	lock_drop(&process.locks.registered);
	return CUDA_SUCCESS;
}

API CUresult cuMemHostRegister(void *p, size_t len, unsigned int flags)
{
	return cuMemHostRegister_v2(p, len, flags);
}

API CUresult cuMemHostUnregister(void *p)
{
	struct regions *rg = &process.regions;
	struct context *ctx;
	struct memory m;
	CUresult rc;
	size_t i;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	if (!host_registered(sv_u64(p), &m) || m.base != sv_u64(p))
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	rc = context_sync(m.ctx->live ? m.ctx : ctx);
	if (rc == CUDA_ERROR_EXTERNAL_DEVICE)
		return rc;
	lock_take(&process.locks.registered);
	i = first_behind(rg, sv_u64(p));
	if (i < rg->n && rg->at[i].base == sv_u64(p)) {
		m = rg->at[i];
		/* If there is no private memory for them, the arena keeps the pages. */
		if (move_back(&m))
			m.more = NULL;
		remove_at(rg, i);
	} else {
		m.more = NULL;
		rc = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	}
	lock_drop(&process.locks.registered);
	drop_view(&m);
	return rc;
}

void host_context_gone(struct context *ctx)
{
	struct regions *rg = &process.regions;

	for (;;) {
		struct memory m = { .len = 0 };

		lock_take(&process.locks.registered);
		for (size_t i = rg->n; i-- && !m.len;)
			if (rg->at[i].ctx == ctx) {
				m = rg->at[i];
				if (move_back(&m))
					m.more = NULL;
				remove_at(rg, i);
			}
		lock_drop(&process.locks.registered);
		if (!m.len)
			return;
		drop_view(&m);
	}
}
