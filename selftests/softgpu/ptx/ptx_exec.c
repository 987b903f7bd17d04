// SPDX-License-Identifier: Apache-2.0
/*
 * ptx_exec.c - nvcc's PTX of CUDA C++, run and compared with C; and faulting kernels.
 */
#include "ptx_test.h"

#include <glob.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static char *read_file(const char *path)
{
	FILE *f = fopen(path, "r");
	char *s;
	long n;

	if (!f)
		return NULL;
	fseek(f, 0, SEEK_END);
	n = ftell(f);
	rewind(f);
	s = calloc(1, n + 1);
	if (fread(s, 1, n, f) != (size_t)n)
		n = 0;
	fclose(f);
	return s;
}

FIXTURE(exec) {
	struct prog p;
	char *text;
	int *i;			/* a poisoned part of the window */
	float *f;
};

FIXTURE_SETUP(exec)
{
	char path[512];
	const char *b = getenv("SINGVGPU_BUILD");

	snprintf(path, sizeof(path), "%s/selftests/softgpu/ptx_kernels.ptx", b ? b : "build");
	self->text = read_file(path);
	if (!self->text)
		SKIP(return, "no CUDA toolkit: %s is not there", path);
	memset(window(), 0xa5, 1 << 20);
	self->i = (int *)window();
	self->f = (float *)(window() + (512 << 10));
	memset(&self->p, 0, sizeof(self->p));
}

FIXTURE_TEARDOWN(exec)
{
	if (self->p.m)
		prog_free_all(&self->p);
	free(self->text);
}

#define LOAD(name)								\
	do {									\
		if (self->p.m)							\
			prog_free_all(&self->p);				\
		ASSERT_EQ(0, prog_load(&self->p, self->text, name)) TH_LOG("%s", self->p.err);	\
	} while (0)

TEST_F(exec, vector_add_with_a_partial_block)
{
	struct { float *a, *b, *c; int n; } arg = { self->f, self->f + 1000, self->f + 2000, 999 };
	int i;

	LOAD("vector_add");
	for (i = 0; i < 1000; i++) {
		arg.a[i] = i;
		arg.b[i] = 3 * i;
	}
	arg.c[999] = -1;
	ASSERT_EQ(0, prog_run(&self->p, 8, 128, 0, &arg, sizeof(arg)));
	for (i = 0; i < 999; i++)
		ASSERT_EQ(4 * i, arg.c[i]);
	EXPECT_EQ(-1, arg.c[999]);
}

TEST_F(exec, reduction_with_barriers)
{
	struct { int *a, *out; int n; } arg = { self->i, self->i + 40000, 33333 };
	long want = 0, got = 0;
	int i;

	LOAD("block_sums");
	EXPECT_TRUE(ptx_kernel_info(self->p.k)->barriers);
	EXPECT_EQ(1024, ptx_kernel_info(self->p.k)->static_shared);
	for (i = 0; i < 33333; i++)
		want += arg.a[i] = i % 1001;
	ASSERT_EQ(0, prog_run(&self->p, 13, 256, 0, &arg, sizeof(arg)));
	for (i = 0; i < 13; i++)
		got += arg.out[i];
	EXPECT_EQ(want, got);
}

TEST_F(exec, lanes_that_part_and_meet_again)
{
	int *o = self->i, t, i, r;

	LOAD("divergent_loops");
	ASSERT_EQ(0, prog_run(&self->p, 1, 200, 0, &o, sizeof(o)));
	for (t = 0; t < 200; t++) {
		for (r = i = 0; i < t; i++) {
			if (i & 1)
				r += i * t;
			else if (i % 3 == 0)
				continue;
			else
				r -= i;
			if (r > 5000)
				break;
		}
		ASSERT_EQ(r, o[t]);
	}
}

TEST_F(exec, lanes_wait_for_each_other)
{
	struct { int *flag, *order; } arg = { self->i, self->i + 64 };
	int t;

	LOAD("lane_chain");
	memset(arg.flag, 0, 8);
	ASSERT_EQ(0, prog_run(&self->p, 1, 64, 0, &arg, sizeof(arg)));
	for (t = 0; t < 64; t++)
		ASSERT_EQ(t, arg.order[t]);
}

TEST_F(exec, a_spin_lock_that_every_thread_takes)
{
	struct { int *lock, *count; } arg = { self->i, self->i + 1 };

	LOAD("spin_lock");
	memset(self->i, 0, 8);
	ASSERT_EQ(0, prog_run(&self->p, 5, 96, 0, &arg, sizeof(arg)));
	EXPECT_EQ(5 * 96, self->i[1]);
}

