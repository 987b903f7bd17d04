// SPDX-License-Identifier: Apache-2.0
/*
 * window.c - the places of the channel and of device memory among the program's addresses
 *
 * Both are mapped where the proxy has them. Nothing else may be where device memory is: its addresses would
 * mean two things. So this window is reserved when the session begins. A program that is linked with
 * libcuda may have mapped something in one of the places by then (Go's heap begins at a random address):
 * for such a one they are reserved, where proxies have them by default, before any of its own code runs.
 */
#include "client.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHANNEL_ROOM	(1ull << 40)	/* some more than a proxy's arena */

struct place {
	uint64_t base, len;
};

static struct place window, channel;	/* what is reserved; len 0: nothing */

/* A shared mapping of an empty file costs no memory, and CRIU dumps it in no time (DESIGN 3). */
static int reserve(struct place *to, uint64_t base, uint64_t len)
{
	int fd = memfd_create("singvgpu-window", MFD_CLOEXEC);
	void *at = MAP_FAILED;

	if (fd < 0)
		return -errno;
	if (!ftruncate(fd, len))
		at = mmap((void *)base, len, PROT_NONE,
			  MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd, 0);
	close(fd);
	if (at != (void *)base) {
		if (at != MAP_FAILED)
			munmap(at, len);
		return -EEXIST;
	}
	*to = (struct place){ base, len };
	return 0;
}

static void give_up(struct place *p)
{
	if (p->len)
		munmap((void *)p->base, p->len);
	p->len = 0;
}

void window_make_way(void)
{
	give_up(&channel);
}

int window_reserve(uint64_t base, uint64_t len)
{
	int rc;

	if (window.base == base && window.len == len)
		return 0;
	give_up(&window);
	rc = reserve(&window, base, len);
	if (rc)
		client_log("the device window at %#lx is taken in this process", (long)base);
	return rc;
}

static bool linked_with_cuda(void)
{
	void *self = dlopen(NULL, RTLD_LAZY);
	const char *strings = NULL;
	struct link_map *map;
	bool found = false;

	if (!self || dlinfo(self, RTLD_DI_LINKMAP, &map))
		return false;
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++)
		if (d->d_tag == DT_STRTAB)
			strings = (const char *)d->d_un.d_ptr;
	for (const ElfW(Dyn) *d = map->l_ld; strings && d->d_tag != DT_NULL; d++)
		if (d->d_tag == DT_NEEDED && !strcmp(strings + d->d_un.d_val, "libcuda.so.1"))
			found = true;
	dlclose(self);
	return found;
}

static void __attribute__((constructor)) early(void)
{
	if (!getenv("SINGVGPU_SOCKET") || !linked_with_cuda())
		return;
	reserve(&channel, RING_VA_BASE, CHANNEL_ROOM);
	reserve(&window, SV_WINDOW_BASE, SV_WINDOW_LEN);
}
