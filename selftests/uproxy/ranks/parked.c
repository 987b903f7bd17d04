// SPDX-License-Identifier: Apache-2.0
/*
 * parked.c - the order of what is parked: among streams, events, graphs, and in no stream
 */
#include "colls.h"
#include "graph.h"

/* Streams that wait for events of a stream that is held, before and behind its second collective. */
TEST_F(colls, waits_of_many_streams_end_in_their_order)
{
	enum { STREAMS = 24 };
	struct rank *r = &self->r[0];
	uint64_t st[STREAMS], e[STREAMS];

	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 16)), 0);
	for (int i = 0; i < STREAMS; i++) {
		st[i] = new_handle(&r->c, SV_T_CUstream);
		e[i] = new_handle(&r->c, SV_T_CUevent);
		ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
				.ctx = r->c.ctx, .phStream = st[i], .Flags = CU_STREAM_NON_BLOCKING }), 0);
		ASSERT_EQ(SEND(&r->c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){
				.ctx = r->c.ctx, .phEvent = e[i] }), 0);
		if (i == STREAMS / 2)
			ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 16)), 0);
		ASSERT_EQ(fill(r, r->stream, r->dev + MiB, i, 1), 0);
		ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, e[i], r->stream }), 0);
	}
	for (int i = 0; i < STREAMS; i++) {
		int k = i * 7 % STREAMS;

		ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
				.ctx = r->c.ctx, .hStream = st[k], .hEvent = e[k] }), 0);
		ASSERT_EQ(down(r, st[k], 4096 * k, r->dev + MiB, 4), 0);
	}
	for (int half = 0; half < 2; half++) {
		for (int i = half * STREAMS / 2; i < STREAMS; i++)
			ASSERT_EQ(query(r, SV_OP_cuStreamQuery, st[i]), CUDA_ERROR_NOT_READY);
		for (int i = 1; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
		for (int i = 0; i < STREAMS / 2; i++) {
			int k = half * STREAMS / 2 + i;

			ASSERT_EQ(sync_stream(r, st[k]), 0);
			EXPECT_GE(*word_at(r, 4096 * k), (uint32_t)k);
			EXPECT_LT(*word_at(r, 4096 * k), STREAMS / 2 * (half + 1u));
		}
	}
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(ctx_sync(&self->r[i].c), 0);
}

static const char seven[] =
	".version 8.1\n.target sm_75\n.address_size 64\n"
	".visible .entry seven(.param .u64 p)\n{\n.reg .b64 %rd<2>;\n.reg .b32 %r<2>;\n"
	"ld.param.u64 %rd1, [p];\ncvta.to.global.u64 %rd1, %rd1;\n"
	"mov.u32 %r1, 7;\nst.global.u32 [%rd1], %r1;\nret;\n}\n";

/* A graph of one kernel with one parameter; op: makes the graph, or changes it. */
static int graph_of(struct rank *r, uint16_t op, uint64_t exec, uint64_t kernel, uint64_t param)
{
	struct {
		struct sv_graph g;
		struct sv_graph_node n;
		struct sv_launch l;
		uint64_t param;
	} one = { .g = { .nodes = 1 },
		  .n = { .size = sizeof(one) - sizeof(one.g), .type = SV_NODE_KERNEL, .ctx = r->c.ctx },
		  .l = { .ctx = r->c.ctx, .function = kernel, .grid = { 1, 1, 1 }, .block = { 1, 1, 1 },
			 .param_bytes = 8 },
		  .param = param };
	struct sv_graph_req a = { .ctx = r->c.ctx, .exec = exec, .off = SV_GRAPH_INLINE, .len = sizeof(one) };

	return call2(&r->c, op, &a, sizeof(a), &one, sizeof(one), NULL, 0);
}

/*
 * A proxy forgets what parked records were about when these have run, though something is parked all the time; but not
 * that a graph is still to be launched.
 */
