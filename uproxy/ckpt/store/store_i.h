/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_i.h - private header of the store: the format on disk, segments in memory, the I/O layer
 *
 * Invariants:
 *   1. A file in seg/ is complete and durable but for its directory entry. Only gc changes it, and
 *      replaces the whole file. A file in tmp/ belongs to an open handle.
 *   2. A checkpoint in cp/ needs only segments in seg/ whose directory entries are synced.
 *   3. gc deletes with the lock held exclusively; every handle holds it shared.
 *   4. Digests are looked up by hints (lookup.c); each hint is checked against the segment's index.
 *   5. A writer may rely on a page that another one has promised to store (claims.c), until its flush:
 *      that succeeds only when the page is durable, and its digest in the segment's index the same.
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

#include "lock.h"
#include "store.h"

/* ------------------------------------------------------------------ on disk: little endian */

#define STORE_VERSION 1u
#define SEG_SLOTS     16384u /* pages in a full segment: 64 MiB */
#define FRAME_SLOTS   32u    /* pages compressed together */
#define FRAME_RAW     1u     /* not compressed: it would not shrink */

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
/* 64 bytes at the beginning of each file, or (segments) at its end. */
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
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct disk_head) == 64, "the same in all versions");
_Static_assert(sizeof(struct disk_frame) == 16, "file format");
_Static_assert(sizeof(struct disk_ref) == 32, "file format");
_Static_assert(sizeof(struct store_digest) == 16, "file format");
_Static_assert(sizeof(struct store_ref) == 32, "file format");

#define REF_DEPTH_MAX 8u
#define SUPER_MAGIC   "SVGSTORE"
#define SEG_MAGIC     "SVGSEGMT"
#define CP_MAGIC      "SVGCHKPT"
#define CP_OBJECT     1u	    /* the body is an object, its ref follows the head */
#define CP_INLINE     (16u << 10) /* a longer body becomes an object */

/* ------------------------------------------------------------------ hash.c */

bool store_page_is_zero(const void *page);
void store_hash_pages(const struct store *s, const uint8_t *data, size_t pages,
		      struct store_digest *d);
uint64_t store_check64(const void *data, size_t len);
struct store_digest store_check128(const void *data, size_t len);
void store_head_seal(struct disk_head *h, const char *magic, const struct store *s);

/* store_head_check: `what` names the file. -EBADMSG, -EPROTONOSUPPORT. */
int store_head_check(const struct disk_head *h, const char *magic, const char *what);

static inline bool digest_equal(struct store_digest a, struct store_digest b)
{
	return ((a.lo ^ b.lo) | (a.hi ^ b.hi)) == 0;
}

/* A slot whose page gc has dropped. */
static inline bool digest_none(struct store_digest d)
{
	return (d.lo | d.hi) == 0;
}

/* ------------------------------------------------------------------ io.c */

enum io_op {
	IO_CREATE, IO_READ, IO_WRITE, IO_SYNC, IO_TRUNCATE, IO_RENAME, IO_UNLINK, IO_DIRSYNC,
	IO_ALLOCATE
};

struct io_event {
	enum io_op op;
	const char *name; /* below the store; a directory for IO_DIRSYNC */
	const char *to;	  /* IO_RENAME */
	uint64_t off;
	size_t len;	  /* a hook may make it smaller: a short read or write */
};

/* For tests: called before each operation; a result that is not 0 replaces the operation's. */
extern int (*store_io_hook)(struct io_event *e);

/* Names are relative to `dir`. All return -errno and set no store_why(). */
int store_io_open(int dir, const char *name, int flags, mode_t mode);
ssize_t store_io_read(int fd, const char *name, void *buf, size_t len, uint64_t off);
int store_io_write(int fd, const char *name, const void *buf, size_t len, uint64_t off);
int store_io_sync(int fd, const char *name);
int store_io_truncate(int fd, const char *name, uint64_t len);
/* Allocates a new file's first len bytes. 1: it got them; 0: it did not, and is empty as before. */
int store_io_allocate(int fd, const char *name, uint64_t len);
int store_io_rename(int dir, const char *from, const char *to);
int io_rename_new(int dir, const char *from, const char *to); /* -EEXIST */
int store_io_unlink(int dir, const char *name);
int store_io_sync_dir(int dir, const char *name);

