// SPDX-License-Identifier: Apache-2.0
/*
 * ring.c - makes, finds, maps and closes the two ends of a channel
 *
 * An end is one private mapping that holds struct ring and its tables. The client's is wiped on
 * fork: a child finds no control page in it and gets -ECHILD, whatever the parent was doing.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ring_i.h"

#define PAGE 4096ull
#define VA_END (1ull << 47)

static uint64_t page_up(uint64_t n)
{
	return (n + PAGE - 1) & ~(PAGE - 1);
}

/* Is it a range of whole pages of an arena of so many bytes? */
static bool in_arena(uint64_t arena, size_t off, size_t len)
{
	return off % PAGE == 0 && len % PAGE == 0 && off <= arena && len <= arena - off;
}

static bool zero16(const uint8_t *p)
{
	static const uint8_t zero[16];

	return !memcmp(p, zero, 16);
}

/* ring_layout: where the regions lie; -EINVAL for a geometry that the header forbids. */
int ring_layout(const struct singvgpu_geometry *g, struct layout *l)
{
	if (g->ring_units < SINGVGPU_RING_UNITS_MIN || g->ring_units > SINGVGPU_RING_UNITS_MAX ||
	    (g->ring_units & (g->ring_units - 1)))
		return -EINVAL;
	if (!g->cpl_slots || g->cpl_slots > SINGVGPU_CPL_SLOTS_MAX)
		return -EINVAL;
	if (g->va % PAGE || !g->va || g->arena_len % PAGE || g->log_len % (2 * PAGE))
		return -EINVAL;
	if (g->va >= VA_END || g->arena_len >= VA_END || g->log_len >= VA_END)
		return -EINVAL;
	l->cpl_off = PAGE;
	l->ring_off = l->cpl_off + page_up((uint64_t)g->cpl_slots * sizeof(struct singvgpu_cpl));
	l->arena_off = l->ring_off + (uint64_t)g->ring_units * SINGVGPU_UNIT;
	l->log_off = l->arena_off + g->arena_len;
	l->end = l->log_off + g->log_len;
	l->arena_at = l->arena_off;
	l->log_at = l->log_off;
	return g->va + l->end > VA_END ? -EINVAL : 0;
}

/* ring_at: the place in the object of an offset in memory. */
uint64_t ring_at(const struct layout *l, uint64_t off)
{
	if (off < l->arena_off)
		return off;
	return off < l->log_off ? off - l->arena_off + l->arena_at : off - l->log_off + l->log_at;
}

