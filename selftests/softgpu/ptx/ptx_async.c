// SPDX-License-Identifier: Apache-2.0
/*
 * ptx_async.c - barriers in memory, copies that complete on them, and clusters, in every form of PTX.
 *
 * Each kernel's lane writes what it saw to out[thread].
 */
#include "ptx_test.h"

#include "../../../uproxy/softgpu/ptx/tensor_map.h"

#define HEAD									\
	".version 8.8\n.target sm_90\n.address_size 64\n"			\
	".extern .shared .align 16 .b8 dyn[];\n"				\
	".visible .entry k(.param .u64 out, .param .u64 in)\n{\n"		\
	".reg .pred %p<8>; .reg .b16 %h<4>; .reg .b32 %r<40>; .reg .b64 %d<40>;\n"		\
	".shared .align 16 .b8 buf[4096]; .shared .align 8 .b64 bar; .shared .align 8 .b64 bar2;\n" \
	"ld.param.u64 %d1, [out]; ld.param.u64 %d2, [in]; mov.u32 %r1, %tid.x;\n" \
	"mov.u32 %r2, bar; mov.u32 %r3, buf; mov.u32 %r9, 0; mov.u32 %r4, bar2;\n" \
	"mov.u64 %d4, bar; cvta.shared.u64 %d4, %d4; mov.u32 %r39, %ntid.x;\n"	\
	"setp.eq.u32 %p7, %r1, 0;\n"

/* %r9 is the result */
#define TAIL									\
	"mul.wide.u32 %d3, %r1, 4; add.u64 %d3, %d3, %d1; st.global.u32 [%d3], %r9; ret;\n}\n"

/* Thread 0 makes the barrier for @count threads. */
#define INIT(count)								\
	"@%p7 mbarrier.init.shared::cta.b64 [%r2], " #count ";\nbar.sync 0;\n"

FIXTURE(async) {
	struct prog p;
	uint32_t *out, *in;
};

FIXTURE_SETUP(async)
{
	memset(&self->p, 0, sizeof(self->p));
	memset(window(), 0xa5, 1 << 20);
	self->out = (uint32_t *)window();
	self->in = (uint32_t *)(window() + (512 << 10));
	for (int i = 0; i < 65536; i++)
		self->in[i] = i * 2654435761u;
}

FIXTURE_TEARDOWN(async)
{
	if (self->p.m)
		prog_free_all(&self->p);
}

static int run(struct prog *p, const char *text, uint32_t grid, uint32_t threads, void *out, void *in)
{
	struct { void *out, *in; } arg = { out, in };
	int ret;

	if (p->m)
		prog_free_all(p);
	ret = prog_load(p, text, "k");
	return ret ? ret : prog_run(p, grid, threads, 4096, &arg, sizeof(arg));
}

#define RUN(threads, body)							\
	ASSERT_EQ(0, run(&self->p, HEAD body TAIL, 1, threads, self->out, self->in)) \
		TH_LOG("line %d: %s%s", __LINE__, self->p.err, self->p.fault.text)
#define FAULTS(kind_, threads, body) do {					\
	EXPECT_EQ(-EFAULT, run(&self->p, HEAD body TAIL, 1, threads, self->out, self->in)) \
		TH_LOG("line %d: %s", __LINE__, self->p.err);			\
	EXPECT_EQ(kind_, self->p.fault.kind) TH_LOG("line %d", __LINE__);	\
} while (0)
#define ALL(n, want) do {							\
	for (uint32_t t = 0; t < (n); t++) {					\
		ASSERT_EQ(want, self->out[t]) TH_LOG("line %d, thread %u", __LINE__, t); \
	}									\
} while (0)

/* Threads write, arrive, wait, and read what the thread 40 further on has written. */
#define HAND_ON(arrive, wait)							\
	INIT(96)								\
	"shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r3; mul.lo.u32 %r6, %r1, 7; st.shared.u32 [%r5], %r6;\n" \
	arrive "\n$w:\n" wait " @!%p1 bra $w;\n"				\
	"add.u32 %r7, %r1, 40; rem.u32 %r7, %r7, 96; shl.b32 %r7, %r7, 2; add.u32 %r7, %r7, %r3;\n" \
	"ld.shared.u32 %r9, [%r7];\n"
#define ARRIVE "mbarrier.arrive.shared::cta.b64 %d5, [%r2];"

