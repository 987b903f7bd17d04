// SPDX-License-Identifier: Apache-2.0
/*
 * files_back.c - files are saved and put back: random, unchanged and mapped ones, after later
 * changes, without permission or space, from a damaged store, killed in the middle
 */
#include "files_place.h"

/* ------------------------------------------------------------------------ what must come out */

struct log {
	char *text;
	size_t len, cut;	/* cut: the length at the cut */
};

static struct log read_log(const struct place *p, size_t len)
{
	struct log l = { malloc(1 << 24), 0, 0 };
	int fd = open(p->log, O_RDONLY);
	ssize_t n = read(fd, l.text, len ? len : 1 << 24);

	close(fd);
	l.len = n > 0 ? n : 0;
	return l;
}

/* Was it changed by the job? What lay below a renamed folder: at the cut, or, if it came later, now. */
static bool in_log(const struct log *l, const struct place *p, const struct tree *cut,
		   const char *path)
{
	char full[1024];

	snprintf(full, sizeof(full), "%s%s", p->root, path);
	for (size_t at = 0; at < l->len; at += strlen(l->text + at) + 1) {
		const char *r = l->text + at;
		size_t n = strlen(r);

		if (n && !strcmp(r + 1, full))
			return true;
		if (*r == 'T' && !strncmp(r + 1, full, n - 1) && full[n - 1] == '/' &&
		    (at >= l->cut || find(cut, path)))
			return true;
	}
	return false;
}

/* A folder above path is the log's, and was none at the cut. */
static bool lost_above(const struct log *l, const struct place *p, const struct tree *cut,
		       const char *path)
{
	char above[512];
	char *s;

	snprintf(above, sizeof(above), "%s", path);
	while ((s = strrchr(above, '/')) && s > above) {
		const struct node *n;

		*s = '\0';
		n = find(cut, above);
		if (in_log(l, p, cut, above) && (!n || !S_ISDIR(n->mode)))
			return true;
	}
	return false;
}

/* Is it another name, made by the user, of what the job has changed? Its owner and times follow. */
static bool is_linked(const struct log *l, const struct place *p, const struct tree *cut,
		      const struct tree *before, const char *path)
{
	const struct node *n = find(before, path);

	for (size_t i = 0; n && S_ISREG(n->mode) && i < before->n; i++)
		if (before->node[i].ino == n->ino && &before->node[i] != n &&
		    in_log(l, p, cut, before->node[i].path))
			return true;
	return false;
}

static bool is_aside(const char *path)
{
	return strstr(path, STAMP);
}

static void show_records(const struct log *l, const struct place *p, const char *path)
{
	char full[1024];

	snprintf(full, sizeof(full), "%s%s", p->root, path);
	for (size_t at = 0; at < l->len; at += strlen(l->text + at) + 1)
		if (l->text[at] && !strncmp(l->text + at + 1, full, strlen(l->text + at + 1)))
			printf("#   %s%s\n", at >= l->cut ? "behind the cut: " : "", l->text + at);
}

/* After the putting back: logged paths as at the cut, all else as it was before, nothing lost. */
static int judge(const struct place *p, const struct log *l, const struct tree *cut,
		 const struct tree *before, const struct tree *after)
{
	int wrong = 0;

	for (int pass = 0; pass < 3; pass++) {
		const struct tree *t = pass == 0 ? cut : pass == 1 ? before : after;

		for (size_t i = 0; i < t->n && wrong < 20; i++) {
			const char *path = t->node[i].path;
			bool logged = in_log(l, p, cut, path);
			const struct node *want = logged ? find(cut, path) :
				lost_above(l, p, cut, path) ? NULL : find(before, path);

			if (is_aside(path) || same(find(after, path), want, logged) ||
			    (!logged && is_linked(l, p, cut, before, path)))
				continue;
			wrong++;
			printf("# %s (%s): %s, wanted %s%s\n", path, logged ? "logged" : "not logged",
			       find(after, path) ? "there" : "not there", want ? "it" : "it not",
			       find(after, path) && want ? ", another" : "");
			show_records(l, p, path);
		}
	}
	for (size_t i = 0; i < before->n && wrong < 20; i++) {
		bool kept = !S_ISREG(before->node[i].mode);

		for (size_t j = 0; j < after->n && !kept; j++)
			kept = after->node[j].hash == before->node[i].hash &&
			       after->node[j].size == before->node[i].size;
		if (!kept)
			printf("# the content of %s is gone\n", before->node[i].path);
		wrong += !kept;
	}
	/* Names of one file at the cut are names of one file again. */
	for (size_t i = 0; i < cut->n && wrong < 20; i++)
		for (size_t j = i + 1; j < cut->n; j++) {
			const struct node *a = find(after, cut->node[i].path);
			const struct node *b = find(after, cut->node[j].path);

			if (!S_ISREG(cut->node[i].mode) || !a || !b ||
			    !in_log(l, p, cut, a->path) || !in_log(l, p, cut, b->path) ||
			    (cut->node[i].ino == cut->node[j].ino) == (a->ino == b->ino))
				continue;
			printf("# %s and %s: one file or two?\n", a->path, b->path);
			wrong++;
		}
	return wrong;
}

/* ----------------------------------------------------------------------------------- tests */

#define ROUNDS 10
#define ROUNDS_LONG 300	/* make check-long */

