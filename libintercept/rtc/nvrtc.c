// SPDX-License-Identifier: Apache-2.0
/*
 * nvrtc.c - NVRTC for the soft device's own architecture, and PTX where a program asks for machine code
 *
 * An NVRTC that does not know the soft device's architecture compiles for the newest that it
 * knows: PTX runs on newer devices, too. Features of a device's or a family's own architecture
 * (sm_130a) are not available. Where the job has the soft device, a program's machine code is its
 * PTX; that is decided when the program is compiled, so that size and contents agree.
 */
#include "rtc_i.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Programs whose machine code is their PTX. */
struct program {
	struct program *next;
	void *handle;
};

static struct program *programs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Removes the program from the list and returns it, or NULL. */
static struct program *forget(void *handle)
{
	struct program *p = NULL;

	pthread_mutex_lock(&lock);
	for (struct program **at = &programs; *at && !p; ) {
		if ((*at)->handle == handle) {
			p = *at;
			*at = p->next;
		} else {
			at = &(*at)->next;
		}
	}
	pthread_mutex_unlock(&lock);
	return p;
}

static bool remember(void *handle)
{
	struct program *p = malloc(sizeof(*p));

	if (!p)
		return false;
	p->handle = handle;
	pthread_mutex_lock(&lock);
	p->next = programs;
	programs = p;
	pthread_mutex_unlock(&lock);
	return true;
}

static bool gives_ptx(void *handle)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (struct program *p = programs; p; p = p->next)
		found |= p->handle == handle;
	pthread_mutex_unlock(&lock);
	return found;
}

/* The newest architecture below n that the library knows; 0 if it knows n, or has no list. */
static int newest_below(struct rtc_lib *lib, int n)
{
	int count, newest = 0, *archs;
	bool known = true;

	if (!lib->nvrtcGetNumSupportedArchs || !lib->nvrtcGetSupportedArchs ||
	    lib->nvrtcGetNumSupportedArchs(&count) || count < 1)
		return 0;
	archs = calloc(count, sizeof(*archs));
	if (archs && !lib->nvrtcGetSupportedArchs(archs)) {
		known = false;
		for (int i = 0; i < count; i++) {
			known |= archs[i] == n;
			if (archs[i] < n && archs[i] > newest)
				newest = archs[i];
		}
	}
	free(archs);
	return known ? 0 : newest;
}

/*
 * The list ends with the soft device's architecture, since some programs compile for listed ones
 * alone. It has as many entries as this thread's last call for their number returned.
 */
static __thread bool told;

int rtc_nvrtcGetNumSupportedArchs(struct rtc_lib *lib, int *n)
{
	int own = rtc_own(false), rc = lib->nvrtcGetNumSupportedArchs(n);

	told = !rc && own && newest_below(lib, own);
	if (!rc)
		*n += told;
	return rc;
}

int rtc_nvrtcGetSupportedArchs(struct rtc_lib *lib, int *to)
{
	int n, rc = lib->nvrtcGetSupportedArchs(to);

	if (!rc && told && !lib->nvrtcGetNumSupportedArchs(&n))
		to[n] = rtc_own(false);
	return rc;
}

/* The value of an architecture option, which may be the next argument; else NULL. */
static const char *arch_option(const char *const *opt, int n, int *at)
{
	static const char *const forms[] = { "--gpu-architecture", "-arch" };

	for (int i = 0; i < 2; i++) {
		size_t len = strlen(forms[i]);

		if (strncmp(opt[*at], forms[i], len))
			continue;
		if (opt[*at][len] == '=')
			return opt[*at] + len + 1;
		if (!opt[*at][len] && *at + 1 < n && opt[*at + 1])
			return opt[++*at];
	}
	return NULL;
}

#define TEXT_MAX 48

/* The options with the soft device's architecture replaced, to be freed; NULL: no replacement. */
static const char **replace(struct rtc_lib *lib, const char *const *opt, int n)
{
	const char **out = NULL, *value;
	int arch, use;
	bool real;
	char *text;

	for (int i = 0; opt && i < n && opt[i]; i++) {
		value = arch_option(opt, n, &i);
		arch = value ? rtc_arch(value, &real) : 0;
		use = arch ? newest_below(lib, arch) : 0;
		if (!use || rtc_own(true) != arch)
			continue;
		if (!out) {
			out = malloc(n * (sizeof(*out) + TEXT_MAX));
			if (!out)
				return NULL;	/* then NVRTC refuses the architecture */
			memcpy(out, opt, n * sizeof(*out));
			rtc_log("nvrtc: compute capability %d.%d is compiled for as %d.%d", arch / 10,
				arch % 10, use / 10, use % 10);
		}
		text = (char *)(out + n) + i * TEXT_MAX;
		snprintf(text, TEXT_MAX, "%s%s%d", value == opt[i] ? "" : "--gpu-architecture=",
			 real ? "sm_" : "compute_", use);
		out[i] = text;
	}
	return out;
}

int rtc_nvrtcCompileProgram(struct rtc_lib *lib, void *p, int n, const char *const *opt)
{
	const char **changed = replace(lib, opt, n);
	int rc;

	free(forget(p));
	rc = lib->nvrtcCompileProgram(p, n, changed ?: opt);
	free(changed);
	/* by now NVRTC itself has called cuInit */
	if (!rc && rtc_own(true) && !remember(p))
		return NVRTC_OUT_OF_MEMORY;
	return rc;
}

int rtc_nvrtcDestroyProgram(struct rtc_lib *lib, void **p)
{
	if (p)
		free(forget(*p));
	return lib->nvrtcDestroyProgram(p);
}

/* A size of 0 stays: a program compiled for a virtual architecture has no machine code. */
int rtc_nvrtcGetCUBINSize(struct rtc_lib *lib, void *p, size_t *n)
{
	int rc = lib->nvrtcGetCUBINSize(p, n);

	if (rc || !*n || !gives_ptx(p))
		return rc;
	return lib->nvrtcGetPTXSize(p, n);
}

int rtc_nvrtcGetCUBIN(struct rtc_lib *lib, void *p, char *to)
{
	size_t n;

	if (!gives_ptx(p) || lib->nvrtcGetCUBINSize(p, &n) || !n)
		return lib->nvrtcGetCUBIN(p, to);
	return lib->nvrtcGetPTX(p, to);
}
