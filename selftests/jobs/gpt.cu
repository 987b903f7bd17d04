// SPDX-License-Identifier: Apache-2.0
/*
 * gpt.cu - a small GPT, trained character by character on a text: every step on the device.
 *
 * Embeddings, then layers of causal attention and a GELU MLP, each with a layer norm before it and
 * a residual; cross-entropy, the whole backward pass, clipping and AdamW, all by the kernels
 * below. No kernel adds floats atomically, so the same device gives the same weights each time.
 * Matrices are row-major, weights have inputs as rows: y[M,N] = x[M,K] w[K,N] + b[N].
 */
#include "job.cuh"

#include <algorithm>
#include <string>

#define HEAD 16			/* floats of one attention head */
#define KEYS 32			/* keys that a block of attention has in shared memory at a time */
#define TILE 64			/* rows and columns of a block of gemm */
#define DEPTH 16		/* and how much of the inner dimension it has in shared memory */
#define ROWS 8			/* rows of a thread of gemm, by two columns */

/* ---- kernels ---- */

/* C = op(A) op(B) (+ bias) (+ add), where op is the transpose if TA or TB; add may be C. */
template <bool TA, bool TB> __global__ __launch_bounds__(256)
void gemm(const float *__restrict__ A, const float *__restrict__ B, float *C, const float *bias,
	  const float *add, int M, int N, int K)
{
	__shared__ float a[DEPTH][TILE + 4], b[DEPTH][TILE + 4];
	int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE, tx = threadIdx.x, ty = threadIdx.y;
	int t = ty * 32 + tx;
	float acc[ROWS][2] = {};

	for (int k0 = 0; k0 < K; k0 += DEPTH) {
		for (int i = t; i < DEPTH * TILE; i += 256) {
			int k = TA ? i / TILE : i % DEPTH, m = TA ? i % TILE : i / DEPTH;
			bool in = m0 + m < M && k0 + k < K;

			a[k][m] = !in ? 0 : TA ? A[(k0 + k) * M + m0 + m] : A[(m0 + m) * K + k0 + k];
		}
		for (int i = t; i < DEPTH * TILE; i += 256) {
			int k = TB ? i % DEPTH : i / TILE, n = TB ? i / DEPTH : i % TILE;
			bool in = n0 + n < N && k0 + k < K;

			b[k][n] = !in ? 0 : TB ? B[(n0 + n) * K + k0 + k] : B[(k0 + k) * N + n0 + n];
		}
		__syncthreads();
#pragma unroll
		for (int k = 0; k < DEPTH; k++) {
			float b0 = b[k][tx], b1 = b[k][tx + 32];

#pragma unroll
			for (int r = 0; r < ROWS; r++) {
				float v = a[k][ty * ROWS + r];

				acc[r][0] += v * b0;
				acc[r][1] += v * b1;
			}
		}
		__syncthreads();
	}
	for (int r = 0; r < ROWS; r++)
		for (int c = 0; c < 2; c++) {
			int m = m0 + ty * ROWS + r, n = n0 + tx + c * 32;

			if (m < M && n < N) {
				float v = acc[r][c] + (bias ? bias[n] : 0);

				C[m * N + n] = add ? v + add[m * N + n] : v;
			}
		}
}

/* Sums of the columns of x[M,N], one thread each: gradients of a bias. */
__global__ void column_sums(const float *x, float *out, int M, int N)
{
	int n = blockIdx.x * blockDim.x + threadIdx.x;
	float s = 0;

	if (n >= N)
		return;
	for (int m = 0; m < M; m++)
		s += x[m * N + n];
	out[n] = s;
}

__global__ void embed(const int *tok, const float *wte, const float *wpe, float *x, int n, int T,
		      int C)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / C, c = i % C;

	if (row < n)
		x[i] = wte[tok[row] * C + c] + wpe[row % T * C + c];
}

/* One block for each token of the alphabet: adds the gradients of its rows in their order. */
__global__ void embed_back(const int *tok, const float *dx, float *dwte, int n, int C)
{
	for (int c = threadIdx.x; c < C; c += blockDim.x) {
		float s = 0;

		for (int row = 0; row < n; row++)
			if (tok[row] == blockIdx.x)
				s += dx[row * C + c];
		dwte[blockIdx.x * C + c] = s;
	}
}

