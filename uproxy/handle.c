// SPDX-License-Identifier: Apache-2.0
/*
 * handle.c - the table of virtual handles: finds the driver's object by value and type
 *
 *     free ── sv_reserve ─► reserved ── sv_bind ─► live ── sv_unbind ─► free
 *                             └── sv_unreserve ─► free
 *
 * A handle's type and index select a slot; the slot matches only if it holds the whole handle.
 * Look-ups take no lock; `state` is stored last (release) and loaded first (acquire). Changes are
 * made under `lock`. A session has at most PAGES_MAX pages of slots, so that a client that spreads
 * its indices runs out of pages before the proxy runs out of memory.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "handle.h"

#define BITS	8		/* of an index, for each of three levels */
#define FAN	(1u << BITS)
#define PAGES_MAX	16384u		/* 4 million handles, 168 MB */

_Static_assert(3 * BITS == SV_HANDLE_INDEX_BITS, "three levels");

enum { FREE, RESERVED, LIVE };

struct slot {
	uint64_t handle;
	uint64_t real;
	void *obj;
	uint64_t ctx;
	uint32_t state;
};

struct middle {
	struct slot *page[FAN];
};

static struct middle *dir[SV_TYPES][FAN];
static uint32_t pages;
static struct lock lock = LOCK_INIT(PROXY_HANDLES);

_Static_assert((int)SV_T_CUstream < (int)SV_TYPES, "a table for each type");

static struct slot *slot_at(unsigned int type, uint64_t handle)
{
	uint32_t i = sv_handle_index(handle);
	/* pairs with make(), as the next one */
	struct middle *m = __atomic_load_n(&dir[type][i >> 2 * BITS], __ATOMIC_ACQUIRE);
	struct slot *p;

	p = m ? __atomic_load_n(&m->page[i >> BITS & (FAN - 1)], __ATOMIC_ACQUIRE) : NULL;
	return p ? &p[i & (FAN - 1)] : NULL;
}

static struct slot *find_slot(unsigned int type, uint64_t handle)
{
	struct slot *s = slot_at(type, handle);

	/* pairs with handle_bind() */
	if (!s || __atomic_load_n(&s->state, __ATOMIC_ACQUIRE) != LIVE ||
	    __atomic_load_n(&s->handle, __ATOMIC_RELAXED) != handle)
		return NULL;
	return s;
}

bool handle_live(unsigned int type, uint64_t handle)
{
	return type < SV_TYPES && sv_is_handle(type, handle) && find_slot(type, handle);
}

void *handle_obj(struct sv_session *s, unsigned int type, uint64_t handle)
{
	struct slot *slot;

	(void)s;
	if (!sv_is_handle(type, handle))
		return NULL;
	slot = find_slot(type, handle);
	return slot ? __atomic_load_n(&slot->obj, __ATOMIC_RELAXED) : NULL;
}

/* A CUkernel is accepted where a CUfunction is declared. */
static unsigned int type_of(unsigned int type, uint64_t handle)
{
	if (type == SV_T_CUfunction && sv_is_handle(SV_T_CUkernel, handle))
		return SV_T_CUkernel;
	return type;
}

static __thread CUevent instead;

void event_instead(CUevent e)
{
	instead = e;
}

int handle_real(struct sv_session *s, unsigned int type, uint64_t handle, uint64_t *real)
{
	struct slot *slot;

	*real = 0;
	if (type == SV_T_CUdevice_v1) {
		*real = s->hal.dev;
		return handle == (uint64_t)s->shared->device ? 0 : CUDA_ERROR_INVALID_DEVICE;
	}
	type = type_of(type, handle);
	if (type >= SV_TYPES || !sv_is_handle(type, handle))
		return -EPROTO;
	slot = find_slot(type, handle);
	if (!slot)
		return type == SV_T_CUcontext ? CUDA_ERROR_CONTEXT_IS_DESTROYED :
						CUDA_ERROR_INVALID_HANDLE;
	*real = __atomic_load_n(&slot->real, __ATOMIC_RELAXED);
	if (type == SV_T_CUevent && instead)
		*real = (uintptr_t)instead;
	return 0;
}

/* The slot of a handle, allocated if need be. lock is held. */
static struct slot *make(unsigned int type, uint64_t handle)
{
	uint32_t i = sv_handle_index(handle);
	struct middle **m = &dir[type][i >> 2 * BITS];
	struct slot **p;

