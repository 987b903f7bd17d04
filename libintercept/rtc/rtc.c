// SPDX-License-Identifier: Apache-2.0
/*
 * rtc.c - stands in front of NVRTC, nvJitLink, libNVVM and CUPTI, however a program comes to call them
 *
 * A program, or its library, that is linked with them binds to our functions of the same names
 * first, since this library is preloaded. A program that opens them calls dlsym, which is ours,
 * too, and gets a wrapper in place of the function found. We load none of these libraries, except
 * for a file that NVRTC opens and might not find (load_builtins), and names that would not be
 * found without us are not found. Of several versions the right one is known by the function
 * found, or by the caller: each version has a slot with its own wrappers.
 */
#include "log.h"
#include "rtc_i.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define LOCAL __attribute__((visibility("hidden")))
#define SOFT_NAME "singvgpu soft device"	/* cuDeviceGetName, uproxy/softgpu/api/device.c */
#define DEVICES_MAX 64

typedef void *dlsym_fn(void *, const char *);

LOCAL dlsym_fn *rtc_real_dlsym;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void rtc_log(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	log_line(fmt, ap);
	va_end(ap);
}

int rtc_arch(const char *s, bool *real)
{
	char *end;
	long n;

	*real = !strncmp(s, "sm_", 3);
	if (!*real && strncmp(s, "compute_", 8))
		return 0;
	s += *real ? 3 : 8;
	n = *s >= '1' && *s <= '9' ? strtol(s, &end, 10) : 0;
	if (n <= 0 || n >= 10000)
		return 0;
	end += *end == 'a' || *end == 'f';
	return *end ? 0 : n;
}

/* ------------------------------------------------------------------- the device */

static void *real_dlsym(void *handle, const char *name)
{
	/* Two threads at once do no harm: both find the same function. */
#if defined(__x86_64__)
	if (!rtc_real_dlsym)
		__atomic_store_n(&rtc_real_dlsym, dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"),
				 __ATOMIC_RELAXED);
#else
	rtc_real_dlsym = dlsym;		/* we have no dlsym here; see the end of the file */
#endif
	return rtc_real_dlsym(handle, name);
}

void *rtc_next(const char *name)
{
	return real_dlsym(RTLD_NEXT, name);
}

struct driver {
	int (*init)(unsigned int);
	int (*count)(int *);
	int (*name)(char *, int, int);
	int (*attribute)(int *, int, int);
};

static bool find_driver(struct driver *d)
{
	void *lib = RTLD_DEFAULT;

	for (int again = 0; again < 2; again++) {
		d->init = real_dlsym(lib, "cuInit");
		d->count = real_dlsym(lib, "cuDeviceGetCount");
		d->name = real_dlsym(lib, "cuDeviceGetName");
		d->attribute = real_dlsym(lib, "cuDeviceGetAttribute");
		if (d->init && d->count && d->name && d->attribute)
			return true;
		lib = again ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
		if (!lib)
			return false;
	}
	return false;
}

int rtc_own(bool init)
{
	enum { NOT_INITIALIZED = 3, MAJOR = 75, MINOR = 76 };	/* cuda.h */
	static int known = -1;
	int n = 0, rc, major, minor, own = 0;
	struct driver d;
	char name[64];

	if (__atomic_load_n(&known, __ATOMIC_RELAXED) >= 0)
		return known;
	if (!find_driver(&d))
		return 0;
	rc = d.count(&n);
	if (rc == NOT_INITIALIZED && init && !d.init(0))
		rc = d.count(&n);
	if (rc)
		return 0;
	for (int i = 0; i < n && i < DEVICES_MAX && !own; i++)
		if (!d.name(name, sizeof(name), i) && !strcmp(name, SOFT_NAME) &&
		    !d.attribute(&major, MAJOR, i) && !d.attribute(&minor, MINOR, i))
			own = major * 10 + minor;
	__atomic_store_n(&known, own, __ATOMIC_RELAXED);
	return own;
}

