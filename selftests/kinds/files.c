// SPDX-License-Identifier: Apache-2.0
/*
 * files.c - open files: positions, flags, names that are gone, locks, pipes, and what has no name
 */
#include <dirent.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "kinds.h"

static int put(const char *name, const char *text)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);

	NEED(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	return fd;
}

static bool has(const char *name, const char *text)
{
	char is[64] = "";
	int fd = open(name, O_RDONLY);
	ssize_t n = read(fd, is, sizeof(is) - 1);

	close(fd);
	return n == (ssize_t)strlen(text) && same(is, text);
}

static void offset(void)
{
	int fd = put("f", "0123456789");
	char byte;

	NEED(lseek(fd, 4, SEEK_SET) == 4);
	stand();
	IS(read(fd, &byte, 1) == 1 && byte == '4');
}

static void append(void)
{
	int fd;

	close(put("f", "0123"));
	fd = open("f", O_WRONLY | O_APPEND);
	NEED(fd >= 0);
	stand();
	IS(fcntl(fd, F_GETFL) & O_APPEND);
	IS(write(fd, "4", 1) == 1 && has("f", "01234"));
}

static void file_flags(void)
{
	int fd;

	close(put("f", "0"));
	fd = open("f", O_RDONLY | O_NONBLOCK | O_NOATIME | O_CLOEXEC);
	NEED(fd >= 0);
	stand();
	IS((fcntl(fd, F_GETFL) & (O_NONBLOCK | O_NOATIME)) == (O_NONBLOCK | O_NOATIME));
	IS(fcntl(fd, F_GETFD) == FD_CLOEXEC);
}

static void high_number(void)
{
	int fd = put("f", "high");

	NEED(dup2(fd, 900) == 900 && !close(fd));
	stand();
	IS(lseek(900, 0, SEEK_CUR) == 4);
}

static void unlinked(void)
{
	int fd = put("f", "ghost");
	char is[8] = "";
	struct stat st;

	NEED(!unlink("f"));
	stand();
	IS(pread(fd, is, 5, 0) == 5 && same(is, "ghost"));
	IS(!fstat(fd, &st) && !st.st_nlink && access("f", F_OK));
}

static void linked_elsewhere(void)
{
	int fd = put("f", "link");

	NEED(!link("f", "g") && !unlink("f"));
	stand();
	IS(write(fd, "s", 1) == 1 && has("g", "links") && access("f", F_OK));
}

static void renamed(void)
{
	int fd = put("f", "name");

	NEED(!rename("f", "g"));
	stand();
	IS(write(fd, "d", 1) == 1 && has("g", "named"));
}

static void temporary(void)
{
	int fd = open(".", O_TMPFILE | O_RDWR, 0600);
	char is[8] = "";

	NEED(fd >= 0 && write(fd, "none", 4) == 4);
	stand();
	IS(pread(fd, is, 4, 0) == 4 && same(is, "none"));
}

static void sparse(void)
{
	int fd = put("f", "a");
	char is = 1;

	NEED(!ftruncate(fd, 1 << 20) && lseek(fd, 1 << 19, SEEK_SET) == 1 << 19);
	stand();
	IS(read(fd, &is, 1) == 1 && !is && lseek(fd, 0, SEEK_END) == 1 << 20);
}

static void folder(void)
{
	int fd = open(".", O_RDONLY | O_DIRECTORY);

	NEED(fd >= 0);
	close(put("f", "in"));
	stand();
	IS(!faccessat(fd, "f", F_OK, 0));
}

static void folder_position(void)
{
	char names[4096];
	int fd, n;

	for (int i = 0; i < 40; i++) {
		char name[16];

		snprintf(name, sizeof(name), "f%d", i);
		close(put(name, ""));
	}
	fd = open(".", O_RDONLY | O_DIRECTORY);
	NEED(fd >= 0 && syscall(SYS_getdents64, fd, names, 400) > 0);
	stand();
	for (n = 0; syscall(SYS_getdents64, fd, names, 100) > 0; n++)
		;
	IS(n > 1 && n < 40);
}

