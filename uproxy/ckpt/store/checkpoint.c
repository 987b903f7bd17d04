// SPDX-License-Identifier: Apache-2.0
/*
 * checkpoint.c - checkpoints: published whole or not at all, found, listed, removed
 *
 * cp/ID is a head of 64 bytes and a body: for each part, sorted by name, its ref (32 bytes), the
 * length of its name (2) and the name; then the text. A long body is an object of the store, whose
 * ref takes the body's place; so pages that have not changed since the last checkpoint are shared.
 * ID consists of a random number and the time, both in the head. A copy in another store has other
 * refs and the same ID.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store_i.h"

#define BODY_MAX     (1ul << 31)
#define CP_PARTS_MAX ((1u << 24) - 1)

struct store_checkpoint {
	char id[STORE_ID];
	struct disk_head head;
	struct store_ref body_ref;
	bool has_body;
	struct store_part *parts;
	size_t n;
	char *names;		/* all of them, each with its NUL */
	char *json;
};

static void cp_name(const char *id, char *name, size_t n)
{
	snprintf(name, n, "cp/%s", id);
}

static bool is_id(const char *file)
{
	return strlen(file) == 32 && strspn(file, "0123456789abcdef") == 32;
}

/* ------------------------------------------------------------------------------ publishing */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct store_part *)a)->name, ((const struct store_part *)b)->name);
}

static int encode_body(const struct store_part *parts, size_t n, const char *json, struct bytes *b)
{
	struct store_part *sorted = malloc(n * sizeof(*sorted) + 1);
	int err = sorted ? 0 : store_fail(-ENOMEM, "out of memory");

	if (sorted && n)
		memcpy(sorted, parts, n * sizeof(*sorted));
	if (sorted)
		qsort(sorted, n, sizeof(*sorted), by_name);
	for (size_t i = 0; i < n && !err; i++) {
		size_t len = strlen(sorted[i].name);
		uint16_t l = len;

		if (!len || len > 4095 || strchr(sorted[i].name, '\n'))
			err = store_fail(-EINVAL,
					 "a part's name is empty, too long, or has two lines");
		else if (i && !strcmp(sorted[i].name, sorted[i - 1].name))
			err = store_fail(-EEXIST, "two parts are called %s", sorted[i].name);
		if (!err)
			err = store_bytes_add(b, &sorted[i].ref, sizeof(sorted[i].ref));
		if (!err)
			err = store_bytes_add(b, &l, sizeof(l));
		if (!err)
			err = store_bytes_add(b, sorted[i].name, len);
	}
	free(sorted);
	if (!err)
		err = store_bytes_add(b, json, strlen(json));
	if (!err && b->len > BODY_MAX)
		err = store_fail(-EFBIG, "the checkpoint has too many parts");
	return err;
}

static int store_body(struct store *s, const struct bytes *b, struct store_ref *ref)
{
	struct store_writer *w;
	struct store_object *o;
	int err = store_writer_open(s, STORE_ONE_THREAD, &w);

	if (err)
		return err;
	err = store_object_begin(w, &o);
	if (!err) {
		err = store_object_write(o, 0, b->p, b->len);
		if (err)
			store_object_abort(o);
		else
			err = store_object_end(o, 0, ref);
	}
	if (!err)
		err = store_writer_flush(w);
	store_writer_close(w);
	return err;
}

/* Checks that all pages that the object needs are in seg/. */
static int check_part(struct input *in, struct store *s, const struct store_part *part)
{
	struct map m;
	int err = store_input_map(in, &part->ref, &m);

	for (size_t i = 0; i < m.n && !err; i++) {
		struct seg *g;

		err = store_seg_pin(s, m.ids[m.ext[i].seg], &g);
		if (err)
			break;
		if (g->owner)
			err = store_fail(-ENODATA, "it was not flushed");
		else if (m.ext[i].slot + (uint64_t)m.ext[i].count > g->slots)
			err = store_fail(-ENODATA, "segment %016" PRIx64 " lacks pages", g->id);
		store_seg_unpin(s, g);
	}
	store_map_free(&m);
	if (err) {
		struct why why = { 0 };

		store_failed(&why, err);
		store_fail(err, "part %s: %s", part->name, why.text);
	}
	return err;
}

static int check_parts(struct store *s, const struct store_part *parts, size_t n)
{
	struct input *in;
	int err = store_input_open(s, &in);

	for (size_t i = 0; i < n && !err; i++)
		err = check_part(in, s, &parts[i]);
	store_input_close(in);
	return err;
}

int store_checkpoint_check(struct store *s, const struct store_checkpoint *c)
{
	const struct store_part *parts;
	size_t n = store_checkpoint_parts(c, &parts);

	return check_parts(s, parts, n);
}

