// SPDX-License-Identifier: Apache-2.0
/*
 * ipc_event.c - events that processes share: records are numbered in a page that their proxies map
 *
 *   record  number = head + 1, claimed in its slot ─► driver's event ─► callback: the slot is done
 *   wait    for the record of number head: if it is done, not at all; if it is ours, for the
 *           driver's event; else the stream waits for a word of ours, which the watcher stores when
 *           the slot is done or the record's owner has died
 *
 * The page is a sealed memfd. Each proxy opens it for itself and locks a byte of it; the byte's
 * offset is its owner number. The kernel drops the lock when the process ends, and records that it
 * had not completed count as done. A peer may write anything to the page: numbers are only compared
 * here, and owners are below 256. It can make others not wait for this event, or wait for as long as
 * it lives, which recording the event allows as well; or as long as the process lives that it names
 * as a record's owner.
 *
 * A record that is put into a stream behind a collective operation may never complete: `stands` says so while the
 * operation has failed (streams/outside.h), so that other processes' waits for it end with an error.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "answer.h"
#include "context.h"
#include "fail.h"
#include "outside.h"
#include "peer.h"
#include "print.h"
#include "stat_i.h"
#include "streams.h"
#include "transfer.h"

#define PAGE		4096
#define SLOTS		128		/* records that may be under way at once */
#define OWNERS		255
#define WORDS		(PAGE / 8)
#define SEALS		(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define LIVENESS_NS	10000000

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct page {
	uint64_t head;			/* number of the last record, 0: none */
	struct slot {
		uint64_t record;	/* number << 8 | owner; changed by compare and swap */
		uint64_t done;		/* number */
	} slot[SLOTS];
	/* An older proxy leaves these 0. */
	uint64_t fails;			/* not 0: a record may have been put behind a collective operation */
	uint64_t stands[SLOTS];		/* by slot: the number of a record that stands, or 0 */
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct page) == 3088, "shared");
_Static_assert(sizeof(struct slot) == 16, "shared");

struct shared {
	struct shared *next;
	uint64_t handle;		/* of the event; 0: it is gone */
	unsigned int refs;		/* lock */
	struct page *page;
	int fd;				/* opened by us: holds our lock */
	int shown;			/* the fd passed to peer_show, or -1 */
	unsigned int me;
	uint64_t last;			/* our last record; consumer */
	uint64_t stood_ns;		/* since when queries find that it stands; 0: not; consumer */
	uint64_t ended[SLOTS];		/* the largest number of ours that is done; atomic */
};

struct word {
	struct word *next;
	uint64_t *at, value;
};

struct awaited {
	struct awaited *next;
	struct shared *e;
	uint64_t number;
	bool ours;			/* it is our last record */
	bool stood;			/* the call is answered since the record stands */
	struct word *word;		/* to store; or NULL: answer a call */
	struct answer answer;
};

static struct lock lock = LOCK_INIT(PROXY_IPC_EVENTS);
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct shared *all;
static struct word *words;		/* free ones; lock */
static struct lock pin_lock = LOCK_INIT(PROXY_IPC_PINS);	/* before lock */
static void *word_page[64];		/* pin_lock */
static int word_pages;
static struct awaited *watches;		/* lock */
static bool watching;

/* ------------------------------------------------------------------------------ the page */

