// SPDX-License-Identifier: Apache-2.0
/*
 * order.cu - programs of several ranks whose orders differ: order FILE TEST, order FILE any SEED [OPERATIONS]
 *
 * `any`: one list of operations on some streams and communicators is drawn alike by all ranks. Each rank then issues it in
 * an order of its own, in which operations change places that share neither stream nor communicator. So
 * with a device that has room for all kernels nothing waits in a circle, and the result is that of the list.
 * Nothing but an end of the list waits for the device; events are used again while waits for them are open.
 * Between the operations objects are made, asked and ended that others still use.
 */
#include "ranks.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#define STREAMS	5		/* one of them does not block, one is a thread's own */
#define COMMS	3
#define EVENTS	3
#define N	3000		/* words of a stream's array */
#define SMALL	1000

typedef uint32_t word;

static unsigned int rnd(unsigned int *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 10;
}

__global__ void scale(word *p, int n, word by, word plus)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] = p[i] * by + plus + i;
}

__global__ void add(word *to, const word *from, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		to[i] += from[i];
}

enum kind { SCALE, CROSS, SUM, SUMS, SHIFT, SENDS, CAST, UPLOAD, FILL, TEMP, CALL, LEGACY, GRAPH, KINDS };

struct op {
	enum kind kind;
	int a, b;		/* streams; b -1: none */
	int c, d;		/* communicators, or -1 */
	int e, f;		/* events */
	word x, y;
};

static bool touch(const struct op &p, const struct op &q)
{
	auto has = [](const struct op &o, int s) { return o.kind == LEGACY || o.a == s || o.b == s; };

	for (int s = 0; s < STREAMS; s++)
		if (has(p, s) && has(q, s))
			return true;
	for (int c : { p.c, p.d })
		if (c >= 0 && (c == q.c || c == q.d))
			return true;
	return false;
}

static std::vector<op> draw(unsigned int seed, int n)
{
	std::vector<op> list;

	for (int i = 0; i < n; i++) {
		op o = { (enum kind)(rnd(&seed) % KINDS), (int)(rnd(&seed) % STREAMS), -1, -1, -1, (int)(rnd(&seed) % EVENTS),
			 (int)(rnd(&seed) % EVENTS), rnd(&seed) | 1, rnd(&seed) };

		if (o.kind == LEGACY && rnd(&seed) % 3)
			o.kind = SUM;
		if (o.kind == CROSS || o.kind == SUMS)
			o.b = (o.a + 1 + rnd(&seed) % (STREAMS - 1)) % STREAMS;
		if (o.kind >= SUM && o.kind <= CAST)
			o.c = rnd(&seed) % COMMS;
		if (o.kind == SUMS)
			o.d = (o.c + 1 + rnd(&seed) % (COMMS - 1)) % COMMS;
		list.push_back(o);
	}
	return list;
}

/* An order of the list for this rank. */
static std::vector<int> shuffled(const std::vector<op> &list, unsigned int seed)
{
	std::vector<int> order, open;
	std::vector<bool> done(list.size());

	while (order.size() < list.size()) {
		open.clear();
		/* what is not too far behind, and touches nothing before it */
		for (int i = 0; i < (int)list.size() && open.size() < 6; i++) {
			bool free = !done[i];

			for (int k = 0; k < i && free; k++)
				free = done[k] || !touch(list[k], list[i]);
			if (free)
				open.push_back(i);
		}
		order.push_back(open[rnd(&seed) % open.size()]);
		done[order.back()] = true;
	}
	return order;
}

/* ------------------------------------------------------------------------------ what must come out */

typedef std::vector<std::vector<word>> arrays;	/* of a rank, by stream */

static word first_value(int r, int s, int i)
{
	return r * 1000003 + s * 10007 + i;
}

static void sum_of(std::vector<arrays> &all, int s)
{
	for (int i = 0; i < N; i++) {
		word v = 0;

		for (int r = 0; r < ranks; r++)
			v += all[r][s][i];
		for (int r = 0; r < ranks; r++)
			all[r][s][i] = v;
	}
}

static void shift(std::vector<arrays> &all, int s, int n)
{
	std::vector<word> last(all[ranks - 1][s]);

	for (int r = ranks; r--;)
		std::copy_n((r ? all[r - 1][s] : last).begin(), n, all[r][s].begin());
}

static void scale_host(word *p, word by, word plus)
{
	for (int i = 0; i < N; i++)
		p[i] = p[i] * by + plus + i;
}

