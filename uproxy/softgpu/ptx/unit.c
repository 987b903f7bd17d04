// SPDX-License-Identifier: Apache-2.0
/*
 * unit.c - gathers an entry and the functions that it reaches into one unit.
 *
 * Direct calls are inlined as long as the unit stays small: in one function, a lane that waits for
 * another lane can be preempted anywhere.  Recursive functions and targets of indirect calls become
 * functions of their own (struct ufunc).  Parameters of inlined calls become registers when every
 * access to them has the same shape, else local memory.
 *
 * Of the instructions that change control or wait for other lanes, only jumps, returns and exits
 * keep guards: a jump around the others replaces theirs.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_i.h"

enum { INLINE_CALLEE = 3000, INLINE_TOTAL = 40000, MAX_INLINE_DEPTH = 48 };

struct parsed {			/* bodies of this unit, by function ordinal */
	struct pbody *b;
	bool on_stack;		/* while looking for recursion */
	bool visited, recursive, called;
};

struct builder {
	struct unit *u;
	struct parsed *p;
	struct pbody *out;
	unsigned int depth;
};

/* ---- brx.idx: the list becomes operands ---- */

static void resolve_brx(struct builder *b, struct pbody *s)
{
	uint32_t i, k;

	for (i = 0; i < s->ninsn; i++) {
		struct insn *in = &s->insn[i];
		struct ptargets *t;
		struct opnd *o;

		if (in->op != OP_brx)
			continue;
		if (in->nopnd != 2 || in->o[1].kind != O_NAME)
			ptx_fail(-EINVAL, in->line, "brx.idx: expected an index and a list");
		for (t = s->targets; t; t = t->next)
			if (!t->is_proto && !strcmp(t->name, in->o[1].name))
				break;
		if (!t)
			ptx_fail(-EINVAL, in->line, "list %s is not defined", in->o[1].name);
		if (t->n > 250)
			ptx_fail(-ENOTSUP, in->line, "brx.idx with more than 250 targets");
		o = ptx_arena_alloc(&b->u->arena, (t->n + 1) * sizeof(*o));
		o[0] = in->o[0];
		for (k = 0; k < t->n; k++) {
			struct plabel *l = body_find_label(s, t->names[k], in->scope);

			if (!l)
				ptx_fail(-EINVAL, in->line, "label %s is not defined", t->names[k]);
			o[k + 1] = (struct opnd){ .kind = O_LABEL, .imm = l->id, .reg = -1,
						  .reg2 = -1 };
		}
		in->o = o;
		in->nopnd = t->n + 1;
	}
}

static struct parsed *parsed(struct builder *b, struct pfunc *f)
{
	struct parsed *p = &b->p[f->ordinal];

	if (!p->b) {
		p->b = ptx_parse_body(b->u->m, f, &b->u->arena);
		resolve_brx(b, p->b);
	}
	return p;
}

static struct pfunc *real_func(struct pfunc *f)
{
	int n = 8;

	while (f && f->alias && n--)
		f = f->alias;
	return f;
}

/* call [(rets),] target [, (params)] [, prototype] in one shape. */
struct call_parts {
	struct opnd *rets, *params, *proto;
	struct opnd *target;
};

static struct opnd no_list = { .kind = O_LIST };

static void call_parts(const struct insn *i, struct call_parts *c)
{
	unsigned int k = 0;

	c->rets = c->params = &no_list;
	c->proto = NULL;
	if (k < i->nopnd && i->o[k].kind == O_LIST)
		c->rets = &i->o[k++];
	if (k >= i->nopnd)
		ptx_fail(-EINVAL, i->line, "call without a target");
	c->target = &i->o[k++];
	if (k < i->nopnd && i->o[k].kind == O_LIST)
		c->params = &i->o[k++];
	if (k < i->nopnd && i->o[k].kind == O_NAME)
		c->proto = &i->o[k++];
	if (k != i->nopnd)
		ptx_fail(-EINVAL, i->line, "call: too many operands");
}

static const char *const builtins[] = {
	"vprintf", "malloc", "free", "__assertfail", NULL
};

static bool is_builtin(const struct pfunc *f)
{
	int i;

	if (f->body)
		return false;
	for (i = 0; builtins[i]; i++)
		if (!strcmp(f->name, builtins[i]))
			return true;
	return false;
}

static bool starts_with(const char *s, const char *what)
{
	return !strncmp(s, what, strlen(what));
}

