// SPDX-License-Identifier: Apache-2.0
/*
 * calls.c - what NCCL's transport calls, in which order, and what it does when NCCL fails, hangs, or is
 * not there; over selftests/nccl/fake.c, on the soft device
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hal.h"
#include "tree.h"
#include "world.h"

extern uint64_t nccl_patience_ns, nccl_note_ns; /* of hal/nccl/reap.c */

static char dir[] = "/tmp/svcalls.XXXXXX";
static char log_path[WORLD_MAX][64];

/* What the calling process has called since the last time, without the head of each line. */
static void calls(char *to, size_t size)
{
	static long from;
	char line[512];
	FILE *f = fopen(log_path[world_self], "r");

	*to = 0;
	if (!f)
		return;
	fseek(f, from, SEEK_SET);
	while (fgets(line, sizeof(line), f)) {
		char *text = line[0] == 'n' || line[0] == 'M' ? line : strchr(line, ' ') + 1;
		size_t n = strlen(to);

		snprintf(to + n, size - n, "%s", text);
	}
	from = ftell(f);
	fclose(f);
}

static void expect_calls(const char *what, const char *fmt, ...)
{
	char want[4096], got[4096];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(want, sizeof(want), fmt, ap);
	va_end(ap);
	calls(got, sizeof(got));
	if (strcmp(want, got)) {
		fprintf(stderr, "# rank %u, expected:\n%s# got:\n%s", world_self, want, got);
		world_fail("%s: rank %u called something else", what, world_self);
	}
}

static int start_on(uint64_t comm, uint64_t order, struct step_call call, const void *send, void *recv,
                    struct ended *e)
{
	struct transport_part p = { .rank = world_self, .send = send, .recv = recv };
	struct transport_start s = { .order = order, .comm = comm, .call = call, .ranks = world->n, .nparts = 1,
		                .device = world_devices, .part = &p, .done = on_end, .arg = e };

	*e = (struct ended){ 0 };
	return driver->start(end, &s);
}

static struct step_call sum_of(uint64_t count)
{
	return (struct step_call){ .kind = STEP_ALLREDUCE, .type = TREE_F32, .count = count };
}

static float *floats(uint64_t count, float value)
{
	float *f = world_alloc(count * sizeof(*f));

	for (uint64_t i = 0; i < count; i++)
		f[i] = value;
	return f;
}

static void must(const char *what, int got, int want)
{
	if (got != want)
		world_fail("%s, rank %u: %d, not %d (%s)", what, world_self, got, want,
		           world->said[world_self]);
}

/* An all-reduce of ones that must work. */
static void works(uint64_t comm, uint64_t order, uint64_t count)
{
	float *send = floats(count, 1), *recv = floats(count, 0);
	struct ended e;

	driver->announce(end, order);
	must("a start", start_on(comm, order, sum_of(count), send, recv, &e), 0);
	must("an all-reduce", await(&e, 60000), STEP_OK);
	for (uint64_t i = 0; i < count; i++)
		if (recv[i] != world->n)
			world_fail("rank %u: element %lu is %f", world_self, (unsigned long)i, recv[i]);
	world_free(send);
	world_free(recv);
}

/* Does not end by itself within a while. */
static void hangs(struct ended *e)
{
	must("an operation that hangs", await(e, 150), -1);
}

#define SOON 30000 /* ms: for what does not wait for anything that the test holds back */

/* What has been called when the text is there, too. */
static void await_calls(const char *what, char *got, size_t size)
{
	*got = 0;
	for (int ms = 0; ms < SOON; ms++) {
		size_t n = strlen(got);

		calls(got + n, size - n);
		if (strstr(got, what))
			return;
		usleep(1000);
	}
	world_fail("rank %u does not call %s:\n%s", world_self, what, got);
}

static void must_call(const char *what)
{
	char got[4096];

	await_calls(what, got, sizeof(got));
}

static void await_said(const char *what)
{
	for (int ms = 0; ms < SOON && !strstr(world->said[world_self], what); ms++)
		usleep(1000);
	if (!strstr(world->said[world_self], what))
		world_fail("rank %u said '%s'", world_self, world->said[world_self]);
}

static void said(const char *what)
{
	if (!strstr(world->said[world_self], what))
		world_fail("rank %u said '%s'", world_self, world->said[world_self]);
}

/* ------------------------------------------------------------------------------ sequences */

/* Ranks lie in order, without the own one: chunks of 16 KiB / 2 ranks. */
static char *slot_of(char *first, uint32_t rank)
{
	return first + (rank - (rank > world_self)) * 8192;
}

