/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stat.h - the figures that a proxy shows while it runs: a file that `singvgpu ps` and `top` map
 *
 * The proxy creates the file of --stat PATH with this struct's size, fills in the first fields and
 * stores magic last (release). From then on the proxy alone writes; it stores each 64-bit number
 * whole (relaxed). A reader loads them one by one: two need not be of the same moment.
 * While UPROXY_STAT_VERSION stays, fields are only added at the struct's end; a reader uses the
 * smaller of `size` and the size that it knows. The launcher removes the file.
 */
#ifndef UPROXY_STAT_H
#define UPROXY_STAT_H

#include <stdint.h>

#define UPROXY_STAT_MAGIC	0x54475653u	/* "SVGT" */
#define UPROXY_STAT_VERSION	1u

enum uproxy_stat_state {
	UPROXY_STARTING,	/* the driver is being opened */
	UPROXY_SERVING,
	UPROXY_FROZEN,		/* the gate is closed for a dump */
	UPROXY_ENDED,		/* the client has left, or the session was ended: why[] */
};

/* The soft device's kernels, whose code it compiles itself; all 0 with another driver. */
struct uproxy_kernels {
	uint64_t asked;			/* whose code was wanted */
	uint64_t cached;		/* of these, found in a cache */
	uint64_t compiled;
	uint64_t kept;			/* of these, written to the cache */
	uint64_t failed;		/* could not be compiled */
	uint64_t ns;			/* while one or more were compiled */
	uint64_t since;			/* CLOCK_MONOTONIC: at least one is compiled since then; 0: none */
	uint64_t no_ptx;		/* images that hold only machine code, for other devices */
};

/* The time while one or more of something went on. */
struct uproxy_while {
	uint64_t ns;			/* in all, up to `since` */
	uint64_t since;			/* CLOCK_MONOTONIC: it goes on since then; 0: it does not */
};

#define UPROXY_SWITCHES 32	/* that a session remembers */

/* The turns of a session that shares its device by slices (slice/); else all 0. Bytes come in units of 64 KiB. */
struct uproxy_slices {
	uint64_t begun;			/* slices */
	uint64_t switches;		/* of these, after another sharer was told to end its slice */
	uint64_t switch_ns;		/* of these, from that word to the session's first record */
	uint64_t drain_ns;		/* the device ran on when a slice of the session was to end */
	uint64_t digested;		/* at the ends of slices */
	uint64_t taken;			/* of these, copied to the backing */
	uint64_t brought;		/* copied or cleared at the begin of slices */
	uint64_t backing;		/* what the backing had of all sharers of the device, at the session's last slice */
	uint64_t backing_peak;		/* maximum of that */
	uint32_t last_us[UPROXY_SWITCHES]; /* switch n took this, at n % UPROXY_SWITCHES, from 0 */
};

struct uproxy_stat {
	uint32_t magic;			/* UPROXY_STAT_MAGIC, stored last */
	uint32_t version;		/* UPROXY_STAT_VERSION */
	uint32_t size;			/* of this struct, bytes */
	uint32_t state;			/* enum uproxy_stat_state */
	int32_t pid;			/* the proxy's */
	int32_t client;			/* the client's, as SO_PEERCRED told it */
	int32_t device;			/* ordinal among the driver's devices */
	int32_t driver_version;		/* as cuDriverGetVersion */
	uint64_t started_ns;		/* CLOCK_REALTIME */
	char device_name[64];		/* cut if need be, always with a NUL */
	char backend[16];		/* of the channel: "kmod" or "memfd" */
	char why[128];			/* why the session ended, "" while it runs or if nothing is wrong */

	uint64_t budget;		/* device memory granted, bytes; 0: none is set */
	uint64_t device_bytes;		/* physical device memory mapped now */
	uint64_t device_peak;		/* maximum of device_bytes */
	uint64_t pinned_bytes;		/* arena memory pinned for the device now */

	uint64_t calls;			/* records executed */
	uint64_t answered;		/* of these, with an answer */
	uint64_t launches;		/* kernels, one for each grid, and collective operations */
	uint64_t errors;		/* records that failed */
	uint64_t bytes_to_device;	/* copied from host memory */
	uint64_t bytes_to_host;
	uint64_t bytes_on_device;	/* copied or set within device memory */
	uint64_t modules;		/* images loaded */
	uint64_t jit_ns;		/* spent in loading and compiling them */
	uint64_t waits;			/* times that the proxy waited on an empty ring */
	struct uproxy_kernels kernels;
	uint64_t collectives;		/* collective operations and ends of pairs that have ended well here */
	uint64_t coll_last;		/* collectives of several ranks that this one was the last to post */
	struct uproxy_while coll_waits;	/* such calls waited for other ranks to make theirs */
	struct uproxy_while coll_runs;	/* operations that the streams had come to ran, or waited for other devices */
	uint32_t logical;		/* the number that the client has for the device, + 1; 0: of an older proxy */
	uint32_t pad;
	struct uproxy_slices slices;
};

_Static_assert(sizeof(struct uproxy_kernels) == 64, "file format");
_Static_assert(sizeof(struct uproxy_while) == 16, "file format");
_Static_assert(sizeof(struct uproxy_slices) == 200, "file format");
_Static_assert(sizeof(struct uproxy_stat) == 680, "file format");

#endif
