// SPDX-License-Identifier: Apache-2.0
/*
 * posts.c - what a proxy tells the transport of its collectives, and when: here the test is the transport
 *
 * The test is rank 1, too, which has a seat on the board and no proxy. The transport does nothing by itself: what has
 * been started runs until the test ends it.
 */
#include "local.h"

#define COMM_PRIVATE
#include "comm_i.h"
#include "park.h"
#include "streams.h"
#include "tree.h"

#define MiB	(1ull << 20)
#define COUNT	16
#define STARTS	8

/* ------------------------------------------------------------------------------ the transport */

static struct {
	struct {
		struct transport_start op;
		struct transport_part part;
		uint32_t factor;	/* what part.factor refers to in the host's memory */
	} start[STARTS];
	unsigned int starts, cancels, withdrawals;
	bool refuses;			/* to start anything */
	bool again;			/* at the next withdrawal the board repeats the cancel */
	uint32_t code;			/* the communicator's failure at the last withdrawal */
} fake;

static int fake_open(struct transport **c, const struct transport_open *o, struct why *why)
{
	(void)o, (void)why;
	*c = (void *)&fake;
	return 0;
}

static int fake_address(struct transport *c, void *to)
{
	(void)c;
	memcpy(to, "here", 4);
	return 4;
}

static int fake_start(struct transport *c, const struct transport_start *op)
{
	const struct transport_part *part = op->part;

	(void)c;
	if (fake.refuses)
		return -ENOMEM;
	CHECK(fake.starts < STARTS);
	fake.start[fake.starts].op = *op;
	fake.start[fake.starts].part = *part;
	if (part->factor && !part->factor_there)
		memcpy(&fake.start[fake.starts].factor, part->factor, sizeof(uint32_t));
	__atomic_store_n(&fake.starts, fake.starts + 1, __ATOMIC_RELEASE);
	return 0;
}

static void fake_cancel(struct transport *c, uint64_t order)
{
	(void)c, (void)order;
	fake.cancels++;
}

static void fake_withdraw(struct transport *c, uint64_t order)
{
	(void)c;
	fake.withdrawals++;
	fake.code = comms.all->word->code;
	if (!fake.again)
		return;
	fake.again = false;
	post_cancel(&(struct step_action){ .order = order });
}

static void *fake_buffer(struct transport *c, size_t size)
{
	(void)c;
	return malloc(size);
}

static void fake_unbuffer(struct transport *c, void *buffer)
{
	(void)c;
	free(buffer);
}

static void fake_close(struct transport *c)
{
	(void)c;
}

static const struct transport_driver driver = {
	.version = TRANSPORT_VERSION, .name = "fake", .open = fake_open, .address = fake_address, .start = fake_start,
	.cancel = fake_cancel, .close = fake_close, .withdraw = fake_withdraw, .buffer = fake_buffer,
	.unbuffer = fake_unbuffer,
};

/* Instead of hal/transport.c's. */
const struct transport_driver *transport_load(struct hal *h, struct why *why)
{
	(void)h, (void)why;
	return &driver;
}

static void ends(unsigned int i, enum step_code code)
{
	fake.start[i].op.done(fake.start[i].op.arg, code);
}

/* ------------------------------------------------------------------------------ the ranks */

static struct local *local;
static struct board *board;
static int board_fd;
static uint64_t pinned, stream, order;	/* order: of the last operation that has started at rank 1 */
static uint32_t member;			/* rank 1's */

static void hear(void *ctx, const struct step_action *a)
{
	(void)ctx;
	if (a->kind == STEP_JOINED)
		member = a->member;
	if (a->kind == STEP_START)
		order = a->order;
}

static void other_says(const struct step_event *e)
{
	CHECK(board_step(board, 1, e, hear, NULL) >= 0);
	CHECK_EQ(board_mail(board, 1, hear, NULL), 0);
}

static void other_posts(uint8_t kind)
{
	const struct step_call call = { .kind = kind, .type = TREE_F32, .op = TREE_SUM, .count = COUNT };

	other_says(&(struct step_event){ .kind = STEP_POST, .member = member, .cookie = 1, .ncalls = 1, .calls = &call });
}

static void other_is_done(enum step_code code)
{
	other_says(&(struct step_event){ .kind = STEP_DONE, .device = board_device(1), .order = order, .code = code });
}

