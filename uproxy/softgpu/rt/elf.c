// SPDX-License-Identifier: Apache-2.0
/*
 * elf.c - places a compiled object in memory: sections, calls to the runtime, relocations.
 *
 * One mapping holds the allocated sections, and a jump stub and an address slot for each undefined
 * symbol.  It is writable first and executable afterwards, never both.
 */
#include <elf.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "rt_i.h"

extern const struct rt_symbol rt_mem_symbols[], rt_warp_symbols[], rt_math_symbols[],
	rt_printf_symbols[], rt_run_symbols[], rt_mma_symbols[], rt_tex_symbols[],
	rt_async_symbols[], rt_tensor_symbols[];


static const struct rt_symbol libc_symbols[] = {
	{ "memset", memset }, { "memcpy", memcpy }, { "memmove", memmove },
	{ "fma", fma }, { "fmaf", fmaf }, { "floor", floor }, { "floorf", floorf },
	{ "ceil", ceil }, { "ceilf", ceilf }, { "trunc", trunc }, { "truncf", truncf },
	{ "rint", rint }, { "rintf", rintf },
	{ NULL, NULL },
};

struct loader {
	const uint8_t *obj;
	size_t len;
	const Elf64_Ehdr *eh;
	const Elf64_Shdr *sh;
	uint64_t *at;			/* per section: offset in the mapping, or ~0 */
	uint8_t *base;
	size_t size, stubs, nsyms;
	const Elf64_Sym *sym;
	const char *str;
	size_t strsz;
	char *err;
	size_t errlen;
};

static void *find_symbol(const char *name)
{
	const struct rt_symbol *const tabs[] = { rt_mem_symbols, rt_warp_symbols, rt_math_symbols,
						 rt_printf_symbols, rt_run_symbols, rt_mma_symbols,
						 rt_tex_symbols, rt_async_symbols, rt_tensor_symbols,
						 libc_symbols };
	unsigned int i;

	for (i = 0; i < sizeof(tabs) / sizeof(tabs[0]); i++) {
		const struct rt_symbol *s;

		for (s = tabs[i]; s->name; s++)
			if (!strcmp(s->name, name))
				return s->addr;
	}
	return NULL;
}

static int bad(struct loader *l, const char *what)
{
	snprintf(l->err, l->errlen, "object: %s", what);
	return -EINVAL;
}

static bool inside(const struct loader *l, uint64_t off, uint64_t size)
{
	return off <= l->len && size <= l->len - off;
}

static int check(struct loader *l)
{
	uint32_t i;

	if (l->len < sizeof(*l->eh) || memcmp(l->obj, ELFMAG, SELFMAG))
		return bad(l, "not ELF");
	l->eh = (const void *)l->obj;
	if (l->eh->e_type != ET_REL || l->eh->e_machine != EM_X86_64 || l->eh->e_shnum > 4096 ||
	    !inside(l, l->eh->e_shoff, (uint64_t)l->eh->e_shnum * sizeof(*l->sh)))
		return bad(l, "header");
	l->sh = (const void *)(l->obj + l->eh->e_shoff);
	for (i = 0; i < l->eh->e_shnum; i++) {
		if (l->sh[i].sh_type != SHT_NOBITS &&
		    !inside(l, l->sh[i].sh_offset, l->sh[i].sh_size))
			return bad(l, "section");
		if (l->sh[i].sh_type == SHT_SYMTAB) {
			const Elf64_Shdr *st = &l->sh[l->sh[i].sh_link];

			if (l->sh[i].sh_link >= l->eh->e_shnum || !st->sh_size ||
			    l->obj[st->sh_offset + st->sh_size - 1])
				return bad(l, "strings");
			l->sym = (const void *)(l->obj + l->sh[i].sh_offset);
			l->nsyms = l->sh[i].sh_size / sizeof(*l->sym);
			l->str = (const char *)l->obj + st->sh_offset;
			l->strsz = st->sh_size;
		}
	}
	return l->sym ? 0 : bad(l, "no symbols");
}

static bool wanted(const Elf64_Shdr *s)
{
	return (s->sh_flags & SHF_ALLOC) && s->sh_type != SHT_X86_64_UNWIND &&
	       s->sh_size && s->sh_type != SHT_NOTE;
}

