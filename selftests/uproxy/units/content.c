// SPDX-License-Identifier: Apache-2.0
/*
 * content.c - device contents of a session are saved in a store and restored in another process
 *
 * Each test is a sequence of lives of one session: made, filled, dumped; made again, restored,
 * compared. Objects are made by the same records in the same order, as in a replay.
 */
#include "local.h"

#include <zstd.h>

#include "content.h"
#include "graph.h"
#include "digest.h"
#include "image_i.h"

#define MiB (1ull << 20)
#define GiB (1ull << 30)

/* What lives on between the children. */
struct shared {
	char dir[64];
	struct store_ref device, observed, channel, arena;
	uint64_t stored, changed;
	struct content_stats stats;
	uint64_t at[32];
	bool unseen;		/* what is observed is not compared */
	int rc;
	struct why why;
};

static struct shared *sh;

FIXTURE(content) {
	char dir[64];
};

FIXTURE_SETUP(content)
{
	struct why why = { 0 };

	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE((void *)sh, MAP_FAILED);
	strcpy(sh->dir, "/tmp/uproxy-content-XXXXXX");
	ASSERT_NE(mkdtemp(sh->dir), NULL);
	ASSERT_EQ(store_create(sh->dir, NULL, &why), 0) {
		TH_LOG("%s", why.text);
	}
}

FIXTURE_TEARDOWN(content)
{
	char cmd[128];

	snprintf(cmd, sizeof(cmd), "rm -rf %s", sh->dir);
	EXPECT_EQ(system(cmd), 0);
}

/* ------------------------------------------------------------------------------ what there is */

static const char module_text[] =
	".version 8.0\n.target sm_75\n.address_size 64\n"
	"/* .global .u32 not_this; */ // .global .u32 nor_this;\n"
	".visible .global .align 4 .u32 counter = 7;\n"
	".global .align 8 .b8 hidden[24] = {1, 2, 3};\n"
	".const .align 4 .f32 factors[5] = {0f3F800000, 0f40000000};\n"
	".visible .const .align 16 .b8 table[5000];\n"
	".weak .global .align 8 .v2 .u32 pair;\n"
	".global .u32 other;\n"
	".visible .global .attribute(.managed) .align 8 .b8 both[40];\n"
	".global .align 1 .b8 text[] = {34, 59, 123, 0};\n"
	".visible .entry work(.param .u64 .ptr .global .align 4 p)\n{\n"
	".reg .b32 %r<4>; .reg .b64 %d<4>;\n"
	"ld.param.u64 %d1, [p]; ld.global.u32 %r1, [counter]; st.global.u32 [%d1], %r1;\n"
	"add.u32 %r2, %r1, 1; st.global.u32 [counter], %r2; ret;\n}\n";

static const char *const names[] = { "counter", "hidden", "factors", "table", "pair", "other",
				     "both", "text" };

static const char packed_text[] =
	".version 8.0\n.target sm_75\n.address_size 64\n"
	".visible .global .align 4 .b8 in_fatbin[100];\n"
	".visible .entry nothing()\n{\nret;\n}\n";

/* The device's part of a session, the same in each life. */
struct made {
	uint64_t big, high, sparse; /* window memory: 24 MiB, 2 MiB far away, 128 MiB hardly used */
	uint64_t twice, again, none;	/* mappings of cuMemCreate's memory */
	uint64_t loose;			/* memory that is mapped nowhere: its handle */
	uint64_t lib, packed, module;
	uint64_t array[6], mipmap, event[3];
};

#define SPARSE (128 * MiB)

