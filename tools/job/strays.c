// SPDX-License-Identifier: Apache-2.0
/*
 * strays.c - tells of programs that the job has started without singvgpu: what their parents have noted, and what
 * the watcher finds in /proc
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/cn_proc.h>
#include <linux/connector.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "job.h"
#include "stray.h"
#include "strays.h"
#include "watch.h"

#define FIRST_MS	2000	/* until the watcher's first look */
#define MOST_MS		60000	/* between two looks */
#define SOON_MS		500	/* to a look after an exec, for libraries that are loaded then */
#define KIN_MOST	4096	/* processes of a job that a look is for */
#define MAPS_MOST	(4 << 20)	/* bytes of /proc/PID/maps */
#define READS		64	/* of the FIFO, before the supervisor does something else */

/* ---------------------------------------------------------------------------- the notes */

/* Open for writing, too: the FIFO has no end while the job runs. */
static int make_fifo(const char *dir)
{
	char path[PATH_MAX];
	struct stat st;
	int fd;

	if (snprintf(path, sizeof(path), "%s/" STRAY_FILE, dir) >= (int)sizeof(path))
		return -1;
	unlink(path);
	fd = mkfifo(path, 0600) ? -1 : open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &st) || !S_ISFIFO(st.st_mode))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static bool is_new(struct strays *s, char kind, const char *name)
{
	uint64_t h = XXH3_64bits_withSeed(name, strlen(name), kind);

	for (int i = 0; i < s->n; i++)
		if (s->told[i] == h)
			return false;
	if (s->n == STRAYS_TOLD)
		return false;
	s->told[s->n++] = h;
	return true;
}

static void take_record(struct strays *s, char kind, const char *text)
{
	char name[STRAY_NAME + 1], line[1024];

	if (kind == STRAY_BEGINS) {
		if (s->begins)
			return;
		s->begins = true;
		if (s->next)
			s->next = now_ms();
		else if (s->tell >= 0 && write(s->tell, "", 1) < 0)
			say_errno(errno, "the search for programs without singvgpu");
		return;
	}
	watch_clip(name, sizeof(name), text);
	if (*name && stray_sentence(line, sizeof(line), kind, name) && is_new(s, kind, name))
		say("%s", line);
}

/* What starts the command has none of our libraries. */
static void look_at_command(struct strays *s)
{
	char *const *command = s->job->opt->command;
	const char *dropped = NULL;
	char path[PATH_MAX];

	if (strchr(command[0], '/'))
		dropped = stray_dropped(AT_FDCWD, command[0], command);
	else if (stray_find(command[0], path, sizeof(path)))
		dropped = stray_dropped(AT_FDCWD, path, command);
	if (dropped)
		take_record(s, STRAY_SETUID, dropped);
}

void strays_start(struct strays *s, const struct job *job)
{
	*s = (struct strays){ .job = job, .tell = -1, .next = now_ms() + FIRST_MS };
	s->fifo = make_fifo(job->dir.path);
	if (!job->restore)
		look_at_command(s);
}

/* Takes whole records off the text. What is none is skipped up to the next NUL. */
static void take_records(struct strays *s)
{
	size_t at = 0;

	while (at < s->have) {
		const char *r = s->text + at;
		const char *end = s->have - at > 2 ? memchr(r + 2, 0, s->have - at - 2) : NULL;

		if (!*r && !end)
			break;
		if (!*r && r[1])
			take_record(s, r[1], r + 2);
		at += *r || !r[1] ? 1 : end + 1 - r;
	}
	/* No record is so long. */
	if (!at && s->have == sizeof(s->text))
		at = s->have;
	s->have -= at;
	memmove(s->text, s->text + at, s->have);
}

void strays_hear(struct strays *s)
{
	ssize_t n;

	for (int i = 0; s->fifo >= 0 && i < READS; i++) {
		n = read(s->fifo, s->text + s->have, sizeof(s->text) - s->have);
		if (n <= 0)
			return;
		s->have += n;
		take_records(s);
	}
}

/* --------------------------------------------------------------------------- the watcher */

struct watcher {
	pid_t supervisor;
	int fifo;
	int hear;		/* end of file: the supervisor has ended */
	int events;		/* the process connector; -1: not yet, or never */
	char self[PATH_MAX], proxy[PATH_MAX], libdir[PATH_MAX];
};

/* A full FIFO has other things to tell. */
static void note(const struct watcher *w, char kind, const char *name)
{
	char text[STRAY_RECORD];
	size_t len = stray_record(text, kind, name);

	while (write(w->fifo, text, len) < 0 && errno == EINTR)
		;
}

