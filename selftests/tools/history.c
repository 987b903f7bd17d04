// SPDX-License-Identifier: Apache-2.0
/*
 * history.c - a job's history: written, thinned out, kept, read back, and refused when it is garbled; the page
 * that is made of it
 *
 * With HISTORY_PAGES=DIR in its environment it leaves pages of made-up jobs there, for test-browser.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include <kselftest_harness.h>

#include "jobboard.h"
#include "history.h"
#include "report_i.h"
#include "stat.h"

#define PAGE_MAX	(300u << 10)

static char base[] = "/tmp/svhistory.XXXXXX", kept[64];

static void in_folder(char *path, const char *name)
{
	snprintf(path, PATH_MAX, "%.64s/%.64s", base, name);
}

static void put_file(const char *dir, const char *name, const void *data, size_t len)
{
	char path[PATH_MAX + 64];
	FILE *out;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	out = fopen(path, "w");
	fwrite(data, 1, len, out);
	fclose(out);
}

/* ------------------------------------------------------------------------- made-up jobs */

#define S 1000000000ull
#define START (1790000000ull * S)

/* A job of `seconds` with so many checkpoints, every third of which ends it and is restored after some time. */
static char *make(unsigned int ranks, unsigned int checkpoints, unsigned int frames, double seconds, size_t *len)
{
	char *events = NULL, *all = NULL;
	size_t n_events, row = 1 + ranks * HISTORY_COUNTERS;
	uint64_t *samples = calloc(frames * row + 1, sizeof(*samples)), step = seconds * S / (frames + 1);
	struct history_head head = { HISTORY_MAGIC, HISTORY_VERSION, ranks, HISTORY_COUNTERS, step, 0 };
	FILE *out = open_memstream(&events, &n_events);
	uint64_t away = 0;
	unsigned int done = 0;

	fprintf(out, "begin %llu 0.1 host.example 4711 %u python3%%20train.py%%20--name%%20'<script>alert(1)</script>'\n",
		(unsigned long long)START, ranks);
	for (unsigned int r = 0; r < ranks; r++)
		fprintf(out, "device %llu %u 0 %u NVIDIA%%20H100%%2080GB%%20<b>\n", (unsigned long long)(START + S), r,
			r % 8);
	fprintf(out, "comm %llu 00c0ffee00000001 %u 0", (unsigned long long)(START + S), ranks);
	for (unsigned int r = 1; r < ranks; r++)
		fprintf(out, ",%u", r);
	fputc('\n', out);
	for (unsigned int f = 0; f < frames; f++) {
		uint64_t *at = samples + f * row, now = START + away + (f + 1) * step;

		at[0] = now;
		for (unsigned int r = 0; r < ranks; r++) {
			uint64_t *c = at + 1 + r * HISTORY_COUNTERS;
			double t = (f + 1.0) / (frames + 1) * seconds;

			c[HISTORY_LAUNCHES] = t * 1500 * (1 + 0.1 * r) + 200 * (r + 1) * ((f * 7 + r * 3) % 5);
			c[HISTORY_CALLS] = 3 * c[HISTORY_LAUNCHES];
			c[HISTORY_COLLECTIVES] = t * 40;
			c[HISTORY_LAST] = ranks > 1 && r == 1 ? t * 36 : t * 4 / ranks;
			c[HISTORY_WAIT_NS] = r == 1 ? t * 0.01 * S : t * 0.2 * S;
			c[HISTORY_RUN_NS] = t * 0.1 * S;
			c[HISTORY_TO_DEVICE] = t * 1e6;
			c[HISTORY_TO_HOST] = t * 1e4;
			c[HISTORY_MEMORY] = (10ull + r) << 30;
		}
		if (done >= checkpoints || f < (done + 1.0) * frames / (checkpoints + 1))
			continue;
		done++;
		fprintf(out, "checkpoint %llu 3000000000 500000000 %llu %d %llu %llu %llu %032x /var/lib/singvgpu/store\n",
			(unsigned long long)now, done % 3 ? 1800000000ull : 0ull, done % 3 != 0,
			(unsigned long long)ranks << 31, (unsigned long long)ranks << 28,
			(unsigned long long)ranks << (done == 1 ? 30 : 28), done);
		fprintf(out, "phase look 0 400000000 0 0\nphase criu 550000000 1500000000 %llu %llu\n"
			"phase files 1900000000 100000000 5000000 4000\nphase publish 2000000000 300000000 0 0\n",
			(unsigned long long)ranks << 27, (unsigned long long)ranks << 26);
		for (unsigned int r = 0; r < ranks && r < 20; r++)
			fprintf(out, "phase freeze%%20%u-0 500000000 40000000 0 0\nphase device%%20%u-0 540000000 %u %u %u\n"
				"phase channel%%20%u-0 1600000000 200000000 4194304 4194304\n", r, r,
				900000000 + r * 5000000, 1u << 30, 1u << 28, r);
		if (done % 3 == 0) {
			away += done % 2 ? 86400 * S : 7 * S;
			fprintf(out, "restore %llu 2000000000 %032x /var/lib/singvgpu/store other.example 0.1 0=%u\n"
				"phase device%%200-0 0 1000000000 1073741824 0\nphase criu 1000000000 700000000 99999 0\n",
				(unsigned long long)(now + (done % 2 ? 86400 * S : 7 * S) - 3 * S), done, done % 8);
		}
		if (done == 4)
			fprintf(out, "failed %llu 900000000 freeze%%200-0 the%%20device%%20is%%20busy%%20&%%20stays%%20so\n",
				(unsigned long long)now);
	}
	fprintf(out, "end %llu 0 ended\n", (unsigned long long)(START + away + (uint64_t)(seconds * S)));
	fclose(out);
	out = open_memstream(&all, len);
	fprintf(out, "singvgpu-history 1 %zu %zu\n", n_events, sizeof(head) + frames * row * sizeof(*samples));
	fwrite(events, 1, n_events, out);
	fwrite(&head, sizeof(head), 1, out);
	fwrite(samples, sizeof(*samples), frames * row, out);
	fclose(out);
	free(events);
	free(samples);
	return all;
}

