// SPDX-License-Identifier: Apache-2.0
/*
 * job.c - the supervisor: waits for ranks, connections, signals and the front's end, in one loop
 *
 * Nothing here blocks: a peer or a child that hangs uses up its own deadline only. job.h has the
 * states.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jobboard.h"
#include "init.h"
#include "job.h"
#include "merge.h"
#include "passed.h"
#include "proto.h"
#include "why.h"

#define JUDGE_MS	3000	/* for a rank that has left its collectives to end */
#define LINGER_MS	2000	/* for what the ranks left running to end by itself */
#define PROXY_LEAVE_MS	2000	/* for a proxy to see its client's end */
#define PROXY_TERM_MS	1000	/* for a proxy to end after SIGTERM */
#define KEPT_MS		2000	/* for a killed proxy to end that was kept */
#define ORPHAN_MS	800	/* at most, for ranks that have lost `run` to end after SIGTERM */
#define ORPHAN_LEAVE_MS	300	/* ... for their other processes, and for the proxies */
#define OUTPUT_MS	2000	/* for the prefixer's output, after a signal or the front's death */
#define REFUSED_MS	2000	/* for a refused client to read the reason */
#define REFUSED_MAX	32
#define PROXY_REFUSED	2	/* exit status of a proxy that never served its client */
#define PROXY_LOST	3	/* exit status of a proxy whose device is lost */
#define OTHERS		3	/* entries of the poll list before those of the watchers and the ranks */

enum state { RUN, FAMILY, PROXIES, OUTPUT, END };

struct rank {
	int listen;
	int serial;		/* of its next proxy */
	int out[2], err[2];	/* pipes to the prefixer */
};

struct refused {
	int fd;
	uint64_t until;
};

struct supervisor {
	struct job *job;
	struct rundir_job info;
	struct rank *rank;
	struct pollfd *poll;
	struct jobboard board;	/* the job's board of collectives, on which the proxies get seats */
	int sigfd;
	int status_pipe[2];	/* from init; -1: there is none */
	pid_t prefixer;
	struct refused refused[REFUSED_MAX];
	int n_refused;

	enum state state;
	int running;		/* ranks */
	int status;		/* run's exit status: the first failure's */
	bool failed;		/* a rank has failed, or could not be started */
	int first, culprit;	/* ranks: seen to fail first; the cause, which judge() names */
	int cause;		/* the culprit's wait status */
	uint64_t judge;		/* until then ranks that had left before it may turn out to be the cause; 0: no */
	bool *leaving;		/* by rank: those */
	bool *left;		/* by rank: a process of it had left its collectives when its proxy ended */
	bool told;		/* a signal has asked us to end */
	bool taken;		/* CRIU killed the tree after a checkpoint */
	bool lost;		/* a proxy or its device was lost */
	bool unrestored;	/* a restore failed */
	bool orphaned;		/* the front is dead */
	int pressed;		/* times that the state's deadline has passed */
	uint64_t deadline;	/* of the state; 0: none */
	bool changed;		/* the job file is to be written again */
	struct rundir_proxy *kept;	/* former proxies of a moved job, until the new ones have their memory */
	int n_kept;
};

/* ----------------------------------------------------------------------------- watchers */

#define EACH_WATCHER(s, w, verb) \
	for (const struct job_watcher *const *at_ = (s)->job->watchers, *w; (w = *at_); at_++) \
		if (w->verb)

/* Starts all, whatever becomes of one. The first one's error. */
static int start_watchers(struct supervisor *s)
{
	struct why why = { 0 };
	int err = 0;

	EACH_WATCHER(s, w, start)
		err = w->start(s->job, &why) ?: err;
	if (err)
		say("%s", why.text);
	return err;
}

/* Something may be printed next. */
static void hush_watchers(struct supervisor *s)
{
	EACH_WATCHER(s, w, hush)
		w->hush();
}

static bool watchers_signal(struct supervisor *s, int sig)
{
	EACH_WATCHER(s, w, signal)
		if (w->signal(sig))
			return true;
	return false;
}

/* A child that is no rank, proxy or the like. Returns a signal to send to the ranks, or 0. */
static int watchers_ended(struct supervisor *s, pid_t pid, int status)
{
	int sig = 0;

	EACH_WATCHER(s, w, ended)
		if (w->ended(pid, status, &sig))
			return sig;
	return 0;
}

/* p: the poll list from the watchers' entries on. */
static void hear_watchers(struct supervisor *s, const struct pollfd *p)
{
	EACH_WATCHER(s, w, hear) {
		if (p->revents)
			w->hear();
		p++;
	}
}

/* Children of watchers: their number. waited: only those that the job's end waits for. */
static int watchers_children(const struct supervisor *s, pid_t *pids, bool waited)
{
	int n = 0;

	EACH_WATCHER(s, w, child)
		if (w->child() && (w->waited || !waited))
			pids[n++] = w->child();
	return n;
}

/* ------------------------------------------------------------------------------- ranks */

static void signal_rank(struct supervisor *s, int r, int sig, bool group)
{
	const struct rundir_rank *rank = &s->info.rank[r];

	if (rank->state != RANK_RUNNING || rank->pid <= 0)
		return;
	kill(group && !s->job->terminal ? -rank->pid : rank->pid, sig);
}

static void signal_ranks(struct supervisor *s, int sig, bool group)
{
	for (int r = 0; r < s->info.ranks; r++)
		signal_rank(s, r, sig, group);
}

/* The time that a state takes: without the front the job must be gone within 2 s. */
static long at_most(const struct supervisor *s, long ms, long orphan_ms)
{
	return s->orphaned && ms > orphan_ms ? orphan_ms : ms;
}

/* Sends TERM; step_run() sends KILL after the deadline. */
static void end_ranks(struct supervisor *s)
{
	if (s->deadline)
		return;
	signal_ranks(s, SIGTERM, false);
	signal_ranks(s, SIGCONT, true);
	s->deadline = now_ms() + at_most(s, s->job->opt->grace_ms, ORPHAN_MS);
	s->pressed = 0;
}

