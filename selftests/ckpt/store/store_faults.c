// SPDX-License-Identifier: Apache-2.0
/*
 * store_faults.c - faults while the store is written do not damage earlier checkpoints
 *
 * The scenario publishes a checkpoint, removes the oldest and collects garbage; a fault is
 * injected at its n-th disk operation, for every n. A power cut is a kill and then the loss of
 * unsynced data: writes become zeros, renames and removals are undone. SINGVGPU_SCALE adds cases.
 */
#include <ftw.h>

#include "store_test.h"

#define PAGES 700	/* 2.7 MiB: several buffers */

enum fault { NONE, EIO_ONCE, FULL, SHORT, KILLED, CRAMPED, N_FAULTS };

#define EVENTS 4096

struct event {
	enum io_op op;
	char name[64], to[64];
	uint64_t off, len;
};

/* Shared with the child that runs the scenario. */
struct script {
	enum fault fault;
	unsigned int at, n;	/* fault at the at-th operation, n so far */
	bool hit, keep;		/* keep: write down what happened */
	char store[256], trash[256];
	struct event ev[EVENTS];
};

static struct script *script;

static unsigned int scale(void)
{
	const char *s = getenv("SINGVGPU_SCALE");

	return s ? atoi(s) : 1;
}

static void write_down(const struct io_event *e)
{
	struct event *v = &script->ev[script->n];
	char from[400], to[400];

	NEED(script->n < EVENTS);
	*v = (struct event){ .op = e->op, .off = e->off, .len = e->len };
	snprintf(v->name, sizeof(v->name), "%s", e->name);
	snprintf(v->to, sizeof(v->to), "%s", e->to ? e->to : "");
	if (e->op != IO_UNLINK && e->op != IO_RENAME)
		return;
	/* What it takes away can be brought back. */
	snprintf(from, sizeof(from), "%s/%s", script->store, e->to ? e->to : e->name);
	snprintf(to, sizeof(to), "%s/%u", script->trash, script->n);
	link(from, to);
}

static int strike(struct io_event *e)
{
	bool now = script->n == script->at, after = script->n >= script->at;
	char path[400];

	if (script->keep && !(now && script->fault == KILLED))
		write_down(e);
	script->n++;
	switch (script->fault) {
	case KILLED:
		if (now)
			raise(SIGKILL);
		return 0;
	case EIO_ONCE:
		script->hit |= now;
		return now ? -EIO : 0;
	case FULL:
		if (!after || (e->op != IO_WRITE && e->op != IO_CREATE))
			return 0;
		script->hit = true;
		return -ENOSPC;
	case SHORT:
		if (now && e->len > 1) {
			script->hit = true;
			e->len = e->len > 2 * PAGE ? e->len / 2 & ~511ul : e->len / 2;
		}
		return 0;
	case CRAMPED:	/* no room for a whole segment, of which ext4 then leaves what there is room for */
		if (!after || e->op != IO_ALLOCATE)
			return 0;
		script->hit = true;
		snprintf(path, sizeof(path), "%s/%s", script->store, e->name);
		NEED(!truncate(path, 8 * MB + 2048));
		return -ENOSPC;
	default:
		return 0;
	}
}

/* ------------------------------------------------------------------------------ the scenario */

static void content(uint8_t *p, int version)
{
	fill(p, PAGES * PAGE, 1);
	for (int v = 1; v <= version; v++)
		fill(p + v * 100 * PAGE, 90 * PAGE, 1000 + v);
}

/* In two lanes and the object itself, by turns, in one thread: each operation has its number. */
static int put_in_lanes(struct store_writer *w, const uint8_t *p, struct store_ref *ref)
{
	struct store_object *o[3];
	int err = store_object_begin(w, &o[0]), lanes = 0;

	if (err)
		return err;
	while (!err && lanes < 2) {
		err = store_object_lane(o[0], &o[1 + lanes]);
		lanes += !err;
	}
	for (size_t at = 0; at < PAGES && !err; at += 40)
		err = store_object_write(o[at / 40 % 3], at * PAGE, p + at * PAGE,
					 (PAGES - at < 40 ? PAGES - at : 40) * PAGE);
	for (int i = 0; i < lanes; i++) {
		int late = store_object_join(o[0], o[1 + i]);

		err = err ?: late;
	}
	if (err)
		store_object_abort(o[0]);
	return err ?: store_object_end(o[0], 0, ref);
}

