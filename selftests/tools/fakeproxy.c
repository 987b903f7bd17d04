// SPDX-License-Identifier: Apache-2.0
/*
 * fakeproxy.c - replaces singvgpu-proxy in tests of the launcher: answers, counts, and misbehaves
 *
 * FAKE_PROXY selects how: "" serves until the client hangs up; segv dies of SIGSEGV when the
 * client has connected; exit ends before it answers, drop after that; hang ignores SIGTERM and the
 * client's end; trash damages its trace. FAKE_PROXY_TELL is a file that gets its arguments,
 * environment and open files. FAKE_KERNELS is what it shows of kernels: asked, cached, compiled, kept,
 * failed, ns, images without PTX, launches; if not all are done, one has been compiled for a second.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proto.h"
#include "stat.h"
#include "trace.h"

static const struct option longs[] = {
	{ "socket", required_argument, NULL, 's' }, { "device", required_argument, NULL, 'd' },
	{ "driver", required_argument, NULL, 'D' }, { "stat", required_argument, NULL, 'S' },
	{ "budget", required_argument, NULL, 'B' }, { "log", required_argument, NULL, 'l' },
	{ "trace", required_argument, NULL, 't' },  { "backend", required_argument, NULL, 'b' },
	{ "control", required_argument, NULL, 'c' }, { "window", required_argument, NULL, 'w' },
	{ "board", required_argument, NULL, 'o' }, { "seat", required_argument, NULL, 'e' },
	{ "map", required_argument, NULL, 'm' }, { "sharers", required_argument, NULL, 'a' },
	{ "whole", no_argument, NULL, 'W' },
	{ 0 },
};

static const char *mode;
static struct uproxy_stat *stat_;
static FILE *trace;

static uint64_t now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void tell(int argc, char **argv)
{
	const char *path = getenv("FAKE_PROXY_TELL");
	char name[300], target[256], line[1024];
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *e;
	FILE *out;
	int n = 0;

	if (!path)
		return;
	/* in one write: several proxies append to it */
	out = fmemopen(line, sizeof(line), "w");
	for (int i = 1; i < argc; i++)
		fprintf(out, "%s ", argv[i]);
	fprintf(out, "preload=%s path=%s devices=%s rank=%s visible=%s nccl=%s%s%s", getenv("LD_PRELOAD") ?: "",
		getenv("LD_LIBRARY_PATH") ?: "", getenv("SINGVGPU_SOFT_DEVICES") ?: "", getenv("RANK") ?: "",
		getenv("CUDA_VISIBLE_DEVICES") ?: "", getenv("NCCL_COMM_ID") ?: "", getenv("NCCL_COMM_BLOCKING") ?: "",
		getenv("NCCL_ALGO") ?: "");
	while ((e = readdir(dir))) {
		snprintf(name, sizeof(name), "/proc/self/fd/%s", e->d_name);
		ssize_t len = readlink(name, target, sizeof(target) - 1);

		if (len < 0)
			continue;
		target[len] = 0;
		n += strcmp(target, "/proc") && !strstr(target, "/fd") ? 1 : 0;
	}
	closedir(dir);
	fprintf(out, " files=%d\n", n);
	fclose(out);
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);

	if (fd < 0 || write(fd, line, strlen(line)) < 0)
		exit(9);
	close(fd);
}

static void open_stat(const char *path, int client, int device)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	if (fd < 0 || ftruncate(fd, sizeof(*stat_)))
		exit(8);
	stat_ = mmap(NULL, sizeof(*stat_), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	stat_->version = UPROXY_STAT_VERSION;
	stat_->size = sizeof(*stat_);
	stat_->state = UPROXY_SERVING;
	stat_->pid = getpid();
	stat_->client = client;
	stat_->device = device;
	stat_->started_ns = now_ns(CLOCK_REALTIME);
	stat_->device_bytes = 64 << 20;
	strcpy(stat_->device_name, "fake \"device\"");
	strcpy(stat_->backend, "memfd");
	atomic_thread_fence(memory_order_release);
	*(volatile uint32_t *)&stat_->magic = UPROXY_STAT_MAGIC;
}

static bool fake_kernels(void)
{
	const char *text = getenv("FAKE_KERNELS");
	struct uproxy_kernels *k = &stat_->kernels;

	if (!text || sscanf(text, "%lu %lu %lu %lu %lu %lu %lu %lu", &k->asked, &k->cached, &k->compiled,
			    &k->kept, &k->failed, &k->ns, &k->no_ptx, &stat_->launches) != 8)
		return false;
	if (!k->since && k->asked > k->cached + k->compiled + k->failed)
		k->since = now_ns(CLOCK_MONOTONIC) - 1000000000;
	return true;
}