static int place(struct loader *l)
{
	size_t off = 0, i;

	for (i = 0; i < l->eh->e_shnum; i++) {
		size_t al = l->sh[i].sh_addralign > 1 ? l->sh[i].sh_addralign : 1;

		l->at[i] = ~0ull;
		if (!wanted(&l->sh[i]))
			continue;
		if (al > 4096 || l->sh[i].sh_size > 1u << 30)
			return bad(l, "alignment");
		off = (off + al - 1) & ~(al - 1);
		l->at[i] = off;
		off += l->sh[i].sh_size;
	}
	l->stubs = (off + 15) & ~(size_t)15;
	l->size = (l->stubs + l->nsyms * 16 + 4095) & ~(size_t)4095;
	l->base = mmap(NULL, l->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (l->base == MAP_FAILED)
		return -ENOMEM;
	for (i = 0; i < l->eh->e_shnum; i++)
		if (l->at[i] != ~0ull && l->sh[i].sh_type != SHT_NOBITS)
			memcpy(l->base + l->at[i], l->obj + l->sh[i].sh_offset, l->sh[i].sh_size);
	return 0;
}

/* The symbol's address; undefined ones also get a stub (jmp *slot; slot). */
static int resolve(struct loader *l, uint32_t n, uint64_t *val, uint64_t *slot)
{
	uint8_t *stub = l->base + l->stubs + (size_t)n * 16;
	const Elf64_Sym *s = &l->sym[n];
	void *p;

	if (n >= l->nsyms || s->st_name >= l->strsz)
		return bad(l, "symbol");
	if (s->st_shndx == SHN_UNDEF) {
		p = find_symbol(l->str + s->st_name);
		if (!p) {
			snprintf(l->err, l->errlen, "object: %s is not known",
				 l->str + s->st_name);
			return -ENOTSUP;
		}
		*val = (uint64_t)stub;
		memcpy(stub, "\xff\x25\x02\x00\x00\x00\xcc\xcc", 8);
		memcpy(stub + 8, &p, 8);
	} else {
		if (s->st_shndx >= l->eh->e_shnum || l->at[s->st_shndx] == ~0ull)
			return bad(l, "symbol's section");
		*val = (uint64_t)l->base + l->at[s->st_shndx] + s->st_value;
		memcpy(stub + 8, val, 8);
	}
	*slot = (uint64_t)stub + 8;
	return 0;
}

static int relocate(struct loader *l, const Elf64_Shdr *rs)
{
	const Elf64_Rela *r = (const void *)(l->obj + rs->sh_offset);
	size_t n = rs->sh_size / sizeof(*r), i;
	uint64_t v, slot;
	int64_t d;
	int ret;

	if (rs->sh_info >= l->eh->e_shnum || l->at[rs->sh_info] == ~0ull)
		return 0;
	for (i = 0; i < n; i++) {
		uint8_t *p = l->base + l->at[rs->sh_info] + r[i].r_offset;

		if (r[i].r_offset + 8 > l->sh[rs->sh_info].sh_size + 4)
			return bad(l, "relocation");
		ret = resolve(l, ELF64_R_SYM(r[i].r_info), &v, &slot);
		if (ret)
			return ret;
		switch (ELF64_R_TYPE(r[i].r_info)) {
		case R_X86_64_64:
			v += r[i].r_addend;
			memcpy(p, &v, 8);
			continue;
		case R_X86_64_PC32:
		case R_X86_64_PLT32:
			break;
		case R_X86_64_GOTPCREL:
		case R_X86_64_GOTPCRELX:
		case R_X86_64_REX_GOTPCRELX:
			v = slot;
			break;
		default:
			return bad(l, "relocation type");
		}
		d = (int64_t)(v + r[i].r_addend - (uint64_t)p);
		if (d != (int32_t)d)
			return bad(l, "relocation out of reach");
		memcpy(p, &d, 4);
	}
	return 0;
}

int ptx_elf_load(const void *obj, size_t len, void **code, size_t *size, rt_entry_fn *entry,
		 char *err, size_t errlen)
{
	uint64_t at[4096], v, slot;
	struct loader l = { .obj = obj, .len = len, .at = at, .err = err, .errlen = errlen };
	int ret = check(&l);
	uint32_t i;

	if (ret)
		return ret;
	ret = place(&l);
	if (ret)
		return ret;
	for (i = 0; i < l.eh->e_shnum && !ret; i++)
		if (l.sh[i].sh_type == SHT_RELA)
			ret = relocate(&l, &l.sh[i]);
	*entry = NULL;
	for (i = 0; i < l.nsyms && !ret; i++)
		if (l.sym[i].st_name < l.strsz && l.sym[i].st_shndx != SHN_UNDEF &&
		    !strcmp(l.str + l.sym[i].st_name, "ptx_fn_0")) {
			ret = resolve(&l, i, &v, &slot);
			*entry = (rt_entry_fn)v;
		}
	if (!ret && !*entry)
		ret = bad(&l, "no entry");
	if (!ret && mprotect(l.base, l.size, PROT_READ | PROT_EXEC))
		ret = -errno;
	if (ret) {
		munmap(l.base, l.size);
		return ret;
	}
	*code = l.base;
	*size = l.size;
	return 0;
}

void ptx_elf_free(void *code, size_t size)
{
	if (code)
		munmap(code, size);
}
