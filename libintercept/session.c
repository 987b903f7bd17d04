// SPDX-License-Identifier: Apache-2.0
/*
 * session.c - the process's one session: connects, ends, handles fork, lists the program's devices
 *
 *   NONE ── cuInit: session_open ──► OPEN ── fork ──► (child) FORKED, for good
 *                                     │ the proxy dies, or the context breaks: still OPEN, and every
 *                                     ▼ call returns the sticky error
 *
 * The socket to the launcher is closed after connecting, so that a dump finds only the channel.
 */
#include "client.h"
#include "log.h"
#include "memory_i.h"
#include "windows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

LOCAL struct session session = {
	.lock = LOCK_INIT(LOCK_SESSION),
	.locks = {
		.managedvars = LOCK_INIT(LOCK_MANAGEDVAR),
		.hostfunc = LOCK_INIT(LOCK_HOSTFUNC),
		.pools = LOCK_INIT(LOCK_POOLS),
		.vmm = LOCK_INIT(LOCK_VMM),
		.ipc = LOCK_INIT(LOCK_IPC),
		.memory = LOCK_INIT(LOCK_MEMORY),
		.registered = LOCK_INIT(LOCK_REGISTERED),
		.arena = LOCK_INIT(LOCK_ARENA),
		.stage = LOCK_INIT(LOCK_STAGE),
		.textures = LOCK_INIT(LOCK_TEXTURES),
		.prints = LOCK_INIT(LOCK_PRINTS),
	},
};

void client_log(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	log_line(fmt, ap);
	va_end(ap);
}

CUresult session_rc(int rc)
{
	switch (rc) {
	case 0:
		return CUDA_SUCCESS;
	case -ECHILD:
		return CUDA_ERROR_NOT_INITIALIZED;
	case -EMSGSIZE:
		return CUDA_ERROR_INVALID_VALUE;
	case -ENOMEM:
	case -EDQUOT:
		return CUDA_ERROR_OUT_OF_MEMORY;
	default:
		return CUDA_ERROR_UNKNOWN;
	}
}