static uid_t uid_of(const char *proc)
{
	char path[48];
	struct stat st;

	snprintf(path, sizeof(path), "%s/status", proc);
	return stat(path, &st) ? (uid_t)-1 : st.st_uid;
}

/* What has been mapped: the loader maps ours first. Of a process with a great many nothing is known. */
static void read_maps(const struct watcher *w, const char *proc, bool *cuda, bool *ours)
{
	size_t room = 0, all = 0, len = strlen(w->libdir);
	char path[48], *line = NULL;
	ssize_t n = 0;
	FILE *in;

	*cuda = *ours = false;
	snprintf(path, sizeof(path), "%s/maps", proc);
	in = fopen(path, "re");
	while (in && !*ours && all < MAPS_MOST && (n = getline(&line, &room, in)) > 0) {
		const char *name = strchr(line, '/'), *base = strrchr(line, '/');

		all += n;
		*ours = name && !strncmp(name, w->libdir, len) && base == name + len;
		*cuda |= base && stray_library(base + 1);
	}
	*cuda &= all < MAPS_MOST;
	if (in)
		fclose(in);
	free(line);
}

/* Another user's file is not opened: reading it may take for ever. */
static bool is_cuda_program(const char *proc)
{
	char path[48];

	snprintf(path, sizeof(path), "%s/exe", proc);
	return stray_program(AT_FDCWD, path);
}

static bool has_preload(const char *proc)
{
	char path[48], *word = NULL;
	size_t room = 0;
	bool has = false;
	FILE *in;

	snprintf(path, sizeof(path), "%s/environ", proc);
	in = fopen(path, "re");
	while (in && !has && getdelim(&word, &room, 0, in) > 0)
		has = !strncmp(word, "LD_PRELOAD=", 11) && strstr(word, "libcuda.so.1");
	if (in)
		fclose(in);
	free(word);
	return has;
}

/*
 * One process of the job. Without CUDA's libraries it may be one that the loader has not begun with: then its
 * environment tells what the loader will do.
 */
static void look_at(const struct watcher *w, pid_t pid)
{
	char proc[32], path[48], name[PATH_MAX];
	bool cuda, ours, own, preload;
	ssize_t n;

	snprintf(proc, sizeof(proc), "/proc/%d", pid);
	own = uid_of(proc) == geteuid();
	read_maps(w, proc, &cuda, &ours);
	if (ours || (!own && !cuda))
		return;
	preload = own && has_preload(proc);
	if (!cuda && (preload || !is_cuda_program(proc)))
		return;
	snprintf(path, sizeof(path), "%s/exe", proc);
	n = readlink(path, name, sizeof(name) - 1);
	if (n <= 0)
		return;
	name[n] = 0;
	note(w, !own ? STRAY_USER : preload ? STRAY_LOADED : STRAY_PRELOAD, name);
}

/* A child of the supervisor that is one of its own: the prefixer, a checkpoint, the watcher, a proxy. */
static bool is_own(const struct watcher *w, pid_t pid)
{
	char path[32], exe[PATH_MAX];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/exe", pid);
	n = readlink(path, exe, sizeof(exe) - 1);
	exe[n < 0 ? 0 : n] = 0;
	return !strcmp(exe, w->self) || !strcmp(exe, w->proxy);
}

/* Whether a process is the job's. Pids are those of /proc. */
static bool is_of_job(const struct watcher *w, pid_t pid)
{
	pid_t parent;

	for (int steps = 0; steps < 256 && pid > 1; steps++, pid = parent) {
		if (!family_state(pid, &parent))
			return false;
		if (parent == w->supervisor)
			return !is_own(w, pid);
	}
	return false;
}

static void look_at_all(const struct watcher *w)
{
	pid_t (*kin)[2] = calloc(KIN_MOST, sizeof(*kin));
	int n = kin ? family_list(w->supervisor, kin, KIN_MOST) : 0;

	for (int i = 0; i < n; i++)
		if (!is_own(w, kin[i][1]))
			look_at(w, kin[i][0]);
	free(kin);
}

/* Execs alone. In a message of the connector `what` is at byte 36. */
static int filter_execs(int fd)
{
	const unsigned int at = NLMSG_HDRLEN + sizeof(struct cn_msg);
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __builtin_bswap32(PROC_EVENT_EXEC), 0, 1),
		BPF_STMT(BPF_RET | BPF_K, ~0u),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog f = { sizeof(code) / sizeof(code[0]), code };

	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &f, sizeof(f));
}

