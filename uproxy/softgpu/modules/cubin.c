/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cubin.c - reads machine code: the kernels, parameters, variables and needs of a cubin
 *
 * A cubin is an ELF file. What is read here:
 *
 *   symbols          STT_FUNC with CUBIN_ENTRY in st_other: a kernel; its section has its code.
 *                    STT_OBJECT in .nv.global*, .nv.constant3*, .nv.managed*: a variable, with
 *                    CUBIN_MANAGED in st_other a managed one
 *   .nv.info         a list of attributes; those of the whole file name a kernel's symbol
 *   .nv.info.X       attributes of one kernel; sh_info is the section of its code, as in
 *   .nv.shared.X     its shared memory (SHT_NOBITS), with the part that the device reserves
 *   .rela.S          addresses of variables in the initial values of S
 *
 *   an attribute     form (1 byte), kind (1), then by form: 2 bytes of padding, a value of 1 or 2
 *                    bytes (in 2), or 2 bytes of length and so many bytes
 *
 * Neither the code nor relocations to functions are read: nothing here runs.
 */
#include "module_i.h"

#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CUBIN_ENTRY	0x10
#define CUBIN_MANAGED	0x04
#define RESERVED_SMEM	1024	/* of sm_90 and later, in each kernel's .nv.shared */
#define PARAMS_MAX	4096
#define LOCAL_MAX	(512 << 10)	/* bytes of a thread */
#define SHARED_MAX	(1 << 20)

enum { FORM_NONE = 1, FORM_BYTE, FORM_HALF, FORM_SIZED };

enum {
	INFO_MAX_THREADS = 0x05,
	INFO_PARAM_CBANK = 0x0a,
	INFO_REQNTID = 0x10,
	INFO_FRAME_SIZE = 0x11,
	INFO_PARAM = 0x17,
	INFO_PARAM_SIZE = 0x19,
	INFO_REGS = 0x2f,
	INFO_CLUSTER = 0x3d,
	INFO_EXPLICIT_CLUSTER = 0x3e,
	INFO_PARAM_LARGE = 0x45,	/* of a kernel with more than 4 KB of parameters */
};

enum { REL_32 = 1, REL_64, REL_G32, REL_G64 };

struct cubin {
	uint8_t *elf;			/* its own copy; names and initial values lie in it */
	size_t len;
	unsigned int arch;
	struct ptx_entry_info *entries;	/* by name */
	struct ptx_kernel_info *infos;	/* of the same order */
	unsigned int nentries;
	struct ptx_var *vars;		/* by name */
	unsigned int nvars;
};

/* While it is read. */
struct reading {
	struct cubin *c;
	Elf64_Ehdr e;
	Elf64_Shdr *sh;
	const Elf64_Sym *sym;		/* copied: the file does not align it */
	size_t nsym, strings;
	unsigned int *entry_of;		/* by section, the index of the kernel plus 1 */
	unsigned int *by_symbol;	/* the index of the kernel or variable plus 1 */
};

static const uint8_t *bytes(const struct cubin *c, uint64_t off, uint64_t len)
{
	return off <= c->len && len <= c->len - off ? c->elf + off : NULL;
}

/* A string in the n-th section. */
static const char *string(const struct reading *r, size_t n, uint32_t off)
{
	const Elf64_Shdr *s = n < r->e.e_shnum ? &r->sh[n] : NULL;
	const uint8_t *p = s && s->sh_type == SHT_STRTAB && off < s->sh_size ?
				   bytes(r->c, s->sh_offset, s->sh_size) : NULL;

	return p && !p[s->sh_size - 1] ? (const char *)p + off : "";
}

static const char *section(const struct reading *r, size_t n)
{
	return n < r->e.e_shnum ? string(r, r->e.e_shstrndx, r->sh[n].sh_name) : "";
}

