// SPDX-License-Identifier: Apache-2.0
/*
 * dumped.c - what is read, corrected and refused of a dump's small images, which are made by hand here
 *
 * The job has a namespace of its own pids, unless a test says otherwise: process 1, its children 2 and 3.
 */
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kselftest_harness.h>

#include "criu_i.h"
#include "images.h"
#include "protobuf_i.h"
#include "tree.h"

#define IMAGES 64

/* Stands for images.c. */
struct images {
	struct image {
		char name[40];
		char *text;
		size_t len;
		bool edited;
	} image[IMAGES];
	int n;
};

static struct image *image_named(struct images *all, const char *name)
{
	for (int i = 0; i < all->n; i++)
		if (!strcmp(all->image[i].name, name))
			return &all->image[i];
	return NULL;
}

const char *images_text(struct images *all, const char *name, size_t *len)
{
	const struct image *i = image_named(all, name);

	*len = i ? i->len : 0;
	return i ? i->text : NULL;
}

int images_edit(struct images *all, const char *name, char *text, size_t len)
{
	struct image *i = image_named(all, name);

	if (!i)
		return -ENOENT;
	free(i->text);
	i->text = text;
	i->len = len;
	i->edited = true;
	return 0;
}

int images_add(struct images *all, const char *name, const void *data, size_t len)
{
	struct image *i = image_named(all, name) ?: &all->image[all->n++];

	free(i->text);
	*i = (struct image){ .text = malloc(len + 1), .len = len };
	snprintf(i->name, sizeof(i->name), "%s", name);
	memcpy(i->text, data, len);
	return 0;
}

/* ------------------------------------------------------------------------------- messages */

struct message {
	uint8_t b[2048];
	size_t n;
};

static void varint(struct message *m, uint64_t v)
{
	for (; v > 127; v >>= 7)
		m->b[m->n++] = v | 128;
	m->b[m->n++] = v;
}

static void number(struct message *m, int field, uint64_t v)
{
	varint(m, field << 3);
	varint(m, v);
}

static void bytes(struct message *m, int field, const void *data, size_t n)
{
	varint(m, field << 3 | 2);
	varint(m, n);
	memcpy(m->b + m->n, data, n);
	m->n += n;
}

static void inner(struct message *m, int field, const struct message *of)
{
	bytes(m, field, of->b, of->n);
}

static void name(struct message *m, int field, const char *text)
{
	bytes(m, field, text, strlen(text));
}

/* An image of these entries, of magics bytes and each with its length. */
static void put_some(struct images *all, const char *image, size_t magics, const struct message *m, int n)
{
	static char text[16384];
	size_t len = magics;

	memset(text, 0x5a, magics);
	for (int i = 0; i < n; i++) {
		uint32_t size = m[i].n;

		memcpy(text + len, &size, 4);
		memcpy(text + len + 4, m[i].b, size);
		len += 4 + size;
	}
	images_add(all, image, text, len);
}

static void put(struct images *all, const char *image, const struct message *m, int n)
{
	put_some(all, image, PB_MAGICS, m, n);
}

static void cut(struct images *all, const char *name, size_t by)
{
	image_named(all, name)->len -= by;
}

static void drop(struct images *all, const char *name)
{
	image_named(all, name)->name[0] = 0;
}

static const char *image_of(const void *all, const char *name, size_t *len)
{
	return images_text((struct images *)all, name, len);
}

/* -------------------------------------------------------------------------------- the dump */

#define OF_HOST 100	/* namespaces of CRIU itself, by their kind */
#define OF_JOB	200

static struct message ids_of(int files, int namespaces)
{
	struct message m = { .n = 0 };

	number(&m, IDS_FILES, files);
	for (int k = IDS_PID_NS; k < IDS_FIELDS; k++)
		number(&m, k, namespaces + k);
	return m;
}

/* state 1, comm 6, and timers 7 in front of others. */
static void put_core(struct images *all, int pid, const char *comm, const struct message *timers)
{
	struct message task = { .n = 0 }, core[2] = { { .n = 0 } };
	char image[32];

	number(&task, 1, 1);
	if (timers)
		inner(&task, 7, timers);
	name(&task, 6, comm);
	number(&core[0], 1, 77);
	inner(&core[0], 3, &task);
	name(&core[0], 9, "behind");
	name(&core[1], 1, "another entry");
	snprintf(image, sizeof(image), "core-%d.img", pid);
	put(all, image, core, 2);
}

