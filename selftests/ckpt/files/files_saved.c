// SPDX-License-Identifier: Apache-2.0
/*
 * files_saved.c - which files of a job are saved: those that it writes, as they are at the cut, and no others
 */
#include "files_place.h"

/* A page of the file, mapped. */
static void *map_of(const struct place *p, const char *name, int prot, int flags)
{
	int fd = open_in(p, name, O_RDWR);
	void *at = mmap(NULL, 4096, prot, flags, fd, 0);

	close(fd);
	return at;
}

/* Opened or mapped for reading, or by itself alone; removed; and beside a folder that is skipped. */
TEST(what_no_process_writes_is_not_saved)
{
	static const char *const names[] = { "private", "shared", "path", "gone (deleted)", "../store/y" };
	char id[STORE_ID];
	struct files_save f;
	struct place p;
	void *at[3];
	int fd[2];
	pid_t pid;

	place_open(&p, "/tmp");
	for (size_t i = 0; i < 4; i++)
		write_to(&p, names[i], "theirs");
	write_to(&p, "both", "job's");
	write_to(&p, "gone", "job's");
	program(&p, true, "echo 1 >../store/y; mkdir ../store2; echo 1 >../store2/x");
	fd[0] = open(p.log, O_WRONLY | O_APPEND);
	ASSERT_EQ(16, write(fd[0], "\0E/proc/version", 16));
	close(fd[0]);
	at[0] = map_of(&p, "private", PROT_READ | PROT_WRITE, MAP_PRIVATE);
	at[1] = map_of(&p, "shared", PROT_READ, MAP_SHARED);
	at[2] = map_of(&p, "both", PROT_READ | PROT_WRITE, MAP_SHARED);
	fd[0] = open_in(&p, "path", O_PATH);
	fd[1] = open_in(&p, "gone", O_RDWR);
	fcntl(fd[0], F_SETFD, 0);
	fcntl(fd[1], F_SETFD, 0);
	program(&p, false, "rm gone");
	pid = holder();
	ASSERT_EQ(0, save_of(&p, NULL, &pid, 1, id, &f));
	EXPECT_EQ(2, f.files);
	end(pid);
	/* One that has ended has none. */
	ASSERT_EQ(0, save_of(&p, NULL, &pid, 1, id, &f));
	EXPECT_EQ(1, f.files);
	for (int i = 0; i < 3; i++)
		munmap(at[i], 4096);
	close(fd[0]);
	close(fd[1]);
	for (size_t i = 0; i < 5; i++)
		write_to(&p, names[i], "other");
	write_to(&p, "../store2/x", "other");
	ASSERT_EQ(0, put_back(&p, id, false));
	for (size_t i = 0; i < 5; i++)
		EXPECT_TRUE(has(&p, names[i], "other"));
	EXPECT_TRUE(has(&p, "../store2/x", "1\n"));
	place_close(&p);
}

/* A folder that has gone with the job's file, or is a link now: nothing else is taken for what was there. */
TEST(folders_that_have_gone_are_none_of_the_jobs)
{
	char id[STORE_ID];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, false, "mkdir -p u/v b/c theirs");
	program(&p, true, "echo 1 >u/v/x; echo 1 >b/c/x; echo 1 >b/y");
	program(&p, false, "rm -r u b/c; ln -s ../theirs b/c");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "mkdir u; echo mine >u/x; echo mine >u/own; echo 2 >b/y; echo mine >theirs/y");
	ASSERT_EQ(0, put_back(&p, id, false));
	EXPECT_TRUE(has(&p, "u/x", "mine\n") && has(&p, "u/own", "mine\n"));
	EXPECT_TRUE(has(&p, "b/y", "1\n") && has(&p, "theirs/y", "mine\n"));
	place_close(&p);
}

/* The job's user can make its log a link to any file of the folder. */
TEST(a_log_that_is_a_link_to_another_name_is_moved)
{
	char id[STORE_ID], target[256];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, true, "echo 1 >a");
	program(&p, false, "mkdir ../store/logs; f=../store/logs/%0100d; cp ../run/files $f; ln -sf $PWD/$f ../run/files", 0);
	ASSERT_LT(100, readlink(p.log, target, sizeof(target)));
	ASSERT_EQ(0, save(&p, NULL, id));
	memset(target, 0, sizeof(target));
	ASSERT_LT(16, readlink(p.log, target, sizeof(target) - 1));
	EXPECT_EQ(17, strlen(strrchr(target, '/')));
	program(&p, false, "rm a");
	ASSERT_EQ(0, put_back(&p, id, false));
	EXPECT_TRUE(has(&p, "a", "1\n"));
	place_close(&p);
}

