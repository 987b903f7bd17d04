/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - messages between a conductor (`singvgpu checkpoint`, `restore`, `migrate`) and a
 * proxy
 *
 * A proxy started with `--control PATH` listens there, on a unix SOCK_SEQPACKET socket of mode
 * 0600, for processes of its own user and root. It serves one conductor at a time; the next one
 * waits until that has gone. One message is one struct. To each request the proxy sends any number
 * of progress messages and one reply; the next request follows the reply.
 *
 *   job that runs:   CTL_INFO ─► (CTL_STEP) ─► CTL_FREEZE ─► CTL_DUMP ─► (CRIU freezes the tree) CTL_CHANNEL ─► CTL_THAW
 *                                    └─ any failure, or the conductor's end: the gate opens again ┘
 *                    If CRIU kills the tree, the proxy ends with its client, or CTL_STAY lets it stay.
 *   proxy of its own (`--restore`, no `--socket`):
 *                    CTL_RESTORE ─► (CRIU restores the tree) CTL_GO
 *                    If the conductor ends before CTL_GO, or the client does, the proxy ends.
 *
 * CTL_DUMP and CTL_CHANNEL write into a store with writers of their own; when they are answered the
 * objects are durable, and the conductor publishes them. CTL_DUMP may be repeated while the session
 * is frozen.
 *
 * Version rule: a change that an older peer would misread raises CTL_VERSION; a request of another
 * version is answered -EPROTONOSUPPORT with a sentence. While the version stays, structs grow at
 * their end only: the sender gives its size, and missing fields read as zero. Padding is zero.
 * Changelog:
 *
 *   1  first version
 */
#ifndef UPROXY_CONTROL_H
#define UPROXY_CONTROL_H

#include <stdint.h>
#include <string.h>

#include "why.h"

#define CTL_MAGIC	0x4c435653u	/* "SVCL" */
#define CTL_VERSION	1u
#define CTL_PATH_MAX	1024		/* of paths and of ids in messages, with the NUL */
#define CTL_SEATS	1024		/* BOARD_SEATS */
#define CTL_KEPT	".kept"		/* behind the path of a control socket: ctl_store.keep */

enum ctl_op {
	CTL_INFO = 1,	/* struct ctl_head ─► struct ctl_info. At any time */
	CTL_FREEZE,	/* struct ctl_freeze ─► struct ctl_frozen */
	CTL_DUMP,	/* struct ctl_store ─► struct ctl_dumped: device contents, observed text */
	CTL_CHANNEL,	/* struct ctl_store ─► struct ctl_dumped: the channel; the client is stopped */
	CTL_THAW,	/* struct ctl_head ─► struct ctl_reply; allowed if nothing is frozen */
	CTL_RESTORE,	/* struct ctl_restore ─► struct ctl_restored, memfd: the client's fd with it */
	CTL_GO,		/* struct ctl_go ─► struct ctl_reply: the client exists, the gate opens */
	CTL_STEP,	/* struct ctl_step ─► struct ctl_stepped: runs on to the end of a step */
	CTL_STAY,	/* struct ctl_head ─► struct ctl_reply: the tree was killed. With ctl_store.keep and a saved channel the
			 * proxy offers its device's memory to the next one (handover.h), and stays until it is killed */
	CTL_PROGRESS = 0x100,	/* struct ctl_progress, by the proxy, about twice a second */
};

struct ctl_head {
	uint32_t magic;		/* CTL_MAGIC */
	uint32_t version;	/* CTL_VERSION */
	uint32_t op;		/* of a reply: as in the request */
	uint32_t size;		/* of the whole message, bytes */
};

/* The beginning of every reply. */
struct ctl_reply {
	struct ctl_head h;
	int32_t status;		/* 0 or -errno */
	uint32_t pad;
	char why[512];		/* a sentence for status; CTL_INFO: what forbids a dump */
};

