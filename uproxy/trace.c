// SPDX-License-Identifier: Apache-2.0
/*
 * trace.c - writes the trace file (trace.h): each executed record, when and how long
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "call.h"
#include "stat.h"
#include "trace.h"
#include "trace_i.h"

bool trace_on;

static FILE *file;
static uint8_t named[65536 / 8];
static uint64_t flushed;
static struct lock lock = LOCK_INIT(PROXY_TRACE);

static void put_name(uint16_t kind, uint16_t id, const char *text)
{
	struct uproxy_trace_name n = { .kind = kind, .id = id, .text_len = strlen(text) };
	static const char zero[8];

	n.len = (sizeof(n) + n.text_len + 7) & ~7u;
	fwrite(&n, sizeof(n), 1, file);
	fwrite(text, n.text_len, 1, file);
	fwrite(zero, n.len - sizeof(n) - n.text_len, 1, file);
}

int trace_open(const char *path, const struct uproxy_stat *st)
{
	struct uproxy_trace_head h = {
		.magic = UPROXY_TRACE_MAGIC, .version = UPROXY_TRACE_VERSION, .size = sizeof(h),
		.pid = st->pid, .client = st->client, .device = st->device, .logical = st->logical,
	};

	file = fopen(path, "we");
	if (!file)
		return -errno;
	setvbuf(file, NULL, _IOFBF, 1 << 16);
	memcpy(h.device_name, st->device_name, sizeof(h.device_name));
	fwrite(&h, sizeof(h), 1, file);
	put_name(UPROXY_TRACE_LANE, 1, "answered later");
	put_name(UPROXY_TRACE_LANE, 2, "workers");
	fflush(file);
	trace_on = true;
	return 0;
}

void trace_span(uint16_t op, uint16_t lane, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes)
{
	struct uproxy_trace_span s = {
		.kind = UPROXY_TRACE_SPAN, .len = sizeof(s), .op = op, .lane = lane,
		.begin_ns = begin_ns, .length_ns = end_ns - begin_ns, .bytes = bytes,
	};

	lock_may_wait("the disk of --trace");
	lock_take(&lock);
	if (file) {
		if (!(named[op / 8] & 1 << op % 8)) {
			named[op / 8] |= 1 << op % 8;
			put_name(UPROXY_TRACE_NAME, op, op_name(op));
		}
		fwrite(&s, sizeof(s), 1, file);
		/* Flush once a second, since a proxy may be killed. */
		if (end_ns - flushed > 1000000000ull) {
			fflush(file);
			flushed = end_ns;
		}
	}
	lock_drop(&lock);
}

void trace_coll(const struct uproxy_trace_coll *c)
{
	struct uproxy_trace_coll rec = *c;

	rec.kind = UPROXY_TRACE_COLL;
	rec.len = sizeof(rec);
	lock_may_wait("the disk of --trace");
	lock_take(&lock);
	if (file) {
		fwrite(&rec, sizeof(rec), 1, file);
		if (rec.ended_ns - flushed > 1000000000ull) {
			fflush(file);
			flushed = rec.ended_ns;
		}
	}
	lock_drop(&lock);
}

void trace_close(void)
{
	lock_take(&lock);
	if (file)
		fclose(file);
	file = NULL;		/* trace_on stays set: other threads may read it */
	lock_drop(&lock);
}
