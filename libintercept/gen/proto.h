/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proto.h - records and messages between a client and its proxy, as far as they are not generated
 *
 *   client                            launcher (singvgpu run)              proxy
 *   connect($SINGVGPU_SOCKET) ──────► accept, fork, exec ────────────────► inherits the socket
 *   struct sv_connect ───────────────────────────────────────────────────► checks; opens the device,
 *                                                                          reserves the window, creates
 *                                                                          the channel, fills sv_shared
 *   ◄────────────────────────────────────────── struct sv_connected, then the channel's fd
 *   closes the socket, attaches; from here on the channel is the only link between the two
 *
 * A session is one client process on one device. Its device window and its arena are mapped at the
 * same addresses on both sides. A process on several devices has a session for each: windows and
 * channels are at different addresses, and all use the arena of the first one's channel. The client chooses all handles, device addresses and arena offsets;
 * the proxy checks that they are free, in range and the session's own.
 *
 *   window  device memory: client's allocator ──SV_OP_X_MAP_PIECES──► physical memory in pieces
 *   arena   [0, arena_first) struct sv_shared, written by the proxy alone and never read back by it, but
 *           for the positions up to which the client has taken something
 *           [arena_first, arena_len) the client's: pinned host memory, staging slots, long replies
 *           ──SV_OP_X_PIN──► the device may use that range
 *
 * A record whose cpl is not 0 is answered when its operation is complete; for a copy or a
 * synchronisation that is when the device has completed it. Answers carry a CUresult as status.
 * An unanswered record that fails leaves a deferred error in sv_shared.late, which is reported
 * once, or, if it has broken the context, a sticky error, which the channel latches for good.
 *
 * Every struct's size is a multiple of 8; padding is zero; unknown flags end the session.
 * Numbers and layouts only grow while SV_PROTO_VERSION stays. Until 1.0 another version is refused.
 * Changelog:
 *
 *   1  first version
 *   2  records of no function have ledger numbers, too
 *   3  the first part of SV_IMAGE_PARTS is the linked image
 *   4  sv_connect has the process's other sessions
 *   5  sv_shared.due
 */
#ifndef SV_PROTO_H
#define SV_PROTO_H

#include <stddef.h>
#include <stdint.h>

#define SV_PROTO_VERSION	5u

/* The default place of the window; sv_shared has the actual one. */
#define SV_WINDOW_BASE		0x200000000000ull
#define SV_WINDOW_LEN		(2ull << 40)

#define SV_GRANULE		(2ull << 20)	/* of physical device memory */
#define SV_DEVICES_MAX		16

struct sv_window {
	uint64_t base, len;	/* bytes, multiples of SV_GRANULE */
};

/* ------------------------------------------------------------------------------- connection */

#define SV_CONNECT_MAGIC	0x43475653u	/* "SVGC" */

struct sv_connect {
	uint32_t magic;
	uint32_t version;	/* SV_PROTO_VERSION */
	int32_t device;		/* ordinal among the job's devices, -1: the launcher's choice */
	uint32_t api;		/* CUDA_VERSION of the headers that the client was built with */

	/*
	 * Of a process that has `others` sessions already, else 0. Then the fd of the first one's
	 * channel follows (ring_pass_fd), and the new one has its channel at this address.
	 */
	uint32_t others;
	uint32_t pad;
	uint64_t channel;
	struct sv_window taken[SV_DEVICES_MAX];	/* the windows of the others */
};

struct sv_connected {
	int32_t status;		/* 0: the channel's fd follows (ring_take_fd); else -errno */
	char why[252];		/* a sentence for status */
};

/* ---------------------------------------------------------------------------------- handles
 *
 * A virtual handle is a number that has a meaning only between these two processes:
 *
 *   bits 47..40 0x51   39..32 type SV_T_name   31..8 index   7..4 use count of the index   3..0 0
 *
 * Types with the driver's own values (handle-real) and CUdevice (an ordinal) have another form.
 * On the wire a stream is a virtual handle or SV_STREAM_LEGACY; the client resolves 0 and the
 * per-thread stream, which is an ordinary blocking stream that it creates for each thread.
 */
#define SV_STREAM_LEGACY	1ull
#define SV_HANDLE_TAG		0x51ull
#define SV_HANDLE_INDEX_BITS	24

static inline uint64_t sv_handle(unsigned int type, uint32_t index, uint32_t use)
{
	return SV_HANDLE_TAG << 40 | (uint64_t)type << 32 | (uint64_t)index << 8 | (use & 15) << 4;
}

static inline int sv_is_handle(unsigned int type, uint64_t h)
{
	return h >> 32 == (SV_HANDLE_TAG << 8 | type) && !(h & 15);
}

static inline uint32_t sv_handle_index(uint64_t h)
{
	return (uint32_t)h >> 8;
}

static inline uint32_t sv_handle_use(uint64_t h)
{
	return (uint32_t)h >> 4 & 15;
}

/* ------------------------------------------------------------------------------ shared state */

#define SV_SHARED_MAGIC		0x53475653u	/* "SVGS" */
#define SV_ATTRS_MAX		256		/* CUdevice_attribute values described */

