// SPDX-License-Identifier: Apache-2.0
/*
 * list.c - `singvgpu store ls` and `show`: checkpoints, their parts and sizes
 *
 * Sizes. Logical: as the job sees it. Data: without holes. Distinct: each different page once.
 * Alone: distinct pages that no other checkpoint has, which gc would free after its removal.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store_tool_i.h"

struct entry {
	char id[STORE_ID];
	uint64_t time;
	char *command, *host;
	size_t parts;
	struct sizes size;
	bool bad;
};

struct list {
	struct store *s;
	struct entry *e;
	size_t n;
	int err;
};

/* ------------------------------------------------------------------ the manifest's text */

/* The end of the string that begins at s ('"'), behind its '"'; NULL if it has none. */
static const char *string_end(const char *s)
{
	for (s++; *s && *s != '"'; s++)
		if (*s == '\\' && !*++s)
			return NULL;
	return *s ? s + 1 : NULL;
}

/* The text of a string from its first '"' on; decodes simple escapes and leaves the others. */
static char *string_value(const char *from, const char *end)
{
	char *text = malloc(end - from), *to = text;

	for (from++; text && from < end - 1; from++) {
		if (*from == '\\' && strchr("\"\\/", from[1]))
			from++;
		*to++ = *from;
	}
	if (text)
		*to = 0;
	return text;
}

char *store_json_string(const char *json, const char *key)
{
	size_t len = strlen(key);
	const char *end;
	int depth = 0;

	for (; json && *json; json = end) {
		bool is_key = depth == 1 && *json == '"' && !strncmp(json + 1, key, len) &&
			      json[len + 1] == '"';

		end = *json == '"' ? string_end(json) : json + 1;
		depth += (*json == '{' || *json == '[') - (*json == '}' || *json == ']');
		if (!is_key || !end)
			continue;
		end += strspn(end, " \t\n\r");
		if (*end != ':')
			continue;
		end++;
		end += strspn(end, " \t\n\r");
		json = end;
		if (*json == '"' && (end = string_end(json)))
			return string_value(json, end);
		return NULL;
	}
	return NULL;
}

/* ------------------------------------------------------------------------------- pages */

static struct page *page_find(const struct pages *t, uint64_t key)
{
	uint64_t i = key & (t->room - 1);

	while (t->at[i].key && t->at[i].key != key)
		i = (i + 1) & (t->room - 1);
	return &t->at[i];
}

static int pages_grow(struct pages *t)
{
	struct pages more = { .room = t->room ? 2 * t->room : 1 << 16, .n = t->n };

	more.at = calloc(more.room, sizeof(*more.at));
	if (!more.at)
		return -ENOMEM;
	for (uint64_t i = 0; i < t->room; i++)
		if (t->at[i].key)
			*page_find(&more, t->at[i].key) = t->at[i];
	free(t->at);
	*t = more;
	return 0;
}

struct page *pages_get(struct pages *t, uint64_t key, bool *fresh)
{
	struct page *p;

	if (4 * t->n >= 3 * t->room && pages_grow(t))
		return NULL;
	p = page_find(t, key ?: 1);
	*fresh = !p->key;
	if (*fresh) {
		p->key = key ?: 1;
		t->n++;
	}
	return p;
}

int object_pages(struct store *s, const struct store_ref *ref,
		 int (*each)(void *arg, uint64_t key), void *arg)
{
	struct store_digest d[1024];
	struct store_reader *r;
	uint64_t from, to = 0;
	int err = store_object_open(s, ref, &r);

	if (err)
		return err;
	while (!err && !(err = store_next_data(r, to, &from, &to))) {
		while (from < to && !err) {
			size_t n = (to - from + STORE_PAGE - 1) / STORE_PAGE;

			n = n < 1024 ? n : 1024;
			err = store_digests(r, from, d, n);
			for (size_t i = 0; i < n && !err; i++)
				err = each(arg, d[i].lo);
			from += n * STORE_PAGE;
		}
	}
	store_reader_close(r);
	return err == -ENXIO ? 0 : err;
}

struct counted {
	struct pages *t;
	uint32_t who;		/* the checkpoint */
	struct sizes *size;
};

static int count(void *arg, uint64_t key)
{
	struct counted *c = arg;
	bool fresh;
	struct page *p = pages_get(c->t, key, &fresh);

	if (!p)
		return -ENOMEM;
	c->size->data += STORE_PAGE;
	if (!fresh && p->last == c->who)
		return 0;
	p->last = c->who;
	p->shared = !fresh;
	c->size->distinct += STORE_PAGE;
	return 0;
}

