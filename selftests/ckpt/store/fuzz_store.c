// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_store.c - libFuzzer over a store that someone has forged: segments, maps, checkpoints
 *
 * An input is a program that writes a store's files: pages of data or of maps into a segment,
 * objects that refer to them, a checkpoint of these objects. All of it is nearly right, and sealed:
 * checksums and digests are those of a store whose maker knows the format, so that the readers see
 * what lies behind them. Then the store is listed, read, verified and cleaned.
 *
 * Checked, besides the sanitizers': what store_verify finds no fault with can be read, to the end,
 * and is the same after store_gc; a map that can be read says the same once it has been written.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zstd.h>

#include "store_i.h"

#define MUST(c) do { \
	if (!(c)) { \
		fprintf(stderr, "must be: %s (line %d): %s\n", #c, __LINE__, store_why()->text); \
		abort(); \
	} \
} while (0)
#include "../../harness/fuzz.h"

#define SLOTS	 40
#define SEGS	 3
#define PARTS	 8
#define READ_MAX (1u << 20)
#define TIME	 0x1122334455667788ull

static char dir[64];
static struct store *store;	/* for its seed and identity */

/* Changes up to 3 bytes of p[len]. */
static void spoil(struct program *in, uint8_t how, void *p, size_t len)
{
	for (int i = how & 3; i; i--) {
		uint16_t at = raw(in, 2);

		((uint8_t *)p)[at % len] ^= byte(in);
	}
}

/* ------------------------------------------------------------------------------ segments */

static struct {
	uint32_t slots;
	uint8_t page[SLOTS][STORE_PAGE] __attribute__((aligned(STORE_PAGE)));
	struct store_digest digest[SLOTS];
} segs[SEGS];

static uint64_t id_of(unsigned int seg)
{
	return 0x1000 + seg;
}

static void data_page(struct program *in, uint8_t *page)
{
	memset(page, byte(in), STORE_PAGE);
	for (int n = byte(in) % 8; n; n--)
		page[raw(in, 2) % STORE_PAGE] = byte(in);
}

static void put(struct bytes *b, uint64_t v)
{
	MUST(!store_bytes_varint(b, v));
}

/* A map: its head, then runs that are likely, or any numbers. */
static void map_page(struct program *in, uint8_t *page)
{
	struct bytes b = { 0 };
	uint8_t how = byte(in), n = byte(in);
	uint64_t ids[4];

	MUST(!store_bytes_add(&b, how & 128 ? &n : (const uint8_t *)"\1", 1));
	put(&b, how & 64 ? raw(in, 8) : how & 32 ? STORE_PAGE * (uint64_t)n : raw(in, 2));
	put(&b, how & 16 ? raw(in, 4) : how & 3);
	for (int i = 0; i < (how & 3); i++)
		ids[i] = how & 8 ? raw(in, 8) : id_of((n + i) % SEGS);
	MUST(!store_bytes_add(&b, ids, (how & 3) * sizeof(*ids)));
	for (int i = byte(in) % 64; i; i--) {
		uint8_t v = byte(in);

		/* A short number, a long one, or a jump to a slot that there is. */
		put(&b, v < 128 ? v : v < 192 ? raw(in, 1 + v % 8) : (v & 31) << 1);
	}
	memset(page, 0, STORE_PAGE);
	memcpy(page, b.p, b.len < STORE_PAGE ? b.len : STORE_PAGE);
	free(b.p);
}

/* The map that an honest writer would have made for n pages from slot on, spoiled. */
static void honest_map(struct program *in, uint8_t *page)
{
	uint8_t how = byte(in), n = 1 + byte(in) % 48, slot = byte(in) % SLOTS;
	struct extent x[3];
	uint64_t ids[SEGS];
	struct map m = { .size = n * (uint64_t)STORE_PAGE - (how & 64), .ids = ids, .nids = SEGS,
			 .ext = x };
	struct bytes b = { 0 };

	for (unsigned int i = 0; i < SEGS; i++)
		ids[i] = id_of(i);
	for (uint64_t at = how >> 2 & 3; at < n && m.n < 3; at += how >> 4 & 3) {
		uint32_t count = 1 + byte(in) % 16;

		count = count < n - at ? count : n - at;
		x[m.n++] = (struct extent){ at, count, (slot + m.n) % SEGS, slot };
		at += count;
	}
	MUST(!store_map_encode(&m, &b));
	spoil(in, how, b.p, b.len);
	memset(page, 0, STORE_PAGE);
	memcpy(page, b.p, b.len < STORE_PAGE ? b.len : STORE_PAGE);
	free(b.p);
}