/* A session that is rank 0, and rank 1's seat. */
static void begin(void)
{
	local = local_open();
	pinned = (local->arena + MiB - 1) & -MiB;
	stream = local_handle(local, SV_T_CUstream);
	CHECK_EQ(SEND(local, SV_OP_X_PIN, (struct sv_pin){ pinned, MiB }), 0);
	CHECK_EQ(SEND(local, SV_OP_X_MAP, (struct sv_map){ local->window, 2 * SV_GRANULE }), 0);
	CHECK_EQ(SEND(local, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
			.ctx = local->ctx, .phStream = stream, .Flags = CU_STREAM_NON_BLOCKING }), 0);
	board_fd = board_create();
	CHECK(board_fd >= 0);
	CHECK_EQ(board_open(board_fd, &board), 0);
	board_reserve(board, 0, &(struct board_place){ .rank = 0 });
	CHECK_EQ(board_enter(board, 1, "there", 5), 0);
	comm_board(board_fd, 0);
}

/* Rank 0 begins to create a communicator, whose number is that of its ranks. */
static void forms(uint32_t ranks)
{
	struct sv_comm_new a = { .ctx = local->ctx, .comm = ranks, .ranks = ranks, .rank = 0,
				 .word = pinned + ranks * sizeof(struct sv_comm_word), .id = { ranks } };

	CHECK_EQ(SEND(local, SV_OP_X_COMM_NEW, a), 0);
}

static void joins(void)
{
	other_says(&(struct step_event){ .kind = STEP_JOIN, .proxy = 1, .comm = comms.all->key, .ranks = 2, .rank = 1 });
	comm_run(&local->s);
}

static void communicate(uint32_t ranks)
{
	begin();
	forms(ranks);
	if (ranks > 1)
		joins();
	CHECK_EQ(comms.all->word->state, SV_COMM_STANDS);
}

static void posts(const struct sv_coll_call *call)
{
	struct sv_coll a = { .ctx = local->ctx, .stream = stream, .comm = comms.all->number, .calls = 1 };

	CHECK_EQ(local_send(local, SV_OP_X_COLL, &a, sizeof(a), call, sizeof(*call), NULL), 0);
}

static struct sv_coll_call all_reduce(void)
{
	return (struct sv_coll_call){ .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = COUNT,
				      .send = local->window, .recv = local->window + SV_GRANULE };
}

static void ends_comm(uint32_t flags)
{
	CHECK_EQ(SEND(local, SV_OP_X_COMM_END, (struct sv_comm_end){ .comm = comms.all->number, .flags = flags }), 0);
}

/* ------------------------------------------------------------------------------ the tests */

/* The stream waits for what this returns. */
static uint64_t *waits_for_value(void)
{
	uint64_t *value = (void *)arena_at(&local->s, pinned + MiB / 2);

	CHECK_EQ(SEND(local, SV_OP_cuStreamWaitValue64_v2, (struct sv_cuStreamWaitValue64_v2){
			.ctx = local->ctx, .stream = stream, .value = 1, .flags = CU_STREAM_WAIT_VALUE_GEQ,
			.addr = (uintptr_t)value }), 0);
	return value;
}

/* What a send has in its buffer may be overwritten; its stream has not come so far. */
static void sends_early(void *arg)
{
	struct sv_coll_call call = { .kind = STEP_SEND, .type = TREE_F32, .peer = 1, .count = COUNT };
	uint64_t *value;

	(void)arg;
	communicate(2);
	call.send = local->window;
	value = waits_for_value();
	posts(&call);
	comm_run(&local->s);
	CHECK(comms.posted[0]->ended && comms.posted[0]->queued && !comms.posted[0]->reached);
	CHECK_EQ(comms.word[0], 0);
	__atomic_store_n(value, 1, __ATOMIC_RELEASE);
	for (int ms = 0; ms < 20000 && !__atomic_load_n(&comms.word[0], __ATOMIC_ACQUIRE); ms++)
		usleep(1000);
	CHECK_EQ(comms.word[0], 1);
}

TEST(a_send_lets_its_stream_go_when_that_has_come)
{
	EXPECT_EQ(local_child(sends_early, NULL), 0);
}

