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
#include "lock.h"

#define BLOCK		256u		/* threads: 32 pages */
#define TABLE		56		/* words */
#define SECRET		192		/* bytes of the secret that XXH3 derives from a seed */

extern const char digest_ptx[];

__asm__(".pushsection .rodata\n.balign 8\ndigest_ptx: .incbin \"uproxy/hal/digest.ptx\"\n.byte 0\n"
	".popsection\n");

/* The digests of one span, while those of another are asked for. */
struct slot {
	CUstream stream;
	CUdeviceptr out;
	struct store_digest *host;	/* pinned, so that copies to it are asynchronous */
	uint64_t cap;			/* pages that both have room for */
};

struct hal_digests {
	struct hal *h;
	CUmodule module;
	CUfunction kernel;
	CUdeviceptr table;
	struct slot slot[HAL_DIGESTS];
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

static CUresult open_streams(struct hal_digests *d)
{
	CUresult r = CUDA_SUCCESS;

	for (int i = 0; i < HAL_DIGESTS && !r; i++)
		r = d->h->drv.cuStreamCreate(&d->slot[i].stream, CU_STREAM_NON_BLOCKING);
	return r;
}

static void drop_room(struct hal_digests *d, struct slot *s)
{
	if (s->out)
		d->h->drv.cuMemFree_v2(s->out);
	if (s->host)
		hal_unpin(d->h, s->host);
	free(s->host);
	s->out = 0;
	s->host = NULL;
	s->cap = 0;
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
	    h->drv.cuMemcpyHtoD_v2(d->table, t, sizeof(t)) ||
	    /* That may return before the device has the table, and our streams do not wait for it. */
	    h->drv.cuStreamSynchronize(NULL) || open_streams(d)) {
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
	for (int i = 0; i < HAL_DIGESTS; i++) {
		if (d->slot[i].stream) {
			d->h->drv.cuStreamSynchronize(d->slot[i].stream);
			d->h->drv.cuStreamDestroy_v2(d->slot[i].stream);
		}
		drop_room(d, &d->slot[i]);
	}
	if (d->table)
		d->h->drv.cuMemFree_v2(d->table);
	if (d->module)
		d->h->drv.cuModuleUnload(d->module);
	free(d);
}

static CUresult room(struct hal_digests *d, struct slot *s, uint64_t pages)
{
	size_t len = (pages * sizeof(*s->host) + 4095) & ~4095ul;
	CUresult r;

	if (pages <= s->cap)
		return CUDA_SUCCESS;
	drop_room(d, s);
	s->host = aligned_alloc(4096, len);
	r = s->host ? hal_pin(d->h, s->host, len) : CUDA_ERROR_OUT_OF_MEMORY;
	if (r) {
		free(s->host);
		s->host = NULL;
		return r;
	}
	r = d->h->drv.cuMemAlloc_v2(&s->out, len);
	if (r)
		s->out = 0;
	else
		s->cap = pages;
	return r;
}

CUresult hal_digests_start(struct hal_digests *d, unsigned int slot, uint64_t va, uint64_t pages)
{
	struct slot *s = &d->slot[slot];
	void *params[] = { &va, &s->out, &d->table, &pages };
	CUresult r = room(d, s, pages);

	if (r || !pages)
		return r;
	r = d->h->drv.cuLaunchKernel(d->kernel, (pages * 8 + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1,
				     0, s->stream, params, NULL);
	if (!r)
		r = d->h->drv.cuMemcpyDtoHAsync_v2(s->host, s->out, pages * sizeof(*s->host),
						   s->stream);
	return r;
}

CUresult hal_digests_wait(struct hal_digests *d, unsigned int slot, const struct store_digest **out)
{
	lock_may_wait("the device");
	*out = d->slot[slot].host;
	return d->h->drv.cuStreamSynchronize(d->slot[slot].stream);
}
