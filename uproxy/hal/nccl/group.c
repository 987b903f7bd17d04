// SPDX-License-Identifier: Apache-2.0
/*
 * group.c - communicators of NCCL: how ranks meet, what breaks them, how they end
 *
 * Rank 0 makes the unique id and leaves it on the board, under the communicator's key, until all have
 * come. Everything that takes others' time is polled: NCCL's calls return ncclInProgress.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_i.h"

#define LOOK_NS 500000000ull /* between two looks for notes of broken communicators */
#define BROKEN (1ull << 63) /* the key of such a note is the communicator's but for this bit */

_Static_assert(sizeof(ncclUniqueId) <= TRANSPORT_NOTE_MAX, "a note has room for a unique id");

static enum step_code code_of(ncclResult_t r)
{
	return r == ncclRemoteError ? STEP_REMOTE : STEP_SYSTEM;
}

static void unnote(struct transport *c, struct group *g)
{
	if (g->noted)
		c->o.note(c->o.arg, g->key, NULL, 0);
	g->noted = false;
}

void group_break(struct transport *c, struct group *g, enum step_code code)
{
	uint64_t note = g->key ^ BROKEN;
	bool told;

	if (g->state == GROUP_BROKEN)
		return;
	unnote(c, g);
	g->state = GROUP_BROKEN;
	g->code = code;
	lock_take(&c->lock);
	for (struct op *op = c->ops; op; op = op->next)
		if (op->group == g && !op->code && !op->reached)
			op->code = code;
	told = c->stop || c->departs;	/* the board says that this rank is gone, and would keep its note for ever */
	lock_drop(&c->lock);
	if (!g->comm)
		return;
	g->aborted_ns = nccl_now_ns();
	/* Ranks that find no note abort when an operation fails for them, or when they leave. */
	reap_begin(c, g, false, told || c->o.note(c->o.arg, note, "", 1) ? 0 : note);
}

/* Whether another rank has aborted it. */
static bool is_broken(struct transport *c, const struct group *g)
{
	uint8_t note[TRANSPORT_NOTE_MAX];

	return g->ranks > 1 && g->state != GROUP_BROKEN && c->o.noted(c->o.arg, g->key ^ BROKEN, note) > 0;
}

/* NCCL has failed. */
static void failed(struct transport *c, struct group *g, ncclResult_t r, const char *what)
{
	const char *more = c->nccl.ncclGetLastError && g->comm ? c->nccl.ncclGetLastError(g->comm) : "";

	nccl_say(c, "NCCL, rank %u of %u: %s: %s%s%s", g->rank, g->ranks, what,
		 c->nccl.ncclGetErrorString(r), more && *more ? ": " : "", more ?: "");
	group_break(c, g, code_of(r));
}

enum step_code group_settle(struct transport *c, struct group *g, ncclResult_t r, const char *what)
{
	struct timespec nap = { .tv_nsec = 5000 };

	lock_may_wait("NCCL");
	while (r == ncclInProgress) {
		ncclResult_t asked;

		break_cancelled(c);
		if (g->state == GROUP_BROKEN)
			return g->code;
		nanosleep(&nap, NULL);
		if (nap.tv_nsec < 1000000)
			nap.tv_nsec *= 2;
		asked = c->nccl.ncclCommGetAsyncError(g->comm, &r);
		r = asked ?: r;
	}
	if (!r)
		return STEP_OK;
	failed(c, g, r, what);
	return g->code;
}

/* ------------------------------------------------------------------------------ the beginning */

/* Whether it has its id now. */
static bool get_id(struct transport *c, struct group *g, ncclUniqueId *id)
{
	ncclResult_t r;
	int rc;

	if (g->rank) {
		uint8_t note[TRANSPORT_NOTE_MAX];

		rc = c->o.noted(c->o.arg, g->key, note);
		if (rc == sizeof(*id))
			memcpy(id, note, sizeof(*id));
		if (rc >= 0 && rc != sizeof(*id))
			group_break(c, g, STEP_SYSTEM);
		if (rc < 0 && rc != -ENOENT)
			group_break(c, g, STEP_REMOTE);
		return rc == sizeof(*id);
	}
	r = c->nccl.ncclGetUniqueId(id);
	if (r) {
		failed(c, g, r, "ncclGetUniqueId");
		return false;
	}
	rc = c->o.note(c->o.arg, g->key, id, sizeof(*id));
	if (rc) {
		nccl_say(c, "NCCL: no place for a communicator's id: %s", strerror(-rc));
		group_break(c, g, rc == -ENOTRECOVERABLE ? STEP_REMOTE : STEP_SYSTEM);
		return false;
	}
	g->noted = true;
	return true;
}

static void begin(struct transport *c, struct group *g)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	ncclResult_t r;

	if (g->ranks == 1) {
		g->state = GROUP_READY;
		return;
	}
	if (!get_id(c, g, &id))
		return;
	if (device_prepare(c)) {
		group_break(c, g, STEP_SYSTEM);
		return;
	}
	config.blocking = 0;
	g->state = GROUP_INIT;
	r = c->nccl.ncclCommInitRankConfig(&g->comm, (int)g->ranks, id, (int)g->rank, &config);
	if (r && r != ncclInProgress)
		failed(c, g, r, "ncclCommInitRankConfig");
}

