// SPDX-License-Identifier: Apache-2.0
/*
 * ann.c - reads an annotation file; the head of cuda.ann describes its grammar
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gen.h"

static char **lines;
static int nlines;

/* A line that ends in a backslash is joined to the next, and keeps its own number. */
static void read_lines(const char *file)
{
	FILE *f = fopen(file, "r");
	int whole = 0;
	char *line = NULL;
	size_t size = 0;

	if (!f)
		fail(file, 0, "%s", strerror(errno));
	while (getline(&line, &size, f) >= 0) {
		size_t n;

		line[strcspn(line, "#\n")] = 0;
		lines = grow(lines, nlines, sizeof(*lines));
		lines[nlines++] = strdup("");
		if (!whole)
			whole = nlines;
		lines[whole - 1] = format("%s%s", lines[whole - 1], line);
		n = strlen(lines[whole - 1]);
		if (n && lines[whole - 1][n - 1] == '\\')
			lines[whole - 1][n - 1] = ' ';
		else
			whole = 0;
	}
	free(line);
	fclose(f);
}

static char *word(char **rest)
{
	char *w;

	do {
		w = strsep(rest, " \t");
	} while (w && !*w);
	return w;
}

static const char *need(struct lib *l, int at, char **rest, const char *what)
{
	const char *w = word(rest);

	if (!w)
		fail(l->ann, at, "%s is missing", what);
	return w;
}

static void add_handles(struct lib *l, char **rest, bool real, bool stream)
{
	for (char *w; (w = word(rest)); ) {
		l->handle = grow(l->handle, l->nhandle, sizeof(*l->handle));
		l->handle[l->nhandle++] = (struct handle){ w, real, stream };
	}
}

static void add_strings(const char ***array, int *n, char **rest)
{
	for (char *w; (w = word(rest)); ) {
		*array = grow(*array, *n, sizeof(**array));
		(*array)[(*n)++] = w;
	}
}

/* Handles a line of the preamble; false: it is none. */
static bool preamble_line(struct lib *l, int at, const char *key, char *rest)
{
	if (!strcmp(key, "library")) {
		l->name = need(l, at, &rest, "the library's name");
	} else if (!strcmp(key, "header")) {
		add_strings(&l->header, &l->nheader, &rest);
	} else if (!strcmp(key, "define")) {
		l->define = need(l, at, &rest, "the macro");
	} else if (!strcmp(key, "result")) {
		l->result = need(l, at, &rest, "the result's type");
		l->ok = need(l, at, &rest, "success");
		l->err_value = need(l, at, &rest, "the code of a bad argument");
		l->err_unsupported = need(l, at, &rest, "the code of an unsupported call");
	} else if (!strcmp(key, "alias")) {
		l->alias = need(l, at, &rest, "the prefix");
	} else if (!strcmp(key, "also")) {
		add_strings(&l->more, &l->nmore, &rest);
	} else if (!strcmp(key, "handle")) {
		add_handles(l, &rest, false, false);
	} else if (!strcmp(key, "handle-real")) {
		add_handles(l, &rest, true, false);
	} else if (!strcmp(key, "handle-stream")) {
		add_handles(l, &rest, false, true);
	} else if (!strcmp(key, "address")) {
		add_strings(&l->address, &l->naddress, &rest);
	} else {
		return false;
	}
	return true;
}

void ann_preamble(struct lib *l, const char *file)
{
	l->ann = file;
	read_lines(file);
	for (int i = 0; i < nlines; i++) {
		char *rest = strdup(lines[i]), *key = word(&rest);

		if (key && !isspace((unsigned char)*lines[i]) &&
		    preamble_line(l, i + 1, key, rest))
			lines[i] = "";
	}
	if (!l->name || !l->result || !l->nheader)
		fail(file, 0, "library, result or header is missing");
}

/* A name with a final '?' may be missing from the headers: NULL. */
static struct func *claim(struct lib *l, int at, const char *name, enum class class)
{
	size_t n = strlen(name);
	bool newer = name[n - 1] == '?';
	struct func *f;

