// SPDX-License-Identifier: Apache-2.0
/*
 * attributes.c - what CRIU does not save of processes and threads: noted of one tree, given to another one; and
 * system calls that a thread executes for us, of which it notices nothing
 *
 * Each tree is a namespace of pids: process 1 with nothing of its own, process 2 with a second thread.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kselftest_harness.h>

#include "criu_i.h"
#include "images.h"
#include "../../tools/child.h"

#define SIGNALS 1000
#define IO_IDLE (3 << 13)
#define IO_LOW	(2 << 13 | 7)

/* Stands for images.c: one image. */
struct images {
	char text[8192];
	size_t len;
};

const char *images_text(struct images *i, const char *name, size_t *len)
{
	*len = i->len;
	return i->len && !strcmp(name, "attributes") ? i->text : NULL;
}

int images_add(struct images *i, const char *name, const void *data, size_t len)
{
	if (strcmp(name, "attributes") || len >= sizeof(i->text))
		return -EINVAL;
	memcpy(i->text, data, len);
	i->text[i->len = len] = 0;
	return 0;
}

/* Unused by what is tested here. */
int images_edit(struct images *i, const char *name, char *text, size_t len)
{
	return -ENOENT;
}

/* ------------------------------------------------------------------------------------ tree */

struct shared {
	void *range;		/* of 4 pages, the second and third one apart */
	volatile int ready, stop, threads;
	volatile long count, other;	/* of signals; of what a thread found wrong */
};

static struct shared *sh;

static void set_policy(int mode, unsigned long nodes, void *start, size_t len)
{
	if (start)
		syscall(SYS_mbind, start, len, mode, &nodes, 64, 0);
	else
		syscall(SYS_set_mempolicy, mode, &nodes, 64);
}

