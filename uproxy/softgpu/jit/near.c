// SPDX-License-Identifier: Apache-2.0
/*
 * near.c - loads of lanes that are near each other, and stretches of code that assume such loads
 *
 * A part of a warp is as many lanes as a vector register has: a half with AVX-512, a quarter with
 * AVX2.  When all lanes of a part are near its first one, their data lies in a few registers' worth
 * of memory, which is loaded and permuted.  Products of matrices read their tiles in this way, with
 * one shape of addresses for dozens of loads.  A branch for each load would keep LLVM from
 * optimising a loop's body as a whole (it moves arithmetic over the branches, and spills the values
 * that wait there).  So the shapes are checked once, before a stretch of code that is emitted
 * twice, with branches and without.
 */
#include <string.h>

#include "jit_i.h"

#define B(j) ((j)->b)
#define WOFF(f) offsetof(struct rt_warp, f)

enum { WORTH = 8, LONGEST = 1500, MOST_GROUPS = 8 };

static unsigned int parts(const struct jit *j)
{
	return 32 / j->simd;
}

/* The number of vector registers that a part with @bytes per lane may load. */
static unsigned int windows(unsigned int bytes)
{
	return bytes > 8 ? 4 : 2;
}

V part_of_vec(struct jit *j, V v, unsigned int part)
{
	V idx[16];
	unsigned int i;

	for (i = 0; i < j->simd; i++)
		idx[i] = c32(j, part * j->simd + i);
	return LLVMBuildShuffleVector(B(j), v, LLVMGetPoison(LLVMTypeOf(v)),
				      LLVMConstVector(idx, j->simd), "");
}

/* A warp's value from its parts; overwrites @v. */
static V concat(struct jit *j, V *v)
{
	V idx[32];
	unsigned int i, n;

	for (i = 0; i < 32; i++)
		idx[i] = c32(j, i);
	for (n = j->simd; n < 32; n *= 2)
		for (i = 0; i < 16 / n; i++)
			v[i] = LLVMBuildShuffleVector(B(j), v[2 * i], v[2 * i + 1],
						      LLVMConstVector(idx, 2 * n), "");
	return v[0];
}

static V compare(struct jit *j, LLVMIntPredicate p, V a, V b)
{
	return LLVMBuildICmp(B(j), p, a, b, "");
}

/* @other in lanes where bit @bit of @idx is set, else @v. */
static V choose(struct jit *j, V idx, unsigned int bit, V v, V other)
{
	V k[16], c;
	unsigned int i;

	for (i = 0; i < j->simd; i++)
		k[i] = c32(j, bit);
	c = LLVMBuildAnd(B(j), idx, LLVMConstVector(k, j->simd), "");
	c = compare(j, LLVMIntNE, c, LLVMConstNull(LLVMTypeOf(idx)));
	return LLVMBuildSelect(B(j), c, other, v, "");
}

/* The words of two registers that the lower bits of @idx select. */
static V permute2(struct jit *j, V a, V idx, V b)
{
	V args[3] = { a, idx, b }, v;

	if (j->simd == 16)
		return call_intr(j, "llvm.x86.avx512.vpermi2var.d.512", NULL, 0, args, 3);
	v = call_intr(j, "llvm.x86.avx2.permd", NULL, 0, args, 2);
	args[0] = b;
	return choose(j, idx, 8, v, call_intr(j, "llvm.x86.avx2.permd", NULL, 0, args, 2));
}

/* For each lane: the shape of its part's first lane, or another part's if @mask has none of it. */
static V bases(struct jit *j, V shape, V mask, V *lane)
{
	V idx[32], k = LLVMGetPoison(LLVMTypeOf(shape)), some[4], any = NULL;
	unsigned int h, n = parts(j);

	for (h = n; h-- > 0;) {
		lane[h] = LLVMBuildExtractElement(B(j), shape, c32(j, j->simd * h), "");
		if (!mask)
			continue;
		some[h] = c32(j, ((1u << j->simd) - 1) << j->simd * h);
		some[h] = compare(j, LLVMIntNE, LLVMBuildAnd(B(j), mask, some[h], ""), c32(j, 0));
		any = any ? LLVMBuildSelect(B(j), some[h], lane[h], any, "") : lane[h];
	}
	for (h = 0; h < n; h++) {
		if (mask)	/* a part without active lanes has no valid address */
			lane[h] = LLVMBuildSelect(B(j), some[h], lane[h], any, "");
		k = LLVMBuildInsertElement(B(j), k, lane[h], c32(j, h), "");
	}
	for (h = 0; h < 32; h++)
		idx[h] = c32(j, h / j->simd);
	return LLVMBuildShuffleVector(B(j), k, k, LLVMConstVector(idx, 32), "");
}

