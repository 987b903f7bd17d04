/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module_i.h - programs (parsed PTX), and the modules, libraries, kernels and functions over them.
 *
 *   library --> program <-- module (of one context) --> variables in device memory
 *      |           |              |
 *    kernel      entries       function       an entry is compiled on its first use
 */
#ifndef SOFT_MODULE_I_H
#define SOFT_MODULE_I_H

#include "soft_i.h"
#include "ptx.h"

struct program {
	unsigned int refs;		/* big */
	uint64_t hash;			/* of the texts */
	struct ptx_module *pm;
	void **texts;			/* sources, which pm does not copy */
	unsigned int ntexts;
	struct ptx_kernel **kernels;	/* by entry; set once, under `compiling` */
	struct ptx_kernel_info **infos;	/* of those that are not compiled; the same */
	pthread_mutex_t compiling;
};

struct func_attrs {
	int max_dyn, carveout, cluster[4], nonportable, policy;
};

struct func {				/* CUfunction */
	struct obj o;
	struct module *mod;
	unsigned int entry;
	struct func_attrs attrs;
};

struct module {				/* CUmodule */
	struct obj o;
	struct ctx *ctx;
	struct program *prog;
	struct library *lib;		/* NULL for one loaded on its own */
	struct func **funcs;		/* by entry, made on demand */
	struct mem *vars;		/* one block for all variables */
	uint64_t *var_addr;
	struct mem **managed;		/* by variable; a library's modules share them */
	unsigned int nvars;
	bool dead;			/* unloaded, but launches still hold it */
	unsigned int refs;
	struct module *next;		/* of its context */
};

struct kernel {				/* CUkernel */
	struct obj o;
	struct library *lib;
	unsigned int entry;
	struct func_attrs attrs;	/* for functions of contexts to come */
};

struct library {			/* CUlibrary */
	struct obj o;
	struct program *prog;
	struct kernel **kernels;
	struct mem **managed;		/* managed variables belong to no context */
};

/* What a loader says on the way: the JIT options' log buffers, and SINGVGPU_LOG. */
struct jit_log {
	char err[2048], info[512];
};

/*
 * Reads any image that CUDA takes. CUDA_ERROR_NO_BINARY_FOR_GPU: it holds no PTX that this device
 * may run. `size` is 0 when the image says its own size.
 */
CUresult program_load(const void *image, size_t size, struct program **out, struct jit_log *log);
/* Links texts of several inputs (cuLink*, relocatable fatbins); takes texts[i] over. */
CUresult program_link(void **texts, size_t *lens, unsigned int n, struct program **out,
		      struct jit_log *log);
void program_put(struct program *p);
/* Compiles an entry if that has not been done. Without big: it may take seconds. */
CUresult program_compile(struct program *p, unsigned int entry);
CUresult program_describe(struct program *p, unsigned int entry);
/* After one of these has succeeded. */
const struct ptx_kernel_info *program_info(const struct program *p, unsigned int entry);
CUresult program_shared(struct program *p, unsigned int entry, uint32_t *bytes);

CUresult fatbin_texts(const void *image, size_t size, void ***texts, size_t **lens,
		      unsigned int *n);

CUresult module_new(struct program *p, struct ctx *ctx, struct library *lib, struct module **out,
		    struct jit_log *log);
void module_unload(struct module *m);
/* Memory for a program's managed variables, by variable, with their initial values. */
CUresult managed_new(struct program *p, struct ctx *ctx, struct mem ***out);
void managed_free(struct program *p, struct mem **managed);
/* Does an image read from a file of this length lie within it? */
bool image_fits(const char *image, size_t len);
CUresult module_read_file(const char *name, char **out, size_t *len);
struct func *module_func(struct module *m, unsigned int entry);
void module_put(struct module *m);
/* The library's module in a context, made when there is none yet. */
CUresult library_module(struct library *lib, struct ctx *ctx, struct module **out);
void jit_options(unsigned int n, CUjit_option *opts, void **values, const struct jit_log *log);

/* Where the device's work may look: the window, and host memory that was made known. */
struct ranges {
	unsigned int refs, n;	/* big */
	struct ptx_range r[];
};

struct ranges *ranges_get(void);	/* big; NULL: out of memory */
void ranges_put(struct ranges *s);	/* big */

#endif
