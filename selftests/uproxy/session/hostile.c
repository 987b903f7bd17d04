// SPDX-License-Identifier: Apache-2.0
/*
 * hostile.c - a client that breaks rules: its session ends with the rule's name, not by a crash
 */
#include "../client.h"

/* A session with 2 granules, 1 MiB of pinned arena, a stream and a kernel. */
struct game {
	struct client c;
	uint64_t pin, stream, lib, kernel;
};

static int game_start(struct game *g)
{
	struct client *c = &g->c;
	struct sv_cuStreamCreate s = { .Flags = CU_STREAM_NON_BLOCKING };
	int rc;

	rc = client_start(c, NULL);
	if (rc)
		return rc;
	rc = client_context(c);
	if (rc)
		return rc;
	g->pin = arena_take(c, MiB);
	SEND(c, SV_OP_X_MAP, (struct sv_map){ c->window, 2 * GRANULE });
	SEND(c, SV_OP_X_PIN, (struct sv_pin){ g->pin, MiB });
	s.ctx = c->ctx;
	s.phStream = g->stream = new_handle(c, SV_T_CUstream);
	ring_submit(c->ring, SV_OP_cuStreamCreate, &s, sizeof(s), NULL, 0);
	g->lib = load_text(c, kernels, &rc);
	g->kernel = get_kernel(c, g->lib, "count", NULL);
	return rc ?: ctx_sync(c);
}

/* The record ends the session: exit status 1, the client sees the end, and why. */
static int ends_session(struct game *g, uint16_t op, const void *a, uint32_t len, const char *why)
{
	int rc, ok;

	ring_submit(g->c.ring, op, a, len, NULL, 0);
	for (int i = 0; i < 5000 && ctx_sync(&g->c) >= 0; i++)
		usleep(1000);
	ok = ctx_sync(&g->c) == -EPIPE && !!strstr((const char *)g->c.shared->why, why);
	if (!ok)
		fprintf(stderr, "# op %u, '%s': it says '%s'\n", op, why, g->c.shared->why);
	rc = client_end(&g->c);
	if (rc != 1)
		fprintf(stderr, "# op %u, '%s': exit status %d\n", op, why, rc);
	return ok && rc == 1;
}

#define ENDS(why, op, ...) do { \
	__auto_type a_ = __VA_ARGS__; \
	EXPECT_TRUE(ends_session(&g, op, &a_, sizeof(a_), why)); \
	ASSERT_EQ(game_start(&g), 0); \
} while (0)

#define BEGIN \
	struct game g = { 0 }; \
	ASSERT_EQ(game_start(&g), 0)
#define END \
	EXPECT_EQ(client_end(&g.c), 0)

TEST(unknown_operations)
{
	BEGIN;
	ENDS("unknown operation", 0, (uint64_t){ 0 });
	ENDS("unknown operation", 0x3fff, (uint64_t){ 0 });
	ENDS("unknown operation", 0x4fff, (uint64_t){ 0 });
	ENDS("unknown operation", 0xfffe, (uint64_t){ 0 });
	ENDS("unknown operation", SV_OP_cuMemAlloc_v2, (uint64_t){ 0 });
	END;
}

TEST(sizes_and_padding)
{
	BEGIN;
	ENDS("size", SV_OP_X_MAP, (uint64_t){ 0 });
	ENDS("size", SV_OP_X_MAP, (struct { struct sv_map m; uint64_t more; }){ 0 });
	ENDS("size", SV_OP_cuEventRecord, (uint32_t){ 0 });
	ENDS("padding", SV_OP_cuCtxCreate_v4,
	     (struct sv_ctx_new){ new_handle(&g.c, SV_T_CUcontext), 0, 1 });
	ENDS("padding", SV_OP_cuMemSetAccess, (struct sv_mem_access){ g.c.window, GRANULE, 3, 1 });
	ENDS("size", SV_OP_cuLaunchKernel,
	     (struct sv_launch){ .ctx = g.c.ctx, .stream = 1, .function = g.kernel,
				 .param_bytes = 8 });
	ENDS("size", SV_OP_cuLaunchKernel,
	     (struct sv_launch){ .ctx = g.c.ctx, .stream = 1, .function = g.kernel,
				 .param_bytes = UINT32_MAX, .attrs = UINT32_MAX });
	ENDS("size", SV_OP_cuLaunchKernel,
	     (struct { struct sv_launch a; uint64_t p[3]; }){
		{ .ctx = g.c.ctx, .stream = 1, .function = g.kernel, .param_bytes = 8 },
		{ 1, 2, 3 } });
	ENDS("flags", SV_OP_cuLaunchKernel,
	     (struct sv_launch){ .ctx = g.c.ctx, .stream = 1, .function = g.kernel, .flags = 8 });
	END;
}