TEST(random_jobs_and_users)
{
	int from = getenv("ROUND") ? atoi(getenv("ROUND")) : 0;	/* one alone, to look at it */

	int to = getenv("ROUND") ? from + 1 : getenv("FILES_LONG") ? ROUNDS_LONG : ROUNDS;

	for (int round = from; round < to; round++) {
		struct tree cut, before, after, again;
		char id[STORE_ID], first[STORE_ID];
		struct log at_cut, full;
		struct place p;

		place_open(&p, "/tmp");
		program(&p, false, "mkdir -p old/0 old/1 old/2; for i in 0 1 2; do for j in 0 1 2; "
			"do echo $i$j >old/$i/f$j; done; done");
		program(&p, true, "$RANDOM_JOB %d 60 old", round);
		ASSERT_EQ(0, save(&p, NULL, first));
		program(&p, true, "$RANDOM_JOB %d 60 old", round + 1000);
		ASSERT_EQ(0, save(&p, round % 2 ? first : NULL, id));
		cut = tree_of(p.root);
		at_cut = read_log(&p, 0);
		program(&p, true, "$RANDOM_JOB %d 60", round + 2000);
		program(&p, false, "$RANDOM_JOB %d %d old", round + 3000, round % 3 * 15);
		full = read_log(&p, 0);
		full.cut = at_cut.len;
		before = tree_of(p.root);
		ASSERT_EQ(0, put_back(&p, id, true));
		after = tree_of(p.root);
		ASSERT_EQ(0, judge(&p, &full, &cut, &before, &after)) {
			printf("# round %d in %s\n", round, p.dir);
		}
		free(full.text);
		full = read_log(&p, 0);
		ASSERT_LE(at_cut.len, full.len);
		ASSERT_EQ(0, memcmp(at_cut.text, full.text, at_cut.len));
		/* Again: there is nothing to do. */
		ASSERT_EQ(0, unlink(p.log));
		ASSERT_EQ(0, put_back(&p, id, false));
		again = tree_of(p.root);
		ASSERT_EQ(after.n, again.n);
		for (size_t i = 0; i < after.n; i++)
			ASSERT_TRUE(same(&after.node[i], &again.node[i], true));
		free(cut.node);
		free(before.node);
		free(after.node);
		free(again.node);
		free(at_cut.text);
		free(full.text);
		place_close(&p);
	}
}

TEST(what_is_kept_aside_and_where)
{
	struct files_back b = { 0 };
	char id[STORE_ID];
	struct place p;
	int said = 0;

	place_open(&p, "/tmp");
	program(&p, true, "mkdir out; echo 1 >out/a; echo 1 >b; echo 1 >gone; rm gone; ln -s b link");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, true, "echo 2 >>out/a; echo new >out/n; rm b; mkdir more; echo x >more/x");
	write_to(&p, "b", "mine");
	write_to(&p, "gone", "mine too");
	write_to(&p, "out/user", "stays");
	b.later = p.log;
	ASSERT_EQ(0, back(&p, id, &b));
	ASSERT_TRUE(has(&p, "out/a", "1\n"));
	ASSERT_TRUE(has(&p, "b", "1\n"));
	ASSERT_TRUE(has(&p, "out/user", "stays"));
	ASSERT_FALSE(is_there(&p, "gone"));
	ASSERT_FALSE(is_there(&p, "out/n"));
	ASSERT_FALSE(is_there(&p, "more"));
	/* The job's folder has nothing in it that the job did not put there. */
	ASSERT_TRUE(has(&p, "out." STAMP "/a", "1\n2\n"));
	ASSERT_TRUE(has(&p, "out." STAMP "/n", "new\n"));
	ASSERT_TRUE(has(&p, "b." STAMP, "mine"));
	ASSERT_TRUE(has(&p, "gone." STAMP, "mine too"));
	ASSERT_TRUE(has(&p, "more." STAMP "/x", "x\n"));
	for (size_t i = 0; i < b.n_said; i++)
		said += strstr(b.said[i], "is kept as ") && strstr(b.said[i], STAMP);
	ASSERT_EQ(5, said);
	ASSERT_EQ(5, b.aside);
	files_back_free(&b);
	/* The same stamp once more: other names. */
	write_to(&p, "b", "mine again");
	ASSERT_EQ(0, put_back(&p, id, false));
	ASSERT_TRUE(has(&p, "b." STAMP, "mine"));
	ASSERT_TRUE(has(&p, "b." STAMP ".2", "mine again"));
	place_close(&p);
}

TEST(a_log_in_the_store_outlives_the_folder_of_the_job)
{
	char id[STORE_ID], target[256];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, true, "echo 1 >a");
	ASSERT_EQ(0, save(&p, NULL, id));
	for (int run = 0; run < 3; run++) {
		char name[64];

		program(&p, true, "set -C; echo >%d", run);
		ASSERT_LT(0, readlink(p.log, target, sizeof(target)));
		ASSERT_EQ(0, unlink(p.log));	/* the machine was switched off */
		ASSERT_EQ(0, put_back(&p, id, false));
		for (int i = 0; i <= run; i++) {
			snprintf(name, sizeof(name), "%d", i);
			ASSERT_FALSE(is_there(&p, name));
		}
	}
	/* Each restore of the cut knows what came later. */
	program(&p, false, "mv 0." STAMP " 0");
	ASSERT_EQ(0, unlink(p.log));
	ASSERT_EQ(0, put_back(&p, id, false));
	ASSERT_FALSE(is_there(&p, "0"));
	/* In a store that the log did not come along to. */
	program(&p, false, "rm -r ../store/logs");
	ASSERT_EQ(0, put_back(&p, id, false));
	program(&p, true, "echo >x");
	ASSERT_EQ(0, put_back(&p, id, false));
	ASSERT_FALSE(is_there(&p, "x"));
	place_close(&p);
}

/* How many files of its logs a store has after a clean-up, the owners' notes included. */
static int logs_after_gc(struct place *p)
{
	struct files_gc_stats st;
	char dir[128];
	struct tree t;

	if (files_gc(p->s, &st))
		return -1;
	snprintf(dir, sizeof(dir), "%s/logs", p->store);
	t = tree_of(dir);
	free(t.node);
	return t.n;
}

