// SPDX-License-Identifier: Apache-2.0
/*
 * store_open.c - stores that cannot be opened or created, by whom, and what is told then
 */
#include "store_test.h"

static struct why why;

static struct why *why_fresh(void)
{
	why_clear(&why);
	return &why;
}

static int try_open(const char *dir, unsigned int flags)
{
	struct store *s;
	int err = store_open(&s, dir, flags, why_fresh());

	store_close(s);
	return err;
}

TEST(stores_that_are_none_are_refused_by_name)
{
	struct store_params bad = { .zstd = 20 };
	struct disk_head h;
	struct store *s;
	char dir[256];

	snprintf(dir, sizeof(dir), "%s/s", new_scratch());
	ASSERT_EQ(-ENOENT, try_open(dir, 0));
	ASSERT_NE(NULL, strstr(why.text, "no store at"));
	ASSERT_EQ(-ENOENT, try_open(scratch, 0));
	ASSERT_NE(NULL, strstr(why.text, "is no store"));
	ASSERT_EQ(-ENOTEMPTY, (shell("touch %s/file", scratch),
			       store_create(scratch, NULL, why_fresh())));
	ASSERT_EQ(-EINVAL, store_create(dir, &bad, why_fresh()));
	ASSERT_EQ(-ENOENT, store_create("/nonexistent/s", NULL, why_fresh()));
	make_store(dir, 0);
	ASSERT_EQ(-EEXIST, store_create(dir, NULL, why_fresh()));
	s = open_store(dir, 0);
	h = s->super;
	ASSERT_EQ(42, store_seed(s));
	ASSERT_EQ(-EBADF, store_remove(s, "0123"));
	store_close(s);
	for (int older = 0; older < 2; older++) {
		h.version = older ? STORE_VERSION - 1 : STORE_VERSION + 1;
		h.check = store_check64(&h, offsetof(struct disk_head, check));
		poke(dir, "store", 0, &h, sizeof(h));
		ASSERT_EQ(-EPROTONOSUPPORT, try_open(dir, STORE_RW));
		ASSERT_NE(NULL, strstr(why.text, older ? "is of version 0," : "is of version 2,"));
		ASSERT_NE(NULL, strstr(why.text, "this program reads version 1"));
	}
	poke(dir, "store", 20, "x", 1);
	ASSERT_EQ(-EBADMSG, try_open(dir, 0));
	drop_scratch();
}

TEST(a_failure_is_told_with_its_errno_and_the_first_is_kept)
{
	struct why two = { 0 };
	struct store *s;
	char dir[256];

	snprintf(dir, sizeof(dir), "%s/s", new_scratch());
	ASSERT_EQ(-ENOENT, try_open(dir, 0));
	ASSERT_EQ(-ENOENT, why.err);
	ASSERT_EQ(-ENOENT, store_why()->err);
	ASSERT_EQ(0, strcmp(store_why()->text, why.text));
	make_store(dir, 0);
	s = open_store(dir, 0);
	ASSERT_EQ(-EBADF, store_failed(&two, store_remove(s, "0123")));
	ASSERT_EQ(-EBADF, two.err);
	ASSERT_NE(NULL, strstr(two.text, "for reading only"));
	store_close(s);
	ASSERT_EQ(-ENOENT, store_open(&s, "/nonexistent", 0, &two));
	ASSERT_EQ(-EBADF, two.err);
	ASSERT_NE(NULL, strstr(two.text, "for reading only"));
	/* The sentence of another failure is not this one's; no failure has none. */
	ASSERT_EQ(-EIO, store_failed(why_fresh(), -EIO));
	ASSERT_EQ(0, strcmp(why.text, strerror(EIO)));
	ASSERT_EQ(0, store_failed(why_fresh(), 0));
	ASSERT_EQ(0, why.err);
	drop_scratch();
}

/* A checkpoint of one page by whoever finds no store and makes one, as `singvgpu checkpoint` does. */
static int publish_first(const char *dir, unsigned int me)
{
	static uint8_t page[PAGE];
	struct store_part part = { .name = "memory" };
	struct store_writer *w;
	struct store *s = NULL;
	char id[STORE_ID];
	int err = store_create(dir, NULL, why_fresh());

	if (err && err != -EEXIST)
		return err;
	err = store_open(&s, dir, STORE_RW | STORE_WAIT, why_fresh());
	if (err)
		return err;
	fill(page, sizeof(page), me);
	err = store_writer_open(s, STORE_ONE_THREAD, &w);
	if (!err)
		err = put_at(w, page, sizeof(page), &part.ref);
	if (!err)
		err = store_writer_flush(w);
	store_writer_close(w);
	if (!err)
		err = store_publish(s, &part, 1, "{}", id);
	store_close(s);
	return err;
}

