// SPDX-License-Identifier: Apache-2.0
/*
 * copy.c - copies in stream order, and the store that frees a staging slot
 */
#include "context.h"
#include "device_memory.h"
#include "stat_i.h"
#include "streams.h"
#include "transfer.h"

static bool is_host(const struct sv_session *s, uint64_t addr)
{
	return addr - (uintptr_t)s->arena < s->arena_len;
}

static void count(struct call *k, bool to_host, bool from_host, uint64_t bytes)
{
	struct uproxy_stat *st = k->c.session->stat;

	k->bytes = bytes;
	stat_add(to_host ? &st->bytes_to_host : from_host ? &st->bytes_to_device :
		 &st->bytes_on_device, bytes);
}

static int check_word(struct call *k, uint64_t word)
{
	if (!word)
		return 0;
	if (word % 8 || !arena_pinned(k->c.session, word, 8))
		return sv_bad(&k->c, "the word to store behind a copy");
	return 0;
}

/*
 * Has the stream store the word after the copy, also after a failed one, since the client waits for
 * the word in any case. A failed context stores nothing any more: then the proxy stores the word.
 */
static CUresult store_word(struct sv_session *s, CUstream stream, uint64_t word, uint64_t value)
{
	uint8_t *at = arena_at(s, word);
	CUresult r;

	if (!word)
		return CUDA_SUCCESS;
	r = s->hal.drv.cuStreamWriteValue64_v2(stream, (uintptr_t)at, value, 0);
	if (r)
		__atomic_store_n((uint64_t *)at, value, __ATOMIC_RELEASE);
	return r;
}

static int begin_copy(struct call *k, uint64_t ctx, uint64_t handle, struct stream **st)
{
	int rc = sv_enter(k->c.session, ctx);

	if (rc < 0)
		k->c.why = "context of a copy";
	if (rc)
		return rc;
	rc = stream_use(k->c.session, handle, st);
	if (rc < 0)
		k->c.why = "stream of a copy";
	return rc;
}

/* The copy has been put on the stream, or r says why not. */
static int finish(struct call *k, struct stream *st, CUresult r, uint64_t word, uint64_t value)
{
	CUresult w = store_word(k->c.session, st->real, word, value);

	if (!r)
		r = w;
	if (r || !k->cpl)
		return fails(k, r);
	return sync_stream(k, st);
}

/* The record's stream is gone: stores the word, so that the client does not wait for it. */
static int no_stream(struct call *k, int rc, uint64_t word, uint64_t value)
{
	if (rc < 0)
		return rc;
	if (word)
		__atomic_store_n((uint64_t *)arena_at(k->c.session, word), value, __ATOMIC_RELEASE);
	return fails(k, rc);
}

int do_copy(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_copy *a = k->c.data;
	struct stream *st;
	CUresult r;
	int rc;

	if (check_word(k, a->word))
		return -EBADMSG;
	rc = begin_copy(k, a->ctx, a->stream, &st);
	if (rc)
		return no_stream(k, rc, a->word, a->value);
	r = sv_window(s, a->dst, a->len, 1);
	if (!r)
		r = sv_window(s, a->src, a->len, 0);
	if (!r && a->len) {
		r = s->hal.drv.cuMemcpyAsync(a->dst, a->src, a->len, st->real);
		count(k, is_host(s, a->dst), is_host(s, a->src), a->len);
	}
	return finish(k, st, r, a->word, a->value);
}

/* ------------------------------------------------------------------------------ 2D and 3D */

