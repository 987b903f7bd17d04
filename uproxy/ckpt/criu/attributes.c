// SPDX-License-Identifier: Apache-2.0
/*
 * attributes.c - what threads and processes have asked of the scheduler and the kernel, and CRIU does not save
 *
 * The image "attributes" is text, with a line for each process or thread that differs from the root, which has what
 * its host gives to all:
 *
 *   process PID FILTER PERSONALITY       coredump_filter, or -; hexadecimal
 *   thread PID TID IO SLACK POLICY CPUS  I/O priority; timer slack in ns; memory policy; list of CPUs; each may be -
 *   range PID START END POLICY           addresses, hexadecimal
 *   socket PID FD LEVEL NAME VALUE       options.c
 *
 * A policy is a name and a list of nodes, as in /proc/PID/numa_maps: "bind:0-1". Pids are those of the job. The kernel
 * looks at each page of a process to tell of its ranges, while the tree stands still: they are read only on a host with
 * several nodes, where alone a policy has an effect ($SINGVGPU_RANGES: here, too).
 *
 * A restore sets most from outside, before the tree runs. Only a thread itself can set its memory policy, and its
 * process's personality: inject.c has it do so as soon as CRIU has let it go, since a thread has only one tracer.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "criu_i.h"

#define IMAGE		"attributes"
#define CPUS		8192
#define SET_SIZE	CPU_ALLOC_SIZE(CPUS)
#define LIST_MAX	512	/* characters of a list of CPUs or nodes */

struct of_thread {
	int io;
	unsigned long slack;
	char policy[LIST_MAX];
	cpu_set_t *cpus;
};

struct of_process {
	unsigned long filter, personality;
};

static unsigned long read_number(int pid, const char *name, int base)
{
	char path[64], text[32] = "";
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return ~0ul;
	if (read(fd, text, sizeof(text) - 1) <= 0)
		*text = 0;
	close(fd);
	return *text ? strtoul(text, NULL, base) : ~0ul;
}

static bool write_number(int pid, const char *name, const char *fmt, unsigned long value)
{
	char path[64];
	int fd, n;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = dprintf(fd, fmt, value);
	close(fd);
	return n > 0;
}

/* ---------------------------------------------------------------------------------- lists */

static void put_list(FILE *out, const cpu_set_t *set)
{
	const char *between = "";

	for (int i = 0, end; i < CPUS; i = end + 1) {
		end = i;
		if (!CPU_ISSET_S(i, SET_SIZE, set))
			continue;
		while (end + 1 < CPUS && CPU_ISSET_S(end + 1, SET_SIZE, set))
			end++;
		fprintf(out, end > i ? "%s%d-%d" : "%s%d", between, i, end);
		between = ",";
	}
}

/* "0-3,7". False: it is none, or has a number that is too large. */
static bool read_list(const char *text, cpu_set_t *set)
{
	int from, to, n;

	CPU_ZERO_S(SET_SIZE, set);
	for (;; text += n + 1) {
		if (sscanf(text, "%4d%n", &from, &n) != 1)
			return false;
		to = from;
		text += n;
		n = 0;
		if (*text == '-' && sscanf(text, "-%4d%n", &to, &n) != 1)
			return false;
		if (from < 0 || to < from || to >= CPUS)
			return false;
		for (; from <= to; from++)
			CPU_SET_S(from, SET_SIZE, set);
		if (!text[n])
			return true;
		if (text[n] != ',')
			return false;
	}
}

/* -------------------------------------------------------------------------------- policies */

static const struct {
	const char *name;
	int mode, flag;
} policies[] = {
	{ "prefer", 1, 0 }, { "bind", 2, 0 }, { "interleave", 3, 0 }, { "local", 4, 0 }, { "prefer (many)", 5, 0 },
	{ "weighted interleave", 6, 0 },
};

