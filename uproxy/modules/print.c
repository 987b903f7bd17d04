// SPDX-License-Identifier: Apache-2.0
/*
 * print.c - device printf: carries what kernels print to the client's stdout and stderr
 *
 * A driver writes kernels' output to its process's stdout and stderr, which are two memfds here.
 * Before a synchronisation is answered, when the driver has flushed its own buffer, the new output
 * is moved into the rings of sv_shared. A file, unlike a pipe, never blocks its writer: so they are
 * there before the driver is loaded. What it has said where no session came is logged (print_unsaid).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "print.h"

static struct {
	int fd;			/* the memfd; also 1 and 2; 0: not yet */
	uint64_t read;		/* moved so far */
	uint64_t off, size;	/* copies of sv_print's, which the client can change */
	uint64_t head;
} out[2];
static struct lock lock = LOCK_INIT(PROXY_PRINT);

/* Continues the rings of a restored session; the client could change their positions. */
static void go_on(struct sv_session *s, int i)
{
	struct sv_print *p = &s->shared->print[i];

	out[i].head = p->head;
	if (p->head - p->tail > out[i].size)
		p->tail = p->head;
}

int print_begin(void)
{
	fflush(stdout);
	for (int i = 0; i < 2; i++) {
		if (out[i].fd)
			continue;
		out[i].fd = memfd_create(i ? "stderr" : "stdout", MFD_CLOEXEC);
		if (out[i].fd < 0 || fcntl(out[i].fd, F_SETFL, O_APPEND) < 0 ||
		    dup2(out[i].fd, i + 1) < 0)
			return -errno;
	}
	/* Without stdio's buffer the driver's output reaches the memfd at once. */
	setvbuf(stdout, NULL, _IONBF, 0);
	return 0;
}

void print_unsaid(void)
{
	char line[512];
	FILE *in;

	for (int i = 0; i < 2; i++) {
		in = out[i].fd > 0 ? fdopen(dup(out[i].fd), "r") : NULL;
		if (!in)
			continue;
		fseek(in, out[i].read, SEEK_SET);
		while (fgets(line, sizeof(line), in)) {
			line[strcspn(line, "\n")] = 0;
			uproxy_say("%s", line);
		}
		fclose(in);
	}
}

int print_init(struct sv_session *s, uint64_t out_off, uint64_t out_size, uint64_t err_off,
	       uint64_t err_size, bool restored)
{
	uint64_t off[2] = { out_off, err_off }, size[2] = { out_size, err_size };

	if (print_begin())
		return -errno;
	for (int i = 0; i < 2; i++) {
		out[i].off = off[i];
		out[i].size = size[i];
		s->shared->print[i].off = off[i];
		s->shared->print[i].size = size[i];
		if (restored)
			go_on(s, i);
	}
	return 0;
}

static void move(struct sv_session *s, int i, uint64_t end)
{
	struct sv_print *p = &s->shared->print[i];
	/* pairs with print_one() of the client: it has read what is before its tail */
	uint64_t used = out[i].head - __atomic_load_n(&p->tail, __ATOMIC_ACQUIRE);
	uint64_t room = used < out[i].size ? out[i].size - used : 0;

	while (out[i].read < end) {
		uint64_t n = end - out[i].read, at = out[i].head & (out[i].size - 1);
		ssize_t got;

		if (!room) {
			__atomic_fetch_add(&p->dropped, n, __ATOMIC_RELAXED);
			__atomic_store_n(&out[i].read, end, __ATOMIC_RELAXED);
			break;
		}
		if (n > room)
			n = room;
		if (n > out[i].size - at)
			n = out[i].size - at;
		got = pread(out[i].fd, (char *)s->shared + out[i].off + at, n, out[i].read);
		if (got <= 0)
			break;
		__atomic_store_n(&out[i].read, out[i].read + got, __ATOMIC_RELAXED);
		out[i].head += got;
		room -= got;
	}
	__atomic_store_n(&p->head, out[i].head, __ATOMIC_RELEASE);
	/* Give back what was read; the file's end only grows, since writers append. */
	fallocate(out[i].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, out[i].read);
}

void print_pump(struct sv_session *s)
{
	struct stat st;

	if (!out[0].size)
		return;
	for (int i = 0; i < 2; i++) {
		if (fstat(out[i].fd, &st) ||
		    (uint64_t)st.st_size == __atomic_load_n(&out[i].read, __ATOMIC_RELAXED))
			continue;
		lock_take(&lock);
		if ((uint64_t)st.st_size > out[i].read)
			move(s, i, st.st_size);
		lock_drop(&lock);
	}
}
