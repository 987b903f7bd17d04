// SPDX-License-Identifier: Apache-2.0
/*
 * clock.c - takes the time for which a job stood still out of C++'s steady clock
 *
 * While a job is frozen for a checkpoint, or is being restored, CLOCK_MONOTONIC goes on. PyTorch's watchdog
 * then takes a collective that has long ended for one that is late, and ends the process. So in a job
 * std::chrono::steady_clock is CLOCK_MONOTONIC without that time, which a conductor writes here; stood.h.
 * Before a job has stood still they are equal.
 *
 * Programs pass deadlines of that clock to the kernel by few functions of libc and libstdc++. Ours add
 * what was taken out, in waits for conditions, futures and locks. CRIU ends waits for a time, as in poll(),
 * with EINTR. Waits of C++20's semaphores and atomics end too early: they call the kernel themselves.
 *
 * C programs, and C++ ones with a clock of their own, pass deadlines of CLOCK_MONOTONIC to the same functions
 * of libc. They are told by their return address: an object uses our clock if it needs libstdc++.so.6.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT	__attribute__((visibility("default")))
#define SECOND	1000000000ll

/* Written by conductors alone, while no thread runs: stood.h. */
EXPORT volatile uint64_t singvgpu_stood_ns;

#define NOW		"_ZNSt6chrono3_V212steady_clock3nowEv"
#define CXX		"libstdc++.so.6"
#define KNOWN_BITS	6

/* The functions that ours take the place of. */
static int (*real_wait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
static int (*real_lock)(pthread_mutex_t *, clockid_t, const struct timespec *);
static int (*real_rdlock)(pthread_rwlock_t *, clockid_t, const struct timespec *);
static int (*real_wrlock)(pthread_rwlock_t *, clockid_t, const struct timespec *);

static bool serves;	/* objects that need libstdc++.so.6 use our clock: no program has put its own before it */

/* By an object's dynamic section: its address, + 1 if the object needs CXX. Atomic; dlclose() may make one stale. */
static uintptr_t known[1 << KNOWN_BITS];

static int64_t own_now(void);

/* In the constructor, or in an earlier first call. Threads that do it at once find the same. */
__attribute__((constructor))
static void find_real(void)
{
	__atomic_store_n(&serves, dlsym(RTLD_DEFAULT, NOW) == (void *)own_now, __ATOMIC_RELAXED);
	__atomic_store_n(&real_lock, dlsym(RTLD_NEXT, "pthread_mutex_clocklock"), __ATOMIC_RELAXED);
	__atomic_store_n(&real_rdlock, dlsym(RTLD_NEXT, "pthread_rwlock_clockrdlock"), __ATOMIC_RELAXED);
	__atomic_store_n(&real_wrlock, dlsym(RTLD_NEXT, "pthread_rwlock_clockwrlock"), __ATOMIC_RELAXED);
	__atomic_store_n(&real_wait, dlsym(RTLD_NEXT, "pthread_cond_clockwait"), __ATOMIC_RELAXED);
}

static const char *text_of(const struct link_map *m, uint64_t off)
{
	const ElfW(Dyn) *d = m->l_ld;

	while (d->d_tag != DT_NULL && d->d_tag != DT_STRTAB)
		d++;
	return d->d_tag == DT_NULL ? "" : (const char *)d->d_un.d_ptr + off;
}

static bool needs_cxx(const struct link_map *m)
{
	for (const ElfW(Dyn) *d = m->l_ld; d->d_tag != DT_NULL; d++)
		if ((d->d_tag == DT_NEEDED || d->d_tag == DT_SONAME) && !strcmp(text_of(m, d->d_un.d_val), CXX))
			return true;
	return false;
}

/* Is a deadline one of our clock? Without a lock: the caller may be in a thread for which dlopen() waits. */
static bool is_ours(const void *caller, clockid_t clock)
{
	struct dl_find_object o;
	uintptr_t at, is, *slot;

	if (clock != CLOCK_MONOTONIC || !__atomic_load_n(&serves, __ATOMIC_RELAXED) ||
	    _dl_find_object((void *)caller, &o) || !o.dlfo_link_map->l_ld)
		return false;
	at = (uintptr_t)o.dlfo_link_map->l_ld;
	slot = &known[at * 0x9e3779b97f4a7c15ull >> (64 - KNOWN_BITS)];
	is = __atomic_load_n(slot, __ATOMIC_RELAXED);
	if ((is & ~(uintptr_t)1) != at) {
		is = at | needs_cxx(o.dlfo_link_map);
		__atomic_store_n(slot, is, __ATOMIC_RELAXED);
	}
	return is & 1;
}

/* A time of our clock as one of CLOCK_MONOTONIC. One that never comes remains so. */
static struct timespec later(int64_t s, int64_t ns, uint64_t by)
{
	ns += by % SECOND;
	if (__builtin_add_overflow(s, (int64_t)(by / SECOND) + ns / SECOND, &s))
		s = INT64_MAX;
	return (struct timespec){ s, ns % SECOND };
}

/* The same of a deadline. What libc would refuse remains so. */
static struct timespec deadline(const struct timespec *until, uint64_t by)
{
	return until->tv_nsec < 0 || until->tv_nsec >= SECOND ? *until : later(until->tv_sec, until->tv_nsec, by);
}

static int64_t own_now(void)
{
	struct timespec t;
	uint64_t stood;

	/* A freeze between the two reads would set this thread's clock back by all of it. */
	do {
		stood = singvgpu_stood_ns;
		clock_gettime(CLOCK_MONOTONIC, &t);
	} while (stood != singvgpu_stood_ns);
	return t.tv_sec * SECOND + t.tv_nsec - (int64_t)stood;
}

/* std::chrono::steady_clock::now() */
EXPORT int64_t steady_now(void) __asm__(NOW) __attribute__((alias("own_now")));

/* Under std::condition_variable. Its callers look at what they wait for after a wake-up without a cause. */
EXPORT int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
				  const struct timespec *until)
{
	bool ours = is_ours(__builtin_return_address(0), clock);
	uint64_t stood = singvgpu_stood_ns;
	struct timespec t;
	int err;

	if (!__atomic_load_n(&real_wait, __ATOMIC_RELAXED))
		find_real();
	if (!real_wait)
		return ENOSYS;
	if (!ours)
		return real_wait(cond, mutex, clock, until);
	t = deadline(until, stood);
	err = real_wait(cond, mutex, clock, &t);
	return err == ETIMEDOUT && stood != singvgpu_stood_ns ? 0 : err;
}

