// SPDX-License-Identifier: Apache-2.0
/*
 * images.c - serves CRIU's --stream protocol, both ways
 *
 * CRIU connects once. For each image it sends u32le length and a protobuf { 1: name }. In a dump it
 * then sends a byte with the read end of a pipe; in a restore it wants an answer { 1: is it there }
 * first, and then sends the write end. The end of a pipe ends an image.
 *
 *   dump      CRIU ══ pipes ══► reader ── blocks ──► keeper ──► sink     (two threads)
 *   restore   source ──► server, and a thread for each large image ══ pipes ══► CRIU
 *
 * The tree is frozen while a dump's pipes are emptied, so the reader does nothing but that.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "criu_i.h"
#include "images_i.h"
#include "tree.h"

#define BLOCK		(1u << 20)	/* bytes of one write to the sink */
#define BLOCKS		24		/* in flight between reader and keeper */
#define SMALL		65536u		/* larger images are objects of their own, ... */
#define KEPT_MAX	(64u << 20)	/* ... but for those that links.c reads */
#define PIPE_SIZE	(4 << 20)
#define NAME_MAX_LEN	200

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct small {			/* in the object of small images: this, its name, its bytes */
	uint32_t name_len, zero;
	uint64_t len;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct small) == 16, "file format");

struct image {
	struct image *next;
	char name[NAME_MAX_LEN + 1];
	int fd;			/* reader; -1: ended */
	char *head;		/* reader, then keeper: the first SMALL bytes, or all of a kept one */
	size_t head_len, head_room;
	char *block;		/* reader: being filled */
	size_t len;
	bool large;		/* reader: the head has gone to the keeper */
	void *object;		/* keeper */
	uint64_t off;		/* keeper */
	bool failed;		/* keeper */
	/* restore */
	uint64_t size;
	pthread_t thread;
};

struct item {			/* from the reader to the keeper */
	struct image *image;
	char *block;		/* NULL: the image has ended */
	size_t len;
};

struct images {
	bool serving;
	struct images_sink sink;
	struct images_source source;
	int listen, conn, wake, still;
	pthread_t reader, keeper;
	bool has_keeper;
	struct image *all;	/* reader */
	struct pollfd *poll;	/* reader */
	size_t room;
	char *memory;		/* BLOCKS blocks */

	pthread_mutex_t lock;	/* for what follows */
	pthread_cond_t cond;
	char *free[BLOCKS];
	int n_free;
	struct item *queue;
	size_t head, tail, queue_room;
	bool stop;
	int settling;		/* 1: requested, 2: the reader has finished, 3: pack, 4: the keeper has finished */
	int error;
	char what[64];
	uint64_t bytes;
	uint64_t process_ns, clock_ns;	/* images_asked(); atomic */
	bool clock_given;	/* restore: the image of clocks; the server's */
	struct image *added;	/* by images_add() */

	/* restore: the small images */
	char *small;
	size_t small_len;
	struct direct *direct;	/* pages that bypass CRIU; NULL: none */
	char *instead;		/* served in place of the image instead_of; lock */
	size_t instead_len;
	char instead_of[NAME_MAX_LEN + 1];
};

/* By the one thread. A look at stop follows: images_close() sets that, and then reads conn. */
static void set_conn(struct images *i, int fd)
{
	__atomic_store_n(&i->conn, fd, __ATOMIC_SEQ_CST);
}

static void fail(struct images *i, int err, const char *what)
{
	pthread_mutex_lock(&i->lock);
	if (!i->error && !i->stop) {
		__atomic_store_n(&i->error, err, __ATOMIC_RELAXED);
		snprintf(i->what, sizeof(i->what), "%.63s", what);
	}
	pthread_cond_broadcast(&i->cond);
	pthread_mutex_unlock(&i->lock);
}

/* Starts a thread with all signals blocked; write() reports a broken pipe. */
static int start(pthread_t *t, void *(*run)(void *), void *arg)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(t, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -err;
}

/* Raises this thread's priority, since a tree is frozen while it works. */
static void hurry(void)
{
	setpriority(PRIO_PROCESS, gettid(), -15);
}

/*
 * Enlarges a pipe: each time that it fills up, two processes wake each other. More than
 * /proc/sys/fs/pipe-max-size needs CAP_SYS_RESOURCE, which root of a container may lack.
 */
static void widen(int pipe)
{
	for (int size = PIPE_SIZE; size > 65536 && fcntl(pipe, F_SETPIPE_SZ, size) < 0; size /= 2)
		;
}

