// SPDX-License-Identifier: Apache-2.0
/*
 * ptx_mma.c - matrix instructions of every shape and type, against products of plain matrices.
 *
 * Matrices of random bits are distributed to the lanes by the PTX ISA's tables, multiplied, and
 * gathered again.  The reference is exact: sums run in order of k, fused, in f32 (f64, s32), from C
 * on, and are rounded once at the end.  Another order is an error, however close its result.
 */
#include "ptx_test.h"

enum type { F16, BF16, TF32, E4M3, E5M2, F32, F64, S8, U8, S32 };
static const struct {
	const char *name;
	unsigned int bits, exp, man;
} types[] = {
	{ "f16", 16, 5, 10 }, { "bf16", 16, 8, 7 }, { "tf32", 32, 8, 23 }, { "e4m3", 8, 4, 3 },
	{ "e5m2", 8, 5, 2 }, { "f32", 32, 8, 23 }, { "f64", 64, 11, 52 }, { "s8", 8, 0, 0 },
	{ "u8", 8, 0, 0 }, { "s32", 32, 0, 0 },
};

struct mma {
	const char *shape;
	unsigned int m, k;	/* n is 8 */
	enum type d, a, b, c;
	unsigned int form;	/* SATFINITE, SPARSE(selector) */
};

#define SATFINITE 1u
#define SPARSE(selector) (2u | (selector) << 4)	/* A has half of k columns */

static const struct mma mmas[] = {
	{ "m16n8k8", 16, 8, F32, F16, F16, F32, 0 }, { "m16n8k8", 16, 8, F16, F16, F16, F16, 0 },
	{ "m16n8k16", 16, 16, F32, F16, F16, F32, 0 }, { "m16n8k16", 16, 16, F16, F16, F16, F16, 0 },
	{ "m16n8k8", 16, 8, F32, BF16, BF16, F32, 0 },
	{ "m16n8k16", 16, 16, F32, BF16, BF16, F32, 0 },
	{ "m16n8k4", 16, 4, F32, TF32, TF32, F32, 0 }, { "m16n8k8", 16, 8, F32, TF32, TF32, F32, 0 },
	{ "m16n8k32", 16, 32, F32, E4M3, E4M3, F32, 0 },
	{ "m16n8k32", 16, 32, F32, E4M3, E5M2, F32, 0 },
	{ "m16n8k32", 16, 32, F32, E5M2, E4M3, F32, 0 },
	{ "m16n8k32", 16, 32, F32, E5M2, E5M2, F32, 0 },
	{ "m16n8k32", 16, 32, F16, E4M3, E4M3, F16, 0 },
	{ "m16n8k16", 16, 16, F32, E4M3, E5M2, F32, 0 },
	{ "m8n8k4", 8, 4, F64, F64, F64, F64, 0 }, { "m16n8k4", 16, 4, F64, F64, F64, F64, 0 },
	{ "m16n8k8", 16, 8, F64, F64, F64, F64, 0 }, { "m16n8k16", 16, 16, F64, F64, F64, F64, 0 },
	{ "m8n8k16", 8, 16, S32, S8, S8, S32, 0 }, { "m16n8k16", 16, 16, S32, S8, U8, S32, 0 },
	{ "m16n8k32", 16, 32, S32, U8, S8, S32, 0 }, { "m16n8k32", 16, 32, S32, U8, U8, S32, 0 },
	{ "m16n8k32", 16, 32, S32, S8, S8, S32, SATFINITE },
	{ "m8n8k16", 8, 16, S32, U8, U8, S32, SATFINITE },
	{ "m16n8k16", 16, 16, F32, F16, F16, F32, SPARSE(3) },
	{ "m16n8k16", 16, 16, F16, F16, F16, F16, SPARSE(1) },
	{ "m16n8k32", 16, 32, F32, F16, F16, F32, SPARSE(0) },
	{ "m16n8k32", 16, 32, F16, F16, F16, F16, SPARSE(1) },
	{ "m16n8k16", 16, 16, F32, BF16, BF16, F32, SPARSE(2) },
	{ "m16n8k32", 16, 32, F32, BF16, BF16, F32, SPARSE(1) },
	{ "m16n8k8", 16, 8, F32, TF32, TF32, F32, SPARSE(2) },
	{ "m16n8k16", 16, 16, F32, TF32, TF32, F32, SPARSE(1) },
	{ "m16n8k32", 16, 32, S32, S8, U8, S32, SPARSE(1) },
	{ "m16n8k64", 16, 64, S32, S8, S8, S32, SPARSE(0) },
	{ "m16n8k64", 16, 64, S32, U8, U8, S32, SATFINITE | SPARSE(0) },
	{ "m16n8k64", 16, 64, F32, E4M3, E5M2, F32, SPARSE(0) },
};

