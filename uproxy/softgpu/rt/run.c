// SPDX-License-Identifier: Apache-2.0
/*
 * run.c - executes a launch: blocks on workers, warps on fibers, barriers, faults.
 *
 * A worker's main context switches to a fiber and gets control back when the warp has ended, waits
 * at a barrier, or yields in a loop that may wait for another thread.  When all warps of the
 * worker's blocks only yield, it starts more blocks beside them, up to ptx_launch.resident (all of
 * them in a cooperative launch).  A loop that waits may contain a barrier: more blocks are started,
 * too, when blocks of a kernel that may wait pass many barriers and no warp ends.
 *
 * Faults.  Bad addresses are found by checks, or by SIGSEGV/SIGBUS inside a range of the launch;
 * both abandon the fiber and end the launch.  Other signals are passed to the previous handler.
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "rt_i.h"

enum {
	STACK = 512 << 10,		/* a warp of a kernel without real calls */
	STACK_CALLS = 8 << 20,
	STACK_KEPT = 64 << 10,
	GUARD = 64 << 10,
	BUDGET = 1 << 16,		/* back edges between looks at the stop flag */
	BUDGET_SPIN = 512,
	IDLE_ROUNDS = 8,		/* before more blocks are started */
	STALE_ROUNDS = 64,		/* per block, if they pass barriers meanwhile */
};

static __thread struct rt_worker *rt_self;

/* void rt_switch(void **save, void *to): callee-saved registers on the old stack. */
__asm__(
"	.text\n"
"	.globl rt_switch\n"
"	.hidden rt_switch\n"
"	.type rt_switch, @function\n"
"rt_switch:\n"
"	pushq %rbp\n"
"	pushq %rbx\n"
"	pushq %r12\n"
"	pushq %r13\n"
"	pushq %r14\n"
"	pushq %r15\n"
"	movq %rsp, (%rdi)\n"
"	movq %rsi, %rsp\n"
"	popq %r15\n"
"	popq %r14\n"
"	popq %r13\n"
"	popq %r12\n"
"	popq %rbx\n"
"	popq %rbp\n"
"	ret\n"
"	.size rt_switch, . - rt_switch\n"
);

/* ---- stacks: kept for reuse ---- */

struct stack_node {
	struct stack_node *next;
};
static pthread_mutex_t stack_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stack_node *stack_pool[2];

static char *stack_get(size_t size)
{
	int k = size != STACK;
	struct stack_node *n;
	char *p;

	pthread_mutex_lock(&stack_lock);
	n = stack_pool[k];
	if (n)
		stack_pool[k] = n->next;
	pthread_mutex_unlock(&stack_lock);
	if (n)
		return (char *)n + sizeof(*n) - size;
	p = mmap(NULL, size + GUARD, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	if (mprotect(p, GUARD, PROT_NONE)) {
		munmap(p, size + GUARD);
		return NULL;
	}
	return p + GUARD;
}

static void stack_put(char *stack, size_t size)
{
	struct stack_node *n = (struct stack_node *)(stack + size - sizeof(*n));
	int k = size != STACK;

	if (!stack)
		return;
	if (k)		/* releases the pages of deep recursion */
		madvise(stack, size - STACK_KEPT, MADV_DONTNEED);
	pthread_mutex_lock(&stack_lock);
	n->next = stack_pool[k];
	stack_pool[k] = n;
	pthread_mutex_unlock(&stack_lock);
}

/* ---- faults ---- */

void rt_record(struct rt_run *r, enum ptx_fault_kind kind, uint64_t addr, struct rt_warp *w,
	       int lane, const char *text)
{
	int none = 0, i;

	pthread_mutex_lock(&r->lock);
	if (atomic_compare_exchange_strong(&r->abort, &none, 1)) {
		r->fault.kind = kind;
		r->fault.addr = addr;
		for (i = 0; w && i < 3; i++) {
			r->fault.block[i] = w->ctaid[i];
			r->fault.thread[i] = w->tid[i][lane & 31];
		}
		if (text)
			snprintf(r->fault.text, sizeof(r->fault.text), "%s", text);
	}
	pthread_mutex_unlock(&r->lock);
}

static void leave_fiber(struct rt_worker *wk) __attribute__((noreturn));

static void leave_fiber(struct rt_worker *wk)
{
	void *dead;

	wk->aborted = true;
	wk->in_kernel = false;
	rt_switch(&dead, wk->main_sp);
	abort();
}

void rt_fault(struct rt_warp *w, enum ptx_fault_kind kind, uint64_t addr, int lane,
	      const char *text)
{
	struct rt_worker *wk = w->block->worker;

	rt_record(wk->run, kind, addr, w, lane, text);
	leave_fiber(wk);
}

static struct sigaction old_segv, old_bus;

static void chain(struct sigaction *old, int sig, siginfo_t *si, void *uc)
{
	if (old->sa_flags & SA_SIGINFO && old->sa_sigaction) {
		old->sa_sigaction(sig, si, uc);
	} else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) {
		old->sa_handler(sig);
	} else {		/* the default action: the fault recurs and kills */
		struct sigaction dfl = { .sa_handler = SIG_DFL };

		sigaction(sig, &dfl, NULL);
	}
}

