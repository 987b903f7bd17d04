// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_board.c - libFuzzer over saved boards that someone has forged
 *
 * An input is a program. It lets three proxies on two or three devices do what they may do, saves the state, changes
 * words of the image, or makes one of version 1 of likely entries, and loads it.
 *
 * Checked, besides the sanitizers': what was not changed is loaded; what is refused is named, and leaves the state empty;
 * what is loaded can be saved and loaded again, and is the same; and all of it comes to an end: every device runs what is in
 * the log, everybody dies, and nothing is left over.
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "../harness/fuzz.h"

#define IMAGE_1_LIMITS 4, 4, 4, 8, 8, 16, 8
#include "../../uproxy/coll/image_old.c"

#define SEATS 4

static const struct step_limits room = { 4, 4, 4, 8, 12, 24, 16 };
static uint32_t member[3][2];

static void ignore(void *ctx, const struct step_action *a)
{
	(void)ctx;
	MUST(a->kind != STEP_START || a->device < 4);
}

static int tell(struct step *s, struct step_event e)
{
	return step(s, &e, ignore, NULL);
}

static void post(struct program *in, struct step *s, uint32_t rank)
{
	struct step_call call[3];
	uint8_t n = 1 + byte(in) % 3;

	for (uint8_t i = 0; i < n; i++) {
		uint8_t how = byte(in);

		call[i] = (struct step_call){ .kind = how % STEP_KINDS, .type = how >> 7,
					      .count = how & 64 ? STEP_BUFFERED + 1 : 1 + (how >> 5 & 1) };
		if (call[i].kind > STEP_ALLREDUCE)
			call[i].peer = byte(in) % 3;
	}
	tell(s, (struct step_event){ .kind = STEP_POST, .member = member[rank][byte(in) % 8 == 0],
				     .cookie = raw(in, 1), .ncalls = n, .calls = call });
}

/* A state that the step reaches. */
static void live(struct program *in, struct step *s)
{
	uint8_t how = byte(in);

	for (uint32_t r = 0; r < 3; r++)
		tell(s, (struct step_event){ .kind = STEP_ENTER, .proxy = r, .device = how & 1 ? r : r / 2 });
	for (uint32_t c = 0; c < 2; c++)
		for (uint32_t r = 0; r < 3u - c - (how >> 1 & c); r++)
			member[r][c] = tell(s, (struct step_event){ .kind = STEP_JOIN, .proxy = r, .rank = r,
								    .comm = c + 1, .ranks = 3 - c });
	for (int n = byte(in) % 24; n; n--) {
		uint8_t what = byte(in), r = what % 3;

		switch (what / 3 % 8) {
		default:
			post(in, s, r);
			break;
		case 4:
			tell(s, (struct step_event){ .kind = STEP_NEXT, .device = r });
			break;
		case 5:
			tell(s, (struct step_event){ .kind = STEP_DONE, .device = r, .order = 1 + what / 24,
						     .code = byte(in) % 4 ? 0 : STEP_SYSTEM });
			break;
		case 6:
			tell(s, (struct step_event){ .kind = STEP_LEAVE, .member = member[r][what / 24 & 1] });
			break;
		case 7:
			if (byte(in) < 64)
				tell(s, (struct step_event){ .kind = what & 64 ? STEP_DIE : STEP_EXIT, .proxy = r });
			break;
		}
	}
}

/* Everything ends: at most so many events as there are operations on devices. */
static void run_out(struct step *s)
{
	struct step_limits left;

	for (uint32_t d = 0; d < 4; d++) {
		int n = 0;

		while (tell(s, (struct step_event){ .kind = STEP_NEXT, .device = d }) == 1)
			MUST(++n <= 12);
		step_cancels(s, d, ignore, NULL);
	}
	for (uint32_t p = 0; p < 4; p++)
		tell(s, (struct step_event){ .kind = STEP_DIE, .proxy = p });
	/* Communicators that were never whole wait for ranks that never come. */
	step_used(s, &left);
	MUST(!left.proxies && !left.ops && !left.parts && !left.records);
}

static void load(void *image, size_t len, bool good)
{
	static _Alignas(8) char one[16384], two[16384];
	struct step *s = step_init(one, &room), *t = step_init(two, &room);
	const char *why = NULL;
	void *again;
	int rc = step_load(s, image, len, &why);

	MUST(step_size(&room) <= sizeof(one));
	MUST(!good || !rc);
	if (rc) {
		MUST(rc == -EPROTONOSUPPORT || (rc == -EBADMSG && why));
		MUST(!memcmp(one, two, step_size(&room)));
		return;
	}
	MUST(!step_save(s, &again, &len));
	MUST(!step_load(t, again, len, &why));
	MUST(step_digest(s) == step_digest(t));
	free(again);
	run_out(s);
}

static void forge(struct program *in)
{
	static _Alignas(8) char mem[16384];
	struct step *s = step_init(mem, &room);
	uint32_t *word;
	uint8_t n;
	void *image;
	size_t len;

	live(in, s);
	MUST(!step_save(s, &image, &len));
	word = image;
	n = byte(in) % 6;
	for (uint8_t i = 0; i < n; i++) {
		uint8_t how = byte(in);
		size_t at = 10 + raw(in, 2) % (len / 4 - 10);

		if (how & 128)
			word[at] = raw(in, how & 3 ? 1 : 4);
		else if (how & 64)
			((uint8_t *)image)[4 * at + (how & 3)] = byte(in);
		else
			word[at] += how & 1 ? 1 : -1;
	}
	load(image, len, !n);
	free(image);
}

/* Version 1, of entries that are likely. */
static void forge_old(struct program *in)
{
	static _Alignas(8) char raw_image[HEAD + 8192];
	struct head_1 *h = (void *)(raw_image + HEAD);
	uint64_t at = sizeof(*h) / 8, size;
	uint32_t kind = 1 + byte(in) % 2;

	memset(raw_image, 0, sizeof(raw_image));
	for (int i = 0; i < ARRAYS; i++) {
		uint32_t n = byte(in) % (limits[i] + 1);

		h->limit[i] = limits[i];
		h->map[i] = at;
		at += (limits[i] + 63) / 64;
		h->at[i] = at;
		for (uint32_t k = 0; k < n && i != DEVICES; k++)
			((uint64_t *)h)[h->map[i]] |= 1ull << k;
		h->used[i] = i == DEVICES ? 0 : n;
		for (uint32_t k = 0; k < n; k++)
			for (uint32_t w = 0; w < sizes[i] / 4; w++)
				((uint32_t *)((uint64_t *)h + at))[k * sizes[i] / 4 + w] = byte(in) % 8;
		at += ((uint64_t)limits[i] * sizes[i] + 7) / 8;
	}
	size = 8 * at;
	MUST(HEAD + size <= sizeof(raw_image));
	h->orders = byte(in) % 8;
	h->births = byte(in) % 8;
	memcpy(raw_image, &(uint32_t){ IMAGE_MAGIC }, 4);
	memcpy(raw_image + 4, &kind, 4);
	memcpy(raw_image + 8, &size, 8);
	for (int n = byte(in) % 4; n; n--)
		raw_image[HEAD + raw(in, 2) % size] ^= byte(in);
	load(raw_image, HEAD + size, false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct program in = { data, data + size };

	if (byte(&in) % 4)
		forge(&in);
	else
		forge_old(&in);
	return 0;
}
