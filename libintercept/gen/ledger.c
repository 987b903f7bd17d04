// SPDX-License-Identifier: Apache-2.0
/*
 * ledger.c - the ledger of opcodes: the number of each function and record on the wire
 *
 * The ledger has a line `NUMBER NAME` for each, 1, 2, 3 … without a gap. An entry that is inserted,
 * renumbered or removed breaks the sequence and is refused; only the end of the file may grow.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gen.h"

#define OP_MAX 0xfffe	/* 0xffff is ringbuf's SINGVGPU_OP_PAD */

/* Where to store the number of that name; NULL: this library has no such name. */
static int *number_of(struct lib *l, const char *name)
{
	struct func *f = find_func(l, name);

	if (f)
		return &f->op;
	for (int i = 0; i < l->nrecord; i++)
		if (!strcmp(l->record[i].name, name))
			return &l->record[i].op;
	return NULL;
}

struct ledger {
	const char *file;
	FILE *f;
	int n, at;
	bool assign;
};

/* Adds a name that is not in the ledger, with the next number. */
static int next_number(struct ledger *b, const char *ann, int line, const char *name)
{
	if (!b->assign)
		fail(ann, line, "%s has no number in %s: make opcodes gives it one", name, b->file);
	if (b->n == OP_MAX)
		fail(b->file, b->at, "no number is left");
	fprintf(b->f, "%d %s\n", ++b->n, name);
	return b->n;
}

void ledger_read(struct lib *l, const char *file, bool assign)
{
	struct ledger b = { .file = file, .f = fopen(file, assign ? "r+" : "r"), .assign = assign };
	char line[256], name[128], **seen = NULL;
	int n = 0, at = 0, *op;
	unsigned int number;

	if (!b.f)
		fail(file, 0, "%s", strerror(errno));
	while (fgets(line, sizeof(line), b.f)) {
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
		op = number_of(l, name);
		if (op)
			*op = number;
	}
	b.n = n;
	b.at = at;
	for (int i = 0; i < l->nfunc; i++) {
		struct func *fn = &l->func[i];

		if (fn->base || fn->op || (fn->class != C_GEN && fn->class != C_HAND))
			continue;
		fn->op = next_number(&b, l->ann, fn->line, fn->name);
	}
	for (int i = 0; i < l->nrecord; i++) {
		struct record *r = &l->record[i];

		if (!r->op)
			r->op = next_number(&b, l->ann, r->line, r->name);
	}
	if (fclose(b.f))
		fail(file, 0, "%s", strerror(errno));
}
