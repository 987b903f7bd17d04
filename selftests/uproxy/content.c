// SPDX-License-Identifier: Apache-2.0
/*
 * content.c - what a session's device holds goes to a store and comes back in another process
 *
 * Each test is a row of lives of one session: made, filled, dumped; made again, restored, compared.
 * What is made is made by records, in the same order, as a replay does.
 */
#include "local.h"

#include <zstd.h>

#include "content.h"
#include "hal/digest.h"

#define MiB (1ull << 20)
#define GiB (1ull << 30)

/* What lives on between the children. */
struct shared {
	char dir[64];
	struct store_ref device, observed, channel, arena;
	uint64_t stored, changed;
	struct content_stats stats;
	int rc;
	char why[512];
};

static struct shared *sh;

FIXTURE(content) {
	char dir[64];
};

FIXTURE_SETUP(content)
{
	char why[256] = "";

	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE((void *)sh, MAP_FAILED);
	strcpy(sh->dir, "/tmp/uproxy-content-XXXXXX");
	ASSERT_NE(mkdtemp(sh->dir), NULL);
	ASSERT_EQ(store_create(sh->dir, NULL, why, sizeof(why)), 0) {
		TH_LOG("%s", why);
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
	uint64_t big, high, sparse;	/* window memory: 24 MiB, 2 MiB far away, 1 GiB hardly used */
	uint64_t twice, again, none;	/* mappings of cuMemCreate's memory */
	uint64_t loose;			/* memory that is mapped nowhere: its handle */
	uint64_t lib, packed, module;
	uint64_t array[6], mipmap, event[3];
};

#define SPARSE GiB

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
	CHECK_EQ(SEND(l, SV_OP_X_MAP, (struct sv_map){ m->sparse, SPARSE }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemCreate, (struct sv_mem_create){ a, 6 * MiB, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemCreate, (struct sv_mem_create){ m->loose, 2 * MiB, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemCreate, (struct sv_mem_create){ c, 2 * MiB, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemMap, (struct sv_mem_map){ m->twice, 6 * MiB, a, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemMap, (struct sv_mem_map){ m->again, 6 * MiB, a, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemMap, (struct sv_mem_map){ m->none, 2 * MiB, c, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemSetAccess, (struct sv_mem_access){ m->twice, 6 * MiB, 3, 0 }), 0);
	CHECK_EQ(SEND(l, SV_OP_cuMemSetAccess, (struct sv_mem_access){ m->again, 6 * MiB, 1, 0 }), 0);
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
	{ 31, 12, 3, CU_AD_FORMAT_UNSIGNED_INT16, 4, CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST },
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
		      (struct sv_cuMipmappedArrayGetLevel){ .ctx = l->ctx, .level = 2,
			.pLevelArray = local_handle(l, SV_T_CUarray), .hMipmappedArray = m->mipmap }),
		 0);
	for (int i = 0; i < 3; i++) {
		m->event[i] = local_handle(l, SV_T_CUevent);
		CHECK_EQ(SEND(l, SV_OP_cuEventCreate,
			      (struct sv_cuEventCreate){ .ctx = l->ctx, .phEvent = m->event[i] }), 0);
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
	device(l, m->sparse + 700 * MiB, 12288, seed + 3, check);
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
	char why[256] = "";
	struct store *st;
	int rc = store_open(&st, sh->dir, flags, why, sizeof(why));

	if (rc)
		dprintf(local_err, "# %s\n", why);
	CHECK_EQ(rc, 0);
	return st;
}

static void dump(struct local *l)
{
	struct store *st = open_store(STORE_RW);
	struct store_writer_stats stats;
	struct store_writer *w;

	CHECK_EQ(store_writer_open(st, 0, &w), 0);
	sh->rc = content_check(&l->s, sh->why, sizeof(sh->why));
	if (!sh->rc)
		sh->rc = content_dump(&l->s, st, w, &sh->device, NULL, &sh->stats, sh->why,
				      sizeof(sh->why));
	if (!sh->rc)
		sh->rc = observe_dump(&l->s, w, &sh->observed, sh->why, sizeof(sh->why));
	CHECK_EQ(store_writer_flush(w), 0);
	store_writer_stats(w, &stats);
	sh->stored = stats.stored;
	store_writer_close(w);
	store_close(st);
	if (sh->rc)
		dprintf(local_err, "# dump: %s\n", sh->why);
}

static void restore(struct local *l)
{
	struct store *st = open_store(0);

	*sh->why = 0;
	sh->rc = observe_compare(&l->s, st, &sh->observed, sh->why, sizeof(sh->why));
	if (!sh->rc)
		sh->rc = content_restore(&l->s, st, &sh->device, NULL, &sh->stats, sh->why,
					 sizeof(sh->why));
	store_close(st);
}

static void fill_and_dump(void *arg)
{
	struct made m;
	struct local *l = make(&m);

	everything(l, &m, 1000, false);
	if (arg)
		setenv("SINGVGPU_CONTENT", arg, 1);
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
		dprintf(local_err, "# restore: %s\n", sh->why);
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

	record(l, m.event[0]);
	usleep(50000);
	record(l, m.event[1]);
	*(float *)sh->why = elapsed(l, m.event[0], m.event[1], 0);
	CHECK(*(float *)sh->why >= 50);
	usleep(30000);
	memcpy(arg, sh->why, sizeof(float));
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
	void *p = sh->why + 256;

	ASSERT_EQ(local_child(times_dump, p), 0);
	ASSERT_EQ(local_child(times_restore, p), 0);
	EXPECT_EQ(local_child(times_again, p), 0);
}

TEST_F(content, comes_back_by_digests)
{
	ASSERT_EQ(local_child(fill_and_dump, "digests"), 0);
	EXPECT_EQ(local_child(restore_and_look, "digests"), 0);
}

TEST_HARNESS_MAIN
