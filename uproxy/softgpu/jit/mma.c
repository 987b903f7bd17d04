// SPDX-License-Identifier: Apache-2.0
/*
 * mma.c - matrix instructions.
 *
 * mma: lane l holds rows l / 4 (and + 8) of A and C and column l / 4 of B, spread over l % 4.  So
 * for each k, A's element comes from another lane of the same four, and B's from a lane that
 * depends on l % 4 alone: two shuffles and a multiplication per k and element of C.  Each shape
 * and types have one function, whose operands are in the warp's scratch memory as f32, i32 or
 * f64, one vector per element.  Products of f16, bf16, tf32 and fp8 are exact in f32; sums run in
 * order of k.
 *
 * mma.sp: A stores half of its columns: of each four (of tf32: two) columns two (one).  Bits of the
 * metadata name them: they select among the rows of B, lane by lane.  mma.m8n8k4 of f16 is four
 * products; each has two groups of four lanes, which are 16 lanes apart.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "jit_i.h"

#define B(j) ((j)->b)
#define WOFF(f) offsetof(struct rt_warp, f)

struct shape {
	enum ptx_mod mod;
	unsigned int m, k;	/* n is 8 */
	unsigned int bits;	/* of an element of A and B */
	bool sparse;		/* k is B's; A has k / 2 columns */
};

/* Element @i of lane @l: its row and column in A. */
static void a_place(const struct shape *s, unsigned int i, unsigned int l, unsigned int *row,
		    unsigned int *col)
{
	unsigned int g = l / 4, t = l % 4, per = s->bits < 32 ? 32 / s->bits : 1, reg = i / per, in = i % per;

	if (s->bits >= 32) {	/* tf32, f64: one element per register */
		*row = g + (s->m == 16 ? i % 2 * 8 : 0);
		*col = t + (s->m == 16 ? i / 2 * 4 : i * 4);
		return;
	}
	*row = g + (s->m == 16 ? reg % 2 * 8 : 0);
	*col = t * per + in + (s->m == 16 ? reg / 2 : reg) * per * 4;
}

static void b_place(const struct shape *s, unsigned int i, unsigned int l, unsigned int *row,
		    unsigned int *col)
{
	unsigned int per = s->bits >= 32 ? 1 : 32 / s->bits;

	*col = l / 4;
	*row = l % 4 * per + i % per + i / per * per * 4;
}

static unsigned int na_of(const struct shape *s)
{
	return s->m * s->k / 32 / (s->sparse ? 2 : 1);
}

static unsigned int nb_of(const struct shape *s)
{
	return 8 * s->k / 32;
}

static unsigned int nc_of(const struct shape *s)
{
	return s->m * 8 / 32;
}

static V lanes(struct jit *j, V v, const unsigned int *from)
{
	V idx[32];
	int l;

	for (l = 0; l < 32; l++)
		idx[l] = c32(j, from[l]);
	return LLVMBuildShuffleVector(B(j), v, LLVMGetPoison(LLVMTypeOf(v)),
				      LLVMConstVector(idx, 32), "");
}

/*
 * Offsets of elements in scratch: A from x[0], B and C behind it, D in y.  For sparse products C
 * and the metadata are in y as well, since A and B may fill x.
 */
static size_t x_at(struct jit *j, Ty t, unsigned int e)
{
	return WOFF(x) + (size_t)e * 32 * (t == j->f64 ? 8 : 4);
}

static size_t c_at(struct jit *j, const struct shape *s, Ty t, unsigned int e)
{
	if (s->sparse)
		return WOFF(y) + (size_t)e * 128;
	return x_at(j, t, na_of(s) + nb_of(s) + e);
}

static V find_a(struct jit *j, const struct shape *s, V *a, unsigned int k, unsigned int high)
{
	unsigned int i, l, row, col, from[32];

	for (i = 0; i < na_of(s); i++)
		for (l = 0; l < 4; l++) {
			a_place(s, i, l, &row, &col);
			if (row != high * 8 || col != k)
				continue;
			for (col = 0; col < 32; col++)
				from[col] = (col & ~3u) + l;
			return lanes(j, a[i], from);
		}
	jit_fail(j, "internal: A");
}

