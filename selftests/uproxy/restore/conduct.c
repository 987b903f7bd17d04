// SPDX-License-Identifier: Apache-2.0
/*
 * conduct.c - freezes of a session; conductors that leave, send nonsense, or are other users
 */
#include "meeting.h"
#include "restore.h"

/* ------------------------------------------------------------------------------ freezing */

TEST_F(restore, a_stream_that_waits_for_memory_is_named_and_goes_on)
{
	struct client *c = &self->c;
	uint64_t st = new_stream(c, CU_STREAM_NON_BLOCKING), at = self->pin + 4096;
	volatile uint32_t *v = (void *)(c->arena + at);
	struct ctl_frozen f;
	struct ctl_info info;

	*v = 0;
	EXPECT_EQ(SEND(c, SV_OP_cuStreamWaitValue32_v2, (struct sv_cuStreamWaitValue32_v2){
			.ctx = c->ctx, .stream = st, .addr = address(c, at), .value = 1 }), 0);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask_freeze(self, 50, &f), -ETIMEDOUT);
	EXPECT_NE(strstr(f.r.why, "stream"), NULL);
	EXPECT_NE(strstr(f.r.why, "a value in memory"), NULL);
	EXPECT_EQ(ask_info(self, &info), 0);
	EXPECT_EQ(info.state, CTL_STATE_RUNNING);
	/* The gate is open, and the other streams work. */
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
	*v = 1;
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }), 0);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), -EALREADY);
	EXPECT_EQ(ask_info(self, &info), 0);
	EXPECT_EQ(info.state, CTL_STATE_FROZEN);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
}

/* Streams of all kinds that wait for a value in memory, or for a stream that does. */
TEST_F(restore, a_stream_is_named_by_what_it_is)
{
	enum { DEFAULT, BLOCKING, CROSSING, DESTROYED, BEHIND, KINDS };
	static const char *const name[] = { "the default stream waits", "stream ", "stream ",
					    "a stream that was destroyed waits", "a kernel or copy that does not end" };
	struct client *c = &self->c;
	uint64_t at = self->pin + 4096;
	volatile uint64_t *v = (void *)(c->arena + at);
	struct ctl_freeze held = { .idle_ms = 100, .held_ms = 20 };
	struct ctl_frozen f;

	ASSERT_EQ(conduct(self), 0);
	for (int kind = 0; kind < KINDS; kind++) {
		uint64_t st = kind == DEFAULT ? SV_STREAM_LEGACY :
			new_stream(c, kind == BLOCKING ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING), e;

		*v = 0;
		if (kind == CROSSING) {		/* another proxy's stream is to store the value */
			EXPECT_EQ(SEND(c, SV_OP_X_CROSS_WAIT, (struct sv_cross){ c->ctx, st, at, 1 }), 0);
		} else {
			EXPECT_EQ(SEND(c, SV_OP_cuStreamWaitValue64_v2, (struct sv_cuStreamWaitValue64_v2){
					.ctx = c->ctx, .stream = st, .addr = address(c, at), .value = 1,
					.flags = CU_STREAM_WAIT_VALUE_GEQ }), 0);
		}
		if (kind == DEFAULT)		/* beside one that the default stream does not wait for */
			EXPECT_EQ(SEND(c, SV_OP_cuStreamWaitValue64_v2, (struct sv_cuStreamWaitValue64_v2){
					.ctx = c->ctx, .stream = new_stream(c, CU_STREAM_NON_BLOCKING), .addr = address(c, at),
					.value = 1, .flags = CU_STREAM_WAIT_VALUE_GEQ }), 0);
		if (kind == BLOCKING)		/* for which the default stream waits */
			EXPECT_EQ(SEND(c, SV_OP_cuMemsetD8Async, (struct sv_cuMemsetD8Async){
					.ctx = c->ctx, .dstDevice = self->dev, .uc = 1, .N = 64,
					.hStream = SV_STREAM_LEGACY }), 0);
		if (kind == DESTROYED)
			EXPECT_EQ(SEND(c, SV_OP_cuStreamDestroy_v2, (struct sv_stream_end){ st }), 0);
		if (kind == BEHIND) {
			e = new_event(c);
			EXPECT_EQ(SEND(c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ c->ctx, e, st }), 0);
			EXPECT_EQ(SEND(c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
					.ctx = c->ctx, .hStream = new_stream(c, CU_STREAM_NON_BLOCKING), .hEvent = e }), 0);
		}
		EXPECT_EQ(ask_freeze(self, 50, &f), -ETIMEDOUT);
		EXPECT_NE(strstr(f.r.why, name[kind]), NULL)
			TH_LOG("kind %d: %s", kind, f.r.why);
		EXPECT_EQ(strstr(f.r.why, "default") != NULL, kind == DEFAULT);
		EXPECT_EQ(strstr(f.r.why, "a value in memory") != NULL, kind < DESTROYED);
		/* The program may store the value behind a closed gate: that is tried again soon. */
		EXPECT_EQ(ask(self, CTL_FREEZE, &held, sizeof(held), &f, sizeof(f), NULL),
			  kind < DESTROYED ? -EBUSY : -ETIMEDOUT)
			TH_LOG("kind %d: %s", kind, f.r.why);
		*v = 1;
		EXPECT_EQ(ctx_sync(c), 0);
	}
}

/* A freeze has begun that lasts until *v is 1: its gate is closed. */
static int begin_freeze(FIXTURE_DATA(restore) *self, uint64_t ms, volatile uint32_t *v)
{
	struct ctl_freeze f = { .h = { .op = CTL_FREEZE, .size = sizeof(f) }, .idle_ms = ms };
	struct client *c = &self->c;
	uint64_t st = new_stream(c, CU_STREAM_NON_BLOCKING);
	int rc;

	*v = 0;
	rc = SEND(c, SV_OP_cuStreamWaitValue32_v2, (struct sv_cuStreamWaitValue32_v2){
			.ctx = c->ctx, .stream = st, .addr = address(c, (uint8_t *)v - c->arena), .value = 1 });
	if (rc || conduct(self) || ctl_send(self->conn, &f.h))
		return -1;
	for (int i = 0; i < 20000; i++) {
		if (__atomic_load_n(&c->ring->ctl->cons, __ATOMIC_ACQUIRE) & SINGVGPU_CONS_GATE)
			return 0;
		usleep(1000);
	}
	return -ETIMEDOUT;
}

static int end_freeze(FIXTURE_DATA(restore) *self, struct ctl_frozen *f)
{
	memset(f, 0, sizeof(*f));
	return take_answer(self, CTL_FREEZE, &f->r, sizeof(*f), LONG_MS);
}

/* The longest time is a day, and not what is left of a number that is too large. */
TEST_F(restore, a_freeze_may_take_very_long)
{
	volatile uint32_t *v = (void *)(self->c.arena + self->pin + 4096);
	struct ctl_frozen f;

	ASSERT_EQ(begin_freeze(self, 1ull << 58, v), 0);
	usleep(100000);
	*v = 1;
	EXPECT_EQ(end_freeze(self, &f), 0)
		TH_LOG("%s", f.r.why);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_EQ(ctx_sync(&self->c), 0);
}

/* What a session cannot be saved with comes up while it drains: its gate is open again. */
TEST_F(restore, what_comes_up_in_a_freeze_refuses_it)
{
	volatile uint32_t *v = (void *)(self->c.arena + self->pin + 4096);
	struct client *c = &self->c;
	struct ring_ticket t;
	struct ctl_info info;
	struct ctl_frozen f;

	ASSERT_EQ(begin_freeze(self, LONG_MS, v), 0);
	ASSERT_EQ(ring_request_anyway(c->ring, &t, SV_OP_X_BYPASS, "/lib/x.so", 10, NULL, 0), 0);
	EXPECT_EQ(ring_await(c->ring, &t, NULL, NULL, 0, NULL, 20000000000), 0);
	*v = 1;
	EXPECT_EQ(end_freeze(self, &f), -ENOTSUP);
	EXPECT_NE(strstr(f.r.why, "driver library"), NULL)
		TH_LOG("%s", f.r.why);
	EXPECT_EQ(ask_info(self, &info), 0);
	ASSERT_EQ(info.state, CTL_STATE_RUNNING);
	EXPECT_EQ(ctx_sync(c), 0);
}