enum { BLOCKS = 12, CELL = 16 * 32 };	/* elements that a matrix has at most */

static uint64_t rnd(void)
{
	static uint64_t s = 88172645463325252ull;

	s ^= s << 13;
	s ^= s >> 7;
	s ^= s << 17;
	return s * 0x2545f4914f6cdd1dull;
}

static double value(uint64_t v, enum type t)
{
	unsigned int e = types[t].exp, m = types[t].man, x;
	double r;

	switch (t) {
	case S8: return (int8_t)v;
	case U8: return (uint8_t)v;
	case S32: return (int32_t)v;
	case F64:
		memcpy(&r, &v, 8);
		return r;
	case TF32:
		v &= 0xffffe000;	/* the hardware does not look at the rest */
		break;
	default:
		break;
	}
	x = v >> m & ((1u << e) - 1);
	r = v & ((1ull << m) - 1);
	if (t == E4M3 ? x == 15 && r == 7 : x == (1u << e) - 1)
		r = t != E4M3 && !r ? INFINITY : NAN;
	else
		r = ldexp(x ? r + (1ull << m) : r, (int)(x ? x : 1) - (1 << (e - 1)) + 1 - (int)m);
	return v >> (e + m) & 1 ? -r : r;
}

/* Bits of a number of moderate size, now and then a small or a special one. */
static uint64_t random_bits(enum type t)
{
	unsigned int e = types[t].exp, m = types[t].man, x;
	uint64_t v = rnd() >> 8;

	if (!e)
		return v & (~0ull >> (64 - types[t].bits));
	x = (1u << (e - 1)) - 3 + (v >> 54) % 5;
	if ((v >> 50) % 16 == 0)
		x = 0;
	return (rnd() & ((1ull << m) - 1)) | (uint64_t)x << m | (v & 1) << (e + m);
}

static bool sparse(const struct mma *o)
{
	return o->form & 2;
}

static unsigned int selector(const struct mma *o)
{
	return o->form >> 4;
}

static unsigned int a_columns(const struct mma *o)
{
	return sparse(o) ? o->k / 2 : o->k;
}

/* Where element @i of lane @l lies, by the tables of the ISA. */
static unsigned int place(const struct mma *o, char which, unsigned int i, unsigned int l)
{
	unsigned int g = l / 4, t = l % 4, bits = types[which == 'b' ? o->b : o->a].bits, row, col;

	if (which == 'c')
		return (g + (i > 1 ? 8 : 0)) * 8 + t * 2 + i % 2;
	if (which == 'b') {
		row = bits >= 32 ? i * 4 + t : bits == 16 ? t * 2 + i % 2 + i / 2 * 8 :
							     t * 4 + i % 4 + i / 4 * 16;
		return row * 8 + g;
	}
	if (bits >= 32) {
		row = o->m == 16 && i % 2 ? g + 8 : g;
		col = t + (o->m == 16 ? i / 2 : i) * 4;
	} else if (bits == 16) {
		row = i / 2 % 2 ? g + 8 : g;
		col = t * 2 + i % 2 + i / 4 * 8;
	} else {
		row = i / 4 % 2 ? g + 8 : g;
		col = t * 4 + i % 4 + i / 8 * 16;
	}
	return row * a_columns(o) + col;
}

static unsigned int per_lane(const struct mma *o, char which)
{
	return which == 'a' ? o->m * a_columns(o) / 32 : which == 'b' ? o->k / 4 : o->m / 4;
}

static unsigned int regs(const struct mma *o, char which, enum type t)
{
	unsigned int n = per_lane(o, which) * types[t].bits;

	return t == F64 ? n / 64 : n / 32;
}

