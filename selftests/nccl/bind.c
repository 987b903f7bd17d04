// SPDX-License-Identifier: Apache-2.0
/*
 * bind.c - which library dlopen gives for each of the names, and that it is the one linked, too: bind NAME...
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	Dl_info linked, found;

	if (!dladdr((void *)ncclAllReduce, &linked))
		return 1;
	printf("linked: %s\n", linked.dli_fname);
	for (int i = 1; i < argc; i++) {
		void *lib = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
		void *f = lib ? dlsym(lib, "ncclAllReduce") : NULL;

		if (!f || !dladdr(f, &found)) {
			printf("%s: %s\n", argv[i], dlerror());
			return 1;
		}
		printf("%s\n", f == (void *)ncclAllReduce ? "the same" : found.dli_fname);
	}
	return 0;
}
