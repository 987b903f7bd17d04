// SPDX-License-Identifier: Apache-2.0
/*
 * rt_mma.c - matrix loads and stores, and wmma.
 *
 * A wmma fragment keeps element i of its matrix (row-major, i = row * columns + column) in lane
 * i % 32 at place i / 32; fragments that the ISA makes larger than the matrix leave the rest zero.
 */
#include <math.h>
#include <string.h>

#include "rt_i.h"
#include "ptx_i.h"

/* Row @r of matrix @m is where lane m * 8 + r points. */
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

static unsigned int type_size(int t)
{
	return t == T_F16 || t == T_BF16 ? 2 : t == T_F64 ? 8 : t == T_S8 || t == T_U8 ? 1 : 4;
}

/* Element @i of a fragment in registers of 4 bytes (8 for f64). */
static uint8_t *elem(uint8_t *frag, int type, uint32_t i)
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

static uint8_t *wmma_at(struct rt_warp *w, uint32_t how, int type, uint32_t r, uint32_t c,
			uint32_t rows, uint32_t cols, bool write)
{
	bool col = how >> 8 & 1, strided = how >> 24 & 1;
	uint32_t size = type_size(type), ld = strided ? w->x.u32[768] : col ? rows : cols;
	uint64_t off = col ? (uint64_t)c * ld + r : (uint64_t)r * ld + c;

	return rt_resolve(w, w->addr[0] + off * size, size, how >> 16 & 255, 0, write);
}

static void rt_wmma_load(struct rt_warp *w, uint32_t mask, uint32_t shape, uint32_t type,
			 uint32_t how)
{
	uint32_t rows, cols, r, c;

	(void)mask;
	dims(shape, how & 255, &rows, &cols);
	memset(w->y.b, 0, sizeof(w->y.b));
	for (r = 0; r < rows; r++)
		for (c = 0; c < cols; c++)
			memcpy(elem(w->y.b, type, r * cols + c),
			       wmma_at(w, how, type, r, c, rows, cols, false), type_size(type));
}

static void rt_wmma_store(struct rt_warp *w, uint32_t mask, uint32_t shape, uint32_t type,
			  uint32_t how)
{
	uint32_t rows, cols, r, c;

	(void)mask;
	dims(shape, how & 255, &rows, &cols);
	for (r = 0; r < rows; r++)
		for (c = 0; c < cols; c++)
			memcpy(wmma_at(w, how, type, r, c, rows, cols, true),
			       elem(w->x.b, type, r * cols + c), type_size(type));
}

static double value(uint8_t *p, int type)
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
static void row_f32(float *d, const double *a, const double *b, uint32_t n, uint32_t k)
{
	uint32_t i, c;

	for (i = 0; i < k; i++)
		for (c = 0; c < n; c++)
			d[c] = (float)((double)d[c] + a[i] * b[i * n + c]);
}

static void row_f64(double *d, const double *a, const double *b, uint32_t n, uint32_t k)
{
	uint32_t i, c;

	for (i = 0; i < k; i++)
		for (c = 0; c < n; c++)
			d[c] = fma(a[i], b[i * n + c], d[c]);
}

/* @sat: the sum of the products cannot overflow, that with C can. */
static void row_s32(int32_t *d, const double *a, const double *b, uint32_t n, uint32_t k, bool sat)
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

/* D = A * B + C: in f32 for narrow floats, exactly for integers. */
static void rt_wmma(struct rt_warp *w, uint32_t mask, uint32_t shape, uint32_t ta, uint32_t tcd)
{
	uint32_t m = shape & 255, n = shape >> 8 & 255, k = shape >> 16 & 255, r, c, i;
	uint32_t tc = tcd & 255, td = tcd >> 8 & 255;
	static __thread double a[512], b[512];
	double acc[32];
	float facc[32];
	int32_t iacc[32];

	(void)mask;
	for (i = 0; i < m * k; i++)
		a[i] = value(elem(w->x.b, ta, i), ta);
	for (i = 0; i < k * n; i++)
		b[i] = value(elem(w->x.b + 1024, ta, i), ta);
	memset(w->y.b, 0, sizeof(w->y.b));
	for (r = 0; r < m; r++) {
		for (c = 0; c < n; c++) {
			acc[c] = value(elem(w->x.b + 2048, tc, r * n + c), tc);
			facc[c] = (float)acc[c];
			iacc[c] = tc == T_S32 ? (int32_t)acc[c] : 0;
		}
		if (tc == T_F64)
			row_f64(acc, a + r * k, b, n, k);
		else if (tc == T_S32)
			row_s32(iacc, a + r * k, b, n, k, tcd >> 16 & 1);
		else
			row_f32(facc, a + r * k, b, n, k);
		for (c = 0; c < n; c++)
			put_value(elem(w->y.b, td, r * n + c), td, acc[c], facc[c], iacc[c]);
	}
}

const struct rt_symbol rt_mma_symbols[] = {
	{ "rt_ldmatrix", rt_ldmatrix }, { "rt_stmatrix", rt_stmatrix },
	{ "rt_movmatrix", rt_movmatrix }, { "rt_wmma_load", rt_wmma_load },
	{ "rt_wmma_store", rt_wmma_store }, { "rt_wmma", rt_wmma }, { NULL, NULL },
};
