// SPDX-License-Identifier: Apache-2.0
/*
 * hostile_ptx.c - kernels and texts that try to escape: they break their own context, nothing else.
 *
 * Each kernel runs in a context of its own, in this process, whose memory it must not read. It
 * copies what it reads to `out`, which is checked for the secret; then the next context must work.
 */
#include "api.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define SECRET 0x5ec2e75ec2e7ull

static uint64_t secret[512] __attribute__((aligned(4096)));

static double clock_of(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static double seconds(void)
{
	return clock_of(CLOCK_MONOTONIC);
}

/* %d1: out, %d2: at, %r1: thread, %d3: at + 4 * thread, %d4: at + 4096 * thread */
#define HEAD(vars)							\
	".version 8.7\n.target sm_100\n.address_size 64\n"		\
	".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 v);\n" \
	".extern .func (.param .b64 r) malloc (.param .b64 n);\n"	\
	".extern .func free (.param .b64 p);\n"				\
	".extern .shared .align 16 .b8 dyn[];\n"			\
	".global .align 8 .b8 fmt[8] = {37, 115, 10, 0};\n"		\
	".func (.param .b32 r) rec (.param .b32 n) {\n"			\
	".reg .b32 %x<4>; .local .align 16 .b8 big[256]; .reg .b64 %y<3>;\n" \
	"ld.param.u32 %x1, [n]; add.u32 %x1, %x1, 1; mov.u64 %y1, big; st.local.u32 [%y1], %x1;\n" \
	"{ .param .b32 a; st.param.b32 [a], %x1; .param .b32 b; call.uni (b), rec, (a);\n" \
	" ld.param.b32 %x2, [b]; } ld.local.u32 %x3, [%y1]; add.u32 %x2, %x2, %x3;\n" \
	"st.param.b32 [r], %x2; ret; }\n"				\
	".func (.param .b32 r) one (.param .b32 n) {\n"			\
	".reg .b32 %x<4>; mov.u32 %x1, 1; st.param.b32 [r], %x1; ret; }\n" \
	".visible .entry k(.param .u64 out, .param .u64 at, .param .align 16 .b8 blob[64])\n{\n" \
	".reg .pred %p<8>; .reg .b16 %h<4>; .reg .b32 %r<40>; .reg .b64 %d<40>;" \
	" .reg .b128 %q<4>;\n" \
	".reg .f32 %f<40>; .reg .f64 %g<4>;\n" vars			\
	"ld.param.u64 %d1, [out]; ld.param.u64 %d2, [at]; mov.u32 %r1, %tid.x;\n" \
	"mov.u32 %r9, 0; mov.u64 %d9, 0; mov.f32 %f1, 0f3f800000;\n"	\
	"mul.wide.u32 %d3, %r1, 4; add.u64 %d3, %d3, %d2;\n"		\
	"mul.wide.u32 %d4, %r1, 4096; add.u64 %d4, %d4, %d2;\n"

/* What was read is written out. */
#define TAIL								\
	"mul.wide.u32 %d5, %r1, 8; add.u64 %d5, %d5, %d1; cvt.u64.u32 %d6, %r9;" \
	" or.b64 %d9, %d9, %d6;\n" \
	"st.global.u64 [%d5], %d9; ret;\n}\n"

#define TEXT(vars, body) HEAD(vars) body TAIL

struct outcome {
	CUresult load, run;
	bool leaked;
	double seconds;		/* of CPU time: the machine may be busy */
};

static CUdevice device;

/* Loads and runs @text in a context of its own. The result is the first error. */
static CUresult run_at(const char *text, uint64_t at, unsigned int threads, struct outcome *o)
{
	struct { uint64_t out, at; uint8_t blob[64]; } args;
	size_t size = 0, off, len;
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &args, CU_LAUNCH_PARAM_BUFFER_SIZE,
			  &size, CU_LAUNCH_PARAM_END };
	double begin = clock_of(CLOCK_PROCESS_CPUTIME_ID);
	uint64_t *host;
	CUcontext ctx;
	CUfunction f;
	CUmodule m;
	CUresult r;

	memset(o, 0, sizeof(*o));
	if (cuCtxCreate(&ctx, NULL, 0, device))
		return CUDA_ERROR_UNKNOWN;
	memset(&args, 0, sizeof(args));
	r = cuMemHostAlloc((void **)&host, 65536, 0);
	if (!r) {
		memset(host, 0, 65536);
		args.out = (uint64_t)host;
		args.at = at;
		o->load = r = cuModuleLoadData(&m, text);
	}
	if (!r)
		r = cuModuleGetFunction(&f, m, "k");
	for (int i = 0; !r && !cuFuncGetParamInfo(f, i, &off, &len); i++)
		size = off + len < sizeof(args) ? off + len : sizeof(args);
	if (!r)
		r = cuLaunchKernel(f, 1, 1, 1, threads, 1, 1, 0, NULL, NULL, extra);
	if (!r)
		o->run = r = cuCtxSynchronize();
	for (int i = 0; i < 8192; i++)
		o->leaked |= host[i] == SECRET || (uint32_t)host[i] == (uint32_t)SECRET;
	cuCtxDestroy(ctx);
	o->seconds = clock_of(CLOCK_PROCESS_CPUTIME_ID) - begin;
	return r;
}

static bool works(void)
{
	struct outcome o;

	return !run_at(TEXT("", "mov.u32 %r9, 5;\n"), 0, 64, &o);
}

FIXTURE(hostile) {
	uint64_t inside;	/* memory that the kernels may use */
};

FIXTURE_SETUP(hostile)
{
	struct rlimit no_core = { 0, 0 };

	setrlimit(RLIMIT_CORE, &no_core);
	for (int i = 0; i < 512; i++)
		secret[i] = SECRET;
	OK(cuInit(0));
	OK(cuDeviceGet(&device, 0));
	ASSERT_TRUE(works());
}
FIXTURE_TEARDOWN(hostile)
{
	EXPECT_TRUE(works());
}

