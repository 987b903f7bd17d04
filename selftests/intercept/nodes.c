// SPDX-License-Identifier: Apache-2.0
/*
 * nodes.c - NVIDIA's device nodes, as libsingvgpu-files.so shows them where there are none
 *
 * The program is linked with the library. What really is in /dev is asked past libc.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../harness/leaks.h"

static const char *const names[] = { "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm",
	"nvidia-uvm-tools" };
#define NAMES 5

/* What older programs call. */
int __xstat(int version, const char *path, struct stat *st);
int __xstat64(int version, const char *path, struct stat64 *st);
int __lxstat(int version, const char *path, struct stat *st);
int __lxstat64(int version, const char *path, struct stat64 *st);
int __fxstatat(int version, int dir, const char *path, struct stat *st, int flags);
int __fxstatat64(int version, int dir, const char *path, struct stat64 *st, int flags);

static bool truly_there(const char *path)
{
	return !syscall(SYS_access, path, F_OK);
}

FIXTURE(nodes) {
	int dev;
};

FIXTURE_SETUP(nodes)
{
	for (int i = 0; i < NAMES; i++) {
		char path[64] = "/dev/";

		if (truly_there(strcat(path, names[i])))
			SKIP(return, "this machine has %s", path);
	}
	setenv("SINGVGPU_NODES", "2", 1);
	self->dev = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
	ASSERT_GE(self->dev, 0);
}

FIXTURE_TEARDOWN(nodes)
{
	if (self->dev > 0)
		close(self->dev);
}

TEST_F(nodes, none_without_the_launcher)
{
	struct stat st;

	unsetenv("SINGVGPU_NODES");
	errno = 0;
	EXPECT_EQ(stat("/dev/nvidia0", &st), -1);
	EXPECT_EQ(errno, ENOENT);
	EXPECT_EQ(access("/dev/nvidiactl", F_OK), -1);
	EXPECT_EQ(open("/dev/nvidia0", O_RDWR), -1);
	EXPECT_EQ(errno, ENOENT);
}

TEST_F(nodes, each_has_a_stat)
{
	for (int i = 0; i < NAMES; i++) {
		char path[64] = "/dev/";
		struct stat st;

		memset(&st, 0xa5, sizeof(st));
		ASSERT_EQ(stat(strcat(path, names[i]), &st), 0);
		EXPECT_TRUE(S_ISCHR(st.st_mode));
		EXPECT_EQ(st.st_mode & 0777, 0666);
		EXPECT_EQ(st.st_uid, 0);
		if (i < 2)
			EXPECT_EQ(st.st_rdev, makedev(195, i));
	}
}

TEST_F(nodes, by_every_function)
{
	struct stat64 st64;
	struct statx stx;
	struct stat st;

	EXPECT_EQ(lstat("/dev/nvidia1", &st), 0);
	EXPECT_EQ(stat64("/dev/nvidia1", &st64), 0);
	EXPECT_EQ(lstat64("/dev/nvidia1", &st64), 0);
	EXPECT_EQ(st64.st_rdev, makedev(195, 1));
	EXPECT_EQ(fstatat(self->dev, "nvidia1", &st, 0), 0);
	EXPECT_EQ(fstatat64(AT_FDCWD, "/dev/nvidia1", &st64, AT_SYMLINK_NOFOLLOW), 0);
	memset(&stx, 0xa5, sizeof(stx));
	EXPECT_EQ(statx(self->dev, "nvidia1", 0, STATX_BASIC_STATS, &stx), 0);
	EXPECT_TRUE(S_ISCHR(stx.stx_mode));
	EXPECT_EQ(stx.stx_rdev_major, 195);
	EXPECT_EQ(stx.stx_rdev_minor, 1);
	EXPECT_EQ(stx.stx_mask & STATX_BASIC_STATS, STATX_BASIC_STATS);
	EXPECT_EQ(__xstat(1, "/dev/nvidia1", &st), 0);
	EXPECT_EQ(__xstat64(1, "/dev/nvidia1", &st64), 0);
	EXPECT_EQ(__lxstat(1, "/dev/nvidia1", &st), 0);
	EXPECT_EQ(__lxstat64(1, "/dev/nvidia1", &st64), 0);
	EXPECT_EQ(__fxstatat(1, self->dev, "nvidia1", &st, 0), 0);
	EXPECT_EQ(__fxstatat64(1, self->dev, "nvidia1", &st64, 0), 0);
	EXPECT_EQ(access("/dev/nvidia1", R_OK | W_OK), 0);
	EXPECT_EQ(access("/dev/nvidia1", X_OK), -1);
	EXPECT_EQ(errno, EACCES);
	EXPECT_EQ(eaccess("/dev/nvidia1", F_OK), 0);
	EXPECT_EQ(euidaccess("/dev/nvidia1", F_OK), 0);
	EXPECT_EQ(faccessat(self->dev, "nvidia1", R_OK, 0), 0);
	EXPECT_EQ(getxattr("/dev/nvidia1", "user.x", NULL, 0), -1);
	EXPECT_EQ(errno, ENODATA);
	EXPECT_EQ(lgetxattr("/dev/nvidia1", "user.x", NULL, 0), -1);
	EXPECT_EQ(errno, ENODATA);
	EXPECT_EQ(listxattr("/dev/nvidia1", NULL, 0), 0);
	EXPECT_EQ(llistxattr("/dev/nvidia1", NULL, 0), 0);
}

