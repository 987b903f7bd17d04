// SPDX-License-Identifier: Apache-2.0
/*
 * top.c - `singvgpu top`: draws the proxies' rates until q is pressed
 *
 * The terminal's settings are ours from raw() to cooked(), which runs on every way out but SIGKILL.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "jobboard.h"
#include "watch.h"

static const char help[] =
"Usage: singvgpu top [OPTION]...\n"
"Shows running jobs and what their proxies do per second, until q is pressed.\n"
"\n"
"  -a, --all            jobs of all users (as root)\n"
"  -d, --delay SECONDS  between two looks (default 1)\n"
"  -n, --count N        end after N looks\n"
"  -b, --batch          plain text, look after look; also if stdout is not a terminal\n"
"      --help           print this and exit\n";

static const struct option longs[] = {
	{ "all", no_argument, NULL, 'a' },
	{ "delay", required_argument, NULL, 'd' },
	{ "count", required_argument, NULL, 'n' },
	{ "batch", no_argument, NULL, 'b' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

struct line {
	char job[32];
	int rank;
	pid_t pid, proxy;
	const char *state;
	char own_state[24];
	char command[128];
	char in_flight[200];	/* an operation of the job's, in place of all but `job` */
	struct uproxy_stat s;
};

#define OTHER_LINES 4096	/* of another user's operations, while there are no more lines than that */

struct look {
	struct line *line;
	const struct line **by_proxy;	/* those with a proxy, sorted */
	int with_proxy;
	int lines, jobs, ranks, proxies;
	unsigned int left_out;	/* jobs */
	uint64_t ms;
};

static struct termios before;
static volatile sig_atomic_t ended, resized, continued;

/* -------------------------------------------------------------------------------- look */

static int add_line(struct look *l, const struct rundir_job *job, int r,
		    const struct rundir_proxy *p)
{
	struct line *more = realloc(l->line, (l->lines + 1) * sizeof(*more)), *x;

	if (!more)
		return -ENOMEM;
	l->line = more;
	x = &more[l->lines++];
	memset(x, 0, sizeof(*x));
	memcpy(x->job, job->id, sizeof(x->job));
	watch_clip(x->command, sizeof(x->command), job->command);
	x->rank = r;
	x->s.device = -1;
	if (p) {
		watch_stat(job, p, &x->s, NULL);
		x->state = watch_proxy_state(p, &x->s);
		x->pid = p->client;
		x->proxy = p->pid;
		l->proxies++;
	} else {
		watch_rank_state(&job->rank[r], x->own_state);
		x->pid = job->rank[r].pid;
	}
	return 0;
}

/* What was in flight at the supervisor's last look. */
static int add_comms(struct look *l, const struct rundir_job *job)
{
	struct line *more, *x;
	struct jobboard_comm *comm;
	char text[160];
	size_t n;
	int err = jobboard_read(job, &comm, &n);

	if (err)
		return 0;	/* the job is ending */
	for (size_t i = 0; i < n; i++)
		for (unsigned int o = 0; o < comm[i].ops; o++) {
			if (job->uid != geteuid() && l->lines >= OTHER_LINES)
				break;
			more = realloc(l->line, (l->lines + 1) * sizeof(*more));
			if (!more) {
				jobboard_free(comm, n);
				return -ENOMEM;
			}
			l->line = more;
			x = &more[l->lines++];
			memset(x, 0, sizeof(*x));
			memcpy(x->job, job->id, sizeof(x->job));
			jobboard_sentence(&comm[i].op[o], wall_ns(), text, sizeof(text));
			snprintf(x->in_flight, sizeof(x->in_flight), "communicator %08llx: %s",
				 (unsigned long long)(comm[i].key >> 32), text);
		}
	jobboard_free(comm, n);
	return 0;
}

static int look_at(struct look *l, const struct rundir_job *job)
{
	int err = 0;

	l->jobs++;
	for (int r = 0; r < job->ranks && !err; r++) {
		bool some = false;

		l->ranks++;
		for (int i = 0; i < job->proxies && !err; i++) {
			if (job->proxy[i].rank != r)
				continue;
			err = add_line(l, job, r, &job->proxy[i]);
			some = true;
		}
		if (!some && !err)
			err = add_line(l, job, r, NULL);
	}
	return err ?: add_comms(l, job);
}

static int by_proxy(const void *a, const void *b)
{
	const struct line *x = *(const struct line *const *)a, *y = *(const struct line *const *)b;

	return x->proxy != y->proxy ? (x->proxy < y->proxy ? -1 : 1) : strcmp(x->job, y->job);
}

