// SPDX-License-Identifier: Apache-2.0
/*
 * sample.c - the supervisor's part of a job's history: samples of what its proxies count
 *
 * A frame is written every second, and four times a second while frames are that close, over the last
 * one unless that has become old enough to stay. When there are `most` of them, every other one goes,
 * and they are to be twice as far apart. So a young job is seen in detail, and an old one's file is
 * no larger. A look costs some system calls for each proxy; after one that took long the next one
 * comes later, so that all looks take less than a thousandth of the time.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt_facts.h"
#include "history.h"
#include "watch.h"

#define APART_MS	250
#define LOOK_MS		1000
#define SHARE		2000	/* a look takes at most one part in so many */
#define FRAMES_MAX	2048
#define ROWS_MAX	32768	/* frames times ranks */
#define DEVICES_MAX	1024	/* that are noted in a life of the job */
#define COMMAND_MAX	4096

#define ROW(h, at, r)	((at) + 1 + (size_t)(r) * HISTORY_COUNTERS)

static size_t frame_size(const struct history *h)
{
	return (1 + (size_t)h->ranks * HISTORY_COUNTERS) * sizeof(uint64_t);
}

/* --------------------------------------------------------------------------------- file */

static int open_samples(const struct rundir_job *job, int flags)
{
	return rundir_open(job->path, geteuid(), HISTORY_SAMPLES, flags);
}

/* Goes on with the frames that are there; false: there are none of this job. */
static bool go_on(struct history *h, const struct rundir_job *job)
{
	struct history_head head;
	size_t size = frame_size(h);
	int fd = open_samples(job, O_RDONLY);
	bool ours = false;
	struct stat s;

	if (fd < 0)
		return false;
	if (!fstat(fd, &s) && read(fd, &head, sizeof(head)) == sizeof(head) &&
	    head.magic == HISTORY_MAGIC && head.version == HISTORY_VERSION && head.ranks == h->ranks &&
	    head.counters == HISTORY_COUNTERS && s.st_size >= (off_t)sizeof(head)) {
		h->kept = (s.st_size - sizeof(head)) / size;
		h->apart_ms = head.apart_ns / 1000000;
		ours = h->kept <= h->most && h->apart_ms >= APART_MS;
	}
	if (ours && h->kept &&
	    pread(fd, h->ended, size, sizeof(head) + (h->kept - 1) * size) != (ssize_t)size)
		ours = false;
	close(fd);
	for (unsigned int r = 0; r < h->ranks && ours; r++)
		ROW(h, h->ended, r)[HISTORY_MEMORY] = 0;
	return ours;
}

static int put_head(const struct history *h, FILE *out)
{
	struct history_head head = { .magic = HISTORY_MAGIC, .version = HISTORY_VERSION,
				     .ranks = h->ranks, .counters = HISTORY_COUNTERS,
				     .apart_ns = h->apart_ms * 1000000 };

	return fwrite(&head, sizeof(head), 1, out) == 1 ? 0 : -EIO;
}

static int new_file(struct history *h, const struct rundir_job *job)
{
	FILE *out = rundir_begin(job->path, HISTORY_SAMPLES);

	if (!out)
		return -errno;
	h->kept = 0;
	h->apart_ms = APART_MS;
	memset(h->ended, 0, frame_size(h));
	put_head(h, out);
	return rundir_commit(job->path, HISTORY_SAMPLES, out);
}

/* Every other frame goes. */
static int thin_out(struct history *h, const struct rundir_job *job)
{
	size_t size = frame_size(h), kept = h->kept / 2;
	uint64_t apart = h->apart_ms;
	int fd = open_samples(job, O_RDONLY), err = fd < 0 ? fd : 0;
	FILE *out = err ? NULL : rundir_begin(job->path, HISTORY_SAMPLES);
	uint64_t *frame = malloc(size);

	if (!out || !frame)
		err = err ?: -ENOMEM;
	h->apart_ms *= 2;
	if (out)
		put_head(h, out);
	for (size_t i = 0; i < kept && !err; i++) {
		off_t at = sizeof(struct history_head) + (2 * i + 1) * size;

		if (pread(fd, frame, size, at) != (ssize_t)size || fwrite(frame, size, 1, out) != 1)
			err = -EIO;
	}
	if (out && !err && ferror(out))
		err = -EIO;
	if (out && err)			/* the old file stays */
		rundir_drop(job->path, HISTORY_SAMPLES, out);
	else if (out)
		err = rundir_commit(job->path, HISTORY_SAMPLES, out);
	if (!err)
		h->kept = kept;
	else
		h->apart_ms = apart;
	free(frame);
	if (fd >= 0)
		close(fd);
	return err;
}

