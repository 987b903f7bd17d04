// SPDX-License-Identifier: Apache-2.0
/*
 * warp.cu - shuffles, votes, matches and reductions of warps, parts of warps and diverged warps.
 */
#include "../job.cuh"

#define N 256

struct out_t {
	int idx, up, down, xor_, narrow, mine;
	unsigned int ballot, match, active;
	int all_eq, any, all, part, bcast;
	float f;
	double d;
	long long ll;
};

__global__ void whole(const int *in, out_t *out)
{
	int t = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, v = in[t], pred;
	out_t o = {};

	o.idx = __shfl_sync(~0u, v, (lane * 7 + 3) & 31);
	o.up = __shfl_up_sync(~0u, v, 5);
	o.down = __shfl_down_sync(~0u, v, 9);
	o.xor_ = __shfl_xor_sync(~0u, v, 21);
	o.narrow = __shfl_down_sync(~0u, v, 3, 8) * 3 + __shfl_up_sync(~0u, v, 1, 4) +
		   __shfl_sync(~0u, v, 1, 16);
	o.bcast = __shfl_sync(~0u, v, 40);		/* modulo the width */
	o.ballot = __ballot_sync(~0u, v % 3 == 0);
	o.match = __match_any_sync(~0u, v % 5);
	__match_all_sync(~0u, v / 100000, &pred);
	o.all_eq = pred;
	o.any = __any_sync(~0u, v % 64 == 63);
	o.all = __all_sync(~0u, v >= 10);
	o.active = __activemask();
	o.f = __shfl_xor_sync(~0u, v * 0.5f, 1);
	o.d = __shfl_xor_sync(~0u, v * 0.25, 2);
	o.ll = __shfl_sync(~0u, (long long)v << 33, 31 - lane);
	out[t] = o;
}

/* Halves that diverge, each with a mask of its own; and a lane that leaves early. */
__global__ void parts(const int *in, out_t *out)
{
	int t = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, v = in[t];
	out_t o = {};

	if (lane == 13) {
		out[t] = o;
		return;
	}
	if (lane & 1) {
		o.part = __shfl_sync(0xaaaaaaaau & ~(1u << 13), v, 31 - (lane & 2));
		o.ballot = __ballot_sync(0xaaaaaaaau & ~(1u << 13), v & 4);
	} else {
		o.part = -__shfl_xor_sync(0x55555555u, v, 2);
		o.match = __match_any_sync(0x55555555u, v & 1);
	}
	__syncwarp(~(1u << 13));
	int s = v;

	if (lane < 8) {
		for (int d = 1; d < 8; d <<= 1)
			s += __shfl_xor_sync(0xffu, s, d);
		o.mine = s;
	} else if (lane >= 16 && lane < 24) {
		for (int d = 4; d; d >>= 1) {
			int x = __shfl_down_sync(0xff0000u, s, d, 8);

			s = max(s, x);
		}
		o.mine = s;
	}
	out[t] = o;
}

/* Exchange through shared memory inside a warp, and sums by a loop that lanes leave one by one. */
__global__ void shared_exchange(const int *in, int *out)
{
	__shared__ int s[N];
	int t = threadIdx.x, v = in[t], rounds = 0;

	s[t] = v;
	__syncwarp();
	v = s[t ^ 31];
	__syncwarp();
	s[t] = v * 2;
	__syncwarp();
	v = s[(t & ~31) | ((t + 1) & 31)];
	while (v > 1) {			/* Collatz, as long as each lane needs */
		v = v & 1 ? 3 * v + 1 : v / 2;
		if (++rounds > 300)
			break;
	}
	__syncwarp();
	out[t] = rounds + __popc(__ballot_sync(~0u, rounds & 1));
}

/* Matrix of bits, transposed by ballots; a sort of 32 by exchange. */
__global__ void puzzles(const int *in, unsigned int *bits, int *sorted)
{
	int lane = threadIdx.x & 31, v = in[threadIdx.x];
	unsigned int mine = v * 2654435761u, row = 0;

	for (int b = 0; b < 32; b++) {
		unsigned int w = __ballot_sync(~0u, mine >> b & 1);

		if (b == lane)
			row = w;
	}
	bits[threadIdx.x] = row;
	for (int k = 2; k <= 32; k <<= 1)
		for (int j = k >> 1; j; j >>= 1) {
			int other = __shfl_xor_sync(~0u, v, j);
			bool up = (lane & k) == 0, low = (lane & j) == 0;

			v = (up == low) ? min(v, other) : max(v, other);
		}
	sorted[threadIdx.x] = v;
}

/*
 * The last step of many reductions: eight lanes add what a whole warp would give. What lanes give that do
 * not take part is open, but programs (NVIDIA's reduction) count on it being no old value of theirs.
 */
__global__ void few_lanes(const int *in, int *out)
{
	__shared__ int part[8];
	int v = in[threadIdx.x];

	for (int d = 16; d; d /= 2)
		v += __shfl_down_sync(~0u, v, d);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = v;
	__syncthreads();
	unsigned int some = __ballot_sync(~0u, threadIdx.x < 8);
	if (threadIdx.x < 8) {
		v = part[threadIdx.x];
		for (int d = 16; d; d /= 2)
			v += __shfl_down_sync(some, v, d);
		if (!threadIdx.x)
			*out = v;
	}
}

