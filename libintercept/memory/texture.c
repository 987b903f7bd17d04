// SPDX-License-Identifier: Apache-2.0
/*
 * texture.c - texture and surface objects: made by the proxy, described here
 *
 * Kernels read an object's value, so it is the driver's own, and creation waits for the answer. A
 * table here has the values, with the descriptions that programs query. Each entry has a private
 * object of its context; when the context ends it frees that object, and the entry counts as
 * free.
 */
#include "context.h"
#include "memory_i.h"
#include "object.h"
#include "send.h"

#include <stdlib.h>
#include <string.h>

struct texture {
	struct texture *next;
	uint64_t value;
	uint64_t handle;		/* of its object */
	unsigned int type;		/* SV_T_CUtexObject_v1 or SV_T_CUsurfObject_v1 */
	struct context *ctx;
	CUDA_RESOURCE_DESC res;		/* arrays by the program's handles */
	CUDA_TEXTURE_DESC tex;
	CUDA_RESOURCE_VIEW_DESC view;
	bool has_view;
};

#define BUCKETS 256

static struct texture **bucket(uint64_t value)
{
	return &here->textures[(value * 0x9e3779b97f4a7c15ull) >> 56];
}

/* The live entry of a value; frees dead entries that it meets. locks.textures is held. */
static struct texture *find_texture(unsigned int type, uint64_t value)
{
	struct texture **p, *t;

	assert_held(&here->locks.textures);
	if (!here->textures)
		return NULL;
	p = bucket(value);
	while ((t = *p)) {
		if (!obj_find(t->type, t->handle)) {
			*p = t->next;
			free(t);
			continue;
		}
		if (t->value == value && t->type == type)
			return t;
		p = &t->next;
	}
	return NULL;
}

/* ----------------------------------------------------------------------------------- creation */

/* An array on the device of `here`. */
static CUresult check_array(unsigned int type, const void *handle)
{
	const struct obj *o = obj_find(type, sv_u64(handle));

	return o && o->ctx->session == here ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult check_resource(const CUDA_RESOURCE_DESC *d)
{
	if (d->flags)
		return CUDA_ERROR_INVALID_VALUE;
	switch (d->resType) {
	case CU_RESOURCE_TYPE_ARRAY:
		return check_array(SV_T_CUarray, d->res.array.hArray);
	case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
		return check_array(SV_T_CUmipmappedArray, d->res.mipmap.hMipmappedArray);
	case CU_RESOURCE_TYPE_LINEAR:
		/*
		 * The range may extend into the next allocation, so only its first byte is checked.
		 */
		return d->res.linear.sizeInBytes ? memory_range(d->res.linear.devPtr, 1) :
						   CUDA_ERROR_INVALID_VALUE;
	case CU_RESOURCE_TYPE_PITCH2D:
		return memory_range(d->res.pitch2D.devPtr, 1);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* Send the record: struct sv_tex_new, then the descriptions. */
static CUresult send_texture(uint16_t op, const struct texture *t, uint64_t *value)
{
	struct sv_tex_new a = { .ctx = t->ctx->o.handle, .view = t->has_view };
	uint8_t tail[sizeof(t->res) + sizeof(t->tex) + sizeof(t->view)];
	uint32_t len = sizeof(t->res);

	memcpy(tail, &t->res, sizeof(t->res));
	if (t->type == SV_T_CUtexObject_v1) {
		memcpy(tail + len, &t->tex, sizeof(t->tex));
		len += sizeof(t->tex);
	}
	if (t->has_view) {
		memcpy(tail + len, &t->view, sizeof(t->view));
		len += sizeof(t->view);
	}
	return send_sync(op, &a, sizeof(a), tail, len, value, sizeof(*value));
}

/* Allocate the session's table with its first object. */
static bool make_table(void)
{
	bool made;

	lock_take(&here->locks.textures);
	if (!here->textures)
		here->textures = calloc(BUCKETS, sizeof(*here->textures));
	made = here->textures;
	lock_drop(&here->locks.textures);
	return made;
}

static CUresult create(uint16_t op, struct texture *t, uint64_t *value)
{
	struct obj *o = make_table() ? obj_new(t->type, t->ctx) : NULL;
	CUresult rc;

	if (!o)
		return CUDA_ERROR_OUT_OF_MEMORY;
	t->handle = o->handle;
	rc = send_texture(op, t, value);
	if (rc) {
		obj_free(t->type, o);
		return rc;
	}
	t->value = *value;
	lock_take(&here->locks.textures);
	find_texture(t->type, t->value); /* frees a dead entry of this value */
	t->next = *bucket(t->value);
	*bucket(t->value) = t;
	lock_drop(&here->locks.textures);
	return CUDA_SUCCESS;
}

static CUresult begin_texture(unsigned int type, const CUDA_RESOURCE_DESC *res,
			      struct texture **out)
{
	struct context *ctx;

	TRY(context_current(&ctx));
	TRY(check_resource(res));
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*out)->type = type;
	(*out)->ctx = ctx;
	(*out)->res = *res;
	return CUDA_SUCCESS;
}

API CUresult cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *res,
			       const CUDA_TEXTURE_DESC *tex, const CUDA_RESOURCE_VIEW_DESC *view)
{
	struct texture *t;
	uint64_t value;
	CUresult rc;

	if (!out || !res || !tex)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(begin_texture(SV_T_CUtexObject_v1, res, &t));
	t->tex = *tex;
	t->has_view = view;
	if (view)
		t->view = *view;
	rc = create(SV_OP_cuTexObjectCreate, t, &value);
	if (rc)
		free(t);
	else
		*out = value;
	return rc;
}

API CUresult cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *res)
{
	struct texture *t;
	uint64_t value;
	CUresult rc;

	if (!out || !res || res->resType != CU_RESOURCE_TYPE_ARRAY)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(begin_texture(SV_T_CUsurfObject_v1, res, &t));
	rc = create(SV_OP_cuSurfObjectCreate, t, &value);
	if (rc)
		free(t);
	else
		*out = value;
	return rc;
}

