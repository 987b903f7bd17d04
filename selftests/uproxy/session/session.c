// SPDX-License-Identifier: Apache-2.0
/*
 * session.c - an honest client: connecting, memory, copies, kernels, streams, events, callbacks
 */
#include "../client.h"

FIXTURE(session) {
	struct client c;
	uint64_t dev, pin;	/* 4 MiB of device memory, 1 MiB of pinned arena */
};

FIXTURE_SETUP(session)
{
	struct client *c = &self->c;

	ASSERT_EQ(client_start(c, NULL), 0);
	ASSERT_EQ(client_context(c), 0);
	self->dev = c->window;
	self->pin = arena_take(c, MiB);
	ASSERT_EQ(SEND(c, SV_OP_X_MAP, (struct sv_map){ self->dev, 2 * GRANULE }), 0);
	ASSERT_EQ(SEND(c, SV_OP_X_PIN, (struct sv_pin){ self->pin, MiB }), 0);
}

FIXTURE_TEARDOWN(session)
{
	EXPECT_EQ(client_end(&self->c), 0);
}

TEST_F(session, tells_of_the_device)
{
	const struct sv_shared *s = (const void *)self->c.shared;

	EXPECT_EQ(s->magic, SV_SHARED_MAGIC);
	EXPECT_EQ(s->version, SV_PROTO_VERSION);
	EXPECT_EQ(s->size, sizeof(*s));
	EXPECT_GE(s->driver_version, 12000);
	EXPECT_EQ(s->window % SV_GRANULE, 0);
	EXPECT_GT(s->budget, 0);
	EXPECT_GE(s->devices, 1);
	EXPECT_NE(s->dev[0].name[0], 0);
	EXPECT_EQ(s->dev[0].attr_ok[CU_DEVICE_ATTRIBUTE_WARP_SIZE], 1);
	EXPECT_EQ(s->dev[0].attr[CU_DEVICE_ATTRIBUTE_WARP_SIZE], 32);
	EXPECT_GT(s->limit[CU_LIMIT_STACK_SIZE], 0);
	EXPECT_LT(s->priority_greatest, s->priority_least);
	EXPECT_EQ(s->late, 0);
}

TEST_F(session, copies_up_and_down)
{
	struct client *c = &self->c;
	uint32_t *up = (void *)(c->arena + self->pin), *down = up + MiB / 8;

	for (uint32_t i = 0; i < MiB / 8; i++) {
		up[i] = i * 2654435761u;
		down[i] = 0;
	}
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev + GRANULE - 1000, address(c, self->pin),
		       MiB / 2), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, address(c, self->pin + MiB / 2),
		       self->dev + GRANULE - 1000, MiB / 2), 0);
	EXPECT_EQ(memcmp(up, down, MiB / 2), 0);
	EXPECT_EQ(late_count(c), 0);
}

TEST_F(session, stores_the_word_behind_a_copy)
{
	struct client *c = &self->c;
	volatile uint64_t *word = (void *)(c->arena + self->pin + 64);

	*word = 1;
	EXPECT_EQ(SEND(c, SV_OP_cuMemcpyAsync,
		       (struct sv_copy){ c->ctx, SV_STREAM_LEGACY, self->dev,
					 address(c, self->pin), 64, self->pin + 64, 77 }), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(*word, 77);
	/* No bytes: the word alone, in stream order. */
	EXPECT_EQ(SEND(c, SV_OP_cuMemcpyAsync,
		       (struct sv_copy){ c->ctx, SV_STREAM_LEGACY, 0, 0, 0, self->pin + 64, 78 }),
		  0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(*word, 78);
	/* A copy that is refused: it tells, and the word is stored all the same. */
	EXPECT_EQ(SEND(c, SV_OP_cuMemcpyAsync,
		       (struct sv_copy){ c->ctx, SV_STREAM_LEGACY, self->dev + 64 * GRANULE,
					 address(c, self->pin), 64, self->pin + 64, 79 }), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(*word, 79);
	EXPECT_EQ(late_count(c), 1);
	EXPECT_EQ(late_code(c), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(session, runs_a_kernel)
{
	struct client *c = &self->c;
	struct { uint64_t y, x; float a; uint32_t n; } p = {
		self->dev + MiB, self->dev, 3.0f, 1000,
	};
	struct sv_func_info *info;
	float *x = (void *)(c->arena + self->pin);
	uint64_t lib, k;
	int rc;

	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	k = get_kernel(c, lib, "scale", &info);
	ASSERT_NE(k, 0);
	EXPECT_EQ(info->params, 4);
	EXPECT_EQ(info->param_bytes, 24);
	EXPECT_EQ(info->param[2].off, 16);
	EXPECT_EQ(info->param[3].size, 4);
	EXPECT_EQ(info->attr[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK], 1024);
	EXPECT_EQ(CALL(c, SV_OP_X_PREPARE, (struct sv_prepare){ c->ctx, k }), 0);
	for (int i = 0; i < 1000; i++)
		x[i] = i;
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 4000), 0);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, k, 8, 128, &p, sizeof(p)), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, address(c, self->pin), self->dev + MiB, 4000), 0);
	for (int i = 0; i < 1000; i++)
		ASSERT_EQ(x[i], 3.0f * i);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryUnload, (struct sv_image_end){ lib }), 0);
	/* Its kernels are gone with it. */
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, k, 8, 128, &p, sizeof(p)), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_code(c), CUDA_ERROR_INVALID_HANDLE);
}

