// SPDX-License-Identifier: Apache-2.0
/*
 * kmod.c - the backend over /dev/singvgpu: the module sleeps, wakes and reports hang-ups
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ring_i.h"

static int call(int fd, unsigned long cmd, void *arg)
{
	return ioctl(fd, cmd, arg) < 0 ? -errno : 0;
}

static uint64_t offset_of(const struct ring *r, const uint32_t *word)
{
	return (const uint8_t *)word - (const uint8_t *)r->ctl;
}

static int result(int rc)
{
	return rc == -ETIME ? -ETIMEDOUT : rc;
}

static int wait_word(struct ring *r, uint32_t *word, uint32_t expect, int64_t *ns)
{
	struct singvgpu_wait w = { .off = offset_of(r, word), .expect = expect,
				   .timeout_ns = *ns };
	int rc = call(r->fd, SINGVGPU_IOC_WAIT, &w);

	*ns = w.timeout_ns;
	return result(rc);
}

static void wake(struct ring *r, uint32_t *word, uint32_t nr)
{
	struct singvgpu_wake w = { .off = offset_of(r, word), .nr = nr };

	call(r->fd, SINGVGPU_IOC_WAKE, &w);
}

static int wake_wait(struct ring *r, uint32_t *wake_word, uint32_t *word, uint32_t expect,
		     int64_t *ns)
{
	struct singvgpu_wake_wait w = {
		.wake = { .off = offset_of(r, wake_word), .nr = 1 },
		.wait = { .off = offset_of(r, word), .expect = expect, .timeout_ns = *ns },
	};
	int rc = call(r->fd, SINGVGPU_IOC_WAKE_WAIT, &w);

	*ns = w.wait.timeout_ns;
	return result(rc);
}

static int gate(struct ring *r, bool closed)
{
	return call(r->fd, closed ? SINGVGPU_IOC_FREEZE : SINGVGPU_IOC_THAW, NULL);
}

static int commit(struct ring *r, size_t off, size_t len)
{
	struct singvgpu_range g = { .off = off, .len = len };

	return call(r->fd, SINGVGPU_IOC_COMMIT, &g);
}

static int decommit(struct ring *r, size_t off, size_t len)
{
	struct singvgpu_range g = { .off = off, .len = len };

	return call(r->fd, SINGVGPU_IOC_DECOMMIT, &g);
}

static int open_device(void)
{
	int fd = open(SINGVGPU_DEV_PATH, O_RDWR | O_CLOEXEC);

	if (fd >= 0)
		return fd;
	return errno == ENOENT || errno == ENXIO ? -ENODEV : -errno;
}

static int attach(int fd, const uint8_t *id, const uint8_t *cookie)
{
	struct singvgpu_attach a = { .api_version = SINGVGPU_API_VERSION };

	memcpy(a.id, id, 16);
	memcpy(a.cookie, cookie, 16);
	return call(fd, SINGVGPU_IOC_ATTACH, &a);
}

static int client_fd(struct ring *r)
{
	int fd = open_device(), rc;

	if (fd < 0)
		return fd;
	rc = attach(fd, r->id, r->cookie);
	if (rc) {
		close(fd);
		return rc;
	}
	return fd;
}

/* The module itself notices a death; this only accepts another client. */
static int watch_peer(struct ring *r, int pidfd)
{
	store_release(&r->rx.peer_gone, 0);
	if (pidfd >= 0)
		close(pidfd);
	return 0;
}

static uint32_t generation(const struct ring *r)
{
	struct singvgpu_info i;

	return call(r->fd, SINGVGPU_IOC_GET_INFO, &i) ? 0 : i.generation;
}

/* Closing the fd hangs up; this bit marks it as a good-bye, not a death. */
static void hang_up(struct ring *r)
{
	if (r->client)
		return;
	__atomic_fetch_or(&r->ctl->cons, SINGVGPU_CONS_CLOSED, __ATOMIC_SEQ_CST);
	wake(r, &r->ctl->cons, UINT32_MAX);
}

static const struct ring_ops ring_kmod_ops = {
	.backend = RING_KMOD,
	.wait = wait_word,
	.wake = wake,
	.wake_wait = wake_wait,
	.gate = gate,
	.commit = commit,
	.decommit = decommit,
	.client_fd = client_fd,
	.watch_peer = watch_peer,
	.generation = generation,
	.hang_up = hang_up,
};

int ring_kmod_create(struct ring *r, uint32_t gen)
{
	struct singvgpu_create c = { .api_version = SINGVGPU_API_VERSION, .geo = r->geo,
				     .generation = gen };
	int rc;

	r->fd = open_device();
	if (r->fd < 0)
		return r->fd;
	memcpy(c.id, r->id, 16);
	memcpy(c.cookie, r->cookie, 16);
	rc = call(r->fd, SINGVGPU_IOC_CREATE, &c);
	if (rc == -ENOTTY)
		rc = -EPROTONOSUPPORT;
	if (!rc)
		rc = ring_map(r);
	if (!rc)
		r->ops = &ring_kmod_ops;
	return rc;
}

/* fd is attached already, or (id not NULL) is attached by id and cookie. */
int ring_kmod_attach(int fd, const uint8_t *id, const uint8_t *cookie, struct ring **out)
{
	struct singvgpu_info i;
	struct ring *r;
	int rc;

	rc = id ? attach(fd, id, cookie) : 0;
	if (!rc)
		rc = call(fd, SINGVGPU_IOC_GET_INFO, &i);
	if (rc)
		return rc == -ENOTTY ? -EPROTO : rc;
	if (i.api_version != SINGVGPU_API_VERSION)
		return -EPROTONOSUPPORT;
	if (i.role != SINGVGPU_ROLE_CLIENT)
		return -EPROTO;
	rc = ring_new(&r, &i.geo, true);
	if (rc)
		return rc;
	memcpy(r->id, i.id, 16);
	r->fd = fd;
	r->ops = &ring_kmod_ops;
	rc = ring_map(r);
	if (rc) {
		r->fd = -1;
		ring_free(r);
		return rc;
	}
	*out = r;
	return 0;
}

/* GET_INFO ends EPOLLPRI: a client's end has none, and a restored proxy's end no client yet. */
int ring_kmod_look(int fd, struct singvgpu_geometry *g, struct layout *lay, uint8_t id[16])
{
	struct singvgpu_info i;
	int rc = call(fd, SINGVGPU_IOC_GET_INFO, &i);

	if (rc)
		return rc == -ENOTTY ? -EPROTO : rc;
	if (i.api_version != SINGVGPU_API_VERSION)
		return -EPROTONOSUPPORT;
	if (i.role == SINGVGPU_ROLE_NONE)
		return -EPROTO;
	*g = i.geo;
	memcpy(id, i.id, 16);
	return ring_layout(g, lay) ? -EPROTO : 0;
}
