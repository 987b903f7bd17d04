// SPDX-License-Identifier: Apache-2.0
/*
 * liar.c - a proxy that breaks the protocol: its client's calls fail, and no more happens to it
 *
 * The test is the launcher and the proxy. Its client is this program again, which loads the
 * stand-in, makes a few calls and reports their results on descriptor 3, until one fails.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_ops.h"
#include "proto.h"
#include "ring.h"

#include "kselftest_harness.h"
#include "../harness/patience.h"

#define NOT_READY CUDA_ERROR_SYSTEM_NOT_READY
#define UNKNOWN CUDA_ERROR_UNKNOWN
#define PRINTS_AT 65536
#define PRINTS 64
#define WORDS 512		/* that a client has for watches */

/* ------------------------------------------------------------------------------- the client */

static void report(CUresult r)
{
	int32_t v = r;

	if (write(3, &v, sizeof(v)) != sizeof(v) || r)
		exit(0);
}

static const char image[] = ".version 7.0\n.target sm_52\n.address_size 64\n"
	".visible .entry k(.param .u64 p) { ret; }\n";

static int client(const char *what)
{
	char lib[512];
	void *h, *arg = lib, *params[] = { &arg };
	CUipcMemHandle handle;
	CUfunction f[8];
	CUresult r = CUDA_ERROR_NOT_READY;
	CUdeviceptr d;
	CUcontext ctx;
	CUmodule m;
	CUstream s;

	snprintf(lib, sizeof(lib), "%s/lib/libcuda.so.1", getenv("SINGVGPU_BUILD") ?: "build");
	h = dlopen(lib, RTLD_NOW);
	if (!h) {
		fprintf(stderr, "# %s\n", dlerror());
		return 1;
	}
#define CALL(name, ...) report(((__typeof__(&name))dlsym(h, #name))(__VA_ARGS__))
	CALL(cuInit, 0);
	if (!strcmp(what, "init"))
		return 0;
	CALL(cuDevicePrimaryCtxRetain, &ctx, 0);
	CALL(cuCtxSetCurrent, ctx);
	if (!strcmp(what, "context"))
		return 0;
	if (!strcmp(what, "memory")) {
		CALL(cuMemAlloc_v2, &d, 4096);
		CALL(cuIpcGetMemHandle, &handle, d);
		return 0;
	}
	if (!strcmp(what, "polls")) {
		CALL(cuStreamCreate, &s, 0);
		for (int i = 0; i < 100000 && r == CUDA_ERROR_NOT_READY; i++)
			r = ((__typeof__(&cuStreamQuery))dlsym(h, "cuStreamQuery"))(s);
		report(r);
		return 0;
	}
	if (!strcmp(what, "waits")) {
		CALL(cuStreamCreate, &s, 0);
		CALL(cuStreamQuery, s);
		CALL(cuStreamSynchronize, s);
		CALL(cuStreamSynchronize, s);
		CALL(cuStreamQuery, s);
		return 0;
	}
	if (!strcmp(what, "polls many")) {
		for (int i = 0; i < WORDS + 1; i++) {
			((__typeof__(&cuStreamCreate))dlsym(h, "cuStreamCreate"))(&s, 0);
			for (int n = 0; n < 2; n++)
				r = ((__typeof__(&cuStreamQuery))dlsym(h, "cuStreamQuery"))(s);
		}
		report(r);
		return 0;
	}
	CALL(cuModuleLoadData, &m, image);
	if (!strcmp(what, "names")) {
		CALL(cuModuleEnumerateFunctions, f, 8, m);
	} else {
		CALL(cuModuleGetFunction, f, m, "k");
		CALL(cuLaunchKernel, f[0], 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
	}
	return 0;
}

/* -------------------------------------------------------------------------------- the proxy */

struct answer {
	int32_t status;
	uint32_t len;
	uint8_t data[SINGVGPU_CPL_DATA];
};

struct liar {
	char dir[32], path[64];
	int listener, sock, results;
	bool more;			/* its client connects again */
	struct ring *ring;
	struct sv_shared *sh;
	struct sv_connected hello;
	FILE *out;			/* what the client prints */
	pid_t pid;
	/* Changes an answer; default: success without data. */
	void (*lie)(struct liar *l, const struct ring_record *rec, struct answer *a);
	struct {
		struct sv_func_info info;
		struct { uint32_t off, size; } param[2];
	} layout;
	uint16_t heard[8];		/* queries */
	unsigned int nheard;
	uint64_t *word, number;		/* of the watch */
	unsigned int queries, watched, waits;
	enum { ENDS, FAILS, RESTORED, BROKEN } then;
};

static void tell_truth(struct sv_shared *sh)
{
	static const CUdevice_attribute many[] = {
		CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
		CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
		CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
		CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
	};

	*sh = (struct sv_shared){
		.magic = SV_SHARED_MAGIC, .version = SV_PROTO_VERSION, .size = sizeof(*sh),
		.driver_version = CUDA_VERSION, .window = SV_WINDOW_BASE,
		.window_len = 1ull << 36, .budget = 1ull << 30, .arena_first = 1 << 20,
		.devices = 1,
	};
	for (unsigned int i = 0; i < sizeof(many) / sizeof(many[0]); i++)
		sh->dev[0].attr[many[i]] = 1024;
}

static int begin_ring(struct liar *l)
{
	struct ring_params p = { .backend = RING_MEMFD, .id = { 1 }, .cookie = { 1 },
				 .geo = RING_GEOMETRY_DEFAULT };
	int rc = ring_create(&l->ring, &p);

	if (rc)
		return rc;
	l->sh = ring_arena(l->ring);
	tell_truth(l->sh);
	return 0;
}

static void begin(struct __test_metadata *_metadata, struct liar *l)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	memset(l, 0, sizeof(*l));
	strcpy(l->dir, "/tmp/liar.XXXXXX");
	ASSERT_NE(NULL, mkdtemp(l->dir));
	snprintf(l->path, sizeof(l->path), "%s/socket", l->dir);
	strcpy(a.sun_path, l->path);
	l->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ASSERT_EQ(0, bind(l->listener, (struct sockaddr *)&a, sizeof(a)));
	ASSERT_EQ(0, listen(l->listener, 1));
	ASSERT_EQ(0, begin_ring(l));
	l->out = tmpfile();
	ASSERT_NE(NULL, l->out);
	l->layout.info.params = 1;
	l->layout.info.param_bytes = 8;
	l->layout.info.attr[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
	l->layout.info.attr[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 1024;
	l->layout.param[0].size = 8;
}

static void end(struct liar *l)
{
	ring_close(l->ring);
	fclose(l->out);
	unlink(l->path);
	rmdir(l->dir);
}

/* The next connection of the client, which asks for this device. */
static bool hears(struct liar *l, int device)
{
	struct sv_connect hello;

	l->sock = accept(l->listener, NULL, NULL);
	if (!l->more) {
		close(l->listener);
		unlink(l->path);
	}
	return l->sock >= 0 &&
	       recv(l->sock, &hello, sizeof(hello), MSG_WAITALL) == sizeof(hello) &&
	       hello.magic == SV_CONNECT_MAGIC && hello.version == SV_PROTO_VERSION && hello.device == device;
}

/* Starts the client and accepts its connection; no other comes through, but for one that has more. */
static bool meet(struct liar *l, const char *what)
{
	int fd[2];

	if (pipe(fd))
		return false;
	fflush(NULL);
	l->pid = fork();
	if (!l->pid) {
		setenv("SINGVGPU_SOCKET", l->path, 1);
		dup2(fd[1], 3);
		dup2(fileno(l->out), 1);
		close_range(4, ~0u, 0);
		execl("/proc/self/exe", "liar", "--client", what, NULL);
		_exit(99);
	}
	close(fd[1]);
	l->results = fd[0];
	return hears(l, -1);
}

static void greet(struct liar *l)
{
	int fd = ring_client_fd(l->ring);

	ring_watch_peer(l->ring, syscall(SYS_pidfd_open, l->pid, 0));
	send(l->sock, &l->hello, sizeof(l->hello), MSG_NOSIGNAL);
	ring_pass_fd(l->sock, fd);
	close(fd);
	close(l->sock);
}

/* Answers until the client has gone. */
static void serve(struct liar *l)
{
	struct ring_record rec;
	int rc;

	while (!(rc = ring_wait(l->ring, -1)) || rc == -EINTR) {
		while ((rc = ring_peek(l->ring, &rec)) > 0) {
			struct answer a = { 0 };

			if (l->lie)
				l->lie(l, &rec, &a);
			if (rec.cpl)
				ring_complete(l->ring, rec.cpl, rec.seq, a.status, a.data, a.len);
			ring_advance(l->ring);
		}
		if (rc < 0)
			break;
	}
}

/*
 * The last result that the client reports, after *n successes. -1: none; -2: it was killed, or
 * hangs.
 */
static int ended(struct liar *l, int *n)
{
	struct pollfd p = { .fd = l->results, .events = POLLIN };
	int32_t v = -1, got;
	int status;

	*n = -1;
	while (poll(&p, 1, 3 * PATIENCE_S * 1000) == 1 &&
	       read(l->results, &got, sizeof(got)) == sizeof(got)) {
		v = got;
		++*n;
	}
	if (!p.revents)
		kill(l->pid, SIGKILL);
	close(l->results);
	if (waitpid(l->pid, &status, 0) != l->pid || status)
		return -2;
	return v;
}

/* A whole session: all calls succeed but the one after `good` of them, which returns want. */
static void session(struct __test_metadata *_metadata, struct liar *l, const char *what, int good,
		    int want)
{
	int n;

	ASSERT_TRUE(meet(l, what));
	greet(l);
	serve(l);
	EXPECT_EQ(want, ended(l, &n));
	EXPECT_EQ(good, n);
	end(l);
}

/* --------------------------------------------------------------------------- the connection */

TEST(the_truth_is_believed)
{
	struct liar l;

	begin(_metadata, &l);
	session(_metadata, &l, "context", 2, CUDA_SUCCESS);
}

#define SHARED(change) do { \
	begin(_metadata, &l); \
	change; \
	TH_LOG("%s", #change); \
	session(_metadata, &l, "init", 0, NOT_READY); \
} while (0)

TEST(shared_state_that_is_none_is_refused)
{
	struct liar l;

	SHARED(l.sh->magic ^= 1);
	SHARED(l.sh->version++);
	SHARED(l.sh->version--);
	SHARED((l.sh->magic ^= 1, l.sh->version++));
	SHARED(l.sh->size--);
	SHARED(l.sh->size++);
	SHARED(l.sh->devices = 0);
	SHARED(l.sh->devices = SV_DEVICES_MAX + 1);
	SHARED(l.sh->devices = ~0u);
	SHARED(l.sh->device = -1);
	SHARED(l.sh->device = 1);
	SHARED(l.sh->arena_first = 0);
	SHARED(l.sh->arena_first = sizeof(*l.sh) - 8);
	SHARED(l.sh->arena_first = ring_geometry(l.ring)->arena_len);
	SHARED(l.sh->arena_first = -4096);
	/* nor a window that cannot be had */
	SHARED(l.sh->window = 0);
	SHARED(l.sh->window++);
	SHARED(l.sh->window += 4096);
	SHARED(l.sh->window_len += 4096);
	SHARED(l.sh->window = RING_VA_BASE);
	SHARED(l.sh->window = -1ull << 40);
	SHARED(l.sh->window_len = 0);
	SHARED(l.sh->window_len = 1ull << 60);
	SHARED((l.sh->window = 0, l.sh->window_len = 0));
}

/* The program sees the job's device 1 alone, so it asks for that when it has heard that the first session is not on it. */
static void asks_for_1(struct __test_metadata *_metadata, int answer, int want)
{
	struct liar l;
	int n;

	begin(_metadata, &l);
	l.more = true;
	l.sh->devices = 2;
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	ASSERT_TRUE(meet(&l, "init"));
	unsetenv("CUDA_VISIBLE_DEVICES");
	greet(&l);
	l.more = false;
	ASSERT_TRUE(hears(&l, 1));
	ring_close(l.ring);
	ASSERT_EQ(0, begin_ring(&l));
	l.sh->devices = 2;
	l.sh->device = answer;
	greet(&l);
	serve(&l);
	EXPECT_EQ(want, ended(&l, &n));
	EXPECT_EQ(0, n);
	end(&l);
}

TEST(another_device_than_the_one_that_was_asked_for_is_refused)
{
	asks_for_1(_metadata, 1, CUDA_SUCCESS);
	asks_for_1(_metadata, 0, CUDA_ERROR_DEVICE_UNAVAILABLE);
}

#define MEET(want, does) do { \
	begin(_metadata, &l); \
	ASSERT_TRUE(meet(&l, "init")); \
	does; \
	close(l.sock); \
	TH_LOG("%s", #does); \
	EXPECT_EQ(want, ended(&l, &n)); \
	EXPECT_EQ(0, n); \
	end(&l); \
} while (0)

static void pass(struct liar *l, int fd)
{
	send(l->sock, &l->hello, sizeof(l->hello), MSG_NOSIGNAL);
	ring_pass_fd(l->sock, fd);
	close(fd);
}

static void refuse(struct liar *l, int status)
{
	l->hello.status = status;
	memset(l->hello.why, 'x', sizeof(l->hello.why));
	send(l->sock, &l->hello, sizeof(l->hello), MSG_NOSIGNAL);
}

static int file_of(const void *p, size_t n)
{
	int fd = memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	return write(fd, p, n) == (ssize_t)n ? fd : -1;
}

TEST(answers_that_bring_no_channel_are_errors)
{
	struct singvgpu_ctl ctl = { .magic = SINGVGPU_MAGIC, .api_version = SINGVGPU_API_VERSION };
	struct liar l;
	int n;

	MEET(NOT_READY, );
	MEET(NOT_READY, send(l.sock, &l.hello, sizeof(l.hello) - 1, MSG_NOSIGNAL));
	MEET(NOT_READY, send(l.sock, &l.hello, sizeof(l.hello), MSG_NOSIGNAL));
	MEET(NOT_READY, send(l.sock, &(char[512]){ 0 }, 512, MSG_NOSIGNAL));
	MEET(CUDA_ERROR_NO_DEVICE, refuse(&l, -ENODEV));
	MEET(NOT_READY, refuse(&l, -EACCES));
	MEET(NOT_READY, refuse(&l, 19));
	MEET(NOT_READY, refuse(&l, INT32_MIN));
	MEET(NOT_READY, pass(&l, open("/dev/null", O_RDWR)));
	MEET(NOT_READY, pass(&l, socket(AF_UNIX, SOCK_STREAM, 0)));
	MEET(NOT_READY, pass(&l, file_of("", 0)));
	MEET(NOT_READY, pass(&l, file_of(&ctl, sizeof(ctl))));
}

/* ------------------------------------------------------------------------------- the answers */

static void short_answer(struct liar *l, const struct ring_record *rec, struct answer *a)
{
	(void)l;
	if (rec->op == SV_OP_cuIpcGetMemHandle)
		a->len = sizeof(struct sv_ipc_shown) - 1;
}

static void whole_answer(struct liar *l, const struct ring_record *rec, struct answer *a)
{
	(void)l;
	if (rec->op == SV_OP_cuIpcGetMemHandle)
		a->len = sizeof(struct sv_ipc_shown);
}

TEST(an_answer_that_is_too_short_is_an_error)
{
	struct liar l;

	begin(_metadata, &l);
	l.lie = whole_answer;
	session(_metadata, &l, "memory", 4, CUDA_SUCCESS);
	begin(_metadata, &l);
	l.lie = short_answer;
	session(_metadata, &l, "memory", 4, UNKNOWN);
}

/* The layout of the function's parameters. */
static void describes(struct liar *l, const struct ring_record *rec, struct answer *a)
{
	const struct sv_by_name *n = rec->data;

	(void)a;
	if (rec->op == SV_OP_cuModuleGetFunction)
		memcpy((char *)l->sh + n->info, &l->layout, sizeof(l->layout));
}

#define LAYOUT(good, want, change) do { \
	begin(_metadata, &l); \
	l.lie = describes; \
	change; \
	TH_LOG("%s", #change); \
	session(_metadata, &l, "function", good, want); \
} while (0)

TEST(parameters_outside_their_buffer_are_an_error)
{
	struct liar l;

	LAYOUT(5, CUDA_SUCCESS, );
	LAYOUT(5, CUDA_SUCCESS, (l.layout.param[0].off = 4, l.layout.info.param_bytes = 12));
	LAYOUT(4, UNKNOWN, l.layout.info.param_bytes = 7);
	LAYOUT(4, UNKNOWN, l.layout.info.param_bytes = 0);
	LAYOUT(4, UNKNOWN, l.layout.param[0].off = 1);
	LAYOUT(4, UNKNOWN, l.layout.param[0].off = 1u << 31);
	LAYOUT(4, UNKNOWN, l.layout.param[0].off = -4u);
	LAYOUT(4, UNKNOWN, l.layout.param[0].size = 1u << 30);
	LAYOUT(4, UNKNOWN, (l.layout.info.params = 2, l.layout.param[1].size = 16));
	LAYOUT(4, UNKNOWN, l.layout.info.params = 4097);
	LAYOUT(4, UNKNOWN, l.layout.info.params = ~0u);
	/* more than a launch can pass is an error of the launch */
	LAYOUT(5, CUDA_ERROR_OUT_OF_MEMORY, l.layout.info.param_bytes = 1u << 30);
}

/* Names: their number, then one behind the other. */
static void one_name(struct liar *l, const struct ring_record *rec, struct answer *a)
{
	const struct sv_enumerate *e = rec->data;

	describes(l, rec, a);
	if (rec->op == SV_OP_cuModuleEnumerateFunctions)
		memcpy((char *)l->sh + e->off, "\1\0\0\0k", 6);
}

static void name_without_end(struct liar *l, const struct ring_record *rec, struct answer *a)
{
	const struct sv_enumerate *e = rec->data;

	describes(l, rec, a);
	if (rec->op == SV_OP_cuModuleEnumerateFunctions) {
		memset((char *)l->sh + e->off, 'x', e->cap);
		memcpy((char *)l->sh + e->off, "\2\0\0\0k", 6);
	}
}

TEST(names_without_an_end_are_an_error)
{
	struct liar l;

	begin(_metadata, &l);
	l.lie = one_name;
	session(_metadata, &l, "names", 4, CUDA_SUCCESS);
	begin(_metadata, &l);
	l.lie = name_without_end;
	session(_metadata, &l, "names", 4, UNKNOWN);
}

/* ------------------------------------------------------------------------------- watches */

/* Says of a stream that it is busy, and watches it. Something comes to pass when the client asks for the third time. */
static void watches(struct liar *l, const struct ring_record *rec, struct answer *a)
{
	const struct sv_watch *w = rec->data;

	if ((rec->op != SV_OP_cuStreamQuery && rec->op != SV_OP_X_WATCH_STREAM) || l->nheard == 8)
		return;
	a->status = l->nheard < 3 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
	l->heard[l->nheard++] = rec->op;
	if (rec->op == SV_OP_X_WATCH_STREAM && l->nheard < 3) {
		l->number = w->number;
		l->word = (uint64_t *)((char *)l->sh + w->word);
		*l->word = SV_WATCHED(w->number);
	}
	if (l->nheard != 3 || !l->word)
		return;
	if (l->then == ENDS || l->then == BROKEN)
		__atomic_store_n(l->word, SV_WATCH_DONE(l->number), __ATOMIC_RELEASE);
	if (l->then == FAILS)
		__atomic_store_n(l->word, SV_WATCH_ASK(l->number), __ATOMIC_RELEASE);
	if (l->then == RESTORED)
		l->sh->life++;
	if (l->then == BROKEN)
		__atomic_store_n(&l->sh->late, 1ull << 32 | CUDA_ERROR_LAUNCH_FAILED, __ATOMIC_RELEASE);
}

/* Query, watch, some hundred looks at the word, query; then what happens. */
#define WATCHED(what, want, asks) do { \
	begin(_metadata, &l); \
	l.lie = watches; \
	l.then = what; \
	TH_LOG("%s", #what); \
	session(_metadata, &l, "polls", 4, want); \
	EXPECT_EQ(3 + (asks), l.nheard); \
	EXPECT_EQ(SV_OP_cuStreamQuery, l.heard[0]); \
	EXPECT_EQ(SV_OP_X_WATCH_STREAM, l.heard[1]); \
	EXPECT_EQ(SV_OP_cuStreamQuery, l.heard[2]); \
	EXPECT_EQ((asks) ? SV_OP_X_WATCH_STREAM : 0, l.heard[3]); \
} while (0)

TEST(what_is_watched_is_known_from_its_word_as_long_as_that_counts)
{
	struct liar l;

	WATCHED(ENDS, CUDA_SUCCESS, 0);
	WATCHED(FAILS, CUDA_SUCCESS, 1);
	WATCHED(RESTORED, CUDA_SUCCESS, 1);
	WATCHED(BROKEN, CUDA_ERROR_LAUNCH_FAILED, 0);
}

static void counts(struct liar *l, const struct ring_record *rec, struct answer *a)
{
	(void)a;
	l->queries += rec->op == SV_OP_cuStreamQuery;
	l->waits += rec->op == SV_OP_cuStreamSynchronize;
}

/* A wait also brings what kernels have printed, which a query does not. */
TEST(a_query_makes_no_wait_unnecessary_and_a_wait_does)
{
	struct liar l;

	begin(_metadata, &l);
	l.lie = counts;
	session(_metadata, &l, "waits", 7, CUDA_SUCCESS);
	EXPECT_EQ(1, l.queries);
	EXPECT_EQ(1, l.waits);
}

/* Whatever is asked for is busy for ever. */
static void watches_all(struct liar *l, const struct ring_record *rec, struct answer *a)
{
	const struct sv_watch *w = rec->data;

	if (rec->op != SV_OP_cuStreamQuery && rec->op != SV_OP_X_WATCH_STREAM)
		return;
	a->status = CUDA_ERROR_NOT_READY;
	l->queries += rec->op == SV_OP_cuStreamQuery;
	l->watched += rec->op == SV_OP_X_WATCH_STREAM;
	if (rec->op == SV_OP_X_WATCH_STREAM)
		*(uint64_t *)((char *)l->sh + w->word) = SV_WATCHED(w->number);
}

TEST(no_word_that_is_watched_gets_another_watch)
{
	struct liar l;

	begin(_metadata, &l);
	l.lie = watches_all;
	session(_metadata, &l, "polls many", 3, CUDA_ERROR_NOT_READY);
	EXPECT_EQ(WORDS, l.watched);
	EXPECT_EQ(WORDS + 2, l.queries);
}

/* ------------------------------------------------------------------------------- the prints */

static void prints(struct liar *l, const struct ring_record *rec, struct answer *a)
{
	(void)rec;
	(void)a;
	__atomic_store_n(&l->sh->print[0].head, l->sh->print[0].tail + 6, __ATOMIC_RELEASE);
}

static void prints_too_much(struct liar *l, const struct ring_record *rec, struct answer *a)
{
	(void)rec;
	(void)a;
	__atomic_store_n(&l->sh->print[0].head, l->sh->print[0].tail + PRINTS + 1, __ATOMIC_RELEASE);
}

/* What the client has printed is `times` times the ring's first six bytes. */
#define PRINTS_OF(how, times, change) do { \
	char got[256] = ""; \
	begin(_metadata, &l); \
	l.lie = how; \
	memset((char *)l.sh + PRINTS_AT, '!', PRINTS); \
	memcpy((char *)l.sh + PRINTS_AT, "hello\n", 6); \
	l.sh->print[0].off = PRINTS_AT; \
	l.sh->print[0].size = PRINTS; \
	change; \
	TH_LOG("%s", #change); \
	ASSERT_TRUE(meet(&l, "context")); \
	greet(&l); \
	serve(&l); \
	EXPECT_EQ(CUDA_SUCCESS, ended(&l, &n)); \
	EXPECT_EQ((times) * 6, pread(fileno(l.out), got, sizeof(got), 0)); \
	EXPECT_EQ(0, strncmp(got, "hello\n", (times) * 6)); \
	end(&l); \
} while (0)

TEST(prints_come_from_the_arena_alone)
{
	struct liar l;
	int n;

	PRINTS_OF(prints, 1, );
	PRINTS_OF(prints, 0, l.sh->print[0].size = 0);
	PRINTS_OF(prints, 0, l.sh->print[0].size = PRINTS - 1);
	PRINTS_OF(prints, 0, l.sh->print[0].size = 1ull << 63);
	PRINTS_OF(prints, 0, l.sh->print[0].size = 1ull << 30);
	PRINTS_OF(prints, 0, l.sh->print[0].off = ring_geometry(l.ring)->arena_len - PRINTS + 1);
	PRINTS_OF(prints, 0, l.sh->print[0].off = 1ull << 62);
	PRINTS_OF(prints, 0, l.sh->print[0].off = -65536ull);
	PRINTS_OF(prints_too_much, 0, );
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--client"))
		return client(argv[2]);
	return test_harness_run(argc, argv);
}
