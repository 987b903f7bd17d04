/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.h - the table of virtual handles
 */
#ifndef HANDLE_H
#define HANDLE_H

#include "call.h"

struct context;

enum { SV_TYPES = 32 };

/* The object bound to a live handle (sv_bind_obj), or NULL. */
void *handle_obj(struct sv_session *s, unsigned int type, uint64_t handle);

/* sv_real of all but streams. */
int handle_real(struct sv_session *s, unsigned int type, uint64_t handle, uint64_t *real);

/* As sv_bind, with an object of ours, and the context whose end ends the handle (0: none). */
int handle_bind(struct sv_session *s, unsigned int type, uint64_t handle, uint64_t real, void *obj,
		uint64_t ctx);

/* Unbind all handles for which fn says 1. Consumer. */
typedef int (*handle_match)(void *arg, unsigned int type, uint64_t ctx, void *obj);
void handle_sweep(struct sv_session *s, handle_match fn, void *arg);

bool handle_live(unsigned int type, uint64_t handle);

/* Lists the live contexts and returns their number; the caller frees *c. -ENOMEM. Consumer. */
ssize_t handle_contexts(struct sv_session *s, struct context ***c);

/* Visits all live handles of a type, by index. Nothing else may run in the session. */
typedef void (*handle_visit)(void *arg, uint64_t handle, uint64_t real, void *obj);
void handle_walk(struct sv_session *s, unsigned int type, handle_visit fn, void *arg);

/* Until the next call of this, sv_real gives this thread the driver's event e for any event; NULL: it does not. */
void event_instead(CUevent e);

#endif
