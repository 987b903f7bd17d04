// SPDX-License-Identifier: Apache-2.0
/*
 * copy3d.c - copies of rows and slices, of arrays, between contexts, in batches; pitched memory
 *
 * Every call becomes a CUDA_MEMCPY3D. Each of its sides is an array, memory that the device can
 * reach, or pageable memory, which is copied in pieces through staging slots, rows packed:
 *
 *   pageable ── rows ──► slot ── sv_copy3d, word ────► device       returns when all is in slots
 *   device ── sv_copy3d, answered ──► slot ── rows ──► pageable     returns when it is complete
 *
 * A side may be on another device than the stream: then the rows go as cross.c has linear copies go.
 */
#include "arena.h"
#include "array.h"
#include "captured.h"
#include "context.h"
#include "cross.h"
#include "memory_i.h"
#include "object.h"
#include "send.h"
#include "transfer.h"

#include <string.h>

#define PIPELINE 4		/* pieces in flight to pageable memory */
#define FORMAT	"the driver alone knows the array's format; use cuMemcpy3D"
#define PITCH	512ull		/* alignment of cuMemAllocPitch's pitch */

enum place { PAGEABLE, PINNED, DEVICE, ARRAY };

struct side {
	enum place place;
	struct sv_copy3d_side s;
	struct context *home;	/* where its device memory is; NULL: the host has it */
};

/* One copy, checked. */
struct copy {
	struct side dst, src;
	uint64_t w, h, d;	/* bytes, rows, slices */
};

/* A piece of a copy: its origin in the copy, and its size. */
struct box {
	uint64_t x, y, z, w, h, d;
};

/* -------------------------------------------------------------------------------- the two sides */

/* Bytes from a side's address to the end of the copied region; UINT64_MAX: overflow. */
static uint64_t span(const struct sv_copy3d_side *s, uint64_t w, uint64_t h, uint64_t d)
{
	uint64_t slice = sv_mul(s->pitch, s->height), end = sv_mul(s->z + d - 1, slice);

	if (slice == UINT64_MAX || end == UINT64_MAX ||
	    __builtin_add_overflow(end, sv_mul(s->y + h - 1, s->pitch), &end) ||
	    __builtin_add_overflow(end, s->x, &end) || __builtin_add_overflow(end, w, &end))
		return UINT64_MAX;
	return end;
}

