// SPDX-License-Identifier: Apache-2.0
/*
 * copy.c - linear copies: by record where the device can reach both sides, else through slots
 *
 *   device, pinned ──────────── sv_copy ─────────────► device, pinned
 *   pageable ── memcpy ──► slot ── sv_copy, word ────► device          returns when all is in slots
 *   device ── sv_copy, answered ──► slot ── memcpy ──► pageable        returns when it is complete
 */
#include "arena.h"
#include "captured.h"
#include "context.h"
#include "cross.h"
#include "managedvar.h"
#include "memory_i.h"
#include "send.h"
#include "transfer.h"

#include <string.h>

#define PIPELINE 4	/* slots in flight to pageable memory */

enum place { PAGEABLE, PINNED, DEVICE };

/* The ends that a call's name puts on a device: they must not be the program's own memory. */
enum ends { ANY = 0, DST = 1, SRC = 2 };

/*
 * The place of len bytes at *at. An allocation that holds *at must hold all of them. If registered
 * memory has an address for the device, *at becomes that address. reached: the device must reach it.
 */
static CUresult place_of(uint64_t *at, uint64_t len, bool reached, enum place *out)
{
	const struct sv_shared *sh = here->shared;
	uint64_t addr = *at;
	struct memory m;

	if (!memory_find(addr, &m)) {
		if (addr - sh->window < sh->window_len || !addr || reached)
			return CUDA_ERROR_INVALID_VALUE;
		*out = PAGEABLE;
		return CUDA_SUCCESS;
	}
	if (addr - m.base > m.len || len > m.len - (addr - m.base) || (reached && m.kind == MEMORY_REGISTERED))
		return CUDA_ERROR_INVALID_VALUE;
	if (m.kind == MEMORY_RESERVED)
		TRY(vmm_range(addr, len));
	if (m.kind == MEMORY_REGISTERED && host_moved(&m, addr)) {
		*at = host_moved(&m, addr);
		m.kind = MEMORY_HOST;
	}
	*out = m.kind == MEMORY_REGISTERED ? PAGEABLE :
		m.kind == MEMORY_HOST || m.kind == MEMORY_MANAGED ? PINNED : DEVICE;
	return CUDA_SUCCESS;
}

static CUresult from_pageable(struct stream *s, uint64_t dst, uint64_t src, uint64_t len)
{
	struct context *ctx = s->o.ctx;

	while (len) {
		struct sv_copy a = { ctx->o.handle, s->wire, dst, 0, 0, 0, 0 };
		struct stage slot;
		CUresult rc;

		TRY(stage_get(len, &slot));
		a.len = len < slot.len ? len : slot.len;
		a.src = (uint64_t)(uintptr_t)arena_at(slot.off);
		a.word = slot.word;
		a.value = slot.value;
		memcpy(arena_at(slot.off), (const void *)src, a.len);
		rc = send_async(SV_OP_cuMemcpyAsync, &a, sizeof(a), NULL, 0);
		if (rc) {
			stage_put(&slot);
			return rc;
		}
		stage_sent(&slot, ctx, s);
		dst += a.len;
		src += a.len;
		len -= a.len;
	}
	return CUDA_SUCCESS;
}

struct piece {
	struct stage slot;
	struct ring_ticket ticket;
	uint64_t dst, len;
};

static bool (*failed)(const struct session *s);

void copy_on_failed(bool (*ask)(const struct session *s))
{
	__atomic_store_n(&failed, ask, __ATOMIC_RELEASE);
}

/* A communicator of the session has failed: the other library says so. */
static bool has_failed(const struct session *s)
{
	/* pairs with copy_on_failed() */
	bool (*ask)(const struct session *s) = __atomic_load_n(&failed, __ATOMIC_ACQUIRE);

	return unlikely(ask) && ask(s);
}

CUresult copy_wait_posted(struct stream *s, bool waits, bool writes)
{
	return writes || (waits && has_failed(s->o.ctx->session)) ? stream_sync(s->o.ctx, s) : CUDA_SUCCESS;
}

static CUresult piece_done(struct piece *p, struct stream *s)
{
	CUresult rc = send_await(&p->ticket, NULL, 0);

	if (!rc)
		memcpy((void *)p->dst, arena_at(p->slot.off), p->len);
	if (rc == CUDA_ERROR_EXTERNAL_DEVICE)
		stage_give_up(&p->slot, s->o.ctx, s->wire);
	else
		stage_put(&p->slot);
	return rc;
}

static CUresult piece_begin(struct piece *p, struct stream *s, uint64_t dst, uint64_t src,
			    uint64_t len)
{
	struct sv_copy a = { s->o.ctx->o.handle, s->wire, 0, src, 0, 0, 0 };
	CUresult rc;

	TRY(stage_get(len, &p->slot));
	a.len = len < p->slot.len ? len : p->slot.len;
	a.dst = (uint64_t)(uintptr_t)arena_at(p->slot.off);
	rc = send_request(&p->ticket, SV_OP_cuMemcpyAsync, &a, sizeof(a), NULL, 0);
	if (rc)
		stage_put(&p->slot);
	p->dst = dst;
	p->len = a.len;
	return rc;
}