__global__ void position_back(const float *dx, float *dwpe, int B, int T, int C)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	float s = 0;

	if (i >= T * C)
		return;
	for (int b = 0; b < B; b++)
		s += dx[b * T * C + i];
	dwpe[i] = s;
}

__device__ float warp_sum(float v)
{
	for (int d = 16; d; d >>= 1)
		v += __shfl_xor_sync(~0u, v, d);
	return v;
}

__device__ float warp_max(float v)
{
	for (int d = 16; d; d >>= 1)
		v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
	return v;
}

/* A warp for each row. */
__global__ void layernorm(const float *x, const float *w, const float *b, float *y, float *mean,
			  float *rstd, int n, int C)
{
	int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
	float s = 0, v = 0;

	if (row >= n)
		return;
	x += row * C;
	for (int c = lane; c < C; c += 32)
		s += x[c];
	float m = warp_sum(s) / C;

	for (int c = lane; c < C; c += 32)
		v += (x[c] - m) * (x[c] - m);
	float r = 1.0f / sqrtf(warp_sum(v) / C + 1e-5f);

	for (int c = lane; c < C; c += 32)
		y[row * C + c] = (x[c] - m) * r * w[c] + b[c];
	if (!lane) {
		mean[row] = m;
		rstd[row] = r;
	}
}

/* dx += gradient through the norm; xhat*dy is left in tmp for the gradient of w. */
__global__ void layernorm_back(const float *dy, const float *x, const float *w, const float *mean,
			       const float *rstd, float *dx, float *tmp, int n, int C)
{
	int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
	float s = 0, p = 0;

	if (row >= n)
		return;
	float m = mean[row], r = rstd[row];

	for (int c = lane; c < C; c += 32) {
		float g = dy[row * C + c] * w[c], h = (x[row * C + c] - m) * r;

		s += g;
		p += g * h;
	}
	s = warp_sum(s) / C;
	p = warp_sum(p) / C;
	for (int c = lane; c < C; c += 32) {
		float d = dy[row * C + c], h = (x[row * C + c] - m) * r;

		dx[row * C + c] += (d * w[c] - s - h * p) * r;
		tmp[row * C + c] = d * h;
	}
}

/*
 * A block for each sequence and head, a thread for each query; the softmax is made as keys pass.
 * lse[b,h,t] is the logarithm of the sum, for the backward pass.
 */
__global__ void attention(const float *qkv, float *out, float *lse, int T, int C, float scale)
{
	__shared__ float k[KEYS][HEAD], v[KEYS][HEAD];
	int heads = C / HEAD, h = blockIdx.x % heads, b = blockIdx.x / heads, t = threadIdx.x;
	const float *base = qkv + b * T * 3 * C + h * HEAD;
	float q[HEAD], o[HEAD] = {}, top = -INFINITY, sum = 0;

	for (int i = 0; i < HEAD; i++)
		q[i] = base[t * 3 * C + i] * scale;
	for (int k0 = 0; k0 < T; k0 += KEYS) {
		__syncthreads();
		for (int i = t; i < KEYS * HEAD; i += T) {
			int row = k0 + i / HEAD;

			k[i / HEAD][i % HEAD] = row < T ? base[row * 3 * C + C + i % HEAD] : 0;
			v[i / HEAD][i % HEAD] = row < T ? base[row * 3 * C + 2 * C + i % HEAD] : 0;
		}
		__syncthreads();
		for (int j = 0; j < KEYS && k0 + j < T; j++) {
			if (k0 + j > t)
				break;
			float s = 0;

			for (int i = 0; i < HEAD; i++)
				s += q[i] * k[j][i];
			float m = fmaxf(top, s), keep = __expf(top - m), p = __expf(s - m);

			sum = sum * keep + p;
			top = m;
			for (int i = 0; i < HEAD; i++)
				o[i] = o[i] * keep + p * v[j][i];
		}
	}
	for (int i = 0; i < HEAD; i++)
		out[(b * T + t) * C + h * HEAD + i] = o[i] / sum;
	lse[blockIdx.x * T + t] = top + __logf(sum);
}