static void sequence_body(uint32_t self, void *arg)
{
	uint32_t n = world->n, next = (self + 1) % n, last = (self + n - 1) % n;
	float *send = floats(6000, 1), *recv = floats(6000, 0);
	char got[4096], *scratch[2], *slot;
	struct ended e;

	(void)arg;
	world_join(1);
	works(1, 1, 1);		/* the communicator stands now */
	calls(got, sizeof(got));
	if (self == 0 && !strstr(got, "ncclGetUniqueId\nncclCommInitRankConfig blocking 0\n"))
		world_fail("rank 0 began with %s", got);
	if (self && (strstr(got, "ncclGetUniqueId") || strncmp(got, "ncclCommInitRankConfig blocking 0\n", 34)))
		world_fail("rank %u began with %s", self, got);
	if (sscanf(strstr(got, "ncclRecv"), "ncclRecv %p", (void **)&scratch[0]) != 1 ||
	    sscanf(strstr(strstr(got, "ncclRecv") + 1, "ncclRecv"), "ncclRecv %p", (void **)&scratch[1]) != 1)
		world_fail("no receives in %s", got);
	/* A small one: everybody gets everything. */
	must("start", start_on(1, 2, sum_of(100), send, recv, &e), 0);
	must("small", await(&e, 60000), STEP_OK);
	slot = scratch[0] < scratch[1] ? scratch[0] : scratch[1];
	expect_calls("a small all-reduce",
	             "ncclSend %p 400 0 %u\nncclRecv %p 400 0 %u\nncclSend %p 400 0 %u\nncclRecv %p 400 0 %u\n"
	             "ncclGroupEnd\n", send, next, slot_of(slot, last), last, send, last, slot_of(slot, next), next);
	/* Slices of one chunk each. */
	must("start", start_on(1, 3, sum_of(6000), send, recv, &e), 0);
	must("large", await(&e, 60000), STEP_OK);
	{
		size_t first[3], len[3];

		for (uint32_t r = 0; r < 3; r++)
			tree_slice(6000, 3, r, &first[r], &len[r]);
		expect_calls("slices",
		             "ncclSend %p %zu 0 %u\nncclRecv %p %zu 0 %u\nncclSend %p %zu 0 %u\nncclRecv %p %zu 0 %u\n"
		             "ncclGroupEnd\n"
		             "ncclSend %p %zu 0 %u\nncclRecv %p %zu 0 %u\nncclSend %p %zu 0 %u\nncclRecv %p %zu 0 %u\n"
		             "ncclGroupEnd\n",
		             send + first[next], len[next] * 4, next, slot_of(slot, last), len[self] * 4, last,
		             send + first[last], len[last] * 4, last, slot_of(slot, next), len[self] * 4, next,
		             recv + first[self], len[self] * 4, next, recv + first[last], len[last] * 4, last,
		             recv + first[self], len[self] * 4, last, recv + first[next], len[next] * 4, next);
	}
	must("start", start_on(1, 4, (struct step_call){ .kind = STEP_REDUCE, .type = TREE_F32, .peer = 2,
	                                                 .count = 10 }, send, recv, &e), 0);
	must("reduce", await(&e, 60000), STEP_OK);
	if (self == 2)
		expect_calls("a reduce's root", "ncclRecv %p 40 0 1\nncclRecv %p 40 0 0\nncclGroupEnd\n", slot_of(slot, 1), slot_of(slot, 0));
	else
		expect_calls("a reduce", "ncclSend %p 40 0 2\nncclGroupEnd\n", send);
	must("start", start_on(1, 5, (struct step_call){ .kind = STEP_BROADCAST, .type = TREE_BF16, .peer = 1,
	                                                 .count = 10 }, self == 1 ? send : NULL, recv, &e), 0);
	must("broadcast", await(&e, 60000), STEP_OK);
	expect_calls("a broadcast", "ncclBroadcast %p %p 20 0 1\nncclGroupEnd\n", self == 1 ? send : recv, recv);
	if (self < 2) {
		must("start", start_on(1, 6, (struct step_call){ .kind = self ? STEP_RECV : STEP_SEND, .type = TREE_F64,
		                                                 .peer = !self, .count = 7 }, send, recv, &e), 0);
		must("pair", await(&e, 60000), STEP_OK);
		expect_calls("a pair", "%s %p 56 0 %u\nncclGroupEnd\n", self ? "ncclRecv" : "ncclSend",
		             self ? recv : send, !self);
	}
	must("start", start_on(1, 7, (struct step_call){ .kind = STEP_RECV, .type = TREE_F32, .peer = self,
	                                                 .count = 7 }, send, recv + 7, &e), 0);
	must("itself", await(&e, 60000), STEP_OK);
	expect_calls("a pair of one rank", "%s", "");
	driver->leave(end, 1);
	for (int i = 0; i < 60000; i++) {
		usleep(1000);
		calls(got, sizeof(got));
		if (strstr(got, "ncclCommDestroy"))
			break;
		if (*got && strcmp(got, "ncclCommFinalize\n"))
			world_fail("the end: %s", got);
	}
	if (!strstr(got, "ncclCommDestroy\n"))
		world_fail("a communicator that all have left is not destroyed");
	world_free(send);
	world_free(recv);
}