/* The front is dead. Where something has a deadline already, that comes sooner. */
static void orphaned(struct supervisor *s)
{
	uint64_t until = now_ms() + (s->state == RUN ? ORPHAN_MS : ORPHAN_LEAVE_MS);

	s->orphaned = true;
	if (s->state == RUN)
		end_ranks(s);
	if (s->deadline > until)
		s->deadline = until;
}

static const char *signal_text(int sig, char *buf, size_t size)
{
	const char *name = sigabbrev_np(sig);

	if (name)
		snprintf(buf, size, "SIG%s (%s)", name, sigdescr_np(sig));
	else
		snprintf(buf, size, "signal %d", sig);
	return buf;
}

/* Ordinary ends of a command are not reported. */
static bool worth_telling(const struct supervisor *s, int status)
{
	int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

	if (s->taken)
		return false;
	if (s->info.ranks > 1)
		return !s->told && !s->orphaned;
	return sig && sig != SIGINT && sig != SIGTERM && sig != SIGPIPE && sig != SIGHUP &&
	       !s->orphaned;
}

static bool has_note(const struct supervisor *s, const char *name)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/%s", s->job->dir.path, name) < (int)sizeof(path) && !access(path, F_OK);
}

static bool has_conductor(const struct supervisor *s)
{
	int fd = rundir_try_lock(s->job->dir.path, geteuid(), "conductor.lock", 0);

	if (fd >= 0)
		close(fd);
	return fd == -EWOULDBLOCK;
}

/*
 * True: CRIU killed the tree after a dump. The conductor writes `checkpointed` before that and `taken` after it. A
 * conductor that is killed between the two may leave a job that runs on, and the first note.
 */
static bool was_taken(const struct supervisor *s, int status)
{
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL || !has_note(s, "checkpointed"))
		return false;
	/* It writes the second note before it drops its lock. */
	return has_note(s, "taken") || has_conductor(s) || has_note(s, "taken");
}

/* "rank 1 (process 7) was killed by SIGABRT (Aborted), core dumped" */
static void tell_end(const struct supervisor *s, int r, int status, char *text, size_t size)
{
	char who[48] = "the command", sig[64];

	if (s->info.ranks > 1)
		snprintf(who, sizeof(who), "rank %d (process %d)", r, s->info.rank[r].pid);
	if (WIFSIGNALED(status))
		snprintf(text, size, "%s was killed by %s%s", who, signal_text(WTERMSIG(status), sig, sizeof(sig)),
			 WCOREDUMP(status) ? ", core dumped" : "");
	else
		snprintf(text, size, "%s ended with status %d", who, WEXITSTATUS(status));
}

static int wait_status(const struct rundir_rank *rank)
{
	return rank->state == RANK_KILLED ? rank->code : rank->code << 8;
}

/* Names the cause, with the rank that fell first over it, and ends the others. */
static void judge(struct supervisor *s)
{
	char cause[160], then[200] = "";

	s->judge = 0;
	s->status = s->taken ? JOB_CHECKPOINTED : WIFSIGNALED(s->cause) ? 128 + WTERMSIG(s->cause) :
		    WEXITSTATUS(s->cause);
	if (worth_telling(s, s->cause)) {
		tell_end(s, s->culprit, s->cause, cause, sizeof(cause));
		if (s->first != s->culprit) {
			strcpy(then, "; after it had left, ");
			tell_end(s, s->first, wait_status(&s->info.rank[s->first]), then + strlen(then),
				 sizeof(then) - strlen(then));
		}
		say("%s%s%s", cause, then, s->running ? "; the other ranks are ended" : "");
	}
	end_ranks(s);
}

/* Marks the ranks that run, and have left their collectives or died there; their number. */
static int find_leaving(struct supervisor *s)
{
	int n = 0;

	memset(s->leaving, 0, s->info.ranks * sizeof(*s->leaving));
	for (int i = 0; i < s->info.proxies; i++)
		s->leaving[s->info.proxy[i].rank] |= jobboard_left(&s->board, &s->info, &s->info.proxy[i]);
	for (int r = 0; r < s->info.ranks; r++) {
		s->leaving[r] = (s->leaving[r] || s->left[r]) && s->info.rank[r].state == RANK_RUNNING;
		n += s->leaving[r];
	}
	return n;
}

static bool still_leaving(const struct supervisor *s)
{
	for (int r = 0; r < s->info.ranks; r++)
		if (s->leaving[r] && s->info.rank[r].state == RANK_RUNNING)
			return true;
	return false;
}

/*
 * A rank that leaves makes the others' collectives fail, and their libraries abort. Those may be seen
 * to die first: a process takes time to exit, its parent waits for it, and two deaths of one moment
 * are reported in any order. So a rank that had left before is waited for, and is the cause if it fails.
 */
static void rank_failed(struct supervisor *s, int r, int status)
{
	s->taken |= was_taken(s, status);
	jobboard_lost(&s->board);
	if (!s->failed) {
		s->failed = true;
		s->culprit = s->first = r;
		s->cause = status;
		s->judge = !s->taken && find_leaving(s) ? now_ms() + JUDGE_MS : 0;
		if (!s->judge)
			judge(s);
	} else if (s->judge && s->leaving[r] && s->culprit == s->first) {
		s->culprit = r;
		s->cause = status;
	}
}

static void rank_ended(struct supervisor *s, int r, int status)
{
	struct rundir_rank *rank = &s->info.rank[r];

	rank->state = WIFSIGNALED(status) ? RANK_KILLED : RANK_EXITED;
	rank->code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
	s->running--;
	s->changed = true;
	if (status)
		rank_failed(s, r, status);
	if (s->judge && !still_leaving(s))
		judge(s);
}

/* Opens the prefixer's pipes, two for each rank, and starts it. */
static int open_pipes(struct supervisor *s)
{
	int n = s->info.ranks, out[JOB_RANKS_MAX] = { 0 }, err[JOB_RANKS_MAX] = { 0 };

	for (int r = 0; r < n; r++) {
		if (pipe2(s->rank[r].out, O_CLOEXEC) || pipe2(s->rank[r].err, O_CLOEXEC))
			return -errno;
		out[r] = s->rank[r].out[0];
		err[r] = s->rank[r].err[0];
	}
	s->prefixer = prefix_start(out, err, n);
	for (int r = 0; r < n; r++) {
		close(out[r]);
		close(err[r]);
	}
	return s->prefixer < 0 ? s->prefixer : 0;
}

