/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.h - what others offer for the same purpose, timed the same way
 */
#ifndef PEERS_H
#define PEERS_H

/* Two processes on two CPUs that sleep for each other: ns per round trip, mean. */
double peer_futex_ns(void);
double peer_eventfd_ns(void);
double peer_pipe_ns(void);
double peer_unix_ns(void);

/*
 * DPDK's rte_ring with 64-byte elements, single-element calls, one producer, one consumer:
 * ns per element. 0 where DPDK was not there at build time.
 */
double peer_rte_ring_ns(void);

#endif
