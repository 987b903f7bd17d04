// SPDX-License-Identifier: Apache-2.0
/*
 * claims.c - which page each of several writers stores, while they write one checkpoint
 *
 * A memfd that the writers map: struct claims, one struct claimed for each segment that they have begun,
 * a table of entries by digest. An entry is 16 bytes, zero while it is free:
 *
 *   lo      of the digest. Whoever changes it from 0 has the page, and stores it
 *   where   written next. Bits 0-13: slot, 14-29: number of the segment, 30: 1, 31-63: of the digest's hi
 *
 * Nothing here is believed: a place is a promise, which the writer that relies on it remembers with the
 * whole digest and compares with the segment's index when that is durable (store_writer_flush). A lost
 * entry costs a page that is stored twice. The file's size is sealed, so no peer can cut it.
 *
 * A segment's byte of the file is locked while it is being written, by an open file description of the
 * writer's own. So a segment that is neither durable nor dropped nor locked has lost its writer.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store_i.h"

#define CLAIMS_MAGIC   0x314d4c4347565353ull
#define CLAIMS_SEGS    (1u << 16)
#define CLAIMS_MIN     (1ull << 16)	/* entries */
#define CLAIMS_MAX     (1ull << 32)
#define PROBES	       128u
#define SPINS	       4096u		/* for an entry that is being written */
#define SLOT_BITS      14
#define HI_SHIFT       31
#define THERE	       (1ull << 30)

enum claimed_state { OPEN, DURABLE, DROPPED };

struct claimed {
	_Atomic uint64_t id;		/* 0: none; written after `state` */
	_Atomic uint64_t state;
};

struct entry {
	_Atomic uint64_t lo, where;
};

struct claims_head {
	uint64_t magic, store;		/* the store's id */
	uint64_t entries;		/* a power of two */
	_Atomic uint64_t segs;
	uint64_t pad[508];
};
_Static_assert(sizeof(struct claims_head) == 4096, "shared between processes");
_Static_assert(sizeof(struct claimed) == 16 && sizeof(struct entry) == 16, "shared between processes");
_Static_assert(SEG_SLOTS == 1u << SLOT_BITS, "an entry has room for every slot");

struct claims {
	int fd;				/* an open file description of our own */
	size_t len;
	uint64_t mask;
	struct claims_head *head;
	struct claimed *seg;
	struct entry *entry;
};

static size_t length(uint64_t entries)
{
	return sizeof(struct claims_head) + CLAIMS_SEGS * sizeof(struct claimed) +
	       entries * sizeof(struct entry);
}

int store_claims_make(struct store *s, uint64_t bytes, int *fd)
{
	struct claims_head head = { .magic = CLAIMS_MAGIC, .store = s->super.c, .entries = CLAIMS_MIN };
	int err = 0;

	while (head.entries < CLAIMS_MAX && head.entries / 4 * 3 < bytes / STORE_PAGE)
		head.entries *= 2;
	*fd = memfd_create("singvgpu-claims", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0)
		return store_fail_io(-errno, "make", "a table of pages");
	if (ftruncate(*fd, length(head.entries)) ||
	    fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		err = -errno;
	else if (pwrite(*fd, &head, sizeof(head), 0) != sizeof(head))
		err = errno ? -errno : -EIO;
	if (!err)
		return 0;
	close(*fd);
	*fd = -1;
	return store_fail_io(err, "make", "a table of pages");
}

static int refuse(const char *what)
{
	return store_fail(-EINVAL, "the table of a checkpoint's pages %s", what);
}

/* The size is read once, and cannot change. */
static int map(struct store *s, struct claims *c)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	struct claims_head head;
	struct stat st;

	if (fstat(c->fd, &st) || (fcntl(c->fd, F_GET_SEALS) & seals) != seals)
		return refuse("could be cut");
	if (pread(c->fd, &head, sizeof(head), 0) != sizeof(head) || head.magic != CLAIMS_MAGIC)
		return refuse("is none");
	if (head.store != s->super.c)
		return refuse("is of another store");
	if (head.entries < CLAIMS_MIN || head.entries > CLAIMS_MAX ||
	    (head.entries & (head.entries - 1)) || (uint64_t)st.st_size != length(head.entries))
		return refuse("has a wrong size");
	c->len = st.st_size;
	c->mask = head.entries - 1;
	c->head = mmap(NULL, c->len, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
	if (c->head == MAP_FAILED) {
		c->head = NULL;
		return store_fail(-ENOMEM, "out of memory");
	}
	madvise(c->head, c->len, MADV_DONTFORK);
	c->seg = (struct claimed *)(c->head + 1);
	c->entry = (struct entry *)(c->seg + CLAIMS_SEGS);
	return 0;
}

int store_claims_open(struct store *s, int fd, struct claims **out)
{
	struct claims *c = calloc(1, sizeof(*c));
	char path[40];
	int err;

	*out = NULL;
	if (!c)
		return store_fail(-ENOMEM, "out of memory");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	c->fd = open(path, O_RDWR | O_CLOEXEC);
	err = c->fd < 0 ? store_fail_io(-errno, "open", "a table of pages") : map(s, c);
	if (err)
		store_claims_close(c);
	else
		*out = c;
	return err;
}

void store_claims_close(struct claims *c)
{
	if (!c)
		return;
	if (c->head)
		munmap(c->head, c->len);
	if (c->fd >= 0)
		close(c->fd);
	free(c);
}

/* ------------------------------------------------------------------------------ segments */

static int lock(const struct claims *c, uint32_t n, int type)
{
	struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_start = n, .l_len = 1 };

	return fcntl(c->fd, F_OFD_SETLK, &l) ? -errno : 0;
}

