/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.h - the answer of a record, from when it begins to be executed
 */
#ifndef ANSWER_H
#define ANSWER_H

#include <pthread.h>

#include "call.h"
#include "stat_i.h"
#include "trace_i.h"

/*
 * The status of a wait that covers a failed operation: the client gets CUDA_ERROR_EXTERNAL_DEVICE, and the
 * context is not broken.
 */
#define COVER_FAILS ((CUresult)(0x10000 | CUDA_ERROR_EXTERNAL_DEVICE))

/* Answers a record with its status and reply, and counts it. Any thread, once for each record. */
void answer_call(struct call *k);

/* For a record that is answered after its struct call has gone. */
struct answer {
	struct sv_session *s;
	uint64_t seq, begin_ns, bytes;
	uint16_t op, cpl;
};
struct answer answer_later(const struct call *k);
void answer_now(const struct answer *a, CUresult status, const void *reply, uint16_t len);

/* Where answer_now() of a session whose log is executed again leaves its status. */
struct replay_answer {
	struct lock lock;
	pthread_cond_t come;
	bool answered;
	CUresult status;
};
/* Waits for the status of a record that returned CALL_LATER. */
CUresult answer_wait(struct replay_answer *r);

/* The call of a record that is to be executed. */
static inline void call_begin(struct call *k, struct sv_session *s, const struct ring_record *rec)
{
	k->c.session = s;
	k->c.driver = &s->hal.drv;
	k->c.data = rec->data;
	k->c.len = rec->len;
	k->c.op = rec->op;
	k->c.reply_len = 0;
	k->c.status = 0;
	k->c.why = NULL;
	k->seq = rec->seq;
	k->cpl = rec->cpl;
	k->begin_ns = trace_on ? now_ns() : 0;
	k->bytes = 0;
	k->lane = 0;
}

#endif
