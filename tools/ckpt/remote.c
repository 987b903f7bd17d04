// SPDX-License-Identifier: Apache-2.0
/*
 * remote.c - a restore on another host, through ssh or the command in its place
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt_i.h"

char *ckpt_remote_command(const char *program, const char *store, const char *trust, const char *id,
			  const char *more)
{
	char *argv[10] = { (char *)program, "restore", "--quiet", "--store", (char *)store };
	int n = 5;

	if (strcmp(trust, "0")) {
		argv[n++] = "--trust-owner";
		argv[n++] = (char *)trust;
	}
	argv[n++] = (char *)id;
	argv[n] = (char *)more;

	return rundir_quote(argv);
}

/* A shell splits ssh into words. */
int ckpt_ssh_exec(const char *ssh, const char *host, const char *command, struct why *why)
{
	char *script = NULL;
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGTTOU, SIG_DFL);
	say_finish();
	if (asprintf(&script, "exec %s \"$@\"", ssh) >= 0)
		execl("/bin/sh", "sh", "-c", script, "sh", host, command, NULL);
	return why_set(why, -errno, "%s: %s", ssh, strerror(errno));
}

int ckpt_ssh(const char *ssh, const char *host, const char *command, tell_line *tell)
{
	struct why why = { 0 };
	pid_t pid = fork();
	int status;

	if (!pid) {
		dup2(STDERR_FILENO, STDOUT_FILENO);
		ckpt_ssh_exec(ssh, host, command, &why);
		tell("%s", why.text);
		_exit(EXIT_OURS);
	}
	if (pid < 0)
		return -errno;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_OURS;
}
