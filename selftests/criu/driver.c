// SPDX-License-Identifier: Apache-2.0
/*
 * driver.c - starts, dumps, kills and restores clients and proxies; see criu.h for the order
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "criu.h"

/*
 * Only what hangs waits as long. By the clock: the client's timer never lets it, or its proxy, rest,
 * so that something goes on shows nothing.
 */
#define WAIT_S		(getenv("SINGVGPU_VM") ? 180 : 60)
#define PROXY_FD	20	/* where CRIU finds the memfd */

static char top[256];		/* of the tree; the client runs elsewhere */

/* An absolute path below the build folder: CRIU, too, runs elsewhere. */
static void built(char *path, size_t size, const char *what)
{
	const char *build = getenv("SINGVGPU_BUILD") ?: "build";

	snprintf(path, size, "%s%s%s/%s", build[0] == '/' ? "" : top, build[0] == '/' ? "" : "/",
		 build, what);
}

static int complain(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	fputs("# ", stderr);
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
	va_end(ap);
	return -1;
}

static void show_log(struct run *r, const char *name, int lines)
{
	char cmd[256];

	snprintf(cmd, sizeof(cmd), "tail -n %d %s/%s 2>/dev/null | sed 's/^/# %s: /' >&2", lines, r->dir,
		 name, name);
	if (system(cmd))
		complain("no %s", name);
}

void pause_us(uint64_t us)
{
	struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

	nanosleep(&t, NULL);
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

uint64_t run_random(struct run *r, uint64_t below)
{
	r->seed = mix(r->seed, 3);
	return r->seed % below;
}

static void to_hex(char *s, const uint8_t *p)
{
	int i;

	for (i = 0; i < 16; i++)
		sprintf(s + 2 * i, "%02x", p[i]);
}

bool comes_true(const uint32_t *word)
{
	uint64_t end = now_ms() + WAIT_S * 1000;

	while (!__atomic_load_n(word, __ATOMIC_ACQUIRE)) {
		if (now_ms() > end)
			return false;
		pause_us(1000);
	}
	return true;
}

/* ------------------------------------------------------------------------------- processes */

/* The exit status of a child of ours (restored clients are: we are a subreaper). */
static int reap(pid_t pid, int *status)
{
	uint64_t end = now_ms() + WAIT_S * 1000;
	pid_t got;

	while ((got = waitpid(pid, status, WNOHANG)) == 0) {
		if (now_ms() > end)
			return complain("process %d does not end", pid);
		pause_us(1000);
	}
	return got == pid ? 0 : complain("waitpid %d: %s", pid, strerror(errno));
}

int start_proxy(struct run *r, const char *restore)
{
	int ready[2], rc = -EIO;

	if (pipe2(ready, O_CLOEXEC))
		return complain("pipe: %s", strerror(errno));
	r->proxy = fork();
	if (!r->proxy) {
		close(ready[0]);
		proxy_run(r, restore, ready[1]);
	}
	close(ready[1]);
	if (read(ready[0], &rc, sizeof(rc)) != sizeof(rc))
		rc = -EIO;
	close(ready[0]);
	if (!rc)
		return 0;
	reap(r->proxy, &(int){ 0 });
	r->proxy = 0;
	return complain("a proxy does not start: %s", ring_strerror(rc));
}

int kill_proxy(struct run *r)
{
	pid_t pid = r->proxy;

	r->proxy = 0;
	kill(pid, SIGKILL);
	return reap(pid, &(int){ 0 });
}

int command(struct run *r, enum cmd cmd, const char *arg)
{
	int rc = proxy_send(r->dir, cmd, arg, NULL);

	if (rc)
		complain("the proxy's command %d: %s", cmd, ring_strerror(rc));
	return rc;
}

int close_proxy(struct run *r)
{
	pid_t pid = r->proxy;

	if (command(r, CMD_CLOSE, NULL))
		return -1;
	r->proxy = 0;
	return reap(pid, &(int){ 0 });
}

static pid_t new_pid_namespace(void)
{
	struct clone_args a = { .flags = CLONE_NEWPID, .exit_signal = SIGCHLD };

	return syscall(SYS_clone3, &a, sizeof(a));
}

/*
 * In the child: nothing of ours but the channel, as a launcher does it. started is open until the
 * client proper runs.
 */
static void exec_client(struct run *r, int fd, int started)
{
	char path[320], number[16];
	int null = open("/dev/null", O_RDONLY), log, other = -1;

	/* Out of the way of what they become. */
	if (r->other_fd)
		other = fcntl(r->other_fd, F_DUPFD_CLOEXEC, 20);
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 20);
	started = fcntl(started, F_DUPFD_CLOEXEC, 20);
	snprintf(path, sizeof(path), "%s/client.log", r->dir);
	log = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	setsid();
	if (fd < 3 || dup2(null, 0) || dup2(log, 1) != 1 || dup2(log, 2) != 2 || dup2(fd, 3) != 3)
		_exit(127);
	if (other >= 0 && dup2(other, 4) != 4)
		_exit(127);
	close_range(other >= 0 ? 5 : 4, started - 1, 0);
	close_range(started + 1, ~0u, 0);
	if (r->no_rseq)
		setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
	if (chdir(r->dir))
		_exit(127);
	built(path, sizeof(path), "selftests/criu/client");
	snprintf(number, sizeof(number), "%d", 3);
	execl(path, "client", number, r->mode, NULL);
	_exit(127);
}

