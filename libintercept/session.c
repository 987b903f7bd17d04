// SPDX-License-Identifier: Apache-2.0
/*
 * session.c - begins the process's sessions: connects, handles fork, finds the program's devices
 *
 *   NONE ── cuInit: session_open ──► OPEN ── fork ──► (child) FORKED, for good
 *                                     │ a proxy dies, or its context breaks: still OPEN, and every
 *                                     ▼ call on that device returns the sticky error
 *
 * cuInit connects the first session, to the device of the launcher's choice. The first context may
 * be made on another device: then that session moves there. The others are connected when something
 * is made on their devices. The socket to the launcher is closed after connecting, so that a dump
 * finds only the channel.
 */
#include "hooks.h"
#include "log.h"
#include "session.h"
#include "space.h"
#include "windows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Where channels of further sessions are mapped: behind what the first one's may take. */
#define OTHERS_OFF	(512ull << 30)
#define OTHERS_STEP	(1ull << 30)
#define OTHERS_TRIES	256
#define PART_BYTES	4096

static void forked(void)
{
	if (process.state != SESSION_OPEN)
		return;
	process.state = SESSION_FORKED;
	for (int i = 0; i < session_hooks_n; i++)
		if (session_hooks[i].forked)
			session_hooks[i].forked();
}

/* ------------------------------------------------------------------------------ connecting */

/* Nobody else can say so: the launcher does not hear of it. */
static void say_denied(const char *path)
{
	static bool said;
	const char *where = getenv("SINGVGPU_LOG");
	char line[512];
	int n;

	if (__atomic_exchange_n(&said, true, __ATOMIC_RELAXED) || (where && *where && *where != '/'))
		return;
	n = snprintf(line, sizeof(line), "singvgpu[%d]: %s finds no device: it runs as user %u, who may not open the "
		     "job's folder (%s). Start `singvgpu run` as that user instead", getpid(),
		     program_invocation_short_name, geteuid(), path);
	log_put(STDERR_FILENO, line, log_end(line, sizeof(line), n));
}

