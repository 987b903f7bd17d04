// SPDX-License-Identifier: Apache-2.0
/*
 * files_each.c - changes files in the working folder by each function of libc that can, each on its
 * own file name; on request also in threads and children. Exit status 1: one of them failed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

int __open(const char *path, int flags, ...);
int __open64(const char *path, int flags, ...);
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);

static int failed;
static char prefix[64];		/* before each name: "" or "FOLDER/" */

static const char *name(const char *what)
{
	static __thread char buf[8][512];
	static __thread int turn;

	turn = (turn + 1) % 8;
	snprintf(buf[turn], sizeof(buf[turn]), "%s%s", prefix, what);
	return buf[turn];
}
#define N(what) name(what)

static void check(int ok, const char *what)
{
	if (!ok) {
		printf("# %s: %m\n", what);
		failed = 1;
	}
}
#define CHECK(call) check((call) >= 0, #call)
#define CHECKP(call) check((call) != NULL, #call)

static int put(int fd)
{
	int ret = fd < 0 || write(fd, "text\n", 5) != 5 ? -1 : 0;

	if (fd >= 0)
		close(fd);
	return ret;
}
#define PUT(call) check(!put(call), #call)

static int fput(FILE *f)
{
	return !f || fputs("text\n", f) < 0 || fclose(f) ? -1 : 0;
}

static const char *made(const char *what)
{
	int fd = open(N(what), O_CREAT | O_WRONLY, 0644);

	CHECK(write(fd, "old\n", 4));
	close(fd);
	return N(what);
}

static void opens(int dir)
{
	PUT(open(N("open"), O_CREAT | O_WRONLY, 0644));
	PUT(open64(N("open64"), O_CREAT | O_RDWR | O_EXCL, 0644));
	PUT(__open(N("open__"), O_CREAT | O_WRONLY, 0644));
	PUT(__open64(N("open64__"), O_CREAT | O_WRONLY, 0644));
	PUT(__open_2(made("open_2"), O_WRONLY));
	PUT(__open64_2(made("open64_2"), O_WRONLY | O_APPEND));
	PUT(creat(N("creat"), 0644));
	PUT(creat64(N("creat64"), 0644));
	PUT(openat(dir, "openat", O_CREAT | O_WRONLY, 0644));
	PUT(openat64(dir, "openat64", O_CREAT | O_WRONLY, 0644));
	made("openat_2");
	PUT(__openat_2(dir, "openat_2", O_WRONLY));
	made("openat64_2");
	PUT(__openat64_2(dir, "openat64_2", O_WRONLY | O_TRUNC));
	PUT(openat(dir, "openat_self", O_CREAT | O_RDWR, 0644));
	CHECK(close(open(N("only_made"), O_CREAT | O_RDONLY, 0644)));
	PUT(syscall(SYS_open, N("sys_open"), O_CREAT | O_WRONLY, 0644));
	PUT(syscall(SYS_openat, dir, "sys_openat", O_CREAT | O_WRONLY, 0644));
	PUT(syscall(SYS_creat, N("sys_creat"), 0644));
	PUT(syscall(SYS_openat2, dir, "sys_openat2",
		    &(struct open_how){ .flags = O_CREAT | O_WRONLY, .mode = 0644 },
		    sizeof(struct open_how)));
}

