// SPDX-License-Identifier: Apache-2.0
/*
 * init.c - process 1 of a job's pid namespace: adopts orphans, reports how the ranks end
 *
 * singvgpu-init PID...: the ranks, which are children of this process already. The only open file
 * is fd 3, the status pipe: it gets a struct init_status for each rank that ends, and after SIGUSR1
 * those of all ended ranks again (the supervisor of a restored job needs them). init ends when no
 * process is left, and tells all once more, since it may have had no time for a SIGUSR1. It ends all
 * processes and itself when the pipe has no reader. Its working folder is the job's in SINGVGPU_RUN:
 * CRIU makes a folder there while it dumps, and two dumps must not meet in one place.
 *
 * init is part of a job's checkpoint. It is linked statically, so that a restore needs no library.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "init.h"

#define RANKS_MAX	256
#define LEAVE_MS	5000

static struct init_status rank[RANKS_MAX];
static bool ended[RANKS_MAX];
static int ranks;
static volatile sig_atomic_t again;

static void on_child(int sig)
{
	(void)sig;
}

static void on_again(int sig)
{
	(void)sig;
	again = 1;
}

/* main finds a pipe without a reader by poll(). */
static void report_end(int r)
{
	while (write(INIT_FD, &rank[r], sizeof(rank[r])) < 0 && errno == EINTR)
		;
}

static void report_ends(void)
{
	for (int r = 0; r < ranks; r++)
		if (ended[r])
			report_end(r);
}

/* False: no process is left. */
static bool reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (int r = 0; r < ranks; r++) {
			if (rank[r].pid != pid || ended[r])
				continue;
			ended[r] = true;
			rank[r].status = status;
			report_end(r);
		}
	}
	return pid == 0;
}

/* The supervisor is dead: our clients get no proxies, and no one else ends the job. */
static void leave(void) __attribute__((noreturn));
static void leave(void)
{
	struct timespec tick = { .tv_nsec = 20000000 };

	kill(-1, SIGTERM);
	kill(-1, SIGCONT);
	for (int ms = 0; ms < LEAVE_MS && reap(); ms += 20)
		nanosleep(&tick, NULL);
	_exit(1);		/* the kernel kills what is left in the namespace */
}

int main(int argc, char **argv)
{
	struct sigaction a = { .sa_handler = on_child };
	sigset_t all, none;

	for (int i = 1; i < argc && ranks < RANKS_MAX; i++)
		rank[ranks++].pid = atoi(argv[i]);
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	sigemptyset(&none);
	sigaction(SIGCHLD, &a, NULL);
	a.sa_handler = on_again;
	sigaction(SIGUSR1, &a, NULL);
	signal(SIGPIPE, SIG_IGN);
	while (reap()) {
		struct pollfd p = { .fd = INIT_FD };

		if (ppoll(&p, 1, NULL, &none) > 0 && p.revents & (POLLERR | POLLNVAL))
			leave();
		if (again)
			report_ends();
		again = 0;
	}
	report_ends();
	return 0;
}