static V find_b(struct jit *j, const struct shape *s, V *b, unsigned int k, unsigned int odd)
{
	unsigned int i, l, row, col, from[32];

	for (i = 0; i < nb_of(s); i++)
		for (l = 0; l < 4; l++) {
			b_place(s, i, l, &row, &col);
			if (row != k)
				continue;
			for (col = 0; col < 32; col++)
				from[col] = (2 * (col & 3) + odd) * 4 + l;
			return lanes(j, b[i], from);
		}
	jit_fail(j, "internal: B");
}

/* The number of lanes in a group of four that hold metadata: 16 bits for each of its two rows. */
static unsigned int meta_lanes(const struct shape *s)
{
	return s->k * (s->bits == 32 ? 2 : 1) / 16;
}

/*
 * Bit @bit of the metadata of A's stored column @c, for rows l / 4 + 8 * @high.  Each group's
 * metadata is in its own lanes, from the first on (metadata()).
 */
static V meta_bit(struct jit *j, const struct shape *s, V meta, unsigned int c, unsigned int high,
		  unsigned int bit)
{
	unsigned int at = (s->bits == 32 ? 4 * c : 2 * c) + bit, lane, l, from[32];

	if (s->bits == 8) {		/* a row's bits fill whole words */
		lane = at / 32 * 2 + high;
		at %= 32;
	} else {
		lane = at / 16;
		at = at % 16 + 16 * high;
	}
	for (l = 0; l < 32; l++)
		from[l] = (l & ~3u) + lane;
	meta = LLVMBuildAnd(B(j), lanes(j, meta, from), kint(j, j->i32, 1u << at), "");
	return LLVMBuildICmp(B(j), LLVMIntNE, meta, kint(j, j->i32, 0), "");
}

/* B's elements that A's stored column @k is multiplied with, for C's column l % 4 * 2 + @odd. */
static V find_sparse_b(struct jit *j, const struct shape *s, V *b, unsigned int k, unsigned int odd,
		       const V *which)
{
	unsigned int row = s->bits == 32 ? 2 * k : k / 2 * 4;
	V v[2];
	int i;

	if (s->bits == 32)
		return LLVMBuildSelect(B(j), which[1], find_b(j, s, b, row + 1, odd),
				       find_b(j, s, b, row, odd), "");
	for (i = 0; i < 2; i++)
		v[i] = LLVMBuildSelect(B(j), which[0], find_b(j, s, b, row + 2 * i + 1, odd),
				       find_b(j, s, b, row + 2 * i, odd), "");
	return LLVMBuildSelect(B(j), which[1], v[1], v[0], "");
}

static V mma_function(struct jit *j, const struct shape *s, Ty t, bool sat)
{
	unsigned int na = na_of(s), nb = nb_of(s), nc = nc_of(s), i, k, h, o;
	LLVMBasicBlockRef back = LLVMGetInsertBlock(B(j));
	Ty vt = LLVMVectorType(t, 32), ft = LLVMFunctionType(j->voidt, &j->ptr, 1, false);
	V a[16], b[16], c[4], first[4], meta = NULL, w = j->w, fn, outer = j->fn;
	bool vec = j->vec;
	char name[64];

	snprintf(name, sizeof(name), "mma%s_%u_%u_%u_%s", s->sparse ? "_sp" : "", s->m, s->k, s->bits,
		 t == j->f32 ? "f" : t == j->f64 ? "d" : sat ? "s" : "i");
	fn = LLVMGetNamedFunction(j->m, name);
	if (fn)
		return fn;
	fn = jit_new_fn(j, name, ft, true);
	j->fn = fn;
	j->vec = true;
	at_bb(j, new_bb(j, "entry"));
	j->w = LLVMGetParam(fn, 0);
	for (i = 0; i < na; i++)
		a[i] = wload_var(j, vt, x_at(j, t, i));
	for (i = 0; i < nb; i++)
		b[i] = wload_var(j, vt, x_at(j, t, na + i));
	for (i = 0; i < nc; i++)
		c[i] = wload_var(j, vt, c_at(j, s, t, i));
	if (s->sparse)
		meta = wload_var(j, LLVMVectorType(j->i32, 32), c_at(j, s, t, nc));
	for (i = 0; sat && i < nc; i++) {	/* only the addition of C can overflow */
		first[i] = c[i];
		c[i] = LLVMConstNull(vt);
	}
	for (k = 0; k < s->k / (s->sparse ? 2 : 1); k++)
		for (h = 0; h < s->m / 8; h++) {
			V av = find_a(j, s, a, k, h), which[2];

			for (i = 0; s->sparse && i < 2; i++)
				which[i] = meta_bit(j, s, meta, k, h, i);
			for (o = 0; o < 2; o++) {
				V bv = s->sparse ? find_sparse_b(j, s, b, k, o, which) :
						   find_b(j, s, b, k, o);
				V *cv = &c[h * 2 + o];

				if (t == j->i32)
					*cv = LLVMBuildAdd(B(j), *cv, LLVMBuildMul(B(j), av, bv, ""),
							   "");
				else
					*cv = intr3(j, "llvm.fma", av, bv, *cv);
			}
		}
	for (i = 0; sat && i < nc; i++)
		c[i] = intr2(j, "llvm.sadd.sat", first[i], c[i]);
	for (i = 0; i < nc; i++)
		wstore(j, c[i], WOFF(y) + (size_t)i * 32 * (t == j->f64 ? 8 : 4));
	LLVMBuildRetVoid(B(j));
	j->fn = outer;
	j->w = w;
	j->vec = vec;
	at_bb(j, back);
	return fn;
}

