// SPDX-License-Identifier: Apache-2.0
/*
 * commsaved.c - what a store has of a session's communicators, with each of its words changed
 *
 * The proxy has seat 0 of a board; the test has seat 1, and says what a second rank would say. At the cut there are
 * a collective that holds its stream, what is parked behind that, and a small send in a buffer. A restore of what was
 * changed is refused by name, or does no harm: the proxy does not crash, and ends when it is told to.
 */
#include <netinet/in.h>
#include <poll.h>

#include "image.h"
#include "../restore/restore.h"

#include "board.h"
#include "saved.h"
#include "stat.h"
#include "step.h"
#include "tree.h"

#define RANKS	2
#define COMM	77

static int board_fd = -1;
static struct board *board;
static uint32_t member;
static uint64_t order;			/* of the last operation that started at seat 1 */
static unsigned int broken;		/* communicators of which seat 1 has heard that they have failed */
static char stat_path[64];

static void hear(void *ctx, const struct step_action *a)
{
	(void)ctx;
	if (a->kind == STEP_JOINED)
		member = a->member;
	if (a->kind == STEP_START)
		order = a->order;
	broken += a->kind == STEP_BROKEN;
}

/* Seat 0's row of the table of seating; NULL: it has none. */
static const struct board_place here = { .rank = 0 }, *place = &here;

/* A board on which seat 1 is ours. */
static int new_board(void)
{
	if (board)
		board_close(board);
	if (board_fd >= 0)
		close(board_fd);
	board_fd = board_create();
	if (board_fd < 0 || board_open(board_fd, &board))
		return -1;
	if (place)
		board_reserve(board, 0, place);
	return fcntl(board_fd, F_SETFD, 0);
}

static const char *const *seat_args(void)
{
	static char fd[16];
	static const char *args[] = { "--board", fd, "--seat", "0", NULL };

	snprintf(fd, sizeof(fd), "%d", board_fd);
	return args;
}

/* Where seat 1 is: nowhere. Or at a port of ours, at which its transport would listen. */
static struct {
	uint64_t host, net;
	uint8_t name[16], key[16];
	uint16_t port, n;
	uint32_t zero;
	struct {
		uint8_t family, bits, zero[2], ip[16];
	} tcp[8];
} elsewhere = { .host = 1, .net = 1, .n = 1, .tcp[0] = { .family = 4, .ip = { 127, 0, 0, 1 } } };
static size_t at_port;

/* Nobody answers there; closed by the caller. */
static int listen_elsewhere(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(a);

	if (bind(fd, (void *)&a, len) || listen(fd, 8) || getsockname(fd, (void *)&a, &len))
		return -1;
	elsewhere.port = a.sin_port;
	at_port = sizeof(elsewhere);
	return fd;
}

static int start_with_board(FIXTURE_DATA(restore) *self)
{
	struct client *c = &self->c;
	int rc = client_end(c) ?: new_board();
	const char *const *more = seat_args();

	rc = rc ?: board_enter(board, 1, &elsewhere, at_port);
	at_port = 0;
	snprintf(stat_path, sizeof(stat_path), "/tmp/uproxy-commsaved-%d", getpid());
	rc = rc ?: client_start(c, (const char *[]){ "--control", self->ctl, "--stat", stat_path, more[0], more[1],
						     more[2], more[3], NULL });
	rc = rc ?: client_context(c);
	self->dev = c->window;
	self->pin = arena_take(c, MiB);
	return rc ?: SEND(c, SV_OP_X_MAP, (struct sv_map){ self->dev, 4 * GRANULE }) ?:
		SEND(c, SV_OP_X_PIN, (struct sv_pin){ self->pin, MiB });
}

/* The key of the last one. */
static void see_comm(void *ctx, const struct step *s, const struct step_comm_look *look)
{
	(void)s;
	*(uint64_t *)ctx = look->key;
}

static void see_op(void *ctx, const struct step *s, const struct step_comm_look *of, const struct step_op_look *look)
{
	(void)ctx, (void)s, (void)of, (void)look;
}

/* The board as it was before the second rank joined, and before anything was posted. */
static struct saved_board {
	void *image;
	size_t len;
} forming, bare;

static int keep_board(struct saved_board *b)
{
	free(b->image);
	return board_save(board, &b->image, &b->len);
}

/* Both ranks join communicator COMM + i: the second one when the first has, whose key it takes. */
static int communicate(FIXTURE_DATA(restore) *self, int i)
{
	struct sv_comm_new a = { .ctx = self->c.ctx, .comm = COMM + i, .ranks = RANKS, .rank = 0,
				 .word = self->pin + MiB / 2 + i * 256, .id = { 1 + i } };
	struct step_event e = { .kind = STEP_JOIN, .proxy = 1, .ranks = RANKS, .rank = 1 };
	struct step_looker looker = { .ctx = &e.comm, .comm = see_comm, .op = see_op };
	static uint64_t last;
	struct ring_ticket ticket;
	struct sv_comm_result res;
	int32_t status = -1;
	int rc = ring_request(self->c.ring, &ticket, SV_OP_X_COMM_NEW, &a, sizeof(a), NULL, 0);

	if (!i)
		last = 0;
	for (int i = 0; i < 20000 && (!e.comm || e.comm == last) && !rc; i++) {
		usleep(1000);
		rc = board_look(board, &looker);
	}
	last = e.comm;
	rc = rc ?: keep_board(&forming) ?: board_step(board, 1, &e, hear, NULL);
	if (rc < 0)
		return rc;
	rc = keep_board(&bare);
	if (rc)
		return rc;
	rc = ring_await(self->c.ring, &ticket, &status, &res, sizeof(res), NULL, 20000000000);
	return rc ?: status ?: (int)res.code;
}

static int send_calls(struct client *c, uint64_t stream, const struct sv_coll_call *call, uint32_t n)
{
	struct sv_coll a = { .ctx = c->ctx, .stream = stream, .comm = COMM, .calls = n };

	return ring_submit(c->ring, SV_OP_X_COLL, &a, sizeof(a), call, n * sizeof(*call));
}

static int fill(struct client *c, uint64_t stream, uint64_t at)
{
	return SEND(c, SV_OP_cuMemsetD32Async, (struct sv_cuMemsetD32Async){
			.ctx = c->ctx, .dstDevice = at, .N = 64, .hStream = stream, .ui = 7 });
}

/*
 * Records that are posted: a collective, a group of which a send lies in a buffer, and a small send that has ended. Behind
 * the first: a recording of an event, a wait for it, another recording, and a synchronisation that stays open.
 */
static int post_all(FIXTURE_DATA(restore) *self, struct ring_ticket *open)
{
	struct client *c = &self->c;
	uint64_t s[3], e = new_event(c), d = self->dev;
	struct sv_coll_call all = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = 64,
				    .send = d, .recv = d + GRANULE };
	struct sv_coll_call group[2] = {
		{ .kind = STEP_SEND, .type = TREE_F32, .peer = 1, .count = 16, .send = d },
		{ .kind = STEP_RECV, .type = TREE_F32, .peer = 1, .count = 16, .recv = d + 4096 },
	};
	struct sv_sync_on sync;

	for (int i = 0; i < 3; i++)
		s[i] = new_stream(c, CU_STREAM_NON_BLOCKING);
	sync = (struct sv_sync_on){ c->ctx, s[0] };
	return fill(c, s[0], d) ?:
		send_calls(c, s[1], group, 1) ?:
		send_calls(c, s[0], &all, 1) ?:
		fill(c, s[0], d) ?:
		SEND(c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ c->ctx, e, s[0] }) ?:
		SEND(c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
			.ctx = c->ctx, .hStream = s[1], .hEvent = e }) ?:
		SEND(c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ c->ctx, e, s[2] }) ?:
		SEND(c, SV_OP_cuStreamWaitEvent, (struct sv_cuStreamWaitEvent){
			.ctx = c->ctx, .hStream = s[1], .hEvent = e }) ?:
		fill(c, s[1], d) ?:
		send_calls(c, s[2], group, 2) ?:
		ring_request(c->ring, open, SV_OP_cuStreamSynchronize, &sync, sizeof(sync), NULL, 0);
}

