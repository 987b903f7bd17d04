// SPDX-License-Identifier: Apache-2.0
/*
 * signals.c - producers interrupted, left by siglongjmp, robbed, cancelled, stopped and forked
 *
 * Each thread, and each of its signal handlers, is a producer with numbers of its own. The consumer
 * must find all numbers of each, in order, once. Only a record whose submission was abandoned by
 * siglongjmp or cancellation may be missing; those are listed. Each test counts its interruptions,
 * to prove that they happened.
 */
#include <setjmp.h>
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "pair.h"
#include "rseq_x86.h"

#define THREADS		8
#define LEVELS		4	/* the thread itself, and three signals */
#define PRODUCERS	(THREADS * LEVELS)
#define LEFT_MAX	200000

/* What handlers do. */
#define NEST		1u	/* they can interrupt each other */
#define JUMP		2u	/* siglongjmp out of an interrupted submission */
#define FLOOD		4u	/* submit more than the ring has room for */
#define LINGER		8u	/* stay for so long that the ring is taken from their thread */
#define LARGE		16u	/* records of up to 8 KiB, so that the copy takes a while */
#define FAKES		32u	/* payload that looks like records where it lies */

#define DATA_MAX	8192

struct left {
	uint32_t producer;
	uint32_t n;
};

/* In self->shm. */
struct storm {
	uint32_t threads;
	uint32_t actions;
	int64_t ns;			/* how long */
	uint32_t rounds;
	uint32_t rseq;			/* the client uses restartable sequences */
	atomic_uint handled, inside, aborted, nested, flooded, held, stolen;
	atomic_uint step;
	uint32_t total[PRODUCERS];	/* submitted, when the client ends */
	atomic_uint nleft;
	struct left left[LEFT_MAX];
};

struct thread {
	struct storm *s;
	struct ring *r;
	uint32_t id;
	pthread_t pthread;
	atomic_int tid;
	sigjmp_buf env;
	volatile int may_jump, depth;
	volatile uint32_t n[LEVELS];
	uint64_t seed;
	uint8_t data[LEVELS][DATA_MAX];
};

static struct thread threads[THREADS];
static __thread struct thread *me;
static atomic_int over;

/* The places to which the kernel sends an interrupted restartable sequence. */
extern const char __start___rseq_failure[] __attribute__((weak));
extern const char __stop___rseq_failure[] __attribute__((weak));

static void leave(struct storm *s, uint32_t producer, uint32_t n)
{
	uint32_t i = s->nleft++;

	NEED(i < LEFT_MAX);
	s->left[i] = (struct left){ producer, n };
}

static void submit_next(struct thread *t, int level)
{
	uint32_t len, producer = t->id * LEVELS + level;
	uint32_t most = t->s->actions & LARGE ? DATA_MAX : 900;
	uint64_t x = rnd(&t->seed);

	len = sizeof(struct mark) + (x % 3 ? x % 33 : x % (most - sizeof(struct mark)));
	mark(t->data[level], producer, t->n[level], len);
	if (t->s->actions & FAKES)
		poison(t->r, t->data[level], len, x >> 40 & 1);
	NEED_OK(ring_submit(t->r, 1 + producer, t->data[level], len, NULL, 0));
	t->n[level]++;
}

static bool owns(struct thread *t)
{
	return (load(&t->r->tx.owner) & ~BIASED) == (uintptr_t)rseq_area();
}

static void linger(struct thread *t)
{
	int64_t end = now_ns() + MS;

	if (!t->r->tx.rseq || !owns(t))
		return;
	t->s->held++;
	while (owns(t) && now_ns() < end)
		;
	if (!owns(t))
		t->s->stolen++;
}

