/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hal.h - the device below the proxy: a driver loaded at run time, its window, memory, completion
 *
 * NVIDIA's libcuda.so.1 and libsoftcuda.so are driven alike, through the table that is generated
 * from cuda.h. One driver, one device and one window for each process; nothing here is undone,
 * since the end of the process does.
 *
 *   hal_open ─► hal_window (first of all: the driver has placed nothing there yet) ─► hal_map …
 */
#ifndef HAL_H
#define HAL_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_driver.h"

/* Memory that a driver allocated for what kernels keep there: heaps of malloc(), values of handles. */
struct hal_own {
	uint64_t at, len;
	const char *what;
};

struct hal {
	struct cuda_driver drv;
	char path[4096];	/* of the driver that was opened */
	int version;		/* cuDriverGetVersion */
	int devices;
	CUdevice dev;		/* the session's */
	CUcontext primary;	/* retained */
	uint64_t window, window_len;
	CUmemAllocationProp prop;
	/* What CUDA has no call for; NULL: the driver has none either. */
	CUresult (*own_memory)(unsigned int i, CUdeviceptr at, struct hal_own *own);
	void (*next_value)(uint64_t value);
};

/*
 * hal_open: load and initialise the driver at path, or with NULL the first of: NVIDIA's with a
 * device, the soft device beside this program. window and len say where hal_window will ask.
 * -ENOENT no driver, -ENODEV no device, -ENOSYS it lacks a function; why[n] gets a sentence.
 */
int hal_open(struct hal *h, const char *path, uint64_t window, uint64_t len, char *why, size_t n);

/* hal_window: reserve device addresses. -EADDRNOTAVAIL the driver did not honour the base. */
int hal_window(struct hal *h, uint64_t base, uint64_t len, char *why, size_t n);

/* hal_start: retain the primary context of device dev and make it current. -EINVAL, -EIO. */
int hal_start(struct hal *h, int dev, char *why, size_t n);

/* The path of the soft device beside this program, or -ENOENT. */
int hal_soft_path(char *path, size_t n);

/*
 * Physical memory at [va, va + len) of the window, read and written, in pieces that can be unmapped
 * each for itself; all of it or nothing.
 */
CUresult hal_map(struct hal *h, uint64_t va, uint64_t len, uint64_t piece);
CUresult hal_unmap(struct hal *h, uint64_t va, uint64_t len);
CUresult hal_access(struct hal *h, uint64_t va, uint64_t len, unsigned int flags);

/* May the host read and write device memory at va where it is? */
int hal_host_reads(struct hal *h, uint64_t va);

/*
 * What a dump must save that CUDA has no name for, by number; 0: there is no such number. A driver
 * that does not tell cannot save the heap of malloc() in kernels. hal_own_make: as it was in another
 * process, before its contents are filled in.
 */
int hal_own_memory(struct hal *h, unsigned int i, struct hal_own *own);
int hal_saves_heap(struct hal *h);
CUresult hal_own_make(struct hal *h, const struct hal_own *own);

/*
 * hal_next_value: the next texture, surface or conditional handle that this thread makes had this
 * value before. A driver may not care: what it made is compared later (observe.c).
 */
void hal_next_value(struct hal *h, uint64_t value);

/* Host memory that the device may use at its address, in every context. */
CUresult hal_pin(struct hal *h, void *p, size_t len);
CUresult hal_unpin(struct hal *h, void *p);

/*
 * hal_notify: fn(arg, status) is called from a thread of the driver when the stream has done what
 * was put on it, also if its context has failed. fn must not call the driver, nor wait.
 */
typedef void (*hal_fn)(void *arg, CUresult status);
CUresult hal_notify(struct hal *h, CUstream stream, hal_fn fn, void *arg);

/* Does this result mean that its context is of no more use? */
int hal_sticky(CUresult r);

#endif
