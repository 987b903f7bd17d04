/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stub.h - functions that the generated client stubs (LIB_stubs.c) call in the interposer
 *
 * Stubs run in the program's threads and hold no locks. Unless their comment says otherwise the
 * functions return 0 or the library's error code, which the stub returns. Handles are the virtual
 * values that the program sees; type is SV_T_name of LIB_ops.h.
 *
 * A stub with the annotation `hook` first calls CUresult sv_hook_NAME(arguments, int per_thread,
 * int *done), written by hand and declared in LIB_hooks.h. If the hook sets *done, the stub returns
 * the hook's result.
 */
#ifndef SV_STUB_H
#define SV_STUB_H

#include <stddef.h>
#include <stdint.h>

#include "op.h"

/*
 * Begins a stub that has handles. sv_use and sv_stream choose the session to which its record goes: that
 * of the device to which the handles belong. They return INVALID_HANDLE if those are two devices.
 */
#define SV_STUB __attribute__((cleanup(sv_stub_ends))) void *before_ = sv_stub_begins()
void *sv_stub_begins(void);
void sv_stub_ends(void **before);

/* The calling thread's current context; an error if it has none. */
int sv_ctx(uint64_t *ctx);

/* The context for the record: ctx, unless the stub's handles belong to another device; then theirs. */
uint64_t sv_ctx_named(uint64_t ctx);

/* 0 if this is a live handle of the type. Called before anything is sent. */
int sv_use(unsigned int type, uint64_t handle);

/* The wire's name of a device that sv_use has found: the one of the stub's session. */
uint64_t sv_device(uint64_t device);

/* The wire's name of the stream that a handle stands for, 0 and the special values included. */
int sv_stream(uint64_t handle, int per_thread, uint64_t *stream);

/* sv_new: a new virtual handle. sv_drop: frees one that was destroyed or whose creation failed. */
int sv_new(unsigned int type, uint64_t *handle);
void sv_drop(unsigned int type, uint64_t handle);

/* A handle with a value of the driver's own has been created. */
int sv_made(unsigned int type, uint64_t handle);

/* 0 if the program has len bytes of device memory at addr. */
int sv_range(uint64_t addr, uint64_t len, int write);

/* Whether the stream (its name on the wire) is captured: then sv_capture takes its records. */
int sv_capturing(uint64_t stream);
int sv_capture(uint64_t stream, uint16_t op, const void *args, uint32_t len, const void *data,
	       uint64_t data_len);

/* Send a record, without an answer or with one. The arguments are copied before the return. */
int sv_async(uint16_t op, const void *args, uint32_t len, const void *data, uint64_t data_len);
int sv_sync(uint16_t op, const void *args, uint32_t len, const void *data, uint64_t data_len,
	    void *reply, uint32_t reply_len);

/* At least len bytes for this thread until its next call here, aligned to 8; NULL: too many. */
void *sv_scratch(uint64_t len);

/*
 * Sets whether stream 0 means the per-thread stream in this thread, and returns the setting before.
 * The per-thread forms of functions by hand set it around their call.
 */
int sv_per_thread(int on);

/*
 * sv_unsupported: says on stderr, once for each name, that a call is not supported, and returns the result
 * for the program. The strings are constants. sv_absent: says so in the log alone, of what NVIDIA's driver
 * may lack, too, so that programs try it.
 */
int sv_unsupported(const char *name, const char *reason);
int sv_absent(const char *name, const char *reason);

#endif