TEST_F(colls, names_of_what_was_parked_are_forgotten)
{
	enum { CYCLES = 40, EACH = 1000, FIRST = 8 };
	struct rank *r = &self->r[0];
	uint64_t exec = new_handle(&r->c, SV_T_CUgraphExec), kernel, before = 0;
	int rc;

	kernel = get_kernel(&r->c, load_text(&r->c, seven, &rc), "seven", NULL);
	ASSERT_NE(kernel, 0);
	ASSERT_EQ(graph_of(r, SV_OP_X_GRAPH, exec, kernel, r->dev + MiB), 0);
	ASSERT_EQ(fill(r, r->other, r->dev + MiB, 1, 16), 0);
	ASSERT_EQ(new_comm(self->r, self->n, 78, "waits all the time"), 0);
	ASSERT_EQ(COLL(r, 78, r->other, all_reduce(r, 16)), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuGraphLaunch, (struct sv_graph_launch){ r->c.ctx, r->other, exec, 0, 0 }), 0);
	for (int k = 0; k < CYCLES; k++) {
		ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 16)), 0);
		/* Of communicators that have been aborted, as far as the proxy knows. */
		for (int i = 0; i < EACH; i++)
			ASSERT_EQ(COLL(r, 1000 + k * EACH + i, r->stream, all_reduce(r, 16)), 0);
		ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->stream), CUDA_ERROR_NOT_READY);
		for (int i = 1; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
		ASSERT_EQ(sync_stream(r, r->stream), 0);
		if (k == FIRST)
			before = resident(r->c.proxy);
	}
	EXPECT_NE(before, 0);
	EXPECT_LT(resident(r->c.proxy), before + MiB);
	ASSERT_EQ(graph_of(r, SV_OP_X_GRAPH_UPDATE, exec, kernel, r->dev + MiB + 4), 0);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], 78, self->r[i].other, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(down(r, r->other, 0, r->dev + MiB, 64), 0);
	EXPECT_EQ(ctx_sync(&r->c), 0);
	EXPECT_EQ(*word_at(r, 0), 7);
	EXPECT_EQ(*word_at(r, 4), 1);
}