static int put_frame(struct history *h, const struct rundir_job *job)
{
	size_t size = frame_size(h);
	int fd = open_samples(job, O_WRONLY), err = 0;

	if (fd < 0)
		return fd;
	if (pwrite(fd, h->frame, size, sizeof(struct history_head) + h->kept * size) != (ssize_t)size)
		err = -EIO;
	close(fd);
	return err;
}

/* -------------------------------------------------------------------------------- events */

static void note(const struct rundir_job *job, FILE *out, char **text, size_t *len)
{
	if (!fclose(out))
		history_append(job->path, *text, *len);
	free(*text);
}

static bool has_events(const struct rundir_job *job)
{
	int fd = rundir_open(job->path, geteuid(), HISTORY_EVENTS, O_RDONLY);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static void note_begin(const struct rundir_job *job)
{
	char *text = NULL, host[65] = "?", command[COMMAND_MAX];
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return;
	gethostname(host, sizeof(host) - 1);
	watch_clip(command, sizeof(command), job->command);
	fprintf(out, "begin %llu " SINGVGPU_VERSION " ", (unsigned long long)job->started_ns);
	facts_word(out, host);
	fprintf(out, " %s %d ", strrchr(job->path, '/') + 1, job->ranks);
	facts_word(out, command);
	putc('\n', out);
	note(job, out, &text, &len);
}

static void note_device(struct history *h, const struct rundir_job *job,
			const struct rundir_proxy *p, const struct uproxy_stat *s)
{
	struct history_seen *more;
	char *text = NULL, name[128];
	size_t len;
	FILE *out;

	for (size_t i = 0; i < h->n_seen; i++)
		if (h->seen[i].rank == p->rank && h->seen[i].serial == p->serial)
			return;
	if (h->n_seen == DEVICES_MAX)
		return;
	more = realloc(h->seen, (h->n_seen + 1) * sizeof(*more));
	out = more ? open_memstream(&text, &len) : NULL;
	h->seen = more ?: h->seen;
	if (!out)
		return;
	h->seen[h->n_seen++] = (struct history_seen){ p->rank, p->serial };
	fprintf(out, "device %llu %d %d %d ", (unsigned long long)wall_ns(), p->rank, p->serial,
		s->device);
	if (watch_moved(s->device, s->logical))
		snprintf(name, sizeof(name), "%s, device %u of the program's", s->device_name, s->logical - 1);
	else
		snprintf(name, sizeof(name), "%s", s->device_name);
	facts_word(out, name);
	putc('\n', out);
	note(job, out, &text, &len);
}

/* Writes the job's ranks of a communicator's pids, as "0,1,?". */
static void put_members(FILE *out, const struct rundir_job *job, const char *pids)
{
	char *end;

	for (int n = 0; *pids && *pids != '\n'; pids = end, n++) {
		long pid = strtol(pids, &end, 10), rank = -1;

		if (end == pids)
			return;
		for (int i = 0; i < job->proxies; i++)
			if (job->proxy[i].client == pid && pid)
				rank = job->proxy[i].rank;
		if (rank < 0)
			fputs(n ? ",?" : "?", out);
		else
			fprintf(out, n ? ",%ld" : "%ld", rank);
	}
}

/* Notes communicators that the supervisor's text (jobboard.c) has and that were not there before. */
static void note_comms(struct history *h, const struct rundir_job *job, const char *at)
{
	for (; at && *at; at = strchr(at, '\n'), at += !!at) {
		unsigned long long key;
		unsigned int ranks;
		int used = 0;
		size_t k, len;
		char *text = NULL;
		FILE *out;

		if (strncmp(at, "comm ", 5))
			continue;
		if (sscanf(at, "comm %llx stands %u%n", &key, &ranks, &used) != 2 || !used)
			continue;
		for (k = 0; k < h->keys && h->key[k] != key; k++)
			;
		if (k < h->keys || k == sizeof(h->key) / sizeof(h->key[0]))
			continue;
		out = open_memstream(&text, &len);
		if (!out)
			return;
		h->key[h->keys++] = key;
		fprintf(out, "comm %llu %016llx %u ", (unsigned long long)wall_ns(), key, ranks);
		put_members(out, job, at + used);
		putc('\n', out);
		note(job, out, &text, &len);
	}
}

/* -------------------------------------------------------------------------------- samples */

static uint64_t whole(const struct uproxy_while *w, uint64_t now)
{
	return w->ns + (w->since && now > w->since ? now - w->since : 0);
}

static void add(uint64_t *row, const struct uproxy_stat *s, uint64_t now)
{
	row[HISTORY_LAUNCHES] += s->launches;
	row[HISTORY_CALLS] += s->calls;
	row[HISTORY_COLLECTIVES] += s->collectives;
	row[HISTORY_LAST] += s->coll_last;
	row[HISTORY_WAIT_NS] += whole(&s->coll_waits, now);
	row[HISTORY_RUN_NS] += whole(&s->coll_runs, now);
	row[HISTORY_TO_DEVICE] += s->bytes_to_device;
	row[HISTORY_TO_HOST] += s->bytes_to_host;
	row[HISTORY_MEMORY] += s->device_bytes;
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void take_sample(struct history *h, const struct rundir_job *job)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC), mono = now / 1000000;
	struct uproxy_stat s;

	memcpy(h->frame, h->ended, frame_size(h));
	h->frame[0] = wall_ns();
	for (int i = 0; i < job->proxies; i++) {
		const struct rundir_proxy *p = &job->proxy[i];

		watch_stat(job, p, &s, NULL);
		if (p->rank < 0 || p->rank >= (int)h->ranks || !s.magic)
			continue;
		add(ROW(h, h->frame, p->rank), &s, now);
		if (s.device >= 0)
			note_device(h, job, p, &s);
	}
	if (h->kept == h->most && thin_out(h, job))
		h->kept = h->most - 1;		/* no room: the last one is replaced */
	if (!put_frame(h, job) && mono - h->last_ms >= h->apart_ms) {
		h->kept++;
		h->last_ms = mono;
	}
}

