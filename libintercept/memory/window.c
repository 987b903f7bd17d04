// SPDX-License-Identifier: Apache-2.0
/*
 * window.c - reserves the addresses of the channel and of device memory in the program
 *
 * Both have the same addresses as in the proxy. The program must not map its own memory at the
 * window's addresses, which would then be ambiguous; so the window is reserved when the session
 * begins. A program that is linked with libcuda may have mapped memory there by then (Go's heap
 * begins at a random address). For such a program both are reserved, at the addresses
 * that the proxy tries first, before its own code runs.
 */
#include "space.h"
#include "windows.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHANNEL_ROOM	(1ull << 40)	/* somewhat more than a proxy's arena */

/*
 * A shared mapping of an empty file uses no memory, and CRIU dumps it in no time. The file stays
 * empty: the mapping is never accessed, and RLIMIT_FSIZE of the program could forbid a length.
 */
static int reserve(struct reserved *to, uint64_t base, uint64_t len)
{
	int fd = memfd_create("singvgpu-window", MFD_CLOEXEC);
	void *at;

	if (fd < 0)
		return -errno;
	at = mmap((void *)base, len, PROT_NONE,
		  MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd, 0);
	close(fd);
	if (at != (void *)base) {
		if (at != MAP_FAILED)
			munmap(at, len);
		return -EEXIST;
	}
	*to = (struct reserved){ base, len };
	return 0;
}

static void give_up(struct reserved *p)
{
	if (p->len)
		munmap((void *)p->base, p->len);
	p->len = 0;
}

void window_make_way(void)
{
	give_up(&process.channel_at);
}

int window_reserve(struct reserved *window, uint64_t base, uint64_t len)
{
	struct reserved *spare = &process.window_at;
	int rc;

	if (spare->base == base && spare->len == len) {
		*window = *spare;
		spare->len = 0;
		return 0;
	}
	give_up(spare);
	rc = reserve(window, base, len);
	if (rc)
		client_log("the device window at %#lx is taken in this process", (long)base);
	return rc;
}

void window_leave(struct reserved *window)
{
	give_up(&process.window_at);
	process.window_at = *window;
	window->len = 0;
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
	struct sv_window w[SV_WINDOWS_MAX];

	if (!getenv("SINGVGPU_SOCKET") || !linked_with_cuda())
		return;
	reserve(&process.channel_at, RING_VA_BASE, CHANNEL_ROOM);
	if (sv_windows_parse(getenv("SINGVGPU_WINDOW") ?: "", w) < 1)
		w[0] = (struct sv_window){ SV_WINDOW_BASE, SV_WINDOW_LEN };
	reserve(&process.window_at, w[0].base, w[0].len);
}
