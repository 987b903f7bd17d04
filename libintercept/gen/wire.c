// SPDX-License-Identifier: Apache-2.0
/*
 * wire.c - the layout of generated calls: fixed structs, widest members first, padding explicit
 *
 * A record is the struct of its function, a multiple of 8 bytes, followed by strings and arrays in
 * the order of parameters, each starting on 8 bytes. A reply is one struct.
 */
#include <stdlib.h>
#include <string.h>

#include "gen.h"

#define REPLY_MAX 44	/* SINGVGPU_CPL_DATA */
#define ALIGN_MAX 8

static void add_field(struct field **list, int *n, const char *name, const char *type,
		      unsigned int size, unsigned int align)
{
	*list = grow(*list, *n, sizeof(**list));
	(*list)[(*n)++] = (struct field){ name, type, size, align };
}

static const char *bare(CXType t)
{
	CXString s = clang_getTypeSpelling(clang_getUnqualifiedType(t));
	const char *copy = strdup(clang_getCString(s));

	clang_disposeString(s);
	return copy;
}

static CXType pointee(const struct param *p)
{
	CXType t = p->ct;

	while (t.kind == CXType_Elaborated)
		t = clang_Type_getNamedType(t);
	if (t.kind != CXType_Pointer)
		t = clang_getCanonicalType(t);
	return clang_getPointeeType(t);
}

static void add_type(struct field **list, int *n, const char *name, CXType t)
{
	add_field(list, n, name, bare(t), clang_Type_getSizeOf(t), clang_Type_getAlignOf(t));
}

/* Widest alignment first; returns the size, padding included. */
static unsigned int arrange(struct lib *l, const struct func *f, struct field **list, int *n,
			    unsigned int multiple)
{
	struct field *sorted = NULL;
	unsigned int size = 0, pad;
	int m = 0;

	for (unsigned int a = 256; a; a /= 2)
		for (int i = 0; i < *n; i++) {
			struct field *x = &(*list)[i];

			if (x->align != a)
				continue;
			if (a > ALIGN_MAX)
				fail(l->ann, f->line, "%s of %s is aligned to %u bytes", x->name,
				     f->name, a);
			add_field(&sorted, &m, x->name, x->type, x->size, x->align);
			size += x->size;
		}
	pad = -size % multiple;
	if (pad)
		add_field(&sorted, &m, "pad", "uint8_t", pad, 1);
	*list = sorted;
	*n = m;
	return size + pad;
}

bool has_nulls(const struct func *f)
{
	for (int i = 0; i < f->nparam; i++)
		if (f->param[i].nullable && f->param[i].kind != K_HANDLE)
			return true;
	return false;
}

int null_bit(const struct func *f, const struct param *p)
{
	int bit = 0;

	for (int i = 0; &f->param[i] != p; i++)
		bit += f->param[i].nullable && f->param[i].kind != K_HANDLE;
	return bit;
}

bool has_tail(const struct func *f)
{
	for (int i = 0; i < f->nparam; i++)
		if (f->param[i].kind == K_ARRAY || f->param[i].kind == K_STR)
			return true;
	return false;
}

const struct param *stream_param(const struct lib *l, const struct func *f)
{
	for (int i = 0; i < f->nparam; i++)
		if (f->param[i].kind == K_HANDLE && l->handle[f->param[i].handle].stream)
			return &f->param[i];
	return NULL;
}

int wire_args(struct lib *l, const struct func *f, struct field **out)
{
	struct field *list = NULL;
	int n = 0;

	if (f->ctx)
		add_field(&list, &n, "ctx", "uint64_t", 8, 8);
	for (int i = 0; i < f->nparam; i++) {
		struct param *p = &f->param[i];

		switch (p->kind) {
		case K_NEW:
			if (l->handle[p->handle].real)
				break;
			/* fallthrough */
		case K_HANDLE:
		case K_DEL:
		case K_ADDR:
			add_field(&list, &n, p->name, "uint64_t", 8, 8);
			break;
		case K_VALUE:
			add_type(&list, &n, p->name, p->ct);
			break;
		case K_IN:
		case K_INOUT:
			add_type(&list, &n, p->name, pointee(p));
			break;
		case K_STR:
			add_field(&list, &n, format("%s_len", p->name), "uint32_t", 4, 4);
			break;
		default:
			break;
		}
	}
	if (has_nulls(f))
		add_field(&list, &n, "nulls", "uint32_t", 4, 4);
	arrange(l, f, &list, &n, 8);
	*out = list;
	return n;
}

int wire_reply(struct lib *l, const struct func *f, struct field **out)
{
	struct field *list = NULL;
	unsigned int size, align = 1;
	int n = 0;

	for (int i = 0; i < f->nparam; i++) {
		struct param *p = &f->param[i];

		if (p->kind == K_OUT || p->kind == K_INOUT)
			add_type(&list, &n, p->name, pointee(p));
		else if (p->kind == K_NEW && l->handle[p->handle].real)
			add_field(&list, &n, p->name, "uint64_t", 8, 8);
	}
	for (int i = 0; i < n; i++)
		align = list[i].align > align ? list[i].align : align;
	size = arrange(l, f, &list, &n, align);
	if (size > REPLY_MAX)
		fail(l->ann, f->line, "%s has a reply of %u bytes, over %d: by hand", f->name, size,
		     REPLY_MAX);
	if (out)
		*out = list;
	return n;
}

