/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.h - the files that a job has changed: into the store at a checkpoint, put back at a restore
 *
 * What was changed is known from the job's log (libintercept/files/record.h) and, for processes
 * that write none, from the open fds and shared mappings of the frozen tree. Each path is saved in
 * the state that it has at the cut: absent, folder, symbolic link, fifo, regular file with content.
 *
 * Parts of a checkpoint: "files" is the list, "files/log" the log itself, "files/HASH" a content,
 * its name from a hash of the path. The list is text, a line for each path in the order of strcmp,
 * fields by single spaces; in paths, targets and names of attributes %XX stands for a byte below
 * 0x21, for % and for 0x7f:
 *
 *   singvgpu-files 1
 *   boot ID NS                  the machine's boot and the time (CLOCK_REALTIME) of the collection
 *   log NAME                    the log goes on as logs/NAME in the store's folder; "-": it does not
 *   a PATH                      nothing is there
 *   p MODE UID GID MTIME PATH   a folder that others lie in; it is made if it is missing
 *   d MODE UID GID MTIME PATH   a folder that the job has changed, D: has made
 *   l MODE UID GID MTIME PATH TARGET
 *   f MODE UID GID MTIME PATH   a fifo; s: a socket (CRIU makes it) or a device: left alone
 *   r MODE UID GID MTIME PATH SIZE DEV INO CTIME TRUST HASH
 *   h MODE UID GID MTIME PATH FIRST    another name of the regular file FIRST
 *   x NAME VALUE                an attribute of the path before it, in hex
 *
 * MODE is octal, times are ns since 1970. TRUST 1: if size, times and inode are the same at the next
 * checkpoint before the machine's next boot, so is the content. That holds for local file systems,
 * if the last change was long enough (2 s) before the cut that another one has another time, and if
 * no process of the job had the file mapped for writing, which changes it without a new time.
 *
 * Not known are: what statically linked programs (and those without our environment: set-uid ones,
 * `env -i`) have changed and closed before the cut, what was changed in another root or mount
 * namespace, attributes by ioctl, and the content at the cut of files that existed before the job
 * and were changed for the first time after the cut: they are named, and left as they are. A mapping
 * for writing in a process outside the job is not seen by TRUST.
 *
 * Source: Singularity §4.3.3.
 */
#ifndef CKPT_FILES_H
#define CKPT_FILES_H

#include "store.h"

#define FILES_WHY 1024

/*
 * files_save: with the job's tree frozen. Objects go through `w`, which the caller flushes; parts
 * are for store_publish() and live until files_save_free(). The log moves into the store's folder,
 * if the job can write there, and `log` becomes a link to it. With `former`, a checkpoint of the same
 * job in the same store, unchanged files are not read again.
 *
 * -ENOENT no log; -ENODATA the log is not complete; -EACCES a file cannot be read; -EBUSY a file
 * is being changed by someone else; -EPROTO a list in `former` is broken; or what the store says.
 */
struct files_save {
	const char *log;		/* $SINGVGPU_FILES of the job */
	const pid_t *pids;		/* every process of the tree, as numbered here */
	size_t n_pids;
	const char *const *skip;	/* folders that are none of the job's, NULL at the end */
	struct store_checkpoint *former;	/* or NULL */
	store_progress progress;	/* or NULL: phase "files", bytes */
	void *arg;

	struct store_part *parts;	/* out */
	size_t n_parts;
	uint64_t paths, files, bytes, unread;	/* bytes of files, and how many were not read again */
	char why[FILES_WHY];
};

int files_save(struct files_save *f, struct store *s, struct store_writer *w);
void files_save_free(struct files_save *f);

/*
 * files_put_back: makes the paths as they were at the cut, before the tree is restored. What is
 * there instead, and what the job made later (if a log goes on beyond the cut), is kept aside:
 * renamed to NAME.STAMP, or into FOLDER.STAMP beside the outermost folder that the job made, and
 * said. All is looked at first: with an error nothing has been changed, or what had been is undone
 * (and if that fails too, `why` says what is left). Writes the job's log as it was.
 *
 * -EACCES, -EPERM, -EROFS a folder cannot be written, or an owner not given; -ENOSPC; -EBUSY a
 * mount is in the way; -EPROTO the list is broken; or what the store says, of what cannot be read.
 * A checkpoint without the part "files" puts nothing back.
 */
struct files_back {
	struct store *store;
	struct store_checkpoint *checkpoint;
	const char *log;		/* where the job's log goes, or NULL */
	const char *later;		/* one with what the job did after the cut, if the store has none */
	const char *stamp;		/* "singvgpu-TIME" */
	bool look_only;			/* the first pass alone */
	store_progress progress;	/* or NULL */
	void *arg;

	char **said;			/* out: sentences */
	size_t n_said;
	uint64_t made, kept, aside;	/* paths made, left as they are, kept aside */
	char why[FILES_WHY];
};

int files_put_back(struct files_back *b);

/*
 * Removes the logs that no checkpoint has and no job writes to. Behind store_gc(). 0, or what the
 * store says (then nothing has been removed).
 */
struct files_gc_stats {
	uint64_t logs, freed;	/* bytes */
};
int files_gc(struct store *s, struct files_gc_stats *st);
void files_back_free(struct files_back *b);

#endif
