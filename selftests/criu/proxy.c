// SPDX-License-Identifier: Apache-2.0
/*
 * proxy.c - the proxy of these tests: serves the client, checks its streams, obeys the driver
 *
 * The main thread owns the ring. Another thread takes commands from a socket in the run's folder,
 * one at a time; the main thread executes them between two records.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "criu.h"

#define LATE_MAX	64
#define FREEZE_NS	60000000000ll
#define LATE_NS		2000000

struct msg {
	uint32_t cmd;
	char arg[100];
};

struct late {
	uint16_t cpl;
	uint64_t seq;
	struct item item;
};

struct proxy {
	struct run *run;
	struct shared *sh;
	struct ring *ring;
	bool paused;
	struct late late[LATE_MAX];
	unsigned int nlate;
	int64_t due;		/* when they are answered, if there are any */

	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct msg msg;		/* lock */
	int state;		/* lock; 0 none, 1 to be carried out, 2 done */
	int result;		/* lock */
	int fd;			/* lock; to be sent along */
};

static void wrong(struct proxy *p, const char *format, ...)
{
	va_list ap;

	if (p->sh->wrong[0])
		return;
	va_start(ap, format);
	vsnprintf(p->sh->wrong, sizeof(p->sh->wrong), format, ap);
	va_end(ap);
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* ----------------------------------------------------------------------------------- serving */

static void check_item(struct proxy *p, const struct ring_record *rec, struct item *h)
{
	static uint8_t expected[ITEM_MAX];
	uint32_t len;

	memcpy(h, rec->data, sizeof(*h));
	if (rec->len < sizeof(*h) || h->stream >= STREAMS) {
		wrong(p, "record %lu is none of ours", rec->seq);
		return;
	}
	if (h->n != p->sh->st.next[h->stream])
		wrong(p, "stream %u: item %lu came, item %lu was due", h->stream, h->n,
		      p->sh->st.next[h->stream]);
	len = item_make(expected, h->stream, h->n);
	if (len != rec->len || memcmp(expected, rec->data, len))
		wrong(p, "stream %u: item %lu is torn", h->stream, h->n);
	p->sh->st.next[h->stream] = h->n + 1;
}

static void answer(struct proxy *p, const struct late *l)
{
	uint64_t data = answer_of(l->item.stream, l->item.n);
	int rc = ring_complete(p->ring, l->cpl, l->seq, status_of(l->item.stream, l->item.n), &data,
			       sizeof(data));

	if (rc)
		wrong(p, "ring_complete: %s", ring_strerror(rc));
}

static void answer_late(struct proxy *p)
{
	unsigned int i;

	for (i = 0; i < p->nlate; i++)
		answer(p, &p->late[i]);
	p->nlate = 0;
}

static void check_end(struct proxy *p, const struct ring_record *rec)
{
	struct end *e = &p->sh->end;
	int i;

	memcpy(e, rec->data, sizeof(*e));
	for (i = 0; i < STREAMS; i++)
		if (e->next[i] != p->sh->st.next[i])
			wrong(p, "stream %d: %lu items were sent, %lu came", i, e->next[i],
			      p->sh->st.next[i]);
	p->sh->ended = 1;
}

static int keep_last(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	struct proxy *p = arg;

	(void)data;
	return e->key + 200 > p->sh->st.logged;	/* units: less than half of a half */
}

static void advance(struct proxy *p, const struct ring_record *rec)
{
	int rc;

	if (rec->seq % 8) {
		ring_advance(p->ring);
		return;
	}
	rc = ring_log_append(p->ring, rec, rec->op, rec->seq, rec->data, rec->len);
	if (rc == -ENOSPC) {
		rc = ring_log_compact(p->ring, keep_last, p);
		if (!rc)
			rc = ring_log_append(p->ring, rec, rec->op, rec->seq, rec->data, rec->len);
	}
	if (rc)
		wrong(p, "log: %s", ring_strerror(rc));
	p->sh->st.logged = rec->seq;
}

/* late: answers may be put off. */
static void serve(struct proxy *p, const struct ring_record *rec, bool late)
{
	struct late l = { .cpl = rec->cpl, .seq = rec->seq };

	switch (rec->op) {
	case OP_ITEM:
	case OP_CALL:
	case OP_LATE:
		check_item(p, rec, &l.item);
		break;
	case OP_PROBE:
		memcpy(&p->sh->probe, rec->data, sizeof(p->sh->probe));
		p->sh->probed = 1;
		break;
	case OP_END:
		check_end(p, rec);
		break;
	default:
		wrong(p, "record %lu has op %u", rec->seq, rec->op);
	}
	advance(p, rec);
	p->sh->served++;
	if (!l.cpl)
		return;
	if (!late || rec->op != OP_LATE || p->nlate == LATE_MAX) {
		answer(p, &l);
		return;
	}
	if (!p->nlate)
		p->due = now_ns() + LATE_NS;
	p->late[p->nlate++] = l;
}

static int serve_frozen(void *arg, struct ring *r, const struct ring_record *rec)
{
	(void)r;
	serve(arg, rec, false);
	return 0;
}

/*
 * Serves what is there, or waits a little. What was put off is answered when it is due, come what
 * may: all of the client's threads may wait for it, while its timer makes them send on and on.
 */
static void serve_some(struct proxy *p)
{
	struct ring_record rec;
	int64_t left = -1;
	int rc, i;

	for (i = 0; i < 200 && (rc = ring_peek(p->ring, &rec)) == 1; i++)
		serve(p, &rec, true);
	if (p->nlate) {
		left = p->due - now_ns();
		if (left <= 0) {
			answer_late(p);
			left = -1;
		}
	}
	if (!rc)
		rc = ring_wait(p->ring, left);
	if (rc == -EPIPE) {
		p->paused = true;
		if (!p->sh->ended)
			__atomic_store_n(&p->sh->peer_gone, 1, __ATOMIC_RELEASE);
	} else if (rc < 0 && rc != -EINTR && rc != -ETIMEDOUT) {
		wrong(p, "ring: %s %s", ring_strerror(rc), ring_why(p->ring));
		p->paused = true;
	}
}

/* ---------------------------------------------------------------------------- save, restore */

static int save(struct proxy *p, const char *path)
{
	char name[128];
	int fd, rc;

	/* What has been taken out must be answered: it will not be there in the restored ring. */
	answer_late(p);
	p->paused = true;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	rc = ring_save(p->ring, fd, 0);
	close(fd);
	if (rc)
		return rc;
	snprintf(name, sizeof(name), "%s.state", path);
	fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (write(fd, &p->sh->st, sizeof(p->sh->st)) != sizeof(p->sh->st))
		rc = -EIO;
	close(fd);
	return rc;
}

static int last_key(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	uint64_t *last = arg;

	(void)data;
	if (e->key <= *last)
		return -EBADMSG;
	*last = e->key;
	return 0;
}

static int load(struct proxy *p, const char *path, const struct ring_params *params)
{
	struct ring_record rec;
	uint64_t last = 0;
	char name[128];
	int fd, rc;

	snprintf(name, sizeof(name), "%s.state", path);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, &p->sh->st, sizeof(p->sh->st)) != sizeof(p->sh->st))
		return -EIO;
	close(fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = ring_restore(&p->ring, fd, params);
	close(fd);
	if (rc)
		return rc;
	p->paused = true;
	rc = ring_peek(p->ring, &rec);
	if (rc == 1)
		p->sh->left++;
	if (rc >= 0)
		rc = ring_log_walk(p->ring, last_key, &last);
	if (!rc && last != p->sh->st.logged)
		wrong(p, "the log ends with record %lu, not %lu", last, p->sh->st.logged);
	return rc;
}

