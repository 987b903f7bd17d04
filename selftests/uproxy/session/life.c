// SPDX-License-Identifier: Apache-2.0
/*
 * life.c - beginning and end of a session: refusals, the death of either side, an idle proxy
 */
#include "../client.h"
#include "windows.h"

static const struct sv_connect hello = { .magic = SV_CONNECT_MAGIC, .version = SV_PROTO_VERSION,
					 .device = -1, .api = CUDA_VERSION };

/* Said no, with these words, and exit status 2. */
static int refused(struct __test_metadata *_metadata, const char *const *more,
		   const struct sv_connect *con, const char *words)
{
	struct sv_connected r = { 0 };
	struct client c;
	int rc;

	EXPECT_EQ(client_spawn(&c, more), 0);
	EXPECT_EQ(client_hello(&c, con, &r), 0);
	EXPECT_LT(r.status, 0);
	rc = !!strstr(r.why, words);
	if (!rc)
		fprintf(stderr, "# it said: %s\n", r.why);
	EXPECT_EQ(client_end(&c), 2);
	return rc;
}

TEST(refuses_by_name)
{
	struct sv_connect con = hello;
	char versions[64];

	con.magic = 1;
	EXPECT_TRUE(refused(_metadata, NULL, &con, "no client"));
	con = hello;
	con.version = 99;
	snprintf(versions, sizeof(versions), "version 99 of the protocol, the proxy %u",
		 SV_PROTO_VERSION);
	EXPECT_TRUE(refused(_metadata, NULL, &con, versions));
	con = hello;
	con.device = 7;
	EXPECT_TRUE(refused(_metadata, NULL, &con, "no device 7"));
	con.device = -2;
	EXPECT_TRUE(refused(_metadata, NULL, &con, "no device -2"));
	EXPECT_TRUE(refused(_metadata, (const char *[]){ "--driver", "/nowhere.so", NULL }, &hello,
			    "cannot load the driver"));
	/* A window where something is: the C library of the proxy is up there. */
	EXPECT_TRUE(refused(_metadata, (const char *[]){ "--window", "0x7e0000000000:0x20000000000",
							 NULL }, &hello, "driver"));
}

/* As refused(), for a process that has other sessions and passes this fd; -1: none. */
static int guest_refused(struct __test_metadata *_metadata, const struct sv_connect *con, int fd,
			 const char *words)
{
	static const char *const memfd[] = { "--backend", "memfd", NULL };
	struct sv_connected r = { 0 };
	struct client c;
	int rc;

	EXPECT_EQ(client_spawn(&c, memfd), 0);
	EXPECT_EQ(send(c.sock, con, sizeof(*con), 0), sizeof(*con));
	if (fd < 0)
		shutdown(c.sock, SHUT_WR);
	EXPECT_TRUE(fd < 0 || !ring_pass_fd(c.sock, fd));
	rc = recv(c.sock, &r, sizeof(r), MSG_WAITALL) != sizeof(r) || strstr(r.why, words);
	if (!rc)
		fprintf(stderr, "# it said: %s\n", r.why);
	EXPECT_TRUE(fd < 0 || r.status < 0);
	EXPECT_EQ(client_end(&c), 2);
	return rc;
}