/* Linear memory: fill in absent pitch and height, and check that the region is allocated. */
static CUresult linear(struct side *a, bool host, const struct copy *c)
{
	struct sv_copy3d_side *s = &a->s;
	uint64_t end, first;
	struct memory m;

	if (s->lod)
		return CUDA_ERROR_INVALID_VALUE;
	/* The pitch of a single row has no meaning. */
	if (s->pitch < s->x + c->w && c->h == 1 && c->d == 1 && !s->y && !s->z)
		s->pitch = s->x + c->w;
	if (!s->height && c->d == 1 && !s->z)
		s->height = s->y + c->h;
	if (s->x + c->w < c->w || s->y + c->h < c->h || s->z + c->d < c->d ||
	    s->pitch < s->x + c->w || (c->d > 1 && s->height < s->y + c->h))
		return CUDA_ERROR_INVALID_VALUE;
	end = span(s, c->w, c->h, c->d);
	if (!s->addr || end == UINT64_MAX || s->addr + end < end)
		return CUDA_ERROR_INVALID_VALUE;
	first = s->addr + s->z * s->pitch * s->height + s->y * s->pitch + s->x;
	end = s->addr + end - first;
	if (!memory_find(first, &m)) {
		if (!host || session_at(first))
			return CUDA_ERROR_INVALID_VALUE;
		a->place = PAGEABLE;
		return CUDA_SUCCESS;
	}
	if (end > m.len - (first - m.base))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(cross_home(&m, &a->home));
	if (m.kind == MEMORY_RESERVED)
		TRY(vmm_range(first, end));
	if (m.kind == MEMORY_REGISTERED && host_moved(&m, first)) {
		s->addr += host_moved(&m, first) - first;
		m.kind = MEMORY_HOST;
	}
	a->place = m.kind == MEMORY_REGISTERED ? PAGEABLE :
		m.kind == MEMORY_HOST || m.kind == MEMORY_MANAGED ? PINNED : DEVICE;
	return a->place == PAGEABLE && !host ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult in_array(struct side *a, CUarray handle, const struct copy *c)
{
	struct sv_copy3d_side *s = &a->s;
	struct array *ar;
	uint64_t row;

	TRY(array_find(handle, &ar));
	a->place = ARRAY;
	a->home = ar->o.ctx;
	s->addr = s->pitch = s->height = 0;
	s->array = ar->o.handle;
	if (!ar->bytes)
		return CUDA_SUCCESS;	/* a format that only the driver knows */
	row = ar->d.Width * ar->bytes;
	if (s->x % ar->bytes || c->w % ar->bytes || s->x > row || c->w > row - s->x)
		return CUDA_ERROR_INVALID_VALUE;
	if (s->y + c->h < c->h || s->y + c->h > (ar->d.Height ? ar->d.Height : 1) ||
	    s->z + c->d < c->d || s->z + c->d > (ar->d.Depth ? ar->d.Depth : 1))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult side(struct side *a, CUmemorytype type, const void *host, CUdeviceptr device,
		     CUarray array, const struct copy *c)
{
	switch (type) {
	case CU_MEMORYTYPE_HOST:
		a->s.addr = sv_u64(host);
		return linear(a, true, c);
	case CU_MEMORYTYPE_DEVICE:
		a->s.addr = device;
		return linear(a, false, c);
	case CU_MEMORYTYPE_UNIFIED:
		a->s.addr = device;
		return linear(a, true, c);
	case CU_MEMORYTYPE_ARRAY:
		return in_array(a, array, c);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult check(const CUDA_MEMCPY3D *p, struct copy *c)
{
	*c = (struct copy){
		.dst.s = { .pitch = p->dstPitch, .height = p->dstHeight, .x = p->dstXInBytes,
			   .y = p->dstY, .z = p->dstZ, .lod = p->dstLOD },
		.src.s = { .pitch = p->srcPitch, .height = p->srcHeight, .x = p->srcXInBytes,
			   .y = p->srcY, .z = p->srcZ, .lod = p->srcLOD },
		.w = p->WidthInBytes, .h = p->Height, .d = p->Depth,
	};
	if (!c->w || !c->h || !c->d)
		return CUDA_SUCCESS;
	TRY(side(&c->dst, p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray, c));
	return side(&c->src, p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray, c);
}

/* -------------------------------------------------------------------------------------- pieces */

/* The next piece of a copy that fits into room bytes; b is the one before, or all zero at first. */
static bool next_box(const struct copy *c, struct box *b, uint64_t room)
{
	if (b->w) {
		b->x += b->w;
		if (b->x == c->w) {
			b->x = 0;
			b->y += b->h;
		}
		if (b->y == c->h) {
			b->y = 0;
			b->z += b->d;
		}
		if (b->z == c->d)
			return false;
	}
	b->w = c->w - b->x < room ? c->w - b->x : room;
	b->h = b->d = 1;
	if (b->w < c->w)
		return true;
	b->h = room / c->w < c->h - b->y ? room / c->w : c->h - b->y;
	if (b->h == c->h)
		b->d = room / (c->w * c->h) < c->d - b->z ? room / (c->w * c->h) : c->d - b->z;
	return true;
}

/* An upper bound of the bytes that remain behind b, to choose the class of a slot. */
static uint64_t left_of(const struct copy *c, const struct box *b)
{
	uint64_t all = sv_mul(sv_mul(c->w, c->h), c->d - b->z);

	return all < STAGE_LARGE ? all : STAGE_LARGE;
}

static uint8_t *row_at(const struct sv_copy3d_side *s, const struct box *b, uint64_t y, uint64_t z)
{
	return (uint8_t *)(uintptr_t)s->addr + ((s->z + b->z + z) * s->height + s->y + b->y + y) *
		s->pitch + s->x + b->x;
}

/* Copy rows of pageable memory into a packed piece, or out of it. */
static void pack(uint8_t *slot, const struct sv_copy3d_side *s, const struct box *b)
{
	for (uint64_t z = 0; z < b->d; z++)
		for (uint64_t y = 0; y < b->h; y++, slot += b->w)
			memcpy(slot, row_at(s, b, y, z), b->w);
}

static void unpack(const uint8_t *slot, const struct sv_copy3d_side *s, const struct box *b)
{
	for (uint64_t z = 0; z < b->d; z++)
		for (uint64_t y = 0; y < b->h; y++, slot += b->w)
			memcpy(row_at(s, b, y, z), slot, b->w);
}

static struct sv_copy3d record(const struct stream *s, const struct copy *c, const struct box *b)
{
	struct sv_copy3d a = {
		.ctx = s->o.ctx->o.handle, .stream = s->wire, .dst = c->dst.s, .src = c->src.s,
		.width = b->w, .height = b->h, .depth = b->d,
	};

	a.dst.x += b->x;
	a.dst.y += b->y;
	a.dst.z += b->z;
	a.src.x += b->x;
	a.src.y += b->y;
	a.src.z += b->z;
	return a;
}

static struct sv_copy3d_side packed(const struct stage *slot, const struct box *b)
{
	return (struct sv_copy3d_side){ .addr = sv_u64(arena_at(slot->off)), .pitch = b->w,
					.height = b->h };
}

static CUresult from_pageable(struct stream *s, const struct copy *c)
{
	struct box b = { 0 };
	struct sv_copy3d a;
	struct stage slot;
	CUresult rc;

	for (;;) {
		TRY(stage_get(left_of(c, &b), &slot));
		if (!next_box(c, &b, slot.len)) {
			stage_put(&slot);
			return CUDA_SUCCESS;
		}
		pack(arena_at(slot.off), &c->src.s, &b);
		a = record(s, c, &b);
		a.src = packed(&slot, &b);
		a.word = slot.word;
		a.value = slot.value;
		rc = send_async(SV_OP_cuMemcpy3DAsync_v2, &a, sizeof(a), NULL, 0);
		if (rc) {
			stage_put(&slot);
			return rc;
		}
		stage_sent(&slot, s->o.ctx, s);
	}
}

struct piece {
	struct stage slot;
	struct ring_ticket ticket;
	struct box b;
};

static CUresult piece_done(struct piece *p, struct stream *s, const struct copy *c)
{
	CUresult rc = send_await(&p->ticket, NULL, 0);

	if (!rc)
		unpack(arena_at(p->slot.off), &c->dst.s, &p->b);
	if (rc == CUDA_ERROR_EXTERNAL_DEVICE)
		stage_give_up(&p->slot, s->o.ctx, s->wire);
	else
		stage_put(&p->slot);
	return rc;
}

/* 0 and *more: a piece has been sent. Otherwise p holds no slot. */
static CUresult piece_begin(struct piece *p, struct stream *s, const struct copy *c, struct box *b,
			    bool *more)
{
	struct sv_copy3d a;
	CUresult rc;

	TRY(stage_get(left_of(c, b), &p->slot));
	*more = next_box(c, b, p->slot.len);
	p->b = *b;
	if (*more) {
		a = record(s, c, b);
		a.dst = packed(&p->slot, b);
		rc = send_request(&p->ticket, SV_OP_cuMemcpy3DAsync_v2, &a, sizeof(a), NULL, 0);
		if (!rc)
			return CUDA_SUCCESS;
	} else {
		rc = CUDA_SUCCESS;
	}
	stage_put(&p->slot);
	*more = false;
	return rc;
}

static CUresult to_pageable(struct stream *s, const struct copy *c)
{
	struct piece p[PIPELINE];
	unsigned int begun = 0, done = 0;
	CUresult rc = CUDA_SUCCESS, e;
	struct box b = { 0 };
	bool more = true;

	while (more && !rc) {
		if (begun - done == PIPELINE)
			rc = piece_done(&p[done++ % PIPELINE], s, c);
		if (!rc)
			rc = piece_begin(&p[begun % PIPELINE], s, c, &b, &more);
		if (!rc && more)
			begun++;
	}
	while (done != begun) {
		e = piece_done(&p[done++ % PIPELINE], s, c);
		rc = rc ? rc : e;
	}
	return rc;
}

static CUresult on_host(struct stream *s, const struct copy *c)
{
	struct box b = { .w = c->w, .h = c->h, .d = c->d };

	TRY(stream_sync(s->o.ctx, s));
	for (uint64_t z = 0; z < b.d; z++)
		for (uint64_t y = 0; y < b.h; y++)
			memmove(row_at(&c->dst.s, &b, y, z), row_at(&c->src.s, &b, y, z), b.w);
	return CUDA_SUCCESS;
}

/* A copy that the device of `here` can do; on stream s, which does not capture. */
static CUresult copy_here(struct stream *s, const struct copy *c, bool sync)
{
	struct box all = { .w = c->w, .h = c->h, .d = c->d };
	struct sv_copy3d a = record(s, c, &all);

	if (c->src.place == PAGEABLE && c->dst.place == PAGEABLE)
		return on_host(s, c);
	TRY(copy_wait(s, sync || c->dst.place == PAGEABLE, sync && c->dst.place == PINNED));
	if (c->src.place == PAGEABLE)
		return from_pageable(s, c);
	if (c->dst.place == PAGEABLE)
		return to_pageable(s, c);
	if (sync && (c->src.place == PINNED || c->dst.place == PINNED))
		return send_sync(SV_OP_cuMemcpy3DAsync_v2, &a, sizeof(a), NULL, 0, NULL, 0);
	return send_async(SV_OP_cuMemcpy3DAsync_v2, &a, sizeof(a), NULL, 0);
}

/* -------------------------------------------------------------------------- to another device */

/* Rows between devices; the current piece is a box of them. */
struct rows {
	struct cross c;
	const struct copy *copy;
	struct box b;
};

static void rows_next(struct cross *c)
{
	struct rows *r = (struct rows *)c;

	next_box(r->copy, &r->b, CROSS_PIECE);
}

static CUresult rows_move(struct cross *c, struct stream *s, uint64_t slot, bool in)
{
	const struct rows *r = (struct rows *)c;
	struct sv_copy3d a = record(s, r->copy, &r->b);
	struct sv_copy3d_side packed = { .addr = slot, .pitch = r->b.w, .height = r->b.h };

	*(in ? &a.dst : &a.src) = packed;
	return send_async(SV_OP_cuMemcpy3DAsync_v2, &a, sizeof(a), NULL, 0);
}

static CUresult rows_all(void *arg, struct stream *s, bool sync)
{
	return copy_here(s, ((struct rows *)arg)->copy, sync);
}

static bool is_elsewhere(const struct side *a)
{
	return a->home && unlikely(a->home->session != here);
}

static CUresult copy_abroad(struct stream *s, const struct copy *c, bool sync)
{
	struct rows r = {
		.c = { .dst = c->dst.home, .src = c->src.home, .next = rows_next,
		       .move = rows_move, .all = rows_all },
		.copy = c,
	};
	struct box b = { 0 };

	r.c.len = sv_mul(sv_mul(c->w, c->h), c->d);
	while (next_box(c, &b, CROSS_PIECE))
		r.c.pieces++;
	return cross_copy(s, &r.c, sync);
}

static CUresult copy_checked(struct stream *s, const struct copy *c, bool sync)
{
	return is_elsewhere(&c->dst) || is_elsewhere(&c->src) ? copy_abroad(s, c, sync) :
	       copy_here(s, c, sync);
}

/* The side of a copy that is packed in the arena, which all devices reach. */
static void pack_side(struct side *a, const struct copy *c, uint64_t at)
{
	if (at)
		*a = (struct side){ PINNED, { .addr = at, .pitch = c->w, .height = c->h }, NULL };
}

CUresult cross_node_copy(struct stream *s, const CUDA_MEMCPY3D *p, uint64_t from, uint64_t to)
{
	struct copy c;

	ON(s->o.ctx->session);
	TRY(check(p, &c));
	pack_side(&c.src, &c, from);
	pack_side(&c.dst, &c, to);
	return copy_checked(s, &c, false);
}

static CUresult copy(struct stream *s, const CUDA_MEMCPY3D *p, bool sync)
{
	struct box all;
	struct sv_copy3d a;
	struct copy c;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(check(p, &c));
	if (!c.w || !c.h || !c.d)
		return CUDA_SUCCESS;
	if (capture_on(s)) {
		all = (struct box){ .w = c.w, .h = c.h, .d = c.d };
		a = record(s, &c, &all);
		return capture_record(s, SV_OP_cuMemcpy3DAsync_v2, &a, sizeof(a), NULL, 0);
	}
	return copy_checked(s, &c, sync);
}

/* ---------------------------------------------------------------------------------- the calls */

static CUresult copy_now(const CUDA_MEMCPY3D *p)
{
	struct stream *s;

	TRY(stream_find(NULL, &s));
	ON(s->o.ctx->session);
	TRY(capture_unsafe());
	TRY(capture_legacy(s));
	return copy(s, p, true);
}

static CUresult copy_later(const CUDA_MEMCPY3D *p, CUstream stream)
{
	struct stream *s;

	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	TRY(capture_legacy(s));
	return copy(s, p, false);
}

static CUDA_MEMCPY3D flat(const CUDA_MEMCPY2D *p)
{
	return (CUDA_MEMCPY3D){
		.srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcMemoryType = p->srcMemoryType,
		.srcHost = p->srcHost, .srcDevice = p->srcDevice, .srcArray = p->srcArray,
		.srcPitch = p->srcPitch,
		.dstXInBytes = p->dstXInBytes, .dstY = p->dstY, .dstMemoryType = p->dstMemoryType,
		.dstHost = p->dstHost, .dstDevice = p->dstDevice, .dstArray = p->dstArray,
		.dstPitch = p->dstPitch,
		.WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = 1,
	};
}

API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *p)
{
	CUDA_MEMCPY3D c;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	c = flat(p);
	return copy_now(&c);
}

API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p)
{
	return cuMemcpy2D_v2(p);
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream stream)
{
	CUDA_MEMCPY3D c;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	c = flat(p);
	return copy_later(&c, stream);
}

API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *p)
{
	return copy_now(p);
}

API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream stream)
{
	return copy_later(p, stream);
}

