// SPDX-License-Identifier: Apache-2.0
/*
 * looks.c - what a checkpoint sees of the processes of a job, and a restore of its host, without a job: what CRIU would
 * lose, TCP ports and connections, mapped files, the clocks' variable
 *
 * The processes are children that do one thing and then wait. Each test has a network and System V objects of its own.
 */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "ckpt_i.h"
#include "stood.h"
#include "tcp.h"

#include "kselftest_harness.h"

struct shared {
	volatile int id, fd, port;	/* for or from an act */
	volatile int skip;		/* this kernel has no such thing */
	volatile pid_t pid;		/* of who acts, in its namespace */
	void *volatile at;
};

static struct shared *sh;

static void *share(void)
{
	return mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* ------------------------------------------------------------------------------- children */

static void act_alone(void *arg, int *told)
{
	void (*const *act)(void) = arg;

	*told = dup2(*told, 3);
	close_range(4, ~0u, 0);		/* the sockets of who has started it */
	sh->pid = getpid();
	(*act)();
}

/* The child when it has acted; -1: it has not. */
static pid_t begin(void (*act)(void))
{
	return child_begin(act_alone, &act);
}

static void nothing(void)
{
}

/* Process 1 of a namespace of pids, whose child has acted; the child is process 2. */
static pid_t begin_inside(void (*act)(void))
{
	struct clone_args a = { .flags = CLONE_NEWPID, .exit_signal = SIGCHLD };
	int told[2];
	pid_t pid;
	char c;

	if (pipe(told))
		return -1;
	pid = syscall(SYS_clone3, &a, sizeof(a));
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(told[0]);
		if (!fork())
			child_acts(act_alone, &act, told[1]);
		for (;;)
			pause();
	}
	close(told[1]);
	if (pid > 0 && read(told[0], &c, 1) != 1)
		pid = -1;
	close(told[0]);
	return pid;
}

static pid_t child_of(pid_t pid)
{
	char path[64];
	int child = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, pid);
	in = fopen(path, "r");
	if (!in || fscanf(in, "%d", &child) != 1)
		child = -1;
	if (in)
		fclose(in);
	return child;
}

/* "lo" with these addresses. */
static bool have_network(void)
{
	static const char *const address[] = { "127.0.0.1", "10.77.0.1" };
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	bool all = s >= 0;

	for (int i = 0; i < 2 && all; i++) {
		struct ifreq r = { .ifr_addr.sa_family = AF_INET };

		snprintf(r.ifr_name, sizeof(r.ifr_name), i ? "lo:%d" : "lo", i);
		inet_pton(AF_INET, address[i], &((struct sockaddr_in *)&r.ifr_addr)->sin_addr);
		all = !ioctl(s, SIOCSIFADDR, &r);
		r.ifr_flags = IFF_UP | IFF_RUNNING | IFF_MULTICAST;
		all &= !ioctl(s, SIOCSIFFLAGS, &r);
	}
	close(s);
	return all;
}

/* -------------------------------------------------------------------------------- lost.c */

static void use_semaphores(void)
{
	struct sembuf up = { .sem_num = 1, .sem_op = 1 };

	sh->id = semget(IPC_PRIVATE, 2, 0600);
	semop(sh->id, &up, 1);
}

static void use_memory(void)
{
	sh->id = shmget(IPC_PRIVATE, 4096, 0600);
}

static void attach_memory(void)
{
	if (shmat(sh->id, NULL, 0) == (void *)-1)
		_exit(1);
}

static void send_to_queue(void)
{
	struct { long type; char text[1]; } m = { 1, "x" };

	sh->id = msgget(IPC_PRIVATE, 0600);
	msgsnd(sh->id, &m, 1, 0);
}

static void receive_from_queue(void)
{
	struct { long type; char text[1]; } m;

	if (msgrcv(sh->id, &m, 1, 0, 0) != 1)
		_exit(1);
}

static int udp_at(int family, int *port)
{
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in a4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr *a = family == AF_INET ? (void *)&a4 : (void *)&a6;
	socklen_t len = family == AF_INET ? sizeof(a4) : sizeof(a6);
	int s = socket(family, SOCK_DGRAM, 0);

	a6.sin6_addr = in6addr_loopback;
	if (s < 0 || bind(s, a, len) || getsockname(s, a, &len))
		_exit(1);
	*port = ntohs(family == AF_INET ? a4.sin_port : a6.sin6_port);
	if (connect(s, a, len))		/* to itself */
		_exit(1);
	return s;
}

static void leave_unread(void)
{
	int port;

	if (send(udp_at(AF_INET, &port), "x", 1, 0) != 1)
		_exit(1);
	sh->port = port;
}

static void leave_unread6(void)
{
	int port;

	if (send(udp_at(AF_INET6, &port), "x", 1, 0) != 1)
		_exit(1);
	sh->port = port;
}

static void leave_none(void)
{
	int port, s = udp_at(AF_INET, &port);
	char c;

	if (send(s, "x", 1, 0) != 1 || recv(s, &c, 1, 0) != 1)
		_exit(1);
}

static void hold_back(void)
{
	int port, one = 1, s = udp_at(AF_INET, &port);

	if (setsockopt(s, IPPROTO_UDP, UDP_CORK, &one, sizeof(one)) || send(s, "x", 1, 0) != 1)
		_exit(1);
	sh->port = port;
}

static void join_group(void)
{
	struct ip_mreqn group = { .imr_multiaddr.s_addr = htonl(0xef010203), .imr_ifindex = 1 };
	int s = socket(AF_INET, SOCK_DGRAM, 0);

	if (setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof(group)))
		_exit(1);
	sh->fd = s;
}

static void have_sockets(void)
{
	socket(AF_INET, SOCK_DGRAM, 0);
	socket(AF_INET, SOCK_STREAM, 0);
	socket(AF_UNIX, SOCK_STREAM, 0);
	eventfd(5, 0);
}

static void count_down(void)
{
	eventfd(5, 0);
	sh->fd = eventfd(5, EFD_SEMAPHORE);
}

static void next_child_apart(void)
{
	if (unshare(CLONE_NEWPID))
		_exit(1);
}

static void child_apart(void)
{
	next_child_apart();
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
}

static const struct {
	void (*act)(void);
	const char *refused;	/* NULL: not at all */
	const char *also;	/* with the shared number in it */
} lost[] = {
	{ nothing, NULL, "" }, { have_sockets, NULL, "" }, { leave_none, NULL, "" },
	{ use_semaphores, "has used the System V semaphores", "ipcrm -s %d" },
	{ use_memory, "has used the System V shared memory", "ipcrm -m %d" },
	{ attach_memory, "has used the System V shared memory", "ipcrm -m %d" },
	{ send_to_queue, "has used the System V message queue", "ipcrm -q %d" },
	{ receive_from_queue, "has used the System V message queue", "ipcrm -q %d" },
	{ leave_unread, "has datagrams that nobody has read", "UDP socket of port %d" },
	{ leave_unread6, "has datagrams that nobody has read", "UDP socket of port %d" },
	{ hold_back, "holds back what it is to send", "UDP socket of port %d" },
	{ join_group, "has joined a multicast group", "descriptor %d of" },
	{ count_down, "an eventfd with EFD_SEMAPHORE", "descriptor %d of" },
	{ next_child_apart, "would be in a pid namespace of its own", "" },
	{ child_apart, "would be in a pid namespace of its own", "" },
};