static int publish_version(struct store *s, int version)
{
	uint8_t *p = malloc(PAGES * PAGE);
	struct store_part part = { .name = "memory" };
	struct store_writer *w;
	char json[16], id[STORE_ID];
	int err = store_writer_open(s, STORE_ONE_THREAD, &w);

	content(p, version);
	if (!err)
		err = put_in_lanes(w, p, &part.ref);
	if (!err)
		err = store_writer_flush(w);
	store_writer_close(w);
	snprintf(json, sizeof(json), "%d", version);
	if (!err)
		err = store_publish(s, &part, 1, json, id);
	free(p);
	return err;
}

/* Removes the oldest if there are more than two. */
struct oldest {
	char id[STORE_ID];
	int n;
};

static int note_oldest(void *arg, const char *id, uint64_t time)
{
	struct oldest *o = arg;

	/* One that could not be looked at is not old. */
	if (time && !o->n++)
		memcpy(o->id, id, STORE_ID);
	return 0;
}

static int scenario(const char *dir)
{
	struct store_gc_stats st;
	struct oldest o = { .n = 0 };
	struct store *s;
	struct why why = { 0 };
	int err = store_open(&s, dir, STORE_RW, &why);

	if (err)
		return err;
	err = publish_version(s, 3);
	if (!err)
		err = store_list(s, note_oldest, &o);
	if (!err && o.n > 2)
		err = store_remove(s, o.id);
	if (!err)
		err = store_gc(s, 90, 1000, NULL, NULL, &st);
	store_close(s);
	return err;
}

static int check_one(void *arg, const char *id, uint64_t time)
{
	uint8_t *p = malloc(PAGES * PAGE);
	struct store *s = *(struct store **)arg;
	struct store_checkpoint *c;
	unsigned int *versions = (unsigned int *)((struct store **)arg + 1);
	int version;

	NEED(time);
	NEED_OK(store_checkpoint_open(s, id, &c));
	version = atoi(store_checkpoint_json(c));
	NEED(version >= 1 && version <= 3);
	*versions |= 1u << version;
	content(p, version);
	NEED(compare(s, store_checkpoint_find(c, "memory"), p, PAGES * PAGE) == 0);
	store_checkpoint_close(c);
	free(p);
	return 0;
}

/* Every checkpoint that is listed is whole; returns which versions there are. */
static unsigned int check_all(const char *dir)
{
	struct {
		struct store *s;
		unsigned int versions;
	} a = { open_store(dir, STORE_RW), 0 };

	NEED_OK(store_list(a.s, check_one, &a));
	NEED_OK(verify(a.s, true));
	store_close(a.s);
	return a.versions;
}

static void make_base(const char *dir, int zstd)
{
	struct store *s;

	make_store(dir, zstd);
	s = open_store(dir, STORE_RW);
	NEED_OK(publish_version(s, 1));
	NEED_OK(publish_version(s, 2));
	store_close(s);
}

#ifndef __has_feature
#define __has_feature(x) 0
#endif
/* Under a sanitizer only each so many operations. Threads are the same at all of them. */
#if __has_feature(thread_sanitizer)
#define SANITIZED 23
#elif defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define SANITIZED 5
#else
#define SANITIZED 0
#endif

FIXTURE(faults)
{
	char base[300], dir[300];
	unsigned int ops, step;	/* how many the scenario takes; which of them a fault meets */
};

FIXTURE_VARIANT(faults)
{
	int zstd;
};

FIXTURE_VARIANT_ADD(faults, raw)
{
	.zstd = 0,
};

FIXTURE_VARIANT_ADD(faults, zstd)
{
	.zstd = 1,
};

static int away(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void copy_file(const char *from, const char *to, const struct stat *st)
{
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, st->st_mode & 07777);
	off_t left = st->st_size;

	NEED(in >= 0 && out >= 0);
	while (left) {
		ssize_t n = copy_file_range(in, NULL, out, NULL, left, 0);

		NEED(n > 0);
		left -= n;
	}
	close(in);
	close(out);
}

/* Folders come before what is in them. */
static const char *copied_from, *copied_to;

static int copy_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	char to[600];

	(void)ftw;
	snprintf(to, sizeof(to), "%s%s", copied_to, path + strlen(copied_from));
	if (type == FTW_D)
		NEED(mkdir(to, st->st_mode & 07777) == 0);
	else
		copy_file(path, to, st);
	return 0;
}

