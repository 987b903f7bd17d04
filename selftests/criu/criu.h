/* SPDX-License-Identifier: Apache-2.0 */
/*
 * criu.h - a proxy process, a client process, and CRIU between them
 *
 *   run_begin ─► run_move … (dump, kill, new proxy, restore) ─► run_end
 *
 * A failed step prints the reason and the last lines of the logs on stderr, and returns -1.
 *
 * The order of a checkpoint, here as in a driver of checkpoints:
 *
 *   1. the proxy closes the gate and drains (FREEZE), or just stops serving (PAUSE)
 *   2. `criu dump`; when all is dumped and the tree is still frozen, CRIU runs its action script
 *      with post-dump: the proxy saves the channel. If the script fails, CRIU lets the tree go on
 *      and fails. Otherwise it kills the tree, or with --leave-running lets it go on. So the saved
 *      channel always matches the dump, and a failed save loses nothing. (If `criu dump` kills the
 *      tree, the channel may also be saved after it has returned.)
 *   3. the old proxy ends, in whatever way; a new one restores the channel: generation + 1, gate
 *      closed. It must be there before CRIU's restore, which maps it.
 *   4. `criu restore`, given the channel: memfd by --inherit-fd, whose key is the memfd's name;
 *      /dev/singvgpu by the plugin and the cookie
 *   5. the proxy watches the restored client (WATCH) and opens the gate (THAW)
 */
#ifndef SELFTESTS_CRIU_CRIU_H
#define SELFTESTS_CRIU_CRIU_H

#include <stdbool.h>
#include <sys/types.h>

#include "ring.h"
#include "stream.h"

#define LOG_LAST 8

/* A proxy's account of the streams: saved and restored together with the channel. */
struct state {
	uint64_t next[STREAMS];
	uint64_t logged;	/* seq of the last record in the log */
};

/* Shared by the driver and its proxies. */
struct shared {
	struct state st;	/* the current proxy's */
	uint64_t served;
	uint64_t left;		/* restored channels that had a record in them */
	uint32_t peer_gone;	/* the proxy was told of its client's death */
	uint32_t ended;		/* OP_END came, and the account is right */
	uint32_t probed;
	struct end end;
	struct probe probe;
	char wrong[256];	/* the first thing that is wrong */
};

struct run {
	enum ring_backend backend;
	const char *mode;	/* the client's */
	bool no_rseq;
	enum cookie {
		COOKIE,			/* SINGVGPU_COOKIE */
		COOKIE_NONE,
		COOKIE_WRONG,
		COOKIE_FILE,		/* SINGVGPU_COOKIES, as the second line */
		COOKIE_FILE_OTHERS,	/* only others' */
		COOKIE_FILE_BROKEN,
	} how;
	bool no_plugin;
	int other_fd;		/* the client's fd 4; 0: none */
	uint8_t id[16], cookie[16];
	char dir[64];
	struct shared *sh;
	pid_t proxy, client;	/* 0: none */
	uint32_t generation;	/* what the client must see */
	unsigned int dumps;
	uint64_t seed;
};

enum cmd { CMD_CLIENT_FD, CMD_WATCH, CMD_FREEZE, CMD_THAW, CMD_PAUSE, CMD_GO, CMD_SAVE, CMD_CLOSE };

/* proxy.c */
void proxy_run(struct run *r, const char *restore, int ready) __attribute__((noreturn));
int proxy_send(const char *dir, enum cmd cmd, const char *arg, int *fd);

/* driver.c */
int script_main(const char *dir);	/* CRIU's action script */
void criu_look(void);		/* once, at first: does CRIU work here? */
const char *criu_missing(enum ring_backend backend);	/* NULL: all is there */
int run_begin(struct run *r, enum ring_backend backend, const char *mode);
void run_free(struct run *r);
uint64_t run_random(struct run *r, uint64_t below);
void pause_us(uint64_t us);
int start_proxy(struct run *r, const char *restore);
int kill_proxy(struct run *r);
int close_proxy(struct run *r);
int start_client(struct run *r);
int kill_client(struct run *r);
int watch_client(struct run *r);
int command(struct run *r, enum cmd cmd, const char *arg);
/* These wait for a condition; a timeout prints which one. */
bool comes_true(const uint32_t *word);	/* other than 0 */
bool catches(struct run *r, int sig);	/* the client has a handler */
bool has_file(struct run *r, const char *what, bool want);	/* the client, open */
int progress(struct run *r);		/* each thread's stream advances, and nothing is wrong */
#define DUMP_LEAVE	1		/* --leave-running */
#define DUMP_FAILS	2		/* it must fail, and leave the client running */
int dump(struct run *r, unsigned int flags);
int restore(struct run *r);
int restore_fails(struct run *r, const char *why);	/* and CRIU's log says why */
void image_dir(struct run *r, char *path, size_t size);	/* of the last dump */
int renew_proxy(struct run *r);	/* the old one is gone; a new one restores the channel */
bool log_says(struct run *r, const char *log, const char *what);
#define MOVE_KILL	1		/* kill -9 of the old proxy, else it closes */
#define MOVE_DRAIN	2
#define MOVE_LEAVE	4		/* leave it running, for a while */
#define MOVE_FULL	8		/* when the ring is full and all producers wait */
int run_move(struct run *r, unsigned int flags);
int run_end(struct run *r);		/* the client's account is right */
int wait_client(struct run *r, int *status);

#endif /* SELFTESTS_CRIU_CRIU_H */
