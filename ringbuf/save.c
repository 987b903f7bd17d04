// SPDX-License-Identifier: Apache-2.0
/*
 * save.c - a channel's content to a file, and a new channel from it
 *
 *   offset  what
 *   0       struct image: magic, version, identity, geometry, generation, position
 *   then    struct extent, its bytes; again and again, ascending
 *   last    an extent of length 0 whose off is the number of bytes of all extents
 *
 * The whole object is saved, not just the records between head and tail: a client without rseq
 * may be frozen while it writes a record, and continues that after the restore.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ring_i.h"

#define IMAGE_MAGIC	0x31474d4947474e53ull	/* "SNGGIMG1" */

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct image {
	uint64_t magic;
	uint32_t api_version;
	uint32_t flags;
	uint8_t id[16];
	struct singvgpu_geometry geo;
	uint32_t generation;
	uint32_t pad;
	uint64_t pos;		/* consumed */
	uint64_t log_state;
};

struct extent {
	uint64_t off;
	uint64_t len;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct image) == 88, "file format");
_Static_assert(sizeof(struct extent) == 16, "file format");
_Static_assert(offsetof(struct image, api_version) == offsetof(struct singvgpu_ctl, api_version),
	       "ring_version_of");

static int put_bytes(int fd, const void *p, size_t len)
{
	const uint8_t *from = p;
	ssize_t n;

	for (; len; from += n, len -= n) {
		n = write(fd, from, len);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n < 0)
			n = 0;
	}
	return 0;
}

static int get_bytes(int fd, void *p, size_t len)
{
	uint8_t *to = p;
	ssize_t n;

	for (; len; to += n, len -= n) {
		n = read(fd, to, len);
		if (!n)
			return -EBADMSG;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n < 0)
			n = 0;
	}
	return 0;
}

/*
 * The next range at or behind off that holds data, before end. -ENXIO none. [off, end) lies in one piece in the
 * object, delta bytes behind its place in memory.
 */
static int next_data(const struct ring *r, uint64_t off, uint64_t end, struct extent *e)
{
	int64_t delta = ring_at(&r->lay, off) - off;
	off_t from = lseek(r->fd, off + delta, SEEK_DATA), to;

	if (from < 0)
		return -errno;
	e->off = from - delta;
	if (e->off >= end)
		return -ENXIO;
	to = lseek(r->fd, from, SEEK_HOLE);
	if (to < 0)
		return -errno;
	e->len = to - from < (off_t)(end - e->off) ? (uint64_t)(to - from) : end - e->off;
	return 0;
}

static int put_range(struct ring *r, int fd, uint64_t off, uint64_t end, uint64_t *total)
{
	struct extent e;
	int rc;

	while (!(rc = next_data(r, off, end, &e))) {
		rc = put_bytes(fd, &e, sizeof(e));
		if (!rc)
			rc = put_bytes(fd, (uint8_t *)r->ctl + e.off, e.len);
		if (rc)
			return rc;
		*total += e.len;
		off = e.off + e.len;
	}
	return rc == -ENXIO ? 0 : rc;
}

int ring_save(struct ring *r, int fd, unsigned int flags)
{
	struct image i = { .magic = IMAGE_MAGIC, .api_version = SINGVGPU_API_VERSION,
			   .flags = flags, .geo = r->geo };
	struct extent last = { 0 };
	int rc;

	if (r->client || flags & ~RING_SAVE_NO_ARENA)
		return -EINVAL;
	ring_publish(r);
	i.generation = ring_generation(r);
	i.pos = r->rx.pos;
	i.log_state = r->rx.log_len | (r->rx.log_half ? SINGVGPU_LOG_HALF : 0);
	memcpy(i.id, r->id, 16);
	rc = put_bytes(fd, &i, sizeof(i));
	if (!rc)
		rc = put_range(r, fd, 0, r->lay.arena_off, &last.off);
	if (!rc && !flags)
		rc = put_range(r, fd, r->lay.arena_off, r->lay.log_off, &last.off);
	if (!rc)
		rc = put_range(r, fd, r->lay.log_off, r->lay.end, &last.off);
	return rc ? rc : put_bytes(fd, &last, sizeof(last));
}

/* What of the extent lies in the arena must be there before it is written. */
static int commit_extent(struct ring *r, const struct extent *e)
{
	uint64_t from = e->off > r->lay.arena_off ? e->off : r->lay.arena_off;
	uint64_t to = e->off + e->len < r->lay.log_off ? e->off + e->len : r->lay.log_off;

	return from < to ? r->ops->commit(r, ring_at(&r->lay, from), to - from) : 0;
}

static int get_extents(struct ring *r, int fd)
{
	uint64_t total = 0;
	struct extent e;
	int rc;

	for (;;) {
		rc = get_bytes(fd, &e, sizeof(e));
		if (rc)
			return rc;
		if (!e.len)
			return e.off == total ? 0 : -EBADMSG;
		if (e.off > r->lay.end || e.len > r->lay.end - e.off)
			return -EBADMSG;
		rc = commit_extent(r, &e);
		if (!rc)
			rc = get_bytes(fd, (uint8_t *)r->ctl + e.off, e.len);
		if (rc)
			return rc;
		total += e.len;
	}
}

/* Correct the fields of the restored control page that are this channel's own. */
static void own_ctl(struct ring *r, const struct image *i, uint32_t life)
{
	struct singvgpu_ctl *c = r->ctl;

	c->head = i->pos;
	c->log_state = i->log_state;
	c->cons = (c->cons & SINGVGPU_CONS_ERROR) | SINGVGPU_CONS_GATE |
		  (i->generation + 1) << SINGVGPU_CONS_GEN_SHIFT;
	c->life = life;
	c->client_life = 0;
	c->client_closed = 0;
	c->cons_cpu = 0;
	c->prod_cpu = 0;
	ring_init_ctl(r);
}

uint32_t ring_version_of(int fd)
{
	struct singvgpu_info info;
	struct {
		uint64_t magic;
		uint32_t api_version;
	} head;		/* the beginning of struct image, and of a memfd's control page */

	if (pread(fd, &head, 12, 0) == 12)
		return head.magic == IMAGE_MAGIC || head.magic == SINGVGPU_MAGIC ?
			head.api_version : 0;
	return ioctl(fd, SINGVGPU_IOC_GET_INFO, &info) ? 0 : info.api_version;
}

int ring_restore(struct ring **out, int fd, const struct ring_params *p)
{
	struct ring_params q = *p;
	struct image i;
	struct ring *r;
	uint32_t life;
	int rc;

	rc = get_bytes(fd, &i, sizeof(i));
	if (rc)
		return rc;
	if (i.magic != IMAGE_MAGIC)
		return -EBADMSG;
	if (i.api_version != SINGVGPU_API_VERSION)
		return -EPROTONOSUPPORT;
	if (i.flags & ~RING_SAVE_NO_ARENA || i.pad)
		return -EBADMSG;
	memcpy(q.id, i.id, 16);
	q.geo = i.geo;
	rc = ring_create_generation(&r, &q, i.generation + 1);
	if (rc)
		return rc;
	rc = r->ops->gate(r, true);
	life = load(&r->ctl->life);
	if (!rc)
		rc = get_extents(r, fd);
	if (!rc) {
		own_ctl(r, &i, life);
		rc = ring_consume_init(r);
	}
	if (rc) {
		ring_close(r);
		return rc;
	}
	*out = r;
	return 0;
}
