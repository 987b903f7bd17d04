// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_control.c - libFuzzer over both ends of a control socket, control.c and control_client.c
 *
 * An input is a program for a small machine. A hostile conductor connects to the real listener and
 * sends messages that are nearly right, with descriptors that nobody asked for; it may send several
 * before it reads, or leave at any moment. A consumer thread executes requests as a proxy does, over
 * a session that aborts on a call out of order. Or a hostile proxy answers the real ctl_call().
 *
 * Checked after each input: a request has exactly one reply, of its op, with a sentence that ends;
 * a frozen session is thawed when the conductor has gone; no descriptor is left over.
 *
 * The data of control.c is in sections that are copied back while both its threads are parked.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "common.h"
#include "content.h"
#include "control.h"
#include "control_i.h"
#include "device_memory.h"
#include "handover.h"
#include "log.h"
#include "rebuild.h"
#include "session.h"
#include "stat_i.h"
#include "../../harness/fuzz.h"

#define PATIENCE_S	20
#define FDS		64

int fuzz_accept4(int sock, struct sockaddr *a, socklen_t *len, int flags);

static struct sv_shared shared;
static struct sv_session session = { .shared = &shared };
static struct uproxy_stat stats;
static struct singvgpu_geometry geometry = { .log_len = 1u << 20 };

/* libFuzzer's timer interrupts any thread. */
static void wait_for(sem_t *s)
{
	while (sem_wait(s))
		;
}

/* ------------------------------------------------------------------------------ the session */

/* What a session is, as the calls have left it. Consumer, or all threads are parked. */
static struct {
	bool there, frozen, dead;
	bool started;		/* its client has been told to go */
	bool store, writer, flushed;
} is;

/* What the input wants the calls to return; set while no request is under way. */
static struct {
	unsigned int fail;	/* bit n: the n-th kind of call fails */
	unsigned int steps;	/* of progress in a call */
	bool kmod;
} wants;

enum { F_FREEZE, F_POSSIBLE, F_STORE, F_WRITER, F_DEVICE, F_OBSERVED, F_KEPT, F_CHANNEL, F_FLUSH,
       F_REPLAY, F_CLIENT_FD, F_WATCH, F_THAW, F_COMMS, F_CLAIMS };

static int result(int what, struct why *why)
{
	if (!(wants.fail & 1u << what))
		return 0;
	return why ? why_set(why, -EIO, "call %d has failed", what) : -EIO;
}

static int steps(const struct content_progress *p)
{
	int rc = 0;

	for (unsigned int i = 0; i < wants.steps && !rc; i++)
		rc = p->fn(p->arg, "a phase", i, wants.steps);
	MUST(!rc || rc == -ECANCELED);
	return rc;
}

