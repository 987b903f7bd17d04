// SPDX-License-Identifier: Apache-2.0
/*
 * inlineptx.cu - PTX written into C++: carries, vectors, predicates, conversions, cache hints, barriers.
 */
#include "../job.cuh"

typedef unsigned int u32;
typedef unsigned long long u64;

#define N 512

struct out_t {
	u32 lo, mid, hi, top, sel, lop, bfe, bfi, prmt, lut, shf, sadd, mad, dsat, set;
	int sbfe, mad24, sat;
	u64 wide, mad64, bits;
	float rcp, sq, ex, lg, sn, fmaf_sat, cvt_sat, ftz, copysign_;
	double dfma;
	u32 narrow, pack, vmin;
};

__global__ void run(const u64 *x, out_t *out)
{
	int t = blockIdx.x * blockDim.x + threadIdx.x;
	u64 a = x[t], b = x[(t + 1) % N];
	u32 al = a, ah = a >> 32, bl = b, bh = b >> 32;
	float f = (al >> 8) / 16777216.0f + 0.001f, g = (float)(int)bl;
	out_t o;

	memset(&o, 0, sizeof(o));
	/* 128 bits by carries */
	asm("{\n\t"
	    "mul.lo.u32 %0, %4, %6;\n\t"
	    "mul.hi.u32 %1, %4, %6;\n\t"
	    "mad.lo.cc.u32 %1, %5, %6, %1;\n\t"
	    "madc.hi.u32 %2, %5, %6, 0;\n\t"
	    "mad.lo.cc.u32 %1, %4, %7, %1;\n\t"
	    "madc.hi.cc.u32 %2, %4, %7, %2;\n\t"
	    "addc.u32 %3, 0, 0;\n\t"
	    "mad.lo.cc.u32 %2, %5, %7, %2;\n\t"
	    "madc.hi.u32 %3, %5, %7, %3;\n\t"
	    "}" : "=&r"(o.lo), "=&r"(o.mid), "=&r"(o.hi), "=&r"(o.top)
		: "r"(al), "r"(ah), "r"(bl), "r"(bh));
	asm("{\n\t.reg .pred p, q;\n\t"
	    "setp.lt.u32 p, %1, %2;\n\t"
	    "setp.gt.and.s32 q, %1, 0, p;\n\t"
	    "selp.u32 %0, %1, %2, p;\n\t"
	    "@q add.u32 %0, %0, 1;\n\t"
	    "@!q xor.b32 %0, %0, 0x55;\n\t}" : "=r"(o.sel) : "r"(al), "r"(bl));
	asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(o.lop) : "r"(al), "r"(bl), "r"(ah));
	asm("bfe.u32 %0, %1, %2, 9;" : "=r"(o.bfe) : "r"(al), "r"(bl & 31));
	asm("bfe.s32 %0, %1, %2, 7;" : "=r"(o.sbfe) : "r"(al), "r"(bl & 31));
	asm("bfi.b32 %0, %1, %2, %3, 11;" : "=r"(o.bfi) : "r"(al), "r"(bl), "r"(ah & 31));
	asm("prmt.b32.f4e %0, %1, %2, %3;" : "=r"(o.prmt) : "r"(al), "r"(bl), "r"(ah & 3));
	asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(o.shf) : "r"(al), "r"(bl), "r"(ah));
	asm("add.sat.s32 %0, %1, %2;" : "=r"(o.sat) : "r"(al), "r"(bl));
	asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(o.wide) : "r"(al), "r"(bl), "l"(a));
	asm("mad.hi.u64 %0, %1, %2, %1;" : "=l"(o.mad64) : "l"(a), "l"(b));
	asm("mad24.lo.s32 %0, %1, %2, %3;" : "=r"(o.mad24) : "r"(al), "r"(bl), "r"(ah));
	asm("set.le.u32.s32 %0, %1, %2;" : "=r"(o.set) : "r"(al), "r"(bl));
	asm("rcp.rn.f32 %0, %1;" : "=f"(o.rcp) : "f"(f));
	asm("sqrt.rn.f32 %0, %1;" : "=f"(o.sq) : "f"(f));
	asm("ex2.approx.f32 %0, %1;" : "=f"(o.ex) : "f"(f));
	asm("lg2.approx.f32 %0, %1;" : "=f"(o.lg) : "f"(f));
	asm("sin.approx.f32 %0, %1;" : "=f"(o.sn) : "f"(f));
	asm("fma.rn.sat.f32 %0, %1, %2, %1;" : "=f"(o.fmaf_sat) : "f"(f), "f"(g));
	asm("cvt.rzi.sat.u8.f32 %0, %1;" : "=r"(o.narrow) : "f"(g));
	asm("mul.ftz.f32 %0, %1, 0f00800000;" : "=f"(o.ftz) : "f"(f));
	asm("copysign.f32 %0, %1, %2;" : "=f"(o.copysign_) : "f"(g), "f"(f));
	asm("fma.rz.f64 %0, %1, %2, %1;" : "=d"(o.dfma) : "d"((double)f), "d"((double)g));
	asm("{\n\t.reg .b16 h, l;\n\t"
	    "mov.b32 {l, h}, %1;\n\t"
	    "mov.b32 %0, {h, l};\n\t}" : "=r"(o.pack) : "r"(al));
	asm("mov.b64 %0, {%1, %2};" : "=l"(o.bits) : "r"(bh), "r"(al));
	/* loads and stores of their own kinds */
	u32 v0, v1;
	asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v0), "=r"(v1) : "l"(x + t));
	o.mad = v0 ^ v1;
	asm volatile("ld.global.cg.u32 %0, [%1+4];" : "=r"(v0) : "l"(x + t));
	asm volatile("st.global.wt.u32 [%0], %1;" :: "l"(&out[t].dsat), "r"(v0) : "memory");
	o.dsat = v0;
	/* a loop and a branch of its own labels */
	asm volatile("{\n\t.reg .pred p;\n\t.reg .u32 i;\n\t"
		     "mov.u32 i, %1;\n\t"
		     "mov.u32 %0, 0;\n"
		     "again:\n\t"
		     "setp.eq.u32 p, i, 0;\n\t"
		     "@p bra done;\n\t"
		     "add.u32 %0, %0, i;\n\t"
		     "sub.u32 i, i, 1;\n\t"
		     "bra.uni again;\n"
		     "done:\n\t}" : "=r"(o.sadd) : "r"(al & 63));
	asm("vmin.u32.u32.u32 %0, %1, %2;" : "=r"(o.vmin) : "r"(al), "r"(bl));
	o.lut = __popc(al) + __clz(bl);
	out[t] = o;
}

