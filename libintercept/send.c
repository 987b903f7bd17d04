// SPDX-License-Identifier: Apache-2.0
/*
 * send.c - sends records to the proxy and receives answers, for generated stubs too (stub.h)
 */
#include "log.h"
#include "ring_post.h"
#include "send.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --------------------------------------------------------------------- deferred errors, prints */

CUresult send_latched(void)
{
	int32_t err = ring_error(here->ring, NULL);

	return err < 0 ? CUDA_ERROR_UNKNOWN : (CUresult)err;
}

CUresult send_late(void)
{
	uint64_t late;

	TRY(send_latched());
	/* pairs with store_late() of the proxy */
	late = __atomic_load_n(&here->shared->late, __ATOMIC_ACQUIRE) & ~SV_LATE_FULL;
	if (late == __atomic_exchange_n(&here->late_seen, late, __ATOMIC_RELAXED))
		return CUDA_SUCCESS;	/* another thread has reported it */
	client_log("an earlier call has failed: %d", (int)(uint32_t)late);
	return (uint32_t)late;
}

/* Is there a new error, or too much parked? */
static inline bool is_late(void)
{
	return unlikely(__atomic_load_n(&here->shared->late, __ATOMIC_RELAXED) !=
			__atomic_load_n(&here->late_seen, __ATOMIC_RELAXED));
}

static inline bool is_full(void)
{
	return __atomic_load_n(&here->shared->late, __ATOMIC_RELAXED) & SV_LATE_FULL;
}

static inline CUresult ready(void)
{
	TRY(session_check());
	return is_late() ? send_late() : CUDA_SUCCESS;
}

static void write_all(int fd, const uint8_t *p, size_t n)
{
	while (n) {
		ssize_t w = write(fd, p, n);

		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return;
		p += w;
		n -= w;
	}
}

static void print_one(int i)
{
	const struct sv_print *p = &here->shared->print[i];
	/* pairs with move() in print.c of the proxy */
	uint64_t head = __atomic_load_n(&p->head, __ATOMIC_ACQUIRE), tail = p->tail;
	uint64_t off = __atomic_load_n(&p->off, __ATOMIC_RELAXED);
	uint64_t size = __atomic_load_n(&p->size, __ATOMIC_RELAXED);
	uint64_t room = ring_geometry(here->ring)->arena_len;
	const uint8_t *from = (const uint8_t *)here->shared + off;
	FILE *to = i ? stderr : stdout;

	/* Only what lies in the arena is printed, whatever the proxy says. */
	if (!size || (size & (size - 1)) || head - tail > size || size > room || off > room - size)
		return;
	while (tail != head) {
		uint64_t at = tail & (size - 1), n = head - tail;

		if (n > size - at)
			n = size - at;
		if (to)
			fwrite(from + at, 1, n, to);
		else
			write_all(i ? 2 : 1, from + at, n);
		tail += n;
	}
	if (to)
		fflush(to);	/* the program's next output, even by write(2), comes after it */
	__atomic_store_n((uint64_t *)&p->tail, tail, __ATOMIC_RELEASE);
}

/* Write the output of kernels' printf to the program's stdout and stderr. */
static void send_prints(void)
{
	const struct sv_print *p = here->shared->print;

	if (likely(__atomic_load_n(&p[0].head, __ATOMIC_RELAXED) == p[0].tail &&
		   __atomic_load_n(&p[1].head, __ATOMIC_RELAXED) == p[1].tail))
		return;
	lock_take(&here->locks.prints);
	print_one(0);
	print_one(1);
	lock_drop(&here->locks.prints);
}

/* -------------------------------------------------------------------------------- sending */

static CUresult lost(int rc)
{
	int32_t err = ring_error(here->ring, NULL);

	if (rc == -EPIPE && *here->shared->why)
		client_log("the proxy has ended the session: %.239s", here->shared->why);
	else
		client_log("the proxy is lost: %s", ring_strerror(rc));
	return err > 0 ? (CUresult)err : session_rc(rc);
}

/* The first bytes of a record, as a request for room has them. Returns their number. */
static uint32_t head_of(uint8_t *head, const void *a, uint32_t alen)
{
	uint32_t n = alen < SV_ROOM_BYTES ? alen : SV_ROOM_BYTES;

	memcpy(head, a, n);
	return n;
}

static CUresult ask_room(const struct sv_room *a, const uint8_t *head, uint32_t len)
{
	int32_t status;
	uint32_t got;
	int rc;

	while ((rc = ring_call(here->ring, SV_OP_X_ROOM, a, sizeof(*a), head, len, &status, NULL, 0, &got)) ==
	       -EBUSY)
		sched_yield();
	return rc ? lost(rc) : (CUresult)status;
}

/*
 * Behind a rank that is late there may be too much in this record's stream already: then this thread waits until
 * half of it has run, as it would wait for a place in a queue of NVIDIA's driver.
 */
static CUresult ready_late(uint16_t op, const void *a, uint32_t alen)
{
	struct sv_room room = { .op = op };
	uint8_t head[SV_ROOM_BYTES];

	TRY(send_late());
	if (!is_full())
		return CUDA_SUCCESS;
	return ask_room(&room, head, head_of(head, a, alen));
}

