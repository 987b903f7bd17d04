// SPDX-License-Identifier: Apache-2.0
/*
 * types.cu - integers of all widths, structs, unions, bit fields, switches and jumps: the same code on host
 * and device, compared bit by bit.
 */
#include "../job.cuh"

#define HD __host__ __device__
#define N 2048

typedef unsigned long long u64;
typedef __int128 i128;

/* Arithmetic of one type, folded into 64 bits. */
template <typename T> HD static u64 arithmetic(u64 x, u64 y)
{
	T a = (T)x, b = (T)y, c = (T)(x >> 3 ^ y << 5), r = 0;
	u64 h = 0;
	int s = (int)(y & (sizeof(T) * 8 - 1));
	auto mix = [&](T v) { h = h * 0x9e3779b97f4a7c15ull + (u64)v + (u64)((T)(v >> (sizeof(T) * 4))); };

	mix(a + b);
	mix(a - b);
	mix((T)((T)(a * b) + c));
	if (b != 0 && !(b == (T)-1)) {
		mix(a / b);
		mix(a % b);
	}
	mix(a & b);
	mix(a | c);
	mix(a ^ b);
	mix(~a);
	mix((T)(a >> s));
	mix((T)((T)(a & (T)((T)1 << (sizeof(T) * 8 - 2 - s / 2))) << (s / 2)));
	mix((T)(a < b) + (T)2 * (a <= c) + (T)4 * (a == b) + (T)8 * (b > c));
	mix(a < b ? a : b);
	for (int i = 0; i < 5; i++) {
		r = (T)(r * 31 + (T)(a >> i));
		a = (T)(a ^ (T)(b + i));
	}
	mix(r);
	mix((T)(signed char)a);
	mix((T)(unsigned short)a);
	mix((T)(int)b);
	return h;
}

struct fields {
	unsigned int a : 3, b : 7;
	int c : 11;
	unsigned int d : 1;
	long long e : 37;
	unsigned char f : 4, g : 4;
};

struct inner {
	char c;
	short s[3];
};

struct outer {
	inner in[2];
	double d;
	union {
		float f;
		unsigned int u;
		unsigned char b[4];
	} un;
	bool flag;
	inner *self;
};

enum op { PUSH, ADD, MUL, SUB, DUP, SWAP, JNZ, AND, SHL, END };

/* A little machine with a stack: a switch in a loop, jumps back, an array that is indexed at run time. */
HD static long long machine(const unsigned char *code, int n, long long x)
{
	long long st[16] = { x };
	int sp = 1, pc = 0, steps = 0;

	while (pc < n && ++steps < 500) {
		long long t;

		switch (code[pc++]) {
		case PUSH: st[sp & 15] = (signed char)code[pc++]; sp++; break;
		case ADD: sp--; st[(sp - 1) & 15] += st[sp & 15]; break;
		case MUL: sp--; st[(sp - 1) & 15] *= st[sp & 15]; break;
		case SUB: sp--; st[(sp - 1) & 15] -= st[sp & 15]; break;
		case AND: sp--; st[(sp - 1) & 15] &= st[sp & 15]; break;
		case SHL: st[(sp - 1) & 15] = (u64)st[(sp - 1) & 15] << 1; break;
		case DUP: st[sp & 15] = st[(sp - 1) & 15]; sp++; break;
		case SWAP:
			t = st[(sp - 1) & 15];
			st[(sp - 1) & 15] = st[(sp - 2) & 15];
			st[(sp - 2) & 15] = t;
			break;
		case JNZ:
			sp--;
			if (st[sp & 15])
				pc += (signed char)code[pc];
			else
				pc++;
			break;
		case END: return st[(sp - 1) & 15];
		}
		if (sp < 1)
			sp = 1;
	}
	return st[(sp - 1) & 15];
}

HD static u64 structures(u64 x, u64 y)
{
	fields f = {};
	outer o, p;
	u64 h = 0;

	f.a = x;
	f.b = y;
	f.c = (int)(x >> 7);
	f.d = y >> 9;
	f.e = (long long)(x ^ y);
	f.f = x >> 20;
	f.g = y >> 20;
	f.b += f.a;
	f.c -= 5;
	f.e *= 3;
	h = f.a + 10 * f.b + 10000ull * (u64)f.c + f.d * 7 + (u64)f.e * 31 + f.f * 1000 + f.g * 17;
	memset(&o, 0, sizeof(o));
	for (int i = 0; i < 2; i++) {
		o.in[i].c = (char)(x >> (i * 8));
		for (int k = 0; k < 3; k++)
			o.in[i].s[k] = (short)(y >> (i * 8 + k * 16));
	}
	o.d = (double)(x >> 12) * 0.5;
	o.un.f = (float)(y >> 40);
	o.flag = x & 1;
	o.self = &o.in[y & 1];
	p = o;
	o.self->s[(x >> 4) % 3] ^= 0x1234;	/* the copy keeps the pointer into the first */
	p.self->s[(x >> 8) % 3] += 9;
	o.un.b[y % 4] ^= 0x80;
	memcpy(&p.in[0], &o.in[1], sizeof(inner));
	for (const outer *q : { &o, &p })
		for (int i = 0; i < 2; i++) {
			h = h * 131 + (unsigned char)q->in[i].c + (q->flag ? 3 : 0) + q->un.u +
			    (u64)(q->d * 2);
			for (int k = 0; k < 3; k++)
				h = h * 131 + (unsigned short)q->in[i].s[k];
		}
	return h;
}

