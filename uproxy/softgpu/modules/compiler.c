/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compiler.c - entries of programs become kernels: described at once, compiled by threads beside the
 * program, which runs ahead until it waits for results
 *
 *   nothing ─ program_compile ─► busy ─ translated ─► busy, described ─ LLVM ─► kernel
 *                                 │                        │                 or err, for good
 *                                 └────────────────────────┴── the cache has it ──► kernel
 *
 * program_compile waits for "described", where errors of the PTX are known; launch_run, in a stream's
 * thread, for the kernel. At most `slots` threads are in LLVM, and PENDING_MAX have begun.
 */
#define _GNU_SOURCE
#include "module_i.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define STACK ((size_t)64 << 20)	/* recursion is as deep as the input is nested */
#define PENDING_MAX 8			/* each has its intermediate code in memory */
#define WATCH_NS 50000000		/* how often a launch that waits looks at its context's stop */

struct job {
	struct program *p;		/* referenced */
	unsigned int entry;
	struct ptx_kernel *k;
	struct ptx_kernel_info *info;	/* allocated beforehand; NULL once the program has it */
	bool slot;			/* it has one */
	char err[2048];
	int r;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t fewer = PTHREAD_COND_INITIALIZER;
static unsigned int slots;		/* set once */
static unsigned int running, pending;	/* lock: in LLVM; begun and not ended */
static bool ending;			/* lock: the program exits */

/* SINGVGPU_SOFT_COMPILERS: how many kernels LLVM compiles at once; else one for each CPU, but two. */
static void slots_once(void)
{
	const char *s = getenv("SINGVGPU_SOFT_COMPILERS");
	int n = s ? atoi(s) : 0;
	cpu_set_t set;

	if (s && *s && (n < 1 || n > PENDING_MAX))
		soft_log("SINGVGPU_SOFT_COMPILERS is from 1 to %d, not %s", PENDING_MAX, s);
	if (n < 1 || n > PENDING_MAX)
		n = sched_getaffinity(0, sizeof(set), &set) ? 2 : CPU_COUNT(&set);
	if (!s || !*s)
		n = n < 2 ? 2 : n > PENDING_MAX ? PENDING_MAX : n;
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
	n = 1;		/* it does not see how LLVM, built without it, shares what is made once */
#endif
#endif
	slots = n;
}

/*
 * The program exits, and LLVM's global objects are destroyed after this: it was loaded before. What has
 * begun is finished, for destructors may use its results; from now on nobody runs ahead.
 */
static void compiler_ends(void)
{
	pthread_mutex_lock(&lock);
	ending = true;
	while (pending)
		pthread_cond_wait(&fewer, &lock);
	pthread_mutex_unlock(&lock);
}

static void ends_once(void)
{
	atexit(compiler_ends);
}

/* compiling held */
static void described(struct job *j)
{
	if (j->info && !j->p->infos[j->entry]) {
		__atomic_store_n(&j->p->infos[j->entry], j->info, __ATOMIC_RELEASE);
		j->info = NULL;
	}
	pthread_cond_broadcast(&j->p->changed);
}

/* compiling held; another thread may have found it in the cache meanwhile */
static void compiled(struct job *j)
{
	if (j->p->kernels[j->entry])
		ptx_kernel_free(j->k);
	else
		__atomic_store_n(&j->p->kernels[j->entry], j->k, __ATOMIC_RELEASE);
	pthread_cond_broadcast(&j->p->changed);
}

static void translated(void *user, const struct ptx_kernel_info *info)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct job *j = user;

	pthread_once(&once, ends_once);
	if (j->info)
		*j->info = *info;
	pthread_mutex_lock(&j->p->compiling);
	described(j);
	pthread_mutex_unlock(&j->p->compiling);

	pthread_mutex_lock(&lock);
	while (running >= slots)
		pthread_cond_wait(&fewer, &lock);
	running++;
	j->slot = true;
	pthread_mutex_unlock(&lock);
}

static void fail(const struct job *j)
{
	soft_log("kernel %s cannot be compiled: %s", program_entry(j->p, j->entry)->name, j->err);
}

static void *compile(void *arg)
{
	struct ptx_translated told = { translated, arg };
	struct job *j = arg;
	struct program *p = j->p;

	j->r = ptx_compile(p->pm, j->entry, &told, &j->k, j->err, sizeof(j->err));
	if (j->r)
		fail(j);
	pthread_mutex_lock(&p->compiling);
	if (j->r)
		p->entries[j->entry].err = j->r;
	else
		compiled(j);
	p->entries[j->entry].busy = false;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->compiling);

	pthread_mutex_lock(&big);
	program_put(p);
	pthread_mutex_unlock(&big);
	pthread_mutex_lock(&lock);
	running -= j->slot;
	pending--;
	pthread_cond_broadcast(&fewer);
	pthread_mutex_unlock(&lock);
	free(j->info);
	free(j);
	return NULL;
}

static int thread(pthread_t *t, void *(*fn)(void *), void *arg)
{
	sigset_t all, old;
	pthread_attr_t a;
	int err;

	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGFPE);
	sigdelset(&all, SIGILL);
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, STACK);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(t, &a, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&a);
	return err;
}

