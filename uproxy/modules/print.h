/* SPDX-License-Identifier: Apache-2.0 */
/*
 * print.h - device printf: carries what kernels print to the client
 */
#ifndef PRINT_H
#define PRINT_H

#include "call.h"

int print_begin(void);			/* before the driver is loaded */
void print_unsaid(void);		/* logs what the driver has said, and no client was told */
int print_init(struct sv_session *s, uint64_t out_off, uint64_t out_size, uint64_t err_off,
	       uint64_t err_size, bool restored);
void print_pump(struct sv_session *s);

#endif
