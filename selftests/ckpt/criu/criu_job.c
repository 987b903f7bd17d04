// SPDX-License-Identifier: Apache-2.0
/*
 * criu_job.c - a process tree that computes one number from all state that CRIU must carry over
 *
 * criu_job FOLDER STEPS FLAGS: each step passes a word through a child (pipes), a thread (a TCP
 * connection to ourselves), another thread (a condition), memory shared with the child, a memfd, an
 * unlinked file and the heap. FOLDER/step has the current step; the last twenty steps wait for a
 * file FOLDER/go. FOLDER/result gets the number at the end, stdout a line for each hundredth step.
 * Flags: u: an io_uring is open; h: it holds more memory (64 MiB); t: a step takes 20 ms, else 2;
 * d: it has a child of many threads that ends as soon as there is a file FOLDER/dies; s: one that has
 * stopped itself. No child is ever seen to be stopped or continued by another.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t ticks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static uint64_t question, reply;
static int asked;

static void fail(const char *what)
{
	fprintf(stderr, "criu_job: %s: %s\n", what, strerror(errno));
	exit(3);
}

static void on_tick(int sig)
{
	(void)sig;
	ticks++;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = (a ^ b) * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;

	x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
	return x ^ (x >> 32);
}

static void get(int fd, void *p, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = read(fd, (char *)p + at, len - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			fail("read");
		at += n;
	}
}

static void put(int fd, const void *p, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = write(fd, (const char *)p + at, len - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			fail("write");
		at += n;
	}
}

/* What comes in goes out, mixed. */
static void *echo(void *arg)
{
	int fd = (int)(intptr_t)arg;
	uint64_t x[64];

	for (;;) {
		get(fd, x, sizeof(x));
		for (int i = 0; i < 64; i++)
			x[i] = mix(x[i], i);
		put(fd, x, sizeof(x));
	}
	return NULL;
}

static void *answer(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (asked != 1)
			pthread_cond_wait(&cond, &lock);
		reply = mix(question, 99);
		asked = 2;
		pthread_cond_broadcast(&cond);
	}
	return NULL;
}

static uint64_t ask(uint64_t x)
{
	pthread_mutex_lock(&lock);
	question = x;
	asked = 1;
	pthread_cond_broadcast(&cond);
	while (asked != 2)
		pthread_cond_wait(&cond, &lock);
	x = reply;
	pthread_mutex_unlock(&lock);
	return x;
}

static int connect_to_us(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int l = socket(AF_INET, SOCK_STREAM, 0), s = socket(AF_INET, SOCK_STREAM, 0), c;
	socklen_t len = sizeof(a);
	pthread_t t;

	if (bind(l, (void *)&a, sizeof(a)) || listen(l, 1) || getsockname(l, (void *)&a, &len) ||
	    connect(s, (void *)&a, sizeof(a)))
		fail("TCP");
	c = accept(l, NULL, NULL);
	close(l);
	if (c < 0 || pthread_create(&t, NULL, echo, (void *)(intptr_t)c))
		fail("accept");
	return s;
}

/* A child that adds what it gets to memory that it shares with us. */
static pid_t start_child(int *to, int *from, uint64_t *shared)
{
	int in[2], out[2];
	uint64_t x;
	pid_t pid;

	if (pipe(in) || pipe(out))
		fail("pipe");
	pid = fork();
	if (!pid) {
		close(in[1]);
		close(out[0]);
		while (read(in[0], &x, sizeof(x)) == sizeof(x)) {
			*shared = mix(*shared, x);
			x = mix(x, getpid());
			put(out[1], &x, sizeof(x));
		}
		_exit(0);
	}
	close(in[0]);
	close(out[1]);
	*to = in[1];
	*from = out[0];
	return pid;
}

static void tell(const char *name, uint64_t x)
{
	char fresh[32];
	FILE *f;

	snprintf(fresh, sizeof(fresh), "%s.new", name);
	f = fopen(fresh, "w");
	if (!f || fprintf(f, "%lu\n", x) < 0 || fclose(f) || rename(fresh, name))
		fail(name);
}

static void *sleep_on(void *arg)
{
	pause();
	return arg;
}

