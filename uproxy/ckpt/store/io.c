// SPDX-License-Identifier: Apache-2.0
/*
 * io.c - all disk I/O of the store, in one place where tests can make it fail
 *
 * A lane is a set of requests in flight. Short reads and writes are continued here, from the page
 * boundary before their end, as O_DIRECT requires.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store_i.h"

int (*store_io_hook)(struct io_event *e);

static int hook(enum io_op op, const char *name, const char *to, uint64_t off, size_t *len)
{
	struct io_event e = { op, name, to, off, len ? *len : 0 };
	int err;

	if (!store_io_hook)
		return 0;
	err = store_io_hook(&e);
	if (len)
		*len = e.len;
	return err;
}

int store_io_open(int dir, const char *name, int flags, mode_t mode)
{
	int err = flags & O_CREAT ? hook(IO_CREATE, name, NULL, 0, NULL) : 0;
	struct stat st;
	int fd;

	if (err)
		return err;
	/* O_NONBLOCK: the open of a FIFO would wait for its other end. */
	fd = openat(dir, name, flags | O_CLOEXEC | O_NONBLOCK, mode);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st))
		err = -errno;
	else if (!S_ISREG(st.st_mode))
		err = -ENXIO;
	else if (fcntl(fd, F_SETFL, flags & O_DIRECT))
		err = -errno;
	if (err)
		close(fd);
	return err ?: fd;
}

ssize_t store_io_read(int fd, const char *name, void *buf, size_t len, uint64_t off)
{
	int err = hook(IO_READ, name, NULL, off, &len);
	ssize_t n;

	if (err)
		return err;
	do
		n = pread(fd, buf, len, off);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

int store_io_read_exact(int fd, const char *name, void *buf, size_t len, uint64_t off)
{
	for (ssize_t n; len; buf = (char *)buf + n, len -= n, off += n) {
		n = store_io_read(fd, name, buf, len, off);
		if (n < 0)
			return n;
		if (!n)
			return -ENODATA;
	}
	return 0;
}

int store_io_write(int fd, const char *name, const void *buf, size_t len, uint64_t off)
{
	while (len) {
		size_t part = len;
		int err = hook(IO_WRITE, name, NULL, off, &part);
		ssize_t n;

		if (err)
			return err;
		n = pwrite(fd, buf, part, off);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		buf = (const char *)buf + n;
		len -= n;
		off += n;
	}
	return 0;
}

int store_io_sync(int fd, const char *name)
{
	int err = hook(IO_SYNC, name, NULL, 0, NULL);

	return err ? err : fsync(fd) ? -errno : 0;
}

int store_io_truncate(int fd, const char *name, uint64_t len)
{
	int err = hook(IO_TRUNCATE, name, NULL, len, NULL);

	return err ? err : ftruncate(fd, len) ? -errno : 0;
}

int store_io_allocate(int fd, const char *name, uint64_t len)
{
	int err = hook(IO_ALLOCATE, name, NULL, len, NULL);

	if (!err && !fallocate(fd, 0, 0, len))
		return 1;
	/* ext4 and others leave what there was room for, and the file as long as that. */
	return store_io_truncate(fd, name, 0);
}

int store_io_rename(int dir, const char *from, const char *to)
{
	int err = hook(IO_RENAME, from, to, 0, NULL);

	return err ? err : renameat(dir, from, dir, to) ? -errno : 0;
}

/* NFS and 9p do not know the flag, but have links. */
int io_rename_new(int dir, const char *from, const char *to)
{
	int err = hook(IO_RENAME, from, to, 0, NULL);

	if (err)
		return err;
	if (!renameat2(dir, from, dir, to, RENAME_NOREPLACE))
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	return linkat(dir, from, dir, to, 0) || unlinkat(dir, from, 0) ? -errno : 0;
}

int store_io_unlink(int dir, const char *name)
{
	int err = hook(IO_UNLINK, name, NULL, 0, NULL);

	return err ? err : unlinkat(dir, name, 0) ? -errno : 0;
}

int store_io_sync_dir(int dir, const char *name)
{
	int fd, err = hook(IO_DIRSYNC, name, NULL, 0, NULL);

	if (err)
		return err;
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	err = fsync(fd) ? -errno : 0;
	close(fd);
	return err;
}

/* ------------------------------------------------------------------------------ lanes */

void store_io_lane_init(struct io_lane *l, unsigned int depth)
{
	*l = (struct io_lane){ .depth = depth };
	l->uring = io_uring_queue_init(depth, &l->ring, 0) == 0;
}

void store_io_lane_exit(struct io_lane *l)
{
	while (store_io_lane_wait(l))
		;
	if (l->uring)
		io_uring_queue_exit(&l->ring);
	l->uring = false;
}

static void bring_back(struct io_lane *l, struct io_req *r, int res)
{
	r->res = res;
	r->next = l->back;
	l->back = r;
}

/* Submits the part of a request that the hook has left; the rest follows when that is complete. */
static void fly(struct io_lane *l, struct io_req *r, size_t len)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&l->ring);
	uint64_t off = r->off + r->done;
	uint8_t *buf = r->buf ? r->buf + r->done : NULL;

	while (!sqe) {	/* the queue is as deep as the lane, unless _add was called too often */
		io_uring_submit(&l->ring);
		sqe = io_uring_get_sqe(&l->ring);
	}
	if (r->op == IO_SYNC)
		io_uring_prep_fsync(sqe, r->fd, IORING_FSYNC_DATASYNC);
	else if (r->iov)
		io_uring_prep_readv(sqe, r->fd, r->iov, r->niov, off);
	else if (r->op == IO_READ)
		io_uring_prep_read(sqe, r->fd, buf, len, off);
	else
		io_uring_prep_write(sqe, r->fd, buf, len, off);
	io_uring_sqe_set_data(sqe, r);
	l->flying++;
}