/* "bind=static:0-1", as in numa_maps. False: it is none, or the default one. */
static bool read_policy(const char *text, int *mode, cpu_set_t *nodes)
{
	static const char fixed[] = "=static", relative[] = "=relative";

	for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
		size_t n = strlen(policies[i].name);
		const char *at = text + n;

		if (strncmp(text, policies[i].name, n) || (*at && !strchr(":=", *at)))
			continue;
		*mode = policies[i].mode;
		if (!strncmp(at, fixed, sizeof(fixed) - 1)) {
			*mode |= 1 << 15;	/* MPOL_F_STATIC_NODES */
			at += sizeof(fixed) - 1;
		} else if (!strncmp(at, relative, sizeof(relative) - 1)) {
			*mode |= 1 << 14;	/* MPOL_F_RELATIVE_NODES */
			at += sizeof(relative) - 1;
		}
		CPU_ZERO_S(SET_SIZE, nodes);
		return *at ? *at == ':' && read_list(at + 1, nodes) : true;
	}
	return false;
}

/* The second word of a line of numa_maps; two policies have a name of two words, here with "_". */
static bool policy_in(char *line, char policy[LIST_MAX])
{
	char *at = strchr(line, ' '), *end;

	if (!at)
		return false;
	at++;
	if (!strncmp(at, "prefer (many)", 13))
		at[6] = '_';
	else if (!strncmp(at, "weighted interleave", 19))
		at[8] = '_';
	end = at + strcspn(at, " \n");
	snprintf(policy, LIST_MAX, "%.*s", (int)(end - at), at);
	return end > at;
}

static char *with_blanks(char *policy)
{
	for (char *at = policy; *at; at++)
		if (*at == '_')
			*at = ' ';
	return policy;
}

/*
 * The policy of a thread is that of a mapping which has none of its own: the program's first one. The kernel reads no
 * further than it is asked to.
 */
static void thread_policy(int tid, char policy[LIST_MAX])
{
	char path[48], line[LIST_MAX] = "";
	int fd;

	strcpy(policy, "default");
	snprintf(path, sizeof(path), "/proc/%d/numa_maps", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (read(fd, line, 64) > 0)
		policy_in(line, policy);
	close(fd);
}

static bool several_nodes(void)
{
	char text[64] = "";
	FILE *in = fopen("/sys/devices/system/node/online", "re");

	if (in && !fgets(text, sizeof(text), in))
		*text = 0;
	if (in)
		fclose(in);
	return strpbrk(text, "-,") || getenv("SINGVGPU_RANGES");
}

static unsigned long end_of(FILE *maps, unsigned long start)
{
	char line[256];
	unsigned long from, to;

	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from >= start)
			return from == start ? to : 0;
	return 0;
}

static void put_ranges(FILE *out, int pid, int inner, const char *own)
{
	char path[48], line[LIST_MAX], policy[LIST_MAX];
	FILE *in, *maps;

	snprintf(path, sizeof(path), "/proc/%d/numa_maps", pid);
	in = fopen(path, "re");
	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "re");
	while (in && maps && fgets(line, sizeof(line), in)) {
		unsigned long start = strtoul(line, NULL, 16), end;

		if (!policy_in(line, policy) || !strcmp(policy, own) || !strcmp(policy, "default"))
			continue;
		end = end_of(maps, start);
		if (end)
			fprintf(out, "range %d %lx %lx %s\n", inner, start, end, policy);
	}
	if (in)
		fclose(in);
	if (maps)
		fclose(maps);
}

/* ----------------------------------------------------------------------------------- dump */

static bool read_thread(int tid, struct of_thread *t)
{
	t->io = syscall(SYS_ioprio_get, 1, tid);
	t->slack = read_number(tid, "timerslack_ns", 10);
	thread_policy(tid, t->policy);
	CPU_ZERO_S(SET_SIZE, t->cpus);
	return !sched_getaffinity(tid, SET_SIZE, t->cpus);
}

static void read_process(int pid, struct of_process *p)
{
	p->filter = read_number(pid, "coredump_filter", 16);
	p->personality = read_number(pid, "personality", 16);
}

