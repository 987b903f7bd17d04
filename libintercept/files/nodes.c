// SPDX-License-Identifier: Apache-2.0
/*
 * nodes.c - the device nodes of NVIDIA's driver, which programs look for and the job's device lacks
 *
 * `singvgpu run` sets $SINGVGPU_NODES to the number of devices on a machine without such nodes. Libc's
 * functions that ask for a file, or list /dev, then answer as if they were there; a node that exists
 * answers for itself. They cannot be opened (ENXIO): the device is the proxy's. Programs that make
 * their own system calls do not see them, nor do libc's scandir, ftw and realpath.
 */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <glob.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "files_i.h"
#include "log.h"

#define DEV		"/dev"
#define MAJOR		195		/* NVIDIA's; nvidia-uvm has a number that the kernel chooses */
#define MAJOR_UVM	510
#define MINOR_CTL	255
#define DEVICES_MAX	64

static const struct {
	const char *name;
	unsigned int major, minor;
} others[] = {
	{ "nvidiactl", MAJOR, MINOR_CTL },
	{ "nvidia-uvm", MAJOR_UVM, 0 },
	{ "nvidia-uvm-tools", MAJOR_UVM, 1 },
};
#define OTHERS ((int)(sizeof(others) / sizeof(others[0])))

/* Read each time, for a program that forgets it: `singvgpu` itself. 0: there are no nodes. */
static int devices(void)
{
	const char *env = getenv("SINGVGPU_NODES");
	int n = env ? atoi(env) : 0;

	return n < 0 ? 0 : n < DEVICES_MAX ? n : DEVICES_MAX;
}

/* The nodes have numbers: first those of devices, then others[]. */
static void node_name(int node, int n, char name[24])
{
	if (node < n)
		snprintf(name, 24, "nvidia%d", node);
	else
		strcpy(name, others[node - n].name);
}

static dev_t node_dev(int node, int n)
{
	return node < n ? makedev(MAJOR, node) :
			  makedev(others[node - n].major, others[node - n].minor);
}

static int node_of_name(const char *last, int n)
{
	char name[24];

	for (int node = 0; node < n + OTHERS; node++) {
		node_name(node, n, name);
		if (!strcmp(name, last))
			return node;
	}
	return -1;
}

static bool is_dev(int dir, const char *path)
{
	struct stat st, dev;

	return !sys(SYS_newfstatat, dir, path, &st, *path ? 0 : AT_EMPTY_PATH) &&
	       !sys(SYS_newfstatat, AT_FDCWD, DEV, &dev, 0) && st.st_dev == dev.st_dev &&
	       st.st_ino == dev.st_ino;
}

/* The node of a path that was not found; -1: it is none. */
static int node_of(int dir, const char *path, int *n)
{
	const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
	char folder[256];
	int node;

	if (strncmp(last, "nvidia", 6))
		return -1;
	*n = devices();
	node = *n ? node_of_name(last, *n) : -1;
	if (node < 0 || last - path >= (long)sizeof(folder))
		return -1;
	memcpy(folder, path, last - path);
	folder[last - path] = '\0';
	return is_dev(dir, last > path ? folder : dir == AT_FDCWD ? "." : "") ? node : -1;
}

/* Whether a call has failed because a node is missing. */
static bool missing(int ret, int dir, const char *path, int *node, int *n)
{
	if (ret != -1 || errno != ENOENT || !path)
		return false;
	*node = node_of(dir, path, n);
	return *node >= 0;
}

/* -------------------------------------------------------------------------- one by one */

static void fill_stat(int node, int n, struct stat *st)
{
	struct stat dev;

	memset(st, 0, sizeof(*st));
	if (!sys(SYS_newfstatat, AT_FDCWD, DEV, &dev, 0)) {
		st->st_dev = dev.st_dev;
		st->st_atim = st->st_mtim = st->st_ctim = dev.st_ctim;
	}
	st->st_ino = (1ul << 31) + node;
	st->st_mode = S_IFCHR | 0666;
	st->st_nlink = 1;
	st->st_rdev = node_dev(node, n);
	st->st_blksize = 4096;
}

