// SPDX-License-Identifier: Apache-2.0
/*
 * core.c - finds the sessions of libcuda.so.1
 */
#include "nccl_i.h"

LOCAL const struct singvgpu_core *core;

ncclResult_t core_find(void)
{
	const struct singvgpu_core *found;
	const void *table = NULL;

	/* pairs with the store below */
	if (likely(__atomic_load_n(&core, __ATOMIC_ACQUIRE)))
		return ncclSuccess;
	if (cuGetExportTable(&table, &singvgpu_core_id) || !table)
		return failed(ncclSystemError, "the driver is not singvgpu's: start the program with "
			      "`singvgpu run`");
	found = table;
	if (found->version != SINGVGPU_CORE_VERSION || found->size < sizeof(*found))
		return failed(ncclSystemError, "libcuda.so.1 and libnccl.so.2 are of different builds");
	__atomic_store_n(&core, found, __ATOMIC_RELEASE);
	return ncclSuccess;
}
