/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_memory.h - the session's addresses and what lies there: memory, pins, arrays, textures, tensor maps
 */
#ifndef DEVICE_MEMORY_H
#define DEVICE_MEMORY_H

#include "call.h"

/* ------------------------------------------------------------------------------ window.c */

int window_init(struct sv_session *s);

/* Does this arena range belong to the client, and is it pinned? */
bool arena_pinned(struct sv_session *s, uint64_t off, uint64_t len);

/* Bytes of device memory that are mapped; *pins (may be NULL): of the arena, pinned. */
uint64_t window_bytes(uint64_t *pins);

/* Does this arena range belong to the client? off and len may be any numbers. */
bool arena_client(const struct sv_session *s, uint64_t off, uint64_t len);

/*
 * Ranges of modules' variables; owner: the image. globals_drop drops those of owner (NULL: any) in
 * context ctx (0: any). Any thread.
 */
int globals_add(const void *owner, uint64_t ctx, uint64_t addr, uint64_t len);
void globals_drop(const void *owner, uint64_t ctx);

int do_map(struct call *k);
int do_map_pieces(struct call *k);
int do_crowded(struct call *k);
int do_unmap(struct call *k);
int do_pin(struct call *k);
int do_unpin(struct call *k);
int do_mem_create(struct call *k);
int do_mem_release(struct call *k);
int do_mem_map(struct call *k);
int do_mem_unmap(struct call *k);
int do_mem_access(struct call *k);
void window_repin(struct sv_session *s);	/* the primary context is a new one */

/* The first run at or behind `from` of memory that SV_OP_X_MAP has mapped. */
bool window_next_run(struct sv_session *s, uint64_t from, uint64_t *va, uint64_t *len);

/* Physical memory of cuMemCreate; it exists as long as it has a handle or a mapping. Consumer. */
struct vmm {
	struct vmm *next;	/* of all */
	uint64_t handle, real;	/* real: not if released */
	uint64_t len;
	uint64_t va;		/* if maps is not 0: an address where it is mapped */
	uint32_t maps;
	bool released;
};
const struct vmm *window_vmm(void);	/* oldest first, also after a replay */
/* Binds the client's reserved handle to this memory; len counts as mapped. The call's result. */
int window_add_vmm(struct call *k, uint64_t handle, uint64_t real, uint64_t len);

int do_ipc_close(struct call *k);	/* see ipc.c */

/* ------------------------------------------------------------------------------ share.c */

/* Sets the client's process; the pidfd remains the caller's. */
void share_client(struct sv_session *s, int pidfd);
int do_mem_export(struct call *k);
int do_mem_import(struct call *k);

/* ------------------------------------------------------------------------------ array.c, texture.c, tensor_map.c */

int do_array_destroy(struct call *k);

int do_tex_create(struct call *k);
int do_tex_destroy(struct call *k);
void textures_ctx_gone(uint64_t ctx);
/* Visits the live objects: their values, and the records that made them. Consumer. */
typedef void (*object_visit)(void *arg, uint64_t value, uint64_t seq, bool surface);
void textures_walk(object_visit fn, void *arg);

int do_tensor_map(struct call *k);

#endif