/* Element @e of packed registers, as f32, i32 or f64. */
static V unpack(struct jit *j, const struct opnd *o, enum ptype t, unsigned int e)
{
	unsigned int bits = ptype_size(t) * 8, per;
	const struct opnd *r;
	V v;

	if (t == T_TF32)
		bits = 32;
	per = bits >= 32 ? 1 : 32 / bits;
	if (o->kind == O_VEC) {
		if (e / per >= o->nvec)
			jit_fail(j, "too few registers");
		r = &o->vec[e / per];
	} else {
		r = o;
	}
	switch (t) {
	case T_F64:
		return get(j, r, T_F64);
	case T_F32:
		return get(j, r, T_F32);
	case T_S32:
		return get(j, r, T_S32);
	case T_TF32:	/* the lower 13 bits are ignored */
		v = LLVMBuildAnd(B(j), get(j, r, T_B32), kint(j, j->i32, 0xffffe000), "");
		return LLVMBuildBitCast(B(j), v, jty(j, j->f32), "");
	default:
		break;
	}
	v = get(j, r, T_B32);
	v = LLVMBuildLShr(B(j), v, kint(j, j->i32, e % per * bits), "");
	v = LLVMBuildTrunc(B(j), v, jty(j, LLVMIntTypeInContext(j->c, bits)), "");
	switch (t) {
	case T_F16:
	case T_BF16:
		return half_to_f32(j, v, t);
	case T_S8:
		return LLVMBuildSExt(B(j), v, jty(j, j->i32), "");
	case T_U8:
		return LLVMBuildZExt(B(j), v, jty(j, j->i32), "");
	case T_E4M3:
	case T_E5M2: {		/* e5m2 is the upper byte of an f16 */
		V s, m;

		v = LLVMBuildZExt(B(j), v, jty(j, j->i16), "");
		if (t == T_E5M2)
			return half_to_f32(j, LLVMBuildShl(B(j), v, kint(j, j->i16, 8), ""), T_F16);
		s = LLVMBuildShl(B(j), LLVMBuildAnd(B(j), v, kint(j, j->i16, 0x80), ""),
				 kint(j, j->i16, 8), "");
		m = LLVMBuildShl(B(j), LLVMBuildAnd(B(j), v, kint(j, j->i16, 0x7f), ""),
				 kint(j, j->i16, 7), "");
		s = half_to_f32(j, LLVMBuildOr(B(j), s, m, ""), T_F16);
		s = LLVMBuildFMul(B(j), s, kfp(j, j->f32, 256), "");	/* biases 15 and 7 */
		m = LLVMBuildICmp(B(j), LLVMIntEQ, LLVMBuildAnd(B(j), v, kint(j, j->i16, 0x7f), ""),
				  kint(j, j->i16, 0x7f), "");
		return LLVMBuildSelect(B(j), m, LLVMBuildBitCast(B(j), kint(j, j->i32, 0x7fffffff),
				       jty(j, j->f32), ""), s, "");
	}
	default:
		jit_fail(j, "type");
	}
}

