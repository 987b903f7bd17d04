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
#include <sys/types.h>

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
struct replay;

struct sv_session {
	struct hal hal;
	struct ring *ring;
	uint8_t *arena;
	uint64_t arena_len, arena_first;
	struct sv_shared *shared;
	struct uproxy_stat *stat;	/* never NULL */
	uint64_t budget;		/* bytes that may be mapped */
	bool log_full;			/* the log lacks something: no restore */
	bool bypassed;			/* the client calls a driver that we do not see: no restore */
	bool shares;			/* memory or events with another process: no restore */
	int client_pidfd;
	bool restored;			/* from what a dump saved, maybe on another host */
	struct replay *replay;		/* not NULL: the log is executed again; nobody is told */

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

/* What session_open does before there is a channel: driver, window, device. */
int session_device(struct sv_session *s, const struct session_options *o, uint64_t window,
		   uint64_t window_len, int device, char *why, size_t n);

/* The channel's arena as the session sees it, and tables for the window. -ENOMEM. */
int session_arena(struct sv_session *s);

/* What sv_shared says of device i of the driver. */
void session_describe(struct hal *h, int i, struct sv_device *d);

/* Where kernels' output goes. restored: sv_shared is an earlier session's. */
int session_print(struct sv_session *s, bool restored, char *why, size_t n);

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

/*
 * A record of the log, executed to its end in the calling thread; *why is what was wrong with it.
 * A CUresult, or -errno.
 */
int serve_again(struct sv_session *s, const struct ring_record *rec, const char **why);

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

/* All contexts that are live: their number; *c is to be freed. -ENOMEM. Consumer. */
ssize_t handle_contexts(struct sv_session *s, struct context ***c);

/* All live handles of a type, by index. Nothing else runs in the session. */
typedef void (*handle_visit)(void *arg, uint64_t handle, uint64_t real, void *obj);
void handle_walk(struct sv_session *s, unsigned int type, handle_visit fn, void *arg);

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
	uint64_t call, call_word;	/* the last host function: its id, and where that is stored */
	uint64_t wait_addr;		/* of the last wait for memory, or 0 */
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
int do_stream_wait(struct call *k);
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

/* Runs of memory of SV_OP_X_MAP, ascending. Physical memory of cuMemCreate: see struct vmm. */
bool window_next_run(struct sv_session *s, uint64_t from, uint64_t *va, uint64_t *len);

/* Physical memory: it counts as long as it has a handle or a mapping. Consumer. */
struct vmm {
	struct vmm *next;	/* of all */
	uint64_t handle, real;	/* real: not if released */
	uint64_t len;
	uint64_t va;		/* if maps is not 0: an address where it is mapped */
	uint32_t maps;
	bool released;
};
const struct vmm *window_vmm(void);	/* by handle's age: the same after a replay */
/* The client's handle, which is reserved, is this memory from here on; len counts. The call's result. */
int window_add_vmm(struct call *k, uint64_t handle, uint64_t real, uint64_t len);

/* ------------------------------------------------------------------------------ share.c */

/* The process that the client is; the pidfd remains the caller's. */
void share_client(struct sv_session *s, int pidfd);
int do_mem_export(struct call *k);
int do_mem_import(struct call *k);

/* ipc.c, window.c, ipc_event.c; see peer.h */
int do_ipc_show(struct call *k);
int do_ipc_forget(struct call *k);
int do_ipc_fetch(struct call *k);
int do_ipc_map(struct call *k);
int do_ipc_close(struct call *k);
int do_ipc_event_get(struct call *k);
int do_ipc_event_open(struct call *k);
int do_ipc_event_end(struct call *k);
int do_ipc_record(struct call *k);
int do_ipc_wait(struct call *k);
int do_ipc_query(struct call *k);
int do_ipc_sync(struct call *k);
void ipc_repin(struct sv_session *s);	/* the primary context is a new one */

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
/* The file that a log's entry loads an image from, or NULL. */
const char *image_path(const struct singvgpu_log_entry *e, const void *data);

/* What is known of a kernel or function; ours while the handle lives. */
struct func {
	struct image *image;
	uint32_t param_bytes;
	bool known;			/* param_bytes is */
};
int func_find(struct sv_session *s, uint64_t handle, CUfunction *real, struct func **f);

int do_launch(struct call *k);			/* launch.c */

int do_array_destroy(struct call *k);		/* array.c */

/*
 * event.c. All in the event's context, which is current. event_mark: now, for event_before: how many
 * ms ago the event was recorded, -ENOENT never, or it keeps no time, or is another context's.
 * event_restore: that long before the dump.
 */
int event_mark(struct sv_session *s, CUevent *now);
void event_unmark(struct sv_session *s, CUevent now);
int event_before(struct sv_session *s, uint64_t handle, uint64_t real, CUevent now, float *ms);
int event_restore(struct sv_session *s, uint64_t ctx, uint64_t handle, float before);
int do_event_elapsed(struct call *k);
int do_tex_create(struct call *k);		/* texture.c */
int do_tex_destroy(struct call *k);
void textures_ctx_gone(uint64_t ctx);
/* What is live: values, and the records that made them. Consumer. */
typedef void (*object_visit)(void *arg, uint64_t value, uint64_t seq, bool surface);
void textures_walk(object_visit fn, void *arg);
int do_bypass(struct call *k);			/* log.c */

/* wanted.c: what an object of the driver's was before; ask the driver for it. -ENOMEM. */
int wanted_add(uint64_t of, uint32_t number, uint64_t value);
void wanted_next(struct sv_session *s, uint64_t of, uint32_t number);

int do_host_func(struct call *k);		/* hostfunc.c */
int do_next_call(struct call *k);
void hostfunc_due(uint64_t id);		/* a graph has come to it; a thread of the driver */
void hostfunc_release(struct sv_session *s);	/* answers open requests with id 0 */
unsigned int hostfunc_open(void);		/* their number */

int do_graph(struct call *k);			/* graph.c */
int do_graph_update(struct call *k);
int do_graph_cond(struct call *k);
int do_graph_forget(struct call *k);
/* Conditional handles of the client's graphs; kept: values outlive a launch. Consumer. */
typedef void (*condition_visit)(void *arg, uint64_t graph, unsigned int i, uint64_t value,
				bool kept);
void graph_conditions(struct sv_session *s, condition_visit fn, void *arg);
int do_graph_launch(struct call *k);
int do_graph_upload(struct call *k);
int do_graph_destroy(struct call *k);

/* journal.c: log a record and consume it. -ENOSPC no room; what ring_log_append says. */
int journal_add(struct sv_session *s, const struct ring_record *rec);
void journal_failed(uint64_t seq);	/* a record was logged before it failed; any thread */
void journal_ended(uint64_t made, uint64_t seq);	/* it ends what another one has made */
int journal_compact(struct sv_session *s);	/* what no restore needs is dropped */
uint64_t journal_seq(const struct singvgpu_log_entry *e);	/* of the entry's record */

/*
 * kept.c: what records that are in the log refer to in the arena, which the client may use for
 * something else since: a copy, by the record's number. Any thread.
 */
int kept_add(uint64_t seq, const void *p, uint64_t len);	/* -ENOMEM, -EEXIST */
int kept_take(uint64_t seq, void *p, uint64_t len);		/* the same; p becomes ours */
uint64_t kept_next(uint64_t seq, const void **p, uint64_t *len);	/* after seq; 0: none */
const void *kept_find(uint64_t seq, uint64_t *len);		/* NULL: there is none */
void kept_sweep(bool (*keep)(void *arg, uint64_t seq), void *arg);
struct store;
struct store_writer;
struct store_ref;
int kept_dump(struct store_writer *w, struct store_ref *ref, char *why, size_t n);
int kept_restore(struct store *st, const struct store_ref *ref, char *why, size_t n);

/*
 * freeze.c: -ENOTSUP and a sentence if the session can not be dumped; 0 maybe: while the device is busy
 * not all is known. Consumer, which does not wait.
 */
int freeze_possible(struct sv_session *s, char *why, size_t n);

bool freeze_idle(struct sv_session *s);	/* has the device nothing to do? Consumer */

/*
 * Gate, drain, idle: 0, or an error and a sentence, and the session runs on. given_up is asked now
 * and then. ns: what it took.
 */
int freeze(struct sv_session *s, uint64_t deadline_ms, bool (*given_up)(void), uint64_t *ns,
	   char *why, size_t n);
int thaw(struct sv_session *s);

/*
 * replay.c: a session that a dump had, from what the store has of it; it stays frozen until thaw.
 * After a failure this process is of no more use.
 */
struct ctl_device;
struct ctl_restore;
struct ctl_restored;
struct content_progress;
int replay_session(struct sv_session *s, const struct session_options *o,
		   const struct ctl_restore *from, const struct content_progress *p,
		   struct ctl_restored *to, char *why, size_t n);
void replay_device(struct hal *h, struct ctl_device *d);	/* the device in use */
void replay_answer(struct sv_session *s, CUresult status);
int replay_wait(struct sv_session *s, CUresult *status);

/* control.c: listen for conductors at path. -errno. */
int control_open(struct sv_session *s, const struct session_options *o, const char *path);
void control_close(void);
bool control_posted(void);		/* something is to be done by the consumer: control_run */
void control_run(struct sv_session *s);
/* A proxy that is to restore: 0 when the session may be served; -ECONNRESET the conductor has gone. */
int control_restore(struct sv_session *s);

bool worker_idle(void);		/* nothing runs, nothing is to be run */

/* worker.c: run fn(arg) on a thread of its own when one is free. */
int worker_run(void (*fn)(void *arg), void *arg);
int worker_call(const struct hand *h, const struct call *k);

int print_init(struct sv_session *s, uint64_t out_off, uint64_t out_size, uint64_t err_off,
	       uint64_t err_size, bool restored);		/* print.c */
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