/* The files for rank r's 0, 1 and 2, and their keys. */
static void rank_fds(const struct supervisor *s, int r, int null, int fd[3])
{
	bool several = s->info.ranks > 1;

	fd[0] = r ? null : STDIN_FILENO;
	fd[1] = several ? s->rank[r].out[1] : STDOUT_FILENO;
	fd[2] = several ? s->rank[r].err[1] : STDERR_FILENO;
	for (int i = 0; i < 3; i++)
		criu_key(fd[i], s->info.rank[r].stdio[i], RUNDIR_KEY);
}

static void close_pipes(struct supervisor *s)
{
	for (int r = 0; s->info.ranks > 1 && r < s->info.ranks; r++) {
		close(s->rank[r].out[1]);
		close(s->rank[r].err[1]);
	}
}

static int open_status(struct supervisor *s)
{
	if (pipe2(s->status_pipe, O_CLOEXEC)) {
		s->status_pipe[0] = s->status_pipe[1] = -1;
		return -errno;
	}
	fcntl(s->status_pipe[0], F_SETFL, O_NONBLOCK);
	return criu_key(s->status_pipe[1], s->info.status, sizeof(s->info.status));
}

static void close_status(struct supervisor *s)
{
	for (int i = 0; i < 2; i++) {
		if (s->status_pipe[i] >= 0)
			close(s->status_pipe[i]);
		s->status_pipe[i] = -1;
	}
}

/* Starts the ranks, in a new pid namespace if possible; pid[] and inner[] as in start_init(). */
static void start_all(struct supervisor *s, const int (*fd)[3], pid_t *pid, pid_t *inner)
{
	pid_t init = -EPERM;

	if (!s->job->terminal && !s->job->opt->host_pids && !geteuid() &&
	    !access(s->job->places->init, X_OK) && !open_status(s))
		init = start_init(s->job, fd, s->status_pipe[1], pid, inner);
	if (s->status_pipe[1] >= 0)
		close(s->status_pipe[1]);
	s->status_pipe[1] = -1;
	s->info.init = init > 0 ? init : 0;
	if (init > 0)
		return;
	close_status(s);
	*s->info.status = 0;
	if (init != -EPERM) {
		say_errno(init, "the job's first process");
		pid[0] = init;
		return;
	}
	for (int r = 0; r < s->info.ranks && (!r || pid[r - 1] > 0); r++)
		pid[r] = inner[r] = start_rank(s->job, r, fd[r]);
}

static void not_started(struct supervisor *s, int err)
{
	say_errno(err, "%s cannot be executed", s->job->opt->command[0]);
	s->failed = true;
	if (err == -EAGAIN || err == -ENOMEM || err == -EMFILE)
		s->status = EXIT_OURS;
	else
		s->status = err == -ENOENT ? EXIT_NOTFOUND : EXIT_NOEXEC;
}

static void start_ranks(struct supervisor *s)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC), (*fd)[3], failed = 0;
	pid_t pid[JOB_RANKS_MAX] = { 0 }, inner[JOB_RANKS_MAX] = { 0 };

	fd = calloc(s->info.ranks, sizeof(*fd));
	for (int r = 0; fd && r < s->info.ranks; r++)
		rank_fds(s, r, null, fd[r]);
	if (fd)
		start_all(s, (const int (*)[3])fd, pid, inner);
	else
		pid[0] = -ENOMEM;
	for (int r = 0; r < s->info.ranks; r++) {
		s->info.rank[r].pid = pid[r] > 0 ? pid[r] : 0;
		s->info.rank[r].inner = inner[r] > 0 ? inner[r] : 0;
		s->info.rank[r].state = inner[r] > 0 ? RANK_RUNNING : RANK_EXITED;
		s->running += inner[r] > 0;
		if (pid[r] < 0 && !failed)
			failed = pid[r];
	}
	close_pipes(s);
	free(fd);
	if (null >= 0)
		close(null);
	if (!failed)
		return;
	not_started(s, failed);
	end_ranks(s);
}

/* Reads from init how ranks have ended. */
static void read_status(struct supervisor *s)
{
	struct init_status st;

	while (s->status_pipe[0] >= 0 && read(s->status_pipe[0], &st, sizeof(st)) == sizeof(st))
		for (int r = 0; r < s->info.ranks; r++)
			if (s->info.rank[r].inner == st.pid &&
			    s->info.rank[r].state == RANK_RUNNING)
				rank_ended(s, r, st.status);
}

/* All processes in its namespace have ended with init, also ranks that it has not reported. */
static void init_ended(struct supervisor *s, int status)
{
	s->info.init = 0;
	read_status(s);
	close_status(s);
	for (int r = 0; r < s->info.ranks; r++)
		if (s->info.rank[r].state == RANK_RUNNING)
			rank_ended(s, r, WIFSIGNALED(status) ? status : SIGKILL);
	/* The ranks may have ended before, and left processes behind. */
	if (was_taken(s, status)) {
		s->taken = s->failed = true;
		s->status = JOB_CHECKPOINTED;
	}
	s->changed = true;
}

/* ----------------------------------------------------------------------------- proxies */

/* Makes the file that a client locks to connect, and a conductor to prevent that (ckpt_i.h). */
static int make_gate(const struct job *job, int rank)
{
	char name[RUNDIR_NAME];
	int fd;

	rundir_name(name, RUNDIR_GATE, rank, 0);
	fd = rundir_open(job->dir.path, geteuid(), name, O_RDWR | O_CREAT);
	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}

static int open_socket(struct supervisor *s, int r)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd, err;

	if (rundir_path(a.sun_path, sizeof(a.sun_path), s->job->dir.path, RUNDIR_SOCKET, r, 0)) {
		say("%s is too long a path for a socket; set XDG_RUNTIME_DIR to a shorter one",
		    s->job->dir.path);
		return -ENAMETOOLONG;
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && !make_gate(s->job, r) && !bind(fd, (void *)&a, sizeof(a)) &&
	    !listen(fd, 128)) {
		s->rank[r].listen = fd;
		return 0;
	}
	err = -errno;
	say_errno(err, "the socket %s", a.sun_path);
	if (fd >= 0)
		close(fd);
	return err;
}