FIXTURE(lost)
{
	pid_t root, pid;
	struct why why;
};

FIXTURE_SETUP(lost)
{
	if (geteuid())
		SKIP(return, "namespaces need root");
	ASSERT_EQ(unshare(CLONE_NEWNET | CLONE_NEWIPC), 0);
	ASSERT_TRUE(have_network());
	children_are_ours();
	sh = share();
}

FIXTURE_TEARDOWN(lost)
{
	children_gone();
}

/* What an act finds, and of which its process is not the owner. */
static void prepare(void (*act)(void))
{
	if (act == attach_memory)
		use_memory();
	if (act == receive_from_queue)
		send_to_queue();
}

static void expect_refused(struct __test_metadata *_metadata, size_t i, int err, const struct why *why, pid_t pid)
{
	char also[64], who[32];
	int number = strstr(lost[i].also, "ipcrm") ? sh->id : strstr(lost[i].also, "descriptor") ? sh->fd : sh->port;

	snprintf(also, sizeof(also), lost[i].also, number);
	snprintf(who, sizeof(who), "process %d ", pid);
	EXPECT_EQ(err, lost[i].refused ? -ENOTSUP : 0)
		TH_LOG("%zu: %s", i, why->text);
	if (!lost[i].refused)
		return;
	EXPECT_NE(strstr(why->text, lost[i].refused), NULL)
		TH_LOG("%zu: %s", i, why->text);
	EXPECT_NE(strstr(why->text, also), NULL)
		TH_LOG("%zu: no %s in: %s", i, also, why->text);
	EXPECT_NE(strstr(why->text, who), NULL)
		TH_LOG("%zu: no %s in: %s", i, who, why->text);
}

/* Of the second process, of one that is none of the job's, and of the root. */
TEST_F(lost, what_a_process_has_is_named)
{
	pid_t pids[2], other;

	/* What we have is none of theirs. */
	leave_unread();
	join_group();
	for (size_t i = 0; i < sizeof(lost) / sizeof(*lost); i++) {
		prepare(lost[i].act);
		pids[0] = begin(nothing);
		pids[1] = begin(lost[i].act);
		other = begin(nothing);
		ASSERT_GT(pids[1], 0);
		why_clear(&self->why);
		expect_refused(_metadata, i, ckpt_lost(pids, 2, &self->why), &self->why, pids[1]);
		why_clear(&self->why);
		EXPECT_EQ(ckpt_lost(pids, 1, &self->why), 0)
			TH_LOG("%zu: %s", i, self->why.text);
		EXPECT_EQ(ckpt_lost(&other, 1, &self->why), 0)
			TH_LOG("%zu: %s", i, self->why.text);
		expect_refused(_metadata, i, ckpt_lost(&pids[1], 1, &self->why), &self->why, pids[1]);
		child_end(pids[0]);
		child_end(pids[1]);
		child_end(other);
	}
}

/* In a namespace of their own, which sees other pids: nothing of ours or of another job is theirs. */
TEST_F(lost, so_it_is_in_a_namespace_of_their_own)
{
	pid_t pids[2], other, ours;

	for (size_t i = 0; i < sizeof(lost) / sizeof(*lost); i++) {
		prepare(lost[i].act);
		pids[0] = begin_inside(lost[i].act);
		ASSERT_GT(pids[0], 0);
		pids[1] = child_of(pids[0]);
		why_clear(&self->why);
		/* System V's objects are known by the pids there. */
		expect_refused(_metadata, i, ckpt_lost(pids, 2, &self->why), &self->why,
			       strstr(lost[i].also, "ipcrm") ? 2 : pids[1]);
		ours = getpid();
		why_clear(&self->why);
		EXPECT_EQ(ckpt_lost(&ours, 1, &self->why), strstr(lost[i].also, "ipcrm") && prepare != NULL &&
			  (lost[i].act == attach_memory || lost[i].act == receive_from_queue) ? -ENOTSUP : 0)
			TH_LOG("%zu: %s", i, self->why.text);
		if (lost[i].act == attach_memory)
			shmctl(sh->id, IPC_RMID, NULL);
		if (lost[i].act == receive_from_queue)
			msgctl(sh->id, IPC_RMID, NULL);
		child_end(pids[0]);
		other = begin_inside(nothing);
		why_clear(&self->why);
		EXPECT_EQ(ckpt_lost(&other, 1, &self->why), 0)
			TH_LOG("%zu: %s", i, self->why.text);
		child_end(other);
	}
}

static void *churn(void *ends)
{
	for (pthread_t t; !ends;)
		if (!pthread_create(&t, NULL, churn, "ends"))
			pthread_join(t, NULL);
	return NULL;
}

/* It has nothing any more, and cannot be asked. */
TEST_F(lost, one_that_has_ended_has_nothing)
{
	pid_t pids[2] = { begin(nothing), begin(count_down) };
	siginfo_t info;
	pthread_t t;

	kill(pids[1], SIGKILL);
	ASSERT_EQ(waitid(P_PID, pids[1], &info, WEXITED | WNOWAIT), 0);
	EXPECT_EQ(ckpt_lost(pids, 2, &self->why), 0)
		TH_LOG("%s", self->why.text);
	EXPECT_EQ(ckpt_lost_running(pids, 2, &self->why), 0);
	child_end(pids[1]);
	EXPECT_EQ(ckpt_lost(pids, 2, &self->why), 0)
		TH_LOG("%s", self->why.text);
	child_end(pids[0]);
	/* Whom nobody can ask for System V's objects. */
	EXPECT_EQ(ckpt_lost_running(pids, 1, &self->why), 0);
	pids[0] = getpid();	/* whose threads end all the time: their files go first */
	ASSERT_EQ(pthread_create(&t, NULL, churn, NULL), 0);
	for (int i = 0; i < 3000 && !self->why.err; i++)
		ckpt_lost_running(pids, 1, &self->why);
	EXPECT_STREQ(self->why.text, "");
}

