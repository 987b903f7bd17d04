// SPDX-License-Identifier: Apache-2.0
/*
 * rundir.c - creates, locks, sweeps and lists the folders of jobs; rundir.h says what is in them
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rundir.h"
#include "tool_i.h"

static bool mine(const char *dir)
{
	struct stat s;

	return !stat(dir, &s) && S_ISDIR(s.st_mode) && s.st_uid == geteuid();
}

static int base_path(char *path, size_t size)
{
	const char *xdg = getenv("XDG_RUNTIME_DIR");
	int n;

	if (xdg && *xdg == '/' && mine(xdg))
		n = snprintf(path, size, "%s/singvgpu", xdg);
	else if (!geteuid() && mine("/run"))
		n = snprintf(path, size, "/run/singvgpu");
	else
		n = snprintf(path, size, "/tmp/singvgpu-%u", geteuid());
	return n < (int)size ? 0 : -ENAMETOOLONG;
}

/* Opens and locks the base. It may be removed by who saw it empty before we had the lock. */
static int base_open(const char *path, bool create)
{
	for (;;) {
		struct stat s;
		int fd;

		if (create && mkdir(path, 0700) && errno != EEXIST)
			return -errno;
		fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0 && errno == ENOENT && create)
			continue;
		if (fd < 0)
			return -errno;
		if (fstat(fd, &s) || flock(fd, LOCK_EX)) {
			close(fd);
			return -errno;
		}
		if ((s.st_uid != geteuid() && (create || geteuid())) || s.st_mode & 022) {
			close(fd);
			return -EPERM;
		}
		if (!fstat(fd, &s) && s.st_nlink)
			return fd;
		close(fd);
		if (!create)
			return -ENOENT;
	}
}

/* The lock of a job's folder: an fd if it was free, -EWOULDBLOCK if it is held, else -errno. */
static int try_lock(const char *dir, int flags)
{
	char path[PATH_MAX];
	int fd, err;

	if (snprintf(path, sizeof(path), "%s/lock", dir) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB)) {
		err = -errno;
		close(fd);
		return err;
	}
	return fd;
}

