// SPDX-License-Identifier: Apache-2.0
/*
 * mem.c - loads, stores, atomics and addresses.
 *
 * Every access is checked.  Fast paths: one address for the warp (a scalar access), lanes that
 * touch consecutive elements (one vector access under the mask), and loads of lanes that are close
 * together; code selects among them at run time, by lane 0's address.  All other accesses, and
 * those that fail a check, go through C (rt/mem.c), which decides what is an error.
 */
#include <errno.h>
#include <string.h>

#include "jit_i.h"

#define B(j) ((j)->b)
#define WOFF(f) offsetof(struct rt_warp, f)

static enum rt_space space_of(struct jit *j, const struct opnd *o)
{
	const struct insn *i = j->in;

	if (insn_is_shared(i))
		return RT_SHARED;
	if (insn_has(i, M_local))
		return RT_LOCAL;
	if (insn_has(i, M_global) || insn_has(i, M_const))
		return RT_GLOBAL;
	if (o->var && o->reg < 0)
		switch (o->var->space) {
		case V_SHARED:
			return RT_SHARED;
		case V_LOCAL:
		case V_PARAM:
			return RT_LOCAL;
		case V_ENTRY_PARAM:
			return RT_PARAM;
		default:
			return RT_GLOBAL;
		}
	return RT_GENERIC;
}

/* The address as i64, relative to @space (shared and local start at 0). */
V mem_addr(struct jit *j, const struct opnd *o, enum rt_space *space)
{
	struct opnd base = { .kind = O_REG, .reg = o->reg, .reg2 = -1 };
	V a;

	if (o->kind != O_MEM)
		ptx_fail(-EINVAL, j->in->line, "%s: expected an address", ptx_op_name[j->in->op]);
	*space = space_of(j, o);
	if (o->reg >= 0) {
		unsigned int size = ptype_size(j->f->b->regtype[o->reg]);

		a = get(j, &base, size == 8 ? T_B64 : T_U32);
		if (size != 8 && *space == RT_SHARED) {
			if (o->imm)	/* 32-bit arithmetic wraps */
				a = LLVMBuildAdd(B(j), a, kint(j, j->i32, o->imm), "");
			return LLVMBuildZExt(B(j), a, jty(j, j->i64), "");
		}
		if (size != 8)
			a = LLVMBuildZExt(B(j), a, jty(j, j->i64), "");
		if (o->imm)
			a = LLVMBuildAdd(B(j), a, kint(j, j->i64, o->imm), "");
		if (*space == RT_SHARED)	/* shared addresses have 32 bits */
			a = LLVMBuildAnd(B(j), a, kint(j, j->i64, 0xffffffff), "");
		return a;
	}
	if (!o->var)
		return kint(j, j->i64, o->imm);
	{
		struct opnd v = { .kind = O_VAR, .reg = -1, .reg2 = -1, .var = o->var,
				  .imm = o->imm };

		if (o->var->space == V_PARAM) {	/* it is in local memory */
			V b = LLVMBuildAdd(B(j), j->lsp,
					   c64(j, o->var->offset + o->imm), "");

			*space = RT_LOCAL;
			return j->vec ? splat(j, b) : b;
		}
		if (o->var->space == V_ENTRY_PARAM)
			*space = RT_PARAM;
		return get(j, &v, T_B64);
	}
}

static unsigned int vec_count(const struct insn *i)
{
	return insn_has(i, M_v2) ? 2 : insn_has(i, M_v4) ? 4 : insn_has(i, M_v8) ? 8 : 1;
}

static const struct opnd *element(const struct opnd *o, unsigned int k)
{
	return o->kind == O_VEC ? &o->vec[k] : o;
}

/* The integer type of the loaded bits; the register may be wider. */
static Ty mem_ty(struct jit *j, enum ptype t)
{
	unsigned int size = ptype_size(t);

	if (t == T_PRED || !size)
		jit_fail(j, "type");
	return LLVMIntTypeInContext(j->c, size * 8);
}

static enum ptype bits_type(enum ptype t)
{
	if (ptype_is_signed(t) && !ptype_is_float(t))
		return t;
	switch (ptype_size(t)) {
	case 1: return T_U8;
	case 2: return T_U16;
	case 4: return T_U32;
	case 8: return T_U64;
	default: return T_B128;
	}
}

/* ---- the slow path ---- */

static void slow_call(struct jit *j, const char *fn, V addr, V mask, uint32_t desc)
{
	V args[3] = { j->w, mask, c32(j, desc) };

	wstore(j, addr, WOFF(addr));
	call_rt(j, fn, j->voidt, args, 3);
}

static V y_elem(struct jit *j, unsigned int e, Ty t, unsigned int size)
{
	return wload_var(j, jty(j, t), WOFF(y) + (size_t)e * 32 * size);
}

static void x_elem(struct jit *j, unsigned int e, V v, unsigned int size)
{
	wstore(j, v, WOFF(x) + (size_t)e * 32 * size);
}

