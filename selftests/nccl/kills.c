// SPDX-License-Identifier: Apache-2.0
/*
 * kills.c - ranks that are killed, who kills them, and what the others have seen
 *
 *   kills PAGE rank MOMENT               a rank of `singvgpu run -n N`
 *   kills PAGE begin VICTIM              makes the page, before the job
 *   kills PAGE kill PID STEP US [STOP]   US microseconds after the victim's STEP, kills PID; or stops it for STOP ms
 *   kills PAGE report                    a line for each rank that is not the victim
 *
 * The page is a file that all of them map. A rank runs the calls of a moment for ever, until one
 * fails. Then it must see what is promised of a rank that has died: the error is ncclRemoteError, a wait for what has
 * failed says so, an abort returns, and then its streams come to their end. And it must still be able to use its device, and the
 * communicator of all ranks but the victim.
 */
#include "ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#define LARGE	(1 << 20)	/* floats */
#define ROUNDS	1000		/* of a rank that nobody kills */

struct page {
	int victim;
	uint32_t nonce;
	uint64_t killed_ns;
	struct seen {
		uint32_t steps;		/* rounds done, and 1 */
		int code;		/* ncclResult_t; -SIGTERM: the job was ended before */
		int ok;
		uint64_t heard_ns, synced_ns;
	} seen[16];
};

static volatile struct page *page;
static volatile struct seen *me;
static ncclComm_t all, rest, extra;
static cudaStream_t st;
static void *small, *large, *other;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void map_page(const char *path, int flags)
{
	int fd = open(path, O_RDWR | flags, 0600);

	if (fd < 0 || ftruncate(fd, sizeof(*page)))
		exit(2);
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		exit(2);
}

/* ------------------------------------------------------------------------------ the rank */

/* Has `run` ended a rank before that was ready to be tested? */
static bool some_ended(void)
{
	for (int r = 0; r < ranks; r++)
		if (page->seen[r].code == -SIGTERM)
			return true;
	return false;
}

/* Has a wait ended, well or since an operation has failed? */
static void waited(int rc)
{
	IS(rc == cudaSuccess || rc == cudaErrorExternalDevice, 1);
}

/* A rank's end: what a failure must be like. */
static void heard(ncclResult_t rc)
{
	ncclResult_t async = ncclSuccess;
	float one = 1, sum = 0;

	if (rank == page->victim)
		_exit(7);		/* its proxy was killed */
	me->heard_ns = now_ns();
	me->code = rc;
	IS(rc, ncclRemoteError);
	(void)ncclGroupEnd();		/* a call within a group may have failed: later calls would join the group */
	waited(cudaStreamSynchronize(st));
	waited(cudaDeviceSynchronize());
	me->synced_ns = now_ns();
	if (all) {
		OK(ncclCommGetAsyncError(all, &async));
		IS(async == ncclSuccess || async == ncclRemoteError, 1);
		OK(ncclCommAbort(all));
	}
	if (extra)
		OK(ncclCommAbort(extra));
	OK(cudaStreamSynchronize(st));
	OK(cudaDeviceSynchronize());
	/* The others work on. */
	for (int i = 0; rest && i < 20; i++) {
		OK(cudaMemcpy(small, &one, sizeof(one), cudaMemcpyHostToDevice));
		rc = ncclAllReduce(small, small, 1, ncclFloat, ncclSum, rest, st);
		waited(cudaMemcpyAsync(&sum, small, sizeof(sum), cudaMemcpyDeviceToHost, st));
		waited(cudaStreamSynchronize(st));
		if (some_ended())
			break;
		/* It may fail if the board is broken: then the proxy has said so, which test-kills checks. */
		if (!rc)
			rc = ncclCommGetAsyncError(rest, &async) ?: async;
		if (rc) {
			IS(rc, ncclRemoteError);
			OK(ncclCommAbort(rest));
			OK(cudaStreamSynchronize(st));
			me->ok = 2;
			exit(0);
		}
		IS(sum, ranks - 1);
	}
	if (rest)
		OK(ncclCommDestroy(rest));
	me->ok = 1;
	exit(0);
}

