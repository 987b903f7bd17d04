/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saved.h - what a checkpoint has of a session's communicators, and the reader that checks it
 *
 *   0    struct saved_head
 *        head.comms of struct saved_comm
 *        head.posted of struct saved_posted, by seq; with each its calls, then the buffers of these
 *        head.items of struct saved_item, with the data: park_each()'s
 *
 * Everything is padded to 8 bytes, and nothing follows. The list of communicators comes first among them; behind it are
 * those that the client has ended and that posted records still name.
 */
#ifndef COMM_SAVED_H
#define COMM_SAVED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "step.h"

#define SAVED_MAGIC	0x4d435653u	/* "SVCM" */
#define SAVED_VERSION	1u
#define SAVED_SLOTS	512u		/* POSTED_MAX */
#define SAVED_CALLS	1024u		/* SV_COLL_CALLS_MAX */
#define SAVED_FACTORS	2u		/* SV_COLL_FACTOR_AT, the last kind of factor */

enum { H_LEFT = 1 };
enum { C_LISTED = 1, C_JOINED = 2, C_STANDS = 4, C_ABORTED = 8, C_ENDING = 16, C_REFUSED = 32, C_TOLD = 64, C_MASK = 127 };
/* P_AHEAD: the record is among the items, too. */
enum { P_BEGUN = 1, P_ENDED = 2, P_FAILED = 4, P_AHEAD = 8, P_MASK = 15 };
enum { ANSWER_CREATED, ANSWER_ENDED, ANSWER_ABORT, ANSWERS };

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct saved_head {
	uint32_t magic, version;
	uint32_t seat, slots;
	uint32_t comms, posted, items, flags;
	uint64_t numbers[SAVED_SLOTS];
};

struct saved_answer {
	uint64_t seq;
	uint16_t op, cpl;		/* op 0: there is none */
	uint32_t pad;
};

struct saved_comm {
	uint64_t number, key;
	uint64_t word;			/* arena offset */
	uint32_t member, ranks, rank, flags;
	struct saved_answer answer[ANSWERS];
};

struct saved_posted {
	uint64_t seq, ctx, stream, number;
	uint32_t comm;			/* among the communicators saved */
	uint32_t slot, calls, flags, code, pad;
};

struct saved_call {
	struct step_call call;
	uint64_t send, recv, factor;
	uint64_t scale;
	uint64_t buffer;		/* bytes of it; 0: none */
};

struct saved_item {
	uint64_t seq, event;
	uint16_t op, cpl;
	uint32_t len;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct saved_head) == 4128, "file format");
_Static_assert(sizeof(struct saved_answer) == 16, "file format");
_Static_assert(sizeof(struct saved_comm) == 88, "file format");
_Static_assert(sizeof(struct saved_posted) == 56, "file format");
_Static_assert(sizeof(struct saved_call) == 56, "file format");
_Static_assert(sizeof(struct saved_item) == 24, "file format");

struct saved_bytes {
	const uint8_t *p;
	size_t left;
};

/* The next n bytes, behind which the padding is; NULL: there are fewer. */
const void *saved_take(struct saved_bytes *f, uint64_t n);

/*
 * What the bytes have by themselves: sizes, counts, places, flags that go together, padding. 0, with *h the head; -EBADMSG
 * and *why, a constant; -EPROTONOSUPPORT, with *h; -ENOMEM. The bytes are 8-aligned. What depends on the session, its arena,
 * streams and board, is comm_rebuild()'s.
 */
int saved_check(const void *bytes, size_t len, const struct saved_head **h, const char **why);

/* Goes past the calls of a record that saved_check() has passed; *buffers is where their buffers begin. */
const struct saved_call *saved_calls(struct saved_bytes *f, const struct saved_posted *p, struct saved_bytes *buffers);

#endif