/* ---- checks ---- */

/* @off + @bytes <= the size at @size, without overflow. */
static V fits(struct jit *j, V off, uint64_t bytes, size_t size)
{
	V lim = wload(j, j->i64, size);

	if (bytes > 1)
		lim = intr2(j, "llvm.usub.sat", lim, c64(j, bytes - 1));
	return LLVMBuildICmp(B(j), LLVMIntULT, off, lim, "");
}

/* For scalar address @a of @bytes in @space: the host address, and whether the access is legal. */
static V check_scalar(struct jit *j, V a, enum rt_space space, uint64_t bytes, unsigned int align,
		      V *host)
{
	V ok, off, base;

	switch (space) {
	case RT_SHARED:
		base = wload(j, j->ptr, WOFF(shared));
		*host = LLVMBuildGEP2(B(j), j->i8, base, &a, 1, "");
		ok = fits(j, a, bytes, WOFF(shared_size));
		break;
	case RT_PARAM:
		base = wload(j, j->ptr, WOFF(params));
		off = LLVMBuildSub(B(j), a, c64(j, PTX_VA_PARAM), "");
		*host = LLVMBuildGEP2(B(j), j->i8, base, &off, 1, "");
		ok = fits(j, off, bytes, WOFF(param_size));
		break;
	default:
		*host = LLVMBuildIntToPtr(B(j), a, j->ptr, "");
		off = LLVMBuildSub(B(j), a, wload(j, j->i64, WOFF(lo)), "");
		ok = LLVMBuildICmp(B(j), LLVMIntULT, off, wload(j, j->i64, WOFF(span)), "");
	}
	if (align > 1) {
		V m = LLVMBuildAnd(B(j), a, c64(j, align - 1), "");

		m = LLVMBuildICmp(B(j), LLVMIntEQ, m, c64(j, 0), "");
		ok = LLVMBuildAnd(B(j), ok, m, "");
	}
	return ok;
}

static V masked_load(struct jit *j, Ty scalar, V host, unsigned int align, V mask)
{
	Ty t = LLVMVectorType(scalar, 32), over[2] = { t, j->ptr };
	V args[4] = { host, c32(j, align), pred_of(j, mask), LLVMConstNull(t) };

	return call_intr(j, "llvm.masked.load", over, 2, args, 4);
}

static void masked_store(struct jit *j, V v, V host, unsigned int align, V mask)
{
	Ty over[2] = { LLVMTypeOf(v), j->ptr };
	V args[4] = { v, host, c32(j, align), pred_of(j, mask) };

	call_intr(j, "llvm.masked.store", over, 2, args, 4);
}

/* Every n-th element of a long vector, starting with @k. */
static V stride_shuffle(struct jit *j, V v, unsigned int k, unsigned int n)
{
	V idx[32];
	unsigned int l;

	for (l = 0; l < 32; l++)
		idx[l] = c32(j, l * n + k);
	return LLVMBuildShuffleVector(B(j), v, LLVMGetPoison(LLVMTypeOf(v)),
				      LLVMConstVector(idx, 32), "");
}

static V interleave(struct jit *j, V *v, unsigned int n)
{
	V idx[256], a, b;
	unsigned int l;

	if (n == 1)
		return v[0];
	if (n == 2) {
		for (l = 0; l < 64; l++)
			idx[l] = c32(j, l / 2 + (l & 1) * 32);
		return LLVMBuildShuffleVector(B(j), v[0], v[1], LLVMConstVector(idx, 64), "");
	}
	{
		V even[2] = { v[0], v[2] }, odd[2] = { v[1], v[3] };

		a = interleave(j, even, 2);	/* 0 2 0 2 ... */
		b = interleave(j, odd, 2);	/* 1 3 1 3 ... */
	}
	for (l = 0; l < 128; l++)
		idx[l] = c32(j, l / 2 + (l & 1) * 64);
	return LLVMBuildShuffleVector(B(j), a, b, LLVMConstVector(idx, 128), "");
}

/* ---- loads ---- */

struct access {
	enum rt_space space;
	enum ptype t;
	Ty ty;
	unsigned int size, n;
	V addr;				/* of a uniform access */
	V shape, off;			/* of a varying access: see mem_parts() */
	V mask;
	uint32_t desc;
	LLVMBasicBlockRef fast, slow, part, done;
};

static void mem_parts(struct jit *j, const struct opnd *o, struct access *a);