/* --------------------------------------------------------------------------- between contexts */

static CUresult is_context(CUcontext ctx)
{
	return obj_find(SV_T_CUcontext, sv_u64(ctx)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from,
			  size_t len)
{
	TRY(session_check());
	TRY(is_context(to));
	TRY(is_context(from));
	return cuMemcpyDtoD_v2(dst, src, len);
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from,
			       size_t len, CUstream stream)
{
	struct stream *s;

	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	TRY(is_context(to));
	TRY(is_context(from));
	/* s resolves the handle, so a default stream is passed as an explicit one. */
	return cuMemcpyDtoDAsync_v2(dst, src, len, s->wire == SV_STREAM_LEGACY ? CU_STREAM_LEGACY :
				    (CUstream)(uintptr_t)s->wire);
}

static CUresult unpeer(const CUDA_MEMCPY3D_PEER *p, CUDA_MEMCPY3D *c)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (p->srcMemoryType != CU_MEMORYTYPE_ARRAY)
		TRY(is_context(p->srcContext));
	if (p->dstMemoryType != CU_MEMORYTYPE_ARRAY)
		TRY(is_context(p->dstContext));
	*c = (CUDA_MEMCPY3D){
		.srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcZ = p->srcZ,
		.srcLOD = p->srcLOD, .srcMemoryType = p->srcMemoryType, .srcHost = p->srcHost,
		.srcDevice = p->srcDevice, .srcArray = p->srcArray, .srcPitch = p->srcPitch,
		.srcHeight = p->srcHeight,
		.dstXInBytes = p->dstXInBytes, .dstY = p->dstY, .dstZ = p->dstZ,
		.dstLOD = p->dstLOD, .dstMemoryType = p->dstMemoryType, .dstHost = p->dstHost,
		.dstDevice = p->dstDevice, .dstArray = p->dstArray, .dstPitch = p->dstPitch,
		.dstHeight = p->dstHeight,
		.WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = p->Depth,
	};
	return CUDA_SUCCESS;
}

API CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *p)
{
	CUDA_MEMCPY3D c;

	TRY(unpeer(p, &c));
	return copy_now(&c);
}

API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *p, CUstream stream)
{
	CUDA_MEMCPY3D c;

	TRY(unpeer(p, &c));
	return copy_later(&c, stream);
}

/* ---------------------------------------------------------------------- arrays, byte by byte */

/* A side of a linear copy: memory, or the bytes of an array's rows in order. */
struct run {
	CUmemorytype type;
	uint64_t addr;		/* host or device memory */
	CUarray array;
	uint64_t off;		/* in the array */
	uint64_t row;		/* its bytes */
};

static CUresult run_init(struct run *r)
{
	struct array *a;

	if (r->type != CU_MEMORYTYPE_ARRAY)
		return CUDA_SUCCESS;
	TRY(array_find(r->array, &a));
	r->row = a->d.Width * a->bytes;
	return r->row ? CUDA_SUCCESS : sv_unsupported("a copy of an array's bytes", FORMAT);
}

/* How much of len is one rectangle on this side: part of a row, or whole rows. */
static uint64_t run_len(const struct run *r, uint64_t len)
{
	uint64_t x;

	if (r->type != CU_MEMORYTYPE_ARRAY)
		return len;
	x = r->off % r->row;
	if (x || len < r->row)
		return len < r->row - x ? len : r->row - x;
	return r->row;
}

