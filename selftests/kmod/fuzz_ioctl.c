// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_ioctl.c - all operations on files, mappings and channels, in any order, by many threads and
 * processes at once; the kernel must log nothing, and no object may be left
 *
 * SINGVGPU_SEED repeats a run, but not the interleaving of its threads; SINGVGPU_FUZZ_SECONDS sets
 * its length.
 */
/* Small, or all the time goes into zeroing it. */
#define ARENA (1ULL << 20)

#include "kmod.h"

#include <linux/mman.h>
#include <setjmp.h>
#include <sys/sendfile.h>
#include <sys/wait.h>

#define PROCESSES 3
#define THREADS 4
#define FDS 12
#define IDS 4

static int fds[FDS];			/* of a process, shared by its threads without a lock */
static int passing[2];			/* a socket pair of all processes, for files */
static __thread uint64_t state;
static __thread sigjmp_buf fault_jump;
static __thread volatile int may_fault;
static _Atomic pid_t tids[THREADS];

static uint64_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t below(uint64_t n)
{
	return rnd() % n;
}

static int one_in(int n)
{
	return !below(n);
}

/* Numbers near which things break. */
static uint64_t odd_number(void)
{
	static const uint64_t numbers[] = {
		0, 1, 3, 4, 63, 64, 4095, 4096, 4097, 8192, 65536, DOORBELL, RING_OFF - 4, RING_OFF,
		ARENA_OFF, LOG_OFF, LENGTH, LENGTH - PAGE, 0x7fffffff, 0x80000000, 0xffffffff,
		1ULL << 32, 1ULL << 40, 1ULL << 47, 1ULL << 63, -4096ULL, -1ULL,
	};
	uint64_t n = numbers[below(sizeof(numbers) / sizeof(numbers[0]))];

	return one_in(8) ? rnd() : one_in(4) ? n + below(3) - 1 : n;
}

static uint64_t page_off(void)
{
	return one_in(10) ? odd_number() : below(LENGTH / PAGE) * PAGE;
}

static uint64_t page_len(void)
{
	return one_in(10) ? odd_number() : (1 + below(one_in(4) ? LENGTH / PAGE : 8)) * PAGE;
}

static uint64_t word_off(void)
{
	return one_in(20) ? odd_number() : one_in(2) ? DOORBELL : below(2) * 64 + PAGE;
}

static int an_fd(void)
{
	return fds[below(FDS)];
}

static void put_fd(int fd)
{
	int *slot = &fds[below(FDS)];
	int old = *slot;

	if (fd < 0)
		return;
	*slot = fd;
	if (old > 2)
		close(old);
}

static struct singvgpu_create some_create(void)
{
	struct singvgpu_create c = default_create();

	memset(c.id, 1 + below(IDS), sizeof(c.id));
	memset(c.cookie, one_in(20) ? 7 : 9, sizeof(c.cookie));
	if (one_in(3)) {
		c.geo.ring_units = 64 << below(6);
		c.geo.cpl_slots = 1 + below(300);
	}
	if (one_in(20))
		((uint8_t *)&c)[below(sizeof(c))] ^= 1 << below(8);
	if (one_in(20))
		((uint64_t *)&c.geo)[below(sizeof(c.geo) / 8)] = odd_number();
	return c;
}

static void do_create(void)
{
	struct singvgpu_create c = some_create();

	create(an_fd(), &c);
}

static void do_attach(void)
{
	struct singvgpu_create c = some_create();

	attach(an_fd(), &c);
}

static int64_t timeout(void)
{
	return one_in(400) ? (int64_t)odd_number() : (int64_t)below(2 * MS);
}

static void do_wait(void)
{
	struct singvgpu_wait w = { .off = word_off(), .timeout_ns = timeout(),
				   .expect = below(2), .flags = one_in(30) };

	ioctl(an_fd(), SINGVGPU_IOC_WAIT, one_in(50) ? (void *)(VA + below(LENGTH)) : &w);
}

static void do_wake(void)
{
	struct singvgpu_wake w = { .off = word_off(), .nr = below(4), .flags = one_in(30) };

	ioctl(an_fd(), SINGVGPU_IOC_WAKE, one_in(50) ? (void *)(VA + below(LENGTH)) : &w);
}