TEST(a_log_goes_when_neither_a_job_nor_a_checkpoint_has_it)
{
	char first[STORE_ID], second[STORE_ID];
	struct place p;

	place_open(&p, "/tmp");
	ASSERT_EQ(0, logs_after_gc(&p));
	program(&p, true, "echo 1 >a");
	ASSERT_EQ(0, save(&p, NULL, first));
	program(&p, true, "echo 2 >a");
	ASSERT_EQ(0, save(&p, first, second));
	ASSERT_EQ(2, logs_after_gc(&p));
	ASSERT_EQ(0, store_remove(p.s, first));
	ASSERT_EQ(2, logs_after_gc(&p));
	ASSERT_EQ(0, store_remove(p.s, second));
	ASSERT_EQ(2, logs_after_gc(&p));	/* the job's folder has a link to it */
	ASSERT_EQ(0, save(&p, NULL, first));
	ASSERT_EQ(0, unlink(p.log));
	ASSERT_EQ(2, logs_after_gc(&p));	/* a checkpoint has its name */
	program(&p, false, "cd ../store/logs; touch 0123456789abcdef other");
	ASSERT_EQ(4, logs_after_gc(&p));	/* nothing is known of it, and it is young */
	program(&p, false, "cd ../store/logs; touch -d '40 days ago' *; rm -f other");
	ASSERT_EQ(2, logs_after_gc(&p));
	ASSERT_EQ(0, store_remove(p.s, first));
	ASSERT_EQ(0, logs_after_gc(&p));
	place_close(&p);
}

TEST(files_that_became_one_are_two_again)
{
	struct stat a, b;
	char id[STORE_ID], path[128];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, true, "echo 1 >a; echo 1 >b");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "ln -f a b");
	ASSERT_EQ(0, put_back(&p, id, false));
	snprintf(path, sizeof(path), "%s/a", p.root);
	ASSERT_EQ(0, stat(path, &a));
	snprintf(path, sizeof(path), "%s/b", p.root);
	ASSERT_EQ(0, stat(path, &b));
	ASSERT_NE(a.st_ino, b.st_ino);
	ASSERT_TRUE(has(&p, "b", "1\n"));
	place_close(&p);
}

TEST(what_came_with_a_folder_later_is_kept_aside)
{
	char id[STORE_ID];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, false, "mkdir before; echo old >before/u; echo old >before/v");
	program(&p, true, "mkdir d; echo 1 >d/x");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, true, "rm d/x; mv -T before d; echo 2 >>d/u");
	ASSERT_EQ(0, put_back(&p, id, true));
	ASSERT_TRUE(has(&p, "d/x", "1\n"));
	ASSERT_FALSE(is_there(&p, "d/u") || is_there(&p, "d/v"));
	ASSERT_TRUE(has(&p, "d." STAMP "/u", "old\n2\n") && has(&p, "d." STAMP "/v", "old\n"));
	place_close(&p);
}

TEST(another_host_and_missing_folders)
{
	struct tree cut, after;
	char id[STORE_ID], cmd[256];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, false, "mkdir -m 750 deep; mkdir deep/er");
	program(&p, true, "echo 1 >deep/er/a; chmod 640 deep/er/a; mkfifo deep/f; ln -s er deep/l;"
		"ln deep/er/a deep/h; truncate -s 5M deep/s; mkdir deep/d; rm -rf deep/d; echo >deep/d");
	cut = tree_of(p.root);
	ASSERT_EQ(0, save(&p, NULL, id));
	snprintf(cmd, sizeof(cmd), "rm -r %s/deep", p.root);
	ASSERT_EQ(0, system(cmd));
	ASSERT_EQ(0, put_back(&p, id, false));
	after = tree_of(p.root);
	ASSERT_EQ(cut.n, after.n);
	for (size_t i = 0; i < cut.n; i++) {
		ASSERT_TRUE(same(&cut.node[i], &after.node[i], true)) {
			printf("# %s %s\n", cut.node[i].path, after.node[i].path);
		}
	}
	free(cut.node);
	free(after.node);
	place_close(&p);
}

/* Of what is made anew, and of what is there with the content of the checkpoint. */
TEST(owners_and_groups_are_put_back)
{
	const char *const since[] = { "rm -r *", "chown -hR 0:0 *", "chgrp -hR 4322 *",
				      "chown -hR 4323 *; echo 2 >a" };
	struct tree cut, after;
	char id[STORE_ID];
	struct place p;

	if (geteuid())
		SKIP(return, "not root");
	place_open(&p, "/tmp");
	program(&p, true, "echo 1 >a; mkdir d; echo 1 >d/a; ln -s a l; mkfifo f; "
		"chown -h 4320 a d l f d/a; chgrp -h 4321 a d l f d/a");
	cut = tree_of(p.root);
	for (size_t i = 0; i < cut.n; i++)
		ASSERT_TRUE(cut.node[i].uid == 4320 && cut.node[i].gid == 4321);
	ASSERT_EQ(0, save(&p, NULL, id));
	for (size_t k = 0; k < sizeof(since) / sizeof(*since); k++) {
		program(&p, false, since[k]);
		ASSERT_EQ(0, put_back(&p, id, false));
		program(&p, false, "rm -f *." STAMP "*");
		after = tree_of(p.root);
		ASSERT_EQ(cut.n, after.n);
		for (size_t i = 0; i < cut.n; i++) {
			EXPECT_TRUE(same(&cut.node[i], &after.node[i], false)) {
				printf("# after '%s': %s is of %u:%u\n", since[k],
				       after.node[i].path, after.node[i].uid, after.node[i].gid);
			}
		}
		free(after.node);
	}
	free(cut.node);
	place_close(&p);
}

static mode_t mode_of(const struct place *p, const char *name)
{
	struct stat st;
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", p->root, name);
	return lstat(path, &st) ? 0 : st.st_mode & 07777;
}

/* Those that are there stay, and what is made anew has none. */
TEST(set_user_id_bits_are_not_saved)
{
	struct files_back b = { 0 };
	char id[STORE_ID];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, true, "echo 1 >s; chmod 4755 s; mkdir d; chmod 3775 d; echo 1 >d/a");
	ASSERT_EQ(0, save(&p, NULL, id));
	ASSERT_EQ(0, back(&p, id, &b));
	EXPECT_EQ(0, b.n_said);
	files_back_free(&b);
	EXPECT_EQ(04755, mode_of(&p, "s"));
	EXPECT_EQ(03775, mode_of(&p, "d"));
	program(&p, false, "rm -r s d");
	ASSERT_EQ(0, put_back(&p, id, false));
	EXPECT_EQ(0755, mode_of(&p, "s"));
	EXPECT_EQ(01775, mode_of(&p, "d"));
	place_close(&p);
}

