// SPDX-License-Identifier: Apache-2.0
/*
 * driver_params.cu - kernel parameters: buffers of right and wrong sizes in `extra`, and up to 32764
 * bytes of them in launches, captures and graph nodes
 *
 * What a driver says of a wrong size is its own matter: it becomes part of the checksum, and the
 * kernel must not have run.
 */
#include "driver.cuh"

struct large {			/* 20000 bytes */
	unsigned int v[5000];
};

struct largest {
	unsigned int v[8188];
};

__global__ void add(int *p, short n)	/* 10 bytes, and no padding behind them */
{
	*p += n;
}

__global__ void nothing()
{
}

template <typename T> static __device__ void weigh(const T &t, unsigned int *out, unsigned int times)
{
	unsigned int sum = 0;

	for (unsigned int i = threadIdx.x; i < sizeof(t) / 4; i += blockDim.x)
		sum += t.v[i] * (i + 1);
	atomicAdd(out, sum * times);
}

__global__ void weigh_large(struct large t, unsigned int *out, unsigned int times)
{
	weigh(t, out, times);
}

__global__ void weigh_largest(struct largest t, unsigned int *out, unsigned int times)
{
	weigh(t, out, times);
}

template <typename T> static unsigned int fill(T &t, unsigned int seed)
{
	unsigned int sum = 0;

	for (unsigned int i = 0; i < sizeof(t) / 4; i++)
		sum += (t.v[i] = rnd(&seed)) * (i + 1);
	return sum;
}

static CUfunction function(const void *kernel)
{
	cudaFunction_t f;

	CHECK(cudaGetFuncBySymbol(&f, kernel));
	return (CUfunction)f;
}

static CUstream stream;
static unsigned int *word;		/* of the device */

static unsigned int result(void)
{
	unsigned int v;

	CU(cuStreamSynchronize(stream));
	CU(cuMemcpyDtoH(&v, (CUdeviceptr)word, sizeof(v)));
	CU(cuMemsetD32((CUdeviceptr)word, 0, 1));
	return v;
}

/* The kernel has run if the driver says so, and only then. */
static void answered(const char *what, CUresult r, unsigned int if_run)
{
	printf("%s: %s\n", what, cu_name(r));
	EXPECT_EQ(result(), r ? 0 : if_run);
	sum_bytes(&r, sizeof(r));
}

/* ------------------------------------------------------------------------ sizes of buffers */

struct buffer {
	void *p;
	int n;
	char more[1 << 20];
};

static struct buffer buf;

static CUresult with_extra(CUfunction f, void **extra)
{
	return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, extra);
}

static CUresult with_size(CUfunction f, size_t size)
{
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_BUFFER_POINTER, &buf,
			  CU_LAUNCH_PARAM_END };

	return with_extra(f, extra);
}

static void sizes(CUfunction f)
{
	static const size_t wrong[] = { 0, 8, 9, 11, 12, 16, 4096, 32764, 1 << 20 };
	char what[64];

	buf = { word, 7 };
	for (size_t size : wrong) {
		snprintf(what, sizeof(what), "%zu bytes for 10", size);
		answered(what, with_size(f, size), 7);
		CU(with_size(f, 10));
		EXPECT_EQ(result(), 7);
	}
}

static void lists(CUfunction f, CUfunction none)
{
	size_t ten = 10, zero = 0;
	void *no_size[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &buf, CU_LAUNCH_PARAM_END };
	void *no_buffer[] = { CU_LAUNCH_PARAM_BUFFER_SIZE, &ten, CU_LAUNCH_PARAM_END };
	void *null[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, NULL, CU_LAUNCH_PARAM_BUFFER_SIZE, &ten,
			 CU_LAUNCH_PARAM_END };
	void *empty[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, NULL, CU_LAUNCH_PARAM_BUFFER_SIZE, &zero,
			  CU_LAUNCH_PARAM_END };
	void *end[] = { CU_LAUNCH_PARAM_END };
	short seven = 7;
	void *params[] = { &word, &seven };

	answered("a buffer without a size", with_extra(f, no_size), 7);
	answered("a size without a buffer", with_extra(f, no_buffer), 7);
	answered("no buffer at NULL", with_extra(f, null), 7);
	answered("an empty list", with_extra(f, end), 7);
	CU_INVALID(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, params, end));
	CU(with_extra(none, end));
	CU(with_extra(none, empty));
	CU(with_extra(none, no_size));
	answered("4 bytes for none", with_size(none, 4), 0);
	answered("none without a buffer", with_extra(none, no_buffer), 0);
}

static CUDA_KERNEL_NODE_PARAMS node_of(CUfunction f, void **params, void **extra)
{
	CUDA_KERNEL_NODE_PARAMS p = {};

	p.func = f;
	p.gridDimX = p.gridDimY = p.gridDimZ = 1;
	p.blockDimX = 64;
	p.blockDimY = p.blockDimZ = 1;
	p.kernelParams = params;
	p.extra = extra;
	return p;
}