static void put_name(unsigned int kind, unsigned int id, const char *text)
{
	struct uproxy_trace_name n = { .kind = kind, .id = id, .text_len = strlen(text) };

	n.len = (sizeof(n) + n.text_len + 7) & ~7;
	fwrite(&n, sizeof(n), 1, trace);
	fwrite(text, n.text_len, 1, trace);
	fwrite("\0\0\0\0\0\0\0", n.len - sizeof(n) - n.text_len, 1, trace);
}

static void open_trace(const char *path, int client, int device)
{
	struct uproxy_trace_head h = { .magic = UPROXY_TRACE_MAGIC,
				       .version = strcmp(mode, "version") ? UPROXY_TRACE_VERSION : 9,
				       .size = sizeof(h), .pid = getpid(), .client = client,
				       .device = device, .device_name = "fake \"device\"" };

	trace = fopen(path, "w");
	fwrite(&h, sizeof(h), 1, trace);
	put_name(UPROXY_TRACE_NAME, 7, "cuLaunchKernel");
	put_name(UPROXY_TRACE_NAME, 9, "cuMemcpyAsync");
	put_name(UPROXY_TRACE_LANE, 1, "stream \\1");
}

static void work(void)
{
	uint64_t times = 1 + (now_ns(CLOCK_REALTIME) - stat_->started_ns) / 10000000;

	/* 1000 calls a second, however seldom we are scheduled */
	stat_->calls = 10 * times;
	if (!fake_kernels())
		stat_->launches = 5 * times;
	stat_->bytes_to_device = 4096 * times;
	if (!trace)
		return;
	for (int lane = 0; lane < 2; lane++) {
		struct uproxy_trace_span s = { .kind = UPROXY_TRACE_SPAN, .len = sizeof(s),
					       .op = lane ? 9 : 7, .lane = lane,
					       .begin_ns = now_ns(CLOCK_MONOTONIC),
					       .length_ns = 1500, .bytes = lane ? 4096 : 0 };

		fwrite(&s, sizeof(s), 1, trace);
	}
}

/* Random bytes over a part of what is behind the header, and after it. */
static void spoil(void)
{
	int n = 0, end;

	srand(now_ns(CLOCK_MONOTONIC));
	end = ftell(trace);
	fseek(trace, sizeof(struct uproxy_trace_head) + rand() % (end / 2), SEEK_SET);
	while (n++ < 1 + rand() % 100)
		putc(rand(), trace);
	fseek(trace, 0, SEEK_END);
	while (n++ < 300)
		putc(rand(), trace);
}

static void serve(int sock, int device)
{
	struct sv_connected reply = { 0 };
	struct sv_connect req;
	struct ucred peer;
	socklen_t len = sizeof(peer);
	char c;

	if (recv(sock, &req, sizeof(req), MSG_WAITALL) != sizeof(req))
		exit(7);
	getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len);
	if (!strcmp(mode, "exit"))
		exit(3);
	snprintf(reply.why, sizeof(reply.why), "device %d", req.device < 0 ? device : req.device);
	send(sock, &reply, sizeof(reply), MSG_NOSIGNAL);
	if (!strcmp(mode, "segv"))
		raise(SIGSEGV);
	if (!strcmp(mode, "drop"))
		exit(1);
	for (;;) {
		struct pollfd p = { .fd = sock, .events = POLLIN };

		if (stat_)
			work();
		if (poll(&p, 1, 10) > 0 && recv(sock, &c, 1, 0) <= 0 && strcmp(mode, "hang"))
			return;
		if (p.revents)
			poll(NULL, 0, 10);
	}
}

int main(int argc, char **argv)
{
	const char *stat = NULL, *trace_path = NULL;
	int sock = -1, device = -1, c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 's':
			sock = atoi(optarg);
			break;
		case 'd':
			device = atoi(optarg);
			break;
		case 'S':
			stat = optarg;
			break;
		case 't':
			trace_path = optarg;
			break;
		case '?':
			return 2;
		}
	}
	mode = getenv("FAKE_PROXY") ?: "";
	if (!strcmp(mode, "hang"))
		signal(SIGTERM, SIG_IGN);
	tell(argc, argv);
	if (stat)
		open_stat(stat, 0, device);
	if (trace_path)
		open_trace(trace_path, 0, device);
	serve(sock, device);
	if (trace && !strcmp(mode, "trash"))
		spoil();
	return trace && fclose(trace);
}
