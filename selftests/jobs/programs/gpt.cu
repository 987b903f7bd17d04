// SPDX-License-Identifier: Apache-2.0
/*
 * gpt.cu - a small GPT, trained character by character on a text: every step on the device.
 *
 * Embeddings, then layers of causal attention and a GELU MLP, each with a layer norm before it and
 * a residual; cross-entropy, the whole backward pass, clipping and AdamW, all by the kernels of
 * gpt.cuh.
 */
#include "gpt.cuh"

/* ---- the model ---- */

struct config {
	int layers = 3, dim = 64, ctx = 64, batch = 8, steps = 2000, every = 1, sample = 200;
	unsigned int seed = 1;
	float lr = 3e-3f;
	bool check = false;
	const char *text = "/usr/share/common-licenses/GPL-3";
};

/* Where each tensor lies in the one array of all weights; gradients have the same layout. */
static const char *const names[PER_LAYER] = {
	"ln1.w", "ln1.b", "qkv.w", "qkv.b", "proj.w", "proj.b", "ln2.w", "ln2.b", "fc.w", "fc.b",
	"out.w", "out.b",
};

struct layout {
	int wte, wpe, lnfw, lnfb, head, total;
	std::vector<int> layer;
	int size[PER_LAYER];

	layout(const config &c, int V)
	{
		int C = c.dim, s[PER_LAYER] = { C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C,
						4 * C, 4 * C * C, C };

		memcpy(size, s, sizeof(s));
		total = 0;
		wte = take(V * C);
		wpe = take(c.ctx * C);
		for (int l = 0; l < c.layers; l++)
			for (int i = 0; i < PER_LAYER; i++)
				layer.push_back(take(size[i]));
		lnfw = take(C);
		lnfb = take(C);
		head = take(C * V);
	}
	int take(int n)
	{
		int at = total;

		total += n;
		return at;
	}
	int at(int l, int i) const
	{
		return layer[l * PER_LAYER + i];
	}
};

struct model : math {
	config c;
	int V;
	layout at;
	float *w, *g, *m, *v;
	std::vector<activations> acts;
	float *last, *lnf, *meanf, *rstdf, *logits, *losses, *loss, *norm2;
	float *dln, *dbig, *dot;
	int *tok, *want;

	model(const config &c, int V);
	float *params(int l, int i) { return w + at.at(l, i); }
	float *grads(int l, int i) { return g + at.at(l, i); }
	void forward(int B);
	void backward(int B);
	void update(int step);
};

model::model(const config &cfg, int vocab) : c(cfg), V(vocab), at(cfg, vocab)
{
	int n = c.batch * c.ctx, C = c.dim, heads = C / HEAD;
	std::vector<float> init(at.total);
	unsigned int seed = c.seed;

	dim = C;
	/* uniform, with the deviation of GPT-2; norms at 1, biases at 0, residual outputs smaller */
	for (float &x : init)
		x = rndf(&seed) * 0.06f;
	for (int l = 0; l < c.layers; l++) {
		for (int i : { LN1B, QKVB, PROJB, LN2B, FCB, OUTB })
			std::fill_n(&init[at.at(l, i)], at.size[i], 0.0f);
		for (int i : { LN1W, LN2W })
			std::fill_n(&init[at.at(l, i)], C, 1.0f);
		for (int i : { PROJW, OUTW })
			for (int k = 0; k < at.size[i]; k++)
				init[at.at(l, i) + k] /= sqrtf(2.0f * c.layers);
	}
	std::fill_n(&init[at.lnfw], C, 1.0f);
	std::fill_n(&init[at.lnfb], C, 0.0f);
	w = room(at.total);
	CHECK(cudaMemcpy(w, init.data(), at.total * sizeof(float), cudaMemcpyHostToDevice));
	g = room(at.total);
	m = room(at.total);
	v = room(at.total);
	for (int l = 0; l < c.layers; l++)
		acts.push_back({ room(n * C), room(n * C), room(n), room(n), room(n * 3 * C),
				 room(n * C), room(n * heads), room(n * C), room(n * C), room(n),
				 room(n), room(n * 4 * C), room(n * 4 * C) });
	last = room(n * C);
	lnf = room(n * C);
	meanf = room(n);
	rstdf = room(n);
	logits = room(n * V);
	losses = room(n);
	loss = room(1);
	norm2 = room(1);
	dx = room(n * C);
	dtmp = room(n * C);
	dln = room(n * C);
	dbig = room(n * 4 * C);
	dot = room(n * heads);
	CHECK(cudaMalloc(&tok, n * sizeof(int)));
	CHECK(cudaMalloc(&want, n * sizeof(int)));
	CHECK(cudaStreamCreate(&s));
}