static uint64_t load(const uint64_t *p)
{
	/* pairs with swap() in any process, and with may_fail(), say() and the devices that write `done` */
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static bool swap(uint64_t *p, uint64_t from, uint64_t to)
{
	/* pairs with itself in another process */
	return __atomic_compare_exchange_n(p, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static struct slot *slot_of(struct page *p, uint64_t number)
{
	return &p->slot[number % SLOTS];
}

static void raise_to(uint64_t *p, uint64_t number)
{
	uint64_t old = load(p);

	while (old < number && !swap(p, old, number))
		old = load(p);
}

static bool done(struct page *p, uint64_t number)
{
	return !number || load(&slot_of(p, number)->done) >= number;
}

static bool stands(const struct page *p, uint64_t number)
{
	return number && load(&p->stands[number % SLOTS]) == number;
}

static bool dead(const struct shared *e, unsigned int owner)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = owner, .l_len = 1 };

	return owner != e->me && !fcntl(e->fd, F_OFD_GETLK, &l) && l.l_type == F_UNLCK;
}

/*
 * Will nobody complete a record that head has named? Its slot got the record before head did, so
 * another number there is a later record's, or a lie. ours: the record is our last one; another one
 * by our number is a lie, too, and so is a slot that forgets that ours is done.
 */
static bool nobody_completes(const struct shared *e, uint64_t number, bool ours)
{
	struct slot *s = slot_of(e->page, number);
	uint64_t record = load(&s->record);
	unsigned int owner = record & 255;

	if (record >> 8 != number)
		return true;
	if (owner == e->me ? ours && load(&e->ended[number % SLOTS]) < number : !dead(e, owner))
		return false;
	raise_to(&s->done, number);
	return true;
}

/* Is the slot's record under way? One whose number belongs elsewhere is a lie. */
static bool in_use(const struct shared *e, const struct slot *s, uint64_t record)
{
	return slot_of(e->page, record >> 8) == s && !done(e->page, record >> 8) &&
	       !dead(e, record & 255);
}

/* Claims a number for a record of ours. 0: too many are under way, or a peer corrupts the page. */
static uint64_t claim(struct shared *e)
{
	struct page *p = e->page;

	for (int tries = 0; tries < 1000; tries++) {
		uint64_t head = load(&p->head), number = head + 1;
		struct slot *s = slot_of(p, number);
		uint64_t record = load(&s->record);

		if (record && record >> 8 == number) {
			swap(&p->head, head, number);	/* for an owner that died before doing so */
			continue;
		}
		if (in_use(e, s, record))
			return 0;
		if (swap(&s->record, record, number << 8 | e->me)) {
			swap(&p->head, head, number);
			return number;
		}
	}
	return 0;
}

/* A record of ours is done, or was never made. */
static void end_record(struct shared *e, uint64_t number)
{
	raise_to(&e->ended[number % SLOTS], number);
	raise_to(&slot_of(e->page, number)->done, number);
}

/* Takes a free owner number. Records that its former owner had not completed become done. */
static int join(struct shared *e)
{
	for (e->me = 1; e->me <= OWNERS; e->me++) {
		struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = e->me,
				   .l_len = 1 };

		if (fcntl(e->fd, F_OFD_SETLK, &l))
			continue;
		for (int i = 0; i < SLOTS; i++) {
			uint64_t record = load(&e->page->slot[i].record);

			if ((record & 255) == e->me)
				raise_to(&e->page->slot[i].done, record >> 8);
		}
		return 0;
	}
	return -EUSERS;
}

/* Opens the file anew, since locks belong to an open file, and joins. */
static int attach(struct shared *e, int fd)
{
	char path[40];
	void *p;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	e->fd = open(path, O_RDWR | O_CLOEXEC);
	if (e->fd < 0)
		return -errno;
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, e->fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	e->page = p;
	return join(e);
}

static void free_shared(struct shared *e)
{
	if (e->shown >= 0) {
		peer_hide_event(e->shown);
		close(e->shown);
	}
	if (e->page)
		munmap(e->page, PAGE);
	if (e->fd >= 0)
		close(e->fd);
	free(e);
}

static struct shared *new_shared(uint64_t handle)
{
	struct shared *e = calloc(1, sizeof(*e));

	if (e)
		*e = (struct shared){ .handle = handle, .refs = 1, .fd = -1, .shown = -1 };
	return e;
}

static void add_shared(struct shared *e)
{
	lock_take(&lock);
	e->next = all;
	all = e;
	lock_drop(&lock);
}

static void get_shared(struct shared *e)
{
	lock_take(&lock);
	e->refs++;
	lock_drop(&lock);
}

static void put_shared(struct shared *e)
{
	bool last;

	lock_take(&lock);
	last = !--e->refs;
	lock_drop(&lock);
	if (last)
		free_shared(e);
}

/* Called by the consumer, which alone ends a shared event. */
static struct shared *find_shared(uint64_t handle)
{
	struct shared *e;

	lock_take(&lock);
	for (e = all; e && e->handle != handle; e = e->next)
		;
	lock_drop(&lock);
	return e;
}

/* ------------------------------------------------------------------------------ words, watcher */

static CUresult pin(struct sv_session *s, void *page)
{
	CUresult r = s->hal.drv.cuCtxSetCurrent(s->hal.primary);

	if (!r)
		r = hal_pin(&s->hal, page, PAGE);
	context_forget();
	return r == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ? CUDA_SUCCESS : r;
}