#define REFUSED(text, at, ...) do {					\
	static const CUresult may[] = { __VA_ARGS__ };			\
	struct outcome o_;						\
	CUresult r_ = run_at(text, at, 64, &o_);			\
	bool ok_ = false;						\
	for (unsigned int i_ = 0; i_ < sizeof(may) / sizeof(may[0]); i_++) \
		ok_ |= r_ == may[i_];					\
	EXPECT_TRUE(ok_) TH_LOG("line %d: result %d", __LINE__, r_);	\
	EXPECT_FALSE(o_.leaked) TH_LOG("line %d: the secret is out", __LINE__); \
	EXPECT_LT(o_.seconds, 20) TH_LOG("line %d: %.1f s", __LINE__, o_.seconds); \
} while (0)

#define BAD_ADDRESS CUDA_ERROR_ILLEGAL_ADDRESS
#define BAD_PTX CUDA_ERROR_INVALID_PTX

static const char *const reads[] = {
	"ld.global.u64 %d9, [%d2];\n",
	"ld.u64 %d9, [%d2];\n",
	"ld.global.u32 %r9, [%d3];\n",
	"ld.u32 %r9, [%d3];\n",
	"ld.global.u64 %d9, [%d4];\n",
	"ld.global.nc.u64 %d9, [%d2];\n",
	"ld.volatile.global.u64 %d9, [%d2];\n",
	"ld.const.u64 %d9, [%d2];\n",
	"ld.global.v2.u64 {%d9, %d8}, [%d2];\n",
	"ld.global.v4.u32 {%r9, %r8, %r7, %r6}, [%d2];\n",
	"mul.wide.u32 %d8, %r1, 16; add.u64 %d8, %d8, %d2; ld.global.v2.u64 {%d9, %d7}, [%d8];\n",
	"mul.wide.u32 %d8, %r1, 48; add.u64 %d8, %d8, %d2;"
	" ld.global.v4.u32 {%r9, %r8, %r7, %r6}, [%d8];\n",
	"ld.global.b128 %q1, [%d2]; mov.b128 {%d9, %d8}, %q1;\n",
	"ldu.global.u64 %d9, [%d2];\n",
	"atom.global.add.u64 %d9, [%d2], 0;\n",
	"atom.global.or.b32 %r9, [%d3], 0;\n",
	"atom.global.cas.b64 %d9, [%d2], 1, 2;\n",
	"atom.exch.b64 %d9, [%d2], 2;\n",
	"mov.b128 %q1, {%d9, %d9}; atom.global.exch.b128 %q2, [%d2], %q1;"
	" mov.b128 {%d9, %d8}, %q2;\n",
	"mov.u32 %r5, dyn; cp.async.ca.shared.global [%r5], [%d2], 16; cp.async.wait_all;"
	" ld.shared.u64 %d9, [%r5];\n",
	"{ .shared .align 16 .b8 z[64]; .shared .align 8 .b64 b; mov.u32 %r5, z; mov.u32 %r6, b;"
	" mbarrier.init.shared.b64 [%r6], 1; cp.async.bulk.shared::cluster.global."
	"mbarrier::complete_tx::bytes [%r5], [%d2], 16, [%r6]; ld.shared.u64 %d9, [%r5]; }\n",
	"mapa.u64 %d8, %d2, 1; ld.u64 %d9, [%d8];\n",
	"mapa.shared::cluster.u64 %d8, %d2, 0; ld.shared::cluster.u64 %d9, [%d8+0x80000];\n",
	"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%d2];\n",
	"wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {%f2,%f3,%f4,%f5,%f6,%f7,%f8,%f9}, [%d2];"
	" mov.b32 %r9, %f2;\n",
	"{ .param .b64 q0; st.param.b64 [q0], %d2; .param .b64 q1; st.param.b64 [q1], %d1;"
	" .param .b32 q2; call.uni (q2), vprintf, (q0, q1); ld.param.b32 %r9, [q2]; }\n",
	"tex.1d.v4.u32.s32 {%r9, %r8, %r7, %r6}, [%d2, {%r1}];\n",
	"mov.u32 %r5, 0; suld.b.1d.b32.trap %r9, [%d2, {%r5}];\n",
	"st.global.u64 [%d1], %d2; mov.u64 %d8, fmt; cvta.global.u64 %d8, %d8;"
	"{ .param .b64 q0; st.param.b64 [q0], %d8; .param .b64 q1; st.param.b64 [q1], %d1;"
	" .param .b32 q2; call.uni (q2), vprintf, (q0, q1); ld.param.b32 %r9, [q2]; }\n",
};

TEST_F_TIMEOUT(hostile, reads_of_the_process_are_illegal, 600)
{
	for (unsigned int i = 0; i < sizeof(reads) / sizeof(reads[0]); i++) {
		struct outcome o;
		char text[16384];
		CUresult r;

		snprintf(text, sizeof(text), "%s%s%s", HEAD(""), reads[i], TAIL);
		r = run_at(text, (uint64_t)secret, 64, &o);
		EXPECT_TRUE(r == BAD_ADDRESS || r == BAD_PTX) TH_LOG("%d from: %s", r, reads[i]);
		EXPECT_FALSE(o.leaked) TH_LOG("the secret is out: %s", reads[i]);
		r = run_at(text, 16, 64, &o);	/* a null pointer's neighbour */
		EXPECT_TRUE(r == BAD_ADDRESS || r == BAD_PTX) TH_LOG("%d from: %s", r, reads[i]);
		r = run_at(text, 0x8000000000000000ull, 64, &o);	/* no address at all */
		EXPECT_TRUE(r == BAD_ADDRESS || r == BAD_PTX) TH_LOG("%d from: %s", r, reads[i]);
		r = run_at(text, -16ull, 64, &o);	/* over the end of everything */
		EXPECT_TRUE(r == BAD_ADDRESS || r == BAD_PTX) TH_LOG("%d from: %s", r, reads[i]);
	}
}

