// SPDX-License-Identifier: Apache-2.0
/*
 * files_noted.c - what the log of changed files has, record by record, and what it must not have
 *
 * files_watch.c shows that no change is missing. Here each scene is a program under the library, in
 * a folder of its own, that makes a few calls; its log must have exactly the expected records, in
 * their order. "old" and "folder/in" are there before. In what is expected, a path without a
 * slash in front is below the working folder, and $N stands for a name that nobody else uses.
 */
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "files_i.h"
#include "record.h"

#define OTHER_USER 65534
#define SKIPPED	   4

static char base[64];	/* scratch folder; its parts are logs/files and work/ */
static const char *unique;

/* A call that must succeed; the scene ends if it does not. */
static void need(bool ok, const char *what, int line)
{
	if (ok)
		return;
	fprintf(stderr, "# line %d: %s: %m\n", line, what);
	_exit(1);
}
#define NEED(call)   need((call) >= 0, #call, __LINE__)
#define FAILS(call)  need((call) < 0, #call " did not fail", __LINE__)
/* A system call that the library does not see. */
#define UNSEEN(...)  need(sys(__VA_ARGS__) >= 0, #__VA_ARGS__, __LINE__)

static void touch(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0644);

	need(fd >= 0, path, __LINE__);
	close(fd);
}

static void soft_limit(int what, rlim_t to)
{
	struct rlimit l;

	NEED(getrlimit(what, &l));
	l.rlim_cur = to == RLIM_INFINITY ? l.rlim_max : to;
	NEED(setrlimit(what, &l));
}

static void become_other(void)
{
	NEED(setresgid(OTHER_USER, OTHER_USER, OTHER_USER));
	NEED(setresuid(OTHER_USER, OTHER_USER, OTHER_USER));
}

/* --------------------------------------------------------------------------------- opens */

static void kinds_of_opens(void)
{
	FILE *f;

	touch("made", O_CREAT | O_WRONLY);
	touch("old", O_CREAT | O_WRONLY);
	touch("exclusive", O_CREAT | O_EXCL | O_RDWR);
	FAILS(open("old", O_CREAT | O_EXCL | O_WRONLY, 0644));
	FAILS(open("nosuch/made", O_CREAT | O_WRONLY, 0644));
	f = fopen("printed", "w");
	need(f, "printed", __LINE__);
	fclose(f);
	f = fopen("folder/in", "r+");
	need(f, "in", __LINE__);
	fclose(f);
	NEED(symlink("made_behind", "link"));
	touch("link", O_CREAT | O_WRONLY);
}

static void opens_again(void)
{
	touch("made", O_CREAT | O_WRONLY);
	touch("made", O_WRONLY);
	touch("./made", O_RDWR);
	touch("folder/../made", O_WRONLY | O_TRUNC);
	NEED(chmod("made", 0600));
	NEED(unlink("made"));
}

static void reads(void)
{
	FILE *f = fopen("folder/in", "r");

	need(f, "in", __LINE__);
	fclose(f);
	touch("old", O_RDONLY);
	FAILS(open("nosuch", O_RDONLY));
	FAILS(open("nosuch", O_WRONLY));
	f = fopen("old", "r,ccs=UTF-8+");	/* the '+' is no part of the mode */
	if (f)
		fclose(f);
}

/* Whatever else the flags of an O_PATH say, the kernel does not hear it. */
static void fds_of_names(void)
{
	touch("old", O_PATH | O_RDWR);
	touch("old", O_PATH | O_WRONLY | O_TRUNC);
}

static void unnamed(void)
{
	int fd = open(".", O_TMPFILE | O_RDWR, 0600), p[2];

	if (fd >= 0)
		NEED(fchmod(fd, 0644));
	NEED(fd = memfd_create("x", 0));
	NEED(fchmod(fd, 0600));
	NEED(pipe(p));
	NEED(fchmod(p[0], 0600));
	NEED(fd = open("unlinked", O_CREAT | O_RDWR, 0600));
	NEED(unlink("unlinked"));
	NEED(fchmod(fd, 0644));
	touch("x (deleted)", O_CREAT | O_WRONLY);
}

