// SPDX-License-Identifier: Apache-2.0
/*
 * client.c - the job of these tests: threads, a signal handler and children over one channel
 *
 * client FD MODE: the channel is on FD. The client runs until its proxy dies, or until SIGTERM,
 * upon which it sends an account of its items. It does not know of dumps. MODE is letters:
 *
 *   l	a launcher starts the client proper, and keeps the fd open itself
 *   a	waits for SIGUSR2 before it attaches; b: between that and the first submission
 *   p	single-threaded; reports membarrier's results: at first, after SIGUSR2, and later
 *   q	has no timer, whose signals would end a sleep that a wake-up should have ended
 *   o	has a file of /dev/singvgpu open that is no end of a channel, and checks it at the end
 *   t	is the client of another channel, too, over fd 4
 *   x	is the proxy of another channel
 *
 * SIGUSR1 makes it hold something that CRIU refuses to dump; the next SIGUSR1, release it.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ring.h"
#include "stream.h"

#define GET_REGISTRATIONS (1 << 9)	/* Linux 6.3 */

static struct ring *ring;
static int stop, died, wrong, resume;
static uint64_t next_item[STREAMS];
static uint64_t calls, timeouts, forks;
static __thread uint32_t self;
static __thread uint64_t seed;
static __thread bool active;

static uint64_t rnd(uint64_t below)
{
	seed = mix(seed, 1);
	return seed % below;
}

static void fail(const char *format, ...)
{
	va_list ap;

	if (__atomic_exchange_n(&wrong, 1, __ATOMIC_SEQ_CST))
		return;
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fputc('\n', stderr);
}

static bool ended(void)
{
	return __atomic_load_n(&stop, __ATOMIC_ACQUIRE) ||
	       __atomic_load_n(&died, __ATOMIC_ACQUIRE) ||
	       __atomic_load_n(&wrong, __ATOMIC_ACQUIRE);
}

/* Of a ring function: true if it succeeded. */
static bool check(int rc, const char *what)
{
	if (!rc)
		return true;
	if (rc == -EPIPE)
		__atomic_store_n(&died, 1, __ATOMIC_RELEASE);
	else
		fail("thread %u: %s: %s", self, what, ring_strerror(rc));
	return false;
}

static void pause_us(uint64_t us)
{
	struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

	nanosleep(&t, NULL);
}

/* ------------------------------------------------------------------------------ the streams */

static uint32_t new_item(uint8_t *buf, uint32_t stream)
{
	return item_make(buf, stream, next_item[stream]++);
}

static void send_item(uint32_t stream)
{
	uint8_t buf[ITEM_MAX];
	uint32_t len = new_item(buf, stream);
	uint32_t cut = len % 3 ? len : len / 2;

	check(ring_submit(ring, OP_ITEM, buf, cut, buf + cut, len - cut), "submit");
}

static void check_answer(const uint8_t *item, int32_t status, const uint64_t *data, uint32_t len)
{
	struct item h;

	memcpy(&h, item, sizeof(h));
	if (status != status_of(h.stream, h.n) || len != sizeof(*data) ||
	    *data != answer_of(h.stream, h.n))
		fail("stream %u, %lu: another's answer: status %d, %u bytes, %lx", h.stream, h.n,
		     status, len, *data);
	__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
}

static void call_item(uint16_t op)
{
	uint8_t buf[ITEM_MAX];
	uint32_t len = new_item(buf, 2 * self), got = 0;
	uint64_t data = 0;
	int32_t status = -1;

	if (check(ring_call(ring, op, buf, len, NULL, 0, &status, &data, sizeof(data), &got),
		  "call"))
		check_answer(buf, status, &data, got);
}

/* Several requests, then their answers. */
static void call_several(void)
{
	uint8_t buf[3][ITEM_MAX];
	struct ring_ticket t[3];
	int32_t status = -1;
	uint64_t data = 0;
	uint32_t got = 0;
	int i, n, rc;

	for (n = 0; n < 3; n++) {
		uint32_t len = new_item(buf[n], 2 * self);

		rc = ring_request(ring, &t[n], n == 1 ? OP_LATE : OP_CALL, buf[n], len, NULL, 0);
		if (!check(rc, "request"))
			break;
	}
	for (i = 0; i < n; i++) {
		rc = ring_await(ring, &t[i], &status, &data, sizeof(data), &got, -1);
		if (check(rc, "await"))
			check_answer(buf[i], status, &data, got);
	}
}

