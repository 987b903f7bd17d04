/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.h - what ps and top see: jobs, joined with what their proxies show (uproxy/stat.h)
 */
#ifndef WATCH_H
#define WATCH_H

#include "rundir.h"
#include "stat.h"
#include "tool_i.h"

/* The numbers of a proxy; zeros with state UPROXY_STARTING while there are none. */
void watch_stat(const struct rundir_job *job, const struct rundir_proxy *proxy,
		struct uproxy_stat *stat);

/* "running", "stopped", "exit 3", "SIGKILL", in buf[24]. Returns buf. */
const char *watch_rank_state(const struct rundir_rank *rank, char *buf);
/* "starting", "serving", "stopped", …: the client's state comes first. */
const char *watch_proxy_state(const struct rundir_proxy *proxy, const struct uproxy_stat *stat);

/* Printable text of at most width columns: control bytes become '?'. Returns buf. */
char *watch_clip(char *buf, size_t size, const char *text);

#endif