static CUresult copy_runs(struct run d, struct run f, uint64_t len, struct stream *s, bool sync)
{
	TRY(run_init(&d));
	TRY(run_init(&f));
	while (len) {
		uint64_t n = run_len(&f, run_len(&d, len));
		CUDA_MEMCPY3D c = { .dstMemoryType = d.type, .srcMemoryType = f.type,
				    .WidthInBytes = n, .Height = 1, .Depth = 1 };

		c.dstHost = (void *)d.addr;
		c.dstDevice = d.addr;
		c.srcHost = (const void *)f.addr;
		c.srcDevice = f.addr;
		c.dstArray = d.array;
		c.srcArray = f.array;
		if (d.type == CU_MEMORYTYPE_ARRAY) {
			c.dstXInBytes = d.off % d.row;
			c.dstY = d.off / d.row;
		}
		if (f.type == CU_MEMORYTYPE_ARRAY) {
			c.srcXInBytes = f.off % f.row;
			c.srcY = f.off / f.row;
		}
		TRY(copy(s, &c, sync));
		d.off += n;
		f.off += n;
		d.addr += n;
		f.addr += n;
		len -= n;
	}
	return CUDA_SUCCESS;
}

static CUresult runs_now(struct run d, struct run f, uint64_t len)
{
	struct stream *s;

	TRY(stream_find(NULL, &s));
	ON(s->o.ctx->session);
	TRY(capture_unsafe());
	TRY(capture_legacy(s));
	return copy_runs(d, f, len, s, true);
}

