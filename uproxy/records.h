/* SPDX-License-Identifier: Apache-2.0 */
/*
 * records.h - the table of each record's handler and effects
 */
#ifndef RECORDS_H
#define RECORDS_H

#include "call.h"

#define RECORD_LOG	0x1u	/* changes state: a restore replays it */
#define RECORD_WORKER	0x2u	/* may take long: on a worker, logged before its result is known */
#define RECORD_TAIL	0x4u	/* more bytes follow the struct */
#define RECORD_IMAGE	0x8u	/* a struct sv_image, whose bytes may be in a file */
#define RECORD_ALLOC	0x10u	/* takes device memory */
/* Effects on memory: these records begin with an address and a length in the window. */
#define RECORD_MAPS	0x20u
#define RECORD_UNMAPS	0x40u
#define RECORD_ACCESS	0x80u
#define RECORD_MEMORY	(RECORD_MAPS | RECORD_UNMAPS | RECORD_ACCESS)
#define RECORD_RANGE	0x100u	/* an arena offset, not a handle, names what it makes or ends */
#define RECORD_VALUE	0x200u	/* makes an object that the answer names, not the record */
#define RECORD_ENDS_VALUE 0x400u /* ends such an object: journal_ended gets its maker's number */
#define RECORD_COND	0x800u	/* makes the object that it names, or changes it if it is there */
#define RECORD_ORDERED	0x1000u	/* its result, or a later one's, depends on what is there */
#define RECORD_GRAPH	0x2000u	/* a struct sv_graph_req: its description has handles, too */
#define RECORD_FIRST	0x4000u	/* of records with the same key the first counts; else the last */
#define RECORD_NODES	0x8000u	/* its key is the set of the description's nodes */

#define RECORD_REST	UINT16_MAX

struct record {
	const char *name;
	int (*fn)(struct call *k);	/* NULL: the generated dispatch */
	uint16_t size;			/* of the struct; the generated dispatch has its own check */
	uint16_t flags;
	/* Offset + 1 of the name of the object that it makes, ends, changes; 0: there is none. */
	uint16_t makes, ends, changes;
	/* The same of what leads to an image, in the context that the record begins with. */
	uint16_t of;
	/*
	 * What becomes of it while something is parked (streams/park.h).
	 * park: one of enum park. stream: where the name of its stream is, offset + 1. event, event2: the same of the
	 * events or graphs that it names; for PARK_POST, of the communicator.
	 * waits: it uses the event or graph; else it records or changes that.
	 * versions: it records an event of which park.c makes copies.
	 * answered: if it is parked and complete in itself, it is answered at once, and an error comes later.
	 * tells: another proxy waits for it (streams/outside.h).
	 * touches: it reads or writes the session's memory on the device, which may be elsewhere (slice/slice.h).
	 */
	uint8_t park;
	bool waits, versions, answered, tells, touches;
	uint16_t stream, event, event2;
	/* Of a logged record that changes an object: two that set the same agree in these bytes. */
	struct record_key {
		uint16_t at, len;	/* RECORD_REST: all that follow */
	} key[2];
};

/* NULL: there is no handler. */
const struct record *record_of(uint16_t op);

/* Executes k by its row r. Returns what the handler does; -ENOSYS: there is none. */
int record_run(const struct record *r, struct call *k);

#endif
