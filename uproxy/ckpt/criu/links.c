// SPDX-License-Identifier: Apache-2.0
/*
 * links.c - files that have lost the names by which they were opened
 *
 * A file with another name left is a "linked remap" to CRIU: the dump gives it one more name,
 * link_remap.N in the former name's folder, and a restore opens it by that. Of a file without any
 * name, a "ghost", CRIU has the content, which a restore writes to FORMER.cr.N.ghost for a while. N
 * counts the files of one dump, so two jobs use the same names.
 *
 * Hence a restore gets images in which all these names are private: ".singvgpu-TAG." is put in
 * front of them, with another tag for each restore. And whatever has the tag in its name is removed
 * when CRIU has ended.
 *
 *   files.img        entries { 1 type, 2 id, 3: { 1 id, 6 name, … } }
 *   remap-fpath.img  entries { 1 the file's id, 2 its link's or its ghost's id, 3 type }
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "criu_i.h"
#include "protobuf_i.h"

#define PRIVATE		".singvgpu-"
#define SUFFIX_MAX	24	/* bytes that CRIU appends: ".cr.%x.ghost", ".cr_link" */

enum { LINKED, GHOST, OTHER };

struct remap {
	uint64_t file, to;
	int type;
};

struct remaps {
	struct remap *list;
	size_t n;
};

static bool read_remaps(struct remaps *r, const char *text, size_t len)
{
	const uint8_t *p = (const uint8_t *)text + PB_MAGICS, *end = (const uint8_t *)text + len;
	const uint8_t *entry;
	struct pb_field f;
	uint32_t n;
	int rc;

	if (len < PB_MAGICS)
		return false;
	r->list = calloc(len / 4, sizeof(*r->list));
	while (r->list && (rc = pb_entry(&p, end, &entry, &n)) > 0) {
		const uint8_t *e = entry + n;
		uint64_t v[4] = { 0, 0, 0, OTHER };

		while ((rc = pb_field(&entry, e, &f)) > 0)
			if (f.number < 4)
				v[f.number] = f.value;
		if (rc)
			return false;
		r->list[r->n++] = (struct remap){ v[1], v[2], v[3] == LINKED || v[3] == GHOST ?
						  (int)v[3] : OTHER };
	}
	return r->list && !rc;
}

/* The remap of that file, or (to) the one whose link it is; NULL: none. */
static const struct remap *find_remap(const struct remaps *r, uint64_t id, bool to)
{
	for (size_t i = 0; i < r->n; i++)
		if (to ? r->list[i].type == LINKED && r->list[i].to == id :
			 r->list[i].type != OTHER && r->list[i].file == id)
			return &r->list[i];
	return NULL;
}

/* The fields of an entry of files.img. -1: malformed; 0: no regular file; 1 */
static int read_file(const uint8_t *p, const uint8_t *end, struct pb_field *reg, uint64_t *id,
		     struct pb_field *name)
{
	const uint8_t *in;
	struct pb_field f;
	int rc;

	*reg = *name = (struct pb_field){ 0 };
	while ((rc = pb_field(&p, end, &f)) > 0)
		if (f.number == 2)
			*id = f.value;
		else if (f.number == 3)
			*reg = f;
	if (rc || !reg->data)
		return rc;
	in = reg->data;
	while ((rc = pb_field(&in, reg->data + reg->len, &f)) > 0)
		if (f.number == 6)
			*name = f;
	return rc || !name->data || !name->len || name->len >= PATH_MAX ||
	       memchr(name->data, 0, name->len) ? -1 : 1;
}

/* CRIU's paths begin at the root, with or without "/". */
static void put_path(char path[PATH_MAX + 1], const struct pb_field *name)
{
	bool slash = *name->data == '/';

	snprintf(path, PATH_MAX + 1, "%s%.*s", slash ? "" : "/", (int)name->len,
		 (const char *)name->data);
}

/* ----------------------------------------------------------------------------------- dump */

static bool add_link(struct criu_links *l, const char *path)
{
	struct criu_link *more = realloc(l->link, (l->n + 1) * sizeof(*more));
	struct stat st;

	if (!more)
		return false;
	l->link = more;
	more[l->n] = (struct criu_link){ .path = strdup(path) };
	if (!more[l->n].path)
		return false;
	if (!lstat(path, &st)) {
		more[l->n].dev = st.st_dev;
		more[l->n].ino = st.st_ino;
	}
	l->n++;
	return true;
}

