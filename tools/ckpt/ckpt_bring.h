/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_bring.h - restores a job from a checkpoint, as a struct job_restore of its supervisor
 *
 *   bring_open ─► bring_check ─► (job.c) proxies: device, replay, contents ─► tree: libraries, files,
 *                                CRIU ─► go: gates open ─► bring_close
 *
 * Nothing outside the store is changed before all proxies have restored their sessions.
 */
#ifndef CKPT_BRING_H
#define CKPT_BRING_H

#include "ckpt_i.h"
#include "criu.h"
#include "job.h"
#include "store.h"

/* Onto which devices. All zero: each proxy's former one. */
struct bring_where {
	char text[1024];	/* as it was parsed */
	struct seating_where on;
};

/*
 * "N": rank R on device N + R; "OLD=NEW,OLD=NEW", each device once as the former one; or what --on takes (seating_on_parse): a
 * list, or anything behind BRING_ON. Before it there may be "share=WANTED/HOW:", two words of enum seating_share; what follows
 * may then be missing. -EINVAL, -ERANGE: *w is unchanged.
 */
#define BRING_ON "on:"
#define BRING_SHARED "share="	/* which no user says */
#define BRING_SHARE BRING_SHARED "%s/%s:"
int bring_where_parse(const char *text, struct bring_where *w);

struct bring_options {
	const char *store;	/* NULL: the default */
	const char *id;		/* its first digits, "latest" or "latest:JOB" (bring_latest) */
	const char *criu;	/* NULL: criu_find() searches */
	const char *json;	/* the report's file, or NULL */
	uid_t trust;		/* store_open_trusted()'s `also` */
	struct bring_where where;
	bool quiet;
	tell_line *tell;	/* what the user should know of a restore that succeeds; bring_read_back() needs none */
};

struct bring {
	struct bring_options o;
	char dir[PATH_MAX];	/* of the store */
	char id[STORE_ID];
	char tag[17];		/* in names of files that only this restore makes */
	struct store *store;
	struct store_checkpoint *checkpoint;
	struct ckpt_facts facts;
	struct rundir_job *was;
	struct seating seating;	/* who sits where from now on */
	struct criu criu;
	struct phases ps;
	int hold;		/* fd of conductor.lock: keeps other conductors away */
	/* arrays by index of facts.proxy[] */
	int *channel;		/* the client's end */
	int *control;
	char (*inherit)[128];
	uint8_t (*cookie)[16];	/* of a channel of the module */
	pthread_mutex_t lock;	/* of: */
	bool useless;		/* a session has failed, and the others' connections are shut down */
	uint64_t handed;	/* bytes that former proxies have handed over; atomic */
	char *below;		/* whole lines for below the reason of bring_open(), or NULL */
	struct job_restore restore;	/* for struct job */
};

/*
 * The checkpoint that "latest" or "latest:JOB" names; -EINVAL, of which *why has nothing: the word is neither. -ENOENT:
 * there is none, or several jobs could be meant: *list gets lines that name them, malloc'ed, or NULL.
 */
int bring_latest(struct store *s, const char *dir, const char *word, char id[STORE_ID], char **list, struct why *why);
/*
 * Opens a checkpoint in a trusted store and reads its facts. After a failure, too, the caller closes *b, which may have
 * lines for below the reason. Every command that restores calls this function; each proxy applies the same rule of
 * trust when it opens the store.
 */
int bring_open(struct bring *b, const struct bring_options *o, struct why *why);
/*
 * Reads a checkpoint that has just been written as a restore reads it before it makes processes; part of bring_check(),
 * too. owner: of the store, who has been trusted to keep it. 0, or what a restore would say in *why.
 */
int bring_read_back(const char *store, uid_t owner, const char *id, struct why *why);
/* Makes all checks that change nothing. *why gets the reason and the remedy. */
int bring_check(struct bring *b, struct why *why);
/* Restricts the restore to a check: proxies test their devices, and no process is restored. */
void bring_ask_only(struct bring *b);
/* The options that `run` had. The texts live as long as b. */
int bring_job_options(const struct bring *b, struct job_options *opt, struct why *why);
void bring_close(struct bring *b);

#endif
