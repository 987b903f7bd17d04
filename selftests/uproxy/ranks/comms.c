// SPDX-License-Identifier: Apache-2.0
/*
 * comms.c - communicators of proxies: a broken board, buffers, orders, creations, and records that are not to be believed
 */
#include <dirent.h>

#include "colls.h"

/* ------------------------------------------------------------------------------ the board */

static void see_and_die(void *ctx, const struct step *s, const struct step_comm_look *look)
{
	(void)ctx, (void)s, (void)look;
	raise(SIGKILL);
}

static void see_nothing(void *ctx, const struct step *s, const struct step_comm_look *of, const struct step_op_look *look)
{
	(void)ctx, (void)s, (void)of, (void)look;
}

static const struct step_looker dies = { see_and_die, see_nothing, NULL };

/* A process dies while it may be changing the board. */
static void kill_in_board(struct board *b)
{
	pid_t pid = fork();

	if (!pid)
		_exit(board_look(b, &dies));
	waitpid(pid, NULL, 0);
}

/* The next one that uses it tells all seats. */
static int break_board(struct board *b)
{
	kill_in_board(b);
	return board_look(b, &dies);
}

/* Is there a thread of the process that does not sleep? */
static bool is_awake(pid_t pid)
{
	char path[300], line[512];
	struct dirent *e;
	bool awake = false;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		char *name = NULL;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", pid, e->d_name);
		f = *e->d_name == '.' ? NULL : fopen(path, "r");
		if (f && fgets(line, sizeof(line), f))
			name = strrchr(line, ')');
		if (f)
			fclose(f);
		awake |= name && name[1] && name[2] != 'S';
	}
	if (d)
		closedir(d);
	return awake;
}

/* Does a rank's proxy come to sleep? One that looks for work again and again may be seen asleep, but its turns are counted. */
static bool comes_to_sleep(struct rank *r)
{
	for (int i = 0; i < 5000; i++) {
		uint64_t turns = shown(r).waits;

		usleep(1000);
		if (!is_awake(r->c.proxy) && shown(r).waits == turns)
			return true;
	}
	return false;
}

