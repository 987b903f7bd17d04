// SPDX-License-Identifier: Apache-2.0
/*
 * phase.c - shows the progress of a checkpoint or a restore while it runs, then a table
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "phase.h"

#define SHOW_NS	100000000ull	/* between two updates of what is shown */
#define ROW	"%-20s %16s %9s  %s%s%s"
#define KINDS_MAX	16
#define ROWS_MAX	48		/* of the table; in a larger one all ranks are one row */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static double seconds(const struct phase *p, uint64_t now)
{
	return ((p->ended_ns ?: now) - p->begun_ns) / 1e9;
}

void phases_start(struct phases *ps, const char *verb, const char *subject, bool quiet)
{
	memset(ps, 0, sizeof(*ps));
	pthread_mutex_init(&ps->lock, NULL);
	ps->verb = verb;
	snprintf(ps->subject, sizeof(ps->subject), "%s", subject);
	ps->live = !quiet && isatty(STDERR_FILENO);
	ps->begun_ns = now_ns();
}

/* "device 1.2G of 2.0G, 812M/s, 1 s left" */
static int show_one(const struct phase *p, uint64_t now, char *to, size_t size)
{
	char *(*amount)(char *, uint64_t) = p->unit ? show_count : show_size;
	char done[16], total[16], rate[16];
	double s = seconds(p, now);
	int n = snprintf(to, size, "%s", p->name);

	if ((p->done || (p->unit && p->total)) && n < (int)size)
		n += snprintf(to + n, size - n, " %s", amount(done, p->done));
	if (p->total && n < (int)size)
		n += snprintf(to + n, size - n, " of %s", amount(total, p->total));
	if (p->total && p->unit && n < (int)size)
		n += snprintf(to + n, size - n, " %s", p->unit);
	if (p->done && s > 0.2 && n < (int)size)
		n += snprintf(to + n, size - n, ", %s/s", amount(rate, p->done / s));
	if (p->done && p->total > p->done && s > 0.5 && n < (int)size)
		n += snprintf(to + n, size - n, ", %.0f s left",
			      s * (p->total - p->done) / p->done);
	else if (s >= 2 && n < (int)size)
		n += snprintf(to + n, size - n, ", %.0f s", s);
	return n < (int)size ? n : (int)size - 1;
}

/* With the lock. */
static int show_all(const struct phases *ps, uint64_t now, char *to, size_t size)
{
	int n = 0;

	*to = 0;
	for (int i = 0; i < ps->n; i++) {
		if (ps->phase[i].ended_ns || n + 128 > (int)size)
			continue;
		if (n)
			n += snprintf(to + n, size - n, " | ");
		n += show_one(&ps->phase[i], now, to + n, 96);
	}
	return n;
}

int phases_line(struct phases *ps, char *to, size_t size)
{
	int n;

	pthread_mutex_lock(&ps->lock);
	n = show_all(ps, now_ns(), to, size);
	pthread_mutex_unlock(&ps->lock);
	return n;
}

/* ------------------------------------------------------------------------------ the terminal */

/* How long a phase's name is without the proxy that it is of: "device" of "device 0-0". */
static size_t kind_len(const struct phase *p)
{
	return strcspn(p->name, " ");
}

static bool same_kind(const struct phase *a, const struct phase *b)
{
	return kind_len(a) == kind_len(b) && !strncmp(a->name, b->name, kind_len(a));
}

/* One phase of each kind that runs: their number. */
static int kinds_running(const struct phases *ps, const struct phase *kind[KINDS_MAX])
{
	int n = 0;

	for (int i = 0; i < ps->n && n < KINDS_MAX; i++) {
		int k = 0;

		while (k < n && !same_kind(kind[k], &ps->phase[i]))
			k++;
		if (k == n && !ps->phase[i].ended_ns)
			kind[n++] = &ps->phase[i];
	}
	return n;
}

/* A phase that has ended stays in sight while others of its kind run. */
static bool is_shown(const struct phase *p, const struct phase *const kind[], int kinds)
{
	int k = 0;

	while (k < kinds && !same_kind(kind[k], p))
		k++;
	return k < kinds;
}

