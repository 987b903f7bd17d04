/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - a content-addressed store of sparse byte arrays and of checkpoints made of them
 *
 * A store is a directory. Objects are cut into pages of 4 KiB; a page that the store has is never
 * stored again, and a page of zeros takes no room. singvgpu-store(5) describes the files byte by
 * byte.
 *
 *   writing    store_open(RW) ► store_writer_open ► store_object_begin, _write …, _end ► a ref
 *                                                ► store_writer_flush: now the refs are durable
 *                             ► store_publish(names and refs, JSON) ► the checkpoint's id
 *   reading    store_open ► store_checkpoint_open ► names and refs ► store_object_open ► store_read
 *
 * A ref is 32 bytes that any process may use on the same store: proxies write, the conductor
 * publishes. store_gc removes objects that no published checkpoint needs, but never while a process
 * has a handle on the store open. So the publisher opens the store (STORE_RW) before the first
 * writer does, and closes it after the publication; no process keeps a handle for longer than a
 * dump or a restore takes. A handle ends with its process (kill -9 too), but not before the forked
 * children of that end.
 *
 * Several processes may write at once, and several writers in one process. A writer finds the
 * pages that it wrote itself and those of all segments that were durable when it last scanned the
 * store: when it was opened, and whenever it begins a segment.
 *
 * Threads: a struct store may be used by several threads at once. A writer with its objects, a
 * reader, a checkpoint: by one thread at a time.
 *
 * Functions return 0 (or what they say) or -errno; store_why() is the last failure in the calling
 * thread, until the next call of a function here. Errors that several of them share:
 *
 *   -ENOSPC, -EDQUOT   the disk, or the user's quota, is full
 *   -EROFS, -EACCES    read-only file system; no permission. Writing through a handle without
 *                      STORE_RW is -EBADF
 *   -EBADMSG           the data read is not what was written: bit rot, or a damaged file
 *   -ENODATA           a segment, or a page of it, is missing
 *   -EPROTONOSUPPORT   the store, or a file in it, is of a version from the future
 *   -EPERM             see store_open_trusted
 *   -EIO …             errors of the disk
 *
 * After a failed write the writer, its objects and later flushes fail with the same error: close
 * it. Published checkpoints are not affected.
 *
 * Source: Singularity §4.6 (content-based deduplication across ranks and time).
 */
#ifndef STORE_H
#define STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "why.h"

#define STORE_PAGE 4096u

struct store;
struct store_writer;
struct store_object;
struct store_reader;
struct store_checkpoint;

/*
 * XXH3-128 with the store's seed (XXH3_128bits_withSeed) of a page of 4096 bytes; the end of an
 * object's last page is zeros. As in XXH128_hash_t: low64, then high64.
 */
struct store_digest {
	uint64_t lo, hi;
};

/* Where an object is: opaque, checked on use. All zeros: the empty object. */
struct store_ref {
	uint8_t b[32];
};

struct store_part {
	const char *name;	/* 1 to 4095 bytes, no '\n'; unique within the checkpoint */
	struct store_ref ref;
};

/* store_why: what went wrong last in this thread, with names and the remedy. */
const struct why *store_why(void);

/*
 * For err, which a function here has just returned: store_says: its sentence; store_failed: stores
 * both and returns err. 0 is no failure.
 */
const char *store_says(int err);
int store_failed(struct why *why, int err);

/* ------------------------------------------------------------------------------ a store */

#define STORE_RW   1u	/* for writers, store_publish, store_remove, store_gc */
#define STORE_WAIT 2u	/* wait for a running store_gc to end, rather than fail with -EBUSY */

struct store_params {
	int zstd;	/* 0: pages as they are; 1 to 19: compressed at this level, 32 at a time */
	uint64_t seed;	/* 0: a random one. With another store's seed the digests are the same */
};

/*
 * store_create: makes the directory (its parent must exist) and its files. An existing empty
 * directory is used; its mode decides who may read the store. `p` may be NULL. -EEXIST a store is
 * there; -ENOTEMPTY other files are. Files that root makes belong to the directory's owner.
 */
int store_create(const char *dir, const struct store_params *p, struct why *why);

/* store_open: flags STORE_*. -ENOENT no store here; -EBUSY (see STORE_WAIT). */
int store_open(struct store **s, const char *dir, unsigned int flags, struct why *why);
/* The same; a wait (STORE_WAIT) ends with -EBUSY when stop(arg), which is called now and then, is true. */
int store_open_unless(struct store **s, const char *dir, unsigned int flags, bool (*stop)(void *arg), void *arg,
		      struct why *why);