/* The job writes to its log, and cannot put another one in its place. */
TEST(the_folder_of_the_logs_is_the_stores)
{
	char id[STORE_ID], path[128], target[256];
	struct stat st;
	struct place p;

	if (geteuid())
		SKIP(return, "not root");
	place_open(&p, "/tmp");
	program(&p, false, "chmod 711 .. ../store; chown 12345 ../run");
	program(&p, true, "echo 1 >a");
	ASSERT_EQ(0, save(&p, NULL, id));
	snprintf(path, sizeof(path), "%s/logs", p.store);
	ASSERT_EQ(0, stat(path, &st));
	EXPECT_EQ(0, st.st_uid);
	EXPECT_EQ(0711, st.st_mode & 07777);
	ASSERT_LT(0, readlink(p.log, target, sizeof(target)));
	ASSERT_EQ(0, stat(p.log, &st));
	EXPECT_EQ(12345, st.st_uid);
	place_close(&p);
}

static void wait_until_old(void)
{
	/* Longer than files.h's two seconds: then times tell whether a file has changed. */
	usleep(2300000);
}

/* The checkpoint again, as if of another boot; each content is another one of the same size. */
static int other_boot(struct place *p, const char *id, char again[STORE_ID])
{
	struct store_part part[16] = { { .name = "files" }, { .name = "files/log" } };
	char text[8192] = "", names[16][32], *line, *save = NULL, *boot;
	struct store_object *o = NULL, *content = NULL;
	struct store_checkpoint *c = NULL;
	struct store_reader *r = NULL;
	struct store_ref ref;
	struct store_writer *w;
	size_t n = 2, len;
	int err = store_checkpoint_open(p->s, id, &c) ?: store_object_open(p->s, store_checkpoint_find(c, "files"), &r);

	if (err || store_read(r, 0, text, sizeof(text) - 1) < 0)
		return err ?: -EIO;
	store_reader_close(r);
	boot = strstr(text, "boot ") + 5;
	*boot = *boot == '0' ? '1' : '0';
	len = strlen(text);
	part[1].ref = *store_checkpoint_find(c, part[1].name);
	err = store_writer_open(p->s, 0, &w) ?: store_object_begin(w, &o) ?: store_object_write(o, 0, text, len) ?:
	      store_object_end(o, 0, &part[0].ref) ?: store_object_begin(w, &content) ?:
	      store_object_write(content, 0, "9\n", 2) ?: store_object_end(content, 0, &ref);
	for (line = strtok_r(text, "\n", &save); line && n < 16; line = strtok_r(NULL, "\n", &save)) {
		if (*line != 'r')
			continue;
		snprintf(names[n], sizeof(names[n]), "files/%s", strrchr(line, ' ') + 1);
		part[n] = (struct store_part){ names[n], ref };
		n++;
	}
	err = err ?: store_writer_flush(w) ?: store_publish(p->s, part, n, "{}", again);
	store_writer_close(w);
	store_checkpoint_close(c);
	return err;
}

TEST(unchanged_files_are_not_read_again)
{
	struct files_back b = { .look_only = true };
	char one[STORE_ID], two[STORE_ID], three[STORE_ID], other[STORE_ID];
	struct timespec begin, end;
	struct files_save f;
	struct place p;

	place_open(&p, "/tmp");
	program(&p, true, "echo 1 >a; echo 1 >b; echo 1 >c");
	wait_until_old();
	clock_gettime(CLOCK_MONOTONIC, &begin);
	program(&p, true, "echo 1 >young");
	ASSERT_EQ(0, save_of(&p, NULL, NULL, 0, one, &f));
	clock_gettime(CLOCK_MONOTONIC, &end);
	ASSERT_EQ(0, f.unread);
	ASSERT_EQ(4, f.files);
	/* After another boot no times are trusted: all files are read again, and replaced. */
	ASSERT_EQ(0, other_boot(&p, one, other));
	ASSERT_EQ(0, save_of(&p, other, NULL, 0, three, &f));
	EXPECT_EQ(0, f.unread);
	ASSERT_EQ(0, back(&p, other, &b));
	EXPECT_EQ(0, b.kept);
	files_back_free(&b);
	b.kept = 0;
	ASSERT_EQ(0, back(&p, one, &b));
	EXPECT_EQ(4, b.kept);
	files_back_free(&b);
	/* Another content of the same size and time. */
	program(&p, false, "touch -r c ref; echo 3 >c; touch -r ref c; rm ref");
	b.kept = 0;
	ASSERT_EQ(0, back(&p, one, &b));
	EXPECT_EQ(3, b.kept);
	files_back_free(&b);
	program(&p, true, "echo 2 >b; echo 2 >c; touch -d 2001-01-01 c");
	ASSERT_EQ(0, save_of(&p, one, NULL, 0, two, &f));
	if (!f.unread)
		SKIP(return, "the file system of /tmp is none whose times are trusted");
	/* If the machine stood still for a while, the young one was not young when it was saved. */
	if (end.tv_sec - begin.tv_sec < 2)
		ASSERT_EQ(1, f.unread);
	/* The size as before, the times set back: the content counts. */
	program(&p, false, "echo 3 >b; echo 3 >c; echo 3 >a; echo 3 >young; rm -f a");
	ASSERT_EQ(0, put_back(&p, two, false));
	ASSERT_TRUE(has(&p, "a", "1\n") && has(&p, "b", "2\n") && has(&p, "c", "2\n"));
	ASSERT_TRUE(has(&p, "young", "1\n"));
	ASSERT_EQ(0, save_of(&p, two, NULL, 0, three, &f));
	ASSERT_EQ(0, f.unread);
	place_close(&p);
}

