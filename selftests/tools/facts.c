// SPDX-License-Identifier: Apache-2.0
/*
 * facts.c - the part "job" of a checkpoint, with lies in it; the tree of a job's processes; the devices that a restore is given,
 * and their memory; a supervisor's part in checkpoints, and its watchers; phases, and what the history has of them; commands on
 * other hosts; text
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "ckpt_bring.h"
#include "ckpt_facts.h"
#include "ckpt_options.h"
#include "ckpt_own.h"
#include "own_options.h"
#include "ckpt_past.h"
#include "ckpt_places.h"
#include "ckpt_where.h"
#include "jobboard.h"
#include "phase.h"
#include "history.h"
#include "job.h"
#include "watch.h"

#include "kselftest_harness.h"

static struct ckpt_proxy proxy[2] = {
	{ .rank = 0, .client = 2, .info = { .window = 1 << 20, .window_len = 1 << 20, .channel_id = { 1 } } },
	{ .rank = 1, .client = 3, .info = { .window = 1 << 20, .window_len = 1 << 20, .seat = 1, .channel_id = { 2 } } },
};

static struct rundir_proxy of_job[2] = { { .rank = 0 }, { .rank = 1, .seat = 1 } };

/* What is read of the facts that are written. */
static int again(int ranks, struct why *why)
{
	struct ckpt_connection c = { .rank = 1 };
	struct ckpt_facts f = { .job = "job", .proxy = proxy, .proxies = 2, .connection = &c, .connections = 1 }, to;
	struct rundir_job job = { .ranks = ranks, .proxies = 2, .proxy = of_job };
	size_t len;
	char *text = facts_write(&f, &len);
	int rc = text ? facts_read(&to, text, len) : -ENOMEM;

	why_clear(why);
	free(text);
	if (rc)
		return rc;
	rc = facts_check(&to, &job, why);
	facts_free(&to);
	return rc;
}

/* Makes a child whose number is smaller than its parent's, and stores the number in *arg. */
static void an_earlier_child(void *arg, int *told)
{
	pid_t number, pid = -1;
	struct clone_args a = { .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&number, .set_tid_size = 1 };

	(void)told;
	for (number = getpid() - 1; number > 1 && pid < 0; number--)
		pid = syscall(SYS_clone3, &a, sizeof(a));
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	*(pid_t *)arg = pid;
}

TEST(the_first_of_a_tree_is_its_root_whatever_its_number)
{
	pid_t *pids, root, *child = mmap(NULL, sizeof(*child), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (geteuid())
		SKIP(return, "a number of one's choice needs root");
	children_are_ours();
	root = child_begin(an_earlier_child, child);
	ASSERT_GT(root, 0);
	ASSERT_GT(*child, 0);
	ASSERT_LT(*child, root);
	ASSERT_EQ(ckpt_tree(root, &pids), 2);
	EXPECT_EQ(pids[0], root);
	EXPECT_EQ(pids[1], *child);
	free(pids);
	child_end(root);
	children_gone();
}

/* Two ranks of so many MiB on a device of 100. */
static bool twice(uint64_t mib, enum seating_share share, bool took_turns, bool take_turns)
{
	static struct seating t;
	static struct rundir_job job = { .ranks = 2, .proxies = 2, .proxy = of_job };
	static struct ckpt_proxy of[2] = { { .rank = 0 }, { .rank = 1 } };
	struct ckpt_facts f = { .proxy = of, .proxies = 2 };

	for (int i = 0; i < 2; i++) {
		of[i].info.mapped = mib << 20;
		of[i].info.device.total_mem = 100 << 20;
	}
	seating_make(&t, 2, 1);
	job.seating = t;
	job.seating.share = share;
	job.seating.slices = took_turns;
	t.slices = take_turns;
	return places_twice(&f, &job, &t);
}

TEST(memory_is_there_twice_only_where_nobody_takes_turns_and_it_fits)
{
	EXPECT_TRUE(twice(20, SHARE_AUTO, false, false));
	EXPECT_FALSE(twice(30, SHARE_AUTO, false, false));
	EXPECT_FALSE(twice(10, SHARE_AUTO, true, false));
	EXPECT_FALSE(twice(10, SHARE_AUTO, false, true));
}

TEST(what_does_not_belong_together_is_named)
{
	struct why why = { 0 };

	EXPECT_EQ(again(2, &why), 0)
		TH_LOG("%s", why.text);
#define LIE(member, value) do { \
	__typeof__(member) was = member; \
	member = value; \
	EXPECT_EQ(again(2, &why), -EBADMSG) \
		TH_LOG("%s = %s", #member, #value); \
	EXPECT_NE(*why.text, 0); \
	member = was; \
} while (0)
	LIE(proxy[0].rank, -1);
	LIE(proxy[0].rank, -2000000000);
	LIE(proxy[0].rank, 2);
	LIE(proxy[1].rank, 0);		/* with the other's serial */
	LIE(proxy[0].serial, -1);
	LIE(proxy[0].client, 0);
	LIE(proxy[0].info.seat, -2);
	LIE(proxy[0].info.seat, 1024);
	LIE(proxy[0].info.seat, 1);
	LIE(proxy[0].info.device.ordinal, -1);
	LIE(proxy[0].info.window_len, UINT64_MAX);
	LIE(proxy[0].info.seat, 2);	/* another one than in the job's file */
	LIE(of_job[1].seat, 0);
	LIE(proxy[0].info.device.ordinal, SEATING_DEVICES);
	LIE(proxy[0].info.logical, SEATING_DEVICES + 1);
	LIE(proxy[0].info.devices, SEATING_DEVICES + 1);
	/* The arena of one that is not there, of itself, of one behind it, of another process. */
	LIE(proxy[0].info.home[0], 9);
	LIE(proxy[0].info.home[0], 1);
	LIE(proxy[0].info.home[0], 2);
	LIE(proxy[1].info.home[0], 1);
	proxy[1].client = 2;
	LIE(proxy[1].info.home[0], 2);
	proxy[1].info.home[0] = 1;
	EXPECT_EQ(again(2, &why), 0)
		TH_LOG("%s", why.text);
	LIE(proxy[1].info.home[15], 1);
	proxy[1].info.home[0] = 0;
	proxy[1].client = 3;
#undef LIE
	proxy[0].info.device.ordinal = SEATING_DEVICES - 1;
	proxy[0].info.logical = proxy[0].info.devices = SEATING_DEVICES;
	EXPECT_EQ(again(2, &why), 0)
		TH_LOG("%s", why.text);
	proxy[0].info.device.ordinal = proxy[0].info.logical = proxy[0].info.devices = 0;
	of_job[0].seat = of_job[1].seat = -1;	/* an older file does not say */
	EXPECT_EQ(again(2, &why), 0);
	proxy[0].info.seat = 1;
	EXPECT_EQ(again(2, &why), -EBADMSG);
	proxy[0].info.seat = of_job[0].seat = 0;
	of_job[1].seat = 1;
	EXPECT_EQ(again(1, &why), -EBADMSG);
	EXPECT_EQ(again(0, &why), -EBADMSG);
	EXPECT_EQ(again(JOB_RANKS_MAX, &why), 0);
	EXPECT_EQ(again(JOB_RANKS_MAX + 1, &why), -EBADMSG);
	EXPECT_EQ(again(2, &why), 0);
}

TEST(the_file_job_has_the_seats_of_its_proxies)
{
	static const char text[] = "version 1\npid 5\ncommand ./a\nfolder /run/5\nrank 0 6 0 0 0\nproxy 0 0 7 6 12\nproxy 0 1 8 6\nproxy 0 2 9 6 -1\n";
	static const char *const bad[] = { "proxy 0 0 7 6 1024\n", "proxy 0 0 7 6 -2\n" };
	struct rundir_job *job = calloc(1, sizeof(*job)), *none;
	char lie[200];

	ASSERT_EQ(rundir_parse(job, text, strlen(text)), 0);
	ASSERT_EQ(job->proxies, 3);
	EXPECT_EQ(job->proxy[0].seat, 12);
	EXPECT_EQ(job->proxy[1].seat, -1);
	EXPECT_EQ(job->proxy[2].seat, -1);
	for (int i = 0; i < 2; i++) {
		none = calloc(1, sizeof(*none));
		snprintf(lie, sizeof(lie), "%s%s", text, bad[i]);
		EXPECT_EQ(rundir_parse(none, lie, strlen(lie)), -EBADMSG);
		rundir_list_free(none, 1);
	}
	rundir_list_free(job, 1);
}

TEST(names_in_a_jobs_folder)
{
	static const char *const others[] = { "3-4.stat", "3.sock", "3-4.ctlx", "3-4.ct", "-3-4.ctl", "03-4.ctl", "3-.ctl" };
	char name[RUNDIR_NAME], path[16];
	int rank, serial;

	EXPECT_STREQ(rundir_name(name, RUNDIR_SOCKET, 3, 0), "3.sock");
	EXPECT_STREQ(rundir_name(name, RUNDIR_GATE, 3, 0), "3.sock.gate");
	EXPECT_STREQ(rundir_name(name, RUNDIR_STAT, 3, 4), "3-4.stat");
	EXPECT_STREQ(rundir_name(name, RUNDIR_CONTROL, 3, 4), "3-4.ctl");
	EXPECT_TRUE(rundir_is_control(name, &rank, &serial));
	EXPECT_EQ(rank, 3);
	EXPECT_EQ(serial, 4);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		EXPECT_FALSE(rundir_is_control(others[i], &rank, &serial))
			TH_LOG("%s", others[i]);
	}
	EXPECT_EQ(rundir_path(path, sizeof(path), "/run/12", RUNDIR_STAT, 3, 4), -ENAMETOOLONG);
	EXPECT_EQ(rundir_path(path, sizeof(path), "/run/1", RUNDIR_STAT, 3, 4), 0);
	EXPECT_STREQ(path, "/run/1/3-4.stat");
}