static CUresult to_pageable(struct stream *s, uint64_t dst, uint64_t src, uint64_t len)
{
	struct piece p[PIPELINE];
	unsigned int begun = 0, done = 0;
	CUresult rc = CUDA_SUCCESS, e;

	while (len && !rc) {
		if (begun - done == PIPELINE)
			rc = piece_done(&p[done++ % PIPELINE], s);
		if (!rc)
			rc = piece_begin(&p[begun % PIPELINE], s, dst, src, len);
		if (rc)
			break;
		dst += p[begun % PIPELINE].len;
		src += p[begun % PIPELINE].len;
		len -= p[begun++ % PIPELINE].len;
	}
	while (done != begun) {
		e = piece_done(&p[done++ % PIPELINE], s);
		rc = rc ? rc : e;
	}
	return rc;
}

/* A linear copy between devices. */
struct linear {
	struct cross c;
	uint64_t dst, src;
	uint64_t off, len;	/* the current piece's */
};

static void linear_next(struct cross *c)
{
	struct linear *l = (struct linear *)c;

	l->off += l->len;
	l->len = c->len - l->off < CROSS_PIECE ? c->len - l->off : CROSS_PIECE;
}

static CUresult linear_move(struct cross *c, struct stream *s, uint64_t slot, bool in)
{
	const struct linear *l = (struct linear *)c;
	struct sv_copy a = { s->o.ctx->o.handle, s->wire, in ? slot : l->dst + l->off,
			     in ? l->src + l->off : slot, l->len, 0, 0 };

	return send_async(SV_OP_cuMemcpyAsync, &a, sizeof(a), NULL, 0);
}

static CUresult copy(struct stream *s, uint64_t dst, uint64_t src, uint64_t len, bool sync, enum ends ends);

static CUresult linear_all(void *arg, struct stream *s, bool sync)
{
	const struct linear *l = arg;

	return copy(s, l->dst, l->src, l->c.len, sync, ANY);
}

static bool is_reached(uint64_t addr)
{
	struct memory m;

	return memory_find(addr, &m) && m.kind != MEMORY_REGISTERED;
}

static CUresult copy_abroad(struct stream *s, uint64_t dst, uint64_t src, uint64_t len, bool sync, enum ends ends)
{
	struct linear l = {
		{ .len = len, .pieces = (len - 1) / CROSS_PIECE + 1, .next = linear_next,
		  .move = linear_move, .all = linear_all },
		dst, src, 0, 0,
	};
	struct sv_copy a = { s->o.ctx->o.handle, s->wire, dst, src, len, 0, 0 };

	if ((ends & DST && !is_reached(dst)) || (ends & SRC && !is_reached(src)))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(cross_look(dst, len, &l.c.dst));
	TRY(cross_look(src, len, &l.c.src));
	if (s->capture)
		return capture_record(s, SV_OP_cuMemcpyAsync, &a, sizeof(a), NULL, 0);
	return cross_copy(s, &l.c, sync);
}

static CUresult copy(struct stream *s, uint64_t dst, uint64_t src, uint64_t len, bool sync, enum ends ends)
{
	struct sv_copy a = { s->o.ctx->o.handle, s->wire, dst, src, len, 0, 0 };
	enum place d, f;

	if (!len)
		return CUDA_SUCCESS;
	if (unlikely(cross_is(dst) || cross_is(src)))
		return copy_abroad(s, dst, src, len, sync, ends);
	TRY(place_of(&a.dst, len, ends & DST, &d));
	TRY(place_of(&a.src, len, ends & SRC, &f));
	if (s->capture)
		return capture_record(s, SV_OP_cuMemcpyAsync, &a, sizeof(a), NULL, 0);
	if (d == PAGEABLE && f == PAGEABLE) {
		TRY(stream_sync(s->o.ctx, s));
		memmove((void *)dst, (const void *)src, len);
		return CUDA_SUCCESS;
	}
	TRY(copy_wait(s, sync || d == PAGEABLE, sync && d == PINNED));
	if (f == PAGEABLE)
		return from_pageable(s, dst, src, len);
	if (d == PAGEABLE)
		return to_pageable(s, dst, src, len);
	if (sync && (d == PINNED || f == PINNED))
		return send_sync(SV_OP_cuMemcpyAsync, &a, sizeof(a), NULL, 0, NULL, 0);
	return send_async(SV_OP_cuMemcpyAsync, &a, sizeof(a), NULL, 0);
}

/* ---------------------------------------------------------------------------------- the calls */

static CUresult copy_now(uint64_t dst, uint64_t src, size_t len, enum ends ends)
{
	struct stream *s;

	TRY(stream_find(NULL, &s));
	ON(s->o.ctx->session);
	TRY(capture_unsafe());
	TRY(capture_legacy(s));
	TRY(managedvar_launch(s->o.ctx));
	TRY(copy(s, dst, src, len, true, ends));
	return managedvar_waited(s->o.ctx);
}

static CUresult copy_later(uint64_t dst, uint64_t src, size_t len, CUstream stream, enum ends ends)
{
	struct stream *s;

	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	TRY(capture_legacy(s));
	TRY(managedvar_launch(s->o.ctx));
	return copy(s, dst, src, len, false, ends);
}

API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t len)
{
	return copy_now(dst, src, len, ANY);
}

API CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t len)
{
	return copy_now(dst, sv_u64(src), len, DST);
}

API CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t len)
{
	return copy_now(sv_u64(dst), src, len, SRC);
}

API CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t len)
{
	return copy_now(dst, src, len, DST | SRC);
}

API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t len, CUstream s)
{
	return copy_later(dst, src, len, s, ANY);
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t len, CUstream s)
{
	return copy_later(dst, sv_u64(src), len, s, DST);
}

API CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t len, CUstream s)
{
	return copy_later(sv_u64(dst), src, len, s, SRC);
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t len, CUstream s)
{
	return copy_later(dst, src, len, s, DST | SRC);
}
