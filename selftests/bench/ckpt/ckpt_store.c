// SPDX-License-Identifier: Apache-2.0
/*
 * ckpt_store.c - two dumps into our store, beside fio on the same disk and other stores
 *
 * A turn is fio, then both dumps from memory into a new store (as fio and checkpoints write), then
 * both from their files into another store (as the other programs read them). The time includes
 * opening the store, (mapping the file,) writing, making durable, publishing and closing.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt.h"
#include "store.h"

#define CHUNK	(4u << 20)
#define TURNS	16

/* How a dump is given. */
enum from { MEMORY, MAPPED };

static int open_dump(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		die("%s: %s", path, strerror(errno));
	return fd;
}

static void *map_dump(const struct bench *b, const char *path, int flags)
{
	int fd = open_dump(path);
	void *p = mmap(NULL, b->size, PROT_READ, MAP_SHARED | flags, fd, 0);

	if (p == MAP_FAILED)
		die("%s: %s", path, strerror(errno));
	close(fd);
	return p;
}

/* In memory of its own, with the pages that the system gives. */
static void *load_dump(const struct bench *b, const char *path)
{
	int fd = open_dump(path);
	char *p = mmap(NULL, b->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("no memory for a dump");
	madvise(p, b->size, MADV_HUGEPAGE);
	for (uint64_t at = 0; at < b->size; at += CHUNK)
		if (pread(fd, p + at, CHUNK, at) != CHUNK)
			die("%s: %s", path, strerror(errno));
	close(fd);
	return p;
}

static void check(int err)
{
	if (err < 0)
		die("%s", store_why()->text);
}

static struct store *open_store(const char *dir, unsigned int flags)
{
	struct store *s;
	struct why why = { 0 };

	if (store_open(&s, dir, flags, &why))
		die("%s", why.text);
	return s;
}

static double ingest(const struct bench *b, const char *dir, const char *path, enum from from)
{
	uint8_t *dump = from == MEMORY ? load_dump(b, path) : NULL;
	struct store_part part = { .name = "dump" };
	struct store_writer *w;
	struct store_object *o;
	double begin, seconds;
	char id[STORE_ID];
	struct store *s;

	sync();
	begin = now_s();
	s = open_store(dir, STORE_RW);
	if (from == MAPPED)
		dump = map_dump(b, path, 0);
	check(store_writer_open(s, 0, &w));
	check(store_object_begin(w, &o));
	for (uint64_t at = 0; at < b->size; at += CHUNK) {
		if (from == MAPPED)	/* in one go: faults are dearer */
			madvise(dump + at, CHUNK, MADV_POPULATE_READ);
		check(store_object_write(o, at, dump + at, CHUNK));
	}
	check(store_object_end(o, 0, &part.ref));
	check(store_writer_flush(w));
	check(store_publish(s, &part, 1, "{}", id));
	store_writer_close(w);
	store_close(s);
	if (from == MAPPED)
		munmap(dump, b->size);
	seconds = now_s() - begin;
	if (from == MEMORY)
		munmap(dump, b->size);
	return seconds;
}

/* The seconds that reading the latest takes; it must be the dump. */
static double read_back(const struct bench *b, const char *dir, const char *path)
{
	uint8_t *dump = map_dump(b, path, MAP_POPULATE), *buf = aligned_alloc(STORE_PAGE, CHUNK);
	double begin = now_s(), s;
	struct store *st = open_store(dir, 0);
	struct store_checkpoint *c;
	struct store_reader *r;

	check(store_checkpoint_open(st, "latest", &c));
	check(store_object_open(st, store_checkpoint_find(c, "dump"), &r));
	for (uint64_t at = 0; at < b->size; at += CHUNK) {
		ssize_t n = store_read(r, at, buf, CHUNK);

		check(n);
		if (n != CHUNK || memcmp(buf, dump + at, CHUNK))
			die("what the store gives back is not the dump");
	}
	store_reader_close(r);
	store_checkpoint_close(c);
	store_close(st);
	s = now_s() - begin;
	free(buf);
	munmap(dump, b->size);
	return s;
}

/* ------------------------------------------------------------------------------ limits */

struct half {
	const struct store *s;
	const uint8_t *from;
	uint64_t size, sum;
};

static void *hash_half(void *arg)
{
	struct half *h = arg;

	for (uint64_t at = 0; at < h->size; at += STORE_PAGE)
		h->sum += store_hash(h->s, h->from + at).lo;
	return NULL;
}

/* Bytes/s of hashing a dump's pages in two threads. */
static double hash_limit(const struct bench *b, const struct store *s, const char *path)
{
	uint8_t *dump = map_dump(b, path, MAP_POPULATE);
	struct half h[2] = {
		{ .s = s, .from = dump, .size = b->size / 2 },
		{ .s = s, .from = dump + b->size / 2, .size = b->size / 2 },
	};
	double begin = now_s(), seconds;
	pthread_t t;

	if (pthread_create(&t, NULL, hash_half, &h[0]))
		die("no thread");
	hash_half(&h[1]);
	pthread_join(t, NULL);
	seconds = now_s() - begin;
	munmap(dump, b->size);
	return b->size / seconds;
}

/* ------------------------------------------------------------------------------- turns */

struct turns {
	double fio1[TURNS], fio4[TURNS], huge[TURNS], back[TURNS], hash[TURNS];
	double first[2][TURNS], second[2][TURNS];	/* by enum from */
	uint64_t first_bytes, second_bytes;
};

/* Both dumps into a new store; it stays. */
static void both(const struct bench *b, const struct dumps *d, const char *dir, struct turns *t, int i,
		 enum from from)
{
	struct why why = { 0 };

	if (store_create(dir, NULL, &why))
		die("%s", why.text);
	t->first[from][i] = ingest(b, dir, d->path[0], from);
	t->first_bytes = folder_bytes(dir);
	t->second[from][i] = ingest(b, dir, d->path[1], from);
	t->second_bytes = folder_bytes(dir) - t->first_bytes;
}

static void turn(const struct bench *b, const struct dumps *d, struct turns *t, int i)
{
	char memory[600], mapped[600];
	struct store *s;

	snprintf(memory, sizeof(memory), "%s/store", b->dir);
	snprintf(mapped, sizeof(mapped), "%s/store.file", b->dir);
	sync();
	t->fio1[i] = fio_write(b, "1M", b->size, false);
	t->fio4[i] = fio_write(b, "4M", b->size, false);
	t->huge[i] = fio_write(b, "1M", b->size, true);
	both(b, d, memory, t, i, MEMORY);
	both(b, d, mapped, t, i, MAPPED);
	s = open_store(mapped, 0);
	t->hash[i] = hash_limit(b, s, d->path[1]);
	store_close(s);
	t->back[i] = read_back(b, mapped, d->path[1]);
	folder_remove(b, memory);
	folder_remove(b, mapped);
	/* The file system discards what was freed behind our back. */
	sync();
	sleep(2);
}

static void report(const struct bench *b, const struct dumps *d, struct turns *t, int n)
{
	double fio1 = median(t->fio1, n), fio4 = median(t->fio4, n), fio = fmax(fio1, fio4);
	double first = median(t->first[MEMORY], n), second = median(t->second[MEMORY], n);
	double hash = median(t->hash, n) / 1e9;

	if (fio > 0) {
		metric("fio.write_1m_gbs", fio1 / 1e9, "GB/s");
		metric("fio.write_4m_gbs", fio4 / 1e9, "GB/s");
		metric("fio.write_gbs", fio / 1e9, "GB/s");
		metric("fio.write_huge_gbs", median(t->huge, n) / 1e9, "GB/s");
	} else {
		printf("# fio is not installed\n");
	}
	metric("limit.hash_gbs", hash, "GB/s");
	metric("store.first_s", first, "s");
	metric("store.first_bytes", t->first_bytes, "B");
	metric("store.second_s", second, "s");
	metric("store.first_file_s", median(t->first[MAPPED], n), "s");
	metric("store.second_file_s", median(t->second[MAPPED], n), "s");
	metric("store.second_bytes", t->second_bytes, "B");
	metric("store.changed_bytes", d->changed, "B");
	metric("store.read_gbs", b->size / median(t->back, n) / 1e9, "GB/s");
	metric_bar("store.first_vs_fio", fio > 0 ? b->size / first / fio : NAN, 0.8, NAN);
	metric_bar("store.second_vs_hash", b->size / second / 1e9 / hash, 0.8, NAN);
	metric_bar("store.second_vs_changed", (double)t->second_bytes / d->changed, NAN, 1.03);
}

void bench_store(const struct bench *b)
{
	int n = b->turns < TURNS ? b->turns : TURNS;
	static struct turns t;
	struct dumps d;

	dumps_make(b, &d);
	for (int i = 0; i < n; i++)
		turn(b, &d, &t, i);
	report(b, &d, &t, n);
	if (b->peers) {
		peers(b, &d);
		metric_bar("store.first_vs_peer", metric_get("store.first_file_s") /
			   peers_best("first_s"), NAN, 0.2);
		metric_bar("store.second_vs_peer", metric_get("store.second_file_s") /
			   peers_best("second_s"), NAN, 1.0 / 15);
	}
	unlink(d.path[0]);
	unlink(d.path[1]);
}
