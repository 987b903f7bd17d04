// SPDX-License-Identifier: Apache-2.0
/*
 * captured.c - collectives in captured graphs, by several ranks: captured FILE TEST
 *
 * Values are integers modulo 2^32, so the host computes what each rank must have.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "ranks.h"

#define COUNT	1000
#define RANKS	8

typedef uint32_t array[COUNT];

/* out[i] = in[i] * mul + add + i */
static const char ptx[] =
	".version 6.0\n.target sm_50\n.address_size 64\n"
	".visible .entry mad(.param .u64 out, .param .u64 in, .param .u32 mul, .param .u32 add)\n{\n"
	".reg .u32 %r<8>; .reg .u64 %d<6>; .reg .pred %p;\n"
	"mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r1, %r1, 100, %r2;\n"
	"ld.param.u64 %d1, [out]; ld.param.u64 %d2, [in];\n"
	"ld.param.u32 %r3, [mul]; ld.param.u32 %r4, [add];\n"
	"mul.wide.u32 %d3, %r1, 4; add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3;\n"
	"ld.global.u32 %r5, [%d2]; mad.lo.u32 %r5, %r5, %r3, %r4; add.u32 %r5, %r5, %r1;\n"
	"st.global.u32 [%d1], %r5;\nret;\n}\n";

static void *function;
static int (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			    unsigned, cudaStream_t, void **, void **);

static void load(void)
{
	int (*load_module)(void **, const void *) = dlsym(RTLD_DEFAULT, "cuModuleLoadData");
	int (*get)(void **, void *, const char *) = dlsym(RTLD_DEFAULT, "cuModuleGetFunction");
	void *module;

	launch_kernel = dlsym(RTLD_DEFAULT, "cuLaunchKernel");
	OK(cudaFree(0));
	OK(load_module(&module, ptx));
	OK(get(&function, module, "mad"));
}

static void mad(cudaStream_t st, void *out, void *in, uint32_t mul, uint32_t add)
{
	void *args[] = { &out, &in, &mul, &add };

	OK(launch_kernel(function, COUNT / 100, 1, 1, 100, 1, 1, 0, st, args, NULL));
}

static void host_mad(uint32_t *out, const uint32_t *in, uint32_t mul, uint32_t add)
{
	for (uint32_t i = 0; i < COUNT; i++)
		out[i] = in[i] * mul + add + i;
}

static void host_sum(uint32_t *out, array *of)
{
	array sum = { 0 };

	for (int r = 0; r < ranks; r++)
		for (int i = 0; i < COUNT; i++)
			sum[i] += of[r][i];
	memcpy(out, sum, sizeof(sum));
}

/* What so many all-reduces make of all ranks' arrays. */
static void host_sums(array *of, int times)
{
	array total;

	while (times--) {
		host_sum(total, of);
		for (int r = 0; r < ranks; r++)
			memcpy(of[r], total, sizeof(total));
	}
}

/* All ranks' arrays at their beginning. */
static void host_start(array *of, uint32_t seed)
{
	for (int r = 0; r < RANKS; r++)
		for (int i = 0; i < COUNT; i++)
			of[r][i] = seed + 17 * r + i * i;
}

static uint32_t *start(uint32_t seed)
{
	array all[RANKS];
	uint32_t *p;

	host_start(all, seed);
	OK(cudaMalloc((void **)&p, sizeof(array)));
	OK(cudaMemcpy(p, all[rank], sizeof(array), cudaMemcpyHostToDevice));
	return p;
}

static void check(int line, const uint32_t *p, const uint32_t *want)
{
	array is;

	OK(cudaMemcpy(is, p, sizeof(is), cudaMemcpyDeviceToHost));
	for (int i = 0; i < COUNT; i++)
		if (is[i] != want[i]) {
			printf("rank %d: line %d: element %d is %u, not %u\n", rank, line, i, is[i], want[i]);
			fflush(stdout);
			_exit(1);
		}
}

#define CHECK(p, want) check(__LINE__, p, want)

static cudaStream_t stream(void)
{
	cudaStream_t st;

	OK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
	return st;
}

static void capture(cudaStream_t st)
{
	OK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
}

static cudaGraph_t captured(cudaStream_t st)
{
	cudaGraph_t g;

	OK(cudaStreamEndCapture(st, &g));
	return g;
}

static cudaGraphExec_t executable(cudaGraph_t g)
{
	cudaGraphExec_t x;

	OK(cudaGraphInstantiateWithFlags(&x, g, 0));
	return x;
}

static void follow(cudaStream_t on, cudaStream_t after)
{
	cudaEvent_t e;

	OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	OK(cudaEventRecord(e, after));
	OK(cudaStreamWaitEvent(on, e, 0));
	OK(cudaEventDestroy(e));
}

static void sum(ncclComm_t comm, void *to, const void *from, cudaStream_t st)
{
	OK(ncclAllReduce(from, to, COUNT, ncclUint32, ncclSum, comm, st));
}

/* Rank 0 lets the others go on, who wait for that. */
static void let_go(void)
{
	char path[4200];
	FILE *f;

	snprintf(path, sizeof(path), "%s.go", id_file);
	f = rank ? NULL : fopen(path, "w");
	if (f)
		fclose(f);
	while (access(path, F_OK))
		usleep(1000);
}

/* ------------------------------------------------------------------------------ replays */

