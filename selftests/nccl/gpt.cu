// SPDX-License-Identifier: Apache-2.0
/*
 * gpt.cu - the GPT of jobs/programs/gpt.cuh trained by several ranks: gpt FILE DATA TENSOR PIPELINE [OPTION…]
 *
 * DATA x TENSOR x PIPELINE ranks. Each step has --micro batches of --batch sequences for each rank of DATA.
 * Heads and the MLP's columns are divided between TENSOR ranks, which sum what they have in every layer; layers
 * are divided between PIPELINE ranks, which send activations and their gradients. Gradients are averaged over the
 * DATA ranks, bucket by bucket on a second stream while the backward pass goes on; with --shard they are
 * scattered, each rank updates its part of the weights, and all gather these.
 *
 * With --free 1 the memory of activations, gradients and data is one allocation for each step, which ends with it;
 * with --free 2 it is one for each tensor, in stream order.
 *
 * With --exchange 1 a step is the sums of gradients over the DATA ranks alone.
 *
 * GPT_PAUSE in the environment is a file's name: until that is there, each rank sleeps for 0.2 s after a step.
 *
 * Without RANK in the environment all ranks are threads of one process on one device. Their collectives are
 * computed by hand, on the host, in the order of additions that docs/collectives.md gives: the same bits must come
 * out. Rank 0 of the last stage prints the losses, every rank a checksum of its weights.
 */
#include "ranks.h"
#undef EXPECT			/* job.cuh has another */
#include "../jobs/programs/gpt.cuh"

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

/* ---- communicators, as one rank sees them ---- */

struct team {
	int n = 1, me = 0;

	virtual ~team() {}
	virtual void sum(float *p, size_t len, bool average, cudaStream_t s) = 0;
	/* p has n parts of len; mine is the reduced one, in place */
	virtual void scatter_average(float *p, size_t len, cudaStream_t s) = 0;
	virtual void gather(float *p, size_t len, cudaStream_t s) = 0;
	virtual void send(const float *p, size_t len, int to, cudaStream_t s) = 0;
	virtual void receive(float *p, size_t len, int from, cudaStream_t s) = 0;
};

struct nccl_team : team {
	ncclComm_t comm = NULL;

	nccl_team(ncclComm_t parent, int color, int key)
	{
		OK(ncclCommSplit(parent, color, key, &comm, NULL));
		OK(ncclCommCount(comm, &n));
		OK(ncclCommUserRank(comm, &me));
	}
	~nccl_team()
	{
		OK(ncclCommDestroy(comm));
	}
	void sum(float *p, size_t len, bool average, cudaStream_t s) override
	{
		OK(ncclAllReduce(p, p, len, ncclFloat, average ? ncclAvg : ncclSum, comm, s));
	}
	void scatter_average(float *p, size_t len, cudaStream_t s) override
	{
		OK(ncclReduceScatter(p, p + me * len, len, ncclFloat, ncclAvg, comm, s));
	}
	void gather(float *p, size_t len, cudaStream_t s) override
	{
		OK(ncclAllGather(p + me * len, p, len, ncclFloat, comm, s));
	}
	void send(const float *p, size_t len, int to, cudaStream_t s) override
	{
		OK(ncclSend(p, len, ncclFloat, to, comm, s));
	}
	void receive(float *p, size_t len, int from, cudaStream_t s) override
	{
		OK(ncclRecv(p, len, ncclFloat, from, comm, s));
	}
};

/* What the threads of a team share. */
struct table {
	std::mutex lock;
	std::condition_variable changed;
	int waiting = 0, turn = 0;
	std::vector<std::vector<float>> leaf;
	std::map<std::pair<int, int>, std::deque<std::vector<float>>> sent;

	void meet()
	{
		std::unique_lock<std::mutex> l(lock);
		int now = turn;

		if (++waiting == (int)leaf.size()) {
			waiting = 0;
			turn++;
			changed.notify_all();
		}
		changed.wait(l, [&] { return turn != now; });
	}
	/* The sum over ranks lo … hi-1, split at the largest power of two below their number. */
	float node(size_t i, int lo, int hi) const
	{
		int mid = 1;

		if (hi - lo == 1)
			return leaf[lo][i];
		while (2 * mid < hi - lo)
			mid *= 2;
		return node(i, lo, lo + mid) + node(i, lo + mid, hi);
	}
};

struct thread_team : team {
	table &t;