static void fail_undefined(const struct insn *call, const char *name)
{
	/* functions of libcudadevrt that a <<<>>> in a kernel calls */
	if (starts_with(name, "__cuda_syscall_cnp") || starts_with(name, "cudaLaunchDevice") ||
	    starts_with(name, "cudaGetParameterBuffer"))
		ptx_fail(-ENOTSUP, call->line,
			 "kernels that launch kernels (dynamic parallelism) are not supported: call of %s",
			 name);
	ptx_fail(-ENOENT, call->line, "extern function %s has no definition", name);
}

/* Marks functions that can reach themselves by direct calls. */
static void find_recursion(struct builder *b, struct pfunc *f, unsigned int depth)
{
	struct parsed *p = parsed(b, f);
	uint32_t i;

	if (p->visited)
		return;
	if (depth > 2000)
		ptx_fail(-ENOTSUP, f->line, "calls nested too deeply");
	p->visited = p->on_stack = true;
	for (i = 0; i < p->b->ninsn; i++) {
		struct insn *in = &p->b->insn[i];
		struct call_parts c;
		struct pfunc *t;

		if (in->op != OP_call)
			continue;
		call_parts(in, &c);
		t = c.target->kind == O_FUNC ? real_func(c.target->func) : NULL;
		if (c.target->kind == O_NAME)
			ptx_fail(-ENOENT, in->line, "function %s is not defined", c.target->name);
		if (!t)
			continue;
		if (is_builtin(t))
			continue;
		if (!t->body)
			fail_undefined(in, t->name);
		if (b->p[t->ordinal].on_stack)
			b->p[t->ordinal].recursive = true;
		else
			find_recursion(b, t, depth + 1);
	}
	p->on_stack = false;
}

struct ufunc *unit_find(struct unit *u, const struct pfunc *f)
{
	uint32_t i;

	for (i = 0; i < u->nfn; i++)
		if (u->fn[i].f == f)
			return &u->fn[i];
	return NULL;
}

static void unit_add(struct unit *u, struct pfunc *f)
{
	if (unit_find(u, f))
		return;
	if (u->nfn == u->fncap) {
		uint32_t cap = u->fncap ? u->fncap * 2 : 8;
		struct ufunc *fn = ptx_arena_alloc(&u->arena, cap * sizeof(*fn));

		if (u->nfn)
			memcpy(fn, u->fn, u->nfn * sizeof(*fn));
		u->fn = fn;
		u->fncap = cap;
	}
	u->fn[u->nfn++].f = f;
}

/* Lays out return values, then parameters, at the start of the callee's frame. */
uint64_t ptx_call_layout(struct pvar **rets, unsigned int nrets, struct pvar **params,
			 unsigned int nparams, uint64_t *offs)
{
	uint64_t off = 0;
	unsigned int i;

	for (i = 0; i < nrets + nparams; i++) {
		struct pvar *v = i < nrets ? rets[i] : params[i - nrets];
		uint32_t align = v->align < 4 ? 4 : v->align;

		off = (off + align - 1) & ~(uint64_t)(align - 1);
		if (offs)
			offs[i] = off;
		off += v->size;
	}
	return (off + 15) & ~15ull;
}

/* ---- copying with inlining ---- */

static struct insn *emit(struct builder *b, const struct insn *like)
{
	struct pbody *o = b->out;
	struct insn *i;

	if (o->ninsn == o->cap) {
		uint32_t cap = o->cap ? o->cap * 2 : 256;
		struct insn *n = ptx_arena_alloc(o->arena, cap * sizeof(*n));

		if (o->ninsn)
			memcpy(n, o->insn, o->ninsn * sizeof(*n));
		o->insn = n;
		o->cap = cap;
	}
	if (o->ninsn > 4000000)
		ptx_fail(-ENOTSUP, like->line, "function too large");
	i = &o->insn[o->ninsn++];
	*i = *like;
	return i;
}

static uint32_t new_label(struct builder *b, const char *name)
{
	struct pbody *o = b->out;
	struct plabel *l = ptx_arena_alloc(o->arena, sizeof(*l));

	if (o->nlabels == o->labelcap) {
		uint32_t cap = o->labelcap ? o->labelcap * 2 : 64;
		struct plabel **n = ptx_arena_alloc(o->arena, cap * sizeof(*n));

		if (o->nlabels)
			memcpy(n, o->labels, o->nlabels * sizeof(*n));
		o->labels = n;
		o->labelcap = cap;
	}
	l->name = name;
	l->insn = UINT32_MAX;
	l->id = o->nlabels;
	o->labels[o->nlabels++] = l;
	return l->id;
}