static int save_cut(FIXTURE_DATA(restore) *self)
{
	struct ctl_freeze f = { .idle_ms = 20 * SECOND, .cut = 12345, .seats = { 1 } };
	struct ctl_frozen r;
	int rc = conduct(self);

	rc = rc ?: ask_info(self, &self->saved.info);
	rc = rc ?: ask(self, CTL_FREEZE, &f, sizeof(f), &r, sizeof(r), NULL);
	rc = rc ?: ask_store(self, CTL_DUMP, self->store, &self->saved.device);
	return rc ?: ask_store(self, CTL_CHANNEL, self->store, &self->saved.channel);
}

/* ------------------------------------------------------------------------------ objects of the store */

static struct store *open_store(FIXTURE_DATA(restore) *self)
{
	struct store *st = NULL;
	struct why why = { 0 };

	return store_open(&st, self->store, STORE_RW, &why) ? NULL : st;
}

static uint8_t *read_whole(struct store *st, const struct ctl_ref *from, size_t *len)
{
	struct store_reader *r;
	struct store_ref ref;
	uint8_t *p = NULL;

	memcpy(&ref, from, sizeof(ref));
	if (store_object_open(st, &ref, &r))
		return NULL;
	*len = store_size(r);
	p = calloc(1, *len + 8);
	if (store_read(r, 0, p, *len) != (ssize_t)*len)
		abort();
	store_reader_close(r);
	return p;
}

static int write_whole(struct store *st, const void *p, size_t len, struct ctl_ref *to)
{
	struct store_writer *w;
	struct store_object *o;
	struct store_ref ref;
	int rc = store_writer_open(st, 0, &w);

	rc = rc ?: store_object_begin(w, &o);
	rc = rc ?: store_object_write(o, 0, p, len);
	rc = rc ?: store_object_end(o, len, &ref);
	rc = rc ?: store_writer_flush(w);
	memcpy(to, &ref, sizeof(ref));
	store_writer_close(w);
	return rc;
}

/* Has the proxy answered, or does it so within these milliseconds? What it says of its progress is no answer. */
static bool has_answered(FIXTURE_DATA(restore) *self, int ms)
{
	struct pollfd p = { .fd = self->conn, .events = POLLIN };
	struct ctl_head h;

	for (int i = 0; i < ms; i++) {
		if (poll(&p, 1, 1) < 1)
			continue;
		if (recv(p.fd, &h, sizeof(h), MSG_PEEK) != sizeof(h) || h.op != CTL_PROGRESS)
			return true;
		recv(p.fd, &h, sizeof(h), 0);
	}
	return false;
}

static struct restoring {
	struct ctl_restore good;
	uint8_t *image;
	size_t len;
} from;

/* A restore with these communicators: its answer; -1000: the proxy did not end as one that is told to. */
static int restores(FIXTURE_DATA(restore) *self, const struct ctl_ref *comms, char *why)
{
	struct ctl_restore r = from.good;
	struct ctl_restored to = { 0 };
	int rc = new_board() ?: board_load(board, from.image, from.len, NULL), status;

	if (rc)
		return -2000;
	restorer_more = seat_args();
	rc = start_restorer(self);
	r.comms = *comms;
	if (!rc)
		rc = ctl_call(self->conn, (r.h.op = CTL_RESTORE, r.h.size = sizeof(r), &r.h), &to.r, sizeof(to), NULL,
			      NULL, NULL, LONG_MS);
	snprintf(why, 512, "%s", to.r.why);
	close(self->conn);
	self->conn = -1;
	status = client_wait(&self->c);
	self->c.proxy = 0;
	return status == 2 ? rc : -1000;
}

/* What the session has is saved into `from`, and its proxy has ended. */
static void save_and_end(FIXTURE_DATA(restore) *self, struct __test_metadata *_metadata)
{
	struct store *st;

	ASSERT_EQ(save_cut(self), 0);
	end_proxy(self);
	unlink(stat_path);
	st = open_store(self);
	ASSERT_NE(st, NULL);
	from.image = read_whole(st, &self->saved.device.board, &from.len);
	store_close(st);
	ASSERT_NE(from.image, NULL);
	fill_restore(self, &from.good);
	from.good.comms = self->saved.device.comms;
}

static void dumped(FIXTURE_DATA(restore) *self, struct __test_metadata *_metadata)
{
	struct ring_ticket open;

	ASSERT_EQ(start_with_board(self), 0);
	ASSERT_EQ(communicate(self, 0), 0);
	ASSERT_EQ(post_all(self, &open), 0);
	save_and_end(self, _metadata);
}

TEST_F(restore, saved_communicators_with_each_word_changed)
{
	static const uint32_t by[] = { 1, 0x80, 0x10000, 0x80000000u };
	unsigned int refused = 0, harmless = 0;
	struct ctl_ref ref;
	struct store *st;
	uint8_t *p;
	char why[512];
	size_t len;
	int rc;

	dumped(self, _metadata);
	EXPECT_EQ(restores(self, &from.good.comms, why), 0)
		TH_LOG("%s", why);
	st = open_store(self);
	p = read_whole(st, &from.good.comms, &len);
	ASSERT_NE(p, NULL);
	/* fuzz-comms changes every word; here proxies are started, so behind the head it is every third. */
	for (size_t at = 0; at < len; at += at < 4096 ? 4 : 12) {
		uint32_t was, is;

		if (at == 64)		/* numbers of slots, which are alike */
			at = 4096;
		memcpy(&was, p + at, 4);
		for (unsigned int i = 0; i < 4; i++) {
			if (at >= 32 && i != at / 4 % 4)
				continue;
			is = was ^ by[i];
			memcpy(p + at, &is, 4);
			ASSERT_EQ(write_whole(st, p, len, &ref), 0);
			rc = restores(self, &ref, why);
			EXPECT_GT(rc, -1000)
				TH_LOG("%08x at %zu instead of %08x: %d %s", is, at, was, rc, why);
			if (rc)
				EXPECT_NE(*why, 0)
					TH_LOG("%08x at %zu: %d without a reason", is, at, rc);
			refused += !!rc;
			harmless += !rc;
		}
		memcpy(p + at, &was, 4);
	}
	TH_LOG("%u were refused, %u did no harm", refused, harmless);
	EXPECT_GT(refused, 50);
	/* and cut short */
	for (size_t n = len; n -= n > 4300 ? 40 : n / 2 + 1;) {
		ASSERT_EQ(write_whole(st, p, n, &ref), 0);
		rc = restores(self, &ref, why);
		EXPECT_EQ(rc, -EBADMSG)
			TH_LOG("%zu of %zu bytes: %d %s", n, len, rc, why);
		EXPECT_NE(strstr(why, "damaged"), NULL);
	}
	free(p);
	store_close(st);
}

