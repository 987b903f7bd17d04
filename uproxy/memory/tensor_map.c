// SPDX-License-Identifier: Apache-2.0
/*
 * tensor_map.c - tensor maps: the driver encodes them from what a client gives, or changes their address
 *
 * A tensor map is a value of the client's that kernels read, so nothing is kept here. Its address is
 * not checked: a kernel that uses the map finds out whether it may access it, as with any pointer.
 */
#include "device_memory.h"

static CUresult encode(const struct hal *h, uint16_t op, const struct sv_tensor_map *a, CUtensorMap *map)
{
	void *address = (void *)(uintptr_t)a->address;

	switch (op) {
	case SV_OP_cuTensorMapEncodeTiled:
		if (!h->drv.cuTensorMapEncodeTiled)
			break;
		return h->drv.cuTensorMapEncodeTiled(map, a->type, a->rank, address,
				(const cuuint64_t *)a->dim, (const cuuint64_t *)a->stride, a->box, a->step,
				a->interleave, a->swizzle, a->promotion, a->fill);
	case SV_OP_cuTensorMapEncodeIm2col:
		if (!h->drv.cuTensorMapEncodeIm2col)
			break;
		return h->drv.cuTensorMapEncodeIm2col(map, a->type, a->rank, address,
				(const cuuint64_t *)a->dim, (const cuuint64_t *)a->stride, a->lower, a->upper,
				a->channels, a->pixels, a->step, a->interleave, a->swizzle, a->promotion,
				a->fill);
	case SV_OP_cuTensorMapEncodeIm2colWide:
		if (!h->drv.cuTensorMapEncodeIm2colWide)
			break;
		return h->drv.cuTensorMapEncodeIm2colWide(map, a->type, a->rank, address,
				(const cuuint64_t *)a->dim, (const cuuint64_t *)a->stride, a->lower[0],
				a->upper[0], a->channels, a->pixels, a->step, a->interleave, a->mode,
				a->swizzle, a->promotion, a->fill);
	default:
		if (!h->drv.cuTensorMapReplaceAddress)
			break;
		return h->drv.cuTensorMapReplaceAddress(map, address);
	}
	return CUDA_ERROR_NOT_SUPPORTED;
}

int do_tensor_map(struct call *k)
{
	const struct sv_tensor_map *a = k->c.data;
	struct sv_session *s = k->c.session;
	_Alignas(128) CUtensorMap map;
	int rc;

	_Static_assert(sizeof(map) == SV_TENSOR_MAP_BYTES, "wire");
	/* The driver reads as many members of the arrays as the rank says. */
	if (a->rank > SV_TENSOR_RANK_MAX || a->pad || !arena_client(s, a->off, sizeof(map)))
		return sv_bad(&k->c, "rank or place of a tensor map");
	rc = sv_enter(s, a->ctx);
	if (rc)
		return sv_fails(&k->c, rc, "context of a tensor map");
	memcpy(&map, arena_at(s, a->off), sizeof(map));
	rc = encode(&s->hal, k->c.op, a, &map);
	if (!rc)
		memcpy(arena_at(s, a->off), &map, sizeof(map));
	return fails(k, rc);
}