static void seal(void)
{
	char *at = mmap(NULL, 3 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	sh->at = at + 4096;
	sh->skip = syscall(462, at + 4096, 4096, 0) != 0;	/* mseal */
}

static void protect(void)
{
	char *at = mmap(NULL, 3 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int key = pkey_alloc(0, 0);

	sh->at = at + 4096;
	sh->skip = key < 0 || pkey_mprotect(at + 4096, 4096, PROT_READ, key);
}

TEST_F(lost, mappings_that_are_sealed_or_protected_are_named)
{
	static void (*const acts[])(void) = { seal, protect };
	static const char *const says[] = { "is sealed", "has a protection key" };

	for (int i = 0; i < 2; i++) {
		pid_t pids[2] = { begin(nothing), begin(acts[i]) };
		char where[40];

		snprintf(where, sizeof(where), "mapping at %#lx of process %d ", (unsigned long)sh->at, pids[1]);
		why_clear(&self->why);
		EXPECT_EQ(ckpt_lost_running(pids, 1, &self->why), 0)
			TH_LOG("%s", self->why.text);
		EXPECT_EQ(ckpt_lost_running(pids, 2, &self->why), sh->skip ? 0 : -ENOTSUP)
			TH_LOG("%s", self->why.text);
		if (!sh->skip) {
			EXPECT_NE(strstr(self->why.text, says[i]), NULL);
			EXPECT_NE(strstr(self->why.text, where), NULL)
				TH_LOG("no %s in: %s", where, self->why.text);
		}
		child_end(pids[0]);
		child_end(pids[1]);
	}
}

/* -------------------------------------------------------------------------------- stood.c */

#define UNSURE	10000000ull	/* what it takes off each time */

static char library[PATH_MAX];

FIXTURE(stood)
{
	char dir[32], path[64];
	pid_t pid;
};

FIXTURE_SETUP(stood)
{
	snprintf(library, sizeof(library), "%s/lib/" STOOD_LIBRARY, getenv("SINGVGPU_BUILD") ?: "build");
	strcpy(self->dir, "/tmp/looksXXXXXX");
	if (geteuid())
		SKIP(return, "/proc/PID/map_files needs root");
	ASSERT_NE(mkdtemp(self->dir), NULL);
	snprintf(self->path, sizeof(self->path), "%s/" STOOD_LIBRARY, self->dir);
	sh = share();
}

FIXTURE_TEARDOWN(stood)
{
	child_end(self->pid);
	unlink(self->path);
	rmdir(self->dir);
}

static uint64_t word_at(pid_t pid, const volatile void *at)
{
	uint64_t word = ~0ull;
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDONLY);
	if (pread(fd, &word, sizeof(word), (off_t)at) != sizeof(word))
		word = ~0ull;
	close(fd);
	return word;
}

static uint64_t now_ns(void)
{
	return now_ms() * 1000000;
}

static void have_a_child(void)
{
	begin(nothing);
}

TEST_F(stood, all_processes_learn_how_long)
{
	volatile uint64_t *at;
	uint64_t before, was, since;
	pid_t child;
	void *lib;

	lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		SKIP(return, "no library of the clock here");
	at = dlsym(lib, STOOD_VARIABLE);
	ASSERT_NE(at, NULL);
	self->pid = begin(have_a_child);
	child = child_of(self->pid);
	ASSERT_GT(child, 0);
#define BOTH(want) do { \
	EXPECT_EQ(word_at(self->pid, at), want); \
	EXPECT_EQ(word_at(child, at), want); \
} while (0)
	BOTH(0);
	ckpt_stood(self->pid, 0, 1000000000 + UNSURE);
	BOTH(1000000000);
	ckpt_stood(self->pid, 0, 500000000 + UNSURE);
	BOTH(1500000000);
	/* Less than it may be wrong by is nothing. */
	ckpt_stood(self->pid, 0, UNSURE);
	ckpt_stood(self->pid, 0, 5);
	ckpt_stood(self->pid, 0, 0);
	ckpt_stood(self->pid, now_ns() + 5000000000, 0);
	BOTH(1500000000);
	ckpt_stood(self->pid, 0, UNSURE + 1);
	BOTH(1500000001);
	/* Since a time, and before that. */
	for (int i = 0; i < 2; i++) {
		was = word_at(self->pid, at);
		since = now_ns() - 2000000000;
		ckpt_stood(self->pid, since, i ? 1000000000 + UNSURE : 0);
		before = now_ns();
		EXPECT_GE(word_at(self->pid, at) - was, (i ? 3000000000 : 2000000000) - UNSURE);
		EXPECT_LE(word_at(self->pid, at) - was, before - since + (i ? 1000000000 : 0));
		EXPECT_EQ(word_at(self->pid, at), word_at(child, at));
	}
	EXPECT_EQ(*at, 0);		/* ours is none of the tree */
	child_end(child);
}

/* The variable's address in the library, from where that is mapped. */
static uint64_t offset_of_variable(void)
{
	int told[2];
	uint64_t off = 0;
	Dl_info info;
	pid_t pid;

	if (pipe(told))
		return 0;
	pid = fork();
	if (!pid) {
		void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL), *at = lib ? dlsym(lib, STOOD_VARIABLE) : NULL;

		if (at && dladdr(at, &info))
			off = (char *)at - (char *)info.dli_fbase;
		_exit(write(told[1], &off, sizeof(off)) != sizeof(off));
	}
	close(told[1]);
	if (read(told[0], &off, sizeof(off)) != sizeof(off))
		off = 0;
	close(told[0]);
	waitpid(pid, NULL, 0);
	return off;
}

static char mapped_file[64];
static off_t mapped_from;

static void map_file(void)
{
	int fd = open(mapped_file, O_RDONLY);

	sh->at = mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE, fd, mapped_from);
	close(fd);
}

/* The library's bytes, in a file of at least 2 MiB. */
static size_t copy_library(uint8_t *to, size_t room)
{
	FILE *in = fopen(library, "r");
	size_t n = in ? fread(to, 1, room, in) : 0;

	if (in)
		fclose(in);
	return n;
}

static void write_library(const char *path, const uint8_t *bytes, size_t n, off_t size)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (write(fd, bytes, n) != (ssize_t)n || ftruncate(fd, size))
		_exit(1);
	close(fd);
}

/* Whether a process that has mapped such a file gets the time, at that offset. */
static bool gets_it(const char *path, uint64_t off, bool deleted)
{
	uint64_t was, is;
	pid_t pid;

	snprintf(mapped_file, sizeof(mapped_file), "%s", path);
	pid = begin(map_file);
	if (deleted)
		unlink(path);
	was = word_at(pid, (char *)sh->at + off);
	ckpt_stood(pid, 0, 1000000000 + UNSURE);
	is = word_at(pid, (char *)sh->at + off);
	child_end(pid);
	return is - was == 1000000000;
}