static void place_label(struct builder *b, uint32_t id)
{
	b->out->labels[id]->insn = b->out->ninsn;
}

static void emit_bra(struct builder *b, const struct insn *like, uint32_t label, int guard,
		     bool neg)
{
	struct insn *i = emit(b, like);

	i->op = OP_bra;
	i->guard = guard;
	i->guard_neg = neg;
	i->nmod = i->ntypes = 0;
	i->nopnd = 1;
	i->o = ptx_arena_alloc(b->out->arena, sizeof(*i->o));
	i->o->kind = O_LABEL;
	i->o->reg = i->o->reg2 = -1;
	i->o->imm = label;
}

struct inline_ctx {
	struct pbody *b;		/* callee */
	int reg0;
	uint32_t label0;
	struct pvar **vars;		/* by callee variable id */
	int64_t ret_label;		/* -1: a real return */
};

static void map_opnd(struct builder *b, const struct inline_ctx *c, struct opnd *d,
		     const struct opnd *s)
{
	unsigned int i;

	*d = *s;
	if (s->reg >= 0 && (s->kind == O_REG || s->kind == O_MEM))
		d->reg = s->reg + c->reg0;
	if (s->reg2 >= 0)
		d->reg2 = s->reg2 + c->reg0;
	if (s->var && s->var->id < c->b->nvars && c->b->vars[s->var->id] == s->var)
		d->var = c->vars[s->var->id];
	if (s->kind == O_LABEL)
		d->imm = s->imm + c->label0;
	if (s->nvec) {
		d->vec = ptx_arena_alloc(b->out->arena, s->nvec * sizeof(*d));
		for (i = 0; i < s->nvec; i++)
			map_opnd(b, c, &d->vec[i], &s->vec[i]);
	}
}

/* Operations that must not be guarded: see the top of this file. */
static bool wants_jump(const struct insn *i)
{
	switch (i->op) {
	case OP_call: case OP_bar: case OP_barrier: case OP_shfl: case OP_vote: case OP_match:
	case OP_redux: case OP_elect: case OP_trap: case OP_brkpt: case OP_mma: case OP_wmma:
	case OP_ldmatrix: case OP_stmatrix: case OP_movmatrix: case OP_activemask:
	case OP_mbarrier: case OP_brx:
		return true;
	}
	return false;
}

static void copy_body(struct builder *b, struct inline_ctx *c);

static struct pvar *temp_var(struct builder *b, const struct pvar *like)
{
	struct pvar *v = ptx_arena_alloc(b->out->arena, sizeof(*v));

	*v = *like;
	v->alias = NULL;
	v->pieces = NULL;
	v->placed = v->addr_taken = v->promoted = false;
	v->space = V_PARAM;
	v->index = -1;
	return body_add_var(b->out, v);
}

/* st.param [v], o  or  ld.param o, [v] */
static void emit_param(struct builder *b, const struct insn *like, struct pvar *v,
		       const struct opnd *o, bool store)
{
	static const uint16_t mod_param[2] = { M_param, M_UNKNOWN };
	struct insn *i = emit(b, like);
	struct opnd *p = ptx_arena_alloc(b->out->arena, 2 * sizeof(*p));
	enum ptype t = v->type;

	i->op = store ? OP_st : OP_ld;
	i->guard = -1;
	i->nmod = 1;
	i->mods = (uint16_t *)mod_param;
	i->mtype = ptx_arena_alloc(b->out->arena, 16);
	i->mtext = ptx_arena_alloc(b->out->arena, 16);
	i->ntypes = 1;
	i->t[0] = t == T_PRED ? T_U8 : t;
	i->nopnd = 2;
	i->o = p;
	p[store ? 0 : 1] = (struct opnd){ .kind = O_MEM, .reg = -1, .reg2 = -1, .var = v };
	p[store ? 1 : 0] = *o;
}

static void inline_call(struct builder *b, const struct insn *call, const struct call_parts *cp,
			struct pfunc *f)
{
	struct parsed *p = parsed(b, f);
	struct inline_ctx c = { .b = p->b };
	uint32_t i, n = f->nparams + f->nrets, cont;