/* The file that the client would have mapped: text at an odd offset. */
static int text_file(char path[64], const char *text, struct stat *st)
{
	int fd;

	snprintf(path, 64, "/tmp/uproxy-image-XXXXXX");
	fd = mkstemp(path);
	if (fd < 0 || pwrite(fd, text, strlen(text), 100) != (ssize_t)strlen(text) ||
	    fstat(fd, st))
		return -1;
	return fd;
}

static int load_file(struct client *c, uint16_t op, struct sv_image a, const struct stat *st,
		     const char *path)
{
	a.kind = SV_IMAGE_FILE;
	a.off = 100;
	a.len = st->st_size - 100;
	a.dev = st->st_dev;
	a.ino = st->st_ino;
	a.size = st->st_size;
	a.mtime_ns = st->st_mtim.tv_sec * 1000000000ull + st->st_mtim.tv_nsec;
	a.path_len = strlen(path) + 1;
	return call2(c, op, &a, sizeof(a), path, a.path_len, NULL, 0);
}

TEST_F(session, loads_a_module_from_a_file)
{
	struct client *c = &self->c;
	uint64_t mod = new_handle(c, SV_T_CUmodule), f = new_handle(c, SV_T_CUfunction);
	uint64_t info = arena_take(c, 4096);
	struct sv_global g = { 0 };
	struct stat st;
	char path[64];
	int fd = text_file(path, kernels, &st);

	ASSERT_GE(fd, 0);
	EXPECT_EQ(load_file(c, SV_OP_cuModuleLoadDataEx,
			    (struct sv_image){ .ctx = c->ctx, .handle = mod }, &st, path), 0);
	st.st_mtim.tv_nsec ^= 1;
	EXPECT_EQ(load_file(c, SV_OP_cuLibraryLoadData,
			    (struct sv_image){ .handle = new_handle(c, SV_T_CUlibrary) }, &st,
			    path), CUDA_ERROR_FILE_NOT_FOUND);
	unlink(path);
	close(fd);
	EXPECT_EQ(call_name(c, SV_OP_cuModuleGetFunction,
			    (struct sv_by_name){ .from = mod, .handle = f, .info = info,
						 .cap = 4096 }, "count", NULL, 0), 0);
	EXPECT_EQ(call_name(c, SV_OP_cuModuleGetGlobal_v2,
			    (struct sv_by_name){ .ctx = c->ctx, .from = mod }, "counter", &g,
			    sizeof(g)), 0);
	EXPECT_EQ(g.len, 4);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, f, 1, 1, &self->dev, 8), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, address(c, self->pin), self->dev, 4), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, address(c, self->pin + 4), g.addr, 4), 0);
	EXPECT_EQ(((uint32_t *)(c->arena + self->pin))[0], 7);
	EXPECT_EQ(((uint32_t *)(c->arena + self->pin))[1], 8);
	EXPECT_EQ(CALL(c, SV_OP_cuModuleUnload, (struct sv_image_end){ mod }), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, address(c, self->pin + 4), g.addr, 4),
		  CUDA_ERROR_INVALID_VALUE);
}