/* Thousands of times: without a process for it. */
static void copy_base(const char *base, const char *dir)
{
	char trash[300];

	snprintf(trash, sizeof(trash), "%s/trash", scratch);
	nftw(dir, away, 10, FTW_PHYS | FTW_DEPTH);
	nftw(trash, away, 10, FTW_PHYS | FTW_DEPTH);
	copied_from = base;
	copied_to = dir;
	NEED(nftw(base, copy_one, 10, FTW_PHYS) == 0);
	NEED(mkdir(trash, 0700) == 0);
}

/* Runs the scenario, in a child if it is to be killed. */
static int run(const char *dir, enum fault fault, unsigned int at, bool keep)
{
	int status, err = 0;
	pid_t pid;

	script->fault = fault;
	script->at = at;
	script->n = 0;
	script->hit = false;
	script->keep = keep;
	snprintf(script->store, sizeof(script->store), "%s", dir);
	snprintf(script->trash, sizeof(script->trash), "%s/trash", scratch);
	if (fault != KILLED) {
		store_io_hook = strike;
		err = scenario(dir);
		store_io_hook = NULL;
		return err;
	}
	pid = fork();
	if (!pid) {
		store_io_hook = strike;
		_exit(scenario(dir) ? 1 : 0);
	}
	NEED(waitpid(pid, &status, 0) == pid);
	script->hit = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	NEED(script->hit || (WIFEXITED(status) && !WEXITSTATUS(status)));
	return 0;
}

FIXTURE_SETUP(faults)
{
	/* Thousands of syncs: in memory where that can be. */
	if (access("/dev/shm", W_OK) == 0 && !getenv("TMPDIR"))
		setenv("TMPDIR", "/dev/shm", 1);
	script = mmap(NULL, sizeof(*script), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	ASSERT_NE(MAP_FAILED, script);
	snprintf(self->base, sizeof(self->base), "%s/base", new_scratch());
	snprintf(self->dir, sizeof(self->dir), "%s/s", scratch);
	make_base(self->base, variant->zstd);
	copy_base(self->base, self->dir);
	ASSERT_EQ(0, run(self->dir, NONE, 0, false));
	self->ops = script->n;
	ASSERT_LT(30, self->ops);
	/* With zstd it is the same code for the most part. */
	self->step = scale() > 1 ? 1 : SANITIZED ?: variant->zstd ? 5 : 1;
	ASSERT_EQ(1u << 2 | 1u << 3, check_all(self->dir));
}

FIXTURE_TEARDOWN(faults)
{
	munmap(script, sizeof(*script));
	drop_scratch();
}

/* What must be there: version 2 always; 1 until 3 is. */
static bool nothing_lost(unsigned int versions)
{
	return versions & 1u << 2 && versions & (1u << 1 | 1u << 3);
}

static void strike_everywhere(const FIXTURE_DATA(faults) *f, enum fault fault)
{
	const char *dir = f->dir;

	for (unsigned int at = 0; at < f->ops; at += f->step) {
		int err;

		copy_base(f->base, dir);
		err = run(dir, fault, at, false);
		/* What is short is continued, and what is not allocated is written all the same. */
		NEED((fault != SHORT && fault != CRAMPED) || !err);
		NEED(err || !script->hit || fault != FULL);
		if (!nothing_lost(check_all(dir))) {
			fprintf(stderr, "# fault %d at operation %u\n", fault, at);
			abort();
		}
		/* And the same goes well when it is tried again. */
		if (at % 5 == 0) {
			NEED_OK(scenario(dir));
			NEED(check_all(dir) & 1u << 3);
		}
	}
}

TEST_F(faults, eio_at_every_operation)
{
	strike_everywhere(self, EIO_ONCE);
}

TEST_F(faults, the_disk_is_full_from_any_operation_on)
{
	strike_everywhere(self, FULL);
}

TEST_F(faults, a_segment_that_cannot_be_allocated_is_as_long_as_its_pages)
{
	strike_everywhere(self, CRAMPED);
}

TEST_F(faults, every_read_and_write_is_short)
{
	strike_everywhere(self, SHORT);
}

TEST_F_TIMEOUT(faults, killed_at_every_operation, 3000)
{
	strike_everywhere(self, KILLED);
}

/* ------------------------------------------------------------------------------ power cuts */

static bool same_dir(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return !strncmp(path, dir, n) && path[n] == '/' && !strchr(path + n + 1, '/');
}

/* Is what operation i did to a directory synced before the cut? */
static bool entry_synced(unsigned int i, unsigned int cut)
{
	const struct event *e = &script->ev[i];

	for (unsigned int j = i + 1; j < cut; j++)
		if (script->ev[j].op == IO_DIRSYNC &&
		    same_dir(e->op == IO_RENAME ? e->to : e->name, script->ev[j].name))
			return true;
	return false;
}

/* Where the file that operation i wrote to is at the cut; whether it was synced until then. */
static bool follow(unsigned int i, unsigned int cut, char name[64])
{
	snprintf(name, 64, "%s", script->ev[i].name);
	for (unsigned int j = i + 1; j < cut; j++) {
		const struct event *e = &script->ev[j];

		if (strcmp(e->name, name))
			continue;
		if (e->op == IO_SYNC)
			return true;
		if (e->op == IO_UNLINK)
			return true;
		if (e->op == IO_RENAME)
			snprintf(name, 64, "%s", e->to);
	}
	return false;
}

static void lose_writes(const char *dir, unsigned int cut)
{
	static uint8_t zeros[MB];
	char name[64], path[400];

	for (unsigned int i = 0; i < cut; i++) {
		const struct event *e = &script->ev[i];
		int fd;

		if (e->op != IO_WRITE || rnd() % 2 || follow(i, cut, name))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, name);
		fd = open(path, O_WRONLY);
		if (fd < 0)
			continue;
		for (uint64_t n = 0; n < e->len; n += MB)
			NEED(pwrite(fd, zeros, e->len - n < MB ? e->len - n : MB, e->off + n) > 0);
		close(fd);
	}
}