static void id_of(const struct disk_head *head, char id[STORE_ID])
{
	snprintf(id, STORE_ID, "%016" PRIx64 "%016" PRIx64, head->c, head->b);
}

static int make_tmp(struct store *s, const char *tmp, const struct bytes *file)
{
	int fd = store_io_open(s->dir, tmp, O_CREAT | O_EXCL | O_WRONLY, 0600), err = 0;

	if (fd < 0)
		return store_fail_io(fd, "make", tmp);
	if (fchmod(fd, s->mode) || (!geteuid() && s->owner && fchown(fd, s->owner, -1)))
		err = -errno;
	if (!err)
		err = store_io_write(fd, tmp, file->p, file->len, 0);
	if (!err)
		err = store_io_sync(fd, tmp);
	if (close(fd) && !err)
		err = -errno;
	return err ? store_fail_io(err, "write", tmp) : 0;
}

static int publish_file(struct store *s, const struct bytes *file, const char *id)
{
	char tmp[64], name[64];
	int err;

	/* A name by the id could be taken: a copy that was killed may have left a file. */
	snprintf(tmp, sizeof(tmp), "tmp/%016" PRIx64 "%016" PRIx64, store_random64(),
		 store_random64());
	cp_name(id, name, sizeof(name));
	/* Other writers may not have synced the directory entries of their segments yet. */
	err = store_io_sync_dir(s->dir, "seg");
	if (err)
		return store_fail_io(err, "sync", "seg");
	err = make_tmp(s, tmp, file);
	if (!err) {
		err = store_io_rename(s->dir, tmp, name);
		if (err)
			store_fail_io(err, "rename the checkpoint to", name);
	}
	if (err) {
		store_io_unlink(s->dir, tmp);
		return err;
	}
	err = store_io_sync_dir(s->dir, "cp");
	if (!err)
		return 0;
	store_io_unlink(s->dir, name);
	return store_fail_io(err, "sync", "cp");
}

/* head: b and c are set. */
static int publish(struct store *s, const struct store_part *parts, size_t n, const char *json,
		   struct disk_head *head)
{
	struct bytes body = { 0 }, file = { 0 };
	char id[STORE_ID];
	struct store_ref ref;
	int err = store_need_rw(s);

	if (!err)
		err = encode_body(parts, n, json ? json : "", &body);
	if (!err)
		err = check_parts(s, parts, n);
	if (!err && n > CP_PARTS_MAX)
		err = store_fail(-EFBIG, "the checkpoint has too many parts");
	head->a = n << 8;
	head->d = body.len;
	head->e = store_check64(body.p, body.len);
	if (!err && body.len > CP_INLINE) {
		head->a |= CP_OBJECT;
		err = store_body(s, &body, &ref);
	}
	store_head_seal(head, CP_MAGIC, s);
	if (!err)
		err = store_bytes_add(&file, head, sizeof(*head));
	if (!err)
		err = head->a & CP_OBJECT ? store_bytes_add(&file, &ref, sizeof(ref)) :
					    store_bytes_add(&file, body.p, body.len);
	id_of(head, id);
	if (!err)
		err = publish_file(s, &file, id);
	free(body.p);
	free(file.p);
	return err;
}

int store_publish(struct store *s, const struct store_part *parts, size_t n, const char *json,
		  char id[STORE_ID])
{
	struct disk_head head = { .b = store_now_ns(), .c = store_random64() };

	id_of(&head, id);
	return publish(s, parts, n, json, &head);
}

int store_publish_as(struct store *s, const struct store_part *parts, size_t n, const char *json,
		     const char *id)
{
	struct disk_head head = { 0 };
	char name[64];

	if (!is_id(id) || sscanf(id, "%16" SCNx64 "%16" SCNx64, &head.c, &head.b) != 2)
		return store_fail(-EINVAL, "'%s' is no id of a checkpoint", id);
	cp_name(id, name, sizeof(name));
	if (!faccessat(s->dir, name, F_OK, 0))
		return store_fail(-EEXIST, "the store %s has a checkpoint %s", s->path, id);
	return publish(s, parts, n, json, &head);
}

/* ------------------------------------------------------------------------------ opening */

static int read_file(struct store *s, const char *name, struct bytes *b)
{
	int fd = store_file(s, name, O_RDONLY), err;
	struct stat st;

	if (fd == -EPERM)
		return fd;
	if (fd == -ENOENT)
		return store_fail(fd, "the store %s has no checkpoint %s", s->path, name + 3);
	if (fd < 0)
		return store_fail_io(fd, "open", name);
	err = fstat(fd, &st) ? -errno : 0;
	if (!err && ((size_t)st.st_size < sizeof(struct disk_head) || st.st_size > 1 << 24))
		err = -ENODATA;
	if (!err && !(b->p = malloc(st.st_size)))
		err = -ENOMEM;
	if (!err)
		err = store_io_read_exact(fd, name, b->p, st.st_size, 0);
	b->len = st.st_size;
	close(fd);
	if (err == -ENODATA)
		return store_fail(-EBADMSG, "%s is damaged: it is cut short", name);
	return err ? store_fail_io(err, "read", name) : 0;
}

