// SPDX-License-Identifier: Apache-2.0
/*
 * keep.c - the history's files: in a job's folder, in a checkpoint, and, when the job is over, kept
 *
 * The folder of kept histories is the user's own and closed to others: its files, ID-SECONDS, are
 * histories as history_pack() makes them. At each job's end all but the latest KEPT_MAX go, and
 * those that are older than KEPT_DAYS, but not the latest KEPT_LEAST: a clock may be wrong.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt_facts.h"
#include "history.h"
#include "tool_i.h"

#define EVENTS_SIZE	(2u << 20)	/* beyond which an event is kept without its phases ... */
#define EVENTS_FULL	(3u << 20)	/* ... and not at all, ... */
#define EVENTS_LAST	(4u << 20)	/* ... unless it begins or ends a life of the job */
#define KEPT_MAX	64
#define KEPT_LEAST	16
#define KEPT_DAYS	30
#define KEPT_NEW	86400	/* seconds, after which nobody still writes a new file */

/* ---------------------------------------------------------------------- a job's folder */

/*
 * The next event must not go on with half of this one, behind which another process may have put its own already:
 * the half becomes empty lines.
 */
static int put_event(int fd, const char *text, size_t len)
{
	ssize_t n = write(fd, text, len);
	int err = n < 0 ? -errno : -ENOSPC;
	off_t end;

	if (n == (ssize_t)len)
		return 0;
	end = n > 0 ? lseek(fd, 0, SEEK_CUR) : 0;
	if (n > 0 && fcntl(fd, F_SETFL, 0))		/* else pwrite() appends, too */
		return -errno;
	for (; n > 0; n--)
		if (pwrite(fd, "\n", 1, end - n) != 1)
			return -EIO;
	return err;
}

static off_t most_before(const char *text)
{
	return !strncmp(text, "restore ", 8) || !strncmp(text, "end ", 4) ? EVENTS_LAST : EVENTS_FULL;
}

int history_append(const char *dir, const char *text, size_t len)
{
	static const char full[] = "full\n";
	int fd = rundir_open(dir, geteuid(), HISTORY_EVENTS, O_WRONLY | O_APPEND | O_CREAT), err = 0;
	struct stat s;

	if (fd < 0)
		return fd;
	if (fstat(fd, &s))
		err = -errno;
	if (!err && s.st_size > EVENTS_SIZE) {
		const char *end = memchr(text, '\n', len);

		if (end)
			len = end + 1 - text;
	}
	if (!err && s.st_size > most_before(text)) {
		err = -EFBIG;
		if (s.st_size <= EVENTS_FULL + 4096 && write(fd, full, sizeof(full) - 1) < 0)
			err = -errno;
	}
	if (!err)
		err = put_event(fd, text, len);
	close(fd);
	return err;
}

char *history_pack(const char *dir, uid_t owner, const char *more, size_t *len)
{
	char *events = NULL, *samples = NULL, *all = NULL;
	size_t n_events = 0, n_samples = 0;
	FILE *out;

	if (rundir_read(dir, owner, HISTORY_EVENTS, &events, &n_events))
		return NULL;
	if (rundir_read(dir, owner, HISTORY_SAMPLES, &samples, &n_samples))
		n_samples = 0;
	/* A write may be under way. */
	while (n_events && events[n_events - 1] != '\n')
		n_events--;
	out = open_memstream(&all, len);
	if (out) {
		fprintf(out, "singvgpu-history %u %zu %zu\n", HISTORY_VERSION,
			n_events + (more ? strlen(more) : 0), n_samples);
		fwrite(events, 1, n_events, out);
		fputs(more ?: "", out);
		fwrite(samples ?: "", 1, n_samples, out);
		if (fclose(out)) {
			free(all);
			all = NULL;
		}
	}
	free(events);
	free(samples);
	return all;
}

static int put(const char *dir, const char *name, const void *data, size_t len)
{
	FILE *out = rundir_begin(dir, name);

	if (!out)
		return -errno;
	fwrite(data, 1, len, out);
	return rundir_commit(dir, name, out);
}

