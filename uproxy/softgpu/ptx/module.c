// SPDX-License-Identifier: Apache-2.0
/*
 * module.c - a module's headers: entries, functions, variables and their initial values.
 *
 * Function bodies are only delimited (images have up to 39 MB); body.c reads them on demand.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_lex.h"

static const struct {
	const char *name;
	uint8_t size, flt, sgn;
} types[T_COUNT] = {
	[T_NONE] = { "", 0, 0, 0 }, [T_PRED] = { "pred", 1, 0, 0 },
	[T_B8] = { "b8", 1, 0, 0 }, [T_B16] = { "b16", 2, 0, 0 }, [T_B32] = { "b32", 4, 0, 0 },
	[T_B64] = { "b64", 8, 0, 0 }, [T_B128] = { "b128", 16, 0, 0 },
	[T_U8] = { "u8", 1, 0, 0 }, [T_U16] = { "u16", 2, 0, 0 }, [T_U32] = { "u32", 4, 0, 0 },
	[T_U64] = { "u64", 8, 0, 0 }, [T_S8] = { "s8", 1, 0, 1 }, [T_S16] = { "s16", 2, 0, 1 },
	[T_S32] = { "s32", 4, 0, 1 }, [T_S64] = { "s64", 8, 0, 1 },
	[T_F16] = { "f16", 2, 1, 1 }, [T_F32] = { "f32", 4, 1, 1 }, [T_F64] = { "f64", 8, 1, 1 },
	[T_BF16] = { "bf16", 2, 1, 1 }, [T_F16X2] = { "f16x2", 4, 0, 0 },
	[T_BF16X2] = { "bf16x2", 4, 0, 0 }, [T_TF32] = { "tf32", 4, 0, 0 },
	[T_E4M3] = { "e4m3", 1, 0, 0 }, [T_E5M2] = { "e5m2", 1, 0, 0 },
	[T_E4M3X2] = { "e4m3x2", 2, 0, 0 }, [T_E5M2X2] = { "e5m2x2", 2, 0, 0 },
	[T_U16X2] = { "u16x2", 4, 0, 0 }, [T_S16X2] = { "s16x2", 4, 0, 1 },
	[T_E2M1X2] = { "e2m1x2", 1, 0, 0 }, [T_E2M3X2] = { "e2m3x2", 2, 0, 0 },
	[T_E3M2X2] = { "e3m2x2", 2, 0, 0 }, [T_UE8M0X2] = { "ue8m0x2", 2, 0, 0 },
	[T_F32X2] = { "f32x2", 8, 0, 0 },
	[T_TEXREF] = { "texref", 8, 0, 0 }, [T_SAMPLERREF] = { "samplerref", 8, 0, 0 },
	[T_SURFREF] = { "surfref", 8, 0, 0 }, [T_S4] = { "s4", 1, 0, 1 },
	[T_U4] = { "u4", 1, 0, 0 }, [T_B1] = { "b1", 1, 0, 0 },
};

unsigned int ptype_size(enum ptype t)
{
	return types[t].size;
}

bool ptype_is_float(enum ptype t)
{
	return types[t].flt;
}

bool ptype_is_signed(enum ptype t)
{
	return types[t].sgn;
}

enum ptype ptype_parse(const char *s, size_t n)
{
	int i;

	for (i = 1; i < T_COUNT; i++)
		if (strlen(types[i].name) == n && !memcmp(types[i].name, s, n))
			return i;
	return T_NONE;
}

static uint32_t name_hash(const char *s, size_t n)
{
	uint32_t h = 2166136261u;

	while (n--)
		h = (h ^ (uint8_t)*s++) * 16777619u;
	return h;
}

static struct psym *find_sym(const struct ptx_module *m, uint32_t src, const char *s, size_t n)
{
	uint32_t h = name_hash(s, n);
	struct psym *y;

	if (!m->nbuckets)
		return NULL;
	for (y = m->syms[h % m->nbuckets]; y; y = y->next)
		if (y->hash == h && y->src == src && strlen(y->name) == n &&
		    !memcmp(y->name, s, n))
			return y;
	return NULL;
}

struct psym *ptx_lookup(const struct ptx_module *m, uint32_t src, const char *name, size_t n)
{
	struct psym *y = find_sym(m, src, name, n);

	return y ? y : find_sym(m, SRC_PUBLIC, name, n);
}

static void grow_syms(struct ptx_module *m)
{
	uint32_t n = m->nbuckets ? m->nbuckets * 4 : 256, i;
	struct psym **t = ptx_arena_alloc(&m->arena, n * sizeof(*t)), *y;

	for (i = 0; i < m->nbuckets; i++)
		while ((y = m->syms[i])) {
			m->syms[i] = y->next;
			y->next = t[y->hash % n];
			t[y->hash % n] = y;
		}
	m->syms = t;
	m->nbuckets = n;
}

static struct psym *add_sym(struct ptx_module *m, uint32_t src, const char *name)
{
	struct psym *y;

	if (m->nsyms >= m->nbuckets)
		grow_syms(m);
	y = ptx_arena_alloc(&m->arena, sizeof(*y));
	y->name = name;
	y->src = src;
	y->hash = name_hash(name, strlen(name));
	y->next = m->syms[y->hash % m->nbuckets];
	m->syms[y->hash % m->nbuckets] = y;
	m->nsyms++;
	return y;
}

/* Grows an array that lives in an arena. */
static void *grow(struct arena *a, void *old, uint32_t n, uint32_t *cap, size_t each)
{
	void *p;

	if (n < *cap)
		return old;
	*cap = *cap ? *cap * 2 : 16;
	p = ptx_arena_alloc(a, *cap * each);
	if (n)
		memcpy(p, old, n * each);
	return p;
}