/* A handle, a link, /proc, no name at first, holes, a mapping, from file to file. */
static void odd_opens(int dir)
{
	struct { struct file_handle h; char room[128]; } h = { .h.handle_bytes = 128 };
	char proc[64];
	int fd, fd2, mount;
	char *map;

	made("by_handle");
	fd = open(".", O_RDONLY | O_DIRECTORY);
	if (!name_to_handle_at(dir, "by_handle", &h.h, &mount, 0) &&
	    (fd2 = open_by_handle_at(fd, &h.h, O_WRONLY)) >= 0)
		PUT(fd2);
	close(fd);
	CHECK(symlink("behind_link", N("a_link")));
	PUT(open(N("a_link"), O_CREAT | O_WRONLY, 0644));
	fd = open(made("by_proc"), O_RDONLY);
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
	PUT(open(proc, O_WRONLY));
	close(fd);
	fd = openat(dir, ".", O_TMPFILE | O_RDWR, 0644);
	CHECK(write(fd, "x", 1));
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
	CHECK(linkat(AT_FDCWD, proc, dir, "was_tmpfile", AT_SYMLINK_FOLLOW));
	close(fd);
	fd = open(N("mapped"), O_CREAT | O_RDWR, 0644);
	CHECK(ftruncate(fd, 65536));
	map = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	CHECK(map == MAP_FAILED ? -1 : 0);
	map[40000] = 1;
	munmap(map, 65536);
	fd = open(made("copied_from"), O_RDONLY);
	fd2 = open(N("copied_to"), O_CREAT | O_WRONLY, 0644);
	CHECK(copy_file_range(fd, NULL, fd2, NULL, 4, 0));
	CHECK(lseek(fd, 0, SEEK_SET));
	CHECK(sendfile(fd2, fd, NULL, 4));
	CHECK(-posix_fallocate(fd2, 0, 8192));
	close(fd);
	close(fd2);
}

static void stdio(void)
{
	FILE *f;

	CHECK(fput(fopen(N("fopen"), "w")));
	CHECK(fput(fopen64(N("fopen64"), "a+e")));
	CHECK(fput(fopen(made("fopen_r"), "rb+")));
	f = fopen(made("freopen_was"), "r");
	CHECK(fput(freopen(N("freopen"), "w", f)));
	f = fopen(made("freopen64_was"), "r");
	CHECK(fput(freopen64(N("freopen64"), "a", f)));
	f = fopen(made("freopen_null"), "r");
	CHECK(fput(freopen(NULL, "r+", f)));
}

static void temporary(void)
{
	char t[9][600];

	for (int i = 0; i < 8; i++)
		snprintf(t[i], sizeof(t[i]), "%stmp%d_XXXXXX%s", prefix, i,
			 i == 2 || i == 3 || i == 6 || i == 7 ? ".c" : "");
	PUT(mkstemp(t[0]));
	PUT(mkostemp(t[1], O_APPEND));
	PUT(mkstemps(t[2], 2));
	PUT(mkostemps(t[3], 2, O_CLOEXEC));
	PUT(mkstemp64(t[4]));
	PUT(mkostemp64(t[5], O_APPEND));
	PUT(mkstemps64(t[6], 2));
	PUT(mkostemps64(t[7], 2, O_CLOEXEC));
	snprintf(t[8], sizeof(t[8]), "%sdir_XXXXXX", prefix);
	CHECKP(mkdtemp(t[8]));
	strcat(t[8], "/inside");
	PUT(open(t[8], O_CREAT | O_WRONLY, 0600));
}

static void names(int dir)
{
	CHECK(rename(made("rename_1"), N("rename_2")));
	made("renameat_1");
	CHECK(renameat(dir, "renameat_1", dir, "renameat_2"));
	made("renameat2_1");
	made("renameat2_2");
	CHECK(renameat2(dir, "renameat2_1", dir, "renameat2_2", RENAME_EXCHANGE));
	CHECK(unlink(made("unlink")));
	made("unlinkat");
	CHECK(unlinkat(dir, "unlinkat", 0));
	CHECK(remove(made("remove")));
	CHECK(mkdir(N("mkdir"), 0755));
	CHECK(mkdirat(dir, "mkdirat", 0755));
	CHECK(mkdir(N("rmdir/"), 0755));
	CHECK(rmdir(N("rmdir/")));
	CHECK(mkdir(N("unlinkat_dir"), 0755));
	CHECK(unlinkat(dir, "unlinkat_dir", AT_REMOVEDIR));
	CHECK(mkdir(N("remove_dir"), 0755));
	CHECK(remove(N("remove_dir")));
	CHECK(mkdir(N("tree_1"), 0755));
	made("tree_1/inside");
	CHECK(rename(N("tree_1"), N("tree_2")));
	PUT(open(N("tree_2/inside"), O_WRONLY));
	CHECK(link(made("link_1"), N("link_2")));
	made("linkat_1");
	CHECK(linkat(dir, "linkat_1", dir, "linkat_2", 0));
	CHECK(symlink("nowhere", N("symlink")));
	CHECK(symlinkat("nowhere", dir, "symlinkat"));
	CHECK(mkfifo(N("mkfifo"), 0600));
	CHECK(mkfifoat(dir, "mkfifoat", 0600));
	CHECK(mknod(N("mknod"), S_IFREG | 0600, 0));
	CHECK(mknodat(dir, "mknodat", S_IFIFO | 0600, 0));
}

