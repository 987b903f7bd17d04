// SPDX-License-Identifier: Apache-2.0
/*
 * board.c - the lock, the seats and their mailboxes
 */
#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lock.h"
#include "robust.h"
#include "turns.h"

#define BOARD_MAGIC   0x44424753u /* "SGBD" */
#define BOARD_VERSION 9

static const struct step_limits limits = { .proxies = BOARD_SEATS,
	                                   .devices = BOARD_SEATS,
	                                   .comms = 1 << 13,
	                                   .members = 1 << 16,
	                                   .ops = BOARD_OPS,
	                                   .parts = 1 << 18,
	                                   .records = 1 << 17 };

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct seat {
	uint32_t taken; /* its owner's pid; lock */
	uint32_t address_len;
	uint32_t word; /* futex: counts wakes */
	uint32_t asleep; /* 0, or of one sleep: set with the lock; atomic */
	uint32_t sleeps; /* its owner's */
	uint32_t news; /* what its owner has to look for in the state; written with the lock */
	uint32_t head; /* mails written; atomic */
	uint32_t tail; /* mails read; atomic, its owner's */
	uint64_t cut, quiet; /* board_cut(): which, and the number of turns at that time; lock */
	uint64_t agreed; /* the last cut of which it knows that all are quiet; lock */
	uint32_t ended; /* its last proxy has; lock */
	uint32_t placed; /* `place` has been written; lock */
	struct board_place place; /* lock */
	uint64_t slice; /* board_slice(); written with the lock; atomic */
	uint8_t address[BOARD_ADDRESS_MAX];
	struct step_action mail[BOARD_MAILS];
};

/* Does a device have less memory than its sharers want? */
enum crowd { CROWD_NONE, CROWD_TOLD, CROWD_HELPLESS };

#define NEWS_LOG    1u /* the log has something for its device */
#define NEWS_CANCEL 2u /* what has started there has failed */

/* In an open-addressed table, which is never more than half full. */
struct note {
	uint64_t key;
	uint32_t seat;
	uint16_t used; /* once, so that a search goes on here */
	uint16_t size; /* 0: it has been taken away */
	uint8_t text[BOARD_NOTE_MAX];
};

/* A state of turns (slice/turns.h) for all seats and devices: its size, checked in board_create(). */
#define BOARD_HOST_DEVICES 256u
#define SLICES_WORDS	   (4 + 5 * BOARD_SEATS + 4 * BOARD_HOST_DEVICES)

struct shared {
	uint32_t magic, version;
	uint64_t size;
	uint32_t broken; /* atomic */
	uint32_t begun; /* the step's state is there; lock */
	struct robust lock;
	uint32_t changing; /* who has the lock may be changing what is below; lock */
	uint32_t sliced; /* `slices` is there; lock */
	uint64_t events; /* of the step, and changes of slices; lock */
	uint64_t step_at;
	struct seat seat[BOARD_SEATS];
	uint32_t notes; /* that are not taken away; lock */
	uint32_t zero;
	struct note note[2 * BOARD_NOTES]; /* lock */
	uint64_t slices[SLICES_WORDS]; /* a struct turns, or zeros; lock */
	uint64_t crowd; /* enum crowd; atomic */
	struct {
		uint64_t bytes, where; /* where: of which device and host */
	} mapped[BOARD_SEATS]; /* each has of its own; atomic, the seat's proxy's */
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct seat) == 459872, "shared");
_Static_assert(sizeof(struct note) == 144, "shared");
_Static_assert(sizeof(struct shared) == 473333864, "shared");

struct board {
	struct shared *sh;
	struct step *step;
	bool shut; /* lock */
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t step_offset(void)
{
	return (sizeof(struct shared) + 4095) & ~4095ull;
}

static uint64_t board_size(void)
{
	return (step_offset() + step_size(&limits) + 4095) & ~4095ull;
}

int board_create(void)
{
	struct shared *sh;
	int fd, rc;

	if (turns_size(BOARD_SEATS, BOARD_HOST_DEVICES) > sizeof(sh->slices))
		return -EINVAL;
	fd = memfd_create("singvgpu-board", MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)board_size())) {
		rc = -errno;
		close(fd);
		return rc;
	}
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (sh == MAP_FAILED) {
		rc = -errno;
		close(fd);
		return rc;
	}
	sh->version = BOARD_VERSION;
	sh->size = board_size();
	sh->step_at = step_offset();
	sh->magic = BOARD_MAGIC;
	munmap(sh, sizeof(*sh));
	return fd;
}