/* The page of a history, malloc'ed; NULL: there is none, for *err. */
static char *page_of(const char *data, size_t len, size_t *size, int *err, struct why *why)
{
	struct report *r = calloc(1, sizeof(*r));
	char *page = NULL;
	struct past p;
	FILE *out;

	*err = past_read(&p, data, len, why) ?: report_gather(r, &p, NULL);
	if (!*err) {
		r->id = "4711";
		out = open_memstream(&page, size);
		*err = report_page(out, r);
		fclose(out);
	}
	report_free(r);
	free(r);
	past_free(&p);
	return page;
}

/* -------------------------------------------------------------------------- the folder */

static void new_job(struct rundir_job *job, const char *id, int ranks)
{
	memset(job, 0, sizeof(*job));
	in_folder(job->path, id);
	mkdir(job->path, 0700);
	snprintf(job->id, sizeof(job->id), "%s", id);
	job->uid = geteuid();
	job->ranks = ranks;
	job->command = "a <b> & \"c\" \xff";
	job->started_ns = START;
	job->proxies = ranks;
	job->proxy = calloc(ranks, sizeof(*job->proxy));
	for (int i = 0; i < ranks; i++)
		job->proxy[i] = (struct rundir_proxy){ .rank = i, .pid = 100 + i, .client = 200 + i };
}

static void count(const struct rundir_job *job, int rank, uint64_t launches)
{
	struct uproxy_stat s = { .magic = UPROXY_STAT_MAGIC, .version = UPROXY_STAT_VERSION,
				 .size = sizeof(s), .device = rank, .device_name = "a device", .logical = 2,
				 .launches = launches, .device_bytes = 4096 };
	char name[32];

	snprintf(name, sizeof(name), "%d-0.stat", rank);
	put_file(job->path, name, &s, sizeof(s));
}

