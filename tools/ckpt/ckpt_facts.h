/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_facts.h - the facts of a job that a restore needs: the part "job" of a checkpoint
 *
 * Text. The first line is "singvgpu-job FORMAT"; each other line is a key and words, separated by
 * single spaces. In a word '%', ' ' and all bytes that are not printable ASCII are %XX; an empty
 * word is "%". Readers skip unknown keys; a key that must not be skipped raises FORMAT.
 *
 *     version V · host NAME · time NS
 *     stood NS                   the tree stood still for so long before CRIU read its clocks
 *     uid UID                    the job's user
 *     job TEXT                   the file "job" of its folder (rundir.h), at the cut
 *     option NAME VALUE          of `run`, as in the file "options" of the job's folder
 *     proxy R N CLIENT …         struct ckpt_proxy, one word for each member, in order; CLIENT is the
 *                                pid in the job's namespace
 *     mapped SIZE IDENTITY PATH  a mapped file; IDENTITY is xxh3:HEX of a program or library, size of data, and
 *                                build:HEX of what has a build id in older checkpoints
 *     library NAME REF           a stand-in library of libdir
 *     libdir PATH
 *     listen ADDRESS PORT INODE  a TCP port; INODE is the socket's, on HOST
 *     part SIZE NAME             a part that the checkpoint has, beside this one and the history
 *     connection RANK ADDRESS PORT ADDRESS PORT
 *                                a TCP socket of a rank that is connected: from, to
 */
#ifndef CKPT_FACTS_H
#define CKPT_FACTS_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "control.h"
#include "why.h"

#define CKPT_FORMAT	3

struct ckpt_option {
	char *name, *value;
};

struct ckpt_mapped {
	char *path;
	uint64_t size;
	char identity[48];
};

struct ckpt_library {
	char *name;
	struct ctl_ref ref;
};

struct ckpt_part {
	char *name;
	uint64_t size;		/* bytes */
};

struct ckpt_port {
	char address[46];	/* as inet_ntop() writes it */
	int port;
	unsigned long inode;
};

struct ckpt_connection {
	int rank;
	struct ckpt_port from, to;
};

struct ckpt_proxy {
	int rank, serial;
	int client;		/* pid within the job's namespace */
	struct ctl_info info;
	struct ctl_ref device, observed, session, channel, arena, comms;
};

struct ckpt_facts {
	unsigned int format;
	char version[32], host[65];
	uint64_t time_ns, stood_ns;
	unsigned int uid;
	char *job, *libdir;
	struct ctl_ref board;	/* of the job's collectives, in the part "board"; all zero: none */
	struct ckpt_option *option;
	int options;
	struct ckpt_proxy *proxy;
	int proxies;
	struct ckpt_mapped *mapped;
	int mappeds;
	struct ckpt_library *library;
	int libraries;
	struct ckpt_port *port;
	int ports;
	struct ckpt_connection *connection;
	int connections;
	struct ckpt_part *part;
	int parts;
};

/* malloc'ed text of *len bytes, or NULL. */
char *facts_write(const struct ckpt_facts *f, size_t *len);
/* 0, -ENOMEM, -EPROTONOSUPPORT (another format: f->format), -EBADMSG. */
int facts_read(struct ckpt_facts *f, const char *text, size_t len);
void facts_free(struct ckpt_facts *f);

/* The number that the proxy's client has for its device. */
int facts_logical(const struct ckpt_proxy *p);

/*
 * The index of the proxy whose channel has the arena of this one's session: an earlier proxy of the same process. -1: its
 * own channel has it. -EBADMSG: there is no such proxy.
 */
int facts_home(const struct ckpt_facts *f, int i);

/*
 * Do the facts belong to each other, and to the job, which is that of f->job? Ranks, seats, windows. 0, or -EBADMSG and
 * *why.
 */
struct rundir_job;
int facts_check(const struct ckpt_facts *f, const struct rundir_job *job, struct why *why);

/* The value of an option, or NULL. */
const char *facts_option(const struct ckpt_facts *f, const char *name);
int facts_add_option(struct ckpt_facts *f, const char *name, const char *value);
int facts_add_port(struct ckpt_facts *f, const struct ckpt_port *p);
int facts_add_connection(struct ckpt_facts *f, const struct ckpt_connection *c);
int facts_add_part(struct ckpt_facts *f, const char *name, uint64_t size);	/* -ENOMEM */

/* facts_word: writes a word, escaped. facts_words: splits a line in place; the number of words. */
void facts_word(FILE *out, const char *word);
int facts_words(char *line, char *words[], int room);

#endif
