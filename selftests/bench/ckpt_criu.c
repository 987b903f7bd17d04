// SPDX-License-Identifier: Apache-2.0
/*
 * ckpt_criu.c - how long a process of 1 GiB stands still for a dump, and how fast it comes back
 *
 * The process itself tells: it looks at the clock again and again, and keeps the longest pause that
 * it has seen in a file that we have mapped, too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ckpt.h"

#define GIB		1073741824.0
#define WAIT_S		120	/* only what hangs needs as long */

/* In the file. Single writer of all but clear: the process. */
struct ticks {
	uint64_t n;		/* looks at the clock */
	uint64_t longest_ns;
	uint64_t clear;		/* ours: counted up, it makes longest_ns begin anew */
	uint64_t cleared;
};

struct victim {
	pid_t pid;
	uint64_t bytes;
	struct ticks *ticks;
	char path[600];		/* of the ticks */
	char images[64];	/* folder in a tmpfs */
};

static const char shm[] = "/dev/shm/singvgpu-bench";

static void pause_us(long us)
{
	nanosleep(&(struct timespec){ .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 }, NULL);
}

static struct ticks *ticks_map(const char *path, int flags)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
	struct ticks *t;

	if (fd < 0 || ftruncate(fd, sizeof(*t)))
		die("%s: %s", path, strerror(errno));
	t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (t == MAP_FAILED)
		die("%s: %s", path, strerror(errno));
	close(fd);
	return t;
}

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

int ckpt_victim_main(const char *path, uint64_t bytes)
{
	struct ticks *t = ticks_map(path, 0);
	uint64_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t x = 1, last;

	if (p == MAP_FAILED)
		return 1;
	for (uint64_t i = 0; i < bytes / 8; i++) {
		x = x * 6364136223846793005 + 1442695040888963407;
		p[i] = x ^ x >> 29;
	}
	for (last = clock_ns();;) {
		uint64_t now, clear = __atomic_load_n(&t->clear, __ATOMIC_ACQUIRE);

		pause_us(100);
		now = clock_ns();
		if (clear != t->cleared) {
			t->longest_ns = 0;
			__atomic_store_n(&t->cleared, clear, __ATOMIC_RELEASE);
		} else if (now - last > t->longest_ns) {
			t->longest_ns = now - last;
		}
		last = now;
		__atomic_fetch_add(&t->n, 1, __ATOMIC_RELEASE);
	}
}

/* ----------------------------------------------------------------------- start and end */

/* Until the word has become other than before. */
static void wait_change(const uint64_t *word, uint64_t before, const char *what)
{
	double end = now_s() + WAIT_S;

	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == before) {
		if (now_s() > end)
			die("%s", what);
		pause_us(500);
	}
}

static void victim_exec(const struct bench *b, struct victim *v)
{
	char bytes[24];
	int null = open("/dev/null", O_RDWR);

	setsid();
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	close_range(3, ~0u, 0);
	snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)v->bytes);
	if (chdir("/"))
		_exit(127);
	execl("/proc/self/exe", "ckpt", "--victim", v->path, bytes, NULL);
	(void)b;
	_exit(127);
}

static void victim_start(const struct bench *b, struct victim *v)
{
	struct clone_args a = { .flags = CLONE_NEWPID, .exit_signal = SIGCHLD };

	snprintf(v->path, sizeof(v->path), "%s/ticks", b->dir);
	v->ticks = ticks_map(v->path, O_CREAT | O_TRUNC);
	v->pid = syscall(SYS_clone3, &a, sizeof(a));
	if (!v->pid)
		victim_exec(b, v);
	if (v->pid < 0)
		die("clone3: %s", strerror(errno));
	wait_change(&v->ticks->n, 0, "the process that is to be dumped does not start");
}

static void victim_end(struct victim *v)
{
	kill(v->pid, SIGKILL);
	while (waitpid(v->pid, NULL, 0) < 0 && errno == EINTR)
		;
	v->pid = 0;
}

