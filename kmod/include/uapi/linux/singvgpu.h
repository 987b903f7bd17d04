/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR Apache-2.0 */
/*
 * singvgpu.h - the interface between a job, a proxy and the kernel: channel layout and ioctls
 *
 * A channel joins one client (a rank of a job) to one proxy. It is one object, mapped by both at
 * the same virtual address, and made of five regions in this order, each page aligned:
 *
 *     offset   region       written by            mapped by
 *     0        control      both, see each field  both
 *     cpl_off  completions  both, see below       both
 *     ring_off ring         client                both
 *     arena_off arena       both                  both, and guests (see mmap)
 *     log_off  log          proxy                 proxy alone
 *
 * The object is either a character device file (/dev/singvgpu, this file's ioctls) or a memfd.
 * They are mapped alike; in the memfd the log lies before the arena, which grows with what of it
 * is committed. Everything is little endian, as is every machine with such a GPU.
 *
 * Version rule: a change that an older peer would misread raises SINGVGPU_API_VERSION, and a
 * peer refuses another version with EPROTONOSUPPORT. An ioctl's number has the size of its struct;
 * reserved fields and unknown flags must be zero (else EINVAL), so that they can get a meaning
 * within a version. Changelog:
 *
 *     1  first version
 *     2  a memfd has the log before the arena, and grows with it
 */
#ifndef _UAPI_LINUX_SINGVGPU_H
#define _UAPI_LINUX_SINGVGPU_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define SINGVGPU_API_VERSION	2
#define SINGVGPU_DEV_NAME	"singvgpu"
#define SINGVGPU_DEV_PATH	"/dev/singvgpu"
#define SINGVGPU_MAGIC		0x0031555047564753ULL	/* "SGVGPU1\0" */

/* --------------------------------------------------------------------------------------------
 * The submission ring: records of whole 64-byte units. Positions count units, run freely from 0
 * and never wrap (2^64); the unit of a position is `position & (ring_units - 1)`. A record never
 * wraps around the end of the ring: a record of op SINGVGPU_OP_PAD fills the units left there.
 *
 * The store of `seq`, which comes last, commits a record. Before it the producer makes sure that
 * the `seq` field of the unit behind the record cannot be taken for a commit: if that unit may hold
 * payload of a longer record of the last lap, the producer zeroes the field. Hence a ring holds
 * ring_units - 1 units.
 */
#define SINGVGPU_UNIT		64u
#define SINGVGPU_RING_UNITS_MIN	64u		/* one page */
#define SINGVGPU_RING_UNITS_MAX	0x100000u	/* 64 MiB */
#define SINGVGPU_RECORD_MAX	65536u		/* bytes, header included; and at most ring / 4 */

struct singvgpu_rec {
	__u64 seq;		/* position + 1: the commit; release by the producer */
	__u16 op;		/* opcode; all but SINGVGPU_OP_PAD are the user's */
	__u16 cpl;		/* completion slot + 1 that the producer waits on, or 0 */
	__u32 len;		/* bytes of payload behind this header */
};

#define SINGVGPU_OP_PAD		0xffffu

/* --------------------------------------------------------------------------------------------
 * Completion slots: one line each, lent to one waiting thread of the client at a time. The
 * client writes `waiting`; the proxy writes the other fields, `seq` last, with the `seq` of the
 * answered record. Waiters sleep on the low half of `seq`.
 */
#define SINGVGPU_CPL_DATA	44u

struct singvgpu_cpl {
	__u64 seq;		/* release by the proxy (or stored by the device) */
	__u32 waiting;		/* 1: counted in cpl_waiters for this slot; client */
	__s32 status;		/* 0 or the user's error code; proxy */
	__u32 len;		/* bytes of data[] in use; proxy */
	__u8  data[SINGVGPU_CPL_DATA];
};

#define SINGVGPU_CPL_SLOTS_MAX	65534u

/* --------------------------------------------------------------------------------------------
 * The control page. Each group of fields has a line (or two: adjacent-line prefetch) to itself.
 *
 * On every submission the producer reads `cons` and `life` together as one 64-bit word:
 * need-wakeup, gate, generation and the proxy's death cost it one load.
 *
 * With memfd `life` is a robust futex that holds the tid of a thread of the proxy; the kernel sets
 * SINGVGPU_LIFE_DIED when that thread dies. With the device the module sets the same bit.
 * `client_life` is the same for the client; the module sets it or, with memfd, the proxy, which
 * polls a pidfd (CRIU refuses a job whose robust list leaves the job).
 */
