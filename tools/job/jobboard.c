// SPDX-License-Identifier: Apache-2.0
/*
 * jobboard.c - the supervisor's side of the board, and the file `comms`
 *
 * The file has a line for each communicator, followed by one for each of its operations:
 *
 *   comm KEY STATE RANKS PID …                       PID: of each rank, in order; 0: none
 *   op KIND TYPE COUNT NUMBER SOURCE DESTINATION STARTED SINCE WAITS RANK:PID …
 *
 * While a communicator is being created, its only operation is the creation.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "board.h"
#include "jobboard.h"
#include "tool_i.h"
#include "watch.h"

#define LOOK_MS	1000
#define OTHER_BYTES	(256u << 10)	/* of another user's file, which may be anything ... */
#define OTHER_LINES	256		/* ... and of these lines of it, the first */
#define CREATION	"creation"	/* of the communicator: its kind as an operation */

_Static_assert(JOBBOARD_SEATS == BOARD_SEATS && JOBBOARD_LISTED == STEP_LOOK_RANKS, "jobboard.h repeats these");
_Static_assert(SEATING_SEATS == BOARD_SEATS && SEATING_DEVICES == BOARD_DEVICES, "seating.h repeats these");

struct jobboard_stood {
	uint64_t born, since_ns;
	bool told;
};

static void no_file(struct jobboard *c, const struct rundir_job *job)
{
	char path[PATH_MAX];

	if (c->text && snprintf(path, sizeof(path), "%s/comms", job->path) < (int)sizeof(path))
		unlink(path);
	free(c->text);
	c->text = NULL;
}

void jobboard_stop(struct jobboard *c, const struct rundir_job *job)
{
	no_file(c, job);
	if (c->board) {
		board_close(c->board);
		close(c->fd);
	}
	free(c->stood);
	memset(c, 0, sizeof(*c));
}

void jobboard_start(struct jobboard *c, const struct rundir_job *job, long timeout_ms)
{
	jobboard_stop(c, job);
	c->timeout_ms = timeout_ms;
	c->fd = board_create();
	if (c->fd >= 0 && board_open(c->fd, &c->board)) {
		close(c->fd);
		c->fd = -1;
	}
}

void jobboard_seat(struct jobboard *c, const struct seating *t, int rank, int seat)
{
	struct board_place at = { .rank = rank, .host = seating_host(t, rank) };

	for (int l = 0; l < SEATING_DEVICES; l++)
		at.physical[l] = seating_physical(t, rank, l);
	if (c->board)
		board_reserve(c->board, seat, &at);
}

int jobboard_check(const void *image, size_t len, const char **why)
{
	return board_check(image, len, why);
}

int jobboard_load(struct jobboard *c, const void *image, size_t len, const char **why)
{
	*why = NULL;
	return c->board ? board_load(c->board, image, len, why) : -ENODEV;
}

void jobboard_returned(struct jobboard *c)
{
	if (c->board)
		board_returned(c->board);
}

void jobboard_ended(struct jobboard *c, int seat)
{
	if (seat < 0 || seat >= (int)JOBBOARD_SEATS || !c->board)
		return;
	board_die(c->board, seat);
}

bool jobboard_left(struct jobboard *c, const struct rundir_job *job, const struct rundir_proxy *p)
{
	struct uproxy_stat s;

	return c->board && p->seat >= 0 && p->seat < (int)JOBBOARD_SEATS && !board_lives(c->board, p->seat) &&
	       !watch_stat(job, p, &s, NULL) && s.collectives;
}

void jobboard_lost(struct jobboard *c)
{
	if (c->board)
		board_stranger_dies(c->board);
}

bool jobboard_crowded(const struct jobboard *c)
{
	return c->board && board_crowded(c->board);
}

void jobboard_helpless(struct jobboard *c)
{
	if (c->board)
		board_helpless(c->board);
}

/* -------------------------------------------------------------------------------- a look */

struct look {
	struct jobboard *c;
	const struct rundir_job *job;
	FILE *out;
	uint64_t now_ns;
	struct jobboard_stood *stood;
	size_t n, room;
	size_t comms;
	char late[8][400];	/* sentences about what stands for too long */
	unsigned int n_late;
};

