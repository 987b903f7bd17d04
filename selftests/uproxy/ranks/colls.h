/* SPDX-License-Identifier: Apache-2.0 */
/*
 * colls.h - ranks for tests of collective operations, by hand, record by record
 *
 * Each rank is a proxy with a client of its own in this process, which therefore decides who posts when.
 * The test is the supervisor, too: it makes the board and tells it who is dead.
 */
#ifndef SELFTESTS_UPROXY_COLLS_H
#define SELFTESTS_UPROXY_COLLS_H

#include "../client.h"
#include "stat.h"

#include "board.h"
#include "step.h"
#include "tree.h"

#define RANKS	4
#define KiB	(1ull << 10)

struct rank {
	struct client c;
	uint64_t dev, pin;		/* 8 MiB of device memory, 8 MiB of pinned arena */
	uint64_t words;			/* free from here on, in the last 1 MiB of it */
	uint64_t stream, other, event, ends;
	struct sv_comm_word *word;
	struct ring_ticket ticket;
	int stat;			/* the proxy's figures */
};

FIXTURE(colls) {
	struct rank r[RANKS];
	struct board *board;
	int fd, n;
	uint64_t comm;
	int said;			/* what the first rank's proxy says on stderr; the end passes it on */
};

#define GUEST_OFF	(1ull << 42)	/* of other ranks' channels, from the first one's */
#define GUEST_STEP	(1ull << 36)

/* Connects as a process's next session: its pinned memory is in the first one's arena. */
static inline int attach(struct rank *r, int i, const char *const *more)
{
	struct sv_connect con = { .magic = SV_CONNECT_MAGIC, .version = SV_PROTO_VERSION,
				  .device = -1, .api = CUDA_VERSION, .others = i };
	struct client *c = &r[i].c;
	struct sv_connected reply;
	int rc = client_spawn(c, more);

	for (int k = 0; k < i; k++)
		con.taken[k] = (struct sv_window){ r[k].c.shared->window, r[k].c.shared->window_len };
	if (i)
		con.channel = RING_VA_BASE + GUEST_OFF + i * GUEST_STEP;
	if (!rc && send(c->sock, &con, sizeof(con), MSG_NOSIGNAL) != sizeof(con))
		rc = -EPIPE;
	if (!rc && i)
		rc = ring_pass_fd(c->sock, ring_fd(r[0].c.ring));
	if (!rc && recv(c->sock, &reply, sizeof(reply), MSG_WAITALL) != sizeof(reply))
		rc = -EPIPE;
	if (!rc && reply.status) {
		fprintf(stderr, "# the proxy says: %s\n", reply.why);
		rc = reply.status;
	}
	if (rc || (rc = client_attach(c)))
		return rc;
	c->arena = r[0].c.arena;
	return 0;
}

static inline int start_rank(struct rank *all, int board, int i)
{
	struct rank *r = &all[i];
	struct client *c = &r->c;
	char fd[16], number[16];
	char stat[64];
	const char *more[] = { "--board", fd, "--seat", number, "--stat", stat, NULL };
	int rc;

	snprintf(fd, sizeof(fd), "%d", board);
	snprintf(number, sizeof(number), "%d", i);
	snprintf(stat, sizeof(stat), "/tmp/uproxy-colls-%d-%d", getpid(), i);
	rc = attach(all, i, more);
	r->stat = rc ? -1 : open(stat, O_RDONLY | O_CLOEXEC);
	unlink(stat);
	if (!rc)
		rc = client_context(c);
	if (rc)
		return rc;
	r->dev = c->window;
	r->pin = arena_take(&all[0].c, 8 * MiB);
	r->words = r->pin + 7 * MiB;
	r->stream = new_handle(c, SV_T_CUstream);
	r->other = new_handle(c, SV_T_CUstream);
	r->event = new_handle(c, SV_T_CUevent);
	rc = SEND(c, SV_OP_X_MAP, (struct sv_map){ r->dev, 8 * MiB }) ?:
	     CALL(c, SV_OP_X_PIN, (struct sv_pin){ r->pin, 8 * MiB }) ?:
	     SEND(c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
			.ctx = c->ctx, .phStream = r->stream, .Flags = CU_STREAM_NON_BLOCKING }) ?:
	     SEND(c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
			.ctx = c->ctx, .phStream = r->other, .Flags = CU_STREAM_NON_BLOCKING }) ?:
	     SEND(c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){
			.ctx = c->ctx, .phEvent = r->event });
	return rc ?: ctx_sync(c);
}

