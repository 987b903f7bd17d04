/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_i.h - the compiler's own view of a module: symbols, instructions, control flow.
 *
 * Lifetime: all memory is in arenas.  A module's arena holds headers, variables and names.  A unit
 * (one entry being compiled, with the functions that it reaches) has its own arena and is freed
 * after code generation.  Nothing here uses LLVM; jit/ compiles a unit into an object file.
 */
#ifndef SOFTGPU_PTX_I_H
#define SOFTGPU_PTX_I_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include "ptx.h"

struct arena_chunk;
struct arena {
	struct arena_chunk *head;
	size_t used, size;
};

void *ptx_arena_alloc(struct arena *a, size_t n); /* zeroed; longjmps on out of memory */
void ptx_arena_free(struct arena *a);

/* Errors unwind to the nearest ptx_guard; nothing leaks, since all memory is in arenas. */
struct ptx_guard {
	jmp_buf env;
	int ret;
	char *err;
	size_t errlen;
};

struct ptx_guard **ptx_guard_slot(void);
void ptx_fail(int ret, unsigned int line, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

enum ptype {
	T_NONE, T_PRED,
	T_B8, T_B16, T_B32, T_B64, T_B128,
	T_U8, T_U16, T_U32, T_U64,
	T_S8, T_S16, T_S32, T_S64,
	T_F16, T_F32, T_F64, T_BF16, T_F16X2, T_BF16X2, T_TF32,
	T_E4M3, T_E5M2, T_E4M3X2, T_E5M2X2, T_U16X2, T_S16X2,
	T_E2M1X2, T_E2M3X2, T_E3M2X2, T_UE8M0X2,
	T_F32X2,
	T_TEXREF, T_SAMPLERREF, T_SURFREF, T_S4, T_U4, T_B1,
	T_COUNT
};

unsigned int ptype_size(enum ptype t);	/* bytes; predicates 1 */
bool ptype_is_float(enum ptype t);
bool ptype_is_signed(enum ptype t);
enum ptype ptype_parse(const char *s, size_t n);	/* T_NONE: no type */

/* Opcodes and modifiers that code refers to by name; the others stay text. */
enum ptx_op {
	OP_UNKNOWN,
#define OP(name, text) OP_##name,
#include "ptx_ops.def"
#undef OP
	OP_COUNT
};

enum ptx_mod {
	M_UNKNOWN,
#define MOD(name, text) M_##name,
#include "ptx_mods.def"
#undef MOD
	M_COUNT
};

extern const char *const ptx_op_name[];

enum sreg {
	SR_NONE,
#define SREG(name, text) SR_##name,
#include "ptx_sregs.def"
#undef SREG
	SR_COUNT
};

enum opnd_kind {
	O_NONE,		/* _ */
	O_REG, O_IMM, O_F32, O_F64, O_SREG,
	O_VAR,		/* address of a variable (+ imm) */
	O_FUNC,		/* a function's address or a call's target */
	O_LABEL,	/* a label; a block after flattening */
	O_MEM,		/* [reg + imm], [var + imm], [imm] */
	O_VEC,		/* { a, b, ... } */
	O_LIST,		/* ( a, b, ... ) of a call, label lists */
	O_NAME,		/* unresolved: prototype, target list */
};

enum vspace { V_GLOBAL, V_CONST, V_SHARED, V_LOCAL, V_PARAM, V_ENTRY_PARAM };

/* A variable: of the module, or of one function. */
struct pvar {
	const char *name;
	enum vspace space;
	uint64_t size;
	uint32_t align;
	enum ptype type;
	bool dynamic;		/* unsized extern shared */
	int index;		/* module variables: ptx_var index, else -1 */
	uint32_t id;		/* function variables: dense in the body */
	uint64_t offset;	/* in its frame, parameter buffer or shared memory, once laid out */
	uint32_t order;		/* shared variables lie in this order: as they were declared */
	bool placed;
	bool addr_taken;
	/* call parameters that are promoted to registers */
	struct ppiece *pieces;
	bool promoted;
	struct pvar *alias;	/* inlined formal: the caller's actual */
};

struct ppiece {
	uint32_t off, size;
	int reg;
	struct ppiece *next;
};

struct opnd {
	uint8_t kind;
	uint8_t neg;		/* - or ! */
	uint8_t sreg;
	uint8_t nvec;
	int reg;		/* O_REG; base of O_MEM, or -1 */
	int reg2;		/* d|p, or -1 */
	int64_t imm;		/* also float bits, label id */
	struct pvar *var;
	struct pfunc *func;
	struct opnd *vec;
	const char *name;
};

struct insn {
	uint16_t op;
	uint8_t nmod, nopnd;
	bool guard_neg;
	bool whole;		/* may write the result in lanes outside of the guard, too */
	bool uniform;		/* one value for the whole warp */
	bool late;		/* may be the first write to memory after a barrier */
	int guard;		/* register or -1 */
	uint32_t line, scope;
	uint16_t *mods;		/* enum ptx_mod */
	uint8_t *mtype;		/* enum ptype of each modifier, or T_NONE */
	const char **mtext;
	struct opnd *o;
	uint8_t t[4];		/* the type modifiers, in order */
	uint8_t ntypes;
	const char *text;	/* in the source, for messages */
};

bool insn_has(const struct insn *i, enum ptx_mod m);
const char *insn_str(const struct insn *i, char *buf, size_t n);

struct plabel {
	const char *name;
	uint32_t scope;
	uint32_t insn;		/* index of the instruction that follows */
	struct plabel *next;	/* hash chain */
	uint32_t id;
};

struct ptargets {		/* .branchtargets, .calltargets, .callprototype */
	const char *name;
	uint32_t scope;
	unsigned int n;
	const char **names;
	bool is_proto, noreturn;
	struct pvar **rets, **params;
	unsigned int nrets, nparams;
	struct ptargets *next;
};

/* pvar.order of a function's first variable; the module's come before. */
#define ORDER_LOCAL	(1u << 24)

/* A parsed function body. */
struct pbody {
	struct arena *arena;
	struct insn *insn;
	uint32_t ninsn, cap;
	uint8_t *regtype;	/* enum ptype */
	uint32_t nregs, regcap;
	const char **regname;
	struct pvar **vars;
	uint32_t nvars, varcap;
	struct plabel **labels;	/* by id */
	uint32_t nlabels, labelcap;
	struct plabel *hash[64];
	uint32_t *scope_parent;
	uint32_t nscopes, scopecap;
	struct ptargets *targets;
};

struct pfunc {
	const char *name;
	uint32_t src, line;
	bool is_entry, visible, weak, external, noreturn;
	struct pvar **params, **rets;
	uint32_t nparams, nrets;
	const char *body;	/* text from { to }, NULL: none */
	size_t body_len;
	uint32_t body_line;
	uint32_t ordinal;
	bool addr_taken;
	struct ptx_entry_info info;
	struct pfunc *alias;
};

struct psym {
	const char *name;
	uint32_t src;		/* private to this source, or SRC_PUBLIC */
	uint32_t hash;
	struct pfunc *func;
	struct pvar *var;
	struct psym *next;
};

#define SRC_PUBLIC UINT32_MAX

struct ptx_module {
	struct arena arena;
	const struct ptx_source *src;
	unsigned int nsrc;
	unsigned int target, version;
	struct psym **syms;
	uint32_t nbuckets, nsyms;
	struct pfunc **funcs;
	uint32_t nfuncs, funccap;
	struct pfunc **entries;
	uint32_t nentries, entrycap;
	struct ptx_var *vars;
	struct pvar **pvars;
	uint32_t nvars, varcap;
	uint32_t nshared;	/* shared variables declared */
	pthread_mutex_t lock;	/* addr_taken scan, alias resolution */
	bool scanned;
	bool hashed;
	uint64_t text_hash[2];	/* of all sources, for the cache */
};

struct psym *ptx_lookup(const struct ptx_module *m, uint32_t src, const char *name, size_t n);
int body_new_reg(struct pbody *b, enum ptype t, const char *name);
struct pvar *body_add_var(struct pbody *b, struct pvar *v);
struct plabel *body_find_label(const struct pbody *b, const char *name, uint32_t scope);
struct pbody *ptx_parse_body(struct ptx_module *m, struct pfunc *f, struct arena *a);
const char *ptx_arena_str(struct arena *a, const char *s, size_t n);

/* ---- units: what code is generated from ---- */

struct pblock {
	uint32_t first, last;	/* instructions [first, last) */
	uint32_t nsucc, npred;
	uint32_t *succ, *pred;
	uint32_t rpo;		/* position in reverse post-order; UINT32_MAX: unreachable */
	int idom, ipdom;
	int loop;		/* innermost loop or -1 */
	int stub;		/* dispatch index or -1 */
	bool join;		/* diverged lanes may meet here: edges to it check */
	bool divergent;		/* may run with part of the live lanes */
	bool div_branch;	/* ends in a branch that may split the warp */
	bool collective;	/* starts with an operation that waits for other lanes */
	uint64_t *livein;	/* bitset of registers */
};

struct ploop {
	uint32_t header, latch;
	int parent;
	bool divergent;		/* lanes leave in different iterations */
	bool spin;		/* may wait for another thread */
	bool polls;		/* waits by loads or at an mbarrier: its exit condition may be uniform */
	uint64_t *blocks;	/* bitset */
};

/*
 * A function with more than PTX_HUGE instructions is cut into regions (jit/flow.c) of at most
 * ptx_region_most() instructions; in the largest functions regions are smaller, for compile time.
 */
#ifndef PTX_HUGE
#define PTX_HUGE 4000
#endif
static inline bool ptx_largest(uint32_t ninsn)
{
	return ninsn > 2 * PTX_HUGE;
}
static inline uint32_t ptx_region_most(uint32_t ninsn)
{
	return ptx_largest(ninsn) ? PTX_HUGE / 8 : PTX_HUGE / 2;
}

/* One LLVM function: an entry, or a function that is not inlined. */
struct ufunc {
	struct pfunc *f;
	struct pbody *b;
	struct pblock *blk;
	uint32_t nblk;
	uint32_t *order;	/* blocks by rpo */
	uint32_t nreach;
	struct ploop *loop;
	uint32_t nloops;
	uint8_t *uniform;	/* per register */
	uint32_t nstubs;
	uint32_t *stub_blk;
	uint64_t frame;		/* local bytes, outgoing parameters excluded */
	bool diverges;
	bool preempts;		/* a group in a loop may be preempted by another of its warp */
};

struct unit {
	struct ptx_module *m;
	struct arena arena, scratch;	/* scratch: of the analysis of one function */
	struct ufunc *fn;	/* 0: the entry */
	uint32_t nfn, fncap;
	struct ptx_kernel_info info;
	uint32_t shared;	/* laid out so far */
	bool indirect;		/* some indirect call */
	bool has_calls;
	bool spins;		/* may wait for another block */
	bool atomics_ordered;
	bool check_only;	/* everything but code generation */
	bool layout_only;	/* only where shared variables lie */
	const char *level;	/* CPU level that the code is for; "": this CPU */
	void (*translated)(void *arg);	/* called when the module is no longer needed; or NULL */
	void *arg;
};

int ptx_unit_build(struct unit *u, struct ptx_module *m, struct pfunc *entry);
void ptx_analyse(struct unit *u, struct ufunc *f);
struct ufunc *unit_find(struct unit *u, const struct pfunc *f);
uint64_t ptx_call_layout(struct pvar **rets, unsigned int nrets, struct pvar **params,
			 unsigned int nparams, uint64_t *offs);

static inline bool bit_get(const uint64_t *b, uint32_t i)
{
	return b[i / 64] >> (i % 64) & 1;
}

static inline void bit_set(uint64_t *b, uint32_t i)
{
	b[i / 64] |= 1ull << (i % 64);
}

/* A strong load or store: it may wait for another thread, or another thread for it. */
static inline bool insn_is_strong(const struct insn *i)
{
	return insn_has(i, M_volatile) || insn_has(i, M_relaxed) || insn_has(i, M_acquire) ||
	       insn_has(i, M_release) || insn_has(i, M_mmio);
}

/* Names shared memory, of the block or of its cluster. */
static inline bool insn_is_shared(const struct insn *i)
{
	return insn_has(i, M_shared) || insn_has(i, M_shared_cta) || insn_has(i, M_shared_cluster);
}

/* Waits for other threads of the block, or of its cluster. */
static inline bool insn_is_mbarrier_wait(const struct insn *i)
{
	return i->op == OP_mbarrier && (insn_has(i, M_test_wait) || insn_has(i, M_try_wait));
}

/* Blocks may communicate by this access: in a kernel that runs in turns, it needs the turn. */
static inline bool insn_needs_turn(const struct insn *i)
{
	if (insn_is_shared(i))
		return false;
	return i->op == OP_atom || i->op == OP_red ||
	       ((i->op == OP_ld || i->op == OP_st) && insn_is_strong(i));
}

/* ---- regs.c ---- */

/* The number of leading operands that an instruction writes. */
int insn_has_dst(const struct insn *i);
/* A load or store of a parameter that is kept in registers. */
bool insn_promoted(const struct insn *i);
/* Calls fn for each register that an instruction reads, then for each that it writes (def). */
typedef void (*reg_fn)(void *arg, int reg, bool def);
void insn_regs(const struct insn *i, reg_fn fn, void *arg);

/* The interface of libsoftjit.so. */
typedef int (*jit_compile_fn)(struct unit *u, void **obj, size_t *len, char *err, size_t errlen);
int jit_compile(struct unit *u, void **obj, size_t *len, char *err, size_t errlen);

#endif
