// SPDX-License-Identifier: Apache-2.0
/*
 * criu.c - process trees that CRIU dumps into a store and restores: completely, or not at all
 *
 * The job (criu_job.c) computes a number; a run that was moved must end with the number of an
 * undisturbed run. Whatever fails, the job runs on to the same number, or no process is left.
 */
#include "../../harness/leaks.h"
#include "../../harness/patience.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "criu.h"
#include "store.h"

#define STEPS	260
#define FDS	8

static char build[PATH_MAX];	/* absolute */
static struct criu criu_;
static struct why missing;
static uint64_t expected;	/* of STEPS, without flags */

struct moved {
	char dir[64];
	char id[STORE_ID];
	const char *flags;
	int steps;
	pid_t pid;
	int fd[3];		/* the job's */
	char key[3][64];
	struct criu_dump dump;
	struct criu_restore back;
	struct why why;
	struct store *store;
	struct store_writer *writer;
	struct images_parts *parts;
	bool refuse;		/* frozen() fails */
	int frozen_calls, gone_on;
	uint64_t step_frozen;
	pid_t restored;		/* as ready() was told */
};

/* Only what hangs waits as long. */
struct patience {
	time_t end;
};

static struct patience patience(int seconds)
{
	return (struct patience){ time(NULL) + seconds };
}

static bool patience_left(struct patience *p)
{
	usleep(1000);
	return time(NULL) < p->end;
}

/* -------------------------------------------------------------------------------- the job */

static uint64_t number(const char *dir, const char *name)
{
	char path[128];
	unsigned long x = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%lu", &x) != 1)
		x = 0;
	fclose(f);
	return x;
}

static pid_t in_namespace(void)
{
	struct clone_args a = { .flags = CLONE_NEWPID, .exit_signal = SIGCHLD };

	return syscall(SYS_clone3, &a, sizeof(a));
}

static void exec_job(struct moved *m, char *const argv[]) __attribute__((noreturn));
static void exec_job(struct moved *m, char *const argv[])
{
	int fd[3];

	setsid();
	for (int i = 0; i < 3; i++)
		fd[i] = fcntl(m->fd[i], F_DUPFD, 10);
	for (int i = 0; i < 3; i++)
		dup2(fd[i], i);
	close_range(3, ~0u, 0);
	execvp(argv[0], argv);
	_exit(127);
}

/* fd: what the job gets as 0, 1 and 2; -1: /dev/null. */
static bool start_job(struct moved *m, const char *flags, int steps)
{
	char program[PATH_MAX + 40], count[16];
	char *argv[] = { program, m->dir, count, (char *)flags, NULL };

	m->flags = flags;
	m->steps = steps;
	snprintf(program, sizeof(program), "%s/selftests/ckpt/criu_job", build);
	snprintf(count, sizeof(count), "%d", steps);
	m->pid = in_namespace();
	if (!m->pid)
		exec_job(m, argv);
	return m->pid > 0;
}

static bool come_to(struct moved *m, uint64_t step)
{
	struct patience p = patience(60);

	while (number(m->dir, "step") < step)
		if (!patience_left(&p))
			return false;
	return true;
}

static int end_of(pid_t pid)
{
	struct patience p = patience(90);
	int status = -1;
	pid_t got;

	while (!(got = waitpid(pid, &status, WNOHANG)))
		if (!patience_left(&p))
			return -2;
	return got == pid ? status : -3;
}

/* It may come to its end now. */
static int finish(struct moved *m)
{
	char path[80];
	int fd, status;

	snprintf(path, sizeof(path), "%s/go", m->dir);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
	status = end_of(m->pid);
	unlink(path);
	m->pid = 0;
	return status;
}

/* The job, wherever it runs now, comes to its end and the right number. */
static void ends_well(struct __test_metadata *_metadata, struct moved *m)
{
	EXPECT_EQ(finish(m), 0);
	EXPECT_EQ(number(m->dir, "result"), expected);
}

static void touch(const struct moved *m, const char *name)
{
	char path[96];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", m->dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
}

/* ----------------------------------------------------------------------- dump and restore */

static int frozen(void *arg, struct why *why)
{
	struct store_part part[64];
	struct moved *m = arg;
	size_t n = images_parts_count(m->parts);
	int err;

	m->frozen_calls++;
	m->step_frozen = number(m->dir, "step");
	usleep(30000);
	if (number(m->dir, "step") != m->step_frozen)
		return why_set(why, -EIO, "the tree runs while it is frozen");
	if (m->refuse)
		return why_set(why, -EDOM, "the test will not have it");
	for (size_t i = 0; i < n; i++)
		part[i].name = images_parts_get(m->parts, i, &part[i].ref);
	err = store_writer_flush(m->writer);
	err = err ?: store_publish(m->store, part, n, "{}", m->id);
	return store_failed(why, err);
}

static void lets_go(void *arg)
{
	struct moved *m = arg;
	uint64_t step = number(m->dir, "step");

	usleep(30000);
	m->gone_on += number(m->dir, "step") == step && m->dump.since_ns;
}

static int open_store(struct moved *m)
{
	char path[80];

	why_clear(&m->why);
	snprintf(path, sizeof(path), "%s/store", m->dir);
	if (access(path, F_OK) && store_create(path, NULL, &m->why))
		return -1;
	return store_open(&m->store, path, STORE_RW, &m->why);
}

static void close_store(struct moved *m)
{
	store_writer_close(m->writer);
	store_close(m->store);
	images_parts_free(m->parts);
	m->writer = NULL;
	m->store = NULL;
	m->parts = NULL;
}

/* sink: another one than the store. */
static int dump(struct moved *m, const struct images_sink *other)
{
	static const char *keys[3];
	struct images_sink sink;
	int err = open_store(m);

	if (!err)
		err = store_writer_open(m->store, 0, &m->writer);
	if (!err)
		err = images_to_store(&m->parts, m->writer, &sink);
	if (err)
		return err;
	for (int i = 0; i < 3; i++)
		keys[i] = m->key[i];
	m->dump.criu = &criu_;
	m->dump.pid = m->pid;
	m->dump.sink = other ?: &sink;
	m->dump.frozen = frozen;
	m->dump.lets_go = lets_go;
	m->dump.keys = keys;
	m->dump.n_keys = 3;
	m->dump.arg = m;
	/* Another dump on this host may have changed nftables' state at the wrong moment. */
	for (int i = 0; i < 16 && (!i || err == -ERESTART); i++) {
		why_clear(&m->why);
		err = criu_dump(&m->dump, &m->why);
	}
	close_store(m);
	if (!err && !m->dump.leave_running) {
		if (end_of(m->pid) != SIGKILL)
			return why_set(&m->why, -ECHILD, "the tree was not killed");
		m->pid = 0;
	}
	return err;
}