static bool in_some(const struct ptx_range *r, unsigned int n, uint64_t a)
{
	unsigned int i;

	for (i = 0; i < n; i++)
		if (a >= r[i].lo && a < r[i].hi)
			return true;
	return false;
}

/* A call of ptx_try() on this thread. */
struct attempt {
	sigjmp_buf env;
	const struct ptx_range *ranges;
	unsigned int nranges;
};
static __thread struct attempt *attempt;

static void on_fault(int sig, siginfo_t *si, void *uc)
{
	struct rt_worker *wk = rt_self;
	uint64_t a = (uint64_t)si->si_addr;
	uint64_t ip = ((ucontext_t *)uc)->uc_mcontext.gregs[REG_RIP];

	if (wk && wk->in_kernel && si->si_code > 0) {
		const struct ptx_launch *l = wk->run->l;
		const struct ptx_kernel *k = wk->run->k;

		if (wk->fiber && a < (uint64_t)wk->fiber->stack &&
		    a >= (uint64_t)wk->fiber->stack - GUARD) {
			rt_record(wk->run, PTX_STACK, 0, wk->cur, 0, NULL);
			leave_fiber(wk);
		}
		/* a fault in compiled code is always the kernel's, whatever the address */
		if (in_some(l->ranges, l->nranges, a) || ip - (uint64_t)k->code < k->code_size) {
			rt_record(wk->run, PTX_ILLEGAL_ADDRESS, a, wk->cur,
			       wk->cur && wk->cur->alive ? __builtin_ctz(wk->cur->alive) : 0, NULL);
			leave_fiber(wk);
		}
	} else if (attempt && si->si_code > 0 && in_some(attempt->ranges, attempt->nranges, a)) {
		siglongjmp(attempt->env, 1);
	}
	chain(sig == SIGSEGV ? &old_segv : &old_bus, sig, si, uc);
}

static void install_handlers(void)
{
	struct sigaction sa = { .sa_sigaction = on_fault,
				.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };

	sigemptyset(&sa.sa_mask);
	sigaction(SIGSEGV, &sa, &old_segv);
	sigaction(SIGBUS, &sa, &old_bus);
}

static pthread_once_t handlers_once = PTHREAD_ONCE_INIT;
static pthread_key_t altstack_key;
static __thread bool has_altstack;

static void free_altstack(void *p)
{
	stack_t off = { .ss_flags = SS_DISABLE };

	sigaltstack(&off, NULL);
	free(p);
}

static void init_once(void)
{
	pthread_key_create(&altstack_key, free_altstack);
	install_handlers();
}

/* A fiber's stack overflows into a guard page, so the handler needs a stack of its own. */
static void thread_init(void)
{
	stack_t ss = { 0 };

	pthread_once(&handlers_once, init_once);
	if (has_altstack)
		return;
	has_altstack = true;
	if (!sigaltstack(NULL, &ss) && !(ss.ss_flags & SS_DISABLE))
		return;
	ss.ss_size = 65536;
	ss.ss_sp = malloc(ss.ss_size);
	ss.ss_flags = 0;
	if (ss.ss_sp && !sigaltstack(&ss, NULL))
		pthread_setspecific(altstack_key, ss.ss_sp);
}

int ptx_try(void (*fn)(void *arg), void *arg, const struct ptx_range *ranges, unsigned int n)
{
	struct attempt at = { .ranges = ranges, .nranges = n }, *outer = attempt;
	int ret = 0;

	pthread_once(&handlers_once, init_once);
	if (!sigsetjmp(at.env, 0)) {
		attempt = &at;
		fn(arg);
	} else {
		ret = -EFAULT;
	}
	attempt = outer;
	return ret;
}

/* ---- fibers ---- */

void rt_to_main(struct rt_worker *wk)
{
	struct rt_fiber *f = wk->fiber;

	wk->in_kernel = false;
	rt_switch(&f->sp, wk->main_sp);
	wk->in_kernel = true;
}

static bool runnable(const struct rt_fiber *f)
{
	return f->state == RT_READY || (f->state == RT_WAITING && *f->barrier != f->phases);
}

/* Switches directly to the warp that rt_round() would resume next, if it has been started. */
static void to_next(struct rt_worker *wk, struct rt_block *b)
{
	struct rt_fiber *f = wk->fiber, *g = f;

	while (++g < b->fiber + b->nwarps && g->started)
		if (runnable(g)) {
			g->state = RT_READY;
			wk->fiber = g;
			wk->cur = &b->warp[g - b->fiber];
			rt_switch(&f->sp, g->sp);
			return;
		}
	rt_to_main(wk);
}

