// SPDX-License-Identifier: Apache-2.0
/*
 * event.c - times of events, kept across a dump: the time between two of them stays the same
 *
 * A dump notes for each event how long ago it was recorded (all are complete then). The restored
 * process records each event anew, so that it counts as recorded and complete, and notes the
 * driver's time of it. While the event has that time, it stands for the old recording. The clock
 * stands still between dump and restore. Times are milliseconds in a float, as in CUDA: an hour has
 * a resolution of a quarter of a millisecond.
 */
#include <stdlib.h>

#include "streams.h"

struct old {
	uint64_t handle;
	CUevent real;
	CUevent origin;		/* of its context: the restored clock begins there */
	float before;		/* ms from the recording to the dump */
	float stamp;		/* of the recording in this process, after origin */
};

static struct old *olds;
static size_t n, cap;
static CUevent origin;		/* of the context that was restored last */
static uint64_t origin_ctx;

static CUresult between(struct hal *h, float *ms, CUevent a, CUevent b)
{
	if (h->drv.cuEventElapsedTime_v2)
		return h->drv.cuEventElapsedTime_v2(ms, a, b);
	return h->drv.cuEventElapsedTime ? h->drv.cuEventElapsedTime(ms, a, b) :
					   CUDA_ERROR_NOT_SUPPORTED;
}

/* Makes an event in the current context, recorded and complete. */
static CUresult mark(struct hal *h, CUevent *e)
{
	CUresult r = h->drv.cuEventCreate ? h->drv.cuEventCreate(e, 0) : CUDA_ERROR_NOT_SUPPORTED;

	if (r)
		return r;
	lock_may_wait("the device");
	r = h->drv.cuEventRecord(*e, CU_STREAM_LEGACY);
	if (!r)
		r = h->drv.cuEventSynchronize(*e);
	if (r)
		h->drv.cuEventDestroy_v2(*e);
	return r;
}

/* The entry of an event that was not recorded again. Entries of destroyed events match none. */
static const struct old *old_of(struct hal *h, uint64_t handle, CUevent real)
{
	float ms;

	for (size_t i = 0; i < n; i++)
		if (olds[i].handle == handle && olds[i].real == real)
			return !between(h, &ms, olds[i].origin, real) && ms == olds[i].stamp ?
				&olds[i] : NULL;
	return NULL;
}

/* ------------------------------------------------------------------------------ dump, restore */

int event_mark(struct sv_session *s, CUevent *now)
{
	return mark(&s->hal, now) ? -EIO : 0;
}

void event_unmark(struct sv_session *s, CUevent now)
{
	s->hal.drv.cuEventDestroy_v2(now);
}

int event_before(struct sv_session *s, uint64_t handle, uint64_t real, CUevent now, float *ms)
{
	const struct old *o = old_of(&s->hal, handle, (CUevent)(uintptr_t)real);

	if (between(&s->hal, ms, o ? o->origin : (CUevent)(uintptr_t)real, now))
		return -ENOENT;
	*ms += o ? o->before : 0;
	return 0;
}

int event_restore(struct sv_session *s, uint64_t ctx, uint64_t handle, float before)
{
	struct hal *h = &s->hal;
	struct old o = { .handle = handle, .before = before };
	uint64_t real;
	int rc = sv_real(s, SV_T_CUevent, handle, 0, &real);

	if (rc)
		return -ESTALE;
	if (!origin || origin_ctx != ctx) {
		if (mark(h, &origin))
			return -EIO;
		origin_ctx = ctx;
	}
	o.real = (CUevent)(uintptr_t)real;
	o.origin = origin;
	if (n == cap) {
		size_t more = cap ? cap * 2 : 64;
		struct old *p = realloc(olds, more * sizeof(*p));

		if (!p)
			return -ENOMEM;
		olds = p;
		cap = more;
	}
	lock_may_wait("the device");
	if (h->drv.cuEventRecord(o.real, CU_STREAM_LEGACY) || h->drv.cuEventSynchronize(o.real) ||
	    between(h, &o.stamp, origin, o.real))
		return -EIO;
	olds[n++] = o;
	return 0;
}

/* ------------------------------------------------------------------------------ elapsed time */

int do_event_elapsed(struct call *k)
{
	const struct sv_cuEventElapsedTime *a = k->c.data;
	struct hal *h = &k->c.session->hal;
	const struct old *x, *y;
	uint64_t from, to;
	float ms, start, end;

	if (!n || sv_real(k->c.session, SV_T_CUevent, a->hStart, 0, &from) ||
	    sv_real(k->c.session, SV_T_CUevent, a->hEnd, 0, &to))
		return cuda_dispatch(&k->c);
	x = old_of(h, a->hStart, (CUevent)(uintptr_t)from);
	y = old_of(h, a->hEnd, (CUevent)(uintptr_t)to);
	if ((!x && !y) || between(h, &ms, (CUevent)(uintptr_t)from, (CUevent)(uintptr_t)to))
		return cuda_dispatch(&k->c);
	/* On this clock the dump is at 0, and so is the origin. */
	if ((!x && between(h, &start, y->origin, (CUevent)(uintptr_t)from)) ||
	    (!y && between(h, &end, x->origin, (CUevent)(uintptr_t)to)))
		return cuda_dispatch(&k->c);
	ms = (y ? -y->before : end) - (x ? -x->before : start);
	memcpy(k->c.reply, &ms, sizeof(ms));
	k->c.reply_len = sizeof(ms);
	return 0;
}