/* The images of the last dump; from lives as long as source. */
static int open_source(struct moved *m, struct images_stored *from, struct images_source *source)
{
	int err = open_store(m);

	if (!err)
		err = store_checkpoint_open(m->store, m->id, &from->checkpoint);
	if (err)
		return err;
	from->store = m->store;
	images_from_store(from, source);
	return 0;
}

static void close_source(struct moved *m, struct images_stored *from)
{
	store_checkpoint_close(from->checkpoint);
	close_store(m);
}

static int restore(struct moved *m, const struct criu_fd *fds, size_t n,
		   const struct images_source *other)
{
	struct images_source source;
	struct images_stored from;
	int err = open_source(m, &from, &source);

	if (err)
		return err;
	m->back.criu = &criu_;
	m->back.source = other ?: &source;
	m->back.fds = fds;
	m->back.n_fds = n;
	m->back.arg = m;
	err = criu_restore(&m->back, &m->why);
	m->pid = err ? 0 : m->back.pid;
	close_source(m, &from);
	return err;
}

#define MUST(x) \
	do { \
		int rc_ = (x); \
		if (rc_) \
			TH_LOG("%d: %s", rc_, m->why.text); \
		ASSERT_EQ(rc_, 0); \
	} while (0)

static int make_moved(struct moved *m)
{
	const char *tmp = getenv("TMPDIR") ?: "/tmp";

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int i = 0; i < 2; i++)
		m->fd[i] = open("/dev/null", O_RDWR | O_CLOEXEC);
	m->fd[2] = fcntl(2, F_DUPFD_CLOEXEC, 10);
	snprintf(m->dir, sizeof(m->dir), "%s/svcriu.XXXXXX", tmp);
	return mkdtemp(m->dir) ? 0 : -1;
}

static void free_moved(struct moved *m)
{
	char cmd[96];

	if (m->pid > 0) {
		kill(m->pid, SIGKILL);
		end_of(m->pid);
	}
	for (int i = 0; i < 3; i++)
		close(m->fd[i]);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", m->dir);
	if (system(cmd))
		fprintf(stderr, "# %s is left\n", m->dir);
}

/* Children that are not the job. */
static int litter_now(struct moved *m, bool tell)
{
	FILE *f;
	int pid, n = 0;

	f = fopen("/proc/thread-self/children", "re");
	while (f && fscanf(f, "%d", &pid) == 1) {
		if (pid == m->pid || waitpid(pid, NULL, WNOHANG) == pid)
			continue;
		if (tell)
			fprintf(stderr, "# process %d is left\n", pid);
		n++;
	}
	if (f)
		fclose(f);
	return n;
}

/* The script of a CRIU that was killed ends when nobody answers it, on a busy machine later. */
static int litter(struct moved *m)
{
	for (int i = 0; i < 600 && litter_now(m, false); i++)
		usleep(50000);
	return litter_now(m, true);
}

/* With which CRIU keeps connections still. */
static int tables(void)
{
	char cmd[PATH_MAX + 80];

	snprintf(cmd, sizeof(cmd), "exit $('%s/criu/nft' list tables | grep -c CRIU-)", build);
	return system(cmd);
}

/* Other tests' tables come and go. */
static bool no_more_tables_than(int before)
{
	struct patience p = patience(60);

	while (tables() > before)
		if (!patience_left(&p))
			return false;
	return true;
}

FIXTURE(criu)
{
	struct moved m;
	int tables;
};

FIXTURE_SETUP(criu)
{
	memset(&self->m, 0, sizeof(self->m));
	if (missing.err)
		SKIP(return, "%.900s", missing.text);
	ASSERT_EQ(make_moved(&self->m), 0);
	self->tables = tables();
}

FIXTURE_TEARDOWN(criu)
{
	if (!*self->m.dir)
		return;
	EXPECT_EQ(litter(&self->m), 0);
	EXPECT_TRUE(no_more_tables_than(self->tables));
	free_moved(&self->m);
}

/* ------------------------------------------------------------------------------- it works */

TEST_F(criu, a_tree_goes_on_where_it_was)
{
	struct moved *m = &self->m;

	ASSERT_TRUE(start_job(m, "", STEPS));
	ASSERT_TRUE(come_to(m, 40));
	MUST(dump(m, NULL));
	EXPECT_EQ(m->frozen_calls, 1);
	EXPECT_GT(m->dump.bytes, 1000000);
	EXPECT_GT(m->dump.frozen_ns, m->dump.criu_ns);
	EXPECT_GT(m->dump.criu_ns, 0);
	EXPECT_EQ(number(m->dir, "step"), m->step_frozen);
	MUST(restore(m, NULL, 0, NULL));
	ends_well(_metadata, m);
}

TEST_F(criu, and_again_from_an_object_larger_than_a_pipe)
{
	struct moved *m = &self->m;

	ASSERT_TRUE(start_job(m, "h", STEPS));
	for (int i = 0; i < 3; i++) {
		ASSERT_TRUE(come_to(m, 30 + 60 * i));
		MUST(dump(m, NULL));
		MUST(restore(m, NULL, 0, NULL));
	}
	EXPECT_GT(m->dump.bytes, 64 << 20);
	EXPECT_EQ(finish(m), 0);
	EXPECT_NE(number(m->dir, "result"), 0);
}

TEST_F(criu, left_running_it_runs)
{
	struct moved *m = &self->m;

	ASSERT_TRUE(start_job(m, "", STEPS));
	ASSERT_TRUE(come_to(m, 40));
	m->dump.leave_running = true;
	MUST(dump(m, NULL));
	ASSERT_TRUE(come_to(m, STEPS - 21));
	MUST(dump(m, NULL));
	EXPECT_EQ(m->gone_on, 2);
	ends_well(_metadata, m);
	/* the second checkpoint, after the end of the first tree */
	MUST(restore(m, NULL, 0, NULL));
	ends_well(_metadata, m);
}

