/* SPDX-License-Identifier: Apache-2.0 */
/*
 * criu_i.h - a run of CRIU, shared by criu.c, words.c (its result), links.c (names that it gives) and
 * mend.c (the clean-up)
 */
#ifndef UPROXY_CKPT_CRIU_I_H
#define UPROXY_CKPT_CRIU_I_H

#include "criu.h"

#define CRIU_DIR 96

struct run {
	const struct criu *criu;
	char dir[CRIU_DIR];
	int lock;		/* of the folder, which this run owns */
	struct images *images;	/* NULL: closed, images_gone */
	bool images_gone;
	pid_t pid;
	int from[2], to[2];	/* pipes of the action script */
	int script;
	int (*before)(struct run *r);	/* at pre-dump; or NULL */
	int (*still)(struct run *r);	/* CRIU has frozen the tree; NULL: it has been called, or a restore */
	int (*at_point)(struct run *r, pid_t pid);
	void *arg;
	void (*before_end)(struct run *r);	/* CRIU will be made to fail; or NULL */
	int (*progress)(void *arg, uint64_t bytes);
	void *progress_arg;
	uint64_t limit, kill_at;	/* ns, CLOCK_MONOTONIC; 0: none */
	bool heard;		/* the action script has reached post-dump or post-restore */
	bool late;		/* CRIU was killed since it did not let the tree go */
	bool gone;		/* CRIU was killed to let the tree go: a success */
	pid_t criu_pid, script_pid;	/* of then; 0: it was not */
	bool alone;		/* CRIU's process group has no process of the tree */
	uint64_t failed_at;	/* when a CRIU that has failed is killed; ns, 0: it has not */
	uint64_t point_ns;	/* time that at_point() took */
	char *tables;		/* nftables' tables before the dump */
	int links;		/* the lock of criu_links_lock(), or -1 */
	int err;		/* ours */
	int status;		/* CRIU's */
	struct why *why;
};

uint64_t criu_now(void);
/* malloc'ed, with a NUL behind it; NULL: none. */
char *criu_read_file(const char *dir, const char *name, size_t *len);

/* -------------------------------------------------------------------------- edit.c */

/*
 * After images_gather() of a dump of root's tree, which stands still: corrects the images and checks them. -ENOTSUP: the
 * tree has what cannot be restored, which *why names. -EBADMSG, -ENOMEM.
 */
int criu_edit(struct images *images, pid_t root, struct why *why);

/* --------------------------------------------------------------- attributes.c, inject.c */

/* A dump: adds an image with what CRIU does not save of the threads of a tree that stands still. -ENOMEM. */
int criu_attributes_save(struct images *images, pid_t root);
/*
 * Options of sockets that CRIU does not save. criu_options_put writes those of one process of the tree, which stands still;
 * sockets that it has written since criu_options_begin() it leaves out. criu_options_begin: the tree's root; NULL: no memory.
 * criu_options_set sets one option; false: the option is none of these, or could not be set.
 */
struct criu_sockets;
struct criu_sockets *criu_options_begin(pid_t root);
void criu_options_end(struct criu_sockets *all);
void criu_options_put(struct criu_sockets *all, FILE *out, pid_t pid, int inner);
bool criu_options_set(pid_t pid, int fd, int level, int name, const char *value);
/* A restore: sets that; inside: what only the threads can, which run. Adds to what could not be set as it was. */
void criu_attributes_set(struct images *images, pid_t root, bool inside, struct criu_attributes *result);

/*
 * A thread sets its memory policy, or (end not 0) that of a range of its memory; its process's personality. 0 or -errno,
 * of the system call or because the thread has ended.
 */
int criu_inject_policy(pid_t tid, int mode, const unsigned long *nodes, unsigned int bits, unsigned long start,
		       unsigned long end);
int criu_inject_personality(pid_t pid, unsigned long personality);

/* ------------------------------------------------------------------------- words.c */

/*
 * The result of a run that has ended: 0, or -errno and *r->why, which quotes CRIU's log; -ERESTART:
 * another try may succeed. root: the tree, whose open files may explain a failed dump; or 0.
 */
int criu_verdict(struct run *r, const char *what, pid_t root);
/* CRIU's log says that a restore has failed: what is left to CRIU is to end. */
bool criu_has_failed(struct run *r);
/* The dump failed because a link has the name of a file that is there. */
bool criu_met(const struct run *r);
/* The dump failed because CRIU, which reads memory that it has not written, found 0 there (edit.c: timers). */
bool criu_empty(const struct run *r);
/* Fills in frozen_ns and criu_ns from stats-dump; 0 without it. */
void criu_frozen_time(struct run *r, struct criu_dump *d);

/* ------------------------------------------------------------------------- links.c */

/* A dump: adds the links that CRIU has made. criu_links_remove: those that are still its own. */
int criu_links_read(struct criu_links *l, struct images *images);
void criu_links_remove(struct criu_links *l);
/*
 * A restore: lets CRIU use other names, and adds them to *made. criu_links_sweep: removes all that
 * has such a name. -EBADMSG: the images are not as expected.
 */
int criu_links_rename(struct images *images, const struct criu_links *l, const char *tag,
		      struct criu_links *made);
void criu_links_sweep(const struct criu_links *made, const char *tag);
/* Keeps other dumps on this host from making links, or (not alone) lets none of them be alone. */
int criu_links_lock(bool alone, long ms);

/* -------------------------------------------------------------------------- mend.c */

/* Names a file that the tree has open and CRIU cannot dump; false: none. */
bool criu_suspect(pid_t root, char *text, size_t size);

/*
 * criu_tables: before a dump, notes which nftables tables there are. criu_mend: after CRIU or the
 * tree (root is 0) was killed, deletes those new tables of CRIU's that lock a connection of the
 * tree, or only connections that need no lock.
 */
void criu_tables(struct run *r);
void criu_mend(struct run *r, pid_t root);

/* The process exists and is no zombie. */
bool criu_alive(pid_t pid);

/* The process is one of those that have descended from top. */
bool criu_below(pid_t top, pid_t pid);

/* Does this CRIU have all threads of the tree, so that none of them runs its own program? */
bool criu_holds(pid_t criu, pid_t root);

/* The processes of root's tree, by /proc's pids; the caller frees them. NULL: no memory. */
pid_t *criu_tree(pid_t root, size_t *n);

/* The pid of a process or thread in its own namespace; -1: there is none. */
int criu_inner_pid(pid_t pid);

/* The process of root's tree that has that pid in its own namespace; 0: there is none. */
pid_t criu_find_pid(pid_t root, int inner);

/*
 * Our children before a restore. criu_adopt notes them and makes us a subreaper; criu_disown kills
 * the children that have come since.
 */
struct kin {
	pid_t *pid;
	size_t n;
};
void criu_adopt(struct kin *before);
void criu_disown(const struct kin *before);

#endif