static int decode_body(struct store_checkpoint *c, const uint8_t *p, size_t len)
{
	const uint8_t *end = p + len;
	uint16_t l;
	char *to;

	/* Names take at most len bytes; a part takes 34 bytes or more. */
	c->names = to = malloc(len + 1);
	c->parts = malloc((len / 34 + 1) * sizeof(*c->parts));
	if (!c->names || !c->parts)
		return store_fail(-ENOMEM, "out of memory");
	for (uint64_t i = 0; i < c->head.a >> 8; i++) {
		struct store_part *part = &c->parts[c->n];

		if (end - p < 34)
			return store_fail(-EBADMSG, "checkpoint %s is damaged", c->id);
		memcpy(&part->ref, p, 32);
		memcpy(&l, p + 32, 2);
		p += 34;
		if (end - p < l)
			return store_fail(-EBADMSG, "checkpoint %s is damaged", c->id);
		part->name = memcpy(to, p, l);
		to[l] = 0;
		to += l + 1;
		p += l;
		c->n++;
	}
	c->json = malloc(end - p + 1);
	if (!c->json)
		return store_fail(-ENOMEM, "out of memory");
	memcpy(c->json, p, end - p);
	c->json[end - p] = 0;
	return 0;
}

static int load_body(struct store *s, struct store_checkpoint *c)
{
	struct store_reader *r;
	uint8_t *p = NULL;
	ssize_t n;
	int err = store_object_open(s, &c->body_ref, &r);

	if (err)
		return err;
	if (store_size(r) != c->head.d || !(p = malloc(c->head.d)))
		err = store_fail(-EBADMSG, "checkpoint %s is damaged", c->id);
	n = err ? err : store_read(r, 0, p, c->head.d);
	if (n < 0)
		err = n;
	else if (store_check64(p, c->head.d) != c->head.e)
		err = store_fail(-EBADMSG, "checkpoint %s is damaged", c->id);
	if (!err)
		err = decode_body(c, p, c->head.d);
	free(p);
	store_reader_close(r);
	return err;
}

static int load_file(struct store *s, struct store_checkpoint *c, const struct bytes *file)
{
	size_t body = file->len - sizeof(c->head);
	char id[STORE_ID];
	int err;

	memcpy(&c->head, file->p, sizeof(c->head));
	err = store_head_check(&c->head, CP_MAGIC, c->id);
	if (err)
		return err;
	id_of(&c->head, id);
	if (strcmp(id, c->id) || c->head.store != s->super.c || c->head.d > BODY_MAX)
		return store_fail(-EBADMSG,
				  "checkpoint %s is damaged, or another file under its name",
				  c->id);
	if (!(c->head.a & CP_OBJECT)) {
		const uint8_t *p = file->p + sizeof(c->head);

		return body == c->head.d && store_check64(p, body) == c->head.e ?
			       decode_body(c, p, body) :
			       store_fail(-EBADMSG, "checkpoint %s is damaged", c->id);
	}
	if (body != sizeof(c->body_ref))
		return store_fail(-EBADMSG, "checkpoint %s is damaged", c->id);
	memcpy(&c->body_ref, file->p + sizeof(c->head), sizeof(c->body_ref));
	c->has_body = true;
	return load_body(s, c);
}

int store_cp_load(struct store *s, const char *id, struct store_checkpoint **out)
{
	struct store_checkpoint *c = calloc(1, sizeof(*c));
	struct bytes file = { 0 };
	char name[64];
	int err;

	*out = NULL;
	if (!c)
		return store_fail(-ENOMEM, "out of memory");
	snprintf(c->id, sizeof(c->id), "%s", id);
	cp_name(id, name, sizeof(name));
	err = read_file(s, name, &file);
	if (!err)
		err = load_file(s, c, &file);
	free(file.p);
	if (err)
		store_checkpoint_close(c);
	else
		*out = c;
	return err;
}

const struct store_ref *store_cp_body(const struct store_checkpoint *c)
{
	return c->has_body ? &c->body_ref : NULL;
}

void store_checkpoint_close(struct store_checkpoint *c)
{
	if (!c)
		return;
	free(c->parts);
	free(c->names);
	free(c->json);
	free(c);
}

const char *store_checkpoint_id(const struct store_checkpoint *c)
{
	return c->id;
}

uint64_t store_checkpoint_time(const struct store_checkpoint *c)
{
	return c->head.b;
}

