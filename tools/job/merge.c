// SPDX-License-Identifier: Apache-2.0
/*
 * merge.c - merges the proxies' raw traces into one JSON trace
 *
 * Each raw file is mapped and walked twice: for the earliest time and the sums by name, then for
 * its events. Its contents are checked: its writer may have been killed while it wrote.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "flows.h"
#include "merge.h"
#include "step.h"
#include "trace.h"
#include "watch.h"

struct raw {
	char path[PATH_MAX];
	int rank;
	const uint8_t *data;
	size_t size;
	uint32_t version;
	const struct uproxy_trace_head *head;
};

struct sum {
	char name[80];
	bool device;		/* on the device or a worker, not in the decoder */
	uint64_t calls, ns, most, bytes;
};

struct merge {
	FILE *out;
	struct raw *raw;
	int raws;
	uint64_t first_ns;	/* the earliest event */
	struct sum *sum;
	int sums, room;
	uint64_t spans;
	struct flows flows;	/* collective operations */
};

/* Names of one file's ops, by number; they point into the mapping. */
struct names {
	const struct uproxy_trace_name *op[65536];
};

typedef void (*span_fn)(struct merge *m, const struct raw *raw, const struct names *names,
			const struct uproxy_trace_span *span);
typedef void (*coll_fn)(struct merge *m, const struct raw *raw, const struct uproxy_trace_coll *coll);
typedef void (*lane_fn)(struct merge *m, const struct raw *raw,
			const struct uproxy_trace_name *lane);

static const char *text_of(const struct uproxy_trace_name *n)
{
	return (const char *)(n + 1);
}

static void op_name(const struct names *names, unsigned int op, char *buf, size_t size)
{
	const struct uproxy_trace_name *n = names->op[op];

	if (n)
		snprintf(buf, size, "%.*s", (int)n->text_len, text_of(n));
	else
		snprintf(buf, size, "op %u", op);
}

/* Calls span, lane and coll for each record of their kind; returns where the valid records end. */
static size_t walk(struct merge *m, const struct raw *raw, span_fn span, lane_fn lane, coll_fn coll)
{
	size_t at = raw->head->size;
	struct names *names = calloc(1, sizeof(*names));

	while (names && at + sizeof(struct uproxy_trace_name) <= raw->size) {
		const struct uproxy_trace_name *n = (const void *)(raw->data + at);

		if (n->len < sizeof(*n) || n->len & 7 || at + n->len > raw->size)
			break;
		if ((n->kind == UPROXY_TRACE_NAME || n->kind == UPROXY_TRACE_LANE) &&
		    sizeof(*n) + n->text_len > n->len)
			break;
		if (n->kind == UPROXY_TRACE_NAME)
			names->op[n->id] = n;
		else if (n->kind == UPROXY_TRACE_LANE && lane)
			lane(m, raw, n);
		else if (n->kind == UPROXY_TRACE_SPAN && n->len >= sizeof(struct uproxy_trace_span))
			span(m, raw, names, (const void *)n);
		else if (n->kind == UPROXY_TRACE_COLL && coll &&
			 n->len >= sizeof(struct uproxy_trace_coll))
			coll(m, raw, (const void *)n);
		at += n->len;
	}
	free(names);
	return at;
}

/* ------------------------------------------------------------------------------ first walk */

static struct sum *find_sum(struct merge *m, const char *name, bool device)
{
	struct sum *more;

	for (int i = 0; i < m->sums; i++)
		if (m->sum[i].device == device && !strcmp(m->sum[i].name, name))
			return &m->sum[i];
	if (m->sums == m->room) {
		m->room = m->room ? 2 * m->room : 64;
		more = realloc(m->sum, m->room * sizeof(*more));
		if (!more)
			return NULL;
		m->sum = more;
	}
	m->sum[m->sums] = (struct sum){ .device = device };
	snprintf(m->sum[m->sums].name, sizeof(m->sum[0].name), "%s", name);
	return &m->sum[m->sums++];
}

static void add_to(struct merge *m, const char *name, bool device, uint64_t begin_ns, uint64_t ns,
		   uint64_t bytes)
{
	struct sum *s = find_sum(m, name, device);

	if (!s)
		return;
	s->calls++;
	s->ns += ns;
	s->bytes += bytes;
	if (ns > s->most)
		s->most = ns;
	if (begin_ns < m->first_ns)
		m->first_ns = begin_ns;
}