static void sys_names(int dir)
{
	CHECK(syscall(SYS_rename, made("sys_rename_1"), N("sys_rename_2")));
	made("sys_renameat_1");
	CHECK(syscall(SYS_renameat, dir, "sys_renameat_1", dir, "sys_renameat_2"));
	made("sys_renameat2_1");
	CHECK(syscall(SYS_renameat2, dir, "sys_renameat2_1", dir, "sys_renameat2_2", 0));
	CHECK(syscall(SYS_unlink, made("sys_unlink")));
	made("sys_unlinkat");
	CHECK(syscall(SYS_unlinkat, dir, "sys_unlinkat", 0));
	CHECK(syscall(SYS_mkdir, N("sys_mkdir"), 0755));
	CHECK(syscall(SYS_mkdirat, dir, "sys_mkdirat", 0755));
	CHECK(syscall(SYS_rmdir, N("sys_mkdir")));
	CHECK(syscall(SYS_link, made("sys_link_1"), N("sys_link_2")));
	CHECK(syscall(SYS_linkat, dir, "sys_link_1", dir, "sys_link_3", 0));
	CHECK(syscall(SYS_symlink, "nowhere", N("sys_symlink")));
	CHECK(syscall(SYS_symlinkat, "nowhere", dir, "sys_symlinkat"));
	CHECK(syscall(SYS_mknod, N("sys_mknod"), S_IFREG | 0600, 0));
	CHECK(syscall(SYS_mknodat, dir, "sys_mknodat", S_IFREG | 0600, 0));
	CHECK(syscall(SYS_truncate, made("sys_truncate"), 1L));
	CHECK(syscall(SYS_chmod, N("sys_mknod"), 0644));
}

/* On files that another program has made before: nothing else than these calls touches them. */
static void before(const char *what)
{
	int fd = open(N(what), O_RDONLY);

	check(fd >= 0, what);
	close(fd);
}

static const char *old_name(const char *what)
{
	before(what);
	return N(what);
}

static void meta(int dir)
{
	struct timespec ts[2] = { { 1000, 1 }, { 2000, 2 } };
	struct timeval tv[2] = { { 1000, 1 }, { 2000, 2 } };
	struct utimbuf ut = { 1000, 2000 };
	int fd = open(N("old_by_fd"), O_RDONLY), fd2 = open(N("old_by_fd_2"), O_RDONLY);

	CHECK(truncate(old_name("old_truncate"), 3));
	CHECK(truncate64(old_name("old_truncate64"), 3));
	CHECK(chmod(old_name("old_chmod"), 0600));
	CHECK(fchmodat(dir, "old_fchmodat", 0600, 0));
	CHECK(fchmod(fd, 0600));
	CHECK(chown(old_name("old_chown"), getuid(), getgid()));
	CHECK(lchown(old_name("old_lchown"), getuid(), getgid()));
	CHECK(fchown(fd2, getuid(), getgid()));
	CHECK(fchownat(dir, "old_fchownat", getuid(), getgid(), 0));
	CHECK(utime(old_name("old_utime"), &ut));
	CHECK(utimes(old_name("old_utimes"), tv));
	CHECK(lutimes(old_name("old_lutimes"), tv));
	CHECK(futimes(fd, tv));
	CHECK(futimesat(dir, "old_futimesat", tv));
	CHECK(utimensat(dir, "old_utimensat", ts, 0));
	CHECK(futimens(fd2, ts));
	lchmod(old_name("old_lchmod"), 0600);
	/* Not every file system has these. */
	setxattr(old_name("old_setxattr"), "user.a", "1", 1, 0);
	lsetxattr(old_name("old_lsetxattr"), "user.a", "1", 1, 0);
	fsetxattr(fd, "user.a", "1", 1, 0);
	removexattr(N("old_setxattr"), "user.a");
	lremovexattr(N("old_lsetxattr"), "user.a");
	fremovexattr(fd, "user.a");
	close(fd);
	close(fd2);
}

