/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hal.h - the device below the proxy: a driver loaded at run time, its window, memory, completion
 *
 * NVIDIA's libcuda.so.1 and libsoftcuda.so are called alike, through the function table that is
 * generated from cuda.h. A process has one driver, one device and one window; its end frees them.
 *
 * Failures are stored in *why.
 *
 *   hal_open ─► hal_window (first of all: the driver has placed nothing there yet) ─► hal_map …
 */
#ifndef HAL_H
#define HAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_driver.h"
#include "why.h"

/* Memory of the driver's own: the malloc() heap of kernels, the values of conditional handles. */
struct hal_own {
	uint64_t at, len;
	const char *what;
};

struct uproxy_kernels;	/* stat.h */

struct hal {
	struct cuda_driver drv;
	char path[4096];	/* of the driver that was opened */
	int version;		/* cuDriverGetVersion */
	int devices;
	CUdevice dev;		/* the session's */
	CUcontext primary;	/* retained */
	uint64_t window, window_len;
	CUmemAllocationProp prop;
	/* Calls of the soft device that CUDA lacks; else NULL. */
	CUresult (*own_memory)(unsigned int i, CUdeviceptr at, struct hal_own *own);
	void (*next_value)(uint64_t value);
	void (*count_kernels)(struct uproxy_kernels *shown);
	void (*told_words)(const void *from, size_t len);
	void (*told)(bool here);
	const char *comm_library;	/* of its own transport, beside it; NULL: NCCL */
};

/*
 * hal_open: loads and initialises the driver at path; NULL: NVIDIA's if it has a device, else the
 * soft device beside this program. window and len: what hal_window will reserve.
 * -ENOENT no driver, -ENODEV no device, -ENOSYS it lacks a function.
 */
int hal_open(struct hal *h, const char *path, uint64_t window, uint64_t len, struct why *why);

/*
 * hal_window: reserves device addresses, len bytes at base; base 0: the driver chooses.
 * -EADDRNOTAVAIL: the driver reserves nothing, or does not honour the base.
 */
int hal_window(struct hal *h, uint64_t base, uint64_t len, struct why *why);

/* hal_start: retains the primary context of device dev and makes it current. -EINVAL, -EIO. */
int hal_start(struct hal *h, int dev, struct why *why);

/*
 * hal_map: maps new physical memory at [va, va + len) of the window, readable and writable, in
 * pieces that can be unmapped one by one; the last one may be shorter. Maps all of it or nothing.
 */
CUresult hal_map(struct hal *h, uint64_t va, uint64_t len, uint64_t piece);
CUresult hal_unmap(struct hal *h, uint64_t va, uint64_t len);
CUresult hal_access(struct hal *h, uint64_t va, uint64_t len, unsigned int flags);

/*
 * Memory that several processes map at the same place. hal_share: makes len bytes of it and maps them at va, readable and writable; *fd
 * is the caller's, and stands for the memory as long as it is open. hal_join: maps the memory of such an fd.
 */
CUresult hal_share(struct hal *h, uint64_t va, uint64_t len, int *fd);
CUresult hal_join(struct hal *h, uint64_t va, uint64_t len, int fd);

/* May the host read and write device memory directly, at va? */
int hal_host_reads(struct hal *h, uint64_t va);

/*
 * hal_own_memory: fills in *own for the i-th memory of the driver's own, which a dump must save; 0:
 * there are no more. hal_saves_heap: can the driver list them? If not, a malloc() heap cannot be
 * saved. hal_own_make: allocates the same memory in a restored process; the caller fills it.
 */
int hal_own_memory(struct hal *h, unsigned int i, struct hal_own *own);
int hal_saves_heap(struct hal *h);
CUresult hal_own_make(struct hal *h, const struct hal_own *own);

/*
 * hal_next_value: asks for the value of the next texture, surface or conditional handle that this
 * thread makes. A driver may ignore it: observe.c compares the values later.
 */
void hal_next_value(struct hal *h, uint64_t value);

/*
 * hal_told_words: stores to these words, which streams wait for, are told by hal_told(): a driver that
 * listens needs no thread that polls them. The memory stays. hal_told: a word has been stored to.
 * here: what waits for that may be called in this thread, which holds no lock. Any thread.
 */
void hal_told_words(struct hal *h, const void *from, size_t len);
void hal_told(struct hal *h, bool here);

/* Pins host memory, so that the device may use it at the same address in every context. */
CUresult hal_pin(struct hal *h, void *p, size_t len);
CUresult hal_unpin(struct hal *h, void *p);

/*
 * hal_notify: a thread calls fn(arg, status) when the work queued in the stream, of the current
 * context, is done, also if that context has failed. fn must not call the driver, nor wait.
 */
typedef void (*hal_fn)(void *arg, CUresult status);
CUresult hal_notify(struct hal *h, CUstream stream, hal_fn fn, void *arg);

/*
 * hal_notify_start: chooses how, once, behind hal_start. SINGVGPU_NOTIFY=words|callbacks chooses for
 * it. hal_notify_leave, hal_notify_left: a context is about to end, has ended, which ends its
 * waits with CUDA_ERROR_CONTEXT_IS_DESTROYED. hal_notify_repin: the primary one has been reset.
 */
void hal_notify_start(struct hal *h);
void hal_notify_leave(struct hal *h, CUcontext ctx);
void hal_notify_left(struct hal *h, CUcontext ctx);
CUresult hal_notify_repin(struct hal *h);

/* Is this a sticky error, which leaves its context unusable? */
int hal_sticky(CUresult r);

#endif
