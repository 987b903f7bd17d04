// SPDX-License-Identifier: Apache-2.0
/*
 * bring.c - the conductor of a restore: proxies, libraries, files, CRIU; ckpt_bring.h
 *
 * It runs in the supervisor of the restored job, which ends all processes that it starts.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt_bring.h"
#include "ckpt_options.h"
#include "ckpt_own.h"
#include "ckpt_past.h"
#include "ckpt_places.h"
#include "jobboard.h"
#include "files.h"
#include "history.h"
#include "watch.h"
#include "libs.h"

#define FACTS_MAX	(64ul << 20)	/* bytes of the part "job" */
#define LIBRARY_MAX	(1ul << 30)
#define BOARD_MAX	(1ul << 30)
#define SILENCE_MS	60000	/* between two messages of a proxy */
#define START_MS	60000	/* for a proxy to listen */
#define AT_ONCE		16	/* sessions that are restored at a time */
#define CRIU_MS		600000
#define PORTS_MS	130000	/* twice the life of a connection in TIME_WAIT */

/* -------------------------------------------------------------------------------- open */

/* Reads an object of at most max bytes. */
static int read_object(struct store *s, const struct store_ref *ref, size_t max, char **data,
		       size_t *len, struct why *why)
{
	struct store_reader *r;
	ssize_t n;
	int err;

	if (store_ref_size(ref) > max)
		return why_set(why, -EFBIG, "it has %llu bytes, more than in any checkpoint",
			       (unsigned long long)store_ref_size(ref));
	err = store_failed(why, store_object_open(s, ref, &r));
	if (err)
		return err;
	*len = store_size(r);
	*data = malloc(*len + 1);
	n = *data ? store_read(r, 0, *data, *len) : -ENOMEM;
	store_reader_close(r);
	if (n == (ssize_t)*len) {
		(*data)[*len] = 0;
		return 0;
	}
	free(*data);
	*data = NULL;
	return store_failed(why, n < 0 ? n : -EIO);
}

static int read_facts(struct bring *b, struct why *why)
{
	const struct store_ref *ref = store_checkpoint_find(b->checkpoint, "job");
	struct why cause = { 0 };
	char *text = NULL;
	size_t len;
	int err;

	if (!ref)
		return why_set(why, -EBADMSG, "checkpoint %s in %s is no checkpoint of a job", b->id, b->dir);
	err = read_object(b->store, ref, FACTS_MAX, &text, &len, &cause);
	if (err)
		return why_set(why, err, "checkpoint %s: its part 'job' cannot be read: %s", b->id, cause.text);
	err = facts_read(&b->facts, text, len);
	free(text);
	if (err == -EPROTONOSUPPORT)
		why_set(why, err, "checkpoint %s is of version %u, singvgpu %s reads version %u: restore it with the "
			"one that took it", b->id, b->facts.format, SINGVGPU_VERSION, CKPT_FORMAT);
	else if (err)
		why_set(why, err, "checkpoint %s: its part 'job' is damaged", b->id);
	return err;
}