void model::forward(int B)
{
	int T = c.ctx, C = c.dim, n = B * T;
	float scale = 1.0f / sqrtf(HEAD);

	embed<<<blocks(n * C, 256), 256, 0, s>>>(tok, w + at.wte, w + at.wpe,
						 c.layers ? acts[0].in : last, n, T, C);
	for (int l = 0; l < c.layers; l++) {
		activations &a = acts[l];
		float *out = l + 1 < c.layers ? acts[l + 1].in : last;

		norm(a.in, params(l, LN1W), params(l, LN1B), a.ln1, a.mean1, a.rstd1, n);
		matmul(a.ln1, params(l, QKVW), a.qkv, params(l, QKVB), NULL, n, 3 * C, C);
		attention<<<B * (C / HEAD), T, 0, s>>>(a.qkv, a.att, a.lse, T, C, scale);
		matmul(a.att, params(l, PROJW), a.mid, params(l, PROJB), a.in, n, C, C);
		norm(a.mid, params(l, LN2W), params(l, LN2B), a.ln2, a.mean2, a.rstd2, n);
		matmul(a.ln2, params(l, FCW), a.fc, params(l, FCB), NULL, n, 4 * C, C);
		gelu<<<blocks(n * 4 * C, 256), 256, 0, s>>>(a.fc, a.act, n * 4 * C);
		matmul(a.act, params(l, OUTW), out, params(l, OUTB), a.mid, n, C, 4 * C);
	}
	norm(last, w + at.lnfw, w + at.lnfb, lnf, meanf, rstdf, n);
	matmul(lnf, w + at.head, logits, NULL, NULL, n, V, C);
}

/* Gradients of all weights. */
void model::backward(int B)
{
	int T = c.ctx, C = c.dim, n = B * T;
	float scale = 1.0f / sqrtf(HEAD);

	matmul_back(logits, lnf, w + at.head, dln, g + at.head, NULL, n, V, C);
	CHECK(cudaMemsetAsync(dx, 0, n * C * sizeof(float), s));
	norm_back(dln, last, w + at.lnfw, meanf, rstdf, g + at.lnfw, g + at.lnfb, n);
	for (int l = c.layers - 1; l >= 0; l--) {
		activations &a = acts[l];

		matmul_back(dx, a.act, params(l, OUTW), dbig, grads(l, OUTW), grads(l, OUTB), n, C,
			    4 * C);
		gelu_back<<<blocks(n * 4 * C, 256), 256, 0, s>>>(a.fc, dbig, n * 4 * C);
		matmul_back(dbig, a.ln2, params(l, FCW), dln, grads(l, FCW), grads(l, FCB), n,
			    4 * C, C);
		norm_back(dln, a.mid, params(l, LN2W), a.mean2, a.rstd2, grads(l, LN2W),
			  grads(l, LN2B), n);
		matmul_back(dx, a.att, params(l, PROJW), dln, grads(l, PROJW), grads(l, PROJB), n,
			    C, C);
		attention_back_q<<<B * (C / HEAD), T, 0, s>>>(a.qkv, a.att, dln, a.lse, dbig, dot,
							      T, C, scale);
		attention_back_kv<<<B * (C / HEAD), T, 0, s>>>(a.qkv, dln, a.lse, dot, dbig, T, C,
							       scale);
		matmul_back(dbig, a.ln1, params(l, QKVW), dln, grads(l, QKVW), grads(l, QKVB), n,
			    3 * C, C);
		norm_back(dln, a.in, params(l, LN1W), a.mean1, a.rstd1, grads(l, LN1W),
			  grads(l, LN1B), n);
	}
	embed_back<<<V, std::min(C, 256), 0, s>>>(tok, dx, g + at.wte, n, C);
	position_back<<<blocks(T * C, 256), 256, 0, s>>>(dx, g + at.wpe, B, T, C);
}