/* Calls that pass a closed gate may be more than the ring takes, if they come a few at a time. */
TEST_F(restore, a_program_may_ask_much_in_a_freeze)
{
	enum { AT_ONCE = 64, TIMES = 200 };
	volatile uint32_t *v = (void *)(self->c.arena + self->pin + 4096);
	struct ring_ticket t[AT_ONCE];
	struct client *c = &self->c;
	struct sv_sync_on on = { c->ctx, new_stream(c, CU_STREAM_NON_BLOCKING) };
	struct ctl_frozen f;

	ASSERT_GT(AT_ONCE * TIMES, 2 * ring_geometry(c->ring)->ring_units);
	ASSERT_EQ(begin_freeze(self, LONG_MS, v), 0);
	for (int k = 0; k < TIMES; k++) {
		for (int i = 0; i < AT_ONCE; i++)
			ASSERT_EQ(ring_request_anyway(c->ring, &t[i], SV_OP_cuStreamQuery, &on, sizeof(on), NULL, 0), 0);
		for (int i = 0; i < AT_ONCE; i++)
			ASSERT_EQ(ring_await(c->ring, &t[i], NULL, NULL, 0, NULL, 20000000000), 0);
	}
	*v = 1;
	EXPECT_EQ(end_freeze(self, &f), 0)
		TH_LOG("%s", f.r.why);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_EQ(ctx_sync(c), 0);
}

/* One that heeds no gate fills the ring again and again. */
TEST_F(restore, a_program_that_heeds_no_gate_is_named)
{
	volatile uint32_t *v = (void *)(self->c.arena + self->pin + 4096);
	struct client *c = &self->c;
	struct sv_cuMemsetD8Async set = { .ctx = c->ctx, .dstDevice = self->dev, .uc = 1, .N = 64,
					  .hStream = SV_STREAM_LEGACY };
	struct pollfd answer;
	struct ctl_frozen f;

	ASSERT_EQ(begin_freeze(self, LONG_MS, v), 0);
	answer = (struct pollfd){ .fd = self->conn, .events = POLLIN };
	__atomic_fetch_and(&c->ring->ctl->cons, ~SINGVGPU_CONS_GATE, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 3000000 && (i % 1024 || poll(&answer, 1, 0) < 1); i++)
		ASSERT_EQ(ring_submit(c->ring, SV_OP_cuMemsetD8Async, &set, sizeof(set), NULL, 0), 0);
	*v = 1;
	EXPECT_EQ(end_freeze(self, &f), -ETIMEDOUT);
	EXPECT_NE(strstr(f.r.why, "although the gate is closed"), NULL)
		TH_LOG("%s", f.r.why);
	EXPECT_EQ(ctx_sync(c), 0);
}

struct caller {
	struct client *c;
	pthread_t t;
	uint64_t word;
	_Atomic int calls, hold, none;	/* none: answers without a function */
};

/* As the client's library does it: the thread that asks passes the gate. */
static void *serve_calls(void *arg)
{
	struct caller *h = arg;
	struct sv_next_call n;
	struct ring_ticket t;

	for (;;) {
		n = (struct sv_next_call){ 0 };
		if (ring_request_anyway(h->c->ring, &t, SV_OP_X_NEXT_CALL, NULL, 0, NULL, 0) ||
		    ring_await(h->c->ring, &t, NULL, &n, sizeof(n), NULL, -1))
			return NULL;
		if (n.id == 77)
			return NULL;
		h->none += !n.id;
		if (!n.id)
			continue;
		while (h->hold)
			usleep(1000);
		h->calls++;
		__atomic_store_n((uint64_t *)(h->c->arena + h->word), n.id, __ATOMIC_RELEASE);
	}
}

TEST_F(restore, host_functions_run_while_the_gate_is_closed)
{
	struct client *c = &self->c;
	struct caller h = { .c = c, .word = self->pin + 8 };
	uint64_t st = new_stream(c, CU_STREAM_NON_BLOCKING);
	struct ctl_frozen f;

	*(uint64_t *)(c->arena + h.word) = 0;
	ASSERT_EQ(conduct(self), 0);
	h.hold = 1;
	pthread_create(&h.t, NULL, serve_calls, &h);
	for (uint64_t id = 1; id <= 20; id++)
		EXPECT_EQ(SEND(c, SV_OP_cuLaunchHostFunc,
			       (struct sv_host_func){ c->ctx, st, id, h.word }), 0);
	EXPECT_EQ(ask_freeze(self, 100, &f), -ETIMEDOUT);
	EXPECT_NE(strstr(f.r.why, "a host function"), NULL);
	h.hold = 0;
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(h.calls, 20);
	EXPECT_EQ(ask_thaw(self), 0);
	/* A request that the proxy has is answered before a dump, which would not have it. */
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	for (int i = 0; i < 20000 && !h.none; i++)
		usleep(1000);
	EXPECT_GT(h.none, 0);
	EXPECT_EQ(ask_thaw(self), 0);
	/* Its request stood in the ring meanwhile, and is served. */
	EXPECT_EQ(SEND(c, SV_OP_cuLaunchHostFunc,
		       (struct sv_host_func){ c->ctx, st, 77, h.word }), 0);
	pthread_join(h.t, NULL);
	__atomic_store_n((uint64_t *)(c->arena + h.word), 77, __ATOMIC_RELEASE);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }), 0);
	/* One that has returned is not what its stream waits for. */
	EXPECT_EQ(SEND(c, SV_OP_cuStreamWaitValue64_v2, (struct sv_cuStreamWaitValue64_v2){
			.ctx = c->ctx, .stream = st, .addr = address(c, h.word), .value = 78,
			.flags = CU_STREAM_WAIT_VALUE_GEQ }), 0);
	EXPECT_EQ(ask_freeze(self, 50, &f), -ETIMEDOUT);
	EXPECT_NE(strstr(f.r.why, "a value in memory"), NULL)
		TH_LOG("%s", f.r.why);
	__atomic_store_n((uint64_t *)(c->arena + h.word), 78, __ATOMIC_RELEASE);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }), 0);
	EXPECT_EQ(late_count(c), 0);
}

TEST_F(restore, what_cannot_be_saved_is_refused_by_name)
{
	struct client *c = &self->c;
	struct ctl_frozen f;
	struct ctl_info info;

	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ring_submit(c->ring, SV_OP_X_BYPASS, "/lib/x.so", 10, NULL, 0), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(ask_info(self, &info), 0);
	EXPECT_EQ(info.can_dump, 0);
	EXPECT_NE(strstr(info.r.why, "driver library"), NULL);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), -ENOTSUP);
	EXPECT_EQ(ctx_sync(c), 0);
}

TEST_F(restore, what_is_shared_with_others_is_not_saved)
{
	struct client *c = &self->c;
	struct sv_ipc_show a = { self->dev, GRANULE, { 0 } };
	struct sv_ipc_shown shown;
	struct ctl_frozen f;
	struct ctl_info info;

	while (call2(c, SV_OP_cuIpcGetMemHandle, &a, sizeof(a), NULL, 0, &shown, sizeof(shown)) ==
	       CUDA_ERROR_NOT_READY)
		usleep(100);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask_info(self, &info), 0);
	EXPECT_EQ(info.can_dump, 0);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), -ENOTSUP);
	EXPECT_NE(strstr(f.r.why, "shared"), NULL);
	EXPECT_EQ(ctx_sync(c), 0);
}

