// SPDX-License-Identifier: Apache-2.0
/*
 * launch.c - launches kernels: checks parameters and attributes, translates handles in them
 */
#include "attrs.h"
#include "context.h"
#include "modules.h"
#include "stat_i.h"
#include "streams.h"

#define ATTRS_MAX 16

/* Checks an attribute, which has no pointers of the client's, and translates its handles. */
static int take_attr(struct call *k, CUlaunchAttribute *a)
{
	struct sv_session *s = k->c.session;
	uint64_t real = 0;
	CUevent *event;
	int rc;

	if (!sv_zero((const uint8_t *)a->pad, sizeof(a->pad)))
		return sv_bad(&k->c, "padding of a launch attribute");
	if (!(sv_attr_of(a->id) & SV_ATTR_LAUNCH))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!(sv_attr_of(a->id) & SV_ATTR_EVENT))
		return 0;
	event = a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ?
		&a->value.programmaticEvent.event : &a->value.launchCompletionEvent.event;
	rc = sv_real(s, SV_T_CUevent, (uintptr_t)*event, 1, &real);
	*event = (CUevent)(uintptr_t)real;
	if (rc < 0)
		k->c.why = "event of a launch attribute";
	return rc;
}

static CUresult launch_attrs(struct call *k, const struct sv_launch *a, CUfunction f,
			     CUstream stream, void **extra, int *rc)
{
	struct sv_session *s = k->c.session;
	CUlaunchAttribute attr[ATTRS_MAX + 1];
	CUlaunchConfig config = {
		.gridDimX = a->grid[0], .gridDimY = a->grid[1], .gridDimZ = a->grid[2],
		.blockDimX = a->block[0], .blockDimY = a->block[1], .blockDimZ = a->block[2],
		.sharedMemBytes = a->shared, .hStream = stream, .attrs = attr,
	};

	for (uint32_t i = 0; i < a->attrs; i++) {
		memcpy(&attr[i], (const uint8_t *)(a + 1) + i * sizeof(*attr), sizeof(*attr));
		*rc = take_attr(k, &attr[i]);
		if (*rc)
			return *rc;
	}
	config.numAttrs = a->attrs;
	if (a->flags & SV_LAUNCH_COOPERATIVE) {
		memset(&attr[config.numAttrs], 0, sizeof(*attr));
		attr[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
		attr[config.numAttrs++].value.cooperative = 1;
	}
	if (!s->hal.drv.cuLaunchKernelEx)
		return CUDA_ERROR_NOT_SUPPORTED;
	return s->hal.drv.cuLaunchKernelEx(&config, f, NULL, extra);
}

/* May the kernel begin while the one before it runs? An event between the two would prevent it. */
static bool overlaps(const struct sv_launch *a)
{
	CUlaunchAttribute attr;

	for (uint32_t i = 0; i < a->attrs; i++) {
		memcpy(&attr, (const uint8_t *)(a + 1) + i * sizeof(attr), sizeof(attr));
		if (attr.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
			return true;
	}
	return false;
}

int do_launch(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_launch *a = k->c.data;
	uint64_t attrs = (uint64_t)a->attrs * sizeof(CUlaunchAttribute);
	size_t bytes = a->param_bytes;
	void *extra[] = {
		CU_LAUNCH_PARAM_BUFFER_POINTER, (uint8_t *)(a + 1) + attrs,
		CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END,
	};
	struct func *func;
	CUfunction f;
	struct stream *st;
	int rc;

	if (a->attrs > ATTRS_MAX || a->flags & ~SV_LAUNCH_COOPERATIVE ||
	    !tail_is(&k->c, sizeof(*a) + attrs, bytes))
		return sv_bad(&k->c, "size, flags or attributes of a launch");
	rc = sv_enter(s, a->ctx);
	if (rc < 0)
		k->c.why = "context of a launch";
	if (!rc) {
		rc = uproxy_stream_find(s, a->stream, &st);
		if (rc < 0)
			k->c.why = "stream of a launch";
	}
	if (!rc) {
		rc = func_find(s, a->function, &f, &func);
		if (rc < 0)
			k->c.why = "function of a launch";
	}
	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	if (!overlaps(a))
		stream_mark(s, st);
	stream_used(st);
	/* A driver that does not compare sizes would read what is behind the record. */
	if (func && func->known && bytes < func->param_bytes)
		return fails(k, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
	if (func && __atomic_load_n(&func->seen, __ATOMIC_RELAXED) != a->ctx)
		func_seen(s, a->function, a->ctx);
	stat_add(&s->stat->launches, 1);
	if (!a->attrs && !a->flags)
		return fails(k, s->hal.drv.cuLaunchKernel(f, a->grid[0], a->grid[1], a->grid[2],
				a->block[0], a->block[1], a->block[2], a->shared, st->real, NULL,
				extra));
	k->c.status = launch_attrs(k, a, f, st->real, extra, &rc);
	return rc < 0 ? rc : 0;
}
