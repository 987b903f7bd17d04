// SPDX-License-Identifier: Apache-2.0
/*
 * header.c - reads functions, their types, and the PFN_name_vNNNN typedefs from C headers
 *
 * The headers are parsed once as programs see them and, where the annotations name a macro, once
 * more with it defined, which shows the older versions of functions. The union counts.
 */
#include <stdlib.h>
#include <string.h>

#include "gen.h"

static const char *text(CXString s)
{
	char *copy = strdup(clang_getCString(s));

	clang_disposeString(s);
	return copy;
}

struct func *find_func(struct lib *l, const char *name)
{
	for (int i = 0; i < l->nfunc; i++)
		if (!strcmp(l->func[i].name, name))
			return &l->func[i];
	return NULL;
}

/* Walks the names of a type: its own, then those of the typedefs below it. */
static bool next_typedef(CXType *t, const char **name)
{
	CXCursor c;

	while (t->kind == CXType_Elaborated)
		*t = clang_Type_getNamedType(*t);
	if (t->kind != CXType_Typedef)
		return false;
	c = clang_getTypeDeclaration(*t);
	*name = text(clang_getCursorSpelling(c));
	*t = clang_getTypedefDeclUnderlyingType(c);
	return true;
}

int find_handle(struct lib *l, CXType t)
{
	const char *name;

	while (next_typedef(&t, &name))
		for (int i = 0; i < l->nhandle; i++)
			if (!strcmp(l->handle[i].name, name))
				return i;
	return -1;
}

bool is_address(struct lib *l, CXType t)
{
	const char *name;

	while (next_typedef(&t, &name))
		for (int i = 0; i < l->naddress; i++)
			if (!strcmp(l->address[i], name))
				return true;
	return false;
}

struct flat {
	struct lib *l;
	const char **why;
	bool ok;
};

static enum CXVisitorResult flat_field(CXCursor c, CXClientData data)
{
	struct flat *f = data;

	if (is_flat(f->l, clang_getCursorType(c), f->why))
		return CXVisit_Continue;
	if (!strchr(*f->why, ' '))
		*f->why = format("%s is in its member %s", *f->why,
				 text(clang_getCursorSpelling(c)));
	f->ok = false;
	return CXVisit_Break;
}

/* is_flat: its bytes mean the same in another process: no pointer, handle or address inside. */
bool is_flat(struct lib *l, CXType t, const char **why)
{
	struct flat f = { l, why, true };
	CXType canon = clang_getCanonicalType(t);

	if (find_handle(l, t) >= 0) {
		*why = "handle";
		return false;
	}
	if (is_address(l, t)) {
		*why = "address";
		return false;
	}
	switch (canon.kind) {
	case CXType_ConstantArray:
		return is_flat(l, clang_getArrayElementType(t.kind == CXType_ConstantArray ? t :
							    canon), why);
	case CXType_Record:
		if (clang_Type_getSizeOf(canon) <= 0) {
			*why = "incomplete";
			return false;
		}
		clang_Type_visitFields(canon, flat_field, &f);
		return f.ok;
	case CXType_Enum:
		return true;
	default:
		if (canon.kind >= CXType_Bool && canon.kind <= CXType_LongDouble)
			return true;
		*why = canon.kind == CXType_Pointer ? "pointer" : "type";
		return false;
	}
}

static void add_pfn(struct lib *l, const char *name)
{
	const char *v = NULL;
	struct pfn p = { .suffix = "" };
	char *end;

	for (const char *s = name; (s = strstr(s, "_v")); s++)
		v = s;
	if (!v)
		return;
	p.version = strtol(v + 2, &end, 10);
	if (!strcmp(end, "_ptds"))
		p.suffix = "_ptds";
	else if (!strcmp(end, "_ptsz"))
		p.suffix = "_ptsz";
	else if (*end || end == v + 2)
		return;
	p.per_thread = *p.suffix;
	p.base = strndup(name + 4, v - name - 4);
	for (int i = 0; i < l->npfn; i++)
		if (!strcmp(l->pfn[i].base, p.base) && l->pfn[i].version == p.version &&
		    !strcmp(l->pfn[i].suffix, p.suffix))
			return;
	l->pfn = grow(l->pfn, l->npfn, sizeof(*l->pfn));
	l->pfn[l->npfn++] = p;
}

