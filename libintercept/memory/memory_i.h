/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_i.h - allocations: what there is at an address, and host, pool, peer and VMM memory
 *
 * The owner of an allocation in the arena is its struct memory, or NULL where the interposer itself
 * uses it.
 */
#ifndef MEMORY_I_H
#define MEMORY_I_H

#include "object.h"

enum memory_kind {
	MEMORY_DEVICE = 1,	/* cuMemAlloc and the like: granules are mapped as needed */
	MEMORY_POOL,		/* stream ordered; pool.c */
	MEMORY_RESERVED,	/* cuMemAddressReserve; vmm.c has the mappings in it */
	MEMORY_HOST,		/* pinned host memory in the arena */
	MEMORY_MANAGED,		/* cuMemAllocManaged, in the arena too */
	MEMORY_REGISTERED,	/* cuMemHostRegister; address is the program's own */
	MEMORY_GLOBAL,		/* a module's variable, in the driver's part of the window */
	MEMORY_GRAPH,		/* of an allocation node; graphs/mem.c */
	MEMORY_PEER,		/* of another process; ipc.c */
};

/* An allocation: the owner in a space. */
struct memory {
	enum memory_kind kind;
	uint64_t base, len;	/* len as the program asked for it */
	struct context *ctx;
	struct session *session;	/* the device that has it; NULL: it is in the arena */
	unsigned int flags;	/* of the call that made it */
	uint64_t id;		/* CU_POINTER_ATTRIBUTE_BUFFER_ID */
	void *more;		/* private data of the file that made it */
	bool shown;		/* exported by cuIpcGetMemHandle */
};

/*
 * memory_alloc: mapped device memory of this kind; CUDA_ERROR_OUT_OF_MEMORY over the budget.
 * memory_free: does not wait for work on the device that uses it.
 */
LOCAL CUresult memory_alloc(enum memory_kind kind, uint64_t len, uint64_t align, unsigned int place,
			    struct memory **out);
LOCAL void memory_free(struct memory *m);

/* Bytes of physical memory that the session may still use: budget minus memory in use. */
LOCAL uint64_t memory_left(void);

/* Charge to the budget, or return, physical memory of VMM calls. CUDA_ERROR_OUT_OF_MEMORY. */
LOCAL CUresult memory_charge(uint64_t len);
LOCAL void memory_uncharge(uint64_t len);

/* A copy of the description of the allocation that holds addr. false: none known. */
LOCAL bool memory_find(uint64_t addr, struct memory *out);

/* Can the device of `here` reach it? */
static inline bool memory_is_here(const struct memory *m)
{
	return !m->session || m->session == here;
}

/* 0 if len bytes at addr lie in one allocation that the device can reach, else INVALID_VALUE. */
LOCAL CUresult memory_range(uint64_t addr, uint64_t len);

/* Register a module's variable at addr (again: allowed), or forget all variables of a module. */
LOCAL CUresult memory_add_global(uint64_t addr, uint64_t len, void *module);
LOCAL void memory_drop_globals(void *module);

/* Unmap the range's granules that are cached: mapped, without allocations. */
LOCAL CUresult memory_unmap_cached(uint64_t addr, uint64_t len);

/* ------------------------------------------------------------------------------ as hooks.h says */

LOCAL CUresult memory_begin(void);	/* sets up the session's window */
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

/* --------------------------------------------------------------------------------------- ipc.c */

/* End the export of memory that is about to be freed. SEND_AGAIN, as send_try(). */
LOCAL CUresult ipc_forget(uint64_t addr);
#define IPC_FORGET_LEN sizeof(struct sv_ipc_forget)

/* Free imported pool memory that begins at addr, after waiting for the stream. INVALID_VALUE. */
LOCAL CUresult ipc_free(uint64_t addr, struct stream *s);

/* The handle of the pool that addr was imported through, or 0. */
LOCAL uint64_t ipc_pool(const struct memory *m);

LOCAL void ipc_context_gone(struct context *ctx);

/* -------------------------------------------------------------------------------------- vmm.c */

/* 0 if the device can reach len bytes at addr of this MEMORY_RESERVED range, else INVALID_VALUE. */
LOCAL CUresult vmm_range(uint64_t addr, uint64_t len);

/* The mapping that holds addr: its base, length, handle and access. false: none. */
LOCAL bool vmm_find(uint64_t addr, uint64_t *base, uint64_t *len, uint64_t *handle,
		    unsigned int *access);

#endif
