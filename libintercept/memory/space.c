// SPDX-License-Identifier: Apache-2.0
/*
 * space.c - allocates parts of an address range
 *
 * The range is cut into extents, used or free, without holes between them; two free ones are
 * never neighbours. They are the nodes of one treap, ordered by address. Each node has the length
 * of the longest free extent in its subtree, so that the lowest (or highest) one that is long
 * enough is found in O(log n). Taking the lowest one keeps free memory in few long pieces. Nodes
 * are allocated in chunks, which are freed only with the space.
 */
#include "space.h"

#include <errno.h>
#include <sys/mman.h>

struct extent {
	uint64_t addr, len;
	uint64_t longest;		/* free extent in this subtree, itself included */
	void *owner;
	struct extent *left, *right;	/* right: the next one in the list of spare nodes */
	uint32_t prio;			/* no child's is larger */
	bool used;
};

#define CHUNK_NODES 1000

struct chunk {
	struct chunk *next;
	struct extent node[CHUNK_NODES];
};

struct space {
	struct extent *root;
	struct extent *spare;
	size_t spares;
	struct chunk *chunks;
	uint64_t base, len;
	uint32_t seed;
};

/* --------------------------------------------------------------------------------- the treap */

static void update(struct extent *e)
{
	uint64_t m = e->used ? 0 : e->len;

	if (e->left && e->left->longest > m)
		m = e->left->longest;
	if (e->right && e->right->longest > m)
		m = e->right->longest;
	e->longest = m;
}

/* Split the treap: nodes below addr to *a, the others to *b. */
static void split(struct extent *e, uint64_t addr, struct extent **a, struct extent **b)
{
	if (!e) {
		*a = NULL;
		*b = NULL;
		return;
	}
	if (e->addr < addr) {
		split(e->right, addr, &e->right, b);
		*a = e;
	} else {
		split(e->left, addr, a, &e->left);
		*b = e;
	}
	update(e);
}

/* Join two treaps; all addresses of a are below those of b. */
static struct extent *merge(struct extent *a, struct extent *b)
{
	if (!a)
		return b;
	if (!b)
		return a;
	if (a->prio >= b->prio) {
		a->right = merge(a->right, b);
		update(a);
		return a;
	}
	b->left = merge(a, b->left);
	update(b);
	return b;
}

static struct extent *holding(const struct space *s, uint64_t addr)
{
	struct extent *e = s->root;

	if (addr - s->base >= s->len)
		return NULL;
	while (e) {
		if (addr < e->addr)
			e = e->left;
		else if (addr - e->addr >= e->len)
			e = e->right;
		else
			return e;
	}
	return NULL;
}

/* ------------------------------------------------------------------------------------- nodes */

/* Have at least n spare nodes; false: out of memory. */
static bool reserve(struct space *s, size_t n)
{
	struct chunk *c;
	size_t i;

	if (s->spares >= n)
		return true;
	c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (c == MAP_FAILED)
		return false;
	c->next = s->chunks;
	s->chunks = c;
	for (i = CHUNK_NODES; i--;) {
		c->node[i].right = s->spare;
		s->spare = &c->node[i];
	}
	s->spares += CHUNK_NODES;
	return true;
}

/* A node, of those that reserve() has provided. */
static struct extent *node(struct space *s, uint64_t addr, uint64_t len)
{
	struct extent *e = s->spare;

	s->spare = e->right;
	s->spares--;
	s->seed ^= s->seed << 13;
	s->seed ^= s->seed >> 17;
	s->seed ^= s->seed << 5;
	*e = (struct extent) {
		.addr = addr, .len = len, .longest = len, .prio = s->seed,
	};
	return e;
}

static void spare(struct space *s, struct extent *e)
{
	e->right = s->spare;
	s->spare = e;
	s->spares++;
}

/* ------------------------------------------------------------------------------------- search */

#define NO_FIT UINT64_MAX

/* The address of len bytes in a free extent, or NO_FIT. */
static uint64_t fit(const struct extent *e, uint64_t len, uint64_t align, unsigned int flags)
{
	uint64_t at, pad;

	if (e->used || e->len < len)
		return NO_FIT;
	if (flags & SPACE_HIGH) {
		at = (e->addr + (e->len - len)) & ~(align - 1);
		return at >= e->addr ? at : NO_FIT;
	}
	pad = -e->addr & (align - 1);
	return pad <= e->len - len ? e->addr + pad : NO_FIT;
}

/*
 * The first extent, from the wanted end, that has room. Gives up after *tries extents that are long
 * enough but badly aligned.
 */
static struct extent *first_fit(struct extent *e, uint64_t len, uint64_t align, unsigned int flags,
				uint64_t *tries)
{
	struct extent *near, *far, *r;

	if (!e || e->longest < len || !*tries)
		return NULL;
	near = flags & SPACE_HIGH ? e->right : e->left;
	far = flags & SPACE_HIGH ? e->left : e->right;
	r = first_fit(near, len, align, flags, tries);
	if (r)
		return r;
	if (!e->used && e->len >= len && *tries) {
		if (fit(e, len, align, flags) != NO_FIT)
			return e;
		--*tries;
	}
	return first_fit(far, len, align, flags, tries);
}