/* Checks one side of a copy of rows; *real: the driver's array. 0, a CUresult, or -errno. */
static int check_side(struct call *k, const struct sv_copy3d_side *d, const struct sv_copy3d *a,
		      int write, uint64_t *real)
{
	uint64_t slice, first, last;

	*real = 0;
	if (d->array) {
		if (d->addr)
			return sv_bad(&k->c, "a side of a copy that is array and address");
		return sv_real(k->c.session, SV_T_CUarray, d->array, 0, real);
	}
	if (d->lod)
		return CUDA_ERROR_INVALID_VALUE;
	if (!a->width || !a->height || !a->depth)
		return 0;
	/* From the first byte of the box to its last: rows are pitch apart, slices height rows. */
	if (__builtin_mul_overflow(d->pitch, d->height, &slice))
		return CUDA_ERROR_INVALID_VALUE;
	if (!d->pitch && (a->height > 1 || d->y))
		return CUDA_ERROR_INVALID_VALUE;
	if (!slice && (a->depth > 1 || d->z))
		return CUDA_ERROR_INVALID_VALUE;
	first = sv_mul(d->z, slice);
	if (first == UINT64_MAX || __builtin_add_overflow(first, sv_mul(d->y, d->pitch), &first) ||
	    __builtin_add_overflow(first, d->x, &first))
		return CUDA_ERROR_INVALID_VALUE;
	last = sv_mul(a->depth - 1, slice);
	if (last == UINT64_MAX ||
	    __builtin_add_overflow(last, sv_mul(a->height - 1, d->pitch), &last) ||
	    __builtin_add_overflow(last, a->width, &last))
		return CUDA_ERROR_INVALID_VALUE;
	if (__builtin_add_overflow(first, d->addr, &first))
		return CUDA_ERROR_INVALID_VALUE;
	return sv_window(k->c.session, first, last, write);
}

static void fill_dst(const struct sv_session *s, CUDA_MEMCPY3D *p, const struct sv_copy3d_side *d,
		     uint64_t real)
{
	p->dstXInBytes = d->x;
	p->dstY = d->y;
	p->dstZ = d->z;
	p->dstLOD = d->lod;
	p->dstPitch = d->pitch;
	p->dstHeight = d->height;
	if (real) {
		p->dstMemoryType = CU_MEMORYTYPE_ARRAY;
		p->dstArray = (CUarray)(uintptr_t)real;
	} else if (is_host(s, d->addr)) {
		p->dstMemoryType = CU_MEMORYTYPE_HOST;
		p->dstHost = (void *)(uintptr_t)d->addr;
	} else {
		p->dstMemoryType = CU_MEMORYTYPE_DEVICE;
		p->dstDevice = d->addr;
	}
}

static void fill_src(const struct sv_session *s, CUDA_MEMCPY3D *p, const struct sv_copy3d_side *d,
		     uint64_t real)
{
	p->srcXInBytes = d->x;
	p->srcY = d->y;
	p->srcZ = d->z;
	p->srcLOD = d->lod;
	p->srcPitch = d->pitch;
	p->srcHeight = d->height;
	if (real) {
		p->srcMemoryType = CU_MEMORYTYPE_ARRAY;
		p->srcArray = (CUarray)(uintptr_t)real;
	} else if (is_host(s, d->addr)) {
		p->srcMemoryType = CU_MEMORYTYPE_HOST;
		p->srcHost = (void *)(uintptr_t)d->addr;
	} else {
		p->srcMemoryType = CU_MEMORYTYPE_DEVICE;
		p->srcDevice = d->addr;
	}
}

int copy_params(struct call *k, const struct sv_copy3d *a, CUDA_MEMCPY3D *p)
{
	uint64_t dst = 0, src = 0;
	int r;

	*p = (CUDA_MEMCPY3D){ .WidthInBytes = a->width, .Height = a->height, .Depth = a->depth };
	r = check_side(k, &a->dst, a, 1, &dst);
	if (!r)
		r = check_side(k, &a->src, a, 0, &src);
	if (r < 0 && !k->c.why)
		k->c.why = "array of a copy";
	fill_dst(k->c.session, p, &a->dst, dst);
	fill_src(k->c.session, p, &a->src, src);
	return r;
}

int do_copy3d(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_copy3d *a = k->c.data;
	CUDA_MEMCPY3D p;
	struct stream *st;
	int r, rc;

	if (check_word(k, a->word))
		return -EBADMSG;
	rc = begin_copy(k, a->ctx, a->stream, &st);
	if (rc)
		return no_stream(k, rc, a->word, a->value);
	if (!s->hal.drv.cuMemcpy3DAsync_v2)
		return finish(k, st, CUDA_ERROR_NOT_SUPPORTED, a->word, a->value);
	r = copy_params(k, a, &p);
	if (r < 0)
		return r;
	if (!r) {
		r = s->hal.drv.cuMemcpy3DAsync_v2(&p, st->real);
		count(k, p.dstMemoryType == CU_MEMORYTYPE_HOST,
		      p.srcMemoryType == CU_MEMORYTYPE_HOST,
		      sv_mul(a->width, sv_mul(a->height, a->depth)));
	}
	return finish(k, st, r, a->word, a->value);
}
