// SPDX-License-Identifier: Apache-2.0
/*
 * files_random.c - changes files below the working folder at random: SEED COUNT [old]
 *
 * Names are few, so that operations collide. Files in old/ are included only with `old`. Operations
 * may fail because a name is missing or exists already; a fifo must not block the program.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static uint64_t state;

static unsigned int rnd(unsigned int n)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (state >> 33) % n;
}

static const char *folder(int old)
{
	static char buf[4][64];
	static int turn;
	char *s = buf[turn = (turn + 1) % 4];

	switch (rnd(old ? 5 : 4)) {
	case 0:
		sprintf(s, ".");
		break;
	case 1:
		sprintf(s, "d%u", rnd(4));
		break;
	case 2:
		sprintf(s, "d%u/e%u", rnd(4), rnd(2));
		break;
	case 3:
		sprintf(s, "l%u", rnd(2));	/* perhaps a link to a folder */
		break;
	default:
		sprintf(s, "old/%u", rnd(3));
	}
	return s;
}

static const char *path(int old)
{
	static char buf[4][128];
	static int turn;
	char *s = buf[turn = (turn + 1) % 4];

	sprintf(s, "%s/f%u", folder(old), rnd(6));
	return s;
}

static void put(int fd)
{
	static char data[70000];
	size_t n = rnd(4) ? rnd(3000) : rnd(sizeof(data));
	off_t at = rnd(5) ? 0 : rnd(1 << 20);

	if (fd < 0)
		return;
	for (size_t i = 0; i < n; i += 64)
		data[i] = rnd(256);
	if (rnd(3) ? pwrite(fd, data, n, at) : write(fd, data, n))
		at = 0;
	if (!rnd(5) && ftruncate(fd, rnd(300000)))
		at = 0;
	if (!rnd(8) && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192))
		at = 0;
	close(fd);
}

static void map(int fd)
{
	char *p;

	if (fd < 0)
		return;
	if (!ftruncate(fd, 20000)) {
		p = mmap(NULL, 20000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		p[rnd(20000)] = rnd(256);
		munmap(p, 20000);
	}
	close(fd);
}

static int meta(int old)
{
	struct timespec t[2] = { { rnd(1u << 30), rnd(1000000000) },
				 { rnd(1u << 30), rnd(1000000000) } };
	char v[8] = "abc";

	switch (rnd(4)) {
	case 0:
		return chmod(path(old), 0600 | rnd(0177));
	case 1:
		return utimensat(AT_FDCWD, rnd(4) ? path(old) : folder(old), t, AT_SYMLINK_NOFOLLOW);
	case 2:
		v[0] = rnd(26) + 'a';
		return setxattr(path(old), rnd(2) ? "user.a" : "user.b", v, rnd(4), 0);
	}
	return truncate(path(old), rnd(100000));
}

static int change(int old)
{
	char command[64], text[32];
	const char *name;
	struct stat st;
	FILE *f;

	switch (rnd(16)) {
	case 0:
	case 1:
		put(open(path(old), O_CREAT | O_WRONLY | O_TRUNC | O_NONBLOCK, 0644));
		break;
	case 2:
		put(open(path(old), O_CREAT | O_WRONLY | O_APPEND | O_NONBLOCK, 0640));
		break;
	case 3:
		put(open(path(old), O_RDWR | O_NONBLOCK));
		break;
	case 4:
		map(open(path(old), O_CREAT | O_RDWR | O_NONBLOCK, 0600));
		break;
	case 5:
		return unlink(path(old));
	case 6:
		return rename(path(old), path(old));
	case 7:
		return rnd(3) ? rename(path(old), path(old)) : rename(folder(0), folder(0));
	case 8:
	case 9:
		return mkdir(folder(0), 0755);
	case 10:
		sprintf(text, "d%u", rnd(4));
		return rnd(2) ? symlink(text, folder(0)) : symlink("f1", path(old));
	case 11:
		return link(path(old), path(old));
	case 12:
		return rnd(4) ? meta(old) : mkfifo(path(old), 0600);
	case 13:
		name = path(old);
		f = !stat(name, &st) && S_ISFIFO(st.st_mode) ? NULL : fopen(name, rnd(2) ? "a" : "w+");
		if (f) {
			fprintf(f, "line %u\n", rnd(1000));
			fclose(f);
		}
		break;
	case 14:
		return rnd(4) ? rmdir(folder(0)) : unlink(folder(0));
	default:
		if (rnd(8))
			return meta(old);
		snprintf(command, sizeof(command), rnd(2) ? "rm -rf d%u" : "cp -a d%u d9 2>/dev/null",
			 rnd(4));
		return system(command);
	}
	return 0;
}

int main(int argc, char **argv)
{
	int old = argc > 3 && !strcmp(argv[3], "old");

	if (argc < 3)
		return 2;
	state = strtoull(argv[1], NULL, 10) * 77 + 1;
	for (int i = atoi(argv[2]); i--;)
		(void)!change(old);
	return 0;
}
