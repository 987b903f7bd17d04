// SPDX-License-Identifier: Apache-2.0
/*
 * saved.c - the reader of a session's communicators in a checkpoint, which may be anybody's
 */
#include <errno.h>
#include <stdlib.h>

#include "board.h"
#include "park.h"
#include "saved.h"
#include "tree.h"

const void *saved_take(struct saved_bytes *f, uint64_t n)
{
	const void *p = f->p;
	uint64_t all = (n + 7) & ~7ull;

	if (n > f->left || all > f->left)
		return NULL;
	for (const uint8_t *pad = f->p + n; pad < f->p + all; pad++)
		if (*pad)
			return NULL;
	f->p += all;
	f->left -= all;
	return p;
}

const struct saved_call *saved_calls(struct saved_bytes *f, const struct saved_posted *p, struct saved_bytes *buffers)
{
	const struct saved_call *c = saved_take(f, (uint64_t)p->calls * sizeof(*c));

	*buffers = *f;
	for (uint32_t i = 0; c && i < p->calls; i++)
		if (c[i].buffer && !saved_take(f, c[i].buffer))
			return NULL;
	return c;
}

static const char *check_comm(const struct saved_comm *c, const struct saved_comm *before)
{
	bool listed = c->flags & C_LISTED, stands = c->flags & C_STANDS;

	if (c->flags & ~C_MASK || (stands && !(c->flags & C_JOINED)))
		return "the state of a communicator";
	if (!c->ranks || c->rank >= c->ranks || (c->ranks > BOARD_SEATS && (stands || !(c->flags & C_JOINED))))
		return "the ranks of a communicator";
	if (c->member == STEP_NONE && (stands || !(c->flags & C_JOINED)))
		return "the member of a communicator";
	/* Of one that has left the list records remain, which had been posted. */
	if (!listed && !(stands && c->flags & C_ENDING))
		return "the state of a communicator that has ended";
	if (listed && before && !(before->flags & C_LISTED))
		return "the order of communicators";
	if (listed && (!c->number || c->word % 8))
		return "the word of a communicator";
	for (int i = 0; i < ANSWERS; i++) {
		const struct saved_answer *a = &c->answer[i];

		if (a->pad || (!a->op && (a->seq || a->cpl)))
			return "an answer that is owed";
	}
	if (listed && ((c->answer[ANSWER_CREATED].op && c->flags & C_JOINED) ||
		       (c->answer[ANSWER_ENDED].op && !(c->flags & C_ENDING)) ||
		       (c->answer[ANSWER_ABORT].op && !(c->flags & C_ABORTED))))
		return "an answer that is owed";
	return NULL;
}

static const char *check_calls(const struct saved_posted *p, const struct saved_comm *of, struct saved_bytes *f)
{
	struct saved_bytes buffers, at = *f;
	const struct saved_call *c = saved_take(&at, (uint64_t)p->calls * sizeof(*c));
	bool any = false;

	for (uint32_t i = 0; c && i < p->calls; i++) {
		const struct step_call *call = &c[i].call;
		uint64_t size;

		if (call->kind >= STEP_KINDS || call->type >= TREE_TYPES || call->op >= TREE_OPS || call->zero ||
		    call->peer >= of->ranks || c[i].scale > SAVED_FACTORS ||
		    (call->op == TREE_PREMULSUM) != !!c[i].scale)
			return "a call";
		if (!c[i].buffer)
			continue;
		any = true;
		if (call->kind != STEP_SEND || c[i].buffer > STEP_BUFFERED ||
		    __builtin_mul_overflow(call->count, tree_leaf_size(call->type), &size) || size != c[i].buffer)
			return "what a call has sent";
	}
	if (!c || !saved_calls(f, p, &buffers))
		return "the size of a record";
	return p->flags & P_BEGUN && !any ? "a record that has ended" : NULL;
}

