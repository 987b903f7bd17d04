// SPDX-License-Identifier: Apache-2.0
/*
 * moments.cu - a job for checkpoints at any moment: each round does one of kernels, copies,
 * captures, graphs, modules loaded late, waits, threads, children, memory of all kinds.
 *
 * moments-job ROUNDS SEED [GO]. All rounds change one state on the device and print its checksum:
 * a loss in one round shows in all later ones. Nothing depends on time. With GO the job keeps the
 * device busy after its third round until a file of that name exists.
 */
#include "../../jobs/job.cuh"

#include <arpa/inet.h>
#include <atomic>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define N (1 << 16)		/* words of the state */
#define MODULES 40		/* kernels that nobody has used before their time */

__managed__ unsigned int touched;
__device__ unsigned int ticks[64];
__constant__ unsigned int salt[16];

static unsigned int seed;
static unsigned int *state;	/* N words of device memory */

__global__ void mix(unsigned int *p, int n, unsigned int by, int rounds)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i >= n)
		return;
	unsigned int v = p[i];

	for (int r = 0; r < rounds; r++)
		v = v * 1664525u + 1013904223u + (by ^ (v >> 15)) + salt[r & 15];
	p[i] = v;
	/* Several of these run at a time. */
	if (i < 64)
		atomicAdd(&ticks[i], by);
}

/* Each one of these is a function of its own, loaded when it is first used. */
template <int K> __global__ void late(unsigned int *p, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] = (p[i] ^ (K * 2654435761u)) * (2 * K + 3) + (p[i] >> (K % 17));
}

typedef void (*late_fn)(unsigned int *, int);
template <int K> static late_fn late_of(int k)
{
	if constexpr (K < MODULES)
		return k == K ? late<K> : late_of<K + 1>(k);
	else
		return nullptr;
}

__global__ void add(unsigned int *to, const unsigned int *from, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		to[i] += from[i] * 3 + (from[i] >> 7);
}

static unsigned int *fresh(size_t words)
{
	unsigned int *p;

	CHECK(cudaMalloc(&p, words * 4));
	return p;
}

static void blend(unsigned int *p, int n, cudaStream_t s)
{
	add<<<(n + 255) / 256, 256, 0, s>>>(state, p, n);
	CHECK(cudaGetLastError());
}

/* ---- what a round may do ---- */

static void kernels(void)
{
	int n = 20 + rnd(&seed) % 40;

	for (int i = 0; i < n; i++)
		mix<<<N / 256, 256>>>(state, N, rnd(&seed), 20);
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceSynchronize());
}

static void copies(void)
{
	std::vector<unsigned int> h(N);
	unsigned int *pinned, *d = fresh(N);
	cudaStream_t s;

	CHECK(cudaStreamCreate(&s));
	CHECK(cudaMallocHost(&pinned, N * 4));
	for (int i = 0; i < 12; i++) {
		for (int k = 0; k < N; k += 97)
			h[k] = pinned[(k * 7 + i) % N] = rnd(&seed);
		CHECK(cudaMemcpy(d, h.data(), N * 4, cudaMemcpyHostToDevice));
		blend(d, N, 0);
		CHECK(cudaDeviceSynchronize());
		CHECK(cudaMemcpyAsync(d, pinned, N * 4, cudaMemcpyHostToDevice, s));
		CHECK(cudaMemsetAsync(d + 100, i, 4000, s));
		blend(d, N, s);
		CHECK(cudaMemcpyAsync(pinned, state, N * 4, cudaMemcpyDeviceToHost, s));
		CHECK(cudaStreamSynchronize(s));
		CHECK(cudaMemcpy(h.data(), state, N * 4, cudaMemcpyDeviceToHost));
	}
	CHECK(cudaFreeHost(pinned));
	CHECK(cudaFree(d));
	CHECK(cudaStreamDestroy(s));
}

