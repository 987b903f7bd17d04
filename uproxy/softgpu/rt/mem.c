// SPDX-License-Identifier: Apache-2.0
/*
 * mem.c - the slow path of memory accesses: lane by lane, each checked
 */
#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rt_i.h"

enum { STACK_LEFT = 96 << 10 };

static bool in_ranges(const struct ptx_launch *l, uint64_t a, uint32_t size)
{
	unsigned int i;

	for (i = 0; i < l->nranges; i++)
		if (a >= l->ranges[i].lo && a < l->ranges[i].hi && l->ranges[i].hi - a >= size)
			return true;
	return false;
}

/* Shared memory of a block of the cluster that the address names, or NULL. */
static uint8_t *peer_shared(const struct rt_warp *w, uint64_t a, uint32_t size)
{
	const struct rt_cluster *c = w->block->cluster;
	uint64_t rank = (a >> PTX_VA_RANK) - 1;

	a &= (1ull << PTX_VA_RANK) - 1;
	if (rank >= c->n || a >= w->shared_size || w->shared_size - a < size)
		return NULL;
	return c->block[rank]->shared + a;
}

/*
 * The host address of @size bytes at @a of @space for lane @lane.  An address that is bad, or no
 * multiple of @align, ends the launch.
 */
uint8_t *rt_resolve_bytes(struct rt_warp *w, uint64_t a, uint32_t size, uint32_t align, int space,
			  int lane, bool write)
{
	uint64_t orig = a;
	uint8_t *p;

	if (space == RT_GENERIC || space == RT_PARAM) {
		if (a >= PTX_VA_LIMIT) {
			space = RT_GLOBAL;
		} else if (a >= PTX_VA_PARAM) {
			space = RT_PARAM;
			a -= PTX_VA_PARAM;
		} else if (a >= PTX_VA_LOCAL) {
			space = RT_LOCAL;
			a -= PTX_VA_LOCAL;
		} else if (a >= PTX_VA_SHARED) {
			space = RT_SHARED;
			a -= PTX_VA_SHARED;
		} else {
			rt_fault(w, PTX_ILLEGAL_ADDRESS, orig, lane, NULL);
		}
	}
	if (space != RT_PARAM && (a & (align - 1)))
		rt_fault(w, PTX_MISALIGNED, orig, lane, NULL);
	switch (space) {
	case RT_SHARED:
		if (a < w->shared_size && w->shared_size - a >= size)
			return w->shared + a;
		p = peer_shared(w, a, size);
		if (p)
			return p;
		break;
	case RT_LOCAL:
		if (a < w->local_stride && w->local_stride - a >= size)
			return w->local + lane * w->local_stride + a;
		break;
	case RT_PARAM:
		if (!write && a < w->param_size && w->param_size - a >= size)
			return (uint8_t *)w->params + a;
		break;
	default:
		if (in_ranges(w->block->worker->run->l, a, size))
			return (uint8_t *)a;
	}
	rt_fault(w, PTX_ILLEGAL_ADDRESS, orig, lane, NULL);
}

/* The same for an access, which is as aligned as it is large. */
uint8_t *rt_resolve(struct rt_warp *w, uint64_t a, uint32_t size, int space, int lane, bool write)
{
	if (size & (size - 1))
		rt_fault(w, PTX_ILLEGAL_SPACE, a, lane, NULL);
	return rt_resolve_bytes(w, a, size, size, space, lane, write);
}

/* ---- all lanes at once, where that can be done ---- */

struct row {			/* the range of an access */
	uint8_t *host;		/* of address @lo */
	uint64_t lo, len;
};

/* Finds the range that contains the lowest lane's address; row_holds() checks the other lanes. */
static bool find_row(struct rt_warp *w, uint32_t mask, uint32_t space, struct row *r)
{
	const struct ptx_launch *l = w->block->worker->run->l;
	uint64_t a = w->addr[__builtin_ctz(mask)];
	unsigned int i;

	if (space == RT_SHARED) {
		*r = (struct row){ w->shared, 0, w->shared_size };
		return true;
	}
	if (space == RT_PARAM && a >= PTX_VA_PARAM && a < PTX_VA_LIMIT) {
		*r = (struct row){ (uint8_t *)w->params, PTX_VA_PARAM, w->param_size };
		return true;
	}
	if (space != RT_GLOBAL && (space != RT_GENERIC || a < PTX_VA_LIMIT))
		return false;
	for (i = 0; i < l->nranges; i++)
		if (a - l->ranges[i].lo < l->ranges[i].hi - l->ranges[i].lo) {
			r->lo = l->ranges[i].lo;
			r->len = l->ranges[i].hi - r->lo;
			r->host = (uint8_t *)r->lo;
			return true;
		}
	return false;
}

