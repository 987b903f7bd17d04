// SPDX-License-Identifier: Apache-2.0
/*
 * files_watch.c - real programs under libsingvgpu-files.so, with fanotify as the oracle
 *
 * The test has its own tmpfs and mount namespace. For each program fanotify reports what was made,
 * written, renamed, removed and changed there; each of these paths must be in the log. Folders are
 * tracked by file handle from the event that made them, so that names are those at the time of the
 * event, not of its reading.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef FAN_REPORT_TARGET_FID
#define FAN_REPORT_TARGET_FID 0x1000
#endif
#ifndef FAN_RENAME
#define FAN_RENAME 0x10000000
#define FAN_EVENT_INFO_TYPE_OLD_DFID_NAME 10
#define FAN_EVENT_INFO_TYPE_NEW_DFID_NAME 12
#endif

#define MASK (FAN_CREATE | FAN_DELETE | FAN_RENAME | FAN_MODIFY | FAN_CLOSE_WRITE | FAN_ATTRIB)
#define MAX 20000

static const struct {
	const char *what, *needs, *command;
	enum { LOGS, QUIET, BLIND } how;	/* changes nothing; is not under us: something is missing */
} programs[] = {
	{ "each function of libc, threads and children", "", "$EACH", LOGS },
	{ "the same in another folder", "", "mkdir folder; mv old_* folder; $EACH folder", LOGS },
	{ "python", "python3", "python3 $PY", LOGS },
	{ "sqlite", "sqlite3",
	  "sqlite3 a.db 'pragma journal_mode=wal; create table t(x); insert into t values(1);';"
	  "sqlite3 a.db 'insert into t values(2); vacuum;'", LOGS },
	{ "cp, mv, ln, rm, touch, truncate, install, chmod", "",
	  "mkdir -p a/b/c; echo 1 >a/b/x; cp -a a d; cp --sparse=always a/b/x y; ln y z; ln -s y l;"
	  "echo 2 >>l; mv d/b e; touch -d 2001-01-01 e/x; truncate -s 1M y; install -D y i/j/k;"
	  "chmod -R g-w a; rm -r a; mv -T e d/e; echo 3 >d/e/x; cp y l; mktemp t.XXXXXX;"
	  "mktemp -d t.XXXXXX; mkfifo f; rmdir t.*/", LOGS },
	{ "dd", "", "dd if=/dev/zero of=a bs=4k count=9 seek=7; dd if=/dev/zero of=a bs=1 count=1 "
	  "conv=notrunc,fsync", LOGS },
	{ "tar", "", "mkdir a; echo 1 >a/x; ln a/x a/h; ln -s x a/l; tar cf a.tar a; rm -r a;"
	  "tar xpf a.tar; gzip a.tar; tar xzf a.tar.gz --one-top-level=b", LOGS },
	{ "sed, perl, awk, sort, split, patch", "",
	  "seq 1000 >a; sed -i s/1/2/ a; perl -pi.bak -e 's/3/4/' a; awk '{print >\"b\" $1%3}' a;"
	  "sort -S 10k -T . a -o a; split -l 100 a c", LOGS },
	{ "gcc, make, ar", "gcc",
	  "printf 'int main(void){return 0;}' >a.c; printf 'a: a.c\\n\\tgcc -g -o a a.c\\n"
	  "\\tgcc -c a.c -o a.o\\n\\tar rcs a.a a.o\\n\\tstrip a\\n' >Makefile; make; ./a", LOGS },
	{ "git", "git",
	  "git init -q a; cd a; git config user.email a@b; git config user.name a; echo 1 >x;"
	  "git add x; git commit -qm x; git checkout -qb y; echo 2 >>x; git commit -qam y;"
	  "git gc -q; git worktree add -q ../b; git checkout -q @{-1}", LOGS },
	{ "bash: redirections, a subshell, a pipeline, noclobber", "bash",
	  "bash -c 'echo 1 >a; (echo 2 >>a; exec 3<>b; echo 3 >&3) | cat >c; set -C; echo >d;"
	  "cat <<<here >|d; echo 5 &>e'", LOGS },
	{ "programs that only read", "", "cat /etc/passwd | sort; ls -lR; test -w old_chmod;"
	  "mkdir -p .; rm -f nosuch; echo x >/dev/null 2>&1; mkdir . 2>/dev/null; id", QUIET },
	{ "a program without us, which the oracle must notice", "", "env -u LD_PRELOAD sh -c "
	  "'echo 1 >a'", BLIND },
};

static int point, failures, fan;
static char *home, root[64], build[4096];

static void judge(bool ok, const char *what, const char *more)
{
	printf("%sok %d - %s%s%s\n", ok ? "" : "not ", ++point, what, *more ? ": " : "", more);
	failures += !ok;
}

/* ---------------------------------------------------------------------- what the kernel saw */

static struct folder {
	unsigned char handle[160];
	size_t len;
	char *path;
} folder[MAX];
static int folders;
static char *seen[MAX];
static uint64_t seen_mask[MAX];
static int n_seen;

