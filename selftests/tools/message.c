// SPDX-License-Identifier: Apache-2.0
/*
 * message.c - lines for a person, whose reader has stopped: no call waits, and what is missing is counted
 *
 * A call that waits for a reader that never reads is ended by the harness's alarm.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <kselftest_harness.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "message.h"

#define LINES	20000	/* some 600 KiB: more than a pipe and MESSAGE_ROOM take */

static struct message m;

static void begin(int fd)
{
	m = (struct message)MESSAGE_INIT(fd, "test");
	m.lock = (struct lock)LOCK_INIT(PROXY_MESSAGE);
}

static void put_lines(int from, int to)
{
	char line[64];

	for (int i = from; i < to; i++)
		message_put(&m, line, sprintf(line, "line %d with some words\n", i));
}

/* Bytes that m has, while its thread may write them. */
static size_t bytes_kept(void)
{
	size_t n;

	lock_take(&m.lock);
	n = m.len;
	lock_drop(&m.lock);
	return n;
}

/* Reads until all has come that m has; appends to text. A terminal's "\r\n" becomes "\n". */
static size_t read_all(int fd, char *text, size_t room)
{
	size_t len = 0;

	for (;;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		bool done = message_finish(&m, 0);
		ssize_t n;

		if (poll(&p, 1, done ? 100 : 20) > 0) {
			n = read(fd, text + len, room - len - 1);
			if (n <= 0)
				break;
			len += n;
		} else if (done) {
			break;
		}
	}
	text[len] = 0;
	for (char *from = text, *to = text;; from++) {
		if (*from != '\r')
			*to++ = *from;
		if (!*from)
			break;
	}
	return strlen(text);
}

/* Lines i = first, first + 1 … in order, then perhaps a count: lines and those left out. */
static void check_lines(struct __test_metadata *_metadata, const char *text, int *lines, int *left_out)
{
	int n;

	*lines = *left_out = 0;
	for (const char *end; (end = strchr(text, '\n')); text = end + 1) {
		if (sscanf(text, "line %d with some words\n", &n) == 1) {
			ASSERT_EQ(n, *lines + *left_out);
			++*lines;
		} else {
			ASSERT_EQ(sscanf(text, "test: %d lines left out: the reader", &n), 1) {
				TH_LOG("%.60s", text);
			}
			*left_out += n;
		}
	}
	ASSERT_EQ(*text, 0);
}

static char text[4 << 20];

static void stopped_then_read(struct __test_metadata *_metadata, int reader, int writer)
{
	int flags = fcntl(writer, F_GETFL), lines, left_out;

	begin(writer);
	put_lines(0, LINES);
	EXPECT_EQ(fcntl(writer, F_GETFL), flags);	/* the job's description, too */
	EXPECT_FALSE(message_finish(&m, 0));
	read_all(reader, text, sizeof(text));
	put_lines(LINES, LINES + 3);			/* the reader goes on */
	read_all(reader, text + strlen(text), sizeof(text) - strlen(text));
	check_lines(_metadata, text, &lines, &left_out);
	EXPECT_GT(left_out, 0);
	EXPECT_GT(lines, 1000);
	EXPECT_EQ(lines + left_out, LINES + 3);
	EXPECT_TRUE(message_finish(&m, 0));
}

TEST(full_pipe)
{
	int p[2];

	ASSERT_EQ(pipe(p), 0);
	stopped_then_read(_metadata, p[0], p[1]);
	EXPECT_EQ(m.way, MESSAGE_OWN);
}

/* While lines are missing no later one comes before their count, though there is room again. */
TEST(behind_lines_left_out)
{
	int p[2], lines, left_out, n, more;

	ASSERT_EQ(pipe(p), 0);
	begin(p[1]);
	put_lines(0, LINES);
	for (n = 0; n < 1 << 17; n += more) {
		more = read(p[0], text + n, 4096);
		ASSERT_GT(more, 0);
	}
	put_lines(LINES, LINES + 3);
	read_all(p[0], text + n, sizeof(text) - n);
	check_lines(_metadata, text, &lines, &left_out);
	EXPECT_EQ(lines + left_out, LINES + 3);
}

