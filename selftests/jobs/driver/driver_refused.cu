// SPDX-License-Identifier: Apache-2.0
/*
 * driver_refused.cu - a refused call is told of on stderr, once for each function, in a whole line: without waiting
 * for a reader, and without a signal. What a program may try is refused in silence.
 */
#include "driver.cuh"

#include <csignal>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>

static int before;		/* the program's stderr */

static void on_stderr(int fd)
{
	EXPECT(dup2(fd, 2) == 2);
}

static void off(void)
{
	EXPECT(dup2(before, 2) == 2);
}

static std::string contents(int fd)
{
	char text[16384];
	ssize_t n = pread(fd, text, sizeof(text), 0);

	return std::string(text, n > 0 ? n : 0);
}

static void refused(CUresult r)
{
	EXPECT_EQ(r, CUDA_ERROR_NOT_SUPPORTED);
}

static size_t count(const std::string &in, const char *what)
{
	size_t n = 0;

	for (size_t at = in.find(what); at != std::string::npos; at = in.find(what, at + 1))
		n++;
	return n;
}

static void once(void)
{
	int fd = memfd_create("stderr", MFD_CLOEXEC);
	CUgreenCtx g;
	CUevent e;

	CU(cuEventCreate(&e, 0));
	on_stderr(fd);
	for (int i = 0; i < 3; i++) {
		errno = 77;
		refused(cuGreenCtxCreate(&g, NULL, 0, 0));
		EXPECT_EQ(errno, 77);
		refused(cuGreenCtxDestroy(NULL));
	}
	off();
	std::string s = contents(fd);
	EXPECT_EQ(count(s, "\n"), 2);
	EXPECT_EQ(count(s, "cuGreenCtxCreate is not supported: green contexts"), 1);
	EXPECT_EQ(count(s, "cuGreenCtxDestroy is not supported: "), 1);
	EXPECT_EQ(count(s, "without singvgpu.\n"), 2);
	EXPECT(s.back() == '\n');
	CU(cuEventDestroy(e));
	close(fd);
}

static void probes(CUdevice dev)
{
	int fd = memfd_create("stderr", MFD_CLOEXEC), v;
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp p = {};
	CUdeviceptr d = room(64);
	const void *table;
	CUuuid id = { "no such table" };
	char luid[16];
	unsigned int mask;
	unsigned long long t[2];
	void *f;

	on_stderr(fd);
	for (int a = 1; a < 256; a++)
		(void)cuDeviceGetAttribute(&v, (CUdevice_attribute)a, dev);
	EXPECT(cuDeviceGetLuid(luid, &mask, dev));
	EXPECT(cuGetExportTable(&table, &id));
	EXPECT(cuGetProcAddress("cuNoSuchFunction", &f, 13000, 0, NULL) || !f);
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
	EXPECT(cuMemCreate(&h, 2 << 20, &p, 0));
	EXPECT(cuPointerGetAttribute(t, CU_POINTER_ATTRIBUTE_P2P_TOKENS, d));
	off();
	EXPECT(contents(fd).empty());
	CU(cuMemFree(d));
	close(fd);
}

/* Writes until nothing more fits; through a description of our own. Returns how much. */
static size_t fill(int fd)
{
	int own = open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY);
	std::vector<char> x(4096, 'x');
	size_t all = 0;
	ssize_t n;

	for (size_t len = x.size(); len; len /= 2)
		while ((n = own >= 0 ? write(own, x.data(), len) :
			send(fd, x.data(), len, MSG_DONTWAIT)) > 0)
			all += n;
	if (own >= 0)
		close(own);
	return all;
}

/* A call that waited for the reader would never end. Of a terminal the kernel may find room meanwhile. */
static void full(int reader, int writer, CUresult (*call)(void), bool terminal = false)
{
	int flags = fcntl(writer, F_GETFL);
	size_t all = fill(writer), got = 0;
	char text[65536];
	ssize_t n;

	EXPECT(all > 1000);
	on_stderr(writer);
	refused(call());
	off();
	EXPECT_EQ(fcntl(writer, F_GETFL), flags);
	close(writer);
	fcntl(reader, F_SETFL, O_NONBLOCK);
	while ((n = read(reader, text, sizeof(text))) > 0) {
		EXPECT(terminal || !memchr(text, 's', n));
		got += n;
	}
	EXPECT(terminal || got == all);
	close(reader);
}

static volatile sig_atomic_t signals;

static void on_signal(int)
{
	signals++;
}

static void readers(void)
{
	sigset_t pending;
	char text[4096];
	int p[2], s[2];
	ssize_t n;

	EXPECT(!pipe(p));
	full(p[0], p[1], [] { return cuParamSetSize(NULL, 0); });
	EXPECT(!socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	full(s[0], s[1], [] { return cuParamSeti(NULL, 0, 0); });
	p[0] = posix_openpt(O_RDWR | O_NOCTTY);
	if (p[0] >= 0 && !grantpt(p[0]) && !unlockpt(p[0])) {
		p[1] = open(ptsname(p[0]), O_RDWR | O_NOCTTY);
		EXPECT(p[1] >= 0);
		full(p[0], p[1], [] { return cuParamSetf(NULL, 0, 0); }, true);
	}
	/* one that reads */
	EXPECT(!pipe(p));
	on_stderr(p[1]);
	refused(cuLaunch(NULL));
	off();
	n = read(p[0], text, sizeof(text) - 1);
	EXPECT(n > 0 && text[n - 1] == '\n');
	text[n] = 0;
	EXPECT(strstr(text, "cuLaunch is not supported"));
	/* one that has gone */
	signal(SIGPIPE, on_signal);
	close(p[0]);
	on_stderr(p[1]);
	refused(cuLaunchGrid(NULL, 1, 1));
	off();
	EXPECT(!sigpending(&pending) && !sigismember(&pending, SIGPIPE));
	EXPECT_EQ(signals, 0);
	/* none at all */
	close(2);
	refused(cuLaunchGridAsync(NULL, 1, 1, NULL));
	off();
}

int main()
{
	CUdevice dev;

	if (!getenv("SINGVGPU_SOCKET") || getenv("SINGVGPU_LOG")) {
		printf("SKIP not through the proxy\n");
		return 4;
	}
	before = dup(2);
	CHECK(cudaFree(NULL));
	CU(cuCtxGetDevice(&dev));
	once();
	probes(dev);
	readers();
	return job_passed("driver_refused");
}