static void put_ids(struct images *all, int pid, const struct message *ids)
{
	char image[32];

	snprintf(image, sizeof(image), "ids-%d.img", pid);
	put(all, image, ids, 1);
}

static struct message in_tree(uint64_t pid, uint64_t parent, int thread)
{
	struct message m = { .n = 0 };

	number(&m, 1, pid);
	number(&m, 2, parent);
	number(&m, 5, pid);
	if (thread)
		number(&m, 5, thread);
	return m;
}

/* namespaces: OF_JOB, or OF_HOST as of --host-pids. */
static void put_tree(struct images *all, int namespaces)
{
	struct message ids = ids_of(0, OF_HOST), inventory = { .n = 0 }, tree[3];

	number(&inventory, 1, 2);
	inner(&inventory, 3, &ids);
	put_some(all, "inventory.img", PB_MAGICS / 2, &inventory, 1);
	for (int i = 0; i < 3; i++) {
		tree[i] = in_tree(i + 1, !!i, i == 1 ? 7 : 0);
		ids = ids_of((i + 1) * 10, namespaces);
		put_ids(all, i + 1, &ids);
		put_core(all, i + 1, i ? "child" : "init", NULL);
	}
	put(all, "pstree.img", tree, 3);
	put(all, "files.img", NULL, 0);
}

static void put_table(struct images *all, int table, int id, int other)
{
	struct message m[2] = { { .n = 0 }, { .n = 0 } };
	char image[32];

	number(&m[0], 1, id);
	number(&m[1], 1, other);
	snprintf(image, sizeof(image), "fdinfo-%d.img", table);
	put(all, image, m, 2);
}

static void put_folders(struct images *all, int pid, int working, int root)
{
	struct message m = { .n = 0 };
	char image[32];

	number(&m, 1, working);
	number(&m, 2, root);
	snprintf(image, sizeof(image), "fs-%d.img", pid);
	put(all, image, &m, 1);
}

static struct message file_named(int id, const char *path)
{
	struct message m = { .n = 0 }, reg = { .n = 0 };

	number(&reg, 1, id);
	name(&reg, 6, path);
	number(&reg, 8, 5);
	number(&m, 1, 1);
	number(&m, 2, id);
	inner(&m, 3, &reg);
	return m;
}

static void put_file(struct images *all, const char *path)
{
	struct message m[3] = { file_named(4, "tmp/a"), file_named(5, path), file_named(6, "tmp/b") };

	put(all, "files.img", m, 3);
}

/* What is said of the images; "": nothing. */
static const char *check(struct images *all, int want)
{
	static struct why why;
	int err;

	why = (struct why){ 0 };
	err = tree_check(image_of, all, &why);
	return err == want ? why.text : err ? err_text(err) : "it is all right";
}

FIXTURE(dumped)
{
	struct images all;
	struct tree tree;
	struct why why;
	pid_t init, child[2];	/* inner pids 1; 2 and 3 */
};

FIXTURE_SETUP(dumped)
{
	put_tree(&self->all, OF_JOB);
}

FIXTURE_TEARDOWN(dumped)
{
	tree_free(&self->tree);
	for (int i = 0; i < self->all.n; i++)
		free(self->all.image[i].text);
	if (self->init > 0) {
		kill(self->init, SIGKILL);
		waitpid(self->init, NULL, 0);
	}
}

static int read_it(struct images *all, struct tree *t, struct why *why)
{
	tree_free(t);
	return tree_read(t, image_of, all, why);
}

