// SPDX-License-Identifier: Apache-2.0
/*
 * body.c - a function's body: registers, variables, labels and instructions.
 *
 * Names are resolved while reading, except labels and target lists, which may follow their use.  A
 * scope is a number; scope_parent[] gives the outer scope, by which labels are resolved later.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_lex.h"

const char *const ptx_op_name[] = {
	"?",
#define OP(name, text) text,
#include "ptx_ops.def"
#undef OP
};

static const char *const ptx_mod_name[] = {
	"?",
#define MOD(name, text) text,
#include "ptx_mods.def"
#undef MOD
};

static const char *const sreg_name[] = {
	"?",
#define SREG(name, text) text,
#include "ptx_sregs.def"
#undef SREG
};

enum { MAX_OPERANDS = 32, MAX_VEC = 1024, MAX_DEPTH = 64 };

struct name_ent {		/* a live name: register(s) or variable */
	const char *name;
	size_t n;
	int reg;		/* first register, or -1 */
	int count;		/* -1: one name; else name0 ... name(count-1) */
	int vec;		/* vector registers: elements */
	struct pvar *var;
};

struct body_parse {
	struct ptx_module *m;
	struct pfunc *f;
	struct pbody *b;
	struct arena *a;
	struct lex *l;
	struct name_ent *ent;
	uint32_t nent, entcap;
	uint32_t scope;
	int depth;
};

/* Small open hash of fixed words, made once. */
#define WORDS 1024
static struct word {
	const char *s;
	uint16_t v;
} op_hash[WORDS], mod_hash[WORDS], sreg_hash[WORDS];
static pthread_once_t words_once = PTHREAD_ONCE_INIT;

static uint32_t word_hash(const char *s, size_t n)
{
	uint32_t h = 5381;

	while (n--)
		h = h * 33 ^ (uint8_t)*s++;
	return (h ^ h >> 11) % WORDS;
}

static void word_add(struct word *t, const char *s, uint16_t v)
{
	uint32_t i = word_hash(s, strlen(s));

	while (t[i].s)
		i = (i + 1) % WORDS;
	t[i].s = s;
	t[i].v = v;
}

static uint16_t word_find(const struct word *t, const char *s, size_t n)
{
	uint32_t i = word_hash(s, n);

	for (; t[i].s; i = (i + 1) % WORDS)
		if (strlen(t[i].s) == n && !memcmp(t[i].s, s, n))
			return t[i].v;
	return 0;
}

static void words_init(void)
{
	int i;

	for (i = 1; i < OP_COUNT; i++)
		word_add(op_hash, ptx_op_name[i], i);
	for (i = 1; i < M_COUNT; i++)
		word_add(mod_hash, ptx_mod_name[i], i);
	for (i = 1; i < SR_COUNT; i++)
		word_add(sreg_hash, sreg_name[i], i);
}

bool insn_has(const struct insn *i, enum ptx_mod m)
{
	unsigned int k;

	for (k = 0; k < i->nmod; k++)
		if (i->mods[k] == m)
			return true;
	return false;
}

const char *insn_str(const struct insn *i, char *buf, size_t n)
{
	size_t k = 0;

	while (k + 1 < n && i->text && i->text[k] && !strchr(" \t\r\n;", i->text[k])) {
		buf[k] = i->text[k];
		k++;
	}
	buf[k] = 0;
	return buf;
}

static void *body_grow(struct arena *a, void *old, uint32_t n, uint32_t *cap, size_t each)
{
	void *p;

	if (n < *cap)
		return old;
	*cap = *cap ? *cap * 2 : 32;
	p = ptx_arena_alloc(a, *cap * each);
	if (n)
		memcpy(p, old, n * each);
	return p;
}

int body_new_reg(struct pbody *b, enum ptype t, const char *name)
{
	uint32_t cap = b->regcap;

	if (b->nregs >= 1u << 24)
		ptx_fail(-ENOTSUP, 0, "too many registers");
	b->regtype = body_grow(b->arena, b->regtype, b->nregs, &cap, 1);
	b->regname = body_grow(b->arena, b->regname, b->nregs, &b->regcap, sizeof(char *));
	b->regtype[b->nregs] = t;
	b->regname[b->nregs] = name;
	return b->nregs++;
}

