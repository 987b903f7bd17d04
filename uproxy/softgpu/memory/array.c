/* SPDX-License-Identifier: Apache-2.0 */
/*
 * array.c - CUDA arrays and mipmapped arrays, kept pitch-linear in device memory
 */
#include "array_i.h"

#include <stdlib.h>
#include <string.h>

#define ROW_ALIGN 64
#define MAX_LEVELS 32

struct mipmap {
	struct obj o;
	unsigned int n;
	struct array *level[MAX_LEVELS];
};

/* Bytes of one channel; the format's number of channels (0: the descriptor gives it). */
bool array_format(CUarray_format f, unsigned int *bytes, unsigned int *channels)
{
	*channels = 0;
	switch ((int)f) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		*bytes = 1;
		return true;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		*bytes = 2;
		return true;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		*bytes = 4;
		return true;
	case CU_AD_FORMAT_UNORM_INT8X1:
	case CU_AD_FORMAT_UNORM_INT8X2:
	case CU_AD_FORMAT_UNORM_INT8X4:
		*bytes = 1;
		*channels = 1 << (f - CU_AD_FORMAT_UNORM_INT8X1);
		return true;
	case CU_AD_FORMAT_SNORM_INT8X1:
	case CU_AD_FORMAT_SNORM_INT8X2:
	case CU_AD_FORMAT_SNORM_INT8X4:
		*bytes = 1;
		*channels = 1 << (f - CU_AD_FORMAT_SNORM_INT8X1);
		return true;
	case CU_AD_FORMAT_UNORM_INT16X1:
	case CU_AD_FORMAT_UNORM_INT16X2:
	case CU_AD_FORMAT_UNORM_INT16X4:
		*bytes = 2;
		*channels = 1 << (f - CU_AD_FORMAT_UNORM_INT16X1);
		return true;
	case CU_AD_FORMAT_SNORM_INT16X1:
	case CU_AD_FORMAT_SNORM_INT16X2:
	case CU_AD_FORMAT_SNORM_INT16X4:
		*bytes = 2;
		*channels = 1 << (f - CU_AD_FORMAT_SNORM_INT16X1);
		return true;
	default:
		return false;
	}
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	const unsigned int known = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST |
				   CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |
				   CUDA_ARRAY3D_COLOR_ATTACHMENT;
	bool layered = d->Flags & CUDA_ARRAY3D_LAYERED, cube = d->Flags & CUDA_ARRAY3D_CUBEMAP;
	unsigned int bytes, channels;

	if (d->Flags & ~known)
		return CUDA_ERROR_NOT_SUPPORTED;	/* sparse, deferred, depth, video */
	if (!array_format(d->Format, &bytes, &channels))
		return d->Format >= 0x50 && d->Format < 0xd0 ? CUDA_ERROR_NOT_SUPPORTED :
							       CUDA_ERROR_INVALID_VALUE;
	if ((channels && channels != d->NumChannels) ||
	    (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	if (!d->Width || d->Width > 131072 || d->Height > 131072 || d->Depth > 16384)
		return CUDA_ERROR_INVALID_VALUE;
	if (d->Depth && !d->Height && !layered)
		return CUDA_ERROR_INVALID_VALUE;
	if (layered && !d->Depth)
		return CUDA_ERROR_INVALID_VALUE;
	if (cube && (d->Width != d->Height || !d->Depth || d->Depth % 6 ||
		     (!layered && d->Depth != 6)))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult make(struct ctx *ctx, const CUDA_ARRAY3D_DESCRIPTOR *d, struct array **out)
{
	unsigned int bytes, channels;
	struct array *a;
	CUresult r = check(d);

	if (r)
		return r;
	a = calloc(1, sizeof(*a));
	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	array_format(d->Format, &bytes, &channels);
	a->ctx = ctx;
	a->desc = *d;
	a->texel = bytes * d->NumChannels;
	a->row = d->Width * a->texel;
	a->rows = d->Height ? d->Height : 1;
	a->slices = d->Depth ? d->Depth : 1;
	a->pitch = ROUND_UP(a->row, ROW_ALIGN);
	a->slice = a->pitch * a->rows;
	r = mem_alloc(ctx->dev, ctx, a->slice * a->slices, 512, MEM_ARRAY, &a->mem);
	if (r) {
		free(a);
		return r;
	}
	a->va = a->mem->va;
	a->mem->owner = a;
	obj_add(a, OBJ_ARRAY);
	*out = a;
	return CUDA_SUCCESS;
}

static void array_free(struct array *a)
{
	obj_del(a);
	mem_free(a->mem);
	free(a);
}

/* A context is destroyed: frees its array's object; mem_free_ctx() frees the memory. */
void array_gone(struct mem *m)
{
	obj_del(m->owner);
	free(m->owner);
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
	struct array *a;
	struct ctx *ctx;
	CUresult r;

	if (!pHandle || !pAllocateArray)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	r = capture_forbids() ?: make(ctx, pAllocateArray, &a);
	if (!r)
		*pHandle = (CUarray)a;
	return api_unlock(r);
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { 0 };

	if (!pHandle || !pAllocateArray)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	d.Width = pAllocateArray->Width;
	d.Height = pAllocateArray->Height;
	d.Format = pAllocateArray->Format;
	d.NumChannels = pAllocateArray->NumChannels;
	return cuArray3DCreate_v2(pHandle, &d);
}

static CUresult lock_array(CUarray h, const void *out, struct array **a)
{
	CUresult r;

	if (!out)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	if (!obj_live(h, OBJ_ARRAY))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	*a = (struct array *)h;
	return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
	struct array *a;
	CUresult r = lock_array(hArray, pArrayDescriptor, &a);

	if (r)
		return r;
	*pArrayDescriptor = a->desc;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
	struct array *a;
	CUresult r = lock_array(hArray, pArrayDescriptor, &a);

	if (r)
		return r;
	*pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR){
		.Width = a->desc.Width, .Height = a->desc.Height, .Format = a->desc.Format,
		.NumChannels = a->desc.NumChannels,
	};
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuArrayGetPlane(CUarray *pPlaneArray, CUarray hArray, unsigned int planeIdx)
{
	struct array *a;
	CUresult r = lock_array(hArray, pPlaneArray, &a);

	(void)planeIdx;
	return r ?: api_unlock(CUDA_ERROR_INVALID_VALUE);	/* no supported format has planes */
}

CUresult cuArrayDestroy(CUarray hArray)
{
	struct array *a;
	CUresult r = lock_array(hArray, &a, &a);

	if (r)
		return r;
	if (a->of_mipmap)
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	r = capture_forbids();
	if (r)
		return api_unlock(r);
	ctx_drain(a->ctx);
	if (obj_live(hArray, OBJ_ARRAY))
		array_free(a);
	return api_unlock(CUDA_SUCCESS);
}

/* ------------------------------------------------------------------ mipmaps */

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
				const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
				unsigned int numMipmapLevels)
{
	CUDA_ARRAY3D_DESCRIPTOR d;
	struct mipmap *m;
	struct ctx *ctx;
	CUresult r;

	if (!pHandle || !pMipmappedArrayDesc || !numMipmapLevels)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	m = calloc(1, sizeof(*m));
	if (!m)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	d = *pMipmappedArrayDesc;
	while (!r && m->n < numMipmapLevels && m->n < MAX_LEVELS) {
		bool layered = d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
		bool last = d.Width == 1 && d.Height <= 1 && (layered || d.Depth <= 1);

		r = make(ctx, &d, &m->level[m->n]);
		if (r)
			break;
		m->level[m->n++]->of_mipmap = true;
		if (last)
			break;
		d.Width = d.Width > 1 ? d.Width / 2 : 1;
		d.Height = d.Height > 1 ? d.Height / 2 : d.Height;
		if (!layered)
			d.Depth = d.Depth > 1 ? d.Depth / 2 : d.Depth;
	}
	if (r) {
		while (m->n)
			array_free(m->level[--m->n]);
		free(m);
		return api_unlock(r);
	}
	obj_add(m, OBJ_MIPMAP);
	*pHandle = (CUmipmappedArray)m;
	return api_unlock(CUDA_SUCCESS);
}

struct array *mipmap_level(CUmipmappedArray h, unsigned int level)
{
	struct mipmap *m = (struct mipmap *)h;

	if (!obj_live(m, OBJ_MIPMAP) || level >= m->n || !obj_live(m->level[level], OBJ_ARRAY))
		return NULL;
	return m->level[level];
}

CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray,
				  unsigned int level)
{
	CUresult r;

	if (!pLevelArray)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	if (!obj_live(hMipmappedArray, OBJ_MIPMAP))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	*pLevelArray = (CUarray)mipmap_level(hMipmappedArray, level);
	return api_unlock(*pLevelArray ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
	struct mipmap *m = (struct mipmap *)hMipmappedArray;
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(m, OBJ_MIPMAP))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	if (obj_live(m->level[0], OBJ_ARRAY))
		ctx_drain(m->level[0]->ctx);
	if (!obj_live(m, OBJ_MIPMAP))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	obj_del(m);
	for (unsigned int i = 0; i < m->n; i++)
		if (obj_live(m->level[i], OBJ_ARRAY))
			array_free(m->level[i]);
	free(m);
	return api_unlock(CUDA_SUCCESS);
}