/* Sends a client the reason why it gets no proxy; leaves it REFUSED_MS to read that. */
static void refuse(struct supervisor *s, int fd, int err, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static void refuse(struct supervisor *s, int fd, int err, const char *fmt, ...)
{
	struct sv_connected reply = { .status = err };
	struct why why = { 0 };
	va_list ap;

	va_start(ap, fmt);
	why_vset(&why, err, fmt, ap);
	va_end(ap);
	why_copy(reply.why, sizeof(reply.why), &why);
	say("a connection was refused: %s", why.text);
	send(fd, &reply, sizeof(reply), MSG_DONTWAIT | MSG_NOSIGNAL);
	shutdown(fd, SHUT_WR);
	if (s->n_refused == REFUSED_MAX) {
		close(s->refused[0].fd);
		memmove(s->refused, s->refused + 1, --s->n_refused * sizeof(s->refused[0]));
	}
	s->refused[s->n_refused++] = (struct refused){ fd, now_ms() + REFUSED_MS };
}

/* Closes refused connections that have hung up or whose time is over. */
static void drop_refused(struct supervisor *s)
{
	int left = 0;
	char text[256];

	for (int i = 0; i < s->n_refused; i++) {
		struct refused *c = &s->refused[i];
		ssize_t n = recv(c->fd, text, sizeof(text), MSG_DONTWAIT);

		if (!n || (n < 0 && errno != EAGAIN) || now_ms() >= c->until)
			close(c->fd);
		else
			s->refused[left++] = *c;
	}
	s->n_refused = left;
}

static void serve(struct supervisor *s, int r, int fd, pid_t client)
{
	struct rundir_proxy *more, p = { .rank = r, .serial = s->rank[r].serial, .client = client };

	if (s->info.proxies == JOB_PROXIES_MAX) {
		refuse(s, fd, -EAGAIN, "the job has %d proxies, which is the limit",
		       JOB_PROXIES_MAX);
		return;
	}
	more = realloc(s->info.proxy, (s->info.proxies + 1) * sizeof(p));
	if (!more) {
		refuse(s, fd, -ENOMEM, "the launcher has no memory");
		return;
	}
	s->info.proxy = more;
	for (int i = 0; i < s->info.proxies; i++)
		if (s->info.proxy[i].client == client)
			end_left_proxy(s->info.proxy[i].pid, client);
	/* While it waits for a proxy, the client lives: after that it may end at once. */
	family_name(client, p.name);
	p.seat = seating_seat(s->job->seating, -1);
	if (p.seat >= 0)
		jobboard_seat(&s->board, s->job->seating, r, p.seat);
	p.pid = p.seat < 0 ? p.seat : start_proxy(s->job, r, p.serial, s->board.fd, p.seat, fd);
	if (p.pid < 0) {
		jobboard_ended(&s->board, p.seat);
		seating_leave(s->job->seating, p.seat);
		refuse(s, fd, p.pid, "the proxy %s cannot be executed: %s", s->job->places->proxy,
		       strerror(-p.pid));
		return;
	}
	close(fd);
	s->info.proxy[s->info.proxies++] = p;
	s->rank[r].serial++;
	s->changed = true;
}

static void connection(struct supervisor *s, int r)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);
	int fd = accept4(s->rank[r].listen, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len))
		refuse(s, fd, -errno, "the client's user cannot be told");
	else if (peer.uid != geteuid())
		refuse(s, fd, -EPERM, "process %d is of user %u, the job of user %u", peer.pid,
		       peer.uid, geteuid());
	else
		serve(s, r, fd, peer.pid);
}

/* With --restart kills the ranks, which are restored. They may have ended before the proxy did. */
static void proxy_lost(struct supervisor *s)
{
	s->lost = true;
	if (!s->job->opt->restart || s->state != RUN)
		return;
	signal_ranks(s, SIGKILL, true);
	if (s->info.init)
		kill(s->info.init, SIGKILL);
}

/* Reports a lost proxy: its client's CUDA errors do not name it. Status 0: the client has ended. */
static void tell_of_proxy(const struct rundir_proxy *p, int status)
{
	int code = WEXITSTATUS(status);
	char sig[64];

	if (WIFSIGNALED(status))
		say("proxy %d of rank %d (client %d, %s) was killed by %s: its GPU session is lost, and "
		    "CUDA calls of that process fail from now on", p->pid, p->rank, p->client,
		    p->name, signal_text(WTERMSIG(status), sig, sizeof(sig)));
	else if (code == PROXY_REFUSED && family_has_ended(p->client))
		return;
	else if (code)
		say("proxy %d of rank %d (client %d, %s) ended with status %d: %s", p->pid, p->rank,
		    p->client, p->name, code, code == PROXY_LOST ? "its device is lost" :
		    code == PROXY_REFUSED ? "it could not serve that process, which finds no device" :
		    "its GPU session is lost, and CUDA calls of that process fail from now on");
}

/* The socket at which a former proxy offers its device's memory. */
static bool kept_path(const struct supervisor *s, const struct rundir_proxy *p, char path[PATH_MAX])
{
	return !rundir_path(path, PATH_MAX, s->job->dir.path, RUNDIR_KEPT, p->rank, p->serial);
}

/* The job has this proxy no longer. */
static void forget_proxy(struct supervisor *s, int i, bool bad)
{
	struct rundir_proxy p = s->info.proxy[i];
	char path[PATH_MAX];

	memmove(&s->info.proxy[i], &s->info.proxy[i + 1],
		(--s->info.proxies - i) * sizeof(p));
	s->changed = true;
	s->left[p.rank] |= jobboard_left(&s->board, &s->info, &p);
	jobboard_ended(&s->board, p.seat);
	seating_leave(s->job->seating, p.seat);
	if (bad)
		jobboard_lost(&s->board);
	EACH_WATCHER(s, w, proxy_ended)
		w->proxy_ended(s->job, &p);
	if (!start_stat_path(s->job, p.rank, p.serial, path, sizeof(path)))
		unlink(path);
	if (!job_control_path(s->job, p.rank, p.serial, path, sizeof(path)))
		unlink(path);
}

