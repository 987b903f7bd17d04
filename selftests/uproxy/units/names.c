// SPDX-License-Identifier: Apache-2.0
/*
 * names.c - the names of an image's variables: in PTX with any declaration, in cubins, in fatbins,
 * and in data that is none of these
 */
#include "../../harness/leaks.h"
#include "../../harness/patience.h"

#include <elf.h>
#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zstd.h>

#include "names.h"

/* Names as one text, each with a blank behind it. */
static const char *found(const void *image, unsigned int cc, int want, struct names *x)
{
	static char text[4096];
	int rc;

	*x = (struct names){ 0 };
	rc = names_add(x, image, cc);
	names_sort(x);
	*text = 0;
	for (size_t i = 0; i < x->n; i++) {
		strcat(text, x->name[i]);
		strcat(text, " ");
	}
	if (rc != want)
		snprintf(text, sizeof(text), "error %d", rc);
	names_free(x);
	return text;
}

#define HEAD ".version 8.0\n.target sm_75\n.address_size 64\n"

static const struct {
	const char *text, *names;
} texts[] = {
	{ HEAD, "" },
	{ HEAD ".global .u32 a;", "a " },
	{ HEAD ".visible .global .align 4 .b8 a[4] = {1, 2, 3, 4};\n.const .f32 b = 0f00000000;",
	  "a b " },
	{ HEAD ".extern .global .u32 a; .weak .global .u32 b; .common .global .u32 c;", "b c " },
	{ HEAD ".global .v4 .f32 a, b; .global .u32 c[] = {1}, d[2][3], e;", "a b c d e " },
	{ HEAD "// .global .u32 a;\n/* .global .u32 b; */ .global /* .u32 c */ .u32 d;", "d " },
	{ HEAD ".global .attribute(.managed) .align 8 .b8 m[8];", "m " },
	{ HEAD ".global .attribute(.managed, .unified(19, 95)) .f32 f;", "f " },
	{ HEAD ".global .align 8 .u64 p = generic(q)+8;\n.global .u64 q[2] = {p, r};", "p q " },
	{ HEAD
	  ".func f(.param .u64 .ptr .global .align 4 x, .reg .u32 y)\n{ ret; }\n.global .u32 a;",
	  "a " },
	{ HEAD ".visible .entry k()\n{ .reg .u32 %r1; { ld.global.u32 %r1, [a]; } ret; }\n"
	       ".global .u32 a;",
	  "a " },
	{ HEAD ".file 1 \"a.global; .u32 x\"\n.global .u32 a;", "a " },
	{ HEAD ".section .debug_info { .b8 1, 2 .b32 .global }\n.global .u32 b;", "b " },
	{ HEAD ".global .texref t; .global .surfref s; .shared .u32 no;", "s t " },
	{ HEAD ".global .align 1 .b8 $str[3] = {34, 59, 0}; .global .u32 _ZN1a1bE, %odd;",
	  "$str %odd _ZN1a1bE " },
	{ HEAD ".global .u32 a", "a " }, /* cut off */
	{ HEAD ".global .b8 a[2] = {1, 2", "a " },
	{ HEAD "/* for ever .global .u32 a;", "" },
	{ HEAD ".global .u32 a; \"for ever .global .u32 b;", "a " },
	{ HEAD ".global", "" },
	{ "", "" },
	{ "}}}))) .global .u32 a;", "a " },
};

TEST(ptx_is_understood_as_far_as_needed)
{
	struct names x = { 0 };

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		const char *got = found(texts[i].text, 90, 0, &x);

		if (strcmp(got, texts[i].names))
			TH_LOG("%s", texts[i].text);
		EXPECT_STREQ(got, texts[i].names);
	}
}

TEST(what_matters_besides_names)
{
	static const char *const mallocs[] = {
		HEAD ".extern .func (.param .b64 r) malloc (.param .b64 n);",
		HEAD ".extern .func  (.param .b64 func_retval0) malloc\n(\n\t.param .b64 p\n)\n;\n",
	};
	static const char *const not[] = {
		HEAD ".visible .func (.param .b64 r) malloc (.param .b64 n) { ret; }",
		HEAD ".extern .func (.param .b64 malloc) other (.param .b64 n);",
		HEAD ".global .u32 malloc;",
	};
	struct names x = { 0 };

	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(names_add(&x, mallocs[i], 90), 0);
		EXPECT_TRUE(x.mallocs);
		names_free(&x);
	}
	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(names_add(&x, not[i], 90), 0);
		EXPECT_FALSE(x.mallocs);
		names_free(&x);
	}
	EXPECT_EQ(names_add(&x, HEAD ".entry k() { .global .u32 inner; ret; }", 90), 0);
	EXPECT_STREQ(x.local, "inner");
	EXPECT_EQ(x.n, 1);
	names_free(&x);
}

