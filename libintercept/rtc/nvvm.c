// SPDX-License-Identifier: Apache-2.0
/*
 * nvvm.c - libNVVM for the soft device's own architecture: for the newest that it knows. It makes PTX alone.
 *
 * The library reports what it knows (nvvmLLVMVersion); one without that call is not changed.
 */
#include "rtc_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool accepts(struct rtc_lib *lib, int arch)
{
	char text[24];
	int version;

	snprintf(text, sizeof(text), "compute_%d", arch);
	return !lib->nvvmLLVMVersion(text, &version);
}

/* The architecture to pass instead; NULL: pass the program's. */
static const char *instead(struct rtc_lib *lib, const char *arch, char text[24])
{
	bool real;
	int n = arch ? rtc_arch(arch, &real) : 0, use, version;

	if (!n || real || !lib->nvvmLLVMVersion || !lib->nvvmLLVMVersion(arch, &version) ||
	    rtc_own(true) != n)
		return NULL;
	use = rtc_newest(lib, n, accepts);
	if (!use)
		return NULL;
	snprintf(text, 24, "compute_%d", use);
	return text;
}

static int with_options(struct rtc_lib *lib, int (*call)(void *, int, const char **), void *p, int n,
			const char **opt)
{
	char text[32] = "-arch=";
	const char **out = n > 0 && opt ? malloc(n * sizeof(*out)) : NULL;
	int rc;

	for (int i = 0; out && i < n; i++) {
		out[i] = opt[i];
		if (opt[i] && !strncmp(opt[i], "-arch=", 6) && instead(lib, opt[i] + 6, text + 6))
			out[i] = text;
	}
	rc = call(p, n, out ?: opt);
	free(out);
	return rc;
}

int rtc_nvvmCompileProgram(struct rtc_lib *lib, void *p, int n, const char **opt)
{
	return with_options(lib, lib->nvvmCompileProgram, p, n, opt);
}

int rtc_nvvmVerifyProgram(struct rtc_lib *lib, void *p, int n, const char **opt)
{
	return with_options(lib, lib->nvvmVerifyProgram, p, n, opt);
}

int rtc_nvvmLLVMVersion(struct rtc_lib *lib, const char *arch, int *version)
{
	char text[24];

	return lib->nvvmLLVMVersion(instead(lib, arch, text) ?: arch, version);
}