static void run_warp(struct rt_worker *wk, struct rt_warp *w)
{
	wk->run->entry(w, w->alive, 0);
	w->alive = 0;
}

static void run_blocks(struct rt_worker *wk);

/* A fiber's only function: runs one warp, or without fibers all blocks of the worker. */
static void fiber_main(void)
{
	struct rt_worker *wk = rt_self;

	for (;;) {
		wk->in_kernel = true;
		if (wk->run->fibers)
			run_warp(wk, wk->cur);
		else
			run_blocks(wk);
		wk->fiber->state = RT_DONE;
		rt_to_main(wk);
	}
}

/* @n offsets the stack: the frames of a block's warps would compete for the same cache sets. */
static int fiber_start(struct rt_fiber *f, size_t size, uint32_t n)
{
	void **sp;

	if (!f->stack) {
		f->stack = stack_get(size);
		if (!f->stack)
			return -ENOMEM;
		f->stack_size = size;
	}
	sp = (void **)((uintptr_t)(f->stack + size - 64 - n % 16 * 576) & ~63ul);
	*--sp = NULL;			/* return address of fiber_main: none */
	*--sp = (void *)fiber_main;
	sp -= 6;
	memset(sp, 0, 6 * sizeof(*sp));
	f->sp = sp;
	f->started = true;
	f->state = RT_READY;
	return 0;
}

static void resume(struct rt_worker *wk, struct rt_fiber *f, struct rt_warp *w)
{
	wk->fiber = f;
	wk->cur = w;
	rt_self = wk;
	rt_switch(&wk->main_sp, f->sp);
	wk->in_kernel = false;
}

/* ---- called by compiled code ---- */

static void rt_tick(struct rt_warp *w)
{
	struct rt_run *r = w->block->worker->run;

	w->budget = r->spins ? BUDGET_SPIN : BUDGET;
	if (w->block->has_turn)
		rt_turn_end(w->block, true);
	if (r->l->stop && __atomic_load_n(r->l->stop, __ATOMIC_RELAXED))
		rt_fault(w, PTX_STOPPED, 0, 0, NULL);
	if (atomic_load_explicit(&r->abort, memory_order_relaxed))
		leave_fiber(w->block->worker);
}

static void rt_yield(struct rt_warp *w)
{
	rt_tick(w);
	if (w->block->worker->run->fibers)
		rt_to_main(w->block->worker);
}

/* nanosleep: the next back edge lets other lanes of the warp run, too. */
static void rt_sleep(struct rt_warp *w)
{
	rt_yield(w);
	w->budget = 0;
}

static void rt_trap(struct rt_warp *w, uint32_t mask, uint32_t kind)
{
	int lane = __builtin_ctz(mask | 1u << 31);

	rt_fault(w, kind == RT_TRAP_PC ? PTX_INVALID_PC : kind == RT_TRAP_INSN ? PTX_ILLEGAL_INSN :
		 PTX_TRAP, kind == RT_TRAP_PC ? w->addr[0] : 0, lane, NULL);
}

/* ---- barriers ---- */

static uint32_t live_threads(const struct rt_block *b)
{
	uint32_t i, n = 0;

	for (i = 0; i < b->nwarps; i++) {
		uint32_t a = b->warp[i].alive;

		n += a == ~0u ? 32 : __builtin_popcount(a);
	}
	return n;
}

static bool bar_complete(struct rt_block *b, struct rt_barrier *bar)
{
	if (!bar->arrived)
		return false;
	if (bar->expected)
		return bar->arrived >= bar->expected;
	if (bar->warps + b->ndone < b->nwarps)
		return false;
	return bar->arrived >= live_threads(b);
}

static void bar_release(struct rt_block *b, struct rt_barrier *bar)
{
	memcpy(bar->result, bar->acc, sizeof(bar->acc));
	bar->acc[0] = 0;
	bar->acc[1] = 1;
	bar->acc[2] = 0;
	bar->arrived = bar->warps = bar->expected = 0;
	bar->gen++;
	b->worker->progress = true;
	if (b->worker->run->by_turns)
		rt_turn_barrier(b);
}

/*
 * Called by compiled code before the first write after a barrier: lets the other warps of the block
 * reach their first write.  Each warp that the barrier released runs once in this round, or in the
 * next before this warp, and stops here, too.  So reads before a warp's own first write do not see
 * other warps' writes.
 */
static void rt_late(struct rt_warp *w, uint32_t mask)
{
	w->late &= ~mask;
	to_next(w->block->worker, w->block);
}

static struct rt_barrier *bar_arrive(struct rt_warp *w, uint32_t mask, uint32_t id, uint32_t count)
{
	struct rt_barrier *bar;

	if (id >= RT_BARRIERS || count % 32)
		rt_fault(w, PTX_ILLEGAL_INSN, 0, __builtin_ctz(mask | 1u << 31), "barrier operands");
	bar = &w->block->bar[id];
	bar->expected = count;
	bar->arrived += mask == ~0u || (count && mask == w->alive) ? 32 : __builtin_popcount(mask);
	bar->warps++;
	return bar;
}