#define SINGVGPU_CONS_SLEEPS	0x00000001u	/* the consumer sleeps on `doorbell` */
#define SINGVGPU_CONS_GATE	0x00000002u	/* new submissions wait on `cons` */
#define SINGVGPU_CONS_CLOSED	0x00000004u	/* the proxy has closed the channel */
#define SINGVGPU_CONS_ERROR	0x00000008u	/* `error` is latched */
#define SINGVGPU_CONS_FENCE	0x00000010u	/* no membarrier here: producers fence themselves */
#define SINGVGPU_CONS_GEN_SHIFT	8		/* generation, 24 bits */

#define SINGVGPU_LIFE_DIED	0x40000000u	/* FUTEX_OWNER_DIED */
#define SINGVGPU_LIFE_WAITERS	0x80000000u	/* FUTEX_WAITERS */

struct singvgpu_ctl {
	/* Written once, by the creator. The proxy never reads them back. */
	__u64 magic;
	__u32 api_version;
	__u32 ring_units;	/* a power of two */
	__u8  id[16];
	__u64 va;		/* address of this page in both processes */
	__u32 cpl_slots;
	__u32 pad0;
	__u64 cpl_off;
	__u64 ring_off;
	__u64 arena_off;
	__u64 arena_len;
	__u64 log_off;
	__u64 log_len;
	__u8  pad1[128 - 96];

	/* Proxy: position up to which it has consumed. */
	__u64 head;
	__u8  pad2[128 - 8];

	/* Proxy: seldom written, read by every submission. */
	__u32 cons;
	__u32 life;
	__u64 error_seq;	/* record that caused the first error */
	__s32 error;		/* first error; 0: none. Set once, before CONS_ERROR */
	__u32 cons_cpu;		/* CPU that the consumer was last seen on, + 1 */
	__u32 naps;		/* counts settings of CONS_SLEEPS; 0: the proxy does not count */
	__u8  pad3[128 - 28];

	/* Client: written only around its sleeps and wake-ups. */
	__u32 doorbell;		/* counts wake-ups; the consumer sleeps on it */
	__u32 space_waiters;	/* threads that sleep on the low half of `head` */
	__u32 client_closed;	/* 1: the client has said good-bye */
	__u32 prod_cpu;		/* CPU that a waiting producer was last seen on, + 1 */
	__u32 client_life;	/* SINGVGPU_LIFE_DIED */
	__u32 cpl_waiters;	/* threads that sleep on a completion slot, or are about to */
	__u8  pad4[128 - 24];

	/*
	 * Proxy: the log's state, one word so that it changes in one store.
	 * Bit 63: which half of the log region is current; the other bits: its length in bytes.
	 */
	__u64 log_state;
	__u8  pad5[128 - 8];
};

/*
 * The log has two halves; compaction writes the other half, then flips `log_state`. A half holds
 * entries of whole 8-byte words. An entry has the consumed position behind its record, so that log
 * and position change in one store: after a crash the position is the larger of `head` and the last
 * entry's `end`.
 */
struct singvgpu_log_entry {
	__u64 end;		/* position behind the record that made the entry */
	__u64 key;		/* the value passed to ring_log_append(); opaque here */
	__u16 op;
	__u16 flags;		/* zero */
	__u32 len;		/* bytes of payload behind this header; the entry is padded to 8 */
};

#define SINGVGPU_LOG_HALF	0x8000000000000000ULL

/* --------------------------------------------------------------------------------------------
 * ioctls. One open file of /dev/singvgpu is one end of one channel, or not an end yet.
 *
 * Errors common to all: ENOTTY unknown command, EFAULT, EINVAL a bad flag, reserved field or
 * size, ENOTCONN the file is not an end of a channel yet.
 */

#define SINGVGPU_ROLE_NONE	0
#define SINGVGPU_ROLE_PROXY	1
#define SINGVGPU_ROLE_CLIENT	2

struct singvgpu_geometry {
	__u64 va;		/* page aligned, below 2^47; of offset 0, in both processes */
	__u64 arena_len;	/* bytes, page aligned, may be 0 */
	__u64 log_len;		/* bytes, page aligned, both halves together, may be 0 */
	__u32 ring_units;	/* power of two, SINGVGPU_RING_UNITS_MIN to _MAX */
	__u32 cpl_slots;	/* 1 to SINGVGPU_CPL_SLOTS_MAX; their region ends page aligned */
};

