// SPDX-License-Identifier: Apache-2.0
/*
 * log.c - the proxy's messages, to the file of --log or to the stderr that it was started with
 *
 * What the driver writes to stdout and stderr is the job's (print.c), so messages have a descriptor
 * of their own. Each line is one write: several proxies may append to one file. SINGVGPU_LOG turns
 * on more messages. They are written under locks, and never wait for a reader (message.h).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "log.h"
#include "message.h"

#define FINISH_MS 300	/* for a slow reader, when the proxy ends */

/* The log: to --log's file, or to `err`. */
static struct message file = MESSAGE_INIT(-1, "singvgpu-proxy"), err = MESSAGE_INIT(-1, "singvgpu-proxy");
static bool verbose;

void log_open(const char *path)
{
	const char *env = getenv("SINGVGPU_LOG");

	verbose = path || (env && *env);
	if (path)
		/* Without waiting: a FIFO without a reader is no log. */
		file.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
	err.fd = fcntl(2, F_DUPFD_CLOEXEC, 10);
}

void log_close(void)
{
	message_finish(&file, FINISH_MS);
	message_finish(&err, FINISH_MS);
}

bool log_verbose(void)
{
	return verbose;
}

static void line(const char *who, const char *fmt, va_list ap, bool also)
{
	char text[1024];
	int n, m;

	n = snprintf(text, sizeof(text), "%s[%d]: ", who, getpid());
	m = vsnprintf(text + n, sizeof(text) - n - 1, fmt, ap);
	n = m < (int)sizeof(text) - n - 1 ? n + m : (int)sizeof(text) - 2;
	text[n++] = '\n';
	if (file.fd >= 0)
		message_put(&file, text, n);
	if (also || file.fd < 0)
		message_put(&err, text, n);
}

void uproxy_say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	line("singvgpu-proxy", fmt, ap, false);
	va_end(ap);
}

void tell(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	line("singvgpu-proxy", fmt, ap, true);
	va_end(ap);
}

/*
 * A framework loads images by the hundred, and what is refused there is often not needed, or comes
 * again in another way. So they have a line for the first of a kind, and a count at the end.
 */
static struct {
	CUresult r;
	const char *what;
	unsigned int times;
} images[] = {
	{ CUDA_ERROR_NO_BINARY_FOR_GPU, "hold no code for this device", 0 },
	{ CUDA_ERROR_FILE_NOT_FOUND, "are in files that are not to be had here, and came as bytes", 0 },
};

void log_result(uint16_t op, uint64_t seq, CUresult r)
{
	unsigned int before = 0;

	if (op == SV_OP_cuLibraryLoadData || op == SV_OP_cuModuleLoadDataEx)
		for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++)
			if (images[i].r == r)
				before = __atomic_fetch_add(&images[i].times, 1, __ATOMIC_RELAXED);
	if (verbose && !before)
		uproxy_say("%s (record %llu) gives %d", op_name(op), (unsigned long long)seq, r);
}

void log_counts(void)
{
	for (size_t i = 0; verbose && i < sizeof(images) / sizeof(images[0]); i++)
		if (images[i].times > 1)
			uproxy_say("%u images %s (%d)", images[i].times, images[i].what, images[i].r);
}

/* The client has mapped another driver. At most 16 such records are logged. */
int do_bypass(struct call *k)
{
	static unsigned int times;
	char path[256];
	size_t n = k->c.len < sizeof(path) ? k->c.len : sizeof(path) - 1;

	memcpy(path, k->c.data, n);
	path[n] = 0;
	for (char *p = path; *p; p++)
		if ((unsigned char)*p < ' ')
			*p = '?';
	k->c.session->bypassed = true;
	if (times++ < 16)
		tell("process %d maps %s: calls through it bypass singvgpu, and the job cannot be "
		     "moved", k->c.session->client, path);
	return 0;
}