static const char *check_posted(const struct saved_head *h, const struct saved_comm *comms, struct saved_bytes *f)
{
	uint8_t slots[SAVED_SLOTS] = { 0 };
	uint64_t last = 0;

	for (uint32_t i = 0; i < h->posted; i++) {
		const struct saved_posted *p = saved_take(f, sizeof(*p));
		bool begun = p && p->flags & P_BEGUN;
		const char *bad;

		if (!p)
			return "the size of a record";
		if (p->flags & ~P_MASK || begun != !!(p->flags & P_ENDED) || p->pad || (begun && p->stream) ||
		    (p->code && p->code != STEP_SYSTEM && p->code != STEP_INVALID_USAGE && p->code != STEP_REMOTE) ||
		    (p->code && !begun) || (begun && p->flags & P_AHEAD))
			return "the state of a record";
		if (i && p->seq <= last)
			return "the order of records";
		last = p->seq;
		if (p->comm >= h->comms || !(comms[p->comm].flags & C_STANDS))
			return "the communicator of a record";
		if (p->slot >= SAVED_SLOTS || slots[p->slot]++ || p->number != h->numbers[p->slot])
			return "the slot of a record";
		if (!p->calls || p->calls > SAVED_CALLS)
			return "the calls of a record";
		bad = check_calls(p, &comms[p->comm], f);
		if (bad)
			return bad;
	}
	return NULL;
}

static const char *check_items(const struct saved_head *h, struct saved_bytes *f)
{
	uint64_t last = 0;
	bool any = false;

	for (uint32_t i = 0; i < h->items; i++) {
		const struct saved_item *it = saved_take(f, sizeof(*it));

		if (!it || !saved_take(f, it->len))
			return "the size of what is parked";
		if (it->op == PARK_RECORDED) {
			if (it->seq || it->cpl || it->len)
				return "what is parked";
			continue;
		}
		if (any && it->seq <= last)
			return "the order of what is parked";
		any = true;
		last = it->seq;
	}
	return NULL;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* The client names each by a number of its own. */
static int check_numbers(const struct saved_comm *comms, uint32_t n, const char **why)
{
	uint64_t *number = malloc(n * sizeof(*number) + 1);
	uint32_t i;

	if (!number)
		return -ENOMEM;
	for (i = 0; i < n && comms[i].flags & C_LISTED; i++)
		number[i] = comms[i].number;
	n = i;
	qsort(number, n, sizeof(*number), by_number);
	for (i = 1; i < n && number[i] != number[i - 1]; i++)
		;
	free(number);
	if (i >= n)
		return 0;
	*why = "two communicators of one number";
	return -EBADMSG;
}

int saved_check(const void *bytes, size_t len, const struct saved_head **out, const char **why)
{
	struct saved_bytes f = { bytes, len };
	const struct saved_head *h = saved_take(&f, sizeof(*h));
	const struct saved_comm *comms;

	*out = h;
	*why = "its head";
	if (!h || h->magic != SAVED_MAGIC)
		return -EBADMSG;
	if (h->version != SAVED_VERSION)
		return -EPROTONOSUPPORT;
	if (h->slots != SAVED_SLOTS || h->flags & ~H_LEFT || h->posted > SAVED_SLOTS || h->seat >= BOARD_SEATS)
		return -EBADMSG;
	for (uint32_t i = 0; i < SAVED_SLOTS; i++)
		if (h->numbers[i] >> 48)	/* a cookie has the slot beside it */
			return -EBADMSG;
	comms = saved_take(&f, (uint64_t)h->comms * sizeof(*comms));
	*why = "how many communicators there are";
	if (!comms)
		return -EBADMSG;
	*why = NULL;
	for (uint32_t i = 0; i < h->comms && !*why; i++)
		*why = check_comm(&comms[i], i ? &comms[i - 1] : NULL);
	*why = *why ?: check_posted(h, comms, &f) ?: check_items(h, &f);
	if (!*why && f.left)
		*why = "its size";
	return *why ? -EBADMSG : check_numbers(comms, h->comms, why);
}
