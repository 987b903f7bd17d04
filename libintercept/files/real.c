// SPDX-License-Identifier: Apache-2.0
/*
 * real.c - finds libc's own definitions once: in the constructor, or in an earlier first call
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

static void *find_real(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);

	return f ? f : (void *)missing;
}

/* Two threads at once do no harm: both find the same functions. */
void real_fill(void)
{
	int err = errno;

#define X(name) \
	__atomic_store_n(&real_table.name, (typeof(name) *)find_real(#name), __ATOMIC_RELAXED);
	REAL_FUNCTIONS(X)
#undef X
	__atomic_store_n(&real_ready, 1, __ATOMIC_RELEASE);
	errno = err;
}
