// SPDX-License-Identifier: Apache-2.0
/*
 * queue.cu - very many launches, streams, events, graphs, small copies and kernels of modules.
 */
#include "../job.cuh"

__global__ void empty(void)
{
}

__global__ void next(unsigned int *p)
{
	*p = *p * 1664525u + 1013904223u;
}

__global__ void add(int *p, int v)
{
	*p += v;
}

template <int K> __global__ void numbered(int *p)
{
	p[K] = K * K + threadIdx.x;
}

template <int K> struct upto {
	static void launch(int *p)
	{
		numbered<K><<<1, 1>>>(p);
		upto<K - 1>::launch(p);
	}
};
template <> struct upto<-1> {
	static void launch(int *) {}
};

static void launches(void)
{
	unsigned int *d, want = 0;

	CHECK(cudaMalloc(&d, 4));
	CHECK(cudaMemset(d, 0, 4));
	for (int i = 0; i < 10000; i++)
		empty<<<1, 1>>>();
	for (int i = 0; i < 5000; i++) {
		next<<<1, 1>>>(d);
		want = want * 1664525u + 1013904223u;
	}
	CHECK(cudaGetLastError());
	EXPECT_EQ(to_host(d, 1)[0], want);
	sum_bytes(&want, 4);
	CHECK(cudaFree(d));
}

static void streams_and_events(void)
{
	const int n = 300;
	std::vector<cudaStream_t> s(n);
	std::vector<cudaEvent_t> e(10 * n);
	int *d;

	CHECK(cudaMalloc(&d, 4));
	CHECK(cudaMemset(d, 0, 4));
	CHECK(cudaDeviceSynchronize());
	for (cudaStream_t &x : s)
		CHECK(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
	for (cudaEvent_t &x : e)
		CHECK(cudaEventCreateWithFlags(&x, cudaEventDisableTiming));
	/* one chain through all streams, ten times round */
	for (int i = 0; i < 10 * n; i++) {
		if (i)
			CHECK(cudaStreamWaitEvent(s[i % n], e[i - 1], 0));
		add<<<1, 1, 0, s[i % n]>>>(d, i);
		CHECK(cudaEventRecord(e[i], s[i % n]));
	}
	CHECK(cudaEventSynchronize(e[10 * n - 1]));
	EXPECT_EQ(to_host(d, 1)[0], 10 * n * (10 * n - 1) / 2);
	for (cudaEvent_t &x : e)
		CHECK(cudaEventQuery(x));
	for (cudaStream_t &x : s)
		CHECK(cudaStreamDestroy(x));
	for (cudaEvent_t &x : e)
		CHECK(cudaEventDestroy(x));
	/* handles come and go */
	for (int i = 0; i < 3000; i++) {
		cudaStream_t q;
		cudaEvent_t v;

		CHECK(cudaEventCreate(&v));
		if (i % 10 == 0) {
			CHECK(cudaStreamCreate(&q));
			add<<<1, 1, 0, q>>>(d, 1);
			CHECK(cudaEventRecord(v, q));
			CHECK(cudaStreamDestroy(q));
		}
		CHECK(cudaEventDestroy(v));
	}
	CHECK(cudaDeviceSynchronize());
	EXPECT(to_host(d, 1)[0] > 10 * n * (10 * n - 1) / 2);
	CHECK(cudaFree(d));
}

static void small_copies(void)
{
	const int n = 3000;
	int *d, *h;
	cudaStream_t s;

	CHECK(cudaMalloc(&d, n * 4));
	CHECK(cudaMallocHost(&h, n * 8));
	CHECK(cudaStreamCreate(&s));
	for (int i = 0; i < n; i++)
		h[i] = i * 3;
	for (int i = 0; i < n; i++) {
		CHECK(cudaMemcpyAsync(d + i, h + i, 4, cudaMemcpyHostToDevice, s));
		add<<<1, 1, 0, s>>>(d + i, 1);
		CHECK(cudaMemcpyAsync(h + n + i, d + i, 4, cudaMemcpyDeviceToHost, s));
	}
	CHECK(cudaStreamSynchronize(s));
	for (int i = 0; i < n; i++)
		EXPECT_EQ(h[n + i], i * 3 + 1);
	/* and with memory of the program, each waited for */
	for (int i = 0; i < 500; i++) {
		int v = i, w;

		CHECK(cudaMemcpy(d, &v, 4, cudaMemcpyHostToDevice));
		CHECK(cudaMemcpy(&w, d, 4, cudaMemcpyDeviceToHost));
		EXPECT_EQ(w, i);
	}
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaFreeHost(h));
	CHECK(cudaFree(d));
}

static void graphs(void)
{
	const int n = 100, nodes = 50;
	std::vector<cudaGraphExec_t> x(n);
	cudaStream_t s;
	int *d;

	CHECK(cudaMalloc(&d, 4));
	CHECK(cudaMemset(d, 0, 4));
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < n; i++) {
		cudaGraph_t g;

		CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
		for (int k = 0; k < nodes; k++)
			add<<<1, 1, 0, s>>>(d, i);
		CHECK(cudaStreamEndCapture(s, &g));
		CHECK(cudaGraphInstantiate(&x[i], g, 0));
		CHECK(cudaGraphDestroy(g));
	}
	for (int round = 0; round < 3; round++)
		for (cudaGraphExec_t e : x)
			CHECK(cudaGraphLaunch(e, s));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(to_host(d, 1)[0], 3 * nodes * n * (n - 1) / 2);
	for (cudaGraphExec_t e : x)
		CHECK(cudaGraphExecDestroy(e));
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaFree(d));
}

static void kernels(void)
{
	int *d;

	CHECK(cudaMalloc(&d, 150 * 4));
	upto<149>::launch(d);
	CHECK(cudaGetLastError());
	std::vector<int> got = to_host(d, 150);
	for (int i = 0; i < 150; i++)
		EXPECT_EQ(got[i], i * i);
	sum_vector(got);
	CHECK(cudaFree(d));
}

int main()
{
	launches();
	streams_and_events();
	small_copies();
	graphs();
	kernels();
	return job_passed("queue");
}
