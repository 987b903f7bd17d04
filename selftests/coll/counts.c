// SPDX-License-Identifier: Apache-2.0
/*
 * counts.c - what a start costs: locked instructions, system calls and mails of 100 all-reduces
 *
 * A child has two seats of a board, and is executed instruction by instruction by its parent. The
 * child says which event it is about; for each, the parent counts what it sees. The hosts run ahead:
 * nobody sleeps, and of each all-reduce the other member has posted its part.
 *
 * An instruction is locked if it has the prefix, or exchanges a register with memory.
 */
#include "../harness/leaks.h"
#include "../harness/patience.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "board.h"
#include "tree.h"

#define STEPS 100

enum { NOTHING, POSTS, STARTS, IS_STARTED, ENDS, EVENTS };

static const char *const names[] = {
	[POSTS] = "to post, before others",
	[STARTS] = "to post last, which starts it",
	[IS_STARTED] = "to start what another has posted last",
	[ENDS] = "to say that it has ended",
};

struct count {
	uint64_t instructions, locked, calls;
};

/* What the two processes share. */
struct common {
	volatile uint32_t event; /* that the child is about */
	uint32_t mails, started, ended;
};

/* ---- the child ---- */

struct member {
	struct board *b;
	uint32_t seat, member;
	uint64_t order; /* started */
	struct common *all;
};

static void hear(void *ctx, const struct step_action *a)
{
	struct member *m = ctx;

	if (a->kind == STEP_JOINED) {
		m->member = a->member;
	} else if (a->kind == STEP_START) {
		m->order = a->order;
		m->all->started++;
	} else if (a->kind == STEP_ENDED) {
		m->all->ended += !a->code;
	}
}

static void event(struct member *m, struct step_event e, uint32_t what)
{
	int rc;

	m->all->event = what;
	rc = board_step(m->b, m->seat, &e, hear, m);
	m->all->event = NOTHING;
	if (rc < 0)
		_exit(2);
}

static void post(struct member *m, uint64_t cookie, uint32_t what)
{
	const struct step_call call = { .kind = STEP_ALLREDUCE, .type = TREE_F32, .count = 1000 };

	event(m,
	      (struct step_event){ .kind = STEP_POST,
	                           .member = m->member,
	                           .cookie = cookie,
	                           .ncalls = 1,
	                           .calls = &call },
	      what);
}

static void mail(struct member *m, uint32_t what)
{
	int rc = 0;

	m->all->event = what;
	if (board_mailed(m->b, m->seat))
		rc = board_mail(m->b, m->seat, hear, m);
	m->all->event = NOTHING;
	if (rc)
		_exit(3);
}

static void done(struct member *m, uint32_t what)
{
	event(m,
	      (struct step_event){ .kind = STEP_DONE, .device = m->seat, .order = m->order }, what);
}

/* As a proxy, the child has more than one thread. */
static void *other_thread(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static void all_reduce(struct member *m, uint64_t cookie, bool counted)
{
	post(&m[0], cookie, counted ? POSTS : NOTHING);
	post(&m[1], cookie, counted ? STARTS : NOTHING);
	mail(&m[0], counted ? IS_STARTED : NOTHING);
	done(&m[0], counted ? ENDS : NOTHING);
	done(&m[1], NOTHING);
}

static void child(int fd, struct common *all)
{
	struct member m[2] = { { .seat = 0, .all = all }, { .seat = 1, .all = all } };
	uint32_t mails;
	pthread_t t;

	if (pthread_create(&t, NULL, other_thread, NULL))
		_exit(1);
	for (uint32_t i = 0; i < 2; i++) {
		struct step_event e = {
			.kind = STEP_JOIN, .proxy = i, .comm = 7, .ranks = 2, .rank = i
		};

		if (board_open(fd, &m[i].b) || board_enter(m[i].b, i, "", 0))
			_exit(1);
		event(&m[i], e, NOTHING);
	}
	mail(&m[0], NOTHING);
	all_reduce(m, 1, false); /* everything has been touched once */
	mails = board_mails(m[0].b, 0) + board_mails(m[0].b, 1);
	all->started = all->ended = 0;
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(77);
	raise(SIGSTOP);
	for (uint64_t i = 0; i < STEPS; i++)
		all_reduce(m, 2 + i, true);
	all->mails = board_mails(m[0].b, 0) + board_mails(m[0].b, 1) - mails;
	_exit(0);
}

/* ---- the parent ---- */

#ifdef __x86_64__
static bool is_prefix(uint8_t byte)
{
	return (byte & 0xf0) == 0x40 || (byte && memchr("\x26\x2e\x36\x3e\x64\x65\x66\x67\xf2\xf3", byte, 10));
}

/* One instruction of 64-bit code, of which the first eight bytes are there. */
static void count(struct count *c, uint64_t word)
{
	uint8_t byte[8], i = 0;
	bool lock = false;

	memcpy(byte, &word, 8);
	for (; i < 5 && (byte[i] == 0xf0 || is_prefix(byte[i])); i++)
		lock |= byte[i] == 0xf0;
	c->instructions++;
	c->locked += lock || ((byte[i] & 0xfe) == 0x86 && byte[i + 1] < 0xc0);
	c->calls += byte[i] == 0x0f && byte[i + 1] == 0x05;
}

/* 0, or what the child ends with. */
static int trace(pid_t pid, struct common *all, struct count *counts)
{
	struct user_regs_struct regs;
	int status;

	for (;;) {
		if (waitpid(pid, &status, 0) != pid)
			return -1;
		if (!WIFSTOPPED(status))
			return status;
		if (all->event && !ptrace(PTRACE_GETREGS, pid, NULL, &regs)) {
			errno = 0;
			count(&counts[all->event],
			      (uint64_t)ptrace(PTRACE_PEEKTEXT, pid, regs.rip, NULL));
			if (errno)
				return -1;
		}
		if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL))
			return -1;
	}
}