int criu_links_read(struct criu_links *l, struct images *images)
{
	size_t len, remaps_len;
	const char *files = images_text(images, "files.img", &len);
	const char *text = images_text(images, "remap-fpath.img", &remaps_len);
	const uint8_t *p = (const uint8_t *)files + PB_MAGICS, *entry;
	struct pb_field reg, name;
	struct remaps r = { NULL, 0 };
	char path[PATH_MAX + 1];
	uint64_t id = 0;
	uint32_t n;
	int rc = -1;

	if (!text)
		return 0;
	if (files && len >= PB_MAGICS && read_remaps(&r, text, remaps_len))
		while ((rc = pb_entry(&p, (const uint8_t *)files + len, &entry, &n)) > 0) {
			rc = read_file(entry, entry + n, &reg, &id, &name);
			if (rc < 0)
				break;
			if (!rc || !find_remap(&r, id, true))
				continue;
			put_path(path, &name);
			if (!add_link(l, path)) {
				free(r.list);
				return -ENOMEM;
			}
		}
	free(r.list);
	return rc ? -EBADMSG : 0;
}

void criu_links_remove(struct criu_links *l)
{
	struct stat st;

	for (size_t i = 0; i < l->n; i++) {
		const struct criu_link *k = &l->link[i];

		if (k->ino && !lstat(k->path, &st) && st.st_dev == k->dev && st.st_ino == k->ino)
			unlink(k->path);
	}
}

void criu_links_free(struct criu_links *l)
{
	for (size_t i = 0; i < l->n; i++) {
		free(l->link[i].path);
		free(l->link[i].instead);
	}
	free(l->link);
	*l = (struct criu_links){ NULL, 0 };
}

/* -------------------------------------------------------------------------------- restore */

/* The former name, private to this restore: what an earlier restore had put in front of it is not. */
static char *private_name(const char *path, const char *tag)
{
	const char *name = strrchr(path, '/') + 1, *was = name, *behind;
	char *text;

	while (!strncmp(was, PRIVATE, strlen(PRIVATE)) &&
	       (behind = strchr(was + strlen(PRIVATE), '.')))
		was = behind + 1;
	if (asprintf(&text, "%.*s" PRIVATE "%s.%.*s", (int)(name - path), path, tag,
		     (int)(NAME_MAX - SUFFIX_MAX - strlen(PRIVATE) - strlen(tag) - 1), was) < 0)
		return NULL;
	return text;
}

/* Copies a protobuf, with another value in place of the bytes of one field. */
static void put_with(FILE *out, const uint8_t *from, const uint8_t *end, const struct pb_field *f,
		     const char *value, size_t len)
{
	const uint8_t *p = from, *at = from;
	struct pb_field g;

	for (; pb_field(&p, end, &g) > 0; at = p) {
		if (g.data != f->data) {
			fwrite(at, 1, p - at, out);
			continue;
		}
		pb_put_varint(out, f->number << 3 | 2);
		pb_put_varint(out, len);
		fwrite(value, 1, len, out);
	}
}

static bool put_file(FILE *out, const uint8_t *entry, uint32_t n, const struct pb_field *reg,
		     const struct pb_field *name, const char *path)
{
	char *inner = NULL, *outer = NULL;
	size_t inner_len = 0, outer_len = 0;
	FILE *in = open_memstream(&inner, &inner_len), *whole = NULL;
	bool made = false;
	uint32_t len;

	if (in) {
		put_with(in, reg->data, reg->data + reg->len, name, path, strlen(path));
		whole = fclose(in) ? NULL : open_memstream(&outer, &outer_len);
	}
	if (whole) {
		put_with(whole, entry, entry + n, reg, inner, inner_len);
		made = !fclose(whole);
	}
	len = outer_len;
	if (made) {
		fwrite(&len, sizeof(len), 1, out);
		fwrite(outer, 1, outer_len, out);
	}
	free(inner);
	free(outer);
	return made;
}