/* "device 0-0        1.2G of 2.0G   812M/s    1 s left" */
static void show_row(const struct phase *p, uint64_t now, char *to, size_t size)
{
	char *(*amount)(char *, uint64_t) = p->unit ? show_count : show_size;
	char done[48] = "", part[16], rate[24] = "", left[32] = "";
	double s = seconds(p, now);
	int n = 0;

	if (p->done || p->total)
		n = snprintf(done, sizeof(done), "%s", amount(part, p->done));
	if (p->total && !p->ended_ns)
		snprintf(done + n, sizeof(done) - n, " of %s", amount(part, p->total));
	if (p->done && s > 0.2)
		snprintf(rate, sizeof(rate), "%s/s", amount(part, p->done / s));
	if (p->ended_ns)
		snprintf(left, sizeof(left), p->err ? "failed" : "done in %.1f s", s);
	else if (p->done && p->total > p->done && s > 0.5)
		snprintf(left, sizeof(left), "%.0f s left", s * (p->total - p->done) / p->done);
	else
		snprintf(left, sizeof(left), "%.1f s", s);
	snprintf(to, size, ROW, p->name, done, rate, left, p->unit ? ", " : "",
		 p->unit ?: "");
}

/* Begins a line of the picture, which the last one is written over. */
static void put_row(struct phases *ps, const struct winsize *w, const char *text)
{
	int most = w->ws_col > 10 ? w->ws_col - 1 : 79;

	fprintf(ps->picture, "%s%.*s\033[K", ps->rows++ ? "\n" : "", most, text);
}

/* Puts the cursor where the picture begins. */
static void go_back(struct phases *ps)
{
	putc('\r', ps->picture);
	if (ps->rows > 1)
		fprintf(ps->picture, "\033[%dA", ps->rows - 1);
	ps->rows = 0;
}

/* The phases of all ranks, a row each; where the terminal lacks room, those that run. */
static void show_table(struct phases *ps, uint64_t now, const struct winsize *w)
{
	const struct phase *kind[KINDS_MAX];
	int room = (w->ws_row > 6 ? w->ws_row : 24) - 3, all = 0, shown = 0, kinds = kinds_running(ps, kind);
	char name[56], line[160];

	for (int i = 0; i < ps->n; i++)
		all += is_shown(&ps->phase[i], kind, kinds);
	snprintf(name, sizeof(name), "%s %s", ps->verb, ps->subject);
	snprintf(line, sizeof(line), ROW, name, "DONE", "RATE", "TIME LEFT", "", "");
	put_row(ps, w, line);
	for (int i = 0; i < ps->n && shown < room; i++) {
		const struct phase *p = &ps->phase[i];

		if (!is_shown(p, kind, kinds) || (all > room && p->ended_ns))
			continue;
		show_row(p, now, line, sizeof(line));
		put_row(ps, w, line);
		shown++;
	}
	if (shown == all)
		return;
	snprintf(line, sizeof(line), "... and %d more", all - shown);
	put_row(ps, w, line);
}

/* With the lock: one phase is a line, several are a table. */
static void draw(struct phases *ps, uint64_t now)
{
	struct winsize w = { .ws_col = 80, .ws_row = 24 };
	char line[1024];
	int n, running = 0;

	ioctl(STDERR_FILENO, TIOCGWINSZ, &w);
	for (int i = 0; i < ps->n; i++)
		running += !ps->phase[i].ended_ns;
	go_back(ps);
	if (running > 1) {
		show_table(ps, now, &w);
	} else {
		n = snprintf(line, sizeof(line), "%s %s: ", ps->verb, ps->subject);
		show_all(ps, now, line + n, sizeof(line) - n);
		put_row(ps, &w, line);
	}
	fputs("\033[J", ps->picture);
}

/* With the lock. A picture that the terminal does not take leaves the last one where it is. */
static void show(struct phases *ps, bool now_at_once)
{
	uint64_t now = now_ns();
	char *text = NULL;
	size_t len;
	int rows = ps->rows;

	if (!ps->live || (!now_at_once && now - ps->shown_ns < SHOW_NS))
		return;
	ps->picture = open_memstream(&text, &len);
	if (!ps->picture)
		return;
	draw(ps, now);
	ps->shown_ns = now;
	if (fclose(ps->picture) || !say_picture(text, len))
		ps->rows = rows;
	free(text);
}

