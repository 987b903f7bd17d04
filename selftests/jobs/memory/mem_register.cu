// SPDX-License-Identifier: Apache-2.0
/*
 * mem_register.cu - registered host memory: kernels that use it, forks, ranges that overlap or are
 * not whole pages, ranges that are unmapped, many at once.
 */
#include "../job.cuh"

#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

__global__ void add(unsigned int *p, unsigned int v, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] += v + i;
}

static unsigned int *pages(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EXPECT(p != MAP_FAILED);
	return (unsigned int *)p;
}

/* What a child writes is its own, registered or not; it can unmap it, and it leaves all as it was. */
static void forked(void)
{
	const int n = 50000;
	const size_t size = 200704;		/* 49 pages */
	unsigned int *p = pages(size), *d;
	int status, go[2], done[2];
	char c = 0;
	pid_t pid;

	for (int i = 0; i < n; i++)
		p[i] = i;
	CHECK(cudaHostRegister(p, size, cudaHostRegisterMapped));
	CHECK(cudaHostGetDevicePointer(&d, p, 0));
	EXPECT(!pipe(go) && !pipe(done));
	fflush(stdout);
	pid = fork();
	if (!pid) {
		for (int i = 0; i < n; i++)
			if (p[i] != (unsigned int)i)
				_exit(2);
		memset(p, 1, size);
		if (write(done[1], &c, 1) != 1 || read(go[0], &c, 1) != 1)
			_exit(3);
		for (size_t i = 0; i < size; i++)
			if (((char *)p)[i] != 1)
				_exit(4);	/* the parent's kernel has written here */
		munmap(p, size);
		_exit(0);
	}
	EXPECT(read(done[0], &c, 1) == 1);
	for (int i = 0; i < n; i++)
		EXPECT_EQ(p[i], i);
	add<<<(n + 127) / 128, 128>>>(d, 7, n);
	CHECK(cudaDeviceSynchronize());
	EXPECT(write(go[1], &c, 1) == 1);
	EXPECT(waitpid(pid, &status, 0) == pid);
	EXPECT_EQ(status, 0);
	for (int i = 0; i < n; i++)
		EXPECT_EQ(p[i], 2 * i + 7);
	CHECK(cudaHostUnregister(p));
	for (int i = 0; i < n; i++)
		EXPECT_EQ(p[i], 2 * i + 7);
	sum_bytes(p, n * 4);
	munmap(p, size);
	for (int fd : { go[0], go[1], done[0], done[1] })
		close(fd);
}

/* Ranges side by side are apart; overlapping ones are refused; the middle of one is not its name. */
static void neighbours(void)
{
	const size_t size = 4096 * 4;
	unsigned int *p = pages(4 * size), *a, *b;
	char *at = (char *)p;

	CHECK(cudaHostRegister(at, size, 0));
	CHECK(cudaHostRegister(at + size, size, 0));
	EXPECT_ERROR(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(at + size / 2, size, 0));
	EXPECT_ERROR(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(at, 4 * size, 0));
	EXPECT_ERROR(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(at + 4096));
	EXPECT_ERROR(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(at + 3 * size));
	(void)cudaGetLastError();
	CHECK(cudaHostGetDevicePointer(&a, at, 0));
	CHECK(cudaHostGetDevicePointer(&b, at + size + 4096, 0));
	add<<<1, 128>>>(a, 1, 128);
	add<<<1, 128>>>(b, 2, 128);
	CHECK(cudaDeviceSynchronize());
	EXPECT_EQ(p[5], 6);
	EXPECT_EQ(p[(size + 4096) / 4 + 9], 11);
	CHECK(cudaHostUnregister(at));
	EXPECT_EQ(p[5], 6);
	EXPECT_EQ(p[(size + 4096) / 4 + 9], 11);
	CHECK(cudaHostUnregister(at + size));
	EXPECT_EQ(p[(size + 4096) / 4 + 9], 11);
	sum_bytes(p, 4 * size);
	munmap(p, 4 * size);
}

/* Memory that is unmapped, or mapped anew, before it is unregistered: nothing of it comes back. */
static void vanishing(void)
{
	const size_t size = 4096 * 16;
	unsigned int *p = pages(size);
	void *q;

	memset(p, 3, size);
	CHECK(cudaHostRegister(p, size, 0));
	munmap((char *)p + size / 2, size / 2);
	q = mmap((char *)p + size / 2, size / 4, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	EXPECT(q != MAP_FAILED);
	memset(q, 9, size / 4);
	CHECK(cudaHostUnregister(p));
	for (size_t i = 0; i < size / 2; i++)
		EXPECT_EQ(((char *)p)[i], 3);
	for (size_t i = 0; i < size / 4; i++)
		EXPECT_EQ(((char *)q)[i], 9);
	munmap(p, size);
	EXPECT_ERROR(cudaErrorInvalidValue, cudaHostRegister(NULL, size, 0));
	(void)cudaGetLastError();
}

static void many(int id)
{
	unsigned int seed = id, *p[40], *d;
	size_t len[40];

	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 40; i++) {
			len[i] = 4096 * (1 + rnd(&seed) % 20);
			p[i] = pages(len[i]);
			for (size_t k = 0; k < len[i] / 4; k++)
				p[i][k] = i + k;
			CHECK(cudaHostRegister(p[i], len[i], 0));
		}
		for (int i = 0; i < 40; i++) {
			CHECK(cudaHostGetDevicePointer(&d, p[i], 0));
			add<<<len[i] / 512, 128>>>(d, i, len[i] / 4);
		}
		CHECK(cudaDeviceSynchronize());
		for (int i = 0; i < 40; i++) {
			if (i % 2)
				CHECK(cudaHostUnregister(p[i]));
			for (size_t k = 0; k < len[i] / 4; k++)
				EXPECT_EQ(p[i][k], 2 * (i + k));
			if (i % 2 == 0)
				CHECK(cudaHostUnregister(p[i]));
			munmap(p[i], len[i]);
		}
	}
}

int main(void)
{
	std::vector<std::thread> t;

	forked();
	neighbours();
	vanishing();
	for (int i = 0; i < 3; i++)
		t.emplace_back(many, i);
	for (std::thread &x : t)
		x.join();
	return job_passed("mem_register");
}
