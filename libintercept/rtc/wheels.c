// SPDX-License-Identifier: Apache-2.0
/*
 * wheels.c - dlopen: NVIDIA's libraries from PyPI, each in a folder of its own, …/nvidia/NAME/lib; and NCCL
 *
 * A framework's library opens them by name and finds them by its own search path. TensorFlow's lacks
 * cuSOLVER's folder, and the program would use the CPU. So dlopen first loads the library from beside
 * one that the process has from there already; the name is enough then.
 *
 * NCCL is a stand-in (libintercept/nccl). The loader finds it where a library names it, since it is
 * preloaded; dlopen of a path to another one is given ours.
 */
#include "rtc_i.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOCAL __attribute__((visibility("hidden")))

typedef void *dlopen_fn(const char *, int);

LOCAL dlopen_fn *rtc_real_dlopen;
LOCAL const char *rtc_dlopen(const char *name);

/* The folder of the folders: /…/nvidia of /…/nvidia/cublas/lib/libcublas.so.12. */
static int find_root(struct dl_phdr_info *info, size_t size, void *arg)
{
	const char *path = info->dlpi_name, *at = strstr(path, "/nvidia/"), *lib;
	char *root = arg;

	(void)size;
	lib = at ? strchr(at + strlen("/nvidia/"), '/') : NULL;
	if (!lib || strncmp(lib, "/lib/lib", strlen("/lib/lib")) ||
	    (size_t)(at - path) + strlen("/nvidia") >= PATH_MAX)
		return 0;
	memcpy(root, path, at - path);
	strcpy(root + (at - path), "/nvidia");
	return 1;
}

static bool in_search_path(const char *name)
{
	const char *list = getenv("LD_LIBRARY_PATH");
	char path[PATH_MAX];
	size_t n;

	for (; list && *list; list += n + !!list[n]) {
		n = strcspn(list, ":;");
		if (n && snprintf(path, sizeof(path), "%.*s/%s", (int)n, list, name) < PATH_MAX &&
		    !access(path, F_OK))
			return true;
	}
	return false;
}

static bool beside(const char *root, const char *name, char path[PATH_MAX])
{
	DIR *dir = opendir(root);
	struct dirent *e;
	bool found = false;

	while (dir && !found && (e = readdir(dir)))
		found = e->d_name[0] != '.' &&
			snprintf(path, PATH_MAX, "%s/%s/lib/%s", root, e->d_name, name) < PATH_MAX &&
			!access(path, R_OK);
	if (dir)
		closedir(dir);
	return found;
}

static char nccl[PATH_MAX];	/* the stand-in for NCCL; "": there is none beside this library */

static void find_nccl(void)
{
	const char *end;
	Dl_info info;

	if (!dladdr(nccl, &info) || !info.dli_fname)
		return;
	end = strrchr(info.dli_fname, '/');
	if (!end || snprintf(nccl, sizeof(nccl), "%.*s/libnccl.so.2", (int)(end - info.dli_fname),
			     info.dli_fname) >= (int)sizeof(nccl) || access(nccl, R_OK))
		*nccl = 0;
}

/* The name that is to be opened in place of this one. */
static const char *stand_in(const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const char *base = strrchr(name, '/');

	if (strncmp(base ? base + 1 : name, "libnccl.so", strlen("libnccl.so")))
		return name;
	pthread_once(&once, find_nccl);
	if (!*nccl)
		return name;
	if (base && strcmp(name, nccl))
		rtc_log("%s is %s", name, nccl);
	return nccl;
}

/* What dlopen does before libc's, which gets the result; errno and dlerror() are libc's. */
const char *rtc_dlopen(const char *name)
{
	char root[PATH_MAX], path[PATH_MAX];
	int err = errno;
	void *h;

	if (!rtc_real_dlopen)
		__atomic_store_n(&rtc_real_dlopen, (dlopen_fn *)rtc_next("dlopen"), __ATOMIC_RELAXED);
	if (name)
		name = stand_in(name);
	if (!name || strchr(name, '/') || (strncmp(name, "libcu", 5) && strncmp(name, "libnv", 5))) {
		errno = err;
		return name;
	}
	h = rtc_real_dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
	if (h)
		dlclose(h);
	else if (dl_iterate_phdr(find_root, root) && !in_search_path(name) &&
		 beside(root, name, path) && rtc_real_dlopen(path, RTLD_LAZY | RTLD_LOCAL))
		rtc_log("%s is %s", name, path);
	dlerror();
	errno = err;
	return name;
}

#if defined(__x86_64__)
/* libc's dlopen searches for its caller, so it is reached by a jump, with our caller's address. */
__asm__(".text\n"
	".globl dlopen\n"
	".type dlopen, @function\n"
	"dlopen:\n"
	"	.cfi_startproc\n"
	"	endbr64\n"
	"	push %rdi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	push %rsi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	sub $8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	call rtc_dlopen\n"
	"	mov %rax, 16(%rsp)\n"
	"	add $8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	pop %rsi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	pop %rdi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	jmp *rtc_real_dlopen(%rip)\n"
	"	.cfi_endproc\n"
	".size dlopen, . - dlopen\n");
#endif