static void systems(void)
{
	struct stat st;

	touch("/dev/null", O_WRONLY);
	touch("/proc/self/comm", O_WRONLY);
	if (!stat("/sys/kernel", &st))
		chmod("/sys/kernel", st.st_mode & 07777);	/* it may be read-only */
	touch("../logs/notes", O_CREAT | O_WRONLY);
}

static void shared(void)
{
	int fd = shm_open(unique, O_CREAT | O_RDWR, 0600);

	NEED(fd);
	close(fd);
	NEED(shm_unlink(unique));
}

/* access(2) asks for the real user, who may not look into the folder; open(2) for the effective one. */
static void before_two_users(void)
{
	NEED(mkdir("private", 0700));
}

static void two_users(void)
{
	if (geteuid())
		_exit(SKIPPED);
	NEED(setresuid(OTHER_USER, 0, 0));
	touch("private/made", O_CREAT | O_WRONLY);
	touch("private/exclusive", O_CREAT | O_EXCL | O_WRONLY);
	NEED(setresuid(0, 0, 0));
}

/* -------------------------------------------------------------------------------- inherited */

static void before_inherited(void)
{
	touch("linked", O_CREAT | O_WRONLY);
	NEED(dup2(open("old", O_RDONLY), 10));
	NEED(dup2(open("folder/in", O_WRONLY), 11));
	NEED(dup2(open("gone", O_CREAT | O_WRONLY, 0600), 12));
	NEED(unlink("gone"));
	NEED(mkfifo("fifo", 0600));
	NEED(dup2(open("fifo", O_RDWR), 13));
	NEED(dup2(open("linked", O_PATH), 14));
	NEED(dup2(open("../logs/out", O_CREAT | O_WRONLY, 0600), 15));
	for (int fd = 3; fd < 10; fd++)
		close(fd);
}

/* What inherits the same files has nothing to add. */
static void inherited(void)
{
	NEED(system("/bin/true"));
}

/* --------------------------------------------------------------------------------- names */

static void impossible_names(void)
{
	FAILS(unlink("nosuch"));
	FAILS(unlink(""));
	FAILS(rmdir("nosuch/in"));
	FAILS(rmdir("."));
	FAILS(rmdir("folder/.."));
	FAILS(mkdir("folder", 0755));
	FAILS(mkdir("/", 0755));
	FAILS(mkdir("old/made", 0755));
	FAILS(rename("nosuch", "made"));
	FAILS(rename(".", "made"));
	FAILS(symlink("nowhere", "old"));
}

/* Its first 4096 bytes are the path of a folder and the beginning of a name. */
static void long_names(void)
{
	char path[PATH_MAX + 64] = "";

	while (strlen(path) < PATH_MAX - 4)
		strcat(path, "./");
	strcat(path, "made_here");
	FAILS(mkdir(path, 0755));
	FAILS(open(path, O_CREAT | O_WRONLY, 0600));
	memset(path, 'x', NAME_MAX + 1);
	path[NAME_MAX + 1] = '\0';
	FAILS(unlink(path));
}

static void before_locked(void)
{
	NEED(mkdir("locked", 0755));
	touch("locked/in", O_CREAT | O_WRONLY);
	NEED(chmod("../logs", 0777));
	NEED(chmod("../logs/files", 0666));
	NEED(chmod(".", 0777));
}

static void locked(void)
{
	if (geteuid())
		_exit(SKIPPED);
	become_other();
	FAILS(unlink("locked/in"));
	FAILS(mkdir("locked/made", 0755));
	FAILS(rename("locked/in", "made"));
	FAILS(open("locked/in", O_WRONLY));
	NEED(mkdir("made", 0755));
}

static void renames(void)
{
	NEED(rename("old", "new"));
	NEED(rename("folder", "moved"));
	touch("moved/in", O_WRONLY);
}

/* A folder with all in it comes to the other's name, from either side. */
static void exchanges(void)
{
	NEED(renameat2(AT_FDCWD, "old", AT_FDCWD, "folder", RENAME_EXCHANGE));
	NEED(renameat2(AT_FDCWD, "old", AT_FDCWD, "folder", RENAME_EXCHANGE));
}