/* Until the barrier, whose phases @gen counts, is in another phase than the one that began with @at. */
static void wait_at(struct rt_warp *w, const uint32_t *gen, uint32_t at)
{
	struct rt_worker *wk = w->block->worker;

	while (*gen == at) {
		wk->fiber->barrier = gen;
		wk->fiber->phases = at;
		wk->fiber->state = RT_WAITING;
		to_next(wk, w->block);
	}
}

static void bar_wait(struct rt_warp *w, uint32_t mask, struct rt_barrier *bar)
{
	struct rt_worker *wk = w->block->worker;
	uint32_t gen = bar->gen;

	w->late = wk->run->late_stores ? mask : 0;
	if (bar_complete(w->block, bar)) {
		bar_release(w->block, bar);
		if (wk->run->by_turns)
			rt_turn_look(w->block);
		return;
	}
	wait_at(w, &bar->gen, gen);
}

static void rt_bar(struct rt_warp *w, uint32_t mask, uint32_t id, uint32_t count)
{
	bar_wait(w, mask, bar_arrive(w, mask, id, count));
}

static void rt_bar_arrive(struct rt_warp *w, uint32_t mask, uint32_t id, uint32_t count)
{
	struct rt_barrier *bar = bar_arrive(w, mask, id, count);

	if (bar_complete(w->block, bar))
		bar_release(w->block, bar);
}

static uint32_t rt_bar_red(struct rt_warp *w, uint32_t mask, uint32_t id, uint32_t count,
			   uint32_t pred, uint32_t op)
{
	struct rt_barrier *bar = bar_arrive(w, mask, id, count);

	bar->acc[0] += __builtin_popcount(pred);
	bar->acc[1] &= pred == mask;
	bar->acc[2] |= pred != 0;
	bar_wait(w, mask, bar);
	return bar->result[op];
}

/* ---- the barrier of a cluster ---- */

/* Whether all threads of the cluster have arrived that have not exited.  The last ones run last. */
static bool cluster_complete(const struct rt_cluster *c)
{
	uint32_t i, k;

	for (i = c->arrived ? c->n : 0; i-- > 0;)
		for (k = c->block[i]->nwarps; k-- > 0;) {
			const struct rt_warp *w = &c->block[i]->warp[k];

			if (w->alive & ~w->at_cluster)
				return false;
		}
	return c->arrived;
}

static void cluster_try_release(struct rt_block *b)
{
	struct rt_cluster *c = b->cluster;
	uint32_t i, k;

	if (!cluster_complete(c))
		return;
	for (i = 0; i < c->n; i++)
		for (k = 0; k < c->block[i]->nwarps; k++)
			c->block[i]->warp[k].at_cluster = 0;
	c->arrived = false;
	c->gen++;
	b->worker->progress = true;
	if (b->worker->run->by_turns)
		rt_turn_barrier(b);
}

static void rt_cluster_arrive(struct rt_warp *w, uint32_t mask)
{
	w->at_cluster |= mask;
	w->block->cluster->arrived = true;
	cluster_try_release(w->block);
}

/* A lane waits for the phase in which it has arrived: lanes of a warp may be a phase apart. */
static void rt_cluster_wait(struct rt_warp *w, uint32_t mask)
{
	struct rt_cluster *c = w->block->cluster;
	struct rt_worker *wk = w->block->worker;

	w->late = wk->run->late_stores ? mask : 0;
	cluster_try_release(w->block);		/* lanes may have exited since the last arrival */
	while (w->at_cluster & mask)
		wait_at(w, &c->gen, c->gen);
	if (wk->run->by_turns)
		rt_turn_look(w->block);
}

/* ---- blocks ---- */

/*
 * Shared and local memory of a block, all zero: up to KEPT_SIZE from regions that are kept, since most
 * kernels want little and a new mapping with its page faults costs more than the kernel.
 */
struct kept {
	struct kept *next;
	size_t used;		/* bytes that may be other than zero */
};
enum {
	KEPT_SIZE = 64 << 10,
	KEPT_MOST = 64,
};
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *kept_regions;	/* kept_lock */
static unsigned int nkept;		/* kept_lock */

static int map(uint8_t **p, size_t size)
{
	struct kept *k = NULL;
	void *m;

	if (*p || !size)
		return 0;
	if (size <= KEPT_SIZE) {
		pthread_mutex_lock(&kept_lock);
		k = kept_regions;
		if (k) {
			kept_regions = k->next;
			nkept--;
		}
		pthread_mutex_unlock(&kept_lock);
		if (k) {
			/* A kernel that reads behind its own finds nothing of another's. */
			*p = memset(k, 0, size > k->used ? size : k->used);
			return 0;
		}
	}
	m = mmap(NULL, size <= KEPT_SIZE ? KEPT_SIZE : size, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED)
		return -ENOMEM;
	*p = m;
	return 0;
}

