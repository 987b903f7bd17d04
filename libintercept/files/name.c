// SPDX-License-Identifier: Apache-2.0
/*
 * name.c - the functions of libc that make, rename and remove names
 */
#include "files_i.h"
#include "record.h"

#define MAKES(name, params, args, dir, path) \
EXPORT int name params \
{ \
	note_make(dir, path); \
	return real()->name args; \
}

#define REMOVES(name, params, args, dir, path) \
EXPORT int name params \
{ \
	note_remove(dir, path); \
	return real()->name args; \
}

#define RENAMES(name, params, args, ...) \
EXPORT int name params \
{ \
	note_rename(__VA_ARGS__); \
	return real()->name args; \
}

RENAMES(rename, (const char *from, const char *to), (from, to), AT_FDCWD, from, AT_FDCWD, to, 0)
RENAMES(renameat, (int from_dir, const char *from, int to_dir, const char *to),
	(from_dir, from, to_dir, to), from_dir, from, to_dir, to, 0)
RENAMES(renameat2, (int from_dir, const char *from, int to_dir, const char *to, unsigned int flags),
	(from_dir, from, to_dir, to, flags), from_dir, from, to_dir, to, flags)

REMOVES(unlink, (const char *path), (path), AT_FDCWD, path)
REMOVES(unlinkat, (int dir, const char *path, int flags), (dir, path, flags), dir, path)
REMOVES(rmdir, (const char *path), (path), AT_FDCWD, path)
REMOVES(remove, (const char *path), (path), AT_FDCWD, path)

/* Logs the old name, too, since both names have the same content. */
EXPORT int link(const char *from, const char *to)
{
	note_file(AT_FDCWD, from, false);
	note_make(AT_FDCWD, to);
	return real()->link(from, to);
}

EXPORT int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
	note_file(from_dir, from, flags & AT_SYMLINK_FOLLOW);
	note_make(to_dir, to);
	return real()->linkat(from_dir, from, to_dir, to, flags);
}

MAKES(symlink, (const char *text, const char *path), (text, path), AT_FDCWD, path)
MAKES(symlinkat, (const char *text, int dir, const char *path), (text, dir, path), dir, path)
MAKES(mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
MAKES(mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode), dir, path)
MAKES(mkfifo, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
MAKES(mkfifoat, (int dir, const char *path, mode_t mode), (dir, path, mode), dir, path)
MAKES(mknod, (const char *path, mode_t mode, dev_t dev), (path, mode, dev), AT_FDCWD, path)
MAKES(mknodat, (int dir, const char *path, mode_t mode, dev_t dev), (dir, path, mode, dev), dir,
      path)
MAKES(__xmknod, (int version, const char *path, mode_t mode, dev_t *dev),
      (version, path, mode, dev), AT_FDCWD, path)
MAKES(__xmknodat, (int version, int dir, const char *path, mode_t mode, dev_t *dev),
      (version, dir, path, mode, dev), dir, path)
