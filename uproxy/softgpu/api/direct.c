/* SPDX-License-Identifier: Apache-2.0 */
/*
 * direct.c - makes the soft driver a complete libcuda.so.1 (direct mode) with cudart's tables
 */
#include <cuda.h>

#include "export_tables.h"

#include <stdio.h>
#include <stdlib.h>

CUresult softcuda_primary_context(CUcontext *ctx, CUdevice dev);
CUresult softcuda_export_table(const void **table, const CUuuid *id);
void softcuda_context_gone(CUcontext ctx);

static CUresult get_proc(const char *name, void **pfn)
{
	return cuGetProcAddress(name, pfn, CUDA_VERSION, 0, NULL);
}

static void refused_table(const char *uuid, const char *why)
{
	if (getenv("SINGVGPU_LOG"))
		fprintf(stderr, "softcuda: cuGetExportTable: table %s is refused (%s)\n", uuid, why);
}

static const struct export_tables_host host = {
	.primary_context = softcuda_primary_context,
	.refused_table = refused_table,
	.get_proc = get_proc,
};

__attribute__((constructor)) static void init(void)
{
	export_tables_init(&host);
}

CUresult softcuda_export_table(const void **table, const CUuuid *id)
{
	return export_tables_get(table, id);
}

void softcuda_context_gone(CUcontext ctx)
{
	export_tables_context_gone(ctx);
}