/* ring_new: an end that is not mapped yet. -ENOMEM, -EINVAL. */
int ring_new(struct ring **out, const struct singvgpu_geometry *g, bool client)
{
	size_t extra;
	struct layout lay;
	struct ring *r;
	int rc;

	rc = ring_layout(g, &lay);
	if (rc)
		return rc;
	extra = client ? g->cpl_slots * sizeof(*r->slot) + g->ring_units : SINGVGPU_RECORD_MAX;
	extra = page_up(sizeof(*r) + extra);
	r = mmap(NULL, extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (r == MAP_FAILED)
		return -ENOMEM;
	if (client && madvise(r, extra, MADV_WIPEONFORK)) {
		munmap(r, extra);
		return -ENOSYS;
	}
	r->self_len = extra;
	r->geo = *g;
	r->lay = lay;
	r->client = client;
	r->fd = -1;
	r->mask = g->ring_units - 1;
	r->payload_max = (uint32_t)g->ring_units * SINGVGPU_UNIT / 4;
	if (r->payload_max > SINGVGPU_RECORD_MAX)
		r->payload_max = SINGVGPU_RECORD_MAX;
	r->payload_max -= sizeof(struct singvgpu_rec);
	r->map_len = client ? lay.log_off : lay.end;
	if (client) {
		r->slot = (uint64_t *)(r + 1);
		r->stale = (uint8_t *)(r->slot + g->cpl_slots);
		memset(r->stale, 1, g->ring_units);
	} else {
		r->rx.copy = (uint8_t *)(r + 1);
	}
	*out = r;
	return 0;
}

/* Maps what lies in one piece in memory, [off, end), and in the object. */
static int map_piece(const struct ring *r, uint64_t off, uint64_t end, int flags)
{
	void *va = (void *)(uintptr_t)(r->geo.va + off), *p;

	if (off >= end)
		return 0;
	p = mmap(va, end - off, PROT_READ | PROT_WRITE, MAP_SHARED | flags, r->fd, ring_at(&r->lay, off));
	if (p == MAP_FAILED)
		return -errno;
	if (p != va) {	/* a kernel before 4.17 takes the address for a hint */
		munmap(p, end - off);
		return -EEXIST;
	}
	return 0;
}

/* ring_map: map r->fd at the channel's address. -EEXIST that is taken. */
int ring_map(struct ring *r)
{
	const struct layout *l = &r->lay;
	uint8_t *p = (uint8_t *)(uintptr_t)r->geo.va;
	int rc = map_piece(r, 0, r->map_len, MAP_FIXED_NOREPLACE);

	if (rc)
		return rc;
	if (l->arena_at != l->arena_off) {
		rc = map_piece(r, l->arena_off, l->log_off, MAP_FIXED);
		if (!rc)
			rc = map_piece(r, l->log_off, r->map_len, MAP_FIXED);
	}
	if (!rc && r->client && madvise(p, r->map_len, MADV_DONTFORK))
		rc = -errno;
	if (rc) {
		munmap(p, r->map_len);
		return rc;
	}
	r->ctl = (struct singvgpu_ctl *)p;
	r->cpl = (struct singvgpu_cpl *)(p + r->lay.cpl_off);
	r->units = p + r->lay.ring_off;
	r->arena = r->geo.arena_len ? p + r->lay.arena_off : NULL;
	r->log = !r->client && r->geo.log_len ? p + r->lay.log_off : NULL;
	return 0;
}

/* ring_init_ctl: write the constant fields of the control page (the module writes the same). */
void ring_init_ctl(struct ring *r)
{
	struct singvgpu_ctl *c = r->ctl;

	c->api_version = SINGVGPU_API_VERSION;
	c->ring_units = r->geo.ring_units;
	memcpy(c->id, r->id, 16);
	c->va = r->geo.va;
	c->cpl_slots = r->geo.cpl_slots;
	c->cpl_off = r->lay.cpl_off;
	c->ring_off = r->lay.ring_off;
	c->arena_off = r->lay.arena_off;
	c->arena_len = r->geo.arena_len;
	c->log_off = r->lay.log_off;
	c->log_len = r->geo.log_len;
	store_release(&c->magic, SINGVGPU_MAGIC);
}

void ring_free(struct ring *r)
{
	if (r->ctl)
		munmap(r->ctl, r->map_len);
	if (r->fd >= 0)
		close(r->fd);
	munmap(r, r->self_len);
}

int ring_create_generation(struct ring **out, const struct ring_params *p, uint32_t generation)
{
	enum ring_backend backend = p->backend;
	struct ring *r;
	int rc;

	if (zero16(p->id) || (backend != RING_MEMFD && zero16(p->cookie)))
		return -EINVAL;
	if (backend == RING_AUTO)
		backend = access(SINGVGPU_DEV_PATH, R_OK | W_OK) ? RING_MEMFD : RING_KMOD;
	rc = ring_new(&r, &p->geo, false);
	if (rc)
		return rc;
	memcpy(r->id, p->id, 16);
	memcpy(r->cookie, p->cookie, 16);
	pthread_mutex_init(&r->rx.lock, NULL);
	rc = backend == RING_KMOD ? ring_kmod_create(r, generation) :
				    ring_memfd_create(r, generation);
	if (!rc)
		rc = ring_consume_init(r);
	if (rc) {
		if (r->ops)
			r->ops->hang_up(r);
		ring_free(r);
		return rc;
	}
	*out = r;
	return 0;
}

int ring_create(struct ring **out, const struct ring_params *p)
{
	return ring_create_generation(out, p, 0);
}

int ring_client_fd(struct ring *r)
{
	return r->client ? -EINVAL : r->ops->client_fd(r);
}

static int attach_done(struct ring **out, struct ring *r)
{
	int rc = ring_produce_init(r);

	if (rc) {
		r->fd = -1;	/* still the caller's */
		ring_free(r);
		return rc;
	}
	*out = r;
	return 0;
}

int ring_attach(struct ring **out, int fd)
{
	struct ring *r;
	struct stat st;
	int rc;

	if (fstat(fd, &st))
		return -errno;
	rc = S_ISCHR(st.st_mode) ? ring_kmod_attach(fd, NULL, NULL, &r) :
				   ring_memfd_attach(fd, &r);
	return rc ? rc : attach_done(out, r);
}

int ring_map_arena(int fd, struct ring_guest *g)
{
	struct singvgpu_geometry geo;
	struct layout lay;
	struct stat st;
	bool module;
	void *va;
	int rc;

	if (fstat(fd, &st))
		return -errno;
	module = S_ISCHR(st.st_mode);
	rc = module ? ring_kmod_look(fd, &geo, &lay, g->id) : ring_memfd_look(fd, &geo, &lay, g->id);
	if (rc)
		return rc;
	if (!geo.arena_len)
		return -EPROTO;
	va = (void *)(uintptr_t)(geo.va + lay.arena_off);
	g->arena = mmap(va, geo.arena_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
			fd, lay.arena_at);
	if (g->arena == MAP_FAILED)
		return errno == EBUSY ? -EPROTONOSUPPORT : -errno;
	g->len = geo.arena_len;
	g->at = lay.arena_at;
	g->fd = module ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (g->arena != va)
		rc = -EEXIST;
	else if (!module && g->fd < 0)
		rc = -errno;
	if (rc)
		munmap(g->arena, g->len);
	return rc;
}

int ring_guest_commit(const struct ring_guest *g, size_t off, size_t len)
{
	if (!in_arena(g->len, off, len))
		return -EINVAL;
	return g->fd < 0 ? 0 : ring_memfd_commit(g->fd, g->at + off, len);
}

int ring_attach_id(struct ring **out, const uint8_t id[16], const uint8_t cookie[16])
{
	struct ring *r;
	int fd, rc;

	fd = open(SINGVGPU_DEV_PATH, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT || errno == ENXIO ? -ENODEV : -errno;
	rc = ring_kmod_attach(fd, id, cookie, &r);
	if (!rc)
		rc = attach_done(out, r);
	if (rc)
		close(fd);
	return rc;
}

void ring_close(struct ring *r)
{
	if (!r)
		return;
	if (r->ctl)
		r->ops->hang_up(r);
	if (!r->client)
		pthread_mutex_destroy(&r->rx.lock);
	if (r->self_len)	/* 0 in a fork's child, whose mapping was wiped */
		ring_free(r);
}

enum ring_backend ring_backend(const struct ring *r)
{
	return r->ops ? r->ops->backend : RING_AUTO;
}

const struct singvgpu_geometry *ring_geometry(const struct ring *r)
{
	return &r->geo;
}

const uint8_t *ring_id(const struct ring *r)
{
	return r->id;
}

uint32_t ring_generation(const struct ring *r)
{
	return r->ops ? r->ops->generation(r) : 0;
}

int ring_fd(const struct ring *r)
{
	return r->self_len ? r->fd : -ECHILD;
}

void *ring_arena(const struct ring *r)
{
	return r->arena;
}

void ring_set_spin(struct ring *r, uint32_t max_ns)
{
	ring_spin_init(r->client ? &r->tx.spin : &r->rx.spin, max_ns);
}

int ring_commit(struct ring *r, size_t off, size_t len)
{
	if (r->client || !in_arena(r->geo.arena_len, off, len))
		return -EINVAL;
	return r->ops->commit(r, r->lay.arena_at + off, len);
}

int ring_decommit(struct ring *r, size_t off, size_t len)
{
	return in_arena(r->geo.arena_len, off, len) ? r->ops->decommit(r, r->lay.arena_at + off, len) :
						      -EINVAL;
}

const char *ring_strerror(int err)
{
	/* INT_MIN has no positive value, and is unknown. */
	if (err < 0 && err != INT_MIN)
		err = -err;
	switch (err) {
	case 0:			return "no error";
	case EPIPE:		return "the other end of the channel is gone";
	case ECHILD:		return "a fork's child has no channel of its own";
	case EPROTO:		return "the other end broke the channel's rules";
	case EPROTONOSUPPORT:	return "the other end speaks another version of the channel";
	case EEXIST:		return "the channel's address, or its identity, is taken";
	case ENODEV:		return "no " SINGVGPU_DEV_PATH ": is the module loaded?";
	case EACCES:
	case EPERM:		return "no permission for the channel";
	case EDQUOT:		return "a limit on this user's channels is reached";
	case ENOMEM:		return "out of memory";
	case EINVAL:		return "an argument or the geometry is not valid";
	case ENOENT:		return "no channel of this identity and cookie for this user";
	case EBUSY:		return "in use: the client end, or all completion slots";
	case EMSGSIZE:		return "the record is too long for this ring";
	case ETIMEDOUT:		return "timed out";
	case EINTR:		return "interrupted";
	case ENOSPC:		return "the log is full";
	case EBADMSG:		return "the saved channel or its log is damaged";
	case EALREADY:		return "the gate is in that state already";
	case ENOSYS:		return "the kernel lacks a needed system call";
	case EMFILE:
	case ENFILE:		return "too many open files";
	}
	return strerrordesc_np(err) ?: "unknown error";
}
