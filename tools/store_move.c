// SPDX-License-Identifier: Apache-2.0
/*
 * store_move.c - `singvgpu store push`, `pull` and `serve`: who talks to whom, and over what
 *
 * The other side is always a `singvgpu store serve`: a child of ours for a folder that is mounted
 * here, else one that ssh starts ($SINGVGPU_SSH, "ssh" by default; words are split).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt_i.h"
#include "store_move.h"

static const struct wire_hello hello = { .magic = WIRE_MAGIC, .version = WIRE_VERSION };

/* ------------------------------------------------------------------------- other side */

/* HOST:FOLDER, if there is no '/' before the ':'. Cuts it there. */
static char *folder_of(char *where)
{
	char *colon = strchr(where, ':'), *slash = strchr(where, '/');

	if (!colon || (slash && slash < colon))
		return NULL;
	*colon = 0;
	return colon + 1;
}

/* For the shell on the other host. */
static void quoted(FILE *f, const char *word)
{
	putc('\'', f);
	for (; *word; word++)
		fputs(*word == '\'' ? "'\\''" : (char []){ *word, 0 }, f);
	putc('\'', f);
}

static void exec_ssh(const struct store_args *a, const char *host, const char *folder)
{
	char *line = NULL, *ssh = getenv("SINGVGPU_SSH"), script[4096];
	size_t size;
	FILE *f = open_memstream(&line, &size);

	if (!f)
		_exit(EXIT_OURS);
	quoted(f, a->remote);
	fprintf(f, " store serve%s -- ", a->create ? " --create" : "");
	quoted(f, folder);
	fclose(f);
	if (snprintf(script, sizeof(script), "exec %s \"$@\"", ssh && *ssh ? ssh : "ssh") <
	    (int)sizeof(script))
		execl("/bin/sh", "sh", "-c", script, "sh", host, line, NULL);
	_exit(EXIT_OURS);
}

static void other_side(const struct store_args *a, char *where, const int fd[2])
{
	char *folder;

	if (dup2(fd[0], 0) < 0 || dup2(fd[1], 1) < 0)
		_exit(EXIT_OURS);
	signal(SIGPIPE, SIG_DFL);
	folder = folder_of(where);
	if (folder)
		exec_ssh(a, where, folder);
	if (a->create)
		execl("/proc/self/exe", "singvgpu", "store", "serve", "--create", "--", where, NULL);
	else
		execl("/proc/self/exe", "singvgpu", "store", "serve", "--", where, NULL);
	_exit(EXIT_OURS);
}

/* Starts it; m->w leads there. */
static pid_t start(const struct store_args *a, struct move *m)
{
	int to[2], from[2];
	pid_t pid;

	if (pipe2(to, O_CLOEXEC))
		return -errno;
	if (pipe2(from, O_CLOEXEC)) {
		pid = -errno;
		goto out_to;
	}
	fcntl(to[1], F_SETPIPE_SZ, 1 << 20);
	fcntl(from[1], F_SETPIPE_SZ, 1 << 20);
	pid = fork();
	if (!pid)
		other_side(a, a->argv[0], (int []){ to[0], from[1] });
	if (pid < 0) {
		pid = -errno;
		close(from[0]);
		close(from[1]);
		goto out_to;
	}
	close(to[0]);
	close(from[1]);
	m->w.in = from[0];
	m->w.out = to[1];
	return pid;
out_to:
	close(to[0]);
	close(to[1]);
	return pid;
}

static int hello_receive(struct move *m, struct wire_hello *h)
{
	ssize_t len = wire_receive(&m->w, WIRE_HELLO);

	if (len < 0)
		return len;
	if (len >= (ssize_t)sizeof(*h))
		memcpy(h, m->w.buf, sizeof(*h));
	if (len < (ssize_t)sizeof(*h) || memcmp(h->magic, WIRE_MAGIC, sizeof(h->magic)) ||
	    h->version != WIRE_VERSION) {
		snprintf(m->w.why, sizeof(m->w.why),
			 "%s is of another version: install the same singvgpu on both sides", m->w.who);
		return -EPROTONOSUPPORT;
	}
	return 0;
}

/* Opens the store at path; where there is none it is made, if it may be, with that seed. */
static int open_or_create(struct move *m, const char *path, unsigned int flags, bool create,
			  uint64_t seed)
{
	struct store_params p = { .seed = seed };
	int err = store_open(&m->s, path, flags, m->w.why, sizeof(m->w.why));

	if (err != -ENOENT || !create)
		return err;
	err = store_create(path, &p, m->w.why, sizeof(m->w.why));
	if (err && err != -EEXIST)
		return err;
	err = store_open(&m->s, path, flags, m->w.why, sizeof(m->w.why));
	if (!err)
		*m->w.why = 0;
	return err;
}

/* ------------------------------------------------------------------------------ serve */

