/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits.h - the machine's own limits, with which benches compare their figures in the same run
 */
#ifndef LIMITS_H
#define LIMITS_H

/* CPUs 0 and 1 of those allowed; on a machine with one CPU both are the same. */
int limit_cpu(int which);

/*
 * Moves 64-byte lines from one CPU, by plain stores, to another, which reads them whole: one flag
 * per 256 lines, 4 such chunks (64 KiB) in flight. ns per line.
 */
double limit_stream_ns(void);

/* One line bounced to the other CPU and back: median ns of a round trip. */
double limit_bounce_ns(void);

#endif
