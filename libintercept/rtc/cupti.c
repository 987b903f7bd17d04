// SPDX-License-Identifier: Apache-2.0
/*
 * cupti.c - CUPTI's version, which JAX asks for before it uses a device
 *
 * CUPTI fails at its first call, this one too, as the stand-in refuses the private tables that it
 * needs. Its other calls go on failing.
 */
#include "rtc_i.h"

#include <dlfcn.h>
#include <stdio.h>

/* The oldest version with the library's soname, which is its symbols' version; 0: unknown. */
static uint32_t oldest(const struct rtc_lib *lib)
{
	Dl_info info;
	void *h = NULL;
	uint32_t found = 0;
	char soname[32];

	if (dladdr((void *)lib->cuptiGetVersion, &info) && info.dli_fname)
		h = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	for (int major = 12; h && !found && major < 32; major++) {
		snprintf(soname, sizeof(soname), "libcupti.so.%d", major);
		if (dlvsym(h, "cuptiGetVersion", soname))
			found = major == 12 ? 19 : major * 10000;
	}
	if (h)
		dlclose(h);
	dlerror();
	return found;
}

int rtc_cuptiGetVersion(struct rtc_lib *lib, uint32_t *version)
{
	int rc = lib->cuptiGetVersion(version);
	uint32_t least;

	if (!rc || rc == CUPTI_INVALID_PARAMETER)
		return rc;
	if (!version)
		return CUPTI_INVALID_PARAMETER;
	least = oldest(lib);
	if (!least)
		return rc;
	*version = least;
	return 0;
}