/* A session of a process that has others already: the first one's channel, and places that are free. */
TEST(refuses_guests_by_name)
{
	struct sv_connect good = hello, con;
	int null = open("/dev/null", O_RDWR), page = memfd_create("page", 0);
	int loose = memfd_create("loose", 0), brief = memfd_create("brief", MFD_ALLOW_SEALING), own;
	struct client home;
	char *copy;

	ASSERT_EQ(client_start(&home, (const char *[]){ "--backend", "memfd", NULL }), 0);
	own = ring_fd(home.ring);
	good.others = 1;
	good.channel = RING_VA_BASE + (600ull << 30);
	good.taken[0] = (struct sv_window){ home.shared->window, home.shared->window_len };

	EXPECT_TRUE(guest_refused(_metadata, &good, -1, ""));
	EXPECT_TRUE(guest_refused(_metadata, &good, null, "arena cannot be used"));	/* no channel */
	EXPECT_TRUE(guest_refused(_metadata, &good, page, "arena cannot be used"));
	/* A copy of the channel's first page, of a file that can shrink, and of one that is too short. */
	copy = mmap(NULL, 4096, PROT_READ, MAP_SHARED, own, 0);
	ASSERT_NE(copy, MAP_FAILED);
	ASSERT_EQ(write(loose, copy, 4096), 4096);
	EXPECT_TRUE(guest_refused(_metadata, &good, loose, "arena cannot be used"));
	ASSERT_EQ(write(brief, copy, 4096), 4096);
	ASSERT_EQ(fcntl(brief, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	EXPECT_TRUE(guest_refused(_metadata, &good, brief, "arena cannot be used"));
	ASSERT_EQ(ftruncate(loose, 1ull << 37), 0);
	EXPECT_TRUE(guest_refused(_metadata, &good, loose, "arena cannot be used"));

	con = good;
	con.others = SV_DEVICES_MAX + 1;
	EXPECT_TRUE(guest_refused(_metadata, &con, own, "contradict"));
	con = good;
	con.pad = 1;
	EXPECT_TRUE(guest_refused(_metadata, &con, own, "contradict"));
	con = good;
	con.taken[0].len = 1;
	EXPECT_TRUE(guest_refused(_metadata, &con, own, "no window"));
	con = good;
	con.channel = 12345;
	EXPECT_TRUE(guest_refused(_metadata, &con, own, "channel"));
	con.channel = home.shared->window;	/* where its own window may be */
	con.taken[0].base += 1ull << 44;
	EXPECT_TRUE(guest_refused(_metadata, &con, own, "channel"));
	con = hello;
	con.channel = good.channel;
	EXPECT_TRUE(refused(_metadata, NULL, &con, "contradict"));
	EXPECT_EQ(client_end(&home), 0);
	munmap(copy, 4096);
	close(null);
	close(page);
	close(loose);
	close(brief);
}

TEST(refuses_bad_options)
{
	struct client c;

	EXPECT_EQ(client_spawn(&c, (const char *[]){ "--window", "12", NULL }), 0);
	EXPECT_EQ(client_end(&c), 2);
	EXPECT_EQ(client_spawn(&c, (const char *[]){ "--nonsense", NULL }), 0);
	EXPECT_EQ(client_end(&c), 2);
	EXPECT_EQ(client_spawn(&c, (const char *[]){ "--backend", "smoke", NULL }), 0);
	EXPECT_EQ(client_end(&c), 2);
}

/* A place for conductors that is too long, or not there, costs the job no more than its checkpoints. */
TEST(says_where_it_cannot_listen_and_serves)
{
	static const size_t lengths[] = { 107, 108, 109, 200 };
	char path[1024], log[] = "/tmp/uproxy-log-XXXXXX", text[4096];
	int fd = mkstemp(log);
	struct client c;

	ASSERT_GE(fd, 0);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		bool fits = lengths[i] < 108;	/* an address, with its NUL */

		memset(path, 'x', lengths[i]);
		memcpy(path, "/tmp/", 5);
		path[lengths[i]] = 0;
		unlink(path);
		memset(text, 0, sizeof(text));
		ASSERT_EQ(ftruncate(fd, 0), 0);
		ASSERT_EQ(client_start(&c, (const char *[]){ "--control", path, "--log", log, NULL }),
			  0);
		EXPECT_EQ(access(path, F_OK), fits ? 0 : -1);
		EXPECT_EQ(client_context(&c), 0);
		EXPECT_EQ(client_end(&c), 0);
		EXPECT_EQ(access(path, F_OK), -1);
		EXPECT_GE(pread(fd, text, sizeof(text) - 1, 0), 0);
		EXPECT_EQ(!strstr(text, "too long"), fits) {
			TH_LOG("%zu bytes", lengths[i]);
		}
	}
	unlink(log);
	close(fd);
}

TEST(goes_when_nobody_says_hello)
{
	struct client c;

	ASSERT_EQ(client_spawn(&c, NULL), 0);
	close(c.sock);
	c.sock = -1;
	EXPECT_EQ(client_end(&c), 2);
}

TEST(takes_another_window_and_budget)
{
	struct client c;

	ASSERT_EQ(client_start(&c, (const char *[]){ "--window", "0x210000000000:0x100000000",
						     "--budget", "0x600000", NULL }), 0);
	EXPECT_EQ(c.shared->window, 0x210000000000ull);
	EXPECT_EQ(c.shared->window_len, 1ull << 32);
	EXPECT_EQ(c.shared->budget, 3 * GRANULE);
	EXPECT_EQ(client_context(&c), 0);
	EXPECT_EQ(CALL(&c, SV_OP_X_MAP, (struct sv_map){ c.window + (1ull << 32) - GRANULE,
							 GRANULE }), 0);
	EXPECT_EQ(CALL(&c, SV_OP_X_MAP, (struct sv_map){ c.window, 2 * GRANULE }), 0);
	EXPECT_EQ(client_end(&c), 0);
}

TEST(windows_are_parsed)
{
	static const char *const bad[] = {
		"", ",", "12", "0x210000000000", "0x210000000000:", ":4G", "0x210000000000:4G,",
		"0x210000000000:4G 0x220000000000:4G", "0x210000000000:4GB", "0x210000000000:-4G",
		"0x210000000000: 4G", "0:4G", "0x210000000000:0", "0x210000100000:4G", "0x210000000000:1M",
		"0x7fff00000000:8G",		/* beyond a program's addresses */
		"0x210000000000:16777217T",	/* 1T and 2^64 */
		"0x10000000000000000:4G", "0x200000:65T",
	};
	struct sv_window w[SV_WINDOWS_MAX];
	char many[400] = "0x200000:2M";

	EXPECT_EQ(2, sv_windows_parse("0x210000000000:4G,4194304:0x600000", w));
	EXPECT_EQ(0x210000000000ull, w[0].base);
	EXPECT_EQ(4ull << 30, w[0].len);
	EXPECT_EQ(4ull << 20, w[1].base);
	EXPECT_EQ(6ull << 20, w[1].len);
	EXPECT_EQ(1, sv_windows_parse("0x7fff00000000:4G", w));
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		EXPECT_EQ(-EINVAL, sv_windows_parse(bad[i], w)) {
			TH_LOG("%s", bad[i]);
		}
	}
	for (int i = 1; i < SV_WINDOWS_MAX; i++)
		strcat(many, ",0x200000:2M");
	EXPECT_EQ(SV_WINDOWS_MAX, sv_windows_parse(many, w));
	strcat(many, ",0x200000:2M");
	EXPECT_EQ(-EINVAL, sv_windows_parse(many, w));
}