/* The facts' refs are those of the first store. A copied checkpoint has others, in its parts. */
static void find_part(const struct bring *b, struct ctl_ref *ref, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void find_part(const struct bring *b, struct ctl_ref *ref, const char *fmt, ...)
{
	const struct store_ref *part;
	char name[PATH_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(name, sizeof(name), fmt, ap);
	va_end(ap);
	part = store_checkpoint_find(b->checkpoint, name);
	if (part)
		memcpy(ref->bytes, part->b, sizeof(ref->bytes));
}

static void find_parts(struct bring *b)
{
	find_part(b, &b->facts.board, "board");
	for (int i = 0; i < b->facts.libraries; i++)
		find_part(b, &b->facts.library[i].ref, "lib/%s", b->facts.library[i].name);
	for (int i = 0; i < b->facts.proxies; i++) {
		struct ckpt_proxy *p = &b->facts.proxy[i];

		find_part(b, &p->device, "proxy/%d-%d/device", p->rank, p->serial);
		find_part(b, &p->observed, "proxy/%d-%d/observed", p->rank, p->serial);
		find_part(b, &p->session, "proxy/%d-%d/session", p->rank, p->serial);
		find_part(b, &p->channel, "proxy/%d-%d/channel", p->rank, p->serial);
		find_part(b, &p->arena, "proxy/%d-%d/arena", p->rank, p->serial);
		find_part(b, &p->comms, "proxy/%d-%d/comms", p->rank, p->serial);
	}
}

/* Drops proxies whose clients were about to end: the checkpoint has no dump of them. */
static void keep_proxies(struct bring *b)
{
	int left = 0;

	for (int i = 0; i < b->was->proxies; i++)
		for (int k = 0; k < b->facts.proxies; k++)
			if (b->facts.proxy[k].rank == b->was->proxy[i].rank &&
			    b->facts.proxy[k].serial == b->was->proxy[i].serial) {
				b->was->proxy[left] = b->was->proxy[i];
				b->was->proxy[left++].seat = b->facts.proxy[k].info.seat;
			}
	b->was->proxies = left;
}

/* A restore empties the folder at this path, so the path must be that of a job's folder. */
static bool is_rundir(const char *path)
{
	const char *id = strrchr(path, '/');
	size_t n = id - path;

	while (n && path[n - 1] != '/')
		n--;
	return !strstr(path, "/../") && !strncmp(path + n, "singvgpu", 8) &&
	       strchr("-/", path[n + 8]) && strspn(id + 1, "0123456789.") == strlen(id + 1);
}

static int read_job(struct bring *b, struct why *why)
{
	struct why cause = { 0 };
	int err;

	b->was = calloc(1, sizeof(*b->was));
	err = b->was ? rundir_parse(b->was, b->facts.job, strlen(b->facts.job)) : -ENOMEM;
	if (err == -EPROTONOSUPPORT)
		return why_set(why, err, "checkpoint %s: the job file in it is of version %u, singvgpu %s reads version "
			       "%u: restore it with the one that took it", b->id, b->was->version, SINGVGPU_VERSION,
			       RUNDIR_VERSION);
	if (!err && !is_rundir(b->was->path))
		return why_set(why, -EBADMSG, "checkpoint %s is refused: %s is no folder of a job", b->id,
			       b->was->path);
	if (err)
		return why_set(why, err, "checkpoint %s: the job file in it cannot be used: %s", b->id,
			       strerror(-err));
	err = facts_check(&b->facts, b->was, &cause);
	if (err)
		return why_set(why, err, "checkpoint %s: its part 'job' is damaged: %s", b->id, cause.text);
	keep_proxies(b);
	b->channel = calloc(b->facts.proxies + 1, sizeof(*b->channel));
	b->control = calloc(b->facts.proxies + 1, sizeof(*b->control));
	b->inherit = calloc(b->facts.proxies + 1, sizeof(*b->inherit));
	b->cookie = calloc(b->facts.proxies + 1, sizeof(*b->cookie));
	if (!b->channel || !b->control || !b->inherit || !b->cookie)
		return why_set(why, -ENOMEM, "no memory");
	for (int i = 0; i < b->facts.proxies; i++)
		b->channel[i] = b->control[i] = -1;
	return 0;
}

static void link_of(const char *pid, int fd, char *text, size_t size)
{
	char path[48];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%s/fd/%d", pid, fd);
	n = readlink(path, text, size - 1);
	text[n > 0 ? n : 0] = 0;
}

/* "/home/u/out.txt", "this terminal": a file is the job's again, and all else is ours. */
static const char *where_goes(pid_t rank, int fd, char *text, size_t size)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", rank);
	link_of(pid, fd, text, size);
	if (rank > 0 && *text == '/' && strncmp(text, "/dev/", 5))
		return text;
	if (isatty(fd))
		return "this terminal";
	link_of("self", fd, text, size);
	return *text == '/' ? text : "that of this command";
}

/* Which job goes on, and where it prints. */
static void tell_who(const struct bring *b, pid_t root)
{
	char out[PATH_MAX], err[PATH_MAX], command[200];
	pid_t rank = b->was->ranks > 1 ? 0 : b->was->init ? job_host_pid(root, b->was->rank[0].inner) : root;
	const char *to = where_goes(rank, STDOUT_FILENO, out, sizeof(out));
	const char *too = where_goes(rank, STDERR_FILENO, err, sizeof(err));

	b->o.tell("job %s goes on, from checkpoint %.8s: %s", strrchr(b->was->path, '/') + 1, b->id,
		  watch_clip(command, sizeof(command), b->was->command));
	if (strcmp(to, too))
		b->o.tell("its stdout is %s, its stderr %s", to, too);
	else
		b->o.tell("its output is %s", to);
}

static int bring_proxies(void *arg, struct job *job, struct why *why);
/* Our own line behind the cut is no change of the job's. */
static void drop_ours(struct bring *b, struct files_back *files)
{
	size_t said = files->n_said;

	files_drop_ours(files);
	for (; said < files->n_said; said++) {
		phases_clear(&b->ps);
		b->o.tell("%s", files->said[said]);
	}
}

static pid_t bring_tree(void *arg, struct job *job, const struct criu_fd *inherit, size_t n, struct why *why);
static int bring_go(void *arg, struct job *job, struct rundir_proxy *proxy, int n, pid_t root, struct why *why);
static void bring_leave(void *arg);

/* A job that comes back into its folder has its history there. */
static void bring_past(const struct bring *b, const char *rundir)
{
	const struct store_ref *ref = store_checkpoint_find(b->checkpoint, PAST_PART);
	struct why why = { 0 };
	char path[PATH_MAX], *data = NULL;
	size_t len;
	int err;

	if (snprintf(path, sizeof(path), "%s/" HISTORY_EVENTS, rundir) >= (int)sizeof(path) ||
	    !access(path, F_OK) || !ref || history_place(path) == 1)
		return;
	err = read_object(b->store, ref, HISTORY_MAX, &data, &len, &why) ?:
	      history_unpack(rundir, data, len, b->id);
	if (err == -EBADMSG)
		b->o.tell("the job's history in checkpoint %s is damaged: it begins anew", b->id);
	else if (err == -EPROTONOSUPPORT)
		b->o.tell("the job's history in checkpoint %s is of another version: it begins anew", b->id);
	else if (err)
		b->o.tell("the job's history in checkpoint %s cannot be brought back, and begins anew: %s", b->id,
			  strerror(-err));
	free(data);
}

/* The job's table, with the devices that are asked for. */
static int seat(struct bring *b, struct why *why)
{
	struct why cause = { 0 };
	int err = places_make(&b->facts, b->was, &b->o.where.on, false, &b->seating, &cause);

	return err ? why_set(why, err, "checkpoint %s cannot be restored: %s", b->id, cause.text) : 0;
}

static int open_checkpoint(struct bring *b, const struct bring_options *o, struct why *why)
{
	char id[STORE_ID];
	int err;

	err = ckpt_store_path(o->store, b->dir, why);
	err = err ?: store_open_trusted(&b->store, b->dir, STORE_WAIT, o->trust, why);
	if (err)
		return err;
	err = bring_latest(b->store, b->dir, o->id, id, &b->below, why);
	if (err && err != -EINVAL)
		return err;
	err = store_failed(why, store_checkpoint_open(b->store, err ? o->id : id, &b->checkpoint));
	if (err == -ENOENT &&
	    asprintf(&b->below, "`singvgpu store ls --store %s` lists what is there\n", b->dir) < 0)
		b->below = NULL;
	if (err)
		return err;
	snprintf(b->id, sizeof(b->id), "%s", store_checkpoint_id(b->checkpoint));
	err = read_facts(b, why) ?: read_job(b, why) ?: seat(b, why);
	if (!err)
		find_parts(b);
	return err;
}

int bring_open(struct bring *b, const struct bring_options *o, struct why *why)
{
	uint64_t tag;
	int err;

	memset(b, 0, sizeof(*b));
	b->hold = -1;
	b->o = *o;
	if (getrandom(&tag, sizeof(tag), 0) != sizeof(tag))
		tag = wall_ns() ^ (uint64_t)getpid() << 40;
	snprintf(b->tag, sizeof(b->tag), "%016llx", (unsigned long long)tag);
	err = open_checkpoint(b, o, why);
	if (err)
		return err;
	b->restore = (struct job_restore){ .was = b->was, .seating = &b->seating, .proxies = bring_proxies,
					   .tree = bring_tree, .go = bring_go, .leave = bring_leave, .arg = b };
	return 0;
}

/* Closes the store before the job runs, since gc cannot run while it is open in any process. */
static void close_store(struct bring *b)
{
	store_checkpoint_close(b->checkpoint);
	store_close(b->store);
	b->checkpoint = NULL;
	b->store = NULL;
}

static void bring_leave(void *arg)
{
	close_store(arg);
}

static void close_fds(struct bring *b)
{
	if (b->hold >= 0)
		close(b->hold);
	b->hold = -1;
	for (int i = 0; i < b->facts.proxies; i++) {
		if (b->channel && b->channel[i] >= 0)
			close(b->channel[i]);
		if (b->control && b->control[i] >= 0)
			close(b->control[i]);
		if (b->channel)
			b->channel[i] = -1;
		if (b->control)
			b->control[i] = -1;
	}
}

void bring_close(struct bring *b)
{
	close_fds(b);
	if (b->checkpoint)
		store_checkpoint_close(b->checkpoint);
	store_close(b->store);
	free(b->channel);
	free(b->control);
	free(b->inherit);
	free(b->cookie);
	free(b->below);
	facts_free(&b->facts);
	if (b->was)
		rundir_list_free(b->was, 1);
	memset(b, 0, sizeof(*b));
	b->hold = -1;
}

/* ------------------------------------------------------------------------------- check */

static bool uses_kmod(const struct bring *b)
{
	for (int i = 0; i < b->facts.proxies; i++)
		if (!strcmp(b->facts.proxy[i].info.backend, "kmod"))
			return true;
	return false;
}

static int put_board(struct bring *b, struct job *job, struct why *why);
static int put_libraries(struct bring *b, bool look_only, struct why *why);
static int put_files(struct bring *b, const char *rundir, struct files_back *placed, struct why *why);

/* The parts of each session are there. What is in "comms" the proxy has read again when it wrote it: comm_save(). */
static int read_sessions(const struct bring *b, struct why *why)
{
	for (int i = 0; i < b->facts.proxies; i++) {
		const struct ckpt_proxy *p = &b->facts.proxy[i];
		const struct {
			const char *name;
			const struct ctl_ref *ref;
		} of[] = { { "device", &p->device }, { "observed", &p->observed }, { "session", &p->session },
			   { "channel", &p->channel }, { "arena", &p->arena }, { "comms", &p->comms } };

		for (int k = 0; k < 6; k++) {
			struct store_reader *r;
			struct why cause = { 0 };
			struct store_ref ref;
			int err;

			if (ctl_ref_none(of[k].ref))
				continue;
			memcpy(ref.b, of[k].ref->bytes, sizeof(ref.b));
			err = store_failed(&cause, store_object_open(b->store, &ref, &r));
			if (err)
				return why_set(why, err, "its part 'proxy/%d-%d/%s' cannot be read: %s", p->rank, p->serial,
					       of[k].name, cause.text);
			store_reader_close(r);
		}
	}
	return 0;
}

static int read_libraries(const struct bring *b, struct why *why)
{
	for (int i = 0; i < b->facts.libraries && b->facts.libdir; i++) {
		const struct ckpt_library *l = &b->facts.library[i];
		struct why cause = { 0 };
		struct store_ref ref;
		char *data = NULL;
		size_t len;
		int err;

		memcpy(ref.b, l->ref.bytes, sizeof(ref.b));
		err = read_object(b->store, &ref, LIBRARY_MAX, &data, &len, &cause);
		free(data);
		if (err)
			return why_set(why, err, "its library %.400s: %s", l->name, cause.text);
	}
	return 0;
}

static int read_files(const struct bring *b, struct why *why)
{
	struct files_back f = { .store = b->store, .checkpoint = b->checkpoint, .list_only = true };
	int err = files_put_back(&f);

	why_text(why, err, f.why.text);
	files_back_free(&f);
	return err;
}

/*
 * Reads all that has been written of a job, but for its memory, as a restore does before it makes processes: nothing
 * ends a job before this function has read its checkpoint. It looks at nothing else on this host.
 */
static int read_back(struct bring *b, struct why *why)
{
	struct images_stored from = { b->store, b->checkpoint };
	struct images_source source;

	images_from_store(&from, &source);
	return images_check(&source, why) ?: put_board(b, NULL, why) ?: read_sessions(b, why) ?: read_libraries(b, why) ?:
	       read_files(b, why);
}

int bring_read_back(const char *store, uid_t owner, const char *id, struct why *why)
{
	struct bring_options o = { .store = store, .id = id, .trust = owner };
	struct bring *b = calloc(1, sizeof(*b));
	int err;

	if (!b)
		return why_set(why, -ENOMEM, "no memory to read the checkpoint back");
	b->hold = -1;
	/* The store has compared all pages when it published them. */
	err = open_checkpoint(b, &o, why) ?: ckpt_parts_check(&b->facts, NULL, b->checkpoint, why) ?: read_back(b, why);
	bring_close(b);
	free(b);
	return err;
}

int bring_check(struct bring *b, struct why *why)
{
	int err = ckpt_parts_check(&b->facts, b->store, b->checkpoint, why);

	if (err)
		return err;
	if (geteuid())
		return why_set(why, -EPERM, "CRIU needs root to restore processes: use sudo");
	if (b->facts.uid && b->facts.uid != geteuid() && b->facts.uid != store_owner(b->store))
		return why_set(why, -EPERM, "its job belongs to user %u: only jobs of root and of the "
			       "store's owner can be restored, since a restored job would not have "
			       "another user's rights", b->facts.uid);
	err = criu_find(&b->criu, b->o.criu, why);
	if (err)
		return err;
	if (uses_kmod(b) && access("/dev/singvgpu", R_OK | W_OK))
		return why_set(why, -ENODEV, "its channel is /dev/singvgpu, which is not here: "
			       "modprobe singvgpu");
	return ckpt_mapped_check(&b->facts, why) ?: ckpt_ports_check(&b->facts, b->o.tell, why) ?: read_back(b, why) ?:
	       put_libraries(b, true, why) ?: put_files(b, b->was->path, NULL, why);
}

void bring_ask_only(struct bring *b)
{
	b->restore.tree = NULL;
	b->restore.go = NULL;
}

int bring_job_options(const struct bring *b, struct job_options *opt, struct why *why)
{
	return ckpt_options_read(&b->facts, opt, why);
}

/* ----------------------------------------------------------------------------- proxies */

/* *why remains empty if the job has been asked to end: that is the reason, which the user knows. */
static int late(const struct bring *b, struct job *job, const char *what, const struct why *cause, struct why *why)
{
	phases_clear((struct phases *)&b->ps);
	if (!job_stopping(job))
		why_set(why, -EIO, "checkpoint %s cannot be restored: %s: %s", b->id, what, cause->text);
	return -EIO;
}

/* Connects to a proxy that has just been started, and may not listen yet. */
static int reach(struct bring *b, struct job *job, int i, struct why *why)
{
	const struct ckpt_proxy *p = &b->facts.proxy[i];
	uint64_t until = now_ms() + START_MS;
	char path[PATH_MAX];
	int fd = job_control_path(job, p->rank, p->serial, path, sizeof(path));

	while (!fd && (fd = ctl_connect(path, why)) < 0) {
		if ((fd != -ENOENT && fd != -ECONNREFUSED) || now_ms() >= until ||
		    job_stopping(job))
			break;
		fd = 0;
		why_clear(why);
		usleep(5000);
	}
	return fd < 0 ? why_set(why, fd, "%s", strerror(-fd)) : fd;
}

/* "OLD=NEW,OLD=NEW" */
static int parse_instead(const char *text, struct seating_where *w)
{
	unsigned int from, to;
	int n;

	for (;; text += n + 1) {
		n = 0;
		if (*text < '0' || *text > '9' || sscanf(text, "%2u=%2u%n", &from, &to, &n) != 2 || !n ||
		    from >= sizeof(w->instead) || to >= JOB_DEVICES_MAX || w->instead[from])
			return -EINVAL;
		w->instead[from] = to + 1;
		if (!text[n])
			return 0;
		if (text[n] != ',')
			return -EINVAL;
	}
}

/* What BRING_SHARE has printed: returns what follows it, or NULL. */
static const char *parse_share(const char *text, struct seating_where *w)
{
	char wanted[16], how[16];
	int used = 0;

	if (sscanf(text, BRING_SHARED "%15[a-z]/%15[a-z]:%n", wanted, how, &used) != 2 || !used)
		return NULL;
	w->share = seating_share_parse(wanted);
	w->how = seating_share_parse(how);
	return w->share && (w->how == SHARE_TOGETHER || w->how == SHARE_SLICES) ? text + used : NULL;
}

int bring_where_parse(const char *text, struct bring_where *w)
{
	struct bring_where new = { 0 };
	bool on, list;
	int err;

	if (snprintf(new.text, sizeof(new.text), "%s", text) >= (int)sizeof(new.text))
		return -EINVAL;
	if (!strncmp(text, BRING_SHARED, strlen(BRING_SHARED))) {
		text = parse_share(text, &new.on);
		if (!text)
			return -EINVAL;
		if (!*text) {
			*w = new;
			return 0;
		}
	}
	on = !strncmp(text, BRING_ON, strlen(BRING_ON));
	list = strchr(text, ',') && !strchr(text, '=');
	if (on || list) {
		err = seating_on_parse(text + (on ? strlen(BRING_ON) : 0), &new.on.logical);
	} else {
		new.on.all = !parse_int(text, 0, JOB_DEVICES_MAX - 1, &new.on.first);
		err = new.on.all ? 0 : parse_instead(text, &new.on);
	}
	if (!err)
		*w = new;
	return err;
}

static void fill_request(const struct bring *b, int i, struct ctl_restore *req)
{
	const struct ckpt_proxy *p = &b->facts.proxy[i];

	*req = (struct ctl_restore){ .h = { .op = CTL_RESTORE, .size = sizeof(*req) },
				     .check = !b->restore.tree };
	snprintf(req->dir, sizeof(req->dir), "%.*s", CTL_PATH_MAX - 1, b->dir);
	req->device = p->device;
	req->observed = p->observed;
	req->session = p->session;
	req->channel = p->channel;
	req->arena = p->arena;
	req->comms = p->comms;
	req->trust = b->o.trust;
	req->was = p->info.device;
	req->window = p->info.window;
	req->window_len = p->info.window_len;
	req->ordinal = seating_physical(&b->seating, p->rank, facts_logical(p));
}

/* A session that is being restored, in a thread of its own. */
struct session {
	struct bring *b;
	int i;			/* of its proxy */
	int home;		/* the proxy whose channel it shares, or -1 */
	int round;		/* of restore_sessions() in which it is restored; 0: not yet */
	bool started;
	struct phase *phase;
	uint64_t bytes;
	pthread_t thread;
	int err;
	struct why why;
};

static void on_progress(void *arg, const struct ctl_progress *p)
{
	struct session *s = arg;

	phase_progress(&s->b->ps, s->phase, p->done, p->total);
}

static int session_ask(struct session *s)
{
	struct bring *b = s->b;
	struct ctl_restored reply = { 0 };
	struct ctl_restore req;
	int i = s->i, fd = b->control[i], err;

	fill_request(b, i, &req);
	if (s->home >= 0 && !req.check) {
		req.guest = 1;
		err = ctl_give(fd, b->channel[s->home]);
		if (err)
			return why_set(&s->why, err, "its proxy has gone");
	}
	err = ctl_call(fd, &req.h, &reply.r, sizeof(reply), on_progress, s, &b->channel[i], SILENCE_MS);
	s->bytes = reply.bytes;
	__atomic_add_fetch(&b->handed, err ? 0 : reply.handed, __ATOMIC_RELAXED);
	if (!err && !req.check && b->channel[i] < 0)
		err = -EPROTO;
	memcpy(b->cookie[i], reply.cookie, sizeof(b->cookie[i]));
	memcpy(b->inherit[i], reply.inherit, sizeof(b->inherit[i]));
	b->inherit[i][sizeof(b->inherit[i]) - 1] = 0;
	return why_text(&s->why, err, reply.r.why);
}

/*
 * One lost session makes the whole restore fail. The first failure shuts down the connections to all proxies, which ends them.
 * Later failures may only follow from that, so their reasons are dropped.
 */
static void session_failed(struct session *s)
{
	struct bring *b = s->b;

	pthread_mutex_lock(&b->lock);
	if (b->useless)
		why_clear(&s->why);
	for (int i = 0; i < b->facts.proxies && !b->useless; i++)
		if (b->control[i] >= 0)
			shutdown(b->control[i], SHUT_RDWR);
	b->useless = true;
	pthread_mutex_unlock(&b->lock);
}

static void *session_restore(void *arg)
{
	struct session *s = arg;

	s->err = session_ask(s);
	phase_end(&s->b->ps, s->phase, s->bytes, 0, s->err);
	if (s->err)
		session_failed(s);
	return NULL;
}

static int session_start(struct session *s, struct job *job)
{
	struct bring *b = s->b;
	const struct ckpt_proxy *p = &b->facts.proxy[s->i];
	int fd = reach(b, job, s->i, &s->why), err;

	if (fd < 0) {
		session_failed(s);
		return s->err = fd;
	}
	pthread_mutex_lock(&b->lock);
	b->control[s->i] = fd;
	pthread_mutex_unlock(&b->lock);
	s->phase = phase_begin(&b->ps, "device %d-%d", p->rank, p->serial);
	err = -pthread_create(&s->thread, NULL, session_restore, s);
	s->started = !err;
	if (!err)
		return 0;
	phase_end(&b->ps, s->phase, 0, 0, err);
	why_set(&s->why, err, "a thread: %s", strerror(-err));
	session_failed(s);
	return s->err = err;
}

/* A session that shares the channel of another one is restored in a later round. */
static bool is_due(const struct session *all, const struct session *s, int round)
{
	return !s->round && (s->home < 0 || (all[s->home].round && all[s->home].round < round));
}

/* Restores up to AT_ONCE sessions at a time, since reading their contents takes most of a restore. */
static int restore_sessions(struct bring *b, struct job *job, struct why *why)
{
	struct session *s = calloc(b->facts.proxies + 1, sizeof(*s));
	int n = b->facts.proxies, left = n, err = s ? 0 : why_text(why, -ENOMEM, "");

	pthread_mutex_init(&b->lock, NULL);
	b->useless = false;
	for (int i = 0; i < n && !err; i++)
		s[i] = (struct session){ .b = b, .i = i, .home = facts_home(&b->facts, i) };
	for (int round = 1; left && !err; round++) {
		for (int i = 0, room = AT_ONCE; i < n && room && !err; i++)
			if (is_due(s, &s[i], round)) {
				s[i].round = round;
				err = session_start(&s[i], job);
				room--;
			}
		for (int i = 0; i < n; i++) {
			if (s[i].round != round)
				continue;
			if (s[i].started)
				pthread_join(s[i].thread, NULL);
			left--;
			if (s[i].why.err)
				err = why_set(why, s[i].err, "%s", s[i].why.text);
		}
	}
	free(s);
	return err;
}

/* The state of the job's collectives, to which its proxies return. job: NULL to look only. */
static int put_board(struct bring *b, struct job *job, struct why *why)
{
	const char *what = NULL;
	struct why cause = { 0 };
	struct store_ref ref;
	char *image = NULL;
	size_t len;
	int err;

	if (ctl_ref_none(&b->facts.board))
		return 0;
	memcpy(ref.b, b->facts.board.bytes, sizeof(ref.b));
	err = read_object(b->store, &ref, BOARD_MAX, &image, &len, &cause);
	if (err)
		return why_set(why, err, "its part 'board' cannot be read: %s", cause.text);
	err = job ? jobboard_load(job->board, image, len, &what) : jobboard_check(image, len, &what);
	free(image);
	if (err == -EBADMSG)
		return why_set(why, err, "its part 'board' is damaged: %s", what);
	return err ? why_set(why, err, "its part 'board', the state of its collectives: %s",
			     err == -EPROTONOSUPPORT ? "another version of singvgpu has saved it" :
			     strerror(-err)) : 0;
}

static int bring_proxies(void *arg, struct job *job, struct why *why)
{
	struct bring *b = arg;
	struct why cause = { 0 };
	int err;

	phases_start(&b->ps, "restore", b->was->id, b->o.quiet);
	if (b->restore.tree)
		b->hold = ckpt_hold_alone(job->dir.path, START_MS);
	err = put_board(b, b->restore.tree ? job : NULL, &cause);
	err = err ?: restore_sessions(b, job, &cause);
	if (err)
		late(b, job, "its GPU session", &cause, why);
	else if (b->restore.tree)
		jobboard_returned(job->board);
	if (!b->restore.tree) {
		phases_clear(&b->ps);
		close_fds(b);	/* the proxies end when their connections do */
	}
	return err;
}

/* -------------------------------------------------------------------------------- tree */

static bool has_content(const char *path, const char *data, size_t len)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	char *there = fd < 0 ? NULL : malloc(len + 1);
	bool same = there && read(fd, there, len + 1) == (ssize_t)len && !memcmp(there, data, len);

	if (fd >= 0)
		close(fd);
	free(there);
	return same;
}