static int is_there(void *arg, pid_t pid, struct why *why)
{
	struct moved *m = arg;

	m->restored = pid;
	return m->refuse ? why_set(why, -EDOM, "not this one") : 0;
}

TEST_F(criu, before_it_runs_we_are_asked)
{
	struct moved *m = &self->m;

	ASSERT_TRUE(start_job(m, "", STEPS));
	ASSERT_TRUE(come_to(m, 40));
	MUST(dump(m, NULL));
	m->back.ready = is_there;
	m->refuse = true;
	EXPECT_EQ(restore(m, NULL, 0, NULL), -EDOM);
	EXPECT_STREQ(m->why.text, "not this one");
	EXPECT_EQ(litter(m), 0);
	m->refuse = false;
	MUST(restore(m, NULL, 0, NULL));
	EXPECT_EQ(m->restored, m->pid);
	ends_well(_metadata, m);
}

/* ---------------------------------------------------------------------------------- stdio */

/* All that can be read now, and until what has come. */
static bool reads(int fd, const char *what)
{
	struct patience p = patience(60);
	char text[8192] = "";
	size_t at = 0;

	fcntl(fd, F_SETFL, O_NONBLOCK);
	while (!strstr(text, what)) {
		ssize_t n = read(fd, text + at, sizeof(text) - at - 1);

		if (n > 0)
			at += n;
		else if (!patience_left(&p))
			return false;
	}
	return true;
}

TEST_F(criu, another_pipe_takes_the_place_of_the_old)
{
	struct moved *m = &self->m;
	int a[2], b[2];

	ASSERT_EQ(pipe2(a, O_CLOEXEC), 0);
	ASSERT_EQ(pipe2(b, O_CLOEXEC), 0);
	close(m->fd[1]);
	m->fd[1] = a[1];
	ASSERT_EQ(criu_key(a[1], m->key[1], sizeof(m->key[1])), 0);
	EXPECT_EQ(strncmp(m->key[1], "pipe:[", 6), 0);
	ASSERT_TRUE(start_job(m, "", STEPS));
	ASSERT_TRUE(reads(a[0], "step 0\n"));
	ASSERT_TRUE(come_to(m, 40));
	MUST(dump(m, NULL));
	MUST(restore(m, &(struct criu_fd){ b[1], m->key[1] }, 1, NULL));
	ends_well(_metadata, m);
	EXPECT_TRUE(reads(b[0], "end\n"));
	close(a[0]);
	close(b[0]);
	close(b[1]);
}

TEST_F(criu, a_file_is_written_on)
{
	struct moved *m = &self->m;
	char path[80], text[256] = "";
	FILE *f;

	snprintf(path, sizeof(path), "%s/out", m->dir);
	close(m->fd[1]);
	m->fd[1] = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	ASSERT_GE(m->fd[1], 0);
	ASSERT_EQ(criu_key(m->fd[1], m->key[1], sizeof(m->key[1])), 0);
	EXPECT_STREQ(m->key[1], "");
	ASSERT_TRUE(start_job(m, "", STEPS));
	ASSERT_TRUE(come_to(m, 40));
	MUST(dump(m, NULL));
	MUST(restore(m, NULL, 0, NULL));
	ends_well(_metadata, m);
	f = fopen(path, "re");
	ASSERT_NE(f, NULL);
	EXPECT_GT(fread(text, 1, sizeof(text) - 1, f), 0);
	fclose(f);
	EXPECT_STREQ(text, "step 0\nstep 100\nstep 200\nend\n");
}

TEST_F(criu, another_terminal_takes_the_place_of_the_old)
{
	struct moved *m = &self->m;
	int a, b, tty;

	ASSERT_EQ(openpty(&a, &tty, NULL, NULL, NULL), 0);
	fcntl(a, F_SETFD, FD_CLOEXEC);
	close(m->fd[1]);
	m->fd[1] = tty;
	ASSERT_EQ(criu_key(tty, m->key[1], sizeof(m->key[1])), 0);
	EXPECT_EQ(strncmp(m->key[1], "tty[", 4), 0);
	ASSERT_TRUE(start_job(m, "", STEPS));
	ASSERT_TRUE(reads(a, "step 0\r\n"));
	ASSERT_TRUE(come_to(m, 40));
	MUST(dump(m, NULL));
	ASSERT_EQ(openpty(&b, &tty, NULL, NULL, NULL), 0);
	MUST(restore(m, &(struct criu_fd){ tty, m->key[1] }, 1, NULL));
	ends_well(_metadata, m);
	EXPECT_TRUE(reads(b, "end\r\n"));
	close(a);
	close(b);
	close(tty);
}

/* ------------------------------------------------------------------- a dump that fails */

TEST_F(criu, what_the_conductor_refuses_leaves_the_tree_alone)
{
	struct moved *m = &self->m;

	ASSERT_TRUE(start_job(m, "", STEPS));
	ASSERT_TRUE(come_to(m, 40));
	m->refuse = true;
	EXPECT_EQ(dump(m, NULL), -EDOM);
	EXPECT_STREQ(m->why.text, "the test will not have it");
	EXPECT_EQ(m->gone_on, 1);
	ends_well(_metadata, m);
}

TEST_F(criu, what_CRIU_cannot_dump_is_named_in_its_words)
{
	struct moved *m = &self->m;

	ASSERT_TRUE(start_job(m, "u", STEPS));
	ASSERT_TRUE(come_to(m, 40));
	EXPECT_EQ(dump(m, NULL), -EIO);
	TH_LOG("%s", m->why.text);
	EXPECT_NE(strstr(m->why.text, "criu dump failed: "), NULL);
	EXPECT_NE(strstr(m->why.text, "io_uring"), NULL);
	EXPECT_NE(strstr(m->why.text, "which CRIU cannot dump"), NULL);
	EXPECT_EQ(m->frozen_calls, 0);
	ends_well(_metadata, m);
}

static int failing_at;

static int begin_nothing(void *arg, const char *name, void **object)
{
	*object = arg;
	return 0;
}

static int write_nothing(void *object, uint64_t off, const void *data, size_t len)
{
	return --failing_at ? 0 : -ENOSPC;
}

static int end_nothing(void *object, int whole)
{
	return 0;
}