static void proxy_ended(struct supervisor *s, int i, int status)
{
	struct rundir_proxy p = s->info.proxy[i];
	bool ours = s->state >= PROXIES && s->pressed;
	char path[PATH_MAX];

	if (kept_path(s, &p, path))
		unlink(path);
	forget_proxy(s, i, WIFSIGNALED(status) || (WEXITSTATUS(status) && WEXITSTATUS(status) != PROXY_REFUSED));
	if (!ours && (WIFSIGNALED(status) || WEXITSTATUS(status) == PROXY_LOST))
		proxy_lost(s);
	if (!ours)
		tell_of_proxy(&p, status);
}

/*
 * After CTL_STAY a proxy keeps its device's memory for the job's next life, and its socket is in the folder. It does not
 * count as the job's any more.
 */
static void keep_proxies(struct supervisor *s)
{
	struct rundir_proxy *kept = s->taken ? realloc(s->kept, (s->n_kept + s->info.proxies + 1) * sizeof(*kept)) : NULL;
	char path[PATH_MAX];

	if (!kept)
		return;
	s->kept = kept;
	for (int i = s->info.proxies - 1; i >= 0; i--)
		if (kept_path(s, &s->info.proxy[i], path) && !access(path, F_OK)) {
			s->kept[s->n_kept++] = s->info.proxy[i];
			forget_proxy(s, i, false);
		}
}

/* Kills the former proxies. wait: waits up to KEPT_MS until they have ended and their memory is free. */
static void drop_kept(struct supervisor *s, bool wait)
{
	uint64_t until = now_ms() + KEPT_MS;
	char path[PATH_MAX];

	for (int i = 0; i < s->n_kept; i++) {
		kill(s->kept[i].pid, SIGKILL);	/* they have nothing to do at their end, and may be stopped */
		if (kept_path(s, &s->kept[i], path))
			unlink(path);
	}
	while (wait && s->n_kept && now_ms() < until) {
		if (waitpid(s->kept[s->n_kept - 1].pid, NULL, WNOHANG))
			s->n_kept--;
		else
			usleep(5000);
	}
}

static void kill_proxies(struct supervisor *s, int sig)
{
	for (int i = 0; i < s->info.proxies; i++)
		kill(s->info.proxy[i].pid, sig);
}

/* ------------------------------------------------------------------------------ states */

static void forward(struct supervisor *s, int sig);

static void reap(struct supervisor *s)
{
	int status, i, sig;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (i = 0; i < s->info.ranks; i++)
			if (s->info.rank[i].pid == pid && s->info.rank[i].state == RANK_RUNNING &&
			    !s->info.init)
				break;
		if (pid == s->info.init) {
			init_ended(s, status);
			continue;
		}
		if (i < s->info.ranks) {
			rank_ended(s, i, status);
			continue;
		}
		for (i = 0; i < s->info.proxies && s->info.proxy[i].pid != pid; i++)
			;
		if (i < s->info.proxies)
			proxy_ended(s, i, status);
		for (i = 0; i < s->n_kept && s->kept[i].pid != pid; i++)
			;
		if (i < s->n_kept)
			s->kept[i] = s->kept[--s->n_kept];
		if (pid == s->prefixer)
			s->prefixer = 0;
		sig = watchers_ended(s, pid, status);
		if (sig)
			forward(s, sig);
	}
}

static void enter(struct supervisor *s, enum state state, long ms)
{
	s->state = state;
	s->pressed = 0;
	s->deadline = ms < 0 ? 0 : now_ms() + ms;
}

/* Signals or counts (sig 0) all descendants but init, proxies, prefixer and the watchers' children. */
static int family(struct supervisor *s, int sig, char *text, size_t size)
{
	pid_t not[2 * JOB_PROXIES_MAX + JOB_WATCHERS_MAX + 2];
	int n = watchers_children(s, not, false);

	for (int i = 0; i < s->info.proxies; i++)
		not[n++] = s->info.proxy[i].pid;
	for (int i = 0; i < s->n_kept && i < JOB_PROXIES_MAX; i++)
		not[n++] = s->kept[i].pid;
	if (s->prefixer)
		not[n++] = s->prefixer;
	if (s->info.init)
		not[n++] = -s->info.init;
	if (sig)
		return family_kill(not, n, sig);
	return family_count(not, n, text, size);
}

static bool childless(void)
{
	siginfo_t info;

	return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) && errno == ECHILD;
}

/* Asks what the ranks have left running to end. */
static void ask_family(struct supervisor *s)
{
	char names[256];
	int n = childless() ? 0 : family(s, 0, names, sizeof(names));

	s->deadline = now_ms() + at_most(s, s->job->opt->grace_ms, ORPHAN_LEAVE_MS);
	s->pressed = 1;
	if (n && !s->failed && !s->told && !s->orphaned)
		say("the command has ended and left %d process%s running, ended now: %s", n,
		    n > 1 ? "es" : "", names);
	if (n)
		family(s, SIGTERM, NULL, 0);
}

static void ranks_ended(struct supervisor *s)
{
	enter(s, FAMILY, LINGER_MS);
	EACH_WATCHER(s, w, ranks_ended)
		w->ranks_ended(s->taken);
	/* Other processes of a rank that has done its work may be about to end. */
	if (s->failed || s->told || s->orphaned)
		ask_family(s);
}

static void step_run(struct supervisor *s)
{
	if (s->judge && (!s->running || now_ms() >= s->judge))
		judge(s);
	if (s->running && s->deadline && now_ms() >= s->deadline) {
		if (!s->pressed++ && !s->orphaned)
			say("%d rank%s did not end within %g s of SIGTERM and %s killed",
			    s->running, s->running > 1 ? "s" : "", s->job->opt->grace_ms / 1e3,
			    s->running > 1 ? "are" : "is");
		signal_ranks(s, SIGKILL, true);
		s->deadline = now_ms() + 100;
	}
	if (!s->running)
		ranks_ended(s);
}