/* In graphs, too, a size that is wrong does not become one that is right. */
static void sizes_in_graphs(CUfunction f)
{
	size_t size = 16;
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &buf, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
			  CU_LAUNCH_PARAM_END };
	CUDA_KERNEL_NODE_PARAMS p = node_of(f, NULL, extra);
	CUgraphNode node;
	CUgraph g;

	CU(cuGraphCreate(&g, 0));
	answered("a node with 16 bytes for 10", cuGraphAddKernelNode(&node, g, NULL, 0, &p), 0);
	size = 9;
	answered("a node with 9 bytes for 10", cuGraphAddKernelNode(&node, g, NULL, 0, &p), 0);
	size = 10;
	CU(cuGraphAddKernelNode(&node, g, NULL, 0, &p));
	CU(cuGraphDestroy(g));
	CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CU(with_size(f, 10));
	CU(cuStreamEndCapture(stream, &g));
	CU(cuGraphDestroy(g));
}

/* ---------------------------------------------------------------------- large parameters */

template <typename T> static void launches(CUfunction f, size_t bytes)
{
	static struct {
		T t;
		unsigned int *out;
		unsigned int times;
	} b;
	void *params[] = { &b.t, &b.out, &b.times };
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &b, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
			  CU_LAUNCH_PARAM_END };
	unsigned int sum = fill(b.t, bytes);

	b.out = word;
	b.times = 1;
	CU(cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, stream, params, NULL));
	EXPECT_EQ(result(), sum);
	CU(cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, stream, NULL, extra));
	EXPECT_EQ(result(), sum);
	/* Each launch has its own copy. */
	for (int i = 0; i < 100; i++) {
		b.times = i;
		CU(cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, stream, params, NULL));
	}
	EXPECT_EQ(result(), sum * 4950);
	bytes--;
	answered("a byte less", cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, stream, NULL, extra), sum * 99);
	sum_bytes(&sum, sizeof(sum));
}

template <typename T> static void graphs(CUfunction f)
{
	static T t, other;
	unsigned int sum = fill(t, 1), sum2 = fill(other, 2), once = 1, twice = 2;
	void *params[] = { &t, &word, &once }, *changed[] = { &other, &word, &twice };
	CUDA_KERNEL_NODE_PARAMS p = node_of(f, params, NULL), got;
	CUgraphExecUpdateResultInfo info;
	CUgraphNode first, second;
	CUgraph g, captured;
	CUgraphExec x;

	CU(cuGraphCreate(&g, 0));
	CU(cuGraphAddKernelNode(&first, g, NULL, 0, &p));
	CU(cuGraphAddKernelNode(&second, g, &first, 1, &p));
	CU(cuGraphKernelNodeGetParams(first, &got));
	EXPECT(!memcmp(got.kernelParams[0], &t, sizeof(t)));
	memset(&t, 0, sizeof(t));	/* it is copied */
	CU(cuGraphInstantiate(&x, g, 0));
	CU(cuGraphLaunch(x, stream));
	EXPECT_EQ(result(), sum * 2);
	p.kernelParams = changed;
	CU(cuGraphExecKernelNodeSetParams(x, second, &p));
	CU(cuGraphLaunch(x, stream));
	EXPECT_EQ(result(), sum + sum2 * 2);
	CU(cuGraphKernelNodeSetParams(first, &p));
	CU(cuGraphExecUpdate(x, g, &info));
	CU(cuGraphLaunch(x, stream));
	EXPECT_EQ(result(), sum + sum2 * 2);

	CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CU(cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, stream, changed, NULL));
	twice = 3;
	CU(cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, stream, changed, NULL));
	CU(cuStreamEndCapture(stream, &captured));
	CU(cuGraphExecUpdate(x, captured, &info));
	CU(cuGraphLaunch(x, stream));
	EXPECT_EQ(result(), sum2 * 5);
	CU(cuGraphExecDestroy(x));
	CU(cuGraphInstantiate(&x, captured, 0));
	CU(cuGraphDestroy(captured));
	CU(cuGraphLaunch(x, stream));
	CU(cuGraphLaunch(x, stream));
	EXPECT_EQ(result(), sum2 * 10);
	CU(cuGraphExecDestroy(x));
	CU(cuGraphDestroy(g));
}

int main(void)
{
	CHECK(cudaMalloc(&word, sizeof(*word)));
	CHECK(cudaMemset(word, 0, sizeof(*word)));
	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	sizes(function((const void *)add));
	lists(function((const void *)add), function((const void *)nothing));
	sizes_in_graphs(function((const void *)add));
	launches<struct large>(function((const void *)weigh_large), 20000 + 12);
	launches<struct largest>(function((const void *)weigh_largest), 32764);
	graphs<struct large>(function((const void *)weigh_large));
	graphs<struct largest>(function((const void *)weigh_largest));
	return job_passed("driver_params");
}