TEST_F(dumped, the_tree_is_read)
{
	const struct tree_process *p;

	ASSERT_EQ(read_it(&self->all, &self->tree, &self->why), 0);
	EXPECT_EQ(self->tree.n, 3);
	EXPECT_TRUE(self->tree.own_pids);
	EXPECT_EQ(self->tree.root_ids[IDS_NET_NS], OF_HOST + IDS_NET_NS);
	p = tree_find(&self->tree, 3);
	ASSERT_NE(p, NULL);
	EXPECT_EQ(p->pid, 3);
	EXPECT_EQ(p->parent, 1);
	EXPECT_EQ(p->state, 1);
	EXPECT_TRUE(p->ids_known);
	EXPECT_EQ(p->ids[IDS_FILES], 30);
	EXPECT_EQ(p->ids[IDS_TIME_NS], OF_JOB + IDS_TIME_NS);
	EXPECT_STREQ(p->comm, "child");
	EXPECT_EQ(tree_find(&self->tree, 4), NULL);
	EXPECT_STREQ(check(&self->all, 0), "");
	put_core(&self->all, 3, "a name of twenty chr", NULL);
	ASSERT_EQ(read_it(&self->all, &self->tree, &self->why), 0);
	EXPECT_STREQ(tree_find(&self->tree, 3)->comm, "a name of twent");
	put_tree(&self->all, OF_HOST);
	ASSERT_EQ(read_it(&self->all, &self->tree, &self->why), 0);
	EXPECT_FALSE(self->tree.own_pids);
}

