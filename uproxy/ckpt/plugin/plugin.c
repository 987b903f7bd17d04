// SPDX-License-Identifier: GPL-2.0-only
/*
 * plugin.c - CRIU plugin: dumps /dev/singvgpu as the name of a channel, and re-attaches it
 *
 * A channel is external to its client's dump: the proxy saves and re-creates its contents. The dump
 * only names the channel of the client's file (struct image, a file for each open file in CRIU's
 * image directory). The restored client attaches to the channel of that identity, which the new
 * proxy has made before, and maps it where it was.
 *
 *   dump     CHECKPOINT_DEVICES  refuse what CRIU could not map again
 *            DUMP_EXT_FILE       an open file: refuse a proxy's end, write the image
 *            HANDLE_DEVICE_VMA   a mapping of the device is ours
 *   restore  RESTORE_EXT_FILE    open the device, ATTACH by identity and cookie
 *            UPDATE_VMA_MAP      have the mapping made on that file, which is open by then
 *
 * The cookie is a secret and in no image. The restorer passes it in CRIU's environment:
 *
 *   SINGVGPU_COOKIES=FILE    lines "ID COOKIE", 32 hexadecimal digits each
 *   SINGVGPU_COOKIE=COOKIE   for every channel that FILE does not name
 *
 * Hooks return 0 or more, or -errno after a sentence in CRIU's log. -ENOTSUP (which is -EOPNOTSUPP)
 * comes without a sentence: the file or mapping is not ours.
 *
 * An image is written as it lies in memory, little endian.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/membarrier.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <criu-plugin.h>
#include <linux/singvgpu.h>

#define IMAGE_MAGIC	0x31474c5047564753ull	/* "SGVGPLG1" */
#define IMAGE_VERSION	1

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct image {
	uint64_t magic;
	uint32_t version;
	uint32_t role;		/* SINGVGPU_ROLE_NONE: opened, no end yet; or _CLIENT */
	uint32_t flags;		/* O_* of the open file */
	uint32_t generation;	/* at the dump */
	uint8_t id[16];
	struct singvgpu_geometry geo;
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct image) == 72, "file format");

/* -------------------------------------------------------------------------------- CRIU's log */

/* Exported by CRIU to its plugins; its header for this is not installed. */
extern void print_on_level(unsigned int level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#define pr_err(fmt, ...)	print_on_level(1, "Error: singvgpu: " fmt "\n", ##__VA_ARGS__)
#define pr_info(fmt, ...)	print_on_level(3, "singvgpu: " fmt "\n", ##__VA_ARGS__)

struct hex {
	char s[33];
};

static struct hex hex(const uint8_t id[16])
{
	struct hex h;
	int i;

	for (i = 0; i < 16; i++)
		sprintf(h.s + 2 * i, "%02x", id[i]);
	return h;
}

/* ------------------------------------------------------------------------------- the device */

static bool is_device(const struct stat *st)
{
	struct stat dev;

	return S_ISCHR(st->st_mode) && !stat(SINGVGPU_DEV_PATH, &dev) &&
	       dev.st_rdev == st->st_rdev;
}

struct fdinfo {
	int role;
	char id[33];
	uint64_t va;
};

/*
 * Reads the module's fdinfo of an fd of process `pid` ("self"). By GET_INFO the module would note
 * that a proxy has heard of its client, and a dump that is refused must not change anything.
 */
static void read_fdinfo(const char *pid, const char *fd, struct fdinfo *i)
{
	char path[300], line[256];
	FILE *f;

	memset(i, 0, sizeof(*i));
	snprintf(path, sizeof(path), "/proc/%s/fdinfo/%s", pid, fd);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		sscanf(line, "singvgpu-role: %d", &i->role);
		sscanf(line, "singvgpu-id: %32s", i->id);
		sscanf(line, "singvgpu-va: %" SCNx64, &i->va);
	}
	if (f)
		fclose(f);
}

static int get_info(int fd, struct singvgpu_info *info)
{
	if (ioctl(fd, SINGVGPU_IOC_GET_INFO, info))
		return -errno;
	return info->api_version == SINGVGPU_API_VERSION ? 0 : -EPROTONOSUPPORT;
}

/* ---------------------------------------------------------------------------------- images */

static void image_name(char *name, size_t size, int id)
{
	snprintf(name, size, "singvgpu-%08x.img", (unsigned int)id);
}

static int write_image(int id, const struct image *img)
{
	char name[32];
	int fd, rc = 0;
	ssize_t n;

	image_name(name, sizeof(name), id);
	fd = openat(criu_get_image_dir(), name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0) {
		rc = -errno;
		pr_err("cannot create %s: %s", name, strerror(errno));
		return rc;
	}
	n = write(fd, img, sizeof(*img));
	if (n != sizeof(*img))
		rc = n < 0 ? -errno : -ENOSPC;
	if (close(fd) && !rc)
		rc = -errno;
	if (rc)
		pr_err("cannot write %s: %s", name, strerror(-rc));
	return rc;
}

