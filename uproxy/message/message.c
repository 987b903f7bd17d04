// SPDX-License-Identifier: Apache-2.0
/*
 * message.c - lines for a person, which never wait for their reader: message.h
 *
 * How a line gets into a file without waiting depends on the file:
 *
 *   WRITE  regular files, /dev/null: a write does not wait
 *   SEND   sockets: MSG_DONTWAIT is of one call
 *   OWN    pipes and terminals: opened anew, since O_NONBLOCK belongs to a description, which the job
 *          shares with fd
 *   PAGE   pipes that this user cannot open anew (of another user, before sudo): vmsplice() of a page
 *          has a flag for it
 *   LEND   what is left, such as another user's terminal: the thread writes, and may wait for ever
 */
#define _GNU_SOURCE
#include "message.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS		200	/* between two tries of the thread */
#define STACK_BYTES	(64u << 10)
#define MEM_MAJOR	1	/* /dev/null, /dev/full */

/* ------------------------------------------------------------------------------ the ways */

static int open_anew(int fd, const struct stat *was)
{
	char path[32];
	struct stat st;
	int own;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	/* /dev/ptmx opened anew is another terminal; /dev/tty may be, too. */
	if (own >= 0 && (fstat(own, &st) || st.st_dev != was->st_dev || st.st_ino != was->st_ino ||
			 st.st_rdev != was->st_rdev || (S_ISCHR(st.st_mode) && major(st.st_rdev) == 5))) {
		close(own);
		own = -1;
	}
	return own;
}

/* With the lock. */
static void find_way(struct message *m)
{
	struct stat st;

	assert_held(&m->lock);
	if (m->way != MESSAGE_UNKNOWN)
		return;
	if (m->fd < 0 || fstat(m->fd, &st)) {
		m->fd = -1;
		return;
	}
	m->way = MESSAGE_WRITE;
	if (S_ISSOCK(st.st_mode)) {
		m->way = MESSAGE_SEND;
	} else if (S_ISFIFO(st.st_mode)) {
		m->own = open_anew(m->fd, &st);
		m->way = m->own >= 0 ? MESSAGE_OWN : MESSAGE_PAGE;
	} else if (S_ISCHR(st.st_mode) && major(st.st_rdev) != MEM_MAJOR) {
		m->own = isatty(m->fd) ? open_anew(m->fd, &st) : -1;
		m->way = m->own >= 0 ? MESSAGE_OWN : MESSAGE_LEND;
	}
}

