// SPDX-License-Identifier: Apache-2.0
/*
 * polls.cu - queries and waits that are answered from memory: never too early, and again when it is true.
 */
#include "../job.cuh"

#include <atomic>
#include <thread>
#include <unistd.h>

#define POLLS 2000

__global__ void set(int *p, int v)
{
	*p = v;
}

__global__ void until(volatile int *p)
{
	while (!*p)
		;
}

__global__ void say(void)
{
	printf("said\n");
}

__global__ void dies(void)
{
	__trap();
}

static int *mapped;

/* A host function that keeps its stream busy until it is let go. */
struct gate {
	std::atomic<int> open{0};
	static void CUDART_CB wait(void *arg)
	{
		while (!((gate *)arg)->open)
			usleep(100);
	}
	void block(cudaStream_t s)
	{
		CHECK(cudaLaunchHostFunc(s, wait, this));
	}
};

static void busy(cudaStream_t s, cudaEvent_t e)
{
	for (int i = 0; i < POLLS; i++) {
		EXPECT_ERROR(cudaErrorNotReady, cudaStreamQuery(s));
		EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(e));
	}
	for (int i = 0; i < POLLS; i++)
		EXPECT_ERROR(cudaErrorNotReady, cudaStreamQuery(s));
	cudaGetLastError();
}

static void done(cudaStream_t s, cudaEvent_t e)
{
	cudaError_t r;

	while ((r = cudaEventQuery(e)) == cudaErrorNotReady)
		;
	CHECK(r);
	while ((r = cudaStreamQuery(s)) == cudaErrorNotReady)
		;
	CHECK(r);
	for (int i = 0; i < POLLS; i++) {
		CHECK(cudaStreamQuery(s));
		CHECK(cudaEventQuery(e));
	}
	cudaGetLastError();
}

/* Busy, done, and busy again with the same event: what was known is known no more. */
static void again(cudaStream_t s, cudaEvent_t e)
{
	for (int i = 0; i < 20; i++) {
		gate g;

		g.block(s);
		set<<<1, 1, 0, s>>>(mapped, i);
		CHECK(cudaEventRecord(e, s));
		if (i % 2)
			usleep(1000);
		busy(s, e);
		g.open = 1;
		done(s, e);
		EXPECT_EQ(*(volatile int *)mapped, i);
	}
}

/* A wait that had nothing to wait for says nothing of what comes then. */
static void waits(cudaStream_t s)
{
	for (int i = 0; i < 3000; i++) {
		if (i % 3 == 0)
			CHECK(cudaStreamSynchronize(s));
		if (i % 3 == 1)
			CHECK(cudaDeviceSynchronize());
		set<<<1, 1, 0, s>>>(mapped, i);
		CHECK(i % 2 ? cudaStreamSynchronize(s) : cudaDeviceSynchronize());
		EXPECT_EQ(*(volatile int *)mapped, i);
		for (int n = 0; n < 3; n++) {
			CHECK(cudaStreamSynchronize(s));
			CHECK(cudaDeviceSynchronize());
			CHECK(cudaStreamQuery(s));
		}
	}
}

/* What another stream has is not this one's, but the legacy stream's. */
static void others(cudaStream_t s, cudaStream_t other)
{
	cudaStream_t blocking;
	gate g, h;

	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < 10; i++)
		CHECK(cudaStreamQuery(s));
	g.block(other);
	for (int i = 0; i < 10; i++) {
		CHECK(cudaStreamQuery(s));
		EXPECT_ERROR(cudaErrorNotReady, cudaStreamQuery(other));
	}
	for (int i = 0; i < 10; i++)
		EXPECT_ERROR(cudaErrorNotReady, cudaStreamQuery(other));
	cudaGetLastError();
	g.open = 1;
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaStreamQuery(0));
	CHECK(cudaStreamCreate(&blocking));
	h.block(blocking);
	for (int i = 0; i < 10; i++)
		job_sum += cudaStreamQuery(0) == cudaErrorNotReady;
	set<<<1, 1>>>(mapped, 7);
	for (int i = 0; i < 10; i++)
		EXPECT_ERROR(cudaErrorNotReady, cudaStreamQuery(0));
	cudaGetLastError();
	h.open = 1;
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaStreamQuery(0));
	EXPECT_EQ(*(volatile int *)mapped, 7);
	CHECK(cudaStreamDestroy(blocking));
}

/* Another thread records what this one knows to be complete, and polls what this one has recorded. */
static void threads(cudaStream_t s, cudaEvent_t e)
{
	for (int i = 0; i < 50; i++) {
		gate g, h;

		CHECK(cudaEventRecord(e, s));
		CHECK(cudaEventSynchronize(e));
		done(s, e);
		g.block(s);
		std::thread([&] { CHECK(cudaEventRecord(e, s)); }).join();
		for (int n = 0; n < 5; n++)
			EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(e));
		cudaGetLastError();
		g.open = 1;
		CHECK(cudaStreamSynchronize(s));
		CHECK(cudaEventQuery(e));
		h.block(s);
		CHECK(cudaEventRecord(e, s));
		std::thread([&] {
			busy(s, e);
			h.open = 1;
			done(s, e);
		}).join();
		CHECK(cudaEventQuery(e));
	}
}

