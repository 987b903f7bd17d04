/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uproxy_i.h - private header of the proxy: the session, the threads that use it, the handlers
 *
 *   ring ─► loop.c ─► serve.c ─┬─► cuda_dispatch (generated) ──┬─► answer_call ─► ring_complete, late, latch
 *                 (consumer)   └─► by hand (records.c) ────────┤
 *                                    │ RECORD_WORKER           │
 *                                    ├─► worker.c ─────────────┤     loading, compiling, ending
 *                                    │ CALL_LATER              │
 *                                    └─► a stream ─► callback ─┘     synchronisations, answered copies
 *
 * The consumer is the main thread. It alone reads the ring. It alone decides about the session's addresses
 * (window.c), and workers then call the driver for them. Any thread looks up handles (handle.c), and a lock guards
 * their changes; docs/locks.md has all threads and locks. Data of the client is read once: records are private
 * copies, and parts of the arena are copied before they are used.
 *
 * A handler returns 0: the record has been executed, and call.c.status is its result. CALL_LATER: another thread
 * answers it. -errno: the client has broken a rule, which call.c.why names, and the session ends. Whatever an
 * honest client can cause, by a mistake of its program too, is no broken rule but a CUresult in call.c.status.
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
#include "hal.h"
#include "lock.h"
#include "proto.h"
#include "ring.h"
#include "stat.h"
#include "why.h"
#include "windows.h"

#define CALL_LATER 1		/* a worker or a callback answers the record */

struct call {
	struct sv_call c;	/* first member: all that the generated code knows */
	uint64_t seq;
	uint16_t cpl;
	uint16_t lane;		/* of the trace */
	uint64_t begin_ns;	/* if traced */
	uint64_t bytes;		/* for the trace */
};

struct context;
struct record;
struct worker;
struct replay_answer;

struct sv_session {
	struct hal hal;
	struct ring *ring;
	uint8_t *arena;			/* the channel's, or the one of the client's first session */
	uint64_t arena_len, arena_first;
	bool guest;			/* the arena is that of the client's first session, whose proxy saves it */
	struct ring_guest home;		/* of a guest: the channel that the arena belongs to */
	struct sv_shared *shared;	/* the beginning of the channel's own arena */
	struct uproxy_stat *stat;	/* never NULL. Others can write it: nothing may be decided by what it says */
	uint32_t state;			/* enum uproxy_stat_state; atomic, stat_state() */
	pid_t client;			/* consumer */
	uint64_t budget;		/* bytes that may be mapped */
	/* Each of the next three forbids a checkpoint. */
	bool log_full;			/* the log lacks a record */
	bool bypassed;			/* the client has mapped a driver of its own */
	bool shares;			/* the client has shared memory or events with another process */
	int client_pidfd;
	bool restored;			/* from a dump, maybe on another host */
	struct replay_answer *replay;	/* not NULL: the log is executed again, and answers go here */

	int32_t failed;			/* -errno: the session is to end; atomic */
	const char *failed_rule;	/* static text, stored before failed */
	uint64_t failed_seq;
	uint16_t failed_op;
	uint32_t late;		/* number of deferred errors; error_lock */
	uint32_t late_error;	/* the newest one; error_lock */
	bool full;		/* too much is parked: SV_LATE_FULL; error_lock */
	bool latched;		/* there was a sticky error; error_lock */
	uint32_t told;		/* deferred errors; log.c gets LATE_TOLD of them; atomic */
	struct lock error_lock;
};

/* ------------------------------------------------------------------------------ session.c */

struct session_options {
	const char *driver;
	uint64_t budget;
	struct sv_window window[SV_WINDOWS_MAX];	/* tried in turn; none: the usual ones */
	int windows;
	enum ring_backend backend;
	int device;			/* the logical device of a client that asks for none (-1) */
	/*
	 * From the table of tools/job/seating.h. map: the driver's device of each logical one. sharers: how many ranks
	 * share each of the driver's devices.
	 */
	uint16_t map[SV_DEVICES_MAX], sharers[SV_DEVICES_MAX];
	bool mapped;			/* map is set; else logical and driver's numbers are the same */
	uint32_t devices;		/* how many logical devices there are; 0: as many as the driver has */
};

