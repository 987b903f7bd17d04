// SPDX-License-Identifier: Apache-2.0
/*
 * fake.c - a libnccl.so.2 that writes down its calls, and moves data for real between processes
 *
 * For tests of the transport over NCCL without a GPU. It is as strict as NCCL is when that is hard to
 * see: a communicator that does not block enqueues nothing before it has been polled twice, and
 * whoever calls it meanwhile, or after its end, is written down as MISUSE. ncclCommAbort and ncclCommDestroy wait for all
 * that the context has to do, and then until each peer that lives has called one of the two. Buffers are memory that the
 * host reads, as the soft device's.
 *
 *   FAKE_NCCL_LOG=FILE      lines "RANK/RANKS CALL ARGUMENTS", appended
 *   FAKE_NCCL_CUDA=LIBRARY  the driver in use
 *   FAKE_NCCL_FAIL=RANK:CALL:N:HOW   the N-th such call of that rank: error (it fails), hang (what it enqueues
 *                           waits until it is aborted), stall (it is never enqueued), async (the same, and the communicator says
 *                           ncclRemoteError). Of ncclCommAbort: hang (it never returns), error (it says so when it has ended)
 *   FAKE_NCCL_LOOK_US=N     ncclCommGetAsyncError takes so long, in microseconds
 *
 * What a stream reaches, a thread of the communicator does over sockets, with a header before
 * each message; the stream waits for a word meanwhile. Sums follow the ranks one after the other: an order that
 * is not the tree's.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <nccl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RANKS 16
#define API __attribute__((visibility("default")))

struct transfer {
	struct transfer *next;
	char *at;
	uint64_t bytes, done; /* done counts the header, too */
	uint64_t head;
	bool out;
	int peer;
};

/* What one group enqueues: transfers, then perhaps a sum of what has come. */
struct job {
	struct job *next;
	struct ncclComm *comm;
	struct transfer *first, **last;
	cudaStream_t stream;
	uint64_t number;
	bool hangs, late; /* late: the communicator fails when the stream has come so far */
	float *sum, *sum_from; /* n blocks of sum_count */
	size_t sum_count;
};

struct ncclComm {
	struct ncclComm *next; /* of all that there were */
	char name[64];
	int ranks, rank, fd[RANKS], listens;
	bool ready, aborted, ending;
	bool going; /* ncclCommAbort or ncclCommDestroy has been called: nobody may call anything else; atomic */
	unsigned int calls; /* looks under way; atomic */
	ncclResult_t state;
	struct job *group; /* being gathered */
	struct job *pending; /* to be enqueued at a poll */
	int polls;
	struct job *posted; /* the stream has come so far; lock */
	uint64_t number;
	uint64_t *word;
	pthread_t thread;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct ncclComm *all;
static __thread int depth;
static __thread struct ncclComm *grouped[64];
static __thread int ngrouped;
static __thread ncclResult_t group_failed;

static CUresult (*launch_host)(CUstream, CUhostFn, void *);
static CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint64_t, unsigned int);
static CUresult (*host_alloc)(void **, size_t, unsigned int);
static CUresult (*synchronize)(void);

static void note(const struct ncclComm *c, const char *fmt, ...)
{
	const char *path = getenv("FAKE_NCCL_LOG");
	char line[512];
	va_list ap;
	int fd, n;

	if (!path)
		return;
	n = snprintf(line, sizeof(line), c ? "%d/%d " : "", c ? c->rank : 0, c ? c->ranks : 0);
	va_start(ap, fmt);
	n += vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
	va_end(ap);
	line[n++] = '\n';
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (write(fd, line, n) != n)
		abort();
	close(fd);
}

/* What is to go wrong with this call: 0, or the first letter of it. */
static char fails(const struct ncclComm *c, const char *call)
{
	static struct { char name[32]; int n; } count[32];
	const char *text = getenv("FAKE_NCCL_FAIL");
	char name[32], how[16];
	int rank, n, i;

	pthread_mutex_lock(&lock);
	for (i = 0; count[i].name[0] && strcmp(count[i].name, call); i++)
		;
	snprintf(count[i].name, sizeof(count[i].name), "%s", call);
	i = ++count[i].n;
	pthread_mutex_unlock(&lock);
	if (!text || sscanf(text, "%d:%31[^:]:%d:%15s", &rank, name, &n, how) != 4)
		return 0;
	return c && rank == c->rank && !strcmp(name, call) && n == i ? how[0] : 0;
}

