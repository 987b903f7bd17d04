/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outside.h - waits between proxies, and what they say to each other of failed operations
 *
 * A stream may wait for a stream of another proxy: of another device of the process by a word of the arena, of another
 * process by an event that they share. If that stream stands (cover.h), so does the one that waits.
 *
 *   its own stream stands ──► told: says so in shared memory ──► outside: the stream that waits stands
 *        └── goes on ───────────► takes that back ─────────────────► goes on
 *
 * A thread looks at what others say, as long as a stream waits for one. What is read there may be anything.
 *
 * All functions: consumer, but where it says otherwise.
 */
#ifndef OUTSIDE_H
#define OUTSIDE_H

#include "cover.h"

enum outside_state { OUTSIDE_OPEN, OUTSIDE_STANDS, OUTSIDE_OVER };

/* A wait of a stream for another proxy. It belongs to outside.c from outside_wait() until end(). */
struct outside {
	struct outside *next;
	/* What the other proxy says; *cause, if it stands: an sv_comm_word's arena offset, or 0. Any thread. */
	enum outside_state (*state)(struct outside *o, uint64_t *cause);
	void (*end)(struct outside *o);		/* frees it */
	enum outside_state known;
	uint64_t cause, nth;
	uint32_t chain;
};

/* Before the wait is put into the stream. -ENOMEM; -errno: no thread. Then o stays the caller's. */
int outside_wait(struct sv_session *s, struct stream *st, struct outside *o);

/* May others say something new? Any thread; cheap. outside_look() has it take effect. */
bool outside_due(void);
void outside_look(struct sv_session *s);

/* Does a stream stand behind another proxy's? What that says is looked at before a record is refused for it. */
extern bool outside_stands;

/* What another proxy waits for, in a stream of ours. It belongs to outside.c from outside_tell() until end(). */
struct told {
	struct told *next;
	void (*say)(struct told *t, bool stands, uint64_t cause);
	bool (*over)(struct told *t);		/* has the stream come so far? */
	void (*end)(struct told *t);		/* frees it */
	struct cover cover;
	uint64_t cause;
	bool stands;
};

/* It has been put into the stream, which covers *c. Says at once what is known. */
void outside_tell(struct told *t, const struct cover *c);

/* Failures have changed: says it. */
void outside_say(void);

/* A parked SV_OP_X_CROSS_TELL stands, or does no longer. */
void outside_parked(struct sv_session *s, const struct ring_record *rec, bool stands);

int do_cross_tell(struct call *k);
int do_cross_wait(struct call *k);

#endif /* OUTSIDE_H */