struct head {		/* the words before a directive */
	bool visible, external, weak, common;
	struct lex *l;
	uint32_t src;
};

/* A reference in an initialiser, resolved when everything has been read. */
struct pending {
	struct pending *next;
	int var;
	uint32_t src, line;
	const char *name;
	struct ptx_reloc r;
};

struct mparse {
	struct ptx_module *m;
	struct pending *pending;
};

static uint32_t parse_align(struct lex *l)
{
	uint64_t v;

	lex_next(l);
	v = l->t.v;
	if (l->t.kind != TOK_INT || !v || v > 65536 || (v & (v - 1)))
		lex_bad(l, "bad alignment");
	lex_next(l);
	return v;
}

/* [n][m] after a name.  Returns the number of elements, 0 when unsized. */
static uint64_t parse_dims(struct lex *l, bool *array)
{
	uint64_t n = 1;

	*array = false;
	while (lex_take(l, '[')) {
		*array = true;
		if (lex_take(l, ']')) {
			n = 0;
			continue;
		}
		if (l->t.kind != TOK_INT || l->t.v < 0)
			lex_bad(l, "bad array size");
		if (__builtin_mul_overflow(n, (uint64_t)l->t.v, &n) || n > 1ull << 40)
			lex_bad(l, "array too large");
		lex_next(l);
		lex_want(l, ']');
	}
	return n;
}

/*
 * The rest of a declaration after its space: [.attribute] [.align n] [.ptr ...] .type name [dims].
 * Used for variables and parameters.
 */
struct pvar *ptx_parse_decl(struct lex *l, struct arena *a, enum vspace space, bool *managed)
{
	struct pvar *v = ptx_arena_alloc(a, sizeof(*v));
	uint64_t n, each;
	unsigned int vec = 1;
	bool array;