static void call_impatiently(void)
{
	uint8_t buf[ITEM_MAX];
	uint32_t len = new_item(buf, 2 * self), got = 0;
	struct ring_ticket t;
	uint64_t data = 0;
	int32_t status;
	int rc;

	if (!check(ring_request(ring, &t, OP_LATE, buf, len, NULL, 0), "request"))
		return;
	rc = ring_await(ring, &t, &status, &data, sizeof(data), &got, rnd(8000000));
	if (rc == -ETIMEDOUT)
		__atomic_fetch_add(&timeouts, 1, __ATOMIC_RELAXED);
	else if (check(rc, "await with a timeout"))
		check_answer(buf, status, &data, got);
}

/* A child has no channel, and is told so; also one that a dump has met in its sleep. */
static void have_child(void)
{
	sigset_t all, old;
	int status = 0;
	pid_t pid;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pid = fork();
	if (!pid) {
		struct timespec t = { .tv_nsec = 20000000 };
		int rc = ring_submit(ring, OP_ITEM, "x", 1, NULL, 0);

		nanosleep(&t, NULL);
		if (ring_submit(ring, OP_ITEM, "x", 1, NULL, 0) != -ECHILD)
			rc = 0;
		_exit(rc == -ECHILD ? 0 : 1);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (pid < 0) {
		fail("fork: %s", strerror(errno));
		return;
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (status)
		fail("a child ended with %#x", status);
	__atomic_fetch_add(&forks, 1, __ATOMIC_RELAXED);
}

static void *worker(void *arg)
{
	uint64_t what, i;

	self = (uintptr_t)arg;
	seed = mix(self + 77, 5);
	active = true;
	while (!ended()) {
		what = rnd(1000);
		if (what < 550)
			for (i = rnd(20); !ended() && i < 20; i++)
				send_item(2 * self);
		else if (what < 750)
			call_item(OP_CALL);
		else if (what < 830)
			call_several();
		else if (what < 900)
			call_item(OP_LATE);
		else if (what < 930)
			call_impatiently();
		else if (what < 980 || self)
			pause_us(rnd(1500));
		else
			have_child();
	}
	active = false;
	return NULL;
}

/* ---------------------------------------------------------------------------------- signals */

static pthread_t thread[THREADS];

/* The main thread takes the timer's signal and passes it on in turn. */
static void on_timer(int sig)
{
	static uint32_t turn;

	(void)sig;
	pthread_kill(thread[turn++ % THREADS], SIGURG);
}

static void on_turn(int sig)
{
	int saved = errno;

	(void)sig;
	if (active && !ended())
		send_item(2 * self + 1);
	errno = saved;
}

static void on_stop(int sig)
{
	(void)sig;
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
}

static void on_resume(int sig)
{
	(void)sig;
	__atomic_store_n(&resume, 1, __ATOMIC_RELEASE);
}

/* A userfaultfd is what CRIU knows, and does not dump. */
static void on_refusal(int sig)
{
	static int fd = -1;
	int saved = errno;

	(void)sig;
	if (fd >= 0) {
		close(fd);
		fd = -1;
	} else {
		fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	}
	errno = saved;
}

static void set_signals(void)
{
	struct sigaction a = { .sa_handler = on_timer };

	sigaction(SIGALRM, &a, NULL);
	a.sa_handler = on_turn;			/* no SA_RESTART: calls see EINTR */
	sigaction(SIGURG, &a, NULL);
	a.sa_flags = SA_RESTART;
	a.sa_handler = on_stop;
	sigaction(SIGTERM, &a, NULL);
	a.sa_handler = on_refusal;
	sigaction(SIGUSR1, &a, NULL);
	a.sa_handler = on_resume;
	sigaction(SIGUSR2, &a, NULL);
}

static void set_timer(long us)
{
	struct itimerval t = { .it_interval.tv_usec = us, .it_value.tv_usec = us };

	setitimer(ITIMER_REAL, &t, NULL);
}

static void hold(const char *mode, char at)
{
	if (!strchr(mode, at))
		return;
	while (!__atomic_load_n(&resume, __ATOMIC_ACQUIRE))
		pause_us(1000);
	resume = 0;
}

/* ------------------------------------------------------------------------------------- ends */

static int membarrier(int cmd)
{
	int rc = syscall(SYS_membarrier, cmd, 0, 0);

	return rc < 0 ? -errno : rc;
}

static void *submit_one(void *arg)
{
	self = (uintptr_t)arg;
	send_item(2 * self);
	return NULL;
}

/* Another thread's submission, twice: it must take the ring away from us by a membarrier. */
static void take_turns(void)
{
	pthread_t t;
	int i;

	for (i = 0; i < 2; i++) {
		send_item(0);
		if (pthread_create(&t, NULL, submit_one, (void *)(uintptr_t)1))
			fail("pthread_create");
		else
			pthread_join(t, NULL);
	}
}

static void probe(void)
{
	struct probe p;

	p.rseq[0] = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ);
	p.registered[0] = membarrier(GET_REGISTRATIONS);
	while (!__atomic_load_n(&resume, __ATOMIC_ACQUIRE))
		pause_us(1000);
	p.rseq[1] = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ);
	p.registered[1] = membarrier(GET_REGISTRATIONS);
	take_turns();
	p.rseq[2] = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ);
	check(ring_call(ring, OP_PROBE, &p, sizeof(p), NULL, 0, NULL, NULL, 0, NULL), "probe");
	while (!ended())
		pause_us(1000);
}