/* Whether a rank is gone, so that a creation cannot end. */
static bool is_lost(struct transport *c, const struct group *g)
{
	uint8_t address[TRANSPORT_ADDRESS_MAX];

	for (uint32_t r = 0; r < g->ranks; r++)
		if (g->device[r] != STEP_NONE && c->o.address(c->o.arg, g->device[r], address) < 0)
			return true;
	return false;
}

static void poll_init(struct transport *c, struct group *g)
{
	ncclResult_t r = ncclSuccess, asked = c->nccl.ncclCommGetAsyncError(g->comm, &r);

	r = asked ?: r;
	if (r == ncclInProgress)
		return;
	if (r) {
		failed(c, g, r, "ncclCommInitRankConfig");
		return;
	}
	unnote(c, g);
	g->state = GROUP_READY;
}

/* ------------------------------------------------------------------------------ the end */

static bool has_issued(struct transport *c, const struct group *g)
{
	bool any = false;

	lock_take(&c->lock);
	for (struct op *op = c->ops; op && !any; op = op->next)
		any = op->group == g && op->state == OP_ISSUED;
	lock_drop(&c->lock);
	return any;
}

/*
 * The communicator has ended here. One that is not ready yet becomes so nevertheless, since the others need
 * this rank for it, unless another one is gone. Others may still need what NCCL has here of a
 * ready one: it waits for them.
 */
static void end(struct transport *c, struct group *g)
{
	ncclResult_t r;

	if (g->state != GROUP_READY || !g->comm) {
		group_break(c, g, STEP_REMOTE);
		return;
	}
	g->state = GROUP_ENDING;
	r = c->nccl.ncclCommFinalize(g->comm);
	if (r && r != ncclInProgress)
		group_break(c, g, STEP_REMOTE);
}

static void poll_end(struct transport *c, struct group *g)
{
	ncclResult_t r = ncclSuccess, asked = c->nccl.ncclCommGetAsyncError(g->comm, &r);

	r = asked ?: r;
	if (r == ncclInProgress)
		return;
	if (!r)
		reap_begin(c, g, true, 0);
	group_break(c, g, STEP_REMOTE);
}

/* Looks after a group whose operations are on the device. */
static void watch(struct transport *c, struct group *g)
{
	ncclResult_t r = ncclSuccess, asked;

	if (g->state == GROUP_BROKEN) {
		if (g->said || !g->aborted_ns || nccl_now_ns() - g->aborted_ns < nccl_patience_ns)
			return;
		g->said = true;
		nccl_say(c, "NCCL, rank %u of %u: a cancelled operation still holds the device, %.1f s after "
			 "ncclCommAbort", g->rank, g->ranks, nccl_patience_ns / 1e9);
		return;
	}
	if (!g->comm)
		return;
	asked = c->nccl.ncclCommGetAsyncError(g->comm, &r);
	r = asked ?: r;
	if (r && r != ncclInProgress)
		failed(c, g, r, "an operation");
}

/* Whether anything is to be expected of it. */
static bool run(struct transport *c, struct group *g, bool left, bool look)
{
	bool issued = has_issued(c, g), forming;

	if (look && is_broken(c, g))
		group_break(c, g, STEP_REMOTE);
	forming = g->state == GROUP_NAMELESS || g->state == GROUP_INIT;
	if (left && (forming ? is_lost(c, g) : !issued && g->state == GROUP_READY))
		end(c, g);
	else if (g->state == GROUP_NAMELESS)
		begin(c, g);
	else if (g->state == GROUP_INIT)
		poll_init(c, g);
	else if (g->state == GROUP_ENDING)
		poll_end(c, g);
	else if (issued)
		watch(c, g);
	return issued || g->state == GROUP_NAMELESS || g->state == GROUP_INIT || g->state == GROUP_ENDING;
}

void group_free(struct group *g)
{
	free(g->reap);
	free(g->device);
	free(g);
}

bool groups_run(struct transport *c, bool *looks)
{
	struct group *g, *next;
	uint64_t now = nccl_now_ns();
	bool polls = false, forming = false, left, look = now - c->looked_ns >= LOOK_NS;

	if (look)
		c->looked_ns = now;
	lock_take(&c->lock);
	g = c->groups;
	lock_drop(&c->lock);
	for (; g; g = next) {
		lock_take(&c->lock);
		left = g->left;
		lock_drop(&c->lock);
		polls |= run(c, g, left, look);
		*looks |= g->comm != NULL;
		forming |= g->state == GROUP_NAMELESS || g->state == GROUP_INIT;
		left = left && g->state == GROUP_BROKEN && !has_issued(c, g);
		lock_take(&c->lock);
		next = g->next;
		if (left) {	/* other threads put new ones to the front */
			struct group **at = &c->groups;

			while (*at != g)
				at = &(*at)->next;
			*at = next;
		}
		lock_drop(&c->lock);
		if (!left)
			continue;
		group_free(g);
	}
	lock_take(&c->lock);
	if (c->forming && !forming)
		pthread_cond_broadcast(&c->idle);
	c->forming = forming;
	lock_drop(&c->lock);
	return polls;
}
