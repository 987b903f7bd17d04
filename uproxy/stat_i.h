/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stat_i.h - keeps the figures of a session (stat.h)
 */
#ifndef STAT_I_H
#define STAT_I_H

#include "stat.h"
#include "call.h"
#include "why.h"

struct uproxy_stat *stat_open(const char *path);
void stat_thread(void);	/* called by a thread of the driver's, which may block SIGBUS */
void stat_add(uint64_t *field, uint64_t n);
void stat_device(struct sv_session *s, const char *name);	/* the session has a device, of that name */
void stat_state(struct sv_session *s, uint32_t state);
void stat_why(struct sv_session *s, const struct why *why);
uint64_t now_ns(void);

#endif