TEST(handles_of_other_kinds)
{
	BEGIN;
	uint64_t stream = g.stream;

	ENDS("context", SV_OP_cuCtxSynchronize, (struct sv_sync_on){ stream, 0 });
	ENDS("context", SV_OP_cuCtxSynchronize, (struct sv_sync_on){ 0, 0 });
	ENDS("stream", SV_OP_cuStreamSynchronize, (struct sv_sync_on){ g.c.ctx, g.c.ctx });
	ENDS("stream", SV_OP_cuStreamSynchronize, (struct sv_sync_on){ g.c.ctx, 2 });
	ENDS("stream", SV_OP_cuStreamSynchronize, (struct sv_sync_on){ g.c.ctx, 0x7f0012345678 });
	ENDS("event", SV_OP_cuEventSynchronize, (struct sv_sync_on){ g.c.ctx, g.stream });
	ENDS("stream", SV_OP_X_WATCH_STREAM, (struct sv_watch){ g.c.ctx, 2, g.pin, 1 });
	ENDS("event", SV_OP_X_WATCH_EVENT, (struct sv_watch){ g.c.ctx, g.stream, g.pin, 1 });
	ENDS("word of a watch", SV_OP_X_WATCH_STREAM, (struct sv_watch){ g.c.ctx, 1, g.pin + 4, 1 });
	ENDS("word of a watch", SV_OP_X_WATCH_STREAM, (struct sv_watch){ g.c.ctx, 1, 4096, 1 });
	ENDS("word of a watch", SV_OP_X_WATCH_STREAM, (struct sv_watch){ g.c.ctx, 1, g.pin + 64 * MiB, 1 });
	ENDS("word of a watch", SV_OP_X_WATCH_EVENT, (struct sv_watch){ g.c.ctx, g.stream, g.pin, 1ull << 62 });
	ENDS("function", SV_OP_cuLaunchKernel,
	     (struct sv_launch){ .ctx = g.c.ctx, .stream = 1, .function = g.stream });
	ENDS("stream", SV_OP_cuStreamDestroy_v2, (struct sv_stream_end){ SV_STREAM_LEGACY });
	ENDS("image", SV_OP_cuLibraryUnload, (struct sv_image_end){ g.kernel });
	ENDS("image", SV_OP_cuModuleUnload, (struct sv_image_end){ g.lib });
	END;
}

TEST(handles_that_are_taken)
{
	BEGIN;
	ENDS("handle", SV_OP_cuStreamCreate,
	     (struct sv_cuStreamCreate){ .ctx = g.c.ctx, .phStream = g.stream });
	/* Another use of a live index is no other handle. */
	ENDS("handle", SV_OP_cuStreamCreate,
	     (struct sv_cuStreamCreate){ .ctx = g.c.ctx, .phStream = g.stream + 16 });
	ENDS("handle", SV_OP_cuStreamCreate,
	     (struct sv_cuStreamCreate){ .ctx = g.c.ctx, .phStream = g.c.ctx });
	ENDS("handle", SV_OP_cuStreamCreate,
	     (struct sv_cuStreamCreate){ .ctx = g.c.ctx, .phStream = g.stream | 1 });
	ENDS("primary", SV_OP_cuDevicePrimaryCtxRetain,
	     (struct sv_ctx_new){ new_handle(&g.c, SV_T_CUcontext), 0, 0 });
	ENDS("handle", SV_OP_cuMemCreate, (struct sv_mem_create){ g.stream, GRANULE, 0 });
	END;
}

TEST(handles_that_are_gone)
{
	BEGIN;
	struct client *c = &g.c;

	/* A program can do that: it gets an error. */
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, g.stream + 16 }),
		  CUDA_ERROR_INVALID_HANDLE);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize,
		       (struct sv_sync_on){ c->ctx, new_handle(c, SV_T_CUstream) }),
		  CUDA_ERROR_INVALID_HANDLE);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize,
		       (struct sv_sync_on){ c->ctx, sv_handle(SV_T_CUstream, 0xffffff, 3) }),
		  CUDA_ERROR_INVALID_HANDLE);
	EXPECT_EQ(CALL(c, SV_OP_cuCtxSynchronize,
		       (struct sv_sync_on){ sv_handle(SV_T_CUcontext, 0x1234, 3), 0 }),
		  CUDA_ERROR_CONTEXT_IS_DESTROYED);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryUnload,
		       (struct sv_image_end){ sv_handle(SV_T_CUlibrary, 99, 3) }),
		  CUDA_ERROR_INVALID_HANDLE);
	END;
}

