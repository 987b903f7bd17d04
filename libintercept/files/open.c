// SPDX-License-Identifier: Apache-2.0
/*
 * open.c - the functions of libc that open a file for writing or make one with an fd
 */
#include <errno.h>
#include <string.h>

#include "files_i.h"
#include "record.h"

/* The third argument, where there is one. */
#define MODE(flags) ({ \
	mode_t mode_ = 0; \
	if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
		va_list ap_; \
		va_start(ap_, flags); \
		mode_ = va_arg(ap_, mode_t); \
		va_end(ap_); \
	} \
	mode_; })

#define OPEN(name) \
EXPORT int name(const char *path, int flags, ...) \
{ \
	mode_t mode = MODE(flags); \
	bool existed = note_before_open(AT_FDCWD, path, flags); \
	int fd = nodes_opened(real()->name(path, flags, mode), AT_FDCWD, path); \
	\
	return note_opened(fd, path, flags, existed); \
}

#define OPENAT(name) \
EXPORT int name(int dir, const char *path, int flags, ...) \
{ \
	mode_t mode = MODE(flags); \
	bool existed = note_before_open(dir, path, flags); \
	int fd = nodes_opened(real()->name(dir, path, flags, mode), dir, path); \
	\
	return note_opened(fd, path, flags, existed); \
}

OPEN(open)
OPEN(open64)
OPEN(__open)
OPEN(__open64)
OPENAT(openat)
OPENAT(openat64)

/* Called by fortified headers where there is no mode argument: no file is made. */
#define OPEN_2(name) \
EXPORT int name(const char *path, int flags) \
{ \
	int fd = nodes_opened(real()->name(path, flags), AT_FDCWD, path); \
	\
	return note_opened(fd, path, flags, true); \
}

#define OPENAT_2(name) \
EXPORT int name(int dir, const char *path, int flags) \
{ \
	int fd = nodes_opened(real()->name(dir, path, flags), dir, path); \
	\
	return note_opened(fd, path, flags, true); \
}

OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)

#define CREAT(name) \
EXPORT int name(const char *path, mode_t mode) \
{ \
	bool existed = note_before_open(AT_FDCWD, path, O_CREAT); \
	\
	return note_opened(real()->name(path, mode), path, O_CREAT, existed); \
}

CREAT(creat)
CREAT(creat64)

EXPORT int open_by_handle_at(int mount, struct file_handle *handle, int flags)
{
	return note_opened(real()->open_by_handle_at(mount, handle, flags), NULL, flags, true);
}

/* -------------------------------------------------------------------------------- stdio */

#define FOPEN(name) \
EXPORT FILE *name(const char *path, const char *mode) \
{ \
	bool existed = note_before_fopen(path, mode); \
	FILE *file = real()->name(path, mode); \
	\
	if (!file) \
		nodes_opened(-1, AT_FDCWD, path); \
	note_fopened(file, path, mode, existed); \
	return file; \
}

#define FREOPEN(name) \
EXPORT FILE *name(const char *path, const char *mode, FILE *old) \
{ \
	bool existed = note_before_fopen(path, mode); \
	FILE *file = real()->name(path, mode, old); \
	\
	note_fopened(file, path, mode, existed); \
	return file; \
}

FOPEN(fopen)
FOPEN(fopen64)
FREOPEN(freopen)
FREOPEN(freopen64)

/* ---------------------------------------------------------------------- files with new names */

#define MKSTEMP(name, params, args) \
EXPORT int name params \
{ \
	return note_opened(real()->name args, NULL, O_RDWR, false); \
}

MKSTEMP(mkstemp, (char *form), (form))
MKSTEMP(mkstemp64, (char *form), (form))
MKSTEMP(mkostemp, (char *form, int flags), (form, flags))
MKSTEMP(mkostemp64, (char *form, int flags), (form, flags))
MKSTEMP(mkstemps, (char *form, int tail), (form, tail))
MKSTEMP(mkstemps64, (char *form, int tail), (form, tail))
MKSTEMP(mkostemps, (char *form, int tail, int flags), (form, tail, flags))
MKSTEMP(mkostemps64, (char *form, int tail, int flags), (form, tail, flags))

/* Not libc's, which would make the folder before its name can be logged. */
EXPORT char *mkdtemp(char *form)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
	size_t len = strlen(form);
	uint64_t v;

	if (len < 6 || memcmp(form + len - 6, "XXXXXX", 6)) {
		errno = EINVAL;
		return NULL;
	}
	for (int tries = 0; tries < TMP_MAX; tries++) {
		if (sys(SYS_getrandom, &v, sizeof(v), 0) != sizeof(v))
			break;
		for (int i = 0; i < 6; i++, v /= 62)
			form[len - 6 + i] = letters[v % 62];
		if (!mkdir(form, 0700))
			return form;
		if (errno != EEXIST)
			break;
	}
	memcpy(form + len - 6, "XXXXXX", 6);
	return NULL;
}

/* ------------------------------------------------------------------------- shared memory */

EXPORT int shm_open(const char *name, int flags, mode_t mode)
{
	char path[300];
	bool existed;

	snprintf(path, sizeof(path), "/dev/shm/%.255s", name + strspn(name, "/"));
	existed = note_before_open(AT_FDCWD, path, flags);
	return note_opened(real()->shm_open(name, flags, mode), path, flags, existed);
}

EXPORT int shm_unlink(const char *name)
{
	char path[300];

	snprintf(path, sizeof(path), "/dev/shm/%.255s", name + strspn(name, "/"));
	note_remove(AT_FDCWD, path);
	return real()->shm_unlink(name);
}

EXPORT sem_t *sem_open(const char *name, int flags, ...)
{
	char path[300];
	unsigned int value = 0;
	mode_t mode = 0;
	va_list ap;

	va_start(ap, flags);
	if (flags & O_CREAT) {
		mode = va_arg(ap, mode_t);
		value = va_arg(ap, unsigned int);
	}
	va_end(ap);
	snprintf(path, sizeof(path), "/dev/shm/sem.%.250s", name + strspn(name, "/"));
	if (flags & O_CREAT)
		note_make(AT_FDCWD, path);
	note_file(AT_FDCWD, path, false);
	return real()->sem_open(name, flags, mode, value);
}

EXPORT int sem_unlink(const char *name)
{
	char path[300];

	snprintf(path, sizeof(path), "/dev/shm/sem.%.250s", name + strspn(name, "/"));
	note_remove(AT_FDCWD, path);
	return real()->sem_unlink(name);
}
