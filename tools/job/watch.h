/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.h - jobs, joined with their proxies' numbers (uproxy/include/stat.h), for ps and top
 */
#ifndef WATCH_H
#define WATCH_H

#include "rundir.h"
#include "stat.h"
#include "tool_i.h"
#include "why.h"

/*
 * A proxy's numbers; all zeros, with state UPROXY_STARTING, before it shows any. -EPROTONOSUPPORT:
 * it counts in another version of the format; *why, which may be NULL, says so.
 */
int watch_stat(const struct rundir_job *job, const struct rundir_proxy *proxy,
	       struct uproxy_stat *stat, struct why *why);

/* "running", "stopped", "exit 3", "SIGKILL", in buf[24]. Returns buf. */
const char *watch_rank_state(const struct rundir_rank *rank, char *buf);
/* "starting", "serving" …; "stopped" if the client is; "?": not known. */
const char *watch_proxy_state(const struct rundir_proxy *proxy, const struct uproxy_stat *stat);

/* A device in a word or three: "2", its number here, or "3 on 2" if the program has another one (logical, + 1; 0: not known). */
const char *watch_device(int device, uint32_t logical, char buf[32]);

/* Printable text of at most width columns: control bytes become '?'. Returns buf. */
char *watch_clip(char *buf, size_t size, const char *text);

#endif
