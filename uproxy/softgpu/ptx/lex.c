// SPDX-License-Identifier: Apache-2.0
/*
 * lex.c - arenas, error unwinding and the tokens of PTX text.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_lex.h"

struct arena_chunk {
	struct arena_chunk *next;
	max_align_t data[];
};

static __thread struct ptx_guard *guard;

struct ptx_guard **ptx_guard_slot(void)
{
	return &guard;
}

void ptx_fail(int ret, unsigned int line, const char *fmt, ...)
{
	struct ptx_guard *g = guard;
	va_list ap;
	int n = 0;

	g->ret = ret;
	if (g->err && g->errlen) {
		if (line)
			n = snprintf(g->err, g->errlen, "line %u: ", line);
		va_start(ap, fmt);
		if (n >= 0 && (size_t)n < g->errlen)
			vsnprintf(g->err + n, g->errlen - n, fmt, ap);
		va_end(ap);
	}
	longjmp(g->env, 1);
}

void *ptx_arena_alloc(struct arena *a, size_t n)
{
	struct arena_chunk *c;
	void *p;

	n = (n + 15) & ~(size_t)15;
	if (n > a->size - a->used || !a->head) {
		size_t want = n > 32768 ? n : 65536;

		c = calloc(1, sizeof(*c) + want);
		if (!c)
			ptx_fail(-ENOMEM, 0, "out of memory");
		if (n > 32768 && a->head) {	/* keeps the current chunk in use */
			c->next = a->head->next;
			a->head->next = c;
			return c->data;
		}
		c->next = a->head;
		a->head = c;
		a->used = 0;
		a->size = want;
	}
	p = (char *)a->head->data + a->used;
	a->used += n;
	return p;
}

void ptx_arena_free(struct arena *a)
{
	while (a->head) {
		struct arena_chunk *c = a->head;

		a->head = c->next;
		free(c);
	}
	a->used = a->size = 0;
}

const char *ptx_arena_str(struct arena *a, const char *s, size_t n)
{
	char *p = ptx_arena_alloc(a, n + 1);

	memcpy(p, s, n);
	return p;
}

void lex_bad(const struct lex *l, const char *what)
{
	ptx_fail(-EINVAL, l->t.line, "%s before '%.*s'", what,
		 (int)(l->t.n > 40 ? 40 : l->t.n), l->t.kind == TOK_END ? "" : l->t.s);
}

static void skip_space(struct lex *l)
{
	const char *p = l->p, *end = l->end;

	while (p < end) {
		if (*p == '\n') {
			l->line++;
			p++;
		} else if (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\f' || *p == '\v') {
			p++;
		} else if (*p == '/' && p + 1 < end && p[1] == '/') {
			while (p < end && *p != '\n')
				p++;
		} else if (*p == '/' && p + 1 < end && p[1] == '*') {
			p += 2;
			while (p < end && !(*p == '*' && p + 1 < end && p[1] == '/')) {
				l->line += *p == '\n';
				p++;
			}
			p = p < end ? p + 2 : end;
		} else if (*p == '#' || (*p == '@' && p + 1 < end && p[1] == '@')) {
			while (p < end && *p != '\n')	/* #line, @@DWARF */
				p++;
		} else {
			break;
		}
	}
	l->p = p;
}

static bool id_start(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' ||
	       c == '%';
}

static bool id_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' ||
	       (c >= '0' && c <= '9');
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return 99;
}

static const char *digits(const char *p, const char *end, int base, uint64_t *v)
{
	*v = 0;
	while (p < end && digit(*p) < base)
		*v = *v * base + digit(*p++);
	return p;
}

static void lex_decimal_float(struct lex *l)
{
	char buf[64];
	size_t n = 0;
	double d;

	while (l->p + n < l->end && n < sizeof(buf) - 1 &&
	       (digit(l->p[n]) < 10 || l->p[n] == '.' || l->p[n] == 'e' || l->p[n] == 'E' ||
		((l->p[n] == '-' || l->p[n] == '+') && n && (l->p[n - 1] | 32) == 'e'))) {
		buf[n] = l->p[n];
		n++;
	}
	buf[n] = 0;
	d = strtod(buf, NULL);
	memcpy(&l->t.v, &d, 8);
	l->t.kind = TOK_F64;
	l->p += n;
}