/* Puts a failure into a reply, which may cut the sentence. */
static inline void ctl_reply_why(struct ctl_reply *r, const struct why *why)
{
	r->status = why->err;
	why_copy(r->why, sizeof(r->why), why);
}

struct ctl_progress {
	struct ctl_head h;
	char phase[32];		/* "drain", "device", "arena", "replay", "contents" … */
	uint64_t done, total;	/* bytes; records for "replay", operations of streams for "drain";
				 * total 0: not known */
};

/* A struct store_ref of uproxy/ckpt/store/store.h. All zero: none. */
struct ctl_ref {
	uint8_t bytes[32];
};

static inline int ctl_ref_none(const struct ctl_ref *ref)
{
	static const struct ctl_ref none;

	return !memcmp(ref, &none, sizeof(none));
}

enum ctl_state {
	CTL_STATE_RUNNING = 1,
	CTL_STATE_FROZEN,	/* by a conductor */
	CTL_STATE_EMPTY,	/* started with --restore: waits for CTL_RESTORE */
	CTL_STATE_RESTORED,	/* waits for CTL_GO */
	CTL_STATE_AT_STEP,	/* after CTL_STEP: waits for CTL_FREEZE */
};

/* A device: a restore compares the one of the dump with its own. */
struct ctl_device {
	char name[256];
	uint8_t uuid[16];
	int32_t ordinal;	/* among the devices of the driver */
	int32_t driver_version;	/* as cuDriverGetVersion */
	int32_t cc_major, cc_minor;
	uint64_t total_mem;	/* bytes */
};

/* Of a device with so many bytes of memory: what its sessions' budgets leave free. */
static inline uint64_t ctl_spare(uint64_t bytes)
{
	const uint64_t most = 512ull << 20;

	return bytes / 32 < most ? bytes / 32 : most;
}

struct ctl_info {
	struct ctl_reply r;
	uint32_t state;		/* enum ctl_state; in CTL_STATE_EMPTY what follows is zero */
	uint32_t can_dump;	/* 0: no, for the reason in r.why (r.status is 0); 1: no reason is
				 * known, but on a busy device CTL_FREEZE may find one */
	int32_t proxy_pid;	/* pids as the proxy sees them */
	int32_t client_pid;
	struct ctl_device device;
	char driver[CTL_PATH_MAX];	/* path of the driver's library */
	uint64_t window, window_len;	/* of device addresses */
	uint64_t budget, mapped;	/* bytes of device memory: granted, in use */
	uint64_t pinned;		/* bytes of the arena */
	uint64_t arena_len;
	uint64_t log_bytes, log_room;	/* the channel's log: bytes in use, in all */
	/* The channel, as CRIU meets it in the client. */
	char backend[16];		/* "memfd" or "kmod" */
	uint8_t channel_id[16];
	uint32_t generation;
	uint32_t devices;		/* that the client finds; 0: of an older proxy */
	uint64_t fd_dev, fd_ino;	/* fstat of the channel's object */
	char inherit[128];		/* memfd: "/memfd:singvgpu-…", for `--inherit-fd fd[N]:…`; else "" */
	uint8_t home[16];		/* the channel whose arena the session uses, if not its own; or 0 */
	int32_t seat;			/* on the job's board of collectives; -1: the job has none */
	uint32_t logical;		/* the number that the client has for the device, + 1; 0: of an older
					 * proxy, where it is the ordinal */
	uint64_t peak;			/* bytes: the most that was mapped since the proxy began; 0: of an older one */
	uint32_t turns;			/* 1: the session can share its device by slices; 0: it cannot, or an older proxy */
	uint32_t crowded;		/* 1: its client has waited for memory that the device's other sharers have */
};

