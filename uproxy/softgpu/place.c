/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.c - addresses that programs can observe and that no call of theirs chooses
 *
 * Where the variables of a module lie is a function of what the module is, not of what was loaded
 * or allocated before, nor of when a library's module came into a context. So a program that is
 * brought back by loading again what is loaded finds them where they were. A hash names a slot in a
 * part of the window that has nothing else; what does not find its slots free takes the next ones.
 */
#include "soft_i.h"

#include <stdlib.h>
#include <sys/mman.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define SLOT ((size_t)64 << 10)

static uint64_t base;
static size_t len;
static struct extents slots;		/* free ones */
static size_t taken[SOFT_MAX_DEVICES];	/* bytes, by device */

uint64_t place_hash(uint64_t seed, const void *p, size_t n)
{
	return XXH3_64bits_withSeed(p, n, seed);
}

void place_init(void)
{
	size_t want = window_len / 32 / PAGE_2M * PAGE_2M;

	len = want ? want : PAGE_2M;
	base = window_take_own(len + PAGE_2M, PAGE_2M);
	if (!base || ext_put(&slots, base, len))
		len = 0;
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

static uint64_t find(uint64_t key, size_t span, size_t align)
{
	uint64_t va = base + key % (len / SLOT) * SLOT;

	va = ROUND_UP(va, align);
	for (size_t i = 0; i < slots.n; i++) {
		uint64_t end = slots.e[i].va + slots.e[i].len;
		uint64_t at = slots.e[i].va > va ? ROUND_UP(slots.e[i].va, align) : va;

		if (at < end && span <= end - at)
			return at;
	}
	/* From the start, then: the last slots are no better than the first. */
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
	va = find(key, *span, align < SLOT ? SLOT : align);
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
	return base && va - base < len;	/* textures' values are no memory */
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
 * The next texture, surface or conditional handle that this thread makes is to have this value, if
 * it can: a program that is brought back has it already. 0: any.
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