static void add_page(struct program *in)
{
	uint8_t how = byte(in);
	unsigned int seg = how % SEGS;
	uint32_t slot = segs[seg].slots;

	if (slot == SLOTS)
		return;
	switch (how >> 4 & 3) {
	case 0:
		data_page(in, segs[seg].page[slot]);
		break;
	case 1:
		map_page(in, segs[seg].page[slot]);
		break;
	default:
		honest_map(in, segs[seg].page[slot]);
		break;
	}
	segs[seg].digest[slot] = store_hash(store, segs[seg].page[slot]);
	segs[seg].slots++;
}

static void write_file(const char *name, const void *p, size_t len, const void *q, size_t more)
{
	int fd = openat(store->dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	MUST(fd >= 0 && write(fd, p, len) == (ssize_t)len && write(fd, q, more) == (ssize_t)more);
	close(fd);
}

/* Packs the pages as a store with zstd does; what is packed may be spoiled. Returns its length. */
static size_t pack(struct program *in, uint8_t how, unsigned int seg, struct disk_frame *f,
		   uint32_t *frames, uint8_t *out)
{
	size_t at = 0;

	for (*frames = 0; *frames * FRAME_SLOTS < segs[seg].slots; ++*frames) {
		uint32_t first = *frames * FRAME_SLOTS, n = segs[seg].slots - first;
		size_t len;

		n = n < FRAME_SLOTS ? n : FRAME_SLOTS;
		len = ZSTD_compress(out + at, ZSTD_compressBound(n * STORE_PAGE),
				    segs[seg].page[first], n * STORE_PAGE, 1);
		MUST(!ZSTD_isError(len));
		spoil(in, how, out + at, len);
		f[*frames] = (struct disk_frame){ .len = len, .check = store_check64(out + at, len) };
		at += len;
	}
	memset(out + at, 0, STORE_PAGE);
	return (at + STORE_PAGE - 1) & ~(size_t)(STORE_PAGE - 1);
}

static void write_segment(struct program *in, unsigned int seg)
{
	static uint8_t packed[2 * SLOTS * STORE_PAGE], index[4 * STORE_PAGE];
	uint8_t how = byte(in);
	struct disk_frame f[2 + SLOTS / FRAME_SLOTS];
	uint32_t slots = segs[seg].slots, frames = 0;
	size_t at = slots * (size_t)STORE_PAGE, len;
	struct disk_head *foot;
	char name[SEG_NAME];

	if (!slots)
		return;
	if (how & 4)
		at = pack(in, how >> 3, seg, f, &frames, packed);
	len = store_seg_index_len(slots, frames);
	store_seg_write_index(store, id_of(seg), slots, at, segs[seg].digest, f, frames, index);
	if (how & 32) {		/* the index is spoiled, and sealed again */
		foot = (struct disk_head *)(index + len) - 1;
		if (how & 64)
			spoil(in, how, index, slots * 16 + frames * 16);
		else
			spoil(in, how, (uint8_t *)foot + 8, 48);
		foot->e = store_check64(index, len - sizeof(*foot));
		foot->check = store_check64(foot, offsetof(struct disk_head, check));
	}
	store_seg_name(id_of(seg), name);
	write_file(name, frames ? packed : (uint8_t *)segs[seg].page, at, index, len);
}

/* ------------------------------------------------------------------------------ a checkpoint */

static struct store_ref make_ref(struct program *in)
{
	uint8_t how = byte(in), where = byte(in), seg = where % SEGS;
	struct disk_ref r = { .size = how & 4 ? raw(in, 8) : how & 8 ? byte(in) * STORE_PAGE :
			      raw(in, 2) };
	struct store_ref ref;

	if (how & 16 && segs[seg].slots) {
		uint32_t slot = byte(in) % segs[seg].slots;
		struct map m;

		r.seg = id_of(seg);
		r.slot = slot | (where >> 6 ?: how >> 7 ? 1 : 0) << 24;
		memcpy(r.digest, &segs[seg].digest[slot], sizeof(r.digest));
		/* As its map says. */
		if (how & 32 && !store_map_decode(segs[seg].page[slot], STORE_PAGE, &m)) {
			r.size = m.size;
			store_map_free(&m);
		}
	}
	spoil(in, how & 64 ? how : 0, &r, sizeof(r));
	memcpy(&ref, &r, sizeof(ref));
	return ref;
}

static void write_checkpoint(struct program *in, char id[STORE_ID])
{
	uint8_t how = byte(in), n = byte(in) % (PARTS + 1), name[24] = "a";
	struct disk_head h = { .b = TIME, .c = 1, .a = n << 8 };
	struct bytes b = { 0 };
	char file[64];

	for (uint8_t i = 0; i < n; i++) {
		struct store_ref ref = make_ref(in);
		uint16_t len = how & 4 ? byte(in) % sizeof(name) : 2, said = len;

		name[0] = 'a' + i;
		name[1] = how & 8 ? byte(in) : 'x';
		spoil(in, how >> 4 & 1, &said, sizeof(said));
		MUST(!store_bytes_add(&b, &ref, sizeof(ref)));
		MUST(!store_bytes_add(&b, &said, sizeof(said)));
		MUST(!store_bytes_add(&b, name, len));
	}
	MUST(!store_bytes_add(&b, "{}", 2));
	spoil(in, how >> 5 & 1, b.p, b.len);
	h.d = b.len;
	h.e = store_check64(b.p, b.len);
	if (how & 64) {		/* its body is an object: the page that comes next */
		struct disk_ref r = { .size = b.len, .seg = id_of(0), .slot = segs[0].slots - 1 };

		if (how & 128 && segs[0].slots) {
			memset(segs[0].page[r.slot], 0, STORE_PAGE);
			memcpy(segs[0].page[r.slot], b.p, b.len);
			segs[0].digest[r.slot] = store_hash(store, segs[0].page[r.slot]);
		}
		if (segs[0].slots)
			memcpy(r.digest, &segs[0].digest[r.slot], sizeof(r.digest));
		h.a |= CP_OBJECT;
		b.len = 0;
		MUST(!store_bytes_add(&b, &r, sizeof(r)));
	}
	spoil(in, how, (uint8_t *)&h.a, 4);
	if (how & 2)
		h.d = raw(in, 2);
	store_head_seal(&h, CP_MAGIC, store);
	snprintf(id, STORE_ID, "%016llx%016llx", 1ull, TIME);
	snprintf(file, sizeof(file), "cp/%s", id);
	write_file(file, &h, sizeof(h), b.p, b.len);
	free(b.p);
}

/* ------------------------------------------------------------------------------ reading it */

static uint8_t *room;

/* Reads an object by all ways. 0 and its checksum, or -errno; 1: it is too large for that. */
static int read_object(struct store *s, const struct store_ref *ref, uint64_t *sum)
{
	struct store_digest d[64];
	struct store_reader *r;
	struct store_fetch *f;
	uint64_t size, from, to;
	ssize_t n;
	int err = store_object_open(s, ref, &r);

	if (err) {
		MUST(err < 0 && !r);
		return err;
	}
	size = store_size(r);
	MUST(size == store_ref_size(ref));
	from = to = 0;
	for (int i = 0; i < 200 && !store_next_data(r, to, &from, &to); i++)
		MUST(from < to && to <= size);
	n = size / STORE_PAGE < 64 ? size / STORE_PAGE : 64;
	store_digests(r, 0, d, n);
	store_digests(r, (size / STORE_PAGE - n) * STORE_PAGE, d, n);
	/* The end, then some pages, then all. */
	n = store_read(r, size < 100 ? 0 : size - 100, room, 200);
	MUST(n <= 100);
	if (size >= 3 * STORE_PAGE && !store_fetch(r, STORE_PAGE, room, 2 * STORE_PAGE, &f))
		store_fetch_end(r, f);
	n = 1;
	if (size <= READ_MAX) {
		n = store_read(r, 0, room, READ_MAX);
		MUST(n < 0 || (uint64_t)n == size);
		*sum = n < 0 ? 0 : store_check64(room, n);
		n = n < 0 ? n : 0;
	}
	store_reader_close(r);
	return n;
}

static int nothing(void *arg, const char *id, uint64_t time)
{
	(void)arg, (void)time;
	MUST(strlen(id) == STORE_ID - 1);
	return 0;
}

static int row(void *arg, uint64_t seg, uint32_t slot, uint32_t count)
{
	uint64_t *rows = arg;

	(void)seg, (void)slot;
	MUST(count);
	++*rows;
	return 0;
}

/* Opens the checkpoint and reads its parts: their results and checksums. -errno. */
static int read_all(struct store *s, const char *id, int *err, uint64_t *sum, size_t *parts)
{
	const struct store_part *part;
	struct store_checkpoint *c;
	struct input *in;
	uint64_t rows = 0;
	int rc = store_checkpoint_open(s, id, &c);

	*parts = 0;
	if (rc)
		return rc;
	*parts = store_checkpoint_parts(c, &part);
	MUST(*parts <= PARTS || *parts < READ_MAX);
	MUST(strlen(store_checkpoint_json(c)) < READ_MAX && !strcmp(store_checkpoint_id(c), id));
	*parts = *parts < PARTS ? *parts : PARTS;
	for (size_t i = 0; i < *parts; i++) {
		MUST(strlen(part[i].name) < 65536);
		store_checkpoint_find(c, part[i].name);
		err[i] = read_object(s, &part[i].ref, &sum[i]);
	}
	MUST(!store_input_open(s, &in));
	for (size_t i = 0; i < *parts; i++)
		store_input_walk(in, &part[i].ref, row, &rows);
	store_input_close(in);
	store_checkpoint_close(c);
	return 0;
}

static void bad(void *arg, const char *file, uint64_t at, const char *what)
{
	(void)arg, (void)at;
	MUST(*file && *what);
}

static void use(struct program *in, const char *id)
{
	struct store_verify_stats v;
	struct store_gc_stats g;
	struct store_stats st;
	int err[PARTS], again[PARTS], good, rc;
	uint64_t sum[PARTS], same[PARTS];
	size_t n, m;
	struct store *s;
	struct why why = { 0 };

	MUST(!store_open(&s, dir, STORE_RW, &why));
	MUST(!store_list(s, nothing, NULL));
	rc = read_all(s, id, err, sum, &n);
	good = store_verify(s, bad, NULL, NULL, NULL, &v);
	MUST(!good == !v.problems || good != -EBADMSG);
	MUST(good || !rc);
	for (size_t i = 0; i < n && !good; i++)
		MUST(err[i] >= 0);
	store_stats(s, &st);
	if (byte(in) & 1) {
		rc = store_gc(s, byte(in) % 101, 0, NULL, NULL, &g);
		MUST(!rc || good);
		store_close(s);
		MUST(!store_open(&s, dir, 0, &why));
		read_all(s, id, again, same, &m);
		MUST(m == n);
		for (size_t i = 0; i < n; i++)
			MUST(again[i] == err[i] && (err[i] || same[i] == sum[i]));
		MUST(good || !store_verify(s, bad, NULL, NULL, NULL, &v));
	}
	store_close(s);
}

/* A map by itself: what is read and written again says the same. */
static void map_alone(const uint8_t *p, size_t len)
{
	struct map m, again;
	struct bytes b = { 0 };
	size_t i = 0, j = 0;

	if (store_map_decode(p, len, &m))
		return;
	MUST(!store_map_encode(&m, &b) && !store_map_decode(b.p, b.len, &again));
	MUST(m.size == again.size && m.nids == again.nids &&
	     !memcmp(m.ids, again.ids, m.nids * sizeof(*m.ids)));
	/* Rows may have been joined. */
	for (uint64_t in_i = 0, in_j = 0; i < m.n && j < again.n;) {
		const struct extent *x = &m.ext[i], *y = &again.ext[j];
		uint64_t n = x->count - in_i < y->count - in_j ? x->count - in_i : y->count - in_j;

		MUST(n && x->page + in_i == y->page + in_j && x->seg == y->seg &&
		     x->slot + in_i == y->slot + in_j);
		MUST(x->seg < m.nids && x->slot + (uint64_t)x->count <= SEG_SLOTS);
		in_i += n;
		in_j += n;
		if (in_i == x->count)
			in_i = 0, i++;
		if (in_j == y->count)
			in_j = 0, j++;
	}
	MUST(i == m.n && j == again.n);
	store_map_free(&m);
	store_map_free(&again);
	free(b.p);
}

static void end(void)
{
	char cmd[128];

	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
	if (system(cmd))
		return;
}

static void begin(void)
{
	struct store_params p = { .seed = 42 };
	struct why why = { 0 };

	snprintf(dir, sizeof(dir), "%s/fuzz-store-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" :
		 "/dev/shm");
	MUST(mkdtemp(dir));
	atexit(end);
	MUST(!store_create(dir, &p, &why));
	MUST(!store_open(&store, dir, 0, &why));
	/* Kept only for what is written: gc must not wait for it. */
	close(store->lock);
	store->lock = -1;
	room = aligned_alloc(STORE_PAGE, READ_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct program in = { data, data + size };
	char id[STORE_ID], name[SEG_NAME];
	uint8_t pages;

	if (!room)
		begin();
	if (size && data[0] == 255) {
		map_alone(data + 1, size - 1);
		return 0;
	}
	pages = byte(&in);
	for (unsigned int i = 0; i < SEGS; i++) {
		segs[i].slots = 0;
		store_seg_name(id_of(i), name);
		unlinkat(store->dir, name, 0);
	}
	for (int i = 0; i < pages % 64; i++)
		add_page(&in);
	write_checkpoint(&in, id);
	for (unsigned int i = 0; i < SEGS; i++)
		write_segment(&in, i);
	use(&in, id);
	return 0;
}