/*
 * Whether the lanes of @mask can be loaded in this way, at @shape + @off and up to @more bytes
 * behind.  Sets @n: the parts' host addresses, and each lane's offset from its part's, in dwords.
 */
V near_check(struct jit *j, enum rt_space space, V shape, V off, uint64_t more, V mask,
	     unsigned int bytes, struct near *n)
{
	bool sh = space == RT_SHARED;
	Ty t = sh ? j->i32 : j->i64;
	V lane[4], d, ok, in, most, first[4], all = NULL, top = NULL;
	unsigned int h, zmm = 4 * j->simd;

	n->windows = windows(bytes);
	/* checks of the shape alone are loop-invariant */
	d = LLVMBuildSub(B(j), shape, bases(j, shape, mask, lane), "");
	if (mask)
		d = LLVMBuildSelect(B(j), pred_of(j, mask), d, kint(j, t, 0), "");
	ok = compare(j, LLVMIntULE, d, kint(j, t, n->windows * zmm - bytes));
	in = compare(j, LLVMIntEQ, LLVMBuildAnd(B(j), d, kint(j, t, bytes - 1), ""), kint(j, t, 0));
	ok = bits_of(j, LLVMBuildAnd(B(j), ok, in, ""));
	ok = compare(j, LLVMIntEQ, ok, c32(j, ~0u));
	if (mask)
		ok = LLVMBuildAnd(B(j), ok, compare(j, LLVMIntNE, mask, c32(j, 0)), "");
	most = intr1(j, "llvm.vector.reduce.umax", d);
	d = LLVMBuildLShr(B(j), d, kint(j, t, 2), "");
	n->idx = sh ? d : LLVMBuildTrunc(B(j), d, LLVMVectorType(j->i32, 32), "");
	/* checks of the current address */
	for (h = 0; h < parts(j); h++) {
		first[h] = LLVMBuildAdd(B(j), lane[h], off, "");
		if (sh)
			first[h] = LLVMBuildZExt(B(j), first[h], j->i64, "");
		all = h ? LLVMBuildOr(B(j), all, first[h], "") : first[h];
		top = h ? intr2(j, "llvm.umax", top, first[h]) : first[h];
	}
	in = LLVMBuildAnd(B(j), all, c64(j, bytes - 1), "");
	ok = LLVMBuildAnd(B(j), ok, compare(j, LLVMIntEQ, in, c64(j, 0)), "");
	if (sh) {	/* loads may exceed shared memory: RT_SHARED_SLACK */
		V lim;

		most = LLVMBuildZExt(B(j), most, j->i64, "");
		lim = wload(j, j->i64, WOFF(shared_size));
		lim = intr2(j, "llvm.usub.sat", lim, c64(j, bytes - 1 + more));
		in = compare(j, LLVMIntULT, LLVMBuildAdd(B(j), top, most, ""), lim);
		ok = LLVMBuildAnd(B(j), ok, in, "");
	}
	for (h = 0; h < parts(j); h++) {
		if (sh) {
			n->host[h] = LLVMBuildGEP2(B(j), j->i8, wload(j, j->ptr, WOFF(shared)),
						   &first[h], 1, "");
			continue;
		}
		/* within one page, which a lane accesses anyway */
		in = LLVMBuildAnd(B(j), first[h], c64(j, 4095), "");
		in = compare(j, LLVMIntULE, in, c64(j, 4096 - n->windows * zmm));
		ok = LLVMBuildAnd(B(j), ok, in, "");
		in = LLVMBuildSub(B(j), first[h], wload(j, j->i64, WOFF(lo)), "");
		in = compare(j, LLVMIntULT, in, wload(j, j->i64, WOFF(span)));
		ok = LLVMBuildAnd(B(j), ok, in, "");
		n->host[h] = LLVMBuildIntToPtr(B(j), first[h], j->ptr, "");
	}
	return ok;
}

static V near_dword(struct jit *j, const struct near *n, V *z, V idx)
{
	V lo = permute2(j, z[0], idx, z[1]);

	if (n->windows == 2)
		return lo;
	return choose(j, idx, 2 * j->simd, lo, permute2(j, z[2], idx, z[3]));
}

/* Loads @dwords of each lane, @off bytes behind the addresses in @n. */
void near_load(struct jit *j, const struct near *n, uint64_t off, V *f, unsigned int dwords)
{
	V z[4][4], idx, part[4];
	unsigned int h, k;

	for (h = 0; h < parts(j); h++)
		for (k = 0; k < n->windows; k++) {
			V at = c64(j, off + k * 4 * j->simd);

			z[h][k] = load_al(j, LLVMVectorType(j->i32, j->simd),
					  LLVMBuildGEP2(B(j), j->i8, n->host[h], &at, 1, ""), 4);
		}
	for (k = 0; k < dwords; k++) {
		idx = LLVMBuildAdd(B(j), n->idx, splat(j, c32(j, k)), "");
		for (h = 0; h < parts(j); h++)
			part[h] = near_dword(j, n, z[h], part_of_vec(j, idx, h));
		f[k] = concat(j, part);
	}
}