static void do_wake_wait(void)
{
	struct singvgpu_wake_wait w = {
		.wake = { .off = word_off(), .nr = below(4) },
		.wait = { .off = word_off(), .timeout_ns = timeout(), .expect = below(2) },
	};

	ioctl(an_fd(), SINGVGPU_IOC_WAKE_WAIT, one_in(50) ? (void *)(VA + below(LENGTH)) : &w);
}

static void do_range(void)
{
	range(an_fd(), one_in(2) ? SINGVGPU_IOC_COMMIT : SINGVGPU_IOC_DECOMMIT, page_off(),
	      page_len());
}

static void do_gate(void)
{
	ioctl(an_fd(), one_in(2) ? SINGVGPU_IOC_FREEZE : SINGVGPU_IOC_THAW);
}

static void do_any_ioctl(void)
{
	char arg[256];
	size_t i;

	for (i = 0; i < sizeof(arg) / 8; i++)
		((uint64_t *)arg)[i] = one_in(2) ? odd_number() : 0;
	ioctl(an_fd(), _IOC(below(4), one_in(10) ? rnd() : SINGVGPU_IOC_MAGIC, below(12),
			    one_in(2) ? below(128) : 8 * below(16)), arg);
}

static void do_mmap(void)
{
	uint64_t off = one_in(2) ? 0 : page_off(), len = one_in(2) ? LENGTH - off : page_len();
	int prot = one_in(4) ? below(8) : PROT_READ | PROT_WRITE;
	int flags = one_in(10) ? MAP_PRIVATE : MAP_SHARED;

	if (one_in(3))
		flags |= MAP_FIXED;
	if (one_in(20))
		flags |= MAP_POPULATE;
	if (one_in(10))
		flags |= MAP_LOCKED;
	if (one_in(2) && len > LOG_OFF - off)
		len = LOG_OFF - off;
	mmap((void *)(VA + (one_in(10) ? page_off() % LENGTH : off)), len % (1ULL << 33), prot,
	     flags, an_fd(), off);
}

static void do_munmap(void)
{
	uint64_t off = page_off() % LENGTH;

	munmap((void *)(VA + off), one_in(3) ? LENGTH : page_len() % LENGTH);
}

static void do_mremap(void)
{
	void *to = (void *)(VA + (1ULL << 40) + below(64) * PAGE);
	uint64_t len = page_len() % LENGTH;

	mremap((void *)(VA + page_off() % LENGTH), one_in(4) ? 0 : len,
	       one_in(2) ? len : page_len() % LENGTH, below(8), to);
	if (one_in(8))
		munmap(to, LENGTH);
}

static void do_advise(void)
{
	static const int advice[] = { 0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
				      20, 21, 22, 23, 25 };
	void *p = (void *)(VA + page_off() % LENGTH);
	uint64_t len = page_len() % LENGTH;

	switch (below(6)) {
	case 0:
		mprotect(p, len, below(8));
		break;
	case 1:
		mlock(p, len);
		break;
	case 2:
		munlock(p, len);
		break;
	case 3:
		msync(p, len, 1 + below(6));
		break;
	default:
		madvise(p, len, advice[below(sizeof(advice) / sizeof(advice[0]))]);
	}
}

static void on_fault(int sig)
{
	if (!may_fault) {
		signal(sig, SIG_DFL);
		return;
	}
	siglongjmp(fault_jump, 1);
}

static void do_touch(void)
{
	uint64_t off = (one_in(2) ? word_off() : page_off()) % LENGTH;
	volatile uint32_t *p = (void *)(VA + off / 4 * 4);

	may_fault = 1;
	if (!sigsetjmp(fault_jump, 1)) {
		if (one_in(2))
			*p = below(2);
		else
			(void)*p;
	}
	may_fault = 0;
}

static void do_file(void)
{
	static char buf[3 * 4096];
	void *p = one_in(4) ? (void *)(VA + page_off() % LENGTH) : buf;
	struct iovec iov[2] = { { p, below(sizeof(buf)) }, { buf, below(sizeof(buf)) } };
	off_t off = page_off();
	int fd = an_fd();

	switch (below(9)) {
	case 0:
		lseek(fd, odd_number(), below(6));
		break;
	case 1:
		lseek(fd, page_off(), one_in(2) ? SEEK_DATA : SEEK_HOLE);
		break;
	case 2:
		if (pread(fd, p, below(sizeof(buf)), off) < 0)
			break;
		break;
	case 3:
		if (pwrite(fd, p, below(sizeof(buf)), off) < 0)
			break;
		break;
	case 4:
		if (preadv(fd, iov, 2, off) < 0)
			break;
		break;
	case 5:
		if (pwritev(fd, iov, 2, off) < 0)
			break;
		break;
	case 6:
		sendfile(an_fd(), fd, &off, below(sizeof(buf)));
		break;
	case 7:
		posix_fadvise(fd, off, below(sizeof(buf)), below(6));
		fallocate(fd, below(4), 0, below(sizeof(buf)));
		fsync(fd);
		break;
	default:
		if (read(fd, p, below(100)) < 0)
			break;
	}
}

