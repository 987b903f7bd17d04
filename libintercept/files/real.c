// SPDX-License-Identifier: Apache-2.0
/*
 * real.c - the definitions behind ours, found once: by the constructor, or by an earlier first call
 */
#include <dlfcn.h>
#include <errno.h>

#include "files_i.h"

struct real real_table;
int real_ready;

static long missing(void)
{
	errno = ENOSYS;
	return -1;
}

static void *find(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);

	return f ? f : (void *)missing;
}

/* Twice at once does no harm: both find the same. */
void real_fill(void)
{
	int err = errno;

#define X(name) __atomic_store_n(&real_table.name, (typeof(name) *)find(#name), __ATOMIC_RELAXED);
	REAL_FUNCTIONS(X)
#undef X
	__atomic_store_n(&real_ready, 1, __ATOMIC_RELEASE);
	errno = err;
}