TEST(devices_are_read)
{
	static const char *const wrong[] = { "", "a", "-1", " 1", "1 ", "16", "100", "1,2,", ",1", "1,,2", "1,a", "1;2", "1,16",
					     "=", "1=", "=1", "1=2,", "1=2,,3=4", "1=2;3=4", "1=2,1=3", "16=1", "1=16",
					     "1=2=3", "a=b", "1=-2", "-1=2", "1,2=3", "1=2,3",
					     "share=", "share=auto:", "share=auto/slices", "share=auto/auto:1", "share=any/slices:1",
					     "share=auto/slices:a", "share=auto/slices:share=auto/slices:1" };
	struct bring_where w, was;
	char text[2000] = "";

	ASSERT_EQ(bring_where_parse("15", &w), 0);
	EXPECT_TRUE(w.on.all);
	EXPECT_EQ(w.on.first, 15);
	EXPECT_STREQ(w.text, "15");
	EXPECT_FALSE(w.on.logical.given);
	ASSERT_EQ(bring_where_parse("3,0,15", &w), 0);
	EXPECT_FALSE(w.on.all);
	EXPECT_EQ(w.on.logical.listed, 3);
	EXPECT_EQ(w.on.logical.physical[0], 3);
	EXPECT_EQ(w.on.logical.physical[1], 0);
	EXPECT_EQ(w.on.logical.physical[2], 15);
	ASSERT_EQ(bring_where_parse("7,", &w), 0);
	EXPECT_TRUE(w.on.logical.given);
	EXPECT_EQ(w.on.logical.physical[0], 7);
	ASSERT_EQ(bring_where_parse("0=15,15=0,3=3", &w), 0);
	EXPECT_FALSE(w.on.all);
	EXPECT_FALSE(w.on.logical.given);
	EXPECT_EQ(w.on.instead[0], 16);
	EXPECT_EQ(w.on.instead[15], 1);
	EXPECT_EQ(w.on.instead[3], 4);
	EXPECT_EQ(w.on.instead[1], 0);
	ASSERT_EQ(bring_where_parse("share=auto/slices:0=15", &w), 0);
	EXPECT_STREQ(w.text, "share=auto/slices:0=15");
	EXPECT_EQ(w.on.share, SHARE_AUTO);
	EXPECT_EQ(w.on.how, SHARE_SLICES);
	EXPECT_EQ(w.on.instead[0], 16);
	ASSERT_EQ(bring_where_parse("share=never/together:", &w), 0);
	EXPECT_EQ(w.on.share, SHARE_NEVER);
	EXPECT_FALSE(w.on.logical.given || w.on.all);
	was = w;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		EXPECT_EQ(bring_where_parse(wrong[i], &w), -EINVAL)
			TH_LOG("%s", wrong[i]);
		EXPECT_EQ(memcmp(&w, &was, sizeof(w)), 0);
	}
	for (int i = 0; i < SEATING_DEVICES; i++)
		strcat(text, i ? ",1" : "1");
	ASSERT_EQ(bring_where_parse(text, &w), 0);
	EXPECT_EQ(w.on.logical.listed, SEATING_DEVICES);
	strcat(text, ",1");
	EXPECT_EQ(bring_where_parse(text, &w), -EINVAL);
	for (int i = 0; i < 300; i++)
		strcat(text, ",1");
	EXPECT_EQ(bring_where_parse(text, &w), -EINVAL);
}

