/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - for libFuzzer's programs: the input as a stream of bytes, and what must hold
 *
 * A file may define MUST itself, before it includes this.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the fuzzer, which keeps the input, unless c holds. */
#ifndef MUST
#define MUST(c) do { \
	if (!(c)) { \
		fprintf(stderr, "must be: %s (line %d)\n", #c, __LINE__); \
		abort(); \
	} \
} while (0)
#endif

struct program {		/* what is left of the input */
	const uint8_t *p, *end;
};

/* The next byte; 0 behind the end. */
static inline uint8_t byte(struct program *in)
{
	return in->p < in->end ? *in->p++ : 0;
}

/* The next n bytes as a number, the highest first; n <= 8. */
static inline uint64_t raw(struct program *in, int n)
{
	uint64_t v = 0;

	while (n--)
		v = v << 8 | byte(in);
	return v;
}

/* Open files below `most`. A thread in accept4() holds the lowest free number, too, which is not counted. */
static inline int open_fds(int most)
{
	int n = 0;

	for (int fd = 0; fd < most; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

#endif
