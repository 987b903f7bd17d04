// SPDX-License-Identifier: Apache-2.0
/*
 * older.c - rebuilds the GPU sessions of a stored checkpoint in proxies, without its processes: older STORE ID
 *
 * It is conductor and client, as a restore is before CRIU runs. Then it saves the sessions again into the same store,
 * which has all of their pages if the contents are the same. Prints a line for each session; STORE is written to.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "board.h"
#include "ckpt_facts.h"
#include "store.h"

#define SESSIONS	8
#define SILENCE_MS	120000

struct session {
	struct ckpt_proxy *p;
	pid_t pid;
	int conn, channel;
	struct ctl_restored restored;
	struct ctl_dumped dumped;
};

static struct session session[SESSIONS];
static struct ckpt_facts facts;
static char dir[] = "/tmp/older-sessions-XXXXXX";
static const char *store_path, *build;
static int board_fd = -1;

static void end_all(void)
{
	for (int i = 0; i < SESSIONS; i++)
		if (session[i].pid) {
			kill(session[i].pid, SIGKILL);
			waitpid(session[i].pid, NULL, 0);
		}
	for (int i = 0; i < SESSIONS; i++) {
		char path[128];

		snprintf(path, sizeof(path), "%s/%d", dir, i);
		unlink(path);
	}
	rmdir(dir);
}

static void fail(const char *what, const char *why)
{
	printf("%s: %s\n", what, why);
	end_all();
	exit(1);
}

static void *read_whole(struct store *s, const struct store_ref *ref, size_t *len)
{
	struct store_reader *r;
	char *p;

	if (store_object_open(s, ref, &r))
		fail("an object", store_why()->text);
	*len = store_size(r);
	p = malloc(*len + 1);
	if (!p || store_read(r, 0, p, *len) != (ssize_t)*len)
		fail("an object", store_why()->text);
	p[*len] = 0;
	store_reader_close(r);
	return p;
}

static void put_ref(struct store_checkpoint *c, struct ctl_ref *ref, const struct ckpt_proxy *p, const char *what)
{
	const struct store_ref *part;
	char name[64];

	snprintf(name, sizeof(name), "proxy/%d-%d/%s", p->rank, p->serial, what);
	part = store_checkpoint_find(c, name);
	memset(ref, 0, sizeof(*ref));
	if (part)
		memcpy(ref->bytes, part->b, sizeof(ref->bytes));
}

/* As the supervisor does: each rank has its devices where they were. */
static void put_place(struct board *board, const struct ckpt_proxy *p)
{
	struct board_place at = { .rank = p->rank };

	at.physical[facts_logical(p)] = p->info.device.ordinal;
	if (p->info.seat >= 0)
		board_reserve(board, p->info.seat, &at);
}

static void read_checkpoint(const char *id, struct board **board)
{
	struct why why = { 0 };
	struct store_checkpoint *c;
	const struct store_ref *part;
	const char *wrong = NULL;
	struct store *s;
	size_t len;
	char *text;

	if (store_open(&s, store_path, 0, &why))
		fail("the store", why.text);
	if (store_checkpoint_open(s, id, &c) || !(part = store_checkpoint_find(c, "job")))
		fail("the checkpoint", store_why()->text);
	text = read_whole(s, part, &len);
	if (facts_read(&facts, text, len) || facts.proxies > SESSIONS)
		fail("the facts", "cannot be read");
	free(text);
	for (int i = 0; i < facts.proxies; i++) {
		struct ckpt_proxy *p = &facts.proxy[i];

		session[i].p = p;
		put_ref(c, &p->device, p, "device");
		put_ref(c, &p->observed, p, "observed");
		put_ref(c, &p->session, p, "session");
		put_ref(c, &p->channel, p, "channel");
		put_ref(c, &p->arena, p, "arena");
		put_ref(c, &p->comms, p, "comms");
	}
	part = store_checkpoint_find(c, "board");
	if (part) {
		board_fd = board_create();
		text = read_whole(s, part, &len);
		if (board_fd < 0 || board_open(board_fd, board))
			fail("the board", "cannot be made");
		if (board_load(*board, text, len, &wrong))
			fail("the board", wrong ?: "cannot be loaded");
		for (int i = 0; i < facts.proxies; i++)
			put_place(*board, &facts.proxy[i]);
		free(text);
		fcntl(board_fd, F_SETFD, 0);
	}
	store_checkpoint_close(c);
	store_close(s);
}