/* Reads bytes [from, to) of a vector's request, one piece after the other. */
static int read_vector(const struct io_req *r, size_t from, size_t to)
{
	size_t at = 0;

	for (unsigned int i = 0; i < r->niov && at < to; at += r->iov[i++].iov_len) {
		size_t end = at + r->iov[i].iov_len < to ? at + r->iov[i].iov_len : to;
		size_t begin = from > at ? from : at;

		while (begin < end) {
			ssize_t n = pread(r->fd, (char *)r->iov[i].iov_base + (begin - at),
					  end - begin, r->off + begin);

			if (n < 0 && errno == EINTR)
				continue;
			if (n <= 0)
				return n ? -errno : -ENODATA;
			begin += n;
		}
	}
	return 0;
}

static int walk(struct io_req *r, size_t len)
{
	ssize_t n;

	if (r->iov) {
		len = len < STORE_PAGE ? len : len & ~(size_t)(STORE_PAGE - 1);
		n = read_vector(r, 0, len);
		return n ? n : (int)len;
	}
	if (r->op == IO_SYNC)
		n = fdatasync(r->fd);
	else if (r->op == IO_READ)
		n = pread(r->fd, r->buf + r->done, len, r->off + r->done);
	else
		n = pwrite(r->fd, r->buf + r->done, len, r->off + r->done);
	return n < 0 ? -errno : n;
}

/* Takes the result of one try. Returns true when the request is complete and its res is set. */
static bool landed(struct io_req *r, int n)
{
	r->res = 0;
	if (n == -EINTR || n == -EAGAIN)
		return false;
	if (n < 0)
		r->res = n;
	else if (r->op == IO_SYNC || r->done + n == r->len)
		r->done = r->len;
	else if (r->iov)	/* short: read the rest synchronously */
		r->res = read_vector(r, n & ~(STORE_PAGE - 1), r->len);
	else if (n == 0 || (r->op == IO_READ && n % STORE_PAGE))
		r->res = r->op == IO_READ ? -ENODATA : -EIO;
	else {
		r->done = (r->done + n) & ~(size_t)(STORE_PAGE - 1);
		return false;
	}
	return true;
}

static void start(struct io_lane *l, struct io_req *r)
{
	for (;;) {
		size_t len = r->len - r->done;
		int err = hook(r->op, r->name, NULL, r->off + r->done, &len);

		if (err) {
			bring_back(l, r, err);
			return;
		}
		if (l->uring && !(r->iov && len < r->len)) {
			fly(l, r, len);
			return;
		}
		if (landed(r, walk(r, len))) {
			bring_back(l, r, r->res);
			return;
		}
	}
}

void store_io_lane_add(struct io_lane *l, struct io_req *r)
{
	r->done = 0;
	start(l, r);
}

void store_io_lane_go(struct io_lane *l)
{
	if (l->uring && io_uring_sq_ready(&l->ring))
		io_uring_submit(&l->ring);
}

static struct io_req *take_back(struct io_lane *l)
{
	struct io_req *r = l->back;

	if (r)
		l->back = r->next;
	return r;
}

struct io_req *store_io_lane_poll(struct io_lane *l)
{
	struct io_uring_cqe *cqe;
	struct io_req *r;
	int n;

	while (!l->back && l->flying && io_uring_peek_cqe(&l->ring, &cqe) == 0) {
		r = io_uring_cqe_get_data(cqe);
		n = cqe->res;
		io_uring_cqe_seen(&l->ring, cqe);
		l->flying--;
		if (landed(r, n))
			return r;
		start(l, r);
		store_io_lane_go(l);
	}
	return take_back(l);
}

struct io_req *store_io_lane_wait(struct io_lane *l)
{
	struct io_req *r = store_io_lane_poll(l);

	while (!r && l->flying) {
		io_uring_submit_and_wait(&l->ring, 1);
		r = store_io_lane_poll(l);
	}
	return r;
}
