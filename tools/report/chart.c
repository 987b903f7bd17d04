// SPDX-License-Identifier: Apache-2.0
/*
 * chart.c - charts as inline SVG: lines over the job's time, and bars
 *
 * A chart is WIDTH units wide, whatever the window's width. Numbers reach the SVG as %.1f of what lies
 * within the chart, so none is infinite or long.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_i.h"

#define WIDTH	760.0
#define LEFT	66.0
#define RIGHT	14.0
#define HEIGHT	230.0	/* of the area with the data */
#define TOP	26.0

static double limited(double v, double most)
{
	return v > 0 ? v < most ? v : most : 0;	/* NaN: 0 */
}

/* ------------------------------------------------------------------------------- axes */

/* An axis from 0 to at least `most`, in steps that people count in. */
struct scale {
	double most, step, unit;
	char name[48];		/* of the unit */
	int decimals;
};

static struct scale scale_of(double most, bool bytes, const char *name)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	static const char *const thousands[] = { "", "thousand ", "million ", "billion " };
	struct scale s = { .unit = 1 };
	double by = bytes ? 1024 : 1000, in, power;
	int i = 0;

	if (!(most > 0) || !isfinite(most))
		most = 1;
	while ((bytes || s.unit < 1e9) && most / s.unit >= (bytes ? 1024 : 10000) && i < 6) {
		s.unit *= by;
		i++;
	}
	in = most / s.unit;
	power = pow(10, floor(log10(in / 5)));
	s.step = in / 5 / power;
	s.step = (s.step <= 1 ? 1 : s.step <= 2 ? 2 : s.step <= 5 ? 5 : 10) * power;
	s.decimals = s.step >= 1 ? 0 : (int)ceil(-log10(s.step) - 1e-9);
	s.most = ceil(in / s.step - 1e-9) * s.step * s.unit;
	s.step *= s.unit;
	snprintf(s.name, sizeof(s.name), "%s%s", bytes ? units[i] : i < 4 ? thousands[i] : "", bytes ? "" : name);
	return s;
}

static void y_axis(FILE *out, const struct scale *s)
{
	for (double v = 0; v <= s->most * 1.0001; v += s->step) {
		double y = TOP + HEIGHT - v / s->most * HEIGHT;

		fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", LEFT, y, WIDTH - RIGHT);
		fprintf(out, "<text class=\"t e\" x=\"%.1f\" y=\"%.1f\">%.*f</text>\n", LEFT - 6, y + 4,
			s->decimals, v / s->unit);
	}
	fprintf(out, "<text class=\"t m\" transform=\"translate(14 %.1f) rotate(-90)\">%s</text>\n",
		TOP + HEIGHT / 2, s->name);
}

static void open_svg(FILE *out, const char *id, const char *title, double height)
{
	fprintf(out, "<div class=\"chart\"><svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-labelledby=\"%s-t\">"
		"<title id=\"%s-t\">", WIDTH, height, id, id);
	html_text(out, title);
	fputs("</title>\n", out);
}

static void close_svg(FILE *out)
{
	fputs("</svg></div>\n", out);
}

static const struct {
	double step, unit;
	const char *name;
} times[] = {
	{ 0.1, 1, "s" }, { 0.2, 1, "s" }, { 0.5, 1, "s" }, { 1, 1, "s" }, { 2, 1, "s" }, { 5, 1, "s" },
	{ 10, 1, "s" }, { 15, 1, "s" }, { 30, 1, "s" }, { 60, 60, "min" }, { 120, 60, "min" },
	{ 300, 60, "min" }, { 600, 60, "min" }, { 900, 60, "min" }, { 1800, 60, "min" },
	{ 3600, 3600, "h" }, { 7200, 3600, "h" }, { 14400, 3600, "h" }, { 21600, 3600, "h" },
	{ 43200, 3600, "h" }, { 86400, 86400, "days" }, { 172800, 86400, "days" },
	{ 432000, 86400, "days" }, { 864000, 86400, "days" }, { 2592000, 86400, "days" },
	{ 8640000, 86400, "days" }, { 86400000, 86400, "days" }, { 864000000, 86400, "days" },
};

static double x_of(const struct report *r, double at)
{
	return LEFT + limited(r->axis > 0 ? at / r->axis : 0, 1) * (WIDTH - LEFT - RIGHT);
}

