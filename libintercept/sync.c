// SPDX-License-Identifier: Apache-2.0
/*
 * sync.c - waits for a context or a stream, and what follows from a wait
 *
 * A program that has waited for the device may read __managed__ variables, and what it has freed in a
 * stream's order may be free now. The rooms that have these are told by hooks (hooks.h).
 */
#include "context.h"
#include "hooks.h"
#include "send.h"

static CUresult waited(struct context *ctx)
{
	/* pairs with table() in managedvar.c */
	if (likely(!__atomic_load_n(&here->managedvars, __ATOMIC_ACQUIRE)))
		return CUDA_SUCCESS;
	for (int i = 0; i < context_hooks_n; i++)
		if (context_hooks[i].waited)
			TRY(context_hooks[i].waited(ctx));
	return CUDA_SUCCESS;
}

/* Where the proxy looks for the end of a step, what is free does not stay mapped. */
static void trim(void)
{
	if (likely(!session_at_step()))
		return;
	for (int i = 0; i < context_hooks_n; i++)
		if (context_hooks[i].trim)
			context_hooks[i].trim(false);
}

CUresult context_sync(struct context *ctx)
{
	struct sv_sync_on a = { ctx->o.handle, 0 };

	ON(ctx->session);
	TRY(send_sync(SV_OP_cuCtxSynchronize, &a, sizeof(a), NULL, 0, NULL, 0));
	trim();
	return waited(ctx);
}

CUresult sync_ask(uint16_t op, struct context *ctx, uint64_t on)
{
	struct sv_sync_on a = { ctx->o.handle, on };

	TRY(send_sync(op, &a, sizeof(a), NULL, 0, NULL, 0));
	return waited(ctx);
}

CUresult stream_sync(struct context *ctx, struct stream *s)
{
	CUresult rc = sync_ask(SV_OP_cuStreamSynchronize, ctx, s->wire);

	if (rc != CUDA_ERROR_EXTERNAL_DEVICE)	/* the stream stands */
		trim();
	return rc;
}
