/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - a client that speaks the protocol by hand: helpers of the proxy's tests
 *
 * Each test, in a process of its own, is the client: it starts a proxy over a socketpair, so that
 * SO_PEERCRED names it. The fixture's teardown disconnects, and checks the proxy's exit status.
 */
#ifndef SELFTESTS_UPROXY_CLIENT_H
#define SELFTESTS_UPROXY_CLIENT_H

#include "../harness/leaks.h"
#include "../harness/patience.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "cuda_ops.h"
#include "proto.h"
#include "ring.h"
#include "stat.h"

#define GRANULE	SV_GRANULE
#define MiB	(1ull << 20)

struct client {
	pid_t proxy;
	int sock;
	struct ring *ring;
	uint8_t *arena;
	volatile struct sv_shared *shared;
	uint64_t window;
	uint64_t at;		/* arena: free from here on */
	uint32_t next;		/* index of the next handle */
	uint64_t ctx;
};

static inline const char *build_dir(void)
{
	return getenv("SINGVGPU_BUILD") ?: "build";
}

/* Starts a proxy with more options, NULL-terminated. Its standard error is the log. */
static inline int client_spawn(struct client *c, const char *const *more)
{
	char path[512], fd[16], lib[512];
	const char *argv[32] = { path, "--socket", fd };
	int sv[2], n = 3;

	memset(c, 0, sizeof(*c));
	c->next = 1;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv))
		return -errno;
	snprintf(path, sizeof(path), "%s/uproxy/singvgpu-proxy", build_dir());
	snprintf(lib, sizeof(lib), "%s/uproxy/softgpu/libsoftcuda.so", build_dir());
	argv[n++] = "--driver";
	argv[n++] = lib;
	if (getenv("SINGVGPU_TEST_WINDOW")) {	/* of a proxy under a sanitizer */
		argv[n++] = "--window";
		argv[n++] = getenv("SINGVGPU_TEST_WINDOW");
	}
	while (more && *more && n < 31)
		argv[n++] = *more++;
	argv[n] = NULL;
	c->proxy = fork();
	if (!c->proxy) {
		int s = dup(sv[1]);	/* without close-on-exec */

		snprintf(fd, sizeof(fd), "%d", s);
		execv(path, (char **)argv);
		_exit(127);
	}
	close(sv[1]);
	c->sock = sv[0];
	return c->proxy < 0 ? -errno : 0;
}

/* Sends the hello message; r gets the reply. 0: there is one. */
static inline int client_hello(struct client *c, const struct sv_connect *con,
			       struct sv_connected *r)
{
	if (send(c->sock, con, sizeof(*con), MSG_NOSIGNAL) != sizeof(*con))
		return -EPIPE;
	if (recv(c->sock, r, sizeof(*r), MSG_WAITALL) != sizeof(*r))
		return -EPIPE;
	return 0;
}

static inline int client_attach(struct client *c)
{
	int fd = ring_take_fd(c->sock), rc;

	if (fd < 0)
		return fd;
	rc = ring_attach(&c->ring, fd);
	if (rc) {
		close(fd);
		return rc;
	}
	close(c->sock);
	c->sock = -1;
	c->arena = ring_arena(c->ring);
	c->shared = (void *)c->arena;
	c->window = c->shared->window;
	c->at = c->shared->arena_first;
	return 0;
}

static inline int client_start(struct client *c, const char *const *more)
{
	struct sv_connect con = { .magic = SV_CONNECT_MAGIC, .version = SV_PROTO_VERSION,
				  .device = -1, .api = CUDA_VERSION };
	struct sv_connected r;
	int rc = client_spawn(c, more);

	if (!rc)
		rc = client_hello(c, &con, &r);
	if (!rc && r.status) {
		fprintf(stderr, "# the proxy says: %s\n", r.why);
		rc = r.status;
	}
	return rc ?: client_attach(c);
}

