// SPDX-License-Identifier: Apache-2.0
/*
 * comm.c - communicators: creation, state, end
 *
 *   comm_new ─► CREATING ── all ranks have joined ──► STANDS ── ncclCommFinalize, ─Destroy, ─Abort ──► ENDED
 *                  │                                    │ an operation fails: the code, still STANDS
 *                  └── they do not agree, one dies ──► FAILED ── freed, unless it is non-blocking
 *
 * The word has the state; only SV_OP_X_COMM_END's end gives it back.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_i.h"

static struct lock lock = LOCK_INIT(NCCL_COMMS);
static struct ncclComm *all;	/* that there have ever been; lock */
static struct ncclComm *unused;	/* lock */
static uint64_t numbers;	/* given out; atomic */

/* The word of all communicators in a child of fork(), which has no arena. */
static const struct sv_comm_word in_child = {
	.state = SV_COMM_FAILED,
	.code = ncclUnhandledCudaError,
	.text = "a child of fork() has no device",
};

/* ------------------------------------------------------------------------------ state */

static ncclResult_t state_of(const struct ncclComm *c)
{
	/* pairs with created() and comm_drop() of the proxy, and code with its set_failure() */
	uint32_t state = __atomic_load_n(&c->word->state, __ATOMIC_ACQUIRE);
	uint32_t code = __atomic_load_n(&c->word->code, __ATOMIC_ACQUIRE);
	CUresult broken;

	if (code)
		return code;
	broken = core->broken(&c->at);
	if (broken)
		return broken == CUDA_ERROR_SYSTEM_NOT_READY ? ncclSystemError : ncclUnhandledCudaError;
	return state == SV_COMM_CREATING || (c->finalized && state != SV_COMM_ENDED) ? ncclInProgress :
		ncclSuccess;
}

static const char *why(const struct ncclComm *c)
{
	/* pairs with set_failure() of the proxy: the text is there */
	return __atomic_load_n(&c->word->code, __ATOMIC_ACQUIRE) ? c->word->text :
		"this rank's proxy is gone, or its context is broken";
}

ncclResult_t comm_not_ready(const struct ncclComm *c, const char *call)
{
	ncclResult_t rc = state_of(c);

	if (rc == ncclInProgress)
		return failed(ncclInvalidArgument, "%s: the communicator is in progress", call);
	if (rc)
		return failed(rc, "%s: the communicator has failed: %s", call, why(c));
	if (c->finalized)
		return failed(ncclInvalidArgument, "%s: the communicator has been finalized", call);
	return ncclSuccess;
}

API ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *out)
{
	TRY(comm_check(c, "ncclCommGetAsyncError"));
	TRY(given(out, "ncclCommGetAsyncError", "asyncError"));
	*out = state_of(c);
	/* Who asks has no other sentence, as PyTorch, whose message has the process's last one. */
	if (*out && *out != ncclInProgress && !__atomic_exchange_n(&c->told, true, __ATOMIC_RELAXED))
		failed(*out, "%s", why(c));
	return ncclSuccess;
}

/* Has an operation of one of the session's communicators failed, which the program has not ended? */
static bool comm_failed(const struct session *s)
{
	bool is = false;

	lock_take(&lock);
	for (struct ncclComm *c = all; c && !is; c = c->all)
		/* pairs with comm_new(), and with created() and set_failure() of the proxy */
		is = __atomic_load_n(&c->magic, __ATOMIC_ACQUIRE) == COMM_MAGIC && c->at.session == s &&
		     __atomic_load_n(&c->word->state, __ATOMIC_ACQUIRE) == SV_COMM_STANDS &&
		     __atomic_load_n(&c->word->code, __ATOMIC_ACQUIRE);
	lock_drop(&lock);
	return is;
}

/* ------------------------------------------------------------------------------ creation */

static void forked(void)
{
	lock_init(&lock, NCCL_COMMS);
	for (struct ncclComm *c = all; c; c = c->all)
		c->word = &in_child;
}