/* Two threads, one of which records while the other one asks: in the end the last record counts. */
static void races(cudaStream_t s, cudaEvent_t e)
{
	for (int i = 0; i < 200; i++) {
		std::atomic<int> stop{0};
		gate g;
		std::thread asks([&] {
			while (!stop) {
				cudaEventQuery(e);
				cudaStreamQuery(s);
			}
			/* What it has heard meanwhile was of a record before the last one. */
			for (int n = 0; n < 3; n++)
				EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(e));
			cudaGetLastError();
		});

		for (int n = 0; n < i % 7; n++)
			CHECK(cudaEventRecord(e, s));
		if (i % 2)
			CHECK(cudaStreamSynchronize(s));
		g.block(s);
		CHECK(cudaEventRecord(e, s));
		for (int n = 0; n < 3; n++) {
			EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(e));
			EXPECT_ERROR(cudaErrorNotReady, cudaStreamQuery(s));
		}
		cudaGetLastError();
		stop = 1;
		asks.join();
		EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(e));
		cudaGetLastError();
		g.open = 1;
		CHECK(cudaStreamSynchronize(s));
		CHECK(cudaEventQuery(e));
	}
}

static void CUDART_CB tell(void *arg)
{
	((std::atomic<int> *)arg)->store(1);
}

/* Who hears of a host function knows that what was before it is complete. */
static void called(cudaStream_t s, cudaEvent_t e)
{
	for (int i = 0; i < 500; i++) {
		std::atomic<int> told{0};

		*(volatile int *)mapped = 0;
		until<<<1, 1, 0, s>>>(mapped);
		CHECK(cudaEventRecord(e, s));
		CHECK(cudaLaunchHostFunc(s, tell, &told));
		for (int n = 0; n < 5; n++)
			EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(e));
		cudaGetLastError();
		*(volatile int *)mapped = 1;
		while (!told)
			;
		CHECK(cudaEventQuery(e));
		CHECK(cudaStreamSynchronize(s));
	}
}

/* A graph records it, without a call that names it. */
static void graphs(cudaStream_t s, cudaEvent_t e)
{
	cudaGraphNode_t host, record;
	cudaHostNodeParams p = {};
	cudaGraphExec_t exec;
	cudaGraph_t graph;
	gate g;

	p.fn = gate::wait;
	p.userData = &g;
	CHECK(cudaGraphCreate(&graph, 0));
	CHECK(cudaGraphAddHostNode(&host, graph, NULL, 0, &p));
	CHECK(cudaGraphAddEventRecordNode(&record, graph, &host, 1, e));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	CHECK(cudaEventRecord(e, s));
	CHECK(cudaStreamSynchronize(s));
	done(s, e);
	CHECK(cudaGraphLaunch(exec, s));
	for (int i = 0; i < 10; i++)
		job_sum += cudaEventQuery(e) == cudaErrorNotReady;
	cudaGetLastError();
	g.open = 1;
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaEventQuery(e));
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaGraphDestroy(graph));
}

/* More than are watched at a time. */
static void many(cudaStream_t s)
{
	std::vector<cudaEvent_t> e(700);
	gate g;

	g.block(s);
	for (auto &one : e) {
		CHECK(cudaEventCreate(&one));
		CHECK(cudaEventRecord(one, s));
	}
	for (int i = 0; i < 4; i++)
		for (auto one : e)
			EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(one));
	cudaGetLastError();
	g.open = 1;
	CHECK(cudaStreamSynchronize(s));
	for (int i = 0; i < 2; i++)
		for (auto one : e)
			CHECK(cudaEventQuery(one));
	for (size_t i = 0; i < e.size(); i += 2)
		CHECK(cudaEventDestroy(e[i]));
	/* Another gate: the same words. */
	gate h;
	h.block(s);
	for (size_t i = 1; i < e.size(); i += 2)
		CHECK(cudaEventRecord(e[i], s));
	for (int n = 0; n < 4; n++)
		for (size_t i = 1; i < e.size(); i += 2)
			EXPECT_ERROR(cudaErrorNotReady, cudaEventQuery(e[i]));
	cudaGetLastError();
	h.open = 1;
	for (size_t i = 1; i < e.size(); i += 2) {
		done(s, e[i]);
		CHECK(cudaEventDestroy(e[i]));
	}
}

/* A query does not print what a kernel has said; the wait behind it does. */
static void prints(cudaStream_t s)
{
	char name[] = "/tmp/polls-XXXXXX", text[64] = "";
	int file = mkstemp(name), out = dup(1);

	EXPECT(file >= 0 && out >= 0);
	unlink(name);
	fflush(stdout);
	dup2(file, 1);
	say<<<1, 1, 0, s>>>();
	while (cudaStreamQuery(s) == cudaErrorNotReady)
		;
	cudaGetLastError();
	CHECK(cudaStreamSynchronize(s));
	fflush(stdout);
	dup2(out, 1);
	EXPECT_EQ(pread(file, text, sizeof(text), 0), 5);
	EXPECT(!strcmp(text, "said\n"));
	close(file);
	close(out);
}

/* Behind a kernel that has failed nothing is ever complete. */
static void fails(cudaStream_t s, cudaEvent_t e)
{
	gate g;
	cudaError_t r;

	g.block(s);
	dies<<<1, 1, 0, s>>>();
	CHECK(cudaEventRecord(e, s));
	busy(s, e);
	g.open = 1;
	while ((r = cudaEventQuery(e)) == cudaErrorNotReady)
		;
	EXPECT(r != cudaSuccess);
	EXPECT(cudaStreamQuery(s) != cudaSuccess);
	EXPECT(cudaStreamSynchronize(s) != cudaSuccess);
	EXPECT(cudaDeviceSynchronize() != cudaSuccess);
	EXPECT(cudaEventQuery(e) != cudaSuccess);
}

int main(void)
{
	cudaStream_t s, other;
	cudaEvent_t e;

	CHECK(cudaHostAlloc(&mapped, sizeof(int), cudaHostAllocMapped));
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	again(s, e);
	waits(s);
	others(s, other);
	threads(s, e);
	races(s, e);
	called(s, e);
	graphs(s, e);
	many(s);
	for (int i = 0; i < 10; i++)
		prints(s);
	fails(s, e);
	return job_passed("polls");
}
