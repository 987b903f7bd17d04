/* SPDX-License-Identifier: Apache-2.0 */
/*
 * procs.c - cuGetProcAddress: the symbol for a base name, a version and a kind of default stream
 */
#define SOFT_PUBLIC_NAMES		/* the table has what programs call */
#include "soft_i.h"

#include <string.h>

static const struct {
	const char *name;
	int version;
	int kind;			/* 1: stream 0 is the per-thread stream */
	void *fn;
} procs[] = {
#include "api_procs.inc"
};

#define NPROCS (sizeof(procs) / sizeof(procs[0]))

static size_t first_of(const char *name)
{
	size_t lo = 0, hi = NPROCS;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (strcmp(procs[mid].name, name) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* The newest symbol of a name that is not newer than `version`. */
static void *proc_lookup(const char *name, int version, bool ptsz, bool *known)
{
	int best[2] = { -1, -1 };
	void *fn[2] = { NULL, NULL };

	*known = false;
	for (size_t i = first_of(name); i < NPROCS && !strcmp(procs[i].name, name); i++) {
		int k = procs[i].kind;

		*known = true;
		if (procs[i].version <= version && procs[i].version > best[k]) {
			best[k] = procs[i].version;
			fn[k] = procs[i].fn;
		}
	}
	return ptsz && fn[1] ? fn[1] : fn[0];
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *symbolStatus)
{
	bool known;
	void *p;

	if (symbolStatus)
		*symbolStatus = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (!symbol || !pfn || (flags & ~3ull) || flags == 3 || cudaVersion > soft_driver_version())
		return CUDA_ERROR_INVALID_VALUE;
	*pfn = NULL;
	p = proc_lookup(symbol, cudaVersion, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
			&known);
	if (!p) {
		if (symbolStatus && known)
			*symbolStatus = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		return symbolStatus ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
	}
	*pfn = p;
	if (symbolStatus)
		*symbolStatus = CU_GET_PROC_ADDRESS_SUCCESS;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}

/* Only direct mode has the tables that cudart requests: see direct.c. */
/* What carries collectives between devices of this driver: a file beside it. */
__attribute__((visibility("default"))) const char softcuda_comm_library[] = "libsoftcomm.so";

CUresult __attribute__((weak)) softcuda_export_table(const void **table, const CUuuid *id)
{
	(void)id;
	*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
	CUresult r;

	if (!ppExportTable || !pExportTableId)
		return CUDA_ERROR_INVALID_VALUE;
	r = softcuda_export_table(ppExportTable, pExportTableId);
	return trace_fd < 0 ? r : trace_call("cuGetExportTable", r);
}
