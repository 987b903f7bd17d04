// SPDX-License-Identifier: Apache-2.0
/*
 * words.c - reads CRIU's output: errors in its log, which become a sentence; statistics; version
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criu_i.h"

#define LINES_MAX 3
#define OLDEST_MAJOR 4
#define OLDEST_MINOR 2

/* ------------------------------------------------------------------------------- verdict */

/* Remedies for CRIU's errors. */
static const struct {
	const char *says, *remedy;
} remedies[] = {
	{ "io_uring", "the job uses io_uring, which CRIU cannot dump: close it first (for Python's "
	  "asyncio or liburing based loaders choose another backend)" },
	{ "userfaultfd", "the job has a userfaultfd open, which CRIU cannot dump" },
	{ "perf_event", "the job uses perf events, which CRIU cannot dump" },
	{ "pidfd", "the job holds a pidfd of a process that is not its own" },
	{ "external unix", "the job has a socket to a process outside of it: close it" },
	{ "External socket", "the job has a socket to a process outside of it: close it" },
	{ "SysVIPC", "the job uses System V shared memory: POSIX shared memory can be dumped" },
	{ "Can't link remap", "CRIU gives a file whose name is gone the name link_remap.NUMBER in the "
	  "same folder, and a file of that name is there: rename it" },
	{ "Pid ", "a process of this number is there already; wait until it has ended, or start "
	  "the job without a terminal on stdin, which gives it pids of its own" },
	{ "File exists", "a process of the same number may be there already; a job that is started "
	  "without a terminal on stdin has pids of its own" },
	{ "tty params", "the job was started on a terminal: restore it on one" },
	{ "tty to inherit", "the job was started on a terminal: restore it on one" },
	{ "not a terminal", "the job was started on a terminal: restore it on one" },
	{ "has bad size", "a file is not as it was at the checkpoint" },
	{ "has bad mode", "a file is not as it was at the checkpoint" },
	{ "build-id", "a library or program is not the checkpoint's: put that version back" },
	{ "Can't bind inet", "a port of the job is in use, or an address of the job is not one of this "
	  "host (`ss -tuanp` shows who has it)" },
	{ "page-pipe: Can't allocate", "the kernel's overcommit limit forbids CRIU to reserve memory "
	  "that it hardly uses: `sysctl vm.overcommit_memory=1`" },
	{ "Can't open file", "a file that the job had open is missing here" },
	{ "ghost file", "an unlinked file of the job is too large (2 GB)" },
	{ "nf_tables", "CRIU blocks TCP connections with nf_tables, which this kernel lacks: "
	  "modprobe nf_tables" },
};

/* Errors that another try may avoid: nftables' state has changed while CRIU added to it. */
static const char *const transient[] = { "Failed to lock TCP connection" };

static bool has(const char *text, const char *what)
{
	return strcasestr(text, what);
}

/*
 * The text of "(00.012345)      7: Error (criu/files.c:123): text", or of the plugin's
 * "Error: singvgpu: text"; NULL: not an error.
 */
static char *error_of(char *line)
{
	static const char plugin[] = "Error: singvgpu: ";
	char *at = strstr(line, plugin);

	if (at)
		return at + sizeof(plugin) - 1;
	at = strstr(line, "Error (");
	if (!at)
		return NULL;
	at = strstr(at, "): ");
	return at ? at + 3 : NULL;
}

static bool noise(const char *text)
{
	return !strncmp(text, "Dumping FAILED", 14) || !strncmp(text, "Restoring FAILED", 16) ||
	       !strncmp(text, "Can't setup RLIMIT_NOFILE", 25) ||
	       !strncmp(text, "rlimit: Can't setup RLIMIT_NOFILE", 33) ||
	       !strncmp(text, "Can't wait ", 11);
}