static void access_init(struct jit *j, struct access *a, const struct opnd *o, const struct opnd *d)
{
	memset(a, 0, sizeof(*a));
	a->t = bits_type(typ(j, 0));
	a->ty = mem_ty(j, a->t);
	a->size = ptype_size(a->t);
	a->n = vec_count(j->in);
	if (a->n > 1 && a->size * a->n > 64)
		jit_fail(j, "vector type");
	if (a->n > 1 && (d->kind != O_VEC || d->nvec != a->n))
		ptx_fail(-EINVAL, j->in->line, "%s: expected a vector of %u",
			 ptx_op_name[j->in->op], a->n);
	if (j->vec)
		mem_parts(j, o, a);
	else
		a->addr = mem_addr(j, o, &a->space);
	a->desc = RT_DESC(a->size, a->n, a->space);
	a->fast = new_bb(j, "fast");
	a->slow = new_bb(j, "slow");
	a->done = new_bb(j, "done");
}

/* Loads a kernel parameter at a constant offset, for all lanes whatever the mask. */
static bool load_param(struct jit *j, const struct opnd *d, const struct opnd *o)
{
	enum ptype t = bits_type(typ(j, 0));
	unsigned int n = vec_count(j->in), size = ptype_size(t), k;

	if (space_of(j, o) != RT_PARAM || o->reg >= 0 || !o->var || o->imm < 0 ||
	    o->var->size < size * n || (uint64_t)o->imm > o->var->size - size * n ||
	    (n > 1 && (d->kind != O_VEC || d->nvec != n)))
		return false;
	j->vec = false;
	for (k = 0; k < n; k++) {
		V off = c64(j, o->var->offset + o->imm + k * size), v;

		v = LLVMBuildGEP2(B(j), j->i8, wload(j, j->ptr, WOFF(params)), &off, 1, "");
		v = load_al(j, mem_ty(j, t), v, 1);
		LLVMSetMetadata(v, j->md_inv, j->inv);
		set(j, element(d, k), v, t);
	}
	return true;
}

static void load_uniform(struct jit *j, const struct opnd *d, const struct opnd *o)
{
	struct access a;
	V host, ok, f[8], s[8];
	LLVMBasicBlockRef bf, bs;
	unsigned int k;

	j->vec = false;
	access_init(j, &a, o, d);
	if (a.space == RT_GENERIC || a.space == RT_LOCAL) {
		LLVMBuildBr(B(j), a.slow);
		at_bb(j, a.fast);
		ok = NULL;
		host = LLVMConstNull(j->ptr);
	} else {
		ok = check_scalar(j, a.addr, a.space, a.size * a.n, a.size * a.n, &host);
		if (j->guard)
			ok = LLVMBuildAnd(B(j), ok, j->guard, "");
		br_likely(j, ok, a.fast, a.slow);
		at_bb(j, a.fast);
	}
	for (k = 0; k < a.n; k++) {
		V off = c64(j, k * a.size), p = LLVMBuildGEP2(B(j), j->i8, host, &off, 1, "");

		f[k] = load_al(j, a.ty, p, a.size);
		if (insn_is_strong(j->in))
			LLVMSetVolatile(f[k], true);
	}
	bf = LLVMGetInsertBlock(B(j));
	LLVMBuildBr(B(j), a.done);
	at_bb(j, a.slow);
	{
		V m = guarded_mask(j), one;

		/* the lowest lane performs it for all */
		one = LLVMBuildAnd(B(j), m, LLVMBuildNeg(B(j), m, ""), "");
		one = LLVMBuildSelect(B(j), LLVMBuildICmp(B(j), LLVMIntEQ, m, c32(j, 0), ""),
				      c32(j, 0), c32(j, 1), "");
		slow_call(j, "rt_ld", a.addr, one, a.desc);
	}
	for (k = 0; k < a.n; k++)
		s[k] = y_elem(j, k, a.ty, a.size);
	bs = LLVMGetInsertBlock(B(j));
	LLVMBuildBr(B(j), a.done);
	at_bb(j, a.done);
	for (k = 0; k < a.n; k++) {
		V phi = LLVMBuildPhi(B(j), a.ty, "");

		LLVMAddIncoming(phi, &f[k], &bf, 1);
		LLVMAddIncoming(phi, &s[k], &bs, 1);
		f[k] = phi;
	}
	for (k = 0; k < a.n; k++)
		set(j, element(d, k), f[k], a.t);
}

/* ---- lanes with different addresses ---- */

/*
 * Splits the address into a part that differs between lanes (@shape) and a uniform part (@off). A
 * loop that advances all lanes alike does not change the shape, and the result of checks of a shape
 * is valid for every access with it.
 */