static void add_func(struct lib *l, CXCursor c, const char *name)
{
	struct func f = { .name = name };

	if (find_func(l, name))
		return;
	f.ret = text(clang_getTypeSpelling(clang_getCursorResultType(c)));
	f.nparam = clang_Cursor_getNumArguments(c);
	f.param = calloc(f.nparam + 1, sizeof(*f.param));
	for (int i = 0; i < f.nparam; i++) {
		CXCursor a = clang_Cursor_getArgument(c, i);
		struct param *p = &f.param[i];

		p->name = text(clang_getCursorSpelling(a));
		p->ct = clang_getCursorType(a);
		p->type = text(clang_getTypeSpelling(p->ct));
		p->handle = -1;
	}
	l->func = grow(l->func, l->nfunc, sizeof(*l->func));
	l->func[l->nfunc++] = f;
}

/* Whether a declaration is in one of the named headers; others are ignored. */
static bool named_header(struct lib *l, CXCursor c)
{
	CXFile file;
	const char *path, *base;

	clang_getExpansionLocation(clang_getCursorLocation(c), &file, NULL, NULL, NULL);
	if (!file)
		return false;
	path = text(clang_getFileName(file));
	base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	for (int i = 0; i < l->nheader; i++)
		if (!strcmp(l->header[i], base))
			return true;
	return false;
}

static enum CXChildVisitResult visit(CXCursor c, CXCursor parent, CXClientData data)
{
	struct lib *l = data;
	const char *name;

	(void)parent;
	if (c.kind == CXCursor_LinkageSpec)
		return CXChildVisit_Recurse;
	if (!named_header(l, c))
		return CXChildVisit_Continue;
	name = text(clang_getCursorSpelling(c));
	if (c.kind == CXCursor_TypedefDecl && !strncmp(name, "PFN_", 4))
		add_pfn(l, name);
	else if (c.kind == CXCursor_FunctionDecl &&
		 clang_getCursorLinkage(c) == CXLinkage_External)
		add_func(l, c, name);
	return CXChildVisit_Continue;
}

static void parse(struct lib *l, const char **inc, int ninc, const char *define)
{
	const char *args[ninc + 4];
	struct CXUnsavedFile main = { .Filename = "svgen.c" };
	char *source = format("%s", "");
	CXIndex index = clang_createIndex(0, 0);
	CXTranslationUnit tu;
	int n = 0;

	for (int i = 0; i < ninc; i++)
		args[n++] = inc[i];
	args[n++] = "-resource-dir";
	args[n++] = RESOURCE_DIR;
	if (define)
		args[n++] = format("-D%s", define);
	for (int i = 0; i < l->nheader; i++)
		source = format("%s#include <%s>\n", source, l->header[i]);
	main.Contents = source;
	main.Length = strlen(source);
	tu = clang_parseTranslationUnit(index, main.Filename, args, n, &main, 1,
					CXTranslationUnit_SkipFunctionBodies);
	if (!tu)
		fail(l->ann, 0, "libclang cannot parse the headers");
	for (unsigned int i = 0; i < clang_getNumDiagnostics(tu); i++) {
		CXDiagnostic d = clang_getDiagnostic(tu, i);

		if (clang_getDiagnosticSeverity(d) >= CXDiagnostic_Error)
			fail(l->ann, 0, "%s", text(clang_formatDiagnostic(d,
				clang_defaultDiagnosticDisplayOptions())));
	}
	clang_visitChildren(clang_getTranslationUnitCursor(tu), visit, l);
	/* The unit is not freed: parameters' types point into it. */
}

void header_read(struct lib *l, const char **inc, int ninc)
{
	parse(l, inc, ninc, NULL);
	if (l->define)
		parse(l, inc, ninc, l->define);
	if (!l->nfunc)
		fail(l->ann, 0, "the headers declare no function");
	for (int i = 0; i < l->nfunc; i++) {
		struct func *f = &l->func[i];
		size_t n = strlen(f->name);

		if (n > 5 && (!strcmp(f->name + n - 5, "_ptds") ||
			      !strcmp(f->name + n - 5, "_ptsz")))
			f->base = find_func(l, strndup(f->name, n - 5));
		if (l->alias && !strncmp(f->name, l->alias, strlen(l->alias)))
			f->base = find_func(l, f->name + strlen(l->alias));
		if (f->base)
			f->base->variant = f;
	}
}