static void make_memory(struct local *l, struct made *m)
{
	uint64_t a = local_handle(l, SV_T_CUmemGenericAllocationHandle_v1);
	uint64_t c = local_handle(l, SV_T_CUmemGenericAllocationHandle_v1);

	m->big = l->window;
	m->sparse = l->window + GiB;
	m->high = l->window + 512 * GiB;
	m->twice = l->window + 4 * GiB;
	m->again = l->window + 5 * GiB;
	m->none = l->window + 6 * GiB;
	m->loose = local_handle(l, SV_T_CUmemGenericAllocationHandle_v1);
	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ m->big, 24 * MiB }), 0);
	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ m->high, 2 * MiB }), 0);
	CHECK_EQ(SEND(l, SV_OP_X_MAP_PIECES,
		      (struct sv_pieces){ m->sparse, SPARSE, 48 * MiB }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemCreate, (struct sv_mem_create){ a, 6 * MiB, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemCreate, (struct sv_mem_create){ m->loose, 2 * MiB, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemCreate, (struct sv_mem_create){ c, 2 * MiB, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemMap, (struct sv_mem_map){ m->twice, 6 * MiB, a, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemMap, (struct sv_mem_map){ m->again, 6 * MiB, a, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemMap, (struct sv_mem_map){ m->none, 2 * MiB, c, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemSetAccess, (struct sv_mem_access){ m->twice, 6 * MiB, 3, 0 }),
		 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemSetAccess, (struct sv_mem_access){ m->again, 6 * MiB, 1, 0 }),
		 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemRelease, (struct sv_mem_release){ c }), 0);
}

/* A fatbin whose only entry is zstd's. */
static size_t fatbin(uint8_t *out, const char *text)
{
	size_t len = strlen(text) + 1, packed = ZSTD_compress(out + 80, 4096, text, len, 3);
	uint64_t padded = (packed + 7) & ~7ull, size = 64 + padded, flags = 0x8000;

	memset(out, 0, 80);
	memcpy(out, &(uint32_t){ 0xba55ed50u }, 4);
	memcpy(out + 4, &(uint16_t){ 1 }, 2);
	memcpy(out + 6, &(uint16_t){ 16 }, 2);
	memcpy(out + 8, &size, 8);
	memcpy(out + 16, &(uint16_t){ 1 }, 2);
	memcpy(out + 20, &(uint32_t){ 64 }, 4);
	memcpy(out + 24, &padded, 8);
	memcpy(out + 32, &(uint32_t){ packed }, 4);
	memcpy(out + 44, &(uint32_t){ 75 }, 4);
	memcpy(out + 56, &flags, 8);
	memcpy(out + 72, &len, 8);
	return 16 + size;
}

static void make_images(struct local *l, struct made *m)
{
	uint8_t room[8192] = { 0 };
	uint64_t at;

	m->lib = local_load(l, module_text, sizeof(module_text), SV_IMAGE_ARENA);
	m->packed = local_load(l, room, fatbin(room, packed_text), SV_IMAGE_ARENA);
	image_seen(&l->s, m->lib, l->ctx);
	image_seen(&l->s, m->packed, l->ctx);
	at = l->arena;
	l->arena += 4096 * 2;
	memcpy(arena_at(&l->s, at), module_text, sizeof(module_text));
	m->module = local_handle(l, SV_T_CUmodule);
	CHECK_EQ(SEND(l, SV_OP_cuModuleLoadDataEx,
		      (struct sv_image){ .ctx = l->ctx, .handle = m->module, .kind = SV_IMAGE_ARENA,
					 .off = at, .len = sizeof(module_text) }), 0);
}

static const CUDA_ARRAY3D_DESCRIPTOR arrays[6] = {
	{ 1000, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0 },
	{ 123, 77, 0, CU_AD_FORMAT_FLOAT, 4, 0 },
	{ 33, 17, 9, CU_AD_FORMAT_HALF, 2, 0 },
	{ 64, 0, 5, CU_AD_FORMAT_SIGNED_INT32, 1, CUDA_ARRAY3D_LAYERED },
	{ 31, 12, 3, CU_AD_FORMAT_UNSIGNED_INT16, 4,
	  CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST },
	{ 16, 16, 6, CU_AD_FORMAT_UNORM_INT8X4, 4, CUDA_ARRAY3D_CUBEMAP },
};

static void make_arrays(struct local *l, struct made *m)
{
	struct sv_cuMipmappedArrayCreate mip = { .ctx = l->ctx, .numMipmapLevels = 5,
		.pMipmappedArrayDesc = { 40, 24, 0, CU_AD_FORMAT_FLOAT, 2, 0 } };

	for (int i = 0; i < 6; i++) {
		m->array[i] = local_handle(l, SV_T_CUarray);
		CHECK_EQ(SEND(l, SV_OP_cuArray3DCreate_v2,
			      (struct sv_cuArray3DCreate_v2){ l->ctx, m->array[i], arrays[i] }), 0);
	}
	m->mipmap = mip.pHandle = local_handle(l, SV_T_CUmipmappedArray);
	CHECK_EQ(SEND(l, SV_OP_cuMipmappedArrayCreate, mip), 0);
	/* A level as a program has it: saved once. */
	CHECK_EQ(SEND(l, SV_OP_cuMipmappedArrayGetLevel,
		      (struct sv_cuMipmappedArrayGetLevel){ .ctx = l->ctx,
							    .level = 2,
							    .pLevelArray =
								    local_handle(l, SV_T_CUarray),
							    .hMipmappedArray = m->mipmap }),
		 0);
	for (int i = 0; i < 3; i++) {
		m->event[i] = local_handle(l, SV_T_CUevent);
		CHECK_EQ(SEND(l, SV_OP_cuEventCreate,
			      (struct sv_cuEventCreate){ .ctx = l->ctx, .phEvent = m->event[i] }),
			 0);
	}
}

static float elapsed(struct local *l, uint64_t a, uint64_t b, int want)
{
	struct sv_cuEventElapsedTime e = { a, b };
	uint8_t reply[64] = { 0 };
	float ms;

	CHECK_EQ(local_send(l, SV_OP_cuEventElapsedTime_v2, &e, sizeof(e), NULL, 0, reply), want);
	memcpy(&ms, reply, sizeof(ms));
	return ms;
}

static void record(struct local *l, uint64_t event)
{
	CHECK_EQ(SEND(l, SV_OP_cuEventRecord,
		      (struct sv_cuEventRecord){ l->ctx, event, SV_STREAM_LEGACY }), 0);
	CHECK_EQ(l->s.hal.drv.cuCtxSynchronize(), 0);
}

static struct local *make(struct made *m)
{
	struct local *l = local_open();

	make_memory(l, m);
	make_images(l, m);
	make_arrays(l, m);
	return l;
}

/* ------------------------------------------------------------------------------ patterns */

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 31) * 0x7fb5d329728ea185ull;
	x = (x ^ x >> 27) * 0x81dadef4bc2dd44dull;
	return x ^ x >> 33;
}

/* Write a pattern of this seed, or compare with it. */
static void pattern(uint8_t *p, uint64_t len, uint64_t seed, bool check)
{
	for (uint64_t i = 0; i < len; i++) {
		uint8_t want = mix(seed * 1000003 + i / 8) >> i % 8 * 8;

		if (!check)
			p[i] = want;
		else if (p[i] != want)
			CHECK_EQ(p[i], want);
	}
}

static void device(struct local *l, uint64_t va, uint64_t len, uint64_t seed, bool check)
{
	const struct cuda_driver *d = &l->s.hal.drv;
	uint8_t *p = malloc(len);

	CHECK(p);
	pattern(p, len, seed, false);
	if (check) {
		memset(p, 0xa5, len);
		CHECK_EQ(d->cuMemcpyDtoH_v2(p, va, len), 0);
		pattern(p, len, seed, true);
	} else {
		CHECK_EQ(d->cuMemcpyHtoD_v2(va, p, len), 0);
	}
	free(p);
}

/* Memory without an address is given one for the moment. */
static void loose(struct local *l, struct made *m, uint64_t seed, bool check)
{
	const struct cuda_driver *d = &l->s.hal.drv;
	CUdeviceptr va;
	uint64_t real;

	CHECK_EQ(sv_real(&l->s, SV_T_CUmemGenericAllocationHandle_v1, m->loose, 0, &real), 0);
	CHECK_EQ(d->cuMemAddressReserve(&va, 2 * MiB, 0, 0, 0), 0);
	CHECK_EQ(d->cuMemMap(va, 2 * MiB, 0, real, 0), 0);
	CHECK_EQ(hal_access(&l->s.hal, va, 2 * MiB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), 0);
	device(l, va, 2 * MiB, seed, check);
	CHECK_EQ(hal_unmap(&l->s.hal, va, 2 * MiB), 0);
	CHECK_EQ(d->cuMemAddressFree(va, 2 * MiB), 0);
}

static void memory(struct local *l, struct made *m, uint64_t seed, bool check)
{
	device(l, m->big, 24 * MiB - 4096, seed + 1, check);
	device(l, m->high + 8192, 100000, seed + 2, check);
	device(l, m->sparse + 100 * MiB, 12288, seed + 3, check);
	device(l, m->twice, 6 * MiB, seed + 4, check);
	if (check)
		device(l, m->again, 6 * MiB, seed + 4, true);
	CHECK_EQ(hal_access(&l->s.hal, m->none, 2 * MiB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), 0);
	device(l, m->none, 2 * MiB, seed + 5, check);
	CHECK_EQ(hal_access(&l->s.hal, m->none, 2 * MiB, CU_MEM_ACCESS_FLAGS_PROT_NONE), 0);
	loose(l, m, seed + 6, check);
}

static void variables(struct local *l, struct made *m, uint64_t seed, bool check)
{
	const struct cuda_driver *d = &l->s.hal.drv;
	uint64_t real[3];
	CUdeviceptr at;
	size_t len;

	CHECK_EQ(sv_real(&l->s, SV_T_CUlibrary, m->lib, 0, &real[0]), 0);
	CHECK_EQ(sv_real(&l->s, SV_T_CUmodule, m->module, 0, &real[1]), 0);
	CHECK_EQ(sv_real(&l->s, SV_T_CUlibrary, m->packed, 0, &real[2]), 0);
	for (unsigned int i = 0; i < 8; i++) {
		CHECK_EQ(d->cuLibraryGetGlobal(&at, &len, (CUlibrary)real[0], names[i]), 0);
		device(l, at, len, seed + 100 + i, check);
		CHECK_EQ(d->cuModuleGetGlobal_v2(&at, &len, (CUmodule)real[1], names[i]), 0);
		device(l, at, len, seed + 200 + i, check);
	}
	CHECK_EQ(d->cuLibraryGetGlobal(&at, &len, (CUlibrary)real[2], "in_fatbin"), 0);
	device(l, at, len, seed + 300, check);
}

static void array(struct local *l, CUarray a, uint64_t seed, bool check)
{
	const struct cuda_driver *d = &l->s.hal.drv;
	CUDA_ARRAY3D_DESCRIPTOR desc;
	CUDA_MEMCPY3D c = { 0 };
	unsigned int texel;
	uint8_t *p;

	CHECK_EQ(d->cuArray3DGetDescriptor_v2(&desc, a), 0);
	texel = desc.NumChannels * (desc.Format == CU_AD_FORMAT_FLOAT ||
				    desc.Format == CU_AD_FORMAT_SIGNED_INT32 ? 4 :
				    desc.Format == CU_AD_FORMAT_HALF ||
				    desc.Format == CU_AD_FORMAT_UNSIGNED_INT16 ? 2 : 1);
	c.WidthInBytes = desc.Width * texel;
	c.Height = desc.Height ?: 1;
	c.Depth = desc.Depth ?: 1;
	p = malloc(c.WidthInBytes * c.Height * c.Depth);
	pattern(p, c.WidthInBytes * c.Height * c.Depth, seed, false);
	c.srcMemoryType = check ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
	c.dstMemoryType = check ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
	*(check ? &c.srcArray : &c.dstArray) = a;
	*(check ? &c.dstHost : (void **)&c.srcHost) = p;
	c.srcPitch = c.dstPitch = c.WidthInBytes;
	c.srcHeight = c.dstHeight = c.Height;
	if (check)
		memset(p, 0xa5, c.WidthInBytes * c.Height * c.Depth);
	CHECK_EQ(d->cuMemcpy3D_v2(&c), 0);
	pattern(p, c.WidthInBytes * c.Height * c.Depth, seed, check);
	free(p);
}

static void all_arrays(struct local *l, struct made *m, uint64_t seed, bool check)
{
	uint64_t real;
	CUarray a;

	for (unsigned int i = 0; i < 6; i++) {
		CHECK_EQ(sv_real(&l->s, SV_T_CUarray, m->array[i], 0, &real), 0);
		array(l, (CUarray)real, seed + 400 + i, check);
	}
	CHECK_EQ(sv_real(&l->s, SV_T_CUmipmappedArray, m->mipmap, 0, &real), 0);
	for (unsigned int i = 0; i < 5; i++) {
		CHECK_EQ(l->s.hal.drv.cuMipmappedArrayGetLevel(&a, (CUmipmappedArray)real, i), 0);
		array(l, a, seed + 500 + i, check);
	}
}

static void everything(struct local *l, struct made *m, uint64_t seed, bool check)
{
	CHECK_EQ(sv_enter(&l->s, l->ctx), 0);
	memory(l, m, seed, check);
	variables(l, m, seed, check);
	all_arrays(l, m, seed, check);
}

/* ------------------------------------------------------------------------------ dump, restore */

static struct store *open_store(unsigned int flags)
{
	struct why why = { 0 };
	struct store *st;
	int rc = store_open(&st, sh->dir, flags, &why);

	if (rc)
		dprintf(local_err, "# %s\n", why.text);
	CHECK_EQ(rc, 0);
	return st;
}

static void dump(struct local *l)
{
	struct store *st = open_store(STORE_RW);
	struct store_writer_stats stats;
	struct store_writer *w;

	CHECK_EQ(store_writer_open(st, 0, &w), 0);
	why_clear(&sh->why);
	sh->rc = content_check(&l->s, &sh->why);
	if (!sh->rc)
		sh->rc = content_dump(&l->s, st, w, &sh->device, NULL, &sh->stats, &sh->why);
	if (!sh->rc)
		sh->rc = observe_dump(&l->s, w, &sh->observed, &sh->why);
	CHECK_EQ(store_writer_flush(w), 0);
	store_writer_stats(w, &stats);
	sh->stored = stats.stored;
	store_writer_close(w);
	store_close(st);
	if (sh->rc)
		dprintf(local_err, "# dump: %s\n", sh->why.text);
}

static void restore(struct local *l)
{
	struct store *st = open_store(0);

	why_clear(&sh->why);
	sh->rc = sh->unseen ? 0 :
		 observe_compare(&l->s, st, &sh->observed, &sh->why);
	if (!sh->rc)
		sh->rc = content_restore(&l->s, st, &sh->device, NULL, &sh->stats, &sh->why);
	store_close(st);
}

/* The driver says that the host may read device memory, and has no softcuda_own_memory, as NVIDIA's. */
static bool like_nvidia;

static void fill_and_dump(void *arg)
{
	struct made m;
	struct local *l = make(&m);

	everything(l, &m, 1000, false);
	if (arg)
		setenv("SINGVGPU_CONTENT", arg, 1);
	if (like_nvidia)
		l->s.hal.own_memory = NULL;
	dump(l);
	CHECK_EQ(sh->rc, 0);
	everything(l, &m, 1000, true);	/* nothing was changed */
}

static void restore_and_look(void *arg)
{
	uint8_t *p = malloc(SPARSE / 4), *zero = calloc(1, SPARSE / 4);
	struct made m;
	struct local *l = make(&m);

	/* What is not new must go: a replay may leave something. */
	everything(l, &m, 77, false);
	device(l, m.sparse, 8192, 5, false);
	if (arg)
		setenv("SINGVGPU_CONTENT", arg, 1);
	restore(l);
	if (sh->rc)
		dprintf(local_err, "# restore: %s\n", sh->why.text);
	CHECK_EQ(sh->rc, 0);
	everything(l, &m, 1000, true);
	CHECK_EQ(l->s.hal.drv.cuMemcpyDtoH_v2(p, m.sparse, SPARSE / 4), 0);
	CHECK_EQ(memcmp(p, zero, SPARSE / 4), 0);
	free(p);
	free(zero);
}

TEST_F(content, comes_back_in_another_process)
{
	ASSERT_EQ(local_child(fill_and_dump, NULL), 0);
	EXPECT_STREQ(sh->stats.digests, "direct");
	EXPECT_EQ(local_child(restore_and_look, NULL), 0);
}

/* On an H200 such a read faults, whatever the driver says. */
TEST_F(content, the_host_is_not_trusted_to_read_the_device)
{
	like_nvidia = true;
	ASSERT_EQ(local_child(fill_and_dump, NULL), 0);
	EXPECT_STRNE(sh->stats.digests, "direct");
	EXPECT_EQ(local_child(restore_and_look, NULL), 0);
}

TEST_F(content, comes_back_through_pinned_buffers)
{
	ASSERT_EQ(local_child(fill_and_dump, "staged"), 0);
	EXPECT_EQ(local_child(restore_and_look, "staged"), 0);
	/* Each way writes the same object. */
	EXPECT_EQ(local_child(restore_and_look, NULL), 0);
}

/* Two events of before, one never recorded; then one of them anew. */
static void times_dump(void *arg)
{
	struct made m;
	struct local *l = make(&m);
	float was;

	record(l, m.event[0]);
	usleep(50000);
	record(l, m.event[1]);
	was = elapsed(l, m.event[0], m.event[1], 0);
	CHECK(was >= 50);
	usleep(30000);
	memcpy(arg, &was, sizeof(was));
	dump(l);
	CHECK_EQ(sh->rc, 0);
}

static void times_restore(void *arg)
{
	struct made m;
	struct local *l = make(&m);
	float was, ms;

	memcpy(&was, arg, sizeof(was));
	usleep(200000);
	restore(l);
	CHECK_EQ(sh->rc, 0);
	ms = elapsed(l, m.event[0], m.event[1], 0);
	CHECK(ms > was - 0.05f && ms < was + 0.05f);
	ms = elapsed(l, m.event[1], m.event[0], 0);
	CHECK(ms < -was + 0.05f && ms > -was - 0.05f);
	elapsed(l, m.event[1], m.event[2], CUDA_ERROR_INVALID_HANDLE);
	/* The time between dump and restore does not count; that before and after does. */
	record(l, m.event[2]);
	ms = elapsed(l, m.event[1], m.event[2], 0);
	CHECK(ms >= 30);
	was = elapsed(l, m.event[0], m.event[2], 0);
	CHECK(was - ms > 49);
	/* Recorded again: it is an event of now. */
	record(l, m.event[0]);
	CHECK(elapsed(l, m.event[2], m.event[0], 0) >= 0);
	CHECK(elapsed(l, m.event[1], m.event[0], 0) >= ms);
	/* And once more through a dump. */
	dump(l);
	CHECK_EQ(sh->rc, 0);
	memcpy(arg, &was, sizeof(was));
}

static void times_again(void *arg)
{
	struct made m;
	struct local *l = make(&m);

	(void)arg;
	restore(l);
	CHECK_EQ(sh->rc, 0);
	/* 1 is of the first life, 2 and 0 of the second. */
	CHECK(elapsed(l, m.event[1], m.event[2], 0) >= 30);
	CHECK(elapsed(l, m.event[2], m.event[0], 0) >= 0);
}

TEST_F(content, events_keep_the_time_between_them)
{
	void *p = sh->at;

	ASSERT_EQ(local_child(times_dump, p), 0);
	ASSERT_EQ(local_child(times_restore, p), 0);
	EXPECT_EQ(local_child(times_again, p), 0);
}

TEST_F(content, comes_back_by_digests)
{
	ASSERT_EQ(local_child(fill_and_dump, "digests"), 0);
	EXPECT_EQ(local_child(restore_and_look, "digests"), 0);
}

/* ------------------------------------------------------------------------------ sizes */

#define HUGE_ONE (2 * GiB)

static long shmem_kb(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	long kb = -1;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "RssShmem: %ld", &kb) == 1)
			break;
	if (f)
		fclose(f);
	return kb;
}