/* NULL: out of memory. Waits while too much is being compiled. */
static struct job *begin(struct program *p, unsigned int entry)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct job *j = calloc(1, sizeof(*j));

	pthread_once(&once, slots_once);
	if (j)
		j->info = calloc(1, sizeof(*j->info));
	if (!j || !j->info) {
		free(j);
		return NULL;
	}
	j->p = p;
	j->entry = entry;
	pthread_mutex_lock(&lock);
	while (pending >= PENDING_MAX)
		pthread_cond_wait(&fewer, &lock);
	pending++;
	pthread_mutex_unlock(&lock);
	pthread_mutex_lock(&big);
	p->refs++;
	pthread_mutex_unlock(&big);
	return j;
}

/*
 * In a thread that goes on when the entry is described; at the program's end nobody runs ahead. Nor does
 * a program that may end by exit(): LLVM destroys what it made at first use before compiler_ends() can
 * wait. A proxy, which ends by _exit(), has SINGVGPU_SOFT_COMPILERS in its environment, be it empty.
 */
static int start(struct program *p, unsigned int entry)
{
	struct job *j = begin(p, entry);
	pthread_t t;
	bool wait;

	if (!j)
		return -ENOMEM;
	pthread_mutex_lock(&lock);
	wait = ending || !getenv("SINGVGPU_SOFT_COMPILERS");
	pthread_mutex_unlock(&lock);
	if (thread(&t, compile, j))
		compile(j);
	else if (wait)
		pthread_join(t, NULL);
	else
		pthread_detach(t);
	return 0;
}

CUresult program_compile(struct program *p, unsigned int entry)
{
	struct compiled *c;
	int err = 0;

	if (program_ready(p, entry))
		return CUDA_SUCCESS;
	c = &p->entries[entry];
	pthread_mutex_lock(&p->compiling);
	if (!c->busy && !c->err && !p->kernels[entry]) {
		c->busy = true;
		pthread_mutex_unlock(&p->compiling);
		err = start(p, entry);
		pthread_mutex_lock(&p->compiling);
		if (err) {
			c->busy = false;
			pthread_cond_broadcast(&p->changed);
		}
	}
	while (c->busy && !p->infos[entry])
		pthread_cond_wait(&p->changed, &p->compiling);
	err = err ?: c->err;
	if (err == -ENOMEM)
		c->err = 0;	/* it may be tried again */
	pthread_mutex_unlock(&p->compiling);
	return program_error(err);
}

static void *describe(void *arg)
{
	struct job *j = arg;

	j->r = ptx_describe(j->p->pm, j->entry, &j->k, j->info, j->err, sizeof(j->err));
	if (j->r)
		fail(j);
	pthread_mutex_lock(&j->p->compiling);
	if (j->k)
		compiled(j);
	else if (!j->r)
		described(j);
	pthread_mutex_unlock(&j->p->compiling);
	return NULL;
}

CUresult program_describe(struct program *p, unsigned int entry)
{
	struct job j = { .p = p, .entry = entry };
	pthread_t t;

	if (program_info(p, entry))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&p->compiling);
	while (p->entries[entry].busy && !p->infos[entry])
		pthread_cond_wait(&p->changed, &p->compiling);
	pthread_mutex_unlock(&p->compiling);
	if (program_info(p, entry))
		return CUDA_SUCCESS;
	j.info = calloc(1, sizeof(*j.info));
	if (!j.info)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (thread(&t, describe, &j))
		describe(&j);
	else
		pthread_join(t, NULL);
	free(j.info);
	return program_error(j.r);
}

bool program_ready(struct program *p, unsigned int entry)
{
	bool is;

	/* pairs with compiled() */
	if (p->cubin || __atomic_load_n(&p->kernels[entry], __ATOMIC_ACQUIRE))
		return true;
	pthread_mutex_lock(&p->compiling);
	is = p->kernels[entry] || (p->entries[entry].busy && p->infos[entry]);
	pthread_mutex_unlock(&p->compiling);
	return is;
}

CUresult program_kernel(struct program *p, unsigned int entry, const volatile int *stop,
			struct ptx_kernel **out)
{
	struct timespec ts;
	int err = 0;

	/* pairs with compiled() */
	*out = __atomic_load_n(&p->kernels[entry], __ATOMIC_ACQUIRE);
	if (*out)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&p->compiling);
	while (p->entries[entry].busy && !*stop) {
		clock_gettime(CLOCK_MONOTONIC, &ts);
		ts.tv_nsec += WATCH_NS;
		ts.tv_sec += ts.tv_nsec / 1000000000;
		ts.tv_nsec %= 1000000000;
		pthread_cond_clockwait(&p->changed, &p->compiling, CLOCK_MONOTONIC, &ts);
	}
	*out = p->kernels[entry];
	if (!*out)
		err = p->entries[entry].err ?: -EINTR;
	pthread_mutex_unlock(&p->compiling);
	return err == -EINTR ? CUDA_ERROR_LAUNCH_FAILED : program_error(err);
}

const struct ptx_kernel_info *program_info(const struct program *p, unsigned int entry)
{
	struct ptx_kernel *k;

	if (p->cubin)
		return sass_info(p->cubin, entry);
	/* pairs with compiled(), and infos with described() */
	k = __atomic_load_n(&p->kernels[entry], __ATOMIC_ACQUIRE);
	return k ? ptx_kernel_info(k) : __atomic_load_n(&p->infos[entry], __ATOMIC_ACQUIRE);
}