const char *store_checkpoint_json(const struct store_checkpoint *c)
{
	return c->json;
}

size_t store_checkpoint_parts(const struct store_checkpoint *c, const struct store_part **parts)
{
	*parts = c->parts;
	return c->n;
}

const struct store_ref *store_checkpoint_find(const struct store_checkpoint *c, const char *name)
{
	struct store_part key = { .name = name };
	const struct store_part *p = bsearch(&key, c->parts, c->n, sizeof(key), by_name);

	return p ? &p->ref : NULL;
}

/* ------------------------------------------------------------------------------ finding */

int store_cp_ids(struct store *s, char (**ids)[STORE_ID], size_t *n)
{
	int fd = openat(s->dir, "cp", O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	size_t room = 0;

	*ids = NULL;
	*n = 0;
	if (!d)
		return store_fail_io(-errno, "list the checkpoints of", s->path);
	while (!err && (e = readdir(d))) {
		if (!is_id(e->d_name))
			continue;
		if (*n == room) {
			char (*more)[STORE_ID] = realloc(*ids, (room * 2 + 16) * STORE_ID);

			if (!more) {
				err = store_fail(-ENOMEM, "out of memory");
				break;
			}
			*ids = more;
			room = room * 2 + 16;
		}
		memcpy((*ids)[(*n)++], e->d_name, STORE_ID);
	}
	closedir(d);
	return err;
}

struct entry {
	const char *id;
	uint64_t time;
};

static int by_time(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	if (x->time != y->time)
		return x->time < y->time ? -1 : 1;
	return strcmp(x->id, y->id);
}

/* The time of publication, from the head alone; 0: the head is damaged. */
static uint64_t time_of(struct store *s, const char *id)
{
	struct disk_head h;
	char name[64];
	int fd, err;

	cp_name(id, name, sizeof(name));
	fd = store_file(s, name, O_RDONLY);
	if (fd < 0)
		return 0;
	err = store_io_read_exact(fd, name, &h, sizeof(h), 0);
	close(fd);
	return err || store_head_check(&h, CP_MAGIC, name) ? 0 : h.b;
}

int store_list(struct store *s, int (*each)(void *arg, const char *id, uint64_t time), void *arg)
{
	char (*ids)[STORE_ID];
	struct entry *list;
	size_t n;
	int err = store_cp_ids(s, &ids, &n);

	list = malloc((n + 1) * sizeof(*list));
	if (!err && !list)
		err = store_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < n && !err; i++)
		list[i] = (struct entry){ ids[i], time_of(s, ids[i]) };
	if (!err)
		qsort(list, n, sizeof(*list), by_time);
	for (size_t i = 0; i < n && !err; i++)
		err = each(arg, list[i].id, list[i].time);
	free(list);
	free(ids);
	return err;
}

struct wanted {
	const char *prefix;	/* NULL: the latest */
	char id[STORE_ID];
	unsigned int n;
};

static int want(void *arg, const char *id, uint64_t time)
{
	struct wanted *w = arg;

	if (w->prefix ? strncmp(id, w->prefix, strlen(w->prefix)) != 0 : !time)
		return 0;
	memcpy(w->id, id, STORE_ID);
	w->n++;
	return 0;
}

int store_checkpoint_open(struct store *s, const char *id, struct store_checkpoint **c)
{
	bool latest = !strcmp(id, "latest");
	struct wanted w = { .prefix = latest ? NULL : id };
	int err;

	*c = NULL;
	if (!latest && (strlen(id) < 4 || strlen(id) > 32 ||
			strspn(id, "0123456789abcdef") != strlen(id)))
		return store_fail(
			-ENOENT,
			"'%s' is no checkpoint's id: 4 to 32 hexadecimal digits, or latest", id);
	err = store_list(s, want, &w);
	if (err)
		return err;
	if (!w.n)
		return latest ? store_fail(-ENOENT, "the store %s has no checkpoint", s->path) :
				store_fail(-ENOENT, "the store %s has no checkpoint %s", s->path,
					   id);
	if (!latest && w.n > 1)
		return store_fail(-ENOTUNIQ, "%u checkpoints begin with %s: give more digits", w.n,
				  id);
	return store_cp_load(s, w.id, c);
}

int store_remove(struct store *s, const char *id)
{
	char name[64];
	int err = store_need_rw(s);

	if (err)
		return err;
	if (!is_id(id))
		return store_fail(-ENOENT, "'%s' is not the full id of a checkpoint", id);
	cp_name(id, name, sizeof(name));
	err = store_io_unlink(s->dir, name);
	if (err == -ENOENT)
		return store_fail(err, "the store %s has no checkpoint %s", s->path, id);
	if (!err)
		err = store_io_sync_dir(s->dir, "cp");
	return err ? store_fail_io(err, "remove", name) : 0;
}
