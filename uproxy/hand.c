// SPDX-License-Identifier: Apache-2.0
/*
 * hand.c - the records that are handled by hand, and generated ones that need care
 *
 * An entry without a function is a generated one that may compile or wait: it runs on a worker.
 * What stands neither here nor in the generated dispatch ends the session.
 */
#include "graph.h"
#include "uproxy_i.h"

#define OP(f)		[SV_OP_##f] = { .name = #f
#define X(f)		[SV_OP_X_##f - SV_OP_X_MAP] = { .name = #f

static const struct hand functions[] = {
	OP(cuDevicePrimaryCtxRetain), do_ctx_retain, sizeof(struct sv_ctx_new), HAND_LOG },
	OP(cuCtxCreate_v4), do_ctx_create, sizeof(struct sv_ctx_new), HAND_LOG },
	OP(cuDevicePrimaryCtxReset_v2), do_ctx_reset, sizeof(struct sv_ctx_end), HAND_LOG },
	OP(cuCtxDestroy_v2), do_ctx_destroy, sizeof(struct sv_ctx_end), HAND_LOG },

	OP(cuStreamSynchronize), do_stream_sync, sizeof(struct sv_sync_on), 0 },
	OP(cuEventSynchronize), do_event_sync, sizeof(struct sv_sync_on), 0 },
	OP(cuCtxSynchronize), do_ctx_sync, sizeof(struct sv_sync_on), 0 },
	OP(cuStreamQuery), do_stream_query, sizeof(struct sv_sync_on), 0 },
	OP(cuEventQuery), do_event_query, sizeof(struct sv_sync_on), 0 },
	OP(cuEventElapsedTime), do_event_elapsed, sizeof(struct sv_cuEventElapsedTime), 0 },
	OP(cuEventElapsedTime_v2), do_event_elapsed, sizeof(struct sv_cuEventElapsedTime_v2), 0 },
	OP(cuStreamDestroy_v2), do_stream_destroy, sizeof(struct sv_stream_end), HAND_LOG },

	OP(cuStreamWaitValue32_v2), do_stream_wait, sizeof(struct sv_cuStreamWaitValue32_v2), 0 },
	OP(cuStreamWaitValue64_v2), do_stream_wait, sizeof(struct sv_cuStreamWaitValue64_v2), 0 },

	OP(cuStreamSetAttribute), do_stream_attr, sizeof(struct sv_stream_attr), HAND_LOG },

	OP(cuMemcpyAsync), do_copy, sizeof(struct sv_copy), 0 },
	OP(cuMemcpy3DAsync_v2), do_copy3d, sizeof(struct sv_copy3d), 0 },

	OP(cuLibraryLoadData), do_load_library, sizeof(struct sv_image),
		HAND_LOG | HAND_WORKER | HAND_TAIL },
	OP(cuModuleLoadDataEx), do_load_module, sizeof(struct sv_image),
		HAND_LOG | HAND_WORKER | HAND_TAIL },
	OP(cuLinkComplete), do_link, sizeof(struct sv_image), HAND_WORKER | HAND_TAIL },
	OP(cuLibraryUnload), do_unload, sizeof(struct sv_image_end), HAND_LOG },
	OP(cuModuleUnload), do_unload, sizeof(struct sv_image_end), HAND_LOG },
	OP(cuLibraryGetKernel), do_get_kernel, sizeof(struct sv_by_name),
		HAND_LOG | HAND_WORKER | HAND_TAIL },
	OP(cuModuleGetFunction), do_get_function, sizeof(struct sv_by_name),
		HAND_LOG | HAND_WORKER | HAND_TAIL },
	OP(cuLibraryGetGlobal), do_get_global, sizeof(struct sv_by_name),
		HAND_LOG | HAND_WORKER | HAND_TAIL },
	OP(cuLibraryGetManaged), do_get_global, sizeof(struct sv_by_name),
		HAND_LOG | HAND_WORKER | HAND_TAIL },
	OP(cuModuleGetGlobal_v2), do_get_global, sizeof(struct sv_by_name),
		HAND_LOG | HAND_WORKER | HAND_TAIL },
	OP(cuKernelGetFunction), do_derive, sizeof(struct sv_derive), HAND_LOG | HAND_WORKER },
	OP(cuLibraryGetModule), do_derive, sizeof(struct sv_derive), HAND_LOG | HAND_WORKER },
	OP(cuLibraryEnumerateKernels), do_enumerate, sizeof(struct sv_enumerate), HAND_WORKER },
	OP(cuModuleEnumerateFunctions), do_enumerate, sizeof(struct sv_enumerate), HAND_WORKER },
	OP(cuFuncLoad), NULL, 0, HAND_WORKER | HAND_LOG },
	OP(cuFuncSetAttribute), NULL, 0, HAND_WORKER | HAND_LOG },
	OP(cuKernelSetAttribute), NULL, 0, HAND_WORKER | HAND_LOG },

	OP(cuTexObjectCreate), do_tex_create, sizeof(struct sv_tex_new), HAND_LOG | HAND_TAIL },
	OP(cuSurfObjectCreate), do_tex_create, sizeof(struct sv_tex_new), HAND_LOG | HAND_TAIL },
	OP(cuTexObjectDestroy), do_tex_destroy, sizeof(struct sv_tex_end), HAND_LOG },
	OP(cuSurfObjectDestroy), do_tex_destroy, sizeof(struct sv_tex_end), HAND_LOG },
	OP(cuArrayDestroy), do_array_destroy, sizeof(struct sv_cuArrayDestroy), HAND_LOG },
	OP(cuMipmappedArrayDestroy), do_array_destroy, sizeof(struct sv_cuMipmappedArrayDestroy),
		HAND_LOG },

	OP(cuLaunchKernel), do_launch, sizeof(struct sv_launch), HAND_TAIL },
	OP(cuLaunchHostFunc), do_host_func, sizeof(struct sv_host_func), 0 },

	OP(cuGraphConditionalHandleCreate), do_graph_cond, sizeof(struct sv_graph_cond), HAND_LOG },
	OP(cuGraphDestroy), do_graph_forget, sizeof(struct sv_graph_forget), HAND_LOG },
	OP(cuGraphLaunch), do_graph_launch, sizeof(struct sv_graph_launch), 0 },
	OP(cuGraphUpload), do_graph_upload, sizeof(struct sv_graph_launch), 0 },
	OP(cuGraphExecDestroy), do_graph_destroy, sizeof(struct sv_graph_end), HAND_LOG },

	OP(cuMemCreate), do_mem_create, sizeof(struct sv_mem_create), HAND_LOG },
	OP(cuMemRelease), do_mem_release, sizeof(struct sv_mem_release), HAND_LOG },
	OP(cuMemExportToShareableHandle), do_mem_export, sizeof(struct sv_mem_share), HAND_WORKER },
	OP(cuMemImportFromShareableHandle), do_mem_import, sizeof(struct sv_mem_share), HAND_LOG },
	OP(cuIpcGetMemHandle), do_ipc_show, sizeof(struct sv_ipc_show), 0 },
	OP(cuIpcOpenMemHandle_v2), do_ipc_fetch, sizeof(struct sv_ipc_fetch), HAND_WORKER },
	OP(cuIpcCloseMemHandle), do_ipc_close, sizeof(struct sv_map), 0 },
	OP(cuIpcGetEventHandle), do_ipc_event_get, sizeof(struct sv_sync_on), 0 },
	OP(cuIpcOpenEventHandle), do_ipc_event_open, sizeof(struct sv_ipc_event), HAND_WORKER },
	OP(cuMemMap), do_mem_map, sizeof(struct sv_mem_map), HAND_LOG },
	OP(cuMemUnmap), do_mem_unmap, sizeof(struct sv_map), HAND_LOG },
	OP(cuMemSetAccess), do_mem_access, sizeof(struct sv_mem_access), HAND_LOG },
};