#define TRIED(x) \
	do { \
		ncclResult_t rc_ = (x); \
		if (rc_) \
			heard(rc_); \
	} while (0)

/* A CUDA call: it fails if this rank's own proxy is gone. */
#define CU(x) \
	do { \
		int cu_ = (x); \
		if (cu_ && rank == page->victim) \
			_exit(7); \
		OK(cu_); \
	} while (0)

static void wait_here(void)
{
	int waits = cudaStreamSynchronize(st);
	ncclResult_t rc = ncclSuccess;

	if (waits != cudaErrorExternalDevice)
		CU(waits);
	TRIED(ncclCommGetAsyncError(waits && extra ? extra : all, &rc));
	TRIED(rc);
	OK(waits);
}

static ncclUniqueId id_of(uint32_t round)
{
	ncclUniqueId id = { { 1 } };

	memcpy(id.internal + 8, (const void *)&page->nonce, 4);
	memcpy(id.internal + 12, &round, 4);
	return id;
}

/* Nothing but the set-up: then they all wait. */
static void start(uint32_t round)
{
	ncclResult_t rc = ncclSuccess;

	(void)round;
	usleep(1000);
	TRIED(ncclCommGetAsyncError(all, &rc));
	TRIED(rc);
}

static void create(uint32_t round)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclResult_t rc;

	config.blocking = round & 1;
	rc = ncclCommInitRankConfig(&extra, ranks, id_of(round), rank, &config);
	while (rc == ncclInProgress) {
		usleep(100);
		TRIED(ncclCommGetAsyncError(extra, &rc));
	}
	TRIED(rc);
	TRIED(ncclCommAbort(extra));
	extra = NULL;
}

static void split(uint32_t round)
{
	TRIED(ncclCommSplit(all, round & 1 ? 0 : rank & 1, rank, &extra, NULL));
	TRIED(ncclCommDestroy(extra));
	extra = NULL;
}

static void few(uint32_t round)
{
	TRIED(ncclAllReduce(small, small, 4, ncclFloat, ncclMax, all, st));
	if (!(round & 7))
		wait_here();
}

static void much(uint32_t round)
{
	TRIED(ncclAllReduce(large, large, LARGE, ncclFloat, ncclMax, all, st));
	if (round & 1)
		wait_here();
}

/* Small and large pairs, by turns. */
static void pairs(uint32_t round)
{
	size_t n = round & 1 ? LARGE : 64;

	TRIED(ncclGroupStart());
	TRIED(ncclSend(large, n, ncclFloat, (rank + 1) % ranks, all, st));
	TRIED(ncclRecv(other, n, ncclFloat, (rank + ranks - 1) % ranks, all, st));
	TRIED(ncclGroupEnd());
	if (!(round & 3))
		wait_here();
}

static void group(uint32_t round)
{
	TRIED(ncclGroupStart());
	for (int r = 0; r < ranks; r++) {
		TRIED(ncclSend((char *)large + r * 4096, 1000, ncclFloat, r, all, st));
		TRIED(ncclRecv((char *)other + r * 4096, 1000, ncclFloat, r, all, st));
	}
	TRIED(ncclAllReduce(small, small, 4, ncclFloat, ncclMax, all, st));
	TRIED(ncclAllGather(large, other, 1000, ncclFloat, all, st));
	TRIED(ncclGroupEnd());
	if (!(round & 3))
		wait_here();
}

/* All ways in which a communicator ends, with work under way. */
static void destroy(uint32_t round)
{
	TRIED(ncclCommInitRank(&extra, ranks, id_of(round), rank));
	TRIED(ncclAllReduce(small, small, 4, ncclFloat, ncclMax, extra, st));
	if (round % 3 == 0)
		TRIED(ncclCommFinalize(extra));
	if (round % 3 == 1)
		wait_here();
	TRIED(ncclCommDestroy(extra));
	extra = NULL;
}

/* The victim does not come. */
static void absent(uint32_t round)
{
	(void)round;
	if (rank == page->victim)
		for (;;)
			if (usleep(10000), cudaStreamQuery(st))
				_exit(7);
	TRIED(ncclAllReduce(large, large, LARGE, ncclFloat, ncclMax, all, st));
	wait_here();
}