TEST(spread_handles_run_out_not_the_proxy)
{
	BEGIN;
	struct client *c = &g.c;
	int rc = 0;

	for (uint32_t i = 0; i < 70000 && !rc; i++) {
		struct sv_cuEventCreate a = {
			.ctx = c->ctx,
			.phEvent = sv_handle(SV_T_CUevent, i * 239 & 0xffffff, 1),
		};

		rc = ring_submit(c->ring, SV_OP_cuEventCreate, &a, sizeof(a), NULL, 0);
		if (i % 1000 == 999)
			rc = ctx_sync(c);
	}
	EXPECT_EQ(rc, 0);
	EXPECT_EQ(late_code(c), CUDA_ERROR_OUT_OF_MEMORY);
	END;
}

/* A record that workers have not executed yet; nobody waits for its answer. */
#define IN_WORK(op, ...) do { \
	struct ring_ticket t_; \
	__auto_type a_ = __VA_ARGS__; \
	ASSERT_EQ(ring_request(g.c.ring, &t_, op, &a_, sizeof(a_), NULL, 0), 0); \
} while (0)

TEST(ranges_that_a_worker_maps_or_pins_are_nobodys)
{
	struct game g = { 0 };
	struct client *c = &g.c;
	uint64_t at, half;

	setenv("SINGVGPU_SOFT_PROFILE", "h100,slow-maps=50000,slow-pins=50000", 1);
	ASSERT_EQ(game_start(&g), 0);
	at = g.c.window + 2 * GRANULE;
	half = (g.c.shared->budget / 2 / GRANULE + 2) * GRANULE;
	IN_WORK(SV_OP_X_MAP_PIECES, (struct sv_pieces){ at, 4 * GRANULE, 2 * GRANULE });
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at, g.c.window, 64), CUDA_ERROR_INVALID_VALUE);
	ENDS("already", SV_OP_X_MAP, (struct sv_map){ at, GRANULE });
	IN_WORK(SV_OP_X_MAP_PIECES, (struct sv_pieces){ at, 4 * GRANULE, 2 * GRANULE });
	ENDS("not mapped", SV_OP_X_UNMAP, (struct sv_map){ at, 4 * GRANULE });
	IN_WORK(SV_OP_X_MAP_PIECES, (struct sv_pieces){ at, half, half });
	ENDS("granted", SV_OP_X_MAP, (struct sv_map){ at + half, half });
	IN_WORK(SV_OP_X_UNMAP, (struct sv_map){ g.c.window, 2 * GRANULE });
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, g.c.window, g.c.window + GRANULE, 64),
		  CUDA_ERROR_INVALID_VALUE);
	ENDS("already", SV_OP_X_MAP, (struct sv_map){ g.c.window, GRANULE });
	IN_WORK(SV_OP_X_UNMAP, (struct sv_map){ g.c.window, 2 * GRANULE });
	ENDS("not mapped", SV_OP_X_UNMAP, (struct sv_map){ g.c.window, 2 * GRANULE });
	IN_WORK(SV_OP_X_PIN, (struct sv_pin){ g.pin + 2 * MiB, 2 * MiB });
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, g.c.window, (uint64_t)g.c.arena + g.pin + 2 * MiB, 64),
		  CUDA_ERROR_INVALID_VALUE);
	ENDS("pinned already", SV_OP_X_PIN, (struct sv_pin){ g.pin + 3 * MiB, MiB });
	unsetenv("SINGVGPU_SOFT_PROFILE");
	END;
}