static bool stopped(struct images *i)
{
	/* pairs with images_close() */
	return __atomic_load_n(&i->stop, __ATOMIC_ACQUIRE);
}

/* ----------------------------------------------------------------------------- protocol */

static uint32_t get32(const uint8_t *p)
{
	return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Receives len bytes. 1, 0: the peer has hung up, or -errno. */
static int receive(int s, void *data, size_t len)
{
	size_t at = 0;

	while (at < len) {
		ssize_t n = recv(s, (char *)data + at, len - at, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : at ? -EPROTO : 0;
		at += n;
	}
	return 1;
}

/* True: it is the first time. */
static bool note_time(uint64_t *ns)
{
	bool first = !__atomic_load_n(ns, __ATOMIC_RELAXED);

	if (first)
		__atomic_store_n(ns, criu_now(), __ATOMIC_RELAXED);
	return first;
}

int images_still(const struct images *i)
{
	return i->still;
}

void images_asked(const struct images *i, uint64_t *process_ns, uint64_t *clock_ns)
{
	*process_ns = __atomic_load_n(&i->process_ns, __ATOMIC_RELAXED);
	*clock_ns = __atomic_load_n(&i->clock_ns, __ATOMIC_RELAXED);
}

/* A dump: files.img is the second image, after the freeze and before all memory. */
static void note_asked(struct images *i, const char *name)
{
	if (!strcmp(name, "files.img") || !strncmp(name, "core-", 5)) {
		if (note_time(&i->process_ns))
			eventfd_write(i->still, 1);
	} else if (!strncmp(name, "timens-", 7)) {
		note_time(&i->clock_ns);
	}
}

/* A restore: CRIU sets the clock after it has been given that image, and before it asks for another one. */
static void note_given(struct images *i, const char *name)
{
	if (i->clock_given)
		note_time(&i->clock_ns);
	i->clock_given |= !strncmp(name, "timens-", 7);
}

/* Receives the name of a request. 1, 0: the peer has hung up, or -errno. */
static int receive_name(int s, char *name)
{
	uint8_t head[4], text[NAME_MAX_LEN + 3];
	uint32_t len;
	int rc = receive(s, head, sizeof(head));

	if (rc <= 0)
		return rc;
	len = get32(head);
	if (len < 3 || len > sizeof(text))
		return -EPROTO;
	rc = receive(s, text, len);
	if (rc <= 0)
		return rc ?: -EPROTO;
	/* field 1, a string; from 128 on its length takes two bytes */
	if (text[0] != 0x0a)
		return -EPROTO;
	if (text[1] < 0x80 && text[1] == len - 2) {
		memcpy(name, text + 2, len - 2);
		name[len - 2] = 0;
	} else if (len > 3 && text[1] >= 0x80 && (text[1] & 0x7f) + text[2] * 128u == len - 3) {
		memcpy(name, text + 3, len - 3);
		name[len - 3] = 0;
	} else {
		return -EPROTO;
	}
	return strlen(name) && !strchr(name, '/') && !strchr(name, '\n') ? 1 : -EPROTO;
}

static int receive_fd(int s)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	char byte;
	struct iovec iov = { &byte, 1 };
	/* Room for one descriptor: CMSG_SPACE's padding would take a second one. */
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			      .msg_controllen = CMSG_LEN(sizeof(int)) };
	struct cmsghdr *c;
	ssize_t n;
	int fd;

	do {
		n = recvmsg(s, &msg, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	c = CMSG_FIRSTHDR(&msg);
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return -EPROTO;
	memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	if (n == 1)
		return fd;
	close(fd);
	return -EPROTO;
}

/* ------------------------------------------------------------------------ dump: the keeper */

static int push(struct images *i, struct image *image, char *block, size_t len)
{
	int err = 0;

	pthread_mutex_lock(&i->lock);
	if (i->tail == i->queue_room) {
		size_t n = i->tail - i->head, room = n < 64 ? 256 : 4 * n;
		struct item *more = malloc(room * sizeof(*more));

		if (more) {
			memcpy(more, i->queue + i->head, n * sizeof(*more));
			free(i->queue);
			i->queue = more;
			i->head = 0;
			i->tail = n;
			i->queue_room = room;
		} else {
			err = -ENOMEM;
		}
	}
	if (!err)
		i->queue[i->tail++] = (struct item){ image, block, len };
	pthread_cond_broadcast(&i->cond);
	pthread_mutex_unlock(&i->lock);
	return err;
}

static void give_block(struct images *i, char *block)
{
	pthread_mutex_lock(&i->lock);
	i->free[i->n_free++] = block;
	pthread_cond_broadcast(&i->cond);
	pthread_mutex_unlock(&i->lock);
}

static void keep(struct images *i, const struct item *it)
{
	struct image *m = it->image;
	int err = 0;

	if (!it->block) {
		if (m->object) {
			err = i->sink.end(m->object, !m->failed);
			m->object = NULL;
		}
	} else if (!m->failed && !__atomic_load_n(&i->error, __ATOMIC_RELAXED)) {
		if (!m->object)
			err = i->sink.begin(i->sink.arg, m->name, &m->object);
		if (!err)
			err = i->sink.write(m->object, m->off, it->block, it->len);
		m->off += it->len;
	}
	if (err) {
		m->failed = true;
		fail(i, err, m->name);
	}
	if (it->block)
		give_block(i, it->block);
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(struct image *const *)a)->name, (*(struct image *const *)b)->name);
}