void phases_clear(struct phases *ps)
{
	char clear[40];
	int n;

	pthread_mutex_lock(&ps->lock);
	if (ps->live && ps->rows) {
		n = snprintf(clear, sizeof(clear), "\r");
		if (ps->rows > 1)
			n += snprintf(clear + n, sizeof(clear) - n, "\033[%dA", ps->rows - 1);
		n += snprintf(clear + n, sizeof(clear) - n, "\033[K\033[J");
		if (say_picture(clear, n))
			ps->rows = 0;
	}
	pthread_mutex_unlock(&ps->lock);
}

/*
 * For tests: $SINGVGPU_CKPT_PAUSE is PHASE or PHASE:end; the conductor stops at that phase's start
 * or end, as by SIGSTOP, until SIGCONT.
 */
static void pause_at(const char *name, const char *suffix)
{
	const char *at = getenv("SINGVGPU_CKPT_PAUSE");
	size_t n = strcspn(name, " ");

	if (at && !strncmp(at, name, n) && !strcmp(at + n, suffix))
		kill(getpid(), SIGSTOP);
}

struct phase *phase_begin(struct phases *ps, const char *fmt, ...)
{
	struct phase *p;
	va_list ap;

	pthread_mutex_lock(&ps->lock);
	p = &ps->phase[ps->n < PHASES_MAX ? ps->n++ : PHASES_MAX - 1];
	memset(p, 0, sizeof(*p));
	va_start(ap, fmt);
	vsnprintf(p->name, sizeof(p->name), fmt, ap);
	va_end(ap);
	p->begun_ns = p->moved_ns = now_ns();
	show(ps, true);
	pthread_mutex_unlock(&ps->lock);
	pause_at(p->name, "");
	return p;
}

void phase_progress(struct phases *ps, struct phase *p, uint64_t done, uint64_t total)
{
	phase_counts(ps, p, done, total, NULL);
}

void phase_counts(struct phases *ps, struct phase *p, uint64_t done, uint64_t total,
		  const char *unit)
{
	pthread_mutex_lock(&ps->lock);
	if (done != p->done)
		p->moved_ns = now_ns();
	p->done = done;
	p->total = total;
	p->unit = unit;
	show(ps, false);
	pthread_mutex_unlock(&ps->lock);
}

void phase_end(struct phases *ps, struct phase *p, uint64_t bytes, uint64_t stored, int err)
{
	pthread_mutex_lock(&ps->lock);
	p->done = bytes;
	p->unit = NULL;
	p->stored = stored;
	p->err = err;
	p->ended_ns = now_ns();
	show(ps, true);
	pthread_mutex_unlock(&ps->lock);
	pause_at(p->name, ":end");
}

const char *phases_failed(struct phases *ps)
{
	for (int i = 0; i < ps->n; i++)
		if (ps->phase[i].err)
			return ps->phase[i].name;
	return ps->n ? ps->phase[ps->n - 1].name : "start";
}

/* The processes of a job without a session stand still from CRIU's start on. */
static bool stands_in(const struct phase *p)
{
	return !strncmp(p->name, "freeze ", 7) || !strcmp(p->name, "criu");
}

uint64_t phases_still_from(const struct phases *ps)
{
	uint64_t from = UINT64_MAX;

	for (int i = 0; i < ps->n; i++)
		if (stands_in(&ps->phase[i]) && ps->phase[i].begun_ns < from)
			from = ps->phase[i].begun_ns;
	return from == UINT64_MAX ? 0 : from - ps->begun_ns - ps->early_ns;
}

uint64_t phases_still(const struct phases *ps)
{
	return now_ns() - ps->begun_ns - phases_still_from(ps);
}

double phases_seconds(const struct phases *ps)
{
	return (now_ns() - ps->begun_ns) / 1e9;
}

