// SPDX-License-Identifier: Apache-2.0
/*
 * records.c - the table of each record's handler and effects; serve, worker, journal, replay use it
 *
 * A handler is written by hand or is the generated dispatch. For generated records the annotations
 * (cuda.ann) give whether the record is logged and which handle it makes or ends; a row here adds
 * the rest. A record that has no row and is not generated ends the session.
 */
#include "comm_i.h"
#include "context.h"
#include "device_memory.h"
#include "graph.h"
#include "graphs.h"
#include "log.h"
#include "modules.h"
#include "outside.h"
#include "park.h"
#include "records.h"
#include "streams.h"
#include "transfer.h"

#define HAND(op, f, type)	[SV_OP_##op] = { .name = #op, .fn = f, .size = sizeof(struct type)
#define BARE(op, f)		[SV_OP_##op] = { .name = #op, .fn = f
#define GENERATED(op)		[SV_OP_##op] = { .name = #op
#define AT(type, field)		(offsetof(struct type, field) + 1)

/* Keys: the bytes before a field, a whole record, a variable's library and name. */
#define BEFORE(type, field)	{ 0, offsetof(struct type, field) }
#define ALL			{ 0, RECORD_REST }
#define GLOBAL			.changes = AT(sv_by_name, from), .of = AT(sv_by_name, from), .key = { BEFORE(sv_by_name, info), \
					{ sizeof(struct sv_by_name), RECORD_REST } }

/* What is in a stream's order, and the events that it records or waits for: park.h. */
#define IN_STREAM(type, field)	.park = PARK_STREAM, .stream = AT(type, field)
#define TOUCHES(type, field)	IN_STREAM(type, field), .touches = true
#define RECORDS(type, field)	.event = AT(type, field)
#define WAITS(type, field)	.event = AT(type, field), .waits = true

