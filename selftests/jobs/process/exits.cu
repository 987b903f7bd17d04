// SPDX-License-Identifier: Apache-2.0
/*
 * exits.cu - programs end in many ways: none may hang, crash or lose its exit status.
 */
#include "../job.cuh"

#include <csignal>
#include <pthread.h>
#include <string>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

__global__ void forever(volatile int *stop)
{
	while (!*stop)
		;
}

__global__ void set(int *p, int v)
{
	*p = v;
}

/* A global object that gives its memory back behind main, as many libraries do. */
struct holder {
	int *d = NULL;
	cudaStream_t s = NULL;

	~holder()
	{
		if (!d)
			return;
		/* the runtime may be unloading by now, and says so; it must not crash */
		cudaError_t e = cudaFree(d), f = cudaStreamDestroy(s);

		fprintf(stderr, "exits: %s %s\n", cudaGetErrorName(e), cudaGetErrorName(f));
		if (e != cudaSuccess && e != cudaErrorCudartUnloading)
			_exit(90);
		if (f != cudaSuccess && f != cudaErrorCudartUnloading)
			_exit(91);
	}
};
static holder global;

static void at_exit(void)
{
	int *p;
	cudaError_t e = cudaMalloc(&p, 4);

	if (e != cudaSuccess && e != cudaErrorCudartUnloading)
		_exit(92);
}

static void *exiting(void *)
{
	exit(6);
}

static volatile int launched;

static void *launching(void *arg)
{
	for (int i = 0; i < 20; i++) {
		set<<<1, 1, 0, cudaStreamPerThread>>>((int *)arg, 1);
		CHECK(cudaStreamSynchronize(cudaStreamPerThread));
	}
	__sync_fetch_and_add(&launched, 1);
	for (;;)		/* calls of a thread beside exit() are not safe with any runtime */
		pause();
	return NULL;
}

static volatile sig_atomic_t ticks;

static void tick(int)
{
	ticks++;
}

static void busy_with_signals(void)
{
	struct sigaction sa = {};
	struct itimerval it = { { 0, 700 }, { 0, 700 } };
	int *d, *h, v;
	cudaStream_t s;

	sa.sa_handler = tick;		/* without SA_RESTART: every system call may end with EINTR */
	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &it, NULL);
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaMallocHost(&h, 4));
	for (int i = 0; i < 300 || (ticks < 100 && i < 20000); i++) {
		CHECK(cudaMalloc(&d, 1000));
		set<<<1, 1, 0, s>>>(d, i);
		CHECK(cudaMemcpyAsync(h, d, 4, cudaMemcpyDeviceToHost, s));
		CHECK(cudaStreamSynchronize(s));
		EXPECT_EQ(*h, i);
		set<<<1, 1>>>(d, -i);
		CHECK(cudaMemcpy(&v, d, 4, cudaMemcpyDeviceToHost));
		EXPECT_EQ(v, -i);
		CHECK(cudaFree(d));
	}
	EXPECT(ticks >= 100);
}

static int child(const std::string &how)
{
	static int *d, *flag;
	pthread_t t;

	CHECK(cudaMalloc(&d, 1 << 20));
	CHECK(cudaHostAlloc(&flag, 4, cudaHostAllocMapped));
	*flag = 0;
	set<<<1, 1>>>(d, 5);
	if (how == "return")
		return 3;
	if (how == "exit-in-flight") {		/* work that no one waited for */
		for (int i = 0; i < 500; i++)
			set<<<1, 1>>>(d, i);
		exit(4);
	}
	if (how == "underscore-exit") {
		forever<<<1, 1>>>(flag);
		_exit(5);
	}
	if (how == "exit-in-thread") {
		pthread_create(&t, NULL, exiting, NULL);
		pthread_join(t, NULL);
	}
	if (how == "exit-beside-threads") {
		for (int i = 0; i < 4; i++)
			pthread_create(&t, NULL, launching, d);
		while (launched < 4)
			usleep(1000);
		exit(7);
	}
	if (how == "static-destructor") {
		CHECK(cudaMalloc(&global.d, 100));
		CHECK(cudaStreamCreate(&global.s));
		return 8;
	}
	if (how == "atexit") {
		atexit(at_exit);
		return 9;
	}
	if (how == "reset-first") {
		CHECK(cudaDeviceReset());
		return 10;
	}
	if (how == "abort")
		abort();
	if (how == "segfault")
		raise(SIGSEGV);
	if (how == "killed-while-busy") {
		forever<<<1, 1>>>(flag);
		raise(SIGKILL);
	}
	if (how == "signals") {
		busy_with_signals();
		return 11;
	}
	return 99;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *how;
		int status, signal;
	} ways[] = {
		{ "return", 3, 0 }, { "exit-in-flight", 4, 0 }, { "underscore-exit", 5, 0 },
		{ "exit-in-thread", 6, 0 }, { "exit-beside-threads", 7, 0 },
		{ "static-destructor", 8, 0 }, { "atexit", 9, 0 }, { "reset-first", 10, 0 },
		{ "abort", 0, SIGABRT }, { "segfault", 0, SIGSEGV }, { "killed-while-busy", 0, SIGKILL },
		{ "signals", 11, 0 },
	};
	int status, bad = 0;

	if (argc > 1)
		return child(argv[1]);
	for (auto &w : ways) {
		pid_t pid = fork();

		if (!pid) {
			alarm(20);
			execl("/proc/self/exe", argv[0], w.how, (char *)NULL);
			_exit(98);
		}
		EXPECT(waitpid(pid, &status, 0) == pid);
		if (w.signal ? !WIFSIGNALED(status) || WTERMSIG(status) != w.signal :
			       !WIFEXITED(status) || WEXITSTATUS(status) != w.status) {
			printf("FAIL exits: %s ended with %s %d\n", w.how,
			       WIFSIGNALED(status) ? "signal" : "status",
			       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			bad = 1;
		}
		sum_bytes(&status, sizeof(status));
	}
	return bad ? 1 : job_passed("exits");
}