TEST_F(exec, a_block_waits_for_a_later_one)
{
	int *flag = self->i, i;

	LOAD("blocks_backwards");
	memset(flag, 0, 256);
	ASSERT_EQ(0, prog_run(&self->p, 20, 32, 0, &flag, sizeof(flag)));
	for (i = 0; i < 20; i++)
		EXPECT_EQ(1, flag[i]);
}

TEST_F(exec, recursion_and_function_pointers)
{
	static const int fib[12] = { 0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89 };
	int *o = self->i, t;

	LOAD("recursion");
	ASSERT_EQ(0, prog_run(&self->p, 1, 50, 0, &o, sizeof(o)));
	for (t = 0; t < 50; t++)
		ASSERT_EQ(fib[t % 12], o[t]);
	LOAD("function_pointers");
	ASSERT_EQ(0, prog_run(&self->p, 1, 50, 0, &o, sizeof(o)));
	for (t = 0; t < 50; t++)
		ASSERT_EQ(t % 2 ? t * t : 2 * t, o[t]);
}

TEST_F(exec, warp_operations)
{
	struct { int *a, *sum; unsigned int *ballot; int *scan; unsigned int *match; } arg = {
		self->i, self->i + 64, (unsigned int *)self->i + 128, self->i + 192,
		(unsigned int *)self->i + 256 };
	int t, k;

	LOAD("warp_ops");
	for (t = 0; t < 64; t++)
		arg.a[t] = t * 7 % 13;
	ASSERT_EQ(0, prog_run(&self->p, 1, 64, 0, &arg, sizeof(arg)));
	for (t = 0; t < 64; t++) {
		int w = t & 32, sum = 0, scan = 0;
		unsigned int ballot = 0, match = 0;

		for (k = 0; k < 32; k++) {
			sum += arg.a[w + k];
			scan += w + k <= t ? arg.a[w + k] : 0;
			ballot |= (arg.a[w + k] & 1u) << k;
			match |= (unsigned int)((arg.a[w + k] & 3) == (arg.a[t] & 3)) << k;
		}
		ASSERT_EQ(sum, arg.sum[t]);
		ASSERT_EQ(scan, arg.scan[t]);
		ASSERT_EQ(ballot, arg.ballot[t]);
		ASSERT_EQ(match, arg.match[t]);
	}
}

TEST_F(exec, shuffles_of_half_a_warp)
{
	int *o = self->i, t;

	LOAD("split_shuffle");
	ASSERT_EQ(0, prog_run(&self->p, 1, 32, 0, &o, sizeof(o)));
	for (t = 0; t < 32; t++)
		ASSERT_EQ((t & 1 ? 31 : 0) + 32, o[t]);
}

TEST_F(exec, atomics_and_their_order)
{
	struct { int *a, *h; int n; } hist = { self->i, self->i + 4096, 4000 };
	struct { float *a, *s; int n; } fs = { self->f, self->f + 4096, 4000 };
	int want[16] = { 0 }, i, run;
	float first = 0;

	LOAD("histogram");
	EXPECT_FALSE(ptx_kernel_info(self->p.k)->ordered);
	for (i = 0; i < 4000; i++)
		want[(hist.a[i] = i * i % 37) & 15]++;
	memset(hist.h, 0, 64);
	ASSERT_EQ(0, prog_run(&self->p, 16, 256, 0, &hist, sizeof(hist)));
	for (i = 0; i < 16; i++)
		EXPECT_EQ(want[i], hist.h[i]);
	LOAD("float_sum");
	EXPECT_TRUE(ptx_kernel_info(self->p.k)->ordered);
	for (i = 0; i < 4000; i++)
		fs.a[i] = 1.0f / (i + 1);
	for (run = 0; run < 3; run++) {
		ptx_set_workers(1 + run);
		*fs.s = 0;
		ASSERT_EQ(0, prog_run(&self->p, 16, 256, 0, &fs, sizeof(fs)));
		if (!run)
			first = *fs.s;
		EXPECT_EQ(0, memcmp(&first, fs.s, 4));
	}
	EXPECT_LT(fabsf(first - 8.8714f), 0.001f);
	ptx_set_workers(0);
}