static void handle(int sig, siginfo_t *info, void *context)
{
	int level = sig == SIGUSR1 ? 1 : sig == SIGUSR2 ? 2 : 3, i, err = errno;
	uintptr_t pc = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	struct thread *t = me;
	struct storm *s;

	(void)info;
	if (!t || over)
		return;
	s = t->s;
	s->handled++;
	t->depth++;
	if (t->depth > 1)
		s->nested++;
	else if (t->may_jump)
		s->inside++;
	if (pc >= (uintptr_t)__start___rseq_failure && pc < (uintptr_t)__stop___rseq_failure)
		s->aborted++;
	if (s->actions & LINGER && level == 3)
		linger(t);
	submit_next(t, level);
	for (i = 0; s->actions & FAKES && i < 4; i++)
		submit_next(t, level);
	if (s->actions & FLOOD && t->n[level] % 64 == 0) {
		for (i = 0; i < 150; i++)
			submit_next(t, level);
		s->flooded++;
	}
	t->depth--;
	errno = err;
	if (s->actions & JUMP && level == 2 && !t->depth && t->may_jump)
		siglongjmp(t->env, 1);
}

static void catch_signals(uint32_t actions)
{
	struct sigaction sa = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_RESTART };

	if (!(actions & NEST))
		sigfillset(&sa.sa_mask);
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGUSR2, &sa, NULL);
	sigaction(SIGRTMIN + 1, &sa, NULL);
}

static void *produce(void *arg)
{
	struct thread *t = arg;

	me = t;
	if (sigsetjmp(t->env, 1)) {
		t->may_jump = 0;
		leave(t->s, t->id * LEVELS, t->n[0]++);
	}
	t->tid = gettid();
	while (!over) {
		t->may_jump = 1;
		atomic_signal_fence(memory_order_seq_cst);
		submit_next(t, 0);
		atomic_signal_fence(memory_order_seq_cst);
		t->may_jump = 0;
	}
	return NULL;
}

/* The timer's signals come from the interrupt, at any instruction; tgkill's at system calls too. */
static timer_t timer_for(pid_t tid)
{
	struct sigevent e = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 1 };
	struct itimerspec every = { { 0, 47000 }, { 0, 47000 } };
	timer_t timer;

	e._sigev_un._tid = tid;
	NEED(!timer_create(CLOCK_MONOTONIC, &e, &timer));
	NEED(!timer_settime(timer, 0, &every, NULL));
	return timer;
}

/* Whether everything has happened that this storm is for. */
static bool enough(struct storm *s)
{
	if (s->handled <= 50 || s->inside <= 10)
		return false;
	if (s->rseq && s->actions & LARGE && !s->aborted)
		return false;
#ifndef __SANITIZE_THREAD__	/* keeps signals back until the thread calls the system */
	if (s->actions & NEST && !s->nested)
		return false;
#endif
	if ((s->actions & JUMP && !s->nleft) || (s->actions & FLOOD && !s->flooded))
		return false;
	return !(s->rseq && s->actions & LINGER) || (s->held && s->stolen);
}

/* ThreadSanitizer keeps signals back until the thread comes to where it looks, which may be never. */
#ifdef __SANITIZE_THREAD__
#define STORM_PATIENCE	(10 * SEC)
#else
#define STORM_PATIENCE	(6 * PATIENCE)
#endif

static void send_signals(struct storm *s)
{
	int64_t start = now_ns();
	timer_t timers[THREADS];
	uint64_t seed = 77;
	uint32_t i;

	for (i = 0; i < s->threads; i++) {
		while (!threads[i].tid)
			sched_yield();
		timers[i] = timer_for(threads[i].tid);
	}
	while (now_ns() - start < s->ns || (!enough(s) && now_ns() - start < STORM_PATIENCE)) {
		i = rnd(&seed) % s->threads;
		syscall(SYS_tgkill, getpid(), threads[i].tid, rnd(&seed) % 2 ? SIGUSR1 : SIGUSR2);
		if (rnd(&seed) % 4)
			sched_yield();
		else
			sleep_ns(rnd(&seed) % 50000);
	}
	for (i = 0; i < s->threads; i++)
		timer_delete(timers[i]);
	over = 1;
}

static void storm_client(int fd, void *arg)
{
	struct storm *s = arg;
	struct ring *r = attached(fd);
	uint32_t i, k;

	s->rseq = r->tx.rseq;
	catch_signals(s->actions);
	for (i = 0; i < s->threads; i++) {
		threads[i].s = s;
		threads[i].r = r;
		threads[i].id = i;
		threads[i].seed = 1000 + i;
		NEED_OK(pthread_create(&threads[i].pthread, NULL, produce, &threads[i]));
	}
	send_signals(s);
	for (i = 0; i < s->threads; i++)
		pthread_join(threads[i].pthread, NULL);
	for (i = 0; i < s->threads; i++)
		for (k = 0; k < LEVELS; k++)
			s->total[i * LEVELS + k] = threads[i].n[k];
	ring_close(r);
}