TEST_F(stood, a_file_that_is_none_tells_of_no_variable)
{
	static uint8_t lib[1 << 20], bad[1 << 20];
	uint64_t off = offset_of_variable();
	size_t n = copy_library(lib, sizeof(lib));
	Elf64_Ehdr *e = (Elf64_Ehdr *)bad;
	Elf64_Shdr *s = NULL, *names = NULL;
	Elf64_Sym *sym = NULL;
	char other[64];

	if (!off || !n)
		SKIP(return, "no library of the clock here");
	ASSERT_LT(off, 1 << 20);
	memcpy(bad, lib, n);
	for (int i = 0; i < e->e_shnum; i++) {
		s = (Elf64_Shdr *)(bad + e->e_shoff) + i;
		if (s->sh_type == SHT_DYNSYM)
			break;
	}
	ASSERT_EQ(s->sh_type, SHT_DYNSYM);
	names = (Elf64_Shdr *)(bad + e->e_shoff) + s->sh_link;
	for (size_t k = 0; k < s->sh_size / sizeof(*sym); k++) {
		sym = (Elf64_Sym *)(bad + s->sh_offset) + k;
		if (sym->st_value == off && !strcmp((char *)bad + names->sh_offset + sym->st_name, STOOD_VARIABLE))
			break;
	}
	ASSERT_EQ(sym->st_value, off);
	write_library(self->path, lib, n, 2 << 20);
	EXPECT_TRUE(gets_it(self->path, off, false));
	EXPECT_TRUE(gets_it(self->path, off, true));
	/* Each in turn; then the file is whole again. */
#define NOT(how) do { \
	how; \
	write_library(self->path, bad, n, 2 << 20); \
	EXPECT_FALSE(gets_it(self->path, off, false)) \
		TH_LOG("%s", #how); \
	memcpy(bad, lib, n); \
} while (0)
	NOT(e->e_ident[0] = 'x');
	NOT(e->e_ident[EI_CLASS] = ELFCLASS32);
	NOT(e->e_shoff = 1ull << 40);
	NOT(e->e_shoff = (2 << 20) - sizeof(*s));
	NOT(e->e_shnum = 0);
	NOT(e->e_shnum = s - (Elf64_Shdr *)(bad + e->e_shoff));		/* those before it alone */
	NOT(s->sh_type = SHT_PROGBITS);
	NOT(s->sh_offset = ~0ull);
	NOT(s->sh_size = 1ull << 40);
	NOT(s->sh_link = 0xffff);
	NOT(s->sh_link = e->e_shnum);
	NOT(e->e_shnum = s->sh_link);	/* the one behind the last */
	NOT(names->sh_offset = -(1ull << 40); names->sh_size = (1ull << 40) + n);
	NOT(names->sh_offset = 3 << 20);
	NOT(names->sh_size = 1ull << 40);
	NOT(names->sh_size = sym->st_name);
	NOT(names->sh_size = sym->st_name + sizeof(STOOD_VARIABLE) - 1);
	NOT(sym->st_name = ~0u);
	NOT(sym->st_name++);
	NOT(sym->st_shndx = SHN_UNDEF);
	NOT(sym->st_value = 0);
	NOT(bad[names->sh_offset + sym->st_name + sizeof(STOOD_VARIABLE) - 1] = 'x');
#undef NOT
	/* As much of the names as is needed, and no more. */
	names->sh_size = sym->st_name + sizeof(STOOD_VARIABLE);
	write_library(self->path, bad, n, 2 << 20);
	EXPECT_TRUE(gets_it(self->path, off, false));
	/* The file is too large, or of another name, or that part of it is not its beginning. */
	write_library(self->path, lib, n, 64 << 20);
	EXPECT_TRUE(gets_it(self->path, off, false));
	write_library(self->path, lib, n, (64 << 20) + 1);
	EXPECT_FALSE(gets_it(self->path, off, false));
	write_library(self->path, lib, n, 2 << 20);
	mapped_from = 4096;
	EXPECT_FALSE(gets_it(self->path, off - 4096, false));
	EXPECT_FALSE(gets_it(self->path, off, false));
	mapped_from = 0;
	snprintf(other, sizeof(other), "%s/other.so", self->dir);
	ASSERT_EQ(rename(self->path, other), 0);
	EXPECT_FALSE(gets_it(other, off, false));
	unlink(other);
	write_library(self->path, lib, 0, 2 << 20);
	EXPECT_FALSE(gets_it(self->path, off, false));
}

/* -------------------------------------------------------------------------------- ports.c */

FIXTURE(ports)
{
	struct rundir_job job;
	struct rundir_rank rank[2];
	struct ckpt_facts facts;
	struct why why;
	pid_t pid[2];
};

FIXTURE_SETUP(ports)
{
	if (geteuid())
		SKIP(return, "a network of its own needs root");
	ASSERT_EQ(unshare(CLONE_NEWNET), 0);
	ASSERT_TRUE(have_network());
	children_are_ours();
	sh = share();
	self->job.rank = self->rank;
}

FIXTURE_TEARDOWN(ports)
{
	child_end(self->pid[0]);
	child_end(self->pid[1]);
	free(self->facts.port);
	free(self->facts.connection);
	children_gone();
}

static int look(struct rundir_job *job, pid_t *pids, int n, bool outside, struct ckpt_facts *f, struct why *why)
{
	free(f->port);
	free(f->connection);
	*f = (struct ckpt_facts){ 0 };
	why_clear(why);
	return ckpt_ports(job, pids, n, outside, f, why);
}

static void serve(void)
{
	sh->fd = tcp("127.0.0.1", 4001, NULL, 0, true);
}

static void serve_all(void)
{
	sh->fd = tcp("0.0.0.0", 4001, NULL, 0, true);
}

static void serve_and_accept(void)
{
	/* The other ends come from outside. */
	int s = tcp("10.77.0.1", 4001, NULL, 0, true);

	sh->fd = s;
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(s);
		tcp("127.0.0.1", 4100, "10.77.0.1", 4001, true);
		for (;;)
			pause();
	}
	if (accept(s, NULL, NULL) < 0)
		_exit(1);
}

static void join_us(void)
{
	sh->fd = tcp("127.0.0.1", sh->port, "127.0.0.1", 4200, true);
}

static void join_us_from_there(void)
{
	sh->fd = tcp("10.77.0.1", sh->port, "127.0.0.1", 4200, true);
}

static void join_us_and_hear_the_end(void)
{
	char c;

	join_us();
	if (read(sh->fd, &c, 1))
		_exit(1);
}

static void join_us_and_say_the_end(void)
{
	join_us();
	shutdown(sh->fd, SHUT_WR);
	while (!tcp_is(sh->fd, TCP_FIN_WAIT2))
		usleep(1000);
}

static void serve_and_join_us(void)
{
	if (tcp("127.0.0.1", 4001, NULL, 0, true) < 0)
		_exit(1);
	join_us();
}

static void accept_at(const char *all, const char *from, const char *to)
{
	int s = tcp(all, 4001, NULL, 0, true);

	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(s);
		tcp(from, 4107, to, 4001, true);
		for (;;)
			pause();
	}
	if (accept(s, NULL, NULL) < 0)
		_exit(1);
}

static void serve_all_and_accept(void)
{
	accept_at("0.0.0.0", "127.0.0.1", "10.77.0.1");
}

static void serve_all_six_and_accept(void)
{
	accept_at("::", "::1", "::1");
}

static void join_server(void)
{
	tcp("127.0.0.1", 4103, "127.0.0.1", 4001, true);
}

static void have_both_ends(void)
{
	int s = tcp("127.0.0.1", 4001, NULL, 0, true);

	if (tcp("127.0.0.1", 4104, "127.0.0.1", 4001, true) < 0 || accept(s, NULL, NULL) < 0)
		_exit(1);
	close(s);
}

static void have_ports_of_others(void)
{
	if (!have_like("10.77.0.1", "10.77.0.1", 4250))
		_exit(1);
}

static void have_an_end_of_others(void)
{
	if (!have_like("127.0.0.1", "127.0.0.1", 4251))
		_exit(1);
}

TEST_F(ports, what_the_job_listens_on_is_recorded)
{
	int ours = tcp("127.0.0.1", 4200, NULL, 0, true);

	ASSERT_GE(ours, 0);
	self->pid[0] = begin(nothing);
	self->pid[1] = begin(serve);
	self->job.ranks = 2;
	self->job.rank[0].pid = self->pid[0];
	self->job.rank[1].pid = self->pid[1];
	EXPECT_EQ(look(&self->job, self->pid, 1, false, &self->facts, &self->why), 0);
	EXPECT_EQ(self->facts.ports, 0);
	EXPECT_EQ(look(&self->job, self->pid, 2, false, &self->facts, &self->why), 0);
	ASSERT_EQ(self->facts.ports, 1);
	EXPECT_STREQ(self->facts.port[0].address, "127.0.0.1");
	EXPECT_EQ(self->facts.port[0].port, 4001);
	EXPECT_NE(self->facts.port[0].inode, 0);
	EXPECT_EQ(self->facts.connections, 0);
	/* A network of its own has its ports to itself. */
	EXPECT_EQ(look(&self->job, self->pid, 0, false, &self->facts, &self->why), 0);
	ASSERT_EQ(unshare(CLONE_NEWNET), 0);
	EXPECT_EQ(look(&self->job, self->pid, 2, false, &self->facts, &self->why), 0);
	EXPECT_EQ(self->facts.ports, 0);
}

