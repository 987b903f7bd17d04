// SPDX-License-Identifier: Apache-2.0
/*
 * held.c - the bytes of a program's files: when a file is taken for the same, and what becomes of its lease
 *
 * The times of a file are what the test says.
 */
#include "local.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include "held.h"

#define SECOND	1000000000ll
#define LARGE	(65ull << 20)	/* is mapped, not copied */

static int64_t age = -1;		/* of a file, ns; -1: what it is */
static struct timespec born;

int fstat(int fd, struct stat *st)
{
	int rc = syscall(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH);

	if (age >= 0)
		st->st_ctim = st->st_mtim = born;
	return rc;
}

/* From now on each file was changed so long ago. */
static void set_age(int64_t ns)
{
	struct timespec now;
	int64_t t;

	clock_gettime(CLOCK_REALTIME, &now);
	t = now.tv_sec * SECOND + now.tv_nsec - ns;
	born = (struct timespec){ t / SECOND, t % SECOND };
	age = ns;
}

static void write_file(const char *path, const char *text, uint64_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK_EQ(pwrite(fd, text, strlen(text), 0), (ssize_t)strlen(text));
	CHECK_EQ(ftruncate(fd, len), 0);
	close(fd);
}

static struct held *hold(const char *path, uint64_t len)
{
	struct sv_image a = { .len = len, .size = len };
	struct held *h = NULL;

	a.mtime_ns = born.tv_sec * SECOND + born.tv_nsec;
	CHECK_EQ(held_open(&h, &a, path, true), 0);
	return h;
}

/* Of what is written in one tick of the file system's clock, the times say nothing. */
static void a_tick(void *arg)
{
	const char *path = arg;
	struct held *h;

	for (int old = 0; old < 2; old++) {
		write_file(path, "what was loaded", 64);
		set_age(old ? 3600 * SECOND : 1000);
		h = hold(path, 64);
		CHECK(held_in_file(h));
		write_file(path, "something other", 64);
		/* A file of such an age that is the same has not been written to. */
		CHECK_EQ(held_in_file(h), old);
		held_put(h);
	}
}

TEST(a_file_that_was_written_just_now_is_read_again)
{
	char path[64];

	snprintf(path, sizeof(path), "/tmp/uproxy-held-%d", getpid());
	EXPECT_EQ(local_child(a_tick, path), 0);
	unlink(path);
}

/* The descriptor by which the file is held. */
static int descriptor_of(const char *path)
{
	char link[64], to[64];

	for (int fd = 3; fd < 256; fd++) {
		ssize_t n;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, to, sizeof(to));
		if (n == (ssize_t)strlen(path) && !memcmp(to, path, n))
			return fd;
	}
	return -1;
}

/* A writer has had the lease ended: its descriptor is somebody else's by the time the bytes are given up. */
static void a_writer(void *arg)
{
	const char *path = arg;
	struct held *h;
	int fd;

	held_begin();
	write_file(path, "\177ELF of the program", LARGE);
	set_age(0);
	h = hold(path, LARGE);
	fd = descriptor_of(path);
	CHECK(fd >= 0);
	write_file(path, "\177ELF of another one", LARGE);	/* waits until there is a copy */
	CHECK_EQ(memcmp(held_bytes(h), "\177ELF of the program", 19), 0);
	for (int i = 0; i < 10000 && fcntl(fd, F_GETFD) >= 0; i++)
		usleep(1000);
	CHECK_EQ(dup2(2, fd), fd);
	held_put(h);
	usleep(50000);		/* the thread that made the copy may be the last to give it up */
	CHECK(fcntl(fd, F_GETFD) >= 0);
}

TEST(a_lease_is_closed_once)
{
	char path[64];

	snprintf(path, sizeof(path), "/tmp/uproxy-held-%d", getpid());
	EXPECT_EQ(local_child(a_writer, path), 0);
	unlink(path);
}

TEST_HARNESS_MAIN