TEST_F(async, threads_arrive_and_wait_in_every_form)
{
#define TRY(arrive, wait) do {							\
	RUN(96, HAND_ON(arrive, wait));						\
	ALL(96, (t + 40) % 96 * 7);						\
} while (0)
	TRY(ARRIVE, "mbarrier.test_wait.shared.b64 %p1, [%r2], %d5;");
	TRY(ARRIVE, "mbarrier.try_wait.shared::cta.b64 %p1, [%r2], %d5;");
	TRY(ARRIVE, "mbarrier.try_wait.acquire.cta.shared::cta.b64 %p1, [%r2], %d5, 1000;");
	TRY(ARRIVE, "mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;");
	TRY(ARRIVE, "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r2], %r9, %r1;");
	TRY(ARRIVE, "mbarrier.try_wait.parity.relaxed.cta.b64 %p1, [%d4], 0;");
	TRY(ARRIVE, "mbarrier.test_wait.parity.b64 %p1, [bar], 0;");
	TRY(ARRIVE, "mbarrier.test_wait.parity.shared.b64 %p1, [%r2], 0; nanosleep.u32 20;");
	TRY("mbarrier.arrive.b64 _, [%d4];", "mbarrier.test_wait.parity.shared.b64 %p1, [bar], 0;");
	TRY("mbarrier.arrive.release.cta.shared::cta.b64 %d5, [bar], 1;",
	    "mbarrier.test_wait.b64 %p1, [%d4], %d5;");
	TRY("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];",
	    "mbarrier.test_wait.parity.b64 %p1, [%d4], 0;");
	TRY("and.b32 %r8, %r1, 31; setp.ne.u32 %p2, %r8, 3; bar.warp.sync -1;\n"
	    "@!%p2 mbarrier.arrive.shared.b64 _, [%r2], 32;",
	    "mbarrier.test_wait.parity.shared.b64 %p1, [%r2], 0;");
	TRY("and.b32 %r8, %r1, 1; setp.eq.u32 %p2, %r8, 0;\n"
	    "@%p2 mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %d5, [%r2], 1;\n"
	    "@%p2 mbarrier.arrive.shared.b64 %d5, [%r2];",
	    "mbarrier.test_wait.parity.shared.b64 %p1, [%r2], 0;");
	TRY("mbarrier.arrive_drop.shared.b64 %d5, [%r2];",
	    "mbarrier.test_wait.shared.b64 %p1, [%r2], %d5;");
	TRY("mbarrier.arrive_drop.release.cta.shared::cta.b64 %d5, [%r2], 1;",
	    "mbarrier.test_wait.shared.b64 %p1, [%r2], %d5;");
	TRY("mbarrier.arrive.expect_tx.shared::cta.b64 %d5, [%r2], 48;"
	    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 48;",
	    "mbarrier.test_wait.shared.b64 %p1, [%r2], %d5;");
	TRY("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 48;"
	    "mbarrier.arrive.shared.b64 %d5, [%r2]; mbarrier.complete_tx.shared::cluster.b64 [%r2], 48;",
	    "mbarrier.test_wait.shared.b64 %p1, [%r2], %d5;");
	TRY("mbarrier.arrive_drop.expect_tx.shared::cta.b64 %d5, [%r2], 8;"
	    "mbarrier.complete_tx.b64 [%d4], 8;", "mbarrier.test_wait.shared.b64 %p1, [%r2], %d5;");
}

/* One thread: the state before each step, phases, and counts. */
TEST_F(async, phases_count_arrivals_and_bytes)
{
#define PARITY(bit)								\
	"mbarrier.test_wait.parity.shared.b64 %p1, [%r2], 0; @%p1 or.b32 %r9, %r9, " #bit ";\n"
	RUN(1, INIT(3)
	    PARITY(1)
	    "mbarrier.arrive.shared.b64 %d5, [%r2], 2; mbarrier.pending_count.b64 %r5, %d5;\n"
	    PARITY(2)
	    "mbarrier.arrive.expect_tx.shared.b64 %d6, [%r2], 100; mbarrier.pending_count.b64 %r6, %d6;\n"
	    PARITY(4)
	    "mbarrier.complete_tx.shared.b64 [%r2], 99;\n"
	    PARITY(8)
	    "mbarrier.complete_tx.shared.b64 [%r2], 1;\n"
	    PARITY(16)
	    "mbarrier.test_wait.shared.b64 %p2, [%r2], %d5; @%p2 or.b32 %r9, %r9, 32;\n"
	    "mbarrier.arrive_drop.shared.b64 %d7, [%r2]; mbarrier.pending_count.b64 %r7, %d7;\n"
	    "mbarrier.test_wait.shared.b64 %p2, [%r2], %d7; @%p2 or.b32 %r9, %r9, 64;\n"
	    "mbarrier.arrive.shared.b64 %d7, [%r2], 2;\n"
	    "mbarrier.test_wait.shared.b64 %p2, [%r2], %d7; @%p2 or.b32 %r9, %r9, 128;\n"
	    PARITY(256)
	    /* the next phase expects two, and its bytes may come before they are expected */
	    "mbarrier.complete_tx.shared.b64 [%r2], 7; mbarrier.arrive.shared.b64 %d7, [%r2], 1;\n"
	    "mbarrier.pending_count.b64 %r8, %d7; mbarrier.arrive.expect_tx.shared.b64 %d7, [%r2], 7;\n"
	    PARITY(512)
	    "mbarrier.inval.shared::cta.b64 [%r2]; mbarrier.init.shared.b64 [%r2], 1;\n"
	    PARITY(1024)
	    "shl.b32 %r5, %r5, 12; shl.b32 %r6, %r6, 16; shl.b32 %r7, %r7, 20; shl.b32 %r8, %r8, 24;\n"
	    "or.b32 %r9, %r9, %r5; or.b32 %r9, %r9, %r6; or.b32 %r9, %r9, %r7; or.b32 %r9, %r9, %r8;\n");
	EXPECT_EQ(16 | 32 | 128 | 512 | 3 << 12 | 1 << 16 | 3 << 20 | 2 << 24, self->out[0])
		TH_LOG("%#x", self->out[0]);
}