/* --------------------------------------------------------------------------------- own.c */

static char said_file[] = "/tmp/factsXXXXXX";

/* From now on stderr is a file. */
static void listen(void)
{
	int fd = mkstemp(said_file);

	dup2(fd, STDERR_FILENO);
	close(fd);
}

/* What has been said since the last time. */
static const char *said(void)
{
	static char text[8192];
	static off_t at;
	int fd = open(said_file, O_RDONLY);
	ssize_t n = pread(fd, text, sizeof(text) - 1, at);

	close(fd);
	text[n < 0 ? 0 : n] = 0;
	at += n < 0 ? 0 : n;
	return text;
}

static void take_signals(void *ignores, int *told)
{
	(void)told;
	signal(SIGTERM, ignores ? SIG_IGN : SIG_DFL);
}

/* A child that waits for signals. */
static pid_t waiting(bool ignores)
{
	return child_begin(take_signals, ignores ? &ignores : NULL);
}

static struct seating one_rank = { .ranks = 1 };

static int signal_of(pid_t pid)
{
	int status;

	return waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* A checkpoint at a signal has its time, and what is too long is ended; the command gets the signal then. */
TEST(a_checkpoint_at_a_signal_that_is_late_is_ended)
{
	struct job_options opt = { .preempt_signal = SIGUSR1, .preempt_ms = 1000000 };
	struct job job = { .opt = &opt, .tell = say, .board = &(struct jobboard){ .fd = -1 }, .seating = &one_rank };
	struct own o = { .job = &job };
	struct rundir_job info = { 0 };
	int forward = -1, status = EXIT_OURS << 8;
	uint64_t before = now_ms();

	listen();
	EXPECT_FALSE(own_signal(&o, SIGUSR2));
	EXPECT_FALSE(o.wanted);
	o.child = waiting(false);
	o.state = OWN_PERIODIC;
	EXPECT_TRUE(own_signal(&o, SIGUSR1));
	EXPECT_TRUE(o.wanted);
	EXPECT_GE(o.deadline, before + 1000000);
	/* The periodic one has the time of the other, which begins when it has ended. */
	EXPECT_GT(own_step(&o, &info), 0);
	EXPECT_STREQ(said(), "");
	/* A second one gives it no more time. */
	o.deadline = 1;
	EXPECT_TRUE(own_signal(&o, SIGUSR1));
	EXPECT_EQ(o.deadline, 1);
	EXPECT_GT(own_step(&o, &info), 0);
	EXPECT_EQ(signal_of(o.child), SIGTERM);
	EXPECT_NE(strstr(said(), "at SIGUSR1 has taken longer than 1000 s"), NULL);
	EXPECT_GT(o.deadline, 1);
	EXPECT_FALSE(own_ended(&o, o.child + 1, status, &forward));
	EXPECT_EQ(forward, 0);
	EXPECT_NE(o.child, 0);
	EXPECT_TRUE(own_ended(&o, o.child, status, &forward));
	EXPECT_EQ(forward, 0);
	EXPECT_EQ(o.child, 0);
	EXPECT_GT(o.deadline, 1);
	/* That one hears nothing but SIGKILL. */
	o.child = waiting(true);
	o.state = OWN_PREEMPT;
	o.wanted = false;
	o.pressed = 1;
	o.deadline = 1;
	own_step(&o, &info);
	EXPECT_EQ(signal_of(o.child), SIGKILL);
	EXPECT_STREQ(said(), "");
	EXPECT_TRUE(own_signal(&o, SIGUSR1));
	EXPECT_FALSE(o.wanted);
	EXPECT_TRUE(own_ended(&o, o.child, status, &forward));
	EXPECT_EQ(forward, SIGUSR1);
	EXPECT_EQ(o.deadline, 0);
	EXPECT_NE(strstr(said(), "the command gets SIGUSR1 instead"), NULL);
	/* The job is saved; nobody gets a signal. */
	o.child = waiting(false);
	o.state = OWN_PREEMPT;
	EXPECT_TRUE(own_ended(&o, o.child, 0, &forward));
	EXPECT_EQ(forward, 0);
	/* The next one is due after the end of the last one; when the job ends, none. */
	opt.every_ms = 5000000;
	o.child = waiting(false);
	o.state = OWN_PERIODIC;
	EXPECT_TRUE(own_ended(&o, o.child, status, &forward));
	EXPECT_EQ(forward, 0);
	EXPECT_GE(o.due, now_ms() + 4000000);
	EXPECT_GT(own_step(&o, &info), 4000000);
	o.child = waiting(false);
	own_stop(&o);
	EXPECT_EQ(signal_of(o.child), SIGTERM);
	o.child = 0;
	EXPECT_EQ(own_step(&o, &info), -1);
	unlink(said_file);
}

/* The options of a job that outlive it. */
TEST(options_come_back_with_the_job)
{
	struct job_options opt = { .ranks = 3, .devices = 2, .grace_ms = 11, .collective_ms = 12, .memory = 1ull << 33,
				   .backend = "memfd", .reduction = "nccl", .driver = "/a driver", .every_ms = 13,
				   .every_steps = 14, .at_step_ms = 15, .preempt_signal = SIGUSR1, .preempt_ms = 16,
				   .restart = true, .outside = true, .host_pids = true };
	struct job_options back = { .trust_owner = 17 };
	struct places places = { .libdir = "/lib dir" };
	struct job job = { .opt = &opt, .places = &places, .tell = say };
	char dir[] = "/tmp/factsXXXXXX", path[64], line[256], *word[4];
	struct ckpt_facts f = { 0 };
	struct why why = { 0 };
	FILE *in;

	ASSERT_NE(mkdtemp(dir), NULL);
	strcpy(job.dir.path, dir);
	ASSERT_EQ(ckpt_options_write(&job), 0);
	snprintf(path, sizeof(path), "%s/options", dir);
	in = fopen(path, "r");
	ASSERT_NE(in, NULL);
	while (fgets(line, sizeof(line), in)) {
		line[strcspn(line, "\n")] = 0;
		ASSERT_EQ(facts_words(line, word, 4), 3);
		ASSERT_EQ(facts_add_option(&f, word[1], word[2]), 0);
	}
	fclose(in);
	unlink(path);
	rmdir(dir);
	ASSERT_EQ(ckpt_options_read(&f, &back, &why), 0);
	EXPECT_EQ(back.ranks, 3);
	EXPECT_EQ(back.devices, 2);
	EXPECT_EQ(back.grace_ms, 11);
	EXPECT_EQ(back.collective_ms, 12);
	EXPECT_EQ(back.memory, 1ull << 33);
	EXPECT_STREQ(back.backend, "memfd");
	EXPECT_STREQ(back.reduction, "nccl");
	EXPECT_STREQ(back.driver, "/a driver");
	EXPECT_EQ(back.every_ms, 13);
	EXPECT_EQ(back.every_steps, 14);
	EXPECT_EQ(back.at_step_ms, 15);
	EXPECT_EQ(back.preempt_signal, SIGUSR1);
	EXPECT_EQ(back.preempt_ms, 16);
	EXPECT_TRUE(back.restart && back.outside && back.host_pids);
	/* Whom a restore trusts, its own command line says. */
	EXPECT_EQ(back.trust_owner, 17);
	EXPECT_STREQ(facts_option(&f, "libdir"), "/lib dir");
	facts_free(&f);
}

/* Launches count from the last checkpoint on, and anew when a proxy has ended with its own. */
TEST(a_checkpoint_is_due_after_so_many_launches)
{
	static const struct {
		uint64_t launches;
		bool due;
	} looks[] = { { 104, false }, { 105, true }, { 114, false }, { 3, false }, { 12, false }, { 13, true } };
	char dir[] = "/tmp/factsXXXXXX", path[64];
	struct job_options opt = { .every_steps = 10 };
	struct job job = { .opt = &opt, .tell = say, .board = &(struct jobboard){ .fd = -1 }, .seating = &one_rank };
	struct own o = { .job = &job, .launches = 95 };
	struct rundir_proxy one = { .rank = 0 };
	struct rundir_job info = { .proxies = 1, .proxy = &one };
	struct uproxy_stat st = { .magic = UPROXY_STAT_MAGIC, .version = UPROXY_STAT_VERSION, .size = sizeof(st) };
	int forward, status, fd;

	ASSERT_NE(mkdtemp(dir), NULL);
	strcpy(job.dir.path, dir);
	fcntl(STDERR_FILENO, F_SETFD, FD_CLOEXEC);
	snprintf(path, sizeof(path), "%s/0-0.stat", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	for (size_t i = 0; i < sizeof(looks) / sizeof(*looks); i++) {
		st.launches = looks[i].launches;
		ASSERT_EQ(pwrite(fd, &st, sizeof(st), 0), sizeof(st));
		o.looked = 0;
		EXPECT_EQ(own_step(&o, &info) < 0, looks[i].due)
			TH_LOG("%zu", i);
		EXPECT_EQ(o.child != 0, looks[i].due)
			TH_LOG("%zu", i);
		if (!o.child)
			continue;
		/* It is this program, which knows no such command. */
		ASSERT_EQ(waitpid(o.child, &status, 0), o.child);
		EXPECT_TRUE(own_ended(&o, o.child, status, &forward));
		EXPECT_EQ(o.launches, looks[i].launches);
	}
	close(fd);
	unlink(path);
	rmdir(dir);
}

/* A job does not come back from a checkpoint that cannot be opened. The supervisor keeps its stdin. */
TEST(a_restart_has_its_bounds)
{
	char dir[] = "/tmp/factsXXXXXX", path[64];
	struct job_options opt = { .restart = true };
	struct job job = { .opt = &opt, .tell = say, .board = &(struct jobboard){ .fd = -1 }, .seating = &one_rank };
	struct stat before, after;

	ASSERT_NE(mkdtemp(dir), NULL);
	snprintf(job.dir.path, sizeof(job.dir.path), "%s", dir);
	listen();
	dup2(open("/dev/zero", O_RDONLY), STDIN_FILENO);
	ASSERT_EQ(fstat(STDIN_FILENO, &before), 0);
	EXPECT_EQ(own_again(NULL, &job, JOB_LOST, 1), NULL);
	EXPECT_NE(strstr(said(), "no checkpoint yet"), NULL);
	/* It has ended well, or nobody wants it back. */
	EXPECT_EQ(own_again(NULL, &job, JOB_LOST, 0), NULL);
	opt.restart = false;
	EXPECT_EQ(own_again(NULL, &job, JOB_LOST, 1), NULL);
	EXPECT_STREQ(said(), "");
	opt.restart = true;
	for (int i = 0; i < 8; i++) {
		/* Three times each, and again from a newer one. */
		ASSERT_EQ(ckpt_note(dir, "last", (char *[]){ i < 4 ? "aaaa" : "bbbb", "/tmp/facts-no-store" }, 2), 0);
		EXPECT_EQ(own_again(NULL, &job, JOB_LOST, 1), NULL);
		EXPECT_NE(strstr(said(), i % 4 < 3 ? "the command comes back from checkpoint" :
				 "it is not restored again"), NULL);
	}
	EXPECT_EQ(fstat(STDIN_FILENO, &after), 0);
	EXPECT_EQ(before.st_rdev, after.st_rdev);
	snprintf(path, sizeof(path), "%s/last", dir);
	unlink(path);
	rmdir(dir);
	unlink(said_file);
}

/* ----------------------------------------------------------------- job.c and its watchers */

static char calls[256];
static int rope[4][2];		/* pipes: to be heard of, and one that ends each child */
static pid_t kids[3];

static int called(const char *what)
{
	strcat(calls, *calls ? " " : "");
	strcat(calls, what);
	return 0;
}

/* A child that ends with this status some time after the rope is pulled. */
static pid_t tied(int i, int status)
{
	pid_t pid = fork();
	char byte;

	if (pid)
		return pid;
	if (read(rope[i][0], &byte, 1) == 1)
		usleep(50000);
	_exit(status);
}

static int w_start(const struct job *job, struct why *why)
{
	(void)why;
	return called(job->info ? "start" : "start without info");
}

static void w_started(const struct job *job, bool lives)
{
	kids[0] = tied(1, 3);
	kids[1] = tied(2, 0);
	kids[2] = tied(3, 0);
	called(lives && job->board ? "started" : "started without life");
}

static int w_step(const struct job *job, bool runs)
{
	static bool again;

	(void)job;
	if (runs && !again) {
		called("step");
		kill(getpid(), SIGUSR1);
	}
	again = true;
	return -1;
}

static int w_fd(void)
{
	return rope[0][0];
}

static bool w_signal(int sig)
{
	called(sig == SIGUSR1 && write(rope[0][1], "", 1) == 1 ? "signal" : "another signal");
	return true;
}

static void w_hear(void)
{
	char byte;

	called(read(rope[0][0], &byte, 1) == 1 && write(rope[1][1], "", 1) == 1 ? "hear" : "nothing to hear");
}

static pid_t w_child(void)
{
	return kids[0];
}

static pid_t w_other_child(void)
{
	return kids[1];
}

static pid_t w_last_child(void)
{
	return kids[2];
}

static bool w_ended(pid_t pid, int status, int *forward)
{
	if (pid != kids[0])
		return false;
	kids[0] = 0;
	*forward = SIGUSR2;
	called(status == 3 << 8 ? "ended" : "ended otherwise");
	return true;
}

static bool w_other_ended(pid_t pid, int status, int *forward)
{
	(void)forward;
	if (pid != kids[1])
		return false;
	kids[1] = 0;
	called(!status ? "other_ended" : "other was killed");
	return true;
}

static void w_ranks_ended(bool taken)
{
	called(!taken && write(rope[2][1], "", 1) == 1 ? "ranks_ended" : "ranks taken");
}

static void w_stop(const struct job *job)
{
	(void)job;
	called("stop");
}

static void w_close(const struct job *job, int status, const char *how)
{
	called(status == 128 + SIGUSR2 && !strcmp(how, "failed") && !access(job->dir.path, F_OK) ? "close" : how);
}

static void w_report(const struct job *job, int status)
{
	called(status == 128 + SIGUSR2 && !*job->dir.path ? "report" : "another report");
}

/* A watcher's signal is not the command's, its child's is; the job ends after a child that is to be waited for. */
TEST(the_watchers_of_a_job_are_called_in_turn)
{
	static const struct job_watcher one = { .start = w_start, .started = w_started, .step = w_step, .fd = w_fd,
						.hear = w_hear, .signal = w_signal, .child = w_child, .ended = w_ended,
						.ranks_ended = w_ranks_ended, .stop = w_stop, .close = w_close };
	static const struct job_watcher two = { .child = w_other_child, .waited = true, .ended = w_other_ended,
						.report = w_report };
	static const struct job_watcher three = { .child = w_last_child };
	static const struct job_watcher *const all[] = { &one, &two, &three, NULL };
	char base[] = "/tmp/factsXXXXXX", *command[] = { "sleep", "10", NULL };
	struct job_options opt = { .ranks = 1, .grace_ms = 5000, .host_pids = true, .command = command };
	struct places places = { .libdir = "/none", .proxy = "/none", .init = "/none" };
	struct job job = { .opt = &opt, .places = &places, .devices = 1, .watchers = all, .tell = say, .dir.lock = -1 };
	sigset_t handled;
	int front[2];

	ASSERT_NE(mkdtemp(base), NULL);
	listen();
	snprintf(job.dir.path, sizeof(job.dir.path), "%s/1", base);
	ASSERT_EQ(mkdir(job.dir.path, 0700), 0);
	for (int i = 0; i < 4; i++)
		ASSERT_EQ(pipe2(rope[i], O_CLOEXEC), 0);
	ASSERT_EQ(pipe2(front, O_CLOEXEC), 0);
	job.front_pipe = front[0];
	for (int i = 0; i < JOB_LIMITS; i++)
		getrlimit(job_limits[i], &job.was.limit[i]);
	sigemptyset(&handled);
	sigaddset(&handled, SIGCHLD);
	sigaddset(&handled, SIGUSR1);
	sigprocmask(SIG_BLOCK, &handled, &job.was.mask);
	EXPECT_EQ(job_supervise(&job, &handled), 128 + SIGUSR2);
	EXPECT_STREQ(calls, "start started step signal hear ended ranks_ended other_ended stop close report");
	EXPECT_NE(strstr(said(), "the command was killed by SIGUSR2"), NULL);
	EXPECT_NE(access(base, F_OK), 0);
	/* No process that the command has left running: nobody has waited for it, or ended it. */
	EXPECT_EQ(waitpid(kids[2], NULL, WNOHANG), 0);
	kill(kids[2], SIGKILL);
	waitpid(kids[2], NULL, 0);
	unlink(said_file);
}

TEST(times_and_signals_of_options_are_read)
{
	static const struct { const char *text; long ms; } times[] = {
		{ "90", 90000 }, { "90s", 90000 }, { "1.5", 1500 }, { "30m", 1800000 }, { "2h", 7200000 }, { "1d", 86400000 },
		{ "", 0 }, { "s", 0 }, { "0", 0 }, { "-1", 0 }, { "1w", 0 }, { "1 s", 0 }, { "1ss", 0 }, { "2sh", 0 }, { "1e300d", 0 },
		{ "999999999999999d", 0 }, { "00000000000000000000000000000000000001", 0 },
	};
	static const struct { const char *text; int sig; } signals[] = {
		{ "USR1", SIGUSR1 }, { "SIGUSR2", SIGUSR2 }, { "15", SIGTERM }, { "HUP", SIGHUP }, { "KILL", 0 }, { "9", 0 },
		{ "", 0 }, { "SIG", 0 }, { "usr1", 0 }, { "65", 0 }, { "15x", 0 }, { " 15", 0 },
	};
	struct take_options take = { 0 };
	struct job_options opt = { 0 };

	listen();
	for (size_t i = 0; i < sizeof(times) / sizeof(*times); i++) {
		opt.every_ms = 7;
		optarg = (char *)times[i].text;
		EXPECT_EQ(own_option(&opt, OWN_EVERY, "run"), times[i].ms ? 0 : EXIT_USAGE);
		if (times[i].ms)
			EXPECT_EQ(opt.every_ms, times[i].ms);
	}
	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
		opt.preempt_signal = 0;
		optarg = (char *)signals[i].text;
		EXPECT_EQ(own_option(&opt, OWN_SIGNAL, "run"), signals[i].sig ? 0 : EXIT_USAGE);
		EXPECT_EQ(opt.preempt_signal, signals[i].sig);
	}
	optarg = NULL;
	EXPECT_EQ(own_option(&opt, OWN_AT_STEP, "run"), 0);
	EXPECT_EQ(opt.at_step_ms, TAKE_STEP_MS);
	EXPECT_EQ(take_option(&take, TAKE_STEP), 0);
	EXPECT_EQ(take.step_ms, TAKE_STEP_MS);
	optarg = "0";
	EXPECT_EQ(own_option(&opt, OWN_AT_STEP, "run"), EXIT_USAGE);
	EXPECT_EQ(take_option(&take, TAKE_STEP), -EINVAL);
	EXPECT_EQ(own_option(&opt, OWN_STEPS, "run"), EXIT_USAGE);
	optarg = "2.5";
	EXPECT_EQ(take_option(&take, TAKE_STEP), 0);
	EXPECT_EQ(take.step_ms, 2500);
	EXPECT_EQ(take_option(&take, TAKE_TIMEOUT), 0);
	EXPECT_EQ(take.timeout_ms, 2500);
	EXPECT_EQ(take_option(&take, TAKE_FREEZE), 0);
	EXPECT_EQ(take.freeze_ms, 2500);
	EXPECT_EQ(take_option(&take, 'x'), 1);
	EXPECT_EQ(own_option(&opt, 'x', "run"), -1);
	unlink(said_file);
}

/* -------------------------------------------------------------------------------- phase.c */

static struct phases ps;

static struct phase *add(const char *name, uint64_t from, uint64_t to, uint64_t done, uint64_t stored, int err)
{
	struct phase *p = phase_begin(&ps, "%s", name);

	p->begun_ns = ps.begun_ns + from;
	p->ended_ns = to ? ps.begun_ns + to : 0;
	p->done = done;
	p->stored = stored;
	p->err = err;
	return p;
}

TEST(phases_are_added_up)
{
	struct phase sum[8];
	char line[256];
	int n;

	phases_start(&ps, "checkpoint", "job", true);
	EXPECT_STREQ(phases_failed(&ps), "start");
	EXPECT_EQ(phases_still_from(&ps), 0);
	add("info 0-0", 1, 2, 0, 0, 0);
	EXPECT_EQ(phases_still_from(&ps), 0);
	EXPECT_STREQ(phases_failed(&ps), "info 0-0");
	add("criu", 900, 2000, 7, 1, 0);
	EXPECT_EQ(phases_still_from(&ps), 900);
	add("freeze 1-0", 700, 800, 0, 0, 0);
	add("freeze 0-0", 600, 800, 0, 0, 0);
	add("freeze 2-0", 650, 800, 0, 0, 0);
	add("freezer", 5, 6, 0, 0, 0);
	EXPECT_EQ(phases_still_from(&ps), 600);
	ps.early_ns = 100;
	EXPECT_EQ(phases_still_from(&ps), 500);
	add("device 0-0", 1000, 3000, 50, 5, 0);
	add("device 1-0", 1500, 4000, 60, 6, -EIO);
	add("device 2-0", 900, 3500, 70, 7, -EPERM);
	EXPECT_STREQ(phases_failed(&ps), "device 1-0");
	n = phases_kinds(&ps, sum, 8);
	ASSERT_EQ(n, 5);
	EXPECT_STREQ(sum[0].name, "info 0-0");
	EXPECT_STREQ(sum[2].name, "freeze of 3 ranks");
	EXPECT_STREQ(sum[3].name, "freezer");
	EXPECT_STREQ(sum[4].name, "device of 3 ranks");
	EXPECT_EQ(sum[4].begun_ns - ps.begun_ns, 900);
	EXPECT_EQ(sum[4].ended_ns - ps.begun_ns, 4000);
	EXPECT_EQ(sum[4].done, 180);
	EXPECT_EQ(sum[4].stored, 18);
	EXPECT_EQ(sum[4].err, -EIO);
	EXPECT_EQ(phases_kinds(&ps, sum, 2), 2);
	/* What runs is in the line, with what is done; what has ended is not. */
	EXPECT_EQ(phases_line(&ps, line, sizeof(line)), 0);
	EXPECT_STREQ(line, "");
	phase_counts(&ps, add("drain 0-1", 10, 0, 0, 0, 0), 0, 4, "operations");
	phases_line(&ps, line, sizeof(line));
	EXPECT_NE(strstr(line, "drain 0-1 0 of 4 operations"), NULL)
		TH_LOG("%s", line);
	EXPECT_EQ(strstr(line, "device"), NULL);
	for (int i = 0; i < 2 * PHASES_MAX; i++)
		phase_end(&ps, phase_begin(&ps, "more %d-0", i), 1, 0, 0);
	EXPECT_EQ(ps.n, PHASES_MAX);
	snprintf(line, sizeof(line), "more %d-0", 2 * PHASES_MAX - 1);
	EXPECT_STREQ(ps.phase[PHASES_MAX - 1].name, line);
	/* A line holds what fits. */
	for (int i = 0; i < ps.n; i++)
		ps.phase[i].ended_ns = 0;
	memset(line, 'x', sizeof(line));
	EXPECT_LT(phases_line(&ps, line, 200), 200);
	EXPECT_EQ(line[200], 'x');
}

/* --------------------------------------------------------------------------------- past.c */

static char *text_in(const char *dir, const char *name)
{
	static char text[1 << 16];
	char path[128];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDONLY);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	text[n < 0 ? 0 : n] = 0;
	return n < 0 ? NULL : text;
}