static void watch(void)
{
	pthread_atfork(NULL, NULL, forked);
	core->on_copy(comm_failed);
}

static struct ncclComm *comm_alloc(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct ncclComm *c, *next;

	pthread_once(&once, watch);
	lock_take(&lock);
	c = unused;
	if (c) {
		unused = c->next;
		next = c->all;
		memset(c, 0, sizeof(*c));
		c->all = next;
	}
	lock_drop(&lock);
	if (c)
		return c;
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	lock_take(&lock);
	c->all = all;
	all = c;
	lock_drop(&lock);
	return c;
}

void comm_forget(struct ncclComm *c)
{
	lock_take(&lock);
	__atomic_store_n(&c->magic, 0, __ATOMIC_RELAXED);
	lock_drop(&lock);
	__atomic_store_n(&c->in_graphs.number, 0, __ATOMIC_RELAXED);
	if (c->word && c->word != &in_child)
		core->arena_free(&c->at, c->word_off);
	core->leave(&c->at);
	free(c->redop);
	lock_end(&c->lock);
	lock_take(&lock);
	c->next = unused;
	unused = c;
	lock_drop(&lock);
}

static uint64_t hash(const uint8_t *id)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (unsigned int i = 0; i < SV_NCCL_ID_BYTES; i++)
		h = (h ^ id[i]) * 0x100000001b3ull;
	return h;
}

ncclResult_t comm_new(const char *call, struct core_place *at, int ranks, int rank,
		      const struct config *config, const ncclUniqueId *id, struct creation *out)
{
	const char *check = getenv("NCCL_CHECK_POINTERS");
	struct ncclComm *c = comm_alloc();
	void *word = NULL;
	CUresult rc;

	if (!c) {
		core->leave(at);
		return failed(ncclSystemError, "%s: out of memory", call);
	}
	lock_init(&c->lock, NCCL_REDOPS);
	c->at = *at;
	rc = core->arena_new(at, sizeof(*c->word), &c->word_off, &word);
	if (rc) {
		comm_forget(c);
		return cuda_failed(rc, call);
	}
	c->word = word;
	c->number = __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED);
	c->in_graphs.word = c->word;
	__atomic_store_n(&c->in_graphs.number, c->number, __ATOMIC_RELEASE);
	c->ranks = ranks;
	c->rank = rank;
	c->config = *config;
	c->check = check && *check == '1';
	memset(out, 0, sizeof(*out));
	out->comm = c;
	out->record = (struct sv_comm_new){ .ctx = at->handle, .comm = c->number, .word = c->word_off,
					    .ranks = ranks, .rank = rank };
	id_use(id, at->device, out->record.id);
	c->hash = hash(out->record.id);
	__atomic_store_n(&c->magic, COMM_MAGIC, __ATOMIC_RELEASE);
	return ncclSuccess;
}

/* A creation that was begun, and has failed, or is to fail. */
static CUresult send_abort(struct ncclComm *c)
{
	struct sv_comm_end a = { .comm = c->number, .flags = SV_COMM_ABORT };

	return core->send(&c->at, SV_OP_X_COMM_END, &a, sizeof(a));
}

static CUresult begin(struct creation *c)
{
	leave_watch(&c->comm->at);
	if (!c->comm->config.blocking)
		return core->send(&c->comm->at, SV_OP_X_COMM_NEW, &c->record, sizeof(c->record));
	c->asked = true;
	return core->request(&c->comm->at, &c->ticket, SV_OP_X_COMM_NEW, &c->record,
			     sizeof(c->record));
}

/* Waits until the proxy does not write the word any more. */
static void await_end(struct ncclComm *c)
{
	struct timespec t = { 0, 20000 };

	/* pairs with comm_drop() of the proxy */
	while (__atomic_load_n(&c->word->state, __ATOMIC_ACQUIRE) != SV_COMM_ENDED &&
	       !core->broken(&c->at)) {
		nanosleep(&t, NULL);
		if (t.tv_nsec < 1000000)
			t.tv_nsec *= 2;
	}
}

