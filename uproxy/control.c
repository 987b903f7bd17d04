// SPDX-License-Identifier: Apache-2.0
/*
 * control.c - the socket on which a conductor asks a session to freeze, to be saved, to be restored
 *
 *   listener thread   accept ─► a request ─► post ── ring_kick ─► waits, watches the conductor
 *   consumer          control_run: executes it, answers it; while frozen it waits here for the next
 *
 * The consumer alone touches the session. When the conductor goes away, the listener posts
 * CTL_GONE: a frozen session is thawed, and a proxy that waits for a restore or its CTL_GO ends.
 * A message is checked when it has been copied as a whole. The peer is our own user or root.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "atstep.h"
#include "comm_i.h"
#include "common.h"
#include "content.h"
#include "control.h"
#include "control_i.h"
#include "crowd.h"
#include "device_memory.h"
#include "fail.h"
#include "handover.h"
#include "log.h"
#include "rebuild.h"
#include "session.h"
#include "stat_i.h"

#define CTL_GONE	0x200u		/* the conductor has gone; posted by the listener */
#define LOOK_MS		100
#define PROGRESS_NS	500000000ull
#define SEND_SECONDS	10

union message {
	struct ctl_head h;
	struct ctl_freeze freeze;
	struct ctl_store store;
	struct ctl_restore restore;
	struct ctl_go go;
	struct ctl_step step;
};

static struct {
	struct sv_session *s;
	const struct session_options *options;
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
	dev_t dev;		/* of the socket at the path */
	ino_t ino;
	int listen;
	bool closed;		/* nobody shall connect any more; atomic */
	int conn;		/* the conductor's, -1: none. Changed by the listener between requests */
	uint32_t gone;		/* the conductor has gone; atomic */
	uint32_t posted;	/* m waits for the consumer; changed under lock, atomic */
	uint32_t state;		/* enum ctl_state, 0: a restore has failed; consumer */
	uint64_t told_ns;	/* of the last progress message; consumer */
	enum { NO_KEEP, KEEP, KEPT } keep;	/* KEEP: CTL_DUMP asks for it. KEPT: CTL_CHANNEL has followed, so that
						 * CTL_STAY may come; consumer */
	struct store_ref kept;	/* the device's object; consumer */
	union message m;	/* the consumer's while posted is set, else the listener's */
	int given;		/* the descriptor that came before m, or -1; like m */
	struct lock lock;
	pthread_cond_t change;	/* of posted */
} ctl = { .listen = -1, .conn = -1, .given = -1, .lock = LOCK_INIT(PROXY_CONTROL),
	  .change = PTHREAD_COND_INITIALIZER };

/* ------------------------------------------------------------------------------ messages */