/* The decoder, on what it must tell apart. */
TEST(instructions_are_told_apart)
{
	static const struct {
		uint8_t byte[8];
		unsigned int locked, calls;
	} known[] = {
		{ { 0xf0, 0x0f, 0xb1, 0x17 }, 1, 0 }, /* lock cmpxchg %edx,(%rdi) */
		{ { 0xf0, 0x48, 0x83, 0x0c, 0x24, 0 }, 1, 0 }, /* lock orq $0,(%rsp) */
		{ { 0x64, 0xf0, 0x41, 0xff, 0x07 }, 1, 0 }, /* lock incl %fs:(%r15) */
		{ { 0x87, 0x07 }, 1, 0 }, /* xchg %eax,(%rdi) */
		{ { 0x49, 0x87, 0x46, 8 }, 1, 0 }, /* xchg %rax,8(%r14) */
		{ { 0x86, 0x07 }, 1, 0 }, /* xchg %al,(%rdi) */
		{ { 0x87, 0xd8 }, 0, 0 }, /* xchg %ebx,%eax */
		{ { 0x0f, 0xb1, 0x17 }, 0, 0 }, /* cmpxchg %edx,(%rdi) */
		{ { 0xb8, 0xf0, 0, 0, 0 }, 0, 0 }, /* mov $0xf0,%eax */
		{ { 0x0f, 0x05 }, 0, 1 }, /* syscall */
		{ { 0x0f, 0x0b }, 0, 0 }, /* ud2 */
		{ { 0xf3, 0x90 }, 0, 0 }, /* pause */
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		struct count c = { 0 };
		uint64_t word;

		memcpy(&word, known[i].byte, 8);
		count(&c, word);
		EXPECT_EQ(c.locked, known[i].locked) TH_LOG("instruction %zu", i);
		EXPECT_EQ(c.calls, known[i].calls) TH_LOG("instruction %zu", i);
	}
}

TEST(a_start_where_hosts_run_ahead)
{
	struct common *all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE,
	                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct count c[EVENTS] = { 0 };
	int fd = board_create(), status;
	cpu_set_t cpu;
	pid_t pid;

	ASSERT_NE(all, MAP_FAILED);
	ASSERT_GE(fd, 0);
	/* The two take turns: faster on one processor. */
	CPU_ZERO(&cpu);
	CPU_SET(sched_getcpu(), &cpu);
	sched_setaffinity(0, sizeof(cpu), &cpu);
	pid = fork();
	if (!pid)
		child(fd, all);
	ASSERT_GT(pid, 0);
	status = trace(pid, all, c);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		SKIP(return, "this process may trace no child");
	ASSERT_EQ(status, 0);
	EXPECT_EQ(all->started, 2 * STEPS);
	EXPECT_EQ(all->ended, 2 * STEPS);
	for (int i = POSTS; i < EVENTS; i++)
		printf("# %s: %.2f locked instructions, %.2f system calls, %llu instructions\n",
		       names[i], (double)c[i].locked / STEPS, (double)c[i].calls / STEPS,
		       (unsigned long long)c[i].instructions / STEPS);
	for (int i = POSTS; i < EVENTS; i++) {
		EXPECT_GT(c[i].instructions, 50 * STEPS);
		EXPECT_EQ(c[i].locked, STEPS) TH_LOG("%s", names[i]);
		EXPECT_EQ(c[i].calls, 0) TH_LOG("%s", names[i]);
	}
	EXPECT_EQ(all->mails, 0);
	close(fd);
	munmap(all, sizeof(*all));
}
#else
TEST(a_start_where_hosts_run_ahead)
{
	SKIP(return, "instructions of this processor are not told apart");
}
#endif

TEST_HARNESS_MAIN
