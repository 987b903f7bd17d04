// SPDX-License-Identifier: Apache-2.0
/*
 * array.c - destroys arrays once earlier work has completed; generated records make them
 *
 * The handle is unbound in the order of the records; a worker calls the driver.
 */
#include <stdlib.h>

#include "answer.h"
#include "device_memory.h"
#include "handle.h"
#include "worker.h"

struct ending {
	struct answer answer;
	uint64_t ctx, real;
	unsigned int type;
};

static void end_array(void *arg)
{
	struct ending *e = arg;
	struct hal *h = &e->answer.s->hal;
	int r = sv_enter(e->answer.s, e->ctx);

	if (!r && e->type == SV_T_CUarray)
		r = h->drv.cuArrayDestroy((CUarray)e->real);
	else if (!r)
		r = h->drv.cuMipmappedArrayDestroy((CUmipmappedArray)e->real);
	if (r == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		r = CUDA_SUCCESS;	/* the context has ended meanwhile, and the array with it */
	answer_now(&e->answer, r, NULL, 0);
	free(e);
}

#define LEVELS_MAX 32

struct levels {
	struct sv_session *s;
	uint64_t real[LEVELS_MAX];
	unsigned int n;
};

static void forget_level(void *arg, uint64_t handle, uint64_t real, void *obj)
{
	struct levels *l = arg;

	(void)obj;
	for (unsigned int i = 0; i < l->n; i++)
		if (l->real[i] == real)
			sv_unbind(l->s, SV_T_CUarray, handle);
}

/* Unbinds the levels of a mipmapped array, which end with it. */
static void forget_levels(struct sv_session *s, uint64_t mipmap)
{
	struct levels l = { .s = s };
	CUarray a;

	while (s->hal.drv.cuMipmappedArrayGetLevel && l.n < LEVELS_MAX &&
	       !s->hal.drv.cuMipmappedArrayGetLevel(&a, (CUmipmappedArray)mipmap, l.n))
		l.real[l.n++] = (uintptr_t)a;
	handle_walk(s, SV_T_CUarray, forget_level, &l);
}

int do_array_destroy(struct call *k)
{
	const struct sv_cuArrayDestroy *a = k->c.data;
	struct sv_session *s = k->c.session;
	unsigned int type = k->c.op == SV_OP_cuArrayDestroy ? SV_T_CUarray : SV_T_CUmipmappedArray;
	struct hal *h = &s->hal;
	struct ending *e;
	uint64_t real;
	int rc;

	if (!h->drv.cuArrayDestroy || !h->drv.cuMipmappedArrayDestroy)
		return fails(k, CUDA_ERROR_NOT_SUPPORTED);
	rc = handle_real(s, type, a->hArray, &real);
	if (!rc)
		rc = sv_enter(s, a->ctx);
	if (rc)
		return sv_fails(&k->c, rc, "array or context of an array to destroy");
	e = malloc(sizeof(*e));
	if (!e)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	*e = (struct ending){ answer_later(k), a->ctx, real, type };
	sv_unbind(s, type, a->hArray);
	if (type == SV_T_CUmipmappedArray)
		forget_levels(s, real);
	if (worker_run(end_array, e)) {
		free(e);
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	}
	return CALL_LATER;
}
