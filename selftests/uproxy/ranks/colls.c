// SPDX-License-Identifier: Apache-2.0
/*
 * colls.c - collective operations through proxies: what is parked, what works, what fails
 */
#include "colls.h"

/* ------------------------------------------------------------------------------ what is parked */

static bool is_full(struct rank *r)
{
	return __atomic_load_n(&r->c.shared->late, __ATOMIC_ACQUIRE) & SV_LATE_FULL;
}

/* Asks whether a memset of the stream may be handed in. 0: the answer is still open. */
static int room(struct rank *r, struct ring_ticket *t, uint16_t op, uint64_t stream, int64_t ns)
{
	struct sv_room a = { .op = op };
	struct sv_cuMemsetD32Async m = { .ctx = r->c.ctx, .hStream = stream };
	struct sv_sync_on on = { r->c.ctx, stream };
	const void *p = op == SV_OP_cuStreamQuery ? (void *)&on : &m;
	uint32_t len = op == SV_OP_cuStreamQuery ? sizeof(on) : sizeof(m);

	if (ring_request(r->c.ring, t, SV_OP_X_ROOM, &a, sizeof(a), p, len))
		return -1;
	return ring_expect(r->c.ring, t, ns) == 0;
}

static int answer(struct rank *r, struct ring_ticket *t)
{
	int32_t status = -1;

	return ring_await(r->c.ring, t, &status, NULL, 0, NULL, 20000000000) ?: status;
}

static int parks(struct rank *r, uint64_t stream, uint32_t n)
{
	int rc = 0;

	for (uint32_t i = 0; i < n && !rc; i++)
		rc = fill(r, stream, r->dev + MiB, i, 1);
	return rc ?: query(r, SV_OP_cuStreamQuery, r->other);
}

/* A communicator of this rank alone ends: all that is parked is looked at. */
static int new_and_ended(struct rank *r, uint64_t comm)
{
	char id[24];

	snprintf(id, sizeof(id), "ends at once %u", (unsigned int)comm);
	return new_comm(r, 1, comm, id) ?: end_comm(r, comm, 0) ?: query(r, SV_OP_cuStreamQuery, r->other);
}

/* From a number of parked records on a client is told to ask, and waits until half of them have run. */
TEST_F(colls, a_stream_that_has_too_much_parked_has_no_room)
{
	struct rank *r = &self->r[0];
	struct ring_ticket t[4];

	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(fill(&self->r[i], self->r[i].stream, self->r[i].dev, bits(1), 1024), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 1024)), 0);
	ASSERT_EQ(parks(r, r->stream, 20 << 10), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 1024)), 0);
	ASSERT_EQ(parks(r, r->stream, (44 << 10) - 1), 0);
	ASSERT_EQ(room(r, &t[0], SV_OP_cuMemsetD32Async, r->stream, 20000000000), 1);
	EXPECT_EQ(answer(r, &t[0]), 0);
	EXPECT_FALSE(is_full(r));
	ASSERT_EQ(parks(r, r->stream, 1), 0);
	EXPECT_TRUE(is_full(r));
	/* the stream has no room, for whoever asks; another one has, and so has what is not parked */
	ASSERT_EQ(room(r, &t[0], SV_OP_cuMemsetD32Async, r->stream, 100000000), 0);
	ASSERT_EQ(room(r, &t[1], SV_OP_cuMemsetD32Async, r->stream, 1), 0);
	ASSERT_EQ(room(r, &t[2], SV_OP_cuMemsetD32Async, r->other, 20000000000), 1);
	EXPECT_EQ(answer(r, &t[2]), 0);
	ASSERT_EQ(room(r, &t[2], SV_OP_cuStreamQuery, r->stream, 20000000000), 1);
	EXPECT_EQ(answer(r, &t[2]), 0);
	ASSERT_EQ(room(r, &t[2], SV_OP_cuMemsetD32Async, 12345, 20000000000), 1);
	EXPECT_EQ(answer(r, &t[2]), 0);
	ASSERT_EQ(fill(r, r->other, r->dev + 2 * MiB, 7, 1), 0);
	ASSERT_EQ(down(r, r->other, MiB, r->dev + 2 * MiB, 4), 0);
	ASSERT_EQ(sync_stream(r, r->other), 0);
	EXPECT_EQ(*word_at(r, MiB), 7);
	/* nor does an end make room */
	ASSERT_EQ(new_and_ended(r, 78), 0);
	EXPECT_EQ(ring_expect(r->c.ring, &t[0], 50000000), -ETIMEDOUT);
	EXPECT_TRUE(is_full(r));
	/* nor what runs up to the next collective, since more than half is left */
	for (int k = 0; k < 2; k++) {
		for (int i = 1; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream,
				       all_reduce(&self->r[i], 1024)), 0);
		ASSERT_EQ(sync_stream(&self->r[1], self->r[1].stream), 0);
		ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
		if (k)
			break;
		EXPECT_TRUE(is_full(r));
		EXPECT_EQ(ring_expect(r->c.ring, &t[0], 1), -ETIMEDOUT);
	}
	EXPECT_EQ(answer(r, &t[0]), 0);
	EXPECT_EQ(answer(r, &t[1]), 0);
	ASSERT_EQ(down(r, r->stream, 0, r->dev + MiB, 4), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(sync_stream(&self->r[i], self->r[i].stream), 0);
	EXPECT_EQ(*word_at(r, 0), 0);
	EXPECT_FALSE(is_full(r));
}

/* What has large payloads is counted by its bytes; a session with many streams has a limit, too. */
TEST_F(colls, a_session_that_has_too_much_parked_has_no_room)
{
	struct rank *r = &self->r[0];
	uint64_t st[17], e = new_handle(&r->c, SV_T_CUevent);
	struct sv_coll_call bad = all_reduce(r, 2 * MiB);	/* more than its memory */
	struct sv_comm_word *word = r->word;
	struct ring_ticket t[2];

	ASSERT_EQ(new_comm(r, 1, 78, "alone"), 0);
	r->word = word;

	for (int i = 0; i < 17; i++) {
		st[i] = new_handle(&r->c, SV_T_CUstream);
		ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
				.ctx = r->c.ctx, .phStream = st[i], .Flags = CU_STREAM_NON_BLOCKING }), 0);
	}
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){
			.ctx = r->c.ctx, .phEvent = e }), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 1024)), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){
			r->c.ctx, e, r->stream }), 0);
	for (int i = 0; i < 17; i++)
		ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
				.ctx = r->c.ctx, .hStream = st[i], .hEvent = e }), 0);
	for (int i = 0; i < 16; i++)
		ASSERT_EQ(parks(r, st[i], 62 << 10), 0);
	EXPECT_FALSE(is_full(r));
	ASSERT_EQ(room(r, &t[0], SV_OP_cuMemsetD32Async, st[16], 20000000000), 1);
	EXPECT_EQ(answer(r, &t[0]), 0);
	ASSERT_EQ(parks(r, st[16], 33 << 10), 0);
	EXPECT_TRUE(is_full(r));
	ASSERT_EQ(room(r, &t[0], SV_OP_cuMemsetD32Async, r->other, 100000000), 0);
	ASSERT_EQ(room(r, &t[1], SV_OP_cuStreamQuery, r->other, 20000000000), 1);
	EXPECT_EQ(answer(r, &t[1]), 0);
	/* While a stream stands behind a failure, the program is let through to what ends that. */
	ASSERT_EQ(new_and_ended(r, 79), 0);
	EXPECT_EQ(ring_expect(r->c.ring, &t[0], 1), -ETIMEDOUT);
	ASSERT_EQ(COLL(r, 78, r->other, bad), 0);
	EXPECT_EQ(answer(r, &t[0]), 0);
	ASSERT_EQ(CALL(&r->c, SV_OP_X_COMM_END, (struct sv_comm_end){ .comm = 78 }), 0);
	ASSERT_EQ(room(r, &t[0], SV_OP_cuMemsetD32Async, r->other, 100000000), 0);
	ASSERT_EQ(new_and_ended(r, 80), 0);
	EXPECT_EQ(ring_expect(r->c.ring, &t[0], 1), -ETIMEDOUT);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 1024)), 0);
	EXPECT_EQ(answer(r, &t[0]), 0);
	ASSERT_EQ(ctx_sync(&r->c), 0);
	EXPECT_FALSE(is_full(r));
}

