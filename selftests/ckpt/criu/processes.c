// SPDX-License-Identifier: Apache-2.0
/*
 * processes.c - whose memory images of pages are: each process once, by pid, however many an image claims
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <kselftest_harness.h>

#include "images.h"

#define MANY 200000

/* A number as a field of an entry. */
static size_t put_field(uint8_t *to, int field, uint32_t value)
{
	size_t n = 0;

	to[n++] = field << 3;
	for (; value > 127; value >>= 7)
		to[n++] = value | 128;
	to[n++] = value;
	return n;
}

static void put_image(FILE *out, const char *name, const uint8_t *data, uint64_t len)
{
	uint32_t head[2] = { strlen(name), 0 };
	uint64_t magics = 0, size = len + sizeof(magics);

	fwrite(head, sizeof(head), 1, out);
	fwrite(&size, sizeof(size), 1, out);
	fputs(name, out);
	fwrite(&magics, sizeof(magics), 1, out);
	fwrite(data, 1, len, out);
}

static void put_pagemap(FILE *out, int pid, int pages)
{
	uint8_t data[32];
	uint32_t n = put_field(data + 4, 1, pages);
	char name[40];

	memcpy(data, &n, 4);
	snprintf(name, sizeof(name), "pagemap-%d.img", pid);
	put_image(out, name, data, 4 + n);
}

static size_t put_process(uint8_t *to, int pid, int parent)
{
	uint32_t n = put_field(to + 4, 1, pid);

	n += put_field(to + 4 + n, 2, parent);
	memcpy(to, &n, 4);
	return 4 + n;
}

TEST(each_process_is_there_once_and_by_pid)
{
	struct images_process *p = NULL;
	uint8_t tree[64];
	size_t len, n = 0, size;
	char *small;
	FILE *out = open_memstream(&small, &len);

	put_pagemap(out, 9, 3);
	size = put_process(tree, 7, 1);
	size += put_process(tree + size, 9, 7);
	put_image(out, "pstree.img", tree, size);
	put_pagemap(out, 7, 5);
	fclose(out);
	ASSERT_EQ(images_processes(small, len, &p, &n), 0);
	ASSERT_EQ(n, 2);
	EXPECT_EQ(p[0].pid, 7);
	EXPECT_EQ(p[0].parent, 1);
	EXPECT_EQ(p[0].pages, 5);
	EXPECT_EQ(p[1].pid, 9);
	EXPECT_EQ(p[1].parent, 7);
	EXPECT_EQ(p[1].pages, 3);
	free(p);
	EXPECT_EQ(images_processes(small, len - 3, &p, &n), -EBADMSG);
	EXPECT_EQ(p, NULL);
	free(small);
}

/* If each were looked for among all others, it would take a minute. */
TEST(forged_images_may_claim_very_many)
{
	struct images_process *p = NULL;
	struct timespec cpu;
	size_t len, n = 0;
	char *small;
	FILE *out = open_memstream(&small, &len);

	for (int i = MANY; i; i--)
		put_pagemap(out, i, i);
	fclose(out);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
	ASSERT_EQ(images_processes(small, len, &p, &n), 0);
	EXPECT_EQ(n, MANY);
	EXPECT_EQ(p[MANY - 1].pid, MANY);
	n = cpu.tv_sec;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
	EXPECT_LT(cpu.tv_sec - n, 5);
	free(p);
	free(small);
}

TEST_HARNESS_MAIN
