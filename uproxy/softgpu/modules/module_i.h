/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module_i.h - programs (parsed PTX or a cubin); modules, libraries, kernels and functions of them
 *
 *   library --> program <-- module (of one context) --> variables in device memory
 *      |           |              |
 *    kernel      entries       function       an entry is compiled on its first use (compiler.c)
 */
#ifndef SOFT_MODULE_I_H
#define SOFT_MODULE_I_H

#include "soft_i.h"
#include "ptx.h"

/* An entry on its way to a kernel (compiler.c). */
struct compiled {
	bool busy;			/* a thread compiles it */
	int err;			/* that failed: -errno */
};

struct program {
	unsigned int refs;		/* big */
	uint64_t hash;			/* of the texts, or of the cubin */
	struct ptx_module *pm;		/* NULL: machine code */
	struct cubin *cubin;		/* its launches are recorded, not run; or NULL */
	void **texts;			/* sources, which pm does not copy */
	unsigned int ntexts;
	struct ptx_kernel **kernels;	/* by entry; set once, under `compiling` */
	struct ptx_kernel_info **infos;	/* by entry, of described ones; set like kernels */
	struct compiled *entries;	/* by entry: what becomes of it; `compiling` */
	pthread_mutex_t compiling;
	pthread_cond_t changed;		/* something above */
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

/* Messages of a load: for the JIT options' log buffers, and for SINGVGPU_LOG. */
struct jit_log {
	char err[2048], info[512];
};

/*
 * Reads any image that CUDA takes. CUDA_ERROR_NO_BINARY_FOR_GPU: it holds no PTX that this device
 * can run. `size` 0: the image contains its size.
 */
CUresult program_load(const void *image, size_t size, struct program **out, struct jit_log *log);
/* Links texts of several inputs (cuLink*, relocatable fatbins); takes texts[i] over. */
CUresult program_link(void **texts, size_t *lens, unsigned int n, struct program **out,
		      struct jit_log *log);
void program_put(struct program *p);
/*
 * Starts to compile an entry, unless that has been done, and describes it: all that a launch has to
 * know before it runs. Without big: it may take seconds if much is being compiled. Errors of the
 * compiler's last part, which are unlikely, are those of program_kernel.
 */
CUresult program_compile(struct program *p, unsigned int entry);
/* Has program_compile been done, or need not be? */
bool program_ready(struct program *p, unsigned int entry);
/* Waits until an entry is compiled, or *stop is set. Without big. */
CUresult program_kernel(struct program *p, unsigned int entry, const volatile int *stop,
			struct ptx_kernel **out);
/*
 * Finds out what clusters a launch has.  CUDA_ERROR_INVALID_CLUSTER_SIZE, with a line in the log, if
 * it cannot have them.
 */
CUresult cluster_launch(struct launch *k);
/* The same error, if a launch must say how large clusters are (.explicitcluster), and does not. */
CUresult cluster_given(const struct launch *k);
/* Sets a dimension of the clusters that a function requires. */
CUresult cluster_require(const struct ptx_entry_info *e, struct func_attrs *a, unsigned int i,
			 int value);
/* As occupancy() (soft_i.h), by cuda_occupancy.h. */
int occupancy_vendor(const struct ptx_kernel_info *k, const struct func_attrs *fa,
		     unsigned int threads, size_t smem);
CUresult record_launch(const struct launch *k);
/* Does not compile: libraries query many kernels, and launch one. Without big. */
CUresult program_describe(struct program *p, unsigned int entry);
/* What an errno of ptx.h is for a caller of CUDA. */
CUresult program_error(int err);
/* Valid after program_compile() or program_describe() has succeeded. */
const struct ptx_kernel_info *program_info(const struct program *p, unsigned int entry);

/* As ptx_module_X() (ptx.h), for machine code, too. */
unsigned int program_nentries(const struct program *p);
const struct ptx_entry_info *program_entry(const struct program *p, unsigned int i);
int program_find_entry(const struct program *p, const char *name);
unsigned int program_nvars(const struct program *p);
const struct ptx_var *program_var(const struct program *p, unsigned int i);
int program_find_var(const struct program *p, const char *name);
unsigned int program_target(const struct program *p);

/*
 * sass_read - reads machine code; takes elf over, len bytes that free() frees, also on error.
 * -EINVAL: it is no cubin, or damaged; -ENOMEM. Kernels and variables are sorted by name.
 */
struct cubin;
int sass_read(void *elf, size_t len, struct cubin **out);
void sass_free(struct cubin *c);
unsigned int sass_arch(const struct cubin *c);
unsigned int sass_nentries(const struct cubin *c);
const struct ptx_entry_info *sass_entry(const struct cubin *c, unsigned int i);
const struct ptx_kernel_info *sass_info(const struct cubin *c, unsigned int i);
int sass_find_entry(const struct cubin *c, const char *name);	/* index, -ENOENT */
unsigned int sass_nvars(const struct cubin *c);
const struct ptx_var *sass_var(const struct cubin *c, unsigned int i);
int sass_find_var(const struct cubin *c, const char *name);
/* The size of a cubin in memory, which its own headers say. */
size_t sass_size(const void *image);
CUresult program_shared(struct program *p, unsigned int entry, uint32_t *bytes);

CUresult fatbin_texts(const void *image, size_t size, void ***texts, size_t **lens,
		      unsigned int *n);
/*
 * The machine code of an image that NVIDIA's driver takes for this device: an allocated copy.
 * CUDA_ERROR_NOT_FOUND: it has none for it.
 */
CUresult fatbin_cubin(const void *image, size_t size, void **elf, size_t *len);

CUresult module_new(struct program *p, struct ctx *ctx, struct library *lib, struct module **out,
		    struct jit_log *log);
void module_unload(struct module *m);
/* Memory for a program's managed variables, by variable, with their initial values. */
CUresult managed_new(struct program *p, struct ctx *ctx, struct mem ***out);
void managed_free(struct program *p, struct mem **managed);
/* Whether the image lies within the len bytes that were read from its file. */
bool image_fits(const char *image, size_t len);
CUresult module_read_file(const char *name, char **out, size_t *len);
struct func *module_func(struct module *m, unsigned int entry);
void module_put(struct module *m);
/* The library's module in a context, made when there is none yet. */
CUresult library_module(struct library *lib, struct ctx *ctx, struct module **out);
void jit_options(unsigned int n, CUjit_option *opts, void **values, const struct jit_log *log);

/* What device work may access: the window, and host memory that was made known. */
struct ranges {
	unsigned int refs, n;	/* big */
	struct ptx_range r[];
};

struct ranges *ranges_get(void);	/* big; NULL: out of memory */
void ranges_put(struct ranges *s);	/* big */

#endif
