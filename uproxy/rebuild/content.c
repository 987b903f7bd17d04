// SPDX-License-Identifier: Apache-2.0
/*
 * content.c - checks, saves and restores the device contents of a session
 *
 * content_i.h has the object's layout. A restore compares the saved regions with those that the
 * replay has made before it writes a byte.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "content_i.h"
#include "print.h"
#include "stat_i.h"
#include "streams.h"

#define TABLE_MAX (CONTENT_MEMORY - CONTENT_TABLE)

int content_check(struct sv_session *s, struct why *why)
{
	struct plan p;
	int rc;

	if (s->latched)
		return why_set(why, -ENOTSUP,
			       "a kernel has broken the context: nothing of it can be saved");
	rc = plan_make(s, &p, false, why);
	plan_free(&p);
	plan_enter(s, 0);
	return rc;
}

/* ------------------------------------------------------------------------------ saving */

static bool is_packed(const struct region *r)
{
	return r->kind == REGION_VARIABLE || r->kind == REGION_ARRAY || r->kind == REGION_DRIVER;
}

/* Gives each region its place in the object: physical memory by page, then the packed regions. */
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

static int save_region(struct mover *m, struct store_object *o, const struct planned *p,
		       struct why *why)
{
	uint64_t va;
	int rc;

	if (is_packed(&p->r))
		return mover_save_packed(m, o, p, why);
	if (p->r.kind == REGION_MEMORY)
		return mover_save(m, o, p->r.at, p->r.len, p->r.off, why);
	if (p->r.kind != REGION_PHYSICAL)
		return 0;
	rc = mover_map(m, p, &va, why);
	if (rc)
		return rc;
	rc = mover_save(m, o, va, p->r.len, p->r.off, why) ?: mover_settle(m, why);
	mover_unmap(m, p, va);
	return rc;
}

static int save_all(struct sv_session *s, struct store *st, struct store_object *o,
		    const struct plan *p, const struct content_progress *progress,
		    struct content_stats *stats, struct why *why)
{
	struct mover *m;
	int rc = store_failed(why, save_table(s, o, p));

	if (!rc)
		rc = why_text(why, mover_open(&m, s, st, progress, p->bytes, stats), "");
	if (rc)
		return rc;
	/* Packed regions come last, as in the object. */
	for (int packed = 0; packed < 2; packed++)
		for (size_t i = 0; i < p->n && !rc; i++)
			if (is_packed(&p->p[i].r) == packed)
				rc = save_region(m, o, &p->p[i], why);
	plan_enter(s, 0);
	rc = rc ?: mover_finish(m, why);
	mover_close(m);
	return rc;
}

