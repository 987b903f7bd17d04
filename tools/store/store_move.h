/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_move.h - sender and receiver of a copy of checkpoints; either may be client or server
 */
#ifndef STORE_MOVE_H
#define STORE_MOVE_H

#include "phase.h"
#include "store_tool_i.h"
#include "store_wire.h"

struct move {
	struct store *s;
	struct wire w;
	uint64_t seed;			/* of the receiver's store */
	struct phases phases;
	uint64_t copied, there, damaged;	/* checkpoints */
	uint64_t bytes;			/* of the copied parts */
	uint64_t stored;		/* bytes by which the receiver's store has grown */
};

/*
 * Both return 0, or -errno with m->w.why. move_send: ids as the user gave them, all checkpoints if
 * n is 0; then damaged ones are counted and left out. move_receive: until BYE.
 */
int move_send(struct move *m, char *const ids[], int n);
int move_receive(struct move *m);
/* Sets m->w.why to the store's sentence for err. Returns err. */
int move_why(struct move *m, int err);

#endif
