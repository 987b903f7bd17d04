// SPDX-License-Identifier: Apache-2.0
/*
 * store_trust.c - store_open_trusted refuses stores that other users could have made or changed
 *
 * Each case changes a good store by a shell command ($S is the store, $T its parent directory), and
 * has the text that the refusal must contain; "": the store must still be accepted.
 */
#include "store_test.h"

#define OTHER 12345

static char dir[256], id[STORE_ID];
static struct why why;

/* A store with a checkpoint of one part, which fills a segment. */
static void good_store(void)
{
	static uint8_t data[64 * 4096];
	struct store_part part = { .name = "part" };
	struct store_writer *w;
	struct store *s;

	snprintf(dir, sizeof(dir), "%s/s", new_scratch());
	make_store(dir, 0);
	s = open_store(dir, STORE_RW);
	fill(data, sizeof(data), 1);
	NEED_OK(store_writer_open(s, 0, &w));
	NEED_OK(put_at(w, data, sizeof(data), &part.ref));
	NEED_OK(store_writer_flush(w));
	NEED_OK(store_publish(s, &part, 1, "{}", id));
	store_writer_close(w);
	store_close(s);
}

/* Reads all of the checkpoint, as a restore does. */
static int read_all(uid_t also)
{
	static uint8_t data[64 * 4096];
	struct store_checkpoint *c = NULL;
	struct store_reader *r = NULL;
	const struct store_ref *ref;
	struct store *s;
	ssize_t n;
	int err = store_open_trusted(&s, dir, 0, also, &why);

	if (err)
		return err;
	err = store_checkpoint_open(s, id, &c);
	ref = err ? NULL : store_checkpoint_find(c, "part");
	if (ref)
		err = store_object_open(s, ref, &r);
	n = r ? store_read(r, 0, data, sizeof(data)) : 0;
	err = n < 0 ? n : err;
	store_failed(&why, err);
	if (r)
		store_reader_close(r);
	store_checkpoint_close(c);
	store_close(s);
	return err;
}

struct change {
	uid_t also;
	const char *command, *named;
};

static const struct change changes[] = {
	{ 0, "true", "" },
	{ 0, "chown 12345 $S", "its directory belongs to user 12345" },
	{ 0, "chown 12345 $S", "--trust-owner 12345" },
	{ 0, "chown 12345 $S", "store pull" },
	{ OTHER, "chown 12345 $S", "" },
	{ OTHER, "chown 12346 $S", "belongs to user 12346" },
	{ OTHER, "chown -R 12345 $S", "" },
	{ OTHER, "chown -R 12345 $S; chmod g+w $S", "may write to its directory" },
	{ 0, "chmod g+w $S", "may write to its directory" },
	{ 0, "chmod o+w $S", "may write to its directory" },
	{ 0, "chown 12345 $S/seg", "seg belongs to user 12345" },
	{ 0, "chmod g+w $S/seg", "may write to seg" },
	{ 0, "chown 12345 $S/cp", "cp belongs to user 12345" },
	{ 0, "chmod o+w $S/cp", "may write to cp" },
	{ 0, "chown 12345 $S/tmp", "tmp belongs to user 12345" },
	{ 0, "mkdir $S/logs; chown 12345 $S/logs", "logs belongs to user 12345" },
	{ 0, "mkdir $S/logs; chmod 1777 $S/logs", "may write to logs" },
	{ 0, "mv $S/seg $T/seg; ln -s $T/seg $S/seg", "seg in it is no directory" },
	{ 0, "chown 12345 $S/store", "store belongs to user 12345" },
	{ 0, "chmod g+w $S/store", "may write to store" },
	{ 0, "chown 12345 $S/lock", "lock belongs to user 12345" },
	{ 0, "mv $S/store $T/; ln -s $T/store $S/store", "store is a symbolic link" },
	{ 0, "chown 12345 $S/seg/*", "seg/* belongs to user 12345" },
	{ 0, "chmod g+w $S/seg/*", "may write to seg/" },
	{ 0, "f=$(ls $S/seg); mv $S/seg/$f $T/; ln -s $T/$f $S/seg/", "is a symbolic link" },
	{ 0, "chown 12345 $S/cp/*", "cp/* belongs to user 12345" },
	{ OTHER, "chown 12345 $S/seg/* $S/cp/*", "" },
	{ 0, "chown 12345 $T", "/s* belongs to user 12345" },
	{ OTHER, "chown 12345 $T", "" },
	{ 0, "chmod 777 $T", "other users may write to /" },
	{ 0, "chmod 1777 $T", "" },
	{ 0, "chown 12345 $T; chmod 1777 $T", "belongs to user 12345" },
	{ OTHER, "chown 12345 $S $T; chmod 775 $T", "may write to /" },
};

TEST(stores_that_others_can_change_are_refused_by_name)
{
	if (geteuid())
		SKIP(return, "not root");
	for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
		const struct change *c = &changes[i];
		const char *star = strchr(c->named, '*');
		int err, want = *c->named ? -EPERM : 0;

		good_store();
		shell("S=%s T=%s; %s", dir, scratch, c->command);
		why_clear(&why);
		err = read_all(c->also);
		EXPECT_EQ(want, err) {
			printf("# after '%s', trusting %u: %s\n", c->command, c->also, why.text);
		}
		EXPECT_TRUE(!err || strstr(why.text, star ? star + 1 : c->named)) {
			printf("# after '%s': %s\n", c->command, why.text);
		}
		drop_scratch();
	}
}

static int as_other(uid_t also)
{
	int status;
	pid_t pid = fork();

	if (!pid)
		_exit(setgid(OTHER) || setuid(OTHER) ? 200 : -read_all(also));
	waitpid(pid, &status, 0);
	return -WEXITSTATUS(status);
}

TEST(a_user_trusts_root_and_nobody_else)
{
	if (geteuid())
		SKIP(return, "not root");
	good_store();
	shell("chmod 755 %s; chmod -R go+rX %s", scratch, dir);
	ASSERT_EQ(0, as_other(0));
	shell("chown -R 12345 %s", dir);
	ASSERT_EQ(0, as_other(0));
	ASSERT_EQ(-EPERM, read_all(0));
	shell("chown -R 12346 %s", dir);
	ASSERT_EQ(-EPERM, as_other(0));
	ASSERT_EQ(0, as_other(12346));
	drop_scratch();
}

/* What is put in the store's place later does not matter to who has it open. */
TEST(what_comes_after_the_check_is_checked_too)
{
	struct store_checkpoint *c;
	struct store_reader *r;
	struct store *s;

	if (geteuid())
		SKIP(return, "not root");
	good_store();
	ASSERT_EQ(0, store_open_trusted(&s, dir, 0, 0, &why));
	shell("chown 12345 %s/seg/*", dir);
	ASSERT_EQ(0, store_checkpoint_open(s, id, &c));
	ASSERT_EQ(-EPERM, store_object_open(s, store_checkpoint_find(c, "part"), &r));
	store_checkpoint_close(c);
	shell("chown 0 %s/seg/*; mv %s %s.away; mkdir %s", dir, dir, dir, dir);
	ASSERT_EQ(0, store_checkpoint_open(s, id, &c));
	ASSERT_EQ(0, store_object_open(s, store_checkpoint_find(c, "part"), &r));
	store_reader_close(r);
	store_checkpoint_close(c);
	store_close(s);
	drop_scratch();
}

TEST_HARNESS_MAIN
