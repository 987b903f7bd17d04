// SPDX-License-Identifier: Apache-2.0
/*
 * page.c - the page: the job's facts, then a section each for what it did, its checkpoints, and its ranks
 *
 * HTML that is XML, too, with nothing from elsewhere and no script. Each chart is followed by a table of
 * what it shows.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_i.h"

static const char style[] =
"<style>\n"
":root{--fg:#1b1d21;--dim:#5a606b;--bg:#fff;--soft:#f3f4f7;--line:#d9dce2;--mark:#8a5a00;--still:#f3d9a4;"
"--c0:#2563b8;--c1:#c2410c;--c2:#0f7a52;--c3:#9d2a8e;--c4:#8a6d00;--c5:#0a7c93;--c6:#b4234a;--c7:#565b66}\n"
"@media(prefers-color-scheme:dark){:root{--fg:#e8eaee;--dim:#a3a9b5;--bg:#15171b;--soft:#20242b;--line:#3a404b;"
"--mark:#e5b454;--still:#5b471c;--c0:#7ab2ff;--c1:#ff9d5c;--c2:#5cd6a2;--c3:#e58be0;--c4:#e6cb5a;--c5:#5fd0e6;"
"--c6:#ff8aa5;--c7:#b4bac6}}\n"
"html{color-scheme:light dark}"
"body{margin:0 auto;padding:1rem;max-width:62rem;font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg)}\n"
"h1{font-size:1.45rem;margin:.2rem 0 .6rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2rem 0 .3rem;"
"border-top:1px solid var(--line);padding-top:.8rem}h3{font-size:1rem;margin:1.2rem 0 .2rem}p{margin:.4rem 0}\n"
".short{background:var(--soft);border-radius:8px;padding:.6rem 1rem;margin:.8rem 0}.short p{margin:.3rem 0}"
".dim{color:var(--dim)}code{font:13px/1.4 ui-monospace,monospace;overflow-wrap:anywhere}\n"
"#checkpoints{font-size:12.5px}.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13.5px;margin:.5rem 0}"
"caption{text-align:left;color:var(--dim);padding:.2rem 0}th,td{padding:.18rem .45rem;border-bottom:1px solid var(--line);"
"text-align:left;vertical-align:top}thead th{vertical-align:bottom}td.n,td.i{white-space:nowrap}td.n,th.n{text-align:right;"
"font-variant-numeric:tabular-nums}th{font-weight:600}.facts th{white-space:nowrap}.facts td{overflow-wrap:anywhere}\n"
"details{margin:.4rem 0}summary{cursor:pointer;color:var(--c0)}\n"
".chart{overflow-x:auto}.chart svg{display:block;width:100%;min-width:42rem;max-width:56rem;height:auto}"
".keys{margin:.5rem 0 .1rem;font-size:13px}.key{display:inline-block;margin-right:1rem;white-space:nowrap}"
".swatch{width:14px;height:10px;margin-right:.35rem}\n"
"svg .t{font:12px system-ui,sans-serif;fill:var(--dim)}svg .s{font-size:10.5px;fill:var(--mark)}"
"svg .m{text-anchor:middle}svg .e{text-anchor:end}.grid{stroke:var(--line);fill:none}.axis{stroke:var(--dim);fill:none}"
".line{fill:none;stroke-width:1.7;stroke-linejoin:round;stroke-linecap:round}"
".mark{stroke:var(--mark);stroke-width:1;fill:none}.back{stroke:var(--mark);stroke-width:1.5;stroke-dasharray:4 3;fill:none}"
".still{fill:var(--still)}.away{fill:url(#away)}.band{fill:var(--c0);fill-opacity:.2;stroke:none}\n"
".l0{stroke:var(--c0)}.l1{stroke:var(--c1);stroke-dasharray:7 2}.l2{stroke:var(--c2)}.l3{stroke:var(--c3);stroke-dasharray:7 2}"
".l4{stroke:var(--c4)}.l5{stroke:var(--c5);stroke-dasharray:7 2}.l6{stroke:var(--c6)}.l7{stroke:var(--c7);stroke-dasharray:7 2}\n"
"rect.b0{fill:var(--c0)}rect.b1{fill:var(--c1)}rect.b2{fill:var(--c2)}rect.b3{fill:var(--c3)}rect.b4{fill:var(--c4)}"
"rect.b5{fill:var(--c5)}rect.b6{fill:var(--c7)}rect.b7{fill:var(--c6)}.swatch path{stroke-width:2}"
".swatch .b0,.swatch .b1,.swatch .b2,.swatch .b3,.swatch .b4,.swatch .b5,.swatch .b6,.swatch .b7{stroke-width:10}"
".b0{stroke:var(--c0)}.b1{stroke:var(--c1)}.b2{stroke:var(--c2)}.b3{stroke:var(--c3)}.b4{stroke:var(--c4)}"
".b5{stroke:var(--c5)}.b6{stroke:var(--c7)}.b7{stroke:var(--c6)}rect{stroke:none!important}\n"
"@media print{body{max-width:none;padding:0;font-size:11pt}.chart svg{min-width:0}.chart,.wide{overflow:visible}"
"svg,tr{break-inside:avoid}h2,h3,.keys{break-after:avoid}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}"
"table{font-size:8.5pt}#checkpoints,#stood{font-size:7pt}th,td{padding:.1rem .3rem}::details-content{content-visibility:visible;block-size:auto}}\n"
"</style>\n";

static const char patterns[] =
"<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs><pattern id=\"away\" "
"width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><path d=\"M0 0v6\" "
"style=\"stroke:var(--dim);stroke-width:2\"/></pattern></defs></svg>\n";

static void head_of(FILE *out, const struct report *r)
{
	fputs("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
	      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
	      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
	      "<meta name=\"generator\" content=\"singvgpu " SINGVGPU_VERSION "\"/>\n<title>Job ", out);
	html_text(out, r->id);
	fputs(" - singvgpu report</title>\n", out);
	fputs(style, out);
	fputs("</head><body>\n", out);
	fputs(patterns, out);
	fputs("<h1>Job ", out);
	html_text(out, r->id);
	fputs("</h1>\n", out);
}

static void heads(FILE *out, const char *const *name, int n, int numbers_from)
{
	fputs("<thead><tr>", out);
	for (int i = 0; i < n; i++)
		fprintf(out, "<th scope=\"col\"%s>%s</th>", i >= numbers_from ? " class=\"n\"" : "", name[i]);
	fputs("</tr></thead>\n", out);
}

static void row_of(FILE *out, const char *name)
{
	fprintf(out, "<tr><th scope=\"row\">%s</th>", name);
}

/* ------------------------------------------------------------------------------- facts */

