// SPDX-License-Identifier: Apache-2.0
/*
 * terminals.c - pseudo-terminals that a job has made: what is in them, their settings, their sessions
 */
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>

#include "kinds.h"

static int outer, inner;

static void pair(void)
{
	NEED(!openpty(&outer, &inner, NULL, NULL, NULL));
}

static bool reads(int fd, const char *text)
{
	char is[64] = "";
	ssize_t n = read(fd, is, sizeof(is) - 1);

	return n == (ssize_t)strlen(text) && same(is, text);
}

static void open_pair(void)
{
	pair();
	stand();
	IS(write(outer, "in\n", 3) == 3 && reads(inner, "in\n"));
	IS(reads(outer, "in\r\n") && write(inner, "out", 3) == 3 && reads(outer, "out"));
}

static void settings(void)
{
	struct termios was, is;

	pair();
	NEED(!tcgetattr(inner, &was));
	cfmakeraw(&was);
	was.c_cc[VINTR] = 7;
	NEED(!tcsetattr(inner, TCSANOW, &was));
	stand();
	IS(!tcgetattr(inner, &is) && is.c_lflag == was.c_lflag && is.c_iflag == was.c_iflag && is.c_cc[VINTR] == 7);
}

static void size(void)
{
	struct winsize w = { 33, 77, 0, 0 }, is = { 0 };

	pair();
	NEED(!ioctl(outer, TIOCSWINSZ, &w));
	stand();
	IS(!ioctl(inner, TIOCGWINSZ, &is) && is.ws_row == 33 && is.ws_col == 77);
}

static void unread(void)
{
	struct termios t;

	pair();
	NEED(!tcgetattr(inner, &t));
	cfmakeraw(&t);
	NEED(!tcsetattr(inner, TCSANOW, &t) && write(inner, "output", 6) == 6);
	stand();
	fcntl(outer, F_SETFL, O_NONBLOCK);
	IS(reads(outer, "output"));
}

static void outer_alone(void)
{
	int number, is;

	outer = posix_openpt(O_RDWR | O_NOCTTY);
	NEED(outer >= 0 && !grantpt(outer) && !unlockpt(outer) && !ioctl(outer, TIOCGPTN, &number));
	stand();
	IS(!ioctl(outer, TIOCGPTN, &is));
	inner = open(ptsname(outer), O_RDWR | O_NOCTTY);
	IS(inner >= 0 && write(outer, "in\n", 3) == 3 && reads(inner, "in\n"));
}

static void packets(void)
{
	int yes = 1;
	char is[8];

	pair();
	NEED(!ioctl(outer, TIOCPKT, &yes));
	stand();
	IS(write(inner, "out", 3) == 3 && read(outer, is, sizeof(is)) == 4 && !is[0] && same(is + 1, "out"));
}

static void exclusive(void)
{
	pair();
	NEED(!ioctl(inner, TIOCEXCL));
	stand();
	IS(!ioctl(inner, 0x80045440, &outer) && outer);	/* TIOCGEXCL */
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
}

static void controlling(void)
{
	int status;
	pid_t pid;

	pair();
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		signal(SIGINT, on_interrupt);
		setsid();
		if (ioctl(inner, TIOCSCTTY, 0))
			_exit(9);
		stand();
		for (int n = 0; n < 1000 && !interrupted; n++)
			usleep(10000);
		_exit(!interrupted || tcgetpgrp(inner) != getpid() || open("/dev/tty", O_RDWR) < 0);
	}
	stand_with(1);
	IS(write(outer, "\3", 1) == 1 && waitpid(pid, &status, 0) == pid && !status);
}

static void foreground(void)
{
	int status;
	pid_t pid;

	pair();
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		pid_t other;

		setsid();
		signal(SIGTTOU, SIG_IGN);
		if (ioctl(inner, TIOCSCTTY, 0))
			_exit(9);
		other = fork();
		if (!other)
			while (pause())
				;
		if (setpgid(other, 0) || tcsetpgrp(inner, other))
			_exit(8);
		stand();
		status = tcgetpgrp(inner) != other;
		kill(other, SIGKILL);
		_exit(status);
	}
	stand_with(1);
	IS(waitpid(pid, &status, 0) == pid && !status);
}

static void opened_dev_tty(void)
{
	int status;
	pid_t pid;

	pair();
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		int fd;

		setsid();
		if (ioctl(inner, TIOCSCTTY, 0) || (fd = open("/dev/tty", O_RDWR)) < 0)
			_exit(9);
		stand();
		_exit(write(fd, "hi", 2) != 2);
	}
	stand_with(1);
	IS(waitpid(pid, &status, 0) == pid && !status && reads(outer, "hi"));
}

static void hung_up(void)
{
	char byte;

	pair();
	NEED(!close(outer));
	stand();
	IS(read(inner, &byte, 1) <= 0);
}

static const struct kind kinds[] = {
	{ "terminal", open_pair, false }, { "terminal-settings", settings, false }, { "terminal-size", size, false },
	{ "terminal-output-unread", unread, true }, { "terminal-outer-alone", outer_alone, false },
	{ "terminal-packets", packets, false }, { "terminal-exclusive", exclusive, true },
	{ "terminal-controlling", controlling, false }, { "terminal-foreground", foreground, false },
	{ "terminal-dev-tty", opened_dev_tty, true }, { "terminal-hung-up", hung_up, true }, { 0 }
};

const struct family terminals_family = { "terminals", kinds };
