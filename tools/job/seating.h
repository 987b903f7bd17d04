/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seating.h - who sits where: of each rank the host, its number there, and its devices; of each proxy its seat
 *
 *   run: seating_make ────┐                          ┌─► start.c: the rank's variables, the proxy's --device and --map
 *                         ├─► struct seating, one ───┼─► the file "job", and in it every checkpoint
 *   restore: seating_read ┘   of the supervisor      └─► jobboard.c: a row on the board for each seat (struct board_place)
 *            seating_move
 *
 * A *logical* device is what a program names; its number stays what it was for the job's life. A *physical* one is the
 * driver's on the rank's host. The map from one to the other is a rank's own: a restore onto other devices, and later a
 * resize, change it here, and nobody else computes it. A process with several devices has a session, a proxy and a seat for
 * each. A seat is a proxy's place on the board and its end of the transport. It is no device: several seats may be on one.
 */
#ifndef SEATING_H
#define SEATING_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "why.h"

#define SEATING_RANKS	256	/* JOB_RANKS_MAX */
#define SEATING_DEVICES	16	/* JOB_DEVICES_MAX: logical ones, and physical ones of a host */
#define SEATING_SEATS	1024	/* BOARD_SEATS */
#define SEATING_HOSTS	1024

/*
 * How ranks share a device. together: each has memory of its own there. slices: they take turns with all of it. auto: together
 * as long as what they have fits, else by slices. never: not at all.
 */
enum seating_share { SHARE_UNSAID, SHARE_AUTO, SHARE_TOGETHER, SHARE_SLICES, SHARE_NEVER };

struct seating_rank {
	uint16_t host;
	uint16_t local;			/* its number among the host's ranks */
	uint8_t first;			/* the logical device of a process that asks for none */
	uint8_t physical[SEATING_DEVICES];	/* of each logical device */
};

struct seating {
	int ranks;			/* 0: there is no table */
	int devices;			/* logical ones that a program finds; 0: a table of an older version has no number */
	enum seating_share share;	/* what the user wants; SHARE_UNSAID: a table of an older version */
	bool slices;			/* what they do: those who share a device take turns */
	struct seating_rank rank[SEATING_RANKS];
	bool taken[SEATING_SEATS];	/* seats; not in the text */
};

/*
 * What --on says: the physical device of each logical one. "M": the first M devices, neighbours together (4 logical ones on 2:
 * 0,0,1,1); "N,": device N for all; "A,B,…": a list.
 */
struct seating_on {
	bool given;
	int count;			/* "M"; else 0 */
	int listed;			/* of physical[]; else 0: */
	uint8_t physical[SEATING_DEVICES];	/* the first one is that of all */
};

/* -ERANGE: a count of 0; -EINVAL: none of these forms. *on is unchanged then. */
int seating_on_parse(const char *text, struct seating_on *on);

/*
 * The physical devices of so many logical ones. here: how many physical ones there are, or 0 if that is not known. -EINVAL: *on
 * does not fit, and *why says how.
 */
int seating_on_map(const struct seating_on *on, int devices, int here, uint8_t map[SEATING_DEVICES], struct why *why);

/* One past the highest device that is named; 0: none is. */
int seating_on_end(const struct seating_on *on);

/* Which of a rank's devices are where, after a restore: see bring.c's options. */
struct seating_where {
	const struct seating *now;	/* where the job's ranks are, which may have moved since; else NULL: what follows counts */
	struct seating_on logical;	/* by logical device; what follows counts if that is not given */
	bool all;			/* rank r is on device first + r */
	long first;
	uint8_t instead[SEATING_DEVICES];	/* of a physical device: the one instead of it + 1, or 0 */
	enum seating_share share;	/* from now on; SHARE_UNSAID: as before */
	enum seating_share how;		/* what has been decided for SHARE_AUTO: SHARE_TOGETHER, SHARE_SLICES; or SHARE_UNSAID */
};

/* Notes what the user wants, and what is done for SHARE_AUTO: SHARE_TOGETHER unless `how` is SHARE_SLICES. */
void seating_let_share(struct seating *t, enum seating_share share, enum seating_share how);

/* SHARE_UNSAID: it is no such word. */
enum seating_share seating_share_parse(const char *word);
const char *seating_share_word(enum seating_share share);

/* A table for ranks of this host, spread over its devices: logical and physical numbers are the same. */
void seating_make(struct seating *t, int ranks, int devices);

/*
 * The device of a rank's session that was on this physical one. seating_move: puts that into the table, for the
 * session's logical device.
 */
int seating_device(const struct seating_where *w, int rank, int physical);
void seating_move(struct seating *t, int rank, int logical, int physical);

/* Gives all ranks this map. */
void seating_put(struct seating *t, const uint8_t map[SEATING_DEVICES]);

/*
 * What a restore makes of a map: logical devices of a rank that no session is on follow those which were on the same physical
 * one, where `instead` says so.
 */
void seating_instead(struct seating *t, const struct seating_where *w);

/* The physical device of a rank's logical one. */
int seating_physical(const struct seating *t, int rank, int logical);

/* How many ranks of this one's host have this physical device as their first: those that share it. */
int seating_sharers(const struct seating *t, int host, int physical);

/* The physical device of the first rank that shares its device with another one; -1: none does. */
int seating_crowded(const struct seating *t);

/* Are all devices of the rank where their numbers say? Then a proxy needs no map. */
bool seating_is_plain(const struct seating *t, int rank);

/* "2,0,1", physical devices by their logical numbers. sharers: how many share each physical device of the host. */
void seating_map_text(const struct seating *t, int rank, char *text, size_t size);
void seating_sharers_text(const struct seating *t, int rank, char *text, size_t size);

/*
 * A rank's host; whether all ranks are on one; the ranks on this one's host; and the address under which all ranks reach
 * the first one's.
 */
int seating_host(const struct seating *t, int rank);
bool seating_one_host(const struct seating *t);
int seating_local_size(const struct seating *t, int rank);
const char *seating_master(const struct seating *t);

/* A seat for a new proxy: this one, or any if it is negative; or -EAGAIN. seating_leave: it is free again. */
int seating_seat(struct seating *t, int seat);
void seating_leave(struct seating *t, int seat);

/*
 * The table as lines of the file "job": "logical DEVICES", "share WANTED DONE" (two words of enum seating_share), and for each
 * rank "place RANK HOST LOCAL FIRST MAP". seating_has: is it such a line? seating_read: reads one, a place being that of rank
 * t->ranks; 0 or -EBADMSG. Seats are in the lines of their proxies.
 */
bool seating_has(const char *line);
void seating_write(const struct seating *t, FILE *out);
int seating_read(struct seating *t, const char *line);

#endif
