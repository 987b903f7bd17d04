// SPDX-License-Identifier: Apache-2.0
/*
 * tex.c - tex, tld4, suld and sust: lane by lane, each texel checked against the texture's size
 *
 * Coordinates are in x as vectors of 32 bits: 0..3 the coordinates, 4 the level, 5..10 gradients.
 * If a texture's memory has been freed, the access faults like one of the kernel's own.
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "rt_i.h"

struct sampler {
	struct rt_warp *w;
	const struct ptx_tex *t;
	const struct ptx_level *l;
	uint32_t desc;
	int lane;
};

union texel {
	float f[4];
	uint32_t u[4];
	__m128 v;
};

static uint32_t arg_u(const struct sampler *s, unsigned int k)
{
	return s->w->x.u32[k * 32 + s->lane];
}

static float arg_f(const struct sampler *s, unsigned int k)
{
	return s->w->x.f32[k * 32 + s->lane];
}

/* floorf() without a call; a zero may have the other sign, which no result shows. */
static inline float floor_of(float x)
{
	float r;

	if (!(fabsf(x) < 0x1p23f))
		return x;
	r = (int)x;
	return r > x ? r - 1 : r;
}

static bool is_float(const struct ptx_tex *t)
{
	return t->kind == 2 || t->read_normalized;
}

static float from_srgb(float c)
{
	return c <= 0.04045f ? c / 12.92f : powf((c + 0.055f) / 1.055f, 2.4f);
}

static uint32_t channel(const struct ptx_tex *t, const uint8_t *p, unsigned int c)
{
	uint32_t v, r;
	uint16_t h;
	float f;

	if (t->bits == 8) {
		v = p[c];
	} else if (t->bits == 16) {
		memcpy(&h, p + c * 2, 2);
		v = h;
	} else {
		memcpy(&v, p + c * 4, 4);
	}
	if (t->kind == 2) {
		if (t->bits == 32)
			return v;
		f = rt_half_value(v, false);
	} else if (t->read_normalized && t->kind) {
		f = t->bits == 8 ? (int8_t)v / 127.0f : (int16_t)v / 32767.0f;
		f = f < -1 ? -1 : f;
	} else if (t->read_normalized) {
		f = t->bits == 8 ? v / 255.0f : v / 65535.0f;
		if (t->srgb && c < 3)
			f = from_srgb(f);
	} else {
		return t->kind ? t->bits == 8 ? (uint32_t)(int8_t)v : t->bits == 16 ?
			(uint32_t)(int16_t)v : v : v;
	}
	memcpy(&r, &f, 4);
	return r;
}

static int extent(const struct sampler *s, int axis)
{
	return axis == 0 ? s->l->width : axis == 1 ? s->l->height : s->l->depth;
}

/* Applies an axis' address mode to texel number @i; -1: the border. */
static int place(const struct sampler *s, int i, int axis, int mode)
{
	int n = extent(s, axis), m;

	if (i >= 0 && i < n)
		return i;
	switch (mode) {
	case 0:
		m = i % n;
		return m < 0 ? m + n : m;
	case 2:
		m = i % (2 * n);
		m = m < 0 ? m + 2 * n : m;
		return m < n ? m : 2 * n - 1 - m;
	case 3:
		return -1;
	default:
		return i < 0 ? 0 : n - 1;
	}
}

/* Built in a register: to store channels and load all four of them at once would stall. */
static inline union texel fetch(const struct sampler *s, int x, int y, int z)
{
	const struct ptx_tex *t = s->t;
	const uint8_t *p;
	uint32_t v[4];

	if ((x | y | z) < 0)
		return (union texel){ .v = _mm_loadu_ps(t->border) };
	p = (const uint8_t *)s->l->data + z * s->l->slice_pitch + y * s->l->row_pitch +
	    (uint64_t)x * t->channels * t->bits / 8;
	if (t->bits == 32 && t->channels == 4)
		return (union texel){ .v = _mm_loadu_ps((const float *)p) };
	if (t->bits == 32 && t->channels == 2)
		return (union texel){ .v = _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)p)) };
	if (t->bits == 32)
		return (union texel){ .v = _mm_load_ss((const float *)p) };
	for (unsigned int c = 0; c < 4; c++)
		v[c] = c < t->channels ? channel(t, p, c) : 0;
	return (union texel){ .v = _mm_castsi128_ps(_mm_setr_epi32(v[0], v[1], v[2], v[3])) };
}

