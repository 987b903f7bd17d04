/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step_i.h - the state of the step: for step.c, which changes it, step_look.c, which reads it, and image.c,
 * which makes one of what was saved
 *
 * A state is a head and arrays behind it. Entries name each other by index. A free entry is all
 * zero, and the lowest free one is taken, so that equal histories have equal bytes. An operation
 * has a part for each call that has been posted for it. It is freed when all parts have ended and
 * nobody can post for it any more.
 *
 * Behind the arrays lies the *index*: what a post, a start and an end look for, so that none of them walks
 * what is in flight. It says nothing that the arrays do not say, is not saved, and is made from them by
 * step_index().
 */
#ifndef STEP_I_H
#define STEP_I_H

#include <stdbool.h>

#include "step.h"

enum { PROXIES, DEVICES, COMMS, MEMBERS, OPS, PARTS, RECORDS, ARRAYS };

#define ENTRIES_MAX (1u << 20)

/* In memory that the proxies of a job share, whose padding is zero. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
enum proxy_state { LIVES = 1, EXITED, DIED };

struct proxy {
	uint8_t state; /* enum proxy_state */
	uint8_t zero[3];
	uint32_t device;
	uint32_t parts; /* not yet ended on its device */
};

struct device {
	uint32_t proxies, exited; /* that are not released; of these, whose processes have left */
	uint32_t parts; /* not yet ended */
	uint32_t zero;
	uint64_t seen; /* how far it is in the log */
	uint64_t woken; /* the last entry that concerns it */
};

enum comm_state { FORMING = 1, STANDING, NEVER };

struct comm {
	uint8_t used;
	uint8_t state;
	uint8_t died; /* a member has */
	uint8_t code; /* of a creation that failed */
	uint32_t ranks, joined, gone;
	uint32_t first; /* member of rank 0; the others follow */
	uint32_t ops, ops_last; /* index + 1, in the order of their first posting */
	uint32_t zero;
	uint64_t key;
};

enum member_state { RESERVED = 1, IN, GONE, DEAD };

struct member {
	uint8_t used; /* enum member_state */
	uint8_t silent; /* its process is gone: nobody hears of its ends */
	uint8_t zero[2];
	uint32_t comm, proxy;
	uint32_t joined; /* the proxy that joined; stays when that is gone */
	uint64_t posted; /* collectives */
};

struct op {
	uint8_t used;
	uint8_t is_pair;
	uint8_t code;
	uint8_t sides; /* of a pair that have posted: SENDER, RECEIVER */
	uint32_t comm, posted;
	uint32_t source, destination;
	uint32_t parts, parts_last; /* index + 1 */
	uint32_t next, prev; /* in the communicator */
	uint32_t log_next, log_prev;
	uint32_t first_rank;
	uint64_t number; /* of a collective */
	uint64_t order; /* in the log, from 1; 0 if it is not there */
	uint64_t born; /* its name for people: operations are counted from 1 */
	struct step_call call; /* the first one posted */
};

#define SENDER   1
#define RECEIVER 2

enum part_state { WAITS = 1, STARTED, HALTED, ENDED };

struct part {
	uint8_t used; /* enum part_state */
	uint8_t told; /* its call has ended for its record */
	uint8_t begun;
	uint8_t zero;
	uint32_t member, proxy, device, call;
	uint32_t record; /* until the part is told: it may be freed then */
	uint32_t next; /* of the operation */
	uint32_t cause; /* its device failed it: the CUDA error, or STEP_NONE; else 0 */
	uint64_t cookie;
};

struct record {
	uint8_t used;
	uint8_t code;
	uint8_t zero[2];
	uint32_t member;
	uint32_t parked, left; /* calls that have not begun, not ended */
	uint64_t cookie;
};

static const uint32_t sizes[ARRAYS] = {
	sizeof(struct proxy), sizeof(struct device), sizeof(struct comm),   sizeof(struct member),
	sizeof(struct op),    sizeof(struct part),   sizeof(struct record),
};

struct step {
	uint32_t limit[ARRAYS], used[ARRAYS];
	uint32_t at[ARRAYS]; /* offsets of the arrays, in 8 bytes */
	uint32_t map[ARRAYS]; /* the same of the bitmaps of used entries */
	uint32_t log, log_last; /* operations, index + 1 */
	uint64_t orders, births;
};

/*
 * Operations by what is looked for: one that some have posted by the next call that belongs to it, one in the
 * log by its order. Of operations between the same two ranks, which wait for the same end, the earliest is in
 * its bucket's list, and has the others behind it.
 */
struct op_place {
	uint32_t next, prev; /* in the bucket; index + 1, as all here */
	uint32_t later, earlier; /* of the same key */
	uint32_t latest; /* of the first of a key that has several */
	uint32_t bucket; /* its number, and 1; 0: in none */
	uint32_t zero[2];
};

/* Parts of operations in the log that have not been started, by device, in the order of the log. */
struct part_place {
	uint32_t op; /* its operation; index */
	uint32_t queued;
	uint32_t next, prev;
};

struct device_place {
	uint32_t first, last;
};

