/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.h - a session in the test's own process: records are executed without a ring
 *
 * A driver's state belongs to its process, so each life of a session is a child of the test. A
 * failed check is reported on stderr (the session captures stdout and stderr of kernels) and ends
 * the child.
 */
#ifndef SELFTESTS_UPROXY_LOCAL_H
#define SELFTESTS_UPROXY_LOCAL_H

#include "../../harness/leaks.h"
#include "../../harness/patience.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "records.h"
#include "session.h"
#include "stat.h"

struct local {
	struct sv_session s;
	struct uproxy_stat stat;
	uint64_t ctx, window, arena, seq;
	uint32_t next;
};

static int local_err = 2;

#define CHECK(what) do { \
	if (!(what)) { \
		dprintf(local_err, "# %s:%d: %s\n", __FILE__, __LINE__, #what); \
		_exit(1); \
	} \
} while (0)

#define CHECK_EQ(a, b)                                                                             \
	do {                                                                                       \
		long long a_ = (long long)(a), b_ = (long long)(b);                                \
		if (a_ != b_) {                                                                    \
			dprintf(local_err,                                                         \
				"# %s:%d: %s is %lld (0x%llx), not %s, %lld (0x%llx)\n", __FILE__, \
				__LINE__, #a, a_, a_, #b, b_, b_);                                 \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

/* Runs fn(arg) in a child; returns its exit status. */
static inline int local_child(void (*fn)(void *arg), void *arg)
{
	pid_t p = fork();
	int status;

	if (!p) {
		fn(arg);
		_exit(0);
	}
	if (p < 0 || waitpid(p, &status, 0) != p)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Executes a record as if from a client; tail follows the struct. Its status, or -errno. */
static inline int local_send(struct local *l, uint16_t op, const void *a, uint32_t len,
			     const void *tail, uint32_t tail_len, void *reply)
{
	static uint64_t room[1 << 13];
	struct call k = { .c = { .session = &l->s, .driver = &l->s.hal.drv, .data = room,
				 .len = len + tail_len, .op = op }, .seq = ++l->seq };
	int rc;

	memcpy(room, a, len);
	if (tail_len)
		memcpy((char *)room + len, tail, tail_len);
	rc = record_run(record_of(op), &k);
	if (rc < 0)
		dprintf(local_err, "# %s: %s\n", op_name(op), k.c.why);
	if (reply && !rc && !k.c.status)
		memcpy(reply, k.c.reply, k.c.reply_len);
	return rc < 0 ? rc : k.c.status;
}

#define SEND(l, op, ...) ({ \
	__typeof__(__VA_ARGS__) a_ = __VA_ARGS__; \
	local_send(l, op, &a_, sizeof(a_), NULL, 0, NULL); \
})

static inline uint64_t local_handle(struct local *l, unsigned int type)
{
	return sv_handle(type, l->next++, 1);
}

/* A session on the soft device with its primary context. */
static inline struct local *local_open(void)
{
	static struct local local;
	struct local *l = &local;
	const char *build = getenv("SINGVGPU_BUILD") ?: "build";
	struct why why = { 0 };
	char lib[512];
	struct session_options o = {
		.driver = lib, .window = { { 0x200000000000ull, 1ull << 40 } }, .windows = 1,
		.backend = RING_MEMFD,
	};
	struct sv_connect con = { .magic = SV_CONNECT_MAGIC, .version = SV_PROTO_VERSION,
				  .device = 0, .api = CUDA_VERSION };
	int out = dup(1), rc;

	local_err = dup(2);
	snprintf(lib, sizeof(lib), "%s/uproxy/softgpu/libsoftcuda.so", build);
	l->s.stat = &l->stat;
	rc = uproxy_session_open(&l->s, &o, &con, -1, &why);
	if (rc)
		dprintf(local_err, "# %s\n", why.text);
	CHECK_EQ(rc, 0);
	dup2(out, 1);
	dup2(local_err, 2);
	l->window = o.window[0].base;
	l->arena = l->s.arena_first;
	l->next = 1;
	l->ctx = local_handle(l, SV_T_CUcontext);
	CHECK_EQ(SEND(l, SV_OP_cuDevicePrimaryCtxRetain, (struct sv_ctx_new){ l->ctx, 0, 0 }), 0);
	return l;
}

static inline uint64_t local_load(struct local *l, const void *image, size_t len, uint32_t kind)
{
	uint64_t lib = local_handle(l, SV_T_CUlibrary), at = l->arena;

	memcpy(arena_at(&l->s, at), image, len);
	l->arena += (len + 4095) & ~4095ull;
	CHECK_EQ(SEND(l, SV_OP_cuLibraryLoadData, (struct sv_image){ .handle = lib, .kind = kind,
								      .off = at, .len = len }), 0);
	return lib;
}

#endif
