/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - the proxy's messages
 */
#ifndef LOG_H
#define LOG_H

#include "call.h"

void log_open(const char *path);
void log_close(void);		/* leaves a slow reader a moment */
/* One line, to the log; tell: also to the stderr that we were started with. */
void uproxy_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool log_verbose(void);
/* A record that failed with its answer; log_counts: at the end, how often images did. */
void log_result(uint16_t op, uint64_t seq, CUresult r);
void log_counts(void);

int do_bypass(struct call *k);

#endif