static void removed_folder(void)
{
	int fd;

	NEED(!mkdir("d", 0700));
	fd = open("d", O_RDONLY | O_DIRECTORY);
	NEED(fd >= 0 && !rmdir("d"));
	stand();
	IS(faccessat(fd, "f", F_OK, 0) && errno == ENOENT && access("d", F_OK));
}

static void path_only(void)
{
	struct stat st;
	int fd;

	close(put("f", "path"));
	fd = open("f", O_PATH);
	NEED(fd >= 0);
	stand();
	IS(fcntl(fd, F_GETFL) & O_PATH && !fstat(fd, &st) && st.st_size == 4);
}

static void working_folder(void)
{
	char was[PATH_MAX], is[PATH_MAX];

	NEED(!mkdir("d", 0700) && !chdir("d") && getcwd(was, sizeof(was)));
	stand();
	IS(getcwd(is, sizeof(is)) && !strcmp(was, is));
}

static void removed_working_folder(void)
{
	char is[PATH_MAX];

	NEED(!mkdir("d", 0700) && !chdir("d") && !rmdir("../d"));
	stand();
	IS(!getcwd(is, sizeof(is)) && errno == ENOENT);
}

static void root_folder(void)
{
	NEED(!mkdir("d", 0700) && !chroot("d"));
	close(put("/f", "inside"));
	stand();
	IS(has("/f", "inside") && access("/proc", F_OK));
}

static void mask(void)
{
	umask(0357);
	stand();
	IS(umask(0) == 0357);
}

static int shared_fd;

static void read_one(void)
{
	char byte;

	stand();
	IS(read(shared_fd, &byte, 1) == 1);
}

static void shared_position(void)
{
	int status;
	char byte;
	pid_t pid;

	shared_fd = put("f", "0123456789");
	NEED(lseek(shared_fd, 3, SEEK_SET) == 3);
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		read_one();
		_exit(0);
	}
	stand_with(1);
	IS(waitpid(pid, &status, 0) == pid && !status);
	IS(read(shared_fd, &byte, 1) == 1 && byte == '4');
}

static void shared_table(void)
{
	pid_t pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
	int status;

	NEED(pid >= 0);
	if (!pid) {
		stand();
		IS(open("f", O_RDWR | O_CREAT, 0600) >= 0 && dup2(2, 77) == 77);
		_exit(0);
	}
	stand_with(1);
	IS(waitpid(pid, &status, 0) == pid && !status && fcntl(77, F_GETFD) >= 0);
}

/* Tries from another process whether the lock holds. */
static bool locked(bool whole)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		struct flock l = { .l_type = F_WRLCK, .l_len = 1 };
		int fd = open("f", O_RDWR);

		_exit(fd < 0 || !(whole ? flock(fd, LOCK_EX | LOCK_NB) : fcntl(fd, F_SETLK, &l)));
	}
	return waitpid(pid, &status, 0) == pid && !status;
}

static void lock_whole(void)
{
	NEED(!flock(put("f", "lock"), LOCK_EX));
	stand();
	IS(locked(true));
}

static void lock_record(void)
{
	struct flock l = { .l_type = F_WRLCK, .l_len = 1 };

	NEED(!fcntl(put("f", "lock"), F_SETLK, &l));
	stand();
	IS(locked(false));
}

static void lock_open_file(void)
{
	struct flock l = { .l_type = F_WRLCK, .l_len = 1 };

	NEED(!fcntl(put("f", "lock"), F_OFD_SETLK, &l));
	stand();
	IS(locked(false));
}

static void lease(void)
{
	int fd;

	close(put("f", "lease"));
	fd = open("f", O_RDONLY);
	NEED(fd >= 0 && !fcntl(fd, F_SETLEASE, F_RDLCK));
	stand();
	IS(fcntl(fd, F_GETLEASE) == F_RDLCK);
}

static void device_nodes(void)
{
	int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDONLY), any = open("/dev/urandom", O_RDONLY);
	char byte = 1;

	NEED(null >= 0 && zero >= 0 && any >= 0);
	stand();
	IS(write(null, "x", 1) == 1 && read(zero, &byte, 1) == 1 && !byte && read(any, &byte, 1) == 1);
}

