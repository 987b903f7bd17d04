// SPDX-License-Identifier: Apache-2.0
/*
 * client.c - writes the client stubs, and a refusal for each unsupported function
 */
#include <string.h>

#include "gen.h"

static void prototype(FILE *c, const struct func *f, const char *name, const char *more)
{
	fprintf(c, "%s %s(", f->ret, name);
	for (int i = 0; i < f->nparam; i++) {
		const struct param *p = &f->param[i];

		fprintf(c, "%s%s%s%s", i ? ", " : "", p->type,
			p->type[strlen(p->type) - 1] == '*' ? "" : " ", p->name);
	}
	fprintf(c, "%s%s)", !f->nparam ? (*more ? "" : "void") : *more ? ", " : "", more);
}

static void call(FILE *c, const struct func *f, const char *name, const char *more)
{
	fprintf(c, "%s(", name);
	for (int i = 0; i < f->nparam; i++)
		fprintf(c, "%s%s", i ? ", " : "", f->param[i].name);
	fprintf(c, "%s%s)", f->nparam && *more ? ", " : "", more);
}

/* Writes an expression: the bytes of a device range, or the elements of an array in[N]. */
static void expression(FILE *c, const struct func *f, const char *expr, const char *of)
{
	char *rest = strdup(expr), *w, *sum = NULL;
	bool pitch = !strncmp(expr, "pitch(", 6);

	if (pitch) {
		rest += 6;
		rest[strlen(rest) - 1] = 0;
	}
	while ((w = strsep(&rest, pitch ? "," : "*"))) {
		char *term = *w >= '0' && *w <= '9' ? w : format("(uint64_t)%s%s", of, w);

		if (pitch)
			sum = sum ? format("%s, %s", sum, term) : term;
		else
			sum = sum ? format("sv_mul(%s, %s)", sum, term) : term;
	}
	(void)f;
	fprintf(c, pitch ? "sv_pitch(%s)" : "%s", sum);
}

static void check(FILE *c, const char *what)
{
	fprintf(c, "\trc = %s;\n\tif (rc)\n\t\treturn rc;\n", what);
}

static bool names_object(const struct func *f)
{
	for (int i = 0; i < f->nparam; i++)
		if (f->param[i].kind == K_HANDLE || f->param[i].kind == K_DEL ||
		    (f->param[i].kind == K_ARRAY && f->param[i].handle >= 0))
			return true;
	return false;
}

/* Writes the checks of arguments that come before the record is sent. */
static void arguments(FILE *c, struct lib *l, const struct func *f)
{
	for (int i = 0; i < f->nparam; i++) {
		const struct param *p = &f->param[i];

		if (p->kind == K_OUT || p->kind == K_IN || p->kind == K_INOUT || p->kind == K_STR ||
		    p->kind == K_NEW) {
			if (p->nullable)
				fprintf(c, "\tif (!%s)\n\t\ta.nulls |= %uu;\n", p->name,
					1u << null_bit(f, p));
			else
				fprintf(c, "\tif (!%s)\n\t\treturn %s;\n", p->name, l->err_value);
		} else if (p->kind == K_ARRAY) {
			if (p->nullable)
				fprintf(c, "\tif (!%s)\n\t\ta.nulls |= %uu;\n", p->name,
					1u << null_bit(f, p));
			else
				fprintf(c, "\tif (!%s && %s)\n\t\treturn %s;\n", p->name, p->expr,
					l->err_value);
			fprintf(c, "\tif (%s && sv_mul((uint64_t)%s, sizeof(*%s)) > UINT32_MAX)\n"
				"\t\treturn %s;\n", p->name, p->expr, p->name, l->err_value);
		}
	}
	if (f->ctx)
		check(c, "sv_ctx(&a.ctx)");
	for (int i = 0; i < f->nparam; i++) {
		const struct param *p = &f->param[i];
		const char *n = p->name;

		if (p->kind == K_HANDLE && l->handle[p->handle].stream) {
			check(c, format("sv_stream((uint64_t)(uintptr_t)%s, %s, &a.%s)", n,
					f->variant ? "per_thread" : "0", n));
		} else if (p->kind == K_HANDLE || p->kind == K_DEL) {
			fprintf(c, "\ta.%s = (uint64_t)(uintptr_t)%s;\n", n, n);
			if (p->nullable)
				fprintf(c, "\trc = a.%s ? sv_use(SV_T_%s, a.%s) : 0;\n"
					"\tif (rc)\n\t\treturn rc;\n", n,
					l->handle[p->handle].name, n);
			else
				check(c, format("sv_use(SV_T_%s, a.%s)",
						l->handle[p->handle].name, n));
			if (!strcmp(l->handle[p->handle].name, "CUdevice_v1"))
				fprintf(c, "\ta.%s = sv_device(a.%s);\n", n, n);
		} else if (p->kind == K_VALUE || p->kind == K_ADDR) {
			fprintf(c, "\ta.%s = %s;\n", n, n);
		} else if ((p->kind == K_IN || p->kind == K_INOUT) && p->nullable) {
			fprintf(c, "\tif (%s)\n\t\ta.%s = *%s;\n", n, n, n);
		} else if (p->kind == K_IN || p->kind == K_INOUT) {
			fprintf(c, "\ta.%s = *%s;\n", n, n);
		} else if (p->kind == K_ARRAY && p->handle >= 0) {
			fprintf(c, "\tfor (uint64_t i = 0; %s && i < (uint64_t)%s; i++) {\n"
				"\t\trc = sv_use(SV_T_%s, (uint64_t)(uintptr_t)%s[i]);\n"
				"\t\tif (rc)\n\t\t\treturn rc;\n\t}\n", n, p->expr,
				l->handle[p->handle].name, n);
		}
	}
	if (f->ctx && names_object(f))
		fprintf(c, "\ta.ctx = sv_ctx_named(a.ctx);\n");
}

