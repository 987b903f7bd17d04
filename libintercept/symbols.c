// SPDX-License-Identifier: Apache-2.0
/*
 * symbols.c - cuGetProcAddress and cuGetExportTable: finds this library's functions by name and
 * tables by UUID
 */
#include "context.h"
#include "core.h"
#include "export_tables.h"
#include "names.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

static void *self;		/* this library, for dlsym */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;	/* their set-up looks symbols up */

static CUresult get_proc(const char *name, void **pfn)
{
	return cuGetProcAddress_v2(name, pfn, CUDA_VERSION, 0, NULL);
}

static void refused_table(const char *uuid, const char *why)
{
	client_log("cuGetExportTable: table %s is refused (%s)", uuid, why);
}

static const struct export_tables_host host = {
	.primary_context = context_primary,
	.refused_table = refused_table,
	.get_proc = get_proc,
};

static void find_self(void)
{
	struct link_map *map;
	Dl_info info;

	/* By address, since another libcuda.so.1 may be loaded. */
	if (dladdr1(&process, &info, (void **)&map, RTLD_DL_LINKMAP))
		self = dlopen(map->l_name, RTLD_NOW | RTLD_NOLOAD);
}

static void init_tables(void)
{
	export_tables_init(&host);
}

API CUresult cuGetProcAddress_v2(const char *name, void **pfn, int version, cuuint64_t flags,
				 CUdriverProcAddressQueryResult *found)
{
	CUdriverProcAddressQueryResult ignored;
	/* A caller that asks for the reason gets no error (as with NVIDIA's driver). */
	CUresult missing = found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
	const struct names_row *row;
	int known;

	if (!name || !pfn || flags >= 3)	/* either kind of default stream, not both */
		return CUDA_ERROR_INVALID_VALUE;
	found = found ? found : &ignored;
	*pfn = NULL;
	*found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	pthread_once(&once, find_self);
	row = names_find(name, version, !!(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM),
			 &known);
	if (!row) {
		if (known)
			*found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		return missing;
	}
	if (self)
		*pfn = dlsym(self, row->symbol);
	if (!*pfn)
		return missing;
	*found = CU_GET_PROC_ADDRESS_SUCCESS;
	return CUDA_SUCCESS;
}

API CUresult cuGetProcAddress(const char *name, void **pfn, int version, cuuint64_t flags)
{
	return cuGetProcAddress_v2(name, pfn, version, flags, NULL);
}

API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	if (table && id && !memcmp(id, &singvgpu_core_id, sizeof(*id))) {
		*table = &core_table;
		return CUDA_SUCCESS;
	}
	pthread_once(&tables_once, init_tables);
	return export_tables_get(table, id);
}
