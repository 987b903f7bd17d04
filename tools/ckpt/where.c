// SPDX-License-Identifier: Apache-2.0
/*
 * where.c - finds the store and the job that a command means, and locks the job
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt_facts.h"
#include "ckpt_where.h"
#include "control.h"
#include "tool_i.h"

#define START_MS	60000	/* for a job that is just being started */

/* ------------------------------------------------------------------------------- store */

static int user_place(char *to, size_t size)
{
	const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
	struct passwd *pw;
	int n;

	if (!geteuid())
		n = snprintf(to, size, "/var/lib/singvgpu/store");
	else if (data && *data == '/')
		n = snprintf(to, size, "%s/singvgpu/store", data);
	else if (home && *home == '/')
		n = snprintf(to, size, "%s/.local/share/singvgpu/store", home);
	else if ((pw = getpwuid(geteuid())))
		n = snprintf(to, size, "%s/.local/share/singvgpu/store", pw->pw_dir);
	else
		n = size;
	return n < (int)size ? 0 : -ENAMETOOLONG;
}

int ckpt_store_path(const char *given, char path[PATH_MAX], struct why *why)
{
	char place[PATH_MAX], cwd[PATH_MAX];
	int n, err = 0;

	if (!given || !*given)
		given = getenv("SINGVGPU_STORE");
	if (!given || !*given) {
		err = user_place(place, sizeof(place));
		given = place;
	}
	if (err || *given == '/')
		n = err ?: snprintf(path, PATH_MAX, "%s", given);
	else if (getcwd(cwd, sizeof(cwd)))
		n = snprintf(path, PATH_MAX, "%s/%s", cwd, given);
	else
		n = -errno;
	if (n >= CTL_PATH_MAX)
		n = -ENAMETOOLONG;
	return n < 0 ? why_set(why, n, "the store's path: %s", strerror(-n)) : 0;
}

int ckpt_trust_owner(const char *text, uid_t *uid, struct why *why)
{
	struct passwd *pw = getpwnam(text);
	long number;

	if (!pw && parse_int(text, 0, INT_MAX, &number))
		return why_set(why, -ENOENT, "--trust-owner %s: there is no such user", text);
	*uid = pw ? pw->pw_uid : (uid_t)number;
	return 0;
}

int ckpt_store_parents(const char *path, struct why *why)
{
	char part[PATH_MAX];

	snprintf(part, sizeof(part), "%s", path);
	for (char *at = part + 1; (at = strchr(at, '/')); at++) {
		*at = 0;
		if (mkdir(part, 0700) && errno != EEXIST && errno != EROFS && errno != EACCES)
			return why_set(why, -errno, "the store's folder %s cannot be made: %s", part,
				       strerror(errno));
		*at = '/';
	}
	return 0;
}

/* --------------------------------------------------------------------------------- job */

static pid_t parent_of(pid_t pid)
{
	pid_t parent;

	return family_state(pid, &parent) ? parent : 0;
}

static bool of_job(const struct rundir_job *job, pid_t pid)
{
	for (int up = 0; pid > 1 && up < 1000; up++, pid = parent_of(pid))
		if (pid == job->pid || pid == job->supervisor)
			return true;
	return false;
}

struct rundir_job *ckpt_live_job(const char *who, int which, int *live, struct why *why)
{
	struct rundir_job *jobs, *job = NULL;
	int n = rundir_list(&jobs, which, NULL), found = -1;
	long pid;

	*live = n < 0 ? n : 0;
	if (n < 0) {
		why_set(why, n, "the jobs cannot be listed: %s", strerror(-n));
		return NULL;
	}
	for (int i = 0; i < n; i++) {
		*live += jobs[i].live;
		if (jobs[i].live && !strcmp(jobs[i].id, who))
			found = i;
	}
	if (found < 0 && !parse_int(who, 2, INT_MAX, &pid))
		for (int i = 0; i < n && found < 0; i++)
			if (jobs[i].live && of_job(&jobs[i], pid))
				found = i;
	if (found >= 0)
		job = malloc(sizeof(*job));
	if (job) {
		*job = jobs[found];
		jobs[found] = (struct rundir_job){ 0 };
	}
	rundir_list_free(jobs, n);
	return job;
}