int content_dump(struct sv_session *s, struct store *st, struct store_writer *w,
		 struct store_ref *device, const struct content_progress *progress,
		 struct content_stats *stats, struct why *why)
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
	rc = plan_make(s, &p, true, why);
	if (rc)
		return rc;
	place(s, &p);
	store_writer_stats(w, &before);
	rc = store_failed(why, store_object_begin(w, &o));
	if (!rc) {
		rc = save_all(s, st, o, &p, progress, stats, why);
		if (rc)
			store_object_abort(o);
		else
			rc = store_failed(why, store_object_end(o, 0, device));
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

static int damaged(struct why *why)
{
	return why_set(why, -EBADMSG, "the object is not one of a device's contents");
}

static bool sound(const struct table *t)
{
	const struct content_head *h = &t->head;

	for (uint64_t i = 0; i < h->regions; i++)
		if (t->r[i].name >= h->names || (t->r[i].kind == REGION_ARRAY && !t->r[i].row))
			return false;
	return h->names && !t->names[0] && !t->names[h->names - 1];
}

static int read_table(struct store_reader *r, struct table *t, struct why *why)
{
	struct content_head *h = &t->head;
	uint64_t len;
	ssize_t got = store_read(r, 0, h, sizeof(*h));

	*t = (struct table){ .head = *h };
	if (got < 0)
		return store_failed(why, got);
	if (got >= (ssize_t)offsetof(struct content_head, window) && h->magic == CONTENT_MAGIC &&
	    h->version != CONTENT_VERSION)
		return why_set(why, -EPROTONOSUPPORT, "the device's contents were saved in version %u of "
			       "their format, this proxy reads version %u", h->version,
			       CONTENT_VERSION);
	if (got != sizeof(*h) || h->magic != CONTENT_MAGIC || h->regions > TABLE_MAX / sizeof(*t->r) / 2 || h->names > TABLE_MAX / 2)
		return damaged(why);
	len = h->regions * sizeof(*t->r);
	t->r = malloc(len + 1);
	t->names = malloc(h->names + 1);
	if (!t->r || !t->names)
		return why_text(why, -ENOMEM, "");
	got = store_read(r, CONTENT_TABLE, t->r, len);
	if (got >= 0 && (uint64_t)got == len)
		got = store_read(r, CONTENT_TABLE + len, t->names, h->names);
	else if (got >= 0)
		return damaged(why);
	if (got < 0)
		return store_failed(why, got);
	return (uint64_t)got == h->names && (!h->regions || sound(t)) ? 0 : damaged(why);
}

/* Has the session the regions of the dump? Takes over their places in the object. */
static int match(struct sv_session *s, const struct table *t, struct plan *p, struct why *why)
{
	const struct content_head *h = &t->head;
	char text[256];

	if (h->window != s->hal.window || h->window_len > s->hal.window_len)
		return why_set(why, -ESTALE,
			       "the device window was at 0x%llx (%llu bytes), and is at 0x%llx",
			       (unsigned long long)h->window, (unsigned long long)h->window_len,
			       (unsigned long long)s->hal.window);
	for (size_t i = 0; i < h->regions || i < p->n; i++) {
		const struct region *a = i < h->regions ? &t->r[i] : NULL;
		struct region *b = i < p->n ? &p->p[i].r : NULL;
		int c = !a ? 1 : !b ? -1 : region_compare(a, t->names, b, p->names);

		/* Events come last and differ: a replay records none. */
		if ((!a || a->kind == REGION_EVENT) && (!b || b->kind == REGION_EVENT))
			break;
		if (!c && a->len == b->len && a->row == b->row && a->rows == b->rows) {
			b->off = a->off;
			continue;
		}
		region_say(c <= 0 ? a : b, c <= 0 ? t->names : p->names, text, sizeof(text));
		return why_set(why, -ESTALE, "%s: %s", text,
			       c < 0 ? "the replay did not make it" :
			       c     ? "it was not there at the dump" :
				       "it had another size at the dump");
	}
	return 0;
}

/* Makes the driver's own memory, which it would allocate only when kernels first need it. */
static int make_own(struct sv_session *s, const struct table *t, struct why *why)
{
	for (uint64_t i = 0; i < t->head.regions; i++) {
		const struct region *r = &t->r[i];
		struct hal_own own = { r->at, r->len, t->names + r->name };
		CUresult e;

		if (r->kind != REGION_DRIVER)
			continue;
		e = hal_own_make(&s->hal, &own);
		if (e)
			return why_set(why, -ESTALE,
				       "%s cannot be at 0x%llx: the driver says error %d", own.what,
				       (unsigned long long)own.at, e);
	}
	return 0;
}

static int restore_events(struct sv_session *s, const struct table *t, struct why *why)
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
			why_set(why, rc, "an event (handle 0x%llx) cannot be recorded",
				(unsigned long long)r->handle);
	}
	return rc;
}

static int load_region(struct mover *m, const struct store_ref *ref, struct store_reader *r,
		       const struct planned *p, struct why *why)
{
	uint64_t va;
	int rc;

	if (is_packed(&p->r))
		return mover_load_packed(m, r, p, why);
	if (p->r.kind == REGION_MEMORY)
		return mover_load(m, ref, p->r.at, p->r.len, p->r.off, why);
	if (p->r.kind != REGION_PHYSICAL)
		return 0;
	rc = mover_map(m, p, &va, why);
	if (rc)
		return rc;
	rc = mover_load(m, ref, va, p->r.len, p->r.off, why);
	mover_unmap(m, p, va);
	return rc;
}

static int load_all(struct sv_session *s, struct store *st, const struct store_ref *ref,
		    struct store_reader *r, const struct content_progress *progress,
		    struct content_stats *stats, struct why *why)
{
	struct plan p = { 0 };
	struct mover *m = NULL;
	struct table t;
	int rc = read_table(r, &t, why);

	if (!rc)
		rc = make_own(s, &t, why);
	if (!rc)
		rc = plan_make(s, &p, true, why);
	if (!rc)
		rc = match(s, &t, &p, why);
	if (!rc && plan_enter(s, 0))
		rc = -EIO;
	if (!rc)
		rc = mover_open(&m, s, st, progress, p.bytes, stats);
	for (size_t i = 0; i < p.n && !rc; i++)
		rc = load_region(m, ref, r, &p.p[i], why);
	if (!rc)
		rc = restore_events(s, &t, why);
	plan_enter(s, 0);
	mover_close(m);
	plan_free(&p);
	free(t.r);
	free(t.names);
	return why_text(why, rc, "");
}

int content_restore(struct sv_session *s, struct store *st, const struct store_ref *device,
		    const struct content_progress *progress, struct content_stats *stats,
		    struct why *why)
{
	uint64_t begin = now_ns();
	struct content_stats none;
	struct store_reader *r;
	int rc;

	stats = stats ?: &none;
	*stats = (struct content_stats){ .digests = "host" };
	rc = store_failed(why, store_object_open(st, device, &r));
	if (rc)
		return rc;
	rc = load_all(s, st, device, r, progress, stats, why);
	store_reader_close(r);
	stats->seconds = (now_ns() - begin) / 1e9;
	return rc;
}
