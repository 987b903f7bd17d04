// SPDX-License-Identifier: Apache-2.0
/*
 * reduce.c - loads the kernels of reduce.cu, whose PTX is in this program's data, and launches them
 *
 * A launch's program is put into one table on the device by a kernel, which has it as a parameter: a copy from memory
 * that is not pinned might wait for what is before it in the stream, for instance for another rank. The stream keeps the
 * next program from overtaking the kernel that reads this one.
 */
#include <errno.h>
#include <stdlib.h>

#include "reduce.h"
#include "reduce_kernel.h"

#define BLOCK 256u
#define BLOCKS_MOST 2048u

extern const char reduce_ptx[];

__asm__(".pushsection .rodata\n.balign 8\nreduce_ptx: .incbin \"" REDUCE_PTX "\"\n.byte 0\n"
	".popsection\n");

static const char *const names[TREE_TYPES] = {
	[TREE_INT8] = "reduce_int8", [TREE_UINT8] = "reduce_uint8", [TREE_INT32] = "reduce_int32",
	[TREE_UINT32] = "reduce_uint32", [TREE_INT64] = "reduce_int64",
	[TREE_UINT64] = "reduce_uint64", [TREE_F16] = "reduce_f16", [TREE_F32] = "reduce_f32",
	[TREE_F64] = "reduce_f64", [TREE_BF16] = "reduce_bf16", [TREE_E4M3] = "reduce_e4m3",
	[TREE_E5M2] = "reduce_e5m2",
};

struct reduce {
	struct hal *h;
	CUmodule module;
	CUfunction kernel[TREE_TYPES], table_kernel;
	CUdeviceptr table;
	struct reduce_part part[REDUCE_PARTS];
	uint32_t merges[REDUCE_PARTS];
};

int reduce_open(struct reduce **out, struct hal *h, struct why *why)
{
	struct reduce *r = calloc(1, sizeof(*r));
	CUresult rc;

	if (!r)
		return why_set(why, -ENOMEM, "no memory for the kernels of collectives");
	r->h = h;
	rc = h->drv.cuModuleLoadDataEx(&r->module, reduce_ptx, 0, NULL, NULL);
	for (int t = 0; t < TREE_TYPES && !rc; t++)
		rc = h->drv.cuModuleGetFunction(&r->kernel[t], r->module, names[t]);
	if (!rc)
		rc = h->drv.cuModuleGetFunction(&r->table_kernel, r->module, "reduce_table");
	if (!rc)
		rc = h->drv.cuMemAlloc_v2(&r->table, sizeof(r->part));
	if (rc) {
		reduce_close(r);
		return why_set(why, -ENOTSUP, "the driver does not take the kernels of collectives: "
			       "CUDA error %d", rc);
	}
	*out = r;
	return 0;
}

void reduce_close(struct reduce *r)
{
	if (!r)
		return;
	if (r->table)
		r->h->drv.cuMemFree_v2(r->table);
	if (r->module)
		r->h->drv.cuModuleUnload(r->module);
	free(r);
}

static CUresult put_table(struct reduce *r, CUstream stream, uint32_t nparts)
{
	CUresult rc = CUDA_SUCCESS;

	_Static_assert(REDUCE_PARTS % REDUCE_CHUNK == 0, "a parameter is read whole");
	for (uint32_t at = 0; at < nparts && !rc; at += REDUCE_CHUNK) {
		CUdeviceptr to = r->table + at * sizeof(r->part[0]);
		uint32_t n = nparts - at < REDUCE_CHUNK ? nparts - at : REDUCE_CHUNK;
		void *params[] = { &to, &n, &r->part[at] };

		rc = r->h->drv.cuLaunchKernel(r->table_kernel, 1, 1, 1, REDUCE_CHUNK, 1, 1, 0, stream, params, NULL);
	}
	return rc;
}

int reduce_queue(struct reduce *r, CUstream stream, const struct tree_reduction *red,
		 const struct tree_part *parts, uint32_t nparts, void *dst, size_t count)
{
	uint32_t op = red->op, root, blocks = BLOCKS_MOST;
	void *params[] = { &r->table, &nparts, &op, &root, &dst, &count };
	const struct cuda_driver *drv = &r->h->drv;
	int depth;

	if (!nparts || nparts > REDUCE_PARTS)
		return -EINVAL;
	depth = tree_merges(red, parts, nparts, r->merges);
	if (depth < 0 || depth > (int)REDUCE_DEPTH + 1)	/* the topmost value is not in the array */
		return -EINVAL;
	if (!count)
		return 0;
	for (uint32_t i = 0; i < nparts; i++)
		r->part[i] = (struct reduce_part){
			.data = (uintptr_t)parts[i].data, .factor = (uintptr_t)parts[i].scale,
			.leaf = parts[i].node.hi - parts[i].node.lo == 1, .merges = r->merges[i],
		};
	root = parts[nparts - 1].node.hi - parts[0].node.lo == red->ranks ? red->ranks : 0;
	if ((count + BLOCK - 1) / BLOCK < blocks)
		blocks = (count + BLOCK - 1) / BLOCK;
	if (put_table(r, stream, nparts) ||
	    drv->cuLaunchKernel(r->kernel[red->type], blocks, 1, 1, BLOCK, 1, 1, 0, stream, params, NULL))
		return -EIO;
	return 0;
}
