/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - primary and created contexts, the thread's stack of them, limits, peers.
 *
 * A primary context's object lives as long as its device, so its handle may be made current before
 * it is retained; the context is active while it is retained. Destroying or resetting a context
 * waits for its work, then frees everything that was made in it.
 */
#include "soft_i.h"

#include <stdlib.h>
#include <string.h>

struct ctx *contexts;

/* Destroyed contexts are never freed: a thread's stack may still name them. */
static bool ctx_alive(const struct ctx *ctx)
{
	return ctx && obj_live(ctx, OBJ_CTX) && ctx->active;
}

struct ctx *ctx_current(void)
{
	return tls.depth ? tls.stack[tls.depth - 1] : NULL;
}

CUresult ctx_check(struct ctx *ctx)
{
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!obj_live(ctx, OBJ_CTX))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return ctx->active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void ctx_fail(struct ctx *ctx, CUresult err)
{
	if (ctx->sticky)
		return;
	__atomic_store_n(&ctx->sticky, err, __ATOMIC_RELAXED);
	__atomic_store_n(&ctx->stop, 1, __ATOMIC_RELAXED);	/* ends its other kernels, too */
	stream_let_go();
}

static void default_limits(struct ctx *ctx)
{
	memset(ctx->limits, 0, sizeof(ctx->limits));
	ctx->limits[CU_LIMIT_STACK_SIZE] = 1024;
	ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
	ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
	ctx->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
	ctx->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
	ctx->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
	ctx->limits[CU_LIMIT_SHMEM_SIZE] = 232448;	/* CIG's, read by cuBLAS, stays 0: off */
	ctx->cache_config = CU_FUNC_CACHE_PREFER_NONE;
	ctx->shared_config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
}

static struct ctx *ctx_new(struct device *dev, unsigned int flags)
{
	struct ctx *ctx = calloc(1, sizeof(*ctx));

	if (!ctx)
		return NULL;
	ctx->dev = dev;
	ctx->flags = flags;
	ctx->id = next_id();
	default_limits(ctx);
	obj_add(ctx, OBJ_CTX);
	ctx->next = contexts;
	contexts = ctx;
	return ctx;
}

/* The lowest number that no other context has; primary ones have 0. */
static unsigned int free_place(void)
{
	unsigned int n = 1;

	for (struct ctx *c = contexts; c;) {
		if (c->place == n) {
			n++;
			c = contexts;
		} else {
			c = c->next;
		}
	}
	return n;
}

static int ctx_start(struct ctx *ctx)
{
	if (ctx->active)
		return 0;
	ctx->legacy = soft_stream_new(ctx, 0, 0);
	if (!ctx->legacy)
		return -1;
	ctx->legacy->legacy = true;
	ctx->sticky = CUDA_SUCCESS;
	ctx->stop = 0;
	ctx->active = true;
	return 0;
}

static struct ctx *primary_of(struct device *dev)
{
	if (!dev->primary) {
		dev->primary = ctx_new(dev, 0);
		if (dev->primary)
			dev->primary->primary = true;
	}
	return dev->primary;
}

