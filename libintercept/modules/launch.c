// SPDX-License-Identifier: Apache-2.0
/*
 * launch.c - checks a launch's arguments in the client, so that the call itself returns the error
 */
#include "attrs.h"
#include "client.h"
#include "managedvar.h"

#include <string.h>

#define BAD_DIMENSIONS ((CUresult)9)

static CUresult dimensions(const CUlaunchConfig *c, const struct function *fn)
{
	const int32_t *attr = session.shared->dev[session.shared->device].attr;
	uint64_t threads = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;

	/* For bad dimensions of its own kernels cudart expects an unnamed error value. */
	CUresult bad = obj_type(&fn->o) == SV_T_CUkernel ? BAD_DIMENSIONS :
		CUDA_ERROR_INVALID_VALUE;

	if (unlikely(!c->gridDimX || !c->gridDimY || !c->gridDimZ || !threads))
		return bad;
	if (unlikely(c->gridDimX > (unsigned int)attr[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] ||
		     c->gridDimY > (unsigned int)attr[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] ||
		     c->gridDimZ > (unsigned int)attr[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] ||
		     c->blockDimX > (unsigned int)attr[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] ||
		     c->blockDimY > (unsigned int)attr[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] ||
		     c->blockDimZ > (unsigned int)attr[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] ||
		     threads > (unsigned int)attr[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] ||
		     threads > (unsigned int)fn->max_threads))
		return bad;
	if (unlikely(c->sharedMemBytes > (unsigned int)fn->dynamic_shared))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* The parameter buffer passed by `extra`, checked to have the kernel's size. */
static CUresult from_extra(void **extra, const struct function *fn, const void **buf)
{
	size_t *size = NULL;

	*buf = NULL;
	for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
		if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			*buf = extra[i + 1];
		else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
			size = extra[i + 1];
		else
			return CUDA_ERROR_INVALID_VALUE;
		if (i == 8)
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (!*buf || !size || *size < fn->info->param_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult parameters(const struct function *fn, void **params, void **extra, uint8_t *to)
{
	const struct sv_func_info *info = fn->info;
	const void *buf;

	if (unlikely(!info->param_bytes))
		return CUDA_SUCCESS;
	if (likely(params)) {
		for (uint32_t i = 0; i < info->params; i++) {
			uint32_t size = info->param[i].size;
			uint8_t *at = to + info->param[i].off;

			if (likely(size == 8))
				memcpy(at, params[i], 8);
			else if (size == 4)
				memcpy(at, params[i], 4);
			else
				memcpy(at, params[i], size);
		}
		return CUDA_SUCCESS;
	}
	if (!extra)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(from_extra(extra, fn, &buf));
	memcpy(to, buf, info->param_bytes);
	return CUDA_SUCCESS;
}

static CUresult event_ok(CUevent h)
{
	const struct event *e = obj_find(SV_T_CUevent, sv_u64(h));

	if (e && e->peers)
		return sv_unsupported("cuLaunchKernelEx",
				      "an event of several processes is recorded by itself");
	return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult attributes(const CUlaunchConfig *c, struct launch *l, CUlaunchAttribute *to)
{
	if (c->numAttrs > LAUNCH_ATTRS_MAX || (c->numAttrs && !c->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < c->numAttrs; i++) {
		const CUlaunchAttribute *a = &c->attrs[i];

		switch ((unsigned int)a->id) {
		case CU_LAUNCH_ATTRIBUTE_IGNORE:
			continue;
		case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
			if (a->value.cooperative)
				l->head.flags |= SV_LAUNCH_COOPERATIVE;
			continue;
		case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
			return sv_unsupported("cuLaunchKernelEx",
					      "nodes that the device updates cannot be rebuilt");
		case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
			TRY(event_ok(a->value.programmaticEvent.event));
			break;
		case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
			TRY(event_ok(a->value.launchCompletionEvent.event));
			break;
		default:
			if (!(sv_attr_of(a->id) & SV_ATTR_LAUNCH))
				return CUDA_ERROR_NOT_SUPPORTED;
		}
		memset(&to[l->head.attrs], 0, sizeof(*to));
		to[l->head.attrs].id = a->id;
		to[l->head.attrs++].value = a->value;
	}
	return CUDA_SUCCESS;
}

CUresult launch_layout(const CUlaunchConfig *c, struct context *ctx, CUfunction f, void **params,
		       void **extra, struct launch *out)
{
	struct function *fn = function_find(f);
	uint64_t room;
	uint8_t *tail;

	if (unlikely(!fn))
		return CUDA_ERROR_INVALID_HANDLE;
	TRY(dimensions(c, fn));
	if (unlikely(!fn->prepared))
		TRY(function_prepare(ctx, fn));
	out->fn = fn;
	out->head = (struct sv_launch){
		.ctx = ctx->o.handle, .function = fn->o.handle,
		.grid = { c->gridDimX, c->gridDimY, c->gridDimZ },
		.block = { c->blockDimX, c->blockDimY, c->blockDimZ },
		.shared = c->sharedMemBytes, .param_bytes = fn->info->param_bytes,
	};
	room = LAUNCH_ATTRS_MAX * sizeof(CUlaunchAttribute) + fn->info->param_bytes + 8;
	tail = sv_scratch(room);
	if (unlikely(!tail))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (unlikely(c->numAttrs))
		TRY(attributes(c, out, (void *)tail));
	out->tail = tail;
	out->tail_len = out->head.attrs * sizeof(CUlaunchAttribute);
	TRY(parameters(fn, params, extra, tail + out->tail_len));
	out->tail_len += fn->info->param_bytes;
	while (out->tail_len & 7)
		tail[out->tail_len++] = 0;
	return CUDA_SUCCESS;
}

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	struct stream *s;
	struct launch l;

	TRY(stream_find(c->hStream, &s));
	TRY(launch_layout(c, s->o.ctx, f, params, extra, &l));
	TRY(managedvar_launch(s->o.ctx));
	l.head.stream = s->wire;
	if (unlikely(s->wire == SV_STREAM_LEGACY))
		TRY(capture_legacy(s));
	if (unlikely(s->capture))
		return capture_record(s, SV_OP_cuLaunchKernel, &l.head, sizeof(l.head), l.tail,
				      l.tail_len);
	/* Only the driver knows whether all blocks fit at once, and the call returns its error. */
	if (unlikely(l.head.flags || l.head.attrs))
		return send_sync(SV_OP_cuLaunchKernel, &l.head, sizeof(l.head), l.tail, l.tail_len,
				 NULL, 0);
	return send_async(SV_OP_cuLaunchKernel, &l.head, sizeof(l.head), l.tail, l.tail_len);
}

API CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
			    unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
			    CUstream stream, void **params, void **extra)
{
	CUlaunchConfig c = { gx, gy, gz, bx, by, bz, shared, stream, NULL, 0 };

	if (unlikely(params && extra))
		return CUDA_ERROR_INVALID_VALUE;
	return launch(&c, f, params, extra);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	if (unlikely(!c || (params && extra)))
		return CUDA_ERROR_INVALID_VALUE;
	return launch(c, f, params, extra);
}

API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy,
				       unsigned int gz, unsigned int bx, unsigned int by,
				       unsigned int bz, unsigned int shared, CUstream stream,
				       void **params)
{
	CUlaunchAttribute a = { .id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1 };
	CUlaunchConfig c = { gx, gy, gz, bx, by, bz, shared, stream, &a, 1 };

	return launch(&c, f, params, NULL);
}
