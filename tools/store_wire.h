/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_wire.h - messages between the two sides of `singvgpu store push` and `pull`
 *
 * A message is a head of 24 bytes (type, length of the rest, XXH3-64 of it with the type as seed, XXH3-64
 * of these three; all little-endian) and the rest. The client is the one who was asked to push or pull; the server is
 * `singvgpu store serve` at the end of a pair of pipes or of an ssh. Changes: version 1, the first.
 *
 *     client                      server
 *     HELLO magic version role
 *           and its store's seed ►                       seed 0: --create, as the sender's
 *                              ◄  HELLO the same
 *     (pull: ASK ids           ►  then what is "sender" below is the server)
 *
 *     sender                      receiver
 *     OFFER id bytes           ►
 *                              ◄  WANT 0 or 1            0: it has it
 *     OBJECT size, name        ►
 *     DIGESTS runs, digests    ►                         at most WIRE_WINDOW unanswered
 *                              ◄  MISSING a byte for each page
 *     PAGES of those missing   ►                         any number, together all of them
 *     OBJECT_END tail          ►                         bytes behind its last whole page
 *     PUBLISH JSON             ►
 *                              ◄  DONE                   it is durable there
 *     BYE damaged              ►                         how many were left out
 *                              ◄  BYE bytes stored
 *
 *     either: FAILED errno, text: the other says it and ends.
 */
#ifndef STORE_WIRE_H
#define STORE_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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

struct wire_hello {
	char magic[16];
	uint32_t version;
	uint8_t pull, create, pad[2];
	uint64_t seed;
};

struct wire_offer {
	char id[40];
	uint64_t bytes;		/* of its parts: what the user is shown */
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

struct wire {
	int in, out;
	const char *who;	/* the other side, for messages */
	uint8_t *buf;		/* of the last message received, NUL behind it */
	size_t room;
	uint64_t sent, received;
	char why[1200];		/* the first failure */
};

/*
 * wire_send: a message of one or two pieces. wire_receive: the next one, which must be of this type;
 * its rest is at w->buf until the next call, its length is returned. Negative: -errno, with w->why;
 * -EREMOTEIO the other side has told why it ended; -ECONNRESET it has not.
 */
int wire_send(struct wire *w, uint32_t type, const void *a, size_t na, const void *b, size_t nb);
ssize_t wire_receive(struct wire *w, uint32_t type);
/* The next one, of any type but FAILED. */
ssize_t wire_any(struct wire *w, uint32_t *type);
/* Tells the other side, if it is still there. */
void wire_fail(struct wire *w, int err, const char *text);
void wire_free(struct wire *w);

#endif
