/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx.h - the soft device's compiler and executor: compiles PTX and runs it on this CPU
 *
 * A module is parsed once (headers and variables at once, bodies when an entry is compiled).  An
 * entry is compiled on its first use, with the functions that it reaches, or taken from an
 * on-disk cache; LLVM (libsoftjit.so, found beside the library that holds this code) is loaded
 * only when something has to be compiled.  The caller owns memory: it gives every module variable
 * an address, and passes the address ranges that a kernel may touch to each launch.
 *
 * Addresses.  A global or const address is the host address of the same value, inside one of the
 * launch's ranges.  A range may contain unmapped pages: an access to one ends the launch with an
 * illegal address.  Addresses below PTX_VA_LIMIT are never global: they are the generic addresses
 * of shared and local memory and of parameters, the same in every thread.
 *
 * Order.  If a kernel's result may depend on the order of its blocks (ptx_kernel_info.ordered), the
 * blocks run in order on one thread, or, where possible (.turns), in parallel with their atomics
 * and strong accesses in a reproducible order.  Other kernels use every worker.  All blocks of a
 * cooperative launch make progress; so do blocks that wait for other blocks, up to
 * ptx_launch.resident of them, and all blocks of a cluster.
 *
 * All functions are thread-safe for different objects; ptx_compile() and ptx_run() are also safe
 * for the same module and kernel at once.  Errors are -errno, with a sentence in @err.
 */
#ifndef SOFTGPU_PTX_H
#define SOFTGPU_PTX_H

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

#define PTX_VA_SHARED	0x01000000ull	/* generic address of the first shared byte */
#define PTX_VA_LOCAL	0x02000000ull	/* generic address of the first local byte */
#define PTX_VA_PARAM	0x20000000ull	/* generic address of the first parameter byte */
#define PTX_VA_RANK	19		/* shift, in a shared address: 1 + the block of the cluster, or 0 */
#define PTX_VA_LIMIT	0x40000000ull	/* global addresses start here or above */

struct ptx_module;
struct ptx_kernel;

enum ptx_space { PTX_GLOBAL, PTX_CONST, PTX_SHARED, PTX_TEXREF, PTX_SURFREF, PTX_SAMPLERREF };

/* One PTX text.  It is not copied: keep it until ptx_module_free(). */
struct ptx_source {
	const char *text;	/* need not end in NUL; a NUL ends it early */
	size_t len;
};

struct ptx_param {
	uint32_t offset, size, align;
};

struct ptx_entry_info {
	const char *name;		/* lives as long as the module */
	uint32_t nparams;
	const struct ptx_param *params;
	uint32_t param_size;		/* end of the last parameter */
	uint32_t maxntid[3], reqntid[3];	/* 0: not given */
	uint32_t minnctapersm, maxnreg;	/* 0: not given */
	uint32_t cluster[3];		/* .reqnctapercluster: blocks of a cluster; 0: not given */
	uint32_t max_cluster;		/* .maxclusterrank; 0: not given */
	bool explicit_cluster;		/* .explicitcluster: a launch gives .cluster if it is 0 */
	bool grid_of_clusters;		/* .blocksareclusters */
	uint32_t line;
};

/* Facts from an entry's body (ptx_compile, ptx_describe). */
struct ptx_kernel_info {
	uint32_t static_shared;		/* bytes; dynamic shared memory follows it */
	uint32_t local_bytes;		/* per thread, without recursion */
	uint32_t num_regs;		/* nominal, for occupancy */
	bool dyn_shared;		/* an unsized extern shared array is used */
	bool barriers;			/* threads of a block wait for each other */
	bool ordered;			/* the result may depend on the blocks' order: see above */
	bool turns;			/* ordered, and blocks may run in turns (rt/turns.c) */
	bool grid_sync;			/* reads %envreg1/2 (cooperative groups' workspace) */
	bool reserved_shared;		/* reads %reserved_smem_offset_*: more shared memory */
	bool uses_printf, uses_malloc, uses_trap;
};

/*
 * Addend relocation: the @size (4 or 8) bytes at @offset are the value of @target plus @addend,
 * shifted right by @shift bits (mask() parts; 0 otherwise).  @target is a variable index, or with
 * @is_func a function ordinal, whose value is ptx_func_value(ordinal).
 */
struct ptx_reloc {
	uint32_t offset;
	uint8_t size, shift;
	bool is_func;
	bool generic;			/* generic(): the same value, except for .shared */
	uint32_t target;
	int64_t addend;
};

struct ptx_var {
	const char *name;		/* lives as long as the module */
	enum ptx_space space;
	bool visible;			/* .visible, .weak or .common: found by name from outside */
	bool external;			/* .extern, no definition here: the caller resolves it */
	bool managed;			/* .attribute(.managed) */
	uint64_t size;			/* 0: unsized array */
	uint32_t align;
	const uint8_t *init;		/* init_len bytes, zeros follow; NULL: all zero */
	uint64_t init_len;
	uint32_t nrelocs;
	const struct ptx_reloc *relocs;
};

