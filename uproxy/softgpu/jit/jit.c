// SPDX-License-Identifier: Apache-2.0
/*
 * jit.c - compiles a unit into an object file: jit_compile(), the only entry of libsoftjit.so
 *
 * Each compilation has its own LLVM context, so several may run at once.
 */
#include <errno.h>
#include <llvm-c/Analysis.h>
#include <llvm-c/Error.h>
#include <llvm-c/ErrorHandling.h>
#include <llvm-c/Support.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "jit_i.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char *cpu_name, *cpu_features, *triple;

/* Keeps LLVM from ending the process: its memory leaks, but the session survives. */
static void fatal(const char *reason)
{
	if (*ptx_guard_slot())
		ptx_fail(-ENOTSUP, 0, "LLVM: %.200s", reason);
}

/*
 * Disables LLVM's CodeGenPrepare: for each load and store it walks all uses of the address, which
 * takes three quarters of the time of a kernel with many. The code is not measurably slower without
 * it (docs/soft-device.md).
 */
static void init_llvm(void)
{
	static const char *const options[] = { "softjit", "-disable-cgp" };

	LLVMInstallFatalErrorHandler(fatal);
	LLVMInitializeX86TargetInfo();
	LLVMInitializeX86Target();
	LLVMInitializeX86TargetMC();
	LLVMInitializeX86AsmPrinter();
	LLVMInitializeX86AsmParser();
	LLVMParseCommandLineOptions(sizeof(options) / sizeof(options[0]), options, NULL);
	cpu_name = LLVMGetHostCPUName();
	cpu_features = LLVMGetHostCPUFeatures();
	triple = LLVMGetDefaultTargetTriple();
}

static void init_types(struct jit *j)
{
	Ty args[5], md;
	V w[3];

	j->c = LLVMContextCreate();
	j->m = LLVMModuleCreateWithNameInContext("ptx", j->c);
	j->b = LLVMCreateBuilderInContext(j->c);
	j->eb = LLVMCreateBuilderInContext(j->c);
	j->i1 = LLVMInt1TypeInContext(j->c);
	j->i8 = LLVMInt8TypeInContext(j->c);
	j->i16 = LLVMInt16TypeInContext(j->c);
	j->i32 = LLVMInt32TypeInContext(j->c);
	j->i64 = LLVMInt64TypeInContext(j->c);
	j->i128 = LLVMInt128TypeInContext(j->c);
	j->f16 = LLVMHalfTypeInContext(j->c);
	j->f32 = LLVMFloatTypeInContext(j->c);
	j->f64 = LLVMDoubleTypeInContext(j->c);
	j->ptr = LLVMPointerTypeInContext(j->c, 0);
	j->voidt = LLVMVoidTypeInContext(j->c);
	args[0] = j->ptr;
	args[1] = j->i32;
	args[2] = j->i64;
	j->fn_ty = LLVMFunctionType(j->voidt, args, 3, false);
	args[1] = j->ptr;
	args[2] = args[3] = j->i32;
	args[4] = j->i64;
	j->region_ty = LLVMFunctionType(j->voidt, args, 5, false);
	j->md_weights = LLVMGetMDKindIDInContext(j->c, "prof", 4);
	j->md_inv = LLVMGetMDKindIDInContext(j->c, "invariant.load", 14);
	j->inv = LLVMMDNodeInContext(j->c, NULL, 0);
	md = j->i32;
	w[0] = LLVMMDStringInContext(j->c, "branch_weights", 14);
	w[1] = LLVMConstInt(md, 2000, false);
	w[2] = LLVMConstInt(md, 1, false);
	j->weights_likely = LLVMMDNodeInContext(j->c, w, 3);
	j->cpu = *j->u->level ? j->u->level : cpu_name;
	j->features = *j->u->level ? "" : cpu_features;
	if (!strcmp(j->u->level, "x86-64-v4") ||
	    (strstr(j->features, "+avx512vl") && strstr(j->features, "+avx512bw") &&
	     strstr(j->features, "+avx512dq")))
		j->simd = 16;
	else if (!strcmp(j->u->level, "x86-64-v3") || strstr(j->features, "+avx2"))
		j->simd = 8;
}

static void add_attr(struct jit *j, V fn, const char *k, const char *v)
{
	LLVMAttributeRef a = LLVMCreateStringAttribute(j->c, k, strlen(k), v, strlen(v));

	LLVMAddAttributeAtIndex(fn, LLVMAttributeFunctionIndex, a);
}