/* A matrix from elements in lanes, or the other way round. */
static void deal(const struct mma *o, char which, enum type t, uint64_t *mat, uint8_t *lanes,
		 bool back)
{
	unsigned int l, i, size = types[t].bits / 8, n = per_lane(o, which);

	for (l = 0; l < 32; l++)
		for (i = 0; i < n; i++) {
			uint64_t *v = &mat[place(o, which, i, l)];
			uint8_t *p = lanes + (l * n + i) * size;

			if (back)
				*v = 0;
			memcpy(back ? (void *)v : p, back ? p : (void *)v, size);
		}
}

static void load_regs(char *s, char which, enum type t, unsigned int n)
{
	unsigned int i, w = t == F64 ? 8 : 4;

	sprintf(s + strlen(s), "ld.param.u64 %%q, [p%c];\nmad.wide.u32 %%q, %%l, %u, %%q;\n", which,
		n * w);
	for (i = 0; which != 'd' && i < n; i++)
		sprintf(s + strlen(s), "ld.global.%s %%%s%c%u, [%%q+%u];\n", w == 8 ? "f64" : "b32",
			w == 8 ? "d" : "r", which, i, i * w);
	for (i = 0; which == 'd' && i < n; i++)
		sprintf(s + strlen(s), "st.global.%s [%%q+%u], %%%s%c%u;\n", w == 8 ? "f64" : "b32",
			i * w, w == 8 ? "d" : "r", which, i);
}

static void list(char *s, char which, enum type t, unsigned int n, char end)
{
	unsigned int i;

	strcat(s, "{");
	for (i = 0; i < n; i++)
		sprintf(s + strlen(s), "%s%%%s%c%u", i ? "," : "", t == F64 ? "d" : "r", which, i);
	sprintf(s + strlen(s), "}%c\n", end);
}

static char *program(const struct mma *o)
{
	unsigned int na = regs(o, 'a', o->a), nb = regs(o, 'b', o->b), nc = regs(o, 'c', o->c),
		     nd = regs(o, 'c', o->d), i;
	char *s = calloc(1, 16384), c;

	strcpy(s, ".version 8.7\n.target sm_120\n.address_size 64\n.visible .entry t(.param .u64 pa, "
	       ".param .u64 pb, .param .u64 pc, .param .u64 pd, .param .u64 pe)\n{\n"
	       ".reg .b64 %q; .reg .b32 %l, %x, %re0;\n");
	for (c = 'a'; c <= 'd'; c++)
		for (i = 0; i < 16; i++)
			sprintf(s + strlen(s), ".reg .b32 %%r%c%u; .reg .f64 %%d%c%u;\n", c, i, c, i);
	strcat(s, "mov.u32 %l, %tid.x; mov.u32 %x, %ctaid.x; mad.lo.u32 %l, %x, 32, %l;\n");
	load_regs(s, 'a', o->a, na);
	load_regs(s, 'b', o->b, nb);
	load_regs(s, 'c', o->c, nc);
	load_regs(s, 'e', U8, 1);
	sprintf(s + strlen(s), "mma%s.sync.aligned.%s.row.col%s.%s.%s.%s.%s ",
		!sparse(o) ? "" : selector(o) % 2 ? ".sp" : ".sp::ordered_metadata", o->shape,
		o->form & SATFINITE ? ".satfinite" : "", types[o->d].name,
		types[o->a].name, types[o->b].name, types[o->c].name);
	list(s, 'd', o->d, nd, ',');
	list(s, 'a', o->a, na, ',');
	list(s, 'b', o->b, nb, ',');
	list(s, 'c', o->c, nc, sparse(o) ? ',' : ';');
	if (sparse(o))
		sprintf(s + strlen(s), "%%re0, %u;\n", selector(o));
	load_regs(s, 'd', o->d, nd);
	strcat(s, "ret;\n}\n");
	return s;
}

/*
 * Which columns a sparse A's columns stand for, at random, and the metadata that say so: 16 bits of
 * two rows in a lane; of 8-bit types 32 bits of one.
 */
