// SPDX-License-Identifier: Apache-2.0
/*
 * printing.cu - printf in kernels: the host's formats, the time of output, and too much of it.
 */
#include "../job.cuh"

#include <string>
#include <unistd.h>

__global__ void formats(const char *none)
{
	printf("plain\n");
	printf("%d %i %u %x %X %o %c %%\n", -5, 6, 7u, 0xbeef, 0xBEEF, 8, 'z');
	printf("[%5d] [%-5d] [%05d] [%+d] [% d]\n", 42, 42, 42, 42, 42);
	printf("%hhd %hd %ld %lld %llu %zu\n", 300, 70000, 1l << 40, -1ll, ~0ull, sizeof(int));
	printf("%f %.2f %e %g %10.3f|%-10.1f| %a\n", 1.5, 2.345, 12345.678, 0.0001, 3.14159, 2.5, 1.0);
	printf("%s %10s %-10s| %.2s\n", "text", "right", "left", "cut");
	printf("%*d %.*f\n", 6, 7, 2, 1.23456);
	printf("%p\n", (void *)0x1234);
	printf("many: %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d\n", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,
	       11, 12, 13, 14, 15, 16);
	printf("%f %f %f\n", INFINITY, -INFINITY, (double)0.1f);
}

__global__ void by_thread(int *returned)
{
	if (threadIdx.x % 8 == 3)
		returned[threadIdx.x / 8] = printf("thread %d of block %d\n", threadIdx.x, blockIdx.x);
}

__global__ void flood(int n)
{
	for (int i = 0; i < n; i++)
		printf("line %6d of a flood that the buffer can not hold ......................\n", i);
}

/* Runs what prints with stdout in a file, and gives the text. */
template <typename F> static std::string printed(F run)
{
	FILE *f = tmpfile();
	int old = dup(1);
	std::string s;
	char buf[65536];
	size_t n;

	EXPECT(f && old >= 0);
	fflush(stdout);
	dup2(fileno(f), 1);
	run();
	fflush(stdout);
	dup2(old, 1);
	close(old);
	rewind(f);
	while ((n = fread(buf, 1, sizeof(buf), f)) > 0)
		s.append(buf, n);
	fclose(f);
	return s;
}

static void same(const std::string &got, const std::string &want)
{
	if (got != want) {
		printf("FAIL printing: it says\n%sand not\n%s", got.c_str(), want.c_str());
		exit(1);
	}
	sum_bytes(got.data(), got.size());
}

int main()
{
	char want[4000];
	int n = 0, *returned;

	CHECK(cudaFree(0));
	n += sprintf(want + n, "plain\n");
	n += sprintf(want + n, "%d %i %u %x %X %o %c %%\n", -5, 6, 7u, 0xbeef, 0xBEEF, 8, 'z');
	n += sprintf(want + n, "[%5d] [%-5d] [%05d] [%+d] [% d]\n", 42, 42, 42, 42, 42);
	n += sprintf(want + n, "%hhd %hd %ld %lld %llu %zu\n", (char)300, (short)70000, 1l << 40, -1ll,
		     ~0ull, sizeof(int));
	n += sprintf(want + n, "%f %.2f %e %g %10.3f|%-10.1f| %a\n", 1.5, 2.345, 12345.678, 0.0001,
		     3.14159, 2.5, 1.0);
	n += sprintf(want + n, "%s %10s %-10s| %.2s\n", "text", "right", "left", "cut");
	n += sprintf(want + n, "%*d %.*f\n", 6, 7, 2, 1.23456);
	n += sprintf(want + n, "%p\n", (void *)0x1234);
	n += sprintf(want + n, "many: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n");
	n += sprintf(want + n, "%f %f %f\n", INFINITY, -INFINITY, (double)0.1f);
	same(printed([] {
		formats<<<1, 1>>>("");
		CHECK(cudaDeviceSynchronize());
	}), want);

	/* one after the other in a stream; the return value is the number of arguments */
	CHECK(cudaMallocManaged(&returned, 4 * sizeof(int)));
	same(printed([&] {
		for (int i = 0; i < 3; i++)
			by_thread<<<1, 32>>>(returned);
		CHECK(cudaDeviceSynchronize());
	}), "thread 3 of block 0\nthread 11 of block 0\nthread 19 of block 0\nthread 27 of block 0\n"
	    "thread 3 of block 0\nthread 11 of block 0\nthread 19 of block 0\nthread 27 of block 0\n"
	    "thread 3 of block 0\nthread 11 of block 0\nthread 19 of block 0\nthread 27 of block 0\n");
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(returned[i], 2);

	/* a synchronisation of its stream flushes; a host function does not see it earlier */
	cudaStream_t s;
	CHECK(cudaStreamCreate(&s));
	same(printed([&] {
		by_thread<<<1, 8, 0, s>>>(returned);
		CHECK(cudaStreamSynchronize(s));
		EXPECT(write(1, "after\n", 6) == 6);
	}), "thread 3 of block 0\nafter\n");

	/* more than the buffer holds: whole lines may be lost, nothing else goes wrong */
	size_t size;
	CHECK(cudaDeviceGetLimit(&size, cudaLimitPrintfFifoSize));
	EXPECT(size >= 1024);
	std::string all = printed([] {
		flood<<<1, 1>>>(40000);
		CHECK(cudaDeviceSynchronize());
	});
	EXPECT(all.size() && all.size() % 75 == 0 && all.size() <= 40000 * 75);
	for (size_t i = 0; i < all.size(); i += 75)
		EXPECT(!all.compare(i, 5, "line ") && all[i + 74] == '\n');
	same(printed([&] {
		by_thread<<<1, 8>>>(returned);
		CHECK(cudaDeviceSynchronize());
	}), "thread 3 of block 0\n");
	return job_passed("printing");
}