struct pvar *body_add_var(struct pbody *b, struct pvar *v)
{
	b->vars = body_grow(b->arena, b->vars, b->nvars, &b->varcap, sizeof(*b->vars));
	v->id = b->nvars;
	b->vars[b->nvars++] = v;
	return v;
}

static struct name_ent *add_ent(struct body_parse *p, const char *s, size_t n)
{
	struct name_ent *e;

	p->ent = body_grow(p->a, p->ent, p->nent, &p->entcap, sizeof(*p->ent));
	e = &p->ent[p->nent++];
	memset(e, 0, sizeof(*e));
	e->name = s;
	e->n = n;
	e->reg = -1;
	e->count = -1;
	return e;
}

/* The innermost entry of that name; for name<count> also the register's index. */
static struct name_ent *find_ent(struct body_parse *p, const char *s, size_t n, int *idx)
{
	size_t base = n;
	uint64_t num = 0, scale = 1;
	int64_t i;

	while (base && s[base - 1] >= '0' && s[base - 1] <= '9' && scale < 1000000000) {
		num += (s[base - 1] - '0') * scale;
		scale *= 10;
		base--;
	}
	if (base < n - 1 && s[base] == '0')
		base = n;	/* %r01 is no member of %r<n> */
	*idx = 0;
	for (i = (int64_t)p->nent - 1; i >= 0; i--) {
		struct name_ent *e = &p->ent[i];

		if (e->count < 0) {
			if (e->n == n && !memcmp(e->name, s, n))
				return e;
		} else if (base < n && e->n == base && num < (uint64_t)e->count &&
			   !memcmp(e->name, s, base)) {
			*idx = num;
			return e;
		}
	}
	return NULL;
}

static void parse_reg(struct body_parse *p)
{
	struct lex *l = p->l;
	enum ptype t = T_NONE;
	int vec = 1, i, n;

	lex_next(l);
	while (l->t.kind == TOK_DOT) {
		if (lex_dot(l, "v2") || lex_dot(l, "v4"))
			vec = l->t.s[1] - '0';
		else if (lex_dot(l, "align"))
			lex_next(l);
		else if ((t = ptype_parse(l->t.s, l->t.n)) == T_NONE)
			lex_bad(l, "unknown register type");
		lex_next(l);
	}
	do {
		struct name_ent *e;

		if (l->t.kind != TOK_ID || t == T_NONE)
			lex_bad(l, "expected a register's name");
		e = add_ent(p, l->t.s, l->t.n);
		e->vec = vec;
		lex_next(l);
		n = 1;
		if (lex_take(l, '<')) {
			if (l->t.kind != TOK_INT || l->t.v < 0 || l->t.v > 1 << 22)
				lex_bad(l, "bad register count");
			e->count = n = l->t.v;
			lex_next(l);
			lex_want(l, '>');
		}
		e->reg = p->b->nregs;
		for (i = 0; i < n * vec; i++)
			body_new_reg(p->b, t, e->name);
	} while (lex_take(l, ','));
	lex_want(l, ';');
}

static void parse_local_var(struct body_parse *p, enum vspace space)
{
	struct lex *l = p->l;

	lex_next(l);
	do {
		struct pvar *v = ptx_parse_decl(l, p->a, space, NULL);
		struct name_ent *e = add_ent(p, v->name, strlen(v->name));

		if (v->dynamic && space != V_SHARED)
			lex_bad(l, "unsized variable");
		e->var = body_add_var(p->b, v);
		v->order = ORDER_LOCAL + v->id;
	} while (lex_take(l, ','));
	lex_want(l, ';');
}

static void parse_opnd(struct body_parse *p, struct opnd *o);

static void parse_opnd_list(struct body_parse *p, struct opnd *o, char close)
{
	struct opnd *v = NULL;
	uint32_t n = 0, cap = 0;

	if (++p->depth > MAX_DEPTH)
		lex_bad(p->l, "nested too deeply");
	while (!lex_is(p->l, close)) {
		v = body_grow(p->a, v, n, &cap, sizeof(*v));
		parse_opnd(p, &v[n++]);
		if (n > 255)
			lex_bad(p->l, "too many operands");
		if (!lex_take(p->l, ','))
			break;
	}
	lex_want(p->l, close);
	p->depth--;
	o->vec = v;
	o->nvec = n;
}

