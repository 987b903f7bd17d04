// SPDX-License-Identifier: Apache-2.0
/*
 * memory.c - mappings at the channel's address, allocated and freed pages, limits, accounts, pins
 */
#include "kmod.h"

#include <liburing.h>
#include <linux/if_xdp.h>
#include <linux/mman.h>
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

#define ARENA_VA (VA + ARENA_OFF)

static volatile char *arena(uint64_t page)
{
	return (char *)ARENA_VA + page * PAGE;
}

TEST_F(channel, refuses_other_mappings)
{
	int ro = open(SINGVGPU_DEV_PATH, O_RDONLY | O_CLOEXEC);
	struct singvgpu_create c = default_create();
	int rw = PROT_READ | PROT_WRITE, fd = self->proxy;
	void *va = (void *)VA;

	munmap((void *)(VA + PAGE), LENGTH - PAGE);
	va += PAGE;
	EXPECT_EQ(-EINVAL, SYS(mmap(va, PAGE, rw, MAP_PRIVATE, fd, PAGE)));
	EXPECT_EQ(-EINVAL, SYS(mmap(va, PAGE, rw | PROT_EXEC, MAP_SHARED, fd, PAGE)));
	EXPECT_EQ(-EINVAL, SYS(mmap(va, PAGE, rw, MAP_SHARED, fd, 2 * PAGE)));
	EXPECT_EQ(-EINVAL, SYS(mmap(va + PAGE, PAGE, rw, MAP_SHARED, fd, PAGE)));
	EXPECT_EQ(-EINVAL, SYS(mmap(va + PAGE, PAGE, rw, MAP_SHARED | MAP_FIXED, fd, PAGE)));
	EXPECT_EQ(-EINVAL, SYS(mmap(NULL, PAGE, rw, MAP_SHARED | MAP_FIXED, fd, PAGE)));
	EXPECT_EQ(-EINVAL, SYS(mmap(va, LENGTH, rw, MAP_SHARED, fd, PAGE)));
	EXPECT_EQ(-EINVAL, SYS(mmap(NULL, PAGE, rw, MAP_SHARED, fd, LENGTH)));
	EXPECT_EQ(-EINVAL, SYS(mmap(NULL, PAGE, rw, MAP_SHARED, fd, 1ULL << 40)));
	EXPECT_GT(0, SYS(mmap(NULL, PAGE, rw, MAP_SHARED, fd, -PAGE)));
	EXPECT_GT(0, SYS(mmap(NULL, -PAGE, rw, MAP_SHARED, fd, PAGE)));
	EXPECT_EQ(-EACCES, SYS(map_at(self->client, 0, LENGTH)));
	EXPECT_EQ(-EACCES, SYS(map_at(self->client, LOG_OFF, PAGE)));
	EXPECT_EQ(-EACCES, SYS(map_at(self->client, LOG_OFF - PAGE, 2 * PAGE)));
	/* A file that may only be read cannot be mapped shared for good. */
	c.geo.va += 1ULL << 40;
	ASSERT_EQ(0, create(ro, &c));
	EXPECT_EQ(-EINVAL, SYS(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, ro, 0)));
	/* Without an address it goes where it belongs, and nothing has been disturbed. */
	EXPECT_EQ(va, mmap(NULL, LENGTH - PAGE, rw, MAP_SHARED, fd, PAGE));
	EXPECT_EQ(SINGVGPU_MAGIC, self->ctl->magic);
	EXPECT_EQ(-EACCES, SYS(mprotect(va, PAGE, PROT_READ | PROT_EXEC)));
	close(ro);
}

TEST_F(channel, occupied_address_is_refused_and_left_alone)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, rw = PROT_READ | PROT_WRITE;
	char *p = (char *)ARENA_VA;

	ASSERT_EQ(0, munmap((void *)ARENA_VA, ARENA));
	ASSERT_EQ(p + PAGE, mmap(p + PAGE, PAGE, rw, flags, -1, 0));
	p[PAGE] = 42;
	EXPECT_EQ(-EEXIST, SYS(map_at(self->proxy, ARENA_OFF, ARENA)));
	EXPECT_EQ(-EEXIST, SYS(mmap(p, ARENA, rw, MAP_SHARED | MAP_FIXED, self->proxy,
				    ARENA_OFF)));
	EXPECT_EQ(-EEXIST, SYS(mmap(NULL, ARENA, rw, MAP_SHARED, self->proxy, ARENA_OFF)));
	EXPECT_EQ(-EEXIST, SYS(mmap(p + PAGE, PAGE, rw, MAP_SHARED | MAP_FIXED, self->proxy,
				    ARENA_OFF + PAGE)));
	EXPECT_EQ(42, p[PAGE]);
	EXPECT_EQ(p, map_at(self->proxy, ARENA_OFF, PAGE));
	EXPECT_EQ(42, p[PAGE]);
	munmap(p + PAGE, PAGE);
	EXPECT_EQ(p + PAGE, mmap(p + PAGE, PAGE, rw, MAP_SHARED | MAP_FIXED_NOREPLACE,
				 self->proxy, ARENA_OFF + PAGE));
	EXPECT_EQ(0, p[PAGE]);
}