static void lose_entries(const char *dir, unsigned int cut)
{
	/* All that was not synced, or the end of it. */
	unsigned int from = rnd() % 2 ? rnd() % (cut + 1) : 0;
	char a[400], b[400], t[400];

	for (unsigned int i = cut; i-- > from;) {
		const struct event *e = &script->ev[i];

		if ((e->op != IO_RENAME && e->op != IO_UNLINK) || entry_synced(i, cut))
			continue;
		snprintf(a, sizeof(a), "%s/%s", dir, e->name);
		snprintf(b, sizeof(b), "%s/%s", dir, e->to);
		snprintf(t, sizeof(t), "%s/%u", script->trash, i);
		if (e->op == IO_UNLINK) {
			rename(t, a);
			continue;
		}
		rename(b, a);
		rename(t, b);
	}
}

/* With SINGVGPU_SCALE, on a busy machine. */
TEST_F_TIMEOUT(faults, power_cuts_at_every_operation, 3000)
{
	unsigned int versions = 0;

	for (unsigned int at = self->ops % self->step; at <= self->ops; at += self->step)
		for (unsigned int again = 0; again < (at < self->ops ? 2 : 8) * scale(); again++) {
			copy_base(self->base, self->dir);
			run(self->dir, KILLED, at, true);
			seed(at * 1000 + again);
			lose_writes(self->dir, script->n < at ? script->n : at);
			lose_entries(self->dir, script->n < at ? script->n : at);
			versions = check_all(self->dir);
			if (!nothing_lost(versions)) {
				fprintf(stderr, "# cut at operation %u, %u: %x\n", at, again, versions);
				abort();
			}
		}
	/* Whoever was told that it is durable, finds it. */
	ASSERT_EQ(1u << 2 | 1u << 3, versions);
}

/* ------------------------------------------------------------------------------ bit rot */

struct rot {
	struct store *s;
	char file[300];
	bool found;
	int err;
};

static void notice(void *arg, const char *file, uint64_t at, const char *what)
{
	struct rot *r = arg;

	(void)at;
	if (!strcmp(file, r->file) && *what)
		r->found = true;
}

/* Flips bits of one file, one at a time, `step` apart: verify names the file. */
static void flip_bits(struct rot *r, const char *dir, uint64_t from, uint64_t to, unsigned int step)
{
	struct store_verify_stats st;
	char path[600];
	uint8_t b, flipped;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, r->file);
	fd = open(path, O_RDWR);
	NEED(fd >= 0);
	for (uint64_t bit = from * 8; bit < to * 8; bit += step) {
		NEED(pread(fd, &b, 1, bit / 8) == 1);
		flipped = b ^ 1 << bit % 8;
		NEED(pwrite(fd, &flipped, 1, bit / 8) == 1);
		r->found = false;
		if (store_verify(r->s, notice, NULL, NULL, r, &st) != -EBADMSG || !r->found) {
			fprintf(stderr, "# bit %llu of %s: not found\n", (unsigned long long)bit,
				r->file);
			abort();
		}
		NEED(pwrite(fd, &b, 1, bit / 8) == 1);
	}
	close(fd);
	NEED_OK(store_verify(r->s, say_bad, NULL, NULL, r, &st));
}

