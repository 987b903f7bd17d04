/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_map.c - tensor maps: their arguments checked as cuda.h demands, in an encoding of our own
 *
 * Kernels read them in rt/tensor.c. What cuda.h leaves open is not checked: the order of strides,
 * and, for more than one offset, which dimension each one belongs to.
 */
#include "soft_i.h"
#include "tensor_map.h"

#include <string.h>

struct tensor {
	int form;
	CUtensorMapDataType type;
	uint32_t rank;
	uint64_t address;
	const cuuint64_t *dim, *stride;
	const cuuint32_t *box, *step;
	const int *lower, *upper;
	uint32_t channels, pixels;
	unsigned int interleave, mode, swizzle, promotion, fill;
};

static unsigned int bits_of(CUtensorMapDataType type)
{
	switch ((int)type) {
	case CU_TENSOR_MAP_DATA_TYPE_UINT8:
		return 8;
	case CU_TENSOR_MAP_DATA_TYPE_UINT16:
	case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
	case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
		return 16;
	case CU_TENSOR_MAP_DATA_TYPE_UINT32:
	case CU_TENSOR_MAP_DATA_TYPE_INT32:
	case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
	case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
	case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
	case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
		return 32;
	case CU_TENSOR_MAP_DATA_TYPE_UINT64:
	case CU_TENSOR_MAP_DATA_TYPE_INT64:
	case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
		return 64;
	case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B:
	case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B:
		return 4;
	case CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B:
		return 6;
	default:
		return 0;
	}
}

