// SPDX-License-Identifier: Apache-2.0
/*
 * atomics.cu - atomic operations of every width, operator, scope and place.
 *
 * Float sums use values whose sum is exact in any order. The results of the operations are checked,
 * too: the old values of n additions of 1 are 0 to n - 1, each once.
 */
#include "../job.cuh"

#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <functional>

typedef unsigned int u32;
typedef unsigned long long u64;

#define BLOCKS 20
#define THREADS 96
#define ALL (BLOCKS * THREADS)

struct cells {
	int add, sub, exch, min, max, and_, or_, xor_, cas;
	u32 uadd, usub, umin, umax, inc, dec;
	u64 ladd, lexch, lmax, lmin, land, lor, lxor, lcas;
	long long smin, smax;
	float fadd, fexch;
	double dadd;
	unsigned short scas;
	__half hadd;
	__half2 h2add;
	__nv_bfloat16 badd;
	__nv_bfloat162 b2add;
};

__device__ u32 mix(u32 x)
{
	x ^= x >> 16;
	x *= 0x7feb352du;
	x ^= x >> 15;
	return x * 0x846ca68bu;
}

/* All operations at one place; t is the thread's number in all of them. */
__device__ void operate(cells *c, int t)
{
	u32 r = mix(t);
	u64 w = (u64)mix(t + 77) << 32 | r;

	atomicAdd(&c->add, t - 500);
	atomicSub(&c->sub, t);
	atomicExch(&c->exch, t);
	atomicMin(&c->min, (int)r);
	atomicMax(&c->max, (int)r);
	atomicAnd(&c->and_, ~(1 << (t % 31)));
	atomicOr(&c->or_, 1 << (t % 30));
	atomicXor(&c->xor_, (int)r);
	atomicAdd(&c->uadd, r);
	atomicSub(&c->usub, r);
	atomicMin(&c->umin, r);
	atomicMax(&c->umax, r);
	atomicInc(&c->inc, 100);
	atomicDec(&c->dec, 100);
	atomicAdd(&c->ladd, w);
	atomicExch(&c->lexch, (u64)t);
	atomicMax(&c->lmax, w);
	atomicMin(&c->lmin, w);
	atomicAnd(&c->land, ~(1ull << (t % 63)));
	atomicOr(&c->lor, 1ull << (t % 60));
	atomicXor(&c->lxor, w);
	atomicMin(&c->smin, (long long)w);
	atomicMax(&c->smax, (long long)w);
	atomicAdd(&c->fadd, (t % 16) * 0.25f);
	atomicExch(&c->fexch, (float)t);
	atomicAdd(&c->dadd, t * 0.5);
	atomicAdd(&c->hadd, __float2half(t % 7 == 0 ? 1.0f : 0.0f));
	atomicAdd(&c->h2add, __floats2half2_rn(t % 5 == 0 ? 0.5f : 0.0f, t % 9 == 0 ? 2.0f : 0.0f));
	atomicAdd(&c->badd, __float2bfloat16(t % 16 == 0 ? 1.0f : 0.0f));
	atomicAdd(&c->b2add, __floats2bfloat162_rn(t % 16 == 1 ? 1.0f : 0.0f,
						   t % 24 == 2 ? -1.0f : 0.0f));

	/* compare and swap, as the loop that programs make their own operations of */
	int old = c->cas, seen;

	do {
		seen = old;
		old = atomicCAS(&c->cas, seen, seen * 3 == seen + 2 * seen ? seen + 2 : 0);
	} while (old != seen);
	u64 lold = c->lcas, lseen;

	do {
		lseen = lold;
		lold = atomicCAS(&c->lcas, lseen, lseen + ((u64)t << 20));
	} while (lold != lseen);
	unsigned short sold = c->scas, sseen;

	do {
		sseen = sold;
		sold = atomicCAS(&c->scas, sseen, (unsigned short)(sseen + 7));
	} while (sold != sseen);
}

__global__ void global_place(cells *c)
{
	operate(c, blockIdx.x * blockDim.x + threadIdx.x);
}

__global__ void shared_place(cells *out, const cells *init)
{
	__shared__ cells c;

	if (!threadIdx.x)
		c = *init;
	__syncthreads();
	for (int t = threadIdx.x; t < ALL; t += blockDim.x)
		operate(&c, t);
	__syncthreads();
	if (!threadIdx.x)
		*out = c;
}

__global__ void scopes(u32 *block, u32 *device, u64 *system)
{
	atomicAdd_block(&block[blockIdx.x], 1u);
	atomicAdd(device, 1u);
	atomicAdd_system(system, 1ull);
	atomicMax_system((u32 *)system + 2, threadIdx.x);
	atomicOr_block(&block[64 + blockIdx.x], 1u << (threadIdx.x % 32));
}