TEST_F(channel, mapping_cannot_grow_move_or_be_copied)
{
	void *va = (void *)ARENA_VA, *free = (void *)(VA + (1ULL << 40));
	struct pollfd pfd = { .fd = self->client };

	*arena(0) = 7;
	EXPECT_GT(0, SYS(mremap(va, PAGE, 2 * PAGE, 0)));
	EXPECT_GT(0, SYS(mremap(va, ARENA, 2 * ARENA, MREMAP_MAYMOVE)));
	EXPECT_GT(0, SYS(mremap(va, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, free)));
	EXPECT_GT(0, SYS(mremap(va, 0, PAGE, MREMAP_MAYMOVE)));
	EXPECT_GT(0, SYS(mremap(va, 0, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, free)));
	EXPECT_GT(0, SYS(mremap(va, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP)));
	EXPECT_GT(0, SYS(syscall(SYS_remap_file_pages, va, PAGE, 0, 3, 0)));
	EXPECT_EQ(7, *arena(0));
	/* Shrinking is unmapping. */
	EXPECT_EQ(va, mremap(va, ARENA, PAGE, 0));
	EXPECT_EQ(7, *arena(0));
	EXPECT_EQ(0, poll(&pfd, 1, 0));
}

TEST_F(channel, advice_changes_nothing)
{
	int advice[] = { MADV_NORMAL, MADV_RANDOM, MADV_WILLNEED, MADV_DONTNEED, MADV_FREE,
			 MADV_REMOVE, MADV_MERGEABLE, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
			 MADV_COLD, MADV_PAGEOUT, MADV_POPULATE_READ, MADV_POPULATE_WRITE,
			 MADV_COLLAPSE, MADV_DONTDUMP, MADV_DODUMP, MADV_WIPEONFORK,
			 MADV_KEEPONFORK, MADV_UNMERGEABLE };
	unsigned int i;

	memset((void *)ARENA_VA, 0x5a, ARENA);
	for (i = 0; i < sizeof(advice) / sizeof(advice[0]); i++) {
		madvise((void *)ARENA_VA, ARENA, advice[i]);
		EXPECT_EQ(0x5a, *arena(i));
		EXPECT_EQ(0x5a, *arena(ARENA / PAGE - 1 - i));
	}
	EXPECT_EQ(0, mlock((void *)ARENA_VA, ARENA));
	EXPECT_EQ(0, munlock((void *)ARENA_VA, ARENA));
	EXPECT_EQ(0, mlockall(MCL_CURRENT | MCL_FUTURE));
	EXPECT_EQ(0, munlockall());
	msync((void *)ARENA_VA, ARENA, MS_SYNC);
	EXPECT_EQ(0x5a, *arena(1000));
}

/* Whether the kernel's list of our mappings has the flag for the one at this address. */
static int has_flag(unsigned long at, const char *flag)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	unsigned long from, to;
	char line[512];
	int here = 0, found = 0;

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = from <= at && at < to;
		if (here && !strncmp(line, "VmFlags:", 8))
			found = strstr(line, flag) != NULL;
	}
	if (f)
		fclose(f);
	return found;
}

TEST_F(channel, mapping_is_left_out_of_forks_and_core_dumps)
{
	EXPECT_TRUE(has_flag(VA, " sh "));
	EXPECT_TRUE(has_flag(VA, " dc "));
	EXPECT_TRUE(has_flag(VA, " de "));
	EXPECT_TRUE(has_flag(VA, " dd "));
	EXPECT_FALSE(has_flag(VA, " me "));
	EXPECT_EQ(-EINVAL, SYS(madvise((void *)VA, LENGTH, MADV_DODUMP)));
	EXPECT_TRUE(has_flag(VA, " dd "));
}

static void on_tick(int sig)
{
	(void)sig;
}

/* The module makes calls inside mmap that a signal may interrupt; mmap must not show it. */
TEST(mmap_is_not_interrupted)
{
	struct itimerval tick = { { 0, 200 }, { 0, 200 } }, off = {};
	struct sigaction act = { .sa_handler = on_tick };
	int i, fd;

	REQUIRE_DEVICE();
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &tick, NULL);
	for (i = 0; i < 500; i++) {
		struct singvgpu_create c = default_create();

		do {
			fd = open_device();
		} while (fd < 0 && errno == EINTR);
		ASSERT_LE(0, fd);
		ASSERT_EQ(0, create(fd, &c));
		ASSERT_EQ((long)VA, SYS(map_at(fd, 0, LENGTH)));
		ASSERT_EQ(SINGVGPU_MAGIC, ctl_of()->magic);
		munmap((void *)VA, LENGTH);
		close(fd);
	}
	setitimer(ITIMER_REAL, &off, NULL);
}

static sigjmp_buf fault_jump;

static void on_fault(int sig)
{
	siglongjmp(fault_jump, sig);
}