/* The arena offset of a new communicator's word. */
static inline uint64_t new_word(struct rank *r, struct sv_comm_word **word)
{
	uint64_t at = r->words;

	r->words += sizeof(**word);
	*word = (void *)(r->c.arena + at);
	memset(*word, 0, sizeof(**word));
	return at;
}

/* All ranks of n join; the code of each creation is the same, and returned. */
static inline int new_comm(struct rank *r, int n, uint64_t comm, const char *id)
{
	int code = -1;

	for (int i = 0; i < n; i++) {
		struct sv_comm_new a = { .ctx = r[i].c.ctx, .comm = comm, .ranks = n, .rank = i };

		a.word = new_word(&r[i], &r[i].word);
		snprintf((char *)a.id, sizeof(a.id), "%s", id);
		if (ring_request(r[i].c.ring, &r[i].ticket, SV_OP_X_COMM_NEW, &a, sizeof(a), NULL, 0))
			return -1;
	}
	for (int i = 0; i < n; i++) {
		struct sv_comm_result res;
		int32_t status = -1;

		int rc = ring_await(r[i].c.ring, &r[i].ticket, &status, &res, sizeof(res), NULL,
				    20000000000);

		if (rc || status) {
			fprintf(stderr, "# rank %d: answer %d, status %d\n", i, rc, status);
			return -1;
		}
		if (i && (int)res.code != code)
			return -2;
		code = res.code;
	}
	return code;
}

/* How proxies learn that a stream has come so far: notify.c. */
FIXTURE_VARIANT(colls)
{
	const char *notify;
};

FIXTURE_VARIANT_ADD(colls, callbacks)
{
	.notify = "callbacks",
};

FIXTURE_VARIANT_ADD(colls, words)
{
	.notify = "words",
};

FIXTURE_SETUP(colls)
{
	int err, rc;

	setenv("SINGVGPU_NOTIFY", variant->notify, 1);
	self->fd = board_create();
	ASSERT_GE(self->fd, 0);
	fcntl(self->fd, F_SETFD, 0);
	ASSERT_EQ(board_open(self->fd, &self->board), 0);
	self->n = RANKS;
	self->said = memfd_create("said", MFD_CLOEXEC);
	ASSERT_GE(self->said, 0);
	err = dup(2);
	dup2(self->said, 2);
	for (int i = 0; i < self->n; i++) {
		board_reserve(self->board, i, &(struct board_place){ .rank = i });
		rc = start_rank(self->r, self->fd, i);
		dup2(err, 2);	/* the first one's was `said` */
		ASSERT_EQ(rc, 0);
	}
	close(err);
	self->comm = 77;
	ASSERT_EQ(new_comm(self->r, self->n, self->comm, "the fixture's"), 0);
}

FIXTURE_TEARDOWN(colls)
{
	for (int i = 0; i < self->n; i++)
		if (self->r[i].c.proxy)
			ring_submit(self->r[i].c.ring, SV_OP_X_COMM_LEAVE, NULL, 0, NULL, 0);
	for (int i = 0; i < self->n; i++) {
		int status = self->r[i].c.proxy ? client_end(&self->r[i].c) : 0;

		EXPECT_EQ(status, 0)
			TH_LOG("proxy %d", i);
		close(self->r[i].stat);
	}
	board_close(self->board);
	close(self->fd);
	lseek(self->said, 0, SEEK_SET);
	for (char b[4096];;) {
		ssize_t n = read(self->said, b, sizeof(b));

		if (n <= 0 || write(2, b, n) < 0)
			break;
	}
	close(self->said);
}

