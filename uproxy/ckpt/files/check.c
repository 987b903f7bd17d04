// SPDX-License-Identifier: Apache-2.0
/*
 * check.c - refuses lists of files that files_save() cannot have written
 *
 * Root makes the files that a list describes. A list that passes names every folder before its
 * contents, so that no path leads through a link, and has no file with privileges.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "files_i.h"

#define ATTR_MAX	65536	/* bytes of a value: XATTR_SIZE_MAX */

bool files_is_plain(const char *path)
{
	size_t n;

	if (*path != '/' || strlen(path) >= PATH_MAX)
		return false;
	for (const char *name = path + 1; *name; name += n + !!name[n]) {
		n = strcspn(name, "/");
		if (!n || n > NAME_MAX || (n == 1 && *name == '.') ||
		    (n == 2 && !strncmp(name, "..", 2)) || (name[n] && !name[n + 1]))
			return false;
	}
	return true;
}

static bool is_folder(const struct file *f)
{
	return f && strchr("pdD", f->kind);
}

/* The path's folder must be in the list; by induction all folders above are. */
static const char *check_above(const struct files *l, const struct file *f)
{
	char above[PATH_MAX];
	const struct file *in;
	size_t n = files_folder(f->path, strlen(f->path));

	if (!n)
		return NULL;
	memcpy(above, f->path, n);
	above[n] = '\0';
	in = files_find(l, above);
	if (in && in->kind == 'l')
		return "the folder that it lies in is a symbolic link";
	return is_folder(in) ? NULL : "the list does not have the folder that it lies in";
}

static const char *check_attrs(const struct file *f)
{
	for (size_t i = 0; i < f->attrs; i++) {
		const struct files_attr *a = &f->attr[i];

		if (strncmp(a->name, "user.", 5) && strcmp(a->name, "system.posix_acl_access") &&
		    strcmp(a->name, "system.posix_acl_default"))
			return "it has an attribute that is never put back";
		if (strlen(a->name) > NAME_MAX || a->len > ATTR_MAX)
			return "it has an attribute that is too long";
	}
	return f->attrs && f->kind == 'l' ? "a symbolic link has no attributes" : NULL;
}

static const char *check_content(const struct file *f, const struct store_checkpoint *c)
{
	const struct store_ref *ref;
	char name[FILES_NAME];

	files_name(name, f->hash);
	ref = store_checkpoint_find(c, name);
	if (!ref)
		return "its content is not in the checkpoint";
	if (store_ref_size(ref) != f->size || f->size > INT64_MAX)
		return "its content has another size";
	return NULL;
}

/* A restore removes links when the job is there, which no other file may be mistaken for. */
static const char *check_link(const struct file *f)
{
	static const char name[] = "/link_remap.";
	const char *at = strrchr(f->path, '/');
	size_t n = strlen(name);

	if (strncmp(at, name, n) || !at[n] || at[n + strspn(at + n, "0123456789")] ||
	    strlen(at + n) > 10)
		return "it is no link of CRIU's";
	return NULL;
}

/* By inode; of one, files come before CRIU's links to them. */
static int by_inode(const void *a, const void *b)
{
	const struct file *x = *(const struct file *const *)a, *y = *(const struct file *const *)b;

	if (x->dev != y->dev)
		return x->dev < y->dev ? -1 : 1;
	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return y->kind - x->kind;
}

static bool is_one_inode(const struct file *x, const struct file *y)
{
	return x->dev == y->dev && x->ino == y->ino;
}

static int check_like(const struct file *w, const struct file *c, struct why *why)
{
	if (w->hash == c->hash && w->size == c->size)
		return 0;
	return why_set(why, -EPROTO, "%.500s: it has another content than %.500s", c->path, w->path);
}

/*
 * Files of one inode, and behind them links to it: a file may be replaced by any of the links, so each link has the
 * content of each file. Without a link, the files' contents may differ.
 */
static int check_inode(const struct file *const *of, size_t n, struct why *why)
{
	const struct file *file = of[0], *link = of[n - 1];
	int rc = 0;

	for (size_t i = 0; i < n && !rc && file->kind == 'r' && link->kind == 'c'; i++)
		rc = of[i]->kind == 'r' ? check_like(of[i], link, why) : check_like(file, of[i], why);
	return rc;
}

static int check_inodes(const struct files *l, struct why *why)
{
	const struct file **list = malloc((l->n + 1) * sizeof(struct file *));
	size_t n = 0, first = 0;
	int rc = 0;

	if (!list)
		return why_set(why, -ENOMEM, "no memory to check the job's files");
	for (size_t i = 0; i < l->n; i++)
		if (l->file[i].kind == 'r' || l->file[i].kind == 'c')
			list[n++] = &l->file[i];
	qsort(list, n, sizeof(struct file *), by_inode);
	for (size_t i = 0; i < n && !rc; i++) {
		if (i + 1 < n && is_one_inode(list[i + 1], list[i]))
			continue;
		rc = check_inode(list + first, i + 1 - first, why);
		first = i + 1;
	}
	free(list);
	return rc;
}

static const char *check_file(const struct files *l, const struct file *f,
			      const struct store_checkpoint *c)
{
	const char *bad = NULL;

	if (!files_is_plain(f->path))
		return "the path is not absolute, or has an empty name, . or .. in it";
	if (files_is_system(f->path) &&
	    !(f->kind == 'p' && (!strcmp(f->path, "/dev") || !strcmp(f->path, "/dev/shm"))))
		return "nothing is put back there";
	if (f->kind == 'a' || f->kind == 's')
		return NULL;		/* it is not made */
	if (f->mode & 06000)
		return "no file is given the set-user-ID or the set-group-ID bit";
	if (f->mode & ~01777)
		return "its mode has more than permission bits";
	if (f->kind == 'h') {
		const struct file *first = files_find(l, f->target);

		if (!first || first->kind != 'r' || first > f)
			bad = "it is a hard link to what is no file in the list";
	} else if (f->kind == 'l') {
		bad = strlen(f->target) >= PATH_MAX ? "the link is too long" : NULL;
	} else if (f->kind == 'r') {
		bad = check_content(f, c);
	} else if (f->kind == 'c') {
		bad = check_link(f) ?: check_content(f, c);
	}
	return bad ?: check_attrs(f) ?: check_above(l, f);
}

int files_check(const struct files *l, const struct store_checkpoint *c, struct why *why)
{
	for (size_t i = 0; i < l->n; i++) {
		const char *bad = check_file(l, &l->file[i], c);

		if (bad)
			return why_set(why, -EPROTO, "%.500s: %s", l->file[i].path, bad);
	}
	return check_inodes(l, why);
}