	v->space = space;
	v->index = -1;
	while (l->t.kind == TOK_DOT) {
		enum ptype t = ptype_parse(l->t.s, l->t.n);

		if (t != T_NONE) {
			v->type = t;
			lex_next(l);
		} else if (lex_dot(l, "align")) {
			v->align = parse_align(l);
		} else if (lex_dot(l, "v2") || lex_dot(l, "v4") || lex_dot(l, "v8")) {
			vec = l->t.s[1] - '0';
			lex_next(l);
		} else if (lex_dot(l, "attribute")) {
			lex_next(l);
			lex_want(l, '(');
			while (!lex_is(l, ')') && l->t.kind != TOK_END) {
				if (managed && lex_dot(l, "managed"))
					*managed = true;
				lex_next(l);
			}
			lex_want(l, ')');
		} else if (lex_dot(l, "ptr")) {
			lex_next(l);
			while (l->t.kind == TOK_DOT && ptype_parse(l->t.s, l->t.n) == T_NONE) {
				if (lex_dot(l, "align"))
					parse_align(l);
				else
					lex_next(l);
			}
		} else {
			lex_bad(l, "unknown word in a declaration");
		}
	}
	if (l->t.kind != TOK_ID || v->type == T_NONE)
		lex_bad(l, "expected a type and a name");
	v->name = ptx_arena_str(a, l->t.s, l->t.n);
	lex_next(l);
	n = parse_dims(l, &array);
	each = (uint64_t)ptype_size(v->type) * vec;
	if (!v->align)
		v->align = each;
	v->size = n * each;
	v->dynamic = array && !n;
	return v;
}

static void put_bytes(uint8_t **buf, uint64_t *len, uint64_t *cap, uint64_t v, unsigned int n)
{
	if (*len + n > *cap) {
		uint8_t *p = realloc(*buf, *cap ? *cap * 2 : 256);

		if (!p)
			ptx_fail(-ENOMEM, 0, "out of memory");
		*cap = *cap ? *cap * 2 : 256;
		*buf = p;
	}
	memcpy(*buf + *len, &v, n);
	*len += n;
}

/* name, name+4, generic(name)+4, 0xFF00(name): leaves the constant part in @r->addend. */
static void parse_symref(struct mparse *mp, struct lex *l, uint32_t src, uint32_t off,
			 unsigned int size, uint64_t mask)
{
	struct pending *p = ptx_arena_alloc(&mp->m->arena, sizeof(*p));
	int depth = 0;

	p->var = mp->m->nvars;
	p->src = src;
	p->line = l->t.line;
	p->r.offset = off;
	p->r.size = size;
	if (mask) {
		p->r.shift = __builtin_ctzll(mask);
		depth++;
	}
	if (l->t.kind == TOK_ID && tok_eq(&l->t, "generic")) {
		lex_next(l);
		lex_want(l, '(');
		p->r.generic = true;
		depth++;
	}
	if (l->t.kind != TOK_ID)
		lex_bad(l, "expected a name in an initialiser");
	p->name = ptx_arena_str(&mp->m->arena, l->t.s, l->t.n);
	lex_next(l);
	for (;;) {
		if (lex_is(l, ')') && depth) {
			depth--;
			lex_next(l);
		} else if (lex_is(l, '+') || lex_is(l, '-')) {
			bool neg = lex_is(l, '-');

			lex_next(l);
			if (lex_take(l, '-'))
				neg = !neg;
			if (l->t.kind != TOK_INT)
				lex_bad(l, "expected a number in an initialiser");
			p->r.addend += neg ? -(uint64_t)l->t.v : (uint64_t)l->t.v;
			lex_next(l);
		} else {
			break;
		}
	}
	p->next = mp->pending;
	mp->pending = p;
}