static off_t size_of(const struct rundir_job *job)
{
	char path[PATH_MAX + 32];
	struct stat s;

	snprintf(path, sizeof(path), "%s/" HISTORY_SAMPLES, job->path);
	return stat(path, &s) ? -1 : s.st_size;
}

static struct jobboard comms = { .text = "comm 00c0ffee00000001 stands 2 200 201\nop creation - 0 0 -1 -1 0 0 1\n"
				      "comm 00c0ffee00000002 forming 2 200 0\n", .texts = 1 };

TEST(a_job_is_sampled_and_read_back)
{
	struct rundir_job job;
	struct history h = { .off = true };
	struct why why = { 0 };
	struct past p;
	size_t len;
	char *all;

	new_job(&job, "100", 2);
	count(&job, 0, 5);
	count(&job, 1, 7);
	history_start(&h, &job);
	EXPECT_GT(history_step(&h, &job, comms.texts, comms.text), 0);
	/* A proxy ends, and another one begins; the counters go on. */
	history_ended(&h, &job, &job.proxy[1]);
	count(&job, 1, 3);
	h.next = 0;
	usleep(2000);
	history_step(&h, &job, comms.texts, comms.text);
	history_flush(&h, &job);
	all = history_pack(job.path, geteuid(), NULL, &len);
	ASSERT_NE(all, NULL);
	ASSERT_EQ(past_read(&p, all, len, &why), 0)
		TH_LOG("%s", why.text);
	ASSERT_GE(p.frames, 1);
	EXPECT_EQ(past_count(&p, p.frames - 1, 0, HISTORY_LAUNCHES), 5);
	EXPECT_EQ(past_count(&p, p.frames - 1, 1, HISTORY_LAUNCHES), 10);
	EXPECT_EQ(past_count(&p, p.frames - 1, 1, HISTORY_MEMORY), 4096);
	ASSERT_EQ(p.events, 4);
	EXPECT_EQ(p.event[0].kind, PAST_BEGIN);
	/* what is no UTF-8 is shown as "?" */
	EXPECT_STREQ(p.event[0].text, "a <b> & \"c\" ?");
	EXPECT_EQ(p.event[1].kind, PAST_DEVICE);
	EXPECT_STREQ(p.event[1].text, "a device, device 1 of the program's");
	EXPECT_STREQ(p.event[2].text, "a device");
	EXPECT_EQ(p.event[3].kind, PAST_COMM);
	EXPECT_STREQ(p.event[3].text, "0,1");
	past_free(&p);
	free(all);
	/* A next life in the folder goes on from there. */
	count(&job, 0, 0);
	count(&job, 1, 1);
	history_start(&h, &job);
	history_step(&h, &job, comms.texts, comms.text);
	history_stop(&h, &job, 3, "failed");
	ASSERT_EQ(history_kept("100", &all, &len, &why), 0);
	ASSERT_EQ(past_read(&p, all, len, &why), 0);
	EXPECT_EQ(past_count(&p, p.frames - 1, 1, HISTORY_LAUNCHES), 11);
	EXPECT_EQ(p.event[p.events - 1].kind, PAST_END);
	EXPECT_EQ(p.event[p.events - 1].number, 3);
	past_free(&p);
	free(all);
	free(job.proxy);
}

