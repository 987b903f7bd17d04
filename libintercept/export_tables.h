/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_tables.h - cuGetExportTable's tables, which NVIDIA's runtime libraries ask a driver for.
 *
 * They exist for interoperability: the tables are undocumented, but no program that uses cudart can
 * start without them. They work over the ordinary driver functions of whoever links this file.
 */
#ifndef EXPORT_TABLES_H
#define EXPORT_TABLES_H

#include <cuda.h>

struct export_tables_host {
	/* The device's primary context, whether anybody retains it or not. */
	CUresult (*primary_context)(CUcontext *ctx, CUdevice dev);
	/* Said once for each table that is not known; may be NULL. */
	void (*unknown_table)(const char *uuid);
	/* The driver's own entry points, so that nothing of the program comes between. */
	CUresult (*get_proc)(const char *name, void **pfn);
};

/* Sets what the tables work over; `host` must live as long as the process. Call it once. */
void export_tables_init(const struct export_tables_host *host);

/* As cuGetExportTable: CUDA_ERROR_NOT_FOUND for an unknown table. */
CUresult export_tables_get(const void **table, const CUuuid *id);

/* A context is destroyed or reset: ends its context-local storage, calling the destructors. */
void export_tables_context_gone(CUcontext ctx);

#endif