static void table_row(const struct phases *ps, const struct phase *p, uint64_t now, FILE *out)
{
	char bytes[16], stored[16], rate[16];
	double s = seconds(p, now);

	fprintf(out, "%-24s %8.3f %8.3f %8s %8s %8s%s%s\n", p->name, (p->begun_ns - ps->begun_ns) / 1e9, s,
		p->done ? show_size(bytes, p->done) : "-", p->stored ? show_size(stored, p->stored) : "-",
		p->done && s > 0 ? strcat(show_size(rate, p->done / s), "/s") : "-",
		p->err ? "  failed: " : "", p->err ? strerror(-p->err) : "");
}

/* All phases of one's kind as one: from the first one's start to the last one's end. Their number. */
static int add_up(const struct phases *ps, const struct phase *of, uint64_t now, struct phase *sum)
{
	int n = 0;

	*sum = *of;
	sum->done = sum->stored = sum->ended_ns = 0;
	for (int i = 0; i < ps->n; i++) {
		const struct phase *p = &ps->phase[i];
		uint64_t end = p->ended_ns ?: now;

		if (!same_kind(p, of))
			continue;
		n++;
		sum->begun_ns = p->begun_ns < sum->begun_ns ? p->begun_ns : sum->begun_ns;
		sum->ended_ns = end > sum->ended_ns ? end : sum->ended_ns;
		sum->done += p->done;
		sum->stored += p->stored;
		sum->err = sum->err ?: p->err;
	}
	return n;
}

int phases_kinds(const struct phases *ps, struct phase *sum, int room)
{
	uint64_t now = now_ns();
	int kinds = 0;

	for (int i = 0; i < ps->n && kinds < room; i++) {
		int before = 0, n;

		while (before < i && !same_kind(&ps->phase[before], &ps->phase[i]))
			before++;
		if (before < i)
			continue;
		n = add_up(ps, &ps->phase[i], now, &sum[kinds]);
		if (n > 1)
			snprintf(sum[kinds].name, sizeof(sum[kinds].name), "%.*s of %d ranks",
				 (int)kind_len(&ps->phase[i]), ps->phase[i].name, n);
		kinds++;
	}
	return kinds;
}

static void write_table(struct phases *ps, FILE *out)
{
	struct phase sum[ROWS_MAX];
	char bytes[16], stored[16];
	uint64_t now, all = 0, fresh = 0;

	pthread_mutex_lock(&ps->lock);
	now = now_ns();
	fprintf(out, "%-24s %8s %8s %8s %8s %8s\n", "PHASE", "START", "SECONDS", "BYTES", "STORED",
		"RATE");
	for (int i = 0; i < ps->n; i++) {
		all += ps->phase[i].done;
		fresh += ps->phase[i].stored;
		if (ps->n <= ROWS_MAX)
			table_row(ps, &ps->phase[i], now, out);
	}
	if (ps->n > ROWS_MAX)
		for (int i = 0, n = phases_kinds(ps, sum, ROWS_MAX); i < n; i++)
			table_row(ps, &sum[i], now, out);
	fprintf(out, "%-24s %8s %8.3f %8s %8s\n", "all", "", phases_seconds(ps),
		show_size(bytes, all), show_size(stored, fresh));
	pthread_mutex_unlock(&ps->lock);
}

char *phases_text(struct phases *ps)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	write_table(ps, out);
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

void phases_table(struct phases *ps)
{
	char *text = phases_text(ps);

	phases_clear(ps);
	if (text)
		say_text(text, strlen(text));
	free(text);
}

void phases_json(struct phases *ps, struct json *j, const char *key)
{
	uint64_t now;

	pthread_mutex_lock(&ps->lock);
	now = now_ns();
	json_open(j, key, '[');
	for (int i = 0; i < ps->n; i++) {
		const struct phase *p = &ps->phase[i];

		json_open(j, NULL, '{');
		json_string(j, "phase", p->name);
		json_number(j, "start_s", (p->begun_ns - ps->begun_ns) / 1e9);
		json_number(j, "seconds", seconds(p, now));
		json_uint(j, "bytes", p->done);
		json_uint(j, "stored_bytes", p->stored);
		if (p->err)
			json_string(j, "error", strerror(-p->err));
		json_close(j, '}');
	}
	json_close(j, ']');
	pthread_mutex_unlock(&ps->lock);
}