/* Records with large payloads have a limit of their own. */
TEST_F(colls, large_payloads_that_are_parked_count)
{
	enum { EACH = 1024, GROUPS = 1700 };
	static struct sv_coll_call call[EACH];
	struct rank *r = &self->r[0];

	for (int i = 0; i < EACH; i++)
		call[i] = pair(r, STEP_SEND, 1, 1);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 16)), 0);
	for (int i = 0; i < GROUPS; i++) {
		ASSERT_EQ(send_calls(r, self->comm, r->stream, call, EACH), 0);
		if (i == GROUPS / 2) {
			ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
			EXPECT_FALSE(is_full(r));
		}
	}
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
	EXPECT_TRUE(is_full(r));
	EXPECT_EQ(end_comm(r, self->comm, SV_COMM_ABORT), 0);
	EXPECT_EQ(sync_stream(r, r->stream), 0);
	EXPECT_FALSE(is_full(r));
}

/* Small sends end before their receivers come as long as there is room for them; then a send waits. */
TEST_F(colls, small_sends_have_a_budget)
{
	enum { ROOM = 256, MORE = 3 };
	struct rank *from = &self->r[0], *to = &self->r[1];
	struct sv_coll_call send = { .kind = STEP_SEND, .type = TREE_F32, .peer = 1, .count = MiB / 4,
				     .send = from->dev };
	struct sv_coll_call recv = { .kind = STEP_RECV, .type = TREE_F32, .peer = 0, .count = MiB / 4,
				     .recv = to->dev };

	for (int i = 0; i < ROOM; i++) {
		ASSERT_EQ(fill(from, from->stream, from->dev, i, MiB / 4), 0);
		ASSERT_EQ(COLL(from, self->comm, from->stream, send), 0);
	}
	ASSERT_EQ(sync_stream(from, from->stream), 0);
	for (int i = ROOM; i < ROOM + MORE; i++) {
		ASSERT_EQ(fill(from, from->stream, from->dev, i, MiB / 4), 0);
		ASSERT_EQ(COLL(from, self->comm, from->stream, send), 0);
		ASSERT_EQ(query(from, SV_OP_cuStreamQuery, from->stream), CUDA_ERROR_NOT_READY);
		usleep(20000);
		ASSERT_EQ(query(from, SV_OP_cuStreamQuery, from->stream), CUDA_ERROR_NOT_READY);
		/* Such a thing may fail: no word tells of it. */
		ASSERT_EQ(CALL(&from->c, SV_OP_X_WATCH_STREAM,
			       (struct sv_watch){ from->c.ctx, from->stream, from->pin + 5 * MiB, 1 }),
			  CUDA_ERROR_NOT_READY);
		ASSERT_EQ(*(uint64_t *)(from->c.arena + from->pin + 5 * MiB), 0);
	}
	for (int i = 0; i < 100; i++) {
		ASSERT_EQ(query(from, SV_OP_cuStreamQuery, from->stream), CUDA_ERROR_NOT_READY);
		usleep(1000);
	}
	for (int i = 0; i < ROOM + MORE; i++) {
		ASSERT_EQ(COLL(to, self->comm, to->stream, recv), 0);
		ASSERT_EQ(down(to, to->stream, 0, to->dev, 4), 0);
		ASSERT_EQ(sync_stream(to, to->stream), 0);
		ASSERT_EQ(*word_at(to, 0), i);
	}
	ASSERT_EQ(sync_stream(from, from->stream), 0);
	/* the room is there again */
	ASSERT_EQ(COLL(from, self->comm, from->stream, send), 0);
	ASSERT_EQ(sync_stream(from, from->stream), 0);
	ASSERT_EQ(COLL(to, self->comm, to->stream, recv), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
}

/* Sends of one communicator that nobody receives take so many records that others' would have no place. */
TEST_F(colls, what_nobody_receives_keeps_no_other_communicator_waiting)
{
	enum { SENDS = 1000 };
	struct rank *from = &self->r[0], *to = &self->r[1];
	struct sv_comm_word *first = from->word;

	ASSERT_EQ(new_comm(self->r, self->n, 78, "another one"), 0);
	for (int i = 0; i < SENDS; i++) {
		ASSERT_EQ(fill(from, from->stream, from->dev, i, 1), 0);
		ASSERT_EQ(COLL(from, self->comm, from->stream, {
				.kind = STEP_SEND, .type = TREE_INT32, .peer = 1, .count = 1, .send = from->dev }), 0);
	}
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(fill(&self->r[i], self->r[i].other, self->r[i].dev + MiB, bits(1), 1024), 0);
	for (int round = 0; round < 5; round++)
		for (int i = 0; i < self->n; i++) {
			struct sv_coll_call sum = all_reduce(&self->r[i], 1024);

			sum.send = self->r[i].dev + MiB;
			ASSERT_EQ(send_calls(&self->r[i], 78, self->r[i].other, &sum, 1), 0);
		}
	for (int i = 0; i < self->n; i++) {
		ASSERT_EQ(down(&self->r[i], self->r[i].other, MiB, self->r[i].dev + 4 * MiB, 4), 0);
		ASSERT_EQ(sync_stream(&self->r[i], self->r[i].other), 0);
		EXPECT_EQ(*word_at(&self->r[i], MiB), bits(4));
	}
	EXPECT_EQ(query(from, SV_OP_cuStreamQuery, from->stream), CUDA_ERROR_NOT_READY);
	for (int i = 0; i < SENDS; i++)
		ASSERT_EQ(COLL(to, self->comm, to->stream, {
				.kind = STEP_RECV, .type = TREE_INT32, .peer = 0, .count = 1, .recv = to->dev + 4 * i }), 0);
	ASSERT_EQ(down(to, to->stream, 0, to->dev, 4 * SENDS), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
	ASSERT_EQ(sync_stream(from, from->stream), 0);
	for (int i = 0; i < SENDS; i++)
		ASSERT_EQ(*word_at(to, 4 * i), i);
	EXPECT_EQ(first->code, 0);
	EXPECT_EQ(from->word->code, 0);
}

/* A word says that the ends before it have been executed, and none is parked. */
TEST_F(colls, ends_are_seen_when_none_is_parked)
{
	struct rank *r = &self->r[0];
	struct sv_seen a = { r->pin + 3 * MiB, 5 };
	volatile uint64_t *word = (volatile uint64_t *)(r->c.arena + a.word);
	uint64_t e = new_handle(&r->c, SV_T_CUevent);

	*word = 0;
	ASSERT_EQ(SEND(&r->c, SV_OP_X_SEEN, a), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
	EXPECT_EQ(*word, 5);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){
			.ctx = r->c.ctx, .phEvent = e }), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 1024)), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){
			r->c.ctx, e, r->stream }), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventDestroy_v2, (struct sv_cuEventDestroy_v2){ e }), 0);
	a.value = 6;
	ASSERT_EQ(SEND(&r->c, SV_OP_X_SEEN, a), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
	EXPECT_EQ(*word, 5);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 1024)), 0);
	ASSERT_EQ(ctx_sync(&r->c), 0);
	EXPECT_EQ(*word, 6);
	/* the index is free */
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){
			.ctx = r->c.ctx, .phEvent = e }), 0);
	ASSERT_EQ(ctx_sync(&r->c), 0);
}

/* Work behind a collective may fail, though the device comes to its end: no word tells of it. */
TEST_F(colls, what_is_behind_a_collective_is_not_watched)
{
	struct rank *r = &self->r[0];
	struct sv_watch stream = { r->c.ctx, r->stream, r->pin + 3 * MiB, 1 }, event = stream;
	volatile uint64_t *told = (volatile uint64_t *)(r->c.arena + stream.word), *late;

	event.on = new_handle(&r->c, SV_T_CUevent);
	event.word += 8;
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){
			.ctx = r->c.ctx, .phEvent = event.on }), 0);
	ASSERT_EQ(gate(&self->r[3], self->r[3].stream, &late), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 1024)), 0);
	for (int i = 0; i < 2 * self->n; i++)		/* twice, so that all know of all */
		ASSERT_EQ(query(&self->r[i % self->n], SV_OP_cuStreamQuery, self->r[i % self->n].other), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, event.on, r->stream }), 0);
	for (int i = 0; i < 3; i++) {
		ASSERT_EQ(CALL(&r->c, SV_OP_X_WATCH_STREAM, stream), CUDA_ERROR_NOT_READY);
		ASSERT_EQ(CALL(&r->c, SV_OP_X_WATCH_EVENT, event), CUDA_ERROR_NOT_READY);
		usleep(20000);
	}
	*late = 1;
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(ctx_sync(&self->r[i].c), 0);
	ASSERT_EQ(CALL(&r->c, SV_OP_X_WATCH_EVENT, event), 0);
	EXPECT_EQ(told[0], 0);
	EXPECT_EQ(told[1], 0);
}

