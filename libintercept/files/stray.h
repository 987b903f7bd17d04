/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stray.h - programs that a job starts without singvgpu: how they are told of, and what uses CUDA
 *
 * `singvgpu run` reads the FIFO STRAY_FILE in the job's folder. libsingvgpu-files.so writes to it when a process of the
 * job starts a program whose environment lacks ours, or that drops it; so does the launcher's own look at the job's
 * processes (tools/job/strays.c). A record is one write(2) of less than PIPE_BUF bytes:
 *
 *   NUL  kind (one byte)  name of the program, at most STRAY_NAME bytes  NUL
 *
 * What a full FIFO does not take is lost. The reader skips what is no record.
 */
#ifndef SINGVGPU_FILES_STRAY_H
#define SINGVGPU_FILES_STRAY_H

#include <stdbool.h>
#include <stddef.h>

#define STRAY_FILE	"strays"
#define STRAY_NAME	255
#define STRAY_RECORD	(STRAY_NAME + 3)

/* Programs that use CUDA ... */
#define STRAY_PRELOAD	'P'	/* ... and have no LD_PRELOAD of ours */
#define STRAY_SOCKET	'S'	/* ... and have no SINGVGPU_SOCKET */
#define STRAY_SETUID	'U'	/* ... and are started by a set-user-ID program, or are one */
#define STRAY_USER	'O'	/* ... and run as another user */
#define STRAY_LOADED	'L'	/* ... and have not loaded our libraries, for another reason */
/* A program that does not use CUDA itself has no LD_PRELOAD of ours: nor will what it starts. */
#define STRAY_BEGINS	'B'

/* Makes a record, of a longer name with its end. Returns its bytes. */
size_t stray_record(char text[STRAY_RECORD], char kind, const char *name);

/* What a user is told of such a program, without a line's end. Returns its length, less than size. */
size_t stray_sentence(char *text, size_t size, char kind, const char *name);

/* Whether a library of this name, without folders, is CUDA's. */
bool stray_library(const char *base);

/*
 * Whether an ELF file is a program or library that has kernels, or names one of CUDA's libraries as
 * needed. What cannot be read is not. It reads a bounded number of bytes, which may be anybody's.
 */
bool stray_program(int dir, const char *path);

/* The first executable of that name in $PATH. */
bool stray_find(const char *name, char *path, size_t size);

/*
 * What uses CUDA, if the program is set-user-ID, so that the loader will drop LD_PRELOAD: path, or the first of its
 * arguments that is a program with CUDA (sudo ./a.out). NULL: nothing.
 */
const char *stray_dropped(int dir, const char *path, char *const *argv);

#endif
