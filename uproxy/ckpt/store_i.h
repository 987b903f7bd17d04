/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_i.h - what the store's files share: the format on disk, segments in memory, the I/O layer
 *
 * Invariants:
 *   1. What lies in seg/ is complete and durable but for its directory entry; it is changed by gc
 *      alone, which replaces whole files. What lies in tmp/ belongs to a handle that is open.
 *   2. What lies in cp/ needs only what lies in seg/, directory entries synced.
 *   3. gc deletes with the lock held exclusively; every handle holds it shared.
 *   4. A digest is looked up by hints (store_lookup.c); what counts is the segment's checked index.
 */
#ifndef STORE_I_H
#define STORE_I_H

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "store.h"

/* ------------------------------------------------------------------ on disk: little endian */

#define STORE_VERSION 1u
#define SEG_SLOTS     16384u /* pages in a full segment: 64 MiB */
#define FRAME_SLOTS   32u    /* pages compressed together */
#define FRAME_RAW     1u     /* stored as it is: it would not shrink */

/* The 64 bytes that each file has: at its beginning, or (segments) at its end. */
struct disk_head {
	char magic[8];
	uint32_t version;
	uint32_t a;	/* super: zstd level | segment: slots | checkpoint: parts << 8 | flags */
	uint64_t b;	/* super: seed       | segment: its id | checkpoint: time, ns */
	uint64_t c;	/* super: id         | segment: where the index is | checkpoint: nonce */
	uint64_t d;	/* super: time, ns   | segment: frames, 0 if raw | checkpoint: body's length */
	uint64_t e;	/* super: 0          | segment: XXH3-64 of the index | checkpoint: of the body */
	uint64_t store;	/* the store's id */
	uint64_t check; /* XXH3-64 of the 56 bytes before */
};
_Static_assert(sizeof(struct disk_head) == 64, "the head of a file is 64 bytes in all versions");

struct disk_frame {
	uint32_t len;	/* bytes; 0: all its pages are gone */
	uint32_t flags; /* FRAME_RAW */
	uint64_t check; /* XXH3-64 of these bytes */
};

struct disk_ref {
	uint64_t size;
	uint64_t seg;	/* 0: all zeros */
	uint32_t slot;	/* bits 0-23: slot, 24-31: depth */
	uint8_t digest[12];
};
_Static_assert(sizeof(struct disk_ref) == 32, "a ref is 32 bytes");

#define REF_DEPTH_MAX 8u
#define SUPER_MAGIC   "SVGSTORE"
#define SEG_MAGIC     "SVGSEGMT"
#define CP_MAGIC      "SVGCHKPT"
#define CP_OBJECT     1u	    /* the body is an object, its ref follows the head */
#define CP_INLINE     (16u << 10) /* a longer body becomes an object */

/* ------------------------------------------------------------------ store_hash.c */

bool page_is_zero(const void *page);
void hash_pages(const struct store *s, const uint8_t *data, size_t pages, struct store_digest *d);
uint64_t check64(const void *data, size_t len);
struct store_digest check128(const void *data, size_t len);
void head_seal(struct disk_head *h, const char *magic, const struct store *s);

/* head_check: `what` names the file. -EBADMSG, -EPROTONOSUPPORT. */
int head_check(const struct disk_head *h, const char *magic, const char *what);

static inline bool digest_equal(struct store_digest a, struct store_digest b)
{
	return ((a.lo ^ b.lo) | (a.hi ^ b.hi)) == 0;
}

/* A slot without a page: gc has dropped it. */
static inline bool digest_none(struct store_digest d)
{
	return (d.lo | d.hi) == 0;
}

/* ------------------------------------------------------------------ store_io.c */

enum io_op { IO_CREATE, IO_READ, IO_WRITE, IO_SYNC, IO_TRUNCATE, IO_RENAME, IO_UNLINK, IO_DIRSYNC };

struct io_event {
	enum io_op op;
	const char *name; /* below the store; a directory for IO_DIRSYNC */
	const char *to;	  /* IO_RENAME */
	uint64_t off;
	size_t len;	  /* a hook may make it smaller: a short read or write */
};

/* Tests: called before each operation; not 0 is its result. */
extern int (*store_io_hook)(struct io_event *e);

/* Names are relative to `dir`; results are -errno. Only io_open and io_read say nothing of why. */
int io_open(int dir, const char *name, int flags, mode_t mode);
ssize_t io_read(int fd, const char *name, void *buf, size_t len, uint64_t off);
int io_write(int fd, const char *name, const void *buf, size_t len, uint64_t off);
int io_sync(int fd, const char *name);
int io_truncate(int fd, const char *name, uint64_t len);
int io_rename(int dir, const char *from, const char *to);
int io_unlink(int dir, const char *name);
int io_sync_dir(int dir, const char *name);

/* io_read_exact: -ENODATA at the file's end. */
int io_read_exact(int fd, const char *name, void *buf, size_t len, uint64_t off);