/* ------------------------------------------------------------------------------ what works */

TEST_F(colls, sums_what_all_ranks_have)
{
	for (int i = 0; i < self->n; i++) {
		struct rank *r = &self->r[i];

		ASSERT_EQ(fill(r, r->stream, r->dev, bits(1 << i), 100000), 0);
		ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 100000)), 0);
		ASSERT_EQ(down(r, r->stream, 0, r->dev + 4 * MiB, 400000), 0);
	}
	for (int i = 0; i < self->n; i++) {
		ASSERT_EQ(sync_stream(&self->r[i], self->r[i].stream), 0);
		EXPECT_EQ(*word_at(&self->r[i], 0), bits(15));
		EXPECT_EQ(*word_at(&self->r[i], 399996), bits(15));
		EXPECT_EQ(self->r[i].word->code, 0);
		EXPECT_EQ(self->r[i].word->state, SV_COMM_STANDS);
	}
}

/* What is behind a collective in its stream waits; other streams go on; nothing is answered early. */
TEST_F(colls, holds_up_its_own_stream_alone)
{
	struct rank *r = &self->r[0];
	struct waiter sync, event;

	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(fill(&self->r[i], self->r[i].stream, self->r[i].dev, bits(1), 1024), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 1024)), 0);
	ASSERT_EQ(down(r, r->stream, 0, r->dev + 4 * MiB, 4096), 0);
	/* behind it: a change of what it sends, an event, and another stream that waits for that */
	ASSERT_EQ(fill(r, r->stream, r->dev, bits(100), 1024), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){
				r->c.ctx, r->event, r->stream }), 0);
	ASSERT_EQ(fill(r, r->other, r->dev + MiB, 7, 1), 0);
	ASSERT_EQ(down(r, r->other, MiB, r->dev + MiB, 4), 0);
	ASSERT_EQ(sync_stream(r, r->other), 0);
	EXPECT_EQ(*word_at(r, MiB), 7);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
				.ctx = r->c.ctx, .hStream = r->other, .hEvent = r->event }), 0);
	ASSERT_EQ(down(r, r->other, 2 * MiB, r->dev, 4), 0);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->stream), CUDA_ERROR_NOT_READY);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->other), CUDA_ERROR_NOT_READY);
	EXPECT_EQ(query(r, SV_OP_cuEventQuery, r->event), CUDA_ERROR_NOT_READY);
	ASSERT_EQ(waiter_start(&sync, r, SV_OP_cuStreamSynchronize, r->stream), 0);
	ASSERT_EQ(waiter_start(&event, r, SV_OP_cuEventSynchronize, r->event), 0);
	for (int i = 1; i < self->n - 1; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 1024)), 0);
	usleep(100000);
	EXPECT_FALSE(sync.done);
	EXPECT_FALSE(event.done);
	EXPECT_EQ(*word_at(r, 0), 0);
	EXPECT_EQ(*word_at(r, 2 * MiB), 0);
	r = &self->r[self->n - 1];
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 1024)), 0);
	r = &self->r[0];
	EXPECT_EQ(waiter_end(&sync), 0);
	EXPECT_EQ(waiter_end(&event), 0);
	ASSERT_EQ(sync_stream(r, r->other), 0);
	EXPECT_EQ(*word_at(r, 0), bits(4));
	EXPECT_EQ(*word_at(r, 2 * MiB), bits(100));
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->stream), 0);
	EXPECT_EQ(query(r, SV_OP_cuEventQuery, r->event), 0);
}

/* The figures say who waited, how long, and for whom. */
TEST_F(colls, waits_are_counted_for_those_who_wait)
{
	struct rank *late = &self->r[self->n - 1];

	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < self->n - 1; i++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 1024)), 0);
		usleep(200000);
		EXPECT_NE(shown(&self->r[0]).coll_waits.since, 0);
		EXPECT_EQ(shown(late).coll_waits.since, 0);
		ASSERT_EQ(COLL(late, self->comm, late->stream, all_reduce(late, 1024)), 0);
		for (int i = 0; i < self->n; i++)
			ASSERT_EQ(sync_stream(&self->r[i], self->r[i].stream), 0);
	}
	for (int i = 0; i < self->n; i++) {
		struct uproxy_stat s = shown(&self->r[i]);

		ASSERT_EQ(s.magic, UPROXY_STAT_MAGIC);
		EXPECT_EQ(s.collectives, 3);
		EXPECT_EQ(s.coll_waits.since, 0);
		EXPECT_EQ(s.coll_runs.since, 0);
		EXPECT_GT(s.coll_runs.ns, 0);
		EXPECT_EQ(s.coll_last, i == self->n - 1 ? 3 : 0);
		if (i < self->n - 1) {
			EXPECT_GE(s.coll_waits.ns, 3 * 190000000ull);
		} else {
			EXPECT_LT(s.coll_waits.ns, shown(&self->r[0]).coll_waits.ns);
		}
	}
	/* Of two that wait one has begun. */
	for (int k = 0; k < 2; k++)
		ASSERT_EQ(COLL(&self->r[0], self->comm, k ? self->r[0].other : self->r[0].stream,
			       all_reduce(&self->r[0], 1024)), 0);
	for (int k = 0; k < 2; k++) {
		for (int i = 1; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 1024)), 0);
		ASSERT_EQ(sync_stream(&self->r[0], k ? self->r[0].other : self->r[0].stream), 0);
		EXPECT_EQ(!shown(&self->r[0]).coll_waits.since, k);
	}
}

/* An object that what is parked still uses may be destroyed, as CUDA allows. */
TEST_F(colls, objects_end_when_what_is_parked_has_used_them)
{
	struct rank *r = &self->r[0];
	uint64_t st = new_handle(&r->c, SV_T_CUstream), ev = new_handle(&r->c, SV_T_CUevent);

	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(fill(&self->r[i], self->r[i].stream, self->r[i].dev, bits(2), 16), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
			.ctx = r->c.ctx, .phStream = st, .Flags = CU_STREAM_NON_BLOCKING }), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){
			.ctx = r->c.ctx, .phEvent = ev }), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	ASSERT_EQ(COLL(r, self->comm, st, all_reduce(r, 16)), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, ev, st }), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
				.ctx = r->c.ctx, .hStream = r->other, .hEvent = ev }), 0);
	ASSERT_EQ(down(r, r->other, 0, r->dev + 4 * MiB, 4), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventDestroy_v2, (struct sv_cuEventDestroy_v2){ ev }), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamDestroy_v2, (struct sv_stream_end){ st }), 0);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(sync_stream(r, r->other), 0);
	EXPECT_EQ(*word_at(r, 0), bits(8));
	EXPECT_EQ(ctx_sync(&r->c), 0);
	EXPECT_EQ(late_code(&r->c), 0);
}