/* Streams come so far in another order than the log's: NCCL's calls follow the log on all ranks. */
static void order_body(uint32_t self, void *arg)
{
	float *send = floats(64, 1), *recv = floats(64, 0);
	struct ended e[4];
	char got[4096];

	(void)arg;
	world_join(1);
	works(1, 1, 10);
	calls(got, sizeof(got));
	for (uint64_t o = 2; o <= 5; o++)
		driver->announce(end, o);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t k = self ? 3 - i : i;

		if (k == 2) {	/* 4 does not come about */
			driver->withdraw(end, 4);
			continue;
		}
		must("start", start_on(1, 2 + k, sum_of(k + 1), send, recv + 16 * k, &e[k]), 0);
		if (self && k == 3)
			hangs(&e[3]);
	}
	for (uint32_t k = 0; k < 4; k++)
		if (k != 2)
			must("ordered", await(&e[k], 60000), STEP_OK);
	calls(got, sizeof(got));
	for (uint32_t k = 0, at = 0; k < 4; k++) {
		char call[64], *found;

		snprintf(call, sizeof(call), "ncclSend %p %u 0 ", (void *)send, 4 * (k + 1));
		found = strstr(got, call);
		if (k == 2 ? !!found : !found || (uint32_t)(found - got) < at)
			world_fail("rank %u called in another order:\n%s", self, got);
		at = found ? found - got : at;
	}
	world_free(send);
	world_free(recv);
}

/* NCCL's own order of addition. */
static void theirs_body(uint32_t self, void *arg)
{
	float *send = floats(4, self ? 0x1p-24f : 1), *recv = floats(4, 0);
	struct ended e;

	(void)arg;
	world_join(1);
	must("start", start_on(1, 1, sum_of(4), send, recv, &e), 0);
	must("NCCL's sum", await(&e, 60000), STEP_OK);
	/* ((1 + d) + d) + d, and not (1 + d) + (d + d). */
	if (recv[0] != (world->order == TRANSPORT_NCCL ? 1 : 1 + 0x1p-23f))
		world_fail("rank %u got %a", self, recv[0]);
	must("start", start_on(1, 2, (struct step_call){ .kind = STEP_ALLREDUCE, .type = TREE_BF16,
	                                                 .count = 2 }, send, recv, &e), 0);
	/* The fake has f32 alone: its refusal ends the communicator by name. */
	must("a type that NCCL lacks", await(&e, 60000), world->order == TRANSPORT_NCCL ? STEP_SYSTEM : STEP_OK);
	if (world->order == TRANSPORT_NCCL)
		said("ncclAllReduce: a fake error");
}

/* ------------------------------------------------------------------------------ failures */

/* What the step would do: an operation has failed on one device, and is cancelled on the others. */
static void cancelled(uint64_t order, struct ended *e)
{
	driver->cancel(end, order);
	must("a cancelled operation", await(e, 30000), STEP_REMOTE);
}

/* The first rank fails in the second operation, by itself; the others hang until they are cancelled. */
static void fails_body(uint32_t self, void *arg)
{
	float *send = floats(5000, 1), *recv = floats(5000, 0);
	const char *how = arg;
	struct ended e, other, again;
	char got[4096];
	int code = strstr(how, "async") ? STEP_REMOTE : STEP_SYSTEM;

	world_join(1);
	world_join(2);
	works(1, 1, 1);
	works(2, 2, 1);
	world_barrier();
	must("start", start_on(1, 3, sum_of(5000), send, recv, &e), 0);
	must("start", start_on(2, 4, sum_of(3), send, recv, &other), 0);
	if (self == 0) {
		if (strstr(how, "hang") || strstr(how, "stall")) {
			hangs(&e);
			cancelled(3, &e);
		} else {
			must("the failing rank", await(&e, 30000), code);
			said(code == STEP_REMOTE ? "a fake remote error" : "a fake error");
		}
		world_barrier();
	} else {
		/* Whether it is stuck depends on where the first one is. */
		world_barrier();
		driver->cancel(end, 3);
		must("the others", await(&e, 30000), STEP_REMOTE);
	}
	/* Another communicator is not affected; the broken one stays so, without a call of NCCL's. */
	must("another communicator", await(&other, 60000), STEP_OK);
	works(2, 5, 9000);
	await_calls("ncclCommAbort", got, sizeof(got));
	if (strstr(strstr(got, "ncclCommAbort") + 1, "ncclCommAbort"))
		world_fail("rank %u did not abort once:\n%s", self, got);
	must("start", start_on(1, 6, sum_of(3), send, recv, &again), 0);
	must("a broken communicator", await(&again, 30000),
	     self || strstr(how, "hang") || strstr(how, "stall") ? STEP_REMOTE : code);
	expect_calls("a broken communicator", "%s", "");
	driver->leave(end, 1);
	works(2, 7, 3);
	world_free(send);
	world_free(recv);
}