/* Named barriers: two halves of a block that meet only among themselves. */
__global__ void halves(int *out)
{
	__shared__ int s[128];
	int half = threadIdx.x / 64, i = threadIdx.x;

	s[i] = i;
	for (int k = 0; k < (half ? 7 : 3); k++) {
		asm volatile("bar.sync %0, 64;" :: "r"(half + 1) : "memory");
		int v = s[half * 64 + (i + 1) % 64];

		asm volatile("bar.sync %0, 64;" :: "r"(half + 1) : "memory");
		s[i] = v;
	}
	asm volatile("barrier.sync 0;" ::: "memory");
	out[i] = s[i];
	int all;
	asm volatile("{\n\t.reg .pred p, q;\n\tsetp.lt.s32 p, %1, 100;\n\t"
		     "bar.red.and.pred q, 0, p;\n\tselp.s32 %0, 1, 0, q;\n\t}" : "=r"(all) : "r"(i));
	int n;
	asm volatile("{\n\t.reg .pred p;\n\tsetp.lt.s32 p, %1, 100;\n\t"
		     "bar.red.popc.u32 %0, 0, p;\n\t}" : "=r"(n) : "r"(i));
	out[128 + i] = all * 1000 + n;
}

static u32 host_prmt_f4e(u32 a, u32 b, int sel)
{
	u64 v = (u64)b << 32 | a;

	return (u32)(v >> (8 * sel));
}