static void do_poll(void)
{
	struct epoll_event ev = { .events = rnd() & 0xffff };
	struct pollfd pfd[2] = { { an_fd(), rnd(), 0 }, { an_fd(), rnd(), 0 } };
	int ep;

	if (one_in(2)) {
		poll(pfd, 2, below(3));
		return;
	}
	ep = epoll_create1(EPOLL_CLOEXEC);
	if (one_in(4))
		ev.events |= EPOLLET;
	epoll_ctl(ep, EPOLL_CTL_ADD, an_fd(), &ev);
	epoll_ctl(ep, EPOLL_CTL_ADD, an_fd(), &ev);
	epoll_wait(ep, &ev, 1, below(3));
	close(ep);
}

static void do_open(void)
{
	int fd = an_fd();

	switch (below(5)) {
	case 0:
		put_fd(dup(fd));
		break;
	case 1:
		if (one_in(2))
			put_fd(open(SINGVGPU_DEV_PATH, O_RDONLY | O_CLOEXEC));
		break;
	case 2:
		put_fd(open(SINGVGPU_DEV_PATH, O_RDWR | O_CLOEXEC | O_NONBLOCK));
		break;
	default:
		put_fd(open_device());
	}
}

static void do_pass(void)
{
	if (one_in(2))
		ring_pass_fd(passing[0], an_fd());
	else
		put_fd(ring_take_fd(passing[1]));
}

static void read_all(const char *path)
{
	static __thread char buf[65536];
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	while (fd >= 0 && read(fd, buf, sizeof(buf)) > 0)
		;
	if (fd >= 0)
		close(fd);
}

static void do_proc(void)
{
	char path[64], buf[256];
	struct iovec local = { buf, sizeof(buf) };
	struct iovec remote = { (void *)(VA + page_off() % LENGTH), sizeof(buf) };

	switch (below(6)) {
	case 0:
		snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", an_fd());
		read_all(path);
		break;
	case 1:
		read_all("/sys/kernel/debug/singvgpu/channels");
		read_all("/sys/kernel/debug/singvgpu/totals");
		break;
	case 2:
		if (one_in(8))
			read_all(one_in(2) ? "/proc/self/smaps" : "/proc/self/numa_maps");
		break;
	case 3:
		info_of(an_fd());
		break;
	default:
		if (one_in(2))
			process_vm_readv(getppid(), &local, 1, &remote, 1, 0);
		else
			process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
	}
}

static void do_signal(void)
{
	pid_t tid = tids[below(THREADS)];

	if (tid)
		syscall(SYS_tgkill, getpid(), tid, SIGUSR1);
}

static void do_user(void)
{
	/* Of this thread alone: libc would change all of them. */
	syscall(SYS_setresuid, -1, one_in(10) ? 65534 : 0, 0);
}

static void do_some(void);

/* A child with one thread does something too, and ends in some manner. */
static void do_fork(void)
{
	pid_t pid = fork();
	int i, n = below(30);

	if (pid > 0) {
		if (one_in(2))
			kill(pid, SIGKILL);
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
		return;
	}
	if (pid < 0)
		return;
	state += 12345;
	alarm(1);
	for (i = 0; i < n; i++)
		do_some();
	if (one_in(4))
		execl("/bin/true", "true", NULL);
	_exit(0);
}

static void do_some(void)
{
	static void (*const ops[])(void) = {
		do_create, do_attach, do_attach, do_wait, do_wait, do_wake, do_wake, do_wake_wait,
		do_wake_wait, do_range, do_range, do_gate, do_any_ioctl, do_mmap, do_mmap,
		do_munmap,
		do_mremap, do_advise, do_touch, do_touch, do_touch, do_file, do_file, do_poll,
		do_open, do_open, do_pass, do_proc, do_signal, do_user,
	};

	ops[below(sizeof(ops) / sizeof(ops[0]))]();
	if (one_in(1000))
		do_fork();
}