static void step_family(struct supervisor *s)
{
	pid_t child[JOB_WATCHERS_MAX];
	int n;

	reap(s);
	n = watchers_children(s, child, true);
	if (childless() || (!s->info.init && !n && !family(s, 0, NULL, 0))) {
		enter(s, PROXIES, at_most(s, PROXY_LEAVE_MS, ORPHAN_LEAVE_MS));
	} else if (now_ms() >= s->deadline && !s->pressed) {
		ask_family(s);
	} else if (now_ms() >= s->deadline) {
		family(s, SIGKILL, NULL, 0);
		if (s->info.init)
			kill(s->info.init, SIGKILL);
		while (n)
			kill(child[--n], SIGKILL);
		s->deadline = now_ms() + 20;
	}
}

static void step_proxies(struct supervisor *s)
{
	keep_proxies(s);
	if (!s->info.proxies) {
		enter(s, OUTPUT, s->told || s->orphaned ? OUTPUT_MS : -1);
	} else if (now_ms() >= s->deadline) {
		kill_proxies(s, s->pressed++ ? SIGKILL : SIGTERM);
		s->deadline = now_ms() + (s->pressed > 1 ? 20 :
					  at_most(s, PROXY_TERM_MS, ORPHAN_LEAVE_MS));
	}
}

static void step_output(struct supervisor *s)
{
	if (!s->prefixer) {
		s->state = END;
	} else if (s->deadline && now_ms() >= s->deadline) {
		kill(s->prefixer, SIGKILL);
		s->deadline = now_ms() + 20;
	}
}

static void step_states(struct supervisor *s)
{
	enum state before;

	do {
		before = s->state;
		switch (s->state) {
		case RUN:
			step_run(s);
			break;
		case FAMILY:
			step_family(s);
			break;
		case PROXIES:
			step_proxies(s);
			break;
		case OUTPUT:
			step_output(s);
			break;
		case END:
			break;
		}
	} while (s->state != before);
}

/* Forwards a signal to the ranks; signals that a terminal sends go to each rank's process group. */
static void forward(struct supervisor *s, int sig)
{
	bool group = sig == SIGINT || sig == SIGQUIT || sig == SIGHUP || sig == SIGCONT ||
		     sig == SIGWINCH;
	bool ends = sig == SIGINT || sig == SIGTERM || sig == SIGHUP || sig == SIGQUIT;

	if (ends && s->state > RUN) {	/* no rank is left: end the grace time */
		s->told = true;
		s->deadline = now_ms();
		return;
	}
	s->told |= ends;
	if (sig == SIGTSTP)		/* a session of its own ignores SIGTSTP */
		signal_ranks(s, SIGSTOP, true);
	else
		signal_ranks(s, sig, group);
}

static void signals(struct supervisor *s)
{
	struct signalfd_siginfo si;

	while (read(s->sigfd, &si, sizeof(si)) == sizeof(si)) {
		if (si.ssi_signo == SIGCHLD)
			reap(s);
		else if (s->state != RUN || !watchers_signal(s, si.ssi_signo))
			forward(s, si.ssi_signo);
	}
}

/* The sooner of two waits, in ms; a negative one has no end. */
static int sooner(int a, int b)
{
	return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* 0: there is no such time. */
static int ms_until(uint64_t then, uint64_t now)
{
	return !then ? -1 : then > now ? (int)(then - now) : 0;
}

static int poll_ms(struct supervisor *s)
{
	uint64_t now = now_ms();
	int ms = sooner(ms_until(s->deadline, now), ms_until(s->judge, now));

	ms = sooner(ms, jobboard_step(&s->board, &s->info));
	EACH_WATCHER(s, w, step)
		ms = sooner(ms, w->step(s->job, s->state == RUN));
	/* The end of a grandchild sends us no SIGCHLD. */
	if (s->state == FAMILY)
		ms = sooner(ms, 20);
	/* Nor does a proxy that stays. */
	if (s->state == PROXIES && s->taken)
		ms = sooner(ms, 5);
	if (s->n_refused)
		ms = sooner(ms, 200);
	return ms;
}

static void loop(struct supervisor *s)
{
	struct pollfd *p = s->poll;
	int ranks = OTHERS, n, events;

	p[0] = (struct pollfd){ .fd = s->sigfd, .events = POLLIN };
	p[1] = (struct pollfd){ .fd = s->job->front_pipe, .events = POLLIN };
	EACH_WATCHER(s, w, hear)
		p[ranks++] = (struct pollfd){ .fd = w->fd(), .events = POLLIN };
	for (int r = 0; r < s->info.ranks; r++)
		p[ranks + r] = (struct pollfd){ .fd = s->rank[r].listen, .events = POLLIN };
	n = ranks + s->info.ranks;
	for (;;) {
		step_states(s);
		if (s->state == END) {
			hush_watchers(s);
			return;
		}
		if (s->changed) {
			s->changed = false;
			rundir_write(&s->job->dir, &s->info);
		}
		if (s->state >= PROXIES)
			n = ranks;
		p[2] = (struct pollfd){ .fd = s->status_pipe[0], .events = POLLIN };
		events = poll(p, n, poll_ms(s));
		if (events < 0)
			continue;
		if (events)
			hush_watchers(s);
		if (p[0].revents)
			signals(s);
		if (p[1].revents) {
			p[1].fd = -1;
			orphaned(s);
		}
		if (p[2].revents & POLLIN)
			read_status(s);
		else if (p[2].revents)		/* init is dead, or about to be */
			close_status(s);
		hear_watchers(s, p + OTHERS);
		for (int i = ranks; i < n; i++)
			if (p[i].revents)
				connection(s, i - ranks);
		drop_refused(s);
	}
}

/* ---------------------------------------------------------------------------- restoring */

pid_t job_host_pid(pid_t root, pid_t inner)
{
	return family_find(root, inner);
}

bool job_stopping(const struct job *job)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	struct pollfd p = { .fd = job->front_pipe, .events = POLLIN };
	sigset_t pending;
	bool stop = poll(&p, 1, 0) > 0;

	/* These signals are blocked; the loop reads them later. */
	sigpending(&pending);
	for (int i = 0; i < 4; i++)
		stop |= sigismember(&pending, ends[i]);
	return stop;
}