/* The primary context's handle, not retained; for cudart's private interface. */
__attribute__((visibility("default")))
CUresult softcuda_primary_context(CUcontext *pctx, CUdevice dev)
{
	CUresult r = api_lock();
	struct ctx *ctx;

	if (r)
		return r;
	if (!pctx || dev < 0 || dev >= ndevices)
		return api_unlock(pctx ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE);
	ctx = primary_of(&devices[dev]);
	*pctx = (CUcontext)ctx;
	return api_unlock(ctx ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult ctx_drain(struct ctx *ctx)
{
	uint64_t id = ctx->id;

	if (!ctx->active)
		return CUDA_SUCCESS;
again:
	for (struct stream *st = ctx->streams; st; st = st->next) {
		if (!st->tail)
			continue;
		stream_wait(st);
		if (!obj_live(ctx, OBJ_CTX) || ctx->id != id || !ctx->active)
			return CUDA_ERROR_CONTEXT_IS_DESTROYED;
		goto again;	/* the list may have changed */
	}
	return ctx->sticky;
}

void __attribute__((weak)) softcuda_context_gone(CUcontext ctx)
{
	(void)ctx;	/* direct mode ends cudart's context-local storage here */
}

static void ctx_stop(struct ctx *ctx)
{
	if (!ctx->active)
		return;
	ctx_drain(ctx);
	print_flush();
	pthread_mutex_unlock(&big);
	softcuda_context_gone((CUcontext)ctx);
	pthread_mutex_lock(&big);
	if (!ctx->active)
		return;
	module_free_ctx(ctx);
	for (struct stream *st = ctx->streams, *next; st; st = next) {
		next = st->next;
		if (!st->destroyed)
			stream_free(st);
	}
	stream_flush_dead(ctx);
	ctx->legacy = NULL;
	ctx->active = false;
	dheap_free(ctx);
	mem_free_ctx(ctx);
	default_limits(ctx);
	ctx->sticky = CUDA_SUCCESS;
	ctx->peers = 0;
	pool_drained(ctx->dev);
}

/* --------------------------------------------------------- primary contexts */

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	CUresult r = api_lock();
	struct ctx *ctx;

	if (r)
		return r;
	if (!pctx || dev < 0 || dev >= ndevices)
		return api_unlock(pctx ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE);
	ctx = primary_of(&devices[dev]);
	if (!ctx || ctx_start(ctx))
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	ctx->refs++;
	*pctx = (CUcontext)ctx;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	CUresult r = api_lock();
	struct ctx *ctx;

	if (r)
		return r;
	if (dev < 0 || dev >= ndevices)
		return api_unlock(CUDA_ERROR_INVALID_DEVICE);
	ctx = devices[dev].primary;
	if (!ctx || !ctx->refs)
		return api_unlock(CUDA_ERROR_INVALID_CONTEXT);
	if (!--ctx->refs)
		ctx_stop(ctx);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return cuDevicePrimaryCtxRelease_v2(dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	CUresult r = api_lock();
	struct ctx *ctx;

	if (r)
		return r;
	if (dev < 0 || dev >= ndevices)
		return api_unlock(CUDA_ERROR_INVALID_DEVICE);
	ctx = devices[dev].primary;
	if (ctx && ctx->active) {
		ctx_stop(ctx);
		if (ctx->refs && !profile->reset_ends && ctx_start(ctx))
			return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	api_unlock(CUDA_SUCCESS);
	profile_cost(profile_slow_reset, 1);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	return cuDevicePrimaryCtxReset_v2(dev);
}

static bool bad_ctx_flags(unsigned int flags)
{
	unsigned int sched = flags & CU_CTX_SCHED_MASK;

	return (flags & ~CU_CTX_FLAGS_MASK) ||
	       (sched != CU_CTX_SCHED_AUTO && sched != CU_CTX_SCHED_SPIN &&
		sched != CU_CTX_SCHED_YIELD && sched != CU_CTX_SCHED_BLOCKING_SYNC);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	CUresult r = api_lock();
	struct ctx *ctx;

	if (r)
		return r;
	if (dev < 0 || dev >= ndevices)
		return api_unlock(CUDA_ERROR_INVALID_DEVICE);
	if (bad_ctx_flags(flags))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	ctx = primary_of(&devices[dev]);
	if (!ctx)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	ctx->flags = flags;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	CUresult r = api_lock();
	struct ctx *ctx;

	if (r)
		return r;
	if (dev < 0 || dev >= ndevices)
		return api_unlock(CUDA_ERROR_INVALID_DEVICE);
	if (!flags || !active)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	ctx = devices[dev].primary;
	*flags = ctx ? ctx->flags : 0;
	*active = ctx && ctx->active;
	return api_unlock(CUDA_SUCCESS);
}

/* ------------------------------------------------------------ thread's stack */

static int push(struct ctx *ctx)
{
	tls_register();
	if (tls.depth == tls.cap) {
		unsigned int cap = tls.cap ? tls.cap * 2 : 8;
		struct ctx **s = realloc(tls.stack, cap * sizeof(*s));

		if (!s)
			return -1;
		tls.stack = s;
		tls.cap = cap;
	}
	tls.stack[tls.depth++] = ctx;
	return 0;
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	CUresult r = api_lock();
	struct ctx *ctx;

	if (r)
		return r;
	if (!pctx || bad_ctx_flags(flags))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (dev < 0 || dev >= ndevices)
		return api_unlock(CUDA_ERROR_INVALID_DEVICE);
	ctx = ctx_new(&devices[dev], flags);
	if (!ctx || ctx_start(ctx) || push(ctx))
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	ctx->place = free_place();
	ctx->attached = 1;
	*pctx = (CUcontext)ctx;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
			unsigned int flags, CUdevice dev)
{
	if (numParams < 0 || (numParams > 0 && !paramsArray))
		return CUDA_ERROR_INVALID_VALUE;
	return numParams ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
			CUdevice dev)
{
	if (ctxCreateParams && ctxCreateParams->cigParams)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (ctxCreateParams && ctxCreateParams->numExecAffinityParams)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext h)
{
	CUresult r = api_lock();
	struct ctx *ctx = (struct ctx *)h, **p;

	if (r)
		return r;
	if (!ctx_alive(ctx) || ctx->primary)
		return api_unlock(CUDA_ERROR_INVALID_CONTEXT);
	ctx_stop(ctx);
	obj_del(ctx);
	for (p = &contexts; *p && *p != ctx; p = &(*p)->next)
		;
	if (*p)
		*p = ctx->next;
	if (ctx_current() == ctx)
		tls.depth--;
	/* the object stays: other threads' stacks may name it, and must see that it is destroyed */
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	return cuCtxDestroy_v2(ctx);
}

CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
	struct ctx *ctx;
	CUresult r;

	if (!pctx || flags)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	ctx->attached++;
	*pctx = (CUcontext)ctx;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxDetach(CUcontext h)
{
	CUresult r = api_lock();
	struct ctx *ctx = (struct ctx *)h;
	bool last;

	if (r)
		return r;
	if (!ctx_alive(ctx) || ctx != ctx_current() || ctx->primary || !ctx->attached)
		return api_unlock(CUDA_ERROR_INVALID_CONTEXT);
	last = !--ctx->attached;
	api_unlock(CUDA_SUCCESS);
	return last ? cuCtxDestroy_v2(h) : CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext h)
{
	CUresult r = api_lock();
	struct ctx *ctx = (struct ctx *)h;

	if (r)
		return r;
	if (!ctx || !obj_live(ctx, OBJ_CTX))
		return api_unlock(CUDA_ERROR_INVALID_CONTEXT);
	return api_unlock(push(ctx) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
	return cuCtxPushCurrent_v2(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
	CUresult r = api_enter();

	if (r)
		return r;
	if (!tls.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	tls.depth--;
	if (pctx)
		*pctx = (CUcontext)tls.stack[tls.depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *pctx)
{
	return cuCtxPopCurrent_v2(pctx);
}

CUresult cuCtxSetCurrent(CUcontext h)
{
	CUresult r = api_lock();
	struct ctx *ctx = (struct ctx *)h;

	if (r)
		return r;
	if (!ctx) {
		if (tls.depth)
			tls.depth--;
		return api_unlock(CUDA_SUCCESS);
	}
	if (!obj_live(ctx, OBJ_CTX))
		return api_unlock(CUDA_ERROR_INVALID_CONTEXT);
	if (tls.depth)
		tls.stack[tls.depth - 1] = ctx;
	else if (push(ctx))
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
	CUresult r = api_enter();

	if (r)
		return r;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = (CUcontext)ctx_current();
	return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------ queries */

/* h or, when it is NULL, the current context; active or not. Success: big is held. */
static CUresult lock_any(CUcontext h, struct ctx **out)
{
	CUresult r = api_lock();
	struct ctx *ctx = h ? (struct ctx *)h : ctx_current();

	if (r)
		return r;
	if (!ctx)
		return api_unlock(CUDA_ERROR_INVALID_CONTEXT);
	if (!obj_live(ctx, OBJ_CTX))
		return api_unlock(h ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED);
	*out = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext h)
{
	struct ctx *ctx;
	CUresult r = lock_any(h, &ctx);

	if (r)
		return r;
	if (!device)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*device = ctx->dev->ordinal;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	return cuCtxGetDevice_v2(device, NULL);
}

CUresult cuCtxGetId(CUcontext h, unsigned long long *ctxId)
{
	struct ctx *ctx;
	CUresult r = lock_any(h, &ctx);

	if (r)
		return r;
	if (!ctxId)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*ctxId = ctx->id;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion(CUcontext h, unsigned int *version)
{
	struct ctx *ctx;
	CUresult r = lock_any(h, &ctx);

	if (r)
		return r;
	if (!version)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*version = 3020;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
	struct ctx *ctx;
	CUresult r = lock_any(NULL, &ctx);

	if (r)
		return r;
	if (!flags)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*flags = ctx->flags;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxSetFlags(unsigned int flags)
{
	struct ctx *ctx;
	CUresult r = lock_any(NULL, &ctx);

	if (r)
		return r;
	if (bad_ctx_flags(flags))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	ctx->flags = flags;
	return api_unlock(CUDA_SUCCESS);
}

static CUresult synchronize(CUcontext h)
{
	struct ctx *ctx;
	CUresult r = lock_any(h, &ctx);

	if (r)
		return r;
	r = ctx_check(ctx);
	if (!r)
		r = ctx->sticky;
	if (!r)
		r = capture_forbids();
	if (!r)
		r = ctx_drain(ctx);
	print_flush();
	if (!r)
		pool_drained(ctx->dev);
	return api_unlock(r);
}

CUresult cuCtxSynchronize(void)
{
	return synchronize(NULL);
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	return synchronize(ctx);
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct ctx *ctx;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	switch ((int)limit) {
	case CU_LIMIT_STACK_SIZE:
		if (value > 512 << 10)
			r = CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_LIMIT_PRINTF_FIFO_SIZE:
	case CU_LIMIT_MALLOC_HEAP_SIZE:
	case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
		break;
	case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
		if (value > 128)
			r = CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
	case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
	case CU_LIMIT_SHMEM_SIZE:
	case CU_LIMIT_CIG_ENABLED:
	case CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED:
		r = CUDA_ERROR_UNSUPPORTED_LIMIT;
		break;
	default:
		r = CUDA_ERROR_INVALID_VALUE;
	}
	if (!r)
		ctx->limits[limit] = value;
	return api_unlock(r);
}

CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
	struct ctx *ctx;
	CUresult r = lock_any(NULL, &ctx);

	if (r)
		return r;
	if (!pvalue || (int)limit < 0 || limit >= CU_LIMIT_MAX)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*pvalue = ctx->limits[limit];
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
	struct ctx *ctx;
	CUresult r = lock_any(NULL, &ctx);

	if (r)
		return r;
	if (!pconfig)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*pconfig = ctx->cache_config;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	struct ctx *ctx;
	CUresult r = lock_any(NULL, &ctx);

	if (r)
		return r;
	if ((int)config < 0 || config > CU_FUNC_CACHE_PREFER_EQUAL)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	ctx->cache_config = config;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
	struct ctx *ctx;
	CUresult r = lock_any(NULL, &ctx);

	if (r)
		return r;
	if (!pConfig)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*pConfig = ctx->shared_config;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	struct ctx *ctx;
	CUresult r = lock_any(NULL, &ctx);

	if (r)
		return r;
	if ((int)config < 0 || config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	return api_unlock(CUDA_SUCCESS);	/* banks are fixed, as on parts since Maxwell */
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
	struct ctx *ctx;
	CUresult r = lock_any(NULL, &ctx);

	if (r)
		return r;
	if (leastPriority)
		*leastPriority = 0;
	if (greatestPriority)
		*greatestPriority = -5;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuCtxResetPersistingL2Cache(void)
{
	struct ctx *ctx;
	CUresult r = api_lock_ctx(&ctx);

	return r ?: api_unlock(CUDA_SUCCESS);
}

/* -------------------------------------------------------------------- peers */

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
	struct ctx *ctx, *peer = (struct ctx *)peerContext;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	if (!ctx_alive(peer))
		r = CUDA_ERROR_INVALID_CONTEXT;
	else if (Flags)
		r = CUDA_ERROR_INVALID_VALUE;
	else if (peer == ctx)
		r = CUDA_ERROR_INVALID_CONTEXT;
	else if (peer->dev == ctx->dev)
		r = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	else if (ctx->peers & (1u << peer->dev->ordinal))
		r = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	else
		ctx->peers |= 1u << peer->dev->ordinal;
	return api_unlock(r);
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
	struct ctx *ctx, *peer = (struct ctx *)peerContext;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	if (!ctx_alive(peer))
		r = CUDA_ERROR_INVALID_CONTEXT;
	else if (!(ctx->peers & (1u << peer->dev->ordinal)))
		r = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	else
		ctx->peers &= ~(1u << peer->dev->ordinal);
	return api_unlock(r);
}
