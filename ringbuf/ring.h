/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - moves records between a job and its proxy over one shared-memory channel
 *
 * A channel has two ends. The proxy creates it and consumes records; the client, any number of
 * threads of one process, attaches and submits them. <linux/singvgpu.h> defines the shared memory;
 * the payload of a record is opaque here. Two backends, /dev/singvgpu and memfd + futex, behave
 * alike.
 *
 *   proxy:   ring_create ──► ring_wait, ring_peek, ring_complete, ring_advance … ──► ring_close
 *                              │ ring_freeze, ring_save ─► file ─► ring_restore (generation + 1)
 *   client:  ring_attach ──► ring_submit, ring_call … ──► ring_detach (= ring_close)
 *                              │ CRIU dump … restore: same address, continues
 *
 * Unless their comment says otherwise functions return 0 or -errno. Errors common to several:
 *
 *   -EPIPE   the other end is gone          -ECHILD  this is a fork's child; it has no channel
 *   -EPROTO  the other end broke the rules  -ETIMEDOUT
 *
 * ring_strerror() has a sentence for each error that this library returns.
 *
 * Source: Singularity §3 (lock-free channels), §6 (delayed error notification).
 */
#ifndef RING_H
#define RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <linux/singvgpu.h>

struct ring;

enum ring_backend {
	RING_AUTO,		/* the module where it is loaded and permitted, else memfd */
	RING_KMOD,
	RING_MEMFD,
};

/*
 * The default address of channels, below the device window. ThreadSanitizer forbids that range, so
 * its builds have another.
 */
#ifdef __has_feature
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define RING_VA_BASE 0x7e8000000000ull
#else
#define RING_VA_BASE 0x1e0000000000ull
#endif

/* RING_GEOMETRY_DEFAULT: 1024 units, 256 completion slots, 1 MiB of log, 64 MiB of arena. */
#define RING_GEOMETRY_DEFAULT \
	((struct singvgpu_geometry){ .va = RING_VA_BASE, .arena_len = 64u << 20, \
				     .log_len = 1u << 20, .ring_units = 1024, .cpl_slots = 256 })

struct ring_params {
	enum ring_backend backend;
	uint8_t id[16];		/* the channel's identity, not all zero; unique on this host */
	uint8_t cookie[16];	/* secret for attaching by identity (module only), not all zero */
	struct singvgpu_geometry geo;
};

/* ------------------------------------------------------------------------------ both ends */

/*
 * ring_create: the proxy end of a new channel. -EEXIST the address range or (module) the identity
 * is taken; -EINVAL geometry; -ENODEV, -EACCES no module, no permission (RING_KMOD);
 * -EPROTONOSUPPORT the module has another version; -EDQUOT a limit of this user; -ENOMEM.
 */
int ring_create(struct ring **out, const struct ring_params *p);

/*
 * ring_client_fd: a new close-on-exec fd for the client, to be inherited or passed by SCM_RIGHTS;
 * the caller owns it. Module: attached by identity and cookie (-EBUSY a client is attached).
 */
int ring_client_fd(struct ring *r);

/*
 * ring_pass_fd: send fd, which stays the caller's, over a unix socket. ring_take_fd: receive one,
 * close-on-exec. -EPIPE, -EPROTO the message was another one, or errors of sendmsg(2), recvmsg(2).
 */
int ring_pass_fd(int sock, int fd);
int ring_take_fd(int sock);

/*
 * ring_attach: the client end over a passed fd, of which it takes ownership when it succeeds.
 * -EEXIST the address range is taken in this process, -EPROTO not a channel, -EPROTONOSUPPORT
 * another version, -EBUSY (module) another process has mapped it.
 */
int ring_attach(struct ring **out, int fd);

/* A channel's arena in a third process, at the channel's addresses. */
struct ring_guest {
	void *arena;
	uint64_t len;		/* bytes */
	uint8_t id[16];		/* the channel's */
	int fd;			/* of the object, or -1: the module's */
	uint64_t at;		/* the arena's place in it */
};

/*
 * ring_map_arena: maps the arena of the channel behind fd, which stays the caller's. The mapping stays for good.
 * -EEXIST the addresses are taken, -EPROTO not a channel, -EPROTONOSUPPORT another version, or a
 * module that has no guests yet; -EPIPE (module) the end behind fd has hung up.
 * ring_guest_commit: as ring_commit of the channel's proxy.
 */