static void fact(FILE *out, const char *name, const char *text, bool code)
{
	row_of(out, name);
	fputs(code ? "<td><code>" : "<td>", out);
	html_text(out, text);
	fputs(code ? "</code></td></tr>\n" : "</td></tr>\n", out);
}

/* The devices of the job's last life, each once: "rank 0: device 0, name". */
static void devices(FILE *out, const struct report *r)
{
	const struct past_event *is[SHOWN_RANKS];
	const struct past *p = r->past;
	size_t from = 0;
	int shown = 0;

	/* Of a life that has just begun, none is known yet. */
	for (size_t i = 0, restored = 0; i < p->events; i++) {
		restored = p->event[i].kind == PAST_RESTORE ? i : restored;
		from = p->event[i].kind == PAST_DEVICE ? restored : from;
	}
	row_of(out, "devices");
	fputs("<td>", out);
	for (size_t i = from; i < p->events; i++) {
		const struct past_event *e = &p->event[i];
		bool again = e->kind != PAST_DEVICE;

		for (int k = 0; k < shown && !again; k++)
			again = is[k]->rank == e->rank && is[k]->number == e->number;
		if (again)
			continue;
		if (shown == SHOWN_RANKS) {
			fputs("<br/>and more", out);
			break;
		}
		is[shown++] = e;
		fprintf(out, "%srank %d: device %d, ", shown > 1 ? "<br/>" : "", e->rank, e->number);
		html_text(out, e->text);
	}
	fputs(shown ? "</td></tr>\n" : "none has been used</td></tr>\n", out);
}

static int by_key(const void *a, const void *b)
{
	const struct past_event *x = *(const struct past_event *const *)a;
	const struct past_event *y = *(const struct past_event *const *)b;

	return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : (x > y) - (x < y);
}

static int by_place(const void *a, const void *b)
{
	const struct past_event *x = *(const struct past_event *const *)a;
	const struct past_event *y = *(const struct past_event *const *)b;

	return (x > y) - (x < y);
}

/* The first event of each communicator, in their order; malloc'ed. A forged history has very many. */
static const struct past_event **first_comms(const struct past *p, size_t *n)
{
	const struct past_event **e = calloc(p->events + 1, sizeof(const struct past_event *));
	size_t all = 0;

	*n = 0;
	for (size_t i = 0; i < p->events && e; i++)
		if (p->event[i].kind == PAST_COMM)
			e[all++] = &p->event[i];
	if (all)
		qsort(e, all, sizeof(const struct past_event *), by_key);
	for (size_t i = 0; i < all; i++)
		if (!i || e[i]->key != e[*n - 1]->key)
			e[(*n)++] = e[i];
	if (*n)
		qsort(e, *n, sizeof(const struct past_event *), by_place);
	return e;
}

static void communicators(FILE *out, const struct report *r)
{
	const struct past_event **comm;
	int shown = 0, alone = 0;
	size_t n;

	comm = first_comms(r->past, &n);
	row_of(out, "communicators");
	fputs("<td>", out);
	for (size_t i = 0; i < n; i++) {
		const struct past_event *e = comm[i];

		if (e->number < 2) {
			alone++;
			continue;
		}
		if (shown++ >= 16)
			continue;
		fprintf(out, "%s%08llx: %d ranks (", shown > 1 ? "<br/>" : "",
			(unsigned long long)(e->key >> 32), e->number);
		html_text(out, e->text);
		putc(')', out);
	}
	if (shown > 16)
		fprintf(out, "<br/>and %d more", shown - 16);
	if (alone)
		fprintf(out, "%s%d of one rank", shown ? "<br/>" : "", alone);
	fputs(shown || alone ? "</td></tr>\n" : "none</td></tr>\n", out);
	free(comm);
}