static void shared_memory(void)
{
	char shm[64], sem[64];
	sem_t *s;
	int fd;

	snprintf(shm, sizeof(shm), "/sv_each_%d", getpid());
	snprintf(sem, sizeof(sem), "/sv_each_s%d", getpid());
	fd = shm_open(shm, O_CREAT | O_RDWR, 0600);
	CHECK(ftruncate(fd, 4096));
	close(fd);
	CHECK(shm_unlink(shm));
	s = sem_open(sem, O_CREAT, 0600, 3);
	check(s != SEM_FAILED && !sem_wait(s), "sem_open");
	sem_close(s);
	CHECK(sem_unlink(sem));
}

/* Symbols that old programs are linked to. */
static void compatible(void)
{
	int (*xmknod)(int, const char *, mode_t, dev_t *) = dlsym(RTLD_DEFAULT, "__xmknod");
	int (*xmknodat)(int, int, const char *, mode_t, dev_t *) =
		dlsym(RTLD_DEFAULT, "__xmknodat");
	dev_t dev = 0;

	if (xmknod)
		CHECK(xmknod(0, N("xmknod"), S_IFREG | 0600, &dev));
	if (xmknodat)
		CHECK(xmknodat(0, AT_FDCWD, N("xmknodat"), S_IFREG | 0600, &dev));
}

static void all(void)
{
	int dir = open(*prefix ? prefix : ".", O_RDONLY | O_DIRECTORY);

	opens(dir);
	odd_opens(dir);
	stdio();
	temporary();
	names(dir);
	sys_names(dir);
	meta(dir);
	shared_memory();
	compatible();
	close(dir);
}

static void *threads_main(void *arg)
{
	char what[64], moved[64];

	for (int i = 0; i < 200; i++) {
		snprintf(what, sizeof(what), "thread%ld_%d", (long)arg, i);
		snprintf(moved, sizeof(moved), "moved%ld_%d", (long)arg, i);
		PUT(open(N(what), O_CREAT | O_WRONLY | O_APPEND, 0644));
		if (i % 3 == 0)
			CHECK(unlink(N(what)));
		if (i % 3 == 1)
			CHECK(rename(N(what), N(moved)));
	}
	return NULL;
}

static void threads(void)
{
	pthread_t t[8];

	for (long i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, threads_main, (void *)i);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
}

/* A fork's child, one of vfork, and what they execute. */
static void children(char *self)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		PUT(open(N("child"), O_CREAT | O_WRONLY, 0644));
		_exit(failed);
	}
	waitpid(pid, &status, 0);
	check(!status, "child");
	pid = vfork();
	if (!pid) {
		int fd = open("vfork_child", O_CREAT | O_WRONLY, 0644);

		dup2(fd, 1);
		execl(self, self, "print", NULL);
		_exit(1);
	}
	waitpid(pid, &status, 0);
	check(!status, "vfork's child");
	check(!system("echo text >system_child; mv system_child system_moved"), "system");
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "print"))
		return write(1, "text\n", 5) != 5;
	if (argc > 1 && !strcmp(argv[1], "folder"))
		strcpy(prefix, "folder/");
	all();
	threads();
	children(argv[0]);
	return failed;
}
