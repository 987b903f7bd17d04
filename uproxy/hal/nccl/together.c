// SPDX-License-Identifier: Apache-2.0
/*
 * together.c - replaces NCCL's library in jobs of which several ranks share a device, since NCCL makes no communicator of two
 * ranks on one GPU ("Duplicate GPU detected")
 *
 * It has the calls of NCCL that issue.c and group.c make. Our own kernels do all reductions. In each pair of ranks the
 * receiver exports a *stage*: device memory of SLOTS slots. A page of host memory has two words, which count the pieces (SLOT
 * bytes at most) that the sender has put there and that the receiver has taken:
 *
 *   sender's stream      wait: emptied ─► copy into a slot ─► write: filled
 *   receiver's stream    wait: filled ─► copy out of the slot ─► write: emptied
 *
 * Two processes exchange only copies and words. No kernel of one waits for a kernel of the other: a device that runs one
 * process at a time might never run both. Ranks on different devices need peer access, or the communicator fails.
 *
 * The names of the sockets at which ranks meet contain the unique id, 128 random bits. A peer must be of our user. A group of
 * calls first sends one piece of each pair, then receives one piece of each pair, and so on: so one slot is enough for
 * progress.
 *
 * Nobody has run this on a GPU yet.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "nccl_i.h"
#include "ring.h"

#define SLOTS	2
#define SLOT	(1ull << 20)
#define STAGE	(SLOTS * SLOT)		/* a granule of device memory */
#define PAGE	4096
#define MAGIC	0x54475653u		/* "SVGT" */
#define LOOK_MS	20			/* between two looks at whether the communicator is to end */
#define FREE	(1ull << 40)		/* beyond all pieces: releases whoever waits */

/* A receiver's; the sender has mapped it, too. */
struct words {
	uint64_t filled, emptied;	/* pieces */
};

/* One direction of a pair. */
struct side {
	CUmemGenericAllocationHandle memory;
	CUdeviceptr at;			/* 0: there is none */
	struct words *words;
	uint64_t pieces;		/* that calls have been made for */
};

struct peer {
	struct side in, out;		/* in: our stage. out: the peer's */
};

struct ncclComm {
	uint32_t n, rank;
	char id[33];
	pthread_t thread;		/* in which the ranks meet */
	CUevent last;			/* behind the last call */
	bool issued;
	ncclResult_t result;		/* atomic */
	bool over;			/* atomic */
	struct peer peer[];
};

/* A call that waits for the end of its group. */
struct part {
	ncclComm_t comm;
	CUstream stream;
	bool send;
	uint32_t peer;
	char *at;
	size_t left;
};

static struct hal *hal;
static struct {
	struct part *part;
	size_t n, room;
	unsigned int depth;
} group;			/* the transport's thread */

/* ------------------------------------------------------------------------------ memory of a pair */

static ncclResult_t result_of_driver(CUresult r)
{
	return r ? ncclUnhandledCudaError : ncclSuccess;
}

static CUresult map_stage(struct side *s)
{
	CUdeviceptr at = 0;
	CUresult r = hal->drv.cuMemAddressReserve(&at, STAGE, 0, 0, 0);

	if (r)
		return r;
	r = hal->drv.cuMemMap(at, STAGE, 0, s->memory, 0);
	if (!r && (r = hal_access(hal, at, STAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)))
		hal->drv.cuMemUnmap(at, STAGE);
	if (r)
		hal->drv.cuMemAddressFree(at, STAGE);
	else
		s->at = at;
	return r;
}

static bool map_words(struct side *s, int fd)
{
	void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return false;
	if (hal_pin(hal, p, PAGE)) {
		munmap(p, PAGE);
		return false;
	}
	s->words = p;
	return true;
}

static void drop_side(struct side *s)
{
	if (s->at) {
		hal->drv.cuMemUnmap(s->at, STAGE);
		hal->drv.cuMemAddressFree(s->at, STAGE);
	}
	if (s->memory)
		hal->drv.cuMemRelease(s->memory);
	if (s->words) {
		hal_unpin(hal, s->words);
		munmap(s->words, PAGE);
	}
	*s = (struct side){ 0 };
}