static void choose_columns(const struct mma *o, uint8_t *which, uint32_t *meta)
{
	unsigned int row, c, x, y, tf = o->a == TF32, wide = types[o->a].bits == 8, bits, at, lane;
	unsigned int lanes = o->k * (tf ? 2 : 1) / 16;

	for (lane = 0; lane < 32; lane++)	/* those that are not selected: anything */
		meta[lane] = (uint32_t)rnd();
	for (row = 0; row < 16; row++)
		for (c = 0; c < o->k / 2; c += tf ? 1 : 2) {
			x = (unsigned int)(rnd() >> 20) % (tf ? 2 : 3);
			y = x + 1 + (unsigned int)(rnd() >> 20) % (3 - x);
			which[row * 32 + c] = (uint8_t)(tf ? 2 * c + x : c / 2 * 4 + x);
			if (!tf)
				which[row * 32 + c + 1] = (uint8_t)(c / 2 * 4 + y);
			bits = tf ? x ? 14 : 4 : x | y << 2;
			at = (tf ? 4 : 2) * c;
			lane = row % 8 * 4 + selector(o) * lanes;
			lane += wide ? at / 32 * 2 + row / 8 : at / 16;
			at = wide ? at % 32 : at % 16 + row / 8 * 16;
			meta[lane] = (meta[lane] & ~(15u << at)) | bits << at;
		}
}

static uint64_t product(const struct mma *o, const uint64_t *a, const uint64_t *b,
			const uint64_t *c, const uint8_t *which, unsigned int row, unsigned int col)
{
	double acc = value(c[row * 8 + col], o->c);
	float f = (float)acc;
	int64_t n = (int64_t)(o->c == S32 ? acc : 0);
	uint64_t bits = 0;
	_Float16 h;
	unsigned int k;

	for (k = 0; k < a_columns(o); k++) {
		double x = value(a[row * a_columns(o) + k], o->a);
		double y = value(b[(sparse(o) ? which[row * 32 + k] : k) * 8 + col], o->b);

		if (o->d == F64)
			acc = fma(x, y, acc);
		else if (o->d == S32)
			n += (int64_t)(x * y);
		else
			f = fmaf((float)x, (float)y, f);
	}
	if (o->d == S32 && (o->form & SATFINITE))
		n = n > INT32_MAX ? INT32_MAX : n < INT32_MIN ? INT32_MIN : n;
	h = (_Float16)f;
	if (o->d == F64)
		memcpy(&bits, &acc, 8);
	else if (o->d == S32)
		bits = (uint32_t)n;
	else if (o->d == F16)
		memcpy(&bits, &h, 2);
	else
		memcpy(&bits, &f, 4);
	return bits;
}

TEST(mma_of_every_shape_and_type)
{
	static uint64_t mat[4][BLOCKS][CELL];
	static uint8_t which[BLOCKS][16 * 32];
	static const char names[] = "abcc";
	unsigned int r, blk, i, x;

	for (r = 0; r < sizeof(mmas) / sizeof(mmas[0]); r++) {
		const struct mma *o = &mmas[r];
		const enum type t[4] = { o->a, o->b, o->c, o->d };
		struct { uint8_t *p[5]; } arg;
		char *text = program(o);
		struct prog p;
		int ret = prog_load(&p, text, "t");

		ASSERT_EQ(0, ret) TH_LOG("%s", p.err);
		memset(window(), 0xa5, 1 << 20);
		for (x = 0; x < 4; x++) {
			arg.p[x] = window() + x * (256 << 10);
			for (blk = 0; x < 3 && blk < BLOCKS; blk++) {
				for (i = 0; i < CELL; i++)
					mat[x][blk][i] = random_bits(t[x]);
				if ((o->form & SATFINITE) && x == 2)	/* near the ends of the range */
					for (i = 0; i < CELL; i++)
						mat[x][blk][i] = (i & 1 ? 0x7fffffff : 0x80000000u) ^
								 (rnd() & 0x7fff);
				deal(o, names[x], t[x], mat[x][blk], arg.p[x] + (size_t)blk * 32 *
				     per_lane(o, names[x]) * types[t[x]].bits / 8, false);
			}
		}
		arg.p[4] = window() + (960 << 10);
		for (blk = 0; sparse(o) && blk < BLOCKS; blk++)
			choose_columns(o, which[blk], (uint32_t *)arg.p[4] + blk * 32);
		ASSERT_EQ(0, prog_run(&p, BLOCKS, 32, 0, &arg, sizeof(arg))) TH_LOG("%s", p.fault.text);
		for (blk = 0; blk < BLOCKS; blk++) {
			deal(o, 'c', o->d, mat[3][blk], arg.p[3] + (size_t)blk * 32 *
			     per_lane(o, 'c') * types[o->d].bits / 8, true);
			for (i = 0; i < o->m * 8; i++) {
				uint64_t want = product(o, mat[0][blk], mat[1][blk], mat[2][blk],
							which[blk], i / 8, i % 8);

				ASSERT_EQ(want, mat[3][blk][i])
					TH_LOG("%s%s.%s.%s.%s.%s row %u column %u",
					       sparse(o) ? "sparse " : "", o->shape,
					       types[o->d].name, types[o->a].name,
					       types[o->b].name, types[o->c].name, i / 8, i % 8);
			}
		}
		prog_free_all(&p);
		free(text);
	}
}

