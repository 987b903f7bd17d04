// SPDX-License-Identifier: Apache-2.0
/*
 * driver_ipc.cu - memory, pools and events of another process, by cuIpc handles and shareable pools
 *
 * The child is a program of its own, with one end of a socket. Or two programs that were started
 * separately meet at a path: driver_ipc meet PATH, driver_ipc visit|stranger|abroad PATH
 * (test-ipc). Handles pass as bytes, a pool as a file descriptor. Each process checks the writes
 * of the other's kernels, and the errors when the other has freed its memory, has ended, or never
 * existed.
 */
#include "driver.cuh"
#include "passfd.cuh"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define LAZY CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

static const size_t COUNT = 3 << 19;	/* 6 MiB: several granules */
static const unsigned int ROUNDS = 40;

__global__ void add(unsigned int *p, unsigned int v, size_t n)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		p[i] += v * (unsigned int)i;
}

/* p[1] and what was in p[0] when its turn came */
__global__ void turn(unsigned int *p, unsigned int mine)
{
	p[1] += p[0] != mine;
	p[0] = mine + 1;
}

static void more(void *p, unsigned int v, size_t n)
{
	add<<<8, 64>>>((unsigned int *)p, v, n);
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceSynchronize());
}

static void is(void *p, unsigned int v, size_t n)
{
	std::vector<unsigned int> got = to_host((unsigned int *)p, n);

	for (size_t i = 0; i < n; i++)
		EXPECT_EQ(got[i], v * (unsigned int)i);
}

/* ------------------------------------------------------------------------------ the socket */

static int sock;

static void told(void)
{
	char c;

	EXPECT_EQ(read(sock, &c, 1), 1);
}

static void tell(void)
{
	EXPECT_EQ(write(sock, "", 1), 1);
}

template <typename T> static void give(const T &v)
{
	EXPECT_EQ(write(sock, &v, sizeof(v)), (ssize_t)sizeof(v));
}

template <typename T> static T take(void)
{
	T v;

	EXPECT_EQ(recv(sock, &v, sizeof(v), MSG_WAITALL), (ssize_t)sizeof(v));
	return v;
}

static CUdeviceptr opened(const CUipcMemHandle &h)
{
	CUdeviceptr p;

	POISON(p);
	CU(cuIpcOpenMemHandle(&p, h, LAZY));
	return p;
}

/* ------------------------------------------------------------------------------ memory */

static unsigned int attribute(CUpointer_attribute a, CUdeviceptr p)
{
	unsigned int v;

	POISON(v);
	CU(cuPointerGetAttribute(&v, a, p));
	return v;
}

static void memory_child(void)
{
	CUipcMemHandle big = take<CUipcMemHandle>(), small = take<CUipcMemHandle>(), bad = big;
	CUdeviceptr p = opened(big), again, q, base;
	size_t len;

	CU(cuIpcOpenMemHandle(&again, big, LAZY));
	EXPECT_EQ(again, p);			/* counted, not mapped twice */
	CU(cuMemGetAddressRange(&base, &len, p + 100));
	EXPECT_EQ(base, p);
	EXPECT_EQ(len, COUNT * 4);
	EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p), CU_MEMORYTYPE_DEVICE);
	EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p), 0u);
	is((void *)p, 3, COUNT);
	more((void *)p, 4, COUNT);
	CU_INVALID(cuMemFree(p));
	CU_INVALID(cuIpcGetMemHandle(&bad, p));	/* it is not ours to give */
	q = opened(small);
	is((void *)q, 1, 1000);
	more((void *)q, 1, 1000);
	tell();
	told();					/* 5 more of the parent's */
	is((void *)p, 12, COUNT);
	CU_INVALID(cuIpcCloseMemHandle(p + 4));
	CU(cuIpcCloseMemHandle(p));
	is((void *)p, 12, COUNT);
	CU(cuIpcCloseMemHandle(p));
	CU_INVALID(cuIpcCloseMemHandle(p));
	CU_INVALID(cuMemcpyDtoH(&len, p, 4));
	CU(cuIpcCloseMemHandle(q));

	/* handles that are none; the answer takes no longer than a call */
	p = 77;
	memset(&bad, 0, sizeof(bad));
	CU_INVALID(cuIpcOpenMemHandle(&p, bad, LAZY));
	memset(&bad, 0xff, sizeof(bad));
	CU_INVALID(cuIpcOpenMemHandle(&p, bad, LAZY));
	for (size_t bit = 0; bit < 8 * sizeof(big); bit += 5) {
		bad = big;
		bad.reserved[bit / 8] ^= 1 << bit % 8;
		EXPECT(cuIpcOpenMemHandle(&p, bad, LAZY) != CUDA_SUCCESS);
	}
	EXPECT_EQ(p, 77ull);
	CU_INVALID(cuIpcOpenMemHandle(&p, big, 0));
	CU_INVALID(cuIpcOpenMemHandle(&p, big, 2));
	CU_INVALID(cuIpcOpenMemHandle(NULL, big, LAZY));
	p = opened(big);			/* it still works */
	is((void *)p, 12, COUNT);
	tell();
	told();					/* the parent has freed it: what is mapped stays */
	is((void *)p, 12, COUNT);
	again = 77;
	CU(cuIpcCloseMemHandle(p));
	CU_ERROR(CUDA_ERROR_MAP_FAILED, cuIpcOpenMemHandle(&again, big, LAZY));
	EXPECT_EQ(again, 77ull);
	tell();
}