/* Strings and arrays: a single one is sent from its place, several are gathered. */
static void tail(FILE *c, struct lib *l, const struct func *f)
{
	int n = 0;

	for (int i = 0; i < f->nparam; i++) {
		const struct param *p = &f->param[i];

		if (p->kind == K_STR)
			fprintf(c, "\tsize[%d] = %s ? strlen(%s) + 1 : 0;\n"
				"\tif (size[%d] > UINT32_MAX)\n\t\treturn %s;\n"
				"\ta.%s_len = size[%d];\n", n, p->name, p->name, n,
				l->err_value, p->name, n);
		else if (p->kind == K_ARRAY)
			fprintf(c, "\tsize[%d] = %s ? sv_mul((uint64_t)%s, sizeof(*%s)) : 0;\n", n,
				p->name, p->expr, p->name);
		else
			continue;
		fprintf(c, "\tpart[%d] = %s;\n", n, p->name);
		n++;
	}
	if (n == 1) {
		fprintf(c, "\tdata = part[0];\n\tdata_len = size[0];\n");
		return;
	}
	fprintf(c, "\tfor (int i = 0; i < %d; i++)\n\t\tif (size[i])\n"
		"\t\t\tdata_len = ((data_len + 7) & ~7ull) + size[i];\n"
		"\tif (data_len) {\n\t\tuint8_t *to_ = sv_scratch(data_len);\n\n"
		"\t\tif (!to_)\n\t\t\treturn %s;\n\t\tdata = to_;\n\t\tmemset(to_, 0, data_len);\n"
		"\t\tfor (uint64_t i = 0, at = 0; i < %d; i++) {\n\t\t\tif (!size[i])\n"
		"\t\t\t\tcontinue;\n\t\t\tat = (at + 7) & ~7ull;\n"
		"\t\t\tmemcpy(to_ + at, part[i], size[i]);\n\t\t\tat += size[i];\n\t\t}\n\t}\n",
		n, l->err_value, n);
}

static void results(FILE *c, struct lib *l, const struct func *f)
{
	for (int i = 0; i < f->nparam; i++) {
		const struct param *p = &f->param[i];
		const char *h = p->handle >= 0 ? l->handle[p->handle].name : "";

		if (p->kind == K_OUT || p->kind == K_INOUT) {
			fprintf(c, p->nullable ? "\tif (%s)\n\t\t*%s = r.%s;\n" :
				"\t%.0s*%s = r.%s;\n", p->name, p->name, p->name);
		} else if (p->kind == K_DEL) {
			fprintf(c, "\tsv_drop(SV_T_%s, a.%s);\n", h, p->name);
		} else if (p->kind == K_NEW) {
			if (l->handle[p->handle].real)
				check(c, format("sv_made(SV_T_%s, r.%s)", h, p->name));
			fprintf(c, "\t*%s = (%s)(uintptr_t)%s.%s;\n", p->name, h,
				l->handle[p->handle].real ? "r" : "a", p->name);
		}
	}
}

static void ranges(FILE *c, const struct func *f)
{
	for (int i = 0; i < f->nparam; i++) {
		const struct param *p = &f->param[i];

		if (p->kind != K_ADDR || !p->expr)
			continue;
		fprintf(c, "\trc = sv_range(%s, ", p->name);
		expression(c, f, p->expr, "");
		fprintf(c, ", %d);\n\tif (rc)\n\t\treturn rc;\n", p->write);
	}
}

