// SPDX-License-Identifier: Apache-2.0
/*
 * tex.c - textures and surfaces: passes coordinates to rt/tex.c, and takes texels from it
 */
#include <errno.h>

#include "jit_i.h"

#define B(j) ((j)->b)
#define WOFF(f) offsetof(struct rt_warp, f)

static uint32_t geometry(struct jit *j, unsigned int *ncoord)
{
	static const struct {
		enum ptx_mod mod;
		uint32_t geom;
		unsigned int ncoord;
	} g[] = {
		{ M_d1d, RT_TEX_1D, 1 }, { M_d2d, RT_TEX_2D, 2 }, { M_d3d, RT_TEX_3D, 3 },
		{ M_a1d, RT_TEX_A1D, 2 }, { M_a2d, RT_TEX_A2D, 3 }, { M_cube, RT_TEX_CUBE, 3 },
		{ M_acube, RT_TEX_ACUBE, 4 },
	};
	unsigned int i;

	for (i = 0; i < sizeof(g) / sizeof(g[0]); i++)
		if (insn_has(j->in, g[i].mod)) {
			*ncoord = g[i].ncoord;
			return g[i].geom;
		}
	jit_fail(j, "geometry");
}

static void put_coord(struct jit *j, unsigned int k, const struct opnd *o, enum ptype t)
{
	wstore(j, get(j, o, t), WOFF(x) + 128 * k);
}

/* Passes the handle and the coordinates; further elements of the list are padding. */
static uint32_t put_place(struct jit *j, const struct opnd *o, enum ptype t)
{
	struct opnd base = { .kind = O_REG, .reg = o->reg, .reg2 = -1 };
	const struct opnd *c;
	unsigned int n, k;
	uint32_t geom = geometry(j, &n);
	bool array = geom == RT_TEX_A1D || geom == RT_TEX_A2D || geom == RT_TEX_ACUBE;

	if (o->kind != O_MEM || o->nvec != 1)
		ptx_fail(-EINVAL, j->in->line, "%s: expected [object, {coordinates}]",
			 ptx_op_name[j->in->op]);
	if (o->reg < 0)
		jit_fail(j, "texture reference");
	c = &o->vec[0];
	if (c->kind == O_VEC ? c->nvec < n : n > 1)
		ptx_fail(-EINVAL, j->in->line, "%s: coordinates are missing",
			 ptx_op_name[j->in->op]);
	wstore(j, get(j, &base, T_U64), WOFF(addr));
	for (k = 0; k < n; k++)
		put_coord(j, k, c->kind == O_VEC ? &c->vec[k] : c, array && !k ? T_U32 : t);
	return geom;
}

static void put_vector(struct jit *j, unsigned int at, const struct opnd *o)
{
	unsigned int k;

	if (o->kind != O_VEC)
		put_coord(j, at, o, T_F32);
	for (k = 0; k < o->nvec && k < 3; k++)
		put_coord(j, at + k, &o->vec[k], T_F32);
}

static void emit_sample(struct jit *j)
{
	const struct insn *i = j->in;
	const struct opnd *d = opnd(j, 0);
	enum ptype dt = typ(j, 0), ct = typ(j, 1);
	unsigned int k, n = insn_has(i, M_v4) ? 4 : insn_has(i, M_v2) ? 2 : 1;
	uint32_t desc;
	V args[3];

	if (ptype_size(dt) != 4 || (dt != T_F32 && dt != T_U32 && dt != T_S32 && dt != T_B32))
		jit_fail(j, "type of the result");
	if (ct != T_F32 && ct != T_S32 && ct != T_U32)
		jit_fail(j, "type of the coordinates");
	if (d->kind == O_VEC ? d->nvec != n : n > 1)
		ptx_fail(-EINVAL, i->line, "tex: expected a vector of %u", n);
	desc = put_place(j, opnd(j, 1), ct == T_F32 ? T_F32 : T_U32);
	if (ct != T_F32)
		desc |= RT_TEX_INT;
	if (i->op == OP_tld4) {
		desc |= RT_TEX_GATHER | (insn_has(i, M_g) ? 1u : insn_has(i, M_b) ? 2u :
					 insn_has(i, M_a) ? 3u : 0u) << RT_TEX_COMP;
		if ((desc & RT_TEX_GEOM) != RT_TEX_2D)
			jit_fail(j, "geometry");
	} else if (insn_has(i, M_level)) {
		desc |= RT_TEX_LEVEL;
		if (ct == T_F32)
			put_coord(j, 4, opnd(j, 2), T_F32);
		else
			wstore(j, splat(j, LLVMConstReal(j->f32, 0)), WOFF(x) + 512);
	} else if (insn_has(i, M_grad)) {
		desc |= RT_TEX_GRAD;
		put_vector(j, 5, opnd(j, 2));
		put_vector(j, 8, opnd(j, 3));
	} else if (i->nopnd > 2) {
		jit_fail(j, "offset or depth comparison");
	}
	args[0] = j->w;
	args[1] = guarded_mask(j);
	args[2] = c32(j, desc);
	call_rt(j, "rt_tex", j->voidt, args, 3);
	for (k = 0; k < n; k++)
		set(j, d->kind == O_VEC ? &d->vec[k] : d,
		    wload_var(j, jty(j, j->i32), WOFF(y) + 128 * k), T_B32);
	if (d->reg2 >= 0)	/* all texels are resident */
		set_reg(j, d->reg2, kint(j, j->i1, 1), T_PRED);
}

static void emit_surface(struct jit *j)
{
	const struct insn *i = j->in;
	bool store = i->op == OP_sust;
	const struct opnd *v = opnd(j, store ? 1 : 0);
	unsigned int k, n = insn_has(i, M_v4) ? 4 : insn_has(i, M_v2) ? 2 : 1;
	enum ptype t = typ(j, 0);
	unsigned int size = ptype_size(t);
	Ty ty = LLVMIntTypeInContext(j->c, size * 8);
	uint32_t desc;
	V args[5];

	if (!insn_has(i, M_b))
		jit_fail(j, "formatted access");
	if (size > 8 || t == T_PRED || (v->kind == O_VEC ? v->nvec != n : n > 1))
		ptx_fail(-EINVAL, i->line, "%s: type or vector", ptx_op_name[i->op]);
	desc = put_place(j, opnd(j, store ? 0 : 1), T_U32);
	desc |= insn_has(i, M_clamp) ? RT_SURF_CLAMP : insn_has(i, M_zero) ? RT_SURF_ZERO :
		RT_SURF_TRAP;
	for (k = 0; store && k < n; k++)
		wstore(j, get(j, v->kind == O_VEC ? &v->vec[k] : v, t),
		       WOFF(x) + 1024 + (size_t)k * 32 * size);
	args[0] = j->w;
	args[1] = guarded_mask(j);
	args[2] = c32(j, desc);
	args[3] = c32(j, size);
	args[4] = c32(j, n);
	call_rt(j, store ? "rt_sust" : "rt_suld", j->voidt, args, 5);
	for (k = 0; !store && k < n; k++)
		set(j, v->kind == O_VEC ? &v->vec[k] : v,
		    wload_var(j, jty(j, ty), WOFF(y) + (size_t)k * 32 * size), t);
}

void emit_tex(struct jit *j)
{
	j->vec = true;
	switch (j->in->op) {
	case OP_tex: case OP_tld4:
		emit_sample(j);
		return;
	case OP_suld: case OP_sust:
		emit_surface(j);
		return;
	}
	jit_fail(j, "not supported");
}
