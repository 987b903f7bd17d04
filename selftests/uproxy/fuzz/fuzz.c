// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz.c - a hostile client's records, over a driver that aborts on any misuse
 *
 * An input is a program for a small machine. It determines the records, made of words that are
 * meaningful (a handle, an address, a size) or not, concurrent writes into the arena, and when the
 * device makes progress. Workers run immediately.
 *
 * The channel's log is a real one, small enough to fill up, and the input changes it where a client
 * could. At the end, if the session is alive, a fresh session replays the log.
 *
 * The driver here aborts on a handle that is not live, an address that is not mapped or pinned, or
 * memory mapped twice: whatever a client does, the proxy must prevent these calls. Before each
 * input the initial state is restored: the core's data is in sections that are copied back, and its
 * memory is freed.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#undef malloc
#undef calloc
#undef realloc
#undef free

#define XXH_INLINE_ALL
#include <xxhash.h>

#define COMM_PRIVATE
#include "answer.h"
#include "board.h"
#include "transport.h"
#include "comm_i.h"
#include "slice.h"
#include "content.h"
#include "context.h"
#include "control.h"
#include "control_i.h"
#include "device_memory.h"
#include "fail.h"
#include "graph.h"
#include "image_i.h"
#include "journal.h"
#include "kept.h"
#include "log.h"
#include "outside.h"
#include "peer.h"
#include "print.h"
#include "rebuild.h"
#include "records.h"
#include "serve.h"
#include "session.h"
#include "streams.h"
#include "transfer.h"
#include "tree.h"
#include "worker.h"

#define ARENA_LEN	(16u << 20)
#define ARENA_FIRST	(8u << 20)
#define WINDOW		0x200000000000ull
#define GRANULES	64u
#define GLOBALS		0x300000000000ull
#define SPARE		0x310000000000ull	/* what is reserved besides */
#define LOG_LEN		(16u << 10)

#define MUST(c) do { \
	if (!(c)) { \
		fprintf(stderr, "the driver was given what it must not get: %s (line %d)\n", #c, \
			__LINE__); \
		abort(); \
	} \
} while (0)
#include "../../harness/fuzz.h"

static struct sv_session session;

/* ---------------------------------------------------------------- memory of the core */

struct block {
	struct block *next, *prev;
	size_t len;
	uint64_t pad;
};

static struct block blocks = { &blocks, &blocks, 0, 0 };

void *fuzz_malloc(size_t len);
void *fuzz_calloc(size_t n, size_t len);
void *fuzz_realloc(void *p, size_t len);
void fuzz_free(void *p);

void *fuzz_malloc(size_t len)
{
	struct block *b = len > 64u << 20 ? NULL : malloc(sizeof(*b) + len);

	if (!b)
		return NULL;
	*b = (struct block){ blocks.next, &blocks, len, 0 };
	b->next->prev = b;
	blocks.next = b;
	return b + 1;
}

void *fuzz_calloc(size_t n, size_t len)
{
	void *p = fuzz_malloc(n * len);

	return p ? memset(p, 0, n * len) : NULL;
}

void fuzz_free(void *p)
{
	struct block *b;

	if (!p)
		return;
	b = (struct block *)p - 1;
	b->next->prev = b->prev;
	b->prev->next = b->next;
	free(b);
}

void *fuzz_realloc(void *p, size_t len)
{
	void *n = fuzz_malloc(len);

	if (n && p) {
		size_t was = ((struct block *)p - 1)->len;

		memcpy(n, p, was < len ? was : len);
	}
	if (n)
		fuzz_free(p);
	return n;
}

/* The map of the window, and the words of collectives: the same pages each time. */
void *fuzz_mmap(void *at, size_t len, int prot, int flags, int fd, off_t off);

void *fuzz_mmap(void *at, size_t len, int prot, int flags, int fd, off_t off)
{
	static _Alignas(4096) uint8_t words[POSTED_MAX * 8];
	static uint8_t page[GRANULES];

	(void)at, (void)prot, (void)flags, (void)off;
	if (fd < 0 && len == sizeof(words))
		return memset(words, 0, sizeof(words));
	if (fd >= 0 || len > sizeof(page))
		return MAP_FAILED;
	return memset(page, 0, sizeof(page));
}
#include "fuzz_driver.h"

/* ---------------------------------------------------------------- the ring's place */

static unsigned int unanswered;

int ring_complete(struct ring *r, uint16_t cpl, uint64_t seq, int32_t status, const void *data,
		  uint32_t len)
{
	(void)r, (void)seq, (void)status;
	MUST(cpl && len <= SINGVGPU_CPL_DATA && (!len || data));
	unanswered--;
	return 0;
}
/* The log, as log.c has it. */
static struct {
	uint32_t len;
	_Alignas(8) uint8_t bytes[LOG_LEN];
} ringlog;

static uint32_t entry_len(uint32_t len)
{
	return sizeof(struct singvgpu_log_entry) + ((len + 7) & ~7u);
}