static void put_small(FILE *out, const struct image *m)
{
	struct small e = { .name_len = strlen(m->name), .len = m->head_len };

	fwrite(&e, sizeof(e), 1, out);
	fwrite(m->name, 1, e.name_len, out);
	fwrite(m->head, 1, m->head_len, out);
}

/* Writes the object of small images, when all have come. */
static int keep_small(struct images *i)
{
	struct image **list;
	size_t n = 0, at = 0, len = 0;
	char *text = NULL;
	void *object;
	FILE *out;
	int err;

	for (struct image *m = i->all; m; m = m->next)
		n += !m->large;
	for (struct image *m = i->added; m; m = m->next)
		n++;
	list = malloc((n ?: 1) * sizeof(*list));
	out = open_memstream(&text, &len);
	if (!list || !out) {
		free(list);
		if (out)
			fclose(out);
		free(text);
		return -ENOMEM;
	}
	for (struct image *m = i->all; m; m = m->next)
		if (!m->large)
			list[at++] = m;
	for (struct image *m = i->added; m; m = m->next)
		list[at++] = m;
	qsort(list, n, sizeof(*list), by_name);
	for (at = 0; at < n; at++)
		put_small(out, list[at]);
	free(list);
	err = fclose(out) ? -ENOMEM : i->sink.begin(i->sink.arg, "small", &object);
	if (!err) {
		err = i->sink.write(object, 0, text, len);
		at = i->sink.end(object, !err);
		err = err ?: (int)at;
	}
	free(text);
	return err;
}

static void *keeper(void *arg)
{
	struct images *i = arg;
	struct item it;
	int err;

	hurry();
	pthread_mutex_lock(&i->lock);
	while (!i->stop) {
		if (i->head < i->tail) {
			it = i->queue[i->head++];
			pthread_mutex_unlock(&i->lock);
			keep(i, &it);
			pthread_mutex_lock(&i->lock);
		} else if (i->settling == 3) {
			err = i->error;
			pthread_mutex_unlock(&i->lock);
			err = err ? 0 : keep_small(i);
			if (err)
				fail(i, err, "small");
			pthread_mutex_lock(&i->lock);
			__atomic_store_n(&i->settling, 4, __ATOMIC_RELEASE);
			pthread_cond_broadcast(&i->cond);
		} else {
			pthread_cond_wait(&i->cond, &i->lock);
		}
	}
	pthread_mutex_unlock(&i->lock);
	return NULL;
}

/* ------------------------------------------------------------------------ dump: the reader */

static char *take_block(struct images *i)
{
	char *block = NULL;

	pthread_mutex_lock(&i->lock);
	while (!i->n_free && !i->stop)
		pthread_cond_wait(&i->cond, &i->lock);
	if (i->n_free)
		block = i->free[--i->n_free];
	pthread_mutex_unlock(&i->lock);
	return block;
}

static int hand_on(struct images *i, struct image *m)
{
	int err = push(i, m, m->block, m->len);

	if (err)
		give_block(i, m->block);
	m->block = NULL;
	m->len = 0;
	return err;
}

/* Ends an image, because its pipe has ended or failed. */
static void end_image(struct images *i, struct image *m)
{
	int err = 0;

	close(m->fd);
	m->fd = -1;
	if (m->block && m->len)
		err = hand_on(i, m);
	else if (m->block)
		give_block(i, m->block);
	m->block = NULL;
	if (m->large)
		err = push(i, m, NULL, 0) ?: err;
	if (err)
		fail(i, err, m->name);
}

static bool is_kept(const struct image *m)
{
	return !strcmp(m->name, "files.img") || !strcmp(m->name, "remap-fpath.img") ||
	       !strcmp(m->name, "pstree.img") || !strncmp(m->name, "fdinfo-", 7);
}