/* A capture that takes its time, then launches of what came of it. */
static void graphs(void)
{
	cudaStream_t s, t;
	cudaEvent_t fork, join;
	cudaGraph_t g;
	cudaGraphExec_t e;
	unsigned int *d = fresh(N);

	CHECK(cudaMemset(d, 0x5a, N * 4));
	CHECK(cudaStreamCreate(&s));
	CHECK(cudaStreamCreate(&t));
	CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
	CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	mix<<<N / 256, 256, 0, s>>>(state, N, 77, 5);
	CHECK(cudaEventRecord(fork, s));
	CHECK(cudaStreamWaitEvent(t, fork, 0));
	mix<<<N / 256, 256, 0, t>>>(d, N, 5, 9);
	usleep(30000);
	CHECK(cudaEventRecord(join, t));
	CHECK(cudaStreamWaitEvent(s, join, 0));
	blend(d, N, s);
	usleep(30000);
	CHECK(cudaMemsetAsync(d, 0x33, 256, s));
	CHECK(cudaStreamEndCapture(s, &g));
	CHECK(cudaGraphInstantiate(&e, g, 0));
	for (int i = 0; i < 30; i++)
		CHECK(cudaGraphLaunch(e, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaGraphExecDestroy(e));
	CHECK(cudaGraphDestroy(g));
	CHECK(cudaEventDestroy(fork));
	CHECK(cudaEventDestroy(join));
	CHECK(cudaStreamDestroy(s));
	CHECK(cudaStreamDestroy(t));
	CHECK(cudaFree(d));
}

static void modules(void)
{
	static int next;

	for (int i = 0; i < 4; i++, next++) {
		late_of<0>(next % MODULES)<<<N / 256, 256>>>(state, N);
		CHECK(cudaGetLastError());
	}
	CHECK(cudaDeviceSynchronize());
}

/* The host waits for kernels that take long, in three ways. */
static void waits(void)
{
	cudaEvent_t e;
	cudaError_t err;

	CHECK(cudaEventCreate(&e));
	for (int i = 0; i < 3; i++) {
		mix<<<N / 256, 256>>>(state, N, i, 2000);
		CHECK(cudaGetLastError());
		CHECK(cudaEventRecord(e));
		if (i == 0)
			CHECK(cudaEventSynchronize(e));
		else if (i == 1)
			CHECK(cudaStreamSynchronize(0));
		else
			while ((err = cudaEventQuery(e)) != cudaSuccess)
				EXPECT(err == cudaErrorNotReady);
	}
	CHECK(cudaEventDestroy(e));
}

struct part {
	pthread_t thread;
	unsigned int seed, *d;
};

static void *part(void *arg)
{
	struct part *p = (struct part *)arg;
	std::vector<unsigned int> h(4096);
	cudaStream_t s;

	CHECK(cudaStreamCreate(&s));
	for (int i = 0; i < 15; i++) {
		mix<<<16, 256, 0, s>>>(p->d, 4096, rnd(&p->seed), 30);
		CHECK(cudaGetLastError());
		CHECK(cudaMemcpyAsync(h.data(), p->d, 4096 * 4, cudaMemcpyDeviceToHost, s));
		CHECK(cudaStreamSynchronize(s));
		h[i] ^= i;
		CHECK(cudaMemcpyAsync(p->d, h.data(), 4096 * 4, cudaMemcpyHostToDevice, s));
		CHECK(cudaStreamSynchronize(s));
	}
	CHECK(cudaStreamDestroy(s));
	return NULL;
}

static void threads(void)
{
	struct part p[4];

	for (int i = 0; i < 4; i++) {
		p[i].seed = rnd(&seed);
		p[i].d = state + i * 4096;
		EXPECT(!pthread_create(&p[i].thread, NULL, part, &p[i]));
	}
	for (int i = 0; i < 4; i++)
		pthread_join(p[i].thread, NULL);
}

/* A level that the program holds ends with its mipmapped array. */
static void levels(cudaStream_t s)
{
	cudaChannelFormatDesc f = cudaCreateChannelDesc<unsigned int>();
	cudaMipmappedArray_t m;
	cudaArray_t level;

	CHECK(cudaMallocMipmappedArray(&m, &f, make_cudaExtent(64, 64, 0), 3));
	CHECK(cudaGetMipmappedArrayLevel(&level, m, 1));
	CHECK(cudaMemcpy2DToArrayAsync(level, 0, 0, state, 128, 128, 32, cudaMemcpyDeviceToDevice, s));
	mix<<<4, 256, 0, s>>>(state, 1024, 77, 2);
	CHECK(cudaMemcpy2DFromArrayAsync(state + 2048, 128, level, 0, 0, 128, 32, cudaMemcpyDeviceToDevice, s));
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaFreeMipmappedArray(m));
}