TEST_F(colls, a_small_send_completes_before_anybody_receives_it)
{
	struct rank *from = &self->r[0], *to = &self->r[2];
	struct sv_coll_call call = { .kind = STEP_SEND, .type = TREE_INT32, .peer = 2, .count = 256 * KiB,
				     .send = from->dev };

	ASSERT_EQ(fill(from, from->stream, from->dev, 11, 256 * KiB), 0);
	ASSERT_EQ(send_calls(from, self->comm, from->stream, &call, 1), 0);
	ASSERT_EQ(fill(from, from->stream, from->dev, 12, 256 * KiB), 0);
	ASSERT_EQ(sync_stream(from, from->stream), 0);
	call = (struct sv_coll_call){ .kind = STEP_RECV, .type = TREE_INT32, .peer = 0, .count = 256 * KiB,
				      .recv = to->dev };
	ASSERT_EQ(send_calls(to, self->comm, to->stream, &call, 1), 0);
	ASSERT_EQ(down(to, to->stream, 0, to->dev, MiB), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
	EXPECT_EQ(*word_at(to, 0), 11);
	EXPECT_EQ(*word_at(to, MiB - 4), 11);
}

TEST_F(colls, a_large_send_waits_for_its_receiver)
{
	struct rank *from = &self->r[1], *to = &self->r[3];
	struct sv_coll_call call = { .kind = STEP_SEND, .type = TREE_INT32, .peer = 3, .count = 512 * KiB,
				     .send = from->dev };

	ASSERT_EQ(fill(from, from->stream, from->dev, 21, 512 * KiB), 0);
	ASSERT_EQ(send_calls(from, self->comm, from->stream, &call, 1), 0);
	usleep(50000);
	EXPECT_EQ(query(from, SV_OP_cuStreamQuery, from->stream), CUDA_ERROR_NOT_READY);
	call = (struct sv_coll_call){ .kind = STEP_RECV, .type = TREE_INT32, .peer = 1, .count = 512 * KiB,
				      .recv = to->dev };
	ASSERT_EQ(send_calls(to, self->comm, to->stream, &call, 1), 0);
	ASSERT_EQ(down(to, to->stream, 0, to->dev, 2 * MiB), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
	ASSERT_EQ(sync_stream(from, from->stream), 0);
	EXPECT_EQ(*word_at(to, 2 * MiB - 4), 21);
}

/* Each rank sends to all in one group, itself included: the pairs do not block each other. */
TEST_F(colls, a_group_of_pairs_reaches_everybody)
{
	for (int i = 0; i < self->n; i++) {
		struct rank *r = &self->r[i];
		struct sv_coll_call call[2 * RANKS];

		for (int p = 0; p < self->n; p++) {
			uint64_t len = MiB / 2 + MiB / 4;

			ASSERT_EQ(fill(r, r->stream, r->dev + p * len, 10 * i + p, len / 4), 0);
			/* rank i begins with itself, and receives in the opposite order */
			call[2 * p] = (struct sv_coll_call){ .kind = STEP_SEND, .type = TREE_INT32,
				.peer = (i + p) % self->n, .count = len / 4,
				.send = r->dev + (i + p) % self->n * len };
			call[2 * p + 1] = (struct sv_coll_call){ .kind = STEP_RECV, .type = TREE_INT32,
				.peer = (i - p + self->n) % self->n, .count = len / 4,
				.recv = r->dev + 4 * MiB + (i - p + self->n) % self->n * len };
		}
		ASSERT_EQ(send_calls(r, self->comm, r->stream, call, 2 * self->n), 0);
		ASSERT_EQ(down(r, r->stream, 0, r->dev + 4 * MiB, 3 * MiB), 0);
	}
	for (int i = 0; i < self->n; i++) {
		ASSERT_EQ(sync_stream(&self->r[i], self->r[i].stream), 0);
		for (int p = 0; p < self->n; p++)
			EXPECT_EQ(*word_at(&self->r[i], (p + 1) * (MiB / 2 + MiB / 4) - 4), 10 * p + i);
	}
}

/* Two communicators in opposite order on two streams: the log has one order. */
TEST_F(colls, opposite_orders_do_not_deadlock)
{
	struct sv_comm_word *first[RANKS];

	for (int i = 0; i < self->n; i++)
		first[i] = self->r[i].word;
	ASSERT_EQ(new_comm(self->r, self->n, 78, "another"), 0);
	for (int round = 0; round < 50; round++)
		for (int i = 0; i < self->n; i++) {
			struct rank *r = &self->r[i];
			uint64_t a = i % 2 ? self->comm : 78, b = i % 2 ? 78 : self->comm;

			ASSERT_EQ(COLL(r, a, i % 2 ? r->stream : r->other, all_reduce(r, 1000)), 0);
			ASSERT_EQ(COLL(r, b, i % 2 ? r->other : r->stream, all_reduce(r, 1000)), 0);
		}
	for (int i = 0; i < self->n; i++) {
		ASSERT_EQ(ctx_sync(&self->r[i].c), 0);
		EXPECT_EQ(self->r[i].word->code, 0);
		EXPECT_EQ(first[i]->code, 0);
	}
}

/* More records than there are slots for outstanding ones. */
TEST_F(colls, hosts_may_run_far_ahead)
{
	for (int round = 0; round < 2000; round++)
		for (int i = 0; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream,
				       all_reduce(&self->r[i], 64)), 0);
	for (int i = 0; i < self->n; i++) {
		ASSERT_EQ(ctx_sync(&self->r[i].c), 0);
		EXPECT_EQ(self->r[i].word->code, 0);
	}
}

/* One rank runs ahead of the others by more than that. */
TEST_F(colls, a_rank_may_run_far_ahead_of_the_others)
{
	for (int i = 0; i < self->n; i++)
		for (int round = 0; round < 1500; round++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream,
				       all_reduce(&self->r[i], 64)), 0);
	for (int i = 0; i < self->n; i++) {
		ASSERT_EQ(ctx_sync(&self->r[i].c), 0);
		EXPECT_EQ(self->r[i].word->code, 0);
	}
}

TEST_F(colls, a_rank_that_leaves_owes_what_it_has_sent)
{
	struct rank *from = &self->r[1], *to = &self->r[2];
	struct sv_coll_call call = { .kind = STEP_SEND, .type = TREE_INT32, .peer = 2, .count = 1000,
				     .send = from->dev };

	ASSERT_EQ(fill(from, from->stream, from->dev, 31, 1000), 0);
	ASSERT_EQ(send_calls(from, self->comm, from->stream, &call, 1), 0);
	ASSERT_EQ(sync_stream(from, from->stream), 0);
	ASSERT_EQ(ring_submit(from->c.ring, SV_OP_X_COMM_LEAVE, NULL, 0, NULL, 0), 0);
	ring_close(from->c.ring);
	from->c.ring = NULL;
	usleep(100000);
	EXPECT_EQ(waitpid(from->c.proxy, NULL, WNOHANG), 0);
	call = (struct sv_coll_call){ .kind = STEP_RECV, .type = TREE_INT32, .peer = 1, .count = 1000,
				      .recv = to->dev };
	ASSERT_EQ(send_calls(to, self->comm, to->stream, &call, 1), 0);
	ASSERT_EQ(down(to, to->stream, 0, to->dev, 4000), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
	EXPECT_EQ(*word_at(to, 3996), 31);
	EXPECT_EQ(client_wait(&from->c), 0);
	board_die(self->board, 1);
	from->c.proxy = 0;
	/* A collective needs it. */
	ASSERT_EQ(COLL(to, self->comm, to->stream, all_reduce(to, 16)), 0);
	EXPECT_EQ(sync_stream(to, to->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(code_of(to), STEP_REMOTE);
}

/* ------------------------------------------------------------------------------ what fails */

TEST_F(colls, counts_that_differ_are_refused)
{
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream,
			       all_reduce(&self->r[i], i == 2 ? 17 : 16)), 0);
	for (int i = 0; i < self->n; i++) {
		EXPECT_EQ(code_of(&self->r[i]), STEP_INVALID_USAGE);
		EXPECT_EQ(sync_stream(&self->r[i], self->r[i].stream), CUDA_ERROR_EXTERNAL_DEVICE);
	}
}

/* ------------------------------------------------------------------------------ what covers a failed operation */

enum { STREAM, EVENT, OTHER, CONTEXT, COPY, ROWS, WAITS };	/* OTHER: a stream that waits for the event */

static int copy_now(struct rank *r, uint64_t stream, uint64_t to, bool rows)
{
	struct sv_copy a = { r->c.ctx, stream, address(&r->c, r->pin + to), r->dev, 4096, 0, 0 };
	struct sv_copy3d b = { .ctx = r->c.ctx, .stream = stream, .width = 64, .height = 8, .depth = 1,
			       .dst = { .addr = a.dst, .pitch = 64, .height = 8 },
			       .src = { .addr = r->dev, .pitch = 64, .height = 8 } };

	return rows ? call2(&r->c, SV_OP_cuMemcpy3DAsync_v2, &b, sizeof(b), NULL, 0, NULL, 0) :
		      call2(&r->c, SV_OP_cuMemcpyAsync, &a, sizeof(a), NULL, 0, NULL, 0);
}

static int wait_for_it(struct rank *r, int how)
{
	switch (how) {
	case STREAM:
		return sync_stream(r, r->stream);
	case EVENT:
		return query(r, SV_OP_cuEventSynchronize, r->event);
	case OTHER:
		return sync_stream(r, r->other);
	case CONTEXT:
		return ctx_sync(&r->c);
	default:
		return copy_now(r, how == COPY ? r->stream : r->other, 2 * MiB, how == ROWS);
	}
}

struct covering {
	struct rank *r;
	int how, status;
	pthread_t thread;
};

static void *covering_main(void *arg)
{
	struct covering *c = arg;

	c->status = wait_for_it(c->r, c->how);
	return NULL;
}

/* Behind the first rank's all-reduce: copies, an event, another stream, and each way to wait, begun before it fails. */
static int cover(struct rank *r, struct covering *c, bool parked)
{
	int rc = down(r, r->stream, 0, r->dev, 4096) ?:
		 SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, r->event, r->stream }) ?:
		 SEND(&r->c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
				.ctx = r->c.ctx, .hStream = r->other, .hEvent = r->event }) ?:
		 down(r, r->other, MiB, r->dev, 4096);

	/* One that ends before the wait for it can run. */
	r->ends = new_handle(&r->c, SV_T_CUevent);
	rc = rc ?: SEND(&r->c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){ .ctx = r->c.ctx, .phEvent = r->ends }) ?:
	     SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, r->ends, r->stream }) ?:
	     SEND(&r->c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
			.ctx = r->c.ctx, .hStream = r->other, .hEvent = r->ends });
	for (int i = 0; i < WAITS && !rc; i++) {
		c[i] = (struct covering){ .r = r, .how = i };
		if (parked || (i != ROWS && i != COPY))	/* the client sends these when there is nothing before them */
			rc = pthread_create(&c[i].thread, NULL, covering_main, &c[i]);
	}
	usleep(50000);		/* so that they wait; it is right, too, if they come later */
	return rc;
}

