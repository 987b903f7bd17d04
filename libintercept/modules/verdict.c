// SPDX-License-Identifier: Apache-2.0
/*
 * verdict.c - what the driver has answered about a function, so that it need not be asked again
 *
 * An answer stays true until an attribute of the function or a limit of a context changes. The counts
 * of such changes, as they were before the driver was asked, are kept with the answer. The lists of a
 * function only grow until it ends, so they are read without a lock.
 */
#include "context.h"
#include "cuda_hooks.h"
#include "module.h"
#include "object.h"

#include <stdlib.h>
#include <string.h>

#define KEPT_MAX 64	/* in a list */

struct verdict_entry {
	struct verdict_entry *next;
	unsigned int n;			/* of the list from here on */
	struct verdict v;		/* v.about: not used */
	uint8_t about[];
};

void verdict_free(struct function *f)
{
	for (unsigned int i = 0; i < VERDICT_LISTS; i++) {
		for (struct verdict_entry *e = f->verdicts[i], *next; e; e = next) {
			next = e->next;
			free(e);
		}
		f->verdicts[i] = NULL;
	}
}

static uint64_t changes_of(const struct function *f)
{
	/* pairs with changed() in module.c, and with verdict_limits_change() */
	return __atomic_load_n(&f->changes, __ATOMIC_ACQUIRE) |
	       (uint64_t)__atomic_load_n(&here->limit_changes, __ATOMIC_ACQUIRE) << 32;
}

struct verdict verdict_about(const struct function *f, uint16_t op, const void *about,
			     uint32_t len)
{
	struct verdict v = { .op = op, .len = len, .about = about, .changes = changes_of(f) };
	uint64_t h = op, w;

	for (uint32_t at = 0; at + 8 <= len; at += 8) {
		memcpy(&w, (const uint8_t *)about + at, 8);
		h = (h ^ w) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 29;
	}
	v.list = h % VERDICT_LISTS;
	return v;
}

bool verdict_find(const struct function *f, struct verdict *v)
{
	/* pairs with verdict_keep() */
	const struct verdict_entry *e = __atomic_load_n(&f->verdicts[v->list], __ATOMIC_ACQUIRE);

	for (; e; e = e->next)
		if (e->v.changes == v->changes && e->v.op == v->op && e->v.len == v->len &&
		    !memcmp(e->about, v->about, v->len)) {
			v->rc = e->v.rc;
			v->value = e->v.value;
			return true;
		}
	return false;
}

void verdict_keep(struct function *f, const struct verdict *v)
{
	struct verdict_entry *e = malloc(sizeof(*e) + v->len), **list = &f->verdicts[v->list];

	if (!e)
		return;
	e->v = *v;
	memcpy(e->about, v->about, v->len);
	/* pairs with the exchange below, of another thread */
	e->next = __atomic_load_n(list, __ATOMIC_ACQUIRE);
	do {
		e->n = e->next ? e->next->n + 1 : 1;
		if (e->n > KEPT_MAX) {
			free(e);
			return;
		}
		/* pairs with itself in another thread */
	} while (!__atomic_compare_exchange_n(list, &e->next, e, false, __ATOMIC_RELEASE,
					      __ATOMIC_ACQUIRE));
}

/* ------------------------------------------------------------------- what makes answers wrong */

/* These calls shift memory between L1 cache and shared memory, so fewer blocks may fit. */
#define PREFERENCE(_name, ...)								\
	CUresult sv_hook_##_name(__VA_ARGS__, int per_thread, int *done)		\
	{										\
		(void)per_thread;							\
		(void)done;								\
		verdict_limits_change();							\
		return CUDA_SUCCESS;							\
	}
#pragma GCC diagnostic ignored "-Wunused-parameter"
PREFERENCE(cuCtxSetCacheConfig, CUfunc_cache config)
PREFERENCE(cuCtxSetSharedMemConfig, CUsharedconfig config)
PREFERENCE(cuFuncSetCacheConfig, CUfunction f, CUfunc_cache config)
PREFERENCE(cuFuncSetSharedMemConfig, CUfunction f, CUsharedconfig config)
PREFERENCE(cuKernelSetCacheConfig, CUkernel k, CUfunc_cache config, CUdevice dev)