/*
 * store_open_trusted: for a restore, which does what a checkpoint says. As store_open, but -EPERM
 * if an untrusted user could have made or changed the store: one who is neither root, nor this
 * process's effective uid, nor `also` (0: no further user). Refused are: the store's directory, a
 * directory in it or a file to be read that belongs to an untrusted user or may be written by its
 * group or by all; a directory of the store's that is a link; a place where an untrusted user could
 * put another directory in the store's place (in a sticky one nobody can). All files are checked
 * now, and each again when it is opened.
 */
int store_open_trusted(struct store **s, const char *dir, unsigned int flags, uid_t also,
		       struct why *why);

/* store_owner: the user to whom the store's directory belongs. */
uid_t store_owner(const struct store *s);

/*
 * store_trusts: 0 if store_open_trusted would accept the open file, else -EPERM; `what` names it in
 * store_why. In a store opened by store_open always 0.
 */
int store_trusts(const struct store *s, int fd, const char *what);

/* store_close: after all that was opened from it. NULL is allowed. */
void store_close(struct store *s);

const char *store_dir(const struct store *s);
uint64_t store_seed(const struct store *s);

/* store_hash: the digest of 4096 bytes at any alignment. */
struct store_digest store_hash(const struct store *s, const void *page);

/* store_zero: the digest of a page of zeros. */
struct store_digest store_zero(const struct store *s);

/* ------------------------------------------------------------------------------ writing */

#define STORE_ONE_THREAD 1u	/* hash in the calling thread alone, not with the help of another */
#define STORE_TOUCHED	 2u	/* all its memory is there from the start: a job will stand still while it writes */

/*
 * store_writer_open: a writer has several writes of 1 MiB in flight and takes up to 36 MiB of
 * memory, as it needs it. A store handle with writers takes about 12 bytes more for each page in the store, 256 MiB
 * at most: in a store of more than 100 GB a few known pages are not recognized and stored again.
 */
int store_writer_open(struct store *s, unsigned int flags, struct store_writer **w);

/*
 * store_claims_make: a memfd by which the writers of one checkpoint, in several processes, store each
 * page once although none of it is durable yet. `bytes`: about as much as they will write in all; the
 * table takes about 0.6 % of that. The caller closes it.
 *
 * store_writer_claims: joins, before the first write. The writer may then rely on pages that another one
 * has begun to store, so that its flush waits until these are durable, and fails if they never will be:
 * -ECANCELED the other one was closed unflushed, -EOWNERDEAD it has died, -EBADMSG it has stored
 * something else. `wait` (unless NULL) is called several times a second meanwhile, and not 0 ends it
 * with that error. So one thread must not flush two writers in turn. The caller may close `fd`.
 * -EINVAL: fd is no such table, or of another store.
 */
int store_claims_make(struct store *s, uint64_t bytes, int *fd);
int store_writer_claims(struct store_writer *w, int fd, int (*wait)(void *arg), void *arg);

/* Any number of objects may be under way in one writer. */
int store_object_begin(struct store_writer *w, struct store_object **o);

/*
 * store_object_write: ascending offsets and calls of 4 MiB or more are fastest; unwritten ranges
 * are zeros. `off` is a multiple of STORE_PAGE or the end of the last write; `len` is any length.
 * Data is copied or hashed before the call returns. -EINVAL alignment; a page that is written twice
 * is -EINVAL at store_object_end.
 */
int store_object_write(struct store_object *o, uint64_t off, const void *data, size_t len);

/*
 * store_object_digests: links those of the pages at `off` (a multiple of STORE_PAGE) that the store
 * has, by their digests alone; missing[i] is set to 1 for pages that store_object_write must still
 * write, else to 0. Pages of zeros are never missing. Returns the number of missing pages. Only
 * segments of this user are searched: another user's pages must be compared, which needs the data.
 */
ssize_t store_object_digests(struct store_object *o, uint64_t off, const struct store_digest *d,
			     size_t pages, uint8_t *missing);

/*
 * store_object_put: store_object_write of whole pages whose digests are known, for instance from a
 * device. They are believed, but for one page in 64, which is hashed: -EBADMSG. Readers check all.
 */
int store_object_put(struct store_object *o, uint64_t off, const void *data, size_t pages,
		     const struct store_digest *d);

