// SPDX-License-Identifier: Apache-2.0
/*
 * pinned_mix.cu - pinned allocations of many sizes, made and freed in any order: one copy moves the
 * whole of each
 *
 * NVIDIA's driver refuses a copy that straddles two regions of cuMemHostRegister, as the soft device
 * does with SINGVGPU_SOFT_PROFILE=h100. A program that has one allocation must never see that.
 */
#include "../job.cuh"

#define LIVE	48
#define ROUNDS	400
#define LONGEST	(7 << 20)

struct piece {
	unsigned int *p;
	size_t n;		/* words */
	unsigned int tag;
};

static size_t a_size(unsigned int *state)
{
	switch (rnd(state) % 4) {
	case 0:
		return 64 + rnd(state) % 4096;
	case 1:
		return 4096 * (1 + rnd(state) % 300);
	case 2:		/* about a chunk of the arena */
		return (2 << 20) - 8192 + rnd(state) % 16384;
	default:
		return 1 + rnd(state) % LONGEST;
	}
}

/* The copy to the device and back takes the whole piece at once. */
static void check_piece(const struct piece *a, unsigned int *d)
{
	EXPECT_EQ(a->p[0], a->tag);
	EXPECT_EQ(a->p[a->n - 1], a->tag + a->n - 1);
	CHECK(cudaMemcpy(d, a->p, a->n * 4, cudaMemcpyHostToDevice));
	a->p[0] = a->p[a->n - 1] = 0;
	CHECK(cudaMemcpy(a->p, d, a->n * 4, cudaMemcpyDeviceToHost));
	EXPECT_EQ(a->p[0], a->tag);
	EXPECT_EQ(a->p[a->n - 1], a->tag + a->n - 1);
}

int main()
{
	unsigned int state = 12, *d, sum = 0;
	struct piece live[LIVE] = {};

	CHECK(cudaMalloc(&d, LONGEST + 4));
	for (int i = 0; i < ROUNDS; i++) {
		struct piece *a = &live[rnd(&state) % LIVE];

		if (a->p) {
			check_piece(a, d);
			sum = sum * 31 + a->p[a->n / 2];
			CHECK(cudaFreeHost(a->p));
			a->p = NULL;
			if (rnd(&state) % 2)
				continue;
		}
		a->n = (a_size(&state) + 3) / 4;
		a->tag = rnd(&state);
		CHECK(cudaHostAlloc(&a->p, a->n * 4, 0));
		for (size_t k = 0; k < a->n; k++)
			a->p[k] = a->tag + k;
		check_piece(a, d);
	}
	for (int i = 0; i < LIVE; i++)
		if (live[i].p) {
			check_piece(&live[i], d);
			CHECK(cudaFreeHost(live[i].p));
		}
	printf("checksum %016x\nPASS pinned_mix\n", sum);
	return 0;
}
