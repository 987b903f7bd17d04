// SPDX-License-Identifier: Apache-2.0
/*
 * files_forged.c - forged lists and logs of files are refused before any file is changed
 *
 * Each case is a checkpoint with a list of a good file, which would be made, and then a bad entry.
 * In lists and commands $R is a folder that the job had, $T one that it had not; in lists $L is a name
 * and $P a path that are too long, $V an attribute's value of 65537 bytes.
 */
#include "../../harness/leaks.h"
#include "../../harness/patience.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "files.h"

static char base[64], root[96], other[96], dir[96], job_log[96];
static struct store *store;

static void fatal(const char *what)
{
	printf("# %s: %m; %s\n", what, store_why()->text);
	exit(KSFT_FAIL);
}

static char *repeat(char *to, const char *what, int n)
{
	while (n--)
		to = stpcpy(to, what);
	return to;
}

/* text with $R and its like as they are; its end in *end. */
static void expand(const char *text, char *to, char **end)
{
	for (; *text; text++) {
		if (*text != '$' || !text[1] || !strchr("RTLPV", text[1])) {
			*to++ = *text;
			continue;
		}
		switch (*++text) {
		case 'L':
			to = repeat(to, "x", NAME_MAX + 1);
			break;
		case 'P':
			to = repeat(to, "/folder", PATH_MAX / 7 + 1);
			break;
		case 'V':
			to = repeat(to, "00", 65536 + 1);
			break;
		default:
			to = stpcpy(to, *text == 'R' ? root : other);
		}
	}
	*to = '\0';
	if (end)
		*end = to;
}

static void shell(const char *command)
{
	char text[2048];

	expand(command, text, NULL);
	if (system(text))
		fatal(text);
}

static void place_open(void)
{
	struct why why = { 0 };

	strcpy(base, "/tmp/svforged.XXXXXX");
	if (!mkdtemp(base))
		fatal("/tmp");
	snprintf(root, sizeof(root), "%s/root", base);
	snprintf(other, sizeof(other), "%s/other", base);
	snprintf(dir, sizeof(dir), "%s/store", base);
	snprintf(job_log, sizeof(job_log), "%s/log", base);
	shell("mkdir $R $T; echo theirs >$T/x; echo theirs >$T/y");
	if (store_create(dir, NULL, &why) ||
	    store_open_trusted(&store, dir, STORE_RW, 0, &why))
		fatal(why.text);
}

static void place_close(void)
{
	char command[128];

	store_close(store);
	snprintf(command, sizeof(command), "rm -rf %s", base);
	if (system(command))
		fatal(command);
}

static void put(struct store_writer *w, const void *data, size_t len, uint64_t size,
		struct store_ref *ref)
{
	struct store_object *o;

	if (store_object_begin(w, &o) || (len && store_object_write(o, 0, data, len)) ||
	    store_object_end(o, size, ref))
		fatal("store");
}

/* The folders above and the file that every list begins with; "<" in front: the lines come first. */
static size_t list_of(char *text, const char *lines, const char *log)
{
	bool first = *lines == '<';
	char *end = text + sprintf(text, "singvgpu-files 1\nboot other 0\nlog %s\n", log);

	if (first)
		expand(lines + 1, end, &end);
	end += sprintf(end, "p 1777 0 0 0 /tmp\np 700 0 0 0 %s\np 755 0 0 0 %s\n"
		       "r 644 0 0 0 %s/a 5 0 0 0 0 0000000000000001\n", base, root, root);
	if (!first)
		expand(lines, end, &end);
	return end - text;
}

/* sizes: of the list and of the log, 0: as they are. */
static void publish(const char *lines, const char *log, const uint64_t sizes[2], char id[STORE_ID])
{
	struct store_part part[4] = { { .name = "files" }, { .name = "files/0000000000000001" },
				      { .name = "files/0000000000000003" }, { .name = "files/log" } };
	static char text[1 << 18];
	struct store_writer *w;

	if (store_writer_open(store, 0, &w))
		fatal("store");
	put(w, text, list_of(text, lines, log), sizes[0], &part[0].ref);
	put(w, "text\n", 5, 0, &part[1].ref);
	put(w, "different", 9, 0, &part[2].ref);
	put(w, "", 0, sizes[1], &part[3].ref);
	if (store_writer_flush(w) || store_publish(store, part, 4, "{}", id))
		fatal("store");
	store_writer_close(w);
}