	if (cp->params->nvec != f->nparams || cp->rets->nvec != f->nrets)
		ptx_fail(-EINVAL, call->line, "call of %s with the wrong number of parameters",
			 f->name);
	if (++b->depth > MAX_INLINE_DEPTH)
		ptx_fail(-ENOTSUP, call->line, "calls nested too deeply");
	c.vars = ptx_arena_alloc(b->out->arena, (p->b->nvars + 1) * sizeof(*c.vars));
	for (i = 0; i < n; i++) {
		const struct opnd *o = i < f->nparams ? &cp->params->vec[i] :
						      &cp->rets->vec[i - f->nparams];
		struct pvar *formal = p->b->vars[i];

		if (o->kind == O_VAR && o->var->space == V_PARAM && !o->imm) {
			c.vars[i] = o->var;
			continue;
		}
		c.vars[i] = temp_var(b, formal);
		if (i < f->nparams)
			emit_param(b, call, c.vars[i], o, true);
	}
	cont = new_label(b, "ret");
	c.ret_label = cont;
	copy_body(b, &c);
	place_label(b, cont);
	for (i = f->nparams; i < n; i++) {
		const struct opnd *o = &cp->rets->vec[i - f->nparams];

		if (o->kind == O_REG)
			emit_param(b, call, c.vars[i], o, false);
	}
	b->depth--;
}

static void copy_insn(struct builder *b, struct inline_ctx *c, const struct insn *s)
{
	struct opnd *o = ptx_arena_alloc(b->out->arena, s->nopnd * sizeof(*o) + 1);
	int guard = s->guard >= 0 ? s->guard + c->reg0 : -1;
	int64_t skip = -1;
	struct insn in = *s, *d;
	unsigned int k;

	for (k = 0; k < s->nopnd; k++)
		map_opnd(b, c, &o[k], &s->o[k]);
	in.o = o;
	in.guard = guard;
	if (s->op == OP_ret && c->ret_label >= 0) {
		emit_bra(b, s, c->ret_label, guard, s->guard_neg);
		return;
	}
	if (guard >= 0 && wants_jump(s)) {
		skip = new_label(b, "skip");
		emit_bra(b, s, skip, guard, !s->guard_neg);
		in.guard = -1;
	}
	if (s->op == OP_call) {
		struct call_parts cp;
		struct pfunc *f;

		call_parts(&in, &cp);
		f = cp.target->kind == O_FUNC ? real_func(cp.target->func) : NULL;
		if (f && !is_builtin(f)) {
			struct parsed *p = parsed(b, f);

			if (!p->recursive && p->b->ninsn <= INLINE_CALLEE &&
			    b->out->ninsn + p->b->ninsn <= INLINE_TOTAL) {
				inline_call(b, &in, &cp, f);
				goto out;
			}
			cp.target->func = f;
			unit_add(b->u, f);
		}
		if (!f)
			b->u->indirect = true;
		b->u->has_calls = true;
	}
	d = emit(b, &in);
	if (in.op == OP_call) {		/* one shape: rets, target, params, prototype */
		struct call_parts cp;
		struct opnd *n = ptx_arena_alloc(b->out->arena, 4 * sizeof(*n));

		call_parts(&in, &cp);
		n[0] = *cp.rets;
		n[1] = *cp.target;
		n[2] = *cp.params;
		if (cp.proto)
			n[3] = *cp.proto;
		d->o = n;
		d->nopnd = 4;
	}
out:
	if (skip >= 0)
		place_label(b, skip);
}