static void parse_init_value(struct mparse *mp, struct lex *l, struct pvar *v, uint32_t src,
			     uint8_t **buf, uint64_t *len, uint64_t *cap, unsigned int depth)
{
	unsigned int size = ptype_size(v->type);
	bool neg = false;
	uint64_t bits;
	double d;
	float f;

	if (depth > 64)
		lex_bad(l, "initial values are nested too deep");
	if (lex_take(l, '{')) {
		while (!lex_is(l, '}')) {
			parse_init_value(mp, l, v, src, buf, len, cap, depth + 1);
			if (!lex_take(l, ','))
				break;
		}
		lex_want(l, '}');
		return;
	}
	while (lex_is(l, '-') || lex_is(l, '+') || lex_is(l, '~')) {
		neg ^= lex_is(l, '-');
		lex_next(l);
	}
	if (l->t.kind == TOK_ID) {
		parse_symref(mp, l, src, *len, size, 0);
		put_bytes(buf, len, cap, 0, size);
		return;
	}
	if (l->t.kind != TOK_INT && l->t.kind != TOK_F32 && l->t.kind != TOK_F64)
		lex_bad(l, "expected a value");
	bits = l->t.v;
	if (l->t.kind == TOK_INT) {
		if (neg)
			bits = -bits;
		lex_next(l);
		if (lex_take(l, '(')) {
			parse_symref(mp, l, src, *len, size, bits);
			put_bytes(buf, len, cap, 0, size);
			return;
		}
		if (v->type == T_F64) {
			d = (int64_t)bits;
			memcpy(&bits, &d, 8);
		} else if (v->type == T_F32) {
			f = (int64_t)bits;
			bits = 0;
			memcpy(&bits, &f, 4);
		}
	} else {
		if (l->t.kind == TOK_F32) {
			memcpy(&f, &bits, 4);
			d = f;
		} else {
			memcpy(&d, &bits, 8);
		}
		d = neg ? -d : d;
		f = d;
		bits = 0;
		if (size == 8)
			memcpy(&bits, &d, 8);
		else
			memcpy(&bits, &f, 4);
		lex_next(l);
	}
	put_bytes(buf, len, cap, bits, size > 8 ? 8 : size);
	if (size > 8)
		put_bytes(buf, len, cap, (int64_t)bits < 0 && l->t.kind == TOK_INT ? ~0ull : 0, 8);
}

/* Unsized initialised arrays take their size from the initialiser. */
static void parse_init(struct mparse *mp, struct lex *l, struct pvar *v, struct ptx_var *pv,
		       uint32_t src)
{
	uint64_t len = 0, cap = 0;
	uint8_t *buf = NULL, *init;

	lex_next(l);
	parse_init_value(mp, l, v, src, &buf, &len, &cap, 0);
	if (v->dynamic) {
		v->size = pv->size = len;
		v->dynamic = false;
	}
	if (len > v->size) {
		free(buf);
		lex_bad(l, "too many initial values");
	}
	init = ptx_arena_alloc(&mp->m->arena, len + 1);
	if (len)
		memcpy(init, buf, len);
	free(buf);
	pv->init = init;
	pv->init_len = len;
}

static struct psym *declare(struct ptx_module *m, const struct head *h, const char *name)
{
	bool public = h->visible || h->external || h->weak || h->common;
	struct psym *y = find_sym(m, public ? SRC_PUBLIC : h->src, name, strlen(name));

	return y ? y : add_sym(m, public ? SRC_PUBLIC : h->src, name);
}

static void parse_var(struct mparse *mp, const struct head *h, enum vspace space)
{
	struct ptx_module *m = mp->m;
	struct lex *l = h->l;
	struct ptx_var *pv, tmp = { 0 };
	bool managed = false;
	struct psym *y;
	struct pvar *v;

	lex_next(l);
	do {
		v = ptx_parse_decl(l, &m->arena, space, &managed);
		y = declare(m, h, v->name);
		if (y->func)
			ptx_fail(-EINVAL, l->t.line, "%s is already a function", v->name);
		if (space == V_SHARED) {
			v->order = m->nshared++;
			if (!y->var || y->var->dynamic || !h->external)
				y->var = v;
			continue;
		}
		pv = &tmp;
		memset(pv, 0, sizeof(*pv));
		if (v->type == T_TEXREF || v->type == T_SURFREF || v->type == T_SAMPLERREF)
			pv->space = v->type == T_TEXREF ? PTX_TEXREF :
				    v->type == T_SURFREF ? PTX_SURFREF : PTX_SAMPLERREF;
		else
			pv->space = space == V_CONST ? PTX_CONST : PTX_GLOBAL;
		pv->name = v->name;
		pv->visible = h->visible || h->weak || h->common;
		pv->external = h->external;
		pv->managed = managed;
		pv->size = v->size;
		pv->align = v->align;
		if (y->var && y->var->index >= 0 && y->var->index < (int)m->nvars) {
			/* declared before: an extern or weak declaration adds nothing */
			struct ptx_var *old = &m->vars[y->var->index];

			if (lex_is(l, '=')) {
				uint32_t keep = m->nvars;

				m->nvars = y->var->index;
				parse_init(mp, l, v, pv, h->src);
				m->nvars = keep;
			}
			if (old->external && !pv->external) {
				v->index = y->var->index;
				*old = *pv;
				*y->var = *v;
			} else if (!pv->external && !h->weak && !h->common) {
				ptx_fail(-EINVAL, l->t.line, "%s is defined twice", v->name);
			}
			continue;
		}
		if (lex_is(l, '='))
			parse_init(mp, l, v, pv, h->src);
		v->index = m->nvars;
		{
			uint32_t cap = m->varcap;

			m->vars = grow(&m->arena, m->vars, m->nvars, &cap, sizeof(*m->vars));
			m->pvars = grow(&m->arena, m->pvars, m->nvars, &m->varcap,
					sizeof(*m->pvars));
		}
		m->vars[m->nvars] = *pv;
		m->pvars[m->nvars++] = v;
		y->var = v;
	} while (lex_take(l, ','));
	lex_want(l, ';');
}