/* The creation fails on rank 1; or rank 1 does not come at all. */
static void creation_body(uint32_t self, void *arg)
{
	float *send = floats(10, 1), *recv = floats(10, 0);
	bool absent = !arg;
	struct ended e;

	if (!absent || self != 1) {
		world_join(1);
		must("start", start_on(1, 1, sum_of(10), send, recv, &e), 0);
		if (self == 1) {
			must("who cannot join", await(&e, 30000), STEP_SYSTEM);
			said("ncclCommInitRankConfig");
		} else {
			hangs(&e);
			cancelled(1, &e);
		}
		driver->leave(end, 1);
	}
	world_barrier();
	world_join(2);
	works(2, 2, 30000);
}

/* NCCL fails when nobody calls it any more: the others may have got all that they need. */
static void late_body(uint32_t self, void *arg)
{
	float *send = floats(5000, 1), *recv = floats(5000, 0);
	struct ended e;
	int rc;

	(void)arg;
	world_join(1);
	must("start", start_on(1, 1, sum_of(5000), send, recv, &e), 0);
	if (self == 0) {
		must("who fails late", await(&e, 30000), STEP_REMOTE);
		said("an operation: a fake remote error");
	}
	world_barrier();
	driver->cancel(end, 1);
	rc = await(&e, 30000);
	if (rc != STEP_OK && rc != STEP_REMOTE)
		must("the others", rc, STEP_REMOTE);
}

/* A rank that leaves at once, or whose process ends, is there until the communicator stands. */
static void early_body(uint32_t self, void *arg)
{
	float *send = floats(10, 5), *recv = floats(10, 0);
	struct step_call call = { .kind = self ? STEP_RECV : STEP_SEND, .type = TREE_F32, .peer = !self, .count = 10 };
	struct ended e;

	if (self == 2) {
		world_join(1);
		if (arg)
			driver->leave(end, 1);
		else
			driver->depart(end);
	} else {
		usleep(100000);
		world_join(1);
		must("start", start_on(1, 1, call, send, recv, &e), 0);
		must("without one that has left", await(&e, 60000), STEP_OK);
		if (self && recv[9] != 5)
			world_fail("got %f", recv[9]);
	}
	if (arg)
		world_barrier();
}

static void killed_body(uint32_t self, void *arg)
{
	float *send = floats(5000, 1), *recv = floats(5000, 0);
	struct ended e;

	(void)arg;
	world_join(1);
	works(1, 1, 30000);
	world_barrier();
	if (self == 1) {
		kill(getpid(), SIGKILL);
		pause();
	}
	must("start", start_on(1, 2, sum_of(5000), send, recv, &e), 0);
	/* NCCL says so, or the step does. */
	if (await(&e, 100) == -1)
		driver->cancel(end, 2);
	must("a dead peer", await(&e, 30000), STEP_REMOTE);
	driver->leave(end, 1);
}

/* ------------------------------------------------------------------------------ what NCCL's end waits for */

/* A stream of the program that waits for a word, as behind an operation. */
struct waits {
	uint64_t *word;
	struct ended e;
};

static void waits_begin(struct waits *w)
{
	const struct cuda_driver *drv = &world_hal()->drv;
	CUstream stream;

	*w = (struct waits){ 0 };
	if (drv->cuCtxSetCurrent(world_hal()->primary) || drv->cuMemHostAlloc((void **)&w->word, 8, 0))
		world_fail("no word for a stream");
	*w->word = 0;
	if (drv->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) ||
	    drv->cuStreamWaitValue64_v2(stream, (CUdeviceptr)w->word, 1, CU_STREAM_WAIT_VALUE_GEQ))
		world_fail("no stream that waits");
}

static void waits_end(struct waits *w)
{
	__atomic_store_n(w->word, 1, __ATOMIC_RELEASE);
}

/* What the program's stream waits for has ended. */
static void on_waited(void *arg, enum step_code code)
{
	struct waits *w = arg;

	waits_end(w);
	on_end(&w->e, code);
}

/* Rank 0 starts a sum that no other rank starts. */
static void start_alone(uint64_t comm, uint64_t order, struct ended *e)
{
	must("start", start_on(comm, order, sum_of(3), floats(3, 1), floats(3, 0), e), 0);
	hangs(e);
}

/* A sum of all ranks soon ends. */
static void goes_on(uint64_t comm, uint64_t order)
{
	struct ended e;

	must("start", start_on(comm, order, sum_of(100), floats(100, 1), floats(100, 0), &e), 0);
	must("what is started meanwhile", await(&e, SOON), STEP_OK);
}

