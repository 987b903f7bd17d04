// SPDX-License-Identifier: Apache-2.0
/*
 * board.c - the lock, the seats and their mailboxes
 */
#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BOARD_MAGIC   0x44424753u /* "SGBD" */
#define BOARD_VERSION 2
#define MAILS         4096u

static const struct step_limits limits = { .proxies = BOARD_SEATS,
	                                   .devices = BOARD_SEATS,
	                                   .comms = 1 << 13,
	                                   .members = 1 << 16,
	                                   .ops = 1 << 17,
	                                   .parts = 1 << 18,
	                                   .records = 1 << 17 };

struct seat {
	uint32_t taken; /* its owner's pid; lock */
	uint32_t address_len;
	uint32_t word; /* futex: counts wakes */
	uint32_t asleep; /* atomic */
	uint32_t woken; /* the log has something for its device; atomic */
	uint32_t head; /* mails written; atomic */
	uint32_t tail; /* mails read; atomic, its owner's */
	uint32_t pad;
	uint8_t address[BOARD_ADDRESS_MAX];
	struct step_action mail[MAILS];
};

/* In an open-addressed table, which is never more than half full. */
struct note {
	uint64_t key;
	uint32_t seat;
	uint16_t used; /* once, so that a search goes on here */
	uint16_t size; /* 0: it has been taken away */
	uint8_t text[BOARD_NOTE_MAX];
};

struct shared {
	uint32_t magic, version;
	uint64_t size;
	uint32_t broken; /* atomic */
	uint32_t begun; /* the step's state is there; lock */
	pthread_mutex_t lock;
	uint64_t step_at;
	struct seat seat[BOARD_SEATS];
	uint32_t notes; /* that are not taken away; lock */
	struct note note[2 * BOARD_NOTES]; /* lock */
};

struct board {
	struct shared *sh;
	struct step *step;
	pthread_mutex_t own; /* taken before that of the board, by the threads of this process */
	bool shut; /* own */
};

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
	pthread_mutexattr_t a;
	struct shared *sh;
	int fd, rc;

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
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	rc = -pthread_mutex_init(&sh->lock, &a);
	pthread_mutexattr_destroy(&a);
	sh->magic = BOARD_MAGIC;
	munmap(sh, sizeof(*sh));
	if (rc) {
		close(fd);
		return rc;
	}
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
	pthread_mutex_init(&b->own, NULL);
	*out = b;
	return 0;
}

void board_close(struct board *b)
{
	munmap(b->sh, board_size());
	free(b);
}

static bool is_broken(const struct board *b)
{
	return __atomic_load_n(&b->sh->broken, __ATOMIC_ACQUIRE);
}