CUresult session_broken(void)
{
	return session.state == SESSION_OPEN ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static void forked(void)
{
	if (session.state != SESSION_OPEN)
		return;
	session.state = SESSION_FORKED;
	host_forked();
}

/* ------------------------------------------------------------------------------ connecting */

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
		client_log("%s: %s", path, strerror(errno));
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

/* The channel's fd for a session on the job's device (-1: the launcher's choice). */
static int ask(int device)
{
	struct sv_connect hello = { SV_CONNECT_MAGIC, SV_PROTO_VERSION, device, CUDA_VERSION };
	struct sv_connected answer;
	int sock = reach(), rc;

	if (sock < 0)
		return sock;
	rc = send(sock, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello) ? 0 : -EPIPE;
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

static int check_shared(const struct sv_shared *sh, uint64_t arena_len)
{
	if (sh->magic == SV_SHARED_MAGIC && sh->version != SV_PROTO_VERSION) {
		client_log("the proxy speaks version %u of the protocol, this library %u", sh->version,
			   SV_PROTO_VERSION);
		return -EPROTONOSUPPORT;
	}
	if (sh->magic != SV_SHARED_MAGIC || sh->size != sizeof(*sh) || !sh->devices ||
	    sh->devices > SV_DEVICES_MAX || sh->device < 0 ||
	    sh->device >= (int)sh->devices || sh->arena_first < sizeof(*sh) ||
	    sh->arena_first >= arena_len ||
	    !sv_window_valid(&(struct sv_window){ sh->window, sh->window_len }))
		return -EPROTO;
	return 0;
}

static int connect_gated(int device)
{
	struct ring *r;
	int fd = ask(device), rc;

	if (fd < 0)
		return fd;
	window_make_way();
	rc = ring_attach(&r, fd);
	if (rc == -EPROTONOSUPPORT)
		client_log("the channel is of version %u, this library speaks version %u",
			   ring_version_of(fd), SINGVGPU_API_VERSION);
	if (rc) {
		client_log("attaching the channel: %s", ring_strerror(rc));
		close(fd);
		return rc;
	}
	session.arena = ring_arena(r);
	session.shared = (const void *)session.arena;
	rc = check_shared(session.shared, ring_geometry(r)->arena_len);
	if (!rc)
		rc = window_reserve(session.shared->window, session.shared->window_len);
	if (rc) {
		client_log("no session: %s", ring_strerror(rc));
		ring_close(r);
		return rc;
	}
	session.late_seen = session.shared->late >> 32;
	session.ring = r;
	return 0;
}

static int connect_to(int device)
{
	int gate = gate_enter(), rc = connect_gated(device);

	if (gate >= 0)
		close(gate);
	return rc;
}

/* ----------------------------------------------------------------------- the program's devices */

static int by_uuid(const char *s, size_t n)
{
	const struct sv_shared *sh = session.shared;
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
static void visible_devices(void)
{
	const char *s = getenv("CUDA_VISIBLE_DEVICES");
	int n = 0;

	if (!s) {
		for (n = 0; n < (int)session.shared->devices; n++)
			session.visible[n] = n;
		session.devices = n;
		return;
	}
	while (*s && n < SV_DEVICES_MAX) {
		size_t len = strcspn(s, ",");
		char *end;
		long d;

		if (!strncasecmp(s, "GPU-", 4)) {
			d = by_uuid(s, len);
		} else {
			d = strtol(s, &end, 10);
			if (end == s || (*end && *end != ','))
				d = -1;
		}
		if (d < 0 || d >= (int)session.shared->devices)
			break;
		for (int i = 0; i < n; i++)
			if (session.visible[i] == d) {
				session.devices = 0;
				return;
			}
		session.visible[n++] = d;
		s += len + (s[len] == ',');
	}
	session.devices = n;
}

const struct sv_device *session_device(int device)
{
	if (device < 0 || device >= session.devices)
		return NULL;
	return &session.shared->dev[session.visible[device]];
}

/* ---------------------------------------------------------------------- opening the session */

static CUresult begin_session(void)
{
	TRY(memory_init());
	TRY(arena_init());
	TRY(pool_init());
	return stage_init();
}

CUresult session_move(int device)
{
	int rc;

	ring_close(session.ring);
	session.ring = NULL;
	rc = connect_to(session.visible[device]);
	if (rc) {
		session.state = SESSION_NONE;
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	}
	session.device = device;
	return begin_session();
}

static CUresult open_locked(void)
{
	int rc = connect_to(-1);

	if (rc == -ENODEV)
		return CUDA_ERROR_NO_DEVICE;
	if (rc)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	visible_devices();
	if (!session.devices) {
		ring_close(session.ring);
		session.ring = NULL;
		return CUDA_ERROR_NO_DEVICE;
	}
	session.device = -1;
	for (int i = 0; i < session.devices; i++)
		if (session.visible[i] == session.shared->device)
			session.device = i;
	if (session.device < 0)
		TRY(session_move(0));
	else
		TRY(begin_session());
	if (pthread_atfork(NULL, NULL, forked)) {
		ring_close(session.ring);
		session.ring = NULL;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	__atomic_store_n(&session.state, SESSION_OPEN, __ATOMIC_RELEASE);
	bypass_check();
	return CUDA_SUCCESS;
}

CUresult session_open(void)
{
	CUresult rc = CUDA_SUCCESS;

	if (__atomic_load_n(&session.state, __ATOMIC_ACQUIRE) == SESSION_OPEN)
		return CUDA_SUCCESS;
	if (session.state == SESSION_FORKED)
		return CUDA_ERROR_NOT_INITIALIZED;
	lock_take(&session.lock);
	if (session.state == SESSION_NONE)
		rc = open_locked();
	lock_drop(&session.lock);
	return rc;
}