/* A query says for a while that it is not done, and then how it is. */
static int asked(struct rank *r, uint16_t op, uint64_t on)
{
	int status;

	while ((status = query(r, op, on)) == CUDA_ERROR_NOT_READY)
		usleep(10000);
	return status;
}

static bool untouched(struct rank *r)
{
	bool is = true;

	for (int i = 0; i < 3; i++)
		is &= *word_at(r, i * MiB) == 0x5a5a5a5a;
	return is;
}

static void poison(struct rank *r)
{
	memset(r->c.arena + r->pin, 0x5a, 3 * MiB);
}

/*
 * All of these end with EXTERNAL_DEVICE, again and again, and nothing is written, until the program aborts or
 * destroys (flags 0) the communicator: then what was not waited for goes on.
 */
static void all_fail(struct __test_metadata *_metadata, struct rank *r, struct covering *c, bool parked, uint32_t flags)
{
	struct sv_comm_end end = { .comm = 77, .flags = flags };
	uint64_t clean = new_handle(&r->c, SV_T_CUstream);

	for (int i = 0; i < WAITS; i++) {
		if (!parked && (i == ROWS || i == COPY))
			continue;
		pthread_join(c[i].thread, NULL);
		EXPECT_EQ(c[i].status, CUDA_ERROR_EXTERNAL_DEVICE)
			TH_LOG("a wait of kind %d, begun before", i);
	}
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < WAITS; i++) {
			EXPECT_EQ(wait_for_it(r, i), CUDA_ERROR_EXTERNAL_DEVICE)
				TH_LOG("a wait of kind %d", i);
		}
	/* An event is what it was recorded for last. */
	EXPECT_EQ(query(r, SV_OP_cuEventSynchronize, r->ends), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(SEND(&r->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
				.ctx = r->c.ctx, .phStream = clean, .Flags = CU_STREAM_NON_BLOCKING }), 0);
	EXPECT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, r->ends, clean }), 0);
	EXPECT_EQ(query(r, SV_OP_cuEventSynchronize, r->ends), 0);
	EXPECT_EQ(SEND(&r->c, SV_OP_cuEventDestroy_v2, (struct sv_cuEventDestroy_v2){ r->ends }), 0);
	EXPECT_EQ(asked(r, SV_OP_cuStreamQuery, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(asked(r, SV_OP_cuStreamQuery, r->other), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(asked(r, SV_OP_cuEventQuery, r->event), CUDA_ERROR_EXTERNAL_DEVICE);
	if (parked)
		EXPECT_EQ(asked(r, SV_OP_cuStreamQuery, SV_STREAM_LEGACY), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_TRUE(untouched(r));
	EXPECT_EQ(call2(&r->c, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0, NULL, 0), 0);
	EXPECT_EQ(sync_stream(r, r->stream), 0);
	EXPECT_EQ(sync_stream(r, r->other), 0);
	EXPECT_EQ(query(r, SV_OP_cuEventSynchronize, r->event), 0);
	EXPECT_EQ(ctx_sync(&r->c), 0);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->stream), 0);
	EXPECT_EQ(*word_at(r, 0), bits(1));
	EXPECT_EQ(*word_at(r, MiB), bits(1));
	EXPECT_EQ(*word_at(r, 2 * MiB), 0x5a5a5a5a);	/* those that were told of an error never come */
	/* the context is not broken */
	EXPECT_EQ(fill(r, r->stream, r->dev, bits(3), 1024), 0);
	EXPECT_EQ(copy_now(r, r->stream, 2 * MiB, false), 0);
	EXPECT_EQ(*word_at(r, 2 * MiB), bits(3));
	EXPECT_EQ(late_count(&r->c), 0);
}

/* The stream of an operation that never began is held in the proxy. */
TEST_F(colls, waits_behind_an_operation_that_never_began_fail)
{
	struct rank *r = &self->r[0];
	struct covering c[WAITS];

	poison(r);
	ASSERT_EQ(fill(r, r->stream, r->dev, bits(1), 1024), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 1024)), 0);
	ASSERT_EQ(cover(r, c, true), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
			.ctx = r->c.ctx, .hStream = new_stream(r, 0), .hEvent = r->event }), 0);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 1023)), 0);
	all_fail(_metadata, r, c, true, SV_COMM_ABORT);
}

/* One that has begun waits in the driver, and so does what is behind it: here for rank 1, which is killed. */
TEST_F(colls, waits_behind_an_operation_that_has_begun_fail)
{
	struct rank *r = &self->r[0], *late = &self->r[1];
	struct covering c[WAITS];

	poison(r);
	*(uint64_t *)(late->c.arena + late->pin + 6 * MiB) = 0;
	ASSERT_EQ(SEND(&late->c, SV_OP_cuStreamWaitValue64_v2, (struct sv_cuStreamWaitValue64_v2){
				.ctx = late->c.ctx, .stream = late->stream,
				.addr = address(&late->c, late->pin + 6 * MiB), .value = 1,
				.flags = CU_STREAM_WAIT_VALUE_GEQ }), 0);
	ASSERT_EQ(fill(r, r->stream, r->dev, bits(1), 1024), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 1024)), 0);
	ASSERT_EQ(cover(r, c, false), 0);
	kill(late->c.proxy, SIGKILL);
	waitpid(late->c.proxy, NULL, 0);
	board_die(self->board, 1);
	all_fail(_metadata, r, c, false, 0);
	ring_close(late->c.ring);
	late->c.proxy = 0;
}

