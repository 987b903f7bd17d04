// SPDX-License-Identifier: Apache-2.0
/*
 * host.c - checks of the kernel and of this user's limits
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <linux/singvgpu.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "doctor_i.h"

#define GiB (1ull << 30)

/* ----------------------------------------------------------------------------- module */

static void kernel(struct doctor *d)
{
	struct utsname u;
	int major = 0, minor = 0;

	uname(&u);
	sscanf(u.release, "%d.%d", &major, &minor);
	if (strcmp(u.machine, "x86_64"))
		found_fatal(d, "machine", "Use an x86-64 machine.", "%s", u.machine);
	if (major < 6 || (major == 6 && !minor))
		found(d, "kernel", WARN, "Install Linux 6.1 or newer.",
		      "Linux %s; tested are 6.1 and newer", u.release);
	else
		found(d, "kernel", OK, NULL, "Linux %s", u.release);
}

static const char *module_remedy(char *text, size_t size)
{
	struct utsname u;
	char path[512];
	glob_t g;
	int n = 0;

	uname(&u);
	snprintf(path, sizeof(path), "/lib/modules/%s/*/singvgpu.ko*", u.release);
	if (!glob(path, 0, NULL, &g)) {
		n = g.gl_pathc;
		globfree(&g);
	}
	snprintf(path, sizeof(path), "/lib/modules/%s/updates/dkms/singvgpu.ko*", u.release);
	if (!glob(path, 0, NULL, &g)) {
		n += g.gl_pathc;
		globfree(&g);
	}
	if (access("/proc/modules", F_OK))
		snprintf(text, size, "None: this kernel cannot load modules. It is optional.");
	else if (n)
		snprintf(text, size, "As root: modprobe singvgpu");
	else
		snprintf(text, size, "As root: 'make install' in singvgpu's sources, with the "
			 "headers of Linux %s; then modprobe singvgpu. It is optional.", u.release);
	return text;
}

static void module(struct doctor *d)
{
	char remedy[320], users[32];

	if (access("/sys/module/singvgpu", F_OK)) {
		found(d, "module", WARN, module_remedy(remedy, sizeof(remedy)),
		      "singvgpu.ko is not loaded; calls are carried by memfd and futex");
		return;
	}
	if (first_line("/sys/module/singvgpu/refcnt", users, sizeof(users)))
		strcpy(users, "?");
	found(d, "module", OK, NULL, "singvgpu.ko is loaded, used by %s files", users);
}

static const char *owner_remedy(const struct stat *s, char *text, size_t size)
{
	struct group *g = getgrgid(s->st_gid);

	if (g && s->st_gid && s->st_mode & 060)
		snprintf(text, size, "As root: usermod -aG %s YOU, and log in again.", g->gr_name);
	else
		snprintf(text, size, "As root: install kmod/60-singvgpu.rules in "
			 "/etc/udev/rules.d, add the group singvgpu, reload udev and the module.");
	return text;
}

static void device(struct doctor *d)
{
	struct singvgpu_info info = { 0 };
	char remedy[320];
	struct stat s;
	int fd;

	if (stat(SINGVGPU_DEV_PATH, &s)) {
		if (!access("/sys/module/singvgpu", F_OK))
			found(d, "device file", MISSING, "Is udev running, is /dev a devtmpfs? "
			      "Else mknod it with the number in /sys/class/misc/singvgpu/dev.",
			      SINGVGPU_DEV_PATH " is not there, though the module is loaded");
		return;
	}
	fd = open(SINGVGPU_DEV_PATH, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		found(d, "device file", WARN, owner_remedy(&s, remedy, sizeof(remedy)),
		      SINGVGPU_DEV_PATH " cannot be opened: %s; calls are carried by memfd",
		      strerror(errno));
		return;
	}
	if (ioctl(fd, SINGVGPU_IOC_GET_INFO, &info))
		found(d, "device file", WARN, "Load the module that belongs to this program.",
		      SINGVGPU_DEV_PATH " does not answer: %s", strerror(errno));
	else if (info.api_version != SINGVGPU_API_VERSION)
		found(d, "device file", WARN, "Load the module that belongs to this program.",
		      "the module speaks version %u, this program %u", info.api_version,
		      SINGVGPU_API_VERSION);
	else
		found(d, "device file", OK, NULL, SINGVGPU_DEV_PATH ", mode %04o, version %u%s",
		      s.st_mode & 07777, info.api_version,
		      info.features & SINGVGPU_FEAT_CURRENT_CPU ? ", hands the CPU over" : "");
	close(fd);
}

