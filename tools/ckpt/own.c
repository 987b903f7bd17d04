// SPDX-License-Identifier: Apache-2.0
/*
 * own.c - the supervisor's part in a job's own checkpoints; ckpt_own.h has the states
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt_bring.h"
#include "ckpt_options.h"
#include "ckpt_own.h"
#include "history.h"
#include "jobboard.h"
#include "watch.h"

#define LOOK_MS		200	/* between two counts of the launches */
#define GIVE_UP_MS	5000	/* from SIGTERM to SIGKILL for a checkpoint */
#define RETRY_MS	1000
#define SAME_MAX	3	/* restarts from one checkpoint */

/* -------------------------------------------------------------------------------- child */

static void child(const struct own *o, enum own_state what, sigset_t *mask) __attribute__((noreturn));
static void child(const struct own *o, enum own_state what, sigset_t *mask)
{
	const struct job_options *opt = o->job->opt;
	int null = open("/dev/null", O_RDWR);
	char *argv[20] = { "singvgpu", what == OWN_TURNS ? "resize" : "checkpoint", "--quiet" }, at_step[48];
	bool leave = what == OWN_PERIODIC;
	char owner[24];
	long step_ms;
	int n = 3;

	if (leave)
		argv[n++] = "--leave-running";
	if (what == OWN_TURNS) {
		argv[n++] = "--no-wait";	/* until we have brought the job back */
		argv[n++] = "--share";
		argv[n++] = "auto";
		snprintf(owner, sizeof(owner), "%u", opt->trust_owner);
		argv[n++] = "--trust-owner";
		argv[n++] = owner;
	}
	if (opt->store) {
		argv[n++] = "--store";
		argv[n++] = opt->store;
	}
	if (opt->criu) {
		argv[n++] = "--criu";
		argv[n++] = opt->criu;
	}
	if (opt->outside && what != OWN_TURNS)
		argv[n++] = "--outside";
	if (opt->at_step_ms && what != OWN_TURNS) {
		/* At a preemption half of the time remains for the rest. */
		step_ms = leave || opt->at_step_ms < opt->preempt_ms / 2 ? opt->at_step_ms : opt->preempt_ms / 2;
		snprintf(at_step, sizeof(at_step), "--at-step=%.3f", step_ms / 1e3);
		if (step_ms)
			argv[n++] = at_step;
	}
	argv[n++] = "--";
	argv[n++] = strrchr(o->job->dir.path, '/') + 1;
	dup2(null, STDIN_FILENO);
	dup2(null, STDOUT_FILENO);
	signal(SIGCHLD, SIG_DFL);
	signal(SIGTTOU, SIG_DFL);
	sigprocmask(SIG_SETMASK, mask, NULL);
	execv("/proc/self/exe", argv);
	_exit(EXIT_OURS);
}

static int begin_own(struct own *o, enum own_state state)
{
	sigset_t none;
	pid_t pid;

	sigemptyset(&none);
	pid = fork();
	if (!pid)
		child(o, state, &none);
	if (pid < 0) {
		o->job->tell("a checkpoint cannot be begun: %s", strerror(errno));
		return -errno;
	}
	o->child = pid;
	o->state = state;
	o->pressed = 0;
	return 0;
}

/* --------------------------------------------------------------------------------- loop */

/* Should the job come back as it was, it could not be moved to slices: that is not to be tried for ever. */
static bool in_vain;

int own_start(struct own *o, const struct job *job, struct why *why)
{
	const struct job_options *opt = job->opt;
	int err;

	/* A signal that came while the job was being moved still counts. */
	*o = (struct own){ .job = job, .wanted = o->wanted, .deadline = o->wanted ? o->deadline : 0 };
	o->due = opt->every_ms ? now_ms() + opt->every_ms : 0;
	err = ckpt_options_write(job);
	return err ? why_set(why, err, "%s/options: %s", job->dir.path, strerror(-err)) : 0;
}

static uint64_t count(const struct own *o, const struct rundir_job *info)
{
	struct rundir_job at = *info;
	struct uproxy_stat st;
	uint64_t n = 0;

	snprintf(at.path, sizeof(at.path), "%s", o->job->dir.path);
	at.uid = geteuid();
	for (int i = 0; i < info->proxies; i++) {
		watch_stat(&at, &info->proxy[i], &st, NULL);
		n += st.launches;
	}
	return n;
}