/* ncclCommAbort waits for a stream of the program, and that for the operation's end. */
static void awaited_body(uint32_t self, void *arg)
{
	struct step_call call = sum_of(3);
	struct transport_part p = { .rank = self, .send = floats(3, 1), .recv = floats(3, 0) };
	struct transport_start s = { .order = 3, .comm = 1, .call = call, .ranks = 2, .nparts = 1, .device = world_devices,
		                     .part = &p, .done = on_waited };
	struct waits w;

	(void)arg;
	world_join(1);
	world_join(2);
	works(1, 1, 1);
	works(2, 2, 1);
	if (self == 0) {
		waits_begin(&w);
		s.arg = &w;
		must("start", driver->start(end, &s), 0);
		hangs(&w.e);
		driver->cancel(end, 3);
		must("what a stream waits for", await(&w.e, SOON), STEP_REMOTE);
	}
	goes_on(2, 4);
	world_barrier();
}

/* While the call waits for something else, the transport goes on. */
static void busy_body(uint32_t self, void *arg)
{
	const char *call = arg;
	struct waits w;
	struct ended e;

	world_join(1);
	world_join(2);
	works(1, 1, 1);
	works(2, 2, 1);
	world_barrier();
	waits_begin(&w);
	if (strstr(call, "Destroy")) {
		driver->leave(end, 1);
	} else if (self == 0) {
		start_alone(1, 3, &e);
		driver->cancel(end, 3);
		must("a cancelled operation", await(&e, SOON), STEP_REMOTE);
	}
	if (strstr(call, "Destroy") || self == 0)
		must_call(call);
	goes_on(2, 4);
	waits_end(&w);
	world_barrier();
}

/* The kernels of both communicators wait, one behind the other. */
static void both_body(uint32_t self, void *arg)
{
	struct ended e, f;

	(void)arg;
	world_join(1);
	world_join(2);
	works(1, 1, 1);
	works(2, 2, 1);
	world_barrier();
	if (self == 0) {
		start_alone(1, 3, &e);
		start_alone(2, 4, &f);
		driver->cancel(end, 3);
		driver->cancel(end, 4);
		must("the first one", await(&e, SOON), STEP_REMOTE);
		must("the second one", await(&f, SOON), STEP_REMOTE);
	}
	world_barrier();
}

/* A communicator that another rank has aborted is aborted here, too, though nothing of it is under way. */
static void idle_body(uint32_t self, void *arg)
{
	struct ended e;

	world_join(1);
	world_join(2);
	works(1, 1, 1);
	works(2, 2, 1);
	world_barrier();
	if (self == 0) {
		start_alone(1, 3, &e);
		driver->cancel(end, 3);
		must("a cancelled operation", await(&e, SOON), STEP_REMOTE);
	}
	must_call("ncclCommAbort");
	must("start", start_on(1, 5, sum_of(3), floats(3, 1), floats(3, 0), &e), 0);
	must("a broken communicator", await(&e, SOON), STEP_REMOTE);
	goes_on(2, 6);
	if (self == 0 && arg)	/* not before that: the others' aborts wait for their sums */
		await_said(arg);
	world_barrier();
}

/* A reset of the device ends what is under way; later communicators work. */
static void reset_body(uint32_t self, void *arg)
{
	struct transport_part p = { .rank = self, .send = floats(5000, 1), .recv = floats(5000, 0) };
	struct transport_start s = { .order = 2, .comm = 1, .call = sum_of(5000), .ranks = 2, .nparts = 1,
		                     .device = world_devices, .part = &p, .done = on_waited };
	float *send = floats(5000, 1), *recv = floats(5000, 0);
	struct waits w;
	struct ended f;

	(void)arg;
	world_join(1);
	works(1, 1, 1);
	if (self == 0) {
		waits_begin(&w);
		s.arg = &w;
		must("start", driver->start(end, &s), 0);
		hangs(&w.e);
		must("start", start_on(1, 3, sum_of(5000), send, recv, &f), 0);
	}
	if (self)
		world_barrier();
	driver->reset(end);
	if (self == 0) {
		must("a reset", await(&w.e, 30000), STEP_SYSTEM);
		must("behind a reset", await(&f, 30000), STEP_SYSTEM);
		world_barrier();
	}
	if (*world->said[self])
		world_fail("a reset that ends all says '%s'", world->said[self]);
	driver->leave(end, 1);
	world_join(2);
	works(2, 4, 30000);
}

static void await_halt(void)
{
	int ms = 0;

	while (!driver->halt(end, true) && ms++ < SOON)
		usleep(1000);
	must("an end that nothing keeps", ms < SOON, true);
	driver->halt(end, false);
}