#define WIDE __attribute__((target("avx2")))

static bool wide;
__attribute__((constructor)) static void find_wide(void)
{
	wide = __builtin_cpu_supports("avx2");
}

/* Whether all lanes' @bytes are in the row, and aligned. */
WIDE static bool row_holds(const struct rt_warp *w, uint32_t mask, const struct row *r,
			   uint32_t bytes)
{
	const __m256i sign = _mm256_set1_epi64x(INT64_MIN), zero = _mm256_setzero_si256();
	__m256i lo = _mm256_set1_epi64x(r->lo), align = _mm256_set1_epi64x(bytes - 1), last;
	uint32_t ok = 0, g;

	if (r->len < bytes)
		return false;
	last = _mm256_set1_epi64x((r->len - bytes) ^ 1ull << 63);	/* no unsigned > in AVX2 */
	for (g = 0; g < 8; g++) {
		__m256i a = _mm256_load_si256((const __m256i *)&w->addr[4 * g]), in, out;

		a = _mm256_sub_epi64(a, lo);
		in = _mm256_cmpeq_epi64(_mm256_and_si256(a, align), zero);
		out = _mm256_cmpgt_epi64(_mm256_xor_si256(a, sign), last);
		in = _mm256_andnot_si256(out, in);
		ok |= (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(in)) << 4 * g;
	}
	return !(mask & ~ok);
}

/* Whether eight lanes' addresses increase by @step. */
WIDE static bool in_steps(const uint64_t *addr, uint64_t step)
{
	__m256i a0 = _mm256_set1_epi64x(addr[0]), d = _mm256_set_epi64x(3 * step, 2 * step, step, 0);
	__m256i lo = _mm256_load_si256((const __m256i *)addr);
	__m256i hi = _mm256_load_si256((const __m256i *)(addr + 4));

	a0 = _mm256_add_epi64(a0, d);
	lo = _mm256_xor_si256(lo, a0);
	hi = _mm256_xor_si256(hi, _mm256_add_epi64(a0, _mm256_set1_epi64x(4 * step)));
	lo = _mm256_or_si256(lo, hi);
	return _mm256_testz_si256(lo, lo);
}

/* Loads for eight lanes: from one address, from consecutive ones, or from any. */
WIDE static void load8_4(const struct rt_warp *w, uint32_t *y, uint32_t m, const struct row *r,
			 uint32_t g)
{
	const uint64_t *addr = &w->addr[8 * g];
	const uint8_t *base = r->host - r->lo, *first = base + addr[0];
	uint32_t l;

	if (m == 255 && in_steps(addr, 0)) {
		_mm256_store_si256((__m256i *)y, _mm256_set1_epi32(*(const int *)first));
		return;
	}
	if (m == 255 && in_steps(addr, 4)) {
		_mm256_store_si256((__m256i *)y, _mm256_loadu_si256((const __m256i *)first));
		return;
	}
	for (l = 0; l < 8; l++)
		if (m >> l & 1)
			y[l] = *(const uint32_t *)(base + addr[l]);
}

WIDE static void load8_8(const struct rt_warp *w, uint64_t *y, uint32_t m, const struct row *r,
			 uint32_t g)
{
	const uint64_t *addr = &w->addr[8 * g];
	const uint8_t *base = r->host - r->lo, *first = base + addr[0];
	uint32_t l;

	if (m == 255 && in_steps(addr, 0)) {
		for (l = 0; l < 8; l++)
			y[l] = *(const uint64_t *)first;
		return;
	}
	for (l = 0; l < 8; l++)
		if (m >> l & 1)
			y[l] = *(const uint64_t *)(base + addr[l]);
}

/* Four lanes with four words each: a transposition. */
static void load4_16(const struct rt_warp *w, uint32_t *y, const struct row *r, uint32_t l)
{
	const uint8_t *base = r->host - r->lo;
	__m128 v[4];
	int k;

	for (k = 0; k < 4; k++)
		v[k] = _mm_load_ps((const float *)(base + w->addr[l + k]));
	_MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
	for (k = 0; k < 4; k++)
		_mm_store_ps((float *)&y[32 * k + l], v[k]);
}

