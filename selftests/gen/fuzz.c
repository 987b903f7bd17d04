// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz.c - feeds the generated dispatch random records, and mutants of nearly valid ones; it must
 * refuse or serve each without a bad access. fuzz [SECONDS] [SEED]
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "mock.h"

static uint64_t state;

static uint64_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static unsigned long calls;

static CUresult anything(void)
{
	calls++;
	return rnd() % 4 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

/* Words that get past one check or another. */
static uint64_t word(void)
{
	switch (rnd() % 8) {
	case 0:
		return MOCK_CTX;
	case 1:
		return MOCK_LEGACY;
	case 2:
		return MOCK_BASE + rnd() % (2 * MOCK_SIZE);
	case 3:
		return 0x1001 + rnd() % 40;
	case 4:
		return rnd() % 5;
	case 5:
		return 0;
	case 6:
		return 1ull << rnd() % 64;
	default:
		return rnd();
	}
}

static void one(const uint16_t *ops, int nops, unsigned long *refused)
{
	const struct sv_op *o;
	uint16_t op = ops[rnd() % nops];
	uint32_t len;
	uint8_t *data;
	struct sv_call c = { .session = &mock.session, .driver = &mock.driver };

	o = &cuda_ops[op];
	len = o->args + (o->flags & SV_TAIL ? rnd() % 12 * 8 : 0);
	if (rnd() % 8 == 0)
		len = rnd() % 256;
	/* Memory of just this length, so that one byte too far is seen. */
	data = malloc(len);
	for (uint32_t i = 0; i < len; i += 8) {
		uint64_t w = word();

		if (i == 0 && rnd() % 4)
			w = MOCK_CTX;
		memcpy(data + i, &w, len - i < 8 ? len - i : 8);
	}
	c.data = data;
	c.len = len;
	c.op = rnd() % 64 ? op : rnd();
	if (cuda_dispatch(&c)) {
		++*refused;
		if (c.reply_len)
			abort();
	}
	free(data);
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 2;
	unsigned long n = 0, refused = 0;
	uint16_t ops[1024];
	struct timespec from, now;
	int nops = 0;
	void *fn = anything;

	state = argc > 2 ? strtoull(argv[2], NULL, 0) | 1 : 0x9e3779b97f4a7c15ull;
	for (unsigned int i = 0; i < cuda_ops_count; i++)
		if (cuda_ops[i].flags & SV_GENERATED)
			ops[nops++] = i;
	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		mock_reset();
		for (size_t i = 0; i < sizeof(mock.driver); i += sizeof(fn))
			memcpy((char *)&mock.driver + i, &fn, sizeof(fn));
		for (int i = 0; i < 30; i++)
			mock_handle(1 + rnd() % SV_T_CUstream);
		for (int i = 0; i < 1000; i++, n++)
			one(ops, nops, &refused);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - from.tv_sec + (now.tv_nsec - from.tv_nsec) / 1e9 < seconds);
	printf("TAP version 13\n# %lu records, %lu refused, %lu driver calls\n", n, refused, calls);
	printf("%sok 1 - no record does harm, and some are refused\n", refused ? "" : "not ");
	printf("%sok 2 - some get through to the driver\n1..2\n", calls > 100 ? "" : "not ");
	return refused && calls > 100 ? 0 : 1;
}
