// SPDX-License-Identifier: Apache-2.0
/*
 * records.c - the table of records' effects has a consistent row for each possible record
 */
#include <stdio.h>

#include "local.h"
#include "worker.h"

static int op_named(const char *name)
{
	for (int op = 1; op < SV_OPS_cuda; op++)
		if (cuda_ops[op].name && !strcmp(cuda_ops[op].name, name))
			return op;
	return 0;
}

/* What client libraries send: every name of an operation in their sources. */
TEST(whatever_a_client_sends_has_a_row)
{
	FILE *f = popen("grep -rhoE 'SV_OP_[A-Za-z0-9_]+' --include='*.c' --exclude-dir=gen "
			"libintercept | sort -u", "r");
	char line[128];
	int n = 0, op;

	ASSERT_NE(f, NULL);
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		op = op_named(line + strlen("SV_OP_"));
		if (!op)
			continue;	/* a prefix in a macro; the compiler knows the others */
		n++;
		EXPECT_NE(record_of(op), NULL)
			TH_LOG("%s has no row", line);
	}
	EXPECT_EQ(pclose(f), 0);
	EXPECT_GT(n, 60);
}

TEST(every_generated_record_and_every_one_of_ours_has_a_row)
{
	int generated = 0, ours = 0;

	for (int op = 0; op < SV_OPS_cuda; op++) {
		const struct sv_op *g = &cuda_ops[op];
		const struct record *r = record_of(op);

		if (!g->name)
			continue;
		if (r) {
			EXPECT_STREQ(r->name, g->name);
		}
		if (g->flags & SV_GENERATED) {
			generated++;
			ASSERT_NE(r, NULL);
			EXPECT_EQ(!!(g->flags & SV_LOG) && !(r->flags & RECORD_LOG), false);
			EXPECT_TRUE(!g->creates || r->makes == g->handle);
			EXPECT_TRUE(!g->destroys || r->ends == g->handle);
		} else if (!strncmp(g->name, "X_", 2)) {
			ours++;
			ASSERT_NE(r, NULL)
				TH_LOG("%s has no row", g->name);
			EXPECT_NE(r->fn, NULL);
		} else if (r) {
			EXPECT_NE(r->fn, NULL);
		}
	}
	EXPECT_GT(generated, 40);
	EXPECT_EQ(ours, 29);
	EXPECT_EQ(record_of(0), NULL);
	EXPECT_EQ(record_of(SV_OPS_cuda), NULL);
	EXPECT_EQ(record_of(0xffff), NULL);
	EXPECT_STREQ(op_name(0xffff), "unknown");
}

/* Where it names something lies in it, and what is logged says what becomes of it. */
TEST(rows_make_sense)
{
	for (int op = 0; op < SV_OPS_cuda; op++) {
		const struct record *r = record_of(op);
		uint16_t at[4];
		unsigned int size;

		if (!r)
			continue;
		size = r->fn ? r->size : cuda_ops[op].args;
		memcpy(at, (uint16_t[]){ r->makes, r->ends, r->changes, r->of }, sizeof(at));
		for (int i = 0; i < 4; i++) {
			EXPECT_TRUE(!at[i] || (at[i] % 8 == 1 && at[i] - 1u + 8 <= size))
				TH_LOG("%s names something at %u of %u", r->name, at[i] - 1, size);
		}
		for (int i = 0; i < 2; i++) {
			EXPECT_TRUE(r->key[i].len == RECORD_REST ? r->key[i].at <= size :
				    r->key[i].at + r->key[i].len <= size)
				TH_LOG("%s has a key behind its end", r->name);
		}
		EXPECT_TRUE(r->fn || !r->size);
		EXPECT_TRUE(!(r->flags & RECORD_MEMORY) || size >= 16);
		EXPECT_TRUE(!r->key[0].len || r->flags & RECORD_LOG);
		EXPECT_TRUE(!(r->flags & RECORD_ORDERED) || r->makes || r->of ||
			    r->flags & (RECORD_VALUE | RECORD_COND));
		EXPECT_TRUE(!(r->flags & RECORD_LOG) || r->makes || r->ends || r->changes ||
			    r->flags & (RECORD_MEMORY | RECORD_VALUE | RECORD_ENDS_VALUE))
			TH_LOG("%s is logged, and stays in the log for ever", r->name);
		/* A change without a key would pile up as often as a program makes it. */
		EXPECT_TRUE(!(r->flags & RECORD_LOG) || !r->changes || r->key[0].len ||
			    r->flags & (RECORD_NODES | RECORD_COND))
			TH_LOG("%s changes something, and has no key", r->name);
	}
}