/*
 * m8n8k4 of f16: lanes l and l + 16 of l % 16 / 4 have a product of their own.  Rows of A go by lanes
 * where it is by rows, by elements else; B's columns the other way round.
 */
static void quad_lane(unsigned int lines_by_lanes, unsigned int i, unsigned int l,
		      unsigned int *line, unsigned int *k)
{
	*line = (lines_by_lanes ? l % 4 : i) + (l >= 16 ? 4 : 0);
	*k = lines_by_lanes ? i : l % 4;
}

static unsigned int quad_cell(bool wide, unsigned int i, unsigned int l)
{
	unsigned int row = wide ? (l & 1) + (i & 2) : l % 4, col = wide ? (i & 4) + (l & 2) + (i & 1) : i;

	return (row + (l >= 16 ? 4 : 0)) * 8 + col;
}

TEST(mma_by_eight_lanes)
{
	static const char *const lay[] = { "row", "col" }, *const name[] = { "f16", "f32" };
	unsigned int how, l, i, k, line, q;

	for (how = 0; how < 16; how++) {
		bool acol = how & 1, bcol = how & 2, dwide = how & 4, cwide = how & 8;
		_Float16 *in[2] = { (_Float16 *)window(), (_Float16 *)(window() + 4096) };
		uint8_t *ct = window() + 8192, *dt = window() + 16384;
		float a[4][8][4], b[4][4][8], c[4][64], want;
		struct { void *p[4]; } arg = { { in[0], in[1], ct, dt } };
		struct prog p;
		char s[4096];

		snprintf(s, sizeof(s), ".version 8.7\n.target sm_75\n.address_size 64\n.visible .entry t("
			 ".param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)\n{\n"
			 ".reg .b64 %%q; .reg .b32 %%l, %%ra<2>, %%rb<2>, %%rc<8>, %%rd<8>;\n"
			 "mov.u32 %%l, %%tid.x;\n");
		load_regs(s, 'a', F16, 2);
		load_regs(s, 'b', F16, 2);
		load_regs(s, 'c', F16, cwide ? 8 : 4);
		sprintf(s + strlen(s), "mma.sync.aligned.m8n8k4.%s.%s.%s.f16.f16.%s ", lay[acol],
			lay[bcol], name[dwide], name[cwide]);
		list(s, 'd', F16, dwide ? 8 : 4, ',');
		list(s, 'a', F16, 2, ',');
		list(s, 'b', F16, 2, ',');
		list(s, 'c', F16, cwide ? 8 : 4, ';');
		load_regs(s, 'd', F16, dwide ? 8 : 4);
		strcat(s, "ret;\n}\n");
		ASSERT_EQ(0, prog_load(&p, s, "t")) TH_LOG("%s", p.err);
		for (l = 0; l < 32; l++) {
			q = l % 16 / 4;
			for (i = 0; i < 4; i++) {
				quad_lane(!acol, i, l, &line, &k);
				in[0][l * 4 + i] = (_Float16)((int)(rnd() >> 40) % 999 / 64.0);
				a[q][line][k] = in[0][l * 4 + i];
				quad_lane(bcol, i, l, &line, &k);
				in[1][l * 4 + i] = (_Float16)((int)(rnd() >> 40) % 999 / 64.0);
				b[q][k][line] = in[1][l * 4 + i];
			}
			for (i = 0; i < 8; i++) {
				float v = (float)(_Float16)((int)(rnd() >> 40) % 9999 / 32.0);

				c[q][quad_cell(cwide, i, l)] = v;
				if (cwide)
					((float *)ct)[l * 8 + i] = v;
				else
					((_Float16 *)ct)[l * 8 + i] = (_Float16)v;
			}
		}
		memset(dt, 0xa5, 4096);
		ASSERT_EQ(0, prog_run(&p, 1, 32, 0, &arg, sizeof(arg))) TH_LOG("%s", p.fault.text);
		for (l = 0; l < 32; l++)
			for (i = 0; i < 8; i++) {
				unsigned int at = quad_cell(dwide, i, l);
				float got = dwide ? ((float *)dt)[l * 8 + i] : ((_Float16 *)dt)[l * 8 + i];

				q = l % 16 / 4;
				want = c[q][at];
				for (k = 0; k < 4; k++)
					want = fmaf(a[q][at / 8][k], b[q][k][at % 8], want);
				if (!dwide)
					want = (_Float16)want;
				ASSERT_EQ(want, got) TH_LOG("form %u lane %u element %u", how, l, i);
			}
		prog_free_all(&p);
	}
}