/* At a cut no communicator begins to end, and none is just ending. */
static void halted_body(uint32_t self, void *arg)
{
	const uint32_t *noted = &world->noted[64 + 1];
	char got[4096];
	struct ended e;
	int ms = 0;

	(void)arg;
	nccl_note_ns = 3600 * 1000000000ull;
	world_join(1);
	works(1, 1, 1);
	calls(got, sizeof(got));
	if (self)
		must("a halt when nothing ends", driver->halt(end, true), true);
	world_barrier();
	if (self == 0) {
		start_alone(1, 2, &e);
		driver->cancel(end, 2);
		must("a cancelled operation", await(&e, SOON), STEP_REMOTE);
		must_call("ncclCommAbort");
		must("a halt while an abort waits", driver->halt(end, true), false);
		must("another rank's note", !!__atomic_load_n(noted, __ATOMIC_ACQUIRE), true);
	}
	world_barrier();
	if (self) {
		usleep(1200000);
		expect_calls("halted", "%s", "");
		driver->halt(end, false);
		must_call("ncclCommAbort");
	}
	await_halt();
	/* Its abort may have waited for some of the others only. */
	usleep(20000);
	must("the note behind all aborts", !!__atomic_load_n(noted, __ATOMIC_ACQUIRE), true);
	world_barrier();
	nccl_note_ns = 0;
	while (__atomic_load_n(noted, __ATOMIC_ACQUIRE) && ms++ < SOON)
		usleep(1000);
	must("the note's end", ms < SOON, true);
	world_barrier();
}

/* A rank whose process ends breaks no communicator of the others. */
static void gone_body(uint32_t self, void *arg)
{
	struct step_call call = { .kind = self ? STEP_RECV : STEP_SEND, .type = TREE_F32, .peer = !self, .count = 10 };
	struct ended e;

	(void)arg;
	world_join(1);
	works(1, 1, 1);
	world_barrier();
	if (self == 2)
		return;
	usleep(1500000);
	must("start", start_on(1, 2, call, floats(10, 1), floats(10, 0), &e), 0);
	must("a pair without a third one", await(&e, SOON), STEP_OK);
}

/* Rank 1's abort does not return, so rank 0's does not either: that is said, and nothing waits for ever. */
static void stuck_body(uint32_t self, void *arg)
{
	struct ended e;
	double begin;

	(void)arg;
	nccl_patience_ns = 300000000;
	world_join(1);
	works(1, 1, 1);
	world_barrier();
	if (self == 0) {
		start_alone(1, 2, &e);
		driver->cancel(end, 2);
		must("a cancelled operation", await(&e, SOON), STEP_REMOTE);
	}
	await_said("ncclCommAbort has not returned for ");
	driver->reset(end);
	said("does not end what was aborted before the device's reset");
	world_join(2);
	works(2, 3, 100);
	world_barrier();
	begin = seconds();
	driver->depart(end);
	must("a process that ends waits for a while", seconds() - begin > 0.45, true);
	said("of its communicators have not ended");
}

/* ------------------------------------------------------------------------------ buffers */

static void on_filled(void *arg)
{
	on_end(arg, STEP_OK);
}

static void buffers_body(uint32_t self, void *arg)
{
	float *send = floats(1000, 7), *recv = floats(1000, 0);
	struct ended e, filled;
	void *b[3];

	(void)arg;
	world_join(1);
	/* What is under way waits for the other rank; a buffer is filled nevertheless. */
	for (int round = 0; round < 2; round++) {
		uint64_t order = 1 + 2 * round;

		if (self == 0) {
			must("start", start_on(1, order, sum_of(10), send, recv, &e), 0);
			for (int i = 0; i < 3; i++) {
				filled = (struct ended){ 0 };
				b[i] = driver->buffer(end, 4000);
				must("fill", driver->fill(end, b[i], send, 4000, on_filled, &filled), 0);
				if (i == 1)	/* given up while it is filled */
					driver->unbuffer(end, b[i]);
				while (!__atomic_load_n(&filled.code, __ATOMIC_ACQUIRE))
					usleep(100);
			}
			for (int i = 0; i < 1000; i++)
				send[i] = 9;
			must("too large", driver->fill(end, b[0], send, 4001, NULL, NULL), -EINVAL);
			driver->unbuffer(end, b[0]);
		}
		world_barrier();
		if (self)
			must("start", start_on(1, order, sum_of(10), send, recv, &e), 0);
		must("sum", await(&e, 60000), STEP_OK);
		must("start", start_on(1, order + 1, (struct step_call){ .kind = self ? STEP_RECV : STEP_SEND,
		                                                     .type = TREE_F32, .peer = !self, .count = 1000 },
		                       self ? NULL : b[2], recv, &e), 0);
		must("from a buffer", await(&e, 60000), STEP_OK);
		for (int i = 0; self && i < 1000; i++)
			if (recv[i] != (round ? 9 : 7))
				world_fail("element %d from a buffer is %f", i, recv[i]);
		if (!self)
			driver->unbuffer(end, b[2]);
		world_barrier();
	}
}

