/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_comm.h - another rank and a transport for the fuzzed core, which mind what they get; a part of
 * fuzz.c
 *
 * The board is a real one. Its second seat is played by the input: that rank joins, posts what fits and
 * what does not, leaves and dies. The transport holds what is started until the input has it end.
 */
#ifndef UPROXY_FUZZ_COMM_H
#define UPROXY_FUZZ_COMM_H

#define COMM_OPS	128
#define ORDERS		1024

static struct under_way {
	uint64_t order;
	void (*done)(void *arg, enum step_code code);
	void *arg;
} under_way[COMM_OPS];
static unsigned int nunder_way;
static uint8_t announced[ORDERS];	/* 1: will start, or be withdrawn */
static struct board *fuzz_board;
static int board_fd = -1;

/* Buffers of sends, which must have been filled, or are being filled, when they are sent from. */
static struct buffer {
	void *p;
	bool filled;
} buffers[COMM_OPS];

static struct buffer *buffer_of(const void *p)
{
	for (struct buffer *b = buffers; b < buffers + COMM_OPS; b++)
		if (b->p == p)
			return b;
	return NULL;
}

/* The other rank. */
static struct {
	bool entered, dead;
	uint32_t member;		/* the last one that stands; STEP_NONE: none */
	uint64_t orders[64];
	unsigned int norders;
	uint64_t cookie;
} other;

static int t_open(struct transport **c, const struct transport_open *o, struct why *why)
{
	MUST(o->self == 0 && o->address && o->hal == &session.hal);
	*c = (struct transport *)under_way;
	return refuse() ? why_set(why, -ENOMEM, "no memory") : 0;
}

static int t_address(struct transport *c, void *to)
{
	MUST(c && to);
	memcpy(to, "here", 4);
	return 4;
}

/* Memory may have been unmapped since the call was checked; it is the client's own. */
static void part_ok(const struct transport_start *s, const struct transport_part *p)
{
	uint64_t n;

	MUST(p->rank < s->ranks && s->device[p->rank] == 0);
	MUST(!__builtin_mul_overflow(s->call.count, tree_leaf_size(s->call.type) * s->ranks, &n));
	n = s->call.count * tree_leaf_size(s->call.type);
	for (int i = 0; i < 2 && n; i++) {
		uint64_t at = (uint64_t)(i ? p->recv : p->send);

		if (at >= WINDOW && at < WINDOW + GRANULES * SV_GRANULE)
			MUST(n <= WINDOW + GRANULES * SV_GRANULE - at);
		else if (i)
			MUST(!at);	/* what is received goes to the window alone */
		else if (at)
			MUST(buffer_of(p->send) && buffer_of(p->send)->filled);
	}
	MUST(s->call.op != TREE_PREMULSUM || p->factor);
}

static int t_start(struct transport *c, const struct transport_start *s)
{
	MUST(c && s->order && s->done && s->nparts && s->nparts <= 2 && s->nparts <= s->ranks);
	MUST(s->call.kind < STEP_KINDS && s->call.type < TREE_TYPES && s->call.op < TREE_OPS);
	MUST(s->call.peer < s->ranks && s->order < ORDERS && announced[s->order] == 1);
	for (uint32_t i = 0; i < s->nparts; i++)
		part_ok(s, &s->part[i]);
	for (unsigned int i = 0; i < nunder_way; i++)
		MUST(under_way[i].order != s->order);
	if (nunder_way == COMM_OPS || refuse())
		return -ENOMEM;
	announced[s->order] = 2;
	under_way[nunder_way++] = (struct under_way){ s->order, s->done, s->arg };
	return 0;
}

/* What small sends are copied into, when the device comes to it. */
static struct filling {
	void (*filled)(void *arg);
	void *arg;
	uint8_t *buffer;
	size_t size;
} filling[COMM_OPS];
static unsigned int nfilling;

static void fills_end(void)
{
	while (nfilling) {
		struct filling f = filling[--nfilling];

		if (f.buffer)
			memset(f.buffer, 1, f.size);
		f.filled(f.arg);
	}
}

static void t_ends(unsigned int i, enum step_code code)
{
	struct under_way u = under_way[i];

	fills_end();		/* what it sends may be there */
	under_way[i] = under_way[--nunder_way];
	u.done(u.arg, code);
}

static void t_cancel(struct transport *c, uint64_t order)
{
	MUST(c);
	for (unsigned int i = 0; i < nunder_way; i++)
		if (under_way[i].order == order) {
			t_ends(i, STEP_REMOTE);
			return;
		}
}

static void t_announce(struct transport *c, uint64_t order)
{
	MUST(c && order && order < ORDERS && !announced[order]);
	announced[order] = 1;
}