static int serve(struct move *m, const struct store_args *a)
{
	struct wire_hello theirs, ours = hello;
	char ids[64 * 1024], *id[1024], *at = ids;
	int err = hello_receive(m, &theirs), n = 0;
	ssize_t len;

	if (err)
		return err;
	err = open_or_create(m, a->argv[0], theirs.pull ? STORE_WAIT : STORE_RW | STORE_WAIT,
			     !theirs.pull && a->create, theirs.seed);
	if (err)
		return err;
	ours.seed = store_seed(m->s);
	err = wire_send(&m->w, WIRE_HELLO, &ours, sizeof(ours), NULL, 0);
	if (err || !theirs.pull)
		return err ?: move_receive(m);
	m->seed = theirs.seed ?: ours.seed;
	len = wire_receive(&m->w, WIRE_ASK);
	if (len < 0)
		return len;
	if (len >= (ssize_t)sizeof(ids)) {
		snprintf(m->w.why, sizeof(m->w.why), "too many checkpoints at once");
		return -E2BIG;
	}
	memcpy(ids, m->w.buf, len + 1);
	while (n < 1024 && (id[n] = strsep(&at, "\n")) && *id[n])
		n++;
	return move_send(m, id, n);
}

int store_serve(const struct store_args *a)
{
	struct move m = { .w = { .in = 0, .out = 1, .who = "the other side" } };
	int err;

	signal(SIGPIPE, SIG_IGN);
	phases_start(&m.phases, "serve", "", true);
	err = serve(&m, a);
	if (err)
		wire_fail(&m.w, err, m.w.why);
	store_close(m.s);
	wire_free(&m.w);
	return err ? EXIT_OURS : 0;
}

/* ----------------------------------------------------------------------- push and pull */

static int push(struct move *m, const struct store_args *a, const char *path)
{
	struct wire_hello theirs, ours = hello;
	int err = open_or_create(m, path, 0, false, 0);

	if (err)
		return err;
	ours.seed = store_seed(m->s);
	ours.create = a->create;
	err = wire_send(&m->w, WIRE_HELLO, &ours, sizeof(ours), NULL, 0);
	if (!err)
		err = hello_receive(m, &theirs);
	if (err)
		return err;
	m->seed = theirs.seed;
	return move_send(m, a->argv + 1, a->argc - 1);
}

/* Without a store of ours yet the other's seed is wanted first. */
static int pull(struct move *m, const struct store_args *a, const char *path)
{
	struct wire_hello theirs, ours = hello;
	char *ids = NULL;
	size_t size;
	FILE *f;
	int err = open_or_create(m, path, STORE_RW | STORE_WAIT, false, 0);

	if (err && (err != -ENOENT || !a->create))
		return err;
	*m->w.why = 0;
	ours.pull = 1;
	ours.create = a->create;
	ours.seed = err ? 0 : store_seed(m->s);
	err = wire_send(&m->w, WIRE_HELLO, &ours, sizeof(ours), NULL, 0);
	if (!err)
		err = hello_receive(m, &theirs);
	if (!err && !m->s)
		err = ckpt_store_parents(path) ?:
		      open_or_create(m, path, STORE_RW | STORE_WAIT, true, theirs.seed);
	if (err)
		return err;
	f = open_memstream(&ids, &size);
	if (!f)
		return move_why(m, -ENOMEM);
	for (int i = 1; i < a->argc; i++)
		fprintf(f, "%s\n", a->argv[i]);
	fclose(f);
	err = wire_send(&m->w, WIRE_ASK, ids, size, NULL, 0);
	free(ids);
	return err ?: move_receive(m);
}

static void report(const struct move *m, bool pulled)
{
	char bytes[16], moved[16], stored[16];

	printf("%llu checkpoint%s copied, %llu were there: %s, %s of that %s, %s new on disk\n",
	       (unsigned long long)m->copied, m->copied == 1 ? "" : "s",
	       (unsigned long long)m->there, show_size(bytes, m->bytes),
	       show_size(moved, pulled ? m->w.received : m->w.sent),
	       pulled ? "received" : "sent", show_size(stored, m->stored));
}

static int move(const struct store_args *a,
		int (*how)(struct move *m, const struct store_args *a, const char *path))
{
	char where[300], path[PATH_MAX];
	struct move m = { .w.who = where };
	int err, status;
	pid_t pid;

	snprintf(where, sizeof(where), "%.280s", a->argv[0]);
	if (!*where || *where == '-' || *where == ':')
		return say_usage("store", "'%s' is neither a folder nor HOST:FOLDER", where);
	if (ckpt_store_path(a->store, path))
		return EXIT_OURS;
	signal(SIGPIPE, SIG_IGN);
	pid = start(a, &m);
	if (pid < 0) {
		say_errno(pid, "the other side cannot be started");
		return EXIT_OURS;
	}
	phases_start(&m.phases, a->command, where, false);
	err = how(&m, a, path);
	phases_clear(&m.phases);
	if (err && *m.w.why)
		say("%s", m.w.why);
	if (err == -ECONNRESET && !m.w.received)
		say("is singvgpu there, and on its PATH? --remote says where else");
	if (err)
		wire_fail(&m.w, err, m.w.why);
	close(m.w.out);
	close(m.w.in);
	waitpid(pid, &status, 0);
	store_close(m.s);
	wire_free(&m.w);
	if (!err)
		report(&m, how == pull);
	return err ? EXIT_OURS : m.damaged ? 1 : 0;
}

int store_push(const struct store_args *a)
{
	return move(a, push);
}

int store_pull(const struct store_args *a)
{
	return move(a, pull);
}
