// SPDX-License-Identifier: Apache-2.0
/*
 * timers.c - timers that are armed, have fired unseen, or are waited for; clocks that go on
 */
#include <poll.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>

#include "kinds.h"

#define FAR	100		/* seconds: longer than a job is away */

static volatile sig_atomic_t fired;

static void on_timer(int sig)
{
	(void)sig;
	fired++;
}

static uint64_t now(clockid_t c)
{
	struct timespec t;

	clock_gettime(c, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* Waits for what comes within some 30 ms, for a hundred times as long on a busy machine. */
static bool fires(void)
{
	for (int n = 0; n < 1000 && !fired; n++)
		usleep(10000);
	return fired;
}

static int timer_file(clockid_t clock, int flags, const struct itimerspec *i)
{
	int fd = timerfd_create(clock, TFD_NONBLOCK);

	NEED(fd >= 0 && !timerfd_settime(fd, flags, i, NULL));
	return fd;
}

static bool file_fires(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t n = 0;

	return poll(&p, 1, 10000) == 1 && read(fd, &n, sizeof(n)) == sizeof(n) && n;
}

static void file_once(void)
{
	struct itimerspec i = { { 0, 0 }, { FAR, 0 } }, is;
	int fd = timer_file(CLOCK_MONOTONIC, 0, &i);

	stand();
	IS(!timerfd_gettime(fd, &is) && is.it_value.tv_sec > 1 && is.it_value.tv_sec <= FAR);
}

static void file_fired(void)
{
	struct itimerspec i = { { 0, 0 }, { 0, 1000000 } };
	int fd = timer_file(CLOCK_MONOTONIC, 0, &i);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	NEED(poll(&p, 1, 5000) == 1);
	stand();
	IS(file_fires(fd));
}

/* Nobody has read its expiries: it must go on to fire. */
static void file_unread(clockid_t clock)
{
	struct itimerspec i = { { 0, 30000000 }, { 0, 30000000 } }, is;
	int fd = timer_file(clock, 0, &i);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	NEED(poll(&p, 1, 5000) == 1);
	stand();
	IS(file_fires(fd));
	for (int n = 0; n < 3; n++)
		IS(file_fires(fd));
	IS(!timerfd_gettime(fd, &is) && is.it_interval.tv_nsec == 30000000);
}

static void file_periodic_unread(void)
{
	file_unread(CLOCK_MONOTONIC);
}

static void file_realtime_unread(void)
{
	file_unread(CLOCK_REALTIME);
}

static void file_boot(void)
{
	struct itimerspec i = { { 0, 40000000 }, { 0, 40000000 } };
	int fd = timer_file(CLOCK_BOOTTIME, 0, &i);

	stand();
	IS(file_fires(fd) && file_fires(fd));
}

static void file_absolute(void)
{
	struct itimerspec i = { { 0, 0 }, { 0, 0 } }, is;
	int fd;

	i.it_value.tv_sec = now(CLOCK_MONOTONIC) / 1000000000 + FAR;
	fd = timer_file(CLOCK_MONOTONIC, TFD_TIMER_ABSTIME, &i);
	stand();
	IS(!timerfd_gettime(fd, &is) && is.it_value.tv_sec > 1 && is.it_value.tv_sec <= FAR);
}

static void file_unarmed(void)
{
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	struct itimerspec is;

	NEED(fd >= 0);
	stand();
	IS(!timerfd_gettime(fd, &is) && !is.it_value.tv_sec && !is.it_value.tv_nsec);
	IS(fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_GETFL) & O_NONBLOCK);
}

static void interval(int which, int sig)
{
	struct itimerval i = { { 0, 30000 }, { 0, 30000 } }, is;
	uint64_t until;

	signal(sig, on_timer);
	NEED(!setitimer(which, &i, NULL));
	stand();
	until = now(CLOCK_MONOTONIC) + 60000000000ull;	/* what hangs waits as long */
	fired = 0;
	while (!fired && now(CLOCK_MONOTONIC) < until)
		;		/* two of them count the time of this process */
	IS(fired && !getitimer(which, &is) && is.it_interval.tv_usec == 30000);
}

static void interval_real(void)
{
	interval(ITIMER_REAL, SIGALRM);
}

static void interval_virtual(void)
{
	interval(ITIMER_VIRTUAL, SIGVTALRM);
}

static void interval_profile(void)
{
	interval(ITIMER_PROF, SIGPROF);
}

static void alarm_far(void)
{
	unsigned int left;

	signal(SIGALRM, on_timer);
	alarm(FAR);
	stand();
	left = alarm(0);
	IS(left > 1 && left <= FAR && !fired);
}

static timer_t posix(clockid_t clock, int notify, const struct itimerspec *i)
{
	struct sigevent e = { .sigev_notify = notify, .sigev_signo = SIGRTMIN + 2, .sigev_value.sival_int = 77 };
	timer_t t;

	e._sigev_un._tid = getpid();
	signal(SIGRTMIN + 2, on_timer);
	NEED(!timer_create(clock, &e, &t) && !timer_settime(t, 0, i, NULL));
	return t;
}

static void posix_signal(void)
{
	struct itimerspec i = { { 0, 30000000 }, { 0, 30000000 } };

	posix(CLOCK_MONOTONIC, SIGEV_SIGNAL, &i);
	stand();
	fired = 0;
	IS(fires());
}

static void posix_thread(void)
{
	struct itimerspec i = { { 0, 30000000 }, { 0, 30000000 } };

	posix(CLOCK_REALTIME, SIGEV_THREAD_ID, &i);
	stand();
	fired = 0;
	IS(fires());
}

static void posix_silent(void)
{
	struct itimerspec i = { { 0, 0 }, { FAR, 0 } }, is;
	timer_t t = posix(CLOCK_MONOTONIC, SIGEV_NONE, &i);

	stand();
	IS(!timer_gettime(t, &is) && is.it_value.tv_sec > 1 && is.it_value.tv_sec <= FAR);
}

static void posix_cpu(void)
{
	struct itimerspec i = { { 0, 30000000 }, { 0, 30000000 } };
	uint64_t until;

	posix(CLOCK_PROCESS_CPUTIME_ID, SIGEV_SIGNAL, &i);
	stand();
	until = now(CLOCK_MONOTONIC) + 60000000000ull;	/* what hangs waits as long */
	fired = 0;
	while (!fired && now(CLOCK_MONOTONIC) < until)
		;
	IS(fired);
}

static void posix_number(void)
{
	struct itimerspec i = { { 0, 0 }, { FAR, 0 } };
	timer_t a = posix(CLOCK_MONOTONIC, SIGEV_NONE, &i), b = posix(CLOCK_MONOTONIC, SIGEV_NONE, &i);

	NEED(!timer_delete(a));
	stand();
	IS(!timer_delete(b) && timer_delete(a));
}

static void clock_goes_on(void)
{
	uint64_t was = now(CLOCK_MONOTONIC), is;

	stand();
	is = now(CLOCK_MONOTONIC);
	IS(is >= was && is - was < 600 * 1000000000ull);
}

/* A relative sleep may end early, as after a signal. */
static void asleep(void)
{
	struct timespec t = { 1, 500000000 };
	int status;
	pid_t pid = fork();

	NEED(pid >= 0);
	if (!pid)
		_exit(clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL) & ~EINTR);
	stand();
	IS(waitpid(pid, &status, 0) == pid && !status);
}

