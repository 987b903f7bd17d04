// SPDX-License-Identifier: Apache-2.0
/*
 * ptx_tiles.c - loads and stores of shared memory by lanes at all kinds of addresses, against C.
 *
 * The addresses decide which path moves the words, and whether a stretch of loads is checked as a
 * whole (jit/near.c); the result must not depend on it.  Addresses are loaded from memory, so that
 * the compiler does not know them.
 */
#include "ptx_test.h"

enum { SHARED = 8192, WORDS = SHARED / 4, LOADS = 12, SHIFT = 64, OUT = WORDS };

static uint32_t word(uint32_t i)
{
	return i * 2654435761u + 7;
}

static const char head[] =
	".version 8.0\n.target sm_80\n.address_size 64\n"
	".visible .entry k(.param .u64 out, .param .u64 at, .param .u32 lanes)\n{\n"
	".reg .pred %p<4>;\n.reg .b32 %r<32>;\n.reg .b64 %d<8>;\n"
	".shared .align 16 .b8 s[8192];\n"
	"mov.u32 %r0, %tid.x;\n"
	"shl.b32 %r1, %r0, 2;\n"
	"mov.u32 %r2, s;\n"
	"add.u32 %r3, %r2, %r1;\n"
	"mov.u32 %r4, %r0;\n"
	"mov.u32 %r13, %ntid.x;\n"
	"shl.b32 %r14, %r13, 2;\n"
	"FILL:\n"
	"mad.lo.u32 %r5, %r4, 2654435761, 7;\n"
	"st.shared.u32 [%r3], %r5;\n"
	"add.u32 %r3, %r3, %r14;\n"
	"add.u32 %r4, %r4, %r13;\n"
	"setp.lt.u32 %p0, %r4, 2048;\n"
	"@%p0 bra FILL;\n"
	"bar.sync 0;\n"
	"ld.param.u64 %d0, [at];\n"
	"ld.param.u64 %d1, [out];\n"
	"ld.param.u32 %r6, [lanes];\n"
	"mul.wide.u32 %d2, %r0, 4;\n"
	"add.u64 %d0, %d0, %d2;\n"
	"add.u64 %d1, %d1, %d2;\n"
	"ld.global.u32 %r7, [%d0];\n"
	"add.u32 %r7, %r7, %r2;\n"
	"mov.u32 %r8, 0;\n"
	"shr.u32 %r9, %r6, %r0;\n"
	"and.b32 %r9, %r9, 1;\n"
	"setp.eq.u32 %p1, %r9, 0;\n"
	"@%p1 bra DONE;\n";

static const char *vec(int n)
{
	return n == 4 ? ".v4" : n == 2 ? ".v2" : "";
}

static const char *regs(int n)
{
	return n == 4 ? "{ %r20, %r21, %r22, %r23 }" : n == 2 ? "{ %r20, %r21 }" : "%r20";
}

/* Loads behind the lane's place, the farther ones first: nothing later finds what they missed. */
static void loads_text(char *t, int n)
{
	int half, k, e;

	t += sprintf(t, "%s", head);
	for (half = 0; half < 2; half++) {
		t += sprintf(t, "add.s32 %%r7, %%r7, %d;\n", half ? -SHIFT : SHIFT);
		for (k = 0; k < LOADS; k++) {
			t += sprintf(t, "ld.shared%s.u32 %s, [%%r7+%d];\n", vec(n), regs(n), k * n * 4);
			for (e = 0; e < n; e++)
				t += sprintf(t, "mad.lo.u32 %%r8, %%r8, 31, %%r%d;\n", 20 + e);
		}
	}
	sprintf(t, "DONE:\nst.global.u32 [%%d1], %%r8;\nret;\n}\n");
}

static uint32_t loads_want(uint32_t at, int n)
{
	uint32_t acc = 0;
	int half, k;

	for (half = 0; half < 2; half++)
		for (k = 0; k < LOADS * n; k++)
			acc = acc * 31 + word((at + !half * SHIFT) / 4 + k);
	return acc;
}

