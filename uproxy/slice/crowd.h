/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd.h - ranks that share a device together, each with memory of its own, as long as all of it fits
 *
 * Each rank may use nearly all of the device. The board counts what each has mapped (board_maps()). A client whose allocation finds
 * no room waits. The supervisor then saves the job and restores it by slices, and the client asks its new proxy again.
 */
#ifndef UPROXY_SLICE_CROWD_H
#define UPROXY_SLICE_CROWD_H

#include <stdbool.h>
#include <stdint.h>

/* All that the device's sharers have counts, and has to fit. */
extern bool crowd_on;

/* The board of the job: its fd stays the caller's. Without these two calls there is always room. */
void crowd_board(int fd, uint32_t seat);
/* All sharers of this device may have so many bytes together. -errno: the board cannot be used. */
int crowd_limit(uint32_t device, uint64_t bytes);

/*
 * The session is about to map so many bytes more; consumer. false: there is no room. crowd_has: it has so many more, room or not.
 * crowd_leaves: it has so many less; any thread.
 */
bool crowd_comes(uint64_t bytes);
void crowd_has(uint64_t bytes);
void crowd_leaves(uint64_t bytes);

/*
 * The client waits for memory that it was refused. true: the supervisor knows, and the job is to be moved; ask again. false: there is
 * nothing to wait for (any more). Consumer. crowd_waited: has it been true?
 */
bool crowd_waits(void);
bool crowd_waited(void);

#endif /* UPROXY_SLICE_CROWD_H */