static void unmap(uint8_t *p, size_t size)
{
	struct kept *k = (void *)p;
	bool keep = false;

	if (!p)
		return;
	if (size <= KEPT_SIZE) {
		pthread_mutex_lock(&kept_lock);
		keep = nkept < KEPT_MOST;
		if (keep) {
			k->next = kept_regions;
			k->used = size > sizeof(*k) ? size : sizeof(*k);
			kept_regions = k;
			nkept++;
		}
		pthread_mutex_unlock(&kept_lock);
	}
	if (!keep)
		munmap(p, size <= KEPT_SIZE ? KEPT_SIZE : size);
}

static void warp_init(struct rt_worker *wk, struct rt_block *b, uint32_t i)
{
	struct rt_run *r = wk->run;
	const struct ptx_launch *l = r->l;
	struct rt_warp *w = &b->warp[i];
	uint32_t k, lane;

	for (k = 0; k < 3; k++) {
		w->ntid[k] = l->block[k];
		w->nctaid[k] = l->grid[k];
		w->cluster[k] = r->cluster[k];
	}
	w->explicit_cluster = l->cluster[0] || r->k->entry->cluster[0];
	for (lane = 0; lane < 32; lane++) {
		uint32_t t = i * 32 + lane;

		w->tid[0][lane] = t % l->block[0];
		w->tid[1][lane] = t / l->block[0] % l->block[1];
		w->tid[2][lane] = t / l->block[0] / l->block[1];
	}
	w->warpid = i;
	w->nwarpid = b->nwarps;
	w->nsmid = l->num_sms ? l->num_sms : 16;
	w->gridid = l->grid_id;
	w->envreg = l->coop_workspace >> 32 | l->coop_workspace << 32;	/* %envreg1 is the high half */
	w->dyn_shared = l->dyn_shared;
	w->total_shared = r->shared_total;
	w->shared = b->shared;
	w->shared_size = b->shared_size;
	w->local = b->local + (size_t)i * 32 * r->local_stride;
	w->local_stride = r->local_stride;
	w->params = r->params;
	w->param_size = l->params_len;
	w->vars = l->var_addr;
	if (l->nranges && l->ranges[0].hi - l->ranges[0].lo > 8192) {
		w->lo = l->ranges[0].lo;
		w->span = l->ranges[0].hi - l->ranges[0].lo - 4096;
	}
	w->block = b;
}

struct rt_block *rt_block_new(struct rt_worker *wk)
{
	struct rt_run *r = wk->run;
	struct rt_block *b = calloc(1, sizeof(*b));
	uint32_t i;

	if (!b)
		return NULL;
	b->worker = wk;
	b->own.n = 1;
	b->own.block[0] = b;
	b->cluster = &b->own;
	b->nwarps = r->nwarps;
	b->shared_size = r->shared_size;
	b->local_size = (size_t)r->nwarps * 32 * r->local_stride;
	b->warp = aligned_alloc(64, (size_t)r->nwarps * ((sizeof(*b->warp) + 63) & ~63ul));
	b->fiber = calloc(r->nwarps, sizeof(*b->fiber));
	/* the slack behind it, which loads may read, is never written */
	if (!b->warp || !b->fiber ||
	    map(&b->shared, b->shared_size ? b->shared_size + RT_SHARED_SLACK : 0) ||
	    map(&b->local, b->local_size)) {
		unmap(b->shared, b->shared_size + RT_SHARED_SLACK);
		free(b->warp);
		free(b->fiber);
		free(b);
		return NULL;
	}
	memset(b->warp, 0, (size_t)r->nwarps * sizeof(*b->warp));
	for (i = 0; i < b->nwarps; i++)
		warp_init(wk, b, i);
	b->next = wk->blocks;
	wk->blocks = b;
	return b;
}

static void block_free(struct rt_block *b, size_t stack_size)
{
	uint32_t i;

	for (i = 0; i < b->nwarps; i++)
		if (b->fiber[i].stack)
			stack_put(b->fiber[i].stack, stack_size);
	unmap(b->shared, b->shared_size + RT_SHARED_SLACK);
	unmap(b->local, b->local_size);
	free(b->warp);
	free(b->fiber);
	free(b);
}