TEST(an_old_jobs_file_stays_bounded)
{
	struct rundir_job job;
	struct history h = { .off = true };
	struct why why = { 0 };
	struct past p;
	size_t len;
	char *all;
	off_t most = 0;

	new_job(&job, "101", 16);
	history_start(&h, &job);
	ASSERT_EQ(h.most, 2048);
	for (int i = 0; i < 7000; i++) {
		if (i % 100 == 0)
			count(&job, 3, i);
		h.next = 0;
		h.last_ms = 0;
		history_step(&h, &job, comms.texts, comms.text);
		most = size_of(&job) > most ? size_of(&job) : most;
	}
	EXPECT_FALSE(h.off);
	EXPECT_LE(most, 2049 * (1 + 16 * HISTORY_COUNTERS) * 8 + 32);
	EXPECT_GT(h.apart_ms, 1000);
	all = history_pack(job.path, geteuid(), NULL, &len);
	ASSERT_EQ(past_read(&p, all, len, &why), 0);
	EXPECT_GE(p.frames, 1024);
	EXPECT_LE(p.frames, 2049);
	EXPECT_EQ(past_count(&p, p.frames - 1, 3, HISTORY_LAUNCHES), 6900);
	EXPECT_LT(past_count(&p, 0, 3, HISTORY_LAUNCHES), 100);
	past_free(&p);
	free(all);
	free(job.proxy);
}

TEST(events_stay_bounded)
{
	static const char again[] = "restore 5 1 0123456789abcdef0123456789abcdef /s h 0.1 0=1\n";
	char text[4096];
	struct rundir_job job;
	struct why why = { 0 };
	struct past p;
	size_t len, n;
	char *all;
	int rc = 0;

	new_job(&job, "102", 1);
	history_append(job.path, "begin 1 0.1 h 102 1 c\n", 22);
	n = snprintf(text, sizeof(text), "failed 2 3 freeze why\n");
	for (int i = 0; i < 60; i++)
		n += snprintf(text + n, sizeof(text) - n, "phase p%d 1 2 3 4\n", i);
	for (int i = 0; i < 60000 && !rc; i++)
		rc = history_append(job.path, text, n);
	EXPECT_EQ(rc, -EFBIG);
	EXPECT_EQ(history_append(job.path, text, n), -EFBIG);
	/* How it went on and ended is told in any case. */
	EXPECT_EQ(history_append(job.path, again, sizeof(again) - 1), 0);
	EXPECT_EQ(history_append(job.path, "end 6 0 ended\n", 14), 0);
	all = history_pack(job.path, geteuid(), NULL, &len);
	EXPECT_LT(len, HISTORY_MAX);
	ASSERT_EQ(past_read(&p, all, len, &why), 0)
		TH_LOG("%s", why.text);
	EXPECT_TRUE(p.full);
	EXPECT_EQ(p.event[p.events - 2].kind, PAST_RESTORE);
	EXPECT_EQ(p.event[p.events - 1].kind, PAST_END);
	past_free(&p);
	free(all);
	free(job.proxy);
}

/* If each were looked for among all others, it would take a minute. */
TEST(forged_histories_may_have_very_many_communicators)
{
	char *events = NULL, *all = NULL, *page;
	struct why why = { 0 };
	struct timespec cpu;
	size_t len, n;
	time_t before;
	FILE *out = open_memstream(&events, &n);
	int err;

	fputs("begin 1 0.1 h 1 1 c\n", out);
	for (int i = 0; i < 60000; i++)
		fprintf(out, "comm 1 %x 2 0,1\ndevice 2 0 %d 0 d\n", i, i);
	fclose(out);
	out = open_memstream(&all, &len);
	fprintf(out, "singvgpu-history 1 %zu 0\n", n);
	fwrite(events, 1, n, out);
	fclose(out);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
	before = cpu.tv_sec;
	page = page_of(all, len, &n, &err, &why);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
	EXPECT_LT(cpu.tv_sec - before, 5);
	ASSERT_EQ(err, 0)
		TH_LOG("%s", why.text);
	EXPECT_NE(strstr(page, "and 59984 more"), NULL);
	free(page);
	free(events);
	free(all);
}