enum { ERRANDS = 12 };

static int began[ERRANDS], ended[ERRANDS], begins, ends;

/* The first ones take longest; some do most of it when their turn is over. */
static int load(struct call *k)
{
	uint64_t i = k->seq;

	began[__atomic_fetch_add(&begins, 1, __ATOMIC_RELAXED)] = i;
	if (i % 3 == 0)
		worker_end_turn();
	usleep((ERRANDS - i) * 2000);
	if (i % 3)
		ended[__atomic_fetch_add(&ends, 1, __ATOMIC_RELAXED)] = i;
	return 0;
}

static void errands(void *arg)
{
	struct record r = { .name = "load", .fn = load,
			    .flags = RECORD_WORKER | RECORD_LOG | RECORD_ORDERED };
	struct local *l = local_open();

	(void)arg;
	for (uint64_t i = 0; i < ERRANDS; i++) {
		struct call k = { .c = { .session = &l->s, .data = "", .op = SV_OP_X_PREPARE },
				  .seq = i };

		CHECK_EQ(worker_call(&r, &k), 0);
	}
	while (!worker_idle())
		usleep(1000);
	for (int i = 0; i < ERRANDS; i++)
		CHECK_EQ(began[i], i);
	CHECK_EQ(ends, ERRANDS * 2 / 3);
	for (int i = 1; i < ends; i++)
		CHECK(ended[i] > ended[i - 1]);
}

TEST(what_loads_something_is_executed_in_the_order_of_the_log)
{
	EXPECT_EQ(local_child(errands, NULL), 0);
}

static CUcontext current;
static uint64_t enters;

static int look(struct call *k)
{
	CHECK_EQ(k->c.session->hal.drv.cuCtxGetCurrent(&current), 0);
	if (enters)
		CHECK_EQ(sv_enter(k->c.session, enters), 0);
	return 0;
}

static void looks(struct local *l)
{
	struct record r = { .name = "look", .fn = look, .flags = RECORD_WORKER };
	struct call k = { .c = { .session = &l->s, .driver = &l->s.hal.drv, .data = "",
				 .op = SV_OP_X_FUNC_INFO } };

	CHECK_EQ(worker_call(&r, &k), 0);
	while (!worker_idle())
		usleep(1000);
}

static void looks_at_contexts(void *arg)
{
	struct local *l = local_open();
	uint64_t other = local_handle(l, SV_T_CUcontext);

	(void)arg;
	looks(l);
	CHECK(current == l->s.hal.primary);
	CHECK_EQ(SEND(l, SV_OP_cuCtxCreate_v4, (struct sv_ctx_new){ other, 0, 0 }), 0);
	enters = other;
	looks(l);
	enters = 0;
	looks(l);
	CHECK(current && current != l->s.hal.primary);
	CHECK_EQ(SEND(l, SV_OP_cuCtxDestroy_v2, (struct sv_ctx_end){ other }), 0);
	looks(l);
	CHECK(current == l->s.hal.primary);
}

TEST(a_worker_is_in_a_context_that_lives)
{
	EXPECT_EQ(local_child(looks_at_contexts, NULL), 0);
}

static CUresult last;

static CUresult after_one_parameter(CUkernel f, size_t i, size_t *off, size_t *size)
{
	(void)f;
	*off = 0;
	*size = 8;
	return i ? last : CUDA_SUCCESS;
}

static void asks_for_parameters(void *arg)
{
	static const char text[] = ".version 8.0\n.target sm_75\n.address_size 64\n"
		".visible .entry one(.param .u64 p)\n{\n\tret;\n}\n";
	struct local *l = local_open();
	struct sv_by_name a = { .from = local_load(l, text, sizeof(text), SV_IMAGE_ARENA),
				.info = l->arena, .cap = 4096, .name_len = sizeof("one") };

	(void)arg;
	l->s.hal.drv.cuKernelGetParamInfo = after_one_parameter;
	last = CUDA_ERROR_INVALID_VALUE;
	a.handle = local_handle(l, SV_T_CUkernel);
	CHECK_EQ(local_send(l, SV_OP_cuLibraryGetKernel, &a, sizeof(a), "one", 4, NULL), 0);
	last = CUDA_ERROR_INVALID_CONTEXT;
	a.handle = local_handle(l, SV_T_CUkernel);
	CHECK_EQ(local_send(l, SV_OP_cuLibraryGetKernel, &a, sizeof(a), "one", 4, NULL), last);
}

TEST(a_kernel_has_its_parameters_or_an_error)
{
	EXPECT_EQ(local_child(asks_for_parameters, NULL), 0);
}

TEST_HARNESS_MAIN
