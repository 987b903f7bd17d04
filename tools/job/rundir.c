// SPDX-License-Identifier: Apache-2.0
/*
 * rundir.c - creates, locks, sweeps and lists the folders of jobs; rundir.h has their files
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"
#include "history.h"
#include "rundir.h"
#include "tool_i.h"

#define TEXT_MAX	(16u << 20)	/* bytes of a job file: the command may be long */
#define RANKS_MAX	256		/* JOB_RANKS_MAX */
#define PROXIES_MAX	4096
#define LINES_MAX	16384
#define LEAVES_MS	30000		/* for a supervisor whose job has been saved: it frees the devices' memory */
#define PLACES_MAX	131072		/* entries of a folder where other users' bases are */

/*
 * What is read of other users' jobs for a list: any user can make as many and as large files as the disk takes, and a
 * folder for each uid of a user namespace.
 */
struct allowance {
	long jobs, lines;
	long bytes;
};

static const struct allowance of_one = { 64, 8192, 4 << 20 }, of_all = { 512, 32768, 32 << 20 };

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

/*
 * Opens and locks the base. Before we get the lock, another process may remove an empty base.
 * Before we wait, the base must be ours and closed to others: whoever can open a folder can hold
 * its lock.
 */
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
		if (fstat(fd, &s) || s.st_uid != geteuid() || s.st_mode & 022) {
			close(fd);
			return -EPERM;
		}
		if ((s.st_mode & 077 && fchmod(fd, s.st_mode & 0700)) || flock(fd, LOCK_EX)) {
			int err = -errno;

			close(fd);
			return err;
		}
		if (!fstat(fd, &s) && s.st_nlink)
			return fd;
		close(fd);
		if (!create)
			return -ENOENT;
	}
}

int rundir_open(const char *dir, uid_t owner, const char *name, int flags)
{
	int folder = open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), fd = -1, err = 0;
	struct stat s;

	if (folder < 0)
		return -errno;
	if (fstat(folder, &s))
		err = -errno;
	else if (s.st_uid != owner || s.st_mode & 022)
		err = -EPERM;
	if (!err) {
		fd = openat(folder, name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
			    0600);
		err = fd < 0 ? -errno : fstat(fd, &s) ? -errno : 0;
	}
	close(folder);
	/* st_nlink may be 0: the file was replaced at this moment. */
	if (!err && (!S_ISREG(s.st_mode) || s.st_uid != owner || s.st_nlink > 1))
		err = -EPERM;
	if (err && fd >= 0)
		close(fd);
	errno = -err;
	return err ?: fd;
}

FILE *rundir_begin(const char *dir, const char *name)
{
	char fresh[PATH_MAX];
	FILE *out;
	int fd;

	if (snprintf(fresh, sizeof(fresh), "%s/%s.new", dir, name) >= (int)sizeof(fresh)) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	unlink(fresh);		/* left by a killed process */
	fd = rundir_open(dir, geteuid(), fresh + strlen(dir) + 1, O_WRONLY | O_CREAT | O_EXCL);
	out = fd < 0 ? NULL : fdopen(fd, "w");
	if (fd >= 0 && !out)
		close(fd);
	return out;
}

void rundir_drop(const char *dir, const char *name, FILE *out)
{
	char fresh[PATH_MAX];

	fclose(out);
	snprintf(fresh, sizeof(fresh), "%s/%s.new", dir, name);
	unlink(fresh);
}

int rundir_commit(const char *dir, const char *name, FILE *out)
{
	char path[PATH_MAX], fresh[PATH_MAX];
	int err = 0;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	snprintf(fresh, sizeof(fresh), "%s/%s.new", dir, name);
	/* fclose() tells nothing of a write that has failed before. */
	if (ferror(out))
		err = -EIO;
	if ((fclose(out) || rename(fresh, path)) && !err)
		err = -errno;
	if (err)
		unlink(fresh);
	return err;
}

int rundir_read_most(const char *dir, uid_t owner, const char *name, size_t most, char **text, size_t *len)
{
	int fd = rundir_open(dir, owner, name, O_RDONLY);
	FILE *out = fd < 0 ? NULL : open_memstream(text, len);
	char part[4096];
	size_t all = 0;
	ssize_t n = 0;

	if (fd < 0)
		return fd;
	while (out && all <= most && (n = read(fd, part, sizeof(part))) > 0)
		all += fwrite(part, 1, n, out);
	close(fd);
	if (!out || fclose(out))
		return -ENOMEM;
	if (n >= 0 && all <= most)
		return 0;
	free(*text);
	*text = NULL;
	return n < 0 ? -EIO : -EFBIG;
}

