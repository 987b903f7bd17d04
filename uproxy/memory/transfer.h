/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.h - copies, and memory and events of other processes
 */
#ifndef TRANSFER_H
#define TRANSFER_H

#include "call.h"

int do_copy(struct call *k);			/* copy.c */
int do_copy3d(struct call *k);

/* A copy of rows as the driver has it, both sides checked. 0, a CUresult, or -errno. */
int copy_params(struct call *k, const struct sv_copy3d *a, CUDA_MEMCPY3D *p);

/* ipc.c, ipc_event.c; see peer.h */
int do_ipc_show(struct call *k);
int do_ipc_forget(struct call *k);
int do_ipc_fetch(struct call *k);
int do_ipc_map(struct call *k);
int do_ipc_event_get(struct call *k);
int do_ipc_event_open(struct call *k);
int do_ipc_event_end(struct call *k);
int do_ipc_record(struct call *k);
int do_ipc_wait(struct call *k);
int do_ipc_query(struct call *k);
int do_ipc_sync(struct call *k);
void ipc_repin(struct sv_session *s);	/* the primary context is a new one */

#endif