/* ( .param .b32 a, .reg .b32 b, ... ) */
struct pvar **ptx_parse_params(struct lex *l, struct arena *a, enum vspace space, uint32_t *np)
{
	struct pvar **list = NULL;
	uint32_t n = 0, cap = 0;

	lex_want(l, '(');
	while (!lex_is(l, ')')) {
		if (!lex_dot(l, "param") && !lex_dot(l, "reg"))
			lex_bad(l, "expected .param");
		lex_next(l);
		list = grow(a, list, n, &cap, sizeof(*list));
		list[n++] = ptx_parse_decl(l, a, space, NULL);
		if (!lex_take(l, ','))
			break;
	}
	lex_want(l, ')');
	*np = n;
	return list;
}

static void parse_perf(struct lex *l, struct pfunc *f)
{
	struct ptx_entry_info *e = &f->info;

	while (l->t.kind == TOK_DOT) {
		uint32_t *d = NULL, i;
		bool one = false;

		if (lex_dot(l, "maxntid"))
			d = e->maxntid;
		else if (lex_dot(l, "reqntid"))
			d = e->reqntid;
		else if (lex_dot(l, "reqnctapercluster"))
			d = e->cluster;
		else if (lex_dot(l, "explicitcluster"))
			e->explicit_cluster = true;
		else if (lex_dot(l, "blocksareclusters"))
			e->grid_of_clusters = true;
		else if (lex_dot(l, "maxclusterrank"))
			d = &e->max_cluster, one = true;
		else if (lex_dot(l, "minnctapersm"))
			d = &e->minnctapersm, one = true;
		else if (lex_dot(l, "maxnreg"))
			d = &e->maxnreg, one = true;
		else if (lex_dot(l, "noreturn"))
			f->noreturn = true;
		lex_next(l);
		if (d && !one)
			d[0] = d[1] = d[2] = 1;
		for (i = 0; l->t.kind == TOK_INT || l->t.kind == TOK_STR; i++) {
			if (d && i < (one ? 1 : 3))
				d[i] = l->t.v;
			lex_next(l);
			if (!lex_take(l, ','))
				break;
		}
		if (!d)
			lex_take(l, ';');
	}
}

static void entry_layout(struct ptx_module *m, struct pfunc *f)
{
	struct ptx_param *p = ptx_arena_alloc(&m->arena, (f->nparams + 1) * sizeof(*p));
	uint64_t off = 0;
	uint32_t i;

	for (i = 0; i < f->nparams; i++) {
		struct pvar *v = f->params[i];

		off = (off + v->align - 1) & ~(uint64_t)(v->align - 1);
		v->offset = off;
		v->placed = true;
		p[i].offset = off;
		p[i].size = v->size;
		p[i].align = v->align;
		off += v->size;
		if (off > 1 << 20)
			ptx_fail(-EINVAL, f->line, "parameters of %s are too large", f->name);
	}
	f->info.name = f->name;
	f->info.nparams = f->nparams;
	f->info.params = p;
	f->info.param_size = off;
	f->info.line = f->line;
}