static void mem_parts(struct jit *j, const struct opnd *o, struct access *a)
{
	struct opnd base = { .kind = O_REG, .reg = o->reg, .reg2 = -1 };
	unsigned int size;
	Ty t;

	a->space = space_of(j, o);
	if (o->kind != O_MEM || o->reg < 0) {
		a->off = mem_addr(j, o, &a->space);
		t = a->space == RT_SHARED ? j->i32 : j->i64;
		a->shape = kint(j, t, 0);
		a->off = LLVMBuildExtractElement(B(j), splat(j, a->off), c32(j, 0), "");
		if (t == j->i32)
			a->off = LLVMBuildTrunc(B(j), a->off, t, "");
		return;
	}
	size = ptype_size(j->f->b->regtype[o->reg]);
	t = a->space == RT_SHARED ? j->i32 : j->i64;	/* shared addresses have 32 bits */
	a->shape = get(j, &base, size == 8 ? T_B64 : T_U32);
	if (size == 8 && t == j->i32)
		a->shape = LLVMBuildTrunc(B(j), a->shape, jty(j, t), "");
	else if (size != 8 && t == j->i64)
		a->shape = LLVMBuildZExt(B(j), a->shape, jty(j, t), "");
	a->off = LLVMConstInt(t, o->imm, false);
}

/* The whole address, for the slow path. */
static V full_addr(struct jit *j, const struct access *a)
{
	V v = LLVMBuildAdd(B(j), a->shape, splat(j, a->off), "");

	return a->space == RT_SHARED ? LLVMBuildZExt(B(j), v, LLVMVectorType(j->i64, 32), "") : v;
}

static V all_set(struct jit *j, V bits)
{
	return LLVMBuildICmp(B(j), LLVMIntEQ, bits, c32(j, ~0u), "");
}

/* Lane 0's address, as i64. */
static V first_addr(struct jit *j, const struct access *a, V lane0)
{
	V v = LLVMBuildAdd(B(j), lane0, a->off, "");

	return a->space == RT_SHARED ? LLVMBuildZExt(B(j), v, j->i64, "") : v;
}

/* Tests for consecutive lanes: leaves the builder in a->fast; other accesses jump to a->slow. */
static V try_consecutive(struct jit *j, struct access *a)
{
	unsigned int bytes = a->size * a->n;
	Ty t = a->space == RT_SHARED ? j->i32 : j->i64;
	V lane0, want, ok, host = NULL;

	lane0 = LLVMBuildExtractElement(B(j), a->shape, c32(j, 0), "");
	want = LLVMBuildAdd(B(j), splat(j, lane0), iota(j, t, bytes), "");
	ok = bits_of(j, LLVMBuildICmp(B(j), LLVMIntEQ, a->shape, want, ""));
	ok = all_set(j, LLVMBuildOr(B(j), ok, LLVMBuildNot(B(j), a->mask, ""), ""));
	if (a->n > 1)		/* the mask is per lane, not per element */
		ok = LLVMBuildAnd(B(j), ok, all_set(j, a->mask), "");
	ok = LLVMBuildAnd(B(j), ok, check_scalar(j, first_addr(j, a, lane0),
						 a->space == RT_GENERIC ? RT_GLOBAL : a->space,
						 32 * bytes, bytes, &host), "");
	br_likely(j, ok, a->fast, a->slow);
	at_bb(j, a->fast);
	return host;
}

static bool lean(const struct jit *j)
{
	return ptx_largest(j->f->b->ninsn);
}

/*
 * Leaves the builder where the mask is full; else code jumps to a->part. Masked loads and stores
 * take twice the time, even with a full mask.
 */
static void if_whole(struct jit *j, struct access *a)
{
	LLVMBasicBlockRef whole = new_bb(j, "whole");

	a->part = new_bb(j, "part");
	br_likely(j, all_set(j, a->mask), whole, a->part);
	at_bb(j, whole);
}

struct results {		/* of up to five paths of a load */
	LLVMBasicBlockRef bb[5];
	V v[5][8];
	unsigned int n;
};

static void way_done(struct jit *j, struct access *a, struct results *r)
{
	r->bb[r->n++] = LLVMGetInsertBlock(B(j));
	LLVMBuildBr(B(j), a->done);
}

