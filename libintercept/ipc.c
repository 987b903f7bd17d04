// SPDX-License-Identifier: Apache-2.0
/*
 * ipc.c - memory and events of another process: refused, since each has a proxy of its own
 *
 * A handle would have to outlive its proxy, which may be taken down and rebuilt at any time. The
 * arguments are checked first, so that a mistake is told as such.
 */
#include "memory_i.h"

#define WHY "each process has its own proxy, and a restored one could not open another's memory"

API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr addr)
{
	struct context *ctx;
	struct memory m;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	if (!memory_find(addr, &m) || m.kind != MEMORY_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	return sv_unsupported("cuIpcGetMemHandle", WHY);
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
	struct context *ctx;

	(void)handle;
	if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	return sv_unsupported("cuIpcOpenMemHandle", WHY);
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
	return cuIpcOpenMemHandle_v2(out, handle, flags);
}

/* Nothing has been opened. */
API CUresult cuIpcCloseMemHandle(CUdeviceptr addr)
{
	struct context *ctx;

	(void)addr;
	TRY(context_current(&ctx));
	return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event)
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (!obj_find(SV_T_CUevent, sv_u64(event)))
		return CUDA_ERROR_INVALID_HANDLE;
	return sv_unsupported("cuIpcGetEventHandle", WHY);
}

API CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
	struct context *ctx;

	(void)handle;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	return sv_unsupported("cuIpcOpenEventHandle", WHY);
}
