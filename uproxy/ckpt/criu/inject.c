// SPDX-License-Identifier: Apache-2.0
/*
 * inject.c - has a thread of a restored job execute a system call, for what no other process can set
 *
 * The thread is stopped wherever it is, executes a `syscall` instruction of its vdso, and goes on as if nothing had been:
 * its registers and the bytes below its stack that the call reads are put back. A system call in which it waited starts
 * again by the kernel's rules, as after a signal without a handler.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu_i.h"

#define RED_ZONE	128
#define DATA_MAX	128	/* bytes that a call may read */
#define VDSO_MAX	65536
#define SIGNALS_MAX	64

/* The address of a `syscall` instruction in the vdso; 0: none. */
static unsigned long find_syscall(pid_t tid, int mem)
{
	static char vdso[VDSO_MAX];
	unsigned long from = 0, to = 0;
	char path[32], line[256];
	bool found = false;
	const char *at;
	ssize_t n;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/maps", tid);
	in = fopen(path, "re");
	while (in && !found && fgets(line, sizeof(line), in))
		found = strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", &from, &to) == 2;
	if (in)
		fclose(in);
	if (!found || to - from > sizeof(vdso))
		return 0;
	n = pread(mem, vdso, to - from, from);
	at = n > 0 ? memmem(vdso, n, "\x0f\x05", 2) : NULL;
	return at ? from + (at - vdso) : 0;
}

/* Waits until the thread is stopped by us. False: it has ended. Signals meanwhile are delivered when it goes on. */
static bool wait_stop(pid_t tid, int *sig)
{
	int status;

	while (waitpid(tid, &status, __WALL) == tid || errno == EINTR) {
		if (!WIFSTOPPED(status))
			return false;
		*sig = status >> 16 ? 0 : WSTOPSIG(status);
		return true;
	}
	return false;
}

static long call(pid_t tid, int mem, long nr, const unsigned long arg[6], int in_memory, const void *data, size_t len)
{
	struct user_regs_struct old, new;
	unsigned long at, stack;
	char was[DATA_MAX];
	int sig = 0, signals[SIGNALS_MAX], waiting = 0, stops = 0;
	long rc = -ESRCH;

	if (len > sizeof(was))
		return -EINVAL;
	if (ptrace(PTRACE_GETREGS, tid, 0, &old))
		return -errno;
	at = find_syscall(tid, mem);
	if (!at)
		return -ENOSYS;
	stack = (old.rsp - RED_ZONE - len) & ~63ul;
	if (len && (pread(mem, was, len, stack) != (ssize_t)len || pwrite(mem, data, len, stack) != (ssize_t)len))
		return -EFAULT;
	new = old;
	new.rip = at;
	new.rax = nr;
	new.orig_rax = -1;
	new.rdi = in_memory == 0 ? stack : arg[0];
	new.rsi = in_memory == 1 ? stack : arg[1];
	new.rdx = in_memory == 2 ? stack : arg[2];
	new.r10 = in_memory == 3 ? stack : arg[3];
	new.r8 = arg[4];
	new.r9 = arg[5];
	if (!ptrace(PTRACE_SETREGS, tid, 0, &new) && !ptrace(PTRACE_SINGLESTEP, tid, 0, 0)) {
		/* A signal that comes first waits until the call is done. Our own stop, and one of the whole process, do not count. */
		while (wait_stop(tid, &sig) && sig != SIGTRAP) {
			if (sig)
				signals[waiting++] = sig;
			if (++stops == SIGNALS_MAX || ptrace(PTRACE_SINGLESTEP, tid, 0, 0))
				break;
		}
		if (sig == SIGTRAP && !ptrace(PTRACE_GETREGS, tid, 0, &new))
			rc = new.rax;
		ptrace(PTRACE_SETREGS, tid, 0, &old);
		while (waiting)
			syscall(SYS_tkill, tid, signals[--waiting]);
	}
	if (len && pwrite(mem, was, len, stack) != (ssize_t)len)
		rc = -EFAULT;
	return rc;
}

static int inject(pid_t tid, long nr, const unsigned long arg[6], int in_memory, const void *data, size_t len)
{
	char path[32];
	long rc = -ESRCH;
	int mem, sig = 0;

	snprintf(path, sizeof(path), "/proc/%d/mem", tid);
	mem = open(path, O_RDWR | O_CLOEXEC);
	if (mem < 0)
		return -errno;
	if (!ptrace(PTRACE_SEIZE, tid, 0, 0)) {
		if (!ptrace(PTRACE_INTERRUPT, tid, 0, 0) && wait_stop(tid, &sig)) {
			rc = call(tid, mem, nr, arg, in_memory, data, len);
			ptrace(PTRACE_DETACH, tid, 0, sig == SIGTRAP ? 0 : sig);
		}
	} else {
		rc = -errno;
	}
	close(mem);
	return rc < 0 && rc > -4096 ? rc : 0;
}

int criu_inject_policy(pid_t tid, int mode, const unsigned long *nodes, unsigned int bits, unsigned long start,
		       unsigned long end)
{
	size_t len = bits / 8;

	if (start || end)
		return inject(tid, SYS_mbind, (unsigned long[6]){ start, end - start, mode, 0, bits + 1, 0 }, 3, nodes, len);
	return inject(tid, SYS_set_mempolicy, (unsigned long[6]){ mode, 0, bits + 1 }, 1, nodes, len);
}

int criu_inject_personality(pid_t pid, unsigned long personality)
{
	return inject(pid, SYS_personality, (unsigned long[6]){ personality }, -1, NULL, 0);
}
