// SPDX-License-Identifier: Apache-2.0
/*
 * idle.c - notes, when a process ends, that it had CUDA's runtime: the launcher tells of a job whose
 * kernels nobody launched, since frameworks take the CPU without a word
 *
 * The note is a line with the program's name in `idle`, in the job's folder. A process that has had a communicator is
 * not one of them: it has used its device, whatever has become of its collectives.
 */
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_runtime(struct dl_phdr_info *info, size_t size, void *arg)
{
	const char *base = strrchr(info->dlpi_name, '/');

	(void)size;
	(void)arg;
	return !strncmp(base ? base + 1 : info->dlpi_name, "libcudart.so", 12);
}

static void __attribute__((destructor)) idle_note(void)
{
	const char *path = getenv("SINGVGPU_SOCKET"), *slash = path ? strrchr(path, '/') : NULL;
	char file[PATH_MAX], name[64];
	int fd, n;

	if (!slash || process_has_posted() || !dl_iterate_phdr(is_runtime, NULL) ||
	    snprintf(file, sizeof(file), "%.*s/idle", (int)(slash - path), path) >= (int)sizeof(file))
		return;
	n = snprintf(name, sizeof(name), "%.60s\n", program_invocation_short_name);
	fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	if (write(fd, name, n) < 0)
		n = 0;		/* no note, then */
	close(fd);
}