/* Threads, so that whoever lets the process go needs a while for it. */
static void start_dying(void)
{
	pthread_t t;

	if (fork())
		return;
	for (int i = 0; i < 300; i++)
		pthread_create(&t, NULL, sleep_on, NULL);
	tell("threads", 300);
	while (access("dies", F_OK))
		;
	_exit(7);
}

static void start_stopped(void)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		close_range(3, ~0u, 0);	/* among them an end whose closing the other child sees */
		raise(SIGSTOP);
		_exit(8);
	}
	if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status))
		fail("a stopped child");
}

static int unlinked(void)
{
	int fd = open("gone", O_RDWR | O_CREAT | O_TRUNC, 0600);

	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) || unlink("gone"))
		fail("gone");
	return fd;
}

static void have_ring(void)
{
	struct io_uring_params p = { 0 };

	if (syscall(SYS_io_uring_setup, 8, &p) < 0)
		fail("io_uring_setup");
}

int main(int argc, char **argv)
{
	struct itimerval tick = { .it_interval.tv_usec = 5000, .it_value.tv_usec = 5000 };
	struct sigaction a = { .sa_handler = on_tick, .sa_flags = SA_RESTART };
	uint64_t x = 1, y[64], *shared, *heap, *mem;
	int to, from, tcp, file, steps, slow;
	size_t words;
	pthread_t t;
	pid_t child;

	if (argc != 4 || chdir(argv[1]))
		return 2;
	steps = atoi(argv[2]);
	slow = strchr(argv[3], 't') ? 20 : 2;
	words = (strchr(argv[3], 'h') ? 64 << 20 : 1 << 20) / 8;
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	child = start_child(&to, &from, shared);
	if (strchr(argv[3], 'd'))
		start_dying();
	if (strchr(argv[3], 's'))
		start_stopped();
	file = memfd_create("job", 0);
	if (ftruncate(file, 65536))
		fail("memfd");
	mem = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	heap = malloc(words * 8);
	for (size_t i = 0; i < words; i++)
		heap[i] = mix(i, 7);
	if (strchr(argv[3], 'u'))
		have_ring();
	tcp = connect_to_us();
	file = unlinked();
	if (pthread_create(&t, NULL, answer, NULL))
		fail("thread");
	sigaction(SIGALRM, &a, NULL);
	setitimer(ITIMER_REAL, &tick, NULL);
	for (int i = 0; i < steps; i++) {
		struct timespec nap = { .tv_nsec = slow * 1000000 };
		int before = ticks;

		/* Nobody waits for us that long. */
		for (int w = 0; i == steps - 20 && access("go", F_OK); w++) {
			nanosleep(&nap, NULL);
			if (w == 600000)
				fail("go");
		}
		put(to, &x, sizeof(x));
		get(from, &x, sizeof(x));
		x = ask(x) ^ *shared;
		for (int k = 0; k < 64; k++)
			y[k] = x + k;
		put(tcp, y, sizeof(y));
		get(tcp, y, sizeof(y));
		for (int k = 0; k < 64; k++)
			x = mix(x, y[k]);
		mem[x % 8192] += x;
		heap[x % words] += mem[i % 8192];
		x = mix(x, heap[i * 977 % words]);
		put(file, &x, sizeof(x));
		tell("step", i);
		if (i % 100 == 0) {
			printf("step %d\n", i);
			fflush(stdout);
		}
		while (nanosleep(&nap, &nap) && errno == EINTR)
			;
		/* The timer goes on. */
		for (int w = 0; i % 100 == 50 && ticks == before && w < 6000; w++) {
			nap.tv_nsec = 10000000;
			nanosleep(&nap, NULL);
			if (w == 5999)
				fail("the timer");
		}
	}
	for (int i = 0; i < steps; i++) {
		uint64_t word;

		if (pread(file, &word, 8, 8L * i) != 8)
			fail("the unlinked file");
		x = mix(x, word);
	}
	for (size_t i = 0; i < words; i++)
		x = mix(x, heap[i]);
	tell("result", x);
	if (waitpid(child, NULL, WUNTRACED | WCONTINUED | WNOHANG))
		fail("the child, which was stopped");
	close(to);
	if (waitpid(child, NULL, 0) < 0)	/* it would be told of, were it there a moment longer than we are */
		fail("the child");
	printf("end\n");
	return 0;
}
