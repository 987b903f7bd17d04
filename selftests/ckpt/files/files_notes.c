// SPDX-License-Identifier: Apache-2.0
/*
 * files_notes.c - logs and notes of owners in a store, where its owner has put something else
 *
 * The folder "logs" belongs to the store's owner. Root writes there for a checkpoint and reads there
 * for a clean-up: it follows no link, waits at no FIFO, and takes an ordinary file with one name.
 */
#include "../../harness/leaks.h"
#include "../../harness/patience.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "files_i.h"

#define NAME "0123456789abcdef"

static char base[64], dir[96], job_log[96], kept[128], note[132], victim[96];
static struct store *store;

static void fatal(const char *what)
{
	printf("# %s: %m; %s\n", what, store_why()->text);
	exit(KSFT_FAIL);
}

static void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		fatal(path);
	close(fd);
}

static const char *read_text(const char *path)
{
	static char text[PATH_MAX];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	text[n < 0 ? 0 : n] = '\0';
	return text;
}

/* A store, the log of a job that runs, and another user's file. */
static void begin(void)
{
	struct why why = { 0 };

	strcpy(base, "/tmp/svnotes.XXXXXX");
	if (!mkdtemp(base) || chmod(base, 0755))
		fatal("/tmp");
	snprintf(dir, sizeof(dir), "%s/store", base);
	snprintf(job_log, sizeof(job_log), "%s/log", base);
	snprintf(kept, sizeof(kept), "%s/logs/" NAME, dir);
	snprintf(note, sizeof(note), "%s.of", kept);
	snprintf(victim, sizeof(victim), "%s/victim", base);
	if (store_create(dir, NULL, &why) ||
	    store_open(&store, dir, STORE_RW, &why))
		fatal(why.text);
	write_text(job_log, "");
	write_text(victim, "theirs");
}

static void end(void)
{
	char command[128];

	store_close(store);
	snprintf(command, sizeof(command), "rm -rf %s", base);
	if (system(command))
		fatal(command);
}

/* Nothing has been written to the log for 40 days, so that only the note can save it. */
static void make_stale(void)
{
	struct timespec t[2] = { { .tv_sec = time(NULL) - 40l * 24 * 3600 } };

	t[1] = t[0];
	if (utimensat(AT_FDCWD, kept, t, AT_SYMLINK_NOFOLLOW))
		fatal(kept);
}

static uint64_t logs_removed(void)
{
	struct files_gc_stats st;

	if (files_gc(store, &st))
		fatal("gc");
	return st.logs;
}

TEST(a_note_by_us_keeps_the_log_of_a_job_that_runs)
{
	begin();
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "", 0));
	make_stale();
	EXPECT_EQ(0, logs_removed());
	EXPECT_EQ(0, unlink(job_log));
	EXPECT_EQ(1, logs_removed());
	end();
}

/* A note of another boot says nothing; nor does a note when the job's folder has another log now. */
TEST(a_note_says_it_of_this_boot_and_this_log)
{
	char text[PATH_MAX];

	begin();
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "", 0));
	strcpy(text, read_text(note));
	text[0] ^= 1;
	ASSERT_EQ(0, unlink(note));
	write_text(note, text);
	EXPECT_EQ(0, logs_removed());		/* it is young */
	make_stale();
	EXPECT_EQ(1, logs_removed());
	ASSERT_EQ(0, unlink(job_log));
	write_text(job_log, "");
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "", 0));
	ASSERT_EQ(0, unlink(job_log));
	ASSERT_EQ(0, symlink(victim, job_log));
	EXPECT_EQ(1, logs_removed());
	end();
}

/* Names of another form are no logs. */
TEST(what_is_no_log_is_left_alone)
{
	static const char *const names[] = { "0123456789abcdeF", "0123456789abcde", "0123456789abcdef0", "0123456789abcdefx" };
	char path[160];

	begin();
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "", 0));
	ASSERT_EQ(0, unlink(job_log));
	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s/logs/%s", dir, names[i]);
		strcpy(kept, path);
		write_text(kept, "");
		make_stale();
	}
	EXPECT_EQ(1, logs_removed());
	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s/logs/%s", dir, names[i]);
		EXPECT_EQ(0, access(path, F_OK));
	}
	end();
}

static void publish(const char *list, size_t n, char id[STORE_ID])
{
	struct store_part part = { .name = "files" };
	struct store_object *o;
	struct store_writer *w;

	if (store_writer_open(store, 0, &w) || store_object_begin(w, &o) || store_object_write(o, 0, list, n) ||
	    store_object_end(o, 0, &part.ref) || store_writer_flush(w) || store_publish(store, &part, 1, "{}", id))
		fatal("store");
	store_writer_close(w);
}

/* A checkpoint that cannot be read may have any of the logs. */
TEST(a_damaged_checkpoint_keeps_all_logs)
{
	static const char list[] = "singvgpu-files 1\nboot needle-in-the-list 0\nlog " NAME "\n";
	char id[STORE_ID], command[512];
	struct files_gc_stats st;

	begin();
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "", 0));
	ASSERT_EQ(0, unlink(job_log));
	publish(list, sizeof(list) - 1, id);
	EXPECT_EQ(0, logs_removed());
	snprintf(command, sizeof(command), "cd %s; f=$(grep -rlF needle-in-the-list .) && sed -i s/needle-in/needlE-in/ $f", dir);
	ASSERT_EQ(0, system(command));
	EXPECT_GT(0, files_gc(store, &st));
	EXPECT_EQ(0, st.logs);
	EXPECT_EQ(0, access(kept, F_OK));
	/* Its own page is whole, and what it has is gone. */
	snprintf(command, sizeof(command), "cd %s; rm $(grep -rlF needlE-in-the-list .)", dir);
	ASSERT_EQ(0, system(command));
	EXPECT_GT(0, files_gc(store, &st));
	EXPECT_EQ(0, access(kept, F_OK));
	snprintf(command, sizeof(command), "cd %s; find . -type f -name '%.8s*' | xargs truncate -s 10", dir, id);
	ASSERT_EQ(0, system(command));
	EXPECT_GT(0, files_gc(store, &st));
	EXPECT_EQ(0, access(kept, F_OK));
	end();
}