/* As behind `sudo`: the pipe is of another user, and cannot be opened anew. */
TEST(pipe_of_another_user)
{
	int p[2];

	if (geteuid())
		SKIP(return, "only root can become another user");
	ASSERT_EQ(pipe(p), 0);
	ASSERT_EQ(setgroups(0, NULL), 0);
	ASSERT_EQ(setresuid(65534, 65534, 65534), 0);
	stopped_then_read(_metadata, p[0], p[1]);
	EXPECT_EQ(m.way, MESSAGE_PAGE);
}

TEST(sockets)
{
	int s[2];

	ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	stopped_then_read(_metadata, s[0], s[1]);
	EXPECT_EQ(m.way, MESSAGE_SEND);
}

static void open_terminal(struct __test_metadata *_metadata, int *master, int *slave)
{
	struct termios t;

	ASSERT_EQ(openpty(master, slave, NULL, NULL, NULL), 0);
	ASSERT_EQ(tcgetattr(*slave, &t), 0);
	t.c_lflag &= ~ECHO;
	ASSERT_EQ(tcsetattr(*slave, TCSANOW, &t), 0);
}

TEST(terminal_after_ctrl_s)
{
	int master, slave, lines, left_out;

	open_terminal(_metadata, &master, &slave);
	ASSERT_EQ(tcflow(slave, TCOOFF), 0);
	begin(slave);
	put_lines(0, 100);
	EXPECT_EQ(m.way, MESSAGE_OWN);
	EXPECT_FALSE(message_finish(&m, 50));
	ASSERT_EQ(tcflow(slave, TCOON), 0);
	read_all(master, text, sizeof(text));
	check_lines(_metadata, text, &lines, &left_out);
	EXPECT_EQ(lines, 100);
}

TEST(terminal_that_nobody_reads)
{
	int master, slave;

	open_terminal(_metadata, &master, &slave);
	stopped_then_read(_metadata, master, slave);
}

/* As behind `su`: only a thread can wait there. */
TEST(terminal_of_another_user)
{
	int master, slave, lines, left_out;

	if (geteuid())
		SKIP(return, "only root can become another user");
	open_terminal(_metadata, &master, &slave);
	ASSERT_EQ(fchmod(slave, 0600), 0);
	ASSERT_EQ(setgroups(0, NULL), 0);
	ASSERT_EQ(setresgid(65534, 65534, 65534), 0);
	ASSERT_EQ(setresuid(65534, 65534, 65534), 0);
	begin(slave);
	put_lines(0, LINES);
	EXPECT_EQ(m.way, MESSAGE_LEND);
	read_all(master, text, sizeof(text));
	check_lines(_metadata, text, &lines, &left_out);
	EXPECT_GT(left_out, 0);
	EXPECT_EQ(lines + left_out, LINES);
}

/* No signal ends us, whatever its disposition; nothing waits for a reader to come. */
TEST(reader_has_gone)
{
	int p[2], s[2];
	sigset_t pending;

	signal(SIGPIPE, SIG_DFL);
	ASSERT_EQ(pipe(p), 0);
	close(p[0]);
	begin(p[1]);
	put_lines(0, 10);
	ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	close(s[0]);
	begin(s[1]);
	put_lines(0, 10);
	sigpending(&pending);
	EXPECT_FALSE(sigismember(&pending, SIGPIPE));
	/* One that was pending before is still. */
	sigemptyset(&pending);
	sigaddset(&pending, SIGPIPE);
	ASSERT_EQ(sigprocmask(SIG_BLOCK, &pending, NULL), 0);
	ASSERT_EQ(raise(SIGPIPE), 0);
	begin(p[1]);
	errno = 77;
	put_lines(0, 1);
	EXPECT_FALSE(message_show(&m, "1%", 2));
	EXPECT_EQ(errno, 77);
	begin(p[1]);
	EXPECT_TRUE(message_show(&m, "1%", 2));
	EXPECT_EQ(errno, 77);
	EXPECT_EQ(m.left_out, 1);
	EXPECT_FALSE(m.thread);		/* there is nobody to wait for */
	sigpending(&pending);
	EXPECT_TRUE(sigismember(&pending, SIGPIPE));
	begin(-1);
	put_lines(0, 10);
	EXPECT_TRUE(message_finish(&m, 0));
	begin(999);		/* closed */
	put_lines(0, 10);
	EXPECT_TRUE(message_finish(&m, 0));
}

