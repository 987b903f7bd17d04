// SPDX-License-Identifier: Apache-2.0
/*
 * ipc.c - what processes of a job share: System V's and POSIX's objects, futexes, pipes
 */
#include <linux/futex.h>
#include <mqueue.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "kinds.h"

static int set_id = -1, queue_id = -1, segment_id = -1;

/* No System V object of ours stays, whatever happens: their processes end by exit(). */
static void remove_all(void)
{
	if (set_id >= 0)
		semctl(set_id, 0, IPC_RMID);
	if (queue_id >= 0)
		msgctl(queue_id, IPC_RMID, NULL);
	if (segment_id >= 0)
		shmctl(segment_id, IPC_RMID, NULL);
}

static void set(void)
{
	struct sembuf up = { 0, 3, 0 };
	int value;

	set_id = semget(IPC_PRIVATE, 2, 0600);
	NEED(set_id >= 0 && !semop(set_id, &up, 1));
	stand();
	value = semctl(set_id, 0, GETVAL);
	remove_all();
	IS(value == 3);
}

static void set_of_a_dead(void)
{
	struct sembuf up = { 0, 3, 0 };
	int value;
	pid_t pid;

	set_id = semget(IPC_PRIVATE, 1, 0600);
	pid = fork();
	if (!pid)
		_exit(semop(set_id, &up, 1) != 0);
	NEED(set_id >= 0 && waitpid(pid, NULL, 0) == pid);
	stand();
	value = semctl(set_id, 0, GETVAL);
	remove_all();
	IS(value == 3);
}

static void queue(void)
{
	struct { long type; char text[8]; } m = { 5, "queued" };
	ssize_t n;

	queue_id = msgget(IPC_PRIVATE, 0600);
	NEED(queue_id >= 0 && !msgsnd(queue_id, &m, sizeof(m.text), 0));
	stand();
	memset(&m, 0, sizeof(m));
	n = msgrcv(queue_id, &m, sizeof(m.text), 5, IPC_NOWAIT);
	remove_all();
	IS(n == sizeof(m.text) && same(m.text, "queued"));
}

static void segment(void)
{
	char *p;

	segment_id = shmget(IPC_PRIVATE, 4096, 0600);
	p = shmat(segment_id, NULL, 0);
	NEED(segment_id >= 0 && p != (void *)-1);
	strcpy(p, "shared");
	stand();
	remove_all();
	IS(same(p, "shared"));
}

static void segment_detached(void)
{
	char *p;

	segment_id = shmget(IPC_PRIVATE, 4096, 0600);
	p = shmat(segment_id, NULL, 0);
	NEED(segment_id >= 0 && p != (void *)-1);
	strcpy(p, "shared");
	NEED(!shmdt(p));
	stand();
	p = shmat(segment_id, NULL, 0);
	remove_all();
	IS(p != (void *)-1 && same(p, "shared"));
}

static void name_of(char *name, size_t size)
{
	snprintf(name, size, "/kinds-%d", getpid());
}

static void named_memory(void)
{
	char name[32], *p;
	int fd;

	name_of(name, sizeof(name));
	fd = shm_open(name, O_RDWR | O_CREAT, 0600);
	NEED(fd >= 0 && !ftruncate(fd, 4096));
	p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(p != MAP_FAILED);
	strcpy(p, "named");
	stand();
	shm_unlink(name);
	IS(same(p, "named"));
}

static void named_semaphore(void)
{
	char name[32];
	sem_t *s;
	int n;

	name_of(name, sizeof(name));
	s = sem_open(name, O_CREAT, 0600, 2);
	NEED(s != SEM_FAILED && !sem_unlink(name));
	stand();
	IS(!sem_getvalue(s, &n) && n == 2 && !sem_wait(s));
}