/* ------------------------------------------------------------------------------ helpers */

/* How often the first rank's proxy has said this. */
static inline int times_said(int said, const char *what)
{
	char b[65536];
	ssize_t n = pread(said, b, sizeof(b) - 1, 0);
	int times = 0;

	b[n > 0 ? n : 0] = 0;
	for (const char *at = b; (at = strstr(at, what)); at++)
		times++;
	return times;
}

static inline int send_calls(struct rank *r, uint64_t comm, uint64_t stream,
		      const struct sv_coll_call *call, uint32_t n)
{
	struct sv_coll a = { .ctx = r->c.ctx, .stream = stream, .comm = comm, .calls = n };

	return ring_submit(r->c.ring, SV_OP_X_COLL, &a, sizeof(a), call, n * sizeof(*call));
}

#define COLL(r, comm, stream, ...) ({ \
	struct sv_coll_call call_ = __VA_ARGS__; \
	send_calls(r, comm, stream, &call_, 1); \
})

static inline struct sv_coll_call all_reduce(struct rank *r, uint64_t count)
{
	return (struct sv_coll_call){ .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM,
				      .count = count, .send = r->dev, .recv = r->dev + 4 * MiB };
}

static inline int fill(struct rank *r, uint64_t stream, uint64_t at, uint32_t word, uint64_t n)
{
	return SEND(&r->c, SV_OP_cuMemsetD32Async, (struct sv_cuMemsetD32Async){
			.ctx = r->c.ctx, .dstDevice = at, .N = n, .hStream = stream, .ui = word });
}

static inline uint32_t bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline int down(struct rank *r, uint64_t stream, uint64_t to, uint64_t from, uint64_t len)
{
	struct sv_copy a = { r->c.ctx, stream, address(&r->c, r->pin + to), from, len, 0, 0 };

	return ring_submit(r->c.ring, SV_OP_cuMemcpyAsync, &a, sizeof(a), NULL, 0);
}

static inline volatile uint32_t *word_at(struct rank *r, uint64_t at)
{
	return (volatile uint32_t *)(r->c.arena + r->pin + at);
}

static inline int sync_stream(struct rank *r, uint64_t stream)
{
	return CALL(&r->c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ r->c.ctx, stream });
}

static inline int query(struct rank *r, uint16_t op, uint64_t on)
{
	struct sv_sync_on a = { r->c.ctx, on };

	return call2(&r->c, op, &a, sizeof(a), NULL, 0, NULL, 0);
}