TEST(mappings_change_files_without_a_new_time)
{
	char one[STORE_ID], two[STORE_ID], path[128];
	struct files_save f;
	struct place p;
	pid_t pid;
	char *map;
	int fd;

	place_open(&p, "/tmp");
	/* By no log, but as a static program does it. */
	snprintf(path, sizeof(path), "%s/mapped", p.root);
	fd = open(path, O_CREAT | O_RDWR, 0644);
	ASSERT_EQ(0, ftruncate(fd, 4096));
	map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	strcpy(map, "one");
	wait_until_old();
	pid = holder();
	ASSERT_EQ(0, save_of(&p, NULL, &pid, 1, one, &f));
	strcpy(map, "two");
	ASSERT_EQ(0, save_of(&p, one, &pid, 1, two, &f));
	ASSERT_EQ(0, f.unread);
	ASSERT_EQ(1, f.files);
	end(pid);
	munmap(map, 4096);
	ASSERT_EQ(0, put_back(&p, one, false));
	ASSERT_TRUE(has(&p, "mapped", "one"));
	ASSERT_EQ(0, put_back(&p, two, false));
	ASSERT_TRUE(has(&p, "mapped", "two"));
	place_close(&p);
}

TEST(what_a_process_has_open_is_saved_without_a_log)
{
	char id[STORE_ID], path[128];
	struct place p;
	struct files_save f;
	pid_t pid;
	int fd, fd2;

	place_open(&p, "/tmp");
	snprintf(path, sizeof(path), "%s/open", p.root);
	fd = open(path, O_CREAT | O_WRONLY, 0644);
	ASSERT_EQ(4, write(fd, "text", 4));
	write_to(&p, "read", "only");
	snprintf(path, sizeof(path), "%s/read", p.root);
	fd2 = open(path, O_RDONLY);
	pid = holder();
	ASSERT_EQ(0, save_of(&p, NULL, &pid, 1, id, &f));
	ASSERT_EQ(1, f.files);
	end(pid);
	close(fd);
	close(fd2);
	write_to(&p, "open", "other");
	write_to(&p, "read", "other");
	ASSERT_EQ(0, put_back(&p, id, false));
	ASSERT_TRUE(has(&p, "open", "text"));
	ASSERT_TRUE(has(&p, "read", "other"));
	place_close(&p);
}

static const char acl[] = "\2\0\0\0" "\1\0\6\0\xff\xff\xff\xff" "\2\0\4\0\x39\x30\0\0" "\4\0\4\0\xff\xff\xff\xff"
			  "\x10\0\4\0\xff\xff\xff\xff" "\x20\0\4\0\xff\xff\xff\xff";
#define ACL "system.posix_acl_access"

/* Names that are escaped in the list, or too long for the stamp; a time before 1970; an ACL, and attributes. */
TEST(odd_names_times_and_attributes_are_put_back)
{
	char path[256], long_name[256], id[STORE_ID], value[64];
	struct tree cut, after;
	bool has_acl, has_attr;
	struct place p;
	ssize_t len;

	place_open(&p, "/tmp");
	memset(long_name, 'n', 255);
	long_name[255] = 0;
	program(&p, true, "echo 1 >'%%41'; echo 1 >'a b'; echo 1 >$(printf 'a\\177%%%%'); echo 1 >a; echo 1 >%s; "
		"echo 1 >/dev/shm%s; touch -d '1960-01-01 00:00:00.5' a", long_name, strrchr(p.dir, '/'));
	snprintf(path, sizeof(path), "%s/a", p.root);
	has_acl = !setxattr(path, ACL, acl, sizeof(acl) - 1, 0);
	has_attr = !setxattr(path, "user.a", "ab", 2, 0);
	setxattr(path, "trusted.a", "1", 1, 0);		/* root's alone: it is not saved */
	cut = tree_of(p.root);
	EXPECT_EQ(5, cut.n);
	ASSERT_EQ(0, save(&p, NULL, id));
	for (int i = 0; i < 4; i++) {
		/* All gone, or an attribute alone is another one: shorter in the list, of another value, or not there. */
		if (!i)
			program(&p, false, "rm *; rm /dev/shm%s", strrchr(p.dir, '/'));
		else if (has_attr)
			setxattr(path, i == 3 ? "user.c" : "user.a", i == 1 ? "abc" : "ac", i == 1 ? 3 : 2, 0);
		ASSERT_EQ(0, put_back(&p, id, false));
		after = tree_of(p.root);
		ASSERT_EQ(cut.n, after.n);
		for (size_t k = 0; k < cut.n; k++) {
			EXPECT_TRUE(same(&cut.node[k], &after.node[k], true)) {
				printf("# %d: %s\n", i, cut.node[k].path);
			}
		}
		free(after.node);
		EXPECT_EQ(-1, getxattr(path, "user.c", value, sizeof(value)));
		len = getxattr(path, ACL, value, sizeof(value));
		if (has_acl)
			EXPECT_TRUE(len == sizeof(acl) - 1 && !memcmp(value, acl, len));
	}
	snprintf(path, sizeof(path), "/dev/shm%s", strrchr(p.dir, '/'));
	EXPECT_EQ(0, unlink(path));
	/* What is in the way of a long name has a shorter one. */
	write_to(&p, long_name, "other");
	ASSERT_EQ(0, put_back(&p, id, false));
	EXPECT_TRUE(has(&p, long_name, "1\n"));
	snprintf(long_name + 255 - strlen(STAMP) - 5, 32, ".%s", STAMP);
	EXPECT_TRUE(has(&p, long_name, "other"));
	free(cut.node);
	place_close(&p);
}

/* A hard link to a file that is made anew is made anew. */
TEST(links_follow_a_file_that_is_parted)
{
	struct node b, m, n, l;
	char id[STORE_ID];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, true, "echo 1 >b; echo 1 >m; ln m n; ln -s b l");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "ln -f b m; ln -f b n");
	ASSERT_EQ(0, put_back(&p, id, false));
	b = node_of(&p, "/b");
	m = node_of(&p, "/m");
	n = node_of(&p, "/n");
	EXPECT_EQ(m.ino, n.ino);
	EXPECT_NE(b.ino, m.ino);
	/* A copy of a file is no link to it, nor is a symbolic link to another one. */
	program(&p, false, "rm n; echo 1 >n; ln -sfn m l");
	ASSERT_EQ(0, put_back(&p, id, false));
	m = node_of(&p, "/m");
	n = node_of(&p, "/n");
	l = node_of(&p, "/l");
	EXPECT_EQ(m.ino, n.ino);
	EXPECT_STREQ("b", l.target);
	place_close(&p);
}