/*
 * Opens the device and the channel, and fills in sv_shared. home: if the client has sessions already (con->others),
 * the fd of the first one's channel, which stays the caller's. -errno, also in *why.
 */
int uproxy_session_open(struct sv_session *s, const struct session_options *o,
			const struct sv_connect *con, int home, struct why *why);

/*
 * The first part of uproxy_session_open: opens driver, window and device, but no channel. It tries the n windows in
 * turn, and takes the first that the driver reserves. anywhere: if the driver reserves none, it may choose one.
 */
int uproxy_session_device(struct sv_session *s, const struct session_options *o,
			  const struct sv_window *w, int n, bool anywhere, int device, struct why *why);

/* Is this process's address space randomised? Then a driver may place modules elsewhere each time. */
bool addresses_random(void);

/* "memfd" or "kmod". */
const char *session_backend(const struct sv_session *s);

/*
 * Sets s->arena, and makes the tables for the window. home: the fd of the channel whose arena the session uses, or -1:
 * its own channel's. Errors of ring_map_arena, -ENOMEM.
 */
int session_arena(struct sv_session *s, int home, struct why *why);

/* Describes the driver's device i in *d, a row of sv_shared. */
void session_describe(struct hal *h, int i, struct sv_device *d);

/* Has what kernels print go to the client. restored: sv_shared is that of a saved session. */
int session_print(struct sv_session *s, bool restored, struct why *why);

/* ------------------------------------------------------------------------------ fail.c */

/* Ends the session: the client broke a rule (static text), or a resource is lost. Any thread. */
void session_fail(struct sv_session *s, int err, const char *rule, uint16_t op, uint64_t seq);

/* Reports a deferred error (nobody waits for the record) or a sticky one. Any thread. */
void session_error(struct sv_session *s, CUresult r, uint16_t op, uint64_t seq);

/* Has the client ask for room before it hands in more (SV_LATE_FULL), or no longer. Any thread. */
void session_full(struct sv_session *s, bool full);

/* ------------------------------------------------------------------------------ op.c, loop.c, serve.c */

/* "unknown" of what is no operation. */
const char *op_name(uint16_t op);

/* Serves records until the client is gone (0) or the session has failed (-errno). */
int session_serve(struct sv_session *s);

/* Executes and consumes a record. -errno: the session has failed. */
int serve_record(struct sv_session *s, const struct ring_record *rec);

/*
 * Executes a record of the log again and waits until it has ended. A CUresult, or -errno with the
 * broken rule in *rule.
 */
int serve_again(struct sv_session *s, const struct ring_record *rec, const char **rule);

/* ------------------------------------------------------------------------------ answer.c */

/*
 * The status of a wait that covers a failed operation: the client gets CUDA_ERROR_EXTERNAL_DEVICE, and the
 * context is not broken.
 */
#define COVER_FAILS ((CUresult)(0x10000 | CUDA_ERROR_EXTERNAL_DEVICE))

/* Answers a record with its status and reply, and counts it. Any thread, once for each record. */
void answer_call(struct call *k);

/* For a record that is answered after its struct call has gone. */
struct answer {
	struct sv_session *s;
	uint64_t seq, begin_ns, bytes;
	uint16_t op, cpl;
};
struct answer answer_later(const struct call *k);
void answer_now(const struct answer *a, CUresult status, const void *reply, uint16_t len);

/* Where answer_now() of a session whose log is executed again leaves its status. */
struct replay_answer {
	struct lock lock;
	pthread_cond_t come;
	bool answered;
	CUresult status;
};
/* Waits for the status of a record that returned CALL_LATER. */
CUresult answer_wait(struct replay_answer *r);

/* ------------------------------------------------------------------------------ records.c */