/*
 * ptx_module_parse - read one or more texts as one program.
 * Several texts are linked: .visible/.extern/.weak/.common names are shared, others are private.
 * -EINVAL: not PTX or inconsistent (@err names source, line and token); -ENOEXEC: an unsupported
 * .version or .address_size; -ENOMEM.
 */
int ptx_module_parse(const struct ptx_source *src, unsigned int nsrc, struct ptx_module **out,
		     char *err, size_t errlen);
void ptx_module_free(struct ptx_module *m);	/* after all its kernels have been freed */

unsigned int ptx_module_nentries(const struct ptx_module *m);
const struct ptx_entry_info *ptx_module_entry(const struct ptx_module *m, unsigned int i);
int ptx_module_find_entry(const struct ptx_module *m, const char *name);	/* index, -ENOENT */

/* Module-scope variables that have an address: not .shared.  Indices are dense and stable. */
unsigned int ptx_module_nvars(const struct ptx_module *m);
const struct ptx_var *ptx_module_var(const struct ptx_module *m, unsigned int i);
int ptx_module_find_var(const struct ptx_module *m, const char *name);		/* index, -ENOENT */

/* .target of the first source as SM number (75, 130). */
unsigned int ptx_module_target(const struct ptx_module *m);

/* The value that device code sees for a function pointer. */
uint64_t ptx_func_value(uint32_t ordinal);

/*
 * ptx_compile - compile entry @entry, or load it from the cache.  May take seconds.
 * -ENOTSUP: an opcode, modifier or function that is not supported (@err: "line 12: foo.bar: why");
 * -EINVAL: malformed; -ENOENT: an extern function without definition; -ELIBACC: no libsoftjit.so;
 * -ENOMEM.
 * The kernel stays valid until ptx_kernel_free(), which must come before ptx_module_free().
 *
 * @translated (may be NULL) is called when all but LLVM's work is done, unless the cache has the entry:
 * errors are then unlikely, and other entries of the module can be compiled meanwhile.
 */
struct ptx_translated {
	void (*fn)(void *user, const struct ptx_kernel_info *info);
	void *user;
};
int ptx_compile(struct ptx_module *m, unsigned int entry, const struct ptx_translated *translated,
		struct ptx_kernel **out, char *err, size_t errlen);
void ptx_kernel_free(struct ptx_kernel *k);

/*
 * ptx_describe - ptx_kernel_info of entry @entry, without LLVM's work.
 * If the cache has the entry, *@out is the kernel, as from ptx_compile.  Else *@out is NULL and
 * @info is filled.  Errors are those of ptx_compile.
 */
int ptx_describe(struct ptx_module *m, unsigned int entry, struct ptx_kernel **out,
		 struct ptx_kernel_info *info, char *err, size_t errlen);

/*
 * ptx_shared_size - ptx_kernel_info.static_shared of an entry, without compiling it.
 * The body is read: errors are those of ptx_compile, except for unsupported opcodes.
 */
int ptx_shared_size(struct ptx_module *m, unsigned int entry, uint32_t *bytes, char *err,
		    size_t errlen);

/*
 * ptx_check - ptx_compile without LLVM's work; the same errors.
 * @known (may be NULL) is called with the form (opcode, modifiers, kinds of operands) of each
 * instruction; if it knows all forms, the entry is only parsed and analysed.
 */
typedef bool (*ptx_form_fn)(void *user, const char *form);
int ptx_check(struct ptx_module *m, unsigned int entry, ptx_form_fn known, void *user, char *err,
	      size_t errlen);
const struct ptx_kernel_info *ptx_kernel_info(const struct ptx_kernel *k);
const struct ptx_entry_info *ptx_kernel_entry(const struct ptx_kernel *k);

/* Directory of the on-disk cache (created when needed); NULL: none.  Default: none. */
int ptx_set_cache(const char *dir);

/*
 * The machine's cache, which is root's: read after the other; with write it changes places with that.
 * 0 or -errno; what is not to be trusted is ignored when it is read.
 */
int ptx_set_machine_cache(const char *dir, bool write);

/* What has become of kernels; the same as struct uproxy_kernels (uproxy/include/stat.h). */
struct ptx_counts {
	uint64_t asked;		/* kernels whose code was wanted */
	uint64_t cached;	/* of these, found in a cache */
	uint64_t compiled;
	uint64_t kept;		/* of these, written to the cache */
	uint64_t failed;
	uint64_t ns;		/* while one or more were compiled */
	uint64_t since;		/* CLOCK_MONOTONIC: at least one is compiled since then; 0: none */
	uint64_t no_ptx;	/* images that hold only machine code, for other devices */
};