/* A lane: requests in flight by io_uring, or one by one where the kernel or a sandbox has none. */
struct io_req {
	enum io_op op;	/* IO_READ, IO_WRITE, IO_SYNC */
	int fd;
	const char *name;
	uint8_t *buf;
	const struct iovec *iov; /* IO_READ: into these, of whole pages, rather than `buf` */
	unsigned int niov;
	int fixed;	/* index of the registered buffer that `buf` lies in, or -1 */
	uint64_t off;
	size_t len, done;
	int res;	/* 0 or -errno, when it is back */
	void *owner;
	struct io_req *next;
};

struct io_lane {
	struct io_uring ring;
	bool uring, fixed;
	unsigned int depth, flying;
	struct io_req *back;	/* those that never flew */
};

int io_lane_init(struct io_lane *l, unsigned int depth, const struct iovec *bufs, unsigned int n);
void io_lane_exit(struct io_lane *l);
void io_lane_add(struct io_lane *l, struct io_req *r);	/* flies at the next _go or _wait */
void io_lane_go(struct io_lane *l);
struct io_req *io_lane_wait(struct io_lane *l);		/* one that is back; NULL: none under way */
struct io_req *io_lane_poll(struct io_lane *l);		/* the same, if there is one now */

/* ------------------------------------------------------------------ store.c */

struct seg {
	uint64_t id;
	uint32_t slots;
	uint32_t index;			/* its place in store.segs */
	bool known;			/* its pages are in the table of hints */
	bool foreign;			/* another user's: pages are compared before they are linked */
	bool broken;			/* its index cannot be used */
	bool zstd;
	uint64_t index_off;
	struct store_writer *owner;	/* not durable: of use to this writer alone */
	struct store_digest *digests;	/* NULL: not in memory */
	struct disk_frame *frames;	/* follow the digests */
	uint64_t used;			/* when, for eviction */
	unsigned int pins;
};

struct store {
	char *path;
	int dir, lock;
	unsigned int flags;
	struct disk_head super;
	uid_t owner;
	mode_t mode;
	struct store_digest zero;
	atomic_int writers;

	pthread_mutex_t mutex;		/* all below */
	struct seg **segs;		/* [0] is none */
	uint32_t nsegs, segs_room;
	uint32_t *byid, byid_mask;	/* open addressing: id → place in segs */
	uint64_t tick, loaded;
	struct timespec scanned;	/* seg/'s mtime when it was listed */
	uint64_t *hints;		/* store_lookup.c */
	uint64_t hints_mask, hints_used;
	unsigned int sample;
};

struct place {
	uint32_t seg;	/* index in store.segs; 0: nowhere */
	uint32_t slot;
};

/* fail: sets store_why() and returns err. */
__attribute__((format(printf, 2, 3))) int fail(int err, const char *fmt, ...);
int fail_io(int err, const char *doing, const char *name);
uint64_t now_ns(void);
uint64_t random64(void);
int need_rw(const struct store *s);
int store_lock(struct store *s, int how, int wait_ms);

/* ------------------------------------------------------------------ store_segment.c */

#define SEG_NAME 24
void seg_name(uint64_t id, char name[SEG_NAME]);		/* "seg/…" */
bool seg_parse(const char *file, uint64_t *id);			/* "…" of seg/ */

/* seg_pin: finds a segment, its index in memory until seg_unpin. -ENODATA there is none. */
int seg_pin(struct store *s, uint64_t id, struct seg **seg);
void seg_unpin(struct store *s, struct seg *seg);

/* With the mutex held: */
struct seg *seg_find(struct store *s, uint64_t id);
int seg_add(struct store *s, uint64_t id, struct seg **seg);
int seg_load(struct store *s, struct seg *seg);
void seg_forget_all(struct store *s);

/* seg_read_index: what lies behind the pages of an open file, checked. `*d` is malloc'ed. */
int seg_read_index(const struct store *s, int fd, uint64_t id, struct disk_head *foot,
		   struct store_digest **d, struct disk_frame **f);
size_t seg_index_len(uint32_t slots, uint32_t frames);		/* with the foot and padding */
void seg_write_index(const struct store *s, uint64_t id, uint32_t slots, uint64_t at,
		     const struct store_digest *d, const struct disk_frame *f, uint32_t frames,
		     uint8_t *out);

/*
 * seg_read_frame: FRAME_SLOTS pages (fewer at the end) of a compressed segment, unpacked into `out`
 * through `packed`, both FRAME_SLOTS * STORE_PAGE long.
 */
int seg_read_frame(const struct seg *seg, int fd, uint32_t frame, void *packed, void *out);
int seg_open(struct store *s, uint64_t id, int flags);

/* seg_read_page: one page, checked; needs it pinned. */
int seg_read_page(struct store *s, const struct seg *seg, uint32_t slot, void *page);

/* ------------------------------------------------------------------ store_lookup.c */

/* lookup_refresh: takes in the segments that have come since. Takes the mutex. */
int lookup_refresh(struct store *s);

