// SPDX-License-Identifier: Apache-2.0
/*
 * content.c - checks, saves and restores what the device of a session holds
 *
 * The object's layout is in content_i.h. A restore compares what it has with what the replay has
 * made before it writes a byte.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "content_i.h"

#define TABLE_MAX (CONTENT_MEMORY - CONTENT_TABLE)

int content_check(struct sv_session *s, char *why, size_t n)
{
	struct plan p;
	int rc;

	if (s->latched) {
		snprintf(why, n, "a kernel has broken the context: nothing of it can be saved");
		return -ENOTSUP;
	}
	rc = plan_make(s, &p, false, why, n);
	plan_free(&p);
	plan_enter(s, 0);
	return rc;
}

/* ------------------------------------------------------------------------------ saving */

static bool is_packed(const struct region *r)
{
	return r->kind == REGION_VARIABLE || r->kind == REGION_ARRAY || r->kind == REGION_DRIVER;
}

/* Give each region its place: physical memory by page, then the packed ones. */
static void place(struct sv_session *s, struct plan *p)
{
	uint64_t at = CONTENT_OTHER;

	for (size_t i = 0; i < p->n; i++) {
		struct region *r = &p->p[i].r;

		if (r->kind == REGION_MEMORY)
			r->off = CONTENT_MEMORY + (r->at - s->hal.window);
		if (r->kind == REGION_PHYSICAL) {
			r->off = at;
			at += r->len;
		}
	}
	for (size_t i = 0; i < p->n; i++) {
		struct region *r = &p->p[i].r;

		if (!is_packed(r))
			continue;
		r->off = at;
		at += r->len;
	}
}

static int save_table(struct sv_session *s, struct store_object *o, const struct plan *p)
{
	struct content_head head = {
		.magic = CONTENT_MAGIC, .version = CONTENT_VERSION, .window = s->hal.window,
		.window_len = s->hal.window_len, .regions = p->n, .names = p->names_len,
		.bytes = p->bytes,
	};
	uint64_t len = p->n * sizeof(struct region);
	uint8_t *t = malloc(len + p->names_len + 1);
	int rc;

	if (!t)
		return -ENOMEM;
	for (size_t i = 0; i < p->n; i++)
		memcpy(t + i * sizeof(struct region), &p->p[i].r, sizeof(struct region));
	if (p->names_len)
		memcpy(t + len, p->names, p->names_len);
	rc = store_object_write(o, 0, &head, sizeof(head));
	if (!rc)
		rc = store_object_write(o, CONTENT_TABLE, t, len + p->names_len);
	free(t);
	return rc;
}

static int save_region(struct mover *m, struct store_object *o, const struct planned *p, char *why,
		       size_t n)
{
	uint64_t va;
	int rc;

	if (is_packed(&p->r))
		return mover_save_packed(m, o, p, why, n);
	if (p->r.kind == REGION_MEMORY)
		return mover_save(m, o, p->r.at, p->r.len, p->r.off, why, n);
	if (p->r.kind != REGION_PHYSICAL)
		return 0;
	rc = mover_map(m, p, &va, why, n);
	if (rc)
		return rc;
	rc = mover_save(m, o, va, p->r.len, p->r.off, why, n);
	mover_unmap(m, p, va);
	return rc;
}

static int save_all(struct sv_session *s, struct store *st, struct store_object *o,
		    const struct plan *p, const struct content_progress *progress,
		    struct content_stats *stats, char *why, size_t n)
{
	struct mover *m;
	int rc = save_table(s, o, p);

	if (rc) {
		snprintf(why, n, "%s", rc == -ENOMEM ? "out of memory" : store_why());
		return rc;
	}
	rc = mover_open(&m, s, st, progress, p->bytes, stats);
	if (rc) {
		snprintf(why, n, "out of memory");
		return rc;
	}
	/* The packed ones come last, as in the object. */
	for (int packed = 0; packed < 2; packed++)
		for (size_t i = 0; i < p->n && !rc; i++)
			if (is_packed(&p->p[i].r) == packed)
				rc = save_region(m, o, &p->p[i], why, n);
	plan_enter(s, 0);
	mover_close(m);
	return rc;
}