/* The process that has the channel: the client, or the launcher's child. 0: not there yet. */
static pid_t user_of_channel(struct run *r)
{
	char path[64];
	int child = 0;
	FILE *f;

	if (!strchr(r->mode, 'l'))
		return r->client;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", r->client, r->client);
	f = fopen(path, "r");
	if (!f)
		return 0;
	if (fscanf(f, "%d", &child) != 1)
		child = 0;
	fclose(f);
	return child;
}

int watch_client(struct run *r)
{
	char number[16];
	pid_t pid;
	int i;

	for (i = 0; !(pid = user_of_channel(r)) && i < 1000; i++)
		pause_us(1000);
	snprintf(number, sizeof(number), "%d", pid);
	return command(r, CMD_WATCH, number);
}

int start_client(struct run *r)
{
	int fd = -1, rc, started[2];
	char c;

	rc = proxy_send(r->dir, CMD_CLIENT_FD, NULL, &fd);
	if (rc || fd < 0)
		return complain("no fd for the client: %s", ring_strerror(rc));
	if (pipe2(started, O_CLOEXEC))
		return complain("pipe: %s", strerror(errno));
	r->client = new_pid_namespace();
	if (!r->client)
		exec_client(r, fd, started[1]);
	close(fd);
	close(started[1]);
	while (read(started[0], &c, 1) < 0 && errno == EINTR)
		;
	close(started[0]);
	if (r->client < 0) {
		r->client = 0;
		return complain("clone: %s", strerror(errno));
	}
	return watch_client(r);
}

bool catches(struct run *r, int sig)
{
	uint64_t end = now_ms() + WAIT_S * 1000;
	char path[64], line[256];
	unsigned long mask = 0;
	FILE *f;

	for (;;) {
		snprintf(path, sizeof(path), "/proc/%d/status", user_of_channel(r));
		f = fopen(path, "r");
		while (f && fgets(line, sizeof(line), f))
			sscanf(line, "SigCgt: %lx", &mask);
		if (f)
			fclose(f);
		if (mask & 1ul << (sig - 1))
			return true;
		if (now_ms() > end)
			break;
		pause_us(1000);
	}
	complain("the client does not catch signal %d", sig);
	return false;
}

bool has_file(struct run *r, const char *what, bool want)
{
	uint64_t end = now_ms() + WAIT_S * 1000;
	char path[300], target[128];
	struct dirent *e;
	bool found;
	ssize_t n;
	DIR *dir;

	do {
		found = false;
		snprintf(path, sizeof(path), "/proc/%d/fd", r->client);
		dir = opendir(path);
		while (dir && (e = readdir(dir))) {
			snprintf(path, sizeof(path), "/proc/%d/fd/%.20s", r->client, e->d_name);
			n = readlink(path, target, sizeof(target) - 1);
			target[n < 0 ? 0 : n] = '\0';
			found = found || strstr(target, what);
		}
		if (dir)
			closedir(dir);
		if (found == want)
			return true;
		pause_us(1000);
	} while (now_ms() < end);
	complain("the client's %s is%s there", what, want ? " not" : "");
	return false;
}

