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

struct files_attr {
	char *name;
	unsigned char *value;
	size_t len;
};

/* What a path is: the letters of the list. */
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
	uint64_t hash;		/* names the content's part */
	struct files_attr *attr;
	size_t attrs;
};

struct files {
	struct file *file;
	size_t n, room;
	char boot[64];
	char log[32];		/* where the log goes on, in the store's folder logs; "-": nowhere */
	int64_t taken;
};

/* Another one at the end, all zeros but the path, which is copied; NULL: no memory. */
struct file *files_add(struct files *l, const char *path);
/* By path, each once then; of kinds D stays rather than others, and p rather not. */
void files_sort(struct files *l);
/* In a sorted list; NULL: none. */
struct file *files_find(const struct files *l, const char *path);
void files_free(struct files *l);

/* The list as text, and back. -EPROTO; -ENOMEM. */
int files_write(const struct files *l, FILE *out);
int files_parse(struct files *l, char *text);

/* f's kind, owner, times …, attributes as they are now. -errno of lstat; f->kind is a for none. */
int files_look(struct file *f);
bool files_same_attrs(const struct file *a, const struct file *b);
void files_drop(struct file *f);	/* all but the path */

/*
 * A log in a store outlives the job's folder, and says after a crash what the job did behind the cut.
 * files_log_path: the one of that name. files_log_link: makes `log` a link to it, if the job, whom
 * the folder of `log` belongs to, can write there; text, if not NULL, becomes its content. -errno.
 */
void files_log_path(char path[PATH_MAX], const struct store *s, const char *name);
int files_log_link(const struct store *s, const char *name, const char *log, const char *text,
		   size_t len);

/* A whole object, with a NUL behind it; malloc'ed. */
int files_read_object(struct store *s, const struct store_ref *ref, char **text, size_t *len);
/* A whole file likewise. */
int files_read(const char *path, char **text, size_t *len);
/* Calls each() with every record of a log: its kind and path. */
int files_records(const char *log, size_t len, int (*each)(void *arg, char kind, const char *path),
		  void *arg);

/* Which boot of which machine this is; "unknown" if that cannot be told. */
void files_boot(char boot[64]);

int files_why(char *why, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void files_name(char name[FILES_NAME], uint64_t hash);

static inline int64_t files_ns(struct timespec t)
{
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* The length of the path's folder: 0 for one in the root. */
size_t files_folder(const char *path, size_t len);

#endif
