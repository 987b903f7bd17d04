// SPDX-License-Identifier: Apache-2.0
/*
 * common.c - ranges that a client maps and unmaps while its bytes are brought, taken away, or elsewhere
 *
 * The device's memory is a file, mapped where a driver would map it. A second row of the table stands for another sharer.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"
#include "proto.h"
#include "table.h"

#include "kselftest_harness.h"
#include "../harness/patience.h"

#define GRANULES 4
#define BUDGET	 (GRANULES * SV_GRANULE)
#define OTHER	 1u	/* its seat */

static int made;	/* how often the memory was */

CUresult hal_join(struct hal *h, uint64_t va, uint64_t len, int fd)
{
	void *p = mmap((void *)va, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);

	return p == (void *)va ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult hal_share(struct hal *h, uint64_t va, uint64_t len, int *fd)
{
	*fd = memfd_create("memory", MFD_CLOEXEC);
	made++;
	return *fd < 0 || ftruncate(*fd, len) ? CUDA_ERROR_OUT_OF_MEMORY : hal_join(h, va, len, *fd);
}

int hal_host_reads(struct hal *h, uint64_t va)
{
	return 1;
}

/* The table, as another sharer sees it. */
static struct table *table_in(int mail)
{
	union {
		char bytes[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	char c;
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct table *t = NULL;
	bool is_new;
	int fd[2];

	if (recvmsg(mail, &m, MSG_PEEK | MSG_DONTWAIT) != 1)
		return NULL;
	memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	table_open(fd[1], &t, &is_new);
	close(fd[0]);
	close(fd[1]);
	return t;
}

static bool nobody_has_ended(uint32_t seat)
{
	return false;
}

FIXTURE(common)
{
	struct hal h;
	int mail[2], lock, row;		/* row: the other's */
	struct table *t;
	struct why why;
	uint64_t at[GRANULES];
};

FIXTURE_SETUP(common)
{
	void *p = mmap(NULL, BUDGET + SV_GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	self->h.window = ((uint64_t)p + SV_GRANULE - 1) & -SV_GRANULE;
	self->h.window_len = BUDGET;
	for (int i = 0; i < GRANULES; i++)
		self->at[i] = self->h.window + i * SV_GRANULE;
	self->lock = memfd_create("lock", MFD_CLOEXEC);
	ASSERT_EQ(socketpair(AF_UNIX, SOCK_DGRAM, 0, self->mail), 0);
	ASSERT_EQ(self->mail[1], self->mail[0] + 1);
	ASSERT_EQ(common_open(&self->h, self->mail[0], BUDGET), 0);
	ASSERT_EQ(common_join(&self->h, self->lock, 0, &self->why), 0);
	self->t = table_in(self->mail[1]);
	ASSERT_NE(self->t, NULL);
	self->row = table_row(self->t, OTHER, 99);
	ASSERT_GE(self->row, 0);
}

FIXTURE_TEARDOWN(common)
{
	table_close(self->t);
}

#define SELF FIXTURE_DATA(common) *self

static int comes(SELF, int granules)
{
	int rc = common_begin(0, nobody_has_ended, true, &self->why);

	for (int i = 0; i < granules && !rc; i++)
		common_bring(self->at[i], SV_GRANULE);
	return rc ?: common_came() ? 0 : 1;
}

static int leaves(SELF, int granules)
{
	int rc = common_ends(&self->why);

	for (int i = 0; i < granules && !rc; i++)
		rc = common_leave(self->at[i], SV_GRANULE, &self->why);
	if (!rc)
		common_left();
	return rc;
}

/* What the other sharer would have to do for a unit that it has none of. */
static enum table_brings other_needs(SELF, uint64_t va)
{
	const void *from;

	return table_brings(self->t, self->row, (va - self->h.window) / TABLE_UNIT, &from);
}

/* Does a read at the address end the process? */
static bool faults(uint64_t va)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		signal(SIGSEGV, SIG_DFL);
		signal(SIGBUS, SIG_DFL);
		_exit(*(volatile uint8_t *)va & 0);
	}
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status);
}

TEST_F(common, only_what_is_mapped_can_be_accessed_and_in_turn_alone)
{
	EXPECT_TRUE(faults(self->at[0]));
	ASSERT_EQ(comes(self, 0), 0);
	EXPECT_TRUE(faults(self->at[0]));
	common_map(self->at[0], SV_GRANULE);
	EXPECT_FALSE(faults(self->at[0]));
	EXPECT_TRUE(faults(self->at[1]));
	common_unmap(self->at[0], SV_GRANULE);
	EXPECT_TRUE(faults(self->at[0]));
	common_map(self->at[0], 2 * SV_GRANULE);
	ASSERT_EQ(leaves(self, 2), 0);
	EXPECT_TRUE(faults(self->at[0]));
	EXPECT_TRUE(faults(self->at[1]));
	ASSERT_EQ(comes(self, 2), 0);
	EXPECT_FALSE(faults(self->at[1]));
	EXPECT_TRUE(common_has(&self->h, self->at[0], BUDGET));
	EXPECT_FALSE(common_has(&self->h, self->at[1], BUDGET));
	EXPECT_FALSE(common_has(&self->h, self->at[0] - SV_GRANULE, SV_GRANULE));
}

/* Are all bytes of a unit so, wherever it is? */
static bool is_kept(uint64_t va, uint8_t value)
{
	const uint8_t *p = common_kept(va);

	for (uint64_t i = 0; p && i < TABLE_UNIT; i++)
		if (p[i] != value)
			return false;
	return p || !value;
}

TEST_F(common, a_dump_finds_the_bytes_while_the_memory_is_anothers)
{
	EXPECT_FALSE(common_here());
	EXPECT_EQ(common_kept(self->at[0]), NULL);
	ASSERT_EQ(comes(self, 0), 0);
	common_map(self->at[0], 2 * SV_GRANULE);
	memset((void *)self->at[0], 7, SV_GRANULE);
	memset((void *)self->at[0] + TABLE_UNIT, 8, TABLE_UNIT);
	EXPECT_TRUE(common_here());
	ASSERT_EQ(leaves(self, 2), 0);
	EXPECT_FALSE(common_here());
	EXPECT_TRUE(is_kept(self->at[0], 7));
	EXPECT_TRUE(is_kept(self->at[0] + TABLE_UNIT, 8));
	EXPECT_TRUE(is_kept(self->at[0] + 2 * TABLE_UNIT, 7));
	EXPECT_EQ(common_kept(self->at[1]), NULL);
	/* What is mapped anew out of turn is zeros, whatever was there. */
	common_unmap(self->at[0], SV_GRANULE);
	common_map(self->at[0], SV_GRANULE);
	EXPECT_EQ(common_kept(self->at[0]), NULL);
	EXPECT_EQ(common_kept(self->at[0] + TABLE_UNIT), NULL);
}

TEST_F(common, a_range_that_is_unmapped_while_bytes_are_taken_away_is_nobodys)
{
	ASSERT_EQ(comes(self, 0), 0);
	common_map(self->at[0], SV_GRANULE);
	memset((void *)self->at[0], 7, SV_GRANULE);
	ASSERT_EQ(common_ends(&self->why), 0);
	common_unmap(self->at[0], SV_GRANULE);
	common_left();
	EXPECT_EQ(other_needs(self, self->at[0]), TABLE_ZEROS);
	EXPECT_EQ(other_needs(self, self->at[1]), TABLE_NOTHING);
}

TEST_F(common, a_range_that_is_mapped_while_bytes_are_taken_away_is_left_alone)
{
	uint64_t most;

	ASSERT_EQ(comes(self, 0), 0);
	ASSERT_EQ(common_ends(&self->why), 0);
	common_map(self->at[2], SV_GRANULE);
	ASSERT_EQ(common_leave(self->at[2], SV_GRANULE, &self->why), 0);
	common_left();
	EXPECT_EQ(table_versions(self->t, &most), 0);
	EXPECT_EQ(comes(self, 0), 1);
	common_bring(self->at[2], SV_GRANULE);
	ASSERT_TRUE(common_came());
	EXPECT_EQ(*(uint8_t *)self->at[2], 0);
}

TEST_F(common, a_range_that_is_mapped_while_bytes_are_brought_is_brought_too)
{
	ASSERT_EQ(comes(self, 0), 0);
	common_map(self->at[0], 2 * SV_GRANULE);
	memset((void *)self->at[0], 7, 2 * SV_GRANULE);
	ASSERT_EQ(leaves(self, 2), 0);
	/* One unmapped and mapped again, while the memory is another's; and one mapped only then. */
	common_unmap(self->at[0], SV_GRANULE);
	common_map(self->at[0], SV_GRANULE);
	common_map(self->at[2], SV_GRANULE);
	EXPECT_EQ(comes(self, 1), 1);
	for (int i = 0; i < 3; i++)
		common_bring(self->at[i], SV_GRANULE);
	ASSERT_TRUE(common_came());
	EXPECT_EQ(*(uint8_t *)self->at[0], 0);
	EXPECT_EQ(*(uint8_t *)self->at[1], 7);
	EXPECT_EQ(*(uint8_t *)self->at[2], 0);
}

TEST_F(common, a_range_that_is_unmapped_while_bytes_are_brought_can_be_accessed_no_more)
{
	ASSERT_EQ(comes(self, 0), 0);
	common_map(self->at[0], 3 * SV_GRANULE);
	memset((void *)self->at[0], 7, 3 * SV_GRANULE);
	ASSERT_EQ(leaves(self, 3), 0);
	/* One behind the worker; one of the run that it brings next; and one that is mapped again, too. */
	ASSERT_EQ(common_begin(0, nobody_has_ended, true, &self->why), 0);
	common_bring(self->at[0], SV_GRANULE);
	common_unmap(self->at[0], 3 * SV_GRANULE);
	common_map(self->at[2], SV_GRANULE);
	common_bring(self->at[1], 2 * SV_GRANULE);
	/* The window may still have them when the worker looks again. */
	common_bring(self->at[0], 3 * SV_GRANULE);
	ASSERT_TRUE(common_came());
	EXPECT_TRUE(faults(self->at[0]));
	EXPECT_TRUE(faults(self->at[1]));
	EXPECT_FALSE(faults(self->at[2]));
	EXPECT_EQ(*(uint8_t *)self->at[2], 0);
	/* They can be mapped again. */
	common_map(self->at[0], 2 * SV_GRANULE);
	EXPECT_EQ(*(uint8_t *)self->at[0], 0);
	EXPECT_EQ(*(uint8_t *)self->at[1], 0);
	/* So it is with one that is unmapped before the slice begins. */
	ASSERT_EQ(leaves(self, 3), 0);
	common_unmap(self->at[1], SV_GRANULE);
	ASSERT_EQ(comes(self, 3), 0);
	EXPECT_FALSE(faults(self->at[0]));
	EXPECT_TRUE(faults(self->at[1]));
}

TEST_F(common, a_range_that_is_unmapped_elsewhere_gives_its_versions_back)
{
	uint64_t most;

	ASSERT_EQ(comes(self, 0), 0);
	common_map(self->at[0], SV_GRANULE);
	memset((void *)self->at[0], 7, SV_GRANULE);
	ASSERT_EQ(leaves(self, 1), 0);
	EXPECT_EQ(table_versions(self->t, &most), SV_GRANULE / TABLE_UNIT);
	common_unmap(self->at[0], SV_GRANULE);
	/* Another one's bytes lie there now. */
	table_forget(self->t);
	ASSERT_EQ(comes(self, 0), 0);
	EXPECT_EQ(table_versions(self->t, &most), 0);
}

TEST_F(common, a_second_process_has_the_same_memory)
{
	pid_t pid;
	int status;

	ASSERT_EQ(comes(self, 0), 0);
	common_map(self->at[0], SV_GRANULE);
	memset((void *)self->at[0], 7, SV_GRANULE);
	EXPECT_EQ(made, 1);
	pid = fork();
	if (!pid) {
		munmap((void *)self->h.window, BUDGET);
		if (common_join(&self->h, self->lock, 0, &self->why) || made != 1)
			_exit(1);
		mprotect((void *)self->at[0], SV_GRANULE, PROT_READ);
		_exit(*(uint8_t *)self->at[0] != 7);
	}
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
}

TEST_F(common, a_table_that_is_torn_ends_all_slices_by_name)
{
	ASSERT_EQ(table_change(self->t), 0);
	EXPECT_EQ(comes(self, 0), -ENOTRECOVERABLE);
	EXPECT_NE(strstr(self->why.text, "was killed"), NULL);
}

TEST_HARNESS_MAIN
