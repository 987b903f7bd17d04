// SPDX-License-Identifier: Apache-2.0
/*
 * own.c - which stream a call means: a new one, one by its handle, or the thread's own
 *
 * A per-thread default stream is an ordinary blocking stream that the thread makes when it first
 * needs it in a context, and that ends with the thread or the context.
 */
#include "context.h"
#include "object.h"
#include "send.h"

#include <stdlib.h>

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

CUresult stream_new(struct context *ctx, unsigned int flags, struct stream **out)
{
	struct sv_cuStreamCreate a = { .ctx = ctx->o.handle, .Flags = flags };
	struct stream *s = obj_new(SV_T_CUstream, ctx);
	CUresult rc;

	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	s->flags = flags;
	a.phStream = s->wire;
	rc = send_async(SV_OP_cuStreamCreate, &a, sizeof(a), NULL, 0);
	if (rc)
		obj_free(SV_T_CUstream, &s->o);
	else
		*out = s;
	return rc;
}

static void thread_ends(void *arg)
{
	struct thread *t = arg;

	for (struct stream *s = t->own, *next; s; s = next) {
		struct sv_stream_end end = { s->wire };

		next = s->own_next;
		if (s->owner != t || !s->o.handle)
			continue;
		if (process.state == SESSION_OPEN) {
			ON(s->o.ctx->session);
			send_async(SV_OP_cuStreamDestroy_v2, &end, sizeof(end), NULL, 0);
		}
		s->owner = NULL;
		obj_free(SV_T_CUstream, &s->o);
	}
	t->own = NULL;
	free(t->scratch);
	t->scratch = NULL;
	t->scratch_len = 0;
}

static void make_key(void)
{
	pthread_key_create(&key, thread_ends);
}

CUresult stream_own(struct context *ctx, struct stream **out)
{
	struct stream *s;

	for (s = thread.own; s; s = s->own_next)
		if (s->owner == &thread && s->o.ctx == ctx) {
			*out = s;
			return CUDA_SUCCESS;
		}
	pthread_once(&once, make_key);
	pthread_setspecific(key, &thread);
	TRY(stream_new(ctx, CU_STREAM_DEFAULT, &s));
	s->owner = &thread;
	s->own_next = thread.own;
	thread.own = s;
	*out = s;
	return CUDA_SUCCESS;
}

CUresult stream_find(CUstream handle, struct stream **out)
{
	struct context *ctx;

	TRY(context_current(&ctx));
	if (likely(sv_u64(handle) > 2)) {
		*out = obj_find(SV_T_CUstream, sv_u64(handle));
		return likely(*out) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
	}
	if (handle == CU_STREAM_PER_THREAD || (!handle && thread.per_thread))
		return stream_own(ctx, out);
	*out = &ctx->legacy;
	return CUDA_SUCCESS;
}