static void memory(void)
{
	unsigned int *managed, *mapped, *plain, *pool[4];
	cudaStream_t s;

	CHECK(cudaStreamCreate(&s));
	CHECK(cudaMallocManaged(&managed, 65536));
	CHECK(cudaHostAlloc(&mapped, 65536, cudaHostAllocMapped));
	plain = (unsigned int *)mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(plain != MAP_FAILED);
	CHECK(cudaHostRegister(plain, 65536, cudaHostRegisterDefault));
	for (int i = 0; i < 8; i++) {
		for (int k = 0; k < 4; k++) {
			CHECK(cudaMallocAsync(&pool[k], 65536 << k, s));
			CHECK(cudaMemsetAsync(pool[k], i * 4 + k, 65536, s));
			blend(pool[k], 16384, s);
		}
		for (int k = 0; k < 4; k++)
			CHECK(cudaFreeAsync(pool[k], s));
		CHECK(cudaStreamSynchronize(s));
		for (int k = 0; k < 16384; k += 61) {
			managed[k] += rnd(&seed);
			mapped[k] ^= rnd(&seed);
			plain[k] += managed[k] ^ mapped[k];
		}
		mix<<<64, 256, 0, s>>>(managed, 16384, i, 3);
		mix<<<64, 256, 0, s>>>(mapped, 16384, i, 4);
		blend(managed, 16384, s);
		blend(mapped, 16384, s);
		CHECK(cudaMemcpyAsync(state + 100, plain, 32768, cudaMemcpyHostToDevice, s));
		CHECK(cudaStreamSynchronize(s));
		touched += managed[i * 61] + mapped[i];
	}
	levels(s);
	CHECK(cudaHostUnregister(plain));
	munmap(plain, 65536);
	CHECK(cudaFree(managed));
	CHECK(cudaFreeHost(mapped));
	CHECK(cudaStreamDestroy(s));
}

static std::atomic<unsigned int> called;

static void CUDART_CB callback(void *arg)
{
	usleep(1000);
	called = called * 31 + (unsigned int)(size_t)arg;
}

static void callbacks(void)
{
	cudaStream_t s;

	CHECK(cudaStreamCreate(&s));
	for (int i = 0; i < 20; i++) {
		mix<<<N / 256, 256, 0, s>>>(state, N, i, 3);
		CHECK(cudaLaunchHostFunc(s, callback, (void *)(size_t)rnd(&seed)));
	}
	CHECK(cudaStreamSynchronize(s));
	CHECK(cudaStreamDestroy(s));
}

/* ---- children ---- */

static int work[2], done[2];	/* pipes to and from the workers that were there before CUDA */
static unsigned int *shared;	/* memory that they fill */
static int tcp = -1;		/* to the one that echoes */

static void all(ssize_t (*io)(int, void *, size_t), int fd, void *p, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t k = io(fd, (char *)p + at, n - at);

		EXPECT(k > 0);
		at += k;
	}
}

static ssize_t put(int fd, void *p, size_t n)
{
	return write(fd, p, n);
}

/* Takes seeds from the pipe and fills a part of the shared memory from them, as loaders of data do. */
static void loader(void)
{
	unsigned int job[2], s;

	while (read(work[0], job, sizeof(job)) == sizeof(job)) {
		s = job[1];
		for (int i = 0; i < 8192; i++)
			shared[job[0] * 8192 + i] = rnd(&s) ^ (i & 63 ? 0 : rnd(&s));
		usleep(3000);
		all(put, done[1], job, sizeof(job));
	}
	_exit(0);
}

static void echo(int fd)
{
	unsigned int buf[256];

	for (;;) {
		for (size_t at = 0; at < sizeof(buf);) {
			ssize_t k = read(fd, (char *)buf + at, sizeof(buf) - at);

			if (k <= 0)
				_exit(0);
			at += k;
		}
		for (unsigned int &x : buf)
			x = x * 5 + 1;
		all(put, fd, buf, sizeof(buf));
	}
}

static void start_children(void)
{
	struct sockaddr_in at = {};
	socklen_t len = sizeof(at);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	shared = (unsigned int *)mmap(NULL, 4 * 32768, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				      -1, 0);
	EXPECT(shared != MAP_FAILED && !pipe(work) && !pipe(done));
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	EXPECT(!bind(l, (struct sockaddr *)&at, sizeof(at)) && !listen(l, 1));
	EXPECT(!getsockname(l, (struct sockaddr *)&at, &len));
	for (int i = 0; i < 3; i++) {
		if (fork())
			continue;
		close(work[1]);
		close(done[0]);
		if (i < 2)
			loader();
		close(done[1]);
		tcp = accept(l, NULL, NULL);
		close(l);
		echo(tcp);
	}
	close(work[0]);
	close(done[1]);
	tcp = socket(AF_INET, SOCK_STREAM, 0);
	EXPECT(!connect(tcp, (struct sockaddr *)&at, sizeof(at)));
	close(l);
}