/* store_io_read_exact: -ENODATA at the file's end. */
int store_io_read_exact(int fd, const char *name, void *buf, size_t len, uint64_t off);

/* A lane: requests in flight by io_uring; one by one where io_uring is not available. */
struct io_req {
	enum io_op op;	/* IO_READ, IO_WRITE, IO_SYNC */
	int fd;
	const char *name;
	uint8_t *buf;
	const struct iovec *iov; /* IO_READ: into these, of whole pages, rather than `buf` */
	unsigned int niov;
	uint64_t off;
	size_t len, done;
	int res;	/* 0 or -errno, when it is back */
	void *owner;
	struct io_req *next;
};

struct io_lane {
	struct io_uring ring;
	bool uring;
	unsigned int depth, flying;
	struct io_req *back;	/* completed without io_uring */
};

void store_io_lane_init(struct io_lane *l, unsigned int depth);
void store_io_lane_exit(struct io_lane *l);
void store_io_lane_add(struct io_lane *l, struct io_req *r); /* the next _go or _wait submits it */
void store_io_lane_go(struct io_lane *l);
struct io_req *store_io_lane_wait(struct io_lane *l); /* a completed one; NULL: none in flight */
struct io_req *store_io_lane_poll(struct io_lane *l); /* the same, without waiting */

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
	struct store_writer *owner;	/* not durable yet: only this writer and its lanes may use it */
	bool promised;			/* another process writes it; `digests` has what is promised */
	int64_t claim;			/* its number in the owner's claims, or -1 */
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
	bool trusted;			/* by store_open_trusted, with `also` */
	uid_t also;
	bool (*stop)(void *arg);	/* of store_open_unless, or NULL */
	void *stop_arg;
	struct store_digest zero;
	atomic_int writers;

	struct lock mutex;		/* all below */
	struct seg **segs;		/* [0] is none */
	uint32_t nsegs, segs_room;
	uint32_t *byid, byid_mask;	/* open addressing: id → place in segs */
	uint64_t tick, loaded;
	struct timespec scanned;	/* seg/'s mtime when it was listed */
	uint64_t *_Atomic hints;	/* lookup.c; prefetches read these two without the mutex */
	_Atomic uint64_t hints_mask;
	uint64_t hints_used;
	unsigned int sample;
};

struct place {
	uint32_t seg;	/* index in store.segs; 0: nowhere */
	uint32_t slot;
};

/* fail: sets store_why() and returns err. */
__attribute__((format(printf, 2, 3))) int store_fail(int err, const char *fmt, ...);
int store_fail_io(int err, const char *doing, const char *name);
uint64_t store_now_ns(void);
uint64_t store_random64(void);
int store_need_rw(const struct store *s);
int store_lock(struct store *s, int how, int wait_ms);

/* store_file: opens an existing file for reading. -errno; only -EPERM sets store_why. */
int store_file(const struct store *s, const char *name, int flags);

/* ------------------------------------------------------------------ segment.c */

#define SEG_NAME 24
void store_seg_name(uint64_t id, char name[SEG_NAME]); /* "seg/…" */
bool store_seg_parse(const char *file, uint64_t *id); /* "…" of seg/ */

/* store_seg_pin: finds a segment and keeps its index in memory until store_seg_unpin. -ENODATA. */
int store_seg_pin(struct store *s, uint64_t id, struct seg **seg);
void store_seg_unpin(struct store *s, struct seg *seg);

/* With the mutex held: */
struct seg *store_seg_find(struct store *s, uint64_t id);
int store_seg_add(struct store *s, uint64_t id, struct seg **seg);
int store_seg_load(struct store *s, struct seg *seg);
void store_seg_forget_all(struct store *s);