void model::update(int step)
{
	int warm = std::max(1, c.steps / 20);
	float rate = step < warm ? (step + 1.0f) / warm :
		     0.1f + 0.45f * (1.0f + cosf(3.14159265f * (step - warm) / (c.steps - warm + 1)));
	adam_state a = { c.lr * rate, 0.9f, 0.99f, 0.01f, 1.0f / (1.0f - powf(0.9f, step + 1)),
			 1.0f / (1.0f - powf(0.99f, step + 1)) };

	sum_all<true><<<1, 256, 0, s>>>(g, norm2, at.total);
	adamw<<<blocks(at.total, 256), 256, 0, s>>>(w, g, m, v, norm2, a, at.total);
}

/* A batch of places in [from, to), into pinned memory and from there to the device. */
static void load_batch(model &m, const text &t, int from, int to, unsigned int *seed, int *pinned)
{
	int T = m.c.ctx, n = m.c.batch * T;

	for (int b = 0; b < m.c.batch; b++) {
		int at = from + rnd(seed) % (to - from - T);

		for (int i = 0; i < T; i++) {
			pinned[b * T + i] = t.data[at + i];
			pinned[n + b * T + i] = t.data[at + i + 1];
		}
	}
	CHECK(cudaMemcpyAsync(m.tok, pinned, n * sizeof(int), cudaMemcpyHostToDevice, m.s));
	CHECK(cudaMemcpyAsync(m.want, pinned + n, n * sizeof(int), cudaMemcpyHostToDevice, m.s));
}

/* The mean loss of the batch that is loaded; with back, logits become gradients. */
static void loss_of(model &m, bool back)
{
	int n = m.c.batch * m.c.ctx;

	m.forward(m.c.batch);
	cross_entropy<<<blocks(n, 8), 256, 0, m.s>>>(m.logits, m.want, m.losses, n, m.V, back, n);
	sum_all<false><<<1, 256, 0, m.s>>>(m.losses, m.loss, n);
	CHECK(cudaGetLastError());
}

/* A few letters behind a start, by the model's own probabilities. */
static void generate(model &m, const text &t, int *pinned)
{
	int T = m.c.ctx, V = m.V;
	std::vector<int> said(t.data.begin(), t.data.begin() + std::min(T / 2, 16));
	std::vector<float> row(V);
	unsigned int seed = m.c.seed + 7;

	said.resize(1);
	while ((int)said.size() <= m.c.sample) {
		int n = said.size(), from = std::max(0, n - T), last = std::min(n, T) - 1;

		for (int i = 0; i < T; i++)
			pinned[i] = from + i < n ? said[from + i] : 0;
		CHECK(cudaMemcpyAsync(m.tok, pinned, T * sizeof(int), cudaMemcpyHostToDevice, m.s));
		m.forward(1);
		CHECK(cudaMemcpyAsync(row.data(), m.logits + last * V, V * sizeof(float),
				      cudaMemcpyDeviceToHost, m.s));
		CHECK(cudaStreamSynchronize(m.s));
		double top = *std::max_element(row.begin(), row.end()), sum = 0, pick;

		for (float x : row)
			sum += exp((x - top) / 0.7);
		pick = rnd(&seed) / 16777216.0 * sum;
		int v = 0;

		for (; v < V - 1; v++)
			if ((pick -= exp((row[v] - top) / 0.7)) < 0)
				break;
		said.push_back(v);
	}
	printf("---- sample ----\n");
	for (int v : said)
		putchar(t.letters[v]);
	printf("\n----------------\n");
}