static void add_span(struct merge *m, const struct raw *raw, const struct names *names,
		     const struct uproxy_trace_span *span)
{
	char name[80];

	(void)raw;
	op_name(names, span->op, name, sizeof(name));
	add_to(m, name, span->lane != 0, span->begin_ns, span->length_ns, span->bytes);
	m->spans++;
}

/* The time of a collective is that from its start on, since before that it waits for ranks. */
static void add_coll(struct merge *m, const struct raw *raw, const struct uproxy_trace_coll *c)
{
	if (flows_add(&m->flows, raw->head->pid, c))
		add_to(m, step_kind_name(c->call), true, c->posted_ns, c->ended_ns - c->started_ns, 0);
}

/* ----------------------------------------------------------------------------- second walk */

static void put_lane(struct merge *m, const struct raw *raw, const struct uproxy_trace_name *lane)
{
	fprintf(m->out, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%u,"
		"\"args\":{\"name\":", raw->head->pid, lane->id);
	json_text(m->out, text_of(lane), lane->text_len);
	fputs("}}", m->out);
}

static void put_us(FILE *out, uint64_t ns)
{
	fprintf(out, "%llu.%03u", (unsigned long long)(ns / 1000), (unsigned int)(ns % 1000));
}

static void put_span(struct merge *m, const struct raw *raw, const struct names *names,
		     const struct uproxy_trace_span *span)
{
	char name[80];

	op_name(names, span->op, name, sizeof(name));
	fputs(",\n{\"ph\":\"X\",\"name\":", m->out);
	json_text(m->out, name, strlen(name));
	fprintf(m->out, ",\"pid\":%d,\"tid\":%u,\"ts\":", raw->head->pid, span->lane);
	put_us(m->out, span->begin_ns - m->first_ns);
	fputs(",\"dur\":", m->out);
	put_us(m->out, span->length_ns);
	if (span->bytes)
		fprintf(m->out, ",\"args\":{\"bytes\":%llu}", (unsigned long long)span->bytes);
	putc('}', m->out);
}

static void put_process(struct merge *m, const struct raw *raw, bool first)
{
	const struct uproxy_trace_head *h = raw->head;
	uint32_t logical = h->size >= sizeof(*h) ? h->logical : 0;
	char name[160], device[32];

	snprintf(name, sizeof(name), "rank %d: client %d, proxy %d, device %s %.*s", raw->rank,
		 h->client, h->pid, watch_device(h->device, logical, device), (int)strnlen(h->device_name, sizeof(h->device_name)),
		 h->device_name);
	fprintf(m->out, "%s\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,"
		"\"args\":{\"name\":", first ? "" : ",", h->pid);
	json_text(m->out, name, strlen(name));
	fprintf(m->out, "}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,"
		"\"args\":{\"sort_index\":%d}}", h->pid, raw->rank);
	fprintf(m->out, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":0,"
		"\"args\":{\"name\":\"decoder\"}}", h->pid);
}

static int write_json(struct merge *m, const char *path)
{
	int err = 0;

	m->out = fopen(path, "we");
	if (!m->out)
		return -errno;
	fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", m->out);
	for (int i = 0; i < m->raws; i++) {
		put_process(m, &m->raw[i], !i);
		walk(m, &m->raw[i], put_span, put_lane, NULL);
	}
	flows_write(&m->flows, m->out, m->first_ns);
	fputs("\n]}\n", m->out);
	errno = EIO;
	if (ferror(m->out))
		err = -errno;
	if (fclose(m->out) && !err)
		err = -errno;
	return err;
}

/* --------------------------------------------------------------------------------- summary */

static int by_time(const void *a, const void *b)
{
	const struct sum *x = a, *y = b;

	return x->ns > y->ns ? -1 : x->ns < y->ns;
}

static char *show_ns(char *buf, uint64_t ns)
{
	if (ns < 10000)
		snprintf(buf, 24, "%llu ns", (unsigned long long)ns);
	else if (ns < 10000000)
		snprintf(buf, 24, "%.1f us", ns / 1e3);
	else if (ns < 10000000000)
		snprintf(buf, 24, "%.1f ms", ns / 1e6);
	else
		snprintf(buf, 24, "%.1f s", ns / 1e9);
	return buf;
}