int freeze_possible(struct sv_session *s, struct why *why)
{
	MUST(s == &session && is.there && !is.frozen);
	return result(F_POSSIBLE, why) ? -ENOTSUP : 0;
}
int freeze(struct sv_session *s, const struct ctl_freeze *how,
	   int (*tell)(uint64_t done, uint64_t total), uint64_t *ns, struct why *why)
{
	int rc = 0;

	MUST(how->h.op == CTL_FREEZE);
	MUST(s == &session && is.there && !is.frozen);
	for (unsigned int i = 0; i < wants.steps && !rc; i++)
		rc = tell(i, wants.steps);
	if (!rc)
		rc = result(F_FREEZE, why);
	if (!rc) {
		is.frozen = true;
		*ns = 1;
	}
	return rc;
}
int at_step(struct sv_session *s, const struct ctl_step *how, int fd,
	    int (*tell)(uint64_t done, uint64_t total), struct ctl_stepped *to, struct why *why)
{
	int rc = 0;

	MUST(how->h.op == CTL_STEP && fd >= 0);
	MUST(s == &session && is.there && !is.frozen);
	for (unsigned int i = 0; i < wants.steps && !rc; i++)
		rc = tell(i, 0);
	to->items = 1;
	return rc ?: result(F_FREEZE, why);
}
int thaw(struct sv_session *s)
{
	int rc = is.started ? 0 : result(F_THAW, NULL);

	MUST(s == &session && is.there && is.frozen);
	is.frozen = rc;
	is.started = !rc;
	return rc;
}
int store_open(struct store **st, const char *dir, unsigned int flags, struct why *why)
{
	int rc = result(F_STORE, why);

	MUST(is.frozen && !is.store && flags == STORE_RW && strlen(dir) < CTL_PATH_MAX);
	is.store = !rc;
	*st = rc ? NULL : (struct store *)&is;
	return rc;
}
void store_close(struct store *st)
{
	MUST(st && is.store && !is.writer);
	is.store = false;
}
int store_writer_open(struct store *st, unsigned int flags, struct store_writer **w)
{
	int rc = result(F_WRITER, NULL);

	MUST(st && is.store && !flags);
	is.writer = !rc;
	is.flushed = false;
	*w = rc ? NULL : (struct store_writer *)&is;
	return rc;
}
int store_writer_claims(struct store_writer *w, int fd, int (*wait)(void *arg), void *arg)
{
	(void)fd;
	MUST(w && is.writer && !is.flushed && wait && arg == w);
	return result(F_CLAIMS, NULL);
}
void store_writer_close(struct store_writer *w)
{
	MUST(!w || is.writer);
	is.writer = false;
}
int store_writer_flush(struct store_writer *w)
{
	MUST(w && is.writer && !is.flushed);
	is.flushed = true;
	return result(F_FLUSH, NULL);
}
void store_writer_stats(const struct store_writer *w, struct store_writer_stats *st)
{
	MUST(w && is.flushed);
	*st = (struct store_writer_stats){ .in = 1 };
}
const struct why *store_why(void)
{
	static const struct why why = { -EIO, "the store's reason" };

	return &why;
}
int store_failed(struct why *why, int err)
{
	return err ? why_set(why, err, "%s", store_why()->text) : 0;
}
void stat_why(struct sv_session *s, const struct why *why)
{
	MUST(s == &session && why->err);
}
static int dumps(int what, struct store_ref *ref, const struct content_progress *p, struct why *why)
{
	int rc = p ? steps(p) : 0;

	MUST(is.frozen && is.writer && !is.flushed);
	memset(ref, 1, sizeof(*ref));
	return rc ?: result(what, why);
}
int content_dump(struct sv_session *s, struct store *st, struct store_writer *w,
		 struct store_ref *device, const struct content_progress *p,
		 struct content_stats *stats_, struct why *why)
{
	MUST(s == &session && st && w);
	stats_->copied = 1;
	return dumps(F_DEVICE, device, p, why);
}
int observe_dump(struct sv_session *s, struct store_writer *w, struct store_ref *observed,
		 struct why *why)
{
	MUST(s == &session && w);
	return dumps(F_OBSERVED, observed, NULL, why);
}
bool comm_seat(uint32_t *seat)
{
	*seat = 3;
	return true;
}
int comms_dump(struct sv_session *s, struct store_writer *w, struct store_ref *comms,
	       struct store_ref *board, struct why *why)
{
	MUST(s == &session && w);
	memset(board, 1, sizeof(*board));
	return dumps(F_COMMS, comms, NULL, why);
}
int kept_dump(struct store_writer *w, uint64_t since_ns, struct store_ref *ref, struct why *why)
{
	(void)since_ns;
	MUST(w);
	return dumps(F_KEPT, ref, NULL, why);
}
int content_channel(struct sv_session *s, struct store_writer *w, struct store_ref *channel,
		    struct store_ref *arena, const struct content_progress *p, struct why *why)
{
	MUST(s == &session && w);
	memset(arena, 1, sizeof(*arena));
	return dumps(F_CHANNEL, channel, p, why);
}
int replay_session(struct sv_session *s, const struct session_options *o,
		   const struct ctl_restore *from, int home, const struct content_progress *p,
		   struct ctl_restored *to, struct why *why)
{
	int rc;

	MUST(s == &session && o && !is.there && !is.dead);
	MUST(home < 0 || from->guest == 1);
	MUST(strlen(from->dir) < CTL_PATH_MAX && strlen(from->was.name) < sizeof(from->was.name));
	rc = steps(p) ?: result(F_REPLAY, why);
	is.dead = rc || from->check;
	is.there = is.frozen = !is.dead;
	to->records = 1;
	return rc;
}
bool common_on;		/* the device is not shared */