/* Counts there from now on, where others may read; NULL: privately.  To be called before the rest. */
void ptx_set_counts(struct ptx_counts *c);
/* Adds 1 to the field at this offset; returns what it was. */
uint64_t ptx_count(size_t field);

/* Sets the number of threads that launches share, callers included.  0: one per CPU (default). */
void ptx_set_workers(unsigned int n);

struct ptx_range {
	uint64_t lo, hi;	/* lo <= address < hi */
};

enum ptx_fault_kind {
	PTX_OK,
	PTX_ILLEGAL_ADDRESS,
	PTX_MISALIGNED,
	PTX_ILLEGAL_SPACE,	/* e.g. an atomic on parameters */
	PTX_INVALID_PC,		/* an indirect call whose target is no function */
	PTX_TRAP,		/* trap, brkpt */
	PTX_ASSERT,		/* __assertfail; text says where */
	PTX_STACK,		/* recursion ran out of stack or local memory */
	PTX_STOPPED,		/* *stop was set */
	PTX_DEADLOCK,		/* a barrier that no thread can complete */
	PTX_ILLEGAL_INSN,	/* e.g. a bad barrier number */
	PTX_NOMEM,		/* host memory for stacks, shared or local memory */
};

struct ptx_fault {
	enum ptx_fault_kind kind;
	uint64_t addr;
	uint32_t block[3], thread[3];	/* the first faulting one */
	char text[8192];		/* a line; of assertions, a line for each thread */
};

enum { PTX_TEX_LEVELS = 18 };

struct ptx_level {
	uint64_t data;			/* host address */
	uint32_t width, height, depth;	/* texels; depth also counts layers (6 per cube) */
	uint64_t row_pitch, slice_pitch;	/* bytes */
};

/* One texture or surface, for tex, suld and sust.  2D and 3D are pitch-linear. */
struct ptx_tex {
	struct ptx_level level[PTX_TEX_LEVELS];
	uint32_t nlevels;		/* 1 at least */
	uint32_t dim;			/* 1, 2, 3 */
	uint8_t mip_linear;
	float lod_bias, lod_min, lod_max;
	uint8_t channels;		/* 1, 2, 4 */
	uint8_t bits;			/* 8, 16, 32 per channel */
	uint8_t kind;			/* 0 unsigned, 1 signed, 2 float */
	uint8_t layered, cubemap;
	uint8_t read_normalized;	/* integers are read as floats in [0,1] or [-1,1] */
	uint8_t normalized_coords;
	uint8_t linear;			/* filter */
	uint8_t srgb;
	uint8_t address[3];		/* 0 wrap, 1 clamp, 2 mirror, 3 border */
	float border[4];
};

/* Services for kernels.  Called on worker threads; a kernel that needs a NULL member is refused. */
struct ptx_host {
	void *user;
	void (*print)(void *user, const char *text, size_t len);	/* device printf, formatted */
	uint64_t (*malloc)(void *user, uint64_t size);	/* 0: none left */
	void (*free)(void *user, uint64_t addr);
	const struct ptx_tex *(*tex)(void *user, uint64_t handle);	/* NULL: no such object */
};

struct ptx_launch {
	uint32_t grid[3], block[3];
	uint32_t cluster[3];	/* blocks of a cluster; 0: the kernel's own size, or 1 */
	uint32_t dyn_shared;		/* bytes */
	const void *params;		/* laid out as ptx_entry_info says */
	size_t params_len;
	const uint64_t *var_addr;	/* by variable index; must live during the run */
	const struct ptx_range *ranges;	/* the busiest first */
	unsigned int nranges;
	const struct ptx_host *host;
	const volatile int *stop;	/* non-zero: end soon with PTX_STOPPED; may be NULL */
	bool cooperative;
	bool late_stores;		/* after a barrier no warp writes before all want to */
	uint64_t coop_workspace;	/* device address for %envreg1/2, zeroed 64 bytes, or 0 */
	uint32_t resident;		/* most blocks in flight at once; 0: 64 */
	uint32_t num_sms;		/* for %nsmid; 0: 16 */
	uint64_t grid_id;
	uint64_t local_limit;		/* local bytes per thread for recursion; 0: 512 KiB */
};

/*
 * ptx_run - execute one launch and return when all its blocks have ended.
 * 0; -EINVAL: dimensions, parameters or shared size do not fit the kernel (@fault has the text);
 * -EFAULT: the kernel faulted, see @fault; -ENOMEM.
 */
int ptx_run(struct ptx_kernel *k, const struct ptx_launch *l, struct ptx_fault *fault);

/*
 * ptx_try - call @fn, and return -EFAULT if it touches an unmapped page inside the ranges.
 * @fn is then abandoned in the middle: it must hold no lock or other resource.
 */
int ptx_try(void (*fn)(void *arg), void *arg, const struct ptx_range *ranges, unsigned int n);

#endif
