// SPDX-License-Identifier: Apache-2.0
/*
 * raw.c - syscall(2): logs calls that change files or start programs, refuses io_uring, and passes on all others unchanged
 *
 * No checkpoint contains an io_uring. libuv, which PyTorch's TCPStore is built on, and other event loops use
 * one where there is one, and epoll where the kernel has none; so this one has none.
 *
 * A call is passed on by a jump, with registers and stack unchanged: clone and vfork could not
 * return through a C function in between.
 */
#include <errno.h>
#include <linux/openat2.h>

#include "files_i.h"
#include "record.h"

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

#define NUMBERS 512
EXPORT long syscall(long nr, ...);
long raw_noted(long nr, long a, long b, long c, long d, long e);
long raw_early(long nr, ...);

/* 1 for each number that raw_noted() handles. */
const unsigned char raw_is_noted[NUMBERS] __attribute__((used)) = {
	[SYS_open] = 1, [SYS_openat] = 1, [SYS_openat2] = 1, [SYS_creat] = 1, [SYS_rename] = 1,
	[SYS_renameat] = 1, [SYS_renameat2] = 1, [SYS_unlink] = 1, [SYS_unlinkat] = 1,
	[SYS_rmdir] = 1, [SYS_link] = 1, [SYS_linkat] = 1, [SYS_symlink] = 1, [SYS_symlinkat] = 1,
	[SYS_mkdir] = 1, [SYS_mkdirat] = 1, [SYS_mknod] = 1, [SYS_mknodat] = 1, [SYS_truncate] = 1,
	[SYS_chmod] = 1, [SYS_fchmod] = 1, [SYS_fchmodat] = 1, [SYS_fchmodat2] = 1,
	[SYS_chown] = 1, [SYS_lchown] = 1, [SYS_fchown] = 1, [SYS_fchownat] = 1, [SYS_utime] = 1,
	[SYS_utimes] = 1, [SYS_futimesat] = 1, [SYS_utimensat] = 1, [SYS_setxattr] = 1,
	[SYS_lsetxattr] = 1, [SYS_fsetxattr] = 1, [SYS_removexattr] = 1, [SYS_lremovexattr] = 1,
	[SYS_fremovexattr] = 1, [SYS_open_by_handle_at] = 1, [SYS_io_uring_setup] = 1,
	[SYS_execve] = 1, [SYS_execveat] = 1,
};

__asm__(".text\n"
	".globl syscall\n"
	".type syscall, @function\n"
	"syscall:\n"
	"	endbr64\n"
	"	cmpq $512, %rdi\n"
	"	jae 1f\n"
	"	leaq raw_is_noted(%rip), %rax\n"
	"	cmpb $0, (%rax,%rdi)\n"
	"	jne raw_noted\n"
	"1:	movq raw_next(%rip), %rax\n"
	"	jmp *%rax\n"
	".size syscall, . - syscall\n"
	/* Until libc's syscall() is known: the same few instructions. */
	".type raw_early, @function\n"
	"raw_early:\n"
	"	endbr64\n"
	"	movq %rdi, %rax\n"
	"	movq %rsi, %rdi\n"
	"	movq %rdx, %rsi\n"
	"	movq %rcx, %rdx\n"
	"	movq %r8, %r10\n"
	"	movq %r9, %r8\n"
	"	movq 8(%rsp), %r9\n"
	"	syscall\n"
	"	cmpq $-4095, %rax\n"
	"	jae raw_failed\n"
	"	ret\n"
	".size raw_early, . - raw_early\n");

long (*raw_next)(long nr, ...) __attribute__((used)) = raw_early;

__attribute__((used)) static long raw_failed_c(long err) __asm__("raw_failed_c");
static long raw_failed_c(long err)
{
	errno = -err;
	return -1;
}

__asm__(".text\n"
	"raw_failed:\n"
	"	movq %rax, %rdi\n"
	"	jmp raw_failed_c\n");

