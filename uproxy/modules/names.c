// SPDX-License-Identifier: Apache-2.0
/*
 * names.c - finds the variables in PTX text, in cubins and in the fatbins that hold them
 *
 * The PTX reader knows blanks, comments, strings, brackets and declarations:
 *
 *   [.visible|.weak|.common|.extern] (.global|.const) {.align N|.attribute(..)|.type} name[..] [= ..], .. ;
 *
 * fatbin.h describes fatbins. Only lengths that image_whole has checked are trusted.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fatbin_unpack.h"
#include "names.h"

/* ------------------------------------------------------------------------------ the list */

static int room(struct names *x)
{
	char **p;

	if (x->n == x->cap) {
		size_t cap = x->cap ? x->cap * 2 : 64;

		p = realloc(x->name, cap * sizeof(*p));
		if (!p)
			return -ENOMEM;
		x->name = p;
		x->cap = cap;
	}
	return 0;
}

static int add_name(struct names *x, const char *name, size_t len, bool private)
{
	char *p = room(x) ? NULL : malloc(len + 2);

	if (!p)
		return -ENOMEM;
	p[0] = private;
	memcpy(p + 1, name, len);
	p[len + 1] = 0;
	x->name[x->n++] = p + 1;
	return 0;
}

static void drop(char *name)
{
	free(name - 1);
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

void names_sort(struct names *x)
{
	size_t n = 0;

	if (x->n)
		qsort(x->name, x->n, sizeof(*x->name), compare);
	for (size_t i = 0; i < x->n; i++) {
		char *name = x->name[i], *last = n ? x->name[n - 1] : NULL;

		if (!last || strcmp(last, name)) {
			x->name[n++] = name;
			continue;
		}
		/* Compilers call strings $str, which never change. */
		if (x->linked && last[-1] && name[-1] && name[0] != '$')
			snprintf(x->twice, sizeof(x->twice), "%s", name);
		drop(name);
	}
	x->n = n;
}

void names_free(struct names *x)
{
	for (size_t i = 0; i < x->n; i++)
		drop(x->name[i]);
	free(x->name);
	*x = (struct names){ 0 };
}

/* ------------------------------------------------------------------------------ PTX */

static bool in_word(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

/* Skips a string, a comment, or one character that is no part of a word. */
static const char *past(const char *p, const char *end)
{
	if (*p == '"') {
		for (p++; p < end && *p != '"'; p++)
			if (*p == '\\' && p + 1 < end)
				p++;
	} else if (*p == '/' && p + 1 < end && p[1] == '/') {
		while (p < end && *p != '\n')
			p++;
	} else if (*p == '/' && p + 1 < end && p[1] == '*') {
		p = memmem(p + 2, end - p - 2, "*/", 2);
		return p ? p + 2 : end;
	}
	return p < end ? p + 1 : end;
}

/* The next word or other character. *len is 0 at the end. */
static const char *token(const char *p, const char *end, size_t *len)
{
	const char *q;

	while (p < end && (isspace((unsigned char)*p) ||
			   (*p == '/' && p + 1 < end && (p[1] == '/' || p[1] == '*'))))
		p = *p == '/' ? past(p, end) : p + 1;
	for (q = p; q < end && in_word(*q); q++)
		;
	if (q == p && p < end)
		q = past(p, end);
	*len = q - p;
	return p;
}

static bool is_word(const char *p, size_t len, const char *word)
{
	return len == strlen(word) && !memcmp(p, word, len);
}

enum { PRIVATE, VISIBLE, EXTERN };

/* Reads the names behind .global or .const; returns the semicolon that ends them. */
static const char *declaration(struct names *x, const char *p, const char *end, int linkage,
			       bool local, int *err)
{
	bool named = false;
	int depth = 0;
	size_t len;

	for (; !*err; p += len) {
		p = token(p, end, &len);
		if (!len || (!depth && strchr(";)]}", *p)))
			return p;
		if (strchr("([{", *p))
			depth++;
		else if (strchr(")]}", *p))
			depth--;
		else if (*p == ',' && !depth)
			named = false;
		else if (!depth && !named && *p != '.' && !isdigit((unsigned char)*p) &&
			 in_word(*p)) {
			named = true;
			if (linkage != EXTERN)
				*err = add_name(x, p, len, linkage == PRIVATE);
			if (local)
				snprintf(x->local, sizeof(x->local), "%.*s", (int)len, p);
		}
	}
	return end;
}

static int scan_text(struct names *x, const char *p, size_t size)
{
	const char *end = p + size;
	int linkage = PRIVATE, depth = 0, parens = 0, err = 0;
	bool func = false;
	size_t len;

	for (; !err; p += len) {
		p = token(p, end, &len);
		if (!len)
			break;
		if (*p == '{' || *p == '}')
			depth += *p == '{' ? 1 : depth ? -1 : 0;
		else if (*p == '(' || *p == ')')
			parens += *p == '(' ? 1 : parens ? -1 : 0;
		if (parens)
			continue;
		if (is_word(p, len, ".global") || is_word(p, len, ".const")) {
			p = declaration(x, p + len, end, linkage, depth > 0, &err);
			len = 0;
		} else if (is_word(p, len, ".extern") && !depth) {
			linkage = EXTERN;
		} else if ((is_word(p, len, ".visible") || is_word(p, len, ".weak") ||
			    is_word(p, len, ".common")) &&
			   !depth) {
			linkage = VISIBLE;
		} else if (is_word(p, len, ".func") && !depth) {
			func = linkage == EXTERN;
		} else if (func && is_word(p, len, "malloc")) {
			x->mallocs = true;
		}
		if (*p == ';' || *p == '{' || *p == '}') {
			linkage = PRIVATE;
			func = false;
		}
	}
	return err;
}

/* ------------------------------------------------------------------------------ ELF */

static const char *string_at(const uint8_t *elf, size_t size, const Elf64_Shdr *strings,
			     uint32_t at)
{
	if (strings->sh_type != SHT_STRTAB || at >= strings->sh_size ||
	    strings->sh_offset > size || strings->sh_size > size - strings->sh_offset ||
	    elf[strings->sh_offset + strings->sh_size - 1])
		return "";
	return (const char *)elf + strings->sh_offset + at;
}

static bool has_variables(const char *section)
{
	return !strncmp(section, ".nv.global", 10) || !strncmp(section, ".nv.constant3", 13) ||
	       !strncmp(section, ".nv.managed", 11);
}

static int scan_symbols(struct names *x, const uint8_t *elf, size_t size, const Elf64_Ehdr *e,
			const Elf64_Shdr *sh, const Elf64_Shdr *table)
{
	const Elf64_Shdr *strings = &sh[table->sh_link < e->e_shnum ? table->sh_link : 0];
	int err = 0;

	for (size_t i = 0; i < table->sh_size / sizeof(Elf64_Sym) && !err; i++) {
		const char *name, *section;
		Elf64_Sym sym;

		memcpy(&sym, elf + table->sh_offset + i * sizeof(sym), sizeof(sym));
		name = string_at(elf, size, strings, sym.st_name);
		if (sym.st_shndx == SHN_UNDEF && !strcmp(name, "malloc"))
			x->mallocs = true;
		if (!*name || !sym.st_size || sym.st_shndx >= e->e_shnum ||
		    ELF64_ST_TYPE(sym.st_info) != STT_OBJECT)
			continue;
		section = string_at(elf, size, &sh[e->e_shstrndx < e->e_shnum ? e->e_shstrndx : 0],
				    sh[sym.st_shndx].sh_name);
		if (has_variables(section))
			err = add_name(x, name, strlen(name), false);
	}
	return err;
}

static int scan_elf(struct names *x, const uint8_t *elf, size_t size)
{
	Elf64_Shdr *sh;
	Elf64_Ehdr e;
	int err = 0;

	if (size < sizeof(e))
		return -EBADMSG;
	memcpy(&e, elf, sizeof(e));
	if (e.e_ident[EI_CLASS] != ELFCLASS64 || e.e_shentsize != sizeof(*sh) || e.e_shoff > size ||
	    e.e_shnum > (size - e.e_shoff) / sizeof(*sh))
		return -EBADMSG;
	sh = malloc(e.e_shnum * sizeof(*sh) + 1);
	if (!sh)
		return -ENOMEM;
	memcpy(sh, elf + e.e_shoff, e.e_shnum * sizeof(*sh));
	for (unsigned int i = 0; i < e.e_shnum && !err; i++) {
		if (sh[i].sh_type != SHT_SYMTAB)
			continue;
		if (sh[i].sh_offset > size || sh[i].sh_size > size - sh[i].sh_offset)
			err = -EBADMSG;
		else
			err = scan_symbols(x, elf, size, &e, sh, &sh[i]);
	}
	free(sh);
	return err;
}

/* The size of a cubin: the end of its last part. */
static size_t elf_size(const uint8_t *elf)
{
	Elf64_Shdr s;
	Elf64_Ehdr e;
	size_t end;

	memcpy(&e, elf, sizeof(e));
	end = e.e_shoff + (size_t)e.e_shnum * sizeof(s);
	for (unsigned int i = 0; i < e.e_shnum; i++) {
		memcpy(&s, elf + e.e_shoff + i * sizeof(s), sizeof(s));
		if (s.sh_type != SHT_NOBITS && s.sh_offset + s.sh_size > end)
			end = s.sh_offset + s.sh_size;
	}
	return end;
}

/* ------------------------------------------------------------------------------ fatbins */

/* Adds the names of a linked part. Parts share a name only by its linkage; others are private. */
static int take_part(struct names *x, struct names *part)
{
	int err = 0;

	names_sort(part);
	x->linked = true;
	x->mallocs |= part->mallocs;
	if (*part->local)
		memcpy(x->local, part->local, sizeof(x->local));
	while (part->n && !err) {
		err = room(x);
		if (!err)
			x->name[x->n++] = part->name[--part->n];
	}
	names_free(part);
	return err;
}

static int scan_entry(struct names *x, const struct fatbin_entry *e, const uint8_t *data)
{
	size_t len;
	uint8_t *p = fatbin_unpack(e, data, &len);
	int err;

	if (!p)
		return -EBADMSG;
	if (e->kind == FATBIN_KIND_PTX)
		err = scan_text(x, (char *)p, strnlen((char *)p, len));
	else
		err = scan_elf(x, p, len);
	free(p);
	return err;
}

/* Can this device load the entry? Code is for one major version, PTX for that and later ones. */
static bool fits(const struct fatbin_entry *e, unsigned int cc, bool linked)
{
	if (e->kind == FATBIN_KIND_PTX)
		return linked || e->arch <= cc;
	return e->kind == FATBIN_KIND_ELF && e->arch / 10 == cc / 10 && e->arch <= cc;
}

static int scan_fatbin(struct names *x, const void *image, unsigned int cc)
{
	const uint8_t *p, *end, *data;
	struct fatbin_entry e;
	struct fatbin f;
	int rc, err = 0;

	memcpy(&f, image, sizeof(f));
	p = (const uint8_t *)image + f.header;
	end = p + f.size;
	while (!err && (rc = fatbin_next(&p, end, &e, &data))) {
		struct names part = { 0 };

		if (rc < 0)
			return rc;
		if (!fits(&e, cc, f.version == FATBIN_LINKED))
			continue;
		err = scan_entry(f.version == FATBIN_LINKED ? &part : x, &e, data);
		if (f.version == FATBIN_LINKED)
			err = take_part(x, &part) ?: err;
	}
	return err;
}

int names_add(struct names *x, const void *image, unsigned int cc)
{
	const struct fatbin_wrapper *w = image;
	uint32_t magic = 0;
	int err = 0;

	memcpy(&magic, image, strnlen(image, 4));
	if (magic == FATBIN_MAGIC)
		return scan_fatbin(x, image, cc);
	if (!memcmp(&magic, ELFMAG, SELFMAG))
		return scan_elf(x, image, elf_size(image));
	if (magic != FATBIN_WRAPPER_MAGIC)
		return scan_text(x, image, strlen(image));
	for (const void *const *p = w->fatbins; *p && !err; p++) {
		struct names part = { 0 };

		err = scan_fatbin(&part, *p, cc);
		err = take_part(x, &part) ?: err;
	}
	return err;
}
