/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.h - what the stand-in for libcuda lends to the other stand-ins: its sessions
 *
 * The sessions, and the contexts and streams that live in them, belong to libcuda.so.1. The stand-in for
 * NCCL has none of its own: it asks
 *
 *	cuGetExportTable(&core, &singvgpu_core_id)
 *
 * which NVIDIA's driver and direct mode refuse, and sends its records through these functions. The
 * table's layout only grows; `size` says how far the one at hand goes. Both libraries are of one build
 * in a job, so the version is checked for equality.
 *
 * Functions return a CUresult. None is called with a lock held that another thread needs to go on.
 */
#ifndef CORE_H
#define CORE_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda.h>

#define SINGVGPU_CORE_VERSION	4u

static const CUuuid singvgpu_core_id = { { 's', 'i', 'n', 'g', 'v', 'g', 'p', 'u', '.', 'c', 'o', 'r',
					   'e', 0, 0, 1 } };

struct context;
struct session;
struct sv_coll;
struct sv_coll_call;
struct sv_comm_word;

/* A context, by which records find their session. */
struct core_place {
	struct context *ctx;
	struct session *session;
	uint64_t handle;	/* CUcontext */
	int device;		/* the program's ordinal */
	int retained;		/* the primary context, which core_leave() releases */
};

/* A communicator, as graphs refer to it. Its memory stays; it is reused with another number. */
struct core_comm {
	uint64_t number;	/* 0: it has ended, or is about to; atomic */
	const struct sv_comm_word *word;
};

struct core_ticket {		/* a request in flight, of the thread that has sent it */
	uint64_t w[2];
};

struct singvgpu_core {
	uint32_t size, version;

	/*
	 * enter: the current context; with none, or if device is not below 0, that device's primary one.
	 * leave: ends its use.
	 */
	CUresult (*enter)(int device, struct core_place *out);
	void (*leave)(struct core_place *p);

	/*
	 * Sends SV_OP_X_COLL on a stream of the place's device, special values included; fills in its
	 * context and stream. On a stream that is being captured it adds a node to the graph, which
	 * refers to the communicator. STREAM_CAPTURE_… the capture does not take it, INVALID_HANDLE
	 * no such stream, INVALID_CONTEXT of another device.
	 */
	CUresult (*coll)(const struct core_place *p, const struct core_comm *comm, CUstream stream,
			 struct sv_coll *head, const struct sv_coll_call *calls);

	/* A record of no stream: without an answer; with one; and with one in two steps. */
	CUresult (*send)(const struct core_place *p, uint16_t op, const void *a, uint32_t len);
	CUresult (*call)(const struct core_place *p, uint16_t op, const void *a, uint32_t len);
	CUresult (*request)(const struct core_place *p, struct core_ticket *t, uint16_t op,
			    const void *a, uint32_t len);
	CUresult (*await)(const struct core_place *p, struct core_ticket *t);

	/* Zeroed memory of the arena that the place's proxy can write, and its offset. */
	CUresult (*arena_new)(const struct core_place *p, uint64_t len, uint64_t *off, void **at);
	void (*arena_free)(const struct core_place *p, uint64_t off);

	/* The error of a broken context; SYSTEM_NOT_READY the proxy is gone; 0: neither. */
	CUresult (*broken)(const struct core_place *p);

	/* 0 if the device can reach all of the range. */
	CUresult (*range)(const struct core_place *p, uint64_t addr, uint64_t len);

	/*
	 * Has the function asked before copies that the program waits for: true: a communicator of the session has
	 * failed and not been ended, so that their stream is to be looked at first.
	 */
	void (*on_copy)(bool (*failed)(const struct session *s));

	/* A line for SINGVGPU_LOG. */
	void (*log)(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
};

/* In libcuda.so.1 alone: core.c. */
__attribute__((visibility("hidden"))) extern const struct singvgpu_core core_table;
__attribute__((visibility("hidden"))) bool core_failed(const struct session *s);

#endif