static bool aborted(struct ncclComm *c)
{
	return __atomic_load_n(&c->aborted, __ATOMIC_ACQUIRE);
}

static bool is_going(struct ncclComm *c)
{
	return __atomic_load_n(&c->going, __ATOMIC_ACQUIRE);
}

/* ------------------------------------------------------------------------------ the wire */

static void socket_name(struct sockaddr_un *a, socklen_t *len, const char *name, int rank)
{
	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	*len = offsetof(struct sockaddr_un, sun_path) + 1 + snprintf(a->sun_path + 1, 100, "%s-%d", name, rank);
}

static bool wire(struct ncclComm *c, int fd, bool out, void *p, size_t n)
{
	while (n) {
		struct pollfd f = { fd, out ? POLLOUT : POLLIN, 0 };
		ssize_t k;

		if (aborted(c))
			return false;
		if (poll(&f, 1, 5) <= 0)
			continue;
		k = out ? send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, p, n, MSG_DONTWAIT);
		if (k < 0 && errno == EAGAIN)
			continue;
		if (k <= 0)
			return false;
		p = (char *)p + k;
		n -= k;
	}
	return true;
}

/* Connects to lower ranks, takes higher ones. */
static bool meet(struct ncclComm *c)
{
	struct sockaddr_un a;
	socklen_t len;

	for (int r = 0; r < c->rank; r++) {
		c->fd[r] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		socket_name(&a, &len, c->name, r);
		while (connect(c->fd[r], (void *)&a, len)) {
			if (aborted(c))
				return false;
			usleep(2000);
		}
		if (!wire(c, c->fd[r], true, &c->rank, sizeof(c->rank)))
			return false;
	}
	for (int n = c->rank + 1; n < c->ranks; n++) {
		struct pollfd f = { c->listens, POLLIN, 0 };
		int fd, r;

		while (poll(&f, 1, 5) <= 0)
			if (aborted(c))
				return false;
		fd = accept4(c->listens, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0 || !wire(c, fd, false, &r, sizeof(r)) || r <= c->rank || r >= c->ranks)
			return false;
		c->fd[r] = fd;
	}
	return true;
}

/* Moves some of a transfer. false: the peer is gone, or sends something else. */
static bool move(struct ncclComm *c, struct transfer *t)
{
	bool head = t->done < 8;
	char *at = head ? (char *)&t->head + t->done : t->at + t->done - 8;
	size_t n = (head ? 8 : t->bytes + 8) - t->done;
	ssize_t k = t->out ? send(c->fd[t->peer], at, n, MSG_NOSIGNAL | MSG_DONTWAIT) :
			     recv(c->fd[t->peer], at, n, MSG_DONTWAIT);

	if (k < 0 && errno == EAGAIN)
		return true;
	if (k <= 0)
		return false;
	t->done += k;
	if (t->done == 8 && t->head != t->bytes) {
		note(c, "MISMATCH from %d: %lu bytes, not %lu", t->peer, (unsigned long)t->head,
		     (unsigned long)t->bytes);
		return false;
	}
	return true;
}

/* The first transfers to and from each peer, at once. */
static bool carry_out(struct ncclComm *c, struct job *j)
{
	while (!aborted(c)) {
		struct transfer *now[2 * RANKS], *t;
		struct pollfd f[2 * RANKS];
		bool busy[2][RANKS] = { 0 };
		int n = 0;

		for (t = j->first; t; t = t->next) {
			if (t->done == t->bytes + 8 || busy[t->out][t->peer])
				continue;
			busy[t->out][t->peer] = true;
			f[n] = (struct pollfd){ c->fd[t->peer], t->out ? POLLOUT : POLLIN, 0 };
			now[n++] = t;
		}
		if (!n && !j->hangs)
			return true;
		poll(f, n, 5);
		for (int i = 0; i < n; i++)
			if (f[i].revents && !move(c, now[i]))
				return false;
	}
	return false;
}