/* -ENOTSUP: no such image, the file is another plugin's. */
static int read_image(int id, struct image *img)
{
	char name[32], byte;
	bool more = false;
	ssize_t n;
	int fd;

	image_name(name, sizeof(name), id);
	fd = openat(criu_get_image_dir(), name, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		if (errno == ENOENT)
			return -ENOTSUP;
		pr_err("cannot open %s: %s", name, strerror(errno));
		return -EIO;
	}
	n = read(fd, img, sizeof(*img));
	if (n == sizeof(*img))
		more = read(fd, &byte, 1) != 0;
	close(fd);
	if (n >= (ssize_t)offsetof(struct image, role) && img->magic == IMAGE_MAGIC &&
	    img->version != IMAGE_VERSION) {
		pr_err("%s is of version %u, this plugin reads version %u", name, img->version,
		       IMAGE_VERSION);
		return -EPROTONOSUPPORT;
	}
	if (n != sizeof(*img) || more || img->magic != IMAGE_MAGIC ||
	    (img->role != SINGVGPU_ROLE_NONE && img->role != SINGVGPU_ROLE_CLIENT)) {
		pr_err("%s is damaged", name);
		return -EBADMSG;
	}
	return 0;
}

/* --------------------------------------------------------------------------------- cookies */

static bool parse_hex(const char *s, uint8_t out[16])
{
	unsigned int byte;
	int i;

	for (i = 0; i < 16; i++) {
		if (!isxdigit(s[2 * i]) || !isxdigit(s[2 * i + 1]))
			return false;
		sscanf(s + 2 * i, "%2x", &byte);
		out[i] = byte;
	}
	return !isalnum(s[32]);
}

/* 0, or -ENOENT the file does not name the channel, -EINVAL a line is malformed. */
static int cookie_from_file(const char *path, const uint8_t id[16], uint8_t cookie[16])
{
	unsigned int number = 0;
	uint8_t named[16];
	char line[128];
	int rc = -ENOENT;
	FILE *f;

	f = fopen(path, "re");
	if (!f) {
		rc = -errno;
		pr_err("cannot open SINGVGPU_COOKIES=%s: %s", path, strerror(errno));
		return rc;
	}
	while (rc == -ENOENT && fgets(line, sizeof(line), f)) {
		number++;
		if (line[0] == '\n')
			continue;
		if (!parse_hex(line, named) || line[32] != ' ' || !parse_hex(line + 33, cookie))
			rc = -EINVAL;
		else if (!memcmp(named, id, 16))
			rc = 0;
	}
	explicit_bzero(line, sizeof(line));
	fclose(f);
	if (rc == -EINVAL)
		pr_err("%s:%u: not 'ID COOKIE' of 32 hexadecimal digits each", path, number);
	return rc;
}

static int find_cookie(const uint8_t id[16], uint8_t cookie[16])
{
	const char *file = getenv("SINGVGPU_COOKIES"), *one = getenv("SINGVGPU_COOKIE");
	int rc = file ? cookie_from_file(file, id, cookie) : -ENOENT;

	if (rc != -ENOENT)
		return rc;
	if (!one) {
		pr_err("no cookie for channel %s: set SINGVGPU_COOKIE or SINGVGPU_COOKIES",
		       hex(id).s);
		return -ENOENT;
	}
	if (!parse_hex(one, cookie)) {
		pr_err("SINGVGPU_COOKIE is not 32 hexadecimal digits");
		return -EINVAL;
	}
	return 0;
}

/* ------------------------------------------------------------------------------------ dump */

/* Dumps an open file that CRIU does not know; -ENOTSUP: it is not ours. */
static int dump_file(int fd, int id)
{
	struct image img = { .magic = IMAGE_MAGIC, .version = IMAGE_VERSION };
	struct singvgpu_info info;
	struct fdinfo said;
	char number[16];
	struct stat st;
	int rc;

	if (fstat(fd, &st) || !is_device(&st))
		return -ENOTSUP;
	snprintf(number, sizeof(number), "%d", fd);
	read_fdinfo("self", number, &said);
	if (said.role == SINGVGPU_ROLE_PROXY) {
		pr_err("file %#x is a proxy's end of channel %s: a proxy is not dumped, its job is", id,
		       said.id);
		return -EBUSY;
	}
	rc = get_info(fd, &info);
	if (rc) {
		pr_err("file %#x: cannot ask the module about it: %s", id, strerror(-rc));
		return rc;
	}
	if (info.role == SINGVGPU_ROLE_CLIENT && !(info.state & SINGVGPU_STATE_PEER)) {
		pr_err("channel %s: its proxy is gone, or the client has hung up", hex(info.id).s);
		return -EPIPE;
	}
	img.role = info.role;
	img.flags = fcntl(fd, F_GETFL);
	img.generation = info.generation;
	memcpy(img.id, info.id, 16);
	img.geo = info.geo;
	rc = write_image(id, &img);
	if (!rc)
		pr_info("file %#x is %s%s", id, info.role ? "the client's end of channel " : "no end",
			info.role ? hex(info.id).s : "");
	return rc;
}