TEST_F(restore, a_broken_context_is_not_saved)
{
	struct client *c = &self->c;
	uint64_t lib, k, bad = 0x10;
	struct ctl_frozen f;
	int rc;

	lib = load_text(c, kernels, &rc);
	k = get_kernel(c, lib, "store", NULL);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, k, 1, 1, &bad, 8), 0);
	/* Known when it is asked, or found out by the drain. */
	rc = ask_freeze(self, LONG_MS, &f);
	EXPECT_TRUE(rc == -EIO || rc == -ENOTSUP);
	EXPECT_NE(f.r.why[0], 0);
	EXPECT_EQ(ctx_sync(c), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), -ENOTSUP);
	EXPECT_NE(strstr(f.r.why, "broken"), NULL);
}

/* ------------------------------------------------------------------------------ conductors */

TEST_F(restore, a_client_that_ends_while_frozen_ends_the_proxy)
{
	struct ctl_frozen f;
	struct ctl_dumped d;

	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(ask_store(self, CTL_DUMP, self->store, &d), 0);
	/* As CRIU kills it; the conductor is still there. */
	ring_close(self->c.ring);
	self->c.ring = NULL;
	EXPECT_EQ(client_wait(&self->c), 0);
	EXPECT_EQ(take_answer(self, CTL_INFO, &d.r, sizeof(d), LONG_MS), -EPIPE);
}

static const uint32_t steps[] = { CTL_INFO, CTL_FREEZE, CTL_DUMP, CTL_CHANNEL };

/* The proxy dies in the middle of each step: the conductor is told, and so is the client. */
TEST_F(restore, a_proxy_that_is_killed_takes_nobody_along)
{
	char big[sizeof(struct ctl_restore)] = { 0 };
	struct client *c = &self->c;
	struct ctl_frozen f;
	struct ctl_dumped d;

	for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
		struct ctl_store *st = (void *)big;

		if (i) {
			ring_close(c->ring);
			c->ring = NULL;
			ASSERT_EQ(client_start(c, (const char *[]){ "--control", self->ctl, NULL }), 0);
			ASSERT_EQ(client_context(c), 0);
		}
		ASSERT_EQ(conduct(self), 0);
		if (i > 1)
			EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
		memset(big, 0, sizeof(big));
		snprintf(st->dir, sizeof(st->dir), "%s", self->store);
		if (steps[i] == CTL_FREEZE)
			((struct ctl_freeze *)big)->idle_ms = LONG_MS;
		kill(c->proxy, SIGSTOP);
		st->h.op = steps[i];
		st->h.size = i == 0 ? sizeof(struct ctl_head) :
			     i == 1 ? sizeof(struct ctl_freeze) : sizeof(struct ctl_store);
		EXPECT_EQ(ctl_send(self->conn, &st->h), 0);
		kill(c->proxy, SIGKILL);
		waitpid(c->proxy, NULL, 0);
		c->proxy = 0;
		EXPECT_EQ(ctl_receive(self->conn, steps[i], &d.r, sizeof(d), NULL, NULL, LONG_MS),
			  -EPIPE);
		EXPECT_EQ(ctx_sync(c), -EPIPE);
		close(self->conn);
		self->conn = -1;
	}
}

TEST_F(restore, a_conductor_that_goes_leaves_a_job_that_runs)
{
	struct client *c = &self->c;
	struct ctl_freeze fr = { .h = { .op = CTL_FREEZE, .size = sizeof(fr) },
				 .idle_ms = LONG_MS };
	struct ctl_store st = { .h = { .op = CTL_DUMP, .size = sizeof(st) } };
	struct ctl_frozen f;
	struct ctl_dumped d;

	snprintf(st.dir, sizeof(st.dir), "%s", self->store);
	for (int step = 0; step < 6; step++) {
		ASSERT_EQ(conduct(self), 0);
		if (step == 1)		/* in the middle of a freeze */
			EXPECT_EQ(ctl_send(self->conn, &fr.h), 0);
		if (step > 1)
			EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
		if (step == 3)		/* and of a dump */
			EXPECT_EQ(ctl_send(self->conn, &st.h), 0);
		if (step > 3)
			EXPECT_EQ(ask_store(self, CTL_DUMP, self->store, &d), 0);
		if (step > 4)
			EXPECT_EQ(ask_store(self, CTL_CHANNEL, self->store, &d), 0);
		close(self->conn);
		self->conn = -1;
		EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
	}
	EXPECT_EQ(late_count(c), 0);
}

static int ask_stay(FIXTURE_DATA(restore) *self)
{
	struct ctl_head h = { 0 };
	struct ctl_reply r;

	return ask(self, CTL_STAY, &h, sizeof(h), &r, sizeof(r), NULL);
}

/* A job that is moved: the proxy stays when client and conductor have gone, and the next one gets its memory. */
TEST_F(restore, a_proxy_that_keeps_its_memory_hands_it_over)
{
	struct client *c = &self->c;
	struct ctl_restored to = { 0 };
	struct ctl_restore from;
	struct ctl_info info;
	char kept[112];
	pid_t former;
	int fd = -1, status;

	snprintf(kept, sizeof(kept), "%s" CTL_KEPT, self->ctl);
	memset(c->arena + self->pin, 0x33, MiB);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), MiB), 0);
	save_keep = 1;
	ASSERT_EQ(save(self), 0);
	ring_close(c->ring);
	c->ring = NULL;
	usleep(300000);		/* three looks at whether the client is there */
	EXPECT_EQ(ask_info(self, &info), 0);
	EXPECT_EQ(info.state, CTL_STATE_FROZEN);
	EXPECT_NE(access(kept, F_OK), 0);
	EXPECT_EQ(ask_stay(self), 0);
	EXPECT_EQ(access(kept, F_OK), 0);
	close(self->conn);
	usleep(300000);
	former = c->proxy;
	EXPECT_EQ(waitpid(former, &status, WNOHANG), 0);

	ASSERT_EQ(start_restorer(self), 0);
	fill_restore(self, &from);
	EXPECT_EQ(ask(self, CTL_RESTORE, &from, sizeof(from), &to, sizeof(to), &fd), 0);
	EXPECT_EQ(to.handed, MiB);
	close(fd);
	EXPECT_EQ(access(self->ctl, F_OK), 0);
	kill(former, SIGTERM);
	EXPECT_EQ(waitpid(former, &status, 0), former);
	EXPECT_EQ(WIFSIGNALED(status) ? WTERMSIG(status) : -1, SIGTERM);
	save_keep = 0;
}

TEST_F(restore, a_proxy_stays_only_where_it_was_asked_to)
{
	struct client *c = &self->c;
	struct ctl_frozen f;
	struct ctl_dumped d;
	char kept[112];

	snprintf(kept, sizeof(kept), "%s" CTL_KEPT, self->ctl);
	/* Of a session that runs, is frozen, is saved without keep, has no saved channel yet, has run meanwhile. */
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask_stay(self), -EINVAL);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(ask_stay(self), -EINVAL);
	EXPECT_EQ(ask_store(self, CTL_DUMP, self->store, &d), 0);
	EXPECT_EQ(ask_store(self, CTL_CHANNEL, self->store, &d), 0);
	EXPECT_EQ(ask_stay(self), -EINVAL);
	save_keep = 1;
	EXPECT_EQ(ask_store(self, CTL_DUMP, self->store, &d), 0);
	EXPECT_EQ(ask_stay(self), -EINVAL);
	EXPECT_EQ(ask_store(self, CTL_CHANNEL, self->store, &d), 0);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_EQ(ask_stay(self), -EINVAL);
	save_keep = 0;
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(ask_stay(self), -EINVAL);
	EXPECT_NE(access(kept, F_OK), 0);
	close(self->conn);
	self->conn = -1;
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
}

