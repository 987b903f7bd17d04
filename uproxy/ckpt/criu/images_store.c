// SPDX-License-Identifier: Apache-2.0
/*
 * images_store.c - CRIU's images as objects of the store, called "criu/NAME"
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "images.h"
#include "store.h"

struct part {
	struct images_parts *all;
	struct store_object *object;
	struct store_ref ref;
	bool whole;
	char name[];
};

struct images_parts {
	struct store_writer *writer;
	struct part **part;
	size_t n, room;
};

/* ----------------------------------------------------------------------------------- dump */

static int begin_part(void *arg, const char *name, void **object)
{
	struct images_parts *p = arg;
	struct part *part;
	int err;

	if (p->n == p->room) {
		size_t room = p->room ? 2 * p->room : 64;
		struct part **more = realloc(p->part, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		p->part = more;
		p->room = room;
	}
	part = calloc(1, sizeof(*part) + sizeof("criu/") + strlen(name));
	if (!part)
		return -ENOMEM;
	part->all = p;
	sprintf(part->name, "criu/%s", name);
	err = store_object_begin(p->writer, &part->object);
	if (err) {
		free(part);
		return err;
	}
	p->part[p->n++] = part;
	*object = part;
	return 0;
}

static int put_part(void *object, uint64_t off, const void *data, size_t len)
{
	struct part *part = object;

	return store_object_write(part->object, off, data, len);
}

static int end_part(void *object, int whole)
{
	struct part *part = object;
	int err = 0;

	if (whole)
		err = store_object_end(part->object, 0, &part->ref);
	else
		store_object_abort(part->object);
	part->object = NULL;
	part->whole = whole && !err;
	return err;
}

int images_to_store(struct images_parts **out, struct store_writer *w, struct images_sink *sink)
{
	struct images_parts *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->writer = w;
	*sink = (struct images_sink){ begin_part, put_part, end_part, p };
	*out = p;
	return 0;
}

size_t images_parts_count(const struct images_parts *p)
{
	return p->n;
}

const char *images_parts_get(const struct images_parts *p, size_t i, struct store_ref *ref)
{
	*ref = p->part[i]->ref;
	return p->part[i]->name;
}

void images_parts_free(struct images_parts *p)
{
	if (!p)
		return;
	for (size_t i = 0; i < p->n; i++)
		free(p->part[i]);
	free(p->part);
	free(p);
}

/* -------------------------------------------------------------------------------- restore */

static int open_stored(void *arg, const char *name, void **object, uint64_t *size)
{
	struct images_stored *from = arg;
	const struct store_ref *ref;
	struct store_reader *r;
	char path[256];
	int err;

	snprintf(path, sizeof(path), "criu/%s", name);
	ref = store_checkpoint_find(from->checkpoint, path);
	if (!ref)
		return -ENOENT;
	err = store_object_open(from->store, ref, &r);
	if (err)
		return err == -ENOENT ? -ENODATA : err;
	*object = r;
	*size = store_size(r);
	return 0;
}

static int get_part(void *object, uint64_t off, void *data, size_t len)
{
	ssize_t n = store_read(object, off, data, len);

	return n < 0 ? (int)n : (size_t)n == len ? 0 : -ENODATA;
}

static int fetch(void *object, uint64_t off, void *data, size_t len, void **ticket)
{
	struct store_fetch *f;
	int err = store_fetch(object, off, data, len, &f);

	*ticket = f;
	return err;
}

static int fetch_end(void *object, void *ticket)
{
	return store_fetch_end(object, ticket);
}

static bool fetch_there(void *object, void *ticket)
{
	return store_fetch_there(object, ticket);
}

static void close_stored(void *object)
{
	store_reader_close(object);
}

void images_from_store(struct images_stored *from, struct images_source *source)
{
	*source = (struct images_source){ open_stored, get_part,     fetch, fetch_end,
					  fetch_there, close_stored, from };
}