/* One all-reduce between kernels, replayed with what the replay before has left. */
static void replay(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream();
	uint32_t *x = start(1), *y = start(2);
	array of[RANKS], total;
	cudaGraphExec_t exec;

	host_start(of, 1);
	capture(st);
	mad(st, x, x, 3, rank);
	sum(comm, y, x, st);
	mad(st, x, y, 5, 2 * rank);
	exec = executable(captured(st));
	for (int k = 0; k < 100; k++) {
		OK(cudaGraphLaunch(exec, k % 3 ? st : 0));
		for (int r = 0; r < ranks; r++)
			host_mad(of[r], of[r], 3, r);
		host_sum(total, of);
		for (int r = 0; r < ranks; r++)
			host_mad(of[r], total, 5, 2 * r);
		if (k % 25)
			continue;
		OK(cudaDeviceSynchronize());
		CHECK(x, of[rank]);
		CHECK(y, total);
	}
	OK(cudaDeviceSynchronize());
	CHECK(x, of[rank]);
	OK(cudaGraphExecDestroy(exec));
	OK(ncclCommDestroy(comm));
}

/* Many operations, a group, a branch beside them, fork and join: all of it twice in flight. */
static void many(void)
{
	ncclComm_t comm = world(0), other = world(1);
	cudaStream_t st = stream(), on[3] = { stream(), stream(), stream() };
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	uint32_t *x = start(1), *y = start(2), *z = start(3), *side = start(4), *in = start(5), *two = start(6);
	array of[RANKS], sums[RANKS], third[RANKS], total, beside, both;
	cudaGraphExec_t exec;

	capture(st);
	for (int k = 0; k < 3; k++)
		follow(on[k], st);
	for (int k = 0; k < 4; k++)
		mad(on[2], side, side, 7, k);		/* beside everything */
	mad(st, x, x, 3, rank);
	/* two communicators on two branches, whose order differs between the ranks */
	follow(on[0], st);
	for (int k = 0; k < 2; k++)
		if ((k + rank) % 2)
			sum(comm, y, x, st);
		else
			sum(other, two, x, on[0]);
	mad(on[1], z, z, 1, rank);			/* needs neither */
	follow(st, on[1]);
	OK(ncclGroupStart());
	OK(ncclSend(z, COUNT, ncclUint32, next, comm, st));
	OK(ncclRecv(in, COUNT, ncclUint32, before, comm, st));
	OK(ncclAllReduce(y, y, COUNT, ncclUint32, ncclMax, comm, on[1]));
	OK(ncclGroupEnd());
	follow(st, on[0]);				/* x has been read */
	mad(st, x, y, 1, rank);
	OK(ncclBroadcast(x, x, COUNT, ncclUint32, 0, comm, st));
	for (int k = 0; k < 3; k++)
		follow(st, on[k]);
	mad(st, side, side, 1, 1);
	exec = executable(captured(st));
	host_start(of, 1);
	host_start(third, 3);
	host_start(sums, 4);
	memcpy(beside, sums[rank], sizeof(beside));
	for (int k = 0; k < 20; k++) {
		OK(cudaGraphLaunch(exec, k % 2 ? st : on[0]));
		for (int r = 0; r < ranks; r++) {
			host_mad(of[r], of[r], 3, r);
			host_mad(third[r], third[r], 1, r);
		}
		host_sum(total, of);
		memcpy(both, total, sizeof(both));
		host_mad(of[0], total, 1, 0);
		for (int r = 1; r < ranks; r++)
			memcpy(of[r], of[0], sizeof(array));
		for (int i = 0; i < 4; i++)
			host_mad(beside, beside, 7, i);
		host_mad(beside, beside, 1, 1);
		if (k % 5)
			continue;
		OK(cudaStreamSynchronize(k % 2 ? st : on[0]));
		CHECK(x, of[rank]);
		CHECK(y, total);
		CHECK(two, both);
		CHECK(z, third[rank]);
		CHECK(in, third[before]);
		CHECK(side, beside);
	}
	OK(cudaDeviceSynchronize());
	CHECK(side, beside);
	CHECK(in, third[before]);
	OK(cudaGraphExecDestroy(exec));
	OK(ncclCommDestroy(other));
	OK(ncclCommDestroy(comm));
}

/*
 * Ranks launch at different times. What needs no other rank runs at once; what is behind the launch
 * waits, and the graph may be destroyed meanwhile. The breaks before both kernels have one place in pieces.c's table.
 */
static void late(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream(), by = stream();
	uint32_t *x = start(1), *side = start(2);
	array of[RANKS], total, beside;
	cudaGraphExec_t exec;
	cudaGraph_t g;

	host_start(of, 2);
	host_mad(beside, of[rank], 2, 0);
	host_start(of, 1);
	capture(st);
	follow(by, st);
	mad(by, side, side, 2, 0);
	for (int k = 0; k < 5; k++)
		sum(comm, x, x, st);
	mad(st, x, x, 1, 5);
	follow(st, by);
	for (int k = 0; k < 2; k++)
		sum(comm, x, x, st);
	g = captured(st);
	exec = executable(g);
	OK(cudaGraphDestroy(g));
	if (rank)
		let_go();
	OK(cudaGraphLaunch(exec, st));
	mad(st, x, x, 2, 1);
	if (!rank) {
		do {
			OK(cudaMemcpyAsync(total, side, sizeof(total), cudaMemcpyDeviceToHost, by));
			OK(cudaStreamSynchronize(by));
		} while (memcmp(total, beside, sizeof(total)));
		IS(cudaStreamQuery(st), cudaErrorNotReady);
	}
	OK(cudaGraphExecDestroy(exec));
	if (!rank)
		let_go();
	host_sums(of, 5);
	for (int r = 0; r < ranks; r++)
		host_mad(of[r], of[r], 1, 5);
	host_sums(of, 2);
	host_mad(total, of[rank], 2, 1);
	OK(cudaStreamSynchronize(st));
	CHECK(x, total);
	CHECK(side, beside);
	OK(ncclCommDestroy(comm));
}