static void load_any(const struct rt_warp *w, uint8_t *y, uint32_t mask, const struct row *r,
		     uint32_t size, uint32_t n)
{
	const uint8_t *base = r->host - r->lo;
	uint32_t k;

	if (size == 4)
		EACH(mask, l)
			for (k = 0; k < n; k++)
				((uint32_t *)y)[32 * k + l] = ((const uint32_t *)(base + w->addr[l]))[k];
	else
		EACH(mask, l)
			for (k = 0; k < n; k++)
				((uint64_t *)y)[32 * k + l] = ((const uint64_t *)(base + w->addr[l]))[k];
}

/* False: a lane's address needs the slow path; it may be an error. */
static bool quick_ld(struct rt_warp *w, uint32_t mask, uint32_t size, uint32_t n, uint32_t space)
{
	struct row r;
	uint32_t g;

	if (!mask || !wide || (size != 4 && size != 8) || size * n > 32 ||
	    !find_row(w, mask, space, &r) || !row_holds(w, mask, &r, size * n))
		return false;
	if (n == 1) {
		for (g = 0; g < 4; g++)
			if (mask >> 8 * g & 255) {
				if (size == 4)
					load8_4(w, w->y.u32 + 8 * g, mask >> 8 * g & 255, &r, g);
				else
					load8_8(w, w->y.u64 + 8 * g, mask >> 8 * g & 255, &r, g);
			}
	} else if (n == 4 && size == 4 && mask == ~0u) {
		for (g = 0; g < 32; g += 4)
			load4_16(w, w->y.u32, &r, g);
	} else {
		load_any(w, w->y.b, mask, &r, size, n);
	}
	return true;
}

static bool quick_st(struct rt_warp *w, uint32_t mask, uint32_t size, uint32_t n, uint32_t space)
{
	struct row r;
	uint8_t *base;
	uint32_t k;

	if (!mask || !wide || space == RT_PARAM || (size != 4 && size != 8) || size * n > 32 ||
	    !find_row(w, mask, space, &r) || !row_holds(w, mask, &r, size * n))
		return false;
	base = r.host - r.lo;
	if (size == 4)
		EACH(mask, l)
			for (k = 0; k < n; k++)
				((volatile uint32_t *)(base + w->addr[l]))[k] = w->x.u32[32 * k + l];
	else
		EACH(mask, l)
			for (k = 0; k < n; k++)
				((volatile uint64_t *)(base + w->addr[l]))[k] = w->x.u64[32 * k + l];
	return true;
}

/* ---- lane by lane ---- */

/* Parameters need no alignment. */
#define LOAD_CASE(bytes, type)							\
	case bytes:								\
		EACH(mask, l) {							\
			typedef type any_place __attribute__((aligned(1)));	\
			const volatile any_place *p = (void *)rt_resolve(w, w->addr[l],	\
							bytes * n, space, l, false);	\
			for (k = 0; k < n; k++)					\
				((type *)w->y.b)[k * 32 + l] = p[k];		\
		}								\
		break

static void rt_ld(struct rt_warp *w, uint32_t mask, uint32_t desc)
{
	uint32_t size = desc & 255, n = desc >> 8 & 255, space = desc >> 16, k;

	if (quick_ld(w, mask, size, n, space))
		return;
	switch (size) {
	LOAD_CASE(1, uint8_t);
	LOAD_CASE(2, uint16_t);
	LOAD_CASE(4, uint32_t);
	LOAD_CASE(8, uint64_t);
	case 16:
		EACH(mask, l)
			memcpy(w->y.b + l * 16, rt_resolve(w, w->addr[l], 16 * n, space, l, false),
			       16);
		break;
	}
}

#define STORE_CASE(bytes, type)							\
	case bytes:								\
		EACH(mask, l) {							\
			volatile type *p = (void *)rt_resolve(w, w->addr[l], bytes * n, space,	\
							      l, true);		\
			for (k = 0; k < n; k++)					\
				p[k] = ((type *)w->x.b)[k * 32 + l];		\
		}								\
		break

static void rt_st(struct rt_warp *w, uint32_t mask, uint32_t desc)
{
	uint32_t size = desc & 255, n = desc >> 8 & 255, space = desc >> 16, k;

	if (quick_st(w, mask, size, n, space))
		return;
	switch (size) {
	STORE_CASE(1, uint8_t);
	STORE_CASE(2, uint16_t);
	STORE_CASE(4, uint32_t);
	STORE_CASE(8, uint64_t);
	case 16:
		EACH(mask, l)
			memcpy(rt_resolve(w, w->addr[l], 16 * n, space, l, true), w->x.b + l * 16,
			       16);
		break;
	}
}

