// SPDX-License-Identifier: Apache-2.0
/*
 * cross.c - waits for another device's events, and copies between devices of the process
 *
 * Each device has its own proxy, so no driver orders the work of two devices. All devices reach the
 * arena: a stream of one device stores a value in a word there, and a stream of the other waits for
 * that value. If it will not come, the proxies tell each other so by the word (struct sv_cross_word). The program
 * itself waits only while no word is free.
 *
 *   stream ── word ──► helper of the source's device: copy to a slot ── word ──►
 *             helper of the destination's device: copy from the slot ── word ──► stream
 *
 * A helper is a stream of the interposer. A crossing takes an idle helper or makes one, so that it does
 * not wait for other crossings; only when a device has HELPERS_MAX busy ones is one of these taken.
 */
#include "arena.h"
#include "context.h"
#include "cross.h"
#include "memory_i.h"
#include "object.h"
#include "send.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WORDS		512
#define HELPERS_MAX	32		/* of a device */
#define PIECES		4		/* slots of a copy */

/* One use of a word. It is over when the word's `passed` is at least `value`. */
struct crossing {
	struct sv_cross_word *word;
	uint64_t value;
};

struct helper {
	uint64_t stream;	/* its handle; 0: none. It ends with its context */
	const struct context *ctx;
	struct crossing last;
};

struct slots {			/* arena memory of a copy that may be under way */
	struct slots *next;
	uint64_t off;
	struct crossing last;
};

struct crossings {		/* locks.crossings */
	struct sv_cross_word *word;
	uint64_t value[WORDS];	/* the latest one given out */
	uint32_t next;
	struct helper helper[SV_DEVICES_MAX][HELPERS_MAX];
	uint32_t turn;		/* of helpers that are taken although they may have work */
	struct slots *slots;
};

static bool over(const struct crossing *c)
{
	/* pairs with release() */
	return !c->word || __atomic_load_n(&c->word->passed, __ATOMIC_ACQUIRE) >= c->value;
}