static unsigned int write_struct(FILE *h, const char *tag, const char *name, struct field *list,
				 int n)
{
	unsigned int size = 0;

	fprintf(h, "\nstruct %s%s {\n", tag, name);
	for (int i = 0; i < n; i++) {
		if (!strcmp(list[i].name, "pad"))
			fprintf(h, "\tuint8_t pad[%u];\n", list[i].size);
		else
			fprintf(h, "\t%s %s;\n", list[i].type, list[i].name);
		size += list[i].size;
	}
	fprintf(h, "};\n_Static_assert(sizeof(struct %s%s) == %u, \"%s%s\");\n", tag, name, size, tag,
		name);
	return size;
}

static void write_info(struct lib *l, const char *dir)
{
	FILE *c = create(dir, format("%s_info.c", l->name));

	fprintf(c, "/* Generated by svgen. */\n#include <stddef.h>\n\n#include \"%s_ops.h\"\n\n"
		"const struct sv_op %s_ops[] = {\n", l->name, l->name);
	for (int i = 0; i < l->nfunc; i++) {
		const struct func *f = &l->func[i];
		const struct param *s;
		struct field *list;

		if (!f->op || f->base)
			continue;
		fprintf(c, "\t[SV_OP_%s] = { .name = \"%s\"", f->name, f->name);
		if (f->class == C_GEN) {
			fprintf(c, ", .flags = SV_GENERATED%s%s%s", f->sync ? " | SV_SYNC" : "",
				f->log ? " | SV_LOG" : "", has_tail(f) ? " | SV_TAIL" : "");
			if (wire_args(l, f, &list))
				fprintf(c, ",\n\t\t.args = sizeof(struct sv_%s)", f->name);
			if (wire_reply(l, f, &list))
				fprintf(c, ", .reply = sizeof(struct svr_%s)", f->name);
			s = stream_param(l, f);
			if (s)
				fprintf(c, ",\n\t\t.stream = offsetof(struct sv_%s, %s) + 1",
					f->name, s->name);
			for (int k = 0; k < f->nparam; k++) {
				const struct param *p = &f->param[k];

				if (p->kind != K_NEW && p->kind != K_DEL)
					continue;
				fprintf(c, ",\n\t\t.%s = SV_T_%s", p->kind == K_NEW ? "creates" :
					"destroys", l->handle[p->handle].name);
				fprintf(c, ", .handle = offsetof(struct sv%s_%s, %s) + 1",
					p->kind == K_NEW && l->handle[p->handle].real ? "r" : "",
					f->name, p->name);
			}
		}
		fprintf(c, " },\n");
	}
	for (int i = 0; i < l->nrecord; i++)
		fprintf(c, "\t[SV_OP_%s] = { .name = \"%s\" },\n", l->record[i].name,
			l->record[i].name);
	fprintf(c, "};\n\nconst unsigned int %s_ops_count = sizeof(%s_ops) / sizeof(*%s_ops);\n",
		l->name, l->name, l->name);
	fclose(c);
}

/* The first number above those of the library. */
static int ops_end(const struct lib *l)
{
	int end = 1;

	for (int i = 0; i < l->nfunc; i++)
		if (l->func[i].op >= end)
			end = l->func[i].op + 1;
	for (int i = 0; i < l->nrecord; i++)
		if (l->record[i].op >= end)
			end = l->record[i].op + 1;
	return end;
}

/* LIB_ops.h, LIB_info.c */
void wire_write(struct lib *l, const char *dir)
{
	FILE *h = create(dir, format("%s_ops.h", l->name));
	struct field *list;
	int n;

	fprintf(h, "/* Generated by svgen. */\n#ifndef SV_%s_OPS_H\n#define SV_%s_OPS_H\n\n",
		l->name, l->name);
	if (l->define)
		fprintf(h, "#ifndef %s\n#define %s\n#endif\n", l->define, l->define);
	for (int i = 0; i < l->nheader; i++)
		fprintf(h, "#include <%s>\n", l->header[i]);
	fprintf(h, "#include <stdint.h>\n\n#include \"op.h\"\n\nenum {\n");
	for (int i = 0; i < l->nfunc; i++)
		if (l->func[i].op && !l->func[i].base)
			fprintf(h, "\tSV_OP_%s = %d,\n", l->func[i].name, l->func[i].op);
	for (int i = 0; i < l->nrecord; i++)
		fprintf(h, "\tSV_OP_%s = %d,\n", l->record[i].name, l->record[i].op);
	fprintf(h, "\tSV_OPS_%s = %d,\t/* above all of them */\n};\n\nenum {\n\tSV_T_%s_none,\n",
		l->name, ops_end(l), l->name);
	for (int i = 0; i < l->nhandle; i++)
		fprintf(h, "\tSV_T_%s,\n", l->handle[i].name);
	fprintf(h, "};\n\nextern const struct sv_op %s_ops[];\n"
		"extern const unsigned int %s_ops_count;\n", l->name, l->name);
	for (int i = 0; i < l->nfunc; i++) {
		const struct func *f = &l->func[i];

		if (f->base || f->class != C_GEN)
			continue;
		n = wire_args(l, f, &list);
		if (n)
			write_struct(h, "sv_", f->name, list, n);
		n = wire_reply(l, f, &list);
		if (n)
			write_struct(h, "svr_", f->name, list, n);
	}
	fprintf(h, "\n#endif\n");
	fclose(h);
	write_info(l, dir);
}
