/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.h - the table of functions by which other stand-ins use the sessions of libcuda.so.1
 *
 * Sessions, and the contexts and streams in them, belong to the stand-in for libcuda.so.1. The stand-in for
 * NCCL gets this table from it by
 *
 *	cuGetExportTable(&core, &singvgpu_core_id)
 *
 * and sends its records through the table's functions. NVIDIA's driver and direct mode refuse that call. New
 * functions are added at the table's end, and `size` is the size of the table at hand. A job has both libraries
 * from one build, so the caller demands its own version.
 *
 * Functions return a CUresult. Call them without holding a lock: they may wait for the proxy.
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

/* A context of the program, and the session to which its records go. */
struct core_place {
	struct context *ctx;
	struct session *session;
	uint64_t handle;	/* CUcontext */
	int device;		/* the program's ordinal */
	int retained;		/* enter() has retained the primary context, and leave() releases it */
};

/* How a graph refers to a communicator. It is never freed: a later communicator reuses it under another number. */
struct core_comm {
	uint64_t number;	/* 0: it has ended, or is about to; atomic */
	const struct sv_comm_word *word;
};

/* A request whose answer is still to come. The thread that has sent it awaits it. */
struct core_ticket {
	uint64_t w[2];
};

struct singvgpu_core {
	uint32_t size, version;

	/*
	 * enter: fills in *out with the thread's current context, if it has one and device is -1. Else with the
	 * primary context of the device (of device 0, if device is -1). leave: releases what enter has retained.
	 */
	CUresult (*enter)(int device, struct core_place *out);
	void (*leave)(struct core_place *p);

	/*
	 * Sends a collective (SV_OP_X_COLL) in a stream of the place's device, which may be one of CUDA's special
	 * values, and fills in the context and stream of *head. In a stream that is being captured it adds a node
	 * to the graph instead, and the node refers to comm. STREAM_CAPTURE_…: the capture cannot take it;
	 * INVALID_HANDLE: there is no such stream; INVALID_CONTEXT: the stream is of another device.
	 */
	CUresult (*coll)(const struct core_place *p, const struct core_comm *comm, CUstream stream,
			 struct sv_coll *head, const struct sv_coll_call *calls);

	/*
	 * Records that are in no stream. send: nobody waits for an answer. call: waits for the answer. request sends,
	 * and await waits for the answer.
	 */
	CUresult (*send)(const struct core_place *p, uint16_t op, const void *a, uint32_t len);
	CUresult (*call)(const struct core_place *p, uint16_t op, const void *a, uint32_t len);
	CUresult (*request)(const struct core_place *p, struct core_ticket *t, uint16_t op,
			    const void *a, uint32_t len);
	CUresult (*await)(const struct core_place *p, struct core_ticket *t);

	/* Allocates zeroed memory of the arena, which the place's proxy can write; *off is its offset there. */
	CUresult (*arena_new)(const struct core_place *p, uint64_t len, uint64_t *off, void **at);
	void (*arena_free)(const struct core_place *p, uint64_t off);

	/* Can the session still be used? 0: yes; SYSTEM_NOT_READY: its proxy is gone; else its context's error. */
	CUresult (*broken)(const struct core_place *p);

	/* 0 if the device can reach all of the range. */
	CUresult (*range)(const struct core_place *p, uint64_t addr, uint64_t len);

	/*
	 * Registers a function that is asked before each copy that the program waits for. It says whether a
	 * communicator of the session has failed and has not been ended: then the copy's stream is looked at first.
	 */
	void (*on_copy)(bool (*failed)(const struct session *s));

	/* A line for SINGVGPU_LOG. */
	void (*log)(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
};

/* In libcuda.so.1 alone: core.c. */
__attribute__((visibility("hidden"))) extern const struct singvgpu_core core_table;

#endif