static int stated(int ret, int dir, const char *path, void *st)
{
	int node, n;

	if (!missing(ret, dir, path, &node, &n))
		return ret;
	fill_stat(node, n, st);
	return 0;
}

#define STAT(name, type) \
EXPORT int name(const char *path, struct type *st) \
{ \
	return stated(real()->name(path, st), AT_FDCWD, path, st); \
}

#define XSTAT(name, type) \
EXPORT int name(int version, const char *path, struct type *st) \
{ \
	return stated(real()->name(version, path, st), AT_FDCWD, path, st); \
}

STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
XSTAT(__xstat, stat)
XSTAT(__xstat64, stat64)
XSTAT(__lxstat, stat)
XSTAT(__lxstat64, stat64)

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "one struct");

#define STATAT(name, type) \
EXPORT int name(int dir, const char *path, struct type *st, int flags) \
{ \
	return stated(real()->name(dir, path, st, flags), dir, path, st); \
}

#define XSTATAT(name, type) \
EXPORT int name(int version, int dir, const char *path, struct type *st, int flags) \
{ \
	return stated(real()->name(version, dir, path, st, flags), dir, path, st); \
}

STATAT(fstatat, stat)
STATAT(fstatat64, stat64)
XSTATAT(__fxstatat, stat)
XSTATAT(__fxstatat64, stat64)

EXPORT int statx(int dir, const char *path, int flags, unsigned int mask, struct statx *stx)
{
	int ret = real()->statx(dir, path, flags, mask, stx), node, n;
	struct stat st;

	if (!missing(ret, dir, path, &node, &n))
		return ret;
	fill_stat(node, n, &st);
	memset(stx, 0, sizeof(*stx));
	stx->stx_mask = STATX_BASIC_STATS;
	stx->stx_blksize = st.st_blksize;
	stx->stx_nlink = st.st_nlink;
	stx->stx_mode = st.st_mode;
	stx->stx_ino = st.st_ino;
	stx->stx_dev_major = major(st.st_dev);
	stx->stx_dev_minor = minor(st.st_dev);
	stx->stx_rdev_major = major(st.st_rdev);
	stx->stx_rdev_minor = minor(st.st_rdev);
	stx->stx_ctime.tv_sec = stx->stx_mtime.tv_sec = stx->stx_atime.tv_sec =
		st.st_ctim.tv_sec;
	return 0;
}

static int accessed(int ret, int dir, const char *path, int mode)
{
	int node, n;

	if (!missing(ret, dir, path, &node, &n))
		return ret;
	if (!(mode & X_OK))
		return 0;
	errno = EACCES;
	return -1;
}

#define ACCESS(name) \
EXPORT int name(const char *path, int mode) \
{ \
	return accessed(real()->name(path, mode), AT_FDCWD, path, mode); \
}

ACCESS(access)
ACCESS(eaccess)
ACCESS(euidaccess)

EXPORT int faccessat(int dir, const char *path, int mode, int flags)
{
	return accessed(real()->faccessat(dir, path, mode, flags), dir, path, mode);
}

/* For ls: a node has no attributes. */
#define GETXATTR(name) \
EXPORT ssize_t name(const char *path, const char *attr, void *value, size_t size) \
{ \
	ssize_t ret = real()->name(path, attr, value, size); \
	int node, n; \
	\
	if (missing(ret, AT_FDCWD, path, &node, &n)) \
		errno = ENODATA; \
	return ret; \
}

#define LISTXATTR(name) \
EXPORT ssize_t name(const char *path, char *list, size_t size) \
{ \
	ssize_t ret = real()->name(path, list, size); \
	int node, n; \
	\
	return missing(ret, AT_FDCWD, path, &node, &n) ? 0 : ret; \
}

GETXATTR(getxattr)
GETXATTR(lgetxattr)
LISTXATTR(listxattr)
LISTXATTR(llistxattr)

static void tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void tell(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	log_line(fmt, ap);
	va_end(ap);
}

int nodes_opened(int fd, int dir, const char *path)
{
	int node, n;

	if (!missing(fd, dir, path, &node, &n))
		return fd;
	tell("%s cannot be opened: the job's device is its proxy's", path);
	errno = ENXIO;
	return fd;
}

/* ------------------------------------------------------------------------------ listings */

