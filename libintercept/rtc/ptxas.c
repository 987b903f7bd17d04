// SPDX-License-Identifier: Apache-2.0
/*
 * ptxas.c - NVIDIA's assembler, a program that XLA runs, for the soft device: PTX in place of machine code
 *
 * A job's ptxas has this library in it, too. It knows no architecture 13.0, so that it could only
 * fail; the soft device runs the PTX as it is. So before ptxas itself begins, its output file gets the
 * input, and it ends. All other uses of ptxas are its own.
 */
#include "rtc_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define OWN_ARCH 130		/* of the soft device, which is not asked: each ptxas would start a proxy */

struct args {
	const char *in, *out;
	int arch, inputs;
};

/* The value of an option, also of the form NAME=VALUE; NULL: the argument is another. */
static const char *value(char **argv, int argc, int *i, const char *name)
{
	size_t n = strlen(name);

	if (strncmp(argv[*i], name, n))
		return NULL;
	if (argv[*i][n] == '=')
		return argv[*i] + n + 1;
	return argv[*i][n] || *i + 1 >= argc ? NULL : argv[++*i];
}

static const char *either(char **argv, int argc, int *i, const char *brief, const char *full)
{
	return value(argv, argc, i, brief) ?: value(argv, argc, i, full);
}

/* Values of other options may look like inputs, but are no files. */
static void parse(struct args *a, int argc, char **argv)
{
	struct stat st;
	const char *v;
	bool real;

	for (int i = 1; i < argc; i++) {
		if ((v = either(argv, argc, &i, "-o", "--output-file"))) {
			a->out = v;
		} else if ((v = either(argv, argc, &i, "-arch", "--gpu-name"))) {
			a->arch = rtc_arch(v, &real);
		} else if (argv[i][0] != '-' && !stat(argv[i], &st) && S_ISREG(st.st_mode)) {
			a->in = argv[i];
			a->inputs++;
		}
	}
}

/* With a NUL at its end, as the driver takes a text: whoever loads a file of machine code adds none. */
static int copy(const char *from, const char *to)
{
	int in = open(from, O_RDONLY | O_CLOEXEC), out = -1, err = 0;
	struct stat st;
	off_t at = 0;

	if (in < 0 || fstat(in, &st))
		err = errno;
	else if ((out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0)
		err = errno;
	while (!err && at < st.st_size) {
		ssize_t n = sendfile(out, in, &at, st.st_size - at);

		if (n <= 0)
			err = n ? errno : EIO;
	}
	if (!err && write(out, "", 1) != 1)
		err = errno;
	if (in >= 0)
		close(in);
	if (out >= 0 && close(out) && !err)
		err = errno;
	return err;
}

/* libc gives a constructor the arguments of main. */
static void __attribute__((constructor)) ptxas_begin(int argc, char **argv)
{
	struct args a = { 0 };
	int err;

	/* Triton has a ptxas-blackwell, too. */
	if (argc < 2 || strncmp(program_invocation_short_name, "ptxas", strlen("ptxas")))
		return;
	parse(&a, argc, argv);
	if (a.arch != OWN_ARCH || a.inputs != 1 || !a.out)
		return;
	err = copy(a.in, a.out);
	if (err)
		fprintf(stderr, "ptxas fatal   : %s to %s: %s\n", a.in, a.out, strerror(err));
	else
		rtc_log("ptxas: %s gets PTX", a.out);
	_exit(!!err);
}