/* Lanes of one warp on the two sides of a branch: one side waits for what the other does. */
TEST_F(async, lanes_of_one_warp_wait_for_each_other)
{
	RUN(32, INIT(1)
	    "setp.eq.u32 %p2, %r1, 5; @%p2 bra $other;\n"
	    "$w:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra $w;\n"
	    "ld.shared.u32 %r9, [%r3]; bra $end;\n"
	    "$other:\nst.shared.u32 [%r3], 77; mbarrier.arrive.shared.b64 _, [%r2]; mov.u32 %r9, 77;\n"
	    "$end:\n");
	ALL(32, 77);
	/* the side that is behind in the text waits */
	RUN(32, INIT(1)
	    "setp.eq.u32 %p2, %r1, 5; @%p2 bra $other;\n"
	    "st.shared.u32 [%r3], 78; mov.u32 %r9, 78; setp.eq.u32 %p3, %r1, 9;\n"
	    "@%p3 mbarrier.arrive.shared.b64 _, [%r2]; bra $end;\n"
	    "$other:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra $other;\n"
	    "ld.shared.u32 %r9, [%r3];\n$end:\n");
	ALL(32, 78);
	/* one lane waits for the whole warp, which waits for it behind a barrier of the warp */
	RUN(64, INIT(63)
	    "setp.ne.u32 %p2, %r1, 40; @%p2 mbarrier.arrive.shared.b64 _, [%r2];\n@%p2 bra $end;\n"
	    "$w:\nmbarrier.test_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra $w;\n"
	    "st.shared.u32 [%r3], 79;\n$end:\nbar.sync 0; ld.shared.u32 %r9, [%r3];\n");
	ALL(64, 79);
}

TEST_F(async, what_is_no_barrier_ends_the_launch)
{
	FAULTS(PTX_ILLEGAL_INSN, 1, "mbarrier.arrive.shared.b64 _, [%r2];\n");
	EXPECT_NE(NULL, strstr(self->p.fault.text, "not initialised"));
	FAULTS(PTX_ILLEGAL_INSN, 1, INIT(1) "mbarrier.arrive.shared.b64 _, [%r2], 2;\n");
	EXPECT_NE(NULL, strstr(self->p.fault.text, "more arrivals"));
	FAULTS(PTX_ILLEGAL_INSN, 1, INIT(0x100000));
	FAULTS(PTX_ILLEGAL_INSN, 1, INIT(1) "mbarrier.expect_tx.shared.b64 [%r2], 0x100000;\n");
	FAULTS(PTX_ILLEGAL_INSN, 1, INIT(1) "mbarrier.complete_tx.shared.b64 [%r2], 0xffffffff;\n");
	FAULTS(PTX_ILLEGAL_INSN, 1, INIT(1) "mbarrier.inval.shared.b64 [%r2];\n"
	       "mbarrier.test_wait.parity.shared.b64 %p1, [%r2], 0;\n");
	FAULTS(PTX_MISALIGNED, 1, INIT(1) "mbarrier.arrive.shared.b64 _, [%r2+4];\n");
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, "mbarrier.init.shared.b64 [%r2+0x40000], 1;\n");
	FAULTS(PTX_ILLEGAL_SPACE, 1, "mbarrier.init.b64 [%d1], 1;\n");
	FAULTS(PTX_ILLEGAL_SPACE, 1, "mov.u64 %d5, 0x2000000; mbarrier.init.b64 [%d5], 1;\n");
	FAULTS(PTX_ILLEGAL_SPACE, 1, "mov.u64 %d5, 64; mbarrier.arrive.b64 _, [%d5];\n");
}

/* Thread 0 copies with @copy, and all wait for its bytes; %r9 is a word of buf. */
#define FETCH(bytes, copy)							\
	INIT(1) "@!%p7 bra $w;\nmbarrier.arrive.expect_tx.shared.b64 _, [%r2], " #bytes ";\n" copy "\n" \
	"$w:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra $w;\n" \
	"shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r3; ld.shared.u32 %r9, [%r5];\n"
#define IN(i) ((uint32_t)(i) * 2654435761u)
#define TX "mbarrier::complete_tx::bytes"

TEST_F(async, bulk_copies_complete_on_a_barrier)
{
	RUN(64, FETCH(256, "cp.async.bulk.shared::cluster.global." TX " [%r3], [%d2+64], 256, [%r2];"));
	ALL(64, IN(t + 16));
	RUN(64, FETCH(128, "mov.u64 %d5, 7; mov.u32 %r6, 128; cp.async.bulk.shared::cta.global." TX
		      ".L2::cache_hint [buf+0], [%d2], %r6, [bar], %d5;"));
	for (int t = 0; t < 64; t++)
		ASSERT_EQ(t < 32 ? IN(t) : 0, self->out[t]);
	RUN(64, FETCH(256, "cp.async.bulk.shared::cluster.global." TX " [%r3+1024], [%d2], 256, [%r2];\n"
		      "$v:\nmbarrier.test_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra $v;\n"
		      "mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;\n"
		      "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256; fence.proxy.async.shared::cta;\n"
		      "cp.async.bulk.shared::cluster.shared::cta." TX " [%r3], [%r3+1024], 256, [%r2];"));
	ALL(64, IN(t));
	/* each lane its own piece, some of them guarded, and an empty one */
	RUN(32, INIT(1) "@%p7 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 464;\n"
	    "shl.b32 %r5, %r1, 4; add.u32 %r6, %r3, %r5; cvt.u64.u32 %d5, %r5; add.u64 %d6, %d2, %d5;\n"
	    "setp.ne.u32 %p2, %r1, 7; setp.eq.u32 %p3, %r1, 9; selp.u32 %r7, 0, 16, %p3;\n"
	    "setp.ne.u32 %p4, %r1, 11; and.pred %p2, %p2, %p4;\n"
	    "@%p2 cp.async.bulk.shared::cluster.global." TX " [%r6], [%d6], %r7, [%r2];\n"
	    "$w:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra $w;\n"
	    "ld.shared.u32 %r9, [%r6+4];\n");
	ALL(32, t == 7 || t == 9 || t == 11 ? 0 : IN(4 * t + 1));
}