/*
 * CREATE: this file becomes the proxy end of a new channel.
 * EBUSY the file is an end already, EEXIST a channel of this id exists, EDQUOT the user's limit
 * of channels or bytes is reached, ENOMEM, EPROTONOSUPPORT api_version.
 */
struct singvgpu_create {
	__u32 api_version;
	__u32 flags;		/* 0 */
	__u8  id[16];		/* chosen by the launcher; not all zero */
	__u8  cookie[16];	/* secret that ATTACH must present; not all zero */
	struct singvgpu_geometry geo;
	__u32 generation;	/* 0 for a new channel, the old one + 1 for a re-created one */
	__u32 reserved;
};

/*
 * ATTACH: this file becomes the client end of the channel. After the client has hung up another
 * ATTACH is allowed and increments the generation. The file may be passed on; the first process
 * that maps it is the client. ENOENT no such channel, or a wrong cookie, or another user's channel
 * (one error for all three); EBUSY a client is attached, or the file is an end already; EPIPE
 * the proxy is gone; EPROTONOSUPPORT.
 */
struct singvgpu_attach {
	__u32 api_version;
	__u32 flags;		/* 0 */
	__u8  id[16];
	__u8  cookie[16];
	struct singvgpu_geometry geo;	/* out */
	__u32 generation;	/* out */
	__u32 reserved;
};

/* GET_INFO: for any file; one that is no end yet has role NONE, and version and features only. */
struct singvgpu_info {
	__u32 api_version;	/* out, as all others */
	__u32 features;		/* SINGVGPU_FEAT_* */
	__u32 role;
	__u32 state;		/* SINGVGPU_STATE_* */
	__u8  id[16];
	struct singvgpu_geometry geo;
	__u64 length;		/* bytes from va that this end may map */
	__u64 pages;		/* pages that the channel holds now */
	__u32 generation;
	__u32 reserved;
};

#define SINGVGPU_FEAT_CURRENT_CPU	0x1	/* WAKE_WAIT hands the CPU over */

#define SINGVGPU_STATE_PEER		0x1	/* the other end is attached and alive */
#define SINGVGPU_STATE_FROZEN		0x2

/*
 * WAIT: sleep while the 32-bit word at `off` (below ring_off, 4-byte aligned) holds `expect`.
 * Returns 0 when the word differs, or after a WAKE on it. ETIME the timeout has expired; EPIPE the
 * peer has hung up (before the client has attached WAIT just waits). A signal interrupts the call:
 * `timeout_ns` then has the remaining time, and the call is restarted or fails with EINTR as the
 * signal's action says. A negative timeout waits for ever; 0 only checks the word. EDQUOT, ENOMEM:
 * no memory for the page that the word is in.
 */
struct singvgpu_wait {
	__u64 off;
	__s64 timeout_ns;	/* in: relative; out with ETIME or a signal: the remaining time */
	__u32 expect;
	__u32 flags;		/* 0 */
};

/* WAKE: wake up to `nr` waiters (of both ends) on the word at `off`. Returns their number. */
struct singvgpu_wake {
	__u64 off;
	__u32 nr;
	__u32 flags;		/* 0 */
};

/*
 * WAKE_WAIT: WAKE, then WAIT, in one call; the CPU may be handed to the woken task. With ETIME or
 * a signal `wake.nr` becomes 0, so that the call does not wake again when it is restarted.
 */
struct singvgpu_wake_wait {
	struct singvgpu_wake wake;
	struct singvgpu_wait wait;
};

/*
 * FREEZE: proxy end only. Sets SINGVGPU_CONS_GATE in the control page. THAW clears it and wakes
 * all waiters on `cons`. EALREADY the channel is frozen / not frozen; EACCES the file is the client
 * end; EPIPE it has hung up. Producers that have passed the gate may still commit a record; the
 * proxy drains the ring (ringbuf).
 */

/*
 * COMMIT: allocate the pages of [off, off + len) now, so that a limit is reported as an error and
 * not by SIGBUS at the first access. EDQUOT, ENOMEM (also of a memory cgroup, without an OOM kill):
 * no page stays allocated that was not before. EINTR: the task is being killed.
 * DECOMMIT: free them; only inside the arena, else EINVAL. The range reads as zeros afterwards;
 * pages that a device has pinned are freed when it unpins them.
 */
struct singvgpu_range {
	__u64 off;
	__u64 len;
};