struct sv_device {
	char name[256];
	uint8_t uuid[16];
	uint8_t luid[8];
	uint32_t luid_mask;
	int32_t luid_ok;		/* cuDeviceGetLuid succeeded */
	uint64_t total_mem;		/* bytes */
	char pci_bus_id[16];
	int32_t attr[SV_ATTRS_MAX];	/* by CUdevice_attribute */
	uint8_t attr_ok[SV_ATTRS_MAX];	/* 1: the driver knows it */
};

#define SV_LATE_FULL		(1ull << 31)	/* in sv_shared.late; no CUresult has this bit */
#define SV_DUE			256		/* host functions in sv_shared.due */

struct sv_next_call {		/* also the answer of SV_OP_X_NEXT_CALL */
	uint64_t id;		/* 0: none, ask again; a freeze leaves no request unanswered */
	int32_t status;		/* of the stream: CUDA_SUCCESS, or its error */
	uint32_t pad;
};

struct sv_shared {
	uint32_t magic;
	uint32_t version;
	uint32_t size;			/* of this struct */
	int32_t driver_version;		/* cuDriverGetVersion */
	uint64_t window;		/* device window: base and bytes; constant in a session */
	uint64_t window_len;
	uint64_t budget;		/* bytes of physical device memory granted, 0: none */
	uint64_t arena_first;		/* where the client's part of the arena begins, bytes */
	uint32_t devices;		/* number of the job's devices */
	int32_t device;			/* ordinal of the session's device */
	int32_t priority_least;		/* cuCtxGetStreamPriorityRange */
	int32_t priority_greatest;
	uint64_t limit[16];		/* cuCtxGetLimit of a new context, by CUlimit */
	struct sv_device dev[SV_DEVICES_MAX];

	/*
	 * late: deferred errors of unanswered records: a count in the high half, the newest
	 * CUresult in the low half. The proxy changes it in one store; the client remembers the
	 * count that it has reported. A sticky error counts it up too, so that the client checks
	 * one word. SV_LATE_FULL: records of a stream, or of all, take too much memory while they wait for
	 * other ranks; before a client sends another one without an answer it asks by SV_OP_X_ROOM.
	 */
	uint64_t late;
	char why[240];			/* why the proxy ends the session; written before it does */
	uint32_t at_step;		/* 1: the proxy looks for a step's end; the client keeps nothing
					 * mapped that is free */
	uint32_t life;			/* number of restores: a watch counts until the next one */

	/*
	 * Output of kernels' printf: rings of bytes in the arena. The proxy writes them before it
	 * answers the synchronisation that made the output visible; the client copies them to its
	 * own stdout and stderr. Positions run freely; the client stores tail. Bytes that do not
	 * fit are dropped and counted.
	 */
	struct sv_print {
		uint64_t off;		/* arena offset of the bytes */
		uint64_t size;		/* a power of two */
		uint64_t head;		/* proxy, release */
		uint64_t tail;		/* client, release */
		uint64_t dropped;	/* proxy: bytes */
	} print[2];			/* stdout, stderr */

	/*
	 * Host functions that became due while no SV_OP_X_NEXT_CALL was open. The request may be in the
	 * ring, behind a record for a full queue of the driver. The driver accepts that record only when
	 * a host function has run. So the client looks here until the proxy has taken its request.
	 * Positions run freely.
	 */
	struct sv_due {
		uint32_t head;		/* proxy, release */
		uint32_t tail;		/* whoever takes one: sv_due_take */
		struct sv_next_call call[SV_DUE];
	} due;
};

