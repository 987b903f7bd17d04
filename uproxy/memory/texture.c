// SPDX-License-Identifier: Apache-2.0
/*
 * texture.c - texture and surface objects; their values are the driver's, since kernels use them
 *
 * One table has the live objects by value. An object leaves the table in the order of the records;
 * a worker then calls the driver, which may wait for the device. All else runs in the consumer.
 */
#include <stdlib.h>

#include "answer.h"
#include "device_memory.h"
#include "handle.h"
#include "kept.h"
#include "outcome.h"
#include "worker.h"

struct object {
	uint64_t value, ctx;
	uint64_t seq;		/* of the record that made it */
	bool surface;
};

static struct object *objects;
static size_t nobjects, cap;

static struct object *find_object(uint64_t value, bool surface)
{
	for (size_t i = 0; i < nobjects; i++)
		if (objects[i].value == value && objects[i].surface == surface)
			return &objects[i];
	return NULL;
}

static int keep(uint64_t value, uint64_t ctx, uint64_t seq, bool surface)
{
	if (nobjects == cap) {
		size_t n = cap ? cap * 2 : 64;
		struct object *o = realloc(objects, n * sizeof(*o));

		if (!o)
			return -ENOMEM;
		objects = o;
		cap = n;
	}
	objects[nobjects++] = (struct object){ value, ctx, seq, surface };
	return 0;
}

/* Removes the objects of a context that has ended. */
void textures_ctx_gone(uint64_t ctx)
{
	for (size_t i = nobjects; i-- > 0;)
		if (objects[i].ctx == ctx)
			objects[i] = objects[--nobjects];
}

void textures_walk(object_visit fn, void *arg)
{
	for (size_t i = 0; i < nobjects; i++)
		fn(arg, objects[i].value, objects[i].seq, objects[i].surface);
}

static unsigned int texel_bytes(CUarray_format f)
{
	switch (f) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4;
	default:
		return 0;
	}
}

/* Translates the description's handles, checks its addresses. 0, a CUresult, or -errno. */
static int take_resource(struct call *k, CUDA_RESOURCE_DESC *d)
{
	struct sv_session *s = k->c.session;
	uint64_t real, len;
	int rc;

	switch (d->resType) {
	case CU_RESOURCE_TYPE_ARRAY:
		rc = handle_real(s, SV_T_CUarray, (uintptr_t)d->res.array.hArray, &real);
		d->res.array.hArray = (CUarray)(uintptr_t)real;
		break;
	case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
		rc = handle_real(s, SV_T_CUmipmappedArray,
			     (uintptr_t)d->res.mipmap.hMipmappedArray, &real);
		d->res.mipmap.hMipmappedArray = (CUmipmappedArray)(uintptr_t)real;
		break;
	case CU_RESOURCE_TYPE_LINEAR:
		return sv_window(s, d->res.linear.devPtr, d->res.linear.sizeInBytes, 0);
	case CU_RESOURCE_TYPE_PITCH2D:
		if (!texel_bytes(d->res.pitch2D.format))
			return CUDA_ERROR_INVALID_VALUE;
		len = sv_pitch(d->res.pitch2D.pitchInBytes,
			       sv_mul(d->res.pitch2D.width, d->res.pitch2D.numChannels),
			       d->res.pitch2D.height, texel_bytes(d->res.pitch2D.format));
		return sv_window(s, d->res.pitch2D.devPtr, len, 0);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (rc < 0)
		k->c.why = "array of a texture or surface";
	return rc;
}

/* The tail of the record. */
struct described {
	CUDA_RESOURCE_DESC res;
	CUDA_TEXTURE_DESC tex;
	CUDA_RESOURCE_VIEW_DESC view;
};

static int read_description(struct call *k, bool surface, struct described *d)
{
	const struct sv_tex_new *a = k->c.data;
	const uint8_t *at = (const uint8_t *)(a + 1);
	uint64_t need = sizeof(d->res);

	if (!surface)
		need += sizeof(d->tex) + (a->view ? sizeof(d->view) : 0);
	if (a->pad || a->view > !surface || !tail_is(&k->c, sizeof(*a), need))
		return sv_bad(&k->c, "size or padding of a texture or surface");
	memcpy(&d->res, at, sizeof(d->res));
	if (!surface)
		memcpy(&d->tex, at + sizeof(d->res), sizeof(d->tex));
	if (a->view)
		memcpy(&d->view, at + sizeof(d->res) + sizeof(d->tex), sizeof(d->view));
	return 0;
}

static CUresult create(struct hal *h, bool surface, const struct described *d, bool view,
		       unsigned long long *value)
{
	if (surface)
		return h->drv.cuSurfObjectCreate ? h->drv.cuSurfObjectCreate(value, &d->res) :
						   CUDA_ERROR_NOT_SUPPORTED;
	return h->drv.cuTexObjectCreate ?
		h->drv.cuTexObjectCreate(value, &d->res, &d->tex, view ? &d->view : NULL) :
		CUDA_ERROR_NOT_SUPPORTED;
}

int do_tex_create(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_tex_new *a = k->c.data;
	bool surface = k->c.op == SV_OP_cuSurfObjectCreate;
	unsigned long long value = 0;
	struct described d;
	int rc = read_description(k, surface, &d);

	if (rc)
		return rc;
	rc = sv_enter(s, a->ctx);
	if (rc < 0)
		k->c.why = "context of a texture or surface";
	if (!rc)
		rc = take_resource(k, &d.res);
	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	wanted_next(s, k->seq, 0);
	rc = create(&s->hal, surface, &d, a->view, &value);
	if (!rc && keep(value, a->ctx, k->seq, surface))
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	if (rc)
		return fails(k, rc);
	memcpy(k->c.reply, &value, sizeof(value));
	k->c.reply_len = sizeof(value);
	return 0;
}

struct ending {
	struct answer answer;
	struct object o;
};

static void end_object(void *arg)
{
	struct ending *e = arg;
	struct hal *h = &e->answer.s->hal;
	int r = sv_enter(e->answer.s, e->o.ctx);

	if (!r)
		r = e->o.surface ? h->drv.cuSurfObjectDestroy(e->o.value) :
				 h->drv.cuTexObjectDestroy(e->o.value);
	answer_now(&e->answer, r, NULL, 0);
	free(e);
}

int do_tex_destroy(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_tex_end *a = k->c.data;
	bool surface = k->c.op == SV_OP_cuSurfObjectDestroy;
	struct hal *h = &s->hal;
	struct object *o = find_object(a->object, surface);
	struct ending *e;

	if (surface ? !h->drv.cuSurfObjectDestroy : !h->drv.cuTexObjectDestroy)
		return fails(k, CUDA_ERROR_NOT_SUPPORTED);
	if (!o)
		return fails(k, CUDA_ERROR_INVALID_VALUE);
	e = malloc(sizeof(*e));
	if (!e)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	*e = (struct ending){ answer_later(k), *o };
	journal_ended(o->seq, k->seq);
	*o = objects[--nobjects];
	if (worker_run(end_object, e)) {
		free(e);
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	}
	return CALL_LATER;
}