TEST_F(async, bulk_copies_go_back_in_groups)
{
	uint32_t *to = self->in + 32768;
	struct { void *out, *in; } arg = { self->out, to };
	static const char text[] = HEAD
		"shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r3; add.u32 %r6, %r1, 100;"
		" st.shared.u32 [%r5], %r6; fence.proxy.async; bar.sync 0;\n"
		"@!%p7 bra $end;\n"
		"cp.async.bulk.prefetch.L2.global [%d2], 256;\n"
		"cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r3], 256;\n"
		"cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;\n"
		"mov.b16 %h1, 0x9001; cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%d2+256], [%r3],"
		" 32, %h1;\n"
		"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d2+512], [%r3], 64;\n"
		"cp.reduce.async.bulk.global.shared::cta.bulk_group.min.s64 [%d2+640], [%r3], 64;\n"
		"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%d2+768], [%r3], 16;\n"
		"st.bulk.weak.shared::cta [%r3], 16, 0;\n"
		"$end:\nbar.sync 0; ld.shared.u32 %r9, [%r5];\n" TAIL;
	uint32_t k;

	memset(to, 0x11, 4096);
	ASSERT_EQ(0, prog_load(&self->p, text, "k")) TH_LOG("%s", self->p.err);
	EXPECT_TRUE(ptx_kernel_info(self->p.k)->ordered);	/* sums of floats */
	ASSERT_EQ(0, prog_run(&self->p, 1, 64, 0, &arg, sizeof(arg))) TH_LOG("%s", self->p.fault.text);
	for (k = 0; k < 64; k++)
		ASSERT_EQ(k + 100, to[k]);
	ASSERT_EQ(0x11111164, to[64]);
	ASSERT_EQ(0x11111111, to[65]);
	ASSERT_EQ(0x00111167, to[67]);
	ASSERT_EQ(0x11111168, to[68]);
	ASSERT_EQ(0x11111111, to[72]);
	for (k = 0; k < 16; k++)
		ASSERT_EQ(0x11111111 + k + 100, to[128 + k]);
	for (k = 0; k < 16; k++)
		ASSERT_EQ(k + 100, to[160 + k]);
	for (k = 0; k < 4; k++)		/* as halves, 100 to 103 are subnormal, an eighth of these units */
		ASSERT_EQ(0x1111111e, to[192 + k]);
	for (k = 0; k < 64; k++)
		ASSERT_EQ(k < 4 ? 0 : k + 100, self->out[k]);
}

TEST_F(async, copies_and_stores_by_lanes_complete_on_a_barrier)
{
	/* cp.async of each lane; it takes part in the count, or adds itself */
	RUN(64, INIT(64) "shl.b32 %r5, %r1, 2; add.u32 %r6, %r3, %r5; cvt.u64.u32 %d5, %r5;"
	    " add.u64 %d6, %d2, %d5;\ncp.async.ca.shared.global [%r6], [%d6], 4;\n"
	    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r2];\n"
	    "$w:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra $w;\n"
	    "sub.u32 %r6, %r3, %r5; ld.shared.u32 %r9, [%r6+252];\n");
	ALL(64, IN(t ^ 63));
	RUN(64, INIT(64) "shl.b32 %r5, %r1, 2; add.u32 %r6, %r3, %r5; cvt.u64.u32 %d5, %r5;"
	    " add.u64 %d6, %d2, %d5;\ncp.async.ca.shared.global [%r6], [%d6], 4;\n"
	    "cp.async.mbarrier.arrive.b64 [%d4]; mbarrier.arrive.shared.b64 %d7, [%r2];\n"
	    "$w:\nmbarrier.try_wait.shared.b64 %p1, [%r2], %d7; @!%p1 bra $w;\n"
	    "sub.u32 %r6, %r3, %r5; ld.shared.u32 %r9, [%r6+252];\n");
	ALL(64, IN(t ^ 63));
	RUN(64, INIT(1) "@%p7 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 1024;\n"
	    "shl.b32 %r5, %r1, 3; add.u32 %r6, %r3, %r5; add.u32 %r7, %r1, 5;\n"
	    "st.async.weak.shared::cluster." TX ".v2.b32 [%r6], {%r1, %r7}, [%r2];\n"
	    "red.async.relaxed.cluster.shared::cluster." TX ".add.u32 [%r3+2048], %r1, [%r2];\n"
	    "st.async.shared::cluster." TX ".u32 [%r6+1024], %r1, [%r2];\n"
	    "$w:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra $w;\n"
	    "sub.u32 %r6, %r3, %r5; ld.shared.v2.u32 {%r9, %r10}, [%r6+504]; shl.b32 %r10, %r10, 8;\n"
	    "or.b32 %r9, %r9, %r10; ld.shared.u32 %r11, [%r3+2048]; shl.b32 %r11, %r11, 16;"
	    " or.b32 %r9, %r9, %r11;\n");
	ALL(64, (t ^ 63) | ((t ^ 63) + 5) << 8 | 2016u << 16);
}