static int reply(struct ctl_reply *r, uint32_t size, uint32_t op, int fd)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} c = { { 0 } };
	struct iovec v = { r, size };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	ssize_t n;

	r->h = (struct ctl_head){ CTL_MAGIC, CTL_VERSION, op, size };
	if (fd >= 0) {
		m.msg_control = c.room;
		m.msg_controllen = sizeof(c.room);
		c.align = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
					    .cmsg_len = CMSG_LEN(sizeof(int)) };
		memcpy(CMSG_DATA(&c.align), &fd, sizeof(fd));
	}
	lock_may_wait("the conductor");
	do {
		n = sendmsg(ctl.conn, &m, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n == size ? 0 : -EPIPE;
}

static void answer(uint32_t op, const struct why *why)
{
	struct ctl_reply r = { .status = 0 };

	ctl_reply_why(&r, why);
	reply(&r, sizeof(r), op, -1);
}

static void refuse(uint32_t op, int status, const char *text)
{
	struct why why = { 0 };

	why_set(&why, status, "%s", text);
	answer(op, &why);
}

static bool given_up(void)
{
	return __atomic_load_n(&ctl.gone, __ATOMIC_RELAXED);
}

static int progress(void *arg, const char *phase, uint64_t done, uint64_t total)
{
	struct ctl_progress p = { .h = { CTL_MAGIC, CTL_VERSION, CTL_PROGRESS, sizeof(p) },
				  .done = done, .total = total };
	uint64_t now = now_ns();

	(void)arg;
	if (given_up())
		return -ECANCELED;
	if (now - ctl.told_ns < PROGRESS_NS)
		return 0;
	ctl.told_ns = now;
	snprintf(p.phase, sizeof(p.phase), "%s", phase);
	/* A progress message may be lost. */
	return send(ctl.conn, &p, sizeof(p), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EPIPE ?
		-ECANCELED : 0;
}

/* A drain has no limit while there is progress, so the conductor gets messages about it. */
static int tell_drain(uint64_t done, uint64_t total)
{
	return progress(NULL, "drain", done, total);
}

static int tell_step(uint64_t done, uint64_t total)
{
	return progress(NULL, "step", done, total);
}

static const struct content_progress tell_progress = { .fn = progress };

/* ------------------------------------------------------------------------------ CTL_INFO */

static void describe_channel(struct sv_session *s, char *inherit, size_t n, uint64_t *dev,
			     uint64_t *ino)
{
	char link[64], name[256];
	struct stat st;
	ssize_t len;
	char *end;

	if (fstat(ring_fd(s->ring), &st))
		return;
	*dev = st.st_dev;
	*ino = st.st_ino;
	if (ring_backend(s->ring) != RING_MEMFD)
		return;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", ring_fd(s->ring));
	len = readlink(link, name, sizeof(name) - 1);
	if (len <= 0)
		return;
	name[len] = 0;
	end = strstr(name, " (deleted)");
	if (end)
		*end = 0;
	if (strlen(name) < n)
		memcpy(inherit, name, strlen(name) + 1);
}

static void info(struct sv_session *s)
{
	struct ctl_info i = { .state = ctl.state, .proxy_pid = getpid() };
	uint32_t seat;
	struct why why = { 0 };
	uint32_t op = CTL_INFO;

	if (!ctl.state || ctl.state == CTL_STATE_EMPTY) {
		i.state = CTL_STATE_EMPTY;
		why_set(&why, -ENODATA, "there is no session yet");
		ctl_reply_why(&i.r, &why);
		i.r.status = 0;		/* it is an answer all the same */
		reply(&i.r, sizeof(i), op, -1);
		return;
	}
	i.can_dump = ctl.state == CTL_STATE_FROZEN || ctl.state == CTL_STATE_RESTORED ||
		     !freeze_possible(s, &why);
	ctl_reply_why(&i.r, &why);
	i.r.status = 0;
	i.client_pid = s->client;
	replay_device(&s->hal, &i.device);
	snprintf(i.driver, sizeof(i.driver), "%.1023s", s->hal.path);
	i.window = s->hal.window;
	i.window_len = s->hal.window_len;
	i.budget = s->budget;
	i.mapped = window_bytes(&i.pinned);
	i.peak = __atomic_load_n(&s->stat->device_peak, __ATOMIC_RELAXED);
	i.arena_len = s->arena_len;
	i.log_bytes = ring_log_bytes(s->ring);
	i.log_room = ring_geometry(s->ring)->log_len / 2;
	snprintf(i.backend, sizeof(i.backend), "%s", session_backend(s));
	memcpy(i.channel_id, ring_id(s->ring), 16);
	memcpy(i.home, s->home.id, sizeof(i.home));
	i.seat = comm_seat(&seat) ? (int32_t)seat : -1;
	i.logical = s->shared->device + 1;
	i.devices = s->shared->devices;
	i.turns = s->hal.own_memory && !window_vmm();	/* common_join() has the last word */
	i.crowded = crowd_waited();
	i.generation = ring_generation(s->ring);
	describe_channel(s, i.inherit, sizeof(i.inherit), &i.fd_dev, &i.fd_ino);
	reply(&i.r, sizeof(i), op, -1);
}

/* ------------------------------------------------------------------------------ a dump */

static void do_freeze(struct sv_session *s, const struct ctl_freeze *m)
{
	struct ctl_frozen r = { .drain_ns = 0 };
	struct why why = { 0 };

	if (ctl.state == CTL_STATE_FROZEN)
		why_set(&why, -EALREADY, "the session is frozen already");
	else if (m->at_step && ctl.state != CTL_STATE_AT_STEP)
		why_set(&why, -EINVAL, "the session does not stand at the end of a step");
	else if (!freeze(s, m, tell_drain, &r.drain_ns, &why))
		ctl.state = CTL_STATE_FROZEN;
	if (ctl.state == CTL_STATE_AT_STEP)
		ctl.state = CTL_STATE_RUNNING;
	ctl_reply_why(&r.r, &why);
	reply(&r.r, sizeof(r), CTL_FREEZE, -1);
}

static void do_step(struct sv_session *s, const struct ctl_step *m)
{
	struct ctl_stepped r = { .items = 0 };
	struct why why = { 0 };

	if (ctl.state != CTL_STATE_RUNNING)
		why_set(&why, -EINVAL, "there is no session that runs");
	else if (!at_step(s, m, ctl.given, tell_step, &r, &why))
		ctl.state = CTL_STATE_AT_STEP;
	ctl_reply_why(&r.r, &why);
	reply(&r.r, sizeof(r), CTL_STEP, -1);
}

static void put_ref(struct ctl_ref *to, const struct store_ref *from)
{
	_Static_assert(sizeof(*to) == sizeof(*from), "a ref");
	memcpy(to, from, sizeof(*to));
}

static int dump_device(struct sv_session *s, struct store *st, struct store_writer *w,
		       uint64_t since_ns, struct ctl_dumped *d, struct why *why)
{
	struct store_ref device = { { 0 } }, observed = { { 0 } }, session = { { 0 } };
	struct store_ref comms = { { 0 } }, board = { { 0 } };
	struct content_stats stats = { 0 };
	int rc;

	rc = content_dump(s, st, w, &device, &tell_progress, &stats, why);
	if (!rc)
		rc = observe_dump(s, w, &observed, why);
	if (!rc)
		rc = kept_dump(w, since_ns, &session, why);
	if (!rc)
		rc = comms_dump(s, w, &comms, &board, why);
	put_ref(&d->device, &device);
	put_ref(&d->observed, &observed);
	put_ref(&d->session, &session);
	put_ref(&d->comms, &comms);
	put_ref(&d->board, &board);
	d->read_bytes = stats.copied;
	return rc;
}

static int dump_channel(struct sv_session *s, struct store_writer *w, struct ctl_dumped *d,
			struct why *why)
{
	struct store_ref channel = { { 0 } }, arena = { { 0 } };
	int rc = content_channel(s, w, &channel, &arena, &tell_progress, why);

	put_ref(&d->channel, &channel);
	put_ref(&d->arena, &arena);
	return rc;
}

/* While the proxies wait for each other's pages, the conductor hears of this one. */
static int wait_for_others(void *arg)
{
	struct store_writer_stats st;

	store_writer_stats(arg, &st);
	return progress(NULL, "device", st.in, st.in);
}

static int dump_into(struct sv_session *s, const struct ctl_store *m, struct ctl_dumped *d,
		     struct why *why)
{
	struct store_writer_stats stats = { 0 };
	struct store_writer *w = NULL;
	struct store *st;
	int rc = store_open(&st, m->dir, STORE_RW, why);

	if (rc)
		return rc;
	rc = store_failed(why, store_writer_open(st, 0, &w));
	if (!rc && m->claims)
		rc = store_failed(why, store_writer_claims(w, ctl.given, wait_for_others, w));
	if (!rc)
		rc = m->h.op == CTL_DUMP ? dump_device(s, st, w, m->since_ns, d, why) :
					   dump_channel(s, w, d, why);
	if (!rc)
		rc = store_failed(why, store_writer_flush(w));
	if (!rc)
		store_writer_stats(w, &stats);
	d->bytes = stats.in;
	d->zero_bytes = stats.zero;
	d->new_bytes = stats.stored;
	d->fresh_bytes = stats.fresh;
	store_writer_close(w);
	store_close(st);
	return rc;
}

static void dump(struct sv_session *s, const struct ctl_store *m)
{
	struct ctl_dumped d = { .bytes = 0 };
	uint64_t begin = now_ns();
	struct why why = { 0 };

	if (ctl.state != CTL_STATE_FROZEN)
		why_set(&why, -EINVAL, "the session is not frozen");
	else
		why_text(&why, dump_into(s, m, &d, &why), "");
	ctl_reply_why(&d.r, &why);
	if (!why.err && m->h.op == CTL_DUMP) {
		ctl.keep = m->keep ? KEEP : NO_KEEP;
		memcpy(&ctl.kept, &d.device, sizeof(ctl.kept));
	}
	if (!why.err && m->h.op == CTL_CHANNEL && ctl.keep == KEEP)
		ctl.keep = KEPT;
	d.ns = now_ns() - begin;
	reply(&d.r, sizeof(d), m->h.op, -1);
}

static void do_thaw(struct sv_session *s)
{
	if (ctl.state != CTL_STATE_FROZEN && ctl.state != CTL_STATE_AT_STEP)
		return;
	ctl.keep = NO_KEEP;
	if (ctl.state == CTL_STATE_FROZEN)
		thaw(s);
	ctl.state = CTL_STATE_RUNNING;
}

/* The job is moved and its processes are dead: offers the device's memory to the proxy of its next life. */
static void stay(struct sv_session *s)
{
	struct why why = { 0 };
	int rc = ctl.state == CTL_STATE_FROZEN && ctl.keep == KEPT && !common_on ? handover_offer(s, &ctl.kept) : -EINVAL;

	if (rc)
		why_set(&why, rc, "the session's memory cannot be handed over: %s", strerror(-rc));
	answer(CTL_STAY, &why);
	if (rc)
		return;		/* it ends with its client */
	control_close();	/* another conductor shall not wait for us */
	handover_stay();
}

/* ------------------------------------------------------------------------------ a restore */

static void do_restore(struct sv_session *s, const struct ctl_restore *m)
{
	struct ctl_restored r = { .generation = 0 };
	struct why why = { 0 };
	int fd = -1, rc;

	if (ctl.state != CTL_STATE_EMPTY) {
		refuse(CTL_RESTORE, -EINVAL,
		       ctl.state ? "this proxy has a session already" :
				   "a restore has failed in this proxy: start another one");
		return;
	}
	rc = replay_session(s, ctl.options, m, m->guest ? ctl.given : -1, &tell_progress, &r, &why);
	if (!rc && m->check) {
		ctl.state = 0;
		reply(&r.r, sizeof(r), CTL_RESTORE, -1);
		return;
	}
	/* The module's client end is made by the client; its guests map the arena by this one. */
	if (!rc) {
		fd = ring_backend(s->ring) == RING_MEMFD ? ring_client_fd(s->ring) :
			fcntl(ring_fd(s->ring), F_DUPFD_CLOEXEC, 0);
		rc = fd == -1 ? -errno : fd < 0 ? fd : 0;
		if (rc)
			why_set(&why, rc, "the client's end of the channel: %s", ring_strerror(rc));
		if (ring_backend(s->ring) == RING_MEMFD)
			memset(r.cookie, 0, sizeof(r.cookie));
	}
	if (why_text(&why, rc, "")) {
		uproxy_say("cannot restore: %s", why.text);
		stat_why(s, &why);
		ctl_reply_why(&r.r, &why);
		ctl.state = 0;		/* a partial session: it cannot be used */
		reply(&r.r, sizeof(r), CTL_RESTORE, -1);
		return;
	}
	ctl.state = CTL_STATE_RESTORED;
	stat_device(s, r.device.name);
	stat_state(s, UPROXY_FROZEN);
	memcpy(r.channel_id, ring_id(s->ring), 16);
	r.generation = ring_generation(s->ring);
	describe_channel(s, r.inherit, sizeof(r.inherit), &r.fd_dev, &r.fd_ino);
	reply(&r.r, sizeof(r), CTL_RESTORE, fd);
	if (fd >= 0)
		close(fd);
}

static int go(struct sv_session *s, pid_t pid, struct why *why)
{
	int pidfd, rc;

	if (ctl.state != CTL_STATE_RESTORED)
		return why_set(why, -EINVAL, "nothing was restored here");
	pidfd = pid > 0 ? syscall(SYS_pidfd_open, pid, 0) : -1;
	if (pidfd < 0) {
		rc = pid > 0 ? -errno : -EINVAL;
		return why_set(why, rc, "cannot watch the client, process %d: %s", pid,
			       strerror(-rc));
	}
	share_client(s, pidfd);
	rc = ring_watch_peer(s->ring, pidfd);
	if (!rc) {
		s->client = s->stat->client = pid;
		rc = thaw(s);
	}
	if (rc)
		return why_set(why, rc, "%s", ring_strerror(rc));
	ctl.state = CTL_STATE_RUNNING;
	return 0;
}

/* ------------------------------------------------------------------------------ consumer */

bool control_posted(void)
{
	/* pairs with post() */
	return __atomic_load_n(&ctl.posted, __ATOMIC_ACQUIRE);
}

static void execute(struct sv_session *s)
{
	struct why why = { 0 };

	ctl.told_ns = now_ns();
	switch (ctl.m.h.op) {
	case CTL_INFO:
		info(s);
		break;
	case CTL_FREEZE:
		if (ctl.state == CTL_STATE_RUNNING || ctl.state == CTL_STATE_FROZEN ||
		    ctl.state == CTL_STATE_AT_STEP)
			do_freeze(s, &ctl.m.freeze);
		else
			refuse(CTL_FREEZE, -EINVAL, "there is no session that runs");
		break;
	case CTL_STEP:
		do_step(s, &ctl.m.step);
		break;
	case CTL_DUMP:
	case CTL_CHANNEL:
		dump(s, &ctl.m.store);
		break;
	case CTL_THAW:
		do_thaw(s);
		answer(CTL_THAW, &why);
		break;
	case CTL_RESTORE:
		do_restore(s, &ctl.m.restore);
		break;
	case CTL_GO:
		go(s, ctl.m.go.client_pid, &why);
		answer(CTL_GO, &why);
		break;
	case CTL_STAY:
		stay(s);
		break;
	case CTL_GONE:
		do_thaw(s);
		break;
	}
}

/* The request has been executed: the listener may go on. */
static void finished(void)
{
	lock_take(&ctl.lock);
	__atomic_store_n(&ctl.posted, 0, __ATOMIC_RELEASE);
	pthread_cond_broadcast(&ctl.change);
	lock_drop(&ctl.lock);
}

static void until(struct timespec *t, unsigned int ms)
{
	clock_gettime(CLOCK_MONOTONIC, t);
	t->tv_nsec += ms * 1000000l;
	t->tv_sec += t->tv_nsec / 1000000000;
	t->tv_nsec %= 1000000000;
}

/* Is a request posted, now or within LOOK_MS? */
static bool wait_posted(void)
{
	struct timespec t;
	bool is;

	until(&t, LOOK_MS);
	lock_take(&ctl.lock);
	if (!ctl.posted)
		lock_wait_until(&ctl.lock, &ctl.change, &t);
	is = ctl.posted;
	lock_drop(&ctl.lock);
	return is;
}

void control_run(struct sv_session *s)
{
	execute(s);
	finished();
	while (ctl.state == CTL_STATE_FROZEN || ctl.state == CTL_STATE_AT_STEP) {
		if (wait_posted()) {
			execute(s);
			finished();
		} else if ((ring_peer_gone(s->ring) && ctl.keep != KEPT) || session_failed(s)) {
			do_thaw(s);
		}
	}
}

int control_restore(struct sv_session *s)
{
	uint32_t op;

	while (ctl.state != CTL_STATE_RUNNING) {
		if (!wait_posted())
			continue;
		op = ctl.m.h.op;
		execute(s);
		finished();
		if (op == CTL_GONE)
			return -ECONNRESET;
	}
	return 0;
}

/* ------------------------------------------------------------------------------ listener */

static bool hung_up(int fd)
{
	struct pollfd p = { fd, POLLRDHUP, 0 };

	return poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

/* Waits until the consumer has executed ctl.m, and notices if the conductor goes away meanwhile. */
static void post(void)
{
	struct timespec t;

	lock_take(&ctl.lock);
	__atomic_store_n(&ctl.posted, 1, __ATOMIC_RELEASE);
	pthread_cond_broadcast(&ctl.change);
	lock_drop(&ctl.lock);
	lock_take(&ctl.lock);
	while (ctl.posted) {
		/*
		 * A consumer that waits for records needs a kick, again if it was about to wait; pairs with
		 * stat_state().
		 */
		if (__atomic_load_n(&ctl.s->state, __ATOMIC_ACQUIRE) == UPROXY_SERVING)
			ring_kick(ctl.s->ring);
		until(&t, LOOK_MS);
		lock_wait_until(&ctl.lock, &ctl.change, &t);
		if (ctl.posted && hung_up(ctl.conn))
			__atomic_store_n(&ctl.gone, 1, __ATOMIC_RELAXED);
	}
	lock_drop(&ctl.lock);
}

static uint32_t size_of(uint32_t op)
{
	switch (op) {
	case CTL_INFO:
	case CTL_THAW:
	case CTL_STAY:
		return sizeof(struct ctl_head);
	case CTL_FREEZE:
		return sizeof(struct ctl_freeze);
	case CTL_DUMP:
	case CTL_CHANNEL:
		return sizeof(struct ctl_store);
	case CTL_RESTORE:
		return sizeof(struct ctl_restore);
	case CTL_GO:
		return sizeof(struct ctl_go);
	case CTL_STEP:
		return sizeof(struct ctl_step);
	}
	return 0;
}

static bool text_ends(const char *text, size_t n)
{
	return strnlen(text, n) < n;
}

/* Checks a message of n bytes. */
static int check(ssize_t n, bool cut, struct why *why)
{
	const struct ctl_head *h = &ctl.m.h;

	if (n < (ssize_t)sizeof(*h) || h->magic != CTL_MAGIC)
		return why_set(why, -EPROTO, "the message is no request");
	if (h->version != CTL_VERSION)
		return why_set(why, -EPROTONOSUPPORT, "the conductor speaks version %u of the protocol, "
			       "this proxy version %u", h->version, CTL_VERSION);
	if (cut || h->size != n)
		return why_set(why, -EPROTO, "the size in the request is not the message's");
	if (!size_of(h->op))
		return why_set(why, -ENOSYS, "this proxy does not know the request");
	if ((h->op == CTL_DUMP || h->op == CTL_CHANNEL) && !text_ends(ctl.m.store.dir, CTL_PATH_MAX))
		return why_set(why, -EPROTO, "a path in the request has no NUL");
	if ((h->op == CTL_DUMP || h->op == CTL_CHANNEL) &&
	    (ctl.m.store.pad || ctl.m.store.claims > (h->op == CTL_DUMP && ctl.given >= 0)))
		return why_set(why, -EPROTO, "the request lacks the table of pages that it speaks of");
	if ((h->op == CTL_DUMP || h->op == CTL_CHANNEL) && (ctl.m.store.pad2 || ctl.m.store.keep > 1))
		return why_set(why, -EPROTO, "padding in the request is not zero");
	if (h->op == CTL_RESTORE && (!text_ends(ctl.m.restore.dir, CTL_PATH_MAX) ||
				     !text_ends(ctl.m.restore.was.name, sizeof(ctl.m.restore.was.name))))
		return why_set(why, -EPROTO, "a text in the request has no NUL");
	if (h->op == CTL_RESTORE && (ctl.m.restore.guest > 1 ||
				     (ctl.m.restore.guest && ctl.given < 0)))
		return why_set(why, -EPROTO, "the request lacks the channel that it is a guest of");
	if (h->op == CTL_STEP && ctl.given < 0)
		return why_set(why, -EPROTO, "the request lacks the meeting that it speaks of");
	if (h->op == CTL_FREEZE && (ctl.m.freeze.pad || ctl.m.freeze.at_step > 1))
		return why_set(why, -EPROTO, "padding in the request is not zero");
	if (h->op == CTL_GO && ctl.m.go.pad)
		return why_set(why, -EPROTO, "padding in the request is not zero");
	return 0;
}

static void drop_given(void)
{
	if (ctl.given >= 0)
		close(ctl.given);
	ctl.given = -1;
}

/* Is the message a byte that brings a descriptor? It is then kept for the next request. */
static bool take_given(struct msghdr *m, ssize_t n)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(m);

	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return false;
	drop_given();
	memcpy(&ctl.given, CMSG_DATA(c), sizeof(ctl.given));
	return n == 1;
}

/* Serves one conductor until it goes away or sends an invalid message. */
static void converse(void)
{
	for (;;) {
		char room[CMSG_SPACE(sizeof(int))];
		struct iovec v = { &ctl.m, sizeof(ctl.m) };
		/* Room for one descriptor: CMSG_SPACE's padding would take a second one. */
		struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = room,
				    .msg_controllen = CMSG_LEN(sizeof(int)) };
		struct why why = { 0 };
		ssize_t n;

		memset(&ctl.m, 0, sizeof(ctl.m));	/* what an older one does not send */
		lock_may_wait("the conductor");
		n = recvmsg(ctl.conn, &m, MSG_CMSG_CLOEXEC);
		if ((n < 0 && errno == EINTR) || (n > 0 && take_given(&m, n)))
			continue;
		if (n <= 0)
			break;
		if (check(n, m.msg_flags & MSG_TRUNC, &why)) {
			answer(ctl.m.h.op, &why);
			break;
		}
		post();
		drop_given();
		if (given_up())
			break;
	}
	drop_given();
}

static bool allowed(int fd)
{
	struct ucred u = { 0 };
	socklen_t len = sizeof(u);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &len) && (!u.uid || u.uid == geteuid());
}

