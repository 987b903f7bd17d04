/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rebuild.h - freezes a session, saves what records refer to, and rebuilds a session from what was saved
 */
#ifndef REBUILD_H
#define REBUILD_H

#include "call.h"

struct content_progress;
struct ctl_device;
struct ctl_freeze;
struct ctl_restore;
struct ctl_restored;
struct session_options;
struct store;
struct store_ref;
struct store_writer;

/* ------------------------------------------------------------------------------ freeze.c */

/*
 * -ENOTSUP and a sentence if the session cannot be dumped. While the device is busy, 0
 * means only that nothing known forbids a dump. Consumer, which does not wait.
 */
int freeze_possible(struct sv_session *s, struct why *why);

/*
 * Closes the gate, drains the ring and waits until the device is idle. After an error, with its
 * sentence, the session runs on. tell gets now and then the streams' operations, done and in all; it returns
 * -ECANCELED when nobody waits for the freeze any more. ns: the time that it took.
 */
int freeze(struct sv_session *s, const struct ctl_freeze *how,
	   int (*tell)(uint64_t done, uint64_t total), uint64_t *ns, struct why *why);
int thaw(struct sv_session *s);

/* ------------------------------------------------------------------------------ kept_save.c, comms.c */

/* since_ns: see struct ctl_store. */
int kept_dump(struct store_writer *w, uint64_t since_ns, struct store_ref *ref, struct why *why);
int kept_restore(struct store *st, const struct store_ref *ref, struct why *why);
/* Refs stay zero if the session has had no communicator. */
int comms_dump(struct sv_session *s, struct store_writer *w, struct store_ref *comms,
	       struct store_ref *board, struct why *why);
int comms_expect(struct store *st, const struct store_ref *comms, struct why *why);
int comms_restore(struct sv_session *s, struct why *why);

/* ------------------------------------------------------------------------------ replay.c */

/*
 * Rebuilds a dumped session from the store; it stays frozen until thaw. home: of a guest,
 * the fd of the channel whose arena it uses, else -1. After a failure this process is of no more use.
 */
int replay_session(struct sv_session *s, const struct session_options *o,
		   const struct ctl_restore *from, int home, const struct content_progress *p,
		   struct ctl_restored *to, struct why *why);
void replay_device(struct hal *h, struct ctl_device *d);	/* the device in use */

#endif