/* ----------------------------------------------------------------------------- the consumer */

struct taker {
	bool fakes;		/* payload is not what mark() made; its first unit is */
	uint32_t next_of[PRODUCERS];
	struct left *gaps;
	uint32_t ngaps;
	uint32_t records;
};

static int take(struct taker *k, const struct ring_record *rec)
{
	struct mark m;

	memcpy(&m, rec->data, sizeof(m));
	if (k->fakes ? rec->len < sizeof(m) || m.len != rec->len : !marked(rec, &m))
		return -EBADMSG;
	if (m.producer >= PRODUCERS || rec->op != 1 + m.producer)
		return -EBADMSG;
	if (m.n < k->next_of[m.producer])
		return -EEXIST;
	for (; k->next_of[m.producer] < m.n; k->next_of[m.producer]++) {
		if (k->ngaps == LEFT_MAX)
			return -ENOENT;
		k->gaps[k->ngaps++] = (struct left){ m.producer, k->next_of[m.producer] };
	}
	k->next_of[m.producer]++;
	k->records++;
	return 0;
}

static int by_both(const void *a, const void *b)
{
	const struct left *x = a, *y = b;

	if (x->producer != y->producer)
		return x->producer < y->producer ? -1 : 1;
	return x->n < y->n ? -1 : x->n > y->n;
}

/* Every gap is a submission that was left, and the last of each producer has come or was left. */
static void check_gaps(struct __test_metadata *_metadata, struct taker *k, struct storm *s)
{
	uint32_t i;

	for (i = 0; i < PRODUCERS; i++)
		for (; k->next_of[i] < s->total[i]; k->next_of[i]++)
			k->gaps[k->ngaps++] = (struct left){ i, k->next_of[i] };
	for (i = 0; i < PRODUCERS; i++)
		EXPECT_EQ(s->total[i], k->next_of[i]);
	qsort(s->left, s->nleft, sizeof(*s->left), by_both);
	for (i = 0; i < k->ngaps; i++) {
		ASSERT_NE(NULL, bsearch(&k->gaps[i], s->left, s->nleft, sizeof(*s->left),
					by_both)) {
			TH_LOG("record %u of producer %u is lost", k->gaps[i].n,
			       k->gaps[i].producer);
		}
	}
	EXPECT_GE(atomic_load(&s->nleft), k->ngaps);
}

static void take_all(struct __test_metadata *_metadata, struct ring *r, struct taker *k)
{
	struct ring_record rec;
	int rc;

	k->gaps = calloc(LEFT_MAX + PRODUCERS, sizeof(*k->gaps));
	ASSERT_NE(NULL, k->gaps);
	while ((rc = next(r, &rec)) == 1) {
		ASSERT_EQ(0, take(k, &rec));
		if (rec.cpl)
			ring_complete(r, rec.cpl, rec.seq, 0, NULL, 0);
		ring_advance(r);
	}
	EXPECT_EQ(-EPIPE, rc);
}

static bool rseq_expected(void)
{
#ifdef __SANITIZE_THREAD__
	return false;
#else
	const char *t = getenv("GLIBC_TUNABLES");

	return !t || !strstr(t, "rseq=0");
#endif
}

