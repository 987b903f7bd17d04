// SPDX-License-Identifier: Apache-2.0
/*
 * parse.c - reads a history, which may be anybody's, and refuses what is none
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_facts.h"
#include "history.h"

#define LINE_WORDS	16
#define EVENTS_MAX	(1u << 17)	/* more than a job's folder takes (keep.c) */

uint64_t past_count(const struct past *p, size_t frame, unsigned int rank, enum history_counter c)
{
	return p->count[(frame * p->ranks + rank) * HISTORY_COUNTERS + c];
}

void past_free(struct past *p)
{
	for (size_t i = 0; i < p->events; i++)
		free(p->event[i].phase);
	free(p->event);
	free(p->time);
	free(p->count);
	free(p->text);
	memset(p, 0, sizeof(*p));
}

/* ------------------------------------------------------------------------------- events */

/* A number of decimal digits alone, within limits; *bad is set otherwise. */
static uint64_t number(const char *word, uint64_t most, bool *bad)
{
	char *end;
	uint64_t n;

	errno = 0;
	n = strtoull(word, &end, 10);
	*bad |= *word < '0' || *word > '9' || *end || errno || n > most;
	return n;
}

static const struct {
	const char *key;
	int words;		/* at least */
} kinds[] = {
	[PAST_BEGIN] = { "begin", 7 }, [PAST_DEVICE] = { "device", 6 }, [PAST_COMM] = { "comm", 5 },
	[PAST_CHECKPOINT] = { "checkpoint", 11 }, [PAST_FAILED] = { "failed", 5 },
	[PAST_RESTORE] = { "restore", 8 }, [PAST_END] = { "end", 4 },
};

#define N_KINDS	(sizeof(kinds) / sizeof(kinds[0]))
#define TIME_MAX (UINT64_MAX / 2)
#define BYTES_MAX (UINT64_MAX / 4)
#define APART_MAX 3600000000000ull

static void set_checkpoint(struct past_event *e, char **w, bool *bad)
{
	e->ns = number(w[2], TIME_MAX, bad);
	e->still_ns = number(w[3], TIME_MAX, bad);
	e->stood_ns = number(w[4], TIME_MAX, bad);
	e->left = number(w[5], 1, bad);
	e->bytes = number(w[6], BYTES_MAX, bad);
	e->zeros = number(w[7], BYTES_MAX, bad);
	e->stored = number(w[8], BYTES_MAX, bad);
	e->id = w[9];
	e->store = w[10];
}

/* False: a word is no number, or too large a one. */
static bool set_event(struct past_event *e, char **w)
{
	bool bad = false;
	char *end;

	e->time_ns = number(w[1], TIME_MAX, &bad);
	switch (e->kind) {
	case PAST_BEGIN:
		e->version = w[2];
		e->host = w[3];
		e->id = w[4];
		e->number = number(w[5], HISTORY_RANKS, &bad);
		e->text = w[6];
		break;
	case PAST_DEVICE:
		e->rank = number(w[2], HISTORY_RANKS - 1, &bad);
		e->serial = number(w[3], INT32_MAX, &bad);
		e->number = number(w[4], INT32_MAX, &bad);
		e->text = w[5];
		break;
	case PAST_COMM:
		e->key = strtoull(w[2], &end, 16);
		e->number = number(w[3], INT32_MAX, &bad);
		e->text = w[4];
		bad |= *end || strspn(e->text, "0123456789,?") != strlen(e->text);
		break;
	case PAST_CHECKPOINT:
		set_checkpoint(e, w, &bad);
		break;
	case PAST_FAILED:
		e->ns = number(w[2], TIME_MAX, &bad);
		e->at = w[3];
		e->text = w[4];
		break;
	case PAST_RESTORE:
		e->ns = number(w[2], TIME_MAX, &bad);
		e->id = w[3];
		e->store = w[4];
		e->host = w[5];
		e->version = w[6];
		e->text = w[7];
		break;
	case PAST_END:
		e->number = number(w[2], 255, &bad);
		e->text = w[3];
		break;
	}
	return !bad;
}

