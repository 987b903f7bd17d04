// SPDX-License-Identifier: Apache-2.0
/*
 * driver_share.cu - device memory shared by two processes, passed as a file descriptor
 *
 * The child is forked before either uses the device. Each sees the writes of the other's kernels;
 * the memory lives as long as one of them holds it.
 */
#include "driver.cuh"
#include "passfd.cuh"

#include <sys/socket.h>
#include <sys/wait.h>

#define TYPE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

__global__ void add(unsigned int *p, unsigned int v, size_t n)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		p[i] += v * (unsigned int)i;
}

static size_t size;

static CUmemAllocationProp prop_of(CUmemAllocationHandleType type)
{
	CUmemAllocationProp p = {};

	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.requestedHandleTypes = type;
	return p;
}

static unsigned int *mapped(CUmemGenericAllocationHandle h)
{
	CUmemAccessDesc rw = {};
	CUdeviceptr at;

	CU(cuMemAddressReserve(&at, size, 0, 0, 0));
	CU(cuMemMap(at, size, 0, h, 0));
	rw.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	rw.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	CU(cuMemSetAccess(at, size, &rw, 1));
	return (unsigned int *)at;
}

static void unmapped(unsigned int *p)
{
	CU(cuMemUnmap((CUdeviceptr)p, size));
	CU(cuMemAddressFree((CUdeviceptr)p, size));
}

static void more(unsigned int *p, unsigned int v)
{
	add<<<8, 64>>>(p, v, size / 4);
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceSynchronize());
}

static void is(unsigned int *p, unsigned int v)
{
	std::vector<unsigned int> got = to_host(p, size / 4);

	for (size_t i = 0; i < got.size(); i++)
		EXPECT_EQ(got[i], v * (unsigned int)i);
}

/* The other process has come so far. */
static void told(int sock)
{
	char c;

	EXPECT_EQ(read(sock, &c, 1), 1);
}

static void tell(int sock)
{
	EXPECT_EQ(write(sock, "", 1), 1);
}

static void begin(void)
{
	CUmemAllocationProp prop = prop_of(TYPE);

	CHECK(cudaSetDevice(0));
	CU(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	size *= 2;
}

static int child(int sock)
{
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp prop;
	unsigned int *p;
	int fd;

	begin();
	fd = passed(sock);
	CU(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, TYPE));
	EXPECT_EQ(close(fd), 0);
	CU(cuMemGetAllocationPropertiesFromHandle(&prop, h));
	EXPECT_EQ(prop.requestedHandleTypes, TYPE);
	p = mapped(h);
	is(p, 3);
	more(p, 4);
	tell(sock);
	told(sock);
	is(p, 12);		/* the parent has added 5, and let go */
	CU(cuMemRelease(h));
	is(p, 12);
	unmapped(p);
	CU_INVALID(cuMemRelease(h));
	return 0;
}

static void arguments(CUmemGenericAllocationHandle h)
{
	CUmemAllocationProp plain = prop_of(CU_MEM_HANDLE_TYPE_NONE);
	CUmemGenericAllocationHandle other = 7;
	int fd = -2;

	CU_INVALID(cuMemExportToShareableHandle(NULL, h, TYPE, 0));
	CU_INVALID(cuMemExportToShareableHandle(&fd, h, TYPE, 1));
	CU_INVALID(cuMemExportToShareableHandle(&fd, 12345, TYPE, 0));
	CU_ERROR(CUDA_ERROR_NOT_SUPPORTED,
		 cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_FABRIC, 0));
	CU(cuMemCreate(&other, size, &plain, 0));
	CU_INVALID(cuMemExportToShareableHandle(&fd, other, TYPE, 0));
	CU(cuMemRelease(other));
	EXPECT_EQ(fd, -2);
	CU_INVALID(cuMemImportFromShareableHandle(NULL, (void *)0, TYPE));
	CU_INVALID(cuMemImportFromShareableHandle(&other, (void *)(intptr_t)-1, TYPE));
	CU_INVALID(cuMemImportFromShareableHandle(&other, (void *)(intptr_t)12345, TYPE));
}

static void parent(int sock)
{
	CUmemAllocationProp prop = prop_of(TYPE);
	CUmemGenericAllocationHandle h, again;
	unsigned int *p, *q;
	size_t before, after, total;
	int fd;

	begin();
	CU(cuMemGetInfo(&before, &total));
	CU(cuMemCreate(&h, size, &prop, 0));
	p = mapped(h);
	CHECK(cudaMemset(p, 0, size));
	more(p, 3);
	CU(cuMemExportToShareableHandle(&fd, h, TYPE, 0));
	pass(sock, fd);
	told(sock);
	is(p, 7);
	arguments(h);

	/* the same memory once more in this process */
	CU(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, TYPE));
	EXPECT_EQ(close(fd), 0);
	q = mapped(again);
	is(q, 7);
	more(q, 5);
	is(p, 12);
	sum_vector(to_host(p, size / 4));
	CU(cuMemRelease(again));
	unmapped(q);
	unmapped(p);
	CU(cuMemRelease(h));
	CU(cuMemGetInfo(&after, &total));
	EXPECT_EQ(after, before);
	tell(sock);
}

int main()
{
	int sock[2], status;
	pid_t pid;

	EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sock), 0);
	fflush(stdout);
	pid = fork();
	EXPECT(pid >= 0);
	if (!pid) {
		close(sock[0]);
		return child(sock[1]);
	}
	close(sock[1]);
	parent(sock[0]);
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	return job_passed("driver_share");
}