/* What was there before: each number once. */
__global__ void tickets(u32 *counter, u32 *mine)
{
	mine[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(counter, 1u);
}

/* A stack without a lock: all push, then all pop; each pops another's. */
__global__ void push(int *head, int *next)
{
	int t = blockIdx.x * blockDim.x + threadIdx.x, old = *(volatile int *)head, seen;

	do {
		seen = old;
		next[t] = seen;
		__threadfence();
		old = atomicCAS(head, seen, t);
	} while (old != seen);
}

/* A lock around what is no atomic. */
__global__ void locked(int *lock, long long *sum, int *longest)
{
	for (bool done = false; !done;) {
		if (atomicCAS(lock, 0, 1) == 0) {
			__threadfence();
			*(volatile long long *)sum += threadIdx.x;
			*(volatile int *)longest = max(*(volatile int *)longest, (int)threadIdx.x);
			__threadfence();
			atomicExch(lock, 0);
			done = true;
		}
	}
}

/* The last block to come adds up what all have left: fence and ticket. */
__global__ void last_block(const int *in, long long *part, u32 *ticket, long long *out)
{
	__shared__ bool last;
	__shared__ long long s[THREADS];
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	s[threadIdx.x] = in[i];
	__syncthreads();
	if (!threadIdx.x) {
		long long sum = 0;

		for (int k = 0; k < THREADS; k++)
			sum += s[k];
		part[blockIdx.x] = sum;
		__threadfence();
		last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
	}
	__syncthreads();
	if (last && !threadIdx.x) {
		long long sum = 0;

		for (int k = 0; k < gridDim.x; k++)
			sum += ((volatile long long *)part)[k];
		*out = sum;
	}
}

static u32 host_mix(u32 x)
{
	x ^= x >> 16;
	x *= 0x7feb352du;
	x ^= x >> 15;
	return x * 0x846ca68bu;
}

static cells start(void)
{
	cells c;

	memset(&c, 0, sizeof(c));
	c.min = c.umin = 0x7fffffff;
	c.max = -0x7fffffff;
	c.and_ = -1;
	c.inc = c.dec = 5;
	c.lmin = ~0ull;
	c.land = ~0ull;
	c.smin = 1ll << 62;
	c.smax = -(1ll << 62);
	c.cas = 1;
	return c;
}

static void check(const cells &c)
{
	cells w = start();
	float f = 0;
	double d = 0;
	int h = 0, h0 = 0, h1 = 0, b = 0, b0 = 0, b1 = 0;
	u32 inc = 5, dec = 5;

	for (int t = 0; t < ALL; t++) {
		u32 r = host_mix(t);
		u64 l = (u64)host_mix(t + 77) << 32 | r;

		w.add += t - 500;
		w.sub -= t;
		w.min = std::min(w.min, (int)r);
		w.max = std::max(w.max, (int)r);
		w.and_ &= ~(1 << (t % 31));
		w.or_ |= 1 << (t % 30);
		w.xor_ ^= (int)r;
		w.uadd += r;
		w.usub -= r;
		w.umin = std::min(w.umin, r);
		w.umax = std::max(w.umax, r);
		inc = inc >= 100 ? 0 : inc + 1;
		dec = dec == 0 || dec > 100 ? 100 : dec - 1;
		w.ladd += l;
		w.lmax = std::max(w.lmax, l);
		w.lmin = std::min(w.lmin, l);
		w.land &= ~(1ull << (t % 63));
		w.lor |= 1ull << (t % 60);
		w.lxor ^= l;
		w.smin = std::min(w.smin, (long long)l);
		w.smax = std::max(w.smax, (long long)l);
		f += (t % 16) * 0.25f;
		d += t * 0.5;
		h += t % 7 == 0;
		h0 += t % 5 == 0;
		h1 += t % 9 == 0;
		b += t % 16 == 0;
		b0 += t % 16 == 1;
		b1 += t % 24 == 2;
		w.cas += 2;
		w.lcas += (u64)t << 20;
		w.scas += 7;
	}
	EXPECT_EQ(c.add, w.add);
	EXPECT_EQ(c.sub, w.sub);
	EXPECT(c.exch >= 0 && c.exch < ALL && c.lexch < ALL && c.fexch >= 0 && c.fexch < ALL);
	EXPECT_EQ(c.min, w.min);
	EXPECT_EQ(c.max, w.max);
	EXPECT_EQ(c.and_, w.and_);
	EXPECT_EQ(c.or_, w.or_);
	EXPECT_EQ(c.xor_, w.xor_);
	EXPECT_EQ(c.uadd, w.uadd);
	EXPECT_EQ(c.usub, w.usub);
	EXPECT_EQ(c.umin, w.umin);
	EXPECT_EQ(c.umax, w.umax);
	EXPECT_EQ(c.inc, inc);
	EXPECT_EQ(c.dec, dec);
	EXPECT_EQ(c.ladd, w.ladd);
	EXPECT_EQ(c.lmax, w.lmax);
	EXPECT_EQ(c.lmin, w.lmin);
	EXPECT_EQ(c.land, w.land);
	EXPECT_EQ(c.lor, w.lor);
	EXPECT_EQ(c.lxor, w.lxor);
	EXPECT_EQ(c.smin, w.smin);
	EXPECT_EQ(c.smax, w.smax);
	EXPECT(c.fadd == f && c.dadd == d);
	EXPECT_EQ(c.cas, w.cas);
	EXPECT_EQ(c.lcas, w.lcas);
	EXPECT_EQ(c.scas, w.scas);
	EXPECT_EQ(__half2float(c.hadd), h);
	EXPECT(__low2float(c.h2add) == 0.5f * h0 && __high2float(c.h2add) == 2.0f * h1);
	EXPECT_EQ(__bfloat162float(c.badd), b);
	EXPECT(__low2float(c.b2add) == b0 && __high2float(c.b2add) == -b1);
	sum_bytes(&c.add, 8);
	sum_bytes(&c.ladd, 8);
	sum_bytes(&c.fadd, 4);
}

int main()
{
	std::vector<cells> c(1, start());
	cells *d = to_device(c), *init = to_device(c);

	global_place<<<BLOCKS, THREADS>>>(d);
	CHECK(cudaGetLastError());
	check(to_host(d, 1)[0]);
	shared_place<<<1, 128>>>(d, init);
	CHECK(cudaGetLastError());
	check(to_host(d, 1)[0]);

	u32 *u, *mine;
	u64 *sys;
	CHECK(cudaMalloc(&u, 4 * ALL));
	CHECK(cudaMalloc(&mine, 4 * ALL));
	CHECK(cudaMemset(u, 0, 4 * ALL));
	CHECK(cudaHostAlloc(&sys, 64, cudaHostAllocMapped));
	memset(sys, 0, 64);
	scopes<<<BLOCKS, THREADS>>>(u, u + 200, sys);
	CHECK(cudaDeviceSynchronize());
	std::vector<u32> v = to_host(u, ALL);
	for (int i = 0; i < BLOCKS; i++)
		EXPECT(v[i] == THREADS && v[64 + i] == ~0u);
	EXPECT_EQ(v[200], ALL);
	EXPECT(sys[0] == ALL && ((u32 *)sys)[2] == THREADS - 1);

	CHECK(cudaMemset(u, 0, 4));
	tickets<<<BLOCKS, THREADS>>>(u, mine);
	v = to_host(mine, ALL);
	std::sort(v.begin(), v.end());
	for (int i = 0; i < ALL; i++)
		EXPECT_EQ(v[i], i);

	int *head, *next;
	CHECK(cudaMalloc(&head, 4));
	CHECK(cudaMalloc(&next, 4 * ALL));
	CHECK(cudaMemset(head, 0xff, 4));
	push<<<BLOCKS, THREADS>>>(head, next);
	std::vector<int> nx = to_host(next, ALL), seen(ALL);
	int at = to_host(head, 1)[0], length = 0;
	for (; at >= 0; at = nx[at], length++)
		EXPECT(at < ALL && !seen[at]++);
	EXPECT_EQ(length, ALL);

	long long *sum;
	CHECK(cudaMalloc(&sum, 1024));
	CHECK(cudaMemset(sum, 0, 1024));
	CHECK(cudaMemset(head, 0, 4));
	locked<<<8, 64>>>(head, sum, (int *)(sum + 1));
	std::vector<long long> s = to_host(sum, 2);
	EXPECT_EQ(s[0], 8 * 63 * 32);
	EXPECT_EQ((int)s[1], 63);

	std::vector<int> in(ALL);
	unsigned int seed = 3;
	long long want = 0;
	for (int &x : in)
		want += x = (int)rnd(&seed) - 1000000;
	int *din = to_device(in);
	CHECK(cudaMemset(u, 0, 4));
	for (int round = 0; round < 5; round++) {
		last_block<<<BLOCKS, THREADS>>>(din, sum + 8, u, sum);
		EXPECT_EQ(to_host(sum, 1)[0], want);
	}
	sum_bytes(&want, 8);
	return job_passed("atomics");
}
