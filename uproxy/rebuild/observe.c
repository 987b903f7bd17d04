// SPDX-License-Identifier: Apache-2.0
/*
 * observe.c - saves the driver's choices that a program can observe, compares them after a replay
 *
 *   variable 0xADDRESS +LEN NAME (image 0x…, context 0x…)
 *   function NAME (handle 0x…) parameters OFF:SIZE …, attributes N …
 *   texture 0xVALUE (record N)      surface 0xVALUE (record N)
 *   condition 0xVALUE (graph 0x…, number N)
 *
 * Kernels may have stored any of these values in memory, where they cannot be found and corrected.
 * Variables that no kernel and no program can know are left out (plan.c).
 * Lines are sorted by the object in brackets, so that the first difference is the one to report.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "content_i.h"
#include "device_memory.h"
#include "graphs.h"
#include "handle.h"
#include "image_i.h"
#include "kept.h"
#include "session.h"

struct text {
	struct sv_session *s;
	char **line;
	size_t n, cap;
	int rc;
};

static void add_line(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_line(struct text *t, const char *fmt, ...)
{
	char *line;
	va_list ap;

	if (t->n == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 256;
		char **p = realloc(t->line, cap * sizeof(*p));

		if (!p) {
			t->rc = -ENOMEM;
			return;
		}
		t->line = p;
		t->cap = cap;
	}
	va_start(ap, fmt);
	if (vasprintf(&line, fmt, ap) < 0)
		t->rc = -ENOMEM;
	else
		t->line[t->n++] = line;
	va_end(ap);
}

static void end_text(struct text *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->line[i]);
	free(t->line);
}

/* ------------------------------------------------------------------------------ listing */

#define HEX(v) ((unsigned long long)(v))

static void function(struct text *t, uint64_t handle, uint64_t real, bool kernel)
{
	const struct cuda_driver *d = &t->s->hal.drv;
	char attr[SV_FUNC_ATTRS * 12 + 1] = "", *layout = NULL;
	const char *name = "?";
	size_t off, size, len = 0, at = 0;
	FILE *f = open_memstream(&layout, &len);

	if (kernel ? d->cuKernelGetName != NULL : d->cuFuncGetName != NULL)
		(void)(kernel ? d->cuKernelGetName(&name, (CUkernel)real) :
				d->cuFuncGetName(&name, (CUfunction)real));
	for (size_t i = 0; f && !(kernel ?
	     d->cuKernelGetParamInfo((CUkernel)real, i, &off, &size) :
	     d->cuFuncGetParamInfo((CUfunction)real, i, &off, &size)); i++)
		fprintf(f, " %zu:%zu", off, size);
	if (f)
		fclose(f);
	for (int i = 0; i < SV_FUNC_ATTRS; i++) {
		CUresult r = CUDA_ERROR_NOT_SUPPORTED;
		int v = 0;

		if (kernel && d->cuKernelGetAttribute)
			r = d->cuKernelGetAttribute(&v, i, (CUkernel)real, t->s->hal.dev);
		else if (!kernel && d->cuFuncGetAttribute)
			r = d->cuFuncGetAttribute(&v, i, (CUfunction)real);
		at += snprintf(attr + at, sizeof(attr) - at, r ? " -" : " %d", v);
	}
	if (!layout)
		t->rc = -ENOMEM;
	else
		add_line(t, "function %s (handle 0x%llx) parameters%s, attributes%s", name,
			 HEX(handle), layout, attr);
	free(layout);
}

static void kernel_line(void *arg, uint64_t handle, uint64_t real, void *obj)
{
	(void)obj;
	function(arg, handle, real, true);
}

static void function_line(void *arg, uint64_t handle, uint64_t real, void *obj)
{
	(void)obj;
	function(arg, handle, real, false);
}

static void object_line(void *arg, uint64_t value, uint64_t seq, bool surface)
{
	add_line(arg, "%s 0x%llx (record %llu)", surface ? "surface" : "texture", HEX(value),
		 HEX(seq));
}

static void condition_line(void *arg, uint64_t graph, unsigned int i, uint64_t value, bool kept)
{
	(void)kept;
	add_line(arg, "condition 0x%llx (graph 0x%llx, number %u)", HEX(value), HEX(graph), i);
}

/* The sort key: the object, which stands behind the value. */
static const char *key(const char *line)
{
	const char *p = strchr(line, '(');

	return p ? p : line;
}

static int order(const void *a, const void *b)
{
	const char *x = *(char *const *)a, *y = *(char *const *)b;
	int c = strncmp(x, y, 3);

	return c ?: strcmp(key(x), key(y)) ?: strcmp(x, y);
}

static int collect(struct sv_session *s, struct text *t, struct why *why)
{
	struct plan p;
	int rc;

	*t = (struct text){ .s = s };
	rc = plan_make(s, &p, true, why);
	if (rc)
		return rc;
	for (size_t i = 0; i < p.n; i++) {
		const struct region *r = &p.p[i].r;

		if (r->kind == REGION_VARIABLE)
			add_line(t, "variable 0x%llx +%llu %s (image 0x%llx, context 0x%llx, %s)",
				 HEX(r->at), HEX(r->len), p.names + r->name, HEX(r->handle),
				 HEX(r->ctx), p.names + r->name);
	}
	plan_free(&p);
	plan_enter(s, 0);
	handle_walk(s, SV_T_CUkernel, kernel_line, t);
	handle_walk(s, SV_T_CUfunction, function_line, t);
	textures_walk(object_line, t);
	graph_conditions(s, condition_line, t);
	if (t->rc) {
		end_text(t);
		return why_text(why, t->rc, "");
	}
	if (t->n)
		qsort(t->line, t->n, sizeof(*t->line), order);
	return 0;
}