/* ------------------------------------------------------------------------------ fatbins */

struct part {
	uint16_t kind;
	uint32_t arch;
	char packing;		/* 'z', 'l', or 0 */
	const void *data;
	size_t len;
};

static size_t fatbin(uint8_t *out, const struct part *part, int n)
{
	uint8_t *p = out + 16;
	uint64_t size;

	memset(out, 0, 1 << 16);
	memcpy(out, &(uint32_t){ 0xba55ed50u }, 4);
	memcpy(out + 4, &(uint16_t){ 1 }, 2);
	memcpy(out + 6, &(uint16_t){ 16 }, 2);
	for (int i = 0; i < n; i++) {
		uint64_t len = part[i].len, flags = part[i].packing == 'z' ? 0x8000 :
						    part[i].packing == 'l' ? 0x2000 : 0, padded;
		uint32_t packed = 0;

		if (flags == 0x8000)
			packed = ZSTD_compress(p + 64, 8192, part[i].data, len, 1);
		else if (flags)
			packed = LZ4_compress_default(part[i].data, (char *)p + 64, len, 8192);
		else
			memcpy(p + 64, part[i].data, len);
		padded = ((packed ?: len) + 7) & ~7ull;
		memcpy(p, &part[i].kind, 2);
		memcpy(p + 4, &(uint32_t){ 64 }, 4);
		memcpy(p + 8, &padded, 8);
		memcpy(p + 16, &packed, 4);
		memcpy(p + 28, &part[i].arch, 4);
		memcpy(p + 40, &flags, 8);
		memcpy(p + 56, &len, 8);
		p += 64 + padded;
	}
	size = p - out - 16;
	memcpy(out + 8, &size, 8);
	return p - out;
}

/* A cubin as ptxas makes them, as far as it matters: two variables, a constant, a function, malloc. */
static size_t cubin(uint8_t *out)
{
	static const char strings[] = "\0.nv.global\0.nv.constant3.x\0.text.k\0.symtab\0.strtab\0"
				      "var\0hid\0con\0k\0malloc\0";
	static const struct {
		const char *name;
		uint8_t info;
		uint16_t section;
		uint64_t size;
	} syms[] = {
		{ "var", ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), 1, 4 },
		{ "hid", ELF64_ST_INFO(STB_LOCAL, STT_OBJECT), 1, 8 },
		{ "con", ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), 2, 16 },
		{ "k", ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 3, 128 },
		{ "malloc", ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, 0 },
	};
	Elf64_Ehdr e = { .e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB }, .e_shnum = 6,
			 .e_shentsize = sizeof(Elf64_Shdr), .e_shoff = 64, .e_shstrndx = 5 };
	Elf64_Shdr sh[6] = {
		[1] = { .sh_name = 1, .sh_type = SHT_NOBITS, .sh_size = 12 },
		[2] = { .sh_name = 12, .sh_type = SHT_PROGBITS },
		[3] = { .sh_name = 28, .sh_type = SHT_PROGBITS },
		[4] = { .sh_name = 36, .sh_type = SHT_SYMTAB, .sh_link = 5, .sh_offset = 1024,
			.sh_size = 5 * sizeof(Elf64_Sym) },
		[5] = { .sh_name = 44, .sh_type = SHT_STRTAB, .sh_offset = 2048,
			.sh_size = sizeof(strings) },
	};

	memset(out, 0, 2048 + sizeof(strings));
	memcpy(out, &e, sizeof(e));
	memcpy(out + 64, sh, sizeof(sh));
	memcpy(out + 2048, strings, sizeof(strings));
	for (int i = 0; i < 5; i++) {
		Elf64_Sym s = { .st_info = syms[i].info, .st_shndx = syms[i].section,
				.st_size = syms[i].size };

		for (size_t k = 52; k < sizeof(strings); k++)
			if (!strcmp(strings + k, syms[i].name))
				s.st_name = k;
		memcpy(out + 1024 + i * sizeof(s), &s, sizeof(s));
	}
	return 2048 + sizeof(strings);
}