/* The signal that touching the page raises, or 0. */
static int touch(volatile char *p, int write)
{
	struct sigaction act = { .sa_handler = on_fault }, bus, segv;
	int sig;

	sigaction(SIGBUS, &act, &bus);
	sigaction(SIGSEGV, &act, &segv);
	sig = sigsetjmp(fault_jump, 1);
	if (!sig) {
		if (write)
			*p = 1;
		else
			(void)*p;
	}
	sigaction(SIGBUS, &bus, NULL);
	sigaction(SIGSEGV, &segv, NULL);
	return sig;
}

TEST_F(channel, child_does_not_inherit_the_mapping)
{
	struct pollfd pfd = { .fd = self->client };
	pid_t child;

	child = fork();
	if (!child)
		_exit(touch((char *)VA, 0) != SIGSEGV);
	EXPECT_EQ(0, reap(child));
	EXPECT_EQ(0, poll(&pfd, 1, 0));

	/* It may if the parent insists, but its life is not the end's. */
	*arena(0) = 1;
	if (madvise((void *)VA, LENGTH, MADV_DOFORK)) {
		/* Newer kernels do not let it. */
		ASSERT_EQ(EINVAL, errno);
		return;
	}
	child = fork();
	if (!child) {
		if (*arena(0) != 1)
			_exit(1);
		*arena(1) = 2;
		munmap((void *)VA, PAGE);
		_exit(0);
	}
	EXPECT_EQ(0, reap(child));
	EXPECT_EQ(2, *arena(1));
	EXPECT_EQ(0, poll(&pfd, 1, 0));
	EXPECT_EQ(SINGVGPU_STATE_PEER, info_of(self->client).state);
	munmap((void *)VA, LENGTH);
	EXPECT_EQ(1, poll(&pfd, 1, 0));
}

TEST_F(channel, second_process_cannot_map_an_end)
{
	pid_t child = fork();

	if (!child)
		_exit(SYS(map_at(self->proxy, 0, PAGE)) != -EBUSY);
	EXPECT_EQ(0, reap(child));
}

/* In a process whose parent has mapped the end behind fd, and says by tell that it has gone. */
static int be_guest(int fd, int tell)
{
	char byte;

	if (SYS(map_at(fd, 0, LOG_OFF)) != -EBUSY ||
	    SYS(map_at(fd, ARENA_OFF - PAGE, 2 * PAGE)) != -EBUSY ||
	    SYS(map_at(fd, LOG_OFF - PAGE, 2 * PAGE)) != -EBUSY)
		return 1;
	if (map_at(fd, ARENA_OFF, ARENA) != (void *)ARENA_VA ||
	    SYS(map_at(fd, ARENA_OFF, PAGE)) != -EEXIST)
		return 2;
	close(fd);
	if (*arena(5) != 55)
		return 3;
	*arena(6) = 66;
	/* In two parts, and a hole: the end does not notice. */
	if (munmap((void *)(ARENA_VA + PAGE), PAGE))
		return 4;
	if (write(tell, "", 1) != 1 || read(tell, &byte, 1) != 1)
		return 5;
	*arena(7) = 1;
	return *arena(6) == 67 ? 0 : 6;
}

TEST_F(channel, guest_maps_the_arena_alone_and_outlives_the_end)
{
	struct pollfd pfd = { .fd = self->client };
	int socks[2];
	pid_t guest;
	char byte;

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks));
	*arena(5) = 55;
	guest = fork();
	if (!guest)
		_exit(be_guest(self->proxy, socks[1]));
	close(socks[1]);
	EXPECT_EQ(1, read(socks[0], &byte, 1));
	EXPECT_EQ(66, *arena(6));
	*arena(6) = 67;
	EXPECT_EQ(0, poll(&pfd, 1, 0));
	munmap((void *)VA, LENGTH);
	EXPECT_EQ(1, poll(&pfd, 1, 0));
	EXPECT_EQ(-EPIPE, SYS(map_at(self->proxy, ARENA_OFF, PAGE)));
	EXPECT_EQ(1, write(socks[0], "", 1));
	EXPECT_EQ(0, reap(guest));
	close(socks[0]);
}

/* Ends with what went wrong, or with 0 once it has been told to go. */
static int be_client(int sock)
{
	char byte;

	if (map_at(ring_take_fd(sock), 0, LOG_OFF) != (void *)VA)
		return 1;
	*arena(5) = 55;
	if (write(sock, "", 1) != 1 || read(sock, &byte, 1) != 1)
		return 2;
	return 0;
}

TEST_F(channel, passed_file_makes_its_mapper_the_client)
{
	struct pollfd pfd = { .fd = self->proxy };
	int socks[2];
	pid_t child;
	char byte;

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks));
	child = fork();
	if (!child) {
		close(self->client);
		close(self->proxy);
		close(socks[0]);
		_exit(be_client(socks[1]));
	}
	close(socks[1]);
	ASSERT_EQ(0, ring_pass_fd(socks[0], self->client));
	EXPECT_EQ(1, read(socks[0], &byte, 1));
	EXPECT_EQ(0, poll(&pfd, 1, 0));
	EXPECT_EQ(1, write(socks[0], "", 1));
	EXPECT_EQ(0, reap(child));
	EXPECT_EQ(55, *arena(5));
	/* The file is still open here, but the client is gone. */
	EXPECT_EQ(1, poll(&pfd, 1, 0));
	EXPECT_EQ(-EPIPE, wait_on(self->client, DOORBELL, 0, 0));
	close(socks[0]);
}