/* ----------------------------------------------------------------------------------- commands */

static int obey(struct proxy *p, const struct msg *m)
{
	int rc, fd;

	switch (m->cmd) {
	case CMD_CLIENT_FD:
		fd = ring_client_fd(p->ring);
		if (fd < 0)
			return fd;
		p->fd = fd;
		return 0;
	case CMD_WATCH:
		__atomic_store_n(&p->sh->peer_gone, 0, __ATOMIC_RELEASE);
		fd = -1;
		if (ring_backend(p->ring) == RING_MEMFD) {
			fd = syscall(SYS_pidfd_open, atoi(m->arg), 0);
			if (fd < 0)
				return -errno;
		}
		rc = ring_watch_peer(p->ring, fd);
		p->paused = p->paused && rc;
		return rc;
	case CMD_FREEZE:
		answer_late(p);
		return ring_freeze(p->ring, serve_frozen, p, FREEZE_NS);
	case CMD_THAW:
		p->paused = false;
		return ring_thaw(p->ring);
	case CMD_PAUSE:
		p->paused = true;
		return 0;
	case CMD_GO:
		p->paused = false;
		return 0;
	case CMD_SAVE:
		return save(p, m->arg);
	case CMD_CLOSE:
		ring_close(p->ring);
		p->ring = NULL;
		return 0;
	}
	return -EINVAL;
}