static void copy_body(struct builder *b, struct inline_ctx *c)
{
	struct pbody *s = c->b, *o = b->out;
	uint32_t i, l, n = s->nlabels;
	uint32_t *at = ptx_arena_alloc(o->arena, (s->ninsn + 2) * sizeof(*at));

	c->reg0 = o->nregs;
	for (i = 0; i < s->nregs; i++)
		body_new_reg(o, s->regtype[i], s->regname[i]);
	for (i = 0; i < s->nvars; i++)
		if (!c->vars[i]) {
			struct pvar *v = ptx_arena_alloc(o->arena, sizeof(*v));

			*v = *s->vars[i];
			if (v->space == V_SHARED)	/* one copy per function, not per call */
				v = s->vars[i];
			else
				body_add_var(o, v);
			c->vars[i] = v;
		}
	c->label0 = o->nlabels;
	for (i = 0; i < n; i++)
		new_label(b, s->labels[i]->name);
	/* labels by instruction: chain through at[] */
	memset(at, 0xff, (s->ninsn + 1) * sizeof(*at));
	for (l = 0; l < n; l++) {
		s->labels[l]->next = at[s->labels[l]->insn] == UINT32_MAX ? NULL :
				     s->labels[at[s->labels[l]->insn]];
		at[s->labels[l]->insn] = l;
	}
	for (i = 0; i <= s->ninsn; i++) {
		if (at[i] != UINT32_MAX) {
			struct plabel *x;

			for (x = s->labels[at[i]]; x; x = x->next)
				place_label(b, c->label0 + x->id);
		}
		if (i < s->ninsn)
			copy_insn(b, c, &s->insn[i]);
	}
}

/* Collects the branch-target and prototype lists of all inlined bodies. */
static void join_targets(struct builder *b, struct pbody *out)
{
	uint32_t i;

	for (i = 0; i < b->u->m->nfuncs; i++) {
		struct pbody *s = b->p[i].b;
		struct ptargets *t, *next;

		for (t = s ? s->targets : NULL; t; t = next) {
			struct ptargets *c = ptx_arena_alloc(out->arena, sizeof(*c));

			next = t->next;
			*c = *t;
			c->next = out->targets;
			out->targets = c;
		}
	}
}

/* ---- parameters of calls ---- */

static bool mem_space_is_param(const struct insn *i)
{
	return insn_has(i, M_param) || insn_has(i, M_param_func) || insn_has(i, M_param_entry);
}

static void take_addr(const struct opnd *o)
{
	unsigned int k;

	if (o->kind == O_VAR)
		o->var->addr_taken = true;
	for (k = 0; k < o->nvec; k++)
		take_addr(&o->vec[k]);
}

static void note_piece(struct pbody *b, struct pvar *v, uint64_t off, enum ptype t)
{
	unsigned int size = ptype_size(t);
	struct ppiece *p;

	for (p = v->pieces; p; p = p->next) {
		if (p->off == off && p->size == size)
			return;
		if (off < p->off + p->size && p->off < off + size) {
			v->addr_taken = true;	/* shapes differ: stays in memory */
			return;
		}
	}
	p = ptx_arena_alloc(b->arena, sizeof(*p));
	p->off = off;
	p->size = size;
	p->next = v->pieces;
	v->pieces = p;
}

static unsigned int vec_of(const struct insn *i)
{
	return insn_has(i, M_v2) ? 2 : insn_has(i, M_v4) ? 4 : insn_has(i, M_v8) ? 8 : 1;
}

static void promote_params(struct pbody *b)
{
	static const enum ptype bits[] = { [1] = T_B16, [2] = T_B16, [4] = T_B32, [8] = T_B64,
					   [16] = T_B128 };
	uint32_t i, k, n;

	for (i = 0; i < b->ninsn; i++) {
		struct insn *in = &b->insn[i];

		for (k = 0; k < in->nopnd; k++) {
			struct opnd *o = &in->o[k];

			if (in->op != OP_ld && in->op != OP_st && o->kind == O_MEM && o->var)
				o->var->addr_taken = true;
			if (o->kind == O_MEM && o->var && o->var->space == V_PARAM &&
			    (in->op == OP_ld || in->op == OP_st) && in->ntypes) {
				n = vec_of(in);
				if (!mem_space_is_param(in) || o->reg >= 0)
					o->var->addr_taken = true;
				while (n--)
					note_piece(b, o->var, o->imm + n * ptype_size(in->t[0]),
						   in->t[0]);
			}
			take_addr(o);
		}
	}
	for (i = 0; i < b->nvars; i++) {
		struct pvar *v = b->vars[i];
		struct ppiece *p;

		if (v->space != V_PARAM || v->addr_taken || v->placed)
			continue;
		v->promoted = true;
		for (p = v->pieces; p; p = p->next)
			p->reg = body_new_reg(b, bits[p->size], v->name);
	}
}

/* ---- what the launch must know ---- */

/* bar.warp.sync */
static bool insn_is_warp_barrier(const struct insn *i)
{
	return i->nmod && !strcmp(i->mtext[0], "warp");
}