/* What the transport would later read, or write: as save.c lays it out, with 8-byte words. */
TEST_F(restore, calls_that_no_client_could_have_made)
{
	enum { HEAD = 32 + 8 * 512, COMM_BYTES = 88, POSTED = 56, CALL = 56, BUFFER = 64 };
	enum { SENT = HEAD + COMM_BYTES + POSTED, SUMMED = SENT + CALL + BUFFER + POSTED };
	const struct {
		size_t at, size;
		uint64_t value;
	} lies[] = {
		{ SENT + 8, 8, 1 << 18 },	/* more than its buffer has */
		{ SENT + 8, 8, 1ull << 62 },	/* in bytes it wraps */
		{ SENT + 2, 1, 0xff },		/* operator */
		{ SENT + 4, 4, RANKS },		/* peer */
		{ SENT + 40, 8, 256 },		/* scale */
		{ SENT + 0, 1, STEP_ALLREDUCE },	/* of which nothing is in buffers */
		{ SUMMED + 8, 8, 1ull << 40 },	/* beyond its memory */
		{ SUMMED + 16, 8, 4096 },	/* not the client's memory */
		{ SUMMED + 24, 8, 4096 },
		{ SUMMED + 40, 8, 1 },		/* a factor without the operator */
	};
	struct ctl_ref ref;
	struct store *st;
	char why[512];
	uint8_t *p;
	size_t len;

	dumped(self, _metadata);
	st = open_store(self);
	p = read_whole(st, &from.good.comms, &len);
	ASSERT_NE(p, NULL);
	ASSERT_GT(len, SUMMED + CALL);
	ASSERT_EQ(p[SENT], STEP_SEND);
	ASSERT_EQ(p[SUMMED], STEP_ALLREDUCE);
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		uint8_t was[8];
		int rc;

		memcpy(was, p + lies[i].at, 8);
		memcpy(p + lies[i].at, &lies[i].value, lies[i].size);
		ASSERT_EQ(write_whole(st, p, len, &ref), 0);
		memcpy(p + lies[i].at, was, 8);
		rc = restores(self, &ref, why);
		EXPECT_EQ(rc, -EBADMSG)
			TH_LOG("lie %zu: %d %s", i, rc, why);
		EXPECT_NE(strstr(why, "damaged"), NULL);
	}
	free(p);
	store_close(st);
}

TEST_F(restore, a_seat_that_is_not_the_saved_one)
{
	uint32_t *h;		/* of saved.h: magic number, version, seat */
	struct ctl_ref ref;
	struct store *st;
	char why[512];
	size_t len;

	dumped(self, _metadata);
	/* which the job's table has elsewhere, or not at all */
	place = &(struct board_place){ .rank = 3, .physical = { 1 } };
	EXPECT_EQ(restores(self, &from.good.comms, why), -EXDEV);
	EXPECT_NE(strstr(why, "the table of seating does not have device 0 of rank 3 on device 0 of this host"), NULL)
		TH_LOG("%s", why);
	place = NULL;
	EXPECT_EQ(restores(self, &from.good.comms, why), -ENOENT);
	EXPECT_NE(strstr(why, "the table of seating has none for this proxy"), NULL)
		TH_LOG("%s", why);
	place = &here;
	st = open_store(self);
	h = (void *)read_whole(st, &from.good.comms, &len);
	ASSERT_NE(h, NULL);
	ASSERT_EQ(h[2], 0);
	h[2] = 1;
	ASSERT_EQ(write_whole(st, h, len, &ref), 0);
	EXPECT_EQ(restores(self, &ref, why), -EINVAL);
	EXPECT_NE(strstr(why, "its seat among the job's proxies is 0, and was 1"), NULL)
		TH_LOG("%s", why);
	free(h);
	store_close(st);
	/* of a board that nobody has entered */
	from.len = sizeof(struct image_head);
	*(struct image_head *)from.image = (struct image_head){ .magic = IMAGE_MAGIC, .version = IMAGE_VERSION,
								.size = from.len };
	EXPECT_LT(restores(self, &from.good.comms, why), 0);
	EXPECT_NE(strstr(why, "board"), NULL)
		TH_LOG("%s", why);
}

/* Each is right by itself, and they contradict each other. */
TEST_F(restore, a_board_that_contradicts_its_session)
{
	struct image_record *record;
	struct image_head *h;
	struct image_comm *comm;
	struct image_member *member;
	struct image_part *part;
	char why[512];

	dumped(self, _metadata);
	h = (void *)from.image;
	ASSERT_GT(h->records, 0);
	record = (void *)(from.image + from.len - h->records * sizeof(*record));
	part = (struct image_part *)record - h->parts;
	comm = (void *)((char *)(h + 1) + h->proxies * sizeof(struct image_proxy) +
			h->devices * sizeof(struct image_device));
	member = (void *)(comm + h->comms);
	EXPECT_EQ(restores(self, &from.good.comms, why), 0);
	/* Another record than the one that the session has. */
	for (uint32_t i = 0; i < h->parts; i++)
		if (part[i].cookie == record->cookie)
			part[i].cookie += 1 << 16;
	record->cookie += 1 << 16;
	EXPECT_EQ(restores(self, &from.good.comms, why), -EBADMSG);
	EXPECT_NE(strstr(why, "damaged: records that the board has otherwise"), NULL)
		TH_LOG("%s", why);
	for (uint32_t i = 0; i < h->parts; i++)
		if (part[i].cookie == record->cookie)
			part[i].cookie -= 1 << 16;
	record->cookie -= 1 << 16;
	EXPECT_EQ(restores(self, &from.good.comms, why), 0);
	/* Another communicator at the place of ours. */
	comm->key ^= 1;
	EXPECT_EQ(restores(self, &from.good.comms, why), -EBADMSG);
	EXPECT_NE(strstr(why, "damaged: a communicator that the board has not"), NULL)
		TH_LOG("%s", why);
	comm->key ^= 1;
	EXPECT_EQ(member->joined, 0);
	/* Boards of before: without what the session has posted, and without a rank that it knows. */
	from.image = bare.image;
	from.len = bare.len;
	EXPECT_EQ(restores(self, &from.good.comms, why), -EBADMSG);
	EXPECT_NE(strstr(why, "damaged: records that the board has otherwise"), NULL)
		TH_LOG("%s", why);
	from.image = forming.image;
	from.len = forming.len;
	EXPECT_EQ(restores(self, &from.good.comms, why), -EBADMSG);
	EXPECT_NE(strstr(why, "damaged: a communicator that the board has not"), NULL)
		TH_LOG("%s", why);
	from.image = (void *)h;
}