static void memory(void)
{
	CUipcMemHandle h, same, bad;
	CUdeviceptr p, small, neighbour, q;
	size_t before, after, total;

	CU(cuMemGetInfo(&before, &total));
	CU(cuMemAlloc(&p, COUNT * 4));
	CU(cuMemAlloc(&neighbour, 4000));
	CU(cuMemAlloc(&small, 4000));
	CU(cuMemsetD8(p, 0, COUNT * 4));
	CU(cuMemsetD8(small, 0, 4000));
	CU(cuMemsetD8(neighbour, 7, 4000));
	EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p), 1u);
	more((void *)p, 3, COUNT);
	more((void *)small, 1, 1000);
	CU(cuIpcGetMemHandle(&h, p));
	CU(cuIpcGetMemHandle(&same, p + 4096));	/* of the base */
	EXPECT(!memcmp(&h, &same, sizeof(h)));
	is((void *)p, 3, COUNT);		/* where it was */
	CU_ERROR(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle(&q, h, LAZY));
	CU_INVALID(cuIpcGetMemHandle(NULL, p));
	CU_INVALID(cuIpcGetMemHandle(&bad, 4096));
	CU_INVALID(cuIpcCloseMemHandle(p));
	CU(cuMemAllocAsync(&q, 4096, 0));
	CU_INVALID(cuIpcGetMemHandle(&bad, q));
	CU(cuMemFreeAsync(q, 0));
	CU(cuMemAllocManaged(&q, 4096, CU_MEM_ATTACH_GLOBAL));
	CU_INVALID(cuIpcGetMemHandle(&bad, q));
	CU(cuMemFree(q));
	give(h);
	CU(cuIpcGetMemHandle(&same, small));
	give(same);
	told();
	is((void *)p, 7, COUNT);
	is((void *)small, 2, 1000);
	for (unsigned char c : to_host((unsigned char *)neighbour, 4000))
		EXPECT_EQ(c, 7);
	more((void *)p, 5, COUNT);
	tell();
	told();
	sum_vector(to_host((unsigned int *)p, COUNT));
	CU(cuMemFree(p));
	CU(cuMemFree(small));
	CU(cuMemFree(neighbour));
	tell();
	told();
	CU(cuMemPoolTrimTo(({ CUmemoryPool d; CU(cuDeviceGetDefaultMemPool(&d, 0)); d; }), 0));
	CU(cuMemGetInfo(&after, &total));
	EXPECT_EQ(after, before);
}

/* ------------------------------------------------------------------------------ pools */