/* Zeroes shared and local memory, so that reads of unwritten memory are reproducible. */
void rt_block_init(struct rt_worker *wk, struct rt_block *b, uint64_t index)
{
	struct rt_run *r = wk->run;
	const struct ptx_launch *l = r->l;
	bool reused = b->index != UINT64_MAX && b->ndone;
	uint32_t at[3] = { index, 0, 0 }, smid = index % b->warp[0].nsmid, i;

	if (reused) {
		if (b->shared_size)
			memset(b->shared, 0, b->shared_size);
		if (b->local_size && b->local_size <= 1 << 20)
			memset(b->local, 0, b->local_size);
		else if (b->local_size)
			madvise(b->local, b->local_size, MADV_DONTNEED);
	}
	if (index >= l->grid[0]) {
		at[0] = index % l->grid[0];
		at[1] = index / l->grid[0] % l->grid[1];
		at[2] = index / l->grid[0] / l->grid[1];
	}
	b->index = index;
	b->ndone = 0;
	b->active = true;
	b->own.arrived = false;
	if (r->fibers) {
		memset(b->bar, 0, sizeof(b->bar));
		for (i = 0; i < RT_BARRIERS; i++)
			b->bar[i].acc[1] = 1;
	}
	for (i = 0; i < b->nwarps; i++) {
		struct rt_warp *w = &b->warp[i];
		uint32_t left = r->nthreads - i * 32;

		memcpy(w->ctaid, at, sizeof(at));	/* divisions take longer than a small warp */
		w->smid = smid;
		w->alive = left >= 32 ? ~0u : (1u << left) - 1;
		w->budget = r->spins ? BUDGET_SPIN : BUDGET;
		w->late = 0;
		w->at_cluster = 0;
		if (r->fibers) {
			b->fiber[i].started = false;
			b->fiber[i].state = RT_READY;
		}
	}
}

/* Takes run->share clusters at once, since a small block takes less time than a fetch_add. */
static bool take_share(struct rt_worker *wk)
{
	struct rt_run *r = wk->run;

	wk->next = atomic_fetch_add(&r->taken, r->share);
	wk->end = wk->next + r->share;
	if (wk->next >= r->nclusters) {
		atomic_store(&r->taken, r->nclusters);
		wk->next = wk->end = 0;
		return false;
	}
	if (wk->end > r->nclusters)
		wk->end = r->nclusters;
	return true;
}

/* The first block of a new cluster, or NULL. */
static struct rt_block *cluster_new(struct rt_worker *wk)
{
	struct rt_block *block[RT_MAX_CLUSTER], *first;
	uint32_t n = wk->run->cluster_size, i;

	for (i = n; i-- > 0;) {		/* rounds begin with the newest block */
		block[i] = rt_block_new(wk);
		if (!block[i])
			return NULL;
		block[i]->rank = i;
	}
	first = block[0];
	first->own.n = n;
	for (i = 0; i < n; i++) {
		first->own.block[i] = block[i];
		block[i]->cluster = &first->own;
	}
	return first;
}

static bool cluster_active(const struct rt_cluster *c)
{
	uint32_t i;

	for (i = 0; i < c->n; i++)
		if (c->block[i]->active)
			return true;
	return false;
}

/* The grid's number of block @rank of cluster @index. */
static uint64_t block_of(const struct rt_run *r, uint64_t index, uint32_t rank)
{
	const uint32_t *grid = r->l->grid, *size = r->cluster;
	uint64_t at = 0, step = 1;
	int i;

	if (r->cluster_size == 1)
		return index;
	for (i = 0; i < 3; i++) {
		at += step * (index % (grid[i] / size[i]) * size[i] + rank % size[i]);
		index /= grid[i] / size[i];
		rank /= size[i];
		step *= grid[i];
	}
	return at;
}

/* Takes the next cluster into free blocks.  False: none left, or no memory. */
static bool take_cluster(struct rt_worker *wk)
{
	struct rt_run *r = wk->run;
	struct rt_block *b;
	uint32_t i;

	if (wk->next == wk->end && !take_share(wk))
		return false;
	for (b = wk->blocks; b && (b->rank || cluster_active(&b->own)); b = b->next)
		;
	if (!b)
		b = cluster_new(wk);
	if (!b) {
		rt_record(r, PTX_NOMEM, 0, NULL, 0, NULL);
		return false;
	}
	for (i = 0; i < b->own.n; i++)
		rt_block_init(wk, b->own.block[i], block_of(r, wk->next, i));
	wk->next++;
	return true;
}

/* ---- running without fibers ---- */

/* Runs on the worker's only fiber: a switch for each warp would take longer than a small warp. */
static void run_blocks(struct rt_worker *wk)
{
	struct rt_run *r = wk->run;
	uint32_t i;

	while (!atomic_load(&r->abort) && take_cluster(wk)) {
		struct rt_block *b = wk->blocks;

		for (i = 0; i < b->nwarps; i++) {
			wk->cur = &b->warp[i];
			run_warp(wk, wk->cur);
		}
		b->ndone = b->nwarps;
		b->active = false;
		if (r->l->stop && __atomic_load_n(r->l->stop, __ATOMIC_RELAXED))
			rt_record(r, PTX_STOPPED, 0, NULL, 0, NULL);
	}
}

static void run_simple(struct rt_worker *wk)
{
	if (fiber_start(&wk->one, wk->run->stack_size, 0))
		rt_record(wk->run, PTX_NOMEM, 0, NULL, 0, NULL);
	else
		resume(wk, &wk->one, NULL);
}

/* ---- running with fibers ---- */