bool crowd_waited(void)
{
	return false;
}

const struct vmm *window_vmm(void)
{
	return NULL;
}

void handover_at(const char *control)
{
	MUST(*control == '/');
}
/* It fails: after it the process only stays. */
int handover_offer(struct sv_session *s, const struct store_ref *device)
{
	MUST(s == &session && is.there && is.frozen && device->b[0]);
	return -EIO;
}
void handover_stay(void)
{
	abort();
}
void replay_device(struct hal *h, struct ctl_device *d)
{
	MUST(h == &session.hal);
	*d = (struct ctl_device){ .name = "fuzz" };
}
void share_client(struct sv_session *s, int pidfd)
{
	MUST(s == &session && fcntl(pidfd, F_GETFD) >= 0);
}
int ring_watch_peer(struct ring *r, int pidfd)
{
	MUST(r && is.there && fcntl(pidfd, F_GETFD) >= 0);
	close(pidfd);
	return result(F_WATCH, NULL);
}
int ring_client_fd(struct ring *r)
{
	MUST(r && is.there);
	return result(F_CLIENT_FD, NULL) ? -EMFILE : open("/dev/null", O_RDONLY | O_CLOEXEC);
}
int ring_fd(const struct ring *r)
{
	MUST(r);
	return 0;
}
enum ring_backend ring_backend(const struct ring *r)
{
	MUST(r);
	return wants.kmod ? RING_KMOD : RING_MEMFD;
}
const struct singvgpu_geometry *ring_geometry(const struct ring *r)
{
	MUST(r);
	return &geometry;
}
const uint8_t *ring_id(const struct ring *r)
{
	MUST(r);
	return (const uint8_t *)"0123456789abcdef";
}
uint32_t ring_generation(const struct ring *r)
{
	MUST(r);
	return 1;
}
size_t ring_log_bytes(const struct ring *r)
{
	MUST(r);
	return 8;
}
int ring_peer_gone(struct ring *r)
{
	MUST(r && is.there);
	return 0;
}
const char *ring_strerror(int err)
{
	return strerror(err < 0 ? -err : err);
}
uint64_t window_bytes(uint64_t *pins)
{
	*pins = 4096;
	return 4096;
}
const char *session_backend(const struct sv_session *s)
{
	MUST(s == &session);
	return "memfd";
}
void uproxy_say(const char *fmt, ...)
{
	(void)fmt;
}
void stat_device(struct sv_session *s, const char *name)
{
	MUST(s == &session && strlen(name) < sizeof(((struct ctl_device *)0)->name));
}

void stat_state(struct sv_session *s, uint32_t state)
{
	__atomic_store_n(&s->state, state, __ATOMIC_RELEASE);
}
uint64_t now_ns(void)
{
	static uint64_t t;

	return __atomic_add_fetch(&t, 100000000, __ATOMIC_RELAXED);
}

/* ------------------------------------------------------------------------------ threads */

static sem_t may_serve, kicked, waiting, served;
static bool over;		/* the input has ended; atomic */

void ring_kick(struct ring *r)
{
	MUST(r);
	sem_post(&kicked);
}

int fuzz_accept4(int sock, struct sockaddr *a, socklen_t *len, int flags)
{
	sem_post(&waiting);
	return accept4(sock, a, len, flags);
}

static void *consumer(void *arg)
{
	for (;;) {
		wait_for(&may_serve);
		/* As proxy.c does where there is no session yet. */
		if (!control_restore(&session)) {
			stat_state(&session, UPROXY_SERVING);
			while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
				if (control_posted())
					control_run(&session);
				wait_for(&kicked);
			}
			while (control_posted())
				control_run(&session);
			stat_state(&session, UPROXY_ENDED);
		}
		sem_post(&served);
	}
	return arg;
}

/* Weak: a section without data is not there. */
extern __attribute__((weak)) uint8_t __start_svbss[], __stop_svbss[], __start_svdata[],
	__stop_svdata[];