TEST_F(async, bulk_copies_stay_where_they_may_go)
{
#define BULK(dst, src, size)							\
	INIT(1) "cp.async.bulk.shared::cluster.global." TX " [" dst "], [" src "], " size ", [%r2];\n"
	FAULTS(PTX_ILLEGAL_INSN, 1, BULK("%r3", "%d2", "24"));
	FAULTS(PTX_MISALIGNED, 1, BULK("%r3+8", "%d2", "16"));
	FAULTS(PTX_MISALIGNED, 1, BULK("%r3", "%d2+8", "16"));
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, BULK("%r3", "%d2", "0x10000"));
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, BULK("%r3", "%d2", "0xfffffff0"));
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, BULK("%r3+0xfffff000", "%d2", "16"));
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, BULK("%r3", "%d2+0x10000000", "16"));
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, BULK("%r3", "4096", "16"));
	FAULTS(PTX_ILLEGAL_INSN, 1, "cp.async.bulk.shared::cluster.global." TX
	       " [%r3], [%d2], 16, [%r2];\n");
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, "add.u64 %d5, %d2, 0x10000000;\n"
	       "cp.async.bulk.global.shared::cta.bulk_group [%d5], [%r3], 16;\n");
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"
	       " [%d2], [%r3], 0x40000;\n");
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, "mov.u64 %d5, 0x100000; st.bulk.shared::cta [%r3], %d5, 0;\n");
	FAULTS(PTX_ILLEGAL_INSN, 1, "mov.u64 %d5, -8; st.bulk.shared::cta [%r3], %d5, 0;\n");
	/* the end of a range of memory that is not mapped */
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, "st.async.shared::cluster." TX ".u32 [%r3+0x40000], 1, [%r2];\n");
}

/* ---- clusters of blocks ---- */

/* %r20: rank, %r21: blocks; %d1 is of the block. */
#define CLUSTER									\
	"mov.u32 %r20, %cluster_ctarank; mov.u32 %r21, %cluster_nctarank; mov.u32 %r22, %ctaid.x;\n" \
	"mul.lo.u32 %r23, %r22, %r39; mul.wide.u32 %d20, %r23, 4; add.u64 %d1, %d1, %d20;\n"
#define MEET "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"

static int run_cluster(struct prog *p, const char *text, uint32_t grid, uint32_t size, uint32_t threads,
		       void *out, void *in)
{
	struct { void *out, *in; } arg = { out, in };
	struct ptx_range r = { (uint64_t)window(), (uint64_t)window() + WINDOW_SIZE };
	struct ptx_host h = { 0 };
	struct ptx_launch l = { { grid, 1, 1 }, { threads, 1, 1 }, { size, 1, 1 }, .dyn_shared = 4096,
				.params = &arg, .params_len = sizeof(arg), .var_addr = p->vars,
				.ranges = &r, .nranges = 1, .host = &h, .stop = &p->stop };
	int ret;

	if (p->m)
		prog_free_all(p);
	ret = prog_load(p, text, "k");
	return ret ? ret : ptx_run(p->k, &l, &p->fault);
}

#define CLUSTERS(grid, size, threads, body)					\
	ASSERT_EQ(0, run_cluster(&self->p, HEAD CLUSTER body TAIL, grid, size, threads, self->out, \
				 self->in)) TH_LOG("line %d: %s%s", __LINE__, self->p.err, self->p.fault.text)
#define CLUSTER_FAULTS(kind_, size, body) do {					\
	EXPECT_EQ(-EFAULT, run_cluster(&self->p, HEAD CLUSTER body TAIL, 4, size, 1, self->out, self->in)) \
		TH_LOG("line %d: %s", __LINE__, self->p.err);			\
	EXPECT_EQ(kind_, self->p.fault.kind) TH_LOG("line %d", __LINE__);	\
} while (0)

TEST_F(async, blocks_of_a_cluster_read_and_write_each_others_memory)
{
	/* of the next block: a word by shared::cluster, one by a generic address; an atomic */
	CLUSTERS(12, 4, 64,
		 "shl.b32 %r5, %r1, 2; add.u32 %r6, %r3, %r5; mad.lo.u32 %r7, %r22, 1000, %r1;\n"
		 "st.shared.u32 [%r6], %r7; @%p7 st.shared.u32 [buf+2048], 0;\n" MEET
		 "add.u32 %r8, %r20, 1; rem.u32 %r8, %r8, %r21;\n"
		 "mapa.shared::cluster.u32 %r10, %r6, %r8; ld.shared::cluster.u32 %r9, [%r10];\n"
		 "mapa.u64 %d5, %d4, %r8; sub.u64 %d5, %d5, %d4; cvt.u64.u32 %d6, %r6;"
		 " cvta.shared.u64 %d6, %d6; add.u64 %d6, %d6, %d5; ld.u32 %r11, [%d6];\n"
		 "setp.ne.u32 %p1, %r9, %r11; @%p1 trap;\n"
		 "mapa.shared::cluster.u32 %r12, buf+2048, 0; red.relaxed.cluster.shared::cluster.add.u32"
		 " [%r12], 1;\n"
		 "getctarank.shared::cluster.u32 %r13, %r10; setp.ne.u32 %p1, %r13, %r8; @%p1 trap;\n"
		 "getctarank.u64 %r13, %d6; setp.ne.u32 %p1, %r13, %r8; @%p1 trap;\n"
		 "getctarank.u64 %r13, %d4; setp.ne.u32 %p1, %r13, %r20; @%p1 trap;\n"
		 "isspacep.shared::cta %p1, %d6; @%p1 trap;\nisspacep.shared::cluster %p1, %d6; @!%p1 trap;\n"
		 "isspacep.shared::cta %p1, %d4; @!%p1 trap;\nmapa.u64 %d7, %d4, %r20;\n"
		 "isspacep.shared::cta %p1, %d7; @!%p1 trap;\n" MEET
		 "ld.shared::cluster.u32 %r14, [%r12]; mad.lo.u32 %r9, %r14, 100000, %r9;\n" MEET);
	for (uint32_t b = 0; b < 12; b++)
		for (uint32_t t = 0; t < 64; t++) {
			ASSERT_EQ(25600000 + (b / 4 * 4 + (b + 1) % 4) * 1000 + t, self->out[b * 64 + t])
				TH_LOG("block %u, thread %u", b, t);
		}
}