static uint32_t gate;

static void wait_for_gate(void *arg)
{
	(void)arg;
	while (!__atomic_load_n(&gate, __ATOMIC_ACQUIRE))
		usleep(1000);
}

/*
 * An operation waits for its own predecessors alone: what is beside these goes on when it has ended. There
 * are so many of them that both sets of breaks behind have one place in pieces.c's table.
 */
static void apart(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream(), by = stream();
	uint32_t *x = start(1);
	cudaGraphExec_t exec;
	array of[RANKS], is;

	host_start(of, 1);
	host_sums(of, 6);
	for (int r = 0; r < ranks; r++)
		host_mad(of[r], of[r], 3, r);
	host_sums(of, 7);
	capture(st);
	for (int k = 0; k < 6; k++)
		sum(comm, x, x, st);
	follow(by, st);
	OK(cudaLaunchHostFunc(by, wait_for_gate, NULL));
	mad(st, x, x, 3, rank);
	for (int k = 0; k < 7; k++)
		sum(comm, x, x, st);
	follow(st, by);
	exec = executable(captured(st));
	by = stream();
	OK(cudaGraphLaunch(exec, st));
	do {
		OK(cudaMemcpyAsync(is, x, sizeof(is), cudaMemcpyDeviceToHost, by));
		OK(cudaStreamSynchronize(by));
	} while (memcmp(is, of[rank], sizeof(is)));
	IS(cudaStreamQuery(st), cudaErrorNotReady);
	__atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
	OK(cudaStreamSynchronize(st));
	CHECK(x, of[rank]);
	OK(cudaGraphExecDestroy(exec));
	OK(ncclCommDestroy(comm));
}

/* ------------------------------------------------------------------------------ any graph */

#define STREAMS	5
#define SHARED	6			/* arrays that all ranks' operations use */
#define ARRAYS	(SHARED + 2)

struct hazards {
	cudaStream_t st[STREAMS];
	cudaEvent_t wrote[ARRAYS], read[ARRAYS][STREAMS];
};

static uint32_t dice(uint32_t *state, uint32_t n)
{
	*state = *state * 1664525 + 1013904223;
	return (*state >> 10) % n;
}

static void await(cudaStream_t st, cudaEvent_t e)
{
	if (e)
		OK(cudaStreamWaitEvent(st, e, 0));
}

/* Stream s is about to read one array and to write another one. */
static void before(struct hazards *h, int s, int from, int to)
{
	await(h->st[s], h->wrote[from]);
	await(h->st[s], h->wrote[to]);
	for (int k = 0; k < STREAMS; k++)
		await(h->st[s], h->read[to][k]);
}

static void after(struct hazards *h, int s, int from, int to)
{
	cudaEvent_t e;

	OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	OK(cudaEventRecord(e, h->st[s]));
	memset(h->read[to], 0, sizeof(h->read[to]));
	h->read[from][s] = e;
	h->wrote[to] = e;
}

struct random {
	struct hazards h;
	ncclComm_t comm[2];
	uint32_t *p[ARRAYS];
	array (*of)[RANKS];		/* each array's values, of all ranks */
	uint32_t ours, mine;		/* dice: the same on all ranks, and not */
};

/* The next operation: captured, or with no streams done on the host, for all ranks. */
static void step(struct random *r, bool host)
{
	uint32_t kind = dice(&r->ours, 3), from = dice(&r->ours, SHARED), to = dice(&r->ours, SHARED);
	uint32_t mul = dice(&r->ours, 100), own = dice(&r->mine, 2), s = dice(&r->mine, STREAMS);
	uint32_t t = dice(&r->mine, STREAMS), a = SHARED + dice(&r->mine, 2), add = dice(&r->mine, 9);

	if (host && kind == 2) {
		for (int k = 0; k < ranks; k++)
			host_mad(r->of[to][k], r->of[from][k], mul, kind);
	} else if (host) {
		host_sum(r->of[to][0], r->of[from]);
		for (int k = 1; k < ranks; k++)
			memcpy(r->of[to][k], r->of[to][0], sizeof(array));
	} else {
		before(&r->h, s, from, to);
		if (kind == 2)
			mad(r->h.st[s], r->p[to], r->p[from], mul, kind);
		else
			sum(r->comm[kind], r->p[to], r->p[from], r->h.st[s]);
		after(&r->h, s, from, to);
	}
	/* and one that only this rank has */
	if (own && host) {
		host_mad(r->of[a][rank], r->of[from][rank], 3, add);
	} else if (own) {
		before(&r->h, t, from, a);
		mad(r->h.st[t], r->p[a], r->p[from], 3, add);
		after(&r->h, t, from, a);
	}
}

/*
 * Graphs of random operations on random streams, which differ between the ranks; so do nodes of their own. The
 * host does the same in order.
 */
