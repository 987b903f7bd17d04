/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt.cuh - what the programs that train a GPT share: its kernels, their launches, the text
 *
 * No kernel adds floats atomically, so the same device gives the same weights each time. Matrices are
 * row-major, weights have inputs as rows: y[M,N] = x[M,K] w[K,N] + b[N].
 */
#ifndef GPT_CUH
#define GPT_CUH

#include "../job.cuh"

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

/* A warp for each row: its loss, and (if back) its logits become their gradients, of a mean over `of` rows. */
__global__ void cross_entropy(float *logits, const int *want, float *loss, int n, int V, bool back,
			      int of)
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
		logits[v] = (__expf(logits[v] - m) / s - (v == want[row])) / of;
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
/* ---- a layer: its tensors, and what the forward pass leaves for the backward pass ---- */

enum { LN1W, LN1B, QKVW, QKVB, PROJW, PROJB, LN2W, LN2B, FCW, FCB, OUTW, OUTB, PER_LAYER };

struct activations {
	float *in, *ln1, *mean1, *rstd1, *qkv, *att, *lse, *mid, *ln2, *mean2, *rstd2, *fc, *act;
};

/* ---- launches ---- */

static float *room(size_t n)
{
	float *p;

	CHECK(cudaMalloc(&p, n * sizeof(float)));
	CHECK(cudaMemset(p, 0, n * sizeof(float)));
	return p;
}

/* Kernels on a stream. dx is the gradient of the residual stream all along. */
struct math {
	cudaStream_t s;
	int dim;
	float *dx, *dtmp;

	void norm(const float *x, float *w, float *b, float *y, float *mean, float *rstd, int n);
	void norm_back(const float *dy, const float *x, float *w, float *mean, float *rstd,
		       float *dw, float *db, int n);
	void matmul(const float *x, const float *w, float *y, const float *b, const float *add,
		    int M, int N, int K);
	void matmul_back(const float *dy, const float *x, const float *w, float *dx, float *dw,
			 float *db, int M, int N, int K);
};

static int blocks(int n, int per)
{
	return (n + per - 1) / per;
}

void math::matmul(const float *x, const float *w, float *y, const float *b, const float *add,
		   int M, int N, int K)
{
	dim3 grid(blocks(N, TILE), blocks(M, TILE)), block(32, TILE / ROWS);

	gemm<false, false><<<grid, block, 0, s>>>(x, w, y, b, add, M, N, K);
}

void math::matmul_back(const float *dy, const float *x, const float *w, float *dx, float *dw,
			float *db, int M, int N, int K)
{
	dim3 block(32, TILE / ROWS), gx(blocks(K, TILE), blocks(M, TILE));
	dim3 gw(blocks(N, TILE), blocks(K, TILE));

	gemm<false, true><<<gx, block, 0, s>>>(dy, w, dx, NULL, NULL, M, K, N);
	gemm<true, false><<<gw, block, 0, s>>>(x, dy, dw, NULL, NULL, K, N, M);
	if (db)
		column_sums<<<blocks(N, 64), 64, 0, s>>>(dy, db, M, N);
}

void math::norm(const float *x, float *w, float *b, float *y, float *mean, float *rstd, int n)
{
	layernorm<<<blocks(n, 8), 256, 0, s>>>(x, w, b, y, mean, rstd, n, dim);
}

void math::norm_back(const float *dy, const float *x, float *w, float *mean, float *rstd,
		      float *dw, float *db, int n)
{
	layernorm_back<<<blocks(n, 8), 256, 0, s>>>(dy, x, w, mean, rstd, dx, dtmp, n, dim);
	column_sums<<<blocks(dim, 64), 64, 0, s>>>(dtmp, dw, n, dim);
	column_sums<<<blocks(dim, 64), 64, 0, s>>>(dy, db, n, dim);
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

#endif
