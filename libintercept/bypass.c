// SPDX-License-Identifier: Apache-2.0
/*
 * bypass.c - detects programs that reach the GPU without this library
 *
 * Some programs load a driver library by its full path, or ship an NCCL of their own. Calls
 * through these do not pass this library, so the job would run but could not be moved. The
 * process's mappings show them: another libcuda, one of NVIDIA's device files, another NCCL.
 * They are checked when a session begins, and when an image is loaded after the set of loaded
 * objects has changed. Each finding is sent once to the proxy, which prints it on the launcher's
 * terminal.
 */
#include "send.h"
#include "session.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FOUND_MAX 8

static char found[FOUND_MAX][256];
static int n_found;

/* lock */
static void add(const char *path)
{
	if (n_found == FOUND_MAX)
		return;
	for (int i = 0; i < n_found; i++)
		if (!strcmp(found[i], path))
			return;
	snprintf(found[n_found++], sizeof(found[0]), "%.255s", path);
}

/* Without the lock, since the ring may be full. Entries do not change. */
static void tell(const char *path)
{
	client_log("%s is mapped: calls through it bypass singvgpu", path);
	send_async(SV_OP_X_BYPASS, path, strlen(path) + 1, NULL, 0);
}

static bool named(const char *path, const char *lib)
{
	const char *base = strrchr(path, '/');

	return !strncmp(base ? base + 1 : path, lib, strlen(lib));
}

struct file {
	dev_t dev;
	ino_t ino;
};

struct own {
	struct file cuda;	/* this library */
	char nccl[PATH_MAX];	/* the stand-in beside it; "": there is none */
};

static bool same(const struct file *a, const struct file *b)
{
	return a->dev == b->dev && a->ino == b->ino;
}

/* A line of /proc/self/maps: range perms offset dev inode path. */
static void look(char *line, const struct own *own, struct file *last)
{
	unsigned int maj, min;
	unsigned long ino;
	char *path = strchr(line, '/');
	struct file f;

	if (!path || sscanf(line, "%*s %*s %*s %x:%x %lu", &maj, &min, &ino) != 3)
		return;
	path[strcspn(path, "\n")] = 0;
	f = (struct file){ (dev_t)maj << 20 | min, ino };
	if (same(&f, last))
		return;
	*last = f;
	if (!strncmp(path, "/dev/nvidia", 11) ||
	    (named(path, "libcuda.so") && !same(&f, &own->cuda)) ||
	    (named(path, "libnccl.so") && strcmp(path, own->nccl)))
		add(path);
}

static void find_nccl(struct own *own)
{
	char path[PATH_MAX];
	Dl_info info;
	const char *end;

	if (!dladdr((void *)bypass_check, &info) || !info.dli_fname)
		return;
	end = strrchr(info.dli_fname, '/');
	if (!end || snprintf(path, sizeof(path), "%.*s/libnccl.so.2", (int)(end - info.dli_fname),
			     info.dli_fname) >= (int)sizeof(path) || !realpath(path, own->nccl))
		*own->nccl = 0;
}

static int adds_of(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	*(unsigned long long *)arg = info->dlpi_adds;
	return 1;
}

void bypass_check(void)
{
	static struct lock LOCK_APART lock = LOCK_INIT(LOCK_BYPASS);
	static unsigned long long seen;
	unsigned long long adds = 0;
	struct own own = { .nccl = "" };
	struct file last = { 0 };
	int before, after;
	char line[4400];
	FILE *f;

	dl_iterate_phdr(adds_of, &adds);
	lock_take(&lock);
	before = n_found;
	f = adds == seen ? NULL : fopen("/proc/self/maps", "re");
	seen = adds;
	while (f && fgets(line, sizeof(line), f)) {
		unsigned long from, to, ino;
		unsigned int maj, min;

		if (sscanf(line, "%lx-%lx %*s %*s %x:%x %lu", &from, &to, &maj, &min, &ino) ==
		    5 && (uintptr_t)bypass_check - from < to - from)
			own.cuda = (struct file){ (dev_t)maj << 20 | min, ino };
	}
	if (f) {
		find_nccl(&own);
		rewind(f);
		while (fgets(line, sizeof(line), f))
			look(line, &own, &last);
		fclose(f);
	}
	after = n_found;
	lock_drop(&lock);
	for (int i = before; i < after; i++)
		tell(found[i]);
}
