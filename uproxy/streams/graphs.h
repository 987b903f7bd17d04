/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graphs.h - executable graphs of the client
 */
#ifndef GRAPHS_H
#define GRAPHS_H

#include "call.h"

int do_graph(struct call *k);
int do_graph_update(struct call *k);
int do_graph_cond(struct call *k);
int do_graph_forget(struct call *k);
/* Visits conditional handles of the client's graphs; kept: values outlive a launch. Consumer. */
typedef void (*condition_visit)(void *arg, uint64_t graph, unsigned int i, uint64_t value,
				bool kept);
void graph_conditions(struct sv_session *s, condition_visit fn, void *arg);
int do_graph_launch(struct call *k);
int do_graph_upload(struct call *k);
int do_graph_destroy(struct call *k);

#endif