static void simulate(const op &o, std::vector<arrays> &all, std::vector<std::vector<word>> &calls)
{
	for (int r = 0; r < ranks; r++) {
		word *a = all[r][o.a].data();

		switch (o.kind) {
		case SCALE:
			scale_host(a, o.x, o.y);
			break;
		case TEMP:
			for (int i = 0; i < N; i++)
				a[i] += o.x * 16843009u * 3 + i;
			break;
		case GRAPH:
			scale_host(a, o.x, o.y);
			scale_host(a, o.x + 2, o.y);
			scale_host(a, o.x + 4, o.y);
			break;
		case CROSS:
			for (int i = 0; i < N; i++)
				all[r][o.b][i] += a[i];
			break;
		case UPLOAD:
			for (int i = 0; i < N; i++)
				a[i] = o.x * i + r;
			break;
		case FILL:
			for (int i = 0; i < N; i++)
				a[i] = (o.x & 255) * 0x01010101u;
			break;
		case CALL:
			calls[r].push_back(a[0] ^ a[N - 1]);
			break;
		case LEGACY:
			for (int s = 1; s < STREAMS; s++)
				for (int i = 0; i < N; i++)
					all[r][s][i] += all[r][s - 1][i];
			break;
		default:
			break;
		}
	}
	if (o.kind == SUM || o.kind == SUMS)
		sum_of(all, o.a);
	if (o.kind == SUMS)
		sum_of(all, o.b);
	if (o.kind == SHIFT)
		shift(all, o.a, N);
	if (o.kind == SENDS)
		shift(all, o.a, SMALL);
	for (int r = 0; r < ranks && o.kind == CAST; r++)
		all[r][o.a] = all[o.x % ranks][o.a];
}

/* ------------------------------------------------------------------------------ what a rank does */

struct seen {
	word *from;			/* pinned */
	std::vector<word> *list;
};

static void CUDART_CB look(void *arg)
{
	struct seen *s = (struct seen *)arg;

	s->list->push_back(s->from[0] ^ s->from[1]);
	delete s;
}

static struct rank_state {
	cudaStream_t st[STREAMS];
	ncclComm_t comm[COMMS];
	cudaEvent_t event[EVENTS];
	word *p[STREAMS], *q[STREAMS], *pinned;
	std::vector<word> calls[STREAMS];
	size_t pins;
} my;

/* A graph of three kernels; the first one's argument is changed between two launches. */
static void launch_graph(const op &o)
{
	word *p = my.p[o.a];
	cudaGraph_t g;
	cudaGraphExec_t exec;
	cudaGraphNode_t node[2];
	int n = N;
	word by = o.x, plus = o.y;
	void *args[] = { &p, &n, &by, &plus };
	cudaKernelNodeParams k = {};

	k.func = (void *)scale;
	k.gridDim = dim3((N + 255) / 256);
	k.blockDim = dim3(256);
	k.kernelParams = args;
	OK(cudaGraphCreate(&g, 0));
	OK(cudaGraphAddKernelNode(&node[0], g, NULL, 0, &k));
	by += 2;
	OK(cudaGraphAddKernelNode(&node[1], g, &node[0], 1, &k));
	OK(cudaGraphInstantiate(&exec, g, 0));
	OK(cudaGraphLaunch(exec, my.st[o.a]));
	by += 2;
	n = N;
	OK(cudaGraphExecKernelNodeSetParams(exec, node[0], &k));
	by = 1, plus = 0, n = 0;	/* nothing */
	OK(cudaGraphExecKernelNodeSetParams(exec, node[1], &k));
	OK(cudaGraphLaunch(exec, my.st[o.a]));
	OK(cudaGraphExecDestroy(exec));
	OK(cudaGraphDestroy(g));
}