#define TWO_WINDOWS	"0x210000000000:4G,0x210100000000:2G"

TEST(tries_windows_in_turn)
{
	const char *const two[] = { "--window", TWO_WINDOWS, NULL };
	struct client c;

	setenv("SINGVGPU_SOFT_PROFILE", "h100,window-taken", 1);
	ASSERT_EQ(client_start(&c, two), 0);
	EXPECT_EQ(c.shared->window, 0x210100000000ull);
	EXPECT_EQ(c.shared->window_len, 2ull << 30);
	EXPECT_EQ(client_context(&c), 0);
	EXPECT_EQ(CALL(&c, SV_OP_X_MAP, (struct sv_map){ c.window, 2 * GRANULE }), 0);
	EXPECT_EQ(client_end(&c), 0);
	/* Neither is the driver's choice: it may not be taken for one that was asked for. */
	setenv("SINGVGPU_SOFT_PROFILE", "h100,no-hints", 1);
	EXPECT_TRUE(refused(_metadata, two, &hello, "not the device window at 0x210100000000"));
	unsetenv("SINGVGPU_SOFT_PROFILE");
}

TEST(a_driver_that_reserves_for_a_context_alone)
{
	struct client c;

	setenv("SINGVGPU_SOFT_PROFILE", "h100,late-window", 1);
	ASSERT_EQ(client_start(&c, (const char *[]){ "--window", TWO_WINDOWS, NULL }), 0);
	EXPECT_EQ(c.shared->window, 0x210000000000ull);
	EXPECT_EQ(client_end(&c), 0);
	unsetenv("SINGVGPU_SOFT_PROFILE");
}