/* Puts back a stand-in that the job has mapped, if it was removed or differs. */
static int put_library(const struct bring *b, const struct ckpt_library *l, bool look_only,
		       struct why *why)
{
	char path[PATH_MAX], *data = NULL;
	struct why cause = { 0 };
	struct store_ref ref;
	size_t len;
	int err;

	memcpy(ref.b, l->ref.bytes, sizeof(ref.b));
	snprintf(path, sizeof(path), "%s/%s", b->facts.libdir, l->name);
	err = read_object(b->store, &ref, LIBRARY_MAX, &data, &len, &cause);
	if (err)
		return why_set(why, err, "its library %.400s: %s", l->name, cause.text);
	if (strchr(l->name, '/') || !has_content(path, data, len))
		err = look_only ? libs_may_put(b->facts.libdir, l->name) :
				  libs_put(b->facts.libdir, l->name, data, len);
	if (err == -EPERM)
		why_set(why, err, "%.800s is not the job's library, and a restore replaces only "
			"stand-ins in their own folder ($XDG_CACHE_HOME)", path);
	else if (err)
		why_set(why, err, "%.800s cannot be put back: %s", path, strerror(-err));
	free(data);
	return err;
}

static int put_libraries(struct bring *b, bool look_only, struct why *why)
{
	struct phase *p = look_only ? NULL : phase_begin(&b->ps, "libraries");
	int err = 0;

	for (int i = 0; i < b->facts.libraries && !err && b->facts.libdir; i++)
		err = put_library(b, &b->facts.library[i], look_only, why);
	if (p)
		phase_end(&b->ps, p, 0, 0, err);
	return err;
}