static void rt_lcopy(struct rt_warp *w, uint32_t mask, uint64_t dst, uint64_t src, uint64_t size)
{
	EACH(mask, l) {
		if (size > w->local_stride || dst > w->local_stride - size ||
		    src > w->local_stride - size)
			rt_fault(w, PTX_STACK, 0, l, NULL);
		memmove(w->local + l * w->local_stride + dst, w->local + l * w->local_stride + src,
			size);
	}
}

static void rt_stack(struct rt_warp *w, uint64_t need)
{
	const struct rt_fiber *f = w->block->worker->fiber;

	/* keeps stack for C functions: a fault cannot abandon one that may hold a lock */
	if (need > w->local_stride || (char *)__builtin_frame_address(0) - f->stack < STACK_LEFT)
		rt_fault(w, PTX_STACK, 0, __builtin_ctz(w->alive | 1u << 31), NULL);
}

static void rt_cp_async(struct rt_warp *w, uint32_t mask, uint32_t size)
{
	EACH(mask, l) {
		uint8_t *d = rt_resolve(w, w->addr[l], size, RT_SHARED, l, true);
		uint32_t n = w->x.u32[256 + l];

		n = n > size ? size : n;
		if (n == size) {
			memcpy(d, rt_resolve(w, w->x.u64[l], size, RT_GLOBAL, l, false), size);
		} else {
			uint32_t i;

			memset(d, 0, size);
			for (i = 0; i < n; i++)
				d[i] = *rt_resolve(w, w->x.u64[l] + i, 1, RT_GLOBAL, l, false);
		}
	}
}

/* ---- atomics ---- */

float rt_half_value(uint16_t h, bool bf)
{
	uint32_t b;
	float f;

	if (bf) {
		b = (uint32_t)h << 16;
		memcpy(&f, &b, 4);
		return f;
	}
	{
		uint32_t e = h >> 10 & 31, m = h & 1023, s = (uint32_t)(h >> 15) << 31;

		if (e == 31)
			b = s | 0x7f800000 | m << 13;
		else if (e)
			b = s | (e + 112) << 23 | m << 13;
		else {
			f = m * 0x1p-24f;
			return h >> 15 ? -f : f;
		}
	}
	memcpy(&f, &b, 4);
	return f;
}

uint16_t rt_half_bits(float f, bool bf)
{
	uint32_t b, s, r;

	memcpy(&b, &f, 4);
	if (f != f)
		return 0x7fff;
	if (bf)
		return (b + 0x7fff + (b >> 16 & 1)) >> 16;
	s = b >> 16 & 0x8000;
	b &= 0x7fffffff;
	if (b >= 0x47800000)
		return s | 0x7c00;
	if (b < 0x38800000) {		/* subnormal: scale, and let the FPU round */
		float a;
		uint32_t x;

		memcpy(&a, &b, 4);
		a += 0.5f;		/* ulp of 0.5 is 2^-24 */
		memcpy(&x, &a, 4);
		return s | (x - 0x3f000000);
	}
	r = b + 0xfff + (b >> 13 & 1);
	return r >= 0x47800000 ? s | 0x7c00 : s | (r - 0x38000000) >> 13;
}

static uint16_t half_atom(int op, uint16_t a, uint16_t b, bool bf)
{
	float x = rt_half_value(a, bf), y = rt_half_value(b, bf);

	switch (op) {
	case RT_ADD: return rt_half_bits(x + y, bf);
	case RT_MIN: return x != x ? b : y != y ? a : y < x || (x == y && b >> 15) ? b : a;
	case RT_MAX: return x != x ? b : y != y ? a : y > x || (x == y && a >> 15) ? b : a;
	}
	return b;
}

static uint64_t combine(int op, int type, uint64_t old, uint64_t b, uint64_t c)
{
	float f, g;
	double d, e;
	uint32_t r;
	uint64_t q;

	switch (type) {
	case RT_F32:
		memcpy(&f, &old, 4);
		memcpy(&g, &b, 4);
		f = op == RT_ADD ? f + g : op == RT_MIN ? fminf(f, g) : op == RT_MAX ? fmaxf(f, g) : g;
		memcpy(&r, &f, 4);
		return r;
	case RT_F64:
		memcpy(&d, &old, 8);
		memcpy(&e, &b, 8);
		d = op == RT_ADD ? d + e : op == RT_MIN ? fmin(d, e) : op == RT_MAX ? fmax(d, e) : e;
		memcpy(&q, &d, 8);
		return q;
	case RT_F16:
	case RT_BF16:
		return half_atom(op, old, b, type == RT_BF16);
	case RT_F16X2:
	case RT_BF16X2:
		r = half_atom(op, old, b, type == RT_BF16X2);
		return r | (uint32_t)half_atom(op, old >> 16, b >> 16, type == RT_BF16X2) << 16;
	}
	switch (op) {
	case RT_ADD: return old + b;
	case RT_AND: return old & b;
	case RT_OR: return old | b;
	case RT_XOR: return old ^ b;
	case RT_EXCH: return b;
	case RT_CAS: return old == b ? c : old;
	case RT_INC: return (uint32_t)old >= (uint32_t)b ? 0 : old + 1;
	case RT_DEC: return !old || (uint32_t)old > (uint32_t)b ? b : old - 1;
	case RT_MIN:
		if (type == RT_S32)
			return (int32_t)old < (int32_t)b ? old : b;
		if (type == RT_S64)
			return (int64_t)old < (int64_t)b ? old : b;
		return old < b ? old : b;
	case RT_MAX:
		if (type == RT_S32)
			return (int32_t)old > (int32_t)b ? old : b;
		if (type == RT_S64)
			return (int64_t)old > (int64_t)b ? old : b;
		return old > b ? old : b;
	}
	return old;
}