static void any(void)
{
	struct random r = { .comm = { world(0), world(1) } };
	array *of = malloc(ARRAYS * sizeof(*r.of));
	cudaGraphExec_t exec;
	uint32_t seed;

	r.of = (void *)of;
	for (int k = 0; k < STREAMS; k++)
		r.h.st[k] = stream();
	for (int a = 0; a < ARRAYS; a++) {
		host_start(r.of[a], a);
		r.p[a] = start(a);
	}
	for (seed = 0; seed < 12; seed++) {
		memset(r.h.wrote, 0, sizeof(r.h.wrote));
		memset(r.h.read, 0, sizeof(r.h.read));
		r.ours = seed;
		r.mine = seed * RANKS + rank;
		capture(r.h.st[0]);
		for (int k = 1; k < STREAMS; k++)
			follow(r.h.st[k], r.h.st[0]);
		for (int k = 0; k < 30; k++)
			step(&r, false);
		for (int k = 1; k < STREAMS; k++)
			follow(r.h.st[0], r.h.st[k]);
		exec = executable(captured(r.h.st[0]));
		for (int k = 0; k < 3; k++) {
			OK(cudaGraphLaunch(exec, r.h.st[k % 2]));
			r.ours = seed;
			r.mine = seed * RANKS + rank;
			for (int i = 0; i < 30; i++)
				step(&r, true);
		}
		OK(cudaGraphExecDestroy(exec));
		OK(cudaDeviceSynchronize());
		for (int a = 0; a < ARRAYS; a++)
			CHECK(r.p[a], r.of[a][rank]);
	}
	free(of);
	OK(ncclCommDestroy(r.comm[1]));
	OK(ncclCommDestroy(r.comm[0]));
}

/* A collective does not wait for a branch beside it; here the branch waits for the collective. */
static void beside(void)
{
	int (*write_value)(cudaStream_t, void *, uint32_t, unsigned) =
		dlsym(RTLD_DEFAULT, "cuStreamWriteValue32_v2");
	int (*wait_value)(cudaStream_t, void *, uint32_t, unsigned) =
		dlsym(RTLD_DEFAULT, "cuStreamWaitValue32_v2");
	ncclComm_t comm = world(0);
	cudaStream_t st = stream(), by = stream();
	uint32_t *x = start(1), *side = start(2), *word = start(3);
	array of[RANKS], total, want;
	cudaGraphExec_t exec;

	capture(st);
	mad(st, x, x, 3, rank);
	follow(by, st);
	mad(by, side, side, 1, 0);
	OK(wait_value(by, word, 1, 1));		/* equal */
	mad(by, side, side, 2, 1);
	mad(st, x, x, 1, 0);
	sum(comm, x, x, st);
	OK(write_value(st, word, 1, 0));
	follow(st, by);
	exec = executable(captured(st));
	host_start(of, 2);
	host_mad(want, of[rank], 1, 0);
	host_mad(want, want, 2, 1);
	host_start(of, 1);
	for (int r = 0; r < ranks; r++) {
		host_mad(of[r], of[r], 3, r);
		host_mad(of[r], of[r], 1, 0);
	}
	host_sum(total, of);
	OK(cudaMemset(word, 0, 4));
	OK(cudaDeviceSynchronize());
	OK(cudaGraphLaunch(exec, st));
	OK(cudaStreamSynchronize(st));
	CHECK(x, total);
	CHECK(side, want);
	OK(cudaGraphExecDestroy(exec));
	OK(ncclCommDestroy(comm));
}

static void count(void *to)
{
	__atomic_add_fetch((int *)to, 1, __ATOMIC_RELAXED);
}

/* Host functions, memory of the graph, pageable copies, events from outside, on both sides of collectives. */
static void mixed(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream(), after = stream();
	uint32_t *x = start(1), *temp;
	array of[RANKS], total, host = { 0 };
	cudaGraphExec_t exec;
	cudaEvent_t e;
	int calls[2] = { 0, 0 };

	host_start(of, 1);
	OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	capture(st);
	OK(cudaMallocAsync((void **)&temp, sizeof(array), st));
	mad(st, temp, x, 3, rank);
	OK(cudaLaunchHostFunc(st, count, &calls[0]));
	sum(comm, temp, temp, st);
	OK(cudaEventRecordWithFlags(e, st, cudaEventRecordExternal));
	OK(cudaMemcpyAsync(host, temp, sizeof(host), cudaMemcpyDeviceToHost, st));
	OK(cudaLaunchHostFunc(st, count, &calls[1]));
	OK(cudaMemcpyAsync(x, temp, sizeof(host), cudaMemcpyDeviceToDevice, st));
	sum(comm, x, x, st);
	OK(cudaFreeAsync(temp, st));
	exec = executable(captured(st));
	for (int k = 0; k < 5; k++) {
		if (rank == k % ranks)
			usleep(20000);
		OK(cudaGraphLaunch(exec, st));
		OK(cudaStreamWaitEvent(after, e, 0));
		OK(cudaStreamSynchronize(after));
		IS(__atomic_load_n(&calls[0], __ATOMIC_RELAXED), k + 1);
		OK(cudaStreamSynchronize(st));
		for (int r = 0; r < ranks; r++)
			host_mad(of[r], of[r], 3, r);
		host_sum(total, of);
		IS(memcmp(host, total, sizeof(total)), 0);
		for (int r = 0; r < ranks; r++)
			for (int i = 0; i < COUNT; i++)
				of[r][i] = total[i] * ranks;
		CHECK(x, of[rank]);
		IS(calls[1], k + 1);
	}
	OK(cudaGraphExecDestroy(exec));
	OK(ncclCommDestroy(comm));
}