static void put_thread(FILE *out, int inner, int tid, const struct of_thread *root, const struct of_thread *t)
{
	bool same_cpus = CPU_EQUAL_S(SET_SIZE, root->cpus, t->cpus), same_policy = !strcmp(root->policy, t->policy);

	if (t->io == root->io && (t->slack == root->slack || !t->slack) && same_cpus && same_policy)
		return;
	fprintf(out, "thread %d %d ", inner, criu_inner_pid(tid));
	if (t->io == root->io)
		fputs("- ", out);
	else
		fprintf(out, "%d ", t->io);
	if (t->slack == root->slack || !t->slack)
		fputs("- ", out);
	else
		fprintf(out, "%lu ", t->slack);
	fprintf(out, "%s ", same_policy ? "-" : t->policy);
	if (same_cpus)
		putc('-', out);
	else
		put_list(out, t->cpus);
	putc('\n', out);
}

struct gather {
	FILE *out;
	struct of_thread root, one;
	struct of_process of_root;
	struct criu_sockets *sockets;
	bool ranges;
};

static void put_threads(struct gather *g, int pid, int inner)
{
	char path[32];
	struct dirent *e;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	d = opendir(path);
	while (d && (e = readdir(d)))
		if (*e->d_name != '.' && read_thread(atoi(e->d_name), &g->one))
			put_thread(g->out, inner, atoi(e->d_name), &g->root, &g->one);
	if (d)
		closedir(d);
}

static void put_process(struct gather *g, int pid)
{
	int inner = criu_inner_pid(pid);
	char policy[LIST_MAX];
	struct of_process p;

	read_process(pid, &p);
	if (p.filter == ~0ul)
		return;		/* it has ended */
	if (p.filter != g->of_root.filter || p.personality != g->of_root.personality)
		fprintf(g->out, "process %d %lx %lx\n", inner, p.filter, p.personality);
	put_threads(g, pid, inner);
	criu_options_put(g->sockets, g->out, pid, inner);
	if (!g->ranges)
		return;
	thread_policy(pid, policy);
	put_ranges(g->out, pid, inner, policy);
}

/* The root is init, or of --host-pids the command itself: then it has what the conductor has. */
int criu_attributes_save(struct images *images, pid_t root)
{
	struct gather g = { .ranges = several_nodes() };
	size_t n, len = 0;
	char *text = NULL;
	pid_t *pid = criu_tree(root, &n);
	int err = -ENOMEM, like = criu_inner_pid(root) == 1 ? root : getpid();

	g.root.cpus = CPU_ALLOC(CPUS);
	g.one.cpus = CPU_ALLOC(CPUS);
	g.sockets = criu_options_begin(root);
	g.out = open_memstream(&text, &len);
	if (pid && g.out && g.sockets && g.root.cpus && g.one.cpus) {
		err = 0;
		read_thread(like, &g.root);
		read_process(like, &g.of_root);
		for (size_t i = 0; i < n; i++)
			put_process(&g, pid[i]);
	}
	if (g.out && fclose(g.out))
		err = -ENOMEM;
	CPU_FREE(g.root.cpus);
	CPU_FREE(g.one.cpus);
	criu_options_end(g.sockets);
	free(pid);
	err = err ?: len ? images_add(images, IMAGE, text, len) : 0;
	free(text);
	return err;
}

/* -------------------------------------------------------------------------------- restore */

struct restore {
	pid_t root;
	bool inside;		/* the threads run: what only they can set */
	int inner;		/* of pid */
	pid_t pid;
	cpu_set_t *set, *may;
	unsigned int clipped, failed;
};

static pid_t process_of(struct restore *r, int inner)
{
	if (inner != r->inner)
		r->pid = inner > 0 ? criu_find_pid(r->root, inner) : 0;
	r->inner = inner;
	return r->pid;
}

static pid_t thread_of(struct restore *r, int inner, int thread)
{
	pid_t pid = process_of(r, inner), found = 0;
	char path[32];
	struct dirent *e;
	DIR *d;

	if (!pid || inner == thread)
		return pid;
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	d = opendir(path);
	while (d && !found && (e = readdir(d)))
		if (*e->d_name != '.' && criu_inner_pid(atoi(e->d_name)) == thread)
			found = atoi(e->d_name);
	if (d)
		closedir(d);
	return found;
}

