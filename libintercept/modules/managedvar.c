// SPDX-License-Identifier: Apache-2.0
/*
 * managedvar.c - variables declared __managed__: host copies at the device's addresses
 *
 * The driver chooses the address of such a variable, and the program uses that address on the
 * host, too. Device memory is mapped in the proxy alone, so the client has private pages at this
 * address, and copies the variable's bytes when the other side may access them (CUDA programming
 * guide, "Unified Memory", devices without concurrent access: the host does not touch managed
 * data while a kernel runs):
 *
 *   host ── before a launch, if the bytes have changed ──► device
 *   host ◄── after a synchronisation, if work was enqueued before it ── device
 */
#include "arena.h"
#include "managedvar.h"
#include "object.h"
#include "send.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct var {
	struct var *next;
	uint64_t addr, len;
	void *module;
	uint8_t *last;		/* the bytes at the latest copy, equal on both sides */
};

struct managedvars {		/* a session's; locks.managedvars */
	struct var *all;
	bool stale;		/* the device may have written since the latest copy to the host */
};

/* Map pages for the range, except those that other variables have mapped. */
static CUresult map_pages(uint64_t addr, uint64_t len)
{
	uint64_t page = sysconf(_SC_PAGESIZE), at = addr & -page;
	const struct sv_shared *sh = here->shared;

	for (; at < addr + len; at += page) {
		int fixed = at - sh->window < sh->window_len ? MAP_FIXED : MAP_FIXED_NOREPLACE;
		struct var *v;

		for (v = here->managedvars->all; v; v = v->next)
			if (at < v->addr + v->len && v->addr < at + page)
				break;
		if (v)
			continue;
		if (mmap((void *)at, page, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0) == (void *)at)
			continue;
		client_log("a __managed__ variable is at %#lx", (long)at);
		return sv_unsupported("a __managed__ variable", "this process uses its address otherwise");
	}
	return CUDA_SUCCESS;
}

/* Copy a variable to the device (up) or from it, through a staging slot; complete on return. */
static CUresult carry(struct context *ctx, struct var *v, bool up)
{
	struct sv_copy a = { .ctx = ctx->o.handle, .stream = SV_STREAM_LEGACY };
	struct stage slot;
	CUresult rc = CUDA_SUCCESS;

	for (uint64_t done = 0; done < v->len && !rc; done += a.len) {
		uint8_t *host = (uint8_t *)v->addr + done;
		uint64_t at;

		TRY(stage_get(v->len - done, &slot));
		at = (uint64_t)(uintptr_t)arena_at(slot.off);
		a.len = v->len - done < slot.len ? v->len - done : slot.len;
		a.dst = up ? v->addr + done : at;
		a.src = up ? at : v->addr + done;
		if (up)
			memcpy(arena_at(slot.off), host, a.len);
		rc = send_sync(SV_OP_cuMemcpyAsync, &a, sizeof(a), NULL, 0, NULL, 0);
		if (!rc && !up)
			memcpy(host, arena_at(slot.off), a.len);
		if (rc == CUDA_ERROR_EXTERNAL_DEVICE)
			stage_give_up(&slot, ctx, a.stream);
		else
			stage_put(&slot);
	}
	if (!rc)
		memcpy(v->last, (void *)v->addr, v->len);
	return rc;
}

/* The session's table, which is made with its first variable. */
static struct managedvars *table(void)
{
	struct managedvars *mv = here->managedvars;

	if (!mv) {
		mv = calloc(1, sizeof(*mv));
		__atomic_store_n(&here->managedvars, mv, __ATOMIC_RELEASE);
	}
	return mv;
}

static CUresult new_var(struct managedvars *mv, uint64_t addr, uint64_t len, void *module,
			const void *bytes)
{
	struct var *v;

	TRY(map_pages(addr, len));
	v = calloc(1, sizeof(*v) + len);
	if (!v)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*v = (struct var){ mv->all, addr, len, module, (uint8_t *)(v + 1) };
	memcpy(v->last, bytes, len);
	memcpy((void *)addr, bytes, len);
	mv->all = v;
	return CUDA_SUCCESS;
}

CUresult managedvar_add(uint64_t addr, uint64_t len, void *module, const void *bytes)
{
	CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
	struct managedvars *mv;
	struct var *v;

	lock_take(&here->locks.managedvars);
	mv = table();
	if (mv) {
		for (v = mv->all; v && v->addr != addr; v = v->next)
			;
		rc = v ? CUDA_SUCCESS : new_var(mv, addr, len, module, bytes);
	}
	lock_drop(&here->locks.managedvars);
	return rc;
}

static void drop_from(struct session *s, void *module)
{
	struct managedvars *mv;

	lock_take(&s->locks.managedvars);
	mv = s->managedvars;
	for (struct var **p = mv ? &mv->all : NULL, *v; p && (v = *p);) {
		if (v->module == module) {
			*p = v->next;
			free(v);
		} else {
			p = &v->next;
		}
	}
	lock_drop(&s->locks.managedvars);
}

void managedvar_drop(void *module)
{
	for (int i = 0; i < process.devices; i++)
		drop_from(&sessions[i], module);
}

CUresult managedvar_launch_slow(struct context *ctx)
{
	struct managedvars *mv = here->managedvars;
	CUresult rc = CUDA_SUCCESS;

	lock_take(&here->locks.managedvars);
	/*
	 * A difference was written by the host, even if no synchronisation followed the last
	 * launch.
	 */
	for (struct var *v = mv->all; v && !rc; v = v->next)
		if (memcmp(v->last, (void *)v->addr, v->len))
			rc = carry(ctx, v, true);
	mv->stale = true;
	lock_drop(&here->locks.managedvars);
	return rc;
}

CUresult managedvar_waited_slow(struct context *ctx)
{
	struct managedvars *mv = here->managedvars;
	CUresult rc = CUDA_SUCCESS;

	lock_take(&here->locks.managedvars);
	if (mv->stale)
		for (struct var *v = mv->all; v && !rc; v = v->next)
			rc = carry(ctx, v, false);
	if (!rc)
		mv->stale = false;
	lock_drop(&here->locks.managedvars);
	return rc;
}