TEST_F(exec, blocks_that_take_turns)
{
	struct { float *a, *sum; int *next, *who, n; } arg = {
		self->f, self->f + 4096, self->i, self->i + 64, 1000 };
	int first_who[100], seen[100], i, run;
	float first = 0;

	LOAD("tickets");
	EXPECT_TRUE(ptx_kernel_info(self->p.k)->turns);
	for (i = 0; i < arg.n; i++)
		arg.a[i] = 1.0f / (i + 1);
	for (run = 0; run < 12; run++) {
		ptx_set_workers(1 + run % 4);
		*arg.sum = 0;
		*arg.next = 0;
		ASSERT_EQ(0, prog_run(&self->p, 100, 64, 0, &arg, sizeof(arg)));
		EXPECT_EQ(100, *arg.next);
		memset(seen, 0, sizeof(seen));
		for (i = 0; i < 100; i++)
			if (arg.who[i] >= 0 && arg.who[i] < 100)
				seen[arg.who[i]]++;
		for (i = 0; i < 100; i++)
			EXPECT_EQ(1, seen[i]);
		if (!run) {
			first = *arg.sum;
			memcpy(first_who, arg.who, sizeof(first_who));
			EXPECT_GT(first, 1);
		}
		EXPECT_EQ(0, memcmp(&first, arg.sum, 4));
		EXPECT_EQ(0, memcmp(first_who, arg.who, sizeof(first_who)));
	}
	ptx_set_workers(0);
}

TEST_F(exec, turns_of_blocks_that_wait_for_later_ones)
{
	int *flag = self->i, i, run;

	LOAD("blocks_backwards_together");
	EXPECT_TRUE(ptx_kernel_info(self->p.k)->turns);
	for (run = 0; run < 3; run++) {
		ptx_set_workers(1 + run);
		memset(flag, 0, 60 * sizeof(*flag));
		ASSERT_EQ(0, prog_run(&self->p, 60, 64, 0, &flag, sizeof(flag)));
		for (i = 0; i < 60; i++)
			EXPECT_EQ(1, flag[i]);
	}
	ptx_set_workers(0);
}

TEST_F(exec, local_arrays)
{
	struct { int *o; int k; } arg = { self->i, 5 };
	int t, i;

	LOAD("local_arrays");
	ASSERT_EQ(0, prog_run(&self->p, 1, 70, 0, &arg, sizeof(arg)));
	for (t = 0; t < 70; t++) {
		unsigned int s = 0;
		int a[16];

		for (i = 0; i < 16; i++)
			a[i] = i * t;
		for (i = 0; i < 16; i++)
			a[(i * 5 + t) & 15] += i;
		for (i = 0; i < 16; i++)
			s = s * 3 + a[i];
		ASSERT_EQ((int)s, arg.o[t]);
	}
}

TEST_F(exec, printf_in_order_of_blocks)
{
	int x = 5;

	LOAD("prints");
	ASSERT_EQ(0, prog_run(&self->p, 2, 40, 0, &x, sizeof(x)));
	EXPECT_STREQ("block 0 thread 0: text  2.50 5497558138880 z%\n"
		     "block 0 thread 1: text  2.50 5497558138880 z%\n"
		     "block 1 thread 0: text  2.50 5497558138880 z%\n"
		     "block 1 thread 1: text  2.50 5497558138880 z%\n", self->p.printed);
}

TEST_F(exec, printf_returns_how_many_arguments_it_used)
{
	struct { int *o; const char *none; } arg = { self->i, NULL };

	LOAD("print_returns");
	ASSERT_EQ(0, prog_run(&self->p, 1, 1, 0, &arg, sizeof(arg)));
	EXPECT_EQ(2, arg.o[0]);
	EXPECT_EQ(0, arg.o[1]);
	EXPECT_EQ(2, arg.o[2]);
	EXPECT_EQ(-1, arg.o[3]);
	EXPECT_STREQ("thread 0 of block 0\nnothing %\n  4\n", self->p.printed);
}

TEST_F(exec, lanes_name_members_of_their_own)
{
	unsigned int *o = (unsigned int *)self->i, l, k;

	LOAD("tiles");
	ASSERT_EQ(0, prog_run(&self->p, 1, 32, 0, &o, sizeof(o)));
	for (l = 0; l < 32; l++) {
		unsigned int m = 0xffu << (l & ~7u), same = 0, sum = 0;

		for (k = l & ~7u; k < (l & ~7u) + 8; k++) {
			same |= (unsigned int)(k % 3 == l % 3) << k;
			sum += k;
		}
		EXPECT_EQ((l < 8) + 2 + 4 * (l < 8 || l > 15), o[l]);
		EXPECT_EQ(same, o[32 + l]);
		EXPECT_EQ(m + 1000, o[64 + l]);
		EXPECT_EQ(l < 8 ? 0 : m + 1000, o[96 + l]);
		EXPECT_EQ(sum, o[128 + l]);
	}
	LOAD("tiles_apart");
	ASSERT_EQ(0, prog_run(&self->p, 1, 32, 0, &o, sizeof(o)));
	for (l = 0; l < 32; l++)
		EXPECT_EQ(l < 16 ? 148 + l * (l - 1) / 2 + 151 : 0, o[l]);
}

