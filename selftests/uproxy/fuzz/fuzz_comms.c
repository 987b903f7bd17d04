// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_comms.c - libFuzzer over saved communicators that someone has forged
 *
 * An input is a program that writes what a proxy could have saved, and then changes words of it.
 *
 * Checked, besides the sanitizers': what was not changed passes; what is refused is named; of what passes all that
 * comm/save.c relies on holds, and it can go through it without looking at a size.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../../harness/fuzz.h"

#include "board.h"
#include "park.h"
#include "saved.h"
#include "tree.h"

static _Alignas(8) uint8_t bytes[1 << 16];
static size_t len;

static void *put(const void *p, size_t n)
{
	void *at = bytes + len;

	MUST(len + n + 8 <= sizeof(bytes));
	memcpy(at, p, n);
	len += (n + 7) & ~(size_t)7;
	return at;
}

static void put_comms(struct program *in, struct saved_head *h)
{
	uint8_t n = 1 + byte(in) % 4, listed = 1 + byte(in) % n;

	for (uint8_t i = 0; i < n; i++) {
		uint8_t how = byte(in);
		struct saved_comm c = { .number = i + 1, .key = 100 + i, .ranks = 1 + how % 4, .member = 4 * i,
					.word = 64 * i, .flags = C_JOINED | C_STANDS };

		c.rank = how / 4 % c.ranks;
		if (i < listed)
			c.flags |= C_LISTED | (how & 64 ? C_ENDING : 0);
		else
			c.flags |= C_ENDING;
		if (i < listed && how & 128 && i) {
			c.flags = C_LISTED | C_JOINED;
			c.member = STEP_NONE;
		}
		if (c.flags & C_LISTED && c.flags & C_ENDING)
			c.answer[ANSWER_ENDED] = (struct saved_answer){ .seq = 7 + i, .op = 9, .cpl = 3 };
		put(&c, sizeof(c));
	}
	h->comms = n;
}

static void put_posted(struct program *in, struct saved_head *h, uint64_t *seq)
{
	uint8_t how = byte(in), calls = 1 + how % 3;
	struct saved_posted p = { .seq = ++*seq, .ctx = 1, .stream = how & 4 ? 0 : 5, .number = 3, .slot = h->posted,
				  .calls = calls, .flags = how & 4 ? P_BEGUN | P_ENDED : 0 };
	static const uint8_t sent[64] = "sent";

	put(&p, sizeof(p));
	h->numbers[h->posted++] = 3;
	for (uint8_t i = 0; i < calls; i++) {
		bool small = how & 4 || how >> 3 >> i & 1;
		struct saved_call c = { .call = { .kind = small ? STEP_SEND : STEP_ALLREDUCE, .type = TREE_UINT8,
						  .count = 33 }, .send = 4096, .recv = 4096,
					.buffer = small ? 33 : 0 };

		put(&c, sizeof(c));
	}
	for (uint8_t i = 0; i < calls; i++)
		if (how & 4 || how >> 3 >> i & 1)
			put(sent, 33);
}

static void honest(struct program *in)
{
	struct saved_head h = { .magic = SAVED_MAGIC, .version = SAVED_VERSION, .slots = SAVED_SLOTS }, *at;
	uint64_t seq = 10;
	uint8_t n;

	memset(bytes, 0, sizeof(bytes));
	len = 0;
	at = put(&h, sizeof(h));
	put_comms(in, &h);
	for (n = byte(in) % 4; n; n--)
		put_posted(in, &h, &seq);
	seq = 10;
	for (n = byte(in) % 4; n; n--, h.items++) {
		uint8_t how = byte(in);
		struct saved_item it = { .seq = ++seq, .op = 40, .cpl = how & 1, .len = how & 62 };

		if (how & 128)
			it = (struct saved_item){ .event = how, .op = PARK_RECORDED };
		put(&it, sizeof(it));
		put(bytes + sizeof(bytes) - 64, it.len);
	}
	*at = h;
}

/* A communicator behind another one. */
static void see_comm(const struct saved_comm *c, const struct saved_comm *first)
{
	const struct saved_answer *a = c->answer;
	bool listed = c->flags & C_LISTED, joined = c->flags & C_JOINED, stands = c->flags & C_STANDS;

	MUST(!(c->flags & ~C_MASK) && (joined || !stands));
	MUST(c->ranks && c->rank < c->ranks && (!stands || c->ranks <= BOARD_SEATS));
	MUST(c->ranks <= BOARD_SEATS || joined);
	MUST(c->member != STEP_NONE || (joined && !stands));
	MUST(listed || (stands && c->flags & C_ENDING));
	MUST(!listed || (c->number && c->word % 8 == 0));
	for (const struct saved_comm *o = first; o < c && listed; o++)
		MUST(o->flags & C_LISTED && o->number != c->number);
	for (int i = 0; i < ANSWERS; i++)
		MUST(!a[i].pad && (a[i].op || (!a[i].seq && !a[i].cpl)));
	MUST(!listed || ((!a[ANSWER_CREATED].op || !joined) && (!a[ANSWER_ENDED].op || c->flags & C_ENDING) &&
			 (!a[ANSWER_ABORT].op || c->flags & C_ABORTED)));
}

