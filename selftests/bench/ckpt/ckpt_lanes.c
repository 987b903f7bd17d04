// SPDX-License-Identifier: Apache-2.0
/*
 * ckpt_lanes.c - rates of a dump's and a restore's stages, and the share of a PCIe 5 link they allow
 *
 * Each stage is measured with one thread and with two, in memory: hashing, copying (as a writer to
 * its buffers, unless its store is in memory), writing to a tmpfs, lanes of an object (store.h) with all pages new and with all known,
 * lookups of digests, reading. The model takes half of the rate of two threads for that of each of
 * sixteen, so that it contains what two do to each other, and names the stage that limits.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt.h"
#include "store.h"

#define LINK	55e9		/* bytes/s: PCIe 5 x16, pinned */
#define HBM	3.35e12		/* bytes/s: H100; the digests' kernel reads all of it */
#define CORES	16
#define DRAM	250e9		/* bytes/s of the host: eight channels of DDR5, three quarters used */
#define DRAM_NEW 4		/* bytes moved for a byte dumped: DMA, read, a line fetched and written */
#define TURNS	16
#define MB	(1ul << 20)
#define RING	(8 * MB)	/* a lane's buffers */
#define GIVEN	(4 * MB)	/* a pinned buffer */

/* A thread's part of a measurement. */
struct part {
	void (*work)(struct part *p);
	const struct lanes *l;
	struct store_object *o;
	const struct store_ref *ref;
	uint64_t at, len, sum;
	double began;
	pthread_barrier_t *begin;
};

struct lanes {
	char dir[600];
	const struct bench *b;
	struct store *s;
	uint8_t *data;
	uint64_t size;
	struct store_digest *d;
};

static void check(int err)
{
	if (err < 0)
		die("%s", store_why()->text);
}

static uint8_t *memory(uint64_t len)
{
	uint8_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("no memory");
	madvise(p, len, MADV_HUGEPAGE);
	memset(p, 1, len);
	return p;
}

/* When all threads have what they need. */
static void together(struct part *p)
{
	pthread_barrier_wait(p->begin);
	p->began = now_s();
}

static void hash(struct part *p)
{
	together(p);
	for (uint64_t at = p->at; at < p->at + p->len; at += STORE_PAGE)
		p->sum += store_hash(p->l->s, p->l->data + at).lo;
}

static void copy(struct part *p)
{
	uint8_t *ring = memory(RING);

	together(p);
	for (uint64_t at = 0; at < p->len; at += MB)
		memcpy(ring + at % RING, p->l->data + p->at + at, MB);
	munmap(ring, RING);
}

