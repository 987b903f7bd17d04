// SPDX-License-Identifier: Apache-2.0
/*
 * pester.c - dumps a running session repeatedly, and restores each dump in another proxy
 *
 * pester CONTROL STORE PROXY DRIVER SEED: runs until the session ends. The job must not notice. A
 * refused dump is counted by its reason; one that cannot be restored, or that differs, is a
 * failure. Prints one line: dumps, restored, refused. Exit status 1: something failed.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control.h"

#define PATIENCE_MS	120000

static const char *control, *store, *proxy, *driver;
static unsigned int dumps, restored, refused, failed;
static uint64_t seed;

static uint32_t below(uint32_t n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % n;
}

static int ask(int fd, uint32_t op, void *req, uint32_t size, void *reply, uint32_t cap)
{
	struct ctl_head *h = req;

	h->op = op;
	h->size = size;
	return ctl_call(fd, h, reply, cap, NULL, NULL, NULL, PATIENCE_MS);
}

static void fail(const char *what, const struct ctl_reply *r)
{
	failed++;
	fprintf(stderr, "# %s: %d, %s\n", what, r->status, r->why);
}

static int connect_soon(const char *path)
{
	struct why why = { 0 };
	int fd = -1;

	for (int i = 0; i < PATIENCE_MS && fd < 0; i++) {
		fd = ctl_connect(path, &why);
		if (fd < 0)
			usleep(1000);
	}
	return fd;
}

/* A proxy of its own rebuilds the session, and is thrown away. */
static void try_restore(struct ctl_restore *from)
{
	struct ctl_restored to = { .records = 0 };
	char path[512];
	int fd, status;
	pid_t pid;

	snprintf(path, sizeof(path), "%s.try", store);	/* the job's own folder ends with it */
	unlink(path);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(proxy, proxy, "--restore", "--control", path, "--driver", driver, NULL);
		_exit(127);
	}
	fd = connect_soon(path);
	if (fd < 0 || ask(fd, CTL_RESTORE, from, sizeof(*from), &to, sizeof(to)))
		fail("restore", &to.r);
	else
		restored++;
	if (fd >= 0)
		close(fd);
	else
		kill(pid, SIGKILL);	/* it waits for us */
	waitpid(pid, &status, 0);
	unlink(path);
}

static int dump(int fd, const struct ctl_info *info, struct ctl_restore *from)
{
	struct ctl_store st = { .h = { 0 } };
	struct ctl_dumped d;

	*from = (struct ctl_restore){ .was = info->device, .window = info->window,
				      .window_len = info->window_len, .ordinal = -1 };
	snprintf(st.dir, sizeof(st.dir), "%s", store);
	snprintf(from->dir, sizeof(from->dir), "%s", store);
	if (ask(fd, CTL_DUMP, &st, sizeof(st), &d, sizeof(d))) {
		fail("dump", &d.r);
		return -1;
	}
	from->device = d.device;
	from->observed = d.observed;
	from->session = d.session;
	if (ask(fd, CTL_CHANNEL, &st, sizeof(st), &d, sizeof(d))) {
		fail("channel", &d.r);
		return -1;
	}
	from->channel = d.channel;
	from->arena = d.arena;
	return 0;
}

/* 0: once more; -1: the session is over. */
static int once(void)
{
	struct ctl_freeze f = { .idle_ms = 200 + below(2000) };
	struct ctl_head h = { 0 };
	struct ctl_restore from;
	struct ctl_frozen frozen;
	struct ctl_info info;
	struct ctl_reply r;
	struct why why = { 0 };
	int fd = ctl_connect(control, &why), rc;

	if (fd < 0)
		return -1;
	rc = ask(fd, CTL_INFO, &h, sizeof(h), &info, sizeof(info));
	if (!rc)
		rc = ask(fd, CTL_FREEZE, &f, sizeof(f), &frozen, sizeof(frozen));
	if (!rc && !dump(fd, &info, &from)) {
		dumps++;
		if (below(2))		/* else the proxy sees for itself that we have gone */
			ask(fd, CTL_THAW, &h, sizeof(h), &r, sizeof(r));
		close(fd);
		try_restore(&from);
		return 0;
	}
	close(fd);
	if (rc == -EPIPE)
		return -1;
	if (rc && rc != -EPROTO) {
		refused++;
		fprintf(stderr, "# refused: %s\n", rc == -ETIMEDOUT ? "deadline" : frozen.r.why);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct why why = { 0 };
	int fd;

	if (argc != 6)
		return 2;
	control = argv[1];
	store = argv[2];
	proxy = argv[3];
	driver = argv[4];
	seed = strtoull(argv[5], NULL, 0);
	/* A job may be over before we have looked at it. */
	do {
		fd = ctl_connect(control, &why);
	} while (fd == -ECONNREFUSED && !access(control, F_OK) && !usleep(1000));
	if (fd >= 0)
		close(fd);
	while (!once() && failed < 5)
		usleep(below(30000));
	printf("%u dumps, %u restored, %u refused, %u failed\n", dumps, restored, refused, failed);
	return failed > 0;
}
