/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jit_i.h - code generation: helpers over LLVM's C API for values of a lane or of a warp
 *
 * Every helper builds a scalar if j->vec is false, and a <32 x T> if it is true, so each opcode is
 * implemented once.  Lanes outside the mask hold garbage: code that can trap must not use them.
 */
#ifndef SOFTGPU_JIT_I_H
#define SOFTGPU_JIT_I_H

#include <llvm-c/Core.h>
#include <stddef.h>

#include "ptx_i.h"
#include "rt_warp.h"

typedef LLVMValueRef V;
typedef LLVMTypeRef Ty;

struct jit {
	LLVMContextRef c;
	LLVMModuleRef m;
	LLVMBuilderRef b, eb;		/* eb: entry block, allocas */
	struct unit *u;
	struct ufunc *f;
	V *fns;				/* by ufunc */
	Ty fn_ty;
	Ty i1, i8, i16, i32, i64, i128, f16, f32, f64, ptr, voidt;
	V fn, w, lsp;
	V *reg;				/* alloca per register */
	V mask, minpend;		/* allocas */
	V frame, slots;			/* one block of memory: struct rt_frame, stubs, slots */
	Ty region_ty;
	uint8_t *head;			/* per block: starts a region */
	uint32_t *region;		/* per block: its region's head */
	V *region_fn;			/* per head */
	uint32_t *reg_region, region_no;	/* the region in which reg[] is valid */
	uint64_t *slot;			/* offset per register, or NO_SLOT */
	V *cache;			/* a register's value in this block, if cached == epoch */
	uint32_t *cached, epoch;
	uint64_t *live_out;		/* of this block */
	uint32_t *dirty, *dirty_regs, ndirty;	/* written in this block (dirty == epoch) */
	LLVMBasicBlockRef *bb;
	V dispatch;
	const struct insn *in;
	bool vec;
	V guard;			/* of the current instruction: i1 or <32 x i1>, or NULL */
	bool guard_vec;
	unsigned int md_weights, md_inv;
	V weights_likely, inv;
	const char *cpu, *features;	/* as LLVM names them */
	unsigned int simd;		/* words of a vector register: AVX-512, AVX2, or 0 */
	const struct stretch *stretch;	/* near.c: the current stretch, or NULL */
	uint8_t *rewritten;		/* per register: written in the stretch */
};

struct near {			/* a load of lanes near each other: see near.c */
	V host[4], idx;
	unsigned int windows;
};

void jit_fail(struct jit *j, const char *why) __attribute__((noreturn));

#define NO_SLOT UINT64_MAX

/* types and constants */
Ty jty(struct jit *j, Ty scalar);		/* for the current width */
Ty jty_n(struct jit *j, Ty scalar, bool vec);
Ty scalar_ty(struct jit *j, enum ptype t);
V kint(struct jit *j, Ty scalar, uint64_t v);	/* current width */
V kfp(struct jit *j, Ty scalar, double v);
V splat(struct jit *j, V v);
V c32(struct jit *j, uint32_t v);
V c64(struct jit *j, uint64_t v);
V iota(struct jit *j, Ty scalar, uint64_t step);
V call_intr(struct jit *j, const char *name, Ty *over, unsigned int nover, V *args, unsigned int n);
V intr1(struct jit *j, const char *name, V a);
V intr2(struct jit *j, const char *name, V a, V b);
V intr3(struct jit *j, const char *name, V a, V b, V c);
V call_rt(struct jit *j, const char *name, Ty ret, V *args, unsigned int n);
V wptr(struct jit *j, size_t off);		/* into struct rt_warp */
V wload(struct jit *j, Ty t, size_t off);	/* never changes during a launch */
V wload_var(struct jit *j, Ty t, size_t off);
void wstore(struct jit *j, V v, size_t off);
V store_al(struct jit *j, V v, V p, unsigned int align);
V load_al(struct jit *j, Ty t, V p, unsigned int align);
LLVMBasicBlockRef new_bb(struct jit *j, const char *name);
void at_bb(struct jit *j, LLVMBasicBlockRef bb);
void br_likely(struct jit *j, V cond, LLVMBasicBlockRef yes, LLVMBasicBlockRef no);

/* operands */
V get(struct jit *j, const struct opnd *o, enum ptype t);
V cluster_rank(struct jit *j);
void set(struct jit *j, const struct opnd *o, V v, enum ptype t);
void set_reg(struct jit *j, int reg, V v, enum ptype t);
V get_reg(struct jit *j, int reg, enum ptype t, bool neg);
V get_pred(struct jit *j, const struct opnd *o);
Ty reg_ty(struct jit *j, int reg);
void slot_store(struct jit *j, uint32_t reg, V v, bool all);	/* all: ignores the mask */
void write_back(struct jit *j);
V cur_mask(struct jit *j);			/* i32 */
V guarded_mask(struct jit *j);			/* mask & guard */
V bits_of(struct jit *j, V pred);		/* <32 x i1> -> i32 */
V pred_of(struct jit *j, V bits);
bool opnd_uniform(struct jit *j, const struct opnd *o);
bool insn_uniform(struct jit *j, const struct insn *i);
const struct opnd *opnd(struct jit *j, unsigned int k);	/* fails when it is not there */
enum ptype typ(struct jit *j, unsigned int k);

/* operands and results in the warp's scratch memory, for runtime calls */
void put_x(struct jit *j, unsigned int k, V v);
V get_y(struct jit *j, unsigned int e, Ty scalar);
V fop(struct jit *j, int op, int mode, V a, V b, V c, Ty ret);

/* opcodes; each fails on unsupported forms */
void emit_insn(struct jit *j, const struct insn *i);
void emit_insns(struct jit *j, uint32_t from, uint32_t last);
V near_check(struct jit *j, enum rt_space space, V shape, V off, uint64_t more, V mask,
	     unsigned int bytes, struct near *n);
V part_of_vec(struct jit *j, V v, unsigned int part);	/* j->simd lanes of it */
void near_load(struct jit *j, const struct near *n, uint64_t off, V *f, unsigned int dwords);
unsigned int near_assumed(struct jit *j, V *f);
void emit_alu(struct jit *j);
void emit_fp(struct jit *j);
void emit_cvt(struct jit *j);
void emit_mem(struct jit *j);
void emit_mbarrier(struct jit *j);
void emit_cp(struct jit *j);
void emit_st_bulk(struct jit *j);
void complete_tx(struct jit *j, unsigned int bytes);
enum rt_atom_op atom_op(struct jit *j);
enum rt_atom_type atom_type(struct jit *j, enum ptype t);
void emit_warp(struct jit *j);
void emit_call(struct jit *j);
void emit_mma(struct jit *j);
void emit_tex(struct jit *j);
V approx(struct jit *j, V x);
V flush(struct jit *j, V v);
V sat01(struct jit *j, V v);
V half_to_f32(struct jit *j, V h, enum ptype t);
V f32_to_half(struct jit *j, V f, enum ptype t);

/* control flow */
void jit_function(struct jit *j, uint32_t idx);
V jit_new_fn(struct jit *j, const char *name, Ty t, bool internal);
V jit_alloca(struct jit *j, Ty t, unsigned int align);
V jit_reg_alloca(struct jit *j, uint32_t r);
V mem_addr(struct jit *j, const struct opnd *o, enum rt_space *space);
void jit_finish(struct jit *j);
void rt_trap_now(struct jit *j, int kind);

bool block_trivial_exit(const struct ufunc *f, const struct pblock *b);

#endif
