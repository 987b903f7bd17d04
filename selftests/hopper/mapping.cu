// SPDX-License-Identifier: Apache-2.0
/*
 * mapping.cu - memory of a device whose driver takes long to map and to pin, and may have none left
 *
 *   grow         allocates 9.7 GiB as a training program does; prints the ms that it took
 *   shared       allocates while a kernel runs that another thread has to end
 *   pins         registers 256 MiB; another thread's synchronisations must not wait for that
 *   crowd        allocates memory that another thread has freed, and that is not unmapped yet
 *   take MIB     takes memory, and ends when its input does
 *   full MIB     waits for a line, then allocates what it can in pieces of MIB, and goes on
 *
 * test-hopper runs it on the profile with slow-maps, slow-pins, neighbours.
 */
#include <cuda_runtime.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(call) do {									\
	cudaError_t _r = (call);								\
	if (_r) {										\
		printf("mapping.cu:%d: %s: %s\n", __LINE__, #call, cudaGetErrorString(_r));	\
		exit(1);									\
	}											\
} while (0)
#define EXPECT(cond) do {									\
	if (!(cond)) {										\
		printf("mapping.cu:%d: not %s\n", __LINE__, #cond);				\
		exit(1);									\
	}											\
} while (0)

#define MIB (1ul << 20)

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void grow(void)
{
	static const struct {
		int n;
		size_t len;
	} wanted[] = { { 64, 2 * MIB }, { 64, 20 * MIB }, { 8, 1024 * MIB }, { 1, 100 * MIB + 1000 } };
	char *p[160], edge[4];
	double begin = now_ms();
	int n = 0;

	for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
		for (int j = 0; j < wanted[i].n; j++)
			CHECK(cudaMalloc((void **)&p[n++], wanted[i].len));
	CHECK(cudaDeviceSynchronize());
	printf("grow %.0f ms\n", now_ms() - begin);
	/* Pieces follow each other without a seam. */
	CHECK(cudaMemset(p[128] + 512 * MIB - 2, 7, 4));
	CHECK(cudaMemcpy(edge, p[128] + 512 * MIB - 2, 4, cudaMemcpyDeviceToHost));
	EXPECT(!memcmp(edge, "\7\7\7\7", 4));
	while (n--)
		CHECK(cudaFree(p[n]));
}

__global__ void until(volatile int *flag)
{
	while (!*flag)
		;
}

static void *allocate(void *arg)
{
	void *p;

	CHECK(cudaMalloc(&p, 64 * MIB));
	return arg;
}

static void shared(void)
{
	cudaStream_t a, b;
	pthread_t t;
	int *flag;

	CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
	CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
	CHECK(cudaMalloc((void **)&flag, sizeof(*flag)));
	CHECK(cudaMemset(flag, 0, sizeof(*flag)));
	CHECK(cudaDeviceSynchronize());
	until<<<1, 1, 0, a>>>(flag);
	pthread_create(&t, NULL, allocate, NULL);
	usleep(300000);
	CHECK(cudaMemsetAsync(flag, 1, sizeof(*flag), b));
	pthread_join(t, NULL);
	CHECK(cudaDeviceSynchronize());
}

static int stop;

struct other {
	void *d;
	double longest;		/* ms that a synchronisation took */
};

static void *synchronise(void *arg)
{
	struct other *o = (struct other *)arg;
	double begin, ms;
	cudaStream_t s;

	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		begin = now_ms();
		CHECK(cudaMemsetAsync(o->d, 0, 4, s));
		CHECK(cudaStreamSynchronize(s));
		ms = now_ms() - begin;
		if (ms > o->longest)
			o->longest = ms;
		usleep(1000);
	}
	return NULL;
}

