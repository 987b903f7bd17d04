/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h - memory and events that processes share: between proxies (peer.c), and what a session does with
 * them (ipc.c, ipc_event.c)
 */
#ifndef PEER_H
#define PEER_H

#include "uproxy_i.h"

/* ------------------------------------------------------------------------------ peer.c; any thread */

/*
 * Show memory (whose granules can be exported), or an event's file: who knows what *out says can have it. The
 * same thing has the same secret until it is hidden. -errno.
 */
int peer_show(struct sv_session *s, uint32_t kind, uint64_t va, uint64_t len, int fd,
	      const uint8_t key[16], struct sv_ipc_shown *out);
void peer_hide(uint64_t va, uint64_t len);	/* any part of it */
void peer_hide_at(uint64_t va);			/* what begins there */
void peer_hide_event(int fd);

/* Does the handle come from this session? */
bool peer_is_us(const struct sv_ipc_handle *h);

/*
 * What a handle means, as files: each(arg, fd) for all in order; fd is closed afterwards. MAP_FAILED: nobody
 * shows it; INVALID_VALUE: the handle is not what it says.
 */
CUresult peer_ask(const struct sv_ipc_handle *h, const uint8_t key[16],
		  CUresult (*each)(void *arg, int fd), void *arg);

/* ------------------------------------------------------------------------------ window.c; consumer */

/*
 * See to it that all granules of a range of SV_OP_X_MAP can be exported: those that cannot are replaced by
 * such that can, with what they hold. CUDA_ERROR_NOT_READY: that would take an idle device.
 */
CUresult window_shareable(struct sv_session *s, uint64_t va, uint64_t len);
bool window_mapped(const struct sv_session *s, uint64_t va, uint64_t len);

/* Map these granules of another process at va; handles are released. */
CUresult window_map_peer(struct call *k, uint64_t va, uint64_t n, const uint64_t *handle);

#endif