static struct record records[SV_OPS_cuda] = {
	HAND(cuDevicePrimaryCtxRetain, do_ctx_retain, sv_ctx_new), .flags = RECORD_LOG,
		.makes = AT(sv_ctx_new, ctx) },
	HAND(cuCtxCreate_v4, do_ctx_create, sv_ctx_new), .flags = RECORD_LOG,
		.makes = AT(sv_ctx_new, ctx) },
	HAND(cuDevicePrimaryCtxReset_v2, do_ctx_reset, sv_ctx_end), .flags = RECORD_LOG,
		.ends = AT(sv_ctx_end, ctx) },
	HAND(cuCtxDestroy_v2, do_ctx_destroy, sv_ctx_end), .flags = RECORD_LOG,
		.ends = AT(sv_ctx_end, ctx) },
	GENERATED(cuCtxSetLimit), .changes = AT(sv_cuCtxSetLimit, ctx),
		.key = { BEFORE(sv_cuCtxSetLimit, value),
			 { offsetof(struct sv_cuCtxSetLimit, limit), sizeof(CUlimit) } } },
	GENERATED(cuCtxSetCacheConfig), .changes = AT(sv_cuCtxSetCacheConfig, ctx),
		.key = { BEFORE(sv_cuCtxSetCacheConfig, config) } },
	GENERATED(cuCtxSetSharedMemConfig), .changes = AT(sv_cuCtxSetSharedMemConfig, ctx),
		.key = { BEFORE(sv_cuCtxSetSharedMemConfig, config) } },

	HAND(cuStreamSynchronize, do_stream_sync, sv_sync_on), IN_STREAM(sv_sync_on, on) },
	HAND(cuEventSynchronize, do_event_sync, sv_sync_on), .park = PARK_ALONE,
		WAITS(sv_sync_on, on), .versions = true },
	HAND(cuCtxSynchronize, do_ctx_sync, sv_sync_on), .park = PARK_ALL },
	HAND(cuStreamQuery, do_stream_query, sv_sync_on), .park = PARK_BUSY,
		.stream = AT(sv_sync_on, on) },
	HAND(cuEventQuery, do_event_query, sv_sync_on), .park = PARK_BUSY,
		.event = AT(sv_sync_on, on) },
	HAND(X_WATCH_STREAM, do_stream_watch, sv_watch), .park = PARK_BUSY, .stream = AT(sv_watch, on) },
	HAND(X_WATCH_EVENT, do_event_watch, sv_watch), .park = PARK_BUSY, .event = AT(sv_watch, on) },
	HAND(cuEventElapsedTime, do_event_elapsed, sv_cuEventElapsedTime),
		.park = PARK_BUSY, .event = AT(sv_cuEventElapsedTime, hStart),
		.event2 = AT(sv_cuEventElapsedTime, hEnd) },
	HAND(cuEventElapsedTime_v2, do_event_elapsed, sv_cuEventElapsedTime_v2),
		.park = PARK_BUSY, .event = AT(sv_cuEventElapsedTime_v2, hStart),
		.event2 = AT(sv_cuEventElapsedTime_v2, hEnd) },
	HAND(cuStreamDestroy_v2, do_stream_destroy, sv_stream_end), .flags = RECORD_LOG,
		.ends = AT(sv_stream_end, stream) },

	HAND(cuStreamWaitValue32_v2, do_stream_wait, sv_cuStreamWaitValue32_v2),
		TOUCHES(sv_cuStreamWaitValue32_v2, stream) },
	GENERATED(cuStreamWriteValue32_v2), TOUCHES(sv_cuStreamWriteValue32_v2, stream) },
	HAND(cuStreamWaitValue64_v2, do_stream_wait, sv_cuStreamWaitValue64_v2),
		TOUCHES(sv_cuStreamWaitValue64_v2, stream) },
	GENERATED(cuStreamWriteValue64_v2), TOUCHES(sv_cuStreamWriteValue64_v2, stream) },

	HAND(cuStreamSetAttribute, do_stream_attr, sv_stream_attr), .flags = RECORD_LOG,
		.changes = AT(sv_stream_attr, stream),
		.key = { BEFORE(sv_stream_attr, value) } },

	HAND(cuMemcpyAsync, do_copy, sv_copy), TOUCHES(sv_copy, stream) },
	HAND(cuMemcpy3DAsync_v2, do_copy3d, sv_copy3d), TOUCHES(sv_copy3d, stream) },
	GENERATED(cuMemsetD8Async), TOUCHES(sv_cuMemsetD8Async, hStream) },
	GENERATED(cuMemsetD16Async), TOUCHES(sv_cuMemsetD16Async, hStream) },
	GENERATED(cuMemsetD32Async), TOUCHES(sv_cuMemsetD32Async, hStream) },
	GENERATED(cuMemsetD2D8Async), TOUCHES(sv_cuMemsetD2D8Async, hStream) },
	GENERATED(cuMemsetD2D16Async), TOUCHES(sv_cuMemsetD2D16Async, hStream) },
	GENERATED(cuMemsetD2D32Async), TOUCHES(sv_cuMemsetD2D32Async, hStream) },

	HAND(cuEventRecord, do_event_record, sv_cuEventRecord), IN_STREAM(sv_cuEventRecord, hStream),
		RECORDS(sv_cuEventRecord, hEvent), .versions = true },
	HAND(cuEventRecordWithFlags, do_event_record, sv_cuEventRecordWithFlags), IN_STREAM(sv_cuEventRecordWithFlags, hStream),
		RECORDS(sv_cuEventRecordWithFlags, hEvent), .versions = true },
	HAND(cuEventDestroy, do_event_destroy, sv_cuEventDestroy) },
	HAND(cuEventDestroy_v2, do_event_destroy, sv_cuEventDestroy_v2) },
	HAND(cuStreamWaitEvent, do_event_wait, sv_cuStreamWaitEvent), IN_STREAM(sv_cuStreamWaitEvent, hStream),
		WAITS(sv_cuStreamWaitEvent, hEvent), .versions = true },
	GENERATED(cuCtxRecordEvent), .park = PARK_ORDER },
	GENERATED(cuCtxWaitEvent), .park = PARK_ORDER },

	HAND(cuLibraryLoadData, do_load_library, sv_image),
		.flags = RECORD_LOG | RECORD_WORKER | RECORD_TAIL | RECORD_ORDERED | RECORD_IMAGE,
		.makes = AT(sv_image, handle) },
	HAND(cuModuleLoadDataEx, do_load_module, sv_image),
		.flags = RECORD_LOG | RECORD_WORKER | RECORD_TAIL | RECORD_ORDERED | RECORD_IMAGE,
		.makes = AT(sv_image, handle) },
	HAND(cuLinkComplete, do_link, sv_image), .flags = RECORD_WORKER | RECORD_TAIL },
	HAND(cuLibraryUnload, do_unload, sv_image_end), .flags = RECORD_LOG,
		.ends = AT(sv_image_end, handle) },
	HAND(cuModuleUnload, do_unload, sv_image_end), .flags = RECORD_LOG,
		.ends = AT(sv_image_end, handle) },
	HAND(cuLibraryGetKernel, do_get_kernel, sv_by_name),
		.flags = RECORD_LOG | RECORD_WORKER | RECORD_TAIL,
		.makes = AT(sv_by_name, handle), .of = AT(sv_by_name, from) },
	HAND(cuModuleGetFunction, do_get_function, sv_by_name),
		.flags = RECORD_LOG | RECORD_WORKER | RECORD_TAIL | RECORD_ORDERED,
		.makes = AT(sv_by_name, handle), .of = AT(sv_by_name, from) },
	HAND(cuLibraryGetGlobal, do_get_global, sv_by_name),
		.flags = RECORD_LOG | RECORD_WORKER | RECORD_TAIL | RECORD_FIRST | RECORD_ORDERED,
		GLOBAL },
	HAND(cuLibraryGetManaged, do_get_global, sv_by_name),
		.flags = RECORD_LOG | RECORD_WORKER | RECORD_TAIL | RECORD_FIRST | RECORD_ORDERED,
		GLOBAL },
	HAND(cuModuleGetGlobal_v2, do_get_global, sv_by_name),
		.flags = RECORD_LOG | RECORD_WORKER | RECORD_TAIL | RECORD_FIRST | RECORD_ORDERED,
		GLOBAL },
	HAND(cuKernelGetFunction, do_derive, sv_derive),
		.flags = RECORD_LOG | RECORD_WORKER | RECORD_ORDERED,
		.makes = AT(sv_derive, handle), .of = AT(sv_derive, from) },
	HAND(cuLibraryGetModule, do_derive, sv_derive),
		.flags = RECORD_LOG | RECORD_WORKER | RECORD_ORDERED,
		.makes = AT(sv_derive, handle), .of = AT(sv_derive, from) },
	HAND(cuLibraryEnumerateKernels, do_enumerate, sv_enumerate), .flags = RECORD_WORKER },
	HAND(cuModuleEnumerateFunctions, do_enumerate, sv_enumerate), .flags = RECORD_WORKER },
	GENERATED(cuFuncLoad), .flags = RECORD_WORKER | RECORD_FIRST,
		.changes = AT(sv_cuFuncLoad, function), .key = { ALL } },
	GENERATED(cuFuncSetAttribute), .flags = RECORD_WORKER,
		.changes = AT(sv_cuFuncSetAttribute, hfunc),
		.key = { BEFORE(sv_cuFuncSetAttribute, value) } },
	GENERATED(cuKernelSetAttribute), .flags = RECORD_WORKER,
		.changes = AT(sv_cuKernelSetAttribute, kernel),
		.key = { BEFORE(sv_cuKernelSetAttribute, val) } },

	GENERATED(cuKernelSetCacheConfig), .changes = AT(sv_cuKernelSetCacheConfig, kernel),
		.key = { BEFORE(sv_cuKernelSetCacheConfig, config) } },
	GENERATED(cuFuncSetCacheConfig), .changes = AT(sv_cuFuncSetCacheConfig, hfunc),
		.key = { BEFORE(sv_cuFuncSetCacheConfig, config) } },
	GENERATED(cuFuncSetSharedMemConfig), .changes = AT(sv_cuFuncSetSharedMemConfig, hfunc),
		.key = { BEFORE(sv_cuFuncSetSharedMemConfig, config) } },

	HAND(cuTexObjectCreate, do_tex_create, sv_tex_new),
		.flags = RECORD_LOG | RECORD_TAIL | RECORD_VALUE | RECORD_ORDERED },
	HAND(cuSurfObjectCreate, do_tex_create, sv_tex_new),
		.flags = RECORD_LOG | RECORD_TAIL | RECORD_VALUE | RECORD_ORDERED },
	HAND(cuTexObjectDestroy, do_tex_destroy, sv_tex_end),
		.flags = RECORD_LOG | RECORD_ENDS_VALUE },
	HAND(cuSurfObjectDestroy, do_tex_destroy, sv_tex_end),
		.flags = RECORD_LOG | RECORD_ENDS_VALUE },
	HAND(cuArrayDestroy, do_array_destroy, sv_cuArrayDestroy), .flags = RECORD_LOG,
		.park = PARK_ALL },
	HAND(cuMipmappedArrayDestroy, do_array_destroy, sv_cuMipmappedArrayDestroy),
		.flags = RECORD_LOG, .park = PARK_ALL },

	HAND(cuTensorMapEncodeTiled, do_tensor_map, sv_tensor_map) },
	HAND(cuTensorMapEncodeIm2col, do_tensor_map, sv_tensor_map) },
	HAND(cuTensorMapEncodeIm2colWide, do_tensor_map, sv_tensor_map) },
	HAND(cuTensorMapReplaceAddress, do_tensor_map, sv_tensor_map) },

	HAND(cuOccupancyMaxPotentialClusterSize, do_clusters, sv_clusters),
		.flags = RECORD_WORKER },
	HAND(cuOccupancyMaxActiveClusters, do_clusters, sv_clusters), .flags = RECORD_WORKER },
	HAND(cuLaunchKernel, do_launch, sv_launch), .flags = RECORD_TAIL,
		TOUCHES(sv_launch, stream) },
	HAND(cuLaunchHostFunc, do_host_func, sv_host_func), IN_STREAM(sv_host_func, stream) },

	HAND(cuGraphConditionalHandleCreate, do_graph_cond, sv_graph_cond),
		.flags = RECORD_LOG | RECORD_COND | RECORD_ORDERED,
		.changes = AT(sv_graph_cond, graph) },
	HAND(cuGraphDestroy, do_graph_forget, sv_graph_forget), .flags = RECORD_LOG,
		.ends = AT(sv_graph_forget, graph) },
	HAND(cuGraphLaunch, do_graph_launch, sv_graph_launch),
		TOUCHES(sv_graph_launch, stream), WAITS(sv_graph_launch, exec) },
	HAND(cuGraphUpload, do_graph_upload, sv_graph_launch),
		IN_STREAM(sv_graph_launch, stream) },
	HAND(cuGraphExecDestroy, do_graph_destroy, sv_graph_end), .flags = RECORD_LOG,
		.ends = AT(sv_graph_end, exec) },

	HAND(cuMemCreate, do_mem_create, sv_mem_create), .flags = RECORD_LOG | RECORD_ALLOC,
		.makes = AT(sv_mem_create, handle) },
	HAND(cuMemRelease, do_mem_release, sv_mem_release), .flags = RECORD_LOG,
		.ends = AT(sv_mem_release, handle) },
	HAND(cuMemExportToShareableHandle, do_mem_export, sv_mem_share), .flags = RECORD_WORKER },
	HAND(cuMemImportFromShareableHandle, do_mem_import, sv_mem_share), .flags = RECORD_LOG,
		.makes = AT(sv_mem_share, handle) },
	HAND(cuIpcGetMemHandle, do_ipc_show, sv_ipc_show) },
	HAND(cuIpcOpenMemHandle_v2, do_ipc_fetch, sv_ipc_fetch), .flags = RECORD_WORKER },
	HAND(cuIpcCloseMemHandle, do_ipc_close, sv_map) },
	HAND(cuIpcGetEventHandle, do_ipc_event_get, sv_sync_on) },
	HAND(cuIpcOpenEventHandle, do_ipc_event_open, sv_ipc_event), .flags = RECORD_WORKER },
	HAND(cuMemMap, do_mem_map, sv_mem_map), .flags = RECORD_LOG | RECORD_MAPS },
	HAND(cuMemUnmap, do_mem_unmap, sv_map), .flags = RECORD_LOG | RECORD_UNMAPS },
	HAND(cuMemSetAccess, do_mem_access, sv_mem_access), .flags = RECORD_LOG | RECORD_ACCESS,
		.key = { BEFORE(sv_mem_access, flags) } },

	HAND(X_MAP, do_map, sv_map), .flags = RECORD_LOG | RECORD_MAPS | RECORD_ALLOC },
	HAND(X_MAP_PIECES, do_map_pieces, sv_pieces),
		.flags = RECORD_LOG | RECORD_MAPS | RECORD_ALLOC },
	HAND(X_UNMAP, do_unmap, sv_map), .flags = RECORD_LOG | RECORD_UNMAPS },
	HAND(X_PIN, do_pin, sv_pin), .flags = RECORD_LOG | RECORD_RANGE, .makes = AT(sv_pin, off) },
	HAND(X_UNPIN, do_unpin, sv_pin), .flags = RECORD_LOG | RECORD_RANGE,
		.ends = AT(sv_pin, off) },
	HAND(X_PREPARE, do_prepare, sv_prepare),
		.flags = RECORD_WORKER | RECORD_LOG | RECORD_FIRST | RECORD_ORDERED,
		.changes = AT(sv_prepare, function), .of = AT(sv_prepare, function),
		.key = { ALL } },
	BARE(X_NEXT_CALL, do_next_call) },
	HAND(X_FUNC_INFO, do_func_info, sv_func_info_req), .flags = RECORD_WORKER },
	HAND(X_GRAPH, do_graph, sv_graph_req),
		.flags = RECORD_LOG | RECORD_WORKER | RECORD_TAIL | RECORD_GRAPH,
		.makes = AT(sv_graph_req, exec) },
	HAND(X_GRAPH_UPDATE, do_graph_update, sv_graph_req),
		.flags = RECORD_LOG | RECORD_TAIL | RECORD_GRAPH | RECORD_NODES,
		.changes = AT(sv_graph_req, exec), .park = PARK_ALONE,
		.event = AT(sv_graph_req, exec), .answered = true },
	BARE(X_BYPASS, do_bypass), .flags = RECORD_TAIL },
	HAND(X_IPC_MAP, do_ipc_map, sv_ipc_map) },
	HAND(X_IPC_FORGET, do_ipc_forget, sv_ipc_forget) },
	HAND(X_IPC_RECORD, do_ipc_record, sv_ipc_on), IN_STREAM(sv_ipc_on, stream),
		RECORDS(sv_ipc_on, event) },
	HAND(X_IPC_WAIT, do_ipc_wait, sv_ipc_on), IN_STREAM(sv_ipc_on, stream),
		WAITS(sv_ipc_on, event) },
	HAND(X_IPC_QUERY, do_ipc_query, sv_sync_on), .park = PARK_BUSY,
		.event = AT(sv_sync_on, on) },
	HAND(X_IPC_SYNC, do_ipc_sync, sv_sync_on), .park = PARK_ALONE,
		WAITS(sv_sync_on, on) },
	HAND(X_IPC_END, do_ipc_event_end, sv_ipc_end), .park = PARK_ALL },

	HAND(X_COMM_NEW, do_comm_new, sv_comm_new) },
	HAND(X_COMM_END, do_comm_end, sv_comm_end) },
	HAND(X_COLL, do_coll, sv_coll), .flags = RECORD_TAIL, .park = PARK_POST, .touches = true,
		.stream = AT(sv_coll, stream), .event = AT(sv_coll, comm) },
	BARE(X_COMM_LEAVE, do_comm_leave) },
	HAND(X_SEEN, do_seen, sv_seen), .park = PARK_ALL },
	HAND(X_ROOM, do_room, sv_room), .flags = RECORD_TAIL, .park = PARK_ROOM },
	BARE(X_CROWDED, do_crowded) },
	HAND(X_CROSS_TELL, do_cross_tell, sv_cross), IN_STREAM(sv_cross, stream), .tells = true },
	HAND(X_CROSS_WAIT, do_cross_wait, sv_cross), IN_STREAM(sv_cross, stream) },
};