/* Enlarges the head of an image that is kept in memory. */
static bool more_head(struct images *i, struct image *m)
{
	size_t room = 2 * m->head_room;
	char *more = room <= KEPT_MAX ? realloc(m->head, room) : NULL;

	if (!more) {
		fail(i, room <= KEPT_MAX ? -ENOMEM : -EFBIG, m->name);
		return false;
	}
	m->head = more;
	m->head_room = room;
	return true;
}

/* Returns room for more of the image; *len is 0: none. */
static char *room_for(struct images *i, struct image *m, size_t *len)
{
	*len = 0;
	if (!m->large && m->head_len == m->head_room && is_kept(m) && !more_head(i, m)) {
		end_image(i, m);
		return NULL;
	}
	if (!m->large && m->head_len < m->head_room) {
		*len = m->head_room - m->head_len;
		return m->head + m->head_len;
	}
	if (!m->block)
		m->block = take_block(i);
	if (!m->block)
		return NULL;
	if (!m->large) {
		memcpy(m->block, m->head, m->head_len);
		m->len = m->head_len;
		free(m->head);
		m->head = NULL;
		m->large = true;
	}
	*len = BLOCK - m->len;
	return m->block + m->len;
}

static void read_image(struct images *i, struct image *m)
{
	size_t len;
	char *to = room_for(i, m, &len);
	ssize_t n;

	if (!len)
		return;
	n = read(m->fd, to, len);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0)
		fail(i, -errno, m->name);
	if (n <= 0) {
		end_image(i, m);
		return;
	}
	__atomic_fetch_add(&i->bytes, n, __ATOMIC_RELAXED);
	if (!m->large) {
		m->head_len += n;
		return;
	}
	m->len += n;
	if (m->len == BLOCK && hand_on(i, m))
		fail(i, -ENOMEM, m->name);
}

static struct image *new_image(struct images *i, const char *name, int fd)
{
	struct image *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	if (!i->serving) {
		m->head = malloc(SMALL);
		m->head_room = SMALL;
		if (!m->head) {
			free(m);
			return NULL;
		}
	}
	strcpy(m->name, name);
	m->fd = fd;
	m->next = i->all;
	i->all = m;
	return m;
}

/* Begins the image of the next request. 1, 0: CRIU has hung up, or -errno. */
static int begin_image(struct images *i)
{
	char name[NAME_MAX_LEN + 1];
	int rc = receive_name(i->conn, name), fd;

	if (rc <= 0)
		return rc;
	note_asked(i, name);
	fd = receive_fd(i->conn);
	if (fd < 0)
		return fd;
	widen(fd);
	fcntl(fd, F_SETFL, O_RDONLY | O_NONBLOCK);
	/* pairs with look_if_settled() and settle() */
	rc = __atomic_load_n(&i->settling, __ATOMIC_ACQUIRE) > 1 ? -EPROTO : 1;
	if (rc > 0 && !new_image(i, name, fd))
		rc = -ENOMEM;
	if (rc < 0)
		close(fd);
	return rc;
}

/* Fills in the list to poll: wake, socket, pipes. */
static size_t poll_list(struct images *i)
{
	size_t n = 2;

	for (struct image *m = i->all; m; m = m->next)
		n += m->fd >= 0;
	if (n > i->room) {
		struct pollfd *more = realloc(i->poll, 2 * n * sizeof(*more));

		if (!more)
			return 0;
		i->poll = more;
		i->room = 2 * n;
	}
	i->poll[0] = (struct pollfd){ .fd = i->wake, .events = POLLIN };
	i->poll[1] = (struct pollfd){ .fd = i->conn >= 0 ? i->conn : i->listen, .events = POLLIN };
	n = 2;
	for (struct image *m = i->all; m; m = m->next)
		if (m->fd >= 0)
			i->poll[n++] = (struct pollfd){ .fd = m->fd, .events = POLLIN };
	return n;
}

static void look_at_socket(struct images *i)
{
	int rc;

	if (i->conn < 0) {
		set_conn(i, accept4(i->listen, NULL, NULL, SOCK_CLOEXEC));
		close(i->listen);
		i->listen = -1;
		return;
	}
	rc = begin_image(i);
	if (rc < 0)
		fail(i, rc, "the socket");
	if (rc <= 0) {
		/* CRIU has hung up: poll ignores the fd -1. */
		close(i->conn);
		set_conn(i, -1);
	}
}

