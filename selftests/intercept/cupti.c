// SPDX-License-Identifier: Apache-2.0
/*
 * cupti.c - a CUPTI that fails has a version all the same, the oldest that its soname stands for
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../harness/leaks.h"

typedef int version_fn(uint32_t *);

/* dlsym is libsingvgpu-rtc.so's, which this program is linked with. */
static version_fn *open_fake(const char *name)
{
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 64);
	void *h;

	path[n < 0 ? 0 : n] = 0;
	strcpy(strrchr(path, '/') + 1, name);
	h = dlopen(path, RTLD_NOW);
	return h ? (version_fn *)dlsym(h, "cuptiGetVersion") : NULL;
}

TEST(of_thirteen)
{
	version_fn *get = open_fake("libcupti.so.13");
	uint32_t v = 0xa5a5a5a5;

	ASSERT_TRUE(get);
	EXPECT_EQ(get(NULL), 1);
	EXPECT_EQ(get(&v), 0);
	EXPECT_EQ(v, 130000);
}

TEST(of_twelve)
{
	version_fn *get = open_fake("libcupti.so.12");
	uint32_t v = 0xa5a5a5a5;

	ASSERT_TRUE(get);
	EXPECT_EQ(get(&v), 0);
	EXPECT_EQ(v, 19);
}

TEST(unknown_soname_keeps_its_error)
{
	version_fn *get = open_fake("libcupti.so.other");
	uint32_t v = 0xa5a5a5a5;

	ASSERT_TRUE(get);
	EXPECT_EQ(get(&v), 999);
	EXPECT_EQ(v, 0xa5a5a5a5);
}

TEST_HARNESS_MAIN