/* The same, of a session with two communicators, and a board on which one of their operations has started. */
TEST_F(restore, records_of_another_communicator_or_of_what_has_started)
{
	struct step_call same = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = 64 };
	struct step_event e = { .kind = STEP_POST, .cookie = 1, .ncalls = 1, .calls = &same };
	struct saved_board started = { 0 };
	struct image_record *record;
	struct image_part *part;
	struct ring_ticket open;
	struct saved_posted *p[3];
	struct saved_head *h;
	struct image_head *ih;
	struct ctl_ref ref;
	struct store *st;
	char why[512];
	size_t len;

	ASSERT_EQ(start_with_board(self), 0);
	ASSERT_EQ(communicate(self, 0), 0);
	e.member = member;
	ASSERT_EQ(communicate(self, 1), 0);
	ASSERT_EQ(post_all(self, &open), 0);
	save_and_end(self, _metadata);
	st = open_store(self);
	ASSERT_NE(st, NULL);
	EXPECT_EQ(restores(self, &from.good.comms, why), 0);
	h = (void *)read_whole(st, &from.good.comms, &len);
	ASSERT_NE(h, NULL);
	ASSERT_EQ(h->comms, 2);
	ASSERT_EQ(h->posted, 3);
	p[0] = (void *)((struct saved_comm *)(h + 1) + 2);
	for (int i = 0; i < 2; i++) {
		struct saved_call *call = (void *)(p[i] + 1);
		uint64_t sent = 0;

		for (uint32_t k = 0; k < p[i]->calls; k++)
			sent += (call[k].buffer + 7) & ~7ull;
		p[i + 1] = (void *)((char *)(call + p[i]->calls) + sent);
	}
	/* Posted to the other one. */
	p[1]->comm = !p[1]->comm;
	ASSERT_EQ(write_whole(st, h, len, &ref), 0);
	EXPECT_EQ(restores(self, &ref, why), -EBADMSG);
	EXPECT_NE(strstr(why, "damaged: records that the board has otherwise"), NULL)
		TH_LOG("%s", why);
	p[1]->comm = !p[1]->comm;
	/* The second rank posts, and both start: later than the session was saved. */
	ASSERT_EQ(new_board(), 0);
	ASSERT_EQ(board_load(board, from.image, from.len, NULL), 0);
	ASSERT_EQ(board_return(board, 0, "", 0), 0);
	ASSERT_EQ(board_return(board, 1, "", 0), 0);
	ASSERT_GE(board_step(board, 1, &e, hear, NULL), 0);
	ASSERT_EQ(board_mail(board, 0, hear, NULL), 0);
	ASSERT_EQ(keep_board(&started), 0);
	free(from.image);
	from.image = started.image;
	from.len = started.len;
	EXPECT_EQ(restores(self, &from.good.comms, why), -EBADMSG);
	EXPECT_NE(strstr(why, "damaged: records that the board has otherwise"), NULL)
		TH_LOG("%s", why);
	/* As if it had been the send that has ended in the session. */
	ih = (void *)from.image;
	record = (void *)(from.image + from.len - ih->records * sizeof(*record));
	part = (struct image_part *)record - ih->parts;
	{
		uint64_t was = p[1]->number << 16 | p[1]->slot, is = p[0]->number << 16 | p[0]->slot;

		for (uint32_t i = 0; i < ih->parts; i++)
			if (part[i].cookie == was)
				part[i].cookie = is;
		for (uint32_t i = 0; i < ih->records; i++)
			if (record[i].cookie == was)
				record[i].cookie = is;
	}
	EXPECT_EQ(restores(self, &from.good.comms, why), -EBADMSG);
	EXPECT_NE(strstr(why, "damaged: records that the board has otherwise"), NULL)
		TH_LOG("%s", why);
	free(h);
	store_close(st);
}

static struct uproxy_while waits(void)
{
	int fd = open(stat_path, O_RDONLY | O_CLOEXEC);
	struct uproxy_stat s = { 0 };

	if (pread(fd, &s, sizeof(s), 0) != sizeof(s))
		s.coll_waits.ns = UINT64_MAX;
	close(fd);
	return s.coll_waits;
}

/*
 * Communicators that never were: of too many ranks, and of a program that was started without a board. Calls to them are
 * refused: their stream stands, and goes on with what is parked in it when the communicator is ended.
 */
TEST_F(restore, calls_to_a_communicator_that_never_was_are_refused)
{
	static const uint32_t ranks[] = { 2000, 1 };
	struct client *c = &self->c;
	struct sv_coll_call call = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = 64,
				     .send = self->dev, .recv = self->dev };
	struct sv_sync_on on = { c->ctx, new_stream(c, CU_STREAM_NON_BLOCKING) };
	struct ring_ticket t;

	for (int i = 0; i < 2; i++) {
		struct sv_comm_new a = { .ctx = c->ctx, .comm = COMM, .ranks = ranks[i], .word = self->pin + MiB / 2,
					 .id = { 1 } };
		struct sv_comm_end end = { .comm = COMM, .flags = SV_COMM_ABORT };
		struct sv_comm_result res = { 0 };
		int32_t status = -1;

		memset(c->arena + a.word, 0, sizeof(struct sv_comm_word));
		ASSERT_EQ(ring_request(c->ring, &t, SV_OP_X_COMM_NEW, &a, sizeof(a), NULL, 0), 0);
		ASSERT_EQ(ring_await(c->ring, &t, &status, &res, sizeof(res), NULL, 20000000000), 0);
		EXPECT_EQ(status, 0);
		EXPECT_EQ(res.code, STEP_SYSTEM);
		ASSERT_EQ(send_calls(c, on.on, &call, 1), 0);
		ASSERT_EQ(fill(c, on.on, self->dev), 0);
		ASSERT_EQ(CALL(c, SV_OP_cuStreamSynchronize, on), CUDA_ERROR_EXTERNAL_DEVICE);
		ASSERT_EQ(CALL(c, SV_OP_X_COMM_END, end), 0);
		ASSERT_EQ(ring_request(c->ring, &t, SV_OP_cuStreamSynchronize, &on, sizeof(on), NULL, 0), 0);
		ASSERT_EQ(ring_await(c->ring, &t, &status, NULL, 0, NULL, 20000000000), 0);
		EXPECT_EQ(status, 0);
	}
}

TEST_F(restore, no_rank_waits_while_it_is_frozen)
{
	struct uproxy_while before = { 0 }, at, after;
	struct ctl_frozen alone;
	struct ring_ticket open;

	ASSERT_EQ(start_with_board(self), 0);
	ASSERT_EQ(communicate(self, 0), 0);
	/* By itself it is not saved: the others would go on. */
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask_freeze(self, 20 * SECOND, &alone), -ENOTSUP);
	EXPECT_NE(strstr(alone.r.why, "all ranks of a job are saved together"), NULL)
		TH_LOG("%s", alone.r.why);
	close(self->conn);
	self->conn = -1;
	ASSERT_EQ(post_all(self, &open), 0);
	for (int i = 0; i < 20000 && !before.since; i++) {
		usleep(1000);
		before = waits();
	}
	EXPECT_NE(before.since, 0);
	ASSERT_EQ(save_cut(self), 0);
	at = waits();
	EXPECT_EQ(at.since, 0);
	EXPECT_GT(at.ns, before.ns);
	usleep(50000);
	ASSERT_EQ(ask_thaw(self), 0);
	after = waits();
	EXPECT_EQ(after.ns, at.ns);
	EXPECT_GT(after.since, before.since);
	end_proxy(self);
	unlink(stat_path);
}

/* A wait behind a failed operation has its answer: it is not open, so the session can be saved when that has been aborted. */
TEST_F(restore, a_wait_that_has_failed_does_not_stay_open)
{
	struct step_call other = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = 63 };
	struct step_event e = { .kind = STEP_POST, .cookie = 1, .ncalls = 1, .calls = &other };
	struct client *c = &self->c;
	struct sv_coll_call call = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = 64 };
	struct sv_sync_on sync;
	struct ring_ticket open;
	int32_t status = -1;

	ASSERT_EQ(start_with_board(self), 0);
	ASSERT_EQ(communicate(self, 0), 0);
	sync = (struct sv_sync_on){ c->ctx, new_stream(c, CU_STREAM_NON_BLOCKING) };
	call.send = call.recv = self->dev;
	ASSERT_EQ(send_calls(c, sync.on, &call, 1), 0);
	ASSERT_EQ(ring_request(c->ring, &open, SV_OP_cuStreamSynchronize, &sync, sizeof(sync), NULL, 0), 0);
	ASSERT_EQ(CALL(c, SV_OP_cuStreamQuery, sync), CUDA_ERROR_NOT_READY);
	e.member = member;
	ASSERT_GE(board_step(board, 1, &e, hear, NULL), 0);
	ASSERT_EQ(ring_await(c->ring, &open, &status, NULL, 0, NULL, 20000000000), 0);
	EXPECT_EQ(status, CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(CALL(c, SV_OP_X_COMM_END, (struct sv_comm_end){ .comm = COMM, .flags = SV_COMM_ABORT }), 0);
	EXPECT_EQ(save_cut(self), 0);
	end_proxy(self);
	unlink(stat_path);
}