/* A clock that goes back an hour, and forward again: every frame counts, and the times ascend. */
TEST(a_clock_may_be_set_back)
{
	static const unsigned int clock[] = { 5000, 5001, 5002, 1402, 1403, 1404, 5006, 5007 };
	struct history_head head = { HISTORY_MAGIC, HISTORY_VERSION, 1, HISTORY_COUNTERS, S, 0 };
	uint64_t frame[1 + HISTORY_COUNTERS] = { 0 };
	struct why why = { 0 };
	struct past p;
	size_t len;
	char *all;
	FILE *out;

	for (size_t n = 1; n <= 8; n++) {
		out = open_memstream(&all, &len);
		fprintf(out, "singvgpu-history 1 0 %zu\n", sizeof(head) + n * sizeof(frame));
		fwrite(&head, sizeof(head), 1, out);
		for (size_t i = 0; i < n; i++) {
			frame[0] = clock[i] * S;
			frame[1 + HISTORY_LAUNCHES] = 10 * (i + 1);
			fwrite(frame, sizeof(frame), 1, out);
		}
		fclose(out);
		ASSERT_EQ(past_read(&p, all, len, &why), 0);
		ASSERT_EQ(p.frames, n);
		EXPECT_EQ(past_count(&p, n - 1, 0, HISTORY_LAUNCHES), 10 * n);
		EXPECT_EQ(p.time[n - 1], (5000 + n - 1) * S);
		past_free(&p);
		free(all);
	}
}

TEST(half_an_event_is_none)
{
	struct rlimit was, small;
	struct rundir_job job;
	struct why why = { 0 };
	struct past p;
	size_t len;
	char *all;

	new_job(&job, "105", 1);
	EXPECT_EQ(history_append(job.path, "begin 1 0.1 h 105 1 c\n", 22), 0);
	ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &was), 0);
	small = was;
	small.rlim_cur = 22 + 12;
	ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
	EXPECT_LT(history_append(job.path, "failed 2 3 freeze why\n", 22), 0);
	ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &was), 0);
	EXPECT_EQ(history_append(job.path, "end 6 0 ended\n", 14), 0);
	all = history_pack(job.path, geteuid(), NULL, &len);
	ASSERT_EQ(past_read(&p, all, len, &why), 0)
		TH_LOG("%s", why.text);
	ASSERT_EQ(p.events, 2);
	EXPECT_EQ(p.event[1].kind, PAST_END);
	past_free(&p);
	free(all);
	free(job.proxy);
}

TEST(a_restore_goes_on_with_the_history_of_its_checkpoint)
{
	static const char own[] = "checkpoint 5 4 3 2 1 9 8 7 - /a%20-%20b/store\n";
	struct rundir_job job, next;
	struct why why = { 0 };
	struct past p;
	size_t len;
	char *all;

	new_job(&job, "103", 1);
	new_job(&next, "104", 1);
	history_append(job.path, "begin 1 0.1 h 103 1 c%20-%20d\n", 30);
	all = history_pack(job.path, geteuid(), own, &len);
	ASSERT_NE(all, NULL);
	EXPECT_EQ(history_unpack(next.path, all, len, "0123456789abcdef0123456789abcdef"), 0);
	EXPECT_EQ(history_unpack(next.path, all, len - 1, "0123"), -EBADMSG);
	free(all);
	all = history_pack(next.path, geteuid(), NULL, &len);
	ASSERT_EQ(past_read(&p, all, len, &why), 0);
	ASSERT_EQ(p.events, 2);
	EXPECT_STREQ(p.event[1].id, "0123456789abcdef0123456789abcdef");
	EXPECT_STREQ(p.event[1].store, "/a - b/store");
	past_free(&p);
	free(all);
	free(job.proxy);
	free(next.proxy);
}

static void keep(const struct rundir_job *job)
{
	size_t len;
	char *all = history_pack(job->path, geteuid(), NULL, &len);

	history_keep(job->id, all, len);
	free(all);
}