/* Ticks count the time that the job has run, also behind a time away. */
static void x_axis(FILE *out, const struct report *r)
{
	size_t t = 0, n = sizeof(times) / sizeof(times[0]);
	double last = -100;

	while (t + 1 < n && r->run / times[t].step > 8)
		t++;
	for (int i = 0; i < r->lives; i++) {
		const struct life *l = &r->life[i];
		double len = (l->to - l->from) / 1e9, k = fabs(ceil(l->run / times[t].step - 1e-9));

		for (int some = 0; k * times[t].step <= l->run + len && some < 40; k++, some++) {
			double x = x_of(r, l->at + k * times[t].step - l->run);

			if (x - last < 40)
				continue;
			last = x;
			fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fv5\"/><text class=\"t m\" x=\"%.1f\" "
				"y=\"%.1f\">%.*f</text>\n", x, TOP + HEIGHT, x, TOP + HEIGHT + 18,
				times[t].step < 1, k * times[t].step / times[t].unit);
		}
	}
	fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>", LEFT, TOP + HEIGHT, WIDTH - RIGHT);
	fprintf(out, "<text class=\"t m\" x=\"%.1f\" y=\"%.1f\">time that the job has run (%s)%s</text>\n",
		LEFT + (WIDTH - LEFT - RIGHT) / 2, TOP + HEIGHT + 36, times[t].name,
		r->lives > 1 ? "; hatched: away, not to scale" : "");
}

/* ------------------------------------------------------------------------------- lines */

static void put_gaps(FILE *out, const struct report *r)
{
	for (int i = 1; i < r->lives; i++) {
		const struct life *l = &r->life[i], *b = l - 1;
		double from = x_of(r, b->at + (b->to - b->from) / 1e9), to = x_of(r, l->at);

		fprintf(out, "<rect class=\"away\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", from,
			TOP, to - from > 1 ? to - from : 1, HEIGHT);
	}
}

static void put_marks(FILE *out, const struct report *r, const struct chart_mark *mark, int marks)
{
	double last = -100;

	for (int i = 0; i < marks; i++) {
		double x = x_of(r, mark[i].at), w = x_of(r, mark[i].to) - x;

		if (mark[i].to > mark[i].at)
			fprintf(out, "<rect class=\"still\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
				"height=\"%.1f\"/>", x, TOP, w > 1 ? w : 1, HEIGHT);
		fprintf(out, "<path class=\"%s\" d=\"M%.1f %.1fV%.1f\"/>", mark[i].restore ? "back" : "mark", x,
			TOP - 8, TOP + HEIGHT);
		if (x - last < 22)
			continue;
		last = x;
		fprintf(out, "<text class=\"t m s\" x=\"%.1f\" y=\"%.1f\">%s%d</text>\n", x, TOP - 11,
			mark[i].restore ? "R" : "", mark[i].number);
	}
}

static double y_of(const struct scale *s, double v)
{
	return TOP + HEIGHT - limited(v / s->most, 1) * HEIGHT;
}

static void put_line(FILE *out, const struct report *r, const struct scale *s, const double *x, size_t n,
		     const struct chart_line *line)
{
	bool pen = false;

	fprintf(out, "<path class=\"line l%d%s\" d=\"", line->colour, line->thin ? " thin" : "");
	for (size_t i = 0; i < n; i++) {
		bool is = isfinite(line->y[i]);
		bool alone = is && !pen && (i + 1 == n || !isfinite(line->y[i + 1]));

		if (is)
			fprintf(out, "%c%.1f %.1f", pen ? 'L' : 'M', x_of(r, x[i]), y_of(s, line->y[i]));
		if (alone)		/* a dot */
			fputs("h.1", out);
		pen = is;
	}
	fputs("\"/>\n", out);
}

/* The area between two lines, piece by piece. */
static void put_band(FILE *out, const struct report *r, const struct scale *s, const double *x, size_t n,
		     const double *low, const double *high)
{
	for (size_t from = 0, to; from < n; from = to) {
		for (to = from; to < n && isfinite(low[to]); to++)
			;
		if (to == from) {
			to++;
			continue;
		}
		fputs("<path class=\"band\" d=\"", out);
		for (size_t i = from; i < to; i++)
			fprintf(out, "%c%.1f %.1f", i == from ? 'M' : 'L', x_of(r, x[i]), y_of(s, high[i]));
		for (size_t i = to; i-- > from;)
			fprintf(out, "L%.1f %.1f", x_of(r, x[i]), y_of(s, low[i]));
		fputs("Z\"/>\n", out);
	}
}

static void put_key(FILE *out, const char *class, int colour, const char *name)
{
	fprintf(out, "<span class=\"key\"><svg class=\"swatch\" viewBox=\"0 0 14 10\" aria-hidden=\"true\"><path class=\""
		"%s%d\" d=\"M0 5h14\"/></svg>%s</span>\n", class, colour, name);
}