void ipc_repin(struct sv_session *s)
{
	lock_take(&pin_lock);
	for (int i = 0; i < word_pages; i++)
		if (pin(s, word_page[i]))
			session_fail(s, -ENOMEM, "memory for waits cannot be pinned again after a "
				     "reset", 0, 0);
	lock_drop(&pin_lock);
}

/* Pins a new page of words. pin_lock is held. */
static CUresult more_words(struct sv_session *s)
{
	struct word *w = calloc(WORDS, sizeof(*w));
	uint64_t *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			      0);
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;

	assert_held(&pin_lock);
	if (w && page != MAP_FAILED && word_pages < 64)
		r = pin(s, page);
	if (r) {
		free(w);
		if (page != MAP_FAILED)
			munmap(page, PAGE);
		return r;
	}
	word_page[word_pages++] = page;
	lock_take(&lock);
	for (int i = 0; i < WORDS; i++) {
		w[i] = (struct word){ .next = words, .at = &page[i] };
		words = &w[i];
	}
	lock_drop(&lock);
	return CUDA_SUCCESS;
}

/* Only the consumer takes words, so their number cannot drop after this check. */
static CUresult take_word(struct sv_session *s, struct word **w)
{
	CUresult r = CUDA_SUCCESS;
	bool none;

	lock_take(&lock);
	none = !words;
	lock_drop(&lock);
	if (none) {
		lock_take(&pin_lock);
		r = more_words(s);
		lock_drop(&pin_lock);
	}
	if (r)
		return r;
	lock_take(&lock);
	*w = words;
	words = words->next;
	(*w)->value++;
	lock_drop(&lock);
	return CUDA_SUCCESS;
}

/* Stores the word's value; the next wait for the word uses a larger one. */
static void give_word(struct word *w)
{
	__atomic_store_n(w->at, w->value, __ATOMIC_RELEASE);
	lock_take(&lock);
	w->next = words;
	words = w;
	lock_drop(&lock);
}

static void fire(struct awaited *w)
{
	if (w->word)
		give_word(w->word);
	else
		answer_now(&w->answer, w->stood ? COVER_FAILS : CUDA_SUCCESS, NULL, 0);
	put_shared(w->e);
	free(w);
}

/* Takes the watches whose records are done off the list. lock is held. */
static struct awaited *due(bool deaths)
{
	struct awaited **p = &watches, *w, *first = NULL;

	assert_held(&lock);
	while ((w = *p)) {
		bool over = done(w->e->page, w->number) ||
			    (deaths && nobody_completes(w->e, w->number, w->ours));

		w->stood = !over && !w->word && stands(w->e->page, w->number);
		if (over || w->stood) {
			*p = w->next;
			w->next = first;
			first = w;
		} else {
			p = &w->next;
		}
	}
	return first;
}

/* Polls the page: other processes complete records by a store, which wakes nobody. */
static void *watcher(void *arg)
{
	uint64_t looked = 0, now;
	long nap = 20000;

	lock_take(&lock);
	for (;;) {
		struct awaited *w;
		struct timespec t;

		while (!watches) {
			nap = 20000;
			lock_wait(&lock, &more);
		}
		now = now_ns();
		w = due(now - looked >= LIVENESS_NS);
		looked = now - looked >= LIVENESS_NS ? now : looked;
		lock_drop(&lock);
		nap = w ? 20000 : nap < 1000000 ? nap + nap / 4 : nap;
		while (w) {
			struct awaited *next = w->next;

			fire(w);
			w = next;
		}
		t = (struct timespec){ 0, nap };
		nanosleep(&t, NULL);
		lock_take(&lock);
	}
	return arg;
}

