/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proto.h - what a client and its proxy say to each other, besides the generated records
 *
 *   client                            launcher (singvgpu run)              proxy
 *   connect($SINGVGPU_SOCKET) ──────► accept, fork, exec ────────────────► inherits the socket
 *   struct sv_connect ───────────────────────────────────────────────────► checks; opens the device,
 *                                                                          reserves the window, creates
 *                                                                          the channel, fills sv_shared
 *   ◄────────────────────────────────────────── struct sv_connected, then the channel's fd
 *   closes the socket, attaches; from here on only the channel joins the two
 *
 * A session is one client process on one device. Its device window and its arena are mapped at the
 * same addresses on both sides. The client owns all names: handles, device addresses and arena
 * offsets are its choice; the proxy checks that they are free, in range and the session's own.
 *
 *   window  device memory: client's allocator ──SV_OP_X_MAP──► physical memory behind 2 MiB granules
 *   arena   [0, arena_first) struct sv_shared, written by the proxy alone and never read back by it
 *           [arena_first, arena_len) the client's: pinned host memory, staging slots, long replies
 *           ──SV_OP_X_PIN──► the device may use that range
 *
 * A record that is answered (its cpl is not 0) is answered when what it asks for is done: for a copy
 * or a synchronisation when the device has come so far. Answers carry a CUresult as status. An
 * unanswered record that fails tells of it in sv_shared.late (once) or, if the context is beyond
 * repair, by the channel's latched error (for ever).
 *
 * Every struct's size is a multiple of 8; padding is zero; unknown flags end the session.
 * Numbers and layouts only grow while SV_PROTO_VERSION stays.
 */
#ifndef SV_PROTO_H
#define SV_PROTO_H

#include <stddef.h>
#include <stdint.h>

#define SV_PROTO_VERSION	1u

/* Where the window is unless the proxy was told otherwise; sv_shared has the truth. */
#define SV_WINDOW_BASE		0x200000000000ull
#define SV_WINDOW_LEN		(2ull << 40)

/* ------------------------------------------------------------------------------- connection */

#define SV_CONNECT_MAGIC	0x43475653u	/* "SVGC" */

struct sv_connect {
	uint32_t magic;
	uint32_t version;	/* SV_PROTO_VERSION */
	int32_t device;		/* ordinal among the job's devices, -1: the launcher's choice */
	uint32_t api;		/* CUDA_VERSION of the headers that the client was built with */
};

struct sv_connected {
	int32_t status;		/* 0: the channel's fd follows (ring_take_fd); else -errno */
	char why[252];		/* a sentence for status */
};

/* ---------------------------------------------------------------------------------- handles
 *
 * A virtual handle is a number that only these two processes know the meaning of:
 *
 *   bits 47..40 0x51   39..32 type SV_T_name   31..8 index   7..4 use count of the index   3..0 0
 *
 * Types with the driver's own values (handle-real) and CUdevice (an ordinal) are not made so.
 * On the wire a stream is a virtual handle or SV_STREAM_LEGACY; the client has resolved 0 and the
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
#define SV_GRANULE		(2ull << 20)	/* of physical device memory */
#define SV_DEVICES_MAX		16
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

struct sv_shared {
	uint32_t magic;
	uint32_t version;
	uint32_t size;			/* of this struct */
	int32_t driver_version;		/* cuDriverGetVersion */
	uint64_t window;		/* device window: base and bytes, the same for the session's life */
	uint64_t window_len;
	uint64_t budget;		/* bytes of physical device memory granted, 0: none */
	uint64_t arena_first;		/* where the client's part of the arena begins, bytes */
	uint32_t devices;		/* of the job */
	int32_t device;			/* ordinal of the session's own */
	int32_t priority_least;		/* cuCtxGetStreamPriorityRange */
	int32_t priority_greatest;
	uint64_t limit[16];		/* cuCtxGetLimit of a new context, by CUlimit */
	struct sv_device dev[SV_DEVICES_MAX];

	/*
	 * late: failures of unanswered records that do not break the context: a count in the high
	 * half, the newest CUresult in the low half. One store by the proxy; the client keeps the
	 * count that it has reported. It counts up when the channel's error is latched, too, so that
	 * the client has one word to look at.
	 */
	uint64_t late;
	char why[248];			/* why the proxy ended the session, before it did */