/* -------------------------------------------------------------------- the slots */

#define SLOTS 8
#define EACH_SLOT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

static struct rtc_lib libs[SLOTS];

#define WRAP(s, name, params, args)								\
	static int slot_##s##_##name params							\
	{											\
		struct rtc_lib *lib = &libs[s];							\
		return rtc_##name args;								\
	}
#define X(s) ALL_WRAPPED(WRAP, s)
EACH_SLOT(X)
#undef X
#undef WRAP

enum call {
#define X(s, name, params, args) CALL_##name,
	ALL_WRAPPED(X, 0)
#undef X
	CALLS
};

static void *const wrappers[SLOTS][CALLS] = {
#define WRAP(s, name, params, args) [CALL_##name] = slot_##s##_##name,
#define X(s) [s] = { ALL_WRAPPED(WRAP, s) },
	EACH_SLOT(X)
#undef X
#undef WRAP
};

static const char *const names[CALLS] = {
#define X(s, name, params, args) [CALL_##name] = #name,
	ALL_WRAPPED(X, 0)
#undef X
};

static enum rtc_family family_of(enum call call)
{
	return call >= CALL_cuptiGetVersion ? RTC_CUPTI :
	       call >= CALL_nvvmCompileProgram ? RTC_NVVM :
	       call >= CALL_nvJitLinkCreate ? RTC_LINK : RTC_NVRTC;
}

/* The call that a name stands for: nvrtcX, nvvmX, cuptiX, nvJitLinkX or __nvJitLinkX_13_0; else -1. */
static int call_of(const char *name, char suffix[8])
{
	bool under = !strncmp(name, "__nvJitLink", 11);
	const char *end;
	size_t len;

	suffix[0] = 0;
	name += under ? 2 : 0;
	if (strncmp(name, "nvrtc", 5) && strncmp(name, "nvJitLink", 9) && strncmp(name, "nvvm", 4) &&
	    strncmp(name, "cupti", 5))
		return -1;
	end = under ? strchr(name, '_') : NULL;
	len = end ? (size_t)(end - name) : strlen(name);
	if (end && strlen(end) < 8)
		strcpy(suffix, end);
	else if (under)
		return -1;
	for (int i = 0; i < CALLS; i++)
		if (strlen(names[i]) == len && !strncmp(names[i], name, len))
			return i;
	return -1;
}

static void *lookup(void *handle, const char *name, const char *suffix)
{
	char full[80];

	snprintf(full, sizeof(full), "%s%s%s", *suffix ? "__" : "", name, suffix);
	return real_dlsym(handle, full);
}

/*
 * NVRTC opens libnvrtc-builtins.so by name, without a search path. The file lies beside NVRTC,
 * but where both come from a wheel only LD_LIBRARY_PATH would find it. Once it is loaded the name
 * is enough.
 */
static void load_builtins(const char *path, void *nvrtc)
{
	int (*version)(int *, int *) = real_dlsym(nvrtc, "nvrtcVersion");
	const char *base = strrchr(path, '/'), *rest, *so;
	char file[PATH_MAX];
	int major, minor;

	base = base ? base + 1 : path;
	rest = base + strlen("libnvrtc");	/* ".so.13" or ".alt.so.13" */
	so = strncmp(base, "libnvrtc", strlen("libnvrtc")) ? NULL : strstr(rest, ".so");
	if (!so || !version || version(&major, &minor))
		return;
	if (snprintf(file, sizeof(file), "%.*s-builtins%.*s.so.%d.%d", (int)(rest - path), path,
		     (int)(so - rest), rest, major, minor) < (int)sizeof(file))
		dlopen(file, RTLD_LAZY | RTLD_LOCAL);
}

static bool fill(struct rtc_lib *lib, const struct link_map *map)
{
	const char *path = *map->l_name ? map->l_name : NULL;
	void *h = dlopen(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);

	if (!h)
		return false;
	if (path && lib->family == RTC_NVRTC)
		load_builtins(path, h);
#define X(s, name, params, args) lib->name = lookup(h, #name, lib->suffix);
	ALL_WRAPPED(X, 0)
	NVRTC_CALLED(X, 0)
	LINK_CALLED(X, 0)
#undef X
	dlerror();		/* the error of a missing function is not the program's */
	return true;
}

