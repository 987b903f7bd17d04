// SPDX-License-Identifier: Apache-2.0
/*
 * main.c - svgen: turns a library's headers and annotations into the code that forwards its calls
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gen.h"

const char *const class_name[C_COUNT] = {
	"unset", "generated", "by hand", "answered locally", "unsupported",
};

void fail(const char *file, int line, const char *fmt, ...)
{
	va_list ap;

	if (line)
		fprintf(stderr, "%s:%d: ", file, line);
	else
		fprintf(stderr, "%s: ", file);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

char *format(const char *fmt, ...)
{
	va_list ap;
	char *s;

	va_start(ap, fmt);
	if (vasprintf(&s, fmt, ap) < 0)
		fail("svgen", 0, "out of memory");
	va_end(ap);
	return s;
}

/* grow: makes room for element n; the array doubles when n is a power of two. */
void *grow(void *array, int n, size_t size)
{
	if (n && (n & (n - 1)))
		return array;
	array = realloc(array, (n ? 2 * n : 1) * size);
	if (!array)
		fail("svgen", 0, "out of memory");
	return array;
}

FILE *create(const char *dir, const char *name)
{
	char *path = format("%s/%s", dir, name);
	FILE *f = fopen(path, "w");

	if (!f)
		fail(path, 0, "%s", strerror(errno));
	return f;
}

static _Noreturn void usage(void)
{
	fprintf(stderr, "usage: svgen [-I DIR]... -l LEDGER [-A] [-o DIR] [-c [-r LIST]] FILE.ann\n"
		"  -A  give a number in LEDGER to each new function\n"
		"  -o  write the generated files below DIR\n"
		"  -c  print how many functions are of each class; -r: and of the names in LIST\n");
	exit(2);
}

int main(int argc, char **argv)
{
	const char **inc = NULL, *ledger = NULL, *dir = NULL, *list = NULL;
	bool assign = false, cover = false;
	struct lib l = { 0 };
	int opt, ninc = 0;

	while ((opt = getopt(argc, argv, "I:l:Ao:cr:")) != -1) {
		switch (opt) {
		case 'I':
			inc = grow(inc, ninc, sizeof(*inc));
			inc[ninc++] = format("-I%s", optarg);
			break;
		case 'l':
			ledger = optarg;
			break;
		case 'A':
			assign = true;
			break;
		case 'o':
			dir = optarg;
			break;
		case 'c':
			cover = true;
			break;
		case 'r':
			list = optarg;
			break;
		default:
			usage();
		}
	}
	if (optind != argc - 1 || !ledger)
		usage();
	ann_preamble(&l, argv[optind]);
	header_read(&l, inc, ninc);
	ann_functions(&l);
	ledger_read(&l, ledger, assign);
	names_build(&l);
	if (dir) {
		if (mkdir(dir, 0777) && errno != EEXIST)
			fail(dir, 0, "%s", strerror(errno));
		names_write(&l, dir);
		map_write(&l, dir);
		cover_write(&l, dir);
		wire_write(&l, dir);
		client_write(&l, dir);
		server_write(&l, dir);
	}
	if (cover)
		cover_print(&l, list);
	if (fflush(stdout) || ferror(stdout))
		fail("stdout", 0, "%s", strerror(errno));
	return 0;
}