TEST_F(criu, a_full_disk_leaves_the_tree_alone)
{
	struct images_sink sink = { begin_nothing, write_nothing, end_nothing, "x" };
	struct moved *m = &self->m;

	ASSERT_TRUE(start_job(m, "h", STEPS));
	ASSERT_TRUE(come_to(m, 20));
	/* in the first object, in the middle, in the packed images at the end */
	for (failing_at = 1; failing_at < 60; failing_at += 25) {
		int at = failing_at;

		EXPECT_EQ(dump(m, &sink), -ENOSPC)
			TH_LOG("%s", m->why.text);
		EXPECT_NE(strstr(m->why.text, "No space left"), NULL);
		failing_at = at;
	}
	EXPECT_EQ(m->frozen_calls, 0);
	EXPECT_EQ(m->gone_on, 3);
	EXPECT_EQ(finish(m), 0);
}

static int write_us;

static int slow_write(void *object, uint64_t off, const void *data, size_t len)
{
	usleep(write_us);
	return 0;
}

static int give_up(void *arg, uint64_t bytes)
{
	return bytes > 1000000 ? -ECANCELED : 0;
}

TEST_F(criu, given_up_in_the_middle_it_leaves_the_tree_alone)
{
	struct images_sink sink = { begin_nothing, slow_write, end_nothing, "x" };
	struct moved *m = &self->m;

	ASSERT_TRUE(start_job(m, "h", STEPS));
	ASSERT_TRUE(come_to(m, 20));
	/* On a busy machine CRIU may not have the tree yet when the time is over. */
	write_us = 1000000;
	for (m->dump.limit_ms = 3000; !m->gone_on && m->dump.limit_ms < 30000; m->dump.limit_ms *= 2)
		EXPECT_EQ(dump(m, &sink), -ETIMEDOUT);
	EXPECT_EQ(m->gone_on, 1);
	m->dump.limit_ms = 0;
	write_us = 300000;
	m->dump.progress = give_up;
	EXPECT_EQ(dump(m, &sink), -ECANCELED);
	EXPECT_EQ(m->frozen_calls, 0);
	EXPECT_EQ(m->gone_on, 2);
	m->dump.progress = NULL;
	MUST(dump(m, NULL));
	EXPECT_EQ(m->gone_on, 2);
	MUST(restore(m, NULL, 0, NULL));
	EXPECT_EQ(finish(m), 0);
}

/* ----------------------------------------------------------------------- CRIU is killed */

struct killer {
	pid_t self, job;
	int ms;
	bool done;
	volatile bool over;
};

/* Kills the youngest child of the test that is not the job, when it has lived for ms. */
static void *kill_criu(void *arg)
{
	struct killer *k = arg;
	char path[64];
	int pid, last;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", k->self, k->self);
	while (!k->over) {
		f = fopen(path, "re");
		last = 0;
		while (f && fscanf(f, "%d", &pid) == 1)
			last = pid != k->job ? pid : last;
		if (f)
			fclose(f);
		if (last) {
			usleep(k->ms * 1000);
			kill(last, SIGKILL);
			k->done = true;
			return NULL;
		}
		usleep(200);
	}
	return NULL;
}

TEST_F(criu, killed_in_the_middle_of_a_dump_it_leaves_the_tree_alone)
{
	static const int when[] = { 5, 15, 25, 35, 45, 60, 80, 110 };
	struct moved *m = &self->m;
	pthread_t t;
	int err, kills = 0;

	ASSERT_TRUE(start_job(m, "t", STEPS));
	ASSERT_TRUE(come_to(m, 10));
	m->dump.leave_running = true;
	for (size_t i = 0; i < ARRAY_SIZE(when); i++) {
		struct killer k = { .self = getpid(), .job = m->pid, .ms = when[i] };
		uint64_t step = number(m->dir, "step");

		ASSERT_EQ(pthread_create(&t, NULL, kill_criu, &k), 0);
		err = dump(m, NULL);
		k.over = true;
		pthread_join(t, NULL);
		kills += k.done;
		if (err)
			EXPECT_NE(strstr(m->why.text, "killed by SIGKILL"), NULL);
		ASSERT_TRUE(come_to(m, step + 3 < STEPS - 20 ? step + 3 : STEPS - 21));
		EXPECT_TRUE(no_more_tables_than(self->tables));
	}
	/* One or the other may be over before it is seen. */
	EXPECT_LT(0, kills);
	m->dump.leave_running = false;
	MUST(dump(m, NULL));
	MUST(restore(m, NULL, 0, NULL));
	ends_well(_metadata, m);
}

TEST_F(criu, killed_in_the_middle_of_a_restore_it_leaves_nothing)
{
	static const int when[] = { 10, 25, 40, 55, 70, 90 };
	struct moved *m = &self->m;
	pthread_t t;
	int err, kills = 0;

	ASSERT_TRUE(start_job(m, "", STEPS));
	ASSERT_TRUE(come_to(m, 20));
	MUST(dump(m, NULL));
	for (size_t i = 0; i < ARRAY_SIZE(when); i++) {
		struct killer k = { .self = getpid(), .ms = when[i] };

		ASSERT_EQ(pthread_create(&t, NULL, kill_criu, &k), 0);
		err = restore(m, NULL, 0, NULL);
		k.over = true;
		pthread_join(t, NULL);
		kills += k.done;
		if (!err) {		/* it was too quick for us, and its root may be dead */
			kill(m->pid, SIGKILL);
			end_of(m->pid);
			m->pid = 0;
		}
		EXPECT_EQ(litter(m), 0);
	}
	EXPECT_LT(0, kills);
}

/* -------------------------------------------------------------------- bad images, no CRIU */

static struct images_source good;
static int reads_left;

static int read_badly(void *object, uint64_t off, void *data, size_t len)
{
	return __atomic_fetch_sub(&reads_left, 1, __ATOMIC_RELAXED) > 0 ?
	       good.read(object, off, data, len) : -EBADMSG;
}

static int end_badly(void *object, void *ticket)
{
	int err = good.fetch_end(object, ticket);

	return __atomic_fetch_sub(&reads_left, 1, __ATOMIC_RELAXED) > 0 ? err : -EBADMSG;
}

