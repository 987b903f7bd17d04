/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stub.h - what the interposer provides to the generated client stubs (LIB_stubs.c)
 *
 * All of it is called in the program's threads, never with a lock held by a stub. Where nothing
 * else is said the functions return 0 or the library's error code, which the stub returns.
 * Handles go to the program as their virtual values: type is SV_T_name of LIB_ops.h.
 *
 * A stub with the annotation `hook` first calls CUresult sv_hook_NAME(arguments, int per_thread,
 * int *done), written by hand and declared in LIB_hooks.h; if that sets *done, its result is the
 * call's.
 */
#ifndef SV_STUB_H
#define SV_STUB_H

#include <stddef.h>
#include <stdint.h>

#include "op.h"

/* The calling thread's current context; an error if it has none. */
int sv_ctx(uint64_t *ctx);

/* Is this a live handle of the type? Called before anything is sent. */
int sv_use(unsigned int type, uint64_t handle);

/* The stream that a handle means, 0 and the special values included, as the wire names it. */
int sv_stream(uint64_t handle, int per_thread, uint64_t *stream);

/* A new virtual handle; sv_drop: it is destroyed, or its creation has failed. */
int sv_new(unsigned int type, uint64_t *handle);
void sv_drop(unsigned int type, uint64_t handle);

/* A handle with a value of the driver's own has been created. */
int sv_made(unsigned int type, uint64_t handle);

/* Do len bytes of device memory at addr belong to the program? */
int sv_range(uint64_t addr, uint64_t len, int write);

/* Is the stream (as the wire names it) being captured? Then its records go to sv_capture. */
int sv_capturing(uint64_t stream);
int sv_capture(uint64_t stream, uint16_t op, const void *args, uint32_t len, const void *data,
	       uint64_t data_len);

/* Send a record, without an answer or with one. All copy what they need before they return. */
int sv_async(uint16_t op, const void *args, uint32_t len, const void *data, uint64_t data_len);
int sv_sync(uint16_t op, const void *args, uint32_t len, const void *data, uint64_t data_len,
	    void *reply, uint32_t reply_len);

/* At least len bytes, aligned to 8, that are this thread's until its next call; NULL: too many. */
void *sv_scratch(uint64_t len);

/*
 * Does 0 mean the per-thread stream in this thread's calls of functions by hand? Returns what was
 * said before: the per-thread forms of those functions say it around their call.
 */
int sv_per_thread(int on);

/* The program has called something that is not supported. The result that it gets. */
int sv_unsupported(const char *name, const char *reason);

#endif