static void load_varying(struct jit *j, const struct opnd *d, const struct opnd *o)
{
	struct results r = { .n = 0 };
	struct access a;
	struct near near;
	V host;
	unsigned int k, i;
	bool plain;

	j->vec = true;
	i = near_assumed(j, r.v[0]);
	for (k = 0; k < i; k++)
		set(j, element(d, k), r.v[0][k], bits_type(typ(j, 0)));
	if (i)
		return;
	access_init(j, &a, o, d);
	a.mask = guarded_mask(j);
	plain = a.space != RT_LOCAL && a.size <= 8 && a.n <= 4 && !insn_is_strong(j->in);
	if (plain) {
		host = try_consecutive(j, &a);
		if (a.n > 1) {
			V all = load_al(j, LLVMVectorType(a.ty, 32 * a.n), host, a.size * a.n);

			for (k = 0; k < a.n; k++)
				r.v[r.n][k] = stride_shuffle(j, all, k, a.n);
		} else if (lean(j)) {
			r.v[r.n][0] = masked_load(j, a.ty, host, a.size, a.mask);
		} else {
			if_whole(j, &a);
			r.v[r.n][0] = load_al(j, LLVMVectorType(a.ty, 32), host, a.size);
			way_done(j, &a, &r);
			at_bb(j, a.part);
			r.v[r.n][0] = masked_load(j, a.ty, host, a.size, a.mask);
		}
		way_done(j, &a, &r);
	} else {
		LLVMBuildBr(B(j), a.slow);
		at_bb(j, a.fast);
		LLVMBuildUnreachable(B(j));
	}
	at_bb(j, a.slow);
	if (plain && j->simd && !lean(j) && a.size == 4 &&
	    (a.space == RT_SHARED || a.space == RT_GLOBAL)) {
		LLVMBasicBlockRef close = new_bb(j, "near"), apart = new_bb(j, "apart");

		br_likely(j, near_check(j, a.space, a.shape, a.off, 0, a.mask, a.size * a.n, &near),
			  close, apart);
		at_bb(j, close);
		near_load(j, &near, 0, r.v[r.n], a.n);
		way_done(j, &a, &r);
		at_bb(j, apart);
	}
	slow_call(j, "rt_ld", full_addr(j, &a), a.mask, a.desc);
	for (k = 0; k < a.n; k++)
		r.v[r.n][k] = y_elem(j, k, a.ty, a.size);
	way_done(j, &a, &r);
	at_bb(j, a.done);
	for (k = 0; k < a.n; k++) {
		V phi = LLVMBuildPhi(B(j), jty(j, a.ty), "");

		for (i = 0; i < r.n; i++)
			LLVMAddIncoming(phi, &r.v[i][k], &r.bb[i], 1);
		r.v[0][k] = phi;
	}
	for (k = 0; k < a.n; k++)
		set(j, element(d, k), r.v[0][k], a.t);
}

/* ---- stores ---- */

static void store_uniform(struct jit *j, const struct opnd *o, const struct opnd *s)
{
	struct access a;
	V host, ok, v[8];
	unsigned int k;

	j->vec = false;
	access_init(j, &a, o, s);
	for (k = 0; k < a.n; k++)
		v[k] = get(j, element(s, k), a.t);
	if (a.space == RT_GENERIC || a.space == RT_LOCAL) {
		LLVMBuildBr(B(j), a.slow);
		at_bb(j, a.fast);
		LLVMBuildBr(B(j), a.done);
	} else {
		ok = check_scalar(j, a.addr, a.space, a.size * a.n, a.size * a.n, &host);
		if (j->guard)
			ok = LLVMBuildAnd(B(j), ok, j->guard, "");
		br_likely(j, ok, a.fast, a.slow);
		at_bb(j, a.fast);
		for (k = 0; k < a.n; k++) {
			V off = c64(j, k * a.size), p = LLVMBuildGEP2(B(j), j->i8, host, &off, 1, "");

			LLVMSetVolatile(store_al(j, v[k], p, a.size), insn_is_strong(j->in));
		}
		LLVMBuildBr(B(j), a.done);
	}
	at_bb(j, a.slow);
	if (a.space == RT_LOCAL || a.space == RT_GENERIC) {	/* local: each lane has its own */
		j->vec = true;
		for (k = 0; k < a.n; k++)
			x_elem(j, k, splat(j, v[k]), a.size);
		slow_call(j, "rt_st", splat(j, a.addr), guarded_mask(j), a.desc);
	} else {
		V m = guarded_mask(j);

		for (k = 0; k < a.n; k++)
			x_elem(j, k, v[k], a.size);
		m = LLVMBuildSelect(B(j), LLVMBuildICmp(B(j), LLVMIntEQ, m, c32(j, 0), ""),
				    c32(j, 0), c32(j, 1), "");
		slow_call(j, "rt_st", a.addr, m, a.desc);
	}
	LLVMBuildBr(B(j), a.done);
	at_bb(j, a.done);
}

/* Whether scatter() can store the lanes' words: all in shared memory, and aligned. */
static V scatter_ok(struct jit *j, const struct access *a, V *at)
{
	unsigned int bytes = a->size * a->n;
	V lim = wload(j, j->i64, WOFF(shared_size)), ok, in;

	*at = LLVMBuildAdd(B(j), a->shape, splat(j, a->off), "");
	lim = intr2(j, "llvm.usub.sat", lim, c64(j, bytes - 1));
	lim = LLVMBuildTrunc(B(j), lim, j->i32, "");
	ok = LLVMBuildICmp(B(j), LLVMIntULT, *at, splat(j, lim), "");
	in = LLVMBuildAnd(B(j), *at, kint(j, j->i32, bytes - 1), "");
	in = LLVMBuildICmp(B(j), LLVMIntEQ, in, kint(j, j->i32, 0), "");
	ok = bits_of(j, LLVMBuildAnd(B(j), ok, in, ""));
	return all_set(j, LLVMBuildOr(B(j), ok, LLVMBuildNot(B(j), a->mask, ""), ""));
}