/* The legacy stream and blocking ones wait for each other, whether what they have is in the driver or parked. */
TEST_F(colls, what_is_parked_keeps_the_legacy_order)
{
	struct rank *r = &self->r[0];
	uint64_t blocking[2];

	for (int i = 0; i < 2; i++) {
		blocking[i] = new_handle(&r->c, SV_T_CUstream);
		ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
				.ctx = r->c.ctx, .phStream = blocking[i] }), 0);
	}
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(fill(&self->r[i], self->r[i].stream, self->r[i].dev, bits(1), 16), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	ASSERT_EQ(COLL(r, self->comm, blocking[0], all_reduce(r, 16)), 0);
	ASSERT_EQ(down(r, SV_STREAM_LEGACY, 0, r->dev + 4 * MiB, 64), 0);
	ASSERT_EQ(fill(r, blocking[1], r->dev + 4 * MiB, 9, 16), 0);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, SV_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, blocking[1]), CUDA_ERROR_NOT_READY);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(sync_stream(r, blocking[1]), 0);
	EXPECT_EQ(*word_at(r, 60), bits(4));
	ASSERT_EQ(down(r, blocking[1], 0, r->dev + 4 * MiB, 64), 0);
	ASSERT_EQ(sync_stream(r, blocking[1]), 0);
	/* A query of the legacy stream alone: nothing of its own is parked. */
	ASSERT_EQ(COLL(r, self->comm, blocking[0], all_reduce(r, 16)), 0);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, SV_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, blocking[1]), 0);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(ctx_sync(&r->c), 0);
	EXPECT_EQ(*word_at(r, 60), 9);
	/* A parked collective that comes to its turn holds its stream as one that is not parked. */
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(COLL(r, self->comm, blocking[0], all_reduce(r, 16)), 0);
	ASSERT_EQ(fill(r, SV_STREAM_LEGACY, r->dev + 4 * MiB, 11, 16), 0);
	for (int k = 0; k < 2; k++) {
		EXPECT_EQ(query(r, SV_OP_cuStreamQuery, SV_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
		for (int i = 1; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
		for (int i = 1; i < self->n; i++)
			ASSERT_EQ(sync_stream(&self->r[i], self->r[i].stream), 0);
	}
	ASSERT_EQ(down(r, SV_STREAM_LEGACY, 0, r->dev + 4 * MiB, 64), 0);
	ASSERT_EQ(ctx_sync(&r->c), 0);
	EXPECT_EQ(*word_at(r, 60), 11);
}

/*
 * What is parked in no stream: a change of a graph waits for its parked launches, an event that a context records is not
 * done before, and what comes later waits for it if it is told to. However much of it there is, a client need not ask for room.
 */
TEST_F(colls, what_is_parked_in_no_stream_keeps_its_order)
{
	struct rank *r = &self->r[0];
	struct sv_seen seen = { r->pin + 3 * MiB, 1 };
	uint64_t exec = new_handle(&r->c, SV_T_CUgraphExec), ev = new_handle(&r->c, SV_T_CUevent), kernel;
	struct sv_sync_on on = { r->c.ctx, ev };
	struct ring_ticket t;
	int rc;

	kernel = get_kernel(&r->c, load_text(&r->c, seven, &rc), "seven", NULL);
	ASSERT_EQ(rc, 0);
	ASSERT_NE(kernel, 0);
	ASSERT_EQ(graph_of(r, SV_OP_X_GRAPH, exec, kernel, r->dev + MiB), 0);
	ASSERT_EQ(fill(r, r->stream, r->dev + MiB, 1, 16), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){ .ctx = r->c.ctx, .phEvent = ev }), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 16)), 0);
	ASSERT_EQ(fill(r, r->stream, r->dev + 2 * MiB, 5, 16), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuGraphLaunch, (struct sv_graph_launch){ r->c.ctx, r->stream, exec, 0, 0 }), 0);
	ASSERT_EQ(graph_of(r, SV_OP_X_GRAPH_UPDATE, exec, kernel, r->dev + MiB + 4), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuCtxRecordEvent, (struct sv_cuCtxRecordEvent){ r->c.ctx, ev }), 0);
	EXPECT_EQ(query(r, SV_OP_cuEventQuery, ev), CUDA_ERROR_NOT_READY);
	/* What comes later waits for that, here and in the driver. */
	ASSERT_EQ(SEND(&r->c, SV_OP_cuCtxWaitEvent, (struct sv_cuCtxWaitEvent){ r->c.ctx, ev }), 0);
	ASSERT_EQ(fill(r, r->other, r->dev + 2 * MiB, 6, 16), 0);
	ASSERT_EQ(ring_request(r->c.ring, &t, SV_OP_cuEventSynchronize, &on, sizeof(on), NULL, 0), 0);
	EXPECT_EQ(ring_await(r->c.ring, &t, NULL, NULL, 0, NULL, 50000000), -ETIMEDOUT);
	for (int i = 0; i <= 64 << 10; i++) {
		ASSERT_EQ(SEND(&r->c, SV_OP_X_SEEN, seen), 0);
		ASSERT_EQ(SEND(&r->c, SV_OP_cuCtxRecordEvent, (struct sv_cuCtxRecordEvent){ r->c.ctx, ev }), 0);
	}
	EXPECT_EQ(query(r, SV_OP_cuEventQuery, ev), CUDA_ERROR_NOT_READY);
	EXPECT_FALSE(r->c.shared->late & SV_LATE_FULL);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(down(r, r->stream, 0, r->dev + MiB, 64), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	EXPECT_EQ(*word_at(r, 0), 7);
	EXPECT_EQ(*word_at(r, 4), 1);
	EXPECT_EQ(query(r, SV_OP_cuEventSynchronize, ev), 0);
	ASSERT_EQ(down(r, r->other, 64, r->dev + 2 * MiB, 64), 0);
	ASSERT_EQ(sync_stream(r, r->other), 0);
	EXPECT_EQ(*word_at(r, 64), 6);
	EXPECT_EQ(late_count(&r->c), 0);
}