TEST(cubins_and_fatbins)
{
	static const char old[] = HEAD ".global .u32 of_ptx;",
			  new[] = HEAD ".global .u32 of_later;";
	uint8_t elf[4096], *out = malloc(1 << 16);
	size_t len = cubin(elf);
	struct part part[] = {
		{ 1, 75, 'z', old, sizeof(old) },
		{ 1, 120, 0, new, sizeof(new) },
		{ 2, 90, 'l', elf, len },
	};
	struct names x = { 0 };

	EXPECT_STREQ(found(elf, 90, 0, &x), "con hid var ");
	EXPECT_EQ(names_add(&x, elf, 90), 0);
	EXPECT_TRUE(x.mallocs);
	names_free(&x);
	fatbin(out, part, 3);
	EXPECT_STREQ(found(out, 90, 0, &x), "con hid of_ptx var ");
	EXPECT_STREQ(found(out, 75, 0, &x), "of_ptx ");
	EXPECT_STREQ(found(out, 120, 0, &x), "of_later of_ptx ");
	part[2].packing = 0;
	part[0].packing = 'l';
	fatbin(out, part, 3);
	EXPECT_STREQ(found(out, 93, 0, &x), "con hid of_ptx var ");
	free(out);
}

TEST(private_names_of_linked_parts)
{
	static const char a[] =
		HEAD ".global .u32 own; .visible .global .u32 all; .global .b8 $str[2];";
	static const char b[] =
		HEAD ".global .u32 own; .extern .global .u32 all; .global .b8 $str[3];"
		     ".weak .global .u32 weak;";
	static const char c[] = HEAD ".weak .global .u32 weak; .visible .global .u32 own;";
	struct part pa[] = { { 1, 75, 0, a, sizeof(a) }, { 1, 80, 'z', a, sizeof(a) } };
	struct part pb = { 1, 75, 0, b, sizeof(b) }, pc = { 1, 75, 0, c, sizeof(c) };
	uint8_t *bin[3] = { malloc(1 << 16), malloc(1 << 16), malloc(1 << 16) };
	const void *parts[] = { bin[0], bin[2], NULL, NULL };
	struct { uint32_t magic, version; const void *fatbin; const void **parts; } w = {
		0x466243b1, 2, bin[0], parts,
	};
	struct names x = { 0 };

	fatbin(bin[0], pa, 2);
	fatbin(bin[1], &pb, 1);
	fatbin(bin[2], &pc, 1);
	EXPECT_EQ(names_add(&x, &w, 90), 0);
	names_sort(&x);
	EXPECT_STREQ(x.twice, "");
	EXPECT_EQ(x.n, 4);
	names_free(&x);
	parts[2] = bin[1];
	EXPECT_STREQ(found(&w, 90, 0, &x), "$str all own weak ");
	EXPECT_EQ(names_add(&x, &w, 90), 0);
	names_sort(&x);
	EXPECT_STREQ(x.twice, "own");
	names_free(&x);
	for (int i = 0; i < 3; i++)
		free(bin[i]);
}

/* Bytes changed anywhere but where image_whole has looked: no more is asked than to live. */
TEST(mutants_do_no_harm)
{
	static const char text[] = HEAD ".global .b8 a[4] = {1, 2}; /* c */ .const .u32 b;"
				   ".entry k(.param .u64 p) { ret; }";
	uint8_t elf[4096], *out = malloc(1 << 16), *copy = malloc(1 << 16);
	size_t len = cubin(elf), all;
	struct part part[] = { { 1, 75, 0, text, sizeof(text) },
			       { 2, 90, 0, elf, len },
			       { 1, 75, 'z', text, sizeof(text) },
			       { 1, 75, 'l', text, sizeof(text) } };
	uint64_t random = 88172645463325252ull;

	all = fatbin(out, part, 4);
	for (int i = 0; i < 20000; i++) {
		struct names x = { 0 };

		memcpy(copy, out, all);
		for (int k = 0; k < 1 + i % 8; k++) {
			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			copy[16 + random % (all - 16)] = random >> 32;
		}
		names_add(&x, copy, 90);
		names_sort(&x);
		names_free(&x);
	}
	free(out);
	free(copy);
}

TEST_HARNESS_MAIN