static void facts(FILE *out, const struct report *r)
{
	const struct past *p = r->past;
	const struct past_event *first = NULL, *end = NULL;
	const char *version = "?", *host = "?";
	char text[512], time[40], span[32];

	for (size_t i = 0; i < p->events; i++) {
		const struct past_event *e = &p->event[i];

		if (e->kind == PAST_BEGIN && !first)
			first = e;
		if (e->kind == PAST_BEGIN || e->kind == PAST_RESTORE) {
			version = e->version;
			host = e->host;
			end = NULL;
		}
		if (e->kind == PAST_END)
			end = e;
	}
	fputs("<div class=\"wide\"><table class=\"facts\"><tbody>\n", out);
	fact(out, "command", first ? first->text : "?", true);
	if (r->state)
		snprintf(text, sizeof(text), "%s", r->state);
	else if (end)
		snprintf(text, sizeof(text), "%.300s, exit status %d, %s", end->text, end->number,
			 html_show_time(time, end->time_ns));
	else
		snprintf(text, sizeof(text), "its end is not known");
	fact(out, "state", text, false);
	fact(out, "started", html_show_time(time, r->began), false);
	snprintf(text, sizeof(text), "%s, in %d part%s", html_show_seconds(span, r->run), r->lives,
		 r->lives == 1 ? "" : "s");
	fact(out, "has run for", r->lives > 1 ? text : span, false);
	snprintf(text, sizeof(text), "%u", r->ranks);
	fact(out, "ranks", text, false);
	devices(out, r);
	communicators(out, r);
	fact(out, "host", host, false);
	fact(out, "singvgpu", version, false);
	fputs("</tbody></table></div>\n", out);
	if (r->more && *r->more) {
		fputs("<p>Under way now: ", out);
		html_text(out, r->more);
		fputs("</p>\n", out);
	}
}

/* -------------------------------------------------------------------------- what it did */

struct rates {
	double *x, *y;		/* y: [line][n] */
	double *low, *high;	/* over the ranks; of many ranks only */
	size_t n;
	int lines;
};

/* A rank's counter between two frames, for each of so many seconds. */
static double rate(const struct past *p, size_t from, size_t to, unsigned int rank, enum history_counter c,
		   double seconds)
{
	uint64_t a = past_count(p, from, rank, c), b = past_count(p, to, rank, c);

	return b > a ? (b - a) / seconds : 0;
}

static void put_rates(const struct past *p, struct rates *q, size_t room, size_t from, size_t to,
		      enum history_counter c, double seconds)
{
	double sum = 0, low = INFINITY, high = 0;

	for (unsigned int k = 0; k < p->ranks; k++) {
		double v = rate(p, from, to, k, c, seconds);

		if (p->ranks <= SHOWN_LINES)
			q->y[k * room + q->n] = v;
		sum += v;
		low = v < low ? v : low;
		high = v > high ? v : high;
	}
	if (p->ranks > SHOWN_LINES) {
		q->y[q->n] = sum / p->ranks;
		q->low[q->n] = low;
		q->high[q->n] = high;
	}
}

/* Rates of all ranks at up to some hundred places; breaks between lives are NaN. */
static int rates_of(const struct report *r, struct rates *q, enum history_counter c)
{
	const struct past *p = r->past;
	size_t most = 360, each = p->frames / most + 1, room = p->frames / each + 2 * r->lives + 2;
	size_t from = 0;
	double seconds;
	int life = -1;

	q->lines = p->ranks > SHOWN_LINES ? 1 : p->ranks;
	q->n = 0;
	q->x = calloc(room, sizeof(double));
	q->y = calloc(room * (q->lines ?: 1), sizeof(double));
	q->low = calloc(room, sizeof(double));
	q->high = calloc(room, sizeof(double));
	if (!q->x || !q->y || !q->low || !q->high)
		return -ENOMEM;
	for (size_t i = 0; i < p->frames && q->n + 1 < room; i++) {
		int now = report_life(r, p->time[i]);

		if (now < 0)
			continue;
		if (now != life) {		/* a new one */
			if (life >= 0) {
				q->x[q->n] = r->life[now].at;
				for (int k = 0; k < q->lines; k++)
					q->y[k * room + q->n] = NAN;
				q->low[q->n] = q->high[q->n] = NAN;
				q->n++;
			}
			life = now;
			from = i;
			continue;
		}
		if (i - from < each && i + 1 < p->frames && report_life(r, p->time[i + 1]) == life)
			continue;
		seconds = report_at(r, p->time[i]) - report_at(r, p->time[from]);
		if (seconds > 0) {		/* else the job stands still already */
			put_rates(p, q, room, from, i, c, seconds);
			q->x[q->n++] = (report_at(r, p->time[from]) + report_at(r, p->time[i])) / 2;
		}
		from = i;
	}
	/* The lines are drawn as arrays of n. */
	for (int k = 1; k < q->lines; k++)
		memmove(q->y + k * q->n, q->y + k * room, q->n * sizeof(double));
	return 0;
}

static void rates_free(struct rates *q)
{
	free(q->x);
	free(q->y);
	free(q->low);
	free(q->high);
}