static void nothing_dump(void *arg)
{
	struct local *l = local_open();
	long before;

	(void)arg;
	dump(l);			/* a session without anything */
	CHECK_EQ(sh->rc, 0);
	CHECK_EQ(sh->stats.bytes, 0);
	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ l->window + GiB, HUGE_ONE }), 0);
	device(l, l->window + 2 * GiB + 4096, 4096, 1, false);
	before = shmem_kb();
	dump(l);
	CHECK_EQ(sh->rc, 0);
	CHECK_EQ(sh->stats.bytes, HUGE_ONE);
	CHECK(shmem_kb() - before < 65536);	/* holes were not filled by looking at them */
	CHECK(sh->stored < 100000);
}

static void nothing_restore(void *arg)
{
	struct local *l = local_open();
	long before = shmem_kb();

	(void)arg;
	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ l->window + GiB, HUGE_ONE }), 0);
	restore(l);
	CHECK_EQ(sh->rc, 0);
	CHECK(shmem_kb() - before < 65536);
	device(l, l->window + 2 * GiB + 4096, 4096, 1, true);
}

TEST_F(content, what_is_not_there_costs_nothing)
{
	ASSERT_EQ(local_child(nothing_dump, NULL), 0);
	EXPECT_EQ(local_child(nothing_restore, NULL), 0);
}