/*
 * A job that is being started has a folder, but not yet the file with its supervisor and ranks.
 * Waits for that file, without which a conductor would hold no gate and know no session.
 */
struct rundir_job *ckpt_find_job(const char *who, struct why *why)
{
	struct rundir_job *job;
	int live;

	for (int ms = 0; (job = ckpt_live_job(who, RUNDIR_OWN, &live, why)) && !job->ranks && ms < START_MS;
	     ms += 10) {
		rundir_list_free(job, 1);
		usleep(10000);
	}
	if (job && !job->ranks) {
		why_set(why, -EAGAIN, "job %s has not been started yet: there is nothing to save", job->id);
		rundir_list_free(job, 1);
		return NULL;
	}
	if (!job && live >= 0)
		why_set(why, -ENOENT, "there is no running job '%s'; `singvgpu ps` lists the running ones (%d)%s",
			who, live, geteuid() ? "" : ", and those of other users cannot be saved");
	return job;
}

int ckpt_tree(pid_t root, pid_t **pids)
{
	DIR *dir = opendir("/proc");
	struct dirent *e;
	int n = 0;

	*pids = NULL;
	while (dir && (e = readdir(dir))) {
		pid_t pid = atoi(e->d_name), up = pid, *more;

		for (int far = 0; up > 1 && up != root && far < 1000; far++)
			up = parent_of(up);
		if (!pid || up != root)
			continue;
		more = realloc(*pids, (n + 1) * sizeof(*more));
		if (!more) {
			n = -ENOMEM;
			break;
		}
		*pids = more;
		more[n++] = pid;
		/* Numbers begin anew, so that a descendant may have a smaller one. */
		if (pid == root) {
			memmove(more + 1, more, (n - 1) * sizeof(*more));
			*more = root;
		}
	}
	if (dir)
		closedir(dir);
	if (n < 0) {
		free(*pids);
		*pids = NULL;
	}
	return n;
}

int ckpt_rank_of(const struct rundir_job *job, pid_t pid)
{
	for (int up = 0; pid > 1 && up < 1000; up++, pid = parent_of(pid))
		for (int r = 0; r < job->ranks; r++)
			if (job->rank[r].pid == pid)
				return r;
	return 0;
}

/* -------------------------------------------------------------------------------- hold */

/* Waits up to *ms, and subtracts the time that it took. */
static int lock(const char *rundir, const char *name, int flags, long *ms)
{
	int fd = rundir_open(rundir, geteuid(), name, O_RDWR | flags);

	if (fd < 0)
		return fd;
	while (flock(fd, LOCK_EX | LOCK_NB)) {
		int err = -errno;

		if ((err != -EWOULDBLOCK && err != -EINTR) || *ms <= 0) {
			close(fd);
			return err;
		}
		usleep(10000);
		*ms -= 10;
	}
	return fd;
}

int ckpt_hold(const struct rundir_job *job, long ms, struct ckpt_hold *h, struct why *why)
{
	char gate[RUNDIR_NAME];
	int fd;

	h->gates = 0;
	h->conductor = lock(job->path, "conductor.lock", O_CREAT, &ms);
	if (h->conductor == -EWOULDBLOCK)
		return why_set(why, h->conductor, "job %s is being checkpointed or brought back; try "
			       "again when that is done", job->id);
	if (h->conductor < 0)
		return why_set(why, h->conductor, "%s/conductor.lock: %s", job->path,
			       strerror(-h->conductor));
	for (int r = 0; r < job->ranks; r++) {
		rundir_name(gate, RUNDIR_GATE, r, 0);
		fd = lock(job->path, gate, 0, &ms);
		if (fd >= 0) {
			h->gate[h->gates++] = fd;
			continue;
		}
		ckpt_release(h);
		if (fd == -EWOULDBLOCK)
			return why_set(why, fd, "a process of rank %d is still opening its GPU session; "
				       "try again", r);
		return why_set(why, fd, "%s/%s: %s", job->path, gate, strerror(-fd));
	}
	return 0;
}