V jit_new_fn(struct jit *j, const char *name, Ty t, bool internal)
{
	unsigned int nounwind = LLVMGetEnumAttributeKindForName("nounwind", 8);
	V f = LLVMAddFunction(j->m, name, t);

	if (internal)
		LLVMSetLinkage(f, LLVMInternalLinkage);
	add_attr(j, f, "prefer-vector-width", "512");
	add_attr(j, f, "min-legal-vector-width", "512");
	add_attr(j, f, "probe-stack", "inline-asm");
	add_attr(j, f, "target-cpu", j->cpu);
	add_attr(j, f, "target-features", j->features);
	LLVMAddAttributeAtIndex(f, LLVMAttributeFunctionIndex,
				LLVMCreateEnumAttribute(j->c, nounwind, 0));
	return f;
}

static void declare_functions(struct jit *j)
{
	uint32_t i;

	j->fns = ptx_arena_alloc(&j->u->arena, j->u->nfn * sizeof(V));
	for (i = 0; i < j->u->nfn; i++) {
		char name[32];

		snprintf(name, sizeof(name), "ptx_fn_%u", i);
		j->fns[i] = jit_new_fn(j, name, j->fn_ty, i != 0);
	}
}

static LLVMTargetMachineRef machine(const struct jit *j)
{
	LLVMTargetRef t;
	char *err = NULL;

	if (LLVMGetTargetFromTriple(triple, &t, &err)) {
		LLVMDisposeMessage(err);
		ptx_fail(-ENOTSUP, 0, "LLVM has no back end for this CPU");
	}
	return LLVMCreateTargetMachine(t, triple, j->cpu, j->features, LLVMCodeGenLevelLess,
				       LLVMRelocPIC, LLVMCodeModelSmall);
}

static void dump(struct jit *j, const char *when)
{
	const char *dir = getenv("SOFTGPU_DUMP");
	char path[512], *err = NULL;

	if (!dir)
		return;
	snprintf(path, sizeof(path), "%s/%.200s.%s.ll", dir, j->u->fn->f->name, when);
	if (LLVMPrintModuleToFile(j->m, path, &err))
		LLVMDisposeMessage(err);
}