/* A named FIFO whose reader has gone may get another one, who learns what is missing. */
TEST(reader_comes_back)
{
	char dir[] = "/tmp/messageXXXXXX", path[64];
	int reader, writer;

	ASSERT_NE(mkdtemp(dir), NULL);
	sprintf(path, "%s/fifo", dir);
	ASSERT_EQ(mkfifo(path, 0600), 0);
	reader = open(path, O_RDONLY | O_NONBLOCK);
	writer = open(path, O_WRONLY);
	begin(writer);
	put_lines(0, 1);
	close(reader);
	put_lines(1, 4);
	reader = open(path, O_RDONLY | O_NONBLOCK);
	put_lines(4, 5);
	read_all(reader, text, sizeof(text));
	unlink(path);
	rmdir(dir);
	EXPECT_STREQ(text, "line 0 with some words\n"
		     "test: 3 lines left out: the reader of these messages did not take them\n"
		     "line 4 with some words\n");
}

/* What was kept for a reader that has gone is missing, too. */
TEST(reader_goes_while_lines_wait)
{
	char dir[] = "/tmp/messageXXXXXX", path[64], want[120];
	int reader, writer, kept = 0;

	ASSERT_NE(mkdtemp(dir), NULL);
	sprintf(path, "%s/fifo", dir);
	ASSERT_EQ(mkfifo(path, 0600), 0);
	reader = open(path, O_RDONLY | O_NONBLOCK);
	writer = open(path, O_WRONLY);
	begin(writer);
	while (bytes_kept() < 10 * MESSAGE_LINE)
		put_lines(0, 1);
	lock_take(&m.lock);
	for (size_t i = 0; i < m.len; i++)
		kept += m.kept[m.at + i] == '\n';
	close(reader);
	lock_drop(&m.lock);
	for (int i = 0, told = 0; i < 10000 && !told; i++) {
		usleep(1000);
		lock_take(&m.lock);
		told = m.left_out;
		lock_drop(&m.lock);
	}
	lock_take(&m.lock);
	EXPECT_EQ(m.left_out, (unsigned long)kept);
	EXPECT_EQ(m.len, 0);
	lock_drop(&m.lock);
	reader = open(path, O_RDONLY | O_NONBLOCK);
	while (read(reader, text, sizeof(text)) > 0)
		;
	put_lines(4, 5);
	read_all(reader, text, sizeof(text));
	unlink(path);
	rmdir(dir);
	sprintf(want, "test: %d lines left out: the reader of these messages did not take them\n"
		"line 4 with some words\n", kept);
	EXPECT_STREQ(text, want);
}

TEST(full_disk)
{
	int full = open("/dev/full", O_WRONLY);

	ASSERT_GE(full, 0);
	begin(full);
	put_lines(0, 1000);
	EXPECT_EQ(m.left_out, 1000);
	EXPECT_FALSE(message_finish(&m, 50));
}

/* While a terminal is stopped by the job's own write, that holds its lock. */
TEST(terminal_with_another_writer)
{
	int master, slave;
	pid_t job;

	open_terminal(_metadata, &master, &slave);
	ASSERT_EQ(tcflow(slave, TCOOFF), 0);
	job = fork();
	if (!job) {
		memset(text, 'x', sizeof(text));
		if (write(slave, text, 100000) < 0)
			_exit(1);
		_exit(0);
	}
	usleep(100000);
	begin(slave);
	put_lines(0, 10);
	EXPECT_FALSE(message_finish(&m, 50));
	kill(job, SIGKILL);
	waitpid(job, NULL, 0);
}

