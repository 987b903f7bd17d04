/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dispatch.h - what the proxy's core provides to the generated dispatch (LIB_dispatch.c)
 *
 * A record is untrusted: its size, padding, counts and strings are checked by the generated code,
 * its handles and addresses by the functions below. They return 0, or the library's error code
 * (> 0), which becomes the call's result without calling the driver, or -errno when an honest
 * client cannot have sent this: the session is to end.
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
	const void *data;	/* the record's payload, aligned to 8, nobody else writes it */
	uint32_t len;
	uint16_t op;
	uint16_t reply_len;	/* out: bytes of reply, 0 if the call failed */
	int status;		/* out: the driver's result, or why it was not called */
	const char *why;	/* out: what was wrong with the record (static text) */
	uint8_t reply[48] __attribute__((aligned(8)));	/* out */
};

/*
 * LIB_dispatch(call): 0 it was executed, see status and reply. -ENOSYS the opcode is not one that
 * was generated. -EBADMSG the record is malformed, see why; or what a function below returned.
 */

/* Make the virtual context current. */
int sv_enter(struct sv_session *s, uint64_t ctx);

/* The driver's handle for a virtual one of this type, by value and type; 0 if it may be none. */
int sv_real(struct sv_session *s, unsigned int type, uint64_t handle, int optional,
	    uint64_t *real);

/* A virtual handle is about to be bound: is it unused, and in the range of its type? */
int sv_reserve(struct sv_session *s, unsigned int type, uint64_t handle);
void sv_unreserve(struct sv_session *s, unsigned int type, uint64_t handle);

/* Bind a reserved handle to the driver's; of a type with real values both are the same. */
int sv_bind(struct sv_session *s, unsigned int type, uint64_t handle, uint64_t real);
void sv_unbind(struct sv_session *s, unsigned int type, uint64_t handle);

/* Are these len bytes of device memory the session's own? len UINT64_MAX never is. */
int sv_window(struct sv_session *s, uint64_t addr, uint64_t len, int write);

/* Room for len bytes until the call ends, one for each slot < 8; NULL: none. */
void *sv_room(struct sv_session *s, unsigned int slot, uint64_t len);

static inline int sv_bad(struct sv_call *c, const char *why)
{
	c->why = why;
	return -EBADMSG;
}

/* The call's result is not the driver's. */
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
 * The next part of a record's tail, size bytes at *at; each part begins on 8. Padding between
 * parts must be zero. NULL: it is not there.
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