static void __attribute__((constructor)) raw_begin(void)
{
	raw_next = real()->syscall;
}

/* ------------------------------------------------------------------------------ the numbers */

static void note_names(long nr, long a, long b, long c, long d, long e)
{
	switch (nr) {
	case SYS_rename:
		return note_rename(AT_FDCWD, (void *)a, AT_FDCWD, (void *)b, 0);
	case SYS_renameat:
		return note_rename(a, (void *)b, c, (void *)d, 0);
	case SYS_renameat2:
		return note_rename(a, (void *)b, c, (void *)d, e);
	case SYS_unlink:
	case SYS_rmdir:
		return note_remove(AT_FDCWD, (void *)a);
	case SYS_unlinkat:
		return note_remove(a, (void *)b);
	case SYS_link:
		note_file(AT_FDCWD, (void *)a, false);
		/* fallthrough */
	case SYS_symlink:
		return note_make(AT_FDCWD, (void *)b);
	case SYS_linkat:
		note_file(a, (void *)b, e & AT_SYMLINK_FOLLOW);
		return note_make(c, (void *)d);
	case SYS_symlinkat:
		return note_make(b, (void *)c);
	case SYS_mkdir:
	case SYS_mknod:
		return note_make(AT_FDCWD, (void *)a);
	case SYS_mkdirat:
	case SYS_mknodat:
		return note_make(a, (void *)b);
	}
}

static void note_files(long nr, long a, long b, long d, long e)
{
	switch (nr) {
	case SYS_truncate:
	case SYS_chmod:
	case SYS_chown:
	case SYS_utime:
	case SYS_utimes:
	case SYS_setxattr:
	case SYS_removexattr:
		return note_file(AT_FDCWD, (void *)a, true);
	case SYS_lchown:
	case SYS_lsetxattr:
	case SYS_lremovexattr:
		return note_file(AT_FDCWD, (void *)a, false);
	case SYS_fchmod:
	case SYS_fchown:
	case SYS_fsetxattr:
	case SYS_fremovexattr:
		return note_fd(a, RECORD_CHANGED);
	case SYS_fchmodat:
	case SYS_futimesat:
		return note_file(a, (void *)b, true);
	case SYS_utimensat:
	case SYS_fchmodat2:
		return note_file(a, (void *)b, !(d & AT_SYMLINK_NOFOLLOW));
	case SYS_fchownat:
		return note_file(a, (void *)b, !(e & AT_SYMLINK_NOFOLLOW));
	}
}

__attribute__((used)) long raw_noted(long nr, long a, long b, long c, long d, long e)
{
	const char *path = (void *)a;
	int dir = AT_FDCWD, flags;
	bool existed;

	switch (nr) {
	case SYS_io_uring_setup:
		errno = ENOSYS;
		return -1;
	case SYS_execve:
		exec_note(AT_FDCWD, path, (void *)b, (void *)c);
		return raw_next(nr, a, b, c);
	case SYS_execveat:
		exec_at_note(a, (void *)b, (void *)c, (void *)d);
		return raw_next(nr, a, b, c, d, e);
	case SYS_open:
		flags = b;
		break;
	case SYS_creat:
		flags = O_CREAT | O_WRONLY;
		break;
	case SYS_open_by_handle_at:
		return note_opened(raw_next(nr, a, b, c), NULL, c, true);
	case SYS_openat:
	case SYS_openat2:
		dir = a;
		path = (void *)b;
		flags = nr == SYS_openat ? c : (long)((const struct open_how *)c)->flags;
		break;
	default:
		note_names(nr, a, b, c, d, e);
		note_files(nr, a, b, d, e);
		return raw_next(nr, a, b, c, d, e);
	}
	existed = note_before_open(dir, path, flags);
	return note_opened(raw_next(nr, a, b, c, d, e), path, flags, existed);
}