/* IPv4 at a socket of IPv6, of which both ends are the job's. */
static void have_both_families(void)
{
	int s = tcp("::", 4001, NULL, 0, true);

	if (s < 0 || tcp("127.0.0.1", 4105, "127.0.0.1", 4001, true) < 0 || accept(s, NULL, NULL) < 0 ||
	    tcp("::1", 4106, "::1", 4001, true) < 0 || accept(s, NULL, NULL) < 0)
		_exit(1);
	close(s);
}

static void join_us_twice(void)
{
	join_us();
	/* Another connection of the same port, which the job has both ends of. */
	if (fcntl(sh->fd, F_GETFD) < 0)
		_exit(1);
	have_both_ends();
}

TEST_F(ports, connections_that_lead_out_are_refused)
{
	static const struct {
		void (*act)(void);
		const char *from;	/* NULL: it is taken */
		int connections;
	} cases[] = {
		{ join_us, "from 127.0.0.1:%d to 127.0.0.1:4200", 1 },
		{ join_us_from_there, "from 10.77.0.1:%d to 127.0.0.1:4200", 1 },
		{ join_us_and_say_the_end, "from 127.0.0.1:%d to 127.0.0.1:4200", 1 },
		{ join_us_and_hear_the_end, NULL, 1 },
		{ serve_and_join_us, "from 127.0.0.1:%d to 127.0.0.1:4200", 1 },
		{ serve_and_accept, NULL, 1 },
		{ serve_all_and_accept, NULL, 1 },
		{ serve_all_six_and_accept, NULL, 1 },
		{ have_both_ends, NULL, 2 },
		{ have_ports_of_others, NULL, 2 * LIKE },
		{ have_an_end_of_others, NULL, 2 * LIKE },
		{ have_both_families, NULL, 4 },
		{ join_us_twice, "from 127.0.0.1:%d to 127.0.0.1:4200", 3 },
		{ nothing, NULL, 0 },
	};

	self->pid[0] = begin(nothing);
	ASSERT_TRUE(have_like("127.0.0.1", "127.0.0.1", 4250));
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		int ours = tcp("127.0.0.1", 4200, NULL, 0, true), accepted = -1, rc;
		pid_t ender = 0;
		char from[80];

		ASSERT_GE(ours, 0);
		sh->port = 4110 + i;
		if (cases[i].act == join_us_and_hear_the_end) {
			ender = fork();
			if (!ender) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				accepted = accept(ours, NULL, NULL);
				shutdown(accepted, SHUT_WR);
				for (;;)
					pause();
			}
		}
		self->pid[1] = begin(cases[i].act);
		ASSERT_GT(self->pid[1], 0);
		if (cases[i].from) {
			ASSERT_GE(sh->fd, 0);
			accepted = accept(ours, NULL, NULL);
			snprintf(from, sizeof(from), cases[i].from, sh->port);
		}
		self->job.ranks = 2;
		self->job.rank[0].pid = self->pid[0];
		self->job.rank[1].pid = self->pid[1];
		rc = look(&self->job, self->pid, 2, false, &self->facts, &self->why);
		EXPECT_EQ(rc, cases[i].from ? -ENOTSUP : 0)
			TH_LOG("%zu: %s", i, self->why.text);
		if (cases[i].from)
			EXPECT_NE(strstr(self->why.text, from), NULL)
				TH_LOG("%zu: %s", i, self->why.text);
		/* All the same if it is wanted; by who else has it, it leads out of nothing. */
		EXPECT_EQ(look(&self->job, self->pid, 2, true, &self->facts, &self->why), 0);
		EXPECT_EQ(self->facts.connections, cases[i].connections);
		if (self->facts.connections)
			EXPECT_EQ(self->facts.connection[0].rank, 1);
		EXPECT_EQ(look(&self->job, self->pid, 1, false, &self->facts, &self->why), 0);
		EXPECT_EQ(self->facts.connections, 0);
		child_end(self->pid[1]);
		child_end(ender);
		self->pid[1] = 0;
		close(accepted);
		close(ours);
	}
}

TEST_F(ports, connections_between_its_processes_are_taken)
{
	self->pid[0] = begin(serve);
	self->pid[1] = begin(join_server);
	self->job.ranks = 1;
	EXPECT_EQ(look(&self->job, self->pid, 2, false, &self->facts, &self->why), 0)
		TH_LOG("%s", self->why.text);
	ASSERT_EQ(self->facts.connections, 1);
	EXPECT_EQ(self->facts.connection[0].from.port, 4103);
	EXPECT_EQ(self->facts.connection[0].to.port, 4001);
	EXPECT_STREQ(self->facts.connection[0].to.address, "127.0.0.1");
	/* The end that nobody has accepted yet is none of another process. */
	EXPECT_EQ(look(&self->job, &self->pid[1], 1, false, &self->facts, &self->why), 0);
	/* The job's server listens on all addresses. */
	child_end(self->pid[0]);
	child_end(self->pid[1]);
	self->pid[0] = begin(serve_all);
	self->pid[1] = begin(nothing);
	ASSERT_GE(tcp("127.0.0.1", 4105, "10.77.0.1", 4001, true), 0);
	EXPECT_EQ(look(&self->job, self->pid, 2, false, &self->facts, &self->why), 0)
		TH_LOG("%s", self->why.text);
	EXPECT_STREQ(self->facts.port[0].address, "0.0.0.0");
}

/* What a restore looks at: the ports and addresses of a job that has ended. */
static int check(struct ckpt_facts *f, struct ckpt_port *port, int ports, struct ckpt_connection *c, int connections,
		 struct why *why)
{
	*f = (struct ckpt_facts){ .port = port, .ports = ports, .connection = c, .connections = connections };
	why_clear(why);
	return ckpt_ports_check(f, say, why);
}

