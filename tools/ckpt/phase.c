// SPDX-License-Identifier: Apache-2.0
/*
 * phase.c - shows the progress of a checkpoint or a restore: one line while it runs, then a table
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "ckpt_phase.h"

#define SHOW_NS	100000000ull	/* between two updates of the line */

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

/* With the lock. */
static void show(struct phases *ps, bool now_at_once)
{
	struct winsize w = { .ws_col = 80 };
	uint64_t now = now_ns();
	char line[1024];
	int n, most;

	if (!ps->live || (!now_at_once && now - ps->shown_ns < SHOW_NS))
		return;
	ps->shown_ns = now;
	ioctl(STDERR_FILENO, TIOCGWINSZ, &w);
	n = snprintf(line, sizeof(line), "%s %s: ", ps->verb, ps->subject);
	n += show_all(ps, now, line + n, sizeof(line) - n);
	most = w.ws_col > 10 ? w.ws_col - 1 : 79;
	fprintf(stderr, "\r%.*s\033[K", n < most ? n : most, line);
	fflush(stderr);
}

void phases_clear(struct phases *ps)
{
	pthread_mutex_lock(&ps->lock);
	if (ps->live && ps->shown_ns) {
		fputs("\r\033[K", stderr);
		fflush(stderr);
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

double phases_seconds(const struct phases *ps)
{
	return (now_ns() - ps->begun_ns) / 1e9;
}

void phases_table(struct phases *ps, FILE *out)
{
	char bytes[16], stored[16], rate[16];
	uint64_t now = now_ns(), all = 0, fresh = 0;

	phases_clear(ps);
	pthread_mutex_lock(&ps->lock);
	fprintf(out, "%-24s %8s %8s %8s %8s %8s\n", "PHASE", "START", "SECONDS", "BYTES", "STORED",
		"RATE");
	for (int i = 0; i < ps->n; i++) {
		const struct phase *p = &ps->phase[i];
		double s = seconds(p, now);

		all += p->done;
		fresh += p->stored;
		fprintf(out, "%-24s %8.3f %8.3f %8s %8s %8s%s%s\n", p->name,
			(p->begun_ns - ps->begun_ns) / 1e9, s,
			p->done ? show_size(bytes, p->done) : "-",
			p->stored ? show_size(stored, p->stored) : "-",
			p->done && s > 0 ? strcat(show_size(rate, p->done / s), "/s") : "-",
			p->err ? "  failed: " : "", p->err ? strerror(-p->err) : "");
	}
	fprintf(out, "%-24s %8s %8.3f %8s %8s\n", "all", "", phases_seconds(ps),
		show_size(bytes, all), show_size(stored, fresh));
	pthread_mutex_unlock(&ps->lock);
}

void phases_json(struct phases *ps, struct json *j, const char *key)
{
	uint64_t now = now_ns();

	pthread_mutex_lock(&ps->lock);
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
