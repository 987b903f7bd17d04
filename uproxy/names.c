// SPDX-License-Identifier: Apache-2.0
/*
 * names.c - finds the variables in PTX text, in cubins and in the fatbins that hold them
 *
 * Of PTX no more is understood than blanks, comments, strings, brackets and declarations:
 *
 *   [.visible|.weak|.common|.extern] (.global|.const) {.align N|.attribute(..)|.type} name[..] [= ..], .. ;
 *
 * The layout of fatbins is described in softgpu/fatbin.c. Lengths are believed where image_whole
 * has checked them, and nowhere else.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <elf.h>
#include <errno.h>
#include <lz4.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "names.h"

#define WRAPPER_MAGIC	0x466243b1u
#define FATBIN_MAGIC	0xba55ed50u
#define LINKED		0x8001		/* of the soft device's linker: all entries count */
#define KIND_PTX	1
#define KIND_ELF	2
#define FLAG_LZ4	0x2000
#define FLAG_ZSTD	0x8000
#define UNPACKED_MAX	((size_t)1 << 30)

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

static int add(struct names *x, const char *name, size_t len, bool private)
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

/* Past a string, a comment or one character that is no part of a word. */
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

static bool is(const char *p, size_t len, const char *word)
{
	return len == strlen(word) && !memcmp(p, word, len);
}

enum { PRIVATE, VISIBLE, EXTERN };

/* What stands behind .global or .const: names up to the semicolon. Returns where that is. */
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
				*err = add(x, p, len, linkage == PRIVATE);
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
		if (is(p, len, ".global") || is(p, len, ".const")) {
			p = declaration(x, p + len, end, linkage, depth > 0, &err);
			len = 0;
		} else if (is(p, len, ".extern") && !depth) {
			linkage = EXTERN;
		} else if ((is(p, len, ".visible") || is(p, len, ".weak") ||
			    is(p, len, ".common")) &&
			   !depth) {
			linkage = VISIBLE;
		} else if (is(p, len, ".func") && !depth) {
			func = linkage == EXTERN;
		} else if (func && is(p, len, "malloc")) {
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
			err = add(x, name, strlen(name), false);
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

/* The bytes of a cubin that says its own size: where its last part ends. */
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

struct entry {
	uint16_t kind, version;
	uint32_t header;
	uint64_t padded;
	uint32_t packed, options;
	uint16_t minor, major;
	uint32_t arch, name, name_len;
	uint64_t flags, zero, unpacked;
};

_Static_assert(sizeof(struct entry) == 64, "an entry's fixed part is 64 bytes");

/* The bytes of an entry, with a NUL behind them; the caller frees them. */
static uint8_t *unpack(const struct entry *e, const uint8_t *data, size_t *len)
{
	size_t n = e->flags & (FLAG_LZ4 | FLAG_ZSTD) ? e->unpacked : e->padded;
	uint8_t *out = NULL;

	if (n && n <= UNPACKED_MAX && e->packed <= e->padded)
		out = malloc(n + 1);
	if (!out)
		return NULL;
	if (e->flags & FLAG_ZSTD) {
		*len = ZSTD_decompress(out, n, data, e->packed);
		if (ZSTD_isError(*len))
			goto bad;
	} else if (e->flags & FLAG_LZ4) {
		int r = LZ4_decompress_safe((const char *)data, (char *)out, e->packed, n);

		if (r < 0)
			goto bad;
		*len = r;
	} else {
		memcpy(out, data, n);
		*len = n;
	}
	out[*len] = 0;
	return out;
bad:
	free(out);
	return NULL;
}

/* A part of what is linked: its names are its own, but for those that it shares by linkage. */
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

static int scan_entry(struct names *x, const struct entry *e, const uint8_t *data)
{
	size_t len;
	uint8_t *p = unpack(e, data, &len);
	int err;

	if (!p)
		return -EBADMSG;
	if (e->kind == KIND_PTX)
		err = scan_text(x, (char *)p, strnlen((char *)p, len));
	else
		err = scan_elf(x, p, len);
	free(p);
	return err;
}

/* Can this device have loaded the entry? Code is for its own major version, PTX for any older. */
static bool fits(const struct entry *e, unsigned int cc, bool linked)
{
	if (e->kind == KIND_PTX)
		return linked || e->arch <= cc;
	return e->kind == KIND_ELF && e->arch / 10 == cc / 10 && e->arch <= cc;
}

static int scan_fatbin(struct names *x, const uint8_t *f, unsigned int cc)
{
	uint16_t version, header;
	const uint8_t *p, *end;
	uint64_t size;
	int err = 0;

	memcpy(&version, f + 4, sizeof(version));
	memcpy(&header, f + 6, sizeof(header));
	memcpy(&size, f + 8, sizeof(size));
	for (p = f + header, end = p + size; p < end && !err;) {
		struct entry e;
		size_t left = end - p;

		if (left < sizeof(e))
			return -EBADMSG;
		memcpy(&e, p, sizeof(e));
		if (e.header < sizeof(e) || e.header > left || e.padded > left - e.header)
			return -EBADMSG;
		if (fits(&e, cc, version == LINKED)) {
			struct names part = { 0 };

			err = scan_entry(version == LINKED ? &part : x, &e, p + e.header);
			if (version == LINKED)
				err = take_part(x, &part) ?: err;
		}
		p += e.header + e.padded;
	}
	return err;
}

struct wrapper {
	uint32_t magic, version;
	const void *fatbin;
	const void *const *parts;
};

int names_add(struct names *x, const void *image, unsigned int cc)
{
	const struct wrapper *w = image;
	uint32_t magic = 0;
	int err = 0;

	memcpy(&magic, image, strnlen(image, 4));
	if (magic == FATBIN_MAGIC)
		return scan_fatbin(x, image, cc);
	if (!memcmp(&magic, ELFMAG, SELFMAG))
		return scan_elf(x, image, elf_size(image));
	if (magic != WRAPPER_MAGIC)
		return scan_text(x, image, strlen(image));
	for (const void *const *p = w->parts; *p && !err; p++) {
		struct names part = { 0 };

		err = scan_fatbin(&part, *p, cc);
		err = take_part(x, &part) ?: err;
	}
	return err;
}