	/*
	 * What kernels print: rings of bytes in the arena, written by the proxy before it answers the
	 * synchronisation that made them visible; the client writes them to its own stdout and stderr.
	 * Positions run freely; the client stores tail. What does not fit is dropped and counted.
	 */
	struct sv_print {
		uint64_t off;		/* arena offset of the bytes */
		uint64_t size;		/* a power of two */
		uint64_t head;		/* proxy, release */
		uint64_t tail;		/* client, release */
		uint64_t dropped;	/* proxy: bytes */
	} print[2];			/* stdout, stderr */
};

/* --------------------------------------------------------------------------- records by hand
 *
 * A function that crosses the ring by itself uses its number of the ledger (SV_OP_cuX); what has
 * no function of its own has one of these.
 */
enum {
	SV_OP_X_MAP = 0x4000,	/* sv_map: physical memory behind free granules (log) */
	SV_OP_X_UNMAP,		/* sv_map: and away again; nothing in flight uses it (log) */
	SV_OP_X_PIN,		/* sv_pin: the device may use an arena range (log) */
	SV_OP_X_UNPIN,		/* (log) */
	SV_OP_X_PREPARE,	/* sv_prepare, answered: compile and load a function, on a worker */
	SV_OP_X_NEXT_CALL,	/* no payload, answered with sv_next_call: a host function is due */
	SV_OP_X_FUNC_INFO,	/* sv_func_info_req, answered: sv_func_info in the arena */
	SV_OP_X_GRAPH,		/* sv_graph_req, answered: instantiate a graph (log) */
	SV_OP_X_GRAPH_UPDATE,	/* sv_graph_req, answered: change an instantiated graph (log) */
	SV_OP_X_BYPASS,		/* a path with its NUL: the client has mapped what bypasses us */
	SV_OP_X_IPC_MAP,	/* sv_ipc_map, answered: what was fetched of another process, into the window */
	SV_OP_X_IPC_FORGET,	/* sv_ipc_forget: what begins there is shown to nobody any more */
	SV_OP_X_IPC_RECORD,	/* sv_ipc_on, answered: record an event that processes share */
	SV_OP_X_IPC_WAIT,	/* sv_ipc_on, answered: make a stream wait for one */
	SV_OP_X_IPC_QUERY,	/* sv_sync_on, answered: has the last record of one completed? */
	SV_OP_X_IPC_SYNC,	/* sv_sync_on, answered when it has */
	SV_OP_X_IPC_END,	/* sv_ipc_end: the event is about to be destroyed */
};

struct sv_map {			/* SV_OP_X_MAP, SV_OP_X_UNMAP; both whole granules */
	uint64_t va, len;
};

struct sv_pin {			/* SV_OP_X_PIN, SV_OP_X_UNPIN: whole pages of the arena */
	uint64_t off, len;
};

/* SV_OP_cuDevicePrimaryCtxRetain (answered): the primary context under a handle, retained once in
 * the session. SV_OP_cuCtxCreate_v4: a context of its own. SV_OP_cuDevicePrimaryCtxReset_v2 and
 * SV_OP_cuCtxDestroy_v2 (answered): end it with all that lives in it; the device memory of the
 * session stays, since it is not the context's. (log) */
struct sv_ctx_new {
	uint64_t ctx;		/* new handle */
	uint32_t flags;		/* as cuCtxCreate */
	uint32_t pad;
};

struct sv_ctx_end {
	uint64_t ctx;
};

/*
 * Synchronisation, answered when the device has done what was enqueued before:
 * SV_OP_cuStreamSynchronize (on: stream), SV_OP_cuEventSynchronize (on: event),
 * SV_OP_cuCtxSynchronize (on: 0). SV_OP_cuStreamQuery and SV_OP_cuEventQuery answer at once.
 */
struct sv_sync_on {
	uint64_t ctx;
	uint64_t on;
};

/* SV_OP_cuStreamDestroy_v2, not answered: work in it goes on. (log) */
struct sv_stream_end {
	uint64_t stream;
};

/* SV_OP_cuStreamSetAttribute, answered at once (log). */
struct sv_stream_attr {
	uint64_t ctx, stream;
	uint32_t id;		/* CUstreamAttrID, of those that name no handle */
	uint32_t pad;
	uint8_t value[64];	/* CUstreamAttrValue */
};

