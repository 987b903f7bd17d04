// SPDX-License-Identifier: Apache-2.0
/*
 * worker.c - worker threads for calls that may take long: loading, compiling, destroying, mapping
 *
 * A thread is started when none is idle, and ends after IDLE_SECONDS without a job. Jobs begin in
 * order. A client that needs a job to end before the next one begins waits for its answer.
 *
 * Records that load something (RECORD_ORDERED) also end in order, as a replay executes them: each has
 * a ticket, and its handler runs when it is that ticket's turn. Since jobs begin in order, the turn
 * is always with one that has begun.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "answer.h"
#include "context.h"
#include "fail.h"
#include "records.h"
#include "worker.h"

#define WORKERS_MAX	16
#define IDLE_SECONDS	5

struct job {
	struct job *next;
	void (*fn)(void *arg);
	void *arg;
};

static struct job *first, **last = &first;
static unsigned int threads, idle, queued;
static struct lock lock = LOCK_INIT(PROXY_WORKERS);
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;

static struct job *next_job(void)
{
	struct timespec until;
	struct job *j;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += IDLE_SECONDS;
	idle++;
	while (!first)
		if (lock_wait_until(&lock, &more, &until) && !first)
			break;
	idle--;
	j = first;
	if (j) {
		first = j->next;
		if (!first)
			last = &first;
		queued--;
	}
	return j;
}

static void *work(void *arg)
{
	struct job *j;

	lock_take(&lock);
	while ((j = next_job())) {
		lock_drop(&lock);
		j->fn(j->arg);
		free(j);
		lock_take(&lock);
	}
	threads--;
	lock_drop(&lock);
	return arg;
}

int worker_run(void (*fn)(void *arg), void *arg)
{
	struct job *j = malloc(sizeof(*j));
	pthread_attr_t a;
	pthread_t t;
	int rc = 0;

	if (!j)
		return -ENOMEM;
	*j = (struct job){ .fn = fn, .arg = arg };
	lock_take(&lock);
	*last = j;
	last = &j->next;
	if (++queued > idle && threads < WORKERS_MAX) {
		pthread_attr_init(&a);
		pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&a, 8 << 20);
		rc = -pthread_create(&t, &a, work, NULL);
		pthread_attr_destroy(&a);
		threads += !rc;
	}
	if (rc && !threads) {		/* nothing can run the job, the only one queued */
		first = NULL;
		last = &first;
		queued--;
		lock_drop(&lock);
		free(j);
		return rc;
	}
	pthread_cond_signal(&more);
	lock_drop(&lock);
	return 0;
}

bool worker_idle(void)
{
	bool is;

	lock_take(&lock);
	is = !first && idle == threads;
	lock_drop(&lock);
	return is;
}

/* ------------------------------------------------------------------------------ records */

struct errand {
	struct call k;
	const struct record *what;
	uint64_t ticket;	/* 0: it has none, or its turn is over */
	uint64_t data[];
};

static uint64_t tickets;	/* given out; consumer */
static uint64_t turns;		/* that are over; lock */
static pthread_cond_t turn_over = PTHREAD_COND_INITIALIZER;
static __thread struct errand *running;

static void await_turn(const struct errand *e)
{
	lock_take(&lock);
	while (e->ticket && turns + 1 != e->ticket)
		lock_wait(&lock, &turn_over);
	lock_drop(&lock);
}

void worker_end_turn(void)
{
	if (!running || !running->ticket)
		return;
	running->ticket = 0;
	lock_take(&lock);
	turns++;
	pthread_cond_broadcast(&turn_over);
	lock_drop(&lock);
}

static void run_record(void *arg)
{
	struct errand *e = arg;
	struct call *k = &e->k;
	int rc;

	running = e;
	await_turn(e);
	sv_enter_any(k->c.session);
	rc = record_run(e->what, k);
	worker_end_turn();
	running = NULL;
	if (rc < 0)
		session_fail(k->c.session, rc, k->c.why, k->c.op, k->seq);
	else if (!rc)
		answer_call(k);
	free(e);
}

int worker_call(const struct record *r, const struct call *k)
{
	struct errand *e = malloc(sizeof(*e) + ((k->c.len + 7) & ~7u));
	int rc;

	if (!e)
		return -ENOMEM;
	e->k = *k;
	e->what = r;
	e->k.lane = 2;
	e->ticket = r->flags & RECORD_ORDERED ? ++tickets : 0;
	memcpy(e->data, k->c.data, k->c.len);
	e->k.c.data = e->data;
	rc = worker_run(run_record, e);
	if (rc) {
		tickets -= e->ticket != 0;
		free(e);
	}
	return rc;
}