static void one_op(const op &o)
{
	cudaStream_t st = my.st[o.a];
	word *p = my.p[o.a], *t;
	int blocks = (N + 255) / 256, next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;

	switch (o.kind) {
	case SCALE:
		scale<<<blocks, 256, 0, st>>>(p, N, o.x, o.y);
		break;
	case CROSS:
		OK(cudaEventRecord(my.event[o.e], st));
		OK(cudaStreamWaitEvent(my.st[o.b], my.event[o.e], 0));
		add<<<blocks, 256, 0, my.st[o.b]>>>(my.p[o.b], p, N);
		OK(cudaEventRecord(my.event[o.f], my.st[o.b]));
		OK(cudaStreamWaitEvent(st, my.event[o.f], 0));
		break;
	case SUM:
		OK(ncclAllReduce(p, p, N, ncclUint32, ncclSum, my.comm[o.c], st));
		break;
	case SUMS:
		OK(ncclGroupStart());
		OK(ncclAllReduce(p, p, N, ncclUint32, ncclSum, my.comm[o.c], st));
		OK(ncclAllReduce(my.p[o.b], my.p[o.b], N, ncclUint32, ncclSum, my.comm[o.d], my.st[o.b]));
		OK(ncclGroupEnd());
		break;
	case SHIFT:
		OK(cudaMemcpyAsync(my.q[o.a], p, N * sizeof(word), cudaMemcpyDeviceToDevice, st));
		OK(ncclGroupStart());
		if (o.x % 4 < 2 || rank % 2)
			OK(ncclSend(my.q[o.a], N, ncclUint32, next, my.comm[o.c], st));
		OK(ncclRecv(p, N, ncclUint32, before, my.comm[o.c], st));
		if (!(o.x % 4 < 2 || rank % 2))
			OK(ncclSend(my.q[o.a], N, ncclUint32, next, my.comm[o.c], st));
		OK(ncclGroupEnd());
		break;
	case SENDS:
		if (ranks == 1)
			break;
		/* without a group: a small send completes by itself */
		OK(ncclSend(p, SMALL, ncclUint32, next, my.comm[o.c], st));
		OK(ncclRecv(p, SMALL, ncclUint32, before, my.comm[o.c], st));
		break;
	case CAST:
		OK(ncclBroadcast(p, p, N, ncclUint32, o.x % ranks, my.comm[o.c], st));
		break;
	case UPLOAD: {
		std::vector<word> v(N);

		for (int i = 0; i < N; i++)
			v[i] = o.x * i + rank;
		OK(cudaMemcpyAsync(p, v.data(), N * sizeof(word), cudaMemcpyHostToDevice, st));
		std::fill(v.begin(), v.end(), 0xdeadbeef);
		break;
	}
	case FILL:
		OK(cudaMemsetAsync(p, o.x & 255, N * sizeof(word), st));
		break;
	case TEMP:
		OK(cudaMallocAsync(&t, N * sizeof(word), st));
		OK(cudaMemsetAsync(t, 1, N * sizeof(word), st));
		scale<<<blocks, 256, 0, st>>>(t, N, o.x * 3, 0);
		add<<<blocks, 256, 0, st>>>(p, t, N);
		OK(cudaFreeAsync(t, st));
		break;
	case CALL: {
		struct seen *s = new seen{ my.pinned + my.pins, &my.calls[o.a] };

		my.pins += 2;
		OK(cudaMemcpyAsync(s->from, p, sizeof(word), cudaMemcpyDeviceToHost, st));
		OK(cudaMemcpyAsync(s->from + 1, p + N - 1, sizeof(word), cudaMemcpyDeviceToHost, st));
		OK(cudaLaunchHostFunc(st, look, s));
		break;
	}
	case LEGACY:
		/* the streams that do not block are ordered by events */
		OK(cudaEventRecord(my.event[o.e], my.st[STREAMS - 1]));
		OK(cudaStreamWaitEvent(cudaStreamLegacy, my.event[o.e], 0));
		for (int s = 1; s < STREAMS; s++)
			add<<<blocks, 256, 0, cudaStreamLegacy>>>(my.p[s], my.p[s - 1], N);
		OK(cudaEventRecord(my.event[o.e], cudaStreamLegacy));
		OK(cudaStreamWaitEvent(my.st[STREAMS - 1], my.event[o.e], 0));
		break;
	case GRAPH:
		launch_graph(o);
		break;
	default:
		break;
	}
	OK(cudaGetLastError());
}

/* Changes nothing. */
static void noise(unsigned int *seed)
{
	int s = rnd(seed) % STREAMS, e = rnd(seed) % EVENTS;
	cudaError_t rc = cudaSuccess;
	cudaStream_t extra;
	cudaEvent_t event;
	float ms;

	switch (rnd(seed) % 8) {
	case 0:
		rc = cudaStreamQuery(my.st[s]);
		break;
	case 1:
		rc = cudaEventQuery(my.event[e]);
		break;
	case 2:			/* an event that goes while others wait for it */
		OK(cudaEventCreate(&event));
		OK(cudaEventRecord(event, my.st[s]));
		OK(cudaStreamWaitEvent(my.st[s], event, 0));
		OK(cudaEventDestroy(event));
		break;
	case 3:			/* a stream that goes while it waits */
		OK(cudaStreamCreateWithFlags(&extra, s % 2 ? cudaStreamDefault : cudaStreamNonBlocking));
		OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
		OK(cudaEventRecord(event, my.st[s]));
		OK(cudaStreamWaitEvent(extra, event, 0));
		OK(cudaEventRecord(event, extra));
		OK(cudaStreamWaitEvent(my.st[s], event, 0));
		OK(cudaStreamDestroy(extra));
		OK(cudaEventDestroy(event));
		break;
	case 4:			/* an event that has been replaced, as programs do in a loop */
		OK(cudaEventDestroy(my.event[e]));
		OK(cudaEventCreate(&my.event[e]));
		break;
	case 5:
		OK(cudaEventCreate(&event));
		OK(cudaEventRecord(event, my.st[s]));
		rc = cudaEventElapsedTime(&ms, event, event);
		OK(cudaEventDestroy(event));
		break;
	default:
		break;
	}
	IS(rc == cudaSuccess || rc == cudaErrorNotReady, 1);
}