int board_open(int fd, struct board **out)
{
	struct board *b;
	struct stat st;
	int rc;

	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != board_size())
		return -EPROTO;
	rc = robust_init();
	if (rc)
		return rc;
	b = calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	b->sh = mmap(NULL, board_size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (b->sh == MAP_FAILED) {
		rc = -errno;
		free(b);
		return rc;
	}
	b->step = (struct step *)((char *)b->sh + step_offset());
	if (b->sh->magic != BOARD_MAGIC || b->sh->version != BOARD_VERSION ||
	    b->sh->size != board_size() || b->sh->step_at != step_offset()) {
		board_close(b);
		return -EPROTO;
	}
	*out = b;
	return 0;
}

void board_close(struct board *b)
{
	munmap(b->sh, board_size());
	free(b);
}

bool board_is_broken(const struct board *b)
{
	/* pairs with broken() */
	return __atomic_load_n(&b->sh->broken, __ATOMIC_ACQUIRE);
}

static void wake(struct seat *s)
{
	__atomic_add_fetch(&s->word, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &s->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static bool has_slice(const struct board *b, uint32_t seat)
{
	return board_slice(b, seat).state != TURNS_ABSENT;
}

static void broken(struct board *b)
{
	__atomic_store_n(&b->sh->broken, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < BOARD_SEATS; i++)
		if (b->sh->seat[i].taken || has_slice(b, i))
			wake(&b->sh->seat[i]);
}

/* With the lock: the state is only read, so who is killed until unlock() has changed nothing. */
static void reads_only(struct board *b)
{
	__atomic_store_n(&b->sh->changing, 0, __ATOMIC_RELEASE);
}

/* What the checker of locks knows of shared.lock (lock.h). */
static const struct lock rank = LOCK_INIT(PROXY_BOARD);

static void give(struct board *b)
{
	lock_drops(&rank);
	robust_give(&b->sh->lock);
}

/* Gives the lock back. */
static void unlock(struct board *b)
{
	__atomic_store_n(&b->sh->changing, 0, __ATOMIC_RELEASE);
	give(b);
}

/* Whoever had the lock has died: the state is as it should be only if that had changed nothing. */
static int take(struct board *b)
{
	int rc;

	lock_may_wait("another process at the board");
	rc = robust_take(&b->sh->lock);
	if (rc == EOWNERDEAD) {
		if (b->sh->changing)
			broken(b);
		rc = 0;
	}
	if (!rc)
		lock_takes(&rank);
	return rc;
}

static int lock(struct board *b)
{
	int rc = take(b);

	if (rc)
		return -rc;
	if (b->shut || board_is_broken(b)) {
		rc = b->shut ? -ESHUTDOWN : -ENOTRECOVERABLE;
		give(b);
		return rc;
	}
	__atomic_store_n(&b->sh->changing, 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	return 0;
}

void board_shut(struct board *b)
{
	if (take(b))
		return;
	b->shut = true;
	give(b);
}

/* ---- a step ---- */

struct turn {
	struct board *b;
	uint32_t self;
	struct step_failure failure; /* the last one in this turn */
	struct step_action few[64], *own; /* own: for this seat */
	uint32_t n, room;
	bool full; /* there was no memory, or no room in a mailbox */
	uint32_t words; /* bits: those of `mailed` that are not 0; the others are not set */
	uint64_t mailed[BOARD_SEATS / 64];
};
_Static_assert(BOARD_SEATS / 64 <= 32, "a bit for each word");

static void to_self(struct turn *t, const struct step_action *a)
{
	struct step_action *more;

	if (t->n == t->room) {
		more = malloc(2 * (size_t)t->room * sizeof(*more));
		if (!more) {
			t->full = true;
			return;
		}
		memcpy(more, t->own, t->n * sizeof(*more));
		if (t->own != t->few)
			free(t->own);
		t->own = more;
		t->room *= 2;
	}
	t->own[t->n++] = *a;
}

/* The seat is to be woken, if it sleeps. */
static void has_mail(struct turn *t, uint32_t i)
{
	if (!(t->words >> (i / 64) & 1))
		t->mailed[i / 64] = 0;
	t->words |= 1u << (i / 64);
	t->mailed[i / 64] |= 1ull << (i % 64);
}

static void to_seat(struct turn *t, uint32_t i, const struct step_action *a)
{
	struct seat *s = &t->b->sh->seat[i];
	uint32_t head = s->head;

	if (!s->taken)
		return;
	has_mail(t, i);
	/* Of these there may be more in a step than a mailbox takes. */
	if (a->kind == STEP_WAKE || a->kind == STEP_CANCEL) {
		__atomic_store_n(&s->news,
		                 s->news | (a->kind == STEP_WAKE ? NEWS_LOG : NEWS_CANCEL),
		                 __ATOMIC_RELEASE);
		return;
	}
	/* pairs with board_mail(): what was there has been read */
	if (head - __atomic_load_n(&s->tail, __ATOMIC_ACQUIRE) >= BOARD_MAILS) {
		t->full = true;
		return;
	}
	s->mail[head % BOARD_MAILS] = *a;
	__atomic_store_n(&s->head, head + 1, __ATOMIC_RELEASE);
}

/* The seat that an action is for. */
static uint32_t seat_of(const struct turn *t, const struct step_action *a)
{
	switch (a->kind) {
	case STEP_WAKE:
	case STEP_START:
	case STEP_CANCEL:
		return board_seat(a->device);
	case STEP_RELEASE:
		return a->proxy;
	default:
		return step_proxy(t->b->step, a->member);
	}
}

static void hand_out(struct turn *t, const struct step_action *a)
{
	uint32_t i = seat_of(t, a);

	if (i == t->self)
		to_self(t, a);
	else if (i < BOARD_SEATS)
		to_seat(t, i, a);
}

static void acted(void *ctx, const struct step_action *a)
{
	struct turn *t = ctx;

	if (a->kind == STEP_FAILED) {
		t->failure = a->failure;
	} else if (a->code && !a->failure.code) {
		/* The ends that a failure causes follow it. */
		struct step_action with = *a;

		with.failure = t->failure;
		hand_out(t, &with);
	} else {
		hand_out(t, a);
	}
}

static void next_all(struct turn *t)
{
	struct step_event next = { .kind = STEP_NEXT, .device = board_device(t->self) };

	while (step(t->b->step, &next, acted, t) == 1)
		;
}

/* Of the seats that have mail, those that sleep: one that says so later has the lock later, and looks. */
static void find_sleepers(struct turn *t)
{
	for (uint32_t left = t->words; left; left &= left - 1) {
		uint32_t w = (uint32_t)__builtin_ctz(left);

		for (uint64_t bits = t->mailed[w]; bits; bits &= bits - 1) {
			uint32_t i = w * 64 + (uint32_t)__builtin_ctzll(bits);

			if (!__atomic_load_n(&t->b->sh->seat[i].asleep, __ATOMIC_RELAXED))
				t->mailed[w] &= ~(1ull << (i % 64));
		}
		if (!t->mailed[w])
			t->words &= ~(1u << w);
	}
}

/* Without the lock. If this process is killed before the end, the next one with mail wakes them, too. */
static void wake_sleepers(struct turn *t)
{
	for (uint32_t left = t->words; left; left &= left - 1) {
		uint32_t w = (uint32_t)__builtin_ctz(left);

		for (uint64_t bits = t->mailed[w]; bits; bits &= bits - 1) {
			struct seat *s =
				&t->b->sh->seat[w * 64 + (uint32_t)__builtin_ctzll(bits)];
			/* pairs with board_sleeps(), which stores it with the lock */
			uint32_t sleep = __atomic_load_n(&s->asleep, __ATOMIC_SEQ_CST);

			if (!sleep)
				continue;
			wake(s);
			__atomic_compare_exchange_n(&s->asleep, &sleep, 0, false, __ATOMIC_SEQ_CST,
			                            __ATOMIC_RELAXED);
		}
	}
}

static void turn_prepare(struct turn *t, struct board *b, uint32_t seat)
{
	t->b = b;
	t->self = seat;
	t->own = t->few;
	t->n = 0;
	t->room = sizeof(t->few) / sizeof(t->few[0]);
	t->full = false;
	memset(&t->failure, 0, sizeof(t->failure));
	t->words = 0;
}

static void turn_begins(struct turn *t, struct board *b, uint32_t seat)
{
	b->sh->events++;
	turn_prepare(t, b, seat);
}

/* Drops the lock, and hands the actions out. */
static void turn_ends(struct turn *t, step_act *act, void *ctx)
{
	uint32_t i;

	if (t->full)
		broken(t->b);
	find_sleepers(t);
	unlock(t->b);
	wake_sleepers(t);
	for (i = 0; act && i < t->n; i++)
		act(ctx, &t->own[i]);
	if (t->own != t->few)
		free(t->own);
}

int board_step(struct board *b, uint32_t seat, const struct step_event *e, step_act *act, void *ctx)
{
	struct turn t;
	int rc = lock(b);

	if (rc)
		return rc;
	turn_begins(&t, b, seat);
	rc = step(b->step, e, acted, &t);
	/* STEP_WAKE for this seat came with the actions. */
	for (uint32_t i = 0; i < t.n; i++)
		if (t.own[i].kind == STEP_WAKE) {
			next_all(&t);
			break;
		}
	turn_ends(&t, act, ctx);
	return rc;
}

/* ---- slices ---- */

static struct turns *slices_of(struct board *b)
{
	return (struct turns *)b->sh->slices;
}

static void slice_told(void *ctx, const struct turns_action *a)
{
	struct turn *t = ctx;
	struct seat *s = &t->b->sh->seat[a->seat];
	struct board_slice was = board_slice(t->b, a->seat);

	__atomic_store_n(&s->slice, (uint64_t)a->state << 56 | (uint64_t)((was.changes + 1) & 0xffffff) << 32 | a->last,
			 __ATOMIC_RELEASE);
	has_mail(t, a->seat);
	t->b->sh->events++;	/* nobody is quiet who was so before */
}

static uint64_t oldest_owed(void *ctx, uint32_t seat)
{
	const struct board *b = ctx;
	uint64_t age = b->sh->begun ? step_owes(b->step, seat) : 0;

	return age ? age : TURNS_NEVER;
}

static bool waits_for(void *ctx, uint32_t seat, uint32_t other)
{
	const struct board *b = ctx;

	return b->sh->begun && step_waits(b->step, seat, other);
}

/* With the lock. */
static int slices_turn(struct turn *t, const struct turns_event *e)
{
	struct turns_owed owed = { oldest_owed, waits_for, t->b };

	if (!t->b->sh->sliced)
		turns_init(t->b->sh->slices, BOARD_SEATS, BOARD_HOST_DEVICES, &turns_default);
	t->b->sh->sliced = 1;
	return turns(slices_of(t->b), e, &owed, slice_told, t);
}

int board_turn(struct board *b, const struct turns_event *e)
{
	struct turn t;
	int rc = lock(b);

	if (rc)
		return rc;
	turn_prepare(&t, b, STEP_NONE);
	rc = slices_turn(&t, e);
	turn_ends(&t, NULL, NULL);
	return rc;
}

struct board_slice board_slice(const struct board *b, uint32_t seat)
{
	/* pairs with slice_told() */
	uint64_t v = __atomic_load_n(&b->sh->seat[seat].slice, __ATOMIC_ACQUIRE);

	return (struct board_slice){ .state = (uint32_t)(v >> 56), .changes = v >> 32 & 0xffffff, .last = (uint32_t)v };
}

/* What the slices say of a device, or `none`. */
static uint64_t slices_say(struct board *b, uint32_t device, uint64_t (*what)(const struct turns *t, uint32_t device),
			   uint64_t none)
{
	uint64_t said = none;

	if (device >= BOARD_HOST_DEVICES || lock(b))
		return none;
	reads_only(b);
	if (b->sh->sliced)
		said = what(slices_of(b), device);
	unlock(b);
	return said;
}

uint64_t board_slice_next(struct board *b, uint32_t device)
{
	return slices_say(b, device, turns_next, TURNS_NEVER);
}

uint64_t board_slice_began(struct board *b, uint32_t device)
{
	return slices_say(b, device, turns_began, 0);
}

/* ---- seats ---- */

static void sit(struct seat *s, const void *address, size_t len)
{
	s->taken = (uint32_t)getpid();
	s->address_len = (uint32_t)len;
	memcpy(s->address, address, len);
	s->asleep = s->news = 0;
	s->ended = 0;
	s->tail = s->head;
}

int board_enter(struct board *b, uint32_t seat, const void *address, size_t len)
{
	struct step_event e = { .kind = STEP_ENTER, .proxy = seat, .device = board_device(seat) };
	struct turn t;
	struct seat *s;
	int rc;

	if (seat >= BOARD_SEATS || len > BOARD_ADDRESS_MAX)
		return -EINVAL;
	rc = lock(b);
	if (rc)
		return rc;
	if (!b->sh->begun) {
		step_init_zeroed(b->step, &limits);
		b->sh->begun = 1;
	}
	s = &b->sh->seat[seat];
	turn_begins(&t, b, seat);
	rc = s->taken ? -EBUSY : step(b->step, &e, acted, &t);
	if (!rc) {
		sit(s, address, len);
	} else if (rc == -EPROTO) {
		rc = -EBUSY; /* its last owner is still needed */
	}
	turn_ends(&t, NULL, NULL);
	return rc;
}

int board_address(struct board *b, uint32_t seat, void *to)
{
	int rc;

	if (seat >= BOARD_SEATS)
		return -ENOENT;
	rc = lock(b);
	if (rc)
		return rc;
	reads_only(b);
	rc = b->sh->seat[seat].taken ? (int)b->sh->seat[seat].address_len : -ENOENT;
	if (rc > 0)
		memcpy(to, b->sh->seat[seat].address, (size_t)rc);
	unlock(b);
	return rc;
}

/* ---- notes ---- */

/* The note of a key, or NULL; *room: where it may be put. */
static struct note *note_of(struct board *b, uint64_t key, struct note **room)
{
	uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> 32) % (2 * BOARD_NOTES), i;

	*room = NULL;
	for (i = 0; i < 2 * BOARD_NOTES; i++) {
		struct note *n = &b->sh->note[(at + i) % (2 * BOARD_NOTES)];

		if (n->size && n->key == key)
			return *room = n;
		if (!n->size && !*room)
			*room = n;
		if (!n->used)
			break;
	}
	return NULL;
}

int board_note(struct board *b, uint32_t seat, uint64_t key, const void *text, size_t size)
{
	struct note *n, *room;
	int rc;

	if (size > BOARD_NOTE_MAX || seat >= BOARD_SEATS)
		return -EINVAL;
	rc = lock(b);
	if (rc)
		return rc;
	n = note_of(b, key, &room);
	if (!n && size && (b->sh->notes == BOARD_NOTES || !room)) {
		rc = -ENOSPC;
	} else if (n || size) {
		b->sh->notes += !!size - !!n;
		room->key = key;
		room->seat = seat;
		room->used = 1;
		room->size = (uint16_t)size;
		if (size)
			memcpy(room->text, text, size);
	}
	unlock(b);
	return rc;
}

int board_noted(struct board *b, uint64_t key, void *to)
{
	struct note *n, *room;
	int rc = lock(b);

	if (rc)
		return rc;
	reads_only(b);
	n = note_of(b, key, &room);
	rc = n ? n->size : -ENOENT;
	if (n)
		memcpy(to, n->text, n->size);
	unlock(b);
	return rc;
}

static void notes_die(struct board *b, uint32_t seat)
{
	for (uint32_t i = 0; b->sh->notes && i < 2 * BOARD_NOTES; i++) {
		struct note *n = &b->sh->note[i];

		if (!n->size || n->seat != seat)
			continue;
		n->size = 0;
		b->sh->notes--;
	}
}

bool board_mailed(const struct board *b, uint32_t seat)
{
	const struct seat *s = &b->sh->seat[seat];

	return __atomic_load_n(&s->head, __ATOMIC_RELAXED) !=
	               __atomic_load_n(&s->tail, __ATOMIC_RELAXED) ||
	       __atomic_load_n(&s->news, __ATOMIC_RELAXED) || board_is_broken(b);
}

uint32_t board_mails(const struct board *b, uint32_t seat)
{
	return __atomic_load_n(&b->sh->seat[seat].head, __ATOMIC_RELAXED);
}

int board_mail(struct board *b, uint32_t seat, step_act *act, void *ctx)
{
	struct seat *s = &b->sh->seat[seat];
	struct step_action a;
	struct turn t;
	uint32_t tail, news;
	int rc;

	if (board_is_broken(b))
		return -ENOTRECOVERABLE;
	if (__atomic_load_n(&s->news, __ATOMIC_RELAXED)) {
		rc = lock(b);
		if (rc)
			return rc;
		news = s->news;
		__atomic_store_n(&s->news, 0, __ATOMIC_RELAXED);
		turn_begins(&t, b, seat);
		if (news & NEWS_CANCEL)
			step_cancels(b->step, board_device(seat), acted, &t);
		if (news & NEWS_LOG)
			next_all(&t);
		turn_ends(&t, act, ctx);
	}
	/* pairs with to_seat() */
	for (tail = s->tail; tail != __atomic_load_n(&s->head, __ATOMIC_ACQUIRE);) {
		a = s->mail[tail % BOARD_MAILS];
		__atomic_store_n(&s->tail, ++tail, __ATOMIC_RELEASE);
		act(ctx, &a);
	}
	return 0;
}

void board_sleeps(struct board *b, uint32_t seat, bool sleeps)
{
	struct seat *s = &b->sh->seat[seat];

	if (!sleeps) {
		__atomic_store_n(&s->asleep, 0, __ATOMIC_RELAXED);
	} else if (!lock(b)) {
		s->sleeps += 2;
		__atomic_store_n(&s->asleep, s->sleeps | 1, __ATOMIC_RELAXED);
		unlock(b);
	}
}

void board_await(struct board *b, uint32_t seat, uint32_t *seen)
{
	struct seat *s = &b->sh->seat[seat];
	uint32_t now;

	lock_may_wait("another rank");
	/* pairs with wake() */
	while ((now = __atomic_load_n(&s->word, __ATOMIC_ACQUIRE)) == *seen)
		syscall(SYS_futex, &s->word, FUTEX_WAIT, now, NULL, NULL, 0);
	*seen = now;
}

const uint32_t *board_word(const struct board *b, uint32_t seat)
{
	return &b->sh->seat[seat].word;
}

void board_wake(struct board *b, uint32_t seat)
{
	wake(&b->sh->seat[seat]);
}

uint32_t board_seats(struct board *b, uint32_t member, uint32_t *seat, uint32_t max)
{
	uint32_t n;

	if (lock(b))
		return 0;
	n = step_ranks(b->step, member, seat, max);
	unlock(b);
	return n;
}

bool board_is_at(struct board *b, const struct step_place *p, bool *stands)
{
	bool is = false;

	*stands = false;
	if (lock(b))
		return false;
	reads_only(b);
	if (b->sh->begun)
		is = step_is_at(b->step, p, stands);
	unlock(b);
	return is;
}

void board_records(struct board *b, uint32_t seat, void (*each)(void *ctx, uint32_t member, uint64_t cookie, bool begun),
                   void *ctx)
{
	if (lock(b))
		return;
	reads_only(b);
	if (b->sh->begun)
		step_records(b->step, seat, each, ctx);
	unlock(b);
}

int board_look(struct board *b, const struct step_looker *looker)
{
	int rc = lock(b);

	if (rc)
		return rc;
	if (b->sh->begun)
		step_look(b->step, looker);
	unlock(b);
	return 0;
}

static uint64_t mapped_there(const struct board *b, uint64_t where)
{
	uint64_t all = 0;

	for (uint32_t i = 0; i < BOARD_SEATS; i++) {
		/* pairs with board_maps() of others */
		uint64_t n = __atomic_load_n(&b->sh->mapped[i].bytes, __ATOMIC_SEQ_CST);

		if (n && __atomic_load_n(&b->sh->mapped[i].where, __ATOMIC_RELAXED) == where)
			all += n;
	}
	return all;
}

/*
 * Who comes counts itself first, so that of two at once at most one finds room that both would need. Perhaps none does: so each looks
 * twice.
 */
bool board_maps(struct board *b, uint32_t seat, uint64_t where, uint64_t bytes, uint64_t limit)
{
	__atomic_store_n(&b->sh->mapped[seat].where, where, __ATOMIC_RELAXED);
	for (int look = 0; look < 2; look++) {
		/* pairs with mapped_there() of others */
		__atomic_add_fetch(&b->sh->mapped[seat].bytes, bytes, __ATOMIC_SEQ_CST);
		if (mapped_there(b, where) <= limit)
			return true;
		board_unmaps(b, seat, bytes);
	}
	return false;
}

void board_unmaps(struct board *b, uint32_t seat, uint64_t bytes)
{
	__atomic_sub_fetch(&b->sh->mapped[seat].bytes, bytes, __ATOMIC_RELAXED);
}

bool board_asks(struct board *b)
{
	uint64_t was = CROWD_NONE;

	__atomic_compare_exchange_n(&b->sh->crowd, &was, CROWD_TOLD, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	return was != CROWD_HELPLESS;
}

bool board_crowded(const struct board *b)
{
	return __atomic_load_n(&b->sh->crowd, __ATOMIC_RELAXED) == CROWD_TOLD;
}

void board_helpless(struct board *b)
{
	__atomic_store_n(&b->sh->crowd, CROWD_HELPLESS, __ATOMIC_RELAXED);
}

bool board_owes(struct board *b, uint32_t seat)
{
	bool is;

	if (lock(b))
		return false;
	reads_only(b);
	is = b->sh->begun && step_owes(b->step, seat);
	unlock(b);
	return is;
}

bool board_lives(struct board *b, uint32_t seat)
{
	bool is;

	if (lock(b))
		return false;
	reads_only(b);
	is = b->sh->begun && step_lives(b->step, seat);
	unlock(b);
	return is;
}

/* The process in the seat has ended, and its slice with it. lock */
static void slice_ends(struct turn *t, uint32_t seat)
{
	struct turns_event e = { .kind = TURNS_ENDS, .seat = seat, .now = now_ns() };

	if (!t->b->sh->sliced)
		return;
	/* It may have been killed before it woke who has got the device's memory from it. */
	for (uint32_t i = 0; i < BOARD_SEATS; i++)
		if (has_slice(t->b, i))
			has_mail(t, i);
	/* A seat without a slice is refused. */
	slices_turn(t, &e);
}

/* Who has the seat is gone. With the lock, which it gives back. */
static void dies(struct board *b, uint32_t seat)
{
	struct step_event e = { .kind = STEP_DIE, .proxy = seat };
	struct turn t;

	b->sh->seat[seat].taken = 0;
	notes_die(b, seat);
	turn_begins(&t, b, STEP_NONE);
	slice_ends(&t, seat);
	step(b->step, &e, acted, &t);
	turn_ends(&t, NULL, NULL);
}

/* A saved state has a proxy that has not returned to this seat. lock */
static bool is_missing(const struct board *b, uint32_t seat)
{
	return b->sh->begun && !b->sh->seat[seat].taken && step_lives(b->step, seat);
}

void board_leave(struct board *b, uint32_t seat)
{
	struct turn t;

	if (seat >= BOARD_SEATS || lock(b))
		return;
	b->sh->seat[seat].ended = 1;
	if (b->sh->seat[seat].taken || is_missing(b, seat)) {
		dies(b, seat);
		return;
	}
	/* A proxy has a slice before its first communicator. */
	turn_prepare(&t, b, STEP_NONE);
	slice_ends(&t, seat);
	turn_ends(&t, NULL, NULL);
}

void board_die(struct board *b, uint32_t seat)
{
	if (seat < BOARD_SEATS)
		__atomic_store_n(&b->sh->mapped[seat].bytes, 0, __ATOMIC_RELAXED);
	board_leave(b, seat);
}

void board_stranger_dies(struct board *b)
{
	struct step_event e = { .kind = STEP_DIE, .proxy = STEP_NONE };
	struct turn t;

	if (lock(b))
		return;
	if (!b->sh->begun) {
		unlock(b);
		return;
	}
	turn_begins(&t, b, STEP_NONE);
	step(b->step, &e, acted, &t);
	turn_ends(&t, NULL, NULL);
}

/* ---- the cut ---- */

void board_reserve(struct board *b, uint32_t seat, const struct board_place *place)
{
	if (seat >= BOARD_SEATS || lock(b))
		return;
	b->sh->seat[seat].ended = 0;
	b->sh->seat[seat].place = *place;
	b->sh->seat[seat].placed = 1;
	unlock(b);
}

int board_place(struct board *b, uint32_t seat, struct board_place *place)
{
	int rc;

	if (seat >= BOARD_SEATS)
		return -ENOENT;
	rc = lock(b);
	if (rc)
		return rc;
	reads_only(b);
	*place = b->sh->seat[seat].place;
	rc = b->sh->seat[seat].placed ? 0 : -ENOENT;
	unlock(b);
	return rc;
}

/* Was this seat told that all are quiet, and has an event come after that? lock */
static bool is_betrayed(const struct board *b, uint32_t seat, uint64_t cut)
{
	const struct seat *s = &b->sh->seat[seat];

	return !s->ended && s->agreed == cut && (s->cut != cut || s->quiet != b->sh->events);
}

/* Has this seat said that nothing can come from it, since the last event? lock */
static bool is_quiet(const struct board *b, uint32_t seat, uint64_t cut)
{
	const struct seat *s = &b->sh->seat[seat];

	return s->ended || (s->cut == cut && s->quiet == b->sh->events);
}

int board_cut(struct board *b, uint32_t seat, uint64_t cut, const uint64_t seats[BOARD_SEATS / 64],
	      bool *all)
{
	struct seat *s = &b->sh->seat[seat];
	int rc;

	*all = false;
	if (seat >= BOARD_SEATS || !cut)
		return -EINVAL;
	rc = lock(b);
	if (rc)
		return rc;
	/* Others write mail with the lock, so none can come while the seat says that it is quiet. */
	if (s->taken && board_mailed(b, seat)) {
		s->cut = 0;
		unlock(b);
		return -EAGAIN;
	}
	s->cut = cut;
	s->quiet = b->sh->events;
	*all = true;
	for (uint32_t w = 0; w < BOARD_SEATS / 64 && *all; w++)
		for (uint64_t bits = seats[w]; bits && *all; bits &= bits - 1)
			*all = is_quiet(b, w * 64 + (uint32_t)__builtin_ctzll(bits), cut);
	if (*all)
		s->agreed = cut;
	for (uint32_t w = 0; w < BOARD_SEATS / 64 && !*all && !rc; w++)
		for (uint64_t bits = seats[w]; bits && !rc; bits &= bits - 1)
			if (is_betrayed(b, w * 64 + (uint32_t)__builtin_ctzll(bits), cut))
				rc = -ESTALE;
	unlock(b);
	return rc;
}

void board_cut_ends(struct board *b, uint32_t seat)
{
	if (seat >= BOARD_SEATS || lock(b))
		return;
	b->sh->seat[seat].cut = 0;
	unlock(b);
}

/* ---- saving ---- */

int board_save(struct board *b, void **image, size_t *len)
{
	static const struct step_limits least = { 1, 1, 1, 1, 1, 1, 1 };
	struct step *none;
	int rc = lock(b);

	if (rc)
		return rc;
	reads_only(b);
	if (b->sh->begun) {
		rc = step_save(b->step, image, len);
		unlock(b);
		return rc;
	}
	unlock(b);
	none = malloc(step_size(&least));
	rc = none ? step_save(step_init(none, &least), image, len) : -ENOMEM;
	free(none);
	return rc;
}

/* Whether the step's devices are those of the seats: another one would start operations for nobody. */
static bool is_seated(const struct step *s)
{
	for (uint32_t i = 0; i < BOARD_SEATS; i++) {
		uint32_t device = step_device(s, i);

		if (device != STEP_NONE && device != board_device(i))
			return false;
	}
	return true;
}

/* A fresh state with what the image has; the caller frees it. */
static int fresh(const void *image, size_t len, struct step **out, const char **why)
{
	struct step *s = calloc(1, step_size(&limits));
	int rc = s ? step_load(step_init_zeroed(s, &limits), image, len, why) : -ENOMEM;

	if (!rc && !is_seated(s)) {
		rc = -EBADMSG;
		if (why)
			*why = "the device of a seat";
	}
	if (rc) {
		free(s);
		return rc;
	}
	*out = s;
	return 0;
}

int board_check(const void *image, size_t len, const char **why)
{
	struct step *s;
	int rc = fresh(image, len, &s, why);

	if (!rc)
		free(s);
	return rc;
}

int board_load(struct board *b, const void *image, size_t len, const char **why)
{
	uint64_t *to = (uint64_t *)b->step;
	struct step_limits used;
	struct step *s;
	int rc = fresh(image, len, &s, why);

	if (rc)
		return rc;
	step_used(s, &used);
	rc = used.proxies ? lock(b) : 0;
	if (!rc && used.proxies) {
		rc = b->sh->begun ? -EBUSY : 0;
		/* Of the board's memory only what is used is touched. */
		for (size_t n = 0; !rc && n < step_size(&limits) / 8; n++)
			if (((uint64_t *)s)[n])
				to[n] = ((uint64_t *)s)[n];
		b->sh->begun = 1;
		unlock(b);
	}
	free(s);
	return rc;
}

int board_return(struct board *b, uint32_t seat, const void *address, size_t len)
{
	int rc;

	if (seat >= BOARD_SEATS || len > BOARD_ADDRESS_MAX)
		return -EINVAL;
	rc = lock(b);
	if (rc)
		return rc;
	if (b->sh->seat[seat].taken)
		rc = -EBUSY;
	else if (!b->sh->begun || !step_lives(b->step, seat))
		rc = -ENOENT;
	else
		sit(&b->sh->seat[seat], address, len);
	unlock(b);
	return rc;
}

void board_returned(struct board *b)
{
	for (uint32_t i = 0; i < BOARD_SEATS; i++) {
		if (lock(b))
			return;
		if (is_missing(b, i))
			dies(b, i);
		else
			unlock(b);
	}
}