/*
 * store_object_expect: about so many bytes will be written; in a store with fewer pages the table of
 * digests is made large enough at once. -ENOMEM.
 */
int store_object_expect(struct store_object *o, uint64_t bytes);

/*
 * store_object_lane: a part of the object for another thread, with a writer of its own (some 10 MiB
 * of memory). The object and all its lanes may be written at once, by a thread each, and find each
 * other's pages; a failure of one, or of any lane that is aborted with pages not flushed, is a failure
 * of the object and its writer. Each lane ends before the object, in the object's thread:
 * store_object_join makes the lane's pages durable and the object's, and frees the lane, also when it
 * fails; store_object_abort frees it. store_object_flush makes the lane's pages durable beforehand, in
 * its own thread.
 */
int store_object_lane(struct store_object *o, struct store_object **lane);
int store_object_flush(struct store_object *lane);
int store_object_join(struct store_object *o, struct store_object *lane);

/*
 * store_object_end: `size`: the object's size in bytes, if it ends in unwritten zeros; else 0.
 * Frees the object, also when it fails. -EINVAL a page was written twice, or lies behind `size`.
 */
int store_object_end(struct store_object *o, uint64_t size, struct store_ref *ref);

/* Begins, writes and ends an object of these bytes. */
int store_object_whole(struct store_writer *w, const void *data, size_t len, struct store_ref *ref);
void store_object_abort(struct store_object *o);

/* store_writer_flush: finishes the open segment; returns when all refs given out are durable. */
int store_writer_flush(struct store_writer *w);

struct store_writer_stats {
	uint64_t in;	 /* bytes of the objects, zeros and tails counted as whole pages */
	uint64_t zero;	 /* of these: zeros, given or left out within a write */
	uint64_t known;	 /* of these: pages that the store had, or that another writer stores */
	uint64_t fresh;	 /* of these: pages stored anew (maps of objects not counted) */
	uint64_t stored; /* bytes of the files that this writer added: pages, maps, indices */
	double seconds;	 /* since it was opened, up to the end of the last flush */
};

void store_writer_stats(const struct store_writer *w, struct store_writer_stats *st);

/* store_writer_close: drops what was not flushed. NULL is allowed. Its objects must have ended. */
void store_writer_close(struct store_writer *w);

/* ------------------------------------------------------------------------------ checkpoints */

#define STORE_ID 33	/* 32 hex digits and a NUL */

/*
 * store_publish: makes a checkpoint of `n` parts, in any order, and a text. All refs must have been
 * flushed, by any process; each is checked, with all segments that it needs. When it returns 0 the
 * checkpoint is durable; when it or the machine fails, there is none. -EEXIST two parts have one
 * name; -ENODATA, -EBADMSG a part is not in the store.
 */
int store_publish(struct store *s, const struct store_part *parts, size_t n, const char *json,
		  char id[STORE_ID]);

/*
 * store_publish_as: publishes a copy of another store's checkpoint under its id, which contains its
 * time. -EEXIST it is there already; -EINVAL no id.
 */
int store_publish_as(struct store *s, const struct store_part *parts, size_t n, const char *json,
		     const char *id);

/*
 * store_checkpoint_open: by id, by an id's first digits (4 at least), or "latest" by the time of
 * publication. -ENOENT; -ENOTUNIQ several ids begin with these digits.
 */
int store_checkpoint_open(struct store *s, const char *id, struct store_checkpoint **c);
void store_checkpoint_close(struct store_checkpoint *c);

/* Parts are sorted by name; strings live as long as the checkpoint is open. */
const char *store_checkpoint_id(const struct store_checkpoint *c);
uint64_t store_checkpoint_time(const struct store_checkpoint *c);	/* ns since 1970 */
const char *store_checkpoint_json(const struct store_checkpoint *c);
size_t store_checkpoint_parts(const struct store_checkpoint *c, const struct store_part **parts);
const struct store_ref *store_checkpoint_find(const struct store_checkpoint *c, const char *name);
/*
 * store_checkpoint_check: that the store has all pages of all parts, as store_publish does; reads maps and heads of
 * segments, and no pages. -ENODATA, -EBADMSG: store_why() names the part and the segment.
 */
int store_checkpoint_check(struct store *s, const struct store_checkpoint *c);

/*
 * store_list: calls `each` with every published id, oldest first, until it returns not 0, and
 * returns that. Checkpoints that cannot be read come first, with `time` 0.
 */
