// SPDX-License-Identifier: Apache-2.0
/*
 * bypass.c - detects programs that reach the GPU without this library
 *
 * Some programs load a driver library by its full path, or ship an NCCL of their own. Calls
 * through these do not pass this library, so the job would run but could not be moved. The
 * process's mappings show them: another libcuda, one of NVIDIA's device files, a second NCCL.
 * They are checked when a session begins, and when an image is loaded after the set of loaded
 * objects has changed. Each finding is sent once to the proxy, which prints it on the launcher's
 * terminal.
 */
#include "client.h"

#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define FOUND_MAX 8

static char found[FOUND_MAX][256];
static int n_found;

static void tell(const char *path)
{
	if (n_found == FOUND_MAX)
		return;
	for (int i = 0; i < n_found; i++)
		if (!strcmp(found[i], path))
			return;
	snprintf(found[n_found++], sizeof(found[0]), "%.255s", path);
	client_log("%s is mapped: calls through it bypass singvgpu", path);
	send_async(SV_OP_X_BYPASS, path, strlen(path) + 1, NULL, 0);
}

static bool named(const char *path, const char *lib)
{
	const char *base = strrchr(path, '/');

	return !strncmp(base ? base + 1 : path, lib, strlen(lib));
}

struct own {
	dev_t dev;
	ino_t ino;
	int ncc;		/* copies of NCCL seen */
};

/* A line of /proc/self/maps: range perms offset dev inode path. */
static void look(char *line, struct own *own, dev_t *last_dev, ino_t *last_ino)
{
	unsigned int major, minor;
	unsigned long ino;
	char *path = strchr(line, '/');
	dev_t dev;

	if (!path || sscanf(line, "%*s %*s %*s %x:%x %lu", &major, &minor, &ino) != 3)
		return;
	path[strcspn(path, "\n")] = 0;
	dev = (dev_t)major << 20 | minor;
	if (dev == *last_dev && ino == *last_ino)
		return;
	*last_dev = dev;
	*last_ino = ino;
	if (!strncmp(path, "/dev/nvidia", 11))
		tell(path);
	else if (named(path, "libcuda.so") && (dev != own->dev || ino != own->ino))
		tell(path);
	else if (named(path, "libnccl.so") && own->ncc++)
		tell(path);
}

static int adds_of(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	*(unsigned long long *)arg = info->dlpi_adds;
	return 1;
}

void bypass_check(void)
{
	static struct lock lock = LOCK_INIT(LOCK_BYPASS);
	static unsigned long long seen;
	unsigned long long adds = 0;
	struct own own = { 0 };
	dev_t last_dev = 0;
	ino_t last_ino = 0;
	char line[4400];
	FILE *f;

	dl_iterate_phdr(adds_of, &adds);
	lock_take(&lock);
	f = adds == seen ? NULL : fopen("/proc/self/maps", "re");
	seen = adds;
	while (f && fgets(line, sizeof(line), f)) {
		unsigned long from, to, ino;
		unsigned int major, minor;

		if (sscanf(line, "%lx-%lx %*s %*s %x:%x %lu", &from, &to, &major, &minor, &ino) ==
		    5 && (uintptr_t)bypass_check - from < to - from) {
			own.dev = (dev_t)major << 20 | minor;
			own.ino = ino;
		}
	}
	if (f) {
		rewind(f);
		while (fgets(line, sizeof(line), f))
			look(line, &own, &last_dev, &last_ino);
		fclose(f);
	}
	lock_drop(&lock);
}