TEST_F(ports, ports_in_use_and_addresses_elsewhere_are_named)
{
	struct ckpt_port port[3] = { { .address = "127.0.0.1", .port = 4001, .inode = 1 } };
	struct ckpt_connection c[2] = { { .rank = 3, .from = { .address = "10.77.0.1", .port = 5 },
					  .to = { .address = "fd00::9", .port = 80 } } };
	struct ckpt_facts f = { 0 };
	char who[40];
	static const struct {
		const char *was, *is;
		int port;
		bool collide;
	} cases[] = {
		{ "127.0.0.1", "127.0.0.1", 4001, true }, { "127.0.0.1", "0.0.0.0", 4001, true },
		{ "0.0.0.0", "127.0.0.1", 4001, true }, { "127.0.0.1", "10.77.0.1", 4001, false },
		{ "127.0.0.1", "127.0.0.1", 4002, false }, { "::", "127.0.0.1", 4001, false },
		{ "::", "::1", 4001, true }, { "::1", "::", 4001, true },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		int ours = tcp(cases[i].is, cases[i].port, NULL, 0, true);
		struct stat st;

		ASSERT_GE(ours, 0);
		strcpy(port[0].address, cases[i].was);
		EXPECT_EQ(check(&f, port, 1, NULL, 0, &self->why), cases[i].collide ? -EADDRINUSE : 0)
			TH_LOG("%zu: %s", i, self->why.text);
		snprintf(who, sizeof(who), "in use by process %d (", getpid());
		if (cases[i].collide)
			EXPECT_NE(strstr(self->why.text, who), NULL)
				TH_LOG("%s", self->why.text);
		/* The job's own, which still runs. */
		ASSERT_EQ(fstat(ours, &st), 0);
		port[0].inode = st.st_ino;
		EXPECT_EQ(check(&f, port, 1, NULL, 0, &self->why), 0);
		port[0].inode = 1;
		close(ours);
	}
	strcpy(port[0].address, "127.0.0.1");
	EXPECT_EQ(check(&f, port, 1, c, 1, &self->why), 0);
	strcpy(c[0].from.address, "172.99.0.1");
	EXPECT_EQ(check(&f, port, 1, c, 1, &self->why), -EADDRNOTAVAIL);
	EXPECT_NE(strstr(self->why.text, "rank 3 has a connection to [fd00::9]:80 from 172.99.0.1:5, which is no address"), NULL)
		TH_LOG("%s", self->why.text);
	strcpy(port[1].address, "172.99.0.2");
	port[1].port = 4001;
	EXPECT_EQ(check(&f, port, 2, NULL, 0, &self->why), -EADDRNOTAVAIL);
	EXPECT_NE(strstr(self->why.text, "the job listens on 172.99.0.2:4001, which is no address"), NULL)
		TH_LOG("%s", self->why.text);
	EXPECT_EQ(strstr(self->why.text, "more of its TCP sockets"), NULL);
	EXPECT_EQ(check(&f, port, 2, c, 1, &self->why), -EADDRNOTAVAIL);
	EXPECT_NE(strstr(self->why.text, "172.99.0.2"), NULL);
	EXPECT_NE(strstr(self->why.text, "and 1 more of its TCP sockets"), NULL)
		TH_LOG("%s", self->why.text);
	strcpy(port[2].address, "172.99.0.3");
	EXPECT_EQ(check(&f, port, 3, c, 1, &self->why), -EADDRNOTAVAIL);
	EXPECT_NE(strstr(self->why.text, "172.99.0.2"), NULL);
	EXPECT_NE(strstr(self->why.text, "and 2 more of its TCP sockets"), NULL)
		TH_LOG("%s", self->why.text);
	/* Addresses that each host has, or that this one has no use for. */
	strcpy(port[0].address, "0.0.0.0");
	strcpy(port[1].address, "::");
	strcpy(port[2].address, "127.9.9.9");
	EXPECT_EQ(check(&f, port, 3, NULL, 0, &self->why), 0)
		TH_LOG("%s", self->why.text);
	strcpy(port[1].address, "::1");
	EXPECT_EQ(check(&f, port, 3, NULL, 0, &self->why), 0)
		TH_LOG("%s", self->why.text);
	/* Though it may be down. */
	ASSERT_EQ(unshare(CLONE_NEWNET), 0);
	EXPECT_EQ(check(&f, port, 3, NULL, 0, &self->why), 0)
		TH_LOG("%s", self->why.text);
}

/* The kernel keeps a connection's end that has closed first; a port with that alone is free soon. */
TEST_F(ports, a_port_that_passes_is_waited_for)
{
	struct ckpt_port port[2] = { { .address = "127.0.0.1", .port = 4300 }, { .address = "127.0.0.1", .port = 4001 } };
	struct ckpt_facts f = { .port = port, .ports = 2 };
	int server = tcp("127.0.0.1", 4001, NULL, 0, false);

	EXPECT_EQ(ckpt_ports_passing(&f), 0);	/* it listens: that does not pass */
	ASSERT_TRUE(close_first(server, 4001, 4106));
	EXPECT_EQ(ckpt_ports_passing(&f), 4001);
	/* IPv6 has the port free, and so has the job if it had asked for that. */
	strcpy(port[1].address, "::");
	EXPECT_EQ(ckpt_ports_passing(&f), 0);
	strcpy(port[1].address, "127.0.0.1");
	port[1].port = 4002;
	ASSERT_TRUE(close_first(tcp("127.0.0.1", 4002, NULL, 0, true), 4002, 4106));
	EXPECT_EQ(ckpt_ports_passing(&f), 0);
	port[1].port = 4001;
	f.ports = 1;
	EXPECT_EQ(ckpt_ports_passing(&f), 0);
}

/* ------------------------------------------------------------------ contents.c, mapped.c */

#define KEPT	"/run/singvgpu.contents"

FIXTURE(files)
{
	char dir[32], path[64], other[64];
	pid_t pid;
	struct ckpt_facts facts;
	struct why why;
};

FIXTURE_SETUP(files)
{
	if (geteuid())
		SKIP(return, "a /run of its own needs root");
	ASSERT_EQ(unshare(CLONE_NEWNS), 0);
	ASSERT_EQ(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	ASSERT_EQ(mount("none", "/run", "tmpfs", 0, NULL), 0);
	sh = share();
	strcpy(self->dir, "/tmp/looksXXXXXX");
	ASSERT_NE(mkdtemp(self->dir), NULL);
	snprintf(self->path, sizeof(self->path), "%s/a file", self->dir);
	snprintf(self->other, sizeof(self->other), "%s/another", self->dir);
}

FIXTURE_TEARDOWN(files)
{
	child_end(self->pid);
	unlink(self->path);
	unlink(self->other);
	rmdir(self->dir);
	facts_free(&self->facts);
}

/* A file that is not new. */
static const char *old_file(void)
{
	static char path[PATH_MAX];

	return realpath("selftests/tools/looks.c", path) ?: "/etc/passwd";
}

static int digest_of(const char *path, bool (*stop)(void *arg), char digest[CKPT_DIGEST])
{
	struct ckpt_contents *c = ckpt_contents_open(stop, NULL);
	int fd = open(path, O_RDONLY), err = ckpt_contents_digest(c, fd, digest);

	close(fd);
	ckpt_contents_close(c);
	return err;
}

static void write_file(const char *path, const char *text, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);

	if (write(fd, text, strlen(text)) != (ssize_t)strlen(text) || fchmod(fd, mode))
		_exit(1);
	close(fd);
}

static char *read_file(const char *path)
{
	static char text[4096];
	int fd = open(path, O_RDONLY);
	ssize_t n = read(fd, text, sizeof(text) - 1);

	close(fd);
	text[n < 0 ? 0 : n] = 0;
	return text;
}

static bool yes(void *arg)
{
	return true;
}

static bool no(void *arg)
{
	return false;
}