static void scan_insn(struct unit *u, struct pbody *b, struct insn *i, const uint8_t *used)
{
	bool shared = insn_is_shared(i);
	bool flt = i->ntypes && (ptype_is_float(i->t[0]) || i->t[0] == T_F16X2 ||
				 i->t[0] == T_BF16X2);
	unsigned int k;

	(void)b;
	switch (i->op) {
	case OP_bar:
	case OP_barrier:
		if (!insn_is_warp_barrier(i))
			u->info.barriers = true;
		break;
	case OP_mbarrier:
		u->info.barriers = true;
		break;
	case OP_atom:
		if (!shared && (flt || insn_has(i, M_exch) || insn_has(i, M_cas) ||
				insn_has(i, M_inc) || insn_has(i, M_dec) ||
				(i->o[0].kind == O_REG && used[i->o[0].reg])))
			u->info.ordered = true;
		break;
	case OP_red:
		if (!shared && (flt || insn_has(i, M_inc) || insn_has(i, M_dec)) &&
		    !insn_has(i, M_async))
			u->info.ordered = true;
		break;
	case OP_cp:
		if (insn_has(i, M_reduce) && insn_has(i, M_global) &&
		    (flt || insn_has(i, M_inc) || insn_has(i, M_dec) || insn_has(i, M_tensor)))
			u->info.ordered = true;
		if (insn_has(i, M_mbarrier))
			u->info.barriers = true;
		break;
	case OP_ld:
		if (!shared && insn_is_strong(i))
			u->info.ordered = true;
		break;
	case OP_trap:
		u->info.uses_trap = true;
		break;
	case OP_call:
		if (i->o[1].kind == O_FUNC) {
			const char *n = i->o[1].func->name;

			if (!i->o[1].func->body && !strcmp(n, "vprintf"))
				u->info.uses_printf = u->info.ordered = true;
			else if (!i->o[1].func->body && (!strcmp(n, "malloc") ||
							 !strcmp(n, "free")))
				u->info.uses_malloc = u->info.ordered = true;
			else if (!i->o[1].func->body)
				u->info.uses_trap = true;
		}
		break;
	}
	for (k = 0; k < i->nopnd; k++) {
		struct opnd *o = &i->o[k];

		if (o->kind == O_SREG && o->sreg >= SR_envreg0 && o->sreg <= SR_envreg31)
			u->info.grid_sync = true;
		if (o->kind == O_SREG && o->sreg >= SR_reserved_smem_offset_begin &&
		    o->sreg <= SR_reserved_smem_offset_1)
			u->info.reserved_shared = true;
	}
}

static void mark_used(uint8_t *used, const struct opnd *o)
{
	unsigned int k;

	if ((o->kind == O_REG || o->kind == O_MEM) && o->reg >= 0)
		used[o->reg] = 1;
	for (k = 0; k < o->nvec; k++)
		mark_used(used, &o->vec[k]);
}

/* The shared variables that a unit uses, in the order of their declarations. */
struct shared_vars {
	struct pvar **v;
	uint32_t n, cap, dyn_align;
};

static void add_shared(struct unit *u, struct shared_vars *s, struct pvar *v)
{
	if (v->placed)
		return;
	v->placed = true;
	if (s->n == s->cap) {
		struct pvar **more;

		s->cap = s->cap ? 2 * s->cap : 16;
		more = ptx_arena_alloc(&u->arena, s->cap * sizeof(*more));
		if (s->n)
			memcpy(more, s->v, s->n * sizeof(*more));
		s->v = more;
	}
	v->offset = s->n;	/* until it is placed: who was used first */
	s->v[s->n++] = v;
}

static int by_declaration(const void *a, const void *b)
{
	const struct pvar *v = *(struct pvar *const *)a, *w = *(struct pvar *const *)b;

	if (v->order != w->order)
		return v->order < w->order ? -1 : 1;
	return v->offset < w->offset ? -1 : v->offset > w->offset;	/* of two functions */
}

/* Programs rely on the order: cuDNN reads 16 bytes at once from arrays aligned to 4, the first ones. */
static void place_shared(struct unit *u, struct pvar *v)
{
	uint32_t align = v->align ? v->align : 1;

	u->shared = (u->shared + align - 1) & ~(align - 1);
	v->offset = u->shared;
	if (v->size > 1 << 20 || u->shared + v->size > 1 << 20)
		ptx_fail(-EINVAL, 0, "shared variable %s is too large", v->name);
	u->shared += v->size;
}