/* Stores words to any addresses of shared memory; of lanes with one address, the highest wins. */
static void scatter(struct jit *j, const struct access *a, V at, V *v)
{
	V m = pred_of(j, a->mask), base = wload(j, j->ptr, WOFF(shared)), args[5];
	unsigned int k, h;

	for (k = 0; k < a->n; k++)
		for (h = 0; h < 2; h++) {
			V off = c64(j, 4 * k);

			args[0] = LLVMBuildGEP2(B(j), j->i8, base, &off, 1, "");
			args[1] = part_of_vec(j, m, h);
			args[2] = part_of_vec(j, at, h);
			args[3] = part_of_vec(j, v[k], h);
			args[4] = c32(j, 1);
			call_intr(j, "llvm.x86.avx512.mask.scatter.dpi.512", NULL, 0, args, 5);
		}
}

static void store_varying(struct jit *j, const struct opnd *o, const struct opnd *s)
{
	struct access a;
	V host, at, v[8];
	unsigned int k;
	bool plain;

	j->vec = true;
	access_init(j, &a, o, s);
	a.mask = guarded_mask(j);
	for (k = 0; k < a.n; k++)
		v[k] = get(j, element(s, k), a.t);
	plain = a.space != RT_LOCAL && a.size <= 8 && a.n <= 4 && !insn_is_strong(j->in);
	if (plain) {
		host = try_consecutive(j, &a);
		if (a.n > 1) {
			store_al(j, interleave(j, v, a.n), host, a.size * a.n);
		} else if (lean(j)) {
			masked_store(j, v[0], host, a.size, a.mask);
		} else {
			if_whole(j, &a);
			store_al(j, v[0], host, a.size);
			LLVMBuildBr(B(j), a.done);
			at_bb(j, a.part);
			masked_store(j, v[0], host, a.size, a.mask);
		}
	} else {
		LLVMBuildBr(B(j), a.slow);
		at_bb(j, a.fast);
	}
	LLVMBuildBr(B(j), a.done);
	at_bb(j, a.slow);
	if (plain && j->simd == 16 && !lean(j) && a.size == 4 && a.space == RT_SHARED) {
		LLVMBasicBlockRef in = new_bb(j, "scatter"), out = new_bb(j, "apart");

		br_likely(j, scatter_ok(j, &a, &at), in, out);
		at_bb(j, in);
		scatter(j, &a, at, v);
		LLVMBuildBr(B(j), a.done);
		at_bb(j, out);
	}
	for (k = 0; k < a.n; k++)
		x_elem(j, k, v[k], a.size);
	slow_call(j, "rt_st", full_addr(j, &a), a.mask, a.desc);
	LLVMBuildBr(B(j), a.done);
	at_bb(j, a.done);
}

/* Moves a promoted parameter of an inlined call: its pieces are registers. */
static void promoted(struct jit *j)
{
	const struct opnd *mem = opnd(j, j->in->op == OP_st ? 0 : 1);
	const struct opnd *val = opnd(j, j->in->op == OP_st ? 1 : 0);
	enum ptype t = bits_type(typ(j, 0));
	unsigned int n = vec_count(j->in), k;

	if (n > 1 && (val->kind != O_VEC || val->nvec != n))
		jit_fail(j, "vector");
	for (k = 0; k < n; k++) {
		uint64_t off = mem->imm + k * ptype_size(t);
		struct ppiece *p;

		for (p = mem->var->pieces; p && p->off != off; p = p->next)
			;
		if (!p)
			jit_fail(j, "internal: parameter");
		if (j->in->op == OP_st)
			set_reg(j, p->reg, get(j, element(val, k), t), t);
		else
			set(j, element(val, k), get_reg(j, p->reg, t, false), t);
	}
}

static void emit_ld_st(struct jit *j)
{
	bool st = j->in->op == OP_st;
	const struct opnd *mem = opnd(j, st ? 0 : 1), *val = opnd(j, st ? 1 : 0);
	enum rt_space sp;
	bool uni;

	if (insn_promoted(j->in)) {
		promoted(j);
		return;
	}
	if (insn_has(j->in, M_bulk)) {
		emit_st_bulk(j);
		return;
	}
	if (insn_has(j->in, M_async) && !insn_has(j->in, M_tx_bytes))
		jit_fail(j, "not supported");
	if (st && mem->var && mem->var->space == V_ENTRY_PARAM)
		ptx_fail(-EINVAL, j->in->line, "st: a kernel's parameters are read-only");
	if (insn_has(j->in, M_acquire) || insn_has(j->in, M_release))
		LLVMBuildFence(B(j), LLVMAtomicOrderingSequentiallyConsistent, false, "");
	if (mem->kind != O_MEM)
		ptx_fail(-EINVAL, j->in->line, "expected an address");
	if (!st && load_param(j, val, mem))
		return;
	uni = opnd_uniform(j, mem) && (j->in->guard < 0 || j->f->uniform[j->in->guard]);
	sp = space_of(j, mem);
	if (mem->var && mem->var->space == V_PARAM)
		sp = RT_LOCAL;
	if (uni && (sp == RT_LOCAL || sp == RT_GENERIC))
		uni = !j->vec;		/* lanes may differ, unless the register is uniform */
	if (!st) {
		if (uni)
			load_uniform(j, val, mem);
		else
			load_varying(j, val, mem);
	} else if (uni && !j->vec) {
		store_uniform(j, mem, val);
	} else {
		store_varying(j, mem, val);
	}
	if (insn_has(j->in, M_acquire))
		LLVMBuildFence(B(j), LLVMAtomicOrderingSequentiallyConsistent, false, "");
	if (insn_has(j->in, M_async))
		complete_tx(j, vec_count(j->in) * ptype_size(typ(j, 0)));
}

