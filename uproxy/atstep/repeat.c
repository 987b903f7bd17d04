// SPDX-License-Identifier: Apache-2.0
/*
 * repeat.c - finds the step of a training in the stream of its records; repeat.h has the rules
 *
 * Each view has its items' words, their sums for comparisons of any two stretches in constant time, and for each
 * item the last one before it with the same word. A candidate for a step ends before the next item, which begins
 * the next repetition: so it is tried when an item comes that may begin a step, with each earlier item of the same
 * word, the nearest first.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "repeat.h"

#define VIEWS	2
#define TRIES	1024	/* earlier items that an item is compared with */
#define MORE	2	/* repetitions that are needed where less memory has been in use before them */
#define TEAMS	64	/* communicators that are told apart */
#define BASE	0x9e3779b97f4a7c15ull

struct item {
	uint64_t word;
	uint64_t sum;		/* of all words before it */
	uint64_t low;		/* the least memory in use in the gap before it */
	uint32_t same;		/* the last earlier item with this word, + 1 */
	uint8_t kind;
};

struct view {
	struct item *item;
	uint32_t n, room;
	uint64_t *power;	/* of BASE; as many as items, + 1 */
	uint32_t *last;		/* by hash of the word: the last such item + 1; a power of two of them */
	uint32_t slots;
	uint32_t to_device, to_host;	/* the last one of each + 1 */
	struct {
		uint64_t what;
		uint32_t last;
	} team[TEAMS];
	uint32_t teams;
	uint64_t low;		/* of the gap that is open */
	uint64_t lowest;	/* of all gaps */
	uint32_t opened;	/* the item that was opened last, + 1 */
};

struct repeat {
	struct view view[VIEWS];
	uint64_t bytes;
	bool talks;		/* a step has collectives */
	int err;
	/* What is known: */
	struct view *v;		/* NULL: nothing */
	uint32_t begin, len;	/* the first item of a repetition, and how many it has */
	uint32_t at;		/* the boundary: items after begin */
	uint32_t times;
	uint64_t least;		/* memory in use there */
	uint32_t passed;	/* the item before whose gap it has gone on, + 1 */
};

struct repeat *repeat_new(bool talks)
{
	struct repeat *r = calloc(1, sizeof(*r));

	if (r)
		r->talks = talks;
	for (int i = 0; r && i < VIEWS; i++)
		r->view[i].low = r->view[i].lowest = UINT64_MAX;
	return r;
}

void repeat_free(struct repeat *r)
{
	for (int i = 0; r && i < VIEWS; i++) {
		free(r->view[i].item);
		free(r->view[i].power);
		free(r->view[i].last);
	}
	free(r);
}

/* ------------------------------------------------------------------------------------- items */

static uint64_t mix(uint64_t h)
{
	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
	h = (h ^ h >> 27) * 0x94d049bb133111ebull;
	return h ^ h >> 31;
}

static uint32_t *slot_of(const struct view *v, uint64_t word)
{
	uint32_t i = mix(word) & (v->slots - 1);

	while (v->last[i] && v->item[v->last[i] - 1].word != word)
		i = (i + 1) & (v->slots - 1);
	return &v->last[i];
}

static int grow(struct view *v)
{
	uint32_t room = v->room ? 2 * v->room : 1024;
	struct item *item;
	uint64_t *power;

	if (v->n >= REPEAT_ITEMS)
		return -E2BIG;
	item = realloc(v->item, (size_t)room * sizeof(*item));
	if (!item)
		return -ENOMEM;
	v->item = item;
	power = realloc(v->power, (size_t)(room + 1) * sizeof(*power));
	if (!power)
		return -ENOMEM;
	v->power = power;
	free(v->last);
	v->slots = 2 * room;
	v->last = calloc(v->slots, sizeof(*v->last));
	if (!v->last)
		return -ENOMEM;
	if (!v->n)
		power[0] = 1;
	for (uint32_t i = v->n; i < room; i++)
		power[i + 1] = power[i] * BASE;
	for (uint32_t i = 0; i < v->n; i++)
		*slot_of(v, item[i].word) = i + 1;
	v->room = room;
	return 0;
}

/* The sum of n items' words from `from` on. The item at from + n may be the next one, of which only the sum is there. */
static uint64_t sum_of(const struct view *v, uint32_t from, uint32_t n)
{
	return v->item[from + n].sum - v->item[from].sum * v->power[n];
}

static bool equal(const struct view *v, uint32_t a, uint32_t b, uint32_t n)
{
	return sum_of(v, a, n) == sum_of(v, b, n);
}

static void note_team(struct view *v, uint64_t what)
{
	uint32_t i = 0;

	while (i < v->teams && v->team[i].what != what)
		i++;
	if (i == TEAMS)
		return;
	v->teams += i == v->teams;
	v->team[i].what = what;
	v->team[i].last = v->n;
}