static void any(unsigned int seed, int n)
{
	std::vector<op> list = draw(seed, n);
	std::vector<arrays> all(ranks, arrays(STREAMS, std::vector<word>(N)));
	std::vector<std::vector<std::vector<word>>> calls(STREAMS, std::vector<std::vector<word>>(ranks));
	unsigned int own = seed * 31 + rank * 7 + 1;

	for (int r = 0; r < ranks; r++)
		for (int s = 0; s < STREAMS; s++)
			for (int i = 0; i < N; i++)
				all[r][s][i] = first_value(r, s, i);
	for (int s = 0; s < STREAMS; s++) {
		OK(cudaMalloc(&my.p[s], N * sizeof(word)));
		OK(cudaMalloc(&my.q[s], N * sizeof(word)));
		OK(cudaMemcpy(my.p[s], all[rank][s].data(), N * sizeof(word), cudaMemcpyHostToDevice));
		OK(cudaStreamCreateWithFlags(&my.st[s], s == STREAMS - 1 ? cudaStreamNonBlocking :
					     cudaStreamDefault));
	}
	OK(cudaStreamDestroy(my.st[0]));
	my.st[0] = cudaStreamPerThread;
	OK(cudaMallocHost(&my.pinned, 2 * sizeof(word) * n));
	for (cudaEvent_t &e : my.event)
		OK(cudaEventCreate(&e));
	for (int c = 0; c < COMMS; c++)
		my.comm[c] = world(c);
	OK(cudaDeviceSynchronize());
	for (int i : shuffled(list, own)) {
		if (rnd(&own) % 2)
			noise(&own);
		one_op(list[i]);
	}
	for (const op &o : list)
		simulate(o, all, calls[o.a]);
	if (rank % 2)
		OK(cudaDeviceSynchronize());
	for (int s = 0; s < STREAMS; s++) {
		std::vector<word> got(N);

		OK(cudaStreamSynchronize(my.st[s]));
		OK(cudaMemcpy(got.data(), my.p[s], N * sizeof(word), cudaMemcpyDeviceToHost));
		for (int i = 0; i < N; i++)
			IS(got[i], all[rank][s][i]);
		IS(my.calls[s].size(), calls[s][rank].size());
		for (size_t i = 0; i < my.calls[s].size(); i++)
			IS(my.calls[s][i], calls[s][rank][i]);
	}
	for (int c = 0; c < COMMS; c++)
		OK(ncclCommDestroy(my.comm[(c + rank) % COMMS]));
}

/* ------------------------------------------------------------------------------ one thing at a time */

/* Rank 0 says that it has come to a number; the others wait for that. */
static void come_to(int number)
{
	char path[4200];
	FILE *f;

	snprintf(path, sizeof(path), "%s.at.%d", id_file, number);
	if (!rank) {
		f = fopen(path, "w");
		IS(f != NULL, 1);
		fclose(f);
	}
	for (int i = 0; access(path, F_OK); i++) {
		IS(i < 60000, 1);
		usleep(1000);
	}
}

static word *words(int n, word value)
{
	std::vector<word> v(n, value);
	word *p;

	OK(cudaMalloc(&p, n * sizeof(word)));
	OK(cudaMemcpy(p, v.data(), n * sizeof(word), cudaMemcpyHostToDevice));
	OK(cudaDeviceSynchronize());
	return p;
}

/* What n words are, when the device is done. */
static void has(const word *p, int n, word value)
{
	std::vector<word> v(n);

	OK(cudaDeviceSynchronize());
	OK(cudaMemcpy(v.data(), p, n * sizeof(word), cudaMemcpyDeviceToHost));
	for (word w : v)
		IS(w, value);
}

static cudaStream_t stream(void)
{
	cudaStream_t st;

	OK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
	return st;
}

static void sum(word *p, int n, ncclComm_t comm, cudaStream_t st)
{
	OK(ncclAllReduce(p, p, n, ncclUint32, ncclSum, comm, st));
}