TEST_F(criu, images_that_cannot_be_read_bring_nothing_back)
{
	struct images_source source;
	struct images_stored from;
	struct moved *m = &self->m;

	ASSERT_TRUE(start_job(m, "h", STEPS));
	ASSERT_TRUE(come_to(m, 20));
	MUST(dump(m, NULL));
	for (int left = 0; left <= 8; left += 4) {
		MUST(open_source(m, &from, &good));
		source = good;
		source.read = read_badly;
		source.fetch_end = end_badly;
		reads_left = left;
		m->back = (struct criu_restore){ .criu = &criu_, .source = &source };
		EXPECT_NE(criu_restore(&m->back, &m->why), 0);
		EXPECT_EQ(litter(m), 0);
		close_source(m, &from);
	}
	m->back = (struct criu_restore){ 0 };
	MUST(restore(m, NULL, 0, NULL));
	EXPECT_EQ(finish(m), 0);
}

static void write_program(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");

	if (!f)
		return;
	fputs(text, f);
	fchmod(fileno(f), 0700);
	fclose(f);
}

/* ------------------------------------------------------------ reading ahead of the processes */

static int opened, closed, begun, ended;

static int open_counted(void *arg, const char *name, void **object, uint64_t *size)
{
	int err = good.open(arg, name, object, size);

	__atomic_fetch_add(&opened, !err, __ATOMIC_RELAXED);
	return err;
}

static void close_counted(void *object)
{
	good.close(object);
	__atomic_fetch_add(&closed, 1, __ATOMIC_RELAXED);
}

static int fetch_counted(void *object, uint64_t off, void *data, size_t len, void **ticket)
{
	int err = good.fetch(object, off, data, len, ticket);

	__atomic_fetch_add(&begun, !err, __ATOMIC_RELAXED);
	return err;
}

static int end_counted(void *object, void *ticket)
{
	__atomic_fetch_add(&ended, 1, __ATOMIC_RELAXED);
	return good.fetch_end(object, ticket);
}

/* A CRIU that never makes a process: what was read for them is let go of, all of it. */
TEST_F(criu, memory_is_read_before_there_are_processes)
{
	struct images_source source;
	struct images_stored from;
	struct moved *m = &self->m;
	struct criu idle = criu_;

	ASSERT_TRUE(start_job(m, "h", STEPS));
	ASSERT_TRUE(come_to(m, 20));
	MUST(dump(m, NULL));
	snprintf(idle.path, sizeof(idle.path), "%s/idle", m->dir);
	write_program(idle.path, "#!/bin/sh\nsleep 2\nexit 1\n");
	MUST(open_source(m, &from, &good));
	source = good;
	source.open = open_counted;
	source.close = close_counted;
	source.fetch = fetch_counted;
	source.fetch_end = end_counted;
	opened = closed = begun = ended = 0;
	m->back = (struct criu_restore){ .criu = &idle, .source = &source };
	EXPECT_NE(criu_restore(&m->back, &m->why), 0);
	EXPECT_LE(64 >> 3, begun);	/* chunks of 8 MiB */
	EXPECT_EQ(begun, ended);
	EXPECT_EQ(opened, closed);
	EXPECT_EQ(litter(m), 0);
	close_source(m, &from);
	m->back = (struct criu_restore){ 0 };
	MUST(restore(m, NULL, 0, NULL));
	EXPECT_EQ(finish(m), 0);
}

/* A CRIU that does something first when it asks us at "post-restore" and at "pre-resume". $dir: its folder. */
static void write_restorer(const char *path, const char *restored, const char *resumes)
{
	char text[1024], script[PATH_MAX];

	snprintf(script, sizeof(script), "%s.script", path);
	snprintf(text, sizeof(text), "#!/bin/sh\ndir=$(cat \"$0.dir\")\ncase $CRTOOLS_SCRIPT_ACTION in\n"
		 "post-restore) %s;;\npre-resume) %s;;\nesac\nexec \"$(cat \"$0.ours\")\"\n", restored, resumes);
	write_program(script, text);
	snprintf(text, sizeof(text), "#!/bin/sh\necho \"$3\" >\"$0.script.dir\"\nfor a; do\nshift\n"
		 "[ \"$last\" = --action-script ] && echo \"$a\" >\"$0.script.ours\" && a=$0.script\n"
		 "last=$a\nset -- \"$@\" \"$a\"\ndone\nexec '%.200s' \"$@\"\n", criu_.path);
	write_program(path, text);
}

TEST_F(criu, a_CRIU_that_does_not_end_when_it_has_restored_leaves_nothing)
{
	static const struct {
		const char *first;
		long last_ms;
		int err;
		const char *says[3];
	} runs[] = {
		/* It hangs. */
		{ ":", 500, -ETIMEDOUT, { "does not let them go", "another try to restore it may" } },
		/* It has given up, says so, and hangs: that is told at once. */
		{ "echo '(0.1) Error (criu/cr-restore.c:1): Unable to detach 5: No such process\n"
		  "(0.2) Error (criu/cr-restore.c:2): Killing processes because of failure on restore.' "
		  ">>$dir/criu.log", 3600000, -EIO,
		  { "criu restore failed: Unable to detach 5: No such process. ",
		    "ended while CRIU was letting the job go", "restore it again" } },
		/* It hangs, and has said something. */
		{ "echo '(0.1) Error (criu/a.c:1): something' >>$dir/criu.log", 500, -ETIMEDOUT,
		  { "does not let them go: something. another try" } },
	};
	struct moved *m = &self->m;
	struct images_source source;
	struct images_stored from;
	struct criu fake = criu_;

	ASSERT_TRUE(start_job(m, "", STEPS));
	ASSERT_TRUE(come_to(m, 20));
	MUST(dump(m, NULL));
	snprintf(fake.path, sizeof(fake.path), "%s/fake", m->dir);
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++) {
		write_restorer(fake.path, runs[i].first, "exec sleep 600");
		MUST(open_source(m, &from, &source));
		m->back = (struct criu_restore){ .criu = &fake, .source = &source, .last_ms = runs[i].last_ms };
		EXPECT_EQ(criu_restore(&m->back, &m->why), runs[i].err);
		for (int k = 0; k < 3 && runs[i].says[k]; k++)
			EXPECT_NE(strstr(m->why.text, runs[i].says[k]), NULL)
				TH_LOG("%s", m->why.text);
		EXPECT_EQ(m->back.pid, 0);
		EXPECT_EQ(litter(m), 0);
		close_source(m, &from);
		why_clear(&m->why);
	}
	m->back = (struct criu_restore){ 0 };
	MUST(restore(m, NULL, 0, NULL));
	EXPECT_EQ(finish(m), 0);
}