/* placed: NULL to look only; else the caller frees it, and removes its links before. */
static int put_files(struct bring *b, const char *rundir, struct files_back *placed, struct why *why)
{
	bool look_only = !placed;
	struct phase *p = look_only ? NULL : phase_begin(&b->ps, "files");
	char log[PATH_MAX + 8], stamp[64] = "singvgpu-", ours[PATH_MAX + 256];
	struct files_back f = { .store = b->store, .checkpoint = b->checkpoint, .log = log,
				.later = log, .stamp = stamp, .ours = ours, .tag = b->tag, .look_only = look_only };
	time_t now = time(NULL);
	int err;

	/* Whose stdout and stderr are one file has this there. */
	snprintf(ours, sizeof(ours), "singvgpu: " OWN_SAVED "\n", b->id, b->dir, b->id);
	strftime(stamp + strlen(stamp), 32, "%Y%m%dT%H%M%S", localtime(&now));
	snprintf(log, sizeof(log), "%s/files", rundir);
	err = files_put_back(&f);
	why_text(why, err, f.why.text);
	if (p)
		phase_end(&b->ps, p, 0, 0, err);
	for (size_t i = 0; i < f.n_said && !look_only; i++) {
		phases_clear(&b->ps);
		b->o.tell("%s", f.said[i]);
	}
	f.ours = placed ? strdup(ours) : NULL;
	if (placed)
		*placed = f;
	else
		files_back_free(&f);
	return err;
}

