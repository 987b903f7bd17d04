// SPDX-License-Identifier: Apache-2.0
/*
 * take.c - the conductor of a checkpoint: proxies, CRIU and the store, in ckpt_take.h's order
 *
 * docs/checkpoint.md has the order of all that happens. Each proxy has a thread here, which asks it to freeze and then
 * to dump; the main thread has CRIU dump the tree, and frozen() joins the others. A channel can change until the
 * tree is frozen, so it is dumped after that: still() tells the threads. The first failure sets take.why, and the
 * other threads then give up.
 *
 * CRIU takes some 0.1 s to get ready, in which the job runs on. The gates are closed only when CRIU is about to freeze
 * the tree (ready()). If a stream waits for an act of the program in the first attempt, later attempts close the
 * gates before they start CRIU, since most of them will come to nothing.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ckpt_bring.h"
#include "ckpt_save.h"
#include "ckpt_past.h"
#include "ckpt_take.h"
#include "criu.h"
#include "meeting.h"

#define SILENCE_MS	60000	/* between two messages of a proxy */
#define STAY_MS		1000	/* for a proxy to answer CTL_STAY */
#define TRIES		16	/* since processes of the job may end meanwhile */
#define HELD_TRIES	32	/* a stream may wait for a thread that waits at a gate: so many attempts ... */
#define HELD_SHARE	64	/* ... wait for this part of --freeze each, and the last one for all of it */
#define ENDING_MS	3000	/* for a process to end after its session */
#define STEP_TRIES	3	/* attempts that wait for the end of a step */
#define HOLD_MS		60000	/* for another checkpoint, or a restore of the job, to end ... */
#define HOLD_SLICE_MS	100	/* ... in slices */

static volatile int ckpt_signalled;	/* the signal that came, or 0 */

struct take;

struct worker {
	struct take *t;
	struct ckpt_proxy *p;
	int fd;			/* to the proxy */
	pid_t client, proxy;
	bool gone;		/* proxy and client have ended */
	pthread_t thread;
	bool started;
	struct phase *phase;
	struct ctl_stepped stepped;
	struct ctl_dumped dumped, channel;
};

struct take {
	const struct rundir_job *job;
	const struct take_options *o;
	struct take_result *r;
	struct phases *ps;
	struct criu criu;
	struct ckpt_hold hold;
	struct save save;
	struct worker *w;
	int n;
	int workers;		/* n, before the job went on */
	uint64_t deadline;	/* now_ms(); 0: none */
	uint64_t held_ms;	/* ctl_freeze's */
	uint64_t cut, seats[CTL_SEATS / 64];	/* struct ctl_freeze's */
	struct phase *criu_phase;
	bool stands;		/* stand_still() has been called */
	bool step;		/* it waits for the end of a step before that */
	int meeting_fd;		/* of the proxies' meeting, or -1 */
	struct meeting *meeting;
	bool published;		/* the manifest is there, and was not removed again */
	bool noted;		/* this attempt has written `checkpointed`, or tried to */
	bool alone, met, filled, empty;	/* struct criu_dump's */
	const struct criu_dump *dump;	/* while the tree is frozen */
	int claims;		/* fd of store_claims_make(); -1: there is one proxy, which shares no pages */

	pthread_mutex_t lock;	/* of what follows */
	struct why why;
	pthread_cond_t told;
	bool still;		/* the tree is frozen */
	bool over;		/* CRIU has ended */
};