int ring_log_append(struct ring *r, const struct ring_record *rec, uint16_t op, uint64_t key,
		    const void *data, uint32_t len)
{
	struct singvgpu_log_entry e = { .key = key, .op = op, .len = len };

	(void)r;
	if (entry_len(len) > LOG_LEN - ringlog.len)
		return -ENOSPC;
	e.end = rec->seq - 1 + (rec->len + sizeof(struct singvgpu_rec) + SINGVGPU_UNIT - 1) /
		SINGVGPU_UNIT;
	memcpy(ringlog.bytes + ringlog.len, &e, sizeof(e));
	memcpy(ringlog.bytes + ringlog.len + sizeof(e), data, len);
	ringlog.len += entry_len(len);
	return 0;
}
int ring_log_walk(struct ring *r, ring_log_fn fn, void *arg)
{
	struct singvgpu_log_entry e;
	void *payload;
	int rc = 0;

	(void)r;
	for (uint32_t off = 0; off < ringlog.len && !rc; off += entry_len(e.len)) {
		if (ringlog.len - off < sizeof(e))
			return -EBADMSG;
		memcpy(&e, ringlog.bytes + off, sizeof(e));
		if (e.flags || e.len > LOG_LEN || entry_len(e.len) > ringlog.len - off)
			return -EBADMSG;
		payload = malloc(e.len);	/* exactly: who reads on is noticed */
		memcpy(payload, ringlog.bytes + off + sizeof(e), e.len);
		rc = fn(arg, &e, payload);
		free(payload);
	}
	return rc;
}
struct compaction {
	ring_log_keep keep;
	void *arg;
	uint32_t len;
	uint8_t bytes[LOG_LEN];
};
static int compact_one(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	struct compaction *c = arg;

	if (c->keep(c->arg, e, data)) {
		memcpy(c->bytes + c->len, e, sizeof(*e));
		memcpy(c->bytes + c->len + sizeof(*e), data, e->len);
		c->len += entry_len(e->len);
	}
	return 0;
}
int ring_log_compact(struct ring *r, ring_log_keep keep, void *arg)
{
	static struct compaction c;
	int rc;

	c = (struct compaction){ .keep = keep, .arg = arg };
	rc = ring_log_walk(r, compact_one, &c);
	if (!rc) {
		memcpy(ringlog.bytes, c.bytes, c.len);
		ringlog.len = c.len;
	}
	return rc;
}
size_t ring_log_bytes(const struct ring *r)
{
	(void)r;
	return ringlog.len;
}
int ring_commit(struct ring *r, size_t off, size_t len)
{
	(void)r;
	MUST(off % 4096 == 0 && len % 4096 == 0 && len && off < ARENA_LEN && len <= ARENA_LEN - off);
	return 0;
}

enum ring_backend ring_backend(const struct ring *r)
{
	(void)r;
	return RING_MEMFD;
}

int ring_guest_commit(const struct ring_guest *g, size_t off, size_t len)
{
	(void)g;
	return ring_commit(NULL, off, len);
}

void ring_advance(struct ring *r)
{
	(void)r;
}
void ring_latch_error(struct ring *r, uint64_t seq, int32_t err)
{
	(void)r, (void)seq;
	MUST(err);
}
void ring_kick(struct ring *r)
{
	(void)r;
}
int ring_peek(struct ring *r, struct ring_record *rec)
{
	(void)r, (void)rec;
	return -EPIPE;
}
int ring_peek_run(struct ring *r, struct ring_record *rec, unsigned int max)
{
	(void)r, (void)rec, (void)max;
	return -EPIPE;
}
void ring_advance_past(struct ring *r, const struct ring_record *rec)
{
	(void)r, (void)rec;
}
int ring_wait(struct ring *r, int64_t ns)
{
	(void)r, (void)ns;
	return -EPIPE;
}
int ring_wait_yielding(struct ring *r, int64_t ns)
{
	return ring_wait(r, ns);
}
bool ring_due(struct ring *r)
{
	(void)r;
	return true;
}
int ring_heed(struct ring *r, const uint32_t *word)
{
	(void)r;
	MUST(word);
	return 0;
}
const char *ring_why(const struct ring *r)
{
	(void)r;
	return "";
}
const char *ring_strerror(int err)
{
	(void)err;
	return "";
}

/* Of files that are not here: fail.c, worker.c, log.c, print.c, control.c, replay.c. */
bool control_posted(void)
{
	return false;
}
void control_run(struct sv_session *s)
{
	(void)s;
}
bool worker_idle(void)
{
	return true;
}
void session_full(struct sv_session *s, bool full)
{
	s->full = full;
}

void session_fail(struct sv_session *s, int err, const char *rule, uint16_t op, uint64_t seq)
{
	(void)seq;
	if (!rule)
		fprintf(stderr, "%s ends a session without a name (%d)\n", op_name(op), err);
	MUST(err < 0 && rule);
	s->failed = err;
}
void session_error(struct sv_session *s, CUresult r, uint16_t op, uint64_t seq)
{
	(void)s, (void)op, (void)seq;
	MUST(r > 0);
}
int worker_run(void (*fn)(void *arg), void *arg)
{
	fn(arg);
	return 0;
}
void worker_end_turn(void)
{
}

int worker_call(const struct record *r, const struct call *k)
{
	uint8_t *copy = malloc(k->c.len + 1);
	struct call own = *k;
	int rc;

	memcpy(copy, k->c.data, k->c.len);
	own.c.data = copy;
	rc = record_run(r, &own);
	if (rc < 0)
		session_fail(own.c.session, rc, own.c.why, own.c.op, own.seq);
	else if (!rc)
		answer_call(&own);
	free(copy);
	return 0;
}
void uproxy_say(const char *fmt, ...)
{
	(void)fmt;
}
void log_result(uint16_t op, uint64_t seq, CUresult r)
{
	(void)op, (void)seq, (void)r;
}
void tell(const char *fmt, ...)
{
	(void)fmt;
}
int peer_show(struct sv_session *s, uint32_t kind, uint64_t va, uint64_t len, int fd,
	      const uint8_t key[16], struct sv_ipc_shown *out)
{
	MUST(kind != SV_IPC_EVENT && len && window_mapped(s, va, len) && fd < 0 && key);
	memset(out, 0x33, sizeof(*out));
	return refuse() ? -ENOMEM : 0;
}
void peer_hide(uint64_t va, uint64_t len)
{
	MUST(va >= WINDOW && len);
}
void peer_hide_at(uint64_t va)
{
	(void)va;
}
bool peer_is_us(const struct sv_ipc_handle *h)
{
	return h->server[0] == 0x33;
}
CUresult peer_ask(const struct sv_ipc_handle *h, const uint8_t key[16],
		  CUresult (*each)(void *arg, int fd), void *arg)
{
	CUresult r = CUDA_SUCCESS;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	(void)key;
	for (uint64_t i = 0; i < sv_ipc_room(h) / SV_GRANULE && !r; i++)
		r = h->secret[0] && i == 2 ? CUDA_ERROR_MAP_FAILED : each(arg, fd);
	close(fd);
	return r;
}
bool still_idle(struct sv_session *s)
{
	(void)s;
	return !refuse();
}
void ipc_repin(struct sv_session *s)
{
	(void)s;
}
/* The session has its device alone. */
bool slice_due(void)
{
	return false;
}
void slice_run(struct sv_session *s)
{
	(void)s;
}
int64_t slice_idle(struct sv_session *s)
{
	(void)s;
	return -1;
}
int slice_start(struct sv_session *s, struct why *why)
{
	(void)s, (void)why;
	MUST(false);
	return 0;
}
int slice_take(struct sv_session *s, bool (*given_up)(void *arg), void *arg, struct why *why)
{
	(void)s, (void)given_up, (void)arg, (void)why;
	MUST(false);
	return 0;
}
int slice_give(struct sv_session *s, bool (*given_up)(void *arg), void *arg, struct why *why)
{
	(void)s, (void)given_up, (void)arg, (void)why;
	MUST(false);
	return 0;
}
int session_shares(struct sv_session *s, const struct session_options *o, struct why *why)
{
	(void)s, (void)o, (void)why;
	return 0;
}
#define NOT_HERE(_name) \
int _name(struct call *k) \
{ \
	return fails(k, CUDA_ERROR_NOT_SUPPORTED); \
}
NOT_HERE(do_ipc_event_get)
NOT_HERE(do_ipc_event_open)
NOT_HERE(do_ipc_event_end)
NOT_HERE(do_ipc_record)
NOT_HERE(do_ipc_wait)
NOT_HERE(do_ipc_query)
NOT_HERE(do_ipc_sync)
int ring_pass_fd(int sock, int fd)
{
	MUST(fcntl(sock, F_GETFD) >= 0 && fcntl(fd, F_GETFD) >= 0);
	return sock & 1 ? 0 : -EPIPE;
}
int ring_take_fd(int sock)
{
	MUST(fcntl(sock, F_GETFD) >= 0);
	return -EPIPE;
}
bool log_verbose(void)
{
	return false;
}
int do_bypass(struct call *k)
{
	(void)k;
	return 0;
}
void print_pump(struct sv_session *s)
{
	(void)s;
}