static const struct shape shapes[] = {
	{ M_m8n8k4, 8, 4, 64, false }, { M_m16n8k4, 16, 4, 64, false },
	{ M_m16n8k8, 16, 8, 64, false }, { M_m16n8k16, 16, 16, 64, false },
	{ M_m16n8k4, 16, 4, 32, false }, { M_m16n8k8, 16, 8, 32, false },
	{ M_m16n8k8, 16, 8, 16, false }, { M_m16n8k16, 16, 16, 16, false },
	{ M_m8n8k16, 8, 16, 8, false }, { M_m16n8k16, 16, 16, 8, false },
	{ M_m16n8k32, 16, 32, 8, false },
	{ M_m16n8k8, 16, 8, 32, true }, { M_m16n8k16, 16, 16, 32, true },
	{ M_m16n8k16, 16, 16, 16, true }, { M_m16n8k32, 16, 32, 16, true },
	{ M_m16n8k32, 16, 32, 8, true }, { M_m16n8k64, 16, 64, 8, true },
};

static void put_elem(struct jit *j, Ty t, unsigned int e, V v)
{
	wstore(j, v, x_at(j, t, e));
}

/* Sets D from the vectors of its elements; f16 are packed. */
static void put_d(struct jit *j, V *y, unsigned int n, enum ptype td)
{
	const struct opnd *d = opnd(j, 0);
	unsigned int i;

	if (d->kind != O_VEC || d->nvec != (td == T_F16 ? n / 2 : n))
		jit_fail(j, "result");
	for (i = 0; td == T_F16 && i < n / 2; i++) {
		V lo = LLVMBuildZExt(B(j), f32_to_half(j, y[2 * i], T_F16), jty(j, j->i32), "");
		V hi = LLVMBuildZExt(B(j), f32_to_half(j, y[2 * i + 1], T_F16), jty(j, j->i32), "");

		hi = LLVMBuildShl(B(j), hi, kint(j, j->i32, 16), "");
		set(j, &d->vec[i], LLVMBuildOr(B(j), lo, hi, ""), T_B32);
	}
	for (i = 0; td != T_F16 && i < n; i++)
		set(j, &d->vec[i], y[i], td == T_F64 ? T_F64 : td == T_F32 ? T_F32 : T_S32);
}

/* ---- m8n8k4 of f16: the eight lanes with one l % 16 / 4 compute one product ---- */

/* Element @i of lane @l; @lines: a lane holds one of A's rows or B's columns. */
static void quad_place(bool lines, unsigned int i, unsigned int l, unsigned int *line,
		       unsigned int *k)
{
	*line = (lines ? l % 4 : i) + l / 16 * 4;
	*k = lines ? i : l % 4;
}

static void quad_c(enum ptype t, unsigned int i, unsigned int l, unsigned int *row,
		   unsigned int *col)
{
	*row = (t == T_F16 ? l % 4 : (l & 1) + (i & 2)) + l / 16 * 4;
	*col = t == T_F16 ? i : (i & 4) + (l & 2) + (i & 1);
}

/* Gives each lane l the element elem[l] of lane from[l]. */
static V gather(struct jit *j, V *v, unsigned int n, const unsigned int *elem,
		const unsigned int *from)
{
	unsigned int e, l;
	V r = NULL;

	for (e = 0; e < n; e++) {
		bool any = false;
		V mask[32];

		for (l = 0; l < 32; l++) {
			mask[l] = LLVMConstInt(j->i1, elem[l] == e, false);
			any |= elem[l] == e;
		}
		if (any)
			r = r ? LLVMBuildSelect(B(j), LLVMConstVector(mask, 32), lanes(j, v[e], from),
						r, "") : lanes(j, v[e], from);
	}
	return r;
}