/* ---- the reference: the same loss in double on the host, for finite differences ---- */

struct reference {
	const config &c;
	const layout &at;
	int V;
	const std::vector<int> &tok, &want;

	static void norm(const double *x, const double *w, const double *b, double *y, int C)
	{
		double m = 0, v = 0;

		for (int i = 0; i < C; i++)
			m += x[i] / C;
		for (int i = 0; i < C; i++)
			v += (x[i] - m) * (x[i] - m) / C;
		for (int i = 0; i < C; i++)
			y[i] = (x[i] - m) / sqrt(v + 1e-5) * w[i] + b[i];
	}
	static void linear(const double *x, const double *w, const double *b, double *y, int K,
			   int N)
	{
		for (int n = 0; n < N; n++)
			y[n] = b ? b[n] : 0;
		for (int k = 0; k < K; k++)
			for (int n = 0; n < N; n++)
				y[n] += x[k] * w[k * N + n];
	}
	void attend(const double *qkv, double *out) const
	{
		int C = c.dim, T = c.ctx;

		for (int h = 0; h < C / HEAD; h++)
			for (int t = 0; t < T; t++) {
				std::vector<double> p(t + 1);
				double sum = 0;

				for (int k = 0; k <= t; k++) {
					for (int i = h * HEAD; i < (h + 1) * HEAD; i++)
						p[k] += qkv[t * 3 * C + i] * qkv[k * 3 * C + C + i];
					p[k] = exp(p[k] / sqrt(HEAD));
					sum += p[k];
				}
				for (int i = h * HEAD; i < (h + 1) * HEAD; i++) {
					out[t * C + i] = 0;
					for (int k = 0; k <= t; k++)
						out[t * C + i] += p[k] / sum *
								  qkv[k * 3 * C + 2 * C + i];
				}
			}
	}
	double loss(const std::vector<double> &w) const
	{
		int C = c.dim, T = c.ctx, n = c.batch * T;
		std::vector<double> x(n * C), y(C), qkv(n * 3 * C), o(n * C), big(4 * C), lg(V);
		double total = 0;

		for (int r = 0; r < n; r++)
			for (int i = 0; i < C; i++)
				x[r * C + i] = w[at.wte + tok[r] * C + i] +
					       w[at.wpe + r % T * C + i];
		for (int l = 0; l < c.layers; l++) {
			auto p = [&](int i) { return &w[at.at(l, i)]; };

			for (int r = 0; r < n; r++) {
				norm(&x[r * C], p(LN1W), p(LN1B), y.data(), C);
				linear(y.data(), p(QKVW), p(QKVB), &qkv[r * 3 * C], C, 3 * C);
			}
			for (int b = 0; b < c.batch; b++)
				attend(&qkv[b * T * 3 * C], &o[b * T * C]);
			for (int r = 0; r < n; r++) {
				linear(&o[r * C], p(PROJW), p(PROJB), y.data(), C, C);
				for (int i = 0; i < C; i++)
					x[r * C + i] += y[i];
				norm(&x[r * C], p(LN2W), p(LN2B), y.data(), C);
				linear(y.data(), p(FCW), p(FCB), big.data(), C, 4 * C);
				for (double &v : big)
					v = 0.5 * v * (1 + tanh(0.7978845608028654 *
								(v + 0.044715 * v * v * v)));
				linear(big.data(), p(OUTW), p(OUTB), y.data(), 4 * C, C);
				for (int i = 0; i < C; i++)
					x[r * C + i] += y[i];
			}
		}
		for (int r = 0; r < n; r++) {
			double sum = 0;

			norm(&x[r * C], &w[at.lnfw], &w[at.lnfb], y.data(), C);
			linear(y.data(), &w[at.head], NULL, lg.data(), C, V);
			for (double v : lg)
				sum += exp(v);
			total += log(sum) - lg[want[r]];
		}
		return total / n;
	}
};

