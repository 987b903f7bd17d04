// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_event.c - libFuzzer over shared events: their page, which hostile processes have mapped, too
 *
 * An input is a program: it shares events and opens those of others, whose files are pages or
 * something else, records, waits and asks; between these the device makes progress, and other
 * processes write anything to a page, claim owner numbers, and die.
 *
 * Checked: each call is answered once, nothing spins for ever, no descriptor is left over; and once
 * all other processes have died and the device is idle, every wait ends. (A lie that a live process
 * owns a record holds until that has died: of a page that is open here twice, this is one.)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
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
#include "../../harness/fuzz.h"

int fuzz_nanosleep(const struct timespec *t, struct timespec *left);

#define EVENTS	4
#define PAGES	6
#define SLOTS	128
#define PAGE	4096
#define WAITS	256

static struct sv_session session;
static unsigned int fail;	/* bit n: the n-th kind of call fails */
enum { F_RECORD, F_WAIT, F_VALUE, F_STREAM, F_QUERY, F_CALLBACK, F_SHOW, F_PIN, F_CURRENT };

static CUresult result(int what)
{
	return fail & 1u << what ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------ the device */

static struct note {
	hal_fn fn;
	void *arg;
} notes[WAITS];
static unsigned int nnotes;
static CUresult device = CUDA_SUCCESS;

CUresult hal_notify(struct hal *h, CUstream stream, hal_fn fn, void *arg)
{
	CUresult r = nnotes < WAITS ? result(F_CALLBACK) : CUDA_ERROR_OUT_OF_MEMORY;

	MUST(h == &session.hal && stream && fn);
	if (!r)
		notes[nnotes++] = (struct note){ fn, arg };
	return r;
}

static void device_runs(unsigned int n)
{
	n = n < nnotes ? n : nnotes;
	for (unsigned int i = 0; i < n; i++)
		notes[i].fn(notes[i].arg, device);
	memmove(notes, notes + n, (nnotes - n) * sizeof(*notes));
	nnotes -= n;
}

/* Words that streams wait for. */
static struct {
	uint64_t *at, value;
} values[WAITS];
static unsigned int nvalues;

static CUresult m_value(CUstream st, CUdeviceptr at, cuuint64_t v, unsigned int f)
{
	CUresult r = nvalues < WAITS ? result(F_VALUE) : CUDA_ERROR_OUT_OF_MEMORY;

	MUST(st && f == CU_STREAM_WAIT_VALUE_GEQ);
	MUST(__atomic_load_n((uint64_t *)(uintptr_t)at, __ATOMIC_RELAXED) < v);
	if (!r) {
		values[nvalues].at = (uint64_t *)(uintptr_t)at;
		values[nvalues++].value = v;
	}
	return r;
}
static CUresult m_record(CUevent e, CUstream st)
{
	MUST(e && st);
	return result(F_RECORD);
}
static CUresult m_wait(CUstream st, CUevent e, unsigned int f)
{
	MUST(e && st && !f);
	return result(F_WAIT);
}
static CUresult m_query(CUevent e)
{
	MUST(e);
	return fail & 1u << F_QUERY ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
static CUresult m_stream(CUstream *st, unsigned int f)
{
	(void)f;
	*st = (CUstream)&session;
	return result(F_STREAM);
}
static CUresult m_stream_end(CUstream st)
{
	MUST(st == (CUstream)&session);
	return CUDA_SUCCESS;
}
static CUresult m_current(CUcontext c)
{
	(void)c;
	return result(F_CURRENT);
}
CUresult hal_pin(struct hal *h, void *p, size_t len)
{
	MUST(h && p && len == PAGE);
	return result(F_PIN);
}

/* ------------------------------------------------------------------------------ the core */

static struct stream streams[2];

int sv_enter(struct sv_session *s, uint64_t ctx)
{
	MUST(s == &session);
	return ctx ? -EPROTO : 0;
}
int sv_real(struct sv_session *s, unsigned int type, uint64_t handle, int optional, uint64_t *real)
{
	MUST(s == &session && type == SV_T_CUevent && !optional);
	*real = 0x1000 + handle;
	return handle && handle <= EVENTS ? 0 : -EPROTO;
}
int stream_use(struct sv_session *s, uint64_t handle, struct stream **st)
{
	MUST(s == &session);
	*st = handle < 2 ? &streams[handle] : NULL;
	if (*st)
		(*st)->used++;
	return *st ? 0 : -EPROTO;
}
void stream_reached(struct stream *st, uint64_t upto)
{
	MUST(upto <= st->used);
}
void stream_put(struct stream *st)
{
	MUST(__atomic_sub_fetch(&st->refs, 1, __ATOMIC_RELAXED) < WAITS);
}
void context_forget(void)
{
}
void print_pump(struct sv_session *s)
{
	MUST(s == &session);
}
void session_fail(struct sv_session *s, int err, const char *why, uint16_t op, uint64_t seq)
{
	(void)op, (void)seq;
	MUST(s == &session && err < 0 && why);
}
/* Time passes quickly, so that the watcher looks for deaths each time. */
uint64_t now_ns(void)
{
	static uint64_t t;

	return __atomic_add_fetch(&t, 20000000, __ATOMIC_RELAXED);
}
int fuzz_nanosleep(const struct timespec *t, struct timespec *left)
{
	(void)t, (void)left;
	return sched_yield();
}

static uint64_t asked;			/* calls to be answered later, by seq; bits; atomic */

struct answer answer_later(const struct call *k)
{
	return (struct answer){ .s = k->c.session, .seq = k->seq, .op = k->c.op, .cpl = k->cpl };
}
void answer_now(const struct answer *a, CUresult status, const void *reply, uint16_t len)
{
	uint64_t was = __atomic_fetch_and(&asked, ~(1ull << a->seq), __ATOMIC_ACQ_REL);

	MUST(was & 1ull << a->seq && (!status || status == COVER_FAILS) && !reply && !len);
}

/* ------------------------------------------------------------------------------ what stands */

bool cover_any;
static struct outside *outsides;	/* waits for other processes */
static struct told *told_ones;		/* records that others wait for */

bool cover_open(const struct cover *c)
{
	return c->upto[0];
}
struct cover cover_of_stream(const struct stream *st)
{
	return (struct cover){ { st == &streams[1] } };
}
struct cover cover_of_event(uint64_t event)
{
	return (struct cover){ { event & 1 } };
}
void cover_record(const struct stream *st, uint64_t event)
{
	MUST(cover_any && st && event);
}
void cover_wait(struct stream *st, uint64_t event)
{
	MUST(cover_any && st && event);
}
CUresult cover_query_since(uint64_t ns)
{
	MUST(ns);
	return COVER_FAILS;
}
int outside_wait(struct sv_session *s, struct stream *st, struct outside *o)
{
	MUST(s == &session && st && o->state && o->end);
	if (result(F_STREAM))
		return -ENOMEM;
	o->next = outsides;
	outsides = o;
	return 0;
}
void outside_tell(struct told *t, const struct cover *c)
{
	MUST(c->upto[0] && t->say && t->over && t->end);
	t->next = told_ones;
	told_ones = t;
}

/* The consumer looks: what is over ends. Is that all of it? */
static bool looks_outside(void)
{
	uint64_t cause;

	for (struct outside **at = &outsides, *o; (o = *at);) {
		if (o->state(o, &cause) != OUTSIDE_OVER) {
			at = &o->next;
			continue;
		}
		*at = o->next;
		o->end(o);
	}
	for (struct told **at = &told_ones, *t; (t = *at);) {
		if (!t->over(t)) {
			at = &t->next;
			continue;
		}
		*at = t->next;
		t->say(t, false, 0);
		t->end(t);
	}
	return !outsides && !told_ones;
}

/* ------------------------------------------------------------------------------ other processes */

static struct other {
	int fd;			/* opened by itself, with its locks; -1: it has died */
	uint64_t *page;		/* mapped by another open file: a mapping would keep the locks */
} others[PAGES];
static unsigned int nothers;
static bool twice;		/* a page is open here twice */

static void meets(int fd)
{
	struct other *o = &others[nothers];
	char path[40];

	if (nothers == PAGES)
		return;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	o->fd = open(path, O_RDWR | O_CLOEXEC);
	MUST(o->fd >= 0);
	o->page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(o->page != MAP_FAILED);
	nothers++;
}

static void dies(struct other *o)
{
	if (o->fd >= 0)
		close(o->fd);
	o->fd = -1;
}

int peer_show(struct sv_session *s, uint32_t kind, uint64_t va, uint64_t len, int fd,
	      const uint8_t key[16], struct sv_ipc_shown *out)
{
	MUST(s == &session && kind == SV_IPC_EVENT && !va && !len && key);
	memset(out, 0x33, sizeof(*out));
	if (result(F_SHOW))
		return -ENOMEM;
	meets(fd);
	return 0;
}
void peer_hide_event(int fd)
{
	MUST(fcntl(fd, F_GETFD) >= 0);
}
bool peer_is_us(const struct sv_ipc_handle *h)
{
	return h->server[0] == 0x33;
}

/* What another proxy may send in the place of an event's page. */
static int offer(uint8_t kind)
{
	int fd = -1, pair[2];

	switch (kind % 8) {
	case 0: case 1: case 2:
		fd = memfd_create("event", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		MUST(!ftruncate(fd, PAGE));
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
		meets(fd);
		break;
	case 3:		/* one of ours, or another's that is open already */
		for (unsigned int i = 0; i < nothers && fd < 0; i++)
			fd = fcntl(others[(kind >> 3) % nothers].fd, F_DUPFD_CLOEXEC, 3);
		twice = true;
		break;
	case 4:		/* seals are missing; another size; nobody can write to it */
		fd = memfd_create("event", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		MUST(!ftruncate(fd, kind & 8 ? 2 * PAGE : kind & 16 ? 0 : PAGE));
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | (kind & 32 ? F_SEAL_GROW | F_SEAL_SEAL : 0) |
		      (kind & 64 ? F_SEAL_WRITE : 0) | (kind & 128 ? F_SEAL_FUTURE_WRITE : 0));
		break;
	case 5:
		MUST(!pipe2(pair, O_CLOEXEC));
		fd = pair[kind >> 3 & 1];
		close(pair[!(kind >> 3 & 1)]);
		break;
	case 6:
		fd = open(kind & 8 ? "/" : "/dev/zero", O_RDONLY | O_CLOEXEC);
		break;
	}
	return fd;
}

static uint8_t offered;

CUresult peer_ask(const struct sv_ipc_handle *h, const uint8_t key[16],
		  CUresult (*each)(void *arg, int fd), void *arg)
{
	int fd = offer(offered);
	CUresult r = CUDA_ERROR_MAP_FAILED;

	MUST(h->kind == SV_IPC_EVENT && key);
	if (fd >= 0) {
		r = each(arg, fd);
		close(fd);
	}
	return r;
}

/* ------------------------------------------------------------------------------ the input */

/* A number of a record: near the page's last one, anywhere, or at an end. */
static uint64_t number(struct program *in, const uint64_t *page)
{
	uint8_t what = byte(in);
	uint64_t v = 0;

	switch (what & 3) {
	case 0:
		return page[0] + (what >> 2) - 8;
	case 1:
		return what >> 2;
	case 2:
		return ~0ull >> (what >> 2);
	}
	for (int i = 0; i < 8; i++)
		v = v << 8 | byte(in);
	return v;
}

static void write_page(struct program *in, uint8_t n)
{
	struct other *o = nothers ? &others[n % nothers] : NULL;
	uint64_t *page = o ? o->page : NULL, *slot;
	uint8_t at = byte(in);

	if (!page)
		return;
	slot = page + 1 + 2 * (at & 128 ? at % SLOTS : page[0] % SLOTS);
	switch (n >> 5 & 3) {
	case 0:
		__atomic_store_n(page, number(in, page), __ATOMIC_RELEASE);
		break;
	case 1:
		__atomic_store_n(slot, number(in, page) << 8 | byte(in), __ATOMIC_RELEASE);
		break;
	case 2:
		__atomic_store_n(slot + 1, number(in, page), __ATOMIC_RELEASE);
		break;
	case 3:		/* a record as it should be, that is not done */
		slot = page + 1 + 2 * ((page[0] + 1) % SLOTS);
		__atomic_store_n(slot, (page[0] + 1) << 8 | (at & 127), __ATOMIC_RELEASE);
		__atomic_store_n(page, page[0] + 1, __ATOMIC_RELEASE);
		break;
	}
}

static void stands(struct program *in, uint8_t n)
{
	uint64_t *page = nothers ? others[(n >> 3) % nothers].page : NULL;
	uint8_t slot = byte(in);
	uint64_t v = page ? number(in, page) : 0;

	if (!page)
		return;
	page += 1 + 2 * SLOTS;
	__atomic_store_n(n & 4 ? &page[1 + slot % SLOTS] : page, v, __ATOMIC_RELEASE);
}

/* Another process takes an owner number, if that is free. */
static void joins(uint8_t n, uint8_t owner)
{
	struct flock l = { .l_type = n & 128 ? F_UNLCK : F_WRLCK, .l_whence = SEEK_SET,
			   .l_start = owner, .l_len = 1 };

	if (nothers && others[n % nothers].fd >= 0)
		fcntl(others[n % nothers].fd, F_OFD_SETLK, &l);
}

static uint64_t seq;

/* Calls fn with a[len]. Its results, or -errno. */
static int call(int (*fn)(struct call *k), const void *a, uint32_t len)
{
	struct call k = { .c = { .session = &session, .data = a, .len = len }, .cpl = 1 };
	uint64_t bit;
	int rc;

	for (seq = 0; seq < 64; seq++)
		if (!(__atomic_load_n(&asked, __ATOMIC_ACQUIRE) & 1ull << seq))
			break;
	if (seq == 64)
		return -EBUSY;
	k.seq = seq;
	bit = 1ull << seq;
	__atomic_fetch_or(&asked, bit, __ATOMIC_RELEASE);
	rc = fn(&k);
	MUST(rc == CALL_LATER || rc <= 0);
	MUST(rc >= 0 || k.c.why);
	if (rc != CALL_LATER)
		MUST(__atomic_fetch_and(&asked, ~bit, __ATOMIC_ACQ_REL) & bit);
	return rc;
}

static void step(struct program *in)
{
	uint8_t op = byte(in), n = byte(in);
	uint64_t event = 1 + n % (EVENTS + (n >> 7)), ctx = n == 255;
	struct sv_ipc_on on = { ctx, event, n >> 4 & 1 };
	struct sv_sync_on of = { .ctx = ctx, .on = event };
	struct sv_ipc_event open = { ctx, event, { SV_IPC_MAGIC, SV_IPC_VERSION, SV_IPC_EVENT,
		{ n & 64 ? 0x33 : 0 }, { 0 }, 0, 0, 0 } };

	switch (op % 16) {
	case 0:
		call(do_ipc_event_get, &of, sizeof(of));
		break;
	case 1:
		offered = byte(in);
		if (n & 32)
			((uint8_t *)&open.h)[byte(in) % sizeof(open.h)] ^= byte(in);
		call(do_ipc_event_open, &open, sizeof(open));
		break;
	case 2: case 3:
		call(do_ipc_record, &on, sizeof(on));
		break;
	case 4: case 5:
		if (nvalues < WAITS)
			call(do_ipc_wait, &on, sizeof(on));
		break;
	case 6:
		call(do_ipc_query, &of, sizeof(of));
		break;
	case 7:
		call(do_ipc_sync, &of, sizeof(of));
		break;
	case 8:
		call(do_ipc_event_end, &(struct sv_ipc_end){ event }, sizeof(struct sv_ipc_end));
		break;
	case 9: case 10:
		write_page(in, n);
		break;
	case 11:
		device = n & 1 ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
		device_runs(n >> 1);
		break;
	case 12:
		joins(n, byte(in));
		break;
	case 13:
		if (nothers)
			dies(&others[n % nothers]);
		break;
	case 14:
		fail = n | (byte(in) & 1) << 8;
		break;
	case 15:
		if (n & 2)		/* a peer says anything of what stands */
			stands(in, n);
		else if (n & 4 && told_ones)
			told_ones->say(told_ones, n & 8, 0);
		else if (n & 4)
			cover_any = n & 8;
		else if (n & 1)
			ipc_repin(&session);
		else
			sched_yield();
		looks_outside();
		break;
	}
}

static int lowest_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	close(fd);
	return fd;
}

static bool waits_are_over(void)
{
	if (__atomic_load_n(&asked, __ATOMIC_ACQUIRE))
		return false;
	for (unsigned int i = 0; i < nvalues; i++)
		if (__atomic_load_n(values[i].at, __ATOMIC_ACQUIRE) < values[i].value)
			return false;
	return true;
}

static void wait_until(bool (*fn)(void), const char *what)
{
	const struct timespec ms = { 0, 1000000 };

	for (int i = 0; i < 10; i++)
		if (fn())
			return;
		else
			sched_yield();
	for (int i = 0; i < 5000 && !fn(); i++)
		nanosleep(&ms, NULL);
	if (fn())
		return;
	fprintf(stderr, "this never happens: %s\n", what);
	abort();
}

static int fd_before;

static bool fds_are_closed(void)
{
	return lowest_fd() == fd_before;
}

static void begin(void)
{
	struct cuda_driver *d = &session.hal.drv;

	d->cuEventRecord = m_record;
	d->cuEventQuery = m_query;
	d->cuStreamWaitEvent = m_wait;
	d->cuStreamWaitValue64_v2 = m_value;
	d->cuStreamCreate = m_stream;
	d->cuStreamDestroy_v2 = m_stream_end;
	d->cuCtxSetCurrent = m_current;
	for (int i = 0; i < 2; i++)
		streams[i].real = (CUstream)&streams[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct program in = { data, data + size };

	if (!streams[0].real)
		begin();
	fail = 0;
	nvalues = 0;
	cover_any = false;
	twice = false;
	fd_before = lowest_fd();
	while (in.p < in.end)
		step(&in);
	fail = 0;
	device_runs(WAITS);
	for (unsigned int i = 0; i < nothers; i++) {
		dies(&others[i]);
		for (int slot = 0; slot < SLOTS && twice; slot++)
			__atomic_store_n(&others[i].page[2 + 2 * slot], ~0ull, __ATOMIC_RELEASE);
	}
	wait_until(waits_are_over, "a wait ends when all others are dead");
	wait_until(looks_outside, "what is said of a record ends with it");
	for (uint64_t e = 1; e <= EVENTS; e++)
		while (!call(do_ipc_event_end, &(struct sv_ipc_end){ e }, sizeof(struct sv_ipc_end)))
			;
	for (unsigned int i = 0; i < nothers; i++)
		munmap(others[i].page, PAGE);
	nothers = 0;
	wait_until(fds_are_closed, "the last file of an event is closed");
	MUST(!streams[0].refs && !streams[1].refs);
	return 0;
}