/* Both ends see one memory, at one address. */
TEST_F(channel, memory_is_shared)
{
	pid_t child;
	int i;

	for (i = 0; i < 100; i++)
		*arena(i) = i;
	child = fork();
	if (!child) {
		if (map_at(self->client, 0, LOG_OFF) != (void *)VA)
			_exit(1);
		for (i = 0; i < 100; i++)
			if (*arena(i) != i)
				_exit(2);
		for (i = 100; i < 200; i++)
			*arena(i) = i;
		_exit(touch((char *)VA + LOG_OFF, 1) != SIGSEGV);
	}
	EXPECT_EQ(0, reap(child));
	for (i = 100; i < 200; i++)
		EXPECT_EQ((char)i, *arena(i));
}

TEST_F(channel, default_footprint_is_small)
{
	memset((void *)VA + sizeof(*self->ctl), 0, ARENA_OFF - sizeof(*self->ctl));
	memset((void *)VA + LOG_OFF, 0, LOG);
	EXPECT_GE((2ULL << 20) / PAGE, info_of(self->proxy).pages);
	EXPECT_LE((ARENA_OFF + LOG) / PAGE, info_of(self->proxy).pages);
}

TEST_F(channel, commit_and_decommit_check_their_range)
{
	int fd = self->proxy;

	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_COMMIT, 1, PAGE));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_COMMIT, 0, PAGE + 1));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_COMMIT, 0, LENGTH + PAGE));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_COMMIT, PAGE, -PAGE));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_COMMIT, -PAGE, PAGE));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_COMMIT, -PAGE, 2 * PAGE));
	EXPECT_EQ(-EINVAL, range(self->client, SINGVGPU_IOC_COMMIT, LOG_OFF, PAGE));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_DECOMMIT, 0, PAGE));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_DECOMMIT, ARENA_OFF - PAGE, PAGE));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_DECOMMIT, ARENA_OFF - PAGE, 2 * PAGE));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_DECOMMIT, LOG_OFF, PAGE));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_DECOMMIT, LOG_OFF - PAGE, 2 * PAGE));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_DECOMMIT, ARENA_OFF, 1));
	EXPECT_EQ(-EINVAL, range(fd, SINGVGPU_IOC_DECOMMIT, ARENA_OFF, -PAGE));
	EXPECT_EQ(0, range(fd, SINGVGPU_IOC_COMMIT, 0, 0));
	EXPECT_EQ(0, range(fd, SINGVGPU_IOC_DECOMMIT, LOG_OFF, 0));
	EXPECT_EQ(1, info_of(fd).pages);
	EXPECT_EQ(0, range(fd, SINGVGPU_IOC_COMMIT, 0, LENGTH));
	EXPECT_EQ(LENGTH / PAGE, info_of(fd).pages);
}

TEST_F(channel, decommitted_pages_read_as_zeros)
{
	uint64_t before = info_of(self->proxy).pages, i;

	memset((void *)ARENA_VA, 1, ARENA);
	EXPECT_EQ(before + ARENA / PAGE, info_of(self->proxy).pages);
	ASSERT_EQ(0, range(self->client, SINGVGPU_IOC_DECOMMIT, ARENA_OFF + PAGE,
			   ARENA - 2 * PAGE));
	EXPECT_EQ(before + 2, info_of(self->proxy).pages);
	EXPECT_EQ(1, *arena(0));
	EXPECT_EQ(1, *arena(ARENA / PAGE - 1));
	for (i = 1; i < ARENA / PAGE - 1; i += 7)
		EXPECT_EQ(0, *arena(i));
	*arena(1) = 3;
	EXPECT_EQ(3, *arena(1));
	ASSERT_EQ(0, range(self->proxy, SINGVGPU_IOC_DECOMMIT, ARENA_OFF, ARENA));
	EXPECT_EQ(before, info_of(self->proxy).pages);
	/* Committing what is there keeps it. */
	*arena(9) = 9;
	ASSERT_EQ(0, range(self->proxy, SINGVGPU_IOC_COMMIT, ARENA_OFF, ARENA));
	EXPECT_EQ(9, *arena(9));
	EXPECT_EQ(0, *arena(10));
	EXPECT_EQ(before + ARENA / PAGE, info_of(self->proxy).pages);
}

/* A page that was written after it was decommitted is the page that everybody sees. */
static _Atomic int race_over;

static void *decommit_main(void *p)
{
	int fd = *(int *)p;

	while (!race_over)
		if (range(fd, SINGVGPU_IOC_DECOMMIT, ARENA_OFF, 4 * PAGE))
			abort();
	return NULL;
}