/* Runs before main; the table does not change later. */
__attribute__((constructor)) static void take_generated(void)
{
	for (unsigned int op = 0; op < SV_OPS_cuda; op++) {
		const struct sv_op *g = &cuda_ops[op];
		struct record *r = &records[op];

		if (!(g->flags & SV_GENERATED))
			continue;
		r->name = g->name;
		r->flags |= g->flags & SV_LOG ? RECORD_LOG : 0;
		if (g->creates)
			r->makes = g->handle;
		if (g->destroys)
			r->ends = g->handle;
	}
	/* The end of an object waits for parked records that use it. Memory's end is the program's care. */
	for (unsigned int op = 0; op < SV_OPS_cuda; op++) {
		struct record *r = &records[op];

		if (r->ends && op != SV_OP_X_UNPIN && op != SV_OP_cuMemRelease)
			r->park = PARK_ALL;
		if (r->flags & RECORD_ENDS_VALUE)
			r->park = PARK_ALL;
	}
}

const struct record *record_of(uint16_t op)
{
	return op < SV_OPS_cuda && records[op].name ? &records[op] : NULL;
}

int record_run(const struct record *r, struct call *k)
{
	lock_may_wait("what a handler waits for");
	return r && r->fn ? r->fn(k) : cuda_dispatch(&k->c);
}