int content_dump(struct sv_session *s, struct store *st, struct store_writer *w,
		 struct store_ref *device, const struct content_progress *progress,
		 struct content_stats *stats, char *why, size_t n)
{
	struct store_writer_stats before, after;
	uint64_t begin = now_ns();
	struct content_stats none;
	struct store_object *o;
	struct plan p;
	int rc;

	stats = stats ?: &none;
	*stats = (struct content_stats){ 0 };
	print_pump(s);
	rc = plan_make(s, &p, true, why, n);
	if (rc)
		return rc;
	place(s, &p);
	store_writer_stats(w, &before);
	rc = store_object_begin(w, &o);
	if (rc) {
		snprintf(why, n, "%s", store_why());
	} else {
		rc = save_all(s, st, o, &p, progress, stats, why, n);
		if (rc) {
			store_object_abort(o);
		} else {
			rc = store_object_end(o, 0, device);
			if (rc)
				snprintf(why, n, "%s", store_why());
		}
	}
	store_writer_stats(w, &after);
	stats->zero = after.zero - before.zero;
	stats->seconds = (now_ns() - begin) / 1e9;
	stats->digests = stats->digests ?: "host";
	plan_free(&p);
	return rc;
}

/* ------------------------------------------------------------------------------ restoring */

struct table {
	struct content_head head;
	struct region *r;
	char *names;
};

static int damaged(char *why, size_t n)
{
	snprintf(why, n, "the object of the device's contents is not one, or of another version");
	return -EBADMSG;
}

static bool sound(const struct table *t)
{
	const struct content_head *h = &t->head;

	for (uint64_t i = 0; i < h->regions; i++)
		if (t->r[i].name >= h->names || (t->r[i].kind == REGION_ARRAY && !t->r[i].row))
			return false;
	return h->names && !t->names[0] && !t->names[h->names - 1];
}

static int read_table(struct store_reader *r, struct table *t, char *why, size_t n)
{
	struct content_head *h = &t->head;
	uint64_t len;
	ssize_t got = store_read(r, 0, h, sizeof(*h));

	*t = (struct table){ .head = *h };
	if (got < 0) {
		snprintf(why, n, "%s", store_why());
		return got;
	}
	if (got != sizeof(*h) || h->magic != CONTENT_MAGIC || h->version != CONTENT_VERSION ||
	    h->regions > TABLE_MAX / sizeof(*t->r) / 2 || h->names > TABLE_MAX / 2)
		return damaged(why, n);
	len = h->regions * sizeof(*t->r);
	t->r = malloc(len + 1);
	t->names = malloc(h->names + 1);
	if (!t->r || !t->names) {
		snprintf(why, n, "out of memory");
		return -ENOMEM;
	}
	got = store_read(r, CONTENT_TABLE, t->r, len);
	if (got >= 0 && (uint64_t)got == len)
		got = store_read(r, CONTENT_TABLE + len, t->names, h->names);
	else if (got >= 0)
		return damaged(why, n);
	if (got < 0) {
		snprintf(why, n, "%s", store_why());
		return got;
	}
	return (uint64_t)got == h->names && (!h->regions || sound(t)) ? 0 : damaged(why, n);
}

/* The same things as in the dump? Takes over where they are in the object. */
static int match(struct sv_session *s, const struct table *t, struct plan *p, char *why, size_t n)
{
	const struct content_head *h = &t->head;
	char text[256];

	if (h->window != s->hal.window || h->window_len > s->hal.window_len) {
		snprintf(why, n, "the device window was at 0x%llx (%llu bytes), and is at 0x%llx",
			 (unsigned long long)h->window, (unsigned long long)h->window_len,
			 (unsigned long long)s->hal.window);
		return -ESTALE;
	}
	for (size_t i = 0; i < h->regions || i < p->n; i++) {
		const struct region *a = i < h->regions ? &t->r[i] : NULL;
		struct region *b = i < p->n ? &p->p[i].r : NULL;
		int c = !a ? 1 : !b ? -1 : region_compare(a, t->names, b, p->names);

		/* They come last. None is recorded again by a replay. */
		if ((!a || a->kind == REGION_EVENT) && (!b || b->kind == REGION_EVENT))
			break;
		if (!c && a->len == b->len && a->row == b->row && a->rows == b->rows) {
			b->off = a->off;
			continue;
		}
		region_say(c <= 0 ? a : b, c <= 0 ? t->names : p->names, text, sizeof(text));
		snprintf(why, n, "%s: %s", text, c < 0 ? "the replay did not make it" :
			 c ? "it was not there at the dump" : "it had another size at the dump");
		return -ESTALE;
	}
	return 0;
}

