// SPDX-License-Identifier: Apache-2.0
/*
 * away.c - what collectives work with while the session's memory is elsewhere, or their records' turns have not come: copies
 *
 *   comm_capture: posted, not begun ──► sent ──┐
 *   post_start: call_keep ────────► received ──┴─► the transport ── done: call_ends ──► arrived ── comm_write ──► the memory
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdlib.h>

#define COMM_PRIVATE
#include "comm_i.h"
#include "device_memory.h"
#include "tree.h"

/* ------------------------------------------------------------------------------ copies
 *
 * What collectives send and receive while the memory is away. A step needs the same copies as the one before, and fresh memory
 * costs more than copying, so large ones are kept for the next ones: no more than there have been at once, and those that have
 * not been used for some slices not at all.
 */

#define COPY_KEPT (64u << 10)		/* smaller ones are malloc()'s alone */
#define COPY_IDLE 16u			/* slices */

struct copy {
	struct copy *next;
	size_t size;
	uint32_t idle;
	_Alignas(64) uint8_t bytes[];
};

static struct copies {
	struct copy *spare;
	size_t used, spared, most;	/* bytes; most: of those used at once */
} copies;

/* comm_lock */
static void spare_free(struct copy **at)
{
	struct copy *c = *at;

	assert_held(&comms.lock);
	*at = c->next;
	copies.spared -= c->size;
	free(c);
}

/* comm_lock. NULL: no memory */
static void *copy_new(size_t size)
{
	struct copy **best = NULL, *c;

	assert_held(&comms.lock);
	for (struct copy **at = &copies.spare; *at && size >= COPY_KEPT; at = &(*at)->next)
		if ((*at)->size >= size && (!best || (*at)->size < (*best)->size))
			best = at;
	if (best && (*best)->size / 2 <= size) {
		c = *best;
		*best = c->next;
		copies.spared -= c->size;
		copies.used += c->size;
		return c->bytes;
	}
	c = size < SIZE_MAX - 2 * sizeof(*c) ? aligned_alloc(64, (sizeof(*c) + size + 63) & ~(size_t)63) : NULL;
	if (!c)
		return NULL;
	*c = (struct copy){ .size = size };
	copies.used += size;
	if (copies.most < copies.used)
		copies.most = copies.used;
	while (copies.spare && copies.used + copies.spared > copies.most)
		spare_free(&copies.spare);
	return c->bytes;
}

/* comm_lock */
void copy_free(void *bytes)
{
	struct copy *c = bytes ? (void *)((uint8_t *)bytes - offsetof(struct copy, bytes)) : NULL;

	assert_held(&comms.lock);
	if (!c)
		return;
	copies.used -= c->size;
	if (c->size < COPY_KEPT) {
		free(c);
		return;
	}
	c->idle = 0;
	c->next = copies.spare;
	copies.spare = c;
	copies.spared += c->size;
}

/* A slice ends. comm_lock */
static void copies_age(void)
{
	assert_held(&comms.lock);
	for (struct copy **at = &copies.spare; *at;)
		if (++(*at)->idle > COPY_IDLE)
			spare_free(at);
		else
			at = &(*at)->next;
}

/* ------------------------------------------------------------------------------ calls */

/* Bytes of a call's buffers on this rank; false: too much. */
bool call_sizes(const struct communicator *c, const struct step_call *a, uint64_t *send, uint64_t *recv)
{
	uint64_t n, all;
	bool root = a->peer == c->rank;

	if (__builtin_mul_overflow(a->count, tree_leaf_size(a->type), &n) ||
	    __builtin_mul_overflow(n, c->ranks, &all))
		return false;
	*send = *recv = n;
	switch (a->kind) {
	case STEP_ALLREDUCE:
		break;
	case STEP_REDUCE:
		*recv = root ? n : 0;
		break;
	case STEP_BROADCAST:
		*send = root ? n : 0;
		break;
	case STEP_ALLGATHER:
		*recv = all;
		break;
	case STEP_REDUCESCATTER:
		*send = all;
		break;
	case STEP_ALLTOALL:
		*send = *recv = all;
		break;
	case STEP_GATHER:
		*recv = root ? all : 0;
		break;
	case STEP_SCATTER:
		*send = root ? all : 0;
		break;
	case STEP_SEND:
		*recv = 0;
		break;
	case STEP_RECV:
		*send = 0;
		break;
	}
	return true;
}

/* Copies what a call sends, and its factor. -ENOMEM. comm_lock */
static int capture(const struct communicator *of, struct coll_call *c)
{
	uint64_t send, recv;

	assert_held(&comms.lock);
	if (c->scale == SV_COLL_FACTOR_AT && !sv_window(comms.s, c->factor, tree_leaf_size(c->call.type), 0))
		memcpy(&c->scaled, (void *)(uintptr_t)c->factor, tree_leaf_size(c->call.type));
	/* If the range was unmapped after the post, it is not this rank's any more, and zeros are sent. */
	if (c->buffer || c->sent || c->kept || !call_sizes(of, &c->call, &send, &recv) || !send)
		return 0;
	c->sent = copy_new(send);
	if (!c->sent)
		return -ENOMEM;
	if (sv_window(comms.s, c->send, send, 0))
		memset(c->sent, 0, send);
	else
		memcpy(c->sent, (void *)(uintptr_t)c->send, send);
	return 0;
}