TEST(a_driver_that_chooses_the_window)
{
	struct client c;

	if (getenv("SINGVGPU_TEST_WINDOW"))
		SKIP(return, "a sanitizer leaves room at one place only");
	setenv("SINGVGPU_SOFT_PROFILE", "h100,no-hints", 1);
	ASSERT_EQ(client_start(&c, NULL), 0);
	EXPECT_NE(c.shared->window, SV_WINDOW_BASE);
	EXPECT_EQ(c.shared->window % GRANULE, 0);
	EXPECT_EQ(client_context(&c), 0);
	EXPECT_EQ(CALL(&c, SV_OP_X_MAP, (struct sv_map){ c.window, 2 * GRANULE }), 0);
	EXPECT_EQ(client_end(&c), 0);
	unsetenv("SINGVGPU_SOFT_PROFILE");
}

/* Memory whose handle is gone still counts while it is mapped. */
TEST(counts_memory_until_nobody_has_it)
{
	struct client c;
	uint64_t a, b, at;

	ASSERT_EQ(client_start(&c, (const char *[]){ "--budget", "0x600000", NULL }), 0);
	a = new_handle(&c, SV_T_CUmemGenericAllocationHandle_v1);
	b = new_handle(&c, SV_T_CUmemGenericAllocationHandle_v1);
	at = c.window + 8 * GRANULE;
	EXPECT_EQ(CALL(&c, SV_OP_cuMemCreate, (struct sv_mem_create){ a, 2 * GRANULE, 0 }), 0);
	EXPECT_EQ(CALL(&c, SV_OP_cuMemMap, (struct sv_mem_map){ at, 2 * GRANULE, a, 0 }), 0);
	EXPECT_EQ(CALL(&c, SV_OP_cuMemRelease, (struct sv_mem_release){ a }), 0);
	EXPECT_EQ(CALL(&c, SV_OP_cuMemCreate, (struct sv_mem_create){ b, 2 * GRANULE, 0 }),
		  CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQ(CALL(&c, SV_OP_cuMemUnmap, (struct sv_map){ at, 2 * GRANULE }), 0);
	EXPECT_EQ(CALL(&c, SV_OP_cuMemCreate, (struct sv_mem_create){ b, 2 * GRANULE, 0 }), 0);
	EXPECT_EQ(client_end(&c), 0);
}

/* What it holds open: its channel, its log, its capture files; nothing of ours. */
TEST(keeps_nothing_of_who_started_it)
{
	char path[64], target[256], log[256] = "";
	struct client c;
	int fds[2], open_fd = dup(2);	/* inherited: without close-on-exec */

	ASSERT_EQ(pipe(fds), 0);
	ASSERT_GT(readlink("/proc/self/fd/2", log, sizeof(log) - 1), 0);
	ASSERT_EQ(client_start(&c, NULL), 0);
	ASSERT_EQ(client_context(&c), 0);
	for (int i = 0; i < 256; i++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/%d/fd/%d", c.proxy, i);
		n = readlink(path, target, sizeof(target) - 1);
		target[n < 0 ? 0 : n] = 0;
		if (!strcmp(target, log))
			continue;		/* its stderr is ours */
		EXPECT_NE(strncmp(target, "pipe:", 5), 0);
		EXPECT_NE(strncmp(target, "socket:", 7), 0);
	}
	close(open_fd);
	close(fds[0]);
	/* Were our pipe open there, its end would not come before the proxy's. */
	EXPECT_EQ(fcntl(fds[1], F_SETFL, O_NONBLOCK), 0);
	signal(SIGPIPE, SIG_IGN);
	EXPECT_EQ(write(fds[1], "x", 1), -1);
	EXPECT_EQ(errno, EPIPE);
	close(fds[1]);
	EXPECT_EQ(client_end(&c), 0);
}

static void busy_client(int to)
{
	struct client c;
	uint64_t p, lib, k;
	int rc;

	if (client_start(&c, NULL) || client_context(&c))
		_exit(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (write(to, &c.proxy, sizeof(c.proxy)) != sizeof(c.proxy))
		_exit(1);
	lib = load_text(&c, kernels, &rc);
	k = get_kernel(&c, lib, "spin", NULL);
	p = c.window;
	SEND(&c, SV_OP_X_MAP, (struct sv_map){ c.window, GRANULE });
	launch(&c, SV_STREAM_LEGACY, k, 4, 128, &p, 8);		/* for ever */
	ctx_sync(&c);
	_exit(1);
}

static int gone_within(pid_t pid, int ms)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	for (int i = 0; i < ms; i++) {
		if (access(path, F_OK))
			return 1;
		waitpid(pid, NULL, WNOHANG);
		usleep(1000);
	}
	return 0;
}

TEST(ends_with_its_client_whatever_runs)
{
	pid_t proxy, client;
	int fds[2];

	/* The proxy of a killed client becomes ours: so its end is seen at once. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
	for (int i = 0; i < 8; i++) {
		client = fork();
		if (!client)
			busy_client(fds[1]);
		ASSERT_EQ(read(fds[0], &proxy, sizeof(proxy)), sizeof(proxy));
		usleep(i * 7000);
		/* client_spawn lets a proxy die with its parent; here that is not to be. */
		kill(client, SIGKILL);
		EXPECT_EQ(waitpid(client, NULL, 0), client);
		EXPECT_TRUE(gone_within(proxy, 5000));
	}
	close(fds[0]);
	close(fds[1]);
}

