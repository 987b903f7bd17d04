// SPDX-License-Identifier: Apache-2.0
/*
 * main.c - `kinds list`, and `kinds run DIR KIND...`: a process and a folder for each kind
 *
 *   DIR/KIND.d        its working folder
 *   DIR/KIND.ready    the resource is there
 *   DIR/go            the test has made it: look at the resource
 *   DIR/KIND.result   "ok", "bad: ..." or "skip: ..."
 */
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "kinds.h"

static const struct family *const families[] = {
	&files_family, &sockets_family, &timers_family, &namespaces_family, &memory_family,
	&ipc_family, &threads_family, &signals_family, &terminals_family,
};

static int top = -1;		/* the folder of all */
static const char *kind_name;
static pid_t kind_pid;
static int *standing;		/* processes that the kind's own has forked; shared with them */

static void tell(const char *suffix, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void tell(const char *suffix, const char *fmt, ...)
{
	char name[128], fresh[140];
	va_list ap;
	int fd;

	snprintf(name, sizeof(name), "%s.%s", kind_name, suffix);
	snprintf(fresh, sizeof(fresh), "%s.new", name);
	fd = openat(top, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		_exit(3);
	va_start(ap, fmt);
	vdprintf(fd, fmt, ap);
	va_end(ap);
	close(fd);
	if (renameat(top, fresh, top, name))
		_exit(3);
}

static bool stood;

void unable(const char *what, int err)
{
	if (stood)
		tell("result", "bad: after the restore: %s: %s\n", what, strerror(err));
	else
		tell("result", "skip: %s: %s\n", what, strerror(err));
	if (!stood)
		tell("ready", "skip\n");
	_exit(0);
}

void bad(const char *what, int line)
{
	tell("result", "bad: %s (line %d, errno %s)\n", what, line, strerrorname_np(errno) ?: "0");
	_exit(1);
}

void stand_with(int others)
{
	const struct timespec tick = { .tv_nsec = 20000000 };

	while (__atomic_load_n(standing, __ATOMIC_ACQUIRE) < others)
		usleep(1000);
	if (getpid() == kind_pid)
		tell("ready", "ready\n");
	else
		__atomic_add_fetch(standing, 1, __ATOMIC_RELEASE);
	while (faccessat(top, "go", F_OK, 0))
		clock_nanosleep(CLOCK_MONOTONIC, 0, &tick, NULL);
	stood = true;
	errno = 0;
}

void stand(void)
{
	stand_with(0);
}

pid_t child(void (*fn)(void))
{
	int hold[2];
	char byte;
	pid_t pid;

	NEED(!pipe2(hold, O_CLOEXEC));
	pid = fork();
	NEED(pid >= 0);
	if (!pid) {
		close(hold[1]);
		if (fn)
			fn();
		while (read(hold[0], &byte, 1) < 0 && errno == EINTR)
			;
		_exit(0);
	}
	close(hold[0]);
	return pid;
}

static const struct kind *find_kind(const char *name)
{
	for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++)
		for (const struct kind *k = families[f]->kinds; k->name; k++)
			if (!strcmp(k->name, name))
				return k;
	return NULL;
}

static void begin(const struct kind *k)
{
	char folder[128];

	kind_name = k->name;
	kind_pid = getpid();
	standing = mmap(NULL, sizeof(*standing), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (standing == MAP_FAILED)
		_exit(3);
	snprintf(folder, sizeof(folder), "%s.d", k->name);
	if ((mkdirat(top, folder, 0700) && errno != EEXIST) || fchdir(top) || chdir(folder))
		_exit(3);
	umask(022);
	k->run();
	tell("result", "ok\n");
	_exit(0);
}

static int run(int argc, char **argv)
{
	int status, n = 0;

	top = open(argv[0], O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (top < 0 || fcntl(top, F_DUPFD_CLOEXEC, 200) != 200)
		return 3;
	close(top);
	top = 200;
	for (int i = 1; i < argc; i++) {
		const struct kind *k = find_kind(argv[i]);
		pid_t pid = k ? fork() : -1;

		if (!pid)
			begin(k);
		n += pid > 0;
	}
	while (n > 0)
		if (waitpid(-1, &status, 0) > 0)
			n--;
		else if (errno != EINTR)
			return 3;
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "list")) {
		for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++)
			for (const struct kind *k = families[f]->kinds; k->name; k++)
				printf("%s %s %s\n", families[f]->name, k->name, k->alone ? "alone" : "together");
		return 0;
	}
	if (argc > 3 && !strcmp(argv[1], "run"))
		return run(argc - 2, argv + 2);
	fprintf(stderr, "kinds list | kinds run DIR KIND...\n");
	return 2;
}