/* Listens to the kernel's news of execs. Without root, or in a namespace of pids, there are none. */
static void listen_to_execs(struct watcher *w)
{
	const enum proc_cn_mcast_op op = PROC_CN_MCAST_LISTEN;
	const struct cn_msg cn = { .id = { CN_IDX_PROC, CN_VAL_PROC }, .len = sizeof(op) };
	const struct nlmsghdr nl = { .nlmsg_len = NLMSG_HDRLEN + sizeof(cn) + sizeof(op), .nlmsg_type = NLMSG_DONE };
	char ask[NLMSG_HDRLEN + sizeof(cn) + sizeof(op)];
	struct sockaddr_nl a = { .nl_family = AF_NETLINK, .nl_groups = CN_IDX_PROC };

	if (w->events >= 0 || geteuid())
		return;
	w->events = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_CONNECTOR);
	if (w->events < 0)
		return;
	memcpy(ask, &nl, sizeof(nl));
	memcpy(ask + NLMSG_HDRLEN, &cn, sizeof(cn));
	memcpy(ask + NLMSG_HDRLEN + sizeof(cn), &op, sizeof(op));
	if (filter_execs(w->events) || bind(w->events, (void *)&a, sizeof(a)) ||
	    send(w->events, ask, sizeof(ask), 0) < 0) {
		close(w->events);
		w->events = -1;
	}
}

/* True: a process of the job has started a program. */
static bool hear_exec(const struct watcher *w)
{
	char text[512] __attribute__((aligned(8)));
	const size_t head = NLMSG_HDRLEN + sizeof(struct cn_msg);
	struct sockaddr_nl from;
	socklen_t len = sizeof(from);
	struct proc_event e;
	bool heard = false;
	ssize_t n;

	while ((n = recvfrom(w->events, text, sizeof(text), 0, (void *)&from, &len)) > 0) {
		if (from.nl_pid || n < (ssize_t)(head + offsetof(struct proc_event, event_data) + 8))
			continue;
		memset(&e, 0, sizeof(e));
		memcpy(&e, text + head, (size_t)n - head < sizeof(e) ? (size_t)n - head : sizeof(e));
		if (!is_of_job(w, e.event_data.exec.process_tgid))
			continue;
		look_at(w, e.event_data.exec.process_tgid);
		heard = true;
	}
	return heard;
}

static void watch(struct watcher *w) __attribute__((noreturn));
static void watch(struct watcher *w)
{
	int pause = FIRST_MS;
	char bytes[64];
	int64_t left;

	for (;;) {
		uint64_t next = now_ms() + pause, soon;

		look_at_all(w);
		pause = pause * 2 < MOST_MS ? pause * 2 : MOST_MS;
		/* The execs of other programs on the host must not delay the look. */
		while ((left = next - now_ms()) > 0) {
			struct pollfd p[2] = { { .fd = w->hear, .events = POLLIN },
					       { .fd = w->events, .events = POLLIN } };

			if (poll(p, 2, left) <= 0)
				continue;
			soon = now_ms() + SOON_MS;
			if (p[1].revents && hear_exec(w)) {
				pause = SOON_MS;
				next = soon < next ? soon : next;
			}
			if (p[0].revents) {
				if (read(w->hear, bytes, sizeof(bytes)) <= 0)
					_exit(0);
				listen_to_execs(w);
				pause = SOON_MS;
				break;
			}
		}
	}
}

static void start_watcher(struct strays *s)
{
	struct watcher w = { .supervisor = getpid(), .fifo = s->fifo, .events = -1 };
	int ends[2];

	s->next = 0;
	if (readlink("/proc/self/exe", w.self, sizeof(w.self) - 1) <= 0 ||
	    !realpath(s->job->places->proxy, w.proxy) || !realpath(s->job->places->libdir, w.libdir) ||
	    pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return;
	w.hear = ends[0];
	s->watcher = fork();
	if (!s->watcher) {
		start_close_others((int[]){ w.fifo, w.hear }, 2);
		if (s->begins)
			listen_to_execs(&w);
		watch(&w);
	}
	close(ends[0]);
	s->tell = ends[1];
	if (s->watcher < 0)
		strays_ended(s, s->watcher);
}

int strays_step(struct strays *s)
{
	uint64_t now = now_ms();

	if (!s->next || s->fifo < 0)
		return -1;
	if (now < s->next)
		return s->next - now;
	start_watcher(s);
	return -1;
}

bool strays_ended(struct strays *s, pid_t pid)
{
	if (!s->watcher || pid != s->watcher)
		return false;
	s->watcher = 0;
	close(s->tell);
	s->tell = -1;
	return true;
}

void strays_finish(struct strays *s)
{
	s->next = 0;
	if (s->watcher)
		kill(s->watcher, SIGKILL);
}

void strays_stop(struct strays *s)
{
	strays_hear(s);
	if (s->fifo >= 0)
		close(s->fifo);
	s->fifo = -1;
}