/* Counts the pages of all checkpoints, with about 30 bytes of memory for each distinct page. */
static int list_sizes(struct list *l)
{
	struct pages t = { 0 };
	int err = pages_grow(&t);

	for (size_t i = 0; i < l->n && !err; i++) {
		const struct store_part *part;
		struct store_checkpoint *c;
		size_t n;

		if (l->e[i].bad)
			continue;
		l->e[i].bad = store_checkpoint_open(l->s, l->e[i].id, &c);
		if (l->e[i].bad)
			continue;
		n = store_checkpoint_parts(c, &part);
		for (size_t k = 0; k < n && !err; k++)
			err = object_pages(l->s, &part[k].ref, count,
					   &(struct counted){ &t, i, &l->e[i].size });
		store_checkpoint_close(c);
		/* A damaged checkpoint has no sizes; the other checkpoints get theirs. */
		l->e[i].bad = err && err != -ENOMEM;
		err = l->e[i].bad ? 0 : err;
	}
	for (uint64_t i = 0; i < t.room && !err; i++)
		if (t.at[i].key && !t.at[i].shared)
			l->e[t.at[i].last].size.alone += STORE_PAGE;
	free(t.at);
	return err;
}

/* -------------------------------------------------------------------------------- list */

static void entry_fill(struct list *l, struct entry *e)
{
	const struct store_part *part;
	struct store_checkpoint *c;

	e->bad = store_checkpoint_open(l->s, e->id, &c);
	if (e->bad)
		return;
	e->command = store_json_string(store_checkpoint_json(c), "command");
	e->host = store_json_string(store_checkpoint_json(c), "host");
	e->parts = store_checkpoint_parts(c, &part);
	for (size_t i = 0; i < e->parts; i++)
		e->size.logical += store_ref_size(&part[i].ref);
	store_checkpoint_close(c);
}

static int list_add(void *arg, const char *id, uint64_t time)
{
	struct list *l = arg;
	void *more = realloc(l->e, (l->n + 1) * sizeof(*l->e));

	if (!more)
		return -ENOMEM;
	l->e = more;
	l->e[l->n] = (struct entry){ .time = time };
	snprintf(l->e[l->n].id, STORE_ID, "%s", id);
	entry_fill(l, &l->e[l->n++]);
	return 0;
}

static void list_free(struct list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		free(l->e[i].command);
		free(l->e[i].host);
	}
	free(l->e);
}

/* Bytes that need no room of their own; too small while gc has pages to remove. */
static uint64_t shared(uint64_t logical, const struct store_stats *st)
{
	uint64_t pages = st->pages * STORE_PAGE;

	return logical > pages ? logical - pages : 0;
}

static void time_text(char *to, size_t size, uint64_t ns)
{
	time_t t = ns / 1000000000;
	struct tm tm;

	if (!ns || !localtime_r(&t, &tm) || !strftime(to, size, "%Y-%m-%d %H:%M:%S", &tm))
		snprintf(to, size, "-");
}

static void row(const struct entry *e, bool sizes)
{
	char id[13], when[24], logical[16], distinct[16], alone[16], text[128];

	time_text(when, sizeof(when), e->time);
	if (e->bad) {
		printf("%-12s %-19s %8s  damaged: see 'singvgpu store verify'\n",
		       store_short(id, e->id), when, "-");
		return;
	}
	printf("%-12s %-19s %8s", store_short(id, e->id), when,
	       show_size(logical, e->size.logical));
	if (sizes)
		printf(" %8s %8s", show_size(distinct, e->size.distinct),
		       show_size(alone, e->size.alone));
	snprintf(text, sizeof(text), "%.127s", e->command ?: "-");
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	printf(" %5zu  %s\n", e->parts, text);
}

static void table(const struct list *l, const struct store_stats *st, bool sizes)
{
	char all[16], stored[16], saved[16], temporary[16];
	uint64_t logical = 0;

	printf("%-12s %-19s %8s", "ID", "TIME", "LOGICAL");
	if (sizes)
		printf(" %8s %8s", "DISTINCT", "ALONE");
	printf(" %5s  %s\n", "PARTS", "COMMAND");
	for (size_t i = 0; i < l->n; i++) {
		row(&l->e[i], sizes);
		logical += l->e[i].size.logical;
	}
	printf("%zu checkpoint%s: logical %s, stored %s, shared or zeros %s", l->n,
	       l->n == 1 ? "" : "s", show_size(all, logical),
	       show_size(stored, st->segment_bytes), show_size(saved, shared(logical, st)));
	if (st->temporary_bytes)
		printf("; not published yet, or left over: %s",
		       show_size(temporary, st->temporary_bytes));
	putchar('\n');
}

static void entry_json(struct json *j, const struct entry *e, bool sizes)
{
	json_open(j, NULL, '{');
	json_string(j, "id", e->id);
	json_uint(j, "time_ns", e->time);
	json_bool(j, "damaged", e->bad);
	if (!e->bad) {
		json_uint(j, "parts", e->parts);
		json_uint(j, "logical", e->size.logical);
		if (sizes) {
			json_uint(j, "data", e->size.data);
			json_uint(j, "distinct", e->size.distinct);
			json_uint(j, "alone", e->size.alone);
		}
		json_string(j, "command", e->command ?: "");
		json_string(j, "host", e->host ?: "");
	}
	json_close(j, '}');
}