#define MANY	 (256 * MiB)
#define LANE_MIN (64 * MiB)	/* as move.c has it */

/* A dump, then one after 3 % of the pages have changed, scattered. */
static void change_some(void *arg)
{
	const struct cuda_driver *d;
	struct local *l = local_open();
	uint64_t page[512], changed = 0, copied;
	uint8_t *want;

	d = &l->s.hal.drv;
	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ l->window, MANY }), 0);
	for (uint64_t at = 0; at < MANY; at += 4096) {
		for (int i = 0; i < 512; i++)
			page[i] = mix(at + i);
		CHECK_EQ(d->cuMemcpyHtoD_v2(l->window + at, page, 4096), 0);
	}
	setenv("SINGVGPU_CONTENT", arg, 1);
	dump(l);
	CHECK_EQ(sh->rc, 0);
	CHECK(sh->stored > MANY);
	for (uint64_t at = 0; at < MANY; at += 4096)
		if (mix(at * 77) % 100 < 3) {
			page[0] = ~at;
			CHECK_EQ(
				d->cuMemcpyHtoD_v2(l->window + at + 8 * (at / 4096 % 500), page, 8),
				0);
			changed += 4096;
		}
	dump(l);
	CHECK_EQ(sh->rc, 0);
	sh->changed = changed;
	copied = sh->stats.copied;
	dprintf(local_err, "# %s: %llu changed, %llu stored, %llu copied\n", (char *)arg,
		(unsigned long long)changed, (unsigned long long)sh->stored,
		(unsigned long long)copied);
	CHECK(sh->stored <= changed * 103 / 100);
	if (!strcmp(arg, "digests")) {
		CHECK_EQ(sh->stats.known, MANY - changed);
		CHECK(copied < 2 * changed);
	}
	want = malloc(2 * MANY);
	CHECK_EQ(d->cuMemcpyDtoH_v2(want, l->window, MANY), 0);
	CHECK_EQ(d->cuMemsetD8Async(l->window, 0xee, MANY, NULL), 0);
	CHECK_EQ(d->cuCtxSynchronize(), 0);
	restore(l);
	CHECK_EQ(sh->rc, 0);
	CHECK_EQ(d->cuMemcpyDtoH_v2(want + MANY, l->window, MANY), 0);
	CHECK_EQ(memcmp(want, want + MANY, MANY), 0);
	free(want);
}

