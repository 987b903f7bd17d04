/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.c - names and texts of every CUresult, and the log line of a refused call.
 *
 * The build takes the names from cuda.h; a CUresult without a text fails the build.
 */
#include "soft_i.h"

#include <stdarg.h>
#include <stdlib.h>

static const struct {
	CUresult code;
	const char *text;
} texts[] = {
#define X(code, text) { code, text },
#include "error_texts.h"
#undef X
};

static const struct {
	CUresult code;
	const char *name;
} names[] = {
#define X(code) { code, #code },
#include "api_errors.inc"
#undef X
};

_Static_assert(sizeof(names) / sizeof(names[0]) == sizeof(texts) / sizeof(texts[0]),
	       "a CUresult without a text");

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
	if (!pStr)
		return CUDA_ERROR_INVALID_VALUE;
	*pStr = NULL;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].code == error) {
			*pStr = names[i].name;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
	if (!pStr)
		return CUDA_ERROR_INVALID_VALUE;
	*pStr = NULL;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].code == error) {
			*pStr = texts[i].text;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

bool log_on(void)
{
	static _Atomic int on = -1;

	if (on < 0)
		on = getenv("SINGVGPU_LOG") && *getenv("SINGVGPU_LOG");
	return on;
}

void soft_log(const char *fmt, ...)
{
	char line[4096];
	va_list ap;

	if (!log_on())
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	fprintf(stderr, "softcuda: %s\n", line);
}

CUresult api_unsupported(const char *name, const char *why)
{
	soft_log("%s is not supported: %s", name, why);
	return CUDA_ERROR_NOT_SUPPORTED;
}