/* What both have posted is announced and not started. */
static void cancelled_twice(void *arg)
{
	struct sv_coll_call call;

	(void)arg;
	communicate(2);
	call = all_reduce();
	waits_for_value();
	posts(&call);
	other_posts(STEP_ALLREDUCE);
	comm_run(&local->s);
	CHECK(comms.starts);
	CHECK_EQ(fake.starts, 0);
	other_is_done(STEP_REMOTE);
	fake.again = true;
	comm_run(&local->s);
	CHECK(!fake.again);
	CHECK_EQ(fake.withdrawals, 1);
	CHECK_EQ(fake.cancels, 0);
	CHECK(!comms.starts);
}

TEST(a_cancel_that_is_said_again_while_it_is_obeyed_does_nothing)
{
	EXPECT_EQ(local_child(cancelled_twice, NULL), 0);
}

/* The client aborts the communicator, and could then free the memory to which the transport still writes. */
static void board_breaks(void *arg)
{
	struct sv_coll_call call;
	uint32_t *shared;

	(void)arg;
	communicate(1);
	call = all_reduce();
	posts(&call);
	CHECK_EQ(fake.starts, 1);
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, board_fd, 0);
	CHECK(shared != MAP_FAILED);
	__atomic_store_n(&shared[4], 1, __ATOMIC_SEQ_CST);	/* struct shared's broken */
	comm_run(&local->s);
	CHECK_EQ(comms.all->word->code, STEP_REMOTE);
	CHECK_EQ(fake.cancels, 1);
	ends_comm(SV_COMM_ABORT);
	comm_run(&local->s);
	CHECK_EQ(comm_count(), 1);
	CHECK_EQ(comms.word[0], 0);
	ends(0, STEP_REMOTE);
	comm_run(&local->s);
	CHECK_EQ(comm_count(), 0);
	CHECK_EQ(comms.word[0], 1);
}

TEST(what_the_transport_runs_does_not_end_with_the_board)
{
	EXPECT_EQ(local_child(board_breaks, NULL), 0);
}

/* A group of which the first call fails, so that it begins, and holds its stream until the second one has ended. */
static void ends_in_another_thread(void *arg)
{
	const struct step_call wrong = { .kind = STEP_SEND, .type = TREE_F32, .peer = 0, .count = MiB };
	struct sv_coll_call call[2];
	struct sv_coll a;

	(void)arg;
	communicate(2);
	call[0] = (struct sv_coll_call){ .kind = STEP_RECV, .type = TREE_F32, .peer = 1, .count = COUNT, .recv = local->window };
	call[1] = all_reduce();
	a = (struct sv_coll){ .ctx = local->ctx, .stream = stream, .comm = comms.all->number, .calls = 2 };
	CHECK_EQ(local_send(local, SV_OP_X_COLL, &a, sizeof(a), call, sizeof(call), NULL), 0);
	other_posts(STEP_ALLREDUCE);
	comm_run(&local->s);
	CHECK_EQ(fake.starts, 1);
	other_says(&(struct step_event){ .kind = STEP_POST, .member = member, .cookie = 2, .ncalls = 1, .calls = &wrong });
	comm_run(&local->s);
	CHECK(comms.posted[0]->begun && comms.posted[0]->held);
	ends_comm(SV_COMM_ABORT);
	comm_run(&local->s);
	CHECK_EQ(fake.cancels, 1);
	other_is_done(STEP_REMOTE);
	ends(0, STEP_REMOTE);		/* as the transport's thread does it */
	CHECK(comms.posted[0] && comms.posted[0]->ended && comms.posted[0]->held);
	CHECK(comm_posted());
	comm_run(&local->s);
	CHECK(!comms.posted[0]);
	CHECK_EQ(comm_count(), 0);
}

TEST(a_stream_is_released_by_the_consumer_alone)
{
	EXPECT_EQ(local_child(ends_in_another_thread, NULL), 0);
}