/* A fork's child has nothing of what its parent keeps, and another thread's lock is not held for ever. */
TEST(forked_child)
{
	const char *san = getenv("SINGVGPU_SAN");
	int p[2], told[2], status;
	bool bad;
	char c;
	pid_t pid;

	if (san && strstr(san, "thread"))
		SKIP(return, "ThreadSanitizer ends a fork's child that starts a thread");
	ASSERT_EQ(pipe(p) | pipe(told), 0);
	begin(p[1]);
	put_lines(0, LINES);
	lock_take(&m.lock);
	pid = fork();
	if (!pid) {
		put_lines(0, 2);
		bad = !m.len || m.left_out || write(told[1], "", 1) != 1;
		/* A thread of its own passes them on when there is room. */
		_exit(bad || !message_finish(&m, 20000));
	}
	lock_drop(&m.lock);
	ASSERT_EQ(read(told[0], &c, 1), 1);
	while (waitpid(pid, &status, WNOHANG) != pid) {
		struct pollfd r = { .fd = p[0], .events = POLLIN };

		if (poll(&r, 1, 5) > 0)
			ASSERT_GT(read(p[0], text, sizeof(text)), 0);
	}
	EXPECT_EQ(status, 0);
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static long pages(void)
{
	FILE *in = fopen("/proc/self/statm", "r");
	long n = -1;

	if (!in || fscanf(in, "%ld", &n) != 1)
		n = -1;
	if (in)
		fclose(in);
	return n;
}

/* Lines that have to wait for a thread, and are read, many times: no descriptor, page or stack stays. */
static void many_rounds(struct __test_metadata *_metadata, int way)
{
	const char *san = getenv("SINGVGPU_SAN");
	struct stat tasks;
	int p[2], fds = 0;
	long was = 0;

	if (geteuid())
		SKIP(return, "only root can become another user");
	ASSERT_EQ(pipe2(p, O_NONBLOCK), 0);
	ASSERT_EQ(fcntl(p[1], F_SETFL, 0), 0);
	if (way == MESSAGE_PAGE) {
		ASSERT_EQ(setgroups(0, NULL), 0);
		ASSERT_EQ(setresuid(65534, 65534, 65534), 0);
	}
	begin(p[1]);
	for (int round = 0; round < 20; round++) {
		put_lines(0, 3000);
		EXPECT_FALSE(message_finish(&m, 0));
		ASSERT_EQ(stat("/proc/self/task", &tasks), 0);
		/* The main thread, the one that waits, some of earlier rounds that have not ended yet, a sanitizer's. */
		EXPECT_LE(tasks.st_nlink - 2, 5);
		while (read(p[0], text, sizeof(text)) > 0 || !message_finish(&m, 0))
			usleep(500);
		EXPECT_EQ((int)m.way, way);
		if (round < 3) {
			fds = open_fds();
			was = pages();
		}
	}
	EXPECT_EQ(open_fds(), fds);
	if (!san || !*san)
		EXPECT_LT(pages() - was, 100);
}

TEST(nothing_is_left_of_lines)
{
	many_rounds(_metadata, MESSAGE_OWN);
}

TEST(nothing_is_left_of_pages)
{
	many_rounds(_metadata, MESSAGE_PAGE);
}

/* A picture is left out, uncounted, where a line waits. */
TEST(pictures)
{
	int p[2];

	ASSERT_EQ(pipe(p), 0);
	begin(p[1]);
	EXPECT_TRUE(message_show(&m, "1%\r", 3));
	while (!m.len)
		put_lines(0, 1);
	EXPECT_FALSE(message_show(&m, "2%\r", 3));
	EXPECT_EQ(m.left_out, 0);
	read_all(p[0], text, sizeof(text));
	EXPECT_EQ(strstr(text, "2%"), NULL);
	EXPECT_TRUE(message_show(&m, "3%\r", 3));
}

/* A reader of packets sees that nothing gets between the words of a line: whatever is written at once ends with one. */
TEST(whole_lines)
{
	char packet[2 * MESSAGE_LINE];
	int s[2], lines = 0, packets = 0;
	ssize_t n;

	ASSERT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, s), 0);
	begin(s[1]);
	put_lines(0, 3000);
	EXPECT_GT(bytes_kept(), 2 * MESSAGE_LINE);
	for (int waits = 0; waits < 200; waits++) {
		while ((n = recv(s[0], packet, sizeof(packet), 0)) > 0) {
			waits = 0;
			packets++;
			EXPECT_EQ(packet[n - 1], '\n');
			EXPECT_LE(n, MESSAGE_LINE);
			for (int i = 0; i < n; i++)
				lines += packet[i] == '\n';
		}
		if (message_finish(&m, 0) && waits > 20)
			break;
		usleep(1000);
	}
	EXPECT_GT(packets, 10);
	EXPECT_LT(packets, 1000);
	EXPECT_EQ(lines, 3000);
}