/* A's elements (row of C's element @i, @k), or B's (@k, column of it). */
static V quad_find(struct jit *j, V *v, bool is_b, bool lines, enum ptype td, unsigned int i,
		   unsigned int k)
{
	unsigned int l, s, e, rc[2], line, at, elem[32], from[32];

	for (l = 0; l < 32; l++) {
		quad_c(td, i, l, &rc[0], &rc[1]);
		for (s = 0; s < 8; s++)
			for (e = 0; e < 4; e++) {
				unsigned int src = (l & 12) + s % 4 + s / 4 * 16;

				quad_place(lines, e, src, &line, &at);
				if (line == rc[is_b] && at == k) {
					elem[l] = e;
					from[l] = src;
				}
			}
	}
	return gather(j, v, 4, elem, from);
}

static void emit_mma_quads(struct jit *j)
{
	enum ptype td = typ(j, 0), tc = typ(j, 3);
	unsigned int i, k, l, s, e, seen = 0, row, col, r, cc, elem[32], from[32];
	bool lay[2] = { false, false };		/* a lane has a line: A by rows, B by columns */
	V a[4], b[4], c[8], d[8];

	for (i = 0; i < j->in->nmod; i++)
		if (j->in->mods[i] == M_row || j->in->mods[i] == M_col) {
			if (seen < 2)
				lay[seen] = j->in->mods[i] == (seen ? M_col : M_row);
			seen++;
		}
	if (seen != 2 || typ(j, 2) != T_F16 || (td != T_F16 && td != T_F32) ||
	    (tc != T_F16 && tc != T_F32))
		jit_fail(j, "shape, type or layout not supported");
	j->vec = true;
	for (i = 0; i < 4; i++) {
		a[i] = unpack(j, opnd(j, 1), T_F16, i);
		b[i] = unpack(j, opnd(j, 2), T_F16, i);
	}
	for (i = 0; i < 8; i++)
		c[i] = unpack(j, opnd(j, 3), tc, i);
	for (i = 0; i < 8; i++) {
		for (l = 0; l < 32; l++) {
			quad_c(td, i, l, &row, &col);
			for (s = 0; s < 8; s++)
				for (e = 0; e < 8; e++) {
					unsigned int src = (l & 12) + s % 4 + s / 4 * 16;

					quad_c(tc, e, src, &r, &cc);
					if (r == row && cc == col) {
						elem[l] = e;
						from[l] = src;
					}
				}
		}
		d[i] = gather(j, c, 8, elem, from);
		for (k = 0; k < 4; k++)
			d[i] = intr3(j, "llvm.fma", quad_find(j, a, false, lay[0], td, i, k),
				     quad_find(j, b, true, lay[1], td, i, k), d[i]);
	}
	put_d(j, d, 8, td);
}

/* Moves the metadata from the selected lanes of each group to its first lanes. */
static V metadata(struct jit *j, const struct shape *s)
{
	const struct opnd *f = opnd(j, 5);
	unsigned int n = meta_lanes(s), l, from[32];

	if (f->kind != O_IMM || f->imm < 0 || f->imm > 3 || (f->imm + 1) * n > 4)
		jit_fail(j, "sparsity selector");
	for (l = 0; l < 32; l++)
		from[l] = (l & ~3u) + (l + (unsigned int)f->imm * n) % 4;
	return lanes(j, get(j, opnd(j, 4), T_B32), from);
}