/* store_seg_read_index: reads and checks the index behind the pages. The caller frees `*d`. */
int store_seg_read_index(const struct store *s, int fd, uint64_t id, struct disk_head *foot,
			 struct store_digest **d, struct disk_frame **f);
size_t store_seg_index_len(uint32_t slots, uint32_t frames); /* with the foot and padding */
void store_seg_write_index(const struct store *s, uint64_t id, uint32_t slots, uint64_t at,
			   const struct store_digest *d, const struct disk_frame *f,
			   uint32_t frames, uint8_t *out);

/*
 * store_seg_read_frame: FRAME_SLOTS pages (fewer at the end) of a compressed segment, unpacked into `out`
 * through `packed`, both FRAME_SLOTS * STORE_PAGE long.
 */
int store_seg_read_frame(const struct seg *seg, int fd, uint32_t frame, void *packed, void *out);
int store_seg_open(struct store *s, uint64_t id, int flags);

/* store_seg_read_page: reads and checks one page of a pinned segment. */
int store_seg_read_page(struct store *s, const struct seg *seg, uint32_t slot, void *page);

/* ------------------------------------------------------------------ lookup.c */

/* store_lookup_refresh: adds the segments that are new in seg/. Takes the mutex. */
int store_lookup_refresh(struct store *s);

/* Any time; the table may be replaced meanwhile, which makes the prefetch useless but harmless. */
void store_lookup_prefetch(const struct store *s, struct store_digest d);

/* store_lookup_expect: makes room for so many more pages. Takes the mutex. */
int store_lookup_expect(struct store *s, uint64_t pages);

/* With the mutex held: */
struct place store_lookup_find(struct store *s, struct store_digest d,
			       const struct store_writer *w);
int store_lookup_add(struct store *s, struct store_digest d, struct place p);
bool store_lookup_is(struct store *s, struct place p, struct store_digest d,
		     const struct store_writer *w);
void store_lookup_drop(struct store *s);

/* ------------------------------------------------------------------ claims.c */

struct claims;

/* Where another writer stores a page, by its own word. */
struct claim {
	uint64_t id;		/* of the segment */
	uint32_t n, slot;	/* n: the segment's number in the claims, for store_claims_state */
};

int store_claims_open(struct store *s, int fd, struct claims **c);
void store_claims_close(struct claims *c);

/* store_claims_begin: a number for a segment that is being written; -1: there are too many. */
int64_t store_claims_begin(struct claims *c, uint64_t id);
void store_claims_end(struct claims *c, int64_t n, bool durable);

/*
 * store_claims_state: of another writer's segment. 0 it is durable; -EAGAIN it is being written;
 * -ECANCELED it was given up; -EOWNERDEAD its writer is gone.
 */
int store_claims_state(struct claims *c, uint32_t n);

/*
 * store_claims_take: true: another writer stores the page, at *other. false: it is the caller's, in slot
 * `slot` of its segment n; n = -1 only looks.
 */
bool store_claims_take(struct claims *c, struct store_digest d, int64_t n, uint32_t slot,
		       struct claim *other);

/* ------------------------------------------------------------------ writer.c */

/*
 * store_writer_put: stores n ≤ 64 pages that the store lacks; p[i] is the place of each, 0 for a page
 * of zeros. A bit of *fresh is set for each page that is new. `*at` is the place of the page before
 * them, and is moved along.
 */
int store_writer_put(struct store_writer *w, const struct store_digest *d, const uint8_t *data,
		     unsigned int n, struct place *at, struct place *p, uint64_t *fresh);

/* store_writer_known: looks up n ≤ 64 pages by their digests alone; place 0: not known. */
void store_writer_known(struct store_writer *w, const struct store_digest *d, unsigned int n,
			struct place *at, struct place *p);

/*
 * store_writer_lane: a writer for another thread, with fewer buffers; w and its lanes rely on each
 * other's pages. Lanes are flushed and closed before w is flushed.
 */