/* Writes the events of a checkpoint's history, in which its own has no id yet. */
static int put_events(const char *dir, const char *text, size_t len, const char *id)
{
	static const char mark[] = "checkpoint ";
	FILE *out = rundir_begin(dir, HISTORY_EVENTS);
	const char *end = text + len;

	if (!out)
		return -errno;
	for (const char *next; text < end; text = next) {
		const char *dash = NULL;
		size_t n;

		next = memchr(text, '\n', end - text);
		next = next ? next + 1 : end;
		n = next - text;
		if (n > sizeof(mark) && !strncmp(text, mark, sizeof(mark) - 1))
			dash = memmem(text, n, " - ", 3);
		if (dash)
			fprintf(out, "%.*s %s%.*s", (int)(dash - text), text, id,
				(int)(next - dash - 2), dash + 2);
		else
			fwrite(text, 1, n, out);
	}
	return rundir_commit(dir, HISTORY_EVENTS, out);
}

int history_unpack(const char *dir, const char *data, size_t len, const char *id)
{
	struct why why = { 0 };
	struct past p;
	int err = past_read(&p, data, len, &why);

	data += p.head;
	err = err ?: put_events(dir, data, p.events_len, id) ?:
	      (p.samples_len ? put(dir, HISTORY_SAMPLES, data + p.events_len, p.samples_len) : 0);
	past_free(&p);
	return err;
}

/* ---------------------------------------------------------------------------- when it ends */

/* The folder belongs to the user, or what is there of those above it; under sudo it is somebody else's. */
static bool is_own(const char *path)
{
	char at[PATH_MAX];
	struct stat s;

	if (snprintf(at, sizeof(at), "%s", path) >= (int)sizeof(at))
		return false;
	while (stat(at, &s)) {
		char *slash = strrchr(at, '/');

		if (!slash || !at[1])
			return false;
		slash[slash == at] = 0;
	}
	return s.st_uid == geteuid();
}

int history_place(char path[PATH_MAX])
{
	const char *given = getenv("SINGVGPU_HISTORY"), *state = getenv("XDG_STATE_HOME");
	const char *home = getenv("HOME");
	struct passwd *pw;
	int n;

	if (given && !strcmp(given, "off"))
		return 1;
	if (given && *given == '/')
		n = snprintf(path, PATH_MAX, "%s", given);
	else if (state && *state == '/' && (geteuid() || is_own(state)))
		n = snprintf(path, PATH_MAX, "%s/singvgpu/history", state);
	else if (!geteuid())
		n = snprintf(path, PATH_MAX, "/var/lib/singvgpu/history");
	else if ((home && *home == '/') || ((pw = getpwuid(geteuid())) && (home = pw->pw_dir)))
		n = snprintf(path, PATH_MAX, "%s/.local/state/singvgpu/history", home);
	else
		return 1;
	return n < PATH_MAX - 64 ? 0 : -ENAMETOOLONG;
}

/* Makes the folder and those above it; false: it cannot be had, or is not the user's own. */
static bool make_place(char *path)
{
	struct stat s;

	for (char *at = path + 1; (at = strchr(at, '/')); at++) {
		*at = 0;
		mkdir(path, 0700);
		*at = '/';
	}
	mkdir(path, 0700);
	return !lstat(path, &s) && S_ISDIR(s.st_mode) && s.st_uid == geteuid() && !(s.st_mode & 022);
}

/* "1234-1764111600", "1234.1-1764111600"; with ".new" behind it, if that is the end */
static bool is_kept(const char *name, const char *end)
{
	size_t n = strspn(name, "0123456789."), m = name[n] == '-' ? strspn(name + n + 1, "0123456789") : 0;

	return n && m && !strcmp(name + n + 1 + m, end) && strlen(name) < 64;
}

struct kept {
	char name[64];
	struct timespec time;
};

static int by_time(const void *a, const void *b)
{
	const struct timespec *x = &((const struct kept *)a)->time, *y = &((const struct kept *)b)->time;

	return x->tv_sec != y->tv_sec ? (x->tv_sec < y->tv_sec) - (x->tv_sec > y->tv_sec) :
					(x->tv_nsec < y->tv_nsec) - (x->tv_nsec > y->tv_nsec);
}

