/* SPDX-License-Identifier: Apache-2.0 */
/*
 * texture.c - texture and surface objects: 64-bit handles that kernels pass to tex, suld and sust
 *
 * A handle is an address in a block of the window where nothing is ever mapped: the block's start
 * plus 64 times the slot number. Kernels look handles up without a lock.
 */
#include "array_i.h"
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS (PAGE_2M / 64)

struct texture {
	struct ptx_tex t;		/* first: kernels get its address */
	bool surface;
	CUDA_RESOURCE_DESC res;
	CUDA_TEXTURE_DESC tex;
	CUDA_RESOURCE_VIEW_DESC view;
	bool has_view;
};

static struct texture *slots[SLOTS];
static uint64_t slots_va;

const struct ptx_tex *tex_find(uint64_t handle)
{
	/* pairs with publish() */
	uint64_t off = handle - __atomic_load_n(&slots_va, __ATOMIC_ACQUIRE);
	struct texture *t;

	if (handle % 64 || off >= PAGE_2M)
		return NULL;
	/* pairs with publish() */
	t = __atomic_load_n(&slots[off / 64], __ATOMIC_ACQUIRE);
	return t ? &t->t : NULL;
}

static CUresult publish(const struct texture *t, CUtexObject *out)
{
	struct texture *copy;
	size_t i;

	if (!slots_va) {
		uint64_t va = place_textures();

		if (!va)
			return CUDA_ERROR_OUT_OF_MEMORY;
		__atomic_store_n(&slots_va, va, __ATOMIC_RELEASE);
	}
	i = (place_wanted() - slots_va) / 64;
	if (!i || i >= SLOTS || slots[i])
		for (i = 1; i < SLOTS && slots[i]; i++)
			;
	copy = i < SLOTS ? malloc(sizeof(*copy)) : NULL;
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*copy = *t;
	__atomic_store_n(&slots[i], copy, __ATOMIC_RELEASE);
	*out = slots_va + i * 64;
	return CUDA_SUCCESS;
}

static struct texture *get_texture(uint64_t handle, bool surface)
{
	struct texture *t = (struct texture *)tex_find(handle);

	return t && t->surface == surface ? t : NULL;
}