TEST_F(exec, lanes_in_different_rounds_of_a_loop)
{
	struct { int *lock; int *value; int rounds; } arg = { self->i, self->i + 64, 5 };
	struct { int *o, *x; int n; } skip = { self->i + 1024, self->i, 0 };
	int t, i, j, s;

	LOAD("lock_rounds");
	arg.lock[0] = arg.value[0] = 0;
	ASSERT_EQ(0, prog_run(&self->p, 3, 64, 0, &arg, sizeof(arg)));
	EXPECT_EQ(3 * 64 * 5, arg.value[0]);
	LOAD("skips");
	for (t = 0; t < 64; t++)
		skip.x[t] = t * t * 7 / 3;
	for (skip.n = 0; skip.n < 40; skip.n += 13) {
		ASSERT_EQ(0, prog_run(&self->p, 1, 32, 0, &skip, sizeof(skip)));
		for (t = 0; t < 32; t++) {
			for (i = j = s = 0; j <= skip.n;) {
				i++;
				if (skip.x[(i * 7 + t) % 64] & 1)
					continue;
				j++;
				s += i;
			}
			ASSERT_EQ(s * 1000 + j, skip.o[t]);
		}
	}
}

TEST_F(exec, half_precision)
{
	struct { float *a, *o; } arg = { self->f, self->f + 100 };
	int t;

	LOAD("half_math");
	for (t = 0; t < 40; t++)
		arg.a[t] = t * 0.37f - 3;
	ASSERT_EQ(0, prog_run(&self->p, 1, 32, 0, &arg, sizeof(arg)));
	for (t = 0; t < 32; t++) {
		_Float16 h = (_Float16)arg.a[t];

		h = (_Float16)((double)h * (double)h + (double)h);
		ASSERT_EQ((float)h, arg.o[2 * t]);
	}
}

TEST_F(exec, device_heap)
{
	int **out = (int **)self->i, t, i;

	LOAD("heap");
	ASSERT_EQ(0, prog_run(&self->p, 1, 33, 0, &out, sizeof(out)));
	for (t = 0; t < 33; t++)
		for (i = 0; i < 16; i++)
			ASSERT_EQ(t * i, out[t][i]);
}

/* ---- faults: the launch ends, the process lives, and the next launch works ---- */

static void expect_fault(struct __test_metadata *_metadata, struct prog *p, int kind,
			 const void *arg, size_t len)
{
	EXPECT_EQ(-EFAULT, prog_run(p, 3, 64, 0, arg, len));
	EXPECT_EQ(kind, (int)p->fault.kind);
}

TEST_F(exec, stores_outside_the_window)
{
	static int secret[4096];
	struct { void *p; long step; } arg = { secret, 1 };

#ifdef __SANITIZE_ADDRESS__
	SKIP(return, "AddressSanitizer takes a kernel's own stack, left by a jump, for a wild pointer");
#endif
	LOAD("store_at");
	expect_fault(_metadata, &self->p, PTX_ILLEGAL_ADDRESS, &arg, sizeof(arg));
	arg.p = NULL;
	expect_fault(_metadata, &self->p, PTX_ILLEGAL_ADDRESS, &arg, sizeof(arg));
	arg.p = self->i;
	arg.step = 1l << 40;
	expect_fault(_metadata, &self->p, PTX_ILLEGAL_ADDRESS, &arg, sizeof(arg));
	arg.p = window() + WINDOW_SIZE - 100;	/* runs over the end */
	arg.step = 1;
	expect_fault(_metadata, &self->p, PTX_ILLEGAL_ADDRESS, &arg, sizeof(arg));
	arg.p = (char *)self->i + 2;
	expect_fault(_metadata, &self->p, PTX_MISALIGNED, &arg, sizeof(arg));
	EXPECT_EQ(0, secret[0] | secret[63]);
	arg.p = self->i;
	EXPECT_EQ(0, prog_run(&self->p, 3, 64, 0, &arg, sizeof(arg)));
	EXPECT_EQ(63, self->i[63]);
}