TEST(whose_files_cannot_be_seen_is_refused)
{
	struct files_save f = { .n_pids = 1 };
	struct store_writer *w;
	struct place p;
	pid_t pid;
	int err;

	if (geteuid())
		SKIP(return, "not root");
	place_open(&p, "/tmp");
	program(&p, false, "chmod 755 ..; chmod 644 ../run/files");
	pid = holder();
	f.pids = &pid;
	f.log = p.log;
	ASSERT_EQ(0, store_writer_open(p.s, 0, &w));
	ASSERT_EQ(0, seteuid(12345));
	err = files_save(&f, p.s, w);
	ASSERT_EQ(0, seteuid(0));
	EXPECT_EQ(-EACCES, err);
	EXPECT_NE(NULL, strstr(f.why.text, "has open cannot be seen"));
	files_save_free(&f);
	store_writer_close(w);
	end(pid);
	place_close(&p);
}

static int changes;	/* of "a", left to be made */

static void change_a(void *arg, const char *phase, uint64_t done, uint64_t total)
{
	const struct place *p = arg;
	int fd;

	(void)phase;
	(void)done;
	(void)total;
	if (!changes)
		return;
	changes--;
	fd = open_in(p, "a", O_WRONLY);
	if (pwrite(fd, "new", 3, 0) != 3)
		printf("# a: %m\n");
	close(fd);
	/* It was looked at, and is read later. */
	program(arg, false, "touch -d 2002-02-02 b");
}

TEST(what_changes_meanwhile_is_read_again)
{
	struct node a, b, is;
	struct files_save f;
	char id[STORE_ID];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, true, "head -c 2500000 /dev/zero >a; echo 1 >b; touch -d 2001-01-01 a b");
	meanwhile = change_a;
	changes = 1;
	ASSERT_EQ(0, save_of(&p, NULL, NULL, 0, id, &f));
	EXPECT_EQ(0, changes);
	meanwhile = NULL;
	a = node_of(&p, "/a");
	b = node_of(&p, "/b");
	program(&p, false, "echo x >a; echo x >b");
	ASSERT_EQ(0, put_back(&p, id, false));
	is = node_of(&p, "/a");
	EXPECT_TRUE(same(&a, &is, true));
	is = node_of(&p, "/b");
	EXPECT_TRUE(same(&b, &is, true));
	/* If it does not stop, nothing is saved. */
	program(&p, true, "head -c 2500000 /dev/zero >a; touch -d 2001-01-01 a");
	meanwhile = change_a;
	changes = 1000;
	EXPECT_EQ(-EBUSY, save_of(&p, NULL, NULL, 0, id, &f));
	EXPECT_NE(NULL, strstr(f.why.text, "/a is being changed by another program"));
	meanwhile = NULL;
	place_close(&p);
}

/* The same number, on two file systems: two files; and the names of one are found behind the other's. */
TEST(files_of_other_file_systems_are_others)
{
	char one[128], two[128], id[STORE_ID];
	struct node n[4];
	struct place p;

	place_open(&p, "/tmp");
	snprintf(one, sizeof(one), "%s/m", p.root);
	snprintf(two, sizeof(two), "%s/m/b", p.root);
	ASSERT_EQ(0, mkdir(one, 0755));
	if (unshare(CLONE_NEWNS) || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("one", one, "tmpfs", 0, NULL) || mkdir(two, 0755) || mount("two", two, "tmpfs", 0, NULL))
		SKIP(return, "no mounts (root?)");
	program(&p, false, "echo >m/b/pad");
	program(&p, true, "echo 1 >m/a; echo 2 >m/b/x; ln m/a m/c");
	n[0] = node_of(&p, "/m/a");
	n[1] = node_of(&p, "/m/b/x");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "rm m/a m/b/x m/c");
	ASSERT_EQ(0, put_back(&p, id, false));
	EXPECT_TRUE(has(&p, "m/a", "1\n") && has(&p, "m/b/x", "2\n") && has(&p, "m/c", "1\n"));
	n[2] = node_of(&p, "/m/a");
	n[3] = node_of(&p, "/m/c");
	EXPECT_EQ(n[2].ino, n[3].ino);
	ASSERT_EQ(0, umount2(two, MNT_DETACH));
	ASSERT_EQ(0, umount2(one, MNT_DETACH));
	if (n[0].ino != n[1].ino)
		SKIP(return, "a file system that numbers its files otherwise");
	place_close(&p);
}

