/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore.h - the fixture of tests of freezes and restores: a proxy with a client and a conductor
 */
#ifndef UPROXY_RESTORE_H
#define UPROXY_RESTORE_H

#include "../client.h"

#include <sys/un.h>

#include "control.h"
#include "graph.h"
#include "ring_i.h"
#include "store.h"

/* No test program needs all of them. */
#pragma GCC diagnostic ignored "-Wunused-function"

#define SECOND 1000
#define LONG_MS (120 * SECOND)

struct saved {
	struct ctl_info info;
	struct ctl_dumped device, channel;
};

FIXTURE(restore) {
	struct client c;
	struct saved saved;
	uint64_t dev, pin;	/* 8 MiB of device memory, 1 MiB of pinned arena */
	char dir[64], ctl[96], store[96];
	int conn;
};

/* ------------------------------------------------------------------------------ conductor */

static int conduct(FIXTURE_DATA(restore) *self)
{
	struct why why = { 0 };

	for (int i = 0; i < 20000; i++) {
		why_clear(&why);
		self->conn = ctl_connect(self->ctl, &why);
		if (self->conn >= 0)
			return 0;
		usleep(1000);
	}
	fprintf(stderr, "# %s\n", why.text);
	return self->conn;
}

static int ask(FIXTURE_DATA(restore) *self, uint32_t op, void *req, uint32_t size, void *reply,
	       uint32_t cap, int *fd)
{
	struct ctl_head *h = req;
	struct ctl_reply *r = reply;
	int rc;

	h->op = op;
	h->size = size;
	rc = ctl_call(self->conn, h, reply, cap, NULL, NULL, fd, LONG_MS);
	if (rc)
		fprintf(stderr, "# op %u says %d: %s\n", op, rc, r->why);
	return rc;
}

/* The answer to what was sent with ctl_send(), whatever the proxy says of its progress before: ctl_receive()'s, or its status. */
static int take_answer(FIXTURE_DATA(restore) *self, uint32_t op, struct ctl_reply *reply, uint32_t cap, int ms)
{
	struct ctl_progress progress;
	int rc;

	do
		rc = ctl_receive(self->conn, op, reply, cap, &progress, NULL, ms);
	while (rc == 1);
	return rc ?: reply->status;
}

static int ask_info(FIXTURE_DATA(restore) *self, struct ctl_info *info)
{
	struct ctl_head h = { 0 };

	return ask(self, CTL_INFO, &h, sizeof(h), info, sizeof(*info), NULL);
}

static int ask_freeze(FIXTURE_DATA(restore) *self, uint64_t ms, struct ctl_frozen *r)
{
	struct ctl_freeze f = { .idle_ms = ms };

	return ask(self, CTL_FREEZE, &f, sizeof(f), r, sizeof(*r), NULL);
}

static uint64_t save_since;	/* struct ctl_store's since_ns of the next dumps */
static uint32_t save_keep;	/* its keep */

static int ask_store(FIXTURE_DATA(restore) *self, uint32_t op, const char *dir, struct ctl_dumped *r)
{
	struct ctl_store st = { .since_ns = op == CTL_DUMP ? save_since : 0,
				.keep = op == CTL_DUMP ? save_keep : 0 };

	snprintf(st.dir, sizeof(st.dir), "%s", dir);
	return ask(self, op, &st, sizeof(st), r, sizeof(*r), NULL);
}

static int ask_thaw(FIXTURE_DATA(restore) *self)
{
	struct ctl_head h = { 0 };
	struct ctl_reply r;

	return ask(self, CTL_THAW, &h, sizeof(h), &r, sizeof(r), NULL);
}

/* Freezes the session, and saves everything. */
static int save(FIXTURE_DATA(restore) *self)
{
	struct ctl_frozen f;
	int rc;

	if (self->conn >= 0)
		close(self->conn);	/* the proxy serves one conductor at a time */
	rc = conduct(self);
	if (!rc)
		rc = ask_info(self, &self->saved.info);
	if (!rc)
		rc = ask_freeze(self, 60 * SECOND, &f);
	if (!rc)
		rc = ask_store(self, CTL_DUMP, self->store, &self->saved.device);
	if (!rc)
		rc = ask_store(self, CTL_CHANNEL, self->store, &self->saved.channel);
	return rc;
}

