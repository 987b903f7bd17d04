// SPDX-License-Identifier: Apache-2.0
/*
 * words.c - reads CRIU's output: errors in its log, which become a sentence; statistics; version
 */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
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
#define TICK_MS 20
#define FIND_NS 60000000000ull	/* for CRIU to say what it is */
#define OLDEST_MAJOR 4
#define OLDEST_MINOR 2

/* ------------------------------------------------------------------------------- verdict */

#define ENDED	"a process of the job ended while CRIU was letting the job go: restore it again"
#define MOVED	"its processes began and ended faster than CRIU could stop them: another try may succeed"
#define OUTSIDE	"the job has a socket to a process outside of it: close it"
#define TTY	"the job was started on a terminal: restore it on one"
#define CHANGED	"a file is not as it was at the checkpoint"
#define BUILD	"a library or program is not the checkpoint's: put that version back"
#define RING	"the job uses io_uring, which CRIU cannot dump: close it first (for Python's asyncio or " \
		"liburing based loaders choose another backend)"
#define FAULTS	"the job has a userfaultfd open, which CRIU cannot dump"
#define PERF	"the job uses perf events, which CRIU cannot dump"
#define PIDFD	"the job holds a pidfd of a process that is not its own"

/*
 * Remedies for errors of CRIU 4.2 and for what criu_suspect() says: fnmatch(3) patterns of a whole error, without the
 * name of CRIU's part before it ("tty: "). An error may quote any path, so a pattern has the error's own first words.
 */
