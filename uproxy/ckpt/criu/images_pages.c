// SPDX-License-Identifier: Apache-2.0
/*
 * images_pages.c - whose memory the images of pages are, from the packed small images of a dump
 *
 * pagemap-PID.img begins with { 1 pages_id }, for pages-ID.img; pstree.img has { 1 pid, 2 ppid, … } of each
 * process.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "images.h"
#include "protobuf_i.h"

struct packed {
	uint32_t name_len, zero;
	uint64_t len;
};
_Static_assert(sizeof(struct packed) == 16, "file format: images.h");

struct found {
	struct images_process *p;	/* what each image says; of one process several may */
	size_t n, room;
};

/* What an image says of a process; NULL: no memory. */
static struct images_process *process(struct found *f, int pid)
{
	struct images_process *more;

	if (f->n == f->room) {
		more = realloc(f->p, (2 * f->room + 64) * sizeof(*more));
		if (!more)
			return NULL;
		f->p = more;
		f->room = 2 * f->room + 64;
	}
	f->p[f->n] = (struct images_process){ .pid = pid };
	return &f->p[f->n++];
}

static int by_pid(const void *a, const void *b)
{
	const struct images_process *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

/* Makes one of all that is said of a process. */
static void merge(struct found *f)
{
	size_t n = 0;

	if (f->n)
		qsort(f->p, f->n, sizeof(*f->p), by_pid);
	for (size_t i = 0; i < f->n; i++) {
		if (!n || f->p[n - 1].pid != f->p[i].pid) {
			f->p[n++] = f->p[i];
			continue;
		}
		f->p[n - 1].parent = f->p[i].parent ?: f->p[n - 1].parent;
		f->p[n - 1].pages = f->p[i].pages ?: f->p[n - 1].pages;
	}
	f->n = n;
}

/* Fields 1 and 2 of an entry, if they are numbers of processes or images. */
static bool first_two(const uint8_t *entry, uint32_t len, uint64_t v[3])
{
	const uint8_t *end = entry + len;
	struct pb_field f;
	int rc;

	v[1] = v[2] = 0;
	while ((rc = pb_field(&entry, end, &f)) > 0)
		if (f.number < 3)
			v[f.number] = f.value;
	return !rc && v[1] <= INT_MAX && v[2] <= INT_MAX;
}

static int pagemap(struct found *f, int pid, const uint8_t *at, const uint8_t *end)
{
	struct images_process *p;
	const uint8_t *entry;
	uint64_t v[3];
	uint32_t len;

	if (pb_entry(&at, end, &entry, &len) <= 0 || !first_two(entry, len, v))
		return -EBADMSG;
	p = process(f, pid);
	if (p)
		p->pages = v[1];
	return p ? 0 : -ENOMEM;
}

static int tree(struct found *f, const uint8_t *at, const uint8_t *end)
{
	struct images_process *p;
	const uint8_t *entry;
	uint64_t v[3];
	uint32_t len;
	int rc;

	while ((rc = pb_entry(&at, end, &entry, &len)) > 0) {
		if (!first_two(entry, len, v))
			return -EBADMSG;
		p = process(f, v[1]);
		if (!p)
			return -ENOMEM;
		p->parent = v[2];
	}
	return rc ? -EBADMSG : 0;
}

static int image(struct found *f, const char *name, const uint8_t *at, uint64_t len)
{
	int pid, end = 0;

	if (len < PB_MAGICS)
		return 0;
	if (!strcmp(name, "pstree.img"))
		return tree(f, at + PB_MAGICS, at + len);
	if (sscanf(name, "pagemap-%9d.img%n", &pid, &end) == 1 && end && !name[end] && pid > 0)
		return pagemap(f, pid, at + PB_MAGICS, at + len);
	return 0;
}

int images_processes(const void *small, size_t len, struct images_process **p, size_t *n)
{
	const uint8_t *at = small, *end = at + len;
	struct found f = { 0 };
	struct packed e;
	char name[64];
	int err = 0;

	while (!err && (size_t)(end - at) >= sizeof(e)) {
		memcpy(&e, at, sizeof(e));
		at += sizeof(e);
		if (e.zero || e.name_len > (size_t)(end - at) || e.len > (size_t)(end - at) - e.name_len) {
			err = -EBADMSG;
			break;
		}
		snprintf(name, sizeof(name), "%.*s", e.name_len < 63 ? (int)e.name_len : 63, (const char *)at);
		at += e.name_len;
		err = image(&f, name, at, e.len);
		at += e.len;
	}
	merge(&f);
	if (err) {
		free(f.p);
		f = (struct found){ 0 };
	}
	*p = f.p;
	*n = f.n;
	return err;
}
