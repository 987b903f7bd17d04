// SPDX-License-Identifier: Apache-2.0
/*
 * ckpt_where.c - where the store is, which job is meant, and that no one else is at it
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

#include "ckpt_i.h"
#include "control.h"

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

int ckpt_store_path(const char *given, char path[PATH_MAX])
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
	if (n < 0)
		say_errno(n, "the store's path");
	return n < 0 ? n : 0;
}

int ckpt_store_parents(const char *path)
{
	char part[PATH_MAX];

	snprintf(part, sizeof(part), "%s", path);
	for (char *at = part + 1; (at = strchr(at, '/')); at++) {
		*at = 0;
		if (mkdir(part, 0700) && errno != EEXIST && errno != EROFS && errno != EACCES) {
			int err = -errno;

			say_errno(err, "the store's folder %s cannot be made", part);
			return err;
		}
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

/* The job, NULL: there is none, or an error (said, *live < 0). */
static struct rundir_job *find(const char *who, int *live)
{
	struct rundir_job *jobs, *job = NULL;
	int n = rundir_list(&jobs, !geteuid()), found = -1;
	long pid;

	*live = n < 0 ? n : 0;
	if (n < 0) {
		say_errno(n, "the jobs cannot be listed");
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
 * A job that is just being started has a folder, but not yet the file with its supervisor and ranks:
 * who took that for all there is would hold no gate, and know no session.
 */
struct rundir_job *ckpt_find_job(const char *who)
{
	struct rundir_job *job;
	int live;

	for (int ms = 0; (job = find(who, &live)) && !job->ranks && ms < START_MS; ms += 10) {
		rundir_list_free(job, 1);
		usleep(10000);
	}
	if (job && !job->ranks) {
		say("job %s does not get started: there is nothing to save yet", job->id);
		rundir_list_free(job, 1);
		return NULL;
	}
	if (!job && live >= 0)
		say("there is no running job '%s'; `singvgpu ps` lists those that there are (%d)",
		    who, live);
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
	}
	if (dir)
		closedir(dir);
	if (n < 0) {
		free(*pids);
		*pids = NULL;
	}
	return n;
}

bool ckpt_has_ended(pid_t pid)
{
	char state = family_state(pid, NULL);

	return !state || state == 'Z' || state == 'X';
}

/* -------------------------------------------------------------------------------- hold */

/* Waits up to *ms, which is counted down. */
static int lock(const char *path, int flags, long *ms)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);

	if (fd < 0)
		return -errno;
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

int ckpt_hold(const struct rundir_job *job, long ms, struct ckpt_hold *h)
{
	char path[PATH_MAX + 32];
	int fd;

	h->gates = 0;
	snprintf(path, sizeof(path), "%s/conductor.lock", job->path);
	h->conductor = lock(path, O_CREAT, &ms);
	if (h->conductor < 0) {
		if (h->conductor == -EWOULDBLOCK)
			say("job %s is being checkpointed or brought back; try again when that is "
			    "done", job->id);
		else if (h->conductor != -ENOENT)	/* it has ended: the caller says so */
			say_errno(h->conductor, "%s", path);
		return h->conductor;
	}
	for (int r = 0; r < job->ranks; r++) {
		snprintf(path, sizeof(path), "%s/%d.sock.gate", job->path, r);
		fd = lock(path, 0, &ms);
		if (fd >= 0) {
			h->gate[h->gates++] = fd;
			continue;
		}
		if (fd == -EWOULDBLOCK)
			say("a process of rank %d does not get done with opening its GPU session; "
			    "try again", r);
		else if (fd != -ENOENT)
			say_errno(fd, "%s", path);
		ckpt_release(h);
		return fd;
	}
	return 0;
}

int ckpt_hold_alone(const char *rundir, long ms)
{
	char path[PATH_MAX + 32];

	snprintf(path, sizeof(path), "%s/conductor.lock", rundir);
	return lock(path, O_CREAT, &ms);
}

/* Does the job file know each proxy that listens? */
static bool all_told(const char *rundir, const struct rundir_job *now)
{
	char path[PATH_MAX + 300], why[256], end;
	bool all = true;
	struct dirent *e;
	DIR *dir = opendir(rundir);
	int rank, serial, fd;

	while (dir && all && (e = readdir(dir))) {
		if (sscanf(e->d_name, "%d-%d.ct%c", &rank, &serial, &end) != 3 || end != 'l')
			continue;
		for (int i = 0; i < now->proxies; i++)
			if (now->proxy[i].rank == rank && now->proxy[i].serial == serial)
				rank = -1;
		if (rank < 0)
			continue;
		snprintf(path, sizeof(path), "%s/%s", rundir, e->d_name);
		fd = ctl_connect(path, why, sizeof(why));
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
	char path[PATH_MAX + 8], text[65536];
	bool up = false;
	ssize_t n = 0;
	int fd;

	snprintf(path, sizeof(path), "%s/job", job->path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, sizeof(text));
		close(fd);
	}
	/* One that cannot be read is somebody else's trouble. */
	if (!now || n <= 0 || rundir_parse(now, text, n))
		up = true;
	else
		for (int r = 0; r < now->ranks; r++)
			up |= now->rank[r].pid > 0 && all_told(job->path, now);
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

FILE *ckpt_json_open(const char *path)
{
	FILE *out = strcmp(path, "-") ? fopen(path, "we") : stdout;

	if (!out)
		say_errno(errno, "%s cannot be written", path);
	return out;
}

int ckpt_json_close(const char *path, FILE *out)
{
	if (out == stdout || !fclose(out))
		return 0;
	say_errno(errno, "%s cannot be written", path);
	return EXIT_OURS;
}

int ckpt_note(const char *rundir, const char *name, char *const words[], int n)
{
	char path[PATH_MAX], fresh[PATH_MAX];
	FILE *out;

	if (snprintf(path, sizeof(path), "%s/%s", rundir, name) >= (int)sizeof(path) ||
	    snprintf(fresh, sizeof(fresh), "%s/%s.new", rundir, name) >= (int)sizeof(fresh))
		return -ENAMETOOLONG;
	out = fopen(fresh, "we");
	if (!out)
		return -errno;
	for (int i = 0; i < n; i++) {
		if (i)
			putc(' ', out);
		facts_word(out, words[i]);
	}
	putc('\n', out);
	if (fclose(out) || rename(fresh, path))
		return -errno;
	return 0;
}

int ckpt_read_note(const char *rundir, const char *name, char *words[], int room, char **text)
{
	char path[PATH_MAX];
	size_t size = 0;
	ssize_t n;
	FILE *in;

	*text = NULL;
	if (snprintf(path, sizeof(path), "%s/%s", rundir, name) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	in = fopen(path, "re");
	if (!in)
		return -errno;
	n = getline(text, &size, in);
	fclose(in);
	if (n <= 0) {
		free(*text);
		*text = NULL;
		return -ENOENT;
	}
	if ((*text)[n - 1] == '\n')
		(*text)[n - 1] = 0;
	return facts_words(*text, words, room);
}