TEST_F(content, a_second_dump_stores_what_has_changed)
{
	EXPECT_EQ(local_child(change_some, "direct"), 0);
}

TEST_F(content, a_second_dump_copies_what_has_changed)
{
	EXPECT_EQ(local_child(change_some, "digests"), 0);
}

TEST_F(content, a_second_dump_through_buffers_stores_what_has_changed)
{
	EXPECT_EQ(local_child(change_some, "staged"), 0);
}

/* ------------------------------------------------------------------------------ refusals */

static void restore_refused(void *arg)
{
	struct made m;
	struct local *l = make(&m);

	(void)arg;
	restore(l);
}

/* Flip bits all over the segments. */
static int corrupt(void)
{
	char cmd[512];

	snprintf(
		cmd, sizeof(cmd),
		"cd %s && find . -type f -size +1M | while read -r f; do "
		"chmod u+w $f; s=$(stat -c %%s $f); for k in 1 2 3 4 5 6 7 8; do "
		"printf '\\377\\0\\377' | dd of=$f bs=1 seek=$((s * k / 9)) conv=notrunc status=none; "
		"done; done",
		sh->dir);
	return system(cmd);
}

TEST_F(content, refuses_a_damaged_store)
{
	ASSERT_EQ(local_child(fill_and_dump, NULL), 0);
	ASSERT_EQ(corrupt(), 0);
	ASSERT_EQ(local_child(restore_refused, NULL), 0);
	EXPECT_TRUE(sh->rc == -EBADMSG || sh->rc == -ENODATA) {
		TH_LOG("%d: %s", sh->rc, sh->why.text);
	}
	EXPECT_NE(sh->why.text[0], 0);
}

/* Something else has been made. */
static void other(void *arg)
{
	struct made m;
	struct local *l;

	switch (*(int *)arg) {
	case 0:			/* less memory */
		l = local_open();
		make_images(l, &m);
		make_arrays(l, &m);
		break;
	case 1:			/* more memory */
		l = make(&m);
		CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ l->window + 900 * GiB, 2 * MiB }),
			 0);
		break;
	case 2:			/* another array */
		l = make(&m);
		CHECK_EQ(SEND(l, SV_OP_cuArray3DCreate_v2,
			      (struct sv_cuArray3DCreate_v2){ l->ctx, local_handle(l, SV_T_CUarray),
							      arrays[0] }), 0);
		break;
	default:		/* an image too few */
		l = make(&m);
		CHECK_EQ(SEND(l, SV_OP_cuModuleUnload, (struct sv_image_end){ m.module }), 0);
	}
	restore(l);
}

TEST_F(content, refuses_what_does_not_fit_by_name)
{
	static const char *const words[] = { "device memory at", "device memory at", "an array of",
					     "variable" };

	ASSERT_EQ(local_child(fill_and_dump, NULL), 0);
	sh->unseen = true;	/* that would tell earlier */
	for (int i = 0; i < 4; i++) {
		ASSERT_EQ(local_child(other, &i), 0);
		EXPECT_EQ(sh->rc, -ESTALE);
		EXPECT_NE(strstr(sh->why.text, words[i]), NULL) {
			TH_LOG("%d: %s", i, sh->why.text);
		}
	}
}

static int give_up(void *arg, const char *phase, uint64_t done, uint64_t total)
{
	(void)phase;
	CHECK(done <= total);
	return ++*(int *)arg;	/* at the first question */
}

/* When enough is stored for lanes to be at work. */
static int give_up_late(void *arg, const char *phase, uint64_t done, uint64_t total)
{
	(void)phase;
	(void)total;
	*(uint64_t *)arg = done;
	return done > 2 * LANE_MIN;
}

static void given_up_late(void *arg)
{
	const char *way = (const char *)arg + 2;	/* another letter for each, and so other pages */
	struct local *l = local_open();
	struct store *st = open_store(STORE_RW);
	struct store_writer *w;
	uint64_t page[512], done = 0;
	struct content_progress p = { give_up_late, &done };
	struct store_stats left;

	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ l->window, 8 * LANE_MIN }), 0);
	for (uint64_t at = 0; at < 8 * LANE_MIN; at += 4096) {
		for (int i = 0; i < 512; i++)
			page[i] = mix(at + i + ((uint64_t)*way << 40));
		CHECK_EQ(l->s.hal.drv.cuMemcpyHtoD_v2(l->window + at, page, 4096), 0);
	}
	CHECK_EQ(store_writer_open(st, 0, &w), 0);
	setenv("SINGVGPU_CONTENT", arg, 1);
	sh->rc = content_dump(&l->s, st, w, &sh->device, &p, NULL, &sh->why);
	CHECK(done > 2 * LANE_MIN && done < 8 * LANE_MIN);
CHECK_EQ(store_writer_flush(w), -ECANCELED);	/* the lanes' pages are gone */
	store_writer_close(w);
	CHECK_EQ(store_stats(st, &left), 0);
	CHECK_EQ(left.temporary_bytes, 0);
	CHECK_EQ(store_verify(st, NULL, NULL, NULL, NULL, &(struct store_verify_stats){ 0 }), 0);
	store_close(st);
}

TEST_F(content, is_given_up_while_lanes_store)
{
	static char *const ways[] = { "direct", "staged", "digests" };

	for (int i = 0; i < 3; i++) {
		sh->rc = 0;
		ASSERT_EQ(local_child(given_up_late, ways[i]), 0);
		EXPECT_EQ(sh->rc, -ECANCELED);
	}
}