	thread_team(table &shared, int rank) : t(shared)
	{
		n = t.leaf.size();
		me = rank;
	}
	static std::vector<float> take(const float *p, size_t len, cudaStream_t s)
	{
		std::vector<float> v(len);

		CHECK(cudaMemcpyAsync(v.data(), p, len * sizeof(float), cudaMemcpyDeviceToHost, s));
		CHECK(cudaStreamSynchronize(s));
		return v;
	}
	static void give(float *p, const std::vector<float> &v, cudaStream_t s)
	{
		CHECK(cudaMemcpyAsync(p, v.data(), v.size() * sizeof(float), cudaMemcpyHostToDevice, s));
		CHECK(cudaStreamSynchronize(s));
	}
	void reduce(float *p, size_t all, size_t from, size_t len, bool average, cudaStream_t s)
	{
		std::vector<float> out(len);

		t.leaf[me] = take(p, all, s);
		t.meet();
		for (size_t i = 0; i < len; i++) {
			out[i] = t.node(from + i, 0, n);
			if (average)
				out[i] /= n;
		}
		t.meet();
		give(p + from, out, s);
	}
	void sum(float *p, size_t len, bool average, cudaStream_t s) override
	{
		reduce(p, len, 0, len, average, s);
	}
	void scatter_average(float *p, size_t len, cudaStream_t s) override
	{
		reduce(p, n * len, me * len, len, true, s);
	}
	void gather(float *p, size_t len, cudaStream_t s) override
	{
		t.leaf[me] = take(p + me * len, len, s);
		t.meet();
		for (int r = 0; r < n; r++)
			give(p + r * len, t.leaf[r], s);
		t.meet();
	}
	void send(const float *p, size_t len, int to, cudaStream_t s) override
	{
		std::vector<float> v = take(p, len, s);
		std::lock_guard<std::mutex> l(t.lock);

		t.sent[{ me, to }].push_back(v);
		t.changed.notify_all();
	}
	void receive(float *p, size_t len, int from, cudaStream_t s) override
	{
		std::unique_lock<std::mutex> l(t.lock);
		auto &queue = t.sent[{ from, me }];

		t.changed.wait(l, [&] { return !queue.empty(); });
		std::vector<float> v = queue.front();
		queue.pop_front();
		l.unlock();
		EXPECT_EQ(v.size(), len);
		give(p, v, s);
	}
};

/* ---- a rank ---- */

struct config {
	int data = 1, tensor = 1, pipeline = 1, shard = 0, free = 0, exchange = 0;
	int layers = 2, dim = 32, ctx = 16, batch = 1, micro = 1, steps = 8;
	float lr = 3e-3f;
};

struct place {
	int d, t, p;		/* its rank of each kind */
	std::unique_ptr<team> data, tensor, pipeline, model;
};

struct tensor {
	size_t at, n;
	bool divided;		/* between ranks of TENSOR */
};

/* Gradients that are complete together, and their part of all weights. */
struct bucket {
	size_t from, n;
};

__global__ void accumulate(float *sum, const float *g, int n, bool first)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		sum[i] = first ? g[i] : sum[i] + g[i];
}

/* What counts for the norm: of what several ranks have, one counts it. */
__global__ void counted(const float *g, const float *mask, float *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		out[i] = g[i] * mask[i];
}

struct trainer : math {
	const config &c;
	place &at;
	const text &t;
	int V, n, own, wide, first_layer, nlayers;	/* own: floats of my heads in a row */
	bool is_first, is_last;
	std::vector<tensor> tensors;	/* PER_LAYER of each layer, then wte wpe lnfw lnfb head */
	std::vector<bucket> layer_buckets;
	bucket end_bucket, begin_bucket;
	size_t total = 0, part;
	std::vector<float> init, mask_host;
	float *w, *g, *acc, *m, *v, *mask, *tmp, *norm2, *loss, *loss_acc;
	std::vector<std::vector<activations>> acts;	/* by micro-batch and layer */
	std::vector<float *> lasts;
	float *lnf, *meanf, *rstdf, *losses, *dln, *dbig, *dot;
	std::vector<float *> logits, lnfs, meanfs, rstdfs;
	int *tok, *want, *pinned;
	char *block = NULL;		/* --free: a step's memory */
	size_t block_used = 0;
	std::vector<void *> brief;
	cudaStream_t beside;		/* of the buckets' all-reduces */
	cudaEvent_t ready, reduced;

