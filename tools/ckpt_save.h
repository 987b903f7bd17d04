/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_save.h - what a conductor itself puts into the store: images, files, libraries, the facts
 *
 *   save_open ─► save_job, save_mapped ─► (the tree is frozen) save_files ─► save_publish ─► save_close
 *
 * Functions return 0 or -errno with a sentence in why[].
 */
#ifndef CKPT_SAVE_H
#define CKPT_SAVE_H

#include "ckpt_i.h"
#include "images.h"
#include "store.h"

struct save_part {
	char *name;
	struct store_ref ref;
};

struct save {
	struct store *store;
	struct store_writer *images, *own;
	struct images_parts *parts;	/* what CRIU wrote; begun by save_open */
	struct images_sink sink;
	struct rundir_job job;		/* read when no one could change it */
	struct ckpt_facts facts;
	struct save_part *part;		/* all but the images and the proxies' */
	int n_parts;
	uint64_t file_bytes, file_stored;
	uint64_t image_stored;
};

/* Creates the store if there is none. */
int save_open(struct save *s, const char *dir, char *why, size_t size);
/* The job's own file and options; under ckpt_hold(). */
int save_job(struct save *s, const char *rundir, char *why, size_t size);
/* What the tree has mapped, and of that the stand-ins themselves. */
int save_mapped(struct save *s, char *why, size_t size);
/* Keys of what CRIU is to leave to the restorer; the array is the caller's, the texts are not. */
int save_keys(const struct save *s, const char *const **keys, size_t *n);
/* What the job has written to files. */
int save_files(struct save *s, char *why, size_t size);
/* All of it, with facts.proxy[]'s refs. */
int save_publish(struct save *s, struct phases *ps, const char *criu, char id[STORE_ID], char *why,
		 size_t size);
void save_stats(const struct save *s, uint64_t *bytes, uint64_t *stored);
void save_close(struct save *s);

/* The pid in its own namespace of a process that we know by our number; 0 if it is gone. */
pid_t save_inner_pid(pid_t pid);

#endif