/* Adds a copy of *what to the list; after a failure the caller still owns its references. */
static CUresult watch(const struct awaited *what)
{
	struct awaited *w = malloc(sizeof(*w));
	pthread_t t;
	int rc = 0;

	if (!w)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*w = *what;
	lock_take(&lock);
	if (!watching) {
		rc = pthread_create(&t, NULL, watcher, NULL);
		if (!rc)
			pthread_detach(t);
		watching = !rc;
	}
	if (!rc) {
		w->e->refs++;
		w->next = watches;
		watches = w;
		pthread_cond_signal(&more);
	}
	lock_drop(&lock);
	if (rc)
		free(w);
	return rc ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------ what stands */

/* A record of ours that other processes may wait for; or a wait of ours for a record of another process. */
struct notice {
	union {
		struct told told;
		struct outside wait;
	};
	struct shared *e;
	uint64_t number;
};

static struct notice *new_notice(struct shared *e, uint64_t number)
{
	struct notice *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->e = e;
	t->number = number;
	get_shared(e);
	return t;
}

static void free_notice(struct notice *t)
{
	put_shared(t->e);
	free(t);
}

static void say(struct told *told, bool stand, uint64_t cause)
{
	const struct notice *t = (const struct notice *)told;
	uint64_t *at = &t->e->page->stands[t->number % SLOTS];

	(void)cause;			/* means nothing to another process */
	if (stand || load(at) == t->number)
		__atomic_store_n(at, stand ? t->number : 0, __ATOMIC_RELEASE);
}

static bool is_told(struct told *told)
{
	const struct notice *t = (const struct notice *)told;

	return load(&t->e->ended[t->number % SLOTS]) >= t->number;
}

static void told_ends(struct told *told)
{
	free_notice((struct notice *)told);
}

/* Others may wait for the record, which is put behind what *c covers. CUDA_ERROR_OUT_OF_MEMORY. */
static CUresult tell_others(struct shared *e, uint64_t number, const struct cover *c)
{
	struct notice *t;

	if (!cover_open(c))
		return CUDA_SUCCESS;
	t = new_notice(e, number);
	if (!t)
		return CUDA_ERROR_OUT_OF_MEMORY;
	t->told = (struct told){ .say = say, .over = is_told, .end = told_ends };
	outside_tell(&t->told, c);
	return CUDA_SUCCESS;
}

/* Before a record's number can be seen. */
static void may_fail(struct shared *e, const struct cover *c)
{
	if (cover_any && cover_open(c))
		__atomic_store_n(&e->page->fails, 1, __ATOMIC_RELEASE);
}

static enum outside_state state_of(struct outside *o, uint64_t *cause)
{
	const struct notice *t = (const struct notice *)o;

	*cause = 0;
	return done(t->e->page, t->number) ? OUTSIDE_OVER :
	       stands(t->e->page, t->number) ? OUTSIDE_STANDS : OUTSIDE_OPEN;
}

static void wait_ends(struct outside *o)
{
	free_notice((struct notice *)o);
}

/* The stream is about to wait for another process's record. */
static CUresult may_stand(struct sv_session *s, struct stream *st, struct shared *e, uint64_t number)
{
	struct notice *t;
	int rc;

	if (!load(&e->page->fails))
		return CUDA_SUCCESS;
	t = new_notice(e, number);
	if (!t)
		return CUDA_ERROR_OUT_OF_MEMORY;
	t->wait.state = state_of;
	t->wait.end = wait_ends;
	rc = outside_wait(s, st, &t->wait);
	if (rc)
		free_notice(t);
	return rc ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------ records */

struct recording {
	struct shared *e;
	uint64_t number, used;
	struct stream *st;		/* held, or NULL */
};

static void recorded(void *arg, CUresult status)
{
	struct recording *r = arg;

	(void)status;			/* after a sticky error the record counts as done, too */
	end_record(r->e, r->number);
	if (r->st) {
		stream_reached(r->st, r->used);
		stream_put(r->st);
	}
	put_shared(r->e);
	free(r);
}

/* The record is done when the work now queued in the stream is done. */
static CUresult complete_after(struct sv_session *s, struct shared *e, uint64_t number,
			       CUstream stream, struct stream *st)
{
	struct recording *r = malloc(sizeof(*r));
	CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;

	if (r) {
		*r = (struct recording){ e, number, st ? st->used : 0, st };
		get_shared(e);
		if (st)
			__atomic_add_fetch(&st->refs, 1, __ATOMIC_RELAXED);
		rc = hal_notify(&s->hal, stream, recorded, r);
	}
	if (rc && r)
		recorded(r, rc);
	else if (rc)
		end_record(e, number);
	return rc;
}

static int event_of(struct call *k, uint64_t ctx, uint64_t event, struct shared **e, CUevent *real)
{
	uint64_t value = 0;
	int rc = sv_enter(k->c.session, ctx);

	if (!rc)
		rc = sv_real(k->c.session, SV_T_CUevent, event, 0, &value);
	*real = (CUevent)(uintptr_t)value;
	if (rc < 0)
		k->c.why = "context or event of a call";
	if (!rc && e) {
		*e = find_shared(event);
		if (!*e)
			return sv_bad(&k->c, "an event that is not shared");
	}
	return rc;
}

int do_ipc_record(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_ipc_on *a = k->c.data;
	struct cover c = { { 0 } };
	struct stream *st;
	struct shared *e;
	uint64_t number;
	CUevent real;
	CUresult r;
	int rc = event_of(k, a->ctx, a->event, &e, &real);

	if (!rc) {
		rc = stream_use(s, a->stream, &st);
		if (rc < 0)
			k->c.why = "stream of a record";
	}
	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	if (cover_any)
		c = cover_of_stream(st);
	may_fail(e, &c);
	number = claim(e);
	if (!number)
		return fails(k, CUDA_ERROR_NOT_READY);
	r = s->hal.drv.cuEventRecord(real, st->real);
	if (r) {
		end_record(e, number);
		return fails(k, r);
	}
	if (cover_any)
		cover_record(st, a->event);
	e->last = number;
	r = complete_after(s, e, number, st->real, st);
	return fails(k, r ?: tell_others(e, number, &c));
}

int do_ipc_wait(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_ipc_on *a = k->c.data;
	struct awaited w = { 0 };
	struct stream *st;
	CUevent real;
	CUresult r;
	int rc = event_of(k, a->ctx, a->event, &w.e, &real);

	if (!rc) {
		rc = stream_use(s, a->stream, &st);
		if (rc < 0)
			k->c.why = "stream of a wait";
	}
	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	w.number = load(&w.e->page->head);
	w.ours = w.number == w.e->last;
	if (done(w.e->page, w.number) || nobody_completes(w.e, w.number, w.ours))
		return 0;
	if (w.ours) {
		r = s->hal.drv.cuStreamWaitEvent(st->real, real, 0);
		if (!r && cover_any)
			cover_wait(st, a->event);
		return fails(k, r);
	}
	r = may_stand(s, st, w.e, w.number);
	if (!r)
		r = take_word(s, &w.word);
	if (r)
		return fails(k, r);
	/* Taking the word entered the primary context: return to the stream's. */
	rc = sv_enter(s, a->ctx);
	r = rc ? CUDA_ERROR_INVALID_CONTEXT :
		s->hal.drv.cuStreamWaitValue64_v2(st->real, (uintptr_t)w.word->at, w.word->value,
						  CU_STREAM_WAIT_VALUE_GEQ);
	if (!r)
		r = watch(&w);
	if (r)
		give_word(w.word);
	else
		st->wait_addr = (uintptr_t)w.word->at;
	return fails(k, r);
}

static int last_record(struct call *k, struct shared **e, uint64_t *number)
{
	const struct sv_sync_on *a = k->c.data;
	CUevent real;
	int rc = event_of(k, a->ctx, a->on, e, &real);

	if (!rc)
		*number = load(&(*e)->page->head);
	return rc;
}

int do_ipc_query(struct call *k)
{
	struct shared *e;
	uint64_t number;
	int rc = last_record(k, &e, &number);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	print_pump(k->c.session);
	if (done(e->page, number) || nobody_completes(e, number, number == e->last))
		return 0;
	if (!stands(e->page, number)) {
		e->stood_ns = 0;
		return fails(k, CUDA_ERROR_NOT_READY);
	}
	if (!e->stood_ns)
		e->stood_ns = now_ns();
	return fails(k, cover_query_since(e->stood_ns));
}

int do_ipc_sync(struct call *k)
{
	struct awaited w = { 0 };
	CUresult r;
	int rc = last_record(k, &w.e, &w.number);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	w.ours = w.number == w.e->last;
	if (done(w.e->page, w.number) || nobody_completes(w.e, w.number, w.ours)) {
		print_pump(k->c.session);
		return 0;
	}
	w.answer = answer_later(k);
	r = watch(&w);
	return r ? fails(k, r) : CALL_LATER;
}

/* ------------------------------------------------------------------------------ handles */

/* A record made before the event was shared, and not complete yet, becomes the page's first one. */
static CUresult first_record(struct sv_session *s, struct shared *e, CUevent real)
{
	CUstream stream;
	CUresult r = s->hal.drv.cuEventQuery(real);
	uint64_t number;
	struct cover c;

	if (r != CUDA_ERROR_NOT_READY)
		return r;
	r = s->hal.drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	if (r)
		return r;
	r = s->hal.drv.cuStreamWaitEvent(stream, real, 0);
	if (!r) {
		c = cover_of_event(e->handle);
		may_fail(e, &c);
		number = claim(e);
		e->last = number;
		r = number ? complete_after(s, e, number, stream, NULL) : CUDA_ERROR_UNKNOWN;
		if (!r)
			r = tell_others(e, number, &c);
	}
	s->hal.drv.cuStreamDestroy_v2(stream);	/* its queued work still completes */
	return r;
}

static CUresult make(struct sv_session *s, uint64_t handle, CUevent real, struct shared **out)
{
	struct shared *e = new_shared(handle);
	int rc = -ENOMEM;
	CUresult r;

	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->shown = memfd_create("singvgpu-event", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (e->shown >= 0)
		rc = ftruncate(e->shown, PAGE) || fcntl(e->shown, F_ADD_SEALS, SEALS) ? -errno :
			attach(e, e->shown);
	r = rc ? CUDA_ERROR_OUT_OF_MEMORY : first_record(s, e, real);
	if (r) {
		put_shared(e);
		return r;
	}
	add_shared(e);
	*out = e;
	return CUDA_SUCCESS;
}

int do_ipc_event_get(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_sync_on *a = k->c.data;
	static const uint8_t none[16];
	struct sv_ipc_shown out;
	struct shared *e;
	CUevent real;
	CUresult r = CUDA_SUCCESS;
	int rc = event_of(k, a->ctx, a->on, NULL, &real);

	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	e = find_shared(a->on);
	if (!e)
		r = make(s, a->on, real, &e);
	if (r)
		return fails(k, r);
	if (e->shown < 0)
		return sv_bad(&k->c, "showing another process's event");
	__atomic_store_n(&s->shares, true, __ATOMIC_RELAXED);
	if (peer_show(s, SV_IPC_EVENT, 0, 0, e->shown, none, &out))
		return fails(k, CUDA_ERROR_OPERATING_SYSTEM);
	memcpy(k->c.reply, &out, sizeof(out));
	k->c.reply_len = sizeof(out);
	return 0;
}

static CUresult opened(void *arg, int fd)
{
	struct shared *e = arg;
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) || st.st_size != PAGE)
		return CUDA_ERROR_INVALID_VALUE;
	return attach(e, fd) ? CUDA_ERROR_MAP_FAILED : CUDA_SUCCESS;
}

/* Runs on a worker. */
int do_ipc_event_open(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_ipc_event *a = k->c.data;
	static const uint8_t none[16];
	struct shared *e;
	CUevent real;
	CUresult r;
	int rc;

	if (a->h.magic != SV_IPC_MAGIC || a->h.version != SV_IPC_VERSION || a->h.device ||
	    a->h.kind != SV_IPC_EVENT || a->h.len || a->h.at)
		return sv_bad(&k->c, "a handle of an event that is none");
	rc = event_of(k, a->ctx, a->event, NULL, &real);
	if (rc)
		return rc < 0 ? rc : fails(k, rc);
	if (find_shared(a->event))
		return sv_bad(&k->c, "opening an event into one that is shared");
	if (peer_is_us(&a->h))
		return fails(k, CUDA_ERROR_INVALID_CONTEXT);
	e = new_shared(a->event);
	if (!e)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	__atomic_store_n(&s->shares, true, __ATOMIC_RELAXED);
	r = peer_ask(&a->h, none, opened, e);
	if (r)
		put_shared(e);
	else
		add_shared(e);
	return fails(k, r);
}

int do_ipc_event_end(struct call *k)
{
	const struct sv_ipc_end *a = k->c.data;
	struct shared **p, *e;

	lock_take(&lock);
	for (p = &all; (e = *p) && e->handle != a->event; p = &e->next)
		;
	if (e)
		*p = e->next;
	lock_drop(&lock);
	if (!e)
		return sv_bad(&k->c, "the end of an event that is not shared");
	put_shared(e);
	return 0;
}