/* An operation has failed while it ran. Nobody steps aside for its stream, which goes on when the program aborts. */
static void stands(void *arg)
{
	struct sv_coll_call call;

	(void)arg;
	communicate(2);
	call = all_reduce();
	posts(&call);
	other_posts(STEP_ALLREDUCE);
	comm_run(&local->s);
	CHECK_EQ(fake.starts, 1);
	other_is_done(STEP_REMOTE);
	ends(0, STEP_REMOTE);
	comm_run(&local->s);
	CHECK(comms.posted[0]->begun && comms.posted[0]->stands);
	comm_step_aside();
	CHECK_EQ(comms.word[0], 0);
	ends_comm(SV_COMM_ABORT);
	comm_run(&local->s);
	CHECK_EQ(comms.word[0], 1);
}

TEST(a_stream_that_stands_does_so_at_a_cut)
{
	EXPECT_EQ(local_child(stands, NULL), 0);
}

/* The board has heard of it by then: the fault was here. */
static void refused(void *arg)
{
	struct sv_coll_call call;

	(void)arg;
	communicate(1);
	call = all_reduce();
	fake.refuses = true;
	posts(&call);
	CHECK_EQ(fake.withdrawals, 1);
	CHECK_EQ(fake.code, STEP_SYSTEM);
	CHECK(!comms.starts);
}

TEST(what_the_transport_refuses_to_start_is_withdrawn)
{
	EXPECT_EQ(local_child(refused, NULL), 0);
}

static void factors(void *arg)
{
	const uint64_t at = MiB / 2;
	struct sv_coll_call call;

	(void)arg;
	communicate(1);
	call = all_reduce();
	posts(&call);
	call.op = TREE_PREMULSUM;
	call.scale = SV_COLL_FACTOR;
	call.factor = 4711;
	posts(&call);
	call.scale = SV_COLL_FACTOR_AT;
	call.factor = local->window + at;
	posts(&call);
	for (unsigned int i = 0; i < 3; i++) {
		/* Each but the first waits in the stream until the one before it has ended. */
		for (int ms = 0; ms < 20000 && __atomic_load_n(&fake.starts, __ATOMIC_ACQUIRE) <= i; ms++)
			usleep(1000);
		CHECK_EQ(fake.starts, i + 1);
		ends(i, STEP_OK);
	}
	CHECK(!fake.start[0].part.factor && !fake.start[0].part.factor_there);
	CHECK(fake.start[1].part.factor && !fake.start[1].part.factor_there);
	CHECK_EQ(fake.start[1].factor, 4711);
	CHECK_EQ((uintptr_t)fake.start[2].part.factor, local->window + at);
	CHECK(fake.start[2].part.factor_there);
}

TEST(the_transport_is_told_where_a_factor_is)
{
	EXPECT_EQ(local_child(factors, NULL), 0);
}

static int cut(bool *all)
{
	const uint64_t seats[BOARD_SEATS / 64] = { 1 };
	struct why why = { 0 };

	while (comm_posted())
		comm_run(&local->s);
	return comm_cut(4711, seats, all, &why);
}

/* A small send has ended, and lies in memory that the transport has lent until it is received. */
static void lent(void *arg)
{
	struct sv_coll_call send = { .kind = STEP_SEND, .type = TREE_F32, .peer = 1, .count = COUNT };
	bool all = false;

	(void)arg;
	communicate(2);
	send.send = local->window;
	posts(&send);
	CHECK_EQ(cut(&all), -EBUSY);
	CHECK(!all);
	other_posts(STEP_RECV);
	comm_run(&local->s);
	CHECK_EQ(fake.starts, 1);
	ends(0, STEP_OK);
	other_is_done(STEP_OK);
	CHECK_EQ(cut(&all), 0);
	CHECK(all);
}

TEST(what_lies_in_the_transports_memory_is_not_saved)
{
	EXPECT_EQ(local_child(lent, NULL), 0);
}

/* It has begun, no part of it runs here, and its record has not ended, since the other rank's part may touch its memory. */
static void halted(void *arg)
{
	struct sv_coll_call call;
	bool all = false;

	(void)arg;
	communicate(2);
	call = all_reduce();
	posts(&call);
	other_posts(STEP_ALLREDUCE);
	comm_run(&local->s);
	CHECK_EQ(fake.starts, 1);
	ends(0, STEP_SYSTEM);
	CHECK(!comms.starts);
	CHECK_EQ(cut(&all), 0);
	CHECK(!all);
	other_is_done(STEP_REMOTE);
	CHECK_EQ(cut(&all), 0);
	CHECK(all);
}

