// SPDX-License-Identifier: Apache-2.0
/*
 * ledger.c - the numbers of functions on the wire
 *
 * The ledger has a line `NUMBER NAME` for each, 1, 2, 3 … without a gap: whatever is inserted,
 * renumbered or removed breaks the sequence and is refused; only the end of the file may grow.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gen.h"

#define OP_MAX 0xfffe	/* 0xffff is ringbuf's SINGVGPU_OP_PAD */

void ledger_read(struct lib *l, const char *file, bool assign)
{
	FILE *f = fopen(file, assign ? "r+" : "r");
	char line[256], name[128], **seen = NULL;
	int n = 0, at = 0;
	unsigned int number;

	if (!f)
		fail(file, 0, "%s", strerror(errno));
	while (fgets(line, sizeof(line), f)) {
		struct func *fn;

		at++;
		if (*line == '#' || *line == '\n')
			continue;
		if (sscanf(line, "%u %127s", &number, name) != 2)
			fail(file, at, "not a line of NUMBER NAME");
		for (int i = 0; i < n; i++)
			if (!strcmp(seen[i], name))
				fail(file, at, "%s has the number %d already", name, i + 1);
		if (number <= (unsigned int)n)
			fail(file, at, "number %u is that of %s", number, number ?
			     seen[number - 1] : "no function");
		if (number != (unsigned int)n + 1)
			fail(file, at, "number %u where %d comes next: numbers are never changed "
			     "or removed", number, n + 1);
		seen = grow(seen, n, sizeof(*seen));
		seen[n++] = strdup(name);
		fn = find_func(l, name);
		if (fn)
			fn->op = number;
	}
	for (int i = 0; i < l->nfunc; i++) {
		struct func *fn = &l->func[i];

		if (fn->base || fn->op || (fn->class != C_GEN && fn->class != C_HAND))
			continue;
		if (!assign)
			fail(l->ann, fn->line, "%s has no number in %s: give it one with -A",
			     fn->name, file);
		if (n == OP_MAX)
			fail(file, at, "no number is left");
		fn->op = ++n;
		fprintf(f, "%d %s\n", n, fn->name);
	}
	if (fclose(f))
		fail(file, 0, "%s", strerror(errno));
}