static int reach(void)
{
	const char *path = getenv("SINGVGPU_SOCKET");
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd, rc;

	if (!path || !*path || strlen(path) >= sizeof(to.sun_path)) {
		client_log("no SINGVGPU_SOCKET: start the program with `singvgpu run`");
		return -ENOENT;
	}
	strcpy(to.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	do {
		rc = connect(fd, (struct sockaddr *)&to, sizeof(to));
	} while (rc && errno == EINTR);
	if (rc) {
		rc = -errno;
		client_log("%s: %s", path, strerror(-rc));
		if (rc == -EACCES)
			say_denied(path);
		close(fd);
		return rc;
	}
	return fd;
}

/*
 * Takes a file lock that keeps a dump away while the connection to the launcher is open. An older
 * launcher has no such file. Returns the fd, or -1.
 */
static int gate_enter(void)
{
	const char *path = getenv("SINGVGPU_SOCKET");
	char gate[256];
	int fd;

	if (!path || snprintf(gate, sizeof(gate), "%s.gate", path) >= (int)sizeof(gate))
		return -1;
	fd = open(gate, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	while (fd >= 0 && flock(fd, LOCK_SH) && errno == EINTR)
		;
	return fd;
}

static int read_all(int fd, void *to, size_t len)
{
	for (size_t n = 0; n < len;) {
		ssize_t r = read(fd, (char *)to + n, len - n);

		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return r ? -errno : -EPIPE;
		n += r;
	}
	return 0;
}

/*
 * CRIU takes mappings of one device that follow each other for mappings of one file, and the module's
 * channels are all of one device: a page of another file parts them.
 */
static bool part(uint64_t at)
{
	void *before = (void *)(uintptr_t)(at - PART_BYTES);
	void *p = mmap(before, PART_BYTES, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS |
		       MAP_FIXED_NOREPLACE, -1, 0);

	return p == before || (p == MAP_FAILED && errno == EEXIST);
}

/* A place for another session's channel. Nothing is mapped there now; else 0. */
static uint64_t channel_place(void)
{
	uint64_t at = RING_VA_BASE + OTHERS_OFF;

	for (int i = 0; i < OTHERS_TRIES; i++, at += OTHERS_STEP) {
		void *p = mmap((void *)(uintptr_t)at, OTHERS_STEP, PROT_NONE, MAP_PRIVATE |
			       MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

		if (p == MAP_FAILED)
			continue;
		munmap(p, OTHERS_STEP);
		if (p == (void *)(uintptr_t)at)
			return at;
	}
	return 0;
}

/* What a proxy has to know of the process's sessions. */
static int describe(struct sv_connect *hello)
{
	for (int i = 0; i < process.devices; i++)
		if (sessions[i].ring)
			hello->taken[hello->others++] = (struct sv_window){
				sessions[i].shared->window, sessions[i].shared->window_len };
	if (!hello->others)
		return 0;
	hello->channel = channel_place();
	if (!hello->channel || (ring_backend(process.home->ring) == RING_KMOD && !part(hello->channel)))
		return -EEXIST;
	return 0;
}

static int say_hello(int sock, int device)
{
	struct sv_connect hello = { .magic = SV_CONNECT_MAGIC, .version = SV_PROTO_VERSION,
				    .device = device, .api = CUDA_VERSION };
	int rc = describe(&hello);

	if (!rc)
		rc = send(sock, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello) ? 0 : -EPIPE;
	if (!rc && hello.others)
		rc = ring_pass_fd(sock, ring_fd(process.home->ring));
	return rc;
}

/* The channel's fd for a session on the job's device (-1: the launcher's choice). */
static int ask(int device)
{
	struct sv_connected answer;
	int sock = reach(), rc;

	if (sock < 0)
		return sock;
	rc = say_hello(sock, device);
	if (!rc)
		rc = read_all(sock, &answer, sizeof(answer));
	if (rc)
		client_log("the launcher ended the connection: %s", strerror(-rc));
	if (!rc && answer.status) {
		answer.why[sizeof(answer.why) - 1] = 0;
		client_log("no session: %s", answer.why);
		rc = answer.status < 0 ? answer.status : -EPROTO;
	}
	if (!rc)
		rc = ring_take_fd(sock);
	close(sock);
	return rc;
}

/* device: the job's that was asked for; -1: that of the table of seating. */
static int check_shared(const struct sv_shared *sh, int device, uint64_t own_len, uint64_t arena_len)
{
	if (own_len < sizeof(*sh))
		return -EPROTO;
	if (sh->magic == SV_SHARED_MAGIC && sh->version != SV_PROTO_VERSION) {
		client_log("the proxy speaks version %u of the protocol, this library %u", sh->version,
			   SV_PROTO_VERSION);
		return -EPROTONOSUPPORT;
	}
	if (sh->magic != SV_SHARED_MAGIC || sh->size != sizeof(*sh) || !sh->devices ||
	    sh->devices > SV_DEVICES_MAX || sh->device < 0 ||
	    sh->device >= (int)sh->devices || sh->arena_first < sizeof(*sh) ||
	    (device >= 0 && sh->device != device) ||
	    sh->arena_first >= arena_len ||
	    !sv_window_valid(&(struct sv_window){ sh->window, sh->window_len }))
		return -EPROTO;
	return 0;
}

/* The channel is r's, and so is the arena of the first session. */
static int adopt(struct session *s, struct ring *r)
{
	const struct sv_shared *sh = ring_arena(r);
	int rc = window_reserve(&s->window_at, sh->window, sh->window_len);

	if (rc) {
		client_log("no session: %s", ring_strerror(rc));
		return rc;
	}
	if (!process.home) {
		process.arena = ring_arena(r);
		process.arena_len = ring_geometry(r)->arena_len;
		process.home = s;
	}
	s->shared = sh;
	s->late_seen = sh->late & ~SV_LATE_FULL;
	__atomic_store_n(&s->ring, r, __ATOMIC_RELEASE);
	return 0;
}

static int connect_gated(int device, struct ring **r)
{
	int fd = ask(device), rc;
	uint64_t len;

	if (fd < 0)
		return fd;
	window_make_way();
	rc = ring_attach(r, fd);
	if (rc == -EPROTONOSUPPORT)
		client_log("the channel is of version %u, this library speaks version %u",
			   ring_version_of(fd), SINGVGPU_API_VERSION);
	if (rc) {
		client_log("attaching the channel: %s", ring_strerror(rc));
		close(fd);
		return rc;
	}
	len = ring_geometry(*r)->arena_len;
	rc = check_shared(ring_arena(*r), device, len, process.home ? process.arena_len : len);
	if (rc) {
		client_log("no session: %s", ring_strerror(rc));
		ring_close(*r);
	}
	return rc;
}

/* A channel to a proxy on the job's device, whose struct sv_shared has been checked. */
static int connect_to(int device, struct ring **r)
{
	int gate = gate_enter(), rc = connect_gated(device, r);

	if (gate >= 0)
		close(gate);
	return rc;
}

/* ----------------------------------------------------------------------- the program's devices */

static int by_uuid(const struct sv_shared *sh, const char *s, size_t n)
{
	int found = -1;

	for (int i = 0; i < (int)sh->devices; i++) {
		const uint8_t *u = sh->dev[i].uuid;
		char t[48];

		snprintf(t, sizeof(t), "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
			 "%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7],
			 u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
		if (n > 4 && n <= strlen(t) && !strncasecmp(s, t, n)) {
			if (found >= 0)
				return -1;	/* a prefix of several */
			found = i;
		}
	}
	return found;
}

/*
 * CUDA_VISIBLE_DEVICES: ordinals or beginnings of UUIDs. The first unknown entry ends the list,
 * and a device named twice makes all devices invisible (CUDA programming guide).
 */
static void visible_devices(const struct sv_shared *sh)
{
	const char *s = getenv("CUDA_VISIBLE_DEVICES");
	int n = 0;

	if (!s) {
		for (n = 0; n < (int)sh->devices; n++)
			process.visible[n] = n;
		process.devices = n;
		return;
	}
	while (*s && n < SV_DEVICES_MAX) {
		size_t len = strcspn(s, ",");
		char *end;
		long d;

		if (!strncasecmp(s, "GPU-", 4)) {
			d = by_uuid(sh, s, len);
		} else {
			d = strtol(s, &end, 10);
			if (end == s || (*end && *end != ','))
				d = -1;
		}
		if (d < 0 || d >= (int)sh->devices)
			break;
		for (int i = 0; i < n; i++)
			if (process.visible[i] == d) {
				process.devices = 0;
				return;
			}
		process.visible[n++] = d;
		s += len + (s[len] == ',');
	}
	process.devices = n;
}

/* ---------------------------------------------------------------------- opening the sessions */

static void disconnect(struct session *s)
{
	struct ring *r = s->ring;

	if (s == process.home)
		process.home = NULL;
	for (int i = 0; i < session_hooks_n; i++)
		if (session_hooks[i].part)
			session_hooks[i].part(s);
	window_leave(&s->window_at);
	__atomic_store_n(&s->ring, NULL, __ATOMIC_RELEASE);
	ring_close(r);
}

static CUresult begin_session(struct session *s)
{
	ON(s);

	for (int i = 0; i < session_hooks_n; i++)
		if (session_hooks[i].begin)
			TRY(session_hooks[i].begin());
	return CUDA_SUCCESS;
}

/* A session over the channel r, which it closes if it fails. */
static CUresult begin_on(struct session *s, struct ring *r)
{
	CUresult rc = process.home ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_ERROR_SYSTEM_NOT_READY;

	if (adopt(s, r)) {
		ring_close(r);
		return rc;
	}
	rc = begin_session(s);
	if (rc)
		disconnect(s);
	return rc;
}

CUresult session_on(int device, struct session **out)
{
	struct session *s = &sessions[device];
	struct ring *r;

	*out = s;
	if (s->ring)
		return CUDA_SUCCESS;
	if (!process.used)
		disconnect(process.home);
	if (connect_to(process.visible[device], &r)) {
		if (!process.home)
			process.state = SESSION_NONE;
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	}
	TRY(begin_on(s, r));
	if (s != process.home)
		__atomic_store_n(&process.several, true, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

CUresult session_make(int device, struct session **out)
{
	CUresult rc;

	*out = &sessions[device];
	if (likely(*out == here))
		return CUDA_SUCCESS;	/* another one may be half begun */
	if (thread.in_callback)
		return CUDA_ERROR_NOT_PERMITTED;
	lock_take(&process.lock);
	rc = session_on(device, out);
	lock_drop(&process.lock);
	return rc;
}

/* The first session, over the channel r, if the program sees its device, else on the first one. */
static CUresult begin_first(struct ring *r)
{
	const struct sv_shared *sh = ring_arena(r);

	free(process.dev);	/* of a failed cuInit */
	process.dev = malloc(sizeof(sh->dev));
	if (!process.dev) {
		ring_close(r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memcpy(process.dev, sh->dev, sizeof(sh->dev));
	process.driver_version = sh->driver_version;
	visible_devices(sh);
	for (int i = 0; i < process.devices; i++)
		if (process.visible[i] == sh->device)
			return begin_on(&sessions[i], r);
	ring_close(r);
	if (!process.devices)
		return CUDA_ERROR_NO_DEVICE;
	if (connect_to(process.visible[0], &r))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	return begin_on(&sessions[0], r);
}

static CUresult open_locked(void)
{
	struct ring *r;
	int rc = connect_to(-1, &r);

	if (rc)
		return rc == -ENODEV ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_SYSTEM_NOT_READY;
	for (int i = 0; i < session_hooks_n; i++)
		if (session_hooks[i].first)
			TRY(session_hooks[i].first());
	TRY(begin_first(r));
	if (pthread_atfork(NULL, NULL, forked)) {
		disconnect(process.home);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	here = process.home;
	__atomic_store_n(&process.state, SESSION_OPEN, __ATOMIC_RELEASE);
	bypass_check();
	return CUDA_SUCCESS;
}

CUresult session_open(void)
{
	CUresult rc = CUDA_SUCCESS;

	/* pairs with open_locked() */
	if (__atomic_load_n(&process.state, __ATOMIC_ACQUIRE) == SESSION_OPEN)
		return CUDA_SUCCESS;
	if (process.state == SESSION_FORKED)
		return CUDA_ERROR_NOT_INITIALIZED;
	lock_take(&process.lock);
	if (process.state == SESSION_NONE)
		rc = open_locked();
	lock_drop(&process.lock);
	return rc;
}