static struct pfunc *new_func(struct ptx_module *m, const struct head *h, bool entry)
{
	struct pfunc *f = ptx_arena_alloc(&m->arena, sizeof(*f));

	f->src = h->src;
	f->line = h->l->t.line;
	f->is_entry = entry;
	f->visible = h->visible;
	f->weak = h->weak || h->common;
	f->external = h->external;
	return f;
}

/* A definition overwrites an earlier declaration in place, since others point to it. */
static struct pfunc *publish_func(struct ptx_module *m, const struct head *h, struct pfunc *f)
{
	struct psym *y = declare(m, h, f->name), *pub;
	struct pfunc *old;

	if (y->var)
		ptx_fail(-EINVAL, f->line, "%s is already a variable", f->name);
	pub = find_sym(m, SRC_PUBLIC, f->name, strlen(f->name));
	if (!y->func && pub && pub->func && pub->func->src == h->src) {
		/* declared .extern or .visible first, defined without the word */
		y = pub;
	}
	old = y->func;
	if (old) {
		uint32_t ord = old->ordinal;

		if (f->body && old->body) {
			if (!f->weak && !old->weak)
				ptx_fail(-EINVAL, f->line, "%s is defined twice", f->name);
			if (f->weak)
				return old;
		}
		if (f->body || !old->body) {
			*old = *f;
			old->ordinal = ord;
		}
		return old;
	}
	y->func = f;
	f->ordinal = m->nfuncs;
	m->funcs = grow(&m->arena, m->funcs, m->nfuncs, &m->funccap, sizeof(*m->funcs));
	m->funcs[m->nfuncs++] = f;
	return f;
}

static void parse_func(struct mparse *mp, const struct head *h, bool entry)
{
	struct ptx_module *m = mp->m;
	struct pfunc *f = new_func(m, h, entry);
	struct lex *l = h->l;

	lex_next(l);
	while (lex_dot(l, "attribute")) {
		lex_next(l);
		while (!lex_is(l, ')') && l->t.kind != TOK_END)
			lex_next(l);
		lex_want(l, ')');
	}
	if (lex_is(l, '('))
		f->rets = ptx_parse_params(l, &m->arena, V_PARAM, &f->nrets);
	if (l->t.kind != TOK_ID)
		lex_bad(l, "expected a function's name");
	f->name = ptx_arena_str(&m->arena, l->t.s, l->t.n);
	lex_next(l);
	if (lex_is(l, '('))
		f->params = ptx_parse_params(l, &m->arena, entry ? V_ENTRY_PARAM : V_PARAM,
					     &f->nparams);
	parse_perf(l, f);
	if (lex_is(l, '{')) {
		f->body = l->t.s;
		f->body_line = l->t.line;
		lex_skip_braces(l);
		f->body_len = (l->t.kind == TOK_END ? l->p : l->t.s) - f->body;
		if (l->t.kind == TOK_DOT)
			f->body_len--;
	} else {
		lex_want(l, ';');
	}
	if (entry)
		entry_layout(m, f);
	f = publish_func(m, h, f);
	if (entry && f->body) {
		uint32_t i;

		for (i = 0; i < m->nentries; i++)
			if (m->entries[i] == f)
				return;
		m->entries = grow(&m->arena, m->entries, m->nentries, &m->entrycap,
				  sizeof(*m->entries));
		m->entries[m->nentries++] = f;
	}
}

static void parse_alias(struct mparse *mp, const struct head *h)
{
	struct lex *l = h->l;
	struct psym *a, *b;

	lex_next(l);
	if (l->t.kind != TOK_ID)
		lex_bad(l, "expected a name");
	a = ptx_lookup(mp->m, h->src, l->t.s, l->t.n);
	lex_next(l);
	lex_want(l, ',');
	b = l->t.kind == TOK_ID ? ptx_lookup(mp->m, h->src, l->t.s, l->t.n) : NULL;
	if (!a || !a->func || !b || !b->func)
		lex_bad(l, "unknown function in .alias");
	a->func->alias = b->func;
	lex_next(l);
	lex_want(l, ';');
}