TEST_F(session, derives_and_enumerates)
{
	struct sv_cluster_count n;
	struct sv_clusters q;
	static const char *const names[] = { "scale", "spin", "count", "store", "say" };
	struct client *c = &self->c;
	uint64_t mod = new_handle(c, SV_T_CUmodule), f = new_handle(c, SV_T_CUfunction);
	uint64_t at = arena_take(c, 4096), lib, k;
	struct sv_func_info *info = (void *)(c->arena + at);
	struct sv_global g = { 0 };
	const char *p = (char *)c->arena + at + 4;
	unsigned int found = 0;
	int rc;

	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	k = get_kernel(c, lib, "count", NULL);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryEnumerateKernels,
		       (struct sv_enumerate){ lib, at, 4096, 0 }), 0);
	ASSERT_EQ(*(uint32_t *)(c->arena + at), 5);
	for (int i = 0; i < 5; i++, p += strlen(p) + 1)
		for (int j = 0; j < 5; j++)
			found |= !strcmp(p, names[j]) << j;
	EXPECT_EQ(found, 31);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryEnumerateKernels, (struct sv_enumerate){ lib, at, 12, 0 }),
		  CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryGetModule, (struct sv_derive){ c->ctx, lib, mod }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuModuleEnumerateFunctions,
		       (struct sv_enumerate){ mod, at, 4096, 0 }), 0);
	EXPECT_EQ(*(uint32_t *)(c->arena + at), 5);
	EXPECT_EQ(CALL(c, SV_OP_cuKernelGetFunction, (struct sv_derive){ c->ctx, k, f }), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_FUNC_INFO, (struct sv_func_info_req){ c->ctx, f, at, 4096, 0 }),
		  0);
	EXPECT_EQ(info->params, 1);
	EXPECT_EQ(info->param_bytes, 8);
	EXPECT_EQ(CALL(c, SV_OP_X_PREPARE, (struct sv_prepare){ c->ctx, f }), 0);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, f, 1, 1, &self->dev, 8), 0);
	for (int i = 0; i < 3; i++) {		/* no other size than that of the parameters */
		static const uint32_t size[] = { 0, 4, 16 };
		struct sv_launch l = { .ctx = c->ctx, .stream = SV_STREAM_LEGACY, .function = f,
				       .grid = { 1, 1, 1 }, .block = { 1, 1, 1 },
				       .param_bytes = size[i] };

		EXPECT_EQ(call2(c, SV_OP_cuLaunchKernel, &l, sizeof(l),
				(uint64_t[]){ self->dev, 0 }, size[i], NULL, 0),
			  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
	}
	EXPECT_EQ(call_name(c, SV_OP_cuLibraryGetGlobal,
			    (struct sv_by_name){ .ctx = c->ctx, .from = lib }, "counter", &g,
			    sizeof(g)), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, address(c, self->pin), g.addr, g.len), 0);
	EXPECT_EQ(*(uint32_t *)(c->arena + self->pin), 8);
	EXPECT_EQ(call_name(c, SV_OP_cuLibraryGetGlobal,
			    (struct sv_by_name){ .ctx = c->ctx, .from = lib }, "nothing", &g,
			    sizeof(g)), CUDA_ERROR_NOT_FOUND);
	q = (struct sv_clusters){ .ctx = c->ctx, .function = f, .block = { 1024, 1, 1 } };
	EXPECT_EQ(call2(c, SV_OP_cuOccupancyMaxActiveClusters, &q, sizeof(q), NULL, 0, &n,
			sizeof(n)), 0);
	EXPECT_EQ(n.n, 32);	/* blocks of all threads, two on each of 16 multiprocessors */
	q.given = SV_CLUSTER_SIZE;
	q.size[0] = q.size[1] = 2;
	q.size[2] = 1;
	EXPECT_EQ(call2(c, SV_OP_cuOccupancyMaxActiveClusters, &q, sizeof(q), NULL, 0, &n,
			sizeof(n)), 0);
	EXPECT_EQ(n.n, 8);
	EXPECT_EQ(call2(c, SV_OP_cuOccupancyMaxPotentialClusterSize, &q, sizeof(q), NULL, 0, &n,
			sizeof(n)), 0);
	EXPECT_EQ(n.n, 8);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryUnload, (struct sv_image_end){ lib }), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_PREPARE, (struct sv_prepare){ c->ctx, f }),
		  CUDA_ERROR_INVALID_HANDLE);
	EXPECT_EQ(call2(c, SV_OP_cuOccupancyMaxActiveClusters, &q, sizeof(q), NULL, 0, &n,
			sizeof(n)), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(session, encodes_tensor_maps)
{
	struct client *c = &self->c;
	uint64_t at = arena_take(c, 4096);
	uint8_t *map = c->arena + at, first[SV_TENSOR_MAP_BYTES];
	struct sv_tensor_map a = {
		.ctx = c->ctx, .off = at, .address = self->dev, .type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
		.rank = 2, .dim = { 256, 128 }, .stride = { 512 }, .box = { 64, 16 }, .step = { 1, 1 },
	};

	memset(map, 0x5a, 2 * sizeof(first));
	EXPECT_EQ(CALL(c, SV_OP_cuTensorMapEncodeTiled, a), 0);
	memcpy(first, map, sizeof(first));
	EXPECT_EQ(map[sizeof(first)], 0x5a);
	memset(map, 0, sizeof(first));
	a.address += 4096;
	EXPECT_EQ(CALL(c, SV_OP_cuTensorMapEncodeTiled, a), 0);
	EXPECT_NE(memcmp(map, first, sizeof(first)), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuTensorMapReplaceAddress,
		       (struct sv_tensor_map){ .ctx = c->ctx, .off = at, .address = self->dev }), 0);
	EXPECT_EQ(memcmp(map, first, sizeof(first)), 0);
	/* An error leaves the arena as it is. */
	a.rank = 0;
	EXPECT_EQ(CALL(c, SV_OP_cuTensorMapEncodeTiled, a), CUDA_ERROR_INVALID_VALUE);
	a.rank = 2;
	EXPECT_EQ(CALL(c, SV_OP_cuTensorMapEncodeIm2col, a), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(memcmp(map, first, sizeof(first)), 0);
	a.rank = 3;
	a.dim[2] = 64;
	a.stride[1] = 65536;
	a.step[2] = 1;
	a.channels = a.pixels = 64;
	EXPECT_EQ(CALL(c, SV_OP_cuTensorMapEncodeIm2col, a), 0);
	a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
	EXPECT_EQ(CALL(c, SV_OP_cuTensorMapEncodeIm2colWide, a), 0);
}

TEST_F(session, says_what_is_wrong_with_an_image)
{
	struct client *c = &self->c;
	uint64_t at = arena_take(c, 4096), logs = arena_take(c, 8192);
	struct sv_image a = { .handle = new_handle(c, SV_T_CUlibrary), .kind = SV_IMAGE_ARENA,
			      .off = at, .len = 64, .log_off = logs, .info_cap = 4096,
			      .error_cap = 4096 };

	/* Nonsense; a fatbin that ends behind what there is; a wrapper with pointers; no ELF. */
	memset(c->arena + at, 'x', 64);
	memset(c->arena + logs, 'x', 8192);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryLoadData, a), CUDA_ERROR_INVALID_PTX);
	EXPECT_NE(c->arena[logs + 4096], 0);
	EXPECT_NE(c->arena[logs + 4096], 'x');
	EXPECT_LT(strnlen((char *)c->arena + logs + 4096, 4096), 4096);
	EXPECT_EQ(c->arena[logs], 0);
	a.log_off = a.info_cap = a.error_cap = 0;
	memcpy(c->arena + at, "\x50\xed\x55\xba\1\0\x10\0\0\0\1\0\0\0\0\0", 16);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryLoadData, a), CUDA_ERROR_INVALID_IMAGE);
	memcpy(c->arena + at, "\xb1\x43\x62\x46\1\0\0\0", 8);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryLoadData, a), CUDA_ERROR_INVALID_IMAGE);
	memcpy(c->arena + at, "\177ELF\2\1\1\0", 8);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryLoadData, a), CUDA_ERROR_INVALID_IMAGE);
}