/* All has been received if nothing waits in the socket and all pipes have ended. */
static void look_if_settled(struct images *i, bool quiet)
{
	pthread_mutex_lock(&i->lock);
	if (i->settling == 1 && quiet) {
		__atomic_store_n(&i->settling, 2, __ATOMIC_RELEASE);
		pthread_cond_broadcast(&i->cond);
	}
	pthread_mutex_unlock(&i->lock);
}

static void *reader(void *arg)
{
	struct images *i = arg;

	hurry();
	while (!stopped(i)) {
		size_t n = poll_list(i), at = 2;
		struct image *first = i->all;
		eventfd_t count;
		bool asked;

		if (!n) {
			fail(i, -ENOMEM, "the list of pipes");
			break;
		}
		/* pairs with settle() */
		asked = __atomic_load_n(&i->settling, __ATOMIC_ACQUIRE) == 1;
		if (poll(i->poll, n, asked ? 0 : -1) < 0)
			continue;
		if (i->poll[0].revents)
			eventfd_read(i->wake, &count);
		if (i->poll[1].revents)
			look_at_socket(i);
		else if (n == 2 && asked)
			look_if_settled(i, true);
		for (struct image *m = first; m; m = m->next)
			if (m->fd >= 0 && i->poll[at++].revents)
				read_image(i, m);
		/* While pipes are open, settling must wait: do not spin on the wake event. */
		if (asked && n > 2 && !i->poll[1].revents)
			poll(i->poll + 2, n - 2, 10);
	}
	return NULL;
}

/* --------------------------------------------------------------------------------- restore */

/* The small image called name. */
static const char *find_small(const void *arg, const char *name, uint64_t *len)
{
	const struct images *i = arg;
	size_t at = 0, n = strlen(name);
	struct small e;

	while (at + sizeof(e) <= i->small_len) {
		memcpy(&e, i->small + at, sizeof(e));
		at += sizeof(e);
		if (e.zero || e.name_len > i->small_len - at || e.len > i->small_len - at - e.name_len)
			break;
		if (e.name_len == n && !memcmp(i->small + at, name, n)) {
			*len = e.len;
			return i->small + at + n;
		}
		at += e.name_len + e.len;
	}
	return NULL;
}

/* Finds the processes in the images, and the pages of theirs that can bypass CRIU. */
static void plan_direct(struct images *i)
{
	char name[NAME_MAX_LEN + 1];
	int *pid = malloc(i->small_len / sizeof(struct small) * sizeof(*pid) + 1);
	size_t at = 0, n = 0;
	struct small e;

	while (pid && at + sizeof(e) <= i->small_len) {
		memcpy(&e, i->small + at, sizeof(e));
		at += sizeof(e);
		if (e.zero || e.name_len > NAME_MAX_LEN || e.name_len > i->small_len - at ||
		    e.len > i->small_len - at - e.name_len)
			break;
		memcpy(name, i->small + at, e.name_len);
		name[e.name_len] = 0;
		n += sscanf(name, "mm-%d.img", &pid[n]) == 1;
		at += e.name_len + e.len;
	}
	if (n && !getenv("SINGVGPU_CRIU_ALONE"))
		i->direct = direct_plan(&i->source, find_small, i, pid, n);
	free(pid);
}

static int read_small(struct images *i)
{
	uint64_t size;
	void *object;
	int err = i->source.open(i->source.arg, "small", &object, &size);

	if (err)
		return err;
	i->small = malloc(size ?: 1);
	i->small_len = size;
	err = i->small ? i->source.read(object, 0, i->small, size) : -ENOMEM;
	i->source.close(object);
	return err;
}

static const char *small_image(const void *arg, const char *name, size_t *len)
{
	uint64_t n = 0;
	const char *text = find_small(arg, name, &n);

	*len = n;
	return text;
}

int images_check(const struct images_source *source, struct why *why)
{
	struct images i = { .source = *source };
	int err = read_small(&i);

	err = err ? why_set(why, err, "CRIU's images cannot be read: %s", strerror(-err)) :
	      tree_check(small_image, &i, why);
	free(i.small);
	return err;
}

