// SPDX-License-Identifier: Apache-2.0
/*
 * param.c - ncclParam…: the variables of NCCL that mean something here (docs/nccl.md)
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_i.h"

/* What a handle points to. */
struct param {
	const char *name, *standard;
};

static const struct param params[] = {
	{ "NCCL_CHECK_POINTERS", "0" },
	{ "NCCL_COMM_BLOCKING", "1" },
	{ "NCCL_COMM_ID", "" },
	{ "NCCL_DEBUG", "" },
	{ "NCCL_DEBUG_FILE", "" },
};

#define PARAMS	((int)(sizeof(params) / sizeof(params[0])))

static const char *value_of(const struct param *p)
{
	return getenv(p->name) ?: p->standard;
}

static const char *name_of(ncclParamHandle_t h)
{
	return ((const struct param *)h)->name;
}

/* A handle that is one of ours. */
static ncclResult_t check(ncclParamHandle_t h, const void *out)
{
	TRY(given(out, "ncclParamGet", "out"));
	for (int i = 0; i < PARAMS; i++)
		if ((const void *)h == &params[i])
			return ncclSuccess;
	return failed(ncclInvalidArgument, "ncclParamGet: no such parameter");
}

API ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key)
{
	TRY(given(out, "ncclParamBind", "out"));
	TRY(given(key, "ncclParamBind", "key"));
	for (int i = 0; i < PARAMS; i++)
		if (!strcmp(key, params[i].name) || !strcmp(key, params[i].name + strlen("NCCL_"))) {
			*out = (ncclParamHandle_t)&params[i];
			return ncclSuccess;
		}
	return failed(ncclInvalidArgument, "ncclParamBind: %.60s is no parameter of this library", key);
}

static ncclResult_t number(ncclParamHandle_t h, const void *out, long long *n)
{
	const char *s;
	char *end;

	TRY(check(h, out));
	s = value_of((const void *)h);
	errno = 0;
	*n = strtoll(s, &end, 0);
	if (end == s || *end || errno)
		return failed(ncclInvalidArgument, "ncclParamGet: %s is no number", name_of(h));
	return ncclSuccess;
}

#define GET(suffix, type) \
	API ncclResult_t ncclParamGet##suffix(ncclParamHandle_t h, type *out) \
	{ \
		long long n; \
\
		TRY(number(h, out, &n)); \
		if ((type)n != n) \
			return failed(ncclInvalidArgument, "ncclParamGet" #suffix ": %s is %lld", \
				      name_of(h), n); \
		*out = n; \
		return ncclSuccess; \
	}

GET(I8, int8_t)
GET(I16, int16_t)
GET(I32, int32_t)
GET(I64, int64_t)
GET(U8, uint8_t)
GET(U16, uint16_t)
GET(U32, uint32_t)

API ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t *out)
{
	long long n;

	TRY(number(h, out, &n));
	if (n < 0)
		return failed(ncclInvalidArgument, "ncclParamGetU64: %s is %lld", name_of(h), n);
	*out = n;
	return ncclSuccess;
}

API ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char **out)
{
	TRY(check(h, out));
	*out = value_of((const void *)h);
	return ncclSuccess;
}

API ncclResult_t ncclParamGet(ncclParamHandle_t h, void *out, int room, int *len)
{
	const char *s;
	int n;

	TRY(check(h, out));
	s = value_of((const void *)h);
	n = strlen(s) + 1;
	if (len)
		*len = n;
	if (room < n)
		return failed(ncclInvalidArgument, "ncclParamGet: %d bytes for %d", room, n);
	memcpy(out, s, n);
	return ncclSuccess;
}

API ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *len)
{
	ncclParamHandle_t h;

	TRY(ncclParamBind(&h, key));
	TRY(ncclParamGetStr(h, value));
	if (len)
		*len = strlen(*value);
	return ncclSuccess;
}

API ncclResult_t ncclParamGetAllParameterKeys(const char ***table, int *len)
{
	static const char *keys[PARAMS];

	TRY(given(table, "ncclParamGetAllParameterKeys", "table"));
	TRY(given(len, "ncclParamGetAllParameterKeys", "tableLen"));
	for (int i = 0; i < PARAMS; i++)
		__atomic_store_n(&keys[i], params[i].name, __ATOMIC_RELAXED);
	*table = keys;
	*len = PARAMS;
	return ncclSuccess;
}

API void ncclParamDumpAll(void)
{
	for (int i = 0; i < PARAMS; i++)
		if (core)
			core->log("nccl: %s=%s", params[i].name, value_of(&params[i]));
}