/* A graph in a graph: as a node that is added, and by a launch that is captured. */
static void child(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream();
	uint32_t *x = start(1), *y = start(2);
	cudaGraphExec_t inner, exec;
	array of[RANKS], total;
	cudaGraphNode_t n[2];
	cudaGraph_t g, outer;

	host_start(of, 1);
	capture(st);
	mad(st, x, x, 3, rank);
	sum(comm, x, x, st);
	g = captured(st);
	inner = executable(g);
	capture(st);
	OK(cudaGraphLaunch(inner, st));
	mad(st, y, x, 1, 7);
	OK(cudaGraphLaunch(inner, st));
	outer = captured(st);
	OK(cudaGraphAddChildGraphNode(&n[0], outer, NULL, 0, g));
	OK(cudaGraphDestroyNode(n[0]));
	exec = executable(outer);
	OK(cudaGraphLaunch(exec, st));
	OK(cudaStreamSynchronize(st));
	for (int k = 0; k < 2; k++) {
		for (int r = 0; r < ranks; r++)
			host_mad(of[r], of[r], 3, r);
		host_sum(total, of);
		for (int r = 0; r < ranks; r++)
			memcpy(of[r], total, sizeof(total));
		if (!k) {
			host_mad(total, total, 1, 7);
			CHECK(y, total);
		}
	}
	CHECK(x, of[rank]);
	OK(cudaGraphExecDestroy(exec));
	OK(cudaGraphExecDestroy(inner));
	OK(ncclCommDestroy(comm));
}

/* ------------------------------------------------------------------------------ updates */

static cudaGraph_t changed(ncclComm_t comm, cudaStream_t st, uint32_t *x, uint32_t *y, uint32_t mul,
			   void *set)
{
	capture(st);
	mad(st, x, x, mul, rank);
	sum(comm, y, x, st);
	mad(st, y, y, mul, 1);
	OK(cudaMemsetAsync(set, mul, 4, st));
	return captured(st);
}

static void update(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream();
	uint32_t *x = start(1), *y = start(2), *z = start(3), *set = start(4);
	cudaGraphExecUpdateResultInfo info;
	cudaGraph_t g[4];
	array of[RANKS], total;
	cudaGraphExec_t exec;

	host_start(of, 1);
	g[0] = changed(comm, st, x, y, 3, set);
	g[1] = changed(comm, st, x, z, 5, set);
	g[2] = changed(comm, st, x, y, 7, (void *)0x1000);	/* its last node is refused */
	capture(st);
	mad(st, x, x, 1, 1);
	mad(st, x, x, 1, 1);
	mad(st, y, y, 1, 1);
	OK(cudaMemsetAsync(set, 1, 4, st));
	g[3] = captured(st);
	exec = executable(g[0]);
	OK(cudaGraphLaunch(exec, st));
	OK(cudaGraphExecUpdate(exec, g[1], &info));
	OK(cudaGraphLaunch(exec, st));
	IS(cudaGraphExecUpdate(exec, g[3], &info), cudaErrorGraphExecUpdateFailure);
	IS(info.result, cudaGraphExecUpdateErrorNodeTypeChanged);
	IS(cudaGraphExecUpdate(exec, g[2], &info), cudaErrorGraphExecUpdateFailure);
	OK(cudaGraphLaunch(exec, st));
	OK(cudaStreamSynchronize(st));
	for (int k = 0; k < 3; k++) {
		for (int r = 0; r < ranks; r++)
			host_mad(of[r], of[r], k ? 5 : 3, r);
		host_sum(total, of);
		host_mad(total, total, k ? 5 : 3, 1);
		if (!k)
			CHECK(y, total);
	}
	CHECK(z, total);
	CHECK(x, of[rank]);
	OK(cudaGraphExecDestroy(exec));
	OK(ncclCommDestroy(comm));
}

/* ------------------------------------------------------------------------------ what it looks like */

static void looks(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream(), other = stream();
	cudaKernelNodeAttrValue value = { .priority = -3 };
	struct cudaKernelNodeParams params;
	uint32_t *x = start(1);
	cudaGraphNode_t n[8], again;
	enum cudaGraphNodeType type;
	cudaGraphExec_t exec;
	cudaGraph_t g, copy;
	size_t count = 8;
	char path[4200];
	array of[RANKS], total;

	capture(st);
	OK(ncclAllReduce(x, x, 0, ncclUint32, ncclSum, comm, st));	/* is none */
	sum(comm, x, x, st);
	g = captured(st);
	OK(cudaGraphGetNodes(g, n, &count));
	IS(count, 1);
	OK(cudaGraphNodeGetType(n[0], &type));
	IS(type, cudaGraphNodeTypeKernel);
	IS(cudaGraphKernelNodeGetParams(n[0], &params), cudaErrorNotSupported);
	memset(&params, 0, sizeof(params));
	params.func = function;
	params.gridDim = params.blockDim = (dim3){ 1, 1, 1 };
	IS(!cudaGraphKernelNodeSetParams(n[0], &params), 0);
	/* XLA sets the priority of each node that looks like a kernel. */
	OK(cudaGraphKernelNodeSetAttribute(n[0], cudaLaunchAttributePriority, &value));
	IS(cudaGraphKernelNodeSetAttribute(n[0], cudaLaunchAttributeCooperative, &value),
	   cudaErrorNotSupported);
	snprintf(path, sizeof(path), "%s.dot.%d", id_file, rank);
	OK(cudaGraphDebugDotPrint(g, path, 0));
	OK(unlink(path));
	OK(cudaGraphClone(&copy, g));
	OK(cudaGraphNodeFindInClone(&again, n[0], copy));
	OK(cudaGraphDestroy(g));
	value.priority = 0;
	OK(cudaGraphKernelNodeGetAttribute(again, cudaLaunchAttributePriority, &value));
	IS(value.priority, -3);
	IS(cudaGraphKernelNodeGetAttribute(again, cudaLaunchAttributeCooperative, &value),
	   cudaErrorNotSupported);
	exec = executable(copy);
	IS(cudaGraphNodeSetEnabled(exec, again, 0), cudaErrorNotSupported);
	OK(cudaGraphUpload(exec, st));
	OK(cudaGraphLaunch(exec, st));
	OK(cudaStreamSynchronize(st));
	host_start(of, 1);
	host_sum(total, of);
	CHECK(x, total);
	/* streams of a group: either all of them are captured, or none */
	capture(st);
	OK(ncclGroupStart());
	sum(comm, x, x, st);
	sum(comm, x, x, other);
	IS(ncclGroupEnd(), ncclInvalidUsage);
	says("captured");
	cudaStreamEndCapture(st, &g);
	OK(cudaGraphExecDestroy(exec));
	OK(ncclCommDestroy(comm));
}