static void lex_number(struct lex *l)
{
	const char *p = l->p, *q, *end = l->end;
	uint64_t v;

	l->t.kind = TOK_INT;
	if (*p == '0' && p + 1 < end && (p[1] | 32) == 'x') {
		p = digits(p + 2, end, 16, &v);
	} else if (*p == '0' && p + 1 < end && ((p[1] | 32) == 'f' || (p[1] | 32) == 'd')) {
		l->t.kind = (p[1] | 32) == 'f' ? TOK_F32 : TOK_F64;
		p = digits(p + 2, end, 16, &v);
	} else if (*p == '0' && p + 1 < end && (p[1] | 32) == 'b') {
		p = digits(p + 2, end, 2, &v);
	} else {
		q = digits(p, end, 10, &v);
		if (q < end && (*q == '.' || (*q | 32) == 'e') &&
		    (*q != '.' || (q + 1 < end && digit(q[1]) < 10))) {
			lex_decimal_float(l);
			return;
		}
		if (*p == '0' && q > p + 1)
			q = digits(p, end, 8, &v);
		p = q;
	}
	if (p < end && (*p == 'U' || *p == 'u'))
		p++;
	l->t.v = (int64_t)v;
	l->p = p;
}

void lex_next(struct lex *l)
{
	const char *p;

	skip_space(l);
	p = l->p;
	l->t.s = p;
	l->t.line = l->line;
	l->t.v = 0;
	if (p >= l->end || !*p) {
		l->t.kind = TOK_END;
		l->t.n = 0;
		return;
	}
	if (id_start(*p)) {
		for (p++; p < l->end && id_char(*p); p++)
			;
		l->t.kind = TOK_ID;
		l->p = p;
	} else if (*p >= '0' && *p <= '9') {
		lex_number(l);
	} else if (*p == '.' && p + 1 < l->end && (id_char(p[1]) && p[1] != '$')) {
		for (p++; p < l->end && (id_char(*p) || (*p == ':' && p + 1 < l->end &&
		     (p[1] == ':' || p[-1] == ':') && p[1] != ' ')); p++)
			;
		l->t.kind = TOK_DOT;
		l->t.s++;
		l->p = p;
	} else if (*p == '"') {
		for (p++; p < l->end && *p != '"' && *p != '\n'; p++)
			if (*p == '\\' && p + 1 < l->end)
				p++;
		l->t.kind = TOK_STR;
		l->p = p < l->end ? p + 1 : p;
	} else {
		l->t.kind = TOK_PUNCT;
		l->t.v = *p;
		l->p = p + 1;
	}
	l->t.n = l->p - l->t.s;
}

void lex_init(struct lex *l, const char *s, size_t n, uint32_t line)
{
	memset(l, 0, sizeof(*l));
	l->p = s;
	l->end = s + n;
	l->line = line;
	lex_next(l);
}

bool lex_is(const struct lex *l, char c)
{
	return l->t.kind == TOK_PUNCT && l->t.v == c;
}

bool tok_eq(const struct tok *t, const char *s)
{
	return strlen(s) == t->n && !memcmp(s, t->s, t->n);
}

bool lex_dot(const struct lex *l, const char *name)
{
	return l->t.kind == TOK_DOT && tok_eq(&l->t, name);
}

bool lex_take(struct lex *l, char c)
{
	if (!lex_is(l, c))
		return false;
	lex_next(l);
	return true;
}

void lex_want(struct lex *l, char c)
{
	char what[] = "expected ' '";

	what[10] = c;
	if (!lex_take(l, c))
		lex_bad(l, what);
}

void lex_skip_braces(struct lex *l)
{
	const char *p, *end = l->end;
	int depth = 1;

	while (depth) {
		skip_space(l);
		p = l->p;
		if (p >= end || !*p)
			ptx_fail(-EINVAL, l->line, "unclosed {");
		if (*p == '{')
			depth++;
		else if (*p == '}')
			depth--;
		else if (*p == '"')
			while (p + 1 < end && p[1] != '"' && p[1] != '\n')
				p++;
		l->p = p + 1;
		/* fast path: names, numbers */
		while (l->p < end && (id_char(*l->p) || *l->p == ',' || *l->p == '.' ||
				      *l->p == ';' || *l->p == '%'))
			l->p++;
	}
	lex_next(l);
}