/* With keep, too, a client that ends is noticed until its channel is saved, and when the conductor has gone. */
TEST_F(restore, a_client_that_ends_though_its_memory_is_kept_ends_the_proxy)
{
	struct ctl_frozen f;
	struct ctl_dumped d;

	save_keep = 1;
	for (int saved = 0; saved < 2; saved++) {
		if (saved) {
			ASSERT_EQ(client_start(&self->c, (const char *[]){ "--control", self->ctl, NULL }), 0);
			ASSERT_EQ(client_context(&self->c), 0);
		}
		ASSERT_EQ(conduct(self), 0);
		EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
		EXPECT_EQ(ask_store(self, CTL_DUMP, self->store, &d), 0);
		if (saved)
			EXPECT_EQ(ask_store(self, CTL_CHANNEL, self->store, &d), 0);
		ring_close(self->c.ring);
		self->c.ring = NULL;
		if (saved) {
			close(self->conn);
			self->conn = -1;
		}
		EXPECT_EQ(client_wait(&self->c), 0);
		if (!saved)
			close(self->conn);
		self->conn = -1;
	}
	save_keep = 0;
}

/* What a proxy shows is shown: the file is its user's to write, and nothing is decided by it. */
TEST_F(restore, what_ps_maps_decides_nothing)
{
	struct uproxy_stat *shown;
	struct client *c = &self->c;
	struct ctl_frozen f;
	struct ctl_info info;
	char stat[96];
	int fd;

	EXPECT_EQ(client_end(c), 0);
	snprintf(stat, sizeof(stat), "%s/stat", self->dir);
	ASSERT_EQ(client_start(c, (const char *[]){ "--control", self->ctl, "--stat", stat, NULL }), 0);
	ASSERT_EQ(client_context(c), 0);
	ASSERT_EQ(SEND(c, SV_OP_X_MAP, (struct sv_map){ c->window, 4 * GRANULE }), 0);
	ASSERT_EQ(SEND(c, SV_OP_X_PIN, (struct sv_pin){ arena_take(c, MiB), MiB }), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	fd = open(stat, O_RDWR | O_CLOEXEC);
	ASSERT_GE(fd, 0);
	shown = mmap(NULL, sizeof(*shown), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(shown, MAP_FAILED);
	close(fd);
	ASSERT_EQ(shown->magic, UPROXY_STAT_MAGIC);
	memset(shown, 0x55, sizeof(*shown));
	ASSERT_EQ(conduct(self), 0);
	usleep(300000);		/* the proxy sleeps: it must be told of a request */
	ASSERT_EQ(ask_info(self, &info), 0);
	EXPECT_EQ(info.client_pid, getpid());
	EXPECT_EQ(info.mapped, 4 * GRANULE);
	EXPECT_EQ(info.pinned, MiB);
	EXPECT_STREQ(info.backend, "memfd");
	memset(shown, 0, sizeof(*shown));
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	munmap(shown, sizeof(*shown));
}

TEST_F(restore, a_freeze_is_given_up_with_its_conductor)
{
	struct client *c = &self->c;
	uint64_t st = new_stream(c, CU_STREAM_NON_BLOCKING), at = self->pin + 4096;
	struct ctl_freeze fr = { .h = { .op = CTL_FREEZE, .size = sizeof(fr) },
				 .idle_ms = 86400 * SECOND };

	*(uint32_t *)(c->arena + at) = 0;
	EXPECT_EQ(SEND(c, SV_OP_cuStreamWaitValue32_v2, (struct sv_cuStreamWaitValue32_v2){
			.ctx = c->ctx, .stream = st, .addr = address(c, at), .value = 1 }), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ctl_send(self->conn, &fr.h), 0);
	usleep(20000);
	close(self->conn);
	self->conn = -1;
	/* It is answered, so the gate is open again, though the stream waits as before. */
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
	*(volatile uint32_t *)(c->arena + at) = 1;
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }), 0);
}

/* ------------------------------------------------------------------------------ the end of a step */

struct trainer {
	struct client *c;
	uint64_t dev, host;
	_Atomic int steps, stop, at;	/* at: operations of the step that have been handed in */
	_Atomic int pause;		/* it does nothing when it has taken so many steps; 0: it goes on */
	bool maps;			/* it has more memory in a step than between two */
	volatile uint32_t *slow;	/* set by the first step that takes half a second */
	uint64_t stream;		/* 0: the legacy one */
	int rc;
};

/* A program with steps of three operations, which waits for the last one. */
static void *train(void *arg)
{
	struct trainer *t = arg;
	struct client *c = t->c;
	uint64_t st = t->stream ?: SV_STREAM_LEGACY;

	while (!t->stop && !t->rc) {
		struct sv_map more = { t->dev + 8 * GRANULE, 4 * GRANULE };
		struct timespec begun, end;

		clock_gettime(CLOCK_MONOTONIC, &begun);
		t->at = 0;
		while (t->pause && t->steps >= t->pause && !t->stop)
			usleep(1000);
		if (t->maps)
			t->rc = SEND(c, SV_OP_X_MAP, more);
		t->rc = t->rc ?: copy(c, st, t->dev, t->host, 64);
		t->at = 1;
		/* One without a byte has the device do nothing. */
		if (!t->rc && t->steps % 3 == 1)
			t->rc = copy(c, st, t->host, t->dev, 0);
		t->rc = t->rc ?: SEND(c, SV_OP_cuMemsetD8Async, (struct sv_cuMemsetD8Async){
				.ctx = c->ctx, .dstDevice = t->dev, .uc = 1, .N = 64,
				.hStream = st }) ?:
			copy(c, st, t->host, t->dev, 64);
		if (t->maps)
			t->rc = t->rc ?: SEND(c, SV_OP_X_UNMAP, more);
		t->steps++;
		clock_gettime(CLOCK_MONOTONIC, &end);
		if (t->slow && end.tv_sec - begun.tv_sec + (end.tv_nsec - begun.tv_nsec) / 1e9 > 0.5)
			*t->slow = 1;
	}
	return NULL;
}

