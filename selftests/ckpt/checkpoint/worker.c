// SPDX-License-Identifier: Apache-2.0
/*
 * worker.c - a process tree without a GPU, whose result depends on each of its rounds
 *
 *   worker ROUNDS [GO]
 *
 * In each round a number passes from the main thread by a pipe to a child, by loopback TCP to a
 * second child, by shared memory and a futex to a thread of the parent; each of them changes it.
 * Lost, repeated or mixed up rounds give another sum. A timer counts, too; each tenth round prints
 * a line. With GO the main thread waits half way until a file of that name exists.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

struct shared {
	uint32_t turn;		/* futex: 1 a number is there, 2 it is answered */
	uint64_t number;
	uint64_t table[1 << 16];	/* so that there is some memory */
};

static struct shared *sh;
static volatile sig_atomic_t ticks;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t mix(uint64_t x, uint64_t key)
{
	x = (x + key * 0xd1342543de82ef95ull + 1) * 0x9e3779b97f4a7c15ull;
	return x ^ x >> 29;
}

static void give(int fd, uint64_t n)
{
	if (write(fd, &n, sizeof(n)) != sizeof(n))
		die("write");
}

static int take(int fd, uint64_t *n)
{
	for (size_t have = 0; have < sizeof(*n);) {
		ssize_t r = read(fd, (char *)n + have, sizeof(*n) - have);

		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return 0;
		have += r;
	}
	return 1;
}

static void futex_wait(uint32_t old)
{
	syscall(SYS_futex, &sh->turn, FUTEX_WAIT, old, NULL, NULL, 0);
}

static void set_turn(uint32_t turn)
{
	__atomic_store_n(&sh->turn, turn, __ATOMIC_RELEASE);
	syscall(SYS_futex, &sh->turn, FUTEX_WAKE, 8, NULL, NULL, 0);
}

static void *answer(void *arg)
{
	(void)arg;
	for (uint64_t i = 0;; i++) {
		uint32_t turn;

		while ((turn = __atomic_load_n(&sh->turn, __ATOMIC_ACQUIRE)) != 1)
			futex_wait(turn);
		sh->number = mix(sh->number, sh->table[i * 7 % 64] + i);
		sh->table[i % (1 << 16)] += sh->number;
		set_turn(2);
	}
	return NULL;
}

static pid_t children[2];

/* From in to out. */
static pid_t relay(int in, int out, uint64_t key)
{
	pid_t pid = fork();
	uint64_t n;

	if (pid < 0)
		die("fork");
	if (pid)
		return pid;
	signal(SIGALRM, SIG_IGN);
	for (uint64_t i = 0; take(in, &n); i++)
		give(out, mix(n, key + i));
	_exit(0);
}

static void tcp_pair(int fd[2])
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int l = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(a);

	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (l < 0 || bind(l, (void *)&a, len) || listen(l, 1) || getsockname(l, (void *)&a, &len) ||
	    connect(fd[0], (void *)&a, len) || (fd[1] = accept(l, NULL, NULL)) < 0)
		die("tcp");
	close(l);
}

static void on_alarm(int sig)
{
	(void)sig;
	ticks++;
}

int main(int argc, char **argv)
{
	struct itimerval every = { { 0, 20000 }, { 0, 20000 } };
	long rounds = argc > 1 ? atol(argv[1]) : 100;
	int a[2], b[2], tcp[2];
	uint64_t n = 1;
	pthread_t t;

	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED || pipe(a) || pipe(b))
		die("start");
	tcp_pair(tcp);
	children[0] = relay(a[0], tcp[0], 1);
	children[1] = relay(tcp[1], b[1], 2);
	if (pthread_create(&t, NULL, answer, NULL))
		die("thread");
	signal(SIGALRM, on_alarm);
	setitimer(ITIMER_REAL, &every, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (long i = 1; i <= rounds; i++) {
		uint32_t turn;

		while (argc > 2 && i == rounds / 2 && access(argv[2], F_OK))
			usleep(1000);
		give(a[1], n);
		if (!take(b[0], &n))
			die("a child is gone");
		sh->number = n;
		set_turn(1);
		while ((turn = __atomic_load_n(&sh->turn, __ATOMIC_ACQUIRE)) != 2)
			futex_wait(turn);
		n = sh->number;
		usleep(2000);
		if (i % 10 == 0)
			printf("round %ld %016llx\n", i, (unsigned long long)n);
	}
	for (int i = 0; i < 2; i++) {
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
	}
	printf("sum %016llx, the timer %s\n", (unsigned long long)n, ticks > 3 ? "ran" : "stood");
	return 0;
}