/* One store by each lane; then all of shared memory goes out. */
static void store_text(char *t, int n)
{
	int e;

	t += sprintf(t, "%s", head);
	for (e = 0; e < n; e++)
		t += sprintf(t, "mad.lo.u32 %%r%d, %%r0, 1000, %d;\n", 20 + e, e + 1);
	sprintf(t, "st.shared%s.u32 [%%r7+16], %s;\nDONE:\nbar.sync 0;\n"
		"mov.u32 %%r4, %%r0;\nadd.u32 %%r3, %%r2, %%r1;\n"
		"COPY:\nld.shared.u32 %%r5, [%%r3];\nst.global.u32 [%%d1], %%r5;\n"
		"add.u32 %%r3, %%r3, %%r14;\nadd.u32 %%r4, %%r4, %%r13;\n"
		"cvt.u64.u32 %%d3, %%r14;\nadd.u64 %%d1, %%d1, %%d3;\n"
		"setp.lt.u32 %%p0, %%r4, 2048;\n@%%p0 bra COPY;\nret;\n}\n", vec(n), regs(n));
}

enum shape { ROW, ONE, HALVES, TWO_ROWS, MIXED, LOOSE, APART, BACKWARDS, COLUMN, NSHAPES };

/* Places below @room, in steps of a lane's @bytes; those that would be past it begin anew. */
static void places(uint32_t *at, enum shape s, uint32_t bytes, uint32_t room, unsigned int seed)
{
	uint32_t steps = room / bytes, base = (seed * 40503 >> 3) % steps, l, k;

	for (l = 0; l < 32; l++) {
		k = base;
		seed = seed * 1664525 + 1013904223;
		switch (s) {
		case ROW: k += l; break;
		case ONE: break;
		case HALVES: k += l / 16 * 17; break;
		case TWO_ROWS: k += l % 16 + l / 16 * 40; break;
		case MIXED: k += l % 16 ? (seed >> 20) % 16 : 0; break;
		case LOOSE: k += l % 16 ? (seed >> 20) % 40 : 0; break;
		case APART: k += (seed >> 16) % 64; break;
		case BACKWARDS: k += 31 - l; break;
		case COLUMN: k += l * 34; break;
		case NSHAPES: break;
		}
		at[l] = k % steps * bytes;
	}
}

static const uint32_t some_lanes[] = { ~0u, 0xffff, 0xffff0000, 0x00010000, 0x5a5a1248,
	0x7fffffff, 0 };

struct args {
	uint64_t out, at;
	uint32_t lanes;
};

FIXTURE(tiles) {
	struct prog p;
	uint32_t *out, *at;
	int n;
	bool store;
};

FIXTURE_VARIANT(tiles) {
	int n;
	bool store;
};

FIXTURE_VARIANT_ADD(tiles, load1) { .n = 1 };
FIXTURE_VARIANT_ADD(tiles, load2) { .n = 2 };
FIXTURE_VARIANT_ADD(tiles, load4) { .n = 4 };
FIXTURE_VARIANT_ADD(tiles, store1) { .n = 1, .store = true };
FIXTURE_VARIANT_ADD(tiles, store2) { .n = 2, .store = true };
FIXTURE_VARIANT_ADD(tiles, store4) { .n = 4, .store = true };

FIXTURE_SETUP(tiles)
{
	char text[16384];

	self->n = variant->n;
	self->store = variant->store;
	if (self->store)
		store_text(text, self->n);
	else
		loads_text(text, self->n);
	ASSERT_EQ(0, prog_load(&self->p, text, "k")) TH_LOG("%s", self->p.err);
	self->out = (uint32_t *)window();
	self->at = (uint32_t *)(window() + (1 << 20));
}

FIXTURE_TEARDOWN(tiles)
{
	prog_free_all(&self->p);
}