static void asleep_until(void)
{
	uint64_t until = now(CLOCK_MONOTONIC) + 1500000000ull;
	struct timespec t = { until / 1000000000, until % 1000000000 };
	int status;
	pid_t pid = fork();

	NEED(pid >= 0);
	if (!pid)
		_exit(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) || now(CLOCK_MONOTONIC) < until);
	stand();
	IS(waitpid(pid, &status, 0) == pid && !status);
}

static const struct kind kinds[] = {
	{ "timerfd-once", file_once, false }, { "timerfd-fired", file_fired, false },
	{ "timerfd-periodic-unread", file_periodic_unread, false },
	{ "timerfd-realtime-unread", file_realtime_unread, false }, { "timerfd-boottime", file_boot, false },
	{ "timerfd-absolute", file_absolute, false }, { "timerfd-unarmed", file_unarmed, false },
	{ "itimer-real", interval_real, false }, { "itimer-virtual", interval_virtual, false },
	{ "itimer-profile", interval_profile, false }, { "alarm", alarm_far, false },
	{ "posix-timer-signal", posix_signal, false }, { "posix-timer-thread", posix_thread, false },
	{ "posix-timer-silent", posix_silent, false }, { "posix-timer-cpu", posix_cpu, false },
	{ "posix-timer-number", posix_number, false }, { "clock-monotonic", clock_goes_on, false },
	{ "asleep", asleep, false }, { "asleep-until", asleep_until, false }, { 0 }
};

const struct family timers_family = { "timers", kinds };