static void resolve_name(struct body_parse *p, struct opnd *o, const char *s, size_t n)
{
	struct lex *l = p->l;
	struct name_ent *e;
	struct psym *y;
	char full[64];
	int idx;

	o->kind = O_NAME;
	if (n == 1 && *s == '_') {
		o->kind = O_NONE;
		return;
	}
	e = find_ent(p, s, n, &idx);
	if (e && e->reg >= 0) {
		o->kind = O_REG;
		o->reg = e->reg + idx * e->vec;
		if (e->vec > 1) {
			static const char comp[] = "xyzwrgba";
			const char *c;

			if (l->t.kind == TOK_DOT && l->t.n == 1 && (c = strchr(comp, *l->t.s)) &&
			    (c - comp) % 4 < e->vec) {
				o->reg += (c - comp) % 4;
				lex_next(l);
			} else {
				int i;

				o->kind = O_VEC;
				o->nvec = e->vec;
				o->vec = ptx_arena_alloc(p->a, e->vec * sizeof(*o));
				for (i = 0; i < e->vec; i++) {
					o->vec[i].kind = O_REG;
					o->vec[i].reg = o->reg + i;
					o->vec[i].reg2 = -1;
				}
			}
		}
		return;
	}
	if (e) {
		o->kind = O_VAR;
		o->var = e->var;
		return;
	}
	if (*s == '%') {
		if (l->t.kind == TOK_DOT && n + l->t.n + 1 < sizeof(full)) {
			snprintf(full, sizeof(full), "%.*s.%.*s", (int)n, s, (int)l->t.n, l->t.s);
			o->sreg = word_find(sreg_hash, full, strlen(full));
			if (o->sreg) {
				lex_next(l);
				o->kind = O_SREG;
				return;
			}
		}
		o->sreg = word_find(sreg_hash, s, n);
		if (o->sreg) {
			o->kind = O_SREG;
			return;
		}
		ptx_fail(-EINVAL, l->t.line, "unknown register %.*s", (int)n, s);
	}
	if (n == 7 && !memcmp(s, "WARP_SZ", 7)) {
		o->kind = O_IMM;
		o->imm = 32;
		return;
	}
	y = ptx_lookup(p->m, p->f->src, s, n);
	if (y && y->var) {
		o->kind = O_VAR;
		o->var = y->var;
		return;
	}
	if (y && y->func) {
		o->kind = O_FUNC;
		o->func = y->func;
	}
	o->name = ptx_arena_str(p->a, s, n);
}

static void parse_offset(struct body_parse *p, struct opnd *o)
{
	struct lex *l = p->l;

	while (lex_is(l, '+') || lex_is(l, '-')) {
		bool neg = lex_is(l, '-');

		lex_next(l);
		if (lex_take(l, '-'))
			neg = !neg;
		if (l->t.kind != TOK_INT)
			lex_bad(l, "expected an offset");
		o->imm += neg ? -(uint64_t)l->t.v : (uint64_t)l->t.v;
		lex_next(l);
	}
}

/* [reg], [reg+8], [var+8], [imm], [tex, {x, y}] */
static void parse_mem(struct body_parse *p, struct opnd *o)
{
	struct lex *l = p->l;
	struct opnd in = { .reg = -1, .reg2 = -1 };

	parse_opnd(p, &in);
	o->kind = O_MEM;
	o->reg = -1;
	o->reg2 = -1;
	if (in.kind == O_REG) {
		o->reg = in.reg;
	} else if (in.kind == O_VAR) {
		o->var = in.var;
	} else if (in.kind != O_IMM) {
		lex_bad(l, "bad address");
	}
	o->imm = in.imm;
	parse_offset(p, o);
	if (lex_take(l, ',')) {		/* further parts, as of tex */
		struct opnd list = { 0 };

		parse_opnd_list(p, &list, ']');
		o->vec = list.vec;
		o->nvec = list.nvec;
		return;
	}
	lex_want(l, ']');
}

