// SPDX-License-Identifier: Apache-2.0
/*
 * threads.c - threads, and attributes of threads and processes that no memory has
 */
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/ioprio.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <grp.h>

#include "kinds.h"

static volatile int stage;	/* 1: the thread is set up; 2: it shall look */
static const char *wrong;

#define THREAD_IS(cond) do { if (!(cond)) wrong = #cond; } while (0)

static void between(void)
{
	__atomic_store_n(&stage, 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(&stage, __ATOMIC_ACQUIRE) != 2)
		usleep(5000);
}

/* Runs fn beside the main thread, which stands meanwhile; fn calls between(). */
static void beside(void *(*fn)(void *))
{
	pthread_t t;

	NEED(!pthread_create(&t, NULL, fn, NULL));
	while (!__atomic_load_n(&stage, __ATOMIC_ACQUIRE))
		usleep(1000);
	NEED(!wrong);
	stand();
	__atomic_store_n(&stage, 2, __ATOMIC_RELEASE);
	pthread_join(t, NULL);
	if (wrong)
		bad(wrong, 0);
}

static void *name_of(void *arg)
{
	char is[16] = "";

	THREAD_IS(!prctl(PR_SET_NAME, "worker"));
	between();
	THREAD_IS(!prctl(PR_GET_NAME, is) && !strcmp(is, "worker"));
	return arg;
}

static void thread_name(void)
{
	beside(name_of);
}

static void *number_of(void *arg)
{
	pid_t was = gettid();

	between();
	THREAD_IS(gettid() == was);
	return arg;
}

static void thread_number(void)
{
	beside(number_of);
}

static __thread int own_value;

static void *local_of(void *arg)
{
	own_value = 7;
	between();
	THREAD_IS(own_value == 7);
	return arg;
}

static void thread_local(void)
{
	beside(local_of);
}

static void *mask_of(void *arg)
{
	sigset_t s;

	sigemptyset(&s);
	sigaddset(&s, SIGUSR2);
	pthread_sigmask(SIG_SETMASK, &s, NULL);
	between();
	pthread_sigmask(SIG_SETMASK, NULL, &s);
	THREAD_IS(sigismember(&s, SIGUSR2) && !sigismember(&s, SIGUSR1));
	return arg;
}

static void thread_mask(void)
{
	beside(mask_of);
}

static int one_cpu(void)
{
	cpu_set_t all;
	int cpu = CPU_SETSIZE - 1;

	if (sched_getaffinity(0, sizeof(all), &all))
		return -1;
	while (cpu >= 0 && !CPU_ISSET(cpu, &all))
		cpu--;
	return cpu;
}

static void bind_to(int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	NEED(!sched_setaffinity(0, sizeof(one), &one));
}

static bool bound_to(int cpu)
{
	cpu_set_t is;

	return !sched_getaffinity(0, sizeof(is), &is) && CPU_COUNT(&is) == 1 && CPU_ISSET(cpu, &is);
}

static void *affinity_of(void *arg)
{
	int cpu = one_cpu();

	bind_to(cpu);
	between();
	THREAD_IS(bound_to(cpu));
	return arg;
}

static void thread_affinity(void)
{
	beside(affinity_of);
}

static void affinity(void)
{
	int cpu = one_cpu();

	NEED(cpu >= 0);
	bind_to(cpu);
	stand();
	IS(bound_to(cpu));
}

static void *policy_of(void *arg)
{
	unsigned long mask = 1, is = 0;
	int mode = -1;

	THREAD_IS(!syscall(SYS_set_mempolicy, 2, &mask, 64));
	between();
	THREAD_IS(!syscall(SYS_get_mempolicy, &mode, &is, 64, 0, 0) && mode == 2 && is == 1);
	return arg;
}

static void thread_memory_policy(void)
{
	beside(policy_of);
}

static void *nice_of(void *arg)
{
	THREAD_IS(!setpriority(PRIO_PROCESS, gettid(), 7));
	between();
	THREAD_IS(getpriority(PRIO_PROCESS, gettid()) == 7);
	return arg;
}

static void thread_nice(void)
{
	beside(nice_of);
}

static void scheduled(int policy, int priority)
{
	struct sched_param p = { priority }, is;

	NEED(!sched_setscheduler(0, policy, &p));
	stand();
	IS(sched_getscheduler(0) == policy && !sched_getparam(0, &is) && is.sched_priority == priority);
}

static void batch(void)
{
	scheduled(SCHED_BATCH, 0);
}