HD static u64 jumps(u64 x)
{
	u64 h = 1;
	int i = 0;

again:
	h = h * 33 + (x & 7);
	switch (x & 7) {
	case 0:
		h ^= 0xff;
		/* fall through */
	case 1:
		h += 5;
		break;
	case 3:
		if (h & 1)
			goto odd;
		/* fall through */
	case 2:
		for (int k = 0; k < 5; k++) {
			if (h % (k + 2) == 0)
				continue;
			if (h % 11 == 3)
				break;
			h += k;
		}
		break;
	default:
		do
			h = h << 1 ^ (h >> 63 ? 0x42f0e1eba9ea3693ull : 0);
		while (h & 4);
	}
	if (++i < 20) {
		x >>= 3;
		goto again;
	}
	return h;
odd:
	return h ^ 0xabcdef;
}

#define KINDS 14

HD static u64 run(int kind, u64 x, u64 y)
{
	const unsigned char code[] = { PUSH, 3, MUL, DUP, PUSH, 15, AND, DUP, PUSH, 1, SUB, DUP, JNZ,
				       (unsigned char)-6, ADD, SHL, SWAP, ADD, DUP, PUSH, 64, AND, JNZ,
				       (unsigned char)-9, END };

	switch (kind) {
	case 0: return arithmetic<signed char>(x, y);
	case 1: return arithmetic<unsigned char>(x, y);
	case 2: return arithmetic<short>(x, y);
	case 3: return arithmetic<unsigned short>(x, y);
	case 4: return arithmetic<unsigned int>(x, y);
	case 5: return arithmetic<u64>(x, y);
	case 6: return arithmetic<int>(x >> 2 & 0x3fff, y >> 3 & 0xffff);
	case 7: return arithmetic<long long>(x >> 34, y >> 35);
	case 8: return arithmetic<unsigned __int128>(x, y);
	case 9: return (u64)(((i128)(long long)x * (long long)y >> 37) + ((i128)x << 11) / ((i128)y + 1));
	case 10: return machine(code, sizeof(code), (long long)(x % 1000));
	case 11: return structures(x, y);
	case 12: return jumps(x);
	case 13: {
		u64 v = x;	/* bytes by a pointer, in both directions */
		unsigned char *b = (unsigned char *)&v;

		for (int i = 0; i < 4; i++) {
			unsigned char t = b[i];

			b[i] = b[7 - i] + (unsigned char)y;
			b[7 - i] = t;
		}
		return v + *(unsigned short *)(b + 2) * 3 + *(int *)(b + 4);
	}
	}
	return 0;
}

__global__ void all(const u64 *x, u64 *out)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	for (int k = 0; k < KINDS; k++)
		out[k * N + i] = run(k, x[i], x[(i + 1) % N]);
}

__global__ void diverged(const u64 *x, u64 *out)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	out[i] = run(i % KINDS, x[i], x[(i + 1) % N]);
}

int main()
{
	std::vector<u64> x(N), got;
	unsigned int seed = 180;
	u64 *d, *dx;

	for (int i = 0; i < N; i++)
		x[i] = ((u64)rnd(&seed) << 40 ^ (u64)rnd(&seed) << 20 ^ rnd(&seed)) >> (i % 7 * 9);
	x[10] = 0;
	x[20] = ~0ull;
	x[21] = 1ull << 63;
	dx = to_device(x);
	CHECK(cudaMalloc(&d, KINDS * N * 8));
	all<<<N / 128, 128>>>(dx, d);
	CHECK(cudaGetLastError());
	got = to_host(d, KINDS * N);
	for (int k = 0; k < KINDS; k++)
		for (int i = 0; i < N; i++)
			if (got[k * N + i] != run(k, x[i], x[(i + 1) % N])) {
				printf("FAIL types: kind %d of %llx %llx is %llx, not %llx\n", k, x[i],
				       x[(i + 1) % N], got[k * N + i], run(k, x[i], x[(i + 1) % N]));
				return 1;
			}
	sum_vector(got);
	diverged<<<N / 128, 128>>>(dx, d);
	CHECK(cudaGetLastError());
	got = to_host(d, N);
	for (int i = 0; i < N; i++)
		EXPECT_EQ(got[i], run(i % KINDS, x[i], x[(i + 1) % N]));
	return job_passed("types");
}