/* Appends the log's first errors. Returns their number; *passes: one of them is transient. */
static int quote_log(struct why *said, char *text, bool *passes)
{
	char *line, *save = NULL, *seen[LINES_MAX];
	int n = 0;

	for (line = strtok_r(text, "\n", &save); line && n < LINES_MAX;
	     line = strtok_r(NULL, "\n", &save)) {
		char *error = error_of(line);
		bool again = !error || noise(error);

		for (size_t i = 0; error && i < sizeof(transient) / sizeof(transient[0]); i++)
			*passes |= has(error, transient[i]);
		for (int i = 0; i < n && !again; i++)
			again = !strcmp(seen[i], error);
		if (again)
			continue;
		seen[n++] = error;
		why_add(said, "%s%s", n == 1 ? ": " : "; ", error);
	}
	return n;
}

static void quote_remedy(struct why *said)
{
	for (size_t i = 0; i < sizeof(remedies) / sizeof(remedies[0]); i++) {
		if (!has(said->text, remedies[i].says))
			continue;
		why_add(said, ". %s", remedies[i].remedy);
		return;
	}
}

bool criu_met(const struct run *r)
{
	size_t len;
	char *text = criu_read_file(r->dir, "criu.log", &len), *at;
	bool met;

	at = text ? strstr(text, "): Can't link remap to ") : NULL;
	if (at)
		at[strcspn(at, "\n")] = 0;
	met = at && strstr(at, "File exists");
	free(text);
	return met;
}

int criu_verdict(struct run *r, const char *what, pid_t root)
{
	char suspect[160], *text;
	struct why said = { 0 };
	bool passes = false;
	int quoted = 0;
	size_t len;

	if (WIFEXITED(r->status) && !WEXITSTATUS(r->status) && !r->err)
		return 0;
	if (r->err)
		return why_set(r->why, r->err, "%s", strerror(-r->err));
	if (WIFSIGNALED(r->status))
		return why_set(r->why, -EIO, "criu %s was killed by SIG%s", what,
			       sigabbrev_np(WTERMSIG(r->status)) ?: "?");
	why_add(&said, "criu %s failed", what);
	text = criu_read_file(r->dir, "criu.log", &len);
	if (text)
		quoted = quote_log(&said, text, &passes);
	free(text);
	text = quoted ? NULL : criu_read_file(r->dir, "stderr", &len);
	if (text && *text) {
		text[strcspn(text, "\n")] = 0;
		why_add(&said, ": %s", text);
	}
	free(text);
	if (root && criu_suspect(root, suspect, sizeof(suspect)))
		why_add(&said, "; %s", suspect);
	quote_remedy(&said);
	return why_set(r->why, passes ? -ERESTART : -EIO, "%s", said.text);
}

/* ----------------------------------------------------------------------------- statistics */

static uint64_t varint(const uint8_t **p, const uint8_t *end)
{
	uint64_t v = 0;

	for (int shift = 0; *p < end && shift < 64; shift += 7) {
		uint8_t b = *(*p)++;

		v |= (uint64_t)(b & 0x7f) << shift;
		if (!(b & 0x80))
			break;
	}
	return v;
}

/* stats-dump: magics, length, a protobuf { 1: { 1: freezing_time, 2: frozen_time … } } in us. */
static uint64_t frozen_us(const uint8_t *p, size_t len)
{
	const uint8_t *end = p + len;

	p += 12;
	if (p >= end || *p++ != 0x0a)
		return 0;
	varint(&p, end);
	while (p < end) {
		uint64_t key = varint(&p, end), value = varint(&p, end);

		if (key & 7)
			return 0;
		if (key >> 3 == 2)
			return value;
	}
	return 0;
}

void criu_frozen_time(struct run *r, struct criu_dump *d)
{
	size_t len = 0;
	char *text = criu_read_file(r->dir, "stats-dump", &len);

	d->frozen_ns = text && len > 12 ? 1000 * frozen_us((uint8_t *)text, len) : 0;
	d->criu_ns = d->frozen_ns > r->point_ns ? d->frozen_ns - r->point_ns : 0;
	free(text);
}

/* --------------------------------------------------------------------------------- finding */

/* Runs the program; returns its exit status and the first line that it prints. */
static int ask(const char *path, const char *option, char *line, size_t size)
{
	int out[2], status = -1;
	size_t at = 0;
	ssize_t n;
	pid_t pid;

	if (pipe2(out, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (!pid) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		dup2(null, 0);
		dup2(out[1], 1);
		dup2(out[1], 2);
		unsetenv("LD_PRELOAD");
		unsetenv("LD_LIBRARY_PATH");
		execl(path, path, option, NULL);
		_exit(127);
	}
	close(out[1]);
	while (pid > 0 && at + 1 < size && (n = read(out[0], line + at, size - at - 1)) > 0)
		at += n;
	line[at] = 0;
	close(out[0]);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -EIO;
}

static bool executable(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK);
}

