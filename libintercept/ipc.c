// SPDX-License-Identifier: Apache-2.0
/*
 * ipc.c - memory of other processes: cuIpc handles, and pools whose pointers are imported
 *
 *   cuIpcOpenMemHandle ─► a range of the window, whole granules ─► fetched, mapped ─► refs 1 ── again: refs + 1
 *   cuIpcCloseMemHandle ─► refs - 1; at 0 what was enqueued is waited for, and the range unmapped
 *
 * A handle is struct sv_ipc_handle (proto.h). A pool is passed as a sealed file with its key: who has the file may
 * import the pool's pointers.
 */
#include "capture.h"
#include "memory_i.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define POOL_MAGIC	0x50475653u	/* "SVGP" */
#define BY_FD "pools are shared with other processes by file descriptors alone"
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

struct peer {
	struct memory m;		/* first: the owner in the window */
	struct peer *next;
	uint64_t room, len;		/* whole granules */
	unsigned int refs;
	uint64_t pool;			/* handle of the imported one, or 0 */
	struct sv_ipc_handle h;
};

struct pool_file {
	uint32_t magic, version;
	uint8_t key[16];
};

_Static_assert(sizeof(struct sv_ipc_handle) == CU_IPC_HANDLE_SIZE, "a handle is all of it");
_Static_assert(sizeof(struct sv_ipc_handle) == sizeof(CUmemPoolPtrExportData), "and of this");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;	/* before memory_lock */
static struct peer *peers;

static uint64_t device_name(void)
{
	uint64_t half[2];

	memcpy(half, session_device(session.device)->uuid, sizeof(half));
	return half[0] ^ half[1];
}

/* ---------------------------------------------------------------------------- what we show */

static CUresult show(struct context *ctx, uint64_t addr, uint64_t len, const uint8_t key[16],
		     struct sv_ipc_handle *h)
{
	struct sv_ipc_show a = { .va = addr, .len = len };
	struct sv_ipc_shown out;
	CUresult rc;

	if (key)
		memcpy(a.key, key, sizeof(a.key));
	/* The first time the device must be idle, where other threads may begin something new. */
	while ((rc = send_sync(SV_OP_cuIpcGetMemHandle, &a, sizeof(a), NULL, 0, &out,
			       sizeof(out))) == CUDA_ERROR_NOT_READY) {
		TRY(context_sync(ctx));
		usleep(100);
	}
	if (rc)
		return rc;
	*h = (struct sv_ipc_handle){ .magic = SV_IPC_MAGIC, .version = SV_IPC_VERSION,
				     .kind = key ? SV_IPC_POINTER : SV_IPC_MEMORY,
				     .at = addr & (SV_GRANULE - 1), .len = len,
				     .device = device_name() };
	memcpy(h->server, out.server, sizeof(h->server));
	memcpy(h->secret, out.secret, sizeof(h->secret));
	return CUDA_SUCCESS;
}

/* The memory's owner in the window has been shown, and says so when it is freed. */
static bool mark_shown(uint64_t base)
{
	uint64_t at;
	void *owner = NULL;
	struct memory *m;

	pthread_mutex_lock(&memory_lock);
	m = space_find(memory_window, base, &at, NULL, &owner) ? owner : NULL;
	if (m && m->kind == MEMORY_DEVICE)
		m->shown = true;
	else
		m = NULL;
	pthread_mutex_unlock(&memory_lock);
	return m;
}

void ipc_forget(uint64_t addr)
{
	struct sv_ipc_forget a = { addr };

	send_async(SV_OP_X_IPC_FORGET, &a, sizeof(a), NULL, 0);
}