	trainer(const config &cfg, place &here, const text &txt);
	~trainer();
	bucket layout();
	float *piece(size_t n);
	void place_tensors();
	void allocate();
	void release();
	void add(int kind, int layer, int rows, int cols, bool by_rows, int parts, float fill);
	float *of(float *all, int l, int i) { return all + tensors[l * PER_LAYER + i].at; }
	float *end_of(float *all, int i) { return all + tensors[nlayers * PER_LAYER + i].at; }
	void load(int step);
	void forward(int mb);
	void backward(int mb);
	void backward_layer(int mb, int l);
	void complete(int mb, const bucket &b);
	void exchange();
	void update(int step);
	float step(int k);
};

enum { WTE, WPE, LNFW, LNFB, HEADW };

/*
 * Takes my part of a tensor that all ranks draw alike: of rows or of columns, of which there are `parts`
 * side by side (3: queries, keys, values). fill: its value, or NAN to draw.
 */
void trainer::add(int kind, int layer, int rows, int cols, bool by_rows, int parts, float fill)
{
	int of = parts ? c.tensor : 1, mine = parts ? at.t : 0;
	int r0 = 0, r1 = rows, width = cols / (parts ?: 1), share = width;
	float scale = kind == PROJW || kind == OUTW ? 1 / sqrtf(2.0f * c.layers) : 1;
	unsigned int seed = 1 + 7919 * (layer * 32 + kind);

	if (by_rows) {
		r0 = rows / of * mine;
		r1 = r0 + rows / of;
	} else {
		share = width / of;
	}
	tensors.push_back({ init.size(), 0, parts != 0 });
	for (int r = 0; r < rows; r++)
		for (int i = 0; i < cols; i++) {
			float x = isnan(fill) ? rndf(&seed) * 0.06f * scale : fill;

			if (r < r0 || r >= r1 || (!by_rows && i % width / share != mine && parts))
				continue;
			init.push_back(x);
			mask_host.push_back(parts || !at.t ? 1 : 0);
		}
	tensors.back().n = init.size() - tensors.back().at;
}

/* My tensors, in the order of the forward pass but for the first and the last ones. */
bucket trainer::layout()
{
	int C = c.dim;

	for (int l = first_layer; l < first_layer + nlayers; l++) {
		size_t from = init.size();

		add(LN1W, l, 1, C, false, 0, 1);
		add(LN1B, l, 1, C, false, 0, 0);
		add(QKVW, l, C, 3 * C, false, 3, NAN);
		add(QKVB, l, 1, 3 * C, false, 3, 0);
		add(PROJW, l, C, C, true, 1, NAN);
		add(PROJB, l, 1, C, false, 0, 0);
		add(LN2W, l, 1, C, false, 0, 1);
		add(LN2B, l, 1, C, false, 0, 0);
		add(FCW, l, C, 4 * C, false, 1, NAN);
		add(FCB, l, 1, 4 * C, false, 1, 0);
		add(OUTW, l, 4 * C, C, true, 1, NAN);
		add(OUTB, l, 1, C, false, 0, 0);
		layer_buckets.push_back({ from, init.size() - from });
	}
	begin_bucket.from = init.size();
	add(20, 0, is_first ? V : 0, C, false, 0, NAN);
	add(21, 0, is_first ? c.ctx : 0, C, false, 0, NAN);
	begin_bucket.n = init.size() - begin_bucket.from;
	end_bucket.from = init.size();
	add(22, 0, is_last ? 1 : 0, C, false, 0, 1);
	add(23, 0, is_last ? 1 : 0, C, false, 0, 0);
	add(24, 0, is_last ? C : 0, V, false, 0, NAN);
	end_bucket.n = init.size() - end_bucket.from;
	return { 0, init.size() };
}