static const char *beside_dir;
static int beside_result;

/* At the moment at which the store would get its head another process gets there first. */
static int create_beside(struct io_event *e)
{
	if (e->op != IO_RENAME || strcmp(e->to, "store"))
		return 0;
	store_io_hook = NULL;
	beside_result = publish_first(beside_dir, 1);
	return 0;
}

static int count_whole(struct store *s)
{
	struct store_verify_stats st;

	NEED(!store_verify(s, NULL, NULL, NULL, NULL, &st));
	return st.checkpoints;
}

TEST(who_comes_second_uses_the_store_of_the_first)
{
	struct store *s;
	char dir[256];

	snprintf(dir, sizeof(dir), "%s/s", new_scratch());
	beside_dir = dir;
	beside_result = 1;
	store_io_hook = create_beside;
	ASSERT_EQ(-EEXIST, store_create(dir, NULL, why_fresh()));
	ASSERT_EQ(0, beside_result);
	ASSERT_EQ(0, publish_first(dir, 2));
	s = open_store(dir, STORE_RW);
	ASSERT_EQ(2, count_whole(s));
	store_close(s);
	ASSERT_EQ(0, (shell("test -z \"$(ls %s/tmp)\"", dir), 0));
	drop_scratch();
}

TEST(several_first_checkpoints_at_once_are_all_there)
{
	enum { ROUNDS = 60, AT_ONCE = 4 };
	const char *base = new_scratch();
	char dir[256];

	for (int round = 0; round < ROUNDS; round++) {
		pid_t pid[AT_ONCE];
		struct store *s;
		int go[2], status;
		char byte;

		snprintf(dir, sizeof(dir), "%s/%d", base, round);
		ASSERT_EQ(0, pipe(go));
		for (int i = 0; i < AT_ONCE; i++) {
			pid[i] = fork();
			if (pid[i])
				continue;
			close(go[1]);
			if (read(go[0], &byte, 1) < 0)
				_exit(2);
			status = publish_first(dir, i);
			if (status)
				fprintf(stderr, "# %s\n", why.text);
			_exit(!!status);
		}
		close(go[0]);
		close(go[1]);
		for (int i = 0; i < AT_ONCE; i++) {
			ASSERT_EQ(pid[i], waitpid(pid[i], &status, 0));
			EXPECT_EQ(0, status);
		}
		s = open_store(dir, STORE_RW);
		ASSERT_EQ(AT_ONCE, count_whole(s));
		store_close(s);
	}
	drop_scratch();
}

TEST(what_is_no_file_is_not_waited_for)
{
	static const char *const names[] = { "lock", "store" };
	struct store *s;
	char dir[256];

	alarm(60);
	for (int i = 0; i < 2; i++) {
		snprintf(dir, sizeof(dir), "%s/s", new_scratch());
		make_store(dir, 0);
		shell("rm %s/%s; mkfifo %s/%s", dir, names[i], dir, names[i]);
		EXPECT_EQ(-ENXIO, try_open(dir, 0));
		EXPECT_EQ(-ENXIO, store_open(&s, dir, STORE_RW | STORE_WAIT, why_fresh()));
		EXPECT_NE(NULL, strstr(why.text, dir));
		drop_scratch();
	}
	alarm(0);
}

TEST(another_users_lock_is_not_waited_for)
{
	char dir[256], lock[300];
	struct store *s;
	int fd;

	if (geteuid())
		SKIP(return, "only root has stores of others");
	alarm(60);
	snprintf(dir, sizeof(dir), "%s/s", new_scratch());
	make_store(dir, 0);
	snprintf(lock, sizeof(lock), "%s/lock", dir);
	fd = open(lock, O_RDWR | O_CLOEXEC);
	ASSERT_EQ(0, flock(fd, LOCK_EX));
	ASSERT_EQ(0, chown(lock, 65534, 65534));
	EXPECT_EQ(-EBUSY, store_open(&s, dir, STORE_RW | STORE_WAIT, why_fresh()));
	EXPECT_NE(NULL, strstr(why.text, dir));
	/* Nor one of ours that others can open, and hold. */
	ASSERT_EQ(0, chown(lock, 0, 0));
	ASSERT_EQ(0, chmod(lock, 0644));
	EXPECT_EQ(-EBUSY, store_open(&s, dir, STORE_RW | STORE_WAIT, why_fresh()));
	close(fd);
	alarm(0);
	drop_scratch();
}

TEST_HARNESS_MAIN