static void check_tensor(const reference &ref, std::vector<double> &w, const std::vector<float> &g,
			 const char *name, int from, int n, unsigned int *seed)
{
	const double e = 1e-5;

	for (int k = 0; k < 8; k++) {
		int i = from + rnd(seed) % n;
		double old = w[i], up, down, want;

		w[i] = old + e;
		up = ref.loss(w);
		w[i] = old - e;
		down = ref.loss(w);
		w[i] = old;
		want = (up - down) / (2 * e);
		if (!(fabs(g[i] - want) <= 1e-6 + 2e-4 * fabs(want))) {
			printf("FAIL gpt: gradient of %s[%d] is %.8g, not %.8g\n", name, i - from,
			       g[i], want);
			exit(1);
		}
	}
}

/* The device's gradients of some weights of each tensor, against finite differences. */
static void check_gradients(model &m, const text &t, int *pinned)
{
	int n = m.c.batch * m.c.ctx;
	unsigned int seed = 99;
	float got;

	/* away from the symmetric start, where many gradients are nothing */
	for (int step = 0; step < 5; step++) {
		load_batch(m, t, 0, t.data.size(), &seed, pinned);
		loss_of(m, true);
		m.backward(m.c.batch);
		m.update(step);
		CHECK(cudaStreamSynchronize(m.s));
	}
	load_batch(m, t, 0, t.data.size(), &seed, pinned);
	loss_of(m, true);
	m.backward(m.c.batch);
	CHECK(cudaStreamSynchronize(m.s));
	std::vector<float> g = to_host(m.g, m.at.total), wf = to_host(m.w, m.at.total);
	std::vector<double> w(wf.begin(), wf.end());
	std::vector<int> tok(pinned, pinned + n), want(pinned + n, pinned + 2 * n);
	reference ref = { m.c, m.at, m.V, tok, want };

	CHECK(cudaMemcpy(&got, m.loss, sizeof(got), cudaMemcpyDeviceToHost));
	EXPECT_NEAR(got / n, ref.loss(w), 1e-5);
	check_tensor(ref, w, g, "wte", m.at.wte + tok[0] * m.c.dim, m.c.dim, &seed);
	check_tensor(ref, w, g, "wpe", m.at.wpe, m.c.ctx * m.c.dim, &seed);
	for (int l = 0; l < m.c.layers; l++)
		for (int i = 0; i < PER_LAYER; i++)
			check_tensor(ref, w, g, names[i], m.at.at(l, i), m.at.size[i], &seed);
	check_tensor(ref, w, g, "lnf.w", m.at.lnfw, m.c.dim, &seed);
	check_tensor(ref, w, g, "lnf.b", m.at.lnfb, m.c.dim, &seed);
	check_tensor(ref, w, g, "head", m.at.head, m.c.dim * m.V, &seed);
	printf("gradients of %d tensors agree with finite differences\n",
	       5 + m.c.layers * PER_LAYER);
	sum_vector(g);
}

/* ---- the program ---- */

static config arguments(int argc, char **argv)
{
	config c;
	struct {
		const char *name;
		int *value;
	} ints[] = { { "--steps", &c.steps }, { "--layers", &c.layers }, { "--dim", &c.dim },
		     { "--ctx", &c.ctx }, { "--batch", &c.batch }, { "--every", &c.every },
		     { "--sample", &c.sample }, { "--seed", (int *)&c.seed } };

	for (int i = 1; i < argc; i++) {
		bool known = false;

		if (!strcmp(argv[i], "--tiny") || !strcmp(argv[i], "--check")) {
			c.layers = 2;
			c.dim = 32;
			c.ctx = 32;
			c.batch = 4;
			c.steps = 60;
			c.sample = 40;
			c.check = known = true;
			if (!strcmp(argv[i], "--tiny"))
				c.check = false;
			else
				c.ctx = 12, c.batch = 2;
		}
		for (auto &o : ints)
			if (!strcmp(argv[i], o.name) && i + 1 < argc) {
				*o.value = atoi(argv[++i]);
				known = true;
				break;
			}
		if (!known && !strcmp(argv[i], "--text") && i + 1 < argc) {
			c.text = argv[++i];
			known = true;
		}
		if (!known) {
			printf("usage: gpt [--tiny | --check] [--steps N] [--seed N] [--layers N] [--dim N]"
			       " [--ctx N]\n           [--batch N] [--every N] [--sample N] [--text FILE]\n");
			exit(2);
		}
	}
	if (c.dim % HEAD || c.dim < HEAD || c.dim > 4096 || c.ctx < 2 || c.ctx > 1024 ||
	    c.batch < 1 || c.layers < 0 || c.steps < 0 || c.every < 1) {
		printf("FAIL gpt: --dim is a multiple of %d, --ctx from 2 to 1024\n", HEAD);
		exit(2);
	}
	return c;
}