static void job_free(struct job *j)
{
	struct transfer *t;

	while ((t = j->first)) {
		j->first = t->next;
		free(t);
	}
	free(j->sum_from);
	free(j);
}

/* All have come to the end. */
static bool farewell(struct ncclComm *c)
{
	char bye = 'F';

	for (int r = 0; r < c->ranks; r++)
		if (r != c->rank && !wire(c, c->fd[r], true, &bye, 1))
			return false;
	for (int r = 0; r < c->ranks; r++)
		if (r != c->rank && !wire(c, c->fd[r], false, &bye, 1))
			return false;
	return true;
}

static void *work(void *arg)
{
	struct ncclComm *c = arg;
	bool ok = meet(c);

	__atomic_store_n(&c->state, ok ? ncclSuccess : ncclSystemError, __ATOMIC_RELEASE);
	c->ready = ok;
	while (ok && !aborted(c)) {
		struct job *j;
		bool ending;

		pthread_mutex_lock(&lock);
		while (!c->posted && !c->aborted && !c->ending)
			pthread_cond_wait(&more, &lock);
		j = c->posted;
		if (j)
			c->posted = j->next;
		ending = !j && c->ending;
		pthread_mutex_unlock(&lock);
		if (j && j->late)
			__atomic_store_n(&c->state, ncclRemoteError, __ATOMIC_RELEASE);
		if (j) {
			ok = carry_out(c, j);
			for (int r = 0; ok && j->sum && r < c->ranks; r++)
				for (size_t i = 0; i < j->sum_count; i++)
					j->sum[i] = (r ? j->sum[i] : 0) + j->sum_from[r * j->sum_count + i];
			if (ok)
				__atomic_store_n(c->word, j->number, __ATOMIC_RELEASE);
			job_free(j);
		} else if (ending) {
			ok = farewell(c);
			__atomic_store_n(&c->state, ok ? ncclSuccess : ncclRemoteError, __ATOMIC_RELEASE);
			return NULL;
		}
	}
	if (!aborted(c))
		__atomic_store_n(&c->state, ncclRemoteError, __ATOMIC_RELEASE);
	return NULL;
}

/* ------------------------------------------------------------------------------ communicators */

/* Whether the communicator may be called; NULL and ended ones never. */
static bool may_call(ncclComm_t c, const char *call)
{
	struct ncclComm *known;

	pthread_mutex_lock(&lock);
	for (known = all; known && known != c; known = known->next)
		;
	pthread_mutex_unlock(&lock);
	if (known && known->ready && !is_going(known) && !known->ending && !known->pending)
		return true;
	note(known, "MISUSE of %s", call);
	return false;
}

API ncclResult_t ncclGetVersion(int *v)
{
	*v = NCCL_VERSION_CODE;
	return ncclSuccess;
}

API const char *ncclGetErrorString(ncclResult_t r)
{
	return r == ncclRemoteError ? "a fake remote error" : r ? "a fake error" : "no error";
}

API const char *ncclGetLastError(ncclComm_t c)
{
	(void)c;
	return "";
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	uint64_t random;

	memset(id, 0, sizeof(*id));
	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return ncclSystemError;
	snprintf(id->internal, sizeof(id->internal), "fakenccl-%016lx", (unsigned long)random);
	note(NULL, "ncclGetUniqueId");
	return ncclSuccess;
}

API ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	const char *path = getenv("FAKE_NCCL_CUDA");
	void *cuda = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	struct ncclComm *c = calloc(1, sizeof(*c));
	struct sockaddr_un a;
	socklen_t len;

	*out = NULL;
	if (!cuda || !c || ranks > RANKS || strncmp(id.internal, "fakenccl-", 9))
		return ncclInvalidArgument;
	launch_host = (CUresult (*)(CUstream, CUhostFn, void *))dlsym(cuda, "cuLaunchHostFunc");
	wait_value = (CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned int))dlsym(cuda, "cuStreamWaitValue64_v2");
	host_alloc = (CUresult (*)(void **, size_t, unsigned int))dlsym(cuda, "cuMemHostAlloc");
	synchronize = (CUresult (*)(void))dlsym(cuda, "cuCtxSynchronize");
	c->ranks = ranks;
	c->rank = rank;
	c->state = ncclInProgress;
	memset(c->fd, -1, sizeof(c->fd));
	snprintf(c->name, sizeof(c->name), "%.60s", id.internal);
	note(c, "ncclCommInitRankConfig blocking %d", config->blocking);
	if (config->blocking)
		return ncclInvalidUsage;
	if (fails(c, "ncclCommInitRankConfig"))
		return ncclSystemError;
	if (host_alloc((void **)&c->word, 8, 0))
		return ncclUnhandledCudaError;
	*c->word = 0;
	c->listens = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socket_name(&a, &len, c->name, rank);
	if (bind(c->listens, (void *)&a, len) || listen(c->listens, RANKS))
		return ncclSystemError;
	pthread_mutex_lock(&lock);
	c->next = all;
	all = c;
	pthread_mutex_unlock(&lock);
	if (pthread_create(&c->thread, NULL, work, c))
		return ncclSystemError;
	*out = c;
	return ncclInProgress;
}

/* Whether it may end now: once, and while nobody calls it. */
static bool goes(struct ncclComm *c, const char *call)
{
	note(c, "%s", call);
	if (!__atomic_exchange_n(&c->going, true, __ATOMIC_ACQ_REL) && !__atomic_load_n(&c->calls, __ATOMIC_ACQUIRE))
		return true;
	note(c, "MISUSE of %s", call);
	return false;
}

/*
 * As NCCL does: its kernels stop at once, since a flag of the host's tells them to. What frees memory waits for the
 * context, and the thread that serves the peers ends when they have closed.
 */
static void end(struct ncclComm *c, const char *call)
{
	char rest[4096];

	pthread_mutex_lock(&lock);
	__atomic_store_n(&c->aborted, true, __ATOMIC_RELEASE);
	pthread_cond_broadcast(&more);
	pthread_mutex_unlock(&lock);
	pthread_join(c->thread, NULL);
	/* Streams go on; callbacks may still come, so that it is never freed. */
	__atomic_store_n(c->word, c->number, __ATOMIC_RELEASE);
	if (synchronize() == CUDA_ERROR_INVALID_CONTEXT)
		note(c, "MISUSE of %s: no context", call);
	for (int r = 0; r < c->ranks; r++)
		if (c->fd[r] >= 0)
			shutdown(c->fd[r], SHUT_WR);
	for (int r = 0; r < c->ranks; r++) {
		while (c->ready && c->fd[r] >= 0 && recv(c->fd[r], rest, sizeof(rest), 0) > 0)
			;
		if (c->fd[r] >= 0)
			close(c->fd[r]);
	}
	close(c->listens);
}

API ncclResult_t ncclCommAbort(ncclComm_t c)
{
	char how = fails(c, "ncclCommAbort");

	if (!goes(c, "ncclCommAbort"))
		return ncclInvalidArgument;
	while (how == 'h')
		pause();
	end(c, "ncclCommAbort");
	return how ? ncclInternalError : ncclSuccess;
}

API ncclResult_t ncclCommFinalize(ncclComm_t c)
{
	if (!may_call(c, "ncclCommFinalize"))
		return ncclInvalidUsage;
	note(c, "ncclCommFinalize");
	pthread_mutex_lock(&lock);
	c->state = ncclInProgress;
	c->ending = true;
	pthread_cond_broadcast(&more);
	pthread_mutex_unlock(&lock);
	return ncclInProgress;
}

API ncclResult_t ncclCommDestroy(ncclComm_t c)
{
	if (!goes(c, "ncclCommDestroy"))
		return ncclInvalidUsage;
	if (!c->ending || __atomic_load_n(&c->state, __ATOMIC_ACQUIRE)) {
		note(c, "MISUSE of ncclCommDestroy");
		return ncclInvalidUsage;
	}
	end(c, "ncclCommDestroy");
	return ncclSuccess;
}