static pid_t pid_of(const struct look *l, const struct step *s, uint32_t member)
{
	uint32_t seat = step_proxy(s, member);

	for (int i = 0; i < l->job->proxies; i++)
		if (l->job->proxy[i].seat == (int)seat)
			return l->job->proxy[i].client;
	return 0;
}

static int by_birth(const void *a, const void *b)
{
	const struct jobboard_stood *x = a, *y = b;

	return x->born < y->born ? -1 : x->born > y->born;
}

/* What the last look has of the operation, or a new entry; NULL: no memory. */
static struct jobboard_stood *stood_of(struct look *l, uint64_t born)
{
	struct jobboard_stood key = { .born = born, .since_ns = l->now_ns }, *was, *more;

	was = l->c->n_stood ? bsearch(&key, l->c->stood, l->c->n_stood, sizeof(key), by_birth) : NULL;
	if (l->n == l->room) {
		l->room = 2 * l->room + 16;
		more = realloc(l->stood, l->room * sizeof(*more));
		if (!more)
			return NULL;
		l->stood = more;
	}
	l->stood[l->n] = was ? *was : key;
	return &l->stood[l->n++];
}

const char *jobboard_type_name(uint8_t type)
{
	static const char *const names[] = { "int8", "uint8", "int32", "uint32", "int64", "uint64",
					     "f16", "f32", "f64", "bf16", "e4m3", "e5m2" };

	return type < sizeof(names) / sizeof(names[0]) ? names[type] : "?";
}

static void op_of(const struct look *l, const struct step *s, const struct step_comm_look *of,
		  const struct step_op_look *look, struct jobboard_op *op)
{
	bool pair = look->call.kind >= STEP_SEND;

	memset(op, 0, sizeof(*op));
	snprintf(op->kind, sizeof(op->kind), "%s", pair ? "send" : step_kind_name(look->call.kind));
	snprintf(op->type, sizeof(op->type), "%s", jobboard_type_name(look->call.type));
	op->count = look->call.count;
	op->number = look->number;
	op->source = pair ? (long)look->source : -1;
	op->destination = pair ? (long)look->destination : -1;
	op->started = look->order;
	op->waits = look->waits;
	op->listed = look->waits < JOBBOARD_LISTED ? look->waits : JOBBOARD_LISTED;
	for (unsigned int i = 0; i < op->listed; i++) {
		op->wait[i].rank = look->rank[i];
		op->wait[i].pid = pid_of(l, s, of->member + look->rank[i]);
	}
}

static void name_late(struct look *l, const struct step_comm_look *of, const struct jobboard_op *op)
{
	char since[16], text[300];
	time_t t = op->since_ns / 1000000000;
	struct tm tm;

	strftime(since, sizeof(since), "%H:%M:%S", localtime_r(&t, &tm));
	jobboard_sentence(op, l->now_ns, text, sizeof(text));
	snprintf(l->late[l->n_late++], sizeof(l->late[0]),
		 "communicator %08" PRIx64 " of %u ranks, since %s: %s", of->key >> 32, of->ranks,
		 since, text);
}

/* An operation's line, and its name if it has stood for too long. */
static void put_op(struct look *l, const struct step_comm_look *of, struct jobboard_op *op, uint64_t born)
{
	struct jobboard_stood *stood = stood_of(l, born);

	if (!stood)
		return;
	op->since_ns = stood->since_ns;
	fprintf(l->out, "op %s %s %" PRIu64 " %" PRIu64 " %ld %ld %d %" PRIu64 " %u", op->kind, op->type,
		op->count, op->number, op->source, op->destination, op->started, op->since_ns, op->waits);
	for (unsigned int i = 0; i < op->listed; i++)
		fprintf(l->out, " %u:%d", op->wait[i].rank, op->wait[i].pid);
	fputc('\n', l->out);
	if (!l->c->timeout_ms || stood->told ||
	    l->now_ns - stood->since_ns < l->c->timeout_ms * 1000000ull)
		return;
	if (l->n_late == sizeof(l->late) / sizeof(l->late[0]))
		return;		/* at the next look */
	stood->told = true;
	name_late(l, of, op);
}