static void run_storm(struct __test_metadata *_metadata, FIXTURE_DATA(ring) *self,
		      uint32_t nthreads, uint32_t actions)
{
	struct storm *s = (void *)self->shm;
	struct taker k = { 0 };
	pid_t pid;

	self->p.geo.ring_units = actions & FLOOD ? 64 : 4096;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	s->threads = nthreads;
	s->actions = actions;
	k.fakes = actions & FAKES;
	s->ns = scaled(500) * MS;
	pid = spawn_client(&self->z, self->r, storm_client, s);
	ASSERT_LT(0, pid);
	take_all(_metadata, self->r, &k);
	EXPECT_EQ(0, reap(&self->z, pid));
	check_gaps(_metadata, &k, s);
	free(k.gaps);
	TH_LOG("%u records; %u signals, %u in a submission, %u aborted a sequence, %u nested",
	       k.records, s->handled, s->inside, s->aborted, s->nested);
	TH_LOG("%u left (%u of them not there), %u floods, %u owners held up, %u robbed",
	       s->nleft, k.ngaps, s->flooded, s->held, s->stolen);
	EXPECT_EQ(rseq_expected(), s->rseq);
#ifdef __SANITIZE_THREAD__
	if (!enough(s))
		SKIP(return, "ThreadSanitizer kept the signals back");
#endif
	EXPECT_LT(50, atomic_load(&s->handled));
	EXPECT_LT(10, atomic_load(&s->inside));
	if (s->rseq && actions & LARGE)
		EXPECT_LT(0, atomic_load(&s->aborted));
#ifndef __SANITIZE_THREAD__
	if (actions & NEST)
		EXPECT_LT(0, atomic_load(&s->nested));
#endif
	if (actions & JUMP)
		EXPECT_LT(0, atomic_load(&s->nleft));
	if (actions & FLOOD)
		EXPECT_LT(0, atomic_load(&s->flooded));
	if (actions & LINGER && s->rseq) {
		EXPECT_LT(0, atomic_load(&s->held));
		EXPECT_LT(0, atomic_load(&s->stolen));
	}
}

TEST_F(ring, handlers_submit_while_their_thread_does)
{
	run_storm(_metadata, self, 1, LARGE);
}

TEST_F(ring, handlers_interrupt_handlers)
{
	run_storm(_metadata, self, 1, NEST | LARGE);
}

TEST_F(ring, handlers_submit_more_than_the_ring_holds)
{
	run_storm(_metadata, self, 1, NEST | FLOOD);
}

TEST_F(ring, handlers_jump_out_of_submissions)
{
	run_storm(_metadata, self, 1, NEST | JUMP | LARGE);
}

TEST_F(ring, all_of_it_in_several_threads)
{
	run_storm(_metadata, self, 4, NEST | JUMP | FLOOD);
}

TEST_F(ring, what_aborted_attempts_leave_is_never_a_record)
{
	run_storm(_metadata, self, 1, NEST | JUMP | LARGE | FAKES);
}

TEST_F(ring, threads_rob_each_other_of_the_ring)
{
	run_storm(_metadata, self, 3, LINGER | LARGE);
}

/* ------------------------------------------------------------- cancelled and ending threads */

struct victim {
	struct storm *s;
	struct ring *r;
	uint32_t id;
	volatile uint32_t n, done;
	bool stop;		/* behind the commit of its first record */
	volatile bool stopped;
};

/* AddressSanitizer does not know that the frames of a cancelled thread are gone. */
struct stack {
	void *low;
	size_t size;
};

static void forget_frames(void *arg)
{
	(void)arg;
#ifdef __SANITIZE_ADDRESS__
	__asan_unpoison_memory_region(((struct stack *)arg)->low, ((struct stack *)arg)->size);
#endif
}

static void own_stack(struct stack *s)
{
	pthread_attr_t attr;

	NEED_OK(pthread_getattr_np(pthread_self(), &attr));
	NEED_OK(pthread_attr_getstack(&attr, &s->low, &s->size));
	pthread_attr_destroy(&attr);
}

