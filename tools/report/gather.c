// SPDX-License-Identifier: Apache-2.0
/*
 * gather.c - what the page shows: the job's lives, its checkpoints and restores, and what they cost
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "report_i.h"
#include "store.h"

#define WALK_MAX	(1ull << 26)	/* pages of all checkpoints: 256 GiB */
#define AWAY_SHOWN	0.04	/* of the time that the job has run, at most, for a time away ... */
#define AWAY_ALL	0.15	/* ... and for all of them */

/* -------------------------------------------------------------------------------- lives */

/* The last frame before a moment, or 0. */
static uint64_t last_frame(const struct past *p, uint64_t before)
{
	uint64_t at = 0;

	for (size_t i = 0; i < p->frames && p->time[i] <= before; i++)
		at = p->time[i];
	return at;
}

/* This time, or that of the last frame. */
static uint64_t last_time(const struct past *p, uint64_t time)
{
	return p->frames && p->time[p->frames - 1] > time ? p->time[p->frames - 1] : time;
}

static void begin_life(struct report *r, uint64_t at)
{
	if (r->lives < LIVES_MAX)
		r->life[r->lives++] = (struct life){ .from = at };
	else
		r->life[LIVES_MAX - 1].to = 0;
}

static void end_life(struct report *r, uint64_t at)
{
	struct life *l = r->lives ? &r->life[r->lives - 1] : NULL;

	if (l && !l->to)
		l->to = at > l->from ? at : l->from;
}

/* A life of an earlier job that went on: the moment of the checkpoint, else the last sign of it. */
static void end_before(struct report *r, const struct past_event *restore)
{
	const struct past *p = r->past;
	const struct past_event *e = restore;

	while (e-- > p->event)
		if (e->kind == PAST_CHECKPOINT && !e->left && !strcmp(e->id, restore->id)) {
			end_life(r, e->time_ns + e->still_ns);
			return;
		}
	end_life(r, last_frame(p, restore->time_ns) ?: restore->time_ns);
}

static void place_lives(struct report *r)
{
	double most;

	for (int i = 0; i < r->lives; i++) {
		struct life *l = &r->life[i];

		l->run = r->run;
		r->run += (l->to - l->from) / 1e9;
		if (i && l->from > l[-1].to)
			l->away = (l->from - l[-1].to) / 1e9;
		r->away += l->away;
	}
	most = AWAY_SHOWN * (r->lives - 1) < AWAY_ALL ? AWAY_SHOWN : AWAY_ALL / (r->lives - 1);
	most *= r->run;
	for (int i = 0; i < r->lives; i++) {
		struct life *l = &r->life[i];

		r->axis += l->away < most ? l->away : most;
		l->at = r->axis;
		r->axis += (l->to - l->from) / 1e9;
	}
}

static int find_lives(struct report *r)
{
	const struct past *p = r->past;
	uint64_t last = 0;

	for (size_t i = 0; i < p->events; i++) {
		const struct past_event *e = &p->event[i];

		last = e->time_ns + e->ns;
		if (e->kind == PAST_BEGIN && !r->began) {
			r->began = e->time_ns;
			r->ranks = e->number;
			begin_life(r, e->time_ns);
		} else if (e->kind == PAST_RESTORE && r->began) {
			end_before(r, e);
			begin_life(r, last);
		} else if (e->kind == PAST_CHECKPOINT && !e->left && r->lives) {
			end_life(r, e->time_ns + e->still_ns);
		} else if (e->kind == PAST_FAILED && r->lives) {
			r->life[r->lives - 1].to = 0;	/* a checkpoint that was to end it */
		} else if (e->kind == PAST_END) {
			/* Later, if a clock has been set back since (parse.c). */
			end_life(r, i + 1 == p->events ? last_time(p, e->time_ns) : e->time_ns);
		}
	}
	if (!r->began)
		return -ENODATA;
	end_life(r, last_time(p, last));
	r->ended = r->life[r->lives - 1].to;
	if (r->ranks < p->ranks)
		r->ranks = p->ranks;
	place_lives(r);
	return 0;
}

int report_life(const struct report *r, uint64_t time_ns)
{
	int at = -1;

	while (at + 1 < r->lives && time_ns >= r->life[at + 1].from)
		at++;
	return at;
}

