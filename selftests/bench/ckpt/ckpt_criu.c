// SPDX-License-Identifier: Apache-2.0
/*
 * ckpt_criu.c - how long a process of 1 GiB stands still for a dump, and how fast it comes back
 *
 * The process itself measures: it polls the clock, and writes the longest pause to a file. CRIU
 * alone, to a tmpfs, and `singvgpu checkpoint`, to a store on the disk, alternate. Before each dump
 * the process changes 3 % of its pages.
 *
 * Restores are measured from the disk, beside fio's reads of it: from stock CRIU's images, with the
 * page cache dropped, and from our store, with large memory restored directly (images_direct.c) or
 * by CRIU. They are also measured from a tmpfs, with the images and a store there.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
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
#define PAGE		4096
#define WAIT_S		120	/* only what hangs needs as long */

/*
 * In the file; single writer of all but clear: the process. We read and write it by its path: a restore
 * puts another file there.
 */
struct ticks {
	uint64_t n;		/* looks at the clock */
	uint64_t longest_ns;
	uint64_t clear;		/* ours: counted up, pages are changed and longest_ns begins anew */
	uint64_t cleared;
};

struct victim {
	pid_t pid;		/* of the process, or of the `singvgpu` that has started it */
	uint64_t bytes;
	char path[600];		/* of the ticks */
	char images[600];	/* folder */
	char store[600];
	char id[64];		/* the last checkpoint */
};

static char shm[64];		/* folder in a tmpfs; shm.store, too, is in use */

static void pause_us(long us)
{
	nanosleep(&(struct timespec){ .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 }, NULL);
}

static struct ticks *ticks_map(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_CREAT, 0600);
	struct ticks *t;

	if (fd < 0 || ftruncate(fd, PAGE))
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

static void fill(uint64_t *page, uint64_t *x)
{
	for (int i = 0; i < PAGE / 8; i++) {
		*x = *x * 6364136223846793005 + 1442695040888963407;
		page[i] = *x ^ *x >> 29;
	}
}

int ckpt_victim_main(const char *path, uint64_t bytes)
{
	struct ticks *t = ticks_map(path);
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t x = 1, last, now;

	if (p == MAP_FAILED)
		return 1;
	for (uint64_t at = 0; at < bytes; at += PAGE)
		fill((uint64_t *)(p + at), &x);
	for (last = clock_ns();; last = now) {
		uint64_t clear = __atomic_load_n(&t->clear, __ATOMIC_ACQUIRE);

		if (clear != t->cleared) {
			for (uint64_t i = 0; i < bytes / PAGE * 3 / 100; i++)
				fill((uint64_t *)(p + (x >> 20) % (bytes / PAGE) * PAGE), &x);
			last = clock_ns();
			t->longest_ns = 0;
			__atomic_store_n(&t->cleared, clear, __ATOMIC_RELEASE);
		}
		pause_us(100);
		now = clock_ns();
		if (now - last > t->longest_ns)
			t->longest_ns = now - last;
		__atomic_fetch_add(&t->n, 1, __ATOMIC_RELEASE);
	}
}

/* ----------------------------------------------------------------------- start and end */

/* What is in the file now; nothing, if a restore is just putting it there. */
static struct ticks look(const struct victim *v)
{
	int fd = open(v->path, O_RDONLY | O_CLOEXEC);
	struct ticks t = { 0 };

	if (fd < 0 || pread(fd, &t, sizeof(t), 0) != sizeof(t))
		t = (struct ticks){ 0 };
	if (fd >= 0)
		close(fd);
	return t;
}

/* Until it has looked at the clock again: n is then neither 0 nor one of these. */
static void wait_tick(const struct victim *v, uint64_t before, uint64_t or_before)
{
	double end = now_s() + WAIT_S;
	uint64_t n;

	while (!(n = look(v).n) || n == before || n == or_before) {
		if (now_s() > end)
			die("the process that is dumped and restored does not go on");
		pause_us(300);
	}
}

/* Starts it with what is before it; each word of its own. */
static void victim_exec(const struct bench *b, struct victim *v, char *const before[], int n)
{
	char bytes[24], exe[512], *argv[16];
	int null = open("/dev/null", O_RDWR);

	setsid();
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	close_range(3, ~0u, 0);
	snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)v->bytes);
	snprintf(exe, sizeof(exe), "%s/selftests/bench/ckpt", b->build);
	memcpy(argv, before, n * sizeof(*argv));
	memcpy(argv + n, (char *[]){ exe, "--victim", v->path, bytes, NULL }, 5 * sizeof(*argv));
	if (!chdir("/"))
		execv(argv[0], argv);
	_exit(127);
}

static void victim_end(struct victim *v, int sig)
{
	if (sig)
		kill(v->pid, sig);
	while (waitpid(v->pid, NULL, 0) < 0 && errno == EINTR)
		;
	v->pid = 0;
}