int rtc_newest(struct rtc_lib *lib, int own, bool (*accepts)(struct rtc_lib *lib, int arch))
{
	int n = __atomic_load_n(&lib->newest, __ATOMIC_RELAXED);

	for (int i = own; !n && i >= 50; i--)
		n = accepts(lib, i) ? i : 0;
	__atomic_store_n(&lib->newest, n, __ATOMIC_RELAXED);
	return n;
}

static bool ours(void *fn)
{
	Dl_info of, we;

	return dladdr(fn, &of) && dladdr((void *)ours, &we) && of.dli_fbase == we.dli_fbase;
}

/* The slot of a library, else a free one, else NULL. */
static struct rtc_lib *slot_of(const struct rtc_lib *lib)
{
	for (struct rtc_lib *l = libs; l < libs + SLOTS; l++)
		if (!l->map || (l->map == lib->map && l->family == lib->family &&
				!strcmp(l->suffix, lib->suffix)))
			return l;
	return NULL;
}

/*
 * The slot of the library that has the function. NULL: all slots are taken, or no library has it.
 */
static struct rtc_lib *lib_of(void *fn, enum call call, const char *suffix)
{
	struct rtc_lib fresh = { 0 }, *lib;
	struct link_map *map;
	Dl_info info;

	if (!dladdr1(fn, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
		return NULL;
	fresh.map = map;
	fresh.family = family_of(call);
	strcpy(fresh.suffix, suffix);
	pthread_mutex_lock(&lock);
	lib = slot_of(&fresh);
	pthread_mutex_unlock(&lock);
	/* not under our lock: a thread that holds the loader's lock may wait for ours */
	if (lib && !lib->map && !fill(&fresh, map))
		return NULL;
	pthread_mutex_lock(&lock);
	lib = slot_of(&fresh);
	if (lib && !lib->map)
		*lib = fresh;
	pthread_mutex_unlock(&lock);
	return lib;
}

/* --------------------------------------------------- functions that programs link */

struct search {
	const char *file;
	char path[PATH_MAX];
};

static void *in_file(const char *path, const char *name)
{
	void *h = dlopen(path, RTLD_LAZY | RTLD_NOLOAD), *fn = NULL;

	if (h) {
		fn = real_dlsym(h, name);
		dlclose(h);
	}
	return fn && !ours(fn) ? fn : NULL;
}

static int look_for(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *s = data;
	const char *base = strrchr(info->dlpi_name, '/');

	(void)size;
	base = base ? base + 1 : info->dlpi_name;
	if (strncmp(base, s->file, strlen(s->file)) || strlen(info->dlpi_name) >= sizeof(s->path))
		return 0;
	strcpy(s->path, info->dlpi_name);
	return 1;
}

/* The function that a caller would use without us: of its own libraries, the program's, or any. */
static void *behind(void *caller, enum call call, const char *suffix)
{
	static const char *const files[] = { "libnvrtc.so", "libnvJitLink.so", "libnvvm.so",
		"libcupti.so" };
	struct search s = { files[family_of(call)], "" };
	struct link_map *map = NULL;
	void *fn = NULL;
	char name[80];
	Dl_info info;

	snprintf(name, sizeof(name), "%s%s%s", *suffix ? "__" : "", names[call], suffix);
	if (dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) && map && *map->l_name)
		fn = in_file(map->l_name, name);
	if (!fn)
		fn = real_dlsym(RTLD_NEXT, name);
	if (!fn && dl_iterate_phdr(look_for, &s))
		fn = in_file(s.path, name);
	dlerror();
	if (!fn)
		rtc_log("%s is called, and no library is loaded that has it", name);
	return fn;
}

static struct rtc_lib *caller_lib(void *caller, enum call call, const char *suffix)
{
	void *fn = behind(caller, call, suffix);