TEST_F(dumped, images_that_are_damaged_are_named)
{
	struct images *all = &self->all;
	struct message m[2];

#define DAMAGED(image, how) do { \
	how; \
	EXPECT_STREQ(check(all, -EBADMSG), "CRIU's image " image " is damaged") \
		TH_LOG("%s", #how); \
	drop(all, image); \
	EXPECT_STREQ(check(all, -EBADMSG), "CRIU's image " image " is damaged") \
		TH_LOG("%s, and gone", #how); \
	put_tree(all, OF_JOB); \
	EXPECT_STREQ(check(all, 0), ""); \
} while (0)
	DAMAGED("inventory.img", cut(all, "inventory.img", 1));
	DAMAGED("inventory.img", image_named(all, "inventory.img")->len = 3);
	DAMAGED("inventory.img", image_named(all, "inventory.img")->len = 4);
	m[0] = (struct message){ .n = 0 };
	number(&m[0], 3, 5);
	DAMAGED("inventory.img", put_some(all, "inventory.img", 4, m, 1));
	m[0] = (struct message){ .n = 0 };
	bytes(&m[0], 3, "\x80", 1);
	DAMAGED("inventory.img", put_some(all, "inventory.img", 4, m, 1));
	DAMAGED("pstree.img", cut(all, "pstree.img", 1));
	DAMAGED("pstree.img", image_named(all, "pstree.img")->len = 7);
	DAMAGED("pstree.img", image_named(all, "pstree.img")->len = 8);
	m[0] = in_tree(0, 0, 0);
	DAMAGED("pstree.img", put(all, "pstree.img", m, 1));
	m[0] = in_tree(1ull << 31, 0, 0);
	DAMAGED("pstree.img", put(all, "pstree.img", m, 1));
	m[0] = in_tree(1, 0, 0);
	m[1] = in_tree(2, 1ull << 31, 0);
	DAMAGED("pstree.img", put(all, "pstree.img", m, 2));
	DAMAGED("core-2.img", cut(all, "core-2.img", image_named(all, "core-2.img")->len - 12));
	DAMAGED("core-2.img", image_named(all, "core-2.img")->len = 8);
	DAMAGED("files.img", image_named(all, "files.img")->len = 7);
	m[0] = (struct message){ .n = 0 };
	number(&m[0], 3, 5);
	DAMAGED("core-2.img", put(all, "core-2.img", m, 1));
	m[0] = (struct message){ .n = 0 };
	bytes(&m[0], 3, "\x08", 1);
	DAMAGED("core-2.img", put(all, "core-2.img", m, 1));
	m[0] = file_named(5, "a");
	DAMAGED("files.img", put(all, "files.img", m, 1); cut(all, "files.img", 1));
	m[0] = (struct message){ .n = 0 };
	bytes(&m[0], 3, "\x08", 1);
	DAMAGED("files.img", put(all, "files.img", m, 1));
#undef DAMAGED
	/* Without these there is nothing to check. */
	for (int i = 0; i < 3; i++) {
		static const char *const image[] = { "ids-2.img", "remap-fpath.img", "tty-info.img" };
		char want[64];

		m[0] = (struct message){ .n = 0 };
		number(&m[0], 1, 5);
		snprintf(want, sizeof(want), "CRIU's image %s is damaged", image[i]);
		put(all, image[i], m, 1);
		cut(all, image[i], 1);
		EXPECT_STREQ(check(all, -EBADMSG), want);
		bytes(&m[0], 2, "", 0);
		m[0].b[m[0].n++] = 7;
		put(all, image[i], m, 1);
		EXPECT_STREQ(check(all, -EBADMSG), want);
		image_named(all, image[i])->len = 7;
		EXPECT_STREQ(check(all, -EBADMSG), want);
		drop(all, image[i]);
		EXPECT_STREQ(check(all, 0), "");
	}
	/* But for the root. */
	drop(all, "ids-1.img");
	EXPECT_STREQ(check(all, -EBADMSG), "CRIU's image pstree.img is damaged");
}

/* Entries that are shorter than any of CRIU's: more than there is room for. */
TEST_F(dumped, a_list_of_too_many_processes_is_refused)
{
	struct message m[40];

	for (int i = 0; i < 40; i++) {
		m[i] = (struct message){ .n = 0 };
		number(&m[i], 1, i + 1);
		put_core(&self->all, i < 3 ? i + 1 : i + 100, "child", NULL);
		if (i >= 3)
			snprintf(self->all.image[self->all.n - 1].name, 40, "core-%d.img", i + 1);
	}
	put(&self->all, "pstree.img", m, 40);
	EXPECT_EQ(read_it(&self->all, &self->tree, &self->why), -EBADMSG);
	EXPECT_STREQ(self->why.text, "CRIU's image pstree.img is damaged");
	put(&self->all, "pstree.img", m, 3);
	EXPECT_EQ(read_it(&self->all, &self->tree, &self->why), 0);
	EXPECT_EQ(self->tree.n, 3);
}

TEST_F(dumped, a_namespace_of_a_childs_own_is_refused)
{
	static const struct {
		int kind;
		const char *name;
	} kinds[] = { { IDS_PID_NS, "pid" }, { IDS_NET_NS, "network" }, { IDS_IPC_NS, "IPC" }, { IDS_UTS_NS, "UTS" },
		      { IDS_MNT_NS, "mount" }, { IDS_USER_NS, "user" }, { IDS_TIME_NS, "time" }, { IDS_CGROUP_NS, NULL } };
	char want[80];

	for (int k = 0; k < 8; k++)
		for (int pid = 1; pid <= 3; pid++) {
			struct message ids = ids_of(pid * 10, OF_JOB);

			put_tree(&self->all, OF_JOB);
			number(&ids, kinds[k].kind, 999);	/* the last one counts */
			put_ids(&self->all, pid, &ids);
			snprintf(want, sizeof(want), "process %d (child) of the job is in a %s namespace of its own", pid,
				 kinds[k].name);
			if (!kinds[k].name) {
				EXPECT_STREQ(check(&self->all, 0), "");
				continue;
			}
			if (pid == 1)	/* the root's, which its children have not */
				snprintf(want, sizeof(want), "process 2 (child) of the job is in a %s namespace", kinds[k].name);
			EXPECT_NE(strstr(check(&self->all, -ENOTSUP), want), NULL)
				TH_LOG("%s", want);
		}
	/* One that has ended is in none. */
	put_tree(&self->all, OF_JOB);
	drop(&self->all, "ids-3.img");
	EXPECT_STREQ(check(&self->all, 0), "");
}

TEST_F(dumped, a_file_of_a_process_by_its_number_is_refused)
{
	static const char *const refused[] = { "proc/5/stat", "/proc/5/stat", "proc/9", "/proc/0", "proc/77" },
		*const taken[] = { "proc/self/stat", "/proc/stat", "proc/", "/proc/", "proc", "procs/5", "/proc//5",
				   "proc/:/a", "tmp/proc/5", "/", "" };

	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
		put_file(&self->all, refused[i]);
		EXPECT_NE(strstr(check(&self->all, -ENOTSUP), refused[i]), NULL)
			TH_LOG("%s", refused[i]);
		EXPECT_NE(strstr(check(&self->all, -ENOTSUP), "open file /proc/"), NULL);
	}
	for (size_t i = 0; i < sizeof(taken) / sizeof(*taken); i++) {
		put_file(&self->all, taken[i]);
		EXPECT_STREQ(check(&self->all, 0), "")
			TH_LOG("%s", taken[i]);
	}
	put_tree(&self->all, OF_HOST);
	put_file(&self->all, refused[0]);
	EXPECT_STREQ(check(&self->all, 0), "");
}

