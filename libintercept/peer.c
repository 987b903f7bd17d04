// SPDX-License-Identifier: Apache-2.0
/*
 * peer.c - access to other devices' memory, which is refused: a device reaches its own and the host's
 */
#include "context.h"
#include "object.h"

#include <string.h>

static CUresult two_devices(CUdevice a, CUdevice b)
{
	TRY(session_check());
	return session_device(a) && session_device(b) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceCanAccessPeer(int *out, CUdevice dev, CUdevice peer)
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(two_devices(dev, peer));
	*out = 0;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetP2PAttribute(int *out, CUdevice_P2PAttribute attr, CUdevice from,
				     CUdevice to)
{
	if (!out || attr < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
	    attr > CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(two_devices(from, to));
	if (from == to)
		return CUDA_ERROR_INVALID_DEVICE;
	*out = 0;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int *out, const CUatomicOperation *ops,
					      unsigned int n, CUdevice from, CUdevice to)
{
	if (!out || !ops || !n)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(two_devices(from, to));
	if (from == to)
		return CUDA_ERROR_INVALID_DEVICE;
	for (unsigned int i = 0; i < n; i++)
		if ((unsigned int)ops[i] >= CU_ATOMIC_OPERATION_MAX)
			return CUDA_ERROR_INVALID_VALUE;
	memset(out, 0, n * sizeof(*out));
	return CUDA_SUCCESS;
}

/* Contexts on one device share its memory anyway. */
static CUresult peer(CUcontext handle)
{
	struct context *ctx, *other;

	TRY(context_current(&ctx));
	other = obj_find(SV_T_CUcontext, sv_u64(handle));
	return other && other->live && other != ctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags)
{
	TRY(peer(handle));
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

API CUresult cuCtxDisablePeerAccess(CUcontext handle)
{
	struct context *ctx, *other;

	TRY(context_current(&ctx));
	other = obj_find(SV_T_CUcontext, sv_u64(handle));
	if (!other || !other->live)
		return CUDA_ERROR_INVALID_CONTEXT;
	return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
