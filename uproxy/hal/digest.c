// SPDX-License-Identifier: Apache-2.0
/*
 * digest.c - digests of pages of device memory, computed by the device, so that the host need not
 * read pages that the store has
 *
 * The kernel is PTX (digest.ptx, in this program's data), which the driver compiles. It has no
 * variables, and its memory is freed when a dump is over, so that a dump changes no address that a
 * program can observe.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "digest.h"

#define BLOCK		256u		/* threads: 32 pages */
#define TABLE		56		/* words */
#define SECRET		192		/* bytes of the secret that XXH3 derives from a seed */

extern const char digest_ptx[];

__asm__(".pushsection .rodata\n.balign 8\ndigest_ptx: .incbin \"uproxy/hal/digest.ptx\"\n.byte 0\n"
	".popsection\n");

struct hal_digests {
	struct hal *h;
	CUmodule module;
	CUfunction kernel;
	CUdeviceptr table, out;
	uint64_t cap;			/* pages that out has room for */
	struct store_digest *host;
};

/* The table that digest.ptx describes. */
static void fill_table(uint64_t *t, uint64_t seed)
{
	static const uint64_t acc[8] = {
		XXH_PRIME32_3, XXH_PRIME64_1, XXH_PRIME64_2, XXH_PRIME64_3,
		XXH_PRIME64_4, XXH_PRIME32_2, XXH_PRIME64_5, XXH_PRIME32_1,
	};
	uint8_t secret[SECRET];

	XXH3_initCustomSecret_scalar(secret, seed);
	memcpy(t, secret, SECRET);
	memcpy(t + 24, secret + SECRET - 64 - 7, 64);
	memcpy(t + 32, secret + 11, 64);
	memcpy(t + 40, secret + SECRET - 64 - 11, 64);
	memcpy(t + 48, acc, 64);
}

int hal_digests_open(struct hal_digests **out, struct hal *h, uint64_t seed)
{
	struct hal_digests *d = calloc(1, sizeof(*d));
	uint64_t t[TABLE];

	if (!d)
		return -ENOMEM;
	d->h = h;
	fill_table(t, seed);
	if (h->drv.cuModuleLoadDataEx(&d->module, digest_ptx, 0, NULL, NULL) ||
	    h->drv.cuModuleGetFunction(&d->kernel, d->module, "page_digests") ||
	    h->drv.cuMemAlloc_v2(&d->table, sizeof(t)) ||
	    h->drv.cuMemcpyHtoD_v2(d->table, t, sizeof(t))) {
		hal_digests_close(d);
		return -ENOTSUP;
	}
	*out = d;
	return 0;
}

void hal_digests_close(struct hal_digests *d)
{
	if (!d)
		return;
	if (d->out)
		d->h->drv.cuMemFree_v2(d->out);
	if (d->table)
		d->h->drv.cuMemFree_v2(d->table);
	if (d->module)
		d->h->drv.cuModuleUnload(d->module);
	free(d->host);
	free(d);
}

static CUresult room(struct hal_digests *d, uint64_t pages)
{
	CUresult r;

	if (pages <= d->cap)
		return CUDA_SUCCESS;
	if (d->out)
		d->h->drv.cuMemFree_v2(d->out);
	free(d->host);
	d->out = 0;
	d->cap = 0;
	d->host = malloc(pages * sizeof(*d->host));
	r = d->host ? d->h->drv.cuMemAlloc_v2(&d->out, pages * sizeof(*d->host)) :
		      CUDA_ERROR_OUT_OF_MEMORY;
	if (!r)
		d->cap = pages;
	return r;
}

CUresult hal_digests_run(struct hal_digests *d, uint64_t va, uint64_t pages,
			 struct store_digest **out)
{
	void *params[] = { &va, &d->out, &d->table, &pages };
	CUresult r = room(d, pages);

	*out = d->host;
	if (r || !pages)
		return r;
	r = d->h->drv.cuLaunchKernel(d->kernel, (pages * 8 + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1,
				     0, NULL, params, NULL);
	if (!r)
		r = d->h->drv.cuMemcpyDtoH_v2(d->host, d->out, pages * sizeof(*d->host));
	return r;
}