TEST_F(exec, pages_of_the_window_that_are_not_mapped)
{
	struct ptx_range r = { (uint64_t)window() - WINDOW_SIZE, (uint64_t)window() + WINDOW_SIZE };
	struct { void *p; int *out; } arg = { window() - 65536, self->i };
	struct ptx_launch l = { { 2, 1, 1 }, { 64, 1, 1 }, .params = &arg, .params_len = sizeof(arg),
				.var_addr = self->p.vars, .ranges = &r, .nranges = 1 };

#ifdef __SANITIZE_THREAD__
	SKIP(return, "ThreadSanitizer has rules for signal handlers that a kernel's fault breaks");
#endif
	LOAD("load_at");
	EXPECT_EQ(-EFAULT, ptx_run(self->p.k, &l, &self->p.fault));
	EXPECT_EQ(PTX_ILLEGAL_ADDRESS, self->p.fault.kind);
	EXPECT_EQ((uint64_t)arg.p, self->p.fault.addr & ~255ull);
}

TEST_F(exec, lanes_that_do_not_load_have_no_address)
{
	struct ptx_range r = { (uint64_t)window() - WINDOW_SIZE, (uint64_t)window() + WINDOW_SIZE };
	struct { void *bad; float *good, *o; int who; } arg = {
		window() - 65536 * 8, self->f, self->f + 4096, 0
	};
	struct ptx_launch l = { { 1, 1, 1 }, { 32, 1, 1 }, .params = &arg, .params_len = sizeof(arg),
				.var_addr = self->p.vars, .ranges = &r, .nranges = 1 };
	int who[] = { 0, 1, 31, 32 }, i, k;

	LOAD("some_load");
	for (i = 0; i < 4; i++) {
		memset(self->f, 0, 65536);
		for (k = 0; k < 32; k++)
			arg.good[k * 20] = arg.good[k * 20 + 3] = k;
		arg.who = who[i];
		ASSERT_EQ(0, ptx_run(self->p.k, &l, &self->p.fault))
			TH_LOG("%d: fault %d at %lx", who[i], self->p.fault.kind, self->p.fault.addr);
		for (k = 0; k < 32; k++) {
			EXPECT_EQ(k < who[i] ? 0 : 3 * k, (int)arg.o[k]);
			EXPECT_EQ(k < who[i] ? k : 7, arg.good[k * 20 + 3]);
		}
	}
}