TEST(what_has_failed_here_alone_is_waited_for_at_a_cut)
{
	EXPECT_EQ(local_child(halted, NULL), 0);
}

static void talks(void *arg)
{
	struct sv_coll_call call;

	(void)arg;
	communicate(1);
	CHECK(!comm_talks());
	forms(2);
	CHECK(!comm_talks());
	joins();
	CHECK(comm_talks());
	call = all_reduce();
	posts(&call);
	ends_comm(0);		/* when that has ended */
	CHECK_EQ(comm_count(), 2);
	CHECK(!comm_talks());
}

TEST(a_session_talks_while_a_communicator_of_several_ranks_stands)
{
	EXPECT_EQ(local_child(talks, NULL), 0);
}

/* ------------------------------------------------------------------------------ ahead */

#define PLACES 8			/* of the window's second half, COUNT words each */

/* What a client sends while something is parked: it runs, or is parked itself. */
static bool parks(uint16_t op, const void *a, uint32_t len, const void *tail, uint32_t tail_len)
{
	uint64_t room[64];
	struct ring_record rec = { .seq = local->seq + 1, .op = op, .len = len + tail_len, .data = room };

	memcpy(room, a, len);
	if (tail_len)
		memcpy((char *)room + len, tail, tail_len);
	if (park_any && park_take(&local->s, &rec, record_of(op)) == PARK_PARKED) {
		local->seq++;
		return true;
	}
	CHECK_EQ(local_send(local, op, a, len, tail, tail_len, NULL), 0);
	return false;
}

static float *place(unsigned int n)
{
	return (float *)(local->window + SV_GRANULE) + n * COUNT;
}

/* A sum of what is at one place, to another one. */
static struct sv_coll_call sum_of(unsigned int from, unsigned int to)
{
	struct sv_coll_call call = all_reduce();

	call.send = (uintptr_t)place(from);
	call.recv = (uintptr_t)place(to);
	return call;
}

static bool parks_call(const struct sv_coll_call *call, uint64_t comm, uint64_t in)
{
	struct sv_coll a = { .ctx = local->ctx, .stream = in, .comm = comm, .calls = 1 };

	return parks(SV_OP_X_COLL, &a, sizeof(a), call, sizeof(*call));
}

static uint64_t both;		/* the number of the communicator of both ranks */

static bool parks_sum(unsigned int from, unsigned int to, uint64_t in)
{
	struct sv_coll_call call = sum_of(from, to);

	return parks_call(&call, both, in);
}

static uint64_t event_new(void)
{
	uint64_t event = local_handle(local, SV_T_CUevent);

	CHECK_EQ(SEND(local, SV_OP_cuEventCreate, (struct sv_cuEventCreate){
			.ctx = local->ctx, .phEvent = event, .Flags = CU_EVENT_DISABLE_TIMING }), 0);
	return event;
}

static bool parks_record(uint64_t event, uint64_t in)
{
	struct sv_cuEventRecord a = { .ctx = local->ctx, .hEvent = event, .hStream = in };

	return parks(SV_OP_cuEventRecord, &a, sizeof(a), NULL, 0);
}

static bool parks_wait(uint64_t event, uint64_t in)
{
	struct sv_cuStreamWaitEvent a = { .ctx = local->ctx, .hEvent = event, .hStream = in };

	return parks(SV_OP_cuStreamWaitEvent, &a, sizeof(a), NULL, 0);
}

static uint64_t stream_new(void)
{
	uint64_t st = local_handle(local, SV_T_CUstream);

	CHECK_EQ(SEND(local, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
			.ctx = local->ctx, .phStream = st, .Flags = CU_STREAM_NON_BLOCKING }), 0);
	return st;
}

static unsigned int ahead(void)
{
	unsigned int n = 0;

	comm_ahead(&local->s);
	for (int i = 0; i < (int)POSTED_MAX; i++)
		n += comms.posted[i] && comms.posted[i]->ahead;
	return n;
}

/* Rank 0 waits for the first of its sums. */
static void waits_for_first(void)
{
	communicate(2);
	both = comms.all->number;
	for (int i = 0; i < PLACES * COUNT; i++)
		place(0)[i] = 1 + i / COUNT;
	CHECK(!parks_sum(0, 0, stream));
	CHECK(park_any);
}