/* ------------------------------------------------------------------------------ the machine */

static int pidfd;
static struct uproxy_stat stats;
static uint64_t ctx;

static uint64_t word(struct program *in)
{
	uint8_t what = byte(in), b;
	uint64_t text = 0;

	switch (what & 15) {
	case 0:
		return 0;
	case 1:
		return raw(in, 8);
	case 2:
		return byte(in);
	case 3:
		b = byte(in);
		return sv_handle(b & 31, b >> 5, what >> 7 & 1);
	case 4:
		return WINDOW + SV_GRANULE * (what >> 4) + byte(in);
	case 5:
		return (uintptr_t)session.arena + ARENA_FIRST + 64 * raw(in, 2);
	case 6:
		return ARENA_FIRST + 4096 * byte(in);
	case 7:
		return SV_GRANULE * (what >> 4);
	case 8:
		return what >> 4;
	case 9:
		return 4096ull * (what >> 4);
	case 10:
		text = byte(in);
		return text | (uint64_t)byte(in) << 32;
	case 11:
		return ctx;
	case 12:
		memcpy(&text, "kernel\0", 8);
		return text >> 8 * (what >> 4 & 3);
	case 13:
		return raw(in, 2);
	case 14:
		return ~0ull << (what >> 2 & 60);
	default:
		return ARENA_FIRST + 64 * raw(in, 2);
	}
}

static const uint16_t ops[] = {
	SV_OP_cuDevicePrimaryCtxRetain, SV_OP_cuCtxCreate_v4, SV_OP_cuDevicePrimaryCtxReset_v2,
	SV_OP_cuCtxDestroy_v2, SV_OP_cuStreamSynchronize, SV_OP_cuEventSynchronize,
	SV_OP_cuCtxSynchronize, SV_OP_cuStreamQuery, SV_OP_cuEventQuery, SV_OP_cuStreamDestroy_v2,
	SV_OP_cuMemcpyAsync, SV_OP_cuMemcpy3DAsync_v2, SV_OP_cuLibraryLoadData,
	SV_OP_cuModuleLoadDataEx, SV_OP_cuLibraryUnload, SV_OP_cuModuleUnload,
	SV_OP_cuLibraryGetKernel, SV_OP_cuModuleGetFunction, SV_OP_cuLibraryGetGlobal,
	SV_OP_cuLibraryGetManaged, SV_OP_cuModuleGetGlobal_v2, SV_OP_cuKernelGetFunction,
	SV_OP_cuLibraryGetModule, SV_OP_cuLibraryEnumerateKernels, SV_OP_cuFuncLoad,
	SV_OP_cuLaunchKernel, SV_OP_cuLaunchHostFunc, SV_OP_cuMemCreate, SV_OP_cuMemRelease,
	SV_OP_cuMemMap, SV_OP_cuMemUnmap, SV_OP_cuMemSetAccess, SV_OP_X_MAP, SV_OP_X_UNMAP,
	SV_OP_X_MAP_PIECES,
	SV_OP_X_PIN, SV_OP_X_UNPIN, SV_OP_X_PREPARE, SV_OP_X_NEXT_CALL, SV_OP_X_FUNC_INFO,
	SV_OP_X_GRAPH, SV_OP_X_GRAPH_UPDATE, SV_OP_cuGraphLaunch, SV_OP_cuGraphExecDestroy,
	SV_OP_cuStreamCreate, SV_OP_cuEventCreate, SV_OP_cuEventRecord, SV_OP_cuEventDestroy_v2,
	SV_OP_cuEventElapsedTime_v2, SV_OP_cuStreamWaitEvent, SV_OP_cuMemsetD8Async,
	SV_OP_cuMemsetD2D32Async, SV_OP_cuStreamWaitValue64_v2,
	SV_OP_cuStreamWriteValue64_v2, SV_OP_cuArrayCreate_v2, SV_OP_cuArrayDestroy,
	SV_OP_cuTexObjectCreate, SV_OP_cuTexObjectDestroy, SV_OP_cuStreamSetAttribute,
	SV_OP_cuMemExportToShareableHandle, SV_OP_cuMemImportFromShareableHandle,
	SV_OP_cuIpcGetMemHandle, SV_OP_cuIpcOpenMemHandle_v2, SV_OP_X_IPC_MAP,
	SV_OP_cuIpcCloseMemHandle, SV_OP_X_IPC_FORGET, SV_OP_cuOccupancyMaxPotentialClusterSize,
	SV_OP_cuOccupancyMaxActiveClusters, SV_OP_cuTensorMapEncodeTiled,
	SV_OP_cuTensorMapEncodeIm2col, SV_OP_cuTensorMapEncodeIm2colWide,
	SV_OP_cuTensorMapReplaceAddress,
};