TEST(is_missed_when_it_is_killed)
{
	struct client c;

	ASSERT_EQ(client_start(&c, NULL), 0);
	ASSERT_EQ(client_context(&c), 0);
	kill(c.proxy, SIGKILL);
	for (int i = 0; i < 1000 && ctx_sync(&c) == 0; i++)
		usleep(1000);
	EXPECT_EQ(ctx_sync(&c), -EPIPE);
	EXPECT_EQ(client_end(&c), -SIGKILL);
}

TEST(ignores_a_terminal_and_obeys_sigterm)
{
	struct client c;

	ASSERT_EQ(client_start(&c, NULL), 0);
	kill(c.proxy, SIGINT);
	kill(c.proxy, SIGHUP);
	kill(c.proxy, SIGQUIT);
	EXPECT_EQ(client_context(&c), 0);
	EXPECT_EQ(ctx_sync(&c), 0);
	kill(c.proxy, SIGTERM);
	EXPECT_EQ(client_end(&c), -SIGTERM);
}

static uint64_t cpu_ns(pid_t pid)
{
	char path[64], text[1024], *p;
	unsigned long user, sys;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n < 0 ? 0 : n] = 0;
	p = strrchr(text, ')');
	if (!p || sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
			 &sys) != 2)
		return 0;
	return (user + sys) * (1000000000 / sysconf(_SC_CLK_TCK));
}

static long rss_kib(pid_t pid)
{
	char path[64], line[256];
	long kib = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "RssAnon: %ld", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}