/* What is there with this end of its name, the latest first; malloc'ed. */
static struct kept *list(const char *place, const char *end, size_t *n)
{
	struct kept *kept = NULL, *more;
	struct dirent *e;
	struct stat s;
	DIR *dir = opendir(place);

	*n = 0;
	while (dir && *n < 10000 && (e = readdir(dir))) {
		if (!is_kept(e->d_name, end) || fstatat(dirfd(dir), e->d_name, &s, AT_SYMLINK_NOFOLLOW))
			continue;
		more = realloc(kept, (*n + 1) * sizeof(*kept));
		if (!more)
			break;
		kept = more;
		snprintf(kept[*n].name, sizeof(kept[*n].name), "%.63s", e->d_name);
		kept[(*n)++].time = s.st_mtim;
	}
	if (dir)
		closedir(dir);
	if (*n)
		qsort(kept, *n, sizeof(*kept), by_time);
	return kept;
}

/* Removes those that are older, besides the latest `least`, and all but the latest `most`. */
static void remove_old(const char *place, const char *end, size_t least, size_t most, time_t oldest)
{
	char path[PATH_MAX];
	size_t n;
	struct kept *kept = list(place, end, &n);

	for (size_t i = least; i < n; i++)
		if ((i >= most || kept[i].time.tv_sec < oldest) &&
		    snprintf(path, sizeof(path), "%s/%s", place, kept[i].name) < (int)sizeof(path))
			unlink(path);
	free(kept);
}

/* Before another one is written, for which there may be no room otherwise. */
static void tidy(const char *place, bool replaces)
{
	time_t now = time(NULL);

	remove_old(place, ".new", 0, SIZE_MAX, now - KEPT_NEW);
	remove_old(place, "", KEPT_LEAST, KEPT_MAX - !replaces, now - KEPT_DAYS * 86400l);
}

void history_keep(const char *id, const char *all, size_t len)
{
	char place[PATH_MAX], name[64], path[PATH_MAX + sizeof(name)];
	struct why why = { 0 };
	struct past p = { 0 };
	bool worked = false;
	size_t began = 0;

	if (history_place(place) || past_read(&p, all, len, &why))
		goto out;
	for (size_t i = 0; i < p.events; i++) {
		worked |= p.event[i].kind == PAST_DEVICE;
		if (p.event[i].kind == PAST_BEGIN && !began)
			began = p.event[i].time_ns / 1000000000;
	}
	/* A job without a session has nothing to tell, and would take another's place. */
	snprintf(name, sizeof(name), "%.32s-%zu", id, began);
	if (worked && is_kept(name, "") && make_place(place)) {
		snprintf(path, sizeof(path), "%s/%s", place, name);
		tidy(place, !access(path, F_OK));
		put(place, name, all, len);
	}
out:
	past_free(&p);
}

void history_close(const char *dir, int status, const char *how)
{
	char *text = NULL, *all;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return;
	fprintf(out, "end %llu %d ", (unsigned long long)wall_ns(), status & 255);
	facts_word(out, how);
	putc('\n', out);
	if (!fclose(out))
		history_append(dir, text, len);
	free(text);
	all = history_pack(dir, geteuid(), NULL, &len);
	if (all)
		history_keep(strrchr(dir, '/') + 1, all, len);
	free(all);
}

int history_kept(const char *id, char **data, size_t *len, struct why *why)
{
	char place[PATH_MAX];
	struct kept *kept;
	size_t n, w = strlen(id);
	int err = -ENOENT;

	if (!w || strspn(id, "0123456789.-") != w || history_place(place))
		return -ENOENT;
	kept = list(place, "", &n);
	for (size_t i = 0; i < n && err == -ENOENT; i++) {
		if (strncmp(kept[i].name, id, w) || (kept[i].name[w] && kept[i].name[w] != '-'))
			continue;
		err = rundir_read(place, geteuid(), kept[i].name, data, len);
		if (err)
			why_set(why, err, "%s/%s: %s", place, kept[i].name, strerror(-err));
	}
	free(kept);
	return err;
}
