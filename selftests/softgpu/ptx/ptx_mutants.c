// SPDX-License-Identifier: Apache-2.0
/*
 * ptx_mutants.c - damaged PTX: it may be refused or run, but must not end or hang the process.
 *
 * Each mutant runs in the test's own process; if it compiles, it is launched, with a stop flag
 * that is raised after a while, on a window without valuable data.  PTX_MUTANTS is the number of
 * mutants, PTX_SEED the first seed.
 */
#include "ptx_test.h"

#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

static const char sample[] =
	".version 8.0\n.target sm_90\n.address_size 64\n"
	".global .align 4 .b8 tab[16] = {1, 2, 3};\n.global .u64 ptr = generic(tab)+4;\n"
	".extern .shared .align 16 .b8 dyn[];\n"
	".func (.param .b32 r) f (.param .b32 a) { .reg .b32 %x<4>; ld.param.u32 %x1, [a];\n"
	" add.u32 %x2, %x1, 1; st.param.b32 [r], %x2; ret; }\n"
	".visible .entry k(.param .u64 p, .param .u32 n)\n{\n"
	".reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<20>; .reg .b64 %rd<10>; .reg .f32 %f<8>;\n"
	".local .align 8 .b8 loc[64]; .shared .align 16 .b8 sh[256];"
	" .shared .align 8 .b64 bar;\n"
	"ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n]; cvta.to.global.u64 %rd2, %rd1;\n"
	"mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mad.lo.s32 %r4, %r3, 64, %r2;\n"
	"mul.wide.s32 %rd3, %r4, 4; add.s64 %rd4, %rd2, %rd3; setp.ge.s32 %p1, %r4, %r1;\n"
	"@%p1 bra $done;\nld.global.u32 %r5, [%rd4]; mov.u32 %r6, sh; shl.b32 %r7, %r2, 2;\n"
	"add.s32 %r8, %r6, %r7; st.shared.u32 [%r8], %r5; bar.sync 0; mov.u32 %r9, 0;\n"
	"$loop:\n ld.shared.u32 %r10, [%r8]; add.s32 %r9, %r9, 1; and.b32 %r11, %r10, 3;\n"
	"setp.lt.s32 %p2, %r9, %r11; @%p2 bra $loop;\nshfl.sync.bfly.b32 %r12|%p3, %r9, 1, 31, -1;\n"
	"{ .param .b32 q0; st.param.b32 [q0], %r12; .param .b32 q1; call.uni (q1), f, (q0);\n"
	" ld.param.b32 %r13, [q1]; }\natom.global.add.u32 %r14, [%rd2], %r13;\n"
	"cvt.rn.f32.s32 %f1, %r13; fma.rn.f32 %f2, %f1, 0f3F000000, %f1; ex2.approx.f32 %f3, %f2;\n"
	"cvt.rn.f16.f32 %h1, %f3; mov.b32 %r15, {%h1, %h1}; st.local.v2.u32 [loc], {%r15, %r14};\n"
	"ld.local.u32 %r16, [loc+4]; vote.sync.ballot.b32 %r17, %p2, -1; prmt.b32 %r18, %r16, %r17,"
	" 0x5140;\n@!%p2 st.global.u32 [%rd4], %r18;\n"
	"setp.eq.u32 %p3, %r2, 0; mov.u32 %r19, bar; @!%p3 bra $on;\n"
	"mbarrier.init.shared::cta.b64 [%r19], 1; fence.mbarrier_init.release.cluster;\n"
	"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r19], 64;\n"
	"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [sh], [%rd2], 64, [%r19];\n"
	"$on:\nbarrier.cluster.arrive; barrier.cluster.wait; mapa.shared::cluster.u32 %r1, %r19, 0;\n"
	"$wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%r19], 0; @!%p1 bra $wait;\n"
	"@%p3 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {%r1, 3}], [sh];\n"
	"$done:\n ret;\n}\n";

static uint64_t state;

static uint32_t rnd(uint32_t n)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(state >> 33) % n;
}

