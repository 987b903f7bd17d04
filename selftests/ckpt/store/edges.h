/* SPDX-License-Identifier: Apache-2.0 */
/*
 * edges.h - while `edges` is set, blocks of memory that end at a page which cannot be touched
 *
 * A read behind the end of a block mostly finds other memory and changes nothing. Between
 * edges_begin() and edges_end() it is a crash, and so is a use of a block that was freed. For
 * programs that are linked with $(EDGES_LDFLAGS). Blocks are aligned as far as their size is.
 */
#ifndef SELFTESTS_CKPT_EDGES_H
#define SELFTESTS_CKPT_EDGES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define EDGES_ROOM (1ul << 36)	/* address space, in which no address is used twice */
#define EDGES_PAGE 4096ul

void *__real_malloc(size_t n);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);

static bool edges;
static uint8_t *edges_room, *edges_next;

static inline void edges_begin(void)
{
	if (!edges_room) {
		edges_room = mmap(NULL, EDGES_ROOM, PROT_NONE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		edges_next = edges_room;
	}
	edges = edges_room != MAP_FAILED;
}

static inline void edges_end(void)
{
	edges = false;
}

static inline bool edges_has(const void *p)
{
	return edges_room && (uintptr_t)p - (uintptr_t)edges_room < EDGES_ROOM;
}

/* The first page of a block's pages has its size alone. */
static inline size_t *edges_head(void *p)
{
	return (size_t *)(((uintptr_t)p & -EDGES_PAGE) - EDGES_PAGE);
}

static inline size_t edges_pages(size_t n)
{
	return EDGES_PAGE + (n + EDGES_PAGE - 1) / EDGES_PAGE * EDGES_PAGE;
}

void *__wrap_malloc(size_t n)
{
	size_t size = n ? n : 1, len = edges_pages(size);
	uint8_t *at;

	if (!edges || size > EDGES_ROOM / 16)
		return __real_malloc(n);
	at = __atomic_fetch_add(&edges_next, len + EDGES_PAGE, __ATOMIC_RELAXED);
	if (at + len + EDGES_PAGE > edges_room + EDGES_ROOM ||
	    mprotect(at, len, PROT_READ | PROT_WRITE))
		return __real_malloc(n);
	*(size_t *)at = size;
	memset(at + len - size, 0xa5, size);
	return at + len - size;
}

void __wrap_free(void *p)
{
	size_t len;

	if (!edges_has(p)) {
		__real_free(p);
		return;
	}
	len = edges_pages(*edges_head(p));
	madvise(edges_head(p), len, MADV_DONTNEED);
	mprotect(edges_head(p), len, PROT_NONE);
}

void *__wrap_realloc(void *p, size_t n)
{
	size_t old;
	void *q;

	if (!edges_has(p) && (p || !edges))
		return __real_realloc(p, n);
	q = __wrap_malloc(n);
	if (!q || !p)
		return q;
	old = *edges_head(p);
	memcpy(q, p, old < n ? old : n);
	__wrap_free(p);
	return q;
}

#endif
