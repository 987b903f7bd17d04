// SPDX-License-Identifier: Apache-2.0
/*
 * tensor.c - copies of boxes between tensors in global memory and shared memory (cp.async.bulk.tensor)
 *
 * A box's rows lie one behind the other in shared memory; 16-byte pieces of them are swapped within
 * 128 bytes, as the tensor map says (swizzle).  Elements outside the tensor are read as 0 or NaN, and
 * are not written.  A map is the program's memory: whatever it says is checked here.
 */
#include <string.h>

#include "rt_i.h"
#include "tensor_map.h"

enum { BOX_MAX = 256, ROW_MAX = BOX_MAX * 8 };

/* As cuda.h numbers CUtensorMapDataType, up to TFLOAT32_FTZ; the packed types follow. */
static const struct {
	uint8_t size;
	int8_t atom;		/* enum rt_atom_type; -1: no reductions */
	bool is_float, ftz;
	uint64_t nan;
} types[] = {
	{ 1, -1, false, false, 0 }, { 2, -1, false, false, 0 }, { 4, RT_U32, false, false, 0 },
	{ 4, RT_S32, false, false, 0 }, { 8, RT_U64, false, false, 0 }, { 8, RT_S64, false, false, 0 },
	{ 2, RT_F16, true, false, 0x7fff }, { 4, RT_F32, true, false, 0x7fffffff },
	{ 8, RT_F64, true, false, 0x7fffffffffffffff }, { 2, RT_BF16, true, false, 0x7fff },
	{ 4, RT_F32, true, true, 0x7fffffff }, { 4, -1, true, false, 0x7fffffff },
	{ 4, -1, true, true, 0x7fffffff },
};

struct box {
	struct rt_warp *w;
	int lane;
	uint32_t desc;
	struct tensor_map m;
	uint32_t size, row;		/* bytes of an element, and of a row */
	uint32_t n[TENSOR_RANK_MAX];	/* elements */
	int64_t at[TENSOR_RANK_MAX];	/* of the box in the tensor */
	uint64_t shared;		/* its shared address */
	uint8_t *host;			/* of that address, rounded down to 128 bytes */
};

static void bad(struct box *b, const char *text) __attribute__((noreturn));

static void bad(struct box *b, const char *text)
{
	rt_fault(b->w, PTX_ILLEGAL_INSN, 0, b->lane, text);
}

static void check_map(struct box *b, uint32_t rank)
{
	const struct tensor_map *m = &b->m;
	uint32_t i;

	if (m->magic != TENSOR_MAGIC)
		bad(b, "no tensor map");
	if (m->form != TENSOR_TILED || m->interleave || m->swizzle > 3 ||
	    m->type >= sizeof(types) / sizeof(types[0]))
		bad(b, "a tensor map of a kind that is not supported (im2col, interleaved, packed types, "
		       "swizzled in atoms)");
	if (m->rank != rank || rank > TENSOR_RANK_MAX)
		bad(b, "coordinates of another rank than the tensor map's");
	for (i = 0; i < rank; i++)
		if (!m->box[i] || m->box[i] > BOX_MAX || (i && !m->step[i]))
			bad(b, "a damaged tensor map");
	b->size = types[m->type].size;
	b->row = m->box[0] * b->size;
	if (b->row % 16 || (m->swizzle && b->row != 16u << m->swizzle))
		bad(b, "rows of a tensor map's box that are not as wide as its swizzle");
}

/* Shapes the box, and finds its place in shared memory.  Returns its bytes. */
static uint32_t place_box(struct box *b)
{
	uint64_t bytes = b->row, lo, hi;
	uint32_t i;

	b->n[0] = b->m.box[0];
	for (i = 1; i < b->m.rank; i++) {
		b->n[i] = (b->m.box[i] + b->m.step[i] - 1) / b->m.step[i];
		bytes *= b->n[i];
	}
	if (bytes >= 1u << PTX_VA_RANK)
		rt_fault(b->w, PTX_ILLEGAL_ADDRESS, b->shared, b->lane, NULL);
	if (b->shared % 16)
		rt_fault(b->w, PTX_MISALIGNED, b->shared, b->lane, NULL);
	lo = b->m.swizzle ? b->shared & ~127ull : b->shared;
	hi = b->m.swizzle ? (b->shared + bytes + 127) & ~127ull : b->shared + bytes;
	b->host = rt_resolve_bytes(b->w, lo, hi - lo, 16, RT_SHARED, b->lane, true) - lo;
	return bytes;
}

/* Where the 16 bytes at @off of the box lie: some of the address's bits 4 to 6 change by bits 7 to 9. */
static uint8_t *piece(const struct box *b, uint32_t off)
{
	uint64_t a = b->shared + off;

	a ^= (a >> 7 & ((1u << b->m.swizzle) - 1)) << 4;
	return b->host + a;
}