/* ready(), for a record that may be parked with nobody waiting for it. */
static inline CUresult ready_for(uint16_t op, const void *a, uint32_t alen)
{
	TRY(session_check());
	return is_late() ? ready_late(op, a, alen) : CUDA_SUCCESS;
}

/* Submit a record of one unit without a call of ringbuf. */
static inline int post(uint16_t op, const void *a, uint32_t len)
{
	uint64_t w[6] = { 0 };

	memcpy(w, a, len);
	return ring_post(here->ring, op, len, w[0], w[1], w[2], w[3], w[4], w[5]);
}

CUresult send_async(uint16_t op, const void *a, uint32_t alen, const void *b, uint32_t blen)
{
	int rc;

	lock_may_wait("room in the ring");
	TRY(ready_for(op, a, alen));
	if (!blen && alen <= RING_POST_MAX)
		rc = post(op, a, alen);
	else
		rc = ring_submit(here->ring, op, a, alen, b, blen);
	return likely(!rc) ? CUDA_SUCCESS : lost(rc);
}

CUresult send_try(uint16_t op, const void *a, uint32_t alen)
{
	int rc;

	TRY(session_check());
	if (is_late()) {
		TRY(send_late());
		if (is_full() && !thread.room.granted) {
			thread.room.a = (struct sv_room){ .op = op };
			thread.room.len = head_of(thread.room.head, a, alen);
			return SEND_AGAIN;
		}
		thread.room.granted = false;
	}
	rc = ring_try_submit(here->ring, op, a, alen, NULL, 0);
	if (unlikely(rc == -EAGAIN))
		return SEND_AGAIN;
	return likely(!rc) ? CUDA_SUCCESS : lost(rc);
}

bool send_again_slow(CUresult *rc, uint32_t len)
{
	int wait;

	lock_may_wait("room in the ring");
	if (thread.room.len) {
		*rc = ask_room(&thread.room.a, thread.room.head, thread.room.len);
		thread.room.len = 0;
		thread.room.granted = !*rc;
		return !*rc;
	}
	wait = ring_wait_room(here->ring, len);
	if (wait)
		*rc = lost(wait);
	return !wait;
}

CUresult send_request(struct ring_ticket *t, uint16_t op, const void *a, uint32_t alen,
		      const void *b, uint32_t blen)
{
	int rc;

	lock_may_wait("room in the ring");
	TRY(ready());
	while ((rc = ring_request(here->ring, t, op, a, alen, b, blen)) == -EBUSY)
		sched_yield();	/* more waiting threads than slots: one will be free */
	return likely(!rc) ? CUDA_SUCCESS : lost(rc);
}

CUresult send_await(struct ring_ticket *t, void *reply, uint32_t cap)
{
	int32_t status;
	uint32_t len;
	int rc;

	lock_may_wait("an answer");
	rc = ring_await(here->ring, t, &status, reply, cap, &len, -1);
	if (unlikely(rc))
		return lost(rc);
	send_prints();
	if (unlikely(!status && len < cap))
		return CUDA_ERROR_UNKNOWN;
	return status;
}

CUresult send_sync(uint16_t op, const void *a, uint32_t alen, const void *b, uint32_t blen,
		   void *reply, uint32_t cap)
{
	int32_t status;
	uint32_t len;
	int rc;

	lock_may_wait("an answer");
	/* The one request that is answered though it is parked. */
	TRY(op == SV_OP_X_GRAPH_UPDATE ? ready_for(op, a, alen) : ready());
	while ((rc = ring_call(here->ring, op, a, alen, b, blen, &status, reply, cap, &len)) ==
	       -EBUSY)
		sched_yield();
	if (unlikely(rc))
		return lost(rc);
	send_prints();
	if (unlikely(!status && len < cap))
		return CUDA_ERROR_UNKNOWN;
	return status;
}

/* -------------------------------------------------------------- functions for generated stubs */

int sv_per_thread(int on)
{
	int before = thread.per_thread;

	thread.per_thread = on;
	return before;
}

int sv_async(uint16_t op, const void *args, uint32_t len, const void *data, uint64_t data_len)
{
	if (data_len > UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	return send_async(op, args, len, data, data_len);
}

int sv_sync(uint16_t op, const void *args, uint32_t len, const void *data, uint64_t data_len,
	    void *reply, uint32_t reply_len)
{
	if (data_len > UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	return send_sync(op, args, len, data, data_len, reply, reply_len);
}

void *sv_scratch(uint64_t len)
{
	void *p;

	if (len <= thread.scratch_len)
		return thread.scratch;
	if (len > (64u << 20))
		return NULL;
	p = realloc(thread.scratch, len);
	if (!p)
		return NULL;
	thread.scratch = p;
	thread.scratch_len = len;
	return p;
}

int sv_unsupported(const char *name, const char *reason)
{
	static const char *said[LOG_REFUSALS];

	client_log("%s is not supported: %s", name, reason);
	log_refusal(said, name, reason);
	return CUDA_ERROR_NOT_SUPPORTED;
}

int sv_absent(const char *name, const char *reason)
{
	client_log("%s is not supported: %s", name, reason);
	return CUDA_ERROR_NOT_SUPPORTED;
}
