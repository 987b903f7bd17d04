/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_lex.h - tokens of PTX text. */
#ifndef SOFTGPU_PTX_LEX_H
#define SOFTGPU_PTX_LEX_H

#include "ptx_i.h"

enum tok_kind {
	TOK_END, TOK_ID, TOK_DOT, TOK_INT, TOK_F32, TOK_F64, TOK_STR, TOK_PUNCT, TOK_BAD,
};

/* TOK_DOT is .name; s points behind the dot. */
struct tok {
	enum tok_kind kind;
	const char *s;
	size_t n;
	int64_t v;		/* integer, float bits, or the character */
	uint32_t line;
};

struct lex {
	const char *p, *end;
	uint32_t line;
	struct tok t;		/* the current token */
};

void lex_init(struct lex *l, const char *s, size_t n, uint32_t line);
void lex_next(struct lex *l);
bool lex_is(const struct lex *l, char c);
bool lex_dot(const struct lex *l, const char *name);
bool lex_take(struct lex *l, char c);		/* skips it when it is there */
void lex_want(struct lex *l, char c);		/* fails unless it is there */
void lex_bad(const struct lex *l, const char *what) __attribute__((noreturn));
void lex_skip_braces(struct lex *l);		/* from { to the token behind its } */
bool tok_eq(const struct tok *t, const char *s);

struct pvar *ptx_parse_decl(struct lex *l, struct arena *a, enum vspace space, bool *managed);
struct pvar **ptx_parse_params(struct lex *l, struct arena *a, enum vspace space, uint32_t *np);

#endif
