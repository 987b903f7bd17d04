// SPDX-License-Identifier: Apache-2.0
/*
 * ckpt_peers.c - fio's bandwidth on the disk; times and sizes of restic, borg and casync
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt.h"

int program(const struct bench *b, double *seconds, const char *fmt, ...)
{
	char cmd[4096];
	double begin;
	int status, n, tail;
	va_list ap;

	n = snprintf(cmd, sizeof(cmd), "exec >>'%s' 2>&1; ", b->log);
	va_start(ap, fmt);
	tail = vsnprintf(cmd + n, sizeof(cmd) - n, fmt, ap);
	va_end(ap);
	if (tail < 0 || tail >= (int)sizeof(cmd) - n)
		die("a command is too long: %s", cmd);
	begin = now_s();
	status = system(cmd);
	if (seconds)
		*seconds = now_s() - begin;
	return status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static uint64_t summed;

static int sum_file(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	uint64_t blocks = (uint64_t)st->st_blocks * 512;

	(void)path, (void)ftw;
	if (flag == FTW_F)
		summed += blocks > (uint64_t)st->st_size ? blocks : (uint64_t)st->st_size;
	return 0;
}

uint64_t folder_bytes(const char *path)
{
	summed = 0;
	if (nftw(path, sum_file, 16, FTW_PHYS))
		die("%s: %s", path, strerror(errno));
	return summed;
}

void folder_remove(const struct bench *b, const char *path)
{
	if (program(b, NULL, "rm -rf '%s'", path))
		die("%s cannot be removed: see %s", path, b->log);
}

static bool there(const struct bench *b, const char *name)
{
	return !program(b, NULL, "command -v %s", name);
}

/* ------------------------------------------------------------------------------- fio */

/* The number behind "bw_bytes" in the part "read" or "write" of fio's JSON. */
static double fio_bandwidth(const char *path, const char *what)
{
	char line[512], part[32];
	bool within = false;
	double v = 0;
	FILE *f = fopen(path, "r");

	snprintf(part, sizeof(part), "\"%s\" : {", what);
	while (f && !v && fgets(line, sizeof(line), f)) {
		const char *at = strstr(line, "\"bw_bytes\"");

		within = within || strstr(line, part);
		if (within && at)
			sscanf(at, "\"bw_bytes\" : %lf", &v);
	}
	if (f)
		fclose(f);
	return v;
}

/* huge: its buffers are of huge pages, as ours are, which a virtio disk takes more of at once. */
static double fio(const struct bench *b, const char *what, const char *bs, int depth, uint64_t size,
		  bool huge)
{
	char json[600];
	double v;

	snprintf(json, sizeof(json), "%s/fio.json", b->dir);
	if (program(b, NULL, "GLIBC_TUNABLES=glibc.malloc.hugetlb=%d fio --name=%s "
		    "--filename='%s/fio.data' --rw=%s --size=%llu --bs=%s --ioengine=io_uring "
		    "--direct=1 --iodepth=%d --output-format=json --output='%s'", huge, what,
		    b->dir, what, (unsigned long long)size, bs, depth, json))
		die("fio fails: see %s", b->log);
	v = fio_bandwidth(json, what);
	if (v <= 0)
		die("%s has no bandwidth", json);
	return v;
}

static void fio_remove(const struct bench *b)
{
	program(b, NULL, "rm -f '%s/fio.data' '%s/fio.json'", b->dir, b->dir);
}

double fio_write(const struct bench *b, const char *bs, uint64_t size, bool huge)
{
	double v = there(b, "fio") ? fio(b, "write", bs, 8, size, huge) : 0;

	fio_remove(b);
	return v;
}

int fio_read(const struct bench *b, double *v, double *huge, int n, uint64_t size)
{
	if (!there(b, "fio"))
		return 0;
	fio(b, "write", "1M", 8, size, false);
	for (int i = 0; i < n; i++) {
		v[i] = fio(b, "read", "1M", 16, size, false);
		huge[i] = fio(b, "read", "1M", 16, size, true);
	}
	fio_remove(b);
	return n;
}

/* ----------------------------------------------------------------------------- peers */

