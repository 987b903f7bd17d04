// SPDX-License-Identifier: Apache-2.0
/*
 * interop.cu - runtime and driver API in one program: contexts, streams, events and memory of
 * both, stream memory operations, memory between processes, and peers: each works or fails with
 * the right error.
 */
#include "../job.cuh"

#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#define DRIVER(_fn) static decltype(&_fn) p_##_fn
DRIVER(cuInit);
DRIVER(cuGetExportTable);
DRIVER(cuCtxGetCurrent);
DRIVER(cuCtxSetCurrent);
DRIVER(cuCtxPushCurrent);
DRIVER(cuCtxPopCurrent);
DRIVER(cuCtxGetDevice);
DRIVER(cuCtxSynchronize);
DRIVER(cuDeviceGet);
DRIVER(cuDeviceGetCount);
DRIVER(cuDeviceGetName);
DRIVER(cuDevicePrimaryCtxRetain);
DRIVER(cuDevicePrimaryCtxRelease);
DRIVER(cuDevicePrimaryCtxGetState);
DRIVER(cuMemAlloc);
DRIVER(cuMemFree);
DRIVER(cuMemcpyHtoD);
DRIVER(cuMemcpyDtoHAsync);
DRIVER(cuMemsetD32Async);
DRIVER(cuMemsetD16);
DRIVER(cuMemsetD2D8);
DRIVER(cuMemGetAddressRange);
DRIVER(cuPointerGetAttribute);
DRIVER(cuStreamCreate);
DRIVER(cuStreamDestroy);
DRIVER(cuStreamSynchronize);
DRIVER(cuStreamQuery);
DRIVER(cuStreamWriteValue32);
DRIVER(cuStreamWaitValue32);
DRIVER(cuStreamBatchMemOp);
DRIVER(cuGetErrorName);
DRIVER(cuGetErrorString);

static void get(void *fn, const char *name)
{
	cudaDriverEntryPointQueryResult found;

	CHECK(cudaGetDriverEntryPointByVersion(name, (void **)fn, 13000, cudaEnableDefault, &found));
	EXPECT_EQ(found, cudaDriverEntryPointSuccess);
}
#define GET(_fn) get((void *)&p_##_fn, #_fn)
#define CU(...) EXPECT_EQ((__VA_ARGS__), CUDA_SUCCESS)

__global__ void add(int *p, int v)
{
	p[threadIdx.x] += v;
}

/* Runtimes since 13.1 call the last entry of their table unasked, so it has to be there (PyTorch 2.15). */
static void newer_runtimes(void)
{
	static const unsigned char id[16] = { 0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
					      0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9 };
	const void *table = NULL;

	CU(p_cuGetExportTable(&table, (const CUuuid *)id));
	EXPECT(*(const size_t *)table >= 13 * sizeof(void *));
	CU((*(CUresult (*const *)(void))((const char *)table + 12 * sizeof(void *)))());
}

/* The runtime uses the device's primary context; both see each other's things. */
static void contexts(void)
{
	CUcontext now, primary, popped;
	CUdevice dev;
	CUdeviceptr d, base;
	CUstream s;
	unsigned int flags;
	size_t size;
	int active, type, h[32];
	char name[100];
	cudaDeviceProp prop;

	CU(p_cuInit(0));
	CU(p_cuDeviceGet(&dev, 0));
	CHECK(cudaSetDevice(0));
	CHECK(cudaFree(0));
	CU(p_cuCtxGetCurrent(&now));
	CU(p_cuDevicePrimaryCtxRetain(&primary, dev));
	EXPECT(now && now == primary);
	CU(p_cuDevicePrimaryCtxGetState(dev, &flags, &active));
	EXPECT(active);
	CHECK(cudaGetDeviceProperties(&prop, 0));
	CU(p_cuDeviceGetName(name, sizeof(name), dev));
	EXPECT(!strcmp(name, prop.name));

	CU(p_cuMemAlloc(&d, 1000));
	for (int i = 0; i < 32; i++)
		h[i] = i;
	CU(p_cuMemcpyHtoD(d, h, sizeof(h)));
	CU(p_cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	add<<<1, 32, 0, s>>>((int *)d, 5);		/* a driver's stream, the runtime's launch */
	CU(p_cuMemcpyDtoHAsync(h, d, sizeof(h), s));
	CHECK(cudaStreamSynchronize(s));
	for (int i = 0; i < 32; i++)
		EXPECT_EQ(h[i], i + 5);
	CU(p_cuMemGetAddressRange(&base, &size, d + 100));
	EXPECT(base == d && size == 1000);
	CU(p_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, d));
	EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
	EXPECT_EQ(p_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)h),
		  CUDA_ERROR_INVALID_VALUE);
	CU(p_cuMemsetD32Async(d, 0x12345678, 10, s));
	CU(p_cuStreamSynchronize(s));
	CU(p_cuMemsetD16(d + 2, 0xabcd, 1));
	CU(p_cuMemsetD2D8(d + 8, 10, 0xee, 3, 3));
	std::vector<unsigned char> m = to_host((unsigned char *)d, 40);
	EXPECT(m[0] == 0x78 && m[1] == 0x56 && m[2] == 0xcd && m[3] == 0xab && m[4] == 0x78);
	EXPECT(m[8] == 0xee && m[10] == 0xee && m[11] == 0x12 && m[18] == 0xee && m[28] == 0xee &&
	       m[30] == 0xee && m[31] == 0x12);
	CHECK(cudaFree((void *)d));
	CU(p_cuStreamDestroy(s));

	/* a thread without a context; the stack of contexts */
	CU(p_cuCtxPopCurrent(&popped));
	EXPECT(popped == primary);
	CU(p_cuCtxGetCurrent(&now));
	EXPECT(!now);
	EXPECT_EQ(p_cuMemAlloc(&d, 4), CUDA_ERROR_INVALID_CONTEXT);
	CU(p_cuCtxPushCurrent(primary));
	CU(p_cuCtxSetCurrent(primary));
	CU(p_cuCtxGetDevice(&dev));
	EXPECT_EQ(dev, 0);
	CU(p_cuDevicePrimaryCtxRelease(0));
	const char *text;
	CU(p_cuGetErrorName(CUDA_ERROR_INVALID_CONTEXT, &text));
	EXPECT(!strcmp(text, "CUDA_ERROR_INVALID_CONTEXT"));
	EXPECT_EQ(p_cuGetErrorString((CUresult)7777, &text), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(p_cuDeviceGet(&dev, 1000), CUDA_ERROR_INVALID_DEVICE);
	CHECK(cudaDeviceSynchronize());
}

