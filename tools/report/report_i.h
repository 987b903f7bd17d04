/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_i.h - the page of `singvgpu report`: from a history and a store to HTML
 *
 *   a history (history.h) ─► gather.c: struct report ─► page.c: sections ─► html.c, chart.c
 *
 * Histories and stores may be anybody's. All that is taken from them is bounded by gather.c, and
 * text reaches the page only through html_text(), which leaves no byte that means something in HTML
 * or is not allowed in XML.
 */
#ifndef REPORT_I_H
#define REPORT_I_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "history.h"
#include "store_tool_i.h"

#define SHOWN_LINES	8	/* ranks with a line of their own */
#define SHOWN_BARS	40	/* checkpoints with a bar and a row, the latest */
#define SHOWN_RANKS	64	/* ranks with a row */
#define SHOWN_MARKS	400	/* checkpoints on the time axis */
#define LIVES_MAX	256

/* ----------------------------------------------------------------------------- gather.c */

/* A time in which the job ran; behind it, it was away until the next one. */
struct life {
	uint64_t from, to;	/* ns since 1970 */
	double run;		/* seconds that it had run before */
	double at;		/* seconds on the axis, on which times away are cut short */
	double away;		/* seconds before it, since the last one */
};

enum kind { KIND_PROGRAM, KIND_DEVICE, KIND_FILES, KIND_COMMS, KINDS };

/* Where the bytes of a checkpoint were before. */
enum origin { ORIGIN_NEW, ORIGIN_WITHIN, ORIGIN_EARLIER, ORIGIN_SHARED, ORIGINS };

/* What the job stood still for. */
enum cause { CAUSE_DRAIN, CAUSE_DEVICE, CAUSE_PROGRAM, CAUSE_CHANNEL, CAUSE_FILES, CAUSE_PUBLISH,
	     CAUSE_OTHER, CAUSES };

struct taken {			/* a checkpoint */
	const struct past_event *e;
	int number;		/* from 1 */
	bool divided;		/* the store has it: kind and origin are its; else those of the phases */
	bool after_gone;	/* an earlier one is not, which may have had what seems to be new in this one */
	struct kinds kinds;	/* rows, if it is */
	uint64_t kind[KINDS], origin[ORIGINS], bytes;
	double stood, cause[CAUSES];
};

struct brought {		/* a restore */
	const struct past_event *e;
	int number;
	double away, cause[CAUSES];
};

struct report {
	const struct past *past;
	const char *id, *state, *more;	/* more: what is in flight, a line each, or "" */
	unsigned int ranks;
	uint64_t began, ended;	/* ns since 1970 */
	struct life life[LIVES_MAX];
	int lives;
	double run, axis;	/* seconds in all */
	struct taken *taken;
	int n_taken;
	struct brought *brought;
	int n_brought, n_failed;
	double stood;		/* seconds, for checkpoints after which it ran on, and restores */
	double away;		/* seconds between lives */
	const char *undivided;	/* why checkpoints were not divided by the store, or NULL */
};

/*
 * Works out what the page shows. store: the folder in which checkpoints are looked up first, or NULL; those
 * that their events name follow. -ENOMEM, -ENODATA: the history has no beginning.
 */
int report_gather(struct report *r, const struct past *past, const char *store);
void report_free(struct report *r);

/* Where a moment is on the axis. */
double report_at(const struct report *r, uint64_t time_ns);
/* The life to which a frame belongs, though it may be from after its end; or -1. */
int report_life(const struct report *r, uint64_t time_ns);

/* ------------------------------------------------------------------------------- html.c */

void html_text(FILE *out, const char *text);
/* A cell with a number: text to read, and the value itself as data-n. */
void html_bytes(FILE *out, uint64_t bytes);
void html_count(FILE *out, uint64_t n);
void html_seconds(FILE *out, double s);
void html_none(FILE *out);
/* "1.5 MiB", "12.3 s", "3 min 20 s"; return buf[32]. */
char *html_show_count(char *buf, uint64_t n);	/* 1,234,567 */
char *html_show_bytes(char *buf, uint64_t bytes);
char *html_show_seconds(char *buf, double s);
char *html_show_time(char *buf, uint64_t ns);	/* buf[40]: of the clock */

/* ------------------------------------------------------------------------------ chart.c */

struct chart_line {
	char name[48];
	int colour;
	bool thin;
	const double *y;	/* n values; NaN: none, the line is broken */
};

struct chart_mark {
	double at, to;		/* on the axis; at == to: a line alone */
	int number;
	bool restore;
};

/* Lines over time. x: n places on the axis; band: lowest and highest, or NULL. */
void chart_lines(FILE *out, const struct report *r, const char *id, const char *title, const char *unit,
		 const double *x, size_t n, const struct chart_line *line, int lines,
		 const double *low, const double *high, const struct chart_mark *mark, int marks);

struct chart_bar {
	char name[16];
	double part[8];
};

/* Bars upright, of parts one above the other, with a legend of those that are somewhere. */
void chart_bars(FILE *out, const char *id, const char *title, const char *x_axis, bool bytes,
		const struct chart_bar *bar, int bars, const char *const *part, int parts);
/* The same lying, one below the other. */
void chart_rows(FILE *out, const char *id, const char *title, bool bytes, const struct chart_bar *bar,
		int bars, const char *const *part, int parts);

/* ------------------------------------------------------------------------------- page.c */

/* Writes the page. 0 or -ENOMEM; whether it could be written is for the caller to see. */
int report_page(FILE *out, const struct report *r);

#endif