/* What is kept moves to the front when there is no room behind it. */
TEST(kept_lines_are_whole)
{
	int p[2], lines, left_out, n = 0, more, from = 0;
	char *room = mmap(NULL, MESSAGE_ROOM + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ASSERT_EQ(pipe(p), 0);
	begin(p[1]);
	m.kept = room;
	ASSERT_EQ(mprotect(room + MESSAGE_ROOM, 4096, PROT_NONE), 0);
	while (bytes_kept() < MESSAGE_ROOM / 2)
		put_lines(from, from + 1), from++;
	for (int i = 0; i < 40; i++) {
		more = read(p[0], text + n, 8192);
		ASSERT_GT(more, 0);
		n += more;
		put_lines(from, from + 200);
		from += 200;
	}
	read_all(p[0], text + n, sizeof(text) - n);
	check_lines(_metadata, text, &lines, &left_out);
	EXPECT_EQ(lines + left_out, from);
}

/* Opened anew, the master of a pseudo-terminal would be another terminal. */
TEST(master_of_a_terminal)
{
	int master, slave, fds;

	open_terminal(_metadata, &master, &slave);
	fds = open_fds();
	begin(master);
	put_lines(0, 1);
	EXPECT_EQ(m.way, MESSAGE_LEND);
	EXPECT_EQ(m.own, -1);
	EXPECT_EQ(open_fds(), fds);
	for (int i = 0; i < 2000 && !message_finish(&m, 0); i++)
		usleep(1000);
	EXPECT_TRUE(message_finish(&m, 0));
}

/* `stty tostop`, in the background: no signal stops us. */
TEST(terminal_of_the_foreground)
{
	int master, slave, status;
	struct termios t;
	pid_t pid;

	open_terminal(_metadata, &master, &slave);
	ASSERT_EQ(tcgetattr(slave, &t), 0);
	t.c_lflag |= TOSTOP;
	ASSERT_EQ(tcsetattr(slave, TCSANOW, &t), 0);
	pid = fork();
	if (!pid) {
		setsid();
		if (ioctl(slave, TIOCSCTTY, 0))
			_exit(2);
		pid = fork();
		if (!pid) {
			setpgid(0, 0);
			signal(SIGTTOU, SIG_DFL);
			begin(slave);
			put_lines(0, 3);
			_exit(!message_finish(&m, 1000));
		}
		if (waitpid(pid, &status, WUNTRACED) != pid)
			_exit(3);
		kill(pid, SIGKILL);
		_exit(WIFSTOPPED(status) ? 4 : WEXITSTATUS(status));
	}
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	begin(slave);
	read_all(master, text, sizeof(text));
	EXPECT_NE(strstr(text, "line 2 with some words"), NULL);
}

static volatile sig_atomic_t caught;

static void catch(int sig)
{
	caught = sig;
}

/* The program's signals are for its own threads. */
TEST(signals_while_lines_wait)
{
	sigset_t set, pending;
	int p[2];

	signal(SIGUSR1, catch);
	ASSERT_EQ(pipe(p), 0);
	begin(p[1]);
	while (!m.len)
		put_lines(0, 1);
	EXPECT_TRUE(m.thread);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
	ASSERT_EQ(kill(getpid(), SIGUSR1), 0);
	usleep(20000);
	EXPECT_EQ(caught, 0);
	sigpending(&pending);
	EXPECT_TRUE(sigismember(&pending, SIGUSR1));
	read_all(p[0], text, sizeof(text));
	/* The thread ends when all is written, and there may be another one. */
	for (int i = 0; i < 2000 && m.thread; i++)
		usleep(1000);
	EXPECT_FALSE(m.thread);
	EXPECT_TRUE(message_finish(&m, 0));
}

/* Whoever ends waits for what is kept, if he starts no thread himself; as long as he says. */
TEST(finishing_waits)
{
	struct timespec from, to;
	int p[2];
	char c[65536];

	ASSERT_EQ(pipe(p), 0);
	begin(p[1]);
	while (!m.len)
		put_lines(0, 1);
	clock_gettime(CLOCK_MONOTONIC, &from);
	EXPECT_FALSE(message_finish(&m, 100));
	clock_gettime(CLOCK_MONOTONIC, &to);
	EXPECT_GE((to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000, 95);
	ASSERT_GT(read(p[0], c, sizeof(c)), 0);
	EXPECT_TRUE(message_finish(&m, 20000));
	ASSERT_GT(read(p[0], c, sizeof(c)), 0);
}

TEST_HARNESS_MAIN
