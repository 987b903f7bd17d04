// SPDX-License-Identifier: Apache-2.0
/*
 * kinds.c - what a checkpoint has of each rank, by kind, and what of it is shared or was there before
 *
 * A process belongs to the rank of its session, or of the nearest ancestor's. Data: without holes. Distinct:
 * each different page once. Shared: of these, what another row has, too, so that the store has it once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_facts.h"
#include "images.h"
#include "store_tool_i.h"

#define SMALL_MAX (256ul << 20)

enum kind { PROGRAM, DEVICE, FILES, COMMS };

static const char *const kind_names[] = { "program", "device", "files", "communicators" };

enum { NOBODY = -1, UNKNOWN = -2, LOOKING = -3 };

struct owner {
	struct images_process p;
	int rank;
};

struct owners {
	struct ckpt_facts facts;
	struct owner *owner;	/* by the number of their pages */
	size_t n;
};

/* ------------------------------------------------------------------------------- who has what */

/* All of a part; NULL if there is none, or it cannot be read. */
static char *part_text(struct store *s, const struct store_checkpoint *c, const char *name, size_t *len)
{
	const struct store_ref *ref = store_checkpoint_find(c, name);
	struct store_reader *r;
	char *text = NULL;

	if (!ref || store_ref_size(ref) > SMALL_MAX || store_object_open(s, ref, &r))
		return NULL;
	*len = store_size(r);
	text = malloc(*len + 1);
	if (text && store_read(r, 0, text, *len) != (ssize_t)*len) {
		free(text);
		text = NULL;
	}
	store_reader_close(r);
	return text;
}

static int by_pid(const void *a, const void *b)
{
	const struct owner *x = a, *y = b;

	return (x->p.pid > y->p.pid) - (x->p.pid < y->p.pid);
}

static int by_pages(const void *a, const void *b)
{
	const struct owner *x = a, *y = b;

	return (x->p.pages > y->p.pages) - (x->p.pages < y->p.pages);
}

static struct owner *find_pid(const struct owners *o, int pid)
{
	struct owner key = { .p.pid = pid };

	return o->n ? bsearch(&key, o->owner, o->n, sizeof(key), by_pid) : NULL;
}

/* The rank of a process and of its ancestors without one is that of the nearest that has one; forged ones may be a circle. */
static void find_rank(const struct owners *o, struct owner *from)
{
	struct owner *at;
	int rank;

	for (at = from; at && at->rank == UNKNOWN; at = find_pid(o, at->p.parent))
		at->rank = LOOKING;
	rank = at && at->rank != LOOKING ? at->rank : NOBODY;
	for (at = from; at && at->rank == LOOKING; at = find_pid(o, at->p.parent))
		at->rank = rank;
}

/* There may be any number of processes, since images may be forged. p: by pid */
static int find_ranks(struct owners *o, const struct images_process *p, size_t n)
{
	o->owner = calloc(n + 1, sizeof(*o->owner));
	if (!o->owner)
		return -ENOMEM;
	o->n = n;
	for (size_t i = 0; i < n; i++)
		o->owner[i] = (struct owner){ p[i], UNKNOWN };
	for (int k = o->facts.proxies; k--;) {
		struct owner *client = find_pid(o, o->facts.proxy[k].client);

		if (client)
			client->rank = o->facts.proxy[k].rank;
	}
	for (size_t i = 0; i < n; i++)
		find_rank(o, &o->owner[i]);
	if (n)
		qsort(o->owner, n, sizeof(*o->owner), by_pages);
	return 0;
}

static bool owners_read(struct store *s, const struct store_checkpoint *c, struct owners *o)
{
	struct images_process *p = NULL;
	size_t len = 0, n = 0;
	char *text = part_text(s, c, "job", &len);
	int err = text ? facts_read(&o->facts, text, len) : -ENOENT;

	free(text);
	text = err ? NULL : part_text(s, c, "criu/small", &len);
	if (text)
		err = images_processes(text, len, &p, &n) ?: find_ranks(o, p, n);
	free(text);
	free(p);
	return !err;
}

static int rank_of_pages(const struct owners *o, int pages)
{
	struct owner key = { .p.pages = pages }, *found;

	found = o->n ? bsearch(&key, o->owner, o->n, sizeof(key), by_pages) : NULL;
	return found ? found->rank : NOBODY;
}

static enum kind kind_of(const struct owners *o, const char *name, int *rank)
{
	int serial, pages, end = 0;

	*rank = NOBODY;
	if (!strncmp(name, "lib/", 4) || !strcmp(name, "files") || !strncmp(name, "files/", 6))
		return FILES;
	if (sscanf(name, "proxy/%9d-%9d/%n", rank, &serial, &end) == 2 && end)
		return !strcmp(name + end, "device") ? DEVICE : !strcmp(name + end, "comms") ? COMMS : PROGRAM;
	if (!strcmp(name, "board"))
		return COMMS;
	if (sscanf(name, "criu/pages-%9d.img", &pages) == 1)
		*rank = rank_of_pages(o, pages);
	return PROGRAM;
}

/* --------------------------------------------------------------------------------- counting */

struct owned {			/* a part */
	const struct store_ref *ref;
	int rank;
	enum kind kind;
	size_t row;
};

static int by_owner(const void *a, const void *b)
{
	const struct owned *x = a, *y = b;

	return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank) :
				    (int)x->kind - (int)y->kind;
}