static void *commit_main(void *p)
{
	int fd = *(int *)p;

	while (!race_over)
		if (range(fd, SINGVGPU_IOC_COMMIT, ARENA_OFF, 8 * PAGE))
			abort();
	return NULL;
}

TEST_F(channel, decommit_races_with_faults)
{
	int64_t end = now_ns() + 3000 * MS;
	pthread_t thread[2];
	char byte;
	long i = 0;

	ASSERT_EQ(0, pthread_create(&thread[0], NULL, decommit_main, &self->client));
	ASSERT_EQ(0, pthread_create(&thread[1], NULL, commit_main, &self->client));
	while (now_ns() < end) {
		*arena(i++ & 3) = 1;
		*arena(5) = i;
		ASSERT_EQ((char)i, *arena(5));
	}
	race_over = 1;
	pthread_join(thread[0], NULL);
	pthread_join(thread[1], NULL);
	for (i = 0; i < 8; i++) {
		*arena(i) = 10 + i;
		ASSERT_EQ(1, pread(self->proxy, &byte, 1, ARENA_OFF + i * PAGE));
		EXPECT_EQ(10 + i, byte);
	}
	ASSERT_EQ(0, range(self->proxy, SINGVGPU_IOC_DECOMMIT, ARENA_OFF, ARENA));
	EXPECT_EQ(1, info_of(self->proxy).pages);
}

TEST_F(channel, seeks_data_and_holes)
{
	int fd = self->proxy;

	*arena(10) = 1;
	*arena(11) = 1;
	*arena(20) = 1;
	EXPECT_EQ(LENGTH, lseek(fd, 0, SEEK_END));
	EXPECT_EQ(LOG_OFF, lseek(self->client, 0, SEEK_END));
	EXPECT_EQ(0, lseek(fd, 0, SEEK_DATA));
	EXPECT_EQ(PAGE, lseek(fd, 0, SEEK_HOLE));
	EXPECT_EQ(ARENA_OFF + 10 * PAGE, lseek(fd, PAGE, SEEK_DATA));
	EXPECT_EQ(ARENA_OFF + 10 * PAGE + 5, lseek(fd, ARENA_OFF + 10 * PAGE + 5, SEEK_DATA));
	EXPECT_EQ(ARENA_OFF + 12 * PAGE, lseek(fd, ARENA_OFF + 10 * PAGE, SEEK_HOLE));
	EXPECT_EQ(ARENA_OFF + 9 * PAGE + 3, lseek(fd, ARENA_OFF + 9 * PAGE + 3, SEEK_HOLE));
	EXPECT_EQ(ARENA_OFF + 20 * PAGE, lseek(fd, ARENA_OFF + 12 * PAGE, SEEK_DATA));
	EXPECT_EQ(-ENXIO, SYS(lseek(fd, ARENA_OFF + 21 * PAGE, SEEK_DATA)));
	EXPECT_EQ(-ENXIO, SYS(lseek(fd, LENGTH, SEEK_DATA)));
	EXPECT_EQ(-ENXIO, SYS(lseek(fd, LENGTH, SEEK_HOLE)));
	EXPECT_EQ(-ENXIO, SYS(lseek(fd, -1, SEEK_DATA)));
	EXPECT_EQ(-ENXIO, SYS(lseek(fd, INT64_MAX, SEEK_HOLE)));
	*(volatile char *)(VA + LENGTH - 1) = 1;
	EXPECT_EQ(LENGTH, lseek(fd, LENGTH - PAGE, SEEK_HOLE));
	/* The log is none of the client's. */
	EXPECT_EQ(-ENXIO, SYS(lseek(self->client, ARENA_OFF + 21 * PAGE, SEEK_DATA)));
	EXPECT_EQ(-EINVAL, SYS(lseek(fd, 0, 77)));
	EXPECT_EQ(-EINVAL, SYS(lseek(fd, LENGTH + 1, SEEK_SET)));
}