/* The log after the cut: the first record of a path counts; of another log, none; nothing in /proc. */
TEST(records_after_the_cut)
{
	char id[STORE_ID];
	struct files_back b = { 0 };
	struct place p;
	int fd;

	place_open(&p, "/tmp");
	write_to(&p, "u", "old");
	program(&p, true, "echo 1 >a");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, true, "echo x >>u");
	program(&p, true, "rm u");
	program(&p, true, "echo y >u");
	fd = open(p.log, O_WRONLY | O_APPEND);
	ASSERT_EQ(16, write(fd, "\0C/proc/version", 16));
	close(fd);
	ASSERT_EQ(0, put_back(&p, id, true));
	EXPECT_TRUE(has(&p, "u", "y\n"));
	/* One byte is not the cut's. */
	program(&p, true, "echo z >z");
	program(&p, false, "cp ../run/files ../copy; rm -r ../store/logs; tr / X <../copy >../other; "
		"printf '\\000C%s/z\\000' >>../other", p.root);
	b.later = p.copy;
	snprintf(p.copy, sizeof(p.copy), "%s/other", p.dir);
	ASSERT_EQ(0, back(&p, id, &b));
	files_back_free(&b);
	EXPECT_TRUE(is_there(&p, "z"));
	/* Its own, of which the store has none: it is there as a whole again. */
	program(&p, false, "rm -r ../store/logs");
	snprintf(p.copy, sizeof(p.copy), "%s/copy", p.dir);
	ASSERT_EQ(0, back(&p, id, &b));
	files_back_free(&b);
	EXPECT_FALSE(is_there(&p, "z"));
	program(&p, false, "cmp -n $(stat -Lc %%s ../run/files) ../copy ../run/files && [ -s ../run/files ] && touch same");
	EXPECT_TRUE(is_there(&p, "same"));
	place_close(&p);
}

/* It stays in the job's folder, where it belongs to the job's user. */
TEST(a_log_that_cannot_move_into_the_store)
{
	char id[STORE_ID], path[128];
	struct tree logs;
	struct stat st;
	struct place p;

	if (geteuid())
		SKIP(return, "not root");
	place_open(&p, "/tmp");
	program(&p, false, "chmod 711 .. ../store; chown 12345 ../run; mkdir ../run/files.new");
	program(&p, true, "echo 1 >a");
	ASSERT_EQ(0, save(&p, NULL, id));
	snprintf(path, sizeof(path), "%s/logs", p.store);
	logs = tree_of(path);
	EXPECT_EQ(0, logs.n);
	free(logs.node);
	ASSERT_EQ(0, lstat(p.log, &st));
	EXPECT_TRUE(S_ISREG(st.st_mode));
	program(&p, false, "rmdir ../run/files.new; rm ../run/files");
	ASSERT_EQ(0, put_back(&p, id, false));
	ASSERT_EQ(0, lstat(p.log, &st));
	EXPECT_TRUE(S_ISREG(st.st_mode) && st.st_size > 0);
	EXPECT_EQ(12345, st.st_uid);
	EXPECT_EQ(0, access(path, F_OK));
	logs = tree_of(path);
	EXPECT_EQ(0, logs.n);
	free(logs.node);
	place_close(&p);
}

/* What singvgpu wrote behind the end of a file makes no copy of it stay. */
TEST(copies_that_differ_by_ours_alone_are_dropped)
{
	static const struct {
		const char *since, *then;	/* commands: after the cut; after the restore */
		bool held, dropped, differs;
	} cases[] = {
		{ "printf ours >>a", ":", false, true, false },
		{ "printf ours >>a", ":", true, false, false },
		{ "printf ours >>a", "printf X >>a." STAMP, false, false, false },
		{ "printf ours >>a", "printf our >a." STAMP, false, false, false },
		{ "printf 'our$' >>a", ":", false, false, true },
		{ "printf '2\\nours' >a", ":", false, false, true },
		{ "printf '1\\nours.' >a", ":", false, false, true },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct files_back b = { .ours = "ours" };
		char id[STORE_ID];
		struct place p;
		int fd = -1;

		place_open(&p, "/tmp");
		program(&p, true, "echo 1 >a");
		ASSERT_EQ(0, save(&p, NULL, id));
		program(&p, false, cases[i].since);
		ASSERT_EQ(0, back(&p, id, &b));
		EXPECT_EQ(1, b.aside);
		EXPECT_EQ(cases[i].differs ? 0 : 1, b.n_drop);
		EXPECT_EQ(cases[i].differs, b.n_said);
		program(&p, false, cases[i].then);
		if (cases[i].held)
			fd = open_in(&p, "a." STAMP, O_WRONLY);
		files_drop_ours(&b);
		if (fd >= 0)
			close(fd);
		EXPECT_EQ(!cases[i].dropped, is_there(&p, "a." STAMP)) {
			printf("# case %zu\n", i);
		}
		EXPECT_EQ(!cases[i].dropped, b.aside);
		EXPECT_EQ(!cases[i].dropped, b.n_said);
		EXPECT_TRUE(has(&p, "a", "1\n"));
		files_back_free(&b);
		place_close(&p);
	}
}

TEST(a_log_that_is_missing_or_not_complete_is_refused)
{
	char id[STORE_ID];
	struct files_save f;
	struct place p;
	int fd;

	place_open(&p, "/tmp");
	program(&p, true, "echo 1 >a");
	fd = open(p.log, O_WRONLY | O_APPEND);
	ASSERT_EQ(6, write(fd, "\0C/half", 7) - 1);	/* cut off by a full disk: no harm */
	ASSERT_EQ(0, save_of(&p, NULL, NULL, 0, id, &f));
	EXPECT_EQ(1, f.paths);
	close(fd);
	fd = open(p.log, O_WRONLY | O_APPEND);	/* it is another one now */
	ASSERT_EQ(4, write(fd, "\0L/", 4));
	close(fd);
	ASSERT_EQ(-ENODATA, save_of(&p, NULL, NULL, 0, id, &f));
	ASSERT_NE(NULL, strstr(f.why.text, "not complete"));
	ASSERT_EQ(0, unlink(p.log));
	ASSERT_EQ(-ENOENT, save_of(&p, NULL, NULL, 0, id, &f));
	ASSERT_NE(NULL, strstr(f.why.text, p.log));
	place_close(&p);
}