static bool is_float(CUtensorMapDataType type)
{
	return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

/* Packed values with gaps between them in shared memory. */
static bool has_gaps(CUtensorMapDataType type)
{
	return type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B ||
	       type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
}

/* What global addresses and strides are multiples of. */
static unsigned int unit_of(CUtensorMapDataType type, unsigned int interleave)
{
	return interleave == CU_TENSOR_MAP_INTERLEAVE_32B || has_gaps(type) ? 32 : 16;
}

static bool swizzle_ok(const struct tensor *t, uint64_t inner)
{
	static const uint16_t bytes[] = { 0, 32, 64, 128, 128, 128, 128 };

	if (t->swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B)
		return false;
	if (t->interleave == CU_TENSOR_MAP_INTERLEAVE_32B && t->swizzle != CU_TENSOR_MAP_SWIZZLE_32B)
		return false;
	if (t->interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && bytes[t->swizzle] &&
	    inner > bytes[t->swizzle])
		return false;
	if (t->form == TENSOR_WIDE && t->swizzle != CU_TENSOR_MAP_SWIZZLE_64B &&
	    t->swizzle != CU_TENSOR_MAP_SWIZZLE_128B && t->swizzle != CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B)
		return false;
	if (!has_gaps(t->type) || t->swizzle == CU_TENSOR_MAP_SWIZZLE_128B ||
	    t->swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B)
		return true;
	if (t->swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B)
		return t->type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
	return t->swizzle == CU_TENSOR_MAP_SWIZZLE_NONE;
}

/* The tensor in global memory. */
static bool global_ok(const struct tensor *t)
{
	unsigned int unit = unit_of(t->type, t->interleave);

	if (t->address % unit)
		return false;
	for (uint32_t i = 0; i < t->rank; i++)
		if (!t->dim[i] || t->dim[i] > 1ull << 32)
			return false;
	for (uint32_t i = 0; i + 1 < t->rank; i++)
		if (t->stride[i] % unit || t->stride[i] >= 1ull << 40)
			return false;
	if (has_gaps(t->type))
		return t->dim[0] % 128 == 0;
	return t->type != CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B || t->dim[0] % 2 == 0;
}

static bool box_ok(const struct tensor *t)
{
	if (t->interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
	    (uint64_t)t->box[0] * bits_of(t->type) % 128)
		return false;
	if (has_gaps(t->type) && t->box[0] != 128)
		return false;
	for (uint32_t i = 0; i < t->rank; i++)
		if (!t->box[i] || t->box[i] > 256)
			return false;
	return true;
}

static bool pixels_ok(const struct tensor *t)
{
	static const int most[] = { 32767, 127, 15 };
	uint32_t n = t->form == TENSOR_WIDE ? 1 : t->rank - 2;
	int end = most[n - 1];

	for (uint32_t i = 0; i < n; i++)
		if (t->lower[i] < -end - 1 || t->lower[i] > end || t->upper[i] < -end - 1 ||
		    t->upper[i] > end)
			return false;
	if (n == 1 && (int64_t)t->dim[1] + t->upper[0] - t->lower[0] <= 0)
		return false;	/* the box has no area */
	if (t->channels > 256 || (has_gaps(t->type) && t->channels != 128))
		return false;
	return t->pixels <= 1024 ||
	       (t->form == TENSOR_WIDE && t->mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128);
}

static bool tensor_ok(const struct tensor *t)
{
	uint32_t least = t->form == TENSOR_TILED && t->interleave == CU_TENSOR_MAP_INTERLEAVE_NONE ? 1 : 3;
	uint32_t inner;

	if (!bits_of(t->type) || t->rank < least || t->rank > TENSOR_RANK_MAX || !t->dim || !t->step ||
	    (t->rank > 1 && !t->stride) || t->interleave > CU_TENSOR_MAP_INTERLEAVE_32B ||
	    t->promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B ||
	    t->fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA ||
	    t->mode > CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128)
		return false;
	if (t->form == TENSOR_TILED ? !t->box : !t->lower || !t->upper)
		return false;
	if (t->fill && !is_float(t->type))
		return false;
	if (t->type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B && t->interleave)
		return false;
	for (uint32_t i = t->interleave == CU_TENSOR_MAP_INTERLEAVE_NONE; i < t->rank; i++)
		if (!t->step[i] || t->step[i] > 8)
			return false;
	if (!global_ok(t) || !(t->form == TENSOR_TILED ? box_ok(t) : pixels_ok(t)))
		return false;
	inner = t->form == TENSOR_TILED ? t->box[0] : t->channels;
	return swizzle_ok(t, ((uint64_t)inner * bits_of(t->type) + 7) / 8);
}

static void encode(CUtensorMap *map, const struct tensor *t)
{
	uint32_t corners = t->form == TENSOR_TILED ? 0 : t->form == TENSOR_WIDE ? 1 : t->rank - 2;
	struct tensor_map e;

	memset(&e, 0, sizeof(e));
	e.magic = TENSOR_MAGIC;
	e.form = t->form;
	e.type = t->type;
	e.rank = t->rank;
	e.interleave = t->interleave;
	e.swizzle = t->swizzle;
	e.promotion = t->promotion;
	e.fill = t->fill;
	e.mode = t->mode;
	e.channels = t->channels;
	e.pixels = t->pixels;
	e.address = t->address;
	for (uint32_t i = 0; i < t->rank; i++) {
		e.last[i] = t->dim[i] - 1;
		e.step[i] = t->step[i];
		e.box[i] = t->form == TENSOR_TILED ? t->box[i] : 0;
	}
	for (uint32_t i = 0; i + 1 < t->rank; i++) {
		e.stride[i] = t->stride[i] >> 8;
		e.rest[i] = t->stride[i];
	}
	for (uint32_t i = 0; i < corners; i++) {
		e.lower[i] = t->lower[i];
		e.upper[i] = t->upper[i];
	}
	memset(map, 0, sizeof(*map));
	memcpy(map, &e, sizeof(e));
}

static CUresult make(CUtensorMap *map, const struct tensor *t)
{
	struct ctx *ctx;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	if (!map || (uintptr_t)map % 64 || !tensor_ok(t))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (t->form == TENSOR_WIDE && profile->cc < 100)
		return api_unlock(CUDA_ERROR_NOT_SUPPORTED);
	encode(map, t);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
				cuuint32_t tensorRank, void *globalAddress,
				const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
				const cuuint32_t *boxDim, const cuuint32_t *elementStrides,
				CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
				CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
	return make(tensorMap, &(struct tensor){
		.form = TENSOR_TILED, .type = tensorDataType, .rank = tensorRank,
		.address = (uintptr_t)globalAddress, .dim = globalDim, .stride = globalStrides,
		.box = boxDim, .step = elementStrides, .interleave = interleave, .swizzle = swizzle,
		.promotion = l2Promotion, .fill = oobFill,
	});
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
				 cuuint32_t tensorRank, void *globalAddress,
				 const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
				 const int *pixelBoxLowerCorner, const int *pixelBoxUpperCorner,
				 cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
				 const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
				 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
				 CUtensorMapFloatOOBfill oobFill)
{
	return make(tensorMap, &(struct tensor){
		.form = TENSOR_IM2COL, .type = tensorDataType, .rank = tensorRank,
		.address = (uintptr_t)globalAddress, .dim = globalDim, .stride = globalStrides,
		.lower = pixelBoxLowerCorner, .upper = pixelBoxUpperCorner,
		.channels = channelsPerPixel, .pixels = pixelsPerColumn, .step = elementStrides,
		.interleave = interleave, .swizzle = swizzle, .promotion = l2Promotion,
		.fill = oobFill,
	});
}

CUresult cuTensorMapEncodeIm2colWide(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
				     cuuint32_t tensorRank, void *globalAddress,
				     const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
				     int pixelBoxLowerCornerWidth, int pixelBoxUpperCornerWidth,
				     cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
				     const cuuint32_t *elementStrides,
				     CUtensorMapInterleave interleave,
				     CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
				     CUtensorMapL2promotion l2Promotion,
				     CUtensorMapFloatOOBfill oobFill)
{
	return make(tensorMap, &(struct tensor){
		.form = TENSOR_WIDE, .type = tensorDataType, .rank = tensorRank,
		.address = (uintptr_t)globalAddress, .dim = globalDim, .stride = globalStrides,
		.lower = &pixelBoxLowerCornerWidth, .upper = &pixelBoxUpperCornerWidth,
		.channels = channelsPerPixel, .pixels = pixelsPerColumn, .step = elementStrides,
		.interleave = interleave, .mode = mode, .swizzle = swizzle,
		.promotion = l2Promotion, .fill = oobFill,
	});
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *tensorMap, void *globalAddress)
{
	uint64_t address = (uintptr_t)globalAddress;
	struct tensor_map e;
	struct ctx *ctx;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	if (!tensorMap || (uintptr_t)tensorMap % 64)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	memcpy(&e, tensorMap, sizeof(e));
	if (e.magic != TENSOR_MAGIC || address % unit_of(e.type, e.interleave))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	e.address = address;
	memcpy(tensorMap, &e, sizeof(e));
	return api_unlock(CUDA_SUCCESS);
}