/* One event, recorded again while a recording of it and a wait for that are open. Nothing waits in a circle. */
static void again(void)
{
	ncclComm_t comm[2] = { world(0), world(1) };
	cudaStream_t st[2] = { stream(), stream() }, third = stream();
	word *p[2] = { words(N, 1), words(N, 2) }, *q = words(N, 0);
	cudaEvent_t e;

	OK(cudaEventCreate(&e));
	for (int k = 0; k < 20; k++) {
		int first = (rank + k) % 2;

		sum(p[first], N, comm[first], st[first]);
		OK(cudaEventRecord(e, st[first]));
		OK(cudaStreamWaitEvent(third, e, 0));
		add<<<(N + 255) / 256, 256, 0, third>>>(q, p[first], 0);
		OK(cudaEventRecord(e, st[!first]));
		sum(p[!first], N, comm[!first], st[!first]);
	}
	OK(cudaDeviceSynchronize());
	for (int k = 0, v = 1; k < 20; k++, v *= ranks)
		if (k == 19)
			has(p[0], N, v * ranks);
	OK(ncclCommDestroy(comm[0]));
	OK(ncclCommDestroy(comm[1]));
}

static void CUDART_CB until_set(void *arg)
{
	while (!((std::atomic<int> *)arg)->load())
		usleep(1000);
}

/* Waits for an event that is recorded again stay with what had been recorded when they were called. */
static void recorded(void)
{
	static std::atomic<int> set;
	ncclComm_t comm[2] = { world(0), world(1) };
	cudaStream_t st[2] = { stream(), stream() }, late = stream(), other = stream();
	word *x = words(N, 1), *p[2] = { words(N, 1), words(N, 1) }, *y[2] = { words(N, 0), words(N, 0) };
	cudaEvent_t e;

	OK(cudaEventCreate(&e));
	OK(cudaLaunchHostFunc(late, until_set, &set));
	OK(cudaMemsetAsync(x, 7, N * sizeof(word), late));
	if (rank)
		come_to(0);
	for (int k = 0; k < 2; k++)
		sum(p[k], N, comm[k], st[k]);
	OK(cudaEventRecord(e, late));
	for (int k = 0; k < 2; k++) {
		OK(cudaStreamWaitEvent(st[k], e, 0));
		OK(cudaMemcpyAsync(y[k], x, N * sizeof(word), cudaMemcpyDeviceToDevice, st[k]));
	}
	OK(cudaEventRecord(e, other));
	OK(cudaEventSynchronize(e));
	come_to(0);
	OK(cudaStreamSynchronize(other));
	for (int i = 0; i < 200; i++) {		/* the collectives end, the event does not */
		IS(cudaStreamQuery(st[0]), cudaErrorNotReady);
		IS(cudaStreamQuery(st[1]), cudaErrorNotReady);
		usleep(1000);
	}
	set = 1;
	for (int k = 0; k < 2; k++) {
		has(y[k], N, 0x07070707);
		has(p[k], N, ranks);
		OK(ncclCommDestroy(comm[k]));
	}
}

static void polls(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream();
	word *p = words(N, 1);
	cudaEvent_t e[2];
	cudaError_t rc;
	float ms;

	OK(cudaEventCreate(&e[0]));
	OK(cudaEventCreate(&e[1]));
	for (int k = 0; k < 10; k++) {
		if (rank)
			come_to(k);
		OK(cudaEventRecord(e[0], st));
		sum(p, N, comm, st);
		OK(cudaEventRecord(e[1], st));
		if (!rank) {
			while ((rc = cudaEventQuery(e[0])) == cudaErrorNotReady)
				;
			OK(rc);
			for (int i = 0; i < 20; i++) {
				IS(cudaStreamQuery(st), cudaErrorNotReady);
				IS(cudaEventQuery(e[1]), cudaErrorNotReady);
				IS(cudaEventElapsedTime(&ms, e[0], e[1]), cudaErrorNotReady);
			}
			come_to(k);
		}
		while ((rc = k % 2 ? cudaStreamQuery(st) : cudaEventQuery(e[1])) == cudaErrorNotReady)
			;
		OK(rc);
		OK(cudaEventSynchronize(e[1]));
		OK(cudaEventElapsedTime(&ms, e[0], e[1]));
		IS(ms >= 0, 1);
	}
	has(p, N, (word)pow(ranks, 10));
	OK(ncclCommDestroy(comm));
}