	assert_held(&lock);
	if (!*m) {
		struct middle *new = calloc(1, sizeof(*new));

		if (!new)
			return NULL;
		__atomic_store_n(m, new, __ATOMIC_RELEASE);
	}
	p = &(*m)->page[i >> BITS & (FAN - 1)];
	if (!*p) {
		struct slot *new = pages < PAGES_MAX ? calloc(FAN, sizeof(*new)) : NULL;

		if (!new)
			return NULL;
		pages++;
		__atomic_store_n(p, new, __ATOMIC_RELEASE);
	}
	return &(*p)[i & (FAN - 1)];
}

int sv_reserve(struct sv_session *s, unsigned int type, uint64_t handle)
{
	struct slot *slot;
	int rc = 0;

	(void)s;
	if (type >= SV_TYPES || !sv_is_handle(type, handle))
		return -EPROTO;
	lock_take(&lock);
	slot = make(type, handle);
	if (!slot) {
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	} else if (slot->state != FREE) {
		rc = -EEXIST;
	} else {
		__atomic_store_n(&slot->handle, handle, __ATOMIC_RELAXED);
		__atomic_store_n(&slot->state, RESERVED, __ATOMIC_RELEASE);
	}
	lock_drop(&lock);
	return rc;
}

static void set_free(struct slot *slot)
{
	__atomic_store_n(&slot->state, FREE, __ATOMIC_RELEASE);
	__atomic_store_n(&slot->obj, NULL, __ATOMIC_RELAXED);
	slot->ctx = 0;
}

void sv_unreserve(struct sv_session *s, unsigned int type, uint64_t handle)
{
	struct slot *slot = slot_at(type, handle);

	(void)s;
	lock_take(&lock);
	if (slot && slot->handle == handle && slot->state == RESERVED)
		set_free(slot);
	lock_drop(&lock);
}

int handle_bind(struct sv_session *s, unsigned int type, uint64_t handle, uint64_t real, void *obj,
		uint64_t ctx)
{
	struct slot *slot = slot_at(type, handle);
	int rc = -ENOENT;

	(void)s;
	lock_take(&lock);
	if (slot && slot->handle == handle && slot->state == RESERVED) {
		__atomic_store_n(&slot->real, real, __ATOMIC_RELAXED);
		__atomic_store_n(&slot->obj, obj, __ATOMIC_RELAXED);
		slot->ctx = ctx;
		__atomic_store_n(&slot->state, LIVE, __ATOMIC_RELEASE);
		rc = 0;
	}
	lock_drop(&lock);
	return rc;
}

void sv_unbind(struct sv_session *s, unsigned int type, uint64_t handle)
{
	struct slot *slot = slot_at(type, handle);

	(void)s;
	lock_take(&lock);
	if (slot && slot->handle == handle && slot->state == LIVE)
		set_free(slot);
	lock_drop(&lock);
}

static void sweep_page(unsigned int type, struct slot *p, handle_match fn, void *arg)
{
	for (uint32_t i = 0; i < FAN; i++)
		if (p[i].state == LIVE && fn(arg, type, p[i].ctx, p[i].obj))
			set_free(&p[i]);
}

void handle_sweep(struct sv_session *s, handle_match fn, void *arg)
{
	(void)s;
	lock_take(&lock);
	for (unsigned int i = 0; i < SV_TYPES * FAN; i++) {
		struct middle *m = dir[i / FAN][i % FAN];

		for (uint32_t j = 0; m && j < FAN; j++)
			if (m->page[j])
				sweep_page(i / FAN, m->page[j], fn, arg);
	}
	lock_drop(&lock);
}

void handle_walk(struct sv_session *s, unsigned int type, handle_visit fn, void *arg)
{
	(void)s;
	for (unsigned int i = 0; i < FAN; i++) {
		struct middle *m = dir[type][i];

		for (uint32_t j = 0; m && j < FAN; j++)
			for (uint32_t k = 0; m->page[j] && k < FAN; k++) {
				struct slot *slot = &m->page[j][k];

				if (slot->state == LIVE)
					fn(arg, slot->handle, slot->real, slot->obj);
			}
	}
}

struct contexts {
	struct context **c;
	ssize_t n, cap;
};

static int collect(void *arg, unsigned int type, uint64_t ctx, void *obj)
{
	struct contexts *x = arg;

	(void)ctx;
	if (type != SV_T_CUcontext || x->n < 0)
		return 0;
	if (x->n == x->cap) {
		struct context **c = realloc(x->c, (x->cap + 16) * sizeof(*c));

		if (!c) {
			x->n = -ENOMEM;
			return 0;
		}
		x->c = c;
		x->cap += 16;
	}
	x->c[x->n++] = obj;
	return 0;
}

ssize_t handle_contexts(struct sv_session *s, struct context ***c)
{
	struct contexts x = { 0 };

	handle_sweep(s, collect, &x);
	if (x.n < 0)
		free(x.c);
	*c = x.n < 0 ? NULL : x.c;
	return x.n;
}