static int write_all(struct images *i, int fd, const char *data, size_t len)
{
	while (len) {
		ssize_t n = write(fd, data, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		data += n;
		len -= n;
		__atomic_fetch_add(&i->bytes, n, __ATOMIC_RELAXED);
	}
	return 0;
}

struct feed {
	struct images *i;
	struct image *m;
	const char *data;	/* of a small one */
};

/* Writes one image into its pipe. It is no error if CRIU does not read all of it. */
static void *feeder(void *arg)
{
	struct feed *f = arg;
	struct image *m = f->m;
	char *buf = NULL;
	int err = 0;

	if (f->data)
		err = write_all(f->i, m->fd, f->data, m->size);
	else
		buf = aligned_alloc(4096, BLOCK);
	if (!f->data && !buf)
		err = -ENOMEM;
	for (uint64_t off = 0, end; buf && !err && !stopped(f->i) &&
	     direct_keep(f->i->direct, m->name, m->size, &off, &end);) {
		size_t len = end - off < BLOCK ? end - off : BLOCK;

		err = f->i->source.read(m->object, off, buf, len);
		if (err)
			fail(f->i, err, m->name);
		err = err ?: write_all(f->i, m->fd, buf, len);
		off += len;
	}
	free(buf);
	if (m->object)
		f->i->source.close(m->object);
	m->object = NULL;
	close(m->fd);
	free(f);
	return NULL;
}

static int answer(struct images *i, bool there)
{
	/* length, field 1 as a varint */
	uint8_t text[6] = { 2, 0, 0, 0, 0x08, there };

	return send(i->conn, text, sizeof(text), MSG_NOSIGNAL) == sizeof(text) ? 0 : -EPIPE;
}

/* Writes a small image if the pipe takes it at once, which is usual. False: a feeder is needed. */
static bool put_at_once(struct images *i, struct image *m, const char *data)
{
	ssize_t n;

	fcntl(m->fd, F_SETFL, O_WRONLY | O_NONBLOCK);
	n = m->size ? write(m->fd, data, m->size) : 0;
	fcntl(m->fd, F_SETFL, O_WRONLY);
	if (n > 0 && (uint64_t)n < m->size)	/* a feeder cannot go on in the middle */
		fail(i, -EPIPE, m->name);
	else if (n < 0 && errno == EAGAIN)
		return false;
	close(m->fd);
	m->fd = -1;
	__atomic_fetch_add(&i->bytes, m->size, __ATOMIC_RELAXED);
	return true;
}

static const char *put_instead(struct images *i, const char *name, uint64_t *len)
{
	const char *text;

	pthread_mutex_lock(&i->lock);
	text = strcmp(i->instead_of, name) ? NULL : i->instead;
	*len = i->instead_len;
	pthread_mutex_unlock(&i->lock);
	return text;
}

static int serve_image(struct images *i)
{
	char name[NAME_MAX_LEN + 1];
	struct image *m;
	struct feed *f;
	uint64_t size = 0;
	void *object = NULL;
	const char *data;
	int rc = receive_name(i->conn, name), err;

	if (rc <= 0)
		return rc;
	note_given(i, name);
	data = put_instead(i, name, &size) ?: direct_pagemap(i->direct, name, &size) ?:
	       find_small(i, name, &size);
	err = data ? 0 : i->source.open(i->source.arg, name, &object, &size);
	if (err && err != -ENOENT)
		fail(i, err, name);
	rc = answer(i, !err);
	if (rc || err)
		return rc ?: 1;
	rc = receive_fd(i->conn);
	m = rc < 0 ? NULL : new_image(i, name, rc);
	if (!m) {
		if (object)
			i->source.close(object);
		if (rc >= 0)
			close(rc);
		return rc < 0 ? rc : -ENOMEM;
	}
	m->object = object;
	m->size = size;
	if (!data)
		widen(m->fd);
	if (data && size <= SMALL && put_at_once(i, m, data))
		return 1;
	f = malloc(sizeof(*f));
	if (!f)
		return -ENOMEM;
	*f = (struct feed){ i, m, data };
	err = start(&m->thread, feeder, f);
	if (err) {
		free(f);
		return err;
	}
	m->large = true;	/* it has a thread */
	return 1;
}

static void *server(void *arg)
{
	struct images *i = arg;
	int rc, conn = accept4(i->listen, NULL, NULL, SOCK_CLOEXEC);

	if (conn < 0) {
		fail(i, -errno, "the socket");
		return NULL;
	}
	set_conn(i, conn);
	while (!stopped(i) && (rc = serve_image(i)) > 0)
		;
	if (!stopped(i) && rc < 0)
		fail(i, rc, "the socket");
	/* Tells CRIU, if it still runs, that nothing more comes. */
	shutdown(i->conn, SHUT_RDWR);
	return NULL;
}

/* --------------------------------------------------------------------------- begin and end */

static int listen_at(const char *dir, const char *name)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int s, err;

	if (snprintf(a.sun_path, sizeof(a.sun_path), "%s/%s", dir, name) >= (int)sizeof(a.sun_path))
		return -ENAMETOOLONG;
	s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s < 0)
		return -errno;
	if (!bind(s, (void *)&a, sizeof(a)) && !listen(s, 1))
		return s;
	err = -errno;
	close(s);
	return err;
}