/* Objects and memory that go while a collective waits for its start, and many new ones. */
static void ends(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st[2] = { stream(), stream() };
	word *p = words(N, 1), *q = words(N, 5), *t, *gone = words(N, 3);
	cudaEvent_t e;

	OK(cudaEventCreate(&e));
	if (rank)
		come_to(0);
	OK(cudaMallocAsync(&t, N * sizeof(word), st[0]));
	OK(cudaMemcpyAsync(t, p, N * sizeof(word), cudaMemcpyDeviceToDevice, st[0]));
	sum(t, N, comm, st[0]);
	OK(cudaEventRecord(e, st[0]));
	OK(cudaStreamWaitEvent(st[1], e, 0));
	add<<<(N + 255) / 256, 256, 0, st[1]>>>(q, t, N);
	OK(cudaFreeAsync(t, st[1]));
	OK(cudaEventDestroy(e));
	OK(cudaStreamDestroy(st[0]));
	OK(cudaStreamDestroy(st[1]));
	for (int k = 0; k < 300; k++) {		/* they come into the places of others that have not gone yet */
		cudaGraphExec_t exec;
		cudaGraph_t g;

		st[0] = stream();
		OK(cudaEventCreate(&e));
		OK(cudaEventRecord(e, st[0]));
		OK(cudaStreamWaitEvent(st[0], e, 0));
		OK(cudaMallocAsync(&t, 4096, st[0]));
		OK(cudaMemsetAsync(t, k, 4096, st[0]));
		OK(cudaFreeAsync(t, st[0]));
		OK(cudaGraphCreate(&g, 0));
		OK(cudaGraphInstantiate(&exec, g, 0));
		OK(cudaGraphLaunch(exec, st[0]));
		OK(cudaGraphExecDestroy(exec));
		OK(cudaGraphDestroy(g));
		OK(cudaEventDestroy(e));
		OK(cudaStreamDestroy(st[0]));
	}
	std::thread frees([&] {
		OK(cudaSetDevice(rank));
		OK(cudaFree(gone));
	});
	if (!rank)
		come_to(0);
	frees.join();
	has(q, N, 5 + ranks);
	has(p, N, 1);
	OK(ncclCommDestroy(comm));
}

/* Copies behind a collective that waits: host memory may change as soon as the call is back. */
static void uploads(void)
{
	enum { EACH = 16384, COPIES = 200 };
	ncclComm_t comm = world(0);
	cudaStream_t st = stream();
	word *p = words(EACH, 1), *all = words(EACH * COPIES, 0), *pinned, v;
	std::vector<word> host(EACH);

	OK(cudaMallocHost(&pinned, COPIES * sizeof(word)));
	if (rank)
		come_to(0);
	sum(p, EACH, comm, st);
	for (int k = 0; k < COPIES; k++) {
		std::fill(host.begin(), host.end(), k + 1);
		OK(cudaMemcpyAsync(all + k * EACH, host.data(), EACH * sizeof(word), cudaMemcpyHostToDevice,
				   st));
		add<<<EACH / 256, 256, 0, st>>>(all + k * EACH, p, EACH);
		OK(cudaMemcpyAsync(pinned + k, all + k * EACH + k, sizeof(word), cudaMemcpyDeviceToHost, st));
	}
	std::fill(host.begin(), host.end(), 0xdead);
	if (!rank)
		come_to(0);
	OK(cudaMemcpyAsync(&v, p, sizeof(v), cudaMemcpyDeviceToHost, st));	/* pageable: waits */
	OK(cudaStreamSynchronize(st));
	IS(v, ranks);
	for (int k = 0; k < COPIES; k++) {
		IS(pinned[k], k + 1 + ranks);
		has(all + k * EACH, EACH, k + 1 + ranks);
	}
	OK(ncclCommDestroy(comm));
}

/* Threads that wait in all ways for one collective. */
static void waits(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream();
	word *p = words(N, 1), *q = words(N, 0);
	std::vector<std::thread> threads;
	std::atomic<int> back(0);
	cudaEvent_t e;

	OK(cudaEventCreateWithFlags(&e, cudaEventBlockingSync));
	if (rank)
		come_to(0);
	sum(p, N, comm, st);
	OK(cudaMemcpyAsync(q, p, N * sizeof(word), cudaMemcpyDeviceToDevice, st));
	OK(cudaEventRecord(e, st));
	for (int k = 0; k < 8; k++)
		threads.emplace_back([&, k] {
			word *m;

			OK(cudaSetDevice(rank));
			switch (k % 4) {
			case 0:
				OK(cudaDeviceSynchronize());
				break;
			case 1:
				OK(cudaStreamSynchronize(st));
				break;
			case 2:
				OK(cudaEventSynchronize(e));
				break;
			case 3:
				OK(cudaMalloc(&m, 1 << 20));
				OK(cudaFree(m));
				break;
			}
			back++;
			if (!rank && k % 4 < 3)
				IS(access((std::string(id_file) + ".at.0").c_str(), F_OK), 0);
			has(q, N, ranks);
		});
	usleep(100000);
	if (!rank)
		IS(back.load() <= 2, 1);
	come_to(0);
	for (std::thread &t : threads)
		t.join();
	OK(ncclCommDestroy(comm));
}