	return fn ? lib_of(fn, call, suffix) : NULL;
}

#define EXPORT(full, suffix, name, params, args, failed)					\
	API int full params;									\
	API int full params									\
	{											\
		struct rtc_lib *lib = caller_lib(__builtin_return_address(0), CALL_##name, suffix); \
		return lib ? rtc_##name args : failed;						\
	}
#define X(s, name, params, args) EXPORT(name, "", name, params, args, NVRTC_INTERNAL_ERROR)
NVRTC_WRAPPED(X, 0)
#undef X
#define X(s, name, params, args) EXPORT(name, "", name, params, args, LINK_INTERNAL)
LINK_WRAPPED(X, 0)
#undef X
#define X(s, name, params, args) EXPORT(name, "", name, params, args, NVVM_INVALID_PROGRAM)
NVVM_WRAPPED(X, 0)
#undef X
#define X(s, name, params, args) EXPORT(name, "", name, params, args, CUPTI_UNKNOWN)
CUPTI_WRAPPED(X, 0)
#undef X
#define VERSIONED(v, name, params, args)							\
	EXPORT(__##name##v, #v, name, params, args, LINK_INTERNAL)
#define EACH_MINOR(X, major)									\
	X(_##major##_0) X(_##major##_1) X(_##major##_2) X(_##major##_3) X(_##major##_4)		\
	X(_##major##_5) X(_##major##_6) X(_##major##_7) X(_##major##_8) X(_##major##_9)
#define X(v) LINK_WRAPPED(VERSIONED, v)
EACH_MINOR(X, 12)
EACH_MINOR(X, 13)
#undef X

/* ------------------------------------------------------- functions found by dlsym */

struct answer {
	long done;
	void *fn;
};

/*
 * The result of dlsym; done 0: the name is not wrapped, and libc's dlsym is to be called instead.
 */
LOCAL struct answer rtc_dlsym(void *handle, const char *name, void *caller);
struct answer rtc_dlsym(void *handle, const char *name, void *caller)
{
	struct rtc_lib *lib;
	char suffix[8];
	int call;
	void *fn;

	if (!rtc_real_dlsym)
		real_dlsym(RTLD_NEXT, "dlsym");
	if (!name || !strchr("nc_", name[0]) || handle == RTLD_NEXT)
		return (struct answer){ 0 };
	call = call_of(name, suffix);
	if (call < 0)
		return (struct answer){ 0 };
	fn = real_dlsym(handle, name);
	if (!fn)
		return (struct answer){ 1, NULL };
	if (ours(fn)) {
		/* found in this library: search as if it were not loaded */
		struct link_map *map = NULL;
		Dl_info info;

		fn = real_dlsym(RTLD_NEXT, name);
		if (!fn && handle == RTLD_DEFAULT &&
		    dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) && map && *map->l_name)
			fn = in_file(map->l_name, name);
		if (!fn)
			return (struct answer){ 1, NULL };
	}
	lib = lib_of(fn, call, suffix);
	return (struct answer){ 1, lib ? wrappers[lib - libs][call] : fn };
}

#if defined(__x86_64__)
/*
 * libc's dlsym uses its return address (RTLD_NEXT), so it is reached by a jump, with our caller's.
 */
__asm__(".text\n"
	".globl dlsym\n"
	".type dlsym, @function\n"
	"dlsym:\n"
	"	.cfi_startproc\n"
	"	endbr64\n"
	"	push %rdi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	push %rsi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	sub $8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	mov 24(%rsp), %rdx\n"
	"	call rtc_dlsym\n"
	"	add $8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	pop %rsi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	pop %rdi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	test %rax, %rax\n"
	"	jz 1f\n"
	"	mov %rdx, %rax\n"
	"	ret\n"
	"1:	jmp *rtc_real_dlsym(%rip)\n"
	"	.cfi_endproc\n"
	".size dlsym, . - dlsym\n");
#endif