static void write_files(struct part *p)
{
	uint8_t *ring = memory(RING);
	char path[700];
	int fd = -1;

	together(p);
	for (uint64_t at = 0; at < p->len; at += MB) {
		if (at % (64 * MB) == 0) {
			close(fd);
			snprintf(path, sizeof(path), "%s/%llu", p->l->dir,
				 (unsigned long long)(p->at + at));
			fd = open(path, O_CREAT | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
			if (fd < 0 || unlink(path))
				die("%s: %s", path, strerror(errno));
		}
		if (pwrite(fd, ring + at % RING, MB, at % (64 * MB)) != (ssize_t)MB)
			die("%s: %s", path, strerror(errno));
	}
	close(fd);
	munmap(ring, RING);
}

static void put(struct part *p)
{
	together(p);
	for (uint64_t at = p->at; at < p->at + p->len; at += GIVEN)
		check(store_object_put(p->o, at, p->l->data + at, GIVEN / STORE_PAGE,
				       p->l->d + at / STORE_PAGE));
	check(store_object_flush(p->o));
}

static void put_hashed(struct part *p)
{
	together(p);
	for (uint64_t at = p->at; at < p->at + p->len; at += GIVEN)
		check(store_object_write(p->o, at, p->l->data + at, GIVEN));
	check(store_object_flush(p->o));
}

static void get(struct part *p)
{
	uint8_t *buf = store_buffer(2 * GIVEN);
	struct store_reader *r;

	if (!buf)
		die("no memory");
	check(store_object_open(p->l->s, p->ref, &r));
	together(p);
	for (uint64_t at = p->at; at < p->at + p->len; at += 2 * GIVEN)
		check(store_read(r, at, buf, 2 * GIVEN));
	store_reader_close(r);
	free(buf);
}

static void *begin(void *arg)
{
	struct part *p = arg;

	p->work(p);
	return NULL;
}

/* Bytes/s of n threads that share the data. */
static double run(const struct lanes *l, int n, void (*work)(struct part *p),
		  struct store_object **o, const struct store_ref *ref)
{
	pthread_barrier_t start;
	struct part p[2];
	pthread_t t[2];
	double s, end;

	pthread_barrier_init(&start, NULL, n);
	for (int i = 0; i < n; i++) {
		p[i] = (struct part){ .work = work, .l = l, .o = o ? o[i] : NULL, .ref = ref,
				      .at = l->size / n * i, .len = l->size / n,
				      .begin = &start };
		if (pthread_create(&t[i], NULL, begin, &p[i]))
			die("no thread");
	}
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	end = now_s();
	pthread_barrier_destroy(&start);
	s = n == 1 || p[0].began < p[1].began ? p[0].began : p[1].began;
	return l->size / (end - s);
}

/* Into a store of its own, or again into the one that is there: then all pages are known. */
static double put_lanes(struct lanes *l, int n, void (*work)(struct part *p), bool again,
			struct store_ref *ref)
{
	struct store_object *o, *lane[2];
	struct store_writer *w;
	struct why why = { 0 };
	char dir[700];
	double rate;

	snprintf(dir, sizeof(dir), "%s/store", l->dir);
	if (!again) {
		store_close(l->s);
		folder_remove(l->b, dir);
		if (store_create(dir, &(struct store_params){ .seed = 1 }, &why) ||
		    store_open(&l->s, dir, STORE_RW, &why))
			die("%s", why.text);
	}
	check(store_writer_open(l->s, 0, &w));
	check(store_object_begin(w, &o));
	for (int i = 0; i < n; i++)
		check(store_object_lane(o, &lane[i]));
	if (n)
		rate = run(l, n, work, lane, NULL);
	else	/* as before there were lanes: one thread, which another helps to hash */
		rate = run(l, 1, put_hashed, &o, NULL);
	for (int i = 0; i < n; i++)
		check(store_object_join(o, lane[i]));
	check(store_object_end(o, 0, ref));
	check(store_writer_flush(w));
	store_writer_close(w);
	return rate;
}

/* Lookups a second, by one thread. */
static double look_up(struct lanes *l)
{
	uint64_t pages = l->size / STORE_PAGE;
	uint8_t *missing = malloc(pages);
	struct store_writer *w;
	struct store_object *o;
	double s;

	check(store_writer_open(l->s, 0, &w));
	check(store_object_begin(w, &o));
	s = now_s();
	if (!missing || store_object_digests(o, 0, l->d, pages, missing))
		die("pages that were stored are missing");
	s = now_s() - s;
	store_object_abort(o);
	store_writer_close(w);
	free(missing);
	return pages / s;
}

enum stage { HASH, COPY, WRITE, NEW, KNOWN, READ, HASHED, STAGES };
static const char *const names[STAGES] = {
	"hash", "copy", "write", "new", "known", "read", "hashed",
};

struct seen {
	double rate[STAGES][2][TURNS], before[TURNS], lookups[TURNS];
};

static void turn(struct lanes *l, struct seen *v, int i)
{
	struct store_ref ref;

	for (int n = 1; n <= 2; n++) {
		v->rate[HASH][n - 1][i] = run(l, n, hash, NULL, NULL);
		v->rate[COPY][n - 1][i] = run(l, n, copy, NULL, NULL);
		v->rate[WRITE][n - 1][i] = run(l, n, write_files, NULL, NULL);
		v->rate[HASHED][n - 1][i] = put_lanes(l, n, put_hashed, false, &ref);
		v->rate[NEW][n - 1][i] = put_lanes(l, n, put, false, &ref);
		v->rate[KNOWN][n - 1][i] = put_lanes(l, n, put, true, &ref);
		v->rate[READ][n - 1][i] = run(l, n, get, NULL, &ref);
	}
	v->lookups[i] = look_up(l);
	v->before[i] = put_lanes(l, 0, NULL, false, &ref);
}

struct bound {
	const char *what;
	double rate;
};

/* The least of several rates, as a share of the link. */
static void model(const char *name, const struct bound *b, int n)
{
	const struct bound *least = b;
	char text[80];

	for (int i = 0; i < n; i++) {
		printf("# model, %s: %s allows %.1f GB/s, %.2f of the link\n", name, b[i].what,
		       b[i].rate / 1e9, b[i].rate / LINK);
		least = b[i].rate < least->rate ? &b[i] : least;
	}
	printf("# model, %s: limited by %s\n", name, least->what);
	snprintf(text, sizeof(text), "model.%s_vs_link", name);
	metric_bar(text, fmin(least->rate, LINK) / LINK, 0.9, NAN);
}

static void report(struct seen *v, int n)
{
	double r[STAGES][2], lookups = median(v->lookups, n), lane;
	char text[80];

	for (int s = 0; s < STAGES; s++)
		for (int k = 0; k < 2; k++) {
			r[s][k] = median(v->rate[s][k], n);
			snprintf(text, sizeof(text), "lanes.%s_%d_gbs", names[s], k + 1);
			metric(text, r[s][k] / 1e9, "GB/s");
		}
	metric("lanes.lookups_m", lookups / 1e6, "million/s");
	metric_bar("lanes.two_vs_before", r[HASHED][1] / median(v->before, n), 1.0, NAN);
	metric_bar("lanes.digested_vs_before", r[NEW][1] / median(v->before, n), 1.0, NAN);
	lane = 1 / r[NEW][0];
	printf("# a lane's time: hash %.0f %%, write %.0f %%, look up %.0f %%\n",
	       100 / r[HASH][0] / 64 / lane, 100 / r[WRITE][0] / lane,
	       100 / r[KNOWN][0] / lane);

	struct bound dump[] = {
		{ "the link", LINK },
		{ "16 lanes, as two are here", r[NEW][1] / 2 * CORES },
		{ "the store's lock, held for each page as for a known one", r[KNOWN][0] },
		{ "the host's memory", DRAM / DRAM_NEW },
	};
	struct bound hashed[] = {
		{ "16 lanes that hash, as two are here", r[HASHED][1] / 2 * CORES },
		dump[2], dump[3],
	};
	struct bound known[] = {
		{ "the device's memory", HBM },
		{ "one thread's lookups", lookups * STORE_PAGE },
	};
	struct bound load[] = {
		{ "the link", LINK },
		{ "16 readers, as two are here", r[READ][1] / 2 * CORES },
		{ "the host's memory", DRAM / DRAM_NEW },
	};
	model("dump", dump, 4);
	model("dump_hashed", hashed, 3);
	model("dump_known", known, 2);
	model("restore", load, 3);
}

/* A tmpfs of huge pages, which goes with this process; the later parts of a bench would see it, too. */
static bool huge_tmpfs(const struct bench *b, char *dir, size_t len)
{
	snprintf(dir, len, "%s/memory", b->dir);
	return !mkdir(dir, 0700) && !unshare(CLONE_NEWNS) &&
	       !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount("none", dir, "tmpfs", 0, "huge=always,mode=700");
}

void bench_lanes(const struct bench *b)
{
	struct lanes l = { .b = b, .size = b->size / 4 };
	int n = b->turns < TURNS ? b->turns : TURNS;
	static struct seen v;
	uint64_t x = 1;
	struct store_ref ref;

	if (!huge_tmpfs(b, l.dir, sizeof(l.dir))) {
		snprintf(l.dir, sizeof(l.dir), "/dev/shm/singvgpu-bench.XXXXXX");
		if (!mkdtemp(l.dir)) {
			printf("# lanes: no tmpfs at /dev/shm\n");
			return;
		}
		printf("# lanes: in /dev/shm, with the pages that it has\n");
	}
	l.data = memory(l.size);
	l.d = calloc(l.size / STORE_PAGE, sizeof(*l.d));
	if (!l.d)
		die("no memory");
	for (uint64_t at = 0; at < l.size; at += 8) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		memcpy(l.data + at, &x, 8);
	}
	put_lanes(&l, 1, put_hashed, false, &ref);
	for (uint64_t i = 0; i < l.size / STORE_PAGE; i++)
		l.d[i] = store_hash(l.s, l.data + i * STORE_PAGE);
	for (int i = 0; i < n; i++)
		turn(&l, &v, i);
	report(&v, n);
	store_close(l.s);
	if (!strncmp(l.dir, "/dev/shm/", 9))
		folder_remove(b, l.dir);
	munmap(l.data, l.size);
	free(l.d);
}