#define RECORD_LOG	0x1u	/* changes state: a restore replays it */
#define RECORD_WORKER	0x2u	/* may take long: on a worker, logged before its result is known */
#define RECORD_TAIL	0x4u	/* more bytes follow the struct */
#define RECORD_IMAGE	0x8u	/* a struct sv_image, whose bytes may be in a file */
#define RECORD_ALLOC	0x10u	/* takes device memory */
/* Effects on memory: these records begin with an address and a length in the window. */
#define RECORD_MAPS	0x20u
#define RECORD_UNMAPS	0x40u
#define RECORD_ACCESS	0x80u
#define RECORD_MEMORY	(RECORD_MAPS | RECORD_UNMAPS | RECORD_ACCESS)
#define RECORD_RANGE	0x100u	/* an arena offset, not a handle, names what it makes or ends */
#define RECORD_VALUE	0x200u	/* makes an object that the answer names, not the record */
#define RECORD_ENDS_VALUE 0x400u /* ends such an object: journal_ended gets its maker's number */
#define RECORD_COND	0x800u	/* makes the object that it names, or changes it if it is there */
#define RECORD_ORDERED	0x1000u	/* its result, or a later one's, depends on what is there */
#define RECORD_GRAPH	0x2000u	/* a struct sv_graph_req: its description has handles, too */
#define RECORD_FIRST	0x4000u	/* of records with the same key the first counts; else the last */
#define RECORD_NODES	0x8000u	/* its key is the set of the description's nodes */

#define RECORD_REST	UINT16_MAX

struct record {
	const char *name;
	int (*fn)(struct call *k);	/* NULL: the generated dispatch */
	uint16_t size;			/* of the struct; the generated dispatch has its own check */
	uint16_t flags;
	/* Offset + 1 of the name of the object that it makes, ends, changes; 0: there is none. */
	uint16_t makes, ends, changes;
	/* The same of what leads to an image, in the context that the record begins with. */
	uint16_t of;
	/*
	 * What becomes of it while something is parked (streams/park.h).
	 * park: one of enum park. stream: where the name of its stream is, offset + 1. event, event2: the same of the
	 * events or graphs that it names; for PARK_POST, of the communicator.
	 * waits: it uses the event or graph; else it records or changes that.
	 * versions: it records an event of which park.c makes copies.
	 * answered: if it is parked and complete in itself, it is answered at once, and an error comes later.
	 * tells: another proxy waits for it (streams/outside.h).
	 */
	uint8_t park;
	bool waits, versions, answered, tells;
	uint16_t stream, event, event2;
	/* Of a logged record that changes an object: two that set the same agree in these bytes. */
	struct record_key {
		uint16_t at, len;	/* RECORD_REST: all that follow */
	} key[2];
};

/* NULL: there is no handler. */
const struct record *record_of(uint16_t op);

/* Executes k by its row r. Returns what the handler does; -ENOSYS: there is none. */
int record_run(const struct record *r, struct call *k);

/* ------------------------------------------------------------------------------ handle.c */

enum { SV_TYPES = 32 };

/* The object bound to a live handle (sv_bind_obj), or NULL. */
void *handle_obj(struct sv_session *s, unsigned int type, uint64_t handle);

/* sv_real of all but streams. */
int handle_real(struct sv_session *s, unsigned int type, uint64_t handle, uint64_t *real);

/* As sv_bind, with an object of ours, and the context whose end ends the handle (0: none). */
int handle_bind(struct sv_session *s, unsigned int type, uint64_t handle, uint64_t real, void *obj,
		uint64_t ctx);

/* Unbind all handles for which fn says 1. Consumer. */
typedef int (*handle_match)(void *arg, unsigned int type, uint64_t ctx, void *obj);
void handle_sweep(struct sv_session *s, handle_match fn, void *arg);

bool handle_live(unsigned int type, uint64_t handle);

/* Lists the live contexts and returns their number; the caller frees *c. -ENOMEM. Consumer. */
ssize_t handle_contexts(struct sv_session *s, struct context ***c);