TEST_F(dumped, so_are_open_namespaces_ended_processes_and_exclusive_terminals)
{
	struct message ns = { .n = 0 }, remap[2] = { { .n = 0 }, { .n = 0 } }, tty[2] = { { .n = 0 }, { .n = 0 } };

	number(&ns, 2, 5);
	bytes(&ns, 5, "ns", 2);
#define REFUSED(when, text) do { \
	if (when) { \
		EXPECT_NE(strstr(check(&self->all, -ENOTSUP), text), NULL); \
	} else { \
		EXPECT_STREQ(check(&self->all, 0), ""); \
	} \
} while (0)
	for (int host = 0; host < 2; host++) {
		put_tree(&self->all, host ? OF_HOST : OF_JOB);
		put(&self->all, "files.img", &ns, 1);
		REFUSED(!host, "has a namespace open");
		put_tree(&self->all, host ? OF_HOST : OF_JOB);
		for (int type = 0; type < 4; type++) {
			remap[0].n = remap[1].n = 0;
			number(&remap[0], 3, 1);
			number(&remap[1], 3, type);
			put(&self->all, "remap-fpath.img", remap, 2);
			REFUSED(!host && type == 2, "belongs to a process which has ended");
		}
		drop(&self->all, "remap-fpath.img");
		for (int exclusive = 0; exclusive < 2; exclusive++) {
			tty[0].n = tty[1].n = 0;
			number(&tty[0], 3, 1);
			number(&tty[1], 4, exclusive);
			put(&self->all, "tty-info.img", tty, 2);
			REFUSED(exclusive, "TIOCEXCL");
		}
		drop(&self->all, "tty-info.img");
	}
#undef REFUSED
}

/* Of those that have a file the one with the lowest pid opens it; a folder is opened by each. */
TEST_F(dumped, who_opens_a_file_is_known)
{
	struct tree *t = &self->tree;

	put_table(&self->all, 20, 5, 8);
	put_table(&self->all, 30, 4, 5);
	put_table(&self->all, 0, 5, 8);		/* the number of what is not known */
	put_folders(&self->all, 1, 70, 71);
	put_folders(&self->all, 2, 60, 61);
	put_folders(&self->all, 3, 70, 62);
	ASSERT_EQ(read_it(&self->all, t, &self->why), 0);
	EXPECT_TRUE(tree_opens(t, 5, 2));
	EXPECT_FALSE(tree_opens(t, 5, 3));
	EXPECT_FALSE(tree_opens(t, 5, 1));
	EXPECT_TRUE(tree_opens(t, 4, 3));
	EXPECT_FALSE(tree_opens(t, 4, 2));
	EXPECT_FALSE(tree_opens(t, 99, 2));
	EXPECT_TRUE(tree_opens(t, 60, 2));	/* its working folder, its root */
	EXPECT_TRUE(tree_opens(t, 61, 2));
	EXPECT_FALSE(tree_opens(t, 60, 3));
	EXPECT_FALSE(tree_opens(t, 70, 1));	/* of two */
	EXPECT_FALSE(tree_opens(t, 70, 3));
	put_table(&self->all, 20, 60, 70);	/* a folder that one has open, too */
	put_table(&self->all, 30, 61, 62);
	EXPECT_TRUE(tree_opens(t, 60, 2));
	EXPECT_FALSE(tree_opens(t, 70, 2));
	EXPECT_FALSE(tree_opens(t, 61, 2));	/* 3 opens the file, 2 the folder */
	EXPECT_FALSE(tree_opens(t, 61, 3));
	EXPECT_TRUE(tree_opens(t, 62, 3));
	/* One that has ended opens nothing, whatever it had. */
	put_table(&self->all, 30, 5, 5);
	drop(&self->all, "ids-2.img");
	ASSERT_EQ(read_it(&self->all, t, &self->why), 0);
	EXPECT_TRUE(tree_opens(t, 5, 3));
	EXPECT_FALSE(tree_opens(t, 5, 2));
	EXPECT_FALSE(tree_opens(t, 61, 2));
}

/* ---------------------------------------------------------------------------- corrections */