/* What is loaded behind a lane's place, or stored at it. */
static uint32_t reach(int n, bool store)
{
	return store ? 16 + 4 * n : LOADS * n * 4 + SHIFT;
}

static int run(struct prog *p, uint32_t *out, uint32_t *at, uint32_t lanes, uint32_t threads)
{
	struct args a = { (uint64_t)out, (uint64_t)at, lanes };

	memset(out, 0xee, OUT * 4);
	return prog_run(p, 1, threads, 0, &a, sizeof(a));
}

static void want_stores(uint32_t *want, const uint32_t *at, uint32_t lanes, uint32_t threads, int n)
{
	uint32_t i, l;
	int e;

	for (i = 0; i < WORDS; i++)
		want[i] = word(i);
	for (l = 0; l < threads; l++)
		for (e = 0; e < n && lanes >> l & 1; e++)
			want[at[l] / 4 + 4 + e] = l * 1000 + e + 1;
}

TEST_F(tiles, the_same_wherever_lanes_are)
{
	static uint32_t want[WORDS];
	uint32_t s, m, i, threads;
	unsigned int seed;

	for (s = 0; s < NSHAPES; s++)
	for (m = 0; m < sizeof(some_lanes) / sizeof(some_lanes[0]); m++)
	for (threads = 16; threads <= 32; threads += 16)
	for (seed = 1; seed < 6; seed++) {
		uint32_t room = SHARED - reach(self->n, self->store), lanes = some_lanes[m];

		places(self->at, s, 4 * self->n, room, seed);
		ASSERT_EQ(0, run(&self->p, self->out, self->at, lanes, threads))
			TH_LOG("%s", self->p.fault.text);
		if (self->store) {
			want_stores(want, self->at, lanes, threads, self->n);
			ASSERT_EQ(0, memcmp(want, self->out, sizeof(want)))
				TH_LOG("shape %u lanes %x threads %u", s, lanes, threads);
			continue;
		}
		for (i = 0; i < threads; i++)
			ASSERT_EQ(lanes >> i & 1 ? loads_want(self->at[i], self->n) : 0, self->out[i])
				TH_LOG("shape %u lanes %x threads %u: lane %u at %u", s, lanes, threads,
				       i, self->at[i]);
	}
}

/* All lanes up to the last byte; then one lane past it, and one between two places. */
TEST_F(tiles, the_end_of_shared_memory)
{
	uint32_t bytes = 4 * self->n, i, l, last = SHARED - (self->store ? 16 + bytes :
							      LOADS * bytes + SHIFT);

	last -= last % bytes;
	for (i = 0; i < 32; i++)
		self->at[i] = last - (31 - i) % 16 * bytes;
	ASSERT_EQ(0, run(&self->p, self->out, self->at, ~0u, 32)) TH_LOG("%s", self->p.fault.text);
	for (i = 0; i < 32 && !self->store; i++)
		ASSERT_EQ(loads_want(self->at[i], self->n), self->out[i]);
	for (l = 0; l < 32; l += 31) {
		self->at[l] = last + bytes;
		ASSERT_EQ(-EFAULT, run(&self->p, self->out, self->at, ~0u, 32));
		ASSERT_EQ(PTX_ILLEGAL_ADDRESS, self->p.fault.kind);
		ASSERT_EQ(l, self->p.fault.thread[0]);
		ASSERT_EQ(0, run(&self->p, self->out, self->at, ~(1u << l), 32));
		self->at[l] = last - 2;
		ASSERT_EQ(-EFAULT, run(&self->p, self->out, self->at, ~0u, 32));
		ASSERT_EQ(PTX_MISALIGNED, self->p.fault.kind);
		self->at[l] = self->store ? -32 : -SHIFT - 16;
		ASSERT_EQ(-EFAULT, run(&self->p, self->out, self->at, 1u << l, 32));
		self->at[l] = last - (31 - l) % 16 * bytes;
	}
}

TEST_HARNESS_MAIN