static void given_up(void *arg)
{
	struct local *l = local_open();
	struct store *st = open_store(STORE_RW);
	struct store_writer *w;
	int calls = 0;
	struct content_progress p = { give_up, &calls };

	(void)arg;
	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ l->window, 64 * MiB }), 0);
	CHECK_EQ(l->s.hal.drv.cuMemsetD8Async(l->window, 7, 64 * MiB, NULL), 0);
	CHECK_EQ(l->s.hal.drv.cuCtxSynchronize(), 0);
	CHECK_EQ(store_writer_open(st, STORE_ONE_THREAD, &w), 0);
	setenv("SINGVGPU_CONTENT", "staged", 1);
	sh->rc = content_dump(&l->s, st, w, &sh->device, &p, NULL, &sh->why);
	CHECK_EQ(calls, 1);
	store_writer_close(w);
	store_close(st);
}

TEST_F(content, is_given_up_when_asked)
{
	ASSERT_EQ(local_child(given_up, NULL), 0);
	EXPECT_EQ(sh->rc, -ECANCELED);
	EXPECT_NE(strstr(sh->why.text, "contents"), NULL);
}

/* ------------------------------------------------------------------------------ kernels' own */

static const char heap_text[] =
	".version 8.0\n.target sm_75\n.address_size 64\n"
	".extern .func (.param .b64 r) malloc (.param .b64 n);\n"
	".extern .func free (.param .b64 p);\n"
	/* a block of n bytes: its address to *out, v into its first word */
	".visible .entry take(.param .u64 out, .param .u64 n, .param .u64 v)\n{\n"
	".reg .b64 %d<8>;\n"
	"ld.param.u64 %d1, [out]; ld.param.u64 %d2, [n]; ld.param.u64 %d3, [v];\n"
	"{ .param .b64 a; .param .b64 r; st.param.b64 [a], %d2;\n"
	"call.uni (r), malloc, (a); ld.param.b64 %d4, [r]; }\n"
	"st.global.u64 [%d1], %d4; st.u64 [%d4], %d3; ret;\n}\n"
	".visible .entry give(.param .u64 p, .param .u64 out)\n{\n"
	".reg .b64 %d<8>;\n"
	"ld.param.u64 %d1, [p]; ld.param.u64 %d2, [out]; ld.u64 %d3, [%d1];\n"
	"st.global.u64 [%d2], %d3;\n"
	"{ .param .b64 a; st.param.b64 [a], %d1; call.uni free, (a); } ret;\n}\n";

static uint64_t run(struct local *l, uint64_t lib, const char *name, uint64_t a, uint64_t b,
		    uint64_t c)
{
	const struct cuda_driver *d = &l->s.hal.drv;
	uint64_t out = l->window, *args[] = { &a, &b, &c }, real, v;
	bool take = !strcmp(name, "take");
	CUkernel k;

	*(take ? &a : &b) = out;
	CHECK_EQ(sv_real(&l->s, SV_T_CUlibrary, lib, 0, &real), 0);
	CHECK_EQ(d->cuLibraryGetKernel(&k, (CUlibrary)real, name), 0);
	CHECK_EQ(d->cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, NULL, (void **)args, NULL),
		 0);
	CHECK_EQ(d->cuCtxSynchronize(), 0);
	CHECK_EQ(d->cuMemcpyDtoH_v2(&v, out, 8), 0);
	return v;
}

static uint64_t heap_life(struct local *l)
{
	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ l->window, 2 * MiB }), 0);
	return local_load(l, heap_text, sizeof(heap_text), SV_IMAGE_ARENA);
}

#define BLOCKS 20

static void heap_dump(void *arg)
{
	struct local *l = local_open();
	uint64_t lib = heap_life(l), *at = arg;

	for (uint64_t i = 0; i < BLOCKS; i++)
		at[i] = run(l, lib, "take", 0, 100 * i + 8, 1000 + i);
	for (uint64_t i = 0; i < BLOCKS; i += 3)
		CHECK_EQ(run(l, lib, "give", at[i], 0, 0), 1000 + i);
	dump(l);
	CHECK_EQ(sh->rc, 0);
}

static void heap_restore(void *arg)
{
	struct local *l = local_open();
	uint64_t lib = heap_life(l), *at = arg;

	restore(l);
	if (sh->rc)
		dprintf(local_err, "# %s\n", sh->why.text);
	CHECK_EQ(sh->rc, 0);
	/* What was free is given out again, what was not is not, and all goes on. */
	for (uint64_t i = 0; i < BLOCKS; i++) {
		uint64_t p = run(l, lib, "take", 0, 100 * (i % BLOCKS) + 8, 0);

		CHECK(p);
		for (uint64_t k = 0; k < BLOCKS; k++)
			CHECK(k % 3 == 0 || p + 100 * i + 8 <= at[k] || p >= at[k] + 100 * k + 8);
	}
	for (uint64_t i = 0; i < BLOCKS; i++)
		if (i % 3)
			CHECK_EQ(run(l, lib, "give", at[i], 0, 0), 1000 + i);
}

TEST_F(content, the_heap_of_kernels_comes_back)
{
	ASSERT_EQ(local_child(heap_dump, sh->at), 0);
	EXPECT_EQ(local_child(heap_restore, sh->at), 0);
}

static void heap_refused(void *used)
{
	struct local *l = local_open();
	uint64_t lib = heap_life(l);

	if (used)
		image_seen(&l->s, lib, l->ctx);
	l->s.hal.own_memory = NULL;	/* as a driver that does not tell where it is */
	dump(l);
}

/* Two handles of a graph: the second keeps its value, or not. */
static void conditions(struct local *l, uint32_t flags, uint64_t value[2])
{
	uint64_t graph = local_handle(l, SV_T_CUgraph);

	for (int i = 0; i < 2; i++) {
		struct sv_graph_cond c = { l->ctx, graph, 5, i ? flags : 1 };
		uint8_t reply[64];

		CHECK_EQ(local_send(l, SV_OP_cuGraphConditionalHandleCreate, &c, sizeof(c), NULL, 0,
				    reply), 0);
		memcpy(&value[i], reply, 8);
	}
}

static void conditions_dump(void *arg)
{
	struct local *l = local_open();

	(void)arg;
	conditions(l, 0, sh->at);
	*(uint32_t *)sh->at[1] = 1234;	/* as a kernel does */
	dump(l);
	CHECK_EQ(sh->rc, 0);
	l->s.hal.own_memory = NULL;
	CHECK_EQ(content_check(&l->s, &sh->why), -ENOTSUP);
	CHECK(strstr(sh->why.text, "conditional"));
}