/* ------------------------------------------------------------------------------ waiting */

struct stuck {
	uint64_t lib, spin, flag;	/* flag: arena, pinned */
};

/* A stream with a kernel that runs until the flag is set. */
static int stick(struct client *c, struct stuck *s, uint64_t pin, uint64_t stream)
{
	uint64_t p;
	int rc;

	if (!s->lib) {
		s->lib = load_text(c, kernels, &rc);
		s->spin = get_kernel(c, s->lib, "spin", NULL);
		s->flag = pin + 512;
	}
	*(volatile uint32_t *)(c->arena + s->flag) = 0;
	p = address(c, s->flag);
	return launch(c, stream, s->spin, 1, 1, &p, 8);
}

static uint64_t new_stream(struct client *c, unsigned int flags)
{
	struct sv_cuStreamCreate a = { .ctx = c->ctx, .Flags = flags,
				       .phStream = new_handle(c, SV_T_CUstream) };

	ring_submit(c->ring, SV_OP_cuStreamCreate, &a, sizeof(a), NULL, 0);
	return a.phStream;
}

/* A request in a thread of its own. */
struct waiter {
	struct client *c;
	uint16_t op;
	struct sv_sync_on on;
	pthread_t t;
	_Atomic int status;	/* -1: not answered */
};

static void *wait_for(void *arg)
{
	struct waiter *w = arg;

	w->status = call2(w->c, w->op, &w->on, sizeof(w->on), NULL, 0, NULL, 0);
	return NULL;
}

static void waiter_start(struct waiter *w, struct client *c, uint16_t op, uint64_t on)
{
	*w = (struct waiter){ .c = c, .op = op, .on = { c->ctx, on }, .status = -1 };
	pthread_create(&w->t, NULL, wait_for, w);
}

static int waiter_end(struct waiter *w)
{
	pthread_join(w->t, NULL);
	return w->status;
}

TEST_F(session, waits_for_streams_events_and_contexts)
{
	struct client *c = &self->c;
	struct sv_cuEventCreate e = { .ctx = c->ctx, .phEvent = new_handle(c, SV_T_CUevent) };
	struct sv_cuEventRecord r = { .ctx = c->ctx, .hEvent = e.phEvent };
	struct stuck s = { 0 };
	struct waiter w[3];
	uint64_t a = new_stream(c, CU_STREAM_NON_BLOCKING), b = new_stream(c, 0);

	ASSERT_EQ(stick(c, &s, self->pin, a), 0);
	ring_submit(c->ring, SV_OP_cuEventCreate, &e, sizeof(e), NULL, 0);
	r.hStream = a;
	ring_submit(c->ring, SV_OP_cuEventRecord, &r, sizeof(r), NULL, 0);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamQuery, (struct sv_sync_on){ c->ctx, a }),
		  CUDA_ERROR_NOT_READY);
	EXPECT_EQ(CALL(c, SV_OP_cuEventQuery, (struct sv_sync_on){ c->ctx, e.phEvent }),
		  CUDA_ERROR_NOT_READY);
	waiter_start(&w[0], c, SV_OP_cuStreamSynchronize, a);
	waiter_start(&w[1], c, SV_OP_cuEventSynchronize, e.phEvent);
	waiter_start(&w[2], c, SV_OP_cuCtxSynchronize, 0);
	/* Meanwhile everything else goes on. */
	EXPECT_EQ(copy(c, b, self->dev, address(c, self->pin), 4096), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, b }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize,
		       (struct sv_sync_on){ c->ctx, SV_STREAM_LEGACY }), 0);
	usleep(50000);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ((int)w[i].status, -1);
	*(volatile uint32_t *)(c->arena + s.flag) = 1;
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(waiter_end(&w[i]), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamQuery, (struct sv_sync_on){ c->ctx, a }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuEventQuery, (struct sv_sync_on){ c->ctx, e.phEvent }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuEventSynchronize, (struct sv_sync_on){ c->ctx, e.phEvent }), 0);
	EXPECT_EQ(late_count(c), 0);
}

TEST_F(session, waits_for_a_stream_that_was_destroyed)
{
	struct client *c = &self->c;
	struct stuck s = { 0 };
	struct waiter w;
	uint64_t a = new_stream(c, CU_STREAM_NON_BLOCKING);

	ASSERT_EQ(stick(c, &s, self->pin, a), 0);
	EXPECT_EQ(SEND(c, SV_OP_cuStreamDestroy_v2, (struct sv_stream_end){ a }), 0);
	waiter_start(&w, c, SV_OP_cuCtxSynchronize, 0);
	usleep(50000);
	EXPECT_EQ((int)w.status, -1);
	*(volatile uint32_t *)(c->arena + s.flag) = 1;
	EXPECT_EQ(waiter_end(&w), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, a }),
		  CUDA_ERROR_INVALID_HANDLE);
	EXPECT_EQ(late_count(c), 0);
}