/* A wait in the driver that its failure has answered is not answered again when its stream goes on. */
TEST_F(restore, a_wait_that_has_failed_is_answered_once)
{
	struct step_call same = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = 64 };
	struct step_event e = { .kind = STEP_POST, .cookie = 1, .ncalls = 1, .calls = &same };
	struct sv_coll_call call = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = 64 };
	struct client *c = &self->c;
	struct sv_sync_on sync;
	uint64_t gate;
	struct ring_ticket open;
	int32_t status = -1;

	ASSERT_EQ(start_with_board(self), 0);
	ASSERT_EQ(communicate(self, 0), 0);
	gate = self->pin + 4096;
	*(volatile uint64_t *)(c->arena + gate) = 0;
	sync = (struct sv_sync_on){ c->ctx, new_stream(c, CU_STREAM_NON_BLOCKING) };
	ASSERT_EQ(SEND(c, SV_OP_cuStreamWaitValue64_v2, (struct sv_cuStreamWaitValue64_v2){
			.ctx = c->ctx, .stream = sync.on, .addr = address(c, gate), .value = 1,
			.flags = CU_STREAM_WAIT_VALUE_GEQ }), 0);
	e.member = member;
	order = 0;
	ASSERT_GE(board_step(board, 1, &e, hear, NULL), 0);
	call.send = call.recv = self->dev;
	ASSERT_EQ(send_calls(c, sync.on, &call, 1), 0);
	ASSERT_EQ(ring_request(c->ring, &open, SV_OP_cuStreamSynchronize, &sync, sizeof(sync), NULL, 0), 0);
	ASSERT_EQ(CALL(c, SV_OP_cuStreamQuery, sync), CUDA_ERROR_NOT_READY);
	ASSERT_EQ(board_mail(board, 1, hear, NULL), 0);
	ASSERT_NE(order, 0);
	e = (struct step_event){ .kind = STEP_DONE, .device = board_device(1), .order = order, .code = STEP_REMOTE };
	ASSERT_GE(board_step(board, 1, &e, hear, NULL), 0);
	ASSERT_EQ(ring_await(c->ring, &open, &status, NULL, 0, NULL, 20000000000), 0);
	EXPECT_EQ(status, CUDA_ERROR_EXTERNAL_DEVICE);
	*(volatile uint64_t *)(c->arena + gate) = 1;
	ASSERT_EQ(CALL(c, SV_OP_X_COMM_END, (struct sv_comm_end){ .comm = COMM, .flags = SV_COMM_ABORT }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, sync), 0);
	EXPECT_EQ(save_cut(self), 0);
	end_proxy(self);
	unlink(stat_path);
}

/* One that has nothing left to do waits longer for another than it may wait for its own device, until it goes on. */
TEST_F(restore, a_session_that_is_done_waits_for_others)
{
	struct ctl_freeze f = { .h = { .op = CTL_FREEZE, .size = sizeof(f) }, .idle_ms = 20, .cut = 12345, .seats = { 3 } };
	struct ctl_frozen r;
	bool all = true;

	ASSERT_EQ(start_with_board(self), 0);
	ASSERT_EQ(communicate(self, 0), 0);
	/* It has gone on since, with its conductor: it waits at that cut no more. */
	ASSERT_EQ(conduct(self), 0);
	ASSERT_EQ(ctl_send(self->conn, &f.h), 0);
	EXPECT_FALSE(has_answered(self, 100));
	close(self->conn);
	ASSERT_EQ(ctx_sync(&self->c), 0);
	EXPECT_EQ(board_mail(board, 1, hear, NULL), 0);
	EXPECT_EQ(board_cut(board, 1, f.cut, f.seats, &all), 0);
	EXPECT_FALSE(all);
	board_cut_ends(board, 1);
	f.cut++;
	ASSERT_EQ(conduct(self), 0);
	ASSERT_EQ(ctl_send(self->conn, &f.h), 0);
	EXPECT_FALSE(has_answered(self, 200));
	EXPECT_EQ(board_mail(board, 1, hear, NULL), 0);
	EXPECT_EQ(board_cut(board, 1, f.cut, f.seats, &all), 0);
	EXPECT_TRUE(all);
	EXPECT_EQ(take_answer(self, CTL_FREEZE, &r.r, sizeof(r), LONG_MS), 0)
		TH_LOG("%s", r.r.why);
	EXPECT_EQ(ask_thaw(self), 0);
	board_cut(board, 1, f.cut, f.seats, &all);
	EXPECT_FALSE(all);
	end_proxy(self);
	unlink(stat_path);
}

/* What is sent from a buffer is under way though its stream has gone on: a cut waits for it. */
TEST_F(restore, a_cut_waits_for_what_is_sent_from_a_buffer)
{
	struct step_call recv = { .kind = STEP_RECV, .type = TREE_F32, .peer = 0, .count = MiB / 4 };
	struct step_event e = { .kind = STEP_POST, .cookie = 1, .ncalls = 1, .calls = &recv };
	struct sv_coll_call send = { .kind = STEP_SEND, .type = TREE_F32, .peer = 1, .count = MiB / 4 };
	struct ctl_freeze f = { .h = { .op = CTL_FREEZE, .size = sizeof(f) }, .idle_ms = 20 * SECOND, .cut = 12345,
				.seats = { 1 } };
	struct client *c = &self->c;
	int fd = listen_elsewhere();
	struct sv_sync_on sync;
	struct ctl_frozen r;

	ASSERT_GE(fd, 0);
	ASSERT_EQ(start_with_board(self), 0);
	ASSERT_EQ(communicate(self, 0), 0);
	sync = (struct sv_sync_on){ c->ctx, new_stream(c, CU_STREAM_NON_BLOCKING) };
	send.send = self->dev;
	ASSERT_EQ(send_calls(c, sync.on, &send, 1), 0);
	ASSERT_EQ(CALL(c, SV_OP_cuStreamSynchronize, sync), 0);
	e.member = member;
	order = 0;
	ASSERT_GE(board_step(board, 1, &e, hear, NULL), 0);
	ASSERT_EQ(board_mail(board, 1, hear, NULL), 0);
	ASSERT_NE(order, 0);
	ASSERT_EQ(conduct(self), 0);
	ASSERT_EQ(ctl_send(self->conn, &f.h), 0);
	EXPECT_FALSE(has_answered(self, 100));
	e = (struct step_event){ .kind = STEP_DONE, .device = board_device(1), .order = order, .code = STEP_REMOTE };
	ASSERT_GE(board_step(board, 1, &e, hear, NULL), 0);
	EXPECT_EQ(take_answer(self, CTL_FREEZE, &r.r, sizeof(r), LONG_MS), 0)
		TH_LOG("%s", r.r.why);
	end_proxy(self);
	unlink(stat_path);
	close(fd);
}

