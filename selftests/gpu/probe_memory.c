// SPDX-License-Identifier: Apache-2.0
/*
 * probe_memory.c - probes of mapped, registered and shared memory, of the link, of the driver's checkpoint
 */
#define _GNU_SOURCE
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ----------------------------------------------------------------------- virtual memory */

enum { CREATE, MAP, ACCESS, UNMAP, RELEASE, CALLS };
static const char *const calls[] = { "create", "map", "access", "unmap", "release" };

#define PIECES 64
static CUmemGenericAllocationHandle pieces[PIECES];

static void vmm_call(int call, CUdeviceptr at, int i, size_t len)
{
	CUmemAllocationProp prop = device_memory();

	switch (call) {
	case CREATE: CHECK(cuMemCreate, &pieces[i], len, &prop, 0); break;
	case MAP: CHECK(cuMemMap, at + i * len, len, 0, pieces[i], 0); break;
	case ACCESS: allow(at + i * len, len); break;
	case UNMAP: CHECK(cuMemUnmap, at + i * len, len); break;
	case RELEASE: CHECK(cuMemRelease, pieces[i]); break;
	}
}

/* With busy, each call is made while a kernel runs: a call that lasts as long as it waits for it. */
static void vmm_size(size_t len, int n, double busy)
{
	double t[PIECES];
	CUdeviceptr at;

	CHECK(cuMemAddressReserve, &at, n * len, 0, 0, 0);
	printf("%s %zu MiB:", busy ? "busy" : "idle", len >> 20);
	for (int call = 0; call < CALLS; call++) {
		for (int i = 0; i < n; i++) {
			if (busy)
				check(spin(0, busy), "spin");
			t[i] = now_us();
			vmm_call(call, at, i, len);
			t[i] = now_us() - t[i];
			if (busy)
				CHECK(cuCtxSynchronize, );
		}
		printf(" %s %.0f", calls[call], median(t, n));
	}
	printf(" us;");
	CHECK(cuMemAddressFree, at, n * len);
}

int probe_vmm(int argc, char **argv)
{
	static const size_t mib[] = { 2, 32, 512 };
	bool busy = argc && !strcmp(argv[0], "busy");

	begin_context();
	CHECK(cuCtxSynchronize, );
	check(spin(0, 10), "spin");
	for (size_t i = 0; i < COUNT(mib); i++) {
		size_t most = free_memory() / 2 / (mib[i] * MIB);
		int n = busy ? 3 : mib[i] == 2 ? PIECES : mib[i] == 32 ? 16 : 4;

		if ((size_t)n <= most)
			vmm_size(mib[i] * MIB, n, busy ? 30000 : 0);
		else
			printf("%zu MiB: no memory;", mib[i]);
	}
	putchar('\n');
	return 0;
}

/* -------------------------------------------------------------- registered memory, link */

static void *shared_memory(size_t len)
{
	int fd = memfd_create("probe", MFD_CLOEXEC);
	void *p;

	if (fd < 0 || ftruncate(fd, len))
		leave(1, "memfd: %m");
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (p == MAP_FAILED)
		leave(1, "mmap: %m");
	close(fd);
	return p;
}