static void t_withdraw(struct transport *c, uint64_t order)
{
	MUST(c && order < ORDERS && announced[order] == 1);
	announced[order] = 3;
}

static void *t_buffer(struct transport *c, size_t size)
{
	struct buffer *b = buffer_of(NULL);

	MUST(c && size && size <= STEP_BUFFERED);
	if (!b || refuse())
		return NULL;
	*b = (struct buffer){ .p = fuzz_malloc(size) };
	return b->p;
}

static void t_unbuffer(struct transport *c, void *buffer)
{
	MUST(c && buffer && buffer_of(buffer));
	for (unsigned int i = 0; i < nfilling; i++)
		if (filling[i].buffer == buffer)
			filling[i].buffer = NULL;
	*buffer_of(buffer) = (struct buffer){ .p = NULL };
	fuzz_free(buffer);
}

static int t_fill(struct transport *c, void *buffer, const void *from, size_t size, void (*filled)(void *arg),
		  void *arg)
{
	uint64_t at = (uint64_t)from;

	MUST(c && at >= WINDOW && at < WINDOW + GRANULES * SV_GRANULE && size <= WINDOW + GRANULES * SV_GRANULE - at);
	MUST(buffer_of(buffer));
	if (nfilling == COMM_OPS || refuse())
		return -ENOMEM;
	buffer_of(buffer)->filled = true;
	filling[nfilling++] = (struct filling){ filled, arg, buffer, size };
	return 0;
}

static void t_counters(struct transport *c, struct transport_counters *n)
{
	(void)c;
	memset(n, 0, sizeof(*n));
}

static void t_close(struct transport *c)
{
	MUST(c && !nunder_way);
}

static const struct transport_driver transport = {
	.version = TRANSPORT_VERSION, .name = "fuzz", .open = t_open, .address = t_address, .start = t_start,
	.cancel = t_cancel, .buffer = t_buffer, .unbuffer = t_unbuffer, .fill = t_fill, .announce = t_announce, .withdraw = t_withdraw, .counters = t_counters,
	.close = t_close,
};

const struct transport_driver *transport_load(struct hal *h, struct why *why)
{
	MUST(h == &session.hal);
	if (refuse()) {
		why_set(why, -ENOENT, "no transport");
		return NULL;
	}
	return &transport;
}

/* Makes the job's board. Before the first communicator, as few inputs have one. */
static void make_board(void)
{
	if (board_fd >= 0)
		return;
	board_fd = board_create();
	MUST(board_fd >= 0 && !board_open(board_fd, &fuzz_board));
	board_reserve(fuzz_board, 0, &(struct board_place){ .rank = 0 });
	comm_board(board_fd, 0);
}

/* The board as the core has it, which may break at any moment. */
static bool lost_board;

int fuzz_board_step(struct board *b, uint32_t seat, const struct step_event *e, step_act *act, void *ctx);
int fuzz_board_mail(struct board *b, uint32_t seat, step_act *act, void *ctx);
bool fuzz_board_mailed(const struct board *b, uint32_t seat);

int fuzz_board_step(struct board *b, uint32_t seat, const struct step_event *e, step_act *act, void *ctx)
{
	return lost_board ? -ENOTRECOVERABLE : board_step(b, seat, e, act, ctx);
}

int fuzz_board_mail(struct board *b, uint32_t seat, step_act *act, void *ctx)
{
	return lost_board ? -ENOTRECOVERABLE : board_mail(b, seat, act, ctx);
}

bool fuzz_board_mailed(const struct board *b, uint32_t seat)
{
	return lost_board || board_mailed(b, seat);
}

/* comm.c's thread that wakes the consumer: nobody sleeps here. */
int fuzz_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int fuzz_pthread_detach(pthread_t t);

int fuzz_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg)
{
	(void)a, (void)arg;
	MUST(f);
	*t = pthread_self();
	return refuse() ? EAGAIN : 0;
}

int fuzz_pthread_detach(pthread_t t)
{
	(void)t;
	return 0;
}

static void comm_restart(void)
{
	if (comms.board)
		board_close(comms.board);
	if (fuzz_board)
		board_close(fuzz_board);
	if (board_fd >= 0)
		close(board_fd);
	board_fd = -1;
	fuzz_board = NULL;
	nunder_way = nfilling = 0;
	lost_board = false;
	memset(announced, 0, sizeof(announced));
	memset(buffers, 0, sizeof(buffers));
	memset(&other, 0, sizeof(other));
	other.member = STEP_NONE;
}

/* ------------------------------------------------------------------------------ the other rank */

