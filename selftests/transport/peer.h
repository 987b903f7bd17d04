/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h - a device's side of links in memory, made by a test instead of a transport
 */
#ifndef SELFTESTS_COMM_PEER_H
#define SELFTESTS_COMM_PEER_H

#include "wire_i.h"

/* Connects to an end's local socket; -1: nobody listens there. */
int peer_dial(const struct address *a);
/* Connects to its port, at its first address of IPv4 that answers; -1. */
int peer_dial_tcp(const struct address *a);
/* Sends bytes with n descriptors. Whether all of them went. */
bool peer_give(int sock, const void *from, size_t len, const int *fds, uint32_t n);
/* Listens on a socket of another name, which it writes into a. The listener. */
int peer_listen(struct address *a, int backlog);
/* Takes an end's connection and hello, waiting for them; maps the link's memory, and closes *fd unless fd. */
int peer_accept(int listener, struct hello *h, struct link_memory **mem, int *fd);

#endif