int wait_client(struct run *r, int *status)
{
	pid_t pid = r->client;

	if (reap(pid, status))
		return -1;
	r->client = 0;
	return 0;
}

int kill_client(struct run *r)
{
	kill(r->client, SIGKILL);
	return wait_client(r, &(int){ 0 });
}

/* -------------------------------------------------------------------------------- the run */

static const char *no_criu;

void criu_look(void)
{
	if (geteuid())
		no_criu = "CRIU needs root";
	else if (access("build/criu/criu", X_OK))
		no_criu = "no build/criu/criu";
	else if (system("build/criu/criu check >/dev/null 2>&1"))
		no_criu = "criu check fails here";
}

const char *criu_missing(enum ring_backend backend)
{
	if (backend == RING_KMOD && access(SINGVGPU_DEV_PATH, R_OK | W_OK))
		return "no /dev/singvgpu";
	return no_criu;
}

static void plugin_dir(struct run *r, char *path, size_t size)
{
	if (r->backend == RING_KMOD && !r->no_plugin)
		built(path, size, "uproxy/ckpt/plugin");
	else	/* none */
		snprintf(path, size, "%s/plugins", r->dir);
}

static int write_script(struct run *r)
{
	char path[128], self[256] = "";
	FILE *f;

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		return complain("readlink: %s", strerror(errno));
	snprintf(path, sizeof(path), "%s/script", r->dir);
	f = fopen(path, "w");
	if (!f)
		return complain("%s: %s", path, strerror(errno));
	fprintf(f, "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-dump ] || exit 0\n"
		"[ ! -e %s/fail ] || exit 1\nexec %s --script %s\n", r->dir, self, r->dir);
	fchmod(fileno(f), 0700);
	return fclose(f) ? -1 : 0;
}

/* CRIU's action script: the tree is frozen, and dumped. */
int script_main(const char *dir)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/channel", dir);
	return proxy_send(dir, CMD_SAVE, path, NULL) ? 1 : 0;
}