/* Starts the proxies of the saved job, with --restore. */
static int restore_proxies(struct supervisor *s, const struct rundir_job *was)
{
	struct rundir_proxy *p = calloc(was->proxies ?: 1, sizeof(*p));
	pid_t pid;
	int seat;

	free(s->info.proxy);
	s->info.proxy = p;
	s->info.proxies = 0;
	if (!p)
		return -ENOMEM;
	for (int i = 0; i < was->proxies; i++) {
		const struct rundir_proxy *w = &was->proxy[i];

		if (w->rank < 0 || w->rank >= s->info.ranks)
			return -EBADMSG;
		seat = seating_seat(s->job->seating, w->seat);
		if (seat >= 0)
			jobboard_seat(&s->board, s->job->seating, w->rank, seat);
		pid = seat < 0 ? seat : start_proxy(s->job, w->rank, w->serial, s->board.fd, seat, -1);
		if (pid < 0) {
			say_errno(pid, "the proxy %s cannot be executed", s->job->places->proxy);
			return pid;
		}
		p[s->info.proxies] = (struct rundir_proxy){ w->rank, w->serial, pid, 0, seat, "?" };
		s->info.proxies++;
		if (w->serial >= s->rank[w->rank].serial)
			s->rank[w->rank].serial = w->serial + 1;
	}
	return 0;
}

/* Maps CRIU's old keys to the files that the ranks get now, and to init's pipe. */
static size_t inherited(struct supervisor *s, const struct rundir_job *was, int null,
			struct criu_fd *list)
{
	size_t n = 0, known;
	int fd[3];

	for (int r = 0; r < s->info.ranks; r++) {
		rank_fds(s, r, null, fd);
		for (int i = 0; i < 3; i++) {
			const char *key = was->rank[r].stdio[i];

			for (known = 0; known < n && strcmp(list[known].key, key); known++)
				;
			if (*key && known == n)
				list[n++] = (struct criu_fd){ fd[i], key };
		}
	}
	if (was->init)
		list[n++] = (struct criu_fd){ s->status_pipe[1], was->status };
	return n;
}

static void adopt(struct supervisor *s, const struct rundir_job *was, pid_t root)
{
	s->info.init = was->init ? root : 0;
	for (int r = 0; r < s->info.ranks; r++) {
		struct rundir_rank *rank = &s->info.rank[r];
		const struct rundir_rank *w = &was->rank[r];

		rank->state = w->state;
		rank->code = w->code;
		rank->inner = was->init ? w->inner : root;
		rank->pid = was->init ? family_find(root, w->inner) : root;
		s->running += w->state == RANK_RUNNING;
	}
	/* init reports again the ranks that ended after the job file was written. */
	if (s->info.init)
		kill(s->info.init, SIGUSR1);
}

static int restore_tree(struct supervisor *s, const struct job_restore *r, struct why *why)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC), err = 0;
	struct criu_fd *list = calloc(3 * s->info.ranks + 1, sizeof(*list));
	pid_t root;

	if (null < 0 || !list || (r->was->init && open_status(s)))
		err = -ENOMEM;
	if (!err) {
		root = r->tree(r->arg, s->job, list, inherited(s, r->was, null, list), why);
		err = root < 0 ? root : 0;
	}
	free(list);
	if (null >= 0)
		close(null);
	if (s->status_pipe[1] >= 0)
		close(s->status_pipe[1]);
	s->status_pipe[1] = -1;
	if (err)
		return err;
	adopt(s, r->was, root);
	err = r->go ? r->go(r->arg, s->job, s->info.proxy, s->info.proxies, root, why) : 0;
	for (int i = 0; i < s->info.proxies; i++)
		family_name(s->info.proxy[i].client, s->info.proxy[i].name);
	return err;
}

/* Restores the ranks. After a failure, which is printed, it ends all that was started. */
static void restore_ranks(struct supervisor *s)
{
	const struct job_restore *r = s->job->restore;
	struct why why = { 0 };
	int err;

	if (r->was->ranks != s->info.ranks) {
		say("the job had %d ranks, not %d", r->was->ranks, s->info.ranks);
		err = -EINVAL;
	} else {
		err = restore_proxies(s, r->was);
	}
	if (!err) {
		rundir_write(&s->job->dir, &s->info);
		err = r->proxies ? r->proxies(r->arg, s->job, &why) : 0;
	}
	s->job->former = s->n_kept;
	drop_kept(s, err);
	if (!err && r->tree)
		err = restore_tree(s, r, &why);
	if (*why.text)
		say("%s", why.text);
	close_pipes(s);
	s->changed = true;
	if (!err && r->tree)
		return;
	s->failed = true;
	s->unrestored = err;
	s->status = err ? EXIT_OURS : 0;
	for (int i = 0; !s->running && i < s->info.ranks; i++)
		s->info.rank[i].state = RANK_EXITED;
	signal_ranks(s, SIGKILL, true);
	if (s->info.init)
		kill(s->info.init, SIGKILL);
	end_ranks(s);
}

/* The job is over. True: again() has a restore; the supervisor's state is reset for it. */
static bool again(struct supervisor *s)
{
	enum job_end end = s->unrestored ? JOB_UNRESTORED : s->taken ? JOB_TAKEN :
			   s->lost ? JOB_LOST : JOB_ENDED;
	struct job *job = s->job;

	if (!job->again || s->told || s->orphaned)
		return false;
	job->restore = job->again(job->again_arg, job, end, s->status);
	if (!job->restore)
		return false;
	close_status(s);
	s->state = RUN;
	s->deadline = 0;
	s->running = s->status = s->pressed = 0;
	s->judge = 0;
	memset(s->left, 0, s->info.ranks * sizeof(*s->left));
	s->failed = s->taken = s->lost = s->unrestored = false;
	if (s->info.ranks > 1 && open_pipes(s)) {
		say_errno(EMFILE, "the pipes of the ranks");
		s->status = EXIT_OURS;
		return false;
	}
	start_watchers(s);	/* the former life's files will do where new ones cannot be written */
	return true;
}

/* ------------------------------------------------------------------------ start and end */