/* The tree is as it was before, and err and a sentence say why. */
static bool refused(struct place *p, const char *id, bool look_only, int err, const char *word)
{
	struct tree before = tree_of(p->root), after;
	struct files_back b = { .later = p->log, .look_only = look_only };
	int got = back(p, id, &b);
	bool ok = got == err && b.why.err == err && strstr(b.why.text, word);

	after = tree_of(p->root);
	ok &= before.n == after.n;
	for (size_t i = 0; ok && i < before.n; i++)
		ok = same(&before.node[i], &after.node[i], false) &&
		     before.node[i].ino == after.node[i].ino;
	if (!ok)
		printf("# %d (%s), wanted %d and '%s'; %zu paths were %zu\n", got, b.why.text, err, word,
		       after.n, before.n);
	free(before.node);
	free(after.node);
	files_back_free(&b);
	return ok;
}

TEST(without_permission_nothing_is_changed)
{
	char id[STORE_ID];
	struct place p;
	pid_t pid;
	int status;

	if (geteuid())
		SKIP(return, "not root");
	place_open(&p, "/tmp");
	program(&p, false, "mkdir mine theirs; chown 12345:12345 mine; chmod 755 theirs");
	program(&p, true, "echo 1 >theirs/a; echo 1 >mine/a; chown 12345:12345 mine/a theirs/a");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "echo 2 >theirs/a; echo 2 >mine/a; chown 12345:12345 mine/a theirs/a");
	program(&p, false, "chmod -R a+rX ../store ..");
	pid = fork();
	if (!pid) {
		struct why why = { 0 };

		if (setregid(12345, 12345) || setreuid(12345, 12345) ||
		    store_open(&p.s, p.store, 0, &why))
			_exit(2);
		_exit(!refused(&p, id, true, -EACCES, "theirs"));
	}
	waitpid(pid, &status, 0);
	ASSERT_EQ(0, status);
	ASSERT_EQ(0, put_back(&p, id, false));
	place_close(&p);
}

/* Everything could be done but one thing: what was done before it is undone. */
TEST(a_failure_in_the_middle_is_undone)
{
	char id[STORE_ID], path[128];
	struct place p;
	int fd, flags;

	place_open(&p, "/tmp");
	program(&p, true, "for i in a b c d; do mkdir $i; echo 1 >$i/x; ln -s x $i/l; echo 1 >$i/y;"
		"done; echo 1 >e");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, true, "rm -r b; for i in a c d; do echo 2 >$i/x; chmod 600 $i/y; echo >$i/z; done;"
		"echo 2 >e");
	snprintf(path, sizeof(path), "%s/e", p.root);
	fd = open(path, O_RDONLY);
	if (ioctl(fd, FS_IOC_GETFLAGS, &flags))
		SKIP(return, "a file system without flags");
	flags |= FS_IMMUTABLE_FL;
	if (ioctl(fd, FS_IOC_SETFLAGS, &flags))
		SKIP(return, "no immutable files (root?)");
	EXPECT_TRUE(refused(&p, id, false, -EPERM, "/e cannot be moved aside"));
	flags &= ~FS_IMMUTABLE_FL;
	ASSERT_EQ(0, ioctl(fd, FS_IOC_SETFLAGS, &flags));
	close(fd);
	ASSERT_EQ(0, put_back(&p, id, true));
	ASSERT_TRUE(has(&p, "b/x", "1\n") && has(&p, "a/x", "1\n") && has(&p, "e", "1\n"));
	place_close(&p);
}

/* The last thing that is done, the log, fails: all that was made, moved and set before is as it was. */
TEST(a_failure_at_the_end_is_undone)
{
	char id[STORE_ID];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, true, "mkdir d d/e; echo 1 >d/e/x; ln d/e/x d/y; ln -s x d/l; mkfifo d/f; echo 1 >m; echo 1 >c; "
		"mkdir k; echo 1 >k/n; chmod 640 m; touch -d 2001-01-01 m");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, true, "rm -r d; echo 2 >c; chmod 600 m; touch -d 2002-02-02 m; chmod 700 k; echo >later");
	strcpy(strrchr(p.log, '/'), "/missing/files");
	EXPECT_TRUE(refused(&p, id, false, -ENOENT, "/missing/files, cannot be written"));
	EXPECT_FALSE(is_there(&p, "d"));
	place_close(&p);
}

TEST(without_room_nothing_is_changed)
{
	char id[STORE_ID], small[128];
	struct place p;

	place_open(&p, "/tmp");
	snprintf(small, sizeof(small), "%s/small", p.root);
	ASSERT_EQ(0, mkdir(small, 0755));
	if (unshare(CLONE_NEWNS) || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("small", small, "tmpfs", 0, "size=4m"))
		SKIP(return, "no mounts (root?)");
	program(&p, true, "head -c 2500000 /dev/urandom >small/a; echo 1 >b");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "head -c 2500000 /dev/urandom >small/a; echo 2 >b");
	EXPECT_TRUE(refused(&p, id, true, -ENOSPC, "no room"));
	program(&p, false, "rm small/a");
	ASSERT_EQ(0, put_back(&p, id, false));
	/* One has room, two have not; nor have two parts of one. */
	program(&p, true, "rm small/a; for i in c d; do head -c 1200000 /dev/urandom >small/$i; done");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "for i in c d; do head -c 1200000 /dev/urandom >small/$i; done");
	EXPECT_TRUE(refused(&p, id, true, -ENOSPC, "no room"));
	program(&p, true, "rm small/*; for i in 0 2; do dd if=/dev/urandom of=small/e bs=1M seek=$i count=1 conv=notrunc; done");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "for i in 0 2; do dd if=/dev/urandom of=small/e bs=1M seek=$i count=1 conv=notrunc; done; "
		"head -c 700000 /dev/zero >small/f");
	EXPECT_TRUE(refused(&p, id, true, -ENOSPC, "no room"));
	/* A folder that something is mounted on stays where it is. */
	program(&p, true, "echo 1 >on");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "rm small/* on; mkdir on; mount --bind small on");
	EXPECT_TRUE(refused(&p, id, true, -EBUSY, "something is mounted there"));
	program(&p, false, "umount on; rmdir on");
	ASSERT_EQ(0, umount2(small, MNT_DETACH));
	place_close(&p);
}

