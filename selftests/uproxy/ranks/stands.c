// SPDX-License-Identifier: Apache-2.0
/*
 * stands.c - what stands behind a failed operation, and what does not: in its proxy, and in others that wait for it
 */
#include "colls.h"

/* A call beyond the rank's memory: it is refused, and the stream stands until the communicator ends. */
static int refused(struct rank *r, uint64_t comm, uint64_t stream)
{
	return COLL(r, comm, stream, all_reduce(r, 2 * MiB));
}

/* All ranks have posted what they were told to, and begun what can begin. */
static bool all_have_posted(struct rank *r, int n)
{
	bool have = true;

	for (int i = 0; i < 2 * n; i++) {
		int rc = query(&r[i % n], SV_OP_cuStreamQuery, SV_STREAM_LEGACY);

		have &= !rc || rc == CUDA_ERROR_NOT_READY;
	}
	return have;
}

/* Nor is one posted, or parked behind one, that has not begun. */
static bool all_have_begun(struct rank *r, int n)
{
	for (int i = 0; i < n; i++)
		for (int ms = 0; ms < 20000 && shown(&r[i]).coll_waits.since; ms++)
			usleep(1000);
	return all_have_posted(r, n);
}

static void die(struct rank *r, struct board *board, int i)
{
	kill(r[i].c.proxy, SIGKILL);
	waitpid(r[i].c.proxy, NULL, 0);
	board_die(board, i);
	ring_close(r[i].c.ring);
	r[i].c.proxy = 0;
}

/* ------------------------------------------------------------------------------ in its own proxy */

/* Another communicator fails while these wait for operations that end well: they wait, and all of it succeeds. */
TEST_F(colls, what_covers_no_failure_goes_on)
{
	enum { CALLS = 8 };	/* as many as there are chains */
	struct rank *r = &self->r[0], *to = &self->r[1], *late = &self->r[3];
	uint64_t word = new_crossings(self->r, self->n), after = new_stream(r, CU_STREAM_NON_BLOCKING);
	uint64_t more = new_stream(r, CU_STREAM_NON_BLOCKING), beyond = new_stream(to, CU_STREAM_NON_BLOCKING);
	struct sv_sync_on on[3] = { { r->c.ctx, r->event }, { r->c.ctx, after }, { to->c.ctx, beyond } };
	struct ring_ticket t[3];
	volatile uint64_t *gated;

	ASSERT_NE(word, 0);
	ASSERT_EQ(new_comm(self->r, self->n, 79, "fails"), 0);
	ASSERT_EQ(gate(late, late->stream, &gated), 0);
	ASSERT_EQ(gate(late, late->other, &gated), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], 79, self->r[i].other, all_reduce(&self->r[i], 16)), 0);
	for (int k = 0; k <= CALLS; k++) {
		for (int i = 0; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
		if (k != CALLS - 1)
			continue;
		ASSERT_TRUE(all_have_posted(self->r, self->n));
		/* The event is another one then. */
		ASSERT_EQ(record(r, r->event, r->other), 0);
		ASSERT_EQ(record(r, r->event, r->stream), 0);
		ASSERT_EQ(end_comm(&self->r[2], 79, SV_COMM_ABORT), 0);
		ASSERT_EQ(stream_soon(r, r->other), CUDA_ERROR_EXTERNAL_DEVICE);
	}
	ASSERT_EQ(await(r, after, r->event), 0);
	ASSERT_EQ(cross(r, r->stream, to, beyond, word, 1), 0);
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(ring_request(i < 2 ? r->c.ring : to->c.ring, &t[i], i ? SV_OP_cuStreamSynchronize :
				       SV_OP_cuEventSynchronize, &on[i], sizeof(on[i]), NULL, 0), 0);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, after), CUDA_ERROR_NOT_READY);
	EXPECT_EQ(query(to, SV_OP_cuStreamQuery, beyond), CUDA_ERROR_NOT_READY);
	/* One more failure, of which all hear. */
	ASSERT_EQ(refused(r, 79, more), 0);
	ASSERT_EQ(stream_soon(r, more), CUDA_ERROR_EXTERNAL_DEVICE);
	usleep(50000);
	*gated = 1;
	for (int i = 0; i < 3; i++) {
		int32_t status = -1;

		ASSERT_EQ(ring_await(i < 2 ? r->c.ring : to->c.ring, &t[i], &status, NULL, 0, NULL, 10000000000), 0)
			TH_LOG("wait %d", i);
		EXPECT_EQ(status, 0)
			TH_LOG("wait %d", i);
	}
	ASSERT_EQ(stream_soon(r, r->other), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(stream_soon(r, r->stream), 0);
}