int ring_map_arena(int fd, struct ring_guest *g);
int ring_guest_commit(const struct ring_guest *g, size_t off, size_t len);

/*
 * ring_version_of: the version of a passed fd's channel, or of a file that ring_save has written,
 * for the message where ring_attach or ring_restore returns -EPROTONOSUPPORT. 0: not known.
 */
uint32_t ring_version_of(int fd);

/*
 * ring_attach_id: ring_attach by identity and cookie, module only. -ENOENT no such channel for us.
 */
int ring_attach_id(struct ring **out, const uint8_t id[16], const uint8_t cookie[16]);

/* ring_close: either end; says good-bye to the peer. Frees r; NULL is allowed. */
void ring_close(struct ring *r);

enum ring_backend ring_backend(const struct ring *r);
const struct singvgpu_geometry *ring_geometry(const struct ring *r);
const uint8_t *ring_id(const struct ring *r);	/* 16 bytes */
uint32_t ring_generation(const struct ring *r);
int ring_fd(const struct ring *r);		/* stays owned by r; or -ECHILD */

/* The arena: geometry's arena_len bytes at the same address in both processes. NULL if none. See ring_commit. */
void *ring_arena(const struct ring *r);

/*
 * ring_commit: allocate the pages of an arena range now; the proxy's end. -EDQUOT, -ENOMEM, -EINVAL, -EFBIG.
 * A memory file's arena has RING_ARENA_LEAST bytes, or all of fewer, and grows to the last page that was
 * committed: behind that an access raises SIGBUS. A client that made it grow could be killed for a limit on the
 * size of its files (SIGXFSZ).
 * ring_decommit: give them back; the range then reads as zeros. Whole pages.
 */
#define RING_ARENA_LEAST (64ull << 20)
int ring_commit(struct ring *r, size_t off, size_t len);
int ring_decommit(struct ring *r, size_t off, size_t len);

/*
 * ring_set_spin: this end spins at most max_ns before it sleeps (default 10 µs; 0: never). The
 * actual time adapts below that.
 */
void ring_set_spin(struct ring *r, uint32_t max_ns);

/* A sentence for an error of this library, negative or positive. Static. */
const char *ring_strerror(int err);

/* ---------------------------------------------------------------------------- client's end */

/*
 * ring_submit: append a record of op with the payload a[alen] followed by b[blen]. It waits only
 * for room in the ring and for the gate; when it returns 0 the consumer can see the record. Any
 * thread, also a signal handler that interrupted a ring function. op is not SINGVGPU_OP_PAD.
 * -EMSGSIZE the payload is over ring_payload_max(). ring_post.h has an inlined form for short
 * records.
 */
int ring_submit(struct ring *r, uint16_t op, const void *a, uint32_t alen,
		const void *b, uint32_t blen);

/*
 * ring_try_submit: ring_submit for a caller that must not wait, such as one that holds a lock.
 * -EAGAIN nothing was submitted, since the gate is closed or the ring full. ring_wait_room: wait,
 * without the lock, until there is room for a record of len bytes. Other threads may take it
 * first, so the caller repeats both.
 */
int ring_try_submit(struct ring *r, uint16_t op, const void *a, uint32_t alen, const void *b,
		    uint32_t blen);
int ring_wait_room(struct ring *r, uint32_t len);

uint32_t ring_payload_max(const struct ring *r);

/* ring_proxy_gone: 1 the proxy has died or said good-bye: calls fail with -EPIPE. No system call. */
int ring_proxy_gone(const struct ring *r);

/* A request in flight; ring_request and ring_await of it are called by one thread. */
struct ring_ticket {
	uint64_t seq;
	uint16_t slot;
};

/* ring_request: as ring_submit, with a completion slot. -EBUSY all slots are in use. */
int ring_request(struct ring *r, struct ring_ticket *t, uint16_t op, const void *a,
		 uint32_t alen, const void *b, uint32_t blen);

/*
 * ring_request_anyway: ring_request that passes a closed gate, for requests that a drain waits for.
 * The drain serves it, or, if the drain has ended, it is served after the thaw or the restore.
 */
int ring_request_anyway(struct ring *r, struct ring_ticket *t, uint16_t op, const void *a,
			uint32_t alen, const void *b, uint32_t blen);