static void *be_cancelled(void *arg)
{
	struct victim *v = arg;
	uint8_t data[700];
	uint32_t len;
	struct stack stack;

	own_stack(&stack);
	pthread_cleanup_push(forget_frames, &stack);
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (;;) {
		len = 16 + v->n * 37 % 600;
		mark(data, v->id, v->n, len);
		NEED_OK(ring_submit(v->r, 1 + v->id, data, len, NULL, 0));
		v->stopped = v->stop;
		while (v->stop)
			pause();
		v->done = v->n + 1;
		v->n = v->done;
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel_client(int fd, void *arg)
{
	struct storm *s = arg;
	struct ring *r = attached(fd);
	int64_t start = now_ns();
	struct victim v[2] = { 0 };
	uint64_t seed = 5;
	pthread_t t[2];
	void *how;
	int i;

	s->rseq = r->tx.rseq;
	while (now_ns() - start < s->ns || (s->handled <= 10 && now_ns() - start < 6 * PATIENCE)) {
		for (i = 0; i < 2; i++) {
			v[i].s = s;
			v[i].r = r;
			v[i].id = i;
			v[i].stop = !s->handled;
			NEED_OK(pthread_create(&t[i], NULL, be_cancelled, &v[i]));
		}
		do	/* few are cancelled behind their commit; the first ones are */
			sleep_ns(rnd(&seed) % 300000);
		while (v[0].stop && !(v[0].stopped && v[1].stopped));
		for (i = 0; i < 2; i++)
			NEED_OK(pthread_cancel(t[i]));
		for (i = 0; i < 2; i++) {
			NEED_OK(pthread_join(t[i], &how));
			NEED(how == PTHREAD_CANCELED);
			s->handled++;
			/* Its last record may be there or not; the next thread goes on behind. */
			leave(s, i, v[i].n);
			v[i].n++;
			v[i].done = v[i].n;
		}
	}
	for (i = 0; i < 2; i++)
		s->total[i] = v[i].n;
	ring_close(r);
}

/* A thread that starts before one that has just been cancelled has gone is another token. */
TEST_F(ring, cancelled_threads_leave_no_hole)
{
	struct storm *s = (void *)self->shm;
	struct taker k = { 0 };
	pid_t pid;

#ifdef __SANITIZE_THREAD__
	SKIP(return, "ThreadSanitizer hangs where a thread is cancelled inside of it");
#endif
	self->p.geo.ring_units = 64;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	s->ns = getenv("SINGVGPU_VM") ? SEC : scaled(800) * MS;
	pid = spawn_client(&self->z, self->r, cancel_client, s);
	ASSERT_LT(0, pid);
	take_all(_metadata, self->r, &k);
	EXPECT_EQ(0, reap(&self->z, pid));
	check_gaps(_metadata, &k, s);
	free(k.gaps);
	TH_LOG("%u records, %u threads cancelled, %u of their last records are not there",
	       k.records, s->handled, k.ngaps);
	EXPECT_EQ(rseq_expected(), s->rseq);
	EXPECT_LT(10, atomic_load(&s->handled));
	/* Some were cancelled before the commit, some after it. */
	EXPECT_LT(0, k.ngaps);
	EXPECT_LT(k.ngaps, atomic_load(&s->handled));
}

static void *submit_five(void *arg)
{
	struct victim *v = arg;
	uint8_t data[200];
	int i;

	for (i = 0; i < 5; i++) {
		mark(data, v->id, v->n, 100 + i);
		NEED_OK(ring_submit(v->r, 1 + v->id, data, 100 + i, NULL, 0));
		v->n++;
	}
	return NULL;
}

static void exit_client(int fd, void *arg)
{
	struct storm *s = arg;
	struct ring *r = attached(fd);
	struct victim v[3] = { 0 };
	pthread_t t[3];
	uint32_t round;
	int i, n;

	for (round = 0; round < s->rounds; round++) {
		n = 1 + round % 3;
		for (i = 0; i < n; i++) {
			v[i].r = r;
			v[i].id = i;
			NEED_OK(pthread_create(&t[i], NULL, submit_five, &v[i]));
		}
		for (i = 0; i < n; i++)
			pthread_join(t[i], NULL);
	}
	for (i = 0; i < 3; i++)
		s->total[i] = v[i].n;
	ring_close(r);
}

TEST_F(ring, threads_that_end_leave_the_ring_to_others)
{
	struct storm *s = (void *)self->shm;
	struct taker k = { 0 };
	pid_t pid;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	s->rounds = scaled(3000);
	pid = spawn_client(&self->z, self->r, exit_client, s);
	ASSERT_LT(0, pid);
	take_all(_metadata, self->r, &k);
	EXPECT_EQ(0, reap(&self->z, pid));
	check_gaps(_metadata, &k, s);
	EXPECT_EQ(0, k.ngaps);
	EXPECT_EQ(s->total[0] + s->total[1] + s->total[2], k.records);
	EXPECT_EQ(5 * s->rounds, s->total[0]);
	free(k.gaps);
}

/* -------------------------------------------------------------------------- stopped processes */

static void endless_client(int fd, void *arg)
{
	struct storm *s = arg;
	struct ring *r = attached(fd);
	uint32_t i;

	s->rseq = r->tx.rseq;
	for (i = 0; i < s->threads; i++) {
		threads[i].s = s;
		threads[i].r = r;
		threads[i].id = i;
		threads[i].seed = 2000 + i;
		NEED_OK(pthread_create(&threads[i].pthread, NULL, produce, &threads[i]));
	}
	while (s->step != 1)
		sleep_ns(MS);
	over = 1;
	for (i = 0; i < s->threads; i++) {
		pthread_join(threads[i].pthread, NULL);
		s->total[i * LEVELS] = threads[i].n[0];
	}
	ring_close(r);
}

/* Whether all threads of the process have stopped, waited for. */
static bool stopped(pid_t pid)
{
	char path[300], line[512], *p;
	struct dirent *e;
	struct patience patience = { 0 };
	int running;
	DIR *dir;

	do {
		running = 0;
		snprintf(path, sizeof(path), "/proc/%d/task", pid);
		dir = opendir(path);
		while (dir && (e = readdir(dir))) {
			FILE *f;

			if (e->d_name[0] == '.')
				continue;
			snprintf(path, sizeof(path), "/proc/%d/task/%.20s/stat", pid, e->d_name);
			f = fopen(path, "re");
			p = f && fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
			running += !p || p[2] != 'T';
			if (f)
				fclose(f);
		}
		if (dir)
			closedir(dir);
	} while (running && be_patient(&patience));
	return !running;
}

/* One descriptor of a restartable sequence, as RSEQ_ENTER makes them. */
struct sequence {
	uint32_t version, flags;
	uint64_t start, len, abort;
} __attribute__((aligned(32)));

extern const struct sequence __start___rseq_cs[] __attribute__((weak));
extern const struct sequence __stop___rseq_cs[] __attribute__((weak));

/* How many threads of the stopped process stand in the middle of a sequence. The same program. */
static int in_sequences(pid_t pid)
{
	char path[300], line[300];
	const struct sequence *q;
	struct dirent *e;
	DIR *dir;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	while (dir && (e = readdir(dir))) {
		unsigned long pc = 0;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/task/%.20s/syscall", pid, e->d_name);
		f = fopen(path, "re");
		if (!f)
			continue;
		if (fgets(line, sizeof(line), f) && !strncmp(line, "-1 ", 3))
			sscanf(line, "-1 %*s %lx", &pc);
		fclose(f);
		for (q = __start___rseq_cs; q < __stop___rseq_cs; q++)
			n += pc > q->start && pc < q->start + q->len;
	}
	if (dir)
		closedir(dir);
	return n;
}

TEST_F(ring, a_stopped_producer_holds_nobody_up)
{
	struct storm *s = (void *)self->shm;
	long stops = scaled(400), i, midway = 0;
	struct taker k = { 0 };
	struct ring_record rec;
	uint64_t seed = 3;
	pid_t pid;
	int rc;

	self->p.geo.ring_units = 4096;
	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	k.gaps = calloc(LEFT_MAX + PRODUCERS, sizeof(*k.gaps));
	s->threads = 2;
	s->actions = LARGE;
	pid = spawn_client(&self->z, self->r, endless_client, s);
	ASSERT_LT(0, pid);
	for (i = 0; i < stops || (s->rseq && !midway && i < 100 * stops); i++) {
		int64_t end = now_ns() + rnd(&seed) % 400000;

		while (now_ns() < end) {
			rc = ring_peek(self->r, &rec);
			if (!rc)
				continue;
			ASSERT_EQ(1, rc);
			ASSERT_EQ(0, take(&k, &rec));
			ring_advance(self->r);
		}
		ASSERT_EQ(0, kill(pid, SIGSTOP));
		ASSERT_EQ(true, stopped(pid));
		midway += in_sequences(pid) != 0;
		/* What is in the ring can be taken; behind it there is nothing, at once. */
		while ((rc = ring_peek(self->r, &rec)) == 1) {
			ASSERT_EQ(0, take(&k, &rec));
			ring_advance(self->r);
		}
		ASSERT_EQ(0, rc);
		EXPECT_EQ(-ETIMEDOUT, ring_wait(self->r, 1000));
		ASSERT_EQ(0, kill(pid, SIGCONT));
		ASSERT_EQ(0, wait_patiently(self->r));
	}
	s->step = 1;
	while ((rc = next(self->r, &rec)) == 1) {
		ASSERT_EQ(0, take(&k, &rec));
		ring_advance(self->r);
	}
	EXPECT_EQ(-EPIPE, rc);
	EXPECT_EQ(0, reap(&self->z, pid));
	check_gaps(_metadata, &k, s);
	EXPECT_EQ(0, k.ngaps);
	TH_LOG("%u records, %ld stops, %ld of them in the middle of a sequence", k.records, i,
	       midway);
	EXPECT_EQ(rseq_expected(), s->rseq);
	if (s->rseq)
		EXPECT_LT(0, midway);
	free(k.gaps);
}

/* ------------------------------------------------------------------------------------- fork */

static void refuse_child(struct ring *r)
{
	static const uint8_t full[48];
	struct ring_ticket t = { 1, 0 };
	int32_t status;

	if (ring_fd(r) != -ECHILD)
		_exit(10);
	if (ring_submit(r, 1, "child", 5, NULL, 0) != -ECHILD)
		_exit(11);
	if (ring_submit(r, 1, full, sizeof(full), NULL, 0) != -ECHILD)
		_exit(12);
	if (ring_call(r, 1, "child", 5, NULL, 0, &status, NULL, 0, NULL) != -ECHILD)
		_exit(13);
	if (ring_request(r, &t, 1, "child", 5, NULL, 0) != -ECHILD)
		_exit(14);
	if (ring_await(r, &t, &status, NULL, 0, NULL, 0) != -ECHILD)
		_exit(15);
	if (ring_error(r, NULL))
		_exit(16);
	ring_close(r);
	_exit(0);
}

static int status_of(pid_t pid)
{
	int status = -1;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

static void fork_client(int fd, void *arg)
{
	struct storm *s = arg;
	struct ring *r = attached(fd);
	uint32_t i, round;
	pid_t pid;

	for (i = 0; i < s->threads; i++) {
		threads[i].s = s;
		threads[i].r = r;
		threads[i].id = i;
		threads[i].seed = 2000 + i;
		NEED_OK(pthread_create(&threads[i].pthread, NULL, produce, &threads[i]));
	}
	for (round = 0; round < s->rounds; round++) {
		switch (round % 3) {
		case 0:
			pid = fork();
			break;
		case 1:
			pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
			break;
		default:
			pid = vfork();
			if (!pid) {
				execl("/bin/true", "true", NULL);
				_exit(0);
			}
		}
		if (!pid)
			refuse_child(r);
		NEED(pid > 0);
		NEED(status_of(pid) == 0);
		NEED_OK(ring_call(r, 1, NULL, 0, NULL, 0, NULL, NULL, 0, NULL));
	}
	over = 1;
	for (i = 0; i < s->threads; i++) {
		pthread_join(threads[i].pthread, NULL);
		s->total[i * LEVELS] = threads[i].n[0];
	}
	ring_close(r);
}

TEST_F(ring, a_fork_s_child_is_refused_and_its_parent_goes_on)
{
	struct storm *s = (void *)self->shm;
	struct taker k = { 0 };
	struct ring_record rec;
	uint32_t calls = 0;
	pid_t pid;
	int rc;

	ASSERT_EQ(0, ring_create(&self->r, &self->p));
	k.gaps = calloc(LEFT_MAX + PRODUCERS, sizeof(*k.gaps));
	s->threads = 2;
	s->rounds = scaled(240);
	pid = spawn_client(&self->z, self->r, fork_client, s);
	ASSERT_LT(0, pid);
	while ((rc = next(self->r, &rec)) == 1) {
		if (rec.cpl) {
			calls++;
			ring_complete(self->r, rec.cpl, rec.seq, 0, NULL, 0);
		} else {
			ASSERT_EQ(0, take(&k, &rec));
		}
		ring_advance(self->r);
	}
	EXPECT_EQ(-EPIPE, rc);
	EXPECT_EQ(0, reap(&self->z, pid));
	check_gaps(_metadata, &k, s);
	EXPECT_EQ(0, k.ngaps);
	EXPECT_EQ(s->rounds, calls);
	free(k.gaps);
}

TEST_HARNESS_MAIN