/* The page becomes the pipe's, so it is a fresh one each time. */
static ssize_t put_page(int fd, const char *text, size_t len)
{
	void *page = mmap(NULL, MESSAGE_LINE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec iov = { page, len < MESSAGE_LINE ? len : MESSAGE_LINE };
	ssize_t n;

	if (page == MAP_FAILED)
		return -1;
	memcpy(page, text, iov.iov_len);
	n = vmsplice(fd, &iov, 1, SPLICE_F_NONBLOCK);
	munmap(page, MESSAGE_LINE);
	return n;
}

/* Bytes that fd has taken at once, or -errno; -EAGAIN: none now, others: nobody reads, no room. */
static ssize_t try_write(const struct message *m, const char *text, size_t len)
{
	static const struct timespec none;
	sigset_t pipe, block, was, pending;
	ssize_t n = -1;

	/* No signal: a reader that has gone ends nobody, `stty tostop` stops nobody. */
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	block = pipe;
	sigaddset(&block, SIGTTOU);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &block, &was);
	errno = EAGAIN;
	if (m->way == MESSAGE_WRITE)
		n = write(m->fd, text, len);
	else if (m->way == MESSAGE_SEND)
		n = send(m->fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	else if (m->way == MESSAGE_OWN)
		n = write(m->own, text, len);
	else if (m->way == MESSAGE_PAGE)
		n = put_page(m->fd, text, len);
	n = n < 0 ? -errno : n;
	if (n == -EPIPE && !sigismember(&pending, SIGPIPE))
		sigtimedwait(&pipe, NULL, &none);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	return n == -EINTR ? -EAGAIN : n;
}

/* ------------------------------------------------------------------------ what is kept */

/* With the lock. False: there is no room. */
static bool keep(struct message *m, const char *text, size_t len)
{
	assert_held(&m->lock);
	if (!m->kept)
		m->kept = malloc(MESSAGE_ROOM);
	if (!m->kept || len > MESSAGE_ROOM - m->len)
		return false;
	if (m->at + m->len + len > MESSAGE_ROOM) {
		memmove(m->kept, m->kept + m->at, m->len);
		m->at = 0;
	}
	memcpy(m->kept + m->at + m->len, text, len);
	m->len += len;
	return true;
}

/* What may be written next: whole lines up to MESSAGE_LINE bytes, so that nothing gets between. */
static size_t piece(const struct message *m)
{
	const char *from = m->kept + m->at, *end;

	if (m->len <= MESSAGE_LINE)
		return m->len;
	end = memrchr(from, '\n', MESSAGE_LINE);
	return end ? (size_t)(end - from) + 1 : MESSAGE_LINE;
}

/* With the lock: n bytes of what is kept are written, or -errno: no reader, a full disk. */
static void written(struct message *m, ssize_t n)
{
	assert_held(&m->lock);
	if (n < 0) {
		for (size_t i = 0; i < m->len; i++)
			m->left_out += m->kept[m->at + i] == '\n';
		n = m->len;
	}
	m->at += n;
	m->len -= n;
	if (!m->len)
		m->at = 0;
}

/* With the lock: says how many lines are missing, behind all that is kept. */
static ssize_t say_count(struct message *m)
{
	char line[160];
	bool one = m->left_out == 1;
	int len = snprintf(line, sizeof(line), "%s: %lu line%s left out: the reader of these messages did not "
			   "take %s\n", m->name, m->left_out, one ? "" : "s", one ? "it" : "them");
	ssize_t n = m->way == MESSAGE_LEND ? 0 : try_write(m, line, len);

	assert_held(&m->lock);
	if (n < 0 || (n < len && !keep(m, line + n, len - n)))
		return n < 0 ? n : -EAGAIN;
	m->left_out = 0;
	return n;
}

/* With the lock: writes what can be written now. 0, or -EAGAIN: something is left, or -errno. */
static ssize_t drain(struct message *m)
{
	ssize_t n = 0;

	assert_held(&m->lock);
	while (m->len && n >= 0) {
		n = try_write(m, m->kept + m->at, piece(m));
		if (n != -EAGAIN)
			written(m, n);
	}
	if (n >= 0 && m->left_out)
		n = say_count(m);
	return n < 0 ? n : m->len ? -EAGAIN : 0;
}

/* With the lock, which it drops while it waits. */
static void lend(struct message *m)
{
	char text[MESSAGE_LINE];
	size_t len = piece(m);
	ssize_t n;

	assert_held(&m->lock);
	memcpy(text, m->kept + m->at, len);
	lock_drop(&m->lock);
	lock_may_wait("a reader of lines");
	n = write(m->fd, text, len);
	n = n < 0 ? -errno : n;
	lock_take(&m->lock);
	written(m, n == -EINTR ? 0 : n);
	if (!m->len && m->left_out && n > 0)
		say_count(m);
}

static void wait_for_reader(const struct message *m)
{
	struct pollfd p = { .fd = m->way == MESSAGE_OWN ? m->own : m->fd, .events = POLLOUT };

	lock_may_wait("a reader of lines");
	poll(&p, 1, LOOK_MS);
	/* A terminal that another process writes to can be ready and take nothing. */
	nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
}

static void *pass_on(void *arg)
{
	struct message *m = arg;
	ssize_t n = -EAGAIN;

	lock_take(&m->lock);
	while (n == -EAGAIN) {
		if (m->way == MESSAGE_LEND) {
			lend(m);
			n = m->len ? -EAGAIN : 0;
			continue;
		}
		n = drain(m);
		if (n == -EAGAIN) {
			lock_drop(&m->lock);
			wait_for_reader(m);
			lock_take(&m->lock);
		}
	}
	m->thread = false;
	lock_drop(&m->lock);
	return NULL;
}

/* With the lock. Without a thread the next line tries again. */
static void start_thread(struct message *m)
{
	sigset_t all, was;
	pthread_attr_t attr;
	pthread_t thread;

	assert_held(&m->lock);
	if (m->thread || pthread_attr_init(&attr))
		return;
	sigfillset(&all);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_sigmask(SIG_BLOCK, &all, &was);
	m->thread = !pthread_create(&thread, &attr, pass_on, m);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	pthread_attr_destroy(&attr);
}

/* ---------------------------------------------------------------------------- the calls */

/* The state of a fork's parent is not ours: its thread may have held the lock. */
static void take(struct message *m)
{
	pid_t pid = getpid();

	if (__atomic_load_n(&m->owner, __ATOMIC_RELAXED) != pid) {
		if (m->owner) {
			lock_init(&m->lock, PROXY_MESSAGE);
			m->thread = false;
			m->at = m->len = m->left_out = 0;
		}
		__atomic_store_n(&m->owner, pid, __ATOMIC_RELAXED);
	}
	lock_take(&m->lock);
	find_way(m);
}

/* With the lock. What was kept goes first; behind lines left out comes their count first. */
static void put(struct message *m, const char *text, size_t len)
{
	ssize_t n = -EAGAIN;

	assert_held(&m->lock);
	if (!m->thread && m->way != MESSAGE_LEND) {
		n = drain(m);
		if (!n)
			n = try_write(m, text, len);
	}
	if (n == (ssize_t)len)
		return;
	if ((n < 0 && n != -EAGAIN) || m->left_out ||
	    !keep(m, text + (n > 0 ? n : 0), len - (n > 0 ? n : 0)))
		m->left_out++;
	if (n >= 0 || n == -EAGAIN)
		start_thread(m);
}

void message_put(struct message *m, const char *line, size_t len)
{
	int was = errno;

	take(m);
	if (m->fd >= 0)
		put(m, line, len);
	lock_drop(&m->lock);
	errno = was;
}

bool message_show(struct message *m, const char *text, size_t len)
{
	int was = errno;
	bool shown;

	take(m);
	shown = m->fd >= 0 && !m->len && !m->left_out;
	if (shown)
		put(m, text, len);
	lock_drop(&m->lock);
	errno = was;
	return shown;
}

bool message_finish(struct message *m, long ms)
{
	const struct timespec tick = { .tv_nsec = 5000000 };
	bool done;

	for (;; ms -= 5) {
		take(m);
		done = m->fd < 0 || (!m->len && !m->left_out);
		if (!done && !m->thread)
			start_thread(m);
		lock_drop(&m->lock);
		if (done || ms <= 0)
			return done;
		nanosleep(&tick, NULL);
	}
}