static void reply(int s, int result, int fd)
{
	if (send(s, &result, sizeof(result), MSG_NOSIGNAL) < 0)
		result = -errno;
	if (fd < 0)
		return;
	if (!result)
		ring_pass_fd(s, fd);
	close(fd);
}

static void address(struct sockaddr_un *a, const char *dir)
{
	a->sun_family = AF_UNIX;
	snprintf(a->sun_path, sizeof(a->sun_path), "%s/proxy", dir);
}

static void *listener(void *arg)
{
	struct proxy *p = arg;
	struct msg m;
	int l = p->result, s;

	for (;;) {
		s = accept4(l, NULL, NULL, SOCK_CLOEXEC);
		if (s < 0)
			continue;
		if (recv(s, &m, sizeof(m), 0) == sizeof(m)) {
			pthread_mutex_lock(&p->lock);
			p->msg = m;
			p->state = 1;
			p->fd = -1;
			pthread_cond_broadcast(&p->cond);
			ring_kick(p->ring);
			while (p->state != 2)
				pthread_cond_wait(&p->cond, &p->lock);
			p->state = 0;
			reply(s, p->result, p->fd);
			if (!p->ring)
				_exit(0);
			pthread_mutex_unlock(&p->lock);
		}
		close(s);
	}
}

static void main_loop(struct proxy *p)
{
	for (;;) {
		pthread_mutex_lock(&p->lock);
		while (p->state != 1 && p->paused)
			pthread_cond_wait(&p->cond, &p->lock);
		if (p->state == 1) {
			p->result = obey(p, &p->msg);
			p->state = 2;
			pthread_cond_broadcast(&p->cond);
			while (!p->ring)
				pthread_cond_wait(&p->cond, &p->lock);
		}
		pthread_mutex_unlock(&p->lock);
		if (!p->paused)
			serve_some(p);
	}
}

static int open_ring(struct proxy *p, const char *restore)
{
	struct ring_params params = { .backend = p->run->backend, .geo = RING_GEOMETRY_DEFAULT };

	params.geo.ring_units = 256;
	params.geo.cpl_slots = 64;
	params.geo.arena_len = 1 << 20;
	params.geo.log_len = 64 << 10;
	memcpy(params.id, p->run->id, 16);
	memcpy(params.cookie, p->run->cookie, 16);
	return restore ? load(p, restore, &params) : ring_create(&p->ring, &params);
}

void proxy_run(struct run *r, const char *restore, int ready)
{
	struct sockaddr_un a;
	static struct proxy proxy;
	struct proxy *p = &proxy;
	pthread_t t;
	int rc, s;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "proxy");
	p->run = r;
	p->sh = r->sh;
	p->fd = -1;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->cond, NULL);
	address(&a, r->dir);
	unlink(a.sun_path);
	s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	rc = open_ring(p, restore);
	if (!rc && (s < 0 || bind(s, (struct sockaddr *)&a, sizeof(a)) || listen(s, 5)))
		rc = -errno;
	p->result = s;
	if (!rc)
		rc = -pthread_create(&t, NULL, listener, p);
	if (write(ready, &rc, sizeof(rc)) != sizeof(rc) || rc)
		_exit(1);
	close(ready);
	main_loop(p);
	_exit(0);
}

/* Called by the driver and by CRIU's action script. Returns the command's result. */
int proxy_send(const char *dir, enum cmd cmd, const char *arg, int *fd)
{
	struct msg m = { .cmd = cmd };
	int result = -ECONNREFUSED;
	struct sockaddr_un a;
	int s;

	snprintf(m.arg, sizeof(m.arg), "%s", arg ? arg : "");
	address(&a, dir);
	s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s < 0)
		return -errno;
	if (connect(s, (struct sockaddr *)&a, sizeof(a)) || send(s, &m, sizeof(m), MSG_NOSIGNAL) < 0 ||
	    recv(s, &result, sizeof(result), 0) != sizeof(result))
		result = errno ? -errno : -EIO;
	if (!result && fd) {
		*fd = ring_take_fd(s);
		result = *fd < 0 ? *fd : 0;
	}
	close(s);
	return result;
}