TEST_F(async, a_clusters_barrier_has_two_halves)
{
	/* lanes arrive on two sides of a branch; some threads leave in between, and some at once */
	CLUSTERS(8, 8, 96,
		 "setp.ge.u32 %p1, %r1, 64; @%p1 bra $last;\n"
		 "setp.eq.u32 %p2, %r1, 63; @%p2 exit;\n"
		 "and.b32 %r5, %r1, 1; setp.eq.u32 %p3, %r5, 1; @%p3 bra $odd;\n"
		 "@%p7 st.shared.u32 [%r3], %r22;\nbarrier.cluster.arrive.release; bra $on;\n"
		 "$odd:\nbarrier.cluster.arrive.relaxed;\n"
		 "$on:\nbarrier.cluster.wait.acquire;\n"
		 "xor.b32 %r6, %r20, 5; mapa.shared::cluster.u32 %r7, %r3, %r6;"
		 " ld.shared::cluster.u32 %r9, [%r7];\n"
		 "barrier.cluster.arrive; barrier.cluster.wait; bra $end;\n"
		 "$last:\nbarrier.cluster.arrive; mov.u32 %r9, 77; barrier.cluster.wait;\n"
		 "barrier.cluster.arrive; mul.wide.u32 %d3, %r1, 4; add.u64 %d3, %d3, %d1;"
		 " st.global.u32 [%d3], %r9; exit;\n"
		 "$end:\n");
	for (uint32_t b = 0; b < 8; b++)
		for (uint32_t t = 0; t < 96; t++) {
			ASSERT_EQ(t >= 64 ? 77 : t == 63 ? 0xa5a5a5a5 : b ^ 5, self->out[b * 96 + t])
				TH_LOG("block %u, thread %u", b, t);
		}
}

/* One lane meets the cluster on a path of its own, then all lanes at one place. */
TEST_F(async, lanes_meet_their_cluster_apart_and_then_together)
{
	CLUSTERS(4, 2, 64,
		 "@!%p7 bra $w;\nst.shared.u32 [%r3], %r22; barrier.cluster.arrive; barrier.cluster.wait;"
		 " bra $v;\n"
		 "$w:\nbarrier.cluster.arrive; barrier.cluster.wait;\n"
		 "$v:\nxor.b32 %r6, %r20, 1; mapa.shared::cluster.u32 %r7, %r3, %r6;"
		 " ld.shared::cluster.u32 %r9, [%r7];\n"
		 "barrier.cluster.arrive; barrier.cluster.wait;\n"
		 "@%p7 st.shared.u32 [%r3], 1000;\n barrier.cluster.arrive; barrier.cluster.wait;\n"
		 "ld.shared::cluster.u32 %r8, [%r7]; add.u32 %r9, %r9, %r8;\n" MEET);
	for (uint32_t b = 0; b < 4; b++)
		for (uint32_t t = 0; t < 64; t++) {
			ASSERT_EQ(1000 + (b ^ 1), self->out[b * 64 + t]) TH_LOG("block %u, thread %u", b, t);
		}
}

TEST_F(async, barriers_and_copies_reach_into_other_blocks)
{
	/* one block fetches for all, and each waits at a barrier of its own */
	CLUSTERS(6, 3, 64, INIT(2) MEET
		 "@%p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;\n"
		 "setp.eq.u32 %p3, %r20, 0; and.pred %p3, %p3, %p7; mov.b16 %h1, 7;\n"
		 "@!%p3 bra $w;\n"
		 "cp.async.bulk.shared::cluster.global." TX ".multicast::cluster [%r3], [%d2], 256, [%r2],"
		 " %h1;\n"
		 "mov.u32 %r5, 0;\n"
		 "$each:\nmapa.shared::cluster.u32 %r6, %r2, %r5; add.u32 %r5, %r5, 1;\n"
		 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];\n"
		 "setp.lt.u32 %p4, %r5, %r21; @%p4 bra $each;\n"
		 "$w:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r2], 0; @!%p1 bra $w;\n"
		 "shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r3; ld.shared.u32 %r9, [%r5];\n" MEET);
	for (uint32_t b = 0; b < 6; b++)
		for (uint32_t t = 0; t < 64; t++) {
			ASSERT_EQ(IN(t), self->out[b * 64 + t]) TH_LOG("block %u, thread %u", b, t);
		}
}

