/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.h - other mechanisms for the channel's purpose (futex, DPDK's ring), timed in the same way
 */
#ifndef PEERS_H
#define PEERS_H

/* Two processes on two CPUs wake each other by futex: mean ns per round trip. */
double peer_futex_ns(void);
double peer_eventfd_ns(void);
double peer_pipe_ns(void);
double peer_unix_ns(void);

/*
 * DPDK's rte_ring with 64-byte elements, single-element calls, one producer, one consumer:
 * ns per element. 0 if DPDK was absent at build time.
 */
double peer_rte_ring_ns(void);

#endif
