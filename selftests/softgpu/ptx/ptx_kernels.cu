// SPDX-License-Identifier: Apache-2.0
// ptx_kernels.cu - ordinary CUDA C++, compiled to PTX for ptx_exec.c.
#include <cassert>
#include <cstdio>
#include <cuda_fp16.h>

extern "C" {

__global__ void vector_add(const float *a, const float *b, float *c, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		c[i] = a[i] + b[i];
}

__global__ void block_sums(const int *a, int *out, int n)
{
	__shared__ int s[256];
	int x = 0;

	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		x += a[i];
	s[threadIdx.x] = x;
	__syncthreads();
	for (int k = blockDim.x / 2; k; k >>= 1) {
		if (threadIdx.x < k)
			s[threadIdx.x] += s[threadIdx.x + k];
		__syncthreads();
	}
	if (!threadIdx.x)
		out[blockIdx.x] = s[0];
}

__global__ void divergent_loops(int *o)
{
	int t = threadIdx.x, r = 0;

	for (int i = 0; i < t; i++) {
		if (i & 1)
			r += i * t;
		else if (i % 3 == 0)
			continue;
		else
			r -= i;
		if (r > 5000)
			break;
	}
	o[t] = r;
}

/* Each lane waits for the one before it: needs progress of diverged lanes. */
__global__ void lane_chain(volatile int *flag, int *order)
{
	int t = threadIdx.x;

	while (flag[0] != t)
		;
	order[t] = atomicAdd((int *)flag + 1, 1);
	__threadfence();
	flag[0] = t + 1;
}

__global__ void spin_lock(int *lock, int *count)
{
	while (atomicCAS(lock, 0, 1) != 0)
		;
	*(volatile int *)count = *(volatile int *)count + 1;
	__threadfence();
	atomicExch(lock, 0);
}

/* Block k waits for block k + 1: they must be in flight together. */
__global__ void blocks_backwards(volatile int *flag)
{
	if (threadIdx.x == 0) {
		while (blockIdx.x + 1 < gridDim.x && !flag[blockIdx.x + 1])
			;
		flag[blockIdx.x] = 1;
	}
}

/* Work by tickets, sums in the order of arrival: blocks take turns, and compute between them. */
__global__ void tickets(const float *__restrict__ a, float *sum, int *next, int *who, int n)
{
	__shared__ int ticket;
	__shared__ float part[64];
	float s = 0;
	int i, k;

	if (!threadIdx.x)
		ticket = atomicAdd(next, 1);
	__syncthreads();
	for (k = 0; k < 1 + ticket % 5; k++) {
		for (i = threadIdx.x; i < n; i += 64)
			s += __ldg(a + (i * 7 + ticket) % n) / (k + 1);
		part[threadIdx.x] = s;
		__syncthreads();
		s += part[threadIdx.x ^ 33];
		__syncthreads();
	}
	who[ticket] = blockIdx.x;
	atomicAdd(sum, s);
}

/* As blocks_backwards, with a barrier in the loop. */
__global__ void blocks_backwards_together(volatile int *flag)
{
	__shared__ int seen;

	for (;;) {
		if (!threadIdx.x)
			seen = blockIdx.x + 1 == gridDim.x || flag[blockIdx.x + 1];
		__syncthreads();
		if (seen)
			break;
		__syncthreads();
	}
	flag[blockIdx.x] = 1;
}

/* All blocks but one wait for what never comes. */
__global__ void turns_and_a_trap(volatile int *flag)
{
	__shared__ int seen;

	seen = 0;
	__syncthreads();
	if (blockIdx.x == 13)
		__trap();
	while (!flag[0])
		seen++;
	__syncthreads();
	flag[1] = seen;
}

__device__ __noinline__ int fib(int n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

__global__ void recursion(int *o)
{
	o[threadIdx.x] = fib(threadIdx.x % 12);
}

__device__ int twice(int x) { return 2 * x; }
__device__ int square(int x) { return x * x; }
__device__ int (*table[2])(int) = { twice, square };

__global__ void function_pointers(int *o)
{
	o[threadIdx.x] = table[threadIdx.x % 2](threadIdx.x);
}

__global__ void warp_ops(const int *a, int *sum, unsigned *ballot, int *scan, unsigned *match)
{
	int t = threadIdx.x, v = a[t], s = v;

	for (int k = 16; k; k >>= 1)
		s += __shfl_xor_sync(~0u, s, k);
	sum[t] = s;
	ballot[t] = __ballot_sync(~0u, v & 1);
	s = v;
	for (int k = 1; k < 32; k <<= 1) {
		int x = __shfl_up_sync(~0u, s, k);

		if ((t & 31) >= k)
			s += x;
	}
	scan[t] = s;
	match[t] = __match_any_sync(~0u, v & 3);
}

/* Half of the lanes call a shuffle with their own mask inside a branch. */
__global__ void split_shuffle(int *o)
{
	int t = threadIdx.x, v = t;

	if (t & 1)
		v = __shfl_sync(0xaaaaaaaau, v, 31);
	else
		v = __shfl_sync(0x55555555u, v, 0);
	o[t] = v + __popc(__activemask());
}

__global__ void histogram(const int *a, int *h, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		atomicAdd(&h[a[i] & 15], 1);
}

__global__ void float_sum(const float *a, float *s, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		atomicAdd(s, a[i]);
}

__global__ void local_arrays(int *o, int k)
{
	int a[16];

	for (int i = 0; i < 16; i++)
		a[i] = i * threadIdx.x;
	for (int i = 0; i < 16; i++)
		a[(i * k + threadIdx.x) & 15] += i;
	int s = 0;
	for (int i = 0; i < 16; i++)
		s = s * 3 + a[i];
	o[threadIdx.x] = s;
}

__global__ void prints(int x)
{
	if (threadIdx.x < 2)
		printf("block %d thread %u: %s %5.2f %lld %c%%\n", blockIdx.x, threadIdx.x, "text",
		       x * 0.5, (long long)x << 40, 'z');
}

__global__ void print_returns(int *o, const char *none)
{
	o[0] = printf("thread %d of block %d\n", threadIdx.x, blockIdx.x);
	o[1] = printf("nothing %%\n");
	o[2] = printf("%*d\n", 3, 4);
	o[3] = printf(none);
}

/* Lanes of one warp, in step, with masks of their own. */
__global__ void tiles(unsigned int *o)
{
	unsigned int l = threadIdx.x, m = 0xffu << (l & ~7), sum;
	int all;

	o[l] = __any_sync(m, l == 5) + 2 * (__ballot_sync(m, l & 1) == (m & 0xaaaaaaaa)) +
	       4 * __all_sync(m, l != 9);
	o[32 + l] = __match_any_sync(m, l % 3);
	o[64 + l] = __match_all_sync(m, l < 8, &all) + 1000 * all;
	o[96 + l] = __match_all_sync(m, l < 4, &all) + 1000 * all;
	asm volatile("redux.sync.add.u32 %0, %1, %2;" : "=r"(sum) : "r"(l), "r"(m));
	o[128 + l] = sum;
}

/* Tiles that go different ways, and meet at collectives of their own. */
__global__ void tiles_apart(int *o)
{
	int l = threadIdx.x, s;
	unsigned int m = l < 16 ? 0xffff : 0xffff0000;

	s = l & 1 && l < 16 ? 10 : l;
	if (l % 4 == 3)
		s += __popc(l);
	__syncwarp(m);
	for (int d = 8; d; d /= 2)
		s += __shfl_xor_sync(m, s, d);
	if (l < 16) {
		for (int i = 0; i < l; i++)
			s += i;
		s += __shfl_sync(m, s, 3);
	} else {
		s -= __shfl_sync(m, s, 20);
	}
	o[l] = s;
}

/* Lanes that do not load have no address: who = 32 is nobody, 31 the last lane alone. */
__global__ void some_load(const char *bad, const float4 *good, float *o, int who)
{
	int l = threadIdx.x;
	const char *p = l >= who ? (const char *)(good + l * 5) : bad + l * 4100;
	float4 a = {}, b = {};
	float2 c = {};
	double d = 0;
	float e = 0;

	asm volatile("{ .reg .pred q; setp.ge.s32 q, %12, %13;\n"
		     "@q ld.global.v4.f32 {%0, %1, %2, %3}, [%11];\n"
		     "@q ld.global.v2.f32 {%4, %5}, [%11];\n"
		     "@q ld.global.f64 %6, [%11]; @q ld.global.f32 %7, [%11];\n"
		     "@q ld.global.v2.f32 {%8, %9}, [%11+8]; @q st.global.f32 [%11+12], %10; }"
		     : "+f"(a.x), "+f"(a.y), "+f"(a.z), "+f"(a.w), "+f"(c.x), "+f"(c.y), "+d"(d),
		       "+f"(e), "+f"(b.x), "+f"(b.y)
		     : "f"(7.0f), "l"(p), "r"(l), "r"(who));
	o[l] = a.x + a.w + c.y + (float)d + e + b.x;
}

/* Two loops with one head: lanes are in different rounds of the outer one. */
__global__ void lock_rounds(int *lock, volatile int *value, int rounds)
{
	for (int i = 0; i < rounds; i++) {
		while (atomicCAS(lock, 0, 1))
			;
		__threadfence();
		*value = *value + 1;
		__threadfence();
		atomicExch(lock, 0);
	}
}

__global__ void skips(int *o, const int *x, int n)
{
	int i = 0, j = 0, s = 0;

	for (;;) {
		i++;
		if (x[(i * 7 + threadIdx.x) % 64] & 1)
			continue;
		j++;
		s += i;
		if (j > n)
			break;
	}
	o[threadIdx.x] = s * 1000 + j;
}

__global__ void asserts(int x)
{
	assert(x == 3);
}

__global__ void traps(int x)
{
	if (threadIdx.x == x)
		__trap();
}

__global__ void store_at(int *p, long long step)
{
	p[(blockIdx.x * blockDim.x + threadIdx.x) * step] = threadIdx.x;
}

__global__ void load_at(const char *p, int *out)
{
	out[blockIdx.x * blockDim.x + threadIdx.x] = *(const int *)(p + threadIdx.x * 4);
}

__global__ void shared_overrun(int *o, int n)
{
	__shared__ int s[32];

	s[threadIdx.x * n] = 1;
	o[threadIdx.x] = s[threadIdx.x];
}

__global__ void forever(volatile int *p)
{
	while (p[0] == 0)
		p[1] = threadIdx.x;
}

__device__ __noinline__ int deep(int n, volatile int *p)
{
	int a[64];

	a[n & 63] = n;
	return p[0] ? 0 : deep(n + 1, p) + a[(n + 1) & 63];
}

__global__ void endless_recursion(volatile int *p)
{
	p[1] = deep(0, p);
}

__global__ void half_math(const float *a, float *o)
{
	int t = threadIdx.x;
	__half2 h = __floats2half2_rn(a[t], a[t + 1]);

	h = __hfma2(h, h, h);
	o[2 * t] = __low2float(h);
	o[2 * t + 1] = __high2float(h);
}

__global__ void transpose(const float *in, float *out, int n)
{
	__shared__ float tile[32][33];
	int x = blockIdx.x * 32 + threadIdx.x, y = threadIdx.y;

	for (int k = 0; k < 32; k += 8)
		tile[y + k][threadIdx.x] = in[(y + k) * n + x];
	__syncthreads();
	for (int k = 0; k < 32; k += 8)
		out[(blockIdx.x * 32 + y + k) * 32 + threadIdx.x] = tile[threadIdx.x][y + k];
}

__global__ void heap(int **out)
{
	int *p = (int *)malloc(64);

	if (p)
		for (int i = 0; i < 16; i++)
			p[i] = threadIdx.x * i;
	out[threadIdx.x] = p;
}

/*
 * A value is read behind a barrier and overwritten by another warp, with nothing in between: on a device
 * all have read before anybody writes.
 */
#define LATE(name, place, barrier, read, write)					\
__global__ void name(int *out, int rounds)					\
{										\
	place									\
	int t = threadIdx.x, n = blockDim.x;					\
										\
	s[t] = 7 * t;								\
	__syncthreads();							\
	for (int k = 0; k < rounds; k++) {					\
		int from = (t + 34 * (k + 1)) % n;				\
										\
		read;								\
		write;								\
		barrier;							\
	}									\
	out[blockIdx.x * n + t] = s[t];						\
}
#define LATE_SHARED __shared__ int s[1024];
#define LATE_NEW (3 * v + t + k)

LATE(late_shared, LATE_SHARED, __syncthreads(), int v = s[from], s[t] = LATE_NEW)
LATE(late_global, int *s = out + (gridDim.x + blockIdx.x) * blockDim.x;, __syncthreads(), int v = s[from],
     s[t] = LATE_NEW)
LATE(late_atomic, LATE_SHARED, __syncthreads(), int v = s[from], atomicExch(&s[t], LATE_NEW))
LATE(late_reduce, LATE_SHARED, __syncthreads(), int v = s[from], atomicAdd(&s[t], LATE_NEW - s[t]))
LATE(late_count, LATE_SHARED, k += __syncthreads_count(t < 0), int v = s[from], s[t] = LATE_NEW)
LATE(late_named, LATE_SHARED, asm volatile("bar.sync 3, %0;" : : "r"(n) : "memory"), int v = s[from],
     s[t] = LATE_NEW)
/* the two halves of each warp part; lanes read what their own half of another warp writes */
LATE(late_sides, LATE_SHARED, __syncthreads(), int v, if (t & 1) {
		v = s[from];
		s[t] = LATE_NEW;
	} else {
		v = s[from];
		for (int i = 0; i < (t & 6); i++)
			v += s[from] & 1;
		s[t] = LATE_NEW;
	})
/* warps of even number write in the odd rounds, the others read all the same and have their say later */
LATE(late_some, LATE_SHARED, __syncthreads(), int v = s[from], if ((t / 32 + k) & 1)
		s[t] = LATE_NEW;
	__syncthreads();
	if (!((t / 32 + k) & 1))
		s[t] = LATE_NEW)

__device__ __noinline__ void late_put(int *s, int v, int depth)
{
	if (depth > 0)
		late_put(s, v, depth - 1);
	else
		*s = v;
}

LATE(late_call, LATE_SHARED, __syncthreads(), int v = s[from], late_put(&s[t], LATE_NEW, rounds / 2))

/* A warp waits for another's first write behind the barrier: none may hold the other up for good. */
__global__ void late_flag(int *out, int who)
{
	__shared__ volatile int flag;

	if (!threadIdx.x)
		flag = 0;
	__syncthreads();
	if (threadIdx.x / 32 == who)
		flag = 1;
	else
		while (!flag)
			;
	out[threadIdx.x] = flag;
}

}