TEST_F(session, measures_time_between_events)
{
	struct client *c = &self->c;
	struct sv_cuEventElapsedTime_v2 t;
	struct svr_cuEventElapsedTime_v2 ms = { 0 };
	struct stuck s = { 0 };
	uint64_t e[2];

	for (int i = 0; i < 2; i++) {
		struct sv_cuEventCreate a = { .ctx = c->ctx };
		struct sv_cuEventRecord r = { .ctx = c->ctx, .hStream = SV_STREAM_LEGACY };

		a.phEvent = r.hEvent = e[i] = new_handle(c, SV_T_CUevent);
		ring_submit(c->ring, SV_OP_cuEventCreate, &a, sizeof(a), NULL, 0);
		if (i)
			ASSERT_EQ(stick(c, &s, self->pin, SV_STREAM_LEGACY), 0);
		ring_submit(c->ring, SV_OP_cuEventRecord, &r, sizeof(r), NULL, 0);
	}
	usleep(20000);
	*(volatile uint32_t *)(c->arena + s.flag) = 1;
	EXPECT_EQ(ctx_sync(c), 0);
	memset(&t, 0, sizeof(t));
	t.hStart = e[0];
	t.hEnd = e[1];
	EXPECT_EQ(call2(c, SV_OP_cuEventElapsedTime_v2, &t, sizeof(t), NULL, 0, &ms,
			sizeof(ms)), 0);
	EXPECT_GT(ms.pMilliseconds, 10);
	EXPECT_LT(ms.pMilliseconds, 20000);
}

/* ------------------------------------------------------------------------------ host functions */

struct caller {
	struct client *c;
	uint64_t word;
	uint64_t ids[8];
	int n, hold;
	pthread_t t;
};

static void *serve_calls(void *arg)
{
	struct caller *h = arg;

	while (h->n < 3) {
		struct sv_next_call n = { 0 };

		if (call2(h->c, SV_OP_X_NEXT_CALL, NULL, 0, NULL, 0, &n, sizeof(n)) || n.status)
			break;
		h->ids[h->n++] = n.id;
		usleep(h->hold);
		__atomic_store_n((uint64_t *)(h->c->arena + h->word), n.id, __ATOMIC_RELEASE);
	}
	return NULL;
}

TEST_F(session, calls_host_functions_in_order)
{
	struct client *c = &self->c;
	struct caller h = { .c = c, .word = self->pin + 8, .hold = 20000 };
	uint32_t *v = (void *)(c->arena + self->pin + 4096);
	uint64_t st = new_stream(c, CU_STREAM_NON_BLOCKING);

	*(uint64_t *)(c->arena + h.word) = 0;
	v[0] = 1;
	pthread_create(&h.t, NULL, serve_calls, &h);
	for (uint64_t id = 1; id <= 3; id++) {
		EXPECT_EQ(SEND(c, SV_OP_cuLaunchHostFunc,
			       (struct sv_host_func){ c->ctx, st, id, h.word }), 0);
		/* Behind the call: it must have been made by then. */
		EXPECT_EQ(SEND(c, SV_OP_cuMemcpyAsync,
			       (struct sv_copy){ c->ctx, st, address(c, self->pin + 8192 + id * 8),
						 address(c, h.word), 8, 0, 0 }), 0);
	}
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }), 0);
	pthread_join(h.t, NULL);
	ASSERT_EQ(h.n, 3);
	for (uint64_t id = 1; id <= 3; id++) {
		EXPECT_EQ(h.ids[id - 1], id);
		EXPECT_EQ(*(uint64_t *)(c->arena + self->pin + 8192 + id * 8), id);
	}
	EXPECT_EQ(late_count(c), 0);
}

/* ---------------------------------------------------------------- printing, errors */

TEST_F(session, prints_before_a_synchronisation_is_answered)
{
	struct client *c = &self->c;
	const volatile struct sv_print *p = &c->shared->print[0];
	uint64_t lib, k;
	int rc;

	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	k = get_kernel(c, lib, "say", NULL);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, k, 1, 2, NULL, 0), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	ASSERT_EQ(p->head, 12);
	EXPECT_EQ(memcmp(c->arena + p->off, "hello\nhello\n", 12), 0);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, k, 1, 1, NULL, 0), 0);
	usleep(100000);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(p->head, 18);
	EXPECT_EQ(p->dropped, 0);
}