trainer::trainer(const config &cfg, place &here, const text &txt) : c(cfg), at(here), t(txt)
{
	V = t.letters.size();
	n = c.batch * c.ctx;
	dim = c.dim;
	own = c.dim / c.tensor;
	wide = 4 * c.dim / c.tensor;
	nlayers = c.layers / c.pipeline;
	first_layer = at.p * nlayers;
	is_first = !at.p;
	is_last = at.p == c.pipeline - 1;
	total = layout().n;
	part = (total + c.data - 1) / c.data;
	init.resize(part * c.data);
	w = room(init.size());
	CHECK(cudaMemcpy(w, init.data(), init.size() * sizeof(float), cudaMemcpyHostToDevice));
	mask = to_device(mask_host);
	acc = room(init.size());
	m = room(init.size());
	v = room(init.size());
	loss_acc = room(1);
	norm2 = room(1);
	CHECK(cudaMallocHost(&pinned, 2 * c.micro * n * sizeof(int)));
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
	CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
	CHECK(cudaEventCreateWithFlags(&reduced, cudaEventDisableTiming));
	if (!c.free)
		allocate();
	CHECK(cudaDeviceSynchronize());
}

/* Memory for n floats until the step's end, if that is asked for. */
float *trainer::piece(size_t n)
{
	void *p = block + block_used;

	if (!c.free)
		return room(n);
	block_used += (n * sizeof(float) + 255) & ~(size_t)255;
	if (c.free > 1 && block) {
		CHECK(cudaMallocAsync(&p, n * sizeof(float), s));
		brief.push_back(p);
	}
	return (float *)p;
}

void trainer::place_tensors()
{
	int C = dim;

	acts.clear();
	for (auto *v : { &lasts, &logits, &lnfs, &meanfs, &rstdfs })
		v->clear();
	g = piece(init.size());
	tmp = piece(init.size());
	for (int k = 0; k < c.micro; k++) {
		acts.emplace_back();
		for (int l = 0; l < nlayers; l++)
			acts[k].push_back({ piece(n * C), piece(n * C), piece(n), piece(n), piece(n * 3 * own),
					    piece(n * own), piece(n * own / HEAD), piece(n * C), piece(n * C),
					    piece(n), piece(n), piece(n * wide), piece(n * wide) });
		lasts.push_back(piece(n * C));
		logits.push_back(piece(n * V));
		lnfs.push_back(piece(n * C));
		meanfs.push_back(piece(n));
		rstdfs.push_back(piece(n));
	}
	losses = piece(n);
	loss = piece(1);
	dx = piece(n * C);
	dtmp = piece(n * C);
	dln = piece(n * C);
	dbig = piece(n * std::max(wide, 3 * own));
	dot = piece(n * own / HEAD);
	tok = (int *)piece(c.micro * n);
	want = (int *)piece(c.micro * n);
}

/* What a step needs and leaves to nobody. */
void trainer::allocate()
{
	if (c.free) {
		block = NULL;
		block_used = 0;
		place_tensors();	/* how long the block is */
		if (c.free > 1)
			block = (char *)1;
		else
			CHECK(cudaMalloc(&block, block_used));
		block_used = 0;
	}
	place_tensors();
}

void trainer::release()
{
	for (void *p : brief)
		CHECK(cudaFreeAsync(p, s));
	brief.clear();
	if (c.free == 1)
		CHECK(cudaFree(block));
	else if (c.free)
		CHECK(cudaStreamSynchronize(s));
}

trainer::~trainer()
{
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaStreamDestroy(beside));
	CHECK(cudaEventDestroy(ready));
	CHECK(cudaEventDestroy(reduced));
}

/* The step's sequences are the same for any number of ranks; mine are those of my rank of DATA. */
void trainer::load(int step)
{
	unsigned int seed = 1 + 7919 * step;
	int T = c.ctx, per = c.micro * c.batch;

	CHECK(cudaStreamSynchronize(s));
	for (int b = 0; b < c.data * per; b++) {
		int from = rnd(&seed) % (t.data.size() - T - 1), mine = b - at.d * per;

		for (int i = 0; i < T && mine >= 0 && mine < per; i++) {
			pinned[mine * T + i] = t.data[from + i];
			pinned[c.micro * n + mine * T + i] = t.data[from + i + 1];
		}
	}
	CHECK(cudaMemcpyAsync(tok, pinned, c.micro * n * sizeof(int), cudaMemcpyHostToDevice, s));
	CHECK(cudaMemcpyAsync(want, pinned + c.micro * n, c.micro * n * sizeof(int),
			      cudaMemcpyHostToDevice, s));
}

