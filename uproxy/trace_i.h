/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_i.h - writes the trace file (trace.h)
 */
#ifndef TRACE_I_H
#define TRACE_I_H

#include <stdbool.h>
#include <stdint.h>

struct uproxy_stat;
struct uproxy_trace_coll;

extern bool trace_on;
int trace_open(const char *path, const struct uproxy_stat *st);
void trace_coll(const struct uproxy_trace_coll *c);	/* but its kind and len */
void trace_span(uint16_t op, uint16_t lane, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes);
void trace_close(void);

#endif
