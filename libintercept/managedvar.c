// SPDX-License-Identifier: Apache-2.0
/*
 * managedvar.c - variables declared __managed__: host copies at the device's addresses
 *
 * The driver chooses where such a variable is, and the program uses that address on the host, too. The
 * device's memory is the proxy's, so the host gets pages of its own there, and the variable's bytes are
 * carried over when the rules let the other side look (CUDA programming guide, "Unified Memory" on
 * devices without concurrent access: the host leaves managed data alone while a kernel runs):
 *
 *   host ── before a launch, if the bytes have changed ──► device
 *   host ◄── when something has been waited for, if work was enqueued since ── device
 */
#include "client.h"
#include "managedvar.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct var {
	struct var *next;
	uint64_t addr, len;
	void *module;
	uint8_t *last;		/* the bytes when both sides agreed */
};

LOCAL bool managedvar_any;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct var *vars;
static bool stale;		/* the device may have written since the host's bytes came */

/* Pages for the range, those that are there already excepted. */
static CUresult map_pages(uint64_t addr, uint64_t len)
{
	uint64_t page = sysconf(_SC_PAGESIZE), at = addr & -page;
	const struct sv_shared *sh = session.shared;

	for (; at < addr + len; at += page) {
		int fixed = at - sh->window < sh->window_len ? MAP_FIXED : MAP_FIXED_NOREPLACE;
		struct var *v;

		for (v = vars; v; v = v->next)
			if (at < v->addr + v->len && v->addr < at + page)
				break;
		if (v)
			continue;
		if (mmap((void *)at, page, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0) == (void *)at)
			continue;
		client_log("a __managed__ variable is at %#lx, which this process uses otherwise",
			   (long)at);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_SUCCESS;
}

/* To the device (up) or from it, through a staging slot, done when it returns. */
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
		stage_put(&slot);
	}
	if (!rc)
		memcpy(v->last, (void *)v->addr, v->len);
	return rc;
}

CUresult managedvar_add(uint64_t addr, uint64_t len, void *module, const void *bytes)
{
	struct var *v;
	CUresult rc;

	pthread_mutex_lock(&lock);
	for (v = vars; v && v->addr != addr; v = v->next)
		;
	rc = v ? CUDA_SUCCESS : map_pages(addr, len);
	if (!rc && !v) {
		v = calloc(1, sizeof(*v) + len);
		rc = v ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!rc && v->addr != addr) {
		*v = (struct var){ vars, addr, len, module, (uint8_t *)(v + 1) };
		memcpy(v->last, bytes, len);
		memcpy((void *)addr, bytes, len);
		vars = v;
		__atomic_store_n(&managedvar_any, true, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

void managedvar_drop(void *module)
{
	pthread_mutex_lock(&lock);
	for (struct var **p = &vars, *v; (v = *p);) {
		if (v->module == module) {
			*p = v->next;
			free(v);
		} else {
			p = &v->next;
		}
	}
	pthread_mutex_unlock(&lock);
}

CUresult managedvar_launch_slow(struct context *ctx)
{
	CUresult rc = CUDA_SUCCESS;

	pthread_mutex_lock(&lock);
	/* What differs has been written here, also where nobody has waited for the last launch. */
	for (struct var *v = vars; v && !rc; v = v->next)
		if (memcmp(v->last, (void *)v->addr, v->len))
			rc = carry(ctx, v, true);
	stale = true;
	pthread_mutex_unlock(&lock);
	return rc;
}

CUresult managedvar_waited_slow(struct context *ctx)
{
	CUresult rc = CUDA_SUCCESS;

	pthread_mutex_lock(&lock);
	if (stale)
		for (struct var *v = vars; v && !rc; v = v->next)
			rc = carry(ctx, v, false);
	if (!rc)
		stale = false;
	pthread_mutex_unlock(&lock);
	return rc;
}
