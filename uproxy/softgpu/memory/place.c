/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.c - reproducible addresses for observable memory that the driver places (variables, heaps)
 *
 * The address of a module's variables depends on the module's content and its context, not on what
 * was loaded or allocated before, nor on when a library's module came into the context. So a
 * restored program, whose modules are loaded again, finds its variables at their old addresses. A
 * hash (the key) selects a slot in a separate part of the window; if it is taken, the next free
 * slots are used.
 *
 * With the profile's option moved-variables there is one key for the variables of all modules, so
 * they lie one behind the other in the order of their loading, from a place that depends on the
 * randomisation of the process's address space: a restored program finds them only if both are the
 * same.
 */
#include "soft_i.h"

#include <stdlib.h>
#include <sys/mman.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define SLOT ((size_t)64 << 10)

static uint64_t base;
static size_t len;
static uint64_t variables;		/* the key of moved-variables */
static struct extents slots;		/* free ones */
static size_t taken[SOFT_MAX_DEVICES];	/* bytes, by device */

uint64_t place_hash(uint64_t seed, const void *p, size_t n)
{
	return XXH3_64bits_withSeed(p, n, seed);
}

/* Where libc lies depends on the randomisation, and not on what the process has done. */
static void find_variables(void)
{
	uint64_t libc = (uint64_t)getenv;

	variables = place_hash(0, &libc, sizeof(libc));
}

uint64_t place_variables(uint64_t hash)
{
	return profile_moved_variables ? variables : hash;
}

void place_init(void)
{
	size_t want = window_len / 32 / PAGE_2M * PAGE_2M;

	len = want ? want : PAGE_2M;
	base = window_take_own(len + PAGE_2M, PAGE_2M);
	if (!base || ext_put(&slots, base, len))
		len = 0;
	if (profile_moved_variables)
		find_variables();
}

uint64_t place_textures(void)
{
	return base ? base + len : 0;
}

uint64_t place_key(uint64_t va)
{
	return (va - base) / SLOT;
}

/* A device's `used` counts whole units. */
static void charge(struct device *dev, size_t before, size_t after)
{
	taken[dev->slot] = after;
	dev->used += ROUND_UP(after, PAGE_2M) - ROUND_UP(before, PAGE_2M);
}

static uint64_t find_place(uint64_t key, size_t span, size_t align)
{
	uint64_t va = base + key % (len / SLOT) * SLOT;

	va = ROUND_UP(va, align);
	for (size_t i = 0; i < slots.n; i++) {
		uint64_t end = slots.e[i].va + slots.e[i].len;
		uint64_t at = slots.e[i].va > va ? ROUND_UP(slots.e[i].va, align) : va;

		if (at < end && span <= end - at)
			return at;
	}
	/* nothing free behind it: from the start */
	for (size_t i = 0; i < slots.n; i++) {
		uint64_t at = ROUND_UP(slots.e[i].va, align);

		if (at < slots.e[i].va + slots.e[i].len &&
		    span <= slots.e[i].va + slots.e[i].len - at)
			return at;
	}
	return 0;
}

uint64_t place_take(struct device *dev, uint64_t key, size_t size, size_t align, size_t *span)
{
	size_t now = taken[dev->slot];
	uint64_t va;

	*span = ROUND_UP(size, SLOT);
	if (!len || *span > len || ROUND_UP(now + *span, PAGE_2M) - ROUND_UP(now, PAGE_2M) >
	    dev->total - dev->used)
		return 0;
	va = find_place(key, *span, align < SLOT ? SLOT : align);
	if (!va || !ext_take_at(&slots, va, *span))
		return 0;
	if (mprotect((void *)va, *span, PROT_READ | PROT_WRITE)) {
		ext_put(&slots, va, *span);
		return 0;
	}
	madvise((void *)va, *span, MADV_DODUMP);
	charge(dev, now, now + *span);
	return va;
}

bool place_is(uint64_t va)
{
	return base && va - base < len;	/* the range of texture handles is no memory */
}

void place_put(struct device *dev, uint64_t va, size_t span)
{
	if (mmap((void *)va, span, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		return;
	ext_put(&slots, va, span);
	charge(dev, taken[dev->slot], taken[dev->slot] - span);
}

/* ------------------------------------------------------------------ values */

static __thread uint64_t wanted;

/*
 * Requests a value for the next texture, surface or conditional handle that this thread makes: a
 * restored program holds it already. It is given if it is free. 0: any.
 */
__attribute__((visibility("default")))
void softcuda_next_value(uint64_t value)
{
	wanted = value;
}

uint64_t place_wanted(void)
{
	uint64_t v = wanted;

	wanted = 0;
	return v;
}