/* The gradient of the queries, a thread each; dot[b,h,t] = out . dout for attention_back_kv. */
__global__ void attention_back_q(const float *qkv, const float *out, const float *dout,
				 const float *lse, float *dqkv, float *dot, int T, int C,
				 float scale)
{
	__shared__ float k[KEYS][HEAD], v[KEYS][HEAD];
	int heads = C / HEAD, h = blockIdx.x % heads, b = blockIdx.x / heads, t = threadIdx.x;
	const float *base = qkv + b * T * 3 * C + h * HEAD;
	float q[HEAD], g[HEAD], dq[HEAD] = {}, D = 0, l = lse[blockIdx.x * T + t];

	for (int i = 0; i < HEAD; i++) {
		int at = (b * T + t) * C + h * HEAD + i;

		q[i] = base[t * 3 * C + i] * scale;
		g[i] = dout[at];
		D += g[i] * out[at];
	}
	dot[blockIdx.x * T + t] = D;
	for (int k0 = 0; k0 < T; k0 += KEYS) {
		__syncthreads();
		for (int i = t; i < KEYS * HEAD; i += T) {
			int row = k0 + i / HEAD;

			k[i / HEAD][i % HEAD] = row < T ? base[row * 3 * C + C + i % HEAD] : 0;
			v[i / HEAD][i % HEAD] = row < T ? base[row * 3 * C + 2 * C + i % HEAD] : 0;
		}
		__syncthreads();
		for (int j = 0; j < KEYS && k0 + j < T; j++) {
			if (k0 + j > t)
				break;
			float s = 0, dp = 0;

			for (int i = 0; i < HEAD; i++) {
				s += q[i] * k[j][i];
				dp += g[i] * v[j][i];
			}
			float ds = __expf(s - l) * (dp - D) * scale;

			for (int i = 0; i < HEAD; i++)
				dq[i] += ds * k[j][i];
		}
	}
	for (int i = 0; i < HEAD; i++)
		dqkv[(b * T + t) * 3 * C + h * HEAD + i] = dq[i];
}

/* The gradients of keys and values, a thread for each key; queries pass by. */
__global__ void attention_back_kv(const float *qkv, const float *dout, const float *lse,
				  const float *dot, float *dqkv, int T, int C, float scale)
{
	__shared__ float q[KEYS][HEAD], g[KEYS][HEAD], l[KEYS], D[KEYS];
	int heads = C / HEAD, h = blockIdx.x % heads, b = blockIdx.x / heads, t = threadIdx.x;
	const float *base = qkv + b * T * 3 * C + h * HEAD;
	float k[HEAD], v[HEAD], dk[HEAD] = {}, dv[HEAD] = {};

	for (int i = 0; i < HEAD; i++) {
		k[i] = base[t * 3 * C + C + i] * scale;
		v[i] = base[t * 3 * C + 2 * C + i];
	}
	for (int q0 = 0; q0 < T; q0 += KEYS) {
		__syncthreads();
		for (int i = t; i < KEYS * HEAD; i += T) {
			int row = q0 + i / HEAD, at = (b * T + row) * C + h * HEAD + i % HEAD;

			q[i / HEAD][i % HEAD] = row < T ? base[row * 3 * C + i % HEAD] : 0;
			g[i / HEAD][i % HEAD] = row < T ? dout[at] : 0;
		}
		for (int i = t; i < KEYS && q0 + i < T; i += T) {
			l[i] = lse[blockIdx.x * T + q0 + i];
			D[i] = dot[blockIdx.x * T + q0 + i];
		}
		__syncthreads();
		for (int j = 0; j < KEYS && q0 + j < T; j++) {
			if (q0 + j < t)
				continue;
			float s = 0, dp = 0;

			for (int i = 0; i < HEAD; i++) {
				s += k[i] * q[j][i];
				dp += g[j][i] * v[i];
			}
			float p = __expf(s - l[j]), ds = p * (dp - D[j]) * scale;

			for (int i = 0; i < HEAD; i++) {
				dv[i] += p * g[j][i];
				dk[i] += ds * q[j][i];
			}
		}
	}
	for (int i = 0; i < HEAD; i++) {
		dqkv[(b * T + t) * 3 * C + C + h * HEAD + i] = dk[i];
		dqkv[(b * T + t) * 3 * C + 2 * C + h * HEAD + i] = dv[i];
	}
}