/* What the edited image has as entry at, and then, before and behind it, what there was. */
static struct message entry_of(struct images *all, const char *image, int at, int entries)
{
	const struct image *i = image_named(all, image);
	const uint8_t *p = (uint8_t *)i->text + PB_MAGICS, *end = (uint8_t *)i->text + i->len, *entry;
	struct message m = { .n = 0 };
	uint32_t n;
	int k = 0;

	for (; pb_entry(&p, end, &entry, &n) > 0; k++)
		if (k == at) {
			memcpy(m.b, entry, n);
			m.n = n;
		}
	return k == entries && p == end ? m : (struct message){ .n = 0 };
}

static bool same(const struct message *a, const struct message *b)
{
	return a->n && a->n == b->n && !memcmp(a->b, b->b, a->n);
}

static struct message timer(uint64_t ticks, uint64_t s, uint64_t ns, uint64_t every_s, uint64_t every_ns)
{
	struct message m = { .n = 0 };

	number(&m, 1, 5);
	number(&m, 5, ticks);
	number(&m, 6, 1);
	if (s || ns || every_s > 99) {
		number(&m, 7, s);
		number(&m, 8, ns);
	}
	number(&m, 9, every_s);
	number(&m, 10, every_ns);
	number(&m, 11, 3);
	return m;
}

static struct message timer_entry(const struct message *of)
{
	struct message m = { .n = 0 };

	number(&m, 1, 12);
	number(&m, 2, 5);
	inner(&m, 12, of);
	number(&m, 14, 1);
	return m;
}

TEST_F(dumped, a_periodic_timer_with_unread_expiries_fires_again)
{
	static const uint64_t cases[][6] = {	/* ticks, what is left, every; it is to be corrected */
		{ 1, 0, 0, 5, 7, 1 }, { 3, 0, 0, 0, 7, 1 }, { 1, 0, 0, 300, 0, 1 }, { 0, 0, 0, 5, 7, 0 },
		{ 1, 1, 0, 5, 7, 0 }, { 1, 0, 1, 5, 7, 0 }, { 1, 0, 0, 0, 0, 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const uint64_t *c = cases[i];
		struct message of = timer(c[0], c[1], c[2], c[3], c[4]), want = { .n = 0 };
		struct message m[3] = { file_named(4, "a"), timer_entry(&of), file_named(6, "b") }, got;

		put(&self->all, "files.img", m, 3);
		ASSERT_EQ(criu_edit(&self->all, 0, &self->why), 0)
			TH_LOG("%s", self->why.text);
		EXPECT_EQ(image_named(&self->all, "files.img")->edited, c[5]);
		got = entry_of(&self->all, "files.img", 0, 3);
		EXPECT_TRUE(same(&got, &m[0]));
		got = entry_of(&self->all, "files.img", 2, 3);
		EXPECT_TRUE(same(&got, &m[2]));
		got = entry_of(&self->all, "files.img", 1, 3);
		if (!c[5]) {
			EXPECT_TRUE(same(&got, &m[1]));
			continue;
		}
		/* All but what is left as it was, and that behind it. */
		of = (struct message){ .n = 0 };
		number(&of, 1, 5);
		number(&of, 5, c[0]);
		number(&of, 6, 1);
		number(&of, 9, c[3]);
		number(&of, 10, c[4]);
		number(&of, 11, 3);
		number(&of, 7, c[3]);
		number(&of, 8, c[4]);
		number(&want, 1, 12);
		number(&want, 2, 5);
		number(&want, 14, 1);
		inner(&want, 12, &of);
		EXPECT_TRUE(same(&got, &want))
			TH_LOG("case %zu", i);
		EXPECT_EQ(*image_named(&self->all, "files.img")->text, 0x5a);
	}
}

static pid_t in_namespace(void)
{
	struct clone_args a = { .flags = CLONE_NEWPID, .exit_signal = SIGCHLD };

	return syscall(SYS_clone3, &a, sizeof(a));
}

/* Processes 1, 2 and 3 of a namespace; none without root. */
static bool start_tree(struct __test_metadata *_metadata, pid_t *init, pid_t child[2])
{
	*init = in_namespace();
	if (!*init) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0; i < 2; i++)
			if (!fork())
				for (;;)
					pause();
		for (;;)
			pause();
	}
	if (*init < 0)
		return false;
	for (int i = 0; i < 2; i++) {
		child[i] = 0;
		for (int k = 0; k < 10000 && !child[i]; k++) {
			child[i] = criu_find_pid(*init, i + 2);
			usleep(child[i] ? 0 : 1000);
		}
		EXPECT_GT(child[i], 0);
	}
	return child[0] > 0 && child[1] > 0;
}