/* Looks for a file beside this program, or some folders above it. */
static bool near_us(char *path, size_t size, const char *what)
{
	char self[PATH_MAX], *slash;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n < 0)
		return false;
	self[n] = 0;
	for (int up = 0; up < 5 && (slash = strrchr(self, '/')); up++) {
		*slash = 0;
		if (snprintf(path, size, "%s/%s", self, what) < (int)size && executable(path))
			return true;
	}
	return false;
}

static bool in_path(char *path, size_t size)
{
	char *list = NULL, *save = NULL;
	bool found = false;

	if (asprintf(&list, "%s:/usr/local/sbin:/usr/sbin:/sbin", getenv("PATH") ?: "") < 0)
		return false;
	for (char *dir = strtok_r(list, ":", &save); dir && !found; dir = strtok_r(NULL, ":", &save))
		found = snprintf(path, size, "%s/criu", dir) < (int)size && executable(path);
	free(list);
	return found;
}

static bool locate(struct criu *c, const char *given)
{
	const char *env = getenv("SINGVGPU_CRIU");

	if (!given && env && *env)
		given = env;
	if (given) {
		snprintf(c->path, sizeof(c->path), "%s", given);
		return executable(c->path);
	}
	return near_us(c->path, sizeof(c->path), "criu/criu") ||
	       near_us(c->path, sizeof(c->path), "libexec/singvgpu/criu/criu") ||
	       in_path(c->path, sizeof(c->path));
}

static void find_plugin(struct criu *c)
{
	static const char *const where[] = { "uproxy/ckpt/plugin/singvgpu_plugin.so",
					     "lib/singvgpu/singvgpu_plugin.so" };

	for (int i = 0; i < 2; i++) {
		if (!near_us(c->plugins, sizeof(c->plugins), where[i]))
			continue;
		*strrchr(c->plugins, '/') = 0;
		return;
	}
	*c->plugins = 0;
}

/* ------------------------------------------------------------------------- the cache */

/*
 * To ask for CRIU's version, and whether it supports this kernel, takes a third of a second, for
 * which a restore waits. So the answer is cached for the same files, boot, capabilities and
 * namespace.
 */
static const char known_path[] = "/run/singvgpu.criu";

static void add_file(FILE *out, const char *path)
{
	struct stat st;

	if (!stat(path, &st))
		fprintf(out, "%s %ju %ju %jd %jd.%09ld %jd.%09ld\n", path, (uintmax_t)st.st_dev,
			(uintmax_t)st.st_ino, (intmax_t)st.st_size, (intmax_t)st.st_mtim.tv_sec,
			st.st_mtim.tv_nsec, (intmax_t)st.st_ctim.tv_sec, st.st_ctim.tv_nsec);
}

static void add_line(FILE *out, const char *path, const char *begins)
{
	FILE *in = fopen(path, "re");
	char line[256];

	while (in && fgets(line, sizeof(line), in))
		if (!strncmp(line, begins, strlen(begins)))
			fputs(line, out);
	if (in)
		fclose(in);
}

/* The cache's key; the caller frees it. The set-up's CRIU is a script beside the program. */
static char *question(const struct criu *c)
{
	char *text = NULL, path[PATH_MAX + 32], ns[64];
	size_t len;
	FILE *out = open_memstream(&text, &len);
	ssize_t n = readlink("/proc/self/ns/user", ns, sizeof(ns));

	if (!out)
		return NULL;
	add_file(out, c->path);
	snprintf(path, sizeof(path), "%.*s/root/usr/sbin/criu",
		 (int)(strrchr(c->path, '/') ? strrchr(c->path, '/') - c->path : 0), c->path);
	add_file(out, path);
	add_line(out, "/proc/sys/kernel/random/boot_id", "");
	add_line(out, "/proc/self/status", "CapEff:");
	add_line(out, "/proc/self/status", "CapBnd:");
	add_line(out, "/proc/self/status", "Seccomp:");
	add_line(out, "/proc/self/status", "TracerPid:");
	fprintf(out, "%.*s\n", n < 0 ? 0 : (int)n, ns);
	return fclose(out) ? NULL : text;
}