/*
 * ring_await: wait for the answer: 0, its status in *status, up to cap bytes of its data (at
 * most SINGVGPU_CPL_DATA) in data, their number in *len; status, data, len may be NULL.
 * timeout_ns < 0 waits for ever. The ticket cannot be used again; an answer after -ETIMEDOUT is
 * dropped.
 */
int ring_await(struct ring *r, struct ring_ticket *t, int32_t *status, void *data, uint32_t cap,
	       uint32_t *len, int64_t timeout_ns);

/*
 * ring_expect: waits for the answer as ring_await does, but leaves it there: 0 it has come, -ETIMEDOUT not yet. The
 * ticket can be used again in both cases. ring_taken: has the proxy taken the request, or answered it? No
 * system call. Both are called by the ticket's thread.
 */
int ring_expect(struct ring *r, const struct ring_ticket *t, int64_t timeout_ns);
bool ring_taken(const struct ring *r, const struct ring_ticket *t);

/*
 * ring_call: ring_request and ring_await; if the proxy sleeps, one system call wakes it and waits.
 */
int ring_call(struct ring *r, uint16_t op, const void *a, uint32_t alen, const void *b,
	      uint32_t blen, int32_t *status, void *data, uint32_t cap, uint32_t *len);

/*
 * ring_position: how much has been sent through the channel: it grows with each record, by one for a short one. If it
 * has not grown, no submission has returned meanwhile. No round trip.
 */
uint64_t ring_position(const struct ring *r);

/* ring_error: the first error that the proxy latched, or 0; *seq: the record's. No round trip. */
int32_t ring_error(struct ring *r, uint64_t *seq);

/* ----------------------------------------------------------------------------- proxy's end
 * One thread at a time; ring_complete and ring_latch_error: any thread.
 */

struct ring_record {
	uint64_t seq;		/* as in the producer's ticket */
	uint16_t op;
	uint16_t cpl;		/* completion slot + 1, or 0 */
	uint32_t len;
	const void *data;	/* private copy; valid until the next ring_peek or ring_peek_run */
};

/*
 * ring_peek: 1 and the oldest record, 0 none. -EPIPE none and the client is gone, -EPROTO the
 * client broke a rule (ring_why says which): the channel cannot be used any more.
 * The next ring_peek returns the same record unless ring_advance came between.
 */
int ring_peek(struct ring *r, struct ring_record *rec);
void ring_advance(struct ring *r);	/* past the record peeked last, or the whole run */

/*
 * ring_peek_run: ring_peek for up to max records; returns their number. Runs of some 64 records
 * make a stream cheaper to read; a record that wants an answer ends a run. The caller serves a
 * run in order and advances as it does, so that producers have room and a crash repeats nothing:
 * by ring_advance_past a record, by ring_log_append of it (after those before it), or by
 * ring_advance in the end. Records that are not advanced past are returned again.
 */
int ring_peek_run(struct ring *r, struct ring_record *rec, unsigned int max);
void ring_advance_past(struct ring *r, const struct ring_record *rec);

/*
 * ring_wait: wait until there is a record (0). Spins for up to 10 µs where that can help, then
 * sleeps. -EPIPE, -EINTR (a signal, or ring_kick), -ETIMEDOUT. timeout_ns < 0: for ever.
 */
int ring_wait(struct ring *r, int64_t timeout_ns);

/*
 * ring_wait_yielding: the same for a proxy of which other threads are at work, who may need the processors:
 * while it spins it gives its turn away, and when another thread has taken one, it sleeps. A client's
 * thread that its own record's wake has preempted posts the next one then, and has nobody to wake.
 */
int ring_wait_yielding(struct ring *r, int64_t timeout_ns);

/* ring_due: would ring_wait return at once? For a consumer that does other work while it waits. */
bool ring_due(struct ring *r);
void ring_kick(struct ring *r);	/* makes ring_wait return -EINTR once; any thread, signal-safe */

/*
 * ring_heed: ring_wait also returns -EINTR once for each change of a word, which others wake as a
 * shared futex after the change. It stays mapped. Before ring_wait. -ENOTSUP: the module's waits
 * know no other word.
 */
int ring_heed(struct ring *r, const uint32_t *word);

/* ring_complete: answer a record. data: len <= SINGVGPU_CPL_DATA bytes. -EINVAL no such slot. */
int ring_complete(struct ring *r, uint16_t cpl, uint64_t seq, int32_t status, const void *data,
		  uint32_t len);

