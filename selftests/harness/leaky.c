// SPDX-License-Identifier: Apache-2.0
/*
 * leaky.c - tests that leak, for test-runner: it must report those called leaks_* as failed
 */
#include "leaks.h"
#include <sys/mman.h>

TEST(closes_all)
{
	int fd = memfd_create("leaky", 0);

	ASSERT_LE(0, fd);
	EXPECT_EQ(0, close(fd));
}

TEST(leaks_an_fd)
{
	EXPECT_LE(0, memfd_create("leaky", 0));
}

TEST(leaks_a_mapping)
{
	int fd = memfd_create("leaky", 0);

	ASSERT_EQ(0, ftruncate(fd, 4096));
	EXPECT_NE(MAP_FAILED, mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0));
	close(fd);
}

TEST_HARNESS_MAIN