static void parse_version(struct ptx_module *m, struct lex *l)
{
	double d;

	lex_next(l);
	if (l->t.kind != TOK_F64)
		lex_bad(l, "expected a version");
	memcpy(&d, &l->t.v, 8);
	m->version = (unsigned int)(d * 10 + 0.5);
	if (m->version < 10 || m->version > 99)
		ptx_fail(-ENOEXEC, l->t.line, ".version %.*s is not supported", (int)l->t.n,
			 l->t.s);
	lex_next(l);
}

static void parse_target(struct ptx_module *m, struct lex *l)
{
	unsigned int sm = 0;

	do {
		lex_next(l);
		if (l->t.kind != TOK_ID)
			lex_bad(l, "expected a target");
		if (l->t.n > 3 && !memcmp(l->t.s, "sm_", 3) && !sm)
			sm = strtoul(l->t.s + 3, NULL, 10);
		lex_next(l);
	} while (lex_is(l, ','));
	if (!m->target)
		m->target = sm;
}

static void skip_line(struct lex *l)
{
	while (l->p < l->end && *l->p != '\n')
		l->p++;
	lex_next(l);
}

static void parse_directive(struct mparse *mp, struct head *h)
{
	struct lex *l = h->l;

	if (lex_dot(l, "visible")) {
		h->visible = true;
		lex_next(l);
	} else if (lex_dot(l, "extern")) {
		h->external = true;
		lex_next(l);
	} else if (lex_dot(l, "weak")) {
		h->weak = true;
		lex_next(l);
	} else if (lex_dot(l, "common")) {
		h->common = true;
		lex_next(l);
	} else {
		if (lex_dot(l, "entry"))
			parse_func(mp, h, true);
		else if (lex_dot(l, "func"))
			parse_func(mp, h, false);
		else if (lex_dot(l, "global") || lex_dot(l, "tex"))
			parse_var(mp, h, V_GLOBAL);
		else if (lex_dot(l, "const"))
			parse_var(mp, h, V_CONST);
		else if (lex_dot(l, "shared"))
			parse_var(mp, h, V_SHARED);
		else if (lex_dot(l, "alias"))
			parse_alias(mp, h);
		else if (lex_dot(l, "file") || lex_dot(l, "loc"))
			skip_line(l);
		else if (lex_dot(l, "pragma")) {
			while (l->t.kind != TOK_END && !lex_is(l, ';'))
				lex_next(l);
			lex_want(l, ';');
		} else if (lex_dot(l, "section")) {
			while (l->t.kind != TOK_END && !lex_is(l, '{'))
				lex_next(l);
			if (lex_is(l, '{'))
				lex_skip_braces(l);
		} else if (lex_dot(l, "version")) {
			parse_version(mp->m, l);
		} else if (lex_dot(l, "target")) {
			parse_target(mp->m, l);
		} else if (lex_dot(l, "address_size")) {
			lex_next(l);
			if (l->t.v != 64)
				ptx_fail(-ENOEXEC, l->t.line, ".address_size must be 64");
			lex_next(l);
		} else {
			lex_bad(l, "unknown directive");
		}
		h->visible = h->external = h->weak = h->common = false;
	}
}

static void parse_source(struct mparse *mp, uint32_t src)
{
	struct lex l;
	struct head h = { .l = &l, .src = src };

	lex_init(&l, mp->m->src[src].text, strnlen(mp->m->src[src].text, mp->m->src[src].len), 1);
	if (!lex_dot(&l, "version"))
		lex_bad(&l, "not PTX: no .version");
	while (l.t.kind != TOK_END) {
		if (l.t.kind != TOK_DOT) {
			if (lex_take(&l, ';'))
				continue;
			lex_bad(&l, "expected a directive");
		}
		parse_directive(mp, &h);
	}
}