static void put_send(FILE *c, struct lib *l, const struct func *f, bool args, bool reply)
{
	const char *a = args ? "&a, sizeof(a)" : "NULL, 0";
	const char *d = has_tail(f) ? "data, data_len" : "NULL, 0";
	const struct param *s = stream_param(l, f), *created = NULL;

	for (int i = 0; i < f->nparam; i++)
		if (f->param[i].kind == K_NEW && !l->handle[f->param[i].handle].real)
			created = &f->param[i];
	if (created)
		check(c, format("sv_new(SV_T_%s, &a.%s)", l->handle[created->handle].name,
				created->name));
	if (!f->late)
		ranges(c, f);
	if (s)
		fprintf(c, "\tif (sv_capturing(a.%s))\n"
			"\t\treturn sv_capture(a.%s, SV_OP_%s, %s, %s);\n", s->name, s->name,
			f->name, a, d);
	if (f->late)
		ranges(c, f);
	if (f->sync)
		fprintf(c, "\trc = sv_sync(SV_OP_%s, %s, %s, %s);\n", f->name, a, d,
			reply ? "&r, sizeof(r)" : "NULL, 0");
	else
		fprintf(c, "\trc = sv_async(SV_OP_%s, %s, %s);\n", f->name, a, d);
	fprintf(c, "\tif (rc)%s\n", created ? " {" : "");
	if (created)
		fprintf(c, "\t\tsv_drop(SV_T_%s, a.%s);\n", l->handle[created->handle].name,
			created->name);
	fprintf(c, "\t\treturn rc;\n%s", created ? "\t}\n" : "");
}

static void stub(FILE *c, struct lib *l, const struct func *f)
{
	struct field *list;
	bool args = wire_args(l, f, &list), reply = wire_reply(l, f, &list);
	bool both = f->variant;
	const char *pt = both ? "per_thread" : "0";

	fputc('\n', c);
	if (both) {
		fprintf(c, "static ");
		prototype(c, f, format("do_%s", f->name), "int per_thread");
	} else {
		prototype(c, f, f->name, "");
	}
	fprintf(c, "\n{\n");
	if (args)
		fprintf(c, "\tstruct sv_%s a;\n", f->name);
	if (reply)
		fprintf(c, "\tstruct svr_%s r;\n", f->name);
	if (has_tail(f)) {
		int n = 0;

		for (int i = 0; i < f->nparam; i++)
			n += f->param[i].kind == K_ARRAY || f->param[i].kind == K_STR;
		fprintf(c, "\tconst void *part[%d], *data = NULL;\n"
			"\tuint64_t size[%d], data_len = 0;\n", n, n);
	}
	fprintf(c, "\tint rc;\n\n");
	if (names_object(f))
		fprintf(c, "\tSV_STUB;\n\n");
	if (both && !stream_param(l, f))
		fprintf(c, "\t(void)per_thread;\n");
	if (args)
		fprintf(c, "\tmemset(&a, 0, sizeof(a));\n");
	if (reply)
		fprintf(c, "\tmemset(&r, 0, sizeof(r));\n");
	if (f->hook) {
		fprintf(c, "\t{\n\t\tint done = 0;\n\n\t\trc = ");
		call(c, f, format("sv_hook_%s", f->name), format("%s, &done", pt));
		fprintf(c, ";\n\t\tif (done)\n\t\t\treturn rc;\n\t}\n");
	}
	arguments(c, l, f);
	if (has_tail(f))
		tail(c, l, f);
	put_send(c, l, f, args, reply);
	results(c, l, f);
	fprintf(c, "\treturn %s;\n}\n", l->ok);
	if (!both)
		return;
	fputc('\n', c);
	prototype(c, f, f->name, "");
	fprintf(c, "\n{\n\treturn ");
	call(c, f, format("do_%s", f->name), "0");
	fprintf(c, ";\n}\n\n");
	prototype(c, f, f->variant->name, "");
	fprintf(c, "\n{\n\treturn ");
	call(c, f, format("do_%s", f->name), l->alias ? "0" : "1");
	fprintf(c, ";\n}\n");
}

static void refusal(FILE *c, const struct func *f)
{
	fputc('\n', c);
	prototype(c, f, f->name, "");
	fprintf(c, "\n{\n");
	for (int i = 0; i < f->nparam; i++)
		fprintf(c, "\t(void)%s;\n", f->param[i].name);
	fprintf(c, "\treturn sv_unsupported(\"%s\", \"%s\");\n}\n", f->name, f->reason);
}

