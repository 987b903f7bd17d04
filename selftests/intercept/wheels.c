// SPDX-License-Identifier: Apache-2.0
/*
 * wheels.c - a library of NVIDIA's from PyPI is found by its name beside another that is loaded
 *
 * The program is linked with libsingvgpu-rtc.so, whose dlopen this is. Each test is a process.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../harness/leaks.h"

static const char *place(const char *name)
{
	static char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 128);

	path[n < 0 ? 0 : n] = 0;
	strcpy(strrchr(path, '/') + 1, name);
	return path;
}

static int where(void *h)
{
	int *p = h ? dlsym(h, "where") : NULL;

	return p ? *p : 0;
}

TEST(beside_one_that_is_loaded)
{
	const char *error;

	EXPECT_EQ(dlopen("libnvsecond.so.1", RTLD_NOW), NULL);
	error = dlerror();
	ASSERT_TRUE(error);
	EXPECT_TRUE(strstr(error, "libnvsecond.so.1"));
	ASSERT_TRUE(dlopen(place("nvidia/first/lib/libcufirst.so.1"), RTLD_NOW));
	EXPECT_EQ(where(dlopen("libnvsecond.so.1", RTLD_NOW)), 1);
	EXPECT_EQ(dlerror(), NULL);
	EXPECT_EQ(dlopen("libnvthird.so.1", RTLD_NOW), NULL);
	EXPECT_TRUE(dlerror());
}

TEST(not_another_than_the_users)
{
	setenv("LD_LIBRARY_PATH", place("elsewhere"), 1);	/* the loader has read its own before */
	ASSERT_TRUE(dlopen(place("nvidia/first/lib/libcufirst.so.1"), RTLD_NOW));
	EXPECT_EQ(dlopen("libnvsecond.so.1", RTLD_NOW), NULL);
	dlerror();
	EXPECT_EQ(where(dlopen(place("elsewhere/libnvsecond.so.1"), RTLD_NOW)), 2);
	unsetenv("LD_LIBRARY_PATH");
	EXPECT_EQ(where(dlopen("libnvsecond.so.1", RTLD_NOW)), 2);
}

TEST_HARNESS_MAIN