static int lines_of(const char *text, const char *begin)
{
	int n = 0;

	for (const char *at = text; (at = strstr(at, begin)); at++)
		n += at == text || at[-1] == '\n';
	return n;
}

TEST(the_history_has_events_and_their_phases)
{
	struct take_result r = { .stood_ns = 11, .bytes = 12, .zeros = 13, .fresh = 14, .id = "abcd", .store = "/a b" };
	char dir[] = "/tmp/factsXXXXXX", path[64], *text;
	unsigned long long n[8];
	int left;

	ASSERT_NE(mkdtemp(dir), NULL);
	phases_start(&ps, "checkpoint", "job", true);
	ps.begun_ns -= 5000000000;
	add("freeze 0-0", 600, 800, 0, 0, 0);
	add("device 0-0", 900, 1200, 70, 7, -EIO);
	add("drain", 1000, 1100, 77, 0, 0)->unit = "operations";
	/* The history of a job that has none is not begun. */
	ckpt_past_take(dir, &ps, &r, true);
	ckpt_past_failed(dir, &ps, "a reason");
	ckpt_past_restored(dir, &ps, "abcd", "/a b", "1,2");
	EXPECT_EQ(text_in(dir, HISTORY_EVENTS), NULL);
	snprintf(path, sizeof(path), "%s/" HISTORY_EVENTS, dir);
	close(open(path, O_WRONLY | O_CREAT, 0600));
	ckpt_past_take(dir, &ps, &r, true);
	text = text_in(dir, HISTORY_EVENTS);
	ASSERT_NE(text, NULL);
	ASSERT_EQ(sscanf(strstr(text, "checkpoint ") ?: "", "checkpoint %llu %llu %llu %llu %d %llu %llu %llu abcd", &n[0], &n[1],
			 &n[2], &n[3], &left, &n[4], &n[5], &n[6]), 8)
		TH_LOG("%s", text);
	EXPECT_GE(n[1], 5000000000);
	EXPECT_EQ(n[2], 600);
	EXPECT_EQ(n[3], 11);
	EXPECT_EQ(left, 1);
	EXPECT_EQ(n[4], 12);
	EXPECT_EQ(n[5], 13);
	EXPECT_EQ(n[6], 14);
	EXPECT_NE(strstr(text, "phase freeze%200-0 600 200 0 0\n") ?: strstr(text, "phase \"freeze 0-0\" 600 200 0 0\n"), NULL)
		TH_LOG("%s", text);
	EXPECT_EQ(lines_of(text, "phase "), 3);
	EXPECT_EQ(truncate(path, 0), 0);
	ckpt_past_failed(dir, &ps, "a reason");
	text = text_in(dir, HISTORY_EVENTS);
	EXPECT_EQ(lines_of(text, "failed "), 1);
	EXPECT_NE(strstr(text, "reason"), NULL);
	EXPECT_EQ(lines_of(text, "phase "), 3);
	EXPECT_EQ(truncate(path, 0), 0);
	/* One more than an event has room for: each kind is one. Amounts in another unit than bytes are none. */
	for (int i = 0; i < HISTORY_PHASES - 2; i++)
		add("more", 1300, 1400, 5, 0, 0);
	ckpt_past_restored(dir, &ps, "abcd", "/a b", "1,2");
	text = text_in(dir, HISTORY_EVENTS);
	EXPECT_NE(strstr(text, "phase drain 1000 100 0 0\n"), NULL);
	EXPECT_EQ(lines_of(text, "restore "), 1);
	EXPECT_NE(strstr(text, " abcd "), NULL);
	EXPECT_NE(strstr(text, "1,2\n"), NULL);
	EXPECT_EQ(lines_of(text, "phase "), 4)
		TH_LOG("%s", text);
	unlink(path);
	rmdir(dir);
}