static uint8_t *saved_bss, *saved_data;
static char path[64];

__attribute__((no_sanitize("address"))) static void move(uint8_t *to, const uint8_t *from, size_t n)
{
	while (n--)
		*(volatile uint8_t *)to++ = *from++;
}

static void clean(void)
{
	unlink(path);
}

static void begin(void)
{
	static struct session_options options;
	size_t bss = __stop_svbss - __start_svbss, data = __stop_svdata - __start_svdata;
	pthread_t t;

	sem_init(&may_serve, 0, 0);
	sem_init(&kicked, 0, 0);
	sem_init(&waiting, 0, 0);
	sem_init(&served, 0, 0);
	session.stat = &stats;
	snprintf(path, sizeof(path), "/tmp/fuzz-control-%d", getpid());
	MUST(!control_open(&session, &options, path));
	atexit(clean);
	session.ring = (struct ring *)&session;
	MUST(!pthread_create(&t, NULL, consumer, NULL));
	wait_for(&waiting);
	saved_bss = malloc(bss + 1);
	saved_data = malloc(data + 1);
	move(saved_bss, __start_svbss, bss);
	move(saved_data, __start_svdata, data);
}

static void show_fds(void)
{
	char link[40], name[200];

	for (int fd = 0; fd < FDS; fd++) {
		ssize_t n;

		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, name, sizeof(name) - 1);
		if (n > 0)
			fprintf(stderr, "fd %d is %.*s\n", fd, (int)n, name);
	}
}

/* ------------------------------------------------------------------------------ the input */

union any {
	struct ctl_head h;
	struct ctl_freeze freeze;
	struct ctl_store store;
	struct ctl_restore restore;
	struct ctl_go go;
	struct ctl_step step;
	struct ctl_reply reply;
	struct ctl_info info;
	struct ctl_stepped stepped;
	struct ctl_dumped dumped;
	struct ctl_restored restored;
	struct ctl_progress progress;
	uint8_t bytes[20000];
};

static const uint16_t sizes[] = { sizeof(struct ctl_head), sizeof(struct ctl_head),
	sizeof(struct ctl_freeze), sizeof(struct ctl_store), sizeof(struct ctl_store),
	sizeof(struct ctl_head), sizeof(struct ctl_restore), sizeof(struct ctl_go),
	sizeof(struct ctl_step), sizeof(struct ctl_head) };

/* A request that an honest conductor could send, changed at some places. Its bytes. */
static uint32_t request(struct program *in, union any *m)
{
	uint8_t how = byte(in);
	uint32_t op = how % 8 ? how % 8 : how & 32 ? CTL_STAY : CTL_STEP, len = sizes[op];

	memset(m, 0, sizeof(*m));
	m->h = (struct ctl_head){ CTL_MAGIC, CTL_VERSION, op, len };
	if (op == CTL_DUMP || op == CTL_CHANNEL || op == CTL_RESTORE)
		memcpy(m->store.dir, "/store", 7);
	if (op == CTL_GO)
		m->go.client_pid = getpid();
	for (int i = how >> 3 & 3; i; i--) {
		uint16_t at = raw(in, 2);

		m->bytes[at % (at >> 15 ? len : 64)] = byte(in);
	}
	if (how & 64)		/* a text without its end, perhaps */
		memset(m->bytes + sizeof(m->h), 'x', raw(in, 2) % 2048);
	if (how & 128) {	/* another size, or an older or newer conductor's */
		len = raw(in, 2) % sizeof(*m);
		if (byte(in) & 1)
			m->h.size = len;
	}
	return len;
}

