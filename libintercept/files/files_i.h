/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_i.h - internal interfaces of libsingvgpu-files.so
 *
 * This code runs in other people's programs, also in signal handlers and in children of vfork. It
 * never prints, allocates or locks, makes its own system calls where libc's would be cancellation
 * points, leaves errno as the real function set it, and keeps no fd.
 */
#ifndef FILES_I_H
#define FILES_I_H

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <semaphore.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#define EXPORT __attribute__((visibility("default")))

/* A system call: its value or -errno; errno itself stays. */
#define sys(nr, ...) sys_pad(nr, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define sys_pad(nr, a, b, c, d, e, f, ...) \
	sys6(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static inline long sys6(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long ret;

	__asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8),
			 "r"(r9) : "rcx", "r11", "memory");
	return ret;
}

/* ------------------------------------------------------------------------------- real.c */

/* Functions that libc exports without a declaration. */
int __open(const char *path, int flags, ...);
int __open64(const char *path, int flags, ...);
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);
int __xmknod(int version, const char *path, mode_t mode, dev_t *dev);
int __xmknodat(int version, int dir, const char *path, mode_t mode, dev_t *dev);
int __xstat(int version, const char *path, struct stat *st);
int __xstat64(int version, const char *path, struct stat64 *st);
int __lxstat(int version, const char *path, struct stat *st);
int __lxstat64(int version, const char *path, struct stat64 *st);
int __fxstatat(int version, int dir, const char *path, struct stat *st, int flags);
int __fxstatat64(int version, int dir, const char *path, struct stat64 *st, int flags);

#define REAL_FUNCTIONS(X) \
	X(open) X(open64) X(__open) X(__open64) X(__open_2) X(__open64_2) X(creat) X(creat64) \
	X(openat) X(openat64) X(__openat_2) X(__openat64_2) X(open_by_handle_at) \
	X(fopen) X(fopen64) X(freopen) X(freopen64) \
	X(mkstemp) X(mkstemp64) X(mkostemp) X(mkostemp64) X(mkstemps) X(mkstemps64) \
	X(mkostemps) X(mkostemps64) X(shm_open) X(shm_unlink) X(sem_open) X(sem_unlink) \
	X(rename) X(renameat) X(renameat2) X(unlink) X(unlinkat) X(rmdir) X(remove) \
	X(link) X(linkat) X(symlink) X(symlinkat) X(mkdir) X(mkdirat) \
	X(mkfifo) X(mkfifoat) X(mknod) X(mknodat) X(__xmknod) X(__xmknodat) \
	X(truncate) X(truncate64) X(chmod) X(lchmod) X(fchmod) X(fchmodat) \
	X(chown) X(lchown) X(fchown) X(fchownat) \
	X(utime) X(utimes) X(lutimes) X(futimes) X(futimesat) X(utimensat) X(futimens) \
	X(setxattr) X(lsetxattr) X(fsetxattr) X(removexattr) X(lremovexattr) X(fremovexattr) \
	X(syscall) \
	X(stat) X(stat64) X(lstat) X(lstat64) X(fstatat) X(fstatat64) X(statx) \
	X(__xstat) X(__xstat64) X(__lxstat) X(__lxstat64) X(__fxstatat) X(__fxstatat64) \
	X(access) X(eaccess) X(euidaccess) X(faccessat) X(opendir) X(fdopendir) X(closedir) \
	X(rewinddir) X(readdir) X(readdir64) X(glob) X(glob64) \
	X(getxattr) X(lgetxattr) X(listxattr) X(llistxattr) \
	X(execve) X(execvpe) X(execveat) X(fexecve) X(posix_spawn) X(posix_spawnp) X(system) X(popen)

/* libc's own functions; one that libc lacks fails with ENOSYS. */
struct real {
#define X(name) typeof(name) *name;
	REAL_FUNCTIONS(X)
#undef X
};

extern struct real real_table;
extern int real_ready;
void real_fill(void);

static inline const struct real *real(void)
{
	/* pairs with real_fill() */
	if (__builtin_expect(!__atomic_load_n(&real_ready, __ATOMIC_ACQUIRE), 0))
		real_fill();
	return &real_table;
}

/* -------------------------------------------------------------------------------- log.c */

enum { LOG_UNKNOWN, LOG_ON, LOG_OFF };
extern int log_state;
void log_begin(void);

/* Whether this process has a log at all. */
static inline bool log_on(void)
{
	if (__builtin_expect(log_state == LOG_UNKNOWN, 0))
		log_begin();
	return log_state == LOG_ON;
}

/*
 * A buffer for one record, whose path begins at text + LOG_HEAD. It comes from a pool, since
 * stacks of signal handlers are small; NULL: no memory.
 */
#define LOG_HEAD 2
struct log_buf {
	char text[LOG_HEAD + 4096 + 2];
};

struct log_buf *log_buf_get(void);
void log_buf_put(struct log_buf *b);

/* Whether the file at the path, of len bytes at text + LOG_HEAD, is to be logged. */
bool log_wanted(const struct log_buf *b, size_t len);
/* Whether this process has logged the path. */
bool log_known(const struct log_buf *b, size_t len);
/* The same for another key of a file: a hash that is not 0. */
bool log_knows(uint64_t h);
void log_learn(uint64_t h);
/* Appends a record of this kind and, if that succeeds, marks the path as known. */
void log_add(struct log_buf *b, size_t len, char kind);
/* Notes that a record could not be written; a later write adds a record 'L'. */
void log_lose(void);
/* Writes at most PIPE_BUF bytes to a FIFO in the job's folder, if it has a reader and room. Never waits. */
void log_aside(const char *name, const char *text, size_t len);

/* -------------------------------------------------------------------------------- note.c */

/* Called before an open: whether a file of that name exists. */
bool note_before_open(int dir, const char *path, int flags);
/*
 * Called after an open of path (NULL: the function chose the name) that returned fd, < 0 if it
 * failed: logs the file if flags allow changes to it. Returns fd.
 */
int note_opened(int fd, const char *path, int flags, bool existed);
/* The same for modes of stdio. */
bool note_before_fopen(const char *path, const char *mode);
void note_fopened(FILE *file, const char *path, const char *mode, bool existed);
/* Called before a file's mode, times, … change, by fd or by name. */
void note_fd(int fd, char kind);
void note_file(int dir, const char *path, bool follow);
/* Called before names are made, removed or renamed. flags: RENAME_*. */
void note_make(int dir, const char *path);
void note_remove(int dir, const char *path);
void note_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned int flags);

/* -------------------------------------------------------------------------------- exec.c */

/* Called before a program is started: notes one that will not be in the job. */
void exec_note(int dir, const char *path, char *const *argv, char *const *env);
void exec_at_note(int dir, const char *path, char *const *argv, char *const *env);

/* ------------------------------------------------------------------------------- nodes.c */

/* Called after an open that returned fd: one of a node that is not there fails with ENXIO. */
int nodes_opened(int fd, int dir, const char *path);

#endif