/* Streams that wait for words in memory, written by another stream and by the host. */
static void words(void)
{
	CUstreamBatchMemOpParams ops[3] = {};
	CUstream s, t;
	int *d, *h, got;

	CU(p_cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(p_cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	CHECK(cudaMalloc(&d, 256));
	CHECK(cudaMemset(d, 0, 256));
	CHECK(cudaHostAlloc(&h, 4096, cudaHostAllocMapped));
	h[0] = 0;
	CHECK(cudaDeviceSynchronize());
	CU(p_cuStreamWaitValue32(s, (CUdeviceptr)d, 7, CU_STREAM_WAIT_VALUE_EQ));
	add<<<1, 1, 0, s>>>(d + 1, 100);
	usleep(20000);
	EXPECT_EQ(p_cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	CU(p_cuStreamWriteValue32(t, (CUdeviceptr)d, 7, CU_STREAM_WRITE_VALUE_DEFAULT));
	CU(p_cuStreamSynchronize(s));
	EXPECT_EQ(to_host(d, 2)[1], 100);
	CU(p_cuStreamWaitValue32(s, (CUdeviceptr)h, 5, CU_STREAM_WAIT_VALUE_GEQ));
	CU(p_cuStreamWriteValue32(s, (CUdeviceptr)(h + 1), 9, CU_STREAM_WRITE_VALUE_DEFAULT));
	h[1] = 0;
	usleep(20000);
	EXPECT_EQ(((volatile int *)h)[1], 0);
	((volatile int *)h)[0] = 6;
	CU(p_cuStreamSynchronize(s));
	EXPECT_EQ(((volatile int *)h)[1], 9);
	ops[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
	ops[0].writeValue.address = (CUdeviceptr)(d + 2);
	ops[0].writeValue.value = 11;
	ops[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
	ops[1].waitValue.address = (CUdeviceptr)(d + 2);
	ops[1].waitValue.value = 11;
	ops[2] = ops[0];
	ops[2].writeValue.address = (CUdeviceptr)(d + 3);
	ops[2].writeValue.value = 12;
	CU(p_cuStreamBatchMemOp(s, 3, ops, 0));
	CU(p_cuStreamSynchronize(s));
	CHECK(cudaMemcpy(&got, d + 3, 4, cudaMemcpyDeviceToHost));
	EXPECT_EQ(got, 12);
	CU(p_cuStreamDestroy(s));
	CU(p_cuStreamDestroy(t));
}

/* Memory of another process: opened, or refused by an error that says so. */
static int other_process(int fd)
{
	cudaIpcMemHandle_t h;
	int *d, v[32];

	EXPECT(read(fd, &h, sizeof(h)) == sizeof(h));
	cudaError_t e = cudaIpcOpenMemHandle((void **)&d, h, cudaIpcMemLazyEnablePeerAccess);
	if (e != cudaSuccess)
		return e == cudaErrorNotSupported || e == cudaErrorMapBufferObjectFailed ||
		       e == cudaErrorInvalidValue ? 2 : 3;
	CHECK(cudaMemcpy(v, d, sizeof(v), cudaMemcpyDeviceToHost));
	for (int i = 0; i < 32; i++)
		EXPECT_EQ(v[i], i + 1);
	add<<<1, 32>>>(d, 1000);
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaIpcCloseMemHandle(d));
	return 0;
}

static void between_processes(void)
{
	int fd[2], status;

	EXPECT(!pipe(fd));
	pid_t pid = fork();	/* before this process has touched CUDA */
	if (!pid) {
		close(fd[1]);
		dup2(fd[0], 3);
		execl("/proc/self/exe", "interop", "3", (char *)NULL);
		_exit(99);
	}
	close(fd[0]);
	std::vector<int> h(32);
	for (int i = 0; i < 32; i++)
		h[i] = i + 1;
	int *d = to_device(h);
	cudaIpcMemHandle_t handle;
	cudaError_t e = cudaIpcGetMemHandle(&handle, d);
	if (e != cudaSuccess) {
		EXPECT(e == cudaErrorNotSupported);
		cudaGetLastError();
		memset(&handle, 0, sizeof(handle));
	}
	EXPECT(write(fd[1], &handle, sizeof(handle)) == sizeof(handle));
	EXPECT(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	status = WEXITSTATUS(status);
	EXPECT(status == 0 || status == 2);
	h = to_host(d, 32);
	for (int i = 0; i < 32; i++)
		EXPECT_EQ(h[i], i + 1 + (status ? 0 : 1000));
	printf("memory between processes: %s\n", status ? "refused" : "shared");
	CHECK(cudaFree(d));
	/* events between processes; a timed one can not be */
	cudaEvent_t ev;
	cudaIpcEventHandle_t eh;
	CHECK(cudaEventCreate(&ev));
	EXPECT(cudaIpcGetEventHandle(&eh, ev) != cudaSuccess);
	cudaGetLastError();
	CHECK(cudaEventDestroy(ev));
}

static void peers(void)
{
	int n, can, *a, *b;

	CHECK(cudaGetDeviceCount(&n));
	EXPECT(cudaDeviceEnablePeerAccess(0, 0) != cudaSuccess);	/* oneself */
	cudaGetLastError();
	if (n < 2)
		return;
	CHECK(cudaDeviceCanAccessPeer(&can, 0, 1));
	CHECK(cudaMalloc(&a, 128));
	CHECK(cudaMemset(a, 1, 128));
	CHECK(cudaSetDevice(1));
	CHECK(cudaMalloc(&b, 128));
	CHECK(cudaMemcpyPeer(b, 1, a, 0, 128));
	EXPECT_EQ(to_host(b, 32)[31], 0x01010101);
	CHECK(cudaSetDevice(0));
	if (!can) {
		EXPECT_ERROR(cudaErrorPeerAccessUnsupported, cudaDeviceEnablePeerAccess(1, 0));
		cudaGetLastError();
		return;
	}
	CHECK(cudaDeviceEnablePeerAccess(1, 0));
	EXPECT_ERROR(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
	cudaGetLastError();
	add<<<1, 32>>>(b, 1);
	EXPECT_EQ(to_host(b, 32)[31], 0x01010102);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return other_process(atoi(argv[1]));
	between_processes();
	GET(cuInit);
	GET(cuGetExportTable);
	GET(cuCtxGetCurrent);
	GET(cuCtxSetCurrent);
	GET(cuCtxPushCurrent);
	GET(cuCtxPopCurrent);
	/* the form with one argument: since CUDA 13 the name means another by default */
	EXPECT(!cudaGetDriverEntryPointByVersion("cuCtxGetDevice", (void **)&p_cuCtxGetDevice, 12000,
						 cudaEnableDefault, NULL));
	GET(cuCtxSynchronize);
	GET(cuDeviceGet);
	GET(cuDeviceGetCount);
	GET(cuDeviceGetName);
	GET(cuDevicePrimaryCtxRetain);
	GET(cuDevicePrimaryCtxRelease);
	GET(cuDevicePrimaryCtxGetState);
	GET(cuMemAlloc);
	GET(cuMemFree);
	GET(cuMemcpyHtoD);
	GET(cuMemcpyDtoHAsync);
	GET(cuMemsetD32Async);
	GET(cuMemsetD16);
	GET(cuMemsetD2D8);
	GET(cuMemGetAddressRange);
	GET(cuPointerGetAttribute);
	GET(cuStreamCreate);
	GET(cuStreamDestroy);
	GET(cuStreamSynchronize);
	GET(cuStreamQuery);
	GET(cuStreamWriteValue32);
	GET(cuStreamWaitValue32);
	GET(cuStreamBatchMemOp);
	GET(cuGetErrorName);
	GET(cuGetErrorString);
	newer_runtimes();
	contexts();
	words();
	peers();
	sum_bytes("interop", 7);
	return job_passed("interop");
}