static void proc_own(void)
{
	int fd = open("/proc/self/stat", O_RDONLY);
	char is[256] = "";

	NEED(fd >= 0 && read(fd, is, 3) == 3);
	stand();
	IS(lseek(fd, 0, SEEK_CUR) == 3 && pread(fd, is, sizeof(is) - 1, 0) > 0 && strstr(is, "(kinds"));
}

static void proc_own_folder(void)
{
	int fd = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
	char is[PATH_MAX], name[12];

	NEED(fd >= 0);
	stand();
	snprintf(name, sizeof(name), "%d", fd);
	IS(readlinkat(fd, name, is, sizeof(is)) > 6 && same(is, "/proc/"));
}

static void proc_own_task(void)
{
	int fd = open("/proc/thread-self/comm", O_RDWR);
	char is[16] = "";

	NEED(fd >= 0);
	stand();
	IS(pread(fd, is, sizeof(is), 0) > 0 && same(is, "kinds"));
	IS(write(fd, "other", 5) == 5 && pread(fd, is, sizeof(is), 0) > 0 && same(is, "other"));
}

static void proc_own_inherited(void)
{
	int fd = open("/proc/self/comm", O_RDWR), status;
	char is[16] = "";
	pid_t pid;

	NEED(fd >= 0 && write(fd, "parent", 6) == 6);
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		NEED(syscall(SYS_prctl, 15, "offspring", 0, 0, 0) == 0);
		stand();
		IS(pread(fd, is, sizeof(is), 0) > 0 && same(is, "parent"));
		_exit(0);
	}
	stand_with(1);
	IS(waitpid(pid, &status, 0) == pid && !status);
}

static void proc_of_child(void)
{
	pid_t pid = child(NULL);
	char path[PATH_MAX], is[64];
	int fd = -1;

	/* A job's /proc shows the pids of the host. */
	snprintf(path, sizeof(path), "/proc/thread-self/children");
	shared_fd = open(path, O_RDONLY);
	NEED(shared_fd >= 0 && read(shared_fd, is, sizeof(is)) > 0);
	close(shared_fd);
	snprintf(path, sizeof(path), "/proc/%d/stat", atoi(is));
	fd = open(path, O_RDONLY);
	NEED(fd >= 0);
	stand();
	IS(pread(fd, is, sizeof(is), 0) > 0 && !kill(pid, 0));
}

static void proc_of_all(void)
{
	int fd = open("/proc/meminfo", O_RDONLY);
	char is[16] = "";

	NEED(fd >= 0);
	stand();
	IS(pread(fd, is, 8, 0) == 8 && same(is, "MemTotal"));
}

static void sys_file(void)
{
	int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY);
	char is[16] = "";

	NEED(fd >= 0);
	stand();
	IS(pread(fd, is, 8, 0) > 4);
}

static void fifo(void)
{
	char is[8] = "";
	int fd;

	NEED(!mkfifo("p", 0600));
	fd = open("p", O_RDWR);
	NEED(fd >= 0 && write(fd, "queued", 6) == 6);
	stand();
	IS(read(fd, is, 6) == 6 && same(is, "queued"));
}

static void pipe_data(void)
{
	char is[8] = "";
	int p[2];

	NEED(!pipe(p) && write(p[1], "queued", 6) == 6);
	stand();
	IS(read(p[0], is, sizeof(is)) == 6 && same(is, "queued"));
}

static void pipe_packets(void)
{
	char is[8] = "";
	int p[2];

	NEED(!pipe2(p, O_DIRECT) && write(p[1], "one", 3) == 3 && write(p[1], "two", 3) == 3);
	stand();
	IS(fcntl(p[1], F_GETFL) & O_DIRECT);
	IS(read(p[0], is, sizeof(is)) == 3 && same(is, "one") && read(p[0], is, sizeof(is)) == 3 && same(is, "two"));
}