/* Those of the CPUs that the root may use; if none is left, all of these. */
static void bind_to(struct restore *r, pid_t tid, const char *list)
{
	int wanted;

	if (!read_list(list, r->set) || sched_getaffinity(r->root, SET_SIZE, r->may)) {
		r->failed++;
		return;
	}
	wanted = CPU_COUNT_S(SET_SIZE, r->set);
	CPU_AND_S(SET_SIZE, r->set, r->set, r->may);
	r->clipped += CPU_COUNT_S(SET_SIZE, r->set) != wanted;
	if (CPU_COUNT_S(SET_SIZE, r->set) && sched_setaffinity(tid, SET_SIZE, r->set))
		r->failed++;
}

static void policy_of(struct restore *r, pid_t tid, char *text, unsigned long start, unsigned long end)
{
	unsigned long nodes[CPUS / 64];
	int mode;

	if (!strcmp(text, "default"))
		return;
	if (!read_policy(with_blanks(text), &mode, r->set)) {
		r->failed++;
		return;
	}
	memcpy(nodes, r->set, sizeof(nodes));
	if (criu_inject_policy(tid, mode, nodes, 1024, start, end))
		r->failed++;
}

static void take_line(struct restore *r, const char *line)
{
	char policy[LIST_MAX], cpus[LIST_MAX], slack[24], io[16];
	int pid, thread, level, name;
	unsigned long a, b;
	pid_t found;

	if (sscanf(line, "process %9d %16lx %16lx", &pid, &a, &b) == 3) {
		found = process_of(r, pid);
		if (!found)
			return;
		if (!r->inside && a != ~0ul && !write_number(found, "coredump_filter", "0x%lx", a))
			r->failed++;
		if (r->inside && b != ~0ul && b != read_number(found, "personality", 16) &&
		    criu_inject_personality(found, b))
			r->failed++;
	} else if (sscanf(line, "thread %9d %9d %15s %23s %511s %511s", &pid, &thread, io, slack, policy, cpus) == 6) {
		found = thread_of(r, pid, thread);
		if (!found)
			return;
		if (r->inside) {
			if (strcmp(policy, "-"))
				policy_of(r, found, policy, 0, 0);
			return;
		}
		if (strcmp(io, "-") && syscall(SYS_ioprio_set, 1, found, atoi(io)))
			r->failed++;
		if (strcmp(slack, "-") && !write_number(found, "timerslack_ns", "%lu", strtoul(slack, NULL, 10)))
			r->failed++;
		if (strcmp(cpus, "-"))
			bind_to(r, found, cpus);
	} else if (sscanf(line, "socket %9d %9d %9d %9d %23s", &pid, &thread, &level, &name, slack) == 5) {
		found = r->inside ? 0 : process_of(r, pid);
		if (found && !criu_options_set(found, thread, level, name, slack))
			r->failed++;
	} else if (sscanf(line, "range %9d %16lx %16lx %511s", &pid, &a, &b, policy) == 4) {
		found = r->inside ? process_of(r, pid) : 0;
		if (found)
			policy_of(r, found, policy, a, b);
	}
}

void criu_attributes_set(struct images *images, pid_t root, bool inside, struct criu_attributes *result)
{
	struct restore r = { .root = root, .inside = inside, .inner = -1 };
	size_t len;
	const char *text = images_text(images, IMAGE, &len), *end = text + len, *next;
	char line[3 * LIST_MAX];

	r.set = CPU_ALLOC(CPUS);
	r.may = CPU_ALLOC(CPUS);
	for (; text && r.set && r.may && text < end; text = next + 1) {
		next = memchr(text, '\n', end - text);
		if (!next)
			break;
		if (next - text < (long)sizeof(line)) {
			memcpy(line, text, next - text);
			line[next - text] = 0;
			take_line(&r, line);
		}
	}
	CPU_FREE(r.set);
	CPU_FREE(r.may);
	result->clipped += r.clipped;
	result->failed += r.failed;
}