/* ----------------------------------------------------------------- records that are lost */

/* Over the limit of the size of files, which is not to kill the program either. */
static void over_its_size(void)
{
	soft_limit(RLIMIT_FSIZE, 0);
	NEED(mkdir("lost", 0755));
	NEED(mkdir("lost_too", 0755));
	soft_limit(RLIMIT_FSIZE, RLIM_INFINITY);
	NEED(mkdir("made", 0755));
	NEED(mkdir("made_too", 0755));
}

/* The program's own signal, which it has blocked, stays where it is. */
static void a_signal_of_its_own(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGXFSZ);
	NEED(sigprocmask(SIG_BLOCK, &set, NULL));
	NEED(raise(SIGXFSZ));
	soft_limit(RLIMIT_FSIZE, 0);
	NEED(mkdir("lost", 0755));
	sigemptyset(&set);
	NEED(sigpending(&set));
	need(sigismember(&set, SIGXFSZ), "the signal is gone", __LINE__);
	soft_limit(RLIMIT_FSIZE, RLIM_INFINITY);
}

/* Without an fd the folder of a name cannot be looked at. */
static void names_without_fds(void)
{
	soft_limit(RLIMIT_NOFILE, 3);
	NEED(mkdir("folder/lost", 0755));
	soft_limit(RLIMIT_NOFILE, RLIM_INFINITY);
	NEED(mkdir("made", 0755));
}

static void files_without_fds(void)
{
	soft_limit(RLIMIT_NOFILE, 3);
	NEED(chmod("folder/in", 0600));
	soft_limit(RLIMIT_NOFILE, RLIM_INFINITY);
	NEED(mkdir("made", 0755));
}

/* ------------------------------------------------------------------------------ the log itself */

/* The job has ended: this program has outlived it, and what is there later is another's. */
static void without_its_log(void)
{
	UNSEEN(SYS_rename, "../logs/files", "../logs/away");
	NEED(mkdir("made", 0755));
	UNSEEN(SYS_rename, "../logs/away", "../logs/files");
	NEED(mkdir("made_too", 0755));
}

static void before_a_later_log(void)
{
	NEED(unlink("../logs/files"));
}

static void a_later_log(void)
{
	UNSEEN(SYS_openat, AT_FDCWD, "../logs/files", O_CREAT | O_WRONLY, 0600);
	NEED(mkdir("made", 0755));
}

/* A relative name would be another file in each folder. */
static void before_relative(void)
{
	NEED(setenv(RECORD_ENV, "../logs/files", 1));
}

static void before_bare(void)
{
	touch("bare", O_CREAT | O_WRONLY);
	NEED(setenv(RECORD_ENV, "bare", 1));
}

static void makes_one(void)
{
	NEED(mkdir("made", 0755));
}

/* Nothing is written for a name that is in the log, so nothing is lost. */
static void known_names(void)
{
	NEED(mkdir("made", 0755));
	NEED(rmdir("made"));
	soft_limit(RLIMIT_FSIZE, 0);
	NEED(mkdir("made", 0755));
	touch("made", O_PATH);
	NEED(rmdir("made"));
	soft_limit(RLIMIT_FSIZE, RLIM_INFINITY);
	NEED(mkdir("another", 0755));
}

static bool log_has(const char *path)
{
	static char log[1 << 16];
	int fd = open("../logs/files", O_RDONLY);
	ssize_t n = read(fd, log, sizeof(log));
	char whole[PATH_MAX];

	close(fd);
	snprintf(whole, sizeof(whole), "%s/work/%s", base, path);
	return n > 0 && memmem(log, n, whole, strlen(whole) + 1);
}

/*
 * A young file is looked up by its path: its inode and birth time may be those of another that was
 * removed a moment ago. Here it is the same file, whose folder was renamed unseen. It is young for a
 * tenth of a second; a machine that stalls for as long in each round would be a strange one.
 */
