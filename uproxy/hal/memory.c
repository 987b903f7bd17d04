// SPDX-License-Identifier: Apache-2.0
/*
 * memory.c - the window, physical memory behind parts of it, host memory for the device
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "hal.h"

int hal_window(struct hal *h, uint64_t base, uint64_t len, struct why *why)
{
	CUdeviceptr got = 0;
	CUresult r = h->drv.cuMemAddressReserve(&got, len, 0, base, 0);

	if (r)
		return why_set(why, -EADDRNOTAVAIL, "the driver does not reserve the device window "
			       "[0x%llx, +0x%llx): error %d", (unsigned long long)base,
			       (unsigned long long)len, r);
	if (base && got != base) {
		h->drv.cuMemAddressFree(got, len);
		return why_set(why, -EADDRNOTAVAIL, "the driver reserved 0x%llx, not the device window "
			       "at 0x%llx", (unsigned long long)got, (unsigned long long)base);
	}
	h->window = got;
	h->window_len = len;
	return 0;
}

CUresult hal_access(struct hal *h, uint64_t va, uint64_t len, unsigned int flags)
{
	CUmemAccessDesc desc = { .location = h->prop.location, .flags = flags };

	return h->drv.cuMemSetAccess(va, len, &desc, 1);
}

/* Maps a handle's memory, and gives the handle up. */
static CUresult map_handle(struct hal *h, uint64_t va, uint64_t len, CUmemGenericAllocationHandle phys)
{
	CUresult r = h->drv.cuMemMap(va, len, 0, phys, 0);

	h->drv.cuMemRelease(phys);
	return r;
}

/* Maps one piece of memory. It lives as long as it is mapped: no handle is kept. */
static CUresult map_piece(struct hal *h, uint64_t va, uint64_t len)
{
	CUmemGenericAllocationHandle phys;
	CUresult r = h->drv.cuMemCreate(&phys, len, &h->prop, 0);

	return r ? r : map_handle(h, va, len, phys);
}

CUresult hal_map(struct hal *h, uint64_t va, uint64_t len, uint64_t piece)
{
	CUresult r = CUDA_SUCCESS;
	uint64_t done = 0;

	while (done < len && !r) {
		uint64_t n = len - done < piece ? len - done : piece;

		r = map_piece(h, va + done, n);
		done += r ? 0 : n;
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

static CUresult map_shared(struct hal *h, uint64_t va, uint64_t len, CUmemGenericAllocationHandle phys)
{
	CUresult r = map_handle(h, va, len, phys);

	if (r)
		return r;
	r = hal_access(h, va, len, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	if (r)
		h->drv.cuMemUnmap(va, len);
	return r;
}

CUresult hal_share(struct hal *h, uint64_t va, uint64_t len, int *fd)
{
	CUmemAllocationProp prop = h->prop;
	CUmemGenericAllocationHandle phys;
	CUresult r;

	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	r = h->drv.cuMemCreate(&phys, len, &prop, 0);
	if (r)
		return r;
	r = h->drv.cuMemExportToShareableHandle(fd, phys, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (r) {
		h->drv.cuMemRelease(phys);
		return r;
	}
	r = map_shared(h, va, len, phys);
	if (r)
		close(*fd);
	return r;
}

CUresult hal_join(struct hal *h, uint64_t va, uint64_t len, int fd)
{
	CUmemGenericAllocationHandle phys;
	CUresult r = h->drv.cuMemImportFromShareableHandle(&phys, (void *)(intptr_t)fd,
							   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	return r ? r : map_shared(h, va, len, phys);
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

int hal_host_reads(struct hal *h, uint64_t va)
{
	CUmemLocation host = { .type = CU_MEM_LOCATION_TYPE_HOST };
	unsigned long long flags = 0;

	/* NVIDIA's driver 580 says so of an H200's memory, too, which the host cannot read. */
	return h->own_memory && h->drv.cuMemGetAccess && !h->drv.cuMemGetAccess(&flags, &host, va) &&
	       flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

int hal_own_memory(struct hal *h, unsigned int i, struct hal_own *own)
{
	return h->own_memory && !h->own_memory(i, 0, own);
}

int hal_saves_heap(struct hal *h)
{
	return h->own_memory != NULL;
}

CUresult hal_own_make(struct hal *h, const struct hal_own *own)
{
	struct hal_own o = *own;

	return h->own_memory ? h->own_memory(0, own->at, &o) : CUDA_ERROR_NOT_SUPPORTED;
}

void hal_told_words(struct hal *h, const void *from, size_t len)
{
	if (h->told_words && h->told)
		h->told_words(from, len);
}

void hal_told(struct hal *h, bool here)
{
	if (h->told)
		h->told(here);
}

void hal_next_value(struct hal *h, uint64_t value)
{
	if (h->next_value)
		h->next_value(value);
}