TEST_F(async, clusters_end_where_they_end)
{
	CLUSTER_FAULTS(PTX_ILLEGAL_ADDRESS, 2, "mapa.shared::cluster.u32 %r5, %r3, 2;"
		       " ld.shared::cluster.u32 %r9, [%r5];\n");
	CLUSTER_FAULTS(PTX_ILLEGAL_ADDRESS, 2, "mapa.shared::cluster.u32 %r5, %r3, -1;"
		       " ld.shared::cluster.u32 %r9, [%r5];\n");
	CLUSTER_FAULTS(PTX_ILLEGAL_ADDRESS, 2, "mapa.u64 %d5, %d4, 31; st.u32 [%d5], %r9;\n");
	CLUSTER_FAULTS(PTX_ILLEGAL_ADDRESS, 2, "mapa.shared::cluster.u32 %r5, %r3, 1;"
		       " ld.shared::cluster.u32 %r9, [%r5+0x40000];\n");
	CLUSTER_FAULTS(PTX_ILLEGAL_ADDRESS, 2, "mapa.shared::cluster.u32 %r5, %r3, 0;"
		       " ld.shared::cluster.u32 %r9, [%r5-0x80000];\n st.shared.u32 [%r3+0x7f000], %r9;\n");
	CLUSTER_FAULTS(PTX_ILLEGAL_ADDRESS, 2, INIT(1) "mov.b16 %h1, 4; cp.async.bulk.shared::cluster.global."
		       TX ".multicast::cluster [%r3], [%d2], 16, [%r2], %h1;\n");
	/* no thread is left that could arrive: the other block's waits for itself */
	CLUSTER_FAULTS(PTX_DEADLOCK, 2, "setp.eq.u32 %p1, %r20, 0; @%p1 bra $w; bar.sync 1, 64;\n"
		       "$w: barrier.cluster.arrive; barrier.cluster.wait;\n");
}

TEST_F(async, clusters_have_a_size_that_fits)
{
	static const char *const how[] = { ".reqnctapercluster 2, 1, 1", ".reqnctapercluster 3",
		".explicitcluster", ".maxclusterrank 2", ".reqnctapercluster 2\n.blocksareclusters" };
	static const int want[][5] = {	/* by the size that the launch gives: 0, 1, 2, 4, 32 */
		{ 0, -EINVAL, 0, -EINVAL, -EINVAL },
		{ -EINVAL, -EINVAL, -EINVAL, -EINVAL, -EINVAL },
		{ -EINVAL, 0, 0, 0, -EINVAL },
		{ 0, 0, 0, -EINVAL, -EINVAL },
		{ -EINVAL, -EINVAL, -EINVAL, -EINVAL, -EINVAL },
	};
	static const uint32_t size[] = { 0, 1, 2, 4, 32 };
	char text[1024];

	for (int i = 0; i < 5; i++)
		for (int k = 0; k < 5; k++) {
			snprintf(text, sizeof(text), ".version 8.8\n.target sm_90\n.address_size 64\n"
				 ".visible .entry k(.param .u64 out, .param .u64 in)\n%s\n{\n"
				 ".reg .b32 %%r<3>; .reg .b64 %%d<3>; .reg .pred %%p<2>;\n"
				 "ld.param.u64 %%d1, [out]; mov.u32 %%r1, %%cluster_nctarank;\n"
				 "mov.pred %%p1, %%is_explicit_cluster; @%%p1 add.u32 %%r1, %%r1, 100;\n"
				 "st.global.u32 [%%d1], %%r1; ret;\n}\n", how[i]);
			EXPECT_EQ(want[i][k], run_cluster(&self->p, text, 32, size[k], 1, self->out,
							  self->in))
				TH_LOG("%s, %u: %s%s", how[i], size[k], self->p.err, self->p.fault.text);
			if (!want[i][k])
				EXPECT_EQ(i == 3 && !k ? 1 : 100 + (i ? size[k] : 2), self->out[0]);
		}
}

/* ---- tensor maps ---- */

/* A map at %d2, of 20 rows of 40 words, behind it in memory; its boxes have 4 rows of 8 words. */
static struct tensor_map *new_map(void *at)
{
	struct tensor_map *m = at;

	*m = (struct tensor_map){ .magic = TENSOR_MAGIC, .form = TENSOR_TILED, .type = 2, .rank = 2,
				  .box = { 8, 4 }, .step = { 1, 1 }, .address = (uint64_t)at + 4096,
				  .last = { 39, 19 }, .rest = { 160 } };
	return m;
}

#define TENSOR(to, at, coordinates)						\
	"cp.async.bulk.tensor.2d.shared::cluster.global.tile." TX " [" to "], [" at ", {" coordinates \
	"}], [%r2];\n"

TEST_F(async, boxes_of_tensors_come_to_one_block_or_several)
{
	uint32_t *data = self->in + 1024;

	new_map(self->in);
	/* inside, across an edge, and outside; the box begins at %r3 rounded up to 128 */
	RUN(32, "add.u32 %r3, %r3, 127; and.b32 %r3, %r3, -128;\n" FETCH(128, TENSOR("%r3", "%d2", "16, 5")));
	ALL(32, data[(5 + t / 8) * 40 + 16 + t % 8]);
	RUN(32, FETCH(128, "mov.u32 %r5, -2; mov.u32 %r6, 18;\n" TENSOR("%r3", "%d2", "%r5, %r6")));
	ALL(32, t % 8 < 2 || t / 8 > 1 ? 0 : data[(18 + t / 8) * 40 + t % 8 - 2]);
	RUN(32, FETCH(128, TENSOR("%r3", "%d2", "8, -1")));
	ALL(32, t < 8 ? 0 : data[(t / 8 - 1) * 40 + 8 + t % 8]);
	RUN(32, FETCH(128, TENSOR("%r3", "%d2", "0, 0x7fffffff")));
	ALL(32, 0);
	CLUSTERS(4, 2, 32, INIT(1)
		 "@%p7 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;\nmov.b16 %h1, 3;\n" MEET
		 "setp.eq.u32 %p3, %r20, 1; and.pred %p3, %p3, %p7;\n@%p3 cp.async.bulk.tensor.2d.shared::cluster.global." TX ".multicast::cluster [%r3],"
		 " [%d2, {8, 2}], [%r2], %h1;\n"
		 "$v:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra $v;\n"
		 "shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r3; ld.shared.u32 %r9, [%r5];\n" MEET);
	for (uint32_t t = 0; t < 128; t++) {
		ASSERT_EQ(data[(2 + t % 32 / 8) * 40 + 8 + t % 8], self->out[t]) TH_LOG("thread %u", t);
	}
}