/* A path's form does not matter, its folder does. */
TEST_F(nodes, only_in_dev)
{
	static const char *const other[] = { "/tmp/nvidia0", "/dev/shm/nvidia0", "/dev/nvidia2",
		"/dev/nvidia", "/dev/nvidia00", "/dev/nvidia0/", "/dev/nvidia0/x", "/nosuch/nvidia0",
		"nvidia0", "" };
	struct stat st;

	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
		errno = 0;
		EXPECT_EQ(stat(other[i], &st), -1);
		EXPECT_EQ(errno, ENOENT);
	}
	EXPECT_EQ(stat("/dev//./nvidia0", &st), 0);
	EXPECT_EQ(stat("/proc/../dev/nvidia0", &st), 0);
	ASSERT_EQ(chdir("/dev"), 0);
	EXPECT_EQ(stat("nvidia0", &st), 0);
	EXPECT_EQ(stat("./nvidia0", &st), 0);
	EXPECT_EQ(stat("shm/../nvidia0", &st), 0);
}

TEST_F(nodes, cannot_be_opened)
{
	FILE *f;

	EXPECT_EQ(open("/dev/nvidia0", O_RDWR), -1);
	EXPECT_EQ(errno, ENXIO);
	EXPECT_EQ(open64("/dev/nvidiactl", O_RDONLY), -1);
	EXPECT_EQ(errno, ENXIO);
	EXPECT_EQ(openat(self->dev, "nvidia-uvm", O_RDWR), -1);
	EXPECT_EQ(errno, ENXIO);
	f = fopen("/dev/nvidia0", "r");
	EXPECT_EQ(f, NULL);
	EXPECT_EQ(errno, ENXIO);
	EXPECT_EQ(open("/dev/nvidia2", O_RDWR), -1);
	EXPECT_EQ(errno, ENOENT);
	EXPECT_FALSE(truly_there("/dev/nvidia0"));
}

static int list(DIR *d)
{
	int found = 0, end;
	struct dirent *e;

	for (;;) {
		errno = 77;
		e = readdir(d);
		end = errno;
		if (!e)
			break;
		for (int i = 0; i < NAMES; i++)
			if (!strcmp(e->d_name, names[i]))
				found += e->d_type == DT_CHR ? 1 : 100;
	}
	return end == 77 ? found : -1;
}

TEST_F(nodes, are_listed)
{
	DIR *d = opendir("/dev");

	ASSERT_TRUE(d);
	EXPECT_EQ(list(d), NAMES);
	EXPECT_EQ(list(d), 0);
	rewinddir(d);
	EXPECT_EQ(list(d), NAMES);
	closedir(d);
	d = opendir("/");
	ASSERT_TRUE(d);
	EXPECT_EQ(list(d), 0);
	closedir(d);
	d = fdopendir(open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	ASSERT_TRUE(d);
	EXPECT_EQ(list(d), NAMES);
	closedir(d);
	for (int i = 0; i < 100 && _metadata->exit_code == KSFT_PASS; i++) {		/* no entry is lost */
		d = opendir("/dev/.");
		ASSERT_TRUE(d);
		EXPECT_EQ(list(d), NAMES);
		closedir(d);
	}
}

TEST_F(nodes, are_listed_and_globbed_by_the_larger_forms)
{
	DIR *d = opendir("/dev");
	struct dirent64 *e;
	glob64_t g;
	int found = 0;

	ASSERT_TRUE(d);
	while ((e = readdir64(d)))
		found += !strncmp(e->d_name, "nvidia", 6);
	EXPECT_EQ(found, NAMES);
	closedir(d);
	ASSERT_EQ(glob64("/dev/nvidia*", 0, NULL, &g), 0);
	EXPECT_EQ(g.gl_pathc, NAMES);
	globfree64(&g);
}

TEST_F(nodes, are_globbed)
{
	glob_t g;

	ASSERT_EQ(glob("/dev/nvidia[0-9]*", 0, NULL, &g), 0);
	EXPECT_EQ(g.gl_pathc, 2);
	EXPECT_STREQ(g.gl_pathv[0], "/dev/nvidia0");
	EXPECT_STREQ(g.gl_pathv[1], "/dev/nvidia1");
	ASSERT_EQ(glob("/dev/nvidia*", GLOB_APPEND, NULL, &g), 0);
	EXPECT_EQ(g.gl_pathc, 2 + NAMES);
	EXPECT_EQ(g.gl_pathv[2 + NAMES], NULL);
	globfree(&g);
	ASSERT_EQ(glob("/dev/n[uv]*[l0]", 0, NULL, &g), 0);
	EXPECT_EQ(g.gl_pathc, 3);		/* with null */
	globfree(&g);
	ASSERT_EQ(glob("/dev/nvidia2*", 0, NULL, &g), GLOB_NOMATCH);
	globfree(&g);
	ASSERT_EQ(glob("/de[v]/nvidia0", GLOB_NOCHECK, NULL, &g), 0);
	EXPECT_EQ(g.gl_pathc, 1);
	globfree(&g);
}

TEST_HARNESS_MAIN
