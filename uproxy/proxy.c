// SPDX-License-Identifier: Apache-2.0
/*
 * proxy.c - singvgpu-proxy: owns the device for one client process, as long as that lives
 *
 * Started by `singvgpu run` with an accepted connection. Exit status: 0 the client is gone, 1 it
 * broke a rule, 2 the session could not start; the client and the log get the reason.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "comm_i.h"
#include "common.h"
#include "control_i.h"
#include "crowd.h"
#include "device_memory.h"
#include "held.h"
#include "log.h"
#include "print.h"
#include "session.h"
#include "slice.h"
#include "stat_i.h"
#include "trace_i.h"

struct options {
	struct session_options session;
	int socket;
	int board, seat;	/* of the job's collectives; board -1: none */
	const char *log, *stat, *trace, *control;
	bool restore;
};

static const struct option longs[] = {
	{ "socket", required_argument, NULL, 's' },
	{ "driver", required_argument, NULL, 'd' },
	{ "device", required_argument, NULL, 'n' },
	{ "map", required_argument, NULL, 'm' },
	{ "devices", required_argument, NULL, 'D' },
	{ "sharers", required_argument, NULL, 'a' },
	{ "budget", required_argument, NULL, 'b' },
	{ "stat", required_argument, NULL, 'S' },
	{ "log", required_argument, NULL, 'l' },
	{ "trace", required_argument, NULL, 't' },
	{ "window", required_argument, NULL, 'w' },
	{ "backend", required_argument, NULL, 'B' },
	{ "control", required_argument, NULL, 'c' },
	{ "board", required_argument, NULL, 'C' },
	{ "seat", required_argument, NULL, 'e' },
	{ "slices", required_argument, NULL, 'i' },
	{ "whole", no_argument, NULL, 'W' },
	{ "reduction", required_argument, NULL, 'R' },
	{ "restore", no_argument, NULL, 'r' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

#define KEPT_MAX 64	/* the descriptors that options name lie below 3 + this */

static const char usage[] =
	"Usage: singvgpu-proxy --socket FD [--driver PATH] [--device N] [--budget BYTES]\n"
	"                      [--stat PATH] [--log PATH] [--trace PATH] [--window BASE:LEN,...]\n"
	"                      [--backend auto|kmod|memfd] [--control PATH] [--board FD --seat N]\n"
	"                      [--reduction tree|nccl] [--map N,N,...] [--devices N] [--sharers N,N,...]\n"
	"                      [--slices FD,FD,...] [--whole]\n"
	"       singvgpu-proxy --restore --control PATH [as above]\n"
	"Owns a device for the client behind the socket FD, or for one that is restored. `singvgpu run`\n"
	"and `singvgpu restore` start it.\n";

static int backend_of(const char *name, enum ring_backend *b)
{
	static const char *const names[] = { "auto", "kmod", "memfd" };

	for (unsigned int i = 0; i < 3; i++)
		if (!strcmp(name, names[i])) {
			*b = (enum ring_backend[]){ RING_AUTO, RING_KMOD, RING_MEMFD }[i];
			return 0;
		}
	return -EINVAL;
}

static int number(const char *text, uint64_t *v)
{
	char *p;

	errno = 0;
	*v = strtoull(text, &p, 0);
	return errno || p == text || *p || *text == '-' ? -EINVAL : 0;
}

/* "N,N,…", of each device, the largest being `most`. */
static int numbers(char *text, uint16_t to[SV_DEVICES_MAX], uint64_t most)
{
	char *save = NULL, *word = strtok_r(text, ",", &save);
	uint64_t v;
	int n = 0;

	for (; word; word = strtok_r(NULL, ",", &save)) {
		if (n == SV_DEVICES_MAX || number(word, &v) || v > most)
			return -EINVAL;
		to[n++] = v;
	}
	return n == SV_DEVICES_MAX ? 0 : -EINVAL;
}

static int parse(int argc, char **argv, struct options *o)
{
	uint64_t v;
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		int bad = 0;

		switch (c) {
		case 's':
			bad = number(optarg, &v) || v >= 3 + KEPT_MAX;
			o->socket = v;
			break;
		case 'd':
			o->session.driver = optarg;
			break;
		case 'n':
			bad = number(optarg, &v) || v >= SV_DEVICES_MAX;
			o->session.device = v;
			break;
		case 'm':
			bad = numbers(optarg, o->session.map, SV_DEVICES_MAX - 1);
			o->session.mapped = true;
			break;
		case 'D':
			bad = number(optarg, &v) || !v || v > SV_DEVICES_MAX;
			o->session.devices = v;
			break;
		case 'a':
			bad = numbers(optarg, o->session.sharers, UINT16_MAX);
			break;
		case 'b':
			bad = number(optarg, &o->session.budget);
			break;
		case 'S':
			o->stat = optarg;
			break;
		case 'l':
			o->log = optarg;
			break;
		case 't':
			o->trace = optarg;
			break;
		case 'w':
			o->session.windows = sv_windows_parse(optarg, o->session.window);
			bad = o->session.windows < 0;
			break;
		case 'B':
			bad = backend_of(optarg, &o->session.backend);
			break;
		case 'c':
			o->control = optarg;
			break;
		case 'i':
			bad = numbers(optarg, o->session.slices, 1 + KEPT_MAX);
			break;
		case 'W':
			o->session.whole = true;
			break;
		case 'C':
			bad = number(optarg, &v) || v >= 3 + KEPT_MAX;
			o->board = v;
			break;
		case 'e':
			bad = number(optarg, &v) || v >= BOARD_SEATS;
			o->seat = v;
			break;
		case 'R':
			bad = strcmp(optarg, "tree") && strcmp(optarg, "nccl");
			comm_order(strcmp(optarg, "nccl") ? TRANSPORT_TREE : TRANSPORT_NCCL);
			break;
		case 'r':
			o->restore = true;
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			return -EINVAL;
		}
		if (bad) {
			fprintf(stderr, "singvgpu-proxy: bad value '%s'\n", optarg);
			return -EINVAL;
		}
	}
	if (o->restore ? !o->control || o->socket >= 0 : o->socket < 0)
		return -EINVAL;
	return optind == argc ? 0 : -EINVAL;
}

/* Closes all inherited descriptors but those that the options name and, for messages, stderr. */
static void drop_fds(const struct options *o)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), fd = 3;
	bool kept[3 + KEPT_MAX] = { false };

	if (null > 0)
		dup2(null, 0);
	if (o->socket >= 0)
		kept[o->socket] = true;
	if (o->board >= 0)
		kept[o->board] = true;
	for (int d = 0; d < SV_DEVICES_MAX; d++)
		kept[o->session.slices[d]] = kept[o->session.slices[d] + 1] = true;
	for (; fd < 3 + KEPT_MAX; fd++)
		if (!kept[fd])
			close(fd);
	syscall(SYS_close_range, fd, ~0u, 0);
}