static size_t marks_of(const struct report *r, struct chart_mark *mark)
{
	size_t n = 0;
	int first = r->n_taken > SHOWN_MARKS / 2 ? r->n_taken - SHOWN_MARKS / 2 : 0;

	for (int i = first; i < r->n_taken; i++) {
		const struct past_event *e = r->taken[i].e;
		uint64_t from = e->time_ns + e->still_ns;

		mark[n++] = (struct chart_mark){ .at = report_at(r, from), .number = r->taken[i].number,
			.to = e->left ? report_at(r, from + e->stood_ns) : report_at(r, from) };
	}
	first = r->n_brought > SHOWN_MARKS / 2 ? r->n_brought - SHOWN_MARKS / 2 : 0;
	for (int i = first; i < r->n_brought; i++) {
		const struct past_event *e = r->brought[i].e;
		double at = report_at(r, e->time_ns + e->ns);

		mark[n++] = (struct chart_mark){ .at = at, .to = at, .number = r->brought[i].number,
						 .restore = true };
	}
	return n;
}

/* The same as a table, of some rows over the whole time. */
static void rates_table(FILE *out, const struct report *r, const struct rates *q, const char *unit)
{
	const char *const many[] = { "time run", "lowest rank", "mean", "highest rank" };
	const int rows = 12;

	fprintf(out, "<details><summary>The same as a table</summary><div class=\"wide\"><table><caption>%s, "
		"mean of each part of the time</caption><thead><tr><th scope=\"col\">time on the axis</th>", unit);
	for (int k = 0; k < q->lines && !q->low; k++)
		fprintf(out, "<th scope=\"col\" class=\"n\">rank %d</th>", k);
	for (int k = 1; k < 4 && q->low; k++)
		fprintf(out, "<th scope=\"col\" class=\"n\">%s</th>", many[k]);
	fputs("</tr></thead><tbody>\n", out);
	for (int i = 0; i < rows; i++) {
		double from = r->axis * i / rows, to = r->axis * (i + 1) / rows, sum[SHOWN_LINES + 3] = { 0 };
		int lines = q->low ? 3 : q->lines, n = 0;
		char a[32], b[32];

		for (size_t k = 0; k < q->n; k++) {
			if (q->x[k] < from || q->x[k] >= to || !isfinite(q->y[k]))
				continue;
			n++;
			for (int l = 0; l < lines; l++)
				sum[l] += !q->low ? q->y[l * q->n + k] : l == 0 ? q->low[k] :
					  l == 1 ? q->y[k] : q->high[k];
		}
		if (!n)
			continue;
		fprintf(out, "<tr><th scope=\"row\">%s to %s</th>", html_show_seconds(a, from),
			html_show_seconds(b, to));
		for (int l = 0; l < lines; l++)
			fprintf(out, "<td class=\"n\">%.*f</td>", sum[l] / n < 100, sum[l] / n);
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table></div></details>\n", out);
}

static int over_time(FILE *out, const struct report *r, enum history_counter c, const char *id,
		     const char *heading, const char *unit)
{
	struct chart_mark *mark = calloc(SHOWN_MARKS + 2, sizeof(*mark));
	struct chart_line line[SHOWN_LINES] = { 0 };
	struct rates q = { 0 };
	int err = mark ? rates_of(r, &q, c) : -ENOMEM;
	bool many = r->past->ranks > SHOWN_LINES;

	fprintf(out, "<h3>%s</h3>\n", heading);
	if (!err && !q.n) {
		fputs("<p class=\"dim\">The job has not run for long enough.</p>\n", out);
	} else if (!err) {
		for (int k = 0; k < q.lines; k++) {
			line[k] = (struct chart_line){ .colour = k, .y = q.y + k * q.n, .thin = q.lines > 4 };
			snprintf(line[k].name, sizeof(line[k].name), many ? "mean of the ranks" : "rank %d", k);
		}
		chart_lines(out, r, id, heading, unit, q.x, q.n, line, q.lines, many ? q.low : NULL,
			    many ? q.high : NULL, mark, marks_of(r, mark));
		if (!many) {
			free(q.low);
			q.low = NULL;
		}
		rates_table(out, r, &q, heading);
	}
	rates_free(&q);
	free(mark);
	return err;
}

/* The last frame's sum over the ranks. */
static uint64_t total(const struct past *p, enum history_counter c)
{
	uint64_t sum = 0;

	for (unsigned int k = 0; k < p->ranks && p->frames; k++)
		sum += past_count(p, p->frames - 1, k, c);
	return sum;
}

static void totals(FILE *out, const struct report *r)
{
	static const char *const name[] = { "rank", "launches", "calls", "collectives", "to the device",
					    "to the host", "device memory, most" };
	const struct past *p = r->past;
	unsigned int shown = p->ranks < SHOWN_RANKS ? p->ranks : SHOWN_RANKS;

	fputs("<div class=\"wide\"><table id=\"totals\"><caption>In all, by rank</caption>", out);
	heads(out, name, 7, 1);
	fputs("<tbody>\n", out);
	for (unsigned int k = 0; k < shown && p->frames; k++) {
		uint64_t most = 0;

		for (size_t i = 0; i < p->frames; i++)
			if (past_count(p, i, k, HISTORY_MEMORY) > most)
				most = past_count(p, i, k, HISTORY_MEMORY);
		fprintf(out, "<tr><th scope=\"row\">%u</th>", k);
		html_count(out, past_count(p, p->frames - 1, k, HISTORY_LAUNCHES));
		html_count(out, past_count(p, p->frames - 1, k, HISTORY_CALLS));
		html_count(out, past_count(p, p->frames - 1, k, HISTORY_COLLECTIVES));
		html_bytes(out, past_count(p, p->frames - 1, k, HISTORY_TO_DEVICE));
		html_bytes(out, past_count(p, p->frames - 1, k, HISTORY_TO_HOST));
		html_bytes(out, most);
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table></div>\n", out);
	if (p->ranks > shown)
		fprintf(out, "<p class=\"dim\">The first %u of %u ranks.</p>\n", shown, p->ranks);
}

static int what_it_did(FILE *out, const struct report *r)
{
	int err;

	fputs("<h2 id=\"did\">What the job did</h2>\n", out);
	if (!r->past->frames) {
		fputs("<p>There are no samples of it.</p>\n", out);
		return 0;
	}
	fputs("<p class=\"dim\">No steps are known to singvgpu, so kernel launches and collectives stand for them. ", out);
	if (r->n_taken)
		fputs("Numbered lines are checkpoints, with the time that the job stood still for each. ", out);
	if (r->n_brought)
		fputs("R1 and so on are restores or moves. ", out);
	fputs("</p>\n", out);
	err = over_time(out, r, HISTORY_LAUNCHES, "launches", "Launches of kernels and collectives per second, by rank",
			"launches per second");
	if (!err && total(r->past, HISTORY_COLLECTIVES))
		err = over_time(out, r, HISTORY_COLLECTIVES, "collectives", "Collectives per second, by rank",
				"collectives per second");
	if (!err)
		totals(out, r);
	return err;
}

/* -------------------------------------------------------------------------- checkpoints */

static const char *const kind_names[] = { "program", "device", "files", "communicators" };
static const char *const origin_names[] = { "new", "also elsewhere in this checkpoint", "in earlier checkpoints",
					    "shared, not known with what" };
static const char *const cause_names[] = { "device drained", "device saved or filled", "processes",
					   "channels and pinned memory", "files", "published", "other" };

static void bytes_charts(FILE *out, const struct report *r, int first)
{
	struct chart_bar bar[SHOWN_BARS] = { 0 };
	int n = 0;

	for (int i = first; i < r->n_taken; i++, n++) {
		snprintf(bar[n].name, sizeof(bar[n].name), "%d", r->taken[i].number);
		for (int k = 0; k < KINDS; k++)
			bar[n].part[k] = r->taken[i].kind[k];
	}
	fputs("<h3>Bytes of each checkpoint, by kind</h3>\n", out);
	chart_bars(out, "kinds", "Bytes of each checkpoint, by kind", "checkpoint", true, bar, n, kind_names, KINDS);
	n = 0;
	memset(bar, 0, sizeof(bar));
	for (int i = first; i < r->n_taken; i++, n++) {
		snprintf(bar[n].name, sizeof(bar[n].name), "%d", r->taken[i].number);
		for (int k = 0; k < ORIGINS; k++)
			bar[n].part[k] = r->taken[i].origin[k];
	}
	fputs("<h3>What of it was new</h3>\n", out);
	chart_bars(out, "origins", "Different pages of each checkpoint: new, or there before", "checkpoint", true, bar,
		   n, origin_names, ORIGINS);
}

static void bytes_table(FILE *out, const struct report *r, int first)
{
	static const char *const name[] = { "checkpoint", "id", "time run", "program", "device", "files",
					    "communi&#173;cators", "in all", "new", "elsewhere in it",
					    "earlier ones", "stood still", "took" };
	char text[32];

	fputs("<div class=\"wide\"><table id=\"checkpoints\"><caption>The checkpoints. Bytes without zeros; of kinds, as "
	      "the ranks have them; of new and shared ones, each different page once a rank</caption>", out);
	heads(out, name, 13, 2);
	fputs("<tbody>\n", out);
	for (int i = first; i < r->n_taken; i++) {
		const struct taken *t = &r->taken[i];
		int life = 0;

		while (life + 1 < r->lives && t->e->time_ns >= r->life[life + 1].from)
			life++;
		fprintf(out, "<tr><th scope=\"row\">%d</th><td class=\"i\"><code>", t->number);
		snprintf(text, sizeof(text), "%.12s", strcmp(t->e->id, "-") ? t->e->id : "this one");
		html_text(out, text);
		fprintf(out, "</code></td><td class=\"n\">%s</td>", html_show_seconds(text, r->life[life].run +
			report_at(r, t->e->time_ns + t->e->still_ns) - r->life[life].at));
		for (int k = 0; k < KINDS; k++)
			if (t->divided || k != KIND_COMMS)
				html_bytes(out, t->kind[k]);
			else
				html_none(out);
		html_bytes(out, t->bytes);
		html_bytes(out, t->origin[ORIGIN_NEW]);
		for (int k = ORIGIN_WITHIN; k <= ORIGIN_EARLIER; k++)
			if (t->divided)
				html_bytes(out, t->origin[k]);
			else
				html_none(out);
		html_seconds(out, t->stood);
		html_seconds(out, t->e->ns / 1e9);
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table></div>\n", out);
}

/* The last checkpoint that a store here has, by rank. */
static void rank_bytes(FILE *out, const struct report *r)
{
	static const char *const name[] = { "rank", "kind", "data", "new", "elsewhere in it", "earlier ones" };
	const struct taken *t = NULL;
	struct chart_bar *bar;
	unsigned int ranks = r->ranks < SHOWN_RANKS ? r->ranks : SHOWN_RANKS;

	for (int i = 0; i < r->n_taken; i++)
		if (r->taken[i].kinds.n)
			t = &r->taken[i];
	bar = t ? calloc(ranks + 1, sizeof(*bar)) : NULL;
	if (!bar)
		return;
	snprintf(bar[0].name, sizeof(bar[0].name), "all");
	for (unsigned int k = 0; k < ranks; k++)
		snprintf(bar[k + 1].name, sizeof(bar[k + 1].name), "rank %u", k);
	for (size_t i = 0; i < t->kinds.n; i++)
		for (int k = 0; k < KINDS; k++)
			if (!strcmp(t->kinds.row[i].kind, kind_names[k]) && t->kinds.row[i].rank < (int)ranks)
				bar[t->kinds.row[i].rank < 0 ? 0 : t->kinds.row[i].rank + 1].part[k] +=
					t->kinds.row[i].data;
	fprintf(out, "<h3>Bytes of checkpoint %d, by rank</h3>\n", t->number);
	chart_rows(out, "ranks", "Bytes of a checkpoint, by rank and kind", true, bar, ranks + 1, kind_names, KINDS);
	free(bar);
	fprintf(out, "<div class=\"wide\"><table id=\"rank-bytes\"><caption>Checkpoint %d, by rank and kind; &#8216;all&#8217;: of "
		"no rank alone</caption>", t->number);
	heads(out, name, 6, 2);
	fputs("<tbody>\n", out);
	for (size_t i = 0; i < t->kinds.n && i < 4 * SHOWN_RANKS; i++) {
		const struct kind_row *row = &t->kinds.row[i];

		if (row->rank < 0)
			fputs("<tr><th scope=\"row\">all</th>", out);
		else
			fprintf(out, "<tr><th scope=\"row\">%d</th>", row->rank);
		fprintf(out, "<td>%s</td>", row->kind);
		html_bytes(out, row->data);
		if (t->after_gone)
			html_none(out);
		else
			html_bytes(out, row->fresh);
		html_bytes(out, row->within);
		html_bytes(out, row->earlier);
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table></div>\n", out);
}

/* Checkpoints and restores in the order of time; the latest of them. */
static void still(FILE *out, const struct report *r)
{
	struct chart_bar bar[SHOWN_BARS] = { 0 };
	const double *cause[SHOWN_BARS];
	double away[SHOWN_BARS];
	int n = 0, c = r->n_taken, b = r->n_brought;

	while (n < SHOWN_BARS && (c || b)) {
		int at = SHOWN_BARS - ++n;
		bool taken = c && (!b || r->taken[c - 1].e->time_ns > r->brought[b - 1].e->time_ns);

		cause[at] = taken ? r->taken[--c].cause : r->brought[--b].cause;
		away[at] = taken ? 0 : r->brought[b].away;
		snprintf(bar[at].name, sizeof(bar[at].name), taken ? "%d" : "R%d",
			 taken ? r->taken[c].number : r->brought[b].number);
		for (int k = 0; k < CAUSES; k++)
			bar[at].part[k] = cause[at][k];
	}
	fputs("<h3>How long the job stood still, and for what</h3>\n", out);
	chart_bars(out, "still", "Seconds that the job stood still for each checkpoint and restore",
		   r->n_brought ? "checkpoint, restore (R)" : "checkpoint", false, bar + SHOWN_BARS - n, n, cause_names,
		   CAUSES);
	fputs("<div class=\"wide\"><table id=\"stood\"><caption>Seconds that the job stood still. Phases overlap: each moment "
	      "counts once. Away: from the moment of the checkpoint until the job ran again</caption><thead><tr>"
	      "<th scope=\"col\">checkpoint, restore</th>", out);
	for (int k = 0; k < CAUSES; k++)
		fprintf(out, "<th scope=\"col\" class=\"n\">%s</th>", cause_names[k]);
	fputs("<th scope=\"col\" class=\"n\">in all</th><th scope=\"col\" class=\"n\">away</th></tr></thead><tbody>\n", out);
	for (int at = SHOWN_BARS - n; at < SHOWN_BARS; at++) {
		double sum = 0;

		fprintf(out, "<tr><th scope=\"row\">%s</th>", bar[at].name);
		for (int k = 0; k < CAUSES; k++) {
			html_seconds(out, cause[at][k]);
			sum += cause[at][k];
		}
		html_seconds(out, sum);
		if (*bar[at].name == 'R')
			html_seconds(out, away[at]);
		else
			html_none(out);
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table></div>\n", out);
}

static void restores(FILE *out, const struct report *r)
{
	int first = r->n_brought > SHOWN_BARS ? r->n_brought - SHOWN_BARS : 0;
	char time[40];

	if (!r->n_brought)
		return;
	fputs("<div class=\"wide\"><table id=\"restores\"><caption>Restores and moves</caption><thead><tr><th scope=\"col\">restore</th>"
	      "<th scope=\"col\">at</th><th scope=\"col\">from checkpoint</th><th scope=\"col\">on host</th><th scope=\"col\">onto devices</th>"
	      "<th scope=\"col\">singvgpu</th></tr></thead><tbody>\n", out);
	for (int i = first; i < r->n_brought; i++) {
		const struct past_event *e = r->brought[i].e;
		char id[16];

		fprintf(out, "<tr><th scope=\"row\">R%d</th><td>%s</td><td class=\"i\"><code>", r->brought[i].number,
			html_show_time(time, e->time_ns));
		snprintf(id, sizeof(id), "%.12s", e->id);
		html_text(out, id);
		fputs("</code></td><td>", out);
		html_text(out, e->host);
		fputs("</td><td>", out);
		html_text(out, strcmp(e->text, "-") ? e->text : "its former ones");
		fputs("</td><td>", out);
		html_text(out, e->version);
		fputs("</td></tr>\n", out);
	}
	fputs("</tbody></table></div>\n", out);
}

static void failures(FILE *out, const struct report *r)
{
	const struct past *p = r->past;
	int left = 0;
	char time[40];

	if (!r->n_failed)
		return;
	fprintf(out, "<h3>Checkpoints that failed: %d</h3>\n<div class=\"wide\"><table><thead><tr><th scope=\"col\">at</th>"
		"<th scope=\"col\">in the phase</th><th scope=\"col\">why</th></tr></thead><tbody>\n", r->n_failed);
	for (size_t i = p->events; i-- && left < 20;) {
		if (p->event[i].kind != PAST_FAILED)
			continue;
		left++;
		fprintf(out, "<tr><th scope=\"row\">%s</th><td>", html_show_time(time, p->event[i].time_ns));
		html_text(out, p->event[i].at);
		fputs("</td><td>", out);
		html_text(out, p->event[i].text);
		fputs("</td></tr>\n", out);
	}
	fputs("</tbody></table></div>\n", out);
}

static void checkpoints(FILE *out, const struct report *r)
{
	int first = r->n_taken > SHOWN_BARS ? r->n_taken - SHOWN_BARS : 0, there = 0;

	fputs("<h2 id=\"cost\">Checkpoints, and what they cost</h2>\n", out);
	if (!r->n_taken && !r->n_brought)
		fputs("<p>None has been taken.</p>\n", out);
	if (first)
		fprintf(out, "<p class=\"dim\">The latest %d of %d checkpoints.</p>\n", SHOWN_BARS, r->n_taken);
	if (r->past->full)
		fputs("<p class=\"dim\">There were more than a history has room for.</p>\n", out);
	if (r->n_taken) {
		bytes_charts(out, r, first);
		for (int i = first; i < r->n_taken; i++)
			there += r->taken[i].divided;
		if (there < r->n_taken - first)
			fprintf(out, "<p class=\"dim\">%d of these checkpoints could not be looked up in a store here%s%s: of "
				"them the bytes are those that were counted when they were taken, with what CRIU and "
				"the channels saved as the program&#8217;s.</p>\n", r->n_taken - first - there,
				r->undivided ? ", since " : "", r->undivided ?: "");
		bytes_table(out, r, first);
		rank_bytes(out, r);
	}
	if (r->n_taken || r->n_brought)
		still(out, r);
	restores(out, r);
	failures(out, r);
}

/* -------------------------------------------------------------------------------- ranks */

static int slowest(const struct report *r, uint64_t *all)
{
	const struct past *p = r->past;
	uint64_t most = 0;
	int who = -1;

	*all = total(p, HISTORY_LAST);
	for (unsigned int k = 0; k < p->ranks && p->frames; k++) {
		uint64_t last = past_count(p, p->frames - 1, k, HISTORY_LAST);

		if (last > most) {
			most = last;
			who = k;
		}
	}
	/* Were it chance, each would be the last as often as the others. */
	return *all >= 20 && most > *all * 1.5 / p->ranks ? who : -1;
}

static void waits(FILE *out, const struct report *r)
{
	static const char *const part[] = { "waited for other ranks to call", "in collectives" };
	static const char *const name[] = { "rank", "collectives", "was last to call", "of all", "waited for others",
					    "of its time", "in collectives", "of its time" };
	const struct past *p = r->past;
	unsigned int shown = p->ranks < SHOWN_RANKS ? p->ranks : SHOWN_RANKS;
	struct chart_bar bar[SHOWN_RANKS] = { 0 };
	uint64_t all = total(p, HISTORY_LAST);

	fputs("<h2 id=\"ranks\">Who waited for whom</h2>\n", out);
	if (!p->frames || !total(p, HISTORY_COLLECTIVES)) {
		fputs("<p>The job has ended no collective operation.</p>\n", out);
		return;
	}
	for (unsigned int k = 0; k < shown; k++) {
		snprintf(bar[k].name, sizeof(bar[k].name), "rank %u", k);
		bar[k].part[0] = past_count(p, p->frames - 1, k, HISTORY_WAIT_NS) / 1e9;
		bar[k].part[1] = past_count(p, p->frames - 1, k, HISTORY_RUN_NS) / 1e9;
	}
	fputs("<p class=\"dim\">A rank waits from its call until the last one of the others has called. A rank that is often the last "
	      "is the one that is waited for; it waits little itself. From then on the time is counted as in collectives: while "
	      "the devices come to the call, and data moves.</p>\n", out);
	chart_rows(out, "waits", "Seconds that each rank waited, and was in collectives", false, bar, shown, part, 2);
	fputs("<div class=\"wide\"><table id=\"waits\"><caption>Waits in collectives, by rank</caption>", out);
	heads(out, name, 8, 1);
	fputs("<tbody>\n", out);
	for (unsigned int k = 0; k < shown; k++) {
		uint64_t last = past_count(p, p->frames - 1, k, HISTORY_LAST);

		fprintf(out, "<tr><th scope=\"row\">%u</th>", k);
		html_count(out, past_count(p, p->frames - 1, k, HISTORY_COLLECTIVES));
		html_count(out, last);
		fprintf(out, "<td class=\"n\">%.1f %%</td>", all ? last * 100.0 / all : 0);
		for (int i = 0; i < 2; i++) {
			html_seconds(out, bar[k].part[i]);
			fprintf(out, "<td class=\"n\">%.1f %%</td>", r->run > 0 ? bar[k].part[i] * 100 / r->run : 0);
		}
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table></div>\n", out);
	if (p->ranks > shown)
		fprintf(out, "<p class=\"dim\">The first %u of %u ranks.</p>\n", shown, p->ranks);
}

/* -------------------------------------------------------------------------------- short */

static void say_checkpoints(FILE *out, const struct report *r)
{
	uint64_t bytes = 0, fresh = 0;
	double stood = 0;
	char a[32], b[32], c[32];

	for (int i = 0; i < r->n_taken; i++) {
		bytes += r->taken[i].bytes;
		fresh += r->taken[i].origin[ORIGIN_NEW];
		if (r->taken[i].e->left)
			stood += r->taken[i].stood;
	}
	if (!r->n_taken) {
		fputs("<p>No checkpoint was taken.</p>\n", out);
		return;
	}
	fprintf(out, "<p><b>%d checkpoint%s</b> of %s in all, %s of it new to the store.", r->n_taken,
		r->n_taken == 1 ? "" : "s", html_show_bytes(a, bytes), html_show_bytes(b, fresh));
	if (stood > 0)
		fprintf(out, " For those that it outlived it stood still for <b>%s</b>, %.2f %% of its time.",
			html_show_seconds(c, stood), r->run > 0 ? stood * 100 / r->run : 0);
	fputs("</p>\n", out);
}

static void in_short(FILE *out, const struct report *r)
{
	const struct past *p = r->past;
	uint64_t all, launches = total(p, HISTORY_LAUNCHES);
	int slow = slowest(r, &all);
	char a[32], b[32];

	fputs("<div class=\"short\" id=\"short\">\n", out);
	fprintf(out, "<p>It has run for <b>%s</b>", html_show_seconds(a, r->run));
	if (launches && r->run > 0)
		fprintf(out, " and launched %s kernels and collectives a second and rank on average",
			html_show_count(b, launches / r->run / p->ranks + 0.5));
	fputs(".</p>\n", out);
	say_checkpoints(out, r);
	if (r->n_brought)
		fprintf(out, "<p>It was brought back or moved <b>%d time%s</b>, and away for %s.</p>\n", r->n_brought,
			r->n_brought == 1 ? "" : "s", html_show_seconds(b, r->away));
	if (slow >= 0) {
		double others = (total(p, HISTORY_WAIT_NS) -
				 past_count(p, p->frames - 1, slow, HISTORY_WAIT_NS)) / 1e9 / (p->ranks - 1);

		fprintf(out, "<p><b>Rank %d</b> was the last to call in %.0f %% of %s collectives; each other rank waited %s "
			"on average, %.1f %% of the time.</p>\n", slow,
			past_count(p, p->frames - 1, slow, HISTORY_LAST) * 100.0 / all, html_show_count(b, all),
			html_show_seconds(a, others), r->run > 0 ? others * 100 / r->run : 0);
	} else if (all && p->ranks > 1) {
		fputs("<p>No rank was the last to call in collectives much more often than the others.</p>\n", out);
	}
	fputs("</div>\n", out);
}

int report_page(FILE *out, const struct report *r)
{
	int err;

	head_of(out, r);
	in_short(out, r);
	facts(out, r);
	err = what_it_did(out, r);
	checkpoints(out, r);
	waits(out, r);
	fprintf(out, "<p class=\"dim\">Samples are %.3g s apart. Written by singvgpu " SINGVGPU_VERSION ".</p>\n</body></html>\n",
		r->past->apart_ns / 1e9);
	return err;
}