const int job_limits[JOB_LIMITS] = { RLIMIT_FSIZE, RLIMIT_CPU, RLIMIT_NOFILE, RLIMIT_AS, RLIMIT_DATA,
				     RLIMIT_MEMLOCK, RLIMIT_NPROC };

/*
 * A proxy needs more than its client's limits: its channel is a file of terabytes, and it computes
 * for the client. The first two limits kill a process that reaches them, so root removes them.
 */
static void raise_limits(const struct job *job)
{
	const struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };

	for (int i = 0; i < JOB_LIMITS; i++) {
		struct rlimit most = job->was.limit[i];

		most.rlim_cur = most.rlim_max;
		if (i > 1 || setrlimit(job_limits[i], &none))
			setrlimit(job_limits[i], &most);
	}
}

void job_seating(const struct job *job, struct seating *t)
{
	const struct job_options *opt = job->opt;

	seating_make(t, opt->ranks, opt->on.given ? opt->sees : job->devices);
	if (opt->on.given)
		seating_put(t, job->map);
	seating_let_share(t, opt->share, SHARE_UNSAID);
}

static int prepare(struct supervisor *s, const sigset_t *handled)
{
	int n = s->job->opt->ranks, err = 0;

	raise_limits(s->job);
	s->rank = calloc(n, sizeof(*s->rank));
	s->leaving = calloc(n, sizeof(*s->leaving));
	s->left = calloc(n, sizeof(*s->left));
	s->info.rank = calloc(n, sizeof(*s->info.rank));
	s->poll = calloc(OTHERS + JOB_WATCHERS_MAX + n, sizeof(*s->poll));
	s->info.command = s->job->restore ? strdup(s->job->restore->was->command) :
					    rundir_quote(s->job->opt->command);
	s->sigfd = signalfd(-1, handled, SFD_CLOEXEC | SFD_NONBLOCK);
	if (!s->rank || !s->leaving || !s->left || !s->info.rank || !s->poll || !s->info.command)
		err = -ENOMEM;
	else if (s->sigfd < 0)
		err = -errno;
	if (err)
		say_errno(err, "the job cannot be started");
	s->info.pid = s->job->front;
	s->info.supervisor = getpid();
	s->info.uid = geteuid();
	snprintf(s->info.path, sizeof(s->info.path), "%s", s->job->dir.path);
	s->info.started_ns = wall_ns();
	s->info.devices = s->job->opt->devices;
	s->job->seating = &s->info.seating;
	if (!s->job->restore)
		job_seating(s->job, &s->info.seating);
	s->info.terminal = s->job->terminal;
	s->info.ranks = err ? 0 : n;
	s->job->port = start_free_port();
	if (s->job->port < 0 && n > 1) {
		err = s->job->port;
		say_errno(err, "no free port for MASTER_PORT");
	}
	for (int r = 0; r < n && !err; r++)
		err = open_socket(s, r);
	if (!err && n > 1) {
		err = open_pipes(s);
		if (err)
			say_errno(err, "the pipes of the ranks");
	}
	return err;
}

/* A check of a checkpoint, or a failed restore, is no life of the job. */
static bool lives(const struct supervisor *s)
{
	const struct job_restore *r = s->job->restore;

	return (!r || r->tree) && !s->unrestored;
}

static const char *end_text(const struct supervisor *s)
{
	return s->taken ? "checkpointed" : s->lost ? "a proxy was lost" : s->unrestored ? "not restored" :
	       s->told ? "ended by a signal" : s->orphaned ? "its launcher was killed" :
	       s->failed ? "failed" : "ended";
}

static void close_slices(struct job *job)
{
	for (int d = 0; d < SEATING_DEVICES; d++)
		for (int end = 0; end < 2; end++) {
			if (job->slices[d][end])
				close(job->slices[d][end]);
			job->slices[d][end] = 0;
		}
}

/* A socket for each device that several ranks share by slices; new ones for each life. */
static int open_slices(struct job *job)
{
	int rc = 0;

	close_slices(job);
	for (int d = 0; job->seating->slices && d < SEATING_DEVICES && !rc; d++)
		if (seating_sharers(job->seating, 0, d) > 1)
			rc = socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, job->slices[d]) ? -errno : 0;
	return rc;
}

/* One life of the job: from the start of its ranks, or their restore, until all is gone. */
static void live(struct supervisor *s)
{
	int rc;

	if (s->job->restore)
		s->info.seating = *s->job->restore->seating;
	rc = open_slices(s->job);
	if (rc)
		say_errno(rc, "the ranks of a device cannot share it by slices, and share it together");
	jobboard_start(&s->board, &s->info, s->job->opt->collective_ms);
	if (s->job->restore)
		restore_ranks(s);
	else
		start_ranks(s);
	passed_close();
	EACH_WATCHER(s, w, started)
		w->started(s->job, lives(s));
	loop(s);
	EACH_WATCHER(s, w, stop)
		w->stop(s->job);
}

int job_supervise(struct job *job, const sigset_t *handled)
{
	struct supervisor s = { .job = job, .changed = true, .status_pipe = { -1, -1 } };
	int proxies[JOB_RANKS_MAX];
	bool started;

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	prctl(PR_SET_NAME, "singvgpu-run");
	/* Not in the front's group: signals that end or stop that group must not reach us. */
	setpgid(0, 0);
	signal(SIGTTOU, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	job->info = &s.info;
	job->board = &s.board;
	started = !prepare(&s, handled) && !start_watchers(&s);
	if (started) {
		do
			live(&s);
		while (again(&s));
		drop_kept(&s, true);
	} else {
		s.status = EXIT_OURS;
		if (s.prefixer > 0)
			kill(s.prefixer, SIGKILL);
	}
	for (int r = 0; r < s.info.ranks; r++)
		proxies[r] = s.rank[r].serial;
	if (job->opt->trace && started)
		merge_traces(job, s.info.ranks, proxies, job->opt->summary);
	EACH_WATCHER(&s, w, close)
		w->close(job, s.status, end_text(&s));
	jobboard_stop(&s.board, &s.info);
	close_slices(job);
	rundir_remove(&job->dir);
	if (started && !s.told && !s.orphaned && !s.taken)
		EACH_WATCHER(&s, w, report)
			w->report(job, s.status);
	return s.status;
}
