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

/*
 * Has the program another number for its device than the host? logical: the program's number + 1; 0: an older proxy does not say.
 * watch_device: "2", or "3 on 2" if the program's device 3 is device 2 here. Returns buf.
 */
bool watch_moved(int device, uint32_t logical);
const char *watch_device(int device, uint32_t logical, char buf[32]);

/* Printable text of at most width columns: control bytes become '?'. Returns buf. */
char *watch_clip(char *buf, size_t size, const char *text);

#endif