static void conditions_restore(void *arg)
{
	struct store *st = open_store(0);
	struct local *l = local_open();
	uint64_t value[2];

	(void)arg;
	CHECK_EQ(observe_expect(st, &sh->observed, &sh->why), 0);
	store_close(st);
	conditions(l, 0, value);
	CHECK_EQ(value[0], sh->at[0]);
	CHECK_EQ(value[1], sh->at[1]);
	restore(l);
	CHECK_EQ(sh->rc, 0);
	CHECK_EQ(*(uint32_t *)value[0], 5);
	CHECK_EQ(*(uint32_t *)value[1], 1234);
}

static void conditions_by_default(void *arg)
{
	struct local *l = local_open();

	(void)arg;
	conditions(l, 1, sh->at);
	l->s.hal.own_memory = NULL;
	CHECK_EQ(content_check(&l->s, &sh->why), 0);
}

TEST_F(content, values_of_conditions_come_back)
{
	ASSERT_EQ(local_child(conditions_dump, NULL), 0);
	EXPECT_EQ(local_child(conditions_restore, NULL), 0);
	EXPECT_EQ(local_child(conditions_by_default, NULL), 0);
}

TEST_F(content, a_heap_out_of_reach_is_refused)
{
	ASSERT_EQ(local_child(heap_refused, NULL), 0);
	EXPECT_EQ(sh->rc, 0);	/* nobody has used it */
	ASSERT_EQ(local_child(heap_refused, sh), 0);
	EXPECT_EQ(sh->rc, -ENOTSUP);
	EXPECT_NE(strstr(sh->why.text, "malloc"), NULL);
}

/* ------------------------------------------------------------------------------ channel */

#define AT(l, off) arena_at(&(l)->s, off)

static void channel_dump(void *arg)
{
	struct local *l = local_open();
	struct store *st = open_store(STORE_RW);
	struct store_writer *w;
	(void)arg;
	pattern(AT(l, l->arena + 4096), 3 * MiB, 1, false);
	CHECK_EQ(ring_commit(l->s.ring, l->s.arena_len / 2, 4096), 0);
	CHECK_EQ(ring_commit(l->s.ring, l->s.arena_len - 8192, 8192), 0);
	pattern(AT(l, l->s.arena_len - 8192), 8192, 2, false);
	CHECK_EQ(ring_freeze(l->s.ring, NULL, NULL, 1000000000), 0);
	CHECK_EQ(store_writer_open(st, 0, &w), 0);
	CHECK_EQ(content_channel(&l->s, w, &sh->channel, &sh->arena, NULL, &sh->why), 0);
	CHECK_EQ(store_writer_flush(w), 0);
	store_writer_close(w);
	store_close(st);
	/* Nothing was changed. */
	pattern(AT(l, l->arena + 4096), 3 * MiB, 1, true);
	CHECK(shmem_kb() < 65536);
}

static void channel_restore(void *arg)
{
	struct local *l = local_open();		/* its own channel stays, elsewhere */
	struct store *st = open_store(0);
	struct ring_params p = { .backend = RING_MEMFD };
	int fd, rc;

	(void)arg;
	CHECK_EQ(content_channel_image(st, &sh->channel, &fd, &sh->why), 0);
	CHECK(lseek(fd, 0, SEEK_END) > 4096);
	CHECK_EQ(lseek(fd, 0, SEEK_SET), 0);
	ring_close(l->s.ring);
	rc = ring_restore(&l->s.ring, fd, &p);
	CHECK_EQ(rc, 0);
	close(fd);
	CHECK_EQ(ring_generation(l->s.ring), 1);
	l->s.arena = ring_arena(l->s.ring);
	/* Something lies where nothing was, and elsewhere. */
	pattern(AT(l, l->arena + 5 * MiB), MiB, 3, false);
	pattern(AT(l, l->arena + 8192), MiB, 4, false);
	CHECK_EQ(content_arena_restore(&l->s, st, &sh->arena, NULL, &sh->why), 0);
	pattern(AT(l, l->arena + 4096), 3 * MiB, 1, true);
	pattern(AT(l, l->s.arena_len - 8192), 8192, 2, true);
	CHECK(sv_zero(AT(l, l->arena + 5 * MiB), MiB));
	l->s.arena_len -= 4096;
	CHECK_EQ(content_arena_restore(&l->s, st, &sh->arena, NULL, &sh->why),
		 -ESTALE);
	store_close(st);
}

TEST_F(content, a_channel_comes_back)
{
	ASSERT_EQ(local_child(channel_dump, NULL), 0);
	EXPECT_EQ(local_child(channel_restore, NULL), 0);
}

/* ------------------------------------------------------------------------------ observed */

static uint64_t texture(struct local *l, uint64_t array)
{
	struct {
		struct sv_tex_new a;
		CUDA_RESOURCE_DESC res;
		CUDA_TEXTURE_DESC tex;
	} __attribute__((packed)) t = { .a = { .ctx = l->ctx } };
	uint8_t reply[64];
	uint64_t value;

	t.res.resType = CU_RESOURCE_TYPE_ARRAY;
	t.res.res.array.hArray = (CUarray)(uintptr_t)array;
	CHECK_EQ(local_send(l, SV_OP_cuTexObjectCreate, &t, sizeof(t), NULL, 0, reply), 0);
	memcpy(&value, reply, sizeof(value));
	return value;
}

/* Values as they are after some have gone; a replay knows only of those that are left. */
static void observed(void *arg)
{
	bool again = arg != NULL;
	struct made m;
	struct local *l = make(&m);
	struct store *st = open_store(STORE_RW);
	uint64_t seq = l->seq;

	if (again)
		CHECK_EQ(observe_expect(st, &sh->observed, &sh->why), 0);
	for (int i = 0; i < 6; i++) {
		l->seq = seq + i;
		if (again && i != 3)
			continue;
		if (i == 3)
			sh->at[again] = texture(l, m.array[1]);
		else
			texture(l, m.array[1]);
	}
	if (!again) {
		struct store_writer *w;

		CHECK_EQ(store_writer_open(st, 0, &w), 0);
		CHECK_EQ(observe_dump(&l->s, w, &sh->observed, &sh->why), 0);
		CHECK_EQ(store_writer_flush(w), 0);
		store_writer_close(w);
	} else {
		/* The others are missed, by name. */
		sh->rc = observe_compare(&l->s, st, &sh->observed, &sh->why);
	}
	store_close(st);
}