/* A start that comes behind its fill, while the transport looks after others, sends what was filled in. */
static void unfilled_body(uint32_t self, void *arg)
{
	enum { SENDS = 20 };
	float *send = floats(SENDS, 0), *recv = floats(SENDS, 0);
	struct ended sum, e[SENDS], filled[SENDS] = { 0 };
	void *b[SENDS];

	(void)arg;
	setenv("FAKE_NCCL_LOOK_US", "1000", 1);
	world_join(1);
	works(1, 1, 30000);
	/* Rank 1 begins when all of rank 0 is under way. */
	if (self)
		world_barrier();
	must("start", start_on(1, 2, sum_of(10), floats(10, 1), floats(10, 0), &sum), 0);
	for (int i = 0; i < SENDS; i++) {
		if (!self) {
			usleep(3000);
			send[i] = (float)(i + 1);
			b[i] = driver->buffer(end, 4);
			must("fill", driver->fill(end, b[i], send + i, 4, on_filled, &filled[i]), 0);
		}
		must("start", start_on(1, 3 + (uint64_t)i, (struct step_call){
				.kind = self ? STEP_RECV : STEP_SEND, .type = TREE_F32, .peer = !self, .count = 1 },
		               self ? NULL : b[i], recv + i, &e[i]), 0);
	}
	if (!self)
		world_barrier();
	must("sum", await(&sum, 60000), STEP_OK);
	for (int i = 0; i < SENDS; i++) {
		must("behind a fill", await(&e[i], 60000), STEP_OK);
		if (self && recv[i] != (float)(i + 1))
			world_fail("send %d has %f", i, recv[i]);
		if (self)
			continue;
		must("filled", await(&filled[i], 60000), STEP_OK);
		driver->unbuffer(end, b[i]);
	}
	driver->leave(end, 1);
}

/* ------------------------------------------------------------------------------ refusals */

static void bad_body(uint32_t self, void *arg)
{
	static const struct step_call bad[] = {
		{ .kind = STEP_KINDS, .type = TREE_F32, .count = 1 },
		{ .kind = STEP_ALLREDUCE, .type = TREE_TYPES, .count = 1 },
		{ .kind = STEP_ALLREDUCE, .op = TREE_OPS, .type = TREE_F32, .count = 1 },
		{ .kind = STEP_REDUCE, .peer = 2, .type = TREE_F32, .count = 1 },
		{ .kind = STEP_ALLREDUCE, .type = TREE_F64, .count = 1ull << 60 },
		{ .kind = STEP_ALLREDUCE, .op = TREE_PREMULSUM, .type = TREE_F32, .count = 1 },
		{ .kind = STEP_BROADCAST, .op = TREE_MAX, .type = TREE_F32, .count = 1 },
		{ .kind = STEP_ALLREDUCE, .type = TREE_F32, .count = 0 },
	};
	float *send = floats(10, 1), *recv = floats(10, 0);
	static const uint32_t shared[2] = { 0, 0 };
	struct transport_group twice = { .comm = 5, .ranks = 2, .rank = self, .device = shared };
	struct why why = { 0 };
	struct ended e;

	(void)arg;
	for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		must("a bad call", start_on(1, 1, bad[i], send, recv, &e), -EINVAL);
	must("without a buffer", start_on(1, 1, sum_of(1), send, NULL, &e), -EINVAL);
	must("start", start_on(9, 1, sum_of(1), send, recv, &e), 0);
	must("a communicator that nobody knows", await(&e, 30000), STEP_SYSTEM);
	driver->cancel(end, 77);
	driver->withdraw(end, 77);
	driver->leave(end, 77);
	if (self == 0)
		must("two ranks of a device", driver->join(end, &twice, &why), -ENOTSUP);
	world_join(1);
	works(1, 2, 10);
	must("an order that has been", start_on(1, 2, sum_of(10), send, recv, &e), 0);
	must("is one of its own", await(&e, 30000), STEP_OK);
}

static void refused(const char *path, int rc, const char *text)
{
	struct transport_open o = { .self = 0, .hal = world_hal(), .address = (void *)1, .note = (void *)1,
		                .noted = (void *)1 };
	struct why why = { 0 };
	int got;

	setenv("SINGVGPU_NCCL", path, 1);
	got = driver->open(&end, &o, &why);
	if (got != rc || !strstr(why.text, text))
		world_fail("%s: %d, %s", path, got, why.text);
}

static void absent_body(uint32_t self, void *arg)
{
	const char *build = getenv("SINGVGPU_BUILD") ?: "build";
	char ours[4096], cuda[4096];

	(void)self;
	(void)arg;
	refused("/nowhere/libnccl.so.2", -ENOENT, "SINGVGPU_NCCL=PATH");
	refused("libm.so.6", -ENOSYS, "lacks ncclGetVersion");
	snprintf(ours, sizeof(ours), "%s/lib/libnccl.so.2", build);
	snprintf(cuda, sizeof(cuda), "%s/lib/libcuda.so.1", build);
	if (!dlopen(cuda, RTLD_NOW | RTLD_LOCAL))	/* which ours needs */
		world_fail("%s", dlerror());
	if (!access(ours, R_OK))
		refused(ours, -ENOENT, "singvgpu's own");
}

/* What the fake has written down as wrong in the last world. */
static bool nothing_misused(void)
{
	char command[256];

	snprintf(command, sizeof(command), "! grep -r -h -E 'MISUSE|MISMATCH' %s", dir);
	return !system(command);
}

