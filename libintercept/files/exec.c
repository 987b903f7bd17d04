// SPDX-License-Identifier: Apache-2.0
/*
 * exec.c - programs that the job starts: notes those that will not be in it (stray.h)
 *
 * A preloaded library is not there in a program that was started without LD_PRELOAD, but it is in the process that
 * starts it. If the new environment has ours, nothing else is looked at. If not, the program's file is read, which the
 * kernel is about to read.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "files_i.h"
#include "stray.h"

struct start {
	int dir;
	const char *path, *name;
	char *const *argv, *const *env;
	bool search;		/* in $PATH, if the path has no slash */
};

static bool has(char *const *env, const char *name, const char *part)
{
	size_t n = strlen(name);

	for (; env && *env; env++)
		if (!strncmp(*env, name, n))
			return strstr(*env + n, part);
	return false;
}

/* What of ours an environment lacks; 0: nothing. */
static char lacks(char *const *env)
{
	return !has(env, "LD_PRELOAD=", "libcuda.so.1") ? STRAY_PRELOAD :
	       !has(env, "SINGVGPU_SOCKET=", "/") ? STRAY_SOCKET : 0;
}

static void tell(char kind, const char *name)
{
	char text[STRAY_RECORD];

	log_aside(STRAY_FILE, text, stray_record(text, kind, name));
}

static void look(const struct start *s, const char *path)
{
	const char *dropped = stray_dropped(s->dir, path, s->argv);
	char kind = lacks(s->env);

	if (kind && stray_program(s->dir, path))
		tell(kind, s->name);
	else if (dropped)
		tell(STRAY_SETUID, dropped == path ? s->name : dropped);
	else if (kind)
		tell(STRAY_BEGINS, s->name);
}

static void note(const struct start *s)
{
	struct log_buf *b = NULL;
	const char *path = s->path;
	int err = errno;

	if (!path || !log_on())
		return;
	if (s->search && !strchr(path, '/')) {
		b = log_buf_get();
		path = b && stray_find(path, b->text, sizeof(b->text)) ? b->text : NULL;
	}
	if (path)
		look(s, path);
	if (b)
		log_buf_put(b);
	errno = err;
}

void exec_note(int dir, const char *path, char *const *argv, char *const *env)
{
	note(&(struct start){ dir, path, path, argv, env, false });
}

/* An empty path is the file of dir itself. */
void exec_at_note(int dir, const char *path, char *const *argv, char *const *env)
{
	struct log_buf *b;
	char self[32];
	long n;

	if (path && *path) {
		exec_note(dir, path, argv, env);
		return;
	}
	b = path && log_on() ? log_buf_get() : NULL;
	if (!b)
		return;
	snprintf(self, sizeof(self), "/proc/self/fd/%d", dir);
	n = sys(SYS_readlinkat, AT_FDCWD, self, b->text, sizeof(b->text) - 1);
	b->text[n > 0 ? n : 0] = 0;
	note(&(struct start){ AT_FDCWD, self, b->text, argv, env, false });
	log_buf_put(b);
}

static void note_search(const char *path, char *const *argv, char *const *env)
{
	note(&(struct start){ AT_FDCWD, path, path, argv, env, true });
}

/* ------------------------------------------------------------------------------------ exec */

EXPORT int execve(const char *path, char *const argv[], char *const env[])
{
	exec_note(AT_FDCWD, path, argv, env);
	return real()->execve(path, argv, env);
}

EXPORT int execv(const char *path, char *const argv[])
{
	exec_note(AT_FDCWD, path, argv, environ);
	return real()->execve(path, argv, environ);
}

EXPORT int execvpe(const char *path, char *const argv[], char *const env[])
{
	note_search(path, argv, env);
	return real()->execvpe(path, argv, env);
}

EXPORT int execvp(const char *path, char *const argv[])
{
	note_search(path, argv, environ);
	return real()->execvpe(path, argv, environ);
}

EXPORT int execveat(int dir, const char *path, char *const argv[], char *const env[], int flags)
{
	exec_at_note(dir, path, argv, env);
	return real()->execveat(dir, path, argv, env, flags);
}

EXPORT int fexecve(int fd, char *const argv[], char *const env[])
{
	exec_at_note(fd, "", argv, env);
	return real()->fexecve(fd, argv, env);
}

/* Arguments up to a NULL, and behind it the environment, if has_env. */
static int exec_list(bool search, bool has_env, const char *path, const char *arg, va_list ap)
{
	char *const *env = environ;
	va_list count;
	size_t n = 1;

	va_copy(count, ap);
	for (const char *a = arg; a; a = va_arg(count, const char *))
		n++;
	va_end(count);

	char *argv[n];

	argv[0] = (char *)arg;
	for (size_t i = 1; i < n; i++)
		argv[i] = va_arg(ap, char *);
	if (has_env)
		env = va_arg(ap, char *const *);
	return search ? execvpe(path, argv, env) : execve(path, argv, env);
}

EXPORT int execl(const char *path, const char *arg, ...)
{
	va_list ap;
	int rc;

	va_start(ap, arg);
	rc = exec_list(false, false, path, arg, ap);
	va_end(ap);
	return rc;
}

EXPORT int execlp(const char *path, const char *arg, ...)
{
	va_list ap;
	int rc;

	va_start(ap, arg);
	rc = exec_list(true, false, path, arg, ap);
	va_end(ap);
	return rc;
}

EXPORT int execle(const char *path, const char *arg, ...)
{
	va_list ap;
	int rc;

	va_start(ap, arg);
	rc = exec_list(false, true, path, arg, ap);
	va_end(ap);
	return rc;
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
		       const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
	exec_note(AT_FDCWD, path, argv, env);
	return real()->posix_spawn(pid, path, actions, attr, argv, env);
}

EXPORT int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
			const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
	note_search(path, argv, env);
	return real()->posix_spawnp(pid, path, actions, attr, argv, env);
}

EXPORT int system(const char *line)
{
	exec_note(AT_FDCWD, line ? "/bin/sh" : NULL, NULL, environ);
	return real()->system(line);
}

EXPORT FILE *popen(const char *line, const char *mode)
{
	exec_note(AT_FDCWD, "/bin/sh", NULL, environ);
	return real()->popen(line, mode);
}