/* The other rank has its part, and the transport's result is one more than what was sent. */
static void sums(unsigned int i)
{
	const struct transport_part *part = &fake.start[i].part;

	for (int n = 0; n < COUNT; n++)
		((float *)part->recv)[n] = ((const float *)part->send)[n] + 1;
	ends(i, STEP_OK);
	other_says(&(struct step_event){ .kind = STEP_DONE, .device = board_device(1), .order = fake.start[i].op.order });
	comm_run(&local->s);
}

static void comes_back(void)
{
	comm_return();
	comm_write();
	park_away(false);
	park_run(&local->s);
}

/* Two more in the same stream, behind events, and one in another stream: all are posted, and work with copies. */
static void chained(void *arg)
{
	uint64_t event, done, other;

	(void)arg;
	waits_for_first();
	other = stream_new();
	event = event_new();
	done = event_new();
	CHECK(!parks_record(event, other));
	CHECK(parks_wait(event, stream));
	CHECK(parks_sum(1, 1, stream));
	CHECK_EQ(ahead(), 1);
	CHECK(parks_record(done, stream));
	CHECK(parks_wait(event, stream));
	CHECK(parks_sum(2, 2, stream));
	CHECK(parks_sum(3, 3, other));
	CHECK_EQ(comms.in_use, 2);
	CHECK_EQ(ahead(), 3);
	CHECK_EQ(ahead(), 3);		/* again: no more of them */
	CHECK_EQ(comms.in_use, 4);
	CHECK_EQ(comm_capture(), 0);
	park_away(true);
	memset(place(0), 0xff, PLACES * COUNT * sizeof(float));	/* another sharer's */
	for (unsigned int i = 0; i < 4; i++) {
		other_posts(STEP_ALLREDUCE);
		comm_run(&local->s);
		CHECK_EQ(fake.starts, i + 1);
		sums(i);
	}
	CHECK_EQ(park_count(), 6);
	comes_back();
	CHECK_EQ(park_count(), 0);
	CHECK_EQ(comms.in_use, 0);
	for (unsigned int i = 0; i < 4; i++)
		CHECK_EQ(place(i)[COUNT - 1], 2 + i);
}

TEST(sums_behind_one_that_waits_are_posted_ahead)
{
	EXPECT_EQ(local_child(chained, NULL), 0);
}

/*
 * The memory is back before the first sum has ended, and the second one starts: by slices with copies, since the memory may go
 * before its turn. Without slices, as after a restore on a device of its own, it waits for its turn.
 */
static void started_here(bool sliced)
{
	waits_for_first();
	comms.sliced = sliced;
	CHECK(parks_sum(1, 1, stream));
	CHECK_EQ(ahead(), 1);
	CHECK_EQ(comm_capture(), 0);
	other_posts(STEP_ALLREDUCE);
	comm_run(&local->s);
	comes_back();
	other_posts(STEP_ALLREDUCE);
	comm_run(&local->s);
	CHECK_EQ(fake.starts, 1 + sliced);
	CHECK_EQ(comm_in_memory(), !sliced);
	sums(0);
	comes_back();
	for (int ms = 0; ms < 20000 && __atomic_load_n(&fake.starts, __ATOMIC_ACQUIRE) < 2; ms++)
		usleep(1000);
	CHECK_EQ(fake.starts, 2);
	CHECK_EQ(fake.start[1].part.send == place(1), !sliced);
	sums(1);
	comes_back();
	CHECK_EQ(comms.in_use, 0);
	CHECK_EQ(comms.ahead, 0);
	CHECK_EQ(place(0)[0], 2);
	CHECK_EQ(place(1)[0], 3);
}

static void started_in_turn(void *arg)
{
	(void)arg;
	started_here(false);
}

static void started_at_once(void *arg)
{
	(void)arg;
	started_here(true);
}

TEST(what_was_posted_ahead_starts_with_copies_or_in_its_turn)
{
	EXPECT_EQ(local_child(started_in_turn, NULL), 0);
	EXPECT_EQ(local_child(started_at_once, NULL), 0);
}

