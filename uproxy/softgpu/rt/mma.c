// SPDX-License-Identifier: Apache-2.0
/*
 * mma.c - matrix loads and stores, and wmma.
 *
 * A wmma fragment keeps element i of its matrix (row-major, i = row * columns + column) in lane
 * i % 32 at place i / 32; fragments that the ISA makes larger than the matrix leave the rest zero.
 */
#include <math.h>
#include <string.h>

#include "rt_i.h"
#include "ptx_i.h"

/* Lane m * 8 + r has the address of row r of matrix m. */
static void rt_ldmatrix(struct rt_warp *w, uint32_t mask, uint32_t desc)
{
	uint32_t n = desc & 255, space = desc >> 16, m, r, l;
	bool trans = desc >> 8 & 1;

	(void)mask;
	for (m = 0; m < n; m++) {
		uint16_t t[8][8];

		for (r = 0; r < 8; r++)
			memcpy(t[r], rt_resolve(w, w->addr[m * 8 + r], 16, space, m * 8 + r, false),
			       16);
		for (l = 0; l < 32; l++) {
			uint32_t a = l / 4, b = l % 4 * 2;

			w->y.u32[m * 32 + l] = trans ? t[b][a] | (uint32_t)t[b + 1][a] << 16 :
						       t[a][b] | (uint32_t)t[a][b + 1] << 16;
		}
	}
}

static void rt_stmatrix(struct rt_warp *w, uint32_t mask, uint32_t desc)
{
	uint32_t n = desc & 255, space = desc >> 16, m, r, l;
	bool trans = desc >> 8 & 1;

	(void)mask;
	for (m = 0; m < n; m++) {
		uint16_t t[8][8];

		for (l = 0; l < 32; l++) {
			uint32_t a = l / 4, b = l % 4 * 2, v = w->x.u32[m * 32 + l];

			if (trans) {
				t[b][a] = v;
				t[b + 1][a] = v >> 16;
			} else {
				t[a][b] = v;
				t[a][b + 1] = v >> 16;
			}
		}
		for (r = 0; r < 8; r++)
			memcpy(rt_resolve(w, w->addr[m * 8 + r], 16, space, m * 8 + r, true), t[r],
			       16);
	}
}

static void rt_movmatrix(struct rt_warp *w)
{
	uint16_t t[8][8];
	uint32_t l;

	for (l = 0; l < 32; l++) {
		t[l / 4][l % 4 * 2] = w->x.u32[l];
		t[l / 4][l % 4 * 2 + 1] = w->x.u32[l] >> 16;
	}
	for (l = 0; l < 32; l++)
		w->y.u32[l] = t[l % 4 * 2][l / 4] | (uint32_t)t[l % 4 * 2 + 1][l / 4] << 16;
}

/* Inlined into the callers' switches, so that it is specialised for each type or size. */
#define CONST_ARG static inline __attribute__((always_inline))

CONST_ARG unsigned int type_size(int t)
{
	return t == T_F16 || t == T_BF16 ? 2 : t == T_F64 ? 8 : t == T_S8 || t == T_U8 ? 1 : 4;
}

/* Element @i of a fragment in registers of 4 bytes (8 for f64). */
CONST_ARG uint8_t *elem(uint8_t *frag, int type, uint32_t i)
{
	uint32_t size = type_size(type), per = size >= 4 ? 1 : 4 / size, place = i / 32;

	if (size == 8)
		return frag + ((size_t)place * 32 + i % 32) * 8;
	return frag + ((size_t)(place / per) * 32 + i % 32) * 4 + place % per * size;
}

static void dims(uint32_t shape, uint32_t which, uint32_t *rows, uint32_t *cols)
{
	uint32_t m = shape & 255, n = shape >> 8 & 255, k = shape >> 16 & 255;

	*rows = which == 1 ? k : m;
	*cols = which == 0 ? k : n;
}

/* Copies a fragment to or from memory: 16 bytes at once where they are contiguous and aligned. */
CONST_ARG void wmma_move(struct rt_warp *w, uint8_t *frag, uint32_t shape, int type, uint32_t how,
			  bool write)
{
	uint32_t rows, cols, size = type_size(type), space = how >> 16 & 255, i, k, n, line;
	bool col = how >> 8 & 1, strided = how >> 24 & 1;

	dims(shape, how & 255, &rows, &cols);
	for (line = 0; line < (col ? cols : rows); line++)
		for (i = 0; i < (col ? rows : cols); i += n) {
			uint32_t len = col ? rows : cols, ld = strided ? w->x.u32[768] : len;
			uint64_t at = w->addr[0] + ((uint64_t)line * ld + i) * size;
			uint8_t *p;

			n = at % 16 || len - i < 16 / size ? 1 : 16 / size;
			p = rt_resolve(w, at, n * size, space, 0, write);
			for (k = 0; k < n; k++) {
				uint8_t *e = elem(frag, type, col ? (i + k) * cols + line :
						  line * cols + i + k);

				memcpy(write ? p + k * size : e, write ? e : p + k * size, size);
			}
		}
}

static void wmma_memory(struct rt_warp *w, uint8_t *frag, uint32_t shape, uint32_t type, uint32_t how,
			bool write)
{
	switch (type_size(type)) {
	case 1: wmma_move(w, frag, shape, T_U8, how, write); break;
	case 2: wmma_move(w, frag, shape, T_F16, how, write); break;
	case 4: wmma_move(w, frag, shape, T_F32, how, write); break;
	default: wmma_move(w, frag, shape, T_F64, how, write);
	}
}

static void rt_wmma_load(struct rt_warp *w, uint32_t mask, uint32_t shape, uint32_t type,
			 uint32_t how)
{
	(void)mask;
	memset(w->y.b, 0, sizeof(w->y.b));
	wmma_memory(w, w->y.b, shape, type, how, false);
}

