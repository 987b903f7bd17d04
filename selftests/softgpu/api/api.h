/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api.h - helpers of the soft driver's tests: a context for each test, and kernels as PTX.
 */
#ifndef SELFTESTS_SOFTGPU_API_H
#define SELFTESTS_SOFTGPU_API_H

#include <cuda.h>

#include <kselftest_harness.h>
#include "../../harness/patience.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OK(_call) ASSERT_EQ(CUDA_SUCCESS, (_call))
#define FAILS(_err, _call) EXPECT_EQ(_err, (_call))
#define POISON ((void *)0x5a5a5a5a5a5a5a5aull)

#define PTX_HEAD ".version 8.0\n.target sm_75\n.address_size 64\n"

/* add1(unsigned *p, unsigned n): p[i] += 1 for i < n; global index is the thread's own. */
#define PTX_ADD1							\
	".visible .entry add1(.param .u64 p, .param .u32 n)\n{\n"	\
	".reg .pred %q; .reg .b32 %r<8>; .reg .b64 %d<4>;\n"		\
	"ld.param.u64 %d1, [p]; ld.param.u32 %r1, [n];\n"		\
	"mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n" \
	"mad.lo.s32 %r5, %r2, %r3, %r4;\n"				\
	"setp.ge.u32 %q, %r5, %r1; @%q bra done;\n"			\
	"cvta.to.global.u64 %d1, %d1; mul.wide.u32 %d2, %r5, 4; add.s64 %d1, %d1, %d2;\n" \
	"ld.global.u32 %r6, [%d1]; add.u32 %r6, %r6, 1; st.global.u32 [%d1], %r6;\n" \
	"done: ret;\n}\n"

/* poke(u64 p, u32 v): *p = v by one thread. */
#define PTX_POKE							\
	".visible .entry poke(.param .u64 p, .param .u32 v)\n{\n"	\
	".reg .b32 %r<3>; .reg .b64 %d<3>;\n"				\
	"ld.param.u64 %d1, [p]; ld.param.u32 %r1, [v];\n"		\
	"cvta.to.global.u64 %d1, %d1; st.global.u32 [%d1], %r1; ret;\n}\n"

/* spin(u64 p): waits until *p is not 0. */
#define PTX_SPIN							\
	".visible .entry spin(.param .u64 p)\n{\n"			\
	".reg .pred %q; .reg .b32 %r<3>; .reg .b64 %d<3>;\n"		\
	"ld.param.u64 %d1, [p]; cvta.to.global.u64 %d1, %d1;\n"		\
	"again: ld.volatile.global.u32 %r1, [%d1]; setp.eq.u32 %q, %r1, 0; @%q bra again;\n" \
	"ret;\n}\n"

#define PTX_TRAP ".visible .entry die()\n{\ntrap; ret;\n}\n"

/* Tests neither use nor fill the user's cache of compiled kernels. */
__attribute__((constructor)) static void no_cache(void)
{
	setenv("SINGVGPU_SOFT_CACHE", "", 0);
}

static inline void nap_ms(int ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&ts, NULL);
}

/* Each test is a process of its own, and so has a fresh driver. */
FIXTURE(gpu) {
	CUdevice dev;
	CUcontext ctx;
	CUmodule mod;
	CUfunction add1, poke, spin;
};

FIXTURE_SETUP(gpu)
{
	OK(cuInit(0));
	OK(cuDeviceGet(&self->dev, 0));
	OK(cuCtxCreate(&self->ctx, NULL, 0, self->dev));
	self->mod = NULL;
}

FIXTURE_TEARDOWN(gpu)
{
	cuCtxDestroy(self->ctx);
}

#define LOAD_KERNELS() do {						\
	OK(cuModuleLoadData(&self->mod, PTX_HEAD PTX_ADD1 PTX_POKE PTX_SPIN)); \
	OK(cuModuleGetFunction(&self->add1, self->mod, "add1"));	\
	OK(cuModuleGetFunction(&self->poke, self->mod, "poke"));	\
	OK(cuModuleGetFunction(&self->spin, self->mod, "spin"));	\
} while (0)

static inline CUresult launch1(CUfunction f, unsigned int blocks, unsigned int threads, CUstream s,
			       void **params)
{
	return cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, s, params, NULL);
}

#endif
