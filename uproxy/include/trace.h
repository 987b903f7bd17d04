/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - the file that a proxy writes for --trace PATH: what it executed, when and how long
 *
 * A header and then records follow each other. A record is a multiple of 8 bytes long and begins
 * with its kind and length; readers skip unknown kinds. The last record may be cut short, since a
 * proxy may be killed. Writes may be buffered: times are in the records. Native byte order.
 *
 *   header │ NAME op 12 "cuLaunchKernel" │ LANE 1 "stream 0x5103000010" │ SPAN op 12 lane 0 … │ …
 *
 * A NAME comes before the first SPAN that uses its op. `singvgpu trace` turns such files into JSON
 * for Perfetto: a proxy is a process there, a lane a thread of it.
 */
#ifndef UPROXY_TRACE_H
#define UPROXY_TRACE_H

#include <stdint.h>

#define UPROXY_TRACE_MAGIC	0x43525456u	/* "VTRC" */
#define UPROXY_TRACE_VERSION	1u

struct uproxy_trace_head {
	uint32_t magic;
	uint32_t version;
	uint32_t size;		/* of this struct; records begin there */
	int32_t pid;		/* the proxy's */
	int32_t client;
	int32_t device;
	char device_name[64];
	uint32_t logical;	/* as in struct uproxy_stat; not in a head of 88 bytes, of an older proxy */
	uint32_t pad;
};

#define UPROXY_TRACE_HEAD_LEAST	88u

enum uproxy_trace_kind {
	UPROXY_TRACE_NAME = 1,	/* of an op */
	UPROXY_TRACE_LANE = 2,	/* name of a lane; lane 0, the decoder, needs none */
	UPROXY_TRACE_SPAN = 3,
	UPROXY_TRACE_COLL = 4,	/* a collective operation, or a pair's end, at this device's part's end */
};

struct uproxy_trace_name {	/* NAME and LANE */
	uint16_t kind;
	uint16_t len;		/* whole record, bytes: this struct, the text, zeros up to 8 */
	uint16_t id;		/* op, or lane */
	uint16_t text_len;
	/* char text[text_len], without NUL */
};

struct uproxy_trace_span {
	uint16_t kind;
	uint16_t len;		/* sizeof(struct uproxy_trace_span) */
	uint16_t op;
	uint16_t lane;		/* 0: executed by the decoder; others: on the device, or a worker */
	uint64_t begin_ns;	/* CLOCK_MONOTONIC */
	uint64_t length_ns;
	uint64_t bytes;		/* copied or set; else 0 */
};

struct uproxy_trace_coll {
	uint16_t kind;
	uint16_t len;		/* sizeof(struct uproxy_trace_coll) */
	uint8_t call, type;	/* enum step_kind, enum tree_type */
	uint8_t failed, pad;
	uint32_t rank, ranks;	/* in the communicator */
	uint32_t peer;		/* of a pair: the other end; else the root, or 0 */
	uint32_t pad2;
	uint64_t comm;		/* the communicator's key */
	uint64_t order;		/* in the job's log of operations: the same for all ranks */
	uint64_t count;
	uint64_t posted_ns;	/* by this rank; CLOCK_MONOTONIC, as the others */
	uint64_t started_ns;	/* all ranks have posted it */
	uint64_t ended_ns;
};

_Static_assert(sizeof(struct uproxy_trace_coll) == 72, "file format");
_Static_assert(sizeof(struct uproxy_trace_head) == 96, "file format");
_Static_assert(sizeof(struct uproxy_trace_name) == 8, "file format");
_Static_assert(sizeof(struct uproxy_trace_span) == 32, "file format");

#endif