/* What the fake NCCL of the proxy has been asked for: so soon. */
static bool has_aborted(int ms)
{
	char line[256];
	bool has = false;

	for (FILE *f; ms-- > 0 && !has; usleep(1000)) {
		f = fopen(getenv("FAKE_NCCL_LOG"), "r");
		while (f && !has && fgets(line, sizeof(line), f))
			has = strstr(line, "ncclCommAbort");
		if (f)
			fclose(f);
	}
	return has;
}

/* The communicator stands, and NCCL's is being created: its rank 1 does not come. */
static int over_nccl(FIXTURE_DATA(restore) *self)
{
	unlink(getenv("FAKE_NCCL_LOG"));
	return start_with_board(self) ?: communicate(self, 0) ?: conduct(self);
}

/* As rank 1 would say it. */
static int note_broken(void)
{
	uint64_t key = 0;
	struct step_looker looker = { .ctx = &key, .comm = see_comm, .op = see_op };

	return board_look(board, &looker) ?: board_note(board, 1, key ^ 1ull << 63, "", 1);
}

#define OVER_NCCL "not over a fake NCCL whose ncclCommAbort hangs: selftests/nccl/test-transport"

/* No cut while NCCL aborts a communicator, which the answer names; none begins while the session is frozen. */
TEST_F(restore, no_cut_while_nccl_ends_a_communicator)
{
	struct ctl_freeze f = { .idle_ms = 200, .cut = 12345, .seats = { 1 } };
	struct ctl_frozen r = { 0 };

	if (!getenv("FAKE_NCCL_FAIL"))
		SKIP(return, OVER_NCCL);
	ASSERT_EQ(over_nccl(self), 0);
	ASSERT_EQ(ask(self, CTL_FREEZE, &f, sizeof(f), &r, sizeof(r), NULL), 0)
		TH_LOG("%s", r.r.why);
	ASSERT_EQ(note_broken(), 0);
	EXPECT_FALSE(has_aborted(1500));
	ASSERT_EQ(ask_thaw(self), 0);
	EXPECT_TRUE(has_aborted(20000));
	EXPECT_EQ(ask(self, CTL_FREEZE, &f, sizeof(f), &r, sizeof(r), NULL), -ETIMEDOUT);
	EXPECT_NE(strstr(r.r.why, "NCCL has not ended a communicator"), NULL)
		TH_LOG("%s", r.r.why);
	end_proxy(self);
	unlink(stat_path);
}

/* A session that waits for another one's cut aborts its communicators: the other one may wait for that. */
TEST_F(restore, who_waits_for_a_cut_ends_communicators)
{
	struct ctl_freeze f = { .h = { .op = CTL_FREEZE, .size = sizeof(f) }, .idle_ms = 200, .cut = 12345, .seats = { 3 } };
	struct ctl_frozen r = { 0 };

	if (!getenv("FAKE_NCCL_FAIL"))
		SKIP(return, OVER_NCCL);
	ASSERT_EQ(over_nccl(self), 0);
	ASSERT_EQ(ctl_send(self->conn, &f.h), 0);
	EXPECT_FALSE(has_answered(self, 300));
	ASSERT_EQ(note_broken(), 0);
	EXPECT_TRUE(has_aborted(20000));
	EXPECT_EQ(take_answer(self, CTL_FREEZE, &r.r, sizeof(r), LONG_MS), -ETIMEDOUT);
	end_proxy(self);
	unlink(stat_path);
}

/*
 * After a restore nobody waits before the session goes on. What was open then is open: a creation, a synchronisation. They
 * are counted, so the session can be saved again; and each gets its answer.
 */
TEST_F(restore, what_is_open_at_a_cut_is_open_after_a_restore)
{
	static const char *more[16];
	struct sv_comm_new a = { .comm = COMM + 1, .ranks = RANKS, .rank = 0, .id = "another id" };
	struct step_event e = { .kind = STEP_JOIN, .proxy = 1, .ranks = RANKS, .rank = 1 };
	struct ctl_go go = { .client_pid = getpid() };
	struct step_looker looker = { .ctx = &e.comm, .comm = see_comm, .op = see_op };
	struct ring_ticket open, creation;
	struct ctl_restored to;
	struct ctl_reply reply;
	struct sv_comm_result res;
	struct client *c = &self->c;
	int32_t status = -1;
	int fd = -1, n = 0;

	ASSERT_EQ(start_with_board(self), 0);
	ASSERT_EQ(communicate(self, 0), 0);
	a.ctx = c->ctx;
	a.word = self->pin + MiB / 2 + 256;
	ASSERT_EQ(ring_request(c->ring, &creation, SV_OP_X_COMM_NEW, &a, sizeof(a), NULL, 0), 0);
	ASSERT_EQ(post_all(self, &open), 0);
	save_and_end(self, _metadata);
	ASSERT_EQ(new_board(), 0);
	ASSERT_EQ(board_load(board, from.image, from.len, NULL), 0);
	ASSERT_EQ(board_return(board, 1, "", 0), 0);
	for (const char *const *arg = seat_args(); arg[n]; n++)
		more[n] = arg[n];
	more[n++] = "--stat";
	more[n] = stat_path;
	restorer_more = more;
	unlink(stat_path);
	ASSERT_EQ(start_restorer(self), 0);
	ASSERT_EQ(ask(self, CTL_RESTORE, &from.good, sizeof(from.good), &to, sizeof(to), &fd), 0);
	EXPECT_EQ(waits().since, 0);
	EXPECT_EQ(waits().ns, 0);
	ASSERT_EQ(map_again(c, fd), 0);
	ASSERT_EQ(ask(self, CTL_GO, &go, sizeof(go), &reply, sizeof(reply), NULL), 0);
	board_returned(board);
	EXPECT_NE(waits().since, 0);
	close(self->conn);
	ASSERT_EQ(save_cut(self), 0);
	ASSERT_EQ(ask_thaw(self), 0);
	ASSERT_EQ(board_look(board, &looker), 0);
	ASSERT_GE(board_step(board, 1, &e, hear, NULL), 0);
	ASSERT_EQ(ring_await(c->ring, &creation, &status, &res, sizeof(res), NULL, 20000000000), 0);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(res.code, 0);
	ASSERT_EQ(CALL(c, SV_OP_X_COMM_END, (struct sv_comm_end){ .comm = COMM, .flags = SV_COMM_ABORT }), 0);
	ASSERT_EQ(ring_await(c->ring, &open, &status, NULL, 0, NULL, 20000000000), 0);
	EXPECT_EQ(status, 0);
	/* Nor are they counted any more. */
	close(self->conn);
	EXPECT_EQ(save_cut(self), 0);
	end_proxy(self);
	unlink(stat_path);
}

/* A rank that has been told that all are quiet has gone on since: the cut begins again, and nothing is wrong with the job. */
TEST_F(restore, a_cut_that_came_too_late_is_made_again)
{
	struct step_call call = { .kind = STEP_RECV, .type = TREE_F32, .peer = 0, .count = 16 };
	struct step_event e = { .kind = STEP_POST, .cookie = 1, .ncalls = 1, .calls = &call };
	struct ctl_freeze f = { .idle_ms = 20 * SECOND, .cut = 12345, .seats = { 3 } };
	struct ctl_frozen r;
	uint64_t seats[BOARD_SEATS / 64] = { 2 };
	bool all = false;

	ASSERT_EQ(start_with_board(self), 0);
	ASSERT_EQ(communicate(self, 0), 0);
	EXPECT_EQ(board_mail(board, 1, hear, NULL), 0);
	EXPECT_EQ(board_cut(board, 1, f.cut, seats, &all), 0);
	EXPECT_TRUE(all);
	e.member = member;
	ASSERT_GE(board_step(board, 1, &e, hear, NULL), 0);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask(self, CTL_FREEZE, &f, sizeof(f), &r, sizeof(r), NULL), -ERESTART);
	end_proxy(self);
	unlink(stat_path);
}