#define ATOM_CASE(bytes, type)							\
	case bytes: {								\
		/* pairs with atomics of the kernel's other threads */		\
		type *p = (type *)mem, old = __atomic_load_n(p, __ATOMIC_SEQ_CST), new;	\
										\
		do								\
			new = combine(op, ty, old, b, c);			\
		while (!__atomic_compare_exchange_n(p, &old, new, false, __ATOMIC_SEQ_CST,	\
						    __ATOMIC_SEQ_CST));		\
		return old;							\
	}

uint64_t rt_atom_one(uint8_t *mem, uint32_t size, int op, int ty, uint64_t b, uint64_t c)
{
	switch (size) {
	ATOM_CASE(2, uint16_t)
	ATOM_CASE(4, uint32_t)
	ATOM_CASE(8, uint64_t)
	}
	return 0;
}

/* Every CPU with the required vector instructions has CMPXCHG16B. Unlike a lock, it leaves nothing
 * behind when it faults. */
static bool cas128(uint8_t *p, uint64_t old[2], const uint64_t new[2])
{
	bool done;

	__asm__ volatile("lock cmpxchg16b %1"
			 : "=@ccz" (done), "+m" (*(unsigned __int128 *)p), "+a" (old[0]),
			   "+d" (old[1])
			 : "b" (new[0]), "c" (new[1])
			 : "memory");
	return done;
}

/* PTX has only exchange and compare-and-swap of 128 bits. */
static void atom128(struct rt_warp *w, uint32_t mask, int op, int space)
{
	EACH(mask, l) {
		uint8_t *p = rt_resolve(w, w->addr[l], 16, space, l, true);
		uint64_t old[2] = { 0, 0 }, new[2];

		memcpy(new, w->x.b + 16 * l + (op == RT_EXCH ? 0 : 1024), 16);
		if (op == RT_EXCH) {
			while (!cas128(p, old, new))
				;
		} else {
			memcpy(old, w->x.b + 16 * l, 16);
			cas128(p, old, new);
		}
		memcpy(w->y.b + 16 * l, old, 16);
	}
}

static uint64_t lane_x(const uint8_t *x, uint32_t size, uint32_t l)
{
	uint64_t v = 0;

	memcpy(&v, x + (size_t)l * size, size);
	return v;
}

/* In order of lanes, so the result is reproducible. */
static void rt_atom(struct rt_warp *w, uint32_t mask, uint32_t op, uint32_t ty, uint32_t desc)
{
	uint32_t size = desc & 255, n = desc >> 8 & 255, space = desc >> 16, k;

	if (size == 16) {
		atom128(w, mask, op, space);
		return;
	}
	EACH(mask, l) {
		uint8_t *p = rt_resolve(w, w->addr[l], size * n, space, l, true);

		for (k = 0; k < n; k++) {
			uint64_t b = lane_x(w->x.b + (size_t)k * 32 * size, size, l);
			uint64_t c = op == RT_CAS ? lane_x(w->x.b + 1024, size, l) : 0;
			uint64_t old = rt_atom_one(p + (size_t)k * size, size, op, ty, b, c);

			memcpy(w->y.b + ((size_t)k * 32 + l) * size, &old, size);
		}
	}
}

const struct rt_symbol rt_mem_symbols[] = {
	{ "rt_ld", rt_ld }, { "rt_st", rt_st }, { "rt_atom", rt_atom }, { "rt_lcopy", rt_lcopy },
	{ "rt_stack", rt_stack }, { "rt_cp_async", rt_cp_async }, { NULL, NULL },
};
