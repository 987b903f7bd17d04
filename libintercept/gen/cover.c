// SPDX-License-Identifier: Apache-2.0
/*
 * cover.c - the coverage list: whether and how each function is supported
 */
#include <errno.h>
#include <string.h>

#include "gen.h"

void cover_write(struct lib *l, const char *dir)
{
	FILE *f = create(dir, format("%s.coverage", l->name));

	for (int i = 0; i < l->nfunc; i++) {
		const struct func *fn = &l->func[i];

		fprintf(f, "%s\t%s", fn->name, class_name[fn->class]);
		if (fn->reason)
			fprintf(f, " because %s", fn->reason);
		fputc('\n', f);
	}
	fclose(f);
}

static void line(const char *what, const int *count)
{
	int sum = 0;

	for (int i = 0; i < C_COUNT; i++)
		sum += count[i];
	printf("%-28s %4d functions: %3d generated, %3d by hand, %3d answered locally, "
	       "%3d unsupported\n", what, sum, count[C_GEN], count[C_HAND], count[C_LOCAL],
	       count[C_NONE]);
}

/* Counts the names that cudart asks for (a base, or a symbol), and those that no header has. */
static void listed(struct lib *l, const char *list)
{
	FILE *f = fopen(list, "r");
	int count[C_COUNT] = { 0 }, unknown = 0;
	char name[128];

	if (!f)
		fail(list, 0, "%s", strerror(errno));
	while (fgets(name, sizeof(name), f)) {
		const struct pfn *row;
		struct func *fn;

		name[strcspn(name, "\n")] = 0;
		row = names_row(l, name);
		fn = find_func(l, row ? row->symbol : name);
		if (fn)
			count[fn->class]++;
		else
			unknown++;
	}
	fclose(f);
	line(strrchr(list, '/') ? strrchr(list, '/') + 1 : list, count);
	printf("%-28s %4d names are in no header of this toolkit\n", "", unknown);
}

void cover_print(struct lib *l, const char *list)
{
	int count[C_COUNT] = { 0 }, variants = 0;

	for (int i = 0; i < l->nfunc; i++) {
		if (l->func[i].base)
			variants++;
		else
			count[l->func[i].class]++;
	}
	line(l->header[0], count);
	printf("%-28s %4d further names for the same\n", "", variants);
	if (list)
		listed(l, list);
}
