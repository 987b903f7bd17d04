// SPDX-License-Identifier: Apache-2.0
/*
 * library.c - finds NVIDIA's libnccl.so.2: the file that SINGVGPU_NCCL names, or what the loader has
 *
 * Our stand-in for it is never taken: that is the job's, and would send its calls back to this proxy.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_i.h"

#define OLDEST 21400 /* communicators that do not block */

static void *find_symbol(void *lib, const char *name)
{
	return dlsym(lib, name);
}

static const char *lacks(const struct transport *c)
{
#define NEED(f) do { if (!c->nccl.f) return #f; } while (0)
	NEED(ncclGetVersion);
	NEED(ncclGetUniqueId);
	NEED(ncclGetErrorString);
	NEED(ncclCommInitRankConfig);
	NEED(ncclCommGetAsyncError);
	NEED(ncclCommFinalize);
	NEED(ncclCommDestroy);
	NEED(ncclCommAbort);
	NEED(ncclGroupStart);
	NEED(ncclGroupEnd);
	NEED(ncclSend);
	NEED(ncclRecv);
	NEED(ncclBroadcast);
	NEED(ncclAllGather);
	NEED(ncclAllReduce);
	NEED(ncclReduce);
	NEED(ncclReduceScatter);
	NEED(ncclRedOpCreatePreMulSum);
	NEED(ncclRedOpDestroy);
#undef NEED
	return NULL;
}

/* The stand-in alone has exits in front of libc's (libintercept/nccl/leave.c). */
static bool is_ours(void *lib, Dl_info *is)
{
	void *version = dlsym(lib, "ncclGetVersion"), *leaves = dlsym(lib, "_exit");
	Dl_info other;

	return version && dladdr(version, is) && leaves && dladdr(leaves, &other) &&
	       is->dli_fbase == other.dli_fbase;
}

int library_load(struct transport *c, struct why *why)
{
	const char *path = getenv("SINGVGPU_NCCL"), *text;
	int version = 0;
	Dl_info is = { 0 };
	void *lib;

	if (!path || !*path)
		path = "libnccl.so.2";
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return why_set(why, -ENOENT, "NVIDIA's NCCL is not found; SINGVGPU_NCCL=PATH names "
			       "libnccl.so.2: %s", dlerror());
	if (is_ours(lib, &is)) {
		why_set(why, -ENOENT, "%s is singvgpu's own library, not NVIDIA's NCCL; "
			"SINGVGPU_NCCL=PATH names that", is.dli_fname);
		dlclose(lib);
		return -ENOENT;
	}
	nccl_driver_load(&c->nccl, find_symbol, lib);
	text = lacks(c);
	if (!text && (c->nccl.ncclGetVersion(&version) || version < OLDEST))
		text = "communicators that do not block: it is older than 2.14";
	if (text)
		return why_set(why, -ENOSYS, "%s lacks %s", path, text);
	return 0;
}