/* Converts a coordinate to texels; wraps or mirrors it before, while it is normalized. */
static float scale(const struct sampler *s, float u, int axis, int mode, bool normalized)
{
	float n = extent(s, axis);

	if (u != u)
		return 0;
	if (normalized) {
		if (mode == 0) {
			u -= floor_of(u);
		} else if (mode == 2) {
			float k = floor_of(u);

			u -= k;
			if (fmodf(k, 2) != 0)
				u = 1 - u;
		}
		u *= n;
	}
	return u < -1e6f ? -1e6f : u > 1e6f + n ? 1e6f + n : u;
}

struct axis {
	int i[2];
	float a;		/* weight of i[1] */
};

/* The hardware's weights have 8 bits. */
static struct axis find_axis(const struct sampler *s, float u, int axis, int mode, bool normalized,
			     bool linear)
{
	struct axis r = { { 0, 0 }, 0 };
	float x = scale(s, u, axis, mode, normalized), low;

	if (linear) {
		x -= 0.5f;
		low = floor_of(x);
		r.a = floor_of((x - low) * 256 + 0.5f) / 256;
		r.i[0] = place(s, (int)low, axis, mode);
		r.i[1] = place(s, (int)low + 1, axis, mode);
	} else {
		r.i[0] = r.i[1] = place(s, (int)floor_of(x), axis, mode);
	}
	return r;
}

static union texel sample_at(const struct sampler *s, int dim, const float *u, int layer, bool cube)
{
	const struct ptx_tex *t = s->t;
	bool norm = t->normalized_coords || cube, linear = t->linear && is_float(t);
	struct axis a[3] = { { { 0, 0 }, 0 } };
	union texel sum = { .u = { 0 } };

	for (int k = 0; k < dim; k++)
		a[k] = find_axis(s, u[k], k, cube ? 1 : t->address[k], norm, linear);
	if (layer >= 0) {
		int last = (int)s->l->depth - 1;

		a[2].i[0] = a[2].i[1] = layer > last ? last : layer;
	}
	if (!linear)
		return fetch(s, a[0].i[0], a[1].i[0], a[2].i[0]);
	for (int k = 0; k < 1 << dim; k++) {
		float weight = 1;

		for (int d = 0; d < dim; d++)
			weight *= k >> d & 1 ? a[d].a : 1 - a[d].a;
		if (weight != 0)
			sum.v = _mm_add_ps(sum.v, _mm_mul_ps(fetch(s, a[0].i[k & 1],
								   a[1].i[k >> 1 & 1],
								   a[2].i[k >> 2 & 1]).v,
							     _mm_set1_ps(weight)));
	}
	return sum;
}

/* Converts a direction to a face and the position on it. */
static int cube_face(const float *v, float *st)
{
	float x = fabsf(v[0]), y = fabsf(v[1]), z = fabsf(v[2]), m, s, t;
	int face;

	if (x >= y && x >= z) {
		face = v[0] >= 0 ? 0 : 1;
		m = x;
		s = face ? v[2] : -v[2];
		t = -v[1];
	} else if (y >= z) {
		face = v[1] >= 0 ? 2 : 3;
		m = y;
		s = v[0];
		t = face == 2 ? v[2] : -v[2];
	} else {
		face = v[2] >= 0 ? 4 : 5;
		m = z;
		s = face == 4 ? v[0] : -v[0];
		t = -v[1];
	}
	st[0] = m > 0 ? (s / m + 1) / 2 : 0.5f;
	st[1] = m > 0 ? (t / m + 1) / 2 : 0.5f;
	return face;
}

