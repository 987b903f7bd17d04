// SPDX-License-Identifier: Apache-2.0
/*
 * stream.c - the streams of contexts, and how much of their work is known to be done
 *
 * Uses of a context's streams are counted. When a callback answers a synchronisation, it notes up
 * to which use its stream is done; the driver calls the stream busy until the callback has
 * returned. A use that the legacy stream has reached is done in all blocking streams, too.
 */
#include <stdlib.h>

#include "attrs.h"
#include "context.h"
#include "cover.h"
#include "handle.h"
#include "park.h"
#include "streams.h"

void stream_put(struct stream *st)
{
	/* pairs with itself: the last one sees what the others have stored */
	if (__atomic_sub_fetch(&st->refs, 1, __ATOMIC_ACQ_REL))
		return;
	free(st->cover);
	free(st);
}

void stream_used(struct stream *st)
{
	st->used = ++st->context->uses;
	st->ops++;
	if (cover_any)
		cover_use(st);
}

void stream_reached(struct stream *st, uint64_t upto)
{
	uint64_t was = __atomic_load_n(&st->done, __ATOMIC_RELAXED);

	while (was < upto && !__atomic_compare_exchange_n(&st->done, &was, upto, true,
							  __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

static uint64_t reached(const struct stream *st)
{
	/* pairs with stream_reached(), as the next one */
	uint64_t own = __atomic_load_n(&st->done, __ATOMIC_ACQUIRE), all;

	if (!st->blocking)
		return own;
	/* pairs with stream_reached() */
	all = __atomic_load_n(&st->context->legacy.done, __ATOMIC_ACQUIRE);
	return own > all ? own : all;
}

bool stream_known_idle(const struct stream *st)
{
	if (st->used > reached(st))
		return false;
	for (const struct stream *b = st->legacy ? st->context->streams : NULL; b; b = b->next)
		if (b->blocking && b->used > reached(b))
			return false;
	return true;
}

int uproxy_stream_find(struct sv_session *s, uint64_t handle, struct stream **st)
{
	struct context *c = context_here();

	*st = NULL;
	if (handle == SV_STREAM_LEGACY) {
		if (!c)
			return CUDA_ERROR_INVALID_CONTEXT;
		*st = &c->legacy;
		return 0;
	}
	if (!sv_is_handle(SV_T_CUstream, handle))
		return -EPROTO;
	*st = handle_obj(s, SV_T_CUstream, handle);
	return *st ? 0 : CUDA_ERROR_INVALID_HANDLE;
}

int stream_use(struct sv_session *s, uint64_t handle, struct stream **st)
{
	int rc = uproxy_stream_find(s, handle, st);

	if (!rc) {
		stream_mark(s, *st);
		stream_used(*st);
	}
	return rc;
}

int sv_real(struct sv_session *s, unsigned int type, uint64_t handle, int optional, uint64_t *real)
{
	struct stream *st;
	int rc;

	*real = 0;
	if (!handle && optional)
		return 0;
	if (type != SV_T_CUstream)
		return handle_real(s, type, handle, real);
	rc = stream_use(s, handle, &st);
	*real = rc ? 0 : (uintptr_t)st->real;
	return rc;
}

struct stream *uproxy_stream_new(struct context *c, uint64_t handle, CUstream real, bool blocking)
{
	struct stream *st = calloc(1, sizeof(*st));

	if (st)
		*st = (struct stream){ .context = c, .handle = handle, .real = real,
				       .blocking = blocking, .refs = 1 };
	return st;
}

/* Types whose objects live as long as the session, whatever context they were made in. */
static bool of_session(unsigned int type)
{
	return type == SV_T_CUlibrary || type == SV_T_CUkernel ||
	       type == SV_T_CUmemGenericAllocationHandle_v1 || type == SV_T_CUgraph ||
	       type == SV_T_CUgraphNode;
}

/* Binds an object that the generated code has created in the current context. */
int sv_bind(struct sv_session *s, unsigned int type, uint64_t handle, uint64_t real)
{
	struct context *c = context_here();
	struct stream *st = NULL;
	unsigned int flags = 0;
	int rc;

	if (type == SV_T_CUstream) {
		if (!c)
			return -EPROTO;
		if (s->hal.drv.cuStreamGetFlags)
			s->hal.drv.cuStreamGetFlags((CUstream)(uintptr_t)real, &flags);
		st = uproxy_stream_new(c, handle, (CUstream)(uintptr_t)real,
				       !(flags & CU_STREAM_NON_BLOCKING));
		if (!st)
			return -ENOMEM;
	}
	rc = handle_bind(s, type, handle, real, st, c && !of_session(type) ? c->handle : 0);
	if (rc)
		free(st);
	if (rc || !st)
		return rc;
	st->next = c->streams;
	c->streams = st;
	return 0;
}

int do_stream_destroy(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_stream_end *a = k->c.data;
	struct stream *st, **p;
	CUresult r;
	int rc;

	rc = a->stream == SV_STREAM_LEGACY ? -EPROTO : uproxy_stream_find(s, a->stream, &st);
	if (rc)
		return sv_fails(&k->c, rc, "handle of the stream to destroy");
	sv_unbind(s, SV_T_CUstream, a->stream);
	r = sync_orphan(s, st);
	stream_unmark(s, st);
	park_stream_gone(st);
	if (!r)
		r = s->hal.drv.cuStreamDestroy_v2(st->real);
	for (p = &st->context->streams; *p; p = &(*p)->next)
		if (*p == st) {
			*p = st->next;
			break;
		}
	stream_put(st);
	return fails(k, r);
}

int do_stream_attr(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_stream_attr *a = k->c.data;
	CUstreamAttrValue v;
	struct stream *st;
	int rc;

	if (a->pad)
		return sv_bad(&k->c, "padding of a stream's attribute");
	if (!(sv_attr_of(a->id) & SV_ATTR_STREAM))
		return sv_bad(&k->c, "attribute that a stream does not have");
	rc = sv_enter(s, a->ctx);
	if (!rc)
		rc = uproxy_stream_find(s, a->stream, &st);
	if (rc)
		return sv_fails(&k->c, rc, "stream of an attribute");
	memcpy(&v, a->value, sizeof(v));
	if (!s->hal.drv.cuStreamSetAttribute)
		return fails(k, CUDA_ERROR_NOT_SUPPORTED);
	return fails(k, s->hal.drv.cuStreamSetAttribute(st->real, a->id, &v));
}

/* Notes the address of a wait for memory, which a refused dump names as the cause. */
int do_stream_wait(struct call *k)
{
	const struct sv_cuStreamWaitValue32_v2 *a = k->c.data;	/* the other form begins so, too */
	struct stream *st;
	int rc = cuda_dispatch(&k->c);

	if (!rc && !k->c.status && !uproxy_stream_find(k->c.session, a->stream, &st))
		st->wait_addr = a->addr;
	return rc;
}