/* The name of file 5 after the corrections; "!" and the refusal. */
static const char *edited_name(struct images *all, pid_t root, const char *fmt, int a, int b)
{
	static struct why why;
	static char path[300];
	struct message m, before;
	struct pb_field f, reg;
	const uint8_t *p;
	int err;

	snprintf(path, sizeof(path), fmt, a, b);
	put_file(all, path);
	before = file_named(5, path);
	why = (struct why){ 0 };
	err = criu_edit(all, root, &why);
	if (err)
		return err == -ENOTSUP && strstr(why.text, "by its number on this host") ? "!" : why.text;
	m = entry_of(all, "files.img", 1, 3);
	if (same(&m, &before))
		return image_named(all, "files.img")->edited ? "edited in vain" : "as it was";
	for (p = m.b; pb_field(&p, m.b + m.n, &f) > 0;)
		if (f.number == 3)
			break;
	reg = f;
	for (p = reg.data; pb_field(&p, reg.data + reg.len, &f) > 0;)
		if (f.number == 6) {
			snprintf(path, sizeof(path), "%.*s", (int)f.len, (const char *)f.data);
			before = file_named(5, path);
			/* The rest of the entry is there, though in another order. */
			return before.n == m.n ? path : "more than the name is other";
		}
	return "none";
}

TEST_F(dumped, a_file_of_the_process_itself_gets_a_name_that_comes_back)
{
	struct images *all = &self->all;
	int of, other;

	if (!start_tree(_metadata, &self->init, self->child))
		SKIP(return, "a namespace of pids needs root");
	of = self->child[0];
	other = self->child[1];
	put_table(all, 20, 5, 8);	/* process 2 has it open */
#define NAME(fmt, a, b) edited_name(all, self->init, fmt, a, b)
	EXPECT_STREQ(NAME("proc/%d/stat", of, 0), "proc/self/stat");
	EXPECT_STREQ(NAME("/proc/%d/fdinfo/3", of, 0), "/proc/self/fdinfo/3");
	EXPECT_STREQ(NAME("proc/%d", of, 0), "proc/self");
	EXPECT_STREQ(NAME("proc/%d/task/%d/comm", of, of), "proc/thread-self/comm");
	EXPECT_STREQ(NAME("/proc/%d/task/%d", of, of), "/proc/thread-self");
	EXPECT_STREQ(NAME("proc/%d/task/%d/comm", of, other), "!");
	EXPECT_STREQ(NAME("proc/%d/stat", other, 0), "!");
	EXPECT_STREQ(NAME("proc/%d/stat", getpid(), 0), "!");
	EXPECT_STREQ(NAME("proc/%d/stat", 2, 0), "!");
	EXPECT_STREQ(NAME("proc/%d/stat", self->init, 0), "!");
	EXPECT_STREQ(NAME("proc/%dx/stat", of, 0), "!");
	EXPECT_STREQ(NAME("proc/x%d/stat", of, 0), "as it was");
	EXPECT_STREQ(NAME("tmp/proc/%d/stat", of, 0), "as it was");
	/* Two have it: that with the lower pid opens it. */
	put_table(all, 30, 5, 8);
	EXPECT_STREQ(NAME("proc/%d/stat", of, 0), "proc/self/stat");
	EXPECT_STREQ(NAME("proc/%d/stat", other, 0), "!");
	put_tree(all, OF_HOST);
	EXPECT_STREQ(NAME("proc/%d/stat", of, 0), "as it was");
#undef NAME
}

static struct message one_timer(int notify, int thread)
{
	struct message m = { .n = 0 };

	number(&m, 1, 9);
	number(&m, 4, notify);
	number(&m, 11, thread);
	number(&m, 12, 6);
	return m;
}

