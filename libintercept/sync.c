// SPDX-License-Identifier: Apache-2.0
/*
 * sync.c - waits and queries: what is known is not asked, and what follows from a wait
 *
 *   query, wait ─► known? ─────────────────────────────────────────► the answer
 *                    └─ no ─► cuStreamQuery, … ─► the answer, which is known from now on
 *                                └─ busy, asked again ─► SV_OP_X_WATCH_… ─► a word in memory says when it is done
 *
 * Nothing that has failed is known to be done, nor what waits for that.
 *
 * A program that has waited for the device may read __managed__ variables, and what it has freed in a stream's order may
 * be free now. The rooms that have these are told by hooks (hooks.h).
 */
#include "arena.h"
#include "context.h"
#include "hooks.h"
#include "object.h"
#include "send.h"

#include <stdlib.h>

static CUresult waited(struct context *ctx)
{
	/* pairs with table() in managedvar.c */
	if (likely(!__atomic_load_n(&here->managedvars, __ATOMIC_ACQUIRE)))
		return CUDA_SUCCESS;
	for (int i = 0; i < context_hooks_n; i++)
		if (context_hooks[i].waited)
			TRY(context_hooks[i].waited(ctx));
	return CUDA_SUCCESS;
}

/* Where the proxy looks for the end of a step, what is free does not stay mapped. */
static void trim(void)
{
	if (likely(!session_at_step()))
		return;
	for (int i = 0; i < context_hooks_n; i++)
		if (context_hooks[i].trim)
			context_hooks[i].trim(false);
}

CUresult sync_ask(uint16_t op, struct context *ctx, uint64_t on)
{
	struct sv_sync_on a = { ctx->o.handle, on };

	TRY(send_sync(op, &a, sizeof(a), NULL, 0, NULL, 0));
	return waited(ctx);
}

/* ------------------------------------------------------------------------------ what is known */