static bool in_world(uint32_t n, void (*body)(uint32_t, void *), void *arg)
{
	for (uint32_t i = 0; i < WORLD_MAX; i++)
		unlink(log_path[i]);
	world_begin(n, body, arg);
	return !world_end() && nothing_misused();
}

static bool fails(const char *how)
{
	bool ok;

	setenv("FAKE_NCCL_FAIL", how, 1);
	ok = in_world(3, strstr(how, "Init") ? creation_body : strstr(how, "2:async") ? late_body : fails_body,
	              (void *)how);
	unsetenv("FAKE_NCCL_FAIL");
	return ok;
}

static bool fails_so(const char *how, uint32_t n, void (*body)(uint32_t, void *), void *arg)
{
	bool ok;

	setenv("FAKE_NCCL_FAIL", how, 1);
	ok = in_world(n, body, arg);
	unsetenv("FAKE_NCCL_FAIL");
	return ok;
}

static bool adds_as_nccl(void)
{
	world_begin_as(4, TRANSPORT_NCCL, false, theirs_body, NULL);
	return !world_end() && nothing_misused() && in_world(4, theirs_body, NULL);
}

static bool is_absent(void)
{
	world_begin_as(1, TRANSPORT_TREE, true, absent_body, NULL);
	return !world_end();
}

static bool survives_a_kill(void)
{
	world_begin(3, killed_body, NULL);
	world->victim = 1;
	return !world_end() && nothing_misused();
}

int main(void)
{
	int bad = 0;

	if (!mkdtemp(dir))
		return 1;
	for (uint32_t i = 0; i < WORLD_MAX; i++)
		snprintf(log_path[i], sizeof(log_path[i]), "%s/%u", dir, i);
	setenv("FAKE_NCCL_LOG_DIR", dir, 1);
	printf("TAP version 13\n1..26\n");
	bad += world_result(in_world(3, sequence_body, NULL), "operations are these calls, and no others");
	bad += world_result(in_world(3, order_body, NULL), "all ranks call in the order of the log");
	bad += world_result(in_world(2, bad_body, NULL), "bad calls are refused");
	bad += world_result(in_world(2, buffers_body, NULL), "what is sent early is kept on the device");
	bad += world_result(in_world(2, unfilled_body, NULL), "a start waits until its buffer has been filled");
	bad += world_result(adds_as_nccl(), "NCCL's order of addition is NCCL's, the tree's is the tree's");
	bad += world_result(fails("0:ncclGroupEnd:3:error"), "a call that fails ends its communicator alone");
	bad += world_result(fails("0:ncclSend:6:error"), "so does one within a group");
	bad += world_result(fails("0:ncclGroupEnd:3:async"), "a communicator that fails later does, too");
	bad += world_result(fails("0:ncclGroupEnd:2:async"), "... and when nobody calls it");
	bad += world_result(fails("0:ncclGroupEnd:3:hang"), "one that hangs is aborted when it is cancelled");
	bad += world_result(fails("0:ncclGroupEnd:3:stall"), "... also while NCCL has not enqueued it");
	bad += world_result(fails("1:ncclCommInitRankConfig:1:error") && in_world(3, creation_body, NULL),
	              "a communicator that does not come about lets others go on");
	bad += world_result(in_world(3, early_body, "") && in_world(3, early_body, NULL),
	              "a rank that leaves at once helps to create its communicator");
	bad += world_result(survives_a_kill(), "a rank that is killed fails the others");
	bad += world_result(in_world(2, reset_body, NULL), "a reset of the device ends what is under way");
	bad += world_result(in_world(2, awaited_body, NULL), "an abort that waits for a stream keeps no end of an operation from it");
	bad += world_result(in_world(2, busy_body, "ncclCommAbort"), "while an abort waits, others go on");
	bad += world_result(in_world(2, busy_body, "ncclCommDestroy"), "... and while a communicator is destroyed");
	bad += world_result(in_world(2, both_body, NULL), "aborts of two communicators do not wait for each other");
	bad += world_result(in_world(3, idle_body, NULL), "all ranks abort a broken communicator");
	bad += world_result(fails_so("0:ncclCommAbort:1:error", 3, idle_body, "ncclCommAbort: a fake error"), "an abort that fails is named");
	bad += world_result(fails_so("1:ncclCommAbort:1:hang", 2, stuck_body, NULL), "one that does not return is named, and left");
	bad += world_result(in_world(2, halted_body, NULL), "a cut keeps communicators from ending");
	bad += world_result(in_world(3, gone_body, NULL), "a rank whose process ends breaks nothing");
	bad += world_result(is_absent(), "a library that is not there, or another one, is refused by name");
	for (uint32_t i = 0; i < WORLD_MAX; i++)
		unlink(log_path[i]);
	rmdir(dir);
	return !!bad;
}