/* A post is the last one of an operation, and another one, whose start has not been heard of, starts as well: in the memory. */
static void last_of_all(void *arg)
{
	(void)arg;
	waits_for_first();
	comms.sliced = true;
	CHECK(parks_sum(1, 1, stream));
	other_posts(STEP_ALLREDUCE);
	other_posts(STEP_ALLREDUCE);
	CHECK(!comm_in_memory());
	CHECK_EQ(ahead(), 1);
	CHECK_EQ(fake.starts, 2);
	CHECK(comm_in_memory());	/* so the slice has not ended */
	sums(0);
	CHECK(!comm_in_memory());
}

TEST(a_post_ahead_may_start_what_works_in_the_memory)
{
	EXPECT_EQ(local_child(last_of_all, NULL), 0);
}

/* So much is under way that nothing more is posted; what is posted already has its turn all the same. */
static void crowded(void *arg)
{
	(void)arg;
	waits_for_first();
	comms.calls += CALLS_MAX;
	CHECK(parks_sum(1, 1, stream));
	CHECK_EQ(ahead(), 1);
	CHECK(comms.crowded);
	other_posts(STEP_ALLREDUCE);
	other_posts(STEP_ALLREDUCE);
	comm_run(&local->s);
	sums(0);
	CHECK_EQ(park_count(), 0);
	for (int ms = 0; ms < 20000 && __atomic_load_n(&fake.starts, __ATOMIC_ACQUIRE) < 2; ms++)
		usleep(1000);
	sums(1);
	CHECK_EQ(comms.in_use, 0);
}

TEST(what_was_posted_ahead_has_its_turn_whatever_else_there_is)
{
	EXPECT_EQ(local_child(crowded, NULL), 0);
}

/* The program aborts: what was posted ahead ends with the rest. */
static void aborted_ahead(void *arg)
{
	(void)arg;
	waits_for_first();
	CHECK(parks_sum(1, 1, stream));
	CHECK_EQ(ahead(), 1);
	ends_comm(SV_COMM_ABORT);
	while (comm_posted())
		comm_run(&local->s);
	CHECK_EQ(park_count(), 0);
	CHECK_EQ(comms.in_use, 0);
	CHECK_EQ(comm_count(), 0);
}

/* The first sum fails, as the other rank has another count: the communicator can be ended, though the second one waits. */
static void ended_ahead(void *arg)
{
	const struct step_call other = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = COUNT + 1 };

	(void)arg;
	waits_for_first();
	CHECK(parks_sum(1, 1, stream));
	CHECK_EQ(ahead(), 1);
	other_says(&(struct step_event){ .kind = STEP_POST, .member = member, .cookie = 1, .ncalls = 1, .calls = &other });
	comm_run(&local->s);
	CHECK_EQ(comms.all->word->code, STEP_INVALID_USAGE);
	ends_comm(0);
	while (comm_posted())
		comm_run(&local->s);
	CHECK_EQ(comm_count(), 0);
	CHECK_EQ(park_count(), 0);
	CHECK_EQ(comms.in_use, 0);
}

TEST(what_was_posted_ahead_ends_with_its_communicator)
{
	EXPECT_EQ(local_child(aborted_ahead, NULL), 0);
	EXPECT_EQ(local_child(ended_ahead, NULL), 0);
}

/* What comm_leave() hears: it runs nothing that is parked. */
static void as_leaving(void *ctx, const struct step_action *a)
{
	(void)ctx;
	if (a->kind == STEP_START)
		post_start(a);
	if (a->kind == STEP_BEGUN)
		post_begun(a);
}

/* The program has exited with 0: others still get what it has posted. */
static void left_ahead(void *arg)
{
	(void)arg;
	waits_for_first();
	CHECK(parks_sum(1, 1, stream));
	CHECK_EQ(ahead(), 1);
	other_posts(STEP_ALLREDUCE);
	other_posts(STEP_ALLREDUCE);
	CHECK_EQ(board_mail(board, 0, as_leaving, NULL), 0);
	CHECK_EQ(fake.starts, 1);
	post_all_up();
	CHECK_EQ(comms.ahead, 0);
	ends(0, STEP_OK);
	for (int ms = 0; ms < 20000 && __atomic_load_n(&fake.starts, __ATOMIC_ACQUIRE) < 2; ms++)
		usleep(1000);
	CHECK_EQ(fake.starts, 2);
}

TEST(who_leaves_gives_others_what_was_posted_ahead)
{
	EXPECT_EQ(local_child(left_ahead, NULL), 0);
}