/* Visits all live handles of a type, by index. Nothing else may run in the session. */
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
	uint64_t used;		/* context.uses at its last use; consumer */
	uint64_t done;		/* uses up to this number are known to be done; atomic */
	unsigned int refs;	/* handle and callbacks; atomic */
	uint64_t call, call_word;	/* the last host function's id; its word's arena offset */
	uint64_t wait_addr;		/* of the last wait for memory, or 0 */
	uint64_t ops, passed;	/* operations put into it, and those known to be done; consumer */
	struct marks *marks;	/* mark.c; or NULL */
	struct queue *queue;	/* park.c; or NULL */
	struct cover *cover;	/* cover.c; or NULL */
};

struct context {
	uint64_t handle;
	CUcontext real;
	bool primary;
	struct stream *streams;	/* consumer */
	struct spare *spare;	/* sync.c: helper streams; spare_lock */
	struct stream legacy;
	struct stream *grave;	/* sync.c: waits for the work of destroyed streams; or NULL */
	uint64_t uses;		/* counts uses of its streams; consumer */
};

/* The calling thread's current context, as sv_enter left it. */
struct context *context_here(void);
void context_forget(void);	/* the driver's current context was changed without sv_enter */
/* Any live context, for driver calls that need one, whichever it is: the thread's, or the primary one. */
void sv_enter_any(struct sv_session *s);

/*
 * uproxy_stream_find: the stream of a handle; SV_STREAM_LEGACY is the current context's. stream_use
 * marks it and counts a use, too. 0, a CUresult, or -EPROTO with *st NULL. Consumer.
 */
int uproxy_stream_find(struct sv_session *s, uint64_t handle, struct stream **st);
int stream_use(struct sv_session *s, uint64_t handle, struct stream **st);
struct stream *uproxy_stream_new(struct context *c, uint64_t handle, CUstream real, bool blocking);
void stream_used(struct stream *st);
void stream_put(struct stream *st);

/*
 * mark.c: stream_mark comes before an operation is put into a stream; its context is current.
 * stream_left: how many of a stream's operations may not be done yet; the context is current.
 * stream_unmark: before the stream goes. Consumer.
 */
void stream_mark(struct sv_session *s, struct stream *st);
uint64_t stream_left(struct sv_session *s, struct stream *st);
void stream_unmark(struct sv_session *s, struct stream *st);

/* All uses up to number `upto` are done. Any thread. */
void stream_reached(struct stream *st, uint64_t upto);

/* Is all work known to be done? (The driver counts a callback as work until it has returned.) */
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

/* Does this arena range belong to the client, and is it pinned? */
bool arena_pinned(struct sv_session *s, uint64_t off, uint64_t len);

/* Bytes of device memory that are mapped; *pins (may be NULL): of the arena, pinned. */
uint64_t window_bytes(uint64_t *pins);

/* Does this arena range belong to the client? off and len may be any numbers. */
bool arena_client(const struct sv_session *s, uint64_t off, uint64_t len);

/*
 * Ranges of modules' variables; owner: the image. globals_drop drops those of owner (NULL: any) in
 * context ctx (0: any). Any thread.
 */
int globals_add(const void *owner, uint64_t ctx, uint64_t addr, uint64_t len);
void globals_drop(const void *owner, uint64_t ctx);

int do_map(struct call *k);
int do_map_pieces(struct call *k);
int do_unmap(struct call *k);
int do_pin(struct call *k);
int do_unpin(struct call *k);
int do_mem_create(struct call *k);
int do_mem_release(struct call *k);
int do_mem_map(struct call *k);
int do_mem_unmap(struct call *k);
int do_mem_access(struct call *k);
void window_repin(struct sv_session *s);	/* the primary context is a new one */

/* The first run at or behind `from` of memory that SV_OP_X_MAP has mapped. */
bool window_next_run(struct sv_session *s, uint64_t from, uint64_t *va, uint64_t *len);

/* Physical memory of cuMemCreate; it exists as long as it has a handle or a mapping. Consumer. */
struct vmm {
	struct vmm *next;	/* of all */
	uint64_t handle, real;	/* real: not if released */
	uint64_t len;
	uint64_t va;		/* if maps is not 0: an address where it is mapped */
	uint32_t maps;
	bool released;
};
const struct vmm *window_vmm(void);	/* oldest first, also after a replay */
/* Binds the client's reserved handle to this memory; len counts as mapped. The call's result. */
int window_add_vmm(struct call *k, uint64_t handle, uint64_t real, uint64_t len);