static void wake(struct seat *s)
{
	__atomic_add_fetch(&s->word, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &s->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void broken(struct board *b)
{
	__atomic_store_n(&b->sh->broken, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < BOARD_SEATS; i++)
		if (b->sh->seat[i].taken)
			wake(&b->sh->seat[i]);
}

static int lock(struct board *b)
{
	int rc;

	pthread_mutex_lock(&b->own);
	rc = b->shut ? ESHUTDOWN : pthread_mutex_lock(&b->sh->lock);
	if (rc == EOWNERDEAD) {
		broken(b);
		pthread_mutex_consistent(&b->sh->lock);
		rc = 0;
	}
	if (!rc && is_broken(b)) {
		pthread_mutex_unlock(&b->sh->lock);
		rc = ENOTRECOVERABLE;
	}
	if (rc)
		pthread_mutex_unlock(&b->own);
	return -rc;
}

static void unlock(struct board *b)
{
	pthread_mutex_unlock(&b->sh->lock);
	pthread_mutex_unlock(&b->own);
}

void board_shut(struct board *b)
{
	pthread_mutex_lock(&b->own);
	b->shut = true;
	pthread_mutex_unlock(&b->own);
}

/* ---- a step ---- */

struct turn {
	struct board *b;
	uint32_t self;
	struct step_failure failure; /* the last one in this turn */
	struct step_action few[64], *own; /* own: for this seat */
	uint32_t n, room;
	bool full; /* there was no memory, or no room in a mailbox */
	uint64_t mailed[BOARD_SEATS / 64];
};

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

static void to_seat(struct turn *t, uint32_t i, const struct step_action *a)
{
	struct seat *s = &t->b->sh->seat[i];
	uint32_t head = s->head;

	if (!s->taken)
		return;
	t->mailed[i / 64] |= 1ull << (i % 64);
	if (a->kind == STEP_WAKE) {
		__atomic_store_n(&s->woken, 1, __ATOMIC_RELEASE);
		return;
	}
	if (head - __atomic_load_n(&s->tail, __ATOMIC_ACQUIRE) >= MAILS) {
		t->full = true;
		return;
	}
	s->mail[head % MAILS] = *a;
	__atomic_store_n(&s->head, head + 1, __ATOMIC_RELEASE);
}

/* The seat that an action is for. */
static uint32_t seat_of(const struct turn *t, const struct step_action *a)
{
	switch (a->kind) {
	case STEP_WAKE:
	case STEP_START:
	case STEP_CANCEL:
		return a->device;
	case STEP_RELEASE:
		return a->proxy;
	default:
		return step_proxy(t->b->step, a->member);
	}
}

static void acted(void *ctx, const struct step_action *action)
{
	struct step_action a = *action;
	struct turn *t = ctx;
	uint32_t i;

	if (a.kind == STEP_FAILED) {
		t->failure = a.failure;
		return;
	}
	/* The ends that a failure causes follow it. */
	if (a.code)
		a.failure = t->failure;
	i = seat_of(t, &a);
	if (i == t->self)
		to_self(t, &a);
	else if (i < BOARD_SEATS)
		to_seat(t, i, &a);
}

static void next_all(struct turn *t)
{
	struct step_event next = { .kind = STEP_NEXT, .device = t->self };

	while (step(t->b->step, &next, acted, t) == 1)
		;
}

static void wake_mailed(struct turn *t)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	for (uint32_t w = 0; w < BOARD_SEATS / 64; w++)
		for (uint64_t bits = t->mailed[w]; bits; bits &= bits - 1) {
			struct seat *s =
				&t->b->sh->seat[w * 64 + (uint32_t)__builtin_ctzll(bits)];

			if (__atomic_load_n(&s->asleep, __ATOMIC_RELAXED) &&
			    __atomic_exchange_n(&s->asleep, 0, __ATOMIC_SEQ_CST))
				wake(s);
		}
}

static void turn_begins(struct turn *t, struct board *b, uint32_t seat)
{
	t->b = b;
	t->self = seat;
	t->own = t->few;
	t->n = 0;
	t->room = sizeof(t->few) / sizeof(t->few[0]);
	t->full = false;
	memset(&t->failure, 0, sizeof(t->failure));
	memset(t->mailed, 0, sizeof(t->mailed));
}

/* Drops the lock, and hands the actions out. */
static void turn_ends(struct turn *t, step_act *act, void *ctx)
{
	uint32_t i;

	if (t->full)
		broken(t->b);
	unlock(t->b);
	wake_mailed(t);
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

/* ---- seats ---- */

int board_enter(struct board *b, uint32_t seat, const void *address, size_t len)
{
	struct step_event e = { .kind = STEP_ENTER, .proxy = seat, .device = seat };
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
		s->taken = (uint32_t)getpid();
		s->address_len = (uint32_t)len;
		memcpy(s->address, address, len);
		s->asleep = s->woken = 0;
		s->tail = s->head;
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
	       __atomic_load_n(&s->woken, __ATOMIC_RELAXED) || is_broken(b);
}

int board_mail(struct board *b, uint32_t seat, step_act *act, void *ctx)
{
	struct seat *s = &b->sh->seat[seat];
	struct step_action a;
	struct turn t;
	uint32_t tail;
	int rc;

	if (is_broken(b))
		return -ENOTRECOVERABLE;
	/* Cleared first: what is logged from now on sets it again. */
	if (__atomic_exchange_n(&s->woken, 0, __ATOMIC_ACQ_REL)) {
		rc = lock(b);
		if (rc)
			return rc;
		turn_begins(&t, b, seat);
		next_all(&t);
		turn_ends(&t, act, ctx);
	}
	for (tail = s->tail; tail != __atomic_load_n(&s->head, __ATOMIC_ACQUIRE);) {
		a = s->mail[tail % MAILS];
		__atomic_store_n(&s->tail, ++tail, __ATOMIC_RELEASE);
		act(ctx, &a);
	}
	return 0;
}

void board_sleeps(struct board *b, uint32_t seat, bool sleeps)
{
	__atomic_store_n(&b->sh->seat[seat].asleep, sleeps, __ATOMIC_SEQ_CST);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void board_await(struct board *b, uint32_t seat, uint32_t *seen)
{
	struct seat *s = &b->sh->seat[seat];
	uint32_t now;

	while ((now = __atomic_load_n(&s->word, __ATOMIC_ACQUIRE)) == *seen)
		syscall(SYS_futex, &s->word, FUTEX_WAIT, now, NULL, NULL, 0);
	*seen = now;
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

void board_die(struct board *b, uint32_t seat)
{
	struct step_event e = { .kind = STEP_DIE, .proxy = seat };
	struct turn t;

	if (seat >= BOARD_SEATS || lock(b))
		return;
	if (!b->sh->seat[seat].taken) {
		unlock(b);
		return;
	}
	b->sh->seat[seat].taken = 0;
	notes_die(b, seat);
	turn_begins(&t, b, STEP_NONE);
	step(b->step, &e, acted, &t);
	turn_ends(&t, NULL, NULL);
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
