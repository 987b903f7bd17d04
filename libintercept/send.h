/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send.h - sends records, and waits for answers
 */
#ifndef SEND_H
#define SEND_H

#include "process.h"

/*
 * send_async sends a record without an answer; send_sync waits for the answer and returns its
 * status. If the session is broken, or an earlier record has left a deferred error, both return
 * that error and send nothing.
 */
LOCAL CUresult send_async(uint16_t op, const void *a, uint32_t alen, const void *b, uint32_t blen);
LOCAL CUresult send_sync(uint16_t op, const void *a, uint32_t alen, const void *b, uint32_t blen,
			 void *reply, uint32_t cap);

/* send_sync in two steps, so that several requests can be in flight. */
LOCAL CUresult send_request(struct ring_ticket *t, uint16_t op, const void *a, uint32_t alen,
			    const void *b, uint32_t blen);
LOCAL CUresult send_await(struct ring_ticket *t, void *reply, uint32_t cap);

/*
 * send_async for a caller that holds a lock. Where send_async would wait, send_try sends nothing
 * and returns SEND_AGAIN. The caller then drops the lock and calls send_again(), which waits for
 * room for a record of len bytes; where it returns true the caller starts over.
 *
 *	do {
 *		lock_take(&lock);
 *		rc = … send_try(…) …;
 *		lock_drop(&lock);
 *	} while (send_again(&rc, sizeof(a)));
 */
#define SEND_AGAIN ((CUresult)(CUDA_ERROR_UNKNOWN + 1))	/* never returned to a program */
LOCAL CUresult send_try(uint16_t op, const void *a, uint32_t alen);
LOCAL bool send_again_slow(CUresult *rc, uint32_t len);
static inline bool send_again(CUresult *rc, uint32_t len)
{
	return unlikely(*rc == SEND_AGAIN) && send_again_slow(rc, len);
}

/* The sticky error, or a deferred error of an earlier record, which is reported once. */
LOCAL CUresult send_late(void);

/* The sticky error, or 0; deferred errors are left for send_late. */
LOCAL CUresult send_latched(void);
static inline CUresult send_broken(void)
{
	if (likely(__atomic_load_n(&here->shared->late, __ATOMIC_RELAXED) >> 32 ==
		   __atomic_load_n(&here->late_seen, __ATOMIC_RELAXED)))
		return CUDA_SUCCESS;
	return send_latched();
}

#endif