/* With the mutex held: */
struct place lookup_find(struct store *s, struct store_digest d, const struct store_writer *w);
int lookup_add(struct store *s, struct store_digest d, struct place p);
bool lookup_is(struct store *s, struct place p, struct store_digest d, const struct store_writer *w);
void lookup_prefetch(const struct store *s, struct store_digest d);
void lookup_drop(struct store *s);

/* ------------------------------------------------------------------ store_writer.c */

/* writer_put: stores the page, at `p`; 1: it is there already, at `p`. */
int writer_put(struct store_writer *w, struct store_digest d, const void *data, struct place *p);

/*
 * writer_known: looks up n ≤ 64 pages; place 0 for those that are not known. `at` is where the page
 * before was, and is moved along.
 */
void writer_known(struct store_writer *w, const struct store_digest *d, const uint8_t *data,
		  unsigned int n, struct place *at, struct place *p);
struct store *writer_store(struct store_writer *w);
int writer_error(const struct store_writer *w);
void writer_count(struct store_writer *w, uint64_t zero, uint64_t known, uint64_t fresh);

/* writer_hash: hashes pages with two threads; calls `each` in order with runs of at most 64. */
int writer_hash(struct store_writer *w, const uint8_t *data, size_t pages,
		int (*each)(void *arg, size_t first, size_t n, const struct store_digest *d),
		void *arg);

/* ------------------------------------------------------------------ store_map.c */

struct extent {
	uint64_t page;	/* first one, in the object */
	uint32_t count;
	uint32_t seg;	/* index in map.ids; in an object that is written: in store.segs */
	uint32_t slot;
};

struct map {
	uint64_t size;	/* bytes of what it maps */
	uint64_t *ids;
	uint32_t nids;
	struct extent *ext;	/* sorted; holes are left out */
	size_t n;
};

struct bytes {
	uint8_t *p;
	size_t len, room;
};

int bytes_add(struct bytes *b, const void *p, size_t n);
int bytes_varint(struct bytes *b, uint64_t v);

/* map_encode: `m->ext` sorted. map_decode: -EBADMSG; frees nothing of `m` before. */
int map_encode(const struct map *m, struct bytes *out);
int map_decode(const uint8_t *p, size_t len, struct map *m);
void map_free(struct map *m);

/* ------------------------------------------------------------------ store_read.c */

/* What reads pages of one object after the other: open segments, requests in flight. */
struct input;
int input_open(struct store *s, struct input **in);
void input_close(struct input *in);

/* Pages that are on their way, and what went wrong with one of them. */
struct batch {
	unsigned int pending;
	int err;
	char why[200];
};

/*
 * input_start: pages [first, first + n) of what the map describes, to a multiple of STORE_PAGE.
 * They are there, and checked, when input_finish returns 0; `to`, `b` and `m` must live until then.
 */
void input_start(struct input *in, const struct map *m, uint64_t first, size_t n, uint8_t *to,
		 struct batch *b);
int input_finish(struct input *in, struct batch *b);
int input_pages(struct input *in, const struct map *m, uint64_t first, size_t n, uint8_t *to);

/* Called with rows of pages that an object needs: its own, and those of its maps. */
typedef int (*input_row)(void *arg, uint64_t seg, uint32_t slot, uint32_t count);
int input_walk(struct input *in, const struct store_ref *ref, input_row row, void *arg);

/* input_map: the map of an object; for one of a page or less it is made up. */
int input_map(struct input *in, const struct store_ref *ref, struct map *m);

static inline struct disk_ref ref_get(const struct store_ref *ref)
{
	struct disk_ref d;

	memcpy(&d, ref, sizeof(d));
	return d;
}

/* ------------------------------------------------------------------ store_checkpoint.c */

/* cp_load: checks the file named by a full id. */
int cp_load(struct store *s, const char *id, struct store_checkpoint **c);

/* cp_body: the ref of the object that holds the body, if there is one. */
const struct store_ref *cp_body(const struct store_checkpoint *c);

/* cp_ids: all names in cp/, unsorted. */
int cp_ids(struct store *s, char (**ids)[STORE_ID], size_t *n);

/* ------------------------------------------------------------------ store_marks.c */

/* Sets of pages. */
struct marks {
	void *root;	/* tsearch: struct mark by id */
};

struct mark {
	uint64_t id;
	uint64_t bits[SEG_SLOTS / 64];
};

int marks_set(struct marks *m, uint64_t id, uint32_t slot, uint32_t count);
struct mark *marks_of(const struct marks *m, uint64_t id);	/* NULL: none of its pages */
bool marks_any(const struct marks *m, uint64_t id, uint32_t slot, uint32_t count);
void marks_free(struct marks *m);

static inline bool mark_has(const struct mark *k, uint32_t slot)
{
	return k->bits[slot / 64] >> slot % 64 & 1;
}

/* dir_names: calls `each` with every file's name in a directory of the store, until not 0. */
int dir_names(struct store *s, const char *dir, int (*each)(void *arg, const char *file), void *arg);

#endif