void trainer::forward(int mb)
{
	int T = c.ctx, C = c.dim;
	float scale = 1.0f / sqrtf(HEAD);
	bool adds = !at.t;	/* bias and residual, once in the sum of all */

	if (is_first)
		embed<<<blocks(n * C, 256), 256, 0, s>>>(tok + mb * n, end_of(w, WTE), end_of(w, WPE),
							 acts[mb][0].in, n, T, C);
	else
		at.pipeline->receive(acts[mb][0].in, n * C, at.p - 1, s);
	for (int l = 0; l < nlayers; l++) {
		activations &a = acts[mb][l];
		float *out = l + 1 < nlayers ? acts[mb][l + 1].in : lasts[mb];

		norm(a.in, of(w, l, LN1W), of(w, l, LN1B), a.ln1, a.mean1, a.rstd1, n);
		matmul(a.ln1, of(w, l, QKVW), a.qkv, of(w, l, QKVB), NULL, n, 3 * own, C);
		attention<<<c.batch * (own / HEAD), T, 0, s>>>(a.qkv, a.att, a.lse, T, own, scale);
		matmul(a.att, of(w, l, PROJW), a.mid, adds ? of(w, l, PROJB) : NULL, adds ? a.in : NULL,
		       n, C, own);
		if (c.tensor > 1)
			at.tensor->sum(a.mid, n * C, false, s);
		norm(a.mid, of(w, l, LN2W), of(w, l, LN2B), a.ln2, a.mean2, a.rstd2, n);
		matmul(a.ln2, of(w, l, FCW), a.fc, of(w, l, FCB), NULL, n, wide, C);
		gelu<<<blocks(n * wide, 256), 256, 0, s>>>(a.fc, a.act, n * wide);
		matmul(a.act, of(w, l, OUTW), out, adds ? of(w, l, OUTB) : NULL, adds ? a.mid : NULL, n,
		       C, wide);
		if (c.tensor > 1)
			at.tensor->sum(out, n * C, false, s);
	}
	if (!is_last) {
		at.pipeline->send(lasts[mb], n * C, at.p + 1, s);
		return;
	}
	norm(lasts[mb], end_of(w, LNFW), end_of(w, LNFB), lnfs[mb], meanfs[mb], rstdfs[mb], n);
	matmul(lnfs[mb], end_of(w, HEADW), logits[mb], NULL, NULL, n, V, C);
	cross_entropy<<<blocks(n, 8), 256, 0, s>>>(logits[mb], want + mb * n, losses, n, V, true,
						   n * c.micro);
	sum_all<false><<<1, 256, 0, s>>>(losses, loss, n);
	accumulate<<<1, 1, 0, s>>>(loss_acc, loss, 1, !mb);
}

/* A micro-batch's gradients of some weights are complete; after the last one they are averaged, on the other stream. */
void trainer::complete(int mb, const bucket &b)
{
	accumulate<<<blocks(b.n, 256), 256, 0, s>>>(acc + b.from, g + b.from, b.n, !mb);
	if (mb < c.micro - 1 || c.data == 1 || c.shard)
		return;
	CHECK(cudaEventRecord(ready, s));
	CHECK(cudaStreamWaitEvent(beside, ready, 0));
	at.data->sum(acc + b.from, b.n, true, beside);
}

void trainer::backward_layer(int mb, int l)
{
	int T = c.ctx, C = c.dim;
	float scale = 1.0f / sqrtf(HEAD);
	activations &a = acts[mb][l];

	matmul_back(dx, a.act, of(w, l, OUTW), dbig, of(g, l, OUTW), of(g, l, OUTB), n, C, wide);
	gelu_back<<<blocks(n * wide, 256), 256, 0, s>>>(a.fc, dbig, n * wide);
	matmul_back(dbig, a.ln2, of(w, l, FCW), dln, of(g, l, FCW), of(g, l, FCB), n, wide, C);
	if (c.tensor > 1)
		at.tensor->sum(dln, n * C, false, s);
	norm_back(dln, a.mid, of(w, l, LN2W), a.mean2, a.rstd2, of(g, l, LN2W), of(g, l, LN2B), n);
	matmul_back(dx, a.att, of(w, l, PROJW), dln, of(g, l, PROJW), of(g, l, PROJB), n, C, own);
	attention_back_q<<<c.batch * (own / HEAD), T, 0, s>>>(a.qkv, a.att, dln, a.lse, dbig, dot, T,
							     own, scale);
	attention_back_kv<<<c.batch * (own / HEAD), T, 0, s>>>(a.qkv, dln, a.lse, dot, dbig, T, own,
							      scale);
	matmul_back(dbig, a.ln1, of(w, l, QKVW), dln, of(g, l, QKVW), of(g, l, QKVB), n, 3 * own, C);
	if (c.tensor > 1)
		at.tensor->sum(dln, n * C, false, s);
	norm_back(dln, a.in, of(w, l, LN1W), a.mean1, a.rstd1, of(g, l, LN1W), of(g, l, LN1B), n);
}

