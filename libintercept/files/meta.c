// SPDX-License-Identifier: Apache-2.0
/*
 * meta.c - the functions of libc that change a file's size by its name, mode, owner, times, attributes
 */
#include "files_i.h"
#include "record.h"

#define BY_NAME(name, params, args, dir, path, follow) \
EXPORT int name params \
{ \
	note_file(dir, path, follow); \
	return real()->name args; \
}

#define BY_FD(name, params, args, fd) \
EXPORT int name params \
{ \
	note_fd(fd, RECORD_CHANGED); \
	return real()->name args; \
}

BY_NAME(truncate, (const char *path, off_t size), (path, size), AT_FDCWD, path, true)
BY_NAME(truncate64, (const char *path, off64_t size), (path, size), AT_FDCWD, path, true)

BY_NAME(chmod, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path, true)
BY_NAME(lchmod, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path, false)
BY_NAME(fchmodat, (int dir, const char *path, mode_t mode, int flags), (dir, path, mode, flags), dir,
	path, !(flags & AT_SYMLINK_NOFOLLOW))
BY_FD(fchmod, (int fd, mode_t mode), (fd, mode), fd)

BY_NAME(chown, (const char *path, uid_t uid, gid_t gid), (path, uid, gid), AT_FDCWD, path, true)
BY_NAME(lchown, (const char *path, uid_t uid, gid_t gid), (path, uid, gid), AT_FDCWD, path, false)
BY_NAME(fchownat, (int dir, const char *path, uid_t uid, gid_t gid, int flags),
	(dir, path, uid, gid, flags), dir, path, !(flags & AT_SYMLINK_NOFOLLOW))
BY_FD(fchown, (int fd, uid_t uid, gid_t gid), (fd, uid, gid), fd)

BY_NAME(utime, (const char *path, const struct utimbuf *t), (path, t), AT_FDCWD, path, true)
BY_NAME(utimes, (const char *path, const struct timeval t[2]), (path, t), AT_FDCWD, path, true)
BY_NAME(lutimes, (const char *path, const struct timeval t[2]), (path, t), AT_FDCWD, path, false)
BY_NAME(futimesat, (int dir, const char *path, const struct timeval t[2]), (dir, path, t), dir, path,
	true)
BY_NAME(utimensat, (int dir, const char *path, const struct timespec t[2], int flags),
	(dir, path, t, flags), dir, path, !(flags & AT_SYMLINK_NOFOLLOW))
BY_FD(futimes, (int fd, const struct timeval t[2]), (fd, t), fd)
BY_FD(futimens, (int fd, const struct timespec t[2]), (fd, t), fd)

#define ATTR_PARAMS const char *attr, const void *value, size_t size, int flags
#define ATTR_ARGS attr, value, size, flags
BY_NAME(setxattr, (const char *path, ATTR_PARAMS), (path, ATTR_ARGS), AT_FDCWD, path, true)
BY_NAME(lsetxattr, (const char *path, ATTR_PARAMS), (path, ATTR_ARGS), AT_FDCWD, path, false)
BY_FD(fsetxattr, (int fd, ATTR_PARAMS), (fd, ATTR_ARGS), fd)
BY_NAME(removexattr, (const char *path, const char *attr), (path, attr), AT_FDCWD, path, true)
BY_NAME(lremovexattr, (const char *path, const char *attr), (path, attr), AT_FDCWD, path, false)
BY_FD(fremovexattr, (int fd, const char *attr), (fd, attr), fd)