/* ---- atomics ---- */

enum rt_atom_op atom_op(struct jit *j)
{
	const struct insn *i = j->in;

	if (insn_has(i, M_add)) return RT_ADD;
	if (insn_has(i, M_min)) return RT_MIN;
	if (insn_has(i, M_max)) return RT_MAX;
	if (insn_has(i, M_and)) return RT_AND;
	if (insn_has(i, M_or)) return RT_OR;
	if (insn_has(i, M_xor)) return RT_XOR;
	if (insn_has(i, M_exch)) return RT_EXCH;
	if (insn_has(i, M_cas)) return RT_CAS;
	if (insn_has(i, M_inc)) return RT_INC;
	if (insn_has(i, M_dec)) return RT_DEC;
	jit_fail(j, "operation");
}

enum rt_atom_type atom_type(struct jit *j, enum ptype t)
{
	switch (t) {
	case T_U32: case T_B32: return RT_U32;
	case T_S32: return RT_S32;
	case T_U64: case T_B64: return RT_U64;
	case T_S64: return RT_S64;
	case T_F32: return RT_F32;
	case T_F64: return RT_F64;
	case T_F16: return RT_F16;
	case T_BF16: return RT_BF16;
	case T_F16X2: return RT_F16X2;
	case T_BF16X2: return RT_BF16X2;
	case T_B16: case T_U16: case T_S16: return RT_B16;
	case T_B128: return RT_B128;
	default: jit_fail(j, "type");
	}
}

static void emit_atom(struct jit *j)
{
	bool red = j->in->op == OP_red;
	const struct opnd *mem = opnd(j, red ? 0 : 1), *b = opnd(j, red ? 1 : 2);
	enum ptype t = typ(j, 0), bt = bits_type(t);
	unsigned int n = vec_count(j->in), k, size = ptype_size(bt);
	int op = atom_op(j), ty = atom_type(j, t);
	enum rt_space sp;
	Ty ity;
	V args[6], addr;

	if (insn_has(j->in, M_async) && !insn_has(j->in, M_tx_bytes))
		jit_fail(j, "not supported");
	if (n > 1 && size > 8)
		jit_fail(j, "vector type");
	j->vec = true;
	ity = mem_ty(j, bt);
	addr = mem_addr(j, mem, &sp);
	for (k = 0; k < n; k++) {
		x_elem(j, k, get(j, element(b, k), bt), size);
		if (op == RT_CAS)
			wstore(j, get(j, opnd(j, 3), bt), WOFF(x) + 1024);
	}
	wstore(j, addr, WOFF(addr));
	args[0] = j->w;
	args[1] = guarded_mask(j);
	args[2] = c32(j, op);
	args[3] = c32(j, ty);
	args[4] = c32(j, RT_DESC(size, n, sp));
	call_rt(j, "rt_atom", j->voidt, args, 5);
	if (!red)
		for (k = 0; k < n; k++)
			set(j, element(opnd(j, 0), k), y_elem(j, k, ity, size), bt);
	if (insn_has(j->in, M_async))
		complete_tx(j, n * size);
}

/* ---- address spaces ---- */

static void emit_cvta(struct jit *j)
{
	const struct insn *i = j->in;
	const struct opnd *s = opnd(j, 1);
	bool to = insn_has(i, M_to), wide = i->ntypes && ptype_size(i->t[0]) == 8;
	V a = get(j, s, wide ? T_U64 : T_U32), k;
	uint64_t base = 0;

	if (insn_is_shared(i))
		base = PTX_VA_SHARED;
	else if (insn_has(i, M_local))
		base = PTX_VA_LOCAL;
	if (base) {
		k = kint(j, wide ? j->i64 : j->i32, base);
		a = to ? LLVMBuildSub(B(j), a, k, "") : LLVMBuildAdd(B(j), a, k, "");
	}
	set(j, opnd(j, 0), a, wide ? T_U64 : T_U32);
}

