// SPDX-License-Identifier: Apache-2.0
/*
 * launch.c - kernels: parameters as the kernel has them, attributes with handles made real
 */
#include "uproxy_i.h"

#define ATTRS_MAX 16

/* What an attribute may carry: no pointers of the client's, and handles are looked up. */
static int take_attr(struct call *k, CUlaunchAttribute *a)
{
	struct sv_session *s = k->c.session;
	uint64_t real;
	int rc = 0;

	if (!sv_zero((const uint8_t *)a->pad, sizeof(a->pad)))
		return sv_bad(&k->c, "padding of a launch attribute");
	switch ((int)a->id) {
	case CU_LAUNCH_ATTRIBUTE_IGNORE:
	case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
	case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
	case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
	case 11:	/* PREFERRED_CLUSTER_DIMENSION, 12.8 */
	case 14:	/* PREFERRED_SHARED_MEMORY_CARVEOUT */
	case 16:	/* NVLINK_UTIL_CENTRIC_SCHEDULING, 13.0 */
		return 0;
	case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
		rc = sv_real(s, SV_T_CUevent, (uintptr_t)a->value.programmaticEvent.event, 1,
			     &real);
		a->value.programmaticEvent.event = (CUevent)(uintptr_t)real;
		break;
	case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
		rc = sv_real(s, SV_T_CUevent, (uintptr_t)a->value.launchCompletionEvent.event, 1,
			     &real);
		a->value.launchCompletionEvent.event = (CUevent)(uintptr_t)real;
		break;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
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
		rc = stream_use(s, a->stream, &st);
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
	if (func && func->known && bytes < func->param_bytes)
		return fails(k, CUDA_ERROR_INVALID_VALUE);
	stat_add(&s->stat->launches, 1);
	if (!a->attrs && !a->flags)
		return fails(k, s->hal.drv.cuLaunchKernel(f, a->grid[0], a->grid[1], a->grid[2],
				a->block[0], a->block[1], a->block[2], a->shared, st->real, NULL,
				extra));
	k->c.status = launch_attrs(k, a, f, st->real, extra, &rc);
	return rc < 0 ? rc : 0;
}
