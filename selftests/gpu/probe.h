/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.h - what the probes of a driver share: its functions, a context, kernels, clocks
 *
 * A probe prints what it finds as lines; the last line sums it up. It exits with 0, with 1 if a call
 * failed that it cannot go on without, or with 4 if this driver or device has nothing to probe.
 */
#ifndef PROBE_H
#define PROBE_H

#include <cuda.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MIB (1ull << 20)
#define COUNT(a) (sizeof(a) / sizeof(*(a)))

/* Exits with 4 if the driver has no such function. */
void *symbol(const char *name);

/* The driver's function, under the name and version that cuda.h chose. */
#define NAME_(f) #f
#define NAME(f) NAME_(f)
#define DRIVER(f) ({						\
	static __typeof__(&f) p_;				\
	if (!p_)						\
		p_ = (__typeof__(p_))symbol(NAME(f));		\
	p_;							\
})

const char *code(CUresult rc);
void check(CUresult rc, const char *what);
#define CHECK(f, ...) check(DRIVER(f)(__VA_ARGS__), NAME(f))

/* Prints the text as the summary and exits with that status. */
void leave(int status, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

/* cuInit, the primary context of device 0, the kernels of probe.c in it. */
void begin(void);
void begin_context(void);
int attribute(CUdevice_attribute a);
CUmodule load_kernels(void);
CUlibrary load_library(void);
CUfunction function(const char *name);
/* Parameters are 8 bytes each. */
CUresult launch(CUfunction f, CUstream s, int n, const uint64_t *params);
CUresult spin(CUstream s, double us);

/* Words of host memory that streams can wait for and write; *there: their address on the device. */
volatile uint64_t *host_words(CUdeviceptr *there);
CUstream new_stream(void);

double now_us(void);
double median(double *v, int n);
size_t free_memory(void);
CUmemAllocationProp device_memory(void);
void allow(CUdeviceptr at, size_t len);

/* One per entry of the table in probe.c. */
int probe_attrs(int argc, char **argv);
int probe_behind(int argc, char **argv);
int probe_bignodes(int argc, char **argv);
int probe_callbacks(int argc, char **argv);
int probe_clusters(int argc, char **argv);
int probe_driver_checkpoint(int argc, char **argv);
int probe_extra(int argc, char **argv);
int probe_hold(int argc, char **argv);
int probe_link(int argc, char **argv);
int probe_params(int argc, char **argv);
int probe_queue(int argc, char **argv);
int probe_register(int argc, char **argv);
int probe_reset(int argc, char **argv);
int probe_share(int argc, char **argv);
int probe_tensormap(int argc, char **argv);
int probe_variables(int argc, char **argv);
int probe_vmm(int argc, char **argv);
int probe_waits(int argc, char **argv);
int probe_windows(int argc, char **argv);

#endif