static int handle_vma(int fd, const struct stat *st)
{
	(void)fd;
	return is_device(st) ? 0 : -ENOTSUP;
}

#define CHANNELS_MAX 256	/* client ends open in one process */

/*
 * Neither a mapping nor CRIU names the mapping's channel: a restore finds it by address. So no
 * process may have the client ends of two channels of one address open.
 */
static int check_files(int pid)
{
	struct fdinfo seen[CHANNELS_MAX];
	char path[64], number[16];
	struct dirent *e;
	int n = 0, i, rc = 0;
	DIR *d;

	snprintf(number, sizeof(number), "%d", pid);
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	d = opendir(path);
	while (d && !rc && n < CHANNELS_MAX && (e = readdir(d))) {
		read_fdinfo(number, e->d_name, &seen[n]);
		if (seen[n].role == SINGVGPU_ROLE_PROXY) {
			pr_err("process %d has a proxy's end of channel %s: a proxy is not dumped, its job "
			       "is", pid, seen[n].id);
			rc = -EBUSY;
		}
		if (seen[n].role != SINGVGPU_ROLE_CLIENT)
			continue;
		for (i = 0; i < n && !rc; i++) {
			if (seen[i].va != seen[n].va || !strcmp(seen[i].id, seen[n].id))
				continue;
			pr_err("process %d has files of two channels at %#" PRIx64 " open: it must "
			       "close that which is not its own", pid, seen[n].va);
			rc = -EINVAL;
		}
		n++;
	}
	if (d)
		closedir(d);
	return rc;
}

/*
 * CRIU opens one file for neighbouring mappings of one device node, and so would map the second of
 * two channels on the file of the first. The restore would fail, so the dump is refused.
 */
static int check_mappings(int pid, const struct stat *dev)
{
	bool before = false, ours;
	unsigned int major, minor;
	unsigned long off, ino;
	char path[64], perms[5], *line = NULL;
	size_t size = 0;
	int rc = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	f = fopen(path, "re");
	while (f && !rc && getline(&line, &size, f) > 0) {
		if (sscanf(line, "%*x-%*x %4s %lx %x:%x %lu", perms, &off, &major, &minor, &ino) != 5)
			continue;
		if (perms[3] != 's' || !ino)
			continue;
		ours = ino == dev->st_ino && makedev(major, minor) == dev->st_dev;
		if (ours && before && !off) {
			pr_err("process %d has mapped two channels side by side, which CRIU cannot "
			       "restore", pid);
			rc = -EINVAL;
		}
		before = ours;
	}
	free(line);
	if (f)
		fclose(f);
	return rc;
}

/* Called for each process, when all are frozen and nothing is dumped yet. */
static int checkpoint(int pid)
{
	struct stat dev;
	int rc;

	if (stat(SINGVGPU_DEV_PATH, &dev))
		return -ENOTSUP;
	rc = check_files(pid);
	return rc ? rc : check_mappings(pid, &dev);
}

/* --------------------------------------------------------------------------------- restore */

static const char *attach_error(int err)
{
	switch (err) {
	case ENOENT:
		return "no such channel, its cookie is another, or it is another user's";
	case EBUSY:
		return "another client is attached to it";
	case EPIPE:
		return "its proxy is gone";
	case EPROTONOSUPPORT:
		return "the module speaks another version";
	}
	return strerror(err);
}

/* The dumped client may still be exiting. */
#define ATTACH_TRIES	200
#define ATTACH_PAUSE_NS	10000000

static int attach(int fd, const struct image *img)
{
	struct singvgpu_attach a = { .api_version = SINGVGPU_API_VERSION };
	const struct timespec pause = { .tv_nsec = ATTACH_PAUSE_NS };
	int rc, tries = 0;

	memcpy(a.id, img->id, 16);
	rc = find_cookie(img->id, a.cookie);
	if (rc)
		return rc;
	while ((rc = ioctl(fd, SINGVGPU_IOC_ATTACH, &a) ? -errno : 0) == -EBUSY &&
	       ++tries < ATTACH_TRIES)
		nanosleep(&pause, NULL);
	explicit_bzero(a.cookie, sizeof(a.cookie));
	if (rc) {
		pr_err("cannot attach to channel %s: %s", hex(img->id).s, attach_error(-rc));
		return rc;
	}
	if (memcmp(&a.geo, &img->geo, sizeof(a.geo))) {
		pr_err("channel %s has another geometry than the one that was dumped", hex(img->id).s);
		return -ESTALE;
	}
	if (a.generation <= img->generation) {
		pr_err("channel %s has generation %u, the dumped client was of %u: it is not restored",
		       hex(img->id).s, a.generation, img->generation);
		return -ESTALE;
	}
	pr_info("attached to channel %s, generation %u", hex(img->id).s, a.generation);
	return 0;
}

