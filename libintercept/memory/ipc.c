// SPDX-License-Identifier: Apache-2.0
/*
 * ipc.c - memory of other processes: cuIpc handles, and pools whose pointers are imported
 *
 *   cuIpcOpenMemHandle ─► a range of the window, whole granules ─► imported, mapped ─► refs 1
 *   cuIpcOpenMemHandle again ─► refs + 1
 *   cuIpcCloseMemHandle ─► refs - 1; at 0 waits for the context's work, then unmaps the range
 *
 * A handle is struct sv_ipc_handle (proto.h). A pool is exported as a sealed file that has its
 * key: a process that has the file may import the pool's pointers.
 */
#include "captured.h"
#include "context.h"
#include "memory_i.h"
#include "send.h"
#include "space.h"

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

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct pool_file {
	uint32_t magic, version;
	uint8_t key[16];
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct pool_file) == 24, "shared");

_Static_assert(sizeof(struct sv_ipc_handle) == CU_IPC_HANDLE_SIZE, "a handle is all of it");
_Static_assert(sizeof(struct sv_ipc_handle) == sizeof(CUmemPoolPtrExportData), "and of this");

static uint64_t device_name(void)
{
	uint64_t half[2];

	memcpy(half, session_device(device_of(here))->uuid, sizeof(half));
	return half[0] ^ half[1];
}

/* --------------------------------------------------------------------------------- exports */

static CUresult show(struct context *ctx, uint64_t addr, uint64_t len, const uint8_t key[16],
		     struct sv_ipc_handle *h)
{
	struct sv_ipc_show a = { .va = addr, .len = len };
	struct sv_ipc_shown out;
	CUresult rc;