/* A meeting of so many; fd -1: there is none. */
static int meet(uint32_t members, struct meeting **m)
{
	struct meeting is = { MEETING_MAGIC, members, 0 };
	int fd = memfd_create("meeting", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (write(fd, &is, sizeof(is)) != sizeof(is) || fcntl(fd, F_ADD_SEALS, MEETING_SEALS))
		return -1;
	*m = mmap(NULL, sizeof(is), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return fd;
}

static int ask_step(FIXTURE_DATA(restore) *self, int meeting, uint64_t ms, struct ctl_stepped *r)
{
	struct ctl_step st = { .limit_ms = ms };

	return ctl_give(self->conn, meeting) ?: ask(self, CTL_STEP, &st, sizeof(st), r, sizeof(*r), NULL);
}

static int freeze_there(FIXTURE_DATA(restore) *self, struct ctl_frozen *r)
{
	struct ctl_freeze f = { .idle_ms = LONG_MS, .at_step = 1 };

	return ask(self, CTL_FREEZE, &f, sizeof(f), r, sizeof(*r), NULL);
}

/* Does it train? Within 10 s, though the machine is busy. */
static bool goes_on(struct trainer *t)
{
	int was = t->steps;

	for (int ms = 0; ms < 10000 && t->steps <= was + 2; ms++)
		usleep(1000);
	return t->steps > was + 2;
}

TEST_F(restore, a_session_stands_at_the_end_of_a_step_and_goes_on)
{
	struct trainer t = { .c = &self->c, .dev = self->dev, .host = address(&self->c, self->pin) };
	struct ctl_stepped st;
	struct ctl_frozen f;
	struct ctl_info info;
	struct meeting *m;
	pthread_t thread;
	int fd, steps;

	ASSERT_EQ(pthread_create(&thread, NULL, train, &t), 0);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(freeze_there(self, &f), -EINVAL);
	for (int i = 0; i < 3; i++) {
		fd = meet(1, &m);
		ASSERT_GE(fd, 0);
		ASSERT_EQ(ask_step(self, fd, LONG_MS, &st), 0);
		EXPECT_EQ(st.items, 3);
		EXPECT_GE(st.times, 3);
		EXPECT_EQ(meeting_state(m), MEETING_SEALED);
		EXPECT_EQ(ask_info(self, &info), 0);
		EXPECT_EQ(info.state, CTL_STATE_AT_STEP);
		usleep(20000);
		steps = t.steps;
		usleep(100000);
		EXPECT_EQ(t.steps, steps);
		EXPECT_EQ(t.at, 0);	/* the host has heard, and what it copies comes next */
		if (i == 1) {		/* it freezes there, and nothing more is served */
			EXPECT_EQ(freeze_there(self, &f), 0);
			EXPECT_EQ(freeze_there(self, &f), -EALREADY);
			EXPECT_EQ(t.steps, steps);
		}
		if (i == 2) {		/* its conductor goes */
			close(self->conn);
			self->conn = -1;
		} else {
			EXPECT_EQ(ask_thaw(self), 0);
		}
		EXPECT_TRUE(goes_on(&t));
		munmap(m, sizeof(*m));
		close(fd);
	}
	/* An ordinary freeze, of a session that stands. */
	ASSERT_EQ(conduct(self), 0);
	fd = meet(1, &m);
	EXPECT_EQ(ask_step(self, fd, LONG_MS, &st), 0);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_TRUE(goes_on(&t));
	t.stop = 1;
	pthread_join(thread, NULL);
	EXPECT_EQ(t.rc, 0);
	EXPECT_EQ(late_count(&self->c), 0);
}

static void keep_by_next_step(struct __test_metadata *_metadata, FIXTURE_DATA(restore) *self, bool function, unsigned int flags)
{
	struct trainer t = { .c = &self->c, .dev = self->dev, .host = address(&self->c, self->pin) };
	struct client *c = &self->c;
	uint64_t st = new_stream(c, flags), at = self->pin + 4096;
	struct ctl_stepped stepped;
	struct meeting *m;
	pthread_t thread;
	int fd = meet(1, &m);

	*(uint64_t *)(c->arena + at) = 0;
	t.slow = (void *)(c->arena + at);
	t.stream = new_stream(c, CU_STREAM_NON_BLOCKING);
	if (function) {
		EXPECT_EQ(SEND(c, SV_OP_cuLaunchHostFunc, (struct sv_host_func){ c->ctx, st, 1, at }), 0);
	} else {
		EXPECT_EQ(SEND(c, SV_OP_cuStreamWaitValue32_v2, (struct sv_cuStreamWaitValue32_v2){
				.ctx = c->ctx, .stream = st, .addr = address(c, at), .value = 1 }), 0);
	}
	ASSERT_EQ(conduct(self), 0);
	ASSERT_EQ(pthread_create(&thread, NULL, train, &t), 0);
	EXPECT_EQ(ask_step(self, fd, 8 * SECOND, &stepped), 0);
	EXPECT_EQ(stepped.passed, 1);
	EXPECT_EQ(ask_thaw(self), 0);
	t.stop = 1;
	pthread_join(thread, NULL);
	EXPECT_EQ(t.rc, 0);
}

/* A value that the program stores, and a host function that it calls, in a stream for which the default one waits. */
TEST_F(restore, what_the_next_step_ends_does_not_keep_a_session_at_the_end_of_one)
{
	keep_by_next_step(_metadata, self, false, CU_STREAM_NON_BLOCKING);
}

TEST_F(restore, a_function_of_the_next_step_does_not_keep_a_session_at_the_end_of_one)
{
	keep_by_next_step(_metadata, self, true, CU_STREAM_DEFAULT);
}

/* The proxy looks for the end of a step. */
static bool is_looking(struct client *c)
{
	for (int ms = 0; ms < 20000 && !c->shared->at_step; ms++)
		usleep(1000);
	return c->shared->at_step;
}

/* The device fails while the session waits for it at the end of a step: the program goes on, and hears of that. */
TEST_F(restore, a_device_that_fails_does_not_keep_a_session_at_the_end_of_a_step)
{
	struct trainer t = { .c = &self->c, .dev = self->dev, .host = address(&self->c, self->pin) };
	struct ctl_step step = { .h = { .op = CTL_STEP, .size = sizeof(step) }, .limit_ms = 20 * SECOND };
	struct client *c = &self->c;
	uint64_t lib, st = new_stream(c, CU_STREAM_NON_BLOCKING), at = address(c, self->pin + 4096), bad = 0x10;
	volatile uint32_t *v = (void *)(c->arena + self->pin + 4096);
	struct ctl_stepped to;
	struct meeting *m;
	pthread_t thread;
	int fd = meet(1, &m), rc;

	*v = 0;
	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	ASSERT_EQ(launch(c, st, get_kernel(c, lib, "spin", NULL), 1, 1, &at, 8), 0);
	ASSERT_EQ(launch(c, st, get_kernel(c, lib, "store", NULL), 1, 1, &bad, 8), 0);
	ASSERT_EQ(conduct(self), 0);
	ASSERT_EQ(ctl_give(self->conn, fd), 0);
	ASSERT_EQ(ctl_send(self->conn, &step.h), 0);
	ASSERT_TRUE(is_looking(c));
	ASSERT_EQ(pthread_create(&thread, NULL, train, &t), 0);
	usleep(100000);		/* it stands before a copy now; if not, the trainer hears of it sooner */
	*v = 1;
	pthread_join(thread, NULL);
	EXPECT_GT(t.rc, 0);
	EXPECT_EQ(c->shared->at_step, 1);
	EXPECT_EQ(take_answer(self, CTL_STEP, &to.r, sizeof(to), 1), -ETIMEDOUT);
	EXPECT_EQ(meeting_state(m), MEETING_OPEN);
}

/* Another proxy, which says nothing when it is asked; -1. The handle names its event. */
static int silent_proxy(struct sv_ipc_handle *h)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), n;

	*h = (struct sv_ipc_handle){ .magic = SV_IPC_MAGIC, .version = SV_IPC_VERSION, .kind = SV_IPC_EVENT };
	snprintf((char *)h->server, sizeof(h->server), "%d", getpid());
	n = 1 + sprintf(a.sun_path + 1, "singvgpu-peer-");
	for (int i = 0; i < 16; i++)
		n += sprintf(a.sun_path + n, "%02x", h->server[i]);
	return bind(sock, (void *)&a, offsetof(struct sockaddr_un, sun_path) + n) || listen(sock, 1) ? -1 : sock;
}

/* A worker asks another proxy when a session comes to the end of a step: the session stands there when it has been answered. */
TEST_F(restore, a_session_stands_when_its_workers_are_done)
{
	struct trainer t = { .c = &self->c, .dev = self->dev, .host = address(&self->c, self->pin) };
	struct ctl_step step = { .h = { .op = CTL_STEP, .size = sizeof(step) }, .limit_ms = LONG_MS };
	struct client *c = &self->c;
	struct sv_ipc_event event = { .ctx = c->ctx, .event = new_event(c) };
	struct ring_ticket opened;
	struct ctl_stepped to;
	struct meeting *m;
	int32_t status = -1;
	pthread_t thread;
	int fd = meet(1, &m), other = silent_proxy(&event.h);

	ASSERT_GE(other, 0);
	ASSERT_EQ(conduct(self), 0);
	ASSERT_EQ(ctl_give(self->conn, fd), 0);
	ASSERT_EQ(ctl_send(self->conn, &step.h), 0);
	ASSERT_TRUE(is_looking(c));
	ASSERT_EQ(ring_request(c->ring, &opened, SV_OP_cuIpcOpenEventHandle, &event, sizeof(event), NULL, 0), 0);
	ASSERT_EQ(pthread_create(&thread, NULL, train, &t), 0);
	ASSERT_EQ(take_answer(self, CTL_STEP, &to.r, sizeof(to), 300), -ETIMEDOUT);
	close(other);
	EXPECT_EQ(take_answer(self, CTL_STEP, &to.r, sizeof(to), LONG_MS), 0);
	EXPECT_EQ(ring_await(c->ring, &opened, &status, NULL, 0, NULL, 1), 0);
	EXPECT_EQ(status, CUDA_ERROR_MAP_FAILED);
	EXPECT_EQ(ask_thaw(self), 0);
	t.stop = 1;
	pthread_join(thread, NULL);
	EXPECT_EQ(t.rc, 0);
}

