/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control_i.h - the consumer's loop, and the socket on which a conductor asks it for more
 */
#ifndef CONTROL_I_H
#define CONTROL_I_H

#include "call.h"

struct session_options;

/* Serves records until the client is gone (0) or the session has failed (-errno). */
int session_serve(struct sv_session *s);

/* Listens for conductors at path. -errno. */
int control_open(struct sv_session *s, const struct session_options *o, const char *path);
void control_close(void);
bool control_posted(void);		/* a request waits for the consumer: control_run */
void control_run(struct sv_session *s);
/* Until a restore is complete: 0 the session may be served; -ECONNRESET the conductor has gone. */
int control_restore(struct sv_session *s);

#endif