TEST(the_latest_jobs_are_kept)
{
	static const char event[] = "begin 1790000000000000000 0.1 h 1 1 c\ndevice 2 0 0 0 d\n";
	char id[32], path[PATH_MAX], place[PATH_MAX], *data;
	struct rundir_job job;
	struct why why = { 0 };
	struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	struct stat s;
	size_t len;
	int n = 0;

	new_job(&job, "999", 1);
	history_append(job.path, "begin 1 0.1 h 1 1 c\n", 20);
	keep(&job);
	EXPECT_EQ(history_kept("999", &data, &len, &why), -ENOENT)
		TH_LOG("a job without a session");
	free(job.proxy);
	for (int i = 0; i < 70; i++) {
		snprintf(id, sizeof(id), "%d", 2000 + i);
		new_job(&job, id, 1);
		history_append(job.path, event, sizeof(event) - 1);
		keep(&job);
		free(job.proxy);
	}
	for (int i = 0; i < 70; i++) {
		snprintf(id, sizeof(id), "%d", 2000 + i);
		if (!history_kept(id, &data, &len, &why)) {
			n++;
			free(data);
		}
	}
	EXPECT_EQ(n, 64);
	ASSERT_EQ(history_kept("2069-1790000000", &data, &len, &why), 0);
	free(data);
	EXPECT_EQ(history_kept("206", &data, &len, &why), -ENOENT);
	EXPECT_EQ(history_kept("../2069", &data, &len, &why), -ENOENT);
	/* One that is too old goes with the next job's end, as does what was left half written. */
	snprintf(path, sizeof(path), "%s/2068-1790000000", kept);
	ASSERT_EQ(stat(path, &s), 0);
	EXPECT_EQ(s.st_mode & 077, 0);
	ASSERT_EQ(utimensat(AT_FDCWD, path, old, 0), 0);
	put_file(kept, "2067-1790000000.new", "x", 1);
	put_file(kept, "2066-1790000000.new", "x", 1);
	snprintf(path, sizeof(path), "%s/2067-1790000000.new", kept);
	ASSERT_EQ(utimensat(AT_FDCWD, path, old, 0), 0);
	new_job(&job, "3000", 1);
	history_append(job.path, event, sizeof(event) - 1);
	keep(&job);
	EXPECT_EQ(history_kept("2068", &data, &len, &why), -ENOENT);
	EXPECT_NE(stat(path, &s), 0);
	snprintf(path, sizeof(path), "%s/2066-1790000000.new", kept);
	EXPECT_EQ(unlink(path), 0)
		TH_LOG("it may still be written");
	/* As if the clock were ahead: all of them are too old, and some stay. */
	for (int i = 0; i < 70; i++) {
		snprintf(path, sizeof(path), "%s/%d-1790000000", kept, 2000 + i);
		utimensat(AT_FDCWD, path, old, 0);
	}
	keep(&job);
	n = 0;
	for (int i = 0; i < 70; i++) {
		snprintf(path, sizeof(path), "%s/%d-1790000000", kept, 2000 + i);
		n += !stat(path, &s);
	}
	EXPECT_EQ(n, 15);
	/* Under sudo -E the user's own folder is not root's. */
	unsetenv("SINGVGPU_HISTORY");
	snprintf(path, sizeof(path), "%s/theirs", base);
	ASSERT_EQ(mkdir(path, 0755), 0);
	strcat(path, "/state");
	setenv("XDG_STATE_HOME", path, 1);
	EXPECT_EQ(history_place(place), 0);
	EXPECT_EQ(strncmp(place, path, strlen(path)), 0);
	*strrchr(path, '/') = 0;
	if (!geteuid()) {
		ASSERT_EQ(chown(path, 65534, 65534), 0);
		EXPECT_EQ(history_place(place), 0);
		EXPECT_STREQ(place, "/var/lib/singvgpu/history");
	}
	unsetenv("XDG_STATE_HOME");
	/* Off: nothing is kept. */
	setenv("SINGVGPU_HISTORY", "off", 1);
	EXPECT_EQ(history_place(path), 1);
	setenv("SINGVGPU_HISTORY", kept, 1);
	/* A folder that others can write, or that is a link, is not used. */
	chmod(kept, 0777);
	EXPECT_LT(history_kept("3000", &data, &len, &why), 0);
	chmod(kept, 0700);
	free(job.proxy);
}