void chart_lines(FILE *out, const struct report *r, const char *id, const char *title, const char *unit,
		 const double *x, size_t n, const struct chart_line *line, int lines,
		 const double *low, const double *high, const struct chart_mark *mark, int marks)
{
	struct scale s;
	double most = 0;

	for (size_t i = 0; i < n; i++) {
		for (int k = 0; k < lines; k++)
			most = isfinite(line[k].y[i]) && line[k].y[i] > most ? line[k].y[i] : most;
		if (high)
			most = isfinite(high[i]) && high[i] > most ? high[i] : most;
	}
	s = scale_of(most, false, unit);
	fputs("<p class=\"keys\">", out);
	for (int k = 0; k < lines; k++)
		put_key(out, "line l", line[k].colour, line[k].name);
	if (low)
		fputs("<span class=\"key\"><svg class=\"swatch\" viewBox=\"0 0 14 10\" aria-hidden=\"true\"><path class=\"band\" "
		      "d=\"M0 0h14v10h-14z\"/></svg>lowest to highest rank</span>\n", out);
	fputs("</p>\n", out);
	open_svg(out, id, title, TOP + HEIGHT + 44);
	y_axis(out, &s);
	put_gaps(out, r);
	put_marks(out, r, mark, marks);
	if (low)
		put_band(out, r, &s, x, n, low, high);
	for (int k = 0; k < lines; k++)
		put_line(out, r, &s, x, n, &line[k]);
	x_axis(out, r);
	close_svg(out);
}

/* -------------------------------------------------------------------------------- bars */

/* The parts that some bar has; the largest sum. */
static double look_over(const struct chart_bar *bar, int bars, int parts, bool *has)
{
	double most = 0;

	memset(has, 0, parts * sizeof(*has));
	for (int i = 0; i < bars; i++) {
		double sum = 0;

		for (int k = 0; k < parts; k++) {
			has[k] |= bar[i].part[k] > 0;
			sum += limited(bar[i].part[k], 1e19);
		}
		most = sum > most ? sum : most;
	}
	return most;
}

static void put_keys(FILE *out, const char *const *part, int parts, const bool *has)
{
	fputs("<p class=\"keys\">", out);
	for (int k = 0; k < parts; k++)
		if (has[k])
			put_key(out, "b", k, part[k]);
	fputs("</p>\n", out);
}

void chart_bars(FILE *out, const char *id, const char *title, const char *x_axis, bool bytes,
		const struct chart_bar *bar, int bars, const char *const *part, int parts)
{
	double room = (WIDTH - LEFT - RIGHT) / (bars ?: 1), width = room * 0.7 < 40 ? room * 0.7 : 40;
	bool has[8];
	struct scale s = scale_of(look_over(bar, bars, parts, has), bytes, "seconds");
	int each = room < 26 ? (int)ceil(26 / room) : 1;

	put_keys(out, part, parts, has);
	open_svg(out, id, title, TOP + HEIGHT + 44);
	y_axis(out, &s);
	for (int i = 0; i < bars; i++) {
		double mid = LEFT + (i + 0.5) * room, sum = 0;

		for (int k = 0; k < parts; k++) {
			double from = y_of(&s, sum), to = y_of(&s, sum += limited(bar[i].part[k], 1e19));

			if (from - to >= 0.05)
				fprintf(out, "<rect class=\"b%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
					"height=\"%.1f\"/>", k, mid - width / 2, to, width, from - to);
		}
		if (i % each == 0)
			fprintf(out, "<text class=\"t m\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", mid,
				TOP + HEIGHT + 18, bar[i].name);
	}
	fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/><text class=\"t m\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
		LEFT, TOP + HEIGHT, WIDTH - RIGHT, LEFT + (WIDTH - LEFT - RIGHT) / 2, TOP + HEIGHT + 36, x_axis);
	close_svg(out);
}

void chart_rows(FILE *out, const char *id, const char *title, bool bytes, const struct chart_bar *bar,
		int bars, const char *const *part, int parts)
{
	const double row = 22, top = 6, from = 80, to = WIDTH - 24;
	bool has[8];
	struct scale s = scale_of(look_over(bar, bars, parts, has), bytes, "seconds");
	double bottom = top + bars * row;

	put_keys(out, part, parts, has);
	open_svg(out, id, title, bottom + 44);
	for (double v = 0; v <= s.most * 1.0001; v += s.step) {
		double x = from + v / s.most * (to - from);

		fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/><text class=\"t m\" x=\"%.1f\" y=\"%.1f\">"
			"%.*f</text>\n", x, top, bottom, x, bottom + 18, s.decimals, v / s.unit);
	}
	for (int i = 0; i < bars; i++) {
		double sum = 0, y = top + i * row;

		fprintf(out, "<text class=\"t e\" x=\"%.1f\" y=\"%.1f\">%s</text>", from - 6, y + 15, bar[i].name);
		for (int k = 0; k < parts; k++) {
			double a = sum / s.most * (to - from), b;

			sum += limited(bar[i].part[k], 1e19);
			b = sum / s.most * (to - from);
			if (b - a >= 0.05)
				fprintf(out, "<rect class=\"b%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
					k, from + a, y + 3, b - a, row - 6);
		}
		putc('\n', out);
	}
	fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fV%.1f\"/><text class=\"t m\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
		from, top, bottom, (from + to) / 2, bottom + 36, s.name);
	close_svg(out);
}