/* The timers of process 2 in its core after the corrections, as one message. */
static struct message timers_of(struct images *all, int pid)
{
	struct message m, task = { .n = 0 }, timers = { .n = 0 };
	char image[32];
	struct pb_field f;
	const uint8_t *p;

	snprintf(image, sizeof(image), "core-%d.img", pid);
	m = entry_of(all, image, 0, 2);
	for (p = m.b; pb_field(&p, m.b + m.n, &f) > 0;)
		if (f.number == 3) {
			memcpy(task.b, f.data, f.len);
			task.n = f.len;
		}
	for (p = task.b; pb_field(&p, task.b + task.n, &f) > 0;)
		if (f.number == 7) {
			memcpy(timers.b, f.data, f.len);
			timers.n = f.len;
		}
	return timers;
}

TEST_F(dumped, a_timers_thread_that_none_is_becomes_the_first)
{
	static const int cases[][5] = {		/* its process, whom it tells, that thread; of --host-pids; then */
		{ 2, 4, 99, 0, 2 }, { 2, 4, 7, 0, 7 }, { 2, 4, 2, 0, 2 }, { 3, 4, 7, 0, 3 }, { 2, 0, 99, 0, 99 },
		{ 2, 4, 99, 1, 99 }, { 2, 4, 3, 0, 2 }, { 3, 4, 3, 0, 3 }, { 2, 2, 99, 0, 99 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const int *c = cases[i];
		struct message t = one_timer(c[1], c[2]), good = one_timer(4, c[0]), timers = { .n = 0 }, got, entry;
		const char *image = c[0] == 2 ? "core-2.img" : "core-3.img";

		put_tree(&self->all, c[3] ? OF_HOST : OF_JOB);
		number(&timers, 1, 3);
		inner(&timers, 4, &good);
		inner(&timers, 4, &t);
		number(&timers, 5, 8);
		put_core(&self->all, c[0], "timed", &timers);
		entry = entry_of(&self->all, image, 1, 2);
		ASSERT_EQ(criu_edit(&self->all, 0, &self->why), 0)
			TH_LOG("%s", self->why.text);
		EXPECT_EQ(image_named(&self->all, image)->edited, c[2] != c[4]);
		got = entry_of(&self->all, image, 1, 2);
		EXPECT_TRUE(same(&got, &entry));
		got = timers_of(&self->all, c[0]);
		if (c[2] != c[4]) {
			timers.n = t.n = 0;
			number(&t, 1, 9);
			number(&t, 4, c[1]);
			number(&t, 12, 6);
			number(&t, 11, c[4]);
			number(&timers, 1, 3);
			inner(&timers, 4, &good);
			inner(&timers, 4, &t);
			number(&timers, 5, 8);
		}
		EXPECT_TRUE(same(&got, &timers))
			TH_LOG("case %zu", i);
		/* The rest of the core is as it was. */
		ASSERT_EQ(read_it(&self->all, &self->tree, &self->why), 0);
		EXPECT_STREQ(tree_find(&self->tree, c[0])->comm, "timed");
		EXPECT_EQ(tree_find(&self->tree, c[0])->state, 1);
		entry = entry_of(&self->all, image, 0, 2);
		EXPECT_NE(memmem(entry.b, entry.n, "behind", 6), NULL);
		EXPECT_EQ(memcmp(entry.b, "\x08\x4d", 2), 0);
	}
}

/* What is corrected is checked afterwards; images that are damaged are not corrected. */
TEST_F(dumped, corrections_refuse_what_cannot_come_back)
{
	struct message ns = { .n = 0 };

	bytes(&ns, 5, "ns", 2);
	put(&self->all, "files.img", &ns, 1);
	EXPECT_EQ(criu_edit(&self->all, 0, &self->why), -ENOTSUP);
	put_tree(&self->all, OF_JOB);
	cut(&self->all, "pstree.img", 1);
	self->why = (struct why){ 0 };
	EXPECT_EQ(criu_edit(&self->all, 0, &self->why), -EBADMSG);
	put_tree(&self->all, OF_JOB);
	drop(&self->all, "files.img");
	self->why = (struct why){ 0 };
	EXPECT_EQ(criu_edit(&self->all, 0, &self->why), -EBADMSG);
	EXPECT_NE(strstr(self->why.text, "files.img"), NULL);
}

TEST_HARNESS_MAIN