static void warp_done(struct rt_block *b)
{
	uint32_t i;

	b->ndone++;
	b->worker->progress = true;
	b->worker->stale = 0;
	for (i = 0; i < RT_BARRIERS; i++)	/* waiting warps no longer wait for this one */
		if (b->bar[i].arrived && bar_complete(b, &b->bar[i]))
			bar_release(b, &b->bar[i]);
	cluster_try_release(b);
	if (b->ndone == b->nwarps)
		b->active = false;
}

/*
 * Runs every warp of the block once, until it waits at a barrier or yields.  A block that has
 * waited for its turn resumes at the warp that did.  Returns whether a warp could run.
 */
bool rt_round(struct rt_worker *wk, struct rt_block *b)
{
	struct rt_run *r = wk->run;
	bool any = false;
	uint32_t i;

	for (i = b->paused ? b->at : 0; i < b->nwarps; i++) {
		struct rt_fiber *f = &b->fiber[i];

		if (f->state == RT_DONE || !runnable(f))
			continue;
		if (!f->started && fiber_start(f, r->stack_size, i)) {
			rt_record(r, PTX_NOMEM, 0, NULL, 0, NULL);
			wk->aborted = true;
			return false;
		}
		any = true;
		b->paused = false;
		f->state = RT_READY;
		resume(wk, f, &b->warp[i]);
		if (wk->aborted)
			return true;
		i = wk->fiber - b->fiber;	/* a later one: see to_next() */
		b->at = i;
		if (b->paused)
			return true;
		if (wk->fiber->state == RT_DONE)
			warp_done(b);
	}
	return any;
}

static void run_fibers(struct rt_worker *wk)
{
	struct rt_run *r = wk->run;
	uint64_t limit = r->l->cooperative ? r->nblocks : r->l->resident ? r->l->resident : 64;
	unsigned int idle = 0, active = 0, more;
	struct rt_block *b;
	bool any, left = true;

	while (!wk->aborted && !atomic_load(&r->abort)) {
		if (r->l->stop && __atomic_load_n(r->l->stop, __ATOMIC_RELAXED)) {
			rt_record(r, PTX_STOPPED, 0, NULL, 0, NULL);
			break;
		}
		more = !active;
		if (idle >= IDLE_ROUNDS || (r->spins && wk->stale >= STALE_ROUNDS * active))
			more = 1 + active / 4;
		for (; left && more && active < limit; more--) {
			left = take_cluster(wk);
			active += left ? r->cluster_size : 0;
			idle = wk->stale = 0;
		}
		wk->progress = any = false;
		active = 0;
		for (b = wk->blocks; b && !wk->aborted; b = b->next)
			if (b->active) {
				any |= rt_round(wk, b);
				active += b->active;
			}
		if (wk->aborted || (!active && !left))
			break;
		if (!any && active) {
			if (left && active < limit) {	/* may need another block */
				idle = IDLE_ROUNDS;
				continue;
			}
			for (b = wk->blocks; b && !b->active; b = b->next)
				;
			rt_record(r, PTX_DEADLOCK, 0, b ? &b->warp[0] : NULL, 0,
			       "threads wait at a barrier that no other thread can reach");
			break;
		}
		idle = wk->progress ? 0 : idle + 1;
		wk->stale++;
		if (idle > 64 && !(idle & 63))
			sched_yield();
	}
}

void rt_worker_run(struct rt_run *r)
{
	struct rt_worker wk = { .run = r }, *outer = rt_self;

	thread_init();
	rt_self = &wk;
	if (r->by_turns)
		rt_turns_run(&wk);
	else if (r->fibers)
		run_fibers(&wk);
	else
		run_simple(&wk);
	rt_self = outer;
	while (wk.blocks) {
		struct rt_block *b = wk.blocks;

		wk.blocks = b->next;
		block_free(b, r->stack_size);
	}
	stack_put(wk.one.stack, r->stack_size);
	_mm_setcsr(0x1f80);
}

/* ---- a launch ---- */

static int refuse(struct ptx_fault *f, const char *text)
{
	snprintf(f->text, sizeof(f->text), "%s", text);
	return -EINVAL;
}

static int check_launch(const struct ptx_kernel *k, const struct ptx_launch *l,
			struct ptx_fault *f)
{
	uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2], max = 1;
	const struct ptx_entry_info *e = k->entry;
	int i;

	if (!l->grid[0] || !l->grid[1] || !l->grid[2] || !threads)
		return refuse(f, "a dimension is 0");
	if (l->grid[0] > 0x7fffffff || l->grid[1] > 65535 || l->grid[2] > 65535)
		return refuse(f, "the grid is too large");
	if (l->block[0] > 1024 || l->block[1] > 1024 || l->block[2] > 64 ||
	    threads > RT_MAX_THREADS)
		return refuse(f, "the block is too large");
	for (i = 0; i < 3; i++) {
		if (e->reqntid[0] && l->block[i] != e->reqntid[i])
			return refuse(f, "the block is not what the kernel requires (.reqntid)");
		max *= e->maxntid[i] ? e->maxntid[i] : 1;
	}
	if (e->maxntid[0] && threads > max)
		return refuse(f, "the block is larger than the kernel allows (.maxntid)");
	if (l->params_len < e->param_size || (e->param_size && !l->params))
		return refuse(f, "parameters are missing");
	if ((uint64_t)k->info.static_shared + l->dyn_shared > 256 << 10)
		return refuse(f, "too much shared memory");
	return 0;
}