/* Waits up to two seconds for a failure of the communicator. */
static inline uint32_t code_of(struct rank *r)
{
	for (int i = 0; i < 2000 && !__atomic_load_n(&r->word->code, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	return __atomic_load_n(&r->word->code, __ATOMIC_ACQUIRE);
}

/* A synchronisation on a thread of its own. */
struct waiter {
	struct rank *r;
	uint64_t on;
	uint16_t op;
	int status;
	atomic_bool done;
	pthread_t thread;
};

static inline void *waiter_main(void *arg)
{
	struct waiter *w = arg;

	w->status = query(w->r, w->op, w->on);
	w->done = true;
	return NULL;
}

static inline int waiter_start(struct waiter *w, struct rank *r, uint16_t op, uint64_t on)
{
	*w = (struct waiter){ .r = r, .op = op, .on = on };
	return pthread_create(&w->thread, NULL, waiter_main, w);
}

static inline int waiter_end(struct waiter *w)
{
	pthread_join(w->thread, NULL);
	return w->status;
}

static inline struct sv_coll_call pair(struct rank *r, uint32_t kind, uint32_t peer, uint64_t count)
{
	return (struct sv_coll_call){ .kind = kind, .type = TREE_INT32, .peer = peer, .count = count,
				      .send = kind == STEP_SEND ? r->dev : 0,
				      .recv = kind == STEP_RECV ? r->dev + 4 * MiB : 0 };
}

/* The rank's stream waits until *word is 1. */
static inline int gate(struct rank *r, uint64_t stream, volatile uint64_t **word)
{
	*word = (volatile uint64_t *)(r->c.arena + r->pin + 6 * MiB);
	**word = 0;
	return SEND(&r->c, SV_OP_cuStreamWaitValue64_v2, (struct sv_cuStreamWaitValue64_v2){
			.ctx = r->c.ctx, .stream = stream, .addr = address(&r->c, r->pin + 6 * MiB), .value = 1,
			.flags = CU_STREAM_WAIT_VALUE_GEQ });
}

static inline int end_comm(struct rank *r, uint64_t comm, uint32_t flags)
{
	return CALL(&r->c, SV_OP_X_COMM_END, (struct sv_comm_end){ .comm = comm, .flags = flags });
}

static inline struct uproxy_stat shown(struct rank *r)
{
	struct uproxy_stat s = { 0 };

	if (pread(r->stat, &s, sizeof(s), 0) != sizeof(s))
		s.magic = 0;
	return s;
}

/* A new stream; flags 0: in order with the legacy stream. 0: none. */
static inline uint64_t new_stream(struct rank *r, unsigned int flags)
{
	uint64_t st = new_handle(&r->c, SV_T_CUstream);

	return SEND(&r->c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
			.ctx = r->c.ctx, .phStream = st, .Flags = flags }) ? 0 : st;
}

/* A synchronisation that must come to an end: its status; -ETIMEDOUT: it does not. */
static inline int sync_soon(struct rank *r, uint16_t op, uint64_t on)
{
	struct sv_sync_on a = { r->c.ctx, on };
	struct ring_ticket t;
	int32_t status = -1;
	int rc = ring_request(r->c.ring, &t, op, &a, sizeof(a), NULL, 0);

	return rc ?: ring_await(r->c.ring, &t, &status, NULL, 0, NULL, 10000000000) ?: status;
}

static inline int stream_soon(struct rank *r, uint64_t stream)
{
	return sync_soon(r, SV_OP_cuStreamSynchronize, stream);
}

static inline int record(struct rank *r, uint64_t event, uint64_t stream)
{
	return SEND(&r->c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ r->c.ctx, event, stream });
}

static inline int await(struct rank *r, uint64_t stream, uint64_t event)
{
	return SEND(&r->c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
			.ctx = r->c.ctx, .hStream = stream, .hEvent = event });
}

static inline uint64_t new_event(struct rank *r)
{
	uint64_t ev = new_handle(&r->c, SV_T_CUevent);

	return SEND(&r->c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){ .ctx = r->c.ctx, .phEvent = ev }) ? 0 : ev;
}

/* Resident memory of a process, bytes. */
static inline uint64_t resident(pid_t pid)
{
	unsigned long all, pages = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/statm", pid);
	f = fopen(path, "r");
	if (f && fscanf(f, "%lu %lu", &all, &pages) != 2)
		pages = 0;
	if (f)
		fclose(f);
	return pages * 4096;
}

/* Words of crossings that all ranks' devices reach; 0: they cannot. */
static inline uint64_t new_crossings(struct rank *r, int n)
{
	uint64_t at = arena_take(&r[0].c, 64 * KiB);

	memset(r[0].c.arena + at, 0, 64 * KiB);
	for (int i = 0; i < n; i++)
		if (CALL(&r[i].c, SV_OP_X_PIN, (struct sv_pin){ at, 64 * KiB }))
			return 0;
	return at;
}

static inline int cross(struct rank *from, uint64_t stream, struct rank *to, uint64_t other, uint64_t word, uint64_t value)
{
	struct sv_cross a = { from->c.ctx, stream, word, value }, b = { to->c.ctx, other, word, value };

	return SEND(&from->c, SV_OP_X_CROSS_TELL, a) ?: SEND(&to->c, SV_OP_X_CROSS_WAIT, b);
}

#endif