static int put_back(const char *id, bool look_only, struct why *why)
{
	struct files_back b = { .store = store, .stamp = "singvgpu-test", .tag = "test", .look_only = look_only,
				.later = access(job_log, F_OK) ? NULL : job_log };
	int err = store_checkpoint_open(store, id, &b.checkpoint) ?: files_put_back(&b);

	*why = b.why;
	files_back_free(&b);
	store_checkpoint_close(b.checkpoint);
	return err;
}

/* What is in the folders, and what it is: one number. */
static uint64_t state;

static int visit(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	char value[64] = "";
	uint64_t v[] = { st->st_mode, st->st_uid, st->st_gid, st->st_size, st->st_nlink,
			 st->st_ino, S_ISDIR(st->st_mode) ? 0 : st->st_mtim.tv_nsec };

	(void)type;
	(void)ftw;
	for (const char *s = path; *s; s++)
		state = state * 31 + *s;
	for (size_t i = 0; i < sizeof(v) / sizeof(*v); i++)
		state = state * 31 + v[i];
	lgetxattr(path, "security.capability", value, sizeof(value));
	for (int i = 0; i < 64; i++)
		state = state * 31 + value[i];
	return 0;
}

static uint64_t state_now(void)
{
	state = 0;
	nftw(root, visit, 30, FTW_PHYS);
	nftw(other, visit, 30, FTW_PHYS);
	return state;
}

struct forged {
	const char *lines, *named;
	const char *before;	/* a command */
	uint64_t sizes[2];
};

#define FILE_LINE(mode, path) "r " mode " 0 0 0 " path " 5 0 0 0 0 0000000000000001\n"
#define LINK_LINE(mode, path) "c " mode " 0 0 0 " path " 5 0 0 0 0 0000000000000001\n"
#define ATTR(name) FILE_LINE("755", "$R/x") "x " name " 0100000280000000000000000000000000000000\n"