static void empty(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	while (dir && (e = readdir(dir)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
}

int rundir_create(struct rundir *d)
{
	char base[PATH_MAX];
	int fd, err = base_path(base, sizeof(base));

	d->lock = -1;
	*d->path = 0;
	fd = err ?: base_open(base, true);
	if (fd < 0) {
		say_errno(fd, "the folder for running jobs, %s%s", base, fd == -EPERM ?
			  ", belongs to someone else or can be written by others" : "");
		return fd;
	}
	err = -EEXIST;
	for (int i = 0; i < 1000 && err == -EEXIST; i++) {
		err = 0;
		if (snprintf(d->path, sizeof(d->path), i ? "%s/%d.%d" : "%s/%d", base, getpid(),
			     i) >= (int)sizeof(d->path))
			err = -ENAMETOOLONG;
		else if (mkdir(d->path, 0700))
			err = -errno;
	}
	if (!err) {
		d->lock = try_lock(d->path, O_CREAT);
		err = d->lock < 0 ? d->lock : 0;
		if (err)
			rmdir(d->path);
	}
	close(fd);
	if (err)
		say_errno(err, "the job's folder %s cannot be created", d->path);
	return err;
}

/* The folder at path, locked; what a dead job has left in it is gone. */
static int take(const char *path)
{
	int lock;

	if (mkdir(path, 0700) && errno != EEXIST)
		return -errno;
	lock = try_lock(path, O_CREAT);
	if (lock < 0)
		return lock == -EWOULDBLOCK ? -EBUSY : lock;
	close(lock);
	empty(path);
	return try_lock(path, O_CREAT);
}

int rundir_create_as(struct rundir *d, const char *path)
{
	char base[PATH_MAX], *slash;
	int fd;

	d->lock = -1;
	*d->path = 0;
	snprintf(base, sizeof(base), "%s", path);
	slash = strrchr(base, '/');
	if (*path != '/' || slash == base || !isdigit((unsigned char)slash[1])) {
		say("%s is no folder of a job", path);
		return -EINVAL;
	}
	*slash = 0;
	fd = base_open(base, true);
	if (fd >= 0)
		d->lock = take(path);
	if (fd < 0 || d->lock < 0) {
		int err = fd < 0 ? fd : d->lock;

		if (err == -EBUSY)
			say("another job has the folder %s, which this one needs again: end that job "
			    "first", path);
		else
			say_errno(err, "the job's folder %s cannot be made again", path);
		if (fd >= 0)
			close(fd);
		return err;
	}
	snprintf(d->path, sizeof(d->path), "%s", path);
	close(fd);
	return 0;
}

void rundir_remove(struct rundir *d)
{
	char *slash;
	int fd;

	if (!*d->path)
		return;
	empty(d->path);
	rmdir(d->path);
	slash = strrchr(d->path, '/');
	*slash = 0;
	fd = base_open(d->path, false);
	if (fd >= 0) {
		rmdir(d->path);
		close(fd);
	}
	if (d->lock >= 0)
		close(d->lock);
	d->lock = -1;
	*d->path = 0;
}

int rundir_sweep(void)
{
	char base[PATH_MAX], path[PATH_MAX];
	int fd, lock, swept = 0, err = base_path(base, sizeof(base));
	struct dirent *e;
	DIR *dir;

	fd = err ?: base_open(base, false);
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	dir = opendir(base);
	while (dir && (e = readdir(dir))) {
		if (!isdigit((unsigned char)*e->d_name) ||
		    snprintf(path, sizeof(path), "%s/%s", base, e->d_name) >= (int)sizeof(path))
			continue;
		lock = try_lock(path, O_CREAT);
		if (lock < 0)
			continue;
		empty(path);
		swept += !rmdir(path);
		close(lock);
	}
	if (dir)
		closedir(dir);
	rmdir(base);
	close(fd);
	return swept;
}

/* ------------------------------------------------------------------------------- job file */

static void quote_word(FILE *out, const char *w)
{
	const char *safe = "_-./:=,@%+";
	const char *p = w;

	while (*p && (isalnum((unsigned char)*p) || strchr(safe, *p)))
		p++;
	if (*w && !*p) {
		fputs(w, out);
		return;
	}
	for (p = w; *p && !iscntrl((unsigned char)*p); p++)
		;
	if (*p)		/* $'…' keeps it on one line */
		putc('$', out);
	bool dollar = *p;

	putc('\'', out);
	for (p = w; *p; p++) {
		if (dollar && iscntrl((unsigned char)*p))
			fprintf(out, "\\%03o", (unsigned char)*p);
		else if (dollar && (*p == '\'' || *p == '\\'))
			fprintf(out, "\\%c", *p);
		else if (*p == '\'')
			fputs("'\\''", out);
		else
			putc(*p, out);
	}
	putc('\'', out);
}

char *rundir_quote(char *const argv[])
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return NULL;
	for (int i = 0; argv[i]; i++) {
		if (i)
			putc(' ', out);
		quote_word(out, argv[i]);
	}
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}

int rundir_write(const struct rundir *d, const struct rundir_job *job)
{
	char path[PATH_MAX + 8], fresh[PATH_MAX + 8];
	FILE *out;

	snprintf(path, sizeof(path), "%s/job", d->path);
	snprintf(fresh, sizeof(fresh), "%s/job.new", d->path);
	out = fopen(fresh, "we");
	if (!out)
		return -errno;
	fprintf(out, "version 1\npid %d\nsupervisor %d\nstarted %llu\ndevices %d\ncommand %s\n",
		job->pid, job->supervisor, (unsigned long long)job->started_ns, job->devices,
		job->command);
	fprintf(out, "folder %s\n", d->path);
	if (job->init)
		fprintf(out, "init %d\nstatus %s\n", job->init, job->status);
	if (job->terminal)
		fputs("terminal\n", out);
	for (int i = 0; i < job->ranks; i++) {
		const struct rundir_rank *r = &job->rank[i];

		fprintf(out, "rank %d %d %d %d %d\n", i, r->pid, r->state, r->code, r->inner);
		for (int f = 0; f < 3; f++)
			if (*r->stdio[f])
				fprintf(out, "stdio %d %d %s\n", i, f, r->stdio[f]);
	}
	for (int i = 0; i < job->proxies; i++)
		fprintf(out, "proxy %d %d %d %d\n", job->proxy[i].rank, job->proxy[i].serial,
			job->proxy[i].pid, job->proxy[i].client);
	if (fclose(out) || rename(fresh, path))
		return -errno;
	return 0;
}

static int add_rank(struct rundir_job *job, const char *line)
{
	struct rundir_rank r = { 0 }, *more;
	int i;

	if (sscanf(line, "rank %d %d %d %d %d", &i, &r.pid, &r.state, &r.code, &r.inner) < 4 ||
	    i != job->ranks)
		return 0;
	more = realloc(job->rank, (i + 1) * sizeof(r));
	if (!more)
		return -ENOMEM;
	more[i] = r;
	job->rank = more;
	job->ranks++;
	return 0;
}

static int add_proxy(struct rundir_job *job, const char *line)
{
	struct rundir_proxy p = { 0 }, *more;

	if (sscanf(line, "proxy %d %d %d %d", &p.rank, &p.serial, &p.pid, &p.client) != 4)
		return 0;
	more = realloc(job->proxy, (job->proxies + 1) * sizeof(p));
	if (!more)
		return -ENOMEM;
	more[job->proxies++] = p;
	job->proxy = more;
	return 0;
}

static void set_stdio(struct rundir_job *job, const char *line)
{
	char key[RUNDIR_KEY];
	int r, f;

	if (sscanf(line, "stdio %d %d %63s", &r, &f, key) == 3 && r >= 0 && r < job->ranks &&
	    f >= 0 && f < 3)
		strcpy(job->rank[r].stdio[f], key);
}

static int set_line(struct rundir_job *job, const char *line)
{
	unsigned long long started;

	if (sscanf(line, "started %llu", &started) == 1)
		job->started_ns = started;
	else if (!strncmp(line, "command ", 8) && !job->command)
		return (job->command = strdup(line + 8)) ? 0 : -ENOMEM;
	else if (!strncmp(line, "rank ", 5))
		return add_rank(job, line);
	else if (!strncmp(line, "proxy ", 6))
		return add_proxy(job, line);
	else if (!strncmp(line, "stdio ", 6))
		set_stdio(job, line);
	else if (!strncmp(line, "folder ", 7) && !*job->path)
		snprintf(job->path, sizeof(job->path), "%s", line + 7);
	else if (!strcmp(line, "terminal"))
		job->terminal = true;
	else if (sscanf(line, "pid %d", &job->pid) != 1 && sscanf(line, "init %d", &job->init) != 1 &&
		 sscanf(line, "supervisor %d", &job->supervisor) != 1 &&
		 sscanf(line, "status %63s", job->status) != 1)
		(void)sscanf(line, "devices %d", &job->devices);
	return 0;
}

static int read_lines(struct rundir_job *job, FILE *in)
{
	char *line = NULL;
	size_t size = 0;
	int err = 0;
	ssize_t n;

	while (!err && (n = getline(&line, &size, in)) > 0) {
		if (line[n - 1] == '\n')
			line[n - 1] = 0;
		err = set_line(job, line);
	}
	free(line);
	return err;
}

static int read_job(struct rundir_job *job)
{
	char path[PATH_MAX + 8];
	FILE *in;
	int err;

	snprintf(path, sizeof(path), "%s/job", job->path);
	in = fopen(path, "re");
	if (!in)
		return -errno;
	err = read_lines(job, in);
	fclose(in);
	return err;
}

int rundir_parse(struct rundir_job *job, const char *text, size_t len)
{
	FILE *in = fmemopen((void *)text, len, "r");
	int err;

	memset(job, 0, sizeof(*job));
	if (!in)
		return -ENOMEM;
	err = read_lines(job, in);
	fclose(in);
	if (!err && (!job->command || !job->ranks || *job->path != '/'))
		err = -EBADMSG;
	if (!err)
		snprintf(job->id, sizeof(job->id), "%.31s", strrchr(job->path, '/') + 1);
	return err;
}

static int list_base(const char *base, struct rundir_job **jobs, int *n)
{
	struct rundir_job *more, *job;
	struct dirent *e;
	int err = 0, lock, fd = base_open(base, false);
	DIR *dir;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	dir = opendir(base);
	while (dir && !err && (e = readdir(dir))) {
		if (!isdigit((unsigned char)*e->d_name))
			continue;
		more = realloc(*jobs, (*n + 1) * sizeof(*more));
		if (!more) {
			err = -ENOMEM;
			break;
		}
		*jobs = more;
		job = &more[*n];
		memset(job, 0, sizeof(*job));
		snprintf(job->id, sizeof(job->id), "%.31s", e->d_name);
		if (snprintf(job->path, sizeof(job->path), "%s/%s", base, e->d_name) >=
		    (int)sizeof(job->path))
			continue;
		lock = try_lock(job->path, 0);
		job->live = lock == -EWOULDBLOCK;
		if (lock >= 0)
			close(lock);
		err = read_job(job);
		if (err == -ENOENT)	/* it is just starting, or ending */
			err = 0;
		if (!job->command)
			job->command = strdup("");
		if (!job->command)
			err = -ENOMEM;
		(*n)++;
	}
	if (dir)
		closedir(dir);
	close(fd);
	return err;
}

static int by_start(const void *a, const void *b)
{
	const struct rundir_job *x = a, *y = b;

	return x->started_ns < y->started_ns ? -1 : x->started_ns > y->started_ns;
}

int rundir_list(struct rundir_job **jobs, bool all)
{
	static const char *const where[] = { "/run/singvgpu", "/run/user/*/singvgpu",
					     "/tmp/singvgpu-*" };
	char base[PATH_MAX];
	int n = 0, err = base_path(base, sizeof(base));
	glob_t found = { 0 };

	*jobs = NULL;
	if (!err)
		err = list_base(base, jobs, &n);
	for (size_t i = 0; all && i < sizeof(where) / sizeof(where[0]); i++)
		glob(where[i], i ? GLOB_APPEND : 0, NULL, &found);
	for (size_t i = 0; all && !err && i < found.gl_pathc; i++)
		if (strcmp(found.gl_pathv[i], base))	/* those of others may be shut to us */
			list_base(found.gl_pathv[i], jobs, &n);
	if (all)
		globfree(&found);
	if (err) {
		rundir_list_free(*jobs, n);
		*jobs = NULL;
		return err;
	}
	if (n)
		qsort(*jobs, n, sizeof(**jobs), by_start);
	return n;
}

void rundir_list_free(struct rundir_job *jobs, int n)
{
	for (int i = 0; i < n; i++) {
		free(jobs[i].command);
		free(jobs[i].rank);
		free(jobs[i].proxy);
	}
	free(jobs);
}
