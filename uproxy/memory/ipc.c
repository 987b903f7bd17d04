// SPDX-License-Identifier: Apache-2.0
/*
 * ipc.c - device memory of other processes, by the handles that programs pass to each other
 *
 *   cuIpcGetMemHandle, cuMemPoolExportPointer ─► do_ipc_show ─► peer_show
 *   cuIpcOpenMemHandle, cuMemPoolImportPointer ─► do_ipc_fetch (a worker asks the other proxy)
 *                                             ─► do_ipc_map (the consumer alone changes the window)
 */
#include <stdlib.h>

#include "log.h"
#include "peer.h"
#include "transfer.h"

struct fetched {
	struct fetched *next;
	uint64_t id, n, want;
	struct sv_session *s;
	uint64_t handle[];
};

static struct lock lock = LOCK_INIT(PROXY_IPC);
static struct fetched *all;
static uint64_t ids;

int do_ipc_show(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_ipc_show *a = k->c.data;
	static const uint8_t none[16];
	struct sv_ipc_shown out;
	CUresult r;
	int rc;

	if (!a->len || !window_mapped(s, a->va, a->len))
		return sv_bad(&k->c, "memory to show that is not mapped");
	r = window_shareable(s, a->va, a->len);
	if (r)
		return fails(k, r);
	__atomic_store_n(&s->shares, true, __ATOMIC_RELAXED);
	rc = peer_show(s, memcmp(a->key, none, 16) ? SV_IPC_POINTER : SV_IPC_MEMORY, a->va, a->len,
		       -1, a->key, &out);
	if (rc) {
		uproxy_say("memory cannot be shown to other processes: %s", strerror(-rc));
		return fails(k, rc == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY :
			     CUDA_ERROR_OPERATING_SYSTEM);
	}
	memcpy(k->c.reply, &out, sizeof(out));
	k->c.reply_len = sizeof(out);
	return 0;
}

int do_ipc_forget(struct call *k)
{
	const struct sv_ipc_forget *a = k->c.data;

	peer_hide_at(a->va);
	return 0;
}

/* ------------------------------------------------------------------ memory of other processes */

static CUresult import(void *arg, int fd)
{
	struct fetched *f = arg;
	CUmemGenericAllocationHandle h;
	CUresult r = f->s->hal.drv.cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	if (!r)
		f->handle[f->n++] = h;
	return r;
}

static void drop(struct fetched *f)
{
	while (f->n)
		f->s->hal.drv.cuMemRelease(f->handle[--f->n]);
	free(f);
}

int do_ipc_fetch(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_ipc_fetch *a = k->c.data;
	uint64_t n = sv_ipc_room(&a->h) / SV_GRANULE;
	struct sv_ipc_fetched out;
	struct fetched *f;
	CUresult r;

	if (a->h.magic != SV_IPC_MAGIC || a->h.version != SV_IPC_VERSION || !n ||
	    (a->h.kind != SV_IPC_MEMORY && a->h.kind != SV_IPC_POINTER) ||
	    n > s->hal.window_len / SV_GRANULE)
		return sv_bad(&k->c, "a handle of memory that is none");
	if (a->h.kind == SV_IPC_MEMORY && peer_is_us(&a->h))
		return fails(k, CUDA_ERROR_INVALID_CONTEXT);
	f = calloc(1, sizeof(*f) + n * sizeof(*f->handle));
	if (!f)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	f->s = s;
	f->want = n;
	__atomic_store_n(&s->shares, true, __ATOMIC_RELAXED);
	r = peer_ask(&a->h, a->key, import, f);
	if (r) {
		drop(f);
		return fails(k, r);
	}
	lock_take(&lock);
	f->id = out.id = ++ids;
	f->next = all;
	all = f;
	lock_drop(&lock);
	memcpy(k->c.reply, &out, sizeof(out));
	k->c.reply_len = sizeof(out);
	return 0;
}

int do_ipc_map(struct call *k)
{
	const struct sv_ipc_map *a = k->c.data;
	struct fetched **p, *f;
	CUresult r;

	lock_take(&lock);
	for (p = &all; (f = *p) && f->id != a->id; p = &f->next)
		;
	if (f)
		*p = f->next;
	lock_drop(&lock);
	if (!f || a->len / SV_GRANULE != f->n || a->len % SV_GRANULE) {
		if (f)
			drop(f);
		return sv_bad(&k->c, "memory to map that was not fetched so");
	}
	r = window_map_peer(k, a->va, f->n, f->handle);
	drop(f);
	return k->c.why ? -EBADMSG : fails(k, r);
}