/* Many communicators, used and ended in another order on each rank. */
static void many(void)
{
	enum { COUNT_OF = 40 };
	ncclComm_t comm[COUNT_OF];
	cudaStream_t st[8];
	word *p[COUNT_OF];
	std::vector<int> order;
	unsigned int seed = rank * 77 + 5;

	for (cudaStream_t &s : st)
		s = stream();
	comm[0] = world(0);
	for (int i = 0; i < COUNT_OF; i++) {
		if (i)
			OK(ncclCommSplit(comm[i / 2], 0, i % 2 ? rank : -rank, &comm[i], NULL));
		p[i] = words(N, i + 1);
		order.push_back(i);
	}
	for (int i = COUNT_OF; i-- > 1;) {
		int k = rnd(&seed) % (i + 1);

		std::swap(order[i], order[k]);
	}
	/* a stream's order is the same on all, since what is behind waits for what is before */
	for (int s = 0; s < 8; s++)
		for (int i = (s + rank) % 8; i < COUNT_OF; i += 8)
			sum(p[i], N, comm[i], st[(s + rank) % 8]);
	for (int i : order)
		OK(ncclCommDestroy(comm[i]));
	for (int i = 0; i < COUNT_OF; i++)
		has(p[i], N, (i + 1) * ranks);
}

/* Both ranks of a pair send before they receive, up to 1 MiB, and use the buffer again. */
static void sends(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream();
	int most = (1 << 20) / sizeof(word), peer = rank ^ 1;
	word *p = words(most, 0), *q = words(most, 0);

	for (int n = 1; n <= most && peer < ranks; n *= 4) {
		enum { DEEP = 8 };

		for (int k = 0; k < DEEP; k++) {
			scale<<<(most + 255) / 256, 256, 0, st>>>(p, most, 0, 100 * n + 10 * k + rank);
			OK(ncclSend(p, n, ncclUint32, peer, comm, st));
		}
		OK(cudaMemsetAsync(p, 0xee, most * sizeof(word), st));
		OK(cudaStreamSynchronize(st));
		for (int k = 0; k < DEEP; k++) {
			std::vector<word> v(n);

			OK(ncclRecv(q, n, ncclUint32, peer, comm, st));
			OK(cudaMemcpyAsync(v.data(), q, n * sizeof(word), cudaMemcpyDeviceToHost, st));
			OK(cudaStreamSynchronize(st));
			for (int i = 0; i < n; i++)
				IS(v[i], 100 * n + 10 * k + peer + i);
		}
	}
	OK(ncclCommDestroy(comm));
}

static void CUDART_CB one_more(void *arg)
{
	for (int i = 0; i < 64; i++)
		((word *)arg)[i]++;
}

/* Host functions, copies and collectives in turn, by one stream after the other, with no wait of the host. */
static void turns(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st[] = { stream(), cudaStreamLegacy, cudaStreamPerThread, stream() };
	word *p = words(64, 1), *pinned, want = 1;
	cudaEvent_t e;

	OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	OK(cudaMallocHost(&pinned, 64 * sizeof(word)));
	for (int k = 0; k < 40; k++, want = want * ranks + 1) {
		cudaStream_t s = st[k % 4];

		sum(p, 64, comm, s);
		OK(cudaMemcpyAsync(pinned, p, 64 * sizeof(word), cudaMemcpyDeviceToHost, s));
		OK(cudaLaunchHostFunc(s, one_more, pinned));
		OK(cudaMemcpyAsync(p, pinned, 64 * sizeof(word), cudaMemcpyHostToDevice, s));
		OK(cudaEventRecord(e, s));
		OK(cudaStreamWaitEvent(st[(k + 1) % 4], e, 0));
	}
	has(p, 64, want);
	OK(ncclCommDestroy(comm));
}

/* Something waits all the time, and thousands of objects come and go: what the proxy knows of them goes, too. */
static void soak(void)
{
	ncclComm_t comm[2] = { world(0), world(1) };
	cudaStream_t st[2] = { stream(), stream() };
	word *p[2] = { words(N, 1), words(N, 1) };

	for (int k = 0; k < 3000; k++) {
		int i = (k + rank) % 2;
		cudaEvent_t e;

		OK(ncclAllReduce(p[i], p[i], N, ncclUint32, ncclMax, comm[i], st[i]));
		OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
		OK(cudaEventRecord(e, st[i]));
		if (k % 64 == 63 && i == rank % 2)
			OK(cudaStreamWaitEvent(st[!i], e, 0));
		OK(cudaEventDestroy(e));
		if (k % 16 == 15) {
			OK(cudaStreamDestroy(st[i]));
			st[i] = stream();
		}
	}
	has(p[0], N, 1);
	has(p[1], N, 1);
	OK(ncclCommDestroy(comm[0]));
	OK(ncclCommDestroy(comm[1]));
}

