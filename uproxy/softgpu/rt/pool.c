// SPDX-License-Identifier: Apache-2.0
/*
 * pool.c - helper threads for launches: each joins the oldest launch that wants one
 *
 * Helpers are created when first needed, and sleep between launches.  A run is on the list from
 * rt_help() to rt_unhelp(), which waits for its helpers.
 */
#include <sched.h>
#include <signal.h>

#include "rt_i.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, left = PTHREAD_COND_INITIALIZER;
static struct rt_run *runs;		/* lock */
static unsigned int nthreads, nidle, wanted;	/* lock */

unsigned int rt_workers(void)
{
	cpu_set_t set;
	int n;

	pthread_mutex_lock(&lock);
	n = wanted;
	pthread_mutex_unlock(&lock);
	if (n)
		return n;
	CPU_ZERO(&set);
	n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
	return n > 0 ? n : 1;
}

void ptx_set_workers(unsigned int n)
{
	pthread_mutex_lock(&lock);
	wanted = n;
	pthread_mutex_unlock(&lock);
}

static struct rt_run *find_run(void)
{
	struct rt_run *r;

	for (r = runs; r; r = r->next)
		if (r->helpers < r->max_helpers && atomic_load(&r->taken) < r->nblocks &&
		    !atomic_load(&r->abort))
			return r;
	return NULL;
}

static void *helper(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		struct rt_run *r = find_run();

		if (!r) {
			nidle++;
			pthread_cond_wait(&work, &lock);
			nidle--;
			continue;
		}
		r->helpers++;
		pthread_mutex_unlock(&lock);
		rt_worker_run(r);
		pthread_mutex_lock(&lock);
		r->helpers--;
		if (r->max_helpers)	/* it ran out of blocks: no more helpers needed */
			r->max_helpers--;
		pthread_cond_broadcast(&left);
	}
	return NULL;
}

static void spawn(void)
{
	sigset_t all, old;
	pthread_attr_t a;
	pthread_t t;

	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&a);
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&a, 256 << 10);
	if (!pthread_create(&t, &a, helper, NULL))
		nthreads++;
	pthread_attr_destroy(&a);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void rt_help(struct rt_run *r, unsigned int n)
{
	pthread_mutex_lock(&lock);
	r->next = runs;
	runs = r;
	while (nthreads < n && nthreads < 256) {
		unsigned int before = nthreads;

		spawn();
		if (nthreads == before)
			break;
	}
	if (nidle)
		pthread_cond_broadcast(&work);
	pthread_mutex_unlock(&lock);
}

void rt_unhelp(struct rt_run *r)
{
	struct rt_run **p;

	pthread_mutex_lock(&lock);
	r->max_helpers = 0;
	for (p = &runs; *p != r; p = &(*p)->next)
		;
	*p = r->next;
	while (r->helpers)
		pthread_cond_wait(&left, &lock);
	pthread_mutex_unlock(&lock);
}