/* Prepares the next item's place, so that sums up to it can be taken. */
static int open_item(struct view *v, enum repeat_kind kind, uint64_t word)
{
	int err = v->n == v->room ? grow(v) : 0;
	struct item *it, *before;

	if (err)
		return err;
	it = &v->item[v->n];
	before = it - 1;
	*it = (struct item){ .word = word, .low = v->low, .kind = kind, .same = *slot_of(v, word) };
	it->sum = v->n ? before->sum * BASE + mix(before->word) : 0;
	if (v->low < v->lowest)
		v->lowest = v->low;
	return 0;
}

static void close_item(struct view *v, uint64_t what)
{
	struct item *it = &v->item[v->n];

	*slot_of(v, it->word) = v->n + 1;
	if (it->kind == REPEAT_TO_DEVICE)
		v->to_device = v->n + 1;
	if (it->kind == REPEAT_TO_HOST)
		v->to_host = v->n + 1;
	if (it->kind == REPEAT_COLL)
		note_team(v, what);
	v->n++;
	v->low = UINT64_MAX;
}

/* ------------------------------------------------------------------------------------- the step */

/* The least memory in use in the last len items' gaps. */
static uint64_t least_of(const struct view *v, uint32_t len)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t i = v->n - len; i < v->n; i++)
		if (v->item[i].low < least)
			least = v->item[i].low;
	return least;
}

static bool is_above(uint64_t bytes, uint64_t least)
{
	return bytes > least + least / 64;
}

/* How often a repetition must occur. 0: it is none of a step. */
static uint32_t wanted(const struct repeat *r, const struct view *v, uint32_t len)
{
	uint32_t from = v->n - len, times = v == r->view && v->teams ? 2 : 3;

	if ((v->to_device || v != r->view ? v->to_device : v->to_host) <= from)
		return 0;
	if (!v->teams && (r->talks || (v != r->view && v->to_host <= from)))
		return 0;
	for (uint32_t i = 0; i < v->teams; i++)
		if (v->team[i].last < from)
			return 0;
	/* Less memory was in use somewhere else, so it may be a loop within the step. */
	return times + (is_above(least_of(v, len), v->lowest) ? MORE : 0);
}

/* How often the last len items occur one after the other, up to item `end`. */
static uint32_t times_of(const struct view *v, uint32_t len, uint32_t end)
{
	uint32_t times = 0;

	while ((uint64_t)(times + 1) * len <= end && equal(v, end - (times + 1) * len, v->n - len, len))
		times++;
	return times;
}

/* The same of a loop over them that has ended, before the last `times` repetitions: the most. */
static uint32_t times_ended(const struct view *v, uint32_t len, uint32_t times)
{
	uint32_t most = 0, tries = TRIES, n;

	/* Where the word of the last item occurs, a repetition may have ended. */
	for (uint32_t end = v->item[v->n - 1].same; end && tries--; end = v->item[end - 1].same) {
		if (end + times * len > v->n || v->item[end].word == v->item[v->n].word)
			continue;
		n = times_of(v, len, end);
		most = n > most ? n : most;
	}
	return most;
}

#define NEVER	(1u << 28)
#define OFTEN	64u

/* How often the word of item i is among the last len ones, up to OFTEN. */
static uint32_t often(const struct view *v, uint32_t i, uint32_t len)
{
	uint32_t n = 0;

	for (uint32_t k = *slot_of(v, v->item[i].word); k > v->n - len && n < OFTEN; k = v->item[k - 1].same)
		n++;
	return n;
}

/* The communicator with the fewest collectives in the last len items, as the word of these. */
static uint64_t rarest(const struct view *v, uint32_t len)
{
	uint32_t least = UINT32_MAX;
	uint64_t word = 0;

	for (uint32_t i = 0; i < v->teams; i++) {
		uint32_t n = often(v, v->team[i].last, len);

		if (n < least) {
			least = n;
			word = v->item[v->team[i].last].word;
		}
	}
	return word;
}

/* Chooses the boundary in the last len items: the place whose number is least, in a circle. */
static void choose(struct repeat *r, const struct view *v, uint32_t len)
{
	const uint64_t team = rarest(v, len);
	uint32_t since_coll = NEVER, since_host = NEVER;
	uint64_t best = UINT64_MAX;

	r->least = least_of(v, len);
	r->at = 0;
	for (uint32_t k = 0; k < 2 * len; k++) {
		const struct item *it = &v->item[v->n - len + k % len];
		uint64_t bad = since_coll < NEVER ? since_coll : since_host;

		if (it->kind != REPEAT_TO_DEVICE)
			bad = (it->kind == REPEAT_COLL ? 2ull : 1ull) << 40 | since_host;
		else if (bad == NEVER)
			bad += often(v, v->n - len + (k + len - 1) % len, len);
		if (k >= len && !is_above(it->low, r->least) && bad < best) {
			best = bad;
			r->at = k % len;
		}
		since_coll = it->kind == REPEAT_COLL && it->word == team ? 0 : since_coll + (since_coll < NEVER);
		since_host = it->kind == REPEAT_TO_HOST ? 0 : since_host + (since_host < NEVER);
	}
}