void history_start(struct history *h, const struct rundir_job *job)
{
	char place[PATH_MAX];

	free(h->frame);
	free(h->ended);
	free(h->seen);
	memset(h, 0, sizeof(*h));
	h->ranks = job->ranks;
	h->most = ROWS_MAX / (job->ranks ?: 1);
	h->most = (h->most < FRAMES_MAX ? h->most : FRAMES_MAX) & ~(size_t)1;
	h->off = history_place(place) == 1;
	h->frame = calloc(1, frame_size(h));
	h->ended = calloc(1, frame_size(h));
	if (h->off || !h->frame || !h->ended) {
		h->off = true;
		return;
	}
	if (!go_on(h, job))
		h->off = new_file(h, job);
	if (!h->off && !has_events(job))
		note_begin(job);
}

int history_step(struct history *h, const struct rundir_job *job, unsigned int comms, const char *text)
{
	uint64_t now = now_ms(), cpu, ms = h->apart_ms < LOOK_MS ? h->apart_ms : LOOK_MS;

	if (h->off)
		return -1;
	if (now < h->next)
		return h->next - now;
	cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	take_sample(h, job);
	if (comms != h->comms)
		note_comms(h, job, text);
	h->comms = comms;
	cpu = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu) / (1000000 / SHARE);
	h->next = now + (ms > cpu ? ms : cpu);
	return h->off ? -1 : (int)(h->next - now);
}

void history_ended(struct history *h, const struct rundir_job *job, const struct rundir_proxy *p)
{
	struct uproxy_stat s;
	uint64_t memory;

	if (h->off || p->rank < 0 || p->rank >= (int)h->ranks)
		return;
	watch_stat(job, p, &s, NULL);
	memory = ROW(h, h->ended, p->rank)[HISTORY_MEMORY];
	add(ROW(h, h->ended, p->rank), &s, clock_ns(CLOCK_MONOTONIC));
	ROW(h, h->ended, p->rank)[HISTORY_MEMORY] = memory;
	if (s.magic && s.device >= 0)
		note_device(h, job, p, &s);
}

void history_flush(struct history *h, const struct rundir_job *job)
{
	if (!h->off)
		take_sample(h, job);
}

void history_stop(struct history *h, const struct rundir_job *job, int status, const char *how)
{
	/* The last restore may have failed, after earlier lives. */
	if (!h->off || has_events(job))
		history_close(job->path, status, how);
	free(h->frame);
	free(h->ended);
	free(h->seen);
	memset(h, 0, sizeof(*h));
	h->off = true;
}
