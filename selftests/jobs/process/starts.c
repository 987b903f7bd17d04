// SPDX-License-Identifier: Apache-2.0
/*
 * starts.c - starts a program by each function of libc for it, without the job's environment: `starts` in a folder
 * that is in PATH and has the programs via-execl, via-execle, …; test-strays looks at what is said of them
 */
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[4096];
static char *none[] = { path, NULL };
static char *argv[] = { "program", NULL };

static void by_exec(int i)
{
	int fd;

	environ = none;
	switch (i) {
	case 0:
		execl("./via-execl", "program", "two", NULL);
		break;
	case 1:
		environ = NULL;
		execle("./via-execle", "program", "two", NULL, none);
		break;
	case 2:
		execlp("via-execlp", "program", "two", NULL);
		break;
	case 3:
		execv("./via-execv", argv);
		break;
	case 4:
		execve("./via-execve", argv, none);
		break;
	case 5:
		execvp("via-execvp", argv);
		break;
	case 6:
		execvpe("via-execvpe", argv, none);
		break;
	case 7:
		execveat(AT_FDCWD, "./via-execveat", argv, none, 0);
		break;
	case 8:
		fd = open("via-fexecve", O_RDONLY);
		fexecve(fd, argv, none);
		break;
	case 9:
		fd = open("via-execveat-fd", O_PATH);
		execveat(fd, "", argv, none, AT_EMPTY_PATH);
		break;
	case 10:
		syscall(SYS_execve, "./via-syscall", argv, none);
		break;
	case 11:
		syscall(SYS_execveat, AT_FDCWD, "./via-syscall-at", argv, none, 0);
		break;
	}
	_exit(9);
}

static int failed(pid_t pid)
{
	int status;

	return pid < 0 || waitpid(pid, &status, 0) != pid || status;
}

int main(void)
{
	int bad = 0;
	FILE *out;
	pid_t pid;

	snprintf(path, sizeof(path), "PATH=%s", getenv("PATH"));
	for (int i = 0; i < 12; i++) {
		pid = fork();
		if (!pid)
			by_exec(i);
		bad |= failed(pid) << i;
	}
	bad |= (posix_spawn(&pid, "./via-posix_spawn", NULL, NULL, argv, none) || failed(pid)) << 12;
	bad |= (posix_spawnp(&pid, "via-posix_spawnp", NULL, NULL, argv, none) || failed(pid)) << 13;
	environ = none;
	bad |= !!system("exec true") << 14;
	out = popen("exec true", "w");
	bad |= (!out || pclose(out)) << 15;
	if (bad)
		printf("%#x did not succeed\n", bad);
	return bad != 0;
}