/*
 * The words, COUNT a place, where a sum would send from and receive at that may not be posted: what place 0 has is summed in
 * place, and what place 1 has goes to place 2. The last one may.
 */
static const struct touching { int send, recv; } touching[] = {
	{ 3 * COUNT - 1, 4 * COUNT }, { 4 * COUNT, 3 * COUNT - 1 }, { 4 * COUNT, COUNT }, { 1 - COUNT, 4 * COUNT },
	{ COUNT, 4 * COUNT },
};

static void touches(void *arg)
{
	const struct touching *t = arg;
	struct sv_coll_call call;

	waits_for_first();
	CHECK(parks_sum(1, 2, stream));
	CHECK_EQ(ahead(), 1);
	call = sum_of(0, 0);
	call.send = (uintptr_t)(place(0) + t->send);
	call.recv = (uintptr_t)(place(0) + t->recv);
	CHECK(parks_call(&call, both, stream_new()));
	CHECK_EQ(ahead(), t == &touching[4] ? 2 : 1);
}

/* A sum behind something else; none of them goes ahead. */
static void behind_pair(void)
{
	const struct sv_coll_call call = { .kind = STEP_RECV, .type = TREE_F32, .peer = 1, .count = COUNT, .recv = (uintptr_t)place(1) };

	CHECK(parks_call(&call, both, stream));
}

static void behind_factor(void)
{
	struct sv_coll_call call = sum_of(1, 1);

	call.op = TREE_PREMULSUM;
	call.scale = SV_COLL_FACTOR_AT;
	call.factor = (uintptr_t)place(2);
	CHECK(parks_call(&call, both, stream));
}

static void behind_work(void)
{
	struct sv_cuMemsetD8Async a = { .ctx = local->ctx, .hStream = stream, .dstDevice = (uintptr_t)place(1), .N = 1 };

	CHECK(parks(SV_OP_cuMemsetD8Async, &a, sizeof(a), NULL, 0));
}

/* An event that another stream records behind a sum of its own. */
static void behind_event(void)
{
	uint64_t event = event_new(), other = stream_new();

	CHECK(!parks_sum(3, 3, other));
	CHECK(parks_record(event, other));
	CHECK(parks_wait(event, stream));
}

/* One that this stream records behind a sum which does go ahead, for another stream. */
static void behind_event_ahead(void)
{
	uint64_t event = event_new(), other = stream_new();

	CHECK(parks_sum(3, 3, stream));
	CHECK(parks_record(event, stream));
	CHECK(parks_wait(event, other));
	stream = other;
}

static void behind_another(void)
{
	struct sv_coll_call call = sum_of(3, 3);

	forms(1);
	CHECK_EQ(comms.all->word->state, SV_COMM_STANDS);
	CHECK(parks_call(&call, comms.all->number, stream));
}

static void stays_behind(void *arg)
{
	void (*const *what)(void) = arg;

	waits_for_first();
	(*what)();
	CHECK(parks_sum(4, 4, stream));
	CHECK_EQ(ahead(), *what == behind_event_ahead);
}

/* The stream waits for the host, which may still write what the sum sends. */
static void behind_host(void *arg)
{
	uint64_t other;
	struct stream *st;

	(void)arg;
	waits_for_first();
	other = stream_new();
	CHECK_EQ(uproxy_stream_find(&local->s, other, &st), 0);
	CHECK_EQ(park_hold(st), 0);
	CHECK(parks_sum(1, 1, other));
	CHECK_EQ(ahead(), 0);
	park_release(st);
	park_run(&local->s);
	CHECK_EQ(comms.in_use, 2);
}

TEST(what_depends_on_something_else_stays_behind)
{
	void (*what[])(void) = { behind_pair, behind_factor, behind_work, behind_event, behind_event_ahead, behind_another };

	for (unsigned int i = 0; i < sizeof(touching) / sizeof(touching[0]); i++)
		EXPECT_EQ(local_child(touches, (void *)&touching[i]), 0);
	EXPECT_EQ(local_child(behind_host, NULL), 0);
	for (unsigned int i = 0; i < sizeof(what) / sizeof(what[0]); i++)
		EXPECT_EQ(local_child(stays_behind, &what[i]), 0);
}

TEST_HARNESS_MAIN