TEST_F(session, tells_late_and_latched_errors)
{
	struct client *c = &self->c;
	struct sv_cuMemsetD8Async m = { .ctx = c->ctx, .dstDevice = self->dev + 2 * GRANULE - 4,
					.N = 5, .hStream = SV_STREAM_LEGACY };
	uint64_t lib, k, bad = self->dev + 100 * GRANULE, seq = 0;
	int rc;

	ring_submit(c->ring, SV_OP_cuMemsetD8Async, &m, sizeof(m), NULL, 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 1);
	EXPECT_EQ(late_code(c), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(ring_error(c->ring, NULL), 0);
	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	k = get_kernel(c, lib, "store", NULL);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, k, 1, 1, &bad, 8), 0);
	EXPECT_EQ(ctx_sync(c), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT_EQ(ring_error(c->ring, &seq), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT_EQ(late_count(c), 2);
	EXPECT_EQ(ctx_sync(c), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64),
		  CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT_EQ(late_count(c), 2);
}

/* The word of a watch for what is in a stream, when that has ended. */
static uint64_t watched(struct client *c, uint64_t pin, uint64_t st, uint64_t number, const struct stuck *s)
{
	struct sv_watch w = { c->ctx, st, pin + 4096, number };
	volatile uint64_t *word = (void *)(c->arena + w.word);

	*word = 0;
	if (CALL(c, SV_OP_X_WATCH_STREAM, w) != CUDA_ERROR_NOT_READY || *word != SV_WATCHED(number))
		return 0;
	*(volatile uint32_t *)(c->arena + s->flag) = 1;
	while (*word == SV_WATCHED(number))
		usleep(1000);
	return *word;
}

TEST_F(session, a_word_says_done_only_of_what_has_not_failed)
{
	struct client *c = &self->c;
	uint64_t lib, k, bad = self->dev + 100 * GRANULE, st = new_stream(c, CU_STREAM_NON_BLOCKING);
	struct stuck s = { 0 };
	int rc;

	ASSERT_EQ(stick(c, &s, self->pin, st), 0);
	EXPECT_EQ(watched(c, self->pin, st, 7, &s), SV_WATCH_DONE(7ull));
	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	k = get_kernel(c, lib, "store", NULL);
	ASSERT_EQ(stick(c, &s, self->pin, st), 0);
	EXPECT_EQ(launch(c, st, k, 1, 1, &bad, 8), 0);
	EXPECT_EQ(watched(c, self->pin, st, 8, &s), SV_WATCH_ASK(8ull));
	EXPECT_EQ(CALL(c, SV_OP_cuStreamQuery, (struct sv_sync_on){ c->ctx, st }), CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* ------------------------------------------------------------------------------ memory */

TEST_F(session, unmaps_any_part_and_maps_again)
{
	struct client *c = &self->c;
	uint64_t at = c->window + 16 * GRANULE;

	EXPECT_EQ(CALL(c, SV_OP_X_MAP, (struct sv_map){ at, 8 * GRANULE }), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at + 5 * GRANULE - 8, address(c, self->pin), 16), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ at + 3 * GRANULE, 2 * GRANULE }), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at + 5 * GRANULE - 8, address(c, self->pin), 16),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at + 5 * GRANULE, address(c, self->pin), 16), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_MAP, (struct sv_map){ at + 4 * GRANULE, GRANULE }), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at + 5 * GRANULE - 8, address(c, self->pin), 16), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ at + 4 * GRANULE, 4 * GRANULE }), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ at, 3 * GRANULE }), 0);
}

TEST_F(session, maps_and_unmaps_whole_pieces)
{
	struct client *c = &self->c;
	uint64_t at = c->window + 16 * GRANULE, pin = address(c, self->pin);

	EXPECT_EQ(CALL(c, SV_OP_X_MAP_PIECES, (struct sv_pieces){ at, 7 * GRANULE, 3 * GRANULE }), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at + 3 * GRANULE - 8, pin, 16), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ at + 3 * GRANULE, 3 * GRANULE }), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at + 3 * GRANULE - 8, pin, 16), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at + 7 * GRANULE - 8, pin, 8), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_MAP, (struct sv_map){ at + 4 * GRANULE, 2 * GRANULE }), 0);
	SEND(c, SV_OP_X_MAP_PIECES, (struct sv_pieces){ at + 3 * GRANULE, GRANULE, 8 * GRANULE });
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at, pin, 64), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at + 4 * GRANULE - 8, pin, 16), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ at + 5 * GRANULE, 2 * GRANULE }), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ at, 5 * GRANULE }), 0);
}

TEST_F(session, unmapping_does_not_wait_for_what_runs)
{
	struct client *c = &self->c;
	uint64_t at = c->window + 16 * GRANULE, st = new_stream(c, CU_STREAM_NON_BLOCKING);
	struct stuck s = { 0 };

	EXPECT_EQ(CALL(c, SV_OP_X_MAP, (struct sv_map){ at, GRANULE }), 0);
	ASSERT_EQ(stick(c, &s, self->pin, st), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ at, GRANULE }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamQuery, (struct sv_sync_on){ c->ctx, st }),
		  CUDA_ERROR_NOT_READY);
	*(volatile uint32_t *)(c->arena + s.flag) = 1;
	EXPECT_EQ(ctx_sync(c), 0);
}