/* ------------------------------------------------------------------------------ garbled */

TEST(what_is_no_history_is_refused_by_name)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{ "", "does not begin" }, { "singvgpu-history 1 0 0", "does not begin" },
		{ "singvgpu-history 7 0 0\n", "version 7" }, { "singvgpu-history 1 5 0\n", "not the 5" },
		{ "singvgpu-history 1 999999999999999 0\n", "does not begin" },
		{ "singvgpu-history 1 -5 5\n", "not the" }, { "singvgpu-history 1 5 -5\n", "not the" },
		{ "singvgpu-history 1 -1 2\n1", "not the" },
		{ "singvgpu-history 1 6 0\nbegin\n", "line 1 of its events is none" },
		{ "singvgpu-history 1 22 0\nbegin 1 0.1 h 1 257 c\n", "line 1" },
		{ "singvgpu-history 1 18 0\nphase look 1 2 3 4", "cut off" },
		{ "singvgpu-history 1 19 0\nphase look 1 2 3 4\n", "line 1" },
		{ "singvgpu-history 1 5 0\n\xff\xfe\x01z\n", "no text" },
		{ "singvgpu-history 1 0 4\nSVGH", "no head" },
		{ "singvgpu-history 1 0 32\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "its samples are none" },
		{ "singvgpu-history 1 38 0\ncheckpoint 1 2 3 4 1 99x 0 0 id store\n", "line 1" },
		{ "singvgpu-history 1 50 0\ncheckpoint 1 2 3 4 1 99999999999999999999999 0 0 i s\n", "not the 50" },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct why why = { 0 };
		struct past p;
		int err = past_read(&p, bad[i].text, strlen(bad[i].text), &why);

		EXPECT_TRUE(err == -EBADMSG || err == -EPROTONOSUPPORT)
			TH_LOG("%s: %d", bad[i].text, err);
		EXPECT_NE(strstr(why.text, bad[i].says), NULL)
			TH_LOG("%s: %s", bad[i].text, why.text);
		past_free(&p);
	}
}