/* A communicator that does not stand yet waits for its ranks as an operation does. */
static void put_creation(struct look *l, const struct step_comm_look *look)
{
	struct jobboard_op op = { .kind = CREATION, .type = "-", .source = -1, .destination = -1,
			       .waits = look->waits };

	op.listed = look->waits < JOBBOARD_LISTED ? look->waits : JOBBOARD_LISTED;
	for (unsigned int i = 0; i < op.listed; i++)
		op.wait[i].rank = look->rank[i];
	put_op(l, look, &op, look->key | 1ull << 63);	/* no operation's birth is that high */
}

static void saw_comm(void *ctx, const struct step *s, const struct step_comm_look *look)
{
	struct look *l = ctx;

	l->comms++;
	fprintf(l->out, "comm %016" PRIx64 " %s %u", look->key, look->stands ? "stands" : "forming",
		look->ranks);
	for (uint32_t r = 0; r < look->ranks; r++)
		fprintf(l->out, " %d", pid_of(l, s, look->member + r));
	fputc('\n', l->out);
	if (look->waits)
		put_creation(l, look);
}

static void saw_op(void *ctx, const struct step *s, const struct step_comm_look *of,
		   const struct step_op_look *look)
{
	struct jobboard_op op;

	op_of(ctx, s, of, look, &op);
	put_op(ctx, of, &op, look->born);
}

static void board_broke(struct jobboard *c)
{
	if (!c->broken)
		say("the board of collective operations is broken: a proxy was killed while it held it, or "
		    "had no room for what ended at once. All operations fail from now on (ncclRemoteError)");
	c->broken = true;
}

/* The file is written when it would change, so that a job at work costs little. */
static void put_file(struct jobboard *c, const struct rundir_job *job, char *text)
{
	FILE *out;

	if (c->text && !strcmp(c->text, text)) {
		free(text);
		return;
	}
	out = rundir_begin(job->path, "comms");
	if (!out) {
		free(text);
		return;
	}
	fputs(text, out);
	rundir_commit(job->path, "comms", out);
	free(c->text);
	c->text = text;
	c->texts++;
}

static void look(struct jobboard *c, const struct rundir_job *job)
{
	struct look l = { .c = c, .job = job, .now_ns = wall_ns() };
	const struct step_looker looker = { saw_comm, saw_op, &l };
	char *text = NULL;
	size_t size;

	l.out = open_memstream(&text, &size);
	if (!l.out)
		return;
	if (board_look(c->board, &looker))
		board_broke(c);
	if (fclose(l.out) || !l.comms) {
		free(text);
		no_file(c, job);
	} else {
		put_file(c, job, text);
	}
	if (l.n)
		qsort(l.stood, l.n, sizeof(*l.stood), by_birth);
	free(c->stood);
	c->stood = l.stood;
	c->n_stood = l.n;
	for (unsigned int i = 0; i < l.n_late; i++)
		say("a collective stands for more than %g s: %s", c->timeout_ms / 1e3, l.late[i]);
}

int jobboard_step(struct jobboard *c, const struct rundir_job *job)
{
	uint64_t now = now_ms();

	if (!c->board || !job->proxies)
		return -1;
	if (now >= c->next) {
		look(c, job);
		c->next = now + LOOK_MS;
	}
	return c->next - now;
}

/* ------------------------------------------------------------------------------ the file */

static int read_comm(struct jobboard_comm *c, const char *line)
{
	char state[16];
	int used;

	if (sscanf(line, "comm %" SCNx64 " %15s %u%n", &c->key, state, &c->ranks, &used) != 3 ||
	    !c->ranks || c->ranks > JOBBOARD_SEATS)
		return -EBADMSG;
	c->stands = !strcmp(state, "stands");
	c->pid = calloc(c->ranks, sizeof(*c->pid));
	if (!c->pid)
		return -ENOMEM;
	for (unsigned int r = 0; r < c->ranks; r++) {
		char *end;

		c->pid[r] = strtol(line + used, &end, 10);
		if (end == line + used)
			return -EBADMSG;
		used = end - line;
	}
	return 0;
}

