/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dispatch.h - functions of the proxy's core that the generated dispatch (LIB_dispatch.c) calls
 *
 * A record is untrusted: the generated code checks its size, padding, counts and strings, the
 * functions below check its handles and addresses. They return 0, or the library's error code (>
 * 0), which becomes the call's result without a call of the driver, or -errno if an honest client
 * cannot have sent the record: then the session ends.
 */
#ifndef SV_DISPATCH_H
#define SV_DISPATCH_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "op.h"

struct sv_session;

struct sv_call {
	struct sv_session *session;
	const void *driver;	/* struct LIB_driver */
	const void *data;	/* the record's payload, aligned to 8, a private copy */
	uint32_t len;
	uint16_t op;
	uint16_t reply_len;	/* out: bytes of reply, 0 if the call failed */
	int status;		/* out: the driver's result, or why it was not called */
	const char *why;	/* out: what was wrong with the record (static text) */
	uint8_t reply[48] __attribute__((aligned(8)));	/* out */
};

/*
 * LIB_dispatch(call): 0 the record was executed, see status and reply. -ENOSYS the opcode is not a
 * generated one. -EBADMSG the record is malformed, see why. Or an -errno of a function below.
 */

/* Make the virtual context current. */
int sv_enter(struct sv_session *s, uint64_t ctx);

/* The driver's handle for a virtual one, by value and type. optional: handle 0 gives 0. */
int sv_real(struct sv_session *s, unsigned int type, uint64_t handle, int optional,
	    uint64_t *real);

/* Check that a virtual handle that is to be bound is unused and in its type's range. */
int sv_reserve(struct sv_session *s, unsigned int type, uint64_t handle);
void sv_unreserve(struct sv_session *s, unsigned int type, uint64_t handle);

/* Bind a reserved handle to the driver's; for handle-real types both are the same. */
int sv_bind(struct sv_session *s, unsigned int type, uint64_t handle, uint64_t real);
void sv_unbind(struct sv_session *s, unsigned int type, uint64_t handle);

/* Check that these len bytes of device memory are the session's own. UINT64_MAX always fails. */
int sv_window(struct sv_session *s, uint64_t addr, uint64_t len, int write);

/* A buffer of len bytes until the call ends, one per slot < 8; NULL: none. */
void *sv_room(struct sv_session *s, unsigned int slot, uint64_t len);

static inline int sv_bad(struct sv_call *c, const char *why)
{
	c->why = why;
	return -EBADMSG;
}

/* Fail the call without the driver: rc > 0 is its result, rc < 0 ends the session. */
static inline int sv_fails(struct sv_call *c, int rc, const char *why)
{
	if (rc < 0) {
		c->why = why;
		return rc;
	}
	c->status = rc;
	return 0;
}

static inline int sv_zero(const uint8_t *p, size_t n)
{
	uint8_t any = 0;

	while (n--)
		any |= *p++;
	return !any;
}

/*
 * The next part of a record's tail, size bytes at *at, which it advances; parts are aligned to 8,
 * and padding between them must be zero. NULL: the record is too short, or has other padding.
 */
static inline const void *sv_part(struct sv_call *c, uint64_t *at, uint64_t size)
{
	const uint8_t *base = c->data;
	uint64_t from = (*at + 7) & ~7ull;

	if (size == 0)
		return base + *at;
	if (from > c->len || size > c->len - from || !sv_zero(base + *at, from - *at))
		return NULL;
	*at = from + size;
	return base + from;
}

#endif