static void other_acts(void *ctx, const struct step_action *a)
{
	(void)ctx;
	if (a->kind == STEP_JOINED && !a->code)
		other.member = a->member;
	if (a->kind == STEP_START && other.norders < 64)
		other.orders[other.norders++] = a->order;
	if (a->kind == STEP_CANCEL)
		board_step(fuzz_board, 1, &(struct step_event){ .kind = STEP_DONE, .device = 1,
			   .order = a->order, .code = STEP_REMOTE }, other_acts, NULL);
}

static const uint8_t *id_of(uint8_t n)
{
	static uint8_t id[SV_NCCL_ID_BYTES];

	id[0] = n & 3;
	return id;
}

/* The call that likely() makes, from the same two bytes, as the rank on the other side of it has it. */
static struct step_call call_of(uint8_t a, uint8_t b)
{
	return (struct step_call){ .kind = a % (STEP_KINDS + 1), .type = b % (TREE_TYPES + 1),
				   .op = a >> 5 == 7 ? b >> 5 : 0, .peer = b >> 4 & 1,
				   .count = 1ull << (a >> 4 & 3) * 8 };
}

static void other_rank(uint8_t n, uint8_t a, uint8_t b)
{
	struct step_event e = { .kind = STEP_JOIN, .proxy = 1, .comm = XXH3_64bits(id_of(a), SV_NCCL_ID_BYTES),
				.ranks = b & 8 ? 1 + (b & 7) : 2, .rank = b & 16 ? b & 1 : 1 };
	struct step_call call = call_of(a, b);

	if (!fuzz_board)
		return;
	lost_board |= n == 63;
	if (other.dead || lost_board)
		return;
	if (!other.entered)
		other.entered = !board_enter(fuzz_board, 1, "there", 5);
	switch (n & 7) {
	case 0: case 1:
		break;			/* joins */
	case 2: case 3:
		if (call.kind >= STEP_SEND && call.kind < STEP_KINDS)
			call.kind ^= 1;
		call.peer = call.kind >= STEP_SEND ? 0 : call.peer;
		e = (struct step_event){ .kind = STEP_POST, .member = other.member, .cookie = ++other.cookie,
					 .ncalls = 1, .calls = &call };
		if (other.member == STEP_NONE || call.kind >= STEP_KINDS || call.type >= TREE_TYPES)
			return;
		break;
	case 4: case 5:
		if (!other.norders)
			return;
		e = (struct step_event){ .kind = STEP_DONE, .device = 1, .order = other.orders[--other.norders],
					 .code = n & 64 ? STEP_SYSTEM : STEP_OK };
		break;
	case 6:
		if (other.member == STEP_NONE)
			return;
		e = (struct step_event){ .kind = STEP_LEAVE, .member = other.member };
		other.member = STEP_NONE;
		break;
	case 7:
		if (n & 128) {
			other.dead = true;
			board_die(fuzz_board, 1);
			return;
		}
		if (!(n & 64))
			return;
		e = (struct step_event){ .kind = STEP_EXIT, .proxy = 1 };
		break;
	}
	board_step(fuzz_board, 1, &e, other_acts, NULL);
	board_mail(fuzz_board, 1, other_acts, NULL);
}

static void run_comms(void)
{
	for (int i = 0; i < 1000 && comm_posted() && !session.failed; i++)
		comm_run(&session);
	outside_look(&session);		/* its thread is not there */
}

static void settle_comms(void)
{
	for (int i = 0; i < 64 && (queue || nunder_way || nfilling || comm_posted()); i++) {
		fills_end();
		while (nunder_way)
			t_ends(0, STEP_REMOTE);
		run_comms();
		device_runs(CUDA_SUCCESS);
	}
}

/* A communicator that has calls open, which need this rank alone: a receive from itself. NULL: none. */
static struct communicator *waits_for_itself(void)
{
	struct communicator *c;

	for (c = comms.all; c && (!c->open || c->aborted); c = c->next)
		;
	return c;
}

/* Everything ends: the other rank has died, its operations fail; what it does not concern is aborted. */
static void end_comms(void)
{
	struct communicator *c;

	if (!comms.transport && !comms.all)
		return;
	if (other.entered && !other.dead)
		board_die(fuzz_board, 1);
	board_stranger_dies(fuzz_board);	/* nobody else joins */
	settle_comms();
	for (int i = 0; i < 8 && !session.failed && (c = waits_for_itself()); i++) {
		SEND(SV_OP_X_COMM_END, (struct sv_comm_end){ c->number, SV_COMM_ABORT, 0 });
		settle_comms();
	}
}

#endif /* UPROXY_FUZZ_COMM_H */
