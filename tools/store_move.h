/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_move.h - the two roles in a copy of checkpoints, whichever of them is client or server
 */
#ifndef STORE_MOVE_H
#define STORE_MOVE_H

#include "ckpt_phase.h"
#include "store_i.h"
#include "store_wire.h"

struct move {
	struct store *s;
	struct wire w;
	uint64_t seed;			/* of the receiver's store */
	struct phases phases;
	uint64_t copied, there, damaged;	/* checkpoints */
	uint64_t bytes;			/* of the parts copied */
	uint64_t stored;		/* bytes that the receiver's store has grown by */
};

/*
 * Both: 0 or -errno, with m->w.why. move_send: ids as the user gave them, all if there are none; those
 * that are damaged are counted and left out. move_receive: until BYE.
 */
int move_send(struct move *m, char *const ids[], int n);
int move_receive(struct move *m);
/* Keeps the store's own sentence for err. Returns err. */
int move_why(struct move *m, int err);

#endif