/* Whether an address in the cluster's shared memory is one of the block itself. */
static V own_shared(struct jit *j, V a)
{
	V rank = LLVMBuildAdd(B(j), LLVMBuildZExt(B(j), cluster_rank(j), j->i64, ""), c64(j, 1), "");
	V r, own;

	a = LLVMBuildLShr(B(j), a, kint(j, j->i64, PTX_VA_RANK), "");
	r = LLVMBuildICmp(B(j), LLVMIntEQ, a, kint(j, j->i64, 0), "");
	own = LLVMBuildICmp(B(j), LLVMIntEQ, a, j->vec ? splat(j, rank) : rank, "");
	return LLVMBuildOr(B(j), r, own, "");
}

static void emit_isspacep(struct jit *j)
{
	const struct insn *i = j->in;
	V a = get(j, opnd(j, 1), T_U64), r;
	uint64_t lo, hi;

	if (insn_has(i, M_global)) {
		r = LLVMBuildICmp(B(j), LLVMIntUGE, a, kint(j, j->i64, PTX_VA_LIMIT), "");
		set(j, opnd(j, 0), r, T_PRED);
		return;
	}
	if (insn_is_shared(i)) {
		lo = PTX_VA_SHARED;
		hi = PTX_VA_LOCAL;
	} else if (insn_has(i, M_local)) {
		lo = PTX_VA_LOCAL;
		hi = PTX_VA_PARAM;
	} else if (insn_has(i, M_param) || insn_has(i, M_param_entry)) {
		lo = PTX_VA_PARAM;
		hi = PTX_VA_LIMIT;
	} else {
		lo = hi = 0;	/* const variables are in global memory */
	}
	a = LLVMBuildSub(B(j), a, kint(j, j->i64, lo), "");
	r = LLVMBuildICmp(B(j), LLVMIntULT, a, kint(j, j->i64, hi - lo), "");
	if (lo == PTX_VA_SHARED && !insn_has(i, M_shared_cluster))
		r = LLVMBuildAnd(B(j), r, own_shared(j, a), "");
	set(j, opnd(j, 0), r, T_PRED);
}

/* mapa d, address, rank: the same place in the shared memory of another block of the cluster. */
static void emit_mapa(struct jit *j)
{
	enum ptype t = typ(j, 0);
	Ty ty = scalar_ty(j, t);
	V a = get(j, opnd(j, 1), t), r = get(j, opnd(j, 2), T_U32), space;

	r = intr2(j, "llvm.umin", r, kint(j, j->i32, 30));	/* stays in the window, and fails there */
	r = LLVMBuildAdd(B(j), r, kint(j, j->i32, 1), "");
	r = LLVMBuildShl(B(j), r, kint(j, j->i32, PTX_VA_RANK), "");
	if (ptype_size(t) == 8)
		r = LLVMBuildZExt(B(j), r, jty(j, ty), "");
	space = LLVMBuildAnd(B(j), a, kint(j, ty, ~(PTX_VA_SHARED - 1)), "");
	a = LLVMBuildAnd(B(j), a, kint(j, ty, (1u << PTX_VA_RANK) - 1), "");
	set(j, opnd(j, 0), LLVMBuildOr(B(j), LLVMBuildOr(B(j), a, r, ""), space, ""), t);
}

/* The rank that an address names; one without a rank is the block's own. */
static void emit_getctarank(struct jit *j)
{
	enum ptype t = ptype_size(typ(j, 0)) == 8 ? T_U64 : T_U32;
	V a = get(j, opnd(j, 1), t), own = cluster_rank(j), none;

	if (j->vec)
		own = splat(j, own);
	if (t == T_U64)
		a = LLVMBuildTrunc(B(j), a, jty(j, j->i32), "");
	a = LLVMBuildLShr(B(j), a, kint(j, j->i32, PTX_VA_RANK), "");
	a = LLVMBuildAnd(B(j), a, kint(j, j->i32, 31), "");
	none = LLVMBuildICmp(B(j), LLVMIntEQ, a, kint(j, j->i32, 0), "");
	a = LLVMBuildSub(B(j), a, kint(j, j->i32, 1), "");
	set(j, opnd(j, 0), LLVMBuildSelect(B(j), none, own, a, ""), T_U32);
}

void emit_mem(struct jit *j)
{
	switch (j->in->op) {
	case OP_ld: case OP_ldu: case OP_st:
		emit_ld_st(j);
		return;
	case OP_atom: case OP_red:
		emit_atom(j);
		return;
	case OP_cvta:
		emit_cvta(j);
		return;
	case OP_isspacep:
		emit_isspacep(j);
		return;
	case OP_fence:
	case OP_membar:
		LLVMBuildFence(B(j), LLVMAtomicOrderingSequentiallyConsistent, false, "");
		return;
	case OP_createpolicy:
		set(j, opnd(j, 0), kint(j, j->i64, 0), T_B64);
		return;
	case OP_mapa:
		emit_mapa(j);
		return;
	case OP_getctarank:
		emit_getctarank(j);
		return;
	}
	jit_fail(j, "not supported");
}