static int send_with_fds(int sock, const void *p, size_t len, int n)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(8 * sizeof(int))];
	} c = { .h = { .cmsg_len = CMSG_LEN(n * sizeof(int)), .cmsg_level = SOL_SOCKET,
		       .cmsg_type = SCM_RIGHTS } };
	struct iovec v = { (void *)p, len };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = n ? &c : NULL,
			    .msg_controllen = n ? CMSG_SPACE(n * sizeof(int)) : 0 };
	int fds[8] = { 0 };

	memcpy(CMSG_DATA(&c.h), fds, n * sizeof(int));
	return sendmsg(sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ------------------------------------------------------------------------------ a hostile conductor */

static int dial(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct timeval t = { .tv_sec = PATIENCE_S };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(a.sun_path, path, strlen(path));
	MUST(sock >= 0 && !connect(sock, (struct sockaddr *)&a, sizeof(a)));
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	return sock;
}

/* The sizes of replies, by op. */
static uint32_t reply_size(uint32_t op)
{
	switch (op) {
	case CTL_INFO:
		return sizeof(struct ctl_info);
	case CTL_FREEZE:
		return sizeof(struct ctl_frozen);
	case CTL_DUMP:
	case CTL_CHANNEL:
		return sizeof(struct ctl_dumped);
	case CTL_RESTORE:
		return sizeof(struct ctl_restored);
	case CTL_STEP:
		return sizeof(struct ctl_stepped);
	}
	return sizeof(struct ctl_reply);
}

/* Receives messages up to the reply to op. Returns its status, or 1: the proxy has hung up. */
static int await(int sock, uint32_t op)
{
	char room[CMSG_SPACE(sizeof(int))];
	union any m;
	struct iovec v = { &m, sizeof(m) };
	struct msghdr h;
	ssize_t n;

	do {
		h = (struct msghdr){ .msg_iov = &v, .msg_iovlen = 1, .msg_control = room,
				     .msg_controllen = sizeof(room) };
		do		/* libFuzzer has a timer */
			n = recvmsg(sock, &h, MSG_CMSG_CLOEXEC);
		while (n < 0 && errno == EINTR);
		if (!n || (n < 0 && errno == ECONNRESET))
			return 1;
		MUST(n >= (ssize_t)sizeof(m.h) && m.h.magic == CTL_MAGIC && m.h.size == n);
		MUST(m.h.version == CTL_VERSION);
		if (m.h.op == CTL_PROGRESS && op != CTL_PROGRESS)
			MUST(n == sizeof(m.progress) &&
			     strnlen(m.progress.phase, sizeof(m.progress.phase)) <
			     sizeof(m.progress.phase));
	} while (m.h.op == CTL_PROGRESS && op != CTL_PROGRESS);
	MUST(m.h.op == op && m.reply.status <= 0);
	MUST((uint32_t)n == reply_size(op) || n == sizeof(m.reply));
	MUST(strnlen(m.reply.why, sizeof(m.reply.why)) < sizeof(m.reply.why));
	MUST(!m.reply.status || *m.reply.why);
	if (CMSG_FIRSTHDR(&h)) {
		int fd;

		MUST(op == CTL_RESTORE && !m.reply.status);
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof(fd));
		close(fd);
	}
	return m.reply.status;
}

static void conduct(struct program *in)
{
	uint32_t owed[8];
	union any m;
	int sock = dial(), n = 0, rc = 0;

	while (in->p < in->end && rc != 1) {
		uint8_t how = byte(in);
		uint32_t len;

		if (how == 255)
			break;		/* it leaves without reading what it is owed */
		if (!n) {
			wants.fail = how & 16 ? raw(in, 2) : 0;
			wants.steps = how & 32 ? byte(in) % 8 : 0;
			wants.kmod = how & 64;
		}
		len = request(in, &m);
		/* A message of no bytes cannot be told from the end. */
		if (send_with_fds(sock, &m, len ? len : 1, how & 7) < 0)
			break;
		/* A byte with descriptors is no request, and has no answer: ctl_give. */
		if (len <= 1 && how & 7)
			continue;
		/* Of a head that is cut short the proxy has what has come. */
		if (len < sizeof(m.h))
			memset(m.bytes + len, 0, sizeof(m.h) - len);
		owed[n++] = m.h.op;
		if (how & 8 && n < 8)
			continue;	/* the next follows at once */
		for (int i = 0; i < n && rc != 1; i++)
			rc = await(sock, owed[i]);
		n = 0;
	}
	close(sock);
}

/* ------------------------------------------------------------------------------ a hostile proxy */

