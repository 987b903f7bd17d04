// SPDX-License-Identifier: Apache-2.0
/*
 * launch.c - checks a launch's arguments in the client, so that the call itself returns the error
 */
#include "attrs.h"
#include "captured.h"
#include "context.h"
#include "managedvar.h"
#include "module.h"
#include "object.h"
#include "send.h"

#include <string.h>

#define BAD_DIMENSIONS ((CUresult)9)

static CUresult dimensions(const CUlaunchConfig *c, const struct function *fn)
{
	const int32_t *attr = here->shared->dev[here->shared->device].attr;
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

/* More than the parameters of any kernel, which have up to 32764 bytes. */
#define EXTRA_MAX 65536u

/*
 * The parameter buffer passed by `extra`. As cuda.h says, a buffer without a size has no effect, and a
 * size needs a buffer unless it is 0. Whether the driver takes a larger one is for the driver to say:
 * NVIDIA's refuses it, even if only the padding at the end of a struct makes it larger.
 */
static CUresult from_extra(void **extra, const struct function *fn, const void **buf, size_t *len)
{
	const size_t *size = NULL;

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
	*len = size ? *size : 0;
	if ((*len && !*buf) || (fn->info->param_bytes && (!*buf || !size)))
		return CUDA_ERROR_INVALID_VALUE;
	return *len > EXTRA_MAX ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS;
}

static void pack(const struct sv_func_info *info, void **params, uint8_t *to)
{
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
}

static CUresult event_ok(CUevent h)
{
	struct event *e = obj_find(SV_T_CUevent, sv_u64(h));

	if (e && e->peers)
		return sv_unsupported("cuLaunchKernelEx",
				      "an event of several processes is recorded by itself");
	if (!e || e->o.ctx->session != here)
		return CUDA_ERROR_INVALID_HANDLE;
	e->elsewhere = true;
	return CUDA_SUCCESS;
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
				return sv_unsupported("cuLaunchKernelEx", "it has an attribute that is not known");
		}
		memset(&to[l->head.attrs], 0, sizeof(*to));
		to[l->head.attrs].id = a->id;
		memcpy(&to[l->head.attrs++].value, &a->value, sv_attr_bytes(a->id));
	}
	return CUDA_SUCCESS;
}

CUresult launch_layout(const CUlaunchConfig *c, struct context *ctx, CUfunction f, void **params,
		       void **extra, struct launch *out)
{
	struct function *fn = function_find(f);
	const void *buf = NULL;
	size_t len, room;
	uint8_t *tail;

	if (unlikely(!fn))
		return CUDA_ERROR_INVALID_HANDLE;
	TRY(dimensions(c, fn));
	TRY(function_ready(ctx, fn));
	len = fn->info->param_bytes;
	if (unlikely(!params && extra))
		TRY(from_extra(extra, fn, &buf, &len));
	else if (unlikely(!params && len))
		return CUDA_ERROR_INVALID_VALUE;
	out->fn = fn;
	out->head = (struct sv_launch){
		.ctx = ctx->o.handle, .function = fn->o.handle,
		.grid = { c->gridDimX, c->gridDimY, c->gridDimZ },
		.block = { c->blockDimX, c->blockDimY, c->blockDimZ },
		.shared = c->sharedMemBytes, .param_bytes = len,
	};
	room = LAUNCH_ATTRS_MAX * sizeof(CUlaunchAttribute) + len + 8;
	tail = sv_scratch(room);
	if (unlikely(!tail))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (unlikely(c->numAttrs))
		TRY(attributes(c, out, (void *)tail));
	out->tail = tail;
	out->tail_len = out->head.attrs * sizeof(CUlaunchAttribute);
	if (unlikely(buf))
		memcpy(tail + out->tail_len, buf, len);
	else if (params)
		pack(fn->info, params, tail + out->tail_len);
	out->tail_len += len;
	while (out->tail_len & 7)
		tail[out->tail_len++] = 0;
	return CUDA_SUCCESS;
}

/*
 * Will the driver say of the same launch what it has said of this one? Not where an attribute names an
 * event: the program may have destroyed it since.
 */
static bool repeatable(const struct launch *l)
{
	const CUlaunchAttribute *a = l->tail;

	for (uint32_t i = 0; i < l->head.attrs; i++)
		if (sv_attr_of(a[i].id) & SV_ATTR_EVENT)
			return false;
	return l->head.param_bytes == l->fn->info->param_bytes;
}

/*
 * Whether all blocks fit at once, and whether an attribute or another size of the parameters is taken,
 * is for the driver to say, and the call returns its error. The driver is asked once about the same
 * function, attributes and geometry: on Hopper every matrix product has an attribute.
 */
static CUresult launch_answered(const struct launch *l)
{
	struct {
		struct sv_launch head;
		CUlaunchAttribute attr[LAUNCH_ATTRS_MAX];
	} about = { .head = l->head };
	uint64_t attrs = l->head.attrs * sizeof(about.attr[0]);
	struct verdict v;

	if (!repeatable(l))
		return send_sync(SV_OP_cuLaunchKernel, &l->head, sizeof(l->head), l->tail,
				 l->tail_len, NULL, 0);
	about.head.stream = 0;
	memcpy(about.attr, l->tail, attrs);
	v = verdict_about(l->fn, SV_OP_cuLaunchKernel, &about, sizeof(about.head) + attrs);
	if (verdict_find(l->fn, &v))
		return send_async(SV_OP_cuLaunchKernel, &l->head, sizeof(l->head), l->tail,
				  l->tail_len);
	TRY(send_sync(SV_OP_cuLaunchKernel, &l->head, sizeof(l->head), l->tail, l->tail_len, NULL,
		      0));
	verdict_keep(l->fn, &v);
	return CUDA_SUCCESS;
}

static CUresult launch_on(struct stream *s, const CUlaunchConfig *c, CUfunction f, void **params,
			  void **extra)
{
	struct launch l;

	TRY(launch_layout(c, s->o.ctx, f, params, extra, &l));
	TRY(managedvar_launch(s->o.ctx));
	l.head.stream = s->wire;
	if (unlikely(s->wire == SV_STREAM_LEGACY))
		TRY(capture_legacy(s));
	if (unlikely(s->capture))
		return capture_record(s, SV_OP_cuLaunchKernel, &l.head, sizeof(l.head), l.tail,
				      l.tail_len);
	if (unlikely(l.head.flags || l.head.attrs ||
		     l.head.param_bytes != l.fn->info->param_bytes))
		return launch_answered(&l);
	return send_async(SV_OP_cuLaunchKernel, &l.head, sizeof(l.head), l.tail, l.tail_len);
}

/* A CUkernel is launched in the stream's context, of whatever device (cuLaunchKernel). */
static CUresult launch_elsewhere(struct stream *s, const CUlaunchConfig *c, CUfunction f,
				 void **params, void **extra)
{
	ON(s->o.ctx->session);

	return launch_on(s, c, f, params, extra);
}

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	struct stream *s;

	TRY(stream_find(c->hStream, &s));
	if (unlikely(s->o.ctx->session != here))
		return launch_elsewhere(s, c, f, params, extra);
	return launch_on(s, c, f, params, extra);
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