static void rt_wmma_store(struct rt_warp *w, uint32_t mask, uint32_t shape, uint32_t type,
			  uint32_t how)
{
	(void)mask;
	wmma_memory(w, w->x.b, shape, type, how, true);
}

CONST_ARG double value(uint8_t *p, int type)
{
	uint16_t h;
	uint32_t u;
	float f;
	double d;

	switch (type) {
	case T_F64:
		memcpy(&d, p, 8);
		return d;
	case T_S8: return *(int8_t *)p;
	case T_U8: return *p;
	case T_S32:
		memcpy(&u, p, 4);
		return (int32_t)u;
	case T_F32:
		memcpy(&f, p, 4);
		return f;
	case T_TF32:
		memcpy(&u, p, 4);
		u &= 0xffffe000;
		memcpy(&f, &u, 4);
		return f;
	}
	memcpy(&h, p, 2);
	return rt_half_value(h, type == T_BF16);
}

/* @n elements of a fragment. */
static void values(double *to, uint8_t *frag, int type, uint32_t n)
{
	uint32_t i;

#define VALUES(t) case t: for (i = 0; i < n; i++) to[i] = value(elem(frag, t, i), t); break
	switch (type) {
	VALUES(T_F64);
	VALUES(T_S8);
	VALUES(T_U8);
	VALUES(T_S32);
	VALUES(T_F32);
	VALUES(T_TF32);
	VALUES(T_BF16);
	VALUES(T_F16);
	}
}

static void put_value(uint8_t *p, int type, double acc, float facc, int32_t iacc)
{
	uint16_t h;

	switch (type) {
	case T_F64: memcpy(p, &acc, 8); break;
	case T_F32: memcpy(p, &facc, 4); break;
	case T_S32: memcpy(p, &iacc, 4); break;
	default:
		h = rt_half_bits(facc, type == T_BF16);
		memcpy(p, &h, 2);
	}
}

/* Rows of products, each sum in order of k.  Products of narrow floats are exact in double. */
CONST_ARG void row_f32(float *d, const double *a, const double *b, uint32_t n, uint32_t k)
{
	uint32_t i, c;

	for (i = 0; i < k; i++)
		for (c = 0; c < n; c++)
			d[c] = (float)((double)d[c] + a[i] * b[i * n + c]);
}

CONST_ARG void row_f64(double *d, const double *a, const double *b, uint32_t n, uint32_t k)
{
	uint32_t i, c;

	for (i = 0; i < k; i++)
		for (c = 0; c < n; c++)
			d[c] = fma(a[i], b[i * n + c], d[c]);
}

/* @sat: only the addition of C can overflow, not the sum of the products. */
CONST_ARG void row_s32(int32_t *d, const double *a, const double *b, uint32_t n, uint32_t k, bool sat)
{
	int32_t sum[32];
	uint32_t i, c;

	memset(sum, 0, sizeof(sum));
	for (i = 0; i < k; i++)
		for (c = 0; c < n; c++)
			sum[c] += (int32_t)(a[i] * b[i * n + c]);
	for (c = 0; c < n; c++) {
		int64_t v = (int64_t)d[c] + sum[c];

		if (sat)
			v = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v;
		d[c] = (int32_t)v;
	}
}

/* A row of D; it contains C on entry. */
CONST_ARG void wmma_row(struct rt_warp *w, double *acc, const double *a, const double *b, uint32_t r,
		      uint32_t n, uint32_t k, uint32_t tcd)
{
	uint32_t tc = tcd & 255, td = tcd >> 8 & 255, c;
	float facc[32];
	int32_t iacc[32];

	for (c = 0; c < n; c++) {
		facc[c] = (float)acc[c];
		iacc[c] = tc == T_S32 ? (int32_t)acc[c] : 0;
	}
	if (tc == T_F64)
		row_f64(acc, a, b, n, k);
	else if (tc == T_S32)
		row_s32(iacc, a, b, n, k, tcd >> 16 & 1);
	else
		row_f32(facc, a, b, n, k);
	for (c = 0; c < n; c++)
		put_value(elem(w->y.b, td, r * n + c), td, acc[c], facc[c], iacc[c]);
}

/* D = A * B + C: in f32 for narrow floats, exactly for integers. */
static void rt_wmma(struct rt_warp *w, uint32_t mask, uint32_t shape, uint32_t ta, uint32_t tcd)
{
	uint32_t m = shape & 255, n = shape >> 8 & 255, k = shape >> 16 & 255, r;
	static __thread double mem[3][512];
	double *a = mem[0], *b = mem[1], *c = mem[2];

	(void)mask;
	values(a, w->x.b, ta, m * k);
	values(b, w->x.b + 1024, ta, k * n);
	values(c, w->x.b + 2048, tcd & 255, m * n);
	memset(w->y.b, 0, sizeof(w->y.b));
	for (r = 0; r < m; r++, a += k, c += n)
		switch (n) {
		case 8: wmma_row(w, c, a, b, r, 8, k, tcd); break;
		case 16: wmma_row(w, c, a, b, r, 16, k, tcd); break;
		default: wmma_row(w, c, a, b, r, 32, k, tcd);
		}
}

const struct rt_symbol rt_mma_symbols[] = {
	{ "rt_ldmatrix", rt_ldmatrix }, { "rt_stmatrix", rt_stmatrix },
	{ "rt_movmatrix", rt_movmatrix }, { "rt_wmma_load", rt_wmma_load },
	{ "rt_wmma_store", rt_wmma_store }, { "rt_wmma", rt_wmma }, { NULL, NULL },
};