/* What is mounted in it did not come along, and what a link there leads to is another folder. */
TEST(of_a_renamed_folder_what_came_along_is_saved)
{
	char on[128], id[STORE_ID];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, false, "mkdir -p old/m old/in gone theirs; echo 1 >old/in/x; echo 1 >theirs/u");
	snprintf(on, sizeof(on), "%s/old/m", p.root);
	if (unshare(CLONE_NEWNS) || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("m", on, "tmpfs", 0, NULL))
		SKIP(return, "no mounts (root?)");
	program(&p, false, "echo 1 >old/m/u");
	program(&p, true, "mv old d; mv gone was; rmdir was; ln -s theirs was");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "echo 2 >d/m/u; echo 2 >theirs/u; echo 2 >d/in/x");
	ASSERT_EQ(0, put_back(&p, id, false));
	EXPECT_TRUE(has(&p, "d/m/u", "2\n") && has(&p, "theirs/u", "2\n") && has(&p, "d/in/x", "1\n"));
	snprintf(on, sizeof(on), "%s/d/m", p.root);
	ASSERT_EQ(0, umount2(on, MNT_DETACH));
	place_close(&p);
}

/* A path that is named more than once is what the source says that knows most. */
TEST(what_several_sources_say_of_a_path)
{
	struct files_back b = { .tag = "tag" };
	const char *links[1];
	struct store_writer *w;
	char id[STORE_ID], path[160];
	struct files_save f;
	struct node n;
	struct place p;

	place_open(&p, "/tmp");
	program(&p, false, "mkdir z own; chmod 755 z");
	write_to(&p, "link_remap.5", "its");
	/* The folder z is above a file first, and changed itself then. The folder own was there before the job's. */
	program(&p, true, "mkdir b; echo 1 >b/x; mv b/x z/x; rmdir b; ln -s z b; chmod 700 z");
	program(&p, true, "rmdir own; mkdir own; echo 1 >own/x; echo more >>link_remap.5");
	snprintf(path, sizeof(path), "%s/link_remap.5", p.root);
	links[0] = path;
	f = (struct files_save){ .log = p.log, .links = links, .n_links = 1 };
	ASSERT_EQ(0, store_writer_open(p.s, 0, &w));
	ASSERT_EQ(0, files_save(&f, p.s, w) ?: store_writer_flush(w) ?: store_publish(p.s, f.parts, f.n_parts, "{}", id))
		TH_LOG("%s", f.why.text);
	store_writer_close(w);
	files_save_free(&f);
	program(&p, false, "chmod 755 z; echo 2 >own/x; rm link_remap.5");
	ASSERT_EQ(0, back(&p, id, &b))
		TH_LOG("%s", b.why.text);
	EXPECT_EQ(1, b.n_links);
	files_remove_links(&b);
	files_back_free(&b);
	EXPECT_FALSE(is_there(&p, "link_remap.5"));
	n = node_of(&p, "/z");
	EXPECT_EQ(S_IFDIR | 0700, n.mode);
	/* What others have put into the job's own folder is kept beside it. */
	EXPECT_TRUE(has(&p, "own." STAMP "/x", "2\n") && has(&p, "own/x", "1\n"));
	place_close(&p);
}

/* Each folder takes a descriptor; without one more, nothing is left out without a word. */
TEST(a_folder_that_cannot_be_read_is_not_left_out)
{
	struct rlimit was, few;
	char id[STORE_ID];
	struct files_save f;
	struct place p;
	int err;

	place_open(&p, "/tmp");
	program(&p, false, "mkdir old; cd old; for i in $(seq 90); do mkdir d; cd d; done; echo 1 >x");
	program(&p, true, "mv old new");
	ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &was));
	few = was;
	few.rlim_cur = 80;
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &few));
	err = save_of(&p, NULL, NULL, 0, id, &f);
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &was));
	EXPECT_EQ(-EMFILE, err);
	EXPECT_EQ(0, save_of(&p, NULL, NULL, 0, id, &f));
	EXPECT_EQ(1, f.files);
	place_close(&p);
}

TEST_HARNESS_MAIN