struct tree {
	struct bring *b;
	struct job *job;
	struct phase *phase;
	struct criu_restore *restore;
};

static int on_ready(void *arg, pid_t root, struct why *why)
{
	const struct tree *t = arg;

	(void)why;
	ckpt_stood(root, t->restore->since_ns, t->b->facts.stood_ns);
	return 0;
}

static int on_bytes(void *arg, uint64_t bytes)
{
	struct tree *t = arg;

	phase_progress(&t->b->ps, t->phase, bytes, 0);
	return job_stopping(t->job) ? -ECANCELED : 0;
}

static void put_hex(FILE *out, const uint8_t *bytes, char behind)
{
	for (int i = 0; i < 16; i++)
		fprintf(out, "%02x", bytes[i]);
	putc(behind, out);
}

/* Writes the cookies with which CRIU's plugin attaches to channels of the module. */
static int put_cookies(const struct bring *b, const char *path)
{
	FILE *out = fopen(path, "wex");

	if (!out)
		return -errno;
	for (int i = 0; i < b->facts.proxies; i++) {
		put_hex(out, b->facts.proxy[i].info.channel_id, ' ');
		put_hex(out, b->cookie[i], '\n');
	}
	return fclose(out) ? -EIO : 0;
}

/* CRIU's links, as it gets them; it may not change the texts, which remain those of the files. */
static int find_links(const struct files_back *f, struct criu_links *l)
{
	l->link = calloc(f->n_links + 1, sizeof(*l->link));
	for (; l->link && l->n < f->n_links; l->n++)
		l->link[l->n] = (struct criu_link){ .path = f->link[l->n], .instead = f->at[l->n] };
	return l->link ? 0 : -ENOMEM;
}