TEST_F(content, values_are_chosen_again_and_compared)
{
	ASSERT_EQ(local_child(observed, NULL), 0);
	ASSERT_EQ(local_child(observed, sh), 0);
	EXPECT_EQ(sh->at[0], sh->at[1]);
	EXPECT_EQ(sh->rc, -ESTALE);
	EXPECT_NE(strstr(sh->why.text, "texture 0x"), NULL) {
		TH_LOG("%s", sh->why.text);
	}
}

/* The address of a variable, as a client asks for it. */
static uint64_t told(struct local *l, uint64_t lib, const char *name)
{
	struct sv_by_name a = { .ctx = l->ctx, .from = lib, .name_len = strlen(name) + 1 };
	struct sv_global g;
	uint8_t reply[64];

	CHECK_EQ(local_send(l, SV_OP_cuLibraryGetGlobal, &a, sizeof(a), name, a.name_len, reply), 0);
	memcpy(&g, reply, sizeof(g));
	return g.addr;
}

enum { NO_ONES, ONE, OTHER, LIBS };

/* Three libraries on a device where variables lie in the order of their loading. */
static struct local *ordered(uint64_t lib[LIBS])
{
	struct local *l;
	char text[256];

	setenv("SINGVGPU_SOFT_PROFILE", "h100,moved-variables", 1);
	l = local_open();
	for (int i = 0; i < LIBS; i++) {
		snprintf(text, sizeof(text), ".version 8.0\n.target sm_75\n.address_size 64\n"
			 ".visible .global .u32 number%d = %d;\n.visible .entry k()\n{\nret;\n}\n",
			 i, i);
		lib[i] = local_load(l, text, strlen(text) + 1, SV_IMAGE_ARENA);
	}
	return l;
}

static void looks_between_uses(void *arg)
{
	uint64_t lib[LIBS];
	struct local *l = ordered(lib);

	(void)arg;
	sh->at[ONE] = told(l, lib[ONE], "number1");
	dump(l);
	CHECK_EQ(sh->rc, 0);
	sh->at[OTHER] = told(l, lib[OTHER], "number2");
	dump(l);
	CHECK_EQ(sh->rc, 0);
	CHECK_EQ(sh->at[OTHER] - sh->at[ONE], 64 << 10);	/* the next */
}

static void uses_them_in_order(void *arg)
{
	uint64_t lib[LIBS];
	struct local *l = ordered(lib);

	(void)arg;
	CHECK_EQ(told(l, lib[ONE], "number1"), sh->at[ONE]);
	CHECK_EQ(told(l, lib[OTHER], "number2"), sh->at[OTHER]);
	restore(l);
	CHECK_EQ(sh->rc, 0);
	CHECK_EQ(told(l, lib[NO_ONES], "number0") - sh->at[OTHER], 64 << 10);
}

/* It may lie anywhere, and keeps what it was loaded with. */
TEST_F(content, a_library_that_nobody_has_used_is_not_looked_at)
{
	ASSERT_EQ(local_child(looks_between_uses, NULL), 0);
	EXPECT_EQ(local_child(uses_them_in_order, NULL), 0);
}

static void uses_them_in_another_order(void *arg)
{
	uint64_t lib[LIBS];
	struct local *l = ordered(lib);

	(void)arg;
	CHECK_EQ(told(l, lib[OTHER], "number2"), sh->at[ONE]);
	CHECK_EQ(told(l, lib[ONE], "number1"), sh->at[OTHER]);
	restore(l);
}

TEST_F(content, a_variable_that_has_moved_is_refused_by_name)
{
	char want[128];

	ASSERT_EQ(local_child(looks_between_uses, NULL), 0);
	ASSERT_EQ(local_child(uses_them_in_another_order, NULL), 0);
	EXPECT_EQ(sh->rc, -ESTALE);
	snprintf(want, sizeof(want), "the variable number1 of a module was at 0x%llx and is at 0x%llx",
		 (unsigned long long)sh->at[ONE], (unsigned long long)sh->at[OTHER]);
	EXPECT_NE(strstr(sh->why.text, want), NULL)
		TH_LOG("%s", sh->why.text);
}

static void a_program_that_knows_one(void *arg)
{
	uint64_t lib[LIBS];
	struct local *l = ordered(lib);

	if (!arg) {	/* as by a launch, which a replay does not repeat */
		image_seen(&l->s, lib[ONE], l->ctx);
		dump(l);
	} else {
		restore(l);
	}
	CHECK_EQ(sh->rc, 0);
	if (!arg)
		sh->at[ONE] = told(l, lib[ONE], "number1");
	else
		CHECK_EQ(told(l, lib[ONE], "number1"), sh->at[ONE]);
}

TEST_F(content, what_a_dump_has_seen_a_restore_compares)
{
	ASSERT_EQ(local_child(a_program_that_knows_one, NULL), 0);
	EXPECT_EQ(local_child(a_program_that_knows_one, sh), 0);
}

/* The address of a variable does not depend on what else was loaded, or in which order. */
static void order_of_loads(void *arg)
{
	static const char a[] = ".version 8.0\n.target sm_75\n.address_size 64\n"
				".visible .global .u32 first;\n.visible .entry a()\n{\nret;\n}\n";
	static const char b[] =
		".version 8.0\n.target sm_75\n.address_size 64\n"
		".visible .global .u32 second[9];\n.visible .entry b()\n{\nret;\n}\n";
	struct local *l = local_open();
	const struct cuda_driver *d = &l->s.hal.drv;
	uint64_t lib[2], real[2];
	CUdeviceptr at[2], other;
	size_t len;
	bool swap = arg != NULL;

	for (int i = 0; i < 2; i++)
		lib[i] = local_load(l, i ? b : a, i ? sizeof(b) : sizeof(a), SV_IMAGE_ARENA);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(sv_real(&l->s, SV_T_CUlibrary, lib[i], 0, &real[i]), 0);
	CHECK_EQ(sv_enter(&l->s, l->ctx), 0);
	if (swap)
		CHECK_EQ(d->cuMemAlloc_v2(&other, 100), 0);
	for (int k = 0; k < 2; k++) {
		int i = swap ? !k : k;

		CHECK_EQ(d->cuLibraryGetGlobal(&at[i], &len, (CUlibrary)real[i],
					       i ? "second" : "first"), 0);
	}
	for (int i = 0; i < 2; i++) {
		if (swap)
			CHECK_EQ(at[i], sh->at[i]);
		sh->at[i] = at[i];
	}
}

TEST_F(content, variables_lie_where_they_lay)
{
	ASSERT_EQ(local_child(order_of_loads, NULL), 0);
	EXPECT_EQ(local_child(order_of_loads, sh), 0);
}

TEST_HARNESS_MAIN