API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr addr)
{
	struct sv_ipc_handle h;
	struct context *ctx;
	struct memory m;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	if (!memory_find(addr, &m) || m.kind != MEMORY_DEVICE || !mark_shown(m.base))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(show(ctx, m.base, m.len, NULL, &h));
	memcpy(out, &h, sizeof(h));
	return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------- what others show */

static CUresult unmap(struct peer *p)
{
	struct sv_map a = { p->room, p->len };
	CUresult rc = send_async(SV_OP_cuIpcCloseMemHandle, &a, sizeof(a), NULL, 0);

	pthread_mutex_lock(&memory_lock);
	space_release(memory_window, p->room);
	pthread_mutex_unlock(&memory_lock);
	return rc;
}

static CUresult fetch(struct peer *p, const uint8_t key[16])
{
	struct sv_ipc_fetch a = { .h = p->h };
	struct sv_ipc_map b = { p->room, p->len, 0 };
	struct sv_ipc_fetched out;

	if (key)
		memcpy(a.key, key, sizeof(a.key));
	TRY(send_sync(SV_OP_cuIpcOpenMemHandle_v2, &a, sizeof(a), NULL, 0, &out, sizeof(out)));
	b.id = out.id;
	return send_sync(SV_OP_X_IPC_MAP, &b, sizeof(b), NULL, 0, NULL, 0);
}

/* The window has room for it, and it has what another process shows. lock is held. */
static CUresult open_locked(struct context *ctx, const struct sv_ipc_handle *h, uint64_t pool,
			    const uint8_t key[16], CUdeviceptr *out)
{
	struct peer *p;
	CUresult rc;

	if (h->device != device_name()) {
		client_log("memory of another process is another device's: it is refused");
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	p->h = *h;
	p->len = sv_ipc_room(h);
	p->refs = 1;
	p->pool = pool;
	pthread_mutex_lock(&memory_lock);
	p->room = space_alloc(memory_window, p->len, SV_GRANULE, 0, p);
	if (p->room)
		memory_unmap_cached(p->room, p->len);
	p->m = (struct memory){ .kind = MEMORY_PEER, .base = p->room + h->at, .len = h->len,
				.ctx = ctx, .id = memory_next_id() };
	pthread_mutex_unlock(&memory_lock);
	rc = p->room ? fetch(p, key) : CUDA_ERROR_OUT_OF_MEMORY;
	if (rc) {
		if (p->room) {
			pthread_mutex_lock(&memory_lock);
			space_release(memory_window, p->room);
			pthread_mutex_unlock(&memory_lock);
		}
		free(p);
		return rc;
	}
	p->next = peers;
	peers = p;
	*out = p->m.base;
	return CUDA_SUCCESS;
}

static bool is_handle(const struct sv_ipc_handle *h, unsigned int kind)
{
	return h->magic == SV_IPC_MAGIC && h->version == SV_IPC_VERSION && h->kind == kind &&
		sv_ipc_room(h) && sv_ipc_room(h) <= session.shared->window_len;
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
	struct sv_ipc_handle h;
	struct context *ctx;
	struct peer *p;
	CUresult rc = CUDA_SUCCESS;

	if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	memcpy(&h, &handle, sizeof(h));
	if (!is_handle(&h, SV_IPC_MEMORY))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	for (p = peers; p; p = p->next)
		if (p->m.ctx == ctx && !memcmp(&p->h, &h, sizeof(h)))
			break;
	if (p) {
		p->refs++;
		*out = p->m.base;
	} else {
		rc = open_locked(ctx, &h, 0, NULL, out);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
	return cuIpcOpenMemHandle_v2(out, handle, flags);
}

/* One reference less: NULL in *end, or what was the last one's and is to be unmapped. */
static CUresult put(uint64_t addr, bool of_pool, struct peer **end)
{
	struct peer **q, *p;

	*end = NULL;
	pthread_mutex_lock(&lock);
	for (q = &peers; (p = *q) && (p->m.base != addr || !p->pool == of_pool); q = &p->next)
		;
	if (p && !--p->refs) {
		*q = p->next;
		*end = p;
	}
	pthread_mutex_unlock(&lock);
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr addr)
{
	struct context *ctx;
	struct peer *p;
	CUresult rc;

	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	TRY(put(addr, false, &p));
	if (!p)
		return CUDA_SUCCESS;
	rc = context_sync(p->m.ctx->live ? p->m.ctx : ctx);
	if (!rc)
		rc = unmap(p);
	free(p);
	return rc;
}

void ipc_context_gone(struct context *ctx)
{
	struct peer **q = &peers, *p;

	pthread_mutex_lock(&lock);
	while ((p = *q)) {
		if (p->m.ctx == ctx) {
			*q = p->next;
			unmap(p);
			free(p);
		} else {
			q = &p->next;
		}
	}
	pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------------------- pools */

API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool,
					      CUmemAllocationHandleType type,
					      unsigned long long flags)
{
	struct pool_file f = { POOL_MAGIC, SV_IPC_VERSION, { 0 } };
	int fd;

	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return sv_unsupported("cuMemPoolExportToShareableHandle", BY_FD);
	TRY(pool_key(pool, false, f.key));
	fd = memfd_create("singvgpu-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (write(fd, &f, sizeof(f)) != sizeof(f) || fcntl(fd, F_ADD_SEALS, SEALS)) {
		close(fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle,
						CUmemAllocationHandleType type,
						unsigned long long flags)
{
	int fd = (int)(intptr_t)handle, seals;
	struct pool_file f;

	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return sv_unsupported("cuMemPoolImportFromShareableHandle", BY_FD);
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & SEALS) != SEALS || pread(fd, &f, sizeof(f), 0) != sizeof(f) ||
	    f.magic != POOL_MAGIC || f.version != SV_IPC_VERSION)
		return CUDA_ERROR_INVALID_VALUE;
	return pool_imported(out, f.key);
}

API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr addr)
{
	struct sv_ipc_handle h;
	struct context *ctx;
	uint8_t key[16];
	uint64_t len;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	TRY(pool_share(addr, &len, key));
	TRY(show(ctx, addr, len, key, &h));
	memcpy(out, &h, sizeof(h));
	return CUDA_SUCCESS;
}

API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool,
				    CUmemPoolPtrExportData *data)
{
	struct sv_ipc_handle h;
	struct context *ctx;
	uint8_t key[16];
	CUresult rc;

	if (!out || !data)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	memcpy(&h, data, sizeof(h));
	if (!is_handle(&h, SV_IPC_POINTER))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(pool_key(pool, true, key));
	pthread_mutex_lock(&lock);
	rc = open_locked(ctx, &h, sv_u64(pool), key, out);
	pthread_mutex_unlock(&lock);
	return rc;
}

/* What the stream has to do with it is waited for: nothing else could be done in its stead. */
CUresult ipc_free(uint64_t addr, struct stream *s)
{
	struct peer *p;
	CUresult rc;

	TRY(put(addr, true, &p));
	rc = s ? stream_sync(s->o.ctx, s) : CUDA_SUCCESS;
	if (!rc)
		rc = unmap(p);
	free(p);
	return rc;
}

uint64_t ipc_pool(const struct memory *m)
{
	struct peer *p;
	uint64_t pool = 0;

	if (m->kind != MEMORY_PEER)
		return 0;
	pthread_mutex_lock(&lock);
	for (p = peers; p && p->m.base != m->base; p = p->next)
		;
	if (p)
		pool = p->pool;
	pthread_mutex_unlock(&lock);
	return pool;
}
