// SPDX-License-Identifier: Apache-2.0
/*
 * arena.c - the client's part of the arena, in chunks that are backed and pinned while in use
 *
 * One record pins a run of chunks, and one unpins the whole run. An allocation lies in one run:
 * NVIDIA's driver refuses a copy that straddles two regions of cuMemHostRegister. Up to CACHE_MAX
 * bytes of chunks without allocations stay pinned for later allocations; beyond that, unused runs
 * are unpinned and their pages freed.
 *
 * Pages are zero when they are pinned: what the arena has there is punched out before, whatever wrote it.
 * Pinned pages are never punched, since a device may have them registered.
 *
 *   0 ── allocated ──► GOING ── answered ──► PINNED ── CACHE_MAX, nothing in its run ──► PINNED | GOING ── answered ──► 0
 *
 * A thread that allocates in a chunk that is GOING waits until that is answered.
 */
#include "arena.h"
#include "send.h"
#include "space.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK		(2ull << 20)
#define CACHE_MAX	(64ull << 20)
#define PINNED		0x80000000u
#define GOING		0x40000000u
#define MISFITS		64	/* places in several runs that an allocation passes over */

struct chunks {			/* locks.arena */
	struct space *space;
	uint32_t *of;		/* per chunk: PINNED | GOING | number of allocations */
	uint32_t *run;		/* per chunk: the first chunk of the run that it was pinned in */
	uint64_t n;
	uint64_t cached;	/* bytes of pinned chunks without allocations */
	uint32_t going;		/* pins and unpins under way */
	uint32_t joined;	/* sessions whose devices have the pinned chunks; by device */
	bool joining;		/* a session pins what the others have: nothing else may change */
	pthread_cond_t gone;	/* chunks that were GOING, or a session that was joining */
};