struct index {
	uint64_t looks; /* entries looked at to find others, for tests */
	uint32_t low[ARRAYS]; /* words of the bitmaps before it are full */
	uint32_t buckets; /* a power of two */
	uint32_t at[4]; /* offsets in the index of what follows, in 8 bytes: INDEX_… */
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct proxy) == 12, "shared");
_Static_assert(sizeof(struct device) == 32, "shared");
_Static_assert(sizeof(struct comm) == 40, "shared");
_Static_assert(sizeof(struct member) == 24, "shared");
_Static_assert(sizeof(struct op) == 88, "shared");
_Static_assert(sizeof(struct part) == 40, "shared");
_Static_assert(sizeof(struct record) == 24, "shared");
_Static_assert(sizeof(struct step) == 136, "shared");
_Static_assert(sizeof(struct op_place) == 32, "shared");
_Static_assert(sizeof(struct part_place) == 16, "shared");
_Static_assert(sizeof(struct device_place) == 8, "shared");
_Static_assert(sizeof(struct index) == 56, "shared");

enum { INDEX_BUCKETS, INDEX_OPS, INDEX_PARTS, INDEX_DEVICES };

static inline void *entry(const struct step *s, int array, uint32_t i)
{
	return (char *)s + 8 * (size_t)s->at[array] + (size_t)i * sizes[array];
}

static inline struct proxy *proxy_at(const struct step *s, uint32_t i)
{
	return entry(s, PROXIES, i);
}

static inline struct device *device_at(const struct step *s, uint32_t i)
{
	return entry(s, DEVICES, i);
}

static inline struct comm *comm_at(const struct step *s, uint32_t i)
{
	return entry(s, COMMS, i);
}

static inline struct member *member_at(const struct step *s, uint32_t i)
{
	return entry(s, MEMBERS, i);
}

static inline struct op *op_at(const struct step *s, uint32_t i)
{
	return entry(s, OPS, i);
}

static inline struct part *part_at(const struct step *s, uint32_t i)
{
	return entry(s, PARTS, i);
}

static inline struct record *record_at(const struct step *s, uint32_t i)
{
	return entry(s, RECORDS, i);
}

static inline uint64_t *bitmap(const struct step *s, int array)
{
	return (uint64_t *)((char *)s + 8 * (size_t)s->map[array]);
}

/* The end of the arrays, in 8 bytes. */
static inline uint32_t arrays_end(const struct step *s)
{
	return s->at[ARRAYS - 1] +
	       (uint32_t)(((uint64_t)s->limit[ARRAYS - 1] * sizes[ARRAYS - 1] + 7) / 8);
}

static inline struct index *index_of(const struct step *s)
{
	return (struct index *)((char *)s + 8 * (size_t)arrays_end(s));
}

static inline void *indexed(const struct step *s, int what)
{
	return (char *)index_of(s) + 8 * (size_t)index_of(s)->at[what];
}

static inline struct part_place *part_place(const struct step *s, uint32_t i)
{
	return (struct part_place *)indexed(s, INDEX_PARTS) + i;
}

static inline struct device_place *device_place(const struct step *s, uint32_t i)
{
	return (struct device_place *)indexed(s, INDEX_DEVICES) + i;
}

/* step_index.c. What an operation is found by, as its fields are at the time. */
enum key_kind { BY_NOTHING, BY_NUMBER, BY_SENDER, BY_RECEIVER, BY_ORDER };

struct key {
	enum key_kind kind; /* BY_SENDER: a pair that lacks its sender */
	uint32_t comm, source, destination; /* BY_ORDER: 0 */
	uint64_t number; /* of a collective, or the order */
};

/* index_find: an operation, the earliest of the key; index + 1, or 0. */
uint32_t index_find(struct step *s, const struct key *key);
void index_put(struct step *s, uint32_t op);
void index_drop(struct step *s, uint32_t op);
void index_queue(struct step *s, uint32_t part);
void index_unqueue(struct step *s, uint32_t part);
void index_lay_out(const struct step *s, struct index *x);
uint32_t index_size(const struct step *s); /* in 8 bytes */

static inline bool is_used(const struct step *s, int array, uint32_t i)
{
	return i < s->limit[array] && bitmap(s, array)[i / 64] >> (i % 64) & 1;
}

static inline uint32_t rank_of(const struct step *s, uint32_t m)
{
	return m - comm_at(s, member_at(s, m)->comm)->first;
}

static inline uint32_t member_of(const struct step *s, const struct op *op, uint32_t rank)
{
	return comm_at(s, op->comm)->first + rank;
}

/* Whether a member may still post for a collective. */
static inline bool may_post(const struct step *s, const struct op *op, uint32_t rank)
{
	const struct member *m = member_at(s, member_of(s, op, rank));

	return m->used == IN && m->posted <= op->number;
}

/*
 * What an event and a loader have in common. step_mark: makes an entry used, or free; it is zero then. step_take: the
 * lowest free one; the caller knows that there is one. An operation is added behind its communicator's last, or the log's
 * last; a part behind its operation's last.
 */
void step_mark(struct step *s, int array, uint32_t i, bool used);
uint32_t step_take(struct step *s, int array);
void step_add_op(struct step *s, uint32_t i);
void step_add_part(struct step *s, uint32_t op, uint32_t part);
void step_add_to_log(struct step *s, uint32_t i);

#endif /* STEP_I_H */