/* What the driver makes only when kernels first need it. */
static int make_own(struct sv_session *s, const struct table *t, char *why, size_t n)
{
	for (uint64_t i = 0; i < t->head.regions; i++) {
		const struct region *r = &t->r[i];
		struct hal_own own = { r->at, r->len, t->names + r->name };
		CUresult e;

		if (r->kind != REGION_DRIVER)
			continue;
		e = hal_own_make(&s->hal, &own);
		if (e) {
			snprintf(why, n, "%s cannot be at 0x%llx: the driver says error %d",
				 own.what, (unsigned long long)own.at, e);
			return -ESTALE;
		}
	}
	return 0;
}

static int restore_events(struct sv_session *s, const struct table *t, char *why, size_t n)
{
	int rc = 0;

	for (uint64_t i = 0; i < t->head.regions && !rc; i++) {
		const struct region *r = &t->r[i];
		float before;

		if (r->kind != REGION_EVENT)
			continue;
		memcpy(&before, &r->row, sizeof(before));
		rc = plan_enter(s, r->ctx) ?: event_restore(s, r->ctx, r->handle, before);
		if (rc)
			snprintf(why, n, "an event (handle 0x%llx) cannot be recorded",
				 (unsigned long long)r->handle);
	}
	return rc;
}

static int load_region(struct mover *m, const struct store_ref *ref, struct store_reader *r,
		       const struct planned *p, char *why, size_t n)
{
	uint64_t va;
	int rc;

	if (is_packed(&p->r))
		return mover_load_packed(m, r, p, why, n);
	if (p->r.kind == REGION_MEMORY)
		return mover_load(m, ref, p->r.at, p->r.len, p->r.off, why, n);
	if (p->r.kind != REGION_PHYSICAL)
		return 0;
	rc = mover_map(m, p, &va, why, n);
	if (rc)
		return rc;
	rc = mover_load(m, ref, va, p->r.len, p->r.off, why, n);
	mover_unmap(m, p, va);
	return rc;
}

static int load_all(struct sv_session *s, struct store *st, const struct store_ref *ref,
		    struct store_reader *r, const struct content_progress *progress,
		    struct content_stats *stats, char *why, size_t n)
{
	struct plan p = { 0 };
	struct mover *m = NULL;
	struct table t;
	int rc = read_table(r, &t, why, n);

	if (!rc)
		rc = make_own(s, &t, why, n);
	if (!rc)
		rc = plan_make(s, &p, true, why, n);
	if (!rc)
		rc = match(s, &t, &p, why, n);
	if (!rc && plan_enter(s, 0))
		rc = -EIO;
	if (!rc)
		rc = mover_open(&m, s, st, progress, p.bytes, stats);
	for (size_t i = 0; i < p.n && !rc; i++)
		rc = load_region(m, ref, r, &p.p[i], why, n);
	if (!rc)
		rc = restore_events(s, &t, why, n);
	plan_enter(s, 0);
	mover_close(m);
	plan_free(&p);
	free(t.r);
	free(t.names);
	return rc;
}

int content_restore(struct sv_session *s, struct store *st, const struct store_ref *device,
		    const struct content_progress *progress, struct content_stats *stats, char *why,
		    size_t n)
{
	uint64_t begin = now_ns();
	struct content_stats none;
	struct store_reader *r;
	int rc;

	stats = stats ?: &none;
	*stats = (struct content_stats){ .digests = "host" };
	snprintf(why, n, "out of memory");
	rc = store_object_open(st, device, &r);
	if (rc) {
		snprintf(why, n, "%s", store_why());
		return rc;
	}
	rc = load_all(s, st, device, r, progress, stats, why, n);
	store_reader_close(r);
	stats->seconds = (now_ns() - begin) / 1e9;
	return rc;
}