/*
 * SV_OP_cuMemcpyAsync: len bytes from src to dst, in stream order. Each address lies in the window
 * (or is a module's global) or in a pinned part of the arena. If word is not 0, the device then
 * stores value at that arena offset (8 bytes, aligned): a staging slot is free again.
 * Answered, if asked, when the copy has been done.
 */
struct sv_copy {
	uint64_t ctx, stream;
	uint64_t dst, src, len;
	uint64_t word, value;
};

/*
 * SV_OP_cuMemcpy3DAsync_v2: as above; each side is linear memory (array 0, addr is its first byte,
 * pitch and height its shape in bytes and rows) or a CUarray (virtual handle, addr 0).
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
 * Images. SV_OP_cuLibraryLoadData, SV_OP_cuModuleLoadDataEx, answered, on a worker (log). The image's
 * bytes are in a file that the client has mapped (path follows the options, dev and ino must agree,
 * as well as size and mtime), or in the arena, where they stay until the unload.
 * Options follow the struct: n_opt of struct sv_jit_opt, then the path with its NUL.
 */
#define SV_IMAGE_FILE	1u
#define SV_IMAGE_ARENA	2u
#define SV_IMAGE_PARTS	3u	/* in the arena: uint64_t n, n of struct sv_part_of { off, len } from the
				 * image's start, then fatbins of relocatable code (a wrapper's
				 * version 2): the driver gets a wrapper with an array of pointers */