TEST_F(channel, reads_and_writes_as_a_sparse_file)
{
	static char out[5 * 4096 + 100], in[sizeof(out)];
	char *volatile bad = (char *)8;
	uint64_t pages = info_of(self->proxy).pages;
	size_t i;

	for (i = 0; i < sizeof(out); i++)
		out[i] = i * 7 + 1;
	memset(in, 0xff, sizeof(in));
	EXPECT_EQ(sizeof(in), pread(self->proxy, in, sizeof(in), ARENA_OFF + 50));
	for (i = 0; i < sizeof(in) && !in[i]; i++)
		;
	EXPECT_EQ(sizeof(in), i);
	EXPECT_EQ(pages, info_of(self->proxy).pages);
	EXPECT_EQ(sizeof(out), pwrite(self->proxy, out, sizeof(out), ARENA_OFF + 50));
	EXPECT_EQ(pages + 6, info_of(self->proxy).pages);
	EXPECT_EQ(0, memcmp(out, (char *)ARENA_VA + 50, sizeof(out)));
	EXPECT_EQ(sizeof(in), pread(self->proxy, in, sizeof(in), ARENA_OFF + 50));
	EXPECT_EQ(0, memcmp(in, out, sizeof(in)));
	EXPECT_EQ(10, pread(self->proxy, in, 100, LENGTH - 10));
	EXPECT_EQ(0, pread(self->proxy, in, 100, LENGTH));
	EXPECT_EQ(10, pwrite(self->proxy, out, 100, LENGTH - 10));
	EXPECT_EQ(-ENOSPC, SYS(pwrite(self->proxy, out, 100, LENGTH)));
	EXPECT_EQ(-EACCES, SYS(pread(self->client, in, 1, 0)));
	EXPECT_EQ(-EACCES, SYS(pwrite(self->client, in, 1, 0)));
	EXPECT_EQ(-EFAULT, SYS(pread(self->proxy, bad, 1, 0)));
	EXPECT_EQ(-EFAULT, SYS(pwrite(self->proxy, bad, 1, 0)));
	/* From and to itself, through its own mapping. */
	EXPECT_EQ(3 * PAGE, pwrite(self->proxy, (void *)ARENA_VA, 3 * PAGE,
				   ARENA_OFF + 100 * PAGE));
	EXPECT_EQ(0, memcmp((void *)arena(100), (void *)arena(0), 3 * PAGE));
	EXPECT_EQ(3 * PAGE, pread(self->proxy, (void *)arena(200), 3 * PAGE, ARENA_OFF));
	EXPECT_EQ(0, memcmp((void *)arena(200), (void *)arena(0), 3 * PAGE));
}

TEST_F(channel, other_processes_may_read_it_by_ptrace)
{
	char buf[2 * 4096] = {};
	struct iovec local = { buf, sizeof(buf) }, remote;
	struct steps steps;
	pid_t child;

	ASSERT_EQ(0, steps_open(&steps));
	child = fork();
	if (!child) {
		if (map_at(self->client, 0, LOG_OFF) != (void *)VA)
			_exit(1);
		memset((void *)arena(3), 0x77, sizeof(buf));
		tell_parent(&steps);
		wait_parent(&steps);
		_exit(*arena(4) != 0x66);
	}
	ASSERT_TRUE(wait_child(&steps));
	remote = (struct iovec){ (void *)arena(3), sizeof(buf) };
	EXPECT_EQ(sizeof(buf), process_vm_readv(child, &local, 1, &remote, 1, 0));
	EXPECT_EQ(0x77, buf[0]);
	EXPECT_EQ(0x77, buf[sizeof(buf) - 1]);
	memset(buf, 0x66, sizeof(buf));
	EXPECT_EQ(sizeof(buf), process_vm_writev(child, &local, 1, &remote, 1, 0));
	EXPECT_EQ(0x66, *arena(3));
	tell_child(&steps);
	EXPECT_EQ(0, reap(child));
	steps_close(&steps);
}

/*
 * An AF_XDP socket pins its memory for long and for writing, as a GPU's driver does; on every
 * kernel, while io_uring takes mappings of files only from 6.5 on.
 */
TEST_F(channel, arena_can_be_pinned_for_long)
{
	struct xdp_umem_reg reg = { .addr = ARENA_VA, .len = ARENA, .chunk_size = PAGE };
	int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);

	if (fd < 0)
		SKIP(return, "no AF_XDP: %s", strerror(errno));
	ASSERT_EQ(0, setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &reg, sizeof(reg)));
	EXPECT_EQ(1 + ARENA / PAGE, info_of(self->proxy).pages);
	*arena(1) = 1;
	ASSERT_EQ(0, range(self->proxy, SINGVGPU_IOC_DECOMMIT, ARENA_OFF, ARENA));
	EXPECT_EQ(0, *arena(1));
	EXPECT_EQ(2, info_of(self->proxy).pages);
	close(fd);
}

/* The same by io_uring's registered buffers, which then write into the arena. */
TEST_F(channel, pinned_arena_is_written_by_the_kernel)
{
	struct iovec iov = { (void *)ARENA_VA, ARENA };
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	int pipes[2], r;

	r = io_uring_queue_init(4, &ring, 0);
	if (r == -ENOSYS || r == -EPERM)
		SKIP(return, "no io_uring: %d", r);
	ASSERT_EQ(0, r);
	r = io_uring_register_buffers(&ring, &iov, 1);
	if (r == -EOPNOTSUPP) {
		io_uring_queue_exit(&ring);
		SKIP(return, "this kernel's io_uring takes no mapping of a file");
	}
	ASSERT_EQ(0, r);
	EXPECT_LE(ARENA / PAGE, info_of(self->proxy).pages);
	ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
	ASSERT_EQ(5, write(pipes[1], "hello", 5));
	io_uring_prep_read_fixed(io_uring_get_sqe(&ring), pipes[0], (void *)arena(77), 5, 0, 0);
	ASSERT_EQ(1, io_uring_submit_and_wait(&ring, 1));
	ASSERT_EQ(0, io_uring_wait_cqe(&ring, &cqe));
	EXPECT_EQ(5, cqe->res);
	io_uring_cqe_seen(&ring, cqe);
	EXPECT_EQ(0, memcmp((void *)arena(77), "hello", 5));

	/* What is pinned outlives DECOMMIT; the channel has other pages then. */
	ASSERT_EQ(0, range(self->proxy, SINGVGPU_IOC_DECOMMIT, ARENA_OFF, ARENA));
	EXPECT_EQ(0, *arena(77));
	ASSERT_EQ(5, write(pipes[1], "again", 5));
	io_uring_prep_read_fixed(io_uring_get_sqe(&ring), pipes[0], (void *)arena(77), 5, 0, 0);
	ASSERT_EQ(1, io_uring_submit_and_wait(&ring, 1));
	ASSERT_EQ(0, io_uring_wait_cqe(&ring, &cqe));
	EXPECT_EQ(5, cqe->res);
	io_uring_cqe_seen(&ring, cqe);
	EXPECT_EQ(0, *arena(77));
	io_uring_queue_exit(&ring);
	close(pipes[0]);
	close(pipes[1]);
}

