/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.h - the records that the client under test sends and the test's proxy expects
 *
 * The client's threads submit items. Each thread has two streams, one for its own items and one
 * for those of its signal handler; the items of a stream are numbered, and their length and every
 * byte follow from stream and number. So the proxy detects lost, repeated, reordered and torn
 * items.
 */
#ifndef SELFTESTS_CRIU_STREAM_H
#define SELFTESTS_CRIU_STREAM_H

#include <stdint.h>
#include <string.h>

#define THREADS		4
#define STREAMS		(2 * THREADS)
#define ITEM_MAX	4000

enum op {
	OP_ITEM = 1,		/* no answer */
	OP_CALL,		/* answered at once */
	OP_LATE,		/* answered some milliseconds later */
	OP_PROBE,		/* struct probe: facts that the client has measured */
	OP_END,			/* struct end: the client's own account */
};

struct item {
	uint32_t stream;
	uint32_t len;		/* with this header */
	uint64_t n;
};

struct probe {
	int32_t rseq[3];	/* membarrier(PRIVATE_EXPEDITED_RSEQ): at first, restored, at last */
	int32_t registered[2];	/* MEMBARRIER_CMD_GET_REGISTRATIONS at first, restored; or -errno */
};

struct end {
	uint64_t next[STREAMS];
	uint64_t calls;
	uint64_t timeouts;
	uint64_t forks;
	uint32_t generation;
	uint32_t rseq;		/* restartable sequences are in use */
};

/* How the client ends. */
#define EXIT_PEER_DIED	33
#define EXIT_WRONG	34

static inline uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = a * 0x9e3779b97f4a7c15ull + b + 0x632be59bd9b4e019ull;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static inline uint32_t item_len(uint32_t stream, uint64_t n)
{
	uint64_t x = mix(stream + 1, n);
	uint32_t most = x % 16 < 10 ? 48 : x % 16 < 15 ? 600 : ITEM_MAX;

	return sizeof(struct item) + (x >> 8) % (most - sizeof(struct item) + 1);
}

/* Makes the item in buf[ITEM_MAX] and returns its length. */
static inline uint32_t item_make(uint8_t *buf, uint32_t stream, uint64_t n)
{
	struct item h = { .stream = stream, .len = item_len(stream, n), .n = n };
	uint32_t i;

	memcpy(buf, &h, sizeof(h));
	for (i = sizeof(h); i < h.len; i++)
		buf[i] = (uint8_t)(stream * 31 + n * 7 + i);
	return h.len;
}

static inline uint64_t answer_of(uint32_t stream, uint64_t n)
{
	return mix(stream + 1000, n);
}

static inline int32_t status_of(uint32_t stream, uint64_t n)
{
	return (int32_t)(mix(stream + 2000, n) & 0x7fffffff);
}

#endif /* SELFTESTS_CRIU_STREAM_H */