/*
 * A call starts while the session's memory is elsewhere, or before its record's turn, and works with copies. What a record sends
 * that was posted ahead is final. -ENOMEM. Takes comm_lock.
 */
int call_keep(struct posted *p, struct coll_call *c)
{
	uint64_t send, recv;
	int rc = 0;

	lock_take(&comms.lock);
	if ((!comms.away && capture(p->comm, c)) || !call_sizes(p->comm, &c->call, &send, &recv) ||
	    (recv && !(c->received = copy_new(recv)))) {
		comm_failed(p->comm, STEP_SYSTEM, NULL);
		rc = -ENOMEM;
	} else {
		c->kept = true;
		p->kept++;
	}
	lock_drop(&comms.lock);
	return rc;
}

/* Nothing of the call is elsewhere any more. comm_lock */
static void unkeep(struct posted *p, struct coll_call *c)
{
	assert_held(&comms.lock);
	copy_free(c->received);
	c->received = NULL;
	c->kept = c->arrived = false;
	if (--p->kept)
		return;
	/* Only the consumer may release a stream. */
	p->to_release = p->begun && p->held && !p->stands;
	if (p->to_release)
		__atomic_store_n(&comms.stands, 1, __ATOMIC_RELEASE);
	post_let_go(p);
}

/* The device's part of a call has ended. comm_lock */
void call_ends(struct posted *p, struct coll_call *c, enum step_code code)
{
	assert_held(&comms.lock);
	if (!c->kept)
		return;
	copy_free(c->sent);
	c->sent = NULL;
	if (code || !c->received) {
		unkeep(p, c);
		return;
	}
	c->arrived = true;
	__atomic_add_fetch(&comms.arrived, 1, __ATOMIC_RELEASE);
}

bool comm_in_memory(void)
{
	bool is = false;

	lock_take(&comms.lock);
	for (const struct start *st = comms.starts; st && !is; st = st->next)
		for (uint32_t i = 0; i < st->parts; i++)
			is |= !st->part[i].p->call[st->part[i].call].kept;
	for (uint32_t i = 0; comms.in_use && i < POSTED_MAX && !is; i++)
		is = comms.posted[i] && (comms.posted[i]->filling || (comms.posted[i]->queued && !comms.posted[i]->begun));
	lock_drop(&comms.lock);
	return is;
}

int comm_capture(void)
{
	int rc = 0;

	lock_take(&comms.lock);
	for (uint32_t i = 0; comms.in_use && i < POSTED_MAX && !rc; i++) {
		struct posted *p = comms.posted[i];

		for (uint32_t n = 0; p && !p->begun && n < p->calls && !rc; n++)
			rc = capture(p->comm, &p->call[n]);
	}
	comms.away = true;
	copies_age();
	lock_drop(&comms.lock);
	return rc;
}

void comm_return(void)
{
	lock_take(&comms.lock);
	for (uint32_t i = 0; comms.in_use && i < POSTED_MAX; i++) {
		struct posted *p = comms.posted[i];

		for (uint32_t n = 0; p && n < p->calls; n++) {
			if (p->call[n].kept)
				continue;
			copy_free(p->call[n].sent);
			p->call[n].sent = NULL;
		}
	}
	comms.away = false;
	lock_drop(&comms.lock);
}

bool comm_arrived(void)
{
	/* pairs with call_ends() */
	return __atomic_load_n(&comms.arrived, __ATOMIC_ACQUIRE);
}

static void write_record(struct posted *p)
{
	uint64_t send, recv;

	assert_held(&comms.lock);
	for (uint32_t n = 0; n < p->calls; n++) {
		struct coll_call *c = &p->call[n];

		if (!c->arrived)
			continue;
		/* A program that has aborted the communicator may have freed the memory. */
		if (!p->comm->aborted && call_sizes(p->comm, &c->call, &send, &recv) && !sv_window(comms.s, c->recv, recv, 1))
			memcpy((void *)(uintptr_t)c->recv, c->received, recv);
		__atomic_sub_fetch(&comms.arrived, 1, __ATOMIC_RELAXED);
		unkeep(p, c);
	}
}

void comm_write(void)
{
	lock_take(&comms.lock);
	for (uint32_t i = 0; comms.in_use && i < POSTED_MAX; i++) {
		struct posted *p = comms.posted[i];

		if (!p || !p->kept)
			continue;
		write_record(p);
		posted_settle(p);
	}
	lock_drop(&comms.lock);
	post_tell(false);
	post_stand();
}