TEST(uses_nothing_when_idle)
{
	struct client c;
	uint64_t before, used, lib, k;
	int rc, i;

	ASSERT_EQ(client_start(&c, NULL), 0);
	ASSERT_EQ(client_context(&c), 0);
	EXPECT_LT(rss_kib(c.proxy), 8 << 10);
	lib = load_text(&c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	SEND(&c, SV_OP_X_MAP, (struct sv_map){ c.window, GRANULE });
	k = get_kernel(&c, lib, "count", NULL);
	EXPECT_EQ(launch(&c, SV_STREAM_LEGACY, k, 1, 1, &c.window, 8), 0);
	EXPECT_EQ(ctx_sync(&c), 0);
	usleep(6500000);		/* threads that have nothing to do go, or soon will */
	for (i = 0, used = UINT64_MAX; i < 10 && used > 10000000; i++) {
		before = cpu_ns(c.proxy);
		usleep(2000000);
		used = cpu_ns(c.proxy) - before;
	}
	EXPECT_LE(used, 10000000);
	EXPECT_EQ(ctx_sync(&c), 0);
	EXPECT_EQ(client_end(&c), 0);
}

/* More records than the log holds, of things that come and go. */
TEST(makes_room_in_a_full_log)
{
	char log[] = "/tmp/uproxy-log-XXXXXX", text[4096] = "";
	struct client c;
	int fd = mkstemp(log), rc = 0;

	ASSERT_GE(fd, 0);
	ASSERT_EQ(client_start(&c, (const char *[]){ "--log", log, NULL }), 0);
	ASSERT_EQ(client_context(&c), 0);
	for (uint32_t i = 0; i < 150000 && !rc; i++) {
		uint64_t e = sv_handle(SV_T_CUevent, 5 + i % 7, i / 7);
		struct sv_cuEventCreate a = { .ctx = c.ctx, .phEvent = e };
		struct sv_cuEventDestroy_v2 d = { .hEvent = e };

		rc = ring_submit(c.ring, SV_OP_cuEventCreate, &a, sizeof(a), NULL, 0);
		if (!rc)
			rc = ring_submit(c.ring, SV_OP_cuEventDestroy_v2, &d, sizeof(d), NULL, 0);
	}
	EXPECT_EQ(rc, 0);
	EXPECT_EQ(ctx_sync(&c), 0);
	EXPECT_EQ(late_count(&c), 0);
	EXPECT_EQ(client_end(&c), 0);
	EXPECT_GT(read(fd, text, sizeof(text) - 1), 0);
	EXPECT_NE(strstr(text, "the log was full"), NULL);
	EXPECT_EQ(strstr(text, "takes no more"), NULL);
	unlink(log);
	close(fd);
}

TEST(shows_numbers_and_writes_a_trace)
{
	char stat[] = "/tmp/uproxy-stat-XXXXXX", trace[] = "/tmp/uproxy-trace-XXXXXX";
	const struct uproxy_stat *st;
	struct stat sb;
	struct client c;
	int fd = mkstemp(stat), fd2 = mkstemp(trace);
	uint32_t magic = 0;

	ASSERT_GE(fd, 0);
	ASSERT_GE(fd2, 0);
	ASSERT_EQ(client_start(&c, (const char *[]){ "--stat", stat, "--trace", trace, NULL }), 0);
	st = mmap(NULL, sizeof(*st), PROT_READ, MAP_SHARED, fd, 0);
	ASSERT_NE(st, MAP_FAILED);
	EXPECT_EQ(st->magic, UPROXY_STAT_MAGIC);
	EXPECT_EQ(st->pid, c.proxy);
	EXPECT_EQ(st->client, getpid());
	EXPECT_EQ(client_context(&c), 0);
	EXPECT_EQ(st->state, UPROXY_SERVING);
	EXPECT_NE(st->device_name[0], 0);
	EXPECT_EQ(CALL(&c, SV_OP_X_MAP, (struct sv_map){ c.window, 4 * GRANULE }), 0);
	EXPECT_EQ(st->device_bytes, 4 * GRANULE);
	EXPECT_EQ(CALL(&c, SV_OP_X_UNMAP, (struct sv_map){ c.window, GRANULE }), 0);
	EXPECT_EQ(st->device_bytes, 3 * GRANULE);
	EXPECT_EQ(st->device_peak, 4 * GRANULE);
	EXPECT_EQ(st->calls, 3);
	EXPECT_EQ(st->answered, 3);
	EXPECT_EQ(client_end(&c), 0);
	EXPECT_EQ(st->state, UPROXY_ENDED);
	EXPECT_EQ(pread(fd2, &magic, 4, 0), 4);
	EXPECT_EQ(magic, 0x43525456u);
	EXPECT_EQ(fstat(fd2, &sb), 0);
	EXPECT_GT(sb.st_size, 200);
	munmap((void *)st, sizeof(*st));
	unlink(stat);
	unlink(trace);
	close(fd);
	close(fd2);
}

TEST_HARNESS_MAIN
