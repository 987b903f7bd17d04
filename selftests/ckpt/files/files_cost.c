// SPDX-License-Identifier: Apache-2.0
/*
 * files_cost.c - the cost of the log of changed files: the same calls with and without the library
 *
 * The program starts itself alternately with and without the library, and compares the best CPU
 * times, which other programs disturb least. The calls do hardly anything else, and a tmpfs has no
 * journal, so the results are upper limits.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS	15
#define COUNT	4000

static const char *const what[] = {
	"open to read", "open to write", "create, write, unlink", "rename", "fopen to append",
	"start of a program",
};
#define KINDS ((int)(sizeof(what) / sizeof(what[0])))

static void once(int kind, int i)
{
	static char old[32] = "n0", new[32];
	char name[32];
	FILE *f;
	int fd;

	switch (kind) {
	case 0:
		close(open("known", O_RDONLY));
		break;
	case 1:
		close(open("known", O_WRONLY));
		break;
	case 2:
		snprintf(name, sizeof(name), "c%d", i % 100);
		fd = open(name, O_CREAT | O_WRONLY, 0644);
		if (write(fd, name, 8) != 8)
			exit(1);
		close(fd);
		unlink(name);
		break;
	case 3:
		snprintf(new, sizeof(new), "n%d", (i + 1) % 2);
		rename(old, new);
		strcpy(old, new);
		break;
	case 4:
		f = fopen("known", "a");
		fclose(f);
	}
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* In a process of its own, in the folder: ns for one of each kind. */
static int measure(void)
{
	for (int kind = 0; kind < KINDS - 1; kind++) {
		double t;

		for (int i = 0; i < 200; i++)
			once(kind, i);
		t = seconds();
		for (int i = 0; i < COUNT; i++)
			once(kind, i);
		printf("%.1f\n", (seconds() - t) * 1e9 / COUNT);
	}
	return 0;
}

/* Itself as `self arg`, with the library or (NULL) without; the best times go to best[]. */
static void start(const char *self, const char *arg, const char *lib, const char *log, double best[])
{
	char env[600], log_env[600], line[64];
	char *argv[] = { (char *)self, (char *)arg, NULL }, *envp[] = { env, log_env, NULL };
	struct rusage use;
	double ns;
	int out[2];
	pid_t pid;
	FILE *f;

	if (pipe(out))
		exit(1);
	snprintf(env, sizeof(env), "LD_PRELOAD=%s", lib ? lib : "");
	snprintf(log_env, sizeof(log_env), "SINGVGPU_FILES=%s", log);
	pid = fork();
	if (!pid) {
		dup2(out[1], 1);
		execve(self, argv, envp);
		_exit(1);
	}
	close(out[1]);
	f = fdopen(out[0], "r");
	for (int i = 0; f && fgets(line, sizeof(line), f); i++) {
		ns = atof(line);
		best[i] = !best[i] || ns < best[i] ? ns : best[i];
	}
	fclose(f);
	wait4(pid, NULL, 0, &use);
	ns = (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e9 +
	     (use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e3;
	if (!strcmp(arg, "nothing") && (!best[KINDS - 1] || ns < best[KINDS - 1]))
		best[KINDS - 1] = ns;
}

static void report(const char *path, double with[], double without[])
{
	FILE *f = fopen(path, "w");

	printf("%-24s %10s %10s %8s\n", "", "with, ns", "without", "ratio");
	if (f)
		fprintf(f, "{");
	for (int i = 0; i < KINDS; i++) {
		printf("%-24s %10.0f %10.0f %8.2f\n", what[i], with[i], without[i],
		       with[i] / without[i]);
		if (f)
			fprintf(f, "%s\n  \"%s\": {\"with_ns\": %.1f, \"without_ns\": %.1f}",
				i ? "," : "", what[i], with[i], without[i]);
	}
	if (f) {
		fprintf(f, "\n}\n");
		fclose(f);
	}
}

int main(int argc, char **argv)
{
	const char *b = getenv("SINGVGPU_BUILD") ? getenv("SINGVGPU_BUILD") : "build";
	char dir[] = "/dev/shm/svcost.XXXXXX", lib[512], log[64], json[512], cmd[64], self[512];
	double with[KINDS] = { 0 }, without[KINDS] = { 0 };
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *cwd = getcwd(NULL, 0);

	if (argc > 1)
		return strcmp(argv[1], "measure") ? 0 : measure();
	self[n > 0 ? n : 0] = '\0';
	snprintf(lib, sizeof(lib), "%s/%s/lib/libsingvgpu-files.so", cwd, b);
	snprintf(json, sizeof(json), "%s/%s/bench/files-cost.json", cwd, b);
	if (!mkdtemp(dir) || mkdir(strcat(strcpy(log, dir), "/run"), 0755) || chdir(dir))
		return 1;
	strcat(log, "/files");
	close(open(log, O_CREAT | O_WRONLY, 0600));
	close(open("known", O_CREAT | O_WRONLY, 0644));
	close(open("n0", O_CREAT | O_WRONLY, 0644));
	for (int i = 0; i < ROUNDS * 20; i++) {
		const char *arg = i % 20 ? "nothing" : "measure";

		start(self, arg, lib, log, with);
		start(self, arg, NULL, log, without);
	}
	report(json, with, without);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	free(cwd);
	return system(cmd) != 0;
}