/* A log is written anew from its begin; what fails leaves the job's own. */
TEST(a_log_has_the_text_alone)
{
	char temp[160];
	struct stat st;

	begin();
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "longer text", 11));
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "text", 4));
	EXPECT_STREQ("text", read_text(kept));
	EXPECT_STREQ("text", read_text(job_log));
	ASSERT_EQ(0, unlink(job_log));
	ASSERT_EQ(0, mkdir(job_log, 0700));
	EXPECT_GT(0, files_log_link(store, NAME, job_log, "text", 4));
	ASSERT_EQ(0, lstat(job_log, &st));
	EXPECT_TRUE(S_ISDIR(st.st_mode));
	snprintf(temp, sizeof(temp), "%s.new", job_log);
	ASSERT_EQ(0, unlink(temp));
	end();
}

/* A folder that its user may not enter, and a store of that user's. */
TEST(the_jobs_user_can_reach_its_log)
{
	static const struct { int store, owner; bool ok; } cases[] = {
		{ 0700, 0, false }, { 0711, 0, true }, { 0700, 12345, true }, { 0077, 12345, false },
	};
	char logs[128], run[128], own[160];
	struct why why = { 0 };
	struct stat st;

	if (geteuid())
		SKIP(return, "not root");
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		begin();
		snprintf(logs, sizeof(logs), "%s/logs", dir);
		snprintf(run, sizeof(run), "%s/run", base);
		ASSERT_EQ(0, mkdir(run, 0700));
		ASSERT_EQ(0, chown(run, 12345, 12345));
		snprintf(own, sizeof(own), "chown -R %d %s", cases[i].owner, dir);
		ASSERT_EQ(0, system(own));
		store_close(store);
		ASSERT_EQ(0, store_open_trusted(&store, dir, STORE_RW, cases[i].owner, &why));
		ASSERT_EQ(0, chmod(dir, cases[i].store));
		strcat(run, "/log");
		EXPECT_EQ(cases[i].ok, !files_log_link(store, NAME, run, "", 0)) {
			printf("# case %zu\n", i);
		}
		EXPECT_EQ(0, stat(logs, &st));
		EXPECT_EQ(0711, st.st_mode & 07777);
		EXPECT_EQ(cases[i].owner, (int)st.st_uid);
		EXPECT_EQ(cases[i].ok, !stat(kept, &st));
		if (cases[i].ok)
			EXPECT_EQ(12345, st.st_uid);
		end();
	}
}

TEST(a_note_that_is_a_link_says_nothing)
{
	char real[128];

	begin();
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "", 0));
	snprintf(real, sizeof(real), "%s/real", base);
	ASSERT_EQ(0, rename(note, real));
	ASSERT_EQ(0, symlink(real, note));
	make_stale();
	EXPECT_EQ(1, logs_removed());
	EXPECT_EQ(0, access(real, F_OK));
	end();
}

TEST(nobody_waits_at_a_note_that_is_a_fifo)
{
	begin();
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "", 0));
	ASSERT_EQ(0, unlink(note));
	ASSERT_EQ(0, mkfifo(note, 0600));
	make_stale();
	alarm(20);
	EXPECT_EQ(1, logs_removed());
	alarm(0);
	end();
}

/* Of a terabyte that is not there, too. */
TEST(a_note_that_is_too_long_says_nothing)
{
	begin();
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "", 0));
	ASSERT_EQ(0, truncate(note, 1ll << 40));
	make_stale();
	EXPECT_EQ(1, logs_removed());
	end();
}

TEST(a_note_is_not_written_through_a_link)
{
	begin();
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "", 0));
	ASSERT_EQ(0, unlink(note));
	ASSERT_EQ(0, symlink(victim, note));
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, NULL, 0));
	EXPECT_STREQ("theirs", read_text(victim));
	make_stale();
	EXPECT_EQ(0, logs_removed());
	end();
}

TEST(a_log_is_an_ordinary_file_with_one_name)
{
	begin();
	ASSERT_EQ(0, files_log_link(store, NAME, job_log, "", 0));
	ASSERT_EQ(0, unlink(kept));
	ASSERT_EQ(0, mkfifo(kept, 0600));
	alarm(20);
	EXPECT_GT(0, files_log_link(store, NAME, job_log, "x", 1));
	alarm(0);
	ASSERT_EQ(0, unlink(kept));
	ASSERT_EQ(0, link(victim, kept));
	EXPECT_GT(0, files_log_link(store, NAME, job_log, "x", 1));
	EXPECT_STREQ("theirs", read_text(victim));
	ASSERT_EQ(0, unlink(kept));
	ASSERT_EQ(0, symlink(victim, kept));
	EXPECT_GT(0, files_log_link(store, NAME, job_log, "x", 1));
	EXPECT_STREQ("theirs", read_text(victim));
	end();
}

TEST_HARNESS_MAIN