/* -------------------------------------------------------------------------- saving, comparing */

int observe_dump(struct sv_session *s, struct store_writer *w, struct store_ref *observed,
		 struct why *why)
{
	size_t len = 0;
	char *text = NULL;
	struct text t;
	FILE *f;
	int rc = collect(s, &t, why);

	if (rc)
		return rc;
	f = open_memstream(&text, &len);
	for (size_t i = 0; f && i < t.n; i++)
		fprintf(f, "%s\n", t.line[i]);
	if (f)
		fclose(f);
	end_text(&t);
	rc = text ? store_object_whole(w, text, len, observed) : -ENOMEM;
	free(text);
	return store_failed(why, rc);
}

/* The next line of text, ended by a NUL that replaces its end. */
static char *next_line(char **text)
{
	char *line = *text, *e = line ? strchr(line, '\n') : NULL;

	if (!e)
		return NULL;
	*e = 0;
	*text = e + 1;
	return line;
}

/* "variable 0xADDRESS +LEN NAME (image 0x…, context 0x…, NAME)" */
struct variable {
	unsigned long long at, image, ctx;
	const char *name;
	int name_len;
};

static bool is_variable(const char *line, struct variable *v)
{
	const char *end = strstr(line, " (image 0x");
	int name = 0;

	if (!end || sscanf(line, "variable 0x%llx +%*u %n", &v->at, &name) != 1 || !name ||
	    sscanf(end, " (image 0x%llx, context 0x%llx", &v->image, &v->ctx) != 2)
		return false;
	v->name = line + name;
	v->name_len = end - v->name;
	return v->name_len > 0;
}

static int refuse_moved(const char *old, const char *new, struct why *why)
{
	struct variable a, b;

	if (!is_variable(old, &a) || !is_variable(new, &b) || a.at == b.at)
		return why_set(why, -ESTALE, "what programs can observe has changed: it was "
			       "\"%.200s\", and is \"%.200s\"", old, new);
	return why_set(why, -ESTALE, "the variable %.*s of a module was at 0x%llx and is at 0x%llx now, but "
		       "the program or its kernels may know the old address%s", a.name_len, a.name,
		       a.at, b.at, addresses_random() ? "; the proxy's addresses are random, since "
		       "personality(ADDR_NO_RANDOMIZE) is forbidden here" : "");
}

static int compare(char *was, const struct text *t, struct why *why)
{
	for (size_t i = 0;; i++) {
		const char *old = next_line(&was), *new = i < t->n ? t->line[i] : NULL;

		if (!old && !new)
			return 0;
		if (old && new && !strcmp(old, new))
			continue;
		if (old && new && strcmp(key(old), key(new)))
			*(order(&old, &new) < 0 ? &new : &old) = NULL;
		if (old && new)
			return refuse_moved(old, new, why);
		return why_set(why, -ESTALE, "what programs can observe has changed: \"%.200s\" %s",
			       old ? old : new, old ? "is not there" : "was not there");
	}
}

/* All of the text, ended by a NUL; the caller frees it. */
static int read_text(struct store *st, const struct store_ref *observed, char **text,
		     struct why *why)
{
	struct store_reader *r;
	ssize_t got = -ENOMEM;
	int rc = store_object_open(st, observed, &r);

	*text = NULL;
	if (!rc) {
		uint64_t len = store_size(r);

		*text = malloc(len + 1);
		if (*text)
			got = store_read(r, 0, *text, len);
		rc = got < 0 ? got : (uint64_t)got != len ? -EBADMSG : 0;
		if (!rc)
			(*text)[len] = 0;
		store_reader_close(r);
	}
	if (store_failed(why, rc)) {
		free(*text);
		*text = NULL;
	}
	return rc;
}

int observe_expect(struct store *st, const struct store_ref *observed, struct why *why)
{
	char *text, *at, *line;
	int rc = read_text(st, observed, &text, why);

	at = text;
	while (!rc && (line = next_line(&at))) {
		unsigned long long value, of;
		unsigned int number = 0;

		if (sscanf(line, "texture 0x%llx (record %llu)", &value, &of) == 2 ||
		    sscanf(line, "surface 0x%llx (record %llu)", &value, &of) == 2 ||
		    sscanf(line, "condition 0x%llx (graph 0x%llx, number %u)", &value, &of,
			   &number) == 3)
			rc = why_text(why, wanted_add(of, number, value), "");
	}
	free(text);
	return rc;
}

/* A replay launches nothing, so it has not seen what kernels may know. */
static void take_seen(struct sv_session *s, const char *text)
{
	struct variable v;

	for (; text; text = strchr(text, '\n')) {
		text += *text == '\n';
		if (!strncmp(text, "variable ", 9) && is_variable(text, &v) && v.ctx)
			image_seen(s, v.image, v.ctx);
	}
}

int observe_compare(struct sv_session *s, struct store *st, const struct store_ref *observed,
		    struct why *why)
{
	struct text t;
	char *was;
	int rc = read_text(st, observed, &was, why);

	if (!rc) {
		take_seen(s, was);
		rc = collect(s, &t, why);
	}
	if (!rc) {
		rc = compare(was, &t, why);
		end_text(&t);
	}
	free(was);
	return rc;
}