/* A stream has waited for the failed operation, and then for what was before it: it waits for both. */
TEST_F(colls, a_wait_for_what_was_before_takes_nothing_away)
{
	struct rank *r = &self->r[0], *late = &self->r[3];
	uint64_t before = new_event(r);
	volatile uint64_t *first, *gated;

	ASSERT_EQ(new_comm(r, 1, 78, "ends well"), 0);
	ASSERT_EQ(gate(r, r->stream, &first), 0);
	ASSERT_EQ(gate(late, late->stream, &gated), 0);
	ASSERT_EQ(COLL(r, 78, r->stream, all_reduce(r, 16)), 0);
	ASSERT_EQ(record(r, before, r->stream), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(record(r, r->event, r->stream), 0);
	ASSERT_EQ(await(r, r->other, r->event), 0);
	ASSERT_EQ(await(r, r->other, before), 0);
	*first = 1;
	EXPECT_EQ(sync_soon(r, SV_OP_cuEventSynchronize, before), 0);
	ASSERT_TRUE(all_have_posted(self->r, self->n));
	die(self->r, self->board, 3);
	ASSERT_EQ(stream_soon(r, r->other), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(sync_soon(r, SV_OP_cuEventSynchronize, before), 0);
	EXPECT_EQ(end_comm(r, self->comm, 0), 0);
	ASSERT_EQ(stream_soon(r, r->other), 0);
}

static void count_one(void *n, uint32_t member, uint64_t cookie, bool begun)
{
	++*(int *)n;
}

/* The board has so many records of a rank's calls, before 20 seconds have passed. */
static bool has_records(struct board *board, int i, int want)
{
	for (int ms = 0; ms < 20000; ms++) {
		int n = 0;

		board_records(board, i, count_one, &n);
		if (n == want)
			return true;
		usleep(1000);
	}
	return false;
}

/* Two operations of a stream fail, and the proxy hears of the later one first: what is between them fails, too. */
TEST_F(colls, the_first_failure_counts)
{
	struct rank *r = &self->r[0], *late = &self->r[3];
	volatile uint64_t *first, *gated;

	/* Its place is taken by the later one. */
	ASSERT_EQ(new_comm(r, 1, 78, "ends well"), 0);
	ASSERT_EQ(gate(r, r->other, &first), 0);
	ASSERT_EQ(COLL(r, 78, r->other, all_reduce(r, 16)), 0);
	ASSERT_EQ(gate(late, late->stream, &gated), 0);
	for (int k = 0; k < 2; k++) {
		for (int i = 0; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
		ASSERT_TRUE(all_have_posted(self->r, self->n));
		if (!k)
			ASSERT_EQ(record(r, r->event, r->stream), 0);
		*first = 1;
		ASSERT_EQ(stream_soon(r, r->other), 0);
		ASSERT_TRUE(has_records(self->board, 0, k + 1));
	}
	die(self->r, self->board, 3);
	ASSERT_EQ(stream_soon(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(sync_soon(r, SV_OP_cuEventSynchronize, r->event), CUDA_ERROR_EXTERNAL_DEVICE);
}

/*
 * A stream stands in which nothing is left. What waits for it fails, and so does what is behind such a wait, but not what
 * waits for a record before it.
 */
TEST_F(colls, what_is_before_a_wait_that_fails_goes_on)
{
	struct rank *r = &self->r[0];
	uint64_t st = new_stream(r, 0), both = new_stream(r, CU_STREAM_NON_BLOCKING);
	uint64_t after = new_stream(r, CU_STREAM_NON_BLOCKING);
	uint64_t early = new_event(r), failed = new_event(r), late = new_event(r);
	struct sv_sync_on on = { r->c.ctx, after };
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_EQ(new_comm(self->r, self->n, 79, "fails"), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 16)), 0);
	ASSERT_EQ(record(r, r->event, r->stream), 0);
	ASSERT_EQ(await(r, both, r->event), 0);
	ASSERT_EQ(record(r, early, both), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], 79, i ? self->r[i].other : st, all_reduce(&self->r[i], 16 + !i)), 0);
	ASSERT_EQ(code_of(r), STEP_INVALID_USAGE);
	ASSERT_EQ(stream_soon(r, SV_STREAM_LEGACY), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(record(r, failed, st), 0);
	ASSERT_EQ(await(r, both, failed), 0);
	ASSERT_EQ(record(r, late, both), 0);
	ASSERT_EQ(fill(r, both, r->dev + MiB, 1, 16), 0);
	EXPECT_EQ(sync_soon(r, SV_OP_cuEventSynchronize, late), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(await(r, after, early), 0);
	ASSERT_EQ(ring_request(r->c.ring, &t, SV_OP_cuStreamSynchronize, &on, sizeof(on), NULL, 0), 0);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, after), CUDA_ERROR_NOT_READY);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(ring_await(r->c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, 0);
	ASSERT_EQ(stream_soon(r, both), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(end_comm(r, 79, SV_COMM_ABORT), 0);
	ASSERT_EQ(stream_soon(r, both), 0);
}

/* Waits end in any order, well or as they stand: each failure finds those that are left, and no other. */
TEST_F(colls, each_wait_that_is_left_hears_of_its_failure)
{
	enum { FIRST, MIDDLE, THIRD, LAST, WAITS };
	struct rank *r = &self->r[0], *late = &self->r[3];
	volatile uint64_t *gated, *own[LAST];
	struct ring_ticket t[WAITS];
	uint64_t st[WAITS], more;
	int32_t status;

	ASSERT_EQ(new_comm(r, 1, 78, "ends well"), 0);
	ASSERT_EQ(gate(late, late->stream, &gated), 0);
	for (int k = 0; k < WAITS; k++) {
		st[k] = new_stream(r, CU_STREAM_NON_BLOCKING);
		if (k < LAST) {
			r->pin += 8;
			ASSERT_EQ(gate(r, st[k], &own[k]), 0);
			ASSERT_EQ(COLL(r, 78, st[k], all_reduce(r, 16)), 0);
			continue;
		}
		for (int i = 0; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, i ? self->r[i].stream : st[k],
				       all_reduce(&self->r[i], 16)), 0);
	}
	ASSERT_TRUE(all_have_posted(self->r, self->n));
	for (int k = 0; k < WAITS; k++) {
		struct sv_sync_on on = { r->c.ctx, st[k] };

		ASSERT_EQ(ring_request(r->c.ring, &t[k], SV_OP_cuStreamSynchronize, &on, sizeof(on), NULL, 0), 0);
	}
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
	for (int i = 0; i < WAITS; i++) {
		static const int order[] = { MIDDLE, FIRST, LAST, THIRD };
		int k = order[i];
		char id[16];

		if (k == LAST)
			die(self->r, self->board, 3);
		else
			*own[k] = 1;
		status = -1;
		ASSERT_EQ(ring_await(r->c.ring, &t[k], &status, NULL, 0, NULL, 10000000000), 0)
			TH_LOG("wait %d", k);
		EXPECT_EQ(status, k == LAST ? CUDA_ERROR_EXTERNAL_DEVICE : 0)
			TH_LOG("wait %d", k);
		if (i % 2 == 0)
			continue;
		/* All that are left are looked at. */
		usleep(10000);
		snprintf(id, sizeof(id), "fails %d", i);
		more = new_stream(r, CU_STREAM_NON_BLOCKING);
		ASSERT_EQ(new_comm(r, 1, 80 + i, id), 0);
		ASSERT_EQ(refused(r, 80 + i, more), 0);
		ASSERT_EQ(stream_soon(r, more), CUDA_ERROR_EXTERNAL_DEVICE);
	}
}

/*
 * Failures that have been ended leave nothing behind: their streams wait for what comes next, and one that stands later is
 * taken for no other one.
 */
TEST_F(colls, failures_end)
{
	enum { STREAMS = 8 };
	struct rank *r = &self->r[0], *late = &self->r[3];
	uint64_t st[STREAMS], one;
	volatile uint64_t *first, *gated;
	struct sv_sync_on on = { r->c.ctx, 0 };
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_EQ(new_comm(r, 1, 81, "fails"), 0);
	ASSERT_EQ(new_comm(r, 1, 82, "ends well"), 0);
	ASSERT_EQ(gate(late, late->stream, &gated), 0);
	/* Two in each. */
	for (int k = 0; k < 2 * STREAMS; k++) {
		st[k / 2] = k % 2 ? st[k / 2] : new_stream(r, CU_STREAM_NON_BLOCKING);
		for (int i = 0; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, i ? self->r[i].stream : st[k / 2],
				       all_reduce(&self->r[i], 16)), 0);
		ASSERT_TRUE(all_have_posted(self->r, self->n));
	}
	die(self->r, self->board, 3);
	for (int i = 0; i < STREAMS; i++)
		ASSERT_EQ(stream_soon(r, st[i]), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(end_comm(r, self->comm, SV_COMM_ABORT), 0);
	ASSERT_EQ(gate(r, st[0], &first), 0);
	ASSERT_EQ(COLL(r, 82, st[0], all_reduce(r, 16)), 0);
	on.on = st[0];
	ASSERT_EQ(ring_request(r->c.ring, &t, SV_OP_cuStreamSynchronize, &on, sizeof(on), NULL, 0), 0);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, st[0]), CUDA_ERROR_NOT_READY);
	*first = 1;
	ASSERT_EQ(ring_await(r->c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, 0);
	ASSERT_EQ(refused(r, 81, r->stream), 0);
	ASSERT_EQ(stream_soon(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	for (int i = 0; i < STREAMS; i++) {
		one = new_stream(r, CU_STREAM_NON_BLOCKING);
		ASSERT_EQ(COLL(r, 82, one, all_reduce(r, 16)), 0);
		ASSERT_EQ(stream_soon(r, one), 0)
			TH_LOG("stream %d", i);
	}
}

/* A context covers what a stream has left that has been destroyed. */
TEST_F(colls, a_stream_that_is_gone_is_waited_for)
{
	struct rank *r = &self->r[0], *late = &self->r[3];
	uint64_t st = new_stream(r, CU_STREAM_NON_BLOCKING);
	struct sv_sync_on on = { r->c.ctx, 0 };
	volatile uint64_t *gated;
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_EQ(gate(late, late->stream, &gated), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, i ? self->r[i].stream : st, all_reduce(&self->r[i], 16)), 0);
	ASSERT_TRUE(all_have_posted(self->r, self->n));
	ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamDestroy_v2, (struct sv_stream_end){ st }), 0);
	/* An operation of no elements has never been in a stream, and its end is no other one's. */
	ASSERT_EQ(COLL(r, self->comm, r->other, all_reduce(r, 0)), 0);
	ASSERT_EQ(ring_request(r->c.ring, &t, SV_OP_cuCtxSynchronize, &on, sizeof(on), NULL, 0), 0);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
	die(self->r, self->board, 3);
	ASSERT_EQ(ring_await(r->c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(sync_soon(r, SV_OP_cuCtxSynchronize, 0), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(end_comm(r, self->comm, 0), 0);
	ASSERT_EQ(sync_soon(r, SV_OP_cuCtxSynchronize, 0), 0);
}

/*
 * Waits are parked for recordings after which their events are recorded again: one that is parked, too, and one that has
 * been made. Both have what they wait for in a copy, and fail with it.
 */
TEST_F(colls, a_wait_for_an_earlier_recording_fails_with_it)
{
	struct rank *r = &self->r[0], *late = &self->r[3];
	uint64_t behind = new_stream(r, CU_STREAM_NON_BLOCKING), held = new_stream(r, CU_STREAM_NON_BLOCKING);
	uint64_t made = new_event(r);
	volatile uint64_t *gated, *first;

	ASSERT_EQ(new_comm(self->r, 2, 78, "ends well"), 0);
	ASSERT_EQ(new_comm(r, 1, 79, "ends well, too"), 0);
	ASSERT_EQ(gate(late, late->stream, &gated), 0);
	/* What the events have later is something else. */
	ASSERT_EQ(gate(r, r->other, &first), 0);
	ASSERT_EQ(COLL(r, 79, r->other, all_reduce(r, 16)), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 16)), 0);
	ASSERT_EQ(COLL(r, 78, held, all_reduce(r, 16)), 0);
	ASSERT_EQ(record(r, r->event, r->stream), 0);
	ASSERT_EQ(await(r, behind, r->event), 0);
	ASSERT_EQ(record(r, r->event, r->other), 0);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	ASSERT_TRUE(all_have_begun(self->r, self->n));
	ASSERT_EQ(record(r, made, r->stream), 0);
	ASSERT_EQ(await(r, held, made), 0);
	ASSERT_EQ(record(r, made, r->other), 0);
	ASSERT_EQ(COLL(&self->r[1], 78, self->r[1].other, all_reduce(&self->r[1], 16)), 0);
	ASSERT_TRUE(all_have_begun(self->r, self->n));
	die(self->r, self->board, 3);
	ASSERT_EQ(stream_soon(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(stream_soon(r, behind), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(stream_soon(r, held), CUDA_ERROR_EXTERNAL_DEVICE);
	*first = 1;
	EXPECT_EQ(sync_soon(r, SV_OP_cuEventSynchronize, r->event), 0);
	EXPECT_EQ(sync_soon(r, SV_OP_cuEventSynchronize, made), 0);
	ASSERT_EQ(end_comm(r, self->comm, 0), 0);
	EXPECT_EQ(stream_soon(r, behind), 0);
	EXPECT_EQ(stream_soon(r, held), 0);
}

/* What waits in the driver behind a failed operation goes on when its communicator has ended, whatever else is asked for. */
TEST_F(colls, what_stands_in_the_driver_goes_on)
{
	struct rank *r = &self->r[0], *late = &self->r[3];
	volatile uint64_t *gated;

	*word_at(r, 0) = 0;
	ASSERT_EQ(gate(late, late->stream, &gated), 0);
	ASSERT_EQ(fill(r, r->stream, r->dev, 4711, 16), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	ASSERT_TRUE(all_have_begun(self->r, self->n));
	ASSERT_EQ(down(r, r->stream, 0, r->dev, 64), 0);
	die(self->r, self->board, 3);
	ASSERT_EQ(stream_soon(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(*word_at(r, 0), 0);
	ASSERT_EQ(end_comm(r, self->comm, 0), 0);
	for (int i = 0; i < 10000 && *word_at(r, 0) != 4711; i++)
		usleep(1000);
	EXPECT_EQ(*word_at(r, 0), 4711);
}

/* More events than the proxy looks at once: it forgets none of those that stand. */
TEST_F(colls, of_many_events_none_is_forgotten)
{
	enum { EVENTS = 1100 };
	struct rank *r = &self->r[0], *late = &self->r[3];
	uint64_t event[EVENTS];
	volatile uint64_t *gated;

	ASSERT_EQ(gate(late, late->stream, &gated), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	for (int i = 0; i < EVENTS; i++) {
		event[i] = new_event(r);
		ASSERT_EQ(record(r, event[i], r->stream), 0);
	}
	ASSERT_TRUE(all_have_posted(self->r, self->n));
	die(self->r, self->board, 3);
	ASSERT_EQ(stream_soon(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	for (int i = 0; i < EVENTS; i += 50)
		EXPECT_EQ(sync_soon(r, SV_OP_cuEventSynchronize, event[i]), CUDA_ERROR_EXTERNAL_DEVICE);
}

/* A query that comes soon after a failure does not tell of it, so that a program may ask NCCL first. */
TEST_F(colls, a_query_does_not_tell_at_once)
{
	struct rank *r = &self->r[0];
	int n = 0;

	for (int i = 0; i < 10; i++) {
		char id[16];

		snprintf(id, sizeof(id), "fails %d", i);
		ASSERT_EQ(new_comm(r, 1, 80, id), 0);
		ASSERT_EQ(refused(r, 80, r->stream), 0);
		n += query(r, SV_OP_cuStreamQuery, r->stream) == CUDA_ERROR_NOT_READY;
		ASSERT_EQ(end_comm(r, 80, SV_COMM_ABORT), 0);
		EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->stream), 0);
	}
	/* On a busy machine one may come late. */
	EXPECT_GT(n, 0);
}

/* ------------------------------------------------------------------------------ in other proxies */

/*
 * Each of two streams has two operations that fail, and what waits for it, over two proxies, waits for both: when the
 * communicator of one has ended it stands for the other's sake. So it is whichever of the two was said first.
 */
TEST_F(colls, a_wait_that_stands_for_two_reasons_goes_on_behind_both)
{
	static const char *const id[] = { "first", "second", "third", "fourth" };
	struct rank *r = self->r;
	uint64_t word = new_crossings(r, self->n), on[3][2];
	struct sv_sync_on last = { r[2].c.ctx, 0 };
	volatile uint64_t *gated;
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_NE(word, 0);
	ASSERT_EQ(gate(&r[3], r[3].stream, &gated), 0);
	for (int i = 0; i < 3; i++)
		for (int k = 0; k < 2; k++)
			on[i][k] = new_stream(&r[i], CU_STREAM_NON_BLOCKING);
	for (int k = 0; k < 4; k++) {
		ASSERT_EQ(new_comm(r, self->n, 80 + k, id[k]), 0);
		for (int i = 0; i < self->n; i++)
			ASSERT_EQ(COLL(&r[i], 80 + k, i ? r[i].stream : on[0][k / 2], all_reduce(&r[i], 16)), 0);
	}
	for (int k = 0; k < 2; k++) {
		ASSERT_EQ(cross(&r[0], on[0][k], &r[1], on[1][k], word + 64 * k, 1), 0);
		ASSERT_EQ(cross(&r[1], on[1][k], &r[2], on[2][k], word + 64 * k + 32, 1), 0);
	}
	ASSERT_TRUE(all_have_posted(r, self->n));
	die(r, self->board, 3);
	for (int k = 0; k < 2; k++)
		ASSERT_EQ(stream_soon(&r[2], on[2][k]), CUDA_ERROR_EXTERNAL_DEVICE);
	for (int k = 0; k < 2; k++)
		ASSERT_EQ(end_comm(&r[0], k ? 82 : 81, SV_COMM_ABORT), 0);
	/* The last one first, which nobody but the proxy between tells of it. */
	for (int i = 2; i >= 0; i--)
		for (int k = 0; k < 2; k++)
			ASSERT_EQ(stream_soon(&r[i], on[i][k]), CUDA_ERROR_EXTERNAL_DEVICE);
	kill(r[1].c.proxy, SIGSTOP);
	for (int k = 0; k < 2; k++)
		ASSERT_EQ(end_comm(&r[0], k ? 83 : 80, SV_COMM_ABORT), 0);
	/* It learns without that one, which says nothing now, that no reason is left. */
	last.on = on[2][0];
	ASSERT_EQ(ring_request(r[2].c.ring, &t, SV_OP_cuStreamSynchronize, &last, sizeof(last), NULL, 0), 0);
	ASSERT_EQ(query(&r[2], SV_OP_cuStreamQuery, SV_STREAM_LEGACY), 0);
	kill(r[1].c.proxy, SIGCONT);
	ASSERT_EQ(ring_await(r[2].c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, 0);
	for (int i = 2; i >= 0; i--)
		for (int k = 0; k < 2; k++)
			ASSERT_EQ(stream_soon(&r[i], on[i][k]), 0);
}

/*
 * Waits for another proxy that are over, well or after a failure, leave nothing behind: a stream that stands later is
 * taken for no other one.
 */
TEST_F(colls, waits_for_another_proxy_end)
{
	enum { WELL, FAILED, WAYS, STREAMS = 8 };
	struct rank *a = &self->r[0], *b = &self->r[1];
	uint64_t word = new_crossings(self->r, self->n), stands, at[STREAMS], last, one;
	volatile uint64_t *gated;

	ASSERT_NE(word, 0);
	for (int i = 0; i < STREAMS; i++)
		at[i] = new_stream(b, CU_STREAM_NON_BLOCKING);
	ASSERT_EQ(new_comm(b, 1, 90, "alone"), 0);
	for (int way = 0; way < WAYS; way++) {
		ASSERT_EQ(new_comm(a, 1, 80, "fails first"), 0);
		ASSERT_EQ(new_comm(a, 1, 81, "fails then"), 0);
		ASSERT_EQ(way == WELL ? gate(a, a->other, &gated) : refused(a, 80, a->stream), 0);
		for (int i = 0; i < STREAMS; i++)
			ASSERT_EQ(cross(a, way == WELL ? a->other : a->stream, b, at[i], word + 32 * i, way + 1), 0);
		if (way == WELL) {
			ASSERT_EQ(query(b, SV_OP_cuStreamQuery, b->other), 0);
			*gated = 1;
		} else {
			/* It sees that what has failed has ended when it is over. */
			for (int i = 0; i < STREAMS; i++)
				ASSERT_EQ(stream_soon(b, at[i]), CUDA_ERROR_EXTERNAL_DEVICE);
			kill(b->c.proxy, SIGSTOP);
			ASSERT_EQ(end_comm(a, 80, SV_COMM_ABORT), 0);
			ASSERT_EQ(stream_soon(a, a->stream), 0);
			kill(b->c.proxy, SIGCONT);
		}
		for (int i = 0; i < STREAMS; i++)
			ASSERT_EQ(stream_soon(b, at[i]), 0);
		usleep(50000);		/* so that its thread that looks sleeps */
		/* When this one stands, it has looked at all others. */
		stands = new_stream(a, CU_STREAM_NON_BLOCKING);
		last = new_stream(b, CU_STREAM_NON_BLOCKING);
		ASSERT_EQ(refused(a, 81, stands), 0);
		ASSERT_EQ(cross(a, stands, b, last, word + 32 * STREAMS, way + 1), 0);
		ASSERT_EQ(stream_soon(b, last), CUDA_ERROR_EXTERNAL_DEVICE);
		for (int i = 0; i < STREAMS; i++) {
			one = new_stream(b, CU_STREAM_NON_BLOCKING);
			ASSERT_EQ(COLL(b, 90, one, all_reduce(b, 16)), 0);
			ASSERT_EQ(stream_soon(b, one), 0)
				TH_LOG("stream %d of way %d", i, way);
		}
		ASSERT_EQ(stream_soon(b, last), CUDA_ERROR_EXTERNAL_DEVICE);
		ASSERT_EQ(end_comm(a, 81, SV_COMM_ABORT), 0);
		ASSERT_EQ(stream_soon(b, last), 0);
		if (way == WELL)
			ASSERT_EQ(end_comm(a, 80, 0), 0);
	}
}

/* A stream covers a stream in which something is always open, and is not held up by it: what it tells others is forgotten. */
TEST_F(colls, what_others_have_been_told_is_forgotten)
{
	enum { CYCLES = 10, EACH = 4000 };
	struct rank *r = &self->r[0], *late = &self->r[3];
	uint64_t word = new_crossings(self->r, self->n), before = 0;
	volatile uint64_t *first, *gated;

	ASSERT_NE(word, 0);
	ASSERT_EQ(new_comm(r, 1, 78, "alone"), 0);
	ASSERT_EQ(gate(r, r->stream, &first), 0);
	ASSERT_EQ(gate(late, late->stream, &gated), 0);
	ASSERT_EQ(COLL(r, 78, r->stream, all_reduce(r, 16)), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, r->event, r->stream }), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
			.ctx = r->c.ctx, .hStream = r->other, .hEvent = r->event }), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	*first = 1;
	ASSERT_EQ(sync_stream(r, r->other), 0);
	for (int k = 0; k < CYCLES; k++) {
		for (int i = 0; i < EACH; i++)
			ASSERT_EQ(SEND(&r->c, SV_OP_X_CROSS_TELL, (struct sv_cross){
					r->c.ctx, r->other, word, k * EACH + i + 1 }), 0);
		ASSERT_EQ(sync_stream(r, r->other), 0);
		if (!k)
			before = resident(r->c.proxy);
	}
	EXPECT_NE(before, 0);
	EXPECT_LT(resident(r->c.proxy), before + MiB);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->stream), CUDA_ERROR_NOT_READY);
	*gated = 1;
	EXPECT_EQ(sync_stream(r, r->stream), 0);
}

/* What is parked behind a failure says whose it is: who waits over a proxy that says nothing goes on when that has ended. */
TEST_F(colls, a_parked_store_names_its_failure)
{
	struct rank *r = self->r;
	uint64_t word = new_crossings(r, self->n);
	struct sv_sync_on last = { r[2].c.ctx, r[2].stream };
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_NE(word, 0);
	ASSERT_EQ(new_comm(r, 1, 79, "fails"), 0);
	ASSERT_EQ(refused(&r[0], 79, r[0].stream), 0);
	ASSERT_EQ(cross(&r[0], r[0].stream, &r[1], r[1].stream, word, 1), 0);
	ASSERT_EQ(cross(&r[1], r[1].stream, &r[2], r[2].stream, word + 32, 1), 0);
	ASSERT_EQ(stream_soon(&r[2], r[2].stream), CUDA_ERROR_EXTERNAL_DEVICE);
	kill(r[1].c.proxy, SIGSTOP);
	ASSERT_EQ(end_comm(&r[0], 79, SV_COMM_ABORT), 0);
	ASSERT_EQ(ring_request(r[2].c.ring, &t, SV_OP_cuStreamSynchronize, &last, sizeof(last), NULL, 0), 0);
	ASSERT_EQ(query(&r[2], SV_OP_cuStreamQuery, SV_STREAM_LEGACY), 0);
	kill(r[1].c.proxy, SIGCONT);
	ASSERT_EQ(ring_await(r[2].c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, 0);
}

/*
 * A failure has ended, and the stream goes on, but is not there yet: who waits for it waits, though the communicator's word
 * is used again. What has been said since at the place of the first is not taken back with it.
 */
TEST_F(colls, what_was_said_is_taken_back)
{
	struct rank *a = &self->r[0], *b = &self->r[1];
	uint64_t word = new_crossings(self->r, self->n), beside = new_stream(b, CU_STREAM_NON_BLOCKING);
	uint64_t again = new_stream(b, CU_STREAM_NON_BLOCKING), more = new_stream(a, CU_STREAM_NON_BLOCKING);
	struct sv_sync_on on = { b->c.ctx, b->stream };
	struct sv_comm_word *first = a->word;
	volatile uint64_t *late, *gated;
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_NE(word, 0);
	ASSERT_EQ(gate(&self->r[3], self->r[3].stream, &late), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, i % 3 ? self->r[i].other : self->r[i].stream,
			       all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(gate(a, a->stream, &gated), 0);
	ASSERT_EQ(cross(a, a->stream, b, b->stream, word, 1), 0);
	ASSERT_EQ(cross(a, a->stream, b, beside, word + 32, 1), 0);
	ASSERT_TRUE(all_have_posted(self->r, self->n));
	die(self->r, self->board, 3);
	ASSERT_EQ(stream_soon(b, b->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(stream_soon(b, beside), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(new_comm(a, 1, 79, "another one"), 0);
	ASSERT_EQ(refused(a, 79, a->other), 0);
	ASSERT_EQ(cross(a, a->other, b, again, word + 32, 2), 0);
	ASSERT_EQ(stream_soon(b, again), CUDA_ERROR_EXTERNAL_DEVICE);
	/* What stands as before is not said again. */
	ASSERT_EQ(refused(a, 79, more), 0);
	ASSERT_EQ(stream_soon(a, more), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(stream_soon(b, again), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(end_comm(a, self->comm, 0), 0);
	first->state = SV_COMM_STANDS;
	ASSERT_EQ(stream_soon(b, again), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(ring_request(b->c.ring, &t, SV_OP_cuStreamSynchronize, &on, sizeof(on), NULL, 0), 0);
	ASSERT_EQ(query(b, SV_OP_cuStreamQuery, SV_STREAM_LEGACY), 0);
	*gated = 1;
	ASSERT_EQ(ring_await(b->c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, 0);
	ASSERT_EQ(stream_soon(b, beside), 0);
	ASSERT_EQ(end_comm(a, 79, 0), 0);
	ASSERT_EQ(stream_soon(b, again), 0);
}

/* Rank 0's event becomes one of rank 1's, too. */
static int share_event(struct rank *from, struct rank *to)
{
	struct sv_ipc_event a = { .ctx = to->c.ctx, .event = to->event,
				  .h = { .magic = SV_IPC_MAGIC, .version = SV_IPC_VERSION, .kind = SV_IPC_EVENT } };
	struct sv_sync_on on = { from->c.ctx, from->event };
	struct sv_ipc_shown shown;
	int rc = call2(&from->c, SV_OP_cuIpcGetEventHandle, &on, sizeof(on), NULL, 0, &shown, sizeof(shown));

	memcpy(a.h.server, shown.server, 16);
	memcpy(a.h.secret, shown.secret, 16);
	return rc ?: CALL(&to->c, SV_OP_cuIpcOpenEventHandle, a);
}

/* What waits for an event of another process learns that its record stands, and waits on when that goes on. */
TEST_F(colls, waits_for_a_shared_event_that_stands_fail)
{
	struct rank *a = &self->r[0], *b = &self->r[1];
	struct sv_sync_on on = { b->c.ctx, b->event };
	volatile uint64_t *late, *gated;
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_EQ(share_event(a, b), 0);
	ASSERT_EQ(gate(&self->r[3], self->r[3].stream, &late), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, i % 3 ? self->r[i].other : self->r[i].stream,
			       all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(gate(a, a->stream, &gated), 0);
	ASSERT_EQ(CALL(&a->c, SV_OP_X_IPC_RECORD, (struct sv_ipc_on){ a->c.ctx, a->event, a->stream }), 0);
	ASSERT_EQ(CALL(&b->c, SV_OP_X_IPC_WAIT, (struct sv_ipc_on){ b->c.ctx, b->event, b->stream }), 0);
	ASSERT_EQ(ring_request(b->c.ring, &t, SV_OP_X_IPC_SYNC, &on, sizeof(on), NULL, 0), 0);
	ASSERT_EQ(query(b, SV_OP_X_IPC_QUERY, b->event), CUDA_ERROR_NOT_READY);
	ASSERT_TRUE(all_have_posted(self->r, self->n));
	die(self->r, self->board, 3);
	ASSERT_EQ(ring_await(b->c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(stream_soon(b, b->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(sync_soon(b, SV_OP_X_IPC_SYNC, b->event), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(end_comm(a, self->comm, 0), 0);
	ASSERT_EQ(ring_request(b->c.ring, &t, SV_OP_X_IPC_SYNC, &on, sizeof(on), NULL, 0), 0);
	ASSERT_EQ(query(b, SV_OP_X_IPC_QUERY, b->event), CUDA_ERROR_NOT_READY);
	*gated = 1;
	status = -1;
	ASSERT_EQ(ring_await(b->c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, 0);
	ASSERT_EQ(stream_soon(b, b->stream), 0);
}

TEST_HARNESS_MAIN