#define SINGVGPU_IOC_MAGIC	0xB5
#define SINGVGPU_IOC_GET_INFO	_IOR(SINGVGPU_IOC_MAGIC, 0, struct singvgpu_info)
#define SINGVGPU_IOC_CREATE	_IOW(SINGVGPU_IOC_MAGIC, 1, struct singvgpu_create)
#define SINGVGPU_IOC_ATTACH	_IOWR(SINGVGPU_IOC_MAGIC, 2, struct singvgpu_attach)
#define SINGVGPU_IOC_WAIT	_IOWR(SINGVGPU_IOC_MAGIC, 3, struct singvgpu_wait)
#define SINGVGPU_IOC_WAKE	_IOW(SINGVGPU_IOC_MAGIC, 4, struct singvgpu_wake)
#define SINGVGPU_IOC_WAKE_WAIT	_IOWR(SINGVGPU_IOC_MAGIC, 5, struct singvgpu_wake_wait)
#define SINGVGPU_IOC_FREEZE	_IO(SINGVGPU_IOC_MAGIC, 6)
#define SINGVGPU_IOC_THAW	_IO(SINGVGPU_IOC_MAGIC, 7)
#define SINGVGPU_IOC_COMMIT	_IOW(SINGVGPU_IOC_MAGIC, 8, struct singvgpu_range)
#define SINGVGPU_IOC_DECOMMIT	_IOW(SINGVGPU_IOC_MAGIC, 9, struct singvgpu_range)

/*
 * mmap: offset 0 is the control page. Address and offset must match `va` (else EINVAL; address NULL
 * matches). MAP_SHARED of a file open for writing, no PROT_EXEC; the client end may not map the log
 * (EACCES). An occupied address gives EEXIST and changes nothing, MAP_FIXED or not. EBUSY another
 * process has the end mapped, and more than the arena is asked for; EPIPE the end has hung up.
 * Mappings are not inherited by fork and cannot be moved or grown.
 *
 * A process that maps the arena of an end which another process has mapped is a guest: the proxy of
 * the client's session on another device. Its mappings stay valid when the ends have hung up, and
 * keep the memory.
 *
 * An end hangs up when the process that mapped it removes the last mapping, execs or dies, even if
 * other processes have the file; an end that was never mapped, when its last file is closed.
 *
 * poll: EPOLLIN (proxy) the doorbell differs from its value at the proxy's last WAIT on it; a WAIT
 * with timeout 0 acknowledges it, and with EPOLLET no acknowledgment is needed. EPOLLPRI (proxy) a
 * client has attached since the last GET_INFO. EPOLLHUP | EPOLLERR the peer is gone (proxy: until
 * another client attaches), or the end itself has hung up.
 *
 * lseek: SEEK_DATA and SEEK_HOLE over allocated pages. pread, pwrite: proxy end (client: EACCES);
 * holes read as zeros; ENOSPC behind the end.
 */

#ifndef __KERNEL__
#define SINGVGPU_ASSERT(c)	_Static_assert(c, #c)
SINGVGPU_ASSERT(sizeof(struct singvgpu_rec) == 16);
SINGVGPU_ASSERT(sizeof(struct singvgpu_cpl) == 64);
SINGVGPU_ASSERT(sizeof(struct singvgpu_ctl) == 640);
SINGVGPU_ASSERT(__builtin_offsetof(struct singvgpu_ctl, head) == 128);
SINGVGPU_ASSERT(__builtin_offsetof(struct singvgpu_ctl, cons) == 256);
SINGVGPU_ASSERT(__builtin_offsetof(struct singvgpu_ctl, doorbell) == 384);
SINGVGPU_ASSERT(__builtin_offsetof(struct singvgpu_ctl, log_state) == 512);
SINGVGPU_ASSERT(sizeof(struct singvgpu_log_entry) == 24);
SINGVGPU_ASSERT(sizeof(struct singvgpu_geometry) == 32);
SINGVGPU_ASSERT(sizeof(struct singvgpu_create) == 80);
SINGVGPU_ASSERT(sizeof(struct singvgpu_attach) == 80);
SINGVGPU_ASSERT(sizeof(struct singvgpu_info) == 88);
SINGVGPU_ASSERT(sizeof(struct singvgpu_wait) == 24);
SINGVGPU_ASSERT(sizeof(struct singvgpu_wake) == 16);
SINGVGPU_ASSERT(sizeof(struct singvgpu_wake_wait) == 40);
SINGVGPU_ASSERT(sizeof(struct singvgpu_range) == 16);
#undef SINGVGPU_ASSERT
#endif

#endif /* _UAPI_LINUX_SINGVGPU_H */
