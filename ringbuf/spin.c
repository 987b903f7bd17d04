// SPDX-License-Identifier: Apache-2.0
/*
 * spin.c - decides how long to spin; memory barriers that one side runs on the other's CPUs
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ring_i.h"

uint64_t ring_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

/* The CPU that runs this thread, + 1; a load where the C library registers rseq. */
static uint32_t ring_cpu(void)
{
	if (__rseq_size) {
		struct rseq *rs = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);

		return load(&rs->cpu_id) + 1;
	}
	return sched_getcpu() + 1;
}

/* ring_show_cpu: stores this end's CPU for the peer's ring_spin_useful(), and returns it. */
uint32_t ring_show_cpu(struct ring *r)
{
	uint32_t *mine = r->client ? &r->ctl->prod_cpu : &r->ctl->cons_cpu;
	uint32_t cpu = ring_cpu();

	if (load(mine) != cpu)
		store(mine, cpu);
	return cpu;
}

/* ring_spin_useful: whether the peer was last seen on another CPU. */
bool ring_spin_useful(struct ring *r)
{
	uint32_t *other = r->client ? &r->ctl->cons_cpu : &r->ctl->prod_cpu;

	return ring_show_cpu(r) != load(other);
}

void ring_spin_init(struct spin *s, uint32_t max)
{
	store(&s->max, max);
	store(&s->ns, max);
}

void ring_spin_adapt(struct spin *s, bool helped)
{
	uint32_t ns = load(&s->ns), max = load(&s->max);

	ns = helped ? ns * 2 : ns / 2;
	if (ns < SPIN_MIN_NS)
		ns = SPIN_MIN_NS;
	store(&s->ns, ns < max ? ns : max);
}

static int membarrier(int cmd)
{
	return syscall(SYS_membarrier, cmd, 0, 0) ? -errno : 0;
}

/* ring_membarrier_global: on all CPUs that run registered processes; reg: register this one. */
int ring_membarrier_global(bool reg)
{
	return membarrier(reg ? MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED :
				MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

/*
 * ring_membarrier_rseq: abort the restartable sequences of this process's other threads. Where a
 * restore has lost the registration: register again and retry.
 */
int ring_membarrier_rseq(bool reg)
{
	int rc;

	if (reg)
		return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ);
	rc = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ);
	if (rc == -EPERM && !ring_membarrier_rseq(true))
		rc = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ);
	return rc;
}
