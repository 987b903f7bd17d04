// SPDX-License-Identifier: Apache-2.0
/*
 * signals.c - signals that are pending, blocked, handled or waited for; processes that are stopped or ended
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "kinds.h"

static void block(int sig)
{
	sigset_t s;

	sigemptyset(&s);
	sigaddset(&s, sig);
	NEED(!sigprocmask(SIG_BLOCK, &s, NULL));
}

static bool takes(int sig, siginfo_t *i)
{
	struct timespec none = { 0, 0 };
	sigset_t s;

	sigemptyset(&s);
	sigaddset(&s, sig);
	return sigtimedwait(&s, i, &none) == sig;
}

static void pending(void)
{
	siginfo_t i;

	block(SIGUSR1);
	NEED(!kill(getpid(), SIGUSR1));
	stand();
	IS(takes(SIGUSR1, &i) && i.si_code == SI_USER && i.si_pid == getpid() && !takes(SIGUSR1, &i));
}

static void queued(void)
{
	siginfo_t i;

	block(SIGRTMIN + 3);
	for (int n = 1; n < 4; n++)
		NEED(!sigqueue(getpid(), SIGRTMIN + 3, (union sigval){ .sival_int = n }));
	stand();
	for (int n = 1; n < 4; n++)
		IS(takes(SIGRTMIN + 3, &i) && i.si_value.sival_int == n);
}

static void pending_thread(void)
{
	siginfo_t i;

	block(SIGUSR2);
	NEED(!syscall(SYS_tgkill, getpid(), gettid(), SIGUSR2));
	stand();
	IS(takes(SIGUSR2, &i) && (i.si_code == SI_TKILL || i.si_code == SI_USER));
}

static volatile sig_atomic_t seen;
static char *volatile where;

static void on_signal(int sig, siginfo_t *i, void *arg)
{
	(void)i, (void)arg;
	seen = sig;
	where = __builtin_frame_address(0);
}

static void handler(void)
{
	struct sigaction a = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER }, is;

	sigaddset(&a.sa_mask, SIGHUP);
	NEED(!sigaction(SIGUSR1, &a, NULL));
	stand();
	IS(!sigaction(SIGUSR1, NULL, &is) && (is.sa_flags & 0x50000004) == a.sa_flags && sigismember(&is.sa_mask, SIGHUP));
	IS(!raise(SIGUSR1) && seen == SIGUSR1);
}

static void ignored(void)
{
	signal(SIGINT, SIG_IGN);
	stand();
	IS(signal(SIGINT, SIG_DFL) == SIG_IGN);
}

static void blocked(void)
{
	sigset_t s;

	block(SIGTERM);
	block(SIGRTMAX);
	stand();
	IS(!sigprocmask(SIG_BLOCK, NULL, &s) && sigismember(&s, SIGTERM) && sigismember(&s, SIGRTMAX) &&
	   !sigismember(&s, SIGINT));
}

static char other_stack[65536];

static void stack(void)
{
	struct sigaction a = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	stack_t s = { .ss_sp = other_stack, .ss_size = sizeof(other_stack) };

	NEED(!sigaltstack(&s, NULL) && !sigaction(SIGUSR1, &a, NULL));
	stand();
	IS(!raise(SIGUSR1) && where > other_stack && where < other_stack + sizeof(other_stack));
}

static void file(void)
{
	struct signalfd_siginfo is;
	sigset_t s;
	int fd;

	block(SIGUSR1);
	sigemptyset(&s);
	sigaddset(&s, SIGUSR1);
	fd = signalfd(-1, &s, SFD_NONBLOCK);
	NEED(fd >= 0 && !raise(SIGUSR1));
	stand();
	IS(read(fd, &is, sizeof(is)) == sizeof(is) && is.ssi_signo == SIGUSR1);
}

static void waited(void)
{
	pid_t pid = fork();
	int status, sig;
	sigset_t s;

	NEED(pid >= 0);
	sigemptyset(&s);
	sigaddset(&s, SIGUSR1);
	if (!pid) {
		block(SIGUSR1);
		_exit(sigwait(&s, &sig) || sig != SIGUSR1);
	}
	usleep(200000);
	stand();
	IS(!kill(pid, SIGUSR1) && waitpid(pid, &status, 0) == pid && !status);
}

static void paused(void)
{
	struct sigaction a = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	int status;
	pid_t pid;

	sigaction(SIGUSR1, &a, NULL);
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		pause();
		_exit(errno != EINTR || seen != SIGUSR1);
	}
	usleep(200000);
	stand();
	IS(!kill(pid, SIGUSR1) && waitpid(pid, &status, 0) == pid && !status);
}

static void stopped(void)
{
	int status;
	pid_t pid = fork();

	NEED(pid >= 0);
	if (!pid)
		while (pause())
			;
	NEED(!kill(pid, SIGSTOP) && waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
	stand();
	IS(!kill(pid, SIGCONT) && waitpid(pid, &status, WCONTINUED) == pid && WIFCONTINUED(status));
	IS(!kill(pid, SIGTERM) && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
}

static void ended(void)
{
	siginfo_t i;
	int status;
	pid_t pid = fork();

	NEED(pid >= 0);
	if (!pid)
		_exit(42);
	NEED(!waitid(P_PID, pid, &i, WEXITED | WNOWAIT));
	stand();
	IS(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

static void killed(void)
{
	siginfo_t i;
	int status;
	pid_t pid = fork();

	NEED(pid >= 0);
	if (!pid)
		while (pause())
			;
	NEED(!kill(pid, SIGKILL) && !waitid(P_PID, pid, &i, WEXITED | WNOWAIT));
	stand();
	IS(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void group(void)
{
	pid_t pid = fork();
	int status;

	NEED(pid >= 0);
	if (!pid)
		while (pause())
			;
	NEED(!setpgid(pid, 0));
	stand();
	IS(getpgid(pid) == pid && !killpg(pid, SIGTERM) && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
}

static void session(void)
{
	pid_t pid = fork();
	int status;

	NEED(pid >= 0);
	if (!pid) {
		setsid();
		stand();
		_exit(getsid(0) != getpid());
	}
	stand_with(1);
	IS(waitpid(pid, &status, 0) == pid && !status);
}

static void orphan(void)
{
	int p[2], status;
	pid_t pid, sid;

	NEED(!pipe(p));
	pid = fork();
	if (!pid) {
		setsid();
		sid = getpid();
		if (!fork()) {
			stand();
			sid = getsid(0) == sid ? 0 : 1;
			_exit(write(p[1], &sid, sizeof(sid)) < 0);
		}
		_exit(0);
	}
	NEED(waitpid(pid, &status, 0) == pid);
	stand_with(1);
	IS(read(p[0], &sid, sizeof(sid)) == sizeof(sid) && !sid);
}

static void parent_dies(void)
{
	int sig = 0;

	NEED(!prctl(PR_SET_PDEATHSIG, SIGUSR2));
	stand();
	IS(!prctl(PR_GET_PDEATHSIG, &sig) && sig == SIGUSR2);
}

static void traced(void)
{
	int status;
	pid_t pid = fork();

	NEED(pid >= 0);
	if (!pid) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		_exit(0);
	}
	NEED(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	stand();
	IS(!ptrace(PTRACE_CONT, pid, 0, 0) && waitpid(pid, &status, 0) == pid && !status);
}

static const struct kind kinds[] = {
	{ "signal-pending", pending, false }, { "signals-queued", queued, false },
	{ "signal-pending-thread", pending_thread, false }, { "signal-handler", handler, false },
	{ "signal-ignored", ignored, false }, { "signals-blocked", blocked, false },
	{ "signal-stack", stack, false }, { "signalfd", file, false }, { "signal-waited", waited, false },
	{ "paused", paused, false }, { "stopped-child", stopped, false }, { "ended-child", ended, false },
	{ "killed-child", killed, false }, { "process-group", group, false }, { "session", session, false },
	{ "session-of-an-ended", orphan, false }, { "parent-death-signal", parent_dies, false },
	{ "traced-child", traced, true }, { 0 }
};

const struct family signals_family = { "signals", kinds };