static ncclResult_t await(struct creation *c)
{
	ncclResult_t rc = ncclSuccess;

	if (c->asked)
		rc = cuda(core->await(&c->comm->at, &c->ticket), "the creation of a communicator");
	rc = rc ?: state_of(c->comm);
	if (!rc || rc == ncclInProgress)
		return rc;
	return failed(rc, "the creation of a communicator has failed: %s", why(c->comm));
}

ncclResult_t comm_create(struct creation *c, int n)
{
	ncclResult_t rc = ncclSuccess, one;
	int begun = 0;

	for (; begun < n && !rc; begun++)
		rc = cuda(begin(&c[begun]), "the creation of a communicator");
	if (rc) {
		begun--;	/* that one the proxy does not know */
		for (int i = 0; i < begun; i++)
			send_abort(c[i].comm);
	}
	for (int i = 0; i < n; i++) {
		struct ncclComm *comm = c[i].comm;

		one = i < begun ? await(&c[i]) : rc;
		if (!one || (one == ncclInProgress && !rc)) {
			rc = rc ?: one;
			continue;
		}
		rc = rc && rc != ncclInProgress ? rc : one;
		*c[i].out = NULL;
		if (i < begun && comm->word->state != SV_COMM_ENDED && !send_abort(comm))
			await_end(comm);
		comm_forget(comm);
	}
	return rc;
}

static ncclResult_t init(const char *call, ncclComm_t *out, int ranks, const ncclUniqueId *id, int rank,
			 const ncclConfig_t *config)
{
	struct core_place at;
	struct creation c;
	struct config cfg;

	TRY(given(out, call, "comm"));
	TRY(given(id, call, "commId"));
	*out = NULL;
	if (ranks < 1 || rank < 0 || rank >= ranks)
		return failed(ncclInvalidArgument, "%s: rank %d of %d", call, rank, ranks);
	TRY(core_find());
	TRY(config_read(config, &config_default, &cfg));
	TRY(id_check(id, call));
	TRY(cuda(core->enter(-1, &at), call));
	TRY(comm_new(call, &at, ranks, rank, &cfg, id, &c));
	*out = c.comm;
	c.out = out;
	return group_create(&c, 1);
}

API ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
	return group_note(init("ncclCommInitRank", comm, ranks, &id, rank, NULL));
}

API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
					ncclConfig_t *config)
{
	return group_note(init("ncclCommInitRankConfig", comm, ranks, &id, rank, config));
}

API ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int ranks, int rank, int n,
					  ncclUniqueId *ids, ncclConfig_t *config)
{
	if (n < 1 || n > ranks)
		return group_note(failed(ncclInvalidArgument, "ncclCommInitRankScalable: %d ids for %d "
					 "ranks", n, ranks));
	/* All ranks have the same ids, and one is enough to meet by. */
	return group_note(init("ncclCommInitRankScalable", comm, ranks, ids, rank, config));
}

static ncclResult_t check_devices(int n, const int *devices)
{
	int count = 0;

	TRY(cuda(cuInit(0), "ncclCommInitAll"));
	TRY(cuda(cuDeviceGetCount(&count), "ncclCommInitAll"));
	for (int i = 0; i < n; i++) {
		int d = devices ? devices[i] : i;

		if (d < 0 || d >= count)
			return failed(devices ? ncclUnhandledCudaError : ncclInvalidArgument,
				      "ncclCommInitAll: device %d of %d", d, count);
		for (int k = 0; devices && k < i; k++)
			if (devices[k] == d)
				return failed(ncclInvalidUsage, "ncclCommInitAll: device %d is listed "
					      "twice (Duplicate GPU)", d);
	}
	return ncclSuccess;
}