double report_at(const struct report *r, uint64_t time_ns)
{
	const struct life *l = &r->life[0];

	for (int i = 0; i < r->lives && time_ns >= r->life[i].from; i++)
		l = &r->life[i];
	if (time_ns < l->from)
		return 0;
	return l->at + ((time_ns < l->to ? time_ns : l->to) - l->from) / 1e9;
}

/* ---------------------------------------------------------------------- standing still */

static enum cause cause_of(const struct past_phase *p)
{
	static const struct {
		const char *name;
		enum cause cause;
	} of[] = { { "freeze ", CAUSE_DRAIN }, { "device ", CAUSE_DEVICE }, { "criu", CAUSE_PROGRAM },
		   { "channel ", CAUSE_CHANNEL }, { "files", CAUSE_FILES }, { "libraries", CAUSE_FILES },
		   { "publish", CAUSE_PUBLISH } };

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		if (!strncmp(p->name, of[i].name, strlen(of[i].name)))
			return of[i].cause;
	return CAUSE_OTHER;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/*
 * Phases overlap: each moment from..to counts for one cause, the first of these that is going on. CRIU
 * goes on around the others, so it gets what is left.
 */
static void divide_time(const struct past_event *e, uint64_t from, uint64_t to, double *cause)
{
	static const enum cause order[] = { CAUSE_PUBLISH, CAUSE_FILES, CAUSE_CHANNEL, CAUSE_DEVICE,
					    CAUSE_DRAIN, CAUSE_PROGRAM };
	uint64_t cut[2 * HISTORY_PHASES + 2] = { from, to };
	int n = 2;

	for (int i = 0; i < e->phases; i++) {
		cut[n++] = e->phase[i].start_ns;
		cut[n++] = e->phase[i].start_ns + e->phase[i].ns;
	}
	qsort(cut, n, sizeof(*cut), by_number);
	for (int i = 0; i + 1 < n; i++) {
		bool going[CAUSES] = { false };
		enum cause is = CAUSE_OTHER;

		if (cut[i] < from || cut[i + 1] > to)
			continue;
		for (int k = 0; k < e->phases; k++)
			if (e->phase[k].start_ns <= cut[i] &&
			    e->phase[k].start_ns + e->phase[k].ns >= cut[i + 1])
				going[cause_of(&e->phase[k])] = true;
		for (size_t k = sizeof(order) / sizeof(order[0]); k--;)
			is = going[order[k]] ? order[k] : is;
		cause[is] += (cut[i + 1] - cut[i]) / 1e9;
	}
}

/* -------------------------------------------------------------------------- checkpoints */

/* What the phases have told of bytes, for checkpoints that no store has here. */
static void by_phases(struct taken *t)
{
	const struct past_event *e = t->e;
	uint64_t there = e->bytes > e->zeros ? e->bytes - e->zeros : 0;

	for (int i = 0; i < e->phases; i++)
		switch (cause_of(&e->phase[i])) {
		case CAUSE_DEVICE:
			t->kind[KIND_DEVICE] += e->phase[i].bytes;
			break;
		case CAUSE_FILES:
			t->kind[KIND_FILES] += e->phase[i].bytes;
			break;
		case CAUSE_PROGRAM:
		case CAUSE_CHANNEL:
			t->kind[KIND_PROGRAM] += e->phase[i].bytes;
			break;
		default:
			break;
		}
	t->bytes = there;
	t->origin[ORIGIN_NEW] = e->stored < there ? e->stored : there;
	t->origin[ORIGIN_SHARED] = there - t->origin[ORIGIN_NEW];
}

static void by_kinds(struct taken *t)
{
	static const char *const names[KINDS] = { "program", "device", "files", "communicators" };
	uint64_t fresh;

	memset(t->kind, 0, sizeof(t->kind));
	memset(t->origin, 0, sizeof(t->origin));
	t->bytes = 0;
	for (size_t i = 0; i < t->kinds.n; i++) {
		const struct kind_row *row = &t->kinds.row[i];

		for (int k = 0; k < KINDS; k++)
			if (!strcmp(row->kind, names[k]))
				t->kind[k] += row->data;
		t->bytes += row->data;
		t->origin[ORIGIN_NEW] += row->fresh;
		t->origin[ORIGIN_WITHIN] += row->within;
		t->origin[ORIGIN_EARLIER] += row->earlier;
	}
	/* The store knew then what it had of those that are gone. */
	fresh = t->origin[ORIGIN_NEW];
	if (t->after_gone && fresh > t->e->stored) {
		t->origin[ORIGIN_NEW] = t->e->stored;
		t->origin[ORIGIN_SHARED] = fresh - t->e->stored;
	}
	t->divided = true;
}

/* Stores that others could make or change are looked at only if the user names them. */
static int divide_one(struct kinds_past *past, const char *path, bool named, struct taken *t)
{
	struct store_checkpoint *c;
	struct why why = { 0 };
	struct store *s;
	int err = named ? store_open(&s, path, STORE_WAIT, &why) :
		  *path == '/' ? store_open_trusted(&s, path, STORE_WAIT, 0, &why) : -ENOENT;

	if (err)
		return err;
	err = store_checkpoint_open(s, t->e->id, &c);
	if (!err) {
		err = kinds_next(past, s, c, &t->kinds);
		store_checkpoint_close(c);
	}
	store_close(s);
	return err ?: t->kinds.n ? 0 : -ENODATA;
}

/* In the given store, which may be NULL, else in that of its event. */
static int divide(struct kinds_past *past, const char *store, struct taken *t)
{
	int err = -ENOENT;

	if (strlen(t->e->id) != STORE_ID - 1)
		return err;
	if (store)
		err = divide_one(past, store, true, t);
	if (err && err != -E2BIG && (!store || strcmp(store, t->e->store)))
		err = divide_one(past, t->e->store, false, t);
	return err;
}

/* The pages of one checkpoint after the other. */
static void divide_all(struct report *r, const char *store)
{
	struct kinds_past past = { .most = WALK_MAX };
	bool gone = false;
	int err = 0;

	for (int i = 0; i < r->n_taken && err != -E2BIG && err != -ENOMEM; i++) {
		struct taken *t = &r->taken[i];

		t->after_gone = gone;
		err = divide(&past, store, t);
		if (!err)
			by_kinds(t);
		gone |= err != 0;
		if (i + SHOWN_BARS < r->n_taken)
			kinds_free(&t->kinds);
	}
	if (err == -E2BIG)
		r->undivided = "the others have more pages than are counted here";
	kinds_past_free(&past);
}

static int gather_events(struct report *r)
{
	const struct past *p = r->past;
	int life = 0;

	r->taken = calloc(p->events + 1, sizeof(*r->taken));
	r->brought = calloc(p->events + 1, sizeof(*r->brought));
	if (!r->taken || !r->brought)
		return -ENOMEM;
	for (size_t i = 0; i < p->events; i++) {
		const struct past_event *e = &p->event[i];

		if (e->kind == PAST_CHECKPOINT) {
			struct taken *t = &r->taken[r->n_taken++];
			uint64_t to = e->left ? e->still_ns + e->stood_ns : e->ns;

			t->e = e;
			t->number = r->n_taken;
			divide_time(e, e->still_ns, to, t->cause);
			for (int k = 0; k < CAUSES; k++)
				t->stood += t->cause[k];
			by_phases(t);
			r->stood += t->stood;
		} else if (e->kind == PAST_RESTORE && r->began) {
			struct brought *b = &r->brought[r->n_brought++];

			life += life + 1 < r->lives;
			b->e = e;
			b->number = r->n_brought;
			b->away = r->life[life].away;
			divide_time(e, 0, e->ns, b->cause);
			for (int k = 0; k < CAUSES; k++)
				r->stood += b->cause[k];
		}
		r->n_failed += e->kind == PAST_FAILED;
	}
	return 0;
}

int report_gather(struct report *r, const struct past *past, const char *store)
{
	int err;

	r->past = past;
	err = find_lives(r) ?: gather_events(r);
	if (!err)
		divide_all(r, store);
	return err;
}

void report_free(struct report *r)
{
	for (int i = 0; i < r->n_taken; i++)
		kinds_free(&r->taken[i].kinds);
	free(r->taken);
	free(r->brought);
}