static size_t handle_len(const struct file_handle *h)
{
	return sizeof(*h) + h->handle_bytes;
}

static struct folder *folder_of(const struct file_handle *h)
{
	for (int i = folders; i--;)
		if (folder[i].len == handle_len(h) && !memcmp(folder[i].handle, h, folder[i].len))
			return &folder[i];
	return NULL;
}

static void folder_is(const struct file_handle *h, const char *path)
{
	struct folder *f = folder_of(h);

	if (!f) {
		f = &folder[folders++];
		f->len = handle_len(h);
		memcpy(f->handle, h, f->len);
	}
	f->path = strdup(path);
}

static void folder_moves(const char *from, const char *to)
{
	size_t n = strlen(from);
	char path[8192];

	for (int i = 0; i < folders; i++)
		if (!strncmp(folder[i].path, from, n) &&
		    (!folder[i].path[n] || folder[i].path[n] == '/')) {
			snprintf(path, sizeof(path), "%s%s", to, folder[i].path + n);
			folder[i].path = strdup(path);
		}
}

static void saw(const char *path, uint64_t mask)
{
	for (int i = 0; i < n_seen; i++)
		if (!strcmp(seen[i], path)) {
			seen_mask[i] |= mask;
			return;
		}
	seen[n_seen] = strdup(path);
	seen_mask[n_seen++] = mask;
}

static bool path_of(const struct fanotify_event_info_fid *info, char *path, size_t size)
{
	const struct file_handle *h = (const void *)info->handle;
	const char *name = (const char *)h + handle_len(h);
	const struct folder *f = folder_of(h);

	if (!f)
		return false;
	snprintf(path, size, "%s%s%s", f->path, strcmp(name, ".") ? "/" : "",
		 strcmp(name, ".") ? name : "");
	return true;
}

/* One event; false if it is about a folder that nobody has told us of. */
static bool event(const struct fanotify_event_metadata *m)
{
	const struct file_handle *target = NULL;
	char name[4096] = "", from[4096] = "", to[4096] = "";
	bool known = true;

	for (size_t at = m->metadata_len; at < m->event_len;) {
		const struct fanotify_event_info_fid *info = (const void *)((const char *)m + at);

		switch (info->hdr.info_type) {
		case FAN_EVENT_INFO_TYPE_FID:
			target = (const void *)info->handle;
			break;
		case FAN_EVENT_INFO_TYPE_DFID_NAME:
			known &= path_of(info, name, sizeof(name));
			break;
		case FAN_EVENT_INFO_TYPE_OLD_DFID_NAME:
			known &= path_of(info, from, sizeof(from));
			break;
		case FAN_EVENT_INFO_TYPE_NEW_DFID_NAME:
			known &= path_of(info, to, sizeof(to));
			break;
		}
		at += info->hdr.len;
	}
	if (*name && (m->mask & FAN_ONDIR) && (m->mask & FAN_CREATE) && target)
		folder_is(target, name);
	if (*from && *to && (m->mask & FAN_ONDIR))
		folder_moves(from, to);
	if (*name)
		saw(name, m->mask);
	if (*from)
		saw(from, m->mask);
	if (*to)
		saw(to, m->mask);
	return known && !(m->mask & FAN_Q_OVERFLOW);
}

static bool read_events(void)
{
	static char buf[1 << 20] __attribute__((aligned(8)));
	bool known = true;
	ssize_t n;

	while ((n = read(fan, buf, sizeof(buf))) > 0) {
		struct fanotify_event_metadata *m = (void *)buf;

		for (; FAN_EVENT_OK(m, n); m = FAN_EVENT_NEXT(m, n))
			known &= event(m);
	}
	return known;
}

/* --------------------------------------------------------------------------------- the log */

static bool logged(const char *log, size_t size, const char *path)
{
	size_t len = strlen(path);

	for (size_t at = 0; at < size; at += strlen(log + at) + 1) {
		const char *r = log + at;

		if (*r && !strcmp(r + 1, path))
			return true;
		/* Below a folder that has been moved with all in it. */
		if (*r == 'T' && !strncmp(r + 1, path, strlen(r + 1)) && path[strlen(r + 1)] == '/' &&
		    len > strlen(r + 1))
			return true;
	}
	return false;
}

static void compare(const char *what, const char *path, int how)
{
	static char log[1 << 22];
	int missing = 0, records = 0;
	char more[256];
	FILE *f = fopen(path, "re");
	size_t size = f ? fread(log, 1, sizeof(log) - 1, f) : 0;

	if (f)
		fclose(f);
	log[size] = '\0';
	for (int i = 0; i < n_seen; i++) {
		/* The kernel's name for a file that never had one. */
		bool unnamed = strrchr(seen[i], '/')[1] == '#';

		if (!unnamed && !logged(log, size, seen[i]) && strcmp(seen[i], root)) {
			if (missing++ < 20)
				printf("# not in the log: %s (mask %#llx)\n", seen[i],
				       (unsigned long long)seen_mask[i]);
		}
	}
	for (size_t at = 0; at < size; at += strlen(log + at) + 1) {
		records += !!log[at];
		if (how == QUIET && log[at])
			printf("# logged: %s\n", log + at);
	}
	snprintf(more, sizeof(more), "%d paths changed, %d records%s", n_seen, records,
		 missing ? ", some paths are not in the log" : "");
	judge(how == BLIND ? missing : !missing && (how == QUIET ? !records : n_seen && records),
	      what, more);
}