int rundir_read(const char *dir, uid_t owner, const char *name, char **text, size_t *len)
{
	return rundir_read_most(dir, owner, name, TEXT_MAX, text, len);
}

int rundir_try_lock(const char *dir, uid_t owner, const char *name, int flags)
{
	int fd = rundir_open(dir, owner, name, O_RDWR | flags), err;

	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB)) {
		err = -errno;
		close(fd);
		return err;
	}
	return fd;
}

/* "1234", "1234.1" */
static bool is_id(const char *name)
{
	size_t n = strspn(name, "0123456789");

	return n && n < 20 && (!name[n] || (name[n] == '.' && name[n + 1] &&
		!name[n + 1 + strspn(name + n + 1, "0123456789")])) && strlen(name) < 32;
}

/* The job's file first: who finds the others gone then finds that the job has ended. */
static void empty(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	if (dir)
		unlinkat(dirfd(dir), "job", 0);
	while (dir && (e = readdir(dir)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
}

int rundir_create(struct rundir *d, struct why *why)
{
	char base[PATH_MAX];
	int fd, err = base_path(base, sizeof(base));

	d->lock = -1;
	*d->path = 0;
	fd = err ?: base_open(base, true);
	if (fd < 0)
		return why_set(why, fd, "the folder for running jobs, %s%s: %s", base, fd == -EPERM ?
			       ", belongs to someone else or can be written by others" : "", strerror(-fd));
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
		d->lock = rundir_try_lock(d->path, geteuid(), "lock", O_CREAT);
		err = d->lock < 0 ? d->lock : 0;
		if (err)
			rmdir(d->path);
	}
	close(fd);
	return err ? why_set(why, err, "the job's folder %s cannot be created: %s", d->path, strerror(-err)) : 0;
}

/* Makes and locks the folder at path, and empties one of a dead job. */
static int lock_folder(const char *path)
{
	int lock;

	if (mkdir(path, 0700) && errno != EEXIST)
		return -errno;
	lock = rundir_try_lock(path, geteuid(), "lock", O_CREAT);
	if (lock < 0)
		return lock == -EWOULDBLOCK ? -EBUSY : lock;
	close(lock);
	empty(path);
	return rundir_try_lock(path, geteuid(), "lock", O_CREAT);
}

static bool folder_has(const char *path, const char *name)
{
	char file[PATH_MAX];

	return snprintf(file, sizeof(file), "%s/%s", path, name) < (int)sizeof(file) && !access(file, F_OK);
}

/*
 * Has the job of this folder been saved, and ended by that? Then its supervisor, which holds the folder, ends soon. One that
 * has brought its job back has removed the first note.
 */
static bool is_leaving(const char *path)
{
	return folder_has(path, "checkpointed") && folder_has(path, "taken");
}

int rundir_create_as(struct rundir *d, const char *path, struct why *why)
{
	char base[PATH_MAX], *slash;
	bool leaving = false;
	int fd, err;

	d->lock = -1;
	*d->path = 0;
	snprintf(base, sizeof(base), "%s", path);
	slash = strrchr(base, '/');
	if (*path != '/' || slash == base || !is_id(slash + 1))
		return why_set(why, -EINVAL, "%s is no folder of a job", path);
	*slash = 0;
	for (int ms = 0; ; ms += 10) {
		fd = base_open(base, true);
		d->lock = fd < 0 ? fd : lock_folder(path);
		err = d->lock < 0 ? d->lock : 0;
		/* In `checkpoint && restore` the first command ends before the job's supervisor does. */
		leaving |= err == -EBUSY && is_leaving(path);
		if (fd >= 0)
			close(fd);	/* all jobs wait for its lock */
		if (err != -EBUSY || !leaving || ms >= LEAVES_MS)
			break;
		usleep(10000);
	}
	if (err == -EBUSY)
		return why_set(why, err, "another job has the folder %s, which this one needs again: end that job "
			       "first", path);
	if (err)
		return why_set(why, err, "the job's folder %s cannot be made again: %s", path, strerror(-err));
	snprintf(d->path, sizeof(d->path), "%s", path);
	return 0;
}

/* Holds the base's lock, so that rundir_create_as(), which may wait for the folder, never meets it half emptied. */
void rundir_remove(struct rundir *d)
{
	char base[PATH_MAX];
	int fd;

	if (!*d->path)
		return;
	snprintf(base, sizeof(base), "%s", d->path);
	*strrchr(base, '/') = 0;
	fd = base_open(base, false);
	/* A conductor may still write its last note here, so empty the folder until it can be removed. */
	for (int i = 0; i < 100; i++) {
		empty(d->path);
		if (!rmdir(d->path) || errno != ENOTEMPTY)
			break;
	}
	if (fd >= 0) {
		rmdir(base);
		close(fd);
	}
	if (d->lock >= 0)
		close(d->lock);
	d->lock = -1;
	*d->path = 0;
}

struct dead {
	char id[32];
	char *past;		/* its history, or NULL */
	size_t len;
};

/* Removes the folder of a dead job, and returns its history. */
static struct dead bury(const char *path, const char *id)
{
	struct dead d = { .past = history_pack(path, geteuid(), NULL, &d.len) };

	snprintf(d.id, sizeof(d.id), "%.31s", id);
	empty(path);
	rmdir(path);
	return d;
}

/* Histories are kept in a folder that may be on a disk that hangs: without the base's lock, for which all jobs wait. */
int rundir_sweep(void)
{
	char base[PATH_MAX], path[PATH_MAX];
	int fd, lock, swept = 0, err = base_path(base, sizeof(base));
	struct dead *dead = NULL, *more;
	struct dirent *e;
	DIR *dir;

	fd = err ?: base_open(base, false);
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	dir = opendir(base);
	while (dir && (e = readdir(dir))) {
		if (!is_id(e->d_name) ||
		    snprintf(path, sizeof(path), "%s/%s", base, e->d_name) >= (int)sizeof(path))
			continue;
		lock = rundir_try_lock(path, geteuid(), "lock", O_CREAT);
		if (lock < 0)
			continue;
		more = realloc(dead, (swept + 1) * sizeof(*dead));
		dead = more ?: dead;
		if (more)
			dead[swept++] = bury(path, e->d_name);
		close(lock);
	}
	if (dir)
		closedir(dir);
	rmdir(base);
	close(fd);
	for (int i = 0; i < swept; i++) {
		if (dead[i].past)
			history_keep(dead[i].id, dead[i].past, dead[i].len);
		free(dead[i].past);
	}
	free(dead);
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

const char *rundir_name(char name[RUNDIR_NAME], enum rundir_name what, int rank, int serial)
{
	static const char *const of_proxy[] = { [RUNDIR_CONTROL] = "ctl", [RUNDIR_STAT] = "stat",
						   [RUNDIR_KEPT] = "ctl" CTL_KEPT };

	if (what == RUNDIR_SOCKET || what == RUNDIR_GATE)
		snprintf(name, RUNDIR_NAME, "%d.sock%s", rank, what == RUNDIR_GATE ? ".gate" : "");
	else
		snprintf(name, RUNDIR_NAME, "%d-%d.%s", rank, serial, of_proxy[what]);
	return name;
}

int rundir_path(char *path, size_t size, const char *dir, enum rundir_name what, int rank, int serial)
{
	char name[RUNDIR_NAME];
	int n = snprintf(path, size, "%s/%s", dir, rundir_name(name, what, rank, serial));

	return n < (int)size ? 0 : -ENAMETOOLONG;
}

bool rundir_is_control(const char *name, int *rank, int *serial)
{
	char is[RUNDIR_NAME];

	return sscanf(name, "%d-%d.", rank, serial) == 2 && *rank >= 0 && *serial >= 0 &&
	       !strcmp(rundir_name(is, RUNDIR_CONTROL, *rank, *serial), name);
}

int rundir_write(const struct rundir *d, const struct rundir_job *job)
{
	FILE *out = rundir_begin(d->path, "job");

	if (!out)
		return -errno;
	fprintf(out, "version %u\npid %d\nsupervisor %d\nstarted %llu\ndevices %d\ncommand %s\n",
		RUNDIR_VERSION, job->pid, job->supervisor, (unsigned long long)job->started_ns, job->devices,
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
	seating_write(&job->seating, out);
	for (int i = 0; i < job->proxies; i++)
		fprintf(out, "proxy %d %d %d %d %d\n", job->proxy[i].rank, job->proxy[i].serial,
			job->proxy[i].pid, job->proxy[i].client, job->proxy[i].seat);
	return rundir_commit(d->path, "job", out);
}

static int add_rank(struct rundir_job *job, const char *line)
{
	struct rundir_rank r = { 0 }, *more;
	int i;

	if (sscanf(line, "rank %d %d %d %d %d", &i, &r.pid, &r.state, &r.code, &r.inner) < 4 ||
	    i != job->ranks)
		return 0;
	if (i == RANKS_MAX)
		return -EBADMSG;
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
	struct rundir_proxy p = { .seat = -1 }, *more;

	if (sscanf(line, "proxy %d %d %d %d %d", &p.rank, &p.serial, &p.pid, &p.client, &p.seat) < 4)
		return 0;
	if (p.seat < -1 || p.seat >= SEATING_SEATS)
		return -EBADMSG;
	if (job->proxies == PROXIES_MAX)
		return -EBADMSG;
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
	else if (seating_has(line))
		return seating_read(&job->seating, line);
	else if (!strncmp(line, "stdio ", 6))
		set_stdio(job, line);
	else if (!strncmp(line, "folder ", 7) && !*job->path)
		snprintf(job->path, sizeof(job->path), "%s", line + 7);
	else if (!strcmp(line, "terminal"))
		job->terminal = true;
	else if (sscanf(line, "version %u", &job->version) != 1 && sscanf(line, "pid %d", &job->pid) != 1 &&
		 sscanf(line, "init %d", &job->init) != 1 &&
		 sscanf(line, "supervisor %d", &job->supervisor) != 1 &&
		 sscanf(line, "status %63s", job->status) != 1)
		(void)sscanf(line, "devices %d", &job->devices);
	return 0;
}

static int read_lines(struct rundir_job *job, FILE *in, long *lines)
{
	char *line = NULL;
	size_t size = 0;
	int err = 0;
	ssize_t n;

	while (!err && (n = getline(&line, &size, in)) > 0) {
		if (line[n - 1] == '\n')
			line[n - 1] = 0;
		err = (*lines)-- > 0 ? set_line(job, line) : -EFBIG;
	}
	free(line);
	return err;
}

/* Subtracts the lines that were read from *lines. -EFBIG: there are more. */
static int read_text(struct rundir_job *job, const char *text, size_t len, long *lines)
{
	FILE *in = fmemopen((void *)text, len, "r");
	int err;

	if (!in)
		return -ENOMEM;
	err = read_lines(job, in, lines);
	fclose(in);
	return err;
}

/* A job without a job file is starting or ending: its fields stay empty. a: what it may cost. */
static int read_job(struct rundir_job *job, struct allowance *a)
{
	char *text;
	size_t len;
	int err = rundir_read_most(job->path, job->uid, "job", a->bytes, &text, &len);

	if (!err) {
		a->bytes -= len;
		err = len ? read_text(job, text, len, &a->lines) : 0;
		free(text);
	} else if (err != -ENOMEM && err != -EFBIG) {
		err = 0;
	}
	if (!err && !job->command)
		job->command = strdup("");
	return err ?: job->command ? 0 : -ENOMEM;
}

int rundir_parse(struct rundir_job *job, const char *text, size_t len)
{
	long lines = LINES_MAX;
	int err;

	memset(job, 0, sizeof(*job));
	err = read_text(job, text, len, &lines);
	if (!err && job->version > RUNDIR_VERSION)
		err = -EPROTONOSUPPORT;
	if (!err && (!job->command || !job->ranks || *job->path != '/'))
		err = -EBADMSG;
	if (!err)
		snprintf(job->id, sizeof(job->id), "%.31s", strrchr(job->path, '/') + 1);
	return err;
}

struct list {
	struct rundir_job *job;
	int n;
	unsigned int left_out;
	struct allowance others;	/* what is left of of_all */
};

static void drop_last(struct list *l)
{
	struct rundir_job *job = &l->job[--l->n];

	free(job->command);
	free(job->rank);
	free(job->proxy);
	l->left_out++;
}

/* Only a lack of memory is an error: a job whose file is too much is left out. */
static int add_job(const char *base, uid_t owner, const char *id, struct list *l, struct allowance *a)
{
	struct rundir_job *more = realloc(l->job, (l->n + 1) * sizeof(*more)), *job;
	int lock, err;

	if (!more)
		return -ENOMEM;
	l->job = more;
	job = &more[l->n];
	memset(job, 0, sizeof(*job));
	job->uid = owner;
	snprintf(job->id, sizeof(job->id), "%.31s", id);
	if (snprintf(job->path, sizeof(job->path), "%s/%s", base, id) >= (int)sizeof(job->path))
		return 0;
	l->n++;
	lock = rundir_try_lock(job->path, owner, "lock", 0);
	job->live = lock == -EWOULDBLOCK;
	if (lock >= 0)
		close(lock);
	err = read_job(job, a);
	if (err && err != -ENOMEM) {
		drop_last(l);
		err = 0;
	}
	return err;
}

static int add_jobs(const char *base, uid_t owner, DIR *dir, struct list *l)
{
	bool own = owner == geteuid();
	struct allowance of_owner = of_one, each;
	struct dirent *e;
	int err = 0;

	for (int n = 0; !err && n < PLACES_MAX && (e = readdir(dir)); n++) {
		if (!is_id(e->d_name))
			continue;
		if (own) {
			each = (struct allowance){ 1, LINES_MAX, TEXT_MAX };
			err = add_job(base, owner, e->d_name, l, &each);
			continue;
		}
		each = of_owner;
		each.lines = each.lines < l->others.lines ? each.lines : l->others.lines;
		each.bytes = each.bytes < l->others.bytes ? each.bytes : l->others.bytes;
		if (of_owner.jobs-- <= 0 || l->others.jobs-- <= 0 || each.lines <= 0 || each.bytes <= 0) {
			l->left_out++;
			continue;
		}
		of_owner.lines -= each.lines;
		of_owner.bytes -= each.bytes;
		l->others.lines -= each.lines;
		l->others.bytes -= each.bytes;
		err = add_job(base, owner, e->d_name, l, &each);
		each.lines = each.lines < 0 ? 0 : each.lines;
		of_owner.lines += each.lines;
		of_owner.bytes += each.bytes;
		l->others.lines += each.lines;
		l->others.bytes += each.bytes;
	}
	return err;
}

/* Does not lock another user's base, whose lock that user can hold for ever. */
static int list_base(const char *base, uid_t owner, struct list *l)
{
	bool own = owner == geteuid();
	struct stat s;
	int err = 0, fd;
	DIR *dir;

	fd = own ? base_open(base, false) :
	     open(base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return !own || fd == -ENOENT ? 0 : fd;
	if (fstat(fd, &s) || s.st_uid != owner || s.st_mode & 022) {
		close(fd);
		return 0;
	}
	dir = opendir(base);
	if (dir) {
		err = add_jobs(base, owner, dir, l);
		closedir(dir);
	}
	close(fd);
	return err;
}

/* A base other than that of this environment: only a lack of memory is an error. */
static int list_other(const char *base, uid_t owner, struct list *l)
{
	return list_base(base, owner, l) == -ENOMEM ? -ENOMEM : 0;
}

/* The uid behind the beginning of a name, which ends there; false: it is none. */
static bool uid_in(const char *name, const char *begins, unsigned int *uid)
{
	size_t n = strlen(begins);
	char *end;

	if (strncmp(name, begins, n) || !isdigit((unsigned char)name[n]))
		return false;
	*uid = strtoul(name + n, &end, 10);
	return !*end;
}

/* Adds this user's jobs in DIR/BEGINS UID BEHIND, and those of the others if all are wanted. */
static int list_places(const char *dir, const char *begins, const char *behind, bool all, const char *but,
		       struct list *l)
{
	char base[PATH_MAX];
	unsigned int owner;
	struct dirent *e;
	int err = 0;
	DIR *d;

	snprintf(base, sizeof(base), "%s/%s%u%s", dir, begins, geteuid(), behind);
	if (strcmp(base, but))
		err = list_other(base, geteuid(), l);
	d = all && !geteuid() ? opendir(dir) : NULL;
	for (int n = 0; d && !err && n < PLACES_MAX && (e = readdir(d)); n++) {
		if (!uid_in(e->d_name, begins, &owner) || owner == geteuid())
			continue;
		snprintf(base, sizeof(base), "%s/%s%s", dir, e->d_name, behind);
		if (strcmp(base, but))
			err = list_other(base, owner, l);
	}
	if (d)
		closedir(d);
	return err;
}

static int by_start(const void *a, const void *b)
{
	const struct rundir_job *x = a, *y = b;

	return x->started_ns < y->started_ns ? -1 : x->started_ns > y->started_ns;
}

int rundir_list(struct rundir_job **jobs, enum rundir_whose whose, unsigned int *left_out)
{
	struct list l = { .others = of_all };
	char base[PATH_MAX];
	int err = base_path(base, sizeof(base));
	bool all = whose == RUNDIR_ALL;

	*jobs = NULL;
	if (!err)
		err = list_base(base, geteuid(), &l);
	if (!err && whose != RUNDIR_HERE && !geteuid() && strcmp(base, "/run/singvgpu"))
		err = list_other("/run/singvgpu", 0, &l);
	if (!err && whose != RUNDIR_HERE)
		err = list_places("/run/user", "", "/singvgpu", all, base, &l) ?:
		      list_places("/tmp", "singvgpu-", "", all, base, &l);
	if (err) {
		rundir_list_free(l.job, l.n);
		return err;
	}
	if (l.n)
		qsort(l.job, l.n, sizeof(*l.job), by_start);
	*jobs = l.job;
	if (left_out)
		*left_out = l.left_out;
	return l.n;
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
