/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.h - the files that a job has changed: into the store at a checkpoint, put back at a restore
 *
 * The job's log (libintercept/files/record.h) names the changed paths. Open fds and shared mappings
 * of the frozen tree add those of processes that write no log. Each path is saved in the state that
 * it has at the cut: absent, folder, symbolic link, fifo, regular file with content.
 *
 * Parts of a checkpoint: "files" is the list, "files/log" the log itself, "files/HASH" a content,
 * named by a hash of its path. The list is text with a line for each path, in the order of strcmp.
 * Single spaces separate fields; in paths, targets and names of attributes %XX stands for a byte
 * below 0x21, for % and for 0x7f:
 *
 *   singvgpu-files 1
 *   boot ID NS                  the machine's boot and the time (CLOCK_REALTIME) of the collection
 *   log NAME                    the log goes on as logs/NAME in the store's folder; "-": it does not
 *   a PATH                      nothing is there
 *   p MODE UID GID MTIME PATH   a folder above listed paths; it is made if it is missing
 *   d MODE UID GID MTIME PATH   a folder that the job has changed; D: has made
 *   l MODE UID GID MTIME PATH TARGET
 *   f MODE UID GID MTIME PATH   a fifo; s: a socket (CRIU makes it) or a device: left alone
 *   r MODE UID GID MTIME PATH SIZE DEV INO CTIME TRUST HASH
 *   h MODE UID GID MTIME PATH FIRST    another name of the regular file FIRST
 *   c like r                    the name link_remap.N, which CRIU gave for the time of the dump to a
 *                               file whose own name is gone; with the DEV and INO of an r or another c
 *                               it is that file, and has its content
 *   x NAME VALUE                an attribute of the path before it, in hex
 *
 * MODE is octal, times are ns since 1970. TRUST 1: if size, times and inode are the same at the
 * next checkpoint before the machine's next boot, so is the content. This holds on local file
 * systems if the last change was at least 2 s before the cut, so that another change gets another
 * time, and if no process of the job had the file mapped for writing, since such writes set no new
 * time.
 *
 * Not detected are: files that statically linked programs (and those without our environment:
 * set-uid ones, `env -i`) have changed and closed before the cut, changes in another root or mount
 * namespace, and attributes set by ioctl. Files that existed before the job and were changed for
 * the first time after the cut are named, and left as they are, since their content at the cut is
 * not known. TRUST does not see a mapping for writing in a process outside the job.
 *
 * Source: Singularity §4.3.3.
 */
#ifndef CKPT_FILES_H
#define CKPT_FILES_H

#include "store.h"

/*
 * files_save: saves the files while the job's tree is frozen. It writes objects with `w`, which the
 * caller flushes; parts are for store_publish() and live until files_save_free(). The log moves
 * into the store's folder, if the job can write there, and `log` becomes a link to it. Files
 * unchanged since `former`, a checkpoint of the same job in the same store, are not read again.
 *
 * -ENOENT no log; -ENODATA the log is not complete; -EACCES a file cannot be read; -EBUSY another
 * program is changing a file; -EPROTO the list in `former` is broken; or an error of the store.
 */
struct files_save {
	const char *log;		/* $SINGVGPU_FILES of the job */
	const pid_t *pids;		/* every process of the tree, as numbered here */
	size_t n_pids;
	const char *const *skip;	/* folders not to save, NULL at the end */
	const char **links;		/* CRIU's names */
	size_t n_links;
	struct store_checkpoint *former;	/* or NULL */
	store_progress progress;	/* or NULL: phase "files", bytes */
	void *arg;

	struct store_part *parts;	/* out */
	size_t n_parts;
	uint64_t paths, files, bytes, unread;	/* bytes: of files; unread: files not read again */
	struct why why;
};

int files_save(struct files_save *f, struct store *s, struct store_writer *w);
void files_save_free(struct files_save *f);
/* Whether it has stored the contents of the file at that path. */
bool files_saved(const struct files_save *f, const char *path);

/*
 * files_put_back: restores the paths to their state at the cut, before the tree is restored. A path
 * that is in the way, or that the job made later (if a log goes on beyond the cut), is kept aside:
 * renamed to NAME.STAMP, or into FOLDER.STAMP beside the outermost folder that the job made; a
 * sentence in `said` names it. A first pass only checks. After an error nothing is changed, or the
 * changes are undone (if that fails too, `why` lists what is left). Writes the job's log as it was.
 *
 * A file with a name of CRIU's is always a new one, since a process outside the job may have the old
 * one mapped, and gets a private name, FOLDER/.singvgpu-TAG.NAME. files_remove_links() removes these
 * names when the tree is there, or will never be. A file of the same content that has the other name
 * of such a file is replaced.
 *
 * -EACCES, -EPERM, -EROFS a folder cannot be written, or an owner not given; -ENOSPC; -EBUSY a
 * mount is in the way; -EPROTO the list is broken; or an error of the store.
 * A checkpoint without the part "files" changes nothing.
 */
struct files_back {
	struct store *store;
	struct store_checkpoint *checkpoint;
	const char *log;		/* where the job's log goes, or NULL */
	const char *later;		/* a log that goes beyond the cut, if the store has none */
	const char *stamp;		/* "singvgpu-TIME" */
	const char *tag;		/* letters and digits that no other restore has */
	const char *ours;		/* what singvgpu itself wrote behind the cut, or NULL: files_drop_ours() */
	bool look_only;			/* the first pass alone */
	bool list_only;			/* less than that: the list is read and checked */
	store_progress progress;	/* or NULL */
	void *arg;

	char **said;			/* out: sentences */
	size_t n_said;
	char **link, **at;		/* out: CRIU's names, and where the files are */
	size_t n_links;
	char **drop;			/* kept aside, and different by `ours` alone */
	size_t n_drop;
	uint64_t made, kept, aside;	/* paths made, left as they are, kept aside */
	struct why why;
};

int files_put_back(struct files_back *b);
void files_remove_links(struct files_back *b);
/*
 * When the job is back: removes copies of files that differ from the checkpoint by `ours` alone, behind
 * their end, unless a process has one open. Adds a sentence to said[] for each that stays.
 */
void files_drop_ours(struct files_back *b);

/*
 * files_gc: removes the logs that no checkpoint names and no job writes to; to be called after
 * store_gc(). 0, or an error of the store, after which nothing has been removed.
 */
struct files_gc_stats {
	uint64_t logs, freed;	/* bytes */
};
int files_gc(struct store *s, struct files_gc_stats *st);
void files_back_free(struct files_back *b);

#endif