/* Under std::timed_mutex and std::shared_timed_mutex, which may try once only. */
#define TIMED(name, type, real)									\
EXPORT int name(type *lock, clockid_t clock, const struct timespec *until)			\
{												\
	bool ours = is_ours(__builtin_return_address(0), clock);				\
	struct timespec t;									\
	uint64_t stood;										\
	int err;										\
												\
	if (!__atomic_load_n(&real, __ATOMIC_RELAXED))						\
		find_real();									\
	if (!real)										\
		return ENOSYS;									\
	do {											\
		stood = singvgpu_stood_ns;							\
		if (ours)									\
			t = deadline(until, stood);						\
		err = real(lock, clock, ours ? &t : until);					\
	} while (ours && err == ETIMEDOUT && stood != singvgpu_stood_ns);			\
	return err;										\
}

TIMED(pthread_mutex_clocklock, pthread_mutex_t, real_lock)
TIMED(pthread_rwlock_clockrdlock, pthread_rwlock_t, real_rdlock)
TIMED(pthread_rwlock_clockwrlock, pthread_rwlock_t, real_wrlock)

/*
 * Under std::future: std::__atomic_futex_unsigned_base::_M_futex_wait_until_steady(). False: the time is over.
 */
EXPORT bool steady_futex(void *base, unsigned int *word, unsigned int value, bool limited, int64_t s, int64_t ns)
	__asm__("_ZNSt28__atomic_futex_unsigned_base26_M_futex_wait_until_steady"
		"EPjjbNSt6chrono8durationIlSt5ratioILl1ELl1EEEENS2_IlS3_ILl1ELl1000000000EEEE");
bool steady_futex(void *base, unsigned int *word, unsigned int value, bool limited, int64_t s, int64_t ns)
{
	uint64_t stood;

	(void)base;
	do {
		struct timespec t;

		stood = __atomic_load_n(&serves, __ATOMIC_RELAXED) ? singvgpu_stood_ns : 0;
		t = later(s, ns, stood);
		if (t.tv_sec < 0)	/* which the kernel refuses */
			return false;
		if (!syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, limited ? &t : NULL, NULL,
			     FUTEX_BITSET_MATCH_ANY) || errno != ETIMEDOUT)
			return true;
	} while (stood != singvgpu_stood_ns && __atomic_load_n(&serves, __ATOMIC_RELAXED));
	return false;
}
