// SPDX-License-Identifier: Apache-2.0
/*
 * faults.cu - faulting kernels: each in a process of its own, which must get the right sticky error
 * from every later call, and end in order.
 */
#include "../job.cuh"

#include <cassert>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

__global__ void store(int *p, long long step)
{
	p[threadIdx.x * step] = 7;
}

__global__ void load(const int *p, int *out)
{
	*out = *p;
}

__global__ void one_of_many(int *p, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i == n)
		*(int *)(1ull << 44) = 1;
	p[i] = 1;
}

__global__ void misaligned(char *p)
{
	*(volatile long long *)(p + 4) = 1;
}

__global__ void shared_far(int *out, unsigned int at)
{
	extern __shared__ int s[];

	*(volatile int *)((char *)s + at) = 1;
	out[0] = s[0];
}

__global__ void trap(int lane)
{
	if (threadIdx.x == lane)
		__trap();
}

__global__ void asserts(int x)
{
	assert(threadIdx.x / 3 != 1 || x == 1);
}

__global__ void by_pointer(void (*f)(int))
{
	f(1);
}

static const char *self;

static void refused(cudaError_t want)
{
	int *d, n;
	cudaEvent_t e;

	EXPECT_ERROR(want, cudaDeviceSynchronize());
	/* sticky: everything that touches the device fails the same way, again and again */
	EXPECT_ERROR(want, cudaDeviceSynchronize());
	EXPECT_ERROR(want, cudaGetLastError());
	EXPECT_ERROR(want, cudaMalloc(&d, 4));
	EXPECT_ERROR(want, cudaMemcpy(&n, &n, 4, cudaMemcpyHostToHost));
	EXPECT_ERROR(want, cudaEventCreate(&e));
	EXPECT_ERROR(want, cudaStreamSynchronize(0));
	store<<<1, 1>>>(NULL, 0);
	EXPECT_ERROR(want, cudaGetLastError());
	EXPECT_ERROR(want, cudaPeekAtLastError() == cudaSuccess ? want : cudaPeekAtLastError());
	CHECK(cudaGetDeviceCount(&n));		/* but this asks no context */
	EXPECT(n >= 1);
}

/* What the children do; the first word of a run says which. */
static int child(const std::string &what)
{
	int *d;

	CHECK(cudaMalloc(&d, 1 << 20));
	CHECK(cudaMemset(d, 0, 1 << 20));
	if (what == "none") {
		store<<<1, 32>>>(d, 1);
		CHECK(cudaDeviceSynchronize());
		return 0;
	}
	if (what == "null-store") {
		store<<<1, 32>>>(NULL, 1);
		refused(cudaErrorIllegalAddress);
	} else if (what == "null-load") {
		load<<<1, 1>>>(NULL, d);
		refused(cudaErrorIllegalAddress);
	} else if (what == "far") {
		store<<<1, 32>>>(d, 1ll << 36);
		refused(cudaErrorIllegalAddress);
	} else if (what == "host-pointer") {
		static int host[100];		/* memory of the program that no one registered */
		int reads;

		CHECK(cudaDeviceGetAttribute(&reads, cudaDevAttrPageableMemoryAccess, 0));
		if (reads)
			return 0;
		store<<<1, 1>>>(host, 1);
		refused(cudaErrorIllegalAddress);
		EXPECT_EQ(host[0], 0);
	} else if (what == "one-of-many") {
		one_of_many<<<64, 128>>>(d, 5000);
		refused(cudaErrorIllegalAddress);
	} else if (what == "in-another-stream") {
		cudaStream_t s;

		CHECK(cudaStreamCreate(&s));
		store<<<1, 1, 0, s>>>(NULL, 1);
		cudaStreamSynchronize(s);
		refused(cudaErrorIllegalAddress);
	} else if (what == "misaligned") {
		misaligned<<<1, 1>>>((char *)d);
		refused(cudaErrorMisalignedAddress);
	} else if (what == "shared") {
		shared_far<<<1, 1, 1024>>>(d, 200 << 20);
		refused(cudaErrorIllegalAddress);
	} else if (what == "assert") {
		asserts<<<2, 32>>>(2);
		refused(cudaErrorAssert);
	} else if (what == "trap") {
		/* which of the two a trap gives depends on the device's generation */
		trap<<<1, 32>>>(9);
		cudaError_t e = cudaDeviceSynchronize();
		EXPECT(e == cudaErrorLaunchFailure || e == cudaErrorIllegalInstruction);
		refused(e);
	} else if (what == "bad-function") {
		by_pointer<<<1, 1>>>((void (*)(int))0x123456789abcull);
		cudaError_t e = cudaDeviceSynchronize();
		EXPECT(e == cudaErrorIllegalAddress || e == cudaErrorInvalidPc ||
		       e == cudaErrorIllegalInstruction || e == cudaErrorLaunchFailure);
		refused(e);
	} else {
		return 1;
	}
	return 0;
}

/* Runs ourselves with one word; says what it printed. */
static std::string run(const char *what, int *status)
{
	int fd[2];
	char buf[4096];
	std::string out;
	ssize_t n;
	pid_t pid;

	fflush(stdout);
	EXPECT(!pipe(fd));
	pid = fork();
	if (!pid) {
		dup2(fd[1], 1);
		dup2(fd[1], 2);
		close(fd[0]);
		close(fd[1]);
		execl(self, self, what, (char *)NULL);
		_exit(99);
	}
	close(fd[1]);
	while ((n = read(fd[0], buf, sizeof(buf))) > 0)
		out.append(buf, n);
	close(fd[0]);
	EXPECT(waitpid(pid, status, 0) == pid);
	return out;
}

static bool has(const std::string &text, const char *part)
{
	return text.find(part) != std::string::npos;
}

int main(int argc, char **argv)
{
	static const char *const all[] = { "none", "null-store", "null-load", "far", "host-pointer",
		"one-of-many", "in-another-stream", "misaligned", "shared", "assert",
		"trap", "bad-function" };
	int status, bad = 0;

	self = "/proc/self/exe";
	if (argc > 1)
		return child(argv[1]);
	for (const char *what : all) {
		std::string out = run(what, &status);

		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			printf("FAIL %s: %s %d: %s\n", what, WIFSIGNALED(status) ? "signal" : "exit",
			       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
			       out.c_str());
			bad = 1;
			continue;
		}
		if (!strcmp(what, "assert") &&
		    !(has(out, "faults.cu:") && has(out, ",0,0], thread: [3,0,0]") &&
		      has(out, ",0,0], thread: [4,0,0]") && has(out, ",0,0], thread: [5,0,0]") &&
		      has(out, "Assertion `threadIdx.x / 3 != 1 || x == 1` failed."))) {
			printf("FAIL assert: it says\n%s", out.c_str());
			bad = 1;
		}
		printf("%s: as it should\n", what);
		sum_bytes(what, strlen(what));
	}
	return bad ? 1 : job_passed("faults");
}