/* The job's own folder is on another file system than what has to be moved aside. */
TEST(what_is_mounted_in_a_folder_of_the_job_stays_there)
{
	char id[STORE_ID], on[128];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, true, "mkdir out out/m");
	snprintf(on, sizeof(on), "%s/out/m", p.root);
	if (unshare(CLONE_NEWNS) || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("m", on, "tmpfs", 0, NULL))
		SKIP(return, "no mounts (root?)");
	program(&p, true, "echo 1 >out/m/x; echo 1 >out/y");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, true, "echo 2 >out/m/x; echo 2 >out/y");
	ASSERT_EQ(0, put_back(&p, id, true));
	EXPECT_TRUE(has(&p, "out/m/x", "1\n") && has(&p, "out/m/x." STAMP, "2\n"));
	EXPECT_TRUE(has(&p, "out/y", "1\n") && has(&p, "out." STAMP "/y", "2\n"));
	ASSERT_EQ(0, umount2(on, MNT_DETACH));
	place_close(&p);
}

static void damage(const struct place *p)
{
	char cmd[256];

	/* Every byte of pages in the segments, but not of what tells where they are. */
	snprintf(cmd, sizeof(cmd), "grep -rlF needle-in-the-file %s | xargs -r sed -i "
		 "s/needle-in-the-file/needlE-in-the-file/", p->store);
	if (system(cmd))
		printf("# no such page in the store\n");
}

TEST(a_damaged_store_changes_nothing)
{
	char id[STORE_ID];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, true, "echo 1 >a; echo needle-in-the-file >b; echo 1 >c");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "echo 2 >a; echo 2 >b; echo 2 >c");
	damage(&p);
	ASSERT_TRUE(refused(&p, id, false, -EBADMSG, "/b"));
	place_close(&p);
}

/* The checkpoint again, its list being another text. */
static int with_list(struct place *p, const char *id, const char *text, char again[STORE_ID])
{
	struct store_part part[2] = { { .name = "files" }, { .name = "files/log" } };
	struct store_checkpoint *c = NULL;
	struct store_object *o = NULL;
	struct store_writer *w;
	int err = store_checkpoint_open(p->s, id, &c);

	if (err)
		return err;
	part[1].ref = *store_checkpoint_find(c, part[1].name);
	err = store_writer_open(p->s, 0, &w) ?: store_object_begin(w, &o) ?:
	      store_object_write(o, 0, text, strlen(text)) ?:
	      store_object_end(o, 0, &part[0].ref) ?: store_writer_flush(w) ?:
	      store_publish(p->s, part, 2, "{}", again);
	store_writer_close(w);
	store_checkpoint_close(c);
	return err;
}

TEST(a_list_of_another_version_is_refused_with_ours)
{
	char id[STORE_ID], again[STORE_ID];
	struct place p;

	place_open(&p, "/tmp");
	program(&p, true, "echo 1 >a");
	ASSERT_EQ(0, save(&p, NULL, id));
	program(&p, false, "echo 2 >a");
	ASSERT_EQ(0, with_list(&p, id, "singvgpu-files 7\nwhat this version has\n", again));
	ASSERT_TRUE(refused(&p, again, false, -EPROTONOSUPPORT,
			    "of version 7, this program reads version 1"));
	ASSERT_EQ(0, with_list(&p, id, "what is none\n", again));
	ASSERT_TRUE(refused(&p, again, false, -EPROTO, "is broken"));
	ASSERT_EQ(0, with_list(&p, id, "singvgpu-files 1\nboot x 0\n", again));
	ASSERT_TRUE(refused(&p, again, false, -EPROTO, "is broken"));
	place_close(&p);
}

static void die(void *arg, const char *phase, uint64_t done, uint64_t total)
{
	int *left = arg;

	(void)phase;
	(void)done;
	(void)total;
	if (!--*left)
		kill(getpid(), SIGKILL);
}

TEST(killed_in_the_middle_it_can_be_done_again)
{
	for (int at = 1; at <= 9; at += 2) {
		struct tree cut, after;
		char id[STORE_ID];
		struct place p;
		int status, left = at;
		pid_t pid;

		place_open(&p, "/tmp");
		program(&p, true, "mkdir d; for i in 0 1 2 3 4 5 6 7 8 9; do echo $i >d/$i; done");
		ASSERT_EQ(0, save(&p, NULL, id));
		cut = tree_of(p.root);
		program(&p, true, "for i in 0 1 2 3 4 5 6 7 8 9; do echo new$i >d/$i; done");
		pid = fork();
		if (!pid) {
			struct files_back b = { .progress = die, .arg = &left };

			back(&p, id, &b);
			_exit(0);
		}
		waitpid(pid, &status, 0);
		ASSERT_TRUE(WIFSIGNALED(status));
		ASSERT_EQ(0, put_back(&p, id, false));
		after = tree_of(p.root);
		for (size_t i = 0; i < cut.n; i++)
			ASSERT_TRUE(same(&cut.node[i], find(&after, cut.node[i].path), true));
		for (int i = 0; i < 10; i++) {
			char name[64], text[16];

			sprintf(name, "d." STAMP "/%d", i);
			sprintf(text, "new%d\n", i);
			ASSERT_TRUE(has(&p, name, text));
		}
		free(cut.node);
		free(after.node);
		place_close(&p);
	}
}

TEST_HARNESS_MAIN