static void pool_child(void)
{
	int fd = passed(sock);
	CUmemPoolPtrExportData data = take<CUmemPoolPtrExportData>(), bad = data;
	CUmemoryPool pool, of, other;
	CUmemPoolProps props = {};
	CUipcMemHandle memory;
	CUdeviceptr p, q;
	CUstream s;

	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, FD, 0));
	EXPECT_EQ(close(fd), 0);
	CU_INVALID(cuMemAllocFromPoolAsync(&p, 4096, pool, s));
	CU_INVALID(cuDeviceSetMemPool(0, pool));
	CU_INVALID(cuMemPoolImportPointer(NULL, pool, &data));
	CU_INVALID(cuMemPoolImportPointer(&p, pool, NULL));
	bad.reserved[20] ^= 1;
	EXPECT(cuMemPoolImportPointer(&p, pool, &bad) != CUDA_SUCCESS);
	/* a pool's pointer is no memory handle, and the other way */
	static_assert(sizeof(memory) == sizeof(data), "both are 64 bytes");
	memcpy(&memory, &data, sizeof(memory));
	CU_INVALID(cuIpcOpenMemHandle(&p, memory, LAZY));
	CU(cuMemAlloc(&q, 4096));
	CU(cuIpcGetMemHandle(&memory, q));
	memcpy(&bad, &memory, sizeof(bad));
	CU_INVALID(cuMemPoolImportPointer(&p, pool, &bad));
	CU(cuMemFree(q));
	/* the pointer without the pool: another one's key does not do */
	props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	props.handleTypes = FD;
	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	CU(cuMemPoolCreate(&other, &props));
	CU_INVALID(cuMemPoolImportPointer(&p, other, &data));
	CU(cuMemPoolExportToShareableHandle(&fd, other, FD, 0));
	CU(cuMemPoolDestroy(other));
	CU(cuMemPoolImportFromShareableHandle(&other, (void *)(intptr_t)fd, FD, 0));
	EXPECT_EQ(close(fd), 0);
	CU_ERROR(CUDA_ERROR_MAP_FAILED, cuMemPoolImportPointer(&p, other, &data));
	CU(cuMemPoolDestroy(other));

	CU(cuMemPoolImportPointer(&p, pool, &data));
	CU(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
	EXPECT_EQ(of, pool);
	is((void *)p, 1, 5000);
	more((void *)p, 1, 5000);
	CU(cuMemPoolImportPointer(&q, pool, &data));
	is((void *)q, 2, 5000);
	CU(cuMemFree(q));
	CU_INVALID(cuIpcCloseMemHandle(p));
	add<<<8, 64, 0, s>>>((unsigned int *)p, 1, 5000);
	CU(cuMemFreeAsync(p, s));
	CU_INVALID(cuMemFreeAsync(p, s));
	CU(cuMemPoolDestroy(pool));
	CU(cuStreamSynchronize(s));
	CU(cuStreamDestroy(s));
	tell();
}

static void pool(void)
{
	CUmemoryPool pool, plain;
	CUmemPoolProps props = {};
	CUmemPoolPtrExportData data;
	CUdeviceptr before, p, other;
	cuuint64_t types;
	CUstream s;
	int fd = -2;

	props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	CU(cuMemPoolCreate(&plain, &props));
	props.handleTypes = FD;
	CU(cuMemPoolCreate(&pool, &props));
	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuMemAllocFromPoolAsync(&before, 1 << 20, pool, s));
	CU(cuMemAllocFromPoolAsync(&p, 5000 * 4, pool, s));
	CU(cuMemAllocFromPoolAsync(&other, 4096, plain, s));
	CU(cuMemsetD8Async(p, 0, 5000 * 4, s));
	add<<<8, 64, 0, s>>>((unsigned int *)p, 1, 5000);
	CU_INVALID(cuMemPoolExportToShareableHandle(&fd, plain, FD, 0));
	CU_INVALID(cuMemPoolExportToShareableHandle(&fd, pool, FD, 1));
	CU_INVALID(cuMemPoolExportToShareableHandle(NULL, pool, FD, 0));
	CU_INVALID(cuMemPoolExportPointer(&data, other));
	CU_INVALID(cuMemPoolExportPointer(&data, p + 512));
	CU_INVALID(cuMemPoolExportPointer(NULL, p));
	CU_INVALID(cuMemPoolImportFromShareableHandle(&plain, (void *)(intptr_t)-1, FD, 0));
	CU_INVALID(cuMemPoolImportFromShareableHandle(&plain, (void *)(intptr_t)sock, FD, 0));
	EXPECT_EQ(fd, -2);
	CU(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p));
	EXPECT_EQ(types, (cuuint64_t)FD);
	CU(cuMemPoolExportToShareableHandle(&fd, pool, FD, 0));
	CU(cuMemPoolExportPointer(&data, p));
	pass(sock, fd);
	EXPECT_EQ(close(fd), 0);
	give(data);
	told();
	is((void *)p, 3, 5000);
	sum_vector(to_host((unsigned int *)p, 5000));
	for (CUdeviceptr q : { p, before, other })
		CU(cuMemFreeAsync(q, s));
	CU(cuStreamSynchronize(s));
	CU(cuMemPoolDestroy(pool));
	CU(cuMemPoolDestroy(plain));
	CU(cuStreamDestroy(s));
}

/* ------------------------------------------------------------------------------ events */