/* Relaxed: the program has put calls of two threads in order, if they have one. */
static inline uint64_t load(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline void store(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

/* Nothing has failed that the proxy would have to be asked for first, and there is one. */
static inline bool is_well(void)
{
	return load(&here->shared->late) == load(&here->late_seen) && !ring_proxy_gone(here->ring);
}

/*
 * The clock stands as long as nothing is sent and no host function begins. As long as it stands, what is done stays
 * done. What is busy may be done meanwhile, but only memory that the device writes can have told the program of that. A
 * request takes one tick: its answer holds at the time + 1, and if other threads have moved the clock on, that time is
 * over.
 */
static inline uint64_t clock_now(void)
{
	return ring_position(here->ring) + load(&process.called);
}

static inline bool was_synced(const struct stream *s, uint64_t now)
{
	return load(&s->synced_at) == now || load(&s->o.ctx->synced_at) == now;
}

/* Waits, unless the same wait has come back at this time. */
static CUresult sync_at(uint16_t op, struct context *ctx, uint64_t on, bool known, uint64_t now, uint64_t *synced_at)
{
	CUresult rc;

	if (known && is_well())
		return waited(ctx);
	rc = sync_ask(op, ctx, on);
	if (!rc)
		store(synced_at, now + 1);
	return rc;
}

CUresult context_sync(struct context *ctx)
{
	uint64_t now;

	ON(ctx->session);
	TRY(session_check());
	now = clock_now();
	TRY(sync_at(SV_OP_cuCtxSynchronize, ctx, 0, load(&ctx->synced_at) == now, now, &ctx->synced_at));
	trim();
	return CUDA_SUCCESS;
}

CUresult stream_sync(struct context *ctx, struct stream *s)
{
	uint64_t now = clock_now();
	CUresult rc = sync_at(SV_OP_cuStreamSynchronize, ctx, s->wire, was_synced(s, now), now, &s->synced_at);

	if (rc != CUDA_ERROR_EXTERNAL_DEVICE)	/* the stream stands */
		trim();
	return rc;
}

/* ------------------------------------------------------------------------------ watches */

/*
 * A program that polls is told in a word. The first request for something busy is a query; the second one, if the clock
 * stands, has the proxy watch it, and then the word is looked at. A word can be another watch's when its number has come.
 */
#define WORDS	512u
#define LOOKS	256u	/* then the proxy is asked again, whatever the word says */

struct watches {
	uint64_t off;			/* of the words, in the arena */
	uint32_t life;			/* as in sv_shared */
	unsigned int last;		/* word that was taken last */
	uint64_t number;		/* of the last watch */
	struct {			/* atomic */
		uint64_t number, of, at;	/* a watch of `of`, which says nothing at another time than `at` */
	} word[WORDS];
};

enum state { UNKNOWN, BUSY, DONE };

static inline uint64_t *word_at(const struct watches *w, unsigned int i)
{
	return (uint64_t *)arena_at(w->off) + i;
}

static struct watches *watches_begin(void)
{
	struct watches *w = calloc(1, sizeof(*w)), *was;

	if (!w || arena_zeroed(WORDS * sizeof(uint64_t), 64, &w->off)) {
		free(w);
		return NULL;
	}
	w->life = __atomic_load_n(&here->shared->life, __ATOMIC_RELAXED);
	lock_take(&here->locks.watches);
	was = here->watches;
	if (!was)
		__atomic_store_n(&here->watches, w, __ATOMIC_RELEASE);
	lock_drop(&here->locks.watches);
	if (!was)
		return w;
	arena_free(w->off);
	free(w);
	return was;
}

/* A new watch; 0: there is none free. */
static uint64_t watch_new(uint64_t of, struct sv_watch *a)
{
	/* pairs with watches_begin() */
	struct watches *w = __atomic_load_n(&here->watches, __ATOMIC_ACQUIRE) ?: watches_begin();
	uint64_t watch = 0;
	uint32_t life;

	if (!w)
		return 0;
	lock_take(&here->locks.watches);
	life = __atomic_load_n(&here->shared->life, __ATOMIC_RELAXED);
	if (w->life != life) {
		for (unsigned int i = 0; i < WORDS; i++) {
			store(&w->word[i].number, 0);
			store(word_at(w, i), 0);
		}
		__atomic_store_n(&w->life, life, __ATOMIC_RELAXED);
	}
	for (int tries = 0; tries < 16 && !watch; tries++) {
		unsigned int i = w->last = (w->last + 1) % WORDS;

		if (load(word_at(w, i)) == SV_WATCHED(w->word[i].number))
			continue;
		store(&w->word[i].number, ++w->number);
		store(&w->word[i].of, of);
		store(&w->word[i].at, 0);
		watch = w->number * WORDS + i;
		a->number = w->number;
		a->word = w->off + i * sizeof(uint64_t);
	}
	lock_drop(&here->locks.watches);
	return watch;
}

static enum state look(uint64_t watch, uint64_t of, uint64_t at)
{
	/* pairs with watches_begin() */
	const struct watches *w = __atomic_load_n(&here->watches, __ATOMIC_ACQUIRE);
	uint64_t number = watch / WORDS, v;
	unsigned int i = watch % WORDS;

	if (!watch || __atomic_load_n(&w->life, __ATOMIC_RELAXED) != __atomic_load_n(&here->shared->life, __ATOMIC_RELAXED) ||
	    load(&w->word[i].number) != number || load(&w->word[i].of) != of || load(&w->word[i].at) != at)
		return UNKNOWN;
	/* pairs with arrived() of the proxy */
	v = __atomic_load_n(word_at(w, i), __ATOMIC_ACQUIRE);
	return v == SV_WATCH_DONE(number) ? DONE : v == SV_WATCHED(number) ? BUSY : UNKNOWN;
}

static inline enum state known(const struct polled *p, uint64_t now)
{
	return load(&p->done_at) == now ? DONE : look(load(&p->watch), (uintptr_t)p, now);
}

/* Answers a query: from memory, or by the proxy, whose answer is noted. */
static CUresult answer(struct polled *p, bool event, enum state state, uint64_t now, struct context *ctx, uint64_t on)
{
	struct sv_watch a = { ctx->o.handle, on, 0, 0 };
	uint64_t watch = state == BUSY ? load(&p->watch) : 0;
	CUresult rc;

	if (state != UNKNOWN && is_well()) {
		if (state == DONE)
			return waited(ctx);
		if (++thread.looks % LOOKS)
			return CUDA_ERROR_NOT_READY;
	}
	if (!watch && load(&p->busy_at) == now) {
		watch = watch_new((uintptr_t)p, &a);
		now = clock_now();	/* the first one has memory pinned */
	}
	if (a.number)
		rc = send_sync(event ? SV_OP_X_WATCH_EVENT : SV_OP_X_WATCH_STREAM, &a, sizeof(a), NULL, 0, NULL, 0) ?:
		     waited(ctx);
	else
		rc = sync_ask(event ? SV_OP_cuEventQuery : SV_OP_cuStreamQuery, ctx, on);
	if (!rc)
		store(&p->done_at, now + 1);
	if (rc != CUDA_ERROR_NOT_READY)
		return rc;
	store(&p->busy_at, now + 1);
	if (watch) {
		store(&here->watches->word[watch % WORDS].at, now + 1);
		store(&p->watch, watch);
	}
	return rc;
}

CUresult stream_query(struct stream *s)
{
	uint64_t now = clock_now();
	enum state state = was_synced(s, now) ? DONE : known(&s->polled, now);

	return answer(&s->polled, false, state, now, s->o.ctx, s->wire);
}

/*
 * An event that is complete stays so until it is recorded again. Only the thread that has recorded it knows that its
 * request comes behind that record: another thread may be between the two.
 */
CUresult event_query(struct event *e)
{
	uint64_t now = clock_now(), me = (uintptr_t)&thread, by = load(&e->by);
	enum state state = by == (me | EVENT_DONE) && !e->elsewhere ? DONE : known(&e->polled, now);
	CUresult rc;

	if (e->peers)
		return sync_ask(SV_OP_X_IPC_QUERY, e->o.ctx, e->o.handle);
	rc = answer(&e->polled, true, state, now, e->o.ctx, e->o.handle);
	if (!rc && by == me)
		__atomic_compare_exchange_n(&e->by, &by, me | EVENT_DONE, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	return rc;
}