#define NOPS (sizeof(ops) / sizeof(*ops))

static void send(uint16_t op, int answered, const void *data, uint32_t len)
{
	static uint64_t seq;
	struct ring_record rec = { .seq = ++seq, .op = op, .cpl = answered ? 1 : 0, .len = len,
				   .data = data };

	unanswered += answered;
	serve_record(&session, &rec);
}

#define SEND(op, ...) do { \
	__auto_type a_ = __VA_ARGS__; \
	send(op, 1, &a_, sizeof(a_)); \
} while (0)

/* What any client has, so that inputs need not begin with it. */
static void prologue(void)
{
	uint64_t at = ARENA_FIRST;
	struct { struct sv_by_name a; char name[8]; } n = {
		{ .from = sv_handle(SV_T_CUlibrary, 0, 0), .handle = sv_handle(SV_T_CUkernel, 0, 0),
		  .info = at + 8192, .cap = 4096, .name_len = 2 }, "k" };

	ctx = sv_handle(SV_T_CUcontext, 0, 0);
	n.a.ctx = ctx;
	SEND(SV_OP_cuDevicePrimaryCtxRetain, (struct sv_ctx_new){ ctx, 0, 0 });
	SEND(SV_OP_X_MAP, (struct sv_map){ WINDOW, 4 * SV_GRANULE });
	SEND(SV_OP_X_PIN, (struct sv_pin){ at, 65536 });
	SEND(SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){ .ctx = ctx,
		.phStream = sv_handle(SV_T_CUstream, 0, 0) });
	SEND(SV_OP_cuEventCreate, (struct sv_cuEventCreate){ .ctx = ctx,
		.phEvent = sv_handle(SV_T_CUevent, 0, 0) });
	memcpy(session.arena + at, "text", 5);
	SEND(SV_OP_cuLibraryLoadData, (struct sv_image){ .handle = n.a.from, .off = at, .len = 5,
		.kind = SV_IMAGE_ARENA });
	SEND(SV_OP_cuLibraryGetKernel, n);
	MUST(!session.failed && !unanswered);
}

static void device_runs(CUresult status)
{
	struct queued *q = queue;

	queue = NULL;
	queue_end = &queue;
	while (q) {
		struct queued *next = q->next;

		q->fn((CUstream)1, status, q->arg);
		free(q);
		q = next;
	}
}

#include "fuzz_comm.h"

static const uint16_t comm_ops[] = { SV_OP_X_COMM_NEW, SV_OP_X_COLL, SV_OP_X_COMM_END };
static const uint16_t wait_ops[] = { SV_OP_X_WATCH_STREAM, SV_OP_X_WATCH_EVENT, SV_OP_X_SEEN, SV_OP_X_ROOM,
	SV_OP_X_CROSS_TELL, SV_OP_X_CROSS_WAIT };