	if (newer)
		name = strndup(name, n - 1);
	f = find_func(l, name);
	if (!f && newer)
		return NULL;
	if (!f)
		fail(l->ann, at, "the headers declare no function %s", name);
	if (f->base)
		fail(l->ann, at, "%s goes with %s", name, f->base->name);
	if (f->class != C_UNSET)
		fail(l->ann, at, "%s is in line %d already", name, f->line);
	f->class = class;
	f->line = at;
	return f;
}

/* A record of no function. */
static void add_record(struct lib *l, int at, const char *name)
{
	struct record *r;

	if (strncmp(name, "X_", 2))
		fail(l->ann, at, "%s: the name of a record begins with X_", name);
	for (int i = 0; i < l->nrecord; i++)
		if (!strcmp(l->record[i].name, name))
			fail(l->ann, at, "%s is in line %d already", name, l->record[i].line);
	l->record = grow(l->record, l->nrecord, sizeof(*l->record));
	r = &l->record[l->nrecord++];
	*r = (struct record){ .name = strdup(name), .line = at };
}

static struct param *find_param(struct func *f, const char *name)
{
	for (int i = 0; i < f->nparam; i++)
		if (!strcmp(f->param[i].name, name))
			return &f->param[i];
	return NULL;
}

/* A size: factors NAME or NUMBER joined by '*', or pitch(PITCH,WIDTH,HEIGHT,BYTES). */
static void check_expr(struct lib *l, struct func *f, int at, const char *expr)
{
	char *rest = strdup(expr), *w;
	bool pitch = !strncmp(expr, "pitch(", 6) && expr[strlen(expr) - 1] == ')';
	int n = 0;

	if (pitch) {
		rest += 6;
		rest[strlen(rest) - 1] = 0;
	}
	while ((w = strsep(&rest, pitch ? "," : "*"))) {
		struct param *p = find_param(f, w);

		n++;
		if (*w && strspn(w, "0123456789") == strlen(w))
			continue;
		if (!p)
			fail(l->ann, at, "%s has no parameter %s", f->name, w);
		if (clang_getCanonicalType(p->ct).kind == CXType_Pointer)
			fail(l->ann, at, "%s is no number", w);
	}
	if (pitch && n != 4)
		fail(l->ann, at, "pitch() has four arguments");
}

static char *inside(struct lib *l, int at, char *spec, char open, char close)
{
	char *from = strchr(spec, open), *to = from ? strrchr(spec, close) : NULL;

	if (!to || to[1])
		fail(l->ann, at, "%c is not closed in %s", open, spec);
	*to = 0;
	return from + 1;
}

static void param_spec(struct lib *l, struct func *f, int at, struct param *p, char *spec)
{
	size_t n = strlen(spec);

	if (p->kind != K_UNSET)
		fail(l->ann, at, "%s of %s is described twice", p->name, f->name);
	if (n && spec[n - 1] == '?') {
		p->nullable = true;
		spec[n - 1] = 0;
	}
	if (!strcmp(spec, "new"))
		p->kind = K_NEW;
	else if (!strcmp(spec, "del"))
		p->kind = K_DEL;
	else if (!strcmp(spec, "use"))
		p->kind = K_HANDLE;
	else if (!strcmp(spec, "out"))
		p->kind = K_OUT;
	else if (!strcmp(spec, "in"))
		p->kind = K_IN;
	else if (!strcmp(spec, "inout"))
		p->kind = K_INOUT;
	else if (!strcmp(spec, "str"))
		p->kind = K_STR;
	else if (!strcmp(spec, "addr"))
		p->kind = K_ADDR;
	else if (!strncmp(spec, "in[", 3))
		p->kind = K_ARRAY, p->expr = inside(l, at, spec, '[', ']');
	else if (!strncmp(spec, "rd(", 3) || !strncmp(spec, "wr(", 3))
		p->kind = K_ADDR, p->write = *spec == 'w', p->expr = inside(l, at, spec, '(', ')');
	else
		fail(l->ann, at, "%s=%s is not understood", p->name, spec);
	if (p->expr)
		check_expr(l, f, at, p->expr);
}

