// SPDX-License-Identifier: Apache-2.0
/*
 * session.c - an honest client: connecting, memory, copies, kernels, streams, events, callbacks
 */
#include "client.h"

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

TEST_HARNESS_MAIN