static float lod_of(const struct sampler *s, int dim)
{
	float lod = 0, len[2];

	if (s->desc & RT_TEX_LEVEL) {
		lod = arg_f(s, 4);
	} else if (s->desc & RT_TEX_GRAD) {
		for (int g = 0; g < 2; g++) {
			len[g] = 0;
			for (int k = 0; k < dim; k++) {
				float n = s->t->normalized_coords ? extent(s, k) : 1;
				float d = arg_f(s, 5 + 3 * g + k) * n;

				len[g] += d * d;
			}
		}
		lod = len[0] > len[1] ? len[0] : len[1];
		lod = lod > 0 ? log2f(lod) / 2 : 0;
	} else {
		return 0;
	}
	lod += s->t->lod_bias;
	lod = lod < s->t->lod_min ? s->t->lod_min : lod > s->t->lod_max ? s->t->lod_max : lod;
	return lod > 0 ? lod : 0;	/* NaN, too */
}

static union texel sample_levels(struct sampler *s, int dim, const float *u, int layer, bool cube)
{
	float lod = s->t->nlevels > 1 ? lod_of(s, dim) : 0, low;
	unsigned int last = s->t->nlevels - 1, i;
	union texel a, b;

	if (lod > last)
		lod = last;
	low = floorf(lod);
	i = s->t->mip_linear ? (unsigned int)low : (unsigned int)floorf(lod + 0.5f);
	s->l = &s->t->level[i];
	a = sample_at(s, dim, u, layer, cube);
	if (!s->t->mip_linear || lod == low || !is_float(s->t))
		return a;
	s->l = &s->t->level[i + 1];
	b = sample_at(s, dim, u, layer, cube);
	for (int c = 0; c < 4; c++)
		a.f[c] += (b.f[c] - a.f[c]) * (lod - low);
	return a;
}

/* Integer coordinates name texels; outside of linear memory there are zeros. */
static union texel sample_int(struct sampler *s, int dim, unsigned int first, int layer)
{
	union texel none = { .u = { 0 } };
	int i[3] = { 0, 0, 0 };

	for (int k = 0; k < dim; k++) {
		i[k] = (int)arg_u(s, first + k);
		if (i[k] < 0 || i[k] >= extent(s, k)) {
			if (dim == 1)
				return none;
			i[k] = place(s, i[k], k, s->t->address[k]);
		}
	}
	if (layer >= 0)
		i[2] = layer >= (int)s->l->depth ? (int)s->l->depth - 1 : layer;
	return fetch(s, i[0], i[1], i[2]);
}

static union texel gather(const struct sampler *s, const float *u)
{
	static const uint8_t order[4] = { 2, 3, 1, 0 };	/* y is the upper bit, x the lower */
	unsigned int c = s->desc >> RT_TEX_COMP & 3, k;
	union texel r = { .u = { 0 } };
	struct axis a[2];

	for (k = 0; k < 2; k++)
		a[k] = find_axis(s, u[k], k, s->t->address[k], s->t->normalized_coords, true);
	for (k = 0; k < 4; k++)
		r.u[k] = fetch(s, a[0].i[order[k] & 1], a[1].i[order[k] >> 1], 0).u[c];
	return r;
}

static union texel sample_lane(struct sampler *s)
{
	uint32_t geom = s->desc & RT_TEX_GEOM;
	bool array = geom == RT_TEX_A1D || geom == RT_TEX_A2D || geom == RT_TEX_ACUBE;
	bool cube = geom == RT_TEX_CUBE || geom == RT_TEX_ACUBE;
	int dim = geom == RT_TEX_3D ? 3 : geom == RT_TEX_1D || geom == RT_TEX_A1D ? 1 : 2, k;
	int layer = array ? (int)arg_u(s, 0) : -1;
	float u[3] = { 0, 0, 0 };

	s->l = &s->t->level[0];
	if (layer < 0 && array)
		layer = 0;
	if (s->desc & RT_TEX_INT)
		return sample_int(s, dim, array, layer);
	for (k = 0; k < (cube ? 3 : dim); k++)
		u[k] = arg_f(s, k + array);
	if (s->desc & RT_TEX_GATHER)
		return gather(s, u);
	if (cube) {
		float st[2];

		layer = cube_face(u, st) + 6 * (array ? layer : 0);
		u[0] = st[0];
		u[1] = st[1];
	}
	return sample_levels(s, dim, u, layer, cube);
}

