/* SPDX-License-Identifier: Apache-2.0 */
/*
 * init.h - what init.c tells the supervisor over the status pipe
 */
#ifndef INIT_H
#define INIT_H

#include <stdint.h>

#define INIT_FD 3

struct init_status {
	int32_t pid;		/* a rank's, in its namespace */
	int32_t status;		/* as from waitpid() */
};

#endif
