// SPDX-License-Identifier: Apache-2.0
/*
 * oracle.c - compares the generated table of names with what NVIDIA's own library answers
 *
 * oracle LIBCUDA: cuGetProcAddress works without a device. For each row that the library's release
 * can know, it must return the row's symbol for the row's version, and for the version before it
 * the symbol that the table has for that.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_ops.h"
#include "names.h"

typedef CUresult (*get_proc)(const char *name, void **fn, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status);

static void *lib;
static get_proc ask;
static int different;

static void compare(const char *base, int version, int per_thread)
{
	CUdriverProcAddressQueryResult status = 99;
	int known;
	const struct names_row *r = names_find(base, version, per_thread, &known);
	void *theirs = NULL, *ours = r ? dlsym(lib, r->symbol) : NULL;

	if (ask(base, &theirs, version, per_thread ? 2 : 1, &status) != CUDA_SUCCESS)
		theirs = NULL;
	if (theirs == ours)
		return;
	different++;
	printf("# %s %d%s: we say %s, status %d\n", base, version, per_thread ? " per thread" : "",
	       r ? r->symbol : "none", status);
}

int main(int argc, char **argv)
{
	int release = 0, rows = 0;
	CUresult (*version)(int *v);

	lib = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!lib) {
		printf("Bail out! %s\n", argc == 2 ? dlerror() : "usage: oracle LIBCUDA");
		return 1;
	}
	*(void **)&ask = dlsym(lib, "cuGetProcAddress_v2");
	*(void **)&version = dlsym(lib, "cuDriverGetVersion");
	if (!ask || !version || version(&release)) {
		printf("Bail out! this is no libcuda\n");
		return 1;
	}
	for (int i = 0; i < names_count; i++) {
		const struct names_row *r = &names_rows[i];

		if (r->version > release)
			continue;
		rows++;
		compare(r->base, r->version, r->per_thread);
		compare(r->base, r->version - 1, r->per_thread);
		compare(r->base, release, r->per_thread);
	}
	printf("TAP version 13\n1..1\n%sok 1 - %d rows up to %d.%d agree with the driver's own\n",
	       different || rows < 500 ? "not " : "", rows, release / 1000, release % 1000 / 10);
	return different || rows < 500;
}
