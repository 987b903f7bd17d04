/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.c - launches of machine code: counted and named, not run
 *
 * Machine code of a profile (profile.c) cannot run here. Its launches are checked and take their
 * place in the stream like others, and do nothing when their turn comes: memory stays as it is.
 */
#include "module_i.h"

static uint64_t recorded;

/* The number of launches that have been recorded. */
__attribute__((visibility("default")))
unsigned long long softcuda_recorded(void)
{
	return __atomic_load_n(&recorded, __ATOMIC_RELAXED);
}

CUresult record_launch(const struct launch *k)
{
	__atomic_add_fetch(&recorded, 1, __ATOMIC_RELAXED);
	if (log_on())
		soft_log("recorded: kernel %s, grid %ux%ux%u, block %ux%ux%u, %u bytes of shared memory, clusters of %ux%ux%u",
			 program_entry(k->fn->mod->prog, k->fn->entry)->name, k->grid[0], k->grid[1],
			 k->grid[2], k->block[0], k->block[1], k->block[2], k->smem, k->cluster[0],
			 k->cluster[1], k->cluster[2]);
	return CUDA_SUCCESS;
}
