// SPDX-License-Identifier: Apache-2.0
/*
 * namespaces.c - a process in a namespace of its own, or with a namespace open
 */
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include "kinds.h"

static unsigned long number(const char *which)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/self/ns/%s", which);
	return stat(path, &st) ? 0 : st.st_ino;
}

/* Apart from its parent, it must be so after the restore. */
static void own(int flag, const char *which)
{
	unsigned long was = number(which);
	int go[2], status;
	pid_t pid;

	NEED(!pipe(go));
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		if (unshare(flag))
			_exit(9);
		if (write(go[1], "x", 1) != 1)
			_exit(8);
		stand();
		_exit(number(which) == was);
	}
	close(go[1]);
	if (read(go[0], &status, 1) != 1)
		unable("unshare", EPERM);
	stand_with(1);
	IS(waitpid(pid, &status, 0) == pid && !status && number(which) == was);
}

static void network(void)
{
	own(CLONE_NEWNET, "net");
}

static void mounts(void)
{
	own(CLONE_NEWNS, "mnt");
}

static void host_name(void)
{
	own(CLONE_NEWUTS, "uts");
}

static void ipc(void)
{
	own(CLONE_NEWIPC, "ipc");
}

static void users(void)
{
	own(CLONE_NEWUSER, "user");
}

static void cgroups(void)
{
	own(CLONE_NEWCGROUP, "cgroup");
}

static void pids(void)
{
	int status;
	pid_t pid;

	NEED(!unshare(CLONE_NEWPID));
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		stand();
		_exit(getpid() != 1);
	}
	stand_with(1);
	IS(waitpid(pid, &status, 0) == pid && !status);
}

static void pids_to_be(void)
{
	pid_t pid;
	int status;

	NEED(!unshare(CLONE_NEWPID));
	stand();
	pid = fork();
	if (!pid)
		_exit(getpid() != 1);
	IS(waitpid(pid, &status, 0) == pid && !status);
}

static void times(void)
{
	int status;
	pid_t pid;

	NEED(!unshare(0x80));	/* CLONE_NEWTIME */
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		stand();
		_exit(0);
	}
	stand_with(1);
	IS(waitpid(pid, &status, 0) == pid && !status);
}

static void opened(const char *which)
{
	unsigned long was = number(which);
	struct stat st;
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/ns/%s", which);
	fd = open(path, O_RDONLY);
	NEED(fd >= 0 && was);
	stand();
	IS(!fstat(fd, &st) && st.st_ino == number(which));
}

static void opened_network(void)
{
	opened("net");
}

static void opened_pids(void)
{
	opened("pid");
}

static void opened_mounts(void)
{
	opened("mnt");
}

static const struct kind kinds[] = {
	{ "network-namespace", network, true }, { "mount-namespace", mounts, true },
	{ "uts-namespace", host_name, true }, { "ipc-namespace", ipc, true }, { "user-namespace", users, true },
	{ "cgroup-namespace", cgroups, true }, { "pid-namespace", pids, true },
	{ "pid-namespace-for-children", pids_to_be, true }, { "time-namespace", times, true },
	{ "network-namespace-open", opened_network, true }, { "pid-namespace-open", opened_pids, true },
	{ "mount-namespace-open", opened_mounts, true }, { 0 }
};

const struct family namespaces_family = { "namespaces", kinds };
