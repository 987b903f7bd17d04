/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passed.h - the descriptors from 3 up that singvgpu was started with, which `run` passes on
 *
 * They are the command's, as without us: `3<file`, `cat <(echo x)`. None of our own is among them, and
 * no other process of ours has them open after the start, so that a pipe ends when the command closes
 * its end.
 */
#ifndef PASSED_H
#define PASSED_H

#include <stddef.h>

/* First in main(), before a file is opened: what is open and survives exec. */
void passed_find(void);
/* Names those that a checkpoint will refuse. */
void passed_tell(void);
/* "pipe:[7],pipe:[9]": the keys of the pipes among them; their number. */
int passed_pipes(char *keys, size_t size);
/* In a new process, before exec: all others from 3 up are closed there. */
void passed_keep(void);
/* Closes them here. */
void passed_close(void);

#endif
