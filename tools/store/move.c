// SPDX-License-Identifier: Apache-2.0
/*
 * move.c - `singvgpu store push`, `pull` and `serve`: starts the other side and connects to it
 *
 * The other side is always a `singvgpu store serve`: our child for a local folder, else a process
 * that ssh starts on the other host ($SINGVGPU_SSH, by default "ssh"; a shell splits it into
 * words).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt_where.h"
#include "store_move.h"

static const struct wire_hello hello = { .magic = WIRE_MAGIC, .version = WIRE_VERSION };

/* ------------------------------------------------------------------------- other side */

/* HOST:FOLDER, if no '/' precedes the ':': cuts it there and returns FOLDER; else NULL. */
static char *folder_of(char *where)
{
	char *colon = strchr(where, ':'), *slash = strchr(where, '/');

	if (!colon || (slash && slash < colon))
		return NULL;
	*colon = 0;
	return colon + 1;
}

/* Writes word, quoted for the shell on the other host. */
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

/* Starts the other side and connects m->w to it. */
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
	memset(h, 0, sizeof(*h));
	memcpy(h, m->w.buf, (size_t)len < sizeof(*h) ? (size_t)len : sizeof(*h));
	if (memcmp(h->magic, WIRE_MAGIC, sizeof(h->magic)))
		return why_set(&m->w.why, -EPROTO, "%s is no store of singvgpu's", m->w.who);
	if (h->version != WIRE_VERSION)
		return why_set(&m->w.why, -EPROTONOSUPPORT, "%s speaks version %u of the protocol, this "
			       "side version %d: install the same singvgpu on both", m->w.who,
			       h->version, WIRE_VERSION);
	if (len != sizeof(*h) || h->pad[0] || h->pad[1])
		return why_set(&m->w.why, -EPROTO, "%s broke the protocol", m->w.who);
	return 0;
}

/* Opens the store at path; with create, makes a missing one with that seed. */
static int open_or_create(struct move *m, const char *path, unsigned int flags, bool create,
			  uint64_t seed)
{
	struct store_params p = { .seed = seed };
	int err = store_open(&m->s, path, flags, &m->w.why);

	if (err != -ENOENT || !create)
		return err;
	why_clear(&m->w.why);
	err = store_create(path, &p, &m->w.why);
	if (err && err != -EEXIST)
		return err;
	why_clear(&m->w.why);
	return store_open(&m->s, path, flags, &m->w.why);
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
	if (len >= (ssize_t)sizeof(ids))
		return why_set(&m->w.why, -E2BIG, "too many checkpoints at once");
	memcpy(ids, m->w.buf, len + 1);
	while (n < 1024 && (id[n] = strsep(&at, "\n")) && *id[n])
		n++;
	if (n == 1024 && at && *at)
		return why_set(&m->w.why, -E2BIG, "too many checkpoints at once");
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
		wire_fail(&m.w);
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

/* A store that we have to create gets the seed of the other side's store. */
static int pull(struct move *m, const struct store_args *a, const char *path)
{
	struct wire_hello theirs, ours = hello;
	char *ids = NULL;
	size_t size;
	FILE *f;
	int err = open_or_create(m, path, STORE_RW | STORE_WAIT, false, 0);

	if (err && (err != -ENOENT || !a->create))
		return err;
	why_clear(&m->w.why);
	ours.pull = 1;
	ours.create = a->create;
	ours.seed = err ? 0 : store_seed(m->s);
	err = wire_send(&m->w, WIRE_HELLO, &ours, sizeof(ours), NULL, 0);
	if (!err)
		err = hello_receive(m, &theirs);
	if (!err && !m->s)
		err = ckpt_store_parents(path, &m->w.why) ?:
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
	if (ckpt_store_path(a->store, path, &m.w.why)) {
		say("%s", m.w.why.text);
		return EXIT_OURS;
	}
	signal(SIGPIPE, SIG_IGN);
	pid = start(a, &m);
	if (pid < 0) {
		say_errno(pid, "the other side cannot be started");
		return EXIT_OURS;
	}
	phases_start(&m.phases, a->command, where, false);
	err = how(&m, a, path);
	phases_clear(&m.phases);
	if (err && m.w.why.err)
		say("%s", m.w.why.text);
	if (err == -ECONNRESET && !m.w.received)
		say("is singvgpu there, and on its PATH? --remote says where else");
	if (err)
		wire_fail(&m.w);
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