static CUresult set_format(struct ptx_tex *t, CUarray_format f, unsigned int channels)
{
	unsigned int bytes, own;

	if (!array_format(f, &bytes, &own) ||
	    (channels != 1 && channels != 2 && channels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	t->channels = channels;
	t->bits = bytes * 8;
	if (f == CU_AD_FORMAT_HALF || f == CU_AD_FORMAT_FLOAT)
		t->kind = 2;
	else
		t->kind = (f >= CU_AD_FORMAT_SIGNED_INT8 && f <= CU_AD_FORMAT_SIGNED_INT32) ||
			  (f >= CU_AD_FORMAT_SNORM_INT8X1 && f <= CU_AD_FORMAT_SNORM_INT16X4);
	if (own)
		t->read_normalized = 1;
	return CUDA_SUCCESS;
}

static CUresult of_array(struct ptx_tex *t, struct array *a)
{
	bool layered = a->desc.Flags & CUDA_ARRAY3D_LAYERED;
	bool cube = a->desc.Flags & CUDA_ARRAY3D_CUBEMAP;

	t->level[0] = (struct ptx_level){ a->va, a->desc.Width, a->rows, a->slices, a->pitch,
					  a->slice };
	t->nlevels = 1;
	t->layered = layered;
	t->cubemap = cube;
	t->dim = !a->desc.Height ? 1 : a->desc.Depth && !layered && !cube ? 3 : 2;
	return set_format(t, a->desc.Format, a->desc.NumChannels);
}

static CUresult of_linear(struct ptx_tex *t, const CUDA_RESOURCE_DESC *d)
{
	CUresult r = set_format(t, d->res.linear.format, d->res.linear.numChannels);
	size_t texel = t->channels * t->bits / 8;

	if (r)
		return r;
	if (d->res.linear.devPtr % 32 || d->res.linear.sizeInBytes < texel ||
	    d->res.linear.sizeInBytes / texel > 268435456 ||
	    !mem_device_ok(d->res.linear.devPtr, d->res.linear.sizeInBytes, 1))
		return CUDA_ERROR_INVALID_VALUE;
	t->level[0] = (struct ptx_level){
		d->res.linear.devPtr, d->res.linear.sizeInBytes / texel, 1, 1,
		d->res.linear.sizeInBytes, d->res.linear.sizeInBytes
	};
	t->nlevels = 1;
	t->dim = 1;
	return CUDA_SUCCESS;
}

/* The limits are those of the device's attributes; nothing within them overflows. */
static CUresult of_pitch(struct ptx_tex *t, const CUDA_RESOURCE_DESC *d)
{
	CUresult r = set_format(t, d->res.pitch2D.format, d->res.pitch2D.numChannels);
	size_t row;

	if (r)
		return r;
	if (d->res.pitch2D.width > 131072 || d->res.pitch2D.height > 65000 ||
	    d->res.pitch2D.pitchInBytes > 2097120)
		return CUDA_ERROR_INVALID_VALUE;
	row = d->res.pitch2D.width * t->channels * t->bits / 8;
	if (!row || !d->res.pitch2D.height || d->res.pitch2D.pitchInBytes < row ||
	    d->res.pitch2D.pitchInBytes % 32 || d->res.pitch2D.devPtr % 32 ||
	    !mem_device_ok(d->res.pitch2D.devPtr,
			   (d->res.pitch2D.height - 1) * d->res.pitch2D.pitchInBytes + row, 1))
		return CUDA_ERROR_INVALID_VALUE;
	t->level[0] = (struct ptx_level){
		d->res.pitch2D.devPtr, d->res.pitch2D.width, d->res.pitch2D.height, 1,
		d->res.pitch2D.pitchInBytes, d->res.pitch2D.pitchInBytes * d->res.pitch2D.height
	};
	t->nlevels = 1;
	t->dim = 2;
	return CUDA_SUCCESS;
}

static CUresult of_mipmap(struct ptx_tex *t, CUmipmappedArray h)
{
	struct array *a;
	unsigned int n;
	CUresult r = CUDA_SUCCESS;

	for (n = PTX_TEX_LEVELS; n-- > 0 && !r;) {
		struct ptx_level own = t->level[0];

		a = mipmap_level(h, n);
		if (!a)
			continue;
		r = of_array(t, a);	/* all levels have the same format */
		t->level[n] = t->level[0];
		if (n)
			t->level[0] = own;
	}
	if (r || !t->level[0].data)
		return r ?: CUDA_ERROR_INVALID_HANDLE;
	for (n = 1; n < PTX_TEX_LEVELS && t->level[n].data; n++)
		;
	t->nlevels = n;
	return CUDA_SUCCESS;
}

static CUresult of_resource(struct ptx_tex *t, const CUDA_RESOURCE_DESC *d)
{
	struct array *a;

	if (d->flags)
		return CUDA_ERROR_INVALID_VALUE;
	switch (d->resType) {
	case CU_RESOURCE_TYPE_ARRAY:
		a = (struct array *)d->res.array.hArray;
		return obj_live(a, OBJ_ARRAY) ? of_array(t, a) : CUDA_ERROR_INVALID_HANDLE;
	case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
		return of_mipmap(t, d->res.mipmap.hMipmappedArray);
	case CU_RESOURCE_TYPE_LINEAR:
		return of_linear(t, d);
	case CU_RESOURCE_TYPE_PITCH2D:
		return of_pitch(t, d);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult sample(struct ptx_tex *t, const CUDA_TEXTURE_DESC *d)
{
	t->normalized_coords = (d->flags & CU_TRSF_NORMALIZED_COORDINATES) != 0;
	t->srgb = (d->flags & CU_TRSF_SRGB) != 0;
	t->linear = d->filterMode == CU_TR_FILTER_MODE_LINEAR;
	if (t->kind != 2 && !(d->flags & CU_TRSF_READ_AS_INTEGER) && t->bits < 32)
		t->read_normalized = 1;
	if (t->linear && t->kind != 2 && !t->read_normalized)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < 3; i++) {
		if ((int)d->addressMode[i] < 0 || d->addressMode[i] > CU_TR_ADDRESS_MODE_BORDER)
			return CUDA_ERROR_INVALID_VALUE;
		t->address[i] = d->addressMode[i];
		/* wrapping and mirroring are defined for normalised coordinates alone */
		if (!t->normalized_coords && (t->address[i] == 0 || t->address[i] == 2))
			t->address[i] = 1;
	}
	memcpy(t->border, d->borderColor, sizeof(t->border));
	t->mip_linear = d->mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR;
	t->lod_bias = d->mipmapLevelBias;
	t->lod_min = d->minMipmapLevelClamp;
	t->lod_max = d->maxMipmapLevelClamp;
	return CUDA_SUCCESS;
}

/* The format of a view: its texels have the size of the array's. */
static CUresult view_format(struct ptx_tex *t, CUresourceViewFormat f)
{
	static const CUarray_format of[] = {
		CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT16,
		CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32,
		CU_AD_FORMAT_HALF, CU_AD_FORMAT_FLOAT,
	};
	unsigned int texel = t->channels * t->bits, i = f - CU_RES_VIEW_FORMAT_UINT_1X8;
	CUresult r;

	if (f == CU_RES_VIEW_FORMAT_NONE)
		return CUDA_SUCCESS;
	if (i >= 3 * sizeof(of) / sizeof(of[0]))
		return f <= CU_RES_VIEW_FORMAT_UNSIGNED_BC7 ? CUDA_ERROR_NOT_SUPPORTED :
							      CUDA_ERROR_INVALID_VALUE;
	t->read_normalized = 0;
	r = set_format(t, of[i / 3], 1 << i % 3);
	return !r && (unsigned int)t->channels * t->bits != texel ? CUDA_ERROR_INVALID_VALUE : r;
}

/* A view of an array: another format, a range of its levels and layers. */
static CUresult view(struct ptx_tex *t, const CUDA_RESOURCE_DESC *d,
		     const CUDA_RESOURCE_VIEW_DESC *v)
{
	unsigned int first = v->firstMipmapLevel, layers = v->lastLayer - v->firstLayer + 1;
	const struct ptx_level *own = &t->level[0];

	if ((d->resType != CU_RESOURCE_TYPE_ARRAY && d->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) ||
	    v->lastMipmapLevel < first || v->lastMipmapLevel >= t->nlevels ||
	    v->lastLayer < v->firstLayer)
		return CUDA_ERROR_INVALID_VALUE;
	/* without compression a view has the array's extent */
	if ((v->width && v->width != own->width) || (v->height && v->height != own->height) ||
	    (v->depth && !t->layered && !t->cubemap && v->depth != own->depth))
		return CUDA_ERROR_INVALID_VALUE;
	if ((v->lastLayer && !t->layered) || (t->layered && v->lastLayer >= own->depth) ||
	    (t->cubemap && t->layered && (v->firstLayer % 6 || layers % 6)))
		return CUDA_ERROR_INVALID_VALUE;
	t->nlevels = v->lastMipmapLevel - first + 1;
	memmove(t->level, t->level + first, t->nlevels * sizeof(t->level[0]));
	for (unsigned int i = 0; t->layered && i < t->nlevels; i++) {
		t->level[i].data += v->firstLayer * t->level[i].slice_pitch;
		t->level[i].depth = layers;
	}
	return view_format(t, v->format);
}

CUresult cuTexObjectCreate(CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc,
			   const CUDA_TEXTURE_DESC *pTexDesc,
			   const CUDA_RESOURCE_VIEW_DESC *pResViewDesc)
{
	struct texture t;
	struct ctx *ctx;
	CUresult r;

	if (!pTexObject || !pResDesc || !pTexDesc)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	memset(&t, 0, sizeof(t));
	t.res = *pResDesc;
	t.tex = *pTexDesc;
	if (pResViewDesc) {
		t.view = *pResViewDesc;
		t.has_view = true;
	}
	r = of_resource(&t.t, pResDesc);
	if (!r && pResViewDesc)
		r = view(&t.t, pResDesc, pResViewDesc);
	if (!r)
		r = sample(&t.t, pTexDesc);
	if (!r)
		r = publish(&t, pTexObject);
	return api_unlock(r);
}

static CUresult destroy(uint64_t handle, bool surface)
{
	struct texture *t;
	CUresult r = api_lock();

	if (r)
		return r;
	t = get_texture(handle, surface);
	if (!t)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	for (struct ctx *c = contexts; c; c = c->next)
		ctx_drain(c);		/* running kernels may use the object */
	t = get_texture(handle, surface);
	if (t) {
		__atomic_store_n(&slots[(handle - slots_va) / 64], NULL, __ATOMIC_RELEASE);
		free(t);
	}
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuTexObjectDestroy(CUtexObject texObject)
{
	return destroy(texObject, false);
}

static CUresult lock_object(uint64_t handle, bool surface, const void *out, struct texture **t)
{
	CUresult r;

	if (!out)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	*t = get_texture(handle, surface);
	return *t ? CUDA_SUCCESS : api_unlock(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUtexObject texObject)
{
	struct texture *t;
	CUresult r = lock_object(texObject, false, pResDesc, &t);

	if (r)
		return r;
	*pResDesc = t->res;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *pTexDesc, CUtexObject texObject)
{
	struct texture *t;
	CUresult r = lock_object(texObject, false, pTexDesc, &t);

	if (r)
		return r;
	*pTexDesc = t->tex;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *pResViewDesc,
					CUtexObject texObject)
{
	struct texture *t;
	CUresult r = lock_object(texObject, false, pResViewDesc, &t);

	if (r)
		return r;
	if (!t->has_view)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*pResViewDesc = t->view;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuSurfObjectCreate(CUsurfObject *pSurfObject, const CUDA_RESOURCE_DESC *pResDesc)
{
	struct texture t;
	struct array *a;
	struct ctx *ctx;
	CUresult r;

	if (!pSurfObject || !pResDesc)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	a = (struct array *)pResDesc->res.array.hArray;
	if (pResDesc->resType != CU_RESOURCE_TYPE_ARRAY)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (!obj_live(a, OBJ_ARRAY))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	memset(&t, 0, sizeof(t));
	t.surface = true;
	t.res = *pResDesc;
	r = of_array(&t.t, a) ?: publish(&t, pSurfObject);
	return api_unlock(r);
}

CUresult cuSurfObjectDestroy(CUsurfObject surfObject)
{
	return destroy(surfObject, true);
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *pResDesc, CUsurfObject surfObject)
{
	struct texture *t;
	CUresult r = lock_object(surfObject, true, pResDesc, &t);

	if (r)
		return r;
	*pResDesc = t->res;
	return api_unlock(CUDA_SUCCESS);
}