static void on_signal(int sig)
{
	(void)sig;
}

static void *thread_main(void *p)
{
	uint64_t *arg = p;

	state = arg[0];
	tids[arg[1]] = gettid();
	for (;;)
		do_some();
	return NULL;
}

static void process_main(uint64_t seed)
{
	struct sigaction fault = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };
	struct sigaction usr = { .sa_handler = on_signal, .sa_flags = seed & 1 ? SA_RESTART : 0 };
	static uint64_t args[THREADS][2];
	pthread_t thread;
	int i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigaction(SIGSEGV, &fault, NULL);
	sigaction(SIGBUS, &fault, NULL);
	sigaction(SIGUSR1, &usr, NULL);
	for (i = 0; i < FDS; i++)
		fds[i] = open_device();
	for (i = 0; i < THREADS; i++) {
		args[i][0] = seed * 1000003 + i * 7919 + 1;
		args[i][1] = i;
		if (pthread_create(&thread, NULL, thread_main, args[i]))
			_exit(1);
	}
	for (;;)
		pause();
}

FIXTURE(fuzz) {
	uint64_t seed;
	int seconds;
};

FIXTURE_SETUP(fuzz)
{
	const char *seed = getenv("SINGVGPU_SEED"), *seconds = getenv("SINGVGPU_FUZZ_SECONDS");

	REQUIRE_DEVICE();
	if (geteuid() || total("channels") < 0)
		SKIP(return, "needs root and debugfs");
	if (!getenv("SINGVGPU_VM"))
		SKIP(return, "only in the VM: a kernel that fails takes the machine with it");
	ASSERT_EQ(0, total_settles("channels", 0));
	self->seed = seed ? strtoull(seed, NULL, 0) : 20261121;
	self->seconds = seconds ? atoi(seconds) : 30;
	TH_LOG("SINGVGPU_SEED=%lu SINGVGPU_FUZZ_SECONDS=%d", self->seed, self->seconds);
	ASSERT_EQ(0, parameter("user_mib", "128"));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
				passing));
}

FIXTURE_TEARDOWN(fuzz)
{
	parameter("user_mib", "0");
	close(passing[0]);
	close(passing[1]);
}

static void start(pid_t *pid, uint64_t seed)
{
	*pid = fork();
	if (!*pid) {
		/* Its own children go with it. */
		setsid();
		process_main(seed);
	}
}

static void stop(pid_t pid)
{
	kill(-pid, SIGKILL);
	kill(pid, SIGKILL);
	reap(pid);
}

TEST_F_TIMEOUT(fuzz, kernel_stays_silent_and_keeps_nothing, 3600)
{
	long creates = total("creates"), attaches = total("attaches"), hangups = total("hangups");
	int64_t end = now_ns() + self->seconds * 1000 * MS, give_up = end + 600 * 1000 * MS;
	pid_t pid[PROCESSES];
	int i, victim;

	state = self->seed * 2 + 1;
	for (i = 0; i < PROCESSES; i++)
		start(&pid[i], rnd());
	/* It must get somewhere, on a busy machine later. */
	while (now_ns() < end ||
	       (now_ns() < give_up && (total("creates") - creates <= self->seconds ||
				       total("attaches") - attaches <= self->seconds))) {
		sleep_ms(below(1000));
		victim = below(PROCESSES);
		stop(pid[victim]);
		start(&pid[victim], rnd());
	}
	for (i = 0; i < PROCESSES; i++)
		stop(pid[i]);
	/* Files on their way in the socket are open files. */
	close(passing[0]);
	close(passing[1]);
	EXPECT_EQ(0, total_settles("channels", 0));
	EXPECT_EQ(0, total("pages"));
	creates = total("creates") - creates;
	attaches = total("attaches") - attaches;
	hangups = total("hangups") - hangups;
	TH_LOG("%ld channels, %ld attachments, %ld hang-ups", creates, attaches, hangups);
	TH_LOG("%ld faults, %ld waits, %ld sleeps, %ld woken since the module came",
	       total("faults"), total("waits"), total("sleeps"), total("woken"));
	EXPECT_LT(self->seconds, creates);
	EXPECT_LT(self->seconds, attaches);
	EXPECT_EQ(creates + attaches, hangups);
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
				passing));
}

TEST_HARNESS_MAIN