/* Bytes changed, pieces lost, doubled and exchanged: it is refused with a reason, or makes a small, closed page. */
TEST(garbled_histories_do_no_harm)
{
	unsigned int seed = getenv("SINGVGPU_SEED") ? atoi(getenv("SINGVGPU_SEED")) : 20261125;
	size_t len, size = 0, refused = 0, made = 0;
	char *good = make(3, 7, 60, 100, &len);
	struct rundir_job job;

	new_job(&job, "106", 1);
	for (int i = 0; i < 4000; i++) {
		char *data = malloc(len + 1), *page;
		struct why why = { 0 };
		size_t n = len, head = strchr(good, '\n') - good;
		int err, changes = rand_r(&seed) % 4 + 1;

		memcpy(data, good, len + 1);
		for (int k = 0; k < changes; k++) {
			size_t at = rand_r(&seed) % 2 ? rand_r(&seed) % n : head + rand_r(&seed) % 3000;
			size_t from = rand_r(&seed) % n, some = rand_r(&seed) % 40;

			if (at >= n)
				continue;
			switch (rand_r(&seed) % 5) {
			case 0:
				data[at] = rand_r(&seed);
				break;
			case 1:
				data[at] = "0123456789 -%\n\xff"[rand_r(&seed) % 15];
				break;
			case 2:
				n = at + 1;
				data[n] = 0;
				break;
			case 3:		/* a piece of elsewhere */
				if (at + some < n && from + some < n)
					memmove(data + at, data + from, some);
				break;
			case 4:
				if (at + 8 < n)
					memset(data + at, rand_r(&seed) % 2 ? 0xff : 0, 8);
				break;
			}
		}
		page = page_of(data, n, &size, &err, &why);
		if (err) {
			refused++;
			EXPECT_TRUE(err == -ENODATA || *why.text)
				TH_LOG("change %d: %d without a reason", i, err);
			EXPECT_TRUE(err == -ENODATA || err == -EBADMSG || err == -EPROTONOSUPPORT);
		} else {
			made++;
			ASSERT_NE(page, NULL);
			EXPECT_LT(size, PAGE_MAX);
			EXPECT_EQ(strstr(page, "<script"), NULL);
			EXPECT_EQ(strstr(page, "nan"), NULL);
			EXPECT_EQ(strstr(page, "inf"), NULL);
			EXPECT_NE(strstr(page, "</html>"), NULL);
			for (size_t c = 0; c < size; c++)
				if (page[c] & 0x80 || (page[c] < ' ' && page[c] != '\n' && page[c] != '\t'))
					ASSERT_EQ(page[c], 'x');
		}
		/* A restore takes the same ones, and what it writes can be read. */
		EXPECT_EQ(history_unpack(job.path, data, n, "0123456789abcdef0123456789abcdef") == 0,
			  err == 0 || err == -ENODATA)
			TH_LOG("change %d: %d", i, err);
		free(page);
		free(data);
		data = history_pack(job.path, geteuid(), NULL, &n);
		if (data) {
			struct past p;

			EXPECT_EQ(past_read(&p, data, n, &why), 0)
				TH_LOG("change %d: %s", i, why.text);
			past_free(&p);
		}
		free(data);
	}
	free(job.proxy);
	EXPECT_GT(refused, 200);
	EXPECT_GT(made, 200);
	free(good);
}

/* The largest that there may be. */
TEST(pages_are_small)
{
	static const struct {
		unsigned int ranks, checkpoints, frames;
		double seconds;
	} of[] = { { 1, 0, 3, 1 }, { 1, 1, 40, 12 }, { 2, 5, 200, 50 }, { 8, 40, 2048, 40000 },
		   { 8, 0, 2048, 500 }, { 2, 40, 600, 3000 }, { 32, 6, 1024, 100000 },
		   { 256, 1000, 128, 1e6 }, { 7, 1000, 2048, 2e6 }, { 1, 3, 0, 10 } };
	const char *to = getenv("HISTORY_PAGES");

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
		size_t len, size = 0;
		char *data = make(of[i].ranks, of[i].checkpoints, of[i].frames, of[i].seconds, &len);
		struct why why = { 0 };
		char *page, name[64];
		int err;

		page = page_of(data, len, &size, &err, &why);
		ASSERT_EQ(err, 0)
			TH_LOG("%s", why.text);
		EXPECT_LT(size, PAGE_MAX)
			TH_LOG("%u ranks, %u checkpoints: %zu bytes", of[i].ranks, of[i].checkpoints, size);
		EXPECT_EQ(strstr(page, "<script"), NULL);
		EXPECT_NE(strstr(page, "&#60;script&#62;"), NULL);
		snprintf(name, sizeof(name), "r%u-c%u-f%u.html", of[i].ranks, of[i].checkpoints, of[i].frames);
		if (to)
			put_file(to, name, page, size);
		free(page);
		free(data);
	}
}

int main(int argc, char **argv)
{
	char command[96];
	int status;

	if (!mkdtemp(base))
		return 1;
	snprintf(kept, sizeof(kept), "%s/kept", base);
	setenv("SINGVGPU_HISTORY", kept, 1);
	status = test_harness_run(argc, argv);
	snprintf(command, sizeof(command), "rm -rf %s", base);
	return system(command) || status;
}