static void emit_mma_sync(struct jit *j)
{
	enum ptype td = typ(j, 0), ta = typ(j, 1), tb = typ(j, 2), tc = typ(j, 3);
	unsigned int bits = ta == T_TF32 ? 32 : ptype_size(ta) * 8, i, na, nb, nc;
	Ty t = ta == T_F64 ? j->f64 : ta == T_S8 || ta == T_U8 ? j->i32 : j->f32;
	bool sat = insn_has(j->in, M_satfinite);
	bool sparse = insn_has(j->in, M_sp) || insn_has(j->in, M_sp_ordered);
	const struct shape *s = NULL;
	V fn, y[4];

	if (insn_has(j->in, M_m8n8k4) && ta == T_F16 && j->in->ntypes == 4 && !sparse && !sat) {
		emit_mma_quads(j);
		return;
	}
	for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		if (insn_has(j->in, shapes[i].mod) && shapes[i].bits == bits &&
		    shapes[i].sparse == sparse)
			s = &shapes[i];
	if (!s || (sat && t != j->i32) || j->in->ntypes != 4 ||
	    !insn_has(j->in, M_row) || !insn_has(j->in, M_col))
		jit_fail(j, "shape, type or layout not supported");
	for (i = 0; i < j->in->nmod; i++)
		if (!j->in->mtype[i] && !strcmp(j->in->mtext[i], "block_scale"))
			jit_fail(j, "scaled form");
	na = na_of(s);
	nb = nb_of(s);
	nc = nc_of(s);
	if ((na + nb + (sparse ? 0 : nc)) * 32 * (t == j->f64 ? 8 : 4) > 4096)
		jit_fail(j, "shape not supported");
	j->vec = true;
	for (i = 0; i < na; i++)
		put_elem(j, t, i, unpack(j, opnd(j, 1), ta, i));
	for (i = 0; i < nb; i++)
		put_elem(j, t, na + i, unpack(j, opnd(j, 2), tb, i));
	for (i = 0; i < nc; i++)
		wstore(j, unpack(j, opnd(j, 3), tc, i), c_at(j, s, t, i));
	if (sparse)
		wstore(j, metadata(j, s), c_at(j, s, t, nc));
	fn = mma_function(j, s, t, sat);
	LLVMBuildCall2(B(j), LLVMGlobalGetValueType(fn), fn, &j->w, 1, "");
	for (i = 0; i < nc; i++)
		y[i] = get_y(j, i, t);
	put_d(j, y, nc, td);
}

/* ldmatrix, stmatrix: rows of 16 bytes through C. */
static void emit_matrix(struct jit *j, bool store)
{
	const struct opnd *regs = opnd(j, store ? 1 : 0), *mem = opnd(j, store ? 0 : 1);
	unsigned int n = insn_has(j->in, M_x4) ? 4 : insn_has(j->in, M_x2) ? 2 : 1, i;
	enum rt_space sp;
	V args[4];

	if (!insn_has(j->in, M_m8n8) || typ(j, 0) != T_B16)
		jit_fail(j, "shape not supported");
	if (regs->kind == O_VEC ? regs->nvec != n : n != 1)
		jit_fail(j, "registers");
	j->vec = true;
	wstore(j, mem_addr(j, mem, &sp), WOFF(addr));
	args[0] = j->w;
	args[1] = cur_mask(j);
	args[2] = c32(j, n | insn_has(j->in, M_trans) << 8 | (uint32_t)sp << 16);
	if (store)
		for (i = 0; i < n; i++)
			wstore(j, get(j, regs->kind == O_VEC ? &regs->vec[i] : regs, T_B32),
			       WOFF(x) + i * 128);
	call_rt(j, store ? "rt_stmatrix" : "rt_ldmatrix", j->voidt, args, 3);
	if (!store)
		for (i = 0; i < n; i++)
			set(j, regs->kind == O_VEC ? &regs->vec[i] : regs, get_y(j, i, j->i32), T_B32);
}

static void emit_movmatrix(struct jit *j)
{
	j->vec = true;
	put_x(j, 0, get(j, opnd(j, 1), T_B32));
	call_rt(j, "rt_movmatrix", j->voidt, &j->w, 1);
	set(j, opnd(j, 0), get_y(j, 0, j->i32), T_B32);
}

/* ---- wmma: fragments are opaque; rt/mma.c defines their layout ---- */

enum { FRAG_A, FRAG_B, FRAG_C };

static uint32_t wmma_shape(struct jit *j)
{
	const struct insn *i = j->in;

	if (insn_has(i, M_m16n16k16))
		return 16 | 16 << 8 | 16 << 16;
	if (insn_has(i, M_m32n8k16))
		return 32 | 8 << 8 | 16 << 16;
	if (insn_has(i, M_m8n32k16))
		return 8 | 32 << 8 | 16 << 16;
	if (insn_has(i, M_m16n16k8))
		return 16 | 16 << 8 | 8 << 16;
	if (insn_has(i, M_m8n8k4))
		return 8 | 8 << 8 | 4 << 16;
	jit_fail(j, "shape");
}

