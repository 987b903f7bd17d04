// SPDX-License-Identifier: Apache-2.0
/*
 * memory.c - mappings of every origin, and what a process has asked of the kernel for them
 */
#include <linux/mempolicy.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "kinds.h"

#define SIZE	(1 << 16)

static char *map(int prot, int flags, int fd)
{
	char *p = mmap(NULL, SIZE, prot, flags, fd, 0);

	NEED(p != MAP_FAILED);
	return p;
}

static char *private(void)
{
	char *p = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	strcpy(p, "memory");
	return p;
}

/* The line of /proc/self/smaps that begins with key, of the mapping at p. */
static bool flagged(const void *p, const char *key, const char *want)
{
	char line[512], at[32];
	bool here = false, found = false;
	FILE *in = fopen("/proc/self/smaps", "r");

	snprintf(at, sizeof(at), "%lx-", (unsigned long)p);
	while (in && fgets(line, sizeof(line), in)) {
		unsigned long from, to;

		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = from <= (unsigned long)p && (unsigned long)p < to;
		if (here && !strncmp(line, key, strlen(key)) && strstr(line, want))
			found = true;
	}
	if (in)
		fclose(in);
	return found;
}

static void anonymous(void)
{
	char *p = private();

	stand();
	IS(same(p, "memory") && !p[SIZE - 1]);
}

static void shared_anonymous(void)
{
	char *p = map(PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
	int status;
	pid_t pid = fork();

	NEED(pid >= 0);
	if (!pid) {
		stand();
		strcpy(p, "told");
		_exit(0);
	}
	stand_with(1);
	IS(waitpid(pid, &status, 0) == pid && !status && same(p, "told"));
}

static void shared_zero(void)
{
	char *p = map(PROT_READ | PROT_WRITE, MAP_SHARED, open("/dev/zero", O_RDWR));

	strcpy(p, "shared");
	stand();
	IS(same(p, "shared"));
}

static void shared_memfd(void)
{
	int fd = memfd_create("shared", 0);
	char is[8] = "", *p;

	NEED(!ftruncate(fd, SIZE));
	p = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);
	strcpy(p, "before");
	stand();
	IS(same(p, "before"));
	strcpy(p, "after");
	IS(pread(fd, is, 5, 0) == 5 && same(is, "after"));
}

static int file(void)
{
	int fd = open("f", O_RDWR | O_CREAT | O_TRUNC, 0600);

	NEED(fd >= 0 && !ftruncate(fd, SIZE) && pwrite(fd, "file", 4, 0) == 4);
	return fd;
}

static void file_private(void)
{
	int fd = file();
	char *p = map(PROT_READ | PROT_WRITE, MAP_PRIVATE, fd), is[8] = "";

	close(fd);
	memcpy(p, "mine", 4);
	stand();
	fd = open("f", O_RDONLY);
	IS(same(p, "mine") && pread(fd, is, 4, 0) == 4 && same(is, "file"));
}

static void file_shared(void)
{
	int fd = file();
	char *p = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd), is[8] = "";

	close(fd);
	stand();
	memcpy(p, "ours", 4);
	fd = open("f", O_RDONLY);
	IS(pread(fd, is, 4, 0) == 4 && same(is, "ours"));
}

static void file_unlinked(void)
{
	int fd = file();
	char *p = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);

	close(fd);
	NEED(!unlink("f"));
	stand();
	IS(same(p, "file"));
}

static void locked(void)
{
	char *p = private();

	NEED(!mlock(p, SIZE));
	stand();
	IS(flagged(p, "VmFlags:", " lo"));
}

static void locked_all(void)
{
	NEED(!mlockall(MCL_CURRENT));
	stand();
	IS(flagged(&errno, "VmFlags:", " lo"));
}

static void protected_(void)
{
	char *p = private();

	NEED(!mprotect(p, 4096, PROT_NONE) && !mprotect(p + 4096, 4096, PROT_READ));
	stand();
	IS(write(open("/dev/zero", O_WRONLY), p, 1) >= 0 || errno == EFAULT);
	IS(flagged(p + 8192, "VmFlags:", "wr") && !flagged(p + 4096, "VmFlags:", " wr "));
	IS(!mprotect(p, 4096, PROT_READ) && same(p, "memory"));
}

static void advised(int advice, const char *flag)
{
	char *p = private();

	NEED(!madvise(p, SIZE, advice));
	stand();
	IS(flagged(p, "VmFlags:", flag));
}

static void not_forked(void)
{
	advised(MADV_DONTFORK, " dc");
}

static void not_dumped(void)
{
	advised(MADV_DONTDUMP, " dd");
}

static void wiped(void)
{
	advised(MADV_WIPEONFORK, " wf");
}

static void huge(void)
{
	advised(MADV_HUGEPAGE, " hg");
}

static void merged(void)
{
	advised(MADV_MERGEABLE, " mg");
}

static void huge_pages(void)
{
	char *p = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	NEED(p != MAP_FAILED);
	strcpy(p, "huge");
	stand();
	IS(same(p, "huge") && flagged(p, "VmFlags:", " ht"));
}