/* Whether another open file description locks it. */
static bool is_locked(const struct claims *c, uint32_t n)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = n, .l_len = 1 };

	return !fcntl(c->fd, F_OFD_GETLK, &l) && l.l_type != F_UNLCK;
}

int64_t store_claims_begin(struct claims *c, uint64_t id)
{
	uint64_t n = atomic_fetch_add(&c->head->segs, 1);

	if (n >= CLAIMS_SEGS || lock(c, n, F_WRLCK))
		return -1;
	/* Pairs with the acquire in store_claims_seg: the lock is held, the state is OPEN. */
	atomic_store_explicit(&c->seg[n].id, id, memory_order_release);
	return n;
}

void store_claims_end(struct claims *c, int64_t n, bool durable)
{
	if (n < 0)
		return;
	atomic_store_explicit(&c->seg[n].state, durable ? DURABLE : DROPPED, memory_order_release);
	lock(c, n, F_UNLCK);
}

int store_claims_state(struct claims *c, uint32_t n)
{
	/* pairs with store_claims_end() */
	uint64_t state = atomic_load_explicit(&c->seg[n].state, memory_order_acquire);
	bool locked;

	if (state == OPEN) {
		locked = is_locked(c, n);
		/* pairs with store_claims_end(), as the one above */
		/* It may have ended in between. */
		state = atomic_load_explicit(&c->seg[n].state, memory_order_acquire);
		if (state == OPEN)
			return locked ? -EAGAIN : -EOWNERDEAD;
	}
	return state == DURABLE ? 0 : -ECANCELED;
}

/* ------------------------------------------------------------------------------ pages */

/* 0: it is not written in time. */
static uint64_t where(struct entry *e)
{
	uint64_t w = 0;

	/* Pairs with the release in store_claims_take. */
	for (unsigned int i = 0; i < SPINS && !w; i++)
		w = atomic_load_explicit(&e->where, memory_order_acquire);
	return w;
}

static bool get(struct claims *c, uint64_t w, struct store_digest d, struct claim *to)
{
	uint32_t n = w >> SLOT_BITS & (CLAIMS_SEGS - 1);

	if (!w || w >> HI_SHIFT != d.hi >> HI_SHIFT)
		return false;
	to->n = n;
	to->slot = w & (SEG_SLOTS - 1);
	/* pairs with store_claims_begin() */
	to->id = atomic_load_explicit(&c->seg[n].id, memory_order_acquire);
	/* Not one whose loss is known already. */
	return to->id && atomic_load_explicit(&c->seg[n].state, memory_order_relaxed) != DROPPED;
}

bool store_claims_take(struct claims *c, struct store_digest d, int64_t n, uint32_t slot,
		       struct claim *other)
{
	uint64_t at = d.hi ^ d.lo >> 32;

	if (!d.lo)
		return false;
	for (unsigned int i = 0; i < PROBES; i++) {
		struct entry *e = &c->entry[(at + i) & c->mask];
		uint64_t lo = atomic_load_explicit(&e->lo, memory_order_relaxed);

		if (!lo && n < 0)
			return false;
		if (!lo && atomic_compare_exchange_strong(&e->lo, &lo, d.lo)) {
			atomic_store_explicit(&e->where, d.hi >> HI_SHIFT << HI_SHIFT | THERE |
					      (uint64_t)n << SLOT_BITS | slot, memory_order_release);
			return false;
		}
		if (lo == d.lo && get(c, where(e), d, other))
			return true;
	}
	return false;
}