/* Our stage for what a peer sends; fd: for the peer, of the memory and of the words. */
static bool make_side(struct side *s, int fd[2])
{
	CUmemAllocationProp prop = hal->prop;

	fd[0] = -1;
	fd[1] = memfd_create("singvgpu-words", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	return fd[1] >= 0 && !ftruncate(fd[1], PAGE) && !fcntl(fd[1], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) &&
	       map_words(s, fd[1]) && !hal->drv.cuMemCreate(&s->memory, STAGE, &prop, 0) && !map_stage(s) &&
	       !hal->drv.cuMemExportToShareableHandle(&fd[0], s->memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

/* A peer's, by what it has passed; closes both. */
static bool take_side(struct side *s, const int fd[2])
{
	int seals = fd[1] < 0 ? -1 : fcntl(fd[1], F_GET_SEALS);
	struct stat st;
	bool good = fd[0] >= 0 && seals >= 0 && (seals & F_SEAL_SHRINK) && !fstat(fd[1], &st) && st.st_size == PAGE &&
		    map_words(s, fd[1]);

	good = good && !hal->drv.cuMemImportFromShareableHandle(&s->memory, (void *)(intptr_t)fd[0],
								CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) &&
	       !map_stage(s);
	for (int i = 0; i < 2; i++)
		if (fd[i] >= 0)
			close(fd[i]);
	return good;
}

/* ------------------------------------------------------------------------------ how ranks meet */

struct hello {
	uint32_t magic, rank;
};

static bool is_over(const struct ncclComm *c)
{
	return __atomic_load_n(&c->over, __ATOMIC_RELAXED);
}

static socklen_t name_of(const struct ncclComm *c, uint32_t rank, struct sockaddr_un *a)
{
	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	return offsetof(struct sockaddr_un, sun_path) + 1 +
	       snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "singvgpu-together-%s-%u", c->id, rank);
}

static bool our_user(int sock)
{
	struct ucred u;
	socklen_t n = sizeof(u);

	return !getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &u, &n) && u.uid == geteuid();
}

/* Waits until there is something to read. False: the communicator is to end. */
static bool comes(const struct ncclComm *c, int sock)
{
	struct pollfd p = { sock, POLLIN, 0 };

	while (!is_over(c))
		if (poll(&p, 1, LOOK_MS) > 0)
			return true;
	return false;
}

static int take_fd(const struct ncclComm *c, int sock)
{
	return comes(c, sock) ? ring_take_fd(sock) : -ECANCELED;
}

/* Gives the peer our stage, and takes its; the one that connects begins. */
static bool exchange(struct ncclComm *c, int sock, uint32_t rank, bool begins)
{
	struct peer *p = &c->peer[rank];
	int mine[2], theirs[2] = { -1, -1 };
	bool good = make_side(&p->in, mine);

	for (int turn = 0; turn < 2 && good; turn++)
		for (int i = 0; i < 2 && good; i++)
			if (begins == !turn)
				good = !ring_pass_fd(sock, mine[i]);
			else
				good = (theirs[i] = take_fd(c, sock)) >= 0;
	good = take_side(&p->out, theirs) && good;
	for (int i = 0; i < 2; i++)
		if (mine[i] >= 0)
			close(mine[i]);
	return good;
}

static bool reach(struct ncclComm *c, uint32_t rank)
{
	struct hello h = { MAGIC, c->rank };
	struct sockaddr_un a;
	socklen_t len = name_of(c, rank, &a);
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool good = false;

	while (sock >= 0 && !is_over(c) && connect(sock, (void *)&a, len))
		nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
	if (sock >= 0 && !is_over(c) && our_user(sock))
		good = send(sock, &h, sizeof(h), MSG_NOSIGNAL) == sizeof(h) && exchange(c, sock, rank, true);
	if (sock >= 0)
		close(sock);
	return good;
}

/* The next of the higher ranks. Whoever else connects is sent away. */
static bool accept_one(struct ncclComm *c, int listening)
{
	while (comes(c, listening)) {
		int sock = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
		struct hello h = { 0 };
		bool is, good = false;

		if (sock < 0)
			continue;
		is = our_user(sock) && comes(c, sock) && recv(sock, &h, sizeof(h), 0) == sizeof(h) && h.magic == MAGIC &&
		     h.rank > c->rank && h.rank < c->n && !c->peer[h.rank].in.at;
		if (is)
			good = exchange(c, sock, h.rank, false);
		close(sock);
		if (is)
			return good;
	}
	return false;
}

static void *meet(void *arg)
{
	struct ncclComm *c = arg;
	struct sockaddr_un a;
	socklen_t len = name_of(c, c->rank, &a);
	int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool good = listening >= 0 && !bind(listening, (void *)&a, len) && !listen(listening, (int)c->n) &&
		    !hal->drv.cuCtxSetCurrent(hal->primary);

	for (uint32_t r = 0; r < c->rank && good; r++)
		good = reach(c, r);
	for (uint32_t r = c->rank + 1; r < c->n && good; r++)
		good = accept_one(c, listening);
	if (listening >= 0)
		close(listening);
	__atomic_store_n(&c->result, good ? ncclSuccess : ncclSystemError, __ATOMIC_RELEASE);
	return NULL;
}

static ncclResult_t get_version(int *version)
{
	*version = NCCL_VERSION_CODE;
	return ncclSuccess;
}

static ncclResult_t get_unique_id(ncclUniqueId *id)
{
	memset(id, 0, sizeof(*id));
	return getrandom(id, 16, 0) == 16 ? ncclSuccess : ncclSystemError;
}

static ncclResult_t init_rank(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	struct ncclComm *c = calloc(1, sizeof(*c) + (size_t)n * sizeof(c->peer[0]));

	(void)config;
	if (!c)
		return ncclSystemError;
	c->n = (uint32_t)n;
	c->rank = (uint32_t)rank;
	c->result = ncclInProgress;
	for (int i = 0; i < 16; i++)
		snprintf(c->id + 2 * i, 3, "%02x", (uint8_t)id.internal[i]);
	if (hal->drv.cuEventCreate(&c->last, CU_EVENT_DISABLE_TIMING)) {
		free(c);
		return ncclUnhandledCudaError;
	}
	if (nccl_thread(&c->thread, meet, c, "meet")) {
		hal->drv.cuEventDestroy_v2(c->last);
		free(c);
		return ncclSystemError;
	}
	*out = c;
	return ncclInProgress;
}

static ncclResult_t get_async_error(ncclComm_t c, ncclResult_t *r)
{
	/* pairs with meet(): the pairs' memory is there */
	*r = __atomic_load_n(&c->result, __ATOMIC_ACQUIRE);
	return ncclSuccess;
}

/* ------------------------------------------------------------------------------ calls */

static CUresult await(CUstream st, const uint64_t *word, uint64_t pieces)
{
	return hal->drv.cuStreamWaitValue64_v2(st, (CUdeviceptr)(uintptr_t)word, pieces, CU_STREAM_WAIT_VALUE_GEQ);
}

static CUresult tell(CUstream st, const uint64_t *word, uint64_t pieces)
{
	return hal->drv.cuStreamWriteValue64_v2(st, (CUdeviceptr)(uintptr_t)word, pieces, CU_STREAM_WRITE_VALUE_DEFAULT);
}

/* One piece of a part. */
static CUresult move_piece(struct part *p)
{
	struct peer *peer = &p->comm->peer[p->peer];
	struct side *s = p->send ? &peer->out : &peer->in;
	size_t len = p->left < SLOT ? p->left : SLOT;
	CUdeviceptr slot = s->at + s->pieces % SLOTS * SLOT, at = (CUdeviceptr)(uintptr_t)p->at;
	CUresult r = CUDA_SUCCESS;

	s->pieces++;
	if (!p->send)
		r = await(p->stream, &s->words->filled, s->pieces);
	else if (s->pieces > SLOTS)
		r = await(p->stream, &s->words->emptied, s->pieces - SLOTS);
	r = r ?: hal->drv.cuMemcpyAsync(p->send ? slot : at, p->send ? at : slot, len, p->stream);
	r = r ?: tell(p->stream, p->send ? &s->words->filled : &s->words->emptied, s->pieces);
	p->at += len;
	p->left -= len;
	return r;
}

/* A piece of the first part of each pair that has one left, in this direction. Whether there was any. */
static bool turn(bool send, uint64_t *seen, CUresult *r)
{
	bool any = false;

	memset(seen, 0, TRANSPORT_DEVICES_MAX / 8);
	for (size_t i = 0; i < group.n && !*r; i++) {
		struct part *p = &group.part[i];
		uint64_t bit = 1ull << p->peer % 64;

		if (p->send != send || !p->left || seen[p->peer / 64] & bit)
			continue;
		seen[p->peer / 64] |= bit;
		*r = move_piece(p);
		any = true;
	}
	return any;
}

static ncclResult_t group_start(void)
{
	group.depth++;
	return ncclSuccess;
}

static ncclResult_t group_end(void)
{
	uint64_t seen[TRANSPORT_DEVICES_MAX / 64];
	CUresult r = CUDA_SUCCESS;
	bool more = true;

	if (--group.depth)
		return ncclSuccess;
	while (more && !r) {
		more = turn(true, seen, &r);
		more |= turn(false, seen, &r);
	}
	for (size_t i = 0; i < group.n; i++) {
		struct part *p = &group.part[i];

		p->comm->issued = true;
		r = hal->drv.cuEventRecord(p->comm->last, p->stream) ?: r;
	}
	group.n = 0;
	return result_of_driver(r);
}

static ncclResult_t add(struct part p)
{
	if (!p.left)
		return ncclSuccess;
	if (group.n == group.room) {
		size_t room = group.room * 2 + 64;
		void *more = realloc(group.part, room * sizeof(p));

		if (!more)
			return ncclSystemError;
		group.part = more;
		group.room = room;
	}
	group.part[group.n++] = p;
	return ncclSuccess;
}

/* issue.c counts in bytes. */
static ncclResult_t send_to(const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t st)
{
	ncclResult_t r;

	(void)type;
	group_start();
	r = add((struct part){ c, (CUstream)st, true, (uint32_t)peer, (char *)from, n });
	return group_end() ?: r;
}

static ncclResult_t recv_from(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t st)
{
	ncclResult_t r;

	(void)type;
	group_start();
	r = add((struct part){ c, (CUstream)st, false, (uint32_t)peer, to, n });
	return group_end() ?: r;
}

static ncclResult_t copy(void *to, const void *from, size_t n, cudaStream_t st)
{
	return to == from || !n ? ncclSuccess : result_of_driver(hal->drv.cuMemcpyAsync((CUdeviceptr)(uintptr_t)to,
						(CUdeviceptr)(uintptr_t)from, n, (CUstream)st));
}

static ncclResult_t all_gather(const void *from, void *to, size_t n, ncclDataType_t type, ncclComm_t c, cudaStream_t st)
{
	ncclResult_t r = copy((char *)to + c->rank * n, from, n, st), e;

	group_start();
	for (uint32_t k = 1; k < c->n && !r; k++) {
		uint32_t up = (c->rank + k) % c->n, down = (c->rank + c->n - k) % c->n;

		r = send_to(from, n, type, (int)up, c, st) ?: recv_from((char *)to + down * n, n, type, (int)down, c, st);
	}
	e = group_end();
	return r ?: e;
}

static ncclResult_t broadcast(const void *from, void *to, size_t n, ncclDataType_t type, int root, ncclComm_t c,
			      cudaStream_t st)
{
	ncclResult_t r = ncclSuccess, e;

	if ((int)c->rank != root)
		return recv_from(to, n, type, root, c, st);
	group_start();
	for (uint32_t k = 1; k < c->n && !r; k++)
		r = send_to(from, n, type, (int)((c->rank + k) % c->n), c, st);
	e = group_end();
	return r ?: e ?: copy(to, from, n, st);
}

/* ------------------------------------------------------------------------------ the end */

static ncclResult_t finalize(ncclComm_t c)
{
	(void)c;
	return ncclSuccess;	/* destroy() waits for the last call */
}

/* Nobody waits for a peer any more, whatever it still writes. */
static void release(struct ncclComm *c)
{
	for (uint32_t r = 0; r < c->n; r++) {
		struct peer *p = &c->peer[r];

		if (p->in.words)
			__atomic_store_n(&p->in.words->filled, p->in.pieces + FREE, __ATOMIC_RELEASE);
		if (p->out.words)
			__atomic_store_n(&p->out.words->emptied, p->out.pieces + FREE, __ATOMIC_RELEASE);
	}
}

/* In a thread of its own (reap.c). The peers' mappings keep the stages as long as they are needed. */
static ncclResult_t end(struct ncclComm *c, bool aborts)
{
	__atomic_store_n(&c->over, true, __ATOMIC_RELAXED);
	pthread_join(c->thread, NULL);
	hal->drv.cuCtxSetCurrent(hal->primary);
	while (c->issued && hal->drv.cuEventQuery(c->last) == CUDA_ERROR_NOT_READY) {
		if (aborts)
			release(c);
		nanosleep(&(struct timespec){ 0, 200000 }, NULL);
	}
	for (uint32_t r = 0; r < c->n; r++) {
		drop_side(&c->peer[r].in);
		drop_side(&c->peer[r].out);
	}
	hal->drv.cuEventDestroy_v2(c->last);
	free(c);
	return ncclSuccess;
}

static ncclResult_t destroy(ncclComm_t c)
{
	return end(c, false);
}

static ncclResult_t abort_comm(ncclComm_t c)
{
	return end(c, true);
}

static const char *error_string(ncclResult_t r)
{
	switch (r) {
	case ncclSuccess:
		return "no error";
	case ncclUnhandledCudaError:
		return "CUDA failed";
	case ncclSystemError:
		return "the ranks of a shared device cannot meet, or no peer access between their devices";
	default:
		return "not what a shared device offers";
	}
}

void together_load(struct nccl_driver *d, struct hal *h)
{
	hal = h;
	*d = (struct nccl_driver){
		.ncclGetVersion = get_version,
		.ncclGetUniqueId = get_unique_id,
		.ncclGetErrorString = error_string,
		.ncclCommInitRankConfig = init_rank,
		.ncclCommGetAsyncError = get_async_error,
		.ncclCommFinalize = finalize,
		.ncclCommDestroy = destroy,
		.ncclCommAbort = abort_comm,
		.ncclGroupStart = group_start,
		.ncclGroupEnd = group_end,
		.ncclSend = send_to,
		.ncclRecv = recv_from,
		.ncclBroadcast = broadcast,
		.ncclAllGather = all_gather,
	};
}