int ckpt_hold_alone(const char *rundir, long ms)
{
	return lock(rundir, "conductor.lock", O_CREAT, &ms);
}

/* True: the job file has each proxy that listens. */
static bool all_told(const char *rundir, const struct rundir_job *now)
{
	char path[PATH_MAX + 300];
	bool all = true;
	struct dirent *e;
	DIR *dir = opendir(rundir);
	int rank, serial, fd;

	while (dir && all && (e = readdir(dir))) {
		struct why why = { 0 };

		if (!rundir_is_control(e->d_name, &rank, &serial))
			continue;
		for (int i = 0; i < now->proxies; i++)
			if (now->proxy[i].rank == rank && now->proxy[i].serial == serial)
				rank = -1;
		if (rank < 0)
			continue;
		snprintf(path, sizeof(path), "%s/%s", rundir, e->d_name);
		fd = ctl_connect(path, &why);
		all = fd < 0;
		if (fd >= 0)
			close(fd);
	}
	if (dir)
		closedir(dir);
	return all;
}

bool ckpt_is_up(const struct rundir_job *job)
{
	struct rundir_job *now = calloc(1, sizeof(*now));
	char *text = NULL;
	bool up = false;
	size_t n = 0;

	/* Whoever reads the file next reports that it cannot be read. */
	if (!now || rundir_read(job->path, geteuid(), "job", &text, &n) || !n ||
	    rundir_parse(now, text, n))
		up = true;
	else
		for (int r = 0; r < now->ranks; r++)
			up |= now->rank[r].pid > 0 && all_told(job->path, now);
	free(text);
	if (now)
		rundir_list_free(now, 1);
	return up;
}

void ckpt_release(struct ckpt_hold *h)
{
	for (int i = 0; i < h->gates; i++)
		close(h->gate[i]);
	h->gates = 0;
	if (h->conductor >= 0)
		close(h->conductor);
	h->conductor = -1;
}

/* ------------------------------------------------------------------------------- files */

FILE *ckpt_json_open(const char *path, struct why *why)
{
	FILE *out = strcmp(path, "-") ? fopen(path, "we") : stdout;

	if (!out)
		why_set(why, -errno, "%s cannot be written: %s", path, strerror(errno));
	return out;
}

int ckpt_json_close(const char *path, FILE *out, struct why *why)
{
	return out == stdout || !fclose(out) ? 0 : why_set(why, -errno, "%s cannot be written: %s", path, strerror(errno));
}

int ckpt_note(const char *rundir, const char *name, char *const words[], int n)
{
	FILE *out = rundir_begin(rundir, name);

	if (!out)
		return -errno;
	for (int i = 0; i < n; i++) {
		if (i)
			putc(' ', out);
		facts_word(out, words[i]);
	}
	putc('\n', out);
	return rundir_commit(rundir, name, out);
}

void ckpt_note_remove(const char *rundir, const char *name)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", rundir, name) < (int)sizeof(path))
		unlink(path);
}

int ckpt_read_note(const char *rundir, const char *name, char *words[], int room, char **text)
{
	size_t n;
	int err;

	*text = NULL;
	err = rundir_read(rundir, geteuid(), name, text, &n);
	if (!err && !**text)
		err = -ENOENT;
	if (err) {
		free(*text);
		*text = NULL;
		return err;
	}
	(*text)[strcspn(*text, "\n")] = 0;
	return facts_words(*text, words, room);
}