TEST_F(async, damaged_tensor_maps_lead_nowhere)
{
	static const struct {
		unsigned int at, value, bytes;
		enum ptx_fault_kind kind;
	} damage[] = {
#define HURT(f, v, k) { offsetof(struct tensor_map, f), v, sizeof(((struct tensor_map *)0)->f), k }
		HURT(magic, 1, PTX_ILLEGAL_INSN), HURT(form, TENSOR_IM2COL, PTX_ILLEGAL_INSN),
		HURT(type, 13, PTX_ILLEGAL_INSN), HURT(type, 255, PTX_ILLEGAL_INSN),
		HURT(rank, 3, PTX_ILLEGAL_INSN), HURT(rank, 255, PTX_ILLEGAL_INSN),
		HURT(interleave, 1, PTX_ILLEGAL_INSN), HURT(swizzle, 4, PTX_ILLEGAL_INSN),
		HURT(swizzle, 3, PTX_ILLEGAL_INSN), HURT(box[0], 0, PTX_ILLEGAL_INSN),
		HURT(box[0], 257, PTX_ILLEGAL_INSN), HURT(box[0], 65532, PTX_ILLEGAL_INSN),
		HURT(box[0], 6, PTX_ILLEGAL_INSN), HURT(box[1], 0, PTX_ILLEGAL_INSN),
		HURT(box[1], 65535, PTX_ILLEGAL_INSN), HURT(step[1], 0, PTX_ILLEGAL_INSN),
		HURT(stride[0], -1, PTX_ILLEGAL_ADDRESS), HURT(stride[0], 1 << 20, PTX_ILLEGAL_ADDRESS),
		HURT(rest[0], 161, PTX_MISALIGNED), HURT(box[1], 100, PTX_OK),
	};

	for (unsigned int i = 0; i < sizeof(damage) / sizeof(damage[0]); i++) {
		memcpy((char *)new_map(self->in) + damage[i].at, &damage[i].value, damage[i].bytes);
		EXPECT_EQ(damage[i].kind ? -EFAULT : 0,
			  run(&self->p, HEAD INIT(1) TENSOR("dyn", "%d2", "0, 1") TAIL, 1, 1, self->out,
			      self->in)) TH_LOG("%u: %s", i, self->p.err);
		EXPECT_EQ(damage[i].kind, self->p.fault.kind) TH_LOG("%u: %s", i, self->p.fault.text);
	}
	new_map(self->in)->address = (uint64_t)window() + WINDOW_SIZE - 16;
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, INIT(1) TENSOR("%r3", "%d2", "0, 0"));
	new_map(self->in)->address = 4096;
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, INIT(1) TENSOR("%r3", "%d2", "0, 0"));
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, INIT(1) "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
	       " [%d2, {0, 0}], [%r3];\n");
	new_map(self->in)->box[1] = 256;
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, INIT(1) TENSOR("dyn+64", "%d2", "0, 0"));
	new_map(self->in);
	FAULTS(PTX_MISALIGNED, 1, INIT(1) TENSOR("%r3+8", "%d2", "0, 0"));
	FAULTS(PTX_MISALIGNED, 1, INIT(1) TENSOR("%r3", "%d2+32", "0, 0"));
	FAULTS(PTX_ILLEGAL_ADDRESS, 1, INIT(1) TENSOR("%r3", "64", "0, 0"));
	FAULTS(PTX_ILLEGAL_INSN, 1, TENSOR("%r3", "%d2", "0, 0"));
	new_map(self->in)->type = 1;
	FAULTS(PTX_ILLEGAL_INSN, 1, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group"
	       " [%d2, {0, 0}], [%r3];\n");
}

TEST_F(async, what_is_missing_is_named)
{
	static const char *const missing[][2] = {
		{ "cp.async.bulk.tensor.3d.shared::cluster.global.im2col." TX
		  " [%r3], [%d2, {%r1, %r1, %r1}], [%r2], {%h1};\n", "im2col" },
		{ "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4." TX
		  " [%r3], [%d2, {%r1, %r1, %r1, %r1, %r1}], [%r2];\n", "tile::gather4" },
		{ "cp.async.bulk.tensor.1d.shared::cta.global." TX ".cta_group::2 [%r3], [%d2, {%r1}], [%r2];\n",
		  "cta_group::2" },
		{ "cp.async.bulk.shared::cta.global." TX ".ignore_oob [%r3], [%d2], 16, 0, 0, [%r2];\n",
		  "ignore_oob" },
		{ "st.bulk.shared::cta [%r3], 16, 5;\n", "other than 0" },
	};
	char text[4096];

	for (unsigned int i = 0; i < sizeof(missing) / sizeof(missing[0]); i++) {
		snprintf(text, sizeof(text), "%s%s%s", HEAD, missing[i][0], TAIL);
		EXPECT_EQ(-ENOTSUP, run(&self->p, text, 1, 1, self->out, self->in));
		EXPECT_NE(NULL, strstr(self->p.err, missing[i][1])) TH_LOG("%s", self->p.err);
	}
}

TEST_HARNESS_MAIN