static void frag_put(struct jit *j, const struct opnd *o, enum ptype t, size_t off)
{
	unsigned int i, size = t == T_F64 ? 8 : 4;

	if (o->kind != O_VEC || o->nvec > 8)
		jit_fail(j, "registers");
	for (i = 0; i < o->nvec; i++)
		wstore(j, get(j, &o->vec[i], t == T_F64 ? T_B64 : T_B32), off + (size_t)i * 32 * size);
}

static void frag_get(struct jit *j, const struct opnd *o, enum ptype t)
{
	unsigned int i;

	if (o->kind != O_VEC || o->nvec > 8)
		jit_fail(j, "registers");
	for (i = 0; i < o->nvec; i++)
		set(j, &o->vec[i], get_y(j, i, t == T_F64 ? j->i64 : j->i32),
		    t == T_F64 ? T_B64 : T_B32);
}

static uint32_t wmma_type(struct jit *j, enum ptype t)
{
	switch (t) {
	case T_F16: case T_BF16: case T_F32: case T_F64: case T_S8: case T_U8: case T_S32:
	case T_TF32:
		return t;
	default:
		jit_fail(j, "type");
	}
}

static void emit_wmma(struct jit *j)
{
	const struct insn *i = j->in;
	uint32_t shape = wmma_shape(j), col = insn_has(i, M_col), which;
	V args[6];
	enum rt_space sp;

	j->vec = true;
	args[0] = j->w;
	args[1] = cur_mask(j);
	args[2] = c32(j, shape);
	if (insn_has(i, M_mma)) {
		enum ptype td = typ(j, 0), ta, tc;
		bool ints = i->ntypes == 4;

		if ((insn_has(i, M_satfinite) && typ(j, 0) != T_S32) || insn_has(i, M_popc))
			jit_fail(j, "form not supported");
		/* .alayout.blayout: the layouts were applied when loading */
		ta = i->ntypes == 2 ? T_F16 : i->t[1];
		tc = i->t[i->ntypes - 1];
		if (ints && typ(j, 1) != typ(j, 2))
			jit_fail(j, "types");
		frag_put(j, opnd(j, 1), ta, WOFF(x));
		frag_put(j, opnd(j, 2), ta, WOFF(x) + 1024);
		frag_put(j, opnd(j, 3), tc, WOFF(x) + 2048);
		args[3] = c32(j, wmma_type(j, ta));
		args[4] = c32(j, wmma_type(j, tc) | wmma_type(j, td) << 8 |
			       (uint32_t)insn_has(i, M_satfinite) << 16);
		call_rt(j, "rt_wmma", j->voidt, args, 5);
		frag_get(j, opnd(j, 0), td);
		return;
	}
	which = insn_has(i, M_a) ? FRAG_A : insn_has(i, M_b) ? FRAG_B : FRAG_C;
	{
		bool store = insn_has(i, M_store);
		const struct opnd *mem = opnd(j, store ? 0 : 1), *frag = opnd(j, store ? 1 : 0);
		enum ptype t = typ(j, 0);

		wstore(j, mem_addr(j, mem, &sp), WOFF(addr));
		wstore(j, i->nopnd > 2 ? get(j, opnd(j, 2), T_U32) :
		       kint(j, j->i32, 0), WOFF(x) + 3072);
		if (store)
			frag_put(j, frag, t, WOFF(x));
		args[3] = c32(j, wmma_type(j, t));
		args[4] = c32(j, which | col << 8 | (uint32_t)sp << 16 | (i->nopnd > 2) << 24);
		call_rt(j, store ? "rt_wmma_store" : "rt_wmma_load", j->voidt, args, 5);
		if (!store)
			frag_get(j, frag, t);
	}
}

void emit_mma(struct jit *j)
{
	switch (j->in->op) {
	case OP_mma: emit_mma_sync(j); return;
	case OP_ldmatrix: emit_matrix(j, false); return;
	case OP_stmatrix: emit_matrix(j, true); return;
	case OP_movmatrix: emit_movmatrix(j); return;
	case OP_wmma: emit_wmma(j); return;
	}
	jit_fail(j, "not supported");
}