static void end_proxy(FIXTURE_DATA(restore) *self)
{
	if (self->c.proxy) {
		kill(self->c.proxy, SIGKILL);
		waitpid(self->c.proxy, NULL, 0);
	}
	self->c.proxy = 0;
	if (self->conn >= 0)
		close(self->conn);
	self->conn = -1;
}

static const char *const *restorer_more;	/* further arguments, NULL at the end */

static int start_restorer(FIXTURE_DATA(restore) *self)
{
	char path[512], lib[512];
	const char *argv[16] = { path, "--restore", "--control", self->ctl, "--driver", lib };
	pid_t pid;

	for (int i = 0; restorer_more && restorer_more[i] && i < 9; i++)
		argv[6 + i] = restorer_more[i];
	snprintf(path, sizeof(path), "%s/uproxy/singvgpu-proxy", build_dir());
	snprintf(lib, sizeof(lib), "%s/uproxy/softgpu/libsoftcuda.so", build_dir());
	unlink(self->ctl);
	pid = fork();
	if (!pid) {
		execv(path, (char **)argv);
		_exit(127);
	}
	self->c.proxy = pid;
	return pid < 0 ? -errno : conduct(self);
}

static void fill_restore(FIXTURE_DATA(restore) *self, struct ctl_restore *r)
{
	memset(r, 0, sizeof(*r));
	snprintf(r->dir, sizeof(r->dir), "%s", self->store);
	r->device = self->saved.device.device;
	r->observed = self->saved.device.observed;
	r->session = self->saved.device.session;
	r->channel = self->saved.channel.channel;
	r->arena = self->saved.channel.arena;
	r->was = self->saved.info.device;
	r->window = self->saved.info.window;
	r->window_len = self->saved.info.window_len;
	r->ordinal = -1;
}

/* Maps another object at the same addresses, as CRIU does. */
static int map_again(struct client *c, int fd)
{
	struct ring *r = c->ring;

	munmap(r->ctl, r->map_len);
	if (dup3(fd, r->fd, O_CLOEXEC) < 0)
		return -errno;
	close(fd);
	return ring_map(r);
}

static int come_back(FIXTURE_DATA(restore) *self)
{
	struct ctl_restored to;
	struct ctl_restore from;
	struct ctl_go go = { .client_pid = getpid() };
	struct ctl_reply reply;
	int fd = -1, rc = start_restorer(self);

	fill_restore(self, &from);
	if (!rc)
		rc = ask(self, CTL_RESTORE, &from, sizeof(from), &to, sizeof(to), &fd);
	if (!rc)
		rc = map_again(&self->c, fd);
	if (!rc)
		rc = ask(self, CTL_GO, &go, sizeof(go), &reply, sizeof(reply), NULL);
	return rc;
}

/* The whole move: the client continues with another proxy. */
static int move(FIXTURE_DATA(restore) *self)
{
	int rc = save(self);

	end_proxy(self);
	return rc ?: come_back(self);
}

FIXTURE_SETUP(restore)
{
	struct client *c = &self->c;
	struct why why = { 0 };

	strcpy(self->dir, "/tmp/uproxy-restore-XXXXXX");
	ASSERT_NE(mkdtemp(self->dir), NULL);
	snprintf(self->ctl, sizeof(self->ctl), "%s/ctl", self->dir);
	snprintf(self->store, sizeof(self->store), "%s/store", self->dir);
	self->conn = -1;
	ASSERT_EQ(store_create(self->store, NULL, &why), 0);
	ASSERT_EQ(client_start(c, (const char *[]){ "--control", self->ctl, NULL }), 0);
	ASSERT_EQ(client_context(c), 0);
	self->dev = c->window;
	self->pin = arena_take(c, MiB);
	ASSERT_EQ(SEND(c, SV_OP_X_MAP, (struct sv_map){ self->dev, 4 * GRANULE }), 0);
	ASSERT_EQ(SEND(c, SV_OP_X_PIN, (struct sv_pin){ self->pin, MiB }), 0);
}

FIXTURE_TEARDOWN(restore)
{
	char cmd[128];

	if (self->conn >= 0)
		close(self->conn);
	if (self->c.ring)
		EXPECT_EQ(client_end(&self->c), 0);
	end_proxy(self);
	snprintf(cmd, sizeof(cmd), "rm -rf %s", self->dir);
	EXPECT_EQ(system(cmd), 0);
}

/* ------------------------------------------------------------------------------ what a client has */