/* Waits some seconds for the proxy's end: exit status, -signal, or -1000: still running. */
static inline int client_wait(struct client *c)
{
	int status;

	for (int i = 0; i < 10000; i++) {
		pid_t p = waitpid(c->proxy, &status, WNOHANG);

		if (p == c->proxy) {
			c->proxy = 0;
			return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
		}
		usleep(1000);
	}
	return -1000;
}

static inline int client_end(struct client *c)
{
	int rc;

	ring_close(c->ring);
	c->ring = NULL;
	if (c->sock > 0)
		close(c->sock);
	if (!c->proxy)
		return 0;
	rc = client_wait(c);
	if (rc == -1000) {
		kill(c->proxy, SIGKILL);
		waitpid(c->proxy, NULL, 0);
	}
	return rc;
}

static inline uint64_t new_handle(struct client *c, unsigned int type)
{
	return sv_handle(type, c->next++, 1);
}

/* Bytes of the arena, aligned to 4096, never given back. */
static inline uint64_t arena_take(struct client *c, uint64_t len)
{
	uint64_t at = c->at;

	c->at += (len + 4095) & ~4095ull;
	return at;
}

/* Sends a record that is answered: its status, or -errno of the channel. reply may be NULL. */
static inline int call2(struct client *c, uint16_t op, const void *a, uint32_t alen, const void *b,
			uint32_t blen, void *reply, uint32_t cap)
{
	int32_t status = -1;
	int rc = ring_call(c->ring, op, a, alen, b, blen, &status, reply, cap, NULL);

	return rc ?: status;
}

#define CALL(c, op, ...) ({ \
	__typeof__(__VA_ARGS__) a_ = __VA_ARGS__; \
	call2(c, op, &a_, sizeof(a_), NULL, 0, NULL, 0); \
})

#define SEND(c, op, ...) ({ \
	__typeof__(__VA_ARGS__) a_ = __VA_ARGS__; \
	ring_submit((c)->ring, op, &a_, sizeof(a_), NULL, 0); \
})

static inline int ctx_sync(struct client *c)
{
	return CALL(c, SV_OP_cuCtxSynchronize, (struct sv_sync_on){ c->ctx, 0 });
}

static inline int client_context(struct client *c)
{
	c->ctx = new_handle(c, SV_T_CUcontext);
	return CALL(c, SV_OP_cuDevicePrimaryCtxRetain, (struct sv_ctx_new){ c->ctx, 0, 0 });
}

/* The newest deferred error, and their number. */
static inline uint32_t late_code(struct client *c)
{
	return (uint32_t)c->shared->late;
}

static inline uint32_t late_count(struct client *c)
{
	return c->shared->late >> 32;
}

/* Name and NUL behind a struct. */
static inline int call_name(struct client *c, uint16_t op, struct sv_by_name a, const char *name,
			    void *reply, uint32_t cap)
{
	a.name_len = strlen(name) + 1;
	return call2(c, op, &a, sizeof(a), name, a.name_len, reply, cap);
}