int run_begin(struct run *r, enum ring_backend backend, const char *mode)
{
	const char *tmp = getenv("TMPDIR") ?: "/tmp", *seed = getenv("SINGVGPU_SEED");
	char plugins[80];

	if (!getcwd(top, sizeof(top)))
		return complain("getcwd: %s", strerror(errno));
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	r->backend = backend;
	r->mode = mode;
	snprintf(r->dir, sizeof(r->dir), "%s/criu.XXXXXX", tmp);
	if (!mkdtemp(r->dir))
		return complain("mkdtemp: %s", strerror(errno));
	snprintf(plugins, sizeof(plugins), "%s/plugins", r->dir);
	mkdir(plugins, 0700);
	r->sh = mmap(NULL, sizeof(*r->sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	if (r->sh == MAP_FAILED || getrandom(r->id, 16, 0) != 16 ||
	    getrandom(r->cookie, 16, 0) != 16 || getrandom(&r->seed, 8, 0) != 8)
		return complain("no memory, or no chance");
	if (seed)
		r->seed = strtoull(seed, NULL, 0);
	fprintf(stderr, "# SINGVGPU_SEED=%#lx\n", r->seed);
	return write_script(r) || start_proxy(r, NULL) ? -1 : 0;
}

void run_free(struct run *r)
{
	char cmd[128];

	if (r->client)
		kill_client(r);
	if (r->proxy)
		kill_proxy(r);
	munmap(r->sh, sizeof(*r->sh));
	snprintf(cmd, sizeof(cmd), "rm -rf %s", r->dir);
	if (!getenv("SINGVGPU_KEEP") && system(cmd))
		complain("%s is left", r->dir);
}

int progress(struct run *r)
{
	uint64_t before[STREAMS], end;
	int i;

	memcpy(before, r->sh->st.next, sizeof(before));
	for (i = 0; i < STREAMS; i++) {
		if (i % 2 && strchr(r->mode, 'q'))	/* a handler's, which nobody calls */
			continue;
		end = now_ms() + WAIT_S * 1000;
		while (__atomic_load_n(&r->sh->st.next[i], __ATOMIC_RELAXED) == before[i] &&
		       now_ms() < end && !r->sh->wrong[0])
			pause_us(500);
		if (r->sh->st.next[i] == before[i] || r->sh->wrong[0])
			break;
	}
	if (i == STREAMS)
		return 0;
	show_log(r, "client.log", 5);
	if (r->sh->wrong[0])
		return complain("%s", r->sh->wrong);
	return complain("stream %d stands still at %lu", i, before[i]);
}

/* ----------------------------------------------------------------------------------- CRIU */

/* The cookie, as r->how says: in the environment, or in a file that it names. */
static void give_cookie(struct run *r)
{
	char id[33], cookie[33], path[96];
	FILE *f;

	to_hex(id, r->id);
	to_hex(cookie, r->cookie);
	unsetenv("SINGVGPU_COOKIE");
	unsetenv("SINGVGPU_COOKIES");
	if (r->how == COOKIE_NONE)
		return;
	if (r->how == COOKIE_WRONG)
		cookie[5] = cookie[5] == '0' ? '1' : '0';
	if (r->how <= COOKIE_WRONG) {
		setenv("SINGVGPU_COOKIE", cookie, 1);
		return;
	}
	snprintf(path, sizeof(path), "%s/cookies", r->dir);
	f = fopen(path, "w");
	if (!f)
		return;
	fprintf(f, "%032d %032d\n", 5, 6);
	if (r->how == COOKIE_FILE)
		fprintf(f, "%s %s\n", id, cookie);
	if (r->how == COOKIE_FILE_BROKEN)
		fprintf(f, "%s%s\n", id, cookie);
	fclose(f);
	setenv("SINGVGPU_COOKIES", path, 1);
}

/* Runs CRIU with the arguments; its status. */
static int criu(struct run *r, char **argv, int fd)
{
	int status = -1;
	pid_t pid = fork();

	if (!pid) {
		give_cookie(r);
		/*
		 * Hardware breakpoints make the kernel patch its scheduler's code while it runs, which
		 * QEMU 7.2 emulates wrongly, about once in a hundred times: single-step instead
		 * (FI_NO_BREAKPOINTS).
		 */
		if (getenv("SINGVGPU_VM"))
			setenv("CRIU_FAULT", "130", 1);
		if (fd >= 0 && dup2(fd, PROXY_FD) != PROXY_FD)
			_exit(127);
		execv("build/criu/criu", argv);
		_exit(127);
	}
	if (reap(pid, &status)) {
		kill(pid, SIGKILL);
		return -1;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void image_dir(struct run *r, char *path, size_t size)
{
	snprintf(path, size, "%s/%u", r->dir, r->dumps);
}

int dump(struct run *r, unsigned int flags)
{
	char images[96], script[96], plugins[320], pid[16], log[96];
	char *argv[] = { "criu", "dump", "-v4", "-t", pid, "-D", images, "-o", log, "-L", plugins,
			 "--action-script", script,
			 flags & DUMP_LEAVE ? "--leave-running" : NULL, NULL };
	int status, rc;

	r->dumps++;
	image_dir(r, images, sizeof(images));
	mkdir(images, 0700);
	plugin_dir(r, plugins, sizeof(plugins));
	snprintf(script, sizeof(script), "%s/script", r->dir);
	snprintf(log, sizeof(log), "%s/dump.log", r->dir);
	snprintf(pid, sizeof(pid), "%d", r->client);
	rc = criu(r, argv, -1);
	if (flags & DUMP_FAILS)
		return rc > 0 ? 0 : complain("CRIU dumped what it should not: %d", rc);
	if (rc) {
		show_log(r, "dump.log", 30);
		return complain("criu dump: %d", rc);
	}
	return flags & DUMP_LEAVE ? 0 : wait_client(r, &status);
}

/* CRIU's status. */
static int try_restore(struct run *r)
{
	char images[96], plugins[320], log[96], pidfile[96], inherit[96], hex[33];
	char *argv[] = { "criu", "restore", "-v4", "-d", "-D", images, "-o", log, "-L", plugins,
			 "--pidfile", pidfile,
			 r->backend == RING_MEMFD ? "--inherit-fd" : NULL, inherit, NULL };
	int fd = -1, rc;
	FILE *f;

	image_dir(r, images, sizeof(images));
	plugin_dir(r, plugins, sizeof(plugins));
	snprintf(log, sizeof(log), "%s/restore.log", r->dir);
	snprintf(pidfile, sizeof(pidfile), "%s/pid", r->dir);
	to_hex(hex, r->id);
	snprintf(inherit, sizeof(inherit), "fd[%d]:/memfd:singvgpu-%s", PROXY_FD, hex);
	unlink(pidfile);
	if (r->backend == RING_MEMFD && proxy_send(r->dir, CMD_CLIENT_FD, NULL, &fd))
		return -1;
	rc = criu(r, argv, fd);
	if (fd >= 0)
		close(fd);
	if (rc)
		return rc;
	f = fopen(pidfile, "r");
	if (!f || fscanf(f, "%d", &r->client) != 1)
		rc = -1;
	if (f)
		fclose(f);
	return rc;
}

int restore(struct run *r)
{
	int rc = try_restore(r);

	if (rc) {
		show_log(r, "restore.log", 30);
		return complain("criu restore: %d", rc);
	}
	return 0;
}

bool log_says(struct run *r, const char *log, const char *what)
{
	char path[96], line[1024];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", r->dir, log);
	f = fopen(path, "r");
	while (f && !found && fgets(line, sizeof(line), f))
		found = strstr(line, what);
	if (f)
		fclose(f);
	if (!found) {
		show_log(r, log, 30);
		complain("%s does not say '%s'", log, what);
	}
	return found;
}

int restore_fails(struct run *r, const char *why)
{
	int rc = try_restore(r);

	if (!rc)
		return complain("CRIU restored what it should not");
	return log_says(r, "restore.log", why) ? 0 : -1;
}

/* ------------------------------------------------------------------------------- a whole move */

/* A moment at which all kinds of things are under way. */
static int before_dump(struct run *r, unsigned int flags)
{
	if (flags & MOVE_FULL) {
		if (command(r, CMD_PAUSE, NULL))
			return -1;
		pause_us(200000);
		return 0;
	}
	if (flags & MOVE_DRAIN) {
		if (command(r, CMD_FREEZE, NULL))
			return -1;
		if (run_random(r, 2) && command(r, CMD_PAUSE, NULL))
			return -1;
	} else if (run_random(r, 3)) {
		if (command(r, CMD_PAUSE, NULL))
			return -1;
	}
	pause_us(run_random(r, 3) ? run_random(r, 500) : run_random(r, 20000));
	return 0;
}

/* Dumped and left running, it goes on; then it is lost together with its proxy. */
static int leave(struct run *r, unsigned int flags)
{
	if (dump(r, DUMP_LEAVE) || command(r, flags & MOVE_DRAIN ? CMD_THAW : CMD_GO, NULL) ||
	    progress(r))
		return -1;
	return kill_client(r);
}

int renew_proxy(struct run *r)
{
	char path[96];

	snprintf(path, sizeof(path), "%s/channel", r->dir);
	r->generation++;
	return start_proxy(r, path);
}

int run_move(struct run *r, unsigned int flags)
{
	if (before_dump(r, flags) || (flags & MOVE_LEAVE ? leave(r, flags) : dump(r, 0)))
		return -1;
	if (r->sh->wrong[0])
		return complain("%s", r->sh->wrong);
	if (flags & MOVE_KILL ? kill_proxy(r) : close_proxy(r))
		return -1;
	if (renew_proxy(r) || restore(r) || watch_client(r))
		return -1;
	pause_us(run_random(r, 2) * run_random(r, 5000));
	return command(r, CMD_THAW, NULL) || progress(r) ? -1 : 0;
}

int run_end(struct run *r)
{
	int status = -1;

	kill(r->client, SIGTERM);
	if (wait_client(r, &status))
		return -1;
	if (status) {
		show_log(r, "client.log", 5);
		return complain("the client ended with %#x", status);
	}
	if (!comes_true(&r->sh->ended))
		return complain("the client's account did not come");
	if (r->sh->wrong[0])
		return complain("%s", r->sh->wrong);
	if (r->sh->end.generation != r->generation)
		return complain("the client saw generation %u, not %u", r->sh->end.generation,
				r->generation);
	return 0;
}