static void layout_opnd(struct unit *u, struct opnd *o, struct shared_vars *s)
{
	unsigned int k;

	if (o->var && o->var->space == V_SHARED) {
		add_shared(u, s, o->var);
		if (o->var->dynamic) {
			u->info.dyn_shared = true;
			if (o->var->align > s->dyn_align)
				s->dyn_align = o->var->align;
		}
	}
	for (k = 0; k < o->nvec; k++)
		layout_opnd(u, &o->vec[k], s);
}

/* Offsets of module-level shared variables are stored in the module, anew for each unit, under the
 * module's lock. */
static void reset_shared(struct unit *u)
{
	uint32_t i, k, j;

	for (i = 0; i < u->nfn; i++)
		for (j = 0; j < u->fn[i].b->ninsn; j++)
			for (k = 0; k < u->fn[i].b->insn[j].nopnd; k++) {
				struct opnd *o = &u->fn[i].b->insn[j].o[k];

				if (o->var && o->var->space == V_SHARED)
					o->var->placed = false;
			}
}

static void layout_frame(struct unit *u, struct ufunc *f)
{
	uint64_t off = 0;
	uint32_t i;

	if (f != u->fn) {
		uint64_t offs[64];

		if (f->f->nrets + f->f->nparams > 64)
			ptx_fail(-ENOTSUP, f->f->line, "%s has too many parameters", f->f->name);
		off = ptx_call_layout(f->f->rets, f->f->nrets, f->f->params, f->f->nparams, offs);
		for (i = 0; i < f->f->nparams; i++)
			f->b->vars[i]->offset = offs[f->f->nrets + i];
		for (i = 0; i < f->f->nrets; i++)
			f->b->vars[f->f->nparams + i]->offset = offs[i];
	}
	for (i = 0; i < f->b->nvars; i++) {
		struct pvar *v = f->b->vars[i];
		uint32_t align = v->align < 4 ? 4 : v->align;

		if (v->placed || v->promoted || (v->space != V_LOCAL && v->space != V_PARAM))
			continue;
		off = (off + align - 1) & ~(uint64_t)(align - 1);
		v->offset = off;
		v->placed = true;
		off += v->size;
		if (off > 512u << 10)	/* as on every GPU */
			ptx_fail(-ENOTSUP, f->f->line, "%s needs too much local memory",
				 f->f->name);
	}
	f->frame = (off + 15) & ~15ull;
	if (f->frame > u->info.local_bytes)
		u->info.local_bytes = f->frame;
}

static void build_func(struct builder *b, uint32_t idx)
{
	struct unit *u = b->u;
	struct pfunc *f = u->fn[idx].f;
	struct parsed *p = parsed(b, f);
	struct inline_ctx c = { .b = p->b, .ret_label = -1 };
	struct pbody *out = ptx_arena_alloc(&u->arena, sizeof(*out));
	uint32_t i;

	out->arena = &u->arena;
	b->out = out;
	b->depth = 0;
	c.vars = ptx_arena_alloc(&u->arena, (p->b->nvars + 1) * sizeof(*c.vars));
	for (i = 0; i < f->nparams + f->nrets; i++) {
		struct pvar *v = ptx_arena_alloc(&u->arena, sizeof(*v));

		*v = *p->b->vars[i];
		v->placed = true;	/* formals are memory: layout_frame or the launch */
		c.vars[i] = body_add_var(out, v);
	}
	copy_body(b, &c);
	join_targets(b, out);
	promote_params(out);
	u->fn[idx].b = out;
}

static void scan_indirect(struct builder *b)
{
	struct unit *u = b->u;
	struct ptx_module *m = u->m;
	uint32_t i, j, k;

	for (i = 0; i < m->nfuncs; i++) {	/* functions whose address some body takes */
		struct pfunc *f = m->funcs[i];
		struct pbody *p;

		if (!f->body || f->alias)
			continue;
		p = parsed(b, f)->b;
		for (j = 0; j < p->ninsn; j++)
			for (k = 0; k < p->insn[j].nopnd; k++)
				if (p->insn[j].op != OP_call && p->insn[j].o[k].kind == O_FUNC)
					p->insn[j].o[k].func->addr_taken = true;
	}
	for (i = 0; i < m->nfuncs; i++) {
		struct pfunc *f = real_func(m->funcs[i]);

		if (m->funcs[i]->addr_taken && f->body && !f->is_entry) {
			find_recursion(b, f, 0);
			unit_add(u, f);
		}
	}
}