static void resolve_pending(struct mparse *mp)
{
	struct ptx_module *m = mp->m;
	struct ptx_reloc *r;
	struct pending *p;

	for (p = mp->pending; p; p = p->next)
		if (p->var < (int)m->nvars &&
		    p->r.offset + (uint64_t)p->r.size <= m->vars[p->var].size)
			m->vars[p->var].nrelocs++;
	for (p = mp->pending; p; p = p->next) {
		struct psym *y = ptx_lookup(m, p->src, p->name, strlen(p->name));
		struct ptx_var *v = &m->vars[p->var];

		/* a discarded definition may be longer than the one in use */
		if (p->var >= (int)m->nvars || p->r.offset + (uint64_t)p->r.size > v->size)
			continue;
		if (!y || (!y->func && !y->var))
			ptx_fail(-EINVAL, p->line, "%s is not defined", p->name);
		if (y->func) {
			p->r.is_func = true;
			p->r.target = y->func->ordinal;
			y->func->addr_taken = true;
		} else if (y->var->index >= 0) {
			p->r.target = y->var->index;
		} else {
			ptx_fail(-ENOTSUP, p->line, "address of shared %s in an initialiser",
				 p->name);
		}
		if (!v->relocs) {
			v->relocs = ptx_arena_alloc(&m->arena, v->nrelocs * sizeof(*r));
			v->nrelocs = 0;
		}
		r = (struct ptx_reloc *)v->relocs;
		r[v->nrelocs++] = p->r;
	}
}

int ptx_module_parse(const struct ptx_source *src, unsigned int nsrc, struct ptx_module **out,
		     char *err, size_t errlen)
{
	struct ptx_guard g = { .err = err, .errlen = errlen }, *outer = *ptx_guard_slot();
	struct ptx_module *m = calloc(1, sizeof(*m));
	struct mparse mp = { .m = m };
	volatile uint32_t i = 0;

	if (!m)
		return -ENOMEM;
	pthread_mutex_init(&m->lock, NULL);
	*ptx_guard_slot() = &g;
	if (!setjmp(g.env)) {
		struct ptx_source *copy = ptx_arena_alloc(&m->arena, nsrc * sizeof(*copy));

		memcpy(copy, src, nsrc * sizeof(*copy));
		m->src = copy;
		m->nsrc = nsrc;
		for (i = 0; i < nsrc; i++)
			parse_source(&mp, i);
		resolve_pending(&mp);
		*out = m;
	} else {
		ptx_module_free(m);
	}
	*ptx_guard_slot() = outer;
	return g.ret;
}

void ptx_module_free(struct ptx_module *m)
{
	if (!m)
		return;
	pthread_mutex_destroy(&m->lock);
	ptx_arena_free(&m->arena);
	free(m);
}

unsigned int ptx_module_nentries(const struct ptx_module *m)
{
	return m->nentries;
}

const struct ptx_entry_info *ptx_module_entry(const struct ptx_module *m, unsigned int i)
{
	return i < m->nentries ? &m->entries[i]->info : NULL;
}

int ptx_module_find_entry(const struct ptx_module *m, const char *name)
{
	uint32_t i;

	for (i = 0; i < m->nentries; i++)
		if (!strcmp(m->entries[i]->name, name))
			return i;
	return -ENOENT;
}

unsigned int ptx_module_nvars(const struct ptx_module *m)
{
	return m->nvars;
}

const struct ptx_var *ptx_module_var(const struct ptx_module *m, unsigned int i)
{
	return i < m->nvars ? &m->vars[i] : NULL;
}

int ptx_module_find_var(const struct ptx_module *m, const char *name)
{
	int found = -ENOENT;
	uint32_t i;

	for (i = 0; i < m->nvars; i++)
		if (!strcmp(m->vars[i].name, name)) {
			if (m->vars[i].visible)
				return i;
			found = i;
		}
	return found;
}

unsigned int ptx_module_target(const struct ptx_module *m)
{
	return m->target;
}

/* Never a global address, and unlike small integers, which a program may call by mistake. */
uint64_t ptx_func_value(uint32_t ordinal)
{
	return 0x00f00000ull + 16ull * ordinal;
}