static void pipe_size(void)
{
	int p[2];

	NEED(!pipe(p) && fcntl(p[0], F_SETPIPE_SZ, 1 << 18) == 1 << 18);
	stand();
	IS(fcntl(p[0], F_GETPIPE_SZ) == 1 << 18);
}

static void pipe_half(void)
{
	char is[8] = "";
	int p[2];

	NEED(!pipe(p) && write(p[1], "last", 4) == 4 && !close(p[1]));
	stand();
	IS(read(p[0], is, sizeof(is)) == 4 && same(is, "last") && !read(p[0], is, 1));
}

static void event_count(void)
{
	int fd = eventfd(5, EFD_NONBLOCK);
	uint64_t n;

	NEED(fd >= 0);
	stand();
	IS(read(fd, &n, sizeof(n)) == sizeof(n) && n == 5 && read(fd, &n, sizeof(n)) < 0 && errno == EAGAIN);
}

static void event_semaphore(void)
{
	int fd = eventfd(5, EFD_NONBLOCK | EFD_SEMAPHORE);
	uint64_t n;

	NEED(fd >= 0);
	stand();
	for (int i = 0; i < 5; i++)
		IS(read(fd, &n, sizeof(n)) == sizeof(n) && n == 1);
	IS(read(fd, &n, sizeof(n)) < 0 && errno == EAGAIN);
}

static void epoll(void)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLET, .data.u64 = 0x123456789abc };
	int set = epoll_create1(0), fd = eventfd(0, 0);
	uint64_t one = 1;

	NEED(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
	stand();
	IS(write(fd, &one, sizeof(one)) == sizeof(one));
	memset(&e, 0, sizeof(e));
	IS(epoll_wait(set, &e, 1, 5000) == 1 && e.data.u64 == 0x123456789abc);
}

static void epoll_nested(void)
{
	struct epoll_event e = { .events = EPOLLIN };
	int outer = epoll_create1(0), inner = epoll_create1(0), fd = eventfd(0, 0);
	uint64_t one = 1;

	NEED(!epoll_ctl(inner, EPOLL_CTL_ADD, fd, &e) && !epoll_ctl(outer, EPOLL_CTL_ADD, inner, &e));
	stand();
	IS(write(fd, &one, sizeof(one)) == sizeof(one) && epoll_wait(outer, &e, 1, 5000) == 1);
}

static void watch(void)
{
	int fd = inotify_init1(IN_NONBLOCK);
	char is[256];

	NEED(fd >= 0 && inotify_add_watch(fd, ".", IN_CREATE) == 1);
	stand();
	while (read(fd, is, sizeof(is)) > 0)
		;
	close(open("made", O_CREAT | O_WRONLY, 0600));
	IS(read(fd, is, sizeof(is)) > 0 && !strcmp(((struct inotify_event *)is)->name, "made"));
}

static void watch_queued(void)
{
	int fd = inotify_init1(IN_NONBLOCK);
	char is[256];

	NEED(fd >= 0 && inotify_add_watch(fd, ".", IN_CREATE) == 1);
	close(put("made", ""));
	stand();
	IS(read(fd, is, sizeof(is)) > 0 && !strcmp(((struct inotify_event *)is)->name, "made"));
}

static void epoll_once(void)
{
	struct epoll_event e = { EPOLLIN | EPOLLONESHOT, { .u64 = 0x1122334455667788 } }, is;
	int fd = epoll_create1(0), p[2];

	NEED(!pipe(p) && !epoll_ctl(fd, EPOLL_CTL_ADD, p[0], &e) && write(p[1], "x", 1) == 1 && epoll_wait(fd, &is, 1, 0) == 1);
	stand();
	IS(!epoll_wait(fd, &is, 1, 0));
	e.events = EPOLLIN;
	IS(!epoll_ctl(fd, EPOLL_CTL_MOD, p[0], &e) && epoll_wait(fd, &is, 1, 0) == 1 && is.data.u64 == e.data.u64);
}

static void path_of_link(void)
{
	struct stat st;
	int fd;

	NEED(!symlink("target", "link"));
	fd = open("link", O_PATH | O_NOFOLLOW);
	NEED(fd >= 0);
	stand();
	IS(!fstat(fd, &st) && S_ISLNK(st.st_mode));
}