static void layout_unit(struct unit *u)
{
	struct shared_vars s = { .dyn_align = 1 };
	uint32_t i, j, k;

	reset_shared(u);
	for (i = 0; i < u->nfn; i++) {
		struct pbody *b = u->fn[i].b;

		for (j = 0; j < b->ninsn; j++)
			for (k = 0; k < b->insn[j].nopnd; k++)
				layout_opnd(u, &b->insn[j].o[k], &s);
		layout_frame(u, &u->fn[i]);
	}
	if (s.n)
		qsort(s.v, s.n, sizeof(*s.v), by_declaration);
	for (i = 0; i < s.n; i++)
		if (!s.v[i]->dynamic)	/* which follows the static part */
			place_shared(u, s.v[i]);
	if (u->info.dyn_shared) {
		u->shared = (u->shared + s.dyn_align - 1) & ~(s.dyn_align - 1);
		for (i = 0; i < u->nfn; i++)
			for (j = 0; j < u->fn[i].b->ninsn; j++)
				for (k = 0; k < u->fn[i].b->insn[j].nopnd; k++) {
					struct opnd *o = &u->fn[i].b->insn[j].o[k];

					if (o->var && o->var->space == V_SHARED && o->var->dynamic)
						o->var->offset = u->shared;
				}
	}
	u->info.static_shared = u->shared;
}

static void scan_unit(struct unit *u)
{
	uint32_t i, j, k;

	for (i = 0; i < u->nfn; i++) {
		struct pbody *b = u->fn[i].b;
		uint8_t *used = ptx_arena_alloc(&u->arena, b->nregs + 1);

		for (j = 0; j < b->ninsn; j++) {
			struct insn *in = &b->insn[j];

			for (k = in->op == OP_st || in->op == OP_red ? 0 : 1; k < in->nopnd; k++)
				mark_used(used, &in->o[k]);
			if (in->guard >= 0)
				used[in->guard] = 1;
		}
		for (j = 0; j < b->ninsn; j++)
			scan_insn(u, b, &b->insn[j], used);
	}
}

/* Reads, without the turn, memory that another block may write meanwhile. */
static bool reads_out_of_turn(const struct insn *i)
{
	switch (i->op) {
	case OP_ld:
		return !insn_has(i, M_nc) && !insn_is_shared(i) && !insn_has(i, M_local) &&
		       !insn_has(i, M_param) && !insn_has(i, M_const) && !insn_needs_turn(i);
	case OP_cp: case OP_suld: case OP_call:
		return true;
	}
	return false;
}

/*
 * Whether an ordered kernel's blocks may run in parallel and take turns only where they communicate
 * (rt/turns.c).  A block must read other blocks' writes in its turn only, so that the order of
 * turns decides.  A kernel without barriers, at which turns end, would gain nothing.
 */
static bool can_take_turns(const struct unit *u)
{
	const struct pbody *b = u->fn->b;
	uint32_t i;

	if (!u->info.ordered || !u->info.barriers || u->info.uses_printf || u->info.uses_malloc ||
	    u->info.grid_sync || u->nfn > 1 || u->indirect)
		return false;
	for (i = 0; i < b->ninsn; i++)
		if (reads_out_of_turn(&b->insn[i]))
			return false;
	return true;
}

/* Called under a ptx_guard and with the module locked. */
int ptx_unit_build(struct unit *u, struct ptx_module *m, struct pfunc *entry)
{
	struct builder b = { .u = u };
	bool scanned = false;
	uint32_t i;

	u->m = m;
	b.p = ptx_arena_alloc(&u->arena, (m->nfuncs + 1) * sizeof(*b.p));
	find_recursion(&b, entry, 0);
	unit_add(u, entry);
	for (i = 0; i < u->nfn; i++) {
		find_recursion(&b, u->fn[i].f, 0);
		build_func(&b, i);
		if (u->indirect && !scanned) {
			scanned = true;
			scan_indirect(&b);
		}
	}
	layout_unit(u);
	if (u->layout_only)
		return 0;
	scan_unit(u);
	u->info.turns = can_take_turns(u);
	u->info.num_regs = 32;
	for (i = 0; i < u->nfn; i++)
		ptx_analyse(u, &u->fn[i]);
	return 0;
}