int store_list(struct store *s, int (*each)(void *arg, const char *id, uint64_t time), void *arg);

/* store_remove: removes the checkpoint (full id); store_gc frees its room. -ENOENT. */
int store_remove(struct store *s, const char *id);

/* ------------------------------------------------------------------------------ reading */

/* store_object_open: opens an object for reading, and reads its map. */
int store_object_open(struct store *s, const struct store_ref *ref, struct store_reader **r);
void store_reader_close(struct store_reader *r);
uint64_t store_size(const struct store_reader *r);

/*
 * store_read: checks every page against its digest. Returns the number of bytes, less than `len`
 * only at the object's end. For sequential readers the next 6 MiB are read ahead; fastest are calls
 * of 8 MiB and more into whole pages, which need no copy.
 */
ssize_t store_read(struct store_reader *r, uint64_t off, void *buf, size_t len);

/*
 * store_fetch: store_read in two steps. store_fetch starts the reads; the pages are in `buf`, and
 * checked, when store_fetch_end returns 0. `buf` and the reader must live until then. Several
 * fetches may be under way. off, buf and len are multiples of STORE_PAGE, within the object
 * (-EINVAL). store_fetch_end frees the fetch whatever it returns.
 */
struct store_fetch;
int store_fetch(struct store_reader *r, uint64_t off, void *buf, size_t len,
		struct store_fetch **f);
int store_fetch_end(struct store_reader *r, struct store_fetch *f);
/* Would store_fetch_end return at once? */
bool store_fetch_there(struct store_reader *r, struct store_fetch *f);

/*
 * store_buffer: memory to read into, of huge pages if possible: a disk limits the pieces of memory
 * of a request, and a MiB of small pages is 256 pieces. For free(); NULL: no memory.
 */
void *store_buffer(size_t len);

/* store_next_data: the next range at or after `off` that is not a hole. -ENXIO none. */
int store_next_data(struct store_reader *r, uint64_t off, uint64_t *from, uint64_t *to);

/* store_digests: the digests of the pages at `off` (a multiple of STORE_PAGE), from the index. */
int store_digests(struct store_reader *r, uint64_t off, struct store_digest *d, size_t pages);

/* store_ref_size: the object's size in bytes; does not read the store. */
uint64_t store_ref_size(const struct store_ref *ref);
void store_ref_hex(const struct store_ref *ref, char hex[65]);
int store_ref_parse(const char *hex, struct store_ref *ref);	/* -EINVAL */

/* ------------------------------------------------------------------------------ upkeep */

/* Called now and then, with the progress of a phase; may be NULL. */
typedef void (*store_progress)(void *arg, const char *phase, uint64_t done, uint64_t total);

struct store_gc_stats {
	uint64_t segments_removed, segments_rewritten, temporaries;
	uint64_t freed;		/* bytes */
	uint64_t kept;		/* bytes of segments that remain */
};

/*
 * store_gc: removes segments that no checkpoint needs and rewrites those of which less than `keep`
 * percent is needed (0: none; 75 is a good number). It walks the checkpoints while others may
 * write, then locks the store exclusively for a moment. -EBUSY other handles were open for wait_ms
 * (-1: wait for ever). If a checkpoint or map is damaged, its needs are not known, and nothing is
 * removed: -EBADMSG. Our own handle must have no writers open.
 */
int store_gc(struct store *s, int keep, int wait_ms, store_progress p, void *arg,
	     struct store_gc_stats *st);

struct store_verify_stats {
	uint64_t segments, pages, bytes;	/* looked at */
	uint64_t checkpoints, objects;
	uint64_t problems;
};

/*
 * store_verify: reads and checks the whole store. Calls `bad` with each problem: the file (its path
 * in the store), the byte in it (UINT64_MAX: not known), and a sentence; then `hurt` with each
 * checkpoint that cannot be restored, and one of its damaged parts. Returns 0 without a problem,
 * -EBADMSG with one, or -errno if it could not go on. May run while others write.
 */
int store_verify(struct store *s, void (*bad)(void *arg, const char *file, uint64_t at,
					      const char *what),
		 void (*hurt)(void *arg, const char *id, const char *part),
		 store_progress p, void *arg, struct store_verify_stats *st);

struct store_stats {
	uint64_t segments, segment_bytes, pages;	/* in the store */
	uint64_t checkpoints;
	uint64_t temporary_bytes;			/* of open writers, or left by a crash */
};

int store_stats(struct store *s, struct store_stats *st);

#endif