static void udev(struct doctor *d)
{
	static const char *const where[] = { "/etc/udev/rules.d", "/usr/lib/udev/rules.d",
					     "/lib/udev/rules.d", "/run/udev/rules.d" };
	struct group *g = getgrnam("singvgpu");
	gid_t groups[256];
	int n = getgroups(256, groups);
	bool member = !geteuid(), rule = false;
	char path[128];

	for (size_t i = 0; i < sizeof(where) / sizeof(where[0]); i++) {
		snprintf(path, sizeof(path), "%s/60-singvgpu.rules", where[i]);
		rule |= !access(path, F_OK);
	}
	for (int i = 0; g && i < n; i++)
		member |= groups[i] == g->gr_gid;
	if (access("/sys/module/singvgpu", F_OK) && !rule && !g)
		return;		/* the module is not in use here */
	if (!rule)
		found(d, "udev rule", WARN, "As root: 'make install' in singvgpu's sources.",
		      "60-singvgpu.rules is not installed");
	else if (!g)
		found(d, "udev rule", WARN, "As root: groupadd --system singvgpu",
		      "there is no group singvgpu");
	else if (!member)
		found(d, "udev rule", WARN, "As root: usermod -aG singvgpu YOU, and log in again.",
		      "you are not in the group singvgpu");
	else
		found(d, "udev rule", OK, NULL, "installed, and you are allowed");
}

/* ------------------------------------------------------------------------ system calls */

static void primitives(struct doctor *d)
{
	int barriers = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0), fd;
	bool waitv = syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0) >= 0 || errno != ENOSYS;

	if (!__rseq_size)
		found(d, "rseq", WARN, "Use glibc 2.35 or newer on Linux 4.18 or newer, without "
		      "GLIBC_TUNABLES=glibc.pthread.rseq=0.",
		      "no restartable sequences: each call takes a lock");
	else
		found(d, "rseq", OK, NULL, "restartable sequences, %u bytes", __rseq_size);
	if (barriers < 0 || !(barriers & MEMBARRIER_CMD_GLOBAL_EXPEDITED) ||
	    !(barriers & MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ))
		found(d, "membarrier", WARN, "Use Linux 5.10 or newer; allow membarrier in the "
		      "container's seccomp profile.",
		      "no expedited membarrier: each call needs a fence");
	else
		found(d, "membarrier", OK, NULL, "global and rseq, expedited");
	if (!waitv)
		found_fatal(d, "futex_waitv", "Use Linux 5.16 or newer; allow futex_waitv in the "
			    "container's seccomp profile.", "this kernel has no futex_waitv");
	else
		found(d, "futex_waitv", OK, NULL, "there");
	fd = syscall(SYS_pidfd_open, getpid(), 0);
	if (fd < 0)
		found_fatal(d, "pidfd", "Use Linux 5.3 or newer; allow pidfd_open in the "
			    "container's seccomp profile.", "pidfd_open: %s", strerror(errno));
	else
		close(fd);
	fd = memfd_create("singvgpu-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, 1 << 20) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		found_fatal(d, "memfd", "Allow memfd_create in the container's seccomp profile.",
			    "memfd_create: %s", strerror(errno));
	else
		found(d, "memfd", OK, NULL, "there, and can be sealed");
	if (fd >= 0)
		close(fd);
}

/* Channels lie from 0x1e0000000000 on, the device window above them. */
static void addresses(struct doctor *d)
{
	static const struct {
		uintptr_t at;
		size_t len;
	} want[] = { { 0x1e0000000000, 1 * GiB }, { 0x200000000000, 64 * GiB } };

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		void *p = mmap((void *)want[i].at, want[i].len, PROT_NONE, MAP_PRIVATE |
			       MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

		if (p == MAP_FAILED || p != (void *)want[i].at) {
			const char *cause = p == MAP_FAILED ? strerror(errno) :
							    "another address was given";

			found_fatal(d, "addresses", "Lift 'ulimit -v'; see whether a sanitizer or "
				    "a sandbox has taken them.",
				    "%llu GiB at %#zx cannot be reserved: %s",
				    (unsigned long long)(want[i].len / GiB), want[i].at, cause);
			return;
		}
		munmap(p, want[i].len);
	}
	found(d, "addresses", OK, NULL, "the device window and the channels' range are free");
}