/* Streams that do not depend on it, and an earlier event, are not held up; legacy order makes them depend. */
TEST_F(colls, waits_that_do_not_cover_a_failure_succeed)
{
	struct sv_comm_end end = { .comm = self->comm, .flags = SV_COMM_ABORT };
	struct rank *r = &self->r[0];
	uint64_t blocking = new_handle(&r->c, SV_T_CUstream), before = new_handle(&r->c, SV_T_CUevent);

	poison(r);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
				.ctx = r->c.ctx, .phStream = blocking }), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){
				.ctx = r->c.ctx, .phEvent = before }), 0);
	ASSERT_EQ(fill(r, blocking, r->dev, bits(1), 1024), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, i ? self->r[i].stream : blocking,
			       all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, before, blocking }), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, r->event, blocking }), 0);
	ASSERT_EQ(COLL(r, self->comm, blocking, all_reduce(r, 1024)), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, r->event, blocking }), 0);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 1023)), 0);
	EXPECT_EQ(sync_stream(r, blocking), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(query(r, SV_OP_cuEventSynchronize, r->event), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(query(r, SV_OP_cuEventSynchronize, before), 0);
	EXPECT_EQ(query(r, SV_OP_cuEventQuery, before), 0);
	EXPECT_EQ(fill(r, r->stream, r->dev + MiB, 7, 1024), 0);
	EXPECT_EQ(sync_stream(r, r->stream), 0);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->stream), 0);
	/* The event is another one when it is recorded again. */
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, r->event, r->stream }), 0);
	EXPECT_EQ(query(r, SV_OP_cuEventSynchronize, r->event), 0);
	EXPECT_EQ(sync_stream(r, SV_STREAM_LEGACY), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(copy_now(r, SV_STREAM_LEGACY, 0, false), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(call2(&r->c, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0, NULL, 0), 0);
	EXPECT_EQ(sync_stream(r, SV_STREAM_LEGACY), 0);
	EXPECT_EQ(copy_now(r, SV_STREAM_LEGACY, 0, false), 0);
	EXPECT_EQ(*word_at(r, 0), bits(1));
}

enum { HOPS = 3 };

/*
 * Rank 1's stream waits for rank 0's, in which an operation is about to fail, rank 2's for rank 1's, and another stream
 * of rank 0's for that. A wait for each begins; and what is behind it must not be written.
 */
static int cross_all(struct rank *r, uint64_t word, struct waiter *w)
{
	int rc = cross(&r[0], r[0].stream, &r[1], r[1].stream, word, 1) ?:
		 fill(&r[1], r[1].stream, r[1].dev, bits(1), 1024) ?: down(&r[1], r[1].stream, 0, r[1].dev, 4096) ?:
		 cross(&r[1], r[1].stream, &r[2], r[2].stream, word + 64, 7) ?:
		 cross(&r[2], r[2].stream, &r[0], r[0].other, word + 128, 1) ?:
		 waiter_start(&w[0], &r[1], SV_OP_cuStreamSynchronize, r[1].stream) ?:
		 waiter_start(&w[1], &r[2], SV_OP_cuStreamSynchronize, r[2].stream) ?:
		 waiter_start(&w[2], &r[0], SV_OP_cuStreamSynchronize, r[0].other);

	usleep(50000);		/* so that they wait; it is right, too, if they come later */
	return rc;
}

static void all_cross_fail(struct __test_metadata *_metadata, struct rank *r, struct waiter *w)
{
	struct sv_comm_end end = { .comm = 77, .flags = SV_COMM_ABORT };

	for (int i = 0; i < HOPS; i++) {
		EXPECT_EQ(waiter_end(&w[i]), CUDA_ERROR_EXTERNAL_DEVICE)
			TH_LOG("a wait over %d crossings, begun before", i + 1);
	}
	EXPECT_EQ(sync_stream(&r[1], r[1].stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(sync_stream(&r[2], r[2].stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(sync_stream(&r[0], r[0].other), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(copy_now(&r[1], r[1].stream, 2 * MiB, false), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(asked(&r[1], SV_OP_cuStreamQuery, r[1].stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(late_count(&r[1].c), 0);
	EXPECT_TRUE(untouched(&r[1]));
	/* When the abort has returned, all wait for what comes. */
	EXPECT_EQ(call2(&r[0].c, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0, NULL, 0), 0);
	EXPECT_EQ(sync_stream(&r[0], r[0].other), 0);
	EXPECT_EQ(sync_stream(&r[2], r[2].stream), 0);
	EXPECT_EQ(sync_stream(&r[1], r[1].stream), 0);
	EXPECT_EQ(*word_at(&r[1], 0), bits(1));
	EXPECT_EQ(*word_at(&r[1], 2 * MiB), 0x5a5a5a5a);
}

/* What waits for another proxy's stream is told of that stream's failure: here before it has come to its store. */
TEST_F(colls, waits_for_another_proxy_that_is_parked_fail)
{
	uint64_t word = new_crossings(self->r, self->n);
	struct waiter w[HOPS];

	ASSERT_NE(word, 0);
	poison(&self->r[1]);
	ASSERT_EQ(COLL(&self->r[0], self->comm, self->r[0].stream, all_reduce(&self->r[0], 1024)), 0);
	ASSERT_EQ(cross_all(self->r, word, w), 0);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].other, all_reduce(&self->r[i], 1023)), 0);
	all_cross_fail(_metadata, self->r, w);
}

/* ... and here while the store waits in the driver. */
TEST_F(colls, waits_for_another_proxy_that_has_begun_fail)
{
	uint64_t word = new_crossings(self->r, self->n);
	struct rank *late = &self->r[3];
	struct waiter w[HOPS];

	ASSERT_NE(word, 0);
	poison(&self->r[1]);
	*(uint64_t *)(late->c.arena + late->pin + 6 * MiB) = 0;
	ASSERT_EQ(SEND(&late->c, SV_OP_cuStreamWaitValue64_v2, (struct sv_cuStreamWaitValue64_v2){
				.ctx = late->c.ctx, .stream = late->stream,
				.addr = address(&late->c, late->pin + 6 * MiB), .value = 1,
				.flags = CU_STREAM_WAIT_VALUE_GEQ }), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, i % 3 ? self->r[i].other : self->r[i].stream,
			       all_reduce(&self->r[i], 1024)), 0);
	ASSERT_EQ(cross_all(self->r, word, w), 0);
	kill(late->c.proxy, SIGKILL);
	waitpid(late->c.proxy, NULL, 0);
	board_die(self->board, 3);
	all_cross_fail(_metadata, self->r, w);
	ring_close(late->c.ring);
	late->c.proxy = 0;
}

/* Another proxy's stream that goes on is waited for, however much fails besides; words are used again. */
TEST_F(colls, waits_for_another_proxy_that_goes_on_succeed)
{
	uint64_t word = new_crossings(self->r, self->n);
	struct rank *a = &self->r[0], *b = &self->r[1];

	ASSERT_NE(word, 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16 + !i)), 0);
	EXPECT_EQ(sync_stream(a, a->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	for (int i = 1; i < 100; i++) {
		ASSERT_EQ(cross(a, a->other, b, b->other, word, i), 0);
		ASSERT_EQ(cross(b, b->other, a, a->other, word + 32, i), 0);
		if (i % 10)
			continue;
		ASSERT_EQ(sync_stream(a, a->other), 0);
		ASSERT_EQ(sync_stream(b, b->other), 0);
	}
	/* then it stands, and what is behind that, when nobody has looked for a while */
	usleep(100000);
	ASSERT_EQ(cross(a, a->stream, b, b->other, word, 1000), 0);
	EXPECT_EQ(sync_stream(b, b->other), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(sync_stream(a, a->other), 0);
}

/* A communicator ends behind its parked calls, so that they do what they would; but not behind a failure. */
TEST_F(colls, a_communicator_ends_behind_its_parked_calls)
{
	struct sv_comm_end end = { .comm = self->comm };
	struct ring_ticket ticket;
	struct rank *r = &self->r[0];
	int32_t status = -1;

	ASSERT_EQ(new_comm(self->r, self->n, 78, "another one, behind whose call the other's is parked"), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(fill(&self->r[i], self->r[i].stream, self->r[i].dev, bits(1), 32), 0);
	ASSERT_EQ(COLL(r, 78, r->stream, all_reduce(r, 16)), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 32)), 0);
	ASSERT_EQ(ring_request(r->c.ring, &ticket, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0), 0);
	usleep(20000);
	for (int i = 1; i < self->n; i++) {
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 32)), 0);
		ASSERT_EQ(COLL(&self->r[i], 78, self->r[i].other, all_reduce(&self->r[i], 16)), 0);
	}
	EXPECT_EQ(ring_await(r->c.ring, &ticket, &status, NULL, 0, NULL, 60000000000), 0);
	EXPECT_EQ(status, 0);
	ASSERT_EQ(down(r, r->stream, 0, r->dev + 4 * MiB, 128), 0);
	EXPECT_EQ(sync_stream(r, r->stream), 0);
	EXPECT_EQ(*word_at(r, 31 * 4), bits(4));
}

TEST_F(colls, a_failed_communicator_ends_with_its_parked_calls)
{
	struct sv_comm_end end = { .comm = self->comm };
	struct ring_ticket ticket;
	struct rank *r = &self->r[0];
	int32_t status = -1;

	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], i ? 17 : 16)), 0);
	EXPECT_EQ(sync_stream(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	/* What fails later, and otherwise, does not hide the first failure. */
	EXPECT_EQ(call2(&self->r[1].c, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0, NULL, 0), 0);
	ASSERT_EQ(COLL(r, self->comm, r->other, all_reduce(r, 16)), 0);
	EXPECT_EQ(sync_stream(r, r->other), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(code_of(r), STEP_INVALID_USAGE);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 32)), 0);
	EXPECT_EQ(ctx_sync(&r->c), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(ring_request(r->c.ring, &ticket, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0), 0);
	EXPECT_EQ(ring_await(r->c.ring, &ticket, &status, NULL, 0, NULL, 60000000000), 0);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(ctx_sync(&r->c), 0);
}

