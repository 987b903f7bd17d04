/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_i.h - functions that the files of this room share: host, pool, peer and VMM memory
 *
 * The owner of an allocation in the arena is its struct memory, or NULL where the interposer itself
 * uses it.
 */
#ifndef MEMORY_I_H
#define MEMORY_I_H

#include "client.h"

/* ------------------------------------------------------------------------------ as hooks.h says */

LOCAL CUresult memory_begin(void);	/* sets up the session's window */
LOCAL CUresult arena_begin(void);
LOCAL void arena_part(const struct session *s);
LOCAL CUresult stage_begin(void);
LOCAL CUresult pool_init(void);
LOCAL void host_forked(void);		/* makes registered memory private */
LOCAL void memory_context_gone(struct context *ctx);	/* frees its allocations, in window and arena */

/* ------------------------------------------------------------------------------------- host.c */

LOCAL uint64_t memory_next_id(void);

/* Zeroed memory in the arena, which program and device both use. */
LOCAL CUresult host_alloc(enum memory_kind kind, uint64_t len, unsigned int flags,
			  struct memory **out);

/* Wait for the context's work, then free the allocation of this kind at addr. INVALID_VALUE. */
LOCAL CUresult host_free(uint64_t addr, enum memory_kind kind);

/* The registered range that holds addr. */
LOCAL bool host_registered(uint64_t addr, struct memory *out);

/* The device's address for one in a registered range; 0: none, the range is copied as pageable. */
LOCAL uint64_t host_moved(const struct memory *m, uint64_t addr);

/* Unregister all ranges of a context that ends. */
LOCAL void host_context_gone(struct context *ctx);

/* ------------------------------------------------------------------------------------- copy.c */

LOCAL CUresult copy_wait_posted(struct stream *s, bool waits, bool writes);

/*
 * Before a copy in the stream. waits: the program waits for it. Then it must not be told of success where a failed
 * collective precedes it. writes: to memory of the program's, directly: then it must not come later, either, and
 * is sent when the stream is idle. EXTERNAL_DEVICE: the stream stands.
 */
static inline CUresult copy_wait(struct stream *s, bool waits, bool writes)
{
	return likely(!process_has_posted()) ? CUDA_SUCCESS : copy_wait_posted(s, waits, writes);
}

/* core.h's on_copy: what copy_wait() asks. */
LOCAL void copy_on_failed(bool (*ask)(const struct session *s));

/* ------------------------------------------------------------------------------------- pool.c */

/* The allocation that holds an address of a MEMORY_POOL range. false: the address is free. */
LOCAL bool pool_find(uint64_t addr, struct memory *out);

/* The handle of the pool that addr belongs to, or 0. */
LOCAL uint64_t pool_of(uint64_t addr);

/* Free the pools' empty slabs, down to the release thresholds, or (all) every one. */
LOCAL void pool_trim(bool all);

/*
 * pool_key: the key of a pool that can be exported, or that is imported; else INVALID_VALUE.
 * pool_share: the same by an address at which an allocation begins, and that allocation's length.
 * pool_imported: a new pool that stands for another process's pool with this key.
 */
LOCAL CUresult pool_key(CUmemoryPool pool, bool imported, uint8_t key[16]);
LOCAL CUresult pool_share(uint64_t addr, uint64_t *len, uint8_t key[16]);
LOCAL CUresult pool_imported(CUmemoryPool *out, const uint8_t key[16]);

/* A stream is destroyed; a context ends, with all its allocations. */
LOCAL void pool_stream_gone(struct stream *s);
LOCAL void pool_context_gone(struct context *ctx);

/* ------------------------------------------------------------------------- ipc.c, ipc_event.c */

/* End the export of memory that is about to be freed. SEND_AGAIN, as send_try(). */
LOCAL CUresult ipc_forget(uint64_t addr);
#define IPC_FORGET_LEN sizeof(struct sv_ipc_forget)

/* Free imported pool memory that begins at addr, after waiting for the stream. INVALID_VALUE. */
LOCAL CUresult ipc_free(uint64_t addr, struct stream *s);

/* The handle of the pool that addr was imported through, or 0. */
LOCAL uint64_t ipc_pool(const struct memory *m);

LOCAL void ipc_context_gone(struct context *ctx);

/* Record an event that is shared with other processes, or make the stream wait for it. */
LOCAL CUresult ipc_record(struct stream *s, struct event *e);
LOCAL CUresult ipc_wait(struct stream *s, struct event *e);

/* -------------------------------------------------------------------------------------- vmm.c */

/* 0 if the device can reach len bytes at addr of this MEMORY_RESERVED range, else INVALID_VALUE. */
LOCAL CUresult vmm_range(uint64_t addr, uint64_t len);

/* The mapping that holds addr: its base, length, handle and access. false: none. */
LOCAL bool vmm_find(uint64_t addr, uint64_t *base, uint64_t *len, uint64_t *handle,
		    unsigned int *access);

/* ----------------------------------------------------------------------------------- denied.c */

/* Whether a session reports this attribute as 0, whatever the device's value is. */
LOCAL bool device_denied(CUdevice_attribute attr);

/* The value of an attribute that proxies implement among themselves, else -1. d is the device. */
LOCAL int device_granted(CUdevice_attribute attr, const struct sv_device *d);

/* ----------------------------------------------------------------------------------- memory.c */

/* Unmap the range's granules that are cached: mapped, without allocations. */
LOCAL CUresult memory_unmap_cached(uint64_t addr, uint64_t len);

#endif