/* The kind of a parameter without annotation, by its type. */
static void param_default(struct lib *l, struct func *f, struct param *p)
{
	CXType canon = clang_getCanonicalType(p->ct), to;

	if (p->handle >= 0)
		p->kind = K_HANDLE;
	else if (is_address(l, p->ct))
		fail(l->ann, f->line, "%s of %s is a device address: rd(), wr() or addr?",
		     p->name, f->name);
	else if (canon.kind != CXType_Pointer)
		p->kind = K_VALUE;
	else {
		to = clang_getPointeeType(canon);
		if (to.kind != CXType_Char_S || !clang_isConstQualifiedType(to))
			fail(l->ann, f->line, "%s of %s is a pointer without direction", p->name,
			     f->name);
		p->kind = K_STR;
	}
}

/* Checks that generated code can send or receive the parameter. */
static void param_check(struct lib *l, struct func *f, struct param *p)
{
	CXType canon = clang_getCanonicalType(p->ct), to = clang_getPointeeType(canon);
	bool pointer = canon.kind == CXType_Pointer;
	const char *why = "";

	if (pointer && p->handle < 0) {
		CXType t = p->ct;

		/* Through typedefs and array notation, but keeping the pointee's own name. */
		while (t.kind == CXType_Elaborated)
			t = clang_Type_getNamedType(t);
		if (t.kind == CXType_Pointer)
			to = clang_getPointeeType(t);
		p->handle = find_handle(l, to);
	}
	switch (p->kind) {
	case K_HANDLE:
	case K_DEL:
		if (p->handle < 0 || (pointer && find_handle(l, p->ct) < 0))
			fail(l->ann, f->line, "%s of %s is no handle", p->name, f->name);
		return;
	case K_NEW:
		if (p->handle < 0 || !pointer || find_handle(l, p->ct) >= 0)
			fail(l->ann, f->line, "%s of %s is no pointer to a handle", p->name,
			     f->name);
		return;
	case K_ADDR:
		if (!is_address(l, p->ct))
			fail(l->ann, f->line, "%s of %s is no device address", p->name, f->name);
		return;
	case K_VALUE:
		if (!is_flat(l, p->ct, &why))
			fail(l->ann, f->line, "%s of %s cannot be sent as it is: %s", p->name,
			     f->name, why);
		return;
	default:
		break;
	}
	if (!pointer || find_handle(l, p->ct) >= 0)
		fail(l->ann, f->line, "%s of %s is no pointer", p->name, f->name);
	if (p->kind != K_IN && p->kind != K_ARRAY && p->kind != K_STR &&
	    clang_isConstQualifiedType(to))
		fail(l->ann, f->line, "%s of %s points to something constant", p->name, f->name);
	if (p->kind == K_ARRAY && p->handle >= 0 && !l->handle[p->handle].stream)
		return;
	if (!is_flat(l, to, &why))
		fail(l->ann, f->line, "%s of %s cannot be sent as it is: %s", p->name, f->name, why);
}

static const char *const own_names[] = { "i", "at", "real", "to_", "rc", "done" };

static void check_gen(struct lib *l, struct func *f)
{
	int created = 0, destroyed = 0, streams = 0;
	bool reply = false;

	if (strcmp(f->ret, l->result))
		fail(l->ann, f->line, "%s returns %s, not %s", f->name, f->ret, l->result);
	for (int i = 0; i < f->nparam; i++) {
		struct param *p = &f->param[i];

		for (size_t k = 0; k < sizeof(own_names) / sizeof(*own_names); k++)
			if (!strcmp(p->name, own_names[k]))
				fail(l->ann, f->line, "%s of %s has a name of the code's own", p->name,
				     f->name);
		p->handle = find_handle(l, p->ct);
		if (p->kind == K_UNSET)
			param_default(l, f, p);
		param_check(l, f, p);
		created += p->kind == K_NEW;
		destroyed += p->kind == K_DEL;
		streams += p->kind == K_HANDLE && l->handle[p->handle].stream;
		reply |= p->kind == K_OUT || p->kind == K_INOUT ||
			 (p->kind == K_NEW && l->handle[p->handle].real);
		if (p->nullable && (p->kind == K_VALUE || p->kind == K_NEW ||
				    p->kind == K_DEL || p->kind == K_ADDR))
			fail(l->ann, f->line, "%s of %s cannot be NULL", p->name, f->name);
	}
	if (created + destroyed > 1)
		fail(l->ann, f->line, "%s creates or destroys more than one handle", f->name);
	if ((created || destroyed) && !f->log)
		fail(l->ann, f->line, "%s creates or destroys a handle, but is not logged", f->name);
	if (reply && !f->sync)
		fail(l->ann, f->line, "%s has a reply, so it cannot be async", f->name);
	if (streams > 1)
		fail(l->ann, f->line, "%s uses more than one stream", f->name);
	if (streams && created)
		fail(l->ann, f->line, "%s creates a handle on a stream: by hand", f->name);
	if (f->variant && !streams)
		fail(l->ann, f->line, "%s has a per-thread form, but no stream: by hand", f->name);
	wire_reply(l, f, NULL);
}