TEST(window_ranges)
{
	BEGIN;
	uint64_t end = g.c.window + g.c.shared->window_len;

	ENDS("granules", SV_OP_X_MAP, (struct sv_map){ g.c.window + 4096, GRANULE });
	ENDS("granules", SV_OP_X_MAP, (struct sv_map){ g.c.window, 0 });
	ENDS("granules", SV_OP_X_MAP, (struct sv_map){ g.c.window + 2 * GRANULE, 4096 });
	ENDS("granules", SV_OP_X_MAP, (struct sv_map){ end, GRANULE });
	ENDS("granules", SV_OP_X_MAP, (struct sv_map){ end - GRANULE, 2 * GRANULE });
	ENDS("granules", SV_OP_X_MAP, (struct sv_map){ g.c.window - GRANULE, GRANULE });
	ENDS("granules", SV_OP_X_MAP, (struct sv_map){ g.c.window + 2 * GRANULE, -GRANULE });
	ENDS("granules", SV_OP_X_MAP, (struct sv_map){ 0, GRANULE });
	ENDS("already", SV_OP_X_MAP, (struct sv_map){ g.c.window + GRANULE, 2 * GRANULE });
	ENDS("granted", SV_OP_X_MAP,
	     (struct sv_map){ g.c.window + 2 * GRANULE, g.c.shared->budget });
	ENDS("pieces", SV_OP_X_MAP_PIECES, (struct sv_pieces){ g.c.window + 2 * GRANULE, GRANULE, 0 });
	ENDS("pieces", SV_OP_X_MAP_PIECES,
	     (struct sv_pieces){ g.c.window + 2 * GRANULE, GRANULE, 4096 });
	ENDS("granules", SV_OP_X_MAP_PIECES, (struct sv_pieces){ end, GRANULE, GRANULE });
	for (int i = 0; i < 3; i++) {
		SEND(&g.c, SV_OP_X_MAP_PIECES,
		     (struct sv_pieces){ g.c.window + 2 * GRANULE, 5 * GRANULE, 3 * GRANULE });
		ENDS("not mapped", SV_OP_X_UNMAP,
		     (struct sv_map){ g.c.window + (2 + i) * GRANULE, 2 * GRANULE });
	}
	ENDS("granules", SV_OP_X_UNMAP, (struct sv_map){ g.c.window, 1 });
	ENDS("not mapped", SV_OP_X_UNMAP, (struct sv_map){ g.c.window, 3 * GRANULE });
	ENDS("already", SV_OP_cuMemMap,
	     (struct sv_mem_map){ g.c.window, GRANULE, sv_handle(25, 1, 1), 0 });
	ENDS("length", SV_OP_cuMemCreate,
	     (struct sv_mem_create){ sv_handle(25, 99, 1), 1, 0 });
	ENDS("flags", SV_OP_cuMemCreate,
	     (struct sv_mem_create){ sv_handle(25, 99, 1), GRANULE, SV_MEM_SHARED << 1 });
	ENDS("padding", SV_OP_cuMemExportToShareableHandle,
	     (struct sv_mem_share){ .handle = sv_handle(25, 99, 1), .pad = 1 });
	ENDS("padding", SV_OP_cuMemImportFromShareableHandle,
	     (struct sv_mem_share){ .handle = sv_handle(25, 99, 1), .pad = 1 });
	END;
}

/* A mapping goes as a whole, as it came. */
TEST(halves_of_mappings_stay)
{
	BEGIN;
	struct client *c = &g.c;
	uint64_t h = new_handle(c, SV_T_CUmemGenericAllocationHandle_v1), at = c->window + 8 * GRANULE;

	EXPECT_EQ(CALL(c, SV_OP_cuMemCreate, (struct sv_mem_create){ h, 2 * GRANULE, 0 }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemMap, (struct sv_mem_map){ at, 2 * GRANULE, h, 0 }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemUnmap, (struct sv_map){ at, GRANULE }), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_cuMemUnmap, (struct sv_map){ at + GRANULE, GRANULE }),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_cuMemUnmap, (struct sv_map){ at, 3 * GRANULE }),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_cuMemUnmap, (struct sv_map){ at, 2 * GRANULE }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemUnmap, (struct sv_map){ at, 2 * GRANULE }),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(CALL(c, SV_OP_cuMemRelease, (struct sv_mem_release){ h }), 0);
	END;
}

/* Of what is in the ring behind a record that breaks a rule nothing is executed. */
TEST(nothing_is_executed_behind_a_broken_rule)
{
	BEGIN;
	struct client *c = &g.c;
	uint32_t *v = (void *)(c->arena + g.pin);

	v[0] = 1;
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, c->window, address(c, g.pin), 4), 0);
	v[0] = 2;
	kill(c->proxy, SIGSTOP);
	EXPECT_EQ(SEND(c, 0x3fff, (uint64_t){ 0 }), 0);
	for (int i = 0; i < 8; i++)
		EXPECT_EQ(SEND(c, SV_OP_cuMemcpyAsync,
			       (struct sv_copy){ c->ctx, SV_STREAM_LEGACY, address(c, g.pin),
						 c->window, 4, 0, 0 }), 0);
	kill(c->proxy, SIGCONT);
	for (int i = 0; i < 5000 && ctx_sync(c) >= 0; i++)
		usleep(1000);
	EXPECT_EQ(v[0], 2);
	EXPECT_EQ(client_end(c), 1);
}