/*
 * Commands, with REPO for the repository; FILE is a dump, N its number. The peers' own defaults, and
 * what suits them best for pages: that each is at its best is what the comparison wants.
 */
static const struct peer {
	const char *name, *program, *init, *store, *check;
} all_peers[] = {
	{ "restic", "restic", "restic -r REPO init", "restic -r REPO --no-cache backup FILE",
	  "restic -r REPO --no-cache snapshots | grep -q '^2 snapshots'" },
	{ "restic_plain", "restic", "restic -r REPO init",
	  "restic -r REPO --no-cache --compression off backup FILE",
	  "restic -r REPO --no-cache snapshots | grep -q '^2 snapshots'" },
	{ "borg", "borg", "borg init -e none REPO", "borg create REPO::N FILE",
	  "[ $(borg list --short REPO | wc -l) = 2 ]" },
	{ "borg_pages", "borg", "borg init -e none REPO",
	  "borg create --compression none --chunker-params fixed,4096 REPO::N FILE",
	  "[ $(borg list --short REPO | wc -l) = 2 ]" },
	{ "casync", "casync", "mkdir -p REPO", "casync make --store=REPO/store REPO/N.caibx FILE",
	  "[ -s REPO/1.caibx ] && [ -s REPO/2.caibx ]" },
};

#define N_PEERS (sizeof(all_peers) / sizeof(all_peers[0]))

/* The command, with the words replaced. */
static char *command(const struct bench *b, const char *text, const char *file, int n)
{
	char *out = NULL;
	size_t size;
	FILE *f = open_memstream(&out, &size);

	while (f && *text) {
		if (!strncmp(text, "REPO", 4)) {
			fprintf(f, "%s/repo", b->dir);
			text += 4;
		} else if (!strncmp(text, "FILE", 4)) {
			fputs(file, f);
			text += 4;
		} else if (*text == 'N') {
			fprintf(f, "%d", n);
			text++;
		} else {
			putc(*text++, f);
		}
	}
	if (!f || fclose(f))
		die("no memory");
	return out;
}

static double run(const struct bench *b, const char *text, const char *file, int n)
{
	char *cmd = command(b, text, file, n);
	double seconds;

	if (program(b, &seconds, "%s", cmd))
		die("'%s' fails: see %s", cmd, b->log);
	free(cmd);
	return seconds;
}

static void peer(const struct bench *b, const struct dumps *d, const struct peer *p)
{
	static const char *const which[] = { "first", "second" };
	char repo[600], name[64];
	uint64_t before;

	if (!there(b, p->program)) {
		printf("# peer.%s: %s is not installed\n", p->name, p->program);
		return;
	}
	snprintf(repo, sizeof(repo), "%s/repo", b->dir);
	run(b, p->init, "", 0);
	for (int i = 0; i < 2; i++) {
		double s;

		sync();
		before = folder_bytes(repo);
		s = run(b, p->store, d->path[i], i + 1);
		snprintf(name, sizeof(name), "peer.%s.%s_s", p->name, which[i]);
		metric(name, s, "s");
		snprintf(name, sizeof(name), "peer.%s.%s_bytes", p->name, which[i]);
		metric(name, folder_bytes(repo) - before, "B");
	}
	run(b, p->check, "", 0);
	folder_remove(b, repo);
}

void peers(const struct bench *b, const struct dumps *d)
{
	char home[600];

	/* Keys, and caches that are thrown away. */
	snprintf(home, sizeof(home), "%s/home", b->dir);
	setenv("RESTIC_PASSWORD", "bench", 1);
	setenv("BORG_BASE_DIR", home, 1);
	setenv("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes", 1);
	for (const struct peer *p = all_peers; p < all_peers + N_PEERS; p++)
		peer(b, d, p);
	folder_remove(b, home);
}

double peers_best(const char *key)
{
	double best = NAN;

	for (const struct peer *p = all_peers; p < all_peers + N_PEERS; p++) {
		char name[64];

		snprintf(name, sizeof(name), "peer.%s.%s", p->name, key);
		best = fmin(best, metric_get(name));
	}
	return best;
}