/* d|p */
static void parse_second(struct body_parse *p, struct opnd *o)
{
	struct opnd q;

	if (!lex_take(p->l, '|'))
		return;
	parse_opnd(p, &q);
	if (q.kind != O_REG && q.kind != O_NONE)
		lex_bad(p->l, "expected a register after |");
	o->reg2 = q.kind == O_REG ? q.reg : -1;
}

static void parse_one_opnd(struct body_parse *p, struct opnd *o)
{
	struct lex *l = p->l;
	const char *s;
	size_t n;

	memset(o, 0, sizeof(*o));
	o->reg = o->reg2 = -1;
	if (lex_is(l, '-') || lex_is(l, '!') || lex_is(l, '~')) {
		char c = l->t.v;

		lex_next(l);
		parse_opnd(p, o);
		if (o->kind == O_IMM)
			o->imm = c == '-' ? (int64_t)-(uint64_t)o->imm :
				 c == '~' ? ~o->imm : !o->imm;
		else if (o->kind == O_F64 && c == '-')
			o->imm ^= INT64_MIN;
		else if (o->kind == O_F32 && c == '-')
			o->imm ^= 0x80000000ll;
		else if (o->kind == O_REG)
			o->neg = !o->neg;
		else
			lex_bad(l, "bad negation");
		return;
	}
	switch (l->t.kind) {
	case TOK_INT:
	case TOK_F32:
	case TOK_F64:
		o->kind = l->t.kind == TOK_INT ? O_IMM : l->t.kind == TOK_F32 ? O_F32 : O_F64;
		o->imm = l->t.v;
		lex_next(l);
		return;
	case TOK_ID:
		s = l->t.s;
		n = l->t.n;
		lex_next(l);
		resolve_name(p, o, s, n);
		parse_second(p, o);
		if (o->kind == O_VAR)
			parse_offset(p, o);
		return;
	case TOK_PUNCT:
		if (lex_take(l, '{')) {
			o->kind = O_VEC;
			parse_opnd_list(p, o, '}');
			parse_second(p, o);
			return;
		}
		if (lex_take(l, '(')) {
			o->kind = O_LIST;
			parse_opnd_list(p, o, ')');
			return;
		}
		if (lex_take(l, '[')) {
			parse_mem(p, o);
			return;
		}
		/* fallthrough */
	default:
		lex_bad(l, "bad operand");
	}
}

static void parse_opnd(struct body_parse *p, struct opnd *o)
{
	if (++p->depth > MAX_DEPTH)
		lex_bad(p->l, "nested too deeply");
	parse_one_opnd(p, o);
	p->depth--;
}

static struct insn *new_insn(struct body_parse *p)
{
	struct pbody *b = p->b;
	struct insn *i;

	b->insn = body_grow(b->arena, b->insn, b->ninsn, &b->cap, sizeof(*i));
	i = &b->insn[b->ninsn++];
	memset(i, 0, sizeof(*i));
	i->guard = -1;
	return i;
}

static void parse_mods(struct body_parse *p, struct insn *i)
{
	struct lex *l = p->l;
	uint16_t mods[24];
	uint8_t mt[24];
	const char *text[24];
	unsigned int n = 0;

	while (l->t.kind == TOK_DOT && n < 24) {
		mods[n] = word_find(mod_hash, l->t.s, l->t.n);
		mt[n] = ptype_parse(l->t.s, l->t.n);
		text[n] = mods[n] ? ptx_mod_name[mods[n]] : ptx_arena_str(p->a, l->t.s, l->t.n);
		if (mt[n] && i->ntypes < 4)
			i->t[i->ntypes++] = mt[n];
		n++;
		lex_next(l);
	}
	i->nmod = n;
	i->mods = ptx_arena_alloc(p->a, n * sizeof(*mods) + n + n * sizeof(char *) + 16);
	i->mtext = (const char **)i->mods;
	i->mods = (uint16_t *)(i->mtext + n);
	i->mtype = (uint8_t *)(i->mods + n);
	memcpy(i->mods, mods, n * sizeof(*mods));
	memcpy(i->mtype, mt, n);
	memcpy(i->mtext, text, n * sizeof(*text));
}