/* For same(): every line of the next look is looked up in this one. */
static int sort(struct look *l)
{
	l->by_proxy = malloc((l->lines + 1) * sizeof(*l->by_proxy));
	if (!l->by_proxy)
		return -ENOMEM;
	for (int i = 0; i < l->lines; i++)
		if (l->line[i].proxy)
			l->by_proxy[l->with_proxy++] = &l->line[i];
	qsort(l->by_proxy, l->with_proxy, sizeof(*l->by_proxy), by_proxy);
	return 0;
}

static void forget(struct look *l)
{
	free(l->by_proxy);
	free(l->line);
}

static int look(struct look *l, bool all)
{
	struct rundir_job *jobs;
	int n, err;

	memset(l, 0, sizeof(*l));
	n = rundir_list(&jobs, all ? RUNDIR_ALL : RUNDIR_HERE, &l->left_out);
	err = n < 0 ? n : 0;
	for (int i = 0; i < n && !err; i++)
		if (jobs[i].live)
			err = look_at(l, &jobs[i]);
	if (n >= 0)
		rundir_list_free(jobs, n);
	l->ms = now_ms();
	err = err ?: sort(l);
	if (err)
		forget(l);
	return err;
}

static const struct line *same(const struct look *l, const struct line *x)
{
	const struct line **found;

	found = x->proxy && l->by_proxy ? bsearch(&x, l->by_proxy, l->with_proxy, sizeof(*l->by_proxy), by_proxy) : NULL;
	return found ? *found : NULL;
}

/* -------------------------------------------------------------------------------- draw */

struct page {
	bool batch;
	int rows, columns, row;
};

/* One line, cut at the terminal's width. */
static void put_row(struct page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put_row(struct page *p, const char *fmt, ...)
{
	char text[1024], cut[1024];
	size_t size = sizeof(cut);
	va_list ap;

	if (!p->batch && p->row >= p->rows)
		return;
	p->row++;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (!p->batch && p->columns + 1u < size)
		size = p->columns + 1;
	watch_clip(cut, size, text);
	/* \033[K erases the rest of the previous text */
	printf("%s%s", cut, p->batch ? "\n" : "\033[K");
	if (!p->batch && p->row < p->rows)
		fputs("\r\n", stdout);
}

static uint64_t per_second(uint64_t now, uint64_t then, uint64_t ms)
{
	return ms && now > then ? (now - then) * 1000 / ms : 0;
}

static void draw_line(struct page *p, const struct line *x, const struct line *then, uint64_t ms)
{
	char mem[16] = "-", calls[16] = "-", launches[16] = "-", up[16] = "-", down[16] = "-";
	char proxy[16] = "-", device[128] = "-", number[32];

	if (*x->in_flight) {
		put_row(p, "%-8s   %s", x->job, x->in_flight);
		return;
	}
	if (x->proxy) {
		const struct uproxy_stat *s = &x->s, *t = then ? &then->s : &x->s;

		snprintf(proxy, sizeof(proxy), "%d", x->proxy);
		show_size(mem, s->device_bytes);
		show_count(calls, per_second(s->calls, t->calls, ms));
		show_count(launches, per_second(s->launches, t->launches, ms));
		show_size(up, per_second(s->bytes_to_device, t->bytes_to_device, ms));
		show_size(down, per_second(s->bytes_to_host, t->bytes_to_host, ms));
		if (s->device >= 0)
			snprintf(device, sizeof(device), "%s %s", watch_device(s->device, s->logical, number), s->device_name);
	}
	put_row(p, "%-8s %4d %7d %-9s %7s %-19.19s %7s %7s %8s %7s %7s  %s", x->job, x->rank, x->pid,
		x->state ?: x->own_state, proxy, device, mem, calls, launches, up, down,
		x->command);
}

static void draw(const struct look *now, const struct look *then, bool batch)
{
	struct page p = { .batch = batch, .rows = 24, .columns = 80 };
	struct winsize w;
	time_t t = time(NULL);
	struct tm tm;
	char clock[16], left_out[32] = "";

	if (!ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) && w.ws_row && w.ws_col) {
		p.rows = w.ws_row;
		p.columns = w.ws_col;
	}
	strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&t, &tm));
	if (!batch)
		fputs("\033[H", stdout);
	if (now->left_out)
		snprintf(left_out, sizeof(left_out), ", %u not shown", now->left_out);
	put_row(&p, "singvgpu top - %s, %d job%s%s, %d rank%s, %d prox%s%s", clock, now->jobs,
		now->jobs == 1 ? "" : "s", left_out, now->ranks, now->ranks == 1 ? "" : "s", now->proxies,
		now->proxies == 1 ? "y" : "ies", batch ? "" : "; q quits");
	put_row(&p, "%-8s %4s %7s %-9s %7s %-19s %7s %7s %8s %7s %7s  %s", "JOB", "RANK", "PID",
		"STATE", "PROXY", "DEVICE", "MEMORY", "CALLS/s", "LAUNCH/s", "TO-DEV", "TO-HOST",
		"COMMAND");
	for (int i = 0; i < now->lines; i++)
		draw_line(&p, &now->line[i], then ? same(then, &now->line[i]) : NULL,
			  then ? now->ms - then->ms : 0);
	if (batch)
		putchar('\n');
	else
		fputs("\033[J", stdout);
	fflush(stdout);
}

