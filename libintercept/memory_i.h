/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_i.h - the kinds of memory that are not plain device memory, for each other and memory.c
 *
 * An allocation in the arena has a struct memory as its owner there; what the interposer itself
 * uses of the arena has the owner NULL. Locks: memory_lock, then those of these files, then arena's.
 */
#ifndef MEMORY_I_H
#define MEMORY_I_H

#include "client.h"

/* ------------------------------------------------------------------------------------- host.c */

LOCAL uint64_t memory_next_id(void);

/* Zeroed memory of the arena that both sides use, and a description of it. */
LOCAL CUresult host_alloc(enum memory_kind kind, uint64_t len, unsigned int flags,
			  struct memory **out);

/* Free the one that begins at addr and is of this kind, when nothing uses it. INVALID_VALUE. */
LOCAL CUresult host_free(uint64_t addr, enum memory_kind kind);

/* The registered range that holds addr. */
LOCAL bool host_registered(uint64_t addr, struct memory *out);

/* Where the device has an address of a registered range; 0: nowhere, it is copied as pageable. */
LOCAL uint64_t host_moved(const struct memory *m, uint64_t addr);

/* A context ends: what was registered in it is not any more. */
LOCAL void host_context_gone(struct context *ctx);

/* ------------------------------------------------------------------------------------- pool.c */

/* The allocation that holds an address of a MEMORY_POOL range. false: it is free now. */
LOCAL bool pool_find(uint64_t addr, struct memory *out);

/* The handle of the pool that addr is from, or 0. */
LOCAL uint64_t pool_of(uint64_t addr);

/* Give back what pools hold without need (all: whatever their release thresholds say). */
LOCAL void pool_trim(bool all);

/*
 * The key of a pool that was made to be shared, or is another process's. INVALID_VALUE: it is no such pool.
 * pool_share: also whole is the allocation that begins at addr. pool_imported: a new pool by its key.
 */
LOCAL CUresult pool_key(CUmemoryPool pool, bool imported, uint8_t key[16]);
LOCAL CUresult pool_share(uint64_t addr, uint64_t *len, uint8_t key[16]);
LOCAL CUresult pool_imported(CUmemoryPool *out, const uint8_t key[16]);

/* A stream goes away; a context ends with all that has been allocated in it. */
LOCAL void pool_stream_gone(struct stream *s);
LOCAL void pool_context_gone(struct context *ctx);

/* ------------------------------------------------------------------------- ipc.c, ipc_event.c */

/* Memory that was shown to other processes is about to be freed. */
LOCAL void ipc_forget(uint64_t addr);

/* Memory of another process's pool that begins at addr is freed, after the stream's work. INVALID_VALUE. */
LOCAL CUresult ipc_free(uint64_t addr, struct stream *s);

/* The handle of the pool that addr was imported through, or 0. */
LOCAL uint64_t ipc_pool(const struct memory *m);

LOCAL void ipc_context_gone(struct context *ctx);

/* An event with peers is recorded, or waited for. */
LOCAL CUresult ipc_record(struct stream *s, struct event *e);
LOCAL CUresult ipc_wait(struct stream *s, struct event *e);

/* -------------------------------------------------------------------------------------- vmm.c */

/* May the device use len bytes at addr of this MEMORY_RESERVED range? INVALID_VALUE. */
LOCAL CUresult vmm_range(uint64_t addr, uint64_t len);

/* What is mapped at addr: base, length and handle. false: nothing. */
LOCAL bool vmm_find(uint64_t addr, uint64_t *base, uint64_t *len, uint64_t *handle,
		    unsigned int *access);

/* ----------------------------------------------------------------------------------- denied.c */

/* Is this attribute 0 here, whatever the device says? */
LOCAL bool device_denied(CUdevice_attribute attr);

/* What it is because of what proxies do between themselves, else -1. d is the device. */
LOCAL int device_granted(CUdevice_attribute attr, const struct sv_device *d);

/* ----------------------------------------------------------------------------------- memory.c */

/* Unmap granules in a range that has no allocations, kept for the next one. memory_lock is held. */
LOCAL void memory_unmap_cached(uint64_t addr, uint64_t len);

#endif