/* Its threads are let go one by one, and the first of them ends all. */
TEST_F(criu, a_process_that_ends_as_soon_as_it_runs_on_ends_alone)
{
	struct moved *m = &self->m;
	struct patience p = patience(60);

	ASSERT_TRUE(start_job(m, "d", STEPS));
	while (!number(m->dir, "threads") && patience_left(&p))
		;
	ASSERT_TRUE(come_to(m, 20));
	MUST(dump(m, NULL));
	touch(m, "dies");
	MUST(restore(m, NULL, 0, NULL));
	ends_well(_metadata, m);
}

/* A process of 301 threads ends in its restore before CRIU lets its threads go. script: a script starts CRIU as its child. */
static void ends_before_it_runs(struct __test_metadata *_metadata, struct moved *m, bool script)
{
	struct images_source source;
	struct images_stored from;
	struct criu ends = criu_;
	struct patience p = patience(60);
	char text[300];

	ASSERT_TRUE(start_job(m, "d", STEPS));
	while (!number(m->dir, "threads") && patience_left(&p))
		;
	ASSERT_TRUE(come_to(m, 20));
	MUST(dump(m, NULL));
	snprintf(ends.path, sizeof(ends.path), "%s/ends", m->dir);
	write_restorer(ends.path, ":", "for p in $(cat /proc/$CRTOOLS_INIT_PID/task/$CRTOOLS_INIT_PID/children); do "
		       "grep -q Threads:.301 /proc/$p/status && kill -KILL $p; done");
	if (script) {
		snprintf(text, sizeof(text), "#!/bin/sh\n'%.200s' \"$@\"\nexit $?\n", ends.path);
		snprintf(ends.path, sizeof(ends.path), "%s/script", m->dir);
		write_program(ends.path, text);
	}
	MUST(open_source(m, &from, &source));
	m->back = (struct criu_restore){ .criu = &ends, .source = &source };
	MUST(criu_restore(&m->back, &m->why));
	m->pid = m->back.pid;
	EXPECT_EQ(litter(m), 0);
	close_source(m, &from);
	ends_well(_metadata, m);
}

/* The same at a certain time. */
TEST_F(criu, nor_does_the_end_of_a_process_matter_before_that)
{
	ends_before_it_runs(_metadata, &self->m, false);
}

/* A script that does not replace itself by CRIU: CRIU is below what we have started. */
TEST_F(criu, a_CRIU_that_a_script_starts_restores)
{
	ends_before_it_runs(_metadata, &self->m, true);
}

static int ends_at_once(void *arg, struct why *why)
{
	(void)why;
	touch(arg, "dies");
	return 0;
}

static int drop(void *object, uint64_t off, const void *data, size_t len)
{
	return 0;
}

TEST_F(criu, left_running_too)
{
	struct moved *m = &self->m;
	struct patience p = patience(60);
	struct images_sink sink = { begin_nothing, drop, end_nothing, "x" };
	struct criu_dump d = { .criu = &criu_, .sink = &sink, .frozen = ends_at_once, .arg = m,
			       .leave_running = true };

	ASSERT_TRUE(start_job(m, "d", STEPS));
	while (!number(m->dir, "threads") && patience_left(&p))
		;
	ASSERT_TRUE(come_to(m, 20));
	d.pid = m->pid;
	MUST(criu_dump(&d, &m->why));
	ends_well(_metadata, m);
}

/* Children of the job that are stopped. */
static int stopped_ones(pid_t root)
{
	char path[64], text[512], *state;
	int pid, n = 0;
	FILE *all, *one;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", root, root);
	all = fopen(path, "re");
	while (all && fscanf(all, "%d", &pid) == 1) {
		snprintf(path, sizeof(path), "/proc/%d/stat", pid);
		one = fopen(path, "re");
		*text = 0;
		if (one && !fgets(text, sizeof(text), one))
			*text = 0;
		if (one)
			fclose(one);
		state = strrchr(text, ')');
		n += state && state[1] && state[2] == 'T';
	}
	if (all)
		fclose(all);
	return n;
}

TEST_F(criu, what_the_job_has_stopped_stays_stopped)
{
	struct moved *m = &self->m;
	struct patience p = patience(60);

	ASSERT_TRUE(start_job(m, "s", STEPS));
	ASSERT_TRUE(come_to(m, 20));
	EXPECT_EQ(stopped_ones(m->pid), 1);
	m->dump.leave_running = true;
	MUST(dump(m, NULL));
	ASSERT_TRUE(come_to(m, 60));
	while (stopped_ones(m->pid) != 1 && patience_left(&p))
		;
	m->dump.leave_running = false;
	MUST(dump(m, NULL));
	MUST(restore(m, NULL, 0, NULL));
	ASSERT_TRUE(come_to(m, 80));
	EXPECT_EQ(stopped_ones(m->pid), 1);
	ends_well(_metadata, m);
}

/* A CRIU that is killed, by whomever, may have a child that has stopped itself. */
TEST_F(criu, a_killed_CRIU_leaves_no_stopped_child)
{
	struct images_sink none = { .begin = begin_nothing, .write = write_nothing, .end = end_nothing };
	struct moved *m = &self->m;
	struct criu fake = criu_;
	struct criu_dump d = { .criu = &fake, .sink = &none, .frozen = frozen, .arg = m };

	ASSERT_TRUE(start_job(m, "", STEPS));
	snprintf(fake.path, sizeof(fake.path), "%s/fake", m->dir);
	write_program(fake.path, "#!/bin/sh\n(kill -STOP $(exec sh -c 'echo $PPID')) &\nsleep .3\nkill -KILL $$\n");
	d.pid = m->pid;
	EXPECT_EQ(criu_dump(&d, &m->why), -EIO);
	EXPECT_NE(strstr(m->why.text, "killed by SIGKILL"), NULL)
		TH_LOG("%s", m->why.text);
	EXPECT_EQ(litter(m), 0);
	ends_well(_metadata, m);
}

/* -------------------------------------------------------------------------- CRIU's folder */

