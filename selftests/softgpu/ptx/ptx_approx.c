// SPDX-License-Identifier: Apache-2.0
/*
 * ptx_approx.c - ex2, lg2, sin, cos and tanh against the C library's in double: a float next to the
 * exact value, an exactly representable one itself, and the same for a warp and a uniform value.
 */
#include <float.h>

#include "ptx_test.h"

#define N 4096

static const char kernel[] =
	".version 8.0\n.target sm_80\n.address_size 64\n"
	".visible .entry k(.param .u64 in, .param .u64 out)\n{\n"
	".reg .f32 %%f<2>;\n.reg .b32 %%r<4>;\n.reg .b64 %%d<3>;\n"
	"ld.param.u64 %%d0, [in];\n"
	"ld.param.u64 %%d1, [out];\n"
	"%s"
	"mul.wide.u32 %%d2, %%r0, 4;\n"
	"add.u64 %%d0, %%d0, %%d2;\n"
	"add.u64 %%d1, %%d1, %%d2;\n"
	"ld.global.f32 %%f0, [%%d0];\n"
	"%s.approx.f32 %%f1, %%f0;\n"
	"st.global.f32 [%%d1], %%f1;\n"
	"ret;\n}\n";

static const char by_lane[] = "mov.u32 %r0, %tid.x;\nmov.u32 %r1, %ctaid.x;\n"
	"mad.lo.u32 %r0, %r1, 256, %r0;\n";
static const char by_block[] = "mov.u32 %r0, %ctaid.x;\n";

static const struct {
	const char *name;
	double (*want)(double x);
	float from, to;			/* where it is compared */
} ops[] = {
	{ "ex2", exp2, -149, 128 },
	{ "lg2", log2, FLT_TRUE_MIN, FLT_MAX },
	{ "sin", sin, -1000, 1000 },
	{ "cos", cos, -1000, 1000 },
	{ "tanh", tanh, -30, 30 },
};

static float of_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, 4);
	return f;
}

static uint32_t bits_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	return u;
}

/* In the first places what is special, then all magnitudes of both signs, then the range itself. */
static float input(unsigned int i, float from, float to)
{
	static const float special[] = { 0, -0.0f, 1, -1, INFINITY, -INFINITY, FLT_MIN, -FLT_MIN,
		FLT_TRUE_MIN, FLT_MAX, -FLT_MAX, 127.99999f, 128, -149, -150, -150.00002f };

	if (i < 16)
		return special[i];
	if (i == 16)
		return of_bits(0x7fc01234);
	if (i < N / 2)
		return of_bits(i * 2097143u);
	return from + (to - from) * ((i * 2654435761u >> 8) / 16777216.f);
}

static void run(struct __test_metadata *_metadata, unsigned int op, bool lanes, const float *in,
		float *out)
{
	struct { const float *in; float *out; } args = { in, out };
	char text[2048];
	struct prog p;

	snprintf(text, sizeof(text), kernel, lanes ? by_lane : by_block, ops[op].name);
	ASSERT_EQ(0, prog_load(&p, text, NULL)) { TH_LOG("%s: %s", ops[op].name, p.err); }
	memset(out, 0xee, N * 4);
	ASSERT_EQ(0, prog_run(&p, lanes ? N / 256 : N, lanes ? 256 : 32, 0, &args, sizeof(args)));
	prog_free_all(&p);
}

FIXTURE(approx) {
	float *in, *out, *uniform;
};

FIXTURE_SETUP(approx)
{
	self->in = (float *)window();
	self->out = self->in + N;
	self->uniform = self->out + N;
}

FIXTURE_TEARDOWN(approx)
{
}

TEST_F(approx, next_to_the_right_float)
{
	unsigned int op, i;

	for (op = 0; op < sizeof(ops) / sizeof(ops[0]); op++) {
		for (i = 0; i < N; i++)
			self->in[i] = input(i, ops[op].from, ops[op].to);
		run(_metadata, op, true, self->in, self->out);
		run(_metadata, op, false, self->in, self->uniform);
		for (i = 0; i < N; i++) {
			float x = self->in[i], got = self->out[i], want = ops[op].want(x);

			ASSERT_EQ(bits_of(got), bits_of(self->uniform[i]));
			if (want != want || isinf(want) || want == 0) {
				ASSERT_TRUE(want != want ? got != got : got == want) {
					TH_LOG("%s(%a) is %a, not %a", ops[op].name, x, got, want);
				}
			} else if (x >= ops[op].from && x <= ops[op].to) {
				ASSERT_TRUE(got == want || got == nextafterf(want, INFINITY) ||
					    got == nextafterf(want, -INFINITY)) {
					TH_LOG("%s(%a) is %a, not %a", ops[op].name, x, got, want);
				}
			}
		}
	}
}

TEST_HARNESS_MAIN
