/* SPDX-License-Identifier: Apache-2.0 */
/*
 * desc.c - one piece of work: copied, freed, executed
 */
#include "soft_i.h"
#include "array_i.h"
#include "graph_i.h"
#include "module_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LATE_NS 100000	/* what the profile's option late-callbacks waits */

struct rect {
	uint8_t *p;
	size_t pitch, slice;
};

static struct rect side(CUmemorytype type, const void *host, CUdeviceptr dev, CUarray h, size_t x,
			size_t y, size_t z, size_t pitch, size_t height)
{
	struct rect s;

	if (type == CU_MEMORYTYPE_ARRAY) {
		struct array *a = (struct array *)h;

		s.pitch = a->pitch;
		s.slice = a->slice;
		s.p = (uint8_t *)a->va;
	} else {
		s.pitch = pitch;
		s.slice = pitch * height;
		s.p = type == CU_MEMORYTYPE_HOST ? (uint8_t *)host : (uint8_t *)dev;
	}
	s.p += z * s.slice + y * s.pitch + x;
	return s;
}

static void sides(const CUDA_MEMCPY3D *c, struct rect *dst, struct rect *src)
{
	*src = side(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcXInBytes,
		    c->srcY, c->srcZ, c->srcPitch, c->srcHeight);
	*dst = side(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstXInBytes,
		    c->dstY, c->dstZ, c->dstPitch, c->dstHeight);
}

CUresult copy_run(const CUDA_MEMCPY3D *c, const void *staging)
{
	struct rect d, s;

	sides(c, &d, &s);
	if (staging)
		s = (struct rect){ (uint8_t *)staging, c->WidthInBytes,
				   c->WidthInBytes * c->Height };
	if (c->Height == 1 && c->Depth == 1) {
		memmove(d.p, s.p, c->WidthInBytes);
		return CUDA_SUCCESS;
	}
	for (size_t z = 0; z < c->Depth; z++)
		for (size_t y = 0; y < c->Height; y++)
			memmove(d.p + z * d.slice + y * d.pitch, s.p + z * s.slice + y * s.pitch,
				c->WidthInBytes);
	return CUDA_SUCCESS;
}

/* Bytes from the first row of all slices to the end of the last; false: there are not so many. */
static bool span(size_t width, size_t rows, size_t pitch, size_t slices, size_t height, size_t *len)
{
	size_t slice = 0, below;

	if (slices > 1 && __builtin_mul_overflow(pitch, height, &slice))
		return false;
	return !__builtin_mul_overflow(slices - 1, slice, len) &&
	       !__builtin_mul_overflow(rows - 1, pitch, &below) &&
	       !__builtin_add_overflow(*len, below, len) &&
	       !__builtin_add_overflow(*len, width, len);
}

static bool inside(size_t at, size_t n, size_t room)
{
	return n <= room && at <= room - n;
}

