// SPDX-License-Identifier: Apache-2.0
/*
 * watch.c - reads the numbers in the proxies' stat files
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "watch.h"

int watch_stat(const struct rundir_job *job, const struct rundir_proxy *proxy,
	       struct uproxy_stat *stat, struct why *why)
{
	char name[RUNDIR_NAME];
	ssize_t n = -1;
	int fd;

	rundir_name(name, RUNDIR_STAT, proxy->rank, proxy->serial);
	fd = rundir_open(job->path, job->uid, name, O_RDONLY);
	memset(stat, 0, sizeof(*stat));
	if (fd >= 0) {
		n = read(fd, stat, sizeof(*stat));
		close(fd);
	}
	if (n < 16 || stat->magic != UPROXY_STAT_MAGIC || stat->version != UPROXY_STAT_VERSION) {
		uint32_t theirs = n >= 16 && stat->magic == UPROXY_STAT_MAGIC ? stat->version : 0;

		memset(stat, 0, sizeof(*stat));
		stat->device = -1;
		if (!theirs)
			return 0;
		stat->state = UINT32_MAX;
		if (why)
			why_set(why, -EPROTONOSUPPORT, "proxy %d counts in version %u of the format, this "
				"program reads version %u", proxy->pid, theirs, UPROXY_STAT_VERSION);
		return -EPROTONOSUPPORT;
	}
	if (stat->size < (size_t)n)
		memset((char *)stat + stat->size, 0, n - stat->size);
	stat->device_name[sizeof(stat->device_name) - 1] = 0;
	stat->backend[sizeof(stat->backend) - 1] = 0;
	stat->why[sizeof(stat->why) - 1] = 0;
	return 0;
}

bool watch_moved(int device, uint32_t logical)
{
	return logical && logical - 1 != (uint32_t)device;
}

const char *watch_device(int device, uint32_t logical, char buf[32])
{
	if (watch_moved(device, logical))
		snprintf(buf, 32, "%u on %d", logical - 1, device);
	else
		snprintf(buf, 32, "%d", device);
	return buf;
}

const char *watch_rank_state(const struct rundir_rank *rank, char *buf)
{
	const char *name;
	char c;

	switch (rank->state) {
	case RANK_EXITED:
		snprintf(buf, 24, "exit %d", rank->code);
		return buf;
	case RANK_KILLED:
		name = sigabbrev_np(rank->code);
		snprintf(buf, 24, "%s%s", name ? "SIG" : "signal", name ?: "");
		return buf;
	}
	c = family_state(rank->pid, NULL);
	strcpy(buf, c == 'T' || c == 't' ? "stopped" : "running");
	return buf;
}

const char *watch_proxy_state(const struct rundir_proxy *proxy, const struct uproxy_stat *stat)
{
	static const char *const names[] = { "starting", "serving", "frozen", "ended" };
	char c = family_state(proxy->client, NULL);

	if (c == 'T' || c == 't')
		return "stopped";
	return stat->state < 4 ? names[stat->state] : "?";
}

/* Bytes of the character at s, which may be shown; 0: it is a control character, or no UTF-8. */
static int shown(const unsigned char *s)
{
	int n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;

	if (s[0] < 0x20 || s[0] == 0x7f || (s[0] == 0xc2 && s[1] < 0xa0))
		return 0;
	for (int i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

char *watch_clip(char *buf, size_t size, const char *text)
{
	size_t at = 0;

	/* not in the middle of a character */
	for (int n; *text && at + (n = shown((const unsigned char *)text)) < size && at + 1 < size; text += n ?: 1) {
		if (!n)
			buf[at++] = '?';
		memcpy(buf + at, text, n);
		at += n;
	}
	buf[at] = 0;
	return buf;
}