struct counter {
	struct kinds_past *past;
	struct kind_row *row;
	uint32_t who;		/* never the same for two rows or rounds; 0 is none */
	uint32_t first;		/* of this checkpoint's */
	bool again;		/* the second round: which pages are shared is known */
};

/*
 * A page's `shared` is 1 if another row has it, too, and from bit 1 on the number of the checkpoint in which it was
 * first.
 */
static int count(void *arg, uint64_t key)
{
	struct counter *c = arg;
	struct kinds_past *past = c->past;
	bool fresh, earlier;
	struct page *p = pages_get(&past->pages, key, &fresh);

	if (!p)
		return -ENOMEM;
	if (!c->again && past->most && past->walked++ >= past->most)
		return -E2BIG;
	if (fresh)
		p->shared = past->checkpoint << 1;
	if (!c->again)
		c->row->data += STORE_PAGE;
	if (p->last == c->who)
		return 0;
	earlier = p->shared >> 1 < past->checkpoint;
	if (!c->again) {
		c->row->distinct += STORE_PAGE;
		if (p->last < c->first)
			p->shared &= ~1u;
		else
			p->shared |= 1;
	} else {
		c->row->shared += p->shared & 1 ? STORE_PAGE : 0;
		*(earlier ? &c->row->earlier : p->shared & 1 ? &c->row->within : &c->row->fresh) += STORE_PAGE;
	}
	p->last = c->who;
	return 0;
}

/* Makes the rows of parts that are sorted by owner. */
static int make_rows(struct owned *o, size_t n, struct kinds *k)
{
	k->row = calloc(n + 1, sizeof(*k->row));
	if (!k->row)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (!i || by_owner(&o[i], &o[i - 1]))
			k->row[k->n++] = (struct kind_row){ .rank = o[i].rank,
							    .kind = kind_names[o[i].kind] };
		o[i].row = k->n - 1;
	}
	return 0;
}

static int count_parts(struct store *s, struct owned *o, size_t n, struct kinds *k, struct kinds_past *past)
{
	struct counter c = { .past = past, .first = past->who + 1 };
	int err = make_rows(o, n, k);

	past->checkpoint++;
	past->who += 2 * k->n;
	for (int round = 0; round < 2 && !err; round++)
		for (size_t i = 0; i < n && !err; i++) {
			c.again = round;
			c.row = &k->row[o[i].row];
			c.who = c.first + round * k->n + o[i].row;
			err = object_pages(s, o[i].ref, count, &c);
		}
	/* What it has counted is not of an earlier checkpoint, if it is tried again. */
	past->checkpoint -= err != 0;
	return err;
}

int kinds_next(struct kinds_past *past, struct store *s, const struct store_checkpoint *c, struct kinds *k)
{
	const struct store_part *part;
	size_t n = store_checkpoint_parts(c, &part);
	struct owned *o = calloc(n + 1, sizeof(*o));
	struct owners who = { 0 };
	int err = o ? 0 : -ENOMEM;

	if (!err && owners_read(s, c, &who)) {
		for (size_t i = 0; i < n; i++) {
			o[i].ref = &part[i].ref;
			o[i].kind = kind_of(&who, part[i].name, &o[i].rank);
		}
		qsort(o, n, sizeof(*o), by_owner);
		err = count_parts(s, o, n, k, past);
	}
	facts_free(&who.facts);
	free(who.owner);
	free(o);
	if (err)
		kinds_free(k);
	return err;
}

void kinds_past_free(struct kinds_past *past)
{
	free(past->pages.at);
	*past = (struct kinds_past){ 0 };
}

int kinds_count(struct store *s, const struct store_checkpoint *c, struct kinds *k)
{
	struct kinds_past past = { .most = 0 };
	int err = kinds_next(&past, s, c, k);

	kinds_past_free(&past);
	return err;
}

void kinds_free(struct kinds *k)
{
	free(k->row);
	*k = (struct kinds){ 0 };
}

/* ---------------------------------------------------------------------------------- telling */

void kinds_text(const struct kinds *k)
{
	char rank[16], data[16], distinct[16], shared[16];

	if (!k->n)
		return;
	printf("%4s  %-13s %8s %8s %8s\n", "RANK", "KIND", "DATA", "DISTINCT", "SHARED");
	for (size_t i = 0; i < k->n; i++) {
		const struct kind_row *r = &k->row[i];

		snprintf(rank, sizeof(rank), "%d", r->rank);
		printf("%4s  %-13s %8s %8s %8s\n", r->rank < 0 ? "all" : rank, r->kind,
		       show_size(data, r->data), show_size(distinct, r->distinct),
		       show_size(shared, r->shared));
	}
	putchar('\n');
}

void kinds_json(const struct kinds *k, struct json *j)
{
	json_open(j, "kinds", '[');
	for (size_t i = 0; i < k->n; i++) {
		const struct kind_row *r = &k->row[i];

		json_open(j, NULL, '{');
		if (r->rank >= 0)
			json_int(j, "rank", r->rank);
		json_string(j, "kind", r->kind);
		json_uint(j, "data", r->data);
		json_uint(j, "distinct", r->distinct);
		json_uint(j, "shared", r->shared);
		json_close(j, '}');
	}
	json_close(j, ']');
}
