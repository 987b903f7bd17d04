/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_wire.h - messages between the two sides of `singvgpu store push` and `pull`
 *
 * A message is a head of 24 bytes and a body. The head has the type, the body's length, the body's
 * XXH3-64 with the type as seed, and the XXH3-64 of these three, all little-endian. The client is
 * the command `push` or `pull`; the server is `singvgpu store serve`, over a pair of pipes or ssh.
 * Changes: version 1, the first.
 *
 *     client                      server
 *     HELLO magic version role
 *           and its store's seed ►                       seed 0: --create, take the sender's
 *                              ◄  HELLO the same
 *     (pull: ASK ids           ►  then the server is the sender below)
 *
 *     sender                      receiver
 *     OFFER id bytes           ►
 *                              ◄  WANT 0 or 1            0: it is there already
 *     OBJECT size, name        ►
 *     DIGESTS runs, digests    ►                         at most WIRE_WINDOW unanswered
 *                              ◄  MISSING a byte for each page
 *     PAGES the missing ones   ►                         in any number of messages
 *     OBJECT_END tail          ►                         bytes behind its last whole page
 *     PUBLISH JSON             ►
 *                              ◄  DONE                   the checkpoint is durable
 *     BYE damaged              ►                         checkpoints left out
 *                              ◄  BYE bytes stored
 *
 *     either: FAILED errno, text: the other side prints the text and ends.
 */
#ifndef STORE_WIRE_H
#define STORE_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "why.h"

#define WIRE_VERSION	1
#define WIRE_MAGIC	"singvgpu-store\n"
#define WIRE_MOST	(16u << 20)	/* bytes of a message */
#define WIRE_BATCH	1024u		/* pages of a DIGESTS */
#define WIRE_WINDOW	8
#define WIRE_PAGES	256u		/* of a PAGES */

enum {
	WIRE_HELLO = 1,
	WIRE_ASK,
	WIRE_OFFER,
	WIRE_WANT,
	WIRE_OBJECT,
	WIRE_DIGESTS,
	WIRE_MISSING,
	WIRE_PAGES_ARE,
	WIRE_OBJECT_END,
	WIRE_PUBLISH,
	WIRE_DONE,
	WIRE_BYE,
	WIRE_FAILED,
};

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct wire_hello {
	char magic[16];
	uint32_t version;
	uint8_t pull, create, pad[2];
	uint64_t seed;
};

struct wire_offer {
	char id[40];
	uint64_t bytes;		/* of its parts, to show to the user */
};

struct wire_run {
	uint64_t off;		/* bytes */
	uint64_t pages;
};

struct wire_digests {		/* then runs, then digests */
	uint32_t runs, pages;
};

struct wire_failed {		/* then a sentence */
	int32_t err;
	uint32_t pad;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct wire_hello) == 32, "wire");
_Static_assert(sizeof(struct wire_offer) == 48, "wire");
_Static_assert(sizeof(struct wire_run) == 16, "wire");
_Static_assert(sizeof(struct wire_digests) == 8, "wire");
_Static_assert(sizeof(struct wire_failed) == 8, "wire");

struct wire {
	int in, out;
	const char *who;	/* the other side, for messages */
	uint8_t *buf;		/* body of the last message received, with a NUL behind it */
	size_t room;
	uint64_t sent, received;
	struct why why;
};

/*
 * wire_send: sends a message whose body is in one or two pieces. wire_receive: receives the next
 * message, which must be of this type; returns the length of its body, which stays at w->buf until
 * the next call. Both: -errno, with w->why; -EREMOTEIO: the other side failed and sent the reason;
 * -ECONNRESET: it ended without one.
 */
int wire_send(struct wire *w, uint32_t type, const void *a, size_t na, const void *b, size_t nb);
ssize_t wire_receive(struct wire *w, uint32_t type);
/* Receives the next message, of any type but FAILED. */
ssize_t wire_any(struct wire *w, uint32_t *type);
/* Sends w->why to the other side, if it is still there. */
void wire_fail(struct wire *w);
void wire_free(struct wire *w);

#endif