/* ----------------------------------------------------------------------------- jobboard.c */

/* What the file `comms` of a folder says; its lines may be anybody's. */
static int read_comms(const char *dir, const char *text, struct jobboard_comm **comm, size_t *n)
{
	struct rundir_job job = { .uid = geteuid() };
	char path[64];
	FILE *out;

	snprintf(path, sizeof(path), "%s/comms", dir);
	out = fopen(path, "w");
	fputs(text, out);
	fclose(out);
	snprintf(job.path, sizeof(job.path), "%s", dir);
	return jobboard_read(&job, comm, n);
}

TEST(communicators_and_who_is_waited_for)
{
	static char crowd[4000];	/* a rank more than a job may have */
	static const char *const bad[] = {
		"op all-reduce f32 10 3 -1 -1 0 1 0\n",	/* of no communicator */
		"comm 1 stands 0\n", "comm 1 stands 1025 5\n", "comm 1 stands 2 5\n", "comm 1 stands 2 5 x\n", "comm 1\n",
		"comm 1 stands 1 5\nop all-reduce f32 10 3 -1 -1 0 1\n", "comm 1 stands 1 5\ncommon 2\n",
		"comm 1 stands 2 5\ncomm 2 stands 1 5\n", crowd,
	};
	char dir[] = "/tmp/factsXXXXXX", path[64], text[300], many[400];
	struct jobboard_comm *c;
	int at;
	size_t n;

	ASSERT_NE(mkdtemp(dir), NULL);
	snprintf(path, sizeof(path), "%s/comms", dir);
	at = snprintf(crowd, sizeof(crowd), "comm 1 stands %u", JOBBOARD_SEATS + 1);
	for (int r = 0; r <= JOBBOARD_SEATS; r++)
		at += snprintf(crowd + at, sizeof(crowd) - at, " 5");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		EXPECT_EQ(read_comms(dir, bad[i], &c, &n), -EBADMSG)
			TH_LOG("%s", bad[i]);
		EXPECT_EQ(c, NULL);
		EXPECT_EQ(n, 0);
	}
	ASSERT_EQ(read_comms(dir, "comm ff stands 2 5 6\nop all-reduce f32 10 3 -1 -1 0 1000000000 1 1:6\n"
			     "op send f32 10 0 0 1 1 1000000000 1 0:5\ncomm 1 forming 1 0\nop creation - 0 0 -1 -1 0 0 2 0:0 1:7\n",
			     &c, &n), 0);
	ASSERT_EQ(n, 2);
	EXPECT_EQ(c[0].key, 0xff);
	EXPECT_TRUE(c[0].stands);
	EXPECT_FALSE(c[1].stands);
	EXPECT_EQ(c[0].ranks, 2);
	EXPECT_EQ(c[0].pid[1], 6);
	ASSERT_EQ(c[0].ops, 2);
	ASSERT_EQ(c[1].ops, 1);
	jobboard_sentence(&c[0].op[0], 5000000000, text, sizeof(text));
	EXPECT_STREQ(text, "all-reduce 3 of 10 f32, 4 s, waits for rank 1 (process 6)");
	jobboard_sentence(&c[0].op[1], 0, text, sizeof(text));
	EXPECT_STREQ(text, "send from rank 0 to 1 of 10 f32, 0 s, runs on rank 0 (process 5)");
	jobboard_sentence(&c[1].op[0], 0, text, sizeof(text));
	EXPECT_STREQ(text, "its creation, 0 s, waits for rank 0 and rank 1 (process 7)");
	jobboard_free(c, n);
	/* More are waited for than are listed. */
	at = snprintf(many, sizeof(many), "comm 1 stands 1 5\nop all-reduce f32 10 3 -1 -1 0 0 20");
	for (int r = 0; r < 18; r++)
		at += snprintf(many + at, sizeof(many) - at, " %d:0", r);
	ASSERT_EQ(read_comms(dir, many, &c, &n), 0);
	EXPECT_EQ(c[0].op[0].listed, JOBBOARD_LISTED);
	jobboard_sentence(&c[0].op[0], 0, text, sizeof(text));
	EXPECT_NE(strstr(text, ", rank 15 and 4 more"), NULL)
		TH_LOG("%s", text);
	jobboard_free(c, n);
	/* No file: there is no communicator. */
	unlink(path);
	EXPECT_EQ(jobboard_read(&(struct rundir_job){ .uid = geteuid(), .path = "/nowhere" }, &c, &n), 0);
	EXPECT_EQ(n, 0);
	rmdir(dir);
}

