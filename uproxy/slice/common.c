// SPDX-License-Identifier: Apache-2.0
/*
 * common.c - brings a sharer's bytes into the device's memory, and takes them away
 *
 *   not ours ── common_begin, common_bring … common_came ──► ours ── common_ends ──► not ours ── common_leave … common_left ──► another's
 *
 * What the client has unmapped is marked, until it maps that again: V_VOID. While the memory is not ours, another sharer may
 * have it, so a range that the client maps is only marked, too: V_VOID and V_NEW. The marks are by granule.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common.h"
#include "lock.h"
#include "proto.h"
#include "table.h"

#define V_VOID	1u
#define V_NEW	2u

_Static_assert(COMMON_SHARERS == TABLE_ROWS, "common.h repeats it");

#define UNITS_OF_GRANULE (SV_GRANULE / TABLE_UNIT)

bool common_on;

static struct common {
	struct lock lock;		/* what follows, and the table while the memory is ours */
	bool ours;
	bool leaves;			/* from common_ends() to common_left(): the table is ours, and is being changed */
	uint8_t *mark;			/* by granule */
	uint64_t news;			/* granules with V_NEW */
	int mail;			/* the end of the socket that is written to; the other one is the next number */
	uint64_t window, budget, process;
	struct table *table;
	int row;			/* -1: there has been no slice */
	struct common_moved moved;
} common = { .lock = LOCK_INIT(PROXY_SLICE), .row = -1 };

