// SPDX-License-Identifier: Apache-2.0
/*
 * inflight.cu - a job with work that only the program can end: a host function, a wait for a word
 * of memory, a kernel that polls host memory; or with exported state: memory, or an event. The job
 * goes on when the file GO exists. Or it has queued more than six seconds of work (deep), or two
 * seconds of work and then a kernel that polls (behind). Or it asks, until the file exists, again and
 * again for a stream whose host function returns after 30 of the answers, of 40 ms 30 (asks).
 *
 * inflight callback|wait|poll|share|ipc|event|deep|behind|asks GO
 */
#include "../../jobs/job.cuh"

#include <cuda.h>
#include <unistd.h>

#define DEEP 600

static const char *go;

static void until_go(void)
{
	while (access(go, F_OK))
		usleep(10000);
}

static void CUDART_CB until_gate(void *arg)
{
	while (!*(volatile int *)arg)
		usleep(100);
}

static void ask(cudaStream_t s, int *gate)
{
	while (access(go, F_OK)) {
		*(volatile int *)gate = 0;
		CHECK(cudaLaunchHostFunc(s, until_gate, gate));
		for (int i = 0; i < 30; i++) {
			EXPECT_EQ(cudaStreamQuery(s), cudaErrorNotReady);
			usleep(1000);
		}
		*(volatile int *)gate = 5;
		CHECK(cudaStreamSynchronize(s));
		usleep(10000);
	}
}

static void CUDART_CB callback(void *arg)
{
	until_go();
	*(int *)arg = 5;
}

__global__ void poll(volatile int *flag, int *out)
{
	while (!*flag)
		;
	*out = *flag + 36;
}

/* 10 ms, by the clock. */
__global__ void spin(int *count)
{
	unsigned long long from, now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(from));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	while (now - from < 10000000);
	++*count;
}

__global__ void put(int *out, const volatile int *from)
{
	*out = *from + 36;
}

static void *driver(const char *name)
{
	cudaDriverEntryPointQueryResult q;
	void *fn;

	CHECK(cudaGetDriverEntryPointByVersion(name, &fn, 12000, cudaEnableDefault, &q));
	return fn;
}

/* Exports memory of its own, which nobody imports. */
static void share(void)
{
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp p = {};
	int fd;

	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	EXPECT(!((decltype(&cuMemCreate))driver("cuMemCreate"))(&h, 2 << 20, &p, 0));
	EXPECT(!((decltype(&cuMemExportToShareableHandle))driver("cuMemExportToShareableHandle"))(
		&fd, h, p.requestedHandleTypes, 0));
	close(fd);
}

static void share_event(void)
{
	cudaIpcEventHandle_t h;
	cudaEvent_t e;

	CHECK(cudaEventCreateWithFlags(&e, cudaEventInterprocess | cudaEventDisableTiming));
	CHECK(cudaIpcGetEventHandle(&h, e));
}

int main(int argc, char **argv)
{
	int *flag, *out, *spun, spins = 0;
	cudaIpcMemHandle_t handle;
	cudaStream_t s;

	EXPECT(argc == 3);
	if (!strcmp(argv[1], "deep"))
		spins = DEEP;
	else if (!strcmp(argv[1], "behind"))
		spins = 200;
	go = argv[2];
	CHECK(cudaMallocHost(&flag, 4096));
	CHECK(cudaMalloc(&out, 4));
	*flag = 0;
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	CHECK(cudaMalloc(&spun, 4));
	CHECK(cudaMemset(out, 0, 4));
	CHECK(cudaMemset(spun, 0, 4));
	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < spins; i++)
		spin<<<1, 1, 0, s>>>(spun);
	if (!strcmp(argv[1], "callback")) {
		CHECK(cudaLaunchHostFunc(s, callback, flag));
		put<<<1, 1, 0, s>>>(out, flag);
	} else if (!strcmp(argv[1], "wait")) {
		EXPECT(!((CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int))driver(
			"cuStreamWaitValue32"))(s, (CUdeviceptr)flag, 5, CU_STREAM_WAIT_VALUE_EQ));
		put<<<1, 1, 0, s>>>(out, flag);
	} else if (!strcmp(argv[1], "share")) {
		share();
	} else if (!strcmp(argv[1], "ipc")) {
		CHECK(cudaIpcGetMemHandle(&handle, out));
	} else if (!strcmp(argv[1], "event")) {
		share_event();
	} else if (spins != DEEP && strcmp(argv[1], "asks")) {
		poll<<<1, 1, 0, s>>>(flag, out);
	}
	CHECK(cudaGetLastError());
	usleep(100000);
	printf("under way\n");
	fflush(stdout);
	if (!strcmp(argv[1], "asks"))
		ask(s, flag);
	if (strcmp(argv[1], "callback")) {
		if (spins != DEEP)
			until_go();
		*(volatile int *)flag = 5;
	}
	if (strcmp(argv[1], "callback") && strcmp(argv[1], "wait") && strcmp(argv[1], "poll"))
		put<<<1, 1, 0, s>>>(out, flag);
	CHECK(cudaStreamSynchronize(s));
	std::vector<int> got = to_host(out, 1);
	EXPECT_EQ(got[0], 41);
	EXPECT_EQ(to_host(spun, 1)[0], spins);
	sum_vector(got);
	return job_passed("inflight");
}