/* Bodies of conditional nodes have no collectives, however they come there. */
static void conditional(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream();
	uint32_t *x = start(1);
	struct cudaGraphNodeParams p = { .type = cudaGraphNodeTypeConditional };
	cudaGraphNode_t n, in;
	cudaGraphExec_t exec;
	cudaGraph_t g, inner, none;

	capture(st);
	sum(comm, x, x, st);
	inner = captured(st);
	OK(cudaGraphCreate(&g, 0));
	OK(cudaGraphConditionalHandleCreate(&p.conditional.handle, g, 1, cudaGraphCondAssignDefault));
	p.conditional.type = cudaGraphCondTypeIf;
	p.conditional.size = 1;
#if CUDART_VERSION >= 13000
	OK(cudaGraphAddNode(&n, g, NULL, NULL, 0, &p));
#else
	OK(cudaGraphAddNode(&n, g, NULL, 0, &p));
#endif
	OK(cudaStreamBeginCaptureToGraph(st, p.conditional.phGraph_out[0], NULL, NULL, 0,
					 cudaStreamCaptureModeThreadLocal));
	IS(ncclAllReduce(x, x, COUNT, ncclUint32, ncclSum, comm, st), ncclInvalidUsage);
	says("conditional");
	IS(!cudaStreamEndCapture(st, &none), 0);
	OK(cudaGraphAddChildGraphNode(&in, p.conditional.phGraph_out[0], NULL, 0, inner));
	IS(cudaGraphInstantiateWithFlags(&exec, g, 0), cudaErrorNotSupported);
	cudaGetLastError();
	OK(cudaDeviceSynchronize());
	OK(ncclCommDestroy(comm));
}

/* Deep and wide graphs, and what is too deep or too wide. */
static void limits(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream(), on[65];
	uint32_t *x = start(1);
	array of[RANKS];
	cudaGraphExec_t exec;
	cudaGraph_t g;

	for (int deep = 300; deep <= 4097; deep += 3797) {
		capture(st);
		for (int k = 0; k < deep; k++) {
			OK(ncclBroadcast(x, x, 1, ncclUint32, k % ranks, comm, st));
			if (deep == 300)
				mad(st, x, x, 1, rank);
		}
		g = captured(st);
		if (deep == 300) {
			exec = executable(g);
			OK(cudaGraphLaunch(exec, st));
			OK(cudaStreamSynchronize(st));
			OK(cudaGraphExecDestroy(exec));
		} else {
			IS(cudaGraphInstantiateWithFlags(&exec, g, 0), cudaErrorNotSupported);
			cudaGetLastError();
		}
		OK(cudaGraphDestroy(g));
	}
	host_start(of, 1);
	for (int k = 0; k < 300; k++) {
		for (int r = 0; r < ranks; r++)
			of[r][0] = of[k % ranks][0];
		for (int r = 0; r < ranks; r++)
			host_mad(of[r], of[r], 1, r);
	}
	CHECK(x, of[rank]);
	for (int k = 0; k < 65; k++)
		on[k] = stream();
	for (int wide = 64; wide <= 65; wide++) {
		uint32_t *many;

		OK(cudaMalloc((void **)&many, wide * 4));
		OK(cudaMemset(many, 0, wide * 4));
		OK(cudaDeviceSynchronize());
		capture(st);
		for (int k = 0; k < wide; k++)
			follow(on[k], st);
		for (int k = 0; k < wide; k++)
			OK(ncclAllReduce(x, many + k, 1, ncclUint32, ncclMax, comm, on[k]));
		for (int k = 0; k < wide; k++)
			follow(st, on[k]);
		g = captured(st);
		if (wide == 64) {
			exec = executable(g);
			OK(cudaGraphLaunch(exec, st));
			OK(cudaStreamSynchronize(st));
			OK(cudaMemcpy(of, many, 4 * wide, cudaMemcpyDeviceToHost));
			for (int k = 1; k < wide; k++)
				IS(of[0][k], of[0][0]);
			IS(!of[0][0], 0);
			OK(cudaGraphExecDestroy(exec));
		} else {
			IS(cudaGraphInstantiateWithFlags(&exec, g, 0), cudaErrorNotSupported);
			cudaGetLastError();
		}
		OK(cudaGraphDestroy(g));
		OK(cudaFree(many));
	}
	OK(ncclCommDestroy(comm));
}