/* -------------------------------------------------------------------------------- remote.c */

TEST(a_command_on_another_host)
{
	char *command = ckpt_remote_command("/bin/sing vgpu", "/a store", "0", "abcd", NULL);

	ASSERT_NE(command, NULL);
	EXPECT_EQ(strstr(command, "trust"), NULL);
	EXPECT_NE(strstr(command, "restore"), NULL);
	EXPECT_NE(strstr(command, "'/a store'"), NULL)
		TH_LOG("%s", command);
	EXPECT_STREQ(command + strlen(command) - 4, "abcd");
	free(command);
	command = ckpt_remote_command("singvgpu", "/a", "1000", "abcd", "--check");
	EXPECT_NE(strstr(command, "--trust-owner 1000 abcd --check"), NULL)
		TH_LOG("%s", command);
	free(command);
	/* The status is that of ssh, whose words a shell splits; what it prints is no output of ours. */
	listen();
	EXPECT_EQ(ckpt_ssh("sh -c", "exit 7", "x", say), 7);
	EXPECT_EQ(ckpt_ssh("sh -c", "kill -9 $$", "x", say), EXIT_OURS);
	EXPECT_EQ(ckpt_ssh("sh -c", "echo \"$0\"; exit 0", "restore 'a b'", say), 0);
	EXPECT_STREQ(said(), "restore 'a b'\n");
	unlink(said_file);
}

