// SPDX-License-Identifier: Apache-2.0
/*
 * host.c - pinned host memory, and the program's own memory that it registers
 *
 * Pinned memory is the arena's, at the same address for program, proxy and device. The program's
 * memory is private to it, so registering whole pages of it puts pages of the arena in their place:
 *
 *   program's address ──┐ the same pages   cuMemHostRegister: contents copied, then mapped here
 *   arena's address ────┘ (shared)         cuMemHostUnregister, or a fork's child: copied back into
 *                                          private memory, as far as ours is still mapped
 *
 * What is no whole private pages, or cannot be mapped twice (the module forbids it), stays what it
 * is: it is copied like pageable memory, and a device address for it is refused.
 */
#include "memory_i.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
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
	    ((struct memory *)owner)->kind == kind &&
	    (kind != MEMORY_HOST || !((struct memory *)owner)->more)) {
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
		client_log("cuMemHostGetDevicePointer of registered memory is not supported: "
			   "it is no whole pages of private memory; allocate it by cuMemHostAlloc");
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
	/* With one address space, memory is mapped whether that was asked for or not. */
	*out = (m.flags & ALLOC_FLAGS) | CU_MEMHOSTALLOC_DEVICEMAP;
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

/* -------------------------------------------------------- pages of the arena in place of others */

struct map {			/* a line of /proc/self/maps */
	uint64_t start, end, off, inode;
	unsigned int major, minor;
	char prot[5];
};

/* Call fn for each mapping that meets the range, in order. It may map something else there. */
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

		if (sscanf(line, "%lx-%lx %4s %lx %x:%x %lu", &m.start, &m.end, m.prot, &m.off,
			   &m.major, &m.minor, &m.inode) != 7)
			continue;
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
	uint64_t at;		/* as far as it is private memory without a gap */
};

static int is_private(const struct map *m, void *arg)
{
	struct seen *s = arg;

	if (m->start > s->at || m->inode || strncmp(m->prot, "rw-p", 4))
		return -EINVAL;
	s->at = m->end;
	return 0;
}

/* Whole pages of private memory of the program's own, all of them there. */
static bool can_move(uint64_t addr, uint64_t len)
{
	uint64_t page = sysconf(_SC_PAGESIZE);
	struct seen s = { addr };

	return !(addr % page) && !(len % page) && !for_maps(addr, len, is_private, &s) &&
		s.at >= addr + len;
}

/*
 * Another mapping of the arena's pages, at addr. It is made elsewhere first: until the last step
 * nothing has happened to what is at addr.
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

static struct map arena_file;	/* what the arena is a mapping of */

static int private_again(const struct map *at, void *arg)
{
	const struct memory *m = arg;
	uint64_t from = at->start > m->base ? at->start : m->base;
	uint64_t to = at->end < m->base + m->len ? at->end : m->base + m->len;
	void *p;

	if (at->inode != arena_file.inode || at->major != arena_file.major ||
	    at->minor != arena_file.minor)
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

/* The program's addresses get private memory again, where they still show our pages. */
static int move_back(struct memory *m)
{
	return m->more ? for_maps(m->base, m->len, private_again, m) : 0;
}

/*
 * In a fork's child what has been registered is private memory, as the rest of its memory is. It is
 * alone: the locks may be held by threads that it does not have.
 */
static void in_child(void)
{
	for (size_t i = 0; i < regs; i++)
		move_back(&reg[i]);
	regs = 0;
	pthread_rwlock_init(&lock, NULL);
}

static void prepare(void)
{
	struct stat st;

	if (fstat(ring_fd(session.ring), &st))
		return;
	arena_file.inode = st.st_ino;
	arena_file.major = major(st.st_dev);
	arena_file.minor = minor(st.st_dev);
	if (pthread_atfork(NULL, NULL, in_child))
		arena_file.inode = 0;
}

/* Give a registered range an address for the device. Failing that it stays as it is. */
static void move(struct memory *m)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct memory *view;
	uint64_t off;
	CUresult rc;

	pthread_once(&once, prepare);
	if (!arena_file.inode || !can_move(m->base, m->len))
		return;
	view = calloc(1, sizeof(*view));
	if (!view)
		return;
	*view = (struct memory){ .kind = MEMORY_HOST, .len = m->len, .ctx = m->ctx,
				 .flags = m->flags, .id = m->id, .more = (void *)m->base };
	pthread_mutex_lock(&memory_lock);
	rc = arena_alloc(m->len, 4096, view, &off);
	if (!rc)
		view->base = addr_of(off);
	pthread_mutex_unlock(&memory_lock);
	if (!rc && !map_again(off, m->base, m->len)) {
		m->more = (void *)view->base;
		return;
	}
	if (!rc) {
		pthread_mutex_lock(&memory_lock);
		arena_free(off);
		pthread_mutex_unlock(&memory_lock);
	}
	free(view);
}

static void drop_view(const struct memory *m)
{
	uint64_t off = (uint64_t)(uintptr_t)m->more - addr_of(0);
	void *owner = NULL;

	if (!m->more)
		return;
	pthread_mutex_lock(&memory_lock);
	if (arena_find(off, NULL, NULL, &owner))
		arena_free(off);
	pthread_mutex_unlock(&memory_lock);
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
	TRY(add(&m));		/* from now on nobody else registers any of it */
	move(&m);
	if (!m.more)
		return CUDA_SUCCESS;
	pthread_rwlock_wrlock(&lock);
	reg[first_behind(m.base)].more = m.more;
	pthread_rwlock_unlock(&lock);
	return CUDA_SUCCESS;
}

API CUresult cuMemHostRegister(void *p, size_t len, unsigned int flags)
{
	return cuMemHostRegister_v2(p, len, flags);
}

API CUresult cuMemHostUnregister(void *p)
{
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
	pthread_rwlock_wrlock(&lock);
	i = first_behind(sv_u64(p));
	if (i < regs && reg[i].base == sv_u64(p)) {
		m = reg[i];
		/* Without memory to go back to, the pages stay the arena's. */
		if (move_back(&m))
			m.more = NULL;
		remove_at(i);
	} else {
		m.more = NULL;
		rc = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	}
	pthread_rwlock_unlock(&lock);
	drop_view(&m);
	return rc;
}

void host_context_gone(struct context *ctx)
{
	for (;;) {
		struct memory m = { .len = 0 };

		pthread_rwlock_wrlock(&lock);
		for (size_t i = regs; i-- && !m.len;)
			if (reg[i].ctx == ctx) {
				m = reg[i];
				if (move_back(&m))
					m.more = NULL;
				remove_at(i);
			}
		pthread_rwlock_unlock(&lock);
		if (!m.len)
			return;
		drop_view(&m);
	}
}