static CUresult runs_later(struct run d, struct run f, uint64_t len, CUstream stream)
{
	struct stream *s;

	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	TRY(capture_legacy(s));
	return copy_runs(d, f, len, s, false);
}

static struct run run_array(CUarray a, size_t off)
{
	return (struct run){ .type = CU_MEMORYTYPE_ARRAY, .array = a, .off = off };
}

static struct run run_memory(CUmemorytype type, uint64_t addr)
{
	return (struct run){ .type = type, .addr = addr };
}

API CUresult cuMemcpyDtoA_v2(CUarray dst, size_t off, CUdeviceptr src, size_t len)
{
	return runs_now(run_array(dst, off), run_memory(CU_MEMORYTYPE_DEVICE, src), len);
}

API CUresult cuMemcpyAtoD_v2(CUdeviceptr dst, CUarray src, size_t off, size_t len)
{
	return runs_now(run_memory(CU_MEMORYTYPE_DEVICE, dst), run_array(src, off), len);
}

API CUresult cuMemcpyHtoA_v2(CUarray dst, size_t off, const void *src, size_t len)
{
	return runs_now(run_array(dst, off), run_memory(CU_MEMORYTYPE_HOST, sv_u64(src)), len);
}

API CUresult cuMemcpyAtoH_v2(void *dst, CUarray src, size_t off, size_t len)
{
	return runs_now(run_memory(CU_MEMORYTYPE_HOST, sv_u64(dst)), run_array(src, off), len);
}