static const char *const writes[] = {
	"st.global.u64 [%d2], %d1;\n", "st.u64 [%d2], %d1;\n", "st.global.u32 [%d3], %r1;\n",
	"st.global.u64 [%d4], %d1;\n", "st.global.v2.u64 [%d2], {%d1, %d1};\n",
	"st.global.v4.u32 [%d2], {%r1, %r1, %r1, %r1};\n",
	("mul.wide.u32 %d8, %r1, 16; add.u64 %d8, %d8, %d2;"
	 " st.global.v4.u32 [%d8], {%r1, %r1, %r1, %r1};\n"),
	"red.global.add.u64 [%d2], %d1;\n", "red.global.add.f32 [%d3], %f1;\n",
	"atom.global.inc.u32 %r9, [%d3], 77;\n",
	"wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%d2], {%f1,%f1,%f1,%f1,%f1,%f1,%f1,%f1};\n",
	"st.volatile.global.u64 [%d2], %d1;\n",
	"mov.u32 %r5, 0; sust.b.1d.b32.trap [%d2, {%r5}], %r1;\n",
	"{ .shared .align 16 .b8 z[64]; cp.async.bulk.global.shared::cta.bulk_group [%d2], [z], 64; }\n",
	("{ .shared .align 16 .b8 z[64];"
	 " cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d2], [z], 64; }\n"),
};

TEST_F_TIMEOUT(hostile, writes_to_the_process_are_illegal, 600)
{
	for (unsigned int i = 0; i < sizeof(writes) / sizeof(writes[0]); i++) {
		struct outcome o;
		char text[16384];
		CUresult r;

		snprintf(text, sizeof(text), "%s%s%s", HEAD(""), writes[i], TAIL);
		r = run_at(text, (uint64_t)secret, 64, &o);
		EXPECT_EQ(BAD_ADDRESS, r) TH_LOG("%d from: %s", r, writes[i]);
	}
	for (int i = 0; i < 512; i++)
		ASSERT_EQ(SECRET, secret[i]);
}

/* The last bytes that may be used, and accesses that hang over the end. */
TEST_F(hostile, accesses_over_the_end_of_registered_memory_are_illegal)
{
	static const char *const over[] = {
		"ld.global.v2.u64 {%d9, %d8}, [%d2];\n",
		"ld.global.v4.u32 {%r9, %r8, %r7, %r6}, [%d2];\n",
		"st.global.v2.u64 [%d2], {%d1, %d1};\n",
		("mov.u32 %r5, dyn; cp.async.cg.shared.global [%r5], [%d2], 16;"
		 " ld.shared.u64 %d9, [%r5];\n"),
	};
	uint8_t *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CUcontext ctx;

	OK(cuCtxCreate(&ctx, NULL, 0, device));
	memset(p, 0, 8192);
	*(uint64_t *)(p + 4096) = SECRET;	/* right behind */
	OK(cuMemHostRegister(p, 4096 - 8, CU_MEMHOSTREGISTER_PORTABLE));
	for (unsigned int i = 0; i < 4; i++) {
		char text[16384];

		snprintf(text, sizeof(text), "%s%s%s", HEAD(""), over[i], TAIL);
		REFUSED(text, (uint64_t)p + 4096 - 16, BAD_ADDRESS);
	}
	OK(cuMemHostUnregister(p));
	REFUSED(TEXT("", "ld.global.u64 %d9, [%d2];\n"), (uint64_t)p, BAD_ADDRESS);
	OK(cuCtxDestroy(ctx));
	munmap(p, 8192);
}