static void list_json(const struct list *l, const struct store_stats *st, bool sizes)
{
	struct json j = { .out = stdout };
	uint64_t logical = 0;

	json_open(&j, NULL, '{');
	json_int(&j, "version", 1);
	json_string(&j, "store", store_dir(l->s));
	json_open(&j, "checkpoints", '[');
	for (size_t i = 0; i < l->n; i++) {
		entry_json(&j, &l->e[i], sizes);
		logical += l->e[i].size.logical;
	}
	json_close(&j, ']');
	json_uint(&j, "logical", logical);
	json_uint(&j, "stored", st->segment_bytes);
	json_uint(&j, "shared", shared(logical, st));
	json_uint(&j, "segments", st->segments);
	json_uint(&j, "pages", st->pages);
	json_uint(&j, "temporary", st->temporary_bytes);
	json_close(&j, '}');
}

/* Lists all checkpoints; sizes: with the sizes of their pages. */
static int list_make(struct list *l, bool sizes)
{
	int err = store_list(l->s, list_add, l);

	if (!err && sizes)
		err = list_sizes(l);
	if (err)
		say("%s", err == -ENOMEM ? "out of memory" : store_why()->text);
	return err;
}

int store_ls(const struct store_args *a)
{
	struct list l = { .s = store_args_open(a, NULL, 0) };
	struct store_stats st;
	int err;

	if (!l.s)
		return EXIT_OURS;
	err = list_make(&l, a->sizes);
	if (!err && (err = store_stats(l.s, &st)))
		say("%s", store_why()->text);
	if (!err && a->json)
		list_json(&l, &st, a->sizes);
	else if (!err)
		table(&l, &st, a->sizes);
	list_free(&l);
	store_close(l.s);
	return err ? EXIT_OURS : 0;
}

/* -------------------------------------------------------------------------------- show */

static void show_json(const struct store_checkpoint *c, const struct entry *e,
		      const struct kinds *kinds)
{
	struct json j = { .out = stdout };
	const struct store_part *part;
	size_t n = store_checkpoint_parts(c, &part);
	char hex[65];

	json_open(&j, NULL, '{');
	json_int(&j, "version", 1);
	json_string(&j, "id", e->id);
	json_uint(&j, "time_ns", e->time);
	json_bool(&j, "damaged", e->bad);
	json_uint(&j, "logical", e->size.logical);
	json_uint(&j, "data", e->size.data);
	json_uint(&j, "distinct", e->size.distinct);
	json_uint(&j, "alone", e->size.alone);
	kinds_json(kinds, &j);
	json_open(&j, "parts", '[');
	for (size_t i = 0; i < n; i++) {
		store_ref_hex(&part[i].ref, hex);
		json_open(&j, NULL, '{');
		json_string(&j, "name", part[i].name);
		json_uint(&j, "size", store_ref_size(&part[i].ref));
		json_string(&j, "ref", hex);
		json_close(&j, '}');
	}
	json_close(&j, ']');
	json_string(&j, "text", store_checkpoint_json(c));
	json_close(&j, '}');
}

static void show_text(const struct store_checkpoint *c, const struct entry *e,
		      const struct kinds *kinds)
{
	char when[24], logical[16], data[16], distinct[16], alone[16], size[16];
	const struct store_part *part;
	size_t n = store_checkpoint_parts(c, &part);

	time_text(when, sizeof(when), e->time);
	printf("checkpoint %s of %s%s\n", e->id, when,
	       e->bad ? ", damaged: see 'singvgpu store verify'" : "");
	printf("logical %s, of which data %s, of which distinct %s, of which here alone %s\n\n",
	       show_size(logical, e->size.logical), show_size(data, e->size.data),
	       show_size(distinct, e->size.distinct), show_size(alone, e->size.alone));
	kinds_text(kinds);
	for (size_t i = 0; i < n; i++)
		printf("%8s  %s\n", show_size(size, store_ref_size(&part[i].ref)), part[i].name);
	printf("\n%s\n", store_checkpoint_json(c));
}

int store_show(const struct store_args *a)
{
	struct list l = { .s = store_args_open(a, NULL, 0) };
	struct store_checkpoint *c = NULL;
	struct kinds kinds = { 0 };
	size_t i = 0;
	int err;

	if (!l.s)
		return EXIT_OURS;
	err = store_checkpoint_open(l.s, a->argc ? a->argv[0] : "latest", &c);
	if (err)
		say("%s", store_why()->text);
	else
		err = list_make(&l, true);
	while (!err && i < l.n && strcmp(l.e[i].id, store_checkpoint_id(c)))
		i++;
	if (!err && i == l.n) {
		say("checkpoint %s was removed meanwhile", store_checkpoint_id(c));
		err = -ENOENT;
	}
	/* A damaged one has no rows; what is damaged is said. */
	if (!err && !l.e[i].bad && kinds_count(l.s, c, &kinds) == -ENOMEM) {
		say("out of memory");
		err = -ENOMEM;
	}
	if (!err && a->json)
		show_json(c, &l.e[i], &kinds);
	else if (!err)
		show_text(c, &l.e[i], &kinds);
	kinds_free(&kinds);
	list_free(&l);
	store_checkpoint_close(c);
	store_close(l.s);
	return err ? EXIT_OURS : 0;
}
