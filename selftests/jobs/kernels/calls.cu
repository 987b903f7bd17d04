// SPDX-License-Identifier: Apache-2.0
/*
 * calls.cu - device functions: recursion, pointers, virtual functions, lambdas, the heap.
 */
#include "../job.cuh"

__device__ __noinline__ int fib(int n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

__device__ __noinline__ int odd(int n);
__device__ __noinline__ int even(int n)
{
	return n ? odd(n - 1) : 1;
}
__device__ __noinline__ int odd(int n)
{
	return n ? even(n - 1) : 0;
}

/* Quicksort of each thread's own array: recursion with pointers into local memory. */
__device__ void quicksort(int *a, int n)
{
	if (n < 2)
		return;
	int p = a[n / 2], i = 0, j = n - 1;

	for (;;) {
		while (a[i] < p)
			i++;
		while (a[j] > p)
			j--;
		if (i >= j)
			break;
		int t = a[i];
		a[i++] = a[j];
		a[j--] = t;
	}
	quicksort(a, i);
	quicksort(a + i, n - i);
}

__device__ int queens(int n, unsigned int cols, unsigned int d1, unsigned int d2)
{
	unsigned int all = (1u << n) - 1, free = all & ~(cols | d1 | d2);
	int found = 0;

	if (cols == all)
		return 1;
	while (free) {
		unsigned int bit = free & -free;

		free ^= bit;
		found += queens(n, cols | bit, (d1 | bit) << 1, (d2 | bit) >> 1);
	}
	return found;
}

__global__ void recursions(int *out, const int *in)
{
	int t = threadIdx.x, a[40];

	out[t] = fib(t % 14) + 1000 * even(t * 3);
	for (int i = 0; i < 40; i++)
		a[i] = in[(t * 17 + i * 31) % 512];
	quicksort(a, 40);
	int bad = 0;
	for (int i = 1; i < 40; i++)
		bad += a[i - 1] > a[i];
	out[64 + t] = bad * 100000 + a[0] + a[39];
	out[128 + t] = queens(5 + t % 4, 0, 0, 0);
}

typedef float (*unary)(float);
__device__ float half_of(float x) { return x / 2; }
__device__ float negated(float x) { return -x; }
__device__ float plus_one(float x) { return x + 1; }
__device__ float squared(float x) { return x * x; }
__device__ unary functions[4] = { half_of, negated, plus_one, squared };
__device__ unary chosen = squared;

/* Each lane calls another function; the pointer may come from the host, which got it by name. */
__global__ void pointers(float *p, unary from_host)
{
	int i = threadIdx.x;
	float x = p[i];

	for (int k = 0; k < 6; k++)
		x = functions[(i + k) % 4](x);
	x = chosen(x);
	p[i] = from_host(x);
}

struct animal {
	int age;
	__device__ animal(int a) : age(a) {}
	__device__ virtual ~animal() {}
	__device__ virtual int legs() const = 0;
	__device__ virtual int sound() const { return age; }
};
struct dog : animal {
	__device__ dog(int a) : animal(a) {}
	__device__ int legs() const override { return 4; }
	__device__ int sound() const override { return animal::sound() * 2; }
};
struct bird : animal {
	int wings;
	__device__ bird(int a) : animal(a), wings(2) {}
	__device__ int legs() const override { return 2; }
	__device__ int sound() const override { return age + wings * 100; }
};
struct parrot : bird {
	__device__ parrot(int a) : bird(a) {}
	__device__ int sound() const override { return 7777 + bird::sound(); }
};

__global__ void make(animal **zoo, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		zoo[i] = i % 3 == 0 ? (animal *)new dog(i) : i % 3 == 1 ? (animal *)new bird(i) :
									 (animal *)new parrot(i);
}

__global__ void listen(animal **zoo, int *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n) {
		const animal *a = zoo[n - 1 - i];

		out[i] = a ? a->legs() * 1000000 + a->sound() : -1;
	}
}

__global__ void release(animal **zoo, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		delete zoo[i];
}

/* The heap: lists that live from launch to launch, blocks that are freed by other threads. */
struct cell {
	cell *next;
	int v;
};

__global__ void push(cell **lists, int v)
{
	cell *c = (cell *)malloc(sizeof(cell));

	if (c) {
		c->next = lists[threadIdx.x];
		c->v = v + threadIdx.x;
		lists[threadIdx.x] = c;
	}
}