static int restore_file(int id)
{
	struct image img;
	int fd, rc;

	rc = read_image(id, &img);
	if (rc)
		return rc;
	fd = open(SINGVGPU_DEV_PATH, (img.flags & ~(O_CREAT | O_EXCL | O_TRUNC)) | O_CLOEXEC);
	if (fd < 0) {
		rc = -errno;
		pr_err("cannot open " SINGVGPU_DEV_PATH ": %s%s", strerror(errno),
		       errno == ENOENT ? ": is the module loaded?" : "");
		return rc;
	}
	rc = img.role == SINGVGPU_ROLE_CLIENT ? attach(fd, &img) : 0;
	if (rc) {
		close(fd);
		return rc;
	}
	return fd;
}

/* The first fd of this process whose channel's client end covers addr, or -ENOENT. */
static int find_fd(uint64_t addr, uint64_t off)
{
	struct singvgpu_info info;
	struct rlimit lim;
	struct stat st;
	int fd, end = 65536;

	if (!getrlimit(RLIMIT_NOFILE, &lim) && lim.rlim_cur < (rlim_t)end)
		end = lim.rlim_cur;
	for (fd = 0; fd < end; fd++) {
		if (fstat(fd, &st) || !is_device(&st) || get_info(fd, &info))
			continue;
		if (info.role == SINGVGPU_ROLE_CLIENT && info.geo.va + off == addr &&
		    off < info.length)
			return fd;
	}
	return -ENOENT;
}

/*
 * A producer may omit a fence because of this registration (ringbuf, ring_i.h). Before Linux 6.3 it
 * cannot be queried, so CRIU does not restore it. The client registers again when it sees its new
 * generation, but a thread may have been dumped just after that check. This code runs in the
 * restored process, and a registration belongs to the process's memory.
 */
static void register_membarrier(void)
{
	syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
}

#define HIGH_FD 700	/* above the process's own fds */

/*
 * CRIU restores a process's files before its mappings, so the channel's file is open here. CRIU
 * gets an fd of its own, uses it for all neighbouring mappings of the device, and closes it after
 * the last one. So all parts of a channel are mapped on the same file.
 */
static int update_vma(const char *path, const uint64_t addr, const uint64_t old_pgoff,
		      uint64_t *new_pgoff, int *plugin_fd)
{
	static uint64_t last_va;
	static int last_fd = -1;
	const char *name = strrchr(path, '/');
	int fd;

	if (strcmp(name ? name + 1 : path, SINGVGPU_DEV_NAME))
		return -ENOTSUP;
	fd = last_fd;
	if (fd < 0 || last_va != addr - old_pgoff) {
		fd = find_fd(addr, old_pgoff);
		if (fd < 0) {
			pr_err("the mapping at %#" PRIx64 " has no file: the client had closed it",
			       addr);
			return fd;
		}
		fd = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
		if (fd < 0)
			return -errno;
		register_membarrier();
	}
	last_fd = fd;
	last_va = addr - old_pgoff;
	*new_pgoff = old_pgoff;
	*plugin_fd = fd;
	return 1;
}

static int init(int stage)
{
	pr_info("plugin for stage %d, API version %u", stage, SINGVGPU_API_VERSION);
	return 0;
}

static void fini(int stage, int ret)
{
	(void)stage;
	(void)ret;
}

CR_PLUGIN_REGISTER("singvgpu_plugin", init, fini)
CR_PLUGIN_REGISTER_HOOK(CR_PLUGIN_HOOK__CHECKPOINT_DEVICES, checkpoint)
CR_PLUGIN_REGISTER_HOOK(CR_PLUGIN_HOOK__DUMP_EXT_FILE, dump_file)
CR_PLUGIN_REGISTER_HOOK(CR_PLUGIN_HOOK__HANDLE_DEVICE_VMA, handle_vma)
CR_PLUGIN_REGISTER_HOOK(CR_PLUGIN_HOOK__RESTORE_EXT_FILE, restore_file)
CR_PLUGIN_REGISTER_HOOK(CR_PLUGIN_HOOK__UPDATE_VMA_MAP, update_vma)