static bool known(struct criu *c)
{
	char *asked = question(c), text[2048], *version;
	int fd = open(known_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	struct stat st;
	ssize_t n = -1;

	if (asked && fd >= 0 && !fstat(fd, &st) && !st.st_uid && !(st.st_mode & 022))
		n = read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	text[n < 0 ? 0 : n] = 0;
	version = asked && n > 0 && !strncmp(text, asked, strlen(asked)) ? text + strlen(asked) : "";
	free(asked);
	return sscanf(version, "version %31s\n", c->version) == 1;
}

static void keep_known(const struct criu *c)
{
	char *asked = question(c), fresh[64];
	FILE *out;
	int fd;

	snprintf(fresh, sizeof(fresh), "%s.XXXXXX", known_path);
	fd = asked ? mkostemp(fresh, O_CLOEXEC) : -1;
	out = fd < 0 ? NULL : fdopen(fd, "w");
	if (out) {
		fprintf(out, "%sversion %s\n", asked, c->version);
		if (fclose(out) || rename(fresh, known_path))
			unlink(fresh);
	}
	free(asked);
}

#define REMEDY "; `make setup` in singvgpu's source tree unpacks one into build/criu, and " \
	       "$SINGVGPU_CRIU names another"

int criu_find(struct criu *c, const char *given, struct why *why)
{
	unsigned int major = 0, minor = 0;
	char text[512];
	int rc;

	memset(c, 0, sizeof(*c));
	if (!locate(c, given))
		return why_set(why, -ENOENT, "%s%sCRIU 4.2 or newer is needed" REMEDY,
			       *c->path ? c->path : "", *c->path ? " cannot be executed; " : "");
	if (!geteuid() && known(c)) {
		find_plugin(c);
		return 0;
	}
	rc = ask(c->path, "--version", text, sizeof(text));
	if (rc || sscanf(text, "Version: %31s", c->version) != 1 ||
	    sscanf(c->version, "%u.%u", &major, &minor) < 1) {
		text[strcspn(text, "\n")] = 0;
		return why_set(why, -ENOEXEC, "%s does not say its version (%s)" REMEDY, c->path,
			       text);
	}
	if (major < OLDEST_MAJOR || (major == OLDEST_MAJOR && minor < OLDEST_MINOR))
		return why_set(why, -EOPNOTSUPP, "%s is of version %s, and 4.2 or newer is "
			       "needed" REMEDY, c->path, c->version);
	find_plugin(c);
	if (geteuid())
		return why_set(why, -EPERM, "CRIU needs root to dump and restore processes: use sudo");
	rc = ask(c->path, "check", text, sizeof(text));
	if (rc) {
		text[strcspn(text, "\n")] = 0;
		return why_set(why, -ENOEXEC, "`%s check` finds that this kernel lacks what CRIU "
			       "needs: %s", c->path, error_of(text) ?: text);
	}
	keep_known(c);
	return 0;
}

int criu_key(int fd, char *key, size_t size)
{
	char path[32], text[PATH_MAX];
	struct stat st;
	ssize_t n;

	*key = 0;
	if (fstat(fd, &st))
		return -errno;
	if (S_ISCHR(st.st_mode) && isatty(fd)) {
		snprintf(key, size, "tty[%jx:%jx]", (uintmax_t)st.st_rdev, (uintmax_t)st.st_dev);
		return 0;
	}
	if (!S_ISSOCK(st.st_mode) && !S_ISFIFO(st.st_mode))
		return 0;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, text, sizeof(text) - 1);
	if (n < 0)
		return -errno;
	text[n] = 0;
	/* a named FIFO is a file */
	if (strncmp(text, "pipe:[", 6) && strncmp(text, "socket:[", 8))
		return 0;
	return snprintf(key, size, "%s", text) < (int)size ? 0 : -ENAMETOOLONG;
}