/* ---- stretches of code that are emitted twice ---- */

struct near_group {		/* loads with one address register */
	int reg;
	unsigned int bytes;
	uint64_t lo, hi;	/* of their offsets */
	struct near n;
};

struct stretch {
	uint32_t from, to;
	struct near_group g[MOST_GROUPS];
	unsigned int ngroups;
};

/* Bytes per lane of a load that a stretch can speed up; 0: none. */
static unsigned int tile_load(const struct jit *j, const struct insn *i)
{
	unsigned int n = insn_has(i, M_v4) ? 4 : insn_has(i, M_v2) ? 2 : 1;

	if (i->op != OP_ld || i->guard >= 0 || i->nopnd < 2 || !i->ntypes || insn_has(i, M_v8) ||
	    !(insn_has(i, M_shared) || insn_has(i, M_shared_cta)) || insn_is_strong(i) ||
	    ptype_size(i->t[0]) != 4 || i->o[1].kind != O_MEM || i->o[1].reg < 0 ||
	    j->f->uniform[i->o[1].reg] || i->o[1].imm < 0 || i->o[1].imm > 1 << 18 ||
	    (n > 1 && (i->o[0].kind != O_VEC || i->o[0].nvec != n)))
		return 0;
	return 4 * n;
}

static bool ends_stretch(const struct insn *i)
{
	switch (i->op) {
	case OP_bar: case OP_barrier: case OP_call: case OP_atom: case OP_red: case OP_cp:
	case OP_mma: case OP_wmma: case OP_bra: case OP_brx: case OP_ret: case OP_exit: case OP_trap:
		return true;
	}
	return false;
}

static void note_write(void *arg, int reg, bool def)
{
	uint8_t *written = arg;

	if (def)
		written[reg] = 1;
}

/* Finds the stretch that begins with the load @from; returns the number of loads it speeds up. */
static uint32_t measure(struct jit *j, uint32_t from, uint32_t last, uint8_t *written,
			struct stretch *s)
{
	uint32_t k, n = 0, g;

	memset(written, 0, j->f->b->nregs);
	s->from = s->to = from;
	s->ngroups = 0;
	for (k = from; k < last && k - from < LONGEST; k++) {
		const struct insn *i = &j->f->b->insn[k];
		unsigned int bytes = tile_load(j, i);

		if (ends_stretch(i))
			break;
		if (bytes && !written[i->o[1].reg]) {
			uint64_t off = i->o[1].imm;

			for (g = 0; g < s->ngroups; g++)
				if (s->g[g].reg == i->o[1].reg && s->g[g].bytes == bytes &&
				    !((off - s->g[g].lo) % bytes))
					break;
			if (g == s->ngroups && g < MOST_GROUPS)
				s->g[s->ngroups++] = (struct near_group){ .reg = i->o[1].reg,
					.bytes = bytes, .lo = off, .hi = off };
			if (g < s->ngroups) {
				s->g[g].lo = off < s->g[g].lo ? off : s->g[g].lo;
				s->g[g].hi = off > s->g[g].hi ? off : s->g[g].hi;
				s->to = k + 1;
				n++;
			}
		}
		insn_regs(i, note_write, written);
	}
	return n;
}

/* Finds the stretch behind @k that speeds up most loads; false if none has WORTH loads. */
static bool find_stretch(struct jit *j, uint32_t k, uint32_t last, struct stretch *best)
{
	uint8_t *written = ptx_arena_alloc(&j->u->arena, j->f->b->nregs + 1);
	struct stretch s;
	uint32_t n, most = 0, tries = 0;

	for (; k < last && tries < 64; k++) {
		if (!tile_load(j, &j->f->b->insn[k])) {
			if (most >= WORTH && ends_stretch(&j->f->b->insn[k]))
				break;
			continue;
		}
		tries++;
		n = measure(j, k, last, written, &s);
		if (n > most) {
			most = n;
			*best = s;
		}
	}
	return most >= WORTH;
}

/* Appends the arithmetic behind the last load. */
static void extend(struct jit *j, uint32_t last, struct stretch *s)
{
	while (s->to < last && !ends_stretch(&j->f->b->insn[s->to]) && s->to - s->from < LONGEST)
		s->to++;
}