static void fill(const struct box *b, uint8_t *row)
{
	uint64_t v = b->m.fill ? types[b->m.type].nan : 0;
	uint32_t i;

	if (!v) {
		memset(row, 0, b->row);
		return;
	}
	for (i = 0; i < b->row; i += b->size)
		memcpy(row + i, &v, b->size);
}

static void flush(uint8_t *row, uint32_t bytes)
{
	uint32_t i, v;

	for (i = 0; i < bytes; i += 4) {
		memcpy(&v, row + i, 4);
		if (!(v & 0x7f800000))
			v &= 0x80000000;
		memcpy(row + i, &v, 4);
	}
}

static void reduce(const struct box *b, uint8_t *d, const uint8_t *s, uint32_t bytes)
{
	uint32_t i;

	for (i = 0; i < bytes; i += b->size) {
		uint64_t v = 0;

		memcpy(&v, s + i, b->size);
		rt_atom_one(d + i, b->size, b->desc >> RT_BULK_OP & 15, types[b->m.type].atom, v, 0);
	}
}

/* The part of a row that is in the tensor, at @in bytes of the row; NULL: none is. */
static uint8_t *part(const struct box *b, const uint32_t *index, uint32_t *in, uint32_t *bytes)
{
	const struct tensor_map *m = &b->m;
	int64_t lo = b->at[0] < 0 ? -b->at[0] : 0, hi = (int64_t)m->last[0] + 1 - b->at[0];
	uint64_t a = m->address;
	uint32_t i;

	for (i = 1; i < m->rank; i++) {
		int64_t c = b->at[i] + (int64_t)index[i] * m->step[i];

		if (c < 0 || c > m->last[i])
			return NULL;
		a += c * (((uint64_t)m->stride[i - 1] << 8) + m->rest[i - 1]);
	}
	if (hi > b->n[0])
		hi = b->n[0];
	if (lo >= hi)
		return NULL;
	*in = lo * b->size;
	*bytes = (hi - lo) * b->size;
	return rt_resolve_bytes(b->w, a + (b->at[0] + lo) * b->size, *bytes, b->size, RT_GLOBAL, b->lane,
				b->desc & RT_TENSOR_STORE);
}

static void copy_row(const struct box *b, const uint32_t *index, uint32_t off)
{
	_Alignas(16) uint8_t row[ROW_MAX];
	uint32_t in = 0, bytes = 0, i;
	uint8_t *global = part(b, index, &in, &bytes);

	if (b->desc & RT_TENSOR_STORE) {
		for (i = 0; i < b->row; i += 16)
			memcpy(row + i, piece(b, off + i), 16);
		if (global && b->desc & RT_BULK_REDUCE)
			reduce(b, global, row + in, bytes);
		else if (global)
			memcpy(global, row + in, bytes);
		return;
	}
	if (bytes < b->row)
		fill(b, row);
	if (global)
		memcpy(row + in, global, bytes);
	if (global && types[b->m.type].ftz)
		flush(row + in, bytes);
	for (i = 0; i < b->row; i += 16)
		memcpy(piece(b, off + i), row + i, 16);
}

static uint32_t copy_box(struct box *b)
{
	uint32_t bytes = place_box(b), index[TENSOR_RANK_MAX] = { 0 }, off, i;

	for (off = 0; off < bytes; off += b->row) {
		copy_row(b, index, off);
		for (i = 1; i < b->m.rank && ++index[i] == b->n[i]; i++)
			index[i] = 0;
	}
	return bytes;
}

/*
 * addr: in shared memory; x: tensor maps; + 1024: coordinates, each for all lanes; + 2048: barriers;
 * + 3072: which blocks.
 */
static void rt_tensor(struct rt_warp *w, uint32_t mask, uint32_t desc, uint32_t rank)
{
	EACH(mask, l) {
		struct box b = { .w = w, .lane = l, .desc = desc, .shared = w->addr[l] };
		uint64_t barrier = w->x.u64[256 + l];
		uint32_t ranks = ((uint16_t *)(w->x.b + 3072))[l], i;

		memcpy(&b.m, rt_resolve_bytes(w, w->x.u64[l], 128, 64, desc & 15, l, false), sizeof(b.m));
		for (i = 0; i < rank; i++)
			b.at[i] = (int32_t)w->x.u32[256 + 32 * i + l];
		check_map(&b, rank);
		if (desc & RT_BULK_REDUCE && (types[b.m.type].atom < 0 ||
					      (types[b.m.type].is_float &&
					       (desc >> RT_BULK_OP & 15) > RT_MAX)))
			bad(&b, "a reduction that the tensor map's type does not have");
		if (desc & RT_BULK_MULTICAST) {
			EACH(ranks, r) {
				b.shared = rt_peer(w->addr[l], r);
				rt_complete_tx(w, l, rt_peer(barrier, r), copy_box(&b));
			}
			continue;
		}
		i = copy_box(&b);
		if (desc & RT_BULK_TX)
			rt_complete_tx(w, l, barrier, i);
	}
}

const struct rt_symbol rt_tensor_symbols[] = {
	{ "rt_tensor", rt_tensor }, { NULL, NULL },
};
