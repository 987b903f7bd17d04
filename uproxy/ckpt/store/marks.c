// SPDX-License-Identifier: Apache-2.0
/*
 * marks.c - sets of pages, for gc and verify: a bitmap for each segment
 */
#include <dirent.h>
#include <fcntl.h>
#include <search.h>
#include <stdlib.h>

#include "store_i.h"

static int by_id(const void *a, const void *b)
{
	const struct mark *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

struct mark *store_marks_of(const struct marks *m, uint64_t id)
{
	void **node = tfind(&id, (void *const *)&m->root, by_id);

	return node ? *node : NULL;
}

int store_marks_set(struct marks *m, uint64_t id, uint32_t slot, uint32_t count)
{
	struct mark *k = store_marks_of(m, id);

	if (!k) {
		k = calloc(1, sizeof(*k));
		if (k)
			k->id = id;
		if (!k || !tsearch(k, &m->root, by_id)) {
			free(k);
			return store_fail(-ENOMEM, "out of memory");
		}
	}
	for (; count && slot < SEG_SLOTS; slot++, count--)
		k->bits[slot / 64] |= 1ull << slot % 64;
	return 0;
}

bool store_marks_any(const struct marks *m, uint64_t id, uint32_t slot, uint32_t count)
{
	const struct mark *k = store_marks_of(m, id);

	for (; k && count && slot < SEG_SLOTS; slot++, count--)
		if (mark_has(k, slot))
			return true;
	return false;
}

void store_marks_free(struct marks *m)
{
	tdestroy(m->root, free);
	m->root = NULL;
}

int store_dir_names(struct store *s, const char *dir, int (*each)(void *arg, const char *file),
		    void *arg)
{
	int fd = openat(s->dir, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!d)
		return store_fail_io(-errno, "list", dir);
	while (!err && (e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			err = each(arg, e->d_name);
	closedir(d);
	return err;
}
