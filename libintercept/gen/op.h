/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.h - a table, shared by client and proxy, of each opcode's sizes and effects
 *
 * LIB_ops[] (LIB_info.c, generated) has an entry for each number in the ledger. Entries of
 * functions by hand have a name and no flags.
 */
#ifndef SV_OP_H
#define SV_OP_H

#include <stdint.h>

#define SV_GENERATED	1u
#define SV_SYNC		2u	/* the client waits for the answer */
#define SV_LOG		4u	/* changes state: a restore replays it */
#define SV_TAIL		8u	/* strings or arrays follow the struct */

struct sv_op {
	const char *name;
	uint16_t flags;
	uint16_t args;		/* bytes of the struct at the record's beginning */
	uint16_t reply;		/* bytes of the reply */
	uint16_t stream;	/* offset + 1 in the record of the stream that it uses, or 0 */
	uint16_t creates;	/* handle type, or 0 */
	uint16_t destroys;
	uint16_t handle;	/* offset + 1 of that handle in the record, or real: in the reply */
};

/* A product of sizes from arguments; UINT64_MAX, a length that no range has, if it overflows. */
static inline uint64_t sv_mul(uint64_t a, uint64_t b)
{
	uint64_t r;

	return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

/* The bytes that height rows of width elements span, with rows pitch bytes apart. */
static inline uint64_t sv_pitch(uint64_t pitch, uint64_t width, uint64_t height, uint64_t bytes)
{
	uint64_t row = sv_mul(width, bytes), r;

	if (!row || !height)
		return 0;
	r = sv_mul(pitch, height - 1);
	return __builtin_add_overflow(r, row, &r) ? UINT64_MAX : r;
}

#endif