static int entries(const char *tmp, const char *prefix)
{
	struct dirent *e;
	DIR *d = opendir(tmp);
	int n = 0;

	while (d && (e = readdir(d)))
		n += !strncmp(e->d_name, prefix, strlen(prefix));
	if (d)
		closedir(d);
	return n;
}

static int folders(const char *tmp)
{
	return entries(tmp, "singvgpu-criu");
}

static pid_t conduct(struct criu_dump *d)
{
	struct why why = { 0 };
	pid_t pid = fork();

	if (!pid)
		_exit(-criu_dump(d, &why));
	return pid;
}

TEST_F(criu, the_folder_of_a_killed_conductor_is_removed_and_no_other)
{
	struct images_sink none = { .begin = begin_nothing, .write = write_nothing, .end = end_nothing };
	struct moved *m = &self->m;
	struct criu waits = criu_, fails = criu_;
	struct criu_dump d = { .criu = &waits, .sink = &none, .frozen = frozen, .arg = m };
	struct patience p = patience(60);
	char tmp[80], *before = getenv("TMPDIR");
	pid_t busy, killed;

	before = before ? strdup(before) : NULL;
	snprintf(tmp, sizeof(tmp), "%s/tmp", m->dir);
	ASSERT_EQ(mkdir(tmp, 0700), 0);
	setenv("TMPDIR", tmp, 1);
	snprintf(waits.path, sizeof(waits.path), "%s/waits", m->dir);
	write_program(waits.path, "#!/bin/sh\nmkdir \"${0%/*}/tmp/runs.$$\"\n"
			    "while [ ! -e \"${0%/*}/end\" ]; do sleep .05; done\nexit 1\n");
	snprintf(fails.path, sizeof(fails.path), "%s/fails", m->dir);
	write_program(fails.path, "#!/bin/sh\nexit 1\n");
	ASSERT_TRUE(start_job(m, "", STEPS));
	d.pid = m->pid;
	busy = conduct(&d);
	killed = conduct(&d);
	/* CRIU runs in both: they have their locks, and no child that has not come to its execve() holds one. */
	while (entries(tmp, "runs.") < 2 && patience_left(&p))
		;
	kill(killed, SIGKILL);
	EXPECT_EQ(end_of(killed), SIGKILL);
	EXPECT_EQ(folders(tmp), 2);
	d.criu = &fails;
	setenv("SINGVGPU_KEEP_CRIU", "1", 1);
	EXPECT_EQ(criu_dump(&d, &m->why), -EIO);
	unsetenv("SINGVGPU_KEEP_CRIU");
	EXPECT_EQ(folders(tmp), 2);	/* of the busy one, and that which is kept */
	EXPECT_EQ(criu_dump(&d, &m->why), -EIO);
	EXPECT_EQ(folders(tmp), 2);
	touch(m, "end");
	EXPECT_EQ(end_of(busy), EIO << 8);
	EXPECT_EQ(folders(tmp), 1);
	if (before)
		setenv("TMPDIR", before, 1);
	else
		unsetenv("TMPDIR");
	free(before);
	ends_well(_metadata, m);
}

/* ------------------------------------------------------------------------------ its words */

TEST_F(criu, an_error_gets_its_own_explanation_and_no_other)
{
#define NUMBER	"a process of this number is there"
#define OUTSIDE	"socket to a process outside"
	static const struct {
		const char *error, *remedy;	/* NULL: none */
	} runs[] = {
		{ "Can'\\''t fork for 7: File exists", NUMBER },
		{ "Can'\\''t fork for 7: Resource temporarily unavailable", NULL },
		{ "Pid 7 do not match expected 8", NUMBER },
		{ "Can'\\''t link remap to /a/Pid 7: File name too long", "a shorter path" },
		{ "Can'\\''t link remap to /a/b: File exists", "link_remap.NUMBER" },
		{ "Can'\\''t link remap to /a/b: Read-only file system", NULL },
		{ "unix: Can'\\''t bind socket to /a/Pid 7: File name too long", NULL },
		{ "Can'\\''t create dir: /File exists/io_uring/pidfd AT 5: Permission denied", NULL },
		{ "unix: External socket is used. Consider using --ext-unix-sk option.", OUTSIDE },
		{ "Can'\\''t open file /external unix/b: Permission denied", NULL },
		{ "Can'\\''t open file /a/b: No such file or directory", "is missing here" },
		{ "tty: Don'\\''t have tty to inherit session from, aborting", "restore it on one" },
		{ "inet: Can'\\''t bind inet socket (id 3): Address already in use", "a port of the job is in use" },
		{ "inet: Can'\\''t bind inet socket (id 3): Cannot assign requested address", "not one of this host" },
		{ "inet: Can'\\''t bind inet socket (id 3): Permission denied", NULL },
		{ "File /a/has bad mode/b has bad size 5 (expect 6)", "not as it was at the checkpoint" },
		{ "File /a has bad build-ID", "put that version back" },
		{ "pidfd: pidfd pid 5 is not a part of process tree..", "a pidfd of a process that is not its own" },
		{ "Can'\\''t dump file 5 of that type [600] (unknown anon_inode:[perf_event])", "perf events" },
		{ "Can'\\''t dump ghost file /a of 9 size, increase limit", "too large (2 GB)" },
	};
	struct images_sink none = { .begin = begin_nothing, .write = write_nothing, .end = end_nothing };
	struct moved *m = &self->m;
	struct criu fake = criu_;
	char text[512];

	ASSERT_TRUE(start_job(m, "", STEPS));
	snprintf(fake.path, sizeof(fake.path), "%s/fake", m->dir);
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++) {
		struct criu_dump d = { .criu = &fake, .pid = m->pid, .sink = &none, .frozen = frozen, .arg = m };
		const char *remedy = runs[i].remedy;

		/* The first line is a host's without /dev/net/tun, and says nothing about the job. */
		snprintf(text, sizeof(text), "#!/bin/sh\n{ echo '(0.0) Error (criu/tun.c:84): tun: Unable to create tun: "
			 "No such file or directory'\necho '(0.1) Error (criu/a.c:1): %s'; } >\"$3/criu.log\"\nexit 1\n",
			 runs[i].error);
		write_program(fake.path, text);
		why_clear(&m->why);
		EXPECT_EQ(criu_dump(&d, &m->why), -EIO);
		EXPECT_EQ(!!strstr(m->why.text, ". "), remedy || strstr(runs[i].error, ". "))
			TH_LOG("%s", m->why.text);
		EXPECT_EQ(strstr(m->why.text, "tun: "), NULL)
			TH_LOG("%s", m->why.text);
		if (remedy)
			EXPECT_NE(strstr(m->why.text, remedy), NULL)
				TH_LOG("%s", m->why.text);
	}
	ends_well(_metadata, m);
}