TEST_F(colls, abort_frees_what_waits)
{
	struct rank *r = &self->r[0];
	struct sv_comm_end end = { .comm = self->comm, .flags = SV_COMM_ABORT };
	struct waiter sync;

	for (int i = 0; i < 2; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(waiter_start(&sync, r, SV_OP_cuStreamSynchronize, r->stream), 0);
	usleep(20000);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->stream), CUDA_ERROR_NOT_READY);
	EXPECT_EQ(call2(&r->c, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0, NULL, 0), 0);
	EXPECT_EQ(waiter_end(&sync), 0);
	EXPECT_EQ(sync_stream(r, r->stream), 0);
	/* and what it waited for at the others */
	EXPECT_EQ(code_of(&self->r[1]), STEP_REMOTE);
	EXPECT_EQ(sync_stream(&self->r[1], self->r[1].stream), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(COLL(&self->r[2], self->comm, self->r[2].stream, all_reduce(&self->r[2], 16)), 0);
	EXPECT_EQ(code_of(&self->r[2]), STEP_REMOTE);
}

/* An operation that has been started, and whose stream never came to it, keeps later ones of the device no longer waiting. */
TEST_F(colls, what_is_taken_back_keeps_no_later_operation_waiting)
{
	struct rank *r = &self->r[0], *other = &self->r[1];
	volatile uint64_t *word;

	ASSERT_EQ(new_comm(self->r, 2, 78, "of two"), 0);
	ASSERT_EQ(gate(r, r->stream, &word), 0);
	ASSERT_EQ(COLL(r, 78, r->stream, all_reduce(r, 16)), 0);
	ASSERT_EQ(COLL(other, 78, other->stream, all_reduce(other, 16)), 0);
	for (int i = 0; i < 10000 && shown(r).coll_waits.since; i++)
		usleep(1000);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].other, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(end_comm(other, 78, SV_COMM_ABORT), 0);
	for (int i = 0; i < self->n; i++)
		EXPECT_EQ(sync_stream(&self->r[i], self->r[i].other), 0);
	*word = 1;
	ASSERT_EQ(end_comm(r, 78, SV_COMM_ABORT), 0);
	EXPECT_EQ(sync_stream(r, r->stream), 0);
}

/* The notice of a stream may come after the stream itself has come to the wait, and then lets it go. */
TEST_F(colls, a_stream_that_comes_late_to_an_aborted_call_goes_on)
{
	struct sv_comm_end end = { .comm = self->comm, .flags = SV_COMM_ABORT };
	struct rank *r = &self->r[0];
	uint64_t *held = (uint64_t *)(r->c.arena + r->pin + 6 * MiB);

	*held = 0;
	ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamWaitValue64_v2, (struct sv_cuStreamWaitValue64_v2){
				.ctx = r->c.ctx, .stream = r->stream,
				.addr = address(&r->c, r->pin + 6 * MiB), .value = 1,
				.flags = CU_STREAM_WAIT_VALUE_GEQ }), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	usleep(20000);
	EXPECT_EQ(call2(&r->c, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0, NULL, 0), 0);
	EXPECT_EQ(code_of(&self->r[1]), STEP_REMOTE);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->stream), CUDA_ERROR_NOT_READY);
	__atomic_store_n(held, 1, __ATOMIC_RELEASE);
	EXPECT_EQ(sync_stream(r, r->stream), 0);
	for (int i = 1; i < self->n; i++)
		EXPECT_EQ(sync_stream(&self->r[i], self->r[i].stream), CUDA_ERROR_EXTERNAL_DEVICE);
}

/* At any moment of a collective: waiting, moving data, idle. */
TEST_F(colls, a_killed_proxy_fails_the_others_in_two_seconds)
{
	for (int i = 0; i < self->n; i++)
		for (int round = 0; round < 20; round++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream,
				       all_reduce(&self->r[i], i == 3 && round == 19 ? 0 : MiB)), 0);
	usleep(5000 + getpid() % 7 * 5000);
	kill(self->r[1].c.proxy, SIGKILL);
	waitpid(self->r[1].c.proxy, NULL, 0);
	board_die(self->board, 1);
	for (int i = 0; i < self->n; i++) {
		if (i == 1)
			continue;
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
		EXPECT_EQ(code_of(&self->r[i]), STEP_REMOTE);
		EXPECT_EQ(sync_stream(&self->r[i], self->r[i].stream), CUDA_ERROR_EXTERNAL_DEVICE);
	}
	ring_close(self->r[1].c.ring);
	self->r[1].c.proxy = 0;
}

TEST_F(colls, two_ranks_on_one_device_are_refused)
{
	struct sv_comm_new a = { .ctx = self->r[0].c.ctx, .comm = 90, .ranks = 2, .id = "twice" };
	struct ring_ticket t[2];
	struct sv_comm_word *w[2];
	int32_t status;

	for (int i = 0; i < 2; i++) {
		a.comm = 90 + i;
		a.rank = i;
		a.word = new_word(&self->r[0], &w[i]);
		ASSERT_EQ(ring_request(self->r[0].c.ring, &t[i], SV_OP_X_COMM_NEW, &a, sizeof(a), NULL, 0), 0);
	}
	for (int i = 0; i < 2; i++) {
		struct sv_comm_result res;

		ASSERT_EQ(ring_await(self->r[0].c.ring, &t[i], &status, &res, sizeof(res), NULL,
				     20000000000), 0);
		EXPECT_EQ(status, 0);
		EXPECT_EQ(res.code, STEP_INVALID_USAGE);
		EXPECT_NE(strstr(w[i]->text, "Duplicate GPU"), NULL)
			TH_LOG("%s", w[i]->text);
	}
}

TEST_F(colls, ranks_that_do_not_agree_on_their_number_are_refused)
{
	struct sv_comm_new a = { .ctx = self->r[0].c.ctx, .comm = 90, .ranks = 2, .id = "two or three" };
	struct ring_ticket t[2];
	struct sv_comm_word *w;
	int32_t status;

	for (int i = 0; i < 2; i++) {
		a.rank = i;
		a.ranks = 2 + i;
		a.ctx = self->r[i].c.ctx;
		a.word = new_word(&self->r[i], &w);
		ASSERT_EQ(ring_request(self->r[i].c.ring, &t[i], SV_OP_X_COMM_NEW, &a, sizeof(a), NULL, 0), 0);
	}
	for (int i = 0; i < 2; i++) {
		struct sv_comm_result res;

		ASSERT_EQ(ring_await(self->r[i].c.ring, &t[i], &status, &res, sizeof(res), NULL,
				     20000000000), 0);
		EXPECT_EQ(res.code, STEP_INVALID_USAGE);
	}
}