#define GELU_A 0.7978845608028654f
#define GELU_B 0.044715f

__device__ float tanh_of(float x)
{
	return 1.0f - 2.0f / (__expf(2.0f * x) + 1.0f);
}

__global__ void gelu(const float *x, float *y, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n) {
		float v = x[i];

		y[i] = 0.5f * v * (1.0f + tanh_of(GELU_A * (v + GELU_B * v * v * v)));
	}
}

__global__ void gelu_back(const float *x, float *d, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n) {
		float v = x[i], t = tanh_of(GELU_A * (v + GELU_B * v * v * v));

		d[i] *= 0.5f * (1.0f + t) +
			0.5f * v * (1.0f - t * t) * GELU_A * (1.0f + 3.0f * GELU_B * v * v);
	}
}

/* A warp for each row: its loss, and (if back) its logits become their gradients. */
__global__ void cross_entropy(float *logits, const int *want, float *loss, int n, int V, bool back)
{
	int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
	float m = -INFINITY, s = 0;

	if (row >= n)
		return;
	logits += row * V;
	for (int v = lane; v < V; v += 32)
		m = fmaxf(m, logits[v]);
	m = warp_max(m);
	for (int v = lane; v < V; v += 32)
		s += __expf(logits[v] - m);
	s = warp_sum(s);
	if (!lane)
		loss[row] = m + __logf(s) - logits[want[row]];
	__syncwarp();
	if (!back)
		return;
	for (int v = lane; v < V; v += 32)
		logits[v] = (__expf(logits[v] - m) / s - (v == want[row])) / n;
}

/* One block: out[0] = sum of x (or of its squares), always in the same order. */
template <bool SQUARES> __global__ void sum_all(const float *x, float *out, int n)
{
	__shared__ float part[256];
	float s = 0;

	for (int i = threadIdx.x; i < n; i += 256)
		s += SQUARES ? x[i] * x[i] : x[i];
	part[threadIdx.x] = s;
	__syncthreads();
	for (int d = 128; d; d >>= 1) {
		if (threadIdx.x < d)
			part[threadIdx.x] += part[threadIdx.x + d];
		__syncthreads();
	}
	if (!threadIdx.x)
		out[0] = part[0];
}

struct adam_state {
	float lr, beta1, beta2, decay, fix1, fix2;
};

/* norm2 is the squared norm of all gradients, which is clipped at 1. */
__global__ void adamw(float *w, const float *g, float *m, float *v, const float *norm2,
		      adam_state a, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i >= n)
		return;
	float d = g[i] * fminf(1.0f, 1.0f / (sqrtf(norm2[0]) + 1e-6f));

	m[i] = a.beta1 * m[i] + (1.0f - a.beta1) * d;
	v[i] = a.beta2 * v[i] + (1.0f - a.beta2) * d * d;
	w[i] -= a.lr * (m[i] * a.fix1 / (sqrtf(v[i] * a.fix2) + 1e-8f) + a.decay * w[i]);
}

/* ---- the model ---- */

struct config {
	int layers = 3, dim = 64, ctx = 64, batch = 8, steps = 2000, every = 1, sample = 200;
	unsigned int seed = 1;
	float lr = 3e-3f;
	bool check = false;
	const char *text = "/usr/share/common-licenses/GPL-3";
};

/* Where each tensor lies in the one array of all weights; gradients have the same layout. */
enum { LN1W, LN1B, QKVW, QKVB, PROJW, PROJB, LN2W, LN2B, FCW, FCB, OUTW, OUTB, PER_LAYER };
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

/* What the forward pass leaves for the backward pass, per layer. */
struct activations {
	float *in, *ln1, *mean1, *rstd1, *qkv, *att, *lse, *mid, *ln2, *mean2, *rstd2, *fc, *act;
};