static void parse_insn(struct body_parse *p, int guard, bool guard_neg)
{
	struct lex *l = p->l;
	struct insn *i = new_insn(p);
	struct opnd o[MAX_OPERANDS];
	unsigned int n = 0;

	i->guard = guard;
	i->guard_neg = guard_neg;
	i->line = l->t.line;
	i->text = l->t.s;
	i->scope = p->scope;
	i->op = word_find(op_hash, l->t.s, l->t.n);
	lex_next(l);
	parse_mods(p, i);
	if (i->op == OP_UNKNOWN) {	/* reported only if this function is compiled */
		while (!lex_is(l, ';') && l->t.kind != TOK_END)
			lex_next(l);
	}
	while (!lex_is(l, ';')) {
		if (n == MAX_OPERANDS)
			lex_bad(l, "too many operands");
		parse_opnd(p, &o[n++]);
		if (!lex_take(l, ',')) {
			if (lex_is(l, '{') || lex_is(l, '('))	/* call (r) f (..) */
				continue;
			break;
		}
	}
	lex_want(l, ';');
	i->nopnd = n;
	i->o = ptx_arena_alloc(p->a, n * sizeof(*o) + 1);
	memcpy(i->o, o, n * sizeof(*o));
}

static void add_label(struct body_parse *p, const char *s, size_t n)
{
	struct plabel *lab = ptx_arena_alloc(p->a, sizeof(*lab));
	struct pbody *b = p->b;
	uint32_t h;

	lab->name = ptx_arena_str(p->a, s, n);
	lab->scope = p->scope;
	lab->insn = b->ninsn;
	lab->id = b->nlabels;
	h = word_hash(s, n) % 64;
	lab->next = b->hash[h];
	b->hash[h] = lab;
	b->labels = body_grow(b->arena, b->labels, b->nlabels, &b->labelcap, sizeof(lab));
	b->labels[b->nlabels++] = lab;
}

static void parse_proto(struct body_parse *p, struct ptargets *t)
{
	struct lex *l = p->l;

	t->is_proto = true;
	lex_next(l);
	if (lex_is(l, '('))
		t->rets = ptx_parse_params(l, p->a, V_PARAM, &t->nrets);
	if (l->t.kind == TOK_ID)
		lex_next(l);
	if (lex_is(l, '('))
		t->params = ptx_parse_params(l, p->a, V_PARAM, &t->nparams);
	while (l->t.kind == TOK_DOT) {		/* .noreturn, .abi_preserve n */
		t->noreturn |= lex_dot(l, "noreturn");
		lex_next(l);
		if (l->t.kind == TOK_INT)
			lex_next(l);
	}
	lex_want(l, ';');
}

/* name: .callprototype ... | .branchtargets a, b; | .calltargets f, g; | a label */
static void parse_label(struct body_parse *p, const char *s, size_t n)
{
	struct lex *l = p->l;
	struct ptargets *t;
	uint32_t cap = 0;

	if (!lex_dot(l, "callprototype") && !lex_dot(l, "branchtargets") &&
	    !lex_dot(l, "calltargets")) {
		add_label(p, s, n);
		return;
	}
	t = ptx_arena_alloc(p->a, sizeof(*t));
	t->name = ptx_arena_str(p->a, s, n);
	t->scope = p->scope;
	t->next = p->b->targets;
	p->b->targets = t;
	if (lex_dot(l, "callprototype")) {
		parse_proto(p, t);
		return;
	}
	lex_next(l);
	do {
		if (l->t.kind != TOK_ID)
			lex_bad(l, "expected a name");
		t->names = body_grow(p->a, t->names, t->n, &cap, sizeof(char *));
		t->names[t->n++] = ptx_arena_str(p->a, l->t.s, l->t.n);
		lex_next(l);
	} while (lex_take(l, ','));
	lex_want(l, ';');
}