static void told(void *arg, const struct ctl_progress *p)
{
	(void)arg;
	MUST(strnlen(p->phase, sizeof(p->phase)) < sizeof(p->phase));
}

static void answer_hostile(struct program *in, int sock)
{
	union any m;

	for (int i = 0; i < 4 && in->p < in->end; i++) {
		uint8_t how = byte(in);
		uint32_t op = how & 1 ? CTL_PROGRESS : byte(in) % 10, len;

		memset(&m, how & 16 ? 'x' : 0, sizeof(m));
		len = how & 1 ? sizeof(m.progress) : reply_size(op);
		m.h = (struct ctl_head){ CTL_MAGIC, CTL_VERSION, op, len };
		if (how & 2)
			len = m.h.size = raw(in, 2) % sizeof(m);
		if (how & 4) {
			uint16_t at = raw(in, 2);

			m.bytes[at % (at >> 15 ? sizeof(m) : 32)] = byte(in);
		}
		if (how & 8)
			len = raw(in, 2) % sizeof(m);
		send_with_fds(sock, &m, len, how >> 5);
	}
}

static void call(struct program *in)
{
	struct timeval t = { .tv_sec = PATIENCE_S };
	union { struct ctl_reply r; struct ctl_info i; struct ctl_restored d; } reply;
	uint8_t how = byte(in);
	int pair[2], passed = -1, rc;
	union any m;
	uint32_t op;

	MUST(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	answer_hostile(in, pair[1]);
	if (how & 1)
		shutdown(pair[1], SHUT_WR);
	op = how >> 1 & 7 ?: CTL_INFO;
	memset(&m, 0, sizeof(m));
	m.h.op = op;
	m.h.size = sizes[op];
	memset(&reply, 0xa5, sizeof(reply));
	rc = ctl_call(pair[0], &m.h, &reply.r, how & 16 ? sizeof(reply.r) : sizeof(reply),
		      how & 32 ? told : NULL, NULL, how & 64 ? &passed : NULL, 0);
	MUST(rc == reply.r.status);
	MUST(strnlen(reply.r.why, sizeof(reply.r.why)) < sizeof(reply.r.why));
	MUST(passed < 0 || how & 64);
	if (passed >= 0)
		close(passed);
	close(pair[0]);
	close(pair[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct program in = { data, data + size };
	uint8_t how = byte(&in);
	int fd;

	if (!saved_bss)
		begin();
	fd = open_fds(FDS);
	if (how & 2) {
		call(&in);
		MUST(open_fds(FDS) == fd);
		return 0;
	}
	move(__start_svbss, saved_bss, __stop_svbss - __start_svbss);
	move(__start_svdata, saved_data, __stop_svdata - __start_svdata);
	memset(&is, 0, sizeof(is));
	memset(&wants, 0, sizeof(wants));
	memset(&stats, 0, sizeof(stats));
	session.state = UPROXY_STARTING;
	while (!sem_trywait(&kicked))
		;
	__atomic_store_n(&over, false, __ATOMIC_RELEASE);
	sem_post(&may_serve);
	if (how & 1) {		/* most inputs want a session that runs */
		union any m = { .restore = { .h = { CTL_MAGIC, CTL_VERSION, CTL_RESTORE,
						    sizeof(m.restore) } } };
		union any g = { .go = { .h = { CTL_MAGIC, CTL_VERSION, CTL_GO, sizeof(g.go) },
					.client_pid = getpid() } };
		int sock = dial();

		MUST(send(sock, &m, sizeof(m.restore), 0) > 0 && !await(sock, CTL_RESTORE));
		MUST(send(sock, &g, sizeof(g.go), 0) > 0 && !await(sock, CTL_GO));
		close(sock);
		wait_for(&waiting);
	}
	conduct(&in);
	wait_for(&waiting);	/* the listener has posted CTL_GONE, and that is done */
	__atomic_store_n(&over, true, __ATOMIC_RELEASE);
	sem_post(&kicked);
	wait_for(&served);
	MUST(!is.frozen || !is.started);
	MUST(!is.store && !is.writer && !control_posted());
	if (open_fds(FDS) != fd)
		show_fds();
	MUST(open_fds(FDS) == fd);
	return 0;
}
