/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uproxy_i.h - private header of the proxy: one session, who may touch what of it, and the records
 *
 *   ring ─► serve.c ─┬─► cuda_dispatch (generated) ──┬─► answer_call ─► ring_complete, late, latch
 *       (consumer)   └─► by-hand table (hand.c) ─────┤
 *                          │ HAND_WORKER             │
 *                          ├─► worker.c ─────────────┤     loading, compiling, ending
 *                          │ CALL_LATER              │
 *                          └─► a stream ─► callback ─┘     synchronisations, answered copies
 *
 * The consumer is the main thread. It alone binds the addresses of the session (window.c) and reads
 * the ring. Handles (handle.c) are looked up by all threads and changed under a lock. What a client
 * wrote is looked at once: records are private copies, and parts of the arena are copied.
 *
 * Functions that handle a record return 0 (executed: see status), CALL_LATER, or -errno: the client
 * has broken a rule (call.c.why says which), and the session ends. What an honest client could
 * send, a program's mistake included, is a CUresult in call.c.status.
 */
#ifndef UPROXY_I_H
#define UPROXY_I_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cuda_dispatch.h"
#include "cuda_ops.h"
#include "hal/hal.h"
#include "proto.h"
#include "ring.h"
#include "stat.h"

#define CALL_LATER 1		/* answered by somebody else, later */

struct call {
	struct sv_call c;	/* first; what the generated code knows of */
	uint64_t seq;
	uint16_t cpl;
	uint16_t lane;		/* of the trace */
	uint64_t begin_ns;	/* if traced */
	uint64_t bytes;		/* for the trace */
};

struct context;
struct worker;

struct sv_session {
	struct hal hal;
	struct ring *ring;
	uint8_t *arena;
	uint64_t arena_len, arena_first;
	struct sv_shared *shared;
	struct uproxy_stat *stat;	/* never NULL */
	uint64_t budget;		/* bytes that may be mapped */
	bool log_full;			/* the log has no room: no restore */

	int32_t failed;			/* -errno: the session is to end; atomic */
	const char *failed_why;		/* static text, stored before failed */
	uint64_t failed_seq;
	uint16_t failed_op;
	uint32_t late;			/* number of late errors */
	bool latched;		/* an error that is for ever; error_lock */
	uint32_t told;		/* late errors that the log has */
	pthread_mutex_t error_lock;
};

/* ------------------------------------------------------------------------------ session.c */

struct session_options {
	const char *driver;
	uint64_t window, window_len, budget;
	enum ring_backend backend;
	int device;			/* where the client leaves it to us */
};

/* Open everything and fill sv_shared. -errno and a sentence in why[n]. */
int session_open(struct sv_session *s, const struct session_options *o,
		 const struct sv_connect *con, char *why, size_t n);

/* The client broke a rule, or something needed is lost: end the session. Any thread. */
void session_fail(struct sv_session *s, int err, const char *why, uint16_t op, uint64_t seq);

/* A result of a record that nobody waits for, or that ends the context. Any thread. */
void session_error(struct sv_session *s, CUresult r, uint16_t op, uint64_t seq);

const char *op_name(uint16_t op);

/* ------------------------------------------------------------------------------ serve.c */

/* Until the client is gone: 0, or -errno if it broke a rule. */
int session_serve(struct sv_session *s);

/* One record, consumed. -errno: the session has failed. */
int serve_record(struct sv_session *s, const struct ring_record *rec);

/* Answer a record with its status and reply; account for it. Any thread, once for each record. */
void answer_call(struct call *k);

/* Answer a record whose call is gone: what answer_call needs of it. */
struct answer {
	struct sv_session *s;
	uint64_t seq, begin_ns, bytes;
	uint16_t op, cpl;
};
struct answer answer_later(const struct call *k);
void answer_now(const struct answer *a, CUresult status, const void *reply, uint16_t len);

/* ------------------------------------------------------------------------------ hand.c */

#define HAND_LOG	1u	/* changes state: a restore replays it */
#define HAND_WORKER	2u	/* may take long: on a worker */
#define HAND_TAIL	4u	/* something follows the struct */