/* Which of them lie on a multiple of 16 is no accident: cuDNN has them so. */
TEST_F(exec, shared_variables_lie_as_they_are_declared)
{
	static const char text[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
		".shared .align 4 .b8 first[16];\n.shared .align 4 .b8 unused[4];\n"
		".entry declared(.param .u64 p) {\n.reg .b64 d;\n.reg .b32 r<4>;\n"
		".shared .align 4 .b8 a[1024];\n.shared .align 4 .b8 b[1056];\n"
		".shared .align 4 .b8 nobody[8];\n.shared .align 4 .b8 c[1764];\n"
		"ld.param.u64 d, [p];\n"
		"mov.u32 r0, c;\nmov.u32 r1, b;\nmov.u32 r2, a;\nmov.u32 r3, first;\n"
		"st.global.u32 [d], r0;\nst.global.u32 [d+4], r1;\n"
		"st.global.u32 [d+8], r2;\nst.global.u32 [d+12], r3;\nret;\n}\n";
	struct { int *o; } arg = { self->i };

	ASSERT_EQ(0, prog_load(&self->p, text, "declared")) TH_LOG("%s", self->p.err);
	ASSERT_EQ(0, prog_run(&self->p, 1, 1, 0, &arg, sizeof(arg)));
	EXPECT_EQ(16 + 1024 + 1056, arg.o[0] - arg.o[3]);
	EXPECT_EQ(16 + 1024, arg.o[1] - arg.o[3]);
	EXPECT_EQ(16, arg.o[2] - arg.o[3]);
	EXPECT_EQ(16 + 1024 + 1056 + 1764, ptx_kernel_info(self->p.k)->static_shared);
}

TEST_F(exec, shared_memory_has_an_end)
{
	struct { int *o; int n; } arg = { self->i, 100 };

	LOAD("shared_overrun");
	expect_fault(_metadata, &self->p, PTX_ILLEGAL_ADDRESS, &arg, sizeof(arg));
}

TEST_F(exec, traps_and_assertions)
{
	int x = 40;

	LOAD("traps");
	expect_fault(_metadata, &self->p, PTX_TRAP, &x, sizeof(x));
	EXPECT_EQ(40, (int)self->p.fault.thread[0]);
	x = 99;
	EXPECT_EQ(0, prog_run(&self->p, 3, 64, 0, &x, sizeof(x)));
	LOAD("asserts");
	expect_fault(_metadata, &self->p, PTX_ASSERT, &x, sizeof(x));
	EXPECT_NE(NULL, strstr(self->p.fault.text, "Assertion `x == 3` failed"));
}

static void *stopper(void *arg)
{
	struct prog *p = arg;

	usleep(200000);
	__atomic_store_n(&p->stop, 1, __ATOMIC_RELAXED);	/* while a kernel looks at it */
	return NULL;
}

TEST_F(exec, an_endless_kernel_is_stopped)
{
	int *p = self->i;
	pthread_t t;

	LOAD("forever");
	p[0] = 0;
	pthread_create(&t, NULL, stopper, &self->p);
	expect_fault(_metadata, &self->p, PTX_STOPPED, &p, sizeof(p));
	pthread_join(t, NULL);
}

TEST_F(exec, a_fault_or_a_stop_ends_all_that_take_turns)
{
	int *p = self->i, run;
	pthread_t t;

	LOAD("turns_and_a_trap");
	EXPECT_TRUE(ptx_kernel_info(self->p.k)->turns);
	for (run = 0; run < 3; run++) {
		ptx_set_workers(1 + run);
		p[0] = 0;
		EXPECT_EQ(-EFAULT, prog_run(&self->p, 30, 64, 0, &p, sizeof(p)));
		EXPECT_EQ(PTX_TRAP, self->p.fault.kind);
		EXPECT_EQ(13, self->p.fault.block[0]);
		self->p.stop = 0;
		pthread_create(&t, NULL, stopper, &self->p);
		EXPECT_EQ(-EFAULT, prog_run(&self->p, 10, 64, 0, &p, sizeof(p)));
		EXPECT_EQ(PTX_STOPPED, self->p.fault.kind);
		pthread_join(t, NULL);
		self->p.stop = 0;
	}
	ptx_set_workers(0);
}

TEST_F(exec, endless_recursion_ends)
{
	int *p = self->i;

	LOAD("endless_recursion");
	p[0] = 0;
	expect_fault(_metadata, &self->p, PTX_STACK, &p, sizeof(p));
}

TEST_F(exec, launches_that_do_not_fit)
{
	int x = 0;

	LOAD("traps");
	EXPECT_EQ(-EINVAL, prog_run(&self->p, 1, 1025, 0, &x, sizeof(x)));
	EXPECT_EQ(-EINVAL, prog_run(&self->p, 0, 32, 0, &x, sizeof(x)));
	EXPECT_EQ(-EINVAL, prog_run(&self->p, 1, 32, 0, &x, 0));
	EXPECT_EQ(-EINVAL, prog_run(&self->p, 1, 32, 1 << 20, &x, sizeof(x)));
}

/* ---- the cache ---- */

TEST_F(exec, a_second_compilation_comes_from_the_cache)
{
	struct { int *a, *out; int n; } arg = { self->i, self->i + 4000, 100 };
	struct timespec a, b;
	long ns[2];
	char dir[] = "/tmp/ptx_exec.XXXXXX", cmd[100];
	int i, run;

	ASSERT_NE(NULL, mkdtemp(dir));
	ASSERT_EQ(0, ptx_set_cache(dir));
	for (i = 0; i < 100; i++)
		arg.a[i] = i;
	for (run = 0; run < 2; run++) {
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
		LOAD("block_sums");
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
		ns[run] = (b.tv_sec - a.tv_sec) * 1000000000l + b.tv_nsec - a.tv_nsec;
		EXPECT_TRUE(ptx_kernel_info(self->p.k)->barriers);
		ASSERT_EQ(0, prog_run(&self->p, 1, 256, 0, &arg, sizeof(arg)));
		EXPECT_EQ(4950, arg.out[0]);
	}
	TH_LOG("%ld us and %ld us", ns[0] / 1000, ns[1] / 1000);
	EXPECT_LT(ns[1] * 4, ns[0]);
	ptx_set_cache(NULL);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	EXPECT_EQ(0, system(cmd));
}

/* Compiles the entry once more. True: its code was in a cache. */
static bool from_a_cache(struct prog *p, struct ptx_counts *c)
{
	uint64_t cached = c->cached, compiled = c->compiled;
	struct ptx_kernel *k = NULL;
	char err[200];

	if (ptx_compile(p->m, ptx_module_find_entry(p->m, "block_sums"), NULL, &k, err, sizeof(err)) ||
	    c->cached + c->compiled != cached + compiled + 1 || c->since)
		abort();
	ptx_kernel_free(k);
	return c->cached > cached;
}

/* The machine's cache is read as long as nobody but root may have written what is in it. */
TEST_F(exec, the_machines_cache_is_roots_alone)
{
	char dir[] = "/tmp/ptx_exec.XXXXXX", machine[40], moved[40], file[300], cmd[100];
	struct ptx_counts c = { 0 };
	struct stat st;
	glob_t g;

	if (geteuid())
		SKIP(return, "needs root");
	ASSERT_NE(NULL, mkdtemp(dir));
	snprintf(machine, sizeof(machine), "%s/machine", dir);
	snprintf(moved, sizeof(moved), "%s/moved", dir);
	LOAD("traps");
	ptx_set_counts(&c);
	ptx_set_cache(NULL);
	umask(077);
	ASSERT_EQ(0, ptx_set_machine_cache(machine, true));
	EXPECT_FALSE(from_a_cache(&self->p, &c));
	EXPECT_EQ(1, c.kept);
	EXPECT_EQ(1, c.asked);
	EXPECT_LT(0, c.ns);
	ptx_set_cache(NULL);
	ASSERT_EQ(0, ptx_set_machine_cache(machine, false));
	EXPECT_TRUE(from_a_cache(&self->p, &c));

	/* for all to read */
	ASSERT_EQ(0, stat(machine, &st));
	EXPECT_EQ(0755, st.st_mode & 07777);
	snprintf(file, sizeof(file), "%s/*", machine);
	ASSERT_EQ(0, glob(file, 0, NULL, &g));
	ASSERT_EQ(1, g.gl_pathc);
	snprintf(file, sizeof(file), "%s", g.gl_pathv[0]);
	globfree(&g);
	ASSERT_EQ(0, stat(file, &st));
	EXPECT_EQ(0644, st.st_mode & 07777);

	/* whoever else might have written: the folder, the file, a link to either */
	ASSERT_EQ(0, chmod(machine, 0775));
	EXPECT_FALSE(from_a_cache(&self->p, &c));
	ASSERT_EQ(0, chmod(machine, 0757));
	EXPECT_FALSE(from_a_cache(&self->p, &c));
	ASSERT_EQ(0, chmod(machine, 0755));
	ASSERT_EQ(0, chown(machine, 65534, 0));
	EXPECT_FALSE(from_a_cache(&self->p, &c));
	ASSERT_EQ(0, chown(machine, 0, 0));
	EXPECT_TRUE(from_a_cache(&self->p, &c));
	ASSERT_EQ(0, chmod(file, 0664));
	EXPECT_FALSE(from_a_cache(&self->p, &c));
	ASSERT_EQ(0, chmod(file, 0646));
	EXPECT_FALSE(from_a_cache(&self->p, &c));
	ASSERT_EQ(0, chmod(file, 0644));
	ASSERT_EQ(0, chown(file, 65534, 0));
	EXPECT_FALSE(from_a_cache(&self->p, &c));
	ASSERT_EQ(0, chown(file, 0, 0));
	EXPECT_TRUE(from_a_cache(&self->p, &c));
	ASSERT_EQ(0, rename(file, moved));
	ASSERT_EQ(0, symlink(moved, file));
	EXPECT_FALSE(from_a_cache(&self->p, &c));
	ASSERT_EQ(0, rename(moved, file));
	EXPECT_TRUE(from_a_cache(&self->p, &c));
	ASSERT_EQ(0, rename(machine, moved));
	ASSERT_EQ(0, symlink(moved, machine));
	EXPECT_FALSE(from_a_cache(&self->p, &c));
	EXPECT_EQ(1, c.kept);

	ptx_set_machine_cache(NULL, false);
	ptx_set_counts(NULL);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	EXPECT_EQ(0, system(cmd));
}

/* What a kernel is like can be asked without its code; if the code is there, it comes along. */
TEST_F(exec, a_kernel_is_described_without_code)
{
	char dir[] = "/tmp/ptx_exec.XXXXXX", cmd[100], err[200];
	struct ptx_kernel *k = (void *)1;
	struct ptx_kernel_info info;
	struct prog refused;
	int e;

	ASSERT_NE(NULL, mkdtemp(dir));
	ASSERT_EQ(0, ptx_set_cache(dir));
	LOAD("traps");
	e = ptx_module_find_entry(self->p.m, "block_sums");
	ASSERT_EQ(0, ptx_describe(self->p.m, e, &k, &info, err, sizeof(err)));
	EXPECT_EQ(NULL, k);
	ASSERT_EQ(0, ptx_compile(self->p.m, e, NULL, &k, err, sizeof(err)));
	EXPECT_EQ(0, memcmp(&info, ptx_kernel_info(k), sizeof(info)));
	EXPECT_NE(0, info.static_shared);
	EXPECT_TRUE(info.barriers);
	ptx_kernel_free(k);
	ASSERT_EQ(0, ptx_describe(self->p.m, e, &k, &info, err, sizeof(err)));
	ASSERT_NE(NULL, k);
	EXPECT_NE(0, ptx_kernel_info(k)->static_shared);
	ptx_kernel_free(k);
	EXPECT_EQ(-EINVAL, ptx_describe(self->p.m, 10000, &k, &info, err, sizeof(err)));
	EXPECT_EQ(-ENOTSUP, prog_load(&refused, ".version 8.0\n.target sm_80\n.address_size 64\n"
		".visible .entry k()\n{\n.reg .b32 %r<3>;\nfrobnicate.u32 %r1;\nret;\n}\n", "k"));
	EXPECT_EQ(-ENOTSUP, ptx_describe(refused.m, 0, &k, &info, err, sizeof(err)));
	prog_free_all(&refused);
	ptx_set_cache(NULL);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	EXPECT_EQ(0, system(cmd));
}

/* What late_*() of ptx_kernels.cu gives when all of a block have read before anybody writes. */
static void late_want(int *s, int n, int rounds)
{
	int old[1024], k, t;

	for (t = 0; t < n; t++)
		s[t] = 7 * t;
	for (k = 0; k < rounds; k++) {
		memcpy(old, s, n * sizeof(*s));
		for (t = 0; t < n; t++)
			s[t] = (int)(3u * old[(t + 34 * (k + 1)) % n] + t + k);
	}
}

TEST_F(exec, all_read_behind_a_barrier_before_anybody_writes)
{
	static const char *const name[] = { "late_shared", "late_global", "late_atomic", "late_reduce",
					    "late_count", "late_named", "late_call" };
	static const int warps[] = { 2, 3, 5, 8, 31, 32 };
	struct { int *out, rounds; } arg = { self->i, 7 };
	unsigned int i, k, b;
	int want[1024], t;

	for (i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
		LOAD(name[i]);
		self->p.late_stores = true;
		for (k = 0; k < sizeof(warps) / sizeof(warps[0]); k++) {
			int n = 32 * warps[k];

			late_want(want, n, arg.rounds);
			ASSERT_EQ(0, prog_run(&self->p, 5, n, 0, &arg, sizeof(arg)));
			for (b = 0; b < 5; b++)
				for (t = 0; t < n; t++)
					ASSERT_EQ(want[t], arg.out[b * n + t])
						TH_LOG("%s, %d warps, block %u, thread %d", name[i],
						       warps[k], b, t);
		}
	}
}

TEST_F(exec, lanes_apart_have_read_too_before_others_write)
{
	struct { int *out, rounds; } arg = { self->i, 7 };
	int old[1024], s[1024], warps, k, t, i, n;

	LOAD("late_sides");
	self->p.late_stores = true;
	for (warps = 2; warps <= 32; warps += 3) {
		n = 32 * warps;
		for (t = 0; t < n; t++)
			s[t] = 7 * t;
		for (k = 0; k < arg.rounds; k++) {
			memcpy(old, s, sizeof(s));
			for (t = 0; t < n; t++) {
				int from = (t + 34 * (k + 1)) % n;
				unsigned int v = old[from];

				for (i = 0; i < (t & 1 ? 0 : t & 6); i++)
					v += old[from] & 1;
				s[t] = (int)(3 * v + t + k);
			}
		}
		ASSERT_EQ(0, prog_run(&self->p, 1, n, 0, &arg, sizeof(arg)));
		for (t = 0; t < n; t++)
			ASSERT_EQ(s[t], arg.out[t]) TH_LOG("%d warps, thread %d", warps, t);
	}
	LOAD("late_some");
	self->p.late_stores = true;
	for (warps = 2; warps <= 32; warps += 3) {
		n = 32 * warps;
		late_want(s, n, arg.rounds);
		ASSERT_EQ(0, prog_run(&self->p, 1, n, 0, &arg, sizeof(arg)));
		for (t = 0; t < n; t++)
			ASSERT_EQ(s[t], arg.out[t]) TH_LOG("%d warps, thread %d", warps, t);
	}
}

TEST_F(exec, a_first_write_that_others_wait_for_comes)
{
	struct { int *out, who; } arg = { self->i, 0 };
	int t;

	LOAD("late_flag");
	self->p.late_stores = true;
	for (arg.who = 0; arg.who < 8; arg.who++) {
		memset(arg.out, 0, 1024);
		ASSERT_EQ(0, prog_run(&self->p, 1, 256, 0, &arg, sizeof(arg)));
		for (t = 0; t < 256; t++)
			ASSERT_EQ(1, arg.out[t]);
	}
}

TEST_HARNESS_MAIN