static int coll(struct client *c, uint64_t comm, uint64_t stream, const struct sv_coll_call *call, uint32_t n)
{
	struct sv_coll a = { .ctx = c->ctx, .stream = stream, .comm = comm, .calls = n };

	return ring_submit(c->ring, SV_OP_X_COLL, &a, sizeof(a), call, n * sizeof(*call));
}

static int sync_soon(struct client *c, uint64_t stream)
{
	struct sv_sync_on on = { c->ctx, stream };
	struct ring_ticket t;
	int32_t status = -1;
	int rc = ring_request(c->ring, &t, SV_OP_cuStreamSynchronize, &on, sizeof(on), NULL, 0);

	return rc ?: ring_await(c->ring, &t, &status, NULL, 0, NULL, 10000000000) ?: status;
}

/* A communicator that waits for nobody else: of this rank alone, or of too many. */
static int create(FIXTURE_DATA(restore) *self, int i, uint32_t ranks)
{
	struct sv_comm_new a = { .ctx = self->c.ctx, .comm = COMM + i, .ranks = ranks,
				 .word = self->pin + MiB / 2 + i * 1024, .id = { 100 + i } };
	struct sv_comm_result res = { .code = -1 };
	struct ring_ticket t;
	int32_t status = -1;
	int rc = ring_request(self->c.ring, &t, SV_OP_X_COMM_NEW, &a, sizeof(a), NULL, 0);

	return rc ?: ring_await(self->c.ring, &t, &status, &res, sizeof(res), NULL, 20000000000) ?: status ?: (int)res.code;
}

static int end_comm(struct client *c, int i)
{
	return CALL(c, SV_OP_X_COMM_END, (struct sv_comm_end){ .comm = COMM + i, .flags = SV_COMM_ABORT });
}

/* Frozen at a cut, at which streams pass their groups, and thawed. */
static int pause_at_cut(FIXTURE_DATA(restore) *self)
{
	struct ctl_freeze f = { .idle_ms = 20 * SECOND, .cut = 12345, .seats = { 1 } };
	struct ctl_frozen r;
	int rc = conduct(self) ?: ask(self, CTL_FREEZE, &f, sizeof(f), &r, sizeof(r), NULL) ?: ask_thaw(self);

	close(self->conn);
	self->conn = -1;
	return rc;
}

/*
 * An operation ends with an error in a thread of the transport, while the consumer sleeps: who waits for it hears of that. So
 * it is though a group before it in the stream has ended when the stream had passed it for a cut.
 */
TEST_F(restore, a_failure_in_the_transport_ends_waits)
{
	struct step_call same = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = MiB / 4 };
	struct step_event e = { .kind = STEP_POST, .cookie = 1, .ncalls = 1, .calls = &same };
	struct sv_coll_call call = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = MiB / 4 };
	struct sv_coll_call group[2] = {
		{ .kind = STEP_SEND, .type = TREE_F32, .peer = 1, .count = 16 },
		{ .kind = STEP_RECV, .type = TREE_F32, .peer = 1, .count = 16 },
	};
	struct client *c = &self->c;
	int fd = listen_elsewhere();
	struct ring_ticket open;
	struct sv_sync_on sync;
	int32_t status = -1;

	ASSERT_GE(fd, 0);
	ASSERT_EQ(start_with_board(self), 0);
	ASSERT_EQ(communicate(self, 0), 0);
	ASSERT_EQ(communicate(self, 1), 0);
	sync = (struct sv_sync_on){ c->ctx, new_stream(c, CU_STREAM_NON_BLOCKING) };
	group[0].send = group[1].recv = self->dev;
	ASSERT_EQ(coll(c, COMM, sync.on, group, 2), 0);
	ASSERT_EQ(pause_at_cut(self), 0);
	ASSERT_EQ(end_comm(c, 0), 0);
	e.member = member;
	order = 0;
	ASSERT_GE(board_step(board, 1, &e, hear, NULL), 0);
	call.send = call.recv = self->dev;
	ASSERT_EQ(coll(c, COMM + 1, sync.on, &call, 1), 0);
	ASSERT_EQ(ring_request(c->ring, &open, SV_OP_cuStreamSynchronize, &sync, sizeof(sync), NULL, 0), 0);
	ASSERT_EQ(CALL(c, SV_OP_cuStreamQuery, sync), CUDA_ERROR_NOT_READY);
	ASSERT_EQ(board_mail(board, 1, hear, NULL), 0);
	ASSERT_NE(order, 0);
	usleep(50000);		/* so that it is under way; it is right, too, if it is not */
	e = (struct step_event){ .kind = STEP_DONE, .device = board_device(1), .order = order, .code = STEP_REMOTE };
	ASSERT_GE(board_step(board, 1, &e, hear, NULL), 0);
	ASSERT_EQ(ring_await(c->ring, &open, &status, NULL, 0, NULL, 10000000000), 0);
	EXPECT_EQ(status, CUDA_ERROR_EXTERNAL_DEVICE);
	end_proxy(self);
	unlink(stat_path);
	close(fd);
}

/*
 * A group that a stream has passed for a cut is in the stream no longer, and is once more when its next call starts: of what
 * it was then nothing is left. Else failures that come later are taken for others'.
 */
TEST_F(restore, a_group_that_steps_aside_ends_once)
{
	enum { STREAMS = 8 };	/* as many as there are chains */
	struct client *c = &self->c;
	uint64_t d = self->dev, s[STREAMS], one, other;
	struct sv_coll_call group[3] = {
		{ .kind = STEP_SEND, .type = TREE_F32, .peer = 1, .count = 16, .send = d },
		{ .kind = STEP_RECV, .type = TREE_F32, .peer = 0, .count = 16, .recv = d + 4096 },
		{ .kind = STEP_RECV, .type = TREE_F32, .peer = 1, .count = 16, .recv = d + 8192 },
	};
	struct sv_coll_call to_self = { .kind = STEP_SEND, .type = TREE_F32, .peer = 0, .count = 16, .send = d };
	struct sv_coll_call good = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = 16,
				     .send = d, .recv = d + GRANULE };
	struct sv_coll_call beyond = good;

	beyond.count = 1ull << 30;
	ASSERT_EQ(start_with_board(self), 0);
	ASSERT_EQ(communicate(self, 0), 0);
	for (int i = 2; i < 4; i++)
		ASSERT_EQ(create(self, i, 1), 0);
	one = new_stream(c, CU_STREAM_NON_BLOCKING);
	other = new_stream(c, CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < STREAMS; i++) {
		s[i] = new_stream(c, CU_STREAM_NON_BLOCKING);
		ASSERT_EQ(coll(c, COMM, s[i], group, 3), 0);
	}
	ASSERT_EQ(pause_at_cut(self), 0);
	for (int i = 0; i < STREAMS; i++)
		ASSERT_EQ(coll(c, COMM, other, &to_self, 1), 0);
	ASSERT_EQ(sync_soon(c, other), 0);
	ASSERT_EQ(end_comm(c, 0), 0);
	ASSERT_EQ(ctx_sync(c), 0);
	ASSERT_EQ(coll(c, COMM + 2, one, &beyond, 1), 0);
	ASSERT_EQ(sync_soon(c, one), CUDA_ERROR_EXTERNAL_DEVICE);
	for (int i = 0; i < STREAMS; i++) {
		s[i] = new_stream(c, CU_STREAM_NON_BLOCKING);
		ASSERT_EQ(coll(c, COMM + 3, s[i], &good, 1), 0);
		ASSERT_EQ(sync_soon(c, s[i]), 0)
			TH_LOG("stream %d", i);
	}
	end_proxy(self);
	unlink(stat_path);
}