struct ctl_freeze {
	struct ctl_head h;
	uint64_t idle_ms;	/* timeout without progress: the gate opens again, the reply is
				 * -ETIMEDOUT and names stream and cause */
	uint64_t held_ms;	/* the same, -EBUSY, for streams that wait for an act of the program
				 * (a host function, a value in memory), which may itself wait at
				 * the gate; 0: idle_ms counts for them, too */
	/* Of a job with a board: the sessions of these seats freeze together. cut: a number of its own,
	 * not 0; 0: a session with communicators is refused. */
	uint64_t cut;
	uint64_t seats[CTL_SEATS / 64];	/* a bitmap */
	uint32_t at_step;	/* 1: where it stands since CTL_STEP; 0: wherever it is */
	uint32_t pad;
};

/*
 * ctl_give() has given the meeting (meeting.h) of all proxies that are asked. Until the end of the step, which the
 * proxy finds out by itself, the client is served as usual; then it stands there until CTL_FREEZE. -ECANCELED:
 * another proxy has given up; else the reply says what this one lacks. The session then runs on.
 */
struct ctl_step {
	struct ctl_head h;
	uint64_t limit_ms;
};

struct ctl_stepped {
	struct ctl_reply r;
	uint32_t items;		/* launches, copies and collectives of a step, roughly */
	uint32_t times;		/* repetitions of it that were seen */
	uint64_t passed;	/* steps' ends at which other ranks were not */
	uint64_t ns;
	uint64_t stood_ns;	/* since it takes no records of its client any more */
};

struct ctl_frozen {
	struct ctl_reply r;
	uint64_t drain_ns;	/* from the closing of the gate until the device was idle */
};

struct ctl_store {
	struct ctl_head h;
	char dir[CTL_PATH_MAX];	/* absolute path of the store */
	uint32_t claims;	/* CTL_DUMP, 1: ctl_give() has given store_claims_make()'s table, by which the
				 * proxies of a job store each page once */
	uint32_t pad;
	uint64_t since_ns;	/* CTL_DUMP: a file changed since then (CLOCK_REALTIME), as by the job itself, is
				 * back only when the sessions are: images in it are saved. 0: none */
	uint32_t keep;		/* CTL_DUMP, 1: CTL_STAY may follow. Once the channel is saved, the client's end does not end
				 * the proxy as long as the conductor is there */
	uint32_t pad2;
};

/*
 * CTL_DUMP fills device (contents), observed (text), session (images and descriptions of graphs
 * that the log refers to), and of a session with communicators comms (these, what is posted and what is
 * parked) and board (the state of the job's collectives, the same from all). CTL_CHANNEL fills channel (all but the arena) and arena; other refs are
 * zero.
 */
struct ctl_dumped {
	struct ctl_reply r;
	struct ctl_ref device, observed, session, channel, arena;
	uint64_t bytes;		/* saved */
	uint64_t zero_bytes;	/* of these, pages of zeros */
	uint64_t new_bytes;	/* of these, not in the store before */
	uint64_t read_bytes;	/* copied from the device to the host */
	uint64_t ns;
	struct ctl_ref comms, board;
	uint64_t fresh_bytes;	/* of the bytes, stored anew; new_bytes has maps, too, and is compressed */
};

struct ctl_restore {
	struct ctl_head h;
	char dir[CTL_PATH_MAX];
	struct ctl_ref device, observed, session, channel, arena;
	struct ctl_device was;	/* as in ctl_info: another type of device is refused by name */
	uint64_t window, window_len;	/* as in ctl_info */
	uint64_t budget;	/* bytes of device memory; 0: the dump's, the least accepted */
	int32_t ordinal;	/* device to use among the driver's; -1: --device of the command line */
	uint32_t check;		/* 1: only reply whether the device is suitable */
	uint32_t trust;		/* `also` of store_open_trusted() */
	uint32_t guest;		/* 1: ctl_give() has given the channel whose arena it uses */
	struct ctl_ref comms;	/* the board is the supervisor's to load */
};