TEST_F(files, a_digest_is_kept_as_long_as_the_file_is_the_same)
{
	char digest[CKPT_DIGEST], again[CKPT_DIGEST], text[4096], forged[4096], *at;
	struct stat st;

	write_file(self->path, "some words\n", 0600);
	ASSERT_EQ(digest_of(self->path, NULL, digest), 0);
	EXPECT_EQ(strlen(digest), CKPT_DIGEST - 1);
	EXPECT_EQ(strncmp(digest, "xxh3:", 5), 0);
	/* One that was written just now may be written again at the same time of that file system. */
	EXPECT_NE(access(KEPT, F_OK), 0);
	write_file(self->other, "same words\n", 0600);
	ASSERT_EQ(digest_of(self->other, NULL, again), 0);
	EXPECT_NE(strcmp(digest, again), 0);
	EXPECT_EQ(digest_of(self->path, yes, again), -ECANCELED);
	EXPECT_EQ(digest_of(old_file(), yes, again), -ECANCELED);
	EXPECT_NE(access(KEPT, F_OK), 0);
	ASSERT_EQ(digest_of(old_file(), no, digest), 0);
	strcpy(text, read_file(KEPT));
	at = strstr(text, digest);
	ASSERT_NE(at, NULL);
	EXPECT_EQ(stat(KEPT, &st), 0);
	EXPECT_EQ(st.st_mode & 0777, 0600);
	/* What is kept is believed, while all five numbers are the file's. */
	at[10] ^= 1;
	write_file(KEPT, text, 0600);
	ASSERT_EQ(digest_of(old_file(), NULL, again), 0);
	EXPECT_EQ(strncmp(again, at, CKPT_DIGEST - 1), 0);
	for (int i = 0; i < 5; i++) {
		char *word = strchr(text, '\n') + 1;

		for (int k = 0; k < i; k++)
			word = strchr(word, ' ') + 1;
		strcpy(forged, text);
		word = forged + (word - text);
		word += strcspn(word, " \n") - 1;
		*word = *word == '0' ? '1' : *word - 1;
		write_file(KEPT, forged, 0600);
		ASSERT_EQ(digest_of(old_file(), NULL, again), 0);
		EXPECT_STREQ(again, digest)
			TH_LOG("number %d", i);
		/* It is kept behind the other one, and the last one counts. */
		EXPECT_NE(strstr(read_file(KEPT), digest), NULL);
		ASSERT_EQ(digest_of(old_file(), NULL, again), 0);
		EXPECT_STREQ(again, digest);
	}
	/* Only root's own file is. */
#define NOT_BELIEVED(how) do { \
	unlink(KEPT); \
	write_file(KEPT, text, 0600); \
	how; \
	ASSERT_EQ(digest_of(old_file(), NULL, again), 0); \
	EXPECT_STREQ(again, digest) \
		TH_LOG("%s", #how); \
} while (0)
	NOT_BELIEVED(chmod(KEPT, 0620));
	NOT_BELIEVED(chmod(KEPT, 0602));
	NOT_BELIEVED(chown(KEPT, 65534, -1));
	NOT_BELIEVED(truncate(KEPT, (2 << 20) + 1));
	NOT_BELIEVED(rename(KEPT, "/run/x"); symlink("x", KEPT));
	NOT_BELIEVED(text[0] ^= 1; write_file(KEPT, text, 0600); text[0] ^= 1);
	NOT_BELIEVED(unlink(KEPT); mkfifo(KEPT, 0600));
	NOT_BELIEVED(at[CKPT_DIGEST - 2] = '\n'; at[CKPT_DIGEST - 1] = 0; write_file(KEPT, text, 0600));
#undef NOT_BELIEVED
}

static char code_file[64], data_file[64], gone_file[64], shared_file[64], private_file[64], tiny_file[64], shm_file[64];

/* A file of a page, in dir. */
static void map_one(char path[64], const char *dir, const char *name, int prot, int flags, const char *begin)
{
	int fd;

	snprintf(path, 64, "%s/%s", dir, name);
	write_file(path, begin, 0700);
	fd = open(path, O_RDWR);
	if (ftruncate(fd, 4096) || mmap(NULL, 4096, prot, flags, fd, 0) == MAP_FAILED)
		_exit(1);
	close(fd);
}

static const struct ckpt_mapped *mapped_at(const struct ckpt_facts *f, const char *path)
{
	for (int i = 0; i < f->mappeds; i++)
		if (!strcmp(f->mapped[i].path, path))
			return &f->mapped[i];
	return NULL;
}

