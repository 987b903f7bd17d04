/* SPDX-License-Identifier: Apache-2.0 */
/*
 * running.h - a job that a bench starts, follows and ends
 */
#ifndef RUNNING_H
#define RUNNING_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

extern char build[256];		/* SINGVGPU_BUILD */
extern char dir[400];		/* of this run of the bench: removed at its end */
extern char job_dir[500];	/* below it, the job's: its store, its output "out" and "err", its ranks' files */
extern int turns;		/* --turns */
extern pid_t job;		/* its `singvgpu run`, or what stands for it; 0: none */

/* system() of a formatted command. */
int shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A new job_dir. */
void new_folder(void);
/* Runs a script of the shell there, as the leader of a session: this is the job. */
void start_script(const char *script);
/* Starts a job in a new folder: fmt is a program, below the build's folder, and arguments; on: on so many devices. */
void start(int ranks, int on, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Whether the jobs that start() starts from now on share devices by slices. */
extern bool by_slices;
/* The lines of its output with this text; waits until there are n. */
int count_lines(const char *text);
void wait_lines(const char *text, int n);
/* Makes the file "go.STAGE", for which job_work waits. */
void go(int stage);
/* Ends the job by a signal, or (0) lets it end by itself, which must be well. */
void end(int sig);

struct part {
	const char *name;
	void (*run)(void);
};

/* main() of a bench: its options, its folder, and its metrics in bench/NAME.json. */
int run_parts(const char *name, const struct part *parts, size_t n, int argc, char **argv);

#endif