static struct images *make(const char *dir, const char *name, int *err)
{
	struct images *i = calloc(1, sizeof(*i));

	*err = -ENOMEM;
	if (!i)
		return NULL;
	pthread_mutex_init(&i->lock, NULL);
	pthread_cond_init(&i->cond, NULL);
	i->conn = -1;
	i->listen = listen_at(dir, name);
	i->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	i->still = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	*err = i->listen < 0 ? i->listen : i->wake < 0 || i->still < 0 ? -errno : 0;
	return i;
}

static void free_list(struct image *m)
{
	struct image *next;

	for (; m; m = next) {
		next = m->next;
		free(m->head);
		free(m);
	}
}

static void free_images(struct images *i)
{
	free_list(i->all);
	free_list(i->added);
	if (i->listen >= 0)
		close(i->listen);
	if (i->conn >= 0)
		close(i->conn);
	if (i->wake >= 0)
		close(i->wake);
	if (i->still >= 0)
		close(i->still);
	if (i->memory)
		munmap(i->memory, (size_t)BLOCKS * BLOCK);
	pthread_mutex_destroy(&i->lock);
	pthread_cond_destroy(&i->cond);
	free(i->queue);
	free(i->poll);
	free(i->small);
	free(i->instead);
	direct_free(i->direct);
	free(i);
}