/* What is told apart by CRIU's log, which is all that it says: may another dump do? */
TEST_F(criu, a_dump_that_may_be_done_again_says_so)
{
	static const struct {
		const char *log;
		int err;
	} runs[] = {
		{ "Error (criu/netfilter.c:9): Failed to lock TCP connection", -ERESTART },
		{ "Error (criu/a.c:1): one\n(0.2) Error (criu/a.c:1): Failed to lock TCP connection",
		  -ERESTART },
		{ "Warn  (criu/a.c:1): Failed to lock TCP connection\n(0.2) Error (criu/a.c:1): else",
		  -EIO },
		{ "Error (criu/a.c:1): one", -EIO },
		/* Processes that CRIU could not stop, since they come and go. */
		{ "Error (compel/a.c:1): Unable to detach from 5: No such process\n(0.2) Error (criu/a.c:1): Dumping FAILED.",
		  -ERESTART },
		{ "Error (criu/a.c:1): Dumping FAILED.", -ERESTART },
		{ "Error (compel/a.c:1): Unable to detach from 5: No such process\n(0.2) Error (criu/a.c:1): else\n"
		  "(0.3) Error (criu/a.c:1): Dumping FAILED.", -EIO },
		{ "Error (compel/a.c:1): Unable to detach from 5: No such process", -EIO },
	};
	struct moved *m = &self->m;
	struct criu fake = criu_;
	struct images_sink none = { .begin = begin_nothing, .write = write_nothing,
				    .end = end_nothing };
	char text[512];

	ASSERT_TRUE(start_job(m, "h", STEPS));
	ASSERT_TRUE(come_to(m, 20));
	snprintf(fake.path, sizeof(fake.path), "%s/fake", m->dir);
	for (size_t i = 0; i < sizeof(runs) / sizeof(*runs); i++) {
		struct criu_dump d = { .criu = &fake, .pid = m->pid, .sink = &none,
				       .frozen = frozen, .arg = m };

		snprintf(text, sizeof(text), "#!/bin/sh\nprintf '(0.1) %%s\\n' '%s' >\"$3/criu.log\"\n"
			 "exit 1\n", runs[i].log);
		write_program(fake.path, text);
		why_clear(&m->why);
		EXPECT_EQ(criu_dump(&d, &m->why), runs[i].err);
		EXPECT_EQ(m->why.err, runs[i].err);
		EXPECT_NE(strstr(m->why.text, "criu dump failed: "), NULL)
			TH_LOG("%s", m->why.text);
	}
	EXPECT_EQ(finish(m), 0);
}

TEST(a_CRIU_that_will_not_do_is_named)
{
	char dir[] = "/tmp/svcriu.XXXXXX", path[64], *argv[] = { NULL };
	struct why why[4] = { { 0 } };
	struct criu c;

	(void)argv;
	ASSERT_NE(mkdtemp(dir), NULL);
	snprintf(path, sizeof(path), "%s/criu", dir);
	EXPECT_EQ(criu_find(&c, path, &why[0]), -ENOENT);
	EXPECT_NE(strstr(why[0].text, "cannot be executed; CRIU 4.2 or newer is needed"), NULL);
	write_program(path, "#!/bin/sh\necho Version: 4.1.1\n");
	EXPECT_EQ(criu_find(&c, path, &why[1]), -EOPNOTSUPP);
	EXPECT_NE(strstr(why[1].text, "is of version 4.1.1, and 4.2 or newer is needed; "), NULL);
	write_program(path, "#!/bin/sh\necho nonsense\n");
	EXPECT_EQ(criu_find(&c, path, &why[2]), -ENOEXEC);
	EXPECT_NE(strstr(why[2].text, "does not say its version (nonsense)"), NULL);
	setenv("SINGVGPU_CRIU", path, 1);
	write_program(path, "#!/bin/sh\n[ $1 = check ] && echo 'Error (a.c:1): no kernel' && exit 1\n"
		      "echo Version: 10.0\n");
	EXPECT_EQ(criu_find(&c, NULL, &why[3]), geteuid() ? -EPERM : -ENOEXEC);
	EXPECT_NE(strstr(why[3].text, geteuid() ? "use sudo" :
			 "this kernel lacks what CRIU needs: no kernel"), NULL);
	unsetenv("SINGVGPU_CRIU");
	why_clear(&why[3]);
	write_program(path, "#!/bin/sh\necho Version: 10.0\nsleep 600\n");
	EXPECT_EQ(criu_find_until(&c, path, 1, &why[3]), -ETIMEDOUT);
	EXPECT_NE(strstr(why[3].text, "does not answer in time"), NULL);
	EXPECT_EQ(waitpid(-1, NULL, 0), -1);
	/* Nor does it leave a child that has stopped itself, and has its output open. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	why_clear(&why[3]);
	write_program(path, "#!/bin/sh\n(kill -STOP $(exec sh -c 'echo $PPID')) &\nsleep .2\necho nonsense\n");
	EXPECT_EQ(criu_find(&c, path, &why[3]), -ENOEXEC);
	EXPECT_NE(strstr(why[3].text, "does not say its version (nonsense)"), NULL);
	while (waitpid(-1, NULL, 0) > 0)
		;
	unlink(path);
	rmdir(dir);
}

/* The number that a run that is left alone comes to. */
static void find_expected(void)
{
	struct moved m = { 0 };

	if (missing.err || make_moved(&m))
		return;
	if (start_job(&m, "", STEPS) && !finish(&m))
		expected = number(m.dir, "result");
	free_moved(&m);
}

int main(int argc, char **argv)
{
	const char *dir = getenv("SINGVGPU_BUILD") ?: "build";

	if (!realpath(dir, build))
		return 1;
	criu_find(&criu_, NULL, &missing);
	find_expected();
	if (!missing.err && !expected) {
		fprintf(stderr, "# the job does not run\n");
		return 1;
	}
	return test_harness_run(argc, argv);
}
