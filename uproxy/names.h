/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names.h - the variables of an image by name, read from its PTX texts and ELF symbols
 *
 * A driver answers for a variable by name and has no list of them. What is found here is what a
 * driver may have loaded: each name is asked for, and one that it does not know was not loaded.
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
	char local[128];	/* a variable inside of a function, which has no name outside; or "" */
	char twice[128];	/* one of several private ones of a name in linked parts; or "" */
};

/*
 * Add the variables of an image: PTX, a cubin, a fatbin, or a wrapper with pointers to fatbins. Its
 * bytes have been found to be whole (image_whole), and a text ends with a NUL. cc is the device's
 * compute capability times 10: code for others is left out. -EBADMSG, -ENOMEM.
 */
int names_add(struct names *x, const void *image, unsigned int cc);
void names_sort(struct names *x);	/* after the last names_add */
void names_free(struct names *x);

#endif
