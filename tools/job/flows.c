// SPDX-License-Identifier: Apache-2.0
/*
 * flows.c - collective operations in a trace
 *
 *   rank 0   ├─ all-reduce ─────────────┤      posted … ended: the operation
 *            ├ waits for rank 2 ┤├ runs ┤      all have posted it: it starts
 *                               ▲
 *   rank 2        s ────────────┘ t ─► f       from the rank that came last to all others
 *
 * A rank's operations may overlap, as slices of a track may not: so each has the first track that is free.
 * The parts of an operation have one number, its order in the job's log.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "jobboard.h"
#include "flows.h"
#include "step.h"
#include "tool_i.h"

#define FIRST_TID	100000u		/* above all lanes of trace.h */

struct flow_part {
	const struct uproxy_trace_coll *c;
	int pid;
	uint32_t track;
};

bool flows_add(struct flows *f, int pid, const struct uproxy_trace_coll *c)
{
	struct flow_part *more;

	if (c->call >= STEP_KINDS || c->posted_ns > c->started_ns || c->started_ns > c->ended_ns ||
	    !c->ranks || c->rank >= c->ranks)
		return false;
	if (f->n == f->room) {
		more = realloc(f->part, (2 * f->room + 64) * sizeof(*more));
		if (!more)
			return false;
		f->part = more;
		f->room = 2 * f->room + 64;
	}
	f->part[f->n++] = (struct flow_part){ c, pid, 0 };
	return true;
}

void flows_free(struct flows *f)
{
	free(f->part);
	memset(f, 0, sizeof(*f));
}

static int compare(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

/* ------------------------------------------------------------------------------ tracks */

static int by_pid(const void *a, const void *b)
{
	const struct flow_part *x = a, *y = b;

	return x->pid != y->pid ? compare(x->pid, y->pid) : compare(x->c->posted_ns, y->c->posted_ns);
}

static void name_track(FILE *out, int pid, uint32_t track)
{
	fprintf(out, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%u,\"args\":{\"name\":"
		"\"collectives", pid, FIRST_TID + track);
	if (track)
		fprintf(out, " %u", track + 1);
	fputs("\"}}", out);
}

/* Gives each part of the processes the first track that is free at its time. */
static void find_tracks(struct flows *f, FILE *out)
{
	uint64_t *until = calloc(f->n, sizeof(*until));	/* by track */
	uint32_t tracks = 0, t;

	qsort(f->part, f->n, sizeof(*f->part), by_pid);
	for (size_t i = 0; until && i < f->n; i++) {
		struct flow_part *p = &f->part[i];

		if (!i || p[-1].pid != p->pid)
			tracks = 0;
		for (t = 0; t < tracks && until[t] > p->c->posted_ns; t++)
			;
		if (t == tracks) {
			name_track(out, p->pid, t);
			tracks++;
		}
		p->track = t;
		until[t] = p->c->ended_ns;
	}
	free(until);
}

/* ------------------------------------------------------------------------------ slices */

static void put_us(FILE *out, const char *key, uint64_t ns)
{
	fprintf(out, ",\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned int)(ns % 1000));
}

static void begin_event(FILE *out, const struct flow_part *p, const char *ph, const char *name,
			uint64_t at)
{
	fprintf(out, ",\n{\"ph\":\"%s\",\"cat\":\"collective\",\"name\":\"%s\",\"pid\":%d,\"tid\":%u", ph,
		name, p->pid, FIRST_TID + p->track);
	put_us(out, "ts", at);
}

static void put_slices(FILE *out, const struct flow_part *p, const struct uproxy_trace_coll *last,
		       uint64_t first_ns)
{
	const struct uproxy_trace_coll *c = p->c;
	char waits[40];

	begin_event(out, p, "X", step_kind_name(c->call), c->posted_ns - first_ns);
	put_us(out, "dur", c->ended_ns - c->posted_ns);
	fprintf(out, ",\"args\":{\"communicator\":\"%08" PRIx64 "\",\"rank\":%u,\"ranks\":%u,\"count\":%" PRIu64
		",\"type\":\"%s\",\"operation\":%" PRIu64 ",\"last\":%u", c->comm >> 32, c->rank, c->ranks,
		c->count, jobboard_type_name(c->type), c->order, last->rank);
	if (c->call >= STEP_SEND)
		fprintf(out, ",\"peer\":%u", c->peer);
	fprintf(out, "%s}}", c->failed ? ",\"failed\":true" : "");
	snprintf(waits, sizeof(waits), "waits for rank %u", last->rank);
	begin_event(out, p, "X", c == last ? "starts" : waits, c->posted_ns - first_ns);
	put_us(out, "dur", c->started_ns - c->posted_ns);
	fputc('}', out);
	begin_event(out, p, "X", "runs", c->started_ns - first_ns);
	put_us(out, "dur", c->ended_ns - c->started_ns);
	fputc('}', out);
}

static void put_flow(FILE *out, const struct flow_part *p, const char *ph, uint64_t at)
{
	begin_event(out, p, ph, step_kind_name(p->c->call), at);
	fprintf(out, ",\"id\":%" PRIu64 "%s}", p->c->order, *ph == 's' ? "" : ",\"bp\":\"e\"");
}

/* ------------------------------------------------------------------------------ operations */

static int by_operation(const void *a, const void *b)
{
	const struct uproxy_trace_coll *x = ((const struct flow_part *)a)->c;
	const struct uproxy_trace_coll *y = ((const struct flow_part *)b)->c;
	int of = compare(x->order, y->order);

	of = of ? of : compare(x->comm, y->comm);
	return of ? of : compare(x->posted_ns, y->posted_ns);
}

static int by_start(const void *a, const void *b)
{
	return compare(((const struct flow_part *)a)->c->started_ns,
		       ((const struct flow_part *)b)->c->started_ns);
}

/* The n parts of an operation, the last of which was posted last. */
static void put_operation(FILE *out, struct flow_part *part, size_t n, uint64_t first_ns)
{
	struct flow_part last = part[n - 1];
	size_t steps = 0;

	for (size_t i = 0; i < n; i++)
		put_slices(out, &part[i], last.c, first_ns);
	qsort(part, n - 1, sizeof(*part), by_start);
	for (size_t i = 0; i < n - 1; i++)
		steps += part[i].c->started_ns >= last.c->posted_ns;
	if (!steps)		/* the other ranks' traces are cut short */
		return;
	put_flow(out, &last, "s", last.c->posted_ns - first_ns);
	for (size_t i = n - 1 - steps; i < n - 1; i++)
		put_flow(out, &part[i], i == n - 2 ? "f" : "t", part[i].c->started_ns - first_ns);
}

void flows_write(struct flows *f, FILE *out, uint64_t first_ns)
{
	size_t n;

	if (!f->n)
		return;
	find_tracks(f, out);
	qsort(f->part, f->n, sizeof(*f->part), by_operation);
	for (size_t i = 0; i < f->n; i += n) {
		const struct uproxy_trace_coll *c = f->part[i].c;
		size_t most = c->call >= STEP_SEND ? 2 : c->ranks;

		/* A job that has been restored counts its operations anew: those of before come first. */
		for (n = 1; n < most && i + n < f->n && f->part[i + n].c->order == c->order &&
		     f->part[i + n].c->comm == c->comm; n++)
			;
		put_operation(out, &f->part[i], n, first_ns);
	}
}