/*
 * What is in no stream's order is parked after a proxy has dropped the queues of many waits that are over, while a stream is
 * held all the time: a failure reaches it, and what waits for it.
 */
TEST_F(colls, what_is_parked_in_no_stream_later_fails_with_others)
{
	enum { WAITS = 80 };	/* more than are dropped at once */
	struct rank *r = &self->r[0];
	uint64_t ev = new_event(r), third = new_stream(r, CU_STREAM_NON_BLOCKING);
	struct sv_sync_on event = { r->c.ctx, r->event }, behind = { r->c.ctx, third }, all = { r->c.ctx, 0 };
	struct ring_ticket t[WAITS], one, both;
	int32_t status = -1;

	ASSERT_EQ(new_comm(self->r, self->n, 78, "waits all the time"), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 16)), 0);
	ASSERT_EQ(record(r, r->event, r->stream), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuCtxRecordEvent, (struct sv_cuCtxRecordEvent){ r->c.ctx, ev }), 0);
	for (int i = 0; i < WAITS; i++)
		ASSERT_EQ(ring_request(r->c.ring, &t[i], SV_OP_cuEventSynchronize, &event, sizeof(event), NULL, 0), 0);
	ASSERT_EQ(ring_request(r->c.ring, &both, SV_OP_cuCtxSynchronize, &all, sizeof(all), NULL, 0), 0);
	ASSERT_EQ(COLL(r, 78, r->other, all_reduce(r, 16)), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), CUDA_ERROR_NOT_READY);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	for (int i = 0; i < WAITS; i++)
		ASSERT_EQ(ring_await(r->c.ring, &t[i], NULL, NULL, 0, NULL, 10000000000), 0);
	ASSERT_EQ(ring_await(r->c.ring, &both, NULL, NULL, 0, NULL, 10000000000), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 16)), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuCtxRecordEvent, (struct sv_cuCtxRecordEvent){ r->c.ctx, ev }), 0);
	ASSERT_EQ(fill(r, third, r->dev + MiB, 1, 16), 0);
	ASSERT_EQ(ring_request(r->c.ring, &one, SV_OP_cuStreamSynchronize, &behind, sizeof(behind), NULL, 0), 0);
	ASSERT_EQ(ring_request(r->c.ring, &both, SV_OP_cuCtxSynchronize, &all, sizeof(all), NULL, 0), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, third), CUDA_ERROR_NOT_READY);
	ASSERT_EQ(end_comm(&self->r[3], self->comm, SV_COMM_ABORT), 0);
	ASSERT_EQ(ring_await(r->c.ring, &one, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(ring_await(r->c.ring, &both, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(end_comm(r, self->comm, SV_COMM_ABORT), 0);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], 78, self->r[i].other, all_reduce(&self->r[i], 16)), 0);
	EXPECT_EQ(stream_soon(r, third), 0);
	EXPECT_EQ(ctx_sync(&r->c), 0);
}

/* Waits for an event that are parked hold up nobody else who asks for it. */
TEST_F(colls, parked_waits_do_not_keep_an_event_open)
{
	struct rank *r = &self->r[0];

	ASSERT_EQ(record(r, r->event, r->other), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 16)), 0);
	ASSERT_EQ(await(r, r->stream, r->event), 0);
	ASSERT_EQ(query(r, SV_OP_cuEventQuery, r->event), 0);
	EXPECT_EQ(sync_soon(r, SV_OP_cuEventSynchronize, r->event), 0);
	EXPECT_EQ(query(r, SV_OP_cuStreamQuery, r->stream), CUDA_ERROR_NOT_READY);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	EXPECT_EQ(stream_soon(r, r->stream), 0);
}

TEST_HARNESS_MAIN