/* ------------------------------------------------------------------------------ share.c */

/* Sets the client's process; the pidfd remains the caller's. */
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

/* Answers k when the work queued in the stream is done: 0 or CALL_LATER. */
int sync_stream(struct call *k, struct stream *st);
int do_stream_sync(struct call *k);
int do_event_sync(struct call *k);
int do_event_record(struct call *k);
int do_event_wait(struct call *k);
int do_event_destroy(struct call *k);
int do_ctx_sync(struct call *k);
int do_stream_query(struct call *k);
int do_event_query(struct call *k);

/* Called before a stream is destroyed: synchronising its context still waits for its work. */
CUresult sync_orphan(struct sv_session *s, struct stream *st);

/* Makes an event that is complete when this one's last recording is; the context is current. */
CUresult event_copy(struct sv_session *s, CUevent event, CUevent *copy);

/* Until the next call of this, sv_real gives this thread the driver's event e for any event; NULL: it does not. */
void event_instead(CUevent e);

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
int do_clusters(struct call *k);
void images_ctx_gone(uint64_t ctx);
/* The file that a log's entry loads an image from, or NULL. */
const char *image_path(const struct singvgpu_log_entry *e, const void *data);

/* A kernel or function; it lives as long as its handle. */
struct func {
	struct image *image;
	uint32_t param_bytes;
	bool known;			/* param_bytes is */
	uint64_t seen;			/* the last context of func_seen(); atomic */
};
int func_find(struct sv_session *s, uint64_t handle, CUfunction *real, struct func **f);
/* Before it is launched in the context, or put into a graph there: image_i.h. Any thread. */
void func_seen(struct sv_session *s, uint64_t handle, uint64_t ctx);

int do_launch(struct call *k);			/* launch.c */

int do_array_destroy(struct call *k);		/* array.c */

/*
 * event.c; the event's context is current. event_mark records an event that stands for now.
 * event_before: the ms from the event's recording to `now`; -ENOENT it was never recorded, keeps no
 * time, or is another context's. event_restore records it anew, as of `before` ms before the dump.
 */
int event_mark(struct sv_session *s, CUevent *now);
void event_unmark(struct sv_session *s, CUevent now);
int event_before(struct sv_session *s, uint64_t handle, uint64_t real, CUevent now, float *ms);
int event_restore(struct sv_session *s, uint64_t ctx, uint64_t handle, float before);
int do_event_elapsed(struct call *k);
int do_tex_create(struct call *k);		/* texture.c */
int do_tex_destroy(struct call *k);
void textures_ctx_gone(uint64_t ctx);
/* Visits the live objects: their values, and the records that made them. Consumer. */
typedef void (*object_visit)(void *arg, uint64_t value, uint64_t seq, bool surface);
void textures_walk(object_visit fn, void *arg);
int do_tensor_map(struct call *k);		/* tensor_map.c */
int do_bypass(struct call *k);			/* log.c */

/*
 * wanted.c: wanted_add notes the value that an object had before the dump (-ENOMEM); wanted_next
 * asks the driver for that value again.
 */
int wanted_add(uint64_t of, uint32_t number, uint64_t value);
void wanted_next(struct sv_session *s, uint64_t of, uint32_t number);

int do_host_func(struct call *k);		/* hostfunc.c */
int do_next_call(struct call *k);
void hostfunc_begin(struct sv_session *s);	/* its shared state is mapped */
void hostfunc_due(uint64_t id);		/* a graph has reached it; a thread of the driver */
void hostfunc_release(struct sv_session *s);	/* answers open requests with id 0 */
unsigned int hostfunc_open(void);		/* their number */

int do_graph(struct call *k);			/* graph.c */
int do_graph_update(struct call *k);
int do_graph_cond(struct call *k);
int do_graph_forget(struct call *k);
/* Visits conditional handles of the client's graphs; kept: values outlive a launch. Consumer. */
typedef void (*condition_visit)(void *arg, uint64_t graph, unsigned int i, uint64_t value,
				bool kept);
