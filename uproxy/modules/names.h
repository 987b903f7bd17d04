/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names.h - the variables of an image by name, read from its PTX texts and ELF symbols
 *
 * A driver looks up a variable by name and cannot list them. The names found here are those that it
 * may have loaded; a name that the driver does not know was not loaded.
 */
#ifndef NAMES_H
#define NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct names {
	char **name;		/* sorted, each once; the byte before one says if it is private */
	size_t n, cap;
	bool linked;		/* of several parts: private names may mean several variables */
	bool mallocs;		/* a kernel may call malloc() */
	char local[128];	/* a variable inside a function, which cannot be looked up; or "" */
	char twice[128];	/* a private name that several linked parts have; or "" */
};

/*
 * Adds the variables of an image: PTX, a cubin, a fatbin, or a wrapper with pointers to fatbins.
 * image_whole has checked its lengths, and a text ends with a NUL. cc is the device's compute
 * capability times 10: code for other devices is left out. -EBADMSG, -ENOMEM.
 */
int names_add(struct names *x, const void *image, unsigned int cc);
void names_sort(struct names *x);	/* after the last names_add */
void names_free(struct names *x);

#endif