/* May a step begin with the item that is being opened? */
static bool may_begin(const struct view *v)
{
	enum repeat_kind kind = v->item[v->n].kind;

	if (!v->n || v->item[v->n].same == 0)
		return false;
	return v->to_device ? kind == REPEAT_TO_DEVICE : v->to_host == v->n;
}

static void search(struct repeat *r, struct view *v)
{
	uint32_t tries = TRIES, len, times, want;

	if (!may_begin(v))
		return;
	for (uint32_t j = v->item[v->n].same; j && tries--; j = v->item[j - 1].same) {
		len = v->n - (j - 1);
		if (2ull * len > v->n)
			return;
		if (!equal(v, v->n - 2 * len, v->n - len, len))
			continue;
		want = wanted(r, v, len);
		if (!want)
			continue;
		times = times_of(v, len, v->n);
		if (times < want || times <= times_ended(v, len, times))
			continue;
		r->v = v;
		r->begin = v->n;
		r->len = len;
		r->times = times;
		r->passed = 0;
		choose(r, v, len);
		/* It has allocated memory for this step already. */
		if (is_above(r->bytes, r->least))
			repeat_pass(r);
		return;
	}
}

/* Of the gap before the item that comes next: the place in its repetition. */
static uint32_t place(const struct repeat *r)
{
	return (r->v->n - r->begin) % r->len;
}

static bool is_boundary(const struct repeat *r)
{
	return r->v && place(r) == r->at && r->passed != r->v->n + 1;
}

/* Compares the item that is being opened with the one that is expected. */
static void follow(struct repeat *r)
{
	const struct view *v = r->v;

	if (v->item[v->n].word != v->item[v->n - r->len].word)
		r->v = NULL;	/* it was a loop within the step, or the program does something else now */
	else if (v->n > r->begin && !place(r))
		r->times++;
}

/* ------------------------------------------------------------------------------------- public */

void repeat_bytes(struct repeat *r, uint64_t bytes)
{
	r->bytes = bytes;
	for (int i = 0; i < VIEWS; i++)
		if (bytes < r->view[i].low)
			r->view[i].low = bytes;
}

/* Does the view have it as a part of the last item? */
static bool joins(const struct view *v, int view, enum repeat_kind kind)
{
	if (!v->n || v->item[v->n - 1].kind != kind || kind == REPEAT_COLL)
		return false;
	return view || kind != REPEAT_WORK;
}

bool repeat_item(struct repeat *r, enum repeat_kind kind, uint64_t what)
{
	bool joined[VIEWS];

	for (int i = 0; i < VIEWS && !r->err; i++) {
		struct view *v = &r->view[i];
		bool bare = kind == REPEAT_TO_DEVICE || kind == REPEAT_TO_HOST || (i && kind == REPEAT_WORK);

		joined[i] = joins(v, i, kind);
		if (joined[i]) {
			/* A gap begins in a run of copies or waits, but behind all of the work. */
			if (kind == REPEAT_WORK)
				v->low = UINT64_MAX;
			continue;
		}
		if (v->low == UINT64_MAX)
			v->low = r->bytes;
		r->err = open_item(v, kind, mix(kind + 1) ^ mix(bare ? 0 : what));
		if (r->err)
			break;
		if (v->opened == v->n + 1)	/* it was at a boundary, and is past it */
			continue;
		v->opened = v->n + 1;
		if (r->v == v)
			follow(r);
		if (!r->v)
			search(r, v);
	}
	if (r->err) {
		r->v = NULL;
		return false;
	}
	if (r->v && !joined[r->v - r->view] && is_boundary(r))
		return true;
	for (int i = 0; i < VIEWS; i++)
		if (!joined[i])
			close_item(&r->view[i], what);
	return false;
}

bool repeat_here(struct repeat *r)
{
	/* In the second view work may go on. */
	if (r->v && r->v != r->view && r->v->n && r->v->item[r->v->n - 1].kind == REPEAT_WORK)
		return false;
	return is_boundary(r) && !is_above(r->bytes, r->least);
}

void repeat_pass(struct repeat *r)
{
	if (r->v)
		r->passed = r->v->n + 1;
}

uint32_t repeat_known(const struct repeat *r, uint32_t *times)
{
	*times = r->v ? r->times : 0;
	return r->v ? r->len : 0;
}

int64_t repeat_seen(const struct repeat *r)
{
	return r->err ? (int64_t)r->err : (int64_t)r->view[0].n;
}