/* The other one of a meeting, who comes 0.3 s after the first. */
static void *come_late(void *arg)
{
	struct meeting *m = arg;

	while (!__atomic_load_n(&m->word, __ATOMIC_ACQUIRE))
		usleep(1000);
	usleep(300000);
	meeting_arrive(m);
	return NULL;
}

TEST_F(restore, who_waits_for_another_says_for_how_long)
{
	struct trainer t = { .c = &self->c, .dev = self->dev, .host = address(&self->c, self->pin) };
	pthread_t thread, other;
	struct ctl_stepped st;
	struct meeting *m;
	int fd = meet(2, &m);

	ASSERT_EQ(conduct(self), 0);
	ASSERT_EQ(pthread_create(&thread, NULL, train, &t), 0);
	ASSERT_EQ(pthread_create(&other, NULL, come_late, m), 0);
	EXPECT_EQ(ask_step(self, fd, LONG_MS, &st), 0);
	EXPECT_GE(st.stood_ns, 300000000);
	EXPECT_LE(st.stood_ns, st.ns);
	EXPECT_EQ(ask_thaw(self), 0);
	t.stop = 1;
	pthread_join(thread, NULL);
	pthread_join(other, NULL);
	EXPECT_EQ(t.rc, 0);
}

/* One that stands and waits for others hears that its conductor has gone, and tells the others. */
TEST_F(restore, the_end_of_a_step_is_given_up_with_its_conductor)
{
	struct trainer t = { .c = &self->c, .dev = self->dev, .host = address(&self->c, self->pin) };
	struct ctl_step st = { .h = { .op = CTL_STEP, .size = sizeof(st) }, .limit_ms = LONG_MS };
	struct meeting *m;
	pthread_t thread;
	int fd = meet(2, &m);

	ASSERT_EQ(conduct(self), 0);
	ASSERT_EQ(pthread_create(&thread, NULL, train, &t), 0);
	ASSERT_EQ(ctl_give(self->conn, fd), 0);
	ASSERT_EQ(ctl_send(self->conn, &st.h), 0);
	for (int i = 0; i < 20000 && !__atomic_load_n(&m->word, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	EXPECT_EQ(meeting_state(m), MEETING_OPEN);
	close(self->conn);
	self->conn = -1;
	EXPECT_TRUE(goes_on(&t));
	EXPECT_EQ(meeting_state(m), MEETING_LOST);
	t.stop = 1;
	pthread_join(thread, NULL);
	EXPECT_EQ(t.rc, 0);
	close(fd);
}

/* The trainer's next step begins, or does it pause? */
static bool is_between_steps(struct trainer *t)
{
	for (int ms = 0; ms < 20000 && t->at; ms++)
		usleep(1000);
	return !t->at;
}

/*
 * A program that allocates in each step stands where it has the least, before it allocates; so it does if it pauses there
 * for longer than the search may take. Where it pauses before a step has shown the search ends in time.
 */
TEST_F(restore, a_session_stands_where_it_has_the_least_memory)
{
	enum { FIRST, PAUSES, PAUSES_EARLY, WAYS };
	struct trainer t = { .c = &self->c, .dev = self->dev, .host = address(&self->c, self->pin), .maps = true, .pause = 2 };
	struct ctl_step st = { .h = { .op = CTL_STEP, .size = sizeof(st) } };
	struct ctl_stepped to;
	struct ctl_info info;
	struct meeting *m;
	pthread_t thread;
	int fd, was, known = 0;

	ASSERT_EQ(conduct(self), 0);
	ASSERT_EQ(pthread_create(&thread, NULL, train, &t), 0);
	for (int way = FIRST; way < WAYS; way++) {
		for (int ms = 0; ms < 20000 && t.steps < t.pause; ms++)
			usleep(1000);
		was = t.steps;
		ASSERT_EQ(was, t.pause);
		st.limit_ms = way == PAUSES_EARLY ? 200 : 20 * SECOND;
		fd = meet(1, &m);
		ASSERT_EQ(ctl_give(self->conn, fd), 0);
		ASSERT_EQ(ctl_send(self->conn, &st.h), 0);
		ASSERT_TRUE(is_looking(&self->c));
		t.pause = way == FIRST ? 0 : way == PAUSES ? was + known : was + 1;
		memset(&to, 0, sizeof(to));
		ASSERT_EQ(take_answer(self, CTL_STEP, &to.r, sizeof(to), 20 * SECOND),
			  way == PAUSES_EARLY ? -ETIMEDOUT : 0)
			TH_LOG("way %d: %s", way, to.r.why);
		ASSERT_EQ(to.r.h.op, CTL_STEP);
		ASSERT_TRUE(is_between_steps(&t));
		known = way == FIRST ? t.steps - was : known;
		EXPECT_EQ(t.steps - was, way == PAUSES_EARLY ? 1 : known);
		ASSERT_EQ(ask_info(self, &info), 0);
		EXPECT_EQ(info.mapped, 4 * GRANULE);
		EXPECT_EQ(info.state, way == PAUSES_EARLY ? CTL_STATE_RUNNING : CTL_STATE_AT_STEP);
		t.pause = t.steps + 2;
		EXPECT_EQ(ask_thaw(self), 0);
		munmap(m, sizeof(*m));
		close(fd);
	}
	t.stop = 1;
	pthread_join(thread, NULL);
	EXPECT_EQ(t.rc, 0);
}

TEST_F(restore, who_is_not_there_fails_though_a_meeting_is_sealed)
{
	struct ctl_stepped st;
	struct meeting *m;
	int fd = meet(1, &m);

	ASSERT_EQ(conduct(self), 0);
	m->word = 1;
	EXPECT_EQ(ask_step(self, fd, 100, &st), -ETIMEDOUT);
	EXPECT_NE(strstr(st.r.why, "do nothing"), NULL);
}

TEST_F(restore, who_comes_to_no_end_of_a_step_says_why)
{
	struct trainer t = { .c = &self->c, .dev = self->dev, .host = address(&self->c, self->pin) };
	struct meeting *m, *other;
	struct ctl_step bare = { .limit_ms = 1 };
	struct ctl_stepped st;
	pthread_t thread;
	int fd;

	ASSERT_EQ(conduct(self), 0);
	fd = meet(1, &m);
	EXPECT_EQ(ask_step(self, fd, 100, &st), -ETIMEDOUT);
	EXPECT_NE(strstr(st.r.why, "do nothing"), NULL);
	EXPECT_EQ(meeting_state(m), MEETING_LOST);
	/* That one is lost: the next proxy does not wait for long. */
	EXPECT_EQ(ask_step(self, fd, LONG_MS, &st), -ECANCELED);
	EXPECT_NE(ftruncate(fd, 4), 0);
	/* One that may become shorter, or is no memory. */
	fd = memfd_create("meeting", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	EXPECT_EQ(write(fd, m, sizeof(*m)), sizeof(*m));
	EXPECT_EQ(ask_step(self, fd, LONG_MS, &st), -EPROTO);
	fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
	EXPECT_EQ(write(fd, m, sizeof(*m)), sizeof(*m));
	EXPECT_EQ(ask_step(self, fd, LONG_MS, &st), -EPROTO);
	/* One of nobody, one that says that it is something else, one that is too short. */
	fd = meet(0, &other);
	EXPECT_EQ(ask_step(self, fd, LONG_MS, &st), -EPROTO);
	fd = meet(1, &other);
	other->magic++;
	EXPECT_EQ(ask_step(self, fd, LONG_MS, &st), -EPROTO);
	fd = memfd_create("meeting", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	EXPECT_EQ(write(fd, &(struct meeting){ MEETING_MAGIC, 1, 0 }, sizeof(*m)), sizeof(*m));
	EXPECT_EQ(ftruncate(fd, sizeof(*m) - 1), 0);
	EXPECT_EQ(fcntl(fd, F_ADD_SEALS, MEETING_SEALS), 0);
	EXPECT_EQ(ask_step(self, fd, LONG_MS, &st), -EPROTO);
	/* Nobody else comes. */
	fd = meet(2, &other);
	ASSERT_EQ(pthread_create(&thread, NULL, train, &t), 0);
	EXPECT_EQ(ask_step(self, fd, 300, &st), -ETIMEDOUT);
	EXPECT_NE(strstr(st.r.why, "other ranks"), NULL)
		TH_LOG("%s", st.r.why);
	EXPECT_EQ(meeting_state(other), MEETING_LOST);
	EXPECT_TRUE(goes_on(&t));
	/* More milliseconds than nanoseconds have room for are many. */
	fd = meet(1, &other);
	EXPECT_EQ(ask_step(self, fd, UINT64_MAX, &st), 0);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_TRUE(goes_on(&t));
	/* A request without a meeting is none. */
	EXPECT_EQ(ask(self, CTL_STEP, &bare, sizeof(bare), &st, sizeof(st), NULL), -EPROTO);
	EXPECT_TRUE(goes_on(&t));
	t.stop = 1;
	pthread_join(thread, NULL);
	EXPECT_EQ(t.rc, 0);
}

/* What a conductor says that is no request, and what comes then: nothing happens to the job. */
TEST_F(restore, nonsense_is_refused)
{
	static const struct ctl_head heads[] = {
		{ 0, CTL_VERSION, CTL_INFO, sizeof(struct ctl_head) },
		{ CTL_MAGIC, CTL_VERSION + 1, CTL_INFO, sizeof(struct ctl_head) },
		{ CTL_MAGIC, CTL_VERSION, 99, sizeof(struct ctl_head) },
		{ CTL_MAGIC, CTL_VERSION, 0x200, sizeof(struct ctl_head) },
		{ CTL_MAGIC, CTL_VERSION, CTL_PROGRESS, sizeof(struct ctl_head) },
		{ CTL_MAGIC, CTL_VERSION, CTL_INFO, 12345 },
		{ CTL_MAGIC, CTL_VERSION, CTL_INFO, 0 },
	};
	static const uint32_t early[] = { CTL_DUMP, CTL_CHANNEL, CTL_RESTORE, CTL_GO };
	static const char *const why_early[] = { "the session is not frozen", "the session is not frozen",
						 "has a session already", "nothing was restored" };
	struct client *c = &self->c;
	char big[sizeof(struct ctl_restore) + 4096] = { 0 };
	struct ctl_restored reply;

	for (size_t i = 0; i < sizeof(heads) / sizeof(*heads) + 3; i++) {
		size_t n = sizeof(*heads);

		ASSERT_EQ(conduct(self), 0);
		if (i < sizeof(heads) / sizeof(*heads))
			memcpy(big, &heads[i], n);
		else if (i == sizeof(heads) / sizeof(*heads))
			n = 3;
		else if (i == sizeof(heads) / sizeof(*heads) + 1)
			n = sizeof(big);
		else			/* a path that does not end */
			n = sizeof(struct ctl_store);
		if (n == sizeof(struct ctl_store)) {
			memset(big, 'x', sizeof(big));
			memcpy(big, &(struct ctl_head){ CTL_MAGIC, CTL_VERSION, CTL_DUMP, n }, 16);
		}
		EXPECT_EQ(send(self->conn, big, n, MSG_NOSIGNAL), (ssize_t)n);
		/* One answer, then it is over. */
		memset(&reply, 0, sizeof(reply));
		EXPECT_GE(recv(self->conn, &reply, sizeof(reply), 0), (ssize_t)sizeof(reply.r));
		EXPECT_LT(reply.r.status, 0);
		if (i == 1) {
			EXPECT_EQ(reply.r.status, -EPROTONOSUPPORT);
			EXPECT_NE(strstr(reply.r.why, "the conductor speaks version 2"), NULL);
			EXPECT_NE(strstr(reply.r.why, "this proxy version 1"), NULL);
		}
		EXPECT_EQ(recv(self->conn, &reply, sizeof(reply), 0), 0);
		close(self->conn);
		self->conn = -1;
	}
	ASSERT_EQ(conduct(self), 0);
	for (size_t i = 0; i < sizeof(early) / sizeof(*early); i++) {
		memset(big, 0, sizeof(big));
		EXPECT_EQ(ask(self, early[i], big, i < 2 ? sizeof(struct ctl_store) :
			      i == 2 ? sizeof(struct ctl_restore) : sizeof(struct ctl_go),
			      &reply, sizeof(reply), NULL), -EINVAL);
		EXPECT_NE(strstr(reply.r.why, why_early[i]), NULL);
	}
	/* No store there, or what is none. */
	{
		struct ctl_frozen f;
		struct ctl_dumped d;

		EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
		EXPECT_EQ(ask_store(self, CTL_DUMP, "/nowhere", &d), -ENOENT);
		EXPECT_LT(ask_store(self, CTL_DUMP, "/tmp", &d), 0);
		EXPECT_EQ(ask_store(self, CTL_DUMP, self->store, &d), 0);
		EXPECT_EQ(ask_thaw(self), 0);
	}
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
	EXPECT_EQ(late_count(c), 0);
}

/* What a conductor sends, as it is; the answer's status, or 1: none came before the end. */
static int say_raw(FIXTURE_DATA(restore) *self, const void *p, size_t len, char why[512])
{
	struct ctl_restored reply = { .records = 0 };
	int rc = conduct(self);

	if (!rc && send(self->conn, p, len, MSG_NOSIGNAL) == (ssize_t)len)
		rc = recv(self->conn, &reply, sizeof(reply), 0) < (ssize_t)sizeof(reply.r) ? 1 :
			reply.r.status;
	memcpy(why, reply.r.why, sizeof(reply.r.why));
	close(self->conn);
	self->conn = -1;
	return rc;
}

TEST_F(restore, requests_of_a_wrong_length_are_refused)
{
	static char big[sizeof(struct ctl_restore) + 4096];
	struct ctl_restore from = { .h = { CTL_MAGIC, CTL_VERSION, CTL_RESTORE, sizeof(from) } };
	struct ctl_store st = { .h = { CTL_MAGIC, CTL_VERSION, CTL_DUMP, sizeof(st) } };
	struct ctl_head h = { CTL_MAGIC, CTL_VERSION, CTL_INFO, sizeof(h) };
	struct ctl_frozen f;
	struct ctl_dumped d;
	char why[512];

	EXPECT_EQ(say_raw(self, &h, sizeof(h), why), 0);
	EXPECT_EQ(say_raw(self, &h, 12, why), -EPROTO);
	EXPECT_NE(strstr(why, "no request"), NULL);
	h.size++;
	EXPECT_EQ(say_raw(self, &h, sizeof(h), why), -EPROTO);
	/* As much as there is room for, and more that was cut off. */
	h.size = sizeof(struct ctl_restore);
	memcpy(big, &h, sizeof(h));
	EXPECT_EQ(say_raw(self, big, sizeof(big), why), -EPROTO);
	EXPECT_EQ(say_raw(self, big, h.size, why), 0);
	h = (struct ctl_head){ CTL_MAGIC, CTL_VERSION + 1, CTL_INFO, sizeof(h) };
	EXPECT_EQ(say_raw(self, &h, sizeof(h), why), -EPROTONOSUPPORT);
	EXPECT_NE(strstr(why, "version"), NULL);
	h.version = CTL_VERSION;
	memset(st.dir, 'x', sizeof(st.dir));
	EXPECT_EQ(say_raw(self, &st, sizeof(st), why), -EPROTO);
	EXPECT_NE(strstr(why, "path"), NULL);
	memset(from.dir, 'x', sizeof(from.dir));
	EXPECT_EQ(say_raw(self, &from, sizeof(from), why), -EPROTO);
	EXPECT_NE(strstr(why, "has no NUL"), NULL);

	/* What a request leaves out is not what the one before it said. */
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(ask_store(self, CTL_DUMP, self->store, &d), 0);
	h.size = sizeof(h);
	EXPECT_LT(ask(self, CTL_DUMP, &h, sizeof(h), &d, sizeof(d), NULL), 0);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_EQ(ctx_sync(&self->c), 0);
}

static uint64_t rnd(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return *seed >> 29;
}

/* How often a test of random input repeats itself: SINGVGPU_SCALE times that in a longer run. */
static int scaled(int n)
{
	const char *s = getenv("SINGVGPU_SCALE");

	return s ? n * atoi(s) : n;
}

/* A request with something wrong in it, or nothing. Its length. */
static size_t make_up(FIXTURE_DATA(restore) *self, uint64_t *seed, uint8_t *p, size_t room)
{
	static const uint32_t sizes[] = { 16, sizeof(struct ctl_freeze), sizeof(struct ctl_store),
					  sizeof(struct ctl_restore), sizeof(struct ctl_go) };
	uint32_t size = sizes[rnd(seed) % 5];
	struct ctl_head h = { CTL_MAGIC, CTL_VERSION, 1 + rnd(seed) % 8, size };

	for (size_t i = 0; i < room; i++)
		p[i] = rnd(seed) % 3 ? 0 : rnd(seed);
	if (h.op == CTL_FREEZE)
		memcpy(p + 16, &(uint64_t){ rnd(seed) % 30 }, 8);
	else if (h.op == CTL_GO)
		memcpy(p + 16, &(int32_t){ rnd(seed) % 2 ? getpid() : (int)rnd(seed) }, 4);
	else if (rnd(seed) % 2)
		snprintf((char *)p + 16, CTL_PATH_MAX, "%s", self->store);
	switch (rnd(seed) % 12) {
	case 0:
		h.op = rnd(seed);
		break;
	case 1:
		h.size = rnd(seed) % 2 ? rnd(seed) % 3000 : rnd(seed);
		break;
	case 2:
		h.version = rnd(seed);
		break;
	case 3:
		h.magic ^= 1u << rnd(seed) % 32;
		break;
	case 4:
		memset(p + 16, 'x', room - 16);
		break;
	case 5:
		size = rnd(seed) % room;
		break;
	}
	memcpy(p, &h, sizeof(h));
	return size;
}

/* Whatever conductors say, in whatever order, and whenever they go: the job does not notice. */
TEST_F(restore, random_requests_leave_the_job_alone)
{
	uint8_t m[sizeof(struct ctl_restore) + 512];
	struct timeval t = { .tv_sec = 60 };
	struct ctl_restored reply;
	struct client *c = &self->c;
	uint64_t seed = 7;
	int answered = 0, rc;

	load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	for (int i = 0; i < scaled(300); i++) {
		ASSERT_EQ(conduct(self), 0);
		setsockopt(self->conn, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
		for (int k = rnd(&seed) % 6; k >= 0; k--) {
			size_t n = make_up(self, &seed, m, sizeof(m));
			ssize_t got;

			if (send(self->conn, m, n, MSG_NOSIGNAL) != (ssize_t)n)
				break;
			if (rnd(&seed) % 8 == 0)
				break;		/* it goes without an answer */
			do
				got = recv(self->conn, &reply, sizeof(reply), 0);
			while (got > 0 && reply.r.h.op == CTL_PROGRESS);
			if (got <= 0) {		/* over; with what it had not read, perhaps */
				EXPECT_TRUE(!got || errno == ECONNRESET);
				break;
			}
			answered++;
		}
		close(self->conn);
		self->conn = -1;
		if (i % 16 == 0)
			EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
	}
	EXPECT_GT(answered, 100);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 0);
	ASSERT_EQ(move(self), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
}

/* The same to a proxy that waits for a session: it comes to none, and ends with its conductor. */
TEST_F(restore, random_requests_restore_nothing)
{
	uint8_t m[sizeof(struct ctl_restore) + 512];
	struct timeval t = { .tv_sec = 60 };
	struct ctl_restore good, r;
	struct ctl_restored reply;
	uint64_t seed = 11;

	ASSERT_EQ(save(self), 0);
	end_proxy(self);
	fill_restore(self, &good);
	for (int i = 0; i < scaled(60); i++) {
		ASSERT_EQ(start_restorer(self), 0);
		setsockopt(self->conn, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
		for (int k = rnd(&seed) % 4; k >= 0; k--) {
			size_t n = make_up(self, &seed, m, sizeof(m));

			if (rnd(&seed) % 2) {	/* nearly right */
				r = good;
				r.h = (struct ctl_head){ CTL_MAGIC, CTL_VERSION, CTL_RESTORE, sizeof(r) };
				for (int j = rnd(&seed) % 3; j >= 0; j--)
					((uint8_t *)&r)[16 + rnd(&seed) % (sizeof(r) - 16)] ^=
						1 << rnd(&seed) % 8;
				memcpy(m, &r, n = sizeof(r));
			}
			if (send(self->conn, m, n, MSG_NOSIGNAL) != (ssize_t)n ||
			    recv(self->conn, &reply, sizeof(reply), 0) <= 0)
				break;
		}
		close(self->conn);
		self->conn = -1;
		EXPECT_EQ(client_wait(&self->c), 2);
	}
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(ctx_sync(&self->c), 0);
}

TEST_F(restore, a_session_that_runs_is_not_let_go_again)
{
	struct ctl_go go = { .client_pid = getpid() };
	struct ctl_reply r;

	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask(self, CTL_GO, &go, sizeof(go), &r, sizeof(r), NULL), -EINVAL);
	EXPECT_NE(strstr(r.why, "nothing was restored"), NULL);
	EXPECT_EQ(ctx_sync(&self->c), 0);
}

/* Connects as another user, asks, and says whether anything came back. */
static int heard_as(FIXTURE_DATA(restore) *self, uid_t uid)
{
	struct ctl_head h = { CTL_MAGIC, CTL_VERSION, CTL_INFO, sizeof(h) };
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct ctl_info info;
	int status, fd;
	pid_t pid = fork();

	if (pid) {
		waitpid(pid, &status, 0);
		return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	}
	if (setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		_exit(3);
	fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", self->ctl);
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)))
		_exit(2);
	_exit(send(fd, &h, sizeof(h), MSG_NOSIGNAL) == sizeof(h) &&
	      recv(fd, &info, sizeof(info), 0) > 0);
}

/* The mode of the socket keeps others away; and if it did not they would not be heard. */
TEST_F(restore, another_user_is_not_heard)
{
	struct ctl_info info;
	struct stat st;

	ASSERT_EQ(stat(self->ctl, &st), 0);
	EXPECT_EQ(st.st_mode, S_IFSOCK | 0600);
	if (geteuid())
		SKIP(return, "only root can be another user");
	ASSERT_EQ(chmod(self->dir, 0755), 0);
	EXPECT_EQ(heard_as(self, 0), 1);
	EXPECT_EQ(heard_as(self, 65534), 2);
	ASSERT_EQ(chmod(self->ctl, 0666), 0);
	EXPECT_EQ(heard_as(self, 65534), 0);
	EXPECT_EQ(heard_as(self, 0), 1);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask_info(self, &info), 0);
}

TEST_HARNESS_MAIN
