/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flows.h - collective operations in a trace: slices on tracks of their own, joined by flows between ranks
 */
#ifndef TOOL_FLOWS_H
#define TOOL_FLOWS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "trace.h"

struct flow_part;

struct flows {
	struct flow_part *part;
	size_t n, room;
};

/* A record of the proxy with that pid, which must stay. False: it makes no sense, or there is no memory. */
bool flows_add(struct flows *f, int pid, const struct uproxy_trace_coll *c);

/* Writes them as members of a JSON array that is not empty; times are from first_ns on. */
void flows_write(struct flows *f, FILE *out, uint64_t first_ns);
void flows_free(struct flows *f);

#endif
