// SPDX-License-Identifier: Apache-2.0
/*
 * forks.cu - children: forked before CUDA is used, they may use it; after, their calls fail.
 */
#include "../job.cuh"

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

__global__ void triple(int *p)
{
	p[threadIdx.x] *= 3;
}

static void work(int v)
{
	std::vector<int> h(32, v);
	int *d = to_device(h);

	triple<<<1, 32>>>(d);
	CHECK(cudaGetLastError());
	for (int x : to_host(d, 32))
		EXPECT_EQ(x, 3 * v);
	CHECK(cudaFree(d));
}

static void join(pid_t pid, int want)
{
	int status;

	EXPECT(waitpid(pid, &status, 0) == pid);
	EXPECT(WIFEXITED(status));
	EXPECT_EQ(WEXITSTATUS(status), want);
}

template <typename F> static pid_t child(F f)
{
	fflush(stdout);
	pid_t pid = fork();

	EXPECT(pid >= 0);
	if (!pid) {
		f();
		fflush(stdout);
		_exit(7);
	}
	return pid;
}

int main(int argc, char **argv)
{
	int *kept, *pinned, n;
	cudaStream_t s;

	if (argc > 1) {		/* what a child executes */
		work(atoi(argv[1]));
		return 5;
	}
	/* two children before any call of ours, at the same time; each is a user of its own */
	pid_t a = child([] { work(5); }), b = child([] { work(6); work(7); });

	join(a, 7);
	join(b, 7);
	work(8);
	std::vector<int> h(1000, 11);
	kept = to_device(h);
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaMallocHost(&pinned, 4096));
	pinned[0] = 77;

	/* after initialisation a child can use nothing: an error, no hang, no effect on us */
	join(child([&] {
		int *p, v = 5;
		cudaError_t e = cudaMalloc(&p, 4);

		EXPECT(e == cudaErrorInitializationError || e == cudaErrorDeviceUninitialized ||
		       e == cudaErrorContextIsDestroyed);
		EXPECT(cudaMemcpy(kept, &v, 4, cudaMemcpyHostToDevice) != cudaSuccess);
		triple<<<1, 32>>>(kept);
		EXPECT(cudaGetLastError() != cudaSuccess);
		EXPECT(cudaDeviceSynchronize() != cudaSuccess);
		EXPECT(cudaStreamSynchronize(s) != cudaSuccess);
	}), 7);
	/* but a child that only executes a program may; our memory is its no more */
	char *self = argv[0];
	join(child([&] {
		execl("/proc/self/exe", self, "12", (char *)NULL);
	}), 5);
	/* a child that exits by the ordinary way must not tear our device down */
	join(child([] { exit(3); }), 3);
	for (int i = 0; i < 20; i++)
		join(child([] {}), 7);
	work(9);
	triple<<<1, 32, 0, s>>>(kept);
	CHECK(cudaStreamSynchronize(s));
	h = to_host(kept, 1000);
	for (int i = 0; i < 1000; i++)
		EXPECT_EQ(h[i], i < 32 ? 33 : 11);
	EXPECT_EQ(pinned[0], 77);
	/* one that dies of a signal, while we have work under way */
	triple<<<1, 32, 0, s>>>(kept);
	pid_t d = child([] { raise(SIGKILL); });
	EXPECT(waitpid(d, &n, 0) == d && WIFSIGNALED(n));
	CHECK(cudaStreamSynchronize(s));
	EXPECT_EQ(to_host(kept, 1)[0], 99);
	sum_vector(h);
	return job_passed("forks");
}