static int add_phase(struct past *p, char **w)
{
	struct past_event *e = p->events ? &p->event[p->events - 1] : NULL;
	struct past_phase *more, *to;
	bool bad = false;

	if (!e || e->phases == HISTORY_PHASES || strlen(w[1]) >= sizeof(to->name))
		return -EBADMSG;
	more = realloc(e->phase, (e->phases + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	e->phase = more;
	to = &more[e->phases++];
	memset(to, 0, sizeof(*to));
	strcpy(to->name, w[1]);
	to->start_ns = number(w[2], TIME_MAX, &bad);
	to->ns = number(w[3], TIME_MAX, &bad);
	to->bytes = number(w[4], BYTES_MAX, &bad);
	to->stored = number(w[5], BYTES_MAX, &bad);
	return bad ? -EBADMSG : 0;
}

static int add_event(struct past *p, enum past_kind kind, char **w, size_t *room)
{
	struct past_event *more;

	if (p->events == EVENTS_MAX)
		return -EBADMSG;
	if (p->events == *room) {
		*room = 2 * *room + 64;
		more = realloc(p->event, *room * sizeof(*more));
		if (!more)
			return -ENOMEM;
		p->event = more;
	}
	p->event[p->events] = (struct past_event){ .kind = kind };
	if (!set_event(&p->event[p->events], w))
		return -EBADMSG;
	p->events++;
	return 0;
}

static int read_line(struct past *p, char *line, size_t *room)
{
	char *w[LINE_WORDS];
	int n = facts_words(line, w, LINE_WORDS);

	if (n && !strcmp(w[0], "full"))
		p->full = true;
	if (n && !strcmp(w[0], "phase"))
		return n < 6 ? -EBADMSG : add_phase(p, w);
	for (size_t k = 0; k < N_KINDS && n; k++)
		if (!strcmp(w[0], kinds[k].key))
			return n < kinds[k].words ? -EBADMSG : add_event(p, k, w, room);
	return 0;
}

static int read_events(struct past *p, const char *text, size_t len, struct why *why)
{
	size_t room = 0, number = 0;

	for (size_t i = 0; i < len; i++)
		if (text[i] != '\n' && (text[i] < ' ' || text[i] > '~'))
			return why_set(why, -EBADMSG, "byte %zu of its events is no text", i);
	if (len && text[len - 1] != '\n')
		return why_set(why, -EBADMSG, "its last event is cut off");
	p->text = strndup(text, len);
	if (!p->text)
		return -ENOMEM;
	for (char *line = p->text, *next; line && *line; line = next) {
		int err;

		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		number++;
		err = read_line(p, line, &room);
		if (err == -EBADMSG)
			why_set(why, err, "line %zu of its events is none", number);
		if (err)
			return err;
	}
	return 0;
}

/* ------------------------------------------------------------------------------ samples */

/*
 * The times of frames ascend. When a clock has been set back, its frames are shifted behind the last one, until they
 * are later by themselves. 0: it is no time.
 */
static uint64_t ascending(uint64_t time, uint64_t last, uint64_t apart, uint64_t *shift)
{
	if (time > TIME_MAX)
		return 0;
	if (time > last)
		*shift = 0;
	else if (time + *shift <= last)
		*shift = last - time + apart;
	return time + *shift <= TIME_MAX ? time + *shift : 0;
}

static int read_samples(struct past *p, const char *data, size_t len, struct why *why)
{
	struct history_head h;
	uint64_t last = 0, shift = 0, apart;
	size_t size, n;

	if (!len)
		return 0;
	if (len < sizeof(h))
		return why_set(why, -EBADMSG, "its samples have no head");
	memcpy(&h, data, sizeof(h));
	if (h.magic != HISTORY_MAGIC)
		return why_set(why, -EBADMSG, "its samples are none");
	if (h.version != HISTORY_VERSION)
		return why_set(why, -EPROTONOSUPPORT, "its samples are of version %u, this program reads "
			       "version %u", h.version, HISTORY_VERSION);
	if (!h.ranks || h.ranks > HISTORY_RANKS || !h.counters || h.counters > 64)
		return why_set(why, -EBADMSG, "its samples are of %u ranks, with %u numbers each", h.ranks,
			       h.counters);
	size = (1 + (size_t)h.ranks * h.counters) * sizeof(uint64_t);
	n = (len - sizeof(h)) / size;
	p->time = calloc(n + 1, sizeof(*p->time));
	p->count = calloc(n * h.ranks + 1, HISTORY_COUNTERS * sizeof(*p->count));
	if (!p->time || !p->count)
		return -ENOMEM;
	p->ranks = h.ranks;
	p->apart_ns = h.apart_ns;
	apart = h.apart_ns && h.apart_ns < APART_MAX ? h.apart_ns : APART_MAX;
	for (size_t i = 0; i < n; i++) {
		const char *at = data + sizeof(h) + i * size;
		uint64_t *to = p->count + p->frames * h.ranks * HISTORY_COUNTERS;
		size_t same = h.counters < HISTORY_COUNTERS ? h.counters : HISTORY_COUNTERS;
		uint64_t time;

		memcpy(&time, at, sizeof(time));
		time = ascending(time, last, apart, &shift);
		if (!time)
			continue;
		for (uint32_t r = 0; r < h.ranks; r++)
			memcpy(to + r * HISTORY_COUNTERS, at + (1 + r * h.counters) * sizeof(uint64_t),
			       same * sizeof(uint64_t));
		p->time[p->frames++] = last = time;
	}
	return 0;
}

int past_read(struct past *p, const char *data, size_t len, struct why *why)
{
	unsigned long version, events, samples;
	int used = 0, err;

	memset(p, 0, sizeof(*p));
	if (len > HISTORY_MAX)
		return why_set(why, -EBADMSG, "it has %zu bytes, more than any", len);
	/* Text that ends with a NUL, which data has behind it (history_pack()). */
	if (sscanf(data, "singvgpu-history %3lu %9lu %9lu%n", &version, &events, &samples, &used) != 3 ||
	    (size_t)used >= len || data[used] != '\n')
		return why_set(why, -EBADMSG, "it does not begin as one does");
	if (version != HISTORY_VERSION)
		return why_set(why, -EPROTONOSUPPORT, "it is of version %lu, this program reads version %u",
			       version, HISTORY_VERSION);
	used++;
	/* scanf takes numbers with a minus, too. */
	if (events > len || samples > len || events + samples != len - used)
		return why_set(why, -EBADMSG, "it has %zu bytes, not the %lu that it should have",
			       len - used, events + samples);
	p->head = used;
	p->events_len = events;
	p->samples_len = samples;
	err = read_events(p, data + used, events, why) ?:
	      read_samples(p, data + used + events, samples, why);
	if (err == -ENOMEM)
		why_set(why, err, "out of memory");
	return err;
}