static void CUDA_CB arrived(void *arg)
{
	struct job *j = arg, **at;

	pthread_mutex_lock(&lock);
	for (at = &j->comm->posted; *at; at = &(*at)->next)
		;
	*at = j;
	pthread_cond_broadcast(&more);
	pthread_mutex_unlock(&lock);
}

static ncclResult_t enqueue(struct job *j)
{
	struct ncclComm *c = j->comm;
	cudaStream_t stream = j->stream;
	uint64_t number = ++c->number;

	j->number = number;
	return launch_host((CUstream)stream, arrived, j) ||
	       wait_value((CUstream)stream, (CUdeviceptr)c->word, number, CU_STREAM_WAIT_VALUE_GEQ) ?
	       ncclUnhandledCudaError : ncclSuccess;
}

static ncclResult_t look(struct ncclComm *c)
{
	const char *us = getenv("FAKE_NCCL_LOOK_US");
	ncclResult_t r;

	if (us)
		usleep((unsigned int)atoi(us));
	r = __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
	if (r || !c->pending)
		return r;
	if (--c->polls)
		return ncclInProgress;
	r = enqueue(c->pending);
	c->pending = NULL;
	return r;
}

API ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *r)
{
	bool gone;

	__atomic_add_fetch(&c->calls, 1, __ATOMIC_ACQ_REL);
	gone = is_going(c);
	if (gone)
		note(c, "MISUSE of ncclCommGetAsyncError");
	else
		*r = look(c);
	__atomic_sub_fetch(&c->calls, 1, __ATOMIC_ACQ_REL);
	return gone ? ncclInvalidArgument : ncclSuccess;
}

/* ------------------------------------------------------------------------------ operations */

API ncclResult_t ncclGroupStart(void)
{
	depth++;
	return ncclSuccess;
}

API ncclResult_t ncclGroupEnd(void)
{
	ncclResult_t r = group_failed;

	if (!depth) {
		note(NULL, "MISUSE of ncclGroupEnd");
		return ncclInvalidUsage;
	}
	if (--depth)
		return ncclSuccess;
	for (int i = 0; i < ngrouped; i++) {
		struct ncclComm *c = grouped[i];
		struct job *j = c->group;
		char how = fails(c, "ncclGroupEnd");

		c->group = NULL;
		note(c, "ncclGroupEnd");
		if (how == 'e')
			r = ncclInternalError;
		if (r) {
			job_free(j);
			continue;
		}
		j->hangs = how;
		j->late = how == 'a';
		c->pending = j;
		c->polls = how == 's' ? INT_MAX : 2;
	}
	group_failed = ncclSuccess;
	r = r ?: ngrouped ? ncclInProgress : ncclSuccess;
	ngrouped = 0;
	return r;
}

static struct job *job_of(ncclComm_t c, cudaStream_t stream, const char *call)
{
	if (!may_call(c, call)) {
		group_failed = ncclInvalidUsage;
		return NULL;
	}
	if (!c->group) {
		c->group = calloc(1, sizeof(*c->group));
		c->group->comm = c;
		c->group->stream = stream;
		c->group->last = &c->group->first;
		grouped[ngrouped++] = c;
	}
	return c->group;
}

static void add(struct job *j, const void *at, uint64_t bytes, int peer, bool out)
{
	struct transfer *t = calloc(1, sizeof(*t));

	*t = (struct transfer){ .at = (char *)at, .bytes = bytes, .head = out ? bytes : 0, .peer = peer, .out = out };
	*j->last = t;
	j->last = &t->next;
}

static size_t size_of(ncclDataType_t type)
{
	static const uint8_t sizes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };

	return sizes[type];
}

static ncclResult_t pair(const char *call, const void *at, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
			 cudaStream_t stream, bool out)
{
	struct job *j;

	if (!depth) {
		note(c, "MISUSE of %s: not in a group", call);
		return ncclInvalidUsage;
	}
	j = job_of(c, stream, call);
	if (!j)
		return ncclInvalidUsage;
	note(c, "%s %p %zu %d %d", call, at, n, type, peer);
	if (fails(c, call)) {
		group_failed = ncclInternalError;
		return ncclInternalError;
	}
	if (peer != c->rank)
		add(j, at, n * size_of(type), peer, out);
	return ncclSuccess;
}