int main()
{
	std::vector<u64> x(N);
	unsigned int seed = 150;
	out_t *d;
	int *h;

	for (u64 &v : x)
		v = (u64)(rnd(&seed) * 2654435761u) << 32 | rnd(&seed) * 0x846ca68bu;
	CHECK(cudaMalloc(&d, N * sizeof(out_t)));
	run<<<4, N / 4>>>(to_device(x), d);
	CHECK(cudaGetLastError());
	std::vector<out_t> out = to_host(d, N);
	for (int t = 0; t < N; t++) {
		u64 a = x[t], b = x[(t + 1) % N];
		u32 al = a, ah = a >> 32, bl = b, bh = b >> 32;
		unsigned __int128 p = (unsigned __int128)a * b;
		const out_t &o = out[t];
		float f = (al >> 8) / 16777216.0f + 0.001f, g = (float)(int)bl;

		EXPECT(o.lo == (u32)p && o.mid == (u32)(p >> 32) && o.hi == (u32)(p >> 64) &&
		       o.top == (u32)(p >> 96));
		u32 sel = al < bl ? al : bl;
		EXPECT_EQ(o.sel, al < bl && (int)al > 0 ? sel + 1 : sel ^ 0x55);
		EXPECT_EQ(o.lop, (al & bl) | (~al & ah));
		EXPECT_EQ(o.bfe, al >> (bl & 31) & 0x1ff);
		int pos = bl & 31, top = std::min(pos + 6, 31), s = 0;
		for (int k = 0; k < 32; k++)
			s |= (int)((al >> std::min(pos + std::min(k, 6), top) & 1) << k);
		EXPECT_EQ(o.sbfe, s);
		u32 mask = 0x7ffu << (ah & 31);
		EXPECT_EQ(o.bfi, (bl & ~mask) | (al << (ah & 31) & mask));
		EXPECT_EQ(o.prmt, host_prmt_f4e(al, bl, ah & 3));
		EXPECT_EQ(o.shf, (u32)(((u64)bl << 32 | al) >> (ah & 31)));
		long long sum = (long long)(int)al + (int)bl;
		EXPECT_EQ(o.sat, std::max(-2147483648ll, std::min(2147483647ll, sum)));
		EXPECT(o.wide == (u64)al * bl + a && o.mad64 == (u64)(p >> 64) + a);
		EXPECT_EQ((u32)o.mad24, (u32)((long long)((int)(al << 8) >> 8) *
					      ((int)(bl << 8) >> 8)) + ah);
		EXPECT_EQ(o.set, (int)al <= (int)bl ? ~0u : 0);
		EXPECT(o.rcp == 1.0f / f && o.sq == sqrtf(f));
		EXPECT(fabs(o.ex - exp2(f)) < 4e-7 && fabs(o.lg - log2(f)) < 3e-6 &&
		       fabs(o.sn - sin(f)) < 1e-6);
		EXPECT(o.fmaf_sat == fminf(1, fmaxf(0, fmaf(f, g, f))));
		EXPECT_EQ(o.narrow & 255, g < 0 ? 0 : g > 255 ? 255 : (int)g);
		EXPECT(o.ftz == (f < 1 ? 0.0f : f * 1.17549435e-38f));
		EXPECT(o.copysign_ == copysignf(f, g));
		EXPECT_NEAR(o.dfma, fma((double)f, (double)g, (double)f), 1e-15);
		EXPECT_EQ(o.pack, al << 16 | al >> 16);
		EXPECT(o.bits == ((u64)al << 32 | bh));
		EXPECT(o.mad == (al ^ ah) && o.dsat == ah);
		EXPECT_EQ(o.sadd, (al & 63) * ((al & 63) + 1) / 2);
		EXPECT_EQ(o.vmin, std::min(al, bl));
		EXPECT_EQ(o.lut, __builtin_popcount(al) + (bl ? __builtin_clz(bl) : 32));
	}
	sum_vector(out);
	CHECK(cudaMalloc(&h, 1024));
	halves<<<1, 128>>>(h);
	CHECK(cudaGetLastError());
	std::vector<int> v = to_host(h, 256);
	for (int i = 0; i < 128; i++) {
		EXPECT_EQ(v[i], i < 64 ? (i + 3) % 64 : 64 + (i - 64 + 7) % 64);
		EXPECT_EQ(v[128 + i], 100);
	}
	sum_vector(v);
	return job_passed("inlineptx");
}