/*
 * Streams of /dev that are open now. Whoever opens one takes a free entry by an exchange; until it is
 * closed, only its users, one at a time, use the entry.
 */
#define STREAMS 16
static struct stream {
	DIR *dir;
	int next;		/* the node that readdir gives when the real ones are at their end */
	struct dirent64 entry;
} streams[STREAMS];

_Static_assert(sizeof(struct dirent) == sizeof(struct dirent64), "one struct");

static struct stream *stream_of(DIR *dir)
{
	for (struct stream *s = streams; s < streams + STREAMS; s++)
		if (__atomic_load_n(&s->dir, __ATOMIC_RELAXED) == dir)
			return s;
	return NULL;
}

/* More streams than entries at once list what is there. */
static DIR *listed(DIR *dir)
{
	int err = errno;

	if (!dir || !devices() || !is_dev(dirfd(dir), ""))
		return dir;
	for (struct stream *s = streams; s < streams + STREAMS; s++) {
		DIR *none = NULL;

		if (__atomic_compare_exchange_n(&s->dir, &none, dir, false, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED)) {
			s->next = 0;
			break;
		}
	}
	errno = err;
	return dir;
}

EXPORT DIR *opendir(const char *path)
{
	return listed(real()->opendir(path));
}

EXPORT DIR *fdopendir(int fd)
{
	return listed(real()->fdopendir(fd));
}

EXPORT int closedir(DIR *dir)
{
	struct stream *s = stream_of(dir);

	if (s)
		__atomic_store_n(&s->dir, NULL, __ATOMIC_RELAXED);
	return real()->closedir(dir);
}

EXPORT void rewinddir(DIR *dir)
{
	struct stream *s = stream_of(dir);

	if (s)
		s->next = 0;
	real()->rewinddir(dir);
}

/* The next node that is not there; NULL: none is left. */
static void *next_node(DIR *dir)
{
	struct stream *s = stream_of(dir);
	int n = s ? devices() : 0;
	struct stat st;

	while (n && s->next < n + OTHERS) {
		node_name(s->next, n, s->entry.d_name);
		s->entry.d_ino = (1ul << 31) + s->next++;
		s->entry.d_off = 0;
		s->entry.d_reclen = sizeof(s->entry);
		s->entry.d_type = DT_CHR;
		if (sys(SYS_newfstatat, dirfd(dir), s->entry.d_name, &st, AT_SYMLINK_NOFOLLOW) == -ENOENT)
			return &s->entry;
	}
	return NULL;
}

#define READDIR(name, type) \
EXPORT struct type *name(DIR *dir) \
{ \
	int err = errno; \
	struct type *entry; \
	\
	errno = 0; \
	entry = real()->name(dir); \
	if (!entry && !errno) \
		entry = next_node(dir); \
	errno = errno ?: err; \
	return entry; \
}

READDIR(readdir, dirent)
READDIR(readdir64, dirent64)

/* Whether a pattern, which may match in /dev, matches a node that is not there. */
static bool globbed(const char *pattern, int node, int n, char path[32])
{
	struct stat st;

	strcpy(path, DEV "/");
	node_name(node, n, path + strlen(path));
	return !fnmatch(pattern, path, FNM_PATHNAME | FNM_PERIOD) &&
	       sys(SYS_newfstatat, AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == -ENOENT;
}

/* With GLOB_NOCHECK libc appends a path that it does not find. */
#define GLOB(name, type) \
EXPORT int name(const char *pattern, int flags, int (*failed)(const char *, int), type *found) \
{ \
	int ret = real()->name(pattern, flags, failed, found); \
	int n = strncmp(pattern, DEV "/", 5) || (flags & GLOB_NOCHECK) ? 0 : devices(); \
	char path[32]; \
	\
	for (int node = 0; n && node < n + OTHERS && (!ret || ret == GLOB_NOMATCH); node++) \
		if (globbed(pattern, node, n, path)) \
			ret = real()->name(path, (flags & ~GLOB_ONLYDIR) | GLOB_APPEND | GLOB_NOCHECK, \
					   failed, found); \
	return ret; \
}

GLOB(glob, glob_t)
GLOB(glob64, glob64_t)