static int one_segment(void *arg, const char *file)
{
	snprintf(((struct rot *)arg)->file, 300, "seg/%s", file);
	return 0;
}

static int one_checkpoint(void *arg, const char *id, uint64_t time)
{
	snprintf(((struct rot *)arg)->file, 300, "cp/%s", id);
	return 0;
}

static uint64_t size_of(const char *dir, const char *file)
{
	char path[600];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	NEED(stat(path, &st) == 0);
	return st.st_size;
}

TEST_F(faults, verify_names_every_flipped_bit)
{
	unsigned int step = scale() > 1 ? 1 : 31;
	struct store_part part = { .name = "a" };
	uint8_t p[3 * 4096 + 100];
	struct store_writer *w;
	struct rot r = { 0 };
	uint64_t size;
	char id[STORE_ID];

	copy_base(self->base, self->dir);
	shell("rm -r '%s'", self->dir);
	make_store(self->dir, variant->zstd);
	r.s = open_store(self->dir, STORE_RW);
	ASSERT_EQ(0, store_writer_open(r.s, 0, &w));
	fill(p, sizeof(p), 8);
	ASSERT_EQ(0, put_at(w, p, sizeof(p), &part.ref));
	ASSERT_EQ(0, store_writer_flush(w));
	store_writer_close(w);
	ASSERT_EQ(0, store_publish(r.s, &part, 1, "{\"some\": \"text\"}", id));

	ASSERT_EQ(0, store_dir_names(r.s, "seg", one_segment, &r));
	size = size_of(self->dir, r.file);
	flip_bits(&r, self->dir, 0, size - PAGE, step);
	/* Five digests; frames, zeros; the foot. */
	flip_bits(&r, self->dir, size - PAGE, size - PAGE + 112, 1);
	flip_bits(&r, self->dir, size - PAGE + 112, size - 64, step);
	flip_bits(&r, self->dir, size - 64, size, 1);
	ASSERT_EQ(0, store_list(r.s, one_checkpoint, &r));
	flip_bits(&r, self->dir, 0, size_of(self->dir, r.file), 1);
	strcpy(r.file, "store");
	flip_bits(&r, self->dir, 0, 64, 1);
	store_close(r.s);
}

/* No page comes back other than it was written: in error or right, at every byte of the segment. */
TEST_F(faults, reads_are_right_or_fail)
{
	struct store_part part = { .name = "a" };
	uint8_t p[5 * 4096];
	struct store_writer *w;
	struct store *s;
	struct rot r = { 0 };
	char path[700];
	int fd, failed = 0;

	shell("rm -r '%s'", self->dir);
	make_store(self->dir, variant->zstd);
	s = open_store(self->dir, STORE_RW);
	ASSERT_EQ(0, store_writer_open(s, 0, &w));
	fill(p, sizeof(p), 8);
	ASSERT_EQ(0, put_at(w, p, sizeof(p), &part.ref));
	ASSERT_EQ(0, store_writer_flush(w));
	store_writer_close(w);
	ASSERT_EQ(0, store_dir_names(s, "seg", one_segment, &r));
	store_close(s);
	snprintf(path, sizeof(path), "%s/%s", self->dir, r.file);
	fd = open(path, O_RDWR);
	ASSERT_LT(0, fd);
	for (uint64_t at = 0; at < size_of(self->dir, r.file); at += scale() > 1 ? 1 : 23) {
		uint8_t b, other;
		int err;

		ASSERT_EQ(1, pread(fd, &b, 1, at));
		other = ~b;
		ASSERT_EQ(1, pwrite(fd, &other, 1, at));
		s = open_store(self->dir, 0);
		err = compare(s, &part.ref, p, sizeof(p));
		failed += err != 0;
		if (err && err != -EBADMSG && err != -ENODATA && err != -EPROTONOSUPPORT) {
			fprintf(stderr, "# byte %d: %d, %s\n", (int)at, err, store_why()->text);
			abort();
		}
		store_close(s);
		ASSERT_EQ(1, pwrite(fd, &b, 1, at));
	}
	close(fd);
	EXPECT_LT(50, failed);
}

TEST_HARNESS_MAIN