static ncclResult_t init_all(ncclComm_t *comms, int n, const int *devices)
{
	struct creation c[SV_DEVICES_MAX];
	struct core_place at;
	ncclResult_t rc = ncclSuccess;
	struct config config;
	ncclUniqueId id;
	int made = 0;

	TRY(given(comms, "ncclCommInitAll", "comm"));
	if (n < 0)
		return failed(ncclInvalidArgument, "ncclCommInitAll: %d devices", n);
	TRY(core_find());
	TRY(check_devices(n, devices));
	TRY(id_fresh(&id));
	TRY(config_read(NULL, &config_default, &config));
	config.blocking = 1;
	for (; made < n && !rc; made++) {
		rc = cuda(core->enter(devices ? devices[made] : made, &at), "ncclCommInitAll");
		if (!rc)
			rc = comm_new("ncclCommInitAll", &at, n, made, &config, &id, &c[made]);
		if (rc)
			break;
		comms[made] = c[made].comm;
		c[made].out = &comms[made];
	}
	if (!rc)
		return group_create(c, n);
	while (made--)
		comm_forget(c[made].comm);
	return rc;
}

API ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
	return group_note(init_all(comms, n, devices));
}

/* ------------------------------------------------------------------------------ the end */

API ncclResult_t ncclCommFinalize(ncclComm_t c)
{
	struct sv_comm_end a = { 0 };

	TRY(group_note(comm_ready(c, "ncclCommFinalize")));
	a.comm = c->number;
	c->finalized = true;
	__atomic_store_n(&c->in_graphs.number, 0, __ATOMIC_RELAXED);
	if (c->config.blocking)
		return cuda(core->call(&c->at, SV_OP_X_COMM_END, &a, sizeof(a)), "ncclCommFinalize");
	TRY(cuda(core->send(&c->at, SV_OP_X_COMM_END, &a, sizeof(a)), "ncclCommFinalize"));
	return state_of(c);
}

/* Only one call ends a communicator; an abort may come to the help of another one. */
static bool begin_end(struct ncclComm *c)
{
	__atomic_store_n(&c->in_graphs.number, 0, __ATOMIC_RELAXED);
	/* pairs with itself in another thread */
	return !__atomic_exchange_n(&c->ending, true, __ATOMIC_ACQ_REL);
}

API ncclResult_t ncclCommDestroy(ncclComm_t c)
{
	struct sv_comm_end a = { 0 };
	ncclResult_t rc = ncclSuccess;

	if (!c)
		return ncclSuccess;
	TRY(comm_check(c, "ncclCommDestroy"));
	if (!c->finalized && state_of(c) == ncclInProgress)
		return failed(ncclInvalidArgument, "ncclCommDestroy: the communicator is in progress");
	if (!begin_end(c))
		return failed(ncclInvalidArgument, "ncclCommDestroy: the communicator is being ended");
	a.comm = c->number;
	if (!c->finalized)
		rc = cuda(core->call(&c->at, SV_OP_X_COMM_END, &a, sizeof(a)), "ncclCommDestroy");
	else
		await_end(c);
	comm_forget(c);
	return rc;
}

API ncclResult_t ncclCommAbort(ncclComm_t c)
{
	struct sv_comm_end a = { .flags = SV_COMM_ABORT };
	struct core_place at;
	bool mine;

	if (!c)
		return ncclSuccess;
	TRY(comm_check(c, "ncclCommAbort"));
	a.comm = c->number;
	at = c->at;
	mine = begin_end(c);
	if (!mine)		/* another thread waits in ncclCommDestroy, which frees it */
		return cuda(core->send(&at, SV_OP_X_COMM_END, &a, sizeof(a)), "ncclCommAbort");
	/* pairs with comm_drop() of the proxy */
	if (__atomic_load_n(&c->word->state, __ATOMIC_ACQUIRE) != SV_COMM_ENDED)
		core->call(&at, SV_OP_X_COMM_END, &a, sizeof(a));
	comm_forget(c);
	return ncclSuccess;
}
