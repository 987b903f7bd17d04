// SPDX-License-Identifier: Apache-2.0
/*
 * older.cuh - what the programs here use of the runtime of 13.0, for nvcc and runtime of CUDA 12
 *
 * The build puts it in front of each program where the toolkit is older. It declares; it does not
 * stand in for what a runtime lacks: programs that need more are left out (needs_13 in build.mk).
 */
#pragma once
#include <cuda_runtime.h>

#if CUDART_VERSION < 13000

#if CUDART_VERSION < 12050
/* The runtime asks for the version that it was built for, as it does for its own use. */
static inline cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn,
		unsigned int, unsigned long long flags, cudaDriverEntryPointQueryResult *found)
{
	return cudaGetDriverEntryPoint(symbol, fn, flags, found);
}
#endif

#if CUDART_VERSION < 12080
#define cudaGraphCondTypeSwitch ((cudaGraphConditionalNodeType)2)
#endif

struct __align__(16) double4_16a {
	double x, y, z, w;
};

static inline cudaError_t cudaGraphGetEdges(cudaGraph_t g, cudaGraphNode_t *from,
		cudaGraphNode_t *to, cudaGraphEdgeData *data, size_t *n)
{
	return cudaGraphGetEdges_v2(g, from, to, data, n);
}

static inline cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *deps,
		cudaGraphEdgeData *data, size_t *n)
{
	return cudaGraphNodeGetDependencies_v2(node, deps, data, n);
}

static inline cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node,
		cudaGraphNode_t *deps, cudaGraphEdgeData *data, size_t *n)
{
	return cudaGraphNodeGetDependentNodes_v2(node, deps, data, n);
}

static inline cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t *from,
		const cudaGraphNode_t *to, const cudaGraphEdgeData *data, size_t n)
{
	return cudaGraphAddDependencies_v2(g, from, to, data, n);
}

static inline cudaError_t cudaGraphRemoveDependencies(cudaGraph_t g, const cudaGraphNode_t *from,
		const cudaGraphNode_t *to, const cudaGraphEdgeData *data, size_t n)
{
	return cudaGraphRemoveDependencies_v2(g, from, to, data, n);
}

static inline cudaError_t cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t g,
		const cudaGraphNode_t *deps, const cudaGraphEdgeData *data, size_t n,
		cudaGraphNodeParams *params)
{
	return cudaGraphAddNode_v2(node, g, deps, data, n, params);
}

static inline cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus *status,
		unsigned long long *id, cudaGraph_t *g, const cudaGraphNode_t **deps,
		const cudaGraphEdgeData **data, size_t *n)
{
	return cudaStreamGetCaptureInfo_v3(s, status, id, g, deps, data, n);
}

static inline cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t s,
		cudaGraphNode_t *deps, const cudaGraphEdgeData *data, size_t n, unsigned int flags)
{
	return cudaStreamUpdateCaptureDependencies_v2(s, deps, data, n, flags);
}

template<class... A> static inline cudaError_t cudaLaunchKernel(void (*f)(A...), dim3 grid,
		dim3 block, void **args, size_t shared, cudaStream_t s)
{
	return cudaLaunchKernel((const void *)f, grid, block, args, shared, s);
}

template<class... A> static inline cudaError_t cudaLaunchCooperativeKernel(void (*f)(A...),
		dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s)
{
	return cudaLaunchCooperativeKernel((const void *)f, grid, block, args, shared, s);
}

#endif
