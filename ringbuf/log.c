// SPDX-License-Identifier: Apache-2.0
/*
 * log.c - the records from which a fresh proxy can be rebuilt, in the channel's log region
 *
 * Invariants. (1) Log and consumed position change in one store, of ctl->log_state: the last
 * entry that it makes valid has the consumed position. (2) Compaction writes the half that is not
 * current. (3) Length and half are kept in private memory. Entries are read from the region by
 * copy, and checked, since with memfd the client can write there.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ring_i.h"

static uint64_t half_len(const struct ring *r)
{
	return r->geo.log_len / 2;
}

static uint8_t *half(const struct ring *r, uint32_t which)
{
	return r->log + which * half_len(r);
}

static uint64_t entry_len(uint64_t payload)
{
	return (sizeof(struct singvgpu_log_entry) + payload + 7) & ~7ull;
}

static void publish(struct ring *r, uint32_t which, uint64_t len)
{
	r->rx.log_half = which;
	r->rx.log_len = len;
	store_release(&r->ctl->log_state, len | (which ? SINGVGPU_LOG_HALF : 0));
}

int ring_log_append(struct ring *r, const struct ring_record *rec, uint16_t op, uint64_t key,
		    const void *data, uint32_t len)
{
	uint64_t end = rec->seq - 1 + rec_units(rec->len);
	struct singvgpu_log_entry e = { .end = end, .key = key, .op = op, .len = len };
	uint8_t *to;

	if (!r->log || entry_len(len) > half_len(r) - r->rx.log_len)
		return -ENOSPC;
	if (rec->seq != r->rx.pos + 1)
		return -EINVAL;
	to = half(r, r->rx.log_half) + r->rx.log_len;
	memcpy(to, &e, sizeof(e));
	if (len)
		memcpy(to + sizeof(e), data, len);
	publish(r, r->rx.log_half, r->rx.log_len + entry_len(len));
	ring_consumed(r, end);
	return 0;
}

/*
 * Copies the entry at off into *e and its payload into a new buffer. *next: the offset behind it.
 * -EBADMSG it is not a valid entry, -ENOMEM.
 */
static int entry_at(const struct ring *r, uint64_t off, struct singvgpu_log_entry *e,
		    void **payload, uint64_t *next)
{
	const uint8_t *from = half(r, r->rx.log_half) + off;
	uint64_t left = r->rx.log_len - off;

	if (left < sizeof(*e))
		return -EBADMSG;
	memcpy(e, from, sizeof(*e));
	atomic_signal_fence(memory_order_seq_cst);	/* *e is read once */
	if (e->flags || entry_len(e->len) > left)
		return -EBADMSG;
	*next = off + entry_len(e->len);
	if (!payload)
		return 0;
	*payload = malloc(e->len + 1);
	if (!*payload)
		return -ENOMEM;
	memcpy(*payload, from + sizeof(*e), e->len);
	return 0;
}

int ring_log_walk(struct ring *r, ring_log_fn fn, void *arg)
{
	struct singvgpu_log_entry e;
	uint64_t off = 0;
	void *payload;
	int rc = 0;

	while (!rc && off < r->rx.log_len) {
		rc = entry_at(r, off, &e, &payload, &off);
		if (rc)
			break;
		rc = fn(arg, &e, payload);
		free(payload);
	}
	return rc;
}

struct compaction {
	struct ring *r;
	ring_log_keep keep;
	void *arg;
	uint64_t len;
};

static int compact_one(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	struct compaction *c = arg;
	uint8_t *to = half(c->r, !c->r->rx.log_half) + c->len;

	if (!c->keep(c->arg, e, data))
		return 0;
	memcpy(to, e, sizeof(*e));
	memcpy(to + sizeof(*e), data, e->len);
	c->len += entry_len(e->len);
	return 0;
}

/* Publishes head first, since compaction may drop the last entry and its consumed position. */
int ring_log_compact(struct ring *r, ring_log_keep keep, void *arg)
{
	struct compaction c = { .r = r, .keep = keep, .arg = arg };
	int rc;

	ring_publish(r);
	rc = ring_log_walk(r, compact_one, &c);
	if (!rc)
		publish(r, !r->rx.log_half, c.len);
	return rc;
}

size_t ring_log_bytes(const struct ring *r)
{
	return r->rx.log_len;
}

int ring_log_init(struct ring *r)
{
	uint64_t state = load_acquire(&r->ctl->log_state), off = 0;
	struct singvgpu_log_entry e = { 0 };
	int rc;

	if (!r->log)
		return state ? -EBADMSG : 0;
	r->rx.log_half = state >> 63;
	r->rx.log_len = state & ~SINGVGPU_LOG_HALF;
	if (r->rx.log_len > half_len(r))
		return -EBADMSG;
	while (off < r->rx.log_len) {
		uint64_t before = e.end;

		rc = entry_at(r, off, &e, NULL, &off);
		if (rc)
			return rc;
		/*
		 * Zeros are no entries, and reading a sparse region of terabytes would allocate
		 * pages.
		 */
		if (e.end <= before)
			return -EBADMSG;
	}
	if (e.end > r->rx.pos) {	/* the proxy died between log_state and head */
		if (e.end - r->rx.pos > r->geo.ring_units)
			return -EBADMSG;
		ring_consumed(r, e.end);
		ring_publish(r);
	}
	return 0;
}