void graph_conditions(struct sv_session *s, condition_visit fn, void *arg);
int do_graph_launch(struct call *k);
int do_graph_upload(struct call *k);
int do_graph_destroy(struct call *k);

/* journal.c, outcome.c: logs a record and consumes it. -ENOSPC no room; what ring_log_append says. */
int journal_add(struct sv_session *s, const struct ring_record *rec);
void journal_failed(uint64_t seq);	/* a record was logged before it failed; any thread */
void journal_ended(uint64_t made, uint64_t seq);	/* seq ends what the record `made` made */
int journal_compact(struct sv_session *s);	/* drops the entries that no restore needs */
uint64_t journal_seq(const struct singvgpu_log_entry *e);	/* of the entry's record */

/*
 * kept.c: copies of arena contents that logged records refer to, by the records' numbers, since the client
 * may have reused the arena; and the bytes of images in the program's files (held.h), or their digest alone until
 * the image is loaded again. Any thread.
 */
struct held;
struct kept_digest {
	uint64_t low, high;	/* XXH3-128 of the bytes */
};
int kept_add(uint64_t seq, const void *p, uint64_t len);	/* -ENOMEM, -EEXIST */
int kept_take(uint64_t seq, void *p, uint64_t len);		/* the same; p becomes ours */
uint64_t kept_next(uint64_t seq, const void **p, uint64_t *len);	/* after seq; 0: none */
const void *kept_find(uint64_t seq, uint64_t *len);		/* NULL: there is none */
void kept_sweep(bool (*keep)(void *arg, uint64_t seq), void *arg);
/*
 * kept_hold replaces what is kept under seq; the reference h becomes ours unless it fails (-ENOMEM).
 * kept_held: a reference, which the caller drops; NULL: there is none. kept_expect keeps a digest
 * (-ENOMEM, -EEXIST); kept_expected: false: there is none.
 */
int kept_hold(uint64_t seq, struct held *h);
struct held *kept_held(uint64_t seq);
int kept_expect(uint64_t seq, uint64_t len, const struct kept_digest *d);
bool kept_expected(uint64_t seq, uint64_t len, struct kept_digest *d);
/*
 * held.c: the digest of bytes that are held; and whether the file that they are of still has them, or has
 * them again: false, too, if that cannot be read. May read both.
 */
void held_digest(struct held *h, struct kept_digest *d);
bool held_in_file(struct held *h);
/* Has the file been changed since then (CLOCK_REALTIME, ns), or has the checkpoint had the bytes? */
bool held_since(const struct held *h, uint64_t ns);
/* Blocks the signal by which the kernel tells of writers, before there are other threads. */
void held_begin(void);
struct store;
struct store_writer;
struct store_ref;
/* since_ns: see struct ctl_store. */
int kept_dump(struct store_writer *w, uint64_t since_ns, struct store_ref *ref, struct why *why);
int kept_restore(struct store *st, const struct store_ref *ref, struct why *why);
/* comms.c: refs stay zero if the session has had no communicator. */
int comms_dump(struct sv_session *s, struct store_writer *w, struct store_ref *comms,
	       struct store_ref *board, struct why *why);
int comms_expect(struct store *st, const struct store_ref *comms, struct why *why);
int comms_restore(struct sv_session *s, struct why *why);

/*
 * freeze.c: -ENOTSUP and a sentence if the session cannot be dumped. While the device is busy, 0
 * means only that nothing known forbids a dump. Consumer, which does not wait.
 */
int freeze_possible(struct sv_session *s, struct why *why);

/*
 * Closes the gate, drains the ring and waits until the device is idle. After an error, with its
 * sentence, the session runs on. tell gets now and then the streams' operations, done and in all; it returns
 * -ECANCELED when nobody waits for the freeze any more. ns: the time that it took.
 */
struct ctl_freeze;
int freeze(struct sv_session *s, const struct ctl_freeze *how,
	   int (*tell)(uint64_t done, uint64_t total), uint64_t *ns, struct why *why);