/*
 * Signals of a terminal are for the job, which may run on; SIGTERM is for the proxy. Writing beyond
 * RLIMIT_FSIZE is an error without a signal.
 */
static void set_signals(void)
{
	signal(SIGINT, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	signal(SIGUSR2, SIG_IGN);
}

static struct sv_session *of_client;	/* for the handler */

/* SIGUSR2: the supervisor says that the client's process executes another program, which has no session here. */
static void client_left(int sig)
{
	(void)sig;
	ring_lose_peer(of_client->ring);
}

static int receive(int sock, struct sv_connect *con)
{
	struct timeval limit = { .tv_sec = 10 };
	size_t have = 0;

	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	while (have < sizeof(*con)) {
		ssize_t n = recv(sock, (char *)con + have, sizeof(*con) - have, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EPIPE;
		have += n;
	}
	return 0;
}

static int reply(int sock, const struct why *why)
{
	struct sv_connected r = { .status = why->err };

	why_copy(r.why, sizeof(r.why), why);
	return send(sock, &r, sizeof(r), MSG_NOSIGNAL) == sizeof(r) ? 0 : -EPIPE;
}

/* `singvgpu` starts us without randomisation, unless a sandbox refuses that. */
static void check_addresses(void)
{
	if (log_verbose() && addresses_random())
		uproxy_say("addresses of this process are random: a restore may be refused because a "
			   "variable of a module has moved");
}

/* Sends the client its end of the channel, and begins to watch its process. */
static int hand_over(struct sv_session *s, int sock, const struct ucred *peer, struct why *why)
{
	int pidfd = syscall(SYS_pidfd_open, peer->pid, 0), fd, rc;

	if (pidfd < 0)
		return why_set(why, -ESRCH, "cannot watch the client, process %d: %s", peer->pid,
			       strerror(errno));
	share_client(s, pidfd);
	rc = ring_watch_peer(s->ring, pidfd);
	if (rc)
		return why_set(why, rc, "cannot watch the client: %s", ring_strerror(rc));
	fd = ring_client_fd(s->ring);
	if (fd < 0)
		return why_set(why, fd, "the client's end of the channel: %s", ring_strerror(fd));
	rc = reply(sock, why);
	if (!rc)
		rc = ring_pass_fd(sock, fd);
	close(fd);
	return rc ? why_set(why, rc, "the client has gone before it was served") : 0;
}

/* Runs before the client goes on, since a checkpoint may come from then on. */
static void listen_for_control(struct sv_session *s, const struct options *o)
{
	int rc = o->control ? control_open(s, &o->session, o->control) : 0;

	if (rc)		/* the job runs, but cannot be saved */
		tell("no checkpoint of this job is possible: cannot listen at %s: %s", o->control,
		     strerror(-rc));
}

static int start(struct sv_session *s, const struct options *o)
{
	socklen_t len = sizeof(struct ucred);
	struct ucred peer = { 0 };
	struct sv_connect con;
	struct why why = { 0 };
	int rc, home = -1;

	rc = receive(o->socket, &con);
	if (!rc && con.magic == SV_CONNECT_MAGIC && con.others) {
		home = ring_take_fd(o->socket);
		rc = home < 0 ? home : 0;
	}
	if (rc) {
		uproxy_say("no client: %s", strerror(-rc));
		return rc;
	}
	getsockopt(o->socket, SOL_SOCKET, SO_PEERCRED, &peer, &len);
	s->client = s->stat->client = peer.pid;
	rc = uproxy_session_open(s, &o->session, &con, home, &why);
	if (home >= 0)
		close(home);
	if (!rc && common_on)
		rc = slice_start(s, &why);
	if (!rc) {
		stat_device(s, s->shared->dev[s->hal.dev].name);
		if (o->trace && trace_open(o->trace, s->stat))
			uproxy_say("cannot write %s: %s", o->trace, strerror(errno));
		listen_for_control(s, o);
		rc = hand_over(s, o->socket, &peer, &why);
	}
	if (rc) {
		uproxy_say("cannot serve: %s", why.text);
		stat_why(s, &why);
		reply(o->socket, &why);
		return rc;
	}
	close(o->socket);
	return 0;
}

/* Restores the session that the conductor's CTL_RESTORE names. */
static int restore(struct sv_session *s, const struct options *o)
{
	int rc = control_open(s, &o->session, o->control);

	if (rc) {
		tell("cannot listen at %s: %s", o->control, strerror(-rc));
		return rc;
	}
	rc = control_restore(s);
	if (!rc && o->trace && trace_open(o->trace, s->stat))
		uproxy_say("cannot write %s: %s", o->trace, strerror(errno));
	return rc;
}

static void finish(struct sv_session *s, int rc)
{
	struct why why = { 0 };

	log_counts();
	if (rc) {
		why_set(&why, rc, "%s, record %llu: %s", op_name(s->failed_op),
			(unsigned long long)s->failed_seq, s->failed_rule);
		tell("the session ends: %s (%s)", why.text, strerror(-rc));
		why_copy(s->shared->why, sizeof(s->shared->why), &why);
		stat_why(s, &why);
	} else if (log_verbose()) {
		uproxy_say("the client is gone");
	}
	stat_state(s, UPROXY_ENDED);
	control_close();
	trace_close();
	log_close();
}

int main(int argc, char **argv)
{
	static struct sv_session session;
	struct sv_session *s = &session;
	struct options o = {
		.socket = -1,
		.board = -1,
		.session = { .backend = RING_AUTO },
	};
	int rc;

	if (parse(argc, argv, &o)) {
		fputs(usage, stderr);
		return 2;
	}
	/* The soft device may compile beside the program, since this process ends by _exit(). */
	setenv("SINGVGPU_SOFT_COMPILERS", "", 0);
	drop_fds(&o);
	comm_board(o.board, o.seat);
	crowd_board(o.board, o.seat);
	comm_together(o.session.sharers, SV_DEVICES_MAX);
	set_signals();
	held_begin();
	log_open(o.log);
	if (print_begin())
		tell("what the driver prints may wait for its reader: %s", strerror(errno));
	check_addresses();
	s->stat = stat_open(o.stat);
	if (o.restore ? restore(s, &o) : start(s, &o)) {
		stat_state(s, UPROXY_ENDED);
		control_close();
		print_unsaid();
		log_close();
		_exit(2);
	}
	if (log_verbose())
		uproxy_say("serving process %d on device %d, %.64s, by %s", s->client, s->hal.dev,
			   s->stat->device_name, s->hal.path);
	stat_state(s, UPROXY_SERVING);
	of_client = s;
	signal(SIGUSR2, client_left);
	rc = session_serve(s);
	if (comm_there())
		control_close();	/* it is no part of a checkpoint any more */
	if (slice_leave(s))
		comm_leave(rc);
	else
		comm_shut();	/* the supervisor tells the board when this process has ended */
	finish(s, rc);
	/*
	 * The driver frees the session's resources when this process ends. They are not torn down
	 * one by one: kernels may run, and driver threads may be in our callbacks.
	 */
	_exit(rc ? 1 : 0);
}