static void gen_line(struct lib *l, int at, char *rest)
{
	struct func *f = claim(l, at, need(l, at, &rest, "the function"), C_GEN);
	bool async = false;
	char *w;

	if (!f)
		return;
	f->ctx = true;
	while ((w = word(&rest))) {
		char *spec = strchr(w, '=');
		struct param *p;

		if (spec) {
			*spec++ = 0;
			p = find_param(f, w);
			if (!p)
				fail(l->ann, at, "%s has no parameter %s", f->name, w);
			param_spec(l, f, at, p, spec);
		} else if (!strcmp(w, "sync")) {
			f->sync = true;
		} else if (!strcmp(w, "async")) {
			async = true;
		} else if (!strcmp(w, "log")) {
			f->log = true;
		} else if (!strcmp(w, "noctx")) {
			f->ctx = false;
		} else if (!strcmp(w, "hook")) {
			f->hook = true;
		} else if (!strcmp(w, "late")) {
			f->late = true;
		} else {
			fail(l->ann, at, "%s is not understood", w);
		}
	}
	if (f->sync == async)
		fail(l->ann, at, "%s is sync or async?", f->name);
	check_gen(l, f);
}

static enum class class_line(struct lib *l, int at, char *line, const char **reason)
{
	char *colon = strchr(line, ':'), *rest = line;
	const char *w;

	*reason = NULL;
	if (colon) {
		*colon++ = 0;
		colon += strspn(colon, " \t");
		if (*colon)
			*reason = colon;
	}
	w = word(&rest);
	if (w && !strcmp(w, "none")) {
		if (!*reason)
			fail(l->ann, at, "none without a reason");
		return C_NONE;
	}
	if (w && !strcmp(w, "hand") && !colon)
		return C_HAND;
	if (w && !strcmp(w, "local") && !colon)
		return C_LOCAL;
	if (w && !strcmp(w, "record") && !colon)
		return C_RECORD;
	fail(l->ann, at, "%s is not understood", w ? w : ":");
}

void ann_functions(struct lib *l)
{
	const char *reason = NULL;
	enum class class = C_UNSET;

	for (int i = 0; i < nlines; i++) {
		char *rest = strdup(lines[i]), *w;

		if (!rest[strspn(rest, " \t")])
			continue;
		if (!isspace((unsigned char)*rest)) {
			if (!strncmp(rest, "gen ", 4)) {
				rest += 4;
				gen_line(l, i + 1, rest);
				class = C_UNSET;
			} else {
				class = class_line(l, i + 1, rest, &reason);
			}
			continue;
		}
		if (class == C_UNSET)
			fail(l->ann, i + 1, "names without hand, local, none or record before them");
		while ((w = word(&rest))) {
			struct func *f = NULL;

			if (class == C_RECORD)
				add_record(l, i + 1, w);
			else
				f = claim(l, i + 1, w, class);
			if (f)
				f->reason = reason;
		}
	}
	for (int i = 0; i < l->nfunc; i++) {
		struct func *f = &l->func[i];

		if (f->base) {
			f->class = f->base->class;
			f->reason = f->base->reason;
		} else if (f->class == C_UNSET) {
			fail(l->ann, nlines, "%s has no line", f->name);
		}
		if (f->class == C_NONE && strcmp(f->ret, l->result))
			fail(l->ann, f->line, "%s returns %s: it cannot be refused", f->name,
			     f->ret);
	}
}
