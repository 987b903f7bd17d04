/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.h - what copies look at, and events that are shared with other processes
 */
#ifndef TRANSFER_H
#define TRANSFER_H

#include "object.h"

/* ----------------------------------------------------------------------------------------- copy.c */

LOCAL CUresult copy_wait_posted(struct stream *s, bool waits, bool writes);

/*
 * Before a copy in the stream. waits: the program waits for it. Then it must not be told of success where a failed
 * collective precedes it. writes: to memory of the program's, directly: then it must not come later, either, and
 * is sent when the stream is idle. EXTERNAL_DEVICE: the stream stands.
 */
static inline CUresult copy_wait(struct stream *s, bool waits, bool writes)
{
	return likely(!process_has_posted()) ? CUDA_SUCCESS : copy_wait_posted(s, waits, writes);
}

/* core.h's on_copy: what copy_wait() asks. */
LOCAL void copy_on_failed(bool (*ask)(const struct session *s));

/* ------------------------------------------------------------------------------------ ipc_event.c */

/* Record an event that is shared with other processes, or make the stream wait for it. */
LOCAL CUresult ipc_record(struct stream *s, struct event *e);
LOCAL CUresult ipc_wait(struct stream *s, struct event *e);

#endif