/* What save_and_end() has saved goes on, on a board of its own. */
static int return_to_board(FIXTURE_DATA(restore) *self)
{
	struct ctl_go go = { .client_pid = getpid() };
	struct ctl_restored to;
	struct ctl_reply reply;
	int fd = -1, rc = new_board() ?: board_load(board, from.image, from.len, NULL) ?: board_return(board, 1, "", 0);

	restorer_more = seat_args();
	rc = rc ?: start_restorer(self);
	rc = rc ?: ask(self, CTL_RESTORE, &from.good, sizeof(from.good), &to, sizeof(to), &fd);
	rc = rc ?: map_again(&self->c, fd);
	rc = rc ?: ask(self, CTL_GO, &go, sizeof(go), &reply, sizeof(reply), NULL);
	board_returned(board);
	close(self->conn);
	self->conn = -1;
	return rc;
}

/*
 * Two communicators have failed by calls that were refused, and the other rank has left one of them; a third one never stood,
 * and the client has said that it leaves. A restore knows all of it: what follows that call is not posted in its place, the
 * user is not told again, and when the client has gone the others do not hear of a death.
 */
TEST_F(restore, what_was_refused_and_who_leaves_is_known_after_a_restore)
{
	struct client *c = &self->c;
	struct sv_coll_call call = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = 16,
				     .send = self->dev, .recv = self->dev };
	struct step_event leaves = { .kind = STEP_LEAVE };
	int said = memfd_create("said", MFD_CLOEXEC), err = fcntl(2, F_DUPFD_CLOEXEC, 0), rc;
	char text[4096];
	ssize_t len;
	uint64_t s;

	ASSERT_EQ(start_with_board(self), 0);
	call.send = call.recv = self->dev;
	ASSERT_EQ(communicate(self, 0), 0);
	ASSERT_EQ(communicate(self, 1), 0);
	leaves.member = member;
	ASSERT_EQ(create(self, 2, 2000), STEP_SYSTEM);	/* it never stands */
	s = new_stream(c, CU_STREAM_NON_BLOCKING);
	ASSERT_GE(board_step(board, 1, &leaves, hear, NULL), 0);
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(coll(c, COMM + i, new_handle(c, SV_T_CUstream), &call, 1), 0);
	ASSERT_EQ(ring_submit(c->ring, SV_OP_X_COMM_LEAVE, NULL, 0, NULL, 0), 0);
	ASSERT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 2);
	save_and_end(self, _metadata);
	dup2(said, 2);
	rc = return_to_board(self);
	dup2(err, 2);
	ASSERT_EQ(rc, 0);
	ASSERT_EQ(coll(c, COMM, s, &call, 1), 0);
	EXPECT_EQ(sync_soon(c, s), CUDA_ERROR_EXTERNAL_DEVICE);
	for (int i = 1; i < 3; i++)
		EXPECT_EQ(end_comm(c, i), 0);
	broken = 0;
	ring_close(c->ring);
	c->ring = NULL;
	EXPECT_EQ(client_wait(c), 0);
	EXPECT_EQ(board_mail(board, 1, hear, NULL), 0);
	EXPECT_EQ(broken, 0);
	len = pread(said, text, sizeof(text) - 1, 0);
	ASSERT_GE(len, 0);
	text[len] = 0;
	EXPECT_EQ(strstr(text, "of a communicator of"), NULL)
		TH_LOG("%s", text);
	close(said);
	close(err);
}

/*
 * A graph is to be changed when its launch, which waits for the other rank, has run: as it can be, by what cannot be done,
 * and behind an operation that fails meanwhile; there its end fails, too. The first has happened, and a restore does that
 * alone.
 */
TEST_F(restore, changes_that_failed_while_parked_are_not_replayed)
{
	enum { DONE, REFUSED, BEHIND_FAILURE, WAYS };
	struct client *c = &self->c;
	struct sv_coll_call call = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = 16 };
	struct step_call another = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .op = TREE_SUM, .count = 17 };
	struct step_event e = { .kind = STEP_POST, .cookie = 1, .ncalls = 1, .calls = &another };
	uint64_t kernel, s, exec = new_handle(c, SV_T_CUgraphExec), none;
	struct {
		struct sv_graph_req a;
		struct one_kernel to;
	} change;
	struct sv_graph_end gone = { .exec = exec };
	struct ring_ticket t, end;
	struct one_kernel g;
	int32_t status;
	int rc;

	ASSERT_EQ(start_with_board(self), 0);
	call.send = call.recv = self->dev;
	s = new_stream(c, CU_STREAM_NON_BLOCKING);
	kernel = get_kernel(c, load_text(c, kernels, &rc), "count", NULL);
	none = new_handle(c, SV_T_CUkernel);
	g = describe(c, kernel, self->dev + MiB);
	ASSERT_EQ(send_graph(c, SV_OP_X_GRAPH, exec, SV_GRAPH_INLINE, &g), 0);
	for (int i = 0; i < WAYS; i++) {
		ASSERT_EQ(communicate(self, i), 0);
		ASSERT_EQ(coll(c, COMM + i, s, &call, 1), 0);
		ASSERT_EQ(SEND(c, SV_OP_cuGraphLaunch, (struct sv_graph_launch){ c->ctx, s, exec, 0, 0 }), 0);
		change.a = (struct sv_graph_req){ .ctx = c->ctx, .exec = exec, .off = SV_GRAPH_INLINE, .len = sizeof(g),
						  .flags = SV_GRAPH_SURE };
		change.to = describe(c, i == REFUSED ? none : kernel, self->dev + MiB + 64 * (1 + i));
		ASSERT_EQ(ring_request(c->ring, &t, SV_OP_X_GRAPH_UPDATE, &change, sizeof(change), NULL, 0), 0);
		if (i == BEHIND_FAILURE)
			ASSERT_EQ(ring_request(c->ring, &end, SV_OP_cuGraphExecDestroy, &gone, sizeof(gone), NULL, 0), 0);
		ASSERT_EQ(CALL(c, SV_OP_cuStreamQuery, (struct sv_sync_on){ c->ctx, s }), CUDA_ERROR_NOT_READY);
		e.member = member;
		ASSERT_EQ(i == BEHIND_FAILURE ? board_step(board, 1, &e, hear, NULL) : end_comm(c, i), 0);
		status = -1;
		ASSERT_EQ(ring_await(c->ring, &t, &status, NULL, 0, NULL, 20000000000), 0);
		EXPECT_EQ(status > 0, i != DONE);
	}
	EXPECT_EQ(status, CUDA_ERROR_EXTERNAL_DEVICE);
	status = -1;
	ASSERT_EQ(ring_await(c->ring, &end, &status, NULL, 0, NULL, 20000000000), 0);
	EXPECT_EQ(status, CUDA_ERROR_EXTERNAL_DEVICE);
	ASSERT_EQ(end_comm(c, BEHIND_FAILURE), 0);
	ASSERT_EQ(sync_soon(c, s), 0);
	save_and_end(self, _metadata);
	ASSERT_EQ(return_to_board(self), 0);
	EXPECT_EQ(run_graph(c, exec, self->dev + MiB + 64, self->pin), 7 + WAYS);
	end_proxy(self);
}

TEST_HARNESS_MAIN