static CUresult check_side(CUmemorytype type, const struct rect *s, const CUDA_MEMCPY3D *c,
			   CUarray h, size_t x, size_t y, size_t z, size_t pitch, size_t height,
			   int prot)
{
	uint64_t va = (uint64_t)s->p;
	size_t len;

	if (type == CU_MEMORYTYPE_ARRAY) {
		struct array *a = (struct array *)h;

		return inside(x, c->WidthInBytes, a->row) && inside(y, c->Height, a->rows) &&
		       inside(z, c->Depth, a->slices) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	}
	if ((c->Height > 1 || c->Depth > 1) && pitch < c->WidthInBytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (c->Depth > 1 && height < c->Height)
		return CUDA_ERROR_INVALID_VALUE;
	if (!va)
		return CUDA_ERROR_INVALID_VALUE;
	if (!span(c->WidthInBytes, c->Height, pitch, c->Depth, height, &len))
		return CUDA_ERROR_INVALID_VALUE;
	if (profile->pins_apart && !mem_pins_whole(va, len))
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_MEMORYTYPE_HOST && !in_window(va, len))
		return CUDA_SUCCESS;
	if (type == CU_MEMORYTYPE_UNIFIED && !in_window(va, 1) && !mem_find(va))
		return CUDA_SUCCESS;	/* plain host memory */
	return mem_device_ok(va, len, prot) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool bad_type(CUmemorytype type, CUarray h)
{
	return type < CU_MEMORYTYPE_HOST || type > CU_MEMORYTYPE_UNIFIED ||
	       (type == CU_MEMORYTYPE_ARRAY && !obj_live(h, OBJ_ARRAY));
}

CUresult copy_check(const CUDA_MEMCPY3D *c)
{
	struct rect d, s;
	CUresult r;

	if (bad_type(c->srcMemoryType, c->srcArray) || bad_type(c->dstMemoryType, c->dstArray))
		return CUDA_ERROR_INVALID_VALUE;
	if (c->srcLOD || c->dstLOD)
		return CUDA_ERROR_INVALID_VALUE;
	if (!c->WidthInBytes || !c->Height || !c->Depth)
		return CUDA_SUCCESS;
	sides(c, &d, &s);
	r = check_side(c->srcMemoryType, &s, c, c->srcArray, c->srcXInBytes, c->srcY, c->srcZ,
		       c->srcPitch, c->srcHeight, 1 /* PROT_READ */);
	if (r)
		return r;
	return check_side(c->dstMemoryType, &d, c, c->dstArray, c->dstXInBytes, c->dstY, c->dstZ,
			  c->dstPitch, c->dstHeight, 2 /* PROT_WRITE */);
}

/* ------------------------------------------------------------------- memset */

CUresult set_span(const struct desc *d, size_t *len)
{
	size_t row;

	*len = 0;
	if (d->set.dst % d->set.elem || (d->set.height > 1 && d->set.pitch % d->set.elem))
		return CUDA_ERROR_INVALID_VALUE;
	if (!d->set.width || !d->set.height)
		return CUDA_SUCCESS;
	if (__builtin_mul_overflow(d->set.width, d->set.elem, &row) ||
	    (d->set.height > 1 && d->set.pitch < row) ||
	    !span(row, d->set.height, d->set.pitch, 1, 0, len))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult set_check(const struct desc *d)
{
	size_t len;
	CUresult r = set_span(d, &len);

	if (r || !len)
		return r;
	return mem_device_ok(d->set.dst, len, 2 /* PROT_WRITE */) ? CUDA_SUCCESS :
								    CUDA_ERROR_INVALID_VALUE;
}

static void set_row(void *p, const struct desc *d)
{
	size_t n = d->set.width;

	if (d->set.elem == 1) {
		memset(p, d->set.value, n);
	} else if (d->set.elem == 2) {
		for (uint16_t *q = p; n--;)
			*q++ = d->set.value;
	} else {
		for (uint32_t *q = p; n--;)
			*q++ = d->set.value;
	}
}

static void set_run(const struct desc *d)
{
	for (size_t y = 0; y < d->set.height; y++)
		set_row((uint8_t *)d->set.dst + y * d->set.pitch, d);
}

/* -------------------------------------------------------- stream memory ops */

static bool wait_met(const CUstreamBatchMemOpParams *p)
{
	unsigned int how = p->waitValue.flags & 3;

	if (p->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32) {
		/* pairs with memops_run() of another stream, or with whoever else writes the value, as below */
		uint32_t v = __atomic_load_n((uint32_t *)p->waitValue.address, __ATOMIC_ACQUIRE);
		uint32_t w = p->waitValue.value;

		return how == CU_STREAM_WAIT_VALUE_GEQ ? (int32_t)(v - w) >= 0 :
		       how == CU_STREAM_WAIT_VALUE_EQ ? v == w :
		       how == CU_STREAM_WAIT_VALUE_AND ? (v & w) != 0 : ~(v | w) != 0;
	}
	/* pairs with memops_run() of another stream */
	uint64_t v = __atomic_load_n((uint64_t *)p->waitValue.address, __ATOMIC_ACQUIRE);
	uint64_t w = p->waitValue.value64;

	return how == CU_STREAM_WAIT_VALUE_GEQ ? (int64_t)(v - w) >= 0 :
	       how == CU_STREAM_WAIT_VALUE_EQ ? v == w :
	       how == CU_STREAM_WAIT_VALUE_AND ? (v & w) != 0 : ~(v | w) != 0;
}

bool desc_waits(const struct desc *d, uint64_t *word)
{
	if (d->kind != D_MEMOPS || d->memops.n != 1)
		return false;
	*word = d->memops.ops[0].waitValue.address;
	return d->memops.ops[0].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
	       d->memops.ops[0].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

bool desc_wait_met(const struct desc *d)
{
	return wait_met(&d->memops.ops[0]);
}

/* Polls at growing intervals: a 32nd of the wait so far, 2 ms at most. */
static void wait_value(struct ctx *ctx, const CUstreamBatchMemOpParams *p)
{
	uint64_t begin = soft_now_ns();

	for (unsigned int spin = 0; !wait_met(p) && !ctx_over(ctx); spin++) {
		uint64_t nap = (soft_now_ns() - begin) / 32;
		struct timespec ts = { 0, nap < 2000000 ? nap : 2000000 };

		if (spin < 256)
			__builtin_ia32_pause();
		else
			nanosleep(&ts, NULL);
	}
}

static void memops_run(struct ctx *ctx, const struct desc *d)
{
	for (unsigned int i = 0; i < d->memops.n; i++) {
		const CUstreamBatchMemOpParams *p = &d->memops.ops[i];

		switch (p->operation) {
		case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		case CU_STREAM_MEM_OP_WAIT_VALUE_64:
			wait_value(ctx, p);
			break;
		case CU_STREAM_MEM_OP_WRITE_VALUE_32:
			__atomic_store_n((uint32_t *)p->writeValue.address, p->writeValue.value,
					 __ATOMIC_RELEASE);
			break;
		case CU_STREAM_MEM_OP_WRITE_VALUE_64:
			__atomic_store_n((uint64_t *)p->writeValue.address, p->writeValue.value64,
					 __ATOMIC_RELEASE);
			break;
		default:
			__atomic_thread_fence(__ATOMIC_SEQ_CST);
		}
	}
}

/*
 * Copies, memsets and memory operations were checked when they were submitted. Memory that has been
 * unmapped since, or whose file was truncated, breaks the context, not the process.
 */
struct piece {
	struct ctx *ctx;
	const struct desc *d;
};

static void run_piece(void *arg)
{
	const struct piece *p = arg;

	if (p->d->kind == D_MEMCPY)
		copy_run(&p->d->copy.c, p->d->copy.staging);
	else if (p->d->kind == D_MEMSET)
		set_run(p->d);
	else
		memops_run(p->ctx, p->d);
}

static CUresult try_piece(struct ctx *ctx, const struct desc *d)
{
	struct piece p = { ctx, d };
	struct ranges *rs;
	CUresult r;

	pthread_mutex_lock(&big);
	rs = ranges_get();
	pthread_mutex_unlock(&big);
	if (!rs)
		return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	r = ptx_try(run_piece, &p, rs->r, rs->n) ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
	pthread_mutex_lock(&big);
	ranges_put(rs);
	pthread_mutex_unlock(&big);
	if (r)
		soft_log("a copy, memset or memory operation touched memory that is gone");
	return r;
}

/* ---------------------------------------------------------------- the others */

static void host_run(struct ctx *ctx, const struct desc *d)
{
	bool saved = tls.in_callback;

	print_flush();
	if (profile_late_callbacks)
		nanosleep(&(struct timespec){ 0, LATE_NS }, NULL);
	tls.in_callback = true;
	if (d->kind == D_HOST && !ctx_latched(ctx))
		d->host.fn(d->host.user);
	else if (d->kind == D_CALLBACK)
		d->cb.fn(d->cb.stream, ctx_latched(ctx), d->cb.user);
	tls.in_callback = saved;
}

static void record_run(struct event *ev)
{
	struct op *op;

	pthread_mutex_lock(&big);
	op = op_completed(soft_now_ns());
	if (op)
		event_record_op(ev, op);
	pthread_mutex_unlock(&big);
}

static CUresult wait_run(struct event *ev)
{
	CUresult r = CUDA_SUCCESS;

	pthread_mutex_lock(&big);
	if (ev->rec)
		r = op_wait(ev->rec);
	pthread_mutex_unlock(&big);
	return r;
}

CUresult desc_run(struct ctx *ctx, struct stream *st, struct op *op, struct desc *d)
{
	CUresult r;

	if (d->kind == D_CALLBACK) {
		host_run(ctx, d);
		return CUDA_SUCCESS;
	}
	if (ctx_latched(ctx) && d->kind != D_GRAPH)
		return CUDA_SUCCESS;
	switch (d->kind) {
	case D_KERNEL:
		return launch_run(ctx, &d->k);
	case D_MEMCPY:
	case D_MEMSET:
	case D_MEMOPS:
		return try_piece(ctx, d);
	case D_HOST:
		host_run(ctx, d);
		return CUDA_SUCCESS;
	case D_RECORD:
		record_run(d->event);
		return CUDA_SUCCESS;
	case D_WAIT:
		return wait_run(d->event);
	case D_COND:
		return cond_run(ctx, st, op, d);
	case D_GRAPH:
		r = graph_run_marked(ctx, st, op, d->child);
		pthread_mutex_lock(&big);
		graph_marks_free(d);	/* completes the events that an error has skipped */
		pthread_mutex_unlock(&big);
		return r;
	default:	/* D_EMPTY; D_ALLOC and D_FREE: exec.c manages their memory */
		return CUDA_SUCCESS;
	}
}

void desc_free(struct desc *d)
{
	switch (d->kind) {
	case D_KERNEL:
		free(d->k.params);
		module_put(d->k.fn->mod);
		break;
	case D_MEMCPY:
		free(d->copy.staging);
		break;
	case D_MEMOPS:
		free(d->memops.ops);
		break;
	case D_RECORD:
	case D_WAIT:
		if (d->event)
			event_put(d->event);
		break;
	case D_ALLOC:
		if (d->alloc.gm)
			gmem_put(d->alloc.gm);
		break;
	case D_COND:
		cond_free(d);
		break;
	case D_GRAPH:
		graph_marks_free(d);
		graph_put_ref(d->child);
		break;
	case D_CHILD:
		if (d->child)
			graph_put_ref(d->child);
		break;
	default:
		break;
	}
	d->kind = D_EMPTY;
}

static void *dup_mem(const void *p, size_t len)
{
	void *q = malloc(len ? len : 1);

	if (q && len)
		memcpy(q, p, len);
	return q;
}

int desc_copy(struct desc *to, const struct desc *from)
{
	*to = *from;
	switch (from->kind) {
	case D_KERNEL:
		to->k.params = dup_mem(from->k.params, from->k.params_len);
		if (!to->k.params)
			goto nomem;
		to->k.fn->mod->refs++;
		break;
	case D_MEMCPY:
		to->copy.staging = NULL;
		break;
	case D_MEMOPS:
		to->memops.ops = dup_mem(from->memops.ops,
					 from->memops.n * sizeof(*from->memops.ops));
		if (!to->memops.ops)
			goto nomem;
		break;
	case D_ALLOC:
		to->alloc.gm->refs++;
		break;
	case D_RECORD:
	case D_WAIT:
		if (to->event)
			to->event->refs++;
		break;
	default:
		break;
	}
	return 0;
nomem:
	to->kind = D_EMPTY;
	return -ENOMEM;
}