size_t sass_size(const void *image)
{
	Elf64_Ehdr e;
	Elf64_Shdr s;
	size_t end;

	memcpy(&e, image, sizeof(e));
	end = e.e_shoff + (size_t)e.e_shnum * sizeof(s);
	if (end < e.e_phoff + (size_t)e.e_phnum * e.e_phentsize)
		end = e.e_phoff + (size_t)e.e_phnum * e.e_phentsize;
	for (unsigned int i = 0; i < e.e_shnum; i++) {
		memcpy(&s, (const uint8_t *)image + e.e_shoff + i * sizeof(s), sizeof(s));
		if (s.sh_type != SHT_NOBITS && s.sh_offset + s.sh_size > end)
			end = s.sh_offset + s.sh_size;
	}
	return end;
}

/* ------------------------------------------------------------------- attributes */

static uint32_t word(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

/* One parameter: its number, its offset, and its size above 18 other bits, or, large, in 16 bits. */
static int take_param(struct ptx_entry_info *e, const uint8_t *p, bool large)
{
	uint32_t n = (uint16_t)word(p + 4), off = word(p + 4) >> 16;
	uint32_t size = large ? (uint16_t)word(p + 8) : word(p + 8) >> 18;
	struct ptx_param *all = (struct ptx_param *)e->params;

	if (n >= PARAMS_MAX)
		return -EINVAL;
	if (n >= e->nparams) {
		all = realloc(all, (n + 1) * sizeof(*all));
		if (!all)
			return -ENOMEM;
		memset(all + e->nparams, 0, (n + 1 - e->nparams) * sizeof(*all));
		e->params = all;
		e->nparams = n + 1;
	}
	all[n] = (struct ptx_param){ off, size, size >= 8 ? 8 : size ? size : 1 };
	if (off + size > e->param_size)
		e->param_size = off + size;
	return 0;
}

static int take_info(struct reading *r, unsigned int entry, unsigned int kind, const uint8_t *p,
		     size_t len)
{
	struct ptx_entry_info *e = entry ? &r->c->entries[entry - 1] : NULL;
	uint32_t *three = NULL;
	unsigned int of;

	switch (kind) {
	case INFO_REGS:
	case INFO_FRAME_SIZE:
		if (len != 8)
			return -EINVAL;
		of = word(p) < r->nsym ? r->by_symbol[word(p)] : 0;
		if (!of || ELF64_ST_TYPE(r->sym[word(p)].st_info) != STT_FUNC)
			return 0;	/* of a function that is no kernel */
		if (word(p + 4) > (kind == INFO_REGS ? 255 : LOCAL_MAX))
			return -EINVAL;
		if (kind == INFO_REGS)
			r->c->infos[of - 1].num_regs = word(p + 4);
		else
			r->c->infos[of - 1].local_bytes = word(p + 4);
		return 0;
	case INFO_PARAM:
	case INFO_PARAM_LARGE:
		return e && len == 12 ? take_param(e, p, kind == INFO_PARAM_LARGE) : -EINVAL;
	case INFO_MAX_THREADS:
		three = e ? e->maxntid : NULL;
		break;
	case INFO_REQNTID:
		three = e ? e->reqntid : NULL;
		break;
	case INFO_CLUSTER:
		three = e ? e->cluster : NULL;
		break;
	case INFO_EXPLICIT_CLUSTER:
		if (e)
			e->explicit_cluster = true;
		return 0;
	default:
		return 0;
	}
	if (!three || len != 12)
		return -EINVAL;
	memcpy(three, p, 12);
	return 0;
}

static int read_info(struct reading *r, size_t n)
{
	const Elf64_Shdr *s = &r->sh[n];
	const uint8_t *p = bytes(r->c, s->sh_offset, s->sh_size), *end;
	const char *name = section(r, n);
	unsigned int entry = 0;
	int err = 0;

	if (strncmp(name, ".nv.info", 8))
		return 0;
	if (name[8]) {
		entry = s->sh_info < r->e.e_shnum ? r->entry_of[s->sh_info] : 0;
		if (!entry)
			return 0;	/* of a function that is no kernel */
	}
	if (!p)
		return -EINVAL;
	end = p + s->sh_size;
	while (!err && end - p >= 4) {
		size_t len = p[0] == FORM_SIZED ? (size_t)p[2] | (size_t)p[3] << 8 : 0;

		if (p[0] < FORM_NONE || p[0] > FORM_SIZED || len > (size_t)(end - p - 4))
			return -EINVAL;
		err = take_info(r, entry, p[1], p + 4, len);
		p += 4 + len;
	}
	return err;
}

/* ---------------------------------------------------------------------- symbols */

static bool has_variables(const char *name)
{
	return !strncmp(name, ".nv.global", 10) || !strncmp(name, ".nv.constant3", 13) ||
	       !strncmp(name, ".nv.managed", 11);
}

static bool is_kernel(const Elf64_Sym *s)
{
	return ELF64_ST_TYPE(s->st_info) == STT_FUNC && s->st_other & CUBIN_ENTRY && s->st_shndx;
}

static bool is_variable(const struct reading *r, const Elf64_Sym *s)
{
	return ELF64_ST_TYPE(s->st_info) == STT_OBJECT && s->st_shndx && s->st_size &&
	       s->st_shndx < r->e.e_shnum && has_variables(section(r, s->st_shndx));
}

static __thread const struct reading *sorted;	/* qsort() passes nothing on */

static int by_name(const void *a, const void *b)
{
	const struct reading *r = sorted;

	return strcmp(string(r, r->strings, r->sym[*(const unsigned int *)a].st_name),
		      string(r, r->strings, r->sym[*(const unsigned int *)b].st_name));
}

static int take_variable(struct reading *r, const Elf64_Sym *s, struct ptx_var *v)
{
	const Elf64_Shdr *in = &r->sh[s->st_shndx];

	*v = (struct ptx_var){
		.name = string(r, r->strings, s->st_name),
		.space = strncmp(section(r, s->st_shndx), ".nv.constant", 12) ? PTX_GLOBAL : PTX_CONST,
		.visible = true, .managed = s->st_other & CUBIN_MANAGED, .size = s->st_size,
		.align = in->sh_addralign && in->sh_addralign <= 4096 ? in->sh_addralign : 1,
	};
	if (in->sh_type == SHT_NOBITS)
		return 0;
	if (s->st_value > in->sh_size || s->st_size > in->sh_size - s->st_value)
		return -EINVAL;
	v->init = bytes(r->c, in->sh_offset + s->st_value, s->st_size);
	v->init_len = s->st_size;
	return v->init ? 0 : -EINVAL;
}

static int take_kernel(struct reading *r, const Elf64_Sym *s, unsigned int i)
{
	if (s->st_shndx >= r->e.e_shnum || r->entry_of[s->st_shndx])
		return -EINVAL;
	r->entry_of[s->st_shndx] = i + 1;
	r->c->entries[i].name = string(r, r->strings, s->st_name);
	return 0;
}

static int read_symbols(struct reading *r)
{
	unsigned int *order = calloc(r->nsym * 2 + 1, sizeof(*order)), *vars = order + r->nsym;
	struct cubin *c = r->c;
	int err = 0;

	if (!order)
		return -ENOMEM;
	for (size_t i = 0; i < r->nsym; i++) {
		if (is_kernel(&r->sym[i]))
			order[c->nentries++] = i;
		else if (is_variable(r, &r->sym[i]))
			vars[c->nvars++] = i;
	}
	sorted = r;
	qsort(order, c->nentries, sizeof(*order), by_name);
	qsort(vars, c->nvars, sizeof(*vars), by_name);
	c->entries = calloc(c->nentries + 1, sizeof(*c->entries));
	c->infos = calloc(c->nentries + 1, sizeof(*c->infos));
	c->vars = calloc(c->nvars + 1, sizeof(*c->vars));
	if (!c->entries || !c->infos || !c->vars)
		err = -ENOMEM;
	for (unsigned int i = 0; i < c->nentries && !err; i++) {
		r->by_symbol[order[i]] = i + 1;
		err = take_kernel(r, &r->sym[order[i]], i);
	}
	for (unsigned int i = 0; i < c->nvars && !err; i++) {
		r->by_symbol[vars[i]] = i + 1;
		err = take_variable(r, &r->sym[vars[i]], &c->vars[i]);
	}
	free(order);
	return err;
}

/* ------------------------------------------------------------------ relocations */

/* The variable of a section in which an offset lies. */
static struct ptx_var *variable_at(struct reading *r, size_t n, uint64_t off, uint64_t *start)
{
	for (size_t i = 0; i < r->nsym; i++) {
		const Elf64_Sym *s = &r->sym[i];

		if (s->st_shndx != n || !is_variable(r, s) || off < s->st_value ||
		    off - s->st_value >= s->st_size)
			continue;
		*start = s->st_value;
		return &r->c->vars[r->by_symbol[i] - 1];
	}
	return NULL;
}

static int take_reloc(struct reading *r, size_t n, const Elf64_Rela *a)
{
	uint32_t sym = ELF64_R_SYM(a->r_info), type = ELF64_R_TYPE(a->r_info);
	struct ptx_reloc *l;
	struct ptx_var *v;
	uint64_t start;

	if (type < REL_32 || type > REL_G64 || sym >= r->nsym || !is_variable(r, &r->sym[sym]))
		return 0;
	v = variable_at(r, n, a->r_offset, &start);
	if (!v || v->managed)
		return 0;
	l = realloc((void *)v->relocs, (v->nrelocs + 1) * sizeof(*l));
	if (!l)
		return -ENOMEM;
	v->relocs = l;
	l[v->nrelocs] = (struct ptx_reloc){
		.offset = a->r_offset - start, .size = type == REL_32 || type == REL_G32 ? 4 : 8,
		.generic = true, .target = r->by_symbol[sym] - 1, .addend = a->r_addend,
	};
	if (l[v->nrelocs].offset + l[v->nrelocs].size > v->size)
		return -EINVAL;
	v->nrelocs++;
	return 0;
}

static int read_relocs(struct reading *r, size_t n)
{
	const Elf64_Shdr *s = &r->sh[n];
	const uint8_t *p = bytes(r->c, s->sh_offset, s->sh_size);
	int err = 0;

	if (s->sh_type != SHT_RELA || !has_variables(section(r, s->sh_info)))
		return 0;
	if (!p)
		return -EINVAL;
	for (size_t i = 0; i < s->sh_size / sizeof(Elf64_Rela) && !err; i++) {
		Elf64_Rela a;

		memcpy(&a, p + i * sizeof(a), sizeof(a));
		err = take_reloc(r, s->sh_info, &a);
	}
	return err;
}

/* ---------------------------------------------------------------------- the file */

static int read_shared(struct reading *r, size_t n)
{
	const Elf64_Shdr *s = &r->sh[n];
	unsigned int entry = s->sh_info < r->e.e_shnum ? r->entry_of[s->sh_info] : 0;
	uint64_t own = r->c->arch >= 90 ? RESERVED_SMEM : 0;

	if (!entry || strncmp(section(r, n), ".nv.shared.", 11))
		return 0;
	if (s->sh_size > SHARED_MAX)
		return -EINVAL;
	r->c->infos[entry - 1].static_shared = s->sh_size > own ? s->sh_size - own : 0;
	return 0;
}

static int read_head(struct reading *r)
{
	struct cubin *c = r->c;
	const uint8_t *p = bytes(c, 0, sizeof(r->e));

	if (!p)
		return -EINVAL;
	memcpy(&r->e, p, sizeof(r->e));
	p = bytes(c, r->e.e_shoff, (uint64_t)r->e.e_shnum * sizeof(*r->sh));
	if (r->e.e_ident[EI_CLASS] != ELFCLASS64 || r->e.e_machine != EM_CUDA || !p ||
	    r->e.e_shentsize != sizeof(*r->sh))
		return -EINVAL;
	c->arch = r->e.e_ident[EI_ABIVERSION] >= 8 ? r->e.e_flags >> 8 & 0xff : r->e.e_flags & 0xff;
	r->sh = malloc(r->e.e_shnum * sizeof(*r->sh) + 1);
	r->entry_of = calloc(r->e.e_shnum + 1, sizeof(*r->entry_of));
	if (!r->sh || !r->entry_of)
		return -ENOMEM;
	memcpy(r->sh, p, r->e.e_shnum * sizeof(*r->sh));
	for (size_t i = 0; i < r->e.e_shnum; i++) {
		Elf64_Sym *sym;

		if (r->sh[i].sh_type != SHT_SYMTAB || r->sym)
			continue;
		p = bytes(c, r->sh[i].sh_offset, r->sh[i].sh_size);
		if (!p)
			return -EINVAL;
		sym = malloc(r->sh[i].sh_size + 1);
		r->sym = sym;
		r->nsym = r->sh[i].sh_size / sizeof(*sym);
		r->strings = r->sh[i].sh_link;
		r->by_symbol = calloc(r->nsym + 1, sizeof(*r->by_symbol));
		if (!sym || !r->by_symbol)
			return -ENOMEM;
		memcpy(sym, p, r->nsym * sizeof(*sym));
	}
	return r->sym ? 0 : -EINVAL;
}

int sass_read(void *elf, size_t len, struct cubin **out)
{
	struct cubin *c = calloc(1, sizeof(*c));
	struct reading r = { .c = c };
	int err = -ENOMEM;

	if (!c) {
		free(elf);
		return err;
	}
	c->elf = elf;
	c->len = len;
	err = read_head(&r) ?: read_symbols(&r);
	for (size_t i = 0; i < r.e.e_shnum && !err; i++)
		err = read_shared(&r, i) ?: read_info(&r, i) ?: read_relocs(&r, i);
	free(r.sh);
	free((void *)r.sym);
	free(r.entry_of);
	free(r.by_symbol);
	if (err)
		sass_free(c);
	else
		*out = c;
	return err;
}

void sass_free(struct cubin *c)
{
	if (!c)
		return;
	for (unsigned int i = 0; c->entries && i < c->nentries; i++)
		free((void *)c->entries[i].params);
	for (unsigned int i = 0; c->vars && i < c->nvars; i++)
		free((void *)c->vars[i].relocs);
	free(c->entries);
	free(c->infos);
	free(c->vars);
	free(c->elf);
	free(c);
}

unsigned int sass_arch(const struct cubin *c)
{
	return c->arch;
}

unsigned int sass_nentries(const struct cubin *c)
{
	return c->nentries;
}

const struct ptx_entry_info *sass_entry(const struct cubin *c, unsigned int i)
{
	return &c->entries[i];
}

const struct ptx_kernel_info *sass_info(const struct cubin *c, unsigned int i)
{
	return &c->infos[i];
}

unsigned int sass_nvars(const struct cubin *c)
{
	return c->nvars;
}

const struct ptx_var *sass_var(const struct cubin *c, unsigned int i)
{
	return &c->vars[i];
}

/* at: the offset of the name's pointer in an element. */
static int find_name(const char *name, const void *all, size_t n, size_t size, size_t at)
{
	size_t lo = 0, hi = n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		const char *s = *(const char *const *)((const char *)all + mid * size + at);
		int d = strcmp(s, name);

		if (!d)
			return mid;
		if (d < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -ENOENT;
}

int sass_find_entry(const struct cubin *c, const char *name)
{
	return find_name(name, c->entries, c->nentries, sizeof(*c->entries),
			 offsetof(struct ptx_entry_info, name));
}

int sass_find_var(const struct cubin *c, const char *name)
{
	return find_name(name, c->vars, c->nvars, sizeof(*c->vars), offsetof(struct ptx_var, name));
}
