/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h - memory and events that processes share: the exchange between proxies (peer.c), and the
 * window's part of it
 */
#ifndef PEER_H
#define PEER_H

#include "call.h"

/* ------------------------------------------------------------------------------ peer.c; any thread */

/*
 * peer_show: offers memory (whose granules can be exported) or an event's file to whoever knows the
 * name and secret in *out. The same range or file keeps its secret until it is hidden. -errno.
 */
int peer_show(struct sv_session *s, uint32_t kind, uint64_t va, uint64_t len, int fd,
	      const uint8_t key[16], struct sv_ipc_shown *out);
void peer_hide(uint64_t va, uint64_t len);	/* all offers that overlap the range */
void peer_hide_at(uint64_t va);			/* the offers that begin at va */
void peer_hide_event(int fd);

/* Does the handle come from this session? */
bool peer_is_us(const struct sv_ipc_handle *h);

/*
 * peer_ask: fetches the files that a handle stands for and calls each(arg, fd) with them, in order;
 * fd is closed afterwards. MAP_FAILED: no peer offers it; INVALID_VALUE: the handle does not match
 * the offer.
 */
CUresult peer_ask(const struct sv_ipc_handle *h, const uint8_t key[16],
		  CUresult (*each)(void *arg, int fd), void *arg);

/* ------------------------------------------------------------------------------ window.c; consumer */

/*
 * Makes all granules of a range of SV_OP_X_MAP exportable: replaces those that are not, and copies
 * their contents. CUDA_ERROR_NOT_READY: that needs an idle device.
 */
CUresult window_shareable(struct sv_session *s, uint64_t va, uint64_t len);
bool window_mapped(const struct sv_session *s, uint64_t va, uint64_t len);

/* Maps n granules of another process at va, and releases the handles. */
CUresult window_map_peer(struct call *k, uint64_t va, uint64_t n, const uint64_t *handle);

#endif