/* A record that an honest client could send: a and b choose handles and places. Its bytes. */
static uint32_t likely(uint16_t op, uint64_t *data, uint8_t a, uint8_t b)
{
	uint64_t stream = a & 8 ? SV_STREAM_LEGACY : sv_handle(SV_T_CUstream, a & 3, 0);
	uint64_t lib = sv_handle(SV_T_CUlibrary, b & 3, 0);
	uint64_t mod = sv_handle(SV_T_CUmodule, b & 3, 0);
	uint64_t kernel = sv_handle(SV_T_CUkernel, a & 3, 0);
	uint64_t f = sv_handle(SV_T_CUfunction, a & 3, 0);
	uint64_t event = sv_handle(SV_T_CUevent, b & 3, 0), arena = ARENA_FIRST + 4096 * (a & 15);
	uint64_t dev = WINDOW + SV_GRANULE * (a & 15), host = (uintptr_t)session.arena + arena;
	uint64_t phys = sv_handle(SV_T_CUmemGenericAllocationHandle_v1, b & 3, 0);
	uint64_t array = sv_handle(SV_T_CUarray, b & 3, 0);
	uint64_t exec = sv_handle(SV_T_CUgraphExec, b & 3, 0);
	uint64_t none = sv_handle(SV_T_CUcontext, 1 + (a & 1), 0);
	struct sv_by_name named = { ctx, lib, 0, arena, 2048, 3 };
	struct step_call call = call_of(a, b);

#define IS(...) ({ \
	__auto_type a_ = __VA_ARGS__; \
	memcpy(data, &a_, sizeof(a_)); \
	return sizeof(a_); \
})
	switch (op) {
	case SV_OP_cuDevicePrimaryCtxRetain:
		IS((struct sv_ctx_new){ ctx, 0, 0 });
	case SV_OP_cuCtxCreate_v4:
		IS((struct sv_ctx_new){ none, 0, 0 });
	case SV_OP_cuDevicePrimaryCtxReset_v2:
		IS((struct sv_ctx_end){ ctx });
	case SV_OP_cuCtxDestroy_v2:
		IS((struct sv_ctx_end){ none });
	case SV_OP_cuStreamSynchronize:
	case SV_OP_cuStreamQuery:
		IS((struct sv_sync_on){ ctx, stream });
	case SV_OP_cuEventSynchronize:
	case SV_OP_cuEventQuery:
		IS((struct sv_sync_on){ ctx, event });
	case SV_OP_cuCtxSynchronize:
		IS((struct sv_sync_on){ ctx, 0 });
	case SV_OP_cuStreamDestroy_v2:
		IS((struct sv_stream_end){ stream });
	case SV_OP_cuMemcpyAsync:
		IS((struct sv_copy){ ctx, stream, dev, host, 4096, b & 8 ? arena : 0, b });
	case SV_OP_cuMemcpy3DAsync_v2:
		IS((struct sv_copy3d){ .ctx = ctx, .stream = stream,
			.dst = { .addr = b & 8 ? 0 : dev, .array = b & 8 ? array : 0, .pitch = 512,
				 .height = 8 },
			.src = { .addr = host, .pitch = 64, .height = 8, .y = 1 },
			.width = 64, .height = 4, .depth = 2 });
	case SV_OP_cuLibraryLoadData:
		IS((struct sv_image){ .handle = lib,
			.kind = b & 8 ? SV_IMAGE_PARTS : SV_IMAGE_ARENA, .off = arena,
			.len = 256, .log_off = ARENA_FIRST + 60000, .info_cap = 64,
			.error_cap = 64 });
	case SV_OP_cuModuleLoadDataEx:
		IS((struct { struct sv_image a; struct sv_jit_opt o; }){
			{ .ctx = ctx, .handle = mod, .kind = SV_IMAGE_ARENA, .n_opt = 1,
			  .off = arena, .len = 256 }, { CU_JIT_MAX_REGISTERS, 0, 32 } });
	case SV_OP_cuLibraryUnload:
		IS((struct sv_image_end){ lib });
	case SV_OP_cuModuleUnload:
		IS((struct sv_image_end){ mod });
	case SV_OP_cuLibraryGetKernel:
		named.handle = kernel;
		IS((struct { struct sv_by_name a; char t[8]; }){ named, "kk" });
	case SV_OP_cuModuleGetFunction:
		named.handle = f;
		named.from = mod;
		IS((struct { struct sv_by_name a; char t[8]; }){ named, "kk" });
	case SV_OP_cuLibraryGetGlobal:
	case SV_OP_cuModuleGetGlobal_v2:
		named.from = op == SV_OP_cuLibraryGetGlobal ? lib : mod;
		named.info = named.cap = 0;
		IS((struct { struct sv_by_name a; char t[8]; }){ named, "gg" });
	case SV_OP_cuKernelGetFunction:
		IS((struct sv_derive){ ctx, kernel, f });
	case SV_OP_cuLibraryGetModule:
		IS((struct sv_derive){ ctx, lib, mod });
	case SV_OP_cuFuncLoad:
		IS((struct sv_cuFuncLoad){ .function = f });
	case SV_OP_X_PREPARE:
		IS((struct sv_prepare){ ctx, b & 8 ? f : kernel });
	case SV_OP_X_FUNC_INFO:
		IS((struct sv_func_info_req){ ctx, b & 8 ? f : kernel, arena, 2048, 0 });
	case SV_OP_cuOccupancyMaxPotentialClusterSize:
	case SV_OP_cuOccupancyMaxActiveClusters:
		IS((struct sv_clusters){ ctx, b & 8 ? f : kernel, { 1, 1, 1 }, { 32, 1, 1 }, 0, b >> 4,
					 { 2, 1, 1 }, { 1, 1, 1 }, 0, 0 });
	case SV_OP_cuTensorMapEncodeTiled:
	case SV_OP_cuTensorMapEncodeIm2col:
	case SV_OP_cuTensorMapEncodeIm2colWide:
	case SV_OP_cuTensorMapReplaceAddress:
		IS((struct sv_tensor_map){
			.ctx = ctx, .off = arena, .address = dev, .dim = { 256, 64, 32, 16, 8 },
			.stride = { 512, 32768, 1 << 20, 1 << 25 }, .type = b & 15,
			.rank = 1 + (b >> 4) % 5, .box = { 64, 2, 2, 2, 2 },
			.step = { 1, 1, 1, 1, 1 }, .channels = 64, .pixels = 64, .swizzle = b >> 6 });
	case SV_OP_cuLaunchKernel:
		IS((struct { struct sv_launch a; CUlaunchAttribute at; uint64_t p[3]; }){
			{ .ctx = ctx, .stream = stream, .function = b & 8 ? f : kernel,
			  .grid = { 1, 1, 1 }, .block = { 32, 1, 1 }, .attrs = 1,
			  .param_bytes = 24 },
			{ .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
			  .value.programmaticEvent = { .event = (CUevent)event } },
			{ dev, host } });
	case SV_OP_cuLaunchHostFunc:
		IS((struct sv_host_func){ ctx, stream, 1 + b, arena });
	case SV_OP_cuMemCreate:
		IS((struct sv_mem_create){ phys, 2 * SV_GRANULE, b & 1 });
	case SV_OP_cuMemRelease:
		IS((struct sv_mem_release){ phys });
	case SV_OP_cuMemExportToShareableHandle:
	case SV_OP_cuMemImportFromShareableHandle:
		IS((struct sv_mem_share){ phys, b, 0 });
	case SV_OP_cuIpcGetMemHandle:
		IS((struct sv_ipc_show){ dev + 512 * (b & 1), SV_GRANULE * (1 + (b >> 6)), { b & 2 } });
	case SV_OP_cuIpcOpenMemHandle_v2:
		IS((struct sv_ipc_fetch){ { SV_IPC_MAGIC, SV_IPC_VERSION, 1 + (b & 1), { 0 }, { b & 4 },
					    512 * (b >> 4), SV_GRANULE * (1 + (a & 3)), 0 }, { 0 } });
	case SV_OP_X_IPC_MAP:
		IS((struct sv_ipc_map){ dev, SV_GRANULE * (1 + (b & 3)), 1 + (a & 3) });
	case SV_OP_X_IPC_FORGET:
		IS((struct sv_ipc_forget){ dev });
	case SV_OP_cuMemMap:
		IS((struct sv_mem_map){ dev, 2 * SV_GRANULE, phys, 0 });
	case SV_OP_cuMemSetAccess:
		IS((struct sv_mem_access){ dev, 2 * SV_GRANULE, 3, 0 });
	case SV_OP_cuMemUnmap:
	case SV_OP_cuIpcCloseMemHandle:
	case SV_OP_X_MAP:
	case SV_OP_X_UNMAP:
		IS((struct sv_map){ dev, SV_GRANULE * (1 + (b & 3)) });
	case SV_OP_X_MAP_PIECES:
		IS((struct sv_pieces){ dev, SV_GRANULE * (1 + (b & 7)), SV_GRANULE * (1 + (a & 3)) });
	case SV_OP_X_PIN:
	case SV_OP_X_UNPIN:
		IS((struct sv_pin){ ARENA_FIRST + 65536 + 8192 * (a & 3), 8192 });
	case SV_OP_X_GRAPH:
		IS((struct sv_graph_req){ ctx, exec, arena, 16 + 8 * b, 0 });
	case SV_OP_X_GRAPH_UPDATE:
		IS((struct { struct sv_graph_req a; struct sv_graph g; struct sv_graph_node n; }){
			{ ctx, exec, SV_GRAPH_INLINE, sizeof(struct sv_graph) +
			  sizeof(struct sv_graph_node), 0 }, { .nodes = 1 },
			{ .size = sizeof(struct sv_graph_node), .type = SV_NODE_EMPTY } });
	case SV_OP_cuStreamCreate:
		IS((struct sv_cuStreamCreate){ .ctx = ctx,
			.phStream = sv_handle(SV_T_CUstream, a & 3, 0) });
	case SV_OP_cuEventCreate:
		IS((struct sv_cuEventCreate){ .ctx = ctx, .phEvent = event });
	case SV_OP_cuEventRecord:
		IS((struct sv_cuEventRecord){ .ctx = ctx, .hEvent = event, .hStream = stream });
	case SV_OP_cuEventDestroy_v2:
		IS((struct sv_cuEventDestroy_v2){ .hEvent = event });
	case SV_OP_cuStreamWaitEvent:
		IS((struct sv_cuStreamWaitEvent){ .ctx = ctx, .hStream = stream, .hEvent = event });
	case SV_OP_cuMemsetD8Async:
		IS((struct sv_cuMemsetD8Async){ .ctx = ctx, .dstDevice = dev, .N = 4096,
			.hStream = stream });
	case SV_OP_cuArrayCreate_v2:
		IS((struct sv_cuArrayCreate_v2){ .ctx = ctx, .pHandle = array });
	case SV_OP_cuArrayDestroy:
		IS((struct sv_cuArrayDestroy){ ctx, array });
	case SV_OP_X_COMM_NEW: {
		struct sv_comm_new c = { .ctx = ctx, .comm = 1 + (a & 3), .word = arena + 512 * (a >> 4 & 3),
					 .ranks = b & 8 ? 1 + (b & 7) : 2, .rank = b & 16 ? b & 1 : 0,
					 .parent = a >> 6 };
		memcpy(c.id, id_of(a), sizeof(c.id));
		IS(c);
	}
	case SV_OP_X_COLL:
		IS((struct { struct sv_coll c; struct sv_coll_call one; }){
			{ ctx, a & 128 ? stream : sv_handle(SV_T_CUstream, 0, 0), 1 + (b >> 6), 1, 0 },
			{ call.kind, call.type, call.op, call.op == TREE_PREMULSUM ? 1 + (b & 1) : 0, call.peer,
			  call.count, WINDOW + 8192 * (b & 3), WINDOW + SV_GRANULE, WINDOW } });
	case SV_OP_X_SEEN:
		IS((struct sv_seen){ arena, b });
	case SV_OP_X_WATCH_STREAM:
		IS((struct sv_watch){ ctx, stream, arena, b });
	case SV_OP_X_WATCH_EVENT:
		IS((struct sv_watch){ ctx, event, arena, b });
	case SV_OP_X_ROOM:
		IS((struct { struct sv_room a; struct sv_cuMemsetD8Async m; }){
			{ .op = b & 128 ? b : SV_OP_cuMemsetD8Async }, { .ctx = ctx, .hStream = stream } });
	case SV_OP_X_CROSS_TELL:
	case SV_OP_X_CROSS_WAIT:
		IS((struct sv_cross){ ctx, stream, arena + 32 * (b >> 4), 1 + (b & 15) });
	case SV_OP_X_COMM_END:
		if ((a & b) == 255)
			return 0;
		IS((struct sv_comm_end){ 1 + (a & 3), b & 1 ? SV_COMM_ABORT : 0, 0 });
	case SV_OP_cuTexObjectCreate:
		IS((struct { struct sv_tex_new a; CUDA_RESOURCE_DESC r; CUDA_TEXTURE_DESC t; }){
			{ ctx, 0, 0 }, { .res.array.hArray = (CUarray)array }, { .flags = 0 } });
	default:
		return 0;
	}
}