static const struct ptx_tex *find_tex(struct rt_warp *w, int lane)
{
	const struct ptx_host *h = w->block->worker->run->l->host;
	const struct ptx_tex *t = h && h->tex ? h->tex(h->user, w->addr[lane]) : NULL;

	if (!t)
		rt_fault(w, PTX_ILLEGAL_ADDRESS, w->addr[lane], lane, "no texture or surface object");
	return t;
}

static void rt_tex(struct rt_warp *w, uint32_t mask, uint32_t desc)
{
	struct sampler s = { .w = w, .desc = desc };
	uint64_t last = 0;

	EACH(mask, l) {
		union texel v;

		s.lane = l;
		if (!s.t || w->addr[l] != last)
			s.t = find_tex(w, l);
		last = w->addr[l];
		v = sample_lane(&s);
		for (int c = 0; c < 4; c++)
			w->y.u32[c * 32 + l] = v.u[c];
	}
}

/* ---- surfaces: bytes at texels ---- */

static int clamped(int i, int n, uint32_t mode, bool *out)
{
	if (i >= 0 && i < n)
		return i;
	*out |= mode != RT_SURF_CLAMP;
	return i < 0 ? 0 : n - 1;
}

/* The address of the lane's bytes; NULL: outside, and the mode ignores that. */
static uint8_t *surface_at(struct rt_warp *w, uint32_t desc, uint32_t bytes, int lane)
{
	uint32_t geom = desc & RT_TEX_GEOM, mode = desc & RT_SURF_MODE;
	bool array = geom == RT_TEX_A1D || geom == RT_TEX_A2D, out = false;
	bool flat = geom == RT_TEX_1D || geom == RT_TEX_A1D;
	const struct ptx_tex *t = find_tex(w, lane);
	const struct ptx_level *l = &t->level[0];
	int texel = t->channels * t->bits / 8, n = l->width * texel / bytes, x, y = 0, z = 0;

	x = (int)w->x.u32[array * 32 + lane];
	if (x % (int)bytes)
		rt_fault(w, PTX_MISALIGNED, l->data + x, lane, "surface coordinate");
	if (n < 1)
		rt_fault(w, PTX_ILLEGAL_ADDRESS, l->data + x, lane, "surface: type wider than a row");
	x = clamped(x < 0 ? -1 : x / (int)bytes, n, mode, &out);
	if (!flat)
		y = clamped((int)w->x.u32[(1 + array) * 32 + lane], l->height, mode, &out);
	if (array)
		z = clamped((int)w->x.u32[lane], l->depth, mode, &out);
	else if (geom == RT_TEX_3D)
		z = clamped((int)w->x.u32[64 + lane], l->depth, mode, &out);
	if (out && mode == RT_SURF_TRAP)
		rt_fault(w, PTX_ILLEGAL_ADDRESS, l->data, lane, "surface coordinate out of range");
	if (out)
		return NULL;
	return (uint8_t *)l->data + z * l->slice_pitch + y * l->row_pitch + (uint64_t)x * bytes;
}

static void rt_suld(struct rt_warp *w, uint32_t mask, uint32_t desc, uint32_t size, uint32_t n)
{
	EACH(mask, l) {
		uint8_t *p = surface_at(w, desc, size * n, l);

		for (uint32_t c = 0; c < n; c++) {
			uint8_t *to = w->y.b + (c * 32 + l) * size;

			if (p)
				memcpy(to, p + c * size, size);
			else
				memset(to, 0, size);
		}
	}
}

/* Values are behind the coordinates: element c of lane l at 1024 + (c * 32 + l) * size. */
static void rt_sust(struct rt_warp *w, uint32_t mask, uint32_t desc, uint32_t size, uint32_t n)
{
	EACH(mask, l) {
		uint8_t *p = surface_at(w, desc, size * n, l);

		for (uint32_t c = 0; c < n && p; c++)
			memcpy(p + c * size, w->x.b + 1024 + (c * 32 + l) * size, size);
	}
}

const struct rt_symbol rt_tex_symbols[] = {
	{ "rt_tex", rt_tex }, { "rt_suld", rt_suld }, { "rt_sust", rt_sust }, { NULL, NULL },
};