struct hand {
	const char *name;
	int (*fn)(struct call *k);
	uint16_t size;		/* of the struct */
	uint16_t flags;
};

/* NULL: there is none. Entries without fn are generated functions with other flags. */
const struct hand *hand_find(uint16_t op);

/* ------------------------------------------------------------------------------ handle.c */

enum { SV_TYPES = 32 };

/* The object bound to a live handle (sv_bind_obj), or NULL. */
void *handle_obj(struct sv_session *s, unsigned int type, uint64_t handle);

/* sv_bind with an object of ours, and the context whose end ends the handle (0: none). */
int handle_bind(struct sv_session *s, unsigned int type, uint64_t handle, uint64_t real, void *obj,
		uint64_t ctx);

/* Unbind all handles for which fn says 1. Consumer. */
typedef int (*handle_match)(void *arg, unsigned int type, uint64_t ctx, void *obj);
void handle_sweep(struct sv_session *s, handle_match fn, void *arg);

bool handle_live(unsigned int type, uint64_t handle);

/* ------------------------------------------------------------------------------ context.c */

struct stream {
	struct stream *next;
	struct context *context;
	uint64_t handle;
	CUstream real;
	bool blocking;		/* work of the legacy stream waits for it */
	bool legacy;
	uint64_t used;		/* context's count when it was last used; consumer */
	uint64_t done;		/* what was used up to here is known to be done; atomic */
	unsigned int refs;	/* handle and callbacks; atomic */
};

struct context {
	uint64_t handle;
	CUcontext real;
	bool primary;
	struct stream *streams;	/* consumer */
	struct spare *spare;	/* sync.c: helper streams; its lock */
	struct stream legacy;
	struct stream *grave;	/* sync.c: waits for what destroyed streams still do; or NULL */
	uint64_t uses;		/* counts uses of its streams; consumer */
};

/* The calling thread's current context, as sv_enter left it. */
struct context *context_here(void);
void context_forget(void);	/* the driver was asked for another one */

/*
 * A stream by handle; SV_STREAM_LEGACY: of the current context. stream_use: for work. 0, a
 * CUresult, or -EPROTO with *st NULL. Consumer.
 */
int stream_find(struct sv_session *s, uint64_t handle, struct stream **st);
int stream_use(struct sv_session *s, uint64_t handle, struct stream **st);
struct stream *stream_new(struct context *c, uint64_t handle, CUstream real, bool blocking);
void stream_used(struct stream *st);
void stream_put(struct stream *st);

/* All work of before use number `upto` is done. Any thread. */
void stream_reached(struct stream *st, uint64_t upto);

/* Is all work known to be done, whatever the driver says about callbacks that just return? */
bool stream_known_idle(const struct stream *st);

int do_ctx_retain(struct call *k);
int do_ctx_create(struct call *k);
int do_ctx_reset(struct call *k);
int do_ctx_destroy(struct call *k);
int do_stream_destroy(struct call *k);
int do_stream_attr(struct call *k);

/* ------------------------------------------------------------------------------ window.c */

int window_init(struct sv_session *s);

/* sv_window; and is it in the arena's pinned part? */
bool arena_pinned(struct sv_session *s, uint64_t off, uint64_t len);

/* Does this arena range belong to the client? Overflow included. */
bool arena_client(const struct sv_session *s, uint64_t off, uint64_t len);

/* Globals of modules: owner is the image. Any thread. Dropped by owner, by context (0: any). */
int globals_add(const void *owner, uint64_t ctx, uint64_t addr, uint64_t len);
void globals_drop(const void *owner, uint64_t ctx);

int do_map(struct call *k);
int do_unmap(struct call *k);
int do_pin(struct call *k);
int do_unpin(struct call *k);
int do_mem_create(struct call *k);
int do_mem_release(struct call *k);
int do_mem_map(struct call *k);
int do_mem_unmap(struct call *k);
int do_mem_access(struct call *k);
void window_repin(struct sv_session *s);	/* the primary context is a new one */

/* ------------------------------------------------------------------------------ sync.c */