static float validate(model &m, const text &t, int from, int *pinned)
{
	unsigned int seed = 5;
	float sum = 0, one;

	for (int i = 0; i < 4; i++) {
		load_batch(m, t, from, t.data.size(), &seed, pinned);
		loss_of(m, false);
		CHECK(cudaMemcpyAsync(&one, m.loss, sizeof(one), cudaMemcpyDeviceToHost, m.s));
		CHECK(cudaStreamSynchronize(m.s));
		sum += one / (m.c.batch * m.c.ctx) / 4;
	}
	return sum;
}

int main(int argc, char **argv)
{
	config c = arguments(argc, argv);
	text t(c.text);
	int n = c.batch * c.ctx, *pinned, held = t.data.size() * 9 / 10;
	unsigned int seed = c.seed * 7919 + 1;
	float loss, first = 0, last = 0, ms, *out, total_ms = 0;
	cudaEvent_t start, stop;

	if ((int)t.data.size() < 20 * (c.ctx + 2)) {
		printf("FAIL gpt: the text is too short for --ctx %d\n", c.ctx);
		return 2;
	}
	model m(c, t.letters.size());
	CHECK(cudaMallocHost(&pinned, 2 * n * sizeof(int)));
	CHECK(cudaMallocHost(&out, sizeof(float)));
	CHECK(cudaEventCreate(&start));
	CHECK(cudaEventCreate(&stop));
	printf("%d letters of %d kinds, %d weights, %d layers of %d, %d x %d letters a step\n",
	       (int)t.data.size(), m.V, m.at.total, c.layers, c.dim, c.batch, c.ctx);
	if (c.check) {
		check_gradients(m, t, pinned);
		return job_passed("gpt-check");
	}
	for (int step = 0; step < c.steps; step++) {
		CHECK(cudaEventRecord(start, m.s));
		load_batch(m, t, 0, held, &seed, pinned);
		loss_of(m, true);
		m.backward(c.batch);
		m.update(step);
		CHECK(cudaMemcpyAsync(out, m.loss, sizeof(float), cudaMemcpyDeviceToHost, m.s));
		CHECK(cudaEventRecord(stop, m.s));
		CHECK(cudaStreamSynchronize(m.s));
		CHECK(cudaEventElapsedTime(&ms, start, stop));
		total_ms += ms;
		loss = *out / n;
		sum_bytes(&loss, sizeof(loss));
		EXPECT(isfinite(loss));
		if (!step)
			first = loss;
		last = step ? last * 0.9f + loss * 0.1f : loss;
		if (step % c.every == 0 || step == c.steps - 1) {
			printf("step %4d/%d  loss %.4f  %.1f ms\n", step + 1, c.steps, loss, ms);
			fflush(stdout);
		}
	}
	printf("loss %.4f at first, %.4f at last, %.4f on text not seen; %.1f ms/step\n", first,
	       last, validate(m, t, held, pinned), total_ms / std::max(c.steps, 1));
	if (c.sample > 0)
		generate(m, t, pinned);
	sum_vector(to_host(m.w, m.at.total));
	/* a model that has learnt nothing stays at the logarithm of the alphabet */
	EXPECT_NEAR(first, logf(m.V), 0.1);
	if (c.steps >= 50)
		EXPECT(last < first * 0.85f);
	return job_passed("gpt");
}
