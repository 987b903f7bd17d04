/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.cuh - what the jobs share that call the driver API: checks of its results, a gate for streams
 *
 * Such a job is linked with libcuda, as most of its users are; names come without a version, so that
 * cuda.h chooses it.
 */
#ifndef DRIVER_CUH
#define DRIVER_CUH

#include "../job.cuh"

#include <cuda.h>
#include <unistd.h>

static inline const char *cu_name(CUresult r)
{
	const char *name = NULL;

	return cuGetErrorName(r, &name) || !name ? "an unknown error" : name;
}

#define CU_ERROR(_want, ...) do {					\
	CUresult _e = (__VA_ARGS__);					\
	if (_e != (_want)) {						\
		printf("FAIL %s:%d: %s: %s, not %s\n", __FILE__, __LINE__, #__VA_ARGS__, \
		       cu_name(_e), cu_name(_want));			\
		exit(1);						\
	}								\
} while (0)
#define CU(...) CU_ERROR(CUDA_SUCCESS, __VA_ARGS__)
#define CU_INVALID(...) CU_ERROR(CUDA_ERROR_INVALID_VALUE, __VA_ARGS__)

/* A value that a call has to change, or has to leave alone. */
#define POISON(_x) memset(&(_x), 0x5a, sizeof(_x))

/* Streams that are closed do nothing more until the program opens the gate. */
struct gate {
	unsigned int *word, turn;

	gate() : turn(0)
	{
		CU(cuMemHostAlloc((void **)&word, 4096, CU_MEMHOSTALLOC_PORTABLE));
		*word = 0;
	}
	~gate()
	{
		cuMemFreeHost(word);
	}
	void close(CUstream s)
	{
		CU(cuStreamWaitValue32(s, (CUdeviceptr)word, turn + 1, CU_STREAM_WAIT_VALUE_GEQ));
	}
	void open()
	{
		__atomic_store_n(word, ++turn, __ATOMIC_RELEASE);
	}
};

/* Device memory as the driver's calls take it. */
static inline CUdeviceptr room(size_t len, int fill = 0)
{
	CUdeviceptr d;

	CU(cuMemAlloc(&d, len));
	CU(cuMemsetD8(d, fill, len));
	return d;
}

template <typename T> static std::vector<T> fetch(CUdeviceptr d, size_t n)
{
	std::vector<T> v(n);

	CU(cuMemcpyDtoH(v.data(), d, n * sizeof(T)));
	return v;
}

static inline CUfunction function_of(const void *kernel)
{
	cudaFunction_t f;

	CHECK(cudaGetFuncBySymbol(&f, kernel));
	return (CUfunction)f;
}

/* ---------------------------------------------------------------------------------- graphs */

static inline CUgraph graph(void)
{
	CUgraph g;

	CU(cuGraphCreate(&g, 0));
	return g;
}

static inline CUgraphExec exec(CUgraph g, unsigned int flags = 0)
{
	CUgraphExec x;

	CU(cuGraphInstantiateWithFlags(&x, g, flags));
	return x;
}

/* A launch, and its end. */
static inline void run(CUgraphExec x, CUstream s)
{
	CU(cuGraphLaunch(x, s));
	CU(cuStreamSynchronize(s));
}

static inline CUgraphNodeType type_of(CUgraphNode n)
{
	CUgraphNodeType t;

	CU(cuGraphNodeGetType(n, &t));
	return t;
}

static inline void end(CUgraphExec x, CUgraph g)
{
	CU(cuGraphExecDestroy(x));
	CU(cuGraphDestroy(g));
}

#endif