/* A graph of three nodes into the arena. */
static void write_graph(uint64_t off, uint8_t a, uint8_t b)
{
	struct {
		struct sv_graph g;
		struct sv_graph_node n0;
		struct sv_graph_set set;
		struct sv_graph_node n1;
		struct sv_graph_dep d1;
		struct sv_copy3d copy;
		struct sv_graph_node n2;
		struct sv_launch launch;
		uint64_t p[3];
	} g = {
		.g = { .nodes = 3 },
		.n0 = { .size = sizeof(g.n0) + sizeof(g.set), .index = 0, .type = SV_NODE_SET,
			.ctx = ctx },
		.set = { .dst = WINDOW + a * 16, .width = 64, .height = 1, .elem = 1 },
		.n1 = { .size = sizeof(g.n1) + sizeof(g.d1) + sizeof(g.copy), .index = 1,
			.type = SV_NODE_COPY, .deps = 1, .ctx = ctx },
		.copy = { .dst = { .addr = WINDOW, .pitch = 64, .height = 1 },
			  .src = { .addr = WINDOW + 4096, .pitch = 64, .height = 1 },
			  .width = 64, .height = 1, .depth = 1 },
		.n2 = { .size = sizeof(g.n2) + sizeof(g.launch) + 24, .index = 2,
			.type = SV_NODE_KERNEL, .ctx = ctx },
		.launch = { .ctx = ctx, .function = sv_handle(SV_T_CUkernel, b & 3, 0),
			    .grid = { 1, 1, 1 }, .block = { 1, 1, 1 }, .param_bytes = 24 },
	};

	memcpy(session.arena + ARENA_FIRST + off, &g, sizeof(g));
}