/* ldmatrix: the row that lane 8 i + r points to is row r of matrix i, lane 4 r + c has columns
 * 2 c and 2 c + 1; .trans: the same of the transpose. */
TEST(ldmatrix_whole_and_transposed)
{
	unsigned int n, trans, l, i;

	for (n = 1; n <= 4; n *= 2)
		for (trans = 0; trans < 2; trans++) {
			static const char *const list[] = { "", "{%r0}", "{%r0,%r1}", "",
							    "{%r0,%r1,%r2,%r3}" };
			uint32_t *out = (uint32_t *)window();
			struct { uint32_t *p; } arg = { out };
			char text[2048];
			struct prog p;

			snprintf(text, sizeof(text), ".version 8.7\n.target sm_90\n.address_size 64\n"
				 ".visible .entry t(.param .u64 po)\n{\n.reg .b64 %%q; .reg .b32 %%l,%%a,"
				 "%%v,%%b,%%r<4>;\n.shared .align 16 .b8 s[2048];\n"
				 "ld.param.u64 %%q, [po]; mov.u32 %%l, %%tid.x; mov.u32 %%b, s;\n"
				 /* element e of the 1024 halves is e */
				 "mov.u32 %%v, 0;\nL: mad.lo.u32 %%a, %%v, 32, %%l; mul.lo.u32 %%r0, %%a,"
				 " 0x20002; add.u32 %%r0, %%r0, 0x10000; shl.b32 %%a, %%a, 2;"
				 " add.u32 %%a, %%a, %%b; st.shared.b32 [%%a], %%r0;\n"
				 "add.u32 %%v, %%v, 1; .reg .pred %%p; setp.lt.u32 %%p, %%v, 16;"
				 " @%%p bra L;\nbar.sync 0;\n"
				 /* lane l points to row 5 l mod 128, of 8 halves */
				 "mul.lo.u32 %%a, %%l, 5; and.b32 %%a, %%a, 127; shl.b32 %%a, %%a, 4;"
				 " add.u32 %%a, %%a, %%b; mov.u32 %%r0, 0; mov.u32 %%r1, 0;"
				 " mov.u32 %%r2, 0; mov.u32 %%r3, 0;\n"
				 "ldmatrix.sync.aligned.m8n8.x%u%s.shared.b16 %s, [%%a];\n"
				 "mad.wide.u32 %%q, %%l, 16, %%q; st.global.v4.b32 [%%q], "
				 "{%%r0,%%r1,%%r2,%%r3};\nret;\n}\n", n, trans ? ".trans" : "", list[n]);
			ASSERT_EQ(0, prog_load(&p, text, "t")) TH_LOG("%s", p.err);
			memset(out, 0xa5, 4096);
			ASSERT_EQ(0, prog_run(&p, 1, 32, 0, &arg, sizeof(arg)))
				TH_LOG("%s", p.fault.text);
			for (l = 0; l < 32; l++)
				for (i = 0; i < 4; i++) {
					uint32_t r = l / 4, c = l % 4 * 2, lo, hi, want;

					lo = trans ? (i * 8 + c) * 5 % 128 * 8 + r :
						     (i * 8 + r) * 5 % 128 * 8 + c;
					hi = trans ? (i * 8 + c + 1) * 5 % 128 * 8 + r : lo + 1;
					want = i < n ? lo | hi << 16 : 0;
					ASSERT_EQ(want, out[l * 4 + i])
						TH_LOG("x%u trans %u lane %u register %u", n, trans, l, i);
				}
			prog_free_all(&p);
		}
}

TEST_HARNESS_MAIN