static void idle(void)
{
	scheduled(SCHED_IDLE, 0);
}

static void realtime(void)
{
	scheduled(SCHED_FIFO, 3);
}

static void io_priority(void)
{
	int want = IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 6);

	NEED(!syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, want));
	stand();
	IS(syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0) == want);
}

static void timer_slack(void)
{
	NEED(!prctl(PR_SET_TIMERSLACK, 123456));
	stand();
	IS(prctl(PR_GET_TIMERSLACK) == 123456);
}

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;

static void *waits(void *arg)
{
	__atomic_store_n(&stage, 1, __ATOMIC_RELEASE);
	pthread_mutex_lock(&held);
	pthread_mutex_unlock(&held);
	return arg;
}

static void thread_waits(void)
{
	pthread_t t;

	pthread_mutex_lock(&held);
	NEED(!pthread_create(&t, NULL, waits, NULL));
	while (!__atomic_load_n(&stage, __ATOMIC_ACQUIRE))
		usleep(1000);
	stand();
	pthread_mutex_unlock(&held);
	IS(!pthread_join(t, NULL));
}

static void *outlives(void *arg)
{
	usleep(100000);
	stand();
	exit(arg ? 1 : 0);
}

static void leader_gone(void)
{
	int status;
	pid_t pid = fork();

	NEED(pid >= 0);
	if (!pid) {
		pthread_t t;

		pthread_create(&t, NULL, outlives, NULL);
		pthread_exit(NULL);
	}
	stand_with(1);
	IS(waitpid(pid, &status, 0) == pid && !status);
}

static void *stays(void *arg)
{
	between();
	return arg;
}

static void many(void)
{
	pthread_t t[100];

	for (int i = 0; i < 100; i++)
		NEED(!pthread_create(&t[i], NULL, stays, NULL));
	stand();
	__atomic_store_n(&stage, 2, __ATOMIC_RELEASE);
	for (int i = 0; i < 100; i++)
		IS(!pthread_join(t[i], NULL));
}

static void credentials(void)
{
	gid_t groups[2] = { 7, 9 }, is[4];

	NEED(!setgroups(2, groups) && !setresgid(7, 7, 7));
	stand();
	IS(getegid() == 7 && getgroups(4, is) == 2 && is[1] == 9);
}

static void capabilities(void)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct d[2], is[2];

	NEED(!syscall(SYS_capget, &h, d));
	d[0].effective &= ~(1u << 14);		/* CAP_IPC_LOCK */
	NEED(!syscall(SYS_capset, &h, d) && !prctl(PR_CAPBSET_DROP, 25, 0, 0, 0));
	stand();
	IS(!syscall(SYS_capget, &h, is) && is[0].effective == d[0].effective && !prctl(PR_CAPBSET_READ, 25, 0, 0, 0));
}

static void no_privileges(void)
{
	NEED(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	stand();
	IS(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
}

static void filtered(void)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgrp, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 77),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { 4, f };

	NEED(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p));
	stand();
	IS(syscall(SYS_getpgrp) < 0 && errno == 77);
}

static void subreaper(void)
{
	int is = 0;

	NEED(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	stand();
	IS(!prctl(PR_GET_CHILD_SUBREAPER, &is) && is);
}

static void not_dumpable(void)
{
	NEED(!prctl(PR_SET_DUMPABLE, 0));
	stand();
	IS(!prctl(PR_GET_DUMPABLE));
}

static void personality_(void)
{
	NEED(personality(ADDR_NO_RANDOMIZE) >= 0);
	stand();
	IS(personality(0xffffffff) & ADDR_NO_RANDOMIZE);
}

static void out_of_memory(void)
{
	char is[8] = "";
	int fd = open("/proc/self/oom_score_adj", O_RDWR);

	NEED(write(fd, "500", 3) == 3 && !close(fd));
	stand();
	fd = open("/proc/self/oom_score_adj", O_RDWR);
	IS(read(fd, is, sizeof(is)) > 2 && same(is, "500"));
}

static void core_filter(void)
{
	char is[16] = "";
	int fd = open("/proc/self/coredump_filter", O_RDWR);

	NEED(write(fd, "0x7f", 4) == 4 && !close(fd));
	stand();
	fd = open("/proc/self/coredump_filter", O_RDWR);
	IS(read(fd, is, sizeof(is)) > 7 && same(is, "0000007f"));
}

static void *own_files(void *arg)
{
	int fd;

	THREAD_IS(!unshare(CLONE_FILES));
	fd = open("own", O_CREAT | O_RDWR, 0600);
	THREAD_IS(fd >= 0 && dup2(fd, 300) == 300);
	between();
	THREAD_IS(write(300, "x", 1) == 1);
	return arg;
}

static void thread_files(void)
{
	beside(own_files);
}

static void *own_folder(void *arg)
{
	THREAD_IS(!unshare(CLONE_FS) && !mkdir("own", 0700) && !chdir("own"));
	between();
	THREAD_IS(!access("../own", F_OK));
	return arg;
}

static void thread_folder(void)
{
	beside(own_folder);
}

static void *own_network(void *arg)
{
	struct stat of, own;

	THREAD_IS(!unshare(CLONE_NEWNET));
	between();
	THREAD_IS(!stat("/proc/thread-self/ns/net", &own) && !stat("/proc/self/ns/net", &of) && own.st_ino != of.st_ino);
	return arg;
}

static void thread_network(void)
{
	beside(own_network);
}

static void *own_filter(void *arg)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog f = { sizeof(code) / sizeof(code[0]), code };

	THREAD_IS(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f));
	between();
	THREAD_IS(syscall(SYS_getppid) == -1 && errno == EXDEV);
	return arg;
}