int probe_register(int argc, char **argv)
{
	const size_t len = 64 * MIB;
	char *p = shared_memory(2 * len);
	uint64_t store[2];
	CUdeviceptr d, seen;
	double t[4];
	CUresult in, out, stored;

	(void)argc, (void)argv;
	begin_context();
	CHECK(cuMemAlloc, &d, len);
	t[0] = now_us();
	CHECK(cuMemHostRegister, p, len, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	t[1] = now_us();
	CHECK(cuMemHostRegister, p + len, len,
	      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	CHECK(cuMemHostGetDevicePointer, &seen, p, 0);
	in = DRIVER(cuMemcpyHtoD)(d, p + len - MIB, 2 * MIB);
	out = DRIVER(cuMemcpyDtoH)(p + len - MIB, d, 2 * MIB);
	printf("memfd of 2 registrations at %p, for the device %#llx; a copy across both: in %s, "
	       "out %s, asynchronous %s\n", p, seen, code(in), code(out),
	       code(DRIVER(cuMemcpyHtoDAsync)(d, p + len - MIB, 2 * MIB, 0)));
	CHECK(cuCtxSynchronize, );
	store[0] = seen, store[1] = 42;
	stored = launch(function("store"), 0, 2, store);
	CHECK(cuCtxSynchronize, );
	printf("a kernel's store: %s, read %d; registered twice: %s; of odd size: %s\n", code(stored),
	       *(volatile int *)p, code(DRIVER(cuMemHostRegister)(p, len, 0)),
	       code(DRIVER(cuMemHostRegister)(shared_memory(MIB), 5000, 0)));
	t[2] = now_us();
	CHECK(cuMemHostUnregister, p);
	t[3] = now_us();
	printf("registered 64 MiB in %.0f us, unregistered in %.0f us; straddling copies: %s/%s\n",
	       t[1] - t[0], t[3] - t[2], code(in), code(out));
	return 0;
}

/* GB/s of 8 copies of len bytes; way 0: to the device, 1: from it, 2: both at once. */
static double rate(int way, CUdeviceptr d, char *p, size_t len, CUstream s[2])
{
	double t;

	for (int warm = 1; warm >= 0; warm--) {
		t = now_us();
		for (int i = 0; i < (warm ? 1 : 8); i++) {
			if (way != 1)
				CHECK(cuMemcpyHtoDAsync, d, p, len, s[0]);
			if (way)
				CHECK(cuMemcpyDtoHAsync, p + len, d + len, len, s[1]);
		}
		CHECK(cuCtxSynchronize, );
		t = now_us() - t;
	}
	return 8 * (way == 2 ? 2 : 1) * len / t / 1e3;
}

int probe_link(int argc, char **argv)
{
	const size_t len = 128 * MIB;
	CUdeviceptr d;
	CUstream s[2];
	void *pinned, *registered = shared_memory(2 * len);

	(void)argc, (void)argv;
	begin_context();
	CHECK(cuMemAlloc, &d, 2 * len);
	CHECK(cuMemHostAlloc, &pinned, 2 * len, CU_MEMHOSTALLOC_PORTABLE);
	CHECK(cuMemHostRegister, registered, 2 * len, CU_MEMHOSTREGISTER_PORTABLE);
	for (int i = 0; i < 2; i++)
		CHECK(cuStreamCreate, &s[i], CU_STREAM_NON_BLOCKING);
	printf("GB/s in, out, both: pinned %.1f %.1f %.1f", rate(0, d, pinned, len, s),
	       rate(1, d, pinned, len, s), rate(2, d, pinned, len, s));
	printf(", registered memfd %.1f %.1f %.1f\n", rate(0, d, registered, len, s),
	       rate(1, d, registered, len, s), rate(2, d, registered, len, s));
	return 0;
}

/* -------------------------------------------------------------------- two processes */

#define TURNS 200

/* Sends fd, or receives one if it is -1. */
static int pass(int sock, int fd)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c = { 0 };
	char byte = 0;
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };

	c.h.cmsg_len = CMSG_LEN(sizeof(int));
	c.h.cmsg_level = SOL_SOCKET;
	c.h.cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(&c.h), &fd, sizeof(fd));
	if ((fd < 0 ? recvmsg(sock, &m, 0) : sendmsg(sock, &m, 0)) != 1)
		leave(1, "the other process is gone");
	memcpy(&fd, CMSG_DATA(&c.h), sizeof(fd));
	return fd;
}

static void turn(int sock, bool wait)
{
	char byte = 0;

	if (wait ? read(sock, &byte, 1) != 1 : write(sock, &byte, 1) != 1)
		leave(1, "the other process is gone");
}

static void store_word(CUdeviceptr at, uint64_t v)
{
	uint64_t params[] = { at, v };

	check(launch(function("store"), 0, 2, params), "store");
	CHECK(cuCtxSynchronize, );
}

/* Kernels of both contexts at the same time; returns ms. */
static double crowd(int sock, bool wait)
{
	double t;

	turn(sock, wait);
	turn(sock, !wait);
	t = now_us();
	for (int i = 0; i < 20; i++)
		check(spin(0, 10000), "spin");
	CHECK(cuCtxSynchronize, );
	return (now_us() - t) / 1e3;
}

static const size_t share_mib[] = { 2, 32, 512 };

static void importer(int sock)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr at;
	double t[4];

	begin_context();
	for (size_t i = 0; i < COUNT(share_mib); i++) {
		size_t len = share_mib[i] * MIB;
		int fd = pass(sock, -1);

		t[0] = now_us();
		CHECK(cuMemImportFromShareableHandle, &h, (void *)(uintptr_t)fd,
		      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		t[1] = now_us();
		CHECK(cuMemAddressReserve, &at, len, 0, 0, 0);
		CHECK(cuMemMap, at, len, 0, h, 0);
		t[2] = now_us();
		allow(at, len);
		t[3] = now_us();
		close(fd);
		printf("%zu MiB: import %.0f map %.0f access %.0f us; ", share_mib[i], t[1] - t[0],
		       t[2] - t[1], t[3] - t[2]);
		store_word(at, 100 + i);
		fflush(stdout);
		turn(sock, false);
	}
	for (int i = 0; i < TURNS; i++) {
		turn(sock, true);
		store_word(at, i);
		turn(sock, false);
	}
	crowd(sock, true);
	exit(0);
}