void trainer::backward(int mb)
{
	int T = c.ctx, C = c.dim;

	if (is_last) {
		matmul_back(logits[mb], lnfs[mb], end_of(w, HEADW), dln, end_of(g, HEADW), NULL, n, V, C);
		CHECK(cudaMemsetAsync(dx, 0, n * C * sizeof(float), s));
		norm_back(dln, lasts[mb], end_of(w, LNFW), meanfs[mb], rstdfs[mb], end_of(g, LNFW),
			  end_of(g, LNFB), n);
		complete(mb, end_bucket);
	} else {
		at.pipeline->receive(dx, n * C, at.p + 1, s);
	}
	for (int l = nlayers - 1; l >= 0; l--) {
		backward_layer(mb, l);
		complete(mb, layer_buckets[l]);
	}
	if (is_first) {
		embed_back<<<V, std::min(C, 256), 0, s>>>(tok + mb * n, dx, end_of(g, WTE), n, C);
		position_back<<<blocks(T * C, 256), 256, 0, s>>>(dx, end_of(g, WPE), c.batch, T, C);
		complete(mb, begin_bucket);
	} else {
		at.pipeline->send(dx, n * C, at.p - 1, s);
	}
}

void trainer::update(int step)
{
	adam_state a = { c.lr * std::min(1.0f, (step + 1) / 4.0f), 0.9f, 0.99f, 0.01f,
			 1.0f / (1.0f - powf(0.9f, step + 1)), 1.0f / (1.0f - powf(0.99f, step + 1)) };
	size_t from = c.shard ? at.d * part : 0, len = c.shard ? part : total;

	if (c.shard) {
		at.data->scatter_average(acc, part, s);
		sum_all<true><<<1, 256, 0, s>>>(acc + from, norm2, len);
		at.data->sum(norm2, 1, false, s);
	} else {
		CHECK(cudaEventRecord(reduced, beside));
		CHECK(cudaStreamWaitEvent(s, reduced, 0));
		counted<<<blocks(total, 256), 256, 0, s>>>(acc, mask, tmp, total);
		sum_all<true><<<1, 256, 0, s>>>(tmp, norm2, total);
		if (at.model->n > 1)
			at.model->sum(norm2, 1, false, s);
	}
	adamw<<<blocks(len, 256), 256, 0, s>>>(w + from, acc + from, m, v, norm2, a, len);
	if (c.shard)
		at.data->gather(w, part, s);
}

void trainer::exchange()
{
	std::vector<bucket> all = layer_buckets;

	all.insert(all.begin(), end_bucket);
	all.push_back(begin_bucket);
	for (const bucket &b : all)
		at.data->sum(acc + b.from, b.n, true, beside);
	at.data->sum(loss_acc, 1, true, beside);
	CHECK(cudaStreamSynchronize(beside));
}

float trainer::step(int k)
{
	float sum = 0;

	if (c.exchange) {
		exchange();
		return 0;
	}

	if (c.free)
		allocate();
	load(k);
	for (int mb = 0; mb < c.micro; mb++)
		forward(mb);
	for (int mb = 0; mb < c.micro; mb++)
		backward(mb);
	if (is_last && c.data > 1)
		at.data->sum(loss_acc, 1, true, s);
	update(k);
	CHECK(cudaGetLastError());
	CHECK(cudaMemcpyAsync(&sum, loss_acc, sizeof(sum), cudaMemcpyDeviceToHost, s));
	CHECK(cudaStreamSynchronize(s));
	if (c.free)
		release();
	return sum / (n * c.micro);
}

/* ---- the program ---- */

static std::mutex printing;