/* The other name of a file: NULL: it keeps its own. Malloc'ed; *failed: no memory. */
static char *other_name(const struct remaps *r, uint64_t id, const char *path,
			const struct criu_links *l, const char *tag, bool *failed)
{
	char *text = NULL;

	if (find_remap(r, id, true)) {
		/* An older checkpoint lacks the content: CRIU's name has it, or nothing has. */
		for (size_t i = 0; i < l->n && !text; i++)
			if (!strcmp(l->link[i].path, path)) {
				text = strdup(l->link[i].instead);
				*failed = !text;
			}
	} else if (find_remap(r, id, false)) {
		text = private_name(path, tag);
		*failed = !text;
	}
	return text;
}

static int rename_all(struct remaps *r, const char *files, size_t len, const struct criu_links *l,
		      const char *tag, FILE *out, struct criu_links *made)
{
	const uint8_t *p = (const uint8_t *)files + PB_MAGICS, *end = (const uint8_t *)files + len;
	struct pb_field reg, name;
	char path[PATH_MAX + 1];
	const uint8_t *entry;
	bool failed = false;
	uint64_t id = 0;
	uint32_t n;
	int rc = 0;

	fwrite(files, 1, PB_MAGICS, out);
	while (!failed && (rc = pb_entry(&p, end, &entry, &n)) > 0) {
		char *other = NULL;

		rc = read_file(entry, entry + n, &reg, &id, &name);
		if (rc < 0)
			return -EBADMSG;
		if (rc) {
			put_path(path, &name);
			other = other_name(r, id, path, l, tag, &failed);
		}
		if (other)
			failed |= !put_file(out, entry, n, &reg, &name,
					    *name.data == '/' ? other : other + 1) ||
				  !add_link(made, other);
		else
			fwrite(entry - 4, 1, n + 4, out);
		free(other);
	}
	return failed ? -ENOMEM : rc ? -EBADMSG : 0;
}

int criu_links_rename(struct images *images, const struct criu_links *l, const char *tag,
		      struct criu_links *made)
{
	size_t len, remaps_len, text_len = 0;
	const char *files = images_text(images, "files.img", &len);
	const char *remaps = images_text(images, "remap-fpath.img", &remaps_len);
	struct remaps r = { NULL, 0 };
	char *text = NULL;
	FILE *out;
	int err = -EBADMSG;

	if (!remaps || !files || !*tag)
		return l->n ? -EBADMSG : 0;
	out = open_memstream(&text, &text_len);
	if (!out)
		return -ENOMEM;
	if (len >= PB_MAGICS && read_remaps(&r, remaps, remaps_len))
		err = rename_all(&r, files, len, l, tag, out, made);
	free(r.list);
	if (fclose(out))
		err = -ENOMEM;
	err = err ?: images_replace(images, "files.img", text, text_len);
	if (err)
		free(text);
	return err;
}

/* Opens the folder of a path, or the nearest one above that exists: CRIU does so, too. */
static DIR *open_near(const char *path)
{
	char above[PATH_MAX + 1];
	DIR *dir = NULL;
	char *slash;

	snprintf(above, sizeof(above), "%s", path);
	while (!dir && (slash = strrchr(above, '/'))) {
		*slash = 0;
		dir = opendir(*above ? above : "/");
	}
	return dir;
}

void criu_links_sweep(const struct criu_links *made, const char *tag)
{
	char prefix[64];
	int n = snprintf(prefix, sizeof(prefix), PRIVATE "%s.", tag);

	for (size_t i = 0; i < made->n; i++) {
		DIR *dir = open_near(made->link[i].path);
		struct dirent *e;

		while (dir && (e = readdir(dir)))
			if (!strncmp(e->d_name, prefix, n))
				unlinkat(dirfd(dir), e->d_name, 0);
		if (dir)
			closedir(dir);
	}
}

/* ---------------------------------------------------------------------------------- locks */

/*
 * The names in a folder are those of all dumps on this host, which exclude each other only if they
 * have met: then one dumps alone. The lock is of no use to who cannot have it.
 */
int criu_links_lock(bool alone, long ms)
{
	int fd = open("/run/singvgpu.links", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	while (fd >= 0 && flock(fd, (alone ? LOCK_EX : LOCK_SH) | LOCK_NB)) {
		if (ms <= 0) {
			close(fd);
			return -1;
		}
		usleep(20000);
		ms -= 20;
	}
	return fd;
}