static bool is_due(struct own *o, const struct rundir_job *info, uint64_t now)
{
	uint64_t steps = o->job->opt->every_steps, launches;

	if (o->due && now >= o->due)
		return true;
	if (!steps || now < o->looked + LOOK_MS)
		return false;
	o->looked = now;
	launches = count(o, info);
	if (launches < o->launches)	/* some proxies have ended */
		o->launches = launches;
	return launches - o->launches >= steps;
}

/* After the grace time sends the checkpoint SIGTERM, then SIGKILL; the job survives both. */
static void press(struct own *o, uint64_t now)
{
	if (!o->deadline || now < o->deadline)
		return;
	if (!o->pressed)
		o->job->tell("the checkpoint at SIG%s has taken longer than %g s and is given up",
			     sigabbrev_np(o->job->opt->preempt_signal), o->job->opt->preempt_ms / 1e3);
	kill(o->child, o->pressed++ ? SIGKILL : SIGTERM);
	o->deadline = now + GIVE_UP_MS;
}

/* Do ranks share a device together that may take turns with it when it is full? */
static bool may_crowd(const struct job *job)
{
	return job->seating->share == SHARE_AUTO && !job->seating->slices && seating_crowded(job->seating) >= 0;
}

int own_step(struct own *o, const struct rundir_job *info)
{
	const struct job_options *opt = o->job->opt;
	uint64_t now = now_ms(), next = UINT64_MAX;

	if (in_vain)
		jobboard_helpless(o->job->board);
	in_vain = false;
	if (!o->child && o->wanted && !begin_own(o, OWN_PREEMPT)) {
		o->wanted = false;
	} else if (!o->child && jobboard_crowded(o->job->board)) {
		o->job->tell("a device has no room for what its ranks want: they are to take turns with it");
		if (begin_own(o, OWN_TURNS))
			jobboard_helpless(o->job->board);
	} else if (!o->child && is_due(o, info, now)) {
		o->due = 0;
		o->launches = opt->every_steps ? count(o, info) : 0;
		begin_own(o, OWN_PERIODIC);
	}
	if (o->child) {
		press(o, now);
		next = o->deadline ?: next;
	} else {
		if (o->due)
			next = o->due;
		if ((opt->every_steps || may_crowd(o->job)) && now + LOOK_MS < next)
			next = now + LOOK_MS;
		if (o->wanted)
			next = now + RETRY_MS;
	}
	return next == UINT64_MAX ? -1 : next > now ? (int)(next - now) : 0;
}

bool own_signal(struct own *o, int sig)
{
	const struct job_options *opt = o->job->opt;

	if (!opt->preempt_signal || sig != opt->preempt_signal)
		return false;
	if (o->state == OWN_PREEMPT || o->wanted)
		return true;
	o->deadline = now_ms() + opt->preempt_ms;
	o->wanted = true;
	return true;
}

bool own_ended(struct own *o, pid_t pid, int status, int *forward)
{
	enum own_state was = o->state;

	*forward = 0;
	if (!o->child || pid != o->child)
		return false;
	o->child = 0;
	o->state = OWN_IDLE;
	/* From the checkpoint's end on, so that long checkpoints leave the job time to run. */
	o->due = o->job->opt->every_ms ? now_ms() + o->job->opt->every_ms : 0;
	if (status && was == OWN_TURNS)
		jobboard_helpless(o->job->board);
	if (was != OWN_PREEMPT && o->wanted)
		return true;		/* own_step begins the one for the signal */
	o->deadline = 0;
	if (status && was == OWN_PREEMPT) {
		o->job->tell("the command gets SIG%s instead", sigabbrev_np(o->job->opt->preempt_signal));
		*forward = o->job->opt->preempt_signal;
	}
	return true;
}

void own_stop(struct own *o)
{
	o->due = 0;
	o->wanted = false;
	if (o->child)
		kill(o->child, SIGTERM);
}

/* -------------------------------------------------------------------------------- again */

int own_check(const struct job_options *opt, struct why *why)
{
	struct why cause = { 0 };
	char path[PATH_MAX];
	struct store *s = NULL;
	int err;

	if (!opt->restart)
		return 0;
	err = ckpt_store_path(opt->store, path, &cause);
	if (!err)
		err = store_open_trusted(&s, path, 0, opt->trust_owner, &cause);
	store_close(s);
	return err == -EPERM ? why_set(why, err, "--restart could not bring the command back: %s", cause.text) : 0;
}

static struct bring again = { .hold = -1 };
static char again_id[STORE_ID];
static int again_same;

