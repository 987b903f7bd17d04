/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common.h - the memory of a device that ranks share by slices: one allocation, which all their proxies map
 * at the same addresses
 *
 *   first sharer ── memory and table ── two fds ──► a message in the supervisor's socket, which stays there ──► every other one
 *
 * An address of the window is a place in this memory, so an allocation of the client is a record, but no call of the driver.
 * The table (table.h) says whose bytes lie where. Only the sharer whose turn it is touches the memory and the table. A range
 * that is mapped or unmapped out of turn is *void*: what the table says of it does not count, and it is brought as zeros.
 */
#ifndef UPROXY_SLICE_COMMON_H
#define UPROXY_SLICE_COMMON_H

#include <stdbool.h>
#include <stdint.h>

#include "hal.h"
#include "why.h"

/*
 * The session shares its device by slices. mail: the first end of the socket, the second being the next number
 * (session_options.slices); budget: the bytes of memory. Call it when the window is there, before the first record.
 * -ENOMEM.
 */
int common_open(const struct hal *h, int mail, uint64_t budget);

/*
 * Maps the memory, and makes it, if no sharer has yet. lock: a file of the job's, whose byte `device`
 * (fcntl(2)) is locked meanwhile. -errno and *why.
 */
int common_join(struct hal *h, int lock, uint32_t device, struct why *why);

#define COMMON_SHARERS 64u	/* TABLE_ROWS */

/* Does this session share its device by slices? Nothing else here is called if not. */
extern bool common_on;

/* May the range be mapped? Else it is beyond the memory. */
bool common_has(const struct hal *h, uint64_t va, uint64_t len);

/* A range of the client's is mapped, or unmapped; whole granules. Any thread. */
void common_map(uint64_t va, uint64_t len);
void common_unmap(uint64_t va, uint64_t len);

/*
 * A slice; a worker calls these. -errno and *why: the session has to end. common_bring and common_leave take the ranges that
 * are mapped, one after the other.
 * common_begin: the slice begins. seat: the sharer's; gone(): has the process of a seat ended? known: what lies in the memory
 * is what the table says.
 * common_bring: brings the bytes of a range.
 * common_came: true: all that is mapped has been brought, and belongs to the client from now on. false: ranges have been
 * mapped meanwhile: bring all of them again.
 * common_ends: the memory does not belong to the client any more.
 * common_leave: copies the bytes of a range to the backing, but for what is void.
 * common_left: all ranges have been copied, and another sharer may come.
 */
int common_begin(uint32_t seat, bool (*gone)(uint32_t seat), bool known, struct why *why);
void common_bring(uint64_t va, uint64_t len);
bool common_came(void);
int common_ends(struct why *why);
int common_leave(uint64_t va, uint64_t len, struct why *why);
void common_left(void);

/*
 * For a dump of a session that rests (slice.h).
 * common_here: does the device have the session's memory? Without sharers: true.
 * common_kept: else, where the backing has the unit at va, which is TABLE_UNIT bytes; it stays there until the session's next
 * slice. NULL: the unit is zeros.
 */
bool common_here(void);
const void *common_kept(uint64_t va);

/*
 * What this session's slices have moved so far, in bytes of whole units: digested and copied when they ended, copied or cleared
 * when they began. backing: what the backing has of all sharers of the device. While the memory is the session's.
 */
struct common_moved {
	uint64_t digested, taken, brought;
	uint64_t backing, backing_peak;
};
struct common_moved common_moved(void);

/* The client is gone: what a worker still maps or unmaps does not change the table any more. */
void common_stops(void);

#endif /* UPROXY_SLICE_COMMON_H */
