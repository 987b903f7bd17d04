/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.h - worker threads for calls that may take long
 */
#ifndef WORKER_H
#define WORKER_H

#include <stdbool.h>

struct call;
struct record;

bool worker_idle(void);		/* no job runs or is queued */

/* Runs fn(arg) on a worker when one is free. */
int worker_run(void (*fn)(void *arg), void *arg);
int worker_call(const struct record *r, const struct call *k);
/* In a handler: the next record that is RECORD_ORDERED may be executed while this one goes on. */
void worker_end_turn(void);

#endif
