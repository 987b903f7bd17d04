// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_decode.c - libFuzzer over the proxy's end of a channel whose memory the attacker controls
 *
 * An input is a program: it writes anywhere into the object, and runs the consumer's operations.
 * The proxy may refuse. It must not access memory out of bounds, which the poisoned bytes around
 * its buffers and behind the ring detect, nor spin for ever.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring_i.h"

#define UNITS	64
#define SLOTS	4

static struct ring *r;
static int null;

static void die(const char *what, int err)
{
	fprintf(stderr, "%s: %s\n", what, ring_strerror(err));
	abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct ring_params p = {
		.backend = RING_MEMFD, .id = { 1 },
		.geo = { .va = RING_VA_BASE, .arena_len = 4096, .log_len = 8192,
			 .ring_units = UNITS, .cpl_slots = SLOTS },
	};
	uint8_t *end;
	int rc = ring_create(&r, &p);

	(void)argc;
	(void)argv;
	if (rc)
		die("create", rc);
	null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	/* The arena lies between ring and log: nobody here has anything to do there. */
	ASAN_POISON_MEMORY_REGION(r->arena, 4096);
	end = r->rx.copy + SINGVGPU_RECORD_MAX;
	ASAN_POISON_MEMORY_REGION(end, (uint8_t *)r + r->self_len - end);
	return 0;
}

/* ------------------------------------------------------------------------- reading the input */

struct input {
	const uint8_t *p;
	size_t left;
};

static uint64_t get(struct input *in, unsigned int bytes)
{
	uint64_t v = 0;

	for (; bytes && in->left; bytes--, in->p++, in->left--)
		v = v << 8 | *in->p;
	return v;
}

/* Any place but the arena. */
static uint8_t *place(struct input *in, uint32_t *room)
{
	static const uint32_t sizes[] = { sizeof(struct singvgpu_ctl), SLOTS * 64, UNITS * 64, 8192 };
	uint8_t *starts[] = { (uint8_t *)r->ctl, (uint8_t *)r->cpl, r->units, r->log };
	uint32_t which = get(in, 1) % 4, off = get(in, 2) % sizes[which];

	*room = sizes[which] - off;
	return starts[which] + off;
}

/* ------------------------------------------------------------------------------- the steps */

static int keep(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	uint64_t *mask = arg;
	const uint8_t *p = data;
	uint32_t i;
	volatile uint8_t sum = 0;

	for (i = 0; i < e->len; i++)	/* all of it can be read */
		sum += p[i];
	*mask = *mask << 1 | *mask >> 63;
	return *mask & 1;
}

static int walk(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	keep(arg, e, data);
	return 0;
}

static void read_all(const struct ring_record *rec)
{
	const uint8_t *p = rec->data;
	volatile uint8_t sum = 0;
	uint32_t i;

	if (rec->len > r->payload_max || rec->cpl > SLOTS)
		abort();
	for (i = 0; i < rec->len; i++)
		sum += p[i];
}

static int serve(void *arg, struct ring *ring, const struct ring_record *rec)
{
	int *n = arg;

	read_all(rec);
	if (rec->cpl && *n % 2)
		ring_complete(ring, rec->cpl, rec->seq, 0, NULL, 0);
	ring_advance(ring);
	return ++*n > 1000 ? -EIO : 0;
}

static void restart(uint64_t head)
{
	memset(r->ctl, 0, 4096);
	memset(r->cpl, 0, SLOTS * 64);
	memset(r->units, 0, UNITS * 64);
	memset(r->log, 0, 8192);
	ring_init_ctl(r);
	r->rx = (struct ring_rx){ .lock = r->rx.lock, .copy = r->rx.copy };
	r->why = NULL;
	r->ctl->head = head;
	ring_consume_init(r);
	ring_set_spin(r, 0);	/* the time is better spent on inputs */
}

/* A record that is nearly right, where the consumer will look. */
static void commit(struct input *in)
{
	struct singvgpu_rec *h = unit_at(r, r->rx.pos + get(in, 1) % 4);

	h->op = get(in, 1) % 8 ? 1 : SINGVGPU_OP_PAD;
	h->cpl = get(in, 1) % (SLOTS + 3);
	h->len = get(in, 2);
	h->seq = r->rx.pos + (h - unit_at(r, r->rx.pos)) / 4 + 1;
}

static void consume(struct input *in, bool log)
{
	struct ring_record run[UNITS], *rec = run;
	int n = ring_peek_run(r, run, log ? 1 : UNITS), i;

	for (i = 0; i < n; i++)
		read_all(&run[i]);
	for (i = 0; i < n; i++, rec++) {
		if (rec->seq - 1 - r->rx.pos >= UNITS)
			abort();
		if (get(in, 1) % 2)
			ring_complete(r, rec->cpl, rec->seq, 0, rec->data, rec->len % 64);
		if (!log || ring_log_append(r, rec, 1, get(in, 1), rec->data, rec->len))
			ring_advance_past(r, rec);
	}
}

static void step(struct input *in)
{
	uint64_t mask = 0;
	uint32_t room, n;
	uint8_t *to;
	int count = 0;

	switch (get(in, 1) % 16) {
	case 0: case 1:
		to = place(in, &room);
		for (n = get(in, 1); n && room && in->left; n--, room--)
			*to++ = get(in, 1);
		break;
	case 2: case 3: case 4:
		commit(in);
		break;
	case 5: case 6:
		consume(in, false);
		break;
	case 7: case 8:
		consume(in, true);
		break;
	case 9:
		mask = get(in, 8);
		ring_log_compact(r, keep, &mask);
		break;
	case 10:
		ring_log_walk(r, walk, &mask);
		break;
	case 11:
		ring_wait(r, 0);
		break;
	case 12:
		count = get(in, 1);
		if (ring_freeze(r, serve, &count, 0) == 0)
			ring_thaw(r);
		break;
	case 13:
		ring_complete(r, get(in, 2), get(in, 8), 1, "0123456789", get(in, 1) % 10);
		ring_latch_error(r, 1, 1);
		break;
	case 14:	/* a successor, that knows nothing but the object */
		r->rx = (struct ring_rx){ .lock = r->rx.lock, .copy = r->rx.copy };
		if (ring_consume_init(r))
			restart(get(in, 8));
		ring_set_spin(r, 0);
		break;
	case 15:
		ring_kick(r);
		ring_save(r, null, RING_SAVE_NO_ARENA);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };

	restart(get(&in, 1) % 2 ? get(&in, 8) >> 1 : 0);
	while (in.left)
		step(&in);
	return 0;
}
