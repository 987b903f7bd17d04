/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.h - takes a record from the ring, or from the log once more: parks or executes, logs and answers it
 */
#ifndef SERVE_H
#define SERVE_H

#include "call.h"

/* Executes and consumes a record. -errno: the session has failed. */
int serve_record(struct sv_session *s, const struct ring_record *rec);

/*
 * Executes a record of the log again and waits until it has ended. A CUresult, or -errno with the
 * broken rule in *rule.
 */
int serve_again(struct sv_session *s, const struct ring_record *rec, const char **rule);

#endif