static const char kernels[] =
	".version 8.0\n.target sm_75\n.address_size 64\n"
	".visible .global .align 4 .u32 counter = 7;\n"
	".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);\n"
	".global .align 1 .b8 hello[] = {104, 101, 108, 108, 111, 10, 0};\n"
	/* y[i] = a * x[i] */
	".visible .entry scale(.param .u64 y, .param .u64 x, .param .f32 a, .param .u32 n)\n{\n"
	".reg .b32 %r<8>; .reg .b64 %d<8>; .reg .f32 %f<4>; .reg .pred %p;\n"
	"ld.param.u64 %d1, [y]; ld.param.u64 %d2, [x];\n"
	"ld.param.f32 %f1, [a]; ld.param.u32 %r1, [n];\n"
	"mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
	"mad.lo.u32 %r5, %r2, %r3, %r4; setp.ge.u32 %p, %r5, %r1; @%p bra done;\n"
	"mul.wide.u32 %d3, %r5, 4; add.u64 %d4, %d2, %d3; add.u64 %d5, %d1, %d3;\n"
	"ld.global.f32 %f2, [%d4]; mul.f32 %f3, %f1, %f2; st.global.f32 [%d5], %f3;\n"
	"done: ret;\n}\n"
	/* until *p is not 0 */
	".visible .entry spin(.param .u64 p)\n{\n"
	".reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %q;\n"
	"ld.param.u64 %d1, [p];\n"
	"again: ld.volatile.global.u32 %r1, [%d1]; setp.eq.u32 %q, %r1, 0; @%q bra again;\n"
	"ret;\n}\n"
	/* *p = counter++ */
	".visible .entry count(.param .u64 p)\n{\n"
	".reg .b32 %r<4>; .reg .b64 %d<4>;\n"
	"ld.param.u64 %d1, [p]; ld.global.u32 %r1, [counter]; st.global.u32 [%d1], %r1;\n"
	"add.u32 %r2, %r1, 1; st.global.u32 [counter], %r2; ret;\n}\n"
	".visible .entry store(.param .u64 p)\n{\n"
	".reg .b32 %r<4>; .reg .b64 %d<4>;\n"
	"ld.param.u64 %d1, [p]; mov.u32 %r1, 1; st.global.u32 [%d1], %r1; ret;\n}\n"
	".visible .entry say()\n{\n"
	".reg .b64 %d<4>; .reg .b32 %r<4>;\n"
	"mov.u64 %d1, hello; cvta.global.u64 %d2, %d1; mov.u64 %d3, 0;\n"
	"{ .param .b64 f; .param .b64 a; .param .b32 r;\n"
	"st.param.b64 [f], %d2; st.param.b64 [a], %d3; call.uni (r), vprintf, (f, a);\n"
	"ld.param.b32 %r1, [r]; } ret;\n}\n";

/* Loads text from the arena as a library; returns its handle. 0: *status has the error. */
static inline uint64_t load_text(struct client *c, const char *text, int *status)
{
	uint64_t at = arena_take(c, strlen(text)), lib = new_handle(c, SV_T_CUlibrary);

	memcpy(c->arena + at, text, strlen(text));
	*status = CALL(c, SV_OP_cuLibraryLoadData,
		       (struct sv_image){ .handle = lib, .kind = SV_IMAGE_ARENA, .off = at,
					  .len = strlen(text) });
	return *status ? 0 : lib;
}

static inline uint64_t get_kernel(struct client *c, uint64_t lib, const char *name,
				  struct sv_func_info **info)
{
	uint64_t k = new_handle(c, SV_T_CUkernel), at = arena_take(c, 4096);
	int rc = call_name(c, SV_OP_cuLibraryGetKernel,
			   (struct sv_by_name){ .ctx = c->ctx, .from = lib, .handle = k,
						.info = at, .cap = 4096 }, name, NULL, 0);

	if (info)
		*info = (void *)(c->arena + at);
	return rc ? 0 : k;
}

static inline int launch(struct client *c, uint64_t stream, uint64_t kernel, uint32_t grid,
			 uint32_t block, const void *params, uint32_t bytes)
{
	struct sv_launch a = { .ctx = c->ctx, .stream = stream, .function = kernel,
			       .grid = { grid, 1, 1 }, .block = { block, 1, 1 },
			       .param_bytes = bytes };

	return ring_submit(c->ring, SV_OP_cuLaunchKernel, &a, sizeof(a), params, bytes);
}

static inline int copy(struct client *c, uint64_t stream, uint64_t dst, uint64_t src, uint64_t len)
{
	return CALL(c, SV_OP_cuMemcpyAsync,
		    (struct sv_copy){ c->ctx, stream, dst, src, len, 0, 0 });
}

static inline uint64_t address(struct client *c, uint64_t off)
{
	return (uintptr_t)(c->arena + off);
}

#endif