static void thread_filter(void)
{
	beside(own_filter);
	IS(syscall(SYS_getppid) > 0);
}

static void exit_signal(void)
{
	const struct timespec most = { 5, 0 };
	sigset_t usr;
	pid_t pid;

	sigemptyset(&usr);
	sigaddset(&usr, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr, NULL);
	pid = syscall(SYS_clone, SIGUSR1, 0, 0, 0, 0);
	NEED(pid >= 0);
	if (!pid) {
		while (access("end", F_OK))
			usleep(10000);
		_exit(0);
	}
	stand();
	close(open("end", O_CREAT | O_WRONLY, 0600));
	IS(sigtimedwait(&usr, NULL, &most) == SIGUSR1);
}

static void deadline(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} a = { .size = sizeof(a), .policy = 6, .runtime = 1000000, .deadline = 10000000, .period = 10000000 };

	NEED(!syscall(SYS_sched_setattr, 0, &a, 0));
	stand();
	IS(sched_getscheduler(0) == 6);
}

static void float_control(void)
{
	uint32_t sse = 0x9f80;		/* small numbers are flushed to zero */
	uint16_t x87 = 0x027f;		/* 53 bits */

	__asm__ volatile("ldmxcsr %0; fldcw %1" : : "m"(sse), "m"(x87));
	stand();
	sse = x87 = 0;
	__asm__ volatile("stmxcsr %0; fnstcw %1" : "=m"(sse), "=m"(x87));
	IS((sse & ~0x3fu) == 0x9f80 && x87 == 0x027f);
}

static void reset_on_fork(void)
{
	struct sched_param p = { 0 };

	NEED(!sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &p));
	stand();
	IS(sched_getscheduler(0) == (SCHED_BATCH | SCHED_RESET_ON_FORK));
}

static const struct kind kinds[] = {
	{ "thread-name", thread_name, false }, { "thread-number", thread_number, false },
	{ "thread-local", thread_local, false }, { "thread-signal-mask", thread_mask, false },
	{ "thread-affinity", thread_affinity, false }, { "affinity", affinity, false },
	{ "thread-memory-policy", thread_memory_policy, false }, { "thread-nice", thread_nice, false },
	{ "sched-batch", batch, false }, { "sched-idle", idle, false }, { "sched-fifo", realtime, false },
	{ "io-priority", io_priority, false }, { "timer-slack", timer_slack, false },
	{ "thread-waits", thread_waits, false }, { "leader-ended", leader_gone, true }, { "threads-100", many, false },
	{ "credentials", credentials, true }, { "capabilities", capabilities, false },
	{ "no-new-privileges", no_privileges, false }, { "seccomp-filter", filtered, false },
	{ "child-subreaper", subreaper, false }, { "not-dumpable", not_dumpable, false },
	{ "personality", personality_, false }, { "oom-score", out_of_memory, false },
	{ "thread-files", thread_files, true }, { "thread-folder", thread_folder, true },
	{ "thread-network", thread_network, true }, { "thread-filter", thread_filter, false },
	{ "exit-signal", exit_signal, true }, { "sched-deadline", deadline, true },
	{ "sched-reset-on-fork", reset_on_fork, false }, { "float-control", float_control, false },
	{ "coredump-filter", core_filter, false }, { 0 }
};

const struct family threads_family = { "threads", kinds };