__global__ void drain(cell **lists, int *sums)
{
	int t = threadIdx.x, from = (t + 1) % blockDim.x, s = 0, n = 0;

	for (cell *c = lists[from]; c;) {
		cell *next = c->next;

		s += c->v;
		n++;
		free(c);
		c = next;
	}
	lists[from] = NULL;
	sums[t] = s * 100 + n;
}

template <typename F> __global__ void apply(int *p, F f)
{
	p[threadIdx.x] = f(p[threadIdx.x], threadIdx.x);
}

struct polynomial {
	int a, b;
	__host__ __device__ int operator()(int x, int i) const { return a * x + b * i; }
};

static int host_queens(int n, unsigned int cols, unsigned int d1, unsigned int d2)
{
	unsigned int all = (1u << n) - 1;
	int found = 0;

	if (cols == all)
		return 1;
	for (unsigned int bit = 1; bit <= all; bit <<= 1)
		if (!((cols | d1 | d2) & bit))
			found += host_queens(n, cols | bit, (d1 | bit) << 1, (d2 | bit) >> 1);
	return found;
}

static int host_fib(int n)
{
	return n < 2 ? n : host_fib(n - 1) + host_fib(n - 2);
}

int main()
{
	std::vector<int> in(512), v;
	unsigned int seed = 40;
	int *out;

	for (int &x : in)
		x = rnd(&seed) % 1000;
	CHECK(cudaMalloc(&out, 4096));
	CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 16384));
	size_t stack;
	CHECK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
	EXPECT(stack >= 16384);
	recursions<<<1, 64>>>(out, to_device(in));
	CHECK(cudaGetLastError());
	v = to_host(out, 192);
	for (int t = 0; t < 64; t++) {
		int lo = 1 << 30, hi = -1;

		for (int i = 0; i < 40; i++) {
			lo = std::min(lo, in[(t * 17 + i * 31) % 512]);
			hi = std::max(hi, in[(t * 17 + i * 31) % 512]);
		}
		EXPECT_EQ(v[t], host_fib(t % 14) + 1000 * (t * 3 % 2 == 0));
		EXPECT_EQ(v[64 + t], lo + hi);
		EXPECT_EQ(v[128 + t], host_queens(5 + t % 4, 0, 0, 0));
	}
	sum_vector(v);

	std::vector<float> f(96), want;
	unary by_name;
	for (float &x : f)
		x = rndf(&seed);
	want = f;
	float *df = to_device(f);
	CHECK(cudaMemcpyFromSymbol(&by_name, chosen, sizeof(by_name)));
	pointers<<<1, 96>>>(df, by_name);
	CHECK(cudaGetLastError());
	f = to_host(df, 96);
	for (int i = 0; i < 96; i++) {
		for (int k = 0; k < 6; k++) {
			float x = want[i];

			want[i] = (i + k) % 4 == 0 ? x / 2 : (i + k) % 4 == 1 ? -x :
				  (i + k) % 4 == 2 ? x + 1 : x * x;
		}
		want[i] = want[i] * want[i];
		EXPECT(f[i] == want[i] * want[i]);
	}
	sum_vector(f);

	animal **zoo;
	const int n = 200;
	CHECK(cudaMalloc(&zoo, n * sizeof(*zoo)));
	make<<<2, 128>>>(zoo, n);
	listen<<<2, 128>>>(zoo, out, n);
	CHECK(cudaGetLastError());
	v = to_host(out, n);
	for (int i = 0; i < n; i++) {
		int k = n - 1 - i, w = k % 3 == 0 ? 4000000 + 2 * k : 2000000 + k + 200 +
							      (k % 3 == 2 ? 7777 : 0);

		EXPECT_EQ(v[i], w);
	}
	release<<<2, 128>>>(zoo, n);
	CHECK(cudaDeviceSynchronize());

	cell **lists;
	CHECK(cudaMalloc(&lists, 64 * sizeof(*lists)));
	CHECK(cudaMemset(lists, 0, 64 * sizeof(*lists)));
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 20; i++)
			push<<<1, 64>>>(lists, i * i);
		drain<<<1, 64>>>(lists, out);
		v = to_host(out, 64);
		for (int t = 0; t < 64; t++)
			EXPECT_EQ(v[t], (2470 + 20 * ((t + 1) % 64)) * 100 + 20);
	}
	CHECK(cudaMemset(out, 1, 256));
	apply<<<1, 64>>>(out, polynomial{ 3, -7 });
	v = to_host(out, 64);
	for (int i = 0; i < 64; i++)
		EXPECT_EQ(v[i], 3 * 0x01010101 - 7 * i);
	return job_passed("calls");
}
