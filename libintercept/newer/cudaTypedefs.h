/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cudaTypedefs.h - types of versioned functions that a toolkit older than 13.0 lacks
 *
 * The names of these types are the table of cuGetProcAddress; see cuda.h beside this file.
 */
#include_next <cudaTypedefs.h>

#if defined(CUDA_H_IS_OLDER) && !defined(CUDA_TYPEDEFS_ADDED)
#define CUDA_TYPEDEFS_ADDED

#define SINCE(name, version, function) typedef __typeof__(function) (*PFN_##name##_v##version);
#define SINCE_FORMS(name, version, function) \
	typedef __typeof__(function) (*PFN_##name##_v##version); \
	typedef __typeof__(function) (*PFN_##name##_v##version##_ptsz);

SINCE(cuLibraryEnumerateKernels, 12040, cuLibraryEnumerateKernels)
SINCE(cuLibraryGetKernelCount, 12040, cuLibraryGetKernelCount)
SINCE(cuModuleEnumerateFunctions, 12040, cuModuleEnumerateFunctions)
SINCE(cuModuleGetFunctionCount, 12040, cuModuleGetFunctionCount)
SINCE(cuCtxCreate, 12050, cuCtxCreate_v4)
SINCE(cuCtxRecordEvent, 12050, cuCtxRecordEvent)
SINCE(cuCtxWaitEvent, 12050, cuCtxWaitEvent)
SINCE(cuGreenCtxStreamCreate, 12050, cuGreenCtxStreamCreate)
SINCE(cuKernelGetLibrary, 12050, cuKernelGetLibrary)
SINCE_FORMS(cuStreamGetCtx, 12050, cuStreamGetCtx_v2)
SINCE_FORMS(cuMemBatchDecompressAsync, 12060, cuMemBatchDecompressAsync)
SINCE(cuCheckpointProcessCheckpoint, 12080, cuCheckpointProcessCheckpoint)
SINCE(cuCheckpointProcessGetRestoreThreadId, 12080, cuCheckpointProcessGetRestoreThreadId)
SINCE(cuCheckpointProcessGetState, 12080, cuCheckpointProcessGetState)
SINCE(cuCheckpointProcessLock, 12080, cuCheckpointProcessLock)
SINCE(cuCheckpointProcessRestore, 12080, cuCheckpointProcessRestore)
SINCE(cuCheckpointProcessUnlock, 12080, cuCheckpointProcessUnlock)
SINCE(cuEventElapsedTime, 12080, cuEventElapsedTime_v2)
SINCE_FORMS(cuMemcpy3DBatchAsync, 12080, cuMemcpy3DBatchAsync_ptsz)
SINCE_FORMS(cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync_ptsz)
SINCE_FORMS(cuStreamGetDevice, 12080, cuStreamGetDevice)
SINCE(cuTensorMapEncodeIm2colWide, 12080, cuTensorMapEncodeIm2colWide)
SINCE(cuGreenCtxGetId, 12090, cuGreenCtxGetId)
SINCE(cuLogsCurrent, 12090, cuLogsCurrent)
SINCE(cuLogsDumpToFile, 12090, cuLogsDumpToFile)
SINCE(cuLogsDumpToMemory, 12090, cuLogsDumpToMemory)
SINCE(cuLogsRegisterCallback, 12090, cuLogsRegisterCallback)
SINCE(cuLogsUnregisterCallback, 12090, cuLogsUnregisterCallback)
SINCE(cuCtxGetDevice, 13000, cuCtxGetDevice_v2)
SINCE(cuCtxSynchronize, 13000, cuCtxSynchronize_v2)
SINCE(cuDeviceGetHostAtomicCapabilities, 13000, cuDeviceGetHostAtomicCapabilities)
SINCE(cuDeviceGetP2PAtomicCapabilities, 13000, cuDeviceGetP2PAtomicCapabilities)
SINCE_FORMS(cuMemDiscardAndPrefetchBatchAsync, 13000, cuMemDiscardAndPrefetchBatchAsync)
SINCE_FORMS(cuMemDiscardBatchAsync, 13000, cuMemDiscardBatchAsync)
SINCE(cuMemGetDefaultMemPool, 13000, cuMemGetDefaultMemPool)
SINCE(cuMemGetMemPool, 13000, cuMemGetMemPool)
SINCE_FORMS(cuMemPrefetchBatchAsync, 13000, cuMemPrefetchBatchAsync)
SINCE(cuMemSetMemPool, 13000, cuMemSetMemPool)
SINCE_FORMS(cuMemcpy3DBatchAsync, 13000, cuMemcpy3DBatchAsync_v2)
SINCE_FORMS(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2)

#undef SINCE_FORMS
#undef SINCE
#endif