static const struct {
	const char *error, *remedy;
} remedies[] = {
	{ "Can't dump file * of that type * anon_inode:[[]io_uring])", RING },
	{ "Unknown shit * (anon_inode:[[]io_uring])", RING },
	{ "process * has anon_inode:[[]io_uring] open", RING },
	{ "Can't dump file * of that type * anon_inode:[[]userfaultfd])", FAULTS },
	{ "process * has anon_inode:[[]userfaultfd] open", FAULTS },
	{ "Can't dump file * of that type * anon_inode:[[]perf_event])", PERF },
	{ "Unknown shit * (anon_inode:[[]perf_event])", PERF },
	{ "process * has anon_inode:[[]perf_event] open", PERF },
	{ "pidfd pid * is not a part of process tree*", PIDFD },
	{ "Can't dump file * of that type * anon_inode:[[]pidfd])", PIDFD },
	{ "process * has anon_inode:[[]pidfd] open", PIDFD },
	{ "process * has pidfd:* open", PIDFD },
	{ "External socket is used. *", OUTSIDE },
	{ "External socket found in image. *", OUTSIDE },
	{ "Can't dump half of stream unix connection. *", OUTSIDE },
	{ "Can't dump name-less external socket.*", OUTSIDE },
	{ "Task * with SysVIPC shmem map *", "the job uses System V shared memory: POSIX shared memory can be "
	  "dumped" },
	{ "Can't link remap to *: File exists", "CRIU gives a file whose name is gone the name link_remap.NUMBER in "
	  "the same folder, and a file of that name is there: rename it" },
	{ "Can't link remap to *: File name too long", "a file whose name is gone was in a folder with a path of more "
	  "than 4096 bytes: close that file, or use a shorter path" },
	{ "Can't fork for *: File exists", "a process of this number is there already; wait until it has ended, or "
	  "start the job without a terminal on stdin, which gives it pids of its own" },
	{ "Pid * do not match expected *", "a process of this number is there already; wait until it has ended, or "
	  "start the job without a terminal on stdin, which gives it pids of its own" },
	{ "Can't set tty params on *", TTY },
	{ "Can't get tty params on *", TTY },
	{ "Don't have tty to inherit session from*", TTY },
	{ "File * has bad size * (expect *)", CHANGED },
	{ "File * has bad mode * (expect *)", CHANGED },
	{ "File * has bad build-ID*", BUILD },
	{ "Build-ID (For validation) could not be obtained for file *", BUILD },
	{ "Can't bind inet socket *: Address already in use", "a port of the job is in use (`ss -tuanp` shows who "
	  "has it)" },
	{ "Can't bind inet socket *: Cannot assign requested address", "an address of the job is not one of this "
	  "host" },
	{ "Can't allocate * bytes", "the kernel's overcommit limit forbids CRIU to reserve memory that it hardly "
	  "uses: `sysctl vm.overcommit_memory=1`" },
	{ "Can't open file *: No such file or directory", "a file that the job had open is missing here" },
	{ "Can't dump ghost file * of * size, increase limit", "an unlinked file of the job is too large (2 GB)" },
	{ "Locking connection failed using nftables", "CRIU blocks TCP connections with nf_tables; if this kernel "
	  "lacks it: modprobe nf_tables" },
	{ "CRIU was built without libnftables support", "CRIU blocks TCP connections with nf_tables: use a CRIU that "
	  "has it (--criu)" },
	{ "Unable to detach *: No such process", ENDED },
	{ "Can't attach to *: No such process", ENDED },
	{ "Can't interrupt the * task: No such process", ENDED },
	{ "Can't catch all tasks", ENDED },
	{ "Can't stop all tasks on rt_sigreturn", ENDED },
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

/* What follows from another error, and what CRIU says of a host without /dev/net/tun before it does anything. */
static bool noise(const char *text)
{
	return !strncmp(text, "Dumping FAILED", 14) || !strncmp(text, "Restoring FAILED", 16) ||
	       !strncmp(text, "Can't setup RLIMIT_NOFILE", 25) ||
	       !strncmp(text, "rlimit: Can't setup RLIMIT_NOFILE", 33) ||
	       !strncmp(text, "Killing processes because of failure on restore", 47) ||
	       !strncmp(text, "Can't wait ", 11) || !strncmp(text, "tun: Unable to create tun", 25);
}

/* The remedy for an error, or NULL. */
static const char *remedy_of(const char *error)
{
	size_t part = strspn(error, "abcdefghijklmnopqrstuvwxyz-0123456789");

	if (!strncmp(error + part, ": ", 2))
		error += part + 2;
	for (size_t i = 0; i < sizeof(remedies) / sizeof(remedies[0]); i++)
		if (!fnmatch(remedies[i].error, error, 0))
			return remedies[i].remedy;
	return NULL;
}

/* What CRIU's log says: its first errors, appended to a sentence. */
struct quote {
	int n, ended;		/* ended: that speak of a process which is no more */
	bool passes;		/* one of them is transient */
	const char *remedy;	/* for the first that has one, or NULL */
};

static void quote_log(struct why *said, char *text, struct quote *q)
{
	char *line, *save = NULL, *seen[LINES_MAX];
	const char *remedy;

	for (line = strtok_r(text, "\n", &save); line && q->n < LINES_MAX;
	     line = strtok_r(NULL, "\n", &save)) {
		char *error = error_of(line);
		bool again = !error || noise(error);

		for (size_t i = 0; error && i < sizeof(transient) / sizeof(transient[0]); i++)
			q->passes |= has(error, transient[i]);
		for (int i = 0; i < q->n && !again; i++)
			again = !strcmp(seen[i], error);
		if (again)
			continue;
		seen[q->n++] = error;
		remedy = remedy_of(error);
		q->ended += remedy && !strcmp(remedy, ENDED);
		q->remedy = q->remedy ?: remedy;
		why_add(said, "%s%s", q->n == 1 ? ": " : "; ", error);
	}
}

/* CRIU has written nothing into its log: the first line that it, or a script that starts it, has printed. */
static void quote_stderr(const struct run *r, struct why *said, struct quote *q)
{
	size_t len;
	char *text = criu_read_file(r->dir, "stderr", &len);

	if (text && *text) {
		text[strcspn(text, "\n")] = 0;
		why_add(said, ": %s", text);
		q->remedy = remedy_of(text);
	}
	free(text);
}

bool criu_has_failed(struct run *r)
{
	size_t len;
	char *text = criu_read_file(r->dir, "criu.log", &len);
	bool failed = text && (strstr(text, "): Restoring FAILED") ||
			       strstr(text, "): Killing processes because of failure on restore"));

	free(text);
	return failed;
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

bool criu_empty(const struct run *r)
{
	size_t len;
	char *text = criu_read_file(r->dir, "criu.log", &len);
	bool empty = text && strstr(text, "): Unable to convert the notify thread id");

	free(text);
	return empty;
}

int criu_verdict(struct run *r, const char *what, pid_t root)
{
	struct why said = { 0 };
	struct quote q = { 0 };
	char suspect[160], *text;
	bool gave_up;
	size_t len;

	if (r->err)
		return why_set(r->why, r->err, "%s", strerror(-r->err));
	if (r->gone || (WIFEXITED(r->status) && !WEXITSTATUS(r->status)))
		return 0;
	if (WIFSIGNALED(r->status) && !r->late && !r->failed_at)
		return why_set(r->why, -EIO, "criu %s was killed by SIG%s", what,
			       sigabbrev_np(WTERMSIG(r->status)) ?: "?");
	if (r->late)
		why_add(&said, "CRIU has restored the processes, and does not let them go");
	else
		why_add(&said, "criu %s failed", what);
	text = criu_read_file(r->dir, "criu.log", &len);
	gave_up = text && strstr(text, "): Dumping FAILED");
	if (text)
		quote_log(&said, text, &q);
	free(text);
	if (!q.n)
		quote_stderr(r, &said, &q);
	if (!q.remedy && root && criu_suspect(root, suspect, sizeof(suspect))) {
		why_add(&said, "; %s", suspect);
		q.remedy = remedy_of(suspect);
	} else if (gave_up && !r->heard && q.ended == q.n) {
		/* CRIU looks for processes to stop until it finds no new ones, and gives up after some looks without an error. */
		q.passes = true;
		q.remedy = NULL;
		why_add(&said, "%s%s", q.n ? ". " : ": ", MOVED);
	}
	if (!q.remedy && r->late)
		q.remedy = "another try to restore it may succeed";
	if (q.remedy)
		why_add(&said, ". %s", q.remedy);
	return why_set(r->why, r->late ? -ETIMEDOUT : q.passes ? -ERESTART : -EIO, "%s", said.text);
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

static bool is_over(pid_t pid)
{
	siginfo_t end = { 0 };

	return waitid(P_PID, pid, &end, WEXITED | WNOHANG | WNOWAIT) || end.si_pid;
}

/* Reads what the process writes into a pipe, up to size and until it ends, or closes it. -ETIMEDOUT. */
static int read_answer(pid_t pid, int fd, char *line, size_t size, uint64_t end_ns)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	bool over = false;
	size_t at = 0;
	ssize_t n = 1;

	for (*line = 0; n > 0 && at + 1 < size; line[at] = 0) {
		/* A child of its own may keep the pipe open. */
		if (poll(&p, 1, over ? 0 : TICK_MS) > 0) {
			n = read(fd, line + at, size - at - 1);
			at += n > 0 ? n : 0;
			continue;
		}
		if (over)
			break;
		over = is_over(pid);
		if (!over && criu_now() >= end_ns)
			return -ETIMEDOUT;
	}
	return 0;
}

/* Runs the program; returns its exit status and the first line that it prints. -ETIMEDOUT: it does not end. */
static int ask(const char *path, const char *option, char *line, size_t size, uint64_t end_ns)
{
	int out[2], status = -1, err = 0;
	pid_t pid;

	if (pipe2(out, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (!pid) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		setsid();	/* for kill() below, and that of CRIU's own children */
		dup2(null, 0);
		dup2(out[1], 1);
		dup2(out[1], 2);
		unsetenv("LD_PRELOAD");
		unsetenv("LD_LIBRARY_PATH");
		execl(path, path, option, NULL);
		_exit(127);
	}
	close(out[1]);
	*line = 0;
	if (pid > 0)
		err = read_answer(pid, out[0], line, size, end_ns);
	close(out[0]);
	while (pid > 0 && !err && !is_over(pid)) {
		usleep(1000);
		err = criu_now() >= end_ns ? -ETIMEDOUT : 0;
	}
	/* With what it leaves: CRIU has children that stop themselves. */
	if (pid > 0)
		kill(-pid, SIGKILL);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return err ?: WIFEXITED(status) ? WEXITSTATUS(status) : -EIO;
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
	return criu_find_until(c, given, 0, why);
}

static int silent(const struct criu *c, struct why *why)
{
	return why_set(why, -ETIMEDOUT, "%s does not answer in time", c->path);
}

int criu_find_until(struct criu *c, const char *given, uint64_t end_ns, struct why *why)
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
	if (!end_ns)
		end_ns = criu_now() + FIND_NS;
	rc = ask(c->path, "--version", text, sizeof(text), end_ns);
	if (rc == -ETIMEDOUT)
		return silent(c, why);
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
	rc = ask(c->path, "check", text, sizeof(text), end_ns);
	if (rc == -ETIMEDOUT)
		return silent(c, why);
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