TEST_F(session, maps_memory_of_its_own_handles)
{
	struct client *c = &self->c;
	uint64_t h = new_handle(c, SV_T_CUmemGenericAllocationHandle_v1);
	uint64_t a = c->window + 32 * GRANULE, b = c->window + 64 * GRANULE;
	uint32_t *v = (void *)(c->arena + self->pin);

	EXPECT_EQ(CALL(c, SV_OP_cuMemCreate, (struct sv_mem_create){ h, 2 * GRANULE, 0 }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemMap, (struct sv_mem_map){ a, 2 * GRANULE, h, 0 }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemMap, (struct sv_mem_map){ b, 2 * GRANULE, h, 0 }), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, a, address(c, self->pin), 8), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_cuMemSetAccess,
		       (struct sv_mem_access){ a, 2 * GRANULE,
					       CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 0 }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemSetAccess,
		       (struct sv_mem_access){ b, 2 * GRANULE, CU_MEM_ACCESS_FLAGS_PROT_READ, 0 }),
		  0);
	v[0] = 0x12345678;
	v[2] = 0;
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, a + GRANULE, address(c, self->pin), 4), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, address(c, self->pin + 8), b + GRANULE, 4), 0);
	EXPECT_EQ(v[2], 0x12345678);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, b, address(c, self->pin), 4), CUDA_ERROR_INVALID_VALUE);
	/* Whole mappings alone. */
	EXPECT_EQ(CALL(c, SV_OP_cuMemUnmap, (struct sv_map){ a, GRANULE }),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_cuMemUnmap, (struct sv_map){ a + GRANULE, GRANULE }),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_cuMemRelease, (struct sv_mem_release){ h }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemUnmap, (struct sv_map){ a, 2 * GRANULE }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemUnmap, (struct sv_map){ b, 2 * GRANULE }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemRelease, (struct sv_mem_release){ h }),
		  CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(session, pins_and_unpins)
{
	struct client *c = &self->c;
	uint64_t at = arena_take(c, 3 * 4096);

	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, at), 16),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_X_PIN, (struct sv_pin){ at, 4096 }), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_PIN, (struct sv_pin){ at + 4096, 8192 }), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, at + 16), 3 * 4096 - 16), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, at + 16), 3 * 4096),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_X_UNPIN, (struct sv_pin){ at + 4096, 8192 }), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, at + 16), 4096),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_X_PIN, (struct sv_pin){ at + 4096, 4096 }), 0);
}

/* Bytes of the channel's object, the arena with it, that have pages. */
static uint64_t backed(struct client *c)
{
	struct stat st;

	return fstat(ring_fd(c->ring), &st) ? 0 : st.st_blocks * 512ull;
}

/* What is pinned is there: a large range when it is used, a small one at once. */
TEST_F(session, large_ranges_are_backed_when_they_are_used)
{
	struct client *c = &self->c;
	uint64_t large = arena_take(c, 64 * MiB), small = arena_take(c, MiB), before = backed(c);

	if (ring_backend(c->ring) != RING_MEMFD)
		SKIP(return, "the module does not say what has pages");
	ASSERT_GT(before, 0);
	EXPECT_EQ(CALL(c, SV_OP_X_PIN, (struct sv_pin){ large, 64 * MiB }), 0);
	EXPECT_LT(backed(c), before + 16 * MiB);
	before = backed(c);
	EXPECT_EQ(CALL(c, SV_OP_X_PIN, (struct sv_pin){ small, MiB }), 0);
	EXPECT_GE(backed(c), before + MiB);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, large + 64 * MiB - 16), 16), 0);
}

TEST_F(session, unpinning_holds_up_nobody_else)
{
	struct client *c = &self->c;
	uint64_t at = arena_take(c, 4096), st = new_stream(c, CU_STREAM_NON_BLOCKING);
	struct stuck s = { 0 };
	struct sv_pin a = { at, 4096 };
	struct ring_ticket t;
	int32_t status = -1;

	EXPECT_EQ(CALL(c, SV_OP_X_PIN, a), 0);
	ASSERT_EQ(stick(c, &s, self->pin, st), 0);
	EXPECT_EQ(ring_request(c->ring, &t, SV_OP_X_UNPIN, &a, sizeof(a), NULL, 0), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 16), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, at), 16),
		  CUDA_ERROR_INVALID_VALUE);
	*(volatile uint32_t *)(c->arena + s.flag) = 1;
	EXPECT_EQ(ring_await(c->ring, &t, &status, NULL, 0, NULL, -1), 0);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(CALL(c, SV_OP_X_PIN, a), 0);
}