/*
 * LIB_forms.c: the per-thread forms of functions by hand, and a refusal for each function by hand
 * that is not written yet, which the linker drops where there is a real one.
 */
static void forms(struct lib *l, const char *dir)
{
	FILE *c = create(dir, format("%s_forms.c", l->name));

	fprintf(c, "/* Generated by svgen. */\n#include \"stub.h\"\n#include \"%s_ops.h\"\n\n"
		"#pragma GCC diagnostic ignored \"-Wdeprecated-declarations\"\n", l->name);
	for (int i = 0; i < l->nfunc; i++) {
		const struct func *f = &l->func[i];

		if (f->class != C_HAND && f->class != C_LOCAL)
			continue;
		fputc('\n', c);
		if (!f->base) {
			fprintf(c, "__attribute__((weak)) ");
			prototype(c, f, f->name, "");
			fprintf(c, "\n{\n");
			for (int j = 0; j < f->nparam; j++)
				fprintf(c, "\t(void)%s;\n", f->param[j].name);
			fprintf(c, "\treturn sv_unsupported(\"%s\", \"not built yet\");\n}\n",
				f->name);
			continue;
		}
		prototype(c, f, f->name, "");
		fprintf(c, "\n{\n\tint before = sv_per_thread(1);\n\t%s rc = ", l->result);
		call(c, f, f->base->name, "");
		fprintf(c, ";\n\n\tsv_per_thread(before);\n\treturn rc;\n}\n");
	}
	fclose(c);
}

/*
 * LIB_forms.c of a library with second names: a refusal for each function that is not written yet, as
 * above, and PREFIXname, which calls the function of this library whatever else has its name.
 */
static void twins(struct lib *l, const char *dir)
{
	FILE *c = create(dir, format("%s_forms.c", l->name));

	fprintf(c, "/* Generated by svgen. */\n#include \"stub.h\"\n#include \"%s_ops.h\"\n\n"
		"#pragma GCC diagnostic ignored \"-Wdeprecated-declarations\"\n", l->name);
	for (int i = 0; i < l->nfunc; i++) {
		const struct func *f = &l->func[i];
		const char *name = format("%s%s", l->alias, f->name);

		if (f->base)
			continue;
		if (f->class != C_NONE && !strcmp(f->ret, l->result)) {
			fprintf(c, "\n__attribute__((weak)) ");
			prototype(c, f, f->name, "");
			fprintf(c, "\n{\n");
			for (int j = 0; j < f->nparam; j++)
				fprintf(c, "\t(void)%s;\n", f->param[j].name);
			fprintf(c, "\treturn sv_unsupported(\"%s\", \"not built yet\");\n}\n",
				f->name);
		}
		fputc('\n', c);
		if (!f->variant) {
			prototype(c, f, name, "");
			fprintf(c, ";\n");
		}
		prototype(c, f, name, "");
		fprintf(c, "\n{\n\t%s", strcmp(f->ret, "void") ? "return " : "");
		call(c, f, f->name, "");
		fprintf(c, ";\n}\n");
	}
	fclose(c);
}

/* LIB_hooks.h, LIB_stubs.c, LIB_forms.c */
void client_write(struct lib *l, const char *dir)
{
	FILE *h = create(dir, format("%s_hooks.h", l->name));
	FILE *c = create(dir, format("%s_stubs.c", l->name));

	fprintf(h, "/* Generated by svgen. */\n#ifndef SV_%s_HOOKS_H\n#define SV_%s_HOOKS_H\n\n"
		"#include \"%s_ops.h\"\n\n", l->name, l->name, l->name);
	fprintf(c, "/* Generated by svgen. */\n#include <string.h>\n\n#include \"stub.h\"\n"
		"#include \"%s_ops.h\"\n#include \"%s_hooks.h\"\n\n"
		"/* Older forms of a function are there for old programs: say nothing of their age. */\n"
		"#pragma GCC diagnostic ignored \"-Wdeprecated-declarations\"\n", l->name, l->name);
	for (int i = 0; i < l->nfunc; i++) {
		const struct func *f = &l->func[i];

		if (f->class == C_NONE && !(l->alias && f->base)) {
			refusal(c, f);
		} else if (f->class == C_GEN && !f->base) {
			stub(c, l, f);
			if (f->hook) {
				prototype(h, f, format("sv_hook_%s", f->name),
					  "int per_thread, int *done");
				fprintf(h, ";\n");
			}
		}
	}
	fprintf(h, "\n#endif\n");
	fclose(h);
	fclose(c);
	if (l->alias)	/* second names are the only other forms */
		twins(l, dir);
	else
		forms(l, dir);
}