/* Limits, as root sets them. */
FIXTURE(limits) {
	int fd[8];
};

FIXTURE_SETUP(limits)
{
	int i;

	REQUIRE_DEVICE();
	if (geteuid())
		SKIP(return, "needs root to set the module's parameters");
	for (i = 0; i < 8; i++) {
		self->fd[i] = open_device();
		ASSERT_LE(0, self->fd[i]);
	}
}

FIXTURE_TEARDOWN(limits)
{
	int i;

	parameter("user_channels", "1024");
	parameter("user_mib", "0");
	parameter("channel_mib", "1048576");
	for (i = 0; i < 8; i++)
		close(self->fd[i]);
}

static long create_one(int fd)
{
	struct singvgpu_create c = default_create();

	return create(fd, &c);
}

TEST_F(limits, channels_of_a_user)
{
	pid_t child;

	ASSERT_EQ(0, parameter("user_channels", "2"));
	EXPECT_EQ(0, create_one(self->fd[0]));
	EXPECT_EQ(0, create_one(self->fd[1]));
	EXPECT_EQ(-EDQUOT, create_one(self->fd[2]));
	/* Another user has his own. */
	child = fork();
	if (!child) {
		if (setresuid(65534, 65534, 65534))
			_exit(1);
		if (create_one(self->fd[3]) || create_one(self->fd[4]))
			_exit(2);
		_exit(create_one(self->fd[5]) != -EDQUOT);
	}
	EXPECT_EQ(0, reap(child));
	close(self->fd[0]);
	self->fd[0] = open_device();
	EXPECT_EQ(0, create_one(self->fd[2]));
	EXPECT_EQ(-EDQUOT, create_one(self->fd[0]));
	ASSERT_EQ(0, parameter("user_channels", "0"));
	EXPECT_EQ(-EDQUOT, create_one(self->fd[6]));
	/* Nor may one who has none yet. */
	child = fork();
	if (!child)
		_exit(setresuid(65533, 65533, 65533) ? 1 : create_one(self->fd[6]) != -EDQUOT);
	EXPECT_EQ(0, reap(child));
}

TEST_F(limits, length_of_a_channel)
{
	struct singvgpu_create c = default_create();

	ASSERT_EQ(0, parameter("channel_mib", "20"));
	c.geo.arena_len = 20ULL << 20;
	EXPECT_EQ(-EDQUOT, create(self->fd[0], &c));
	c.geo.arena_len = 19ULL << 20;
	EXPECT_EQ(0, create(self->fd[0], &c));
	ASSERT_EQ(0, parameter("channel_mib", "0"));
	EXPECT_EQ(-EDQUOT, create_one(self->fd[1]));
	/* More than fits is no wrap-around: neither of its pages, nor of its bytes. */
	ASSERT_EQ(0, parameter("channel_mib", "18446744073709551615"));
	EXPECT_EQ(0, create_one(self->fd[1]));
	ASSERT_EQ(0, parameter("channel_mib", "72057594037927936"));
	EXPECT_EQ(0, create_one(self->fd[2]));
	ASSERT_EQ(0, parameter("channel_mib", "17592186044417"));
	EXPECT_EQ(0, create_one(self->fd[3]));
}