static void hear_member(void *ctx, const struct step_action *a)
{
	if (a->kind == STEP_JOINED)
		*(uint32_t *)ctx = a->member;
}

/* Its ranks are two seats of this process, of which one posts; a job of more than 64 ranks comes to that by itself. */
TEST_F(colls, a_board_that_is_full_is_named)
{
	struct step_event join = { .kind = STEP_JOIN, .proxy = RANKS, .comm = 5, .ranks = 2 };
	struct rank *r = &self->r[0];
	const struct sv_coll_call one = all_reduce(r, 16);
	struct step_call call[SV_COLL_CALLS_MAX];
	struct step_event post = { .kind = STEP_POST, .ncalls = SV_COLL_CALLS_MAX, .calls = call };
	uint32_t member = ~0u, other;
	int rc = 0, n = 0;

	for (uint32_t i = 0; i < 2; i++) {
		board_reserve(self->board, RANKS + i, &(struct board_place){ .rank = RANKS + i });
		ASSERT_EQ(board_enter(self->board, RANKS + i, "", 0), 0);
		join.proxy = RANKS + i;
		join.rank = i;
		ASSERT_GE(board_step(self->board, RANKS + i, &join, hear_member, i ? &other : &member), 0);
	}
	ASSERT_GE(board_mail(self->board, RANKS, hear_member, &member), 0);
	ASSERT_NE(member, ~0u);
	for (uint32_t i = 0; i < SV_COLL_CALLS_MAX; i++)
		call[i] = (struct step_call){ .kind = STEP_ALLREDUCE, .type = TREE_UINT8, .count = 1 };
	post.member = member;
	for (n = 0; rc >= 0 && n < 1000; n++) {
		post.cookie = n + 1;
		rc = board_step(self->board, RANKS, &post, hear_member, &member);
	}
	ASSERT_EQ(rc, -ENOSPC);
	EXPECT_EQ(n, BOARD_OPS / SV_COLL_CALLS_MAX + 1);
	ASSERT_EQ(send_calls(r, self->comm, r->stream, &one, 1), 0);
	EXPECT_EQ(code_of(r), STEP_SYSTEM);
	EXPECT_STREQ(r->word->text, "the job's board is full: its ranks have 131072 operations under way; smaller groups or "
		     "synchronisation help");
	/* With that communicator its operations are gone, and another one works. */
	board_die(self->board, RANKS);
	board_die(self->board, RANKS + 1);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(end_comm(&self->r[i], self->comm, 1), 0);
	ASSERT_EQ(new_comm(self->r, self->n, 78, "another"), 0);
	for (int i = 0; i < self->n; i++) {
		const struct sv_coll_call again = all_reduce(&self->r[i], 16);

		ASSERT_EQ(send_calls(&self->r[i], 78, self->r[i].stream, &again, 1), 0);
	}
	for (int i = 0; i < self->n; i++)
		EXPECT_EQ(query(&self->r[i], SV_OP_cuStreamSynchronize, self->r[i].stream), 0);
}

/* So many that their ends still have room in a mailbox; the fixture's counts, too. */
TEST_F(colls, communicators_of_one_process_are_bounded)
{
	struct rank *r = &self->r[0];
	char id[32];

	r->words = r->pin + 2 * MiB;
	for (int i = 0; i < 1023; i++) {
		snprintf(id, sizeof(id), "alone %d", i);
		ASSERT_EQ(new_comm(r, 1, 100 + i, id), 0)
			TH_LOG("communicator %d: %s", i, r->word->text);
	}
	EXPECT_EQ(new_comm(r, 1, 99, "one more"), STEP_SYSTEM);
	EXPECT_STREQ(r->word->text, "more than 1024 communicators of one process");
	EXPECT_EQ(CALL(&r->c, SV_OP_X_COMM_END, (struct sv_comm_end){ .comm = 99 }), 0);
	EXPECT_EQ(CALL(&r->c, SV_OP_X_COMM_END, (struct sv_comm_end){ .comm = 100 }), 0);
	EXPECT_EQ(new_comm(r, 1, 98, "in its place"), 0);
}

/* A client may send anything: its session ends by name, and the others' collectives with it. */
TEST_F(colls, hostile_records_end_their_own_session)
{
	struct rank *r = &self->r[3];
	const struct sv_coll_call good = all_reduce(r, 16);
	struct sv_coll a = { .ctx = r->c.ctx, .stream = r->stream, .comm = self->comm, .calls = 1 };
	struct sv_coll_call bad;

	/* addresses outside of the window are an error of the call, as of a copy */
	bad = good;
	bad.send = r->dev + 8 * MiB - 32;
	ASSERT_EQ(send_calls(r, self->comm, r->stream, &bad, 1), 0);
	EXPECT_EQ(sync_stream(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(late_count(&r->c), 1);
	EXPECT_EQ(code_of(r), STEP_INVALID_USAGE);
	/* too many elements for any memory */
	bad = good;
	bad.count = UINT64_MAX / 4;
	ASSERT_EQ(send_calls(r, self->comm, r->other, &bad, 1), 0);
	EXPECT_EQ(ctx_sync(&r->c), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(late_count(&r->c), 2);
	/* a word that lies, and that nobody stores: it is waited for, or not, and nothing more */
	{
		uint64_t at = r->pin + 3 * MiB;
		struct sv_cross_word *w = (struct sv_cross_word *)(r->c.arena + at);
		struct sv_cross x = { r->c.ctx, new_handle(&r->c, SV_T_CUstream), at, 9 };
		struct waiter sync;

		*w = (struct sv_cross_word){ .stands = 8, .cause = -8ull };
		ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
				.ctx = r->c.ctx, .phStream = x.stream, .Flags = CU_STREAM_NON_BLOCKING }), 0);
		ASSERT_EQ(SEND(&r->c, SV_OP_X_CROSS_WAIT, x), 0);
		ASSERT_EQ(waiter_start(&sync, r, SV_OP_cuStreamSynchronize, x.stream), 0);
		usleep(50000);
		EXPECT_FALSE(sync.done);
		EXPECT_EQ(query(r, SV_OP_cuStreamQuery, x.stream), CUDA_ERROR_NOT_READY);
		__atomic_store_n(&w->stands, 9, __ATOMIC_RELEASE);
		EXPECT_EQ(waiter_end(&sync), CUDA_ERROR_EXTERNAL_DEVICE);
		EXPECT_EQ(sync_stream(r, x.stream), CUDA_ERROR_EXTERNAL_DEVICE);
		__atomic_store_n(&w->cause, at + 8, __ATOMIC_RELAXED);
		__atomic_store_n(&w->stands, 0, __ATOMIC_RELEASE);
		__atomic_store_n(&w->arrived, 9, __ATOMIC_RELEASE);
		EXPECT_EQ(sync_stream(r, x.stream), 0);
	}
	/* a record that is shorter than it says */
	a.calls = 2;
	a.stream = SV_STREAM_LEGACY;
	ASSERT_EQ(ring_submit(r->c.ring, SV_OP_X_COLL, &a, sizeof(a), &good, sizeof(good)), 0);
	EXPECT_LT(ctx_sync(&r->c), 0);
	EXPECT_EQ(client_wait(&r->c), 1);
	ring_close(r->c.ring);
	r->c.proxy = 0;
	board_die(self->board, 3);
	ASSERT_EQ(COLL(&self->r[1], self->comm, self->r[1].stream, all_reduce(&self->r[1], 16)), 0);
	EXPECT_EQ(code_of(&self->r[1]), STEP_REMOTE);
	EXPECT_EQ(sync_stream(&self->r[1], self->r[1].stream), CUDA_ERROR_EXTERNAL_DEVICE);
}

TEST_F(colls, a_crossing_has_its_word_in_the_arena)
{
	struct rank *r = &self->r[3];
	struct sv_cross a = { r->c.ctx, r->stream, r->pin + 8 * MiB - 16, 1 };

	ASSERT_EQ(SEND(&r->c, SV_OP_X_CROSS_WAIT, a), 0);
	EXPECT_LT(ctx_sync(&r->c), 0);
	EXPECT_EQ(client_wait(&r->c), 1);
	ring_close(r->c.ring);
	r->c.proxy = 0;
	board_die(self->board, 3);
}

TEST_HARNESS_MAIN
