/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_tables.h - cuGetExportTable's tables, which NVIDIA's runtime libraries ask a driver for.
 *
 * They exist for interoperability: the tables are undocumented, but no program that uses cudart can
 * start without them. They call the ordinary driver functions of the library that links this file.
 */
#ifndef EXPORT_TABLES_H
#define EXPORT_TABLES_H

#include <cuda.h>

struct export_tables_host {
	/* The device's primary context, whether it is retained or not. */
	CUresult (*primary_context)(CUcontext *ctx, CUdevice dev);
	/* Called once for each table that is refused, if it matters; may be NULL. */
	void (*refused_table)(const char *uuid, const char *why);
	/* Finds the driver's own entry points, which the program cannot interpose. */
	CUresult (*get_proc)(const char *name, void **pfn);
};

/*
 * Sets the functions that the tables call; `host` must live as long as the process. Call it once.
 */
void export_tables_init(const struct export_tables_host *host);

/* As cuGetExportTable: CUDA_ERROR_NOT_FOUND for a table that is not here. */
CUresult export_tables_get(const void **table, const CUuuid *id);

/* Ends the storage of a context that is destroyed or reset, calling the destructors. */
void export_tables_context_gone(CUcontext ctx);

#endif