/*
 * An extent with room for len bytes. Tries a few extents that are long enough; then finds, in
 * O(log n), one that is long enough for any alignment; only without such a one does it try all.
 */
static struct extent *room(struct space *s, uint64_t len, uint64_t align, unsigned int flags)
{
	uint64_t few = 16, all = UINT64_MAX, longer;
	struct extent *e;

	e = first_fit(s->root, len, align, flags, &few);
	if (e || few)
		return e;
	if (!__builtin_add_overflow(len, align - 1, &longer)) {
		few = UINT64_MAX;
		e = first_fit(s->root, longer, align, flags, &few);
		if (e)
			return e;
	}
	return first_fit(s->root, len, align, flags, &all);
}

/* Make [addr, addr + len) of the free extent e used. Two nodes have been reserved. */
static void carve(struct space *s, struct extent *e, uint64_t addr, uint64_t len, void *owner)
{
	struct extent *low, *high, *front = NULL, *back = NULL;
	uint64_t end = e->addr + e->len;

	split(s->root, e->addr, &low, &high);
	split(high, e->addr + 1, &e, &high);
	if (addr > e->addr)
		front = node(s, e->addr, addr - e->addr);
	if (end > addr + len)
		back = node(s, addr + len, end - (addr + len));
	e->addr = addr;
	e->len = len;
	e->owner = owner;
	e->used = true;
	update(e);
	s->root = merge(merge(low, front), merge(e, merge(back, high)));
}

/* ---------------------------------------------------------------------------------- interface */

struct space *space_new(uint64_t base, uint64_t len)
{
	struct space *s;

	if (!base || !len || base + len < base)
		return NULL;
	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED)
		return NULL;
	s->base = base;
	s->len = len;
	s->seed = 2463534242u;
	if (!reserve(s, 1)) {
		munmap(s, sizeof(*s));
		return NULL;
	}
	s->root = node(s, base, len);
	return s;
}

void space_free(struct space *s)
{
	struct chunk *c, *next;

	if (!s)
		return;
	for (c = s->chunks; c; c = next) {
		next = c->next;
		munmap(c, sizeof(*c));
	}
	munmap(s, sizeof(*s));
}

uint64_t space_alloc(struct space *s, uint64_t len, uint64_t align, unsigned int flags, void *owner)
{
	struct extent *e;
	uint64_t addr;

	if (!align)
		align = 1;
	if (!len || (align & (align - 1)) || !reserve(s, 2))
		return 0;
	e = room(s, len, align, flags);
	if (!e)
		return 0;
	addr = fit(e, len, align, flags);
	carve(s, e, addr, len, owner);
	return addr;
}

int space_take(struct space *s, uint64_t addr, uint64_t len, void *owner)
{
	struct extent *e;

	if (!len || addr - s->base >= s->len || s->len - (addr - s->base) < len)
		return -EINVAL;
	if (!reserve(s, 2))
		return -ENOMEM;
	e = holding(s, addr);
	if (e->used || e->len - (addr - e->addr) < len)
		return -EEXIST;
	carve(s, e, addr, len, owner);
	return 0;
}

bool space_find(struct space *s, uint64_t addr, uint64_t *base, uint64_t *len, void **owner)
{
	struct extent *e = holding(s, addr);

	if (!e || !e->used)
		return false;
	if (base)
		*base = e->addr;
	if (len)
		*len = e->len;
	if (owner)
		*owner = e->owner;
	return true;
}

void space_own(struct space *s, uint64_t base, void *owner)
{
	struct extent *e = holding(s, base);

	if (e && e->used && e->addr == base)
		e->owner = owner;
}

bool space_release(struct space *s, uint64_t base)
{
	struct extent *e = holding(s, base), *low, *high, *next;

	if (!e || !e->used || e->addr != base)
		return false;
	split(s->root, base, &low, &high);
	split(high, base + 1, &e, &high);
	e->used = false;
	e->owner = NULL;
	for (next = low; next && next->right; next = next->right)
		;
	if (next && !next->used) {
		split(low, next->addr, &low, &next);
		e->addr = next->addr;
		e->len += next->len;
		spare(s, next);
	}
	for (next = high; next && next->left; next = next->left)
		;
	if (next && !next->used) {
		split(high, next->addr + 1, &next, &high);
		e->len += next->len;
		spare(s, next);
	}
	update(e);
	s->root = merge(merge(low, e), high);
	return true;
}

static bool each(const struct extent *e,
		 bool (*fn)(void *arg, uint64_t base, uint64_t len, void *owner), void *arg)
{
	if (!e)
		return false;
	return each(e->left, fn, arg) || (e->used && fn(arg, e->addr, e->len, e->owner)) ||
		each(e->right, fn, arg);
}

bool space_each(const struct space *s,
		bool (*fn)(void *arg, uint64_t base, uint64_t len, void *owner), void *arg)
{
	return each(s->root, fn, arg);
}