static CUresult set_up(void)
{
	uint64_t len = process.arena_len;
	uint64_t first = (here->shared->arena_first + CHUNK - 1) & -CHUNK;
	struct chunks *ch = process.chunks;

	if (!ch)
		ch = process.chunks = calloc(1, sizeof(*ch));
	if (!ch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (ch->of)
		munmap(ch->of, 2 * ch->n * sizeof(*ch->of));
	if (ch->space)
		space_free(ch->space);
	*ch = (struct chunks){ .n = len / CHUNK, .gone = PTHREAD_COND_INITIALIZER,
			       .joined = 1u << device_of(here) };
	ch->of = mmap(NULL, 2 * ch->n * sizeof(*ch->of), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ch->of == MAP_FAILED || first >= ch->n * CHUNK) {
		ch->of = NULL;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	ch->run = ch->of + ch->n;
	ch->space = space_new(first, ch->n * CHUNK - first);
	return ch->space ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Begin to change a run, which no session must join meanwhile. locks.arena is held. */
static void begin_change(void)
{
	struct chunks *ch = process.chunks;

	assert_held(&process.locks.arena);
	while (ch->joining)
		lock_wait(&process.locks.arena, &ch->gone);
	ch->going++;
}

static void end_change(void)
{
	process.chunks->going--;
	pthread_cond_broadcast(&process.chunks->gone);
}

static CUresult send_pin(struct session *s, uint16_t op, const struct sv_pin *a)
{
	ON(s);

	return send_sync(op, a, sizeof(*a), NULL, 0, NULL, 0);
}

/* Is another device's context broken, or its proxy lost? Then its errors are not this call's. */
static bool is_its_own(struct session *s, CUresult rc)
{
	ON(s);

	return send_latched() || rc == CUDA_ERROR_UNKNOWN;
}

/*
 * Sends the record to the sessions of a set, up to the first failure. *done (done may be NULL) is the
 * set of those that have succeeded.
 */
static CUresult send_pins(uint32_t to, uint16_t op, const struct sv_pin *a, uint32_t *done)
{
	uint32_t sent = 0;
	CUresult rc = CUDA_SUCCESS;

	for (int i = 0; i < process.devices && !rc; i++) {
		if (!(to & 1u << i))
			continue;
		rc = send_pin(&sessions[i], op, a);
		if (rc && &sessions[i] != here && is_its_own(&sessions[i], rc))
			rc = CUDA_SUCCESS;
		else if (!rc)
			sent |= 1u << i;
	}
	if (done)
		*done = sent;
	return rc;
}

/*
 * Have n chunks backed and pinned. *zero: they are zero. locks.arena is held, and dropped while the
 * proxies work.
 */
static CUresult pin(uint64_t first, uint64_t n, bool *zero)
{
	struct chunks *ch = process.chunks;
	struct sv_pin a = { first * CHUNK, n * CHUNK };
	uint32_t done;
	CUresult rc;

	assert_held(&process.locks.arena);
	for (uint64_t i = first; i < first + n; i++)
		ch->of[i] |= GOING;
	begin_change();
	lock_drop(&process.locks.arena);
	/* A stray write behind the end of an allocation may have made a page since the last unpin(). */
	*zero = !ring_decommit(process.home->ring, a.off, a.len);
	rc = send_pins(ch->joined, SV_OP_X_PIN, &a, &done);
	if (rc) {
		send_pins(done, SV_OP_X_UNPIN, &a, NULL);
		ring_decommit(process.home->ring, a.off, a.len);
	}
	lock_take(&process.locks.arena);
	for (uint64_t i = first; i < first + n; i++) {
		ch->of[i] &= ~GOING;
		if (rc)
			continue;
		ch->of[i] |= PINNED;
		ch->run[i] = first;
	}
	end_change();
	return rc;
}

/* The end of the pinned run that begins with this chunk. */
static uint64_t run_end(uint64_t first)
{
	struct chunks *ch = process.chunks;
	uint64_t end = first;

	while (end < ch->n && (ch->of[end] & PINNED) && ch->run[end] == first)
		end++;
	return end;
}

/* Pin the runs of the others' devices for the session `here`, too. Nothing changes meanwhile. */
static CUresult pin_all(void)
{
	struct chunks *ch = process.chunks;
	CUresult rc = CUDA_SUCCESS;

	for (uint64_t i = 0, end; i < ch->n && !rc; i = end) {
		end = i + 1;
		if (!(ch->of[i] & PINNED))
			continue;
		end = run_end(i);
		rc = send_pin(here, SV_OP_X_PIN, &(struct sv_pin){ i * CHUNK, (end - i) * CHUNK });
	}
	return rc;
}

/* `here` is to have what the other sessions have pinned. */
static CUresult join(void)
{
	struct chunks *ch = process.chunks;
	CUresult rc;

	lock_may_wait("pinned memory of a device that joins");
	lock_take(&process.locks.arena);
	while (ch->joining || ch->going)
		lock_wait(&process.locks.arena, &ch->gone);
	ch->joining = true;
	lock_drop(&process.locks.arena);
	rc = pin_all();
	lock_take(&process.locks.arena);
	ch->joining = false;
	if (!rc)
		ch->joined |= 1u << device_of(here);
	pthread_cond_broadcast(&ch->gone);
	lock_drop(&process.locks.arena);
	return rc;
}

CUresult arena_begin(void)
{
	return here == process.home ? set_up() : join();
}

/*
 * Pin chunks [first, end), which all have allocations, as one run, unless one run has them all.
 * *fits false: others have pinned some of them. *zero as pin(). locks.arena is held.
 */
static CUresult pin_whole(uint64_t first, uint64_t end, bool *fits, bool *zero)
{
	struct chunks *ch = process.chunks;
	uint64_t i;
	bool pinned;

	assert_held(&process.locks.arena);
	/* Waiting drops the lock, so all are looked at again. */
	for (i = first; i < end; i++)
		if (ch->of[i] & GOING) {
			lock_wait(&process.locks.arena, &ch->gone);
			i = first - 1;
		}
	pinned = ch->of[first] & PINNED;
	*fits = true;
	*zero = false;
	for (i = first + 1; i < end; i++)
		if (pinned != !!(ch->of[i] & PINNED) ||
		    (pinned && ch->run[i] != ch->run[first]))
			*fits = false;
	return *fits && !pinned ? pin(first, end - first, zero) : CUDA_SUCCESS;
}

static void hold(uint64_t first, uint64_t end)
{
	struct chunks *ch = process.chunks;

	for (uint64_t i = first; i < end; i++)
		if (ch->of[i]++ == PINNED)
			ch->cached -= CHUNK;
}

/* The record that unpins chunk i's run; false: the run has allocations. locks.arena is held. */
static bool unused_run(uint64_t i, struct sv_pin *a)
{
	struct chunks *ch = process.chunks;
	uint64_t first = ch->run[i], end = run_end(first);

	assert_held(&process.locks.arena);
	for (i = first; i < end; i++)
		if (ch->of[i] != PINNED)
			return false;
	*a = (struct sv_pin){ first * CHUNK, (end - first) * CHUNK };
	return true;
}

void arena_part(const struct session *s)
{
	lock_take(&process.locks.arena);
	if (process.chunks)
		process.chunks->joined &= ~(1u << device_of(s));
	lock_drop(&process.locks.arena);
}

/* Unpin a run. locks.arena is held, and dropped while the proxy works. */
static void unpin(const struct sv_pin *a)
{
	struct chunks *ch = process.chunks;
	uint64_t first = a->off / CHUNK, end = first + a->len / CHUNK;
	CUresult rc;

	assert_held(&process.locks.arena);
	for (uint64_t i = first; i < end; i++)
		ch->of[i] |= GOING;
	ch->cached -= a->len;
	begin_change();
	lock_drop(&process.locks.arena);
	/* Answered, since the devices must unpin the pages before they are freed. */
	rc = send_pins(ch->joined, SV_OP_X_UNPIN, a, NULL);
	if (!rc)
		ring_decommit(process.home->ring, a->off, a->len);
	lock_take(&process.locks.arena);
	for (uint64_t i = first; i < end; i++) {
		ch->of[i] &= ~(rc ? GOING : GOING | PINNED);
		if (ch->of[i] == PINNED)
			ch->cached += CHUNK;
	}
	end_change();
}

static void unhold(uint64_t first, uint64_t end)
{
	struct chunks *ch = process.chunks;

	for (uint64_t i = first; i < end; i++)
		if (--ch->of[i] == PINNED)
			ch->cached += CHUNK;
}

/* Unpin unused runs that have chunks of [first, end), until at most keep bytes are cached. */
static void unpin_unused(uint64_t first, uint64_t end, uint64_t keep)
{
	struct chunks *ch = process.chunks;
	struct sv_pin a;

	for (uint64_t i = first; i < end && ch->cached > keep; i++)
		if (ch->of[i] == PINNED && unused_run(i, &a))
			unpin(&a);
}

static void release(uint64_t off, uint64_t len)
{
	struct chunks *ch = process.chunks;
	uint64_t first = off / CHUNK, end = (off + len - 1) / CHUNK + 1;

	space_release(ch->space, off);
	unhold(first, end);
	unpin_unused(first, end, CACHE_MAX);
}

/* A place of room bytes, held; *fits false: it lies in several runs. No success: there is none. *zero as pin(). */
static CUresult take_place(uint64_t room, uint64_t align, uint64_t *at, bool *fits, bool *zero)
{
	struct chunks *ch = process.chunks;
	uint64_t first, end;
	CUresult rc;

	lock_take(&process.locks.arena);
	*at = space_alloc(ch->space, room, align, 0, NULL);
	if (!*at) {
		lock_drop(&process.locks.arena);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	first = *at / CHUNK;
	end = (*at + room - 1) / CHUNK + 1;
	hold(first, end);
	rc = pin_whole(first, end, fits, zero);
	lock_drop(&process.locks.arena);
	if (rc)
		arena_free(*at);
	return rc;
}

/* A place within one run. Places in several are held meanwhile, so that others are tried. */
static CUresult find_place(uint64_t room, uint64_t align, uint64_t *at, bool *zero)
{
	uint64_t misfits[MISFITS];
	CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
	uint32_t n = 0;
	bool fits = false;

	while (!fits && n < MISFITS) {
		rc = take_place(room, align, at, &fits, zero);
		if (rc)
			break;
		if (!fits) {
			misfits[n++] = *at;
			rc = CUDA_ERROR_OUT_OF_MEMORY;
		}
		/* Up to a chunk then lies in a single one. */
		if (align < CHUNK)
			align = CHUNK;
	}
	while (n)
		arena_free(misfits[--n]);
	return rc;
}

static CUresult alloc(uint64_t len, uint64_t align, void *owner, uint64_t *off, bool *zero)
{
	uint64_t room = (len + 63) & -64ull, at = 0;
	CUresult rc;

	if (!len || room < len)
		return CUDA_ERROR_INVALID_VALUE;
	lock_may_wait("memory of the arena");
	if (align < 64)
		align = 64;
	rc = find_place(room, align, &at, zero);
	if (rc == CUDA_ERROR_OUT_OF_MEMORY) {
		lock_take(&process.locks.arena);
		unpin_unused(0, process.chunks->n, 0);
		lock_drop(&process.locks.arena);
		rc = find_place(room, align, &at, zero);
	}
	if (!rc && owner)
		arena_own(at, owner);
	*off = rc ? 0 : at;
	return rc;
}

CUresult arena_alloc(uint64_t len, uint64_t align, void *owner, uint64_t *off)
{
	bool zero;

	return alloc(len, align, owner, off, &zero);
}

CUresult arena_zeroed(uint64_t len, uint64_t align, uint64_t *off)
{
	bool zero;

	TRY(alloc(len, align, NULL, off, &zero));
	/* A page that is zero already is not touched: it need not exist. */
	if (!zero)
		memset(arena_at(*off), 0, len);
	return CUDA_SUCCESS;
}

void arena_free(uint64_t off)
{
	struct chunks *ch = process.chunks;
	uint64_t base, len;

	lock_may_wait("memory of the arena to go");
	lock_take(&process.locks.arena);
	if (space_find(ch->space, off, &base, &len, NULL) && base == off)
		release(off, len);
	lock_drop(&process.locks.arena);
}

void arena_own(uint64_t off, void *owner)
{
	struct chunks *ch = process.chunks;

	lock_take(&process.locks.arena);
	space_own(ch->space, off, owner);
	lock_drop(&process.locks.arena);
}

bool arena_find(uint64_t off, uint64_t *base, uint64_t *len, void **owner)
{
	struct chunks *ch = process.chunks;
	bool found;

	lock_take(&process.locks.arena);
	found = space_find(ch->space, off, base, len, owner);
	lock_drop(&process.locks.arena);
	return found;
}

bool arena_each(bool (*fn)(void *arg, uint64_t base, uint64_t len, void *owner), void *arg)
{
	struct chunks *ch = process.chunks;
	bool found;

	lock_take(&process.locks.arena);
	found = space_each(ch->space, fn, arg);
	lock_drop(&process.locks.arena);
	return found;
}

void *arena_reply(uint64_t len, uint64_t *off)
{
	return arena_zeroed(len, 64, off) ? NULL : arena_at(*off);
}

void arena_reply_done(uint64_t off)
{
	arena_free(off);
}