TEST_F(session, copies_boxes_between_memory_and_arrays)
{
	struct client *c = &self->c;
	struct sv_cuArrayCreate_v2 n = {
		.ctx = c->ctx, .pHandle = new_handle(c, SV_T_CUarray),
		.pAllocateArray = { 16, 8, CU_AD_FORMAT_UNSIGNED_INT32, 1 },
	};
	struct sv_copy3d a = { .ctx = c->ctx, .stream = SV_STREAM_LEGACY,
			       .src = { .addr = address(c, self->pin), .pitch = 64, .height = 8 },
			       .dst = { .array = n.pHandle },
			       .width = 64, .height = 8, .depth = 1 };
	uint32_t *v = (void *)(c->arena + self->pin);

	EXPECT_EQ(call2(c, SV_OP_cuArrayCreate_v2, &n, sizeof(n), NULL, 0, NULL, 0), 0);
	for (int i = 0; i < 1024; i++)
		v[i] = i;
	EXPECT_EQ(CALL(c, SV_OP_cuMemcpy3DAsync_v2, a), 0);
	a.src = (struct sv_copy3d_side){ .array = n.pHandle, .x = 16, .y = 2 };
	a.dst = (struct sv_copy3d_side){ .addr = self->dev, .pitch = 512, .height = 8, .x = 8,
					 .y = 1 };
	a.width = 32;
	a.height = 4;
	EXPECT_EQ(CALL(c, SV_OP_cuMemcpy3DAsync_v2, a), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, address(c, self->pin), self->dev, 4096), 0);
	for (int y = 0; y < 4; y++)
		for (int x = 0; x < 8; x++)
			EXPECT_EQ(v[(y + 1) * 128 + 2 + x], (y + 2) * 16 + 4 + x);
	/* One row too many for what is mapped. */
	a.dst.addr = self->dev + 2 * GRANULE - 4 * 512;
	EXPECT_EQ(CALL(c, SV_OP_cuMemcpy3DAsync_v2, a), CUDA_ERROR_INVALID_VALUE);
	a.dst.height = a.dst.pitch = UINT64_MAX / 2;
	EXPECT_EQ(CALL(c, SV_OP_cuMemcpy3DAsync_v2, a), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_cuArrayDestroy,
		       (struct sv_cuArrayDestroy){ c->ctx, n.pHandle }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuArrayDestroy,
		       (struct sv_cuArrayDestroy){ c->ctx, n.pHandle }), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(session, makes_textures_and_surfaces)
{
	struct client *c = &self->c;
	struct sv_cuArray3DCreate_v2 n = { .ctx = c->ctx, .pHandle = new_handle(c, SV_T_CUarray),
		.pAllocateArray = { 16, 8, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST } };
	struct {
		struct sv_tex_new a;
		CUDA_RESOURCE_DESC res;
		CUDA_TEXTURE_DESC tex;
	} t = { .a = { .ctx = c->ctx } };
	uint64_t tex = 0, surf = 0;

	EXPECT_EQ(call2(c, SV_OP_cuArray3DCreate_v2, &n, sizeof(n), NULL, 0, NULL, 0), 0);
	t.res.resType = CU_RESOURCE_TYPE_ARRAY;
	t.res.res.array.hArray = (CUarray)n.pHandle;
	EXPECT_EQ(call2(c, SV_OP_cuTexObjectCreate, &t, sizeof(t), NULL, 0, &tex, 8), 0);
	EXPECT_NE(tex, 0);
	EXPECT_EQ(call2(c, SV_OP_cuSurfObjectCreate, &t, sizeof(t) - sizeof(t.tex), NULL, 0, &surf,
			8), 0);
	EXPECT_NE(surf, 0);
	EXPECT_EQ(CALL(c, SV_OP_cuSurfObjectDestroy, (struct sv_tex_end){ c->ctx, tex }),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_cuTexObjectDestroy, (struct sv_tex_end){ c->ctx, tex }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuTexObjectDestroy, (struct sv_tex_end){ c->ctx, tex }),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_cuSurfObjectDestroy, (struct sv_tex_end){ c->ctx, surf }), 0);
	t.res.resType = CU_RESOURCE_TYPE_LINEAR;
	t.res.res.linear.devPtr = self->dev;
	t.res.res.linear.format = CU_AD_FORMAT_FLOAT;
	t.res.res.linear.numChannels = 1;
	t.res.res.linear.sizeInBytes = 4096;
	EXPECT_EQ(call2(c, SV_OP_cuTexObjectCreate, &t, sizeof(t), NULL, 0, &tex, 8), 0);
	t.res.res.linear.devPtr = self->dev + 2 * GRANULE;
	EXPECT_EQ(call2(c, SV_OP_cuTexObjectCreate, &t, sizeof(t), NULL, 0, &tex, 8),
		  CUDA_ERROR_INVALID_VALUE);
}

/* ------------------------------------------------------------------------------ contexts */

TEST_F(session, ends_contexts_with_what_is_in_them)
{
	struct client *c = &self->c;
	uint64_t primary = c->ctx, lib, k, st;
	int rc;

	lib = load_text(c, kernels, &rc);
	k = get_kernel(c, lib, "count", NULL);
	c->ctx = new_handle(c, SV_T_CUcontext);
	EXPECT_EQ(CALL(c, SV_OP_cuCtxCreate_v4, (struct sv_ctx_new){ c->ctx, 0, 0 }), 0);
	st = new_stream(c, 0);
	EXPECT_EQ(launch(c, st, k, 1, 1, &self->dev, 8), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuCtxDestroy_v2, (struct sv_ctx_end){ c->ctx }), 0);
	EXPECT_EQ(ctx_sync(c), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	c->ctx = primary;
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }),
		  CUDA_ERROR_INVALID_HANDLE);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, k, 1, 1, &self->dev, 8), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 0);
}

TEST_F(session, resets_the_primary_context)
{
	struct client *c = &self->c;
	uint64_t st = new_stream(c, 0), old = c->ctx, lib, k;
	int rc;

	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	EXPECT_EQ(CALL(c, SV_OP_cuCtxDestroy_v2, (struct sv_ctx_end){ old }),
		  CUDA_ERROR_INVALID_CONTEXT);
	EXPECT_EQ(CALL(c, SV_OP_cuDevicePrimaryCtxReset_v2, (struct sv_ctx_end){ old }), 0);
	EXPECT_EQ(ctx_sync(c), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	EXPECT_EQ(client_context(c), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }),
		  CUDA_ERROR_INVALID_HANDLE);
	/* Memory, pins and libraries are the session's. */
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 4096), 0);
	k = get_kernel(c, lib, "count", NULL);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, k, 1, 1, &self->dev, 8), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 0);
}

TEST_HARNESS_MAIN