static size_t mutate(char *s, size_t n, size_t cap)
{
	static const char chars[] = "0123456789abcdefrux%$.,;:[](){}<>@!|+-_ \n\"/";
	static const char *const words[] = { ".u64", ".f32", ".pred", "bra $loop;", "%r1", "%rd2",
		"ret;", "bar.sync 0;", "{", "}", "0xffffffffffffffff", ".param", "[%rd1+-8]", "-1",
		"exit;", "%tid.x", "call f, (q0);", ".v4", ".shared", "$done:", "brx.idx %r1, $l;" };
	size_t at = rnd(n), len, from;
	const char *w;

	switch (rnd(6)) {
	case 0:
		s[at] = chars[rnd(sizeof(chars) - 1)];
		break;
	case 1:			/* cut something out */
		len = rnd(12) + 1;
		len = len > n - at ? n - at : len;
		memmove(s + at, s + at + len, n - at - len);
		n -= len;
		break;
	case 2:			/* a word anywhere */
		w = words[rnd(sizeof(words) / sizeof(words[0]))];
		len = strlen(w);
		if (n + len < cap) {
			memmove(s + at + len, s + at, n - at);
			memcpy(s + at, w, len);
			n += len;
		}
		break;
	case 3:			/* a piece copied elsewhere */
		from = rnd(n);
		len = rnd(40) + 1;
		len = len > n - from ? n - from : len;
		if (n + len < cap) {
			char t[64];

			memcpy(t, s + from, len);
			memmove(s + at + len, s + at, n - at);
			memcpy(s + at, t, len);
			n += len;
		}
		break;
	case 4:			/* a digit */
		while (at < n && (s[at] < '0' || s[at] > '9'))
			at++;
		if (at < n)
			s[at] = '0' + rnd(10);
		break;
	default:
		n = rnd(40) ? n : at;
	}
	return n;
}

static volatile int stop_now, running;

static void *watchdog(void *arg)
{
	int idle = 0;

	(void)arg;
	for (;;) {
		usleep(20000);
		idle = running ? idle + 1 : 0;
		if (idle > 5)
			stop_now = 1;
	}
	return NULL;
}

static bool try_text(const char *text, size_t n)
{
	struct ptx_range r = { (uint64_t)window(), (uint64_t)window() + WINDOW_SIZE };
	struct ptx_host h = { NULL, NULL, NULL, NULL, NULL };
	uint64_t vars[16], args[2] = { (uint64_t)window(), 100 };
	struct ptx_source s = { text, n };
	struct ptx_module *m;
	struct ptx_kernel *k;
	struct ptx_fault f;
	bool ran = false;
	unsigned int i;
	char err[256];

	if (ptx_module_parse(&s, 1, &m, err, sizeof(err)))
		return false;
	for (i = 0; i < 16; i++)
		vars[i] = (uint64_t)window() + (1 << 20) + 4096 * i;
	if (ptx_module_nentries(m) && ptx_module_nvars(m) < 16 &&
	    !ptx_compile(m, 0, NULL, &k, err, sizeof(err))) {
		struct ptx_launch l = { { 2, 1, 1 }, { 64, 1, 1 }, { 2, 1, 1 }, .dyn_shared = 1024,
					.params = args, .params_len = sizeof(args),
					.var_addr = vars, .ranges = &r, .nranges = 1, .host = &h,
					.stop = &stop_now };

		stop_now = 0;
		running = 1;
		ptx_run(k, &l, &f);
		running = 0;
		ran = true;
		ptx_kernel_free(k);
	}
	ptx_module_free(m);
	return ran;
}

FIXTURE(mutants) {
};
FIXTURE_SETUP(mutants)
{
}
FIXTURE_TEARDOWN(mutants)
{
}

TEST_F(mutants, the_sample_itself_runs)
{
	EXPECT_TRUE(try_text(sample, strlen(sample)));
}

TEST_F_TIMEOUT(mutants, are_refused_or_run, 3600)
{
	const char *count = getenv("PTX_MUTANTS"), *seed = getenv("PTX_SEED");
	unsigned int n = count ? atoi(count) : 400, i, k, ran = 0;
	size_t cap = sizeof(sample) + 4096, len;
	char *buf = malloc(cap);
	pthread_t t;

#ifdef __SANITIZE_THREAD__
	SKIP(return, "ThreadSanitizer has rules for signal handlers that a kernel's fault breaks");
#endif
	pthread_create(&t, NULL, watchdog, NULL);
	for (i = 0; i < n; i++) {
		state = (seed ? atoi(seed) : 1) + i;
		memcpy(buf, sample, sizeof(sample));
		len = strlen(sample);
		for (k = rnd(4) + 1; k && len > 1; k--)
			len = mutate(buf, len, cap);
		if (getenv("PTX_SHOW"))
			fprintf(stderr, "%u\n", i);
		ran += try_text(buf, len);
	}
	TH_LOG("%u mutants, %u ran", n, ran);
	EXPECT_GT(ran, 0);
	free(buf);
}

TEST_HARNESS_MAIN
