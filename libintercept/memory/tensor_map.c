// SPDX-License-Identifier: Apache-2.0
/*
 * tensor_map.c - tensor maps: 128 opaque bytes of the program's, which the driver encodes
 *
 * They are the program's own: it passes them to kernels, stores them, patches them. They stay valid
 * after a restore, since the address in them is the window's and a restore needs the same compute
 * capability. That a map depends on nothing but the arguments and the kind of device is not
 * documented; programs that keep maps, and kernels with tensormap.replace, rely on it, too.
 *
 * Frameworks encode the same maps again before each launch. So the last answers are kept, and a launch
 * need not wait until the proxy has come to its record.
 */
#include "arena.h"
#include "context.h"
#include "send.h"

#include <stdlib.h>
#include <string.h>

#define MAPS_KEPT 256		/* one for each value of a hash */

struct tensor_maps {
	struct {
		uint16_t op;		/* 0: unused */
		struct sv_tensor_map of;	/* off is 0 */
		uint8_t map[SV_TENSOR_MAP_BYTES];
	} kept[MAPS_KEPT];
};

static unsigned int place_of(uint16_t op, const struct sv_tensor_map *a)
{
	uint64_t word[sizeof(*a) / 8], h = op;

	memcpy(word, a, sizeof(word));
	for (size_t i = 0; i < sizeof(word) / 8; i++)
		h = (h ^ word[i]) * 0x9e3779b97f4a7c15ull ^ h >> 29;
	return h >> 56;
}

static bool find_map(uint16_t op, const struct sv_tensor_map *a, void *map)
{
	struct tensor_maps *m;
	unsigned int i = place_of(op, a);
	bool found;

	lock_take(&here->locks.tensor_maps);
	m = here->tensor_maps;
	found = m && m->kept[i].op == op && !memcmp(&m->kept[i].of, a, sizeof(*a));
	if (found)
		memcpy(map, m->kept[i].map, SV_TENSOR_MAP_BYTES);
	lock_drop(&here->locks.tensor_maps);
	return found;
}

static void keep_map(uint16_t op, const struct sv_tensor_map *a, const void *map)
{
	unsigned int i = place_of(op, a);
	struct tensor_maps *m;

	lock_take(&here->locks.tensor_maps);
	m = here->tensor_maps;
	if (!m)
		m = here->tensor_maps = calloc(1, sizeof(*m));
	if (m) {
		m->kept[i].op = op;
		m->kept[i].of = *a;
		memcpy(m->kept[i].map, map, SV_TENSOR_MAP_BYTES);
	}
	lock_drop(&here->locks.tensor_maps);
}

static CUresult ask(uint16_t op, struct sv_tensor_map *a, CUtensorMap *map)
{
	struct sv_tensor_map of = *a;
	void *at = arena_reply(SV_TENSOR_MAP_BYTES, &a->off);
	CUresult rc;

	if (!at)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (op == SV_OP_cuTensorMapReplaceAddress)
		memcpy(at, map, SV_TENSOR_MAP_BYTES);
	rc = send_sync(op, a, sizeof(*a), NULL, 0, NULL, 0);
	if (!rc)
		memcpy(map, at, SV_TENSOR_MAP_BYTES);
	arena_reply_done(a->off);
	if (!rc && op != SV_OP_cuTensorMapReplaceAddress)
		keep_map(op, &of, map);
	return rc;
}

static CUresult make(uint16_t op, struct sv_tensor_map *a, CUtensorMap *map)
{
	struct context *ctx;

	TRY(context_current(&ctx));
	if (!map || (uintptr_t)map % 64)
		return CUDA_ERROR_INVALID_VALUE;
	a->ctx = ctx->o.handle;
	if (op != SV_OP_cuTensorMapReplaceAddress && find_map(op, a, map))
		return CUDA_SUCCESS;
	return ask(op, a, map);
}

/* Copies the arrays that all forms have. A rank that says more than there can be is not sent. */
static bool take_tensor(struct sv_tensor_map *a, const cuuint64_t *dim, const cuuint64_t *stride,
			const cuuint32_t *step)
{
	if (!a->rank || a->rank > SV_TENSOR_RANK_MAX || !dim || !step || (a->rank > 1 && !stride))
		return false;
	memcpy(a->dim, dim, a->rank * sizeof(*dim));
	memcpy(a->step, step, a->rank * sizeof(*step));
	if (a->rank > 1)
		memcpy(a->stride, stride, (a->rank - 1) * sizeof(*stride));
	return true;
}

/* After the error that a call without a context has. */
static CUresult bad_tensor(void)
{
	struct context *ctx;

	TRY(context_current(&ctx));
	return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
				    void *address, const cuuint64_t *dim, const cuuint64_t *stride,
				    const cuuint32_t *box, const cuuint32_t *step,
				    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
				    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
	struct sv_tensor_map a = {
		.type = type, .rank = rank, .address = (uintptr_t)address,
		.interleave = interleave, .swizzle = swizzle, .promotion = promotion, .fill = fill,
	};

	if (!take_tensor(&a, dim, stride, step) || !box)
		return bad_tensor();
	memcpy(a.box, box, rank * sizeof(*box));
	return make(SV_OP_cuTensorMapEncodeTiled, &a, map);
}

API CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
				     void *address, const cuuint64_t *dim, const cuuint64_t *stride,
				     const int *lower, const int *upper, cuuint32_t channels,
				     cuuint32_t pixels, const cuuint32_t *step,
				     CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
				     CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
	struct sv_tensor_map a = {
		.type = type, .rank = rank, .address = (uintptr_t)address, .channels = channels,
		.pixels = pixels, .interleave = interleave, .swizzle = swizzle,
		.promotion = promotion, .fill = fill,
	};

	/* There is one offset for each dimension between channels and images. */
	if (!take_tensor(&a, dim, stride, step) || rank < 3 || !lower || !upper)
		return bad_tensor();
	memcpy(a.lower, lower, (rank - 2) * sizeof(*lower));
	memcpy(a.upper, upper, (rank - 2) * sizeof(*upper));
	return make(SV_OP_cuTensorMapEncodeIm2col, &a, map);
}

API CUresult cuTensorMapEncodeIm2colWide(CUtensorMap *map, CUtensorMapDataType type,
					 cuuint32_t rank, void *address, const cuuint64_t *dim,
					 const cuuint64_t *stride, int lower, int upper,
					 cuuint32_t channels, cuuint32_t pixels,
					 const cuuint32_t *step, CUtensorMapInterleave interleave,
					 CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
					 CUtensorMapL2promotion promotion,
					 CUtensorMapFloatOOBfill fill)
{
	struct sv_tensor_map a = {
		.type = type, .rank = rank, .address = (uintptr_t)address, .lower = { lower },
		.upper = { upper }, .channels = channels, .pixels = pixels,
		.interleave = interleave, .mode = mode, .swizzle = swizzle,
		.promotion = promotion, .fill = fill,
	};

	if (!take_tensor(&a, dim, stride, step))
		return bad_tensor();
	return make(SV_OP_cuTensorMapEncodeIm2colWide, &a, map);
}

API CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
	struct sv_tensor_map a = { .address = (uintptr_t)address };

	return make(SV_OP_cuTensorMapReplaceAddress, &a, map);
}