/* Kernels of both take turns in shared memory, held together by nothing but two events. */
static void turns(CUdeviceptr p, CUevent mine, CUevent others, unsigned int first)
{
	CUstream s;

	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	for (unsigned int i = 0; i < ROUNDS; i++) {
		if (i || first) {
			told();			/* it has been recorded */
			CU(cuStreamWaitEvent(s, others, 0));
		}
		turn<<<1, 1, 0, s>>>((unsigned int *)p, 2 * i + first);
		CU(cuEventRecord(mine, s));
		tell();
	}
	CU(cuEventSynchronize(mine));
	CU(cuEventQuery(mine));
	CU(cuStreamDestroy(s));
}

static void event_child(void)
{
	CUipcMemHandle h = take<CUipcMemHandle>();
	CUipcEventHandle eh = take<CUipcEventHandle>(), ours;
	CUdeviceptr p = opened(h);
	CUevent theirs, event, timed;
	struct gate gate;
	CUstream s;
	float ms;

	CU(cuIpcOpenEventHandle(&theirs, eh));
	CU(cuEventQuery(theirs));		/* not recorded yet */
	CU(cuEventSynchronize(theirs));
	CU(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CU(cuEventCreate(&timed, 0));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, theirs, event));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&ours, timed));
	CU_ERROR(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&ours, theirs));
	/* recorded before it is shared, and not done */
	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	gate.close(s);
	CU(cuEventRecord(event, s));
	CU(cuIpcGetEventHandle(&ours, event));
	give(ours);
	told();					/* they have seen that it is not */
	CU_ERROR(CUDA_ERROR_NOT_READY, cuEventQuery(event));
	gate.open();
	CU(cuEventSynchronize(event));
	turns(p, event, theirs, 1);
	told();					/* they wait for no more of these */
	/* recorded by the one who opened it, more often than there are slots for it */
	for (int i = 0; i < 300; i++)
		CU(cuEventRecord(theirs, s));
	gate.close(s);
	CU(cuEventRecord(theirs, s));
	tell();
	told();
	CU_ERROR(CUDA_ERROR_NOT_READY, cuEventQuery(theirs));
	gate.open();
	CU(cuStreamSynchronize(s));
	told();
	CU(cuEventDestroy(theirs));
	CU(cuEventDestroy(event));
	CU(cuEventDestroy(timed));
	CU(cuStreamDestroy(s));
	CU(cuIpcCloseMemHandle(p));
}