/* The cluster's size: the kernel's own, the launch's, or one block. */
static int set_cluster(struct rt_run *r, struct ptx_fault *f)
{
	const struct ptx_entry_info *e = r->k->entry;
	const struct ptx_launch *l = r->l;
	uint64_t n = 1;
	int i;

	if (e->grid_of_clusters)
		return refuse(f, "a grid of clusters is not supported (.blocksareclusters)");
	if (e->explicit_cluster && !e->cluster[0] && !l->cluster[0])
		return refuse(f, "no size of clusters is given (.explicitcluster)");
	for (i = 0; i < 3; i++) {
		r->cluster[i] = e->cluster[0] ? e->cluster[i] : l->cluster[0] ? l->cluster[i] : 1;
		if (e->cluster[0] && l->cluster[0] && e->cluster[i] != l->cluster[i])
			return refuse(f, "the cluster is not what the kernel requires");
		n *= r->cluster[i];
		if (!n || n > RT_MAX_CLUSTER || (e->max_cluster && n > e->max_cluster))
			return refuse(f, "a cluster of too many blocks, or of none");
		if (l->grid[i] % r->cluster[i])
			return refuse(f, "the grid has parts of clusters");
	}
	r->cluster_size = n;
	return 0;
}

int ptx_run(struct ptx_kernel *k, const struct ptx_launch *l, struct ptx_fault *fault)
{
	struct rt_run r = { .k = k, .l = l, .entry = k->fn, .info = &k->info };
	bool helped;
	int ret;

	memset(fault, 0, sizeof(*fault));
	ret = check_launch(k, l, fault) ?: set_cluster(&r, fault);
	if (ret)
		return ret;
	r.nthreads = l->block[0] * l->block[1] * l->block[2];
	r.nwarps = (r.nthreads + 31) / 32;
	r.nblocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
	r.nclusters = r.nblocks / r.cluster_size;
	r.spins = k->spins;
	r.late_stores = l->late_stores && r.nwarps > 1;
	r.fibers = k->info.barriers || k->spins || l->cooperative || r.cluster_size > 1;
	r.stack_size = k->calls ? STACK_CALLS : STACK;
	r.shared_total = k->info.static_shared + l->dyn_shared;
	r.shared_size = r.shared_total;
	if (k->info.reserved_shared)
		r.shared_size = ((r.shared_total + 127) & ~127u) + RT_SHARED_RESERVED;
	r.local_stride = k->calls ? (l->local_limit ? l->local_limit : 512 << 10) :
			 k->info.local_bytes;
	r.local_stride = (r.local_stride + 15) & ~15ull;
	r.params = aligned_alloc(64, (l->params_len + 127) & ~63ul);
	if (!r.params)
		return -ENOMEM;
	if (l->params_len)
		memcpy(r.params, l->params, l->params_len);
	pthread_mutex_init(&r.lock, NULL);
	if (k->info.turns && !l->cooperative && r.cluster_size == 1 && r.nblocks > 1)
		rt_turns_init(&r);
	r.max_helpers = (k->info.ordered && !r.by_turns) || l->cooperative ? 0 : rt_workers() - 1;
	if (r.max_helpers > r.nclusters - 1)
		r.max_helpers = r.nclusters - 1;
	if (r.by_turns && r.max_helpers > r.nslots - 1)
		r.max_helpers = r.nslots - 1;
	helped = r.max_helpers > 0;
	r.share = 1;
	if (!r.fibers && r.nblocks / (r.max_helpers + 1) > 64)
		r.share = r.nblocks / (r.max_helpers + 1) > 1024 ? 16 : 4;
	if (helped)
		rt_help(&r, r.max_helpers);
	rt_worker_run(&r);
	if (helped)
		rt_unhelp(&r);
	pthread_mutex_destroy(&r.lock);
	free(r.params);
	*fault = r.fault;
	return r.fault.kind == PTX_NOMEM ? -ENOMEM : r.fault.kind ? -EFAULT : 0;
}

const struct rt_symbol rt_run_symbols[] = {
	{ "rt_tick", rt_tick }, { "rt_yield", rt_yield },
	{ "rt_sleep", rt_sleep }, { "rt_trap", rt_trap }, { "rt_turn", rt_turn },
	{ "rt_late", rt_late }, { "rt_bar", rt_bar }, { "rt_bar_arrive", rt_bar_arrive }, { "rt_bar_red", rt_bar_red },
	{ "rt_cluster_arrive", rt_cluster_arrive }, { "rt_cluster_wait", rt_cluster_wait },
	{ NULL, NULL },
};