/* proto.h: sv_handle_index() */
static unsigned int index_of(cudaEvent_t e)
{
	return (unsigned int)(uintptr_t)e >> 8;
}

/* Behind one collective that waits there end more events and graphs than a proxy has had indices for. */
static void handles(void)
{
	enum { SIDES = 3, EACH = 30000, GRAPHS = 70000 };
	ncclComm_t comm = world(0);
	cudaStream_t st = stream(), side[SIDES] = { stream(), stream(), stream() };
	word *p = words(N, 1);
	cudaEvent_t first, e, most = NULL;
	cudaGraph_t g;

	OK(cudaEventCreateWithFlags(&first, cudaEventDisableTiming));
	if (rank)
		come_to(0);
	sum(p, N, comm, st);
	OK(cudaEventRecord(first, st));
	for (int k = 0; k < SIDES && !rank; k++) {
		OK(cudaStreamWaitEvent(side[k], first, 0));
		for (int i = 0; i < EACH; i++) {
			OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
			OK(cudaEventRecord(e, side[k]));
			OK(cudaEventDestroy(e));
		}
		most = e;
	}
	for (int i = 0; i < GRAPHS && !rank; i++) {
		OK(cudaGraphCreate(&g, 0));
		OK(cudaGraphDestroy(g));
	}
	come_to(0);
	has(p, N, ranks);
	/* All are free again: what comes now gets along with few of them, and needs no new one in the end. */
	for (int i = 0; i < 1000; i++) {
		OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
		OK(cudaEventRecord(e, st));
		OK(cudaEventDestroy(e));
		if (i % 100 == 99)		/* so that the proxy has seen which have ended */
			OK(cudaStreamSynchronize(st));
	}
	if (!rank && index_of(e) > index_of(most)) {
		printf("event %u is a new one, behind %u that have ended\n", index_of(e), index_of(most));
		exit(1);
	}
	has(p, N, ranks);
	OK(ncclCommDestroy(comm));
}

/* A thread that hands in more than a stream may have parked waits; other threads, and other streams, go on. */
static void full(void)
{
	enum { ALL = 200000, PARKED = 64 << 10, ON_THE_WAY = 8192 };
	ncclComm_t comm = world(0);
	cudaStream_t st = stream(), other = stream();
	word *p = words(N, 1), *q = words(N, 0), v = 0, *small = words(1, 0);
	std::atomic<int> handed(0);
	int before;

	if (rank) {
		come_to(0);
		sum(p, N, comm, st);
		has(p, N, ranks);
		OK(ncclCommDestroy(comm));
		return;
	}
	sum(p, N, comm, st);
	std::thread thread([&] {
		OK(cudaSetDevice(rank));
		for (int i = 1; i <= ALL; i++) {
			if (i % 3)
				OK(cudaMemsetAsync(small, i, sizeof(*small), st));
			else
				OK(cudaMemcpyAsync(q, p, sizeof(*q), cudaMemcpyDeviceToDevice, st));
			handed = i;
		}
		OK(cudaMemcpyAsync(q, p, N * sizeof(*q), cudaMemcpyDeviceToDevice, st));
	});
	do {
		before = handed;
		usleep(300000);
	} while (before != handed || before < PARKED - 1);
	IS(handed < PARKED + ON_THE_WAY, 1);
	for (int i = 0; i < 1000; i++)
		OK(cudaMemsetAsync(q, i, 1, other));
	OK(cudaMemcpyAsync(&v, q, sizeof(v), cudaMemcpyDeviceToHost, other));
	OK(cudaStreamSynchronize(other));
	IS(v, 999 % 256);
	IS(cudaStreamQuery(st), cudaErrorNotReady);
	IS(handed < PARKED + ON_THE_WAY, 1);
	come_to(0);
	thread.join();
	has(q, N, ranks);
	has(p, N, ranks);
	OK(ncclCommDestroy(comm));
}

static const struct {
	const char *name;
	void (*fn)(void);
} tests[] = {
	{ "again", again }, { "recorded", recorded }, { "polls", polls }, { "ends", ends },
	{ "uploads", uploads }, { "waits", waits }, { "many", many }, { "sends", sends },
	{ "turns", turns }, { "soak", soak }, { "handles", handles }, { "full", full },
};

int main(int argc, char **argv)
{
	begin(argc, argv);
	for (auto &t : tests)
		if (argc == 3 && !strcmp(argv[2], t.name)) {
			t.fn();
			return 0;
		}
	if (argc < 4 || strcmp(argv[2], "any"))
		return 2;
	any(atoi(argv[3]), argc > 4 ? atoi(argv[4]) : 200);
	return 0;
}