/* where: as bring_where_parse() takes it, or NULL. now: the devices that the ranks are on now, or NULL for the checkpoint's. */
static const struct job_restore *bring_back(const char *id, const char *store, uid_t trust, const char *where,
					    const struct seating *now, const struct job *job)
{
	struct bring_options o = { .store = store, .id = id, .criu = job->opt->criu,
				   .trust = trust, .quiet = true, .tell = job->tell, .where.on.now = now };
	struct why why = { 0 };

	bring_close(&again);
	if (where && bring_where_parse(where, &o.where))
		return NULL;
	if (bring_open(&again, &o, &why)) {
		job->tell("%s", why.text);
		tell_lines(job->tell, again.below);
		bring_close(&again);
		return NULL;
	}
	if (bring_check(&again, &why)) {
		job->tell("checkpoint %s cannot be restored: %s", again.id, why.text);
		return NULL;
	}
	return &again.restore;
}

/* A failed move to other devices: the job is restored on its former ones. */
static const struct job_restore *stay(const char *id, const char *store, uid_t trust, const struct job *job)
{
	job->tell("the job goes on where it was");
	return bring_back(id, store, trust, NULL, NULL, job);
}

static const struct job_restore *restart(struct job *job)
{
	char *word[4], *text = NULL;
	const struct job_restore *r = NULL;
	int n = ckpt_read_note(job->dir.path, "last", word, 4, &text);

	if (n < 2) {
		job->tell("a proxy is lost, and there is no checkpoint yet to bring the command back from");
	} else {
		again_same = strcmp(again_id, word[0]) ? 1 : again_same + 1;
		snprintf(again_id, sizeof(again_id), "%.32s", word[0]);
		if (again_same > SAME_MAX) {
			job->tell("checkpoint %s has been restored %d times without coming to a newer "
				  "one: it is not restored again", again_id, SAME_MAX);
		} else {
			job->tell("a proxy is lost; the command comes back from checkpoint %s", again_id);
			/* The checkpoint may be older than a resize. */
			r = bring_back(word[0], word[1], job->opt->trust_owner, NULL, job->seating, job);
		}
	}
	free(text);
	return r;
}

const struct job_restore *own_again(void *arg, struct job *job, enum job_end end, int status)
{
	char *word[16], *text = NULL, path[PATH_MAX + 16], id[STORE_ID], store[PATH_MAX];
	const struct job_restore *r = NULL;
	struct why why = { 0 };
	uid_t trust;
	int n;

	(void)arg;
	if (end == JOB_LOST && status && job->opt->restart)
		return restart(job);
	if (end == JOB_UNRESTORED && again.restore.was && *again.o.where.text) {
		snprintf(id, sizeof(id), "%s", again.id);
		snprintf(store, sizeof(store), "%s", again.dir);
		trust = again.o.trust;
		in_vain = again.o.where.on.how == SHARE_SLICES;
		if (job->former) {	/* they may have been in the way */
			job->former = false;
			snprintf(path, sizeof(path), "%s", again.o.where.text);
			job->tell("it is tried once more, now that the job's former proxies have ended");
			r = bring_back(id, store, trust, path, NULL, job);
		}
		return r ?: stay(id, store, trust, job);
	}
	if (end != JOB_TAKEN)
		return NULL;
	n = ckpt_read_note(job->dir.path, "checkpointed", word, 16, &text);
	if (n == 5 && !strcmp(word[2], "device")) {
		ckpt_note_remove(job->dir.path, "checkpointed");
		in_vain = strstr(word[3], "/slices:");	/* should it fail; by slices nobody asks */
		r = bring_back(word[0], word[1], strtoul(word[4], NULL, 10), word[3], NULL, job) ?:
		    stay(word[0], word[1], strtoul(word[4], NULL, 10), job);
		if (!r)
			job->tell(OWN_SAVED, word[0], word[1], word[0]);
	} else if (n == 7 && !strcmp(word[2], "host")) {
		char *command = ckpt_remote_command(word[5], word[1], word[6], word[0], NULL);

		/* We become the connection: output, signals and the exit status go through it. */
		snprintf(path, sizeof(path), "moved to %s", word[3]);
		history_close(job->dir.path, 0, path);
		rundir_remove(&job->dir);
		ckpt_ssh_exec(word[4], word[3], command ?: "false", &why);
		job->tell("%s", why.text);
		free(command);
	} else if (n >= 2) {
		job->tell(OWN_SAVED, word[0], word[1], word[0]);
	}
	free(text);
	return r;
}