static void young_files(void)
{
	bool seen = false;
	struct statx st;
	char path[32];

	for (int i = 0; i < 20 && !seen; i++) {
		UNSEEN(SYS_mkdir, "young", 0755);
		NEED(chdir("young"));
		touch("file", O_CREAT | O_WRONLY);
		NEED(chdir(".."));
		snprintf(path, sizeof(path), "%d", i);
		UNSEEN(SYS_rename, "young", path);
		NEED(chdir(path));
		touch("file", O_WRONLY);
		if (!i && (statx(AT_FDCWD, "file", 0, STATX_BTIME, &st) ||
			   !(st.stx_mask & STATX_BTIME)))
			_exit(SKIPPED);
		NEED(chdir(".."));
		strcat(path, "/file");
		seen = log_has(path);
	}
	need(seen, "the file's new path", __LINE__);
}

/* -------------------------------------------------------------------------------- the scenes */

static const struct scene {
	const char *name;
	void (*act)(void);
	const char *log;	/* NULL: the scene itself has looked */
	void (*before)(void);	/* without the library, at the end of which the scene is executed */
} scenes[] = {
	{ "opens that make files and those that find them", kinds_of_opens,
	  "C made\nE old\nC exclusive\nC printed\nE folder/in\nC link\nC made_behind\n", NULL },
	{ "each path is logged once", opens_again, "C made\n", NULL },
	{ "what only reads, or fails", reads, "", NULL },
	{ "fds that only name a file", fds_of_names, "", NULL },
	{ "files without a name, and one that is called like them", unnamed,
	  "C unlinked\nC x (deleted)\n", NULL },
	{ "the system's files and those in the log's folder", systems, "", NULL },
	{ "shared memory", shared, "C /dev/shm/$N\n", NULL },
	{ "a program with two users", two_users, "C private/made\nC private/exclusive\n",
	  before_two_users },
	{ "inherited files, if they are written to", inherited, "E folder/in\n", before_inherited },
	{ "names that cannot be made, removed or renamed", impossible_names, "", NULL },
	{ "names that are too long", long_names, "", NULL },
	{ "folders of others", locked, "C made\n", before_locked },
	{ "renamed files and folders", renames,
	  "E old\nC new\nE folder\nC moved\nT moved\nE moved/in\n", NULL },
	{ "a file and a folder that change places", exchanges, "E old\nE folder\nT old\nT folder\n", NULL },
	{ "a log that may not grow", over_its_size, "L /\nC made\nC made_too\n", NULL },
	{ "a signal of the program's own", a_signal_of_its_own, "", NULL },
	{ "names, when no more files can be opened", names_without_fds, "L /\nC made\n", NULL },
	{ "modes, when no more files can be opened", files_without_fds, "L /\nC made\n", NULL },
	{ "a log that goes away", without_its_log, "", NULL },
	{ "a log that comes later", a_later_log, "", before_a_later_log },
	{ "a log with a relative name", makes_one, "", before_relative },
	{ "a log without a folder", makes_one, "", before_bare },
	{ "names that come again", known_names, "C made\nC another\n", NULL },
	{ "young files are known by their paths alone", young_files, NULL, NULL },
};
#define SCENES (int)(sizeof(scenes) / sizeof(*scenes))

static int point, failures;

static void judge(const char *name, const char *why)
{
	printf("%sok %d - %s%s%s\n", *why ? "not " : "", ++point, name, *why ? ": " : "", why);
	failures += !!*why;
}

/* The records as lines, with paths below the working folder cut short. */
static void read_log(char *lines, size_t room)
{
	static char log[1 << 16];
	char work[80], *to = lines;
	FILE *f = fopen("logs/files", "re");
	size_t n = f ? fread(log, 1, sizeof(log) - 1, f) : 0, len;

	if (f)
		fclose(f);
	len = snprintf(work, sizeof(work), "%s/work/", base);
	log[n] = '\0';
	*to = '\0';
	for (size_t at = 0; at < n; at += strlen(log + at) + 1) {
		const char *path = log + at + 1;

		if (!log[at])
			continue;
		path += strncmp(path, work, len) ? 0 : len;
		to += snprintf(to, lines + room - to, "%c %s\n", log[at], path);
		if (to >= lines + room)
			return;
	}
}

