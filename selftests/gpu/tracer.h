/* SPDX-License-Identifier: Apache-2.0 */
/* tracer.h - what tracer_calls.c, which the build writes, has and needs */
#ifndef TRACER_H
#define TRACER_H

struct tracer_row {
	const char *name;
	void *wrapper;
	void *real;		/* the driver's function, or NULL */
};

extern struct tracer_row tracer_rows[];	/* the last has no name */

void *tracer_real(unsigned int row);
CUresult tracer_line(unsigned int row, CUresult r);

#endif