static void optimise(struct jit *j, LLVMTargetMachineRef tm)
{
	LLVMPassBuilderOptionsRef o = LLVMCreatePassBuilderOptions();
	const char *passes = getenv("SOFTGPU_PASSES");
	LLVMErrorRef e;

	if (!passes)
		passes = "function(sroa,early-cse<memssa>,instcombine<no-verify-fixpoint>,"
			 "simplifycfg,loop-mssa(licm),early-cse)";
	e = LLVMRunPasses(j->m, passes, tm, o);
	LLVMDisposePassBuilderOptions(o);
	if (e) {
		char *m = LLVMGetErrorMessage(e), buf[200];

		snprintf(buf, sizeof(buf), "%s", m);
		LLVMDisposeErrorMessage(m);
		ptx_fail(-ENOTSUP, 0, "LLVM: %s", buf);
	}
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* SOFTGPU_STATS=1: prints the CPU time of each phase, for work on the compiler. */
static void stats(struct jit *j, double t0, double t1, double t2, double t3, size_t len)
{
	struct ufunc *f = j->u->fn;
	uint32_t s, r, live = 0, k;

	if (!getenv("SOFTGPU_STATS"))
		return;
	for (s = 0; s < f->nstubs; s++)
		for (r = 0; r < f->b->nregs; r++)
			live += bit_get(f->blk[f->stub_blk[s]].livein, r);
	for (k = r = 0; k < f->b->nregs; k++)
		r += !f->uniform[k];
	fprintf(stderr, "softjit: %.2f+%.2f+%.2f s, %u insns, %u/%u regs vary, %u blocks, %u stubs, "
		"%u live in, %u fns, %zu bytes: %.60s\n", t1 - t0, t2 - t1, t3 - t2, f->b->ninsn, r,
		f->b->nregs, f->nreach, f->nstubs, live, j->u->nfn, len, f->f->name);
}

/* The value of a vector constant whose elements are all alike, or NULL. */
static V splat_value(V c)
{
	unsigned int n, i;
	V e;

	if (!LLVMIsConstant(c) || LLVMGetTypeKind(LLVMTypeOf(c)) != LLVMVectorTypeKind)
		return NULL;
	n = LLVMGetVectorSize(LLVMTypeOf(c));
	e = LLVMGetAggregateElement(c, 0);
	for (i = 1; e && i < n; i++)
		if (LLVMGetAggregateElement(c, i) != e)
			return NULL;
	return e && LLVMIsAConstantInt(e) ? e : NULL;
}

/*
 * LLVM 19 miscompiles (a & C) | (b & ~C) to VPTERNLOG: when it folds a select and a load into it,
 * the table has the operands in another order.  So C is hidden from LLVM, which then selects the
 * right table for the general form.
 */
static void hide_constant(struct jit *j, V and)
{
	unsigned int k, bits;
	V c = NULL, as, v;
	Ty t, ft;

	for (k = 0; k < 2 && !c; k++)
		c = splat_value(LLVMGetOperand(and, k));
	if (!c)
		return;
	k--;
	bits = LLVMGetIntTypeWidth(LLVMTypeOf(c));
	if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
		return;
	t = bits == 64 ? j->i64 : j->i32;
	ft = LLVMFunctionType(t, &t, 1, false);
	as = LLVMGetInlineAsm(ft, "", 0, "=r,0", 4, false, false, LLVMInlineAsmDialectATT, false);
	LLVMPositionBuilderBefore(j->b, and);
	v = LLVMConstInt(t, LLVMConstIntGetZExtValue(c), false);
	v = LLVMBuildCall2(j->b, ft, as, &v, 1, "");
	if (bits < 32)
		v = LLVMBuildTrunc(j->b, v, LLVMTypeOf(c), "");
	{
		Ty vt = LLVMTypeOf(and);
		V p = LLVMBuildInsertElement(j->b, LLVMGetPoison(vt), v, c32(j, 0), "");

		v = LLVMBuildShuffleVector(j->b, p, LLVMGetPoison(vt), LLVMConstNull(
				LLVMVectorType(j->i32, LLVMGetVectorSize(vt))), "");
	}
	LLVMSetOperand(and, k, v);
}

static void hide_bit_selects(struct jit *j)
{
	LLVMBasicBlockRef bb;
	V f, i, o;
	int k;

	for (f = LLVMGetFirstFunction(j->m); f; f = LLVMGetNextFunction(f))
		for (bb = LLVMGetFirstBasicBlock(f); bb; bb = LLVMGetNextBasicBlock(bb))
			for (i = LLVMGetFirstInstruction(bb); i; i = LLVMGetNextInstruction(i)) {
				if (LLVMGetInstructionOpcode(i) != LLVMOr ||
				    LLVMGetTypeKind(LLVMTypeOf(i)) != LLVMVectorTypeKind)
					continue;
				for (k = 0; k < 2; k++) {
					o = LLVMGetOperand(i, k);
					if (LLVMIsAInstruction(o) &&
					    LLVMGetInstructionOpcode(o) == LLVMAnd)
						hide_constant(j, o);
				}
			}
}

static void generate(struct jit *j, void **obj, size_t *len, double t0)
{
	double t1 = seconds(), t2;
	LLVMTargetMachineRef tm = machine(j);
	LLVMTargetDataRef layout;
	LLVMMemoryBufferRef buf;
	char *err = NULL;

	LLVMSetTarget(j->m, triple);
	layout = LLVMCreateTargetDataLayout(tm);
	LLVMSetModuleDataLayout(j->m, layout);
	LLVMDisposeTargetData(layout);
	dump(j, "0");
	/* PTX that no compiler made may have operands of wrong types */
	if (LLVMVerifyModule(j->m, LLVMReturnStatusAction, &err)) {
		char text[300];

		snprintf(text, sizeof(text), "%s", err);
		LLVMDisposeMessage(err);
		ptx_fail(-EINVAL, 0, "inconsistent types: %s", text);
	}
	LLVMDisposeMessage(err);
	if (j->u->check_only) {
		LLVMDisposeTargetMachine(tm);
		return;
	}
	if (j->u->translated)
		j->u->translated(j->u->arg);
	optimise(j, tm);
	if (j->simd == 16)
		hide_bit_selects(j);
	dump(j, "1");
	t2 = seconds();
	if (LLVMTargetMachineEmitToMemoryBuffer(tm, j->m, LLVMObjectFile, &err, &buf)) {
		LLVMDisposeMessage(err);
		ptx_fail(-ENOTSUP, 0, "LLVM can not emit this code");
	}
	*len = LLVMGetBufferSize(buf);
	*obj = malloc(*len);
	if (*obj)
		memcpy(*obj, LLVMGetBufferStart(buf), *len);
	LLVMDisposeMemoryBuffer(buf);
	stats(j, t0, t1, t2, seconds(), *len);
	LLVMDisposeTargetMachine(tm);
	if (!*obj)
		ptx_fail(-ENOMEM, 0, "out of memory");
}

__attribute__((visibility("default")))
int jit_compile(struct unit *u, void **obj, size_t *len, char *err, size_t errlen)
{
	struct ptx_guard g = { .err = err, .errlen = errlen }, *outer = *ptx_guard_slot();
	struct jit j = { .u = u };
	double t0 = seconds();
	uint32_t i;

	pthread_once(&once, init_llvm);
	*ptx_guard_slot() = &g;
	init_types(&j);
	if (!setjmp(g.env)) {
		declare_functions(&j);
		for (i = 0; i < u->nfn; i++)
			jit_function(&j, i);
		generate(&j, obj, len, t0);
	}
	LLVMDisposeBuilder(j.b);
	LLVMDisposeBuilder(j.eb);
	LLVMDisposeModule(j.m);
	LLVMContextDispose(j.c);
	*ptx_guard_slot() = outer;
	return g.ret;
}
