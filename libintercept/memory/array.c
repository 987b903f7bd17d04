// SPDX-License-Identifier: Apache-2.0
/*
 * array.c - descriptions of CUDA arrays, kept so that copies are checked before they are sent
 */
#include "array.h"
#include "object.h"

_Static_assert(sizeof(struct array) <= sizeof(struct obj) + 9 * sizeof(void *), "obj_new's room");

static uint32_t format_bytes(CUarray_format format)
{
	switch (format) {
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

/* Formats whose name includes the channels. */
static uint32_t packed_bytes(CUarray_format format)
{
	switch (format) {
	case CU_AD_FORMAT_UNORM_INT8X1:
	case CU_AD_FORMAT_SNORM_INT8X1:
		return 1;
	case CU_AD_FORMAT_UNORM_INT8X2:
	case CU_AD_FORMAT_SNORM_INT8X2:
	case CU_AD_FORMAT_UNORM_INT16X1:
	case CU_AD_FORMAT_SNORM_INT16X1:
		return 2;
	case CU_AD_FORMAT_UNORM_INT8X4:
	case CU_AD_FORMAT_SNORM_INT8X4:
	case CU_AD_FORMAT_UNORM_INT16X2:
	case CU_AD_FORMAT_SNORM_INT16X2:
		return 4;
	case CU_AD_FORMAT_UNORM_INT16X4:
	case CU_AD_FORMAT_SNORM_INT16X4:
		return 8;
	default:
		return 0;
	}
}

/* Bytes of an element, 0: a format that is not known. */
static uint32_t array_element(CUarray_format format, unsigned int channels)
{
	uint32_t b = packed_bytes(format);

	return b ? b : format_bytes(format) * channels;
}

CUresult array_find(CUarray handle, struct array **out)
{
	struct array *a = obj_find(SV_T_CUarray, sv_u64(handle));
	CUDA_ARRAY3D_DESCRIPTOR d;

	TRY(session_check());
	if (!a)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!a->bytes) {
		TRY(cuArray3DGetDescriptor_v2(&d, handle));
		a->d = d;
		__atomic_store_n(&a->bytes, array_element(d.Format, d.NumChannels),
				 __ATOMIC_RELEASE);
	}
	*out = a;
	return CUDA_SUCCESS;
}