static void parse_statement(struct body_parse *p)
{
	struct lex *l = p->l;

	if (lex_dot(l, "reg")) {
		parse_reg(p);
	} else if (lex_dot(l, "local")) {
		parse_local_var(p, V_LOCAL);
	} else if (lex_dot(l, "shared")) {
		parse_local_var(p, V_SHARED);
	} else if (lex_dot(l, "param")) {
		parse_local_var(p, V_PARAM);
	} else if (lex_dot(l, "extern")) {
		lex_next(l);
	} else if (lex_dot(l, "loc") || lex_dot(l, "file")) {
		while (l->p < l->end && *l->p != '\n')
			l->p++;
		lex_next(l);
	} else if (lex_dot(l, "pragma")) {
		while (l->t.kind != TOK_END && !lex_is(l, ';'))
			lex_next(l);
		lex_want(l, ';');
	} else if (l->t.kind == TOK_DOT) {
		lex_bad(l, "unsupported directive in a function");
	} else if (lex_take(l, '@')) {
		bool neg = lex_take(l, '!');
		struct opnd g;

		parse_opnd(p, &g);
		if (g.kind != O_REG || l->t.kind != TOK_ID)
			lex_bad(l, "bad guard");
		parse_insn(p, g.reg, neg ^ g.neg);
	} else if (l->t.kind == TOK_ID) {
		const char *s = l->t.s;
		size_t n = l->t.n;
		struct lex save = *l;

		lex_next(l);
		if (lex_take(l, ':')) {
			parse_label(p, s, n);
			return;
		}
		*l = save;
		parse_insn(p, -1, false);
	} else {
		lex_bad(l, "expected a statement");
	}
}

static void parse_block(struct body_parse *p)
{
	struct pbody *b = p->b;
	uint32_t outer = p->scope, mark = p->nent;

	if (++p->depth > MAX_DEPTH)
		lex_bad(p->l, "nested too deeply");
	b->scope_parent = body_grow(b->arena, b->scope_parent, b->nscopes, &b->scopecap,
				    sizeof(uint32_t));
	b->scope_parent[b->nscopes] = outer;
	p->scope = b->nscopes++;
	lex_want(p->l, '{');
	while (!lex_is(p->l, '}')) {
		if (lex_is(p->l, '{'))
			parse_block(p);
		else if (!lex_take(p->l, ';'))
			parse_statement(p);
	}
	if (p->depth > 1)		/* the token behind the last } is not part of the body */
		lex_next(p->l);
	p->scope = outer;
	p->nent = mark;
	p->depth--;
}

static bool scope_inside(const struct pbody *b, uint32_t in, uint32_t out)
{
	while (in != out && in)
		in = b->scope_parent[in];
	return in == out;
}

struct plabel *body_find_label(const struct pbody *b, const char *name, uint32_t scope)
{
	struct plabel *lab, *best = NULL;

	for (lab = b->hash[word_hash(name, strlen(name)) % 64]; lab; lab = lab->next)
		if (!strcmp(lab->name, name) && scope_inside(b, scope, lab->scope) &&
		    (!best || lab->scope > best->scope))
			best = lab;
	return best;
}

static void resolve_labels(struct body_parse *p)
{
	struct pbody *b = p->b;
	uint32_t i, k;

	for (i = 0; i < b->ninsn; i++) {
		struct insn *in = &b->insn[i];

		if (in->op != OP_bra)
			continue;
		for (k = 0; k < in->nopnd; k++) {
			struct opnd *o = &in->o[k];
			struct plabel *lab;

			if (!o->name)
				ptx_fail(-EINVAL, in->line, "bra: expected a label");
			lab = body_find_label(b, o->name, in->scope);
			if (!lab)
				ptx_fail(-EINVAL, in->line, "label %s is not defined", o->name);
			o->kind = O_LABEL;
			o->imm = lab->id;
		}
	}
}

struct pbody *ptx_parse_body(struct ptx_module *m, struct pfunc *f, struct arena *a)
{
	struct pbody *b = ptx_arena_alloc(a, sizeof(*b));
	struct body_parse p = { .m = m, .f = f, .b = b, .a = a };
	struct lex l;
	uint32_t i;

	pthread_once(&words_once, words_init);
	b->arena = a;
	lex_init(&l, f->body, f->body_len, f->body_line);
	p.l = &l;
	for (i = 0; i < f->nparams + f->nrets; i++) {
		struct pvar *v = i < f->nparams ? f->params[i] : f->rets[i - f->nparams];
		struct pvar *copy = ptx_arena_alloc(a, sizeof(*copy));

		*copy = *v;		/* a unit may parse a function several times */
		add_ent(&p, v->name, strlen(v->name))->var = body_add_var(b, copy);
	}
	parse_block(&p);
	resolve_labels(&p);
	return b;
}