/* The longest pause while fn runs, in seconds; the ticks before and behind it are waited for. */
static double pause_of(struct victim *v, void (*fn)(const struct bench *, struct victim *),
		       const struct bench *b)
{
	struct ticks *t = v->ticks;
	uint64_t n;

	__atomic_fetch_add(&t->clear, 1, __ATOMIC_RELEASE);
	wait_change(&t->cleared, t->clear - 1, "the process stands still");
	fn(b, v);
	n = __atomic_load_n(&t->n, __ATOMIC_ACQUIRE);
	wait_change(&t->n, n, "the process does not go on after its dump");
	n = __atomic_load_n(&t->n, __ATOMIC_ACQUIRE);
	wait_change(&t->n, n, "the process does not go on after its dump");
	return t->longest_ns / 1e9;
}

/* -------------------------------------------------------------------------- stock CRIU */

static void criu_dump(const struct bench *b, struct victim *v, const char *more)
{
	if (program(b, NULL, "rm -rf %s && mkdir %s && '%s/criu/criu' dump -t %d -D %s -o dump.log "
		    "-v1 %s || { tail -n 20 %s/dump.log; false; }", v->images, v->images, b->build,
		    v->pid, v->images, more, v->images))
		die("CRIU cannot dump: see %s", b->log);
}

static void criu_dump_running(const struct bench *b, struct victim *v)
{
	criu_dump(b, v, "--leave-running");
}

/* Seconds from the command to the process's first look at the clock. */
static double criu_restore(const struct bench *b, struct victim *v)
{
	uint64_t n = v->ticks->n;
	double begin = now_s(), s;
	char path[80];
	FILE *f;

	if (program(b, NULL, "rm -f %s/pid; '%s/criu/criu' restore -d -D %s -o restore.log -v1 "
		    "--pidfile %s/pid || { tail -n 20 %s/restore.log; false; }", v->images,
		    b->build, v->images, v->images, v->images))
		die("CRIU cannot restore: see %s", b->log);
	wait_change(&v->ticks->n, n, "the restored process does not go on");
	s = now_s() - begin;
	snprintf(path, sizeof(path), "%s/pid", v->images);
	f = fopen(path, "r");
	if (!f || fscanf(f, "%d", &v->pid) != 1)
		die("%s has no pid", path);
	fclose(f);
	return s;
}

static const char *missing(const struct bench *b)
{
	if (geteuid())
		return "CRIU needs root";
	if (program(b, NULL, "'%s/criu/criu' check", b->build))
		return "there is no CRIU in the build folder, or its check fails";
	return NULL;
}

static struct victim running;

static void clean_up(void)
{
	if (running.pid)
		victim_end(&running);
	if (*running.images) {
		char cmd[80];

		snprintf(cmd, sizeof(cmd), "rm -rf %s", running.images);
		if (system(cmd))
			fprintf(stderr, "ckpt: %s stays\n", running.images);
	}
}

void bench_criu(const struct bench *b)
{
	struct victim *v = &running;
	double frozen[16], back[16];
	int n = b->turns < 16 ? b->turns : 16;
	const char *why = missing(b);

	if (why) {
		printf("# criu: %s\n", why);
		return;
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	atexit(clean_up);
	v->bytes = b->size / 2;
	snprintf(v->images, sizeof(v->images), "%s.%d", shm, getpid());
	victim_start(b, v);
	for (int i = 0; i < n; i++)
		frozen[i] = pause_of(v, criu_dump_running, b) * GIB / v->bytes;
	criu_dump(b, v, "");
	while (waitpid(v->pid, NULL, 0) < 0 && errno == EINTR)
		;
	v->pid = 0;
	for (int i = 0; i < n; i++) {
		back[i] = v->bytes / 1e9 / criu_restore(b, v);
		victim_end(v);
	}
	metric("criu.tmpfs_s_per_gib", median(frozen, n), "s/GiB");
	metric("criu.restore_gbs", median(back, n), "GB/s");
	/* NEEDSWORK: the same process under `singvgpu run`, checkpointed and restored: ours. */
}