/* Takes the oldest one. 0: there is none. Any thread of both sides. */
static inline int sv_due_take(struct sv_due *d, struct sv_next_call *call)
{
	/* pairs with itself in another thread, and head with tell_due() of the proxy */
	uint32_t tail = __atomic_load_n(&d->tail, __ATOMIC_ACQUIRE);

	/* Bounded: the other side may change tail without end. */
	for (int i = 0; i < SV_DUE && tail != __atomic_load_n(&d->head, __ATOMIC_ACQUIRE); i++) {
		*call = d->call[tail % SV_DUE];	/* nobody writes it before tail has passed it */
		/* pairs with itself, and with tell_due() of the proxy */
		if (__atomic_compare_exchange_n(&d->tail, &tail, tail + 1, 0, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			return 1;
	}
	return 0;
}

/* --------------------------------------------------------------------------- records by hand
 *
 * The record of a function has that function's number in the ledger (SV_OP_cuX). Records of no
 * function are these (SV_OP_X_NAME), with ledger numbers of their own; (log): a restore replays it.
 *
 *   X_MAP            sv_map: map physical memory at free granules, each granule a piece (log)
 *   X_MAP_PIECES     sv_pieces: the same, in larger pieces (log)
 *   X_UNMAP          sv_map: unmap whole pieces; no operation in flight uses them (log)
 *   X_PIN            sv_pin: let the device use an arena range (log)
 *   X_UNPIN          sv_pin: end that use (log)
 *   X_CROWDED        no payload, answered: CUDA_ERROR_NOT_READY as long as memory was refused because of the device's other
 *                    sharers, and the job is about to be moved
 *   X_PREPARE        sv_prepare, answered: compile and load a function, on a worker
 *   X_NEXT_CALL      no payload, answered with sv_next_call: a host function is due
 *   X_FUNC_INFO      sv_func_info_req, answered: sv_func_info in the arena
 *   X_GRAPH          sv_graph_req, answered: instantiate a graph (log)
 *   X_GRAPH_UPDATE   sv_graph_req, answered: change an instantiated graph (log)
 *   X_BYPASS         a path with its NUL: a file that the client has mapped and that bypasses us
 *   X_IPC_MAP        sv_ipc_map, answered: map fetched memory of another process into the window
 *   X_IPC_FORGET     sv_ipc_forget: end the export of the allocation that begins there
 *   X_IPC_RECORD     sv_ipc_on, answered: record an event that processes share
 *   X_IPC_WAIT       sv_ipc_on, answered: make a stream wait for such an event
 *   X_IPC_QUERY      sv_sync_on, answered: has the event's last record completed?
 *   X_IPC_SYNC       sv_sync_on, answered when it has completed
 *   X_IPC_END        sv_ipc_end: the event is about to be destroyed
 *   X_SEEN           sv_seen: store a word when all earlier ends of objects have been executed
 *   X_WATCH_STREAM   sv_watch, answered: a query of a stream; when it is done, a word may tell
 *   X_WATCH_EVENT    sv_watch, answered: the same of an event
 *   X_ROOM           sv_room, answered: when a record may be handed in (sv_shared.late)
 *   X_CROSS_TELL     sv_cross: store the value in the word's `arrived`, for which another device's stream waits
 *   X_CROSS_WAIT     sv_cross: wait for that
 */
struct sv_map {			/* SV_OP_X_MAP, SV_OP_X_UNMAP; both whole granules */
	uint64_t va, len;
};

/*
 * SV_OP_X_MAP_PIECES: physical memory for each `piece` bytes of the range; what is left at its end
 * is a piece, too. A worker executes records that map, unmap or pin if they are to be answered:
 * the client uses the range when it has the answer.
 */
struct sv_pieces {
	uint64_t va, len, piece;	/* whole granules */
};

struct sv_pin {			/* SV_OP_X_PIN, SV_OP_X_UNPIN: whole pages of the arena */
	uint64_t off, len;
};

/* SV_OP_cuDevicePrimaryCtxRetain (answered): binds a handle to the primary context, which a session
 * retains once. SV_OP_cuCtxCreate_v4: makes a new context. SV_OP_cuDevicePrimaryCtxReset_v2 and
 * SV_OP_cuCtxDestroy_v2 (answered): end a context and its objects; device memory belongs to the
 * session and stays. (log) */
struct sv_ctx_new {
	uint64_t ctx;		/* new handle */
	uint32_t flags;		/* as cuCtxCreate */
	uint32_t pad;
};

struct sv_ctx_end {
	uint64_t ctx;
};

/*
 * Synchronisation, answered when the device has completed the work enqueued before:
 * SV_OP_cuStreamSynchronize (on: stream), SV_OP_cuEventSynchronize (on: event),
 * SV_OP_cuCtxSynchronize (on: 0). SV_OP_cuStreamQuery and SV_OP_cuEventQuery answer at once.
 */
struct sv_sync_on {
	uint64_t ctx;
	uint64_t on;
};

/*
 * SV_OP_X_WATCH_STREAM (on: stream), SV_OP_X_WATCH_EVENT (on: event): a query. If its answer is
 * CUDA_ERROR_NOT_READY, the word may have SV_WATCHED; then it gets SV_WATCH_DONE when the device has completed what was
 * asked about, or SV_WATCH_ASK: only a query says how that has ended. If it has another value, nobody watches.
 */
struct sv_watch {
	uint64_t ctx, on;
	uint64_t word;		/* arena offset, 8-aligned, pinned */
	uint64_t number;	/* of the request; below 2^62 */
};
#define SV_WATCHED(number)	((number) << 2 | 1)
#define SV_WATCH_DONE(number)	((number) << 2 | 2)
#define SV_WATCH_ASK(number)	((number) << 2 | 3)

/* SV_OP_cuStreamDestroy_v2, not answered: work on the stream still completes. (log) */
struct sv_stream_end {
	uint64_t stream;
};

/* SV_OP_cuStreamSetAttribute, answered at once (log). */
struct sv_stream_attr {
	uint64_t ctx, stream;
	uint32_t id;		/* CUstreamAttrID whose value has no handle */
	uint32_t pad;
	uint8_t value[64];	/* CUstreamAttrValue */
};

/*
 * SV_OP_cuMemcpyAsync: len bytes from src to dst, in stream order. Each address lies in the window
 * (or is a module's variable) or in a pinned part of the arena. If word is not 0, the device then
 * stores value at that arena offset (8 bytes, aligned), which frees a staging slot. An answer, if
 * requested, comes when the copy is complete.
 */
struct sv_copy {
	uint64_t ctx, stream;
	uint64_t dst, src, len;
	uint64_t word, value;
};

/*
 * SV_OP_cuMemcpy3DAsync_v2: as sv_copy. Each side is linear memory (array 0, addr is its first
 * byte, pitch and height are its shape in bytes and rows) or a CUarray (virtual handle, addr 0).
 */
struct sv_copy3d_side {
	uint64_t addr, array;
	uint64_t pitch, height;
	uint64_t x, y, z;	/* x in bytes */
	uint64_t lod;
};

struct sv_copy3d {
	uint64_t ctx, stream;
	struct sv_copy3d_side dst, src;
	uint64_t width, height, depth;	/* bytes, rows, slices */
	uint64_t word, value;
};

/*
 * Images. SV_OP_cuLibraryLoadData, SV_OP_cuModuleLoadDataEx, answered, on a worker (log). The
 * image's bytes are in a file that the client has mapped, whose dev, ino, size and mtime must
 * match, or in the arena, where they stay until the unload. The struct is followed by n_opt of
 * struct sv_jit_opt, then by the path with its NUL.
 */
#define SV_IMAGE_FILE	1u
#define SV_IMAGE_ARENA	2u
#define SV_IMAGE_PARTS	3u	/* in the arena: uint64_t n, n of struct sv_part_of { off, len } from the
				 * image's start: the linked image, of 0 bytes if there is none, then
				 * fatbins of relocatable code; the driver gets a wrapper of version
				 * 2 with a pointer to the first and an array of those to the rest */

struct sv_image {
	uint64_t ctx;		/* 0 for a library */
	uint64_t handle;	/* new: SV_T_CULibrary or SV_T_CUmodule */
	uint32_t kind;		/* SV_IMAGE_ */
	uint32_t n_opt;
	uint64_t off, len;	/* bytes of the file or of the arena */
	uint64_t dev, ino, size, mtime_ns;	/* of the file; 0 for the arena */
	uint64_t log_off;	/* arena offset of the buffers for the JIT's logs, 0: none */
	uint32_t info_cap, error_cap;	/* bytes of both logs, info first; each gets a NUL */
	uint32_t path_len;	/* with its NUL; 0 for the arena */
	uint32_t pad;
};

struct sv_jit_opt {
	uint32_t opt;		/* CUjit_option, or CUlibraryOption with bit 31 set */
	uint32_t pad;
	uint64_t value;
};

struct sv_part_of {		/* of SV_IMAGE_PARTS */
	uint64_t off, len;
};

/*
 * SV_OP_cuLinkComplete, on a worker, answered with the size of the result in bytes (uint64_t).
 * The record is an sv_image of kind SV_IMAGE_LINK. Its bytes are uint64_t n, n of struct
 * sv_link_input, and the inputs that these describe. handle, size and mtime_ns are 0; dev is the
 * arena offset of the buffer for the result, ino its size.
 */
#define SV_IMAGE_LINK	4u

struct sv_link_input {
	uint32_t type;		/* CUjitInputType: cubin, PTX, fatbin or object */
	uint32_t pad;
	uint64_t off, len;	/* from the image's start */
};

struct sv_image_end {		/* SV_OP_cuLibraryUnload, SV_OP_cuModuleUnload (log) */
	uint64_t handle;
};

/*
 * Lookups by name, answered; the name with its NUL follows the struct.
 *
 * SV_OP_cuLibraryGetKernel, SV_OP_cuModuleGetFunction: bind the new handle (log); the answer comes
 * when sv_func_info is at arena offset info, which has cap bytes.
 *
 * SV_OP_cuLibraryGetGlobal, SV_OP_cuLibraryGetManaged, SV_OP_cuModuleGetGlobal_v2: answer struct
 * sv_global (log); handle is 0. If cap is not 0, the first cap bytes of a managed variable are put
 * at arena offset info; for another variable that is CUDA_ERROR_INVALID_VALUE.
 */
struct sv_by_name {
	uint64_t ctx;
	uint64_t from;		/* library or module */
	uint64_t handle;	/* of the new kernel or function; else 0 */
	uint64_t info;
	uint32_t cap;
	uint32_t name_len;	/* with its NUL */
};

struct sv_global {
	uint64_t addr, len;
	uint64_t managed;	/* 1: the program uses addr on the host, too */
};

/* SV_OP_cuKernelGetFunction: a CUfunction for a CUkernel in a context; SV_OP_cuLibraryGetModule: a
 * CUmodule for a CUlibrary. Answered (log). */
struct sv_derive {
	uint64_t ctx;
	uint64_t from;
	uint64_t handle;	/* new */
};

/*
 * SV_OP_cuLibraryEnumerateKernels, SV_OP_cuModuleEnumerateFunctions, answered: the arena gets, at
 * off, uint32_t count, then each name with its NUL. CUDA_ERROR_OUT_OF_MEMORY: more than cap
 * bytes.
 */
struct sv_enumerate {
	uint64_t from;
	uint64_t off;
	uint32_t cap;
	uint32_t pad;
};

#define SV_FUNC_ATTRS	16	/* CUfunction_attribute values described */
#define SV_ATTR_ERROR(_rc)	(INT32_MIN + (int32_t)(_rc))	/* the query's error as a value */
#define SV_ATTR_IS_ERROR(_v)	((_v) < INT32_MIN / 2)

struct sv_func_info {
	uint32_t params;		/* number of parameters */
	uint32_t param_bytes;		/* size of the buffer that a launch passes */
	int32_t attr[SV_FUNC_ATTRS];	/* by CUfunction_attribute; or SV_ATTR_ERROR */
	struct {
		uint32_t off, size;
	} param[];
};

struct sv_func_info_req {	/* SV_OP_X_FUNC_INFO */
	uint64_t ctx;
	uint64_t function;	/* or kernel */
	uint64_t info;		/* arena */
	uint32_t cap;
	uint32_t pad;
};

struct sv_prepare {
	uint64_t ctx;
	uint64_t function;	/* or kernel */
};

/*
 * SV_OP_cuOccupancyMaxPotentialClusterSize, SV_OP_cuOccupancyMaxActiveClusters, on a worker,
 * answered with sv_cluster_count: of a launch's configuration, what decides where clusters fit.
 */
#define SV_CLUSTER_SIZE		1u	/* the attribute is given: CLUSTER_DIMENSION */
#define SV_CLUSTER_PREFERRED	2u	/* PREFERRED_CLUSTER_DIMENSION */
#define SV_CLUSTER_POLICY	4u	/* CLUSTER_SCHEDULING_POLICY_PREFERENCE */
#define SV_CLUSTER_CARVEOUT	8u	/* PREFERRED_SHARED_MEMORY_CARVEOUT */

struct sv_clusters {
	uint64_t ctx;
	uint64_t function;	/* or kernel */
	uint32_t grid[3], block[3];
	uint32_t shared;	/* dynamic shared memory, bytes */
	uint32_t given;		/* SV_CLUSTER_; what is not given is 0 */
	uint32_t size[3];
	uint32_t preferred[3];
	uint32_t policy, carveout;
};

struct sv_cluster_count {
	int32_t n;
	uint32_t pad;
};

/*
 * SV_OP_cuLaunchKernel, for every kind of launch; answered, if requested, when it has been
 * enqueued. The struct is followed by attrs of CUlaunchAttribute (each sizeof(CUlaunchAttribute),
 * with virtual handles), then by param_bytes of parameters in the kernel's layout.
 */
#define SV_LAUNCH_COOPERATIVE	1u

struct sv_launch {
	uint64_t ctx, stream;
	uint64_t function;	/* or kernel */
	uint32_t grid[3], block[3];
	uint32_t shared;	/* dynamic shared memory, bytes */
	uint32_t flags;		/* SV_LAUNCH_ */
	uint32_t attrs;
	uint32_t param_bytes;
};

/*
 * Host functions. SV_OP_cuLaunchHostFunc: when the stream reaches it, the client runs call id, then
 * stores id at the arena offset word; the stream continues when the word is >= id. A stream's ids
 * grow, and its word stays the same. SV_OP_X_NEXT_CALL is answered as soon as a call is due, with
 * sv_next_call; see also sv_shared.due.
 */
struct sv_host_func {
	uint64_t ctx, stream;
	uint64_t id;
	uint64_t word;
};

/* VMM (log). SV_OP_cuMemCreate (answered), SV_OP_cuMemRelease, SV_OP_cuMemMap, SV_OP_cuMemUnmap,
 * SV_OP_cuMemSetAccess: whole granules of the window. */
struct sv_mem_create {
	uint64_t handle;	/* new */
	uint64_t len;
	uint64_t flags;		/* SV_MEM_SHARED or 0 */
};

#define SV_MEM_SHARED	1u	/* it may be exported as a file descriptor */

/*
 * SV_OP_cuMemExportToShareableHandle (answered): fd is a socket of the client, to which the proxy
 * sends the memory's file descriptor (ring_take_fd). SV_OP_cuMemImportFromShareableHandle (answered
 * with sv_mem_imported; log): fd is an exported file descriptor; handle is new. The proxy gets the
 * client's fd by pidfd_getfd. A session that shares memory is not restored.
 */
struct sv_mem_share {
	uint64_t handle;
	int32_t fd;
	uint32_t pad;
};

struct sv_mem_imported {
	uint64_t len;		/* 0: known only to the driver */
};

struct sv_mem_release {
	uint64_t handle;
};

/*
 * The bytes of a CUipcMemHandle, a CUipcEventHandle or a CUmemPoolPtrExportData, which one
 * process hands to another. `server` is the address of the exporting proxy, `secret` the proof
 * that it demands; both are random. A pool's pointers need the pool's key, too, which is in the
 * file that stands for the pool. The other fields inform the opening process; its proxy checks
 * them.
 */
struct sv_ipc_handle {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	uint8_t server[16];
	uint8_t secret[16];
	uint64_t at;		/* offset of the first byte in its granule */
	uint64_t len;		/* as the program asked for it; 0: an event */
	uint64_t device;	/* of the memory: both halves of its UUID, xored; 0: an event */
};

enum { SV_IPC_MEMORY = 1, SV_IPC_POINTER, SV_IPC_EVENT };
#define SV_IPC_MAGIC	0x49475653u	/* "SVGI" */
#define SV_IPC_VERSION	1

/* The bytes of whole granules that hold the memory; 0: at or len is out of range. */
static inline uint64_t sv_ipc_room(const struct sv_ipc_handle *h)
{
	if (h->at >= SV_GRANULE || !h->len || h->len >> 46)
		return 0;
	return (h->at + h->len + SV_GRANULE - 1) & ~(SV_GRANULE - 1);
}

/*
 * SV_OP_cuIpcGetMemHandle, answered with sv_ipc_shown: exports len bytes at va, in memory of
 * SV_OP_X_MAP, to peers that know the secret and, if it is not zero, the key.
 * CUDA_ERROR_NOT_READY: the device is busy; ask again. A session that has exported or imported
 * anything is not restored.
 */
struct sv_ipc_show {
	uint64_t va, len;
	uint8_t key[16];
};

struct sv_ipc_shown {
	uint8_t server[16], secret[16];
};

struct sv_ipc_forget {
	uint64_t va;
};

/*
 * SV_OP_cuIpcOpenMemHandle_v2, answered with sv_ipc_fetched, imports memory; SV_OP_X_IPC_MAP maps
 * it into the window, once; SV_OP_cuIpcCloseMemHandle, with sv_map, unmaps it.
 */
struct sv_ipc_fetch {
	struct sv_ipc_handle h;
	uint8_t key[16];
};

struct sv_ipc_fetched {
	uint64_t id;
};

struct sv_ipc_map {
	uint64_t va, len, id;
};

/*
 * SV_OP_cuIpcGetEventHandle, with sv_sync_on, answered with sv_ipc_shown, exports an event:
 * importers see its later records. SV_OP_cuIpcOpenEventHandle (answered) makes an existing event
 * of this session stand for the imported one.
 */
struct sv_ipc_event {
	uint64_t ctx, event;
	struct sv_ipc_handle h;
};

struct sv_ipc_on {
	uint64_t ctx, event, stream;
};

struct sv_ipc_end {
	uint64_t event;
};

struct sv_mem_map {
	uint64_t va, len;
	uint64_t handle, offset;
};

struct sv_mem_access {
	uint64_t va, len;
	uint32_t flags;		/* CUmemAccess_flags */
	uint32_t pad;
};

/*
 * Textures and surfaces (log). SV_OP_cuTexObjectCreate, SV_OP_cuSurfObjectCreate: struct sv_tex_new, then
 * CUDA_RESOURCE_DESC with virtual handles in it and, for a texture, CUDA_TEXTURE_DESC and, if view is 1,
 * CUDA_RESOURCE_VIEW_DESC. Answered with the object: uint64_t, the driver's own value, which kernels read.
 * SV_OP_cuTexObjectDestroy, SV_OP_cuSurfObjectDestroy: struct sv_tex_end.
 */
struct sv_tex_new {
	uint64_t ctx;
	uint32_t view;
	uint32_t pad;
};

struct sv_tex_end {
	uint64_t ctx;
	uint64_t object;
};

/*
 * SV_OP_cuTensorMapEncodeTiled, SV_OP_cuTensorMapEncodeIm2col, SV_OP_cuTensorMapEncodeIm2colWide,
 * SV_OP_cuTensorMapReplaceAddress, answered: the arena gets, at off, the SV_TENSOR_MAP_BYTES of a
 * CUtensorMap; for the last one it has the old ones there. Members that a call has no arguments for,
 * or that its rank leaves unused, are 0.
 */
#define SV_TENSOR_RANK_MAX	5u
#define SV_TENSOR_MAP_BYTES	128u

struct sv_tensor_map {
	uint64_t ctx;
	uint64_t off;
	uint64_t address;	/* as it is: only a kernel accesses it */
	uint64_t dim[SV_TENSOR_RANK_MAX];
	uint64_t stride[SV_TENSOR_RANK_MAX - 1];
	uint32_t type, rank;
	uint32_t box[SV_TENSOR_RANK_MAX];
	uint32_t step[SV_TENSOR_RANK_MAX];	/* elementStrides */
	int32_t lower[SV_TENSOR_RANK_MAX - 2], upper[SV_TENSOR_RANK_MAX - 2];
	uint32_t channels, pixels;
	uint32_t interleave, mode, swizzle, promotion, fill;
	uint32_t pad;
};

/* Graphs: the client sends a whole graph when it is instantiated; see graph.h beside this file. */
struct sv_graph_req {
	uint64_t ctx;
	uint64_t exec;		/* CUgraphExec: new with X_GRAPH, existing with X_GRAPH_UPDATE */
	uint64_t off, len;	/* arena: the description; the proxy copies it before it reads it */
	uint64_t flags;		/* CUgraphInstantiate_flags; with X_GRAPH_UPDATE 0 or SV_GRAPH_SURE */
};

/*
 * An update that waits for a launch is answered when it has been done. Without this flag it is answered at
 * once, if its description is behind the record, and its error is deferred.
 */
#define SV_GRAPH_SURE	1ull

/*
 * Collective operations: NCCL's calls, which the proxies execute (docs/collectives.md). A communicator
 * is named by a number of the client's choice, never used twice in a session, not 0.
 *
 * SV_OP_X_COMM_NEW: `id` is the bytes of the ncclUniqueId. `word` is the arena offset of a struct
 * sv_comm_word, zeroed, which the proxy writes from then on: its state changes when all ranks have
 * joined, or the creation has failed. SV_OP_X_COMM_END: the communicator is destroyed, or with
 * SV_COMM_ABORT aborted, which ends its operations at once; its state is SV_COMM_ENDED, and the word
 * the client's again, when nothing of this rank is under way any more. Either may be a request:
 * NEW is answered with sv_comm_result. An abort may follow an end that waits.
 *
 * SV_OP_X_COLL: struct sv_coll, then its calls: one, or all of a group that are of this
 * communicator. It takes its place in the stream, and is not answered.
 * SV_OP_X_COMM_LEAVE: the process ends with exit status 0: communicators that it still has are left.
 */
#define SV_NCCL_ID_BYTES	128u

struct sv_comm_new {
	uint64_t ctx;
	uint64_t comm;		/* new */
	uint64_t word;
	uint32_t ranks, rank;
	uint8_t id[SV_NCCL_ID_BYTES];
	uint64_t parent;	/* which is split; 0: none */
};

/*
 * SV_OP_X_SEEN: the ends of objects that came before it have been executed, none is parked any more. Then the
 * client uses their handles' indices again.
 */
struct sv_seen {
	uint64_t word;		/* arena offset, 8-aligned, pinned */
	uint64_t value;
};

/*
 * SV_OP_X_ROOM, followed by the first bytes of a record of op: answered when such a record may be handed in.
 * That is at once unless the record would be parked where too much is parked (uproxy/streams/park.h).
 */
struct sv_room {
	uint16_t op;
	uint16_t pad[3];
};

#define SV_ROOM_BYTES	120u	/* of the record, at most */

/*
 * SV_OP_X_CROSS_TELL, SV_OP_X_CROSS_WAIT, not answered: a stream of one device waits for one of another. The words of a
 * process's crossings lie in the arena that all its sessions share. A proxy whose stream stands behind a failed
 * operation before it comes to the store says so in the word, so that the waiting stream's proxy ends waits for it.
 */
struct sv_cross {
	uint64_t ctx, stream;
	uint64_t word;		/* arena offset of a struct sv_cross_word, 8-aligned, pinned */
	uint64_t value;		/* not 0; never the same twice for a word */
};

struct sv_cross_word {
	uint64_t arrived;	/* the value that the waiting stream waits for; stored by the device */
	uint64_t passed;	/* the value that it has waited for; the same */
	uint64_t stands;	/* the value that does not arrive, while that is so; stored by the proxy */
	uint64_t cause;		/* arena offset of the sv_comm_word of the communicator that has failed; 0: unknown */
};

struct sv_comm_word {		/* in the arena, 8-aligned; the proxy alone writes it */
	uint32_t state;		/* SV_COMM_ */
	uint32_t code;		/* ncclResult_t of the first failure; 0: none; stored last */
	char text[120];		/* why; ends with a 0 */
};

enum { SV_COMM_CREATING, SV_COMM_STANDS, SV_COMM_FAILED, SV_COMM_ENDED };

struct sv_comm_result {
	uint32_t code;		/* ncclResult_t; the word has the reason */
	uint32_t pad;
};

#define SV_COMM_ABORT	1u

struct sv_comm_end {
	uint64_t comm;
	uint32_t flags;		/* SV_COMM_ */
	uint32_t pad;
};

struct sv_coll {
	uint64_t ctx, stream;
	uint64_t comm;
	uint32_t calls;		/* 1 … SV_COLL_CALLS_MAX */
	uint32_t pad;
};

#define SV_COLL_CALLS_MAX	1024u

enum { SV_COLL_NO_FACTOR, SV_COLL_FACTOR, SV_COLL_FACTOR_AT };

/* The numbers are those of enum step_kind (uproxy/coll/step.h). */
enum sv_coll_kind {
	SV_COLL_ALLREDUCE,
	SV_COLL_REDUCE,
	SV_COLL_BROADCAST,
	SV_COLL_ALLGATHER,
	SV_COLL_REDUCESCATTER,
	SV_COLL_ALLTOALL,
	SV_COLL_GATHER,
	SV_COLL_SCATTER,
	SV_COLL_SEND,
	SV_COLL_RECV,
	SV_COLL_KINDS,
};

/* The number of ncclRedOpCreatePreMulSum's operators; the others have ncclRedOp_t's, types ncclDataType_t's. */
#define SV_COLL_PREMULSUM	5u

/*
 * peer is the root of a rooted collective, or the other rank of a pair, else 0. op is 0 for what
 * reduces nothing. Addresses that a call does not use are 0.
 */
struct sv_coll_call {
	uint8_t kind, type, op;
	uint8_t scale;		/* SV_COLL_: whether factor is an element's bytes, or a device address of one */
	uint32_t peer;
	uint64_t count;
	uint64_t send, recv;
	uint64_t factor;
};

_Static_assert(sizeof(struct sv_window) == 16, "wire");
_Static_assert(sizeof(struct sv_connect) == 288, "wire");
_Static_assert(sizeof(struct sv_connected) == 256, "wire");
_Static_assert(sizeof(struct sv_device) == 1592, "wire");
_Static_assert(sizeof(struct sv_due) == 4104, "wire");
_Static_assert(sizeof(struct sv_shared) == 30104, "wire");
_Static_assert(sizeof(struct sv_print) == 40, "wire");
_Static_assert(sizeof(struct sv_map) == 16, "wire");
_Static_assert(sizeof(struct sv_pieces) == 24, "wire");
_Static_assert(sizeof(struct sv_pin) == 16, "wire");
_Static_assert(sizeof(struct sv_ctx_new) == 16, "wire");
_Static_assert(sizeof(struct sv_ctx_end) == 8, "wire");
_Static_assert(sizeof(struct sv_sync_on) == 16, "wire");
_Static_assert(sizeof(struct sv_watch) == 32, "wire");
_Static_assert(sizeof(struct sv_stream_end) == 8, "wire");
_Static_assert(sizeof(struct sv_stream_attr) == 88, "wire");
_Static_assert(sizeof(struct sv_copy) == 56, "wire");
_Static_assert(sizeof(struct sv_copy3d_side) == 64, "wire");
_Static_assert(sizeof(struct sv_copy3d) == 184, "wire");
_Static_assert(sizeof(struct sv_image) == 96, "wire");
_Static_assert(sizeof(struct sv_jit_opt) == 16, "wire");
_Static_assert(sizeof(struct sv_part_of) == 16, "wire");
_Static_assert(sizeof(struct sv_link_input) == 24, "wire");
_Static_assert(sizeof(struct sv_image_end) == 8, "wire");
_Static_assert(sizeof(struct sv_by_name) == 40, "wire");
_Static_assert(sizeof(struct sv_global) == 24, "wire");
_Static_assert(sizeof(struct sv_derive) == 24, "wire");
_Static_assert(sizeof(struct sv_enumerate) == 24, "wire");
_Static_assert(sizeof(struct sv_func_info) == 72, "wire");
_Static_assert(sizeof(struct sv_func_info_req) == 32, "wire");
_Static_assert(sizeof(struct sv_prepare) == 16, "wire");
_Static_assert(sizeof(struct sv_clusters) == 80, "wire");
_Static_assert(sizeof(struct sv_cluster_count) == 8, "wire");
_Static_assert(sizeof(struct sv_launch) == 64, "wire");
_Static_assert(sizeof(struct sv_host_func) == 32, "wire");
_Static_assert(sizeof(struct sv_next_call) == 16, "wire");
_Static_assert(sizeof(struct sv_mem_create) == 24, "wire");
_Static_assert(sizeof(struct sv_mem_share) == 16, "wire");
_Static_assert(sizeof(struct sv_mem_imported) == 8, "wire");
_Static_assert(sizeof(struct sv_mem_release) == 8, "wire");
_Static_assert(sizeof(struct sv_ipc_handle) == 64, "wire");
_Static_assert(sizeof(struct sv_ipc_show) == 32, "wire");
_Static_assert(sizeof(struct sv_ipc_shown) == 32, "wire");
_Static_assert(sizeof(struct sv_ipc_forget) == 8, "wire");
_Static_assert(sizeof(struct sv_ipc_fetch) == 80, "wire");
_Static_assert(sizeof(struct sv_ipc_fetched) == 8, "wire");
_Static_assert(sizeof(struct sv_ipc_map) == 24, "wire");
_Static_assert(sizeof(struct sv_ipc_event) == 80, "wire");
_Static_assert(sizeof(struct sv_ipc_on) == 24, "wire");
_Static_assert(sizeof(struct sv_ipc_end) == 8, "wire");
_Static_assert(sizeof(struct sv_mem_map) == 32, "wire");
_Static_assert(sizeof(struct sv_mem_access) == 24, "wire");
_Static_assert(sizeof(struct sv_tex_new) == 16, "wire");
_Static_assert(sizeof(struct sv_tex_end) == 16, "wire");
_Static_assert(sizeof(struct sv_tensor_map) == 200, "wire");
_Static_assert(sizeof(struct sv_graph_req) == 40, "wire");
_Static_assert(sizeof(struct sv_comm_new) == 168, "wire");
_Static_assert(sizeof(struct sv_seen) == 16, "wire");
_Static_assert(sizeof(struct sv_room) == 8, "wire");
_Static_assert(sizeof(struct sv_cross) == 32, "wire");
_Static_assert(sizeof(struct sv_cross_word) == 32, "wire");
_Static_assert(sizeof(struct sv_comm_word) == 128, "wire");
_Static_assert(sizeof(struct sv_comm_result) == 8, "wire");
_Static_assert(sizeof(struct sv_comm_end) == 16, "wire");
_Static_assert(sizeof(struct sv_coll) == 32, "wire");
_Static_assert(sizeof(struct sv_coll_call) == 40, "wire");

#endif