/* Answer k when stream has done what is on it: 0 or CALL_LATER. */
int sync_stream(struct call *k, struct stream *st);
int do_stream_sync(struct call *k);
int do_event_sync(struct call *k);
int do_ctx_sync(struct call *k);
int do_stream_query(struct call *k);
int do_event_query(struct call *k);

/* A stream is about to be destroyed: its work still belongs to its context. */
CUresult sync_orphan(struct sv_session *s, struct stream *st);

/* ------------------------------------------------------------------------------ others */

int do_copy(struct call *k);			/* copy.c */
int do_copy3d(struct call *k);

/* A copy of rows as the driver has it, both sides checked. 0, a CUresult, or -errno. */
int copy_params(struct call *k, const struct sv_copy3d *a, CUDA_MEMCPY3D *p);

int do_load_library(struct call *k);		/* image.c */
int do_load_module(struct call *k);
int do_unload(struct call *k);
int do_link(struct call *k);	/* link.c */
int do_get_kernel(struct call *k);
int do_get_function(struct call *k);
int do_get_global(struct call *k);
int do_derive(struct call *k);
int do_enumerate(struct call *k);
int do_func_info(struct call *k);
int do_prepare(struct call *k);
void images_ctx_gone(uint64_t ctx);

/* What is known of a kernel or function; ours while the handle lives. */
struct func {
	struct image *image;
	uint32_t param_bytes;
	bool known;			/* param_bytes is */
};
int func_find(struct sv_session *s, uint64_t handle, CUfunction *real, struct func **f);

int do_launch(struct call *k);			/* launch.c */

int do_array_destroy(struct call *k);		/* array.c */
int do_tex_create(struct call *k);		/* texture.c */
int do_tex_destroy(struct call *k);
void textures_ctx_gone(uint64_t ctx);
int do_bypass(struct call *k);			/* log.c */

int do_host_func(struct call *k);		/* hostfunc.c */
int do_next_call(struct call *k);
void hostfunc_due(uint64_t id);		/* a graph has come to it; a thread of the driver */
void hostfunc_release(struct sv_session *s);	/* answers open requests with id 0 */

int do_graph(struct call *k);			/* graph.c */
int do_graph_update(struct call *k);
int do_graph_cond(struct call *k);
int do_graph_forget(struct call *k);
int do_graph_launch(struct call *k);
int do_graph_upload(struct call *k);
int do_graph_destroy(struct call *k);

/* journal.c: log a record and consume it. -ENOSPC no room; what ring_log_append says. */
int journal_add(struct sv_session *s, const struct ring_record *rec);

/* worker.c: run fn(arg) on a thread of its own when one is free. */
int worker_run(void (*fn)(void *arg), void *arg);
int worker_call(const struct hand *h, const struct call *k);

int print_init(struct sv_session *s, uint64_t out_off, uint64_t out_size, uint64_t err_off,
	       uint64_t err_size);		/* print.c */
void print_pump(struct sv_session *s);

void log_open(const char *path);		/* log.c */
/* One line, to the log; tell: also to the stderr that we were started with. */
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool log_verbose(void);

struct uproxy_stat *stat_open(const char *path);	/* stat.c */
void stat_add(uint64_t *field, uint64_t n);
uint64_t now_ns(void);

extern bool trace_on;				/* trace.c */
int trace_open(const char *path, const struct uproxy_stat *st);
void trace_span(uint16_t op, uint16_t lane, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes);
void trace_close(void);

/* A record's tail: want bytes behind at, and nothing else but zeros up to a multiple of 8. */
static inline bool tail_is(const struct sv_call *c, uint64_t at, uint64_t want)
{
	if (c->len < at || c->len - at < want || c->len - at - want > 7)
		return false;
	return sv_zero((const uint8_t *)c->data + at + want, c->len - at - want);
}

/* Bounded copies in and out of the arena are ordinary loads and stores; the client may race. */
static inline uint8_t *arena_at(const struct sv_session *s, uint64_t off)
{
	return s->arena + off;
}

/* The call failed with an error of CUDA. */
static inline int fails(struct call *k, CUresult r)
{
	k->c.status = r;
	return 0;
}

#endif