static void pins(void)
{
	size_t len = 256 * MIB;
	struct other o = { 0 };
	double begin, took;
	char *p = (char *)aligned_alloc(4096, len), *d, back[8];
	pthread_t t;

	memset(p, 5, len);
	CHECK(cudaMalloc((void **)&d, 4096));
	o.d = d;
	pthread_create(&t, NULL, synchronise, &o);
	usleep(100000);
	begin = now_ms();
	CHECK(cudaHostRegister(p, len, cudaHostRegisterMapped));
	/* The range can be used at once. */
	CHECK(cudaMemcpy(d + 64, p + len - 8, 8, cudaMemcpyHostToDevice));
	took = now_ms() - begin;
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	CHECK(cudaMemcpy(back, d + 64, 8, cudaMemcpyDeviceToHost));
	EXPECT(!memcmp(back, "\5\5\5\5\5\5\5\5", 8));
	CHECK(cudaHostUnregister(p));
	printf("registered in %.0f ms, the longest synchronisation took %.0f ms\n", took, o.longest);
	EXPECT(took > 400);
	EXPECT(o.longest < 200);
}

static void *give_back(void *p)
{
	CHECK(cudaFree(p));
	return NULL;
}

static void crowd(void)
{
	void *gone, *behind, *p;
	pthread_t t;

	CHECK(cudaMalloc(&gone, 300 * MIB));
	CHECK(cudaMalloc(&behind, 2 * MIB));	/* so that the gap is too short */
	pthread_create(&t, NULL, give_back, gone);
	usleep(100000);
	CHECK(cudaMalloc(&p, 320 * MIB));
	CHECK(cudaMemset(p, 1, 320 * MIB));
	CHECK(cudaDeviceSynchronize());
	pthread_join(t, NULL);
}

static void take(size_t len)
{
	void *p;

	CHECK(cudaMalloc(&p, len));
	CHECK(cudaDeviceSynchronize());
	printf("taken\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
}

/* Allocates as often as it can; all of it can be used. Returns how often. */
static int fill(size_t len, void **p, int max)
{
	int n = 0;
	cudaError_t r;

	while (n < max && !(r = cudaMalloc(&p[n], len)))
		CHECK(cudaMemset(p[n++], n, len));
	CHECK(cudaDeviceSynchronize());
	EXPECT(n < max && r == cudaErrorMemoryAllocation);
	cudaGetLastError();
	return n;
}

static void full(size_t len)
{
	static void *p[1000];
	char *before, byte;
	int n, m;

	CHECK(cudaMalloc((void **)&before, 20 * MIB));
	CHECK(cudaMemset(before, 3, 20 * MIB));
	CHECK(cudaDeviceSynchronize());
	printf("ready\n");
	fflush(stdout);
	while (getchar() != '\n')
		;
	n = fill(len, p, 1000);
	EXPECT(n > 3);
	/* The gaps are too short: what is kept mapped in them has to go. */
	CHECK(cudaFree(p[0]));
	CHECK(cudaFree(p[2]));
	CHECK(cudaMalloc(&p[0], 2 * len));
	CHECK(cudaMemset(p[0], 1, 2 * len));
	for (int i = 0; i < n; i++)
		if (i != 2)
			CHECK(cudaFree(p[i]));
	/* What is kept for later allocations gives way to those of another size. */
	m = fill(len / 2, p, 1000);
	printf("%d of %zu MiB, %d of half the size\n", n, len / MIB, m);
	EXPECT(m >= 2 * n && m <= 2 * n + 1);
	CHECK(cudaMemcpy(&byte, before + 20 * MIB - 1, 1, cudaMemcpyDeviceToHost));
	EXPECT(byte == 3);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	size_t len = (argc > 2 ? atoi(argv[2]) : 0) * MIB;

	if (!strcmp(what, "grow"))
		grow();
	else if (!strcmp(what, "shared"))
		shared();
	else if (!strcmp(what, "pins"))
		pins();
	else if (!strcmp(what, "crowd"))
		crowd();
	else if (!strcmp(what, "take"))
		take(len);
	else if (!strcmp(what, "full"))
		full(len);
	else
		return 2;
	printf("PASS mapping\n");
	return 0;
}