/* ------------------------------------------------------------------------------ limits */

static void limit(struct doctor *d, const char *name, int which, uint64_t least,
		  const char *remedy, const char *otherwise)
{
	struct rlimit r;
	char text[24];
	bool bytes = which != RLIMIT_NOFILE;

	if (getrlimit(which, &r))
		return;
	if (r.rlim_cur == RLIM_INFINITY)
		strcpy(text, "unlimited");
	else if (bytes)
		show_size(text, r.rlim_cur);
	else
		snprintf(text, sizeof(text), "%llu", (unsigned long long)r.rlim_cur);
	if (r.rlim_cur < least)
		found(d, name, WARN, remedy, "%s: %s", text, otherwise);
	else
		found(d, name, OK, NULL, "%s", text);
}

static void limits(struct doctor *d)
{
	struct rlimit r;

	/* this limit does not bind root, CAP_IPC_LOCK or the soft device */
	if (geteuid() && !access("/dev/nvidiactl", F_OK))
		limit(d, "memlock", RLIMIT_MEMLOCK, 64 << 20, "ulimit -l unlimited (in "
		      "/etc/security/limits.conf: memlock), or CAP_IPC_LOCK.",
		      "pinned host memory may be refused");
	else if (!getrlimit(RLIMIT_MEMLOCK, &r) && r.rlim_cur != RLIM_INFINITY)
		found(d, "memlock", OK, NULL, "%llu KiB, which does not bind %s here",
		      (unsigned long long)r.rlim_cur / 1024,
		      geteuid() ? "the soft device" : "root");
	else
		found(d, "memlock", OK, NULL, "unlimited");
	limit(d, "nofile", RLIMIT_NOFILE, 1024, "ulimit -n 4096",
	      "a job of many ranks may run out of files");
	if (!getrlimit(RLIMIT_AS, &r) && r.rlim_cur != RLIM_INFINITY)
		found(d, "address space", WARN, "ulimit -v unlimited",
		      "limited to %llu GiB; the device window is larger",
		      (unsigned long long)(r.rlim_cur / GiB));
}

static void memory(struct doctor *d)
{
	char text[64], free_text[16], total_text[16];
	unsigned long long total = 0, avail = 0;
	struct statvfs v;
	char line[128];
	FILE *in = fopen("/proc/meminfo", "re");

	while (in && fgets(line, sizeof(line), in))
		if (sscanf(line, "MemTotal: %llu", &total) != 1)
			(void)sscanf(line, "MemAvailable: %llu", &avail);
	if (in)
		fclose(in);
	show_size(free_text, avail << 10);
	show_size(total_text, total << 10);
	found(d, "memory", avail < 1 << 20 ? WARN : OK, avail < 1 << 20 ?
	      "End other programs; give soft devices less with SINGVGPU_SOFT_MEM." : NULL,
	      "%s free of %s", free_text, total_text);
	if (!first_line("/proc/sys/vm/overcommit_memory", text, sizeof(text)))
		found(d, "overcommit", *text == '2' ? WARN : OK, *text == '2' ?
		      "As root: sysctl vm.overcommit_memory=0" : NULL, "mode %s%s", text,
		      *text == '2' ? ": memory that is reserved but not used counts" : "");
	if (statvfs("/dev/shm", &v) || access("/dev/shm", W_OK))
		found(d, "/dev/shm", WARN, "As root: mount -t tmpfs tmpfs /dev/shm; for Docker "
		      "--shm-size=1g.",
		      "not there or not writable: NCCL and PyTorch's loaders want it");
	else
		found(d, "/dev/shm", v.f_frsize * v.f_bavail < 256 << 20 ? WARN : OK,
		      v.f_frsize * v.f_bavail < 256 << 20 ? "As root: mount -o remount,size=1g "
		      "/dev/shm; for Docker --shm-size=1g." : NULL, "%s free",
		      show_size(text, (uint64_t)v.f_frsize * v.f_bavail));
}

void doctor_host(struct doctor *d)
{
	kernel(d);
	module(d);
	device(d);
	udev(d);
	primitives(d);
	addresses(d);
	limits(d);
	memory(d);
}