static void tell_attributes(struct bring *b, const char *what, unsigned int n)
{
	phases_clear(&b->ps);
	b->o.tell("%u threads or processes of the job %s", n, what);
}

static int restore_tree(struct tree *t, const struct criu_fd *inherit, size_t n,
			const struct criu_links *links, struct why *why)
{
	struct bring *b = t->b;
	struct images_stored from = { b->store, b->checkpoint };
	struct criu_fd *fds = calloc(n + b->facts.proxies + 1, sizeof(*fds));
	struct images_source source;
	struct criu_restore r = { .criu = &b->criu, .terminal = b->was->terminal,
				  .group = b->was->terminal ? t->job->group : 0,
				  .plugin = uses_kmod(b), .fds = fds, .source = &source,
				  .links = links, .tag = b->tag,
				  .limit_ms = CRIU_MS, .ready = on_ready, .progress = on_bytes, .arg = t };
	static const char name[] = "SINGVGPU_COOKIES=";
	char cookies[PATH_MAX + 32];
	int err = fds ? 0 : -ENOMEM;

	snprintf(cookies, sizeof(cookies), "%s%s/cookies", name, t->job->dir.path);
	if (r.plugin && !err) {
		err = put_cookies(b, cookies + strlen(name));
		r.env[0] = cookies;
	}
	t->restore = &r;
	images_from_store(&from, &source);
	for (size_t i = 0; i < n && fds; i++)
		fds[r.n_fds++] = inherit[i];
	for (int i = 0; i < b->facts.proxies && fds; i++)
		if (*b->inherit[i] && b->channel[i] >= 0)
			fds[r.n_fds++] = (struct criu_fd){ b->channel[i], b->inherit[i] };
	t->phase = phase_begin(&b->ps, "criu");
	err = err ?: criu_restore(&r, why);
	phase_end(&b->ps, t->phase, r.bytes, 0, err);
	if (!err && r.attributes.clipped)
		tell_attributes(b, "were bound to CPUs that they cannot have here, and got those that there are",
				r.attributes.clipped);
	if (!err && r.attributes.failed)
		tell_attributes(b, "did not get the CPUs, memory policy, I/O priority, timer slack, core dump filter, "
				"personality or socket options that they had", r.attributes.failed);
	unlink(cookies + strlen(name));
	free(fds);
	return err ? why_set(why, err, "%s", strerror(-err)) : r.pid;
}

