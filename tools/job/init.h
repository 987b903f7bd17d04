/* SPDX-License-Identifier: Apache-2.0 */
/*
 * init.h - the messages of the status pipe, from init.c to the supervisor
 */
#ifndef INIT_H
#define INIT_H

#include <stdint.h>

#define INIT_FD 3

struct init_status {
	int32_t pid;		/* a rank's, in its namespace */
	int32_t status;		/* as from waitpid() */
};

_Static_assert(sizeof(struct init_status) == 8, "wire");

#endif