static int check_mapped(struct ckpt_facts *f, struct why *why)
{
	why_clear(why);
	return ckpt_mapped_check(f, why);
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

TEST_F(files, what_is_mapped_is_compared)
{
	pid_t pids[2];
	int fds;
	const struct ckpt_mapped *m;
	struct ckpt_facts one = { 0 };
	char name[80], shm[32];

	map_one(code_file, self->dir, "code", PROT_READ | PROT_EXEC, MAP_PRIVATE, "code");
	map_one(data_file, self->dir, "a table", PROT_READ, MAP_SHARED, "data");
	map_one(private_file, self->dir, "private", PROT_READ | PROT_WRITE, MAP_PRIVATE, ELFMAG "\2");
	map_one(shared_file, self->dir, "shared", PROT_READ | PROT_WRITE, MAP_SHARED, "data");
	/* The job writes to it by another mapping, before and behind. */
	map_one(shared_file, self->dir, "shared", PROT_READ, MAP_PRIVATE, "data");
	map_one(gone_file, self->dir, "gone", PROT_READ, MAP_PRIVATE, "data");
	unlink(gone_file);
	snprintf(name, sizeof(name), "%s (deleted)", gone_file);
	write_file(name, "another", 0600);
	/* A program has more than its first bytes. */
	map_one(tiny_file, self->dir, "tiny", PROT_READ, MAP_PRIVATE, ELFMAG "\2");
	truncate(tiny_file, 5);
	snprintf(shm, sizeof(shm), "looks.%d", getpid());
	map_one(shm_file, "/dev/shm", shm, PROT_READ, MAP_PRIVATE, "data");
	/* A file of such a name is none that is mapped. */
	ASSERT_EQ(chdir(self->dir), 0);
	write_file("[stack]", "", 0600);
	pids[0] = begin(nothing);
	child_end(pids[0]);
	pids[1] = self->pid = begin(nothing);
	fds = open_fds();
	ASSERT_EQ(ckpt_mapped(pids, 2, &self->facts, no, NULL, &self->why), 0);
	EXPECT_EQ(open_fds(), fds);
	unlink("[stack]");
	unlink(name);
	unlink(shm_file);
	m = mapped_at(&self->facts, code_file);
	ASSERT_NE(m, NULL);
	EXPECT_EQ(m->size, 4096);
	EXPECT_EQ(strncmp(m->identity, "xxh3:", 5), 0);
	m = mapped_at(&self->facts, data_file);
	ASSERT_NE(m, NULL);
	EXPECT_STREQ(m->identity, "size");
	m = mapped_at(&self->facts, private_file);
	ASSERT_NE(m, NULL);
	EXPECT_EQ(strncmp(m->identity, "xxh3:", 5), 0);		/* a program that is read, not executed */
	m = mapped_at(&self->facts, tiny_file);
	ASSERT_NE(m, NULL);
	EXPECT_STREQ(m->identity, "size");
	unlink(tiny_file);
	free(((struct ckpt_mapped *)m)->path);
	*(struct ckpt_mapped *)m = self->facts.mapped[--self->facts.mappeds];
	EXPECT_EQ(mapped_at(&self->facts, shared_file), NULL);
	EXPECT_EQ(mapped_at(&self->facts, gone_file), NULL);
	for (int i = 0; i < self->facts.mappeds; i++) {
		EXPECT_EQ(*self->facts.mapped[i].path, '/');
		EXPECT_EQ(strstr(self->facts.mapped[i].path, "(deleted)"), NULL);
		EXPECT_NE(strncmp(self->facts.mapped[i].path, "/dev/", 5), 0);
	}
	EXPECT_EQ(check_mapped(&self->facts, &self->why), 0)
		TH_LOG("%s", self->why.text);
	/* One byte of data may differ, and none of code. */
	write_file(data_file, "DATA", 0700);
	truncate(data_file, 4096);
	EXPECT_EQ(check_mapped(&self->facts, &self->why), 0)
		TH_LOG("%s", self->why.text);
	truncate(data_file, 4095);
	EXPECT_EQ(check_mapped(&self->facts, &self->why), -ESTALE);
	EXPECT_NE(strstr(self->why.text, data_file), NULL);
	unlink(data_file);
	ASSERT_EQ(mkdir(data_file, 0700), 0);
	EXPECT_EQ(check_mapped(&self->facts, &self->why), -ENOENT);
	rmdir(data_file);
	write_file(data_file, "data", 0700);
	truncate(data_file, 4096);
	EXPECT_EQ(check_mapped(&self->facts, &self->why), 0);
	write_file(code_file, "codf", 0700);
	truncate(code_file, 4096);
	EXPECT_EQ(check_mapped(&self->facts, &self->why), -ESTALE);
	EXPECT_NE(strstr(self->why.text, code_file), NULL);
	/* What is in the stand-ins' own folder is in the checkpoint; what is beside it is not. */
	self->facts.libdir = strdup(self->dir);
	EXPECT_EQ(check_mapped(&self->facts, &self->why), 0);
	self->facts.libdir[strlen(self->dir) - 1] = 0;
	EXPECT_EQ(check_mapped(&self->facts, &self->why), -ESTALE);
	unlink(code_file);
	EXPECT_EQ(check_mapped(&self->facts, &self->why), -ENOENT);
	ASSERT_EQ(mkdir(code_file, 0700), 0);
	EXPECT_EQ(check_mapped(&self->facts, &self->why), -ENOENT);
	rmdir(code_file);
	/* Nobody waits there. */
	ASSERT_EQ(mkfifo(code_file, 0700), 0);
	EXPECT_EQ(check_mapped(&self->facts, &self->why), -ENOENT);
	unlink(code_file);
	/* It takes long, and is given up. */
	EXPECT_EQ(ckpt_mapped(&self->pid, 1, &one, yes, NULL, &self->why), -ECANCELED);
	facts_free(&one);
	unlink(data_file);
	unlink(private_file);
	unlink(shared_file);
}

/* A program has a build id, by which older checkpoints know it; another one has another. */
TEST_F(files, older_checkpoints_know_build_ids)
{
	struct ckpt_mapped m = { .path = self->path };
	struct ckpt_facts f = { .mapped = &m, .mappeds = 1 };
	struct {
		Elf64_Ehdr e;
		Elf64_Phdr p;
		Elf64_Nhdr n[2];
		char rest[64];
	} elf = { .e = { .e_ident = ELFMAG "\2", .e_phoff = sizeof(elf.e), .e_phnum = 1 } };
	char *note = (char *)elf.n;
	int fd;

	elf.p = (Elf64_Phdr){ .p_type = PT_NOTE, .p_offset = note - (char *)&elf, .p_filesz = 12 + 4 + 4 + 12 + 4 + 8 };
	/* Another note, then the id. */
	memcpy(note, &(Elf64_Nhdr){ .n_namesz = 3, .n_descsz = 3, .n_type = 1 }, 12);
	memcpy(note + 12, "ab\0\0dsc\0", 8);
	memcpy(note + 20, &(Elf64_Nhdr){ .n_namesz = 4, .n_descsz = 8, .n_type = NT_GNU_BUILD_ID }, 12);
	memcpy(note + 32, "GNU\0\x01\x02\x03\x04\x05\x06\x07\xff", 12);
	m.size = sizeof(elf);
	strcpy(m.identity, "build:01020304050607ff");
#define PUT_ELF() do { \
	fd = open(self->path, O_WRONLY | O_CREAT | O_TRUNC, 0700); \
	ASSERT_EQ(write(fd, &elf, sizeof(elf)), sizeof(elf)); \
	close(fd); \
} while (0)
	PUT_ELF();
	EXPECT_EQ(check_mapped(&f, &self->why), 0)
		TH_LOG("%s", self->why.text);
	/* A newer one knows the same program by its content. */
	ASSERT_EQ(digest_of(self->path, NULL, m.identity), 0);
	EXPECT_EQ(check_mapped(&f, &self->why), 0)
		TH_LOG("%s", self->why.text);
	strcpy(m.identity, "build:01020304050607ff");
	note[43] ^= 1;
	PUT_ELF();
	EXPECT_EQ(check_mapped(&f, &self->why), -ESTALE);
	note[43] ^= 1;
	/* Notes of other owners or kinds, too short or too long ones, are no id. */
#define NO_ID(what) do { \
	__typeof__(what) was = what; \
	__builtin_memset(&what, 0xee, sizeof(what)); \
	PUT_ELF(); \
	EXPECT_EQ(check_mapped(&f, &self->why), -ESTALE) \
		TH_LOG("%s", #what); \
	what = was; \
} while (0)
	NO_ID(note[32]);
	NO_ID(note[28]);
	NO_ID(note[20]);
	NO_ID(note[24]);
	NO_ID(elf.e.e_ident[0]);
	NO_ID(elf.e.e_ident[EI_CLASS]);
	NO_ID(elf.e.e_phoff);
	NO_ID(elf.p.p_type);
	NO_ID(elf.p.p_offset);
	NO_ID(elf.p.p_filesz);
#undef NO_ID
	elf.p.p_filesz--;
	PUT_ELF();
	EXPECT_EQ(check_mapped(&f, &self->why), -ESTALE);
	elf.p.p_filesz++;
	/* Nor is what the file ends before. */
	m.size = elf.p.p_offset + elf.p.p_filesz;
	PUT_ELF();
	truncate(self->path, m.size);
	EXPECT_EQ(check_mapped(&f, &self->why), 0);
	truncate(self->path, --m.size);
	EXPECT_EQ(check_mapped(&f, &self->why), -ESTALE);
	m.size = sizeof(elf);
	/* An id that is too long for one, and notes that are too long to be read. */
	note[24] = 40;
	elf.p.p_filesz = 20 + 12 + 4 + 40;
	PUT_ELF();
	EXPECT_EQ(check_mapped(&f, &self->why), -ESTALE);
	elf.p.p_filesz = 1 << 20;
	PUT_ELF();
	truncate(self->path, 2 << 20);
	EXPECT_EQ(check_mapped(&f, &self->why), -ESTALE);
#undef PUT_ELF
}

TEST_HARNESS_MAIN