static void expand(const char *text, char *to)
{
	for (; *text; text++) {
		if (strncmp(text, "$N", 2)) {
			*to++ = *text;
			continue;
		}
		to = stpcpy(to, unique);
		text++;
	}
	*to = '\0';
}

/* In a child: the scene's program, with the library. */
static void start(const struct scene *s, const char *self, const char *lib, int errors)
{
	int null = open("/dev/null", O_RDWR);
	char log[128];

	dup2(null, 0);
	dup2(null, 1);
	dup2(errors, 2);
	for (int fd = 3; fd < 64; fd++)
		close(fd);
	snprintf(log, sizeof(log), "%s/logs/files", base);
	setenv(RECORD_ENV, log, 1);
	setenv("NOTED_BASE", base, 1);
	need(!chdir("work"), "work", __LINE__);
	if (s->before)
		s->before();
	setenv("LD_PRELOAD", lib, 1);
	execl(self, self, s->name, NULL);
	_exit(127);
}

static int run(const struct scene *s, const char *self, const char *lib)
{
	char said[4096];
	int p[2], status;
	ssize_t n;
	pid_t pid;

	if (system("rm -rf logs work; mkdir -m 755 logs work work/folder; : >logs/files; "
		   "echo old >work/old; echo in >work/folder/in") || pipe(p))
		return -1;
	fflush(stdout);
	pid = fork();
	if (!pid)
		start(s, self, lib, p[1]);
	close(p[1]);
	while ((n = read(p[0], said, sizeof(said))) > 0)
		printf("%.*s", (int)n, said);
	close(p[0]);
	waitpid(pid, &status, 0);
	return status;
}

static void one(const struct scene *s, const char *self, const char *lib)
{
	char want[512], got[16384], *line;
	int status = run(s, self, lib);

	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
		printf("ok %d - %s # SKIP it needs root, or birth times\n", ++point, s->name);
		return;
	}
	if (status) {
		snprintf(got, sizeof(got), "status %#x", status);
		judge(s->name, got);
		return;
	}
	expand(s->log ?: "", want);
	read_log(got, sizeof(got));
	judge(s->name, s->log && strcmp(want, got) ? "other records" : "");
	if (!s->log || !strcmp(want, got))
		return;
	for (line = strtok(got, "\n"); line; line = strtok(NULL, "\n"))
		printf("#   the log has: %s\n", line);
	for (line = strtok(want, "\n"); line; line = strtok(NULL, "\n"))
		printf("#   expected:    %s\n", line);
}

static int child(const char *name)
{
	snprintf(base, sizeof(base), "%s", getenv("NOTED_BASE") ?: "");
	unique = strrchr(base, '/') + 1;
	for (int i = 0; i < SCENES; i++) {
		if (strcmp(scenes[i].name, name))
			continue;
		scenes[i].act();
		return 0;
	}
	return 127;
}

int main(int argc, char **argv)
{
	const char *build = getenv("SINGVGPU_BUILD") ?: "build";
	char self[PATH_MAX], path[PATH_MAX], lib[PATH_MAX], made[] = "/tmp/svnoted.XXXXXX";
	char command[128];

	if (argc > 1)
		return child(argv[1]);
	snprintf(path, sizeof(path), "%s/lib/libsingvgpu-files.so", build);
	if (!realpath("/proc/self/exe", self) || !realpath(path, lib) || !mkdtemp(made) ||
	    chmod(made, 0755) || chdir(made) || !getcwd(base, sizeof(base))) {
		printf("Bail out! %s: %m\n", path);
		return 1;
	}
	umask(022);
	unique = strrchr(base, '/') + 1;
	printf("TAP version 13\n1..%d\n", SCENES);
	for (int i = 0; i < SCENES; i++)
		one(&scenes[i], self, lib);
	snprintf(command, sizeof(command), "rm -rf %s", base);
	return chdir("/") || system(command) || failures;
}