int thaw(struct sv_session *s);

/*
 * replay.c: rebuilds a dumped session from the store; it stays frozen until thaw. home: of a guest,
 * the fd of the channel whose arena it uses, else -1. After a failure this process is of no more use.
 */
struct ctl_device;
struct ctl_restore;
struct ctl_restored;
struct content_progress;
int replay_session(struct sv_session *s, const struct session_options *o,
		   const struct ctl_restore *from, int home, const struct content_progress *p,
		   struct ctl_restored *to, struct why *why);
void replay_device(struct hal *h, struct ctl_device *d);	/* the device in use */

/* control.c: listen for conductors at path. -errno. */
int control_open(struct sv_session *s, const struct session_options *o, const char *path);
void control_close(void);
bool control_posted(void);		/* a request waits for the consumer: control_run */
void control_run(struct sv_session *s);
/* Until a restore is complete: 0 the session may be served; -ECONNRESET the conductor has gone. */
int control_restore(struct sv_session *s);

bool worker_idle(void);		/* no job runs or is queued */

/* worker.c: runs fn(arg) on a worker when one is free. */
int worker_run(void (*fn)(void *arg), void *arg);
int worker_call(const struct record *r, const struct call *k);
/* In a handler: the next record that is RECORD_ORDERED may be executed while this one goes on. */
void worker_end_turn(void);

int print_begin(void);			/* print.c: before the driver is loaded */
void print_unsaid(void);		/* logs what the driver has said, and no client was told */
int print_init(struct sv_session *s, uint64_t out_off, uint64_t out_size, uint64_t err_off,
	       uint64_t err_size, bool restored);		/* print.c */
void print_pump(struct sv_session *s);

void log_open(const char *path);		/* log.c */
void log_close(void);			/* leaves a slow reader a moment */
/* One line, to the log; tell: also to the stderr that we were started with. */
void uproxy_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool log_verbose(void);
/* A record that failed with its answer; log_counts: at the end, how often images did. */
void log_result(uint16_t op, uint64_t seq, CUresult r);
void log_counts(void);

struct uproxy_stat *stat_open(const char *path);	/* stat.c */
void stat_thread(void);	/* called by a thread of the driver's, which may block SIGBUS */
void stat_add(uint64_t *field, uint64_t n);
void stat_state(struct sv_session *s, uint32_t state);
void stat_why(struct sv_session *s, const struct why *why);
uint64_t now_ns(void);

extern bool trace_on;				/* trace.c */
int trace_open(const char *path, const struct uproxy_stat *st);
struct uproxy_trace_coll;
void trace_coll(const struct uproxy_trace_coll *c);	/* but its kind and len */
void trace_span(uint16_t op, uint16_t lane, uint64_t begin_ns, uint64_t end_ns, uint64_t bytes);
void trace_close(void);

/* Is the record's tail, from `at` on, `want` bytes and at most 7 zeros? */
static inline bool tail_is(const struct sv_call *c, uint64_t at, uint64_t want)
{
	if (c->len < at || c->len - at < want || c->len - at - want > 7)
		return false;
	return sv_zero((const uint8_t *)c->data + at + want, c->len - at - want);
}

/* Copies to and from the arena are ordinary loads and stores; the client may race with them. */
static inline uint8_t *arena_at(const struct sv_session *s, uint64_t off)
{
	return s->arena + off;
}

/* The call of a record that is to be executed. */
static inline void call_begin(struct call *k, struct sv_session *s, const struct ring_record *rec)
{
	k->c.session = s;
	k->c.driver = &s->hal.drv;
	k->c.data = rec->data;
	k->c.len = rec->len;
	k->c.op = rec->op;
	k->c.reply_len = 0;
	k->c.status = 0;
	k->c.why = NULL;
	k->seq = rec->seq;
	k->cpl = rec->cpl;
	k->begin_ns = trace_on ? now_ns() : 0;
	k->bytes = 0;
	k->lane = 0;
}

/* The call failed with an error of CUDA. */
static inline int fails(struct call *k, CUresult r)
{
	k->c.status = r;
	return 0;
}

#endif