int main()
{
	std::vector<int> in(N), o2(N);
	unsigned int seed = 21;
	out_t *d_out;
	int *d_o2;

	for (int i = 0; i < N; i++)
		in[i] = 10 + rnd(&seed) % 1000;
	int *d = to_device(in);
	CHECK(cudaMalloc(&d_out, N * sizeof(out_t)));
	CHECK(cudaMalloc(&d_o2, N * 4));
	whole<<<2, N / 2>>>(d, d_out);
	CHECK(cudaGetLastError());
	std::vector<out_t> o = to_host(d_out, N);
	for (int t = 0; t < N; t++) {
		int lane = t & 31, w = t & ~31;
		unsigned int ballot = 0, match = 0;
		bool any = false, all = true;

		for (int k = 0; k < 32; k++) {
			ballot |= (unsigned)(in[w + k] % 3 == 0) << k;
			match |= (unsigned)(in[w + k] % 5 == in[t] % 5) << k;
			any |= in[w + k] % 64 == 63;
			all &= in[w + k] >= 10;
		}
		EXPECT_EQ(o[t].idx, in[w + ((lane * 7 + 3) & 31)]);
		EXPECT_EQ(o[t].up, lane < 5 ? in[t] : in[t - 5]);
		EXPECT_EQ(o[t].down, lane + 9 > 31 ? in[t] : in[t + 9]);
		EXPECT_EQ(o[t].xor_, in[w + (lane ^ 21)]);
		int narrow = (lane % 8 + 3 > 7 ? in[t] : in[t + 3]) * 3 +
			     (lane % 4 ? in[t - 1] : in[t]) + in[w + lane / 16 * 16 + 1];
		EXPECT_EQ(o[t].narrow, narrow);
		EXPECT_EQ(o[t].bcast, in[w + 8]);
		EXPECT_EQ(o[t].ballot, ballot);
		EXPECT_EQ(o[t].match, match);
		EXPECT_EQ(o[t].all_eq, 1);
		EXPECT_EQ(o[t].any, any);
		EXPECT_EQ(o[t].all, all);
		EXPECT_EQ(o[t].active, ~0u);
		EXPECT(o[t].f == in[t ^ 1] * 0.5f && o[t].d == in[t ^ 2] * 0.25);
		EXPECT_EQ(o[t].ll, (long long)in[w + 31 - lane] << 33);
	}
	sum_vector(o);
	parts<<<2, N / 2>>>(d, d_out);
	CHECK(cudaGetLastError());
	o = to_host(d_out, N);
	for (int t = 0; t < N; t++) {
		int lane = t & 31, w = t & ~31, mine = 0;
		unsigned int ballot = 0, match = 0;

		if (lane == 13)
			continue;
		for (int k = 0; k < 32; k++) {
			if ((k & 1) && k != 13)
				ballot |= (unsigned)((in[w + k] & 4) != 0) << k;
			if (!(k & 1))
				match |= (unsigned)((in[w + k] & 1) == (in[t] & 1)) << k;
		}
		if (lane & 1) {
			EXPECT_EQ(o[t].part, in[w + 31 - (lane & 2)]);
			EXPECT_EQ(o[t].ballot, ballot);
		} else {
			EXPECT_EQ(o[t].part, -in[w + (lane ^ 2)]);
			EXPECT_EQ(o[t].match, match);
		}
		if (lane < 8)
			for (int k = 0; k < 8; k++)
				mine += in[w + k];
		if (lane == 16)
			for (int k = 16; k < 24; k++)
				mine = std::max(mine, in[w + k]);
		if (lane <= 16)
			EXPECT_EQ(o[t].mine, mine);
	}
	sum_vector(o);
	shared_exchange<<<1, N>>>(d, d_o2);
	o2 = to_host(d_o2, N);
	std::vector<int> rounds(N);
	for (int t = 0; t < N; t++) {
		int n = (t & ~31) | ((t + 1) & 31), v = in[n ^ 31] * 2;

		while (v > 1) {
			v = v & 1 ? 3 * v + 1 : v / 2;
			if (++rounds[t] > 300)
				break;
		}
	}
	for (int t = 0; t < N; t++) {
		int odd = 0;

		for (int k = t & ~31; k < (t & ~31) + 32; k++)
			odd += rounds[k] & 1;
		EXPECT_EQ(o2[t], rounds[t] + odd);
	}
	sum_vector(o2);
	unsigned int *bits;
	CHECK(cudaMalloc(&bits, N * 4));
	puzzles<<<1, N>>>(d, bits, d_o2);
	CHECK(cudaGetLastError());
	std::vector<unsigned int> b = to_host(bits, N);
	o2 = to_host(d_o2, N);
	for (int w = 0; w < N; w += 32) {
		std::vector<int> s(in.begin() + w, in.begin() + w + 32);

		for (int i = 0; i < 32; i++)
			for (int k = i + 1; k < 32; k++)
				if (s[k] < s[i])
					std::swap(s[i], s[k]);
		for (int i = 0; i < 32; i++) {
			unsigned int row = 0;

			for (int k = 0; k < 32; k++)
				row |= (in[w + k] * 2654435761u >> i & 1) << k;
			EXPECT_EQ(b[w + i], row);
			EXPECT_EQ(o2[w + i], s[i]);
		}
	}
	sum_vector(b);
	few_lanes<<<1, N>>>(d, d_o2);
	CHECK(cudaGetLastError());
	int total = 0;
	for (int v : in)
		total += v;
	EXPECT_EQ(to_host(d_o2, 1)[0], total);
	return job_passed("warp");
}