/* Waits until old connections leave the job's ports. If they do not, CRIU reports it. */
static void wait_for_ports(struct bring *b, struct job *job)
{
	uint64_t until = now_ms() + PORTS_MS;
	int port = ckpt_ports_passing(&b->facts);
	struct phase *p;

	if (!port)
		return;
	b->o.tell("former connections of the job still occupy its TCP port %d: the kernel frees it after "
		  "a minute", port);
	p = phase_begin(&b->ps, "port %d", port);
	while (ckpt_ports_passing(&b->facts) && now_ms() < until && !job_stopping(job))
		usleep(200000);
	phase_end(&b->ps, p, 0, 0, 0);
}

static pid_t bring_tree(void *arg, struct job *job, const struct criu_fd *inherit, size_t n, struct why *why)
{
	struct bring *b = arg;
	struct tree t = { .b = b, .job = job };
	struct criu_links links = { NULL, 0 };
	struct files_back files = { 0 };
	struct why cause = { 0 };
	pid_t pid;
	int err = put_libraries(b, false, &cause);

	if (err) {
		late(b, job, "its libraries", &cause, why);
		return err;
	}
	wait_for_ports(b, job);
	err = put_files(b, job->dir.path, &files, &cause);
	if (err) {
		late(b, job, "its files", &cause, why);
		free((char *)files.ours);
		files_back_free(&files);
		return err;
	}
	pid = find_links(&files, &links) ?: restore_tree(&t, inherit, n, &links, &cause);
	files_remove_links(&files);
	if (pid >= 0)
		drop_ours(b, &files);
	free((char *)files.ours);
	files_back_free(&files);
	free(links.link);
	if (pid < 0)
		late(b, job, "its processes", &cause, why);
	return pid;
}