/* Two threads launch one graph, each in a stream of its own: its launches do not mix. */
static struct {
	cudaGraphExec_t exec;
	cudaStream_t st[2];
} shared;

static void *launches(void *st)
{
	for (int k = 0; k < 50; k++)
		OK(cudaGraphLaunch(shared.exec, (cudaStream_t)st));
	return NULL;
}

static void threads(void)
{
	ncclComm_t comm = world(0);
	uint32_t *x = start(1);
	array of[RANKS], total;
	pthread_t t[2];

	for (int k = 0; k < 2; k++)
		shared.st[k] = stream();
	capture(shared.st[0]);
	mad(shared.st[0], x, x, 3, rank);
	sum(comm, x, x, shared.st[0]);
	mad(shared.st[0], x, x, 1, 1);
	shared.exec = executable(captured(shared.st[0]));
	for (int k = 0; k < 2; k++)
		OK(pthread_create(&t[k], NULL, launches, shared.st[k]));
	for (int k = 0; k < 2; k++)
		OK(pthread_join(t[k], NULL));
	host_start(of, 1);
	for (int k = 0; k < 100; k++) {
		for (int r = 0; r < ranks; r++)
			host_mad(of[r], of[r], 3, r);
		host_sum(total, of);
		host_mad(total, total, 1, 1);
		for (int r = 0; r < ranks; r++)
			memcpy(of[r], total, sizeof(total));
	}
	OK(cudaDeviceSynchronize());
	CHECK(x, total);
	OK(cudaGraphExecDestroy(shared.exec));
	OK(ncclCommDestroy(comm));
}

/* ------------------------------------------------------------------------------ failures */

static ncclResult_t async_error(ncclComm_t comm)
{
	ncclResult_t rc = ncclSuccess;

	for (int i = 0; i < 5000 && !rc; i++) {
		OK(ncclCommGetAsyncError(comm, &rc));
		usleep(1000);
	}
	return rc;
}

/* An abort in the middle of launches ends them; what is launched after the communicator's end is an error. */
static void aborted(void)
{
	ncclComm_t comm = world(0), other = world(1);
	cudaStream_t st = stream();
	uint32_t *x = start(1), *y = start(2);
	cudaGraphExec_t exec, alone;

	capture(st);
	mad(st, x, x, 1, 1);
	sum(comm, x, x, st);
	mad(st, x, x, 1, 1);
	sum(comm, x, x, st);
	exec = executable(captured(st));
	capture(st);
	sum(other, y, y, st);
	alone = executable(captured(st));
	OK(cudaGraphLaunch(alone, st));
	OK(cudaGraphLaunch(exec, st));
	OK(cudaStreamSynchronize(st));
	if (!rank) {
		OK(cudaGraphLaunch(exec, st));
		OK(cudaGraphLaunch(exec, st));
		IS(cudaStreamQuery(st), cudaErrorNotReady);
		OK(ncclCommAbort(comm));
		let_go();
		OK(cudaStreamSynchronize(st));
		IS(cudaGraphLaunch(exec, st), cudaErrorInvalidResourceHandle);
	} else {
		cudaError_t rc;

		let_go();
		rc = cudaGraphLaunch(exec, st);
		IS(!rc || rc == cudaErrorExternalDevice, 1);
		IS(cudaStreamSynchronize(st), rc ? cudaSuccess : cudaErrorExternalDevice);
		IS(async_error(comm), ncclRemoteError);
		IS(cudaGraphLaunch(exec, st), cudaErrorExternalDevice);
		OK(ncclCommAbort(comm));
		IS(cudaGraphLaunch(exec, st), cudaErrorInvalidResourceHandle);
	}
	/* another graph, whose communicator stands; and then goes */
	OK(cudaGraphLaunch(alone, st));
	OK(cudaGraphExecDestroy(exec));
	OK(ncclCommDestroy(other));
	OK(cudaStreamSynchronize(st));
	IS(cudaGraphLaunch(alone, st), cudaErrorInvalidResourceHandle);
	other = world(2);		/* reuses its memory */
	IS(cudaGraphLaunch(alone, st), cudaErrorInvalidResourceHandle);
	OK(ncclCommDestroy(other));
	OK(cudaGraphExecDestroy(alone));
	OK(cudaDeviceSynchronize());
}

/* Rank 1 dies while the others have launched. */
static void dies(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream();
	uint32_t *x = start(1);
	cudaGraphExec_t exec;
	cudaError_t rc;

	capture(st);
	for (int k = 0; k < 5; k++) {
		sum(comm, x, x, st);
		mad(st, x, x, 1, 1);
	}
	exec = executable(captured(st));
	OK(cudaGraphLaunch(exec, st));
	OK(cudaStreamSynchronize(st));
	if (rank == 1)
		_exit(3);
	rc = cudaGraphLaunch(exec, st);
	IS(!rc || rc == cudaErrorExternalDevice, 1);
	IS(cudaStreamSynchronize(st), rc ? cudaSuccess : cudaErrorExternalDevice);
	IS(async_error(comm), ncclRemoteError);
	IS(cudaGraphLaunch(exec, st), cudaErrorExternalDevice);
	OK(ncclCommAbort(comm));
	OK(cudaStreamSynchronize(st));
	OK(cudaGraphExecDestroy(exec));
	printf("rank %d has heard of it\n", rank);
}

