// SPDX-License-Identifier: Apache-2.0
/*
 * inflight.cu - a job that stands in what a device cannot be made to finish: a function of the host, a wait
 * for a word of memory, a kernel that polls the host's memory; or in what is not its alone: memory, or an
 * event, that it has exported. It goes on when the file "go" is there.
 *
 * inflight callback|wait|poll|share|ipc|event GO
 */
#include "../jobs/job.cuh"

#include <cuda.h>
#include <unistd.h>

static const char *go;

static void until_go(void)
{
	while (access(go, F_OK))
		usleep(10000);
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
	cudaIpcMemHandle_t handle;
	cudaStream_t s;
	int *flag, *out;

	EXPECT(argc == 3);
	go = argv[2];
	CHECK(cudaMallocHost(&flag, 4096));
	CHECK(cudaMalloc(&out, 4));
	*flag = 0;
	CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	CHECK(cudaMemset(out, 0, 4));
	CHECK(cudaDeviceSynchronize());
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
	} else {
		poll<<<1, 1, 0, s>>>(flag, out);
	}
	CHECK(cudaGetLastError());
	usleep(100000);
	printf("under way\n");
	fflush(stdout);
	if (strcmp(argv[1], "callback")) {
		until_go();
		*(volatile int *)flag = 5;
	}
	if (!strcmp(argv[1], "share") || !strcmp(argv[1], "ipc") || !strcmp(argv[1], "event"))
		put<<<1, 1, 0, s>>>(out, flag);
	CHECK(cudaStreamSynchronize(s));
	std::vector<int> got = to_host(out, 1);
	EXPECT_EQ(got[0], 41);
	sum_vector(got);
	return job_passed("inflight");
}