/* ---------------------------------------------------------------------------------- go */

static int report(struct bring *b, struct job *job, struct why *why)
{
	struct json j = { .out = ckpt_json_open(b->o.json, why) };

	if (!j.out)
		return why->err;
	json_open(&j, NULL, '{');
	json_int(&j, "version", 1);
	json_string(&j, "job", strrchr(job->dir.path, '/') + 1);
	json_string(&j, "store", b->dir);
	json_string(&j, "checkpoint", b->id);
	json_number(&j, "seconds", phases_seconds(&b->ps));
	phases_json(&b->ps, &j, "phases");
	json_close(&j, '}');
	return ckpt_json_close(b->o.json, j.out, why);
}

/* For the history: which devices, without how ranks share them. */
static const char *onto(const struct bring *b)
{
	const char *text = b->o.where.text;

	if (!strncmp(text, BRING_SHARED, strlen(BRING_SHARED)))
		text = strchr(text, ':') + 1;
	return *text ? text : "-";
}

static int bring_go(void *arg, struct job *job, struct rundir_proxy *proxy, int n, pid_t root, struct why *why)
{
	struct bring *b = arg;
	struct phase *p = phase_begin(&b->ps, "go");
	struct why cause = { 0 };
	char *where = *b->o.where.text ? b->o.where.text : "-", *table, *whence;
	int err = 0;

	for (int i = 0; i < b->facts.proxies && !err; i++) {
		const struct ckpt_proxy *of = &b->facts.proxy[i];
		struct ctl_go req = { .h = { .op = CTL_GO, .size = sizeof(req) } };
		struct ctl_reply reply = { 0 };

		req.client_pid = job_host_pid(root, of->client);
		if (req.client_pid <= 0)
			continue;	/* the client has ended, which its proxy will see */
		for (int k = 0; k < n; k++)
			if (proxy[k].rank == of->rank && proxy[k].serial == of->serial)
				proxy[k].client = req.client_pid;
		err = ctl_call(b->control[i], &req.h, &reply, sizeof(reply), NULL, NULL, NULL,
			       SILENCE_MS);
		why_text(&cause, err, reply.why);
	}
	phase_end(&b->ps, p, 0, 0, err);
	if (!err) {
		bring_past(b, job->dir.path);
		ckpt_past_restored(job->dir.path, &b->ps, b->id, b->dir, onto(b));
	}
	close_fds(b);
	close_store(b);
	if (err)
		return late(b, job, "its GPU session", &cause, why);
	table = phases_text(&b->ps);	/* for the command that moves the job, which waits for this note */
	if (table && asprintf(&whence, "%s%llu MiB of device memory came from the job's former proxies, the rest from the store\n",
			      table, (unsigned long long)b->handed >> 20) > 0) {
		free(table);
		table = whence;
	}
	ckpt_note(job->dir.path, "restored", (char *[]){ b->id, where, table ?: "" }, 3);
	free(table);
	if (!b->o.quiet) {
		phases_table(&b->ps);
		tell_who(b, root);
	}
	phases_clear(&b->ps);
	if (b->o.json && report(b, job, &cause))
		b->o.tell("%s", cause.text);
	return 0;
}