/* -------------------------------------------------------------------------- words for a terminal */

TEST(text_is_shown_without_control_characters)
{
	static const struct { const char *text, *shown; size_t size; } cases[] = {
		{ "plain", "plain", 20 }, { "plain", "plain", 6 }, { "plain", "plai", 5 }, { "plain", "", 1 },
		{ "a\x1b[2J", "a?[2J", 20 }, { "a\x7f" "b", "a?b", 20 }, { "a\xc2\x9b" "b", "a??b", 20 },
		{ "a\xc2\xa0" "b", "a\xc2\xa0" "b", 20 }, { "\xc3\xa9t", "\xc3\xa9t", 20 }, { "\xc3\xa9t", "\xc3\xa9", 3 },
		{ "t\xc3\xa9", "t", 3 }, { "t\xc3\xa9", "t\xc3\xa9", 4 }, { "\xe2\x82\xac", "\xe2\x82\xac", 4 }, { "\xe2\x82\xac", "", 3 },
		{ "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80", 5 }, { "\xf0\x9f\x98", "???", 20 }, { "\xe2\x82", "??", 20 },
		{ "\xff\xfe", "??", 20 }, { "\xc0\xaf", "??", 20 }, { "\xf5\x80\x80\x80", "????", 20 }, { "\x80", "?", 20 },
		{ "\n\t", "??", 20 }, { "\n\t\n", "??", 3 }, { "\xc3(", "?(", 20 }, { "", "", 20 },
	};
	char buf[32];

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		memset(buf, 'x', sizeof(buf));
		watch_clip(buf, cases[i].size, cases[i].text);
		EXPECT_STREQ(buf, cases[i].shown)
			TH_LOG("case %zu", i);
	}
}