static void start(struct session *x)
{
	char proxy[512], driver[512], control[128], fd[16], seat[16];
	const char *argv[] = { proxy, "--restore", "--control", control, "--driver", driver, "--board", fd,
			       "--seat", seat, NULL };
	struct why why = { 0 };

	snprintf(proxy, sizeof(proxy), "%s/uproxy/singvgpu-proxy", build);
	snprintf(driver, sizeof(driver), "%s/uproxy/softgpu/libsoftcuda.so", build);
	snprintf(control, sizeof(control), "%s/%d", dir, (int)(x - session));
	snprintf(fd, sizeof(fd), "%d", board_fd);
	snprintf(seat, sizeof(seat), "%d", x->p->info.seat);
	if (x->p->info.seat < 0 || board_fd < 0)
		argv[6] = NULL;
	x->pid = fork();
	if (!x->pid) {
		execv(proxy, (char *const *)argv);
		_exit(127);
	}
	do {
		usleep(2000);
		why_clear(&why);
		x->conn = ctl_connect(control, &why);
	} while (x->conn < 0 && !waitpid(x->pid, NULL, WNOHANG));
	if (x->conn < 0)
		fail("a proxy", "has ended");
}

static void ask(struct session *x, uint32_t op, void *req, uint32_t size, void *reply, uint32_t cap, int *fd)
{
	struct ctl_head *h = req;
	struct ctl_reply *r = reply;

	h->op = op;
	h->size = size;
	if (ctl_call(x->conn, h, r, cap, NULL, NULL, fd, SILENCE_MS))
		fail("a session", r->why);
}

static void restore(struct session *x)
{
	struct ctl_restore r = { .device = x->p->device, .observed = x->p->observed, .session = x->p->session,
				 .channel = x->p->channel, .arena = x->p->arena, .comms = x->p->comms,
				 .was = x->p->info.device, .window = x->p->info.window,
				 .window_len = x->p->info.window_len, .budget = x->p->info.budget,
				 .ordinal = x->p->info.device.ordinal };

	snprintf(r.dir, sizeof(r.dir), "%s", store_path);
	ask(x, CTL_RESTORE, &r, sizeof(r), &x->restored, sizeof(x->restored), &x->channel);
}

/* All at once: each waits until the others stand still. */
static void freeze(void)
{
	struct ctl_freeze f = { .h = { .op = CTL_FREEZE, .size = sizeof(f) }, .idle_ms = SILENCE_MS, .cut = 1 };
	struct ctl_progress progress;
	struct ctl_frozen frozen;
	int rc;

	for (int i = 0; i < facts.proxies; i++)
		if (session[i].p->info.seat >= 0)
			f.seats[session[i].p->info.seat / 64] |= 1ull << session[i].p->info.seat % 64;
	for (int i = 0; i < facts.proxies; i++)
		if (ctl_send(session[i].conn, &f.h))
			fail("a proxy", "is gone");
	for (int i = 0; i < facts.proxies; i++) {
		do {
			rc = ctl_receive(session[i].conn, CTL_FREEZE, &frozen.r, sizeof(frozen), &progress,
					 NULL, SILENCE_MS);
		} while (rc == 1);
		if (rc || frozen.r.status)
			fail("a session does not freeze", frozen.r.why);
	}
}

int main(int argc, char **argv)
{
	struct board *board = NULL;
	struct store *own;
	struct why why = { 0 };

	if (argc < 3 || !mkdtemp(dir))
		return 2;
	store_path = argv[1];
	build = getenv("BUILD") ?: "build";
	setvbuf(stdout, NULL, _IOLBF, 0);
	read_checkpoint(argv[2], &board);
	for (int i = 0; i < facts.proxies; i++) {
		start(&session[i]);
		restore(&session[i]);
	}
	if (board)
		board_returned(board);
	for (int i = 0; i < facts.proxies; i++) {
		struct ctl_go go = { .client_pid = getpid() };
		struct ctl_reply reply;

		ask(&session[i], CTL_GO, &go, sizeof(go), &reply, sizeof(reply), NULL);
	}
	freeze();
	/* As a publisher does, for the writers. */
	if (store_open(&own, store_path, STORE_RW, &why))
		fail("the store", why.text);
	for (int i = 0; i < facts.proxies; i++) {
		struct session *x = &session[i];
		struct ctl_store st = { .claims = 0 };

		snprintf(st.dir, sizeof(st.dir), "%s", store_path);
		ask(x, CTL_DUMP, &st, sizeof(st), &x->dumped, sizeof(x->dumped), NULL);
		printf("rank %d: %llu records, contents %s, observed %s, communicators %s\n", x->p->rank,
		       (unsigned long long)x->restored.records,
		       /* Heads of formats may be others. */
		       x->dumped.bytes && x->dumped.fresh_bytes <= 4 * STORE_PAGE ? "the same" : "different",
		       store_ref_size((void *)&x->dumped.observed) == store_ref_size((void *)&x->p->observed) ? "the same" : "different",
		       ctl_ref_none(&x->dumped.comms) ? "none" : "saved");
	}
	store_close(own);
	end_all();
	return 0;
}