static const struct {
	const char *name;
	void (*fn)(uint32_t round);
} moments[] = {
	{ "start", start }, { "create", create }, { "split", split }, { "few", few }, { "much", much },
	{ "pairs", pairs }, { "group", group }, { "destroy", destroy }, { "wait", absent },
};

/* A rank that meets with nobody is ended by `run`; the page says that it was. */
static void on_term(int sig)
{
	if (me->heard_ns || rest)	/* it has heard, and goes on; or it will */
		return;
	me->code = -sig;
	me->heard_ns = me->synced_ns = now_ns();
	me->ok = 1;
	_exit(0);
}

static void run(const char *moment)
{
	bool strict = strcmp(moment, "start") && strcmp(moment, "create") && strcmp(moment, "destroy");
	size_t i;

	rank = atoi(getenv("RANK"));
	ranks = atoi(getenv("WORLD_SIZE"));
	me = &page->seen[rank];
	signal(SIGTERM, rank == page->victim ? SIG_DFL : on_term);
	for (i = 0; strcmp(moments[i].name, moment);)
		if (++i == sizeof(moments) / sizeof(moments[0]))
			exit(2);
	me->steps = 1;
	CU(cudaSetDevice(rank));
	CU(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
	CU(cudaMalloc(&small, 4096));
	CU(cudaMalloc(&large, LARGE * 4));
	CU(cudaMalloc(&other, LARGE * 4));
	CU(cudaMemset(large, 0, LARGE * 4));
	CU(cudaMemset(small, 0, 4096));
	CU(cudaDeviceSynchronize());
	TRIED(ncclCommInitRank(&all, ranks, id_of(0), rank));
	if (strict)
		TRIED(ncclCommSplit(all, rank == page->victim ? NCCL_SPLIT_NOCOLOR : 0, 0, &rest, NULL));
	if (strict && rank != page->victim)
		signal(SIGTERM, SIG_IGN);
	for (uint32_t round = 1;; round++) {
		me->steps = round + 1;
		moments[i].fn(round);
		if (page->victim < 0 && round == ROUNDS)
			break;
	}
	wait_here();
	if (rest)
		OK(ncclCommDestroy(rest));
	OK(ncclCommDestroy(all));
	me->ok = 1;
}

/* ------------------------------------------------------------------------------ the killer */

static void do_kill(pid_t pid, uint32_t steps, int us, int stop_ms)
{
	int v = page->victim < 0 ? 0 : page->victim;

	for (int i = 0; page->seen[v].steps < steps; i++) {
		if (i == 600000)
			exit(3);
		usleep(100);
	}
	usleep(us);
	page->killed_ns = now_ns();
	if (kill(pid, stop_ms ? SIGSTOP : SIGKILL))
		exit(4);
	if (!stop_ms)
		return;
	usleep(stop_ms * 1000);
	kill(pid, SIGCONT);
}

/* By rank: the code, milliseconds from the kill until the error and until streams had ended, all is well. */
static void report(int n)
{
	for (int r = 0; r < n; r++) {
		volatile struct seen *s = &page->seen[r];

		if (r == page->victim)
			continue;
		printf("%d %d %lld %lld %d\n", r, s->code,
		       s->heard_ns ? (long long)(s->heard_ns - page->killed_ns) / 1000000 : -1,
		       s->synced_ns ? (long long)(s->synced_ns - page->killed_ns) / 1000000 : -1, s->ok);
	}
}

int main(int argc, char **argv)
{
	bool begins = argc == 4 && !strcmp(argv[2], "begin");

	if (argc < 4)
		return 2;
	map_page(argv[1], begins ? O_CREAT | O_TRUNC : 0);
	if (begins) {
		page->victim = atoi(argv[3]);
		page->nonce = now_ns();
	} else if (!strcmp(argv[2], "rank")) {
		run(argv[3]);
	} else if (!strcmp(argv[2], "kill") && argc >= 6) {
		do_kill(atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), argc > 6 ? atoi(argv[6]) : 0);
	} else if (!strcmp(argv[2], "report")) {
		report(atoi(argv[3]));
	} else {
		return 2;
	}
	return 0;
}