TEST(json_has_text_of_any_bytes)
{
	static const struct { const char *text, *json; } cases[] = {
		{ "plain", "plain" }, { "a\"b\\c", "a\\\"b\\\\c" }, { "\x01\x1f\x7f", "\\u0001\\u001f\\u007f" },
		{ "\xc2\x80\xc2\x9f", "\\u0080\\u009f" }, { "\xc2\xa0", "\xc2\xa0" }, { "\xc3\xa9", "\xc3\xa9" },
		{ "\xe2\x82\xac", "\xe2\x82\xac" }, { "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80" },
		{ "\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf" }, { "\xf4\x90\x80\x80", "\\u00f4\\u0090\\u0080\\u0080" },
		{ "\xc0\xaf", "\\u00c0\\u00af" }, { "\xc1\xbf", "\\u00c1\\u00bf" }, { "\xe0\x9f\xbf", "\\u00e0\\u009f\\u00bf" },
		{ "\xf0\x8f\xbf\xbf", "\\u00f0\\u008f\\u00bf\\u00bf" }, { "\xed\xa0\x80", "\\u00ed\\u00a0\\u0080" },
		{ "\xed\xbf\xbf", "\\u00ed\\u00bf\\u00bf" }, { "\xed\x9f\xbf", "\xed\x9f\xbf" }, { "\xee\x80\x80", "\xee\x80\x80" },
		{ "\xf8\x88\x80\x80\x80", "\\u00f8\\u0088\\u0080\\u0080\\u0080" }, { "\xe2\x82", "\\u00e2\\u0082" },
		{ "\xfc\x80\x80\x80", "\\u00fc\\u0080\\u0080\\u0080" }, { "\xc3(", "\\u00c3(" }, { "\xe2\x82x", "\\u00e2\\u0082x" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *text = NULL, want[80];
		size_t len;
		FILE *out = open_memstream(&text, &len);

		json_text(out, cases[i].text, strlen(cases[i].text));
		fclose(out);
		snprintf(want, sizeof(want), "\"%s\"", cases[i].json);
		EXPECT_STREQ(text, want)
			TH_LOG("case %zu", i);
		free(text);
	}
}

TEST_HARNESS_MAIN