static void events(void)
{
	CUipcEventHandle eh, bad;
	CUipcMemHandle h;
	CUevent event, theirs, none;
	CUdeviceptr p;
	CUstream s;

	CU(cuMemAlloc(&p, 4096));
	CU(cuMemsetD8(p, 0, 4096));
	CU(cuIpcGetMemHandle(&h, p));
	CU_INVALID(cuEventCreate(&event, CU_EVENT_INTERPROCESS));
	CU(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CU(cuIpcGetEventHandle(&eh, event));
	CU_INVALID(cuIpcGetEventHandle(NULL, event));
	CU_INVALID(cuIpcOpenEventHandle(NULL, eh));
	CU_ERROR(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenEventHandle(&none, eh));
	memset(&bad, 0, sizeof(bad));
	CU_INVALID(cuIpcOpenEventHandle(&none, bad));
	memcpy(&bad, &h, sizeof(bad));		/* of memory */
	CU_INVALID(cuIpcOpenEventHandle(&none, bad));
	give(h);
	give(eh);
	bad = take<CUipcEventHandle>();
	CU(cuIpcOpenEventHandle(&theirs, bad));
	CU_ERROR(CUDA_ERROR_NOT_READY, cuEventQuery(theirs));
	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuStreamWaitEvent(s, theirs, 0));
	CU_ERROR(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
	tell();
	CU(cuEventSynchronize(theirs));
	CU(cuStreamSynchronize(s));
	turns(p, event, theirs, 0);
	told();					/* of the last turn */
	CU(cuEventSynchronize(theirs));
	std::vector<unsigned int> got = to_host((unsigned int *)p, 2);
	EXPECT_EQ(got[0], 2 * ROUNDS);
	EXPECT_EQ(got[1], 0u);			/* nobody was early */
	sum_vector(got);
	tell();
	told();
	CU_ERROR(CUDA_ERROR_NOT_READY, cuEventQuery(event));
	tell();
	CU(cuEventSynchronize(event));
	tell();
	CU(cuEventDestroy(event));
	CU(cuEventDestroy(theirs));
	CU(cuStreamDestroy(s));
	CU(cuMemFree(p));
}

/* ------------------------------------------------------------------------------ ends */

/* It dies with an event that waits, and with memory that we have open. */
static void dying_child(void)
{
	CUipcEventHandle eh;
	CUipcMemHandle h;
	struct gate gate;
	CUdeviceptr p;
	CUevent event;
	CUstream s;

	CU(cuMemAlloc(&p, COUNT * 4));
	CU(cuMemsetD8(p, 0, COUNT * 4));
	more((void *)p, 9, COUNT);
	CU(cuIpcGetMemHandle(&h, p));
	CU(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CU(cuIpcGetEventHandle(&eh, event));
	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	gate.close(s);
	CU(cuEventRecord(event, s));
	give(h);
	give(eh);
	told();
	raise(SIGKILL);
}

static void dies(pid_t pid)
{
	CUipcMemHandle h = take<CUipcMemHandle>();
	CUipcEventHandle eh = take<CUipcEventHandle>();
	CUdeviceptr p = opened(h), q;
	CUevent event, again;
	CUstream s;
	int status;

	CU(cuIpcOpenEventHandle(&event, eh));
	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cuStreamWaitEvent(s, event, 0));
	add<<<8, 64, 0, s>>>((unsigned int *)p, 1, COUNT);
	CU_ERROR(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
	tell();
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	/* nobody will ever complete it: the stream goes on, and the memory is ours */
	CU(cuEventSynchronize(event));
	CU(cuStreamSynchronize(s));
	is((void *)p, 10, COUNT);
	more((void *)p, 1, COUNT);
	is((void *)p, 11, COUNT);
	CU(cuEventRecord(event, s));
	CU(cuEventSynchronize(event));
	CU(cuIpcCloseMemHandle(p));
	for (int i = 0; i < 1000; i++) {	/* its proxy ends soon after */
		CUresult r = cuIpcOpenMemHandle(&q, h, LAZY);

		if (r != CUDA_SUCCESS) {
			CU_ERROR(CUDA_ERROR_MAP_FAILED, r);
			break;
		}
		CU(cuIpcCloseMemHandle(q));
		EXPECT(i < 999);
		usleep(10000);
	}
	CU_ERROR(CUDA_ERROR_MAP_FAILED, cuIpcOpenEventHandle(&again, eh));
	CU(cuEventDestroy(event));
	CU(cuStreamDestroy(s));
}

/* The other way: who has our memory open is killed. */
static void killed_child(void)
{
	CUdeviceptr p = opened(take<CUipcMemHandle>());
	CUevent event;

	CU(cuIpcOpenEventHandle(&event, take<CUipcEventHandle>()));
	for (;;) {
		add<<<8, 64>>>((unsigned int *)p, 0, COUNT);
		CU(cuEventRecord(event, 0));
		tell();
		told();
	}
}

static void kills(pid_t pid)
{
	CUipcEventHandle eh;
	CUipcMemHandle h;
	CUdeviceptr p;
	CUevent event;
	int status;

	CU(cuMemAlloc(&p, COUNT * 4));
	CU(cuMemsetD8(p, 0, COUNT * 4));
	more((void *)p, 2, COUNT);
	CU(cuIpcGetMemHandle(&h, p));
	CU(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CU(cuIpcGetEventHandle(&eh, event));
	give(h);
	give(eh);
	told();
	tell();
	kill(pid, SIGKILL);
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT(WIFSIGNALED(status));
	CU(cuEventSynchronize(event));
	is((void *)p, 2, COUNT);
	more((void *)p, 2, COUNT);
	is((void *)p, 4, COUNT);
	CU(cuEventRecord(event, 0));
	CU(cuEventSynchronize(event));
	CU(cuMemFree(p));
	CU(cuEventDestroy(event));
}

/* ------------------------------------------------------------------------------ all of it */

static pid_t start(const char *part)
{
	int pair[2];
	pid_t pid;

	EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	fflush(stdout);
	pid = fork();
	EXPECT(pid >= 0);
	if (!pid) {
		dup2(pair[1], 3);
		execl("/proc/self/exe", "driver_ipc", part, (char *)NULL);
		_exit(99);
	}
	close(pair[1]);
	sock = pair[0];
	return pid;
}

static void well(pid_t pid)
{
	int status;

	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	close(sock);
}

static int child(const char *part)
{
	sock = 3;
	CHECK(cudaFree(0));
	if (!strcmp(part, "memory"))
		memory_child();
	else if (!strcmp(part, "pool"))
		pool_child();
	else if (!strcmp(part, "event"))
		event_child();
	else if (!strcmp(part, "dying"))
		dying_child();
	else
		killed_child();
	return 0;
}

/* What is had by the right handles, and is not to be: by whom else, or on what other device. */
static void refused(CUresult memory, CUresult events)
{
	CUipcMemHandle h = take<CUipcMemHandle>();
	CUipcEventHandle eh = take<CUipcEventHandle>();
	CUdeviceptr p = 77;
	CUevent e;

	CU_ERROR(memory, cuIpcOpenMemHandle(&p, h, LAZY));
	EXPECT_EQ(p, 77ull);
	CU_ERROR(events, cuIpcOpenEventHandle(&e, eh));
	tell();
}

static void refuses(void)
{
	CUipcEventHandle eh;
	CUipcMemHandle h;
	CUdeviceptr p;
	CUevent e;

	CU(cuMemAlloc(&p, 4096));
	CU(cuIpcGetMemHandle(&h, p));
	CU(cuEventCreate(&e, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	CU(cuIpcGetEventHandle(&eh, e));
	give(h);
	give(eh);
	told();
	CU(cuEventDestroy(e));
	CU(cuMemFree(p));
}

static void meet(const char *path)
{
	sockaddr_un a = {};
	int at = socket(AF_UNIX, SOCK_STREAM, 0);
	CUuuid id;
	char how;

	CHECK(cudaFree(0));
	a.sun_family = AF_UNIX;
	strncpy(a.sun_path, path, sizeof(a.sun_path) - 1);
	EXPECT_EQ(bind(at, (sockaddr *)&a, sizeof(a)), 0);
	EXPECT_EQ(listen(at, 1), 0);
	sock = accept(at, NULL, NULL);
	EXPECT(sock >= 0);
	how = take<char>();
	CU(cuDeviceGetUuid(&id, 0));
	give(id);
	if (how == 'v') {
		memory();
		pool();
		events();
	} else {
		refuses();
	}
}

static void visit(const char *path, const char *how)
{
	sockaddr_un a = {};
	CUuuid id, theirs;
	int dev = 0;

	a.sun_family = AF_UNIX;
	strncpy(a.sun_path, path, sizeof(a.sun_path) - 1);
	sock = socket(AF_UNIX, SOCK_STREAM, 0);
	for (int i = 0; connect(sock, (sockaddr *)&a, sizeof(a)); i++) {
		EXPECT(i < 6000);
		usleep(10000);
	}
	give(*how);
	theirs = take<CUuuid>();
	do {			/* theirs; or, abroad, another one */
		CU(cuDeviceGetUuid(&id, dev));
	} while (!memcmp(&id, &theirs, sizeof(id)) == (*how == 'a') && ++dev);
	CHECK(cudaSetDevice(dev));
	CHECK(cudaFree(0));
	if (*how == 's') {
		refused(CUDA_ERROR_MAP_FAILED, CUDA_ERROR_MAP_FAILED);
	} else if (*how == 'a') {
		refused(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, CUDA_SUCCESS);
	} else {
		memory_child();
		pool_child();
		event_child();
	}
}

int main(int argc, char **argv)
{
	int events_can, pools_can;
	pid_t pid;

	if (argc == 2)
		return child(argv[1]);
	CU(cuInit(0));
	if (argc == 3) {
		if (!strcmp(argv[1], "meet"))
			meet(argv[2]);
		else
			visit(argv[2], argv[1]);
		return job_passed("driver_ipc");
	}
	CHECK(cudaFree(0));
	CU(cuDeviceGetAttribute(&events_can, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 0));
	CU(cuDeviceGetAttribute(&pools_can, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 0));
	if (!events_can) {
		CUipcMemHandle h;
		CUdeviceptr p;

		CU(cuMemAlloc(&p, 4096));
		CU_ERROR(CUDA_ERROR_NOT_SUPPORTED, cuIpcGetMemHandle(&h, p));
		printf("SKIP no memory or events of other processes\n");
		return 4;
	}
	EXPECT(pools_can & FD);
	pid = start("memory");
	memory();
	well(pid);
	pid = start("pool");
	pool();
	well(pid);
	pid = start("event");
	events();
	well(pid);
	pid = start("dying");
	dies(pid);
	close(sock);
	pid = start("killed");
	kills(pid);
	close(sock);
	return job_passed("driver_ipc");
}