/* Touches all blocks now, so that no page fault is taken while the tree is frozen. */
static int get_blocks(struct images *i)
{
	void *p = mmap(NULL, (size_t)BLOCKS * BLOCK, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return -ENOMEM;
	madvise(p, (size_t)BLOCKS * BLOCK, MADV_HUGEPAGE);
	madvise(p, (size_t)BLOCKS * BLOCK, MADV_POPULATE_WRITE);
	madvise(p, (size_t)BLOCKS * BLOCK, MADV_DONTFORK);	/* CRIU's start would share it */
	i->memory = p;
	while (i->n_free < BLOCKS) {
		i->free[i->n_free] = i->memory + (size_t)(BLOCKS - 1 - i->n_free) * BLOCK;
		i->n_free++;
	}
	return 0;
}

int images_capture(struct images **out, const char *dir, const struct images_sink *sink)
{
	int err;
	struct images *i = make(dir, "streamer-capture.sock", &err);

	if (i && !err) {
		i->sink = *sink;
		err = get_blocks(i);
	}
	if (!err)
		err = start(&i->keeper, keeper, i);
	if (!err) {
		i->has_keeper = true;
		err = start(&i->reader, reader, i);
		if (!err) {
			*out = i;
			return 0;
		}
		pthread_mutex_lock(&i->lock);
		i->stop = true;
		pthread_cond_broadcast(&i->cond);
		pthread_mutex_unlock(&i->lock);
		pthread_join(i->keeper, NULL);
	}
	if (i)
		free_images(i);
	return err;
}

int images_serve(struct images **out, const char *dir, const struct images_source *source)
{
	int err;
	struct images *i = make(dir, "streamer-serve.sock", &err);

	if (i && !err) {
		i->serving = true;
		i->source = *source;
		err = read_small(i);
		if (!err)
			plan_direct(i);
		if (i->direct)
			direct_begin(i->direct);
	}
	if (!err)
		err = start(&i->reader, server, i);
	if (!err) {
		*out = i;
		return 0;
	}
	if (i)
		free_images(i);
	return err;
}

int images_add(struct images *i, const char *name, const void *data, size_t len)
{
	struct image *m = calloc(1, sizeof(*m));

	if (!m || strlen(name) > NAME_MAX_LEN) {
		free(m);
		return m ? -EINVAL : -ENOMEM;
	}
	m->head = malloc(len ?: 1);
	if (!m->head) {
		free(m);
		return -ENOMEM;
	}
	memcpy(m->head, data, len);
	m->head_len = len;
	strcpy(m->name, name);
	m->fd = -1;
	pthread_mutex_lock(&i->lock);
	m->next = i->added;
	i->added = m;
	pthread_mutex_unlock(&i->lock);
	return 0;
}

int images_each(struct images *i, int (*each)(void *arg, const char *name, const void *data,
					      size_t len), void *arg)
{
	char name[NAME_MAX_LEN + 1];
	size_t at = 0;
	struct small e;
	int err = 0;

	while (!err && at + sizeof(e) <= i->small_len) {
		memcpy(&e, i->small + at, sizeof(e));
		at += sizeof(e);
		if (e.zero || e.name_len > NAME_MAX_LEN || e.name_len > i->small_len - at ||
		    e.len > i->small_len - at - e.name_len)
			return -EBADMSG;
		memcpy(name, i->small + at, e.name_len);
		name[e.name_len] = 0;
		err = each(arg, name, i->small + at + e.name_len, e.len);
		at += e.name_len + e.len;
	}
	return err;
}

const char *images_text(struct images *i, const char *name, size_t *len)
{
	uint64_t n = 0;
	const char *text = i->serving ? find_small(i, name, &n) : NULL;

	for (struct image *m = i->serving ? NULL : i->all; m; m = m->next) {
		if (strcmp(m->name, name) || m->large)
			continue;
		text = m->head;
		n = m->head_len;
	}
	*len = n;
	return text;
}

int images_replace(struct images *i, const char *name, char *text, size_t len)
{
	if (strlen(name) > NAME_MAX_LEN)
		return -EINVAL;
	pthread_mutex_lock(&i->lock);
	free(i->instead);
	i->instead = text;
	i->instead_len = len;
	strcpy(i->instead_of, name);
	pthread_mutex_unlock(&i->lock);
	return 0;
}

/* Goes from one state of settling to the next, and waits for the state `until`. */
static int settle(struct images *i, int from, int until)
{
	int err;

	pthread_mutex_lock(&i->lock);
	if (i->settling == from)
		__atomic_store_n(&i->settling, from + 1, __ATOMIC_RELEASE);
	pthread_cond_broadcast(&i->cond);
	eventfd_write(i->wake, 1);
	while (i->settling < until && !i->error)
		pthread_cond_wait(&i->cond, &i->lock);
	err = i->error;
	pthread_mutex_unlock(&i->lock);
	return err;
}

int images_gather(struct images *i)
{
	return settle(i, 0, 2);
}

int images_settle(struct images *i)
{
	return images_gather(i) ?: settle(i, 2, 4);
}

int images_edit(struct images *i, const char *name, char *text, size_t len)
{
	for (struct image *m = i->all; m; m = m->next) {
		if (strcmp(m->name, name) || m->large)
			continue;
		free(m->head);
		m->head = text;
		m->head_len = m->head_room = len;
		return 0;
	}
	return -ENOENT;
}

bool images_direct(const struct images *i)
{
	return i->direct;
}

int images_fill(struct images *i, pid_t (*find)(void *arg, int pid), void *arg)
{
	int err = i->direct ? direct_fill(i->direct, find, arg, &i->bytes) : 0;

	if (err)
		fail(i, err, "pages");
	return err;
}

uint64_t images_bytes(const struct images *i)
{
	return __atomic_load_n(&i->bytes, __ATOMIC_RELAXED);
}

int images_failed(struct images *i, char *what)
{
	int err;

	pthread_mutex_lock(&i->lock);
	err = i->error;
	strcpy(what, i->what);
	pthread_mutex_unlock(&i->lock);
	return err;
}

/* Ends the open objects with whole = 0. */
static void drop_objects(struct images *i)
{
	for (struct image *m = i->all; m; m = m->next) {
		if (m->fd >= 0)
			close(m->fd);
		if (m->object)
			i->sink.end(m->object, 0);
	}
}

int images_close(struct images *i)
{
	int err, conn;

	pthread_mutex_lock(&i->lock);
	__atomic_store_n(&i->stop, true, __ATOMIC_SEQ_CST);
	pthread_cond_broadcast(&i->cond);
	pthread_mutex_unlock(&i->lock);
	eventfd_write(i->wake, 1);
	/* Interrupts a thread in accept() or recv(). */
	if (i->listen >= 0)
		shutdown(i->listen, SHUT_RDWR);
	/* pairs with set_conn(): either we see its descriptor, or it our stop */
	conn = __atomic_load_n(&i->conn, __ATOMIC_SEQ_CST);
	if (conn >= 0)
		shutdown(conn, SHUT_RDWR);
	pthread_join(i->reader, NULL);
	if (i->has_keeper)
		pthread_join(i->keeper, NULL);
	if (i->serving) {
		for (struct image *m = i->all; m; m = m->next)
			if (m->large)
				pthread_join(m->thread, NULL);
			else if (m->fd >= 0)
				close(m->fd);
	} else {
		drop_objects(i);
	}
	err = i->error;
	free_images(i);
	return err;
}