/* What has begun and what has not, calls, creations: all of it ends, and says why. */
TEST_F(colls, a_broken_board_ends_all)
{
	struct rank *r = &self->r[0], *late = &self->r[1];
	struct sv_comm_new a = { .ctx = r->c.ctx, .comm = 80, .ranks = 2, .id = "nobody else comes" };
	struct sv_comm_result res = { 0 };
	struct sv_comm_word *forming;
	volatile uint64_t *word;
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_EQ(gate(late, late->stream, &word), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(COLL(r, self->comm, r->other, all_reduce(r, 16)), 0);
	a.word = new_word(r, &forming);
	ASSERT_EQ(ring_request(r->c.ring, &t, SV_OP_X_COMM_NEW, &a, sizeof(a), NULL, 0), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), CUDA_ERROR_NOT_READY);
	usleep(50000);
	ASSERT_EQ(break_board(self->board), -ENOTRECOVERABLE);
	for (int i = 0; i < self->n; i++) {
		EXPECT_EQ(code_of(&self->r[i]), STEP_REMOTE);
		EXPECT_NE(strstr(self->r[i].word->text, "killed while it changed the job's board"), NULL)
			TH_LOG("%s", self->r[i].word->text);
		EXPECT_EQ(self->r[i].word->state, SV_COMM_STANDS);
	}
	EXPECT_EQ(ring_await(r->c.ring, &t, &status, &res, sizeof(res), NULL, 20000000000), 0);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(res.code, STEP_REMOTE);
	EXPECT_EQ(forming->state, SV_COMM_FAILED);
	for (int i = 0; i < self->n; i++) {
		if (i != 1)
			EXPECT_EQ(sync_stream(&self->r[i], self->r[i].stream), CUDA_ERROR_EXTERNAL_DEVICE);
	}
	EXPECT_EQ(sync_stream(r, r->other), CUDA_ERROR_EXTERNAL_DEVICE);
	*word = 1;
	EXPECT_EQ(sync_stream(late, late->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	/* What is posted now fails at once; what ends is ended. */
	ASSERT_EQ(COLL(&self->r[2], self->comm, self->r[2].other, all_reduce(&self->r[2], 16)), 0);
	EXPECT_EQ(sync_stream(&self->r[2], self->r[2].other), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_TRUE(comes_to_sleep(r));
	EXPECT_EQ(end_comm(r, 80, 0), 0);
	for (int i = 0; i < self->n; i++) {
		EXPECT_EQ(end_comm(&self->r[i], self->comm, i % 2), 0);
		EXPECT_EQ(ctx_sync(&self->r[i].c), 0);
	}
	EXPECT_EQ(new_comm(self->r, self->n, 81, "on a broken board"), STEP_REMOTE);
	EXPECT_EQ(shown(r).coll_waits.since, 0);
	EXPECT_EQ(shown(r).coll_runs.since, 0);
	for (int i = 0; i < self->n; i++)
		EXPECT_TRUE(comes_to_sleep(&self->r[i]));
	EXPECT_EQ(times_said(self->said, "all communicators of the job have failed"), 1);
}

/* A group has failed, and a small send of it is on its way: it does not end a second time when the board breaks. */
TEST_F(colls, what_has_ended_ends_once_on_a_broken_board)
{
	enum { COUNT = 64 << 10 };
	struct rank *r = &self->r[0], *to = &self->r[1];
	struct sv_coll_call call[2] = { pair(r, STEP_SEND, 1, COUNT), pair(r, STEP_SEND, 3, MiB) };
	struct sv_comm_end end = { .comm = self->comm };
	volatile uint64_t *word;
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_EQ(send_calls(r, self->comm, r->stream, call, 2), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);	/* it lies in its buffer */
	ASSERT_EQ(gate(to, to->stream, &word), 0);
	ASSERT_EQ(COLL(to, self->comm, to->stream, pair(to, STEP_RECV, 0, COUNT)), 0);
	for (int i = 0; i < 10000 && !shown(r).coll_runs.since; i++)
		usleep(1000);
	EXPECT_NE(shown(r).coll_runs.since, 0);
	ASSERT_EQ(end_comm(&self->r[3], self->comm, SV_COMM_ABORT), 0);
	EXPECT_EQ(sync_stream(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_NE(shown(r).coll_runs.since, 0);
	ASSERT_EQ(break_board(self->board), -ENOTRECOVERABLE);
	for (int i = 0; i < 10000 && shown(r).coll_runs.since; i++)
		usleep(1000);
	ASSERT_EQ(ring_request(r->c.ring, &t, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0), 0);
	EXPECT_EQ(ring_await(r->c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, 0);
	*word = 1;
	EXPECT_EQ(end_comm(to, self->comm, SV_COMM_ABORT), 0);
	EXPECT_EQ(ctx_sync(&to->c), 0);
}

/*
 * A board breaks, and nobody has been told: who posts on it hears of that, and not of memory. What stands there already has
 * ended, and does not end again with the board.
 */
TEST_F(colls, what_stands_ends_once_on_a_broken_board)
{
	struct sv_comm_end end = { .comm = self->comm };
	struct rank *r = &self->r[0], *one = &self->r[1], *to = &self->r[3];
	volatile uint64_t *word;
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_EQ(gate(to, to->stream, &word), 0);
	ASSERT_EQ(COLL(to, self->comm, to->stream, pair(to, STEP_RECV, 0, MiB)), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, pair(r, STEP_SEND, 3, MiB)), 0);
	for (int i = 0; i < 10000 && !shown(r).coll_runs.since; i++)
		usleep(1000);
	ASSERT_EQ(end_comm(to, self->comm, SV_COMM_ABORT), 0);
	EXPECT_EQ(sync_stream(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(code_of(r), STEP_REMOTE);
	ASSERT_EQ(new_comm(one, 2, 78, "of two"), 0);
	kill_in_board(self->board);
	ASSERT_EQ(COLL(one, 78, one->stream, all_reduce(one, 16)), 0);
	EXPECT_EQ(sync_stream(one, one->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(code_of(one), STEP_REMOTE)
		TH_LOG("%s", one->word->text);
	EXPECT_EQ(new_comm(r, 1, 79, "on a broken board"), STEP_REMOTE);
	ASSERT_EQ(ring_request(r->c.ring, &t, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0), 0);
	EXPECT_EQ(ring_await(r->c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(sync_stream(r, r->stream), 0);
	*word = 1;
	EXPECT_EQ(ctx_sync(&to->c), 0);
}

/* A proxy may find the board broken whose wake has been lost with the one who found that first. */
TEST_F(colls, who_finds_the_board_broken_tells_itself)
{
	uint32_t *board = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, self->fd, 0);
	struct rank *late = &self->r[1];
	volatile uint64_t *word;
	bool heard = false;

	ASSERT_NE(board, MAP_FAILED);
	ASSERT_EQ(gate(late, late->stream, &word), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	usleep(50000);
	__atomic_store_n(&board[4], 1, __ATOMIC_SEQ_CST);	/* struct shared's broken */
	*word = 1;
	for (int i = 0; i < 20000 && !heard; i++) {
		usleep(1000);
		for (int k = 0; k < self->n; k++)
			heard |= __atomic_load_n(&self->r[k].word->code, __ATOMIC_ACQUIRE) == STEP_REMOTE;
	}
	EXPECT_TRUE(heard);
	/* What others wait for may not come any more. */
	for (int i = 0; i < self->n; i++)
		board_wake(self->board, i);
	for (int i = 0; i < self->n; i++)
		EXPECT_EQ(code_of(&self->r[i]), STEP_REMOTE);
	for (int i = 0; i < self->n; i++) {
		EXPECT_EQ(end_comm(&self->r[i], self->comm, SV_COMM_ABORT), 0);
		EXPECT_EQ(ctx_sync(&self->r[i].c), 0);
	}
	munmap(board, 4096);
}

/* What has ended is off the list of what has started, in whatever order: a broken board ends nothing twice. */
TEST_F(colls, operations_end_in_another_order_than_they_start)
{
	static const int order[] = { 2, 1, 3 };
	struct rank *r = &self->r[0];
	volatile uint64_t *word[RANKS];
	uint64_t st[RANKS];

	for (int i = 1; i < self->n; i++) {
		struct rank *to = &self->r[i];

		ASSERT_EQ(gate(to, to->stream, &word[i]), 0);
		ASSERT_EQ(COLL(to, self->comm, to->stream, pair(to, STEP_RECV, 0, MiB)), 0);
		ASSERT_EQ(query(to, SV_OP_cuStreamQuery, to->other), 0);
	}
	for (int i = 1; i < self->n; i++) {
		st[i] = new_stream(r, CU_STREAM_NON_BLOCKING);
		ASSERT_EQ(COLL(r, self->comm, st[i], pair(r, STEP_SEND, i, MiB)), 0);
	}
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, st[1]), CUDA_ERROR_NOT_READY);
	for (int k = 0; k < self->n - 1; k++) {
		int i = order[k];

		*word[i] = 1;
		ASSERT_EQ(sync_stream(r, st[i]), 0);
		ASSERT_EQ(sync_stream(&self->r[i], self->r[i].stream), 0);
	}
	ASSERT_EQ(break_board(self->board), -ENOTRECOVERABLE);
	for (int i = 0; i < self->n; i++)
		EXPECT_EQ(code_of(&self->r[i]), STEP_REMOTE);
	EXPECT_EQ(end_comm(r, self->comm, SV_COMM_ABORT), 0);
	EXPECT_TRUE(comes_to_sleep(r));
}

/* ------------------------------------------------------------------------------ what is sent into buffers */

/* When the second send of a group gets its buffer the stream may have come to the group already. */
TEST_F(colls, each_send_of_a_group_is_copied)
{
	struct rank *from = &self->r[0], *to = &self->r[1];
	struct sv_coll_call call[2];

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 2; i++) {
			ASSERT_EQ(fill(from, from->stream, from->dev + i * MiB, round ? 0 : 41 + i, 16), 0);
			call[i] = pair(from, STEP_SEND, 1, 16);
			call[i].send += i * MiB;
		}
		ASSERT_EQ(sync_stream(from, from->stream), 0);
		if (!round)
			ASSERT_EQ(send_calls(from, self->comm, from->stream, call, 2), 0);
		ASSERT_EQ(sync_stream(from, from->stream), 0);
	}
	for (int i = 0; i < 2; i++) {
		call[i] = pair(to, STEP_RECV, 0, 16);
		call[i].recv += i * MiB;
	}
	ASSERT_EQ(send_calls(to, self->comm, to->stream, call, 2), 0);
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(down(to, to->stream, i * MiB, to->dev + (4 + i) * MiB, 64), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
	EXPECT_EQ(*word_at(to, 60), 41);
	EXPECT_EQ(*word_at(to, MiB + 60), 42);
}

/*
 * A communicator has failed and ends: what it has sent into buffers goes to nobody, and its places are free. Who
 * receives it later gets an error, and not what another record has at that place.
 */
TEST_F(colls, what_a_failed_communicator_has_sent_is_forgotten)
{
	struct rank *r = &self->r[0], *to = &self->r[1], *third = &self->r[3];
	struct sv_comm_word *first = to->word;

	ASSERT_EQ(new_comm(self->r, 2, 78, "of two"), 0);
	ASSERT_EQ(new_comm(self->r, 2, 79, "of these two again"), 0);
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(fill(&self->r[i], self->r[i].stream, self->r[i].dev, bits(1 + i), 1024), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
	/* As many records as there may be: one that fails, and small sends. */
	ASSERT_EQ(COLL(r, self->comm, r->other, pair(r, STEP_SEND, 3, MiB)), 0);
	for (int i = 0; i < 383; i++)
		ASSERT_EQ(COLL(r, self->comm, r->stream, pair(r, STEP_SEND, 1, 16)), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	ASSERT_EQ(end_comm(third, self->comm, SV_COMM_ABORT), 0);
	EXPECT_EQ(sync_stream(r, r->other), CUDA_ERROR_EXTERNAL_DEVICE);
	/* One place is free. */
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(COLL(&self->r[i], 78, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	ASSERT_EQ(end_comm(r, self->comm, 0), 0);
	EXPECT_EQ(sync_stream(r, r->other), 0);
	/* Two records that wait take the places that were given first; the second one can run. */
	ASSERT_EQ(COLL(r, 78, r->stream, all_reduce(r, 1024)), 0);
	ASSERT_EQ(COLL(r, 79, r->other, all_reduce(r, 1024)), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), CUDA_ERROR_NOT_READY);
	ASSERT_EQ(COLL(to, self->comm, to->other, pair(to, STEP_RECV, 0, 16)), 0);
	EXPECT_EQ(sync_stream(to, to->other), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(first->code, STEP_SYSTEM)
		TH_LOG("%u: %s", first->code, first->text);
	ASSERT_EQ(end_comm(to, self->comm, 0), 0);
	ASSERT_EQ(COLL(to, 79, to->other, all_reduce(to, 1024)), 0);
	for (int i = 0; i < 2; i++) {
		struct rank *one = &self->r[i];

		ASSERT_EQ(down(one, one->other, 0, one->dev + 4 * MiB, 4096), 0);
		ASSERT_EQ(sync_stream(one, one->other), 0);
		EXPECT_EQ(*word_at(one, 4092), bits(3));
		EXPECT_EQ(one->word->code, 0);
	}
	ASSERT_EQ(COLL(to, 78, to->stream, all_reduce(to, 1024)), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
}

/*
 * A small send has ended for its sender, and is on its way when its communicator fails and ends: it arrives, and nothing
 * that it needs is freed before.
 */
TEST_F(colls, what_a_failed_communicator_is_sending_arrives)
{
	enum { COUNT = 64 << 10 };
	struct rank *r = &self->r[0], *to = &self->r[1], *third = &self->r[3];
	volatile uint64_t *word;
	uint64_t large = new_stream(r, CU_STREAM_NON_BLOCKING);

	ASSERT_EQ(fill(r, r->stream, r->dev, 4711, COUNT), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, pair(r, STEP_SEND, 1, COUNT)), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	ASSERT_EQ(COLL(r, self->comm, large, pair(r, STEP_SEND, 3, MiB)), 0);
	ASSERT_EQ(gate(to, to->stream, &word), 0);
	ASSERT_EQ(COLL(to, self->comm, to->stream, pair(to, STEP_RECV, 0, COUNT)), 0);
	for (int i = 0; i < 10000 && !shown(r).coll_runs.since; i++)
		usleep(1000);
	EXPECT_NE(shown(r).coll_runs.since, 0);
	ASSERT_EQ(end_comm(third, self->comm, SV_COMM_ABORT), 0);
	EXPECT_EQ(sync_stream(r, large), CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(end_comm(r, self->comm, 0), 0);
	*word = 1;
	ASSERT_EQ(down(to, to->stream, 0, to->dev + 4 * MiB, 4 * COUNT), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
	EXPECT_EQ(*word_at(to, 4 * COUNT - 4), 4711);
	EXPECT_EQ(ctx_sync(&r->c), 0);
}

/* Records that have failed before they began leave room for others', though their communicator has not been ended. */
TEST_F(colls, records_that_have_failed_leave_room)
{
	enum { STREAMS = 7, CALLS = 1024 };	/* almost as many calls as a rank may have open */
	struct rank *r = &self->r[0], *to = &self->r[1];
	struct sv_comm_word *all = r->word;
	struct sv_sync_on on = { r->c.ctx, r->other };
	struct sv_coll_call call[CALLS];
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_EQ(new_comm(self->r, 2, 78, "of two"), 0);
	for (int i = 0; i < CALLS; i++)
		call[i] = all_reduce(r, 1);
	for (int i = 0; i < STREAMS; i++)
		ASSERT_EQ(send_calls(r, self->comm, new_stream(r, CU_STREAM_NON_BLOCKING), call, CALLS), 0);
	ASSERT_EQ(end_comm(&self->r[3], self->comm, SV_COMM_ABORT), 0);
	for (int i = 0; i < 10000 && !__atomic_load_n(&all->code, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	for (int i = 0; i < CALLS; i++)
		call[i] = pair(r, STEP_RECV, 1, 1);
	ASSERT_EQ(send_calls(r, 78, r->stream, call, CALLS), 0);
	ASSERT_EQ(COLL(r, 78, r->other, pair(r, STEP_SEND, 1, 16)), 0);
	ASSERT_EQ(ring_request(r->c.ring, &t, SV_OP_cuStreamSynchronize, &on, sizeof(on), NULL, 0), 0);
	EXPECT_EQ(ring_await(r->c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, 0);
	ASSERT_EQ(COLL(to, 78, to->stream, pair(to, STEP_RECV, 0, 16)), 0);
	EXPECT_EQ(sync_stream(to, to->stream), 0);
	ASSERT_EQ(end_comm(r, 78, SV_COMM_ABORT), 0);
	ASSERT_EQ(end_comm(r, self->comm, SV_COMM_ABORT), 0);
	EXPECT_EQ(ctx_sync(&r->c), 0);
}

static void count_op(void *ctx, const struct step *s, const struct step_comm_look *of, const struct step_op_look *look)
{
	(void)s, (void)of, (void)look;
	++*(unsigned int *)ctx;
}

static void see_no_comm(void *ctx, const struct step *s, const struct step_comm_look *look)
{
	(void)ctx, (void)s, (void)look;
}

/* Communicators that have nothing under way may post beyond a rank's part of the board, but not more than that again. */
TEST_F(colls, idle_communicators_have_a_limit)
{
	enum { COMMS = 18, CALLS = 1024, LIMIT = 2 * (32 << 10) / RANKS };
	struct rank *r = &self->r[0];
	struct sv_coll_call call[CALLS];
	unsigned int ops = 0;
	const struct step_looker looker = { see_no_comm, count_op, &ops };

	for (int i = 0; i < CALLS; i++)
		call[i] = pair(r, STEP_RECV, 1, 1);
	for (int k = 0; k < COMMS; k++) {
		char id[16];

		snprintf(id, sizeof(id), "idle %d", k);
		ASSERT_EQ(new_comm(self->r, 2, 80 + k, id), 0);
	}
	/* The first one is the largest. */
	ASSERT_EQ(send_calls(r, self->comm, r->stream, call, CALLS), 0);
	for (int k = 0; k < COMMS; k++)
		ASSERT_EQ(send_calls(r, 80 + k, new_stream(r, CU_STREAM_NON_BLOCKING), call, CALLS), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
	EXPECT_EQ(board_look(self->board, &looker), 0);
	EXPECT_EQ(ops, LIMIT);
	for (int k = 0; k < COMMS; k++)
		ASSERT_EQ(end_comm(r, 80 + k, SV_COMM_ABORT), 0);
	ASSERT_EQ(end_comm(r, self->comm, SV_COMM_ABORT), 0);
	EXPECT_EQ(ctx_sync(&r->c), 0);
}

/* What comes too early for an operation that is given up is not kept: nobody will ask for it. */
TEST_F(colls, what_has_come_for_what_is_given_up_is_dropped)
{
	enum { ROUNDS = 20, FIRST = 2, PAIRS = 32 };	/* each pair is 128 KiB ahead */
	struct rank *r = &self->r[0], *from = &self->r[1];
	struct sv_coll_call recv[PAIRS], send[PAIRS];
	volatile uint64_t *word;
	uint64_t before = 0;

	for (int i = 0; i < PAIRS; i++) {
		recv[i] = pair(r, STEP_RECV, 1, MiB / 4);
		send[i] = pair(from, STEP_SEND, 0, MiB / 4);
	}
	for (int k = 0; k < ROUNDS; k++) {
		char id[16];

		snprintf(id, sizeof(id), "round %d", k);
		ASSERT_EQ(new_comm(self->r, 2, 80 + k, id), 0);
		ASSERT_EQ(gate(r, r->stream, &word), 0);
		ASSERT_EQ(send_calls(r, 80 + k, r->stream, recv, PAIRS), 0);
		ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
		ASSERT_EQ(send_calls(from, 80 + k, from->stream, send, PAIRS), 0);
		for (int i = 0; i < 10000 && !shown(from).coll_runs.since; i++)
			usleep(1000);
		usleep(20000);
		ASSERT_EQ(end_comm(r, 80 + k, SV_COMM_ABORT), 0);
		ASSERT_EQ(end_comm(from, 80 + k, SV_COMM_ABORT), 0);
		*word = 1;
		ASSERT_EQ(sync_stream(r, r->stream), 0);
		ASSERT_EQ(sync_stream(from, from->stream), 0);
		if (k == FIRST)
			before = resident(r->c.proxy);
	}
	EXPECT_NE(before, 0);
	/* Half of what the rounds since then would leave: the heap itself takes some MiB. */
	EXPECT_LT(resident(r->c.proxy), before + (ROUNDS - 1 - FIRST) * PAIRS * MiB / 8 / 2);
}

/* A place is free again when what was sent from it has been received; a clean end changes nothing of that. */
TEST_F(colls, what_a_communicator_has_sent_outlives_its_end)
{
	struct rank *r = &self->r[0], *to = &self->r[1];

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 300; i++)
			ASSERT_EQ(COLL(r, self->comm, r->stream, pair(r, STEP_SEND, 1, 16)), 0);
		ASSERT_EQ(sync_stream(r, r->stream), 0);
		for (int i = 0; i < 300; i++)
			ASSERT_EQ(COLL(to, self->comm, to->stream, pair(to, STEP_RECV, 0, 16)), 0);
		ASSERT_EQ(sync_stream(to, to->stream), 0);
	}
	ASSERT_EQ(fill(r, r->stream, r->dev, 4711, 16), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, pair(r, STEP_SEND, 1, 16)), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	ASSERT_EQ(end_comm(r, self->comm, 0), 0);
	ASSERT_EQ(fill(r, r->stream, r->dev, 1, 16), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	ASSERT_EQ(COLL(to, self->comm, to->stream, pair(to, STEP_RECV, 0, 16)), 0);
	ASSERT_EQ(down(to, to->stream, 0, to->dev + 4 * MiB, 64), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
	EXPECT_EQ(*word_at(to, 60), 4711);
	/* The others know that it has left. */
	ASSERT_EQ(COLL(to, self->comm, to->stream, all_reduce(to, 16)), 0);
	EXPECT_EQ(sync_stream(to, to->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(to->word->code, STEP_REMOTE);
}

/* One rank hands in more calls than the board has room for: they wait until others have ended. */
TEST_F(colls, a_rank_does_not_fill_the_board)
{
	enum { GROUPS = 130, CALLS = 1024 };
	struct rank *to = &self->r[0], *from = &self->r[1];
	struct sv_coll_call call[CALLS];

	for (int k = 0; k < GROUPS; k++) {
		uint64_t st = new_handle(&to->c, SV_T_CUstream);

		ASSERT_EQ(SEND(&to->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
				.ctx = to->c.ctx, .phStream = st, .Flags = CU_STREAM_NON_BLOCKING }), 0);
		for (int i = 0; i < CALLS; i++)
			call[i] = (struct sv_coll_call){ .kind = STEP_RECV, .type = TREE_INT32, .peer = 1, .count = 1,
							 .recv = to->dev + 4 * (k * CALLS + i) };
		ASSERT_EQ(send_calls(to, self->comm, st, call, CALLS), 0);
	}
	ASSERT_EQ(query(to, SV_OP_cuStreamQuery, to->other), 0);
	ASSERT_EQ(to->word->code, 0);
	for (int k = 0; k < GROUPS; k++) {
		ASSERT_EQ(fill(from, from->stream, from->dev, k, CALLS), 0);
		for (int i = 0; i < CALLS; i++)
			call[i] = (struct sv_coll_call){ .kind = STEP_SEND, .type = TREE_INT32, .peer = 0, .count = 1,
							 .send = from->dev + 4 * i };
		ASSERT_EQ(send_calls(from, self->comm, from->stream, call, CALLS), 0);
	}
	ASSERT_EQ(ctx_sync(&to->c), 0);
	ASSERT_EQ(down(to, to->stream, 0, to->dev, 4 * GROUPS * CALLS), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
	for (int k = 0; k < GROUPS; k++) {
		ASSERT_EQ(*word_at(to, 4 * k * CALLS), k);
		ASSERT_EQ(*word_at(to, 4 * (k * CALLS + CALLS - 1)), k);
	}
	EXPECT_EQ(to->word->code, 0);
	EXPECT_EQ(from->word->code, 0);
}

/* More operations than there are lists of them, all of which wait for one stream. */
TEST_F(colls, thousands_of_pairs_may_have_started)
{
	enum { GROUPS = 5, EACH = 1024 };
	static struct sv_coll_call call[EACH];
	struct rank *r = &self->r[0], *to = &self->r[1];
	volatile uint64_t *word;

	for (int i = 0; i < GROUPS * EACH; i++)
		((volatile uint32_t *)(r->c.arena + r->pin))[i] = i;
	ASSERT_EQ(ring_submit(r->c.ring, SV_OP_cuMemcpyAsync, &(struct sv_copy){ r->c.ctx, r->stream, r->dev,
			address(&r->c, r->pin), 4 * GROUPS * EACH, 0, 0 }, sizeof(struct sv_copy), NULL, 0), 0);
	ASSERT_EQ(gate(to, to->stream, &word), 0);
	for (int g = 0; g < GROUPS; g++) {
		for (int i = 0; i < EACH; i++) {
			call[i] = pair(to, STEP_RECV, 0, 1);
			call[i].recv = to->dev + 4ull * (g * EACH + i);
		}
		ASSERT_EQ(send_calls(to, self->comm, to->stream, call, EACH), 0);
	}
	for (int g = 0; g < GROUPS; g++) {
		for (int i = 0; i < EACH; i++) {
			call[i] = pair(r, STEP_SEND, 1, 1);
			call[i].send = r->dev + 4ull * (g * EACH + i);
		}
		ASSERT_EQ(send_calls(r, self->comm, r->stream, call, EACH), 0);
	}
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
	usleep(100000);
	*word = 1;
	ASSERT_EQ(down(to, to->stream, 0, to->dev, 4 * GROUPS * EACH), 0);
	ASSERT_EQ(sync_stream(to, to->stream), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	for (int i = 0; i < GROUPS * EACH; i++)
		ASSERT_EQ(*word_at(to, 4 * i), (uint32_t)i);
}

/* A blocking stream that has nothing to do is not idle while the legacy stream is busy. */
TEST_F(colls, a_collective_in_a_blocking_stream_waits_for_the_legacy_one)
{
	struct rank *r = &self->r[0];
	uint64_t blocking = new_handle(&r->c, SV_T_CUstream);
	volatile uint64_t *word;

	ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
				.ctx = r->c.ctx, .phStream = blocking }), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(fill(&self->r[i], self->r[i].stream, self->r[i].dev, bits(1), 16), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	ASSERT_EQ(gate(r, SV_STREAM_LEGACY, &word), 0);
	ASSERT_EQ(fill(r, SV_STREAM_LEGACY, r->dev, bits(10), 16), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, i ? self->r[i].stream : blocking, all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
	usleep(50000);
	*word = 1;
	r = &self->r[2];
	ASSERT_EQ(down(r, r->stream, 0, r->dev + 4 * MiB, 64), 0);
	ASSERT_EQ(sync_stream(r, r->stream), 0);
	EXPECT_EQ(*word_at(r, 60), bits(13));
	ASSERT_EQ(ctx_sync(&self->r[0].c), 0);
}

/* ------------------------------------------------------------------------------ what stands */

/*
 * Two communicators of one rank fail at once, in one stream and in two. Each goes on when it is ended, and so does what
 * covers that one alone. A context covers its default stream, and one that has been destroyed.
 */
TEST_F(colls, two_failures_end_one_by_one)
{
	struct rank *r = &self->r[0], *late = &self->r[1], *legacy = &self->r[2], *gone = &self->r[3];
	uint64_t on[RANKS], of_gone = new_handle(&gone->c, SV_T_CUstream), blocking = new_handle(&legacy->c, SV_T_CUstream);
	struct waiter waits[6];
	volatile uint64_t *word;

	ASSERT_EQ(SEND(&gone->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
				.ctx = gone->c.ctx, .phStream = of_gone }), 0);
	ASSERT_EQ(SEND(&legacy->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
				.ctx = legacy->c.ctx, .phStream = blocking }), 0);
	ASSERT_EQ(new_comm(self->r, self->n, 78, "the second one"), 0);
	for (int i = 0; i < self->n; i++)
		on[i] = i == 2 ? SV_STREAM_LEGACY : i == 3 ? of_gone : self->r[i].stream;
	ASSERT_EQ(gate(late, late->stream, &word), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, on[i], all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, r->event, r->stream }), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], 78, on[i], all_reduce(&self->r[i], 16)), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, i ? on[i] : r->other, all_reduce(&self->r[i], 16)), 0);
	/* What blocking streams and the legacy one take from each other; a stream of neither kind is not the legacy one's. */
	ASSERT_EQ(fill(legacy, blocking, legacy->dev + MiB, 1, 16), 0);
	ASSERT_EQ(fill(gone, SV_STREAM_LEGACY, gone->dev + MiB, 1, 16), 0);
	ASSERT_EQ(fill(r, SV_STREAM_LEGACY, r->dev + MiB, 1, 16), 0);
	ASSERT_EQ(SEND(&gone->c, SV_OP_cuStreamDestroy_v2, (struct sv_stream_end){ of_gone }), 0);
	ASSERT_EQ(waiter_start(&waits[0], r, SV_OP_cuCtxSynchronize, 0), 0);
	ASSERT_EQ(waiter_start(&waits[1], legacy, SV_OP_cuCtxSynchronize, 0), 0);
	ASSERT_EQ(waiter_start(&waits[2], gone, SV_OP_cuCtxSynchronize, 0), 0);
	ASSERT_EQ(waiter_start(&waits[3], legacy, SV_OP_cuStreamSynchronize, blocking), 0);
	ASSERT_EQ(waiter_start(&waits[4], gone, SV_OP_cuStreamSynchronize, SV_STREAM_LEGACY), 0);
	ASSERT_EQ(waiter_start(&waits[5], r, SV_OP_cuStreamSynchronize, SV_STREAM_LEGACY), 0);
	usleep(50000);
	kill(late->c.proxy, SIGKILL);
	waitpid(late->c.proxy, NULL, 0);
	board_die(self->board, 1);
	for (int i = 0; i < 6; i++) {
		EXPECT_EQ(waiter_end(&waits[i]), i < 5 ? CUDA_ERROR_EXTERNAL_DEVICE : 0)
			TH_LOG("wait %d", i);
	}
	EXPECT_EQ(sync_stream(r, SV_STREAM_LEGACY), 0);
	EXPECT_EQ(sync_stream(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(sync_stream(r, r->other), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(query(r, SV_OP_cuEventSynchronize, r->event), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(ctx_sync(&legacy->c), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(ctx_sync(&gone->c), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(end_comm(r, self->comm, 0), 0);
	EXPECT_EQ(query(r, SV_OP_cuEventSynchronize, r->event), 0);
	EXPECT_EQ(sync_stream(r, r->other), 0);
	EXPECT_EQ(sync_stream(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(end_comm(r, 78, SV_COMM_ABORT), 0);
	EXPECT_EQ(sync_stream(r, r->stream), 0);
	for (int i = 2; i < self->n; i++) {
		EXPECT_EQ(end_comm(&self->r[i], 78, 0), 0);
		EXPECT_EQ(ctx_sync(&self->r[i].c), CUDA_ERROR_EXTERNAL_DEVICE);
		EXPECT_EQ(end_comm(&self->r[i], self->comm, 0), 0);
		EXPECT_EQ(ctx_sync(&self->r[i].c), 0);
	}
	ring_close(late->c.ring);
	late->c.proxy = 0;
}

/* What a device has at an address, by a stream that nothing waits for. */
static uint32_t seen_at(struct rank *r, uint64_t at)
{
	return down(r, r->other, 0, at, 4) || sync_stream(r, r->other) ? UINT32_MAX : *word_at(r, 0);
}

/* Has the word of SV_OP_X_SEEN come to this value, in ten seconds? */
static bool is_seen(volatile uint64_t *word, uint64_t value)
{
	for (int i = 0; i < 10000 && *word != value; i++)
		usleep(1000);
	return *word == value;
}

/*
 * A stream stands in which nothing is left: of an operation that never began, of one that is refused when it comes to its
 * turn. What follows it in legacy order waits, and so does the end of an object; then all of it goes on, and what was parked
 * in the stream first.
 */
TEST_F(colls, a_stream_that_stands_keeps_what_follows_it_waiting)
{
	struct rank *r = &self->r[0];
	struct sv_seen seen = { r->pin + 3 * MiB, 0 };
	volatile uint64_t *word = (volatile uint64_t *)(r->c.arena + seen.word);
	enum { ALONE, REFUSED, FOLLOWED, KINDS };

	*word = 0;
	for (int how = 0; how < KINDS; how++) {
		struct sv_coll_call beyond = all_reduce(r, 2 * MiB);
		uint64_t st = new_stream(r, 0), comm = 80 + how;
		char id[16];

		snprintf(id, sizeof(id), "kind %d", how);
		ASSERT_EQ(new_comm(self->r, self->n, comm, id), 0);
		ASSERT_EQ(fill(r, r->other, r->dev + MiB, 1, 16), 0);
		ASSERT_EQ(COLL(r, comm, st, all_reduce(r, 16)), 0);
		if (how == REFUSED)
			ASSERT_EQ(send_calls(r, comm, st, &beyond, 1), 0);
		if (how == FOLLOWED)
			ASSERT_EQ(fill(r, st, r->dev + MiB, 3, 16), 0);
		ASSERT_EQ(query(r, SV_OP_cuStreamQuery, st), CUDA_ERROR_NOT_READY);
		for (int i = 1; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], comm, self->r[i].stream,
				       all_reduce(&self->r[i], how == REFUSED ? 16 : 17)), 0);
		/* A wait in the stream would be parked in it. */
		ASSERT_EQ(code_of(r), STEP_INVALID_USAGE);
		ASSERT_EQ(fill(r, SV_STREAM_LEGACY, r->dev + MiB, 2, 8), 0);
		seen.value = how + 1;
		ASSERT_EQ(SEND(&r->c, SV_OP_X_SEEN, seen), 0);
		usleep(20000);
		EXPECT_EQ(seen_at(r, r->dev + MiB), 1);
		EXPECT_EQ(*word, how);
		ASSERT_EQ(end_comm(r, comm, SV_COMM_ABORT), 0);
		ASSERT_TRUE(is_seen(word, how + 1));
		EXPECT_EQ(ctx_sync(&r->c), 0);
		EXPECT_EQ(seen_at(r, r->dev + MiB), 2);
		EXPECT_EQ(seen_at(r, r->dev + MiB + 60), how == FOLLOWED ? 3 : 1);
		for (int i = 1; i < self->n; i++)
			ASSERT_EQ(end_comm(&self->r[i], comm, SV_COMM_ABORT), 0);
	}
}

/* A stream stands a second time, with a record in it that waits for something else: what follows waits for that record. */
TEST_F(colls, a_stream_may_stand_twice)
{
	struct rank *r = &self->r[0];
	static const char *const id[] = { "fails", "fails, too", "works" };
	uint64_t st = new_stream(r, 0);
	struct sv_comm_word *word[3];

	for (int k = 0; k < 3; k++) {
		ASSERT_EQ(new_comm(self->r, self->n, 80 + k, id[k]), 0);
		word[k] = r->word;
	}
	/* Held until the end, so that something is parked all the time. */
	ASSERT_EQ(fill(r, r->other, r->dev + MiB, 1, 16), 0);
	ASSERT_EQ(COLL(r, 82, r->stream, all_reduce(r, 16)), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, r->event, r->stream }), 0);
	for (int k = 0; k < 2; k++) {
		ASSERT_EQ(COLL(r, 80 + k, st, all_reduce(r, 16)), 0);
		if (k)
			ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
					.ctx = r->c.ctx, .hStream = st, .hEvent = r->event }), 0);
		ASSERT_EQ(query(r, SV_OP_cuStreamQuery, st), CUDA_ERROR_NOT_READY);
		for (int i = 1; i < self->n; i++)
			ASSERT_EQ(COLL(&self->r[i], 80 + k, self->r[i].stream, all_reduce(&self->r[i], 17)), 0);
		r->word = word[k];
		ASSERT_EQ(code_of(r), STEP_INVALID_USAGE);
		if (k)
			ASSERT_EQ(fill(r, SV_STREAM_LEGACY, r->dev + MiB, 2, 16), 0);
		for (int i = 0; i < self->n; i++)
			ASSERT_EQ(end_comm(&self->r[i], 80 + k, SV_COMM_ABORT), 0);
	}
	usleep(20000);
	EXPECT_EQ(seen_at(r, r->dev + MiB), 1);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], 82, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	EXPECT_EQ(ctx_sync(&r->c), 0);
	EXPECT_EQ(seen_at(r, r->dev + MiB), 2);
}

/*
 * An operation has begun in the default stream, alone in its context, and fails in the driver: a wait for the context that
 * has begun before ends. Ends of objects wait from then on, and what waits for the stream is parked, not put in the driver.
 */
TEST_F(colls, a_default_stream_that_stands_is_waited_for)
{
	struct rank *r = &self->r[0], *late = &self->r[1];
	struct sv_seen seen = { r->pin + 3 * MiB, 1 };
	volatile uint64_t *end = (volatile uint64_t *)(r->c.arena + seen.word), *word;
	struct waiter all;

	*end = 0;
	ASSERT_EQ(gate(late, late->stream, &word), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, i ? self->r[i].stream : SV_STREAM_LEGACY,
			       all_reduce(&self->r[i], 16)), 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){
			r->c.ctx, r->event, SV_STREAM_LEGACY }), 0);
	ASSERT_EQ(waiter_start(&all, r, SV_OP_cuCtxSynchronize, 0), 0);
	usleep(50000);
	kill(late->c.proxy, SIGKILL);
	waitpid(late->c.proxy, NULL, 0);
	board_die(self->board, 1);
	for (int i = 0; i < 10000 && !all.done; i++)
		usleep(1000);
	EXPECT_TRUE(all.done);
	ASSERT_EQ(SEND(&r->c, SV_OP_X_SEEN, seen), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
	EXPECT_EQ(*end, 0);
	ASSERT_EQ(SEND(&r->c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
			.ctx = r->c.ctx, .hStream = r->other, .hEvent = r->event }), 0);
	for (uint32_t i = 0; i < (64 << 10) + 1; i++)
		ASSERT_EQ(fill(r, r->other, r->dev + MiB, i, 1), 0);
	query(r, SV_OP_cuStreamQuery, r->stream);
	EXPECT_TRUE(r->c.shared->late & SV_LATE_FULL);
	EXPECT_EQ(end_comm(r, self->comm, 0), 0);
	EXPECT_EQ(waiter_end(&all), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_TRUE(is_seen(end, 1));
	EXPECT_EQ(ctx_sync(&r->c), 0);
	EXPECT_EQ(seen_at(r, r->dev + MiB), 64 << 10);
	EXPECT_FALSE(r->c.shared->late & SV_LATE_FULL);
	ring_close(late->c.ring);
	late->c.proxy = 0;
}

/* ------------------------------------------------------------------------------ creations, and who dies */

static int begin_comm(struct rank *r, struct ring_ticket *t, struct sv_comm_new a, struct sv_comm_word **word)
{
	a.ctx = r->c.ctx;
	a.word = new_word(r, word);
	return ring_request(r->c.ring, t, SV_OP_X_COMM_NEW, &a, sizeof(a), NULL, 0);
}

static int created(struct rank *r, struct ring_ticket *t)
{
	struct sv_comm_result res = { .code = -1 };
	int32_t status = -1;

	return ring_await(r->c.ring, t, &status, &res, sizeof(res), NULL, 20000000000) ?: status ?: (int)res.code;
}

/* One that nobody else has joined is aborted: its call is answered, and who comes later hears of it. */
TEST_F(colls, a_creation_that_is_aborted_ends_for_all)
{
	struct sv_comm_new a = { .comm = 90, .ranks = 2, .id = "aborted" };
	struct rank *r = &self->r[0];
	struct sv_comm_word *word;
	struct ring_ticket t;

	ASSERT_EQ(begin_comm(r, &t, a, &word), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
	ASSERT_EQ(word->state, SV_COMM_CREATING);
	EXPECT_EQ(end_comm(r, 90, SV_COMM_ABORT), 0);
	EXPECT_EQ(created(r, &t), STEP_REMOTE);
	EXPECT_EQ(word->state, SV_COMM_ENDED);
	a.rank = 1;
	ASSERT_EQ(begin_comm(&self->r[1], &t, a, &word), 0);
	EXPECT_EQ(created(&self->r[1], &t), STEP_REMOTE);
	EXPECT_EQ(end_comm(&self->r[1], 90, 0), 0);
	/* its number and its id may be used again */
	EXPECT_EQ(new_comm(self->r, 2, 90, "aborted"), 0);
	/* It may have as many ranks as there are seats. */
	a = (struct sv_comm_new){ .comm = 91, .ranks = BOARD_SEATS, .id = "large" };
	ASSERT_EQ(begin_comm(r, &t, a, &word), 0);
	EXPECT_EQ(end_comm(r, 91, SV_COMM_ABORT), 0);
	EXPECT_EQ(created(r, &t), STEP_REMOTE);
}

/* A failed communicator that has not been ended is not taken for a later one at its place on the board. */
TEST_F(colls, a_creation_that_has_failed_answers_for_no_other)
{
	struct sv_comm_new a = { .comm = 90, .ranks = 2, .id = "of two or three" };
	struct sv_comm_word *word[2];
	struct ring_ticket t[2];

	for (int i = 0; i < 2; i++) {
		ASSERT_EQ(begin_comm(&self->r[i], &t[i], a, &word[i]), 0);
		a.ranks++;
		a.rank++;
	}
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(created(&self->r[i], &t[i]), STEP_INVALID_USAGE);
	for (int i = 0; i < 2; i++) {
		ASSERT_EQ(new_comm(&self->r[i], 1, 91, i ? "the second alone" : "the first alone"), 0);
		EXPECT_EQ(self->r[i].word->state, SV_COMM_STANDS);
		EXPECT_EQ(word[i]->state, SV_COMM_FAILED);
		EXPECT_EQ(end_comm(&self->r[i], 90, 0), 0);
		ASSERT_EQ(COLL(&self->r[i], 91, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
		EXPECT_EQ(sync_stream(&self->r[i], self->r[i].stream), 0);
	}
}

/* Threads of a program may abort a communicator at once: each has its answer, when nothing touches its memory any more. */
TEST_F(colls, two_aborts_are_answered)
{
	struct rank *r = &self->r[0], *late = &self->r[1];
	struct sv_comm_end end = { .comm = self->comm, .flags = SV_COMM_ABORT };
	volatile uint64_t *word;
	struct ring_ticket t[2];

	ASSERT_EQ(gate(late, late->stream, &word), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], MiB)), 0);
	for (int i = 0; i < 10000 && !shown(r).coll_runs.since; i++)
		usleep(1000);
	/* Both records are there when the first one is looked at. */
	kill(r->c.proxy, SIGSTOP);
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(ring_request(r->c.ring, &t[i], SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0), 0);
	kill(r->c.proxy, SIGCONT);
	for (int i = 0; i < 2; i++) {
		int32_t status = -1;

		EXPECT_EQ(ring_await(r->c.ring, &t[i], &status, NULL, 0, NULL, 10000000000), 0)
			TH_LOG("abort %d", i);
		EXPECT_EQ(status, 0);
	}
	*word = 1;
	EXPECT_EQ(ctx_sync(&r->c), 0);
}

/* A parent that never stood says nothing of its ranks, though others at its place on the board have died. */
TEST_F(colls, a_parent_that_has_failed_is_none)
{
	struct sv_comm_new a = { .comm = 90, .ranks = 2, .id = "of two or three" };
	struct rank *r = &self->r[2];
	struct sv_comm_word *word;
	struct ring_ticket t[2];

	for (int i = 0; i < 2; i++) {
		ASSERT_EQ(begin_comm(&r[i], &t[i], a, &word), 0);
		ASSERT_EQ(query(&r[i], SV_OP_cuStreamQuery, r[i].other), 0);
		a.ranks++;
		a.rank++;
	}
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(created(&r[i], &t[i]), STEP_INVALID_USAGE);
	/* The board still waits for the third. */
	ASSERT_EQ(new_comm(r, 2, 91, "at its place"), 0);
	kill(r[1].c.proxy, SIGKILL);
	waitpid(r[1].c.proxy, NULL, 0);
	board_die(self->board, 3);
	for (int i = 0; i < 10000 && !__atomic_load_n(&r->word->code, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	EXPECT_EQ(r->word->code, STEP_REMOTE);
	a = (struct sv_comm_new){ .comm = 92, .ranks = 1, .parent = 90, .id = "its child" };
	ASSERT_EQ(begin_comm(r, &t[0], a, &word), 0);
	EXPECT_EQ(created(r, &t[0]), 0);
	ring_close(r[1].c.ring);
	r[1].c.proxy = 0;
}

/* A call behind one that was refused does not take its place in the order of calls. */
TEST_F(colls, what_follows_a_refused_call_is_not_posted)
{
	struct rank *r = &self->r[0];
	struct sv_coll_call beyond = all_reduce(r, 2 * MiB);

	ASSERT_EQ(send_calls(r, self->comm, r->stream, &beyond, 1), 0);
	ASSERT_EQ(COLL(r, self->comm, r->other, all_reduce(r, 16)), 0);
	for (int i = 1; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	EXPECT_EQ(sync_stream(r, r->other), CUDA_ERROR_EXTERNAL_DEVICE);
	usleep(20000);
	for (int i = 1; i < self->n; i++)
		EXPECT_EQ(query(&self->r[i], SV_OP_cuStreamQuery, self->r[i].stream), CUDA_ERROR_NOT_READY);
	EXPECT_EQ(end_comm(r, self->comm, SV_COMM_ABORT), 0);
	EXPECT_EQ(ctx_sync(&r->c), 0);
	for (int i = 1; i < self->n; i++) {
		EXPECT_EQ(code_of(&self->r[i]), STEP_REMOTE);
		EXPECT_EQ(sync_stream(&self->r[i], self->r[i].stream), CUDA_ERROR_EXTERNAL_DEVICE);
	}
}

/* A call in a stream that there is not fails its communicator: the others would wait for it. */
TEST_F(colls, a_call_in_no_stream_is_refused)
{
	struct rank *r = &self->r[0];

	ASSERT_EQ(COLL(&self->r[1], self->comm, self->r[1].stream, all_reduce(&self->r[1], 16)), 0);
	ASSERT_EQ(COLL(r, self->comm, new_handle(&r->c, SV_T_CUstream), all_reduce(r, 16)), 0);
	ASSERT_EQ(code_of(r), STEP_INVALID_USAGE);
	EXPECT_EQ(late_count(&r->c), 1);
	ASSERT_EQ(COLL(r, self->comm, r->stream, all_reduce(r, 16)), 0);
	EXPECT_EQ(sync_stream(r, r->stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(end_comm(r, self->comm, SV_COMM_ABORT), 0);
	EXPECT_EQ(code_of(&self->r[1]), STEP_REMOTE);
}

/* Calls of a communicator that are parked when it is aborted are nothing, though something of it is still under way. */
TEST_F(colls, calls_that_are_parked_behind_an_abort_are_nothing)
{
	struct rank *r = &self->r[0], *late = &self->r[1];
	volatile uint64_t *word;

	ASSERT_EQ(gate(late, late->stream, &word), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], MiB)), 0);
	for (int i = 0; i < 10000 && !shown(r).coll_runs.since; i++)
		usleep(1000);
	ASSERT_EQ(COLL(r, self->comm, r->other, all_reduce(r, 16)), 0);
	ASSERT_EQ(COLL(r, self->comm, r->other, all_reduce(r, 2 * MiB)), 0);	/* beyond its memory */
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), CUDA_ERROR_NOT_READY);
	EXPECT_EQ(end_comm(r, self->comm, SV_COMM_ABORT), 0);
	EXPECT_EQ(sync_stream(r, r->other), 0);
	EXPECT_EQ(late_count(&r->c), 0);
	*word = 1;
	EXPECT_EQ(ctx_sync(&r->c), 0);
}

/* What begins when its own rank posts the other end holds its stream no longer: what is parked there runs. */
TEST_F(colls, an_operation_with_itself_lets_its_stream_go)
{
	struct rank *r = &self->r[0];
	struct sv_sync_on on = { r->c.ctx, r->stream };
	struct ring_ticket t;
	int32_t status = -1;

	ASSERT_EQ(fill(r, r->other, r->dev, 4711, 16), 0);
	ASSERT_EQ(sync_stream(r, r->other), 0);
	ASSERT_EQ(COLL(r, self->comm, r->stream, pair(r, STEP_RECV, 0, 16)), 0);
	ASSERT_EQ(down(r, r->stream, 0, r->dev + 4 * MiB, 64), 0);
	ASSERT_EQ(ring_request(r->c.ring, &t, SV_OP_cuStreamSynchronize, &on, sizeof(on), NULL, 0), 0);
	ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->stream), CUDA_ERROR_NOT_READY);
	ASSERT_EQ(COLL(r, self->comm, r->other, pair(r, STEP_SEND, 0, 16)), 0);
	ASSERT_EQ(ring_await(r->c.ring, &t, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(*word_at(r, 60), 4711);
}

/*
 * A rank's device breaks before its stream has come to what the rank has posted. Nothing is sent that was never written: a
 * collective fails for all, and so does who receives later what would have been copied there.
 */
TEST_F(colls, a_device_that_breaks_sends_nothing)
{
	struct rank *r = &self->r[0], *to = &self->r[1];
	struct sv_comm_word *all[2] = { r->word, to->word };
	volatile uint64_t *word;
	uint64_t k, bad = 0x10;
	int rc;

	k = get_kernel(&r->c, load_text(&r->c, kernels, &rc), "store", NULL);
	ASSERT_EQ(rc, 0);
	ASSERT_EQ(new_comm(self->r, 2, 78, "of two"), 0);
	ASSERT_EQ(gate(r, r->stream, &word), 0);
	ASSERT_EQ(launch(&r->c, r->stream, k, 1, 1, &bad, 8), 0);
	ASSERT_EQ(COLL(r, 78, r->stream, pair(r, STEP_SEND, 1, 16)), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], self->comm, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	for (int i = 0; i < 10000 && shown(r).coll_waits.since; i++)
		usleep(1000);
	*word = 1;
	for (int i = 1; i < self->n; i++)
		EXPECT_EQ(sync_stream(&self->r[i], self->r[i].stream), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(all[1]->code, STEP_SYSTEM);
	EXPECT_NE(strstr(all[1]->text, "700"), NULL)
		TH_LOG("%s", all[1]->text);
	for (int i = 0; i < 2000 && !__atomic_load_n(&all[0]->code, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	EXPECT_EQ(all[0]->code, STEP_SYSTEM);
	EXPECT_NE(strstr(all[0]->text, "700"), NULL)
		TH_LOG("%s", all[0]->text);
	ASSERT_EQ(COLL(to, 78, to->other, pair(to, STEP_RECV, 0, 16)), 0);
	EXPECT_EQ(sync_stream(to, to->other), CUDA_ERROR_EXTERNAL_DEVICE);
	EXPECT_EQ(to->word->code, STEP_SYSTEM);
	EXPECT_NE(strstr(to->word->text, "700"), NULL)
		TH_LOG("%s", to->word->text);
}

/* A death is heard of by communicators that do nothing; by those of which the dead one was no rank it is not. */
TEST_F(colls, idle_communicators_hear_of_a_death)
{
	struct sv_comm_new a = { .comm = 79, .ranks = 3, .id = "a part of the first", .parent = self->comm };
	struct rank *r = &self->r[0];
	struct sv_comm_word *all = r->word, *word;
	struct ring_ticket t;

	ASSERT_EQ(new_comm(self->r, 2, 78, "of two"), 0);
	kill(self->r[3].c.proxy, SIGKILL);
	waitpid(self->r[3].c.proxy, NULL, 0);
	board_die(self->board, 3);
	for (int i = 0; i < 2000 && !__atomic_load_n(&all->code, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	EXPECT_EQ(all->code, STEP_REMOTE);
	EXPECT_NE(strstr(all->text, "rank 3 has died"), NULL)
		TH_LOG("%s", all->text);
	/* Whose parent it is knows that not all will come. */
	ASSERT_EQ(begin_comm(r, &t, a, &word), 0);
	EXPECT_EQ(created(r, &t), STEP_REMOTE);
	for (int i = 0; i < 2; i++) {
		ASSERT_EQ(fill(&self->r[i], self->r[i].stream, self->r[i].dev, bits(1), 16), 0);
		ASSERT_EQ(COLL(&self->r[i], 78, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	}
	ASSERT_EQ(down(r, r->stream, 0, r->dev + 4 * MiB, 64), 0);
	EXPECT_EQ(sync_stream(r, r->stream), 0);
	EXPECT_EQ(*word_at(r, 60), bits(2));
	EXPECT_EQ(r->word->code, 0);
	EXPECT_EQ(sync_stream(&self->r[1], self->r[1].stream), 0);
	ring_close(self->r[3].c.ring);
	self->r[3].c.proxy = 0;
}

/* ------------------------------------------------------------------------------ hostile records */

/* What a call reads and writes on rank 3, in buffers of `count` elements: as root, or not. */
static const uint8_t buffers_of[STEP_KINDS][2][2] = {
	[STEP_ALLREDUCE] = { { 1, 1 }, { 1, 1 } },	[STEP_REDUCE] = { { 1, 0 }, { 1, 1 } },
	[STEP_BROADCAST] = { { 0, 1 }, { 1, 1 } },	[STEP_ALLGATHER] = { { 1, 4 }, { 1, 4 } },
	[STEP_REDUCESCATTER] = { { 4, 1 }, { 4, 1 } },	[STEP_ALLTOALL] = { { 4, 4 }, { 4, 4 } },
	[STEP_GATHER] = { { 1, 0 }, { 1, 4 } },		[STEP_SCATTER] = { { 0, 1 }, { 4, 1 } },
	[STEP_SEND] = { { 1, 0 }, { 1, 0 } },		[STEP_RECV] = { { 0, 1 }, { 0, 1 } },
};

/* Sends a call that is refused, in a stream that then stands: the number of errors of the call's own. */
static int errors_of(struct rank *r, uint64_t comm, const struct sv_coll_call *call, uint32_t n)
{
	struct sv_cuStreamCreate a = { .ctx = r->c.ctx, .phStream = new_handle(&r->c, SV_T_CUstream),
				       .Flags = CU_STREAM_NON_BLOCKING };
	uint32_t before = late_count(&r->c);
	int rc = SEND(&r->c, SV_OP_cuStreamCreate, a) ?: send_calls(r, comm, a.phStream, call, n) ?:
		 query(r, SV_OP_cuStreamQuery, r->other);

	return rc ?: (int)(late_count(&r->c) - before);
}

/* Each buffer of each kind of call lies in the client's memory, to its last byte. */
/* A client that goes without a word, and one that says it and is wrong then: the others hear of their deaths. */
TEST_F(colls, who_does_not_leave_has_died)
{
	struct rank *r = &self->r[0];
	struct sv_comm_word *all = r->word;

	ASSERT_EQ(new_comm(self->r, 3, 78, "of three"), 0);
	EXPECT_EQ(client_end(&self->r[3].c), 0);
	self->r[3].c.proxy = 0;
	for (int i = 0; i < 20000 && !__atomic_load_n(&all->code, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	EXPECT_EQ(all->code, STEP_REMOTE);
	EXPECT_EQ(r->word->code, 0);
	ASSERT_EQ(ring_submit(self->r[2].c.ring, SV_OP_X_COMM_LEAVE, NULL, 0, NULL, 0), 0);
	ASSERT_EQ(ring_submit(self->r[2].c.ring, SV_OP_X_COMM_LEAVE, "nonsense", 8, NULL, 0), 0);
	EXPECT_EQ(client_wait(&self->r[2].c), 1);
	ring_close(self->r[2].c.ring);
	EXPECT_EQ(code_of(r), STEP_REMOTE);
}

TEST_F(colls, buffers_of_all_kinds_end_in_the_clients_memory)
{
	enum { COUNT = 256 };
	struct rank *r = &self->r[3];
	const uint64_t end = r->dev + 8 * MiB;
	struct sv_coll_call group[2] = { all_reduce(r, 16), all_reduce(r, 16) }, c;

	/* The second one of a group. */
	group[1].recv = end;
	EXPECT_EQ(errors_of(r, self->comm, group, 2), 1);
	EXPECT_EQ(r->word->code, STEP_INVALID_USAGE);
	for (int kind = 0; kind < STEP_KINDS; kind++)
		for (int root = 0; root < 2; root++)
			for (int side = 0; side < 2; side++) {
				const uint8_t *n = buffers_of[kind][root];

				c = (struct sv_coll_call){ .kind = kind, .type = TREE_F32, .count = COUNT,
							   .peer = root ? 3 : 0, .send = end - 4 * COUNT * n[0],
							   .recv = end - 4 * COUNT * n[1] };
				if (!n[side])
					*(side ? &c.recv : &c.send) = 16;
				EXPECT_EQ(errors_of(r, self->comm, &c, 1), 0)
					TH_LOG("kind %d, root %d, side %d", kind, root, side);
				*(side ? &c.recv : &c.send) += 4;
				EXPECT_EQ(errors_of(r, self->comm, &c, 1), !!n[side])
					TH_LOG("kind %d, root %d, side %d, beyond", kind, root, side);
			}
	/* Products that wrap: the count's with the type's size, and with the number of ranks. */
	c = all_reduce(r, 1ull << 62);
	EXPECT_EQ(errors_of(r, self->comm, &c, 1), 1);
	c = (struct sv_coll_call){ .kind = STEP_ALLTOALL, .type = TREE_UINT8, .count = 1ull << 62, .send = r->dev,
				   .recv = r->dev };
	EXPECT_EQ(errors_of(r, self->comm, &c, 1), 1);
	/* A factor that lies in memory. */
	c = all_reduce(r, 16);
	c.op = TREE_PREMULSUM;
	c.scale = SV_COLL_FACTOR_AT;
	c.factor = end - 4;
	EXPECT_EQ(errors_of(r, self->comm, &c, 1), 0);
	c.factor = end - 3;
	EXPECT_EQ(errors_of(r, self->comm, &c, 1), 1);
	c.factor = 4096;
	EXPECT_EQ(errors_of(r, self->comm, &c, 1), 1);
	c.scale = SV_COLL_FACTOR;
	EXPECT_EQ(errors_of(r, self->comm, &c, 1), 0);
}

/* Each of these ends its session, and nothing else. */
TEST_F(colls, nonsense_about_communicators_ends_its_session)
{
	enum { NUMBER, TAKEN, ODD, FREE, RANK, NONE, FLAGS, PAD, TWICE, FORMING, CALLS, LONG, PADDED, KIND, TYPE, OP, PEER,
	       SCALE, FACTOR, TELL, SEEN, SEEN_ODD, ROOM, ROOM_PAD, CROSS, CROSS_ODD, ALL };
	struct rank *r = &self->r[3];

	for (int lie = 0; lie < ALL; lie++) {
		struct sv_comm_new a = { .ctx = r->c.ctx, .comm = 90, .ranks = 2, .rank = 0, .id = "a lie" };
		struct sv_coll coll = { .ctx = r->c.ctx, .stream = r->stream, .comm = 91, .calls = 1 };
		struct sv_comm_end end = { .comm = 90 };
		struct sv_coll_call call = all_reduce(r, 16);
		struct sv_comm_word *word;
		struct ring_ticket t, t2;

		snprintf((char *)a.id, sizeof(a.id), "lie %d", lie);
		a.word = new_word(r, &word);
		if (lie == NUMBER)
			a.comm = 0;
		if (lie == ODD)
			a.word += 4;
		if (lie == FREE)
			a.word = self->r[0].c.at + 64 * MiB;
		if (lie == RANK)
			a.rank = 2;
		if (lie == NONE)
			a.ranks = 0;
		if (lie == TAKEN || (lie >= FLAGS && lie < SEEN)) {
			struct sv_comm_new alone = a;

			alone.comm = 90 + (lie >= CALLS);
			alone.ranks = lie == FORMING ? 2 : 1;
			ASSERT_EQ(begin_comm(r, &t, alone, &word), 0);
			if (lie != FORMING)
				ASSERT_EQ(created(r, &t), 0);
		}
		end.flags = lie == FLAGS ? 2 : 0;
		end.pad = lie == PAD;
		coll.calls = lie == CALLS ? 0 : lie == LONG ? 2 : 1;
		coll.pad = lie == PADDED;
		call.kind = lie == KIND ? STEP_KINDS : call.kind;
		call.type = lie == TYPE ? TREE_TYPES : call.type;
		call.op = lie == OP ? TREE_OPS : lie == FACTOR ? TREE_PREMULSUM : call.op;
		call.peer = lie == PEER;
		call.scale = lie == SCALE ? SV_COLL_FACTOR_AT + 1 : 0;
		if (lie == CROSS || lie == CROSS_ODD) {
			SEND(&r->c, SV_OP_X_CROSS_WAIT, (struct sv_cross){
				r->c.ctx, r->stream, lie == CROSS ? a.word : a.word + 4, lie != CROSS });
		} else if (lie == TELL) {
			/* A store nowhere, in a stream that stands: nothing is written before it is refused. */
			call.recv = r->dev + 8 * MiB;
			ASSERT_EQ(send_calls(r, 91, r->stream, &call, 1), 0);
			SEND(&r->c, SV_OP_X_CROSS_TELL, (struct sv_cross){ r->c.ctx, r->stream, 1ull << 60, 1 });
			ASSERT_EQ(query(r, SV_OP_cuStreamQuery, r->other), 0);
			end.comm = 91;
			ring_request(r->c.ring, &t, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0);
		} else if (lie == SEEN || lie == SEEN_ODD) {
			SEND(&r->c, SV_OP_X_SEEN, (struct sv_seen){ lie == SEEN ? a.word + 64 * MiB : a.word + 4, 1 });
		} else if (lie == ROOM) {
			SEND(&r->c, SV_OP_X_ROOM, (struct sv_room){ .op = SV_OP_cuStreamQuery });
		} else if (lie == ROOM_PAD) {
			struct sv_room room = { .op = SV_OP_cuStreamQuery, .pad = { 0, 0, 1 } };

			ring_request(r->c.ring, &t, SV_OP_X_ROOM, &room, sizeof(room), NULL, 0);
		} else if (lie < FLAGS) {
			ring_request(r->c.ring, &t, SV_OP_X_COMM_NEW, &a, sizeof(a), NULL, 0);
		} else if (lie == TWICE) {
			/* The first one waits for a call whose peer never comes. */
			ASSERT_EQ(new_comm(self->r, self->n, 92, "for all"), 0);
			ASSERT_EQ(COLL(r, 92, r->stream, call), 0);
			end.comm = 92;
			ring_request(r->c.ring, &t, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0);
			ring_request(r->c.ring, &t2, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0);
		} else if (lie < CALLS) {
			ring_request(r->c.ring, &t, SV_OP_X_COMM_END, &end, sizeof(end), NULL, 0);
		} else {
			ring_submit(r->c.ring, SV_OP_X_COLL, &coll, sizeof(coll), &call, lie == CALLS ? 0 : sizeof(call));
		}
		ASSERT_LT(ctx_sync(&r->c), 0)
			TH_LOG("lie %d", lie);
		EXPECT_EQ(client_wait(&r->c), 1)
			TH_LOG("lie %d", lie);
		ring_close(r->c.ring);
		close(r->stat);
		board_die(self->board, 3);
		if (lie == TWICE)
			for (int i = 0; i < 3; i++)
				EXPECT_EQ(end_comm(&self->r[i], 92, SV_COMM_ABORT), 0);
		ASSERT_EQ(start_rank(self->r, self->fd, 3), 0);
	}
	/* The others go on with each other. */
	ASSERT_EQ(new_comm(self->r, self->n, 93, "without lies"), 0);
	for (int i = 0; i < self->n; i++)
		ASSERT_EQ(COLL(&self->r[i], 93, self->r[i].stream, all_reduce(&self->r[i], 16)), 0);
	for (int i = 0; i < self->n; i++)
		EXPECT_EQ(sync_stream(&self->r[i], self->r[i].stream), 0);
}

TEST_HARNESS_MAIN