static void write_arena(struct program *in, uint8_t n)
{
	uint64_t off = raw(in, 2) * 8 % (65536 - 1024);
	uint8_t *p = session.arena + ARENA_FIRST + off;

	if (n >> 5 == 7) {
		write_graph(off, byte(in), byte(in));
	} else if (n >> 5 == 6) {	/* a fatbin; parts of one */
		memcpy(p, "\x50\xed\x55\xba\1\0\x10\0\x20\0\0\0\0\0\0\0", 16);
		memcpy(p + 64, (uint64_t[]){ 1, 128, 48 }, 24);
		memcpy(p + 192, p, 16);
	}
	for (int i = 0; i < n % 32; i++) {
		uint8_t at = byte(in);

		((uint64_t *)p)[at % 64] = word(in);
	}
}

static bool changed;	/* the client has written where it must not, or the driver refused something */

static void change_log(struct program *in, uint8_t n)
{
	uint32_t at;
	uint64_t w;

	if (ringlog.len < 8)
		return;
	at = raw(in, 2) % (ringlog.len - 7);
	w = word(in);
	if (n & 1)
		at &= ~7u;
	memcpy(ringlog.bytes + at, &w, n & 2 ? 8 : n & 4 ? 2 : 1);
}

static void run(struct program *in)
{
	uint64_t data[128];
	uint8_t op, n, at;
	uint32_t len;
	uint16_t rec;

	while (in->p < in->end && !session.failed) {
		op = byte(in);
		n = byte(in);
		changed |= op == 251 || op == 253 || op == 254 || (op == 255 && n & 1);
		if (op == 255) {
			device_runs(n & 1 ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
			continue;
		}
		if (op == 254) {
			fail_with = n;
			continue;
		}
		if (op == 250) {
			MUST(journal_compact(&session) <= 0);
			continue;
		}
		if (op == 251) {	/* and into the log */
			change_log(in, n);
			continue;
		}
		if (op == 253) {	/* the client writes into its arena */
			write_arena(in, n);
			continue;
		}
		if (op == 246) {
			at = byte(in);
			other_rank(n, at, byte(in));
			run_comms();
			continue;
		}
		if (op == 245) {
			if (n & 64)
				fills_end();
			else if (nunder_way)
				t_ends(n % nunder_way, n & 128 ? STEP_SYSTEM : STEP_OK);
			run_comms();
			continue;
		}
		memset(data, 0, sizeof(data));
		rec = op >= 247 && op <= 249 ? comm_ops[op - 247] :
		      op >= 239 && op <= 244 ? wait_ops[op - 239] : ops[op % NOPS];
		at = byte(in);
		len = likely(rec, data, at, byte(in));
		if (rec == SV_OP_X_COMM_NEW)
			make_board();
		if (rec == SV_OP_X_COMM_END && !len)
			rec = SV_OP_X_COMM_LEAVE;
		for (int i = 0; i < n % 8; i++) {
			at = byte(in);
			data[at % 64] = word(in);
		}
		if (n >> 6 & 1)
			len = byte(in) * 8 % sizeof(data) + (n >> 5 & 1) * (byte(in) % 8);
		send(op == 252 ? raw(in, 2) : rec, n >> 7, data, len);
		run_comms();
	}
}

/* ------------------------------------------------------------------------------ from the start */

extern uint8_t __start_svbss[], __stop_svbss[], __start_svdata[], __stop_svdata[];
static uint8_t *saved_bss, *saved_data;
static struct cuda_driver driver;

__attribute__((no_sanitize("address"))) static void move(uint8_t *to, const uint8_t *from, size_t n)
{
	for (; n >= 8; n -= 8, to += 8, from += 8)
		*(volatile uint64_t *)to = *(const uint64_t *)from;
	while (n--)
		*(volatile uint8_t *)to++ = *from++;
}

static void restart(void)
{
	size_t bss = __stop_svbss - __start_svbss, data = __stop_svdata - __start_svdata;

	if (!saved_bss) {
		saved_bss = malloc(bss);
		saved_data = malloc(data);
		move(saved_bss, __start_svbss, bss);
		move(saved_data, __start_svdata, data);
		session.arena = mmap((void *)0x1e0000000000, ARENA_LEN, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		MUST(session.arena != MAP_FAILED);
		cuda_driver_load(&driver, symbol, NULL);
	}
	comm_restart();
	move(__start_svbss, saved_bss, bss);
	move(__start_svdata, saved_data, data);
	comm_board(-1, 0);
	while (blocks.next != &blocks)
		fuzz_free(blocks.next + 1);
	while (queue) {
		struct queued *q = queue;

		queue = q->next;
		free(q);
	}
	queue_end = &queue;
	while (things) {
		struct thing *t = things;

		things = t->next;
		free(t);
	}
	memset(mapped, 0, sizeof(mapped));
	npinned = spare = 0;
	fail_with = 0;
	unanswered = 0;
	current = NULL;
	context_forget();
	memset(session.arena, 0, sizeof(struct sv_shared));
	memset(session.arena + ARENA_FIRST, 0, 65536);
	session = (struct sv_session){ .arena = session.arena, .arena_len = ARENA_LEN,
		.arena_first = ARENA_FIRST, .shared = (void *)session.arena, .stat = &stats,
		.budget = 32 * SV_GRANULE, .client_pidfd = pidfd };
	session.hal.primary = (CUcontext)&primary;
	session.hal.window = WINDOW;
	session.hal.window_len = GRANULES * SV_GRANULE;
	session.hal.drv = driver;
	hostfunc_begin(&session);
	MUST(!window_init(&session));
}

/* ------------------------------------------------------------------------------ another life */

/* What a dump has besides the log: bytes that it refers to, and the client's part of the arena. */
static struct kept_copy {
	uint64_t seq, len;
	void *p;
} kept_copy[256];
static unsigned int nkept;
static uint8_t arena_copy[65536];

static void describe_device(struct sv_device *d)
{
	*d = (struct sv_device){ .name = "fuzz", .total_mem = 1ull << 30 };
}
void session_describe(struct hal *h, int i, struct sv_device *d)
{
	(void)h, (void)i;
	describe_device(d);
}
int uproxy_session_device(struct sv_session *s, const struct session_options *o,
			  const struct sv_window *w, int n, bool anywhere, int device, struct why *why)
{
	(void)s, (void)o, (void)w, (void)n, (void)anywhere, (void)device, (void)why;
	return 0;
}
int session_arena(struct sv_session *s, int home, struct why *why)
{
	(void)s, (void)home, (void)why;
	return 0;
}
int session_print(struct sv_session *s, bool restored, struct why *why)
{
	(void)s, (void)restored, (void)why;
	return 0;
}
int store_open_trusted(struct store **s, const char *dir, unsigned int flags, uid_t also,
		       struct why *why)
{
	(void)dir, (void)flags, (void)also, (void)why;
	*s = (struct store *)&session;
	return 0;
}
void store_close(struct store *s)
{
	MUST(s);
}
uint64_t store_ref_size(const struct store_ref *ref)
{
	(void)ref;
	return 4096;
}
int content_channel_image(struct store *st, const struct store_ref *channel, int *fd,
			  struct why *why)
{
	(void)st, (void)channel, (void)why;
	*fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return 0;
}
uint32_t ring_version_of(int fd)
{
	(void)fd;
	return SINGVGPU_API_VERSION;
}
int ring_restore(struct ring **r, int fd, const struct ring_params *p)
{
	(void)fd, (void)p;
	*r = (struct ring *)&session;
	return 0;
}
int content_arena_restore(struct sv_session *s, struct store *st, const struct store_ref *arena,
			  const struct content_progress *p, struct why *why)
{
	(void)st, (void)arena, (void)p, (void)why;
	memcpy(s->arena + ARENA_FIRST, arena_copy, sizeof(arena_copy));
	return 0;
}
int kept_restore(struct store *st, const struct store_ref *ref, struct why *why)
{
	(void)st, (void)ref, (void)why;
	for (unsigned int i = 0; i < nkept; i++) {
		void *p = fuzz_malloc(kept_copy[i].len + 1);

		memcpy(p, kept_copy[i].p, kept_copy[i].len);
		if (kept_take(kept_copy[i].seq, p, kept_copy[i].len))
			fuzz_free(p);
	}
	return 0;
}
int comms_expect(struct store *st, const struct store_ref *comms, struct why *why)
{
	(void)st, (void)comms, (void)why;
	return 0;
}
int comms_restore(struct sv_session *s, struct why *why)
{
	(void)s, (void)why;
	return 0;
}
void control_close(void)
{
}
int ring_peer_gone(struct ring *r)
{
	(void)r;
	return 0;
}
void ring_reopen(struct ring *r, uint64_t requests)
{
	(void)r, (void)requests;
}
int observe_expect(struct store *st, const struct store_ref *observed, struct why *why)
{
	(void)st, (void)observed, (void)why;
	return 0;
}
int observe_compare(struct sv_session *s, struct store *st, const struct store_ref *observed,
		    struct why *why)
{
	(void)s, (void)st, (void)observed, (void)why;
	return 0;
}
int content_restore(struct sv_session *s, struct store *st, const struct store_ref *device,
		    const struct content_progress *p, struct content_stats *stats, struct why *why)
{
	(void)s, (void)st, (void)device, (void)p, (void)stats, (void)why;
	return 0;
}

/* A frozen session is saved, and rebuilt from that. What was changed may be refused, with a name. */
static void come_back(struct program *in, bool honest)
{
	struct session_options o = { .driver = "" };
	struct ctl_restore from = { .window = WINDOW, .window_len = GRANULES * SV_GRANULE };
	struct ctl_restored to = { .records = 0 };
	struct sv_shared *sh;
	struct why why = { 0 };
	const void *p;
	uint64_t seq = 0, len;
	int rc;

	rc = journal_compact(&session);
	MUST(!rc || (rc < 0 && !honest));
	for (nkept = 0; nkept < 256 && (seq = kept_next(seq, &p, &len)); nkept++) {
		kept_copy[nkept] = (struct kept_copy){ seq, len, malloc(len + 1) };
		memcpy(kept_copy[nkept].p, p, len);
	}
	memcpy(arena_copy, session.arena + ARENA_FIRST, sizeof(arena_copy));
	restart();
	replay_device(&session.hal, &from.was);
	sh = session.shared;
	*sh = (struct sv_shared){ .magic = SV_SHARED_MAGIC, .version = SV_PROTO_VERSION,
				  .size = sizeof(*sh), .window = WINDOW,
				  .window_len = GRANULES * SV_GRANULE, .budget = 32 * SV_GRANULE,
				  .arena_first = ARENA_FIRST, .devices = 1 };
	describe_device(&sh->dev[0]);
	if (in->p < in->end) {	/* what the client could reach */
		uint16_t at = raw(in, 2) % (sizeof(*sh) - 7);
		uint64_t w = word(in);

		memcpy((uint8_t *)sh + at, &w, 8);
		honest = false;
	}
	rc = replay_session(&session, &o, &from, -1, NULL, &to, &why);
	if (rc && honest)
		fprintf(stderr, "what was not changed does not come back: %s\n", why.text);
	MUST(rc <= 0 && rc == why.err && (!rc || !honest));
	for (unsigned int i = 0; i < nkept; i++)
		free(kept_copy[i].p);
	nkept = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct program in = { data, data + size };

	if (pidfd <= 0)		/* the client's fds are our own */
		pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	restart();
	ringlog.len = 0;
	changed = false;
	prologue();
	run(&in);
	/* Whatever was asked is answered once the device has done all, but host functions. */
	for (int i = 0; i < 8 && queue; i++)
		device_runs(CUDA_SUCCESS);
	end_comms();
	hostfunc_release(&session);
	MUST(!unanswered || session.failed);
	/* A session with communicators is not frozen yet. */
	if (!session.failed && !comms.transport && !comms.all)
		come_back(&in, !changed);
	return 0;
}