struct ctl_restored {
	struct ctl_reply r;		/* status 0, memfd: the client's end of the channel comes along */
	struct ctl_device device;
	uint64_t records;		/* replayed */
	uint64_t bytes;			/* of contents */
	uint64_t replay_ns, contents_ns, channel_ns, compare_ns;
	char inherit[128];		/* as in ctl_info */
	uint64_t fd_dev, fd_ino;	/* of the new object */
	uint32_t generation;
	uint32_t pad;
	uint8_t channel_id[16];
	uint8_t cookie[16];		/* kmod, where no fd comes along: for CRIU's plugin; a secret */
	uint64_t handed;		/* of the bytes, by the former proxy, not by the store */
};

struct ctl_go {
	struct ctl_head h;
	int32_t client_pid;	/* as the proxy sees it */
	uint32_t pad;
};

_Static_assert(sizeof(struct ctl_head) == 16, "wire");
_Static_assert(sizeof(struct ctl_reply) == 536, "wire");
_Static_assert(sizeof(struct ctl_progress) == 64, "wire");
_Static_assert(sizeof(struct ctl_ref) == 32, "wire");
_Static_assert(sizeof(struct ctl_device) == 296, "wire");
_Static_assert(sizeof(struct ctl_info) == 2160, "wire");
_Static_assert(sizeof(struct ctl_freeze) == 176, "wire");
_Static_assert(sizeof(struct ctl_step) == 24, "wire");
_Static_assert(sizeof(struct ctl_stepped) == 568, "wire");
_Static_assert(sizeof(struct ctl_frozen) == 544, "wire");
_Static_assert(sizeof(struct ctl_store) == 1064, "wire");
_Static_assert(sizeof(struct ctl_dumped) == 808, "wire");
_Static_assert(sizeof(struct ctl_restore) == 1568, "wire");
_Static_assert(sizeof(struct ctl_restored) == 1072, "wire");
_Static_assert(sizeof(struct ctl_go) == 24, "wire");

/* ------------------------------------------------------------------ the conductor's side
 * uproxy/ckpt/control_client.c, in libsingvgpu-control.a
 */

/*
 * ctl_connect: connects to the proxy at path; returns a close-on-exec fd. -ENOENT, -ECONNREFUSED no
 * proxy listens, -ETIMEDOUT it does not accept, -EPERM it is another user's, …; all with *why.
 */
int ctl_connect(const char *path, struct why *why);
/* The same within ms, or the 10 s that ctl_connect gives a proxy if that is less. */
int ctl_connect_within(const char *path, long ms, struct why *why);

/*
 * ctl_send: fills in req->magic and version and sends req; the caller has set op and size.
 * -EPIPE the proxy is gone.
 */
int ctl_send(int fd, struct ctl_head *req);

/*
 * ctl_give: passes a descriptor, which stays the caller's and belongs to the next request, in a message
 * of one byte. -EPIPE the proxy is gone.
 */
int ctl_give(int fd, int given);

/*
 * ctl_receive: waits up to timeout_ms (-1: for ever) for a message. 1: *progress is filled in; 0:
 * the first cap bytes of op's reply are in *reply, fields that the proxy did not send are zero, and
 * *passed (unless NULL) is the descriptor that came with it, which the caller closes, or -1. The
 * reply's status is the caller's to check. -ETIMEDOUT, -EPIPE the proxy is gone, -EPROTO;
 * -EPROTONOSUPPORT the proxy is of another version, reply->h.version.
 */
int ctl_receive(int fd, uint32_t op, struct ctl_reply *reply, uint32_t cap,
		struct ctl_progress *progress, int *passed, int timeout_ms);

/* Called with each progress message of ctl_call. */
typedef void (*ctl_progress_fn)(void *arg, const struct ctl_progress *p);

/*
 * ctl_call: ctl_send, then ctl_receive until the reply has come; progress may be NULL. timeout_ms
 * limits the time between two messages. Returns reply->status; an error of the connection is stored
 * there too, with a sentence in reply->why.
 */
int ctl_call(int fd, struct ctl_head *req, struct ctl_reply *reply, uint32_t cap,
	     ctl_progress_fn progress, void *arg, int *passed, int timeout_ms);

#endif