/* ----------------------------------------------------------------------------------- runs */

static bool have(const char *program)
{
	char cmd[256];

	snprintf(cmd, sizeof(cmd), "command -v %s >/dev/null", program);
	return !*program || !system(cmd);
}

/* What is there before: for functions that change files of others. */
static void old_files(void)
{
	static const char *const old[] = { "by_fd", "by_fd_2", "truncate", "truncate64", "chmod",
		"fchmodat", "chown", "lchown", "fchownat", "utime", "utimes", "lutimes", "futimesat",
		"utimensat", "lchmod", "setxattr", "lsetxattr" };
	char name[64];

	for (size_t i = 0; i < sizeof(old) / sizeof(old[0]); i++) {
		snprintf(name, sizeof(name), "old_%s", old[i]);
		close(open(name, O_CREAT | O_WRONLY, 0644));
		if (truncate(name, 10))
			perror(name);
	}
}

static void child(const char *log, const char *command)
{
	char text[8192];
	int null = open("/dev/null", O_RDWR);

	dup2(null, 0);
	dup2(null, 1);
	dup2(null, 2);
	snprintf(text, sizeof(text), "%s/lib/libsingvgpu-files.so", build);
	setenv("LD_PRELOAD", text, 1);
	setenv("SINGVGPU_FILES", log, 1);
	setenv("TMPDIR", root, 1);
	setenv("HOME", root, 1);
	snprintf(text, sizeof(text), "%s/selftests/ckpt/files-each", build);
	setenv("EACH", text, 1);
	snprintf(text, sizeof(text), "%s/selftests/ckpt/files/files_each.py", home);
	setenv("PY", text, 1);
	setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
	execl("/bin/sh", "sh", "-c", command, NULL);
	_exit(127);
}

static void run(int i, const char *logs)
{
	char log[128], dir[128], more[64];
	bool known;
	int status;
	pid_t pid;

	snprintf(log, sizeof(log), "%s/%d", logs, i);
	mkdir(log, 0700);
	strcat(log, "/files");
	close(open(log, O_CREAT | O_WRONLY, 0600));
	snprintf(dir, sizeof(dir), "%s/%d", root, i);
	mkdir(dir, 0755);
	if (chdir(dir))
		perror(dir);
	old_files();
	read_events();
	n_seen = 0;
	fflush(stdout);
	pid = fork();
	if (!pid)
		child(log, programs[i].command);
	waitpid(pid, &status, 0);
	known = read_events();
	snprintf(more, sizeof(more), "status %#x", status);
	judge(known && (programs[i].how == QUIET || !status), programs[i].what, more);
	compare(programs[i].what, log, programs[i].how);
	if (chdir("/"))
		perror("/");
}

static void skip(const char *why)
{
	printf("1..0 # SKIP %s: %s\n", why, strerror(errno));
	exit(4);
}

int main(void)
{
	struct { struct file_handle h; char room[128]; } h = { .h.handle_bytes = 128 };
	char logs[] = "/tmp/svfiles.XXXXXX", cmd[128];
	const char *b = getenv("SINGVGPU_BUILD");
	int mount_id;

	printf("TAP version 13\n");
	home = getcwd(NULL, 0);
	snprintf(build, sizeof(build), "%s/%s", home, b ? b : "build");
	if (unshare(CLONE_NEWNS) || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		skip("no mount namespace of one's own (root?)");
	if (!mkdtemp(logs))
		skip(logs);
	snprintf(root, sizeof(root), "%s/m", logs);
	mkdir(root, 0755);
	if (mount("svfiles", root, "tmpfs", 0, NULL))
		skip("no tmpfs");
	fan = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_DFID_NAME | FAN_REPORT_FID |
			    FAN_REPORT_TARGET_FID | FAN_UNLIMITED_QUEUE | FAN_NONBLOCK |
			    FAN_CLOEXEC, O_RDONLY);
	if (fan < 0 || fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, MASK | FAN_ONDIR,
				     AT_FDCWD, root) ||
	    name_to_handle_at(AT_FDCWD, root, &h.h, &mount_id, 0))
		skip("no fanotify that names files");
	folder_is(&h.h, root);
	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
		if (have(programs[i].needs))
			run(i, logs);
		else
			printf("ok %d - %s # SKIP no %s\n", ++point, programs[i].what,
			       programs[i].needs);
	}
	umount2(root, MNT_DETACH);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", logs);
	if (system(cmd))
		failures++;
	printf("1..%d\n", point);
	return failures != 0;
}