	if (key)
		memcpy(a.key, key, sizeof(a.key));
	/* The first export needs an idle device, and other threads may enqueue work again. */
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

/* Mark the allocation as exported, so that freeing it ends the export. */
static bool mark_shown(uint64_t base)
{
	uint64_t at;
	void *owner = NULL;
	struct memory *m;

	lock_take(&process.locks.memory);
	m = space_find(here->window, base, &at, NULL, &owner) ? owner : NULL;
	if (m && m->kind == MEMORY_DEVICE)
		m->shown = true;
	else
		m = NULL;
	lock_drop(&process.locks.memory);
	return m;
}

CUresult ipc_forget(uint64_t addr)
{
	struct sv_ipc_forget a = { addr };

	return send_try(SV_OP_X_IPC_FORGET, &a, sizeof(a));
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

/* ------------------------------------------------------------------------------------- imports */

static CUresult unmap(struct peer *p)
{
	struct sv_map a = { p->room, p->len };
	CUresult rc = send_async(SV_OP_cuIpcCloseMemHandle, &a, sizeof(a), NULL, 0);

	lock_take(&process.locks.memory);
	space_release(here->window, p->room);
	lock_drop(&process.locks.memory);
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

static void give_back(struct peer *p)
{
	lock_take(&process.locks.memory);
	space_release(here->window, p->room);
	lock_drop(&process.locks.memory);
	free(p);
}

/* Import another process's memory into the window. No list has *out yet. */
static CUresult fetched(struct context *ctx, const struct sv_ipc_handle *h, uint64_t pool,
			const uint8_t key[16], struct peer **out)
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
	lock_take(&process.locks.memory);
	p->room = space_alloc(here->window, p->len, SV_GRANULE, 0, p);
	p->m = (struct memory){ .kind = MEMORY_PEER, .base = p->room + h->at, .len = h->len,
				.session = here, .ctx = ctx, .id = memory_next_id() };
	lock_drop(&process.locks.memory);
	if (!p->room) {
		free(p);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	rc = memory_unmap_cached(p->room, p->len);
	if (!rc)
		rc = fetch(p, key);
	if (rc)
		give_back(p);
	else
		*out = p;
	return rc;
}

/* The peer that the context has already opened by this handle, or NULL. locks.ipc is held. */
static struct peer *opened(const struct context *ctx, const struct sv_ipc_handle *h)
{
	struct peer *p;

	assert_held(&here->locks.ipc);
	for (p = here->peers; p && (p->m.ctx != ctx || p->pool || memcmp(&p->h, h, sizeof(*h)));
	     p = p->next)
		;
	return p;
}

static bool is_handle(const struct sv_ipc_handle *h, unsigned int kind)
{
	return h->magic == SV_IPC_MAGIC && h->version == SV_IPC_VERSION && h->kind == kind &&
		sv_ipc_room(h) && sv_ipc_room(h) <= here->shared->window_len;
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
	struct sv_ipc_handle h;
	struct context *ctx;
	struct peer *p, *new;

	if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	memcpy(&h, &handle, sizeof(h));
	if (!is_handle(&h, SV_IPC_MEMORY))
		return CUDA_ERROR_INVALID_VALUE;
	lock_take(&here->locks.ipc);
	p = opened(ctx, &h);
	if (p) {
		p->refs++;
		*out = p->m.base;
	}
	lock_drop(&here->locks.ipc);
	if (p)
		return CUDA_SUCCESS;
	TRY(fetched(ctx, &h, 0, NULL, &new));
	lock_take(&here->locks.ipc);
	p = opened(ctx, &h);	/* another thread was faster: use its range */
	if (p) {
		p->refs++;
	} else {
		new->next = here->peers;
		here->peers = p = new;
	}
	*out = p->m.base;
	lock_drop(&here->locks.ipc);
	if (p != new) {
		unmap(new);
		free(new);
	}
	return CUDA_SUCCESS;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
	return cuIpcOpenMemHandle_v2(out, handle, flags);
}

/* Drop one reference. *end: the peer, if that was the last one and the caller is to unmap it. */
static CUresult put_peer(uint64_t addr, bool of_pool, struct peer **end)
{
	struct peer **q, *p;

	*end = NULL;
	lock_take(&here->locks.ipc);
	for (q = &here->peers; (p = *q) && (p->m.base != addr || !p->pool == of_pool); q = &p->next)
		;
	if (p && !--p->refs) {
		*q = p->next;
		*end = p;
	}
	lock_drop(&here->locks.ipc);
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr addr)
{
	struct context *ctx;
	struct peer *p;
	CUresult rc;

	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	TRY(put_peer(addr, false, &p));
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
	struct peer **q = &here->peers, *p, *gone = NULL;

	lock_take(&here->locks.ipc);
	while ((p = *q)) {
		if (p->m.ctx == ctx) {
			*q = p->next;
			p->next = gone;
			gone = p;
		} else {
			q = &p->next;
		}
	}
	lock_drop(&here->locks.ipc);
	while ((p = gone)) {
		gone = p->next;
		unmap(p);
		free(p);
	}
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
		return sv_absent("cuMemPoolExportToShareableHandle", BY_FD);
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
		return sv_absent("cuMemPoolImportFromShareableHandle", BY_FD);
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
	struct peer *p;

	if (!out || !data)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(capture_unsafe());
	memcpy(&h, data, sizeof(h));
	if (!is_handle(&h, SV_IPC_POINTER))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(pool_key(pool, true, key));
	TRY(fetched(ctx, &h, sv_u64(pool), key, &p));
	lock_take(&here->locks.ipc);
	p->next = here->peers;
	here->peers = p;
	*out = p->m.base;
	lock_drop(&here->locks.ipc);
	return CUDA_SUCCESS;
}

/* Waits for the stream, since the unmap cannot be enqueued in it. */
CUresult ipc_free(uint64_t addr, struct stream *s)
{
	struct peer *p;
	CUresult rc;

	TRY(put_peer(addr, true, &p));
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
	lock_take(&here->locks.ipc);
	for (p = here->peers; p && p->m.base != m->base; p = p->next)
		;
	if (p)
		pool = p->pool;
	lock_drop(&here->locks.ipc);
	return pool;
}
