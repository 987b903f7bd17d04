// SPDX-License-Identifier: Apache-2.0
/*
 * linked.c - a job whose files have lost the names by which it opened them
 *
 * linked DIR NAME STEPS GO [check]: two processes share, below DIR,
 *
 *   NAME.sem    as sem_open() makes it: mapped under a temporary name, which is gone; the other is left
 *   NAME.gone   mapped, without any name
 *   NAME.fd     open at both, from its middle on; the second process has it from a message
 *   NAME.solo   mapped; somebody else gives it another name and removes this one
 *
 * Each step one writes into all of them and the other adds up what it finds. It takes its time until
 * there is a file GO. "check": in the end the names that are left must lead to what is mapped and
 * open. The result is the last line.
 */
#include <err.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE	(300 << 10)
#define AT	200000

static const char *dir, *name;

static char *path_of(const char *what)
{
	char *path;

	if (asprintf(&path, "%s/%s.%s", dir, name, what) < 0)
		err(1, "asprintf");
	return path;
}

/* A file of SIZE that is open. */
static int make(const char *what)
{
	int fd = open(path_of(what), O_RDWR | O_CREAT | O_EXCL, 0640);

	if (fd < 0 || ftruncate(fd, SIZE) || pwrite(fd, "begin", 5, 0) != 5)
		err(1, "%s", path_of(what));
	return fd;
}

static uint32_t *map(int fd)
{
	void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		err(1, "mmap");
	return at;
}

static void send_fd(int s, int fd)
{
	char room[CMSG_SPACE(sizeof(int))] = "", byte = 'f';
	struct iovec iov = { &byte, 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room,
			    .msg_controllen = sizeof(room) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	if (sendmsg(s, &m, 0) != 1)
		err(1, "sendmsg");
}

static int receive_fd(int s)
{
	char room[CMSG_SPACE(sizeof(int))], byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room,
			    .msg_controllen = sizeof(room) };
	int fd;

	if (recvmsg(s, &m, 0) != 1 || !CMSG_FIRSTHDR(&m))
		err(1, "recvmsg");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

/* The second process: adds up what the first one wrote, and answers with the sum. */
static void second(int s, uint32_t *sem, uint32_t *gone, uint32_t *solo)
{
	int fd = receive_fd(s);
	uint64_t sum = 0;
	uint32_t step, read;

	while (recv(s, &step, sizeof(step), 0) == sizeof(step)) {
		if (pread(fd, &read, sizeof(read), AT) != sizeof(read))
			err(1, "pread");
		sum = sum * 31 + sem[step % 1000] + 3 * gone[AT / 4] + 5 * solo[step % 7 * 1000] +
		      7 * read;
		gone[AT / 4 + 1] = sum;
		send(s, &sum, sizeof(sum), 0);
	}
	exit(0);
}

int main(int argc, char **argv)
{
	uint32_t *sem, *gone, *solo, *again;
	int steps = argc > 3 ? atoi(argv[3]) : 0, s[2], fd, half;
	uint64_t sum = 0;
	char byte = 0;

	if (argc < 5)
		errx(2, "linked DIR NAME STEPS GO [check]");
	dir = argv[1];
	name = argv[2];
	fd = make("temporary");
	sem = map(fd);
	close(fd);
	if (link(path_of("temporary"), path_of("sem")) || unlink(path_of("temporary")))
		err(1, "link");
	fd = make("gone");
	gone = map(fd);
	unlink(path_of("gone"));
	close(fd);
	half = make("fd");
	link(path_of("fd"), path_of("kept"));
	unlink(path_of("fd"));
	lseek(half, AT, SEEK_SET);
	fd = make("solo");
	solo = map(fd);
	close(fd);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s))
		err(1, "socketpair");
	if (!fork()) {
		close(s[0]);
		close(half);
		second(s[1], sem, gone, solo);
	}
	close(s[1]);
	send_fd(s[0], half);
	for (uint32_t step = 0; step < (uint32_t)steps; step++) {
		sem[step % 1000] += step;
		gone[AT / 4] = step * step;
		solo[step % 7 * 1000] += step;
		if (lseek(half, 0, SEEK_CUR) != AT)
			errx(1, "the position in the file is another");
		if (pwrite(half, &step, sizeof(step), AT) != sizeof(step))
			err(1, "write");
		send(s[0], &step, sizeof(step), 0);
		if (recv(s[0], &sum, sizeof(sum), 0) != sizeof(sum))
			err(1, "the second process");
		if (gone[AT / 4 + 1] != (uint32_t)sum)
			errx(1, "what has no name is not shared");
		printf("step %u\n", step);
		fflush(stdout);
		usleep(access(argv[4], F_OK) ? 20000 : 0);
	}
	close(s[0]);
	wait(NULL);
	if (argc > 5) {
		fd = open(path_of("sem"), O_RDWR);
		again = fd < 0 ? NULL : map(fd);
		sem[5000] = 4711;
		if (!again || again[5000] != 4711)
			errx(1, "the name does not lead to what is mapped");
		fd = open(path_of("kept"), O_RDONLY);
		lseek(half, 0, SEEK_SET);
		if (write(half, "?", 1) != 1 || pread(fd, &byte, 1, 0) != 1 || byte != '?')
			errx(1, "the name does not lead to what is open");
	}
	unlink(path_of("sem"));
	unlink(path_of("kept"));
	printf("sum %llx %x %x\n", (unsigned long long)sum, sem[7], solo[3000]);
	return 0;
}