/* ---------------------------------------------------------------------------- terminal */

static void handler(int sig)
{
	if (sig == SIGWINCH)
		resized = 1;
	else if (sig == SIGCONT)
		continued = 1;
	else
		ended = sig;
}

static void raw(void)
{
	struct termios t = before;

	t.c_lflag &= ~(ICANON | ECHO);
	t.c_cc[VMIN] = 0;
	t.c_cc[VTIME] = 0;
	tcsetattr(STDIN_FILENO, TCSANOW, &t);
	/* the alternate screen, no cursor */
	fputs("\033[?1049h\033[?25l\033[2J", stdout);
}

static void cooked(void)
{
	fputs("\033[?25h\033[?1049l", stdout);
	fflush(stdout);
	tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static void set_handlers(void)
{
	static const int list[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGCONT };
	struct sigaction a = { .sa_handler = handler };

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		sigaction(list[i], &a, NULL);
}

/* Waits for the next refresh. True: it is due; false: the user has pressed q or sent a signal. */
static bool pause_ms(long ms, bool keys)
{
	uint64_t until = now_ms() + ms;
	struct pollfd p = { .fd = keys ? STDIN_FILENO : -1, .events = POLLIN };

	while (!ended) {
		uint64_t now = now_ms();
		char key;

		if (resized || continued || now >= until)
			break;
		if (poll(&p, 1, until - now) <= 0 || !p.revents)
			continue;
		if (read(STDIN_FILENO, &key, 1) <= 0)
			p.fd = -1;	/* end of input: no more keys */
		else if (key == 'q' || key == 'Q')
			return false;
		else if (key == ' ')
			break;
	}
	return !ended;
}

static int watch(long ms, long count, bool batch, bool all)
{
	struct look now, then;
	bool have = false, screen = !batch, keys = screen && !tcgetattr(STDIN_FILENO, &before);
	int err = 0;

	if (screen && keys)
		raw();
	set_handlers();
	for (long i = 0; !count || i < count; i++) {
		if (i && !pause_ms(ms, keys))
			break;
		if (continued && keys)
			raw();
		resized = continued = 0;
		err = look(&now, all);
		if (err)
			break;
		draw(&now, have ? &then : NULL, batch);
		if (have)
			forget(&then);
		then = now;
		have = true;
		if (ferror(stdout))
			break;
	}
	if (have)
		forget(&then);
	if (screen && keys)
		cooked();
	if (err) {
		say_errno(err, "the jobs cannot be listed");
		return EXIT_OURS;
	}
	return ended && ended != SIGINT ? 128 + ended : 0;
}

int top_main(int argc, char **argv)
{
	long ms = 1000, count = 0;
	bool all = false, batch = !isatty(STDOUT_FILENO);
	int c;

	while ((c = getopt_long(argc, argv, "ad:n:bh", longs, NULL)) != -1) {
		switch (c) {
		case 'a':
			all = true;
			break;
		case 'd':
			if (parse_seconds(optarg, &ms) || ms < 50)
				return say_usage("top", "--delay '%s' is not a number of seconds "
						 "from 0.05 up", optarg);
			break;
		case 'n':
			if (parse_int(optarg, 1, 1000000000, &count))
				return say_usage("top", "--count '%s' is not a number from 1 up",
						 optarg);
			break;
		case 'b':
			batch = true;
			break;
		case 'h':
			fputs(help, stdout);
			return 0;
		default:
			return say_usage("top", "that option is not known, or lacks its value");
		}
	}
	if (optind != argc)
		return say_usage("top", "'%s' is one argument too many", argv[optind]);
	return watch(ms, count, batch, all);
}
