/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_i.h - the list of files in memory, shared by saving and putting back
 */
#ifndef CKPT_FILES_I_H
#define CKPT_FILES_I_H

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "files.h"

#define FILES_PART	"files"
#define FILES_LOG	"files/log"
#define FILES_NAME	24	/* "files/" and 16 digits */
#define FILES_TEXT_MAX	(1ull << 30)	/* bytes of a list, of a log: some million files */

struct files_attr {
	char *name;
	unsigned char *value;
	size_t len;
};

/* A path of the list; kind is the line's letter. */
struct file {
	char *path;
	char *target;		/* l, h */
	char kind;
	bool trust;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	int64_t mtime, ctime;
	uint64_t size, dev, ino;
	uint64_t links;		/* its link count now; not in the list */
	uint64_t hash;		/* names the content's part */
	struct files_attr *attr;
	size_t attrs;
};

struct files {
	struct file *file;
	size_t n, room;
	char boot[64];
	char log[32];		/* the log's name in the store's logs/; "-": it is not there */
	int64_t taken;
	unsigned int version;	/* files_parse: of the text */
};

/* Appends an entry, all zeros but the path, which is copied; NULL: no memory. */
struct file *files_add(struct files *l, const char *path);
/* Sorts by path and merges entries of one path: kind D wins over all others, and p over none. */
void files_sort(struct files *l);
/* Searches a sorted list; NULL: none. */
struct file *files_find(const struct files *l, const char *path);
void files_free(struct files *l);

#define FILES_VERSION	1u

/*
 * Write the list as text, and parse it. Mode bits and attributes that give a program other rights
 * than its caller's are not written. -EPROTO, -EPROTONOSUPPORT (another version), with a sentence
 * in *why; -ENOMEM.
 */
int files_write(const struct files *l, FILE *out);
int files_parse(struct files *l, char *text, struct why *why);

/*
 * Could files_save() have written this list, and has the checkpoint all its contents? A restore
 * checks the whole list before it changes a file. -EPROTO, *why names the path.
 */
int files_check(const struct files *l, const struct store_checkpoint *c, struct why *why);

/* Is the path absolute, without empty names, "." and ".."? */
bool files_is_plain(const char *path);

/* Is the path in a file system of the kernel's, of which nothing is saved? /dev/shm is not. */
bool files_is_system(const char *path);

/*
 * Open the folder at the path, or the folder above it; *name is the path's last name, for calls
 * with AT_SYMLINK_NOFOLLOW. -errno; -ELOOP: the path leads through a symbolic link, which is never
 * followed.
 */
int files_open_folder(const char *path);
int files_open_above(const char *path, const char **name);

/* Fills in f's kind ('a': nothing is there), owner, times, attributes as they are now. -errno. */
int files_look(struct file *f);
bool files_same_attrs(const struct file *a, const struct file *b);
void files_drop(struct file *f);	/* frees all but the path */

/*
 * A log in a store outlives the job's folder: after a crash it names what the job changed after the
 * cut. files_log_path: the path of the log of that name. files_log_link: makes `log` a link to it,
 * if the job's user (the owner of `log`'s folder) can write there; text, unless NULL, becomes its
 * content. -errno.
 */
void files_log_path(char path[PATH_MAX], const struct store *s, const char *name);
int files_log_link(const struct store *s, const char *name, const char *log, const char *text,
		   size_t len);

/* Reads a whole object and adds a NUL; the caller frees *text. -EFBIG: more than FILES_TEXT_MAX. */
int files_read_object(struct store *s, const struct store_ref *ref, char **text, size_t *len);
/*
 * Reads a whole file likewise; flags: 0 or O_NOFOLLOW (-ELOOP: it is a symbolic link). s, if not
 * NULL, must trust it (-EPERM).
 */
int files_read(const char *path, int flags, const struct store *s, char **text, size_t *len);
/* Calls each() with every record of a log: its kind and path. */
int files_records(const char *log, size_t len, int (*each)(void *arg, char kind, const char *path),
		  void *arg);

/* The id of this boot of this machine; "unknown" if it cannot be read. */
void files_boot(char boot[64]);

void files_name(char name[FILES_NAME], uint64_t hash);

static inline int64_t files_ns(struct timespec t)
{
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* The length of the part that names the path's folder: 0 for the root. */
size_t files_folder(const char *path, size_t len);

#endif
