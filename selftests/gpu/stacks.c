// SPDX-License-Identifier: Apache-2.0
/*
 * stacks.c - where the threads of processes are: `stacks PID...`
 *
 * For each thread its name, state, what it waits for in the kernel, and its system call. Then its program counter, and
 * what looks like a return address on its stack, the top first: a word that points behind a call instruction. Each as
 * file+offset, for addr2line with a build that has its symbols. Only a libc is needed. The threads go on afterwards.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAPS_MAX	4096
#define STACK_BYTES	32768
#define FRAMES_MAX	24
#define STOP_MS		200	/* what has not stopped by then is in the kernel: its stack is not read */

static struct map {		/* what can be executed */
	uint64_t from, to, off;
	char name[64];
} maps[MAPS_MAX];
static int nmaps;

static void read_maps(pid_t pid)
{
	char path[64], line[512], flags[8];
	FILE *in;

	nmaps = 0;
	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	in = fopen(path, "re");
	while (in && nmaps < MAPS_MAX && fgets(line, sizeof(line), in)) {
		struct map *m = &maps[nmaps];
		int at = 0;

		if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %n", &m->from, &m->to, flags, &m->off, &at) < 4 || flags[2] != 'x')
			continue;
		line[strcspn(line, "\n")] = 0;
		snprintf(m->name, sizeof(m->name), "%.63s", strrchr(line + at, '/') ? strrchr(line + at, '/') + 1 : line + at);
		nmaps++;
	}
	if (in)
		fclose(in);
}

static const struct map *map_of(uint64_t address)
{
	for (int i = 0; i < nmaps; i++)
		if (address >= maps[i].from && address < maps[i].to)
			return &maps[i];
	return NULL;
}

static bool read_memory(pid_t pid, uint64_t from, void *to, size_t len, size_t *got)
{
	struct iovec mine = { to, len }, theirs = { (void *)(uintptr_t)from, len };
	ssize_t n = process_vm_readv(pid, &mine, 1, &theirs, 1, 0);

	*got = n > 0 ? n : 0;
	return n > 0;
}

/* Is there a call right before this address: E8 and four bytes, or FF /2 of two to seven bytes? */
static bool behind_call(pid_t pid, uint64_t address)
{
	uint8_t b[7];
	size_t n;

	if (!read_memory(pid, address - sizeof(b), b, sizeof(b), &n) || n < sizeof(b))
		return false;
	if (b[2] == 0xe8)
		return true;
	for (int at = 0; at <= 5; at++)
		if (b[at] == 0xff && (b[at + 1] >> 3 & 7) == 2)
			return true;
	return false;
}

static void say(uint64_t address)
{
	const struct map *m = map_of(address);

	if (m)
		printf("    %s+0x%lx\n", *m->name ? m->name : "(no file)", address - m->from + m->off);
	else
		printf("    0x%lx\n", address);
}

static void walk(pid_t pid, const struct user_regs_struct *r)
{
	static uint64_t stack[STACK_BYTES / sizeof(uint64_t)];
	size_t got, n = 0;

	say(r->rip);
	read_memory(pid, r->rsp, stack, sizeof(stack), &got);
	for (size_t i = 0; i < got / sizeof(*stack) && n < FRAMES_MAX; i++)
		if (map_of(stack[i]) && behind_call(pid, stack[i])) {
			say(stack[i]);
			n++;
		}
}

/* A line of a file of the thread, "?" if it cannot be read. */
static void one_line(pid_t pid, pid_t tid, const char *file, char *to, size_t room)
{
	char path[96];
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", pid, tid, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, to, room - 1);
		close(fd);
	}
	if (n <= 0) {
		*to = '?';
		n = 1;
	}
	to[n] = 0;
	to[strcspn(to, "\n")] = 0;
}

static void thread(pid_t pid, pid_t tid)
{
	char name[32], state[256], wchan[64], call[160];
	struct user_regs_struct r;
	const char *dead;
	int status;

	one_line(pid, tid, "comm", name, sizeof(name));
	one_line(pid, tid, "stat", state, sizeof(state));
	one_line(pid, tid, "wchan", wchan, sizeof(wchan));
	one_line(pid, tid, "syscall", call, sizeof(call));
	dead = strrchr(state, ')');
	printf("  thread %d %s, state %c, waits in %s, system call %s\n", tid, name, dead && dead[1] ? dead[2] : '?', wchan, call);
	if (ptrace(PTRACE_SEIZE, tid, NULL, NULL)) {
		printf("    cannot be stopped: %s\n", strerror(errno));
		return;
	}
	ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
	for (int ms = 0; ms < STOP_MS; ms++) {
		if (waitpid(tid, &status, __WALL | WNOHANG) == tid) {
			if (WIFSTOPPED(status) && !ptrace(PTRACE_GETREGS, tid, NULL, &r))
				walk(pid, &r);
			ptrace(PTRACE_DETACH, tid, NULL, NULL);
			return;
		}
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	printf("    does not stop\n");	/* the end of this program lets it go */
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		pid_t pid = atoi(argv[i]);
		char path[64], command[256];
		struct dirent *e;
		DIR *tasks;

		one_line(pid, pid, "comm", command, sizeof(command));
		printf("process %d %s\n", pid, command);
		read_maps(pid);
		snprintf(path, sizeof(path), "/proc/%d/task", pid);
		tasks = opendir(path);
		while (tasks && (e = readdir(tasks)))
			if (*e->d_name != '.')
				thread(pid, atoi(e->d_name));
		if (tasks)
			closedir(tasks);
	}
	return 0;
}
