// SPDX-License-Identifier: Apache-2.0
/*
 * warp.c - operations across lanes, and the scheduling of a diverged warp's groups
 */
#include <string.h>
#include <time.h>

#include "rt_i.h"

static uint32_t rt_shfl(struct rt_warp *w, uint32_t mask, uint32_t mode)
{
	uint32_t l, pred = 0;

	(void)mask;
	for (l = 0; l < 32; l++) {
		int b = w->x.u32[256 + l] & 31, c = w->x.u32[512 + l];
		int seg = c >> 8 & 31, clamp = c & 31, lane = l, src;
		int maxl = (lane & seg) | (clamp & ~seg), minl = lane & seg;
		bool in;

		switch (mode) {
		case 0: src = lane - b; in = src >= maxl; break;
		case 1: src = lane + b; in = src <= maxl; break;
		case 2: src = lane ^ b; in = src <= maxl; break;
		default: src = minl | (b & ~seg); in = src <= maxl;
		}
		w->y.u32[l] = w->x.u32[in ? src : lane];
		pred |= (uint32_t)in << l;
	}
	return pred;
}

/* x: values; x + 3072: each lane's members. Returns the lanes whose members all have one value. */
static uint32_t rt_match(struct rt_warp *w, uint32_t mask, uint32_t flags)
{
	bool all = flags & 2, wide = flags & 1;
	uint32_t l, k, same = 0;

	for (l = 0; l < 32; l++) {
		uint32_t members = w->x.u32[768 + l], r = 0;

		if (!(mask >> l & 1))
			continue;
		for (k = 0; k < 32; k++)
			if (members >> k & 1 && (wide ? w->x.u64[k] == w->x.u64[l] :
							w->x.u32[k] == w->x.u32[l]))
				r |= 1u << k;
		if (r == members)
			same |= 1u << l;
		w->y.u32[l] = all && r != members ? 0 : r;
	}
	return same;
}

static uint32_t redux_f32(struct rt_warp *w, uint32_t mask, int op, bool abs, bool nan)
{
	float best = 0;
	bool any = false, has_nan = false;
	uint32_t l, r;

	for (l = 0; l < 32; l++) {
		float f = w->x.f32[l];

		if (!(mask >> l & 1))
			continue;
		if (abs)
			f = __builtin_fabsf(f);
		if (f != f) {
			has_nan = true;
			continue;
		}
		if (!any || (op == RT_MIN ? f < best : f > best))
			best = f;
		any = true;
	}
	memcpy(&r, &best, 4);
	return (has_nan && nan) || !any ? 0x7fffffff : r;
}

static uint32_t redux_of(struct rt_warp *w, uint32_t mask, uint32_t op, uint32_t type)
{
	uint32_t l, r = 0;
	bool first = true;

	if (type == RT_F32)
		return redux_f32(w, mask, op & 255, op >> 8 & 1, op >> 9 & 1);
	for (l = 0; l < 32; l++) {
		uint32_t v = w->x.u32[l];

		if (!(mask >> l & 1))
			continue;
		if (first)
			r = v;
		else switch (op) {
		case RT_ADD: r += v; break;
		case RT_AND: r &= v; break;
		case RT_OR: r |= v; break;
		case RT_XOR: r ^= v; break;
		case RT_MIN: r = type == RT_S32 ? ((int32_t)v < (int32_t)r ? v : r) : v < r ? v : r; break;
		case RT_MAX: r = type == RT_S32 ? ((int32_t)v > (int32_t)r ? v : r) : v > r ? v : r; break;
		}
		first = false;
	}
	return r;
}

/* Members as for rt_match(); y: each lane's result. Returns the lowest lane's result. */
static uint32_t rt_redux(struct rt_warp *w, uint32_t mask, uint32_t op, uint32_t type)
{
	uint32_t left = mask, l, k, members, r, first = 0;

	while (left) {
		l = __builtin_ctz(left);
		members = w->x.u32[768 + l];
		r = redux_of(w, members & mask, op, type);
		if (left == mask)
			first = r;
		for (k = l; k < 32; k++)
			if (left >> k & 1 && w->x.u32[768 + k] == members) {
				w->y.u32[k] = r;
				left &= ~(1u << k);
			}
	}
	return first;
}

static uint64_t rt_clock(uint32_t global)
{
	struct timespec t;

	if (!global)
		return __builtin_ia32_rdtsc();
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/*
 * Picks the group that runs next: the one at the lowest stub that does not wait for other lanes at
 * a collective; after a rotation, the next one behind the group that was set aside.  When all
 * groups wait, the lowest is forced through its collective.
 */
static uint32_t rt_pick(struct rt_frame *f)
{
	uint32_t *deferred = f->pend + f->nstubs, i, best = RT_NONE, low = RT_NONE;

	if (f->defer >= 0)
		deferred[f->defer] = f->pend[f->defer];
	f->forced = 0;
	for (i = 0; i < f->nstubs; i++) {
		if (!f->pend[i])
			continue;
		if (low == RT_NONE)
			low = i;
		if (deferred[i] == f->pend[i])
			continue;
		if (best == RT_NONE || (f->rotate >= 0 && (int)best <= f->rotate &&
					(int)i > f->rotate))
			best = i;
		if (f->rotate < 0 || (int)best > f->rotate)
			break;
	}
	if (f->rotate >= 0 && best == (uint32_t)f->rotate && low < best &&
	    deferred[low] != f->pend[low])
		best = low;
	f->defer = f->rotate = -1;
	if (best == RT_NONE) {
		best = low;
		f->forced = 1;
	}
	if (best == RT_NONE)
		return RT_NONE;
	f->mask = f->pend[best];
	f->pend[best] = deferred[best] = 0;
	for (i = 0; i < f->nstubs && !f->pend[i]; i++)
		;
	f->minpend = i < f->nstubs ? i : RT_NONE;
	return best;
}

const struct rt_symbol rt_warp_symbols[] = {
	{ "rt_shfl", rt_shfl }, { "rt_match", rt_match }, { "rt_redux", rt_redux },
	{ "rt_clock", rt_clock }, { "rt_pick", rt_pick }, { NULL, NULL },
};