static const struct forged lists[] = {
	{ FILE_LINE("4755", "$R/x"), "$R/x: no file is given the set-user-ID", "", { 0 } },
	{ FILE_LINE("2755", "$R/x"), "$R/x: no file is given the set-user-ID", "", { 0 } },
	{ "D 2755 0 0 0 $R/d\n", "$R/d: no file is given the set-user-ID", "", { 0 } },
	{ FILE_LINE("4755", "$R/x"), "$R/x: no file is given", "echo text >$R/x", { 0 } },
	{ FILE_LINE("20666", "$R/null"), "$R/null: its mode has more", "", { 0 } },
	{ "n 666 0 0 0 $R/null 1 3\n", "line 8 is of kind 'n'", "", { 0 } },
	{ LINK_LINE("644", "$R/x"), "$R/x: it is no link of CRIU's", "", { 0 } },
	{ LINK_LINE("644", "$R/link_remap.x"), "link_remap.x: it is no link of CRIU's", "", { 0 } },
	{ LINK_LINE("644", "$R/link_remap.1x"), "it is no link of CRIU's", "", { 0 } },
	{ LINK_LINE("644", "$R/link_remap.12345678901"), "it is no link of CRIU's", "", { 0 } },
	{ LINK_LINE("644", "$R/d/../link_remap.1"), "/link_remap.1: the path", "", { 0 } },
	{ "c 644 0 0 0 $R/link_remap.1 9 0 0 0 0 0000000000000003\n",
	  "link_remap.1: it has another content than $R/a", "", { 0 } },
	{ LINK_LINE("4755", "$R/link_remap.1"), "no file is given the set-user-ID", "", { 0 } },
	{ LINK_LINE("644", "$R/d/link_remap.1"), "the list does not have the folder that it lies in",
	  "mkdir $R/d", { 0 } },
	{ "l 777 0 0 0 $R/l $T\n" LINK_LINE("644", "$R/l/link_remap.1"),
	  "link_remap.1: the folder that it lies in is a symbolic link", "ln -s $T $R/l", { 0 } },
	{ "p 755 0 0 0 $R/l\n" LINK_LINE("644", "$R/l/link_remap.1"),
	  "$R/l was a folder at the checkpoint and is a symbolic link now", "ln -s $T $R/l", { 0 } },
	{ "<" LINK_LINE("644", "/proc/link_remap.1"), "nothing is put back there", "", { 0 } },
	{ "c 644 0 0 0 $R/link_remap.1 6 0 0 0 0 0000000000000001\n", "its content has another size",
	  "", { 0 } },
	{ "h 644 0 0 0 $R/h $R/link_remap.1\n" LINK_LINE("644", "$R/link_remap.1"),
	  "$R/h: it is a hard link", "", { 0 } },
	{ "b 666 0 0 0 $R/disk 8 0\n", "line 8 is of kind 'b'", "", { 0 } },
	{ FILE_LINE("644", "relative"), "relative: the path is not absolute", "", { 0 } },
	{ FILE_LINE("644", "$R/d/../../other/z"), "/other/z: the path", "mkdir $R/d", { 0 } },
	{ FILE_LINE("644", "$R/b/.."), "/..: the path", "", { 0 } },
	{ FILE_LINE("644", "$R/b/./z"), "/b/./z: the path", "", { 0 } },
	{ FILE_LINE("644", "$R/b//z"), "/b//z: the path", "", { 0 } },
	{ FILE_LINE("644", "$R/b/"), "/b/: the path", "", { 0 } },
	{ "a $R/b/../../other/x\n", "/x: the path", "", { 0 } },
	{ "a $R/$L\n", "x: the path", "", { 0 } },
	{ "a $R$P\n", ": the path is not absolute", "", { 0 } },
	{ "l 777 0 0 0 $R/l $T\n" FILE_LINE("644", "$R/l/x"),
	  "$R/l/x: the folder that it lies in is a symbolic link", "", { 0 } },
	{ "l 777 0 0 0 $R/l $T\n" FILE_LINE("644", "$R/l/x"),
	  "$R/l/x: the folder that it lies in is a symbolic link", "ln -s $T $R/l", { 0 } },
	{ "p 755 0 0 0 $R/l\n" FILE_LINE("644", "$R/l/x"),
	  "$R/l was a folder at the checkpoint and is a symbolic link now", "ln -s $T $R/l", { 0 } },
	{ FILE_LINE("644", "$R/l/x"), "$R/l/x: the list does not have the folder that it lies in",
	  "ln -s $T $R/l", { 0 } },
	{ "a $R/d\n" FILE_LINE("644", "$R/d/x"), "$R/d/x: the list does not have the folder",
	  "", { 0 } },
	{ "h 644 0 0 0 $R/h $T/x\n", "$R/h: it is a hard link to what is no file in the list",
	  "", { 0 } },
	{ "h 644 0 0 0 $R/h $R\n", "$R/h: it is a hard link", "", { 0 } },
	{ "a $R/gone\nh 644 0 0 0 $R/h $R/gone\n", "$R/h: it is a hard link", "", { 0 } },
	{ "h 644 0 0 0 $R/h $R/z\n" FILE_LINE("644", "$R/z"), "$R/h: it is a hard link", "", { 0 } },
	{ ATTR("security.capability"), "$R/x: it has an attribute that is never put back", "", { 0 } },
	{ ATTR("security.selinux"), "$R/x: it has an attribute that is never put back", "", { 0 } },
	{ ATTR("trusted.overlay.redirect"), "$R/x: it has an attribute", "", { 0 } },
	{ ATTR("user.$L"), "$R/x: it has an attribute that is too long", "", { 0 } },
	{ FILE_LINE("755", "$R/x") "x user.a $V\n", "$R/x: it has an attribute that is too long",
	  "", { 0 } },
	{ "l 777 0 0 0 $R/l $T\nx user.a 00\n", "$R/l: a symbolic link has no attributes", "", { 0 } },
	{ "<" FILE_LINE("644", "/proc/sys/kernel/core_pattern"), "nothing is put back there", "", { 0 } },
	{ "<" FILE_LINE("644", "/dev/svforged"), "/dev/svforged: nothing is put back there", "", { 0 } },
	{ "r 644 0 0 0 $R/x 6 0 0 0 0 0000000000000001\n", "$R/x: its content has another size",
	  "", { 0 } },
	{ "r 644 0 0 0 $R/x 5 0 0 0 0 0000000000000002\n", "$R/x: its content is not in the checkpoint",
	  "", { 0 } },
	{ "r 644 4294967295 0 0 $R/x 5 0 0 0 0 0000000000000001\n", "line 8 cannot be", "", { 0 } },
	{ "r 644 0 4294967296 0 $R/x 5 0 0 0 0 0000000000000001\n", "line 8 cannot be", "", { 0 } },
	{ FILE_LINE("44444444444", "$R/x"), "line 8 cannot be", "", { 0 } },
	{ FILE_LINE("644", "$R/x%00y"), "line 8 cannot be", "", { 0 } },
	{ FILE_LINE("644", "$R/x%0"), "line 8 cannot be", "", { 0 } },
	{ "r 644 0 0 99999999999999999999 $R/x 5 0 0 0 0 0000000000000001\n", "line 8 cannot be", "", { 0 } },
	{ "r 644 0 0 0 $R/x 5 0 0 0 0\n", "line 8 cannot be", "", { 0 } },
	{ "a $R/x more\n", "line 8 cannot be", "", { 0 } },
	{ "a $R/z\na $R/b\n", "line 9 cannot be", "", { 0 } },
	{ "a $R/a\n", "line 8 cannot be", "", { 0 } },
	{ "<x user.a 01\n", "line 4 cannot be", "", { 0 } },
	{ FILE_LINE("644", "$R/x") "x user.a 010\n", "line 9 cannot be", "", { 0 } },
	{ FILE_LINE("644", "$R/x") "x user.a 0g\n", "line 9 cannot be", "", { 0 } },
	{ FILE_LINE("644", "$R/x") "x user.a 01 02\n", "line 9 cannot be", "", { 0 } },
	{ FILE_LINE("644", "$R/x") "x\n", "line 9 cannot be", "", { 0 } },
	{ "", "larger than any job's", "", { 1ull << 40, 0 } },
	{ "", "larger than any job's", "", { 0, 1ull << 40 } },
};