static CUresult begin(struct crossings **out)
{
	struct crossings *new;
	uint64_t off;

	/* pairs with the store below */
	*out = __atomic_load_n(&process.crossings, __ATOMIC_ACQUIRE);
	if (*out)
		return CUDA_SUCCESS;
	TRY(arena_alloc(WORDS * sizeof(struct sv_cross_word), 64, NULL, &off));
	new = calloc(1, sizeof(*new));
	if (new) {
		new->word = arena_at(off);
		memset(new->word, 0, WORDS * sizeof(struct sv_cross_word));
	}
	lock_take(&process.locks.crossings);
	*out = process.crossings ?: new;
	__atomic_store_n(&process.crossings, *out, __ATOMIC_RELEASE);
	lock_drop(&process.locks.crossings);
	if (*out != new) {
		arena_free(off);
		free(new);
	}
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool try_word(struct crossings *x, struct crossing *c)
{
	for (uint32_t i = 0; i < WORDS; i++, x->next++) {
		uint32_t w = x->next % WORDS;

		*c = (struct crossing){ &x->word[w], x->value[w] };
		if (over(c)) {
			c->value = ++x->value[w];
			x->next++;
			return true;
		}
	}
	return false;
}

/* Takes a free word; while all are in use, waits for the devices. The sticky error of `here`. */
static CUresult take_word(struct crossings *x, struct crossing *c)
{
	static const struct timespec pause = { .tv_nsec = 50000 };
	bool taken;

	for (;;) {
		lock_take(&process.locks.crossings);
		taken = try_word(x, c);
		lock_drop(&process.locks.crossings);
		if (taken)
			return CUDA_SUCCESS;
		TRY(send_latched());
		lock_may_wait("a free word for a crossing");
		nanosleep(&pause, NULL);
	}
}

/* ------------------------------------------------------------------------------------ order */

static CUresult store_word(struct stream *s, uint64_t *at, uint64_t value)
{
	struct sv_cuStreamWriteValue64_v2 a = { .ctx = s->o.ctx->o.handle, .stream = s->wire,
						.addr = sv_u64(at), .value = value };

	ON(s->o.ctx->session);
	return send_async(SV_OP_cuStreamWriteValue64_v2, &a, sizeof(a), NULL, 0);
}

static CUresult send_crossing(uint16_t op, struct stream *s, const struct crossing *c)
{
	struct sv_cross a = { .ctx = s->o.ctx->o.handle, .stream = s->wire, .word = (uint8_t *)c->word - process.arena,
			      .value = c->value };

	ON(s->o.ctx->session);
	return send_async(op, &a, sizeof(a), NULL, 0);
}

/* Where collectives may fail, the proxies tell each other of what stands. */
static CUresult arrive(struct stream *s, const struct crossing *c)
{
	return process_has_posted() ? send_crossing(SV_OP_X_CROSS_TELL, s, c) :
				 store_word(s, &c->word->arrived, c->value);
}

static CUresult wait_word(struct stream *s, const struct crossing *c)
{
	struct sv_cuStreamWaitValue64_v2 a = { .ctx = s->o.ctx->o.handle, .stream = s->wire,
					       .addr = sv_u64(&c->word->arrived), .value = c->value,
					       .flags = CU_STREAM_WAIT_VALUE_GEQ };
	ON(s->o.ctx->session);

	if (process_has_posted())
		TRY(send_crossing(SV_OP_X_CROSS_WAIT, s, c));
	else
		TRY(send_async(SV_OP_cuStreamWaitValue64_v2, &a, sizeof(a), NULL, 0));
	return store_word(s, &c->word->passed, c->value);
}

/* The word is free again, since no device is going to use it for this crossing. */
static void release(const struct crossing *c)
{
	__atomic_store_n(&c->word->passed, c->value, __ATOMIC_RELEASE);
}

/*
 * Gives up a crossing whose wait failed. s has been told to store into the word, and may do so late; s
 * itself frees the word behind that store, which could otherwise overwrite the word's next value.
 */
static void abandon(struct stream *s, const struct crossing *c)
{
	if (store_word(s, &c->word->passed, c->value))
		release(c);	/* the context is broken, and stores nothing more */
}

/* Work enqueued into `to` from now on waits for what is in `from`. */
static CUresult cross(struct stream *from, struct stream *to, const struct crossing *c)
{
	CUresult rc = arrive(from, c);

	if (rc) {
		release(c);
		return rc;
	}
	rc = wait_word(to, c);
	if (rc)
		abandon(from, c);
	return rc;
}

static CUresult order(struct crossings *x, struct stream *from, struct stream *to,
		      struct crossing *c)
{
	TRY(take_word(x, c));
	return cross(from, to, c);
}

/* ---------------------------------------------------------------------------------- helpers */

static struct stream *of(const struct helper *h, const struct context *ctx)
{
	struct stream *s = h->ctx == ctx ? obj_find(SV_T_CUstream, h->stream) : NULL;

	return s && s->o.ctx == ctx ? s : NULL;
}

/* An idle helper in the context, or a place for a new one, or one that may have work. */
static struct helper *choose(struct crossings *x, const struct context *ctx)
{
	struct helper *all = x->helper[device_of(ctx->session)], *room = NULL;

	for (int i = 0; i < HELPERS_MAX; i++) {
		if (of(&all[i], ctx) && over(&all[i].last))
			return &all[i];
		if (!room && !obj_find(SV_T_CUstream, all[i].stream))
			room = &all[i];
	}
	return room ?: &all[x->turn++ % HELPERS_MAX];
}

/* A helper in a context, in use until c is over. */
static CUresult take_helper(struct crossings *x, struct context *ctx, const struct crossing *c,
			    struct helper **h, struct stream **out)
{
	CUresult rc;

	ON(ctx->session);
	lock_take(&process.locks.crossings);
	*h = choose(x, ctx);
	*out = of(*h, ctx);
	(*h)->last = *c;
	lock_drop(&process.locks.crossings);
	if (*out)
		return CUDA_SUCCESS;
	rc = stream_new(ctx, CU_STREAM_NON_BLOCKING, out);
	if (rc) {
		release(c);
		return rc;
	}
	lock_take(&process.locks.crossings);
	(*h)->ctx = ctx;
	(*h)->stream = (*out)->wire;
	lock_drop(&process.locks.crossings);
	return CUDA_SUCCESS;
}

/*
 * The same, behind what is in `from` and, for a copy that the program waits for, behind what is in its
 * context's legacy stream ("serialized", cuMemcpyPeer). helper_done() says later what its last crossing is.
 */
static CUresult helper_behind(struct crossings *x, struct context *ctx, struct stream *from, bool sync,
			      struct helper **h, struct stream **out)
{
	struct crossing c;

	TRY(take_word(x, &c));
	TRY(take_helper(x, ctx, &c, h, out));
	TRY(cross(from, *out, &c));
	return sync && from != &ctx->legacy ? order(x, &ctx->legacy, *out, &c) : CUDA_SUCCESS;
}

static void helper_done(struct helper *h, const struct crossing *last)
{
	lock_take(&process.locks.crossings);
	h->last = *last;
	lock_drop(&process.locks.crossings);
}

/* ----------------------------------------------------------------------------------- events */

CUresult cross_wait(struct stream *s, struct event *e)
{
	struct sv_cuStreamWaitEvent a = { .ctx = e->o.ctx->o.handle, .hEvent = e->o.handle };
	struct crossings *x;
	struct crossing c;
	struct helper *h;
	struct stream *on;
	CUresult rc;

	if (!e->o.ctx->live)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	TRY(begin(&x));
	TRY(take_word(x, &c));
	TRY(take_helper(x, e->o.ctx, &c, &h, &on));
	a.hStream = on->wire;
	{
		ON(e->o.ctx->session);
		rc = send_async(SV_OP_cuStreamWaitEvent, &a, sizeof(a), NULL, 0);
	}
	if (rc) {
		release(&c);
		return rc;
	}
	return cross(on, s, &c);
}

/* ----------------------------------------------------------------------------------- copies */

/* Free the slots of copies that are done. */
static void sweep(struct crossings *x)
{
	struct slots **p, *s, *done = NULL;

	lock_take(&process.locks.crossings);
	for (p = &x->slots; (s = *p);) {
		if (over(&s->last)) {
			*p = s->next;
			s->next = done;
			done = s;
		} else {
			p = &s->next;
		}
	}
	lock_drop(&process.locks.crossings);
	while ((s = done)) {
		done = s->next;
		arena_free(s->off);
		free(s);
	}
}

static CUresult move(struct cross *c, struct stream *s, uint64_t slot, bool in)
{
	ON(s->o.ctx->session);
	return c->move(c, s, slot, in);
}

/*
 * Copies the current piece through a slot. *free: the crossing after which the slot is free, or its word
 * is NULL. again: a later piece uses the slot, so *free becomes this piece's crossing.
 */
static CUresult one_piece(struct crossings *x, struct cross *c, struct stream *from, struct stream *to,
			  uint64_t slot, bool again, struct crossing *free, struct crossing *last)
{
	struct crossing full;
	CUresult rc;

	if (free->word) {
		full = *free;
		free->word = NULL;
		rc = wait_word(from, &full);
		if (rc) {
			abandon(to, &full);
			return rc;
		}
	}
	TRY(move(c, from, slot, true));
	TRY(order(x, from, to, last));
	TRY(move(c, to, slot, false));
	if (!again)
		return CUDA_SUCCESS;
	TRY(take_word(x, &full));
	rc = arrive(to, &full);
	if (rc)
		release(&full);
	else
		*free = full;
	return rc;
}

/* Copies through slots; *last is a crossing of the last piece. */
static CUresult through_slots(struct crossings *x, struct cross *c, struct stream *from,
			      struct stream *to, uint64_t slots, uint64_t room, struct crossing *last)
{
	struct crossing free[PIECES] = { { NULL, 0 } };
	CUresult rc = CUDA_SUCCESS;

	for (uint64_t i = 0; i < c->pieces && !rc; i++) {
		uint64_t slot = sv_u64(arena_at(slots)) + i % PIECES * room;

		c->next(c);
		rc = one_piece(x, c, from, to, slot, c->pieces - i > PIECES, &free[i % PIECES], last);
	}
	for (int i = 0; i < PIECES; i++)
		if (free[i].word)
			abandon(to, &free[i]);
	return rc;
}

static CUresult copy_between(struct crossings *x, struct stream *s, struct cross *c, bool sync)
{
	uint64_t room = c->len < CROSS_PIECE ? c->len : CROSS_PIECE;
	struct stream *from, *to;
	struct helper *hf, *hd;
	struct crossing last;
	struct slots *slots;
	CUresult rc;

	sweep(x);
	TRY(helper_behind(x, c->src, s, sync, &hf, &from));
	TRY(helper_behind(x, c->dst, s, sync, &hd, &to));
	slots = calloc(1, sizeof(*slots));
	if (!slots)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = arena_alloc((c->pieces < PIECES ? c->pieces : PIECES) * room, 64, NULL, &slots->off);
	if (rc) {
		free(slots);
		return rc;
	}
	rc = through_slots(x, c, from, to, slots->off, room, &last);
	if (!rc)
		rc = order(x, to, s, &last);
	if (rc)
		return rc;	/* a session broke meanwhile: its copies may use the slots, which are lost */
	helper_done(hf, &last);
	helper_done(hd, &last);
	slots->last = last;
	lock_take(&process.locks.crossings);
	slots->next = x->slots;
	x->slots = slots;
	lock_drop(&process.locks.crossings);
	return CUDA_SUCCESS;
}

/* Has `work` enqueue its own into a stream of ctx, behind what is in s and before what will be. */
static CUresult abroad(struct crossings *x, struct stream *s, struct context *ctx, bool sync,
		       cross_work_fn *work, void *arg)
{
	struct crossing last;
	struct helper *h;
	struct stream *on;

	TRY(helper_behind(x, ctx, s, sync, &h, &on));
	{
		ON(ctx->session);
		TRY(work(arg, on, sync));
	}
	TRY(order(x, on, s, &last));
	helper_done(h, &last);
	return CUDA_SUCCESS;
}

CUresult cross_home(const struct memory *m, struct context **ctx)
{
	*ctx = NULL;
	if (!m->session)
		return CUDA_SUCCESS;
	*ctx = m->ctx && m->ctx->live ? m->ctx : process.primary[device_of(m->session)];
	return *ctx && (*ctx)->live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cross_look(uint64_t addr, uint64_t len, struct context **ctx)
{
	struct memory m;

	*ctx = NULL;
	if (!memory_find(addr, &m))
		return session_at(addr) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	if (!m.session)
		return CUDA_SUCCESS;
	TRY(cross_home(&m, ctx));
	if (addr - m.base > m.len || len > m.len - (addr - m.base))
		return CUDA_ERROR_INVALID_VALUE;
	return m.kind == MEMORY_RESERVED ? vmm_range(addr, len) : CUDA_SUCCESS;
}

CUresult cross_copy(struct stream *s, struct cross *c, bool sync)
{
	struct crossings *x;

	TRY(begin(&x));
	if (c->dst && c->src && c->dst->session != c->src->session)
		TRY(copy_between(x, s, c, sync));
	else
		TRY(abroad(x, s, c->dst ?: c->src, sync, c->all, c));
	return sync ? stream_sync(s->o.ctx, s) : CUDA_SUCCESS;
}

CUresult cross_work(struct stream *s, struct context *ctx, cross_work_fn *work, void *arg)
{
	struct crossings *x;

	TRY(begin(&x));
	return abroad(x, s, ctx, false, work, arg);
}
