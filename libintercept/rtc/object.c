// SPDX-License-Identifier: Apache-2.0
/*
 * object.c - the fatbins in host objects and archives of them: sections .nv_fatbin and __nv_relfatbin
 *
 * The input is any file of a program: nothing in it is trusted, and it need not be aligned.
 */
#include "rtc_i.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define MEMBER_SIZE 60		/* an archive's header of a member */

/* Walks the fatbins of a section, which follow each other with zeros between. */
static int section(const uint8_t *data, size_t n, rtc_fatbin_fn *each, void *ctx)
{
	struct fatbin f;
	int rc = 0;

	for (size_t at = 0; !rc && n - at >= sizeof(f); ) {
		if (fatbin_head(data + at, n - at, &f)) {
			at += 8;
			if (at > n)
				break;
			continue;
		}
		rc = each(ctx, data + at, f.header + f.size);
		at += (f.header + f.size + 7) & ~(size_t)7;
		if (at > n)
			break;
	}
	return rc;
}

static int object(const uint8_t *data, size_t n, rtc_fatbin_fn *each, void *ctx)
{
	Elf64_Shdr sh, names;
	Elf64_Ehdr eh;
	int rc = 0;

	if (n < sizeof(eh))
		return 0;
	memcpy(&eh, data, sizeof(eh));
	if (memcmp(eh.e_ident, ELFMAG, SELFMAG) || eh.e_ident[EI_CLASS] != ELFCLASS64 ||
	    eh.e_shentsize != sizeof(sh) || eh.e_shoff > n ||
	    eh.e_shnum > (n - eh.e_shoff) / sizeof(sh) || eh.e_shstrndx >= eh.e_shnum)
		return 0;
	memcpy(&names, data + eh.e_shoff + eh.e_shstrndx * sizeof(sh), sizeof(names));
	if (names.sh_offset > n || names.sh_size > n - names.sh_offset)
		return 0;
	for (int i = 0; i < eh.e_shnum && !rc; i++) {
		const char *name;

		memcpy(&sh, data + eh.e_shoff + i * sizeof(sh), sizeof(sh));
		if (sh.sh_type == SHT_NOBITS || sh.sh_offset > n || sh.sh_size > n - sh.sh_offset ||
		    sh.sh_name >= names.sh_size)
			continue;
		name = (const char *)data + names.sh_offset + sh.sh_name;
		if (!strncmp(name, ".nv_fatbin", names.sh_size - sh.sh_name) ||
		    !strncmp(name, "__nv_relfatbin", names.sh_size - sh.sh_name))
			rc = section(data + sh.sh_offset, sh.sh_size, each, ctx);
	}
	return rc;
}

int rtc_fatbins(const uint8_t *data, size_t n, rtc_fatbin_fn *each, void *ctx)
{
	int rc = 0;

	if (n < 8 || memcmp(data, "!<arch>\n", 8))
		return object(data, n, each, ctx);
	for (size_t at = 8; !rc && n - at >= MEMBER_SIZE; ) {
		char size[11] = "";
		size_t len;

		memcpy(size, data + at + 48, 10);
		len = strtoul(size, NULL, 10);
		at += MEMBER_SIZE;
		if (len > n - at)
			break;
		rc = object(data + at, len, each, ctx);
		at += (len + 1) & ~(size_t)1;
		if (at > n)
			break;
	}
	return rc;
}