/* A graph that allocates memory, and does not free it. */
static uint32_t *graph_memory(cudaStream_t st)
{
	cudaGraphExec_t exec;
	cudaGraph_t g;
	void *p;

	capture(st);
	OK(cudaMallocAsync(&p, sizeof(array), st));
	OK(cudaMemsetAsync(p, 1, sizeof(array), st));
	g = captured(st);
	exec = executable(g);
	OK(cudaGraphDestroy(g));
	OK(cudaGraphLaunch(exec, st));
	OK(cudaGraphExecDestroy(exec));
	return p;
}

/* One that frees it again, and ends. */
static void short_lived(cudaStream_t st)
{
	cudaGraphExec_t exec;
	cudaGraph_t g;
	void *p;

	capture(st);
	OK(cudaMallocAsync(&p, sizeof(array), st));
	OK(cudaMemsetAsync(p, 1, sizeof(array), st));
	OK(cudaFreeAsync(p, st));
	g = captured(st);
	exec = executable(g);
	OK(cudaGraphDestroy(g));
	OK(cudaGraphLaunch(exec, st));
	OK(cudaGraphExecDestroy(exec));
}

#define STANDS(x)	IS(x, cudaErrorExternalDevice)

/*
 * A graph without collectives records an event, another one waits for one: behind an all-reduce for which rank 0 is late,
 * what depends on these waits for it; behind one that fails, it fails.
 */
static void outside(void)
{
	ncclComm_t comm = world(0);
	cudaStream_t st = stream(), by = stream(), third = stream();
	uint32_t *x = start(1), *y = start(2), *z = start(3), *memory, *freed, *fresh;
	cudaGraphExec_t records, waits;
	array of[RANKS], total, want;
	static array pageable;
	cudaEvent_t e, f;

	OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	OK(cudaEventCreateWithFlags(&f, cudaEventDisableTiming));
	capture(st);
	mad(st, x, x, 3, 1);
	OK(cudaEventRecordWithFlags(e, st, cudaEventRecordExternal));
	records = executable(captured(st));
	capture(third);
	OK(cudaStreamWaitEvent(third, f, cudaEventWaitExternal));
	mad(third, y, x, 1, 0);
	waits = executable(captured(third));
	host_start(of, 1);
	host_sum(total, of);
	host_mad(want, total, 3, 1);
	if (!rank)
		usleep(300000);
	sum(comm, x, x, st);
	OK(cudaGraphLaunch(records, st));
	OK(cudaStreamWaitEvent(by, e, 0));
	OK(cudaMemcpyAsync(z, x, sizeof(array), cudaMemcpyDeviceToDevice, by));
	OK(cudaEventRecord(f, by));
	OK(cudaGraphLaunch(waits, third));
	OK(cudaStreamSynchronize(third));
	CHECK(z, want);
	host_mad(total, want, 1, 0);
	CHECK(y, total);

	memory = graph_memory(st);
	freed = graph_memory(st);
	OK(ncclAllReduce(x, x, COUNT - (rank == 1), ncclUint32, ncclSum, comm, st));
	OK(cudaMemsetAsync(freed, 5, sizeof(array), st));
	OK(cudaGraphLaunch(records, st));
	OK(cudaStreamWaitEvent(by, e, 0));
	OK(cudaEventRecord(f, by));
	OK(cudaGraphLaunch(waits, third));
	for (int k = 0; k < 2; k++) {
		STANDS(cudaStreamSynchronize(st));
		STANDS(cudaStreamSynchronize(by));
		STANDS(cudaStreamSynchronize(third));
		STANDS(cudaEventSynchronize(e));
		STANDS(cudaEventSynchronize(f));
		STANDS(cudaMemcpyAsync(pageable, x, sizeof(array), cudaMemcpyDeviceToHost, third));
		STANDS(cudaFree(memory));
	}
	short_lived(st);
	OK(cudaFreeAsync(freed, st));
	fresh = start(4);
	cudaGetLastError();
	for (int i = 0; i < COUNT; i++)
		OK(pageable[i]);
	sleep(1);	/* until all know, who would hear of the abort else */
	OK(ncclCommAbort(comm));
	OK(cudaStreamSynchronize(third));
	OK(cudaEventSynchronize(e));
	OK(cudaFree(memory));
	OK(cudaDeviceSynchronize());
	host_start(of, 4);
	CHECK(fresh, of[rank]);		/* it is not the memory of what ran just now */
	OK(cudaGraphExecDestroy(records));
	OK(cudaGraphExecDestroy(waits));
}

static const struct {
	const char *name;
	void (*fn)(void);
} tests[] = {
	{ "replay", replay }, { "many", many }, { "late", late }, { "apart", apart }, { "any", any }, { "beside", beside }, { "mixed", mixed }, { "child", child },
	{ "update", update }, { "looks", looks }, { "conditional", conditional },
	{ "limits", limits }, { "threads", threads },
	{ "aborted", aborted }, { "dies", dies }, { "outside", outside },
};

int main(int argc, char **argv)
{
	begin(argc, argv);
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (argc == 3 && !strcmp(argv[2], tests[i].name)) {
			load();
			tests[i].fn();
			return 0;
		}
	return 2;
}