int store_writer_lane(struct store_writer *w, struct store_writer **lane);
struct store *store_writer_store(struct store_writer *w);
int store_writer_error(const struct store_writer *w);
void store_writer_count(struct store_writer *w, uint64_t zero, uint64_t known, uint64_t fresh);

/* store_writer_hash: hashes pages in two threads; calls `each` in order with runs of 64 at most. */
int store_writer_hash(struct store_writer *w, const uint8_t *data, size_t pages,
		      int (*each)(void *arg, size_t first, size_t n, const struct store_digest *d),
		      void *arg);

/* ------------------------------------------------------------------ map.c */

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

int store_bytes_add(struct bytes *b, const void *p, size_t n);
int store_bytes_varint(struct bytes *b, uint64_t v);

/*
 * store_map_encode: `m->ext` is sorted. store_map_decode: overwrites `*m` unfreed. -EBADMSG, -EFBIG.
 * store_map_most: the length of the longest map, in whole pages, of an object of `size` bytes.
 */
uint64_t store_map_most(uint64_t size);
int store_map_encode(const struct map *m, struct bytes *out);
int store_map_decode(const uint8_t *p, size_t len, struct map *m);
void store_map_free(struct map *m);

/* ------------------------------------------------------------------ read.c */

/* The state of reading, for one object after the other: open segments, requests in flight. */
struct input;
int store_input_open(struct store *s, struct input **in);
void store_input_close(struct input *in);

/* Pages in flight, and the first error. */
struct batch {
	unsigned int pending;
	struct why why;
};

/*
 * store_input_start: begins to read pages [first, first + n) of a map's object to `to`, a multiple
 * of STORE_PAGE. They are there, and checked, when store_input_finish returns 0; `to`, `b` and `m`
 * must live until then.
 */
void store_input_start(struct input *in, const struct map *m, uint64_t first, size_t n, uint8_t *to,
		       struct batch *b);
int store_input_finish(struct input *in, struct batch *b);
int store_input_pages(struct input *in, const struct map *m, uint64_t first, size_t n, uint8_t *to);

/* Called with rows of pages that an object needs: its own, and those of its maps. */
typedef int (*input_row)(void *arg, uint64_t seg, uint32_t slot, uint32_t count);
int store_input_walk(struct input *in, const struct store_ref *ref, input_row row, void *arg);

/* store_input_map: the map of an object; made up for one that has no map (a page or less). */
int store_input_map(struct input *in, const struct store_ref *ref, struct map *m);

static inline struct disk_ref ref_get(const struct store_ref *ref)
{
	struct disk_ref d;

	memcpy(&d, ref, sizeof(d));
	return d;
}

/* ------------------------------------------------------------------ checkpoint.c */

/* store_cp_load: checks the file named by a full id. */
int store_cp_load(struct store *s, const char *id, struct store_checkpoint **c);

/* store_cp_body: the ref of the object that holds the body, if there is one. */
const struct store_ref *store_cp_body(const struct store_checkpoint *c);

/* store_cp_ids: all names in cp/, unsorted. */
int store_cp_ids(struct store *s, char (**ids)[STORE_ID], size_t *n);

/* ------------------------------------------------------------------ marks.c */

/* Sets of pages. */
struct marks {
	void *root;	/* tsearch: struct mark by id */
};

struct mark {
	uint64_t id;
	uint64_t bits[SEG_SLOTS / 64];
};

int store_marks_set(struct marks *m, uint64_t id, uint32_t slot, uint32_t count);
struct mark *store_marks_of(const struct marks *m, uint64_t id); /* NULL: none of its pages */
bool store_marks_any(const struct marks *m, uint64_t id, uint32_t slot, uint32_t count);
void store_marks_free(struct marks *m);

static inline bool mark_has(const struct mark *k, uint32_t slot)
{
	return k->bits[slot / 64] >> slot % 64 & 1;
}

/* store_dir_names: calls `each` with every file's name in a directory, until it returns not 0. */
int store_dir_names(struct store *s, const char *dir, int (*each)(void *arg, const char *file),
		    void *arg);

#endif