/* Loads the words in @f if the stretch speeds up the current load; returns their number, or 0. */
unsigned int near_assumed(struct jit *j, V *f)
{
	const struct stretch *s = j->stretch;
	unsigned int bytes = s ? tile_load(j, j->in) : 0, g;
	const struct opnd *mem = &j->in->o[1];
	uint64_t off = mem->imm;

	if (!bytes || j->rewritten[mem->reg])
		return 0;
	for (g = 0; g < s->ngroups; g++)
		if (s->g[g].reg == mem->reg && s->g[g].bytes == bytes && off >= s->g[g].lo &&
		    off <= s->g[g].hi && !((off - s->g[g].lo) % bytes)) {
			near_load(j, &s->g[g].n, off - s->g[g].lo, f, bytes / 4);
			return bytes / 4;
		}
	return 0;
}

/* The condition of a stretch: a full mask, and near lanes in each group. */
static V assumption(struct jit *j, struct stretch *s)
{
	V ok = LLVMBuildICmp(B(j), LLVMIntEQ, cur_mask(j), c32(j, ~0u), "");
	unsigned int g;

	j->vec = true;
	for (g = 0; g < s->ngroups; g++) {
		struct near_group *x = &s->g[g];
		V shape = get_reg(j, x->reg, ptype_size(j->f->b->regtype[x->reg]) == 8 ? T_B64 :
				  T_U32, false);

		if (ptype_size(j->f->b->regtype[x->reg]) == 8)
			shape = LLVMBuildTrunc(B(j), shape, jty(j, j->i32), "");
		ok = LLVMBuildAnd(B(j), ok, near_check(j, RT_SHARED, shape, c32(j, x->lo),
						       x->hi - x->lo, NULL, x->bytes, &x->n), "");
	}
	return ok;
}

static void emit_version(struct jit *j, const struct stretch *s, bool fast)
{
	uint32_t k;

	j->stretch = fast ? s : NULL;
	memset(j->rewritten, 0, j->f->b->nregs);
	for (k = s->from; k < s->to; k++) {
		emit_insn(j, &j->f->b->insn[k]);
		insn_regs(&j->f->b->insn[k], note_write, j->rewritten);
	}
	j->stretch = NULL;
}

/* Emits the instructions of @s twice, and merges the values that they write. */
static void emit_twice(struct jit *j, struct stretch *s)
{
	uint32_t n = j->f->b->nregs, r,
		 *cached = ptx_arena_alloc(&j->u->arena, (n + 1) * sizeof(*cached));
	V *cache = ptx_arena_alloc(&j->u->arena, (n + 1) * sizeof(V)), ok;
	V *v = ptx_arena_alloc(&j->u->arena, (n + 1) * sizeof(V));
	LLVMBasicBlockRef fast = new_bb(j, "tile"), slow = new_bb(j, "general");
	LLVMBasicBlockRef join = new_bb(j, "join"), end[2];

	ok = assumption(j, s);
	br_likely(j, ok, fast, slow);
	memcpy(cache, j->cache, n * sizeof(V));
	memcpy(cached, j->cached, n * sizeof(*cached));
	at_bb(j, fast);
	emit_version(j, s, true);
	end[0] = LLVMGetInsertBlock(B(j));
	LLVMBuildBr(B(j), join);
	memcpy(v, j->cache, n * sizeof(V));
	memcpy(j->cache, cache, n * sizeof(V));
	memcpy(j->cached, cached, n * sizeof(*cached));
	at_bb(j, slow);
	emit_version(j, s, false);
	end[1] = LLVMGetInsertBlock(B(j));
	LLVMBuildBr(B(j), join);
	at_bb(j, join);
	for (r = 0; r < n; r++) {
		if (!j->rewritten[r]) {
			j->cache[r] = cache[r];
			j->cached[r] = cached[r];
		} else if (j->cached[r] == j->epoch) {
			V phi = LLVMBuildPhi(B(j), LLVMTypeOf(v[r]), ""), in[2] = { v[r], j->cache[r] };

			LLVMAddIncoming(phi, in, end, 2);
			j->cache[r] = phi;
		}
	}
}

/* Emits the instructions [from, last) of a block. */
void emit_insns(struct jit *j, uint32_t from, uint32_t last)
{
	struct stretch s;
	bool twice = j->simd && j->f->b->ninsn <= PTX_HUGE;
	uint32_t k = from;

	while (k < last) {
		twice = twice && find_stretch(j, k, last, &s);
		if (twice)
			extend(j, last, &s);
		for (; k < (twice ? s.from : last); k++)
			emit_insn(j, &j->f->b->insn[k]);
		if (twice) {
			emit_twice(j, &s);
			k = s.to;
		}
	}
}