static void loaders(void)
{
	unsigned int job[2], buf[256], *d = fresh(32768);

	for (int r = 0; r < 4; r++) {
		for (unsigned int i = 0; i < 4; i++) {
			job[0] = i;
			job[1] = rnd(&seed);
			all(put, work[1], job, sizeof(job));
		}
		for (int i = 0; i < 4; i++)
			all(read, done[0], job, sizeof(job));
		CHECK(cudaMemcpy(d, shared, 4 * 32768, cudaMemcpyHostToDevice));
		blend(d, 32768, 0);
		for (int i = 0; i < 10; i++) {
			CHECK(cudaMemcpy(buf, state + i * 256, sizeof(buf), cudaMemcpyDeviceToHost));
			all(put, tcp, buf, sizeof(buf));
			all(read, tcp, buf, sizeof(buf));
			CHECK(cudaMemcpy(state + i * 256, buf, sizeof(buf), cudaMemcpyHostToDevice));
		}
	}
	CHECK(cudaFree(d));
}

/* Another process with a device session of its own; its checksum comes through a pipe. */
static void another(const char *self)
{
	char text[32] = "", number[16];
	unsigned int *h;
	int fd[2], status;
	pid_t pid;

	snprintf(number, sizeof(number), "%u", rnd(&seed));
	EXPECT(!pipe(fd));
	pid = fork();
	if (!pid) {
		dup2(fd[1], 1);
		close(fd[0]);
		close(fd[1]);
		execl(self, self, "child", number, (char *)NULL);
		_exit(9);
	}
	close(fd[1]);
	mix<<<N / 256, 256>>>(state, N, 4711, 300);
	CHECK(cudaGetLastError());
	all(read, fd[0], text, 16);
	close(fd[0]);
	EXPECT(waitpid(pid, &status, 0) == pid);
	EXPECT_EQ(status, 0);
	CHECK(cudaMallocHost(&h, 64));
	memcpy(h, text, 16);
	CHECK(cudaMemcpy(state + 64, h, 16, cudaMemcpyHostToDevice));
	CHECK(cudaFreeHost(h));
}

static void print_sum(const char *what, int round)
{
	unsigned int t[64];

	sum_vector(to_host(state, N));
	CHECK(cudaMemcpyFromSymbol(t, ticks, sizeof(t)));
	sum_bytes(t, sizeof(t));
	t[0] = touched + called;
	sum_bytes(t, 4);
	printf("round %d %s %016llx\n", round, what, job_sum);
	fflush(stdout);
}

static void start_up(void)
{
	unsigned int s[16];

	for (unsigned int &x : s)
		x = rnd(&seed);
	CHECK(cudaMemcpyToSymbol(salt, s, sizeof(s)));
	state = fresh(N);
	CHECK(cudaMemset(state, 1, N * 4));
	mix<<<N / 256, 256>>>(state, N, seed, 3);
	CHECK(cudaGetLastError());
}

static void until_go(const char *go)
{
	unsigned int *scratch = fresh(N);

	printf("waits\n");
	fflush(stdout);
	while (access(go, F_OK)) {
		add<<<N / 256, 256>>>(scratch, state, N);
		CHECK(cudaGetLastError());
		CHECK(cudaDeviceSynchronize());
		usleep(2000);
	}
	CHECK(cudaFree(scratch));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*fn)(void);
	} can[] = { { "kernels", kernels }, { "copies", copies }, { "graphs", graphs },
		    { "modules", modules }, { "waits", waits }, { "threads", threads },
		    { "memory", memory }, { "callbacks", callbacks }, { "loaders", loaders } };
	int rounds = argc > 1 ? atoi(argv[1]) : 12;

	seed = argc > 2 ? strtoul(argv[2], NULL, 0) : 1;
	if (argc > 1 && !strcmp(argv[1], "child")) {
		start_up();
		kernels();
		modules();
		sum_vector(to_host(state, N));
		printf("%016llx", job_sum);
		return 0;
	}
	printf("start\n");
	fflush(stdout);
	start_children();
	usleep(20000);		/* a moment without CUDA */
	start_up();
	for (int i = 0; i < rounds; i++) {
		unsigned int k = rnd(&seed) % (sizeof(can) / sizeof(can[0]) + 1);

		if (k == sizeof(can) / sizeof(can[0]))
			another("/proc/self/exe");
		else
			can[k].fn();
		print_sum(k == sizeof(can) / sizeof(can[0]) ? "another" : can[k].name, i);
		if (i == 2 && argc > 3)
			until_go(argv[3]);
	}
	close(work[1]);
	close(tcp);
	while (wait(NULL) > 0)
		;
	return job_passed("moments");
}