static void fifo_unlinked(void)
{
	char byte;
	int fd;

	NEED(!mkfifo("fifo", 0600));
	fd = open("fifo", O_RDWR);
	NEED(fd >= 0 && write(fd, "x", 1) == 1 && !unlink("fifo"));
	stand();
	IS(read(fd, &byte, 1) == 1 && byte == 'x');
}

static void lock_awaited(void)
{
	int fd = put("f", "x"), status;
	pid_t pid;

	NEED(!flock(fd, LOCK_EX));
	pid = fork();
	NEED(pid >= 0);
	if (!pid)
		_exit(flock(open("f", O_RDWR), LOCK_EX) ? errno : 0);
	usleep(50000);
	stand();
	IS(!flock(fd, LOCK_UN) && waitpid(pid, &status, 0) == pid && !status);
}

static void watch_mount(void)
{
	int fd = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY);
	struct fanotify_event_metadata is[8];

	NEED(fd >= 0);
	close(put("f", "x"));
	NEED(!fanotify_mark(fd, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "f"));
	stand();
	IS(has("f", "x") && read(fd, is, sizeof(is)) > 0);
}

static void memory_file(void)
{
	int fd = memfd_create("kind", MFD_CLOEXEC);
	char is[8] = "", path[32], name[64];

	NEED(fd >= 0 && write(fd, "memory", 6) == 6);
	stand();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	IS(readlink(path, name, sizeof(name)) > 0 && same(name, "/memfd:kind"));
	IS(pread(fd, is, 6, 0) == 6 && same(is, "memory") && lseek(fd, 0, SEEK_CUR) == 6);
}

static void memory_file_sealed(void)
{
	int fd = memfd_create("sealed", MFD_ALLOW_SEALING);

	NEED(fd >= 0 && !ftruncate(fd, 4096) && !fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK));
	stand();
	IS(fcntl(fd, F_GET_SEALS) == (F_SEAL_GROW | F_SEAL_SHRINK) && ftruncate(fd, 8192) && errno == EPERM);
}

static void memory_secret(void)
{
	int fd = syscall(SYS_memfd_secret, 0);
	struct stat st;

	NEED(fd >= 0 && !ftruncate(fd, 4096));
	stand();
	IS(!fstat(fd, &st) && st.st_size == 4096);
}

static void asynchronous(void)
{
	struct io_uring_params p = { 0 };
	int fd = syscall(SYS_io_uring_setup, 8, &p);

	NEED(fd >= 0);
	stand();
	IS(!syscall(SYS_io_uring_enter, fd, 0, 0, 0, NULL, 0));
}

static void fault_handler(void)
{
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	NEED(fd >= 0);
	stand();
	IS(fcntl(fd, F_GETFD) == FD_CLOEXEC);
}

static void counter(void)
{
	struct perf_event_attr a = { .type = PERF_TYPE_SOFTWARE, .size = sizeof(a), .config = PERF_COUNT_SW_TASK_CLOCK };
	int fd = syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
	uint64_t n;

	NEED(fd >= 0);
	stand();
	IS(read(fd, &n, sizeof(n)) == sizeof(n) && n);
}

static void pidfd_child(void)
{
	pid_t pid = child(NULL);
	int fd = syscall(SYS_pidfd_open, pid, 0);

	NEED(fd >= 0);
	stand();
	IS(!syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) && waitpid(pid, NULL, 0) == pid);
}

static void pidfd_gone(void)
{
	pid_t pid = fork();
	struct pollfd p = { .events = POLLIN };

	if (!pid)
		_exit(0);
	p.fd = syscall(SYS_pidfd_open, pid, 0);
	NEED(p.fd >= 0 && waitpid(pid, NULL, 0) == pid);
	stand();
	IS(poll(&p, 1, 0) == 1);
}