static void one_cpu(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(0, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void *second(void *own)
{
	if (own) {
		syscall(SYS_ioprio_set, 1, 0, IO_LOW);
		prctl(PR_SET_TIMERSLACK, 77777);
		set_policy(1, 1, NULL, 0);	/* preferred */
		one_cpu();
	}
	sh->threads = 1;
	for (;;)
		pause();
	return NULL;
}

/* Process 2; own: with what the first one has not. */
static void run_child(bool own) __attribute__((noreturn));
static void run_child(bool own)
{
	pthread_t t;
	int fd;

	pthread_create(&t, NULL, second, own ? sh : NULL);
	while (!sh->threads)
		usleep(1000);
	sh->range = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(sh->range, 1, 4 * 4096);
	if (own) {
		syscall(SYS_ioprio_set, 1, 0, IO_IDLE);
		set_policy(2, 1, (char *)sh->range + 4096, 2 * 4096);	/* bind */
		fd = open("/proc/self/coredump_filter", O_WRONLY);
		if (write(fd, "0x17", 4) != 4)
			_exit(1);
		personality(ADDR_NO_RANDOMIZE);
	}
	sh->ready = 1;
	for (;;)
		pause();
}

static pid_t in_namespace(void)
{
	struct clone_args a = { .flags = CLONE_NEWPID, .exit_signal = SIGCHLD };

	return syscall(SYS_clone3, &a, sizeof(a));
}

FIXTURE(attributes)
{
	pid_t init[2];		/* with what is its own; without */
	pid_t child[2];
	struct shared *sh[2];
	struct images images;
	struct criu_attributes result;
};

FIXTURE_SETUP(attributes)
{
	setenv("SINGVGPU_RANGES", "1", 1);
	for (int i = 0; i < 2; i++) {
		sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		self->sh[i] = sh;
		self->init[i] = in_namespace();
		if (!self->init[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (!fork())
				run_child(!i);
			for (;;)
				pause();
		}
		if (self->init[i] < 0)
			SKIP(return, "a namespace of pids needs root");
		for (int k = 0; k < 10000 && !sh->ready; k++)
			usleep(1000);
		ASSERT_EQ(sh->ready, 1);
		self->child[i] = criu_find_pid(self->init[i], 2);
		ASSERT_GT(self->child[i], 0);
	}
}

FIXTURE_TEARDOWN(attributes)
{
	for (int i = 0; i < 2; i++)
		if (self->init[i] > 0) {
			kill(self->init[i], SIGKILL);
			waitpid(self->init[i], NULL, 0);
		}
}

static const char *of_proc(pid_t pid, const char *name)
{
	static char text[4096];
	char path[64];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY);
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n < 0 ? 0 : n] = 0;
	if (n > 0 && text[n - 1] == '\n')
		text[n - 1] = 0;
	return text;
}

/* The other thread of process 2. */
static pid_t thread_of(pid_t child)
{
	char path[64];
	struct dirent *e;
	pid_t tid = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", child);
	d = opendir(path);
	while (d && (e = readdir(d)))
		if (atoi(e->d_name) > 0 && atoi(e->d_name) != child)
			tid = atoi(e->d_name);
	if (d)
		closedir(d);
	return tid;
}

static const char *policy_at(pid_t pid, void *at)
{
	static char policy[32];
	char path[64], line[512], start[32];
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/numa_maps", pid);
	snprintf(start, sizeof(start), "%08lx ", (unsigned long)at);
	in = fopen(path, "r");
	strcpy(policy, "none");
	while (in && fgets(line, sizeof(line), in))
		if (!at || !strncmp(line, start, strlen(start))) {
			sscanf(line, "%*s %31s", policy);
			break;
		}
	if (in)
		fclose(in);
	return policy;
}

static bool has_line(const struct images *i, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool has_line(const struct images *i, const char *fmt, ...)
{
	char want[256];
	const char *at;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(want, sizeof(want), fmt, ap);
	va_end(ap);
	at = strstr(i->text, want);
	return at && (at == i->text || at[-1] == '\n') && at[n] == '\n';
}

static int lines(const struct images *i)
{
	int n = 0;

	for (size_t k = 0; k < i->len; k++)
		n += i->text[k] == '\n';
	return n;
}

/* "0", or "-" where the first process has no other CPU either. */
static const char *cpu0(void)
{
	return sysconf(_SC_NPROCESSORS_ONLN) > 1 ? "0" : "-";
}

static bool numa(pid_t pid)
{
	return strcmp(policy_at(pid, NULL), "none");
}

TEST_F(attributes, what_differs_from_the_root_is_noted)
{
	pid_t pid = self->child[0];
	bool has_numa = numa(pid);
	unsigned long at = (unsigned long)self->sh[0]->range;

	ASSERT_EQ(criu_attributes_save(&self->images, self->init[0]), 0);
	EXPECT_TRUE(has_line(&self->images, "process 2 17 %x", ADDR_NO_RANDOMIZE));
	EXPECT_TRUE(has_line(&self->images, "thread 2 2 %d - - -", IO_IDLE));
	EXPECT_TRUE(has_line(&self->images, "thread 2 3 %d 77777 %s %s", IO_LOW, has_numa ? "prefer:0" : "-", cpu0()));
	if (has_numa)
		EXPECT_TRUE(has_line(&self->images, "range 2 %lx %lx bind:0", at + 4096, at + 3 * 4096));
	EXPECT_EQ(lines(&self->images), has_numa ? 4 : 3)
		TH_LOG("%s", self->images.text);
	/* One that differs in nothing. */
	self->images.len = 0;
	ASSERT_EQ(criu_attributes_save(&self->images, self->init[1]), 0);
	EXPECT_EQ(self->images.len, 0)
		TH_LOG("%s", self->images.text);
}

/* Each alone is a difference. */
TEST_F(attributes, one_difference_is_enough)
{
	pid_t pid = self->child[1], tid = thread_of(pid);
	cpu_set_t set, was;
	char path[64];
	int fd;

	ASSERT_GT(tid, 0);
	ASSERT_EQ(syscall(SYS_ioprio_set, 1, tid, IO_LOW), 0);
	ASSERT_EQ(criu_attributes_save(&self->images, self->init[1]), 0);
	EXPECT_TRUE(has_line(&self->images, "thread 2 3 %d - - -", IO_LOW));
	EXPECT_EQ(lines(&self->images), 1);
	ASSERT_EQ(syscall(SYS_ioprio_set, 1, tid, 0), 0);
	snprintf(path, sizeof(path), "/proc/%d/timerslack_ns", tid);
	fd = open(path, O_WRONLY);
	ASSERT_EQ(write(fd, "12345", 5), 5);
	ASSERT_EQ(criu_attributes_save(&self->images, self->init[1]), 0);
	EXPECT_TRUE(has_line(&self->images, "thread 2 3 - 12345 - -"));
	ASSERT_EQ(write(fd, "50000", 5), 5);
	close(fd);
	ASSERT_EQ(sched_getaffinity(tid, sizeof(was), &was), 0);
	if (CPU_COUNT(&was) > 1) {
		CPU_ZERO(&set);
		CPU_SET(0, &set);
		ASSERT_EQ(sched_setaffinity(tid, sizeof(set), &set), 0);
		ASSERT_EQ(criu_attributes_save(&self->images, self->init[1]), 0);
		EXPECT_TRUE(has_line(&self->images, "thread 2 3 - - - 0"));
		ASSERT_EQ(sched_setaffinity(tid, sizeof(was), &was), 0);
	}
	snprintf(path, sizeof(path), "/proc/%d/coredump_filter", pid);
	fd = open(path, O_WRONLY);
	ASSERT_EQ(write(fd, "0x1", 3), 3);
	close(fd);
	ASSERT_EQ(criu_attributes_save(&self->images, self->init[1]), 0);
	EXPECT_TRUE(has_line(&self->images, "process 2 1 0"));
	EXPECT_EQ(lines(&self->images), 1);
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

TEST_F(attributes, another_tree_gets_them)
{
	int fds = open_fds();
	pid_t pid = self->child[1], tid = thread_of(pid);
	bool has_numa = numa(pid);
	unsigned long from = (unsigned long)self->sh[1]->range + 4096;
	struct images *i = &self->images;
	cpu_set_t set;

	i->len = sprintf(i->text, "process 2 17 %x\nthread 2 2 %d - - -\nthread 2 3 %d 77777 %s 0\n", ADDR_NO_RANDOMIZE,
			 IO_IDLE, IO_LOW, has_numa ? "prefer:0" : "-");
	if (has_numa)
		i->len += sprintf(i->text + i->len, "range 2 %lx %lx bind:0\n", from, from + 2 * 4096);
	/* From outside, before a thread of it runs. */
	criu_attributes_set(i, self->init[1], false, &self->result);
	EXPECT_EQ(self->result.failed, 0);
	EXPECT_EQ(self->result.clipped, 0);
	EXPECT_STREQ(of_proc(pid, "coredump_filter"), "00000017");
	EXPECT_EQ(syscall(SYS_ioprio_get, 1, pid), IO_IDLE);
	EXPECT_EQ(syscall(SYS_ioprio_get, 1, tid), IO_LOW);
	EXPECT_STREQ(of_proc(tid, "timerslack_ns"), "77777");
	EXPECT_STREQ(of_proc(pid, "timerslack_ns"), "50000");
	ASSERT_EQ(sched_getaffinity(tid, sizeof(set), &set), 0);
	EXPECT_EQ(CPU_COUNT(&set), 1);
	EXPECT_TRUE(CPU_ISSET(0, &set));
	EXPECT_STREQ(of_proc(pid, "personality"), "00000000");
	if (has_numa)
		EXPECT_STREQ(policy_at(tid, NULL), "default");
	/* By themselves, when they run: nothing else. */
	ASSERT_EQ(syscall(SYS_ioprio_set, 1, pid, IO_LOW), 0);
	criu_attributes_set(i, self->init[1], true, &self->result);
	EXPECT_EQ(self->result.failed, 0);
	EXPECT_EQ(syscall(SYS_ioprio_get, 1, pid), IO_LOW);
	EXPECT_STREQ(of_proc(pid, "personality"), "00040000");
	if (has_numa) {
		EXPECT_STREQ(policy_at(tid, NULL), "prefer:0");
		EXPECT_STREQ(policy_at(pid, NULL), "default");
		EXPECT_STREQ(policy_at(pid, (void *)from), "bind:0");
		EXPECT_STREQ(policy_at(pid, (void *)(from + 2 * 4096)), "default");
	}
	/* What a line does not say stays. */
	i->len = sprintf(i->text, "thread 2 2 - 60000 - -\nthread 2 3 %d - - -\n", IO_IDLE);
	criu_attributes_set(i, self->init[1], false, &self->result);
	EXPECT_EQ(syscall(SYS_ioprio_get, 1, pid), IO_LOW);
	EXPECT_STREQ(of_proc(pid, "timerslack_ns"), "60000");
	EXPECT_STREQ(of_proc(tid, "timerslack_ns"), "77777");
	EXPECT_EQ(syscall(SYS_ioprio_get, 1, tid), IO_IDLE);
	/* What is there already is not set again. */
	criu_attributes_set(i, self->init[1], true, &self->result);
	EXPECT_EQ(self->result.failed, 0);
	EXPECT_EQ(open_fds(), fds);
}

/* --------------------------------------------------------------------------------- sockets */

static int asked;

/* Stands for that of libc. */
int getsockopt(int s, int level, int name, void *value, socklen_t *len)
{
	asked++;
	return syscall(SYS_getsockopt, s, level, name, value, len);
}

struct sockets {
	void (*act)(int n);
	int n, children;
};

static void act_alone(void *arg, int *told)
{
	struct sockets *s = arg;

	*told = dup2(*told, 3);
	close_range(4, ~0u, 0);
	s->act(s->n);
	while (s->children-- && fork())
		;
}

/* Process 1 of a namespace of pids, and, if it has other processes, two more; all wait. */
static pid_t with_sockets(void (*act)(int n), int n, bool others)
{
	int told[2], children = others ? 2 : 0;
	pid_t pid;
	char c;

	if (pipe(told))
		return -1;
	pid = in_namespace();
	if (!pid)
		child_acts(act_alone, &(struct sockets){ act, n, children }, told[1]);
	close(told[1]);
	for (int i = 0; pid > 0 && i <= children; i++)
		if (read(told[0], &c, 1) != 1)
			pid = -1;
	close(told[0]);
	return pid;
}

static void set_ttl(int s, int ttl)
{
	if (setsockopt(s, IPPROTO_IP, IP_TTL, &ttl, sizeof(ttl)))
		_exit(1);
}

static void have_sockets(int n)
{
	for (int i = 0; i < n; i++)
		set_ttl(socket(AF_INET, SOCK_DGRAM, 0), 33);
}

/* The socket of kind n, or all of them (-1). Each kind differs from the first or the second one in one thing. */
static void have_kinds(int n)
{
	static const int kind[][3] = { { AF_INET, SOCK_DGRAM, 0 }, { AF_INET, SOCK_RAW, IPPROTO_UDP },
				       { AF_INET6, SOCK_RAW, IPPROTO_UDP }, { AF_INET, SOCK_RAW, 99 } };

	for (int i = 0; i < 4; i++)
		if ((n == i || n < 0) && socket(kind[i][0], kind[i][1], kind[i][2]) < 0)
			_exit(1);
}

/* More than are remembered, twice. */
static void have_many_kinds(int n)
{
	for (int i = 0; i < 2 * n; i++)
		set_ttl(socket(AF_INET, SOCK_RAW, 100 + i % n), 33);
}

/* A socket with a second descriptor, and a socket of another kind. */
static void share_socket(int n)
{
	int s = socket(AF_INET, SOCK_DGRAM, 0);

	set_ttl(s, 33);
	set_ttl(socket(AF_INET, SOCK_STREAM, 0), 34);
	if (dup(s) != s + 2)
		_exit(1);
}

/* Where a new socket has a TTL of 77. */
static void in_own_network(int n)
{
	int fd = unshare(CLONE_NEWNET) ? -1 : open("/proc/sys/net/ipv4/ip_default_ttl", O_WRONLY);

	if (write(fd, "77", 2) != 2)
		_exit(1);
	close(fd);
	socket(AF_INET, SOCK_DGRAM, 0);
	set_ttl(socket(AF_INET, SOCK_DGRAM, 0), 64);
}

static void ask(struct __test_metadata *_metadata, struct images *i, void (*act)(int n), int n, bool others)
{
	pid_t pid = with_sockets(act, n, others);

	ASSERT_GT(pid, 0);
	i->len = 0;
	asked = 0;
	EXPECT_EQ(criu_attributes_save(i, pid), 0);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* What a new socket of the kind has is read once, and each socket once. */
TEST_F(attributes, sockets_are_looked_at_once)
{
	struct images *i = &self->images;
	int one, nine, fds;

	ask(_metadata, i, have_sockets, 0, false);
	EXPECT_EQ(asked, 0);
	ask(_metadata, i, have_sockets, 1, false);
	one = asked;
	EXPECT_EQ(lines(i), 1)
		TH_LOG("%s", i->text);
	fds = open_fds();
	ask(_metadata, i, have_sockets, 9, false);
	EXPECT_EQ(open_fds(), fds);
	nine = asked;
	EXPECT_EQ(lines(i), 9)
		TH_LOG("%s", i->text);
	/* Three that say what it is; of one of the first two halves of the rest. */
	EXPECT_LE(nine - one, 8 * (3 + (one - 3) / 2))
		TH_LOG("one socket %d calls, nine %d", one, nine);
	ask(_metadata, i, have_sockets, 1, true);
	EXPECT_EQ(asked, one);
	EXPECT_EQ(lines(i), 1)
		TH_LOG("%s", i->text);
	/* Of two kinds. */
	ask(_metadata, i, share_socket, 0, true);
	EXPECT_EQ(lines(i), 2)
		TH_LOG("%s", i->text);
	EXPECT_TRUE(has_line(i, "socket 1 5 0 %d 34", IP_TTL));
}

TEST_F(attributes, a_new_socket_is_one_of_the_same_kind)
{
	struct images *i = &self->images;
	int all = 0;

	for (int n = 0; n < 4; n++) {
		ask(_metadata, i, have_kinds, n, false);
		EXPECT_GT(asked, 10);
		all += asked;
	}
	ask(_metadata, i, have_kinds, -1, false);
	EXPECT_EQ(asked, all);
	EXPECT_EQ(i->len, 0)
		TH_LOG("%s", i->text);
	ask(_metadata, i, have_many_kinds, 40, false);
	EXPECT_EQ(lines(i), 80)
		TH_LOG("%s", i->text);
}

TEST_F(attributes, a_new_socket_is_one_of_the_same_network)
{
	struct images *i = &self->images;
	struct stat before, after;

	ASSERT_EQ(stat("/proc/self/ns/net", &before), 0);
	ask(_metadata, i, in_own_network, 0, false);
	EXPECT_EQ(lines(i), 1)
		TH_LOG("%s", i->text);
	EXPECT_TRUE(has_line(i, "socket 1 5 0 %d 64", IP_TTL));
	ASSERT_EQ(stat("/proc/self/ns/net", &after), 0);
	EXPECT_EQ(before.st_ino, after.st_ino);
}

/* On a host that has less, and with an image that is forged. */
TEST_F(attributes, what_cannot_be_set_is_counted)
{
	static const struct {
		const char *line;
		unsigned int clipped, failed, inside;
	} cases[] = {
		{ "thread 2 2 - - - 0,8000", 1, 0, 0 }, { "thread 2 2 - - - 8000", 1, 0, 0 },
		{ "thread 2 2 - - - 0-8191", 1, 0, 0 }, { "thread 2 2 - - - 0-8192", 0, 1, 0 },
		{ "thread 2 2 - - - 3-1", 0, 1, 0 }, { "thread 2 2 - - - x", 0, 1, 0 }, { "thread 2 2 - - - 0,", 0, 1, 0 },
		{ "thread 2 2 - - - 0-", 0, 1, 0 }, { "thread 2 2 - - - 0-x", 0, 1, 0 },
		{ "thread 2 2 - - - x\nthread 99 99 - - - x", 0, 1, 0 }, { "thread 2 2 - - - 0;1", 0, 1, 0 }, { "thread 2 2 - - - -1", 0, 1, 0 },
		{ "thread 2 2 - - - 9999", 0, 1, 0 }, { "thread 2 2 65535 - - -", 0, 1, 0 },
		{ "thread 2 99 65535 - - x", 0, 0, 0 }, { "thread 99 99 65535 - - x", 0, 0, 0 },
		{ "thread 0 0 65535 - - x", 0, 0, 0 }, { "thread -1 -1 65535 - - x", 0, 0, 0 },
		{ "thread 2 2 - - -", 0, 0, 0 }, { "process 2 17", 0, 0, 0 }, { "process 99 17 0", 0, 0, 0 },
		{ "nothing 2 2", 0, 0, 0 }, { "", 0, 0, 0 },
		{ "thread 2 2 - - default -", 0, 0, 1 }, { "thread 2 2 - - bind -", 0, 1, 1 },
		{ "thread 2 2 - - bind:x -", 0, 1, 1 }, { "thread 2 2 - - bindx:0 -", 0, 1, 1 },
		{ "thread 2 2 - - none:0 -", 0, 1, 1 }, { "thread 2 2 - - bind:900 -", 0, 1, 1 },
		{ "thread 2 2 - - x -", 0, 0, 0 }, { "thread 2 2 65535 - - x", 0, 0, 1 },
		{ "range 2 1000 2000 x", 0, 1, 1 }, { "range 2 1000 2000 x", 0, 0, 0 }, { "range 99 1000 2000 x", 0, 0, 1 },
		{ "range 2 1001 2000 bind:0", 0, 1, 1 },
	};

	for (size_t k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
		struct criu_attributes r = { .clipped = 10, .failed = 20 };

		self->images.len = sprintf(self->images.text, "%s\n", cases[k].line);
		criu_attributes_set(&self->images, self->init[1], cases[k].inside, &r);
		EXPECT_EQ(r.clipped, 10 + cases[k].clipped)
			TH_LOG("%s", cases[k].line);
		EXPECT_EQ(r.failed, 20 + cases[k].failed)
			TH_LOG("%s", cases[k].line);
	}
	/* A line without an end, and one that is too long, are none; those beside it count. */
	self->images.len = sprintf(self->images.text, "%04000d\nthread 2 2 - - - x\nthread 2 2 - - - x", 0);
	criu_attributes_set(&self->images, self->init[1], false, &self->result);
	EXPECT_EQ(self->result.failed, 1);
	/* The policies' names and flags. */
	if (!numa(self->child[1]))
		return;
	for (int k = 0; k < 5; k++) {
		static const char *const policy[] = { "interleave:0", "local", "prefer=static:0", "bind=relative:0",
						      "prefer_(many):0" };

		self->result.failed = 0;
		self->images.len = sprintf(self->images.text, "thread 2 2 - - %s -\n", policy[k]);
		criu_attributes_set(&self->images, self->init[1], true, &self->result);
		EXPECT_EQ(self->result.failed, 0);
		EXPECT_STREQ(policy_at(self->child[1], NULL), k < 4 ? policy[k] : "prefer");
	}
}

/* ------------------------------------------------------------------------------------ calls */

static void count_signal(int sig)
{
	sh->count++;
	sh->other += sig != SIGRTMIN;
}

static pid_t start_waiter(void (*run)(void))
{
	pid_t pid;

	sh->ready = sh->stop = 0;
	sh->count = sh->other = 0;
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run();
		_exit(!sh->stop);
	}
	for (int k = 0; k < 10000 && !sh->ready; k++)
		usleep(1000);
	return pid;
}

static int ends(pid_t pid)
{
	int status = -1;

	sh->stop = 1;
	return waitpid(pid, &status, 0) == pid ? status : -1;
}

/*
 * Has known values in its registers and below its stack pointer, in the red zone and further down, where the bytes
 * that a call reads are put for a while, and looks at them all the time.
 */
static void look_at_registers(void)
{
	unsigned long wrong = 0;

	asm volatile(
		"	movq $0x1111, %%rax\n	movq $0x2222, %%rcx\n	movq $0x3333, %%rdx\n	movq $0x4444, %%rsi\n"
		"	movq $0x5555, %%rdi\n	movq $0x6666, %%r8\n	movq $0x7777, %%r9\n	movq $0x1234, %%r10\n"
		"	movq $0x2345, %%r11\n"
		"	movq $-8, %%rbx\n"
		"1:	movq %%rbx, (%%rsp,%%rbx)\n	subq $8, %%rbx\n	cmpq $-512, %%rbx\n	jne 1b\n"
		"	movl $1, (%[ready])\n"
		"2:	cmpq $0x1111, %%rax\n	jne 4f\n	cmpq $0x2222, %%rcx\n	jne 4f\n"
		"	cmpq $0x3333, %%rdx\n	jne 4f\n	cmpq $0x4444, %%rsi\n	jne 4f\n"
		"	cmpq $0x5555, %%rdi\n	jne 4f\n	cmpq $0x6666, %%r8\n	jne 4f\n"
		"	cmpq $0x7777, %%r9\n	jne 4f\n	cmpq $0x1234, %%r10\n	jne 4f\n"
		"	cmpq $0x2345, %%r11\n	jne 4f\n"
		"	movq $-8, %%rbx\n"
		"3:	cmpq %%rbx, (%%rsp,%%rbx)\n	jne 4f\n	subq $8, %%rbx\n	cmpq $-128, %%rbx\n	jne 3b\n"
		"	cmpl $0, (%[stop])\n	je 2b\n"
		/* No call is under way any more: what is below the red zone is there again. */
		"5:	cmpq %%rbx, (%%rsp,%%rbx)\n	jne 4f\n	subq $8, %%rbx\n	cmpq $-512, %%rbx\n	jne 5b\n"
		"	jmp 6f\n"
		"4:	movq $1, %[wrong]\n"
		"6:\n"
		: [wrong] "+r"(wrong)
		: [ready] "r"(&sh->ready), [stop] "r"(&sh->stop)
		: "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
	_exit(wrong);
}

static void sleep_and_count(void)
{
	signal(SIGRTMIN, count_signal);
	sh->ready = 1;
	while (!sh->stop)
		usleep(500);
}

/* A read that waits starts again, and returns what comes. */
static int feed[2];

static void read_a_byte(void)
{
	char c = 0;

	sh->ready = 1;
	if (read(feed[0], &c, 1) != 1 || c != 'x')
		_exit(3);
	while (!sh->stop)
		usleep(500);
}

FIXTURE(calls)
{
	unsigned long nodes[64];
};

FIXTURE_SETUP(calls)
{
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	self->nodes[0] = 1;
}

FIXTURE_TEARDOWN(calls)
{
	munmap(sh, sizeof(*sh));
}

TEST_F(calls, a_thread_notices_nothing)
{
	pid_t pid = start_waiter(look_at_registers);

	for (int i = 0; i < 50; i++) {
		ASSERT_EQ(criu_inject_personality(pid, i % 2 ? ADDR_NO_RANDOMIZE : 0), 0);
		if (numa(pid))
			ASSERT_EQ(criu_inject_policy(pid, 1 + i % 2, self->nodes, 1024, 0, 0), 0);
		EXPECT_STREQ(of_proc(pid, "personality"), i % 2 ? "00040000" : "00000000");
	}
	EXPECT_EQ(ends(pid), 0);
}

TEST_F(calls, its_waits_go_on)
{
	pid_t pid;

	ASSERT_EQ(pipe(feed), 0);
	pid = start_waiter(read_a_byte);
	for (int i = 0; i < 20; i++) {
		usleep(1000);
		ASSERT_EQ(criu_inject_personality(pid, ADDR_NO_RANDOMIZE), 0);
	}
	ASSERT_EQ(write(feed[1], "x", 1), 1);
	EXPECT_EQ(ends(pid), 0);
	close(feed[0]);
	close(feed[1]);
}

/* The process, which counts them, gets all signals, and then ends. */
static void expect_signals(struct __test_metadata *_metadata, pid_t pid)
{
	for (int i = 0; i < 10000 && sh->count < SIGNALS; i++)
		usleep(1000);
	EXPECT_EQ(sh->count, SIGNALS);
	EXPECT_EQ(sh->other, 0);
	EXPECT_EQ(ends(pid), 0);
}

TEST_F(calls, no_signal_is_lost)
{
	pid_t pid = start_waiter(sleep_and_count), sender;
	int status, sent = 0, calls = 0;

	sender = fork();
	if (!sender) {
		for (int i = 0; i < SIGNALS; i++) {
			sigqueue(pid, SIGRTMIN, (union sigval){ .sival_int = i });
			usleep(i % 20 ? 0 : 500);
		}
		_exit(0);
	}
	while (!sent) {
		const unsigned long want = calls % 2 ? 0 : ADDR_NO_RANDOMIZE;

		/* Behind too many signals it is given up. */
		if (!criu_inject_personality(pid, want)) {
			EXPECT_STREQ(of_proc(pid, "personality"), want ? "00040000" : "00000000");
			calls++;
		}
		sent = waitpid(sender, &status, WNOHANG) == sender;
	}
	EXPECT_GT(calls, 0);
	expect_signals(_metadata, pid);
}

/* A call that was never made is no success. */
TEST_F(calls, behind_too_many_signals_a_call_is_given_up)
{
	pid_t pid = start_waiter(sleep_and_count);

	ASSERT_EQ(kill(pid, SIGSTOP), 0);
	for (int i = 0; i < SIGNALS; i++)
		ASSERT_EQ(sigqueue(pid, SIGRTMIN, (union sigval){ .sival_int = i }), 0);
	EXPECT_EQ(criu_inject_personality(pid, ADDR_NO_RANDOMIZE), -ESRCH);
	EXPECT_STREQ(of_proc(pid, "personality"), "00000000");
	kill(pid, SIGCONT);
	expect_signals(_metadata, pid);
}

/* Each SIGCONT stops a thread that is traced once more, as if by a step, before it has done anything. */
TEST_F(calls, a_stop_of_another_kind_is_no_end_of_a_call)
{
	pid_t pid = start_waiter(sleep_and_count), sender;
	int calls = 0;

	sender = fork();
	if (!sender) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0; ; i++) {
			kill(pid, SIGCONT);
			usleep(i % 4 ? 0 : 50);
		}
	}
	for (int i = 0; i < 2000 && calls < 500; i++) {
		const unsigned long want = calls % 2 ? 0 : ADDR_NO_RANDOMIZE;

		if (criu_inject_personality(pid, want))
			continue;
		ASSERT_STREQ(of_proc(pid, "personality"), want ? "00040000" : "00000000");
		calls++;
	}
	EXPECT_GT(calls, 0);
	kill(sender, SIGKILL);
	waitpid(sender, NULL, 0);
	EXPECT_EQ(ends(pid), 0);
}

TEST_F(calls, what_is_stopped_stays_stopped)
{
	pid_t pid = start_waiter(sleep_and_count);
	int status;

	ASSERT_EQ(kill(pid, SIGSTOP), 0);
	ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
	ASSERT_EQ(criu_inject_personality(pid, ADDR_NO_RANDOMIZE), 0);
	EXPECT_STREQ(of_proc(pid, "personality"), "00040000");
	for (int i = 0; i < 10000 && !strstr(of_proc(pid, "stat"), ") T "); i++)
		usleep(1000);
	EXPECT_NE(strstr(of_proc(pid, "stat"), ") T "), NULL)
		TH_LOG("%s", of_proc(pid, "stat"));
	ASSERT_EQ(kill(pid, SIGCONT), 0);
	EXPECT_EQ(ends(pid), 0);
}

TEST_F(calls, failures_are_told)
{
	pid_t pid = start_waiter(sleep_and_count), tracer;
	int told[2], status;
	char c;

	EXPECT_EQ(criu_inject_policy(pid, 99, self->nodes, 1024, 0, 0), -EINVAL);
	EXPECT_EQ(criu_inject_policy(pid, 2, self->nodes, 1024, 4097, 2 * 4096), -EINVAL);
	/* More than there is room for, below the stack. */
	EXPECT_EQ(criu_inject_policy(pid, 2, self->nodes, 2048, 0, 0), -EINVAL);
	EXPECT_EQ(criu_inject_personality(2000000000, 0), -ENOENT);
	/* Its tracer is another one. */
	ASSERT_EQ(pipe(told), 0);
	tracer = fork();
	if (!tracer) {
		c = !ptrace(PTRACE_SEIZE, pid, 0, 0);
		c = write(told[1], &c, 1);
		for (;;)
			pause();
	}
	ASSERT_EQ(read(told[0], &c, 1), 1);
	ASSERT_EQ(c, 1);
	EXPECT_EQ(criu_inject_personality(pid, ADDR_NO_RANDOMIZE), -EPERM);
	kill(tracer, SIGKILL);
	waitpid(tracer, &status, 0);
	EXPECT_STREQ(of_proc(pid, "personality"), "00000000");
	EXPECT_EQ(ends(pid), 0);
	EXPECT_LT(criu_inject_personality(pid, ADDR_NO_RANDOMIZE), 0);
}

TEST_HARNESS_MAIN