static int read_op(struct jobboard_comm *c, const char *line)
{
	struct jobboard_op *more = realloc(c->op, (c->ops + 1) * sizeof(*more)), *op;
	int used, n, started;

	if (!more)
		return -ENOMEM;
	c->op = more;
	op = &more[c->ops];
	memset(op, 0, sizeof(*op));
	if (sscanf(line, "op %23s %7s %" SCNu64 " %" SCNu64 " %ld %ld %d %" SCNu64 " %u%n", op->kind,
		   op->type, &op->count, &op->number, &op->source, &op->destination, &started,
		   &op->since_ns, &op->waits, &used) != 9)
		return -EBADMSG;
	op->started = started;
	while (op->listed < JOBBOARD_LISTED &&
	       sscanf(line + used, " %u:%d%n", &op->wait[op->listed].rank,
		      &op->wait[op->listed].pid, &n) == 2) {
		used += n;
		op->listed++;
	}
	c->ops++;
	return 0;
}

static int read_line(struct jobboard_comm **comm, size_t *n, const char *line)
{
	struct jobboard_comm *more;

	if (!strncmp(line, "op ", 3))
		return *n ? read_op(&(*comm)[*n - 1], line) : -EBADMSG;
	more = realloc(*comm, (*n + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	*comm = more;
	memset(&more[*n], 0, sizeof(*more));
	return read_comm(&more[(*n)++], line);
}

int jobboard_read(const struct rundir_job *job, struct jobboard_comm **comm, size_t *n)
{
	bool own = job->uid == geteuid();
	size_t len, left = own ? SIZE_MAX : OTHER_LINES;
	char *text, *line, *save = NULL;
	int err = own ? rundir_read(job->path, job->uid, "comms", &text, &len) :
		  rundir_read_most(job->path, job->uid, "comms", OTHER_BYTES, &text, &len);

	*comm = NULL;
	*n = 0;
	if (err)
		return err == -ENOENT ? 0 : err;
	for (line = strtok_r(text, "\n", &save); line && !err && left--; line = strtok_r(NULL, "\n", &save))
		err = read_line(comm, n, line);
	free(text);
	if (err) {
		jobboard_free(*comm, *n);
		*comm = NULL;
		*n = 0;
	}
	return err;
}

void jobboard_free(struct jobboard_comm *comm, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		free(comm[i].pid);
		free(comm[i].op);
	}
	free(comm);
}

/* ----------------------------------------------------------------------------- sentences */

static size_t list_waits(const struct jobboard_op *op, char *text, size_t size)
{
	size_t at = 0;

	for (unsigned int i = 0; i < op->listed && at < size; i++) {
		const char *before = !i ? "" : i + 1 == op->waits ? " and " : ", ";

		at += snprintf(text + at, size - at, "%srank %u", before, op->wait[i].rank);
		if (op->wait[i].pid && at < size)
			at += snprintf(text + at, size - at, " (process %d)", op->wait[i].pid);
	}
	if (op->waits > op->listed && at < size)
		at += snprintf(text + at, size - at, " and %u more", op->waits - op->listed);
	return at;
}

int jobboard_sentence(const struct jobboard_op *op, uint64_t now_ns, char *text, size_t size)
{
	unsigned long long s = now_ns > op->since_ns ? (now_ns - op->since_ns) / 1000000000 : 0;
	char name[80], waits[700];

	if (op->source >= 0)
		snprintf(name, sizeof(name), "send from rank %ld to %ld", op->source, op->destination);
	else
		snprintf(name, sizeof(name), "%s %" PRIu64, op->kind, op->number);
	list_waits(op, waits, sizeof(waits));
	if (!strcmp(op->kind, CREATION))
		return snprintf(text, size, "its creation, %llu s, waits for %s", s, waits);
	return snprintf(text, size, "%s of %" PRIu64 " %s, %llu s, %s %s", name, op->count, op->type, s,
			op->started ? "runs on" : "waits for", waits);
}