static void summary(struct merge *m, const char *path)
{
	char total[24], mean[24], most[24], bytes[16];
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return;
	if (m->sums)
		qsort(m->sum, m->sums, sizeof(*m->sum), by_time);
	fprintf(out, "%-36s %-7s %10s %10s %10s %10s %7s\n", "NAME", "WHERE", "CALLS", "TOTAL",
		"MEAN", "MAX", "BYTES");
	for (int i = 0; i < m->sums; i++) {
		const struct sum *s = &m->sum[i];

		fprintf(out, "%-36s %-7s %10llu %10s %10s %10s %7s\n", s->name,
			s->device ? "device" : "decoder", (unsigned long long)s->calls,
			show_ns(total, s->ns), show_ns(mean, s->ns / s->calls),
			show_ns(most, s->most), s->bytes ? show_size(bytes, s->bytes) : "-");
	}
	fprintf(out, "%llu calls of %d prox%s in %s\n", (unsigned long long)m->spans, m->raws,
		m->raws == 1 ? "y" : "ies", path);
	fclose(out);
	if (text)
		say_text(text, strlen(text));
	free(text);
}

/* ------------------------------------------------------------------------------------ files */

static int map_raw(struct raw *raw)
{
	int fd = open(raw->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), err = 0;
	const struct uproxy_trace_head *h;
	struct stat s;
	void *p;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &s)) {
		err = -errno;
	} else if (s.st_size < UPROXY_TRACE_HEAD_LEAST) {
		err = -ENODATA;
	} else {
		p = mmap(NULL, s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		err = p == MAP_FAILED ? -errno : 0;
		raw->data = p;
		raw->size = s.st_size;
	}
	close(fd);
	if (err)
		return err;
	h = raw->head = (const void *)raw->data;
	raw->version = h->magic == UPROXY_TRACE_MAGIC ? h->version : 0;
	if (raw->version == UPROXY_TRACE_VERSION && h->size >= UPROXY_TRACE_HEAD_LEAST && !(h->size & 7) &&
	    h->size <= raw->size)
		return 0;
	munmap((void *)raw->data, raw->size);
	return raw->version && raw->version != UPROXY_TRACE_VERSION ? -EPROTONOSUPPORT : -EBADMSG;
}

static void open_raws(struct merge *m, const struct job *job, int ranks, const int *proxies)
{
	for (int r = 0; r < ranks; r++) {
		for (int n = 0; n < proxies[r]; n++) {
			struct raw raw = { .rank = r }, *more;
			int err = start_trace_path(job, r, n, raw.path, sizeof(raw.path));

			if (err || access(raw.path, F_OK))
				continue;
			err = map_raw(&raw);
			if (err == -ENODATA) {	/* the proxy never served */
				unlink(raw.path);
				continue;
			}
			if (err == -EPROTONOSUPPORT) {
				say("%s is a trace of version %u, this program reads version %u", raw.path,
				    raw.version, UPROXY_TRACE_VERSION);
				continue;
			}
			more = err ? NULL : realloc(m->raw, (m->raws + 1) * sizeof(raw));
			if (!more) {
				say_errno(err ?: -ENOMEM, "a proxy's trace, %s", raw.path);
				continue;
			}
			m->raw = more;
			m->raw[m->raws++] = raw;
		}
	}
}

int merge_traces(const struct job *job, int ranks, const int *proxies, bool table)
{
	const char *path = job->opt->trace;
	struct merge m = { .first_ns = UINT64_MAX };
	int err;

	open_raws(&m, job, ranks, proxies);
	for (int i = 0; i < m.raws; i++) {
		size_t end = walk(&m, &m.raw[i], add_span, NULL, add_coll);

		if (end != m.raw[i].size)
			say("the trace of proxy %d ends in the middle of a record, at byte %zu "
			    "of %zu", m.raw[i].head->pid, end, m.raw[i].size);
	}
	err = write_json(&m, path);
	flows_free(&m.flows);
	if (err)
		say_errno(err, "the trace %s cannot be written; the proxies' are %s.*", path, path);
	for (int i = 0; i < m.raws; i++) {
		munmap((void *)m.raw[i].data, m.raw[i].size);
		if (!err)
			unlink(m.raw[i].path);
	}
	if (table && !err)
		summary(&m, path);
	free(m.raw);
	free(m.sum);
	return err;
}