int probe_share(int argc, char **argv)
{
	CUmemAllocationProp prop = device_memory();
	CUmemGenericAllocationHandle h;
	CUdeviceptr at = 0;
	int sock[2], fd, word, right = 0, status;
	double t, alone, together, both;
	pid_t child;

	(void)argc, (void)argv;
	setvbuf(stdout, NULL, _IOFBF, BUFSIZ);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock))
		leave(1, "socketpair: %m");
	child = fork();
	if (child < 0)
		leave(1, "fork: %m");
	if (!child) {
		close(sock[0]);
		importer(sock[1]);
	}
	close(sock[1]);
	begin_context();
	for (size_t i = 0; i < COUNT(share_mib); i++) {
		size_t len = share_mib[i] * MIB;

		CHECK(cuMemCreate, &h, len, &prop, 0);
		CHECK(cuMemAddressReserve, &at, len, 0, 0, 0);
		CHECK(cuMemMap, at, len, 0, h, 0);
		allow(at, len);
		CHECK(cuMemExportToShareableHandle, &fd, h,
		      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		pass(sock[0], fd);
		turn(sock[0], true);
		CHECK(cuMemcpyDtoH, &word, at, sizeof(word));
		right += word == 100 + (int)i;
	}
	t = now_us();
	for (int i = 0; i < TURNS; i++) {
		store_word(at, i);
		store_word(at, i);
	}
	alone = (now_us() - t) / TURNS;
	t = now_us();
	for (int i = 0; i < TURNS; i++) {
		store_word(at, i);
		turn(sock[0], false);
		turn(sock[0], true);
	}
	together = (now_us() - t) / TURNS;
	both = crowd(sock[0], false);
	waitpid(child, &status, 0);
	printf("%d of %zu words seen; two launches and waits: in one process %.0f us, in turns %.0f "
	       "us; 2 x 200 ms at once: %.0f ms\n", right, COUNT(share_mib), alone, together, both);
	return status || right != COUNT(share_mib);
}

/* -------------------------------------------------------------- the driver's checkpoint */

/* MIB: of device memory in the process that is saved. */
int probe_driver_checkpoint(int argc, char **argv)
{
#if CUDA_VERSION >= 12080
	CUcheckpointLockArgs lock = { .timeoutMs = 10000 };
	size_t len = (argc ? strtoull(argv[0], NULL, 10) : 1024) * MIB;
	int sock[2], status;
	double t[5];
	CUdeviceptr d;
	CUprocessState state;
	CUresult rc[4];
	pid_t child;
	uint64_t word;
	char byte;

	symbol("cuCheckpointProcessLock");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock))
		leave(1, "socketpair: %m");
	child = fork();
	if (child < 0)
		leave(1, "fork: %m");
	if (!child) {
		close(sock[0]);
		if (read(sock[1], &byte, 1) != 1)
			_exit(4);
		begin_context();
		if (DRIVER(cuMemAlloc)(&d, len))
			leave(4, "the device has no %zu MiB", len >> 20);
		CHECK(cuMemsetD8, d, 0x5a, len);
		CHECK(cuCtxSynchronize, );
		turn(sock[1], false);
		turn(sock[1], true);
		CHECK(cuMemcpyDtoH, &word, d + len - sizeof(word), sizeof(word));
		exit(word != 0x5a5a5a5a5a5a5a5aull);
	}
	close(sock[1]);
	begin();
	/* before the child takes so much memory */
	rc[0] = DRIVER(cuCheckpointProcessGetState)(getpid(), &state);
	if (rc[0] == CUDA_ERROR_NOT_SUPPORTED)
		leave(4, "cuCheckpointProcessGetState: %s", code(rc[0]));
	turn(sock[0], false);
	if (read(sock[0], &byte, 1) != 1)
		return waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : 1;
	t[0] = now_us();
	rc[0] = DRIVER(cuCheckpointProcessLock)(child, &lock);
	t[1] = now_us();
	rc[1] = DRIVER(cuCheckpointProcessCheckpoint)(child, NULL);
	t[2] = now_us();
	rc[2] = DRIVER(cuCheckpointProcessRestore)(child, NULL);
	t[3] = now_us();
	rc[3] = DRIVER(cuCheckpointProcessUnlock)(child, NULL);
	t[4] = now_us();
	turn(sock[0], false);
	waitpid(child, &status, 0);
	printf("%zu MiB: lock %s %.1f, checkpoint %s %.1f, restore %s %.1f, unlock %s %.1f ms; content %s\n",
	       len >> 20, code(rc[0]), (t[1] - t[0]) / 1e3, code(rc[1]), (t[2] - t[1]) / 1e3,
	       code(rc[2]), (t[3] - t[2]) / 1e3, code(rc[3]), (t[4] - t[3]) / 1e3,
	       status ? "lost" : "kept");
	return status || rc[0] || rc[1] || rc[2] || rc[3];
#else
	(void)argc, (void)argv;
	leave(4, "this program was built without cuCheckpointProcess*");
#endif
}
