// SPDX-License-Identifier: Apache-2.0
/*
 * error.c - names and texts of errors
 */
#include "process.h"

static const struct {
	CUresult code;
	const char *name, *text;
} errors[] = {
#define X(code, text) { code, #code, text },
#include "error_texts.h"
#undef X
};

static CUresult find_error(CUresult code, unsigned int *i)
{
	for (*i = 0; *i < sizeof(errors) / sizeof(errors[0]); ++*i)
		if (errors[*i].code == code)
			return CUDA_SUCCESS;
	return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetErrorName(CUresult code, const char **out)
{
	unsigned int i;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	TRY(find_error(code, &i));
	*out = errors[i].name;
	return CUDA_SUCCESS;
}

API CUresult cuGetErrorString(CUresult code, const char **out)
{
	unsigned int i;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	TRY(find_error(code, &i));
	*out = errors[i].text;
	return CUDA_SUCCESS;
}