static void grows_down(void)
{
	char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0);

	NEED(p != MAP_FAILED);
	strcpy(p, "down");
	stand();
	IS(same(p, "down") && flagged(p, "VmFlags:", " gd"));
}

static void moved(void)
{
	char *p = private(), *q;

	q = mremap(p, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
	NEED(q != MAP_FAILED);
	stand();
	IS(same(q, "memory") && !q[2 * SIZE - 1]);
}

static void break_(void)
{
	char *p = sbrk(SIZE), *was;

	NEED(p != (void *)-1);
	strcpy(p, "break");
	was = sbrk(0);
	stand();
	IS((char *)sbrk(0) >= was && same(p, "break") && !brk(was + SIZE) && !was[SIZE - 1]);
}

static void named(void)
{
	char *p = private();

	NEED(!prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, p, SIZE, "kinds"));
	stand();
	IS(flagged(p, "7", "[anon:kinds]"));
}

static void key(void)
{
	int k = pkey_alloc(0, 0);
	char *p = private();

	NEED(k > 0 && !pkey_mprotect(p, SIZE, PROT_READ | PROT_WRITE, k));
	stand();
	IS(same(p, "memory") && flagged(p, "ProtectionKey:", " 1"));
}

static void guards(void)
{
	char *p = private();

	NEED(!madvise(p + 8192, 4096, 102));	/* MADV_GUARD_INSTALL */
	stand();
	IS(same(p, "memory") && write(open("/dev/null", O_WRONLY), p, 1) == 1);
	IS(pwrite(file(), p + 8192, 1, 0) < 0 && errno == EFAULT);
}

static void sealed(void)
{
	char *p = private();

	NEED(!syscall(462, p, SIZE, 0));	/* mseal */
	stand();
	IS(same(p, "memory") && munmap(p, SIZE) && errno == EPERM);
}

static void policy(void)
{
	unsigned long mask = 1, is = 0;
	int mode = -1;

	NEED(!syscall(SYS_set_mempolicy, MPOL_BIND, &mask, 64));
	stand();
	IS(!syscall(SYS_get_mempolicy, &mode, &is, 64, 0, 0) && mode == MPOL_BIND && is == 1);
}

static void policy_of_range(void)
{
	char *p = private();
	unsigned long mask = 1, is = 0;
	int mode = -1;

	NEED(!syscall(SYS_mbind, p, SIZE, MPOL_BIND, &mask, 64, 0));
	stand();
	IS(!syscall(SYS_get_mempolicy, &mode, &is, 64, p, MPOL_F_ADDR) && mode == MPOL_BIND && is == 1);
}

static void limits(void)
{
	struct rlimit l = { 123, 456 }, is;

	NEED(!setrlimit(RLIMIT_NOFILE, &l));
	stand();
	IS(!getrlimit(RLIMIT_NOFILE, &is) && is.rlim_cur == 123 && is.rlim_max == 456);
}

static void no_huge(void)
{
	NEED(!prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	stand();
	IS(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1);
}

static void asynchronous(void)
{
	unsigned long ring = 0;
	char events[64];
	struct timespec { long s, ns; } none = { 0, 0 };

	NEED(!syscall(SYS_io_setup, 8, &ring));
	stand();
	IS(!syscall(SYS_io_getevents, ring, 0, 1, events, &none));
}

/* A child runs a program that is in no file system. */
static void program_in_memfd(void)
{
	char *argv[] = { "sleep", "1000", NULL }, *env[] = { NULL }, text[65536];
	int fd = memfd_create("program", 0), from = open("/bin/sleep", O_RDONLY), status;
	ssize_t n;
	pid_t pid;

	while ((n = read(from, text, sizeof(text))) > 0)
		NEED(write(fd, text, n) == n);
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		fexecve(fd, argv, env);
		_exit(1);
	}
	usleep(100000);
	NEED(!waitpid(pid, &status, WNOHANG));
	stand();
	IS(!waitpid(pid, &status, WNOHANG) && !kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
}

static const struct kind kinds[] = {
	{ "memory-private", anonymous, false }, { "memory-shared", shared_anonymous, false },
	{ "memory-dev-zero", shared_zero, false }, { "memory-memfd", shared_memfd, false },
	{ "mapped-private", file_private, false }, { "mapped-shared", file_shared, false },
	{ "mapped-unlinked", file_unlinked, false }, { "mlock", locked, false }, { "mlockall", locked_all, false },
	{ "mprotect", protected_, false }, { "madvise-dontfork", not_forked, false },
	{ "madvise-dontdump", not_dumped, false }, { "madvise-wipeonfork", wiped, false },
	{ "madvise-hugepage", huge, false }, { "madvise-mergeable", merged, false },
	{ "huge-pages", huge_pages, true }, { "grows-down", grows_down, false }, { "mremap", moved, false },
	{ "break", break_, false }, { "memory-name", named, true }, { "protection-key", key, true },
	{ "guard-pages", guards, true }, { "mseal", sealed, true }, { "memory-policy", policy, false },
	{ "memory-policy-range", policy_of_range, false }, { "limits", limits, false },
	{ "no-huge-pages", no_huge, false }, { "program-in-memfd", program_in_memfd, true }, { "aio", asynchronous, false }, { 0 }
};

const struct family memory_family = { "memory", kinds };
