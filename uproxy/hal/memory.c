// SPDX-License-Identifier: Apache-2.0
/*
 * memory.c - the window, physical memory behind parts of it, host memory for the device
 */
#include <errno.h>
#include <stdio.h>

#include "hal.h"

int hal_window(struct hal *h, uint64_t base, uint64_t len, char *why, size_t n)
{
	CUdeviceptr got = 0;
	CUresult r = h->drv.cuMemAddressReserve(&got, len, 0, base, 0);

	if (!r && got == base) {
		h->window = base;
		h->window_len = len;
		return 0;
	}
	if (r)
		snprintf(why, n, "the driver does not reserve the device window [0x%llx, +0x%llx): "
			 "error %d", (unsigned long long)base, (unsigned long long)len, r);
	else
		snprintf(why, n, "the driver reserved 0x%llx, not the device window at 0x%llx",
			 (unsigned long long)got, (unsigned long long)base);
	return -EADDRNOTAVAIL;
}

CUresult hal_access(struct hal *h, uint64_t va, uint64_t len, unsigned int flags)
{
	CUmemAccessDesc desc = { .location = h->prop.location, .flags = flags };

	return h->drv.cuMemSetAccess(va, len, &desc, 1);
}

/* One piece of memory. It lives as long as it is mapped: no handle is kept. */
static CUresult map_piece(struct hal *h, uint64_t va, uint64_t len)
{
	CUmemGenericAllocationHandle phys;
	CUresult r = h->drv.cuMemCreate(&phys, len, &h->prop, 0);

	if (r)
		return r;
	r = h->drv.cuMemMap(va, len, 0, phys, 0);
	h->drv.cuMemRelease(phys);
	return r;
}

CUresult hal_map(struct hal *h, uint64_t va, uint64_t len, uint64_t piece)
{
	CUresult r = CUDA_SUCCESS;
	uint64_t done = 0;

	while (done < len && !r) {
		r = map_piece(h, va + done, piece);
		done += r ? 0 : piece;
	}
	if (!r)
		r = hal_access(h, va, len, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	if (r && done)
		h->drv.cuMemUnmap(va, done);
	return r;
}

CUresult hal_unmap(struct hal *h, uint64_t va, uint64_t len)
{
	return h->drv.cuMemUnmap(va, len);
}

CUresult hal_pin(struct hal *h, void *p, size_t len)
{
	return h->drv.cuMemHostRegister_v2(p, len, CU_MEMHOSTREGISTER_PORTABLE |
					   CU_MEMHOSTREGISTER_DEVICEMAP);
}

CUresult hal_unpin(struct hal *h, void *p)
{
	return h->drv.cuMemHostUnregister(p);
}