API CUresult cuMemcpyAtoA_v2(CUarray dst, size_t dst_off, CUarray src, size_t src_off, size_t len)
{
	return runs_now(run_array(dst, dst_off), run_array(src, src_off), len);
}

API CUresult cuMemcpyHtoAAsync_v2(CUarray dst, size_t off, const void *src, size_t len,
				  CUstream stream)
{
	return runs_later(run_array(dst, off), run_memory(CU_MEMORYTYPE_HOST, sv_u64(src)), len,
			  stream);
}

API CUresult cuMemcpyAtoHAsync_v2(void *dst, CUarray src, size_t off, size_t len, CUstream stream)
{
	return runs_later(run_memory(CU_MEMORYTYPE_HOST, sv_u64(dst)), run_array(src, off), len,
			  stream);
}

/* ------------------------------------------------------------------------------------ batches */

static CUresult check_attributes(const CUmemcpyAttributes *attrs, const size_t *index, size_t n,
				 size_t copies)
{
	if (!attrs || !index || !n || n > copies || index[0])
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n; i++)
		if (attrs[i].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
		    attrs[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
		    (attrs[i].flags & ~CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE) ||
		    index[i] >= copies || (i && index[i] <= index[i - 1]))
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* Enqueue the copies in order, and wait where a source may be freed after the call. */
static CUresult batch(CUdeviceptr *dst, CUdeviceptr *src, size_t *len, size_t n,
		      CUmemcpyAttributes *attrs, size_t *index, size_t n_attrs, size_t *failed,
		      CUstream stream)
{
	bool during = false;
	struct stream *s;

	*failed = SIZE_MAX;
	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	if (!dst || !src || !len || !n || s->wire == SV_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(check_attributes(attrs, index, n_attrs, n));
	for (size_t i = 0; i < n_attrs; i++)
		during |= attrs[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
	for (size_t i = 0; i < n; i++) {
		*failed = i;
		if (!dst[i] || !src[i] || !len[i])
			return CUDA_ERROR_INVALID_VALUE;
		TRY(cuMemcpyAsync(dst[i], src[i], len[i], (CUstream)(uintptr_t)s->wire));
	}
	*failed = SIZE_MAX;
	return during && !capture_on(s) ? stream_sync(s->o.ctx, s) : CUDA_SUCCESS;
}

API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dst, CUdeviceptr *src, size_t *len, size_t n,
				   CUmemcpyAttributes *attrs, size_t *index, size_t n_attrs,
				   CUstream stream)
{
	size_t failed;

	return batch(dst, src, len, n, attrs, index, n_attrs, &failed, stream);
}

API CUresult cuMemcpyBatchAsync(CUdeviceptr *dst, CUdeviceptr *src, size_t *len, size_t n,
				CUmemcpyAttributes *attrs, size_t *index, size_t n_attrs,
				size_t *failed, CUstream stream)
{
	size_t other;

	return batch(dst, src, len, n, attrs, index, n_attrs, failed ? failed : &other, stream);
}

/* Bytes of an element of an operand: an array's, 0 for memory. */
static CUresult operand_element(const CUmemcpy3DOperand *o, uint64_t *out)
{
	struct array *a;

	*out = 0;
	if (o->type == CU_MEMCPY_OPERAND_TYPE_POINTER)
		return CUDA_SUCCESS;
	if (o->type != CU_MEMCPY_OPERAND_TYPE_ARRAY)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(array_find(o->op.array.array, &a));
	*out = a->bytes;
	return a->bytes ? CUDA_SUCCESS : sv_unsupported("cuMemcpy3DBatchAsync", FORMAT);
}

static CUresult copy_op(const CUDA_MEMCPY3D_BATCH_OP *o, struct stream *s)
{
	const CUmemcpy3DOperand *d = &o->dst, *f = &o->src;
	uint64_t de, fe, e;
	CUDA_MEMCPY3D c = { .Height = o->extent.height, .Depth = o->extent.depth };

	if (!o->extent.width || !o->extent.height || !o->extent.depth ||
	    (o->flags & ~CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(operand_element(d, &de));
	TRY(operand_element(f, &fe));
	if (de && fe && de != fe)
		return CUDA_ERROR_INVALID_VALUE;
	e = de ? de : fe ? fe : 1;
	c.WidthInBytes = sv_mul(o->extent.width, e);
	c.dstMemoryType = de ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
	c.srcMemoryType = fe ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
	if (de) {
		c.dstArray = d->op.array.array;
		c.dstXInBytes = sv_mul(d->op.array.offset.x, e);
		c.dstY = d->op.array.offset.y;
		c.dstZ = d->op.array.offset.z;
	} else {
		c.dstDevice = d->op.ptr.ptr;
		c.dstPitch = d->op.ptr.rowLength ? sv_mul(d->op.ptr.rowLength, e) : c.WidthInBytes;
		c.dstHeight = d->op.ptr.layerHeight ? d->op.ptr.layerHeight : c.Height;
	}
	if (fe) {
		c.srcArray = f->op.array.array;
		c.srcXInBytes = sv_mul(f->op.array.offset.x, e);
		c.srcY = f->op.array.offset.y;
		c.srcZ = f->op.array.offset.z;
	} else {
		c.srcDevice = f->op.ptr.ptr;
		c.srcPitch = f->op.ptr.rowLength ? sv_mul(f->op.ptr.rowLength, e) : c.WidthInBytes;
		c.srcHeight = f->op.ptr.layerHeight ? f->op.ptr.layerHeight : c.Height;
	}
	return copy(s, &c, false);
}

static CUresult batch3d(size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed,
			unsigned long long flags, CUstream stream)
{
	bool during = false;
	struct stream *s;

	*failed = SIZE_MAX;
	TRY(stream_find(stream, &s));
	ON(s->o.ctx->session);
	if (!n || !ops || flags || s->wire == SV_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n; i++) {
		*failed = i;
		if (ops[i].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
		    ops[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
			return CUDA_ERROR_INVALID_VALUE;
		during |= ops[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
		TRY(copy_op(&ops[i], s));
	}
	*failed = SIZE_MAX;
	return during && !capture_on(s) ? stream_sync(s->o.ctx, s) : CUDA_SUCCESS;
}

API CUresult cuMemcpy3DBatchAsync_v2(size_t n, CUDA_MEMCPY3D_BATCH_OP *ops,
				     unsigned long long flags, CUstream stream)
{
	size_t failed;

	return batch3d(n, ops, &failed, flags, stream);
}

API CUresult cuMemcpy3DBatchAsync(size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed,
				  unsigned long long flags, CUstream stream)
{
	size_t other;

	return batch3d(n, ops, failed ? failed : &other, flags, stream);
}

/* ----------------------------------------------------------------------------- pitched memory */

API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
				unsigned int element)
{
	uint64_t p = (width + PITCH - 1) & -PITCH, len = sv_mul(p, height);

	if (!out || !pitch || !width || !height || p < width ||
	    (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (len == UINT64_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	TRY(cuMemAlloc_v2(out, len));
	*pitch = p;
	return CUDA_SUCCESS;
}