/* The longest pause while fn runs, in seconds; ticks before and behind it are waited for. */
static double pause_of(struct victim *v, void (*fn)(const struct bench *, struct victim *),
		       const struct bench *b)
{
	struct ticks *t = ticks_map(v->path);
	double end = now_s() + WAIT_S, s;
	uint64_t n;

	__atomic_fetch_add(&t->clear, 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(&t->cleared, __ATOMIC_ACQUIRE) != t->clear) {
		if (now_s() > end)
			die("the process stands still");
		pause_us(300);
	}
	fn(b, v);
	for (int i = 0; i < 2; i++) {
		n = look(v).n;
		wait_tick(v, n, n);
	}
	s = t->longest_ns / 1e9;
	munmap(t, sizeof(*t));
	return s;
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

/* Seconds from the command to the process's first look at the clock. cut: n in the dump. */
static double criu_restore(const struct bench *b, struct victim *v, uint64_t cut)
{
	uint64_t n = look(v).n;
	double begin = now_s(), s;
	char path[700];
	FILE *f;

	if (program(b, NULL, "rm -f %s/pid; '%s/criu/criu' restore -d -D %s -o restore.log -v1 "
		    "--pidfile %s/pid || { tail -n 20 %s/restore.log; false; }", v->images,
		    b->build, v->images, v->images, v->images))
		die("CRIU cannot restore: see %s", b->log);
	wait_tick(v, n, cut);
	s = now_s() - begin;
	snprintf(path, sizeof(path), "%s/pid", v->images);
	f = fopen(path, "r");
	if (!f || fscanf(f, "%d", &v->pid) != 1)
		die("%s has no pid", path);
	fclose(f);
	return s;
}

static void criu_start(const struct bench *b, struct victim *v)
{
	struct clone_args a = { .flags = CLONE_NEWPID, .exit_signal = SIGCHLD };

	v->pid = syscall(SYS_clone3, &a, sizeof(a));
	if (!v->pid)
		victim_exec(b, v, NULL, 0);
	if (v->pid < 0)
		die("clone3: %s", strerror(errno));
	wait_tick(v, 0, 0);
}

/* ------------------------------------------------------------------- singvgpu checkpoint */

static void our_dump(const struct bench *b, struct victim *v, const char *more)
{
	char path[600];
	FILE *f;

	snprintf(path, sizeof(path), "%s/id", b->dir);
	if (program(b, NULL, "'%s/tools/singvgpu' checkpoint %s --store '%s' %d >'%s'", b->build,
		    more, v->store, v->pid, path))
		die("singvgpu cannot checkpoint: see %s", b->log);
	f = fopen(path, "r");
	if (!f || fscanf(f, "%63s", v->id) != 1)
		die("%s has no id", path);
	fclose(f);
}

static void our_dump_running(const struct bench *b, struct victim *v)
{
	our_dump(b, v, "--leave-running");
}

static double our_restore(const struct bench *b, struct victim *v, uint64_t cut)
{
	uint64_t n = look(v).n;
	double begin = now_s();
	char tool[512];
	int log;

	snprintf(tool, sizeof(tool), "%s/tools/singvgpu", b->build);
	v->pid = fork();
	if (!v->pid) {
		log = open(b->log, O_WRONLY | O_APPEND | O_CREAT, 0600);
		if (dup2(log, 1) < 0 || dup2(log, 2) < 0)
			_exit(127);
		execl(tool, tool, "restore", "--store", v->store, v->id, NULL);
		_exit(127);
	}
	wait_tick(v, n, cut);
	return now_s() - begin;
}

static void our_start(const struct bench *b, struct victim *v)
{
	char tool[512];
	char *const before[] = { tool, "run", "--store", v->store, "--" };

	snprintf(tool, sizeof(tool), "%s/tools/singvgpu", b->build);
	v->pid = fork();
	if (!v->pid)
		victim_exec(b, v, before, 5);
	if (v->pid < 0)
		die("fork: %s", strerror(errno));
	wait_tick(v, 0, 0);
}

/* ------------------------------------------------------------------------------- turns */

static const char *missing(const struct bench *b)
{
	if (geteuid())
		return "CRIU needs root";
	if (program(b, NULL, "'%s/criu/criu' check", b->build))
		return "there is no CRIU in the build folder, or its check fails";
	return NULL;
}

static struct victim stock, ours;

static void clean_up(void)
{
	if (stock.pid)
		victim_end(&stock, SIGKILL);
	if (ours.pid)
		victim_end(&ours, SIGTERM);
	if (*shm) {
		char cmd[160];

		snprintf(cmd, sizeof(cmd), "rm -rf %s %s.store", shm, shm);
		if (system(cmd))
			fprintf(stderr, "ckpt: %s stays\n", shm);
	}
}

/* Stock CRIU's images, which are to be read from the disk: not from the page cache. */
static void forget_images(const struct bench *b, const struct victim *v)
{
	if (program(b, NULL, "for f in '%s'/*; do dd if=\"$f\" iflag=nocache count=0 status=none && "
		    "dd of=\"$f\" oflag=nocache conv=notrunc,fdatasync count=0 status=none; done",
		    v->images))
		die("cannot drop %s from the page cache: see %s", v->images, b->log);
}

/* Rates of restores, one of each kind in a turn. */
struct rates {
	double stock[16], ours[16];
	double alone[16];	/* ours, all pages through CRIU; from the disk only */
};

/* Dumps that end them, then restores; what is restored is killed again, but the last. */
static void restores(const struct bench *b, struct rates *r, bool disk, int n)
{
	uint64_t cut, our_cut;

	criu_dump(b, &stock, "");
	victim_end(&stock, 0);
	cut = look(&stock).n;
	our_dump(b, &ours, "");
	victim_end(&ours, 0);
	our_cut = look(&ours).n;
	for (int i = 0; i < n; i++) {
		if (i) {
			victim_end(&stock, SIGKILL);
			victim_end(&ours, SIGTERM);
		}
		if (disk)
			forget_images(b, &stock);
		r->stock[i] = stock.bytes / 1e9 / criu_restore(b, &stock, cut);
		if (disk) {
			setenv("SINGVGPU_CRIU_ALONE", "1", 1);
			r->alone[i] = ours.bytes / 1e9 / our_restore(b, &ours, our_cut);
			unsetenv("SINGVGPU_CRIU_ALONE");
			victim_end(&ours, SIGTERM);
		}
		r->ours[i] = ours.bytes / 1e9 / our_restore(b, &ours, our_cut);
	}
}

static void bench_restore(const struct bench *b, int n)
{
	double reads[16], huge[16], our_gbs;
	struct rates disk, tmpfs;

	snprintf(stock.images, sizeof(stock.images), "%s/images", b->dir);
	restores(b, &disk, true, n);
	strcpy(stock.images, shm);
	snprintf(ours.store, sizeof(ours.store), "%s.store", shm);
	restores(b, &tmpfs, false, n);
	our_gbs = median(disk.ours, n);
	metric("criu.restore_gbs", median(disk.stock, n), "GB/s");
	metric("restore.gbs", our_gbs, "GB/s");
	metric_bar("restore.vs_criu", our_gbs / median(disk.stock, n), 0.9, NAN);
	metric("restore.alone_gbs", median(disk.alone, n), "GB/s");
	metric("restore.direct_gain", our_gbs / median(disk.alone, n), "ratio");
	if (fio_read(b, reads, huge, n, ours.bytes)) {
		metric("fio.read_gbs", median(reads, n) / 1e9, "GB/s");
		metric("restore.vs_fio", our_gbs / (median(reads, n) / 1e9), "ratio");
		metric("fio.read_huge_gbs", median(huge, n) / 1e9, "GB/s");
		metric("restore.vs_fio_huge", our_gbs / (median(huge, n) / 1e9), "ratio");
	}
	metric("criu.restore_memory_gbs", median(tmpfs.stock, n), "GB/s");
	metric("restore.memory_gbs", median(tmpfs.ours, n), "GB/s");
	metric_bar("restore.memory_vs_criu", median(tmpfs.ours, n) / median(tmpfs.stock, n), 1.8, NAN);
}

void bench_criu(const struct bench *b)
{
	double frozen[16], our_frozen[16], first;
	int n = b->turns < 16 ? b->turns : 16;
	const char *why = missing(b);

	if (why) {
		printf("# criu: %s\n", why);
		return;
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	atexit(clean_up);
	stock.bytes = ours.bytes = b->size / 2;
	snprintf(shm, sizeof(shm), "/dev/shm/singvgpu-bench.%d", getpid());
	strcpy(stock.images, shm);
	snprintf(stock.path, sizeof(stock.path), "%s/ticks", b->dir);
	snprintf(ours.path, sizeof(ours.path), "%s/our_ticks", b->dir);
	snprintf(ours.store, sizeof(ours.store), "%s/store", b->dir);
	criu_start(b, &stock);
	our_start(b, &ours);
	first = pause_of(&ours, our_dump_running, b) * GIB / ours.bytes;
	for (int i = 0; i < n; i++) {
		frozen[i] = pause_of(&stock, criu_dump_running, b) * GIB / stock.bytes;
		our_frozen[i] = pause_of(&ours, our_dump_running, b) * GIB / ours.bytes;
	}
	metric("criu.tmpfs_s_per_gib", median(frozen, n), "s/GiB");
	metric("ckpt.first_frozen_s_per_gib", first, "s/GiB");
	metric("ckpt.frozen_s_per_gib", median(our_frozen, n), "s/GiB");
	metric_bar("ckpt.frozen_vs_criu", median(our_frozen, n) / median(frozen, n), NAN, 0.3);
	bench_restore(b, n);
}