/* ring_unanswered: how many requests have been peeked, and not answered. */
uint64_t ring_unanswered(const struct ring *r);

/* ring_latch_error: latch err (not 0) and its record, unless an error is latched already. */
void ring_latch_error(struct ring *r, uint64_t seq, int32_t err);

/* ring_why: the rule that the peer broke (-EPROTO), or why ring_freeze failed. Static text. */
const char *ring_why(const struct ring *r);

/*
 * ring_watch_peer: accept the first or the next client and watch for its death. pidfd is its
 * process, and is owned by r from then on; the module does not need it (-1). Call it before the
 * client gets its fd, else a good-bye may be missed.
 */
int ring_watch_peer(struct ring *r, int pidfd);

/*
 * ring_lose_peer: the client's process lives, but executes another program, which does not have the channel. The client is
 * taken for dead. Async-signal-safe. Over the module it does nothing: the module sees that by itself.
 */
void ring_lose_peer(struct ring *r);

/* ring_peer_gone: 1 the client has said good-bye or died. Its records may still be in the ring. */
int ring_peer_gone(struct ring *r);

/* --- log: the records that rebuild a proxy when they are replayed */

/*
 * ring_log_append: log rec's payload (or data[len], under op) and advance past rec, in one
 * store: after a crash either both have happened or neither. -ENOSPC compact first.
 */
int ring_log_append(struct ring *r, const struct ring_record *rec, uint16_t op, uint64_t key,
		    const void *data, uint32_t len);

/*
 * ring_log_compact: calls keep(arg, entry, payload) for each entry, oldest first, and drops those
 * for which it returns 0. One store makes the new log current.
 */
typedef int (*ring_log_keep)(void *arg, const struct singvgpu_log_entry *e, const void *data);
int ring_log_compact(struct ring *r, ring_log_keep keep, void *arg);

/*
 * ring_log_walk: calls fn for each entry, oldest first; a result other than 0 ends the walk and is
 * returned. -EBADMSG the log is damaged. e and data are private copies, valid during the call.
 */
typedef int (*ring_log_fn)(void *arg, const struct singvgpu_log_entry *e, const void *data);
int ring_log_walk(struct ring *r, ring_log_fn fn, void *arg);
size_t ring_log_bytes(const struct ring *r);

/* --- dump and restore */

/*
 * ring_freeze: close the gate, at which new submissions wait, and drain: call serve(arg, r, rec),
 * which must advance past the record, for each record still in the ring, until the ring is empty
 * and every request is answered. -EALREADY. -ETIMEDOUT after timeout_ns; ring_why has the reason,
 * and the gate is open again. A producer that had passed the gate may still commit a record
 * afterwards: it stays in the ring, is saved with it, and is served after the restore.
 */
typedef int (*ring_serve)(void *arg, struct ring *r, const struct ring_record *rec);
int ring_freeze(struct ring *r, ring_serve serve, void *arg, int64_t timeout_ns);

/*
 * ring_freeze_when: the same, but settled(arg, r, unanswered) decides when the drain ends. It is
 * called repeatedly while the ring is empty, with the number of unanswered requests. A result
 * above 0 ends the drain, and later records stay in the ring; 0 continues it (settled should sleep
 * a little); -errno gives up and opens the gate. serve NULL: no record is taken, and all stay in the ring.
 */
typedef int (*ring_settled)(void *arg, struct ring *r, uint64_t unanswered);
int ring_freeze_when(struct ring *r, ring_serve serve, ring_settled settled, void *arg,
		     int64_t timeout_ns);
int ring_thaw(struct ring *r);

/*
 * ring_save: write the channel's content to fd (a file or a pipe), sparse. The client must be
 * stopped (by CRIU). RING_SAVE_NO_ARENA leaves out the arena, which a dump stores by page.
 * ring_restore: a new channel with the image's identity, geometry and content, generation + 1,
 * frozen. p's id and geometry are ignored. -EPROTONOSUPPORT the image has another version
 * (ring_version_of), -EBADMSG it is damaged; else as ring_create.
 */
#define RING_SAVE_NO_ARENA 1u
int ring_save(struct ring *r, int fd, unsigned int flags);
int ring_restore(struct ring **out, int fd, const struct ring_params *p);
/* After ring_restore: so many requests of the saved channel were open, and ring_complete will answer them. */
void ring_reopen(struct ring *r, uint64_t requests);

#endif /* RING_H */