static void run_threads(const char *mode)
{
	uintptr_t i;

	for (i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, worker, (void *)i))
			exit(EXIT_WRONG);
	if (!strchr(mode, 'q'))
		set_timer(1000);
	while (!ended())
		pause_us(1000);
	set_timer(0);
	for (i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
}

/* What else the mode asks for. The fd of the file that is no end, or -1. */
static int have_more(const char *mode)
{
	struct ring_params p = { .backend = RING_KMOD, .id = "another", .cookie = "another's",
				 .geo = RING_GEOMETRY_DEFAULT };
	struct ring *other;

	p.geo.va += 1ull << 32;
	if (strchr(mode, 't'))
		check(ring_attach(&other, 4), "attach to another channel");
	if (strchr(mode, 'x'))
		check(ring_create(&other, &p), "create another channel");
	return strchr(mode, 'o') ? open(SINGVGPU_DEV_PATH, O_RDWR | O_CLOEXEC) : -1;
}

static bool still_no_end(int fd)
{
	struct singvgpu_info i;

	return !ioctl(fd, SINGVGPU_IOC_GET_INFO, &i) && i.role == SINGVGPU_ROLE_NONE;
}

static int client(int fd, const char *mode)
{
	struct end e = { 0 };
	int no_end;

	hold(mode, 'a');
	if (!check(ring_attach(&ring, fd), "attach"))
		return EXIT_WRONG;
	no_end = have_more(mode);
	hold(mode, 'b');
	if (strchr(mode, 'p'))
		probe();
	else
		run_threads(mode);
	if (wrong)
		return EXIT_WRONG;
	if (died)
		return EXIT_PEER_DIED;
	if (strchr(mode, 'o') && !still_no_end(no_end)) {
		fail("the file that was no end is not as it was");
		return EXIT_WRONG;
	}
	memcpy(e.next, next_item, sizeof(e.next));
	e.calls = calls;
	e.timeouts = timeouts;
	e.forks = forks;
	e.generation = ring_generation(ring);
	e.rseq = __rseq_size != 0;
	check(ring_call(ring, OP_END, &e, sizeof(e), NULL, 0, NULL, NULL, 0, NULL), "the end");
	ring_close(ring);
	return wrong || died ? EXIT_WRONG : 0;
}

static pid_t launched;

static void on_pass(int sig)
{
	kill(launched, sig);
}

static int launcher(int fd, const char *mode)
{
	struct sigaction a = { .sa_handler = on_pass };
	int status;

	launched = fork();
	if (!launched)
		exit(client(fd, mode));
	sigaction(SIGTERM, &a, NULL);
	sigaction(SIGUSR1, &a, NULL);
	sigaction(SIGUSR2, &a, NULL);
	while (waitpid(launched, &status, 0) < 0)
		if (errno != EINTR)
			return EXIT_WRONG;
	return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_WRONG;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[2] : "";
	int fd = argc > 1 ? atoi(argv[1]) : -1;

	setvbuf(stderr, NULL, _IONBF, 0);
	set_signals();
	return strchr(mode, 'l') ? launcher(fd, mode) : client(fd, mode);
}