static CUresult destroy(uint16_t op, unsigned int type, uint64_t value)
{
	struct sv_tex_end a = { .object = value };
	struct texture *t;

	TRY(session_check());
	lock_take(&here->locks.textures);
	t = find_texture(type, value);
	if (t) {
		a.ctx = t->ctx->o.handle;
		/* find_texture() frees entries without an object. */
		obj_free(type, obj_find(type, t->handle));
		find_texture(type, value);
	}
	lock_drop(&here->locks.textures);
	return a.ctx ? send_async(op, &a, sizeof(a), NULL, 0) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuTexObjectDestroy(CUtexObject value)
{
	return destroy(SV_OP_cuTexObjectDestroy, SV_T_CUtexObject_v1, value);
}

API CUresult cuSurfObjectDestroy(CUsurfObject value)
{
	return destroy(SV_OP_cuSurfObjectDestroy, SV_T_CUsurfObject_v1, value);
}

/* ------------------------------------------------------------------------------------ queries */

static CUresult look_up(unsigned int type, uint64_t value, const void *out, struct texture *copy)
{
	struct texture *t;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	lock_take(&here->locks.textures);
	t = find_texture(type, value);
	if (t)
		*copy = *t;
	lock_drop(&here->locks.textures);
	return t ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject value)
{
	struct texture t;

	TRY(look_up(SV_T_CUtexObject_v1, value, out, &t));
	*out = t.res;
	return CUDA_SUCCESS;
}

API CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject value)
{
	struct texture t;

	TRY(look_up(SV_T_CUtexObject_v1, value, out, &t));
	*out = t.tex;
	return CUDA_SUCCESS;
}

API CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject value)
{
	struct texture t;

	TRY(look_up(SV_T_CUtexObject_v1, value, out, &t));
	if (!t.has_view)
		return CUDA_ERROR_INVALID_VALUE;
	*out = t.view;
	return CUDA_SUCCESS;
}

API CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUsurfObject value)
{
	struct texture t;

	TRY(look_up(SV_T_CUsurfObject_v1, value, out, &t));
	*out = t.res;
	return CUDA_SUCCESS;
}