TEST_F(limits, memory_of_a_user)
{
	int fd = self->fd[0], client = self->fd[1];
	struct singvgpu_create c = default_create();
	uint64_t pages;
	char byte = 1;

	/* Other tests' channels are gone, or this could not work. */
	ASSERT_EQ(0, total_settles("pages", 0));
	ASSERT_EQ(0, parameter("user_mib", "4"));
	ASSERT_EQ(0, create(fd, &c));
	ASSERT_EQ(0, attach(client, &c));
	ASSERT_EQ((void *)VA, map_at(fd, 0, LENGTH));

	*arena(2000) = 1;
	pages = info_of(fd).pages;
	EXPECT_EQ(2, pages);
	EXPECT_EQ(-EDQUOT, range(fd, SINGVGPU_IOC_COMMIT, ARENA_OFF, ARENA));
	EXPECT_EQ(pages, info_of(fd).pages);
	EXPECT_EQ(pages, total("pages"));
	EXPECT_EQ(1, *arena(2000));
	EXPECT_EQ(0, range(client, SINGVGPU_IOC_COMMIT, ARENA_OFF, (1024 - pages) * PAGE));
	EXPECT_EQ(1024, info_of(fd).pages);
	EXPECT_EQ(SIGBUS, touch(arena(1500), 1));
	EXPECT_EQ(SIGBUS, touch(arena(1500), 0));
	EXPECT_EQ(SIGBUS, touch((char *)VA + PAGE, 0));
	EXPECT_EQ(-EDQUOT, wait_on(fd, PAGE, 0, 0));
	EXPECT_EQ(-EDQUOT, SYS(pwrite(fd, &byte, 1, ARENA_OFF + 1500 * PAGE)));
	EXPECT_EQ(1, pread(fd, &byte, 1, ARENA_OFF + 1500 * PAGE));
	EXPECT_EQ(-EDQUOT, create_one(self->fd[2]));
	EXPECT_EQ(0, touch(arena(0), 1));
	EXPECT_EQ(0, range(fd, SINGVGPU_IOC_DECOMMIT, ARENA_OFF, 2 * PAGE));
	EXPECT_EQ(0, touch(arena(1500), 1));
	EXPECT_EQ(0, create_one(self->fd[2]));
	EXPECT_EQ(SIGBUS, touch(arena(1501), 1));
	munmap((void *)VA, LENGTH);
	close(fd);
	close(client);
	EXPECT_EQ(1, total_settles("pages", 1));
	self->fd[0] = open_device();
	self->fd[1] = open_device();
}

static long write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	long r = fd < 0 ? -errno : SYS(write(fd, text, strlen(text)));

	close(fd);
	return r < 0 ? r : 0;
}

static long read_number(const char *path)
{
	FILE *f = fopen(path, "re");
	long n = -1;

	if (f) {
		if (fscanf(f, "%ld", &n) != 1)
			n = -1;
		fclose(f);
	}
	return n;
}

#define GROUP "/sys/fs/cgroup/singvgpu-test"

TEST_F(channel, memory_cgroup_is_charged_and_limits)
{
	struct steps steps;
	long before;
	pid_t child;

	write_file("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	if (mkdir(GROUP, 0755) && errno != EEXIST)
		SKIP(return, "cannot make a memory cgroup");
	if (access(GROUP "/memory.current", F_OK)) {
		rmdir(GROUP);
		SKIP(return, "no memory controller");
	}
	ASSERT_EQ(0, steps_open(&steps));
	child = fork();
	if (!child) {
		if (write_file(GROUP "/cgroup.procs", "0"))
			_exit(1);
		tell_parent(&steps);
		wait_parent(&steps);
		if (range(self->client, SINGVGPU_IOC_COMMIT, ARENA_OFF, ARENA / 2))
			_exit(2);
		tell_parent(&steps);
		wait_parent(&steps);
		if (range(self->client, SINGVGPU_IOC_COMMIT, ARENA_OFF, ARENA) != -ENOMEM)
			_exit(3);
		_exit(0);
	}
	ASSERT_TRUE(wait_child(&steps));
	before = read_number(GROUP "/memory.current");
	tell_child(&steps);
	ASSERT_TRUE(wait_child(&steps));
	EXPECT_LE(before + (long)ARENA / 2, read_number(GROUP "/memory.current"));
	EXPECT_EQ(1 + ARENA / 2 / PAGE, info_of(self->proxy).pages);
	/* Room for half of the other half. */
	ASSERT_EQ(0, write_file(GROUP "/memory.max", "14680064"));
	tell_child(&steps);
	EXPECT_EQ(0, reap(child));
	EXPECT_EQ(1 + ARENA / 2 / PAGE, info_of(self->proxy).pages);
	/* Nor was the user charged for what was not had: 9 MiB have room for 255 more. */
	ASSERT_EQ(0, parameter("user_mib", "9"));
	EXPECT_EQ(0, range(self->proxy, SINGVGPU_IOC_COMMIT, ARENA_OFF + ARENA / 2, 255 * PAGE));
	EXPECT_EQ(-EDQUOT, range(self->proxy, SINGVGPU_IOC_COMMIT, ARENA_OFF + ARENA / 2,
				 256 * PAGE));
	ASSERT_EQ(0, parameter("user_mib", "0"));
	/* The charge goes with the pages, not with the process. */
	EXPECT_LE((long)ARENA / 2, read_number(GROUP "/memory.current"));
	ASSERT_EQ(0, range(self->proxy, SINGVGPU_IOC_DECOMMIT, ARENA_OFF, ARENA));
	EXPECT_GT((long)ARENA / 4, read_number(GROUP "/memory.current"));
	steps_close(&steps);
	EXPECT_EQ(0, rmdir(GROUP));
}

TEST_HARNESS_MAIN