int common_open(const struct hal *h, int mail, uint64_t budget)
{
	common.mail = mail;
	common.budget = budget;
	common.window = h->window;
	common.mark = mmap(NULL, budget / SV_GRANULE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	common_on = common.mark != MAP_FAILED;
	return common_on ? 0 : -ENOMEM;
}

bool common_has(const struct hal *h, uint64_t va, uint64_t len)
{
	return va - h->window <= common.budget && len <= common.budget - (va - h->window);
}

/* ------------------------------------------------------------------------------ units */

static struct table_digest digest_of(const void *unit)
{
	XXH128_hash_t d = XXH3_128bits(unit, TABLE_UNIT);

	return (struct table_digest){ { d.low64, d.high64 } };
}

static uint64_t unit_at(uint64_t va)
{
	return (va - common.window) / TABLE_UNIT;
}

static uint8_t *mark_at(uint64_t va)
{
	return &common.mark[(va - common.window) / SV_GRANULE];
}

static void set_mark(uint64_t va, uint8_t mark)
{
	uint8_t *m = mark_at(va);

	common.news += !!(mark & V_NEW) - !!(*m & V_NEW);
	*m = mark;
}

/* lock */
static void bring_unit(uint64_t va)
{
	const void *from;

	switch (table_brings(common.table, common.row, unit_at(va), &from)) {
	case TABLE_NOTHING:
		return;
	case TABLE_ZEROS:
		memset((void *)va, 0, TABLE_UNIT);
		break;
	case TABLE_COPY:
		memcpy((void *)va, from, TABLE_UNIT);
		break;
	}
	table_brought(common.table, common.row, unit_at(va));
	common.moved.brought += TABLE_UNIT;
}

/*
 * Only what the client has mapped can be accessed, and only while it is ours: so whatever touches another's bytes fails. The
 * driver does not know of this, since graphs with such addresses are made out of turn, too.
 */
static void protect(uint64_t va, uint64_t len, int prot)
{
	mprotect((void *)va, len, prot);
}

/* lock. The table forgets what a granule that has a mark had, and the bytes of one that is mapped come. */
static void bring_granule(uint64_t va)
{
	uint8_t mark = *mark_at(va);
	bool mapped = !mark || mark & V_NEW;

	assert_held(&common.lock);
	set_mark(va, mapped ? 0 : V_VOID);
	/* Whoever brings a run has seen only what was mapped when the run began. */
	if (mark)
		protect(va, SV_GRANULE, mapped ? PROT_READ | PROT_WRITE : PROT_NONE);
	for (uint64_t at = va; at < va + SV_GRANULE; at += TABLE_UNIT) {
		if (mark)
			table_freed(common.table, common.row, unit_at(at), false);
		if (mapped)
			bring_unit(at);
	}
}

/* lock */
static void free_granule(uint64_t va)
{
	assert_held(&common.lock);
	for (uint64_t at = va; at < va + SV_GRANULE; at += TABLE_UNIT)
		table_freed(common.table, common.row, unit_at(at), true);
	protect(va, SV_GRANULE, PROT_NONE);
}

void common_map(uint64_t va, uint64_t len)
{
	for (uint64_t at = va; at < va + len; at += SV_GRANULE) {
		lock_take(&common.lock);
		set_mark(at, V_VOID | V_NEW);
		if (common.ours && !table_change(common.table)) {
			bring_granule(at);
			table_changed(common.table);
		}
		lock_drop(&common.lock);
	}
}

void common_unmap(uint64_t va, uint64_t len)
{
	for (uint64_t at = va; at < va + len; at += SV_GRANULE) {
		lock_take(&common.lock);
		set_mark(at, V_VOID);
		/* What lies there is neither what the table says nor taken away any more. */
		if (common.leaves) {
			free_granule(at);
		} else if (!common.ours) {
			protect(at, SV_GRANULE, PROT_NONE);
		} else if (!table_change(common.table)) {
			free_granule(at);
			table_changed(common.table);
		}
		lock_drop(&common.lock);
	}
}

/* ------------------------------------------------------------------------------ the memory */


/* What the first sharer has made: of the memory and of the table. */
struct made {
	int memory, table;
};

#define CONTROL union { char bytes[CMSG_SPACE(sizeof(struct made))]; struct cmsghdr align; }

/* -EAGAIN: nobody has made anything yet. */
static int look_in_mail(struct made *made)
{
	CONTROL control = { 0 };
	char c;
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct cmsghdr *h;

	if (recvmsg(common.mail + 1, &m, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
		return -errno;
	h = CMSG_FIRSTHDR(&m);
	if (!h || h->cmsg_type != SCM_RIGHTS || h->cmsg_len != CMSG_LEN(sizeof(*made)))
		return -EPROTO;
	memcpy(made, CMSG_DATA(h), sizeof(*made));
	return 0;
}

static int leave_in_mail(const struct made *made)
{
	CONTROL control = { 0 };
	char c = 0;
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);

	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(*made));
	memcpy(CMSG_DATA(h), made, sizeof(*made));
	return sendmsg(common.mail, &m, MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

static int no_memory(CUresult r, struct why *why)
{
	return why_set(why, -ENOMEM, "the memory that the device's sharers have in common, %llu MiB, cannot be mapped: CUDA error %d",
		       (unsigned long long)common.budget >> 20, r);
}

/* Makes both, and maps the memory. */
static int make(struct hal *h, struct made *made, struct why *why)
{
	static const char zeros[TABLE_UNIT];
	struct table_digest d = digest_of(zeros);
	CUresult r;
	int rc;

	made->table = memfd_create("singvgpu-slices", MFD_CLOEXEC);
	if (made->table < 0)
		return why_set(why, -errno, "no table for the device's sharers: %s", strerror(errno));
	rc = table_lay_out(made->table, common.budget / TABLE_UNIT, &d, true);
	r = hal_share(h, common.window, common.budget, &made->memory);
	if (r)
		return no_memory(r, why);
	rc = rc ?: leave_in_mail(made);
	return rc ? why_set(why, rc, "no table for the device's sharers: %s", strerror(-rc)) : 0;
}

static int join(struct hal *h, const struct made *made, struct why *why)
{
	CUresult r = hal_join(h, common.window, common.budget, made->memory);

	return r ? no_memory(r, why) : 0;
}

static int make_or_join(struct hal *h, struct why *why)
{
	struct made made = { -1, -1 };
	int rc = look_in_mail(&made);
	bool is_new;

	if (rc && rc != -EAGAIN)
		return why_set(why, rc, "the memory of the device's sharers is not to be had: %s", strerror(-rc));
	rc = rc ? make(h, &made, why) : join(h, &made, why);
	if (rc)
		return rc;
	if (!hal_host_reads(h, common.window))
		return why_set(why, -ENOTSUP, "slices need device memory that the host can read, which this driver's is not");
	rc = table_open(made.table, &common.table, &is_new);
	if (!rc && (is_new || table_units(common.table) != common.budget / TABLE_UNIT))
		rc = -EPROTO;
	close(made.memory);
	close(made.table);
	protect(common.window, common.budget, PROT_NONE);
	if (!rc && getrandom(&common.process, sizeof(common.process), 0) != sizeof(common.process))
		rc = -EIO;
	return rc ? why_set(why, rc, "the table of the device's sharers cannot be used: %s", strerror(-rc)) : 0;
}

int common_join(struct hal *h, int lock, uint32_t device, struct why *why)
{
	struct flock one = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = device, .l_len = 1 };
	int rc;

	while (fcntl(lock, F_SETLKW, &one))
		if (errno != EINTR)
			return why_set(why, -errno, "no lock among the device's sharers: %s", strerror(errno));
	rc = make_or_join(h, why);
	one.l_type = F_UNLCK;
	fcntl(lock, F_SETLK, &one);
	return rc;
}

/* ------------------------------------------------------------------------------ a slice */

static int torn(struct why *why)
{
	return why_set(why, -ENOTRECOVERABLE, "a rank that shares the device was killed while it changed whose bytes lie where");
}

struct dropping {
	bool (*gone)(uint32_t seat);
	uint32_t seat[TABLE_ROWS];
	uint32_t n;
};

static void find_gone(void *ctx, uint32_t seat)
{
	struct dropping *d = ctx;

	if (d->gone(seat))
		d->seat[d->n++] = seat;
}

/* What was unmapped meanwhile gives its versions back. */
static void free_void(void)
{
	lock_take(&common.lock);
	for (uint64_t va = common.window; va < common.window + common.budget; va += SV_GRANULE) {
		if (*mark_at(va) != V_VOID)
			continue;
		for (uint64_t at = va; at < va + SV_GRANULE; at += TABLE_UNIT)
			table_freed(common.table, common.row, unit_at(at), false);
	}
	lock_drop(&common.lock);
}

int common_begin(uint32_t seat, bool (*gone)(uint32_t seat), bool known, struct why *why)
{
	struct dropping d = { .gone = gone };

	if (table_change(common.table))
		return torn(why);
	table_rows(common.table, find_gone, &d);
	while (d.n)
		table_drop(common.table, d.seat[--d.n]);
	if (!known)
		table_forget(common.table);
	common.row = table_row(common.table, seat, common.process);
	if (common.row < 0) {
		table_changed(common.table);
		return why_set(why, common.row, "more than %u ranks share the device", TABLE_ROWS);
	}
	free_void();
	return 0;
}

void common_bring(uint64_t va, uint64_t len)
{
	protect(va, len, PROT_READ | PROT_WRITE);
	for (uint64_t at = va; at < va + len; at += SV_GRANULE) {
		lock_take(&common.lock);
		bring_granule(at);
		lock_drop(&common.lock);
	}
}

bool common_came(void)
{
	bool came;

	lock_take(&common.lock);
	came = !common.news;
	if (came) {
		table_changed(common.table);
		common.ours = true;
	}
	lock_drop(&common.lock);
	return came;
}

int common_ends(struct why *why)
{
	int rc;

	lock_take(&common.lock);
	common.ours = false;
	rc = table_change(common.table);
	common.leaves = !rc;
	lock_drop(&common.lock);
	return rc ? torn(why) : 0;
}

/* lock. -ENOSPC. */
static int leave_granule(uint64_t va)
{
	void *backing;

	for (uint64_t at = va; at < va + SV_GRANULE; at += TABLE_UNIT) {
		struct table_digest d = digest_of((const void *)at);
		int rc = table_left(common.table, common.row, unit_at(at), &d, &backing);

		if (rc < 0)
			return rc;
		common.moved.digested += TABLE_UNIT;
		if (rc) {
			memcpy(backing, (const void *)at, TABLE_UNIT);
			common.moved.taken += TABLE_UNIT;
		}
	}
	return 0;
}

int common_leave(uint64_t va, uint64_t len, struct why *why)
{
	int rc = 0;

	for (uint64_t at = va; at < va + len && !rc; at += SV_GRANULE) {
		lock_take(&common.lock);
		if (!*mark_at(at))
			rc = leave_granule(at);
		lock_drop(&common.lock);
	}
	return rc ? why_set(why, rc, "no room for the bytes of the device's sharers") : 0;
}

void common_left(void)
{
	protect(common.window, common.budget, PROT_NONE);
	lock_take(&common.lock);
	common.leaves = false;
	table_changed(common.table);
	lock_drop(&common.lock);
}

bool common_here(void)
{
	return !common_on || common.ours;
}

const void *common_kept(uint64_t va)
{
	return common.row < 0 || *mark_at(va) ? NULL : table_bytes(common.table, common.row, unit_at(va));
}

struct common_moved common_moved(void)
{
	struct common_moved m;

	lock_take(&common.lock);
	m = common.moved;
	lock_drop(&common.lock);
	m.backing = TABLE_UNIT * table_versions(common.table, &m.backing_peak);
	m.backing_peak *= TABLE_UNIT;
	return m;
}

void common_stops(void)
{
	lock_take(&common.lock);
	common.ours = common.leaves = false;
	lock_drop(&common.lock);
}