static void owner(void)
{
	struct f_owner_ex who = { F_OWNER_PID, getpid() }, is = { 0 };
	int p[2];

	NEED(!pipe(p) && !fcntl(p[0], F_SETOWN_EX, &who) && !fcntl(p[0], F_SETSIG, SIGUSR2));
	stand();
	IS(!fcntl(p[0], F_GETOWN_EX, &is) && is.type == F_OWNER_PID && is.pid == getpid());
	IS(fcntl(p[0], F_GETSIG) == SIGUSR2);
}

static void bpf_map(void)
{
	struct { uint32_t type, key, value, entries, flags; char rest[108]; } a = { 2, 4, 8, 4, 0, { 0 } };
	int fd = syscall(SYS_bpf, 0, &a, sizeof(a));

	NEED(fd >= 0);
	stand();
	IS(fcntl(fd, F_GETFD) >= 0);
}

static void mount_tree(void)
{
	int fd = syscall(SYS_open_tree, AT_FDCWD, "/proc", 1 /* OPEN_TREE_CLONE */);

	NEED(fd >= 0);
	stand();
	IS(!faccessat(fd, "self", F_OK, 0));
}

static void restriction(void)
{
	struct { uint64_t fs, net, scoped; } a = { 1, 0, 0 };
	int fd = syscall(SYS_landlock_create_ruleset, &a, 8, 0);

	NEED(fd >= 0);
	stand();
	IS(fcntl(fd, F_GETFD) == FD_CLOEXEC);
}

static const struct kind kinds[] = {
	{ "file-offset", offset, false }, { "file-append", append, false }, { "file-flags", file_flags, false },
	{ "file-number-900", high_number, false }, { "file-unlinked", unlinked, false },
	{ "file-linked-elsewhere", linked_elsewhere, false }, { "file-renamed", renamed, false },
	{ "file-without-name", temporary, false }, { "file-sparse", sparse, false },
	{ "file-shared-position", shared_position, false }, { "file-shared-table", shared_table, false },
	{ "file-path-only", path_only, false }, { "folder", folder, false },
	{ "folder-position", folder_position, false }, { "folder-removed", removed_folder, false },
	{ "working-folder", working_folder, false }, { "working-folder-removed", removed_working_folder, false },
	{ "root-folder", root_folder, false }, { "umask", mask, false }, { "lock-flock", lock_whole, false },
	{ "lock-posix", lock_record, false }, { "lock-open-file", lock_open_file, false }, { "lease", lease, false },
	{ "device-nodes", device_nodes, false }, { "proc-self", proc_own, false },
	{ "proc-self-folder", proc_own_folder, false }, { "proc-thread-self", proc_own_task, false },
	{ "proc-self-inherited", proc_own_inherited, false }, { "proc-of-child", proc_of_child, true },
	{ "proc-meminfo", proc_of_all, false }, { "sysfs", sys_file, false }, { "fifo", fifo, false },
	{ "pipe", pipe_data, false }, { "pipe-packets", pipe_packets, true }, { "pipe-size", pipe_size, false },
	{ "pipe-closed", pipe_half, false }, { "eventfd", event_count, false }, { "eventfd-semaphore", event_semaphore, true }, { "epoll", epoll, false },
	{ "epoll-nested", epoll_nested, false }, { "inotify", watch, false },
	{ "inotify-queued", watch_queued, true }, { "epoll-once", epoll_once, false },
	{ "path-only-link", path_of_link, false }, { "fifo-unlinked", fifo_unlinked, false },
	{ "lock-awaited", lock_awaited, false }, { "fanotify", watch_mount, false },
	{ "memfd", memory_file, false }, { "memfd-sealed", memory_file_sealed, false },
	{ "memfd-secret", memory_secret, true }, { "io_uring", asynchronous, true },
	{ "userfaultfd", fault_handler, true }, { "perf-event", counter, true }, { "pidfd", pidfd_child, false },
	{ "pidfd-ended", pidfd_gone, false }, { "signal-owner", owner, false }, { "bpf-map", bpf_map, true },
	{ "mount-tree", mount_tree, true }, { "landlock-ruleset", restriction, true }, { 0 }
};

const struct family files_family = { "files", kinds };