/* Keeps the reason of the first failure. Returns err. */
static int fail(struct take *t, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static int fail(struct take *t, int err, const char *fmt, ...)
{
	va_list ap;

	pthread_mutex_lock(&t->lock);
	va_start(ap, fmt);
	why_vset(&t->why, err, fmt, ap);
	va_end(ap);
	pthread_mutex_unlock(&t->lock);
	return err;
}

static void on_signal(int sig)
{
	ckpt_signalled = sig;
}

void ckpt_heed_signals(void)
{
	struct sigaction a = { .sa_handler = on_signal };

	sigaction(SIGINT, &a, NULL);
	sigaction(SIGTERM, &a, NULL);
	sigaction(SIGHUP, &a, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);	/* writes fail with -EFBIG instead */
}

/* An error, a signal or the deadline: -errno; else 0. */
static int stopped(struct take *t)
{
	int err = __atomic_load_n(&t->why.err, __ATOMIC_RELAXED);
	char at[256];

	if (err)
		return err;
	if (ckpt_signalled)
		return fail(t, -ECANCELED, "it was ended by SIG%s",
			    sigabbrev_np(ckpt_signalled) ?: "?");
	if (t->deadline && now_ms() >= t->deadline)
		return fail(t, -ETIMEDOUT, "it has not ended within %g s (--timeout)%s%s",
			    t->o->timeout_ms / 1e3,
			    phases_line(t->ps, at, sizeof(at)) ? "; it was at: " : "", at);
	return 0;
}

static bool is_stopped(void *arg)
{
	return stopped(arg);
}

/* How long a wait of ms may be, so that it does not go beyond the deadline. */
static long within(const struct take *t, long ms)
{
	uint64_t now = now_ms();
	long left = !t->deadline ? ms : t->deadline > now ? (long)(t->deadline - now) : 0;

	return left < ms ? left : ms;
}

/* ----------------------------------------------------------------------------- proxies */

static void on_progress(void *arg, const struct ctl_progress *p)
{
	struct worker *w = arg;

	if (w->phase)
		phase_counts(w->t->ps, w->phase, p->done, p->total,
			     !strcmp(p->phase, "drain") ? "operations" :
			     !strcmp(p->phase, "step") ? "repetitions" : NULL);
	/* A proxy that reports progress for ever must not outlast the deadline. */
	if (stopped(w->t))
		shutdown(w->fd, SHUT_RDWR);
}

/* Waits for a client whose proxy has hung up: they end together. */
static bool ends(pid_t client)
{
	for (int ms = 0; ms < ENDING_MS && !family_has_ended(client); ms += 10)
		usleep(10000);
	return family_has_ended(client);
}

/* Waits until a proxy ends, or stays for the next life of a job that was moved. */
static bool leaves(struct take *t, int rank, int serial, pid_t proxy)
{
	char path[PATH_MAX + 40];

	rundir_path(path, sizeof(path), t->job->path, RUNDIR_KEPT, rank, serial);
	for (int ms = 0; ms < ENDING_MS && !stopped(t); ms += 10) {
		if (family_has_ended(proxy) || !access(path, F_OK))
			return true;
		usleep(10000);
	}
	return false;
}

static int call(struct worker *w, struct ctl_head *req, uint32_t op, uint32_t size,
		struct ctl_reply *reply, uint32_t cap, int silence_ms)
{
	int err;

	req->op = op;
	req->size = size;
	err = ctl_call(w->fd, req, reply, cap, on_progress, w, NULL, silence_ms);
	/* If the attempt has stopped, it was join_all() that has hung up, and not the proxy. */
	if (err == -EPIPE && !__atomic_load_n(&w->t->why.err, __ATOMIC_RELAXED) && ends(w->client)) {
		/* A proxy may stay for what others have not received yet: the next attempt names it. */
		w->gone = leaves(w->t, w->p->rank, w->p->serial, w->proxy);
		if (w->gone && (op == CTL_INFO || op == CTL_FREEZE))
			return err;
		err = -ERESTART;	/* or CRIU dumps the client already */
	}
	if (err)
		fail(w->t, err, "the proxy of rank %d, process %d: %s", w->p->rank,
		     w->p->info.proxy_pid, reply->why);
	return err;
}

/* A request that is its head alone. */
static int say_only(struct worker *w, uint32_t op, int silence_ms)
{
	struct ctl_head req = { .op = op, .size = sizeof(req) };
	struct ctl_reply reply = { 0 };

	return ctl_call(w->fd, &req, &reply, sizeof(reply), NULL, NULL, NULL, silence_ms);
}

/* Runs fn in a thread for each proxy; phase: the name of its phases, or NULL: it has none. */
static int start_all(struct take *t, void *(*fn)(void *), const char *phase)
{
	for (int i = 0; i < t->n; i++) {
		struct worker *w = &t->w[i];
		int err;

		w->phase = phase ? phase_begin(t->ps, "%s %d-%d", phase, w->p->rank, w->p->serial) : NULL;
		err = -pthread_create(&w->thread, NULL, fn, w);
		if (err)
			return fail(t, err, "a thread: %s", strerror(-err));
		w->started = true;
	}
	return 0;
}

/* Has CRIU been killed while it waits until all stand still? Then the attempt fails. */
static bool is_useless(struct take *t)
{
	pid_t criu = t->dump && !t->stands ? t->dump->criu_pid : 0;

	if (!criu || !family_has_ended(criu))
		return false;
	fail(t, -ECHILD, "CRIU has ended before it was to dump");
	return true;
}

static int join_all(struct take *t)
{
	bool shut = false;

	for (int i = 0; i < t->n; i++) {
		struct timespec at;

		while (t->w[i].started) {
			clock_gettime(CLOCK_MONOTONIC, &at);
			at.tv_nsec += 50000000;
			at.tv_sec += at.tv_nsec / 1000000000;
			at.tv_nsec %= 1000000000;
			if (!pthread_clockjoin_np(t->w[i].thread, NULL, CLOCK_MONOTONIC, &at))
				t->w[i].started = false;
			else if ((stopped(t) || is_useless(t)) && !shut)
				for (int k = shut = true; k <= t->n; k++)
					shutdown(t->w[k - 1].fd, SHUT_RDWR);
		}
	}
	return stopped(t);
}

/* A proxy that finds no step's end does not fail the checkpoint: all proxies are then cut where they are. */
static void *step_one(void *arg)
{
	struct worker *w = arg;
	struct ctl_step req = { .h = { .op = CTL_STEP, .size = sizeof(req) },
				.limit_ms = w->t->o->step_ms };
	struct ctl_reply *r = &w->stepped.r;

	r->status = ctl_give(w->fd, w->t->meeting_fd);
	if (!r->status)
		ctl_call(w->fd, &req.h, r, sizeof(w->stepped), on_progress, w, NULL, SILENCE_MS);
	/* Nobody tells the other proxies that this one is gone, so the meeting fails for them. */
	if (r->status)
		meeting_fail(w->t->meeting);
	phase_end(w->t->ps, w->phase, 0, 0, 0);
	return NULL;
}

static int make_meeting(struct take *t)
{
	struct meeting m = { .magic = MEETING_MAGIC, .members = t->n };

	t->meeting_fd = memfd_create("singvgpu-step", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (t->meeting_fd >= 0 && write(t->meeting_fd, &m, sizeof(m)) == sizeof(m) &&
	    !fcntl(t->meeting_fd, F_ADD_SEALS, MEETING_SEALS))
		t->meeting = mmap(NULL, sizeof(m), PROT_READ | PROT_WRITE, MAP_SHARED, t->meeting_fd, 0);
	if (t->meeting && t->meeting != MAP_FAILED)
		return 0;
	t->meeting = NULL;
	return fail(t, errno ? -errno : -EIO, "a page for the proxies' meeting: %s", strerror(errno));
}

/* Has all proxies run on to the end of a step, or says in the result why they do not stand there. */
static int step_together(struct take *t)
{
	const struct worker *who = NULL;
	int err = make_meeting(t);

	if (!err)
		err = start_all(t, step_one, "step");
	err = join_all(t) ?: err;
	for (int i = 0; i < t->n && !err; i++) {
		const struct ctl_reply *r = &t->w[i].stepped.r;
		int status = r->status;

		/*
		 * -ENOSYS: the proxy is of an older version, and has hung up. Else it has not answered this request: it
		 * has ended, or hangs, and a late answer would be taken for that to the next request. So connect anew.
		 */
		if (status == -ENOSYS || (status && r->h.op != CTL_STEP))
			err = -ERESTART;
		if (status && (!who || who->stepped.r.status == -ECANCELED))
			who = &t->w[i];
	}
	t->r->at_step = !err && !who && t->n;
	for (int i = 0; i < t->n && t->r->at_step; i++)
		if (t->w[i].stepped.stood_ns > t->ps->early_ns)
			t->ps->early_ns = t->w[i].stepped.stood_ns;
	if (who)
		snprintf(t->r->not_at_step, sizeof(t->r->not_at_step), "rank %d: %s", who->p->rank,
			 who->stepped.r.why);
	else if (!t->n)
		snprintf(t->r->not_at_step, sizeof(t->r->not_at_step), "it uses no GPU");
	return err;
}

static void *freeze_one(void *arg)
{
	struct worker *w = arg;
	struct ctl_freeze req = { .idle_ms = w->t->o->freeze_ms, .held_ms = w->t->held_ms,
				  .cut = w->t->cut, .at_step = w->t->r->at_step };
	struct ctl_frozen reply = { 0 };
	int err;

	memcpy(req.seats, w->t->seats, sizeof(req.seats));
	err = call(w, &req.h, CTL_FREEZE, sizeof(req), &reply.r, sizeof(reply),
		   w->t->o->freeze_ms + SILENCE_MS);

	phase_end(w->t->ps, w->phase, 0, 0, w->gone ? 0 : err);
	return NULL;
}

static int dump_device(struct worker *w)
{
	struct ctl_store req = { 0 };
	struct ctl_dumped *d = &w->dumped;
	int err;

	memset(d, 0, sizeof(*d));
	snprintf(req.dir, sizeof(req.dir), "%.*s", CTL_PATH_MAX - 1, w->t->r->store);
	/* The times of files are those of a coarse clock: a second earlier, to be sure. */
	req.since_ns = w->t->job->started_ns - 1000000000;
	/* If the fd cannot be passed the proxy is gone, and the call below says so. */
	req.claims = w->t->claims >= 0 && !ctl_give(w->fd, w->t->claims);
	req.keep = w->t->o->keep;
	err = call(w, &req.h, CTL_DUMP, sizeof(req), &d->r, sizeof(*d), SILENCE_MS);
	phase_end(w->t->ps, w->phase, d->bytes, d->new_bytes, err);
	w->p->device = d->device;
	w->p->observed = d->observed;
	w->p->session = d->session;
	w->p->comms = d->comms;
	return err;
}

static void tell_workers(struct take *t, bool *what)
{
	pthread_mutex_lock(&t->lock);
	*what = true;
	pthread_cond_broadcast(&t->told);
	pthread_mutex_unlock(&t->lock);
}

/* Waits until the tree is frozen. False: it runs on. */
static bool wait_still(struct take *t)
{
	bool over;

	pthread_mutex_lock(&t->lock);
	while (!t->still && !t->over)
		pthread_cond_wait(&t->told, &t->lock);
	over = t->over;
	pthread_mutex_unlock(&t->lock);
	return !over;
}

static void dump_channel(struct worker *w)
{
	struct ctl_store req = { 0 };
	struct ctl_dumped *d = &w->channel;
	int err;

	w->phase = phase_begin(w->t->ps, "channel %d-%d", w->p->rank, w->p->serial);
	memset(d, 0, sizeof(*d));
	snprintf(req.dir, sizeof(req.dir), "%.*s", CTL_PATH_MAX - 1, w->t->r->store);
	err = call(w, &req.h, CTL_CHANNEL, sizeof(req), &d->r, sizeof(*d), SILENCE_MS);
	phase_end(w->t->ps, w->phase, d->bytes, d->new_bytes, err);
	w->p->channel = d->channel;
	w->p->arena = d->arena;
}

static void *dump_one(void *arg)
{
	struct worker *w = arg;

	if (!dump_device(w) && wait_still(w->t))
		dump_channel(w);
	return NULL;
}

/* Ranks hold copies of the same parameters. Their proxies dump at once, and by these claims store only one copy. */
static int share_pages(struct take *t)
{
	uint64_t bytes = 0;
	int err;

	if (t->n < 2)
		return 0;
	for (int i = 0; i < t->n; i++)
		bytes += t->w[i].p->info.mapped;
	err = store_claims_make(t->save.store, bytes, &t->claims);
	return err ? fail(t, err, "%s", store_says(err)) : 0;
}

/* Reads what a proxy reports of itself, before any change. */
static void *look_at_proxy(void *arg)
{
	struct worker *w = arg;
	struct ctl_head req = { 0 };
	struct ckpt_proxy *p = w->p;

	if (!call(w, &req, CTL_INFO, sizeof(req), &p->info.r, sizeof(p->info), SILENCE_MS) && !p->info.can_dump)
		fail(w->t, -ENOTSUP, "the GPU session of process %d cannot be dumped: %s", p->info.client_pid,
		     p->info.r.why);
	return NULL;
}

/*
 * A number for this cut, and the seats that take part. The proxies drain together, since one rank's operation may
 * start when another one posts it; board_cut() tells when all have drained.
 */
static void choose_cut(struct take *t)
{
	while (!t->cut)
		if (getrandom(&t->cut, sizeof(t->cut), 0) != sizeof(t->cut))
			t->cut = wall_ns() ^ (uint64_t)getpid() << 40;
	for (int i = 0; i < t->n; i++) {
		int32_t seat = t->w[i].p->info.seat;

		if (seat >= 0 && seat < CTL_SEATS)
			t->seats[seat / 64] |= 1ull << (seat % 64);
	}
}

static void forget_gone(struct take *t)
{
	struct ckpt_proxy *p = t->save.facts.proxy;
	int left = 0;

	for (int i = 0; i < t->n; i++) {
		if (t->w[i].gone) {
			close(t->w[i].fd);
			continue;
		}
		t->w[left] = t->w[i];
		p[left] = p[i];
		t->w[left].p = &p[left];
		left++;
	}
	t->n = t->workers = t->save.facts.proxies = left;
}

/*
 * The client has ended. Its proxy ends, too, when nobody needs any more what the client has sent into buffers; until
 * then that would be missing in a checkpoint.
 */
static int lets_go(struct take *t, const struct rundir_proxy *p)
{
	if (leaves(t, p->rank, p->serial, p->pid) || stopped(t))
		return stopped(t);
	return fail(t, -ENOTSUP, "process %d of rank %d has ended, and others have not received all that it has "
		    "sent them, which its proxy %d keeps: checkpoint again when they have", p->client, p->rank,
		    p->pid);
}

static int connect_proxies(struct take *t)
{
	struct save *s = &t->save;
	char path[PATH_MAX + 32];
	int err;

	t->w = calloc(s->job.proxies + 1, sizeof(*t->w));
	s->facts.proxy = calloc(s->job.proxies + 1, sizeof(*s->facts.proxy));
	if (!t->w || !s->facts.proxy)
		return fail(t, -ENOMEM, "no memory");
	for (int i = 0; i < s->job.proxies; i++) {
		const struct rundir_proxy *from = &s->job.proxy[i];
		struct ckpt_proxy *p = &s->facts.proxy[t->n];
		struct worker *w = &t->w[t->n];
		struct why why = { 0 };
		int fd;

		if (stopped(t))
			return stopped(t);
		rundir_path(path, sizeof(path), t->job->path, RUNDIR_CONTROL, from->rank, from->serial);
		fd = ctl_connect_within(path, within(t, LONG_MAX), &why);
		if ((fd == -ENOENT || fd == -ECONNREFUSED) && ends(from->client)) {
			err = lets_go(t, from);
			if (err)
				return err;
			continue;
		}
		if (fd < 0)
			return stopped(t) ?: fail(t, fd, "the proxy of rank %d, process %d: %s", from->rank,
						  from->pid, why.text);
		*p = (struct ckpt_proxy){ .rank = from->rank, .serial = from->serial };
		*w = (struct worker){ .t = t, .p = p, .fd = fd, .client = from->client,
				     .proxy = from->pid };
		p->client = save_inner_pid(from->client);
		t->n++;
		s->facts.proxies = t->n;
	}
	/* In threads: a proxy that does not answer cannot hold up the deadline. */
	err = start_all(t, look_at_proxy, NULL);
	err = join_all(t) ?: err;
	if (!err)
		forget_gone(t);
	return err;
}

/* -------------------------------------------------------------------------------- tree */

static void add(struct take_result *r, uint64_t bytes, uint64_t zeros, uint64_t fresh, uint64_t stored)
{
	r->bytes += bytes;
	r->zeros += zeros;
	r->fresh += fresh;
	r->stored += stored;
}

/* The bytes of all that has been saved up to now. */
static void count(struct take *t)
{
	struct take_result *r = t->r;
	struct store_writer_stats st;

	r->bytes = r->zeros = r->fresh = r->stored = 0;
	save_stats(&t->save, &st);
	add(r, st.in, st.zero, st.fresh, st.stored);
	for (int i = 0; i < t->workers && t->w; i++) {
		const struct ctl_dumped *d = &t->w[i].dumped, *c = &t->w[i].channel;

		add(r, d->bytes, d->zero_bytes, d->fresh_bytes, d->new_bytes);
		add(r, c->bytes, c->zero_bytes, c->fresh_bytes, c->new_bytes);
	}
}

static int notes(struct take *t)
{
	char *word[16] = { t->r->id, t->r->store };
	int n = 2, err = ckpt_note(t->job->path, "last", word, n);

	count(t);
	ckpt_past_take(t->job->path, t->ps, t->r, t->o->leave_running);

	for (int i = 0; i < t->o->n_next && n < 16; i++)
		word[n++] = t->o->next[i];
	if (!err && !t->o->leave_running) {
		ckpt_note_remove(t->job->path, "taken");
		t->noted = true;
		err = ckpt_note(t->job->path, "checkpointed", word, n);
	}
	return err;
}

/* Nothing ends a job before its checkpoint has been read as a restore reads it; one that fails is removed. */
static int read_back(struct take *t)
{
	struct why why = { 0 };
	int err = bring_read_back(t->r->store, store_owner(t->save.store), t->r->id, &why);

	t->published = !err || store_remove(t->save.store, t->r->id);
	return err ? fail(t, err, "what has been written cannot be restored: %s", why.text) : 0;
}

static int publish(struct take *t)
{
	struct phase *p = phase_begin(t->ps, "publish");
	struct why why = { 0 };
	char *past;
	int err;

	count(t);
	past = ckpt_past_taken(t->ps, t->r, "-", t->o->leave_running);
	err = save_publish(&t->save, t->ps, t->criu.version, past, t->r->id, &why);
	free(past);

	if (err)
		fail(t, err, "%s", why.text);
	else
		err = read_back(t);
	phase_end(t->ps, p, 0, 0, err);
	return err;
}

static bool is_proxy(pid_t pid)
{
	char path[32], name[32] = "";
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	in = fopen(path, "re");
	if (in && !fgets(name, sizeof(name), in))
		*name = 0;
	if (in)
		fclose(in);
	return !strcmp(name, "singvgpu-proxy\n") && !family_has_ended(pid);
}

/* Has each proxy of the tree been dumped? The client of another one would wait for ever after a restore. */
static int no_stranger(struct take *t)
{
	pid_t *pids, stranger = 0;
	int n = ckpt_tree(t->job->supervisor, &pids);

	for (int i = 0; i < n; i++) {
		bool known = !is_proxy(pids[i]);

		for (int k = 0; k < t->n; k++)
			known |= t->w[k].p->info.proxy_pid == pids[i];
		if (!known)
			stranger = pids[i];
	}
	free(n < 0 ? NULL : pids);
	return stranger ? fail(t, -ERESTART, "a session has begun or ended meanwhile (proxy %d)",
			       stranger) : 0;
}

/* All proxies have saved the same board: keeps one. The workers are gone when a job that runs on is published. */
static void keep_board(struct take *t)
{
	for (int i = 0; i < t->n; i++)
		if (!ctl_ref_none(&t->w[i].dumped.board))
			t->save.facts.board = t->w[i].dumped.board;
}

/* The tree runs on, soon; its clocks shall not see how long it stood still. */
static void tell_stood(void *arg)
{
	const struct take *t = arg;

	ckpt_stood(t->save.job.init ?: t->save.job.rank[0].pid, t->dump->since_ns, 0);
}

/* CRIU has the tree frozen, and begins to read it. */
static int still(void *arg, struct why *why)
{
	struct why cause = { 0 };
	struct take *t = arg;
	struct phase *p;
	int err;

	tell_workers(t, &t->still);
	p = phase_begin(t->ps, "sockets");
	err = save_sockets(&t->save, t->o->outside, &cause);
	phase_end(t->ps, p, 0, 0, err);
	if (err)
		fail(t, err, "%s", cause.text);
	return why_text(why, err, t->why.text);
}

/* CRIU has the tree frozen, and all images are in the writer. */
static int frozen(void *arg, struct why *why)
{
	struct why cause = { 0 };
	struct take *t = arg;
	struct phase *p;
	int err = join_all(t) ?: no_stranger(t);

	t->save.facts.stood_ns = t->dump->stood_ns;
	keep_board(t);
	if (!err) {
		p = phase_begin(t->ps, "files");
		err = save_files(&t->save, &t->dump->links, &cause);
		phase_end(t->ps, p, t->save.file_bytes, t->save.file_stored, err);
		if (err)
			fail(t, err, "%s", cause.text);
	}
	if (!err && !t->o->leave_running) {
		err = publish(t);
		if (!err && t->o->accept) {
			p = phase_begin(t->ps, "accept");
			err = t->o->accept(t->o->arg, t->r->store, t->r->id, &cause);
			phase_end(t->ps, p, 0, 0, err);
			if (err)
				fail(t, err, "%s", cause.text);
		}
		if (!err && (err = notes(t)))
			fail(t, err, "%s cannot be written: %s", t->job->path, strerror(-err));
	}
	return why_text(why, err, t->why.text);
}

/* All gates close and all devices drain; then the proxies begin to dump. */
static int stand_still(struct take *t)
{
	int err;

	choose_cut(t);
	err = t->step ? step_together(t) : 0;
	if (!err)
		err = start_all(t, freeze_one, "freeze");
	err = join_all(t) ?: err;
	forget_gone(t);
	return err ?: share_pages(t) ?: start_all(t, dump_one, "device");
}

/* CRIU is about to freeze the tree. */
static int ready(void *arg, struct why *why)
{
	struct take *t = arg;
	int err = t->stands ? 0 : stand_still(t);

	t->stands = true;
	if (!err)
		t->criu_phase = phase_begin(t->ps, "criu");
	return why_text(why, err, t->why.text);
}

static int on_bytes(void *arg, uint64_t bytes)
{
	struct take *t = arg;

	if (t->criu_phase)
		phase_progress(t->ps, t->criu_phase, bytes, 0);
	return stopped(t);
}

static int dump_tree(struct take *t)
{
	struct save *s = &t->save;
	struct criu_dump d = {
		.criu = &t->criu,
		.pid = s->job.init ?: s->job.rank[0].pid,
		.leave_running = t->o->leave_running,
		.terminal = s->job.terminal,
		.sink = &s->sink,
		.ready = ready,
		.still = still,
		.frozen = frozen,
		.lets_go = tell_stood,
		.progress = on_bytes,
		.alone = t->alone,
		.filled = t->filled,
		.arg = t,
	};
	struct why why = { 0 };
	int err;

	t->dump = &d;
	err = save_keys(s, &d.keys, &d.n_keys);
	for (int i = 0; i < t->n; i++)
		d.plugin |= !strcmp(t->w[i].p->info.backend, "kmod");
	err = err ?: criu_dump(&d, &why);
	if (!t->criu_phase)	/* it has failed before it was ready */
		t->criu_phase = phase_begin(t->ps, "criu");
	t->met = d.met;
	t->empty = d.empty;
	t->dump = NULL;
	t->r->frozen_ns = d.frozen_ns;
	phase_end(t->ps, t->criu_phase, d.bytes, s->image_stored, t->why.err ? 0 : err);
	free((void *)d.keys);
	if (err)
		fail(t, err, "%s", why.err ? why.text : strerror(-err));
	return err;
}

/* ------------------------------------------------------------------------------- whole */

/* Waits until a job that is being started or restored has all of its processes. */
static int hold_when_up(struct take *t, struct why *why)
{
	uint64_t end = now_ms() + HOLD_MS;
	int err;

	for (;;) {
		err = ckpt_hold(t->job, within(t, HOLD_SLICE_MS), &t->hold, why);
		if (err && (err != -EWOULDBLOCK || now_ms() >= end))
			return err;
		if (!err && ckpt_is_up(t->job))
			return 0;
		if (!err) {
			ckpt_release(&t->hold);
			usleep(10000);
			end = now_ms() + HOLD_MS;
		}
		err = stopped(t);
		if (err)
			return err;
		why_clear(why);
	}
}

static int find_criu(struct take *t, struct why *why)
{
	return criu_find_until(&t->criu, t->o->criu, t->deadline * 1000000, why);
}

static int look(struct take *t)
{
	struct phase *p = phase_begin(t->ps, "look");
	struct why why = { 0 };
	int err = ckpt_store_path(t->o->store, t->r->store, &why);

	if (!err && geteuid())
		err = why_set(&why, -EPERM, "CRIU needs root to dump processes: start the job and the "
			      "checkpoint as root (sudo singvgpu …)");
	err = err ?: find_criu(t, &why);
	err = err ?: save_open(&t->save, t->r->store, is_stopped, t, &why);
	err = err ?: hold_when_up(t, &why);
	err = err ?: save_job(&t->save, t->job->path, &why);
	err = err ?: connect_proxies(t);
	if (!err && t->o->look)
		err = t->o->look(t->o->arg, &t->save.job, &t->save.facts, &why);
	if (!t->o->look_only)
		err = err ?: save_mapped(&t->save, is_stopped, t, &why);
	/* Of what was not done in time, the deadline is the reason. */
	err = stopped(t) ?: err;
	if (why.err)
		fail(t, why.err, "%s", why.text);
	phase_end(t->ps, p, 0, 0, err);
	return err;
}

static void finish(struct take *t, int err)
{
	if (!err && t->o->leave_running)
		for (int i = 0; i < t->n; i++)
			say_only(&t->w[i], CTL_THAW, SILENCE_MS);
	else if (!err)
		ckpt_note(t->job->path, "taken", NULL, 0);	/* else `checkpointed` counts while we hold the lock */
	else if (t->noted)
		ckpt_note_remove(t->job->path, "checkpointed");
	if (!err && t->o->keep)
		for (int i = 0; i < t->n; i++)
			say_only(&t->w[i], CTL_STAY, STAY_MS);	/* if it fails, the store has the memory, too */
	/* After an error the end of their connections thaws the proxies, which cannot fail. */
	for (int i = 0; i < t->n; i++)
		close(t->w[i].fd);
	if (!err && t->o->leave_running)
		t->r->stood_ns = phases_still(t->ps);
	t->n = 0;
	ckpt_release(&t->hold);
}

static bool has_ended(const struct rundir_job *job)
{
	char path[PATH_MAX + 8];
	int r = 0;

	snprintf(path, sizeof(path), "%s/job", job->path);
	while (r < job->ranks && job->rank[r].pid > 0 && family_has_ended(job->rank[r].pid))
		r++;
	return r == job->ranks || access(path, F_OK);
}

/* What the user gets to know of a job that runs on: the reason, and lines for below it. */
static void explain(struct take *t, int err, struct why *why)
{
	char *below = t->r->below;
	size_t size = sizeof(t->r->below);
	int n = 0;

	phases_clear(t->ps);
	if (!t->published && has_ended(t->job)) {
		why_set(why, err, "job %s has ended meanwhile: there is nothing left to save", t->job->id);
		return;
	}
	if (t->o->look_only) {
		why_set(why, err, "%s", t->why.text);
		return;
	}
	ckpt_past_failed(t->job->path, t->ps, t->why.text);
	why_set(why, err, "job %s was not checkpointed: in the phase '%s': %s", t->job->id,
		phases_failed(t->ps), t->why.text);
	if (t->published)
		n = snprintf(below, size, "checkpoint %s of it is in %s nevertheless; `singvgpu store remove` removes it\n",
			     t->r->id, t->r->store);
	snprintf(below + n, size - n, "the job runs on as if nothing had been asked%s\n", err == -ETIMEDOUT ?
		 "; a longer time may help" : "");
}

struct attempts {
	uint64_t deadline;	/* of all; now_ms(), 0: none */
	int moved;		/* that met a job whose processes came or went */
	int held;		/* that met a stream which waits for an act of the program */
	int stepped;		/* that have waited for the end of a step */
	bool alone;		/* the next one must be the only one on this host */
	bool filled;		/* the next one must be */
};

/* Whether another attempt may get further than this one, which ended with err. Counts it. */
static bool again(const struct rundir_job *job, struct attempts *a, int err)
{
	if (err == -ERESTART)
		return ++a->moved < TRIES && !has_ended(job);
	return err == -EBUSY && ++a->held <= HELD_TRIES && !has_ended(job);
}

/* One attempt. -EAGAIN: there may be another. */
static int take_once(const struct rundir_job *job, const struct take_options *o,
		     struct phases *ps, struct take_result *r, struct attempts *a, struct why *why)
{
	struct take t = { .job = job, .o = o, .r = r, .ps = ps, .hold = { .conductor = -1 },
			  .lock = PTHREAD_MUTEX_INITIALIZER, .told = PTHREAD_COND_INITIALIZER, .deadline = a->deadline,
			  .alone = a->alone, .filled = a->filled, .claims = -1, .meeting_fd = -1 };
	bool retry, looked;
	int err;

	if (a->held < HELD_TRIES)
		t.held_ms = o->freeze_ms / HELD_SHARE + 1;

	r->at_step = false;
	ps->early_ns = 0;
	*r->id = 0;
	r->frozen_ns = r->stood_ns = r->bytes = r->stored = r->zeros = r->fresh = 0;
	err = look(&t);
	looked = !err && o->look_only;
	if (looked)
		err = -ECANCELED;
	t.step = o->step_ms && a->stepped < STEP_TRIES;
	a->stepped += t.step;
	if (o->step_ms && !t.step)
		snprintf(r->not_at_step, sizeof(r->not_at_step), "%d attempts there had to be given up", STEP_TRIES);
	if (!err && a->held) {
		t.stands = true;
		err = stand_still(&t);
	}
	if (!err)
		err = dump_tree(&t);
	tell_workers(&t, &t.over);
	join_all(&t);
	err = err ? t.why.err ?: err : 0;
	/* A file was where CRIU makes a link. Unless this dump was alone, it may be another one's, and go away. */
	if (t.met && !t.alone)
		err = -ERESTART;
	if (t.empty && !t.filled)
		err = -ERESTART;
	a->alone = t.met;
	a->filled |= t.empty;
	finish(&t, err);
	if (!err && o->leave_running) {
		err = publish(&t);
		if (!err)
			notes(&t);	/* without the note --restart uses an older checkpoint */
	}
	count(&t);
	if (!err && !r->stood_ns)
		r->stood_ns = phases_still(ps);
	retry = again(job, a, err);
	if (err && !retry && !looked)
		explain(&t, err, why);
	save_close(&t.save);
	if (t.claims >= 0)
		close(t.claims);
	if (t.meeting)
		munmap(t.meeting, sizeof(*t.meeting));
	if (t.meeting_fd >= 0)
		close(t.meeting_fd);
	free(t.w);
	return retry ? -EAGAIN : err == -EBUSY ? -ETIMEDOUT : err;
}

int take_option(struct take_options *o, int c)
{
	int err;

	switch (c) {
	case TAKE_STORE:
		o->store = optarg;
		return 0;
	case TAKE_TIMEOUT:
		return parse_seconds(optarg, &o->timeout_ms);
	case TAKE_FREEZE:
		return parse_seconds(optarg, &o->freeze_ms);
	case TAKE_CRIU:
		o->criu = optarg;
		return 0;
	case TAKE_OUTSIDE:
		o->outside = true;
		return 0;
	case TAKE_STEP:
		o->step_ms = TAKE_STEP_MS;
		err = optarg ? parse_seconds(optarg, &o->step_ms) : 0;
		if (!err && !o->step_ms)
			err = -EINVAL;
		return err;
	}
	return 1;
}

int ckpt_take(const struct rundir_job *job, const struct take_options *o, struct phases *ps,
	      struct take_result *r, struct why *why)
{
	struct attempts a = { .deadline = o->timeout_ms ? now_ms() + o->timeout_ms : 0 };
	int err;

	memset(r, 0, sizeof(*r));
	do {
		usleep((a.moved + a.held) * 5000);
		ps->n = 0;
		err = take_once(job, o, ps, r, &a, why);
	} while (err == -EAGAIN);
	return err;
}