API ncclResult_t ncclSend(const void *at, size_t n, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream)
{
	return pair("ncclSend", at, n, type, peer, c, stream, true);
}

API ncclResult_t ncclRecv(void *at, size_t n, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream)
{
	return pair("ncclRecv", at, n, type, peer, c, stream, false);
}

API ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type, int root, ncclComm_t c,
			       cudaStream_t stream)
{
	struct job *j = job_of(c, stream, "ncclBroadcast");

	if (!j)
		return ncclInvalidUsage;
	ncclGroupStart();
	note(c, "ncclBroadcast %p %p %zu %d %d", from, to, n, type, root);
	for (int r = 0; r < c->ranks; r++)
		if (r != root && (r == c->rank || root == c->rank))
			add(j, root == c->rank ? from : to, n * size_of(type), root == c->rank ? r : root,
			    root == c->rank);
	if (root == c->rank && from != to)
		memcpy(to, from, n * size_of(type));	/* the stream has come so far in these tests */
	return ncclGroupEnd();
}

static void gather(struct job *j, const void *from, char *to, size_t bytes)
{
	struct ncclComm *c = j->comm;

	for (int r = 0; r < c->ranks; r++)
		if (r != c->rank) {
			add(j, from, bytes, r, true);
			add(j, to + r * bytes, bytes, r, false);
		}
}

API ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t type, ncclComm_t c,
			       cudaStream_t stream)
{
	size_t bytes = n * size_of(type);
	char *mine = (char *)to + (c ? c->rank * bytes : 0);
	struct job *j = job_of(c, stream, "ncclAllGather");

	if (!j)
		return ncclInvalidUsage;
	ncclGroupStart();
	note(c, "ncclAllGather %p %p %zu %d", from, to, n, type);
	gather(j, from, to, bytes);
	if (mine != from)
		memcpy(mine, from, bytes);
	return ncclGroupEnd();
}

/* Sums of f32: everybody gets everybody's, and adds it up. */
static ncclResult_t reduce(const char *call, const void *from, void *to, size_t n, ncclDataType_t type,
			   ncclRedOp_t op, int root, ncclComm_t c, cudaStream_t stream)
{
	struct job *j;

	if (type != ncclFloat32 || op != ncclSum)
		return ncclInvalidArgument;
	j = job_of(c, stream, call);
	if (!j)
		return ncclInvalidUsage;
	ncclGroupStart();
	note(c, "%s %p %p %zu %d %d %d", call, from, to, n, type, op, root);
	j->sum_from = malloc(c->ranks * n * 4);
	memcpy(j->sum_from + c->rank * n, from, n * 4);
	gather(j, from, (char *)j->sum_from, n * 4);
	j->sum = root < 0 || root == c->rank ? to : NULL;
	j->sum_count = n;
	return ncclGroupEnd();
}

API ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op,
			       ncclComm_t c, cudaStream_t stream)
{
	return reduce("ncclAllReduce", from, to, n, type, op, -1, c, stream);
}

API ncclResult_t ncclReduce(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op, int root,
			    ncclComm_t c, cudaStream_t stream)
{
	return reduce("ncclReduce", from, to, n, type, op, root, c, stream);
}

API ncclResult_t ncclReduceScatter(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op,
				   ncclComm_t c, cudaStream_t stream)
{
	(void)stream;
	note(c, "ncclReduceScatter %p %p %zu %d %d", from, to, n, type, op);
	return ncclInternalError;
}

API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
					  ncclScalarResidence_t where, ncclComm_t c)
{
	(void)scalar;
	note(c, "ncclRedOpCreatePreMulSum %d %d", type, where);
	*op = ncclSum;
	return ncclSuccess;
}

API ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t c)
{
	note(c, "ncclRedOpDestroy %d", op);
	return ncclSuccess;
}