static void *listener(void *arg)
{
	struct timeval limit = { .tv_sec = SEND_SECONDS };
	int fd;

	for (;;) {
		fd = accept4(ctl.listen, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0) {
			if (errno == EINTR || errno == ECONNABORTED)
				continue;
			if (!__atomic_load_n(&ctl.closed, __ATOMIC_RELAXED))
				uproxy_say("cannot listen for conductors any more: %s", strerror(errno));
			return arg;
		}
		if (!allowed(fd)) {
			close(fd);
			continue;
		}
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
		ctl.conn = fd;
		__atomic_store_n(&ctl.gone, 0, __ATOMIC_RELAXED);
		converse();
		__atomic_store_n(&ctl.gone, 1, __ATOMIC_RELAXED);
		ctl.m.h.op = CTL_GONE;
		post();
		ctl.conn = -1;
		close(fd);
	}
}

int control_open(struct sv_session *s, const struct session_options *o, const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct stat st;
	pthread_t t;
	int rc;

	if (strlen(path) >= sizeof(a.sun_path))
		return -ENAMETOOLONG;
	memcpy(a.sun_path, path, strlen(path));
	handover_at(path);
	ctl.s = s;
	ctl.options = o;
	ctl.state = s->ring ? CTL_STATE_RUNNING : CTL_STATE_EMPTY;
	ctl.listen = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (ctl.listen < 0)
		return -errno;
	unlink(path);	/* of a proxy that was killed */
	/* Nobody can connect before listen(), and the mode is set before that. */
	rc = bind(ctl.listen, (struct sockaddr *)&a, sizeof(a)) || chmod(path, 0600) ||
	     listen(ctl.listen, 4) ? -errno : 0;
	if (!rc && !stat(path, &st)) {
		memcpy(ctl.path, path, strlen(path));
		ctl.dev = st.st_dev;
		ctl.ino = st.st_ino;
	}
	if (!rc)
		rc = -pthread_create(&t, NULL, listener, NULL);
	if (rc) {
		close(ctl.listen);
		ctl.listen = -1;
		return rc;
	}
	pthread_detach(t);
	return 0;
}

void control_close(void)
{
	struct stat st;

	/* In the job's next life the path is another proxy's. */
	if (*ctl.path && !stat(ctl.path, &st) && st.st_dev == ctl.dev && st.st_ino == ctl.ino)
		unlink(ctl.path);
	__atomic_store_n(&ctl.closed, true, __ATOMIC_RELAXED);
	if (ctl.listen >= 0)
		shutdown(ctl.listen, SHUT_RDWR);
	if (ctl.conn >= 0)
		shutdown(ctl.conn, SHUT_RDWR);
}
