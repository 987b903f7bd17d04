/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor_i.h - findings of `singvgpu doctor`, and the functions that make them
 */
#ifndef DOCTOR_I_H
#define DOCTOR_I_H

#include "tool_i.h"

enum verdict { OK, WARN, MISSING };

struct finding {
	const char *name;
	enum verdict verdict;
	char detail[320];
	char remedy[320];	/* "" if nothing needs to be done */
};

struct doctor {
	struct places places;
	struct finding found[64];
	int n;
	bool soft, nvidia;	/* a job can run on it */
	const char *cannot;	/* why no job can run, or NULL */
};

/* Adds a finding; remedy is NULL or one sentence. found_fatal: no job can run because of it. */
void found(struct doctor *d, const char *name, enum verdict verdict, const char *remedy,
	   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void found_fatal(struct doctor *d, const char *name, const char *remedy, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/*
 * Runs fn in a child process, for at most 20 s, since a library that it loads may crash or hang.
 * text gets what fn prints on out. Returns fn's value, -EFAULT if it crashed, or -ETIMEDOUT.
 */
int probe(int (*fn)(const char *arg, FILE *out), const char *arg, char *text, size_t size);

/* First line of a small file, without its newline. 0 or -errno. */
int first_line(const char *path, char *text, size_t size);

void doctor_host(struct doctor *d);	/* kernel, module, limits, memory */
void doctor_gpu(struct doctor *d);	/* drivers, devices, toolkit, NCCL */
void doctor_criu(struct doctor *d);

#endif