/* Refused by what it names, whether one only looks or not, and all is as it was. */
static bool refused(const struct forged *f, const char *id)
{
	struct why why;
	char named[512];
	bool ok = true;

	expand(f->named, named, NULL);
	for (int look_only = 1; look_only >= 0; look_only--) {
		uint64_t before = state_now();
		int err = put_back(id, look_only, &why);

		if (err < 0 && strstr(why.text, named) && state_now() == before)
			continue;
		ok = false;
		printf("# %s%s: %d (%s), wanted '%s'%s\n", f->lines, look_only ? "(looked)" : "", err,
		       why.text, named, state_now() == before ? "" : "; and something was touched");
	}
	return ok;
}

TEST(forged_lists_are_refused_by_name_with_nothing_written)
{
	if (geteuid())
		SKIP(return, "not root");
	unlink("/dev/svforged");	/* of a run that failed */
	for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
		char id[STORE_ID];

		place_open();
		shell(lists[i].before);
		publish(lists[i].lines, "-", lists[i].sizes, id);
		EXPECT_TRUE(refused(&lists[i], id));
		place_close();
	}
	EXPECT_NE(0, access("/dev/svforged", F_OK));
}

/* What a log says of the time after the cut is kept aside: it must not reach elsewhere, either. */
static const struct forged logs[] = {
	{ "C$T/../other/x", "other/x is no absolute path", "", { 0 } },
	{ "T$T/.", "other/. is no absolute path", "", { 0 } },
	{ "C$T/x", "log belongs to user 12345", "chown 12345 $R/../log", { 0 } },
	{ "C$T/x", "other users may write to", "chmod g+w $R/../log", { 0 } },
	{ "C$T/x", "0123456789abcdef belongs to user 12345",
	  "mkdir -m 711 $R/../store/logs; mv $R/../log $R/../store/logs/0123456789abcdef; "
	  "chown 12345 $R/../store/logs/0123456789abcdef", { 0 } },
};