struct sv_image {
	uint64_t ctx;		/* 0 for a library */
	uint64_t handle;	/* new: SV_T_CULibrary or SV_T_CUmodule */
	uint32_t kind;		/* SV_IMAGE_ */
	uint32_t n_opt;
	uint64_t off, len;	/* bytes of the file or of the arena */
	uint64_t dev, ino, size, mtime_ns;	/* of the file; 0 for the arena */
	uint64_t log_off;	/* arena: room for the JIT's logs, 0: none */
	uint32_t info_cap, error_cap;	/* bytes of both, info first; each gets a NUL */
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
 * SV_OP_cuLinkComplete, answered with uint64_t, the bytes of the result, on a worker: the inputs of a
 * linker as one record, an sv_image of kind SV_IMAGE_LINK whose bytes are uint64_t n, n of struct
 * sv_link_input, and what these point to. handle, size and mtime_ns are 0; dev and ino say where in the
 * arena the result goes, and how much room there is.
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
 * By name, the name with its NUL behind the struct, answered:
 * SV_OP_cuLibraryGetKernel, SV_OP_cuModuleGetFunction: binds the new handle (log); answers when
 * sv_func_info is at arena offset info, which has cap bytes.
 * SV_OP_cuLibraryGetGlobal, SV_OP_cuLibraryGetManaged, SV_OP_cuModuleGetGlobal_v2: answer
 * struct sv_global (new, info 0, cap 0). (log) For a managed variable, if cap is not 0, its first
 * cap bytes are put at arena offset info; for another one that is CUDA_ERROR_INVALID_VALUE.
 */
struct sv_by_name {
	uint64_t ctx;
	uint64_t from;		/* library or module */
	uint64_t handle;	/* new kernel or function; else 0 */
	uint64_t info;
	uint32_t cap;
	uint32_t name_len;	/* with its NUL */
};

struct sv_global {
	uint64_t addr, len;
	uint64_t managed;	/* 1: the program's host side uses addr, too */
};

/* SV_OP_cuKernelGetFunction: a CUfunction for a CUkernel in a context; SV_OP_cuLibraryGetModule: a
 * CUmodule for a CUlibrary. Answered (log). */
struct sv_derive {
	uint64_t ctx;
	uint64_t from;
	uint64_t handle;	/* new */
};

/* SV_OP_cuLibraryEnumerateKernels, SV_OP_cuModuleEnumerateFunctions: answered; the arena at off gets
 * uint32_t count, then for each the name with its NUL. -ENOSPC as CUDA_ERROR_OUT_OF_MEMORY. */
struct sv_enumerate {
	uint64_t from;
	uint64_t off;
	uint32_t cap;
	uint32_t pad;
};

#define SV_FUNC_ATTRS	16	/* CUfunction_attribute values described */
#define SV_ATTR_ERROR(_rc)	(INT32_MIN + (int32_t)(_rc))	/* in place of a value */
#define SV_ATTR_IS_ERROR(_v)	((_v) < INT32_MIN / 2)

struct sv_func_info {
	uint32_t params;		/* number */
	uint32_t param_bytes;		/* of the buffer that a launch passes */
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
 * SV_OP_cuLaunchKernel, for every kind of launch (answered, if asked, when it has been enqueued): attrs of CUlaunchAttribute (each sizeof(CUlaunchAttribute), handles
 * in them are virtual ones), then param_bytes of parameters laid out as the kernel has them.
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
 * Host functions. SV_OP_cuLaunchHostFunc: when the stream comes to it, the client is to run call id
 * and then to store id at the arena offset word; the stream goes on when the word is >= id.
 * Per stream, ids grow and word is the same. SV_OP_X_NEXT_CALL is answered as soon as one is due.
 */
struct sv_host_func {
	uint64_t ctx, stream;
	uint64_t id;
	uint64_t word;
};

struct sv_next_call {
	uint64_t id;		/* 0: none, ask again (a dump wants no open requests) */
	int32_t status;		/* of the stream: CUDA_SUCCESS, or its error */
	uint32_t pad;
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
 * SV_OP_cuMemExportToShareableHandle (answered): fd is the client's number of a socket, through which the
 * memory's file descriptor comes (ring_take_fd). SV_OP_cuMemImportFromShareableHandle (answered with
 * sv_mem_imported; log): fd is the client's number of one that was exported; handle is new. The
 * proxy takes what the client has at fd by pidfd_getfd. A session that shares memory is not restored.
 */
struct sv_mem_share {
	uint64_t handle;
	int32_t fd;
	uint32_t pad;
};

struct sv_mem_imported {
	uint64_t len;		/* 0: the driver alone knows */
};

struct sv_mem_release {
	uint64_t handle;
};

/*
 * What a process hands to another as a CUipcMemHandle, a CUipcEventHandle or a CUmemPoolPtrExportData.
 * `server` is where the proxy that has it can be asked for it, and `secret` what it wants to hear:
 * nothing but chance gives these away. Pointers of pools need the pool's key besides, which is in the
 * file that stands for the pool. The rest is for the process that opens it, and compared with the truth.
 */
struct sv_ipc_handle {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	uint8_t server[16];
	uint8_t secret[16];
	uint64_t at;		/* of the first byte, in its granule */
	uint64_t len;		/* as the program asked for it; 0: an event */
	uint64_t device;	/* what the memory is of: half of its UUID over the other; 0: an event */
};

enum { SV_IPC_MEMORY = 1, SV_IPC_POINTER, SV_IPC_EVENT };
#define SV_IPC_MAGIC	0x49475653u	/* "SVGI" */
#define SV_IPC_VERSION	1

/* The bytes of whole granules that hold it; 0: no memory is so large. */
static inline uint64_t sv_ipc_room(const struct sv_ipc_handle *h)
{
	if (h->at >= SV_GRANULE || !h->len || h->len >> 46)
		return 0;
	return (h->at + h->len + SV_GRANULE - 1) & ~(SV_GRANULE - 1);
}

/*
 * SV_OP_cuIpcGetMemHandle, answered with sv_ipc_shown: len bytes at va, in memory of SV_OP_X_MAP, are
 * shown to who knows the secret, and the key if it is not zero. CUDA_ERROR_NOT_READY: not while the
 * device works; ask again. A session that has shown or fetched anything is not restored.
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

/* SV_OP_cuIpcOpenMemHandle_v2, answered with sv_ipc_fetched; SV_OP_X_IPC_MAP puts it in the window, once.
 * SV_OP_cuIpcCloseMemHandle, with sv_map: it is unmapped. */
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

/* SV_OP_cuIpcGetEventHandle, with sv_sync_on, answered with sv_ipc_shown: the event's records are seen by
 * others from here on. SV_OP_cuIpcOpenEventHandle (answered): an event that was made is another's. */
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

/* Graphs: the client ships the whole of one at instantiation; see graph.h beside this file. */
struct sv_graph_req {
	uint64_t ctx;
	uint64_t exec;		/* CUgraphExec: new for X_GRAPH, existing for X_GRAPH_UPDATE */
	uint64_t off, len;	/* arena: the description; the proxy copies it before it reads it */
	uint64_t flags;		/* CUgraphInstantiate_flags */
};

#endif
