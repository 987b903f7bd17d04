/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_save.h - the parts that a conductor itself stores: CRIU's images, files, libraries, facts
 *
 *   save_open ─► save_job, save_mapped ─► (the tree is frozen) save_sockets, save_files
 *     ─► save_publish ─► save_close
 *
 * Functions return 0 or -errno; *why has the errno and a sentence.
 */
#ifndef CKPT_SAVE_H
#define CKPT_SAVE_H

#include "ckpt_i.h"
#include "criu.h"
#include "images.h"
#include "store.h"
#include "why.h"

struct save_part {
	char *name;
	struct store_ref ref;
};

struct save {
	struct store *store;
	struct store_writer *images, *own;
	struct images_parts *parts;	/* of CRIU's images; begun by save_open */
	struct images_sink sink;
	struct rundir_job job;		/* read under ckpt_hold() */
	struct ckpt_facts facts;
	struct save_part *part;		/* without the images' and the proxies' parts */
	int n_parts;
	uint64_t file_bytes, file_stored;
	uint64_t image_stored;
};

/* Creates the store if there is none. Waits for a cleaning of the store, until stop(arg) is true: -EBUSY. */
int save_open(struct save *s, const char *dir, bool (*stop)(void *arg), void *arg, struct why *why);
/* Reads the job file and the options; under ckpt_hold(). */
int save_job(struct save *s, const char *rundir, struct why *why);
/* Records the files that the tree has mapped, and stores the stand-ins among them. */
int save_mapped(struct save *s, bool (*stop)(void *arg), void *arg, struct why *why);
/* Records the TCP sockets of the frozen tree; see ckpt_ports(). */
int save_sockets(struct save *s, bool outside, struct why *why);
/* Refuses pipes from 3 up that the command was started with, while others have them; save_sockets(). */
int save_pipes(const struct save *s, const pid_t *pids, int n, struct why *why);
/* Keys of the files that CRIU leaves to the restorer. The caller frees the array, not the texts. */
int save_keys(const struct save *s, const char *const **keys, size_t *n);
/* Saves the files that the job has changed, and those with CRIU's links. */
int save_files(struct save *s, const struct criu_links *links, struct why *why);
/* Publishes all parts, with the refs in facts.proxy[]; past: this checkpoint, for the job's history, or NULL. */
int save_publish(struct save *s, struct phases *ps, const char *criu, const char *past,
		 char id[STORE_ID], struct why *why);
/* Of both writers. */
void save_stats(const struct save *s, struct store_writer_stats *all);
void save_close(struct save *s);

/* The pid that process pid has in its own namespace; 0 if it has ended. */
pid_t save_inner_pid(pid_t pid);

#endif