TEST_F(hostile, shared_memory_has_two_ends)
{
#define SH ".shared .align 16 .b8 sh[256];\n"
	REFUSED(TEXT(SH, "ld.shared.u32 %r9, [sh-4];\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT(SH, "ld.shared.v4.u32 {%r9,%r8,%r7,%r6}, [sh-16];\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT(SH, "st.shared.u32 [sh-4], %r1;\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT(SH, "ld.shared.u32 %r9, [-4];\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT(SH, "ld.shared.u32 %r9, [sh+256];\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT(SH, "ld.shared.u64 %d9, [sh+0x7ffffff0];\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT(SH, "mov.u32 %r5, 0xfffffffc; ld.shared.u32 %r9, [%r5];"
	" ld.shared.u32 %r8, [sh];\n"),
		0, BAD_ADDRESS);
	REFUSED(TEXT(SH, "mov.u64 %d8, sh; sub.u64 %d8, %d8, 16;"
	" ld.shared.v2.u64 {%d9, %d7}, [%d8];\n"),
		0, BAD_ADDRESS);
	REFUSED(TEXT(SH, "mov.u64 %d8, sh; cvta.shared.u64 %d8, %d8; sub.u64 %d8, %d8, 8;"
	" ld.u64 %d9, [%d8];\n"),
		0, BAD_ADDRESS);
	REFUSED(TEXT(SH, "shl.b32 %r5, %r1, 2; sub.u32 %r5, %r5, 64; st.shared.u32 [%r5], %r1;\n"),
		0, BAD_ADDRESS);
	REFUSED(TEXT(SH, "shl.b32 %r5, %r1, 4; ld.shared.v4.u32 {%r9,%r8,%r7,%r6}, [%r5];\n"),
		0, BAD_ADDRESS);
	REFUSED(TEXT(SH, "mov.u32 %r5, sh;"
	" atom.shared.add.u32 %r9, [%r5+256], 1;\n"), 0, BAD_ADDRESS);
	REFUSED(TEXT(SH, "cp.async.bulk.global.shared::cta.bulk_group [%d1], [sh+240], 32;\n"), 0,
		BAD_ADDRESS);
	REFUSED(TEXT(SH, "mov.u64 %d8, 4096; st.bulk.shared::cta [sh], %d8, 0;\n"), 0, BAD_ADDRESS);
	REFUSED(TEXT(SH, "mov.u32 %r5, sh; mapa.shared::cluster.u32 %r5, %r5, 1;"
	" ld.shared::cluster.u32 %r9, [%r5];\n"), 0, BAD_ADDRESS);
	REFUSED(TEXT(SH, "mov.u32 %r5, sh; mapa.shared::cluster.u32 %r5, %r5, 0;"
	" ld.shared::cluster.u64 %d9, [%r5+256];\n"), 0, BAD_ADDRESS);
	REFUSED(TEXT(SH, "mov.u32 %r5, sh; cp.async.ca.shared.global [%r5-16], [%d1], 16;\n"), 0,
		BAD_ADDRESS);
	REFUSED(TEXT(SH, "mov.u32 %r5, sh;"
	" ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r9,%r8,%r7,%r6},"
		     " [%r5+256];\n"), 0, BAD_ADDRESS);
	/* half of it over the end */
	REFUSED(TEXT(".shared .align 16 .b8 odd[20];\n", "mov.u32 %r5, odd;"
	" ld.shared.u64 %d9, [%r5+16];\n"), 0, BAD_ADDRESS);
	REFUSED(TEXT(".shared .b8 sh[0xfffffff0];\n", "st.shared.u32 [sh], %r1;\n"), 0, BAD_PTX,
		CUDA_ERROR_INVALID_VALUE);
}

TEST_F(hostile, parameters_have_two_ends_and_are_read_only)
{
	REFUSED(TEXT("", "ld.param.u32 %r9, [out-4];\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT("", "ld.param.u64 %d9, [out-8];\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT("", "ld.param.v4.u32 {%r9,%r8,%r7,%r6}, [out-16];\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT("", "ld.param.u64 %d9, [blob+64];\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT("", "ld.param.u64 %d9, [blob+0x7ffffff8];\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT("", "mov.b64 %d8, out; sub.u64 %d8, %d8, 8; ld.param.u64 %d9, [%d8];\n"), 0,
		BAD_ADDRESS);
	REFUSED(TEXT("", "mov.b64 %d8, blob; add.u64 %d8, %d8, 64; ld.param.u64 %d9, [%d8];\n"), 0,
		BAD_ADDRESS);
	/* the last bytes may be read, and nothing over the end or beyond it */
	REFUSED(TEXT("", "mov.b64 %d8, blob; add.u64 %d8, %d8, 56; ld.param.u64 %d9, [%d8];\n"), 0,
		CUDA_SUCCESS);
	REFUSED(TEXT("", "mov.b64 %d8, blob; add.u64 %d8, %d8, 60; ld.param.u64 %d9, [%d8];\n"), 0,
		BAD_ADDRESS);
	REFUSED(TEXT("", "mov.b64 %d8, blob; add.u64 %d8, %d8, 4096; ld.param.u64 %d9, [%d8];\n"), 0,
		BAD_ADDRESS);
	REFUSED(TEXT("", "mov.b64 %d8, out; shl.b64 %d7, %d3, 3; sub.u64 %d8, %d8, %d7;"
	" ld.param.u64 %d9, [%d8-64];\n"),
		0, BAD_ADDRESS);
	REFUSED(TEXT("", "mov.b64 %d8, blob; mul.wide.u32 %d7, %r1, 8; add.u64 %d8, %d8, %d7;"
	" ld.param.u64 %d9, [%d8];\n"),
		0, BAD_ADDRESS);
	REFUSED(TEXT("", "mov.b64 %d8, out; cvta.param.u64 %d8, %d8; ld.u64 %d9, [%d8-8];\n"), 0,
		BAD_ADDRESS);
	REFUSED(TEXT("", "mov.b64 %d8, out; cvta.param.u64 %d8, %d8; st.u64 [%d8], %d1;\n"), 0,
		BAD_ADDRESS, CUDA_ERROR_INVALID_ADDRESS_SPACE);
	REFUSED(TEXT("", "mov.b64 %d8, out; cvta.param.u64 %d8, %d8;"
	" atom.add.u64 %d9, [%d8], 1;\n"), 0,
		BAD_ADDRESS, CUDA_ERROR_INVALID_ADDRESS_SPACE);
	REFUSED(TEXT("", "st.param.u64 [out], %d1;\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT("", "mov.b64 %d8, out; st.param.u64 [%d8], %d1;\n"), 0, BAD_ADDRESS, BAD_PTX);
}

TEST_F(hostile, local_memory_has_two_ends)
{
#define LOC ".local .align 16 .b8 loc[64];\n"
	REFUSED(TEXT(LOC, "ld.local.u32 %r9, [loc-4];\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT(LOC, "st.local.u64 [loc+64], %d1;\n"), 0, BAD_ADDRESS, BAD_PTX);
	REFUSED(TEXT(LOC, "mov.u64 %d8, loc; sub.u64 %d8, %d8, %d4;"
	" ld.local.u64 %d9, [%d8-8];\n"), 0,
		BAD_ADDRESS);
	REFUSED(TEXT(LOC, "mov.u64 %d8, loc; cvta.local.u64 %d8, %d8; add.u64 %d8, %d8, %d4;"
		     " ld.u64 %d9, [%d8+64];\n"), 0, BAD_ADDRESS);
	REFUSED(TEXT(LOC, "mov.u64 %d8, loc;"
	" st.local.v2.u64 [%d8+56], {%d1, %d1};\n"), 0, BAD_ADDRESS,
		CUDA_ERROR_MISALIGNED_ADDRESS);
	REFUSED(TEXT(".local .b8 loc[0x7fffffff];\n", "st.local.u8 [loc], %r1;\n"), 0, BAD_PTX);
	REFUSED(TEXT("", "{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 b;"
		     " call.uni (b), one, (a); ld.param.b32 %r9, [b-400];"
		     " }\n"), 0, BAD_ADDRESS, BAD_PTX);
}

/* Half a MiB for each of 1024 threads is what CUDA allows; it is there when it is touched. */
TEST_F_TIMEOUT(hostile, the_largest_local_arrays_work_or_are_refused, 600)
{
	struct outcome o;
	CUresult r = run_at(TEXT(".local .b8 loc[524288];\n",
				 "mov.u64 %d8, loc; mul.wide.u32 %d7, %r1, 500;"
				 " add.u64 %d8, %d8, %d7;"
				 "st.local.u32 [%d8], %r1;"
				 " ld.local.u32 %r9, [%d8];\n"), 0, 1024, &o);

	EXPECT_TRUE(r == CUDA_SUCCESS || r == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) TH_LOG("%d", r);
	REFUSED(TEXT(".local .b8 loc[524304];\n", "st.local.u8 [loc], %r1;\n"), 0, BAD_PTX);
}

/* A surface of 8 x 4 x 2 words; the x coordinate counts bytes. */
TEST_F(hostile, surfaces_have_an_end_on_each_side)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 8, .Height = 4, .Depth = 2,
				      .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1,
				      .Flags = CUDA_ARRAY3D_SURFACE_LDST };
	CUDA_RESOURCE_DESC r = { .resType = CU_RESOURCE_TYPE_ARRAY };
	CUsurfObject s;
	CUcontext ctx;

#define XYZ(x, y, z) "mov.u32 %r5, " #x "; mov.u32 %r6, " #y "; mov.u32 %r7, " #z ";" \
	" mov.u32 %r9, 7;\n"
#define LOAD(mode, x, y, z) TEXT("", XYZ(x, y, z) \
	"suld.b.3d.b32." mode " %r9, [%d2, {%r5, %r6, %r7, %r7}];\n")
#define STORE(mode, x, y, z) TEXT("", XYZ(x, y, z) \
	"sust.b.3d.b32." mode " [%d2, {%r5, %r6, %r7, %r7}], %r9;\n")
	OK(cuCtxCreate(&ctx, NULL, 0, device));
	OK(cuArray3DCreate(&r.res.array.hArray, &d));
	OK(cuSurfObjectCreate(&s, &r));
	REFUSED(LOAD("trap", 28, 3, 1), s, CUDA_SUCCESS);
	REFUSED(LOAD("trap", 32, 3, 1), s, BAD_ADDRESS);
	REFUSED(LOAD("trap", 0, 4, 1), s, BAD_ADDRESS);
	REFUSED(LOAD("trap", 0, 0, 2), s, BAD_ADDRESS);
	REFUSED(LOAD("trap", -4, 0, 0), s, BAD_ADDRESS);
	REFUSED(LOAD("trap", 0, -1, 0), s, BAD_ADDRESS);
	REFUSED(LOAD("trap", 0, 0, -1), s, BAD_ADDRESS);
	REFUSED(LOAD("trap", 0x7ffffffc, 0x7fffffff, 0x7fffffff), s, BAD_ADDRESS);
	REFUSED(LOAD("trap", 2, 0, 0), s, CUDA_ERROR_MISALIGNED_ADDRESS);
	REFUSED(STORE("trap", 32, 3, 1), s, BAD_ADDRESS);
	REFUSED(STORE("trap", 28, 4, 1), s, BAD_ADDRESS);
	REFUSED(STORE("trap", 28, 3, -1), s, BAD_ADDRESS);
	REFUSED(STORE("zero", 0x7ffffffc, -1, 0x7fffffff), s, CUDA_SUCCESS);
	REFUSED(STORE("clamp", 0x7ffffffc, -1, 0x7fffffff), s, CUDA_SUCCESS);
	REFUSED(LOAD("zero", -4, 0x7fffffff, -1), s, CUDA_SUCCESS);
	/* wider than a row */
	REFUSED(TEXT("", XYZ(0, 0, 0)
		     "suld.b.3d.v4.b64.zero {%d9, %d8, %d7, %d6}, [%d2, {%r5, %r6, %r7, %r7}];\n"),
		s, CUDA_SUCCESS, BAD_PTX);
	OK(cuSurfObjectDestroy(s));
	REFUSED(LOAD("zero", 0, 0, 0), s, BAD_ADDRESS);
	OK(cuCtxDestroy(ctx));
}

/* The kernel writes its format, which is longer than any conversion, or asks for any width. */
TEST_F(hostile, formats_without_measure_are_printed_in_time)
{
#define PRINT "{ .param .b64 q0; st.param.b64 [q0], %d1; .param .b64 q1; st.param.b64 [q1], %d9;" \
	" .param .b32 q2; call.uni (q2), vprintf, (q0, q1); }\n"
	int shown = dup(1), none = open("/dev/null", O_WRONLY | O_CLOEXEC);
	struct outcome o;

	ASSERT_EQ(1, dup2(none, 1));
	/* 64007 flags: more than any array of the executor has room for */
	EXPECT_EQ(0, run_at(TEXT("", "mov.u64 %d7, 0x2d2d2d2d2d2d2d25; mov.u64 %d8, %d1;\n"
				 "mov.u32 %r5, 0; more: st.global.u64 [%d8], %d7;\n"
				 "mov.u64 %d7, 0x2d2d2d2d2d2d2d2d; add.u64 %d8, %d8, 8;\n"
				 "add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 8001; @%p1 bra more;\n"
				 "mov.u64 %d7, 0x64; st.global.u64 [%d8], %d7; mov.u64 %d9, %d1;\n"
				 PRINT "mov.u64 %d9, 0;\n"), 0, 1, &o));
	/* %*d of two thousand millions, and %02000000000d */
	EXPECT_EQ(0, run_at(TEXT("", "mov.u64 %d7, 0x642a25; st.global.u64 [%d1], %d7;\n"
				 "mov.u64 %d7, 2000000000; st.global.u64 [%d1+8], %d7;"
				 " st.global.u64 [%d1+16], %d7; add.u64 %d9, %d1, 8;\n"
				 PRINT "mov.u64 %d9, 0;\n"), 0, 32, &o));
	EXPECT_LT(o.seconds, 2);
	EXPECT_EQ(0, run_at(TEXT("", "mov.u64 %d7, 0x3030303030323025; st.global.u64 [%d1], %d7;\n"
				 "mov.u64 %d7, 0x6430303030; st.global.u64 [%d1+8], %d7;"
				 " mov.u64 %d9, %d1;\n"
				 PRINT "mov.u64 %d9, 0;\n"), 0, 32, &o));
	EXPECT_LT(o.seconds, 2);
	dup2(shown, 1);
	close(shown);
	close(none);
}

TEST_F(hostile, calls_of_no_function_are_no_jumps)
{
#define CALL(to) TEXT("", "proto: .callprototype (.param .b32 _) _ (.param .b32 _);\n" to \
		"{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 b;" \
		" call (b), %d8, (a), proto; ld.param.b32 %r9, [b]; }\n")
	REFUSED(CALL("mov.u64 %d8, %d2;\n"), 0, CUDA_ERROR_INVALID_PC, CUDA_ERROR_ILLEGAL_INSTRUCTION);
	REFUSED(CALL("mov.u64 %d8, %d2;\n"), (uint64_t)works, CUDA_ERROR_INVALID_PC);
	REFUSED(CALL("mov.u64 %d8, %d2;\n"), (uint64_t)secret, CUDA_ERROR_INVALID_PC);
	REFUSED(CALL("mov.u64 %d8, one; add.u64 %d8, %d8, 4;\n"), 0, CUDA_ERROR_INVALID_PC);
	REFUSED(CALL("mov.u64 %d8, one; add.u64 %d8, %d8, %d3;\n"), 1 << 20, CUDA_ERROR_INVALID_PC);
}

TEST_F_TIMEOUT(hostile, recursion_without_end_ends, 600)
{
#define REC "{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 b; call.uni (b), rec, (a);" \
		" ld.param.b32 %r9, [b]; }\n"
	REFUSED(TEXT("", REC), 0, CUDA_ERROR_HARDWARE_STACK_ERROR, BAD_ADDRESS);
	REFUSED(TEXT(".shared .b8 sh[16];\n", "setp.gt.u32 %p1, %r1, 40; @%p1 bra over;\n" REC
		     "over: bar.sync 0;\n"), 0, CUDA_ERROR_HARDWARE_STACK_ERROR, BAD_ADDRESS);
	/* at the end of its stack it prints */
	REFUSED(HEAD("") "bra go;\n go: { .param .b32 a; st.param.b32 [a], %r1; .param .b32 b;"
		" call.uni (b), talk, (a); ld.param.b32 %r9, [b]; }\n" TAIL
		".func (.param .b32 r) talk (.param .b32 n) { .reg .b32 %x<4>; .reg .b64 %y<4>;\n"
		"ld.param.u32 %x1, [n]; mov.u64 %y1, fmt; cvta.global.u64 %y1, %y1;\n"
		"{ .param .b64 q0; st.param.b64 [q0], %y1; .param .b64 q1; st.param.b64 [q1], %y1;"
		" .param .b32 q2; call.uni (q2), vprintf, (q0, q1); }\n"
		"{ .param .b32 a; st.param.b32 [a], %x1; .param .b32 b; call.uni (b), talk, (a);"
		" ld.param.b32 %x2, [b]; } st.param.b32 [r], %x2; ret; }\n", 0,
		CUDA_ERROR_HARDWARE_STACK_ERROR, BAD_ADDRESS, BAD_PTX);
}

TEST_F_TIMEOUT(hostile, barriers_that_cannot_be_completed_end_the_launch, 600)
{
	REFUSED(TEXT("", "setp.lt.u32 %p1, %r1, 32; @%p1 bra a; bar.sync 1; bra b;"
	" a: bar.sync 2; b:\n"),
		0, CUDA_ERROR_LAUNCH_FAILED);
	REFUSED(TEXT("", "setp.lt.u32 %p1, %r1, 32; @%p1 bra a; bar.sync 1, 128; a:\n"), 0,
		CUDA_ERROR_LAUNCH_FAILED);
	REFUSED(TEXT("", "mov.u32 %r5, 99; bar.sync %r5;\n"), 0, CUDA_ERROR_ILLEGAL_INSTRUCTION);
	REFUSED(TEXT("", "mov.u32 %r5, 0xffffffff;"
	" bar.sync %r5;\n"), 0, CUDA_ERROR_ILLEGAL_INSTRUCTION);
	REFUSED(TEXT("", "mov.u32 %r5, 33; bar.sync 0, %r5;\n"), 0, CUDA_ERROR_ILLEGAL_INSTRUCTION);
	REFUSED(TEXT("", "mov.u32 %r5, %r1; bar.arrive 3, 1024; bar.sync 3, 2048;\n"), 0,
		CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ILLEGAL_INSTRUCTION);
}

TEST_F(hostile, the_device_heap_bears_misuse)
{
#define FREE(x) "{ .param .b64 q; st.param.b64 [q], " x "; call.uni free, (q); }\n"
#define MALLOC(x, n) "{ .param .b64 q; mov.u64 %d30, " n "; st.param.b64 [q], %d30;" \
" .param .b64 s;" \
	" call.uni (s), malloc, (q); ld.param.b64 " x ", [s]; }\n"
	struct outcome o;

	EXPECT_EQ(0, run_at(TEXT("", MALLOC("%d8", "64") FREE("%d2") FREE("%d1")
				 "add.u64 %d7, %d8, 16;\n" FREE("%d7") FREE("%d8") FREE("%d8")
				 "mov.u64 %d7, -16;\n" FREE("%d7") MALLOC("%d6", "-1")
				 MALLOC("%d6", "0") MALLOC("%d6", "0x7fffffffffffffff")),
			    (uint64_t)secret, 64, &o));
	EXPECT_FALSE(o.leaked);
	/* its own header, forged */
	EXPECT_EQ(0, run_at(TEXT("", MALLOC("%d8", "64") "setp.eq.u64 %p1, %d8, 0; @%p1 bra no;\n"
				 "mov.u64 %d6, 0x7ffff0; not.b64 %d7, %d6;"
				 " st.global.u64 [%d8-16], %d6;"
				 "st.global.u64 [%d8-8], %d7;\n" FREE("%d8") MALLOC("%d8", "4096")
				 "setp.eq.u64 %p1, %d8, 0; @%p1 bra no;"
				 " st.global.u64 [%d8+4088], %d7;\n"
				 "no:\n"), 0, 64, &o));
}

static const char forever[] = PTX_HEAD
	".visible .entry plain(.param .u64 p) { .reg .b32 %r<3>; a: add.u32 %r1, %r1, 1; bra a; }\n"
	".visible .entry waits(.param .u64 p) { .reg .b32 %r<3>; .reg .b64 %d<2>; .reg .pred %q;\n"
	"ld.param.u64 %d1, [p]; a: ld.volatile.global.u32 %r1, [%d1]; setp.eq.u32 %q, %r1, 0;"
	" @%q bra a; ret; }\n"
	".visible .entry meets(.param .u64 p) { .reg .b32 %r<3>; a: bar.sync 0; bra a; }\n"
	".visible .entry naps(.param .u64 p) { .reg .b32 %r<3>; a: nanosleep.u32 1000000; bra a;"
	" }\n"
	".visible .entry wide(.param .u64 p) { .reg .b32 %r<3>; bar.sync 0; ret; }\n"
	".visible .entry flat(.param .u64 p) { .reg .b32 %r<3>; ret; }\n"
	".visible .entry fork(.param .u64 p) { .reg .b32 %r<3>; .reg .pred %q;"
	" mov.u32 %r1, %tid.x;\n"
	"setp.lt.u32 %q, %r1, 7; @%q bra b; a: add.u32 %r1, %r1, 1; bra a; b: bar.sync 0; ret; }\n"
	".visible .entry die(.param .u64 p) { trap; }\n";
static const char *const names[] = { "plain", "waits", "meets", "naps", "wide", "flat", "fork" };

/* The process that runs it may end at any time. */
TEST_F_TIMEOUT(hostile, endless_kernels_end_with_their_process, 600)
{
	for (unsigned int i = 0; i < 7 * 2; i++) {
		bool killed = i & 1;
		double begin;
		pid_t pid = fork();
		int st;

		if (!pid) {
			/* a child of a program that used CUDA may not: it starts afresh */
			char num[16];

			snprintf(num, sizeof(num), "%d", i);
			execl("/proc/self/exe", "hostile_ptx", "--endless", num, NULL);
			_exit(99);
		}
		begin = seconds();
		if (killed) {
			nap_ms(400);
			kill(pid, SIGTERM);
		}
		ASSERT_EQ(pid, waitpid(pid, &st, 0));
		EXPECT_LT(seconds() - begin, 8) TH_LOG("%s", names[i / 2]);
		EXPECT_TRUE(killed ? WIFSIGNALED(st) : !st) TH_LOG("%s: %x", names[i / 2], st);
	}
}

/* What faults takes the context's other kernels with it. */
TEST_F_TIMEOUT(hostile, endless_kernels_end_with_their_context, 600)
{
	for (unsigned int i = 0; i < 7; i++) {
		void *args[] = { &(CUdeviceptr){ 0 } };
		CUstream s, t;
		CUcontext ctx;
		CUdeviceptr p;
		CUfunction f, die;
		CUmodule m;

		OK(cuCtxCreate(&ctx, NULL, 0, device));
		OK(cuMemAlloc(&p, 4096));
		OK(cuMemsetD8(p, 0, 4096));
		args[0] = &p;
		OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
		OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
		OK(cuModuleLoadData(&m, forever));
		OK(cuModuleGetFunction(&f, m, names[i]));
		OK(cuModuleGetFunction(&die, m, "die"));
		OK(cuFuncLoad(die));
		OK(cuLaunchKernel(f, 0x7fffffff, 65535, 1, 64, 1, 1, 0, s, args, NULL));
		nap_ms(100);
		FAILS(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
		OK(cuLaunchKernel(die, 1, 1, 1, 1, 1, 1, 0, t, args, NULL));
		FAILS(CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize(s));
		OK(cuCtxDestroy(ctx));
	}
}

static int endless(unsigned int i)
{
	void *args[] = { &(CUdeviceptr){ 0 } };
	CUcontext ctx;
	CUdeviceptr p;
	CUfunction f;
	CUmodule m;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx) ||
	    cuMemAlloc(&p, 4096) || cuMemsetD8(p, 0, 4096) || cuModuleLoadData(&m, forever) ||
	    cuModuleGetFunction(&f, m, names[i / 2]))
		return 98;
	args[0] = &p;
	if (cuLaunchKernel(f, 0x7fffffff, 65535, 1, 64, 1, 1, 0, NULL, args, NULL))
		return 97;
	nap_ms(200);
	if (i & 1)
		cuCtxSynchronize();
	exit(0);
}

/* ---- work that is not kernels ---- */

TEST_F(hostile, copies_of_what_is_gone_end_the_context)
{
	int fd = memfd_create("hostile", MFD_CLOEXEC);
	uint8_t *p, buf[64] = { 0 };
	CUcontext ctx;
	CUdeviceptr d;
	CUstream s;

	ASSERT_EQ(0, ftruncate(fd, 65536));
	p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	OK(cuCtxCreate(&ctx, NULL, 0, device));
	OK(cuMemHostRegister(p, 65536, 0));
	OK(cuMemAlloc(&d, 65536));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	ASSERT_EQ(0, ftruncate(fd, 0));		/* whoever else has the file can do this */
	cuMemcpyAsync(d, (CUdeviceptr)p, 65536, s);
	FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
	OK(cuCtxDestroy(ctx));
	OK(cuCtxCreate(&ctx, NULL, 0, device));
	OK(cuMemHostRegister(p, 65536, 0));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	cuStreamWaitValue32(s, (CUdeviceptr)p, 1, CU_STREAM_WAIT_VALUE_EQ);
	FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
	OK(cuCtxDestroy(ctx));
	OK(cuCtxCreate(&ctx, NULL, 0, device));
	OK(cuMemHostRegister(p, 65536, 0));
	OK(cuMemsetD8Async((CUdeviceptr)p, 1, 65536, NULL));
	FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
	OK(cuCtxDestroy(ctx));
	EXPECT_EQ(0, buf[0]);
	munmap(p, 65536);
	close(fd);
}

/* A graph may outlive the memory that its copies name. */
TEST_F(hostile, a_graph_of_copies_whose_memory_is_gone_ends_the_context)
{
	CUDA_MEMCPY3D c = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			    .WidthInBytes = 4 << 20, .Height = 1, .Depth = 1 };
	CUdeviceptr a, b;
	CUgraphExec ge;
	CUcontext ctx;
	CUgraphNode n;
	CUgraph g;

	OK(cuCtxCreate(&ctx, NULL, 0, device));
	OK(cuMemAlloc(&a, 4 << 20));
	OK(cuMemAlloc(&b, 4 << 20));
	c.srcDevice = a;
	c.dstDevice = b;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemcpyNode(&n, g, NULL, 0, &c, ctx));
	OK(cuGraphInstantiate(&ge, g, 0));
	OK(cuGraphLaunch(ge, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemFree(a));
	cuGraphLaunch(ge, NULL);
	FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
	OK(cuCtxDestroy(ctx));
}

/* ---- texts ---- */

static char *repeat(const char *before, const char *unit, size_t n, const char *after)
{
	size_t a = strlen(before), u = strlen(unit), z = strlen(after);
	char *s = malloc(a + u * n + z + 1), *p = s;

	memcpy(p, before, a);
	p += a;
	for (size_t i = 0; i < n; i++, p += u)
		memcpy(p, unit, u);
	memcpy(p, after, z + 1);
	return s;
}

TEST_F_TIMEOUT(hostile, texts_that_nest_or_grow_without_end_are_refused_soon, 900)
{
	static const struct {
		const char *before, *unit;
		size_t n;
		const char *after;
	} t[] = {
		{ PTX_HEAD ".global .u32 x = ", "{", 4 << 20, "0;" },
		{ PTX_HEAD ".global .u32 x[4] = {", "1,", 4 << 20, "1};" },
		{ HEAD(""), "{", 4 << 20, TAIL },
		{ HEAD("") "mov.u32 %r1, ", "-", 4 << 20, "1;" TAIL },
		{ HEAD("") "mov.u32 %r1, ", "[", 4 << 20, "1;" TAIL },
		{ HEAD("") "mov.u32 %r1, ", "{", 4 << 20, "1;" TAIL },
		{ HEAD("") "mov.u32 ", "%r1|", 4 << 20, "%r1, 1;" TAIL },
		{ HEAD("") "mov.u32 ", "(", 4 << 20, "%r1, 1;" TAIL },
		{ HEAD("") "mov", ".u32", 4 << 20, " %r1, 1;" TAIL },
		{ HEAD("") "mov.u32 %r1, 1", ",1", 4 << 20, ";" TAIL },
		{ HEAD("") ".reg .b32 %z<0x7fffffff>;\n", "", 0, "mov.u32 %z1, 1;" TAIL },
		{ HEAD(""), ".reg .b32 %z<0x7fffff>;\n", 1000, TAIL },
		{ PTX_HEAD ".visible .entry k(.param .b8 a[0x7fffffff]", ", .param .b8 b[0x7fffffff]",
		  100, ") { ret; }" },
		{ PTX_HEAD ".visible .entry k(.param .b8 a", ", .param .b8 a", 100000, ") { ret;"
		" }" },
		{ PTX_HEAD, ".global .b8 x[0xffffffffff];\n", 2, "" },
		{ PTX_HEAD, ".global .b8 x[0xffffffffff][0xffffffffff];\n", 1, "" },
		{ PTX_HEAD, ".visible ", 4 << 20, "" },
		{ PTX_HEAD, ".section {", 4 << 20, "" },
		{ PTX_HEAD "//", "x", 16 << 20, "" },
		{ PTX_HEAD "/*", "x", 16 << 20, "" },
		{ PTX_HEAD ".visible .entry ", "x", 16 << 20, "() { ret; }" },
		{ PTX_HEAD ".visible .entry k() { .reg .b32 %r<9>; brx.idx %r1, t;"
		" t: .branchtargets a",
		  ",a", 1 << 20, "; a: ret; }" },
	};

	for (unsigned int i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		char *s = repeat(t[i].before, t[i].unit, t[i].n, t[i].after);
		struct outcome o;
		CUresult r = run_at(s, 0, 64, &o);

		EXPECT_NE(0, r) TH_LOG("text %u", i);
		EXPECT_LT(o.seconds, 10) TH_LOG("text %u: %.1f s", i, o.seconds);
		free(s);
	}
	EXPECT_TRUE(works());
}

/* They are legal, only large: they compile, or are refused by name, in bounded time. */
TEST_F_TIMEOUT(hostile, large_kernels_compile_or_are_refused_in_time, 900)
{
	static const struct {
		const char *before, *unit;
		size_t n;
		const char *after;
	} t[] = {
		{ HEAD(""), "add.u32 %r9, %r9, %r1; xor.b32 %r1, %r9, %r1;\n", 20000, TAIL },
		{ HEAD(""), "{ setp.lt.u32 %p1, %r9, %r1; @%p1 bra l; add.u32 %r9, %r9, 1;"
		" l: }\n", 2000,
		  TAIL },
		{ HEAD(""), "ld.global.u32 %r9, [%d3]; st.global.u32 [%d1], %r9;\n", 1000, TAIL },
	};

	for (unsigned int i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		char *s = repeat(t[i].before, t[i].unit, t[i].n, t[i].after);
		struct outcome o;
		CUresult r = run_at(s, 0, 64, &o);

		TH_LOG("text %u: result %d after %.1f s", i, r, o.seconds);
		EXPECT_LT(o.seconds, 60) TH_LOG("text %u: %.1f s", i, o.seconds);
		free(s);
	}
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--endless"))
		return endless(atoi(argv[2]));
	return test_harness_run(argc, argv);
}
