/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rtc_i.h - internal interfaces of libsingvgpu-rtc.so: the libraries found, and the wrapped calls
 *
 * The ABI of NVRTC, nvJitLink, libNVVM and CUPTI is repeated here, so that this builds without a
 * toolkit, and one wrapper serves several versions. Results are nvrtcResult, nvJitLinkResult,
 * nvvmResult, CUptiResult.
 */
#ifndef RTC_I_H
#define RTC_I_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fatbin.h"

enum {
	NVRTC_OUT_OF_MEMORY = 1, NVRTC_INTERNAL_ERROR = 11,
	LINK_INTERNAL = 6, LINK_UNRECOGNIZED_INPUT = 8,
	NVVM_INVALID_PROGRAM = 5,
	CUPTI_INVALID_PARAMETER = 1, CUPTI_UNKNOWN = 999,
};

/*
 * X(slot, name, parameters, arguments): a wrapped call; the wrapper is rtc_name(lib, ...). Calls of
 * nvJitLink also have names with the version of its header: __nvJitLinkCreate_13_0.
 */
#define NVRTC_WRAPPED(X, s)									\
	X(s, nvrtcCompileProgram, (void *p, int n, const char *const *opt), (lib, p, n, opt))	\
	X(s, nvrtcDestroyProgram, (void **p), (lib, p))						\
	X(s, nvrtcGetCUBINSize, (void *p, size_t *n), (lib, p, n))					\
	X(s, nvrtcGetCUBIN, (void *p, char *to), (lib, p, to))					\
	X(s, nvrtcGetNumSupportedArchs, (int *n), (lib, n))						\
	X(s, nvrtcGetSupportedArchs, (int *to), (lib, to))
#define LINK_WRAPPED(X, s)									\
	X(s, nvJitLinkCreate, (void **h, uint32_t n, const char **opt), (lib, h, n, opt))		\
	X(s, nvJitLinkDestroy, (void **h), (lib, h))							\
	X(s, nvJitLinkAddData, (void *h, int type, const void *data, size_t n, const char *name),	\
	  (lib, h, type, data, n, name))							\
	X(s, nvJitLinkAddFile, (void *h, int type, const char *path), (lib, h, type, path))		\
	X(s, nvJitLinkComplete, (void *h), (lib, h))							\
	X(s, nvJitLinkGetLinkedCubinSize, (void *h, size_t *n), (lib, h, n))				\
	X(s, nvJitLinkGetLinkedCubin, (void *h, void *to), (lib, h, to))					\
	X(s, nvJitLinkGetErrorLogSize, (void *h, size_t *n), (lib, h, n))				\
	X(s, nvJitLinkGetErrorLog, (void *h, char *to), (lib, h, to))
#define NVVM_WRAPPED(X, s)									\
	X(s, nvvmCompileProgram, (void *p, int n, const char **opt), (lib, p, n, opt))		\
	X(s, nvvmVerifyProgram, (void *p, int n, const char **opt), (lib, p, n, opt))		\
	X(s, nvvmLLVMVersion, (const char *arch, int *version), (lib, arch, version))
#define CUPTI_WRAPPED(X, s)									\
	X(s, cuptiGetVersion, (uint32_t *version), (lib, version))
#define ALL_WRAPPED(X, s) NVRTC_WRAPPED(X, s) LINK_WRAPPED(X, s) NVVM_WRAPPED(X, s)		\
	CUPTI_WRAPPED(X, s)

/* Functions that are called, but not wrapped. */
#define NVRTC_CALLED(X, s)									\
	X(s, nvrtcGetPTXSize, (void *p, size_t *n), )						\
	X(s, nvrtcGetPTX, (void *p, char *to), )
#define LINK_CALLED(X, s)									\
	X(s, nvJitLinkGetLinkedPtxSize, (void *h, size_t *n), )						\
	X(s, nvJitLinkGetLinkedPtx, (void *h, char *to), )

enum rtc_family { RTC_NVRTC, RTC_LINK, RTC_NVVM, RTC_CUPTI };

/* A loaded library and its own functions; it is never unloaded. */
struct rtc_lib {
	const void *map;		/* its struct link_map */
	enum rtc_family family;
	char suffix[8];			/* of nvJitLink's names: "" or "_13_0" */
	int newest;			/* rtc_newest's; 0: not asked yet */
#define X(s, name, params, args) int (*name) params;
	ALL_WRAPPED(X, 0)
	NVRTC_CALLED(X, 0)
	LINK_CALLED(X, 0)
#undef X
};

#define X(s, name, params, args) int rtc_##name(struct rtc_lib *lib, RTC_REST params;
#define RTC_REST(...) __VA_ARGS__)
ALL_WRAPPED(X, 0)
#undef RTC_REST
#undef X

/*
 * The soft device's architecture, 130 for 13.0; 0 if the program has no such device, or has not called
 * cuInit and init is false.
 */
int rtc_own(bool init);

/* libc's function of this name. */
void *rtc_next(const char *name);

/* NN of sm_NN (*real) or compute_NN, with or without the suffix a or f; else 0. */
int rtc_arch(const char *s, bool *real);

/*
 * The newest architecture up to own that the library accepts, for libraries without a list; 0:
 * none.
 */
int rtc_newest(struct rtc_lib *lib, int own, bool (*accepts)(struct rtc_lib *lib, int arch));

typedef int rtc_fatbin_fn(void *ctx, const uint8_t *fatbin, size_t n);

/*
 * Calls each() for the fatbins of a host object or archive; a result other than 0 ends it and is
 * returned.
 */
int rtc_fatbins(const uint8_t *data, size_t n, rtc_fatbin_fn *each, void *ctx);

void rtc_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
