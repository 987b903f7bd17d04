/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.h - lines for a person, which never wait for their reader
 *
 * A descriptor's reader may have stopped: a pager, a terminal after ^S, a full pipe, a socket. What it
 * does not take at once is kept, up to MESSAGE_ROOM bytes, and passed on in the same order by a thread
 * that runs while something is kept. A line that does not fit any more is left out and counted; the
 * count is said in its place. The descriptor's own flags, which the job shares, are not changed.
 *
 * Any thread may call these functions, and none of them waits for the reader. A fork's child has
 * nothing kept: its parent passes that on.
 */
#ifndef UPROXY_MESSAGE_H
#define UPROXY_MESSAGE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "lock.h"

#define MESSAGE_ROOM	(256u << 10)
#define MESSAGE_LINE	4096u	/* PIPE_BUF: no other writer's text gets into a line */

enum message_way { MESSAGE_UNKNOWN, MESSAGE_WRITE, MESSAGE_SEND, MESSAGE_OWN, MESSAGE_PAGE, MESSAGE_LEND };

/* One for each descriptor; all but fd and name is message.c's. */
struct message {
	int fd;			/* the caller's; -1: nobody reads */
	const char *name;	/* begins the line about lines left out: "singvgpu" */
	struct lock lock;	/* protects what follows; nothing under it waits */
	pid_t owner;		/* the process that has this state; another one: we are its fork */
	enum message_way way;
	int own;		/* fd's file, opened anew without waiting; MESSAGE_OWN */
	bool thread;		/* passes on what is kept */
	size_t at, len;		/* kept[at] … kept[at + len - 1] */
	unsigned long left_out;	/* lines, since the last count was said */
	char *kept;		/* MESSAGE_ROOM bytes */
};

#define MESSAGE_INIT(fd_, name_) \
	{ .fd = (fd_), .name = (name_), .lock = LOCK_INIT(PROXY_MESSAGE), .own = -1 }

/*
 * Writes, keeps or counts one line of len <= MESSAGE_LINE bytes, with its '\n'. A file gets it in one
 * write. errno stays.
 */
void message_put(struct message *m, const char *line, size_t len);

/*
 * Writes text that the next one replaces, such as a picture of progress. It is left out, uncounted,
 * while a line is kept. False: it was left out.
 */
bool message_show(struct message *m, const char *text, size_t len);

/*
 * For the end of a process that nothing waits for any more: gives a reader that goes on up to ms
 * milliseconds to take what is kept. True: nothing is kept.
 */
bool message_finish(struct message *m, long ms);

#endif