static void train(const config &c, place &here, const text &t, int number)
{
	const char *pause = getenv("GPT_PAUSE");
	trainer m(c, here, t);
	float loss = 0, first = 0;

	for (int k = 0; k < c.steps; k++) {
		loss = m.step(k);
		if (!k)
			first = loss;
		if (m.is_last && !here.d && !here.t) {
			std::lock_guard<std::mutex> l(printing);
			printf("step %d loss %.9g\n", k + 1, loss);
		}
		if (pause && access(pause, F_OK))
			usleep(200000);
	}
	std::vector<float> w = to_host(m.w, m.total);
	std::lock_guard<std::mutex> l(printing);
	if (m.is_last && !c.exchange) {
		EXPECT_NEAR(first, logf(m.V), 0.1);
		EXPECT(loss < first - 0.3f);
	}
	job_sum = 0xcbf29ce484222325ull;
	sum_vector(w);
	printf("rank %d: %zu weights %016llx\n", number, w.size(), job_sum);
	fflush(stdout);
}

static place where(const config &c, int r)
{
	place p;

	p.t = r % c.tensor;
	p.d = r / c.tensor % c.data;
	p.p = r / c.tensor / c.data;
	return p;
}

/* The communicators of a rank: colours, and keys by which its members stand in order. */
static void split_world(const config &c, place &p, ncclComm_t comm)
{
	p.data.reset(new nccl_team(comm, p.p * c.tensor + p.t, p.d));
	p.tensor.reset(new nccl_team(comm, p.p * c.data + p.d, p.t));
	p.pipeline.reset(new nccl_team(comm, p.d * c.tensor + p.t, p.p));
	p.model.reset(new nccl_team(comm, p.d, p.p * c.tensor + p.t));
}

static void train_by_threads(const config &c, const text &t)
{
	int all = c.data * c.tensor * c.pipeline;
	std::map<std::pair<int, int>, table> tables;
	std::vector<std::thread> threads;
	std::vector<place> places;

	auto of = [&](int kind, int color, int members) -> table & {
		table &shared = tables[{ kind, color }];

		shared.leaf.resize(members);
		return shared;
	};
	for (int r = 0; r < all; r++) {
		place p = where(c, r);

		p.data.reset(new thread_team(of(0, p.p * c.tensor + p.t, c.data), p.d));
		p.tensor.reset(new thread_team(of(1, p.p * c.data + p.d, c.tensor), p.t));
		p.pipeline.reset(new thread_team(of(2, p.d * c.tensor + p.t, c.pipeline), p.p));
		p.model.reset(new thread_team(of(3, p.d, c.tensor * c.pipeline), p.p * c.tensor + p.t));
		places.push_back(std::move(p));
	}
	for (int r = 0; r < all; r++)
		threads.emplace_back([&, r] { train(c, places[r], t, r); });
	for (std::thread &th : threads)
		th.join();
}

static config arguments(int argc, char **argv)
{
	config c;
	const struct {
		const char *name;
		int *value;
	} ints[] = { { "--steps", &c.steps }, { "--layers", &c.layers }, { "--dim", &c.dim },
		     { "--ctx", &c.ctx }, { "--batch", &c.batch }, { "--micro", &c.micro },
		     { "--free", &c.free }, { "--exchange", &c.exchange } };

	EXPECT(argc >= 5);
	c.data = atoi(argv[2]);
	c.tensor = atoi(argv[3]);
	c.pipeline = atoi(argv[4]);
	for (int i = 5; i < argc; i++) {
		bool known = !strcmp(argv[i], "--shard");

		c.shard |= known;
		for (auto &o : ints)
			if (!known && !strcmp(argv[i], o.name) && i + 1 < argc) {
				*o.value = atoi(argv[++i]);
				known = true;
			}
		EXPECT(known);
	}
	EXPECT(c.data > 0 && c.tensor > 0 && c.pipeline > 0 && c.micro > 0 && c.batch > 0);
	EXPECT(c.layers % c.pipeline == 0 && c.dim % (HEAD * c.tensor) == 0);
	EXPECT(!c.shard || (c.data > 1 && c.tensor * c.pipeline == 1));
	return c;
}

int main(int argc, char **argv)
{
	config c = arguments(argc, argv);
	text t("/usr/share/common-licenses/GPL-3");

	setvbuf(stdout, NULL, _IOLBF, 0);	/* tests wait for a step */
	if (!getenv("RANK")) {
		train_by_threads(c, t);
		return 0;
	}
	begin(argc, argv);
	EXPECT_EQ(ranks, c.data * c.tensor * c.pipeline);
	place here = where(c, rank);
	ncclComm_t comm = world(0);

	split_world(c, here, comm);
	OK(ncclCommDestroy(comm));
	train(c, here, t, rank);
	return 0;
}