static void message_queue(void)
{
	struct mq_attr a = { .mq_maxmsg = 4, .mq_msgsize = 16 };
	char name[32], is[16] = "";
	mqd_t q;
	bool got;

	name_of(name, sizeof(name));
	q = mq_open(name, O_RDWR | O_CREAT, 0600, &a);
	NEED(q >= 0 && !mq_send(q, "queued", 6, 1));
	mq_unlink(name);
	stand();
	got = mq_receive(q, is, sizeof(is), NULL) == 6 && same(is, "queued");
	IS(got);
}

static void *page(void)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	NEED(p != MAP_FAILED);
	return p;
}

static void futex_wait(void)
{
	uint32_t *word = page();
	int status;
	pid_t pid = fork();

	NEED(pid >= 0);
	if (!pid) {
		while (!__atomic_load_n(word, __ATOMIC_ACQUIRE))
			syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
		_exit(0);
	}
	stand();
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
	IS(waitpid(pid, &status, 0) == pid && !status);
}

static void robust_mutex(void)
{
	pthread_mutex_t *m = page();
	pthread_mutexattr_t a;
	int *held = (int *)(m + 1), rc;
	pid_t pid;

	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	NEED(!pthread_mutex_init(m, &a));
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		pthread_mutex_lock(m);
		__atomic_store_n(held, 1, __ATOMIC_RELEASE);
		while (pause())
			;
	}
	while (!__atomic_load_n(held, __ATOMIC_ACQUIRE))
		usleep(1000);
	stand();
	IS(pthread_mutex_trylock(m) == EBUSY && !kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	rc = pthread_mutex_lock(m);
	IS(rc == EOWNERDEAD);
}

static void shared_semaphore(void)
{
	sem_t *s = page();
	int status;
	pid_t pid;

	NEED(!sem_init(s, 1, 0));
	pid = fork();
	NEED(pid >= 0);
	if (!pid)
		_exit(sem_wait(s) != 0);
	stand();
	IS(!sem_post(s) && waitpid(pid, &status, 0) == pid && !status);
}

static void pipe_between(void)
{
	int p[2], status;
	char is[8];
	pid_t pid;

	NEED(!pipe(p));
	pid = fork();
	NEED(pid >= 0);
	if (!pid)
		_exit(read(p[0], is, sizeof(is)) != 2);
	stand();
	IS(write(p[1], "go", 2) == 2 && waitpid(pid, &status, 0) == pid && !status);
}

static void sockets_between(void)
{
	int s[2], status;
	char is[8];
	pid_t pid;

	NEED(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s));
	pid = fork();
	NEED(pid >= 0);
	if (!pid)
		_exit(recv(s[1], is, sizeof(is), 0) != 2);
	stand();
	IS(send(s[0], "go", 2, 0) == 2 && waitpid(pid, &status, 0) == pid && !status);
}

static void event_between(void)
{
	int fd = eventfd(0, 0), status;
	uint64_t n = 3;
	pid_t pid = fork();

	NEED(pid >= 0 && fd >= 0);
	if (!pid)
		_exit(read(fd, &n, sizeof(n)) != sizeof(n) || n != 3);
	stand();
	IS(write(fd, &n, sizeof(n)) == sizeof(n) && waitpid(pid, &status, 0) == pid && !status);
}

static const struct kind kinds[] = {
	{ "sysv-semaphores", set, true }, { "sysv-semaphores-of-an-ended", set_of_a_dead, true },
	{ "sysv-queue", queue, true }, { "sysv-memory", segment, true },
	{ "sysv-memory-detached", segment_detached, true }, { "posix-memory", named_memory, false },
	{ "posix-semaphore", named_semaphore, false }, { "posix-queue", message_queue, true },
	{ "futex-shared", futex_wait, false }, { "mutex-robust", robust_mutex, false },
	{ "semaphore-shared", shared_semaphore, false }, { "pipe-between", pipe_between, false },
	{ "sockets-between", sockets_between, false }, { "eventfd-between", event_between, false }, { 0 }
};

const struct family ipc_family = { "IPC", kinds };