TEST(forged_logs_are_refused_by_name_with_nothing_written)
{
	if (geteuid())
		SKIP(return, "not root");
	for (size_t i = 0; i < sizeof(logs) / sizeof(*logs); i++) {
		char text[512] = "", *end = text + 1, id[STORE_ID];
		int fd;

		place_open();
		expand(logs[i].lines, end, &end);
		fd = open(job_log, O_CREAT | O_WRONLY, 0600);
		if (write(fd, text, end + 1 - text) != end + 1 - text)
			fatal(job_log);
		close(fd);
		shell(logs[i].before);
		publish("", "0123456789abcdef", logs[i].sizes, id);
		EXPECT_TRUE(refused(&logs[i], id));
		place_close();
	}
}

static bool says(const char *command)
{
	char text[2048];

	expand(command, text, NULL);
	return !system(text);
}

/* A link where the job had made a folder is kept aside itself, and not what it leads to. */
TEST(a_link_in_place_of_a_folder_of_the_job_is_moved_aside)
{
	static const uint64_t sizes[2];
	char id[STORE_ID];
	struct why why;

	place_open();
	shell("ln -s $T $R/d");
	publish("D 755 0 0 0 $R/d\n" FILE_LINE("644", "$R/d/x") "a $R/d/y\n", "-", sizes, id);
	ASSERT_EQ(0, put_back(id, false, &why)) {
		printf("# %s\n", why.text);
	}
	ASSERT_TRUE(says("[ -L $R/d.singvgpu-test ] && [ ! -L $R/d ] && grep -q text $R/d/x"));
	ASSERT_TRUE(says("[ \"$(cat $T/x $T/y)\" = 'theirs\ntheirs' ] && [ ! -e $R/d/y ]"));
	place_close();
}

/* What is not to be there is not looked for behind a link that has come since. */
TEST(what_a_link_leads_to_is_not_moved_aside)
{
	static const uint64_t sizes[2];
	char id[STORE_ID];
	struct why why;

	place_open();
	shell("ln -s $T $R/l");
	publish("a $R/l/y\n", "-", sizes, id);
	ASSERT_EQ(0, put_back(id, false, &why)) {
		printf("# %s\n", why.text);
	}
	ASSERT_TRUE(says("[ \"$(ls $T)\" = 'x\ny' ] && [ -L $R/l ]"));
	place_close();
}

/* Something else under another name of a file, which is not to get the rights that the file had. */
TEST(other_names_of_a_file_keep_their_owner_and_mode)
{
	static const uint64_t sizes[2];
	char id[STORE_ID];
	struct why why;

	place_open();
	shell("echo text >$T/z; chmod 600 $T/z; ln $T/z $R/x");
	publish("r 666 4321 4321 0 $R/x 5 0 0 0 0 0000000000000001\n", "-", sizes, id);
	ASSERT_EQ(0, put_back(id, false, &why)) {
		printf("# %s\n", why.text);
	}
	ASSERT_TRUE(says("[ \"$(stat -c '%a %u %g' $T/z $R/x)\" = '600 0 0\n666 4321 4321' ]"));
	place_close();
}

/* What a user has given a program stays, but not with another owner; folders hand down their group. */
TEST(set_user_id_bits_that_are_there_stay_with_their_owner)
{
	static const uint64_t sizes[2];
	char id[STORE_ID];
	struct why why;

	if (geteuid())
		SKIP(return, "not root");
	place_open();
	shell("for i in x y; do echo text >$R/$i; chown 4321 $R/$i; chmod 4755 $R/$i; done; "
	      "mkdir $R/d; chmod 2700 $R/d");
	publish("d 755 0 0 0 $R/d\nD 755 0 0 0 $R/d/e\n" "r 700 4321 0 0 $R/x 5 0 0 0 0 0000000000000001\n"
		"r 755 0 0 0 $R/y 5 0 0 0 0 0000000000000001\n", "-", sizes, id);
	ASSERT_EQ(0, put_back(id, false, &why)) {
		printf("# %s\n", why.text);
	}
	ASSERT_TRUE(says("[ \"$(stat -c '%a %u' $R/x $R/y $R/d $R/d/e)\" = "
			 "'4700 4321\n755 0\n2755 0\n2755 0' ] || ! stat -c '# %n %a %u' $R/* $R/d/e"));
	place_close();
}

TEST_HARNESS_MAIN