TEST(arena_ranges)
{
	BEGIN;
	uint64_t len = (uintptr_t)0;

	len = 64ull << 30;
	ENDS("arena", SV_OP_X_PIN, (struct sv_pin){ 0, 4096 });
	ENDS("arena", SV_OP_X_PIN, (struct sv_pin){ 8 << 20, 4095 });
	ENDS("arena", SV_OP_X_PIN, (struct sv_pin){ 8 << 20, len });
	ENDS("arena", SV_OP_X_PIN, (struct sv_pin){ -4096ull, 8192 });
	ENDS("arena", SV_OP_X_PIN, (struct sv_pin){ 8 << 20, 0 });
	ENDS("arena", SV_OP_X_PIN, (struct sv_pin){ (8 << 20) + 100, 4096 });
	ENDS("already", SV_OP_X_PIN, (struct sv_pin){ g.pin + 4096, 4096 });
	ENDS("not pinned", SV_OP_X_UNPIN, (struct sv_pin){ g.pin, 4096 });
	ENDS("not pinned", SV_OP_X_UNPIN, (struct sv_pin){ g.pin + 4096, MiB });
	EXPECT_EQ(CALL(&g.c, SV_OP_X_UNPIN, (struct sv_pin){ g.pin + MiB, MiB }),
		  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	ENDS("word", SV_OP_cuMemcpyAsync,
	     (struct sv_copy){ g.c.ctx, 1, g.c.window, g.c.window + 64, 8, g.pin + 1, 0 });
	ENDS("word", SV_OP_cuMemcpyAsync,
	     (struct sv_copy){ g.c.ctx, 1, g.c.window, g.c.window + 64, 8, 64, 0 });
	ENDS("word", SV_OP_cuMemcpyAsync,
	     (struct sv_copy){ g.c.ctx, 1, g.c.window, g.c.window + 64, 8, g.pin + MiB, 0 });
	ENDS("word", SV_OP_cuLaunchHostFunc, (struct sv_host_func){ g.c.ctx, 1, 1, 0 });
	ENDS("id", SV_OP_cuLaunchHostFunc, (struct sv_host_func){ g.c.ctx, 1, 0, g.pin });
	ENDS("not answered", SV_OP_X_NEXT_CALL, (struct {}){ });
	END;
}

TEST(addresses_that_are_not_its_own)
{
	BEGIN;
	struct client *c = &g.c;
	uint64_t own = c->window, host = address(c, g.pin);
	static const uint64_t bad[] = { 0, 8, 0x400000, 0x7ffff7dd0000, 1ull << 47, -8ull, -1ull };

	for (unsigned int i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		EXPECT_EQ(copy(c, 1, bad[i], host, 8), CUDA_ERROR_INVALID_VALUE);
		EXPECT_EQ(copy(c, 1, host, bad[i], 8), CUDA_ERROR_INVALID_VALUE);
	}
	EXPECT_EQ(copy(c, 1, own + 2 * GRANULE - 4, host, 8), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(copy(c, 1, own + 2 * GRANULE, host, 8), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(copy(c, 1, own, host, UINT64_MAX), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(copy(c, 1, own, host, UINT64_MAX - 64), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(copy(c, 1, own, host + MiB - 4, 8), CUDA_ERROR_INVALID_VALUE);
	/* What the proxy writes, and what lies behind the arena. */
	EXPECT_EQ(copy(c, 1, address(c, 0), own, 8), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(copy(c, 1, address(c, 64ull << 30), own, 8), CUDA_ERROR_INVALID_VALUE);
	/* Of the driver's own memory, in its window behind ours. */
	EXPECT_EQ(copy(c, 1, host, c->window + c->shared->window_len, 8), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(ctx_sync(c), 0);
	END;
}

/* Boxes are checked from their first byte to their last, whatever wraps on the way. */
TEST(boxes_of_copies)
{
	BEGIN;
	struct client *c = &g.c;
	struct sv_copy3d good = {
		.ctx = c->ctx, .stream = SV_STREAM_LEGACY, .width = 64, .height = 4, .depth = 2,
		.src = { .addr = c->window, .pitch = 64, .height = 8 },
		.dst = { .addr = address(c, g.pin), .pitch = 64, .height = 8 },
	};

#define BOX(want, ...) do { \
	struct sv_copy3d a = good; \
	__VA_ARGS__; \
	EXPECT_EQ(CALL(c, SV_OP_cuMemcpy3DAsync_v2, a), want); \
} while (0)
#define REFUSED(...) BOX(CUDA_ERROR_INVALID_VALUE, __VA_ARGS__)
	BOX(0, );
	REFUSED(a.dst.lod = 1);
	/* Rows and slices that have no distance from each other. */
	REFUSED(a.dst.pitch = 0);
	REFUSED(a.dst.pitch = 0, a.depth = 1);
	REFUSED(a.dst.pitch = 0, a.dst.y = 1, a.height = a.depth = 1);
	REFUSED(a.dst.height = 0);
	REFUSED(a.dst.height = 0, a.dst.z = 1, a.depth = 1);
	/* Sums and products that wrap. */
	REFUSED(a.dst.pitch = (1ull << 63) + 64, a.dst.height = 2, a.height = 1);
	REFUSED(a.dst.addr += 64, a.dst.x = -64ull);
	REFUSED(a.dst.addr += 64, a.dst.y = -1ull);
	REFUSED(a.dst.addr += 512, a.dst.z = -1ull);
	REFUSED(a.height = 1ull << 58);
	REFUSED(a.depth = 1ull << 55);
	REFUSED(a.width = -64ull);
	/* Behind what is pinned, and what is mapped, by each of what is added. */
	REFUSED(a.dst.x = MiB);
	REFUSED(a.dst.y = MiB / 64);
	REFUSED(a.dst.z = MiB / 512);
	REFUSED(a.width = MiB, a.dst.x = 64, a.height = a.depth = 1);
	REFUSED(a.height = MiB / 64 + 1, a.depth = 1);
	REFUSED(a.depth = MiB / 512 + 1);
	REFUSED(a.src.addr += 2 * GRANULE - 512);
	/* Boxes of nothing lie nowhere. */
	BOX(0, a.width = 0, a.dst.addr += MiB - 64);
	BOX(0, a.height = 0, a.dst.addr += MiB - 64);
	BOX(0, a.depth = 0, a.dst.addr += MiB - 64);
	EXPECT_EQ(ctx_sync(c), 0);

	good.word = g.pin + 1;
	ENDS("word", SV_OP_cuMemcpy3DAsync_v2, good);
	good.word = 0;
	good.ctx = c->ctx;
	good.dst.array = g.stream;
	ENDS("array and address", SV_OP_cuMemcpy3DAsync_v2, good);
	END;
}

TEST(kernels_stay_in_their_session)
{
	static const uint64_t bad[] = { 0, 0x400000, 0x7ffff7dd0000 };

	for (unsigned int i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		BEGIN;
		struct client *c = &g.c;
		uint64_t k = get_kernel(c, g.lib, "store", NULL), at = bad[i];

		EXPECT_EQ(launch(c, 1, k, 1, 1, &at, 8), 0);
		EXPECT_EQ(ctx_sync(c), CUDA_ERROR_ILLEGAL_ADDRESS);
		END;
	}
}

TEST(images)
{
	BEGIN;
	struct sv_image a = { .handle = new_handle(&g.c, SV_T_CUlibrary), .kind = SV_IMAGE_ARENA,
			      .off = g.pin, .len = 64 };
	struct { struct sv_image a; char path[64]; } f = { { .kind = SV_IMAGE_FILE, .len = 10,
		.handle = a.handle, .path_len = 64 }, "" };
	struct sv_image b = a;

	b.kind = 9;
	ENDS("kind", SV_OP_cuLibraryLoadData, b);
	b = a;
	b.off = 0;
	ENDS("place", SV_OP_cuLibraryLoadData, b);
	b = a;
	b.len = UINT64_MAX;
	ENDS("length", SV_OP_cuLibraryLoadData, b);
	b = a;
	b.n_opt = 1;
	ENDS("size", SV_OP_cuLibraryLoadData, b);
	b = a;
	b.info_cap = 4096;
	ENDS("logs", SV_OP_cuLibraryLoadData, b);
	b.log_off = 4096;
	ENDS("logs", SV_OP_cuLibraryLoadData, b);
	b = a;
	b.dev = 1;
	ENDS("place", SV_OP_cuLibraryLoadData, b);
	memset(f.path, 'x', sizeof(f.path));
	ENDS("path", SV_OP_cuLibraryLoadData, f);
	f.path[0] = '/';
	ENDS("path", SV_OP_cuLibraryLoadData, f);
	f.path[63] = 0;
	f.path[5] = 0;
	ENDS("path", SV_OP_cuLibraryLoadData, f);
	END;
}

/* A memory file's arena is there as far as it has been pinned; the proxy touches nothing behind that. */
TEST(an_arena_that_is_not_there)
{
	BEGIN;
	uint64_t far = ring_geometry(g.c.ring)->arena_len - GRANULE;
	struct sv_image a = { .handle = new_handle(&g.c, SV_T_CUlibrary), .kind = SV_IMAGE_ARENA,
			      .off = far, .len = 64 };

	ENDS("place", SV_OP_cuLibraryLoadData, a);
	ENDS("pages", SV_OP_X_PIN, (struct sv_pin){ far + GRANULE, GRANULE });
	EXPECT_EQ(CALL(&g.c, SV_OP_X_PIN, (struct sv_pin){ far, GRANULE }), 0);
	g.c.arena[far] = 1;
	EXPECT_EQ(CALL(&g.c, SV_OP_cuLibraryLoadData, a), CUDA_ERROR_INVALID_IMAGE);
	a.off -= GRANULE;
	EXPECT_EQ(CALL(&g.c, SV_OP_cuLibraryLoadData, a), CUDA_ERROR_INVALID_IMAGE);
	END;
}

TEST(images_that_lie_about_themselves)
{
	BEGIN;
	struct client *c = &g.c;
	uint64_t *p = (void *)(c->arena + g.pin);
	struct sv_image a = { .kind = SV_IMAGE_PARTS, .off = g.pin, .len = 4096 };
	char dir[] = "/tmp/uproxy-fifo-XXXXXX";
	struct { struct sv_image a; char path[64]; } f = {
		{ .kind = SV_IMAGE_FILE, .len = 10 }, "" };

	a.handle = new_handle(c, SV_T_CUlibrary);
	memset(p, 0, 4096);
	p[0] = 2;		/* no linked image, and one input of it */
	p[1] = 64;
	p[3] = 64;
	p[4] = 32;
	memcpy(p + 8, "\x50\xed\x55\xba\1\0\x10\0\0\0\1\0\0\0\0\0", 16);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryLoadData, a), CUDA_ERROR_INVALID_IMAGE);
	p[8] = 0x100001ba55ed50;	/* a fatbin without entries; the linked image lies */
	p[9] = 0;
	memcpy(p + 12, "\x50\xed\x55\xba\1\0\x10\0\0\0\1\0\0\0\0\0", 16);
	p[1] = 96;
	p[2] = 32;
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryLoadData, a), CUDA_ERROR_INVALID_IMAGE);
	p[2] = 0;
	/* No file, a directory, a pipe: none is waited for. */
	ASSERT_NE(mkdtemp(dir), NULL);
	f.a.handle = a.handle;
	f.a.path_len = sprintf(f.path, "/nowhere/at/all") + 1;
	EXPECT_EQ(call2(c, SV_OP_cuLibraryLoadData, &f.a, sizeof(f.a), f.path, f.a.path_len, NULL,
			0), CUDA_ERROR_FILE_NOT_FOUND);
	f.a.path_len = sprintf(f.path, "%s", dir) + 1;
	EXPECT_EQ(call2(c, SV_OP_cuLibraryLoadData, &f.a, sizeof(f.a), f.path, f.a.path_len, NULL,
			0), CUDA_ERROR_FILE_NOT_FOUND);
	f.a.path_len = sprintf(f.path, "%s/pipe", dir) + 1;
	ASSERT_EQ(mkfifo(f.path, 0600), 0);
	EXPECT_EQ(call2(c, SV_OP_cuLibraryLoadData, &f.a, sizeof(f.a), f.path, f.a.path_len, NULL,
			0), CUDA_ERROR_FILE_NOT_FOUND);
	unlink(f.path);
	rmdir(dir);
	/* A part whose end wraps around, and is within the image then. */
	p[4] = -56ull;
	EXPECT_TRUE(ends_session(&g, SV_OP_cuLibraryLoadData, &a, sizeof(a), "parts"));
	ASSERT_EQ(game_start(&g), 0);
	p = (void *)(c->arena + g.pin);
	a.handle = new_handle(c, SV_T_CUlibrary);
	a.off = g.pin;
	memset(p, 0, 4096);
	p[0] = 2;
	p[1] = 64;
	p[3] = 64;
	p[4] = 8192;
	EXPECT_TRUE(ends_session(&g, SV_OP_cuLibraryLoadData, &a, sizeof(a), "parts"));
	ASSERT_EQ(game_start(&g), 0);
	p = (void *)(c->arena + g.pin);
	a.handle = new_handle(c, SV_T_CUlibrary);
	a.off = g.pin;
	memset(p, 0, 4096);
	p[0] = 1;		/* a linked image alone is none of parts */
	p[1] = 64;
	EXPECT_TRUE(ends_session(&g, SV_OP_cuLibraryLoadData, &a, sizeof(a), "parts"));
}

TEST(places_for_descriptions)
{
	BEGIN;
	struct { struct sv_by_name a; char name[8]; } n = {
		{ .ctx = g.c.ctx, .from = g.lib, .handle = new_handle(&g.c, SV_T_CUkernel),
		  .info = g.pin, .cap = 4096, .name_len = 6 }, "count" };
	__typeof__(n) m = n;

	m.a.info = 4096;
	ENDS("place", SV_OP_cuLibraryGetKernel, m);
	m = n;
	m.a.info += 4;
	ENDS("place", SV_OP_cuLibraryGetKernel, m);
	m = n;
	m.a.name_len = 5;
	ENDS("name", SV_OP_cuLibraryGetKernel, m);
	m = n;
	m.name[2] = 0;
	ENDS("name", SV_OP_cuLibraryGetKernel, m);
	m = n;
	m.name[7] = 1;
	ENDS("name", SV_OP_cuLibraryGetKernel, m);
	ENDS("place", SV_OP_cuLibraryEnumerateKernels, (struct sv_enumerate){ g.lib, 0, 4096, 0 });
	ENDS("place", SV_OP_X_FUNC_INFO,
	     (struct sv_func_info_req){ g.c.ctx, g.kernel, 0, 4096, 0 });
	for (int i = 0; i < 4; i++) {
		static const uint16_t op[] = {
			SV_OP_cuTensorMapEncodeTiled, SV_OP_cuTensorMapEncodeIm2col,
			SV_OP_cuTensorMapEncodeIm2colWide, SV_OP_cuTensorMapReplaceAddress,
		};

		ENDS("place", op[i], (struct sv_tensor_map){ .ctx = g.c.ctx, .off = 0, .rank = 3 });
		ENDS("place", op[i],
		     (struct sv_tensor_map){ .ctx = g.c.ctx, .off = UINT64_MAX - 127, .rank = 3 });
		ENDS("rank", op[i], (struct sv_tensor_map){ .ctx = g.c.ctx, .off = g.pin, .rank = 6 });
		ENDS("rank", op[i], (struct sv_tensor_map){ .ctx = g.c.ctx, .off = g.pin, .rank = 3, .pad = 1 });
		ENDS("context", op[i], (struct sv_tensor_map){ .ctx = g.kernel, .off = g.pin, .rank = 3 });
		ENDS("size", op[i], (struct sv_sync_on){ .ctx = g.c.ctx });
	}
	ENDS("attributes of clusters", SV_OP_cuOccupancyMaxActiveClusters,
	     (struct sv_clusters){ .ctx = g.c.ctx, .function = g.kernel, .given = 16 });
	/* Too little room is an error, not the end, and leaves the handle free. */
	n.a.cap = 16;
	EXPECT_EQ(call2(&g.c, SV_OP_cuLibraryGetKernel, &n, sizeof(n), NULL, 0, NULL, 0),
		  CUDA_ERROR_OUT_OF_MEMORY);
	n.a.cap = 4096;
	EXPECT_EQ(call2(&g.c, SV_OP_cuLibraryGetKernel, &n, sizeof(n), NULL, 0, NULL, 0), 0);
	END;
}

/* The description of an image changes while it is read. */
static void *scribble(void *arg)
{
	struct game *g = arg;
	volatile uint64_t *p = (void *)(g->c.arena + g->pin);
	uint32_t x = 1;

	while (!__atomic_load_n(&g->stream, __ATOMIC_RELAXED))
		;
	for (int i = 0; i < 20000000 && g->stream != 1; i++) {
		x = x * 1664525 + 1013904223;
		p[x >> 8 & 15] = x & 1 ? 1 : x & 2 ? 64 : x;
	}
	return NULL;
}

TEST(races_with_what_it_has_written)
{
	BEGIN;
	struct client *c = &g.c;
	struct sv_image a = { .kind = SV_IMAGE_PARTS, .off = g.pin, .len = 4096 };
	pthread_t t;
	int rc;

	memset(c->arena + g.pin, 0, 4096);
	g.stream = 2;
	pthread_create(&t, NULL, scribble, &g);
	for (int i = 0; i < 2000; i++) {
		a.handle = new_handle(c, SV_T_CUlibrary);
		rc = CALL(c, SV_OP_cuLibraryLoadData, a);
		if (rc == -EPIPE)
			break;
	}
	g.stream = 1;
	pthread_join(t, NULL);
	rc = client_end(c);
	EXPECT_TRUE(rc == 0 || rc == 1);
}

/* Unloading while others work with it: no order of records crashes the proxy. */
static void *prepare(void *arg)
{
	struct game *g = arg;
	struct sv_prepare a = { g->c.ctx, g->kernel };

	for (int i = 0; i < 200; i++)
		if (call2(&g->c, SV_OP_X_PREPARE, &a, sizeof(a), NULL, 0, NULL, 0) < 0)
			break;
	return NULL;
}

TEST(unloads_what_is_in_use)
{
	BEGIN;
	struct client *c = &g.c;
	pthread_t t;
	int rc;

	for (int i = 0; i < 20; i++) {
		pthread_create(&t, NULL, prepare, &g);
		usleep(i * 100);
		EXPECT_EQ(launch(c, SV_STREAM_LEGACY, g.kernel, 1, 1, &c->window, 8), 0);
		EXPECT_EQ(SEND(c, SV_OP_cuLibraryUnload, (struct sv_image_end){ g.lib }), 0);
		pthread_join(t, NULL);
		g.lib = load_text(c, kernels, &rc);
		ASSERT_EQ(rc, 0);
		g.kernel = get_kernel(c, g.lib, "count", NULL);
	}
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 0);
	END;
}

TEST(floods_of_requests)
{
	BEGIN;
	struct client *c = &g.c;
	struct ring_ticket t[200];
	int rc = 0, n = 0;

	for (; n < 200; n++) {
		rc = ring_request(c->ring, &t[n], SV_OP_X_NEXT_CALL, NULL, 0, NULL, 0);
		if (rc)
			break;
	}
	/* The session may have ended while it still asks. */
	EXPECT_TRUE(!rc || rc == -EPIPE);
	for (int i = 0; i < 5000 && ctx_sync(c) >= 0; i++)
		usleep(1000);
	EXPECT_NE(strstr((const char *)c->shared->why, "too many requests"), NULL);
	for (int i = 0; i < n; i++)
		ring_await(c->ring, &t[i], NULL, NULL, 0, NULL, 0);
	EXPECT_EQ(client_end(c), 1);
}

TEST_HARNESS_MAIN