static const struct hand others[] = {
	X(MAP), do_map, sizeof(struct sv_map), HAND_LOG },
	X(UNMAP), do_unmap, sizeof(struct sv_map), HAND_LOG },
	X(PIN), do_pin, sizeof(struct sv_pin), HAND_LOG },
	X(UNPIN), do_unpin, sizeof(struct sv_pin), HAND_LOG },
	X(PREPARE), do_prepare, sizeof(struct sv_prepare), HAND_WORKER | HAND_LOG },
	X(NEXT_CALL), do_next_call, 0, 0 },
	X(FUNC_INFO), do_func_info, sizeof(struct sv_func_info_req), HAND_WORKER },
	X(GRAPH), do_graph, sizeof(struct sv_graph_req), HAND_LOG | HAND_WORKER | HAND_TAIL },
	X(GRAPH_UPDATE), do_graph_update, sizeof(struct sv_graph_req), HAND_LOG | HAND_TAIL },
	X(BYPASS), do_bypass, 0, HAND_TAIL },
	X(IPC_MAP), do_ipc_map, sizeof(struct sv_ipc_map), 0 },
	X(IPC_FORGET), do_ipc_forget, sizeof(struct sv_ipc_forget), 0 },
	X(IPC_RECORD), do_ipc_record, sizeof(struct sv_ipc_on), 0 },
	X(IPC_WAIT), do_ipc_wait, sizeof(struct sv_ipc_on), 0 },
	X(IPC_QUERY), do_ipc_query, sizeof(struct sv_sync_on), 0 },
	X(IPC_SYNC), do_ipc_sync, sizeof(struct sv_sync_on), 0 },
	X(IPC_END), do_ipc_event_end, sizeof(struct sv_ipc_end), 0 },
};

const struct hand *hand_find(uint16_t op)
{
	const struct hand *h = NULL;

	if (op < sizeof(functions) / sizeof(*functions))
		h = &functions[op];
	else if (op >= SV_OP_X_MAP && op - SV_OP_X_MAP < (int)(sizeof(others) / sizeof(*others)))
		h = &others[op - SV_OP_X_MAP];
	return h && h->name ? h : NULL;
}

const char *op_name(uint16_t op)
{
	const struct hand *h = hand_find(op);

	if (h)
		return h->name;
	return op < cuda_ops_count && cuda_ops[op].name ? cuda_ops[op].name : "unknown";
}