static uint64_t new_stream(struct client *c, unsigned int flags)
{
	uint64_t st = new_handle(c, SV_T_CUstream);

	return SEND(c, SV_OP_cuStreamCreate, (struct sv_cuStreamCreate){
			.ctx = c->ctx, .phStream = st, .Flags = flags }) ? 0 : st;
}

static uint64_t new_event(struct client *c)
{
	uint64_t ev = new_handle(c, SV_T_CUevent);

	return SEND(c, SV_OP_cuEventCreate, (struct sv_cuEventCreate){
			.ctx = c->ctx, .phEvent = ev }) ? 0 : ev;
}

static uint32_t run_count(struct client *c, uint64_t stream, uint64_t kernel, uint64_t dev,
			  uint64_t pin)
{
	uint32_t *v = (void *)(c->arena + pin);

	*v = ~0u;
	if (launch(c, stream, kernel, 1, 1, &dev, 8) ||
	    copy(c, stream, address(c, pin), dev, 4))
		return ~0u;
	return *v;
}

/* A file with PTX at offset 100, as a program's own. */
static int module_file(const char *path, const char *text, struct stat *st)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int rc = fd < 0 || pwrite(fd, text, strlen(text), 100) != (ssize_t)strlen(text) ||
		 fstat(fd, st) ? -1 : 0;

	if (fd >= 0)
		close(fd);
	return rc;
}

static uint64_t load_file(struct client *c, const char *path, const struct stat *st)
{
	uint64_t mod = new_handle(c, SV_T_CUmodule);
	struct sv_image a = { .ctx = c->ctx, .handle = mod, .kind = SV_IMAGE_FILE, .off = 100,
			      .len = st->st_size - 100, .dev = st->st_dev, .ino = st->st_ino,
			      .size = st->st_size, .path_len = strlen(path) + 1 };

	a.mtime_ns = st->st_mtim.tv_sec * 1000000000ull + st->st_mtim.tv_nsec;
	return call2(c, SV_OP_cuModuleLoadDataEx, &a, sizeof(a), path, a.path_len, NULL, 0) ? 0 :
		mod;
}

static uint64_t get_function(struct client *c, uint64_t mod, const char *name)
{
	uint64_t f = new_handle(c, SV_T_CUfunction), info = arena_take(c, 4096);

	return call_name(c, SV_OP_cuModuleGetFunction,
			 (struct sv_by_name){ .ctx = c->ctx, .from = mod, .handle = f, .info = info,
					      .cap = 4096 }, name, NULL, 0) ? 0 : f;
}

/* The description of a graph of one kernel, count(dev). */
struct one_kernel {
	struct sv_graph g;
	struct sv_graph_node n;
	struct sv_launch l;
	uint64_t param;
};

static struct one_kernel describe(struct client *c, uint64_t kernel, uint64_t dev)
{
	return (struct one_kernel){
		.g = { .nodes = 1 },
		.n = { .size = sizeof(struct one_kernel) - sizeof(struct sv_graph),
		       .type = SV_NODE_KERNEL, .ctx = c->ctx },
		.l = { .ctx = c->ctx, .function = kernel, .grid = { 1, 1, 1 },
		       .block = { 1, 1, 1 }, .param_bytes = 8 },
		.param = dev,
	};
}

/* at: in the arena; or SV_GRAPH_INLINE. */
static int send_graph(struct client *c, uint16_t op, uint64_t exec, uint64_t at,
		      const struct one_kernel *k)
{
	struct sv_graph_req a = { .ctx = c->ctx, .exec = exec, .off = at, .len = sizeof(*k) };

	if (at == SV_GRAPH_INLINE)
		return call2(c, op, &a, sizeof(a), k, sizeof(*k), NULL, 0);
	memcpy(c->arena + at, k, sizeof(*k));
	return call2(c, op, &a, sizeof(a), NULL, 0, NULL, 0);
}

static uint32_t run_graph(struct client *c, uint64_t exec, uint64_t dev, uint64_t pin)
{
	uint32_t *v = (void *)(c->arena + pin);

	*v = ~0u;
	if (SEND(c, SV_OP_cuGraphLaunch,
		 (struct sv_graph_launch){ c->ctx, SV_STREAM_LEGACY, exec, 0, 0 }) ||
	    copy(c, SV_STREAM_LEGACY, address(c, pin), dev, 4))
		return ~0u;
	return *v;
}

#endif