static void see_posted(const struct saved_posted *p, const struct saved_call *call, struct saved_bytes buffers,
		       uint32_t ranks)
{
	bool begun = p->flags & P_BEGUN, ended = p->flags & P_ENDED, sent = false;
	const uint8_t *at;

	MUST(!(p->flags & ~P_MASK) && begun == ended && !p->pad);
	MUST(begun ? !p->stream : !p->code);
	MUST(p->calls && p->calls <= SAVED_CALLS);
	for (uint32_t k = 0; k < p->calls; k++) {
		const struct step_call *c = &call[k].call;

		MUST(c->kind < STEP_KINDS && c->type < TREE_TYPES && c->op < TREE_OPS && !c->zero && c->peer < ranks);
		MUST(call[k].scale <= SAVED_FACTORS && (c->op == TREE_PREMULSUM) == !!call[k].scale);
		if (!call[k].buffer)
			continue;
		sent = true;
		MUST(c->kind == STEP_SEND && call[k].buffer <= STEP_BUFFERED);
		MUST(c->count <= STEP_BUFFERED && call[k].buffer == c->count * tree_leaf_size(c->type));
		at = saved_take(&buffers, call[k].buffer);
		MUST(at);
		for (uint64_t i = call[k].buffer; i % 8; i++)
			MUST(!at[i]);
	}
	MUST(!begun || sent);
}

/* As comm_rebuild() goes through it. */
static void walk(const struct saved_head *h)
{
	struct saved_bytes f = { (const uint8_t *)h, len }, buffers;
	const struct saved_comm *c;
	uint8_t slots[SAVED_SLOTS] = { 0 };
	uint64_t seq = 0;

	saved_take(&f, sizeof(*h));
	MUST(h->magic == SAVED_MAGIC && h->version == SAVED_VERSION && h->slots == SAVED_SLOTS);
	MUST(h->seat < BOARD_SEATS && !(h->flags & ~H_LEFT));
	for (uint32_t i = 0; i < SAVED_SLOTS; i++)
		MUST(!(h->numbers[i] >> 48));
	c = saved_take(&f, (uint64_t)h->comms * sizeof(*c));
	for (uint32_t i = 0; i < h->comms; i++)
		see_comm(&c[i], c);
	for (uint32_t i = 0; i < h->posted; i++) {
		const struct saved_posted *p = saved_take(&f, sizeof(*p));
		const struct saved_call *call = saved_calls(&f, p, &buffers);

		MUST(p->comm < h->comms && c[p->comm].flags & C_STANDS);
		MUST(p->slot < SAVED_SLOTS && !slots[p->slot]++ && p->number == h->numbers[p->slot]);
		MUST(!i || p->seq > seq);
		seq = p->seq;
		see_posted(p, call, buffers, c[p->comm].ranks);
	}
	seq = 0;
	for (uint32_t i = 0; i < h->items; i++) {
		const struct saved_item *it = saved_take(&f, sizeof(*it));

		MUST(it && saved_take(&f, it->len));
		if (it->op == PARK_RECORDED) {
			MUST(!it->seq && !it->cpl && !it->len);
			continue;
		}
		MUST(!seq || it->seq > seq);
		seq = it->seq;
	}
	MUST(!f.left);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct program in = { data, data + size };
	const struct saved_head *h;
	const char *why = NULL;
	uint8_t *exact;
	size_t tail;
	uint8_t n;
	int rc;

	honest(&in);
	n = byte(&in) % 6;
	/* The numbers of slots are all alike. */
	tail = len - sizeof(*h) + 48;
	for (uint8_t i = 0; i < n; i++) {
		uint8_t how = byte(&in);
		size_t at = raw(&in, 2) % tail;

		at = at < 48 ? at : at - 48 + sizeof(*h);
		if (how & 128)
			bytes[at] = byte(&in);
		else if (how & 64)
			*(uint32_t *)(bytes + at / 4 * 4) += how & 1 ? 1 : -1;
		else if (how & 32)
			len = how & 1 ? at : at / 8 * 8;
		else
			bytes[at] ^= 1 << how % 8;
	}
	exact = malloc(len + !len);	/* so that what lies behind them is seen to be read */
	MUST(exact);
	memcpy(exact, bytes, len);
	rc = saved_check(exact, len, &h, &why);
	MUST(n || !rc);
	if (!rc)
		walk(h);
	else
		MUST(rc == -EPROTONOSUPPORT || (rc == -EBADMSG && why));
	free(exact);
	return 0;
}