struct model {
	config c;
	int V;
	layout at;
	float *w, *g, *m, *v;
	std::vector<activations> acts;
	float *last, *lnf, *meanf, *rstdf, *logits, *losses, *loss, *norm2;
	float *dx, *dtmp, *dln, *dbig, *dot;
	int *tok, *want;
	cudaStream_t s;

	model(const config &c, int V);
	float *params(int l, int i) { return w + at.at(l, i); }
	float *grads(int l, int i) { return g + at.at(l, i); }
	void forward(int B);
	void backward(int B);
	void update(int step);
	void norm(const float *x, float *w, float *b, float *y, float *mean, float *rstd, int n);
	void norm_back(const float *dy, const float *x, float *w, float *mean, float *rstd,
		       float *dw, float *db, int n);
	void matmul(const float *x, const float *w, float *y, const float *b, const float *add,
		    int M, int N, int K);
	void matmul_back(const float *dy, const float *x, const float *w, float *dx, float *dw,
			 float *db, int M, int N, int K);
};

static float *room(size_t n)
{
	float *p;

	CHECK(cudaMalloc(&p, n * sizeof(float)));
	CHECK(cudaMemset(p, 0, n * sizeof(float)));
	return p;
}

model::model(const config &cfg, int vocab) : c(cfg), V(vocab), at(cfg, vocab)
{
	int n = c.batch * c.ctx, C = c.dim, heads = C / HEAD;
	std::vector<float> init(at.total);
	unsigned int seed = c.seed;

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

static int blocks(int n, int per)
{
	return (n + per - 1) / per;
}

void model::matmul(const float *x, const float *w, float *y, const float *b, const float *add,
		   int M, int N, int K)
{
	dim3 grid(blocks(N, TILE), blocks(M, TILE)), block(32, TILE / ROWS);

	gemm<false, false><<<grid, block, 0, s>>>(x, w, y, b, add, M, N, K);
}

void model::matmul_back(const float *dy, const float *x, const float *w, float *dx, float *dw,
			float *db, int M, int N, int K)
{
	dim3 block(32, TILE / ROWS), gx(blocks(K, TILE), blocks(M, TILE));
	dim3 gw(blocks(N, TILE), blocks(K, TILE));

	gemm<false, true><<<gx, block, 0, s>>>(dy, w, dx, NULL, NULL, M, K, N);
	gemm<true, false><<<gw, block, 0, s>>>(x, dy, dw, NULL, NULL, K, N, M);
	if (db)
		column_sums<<<blocks(N, 64), 64, 0, s>>>(dy, db, M, N);
}

void model::norm(const float *x, float *w, float *b, float *y, float *mean, float *rstd, int n)
{
	layernorm<<<blocks(n, 8), 256, 0, s>>>(x, w, b, y, mean, rstd, n, c.dim);
}

void model::norm_back(const float *dy, const float *x, float *w, float *mean, float *rstd,
		      float *dw, float *db, int n)
{
	layernorm_back<<<blocks(n, 8), 256, 0, s>>>(dy, x, w, mean, rstd, dx, dtmp, n, c.dim);
	column_sums<<<blocks(c.dim, 64), 64, 0, s>>>(dtmp, dw, n, c.dim);
	column_sums<<<blocks(c.dim, 64), 64, 0, s>>>(dy, db, n, c.dim);
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

/* Gradients of all weights; dx is the gradient of the residual stream all along. */
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

/* ---- the text ---- */

struct text {
	std::vector<int> data;
	std::vector<char> letters;

	text(const char *path)
	{
		FILE *f = fopen(path, "rb");
		int of[256], c;

		if (!f) {
			printf("FAIL gpt: no text %s\n", path);
			exit(1);
		}
		std::fill_n(of, 256, -1);
		std::string all;
		while ((c = fgetc(f)) != EOF) {
			all.push_back((char)c);
			of[c] = 0;
		}
		fclose(f);
		for (int i = 0; i < 256; i++)
			if (!of[i]) {
				of[i] = letters.size();
				letters.push_back((char)i);
			}
		for (char ch : all)
			data.push_back(of[(unsigned char)ch]);
	}
};

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
	cross_entropy<<<blocks(n, 8), 256, 0, m.s>>>(m.logits, m.want, m.losses, n, m.V, back);
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
