// SPDX-License-Identifier: Apache-2.0
/*
 * restore.c - a session is frozen, saved, its proxy killed, and another proxy goes on with it
 *
 * The client is the test's own process, and so is the conductor. What CRIU would do to the client is
 * done here by hand: while the session is frozen it stands still, and the new channel's object is
 * mapped where the old one was.
 */
#include "client.h"

#include "control.h"
#include "ckpt/store.h"
#include "graph.h"
#include "ring_i.h"

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
	char why[256] = "";

	for (int i = 0; i < 20000; i++) {
		self->conn = ctl_connect(self->ctl, why, sizeof(why));
		if (self->conn >= 0)
			return 0;
		usleep(1000);
	}
	fprintf(stderr, "# %s\n", why);
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

static int ask_info(FIXTURE_DATA(restore) *self, struct ctl_info *info)
{
	struct ctl_head h = { 0 };

	return ask(self, CTL_INFO, &h, sizeof(h), info, sizeof(*info), NULL);
}

static int ask_freeze(FIXTURE_DATA(restore) *self, uint64_t ms, struct ctl_frozen *r)
{
	struct ctl_freeze f = { .deadline_ms = ms };

	return ask(self, CTL_FREEZE, &f, sizeof(f), r, sizeof(*r), NULL);
}

static int ask_store(FIXTURE_DATA(restore) *self, uint32_t op, const char *dir, struct ctl_dumped *r)
{
	struct ctl_store st = { .h = { 0 } };

	snprintf(st.dir, sizeof(st.dir), "%s", dir);
	return ask(self, op, &st, sizeof(st), r, sizeof(*r), NULL);
}

static int ask_thaw(FIXTURE_DATA(restore) *self)
{
	struct ctl_head h = { 0 };
	struct ctl_reply r;

	return ask(self, CTL_THAW, &h, sizeof(h), &r, sizeof(r), NULL);
}

/* Freeze, and save everything. */
static int save(FIXTURE_DATA(restore) *self)
{
	struct ctl_frozen f;
	int rc = conduct(self);

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

static int start_restorer(FIXTURE_DATA(restore) *self)
{
	char path[512], lib[512];
	pid_t pid;

	snprintf(path, sizeof(path), "%s/uproxy/singvgpu-proxy", build_dir());
	snprintf(lib, sizeof(lib), "%s/uproxy/softgpu/libsoftcuda.so", build_dir());
	unlink(self->ctl);
	pid = fork();
	if (!pid) {
		execl(path, path, "--restore", "--control", self->ctl, "--driver", lib, NULL);
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

/* As CRIU does it: the same addresses, another object behind them. */
static int map_again(struct client *c, int fd)
{
	struct ring *r = c->ring;
	void *p = mmap(r->ctl, r->map_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);

	if (p == MAP_FAILED || madvise(p, r->map_len, MADV_DONTFORK))
		return -errno;
	if (dup3(fd, r->fd, O_CLOEXEC) < 0)
		return -errno;
	close(fd);
	return 0;
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

/* All of it: the client goes on with another proxy. */
static int move(FIXTURE_DATA(restore) *self)
{
	int rc = save(self);

	end_proxy(self);
	return rc ?: come_back(self);
}

FIXTURE_SETUP(restore)
{
	struct client *c = &self->c;
	char why[256];

	strcpy(self->dir, "/tmp/uproxy-restore-XXXXXX");
	ASSERT_NE(mkdtemp(self->dir), NULL);
	snprintf(self->ctl, sizeof(self->ctl), "%s/ctl", self->dir);
	snprintf(self->store, sizeof(self->store), "%s/store", self->dir);
	self->conn = -1;
	ASSERT_EQ(store_create(self->store, NULL, why, sizeof(why)), 0);
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

/* ------------------------------------------------------------------------------ it goes on */

TEST_F(restore, memory_streams_and_kernels)
{
	struct client *c = &self->c;
	uint64_t st = new_stream(c, CU_STREAM_NON_BLOCKING), ev = new_event(c), lib, k, one;
	uint32_t *v = (void *)(c->arena + self->pin);
	int rc;

	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	k = get_kernel(c, lib, "count", NULL);
	one = get_kernel(c, lib, "store", NULL);
	EXPECT_EQ(run_count(c, st, k, self->dev, self->pin), 7);
	EXPECT_EQ(run_count(c, st, k, self->dev, self->pin), 8);
	for (uint32_t i = 0; i < MiB / 8; i++)
		v[i] = i * 2654435761u;
	EXPECT_EQ(copy(c, st, self->dev + 3 * GRANULE, address(c, self->pin), MiB / 2), 0);
	EXPECT_EQ(SEND(c, SV_OP_cuEventRecord, (struct sv_cuEventRecord){ c->ctx, ev, st }), 0);
	memset(v, 0x5a, MiB / 2);
	v[MiB / 8] = 0x12345678;

	ASSERT_EQ(move(self), 0);
	EXPECT_EQ(c->shared->magic, SV_SHARED_MAGIC);
	EXPECT_EQ(v[MiB / 8], 0x12345678);
	EXPECT_EQ(v[0], 0x5a5a5a5a);
	EXPECT_EQ(copy(c, st, address(c, self->pin), self->dev + 3 * GRANULE, MiB / 2), 0);
	for (uint32_t i = 0; i < MiB / 8; i++)
		ASSERT_EQ(v[i], i * 2654435761u);
	EXPECT_EQ(run_count(c, st, k, self->dev, self->pin), 9);
	EXPECT_EQ(launch(c, st, one, 1, 1, &self->dev, 8), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuEventSynchronize, (struct sv_sync_on){ c->ctx, ev }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }), 0);
	EXPECT_EQ(SEND(c, SV_OP_cuStreamDestroy_v2, (struct sv_stream_end){ st }), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 0);
	EXPECT_EQ(self->saved.info.can_dump, 1);
	EXPECT_EQ(self->saved.info.client_pid, getpid());

	/* And once more. */
	close(self->conn);
	ASSERT_EQ(move(self), 0);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k, self->dev, self->pin), 10);
	EXPECT_EQ(late_count(c), 0);
}

TEST_F(restore, images_and_graphs_whose_arena_was_used_otherwise)
{
	struct client *c = &self->c;
	uint64_t lib, gone, k, exec = new_handle(c, SV_T_CUgraphExec), at = arena_take(c, 4096);
	uint64_t other = new_handle(c, SV_T_CUgraphExec), first = c->at;
	struct one_kernel g;
	int rc;

	gone = load_text(c, kernels, &rc);	/* places variables, and goes */
	ASSERT_EQ(rc, 0);
	ASSERT_NE(get_kernel(c, gone, "count", NULL), 0);
	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	k = get_kernel(c, lib, "count", NULL);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k, self->dev, self->pin), 7);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryUnload, (struct sv_image_end){ gone }), 0);
	g = describe(c, k, self->dev + 4096);
	ASSERT_EQ(send_graph(c, SV_OP_X_GRAPH, exec, at, &g), 0);
	ASSERT_EQ(send_graph(c, SV_OP_X_GRAPH, other, SV_GRAPH_INLINE, &g), 0);
	g.param = self->dev + 64;
	for (int i = 0; i < 5; i++)
		ASSERT_EQ(send_graph(c, SV_OP_X_GRAPH_UPDATE, exec, at, &g), 0);
	EXPECT_EQ(run_graph(c, exec, self->dev + 64, self->pin), 8);
	memset(c->arena + at, 0xee, 4096);
	memset(c->arena + first, 0xee, c->at - first);

	ASSERT_EQ(move(self), 0);
	for (uint64_t i = 0; i < 4096; i++)
		ASSERT_EQ(c->arena[at + i], 0xee);
	EXPECT_EQ(run_graph(c, exec, self->dev + 64, self->pin), 9);
	EXPECT_EQ(run_graph(c, other, self->dev + 4096, self->pin), 10);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k, self->dev, self->pin), 11);
	EXPECT_EQ(SEND(c, SV_OP_cuGraphExecDestroy, (struct sv_graph_end){ exec }), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 0);
}

TEST_F(restore, textures_arrays_contexts_and_memory_handles)
{
	struct client *c = &self->c;
	uint64_t h = new_handle(c, SV_T_CUmemGenericAllocationHandle_v1), lib, k, primary = c->ctx;
	uint64_t a = c->window + 32 * GRANULE, second, st, tex[3], again = 0;
	uint32_t *v = (void *)(c->arena + self->pin);
	struct {
		struct sv_tex_new n;
		CUDA_RESOURCE_DESC res;
		CUDA_TEXTURE_DESC tex;
	} t = { .n = { .ctx = c->ctx } };
	int rc;

	EXPECT_EQ(CALL(c, SV_OP_cuMemCreate, (struct sv_mem_create){ h, 2 * GRANULE, 0 }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemMap, (struct sv_mem_map){ a, 2 * GRANULE, h, 0 }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemSetAccess, (struct sv_mem_access){ a, 2 * GRANULE,
			CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 0 }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemRelease, (struct sv_mem_release){ h }), 0);
	v[0] = 0xabcdef01;
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, a + GRANULE, address(c, self->pin), 4), 0);
	t.res.resType = CU_RESOURCE_TYPE_LINEAR;
	t.res.res.linear.devPtr = self->dev;
	t.res.res.linear.format = CU_AD_FORMAT_FLOAT;
	t.res.res.linear.numChannels = 1;
	t.res.res.linear.sizeInBytes = 4096;
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(call2(c, SV_OP_cuTexObjectCreate, &t, sizeof(t), NULL, 0, &tex[i], 8), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuTexObjectDestroy, (struct sv_tex_end){ c->ctx, tex[1] }), 0);
	c->ctx = new_handle(c, SV_T_CUcontext);
	EXPECT_EQ(CALL(c, SV_OP_cuCtxCreate_v4, (struct sv_ctx_new){ c->ctx, 0, 0 }), 0);
	second = c->ctx;
	lib = load_text(c, kernels, &rc);
	k = get_kernel(c, lib, "count", NULL);
	st = new_stream(c, 0);
	EXPECT_EQ(run_count(c, st, k, self->dev, self->pin), 7);

	ASSERT_EQ(move(self), 0);
	EXPECT_EQ(run_count(c, st, k, self->dev, self->pin), 8);
	c->ctx = primary;
	v[0] = 0;
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, address(c, self->pin), a + GRANULE, 4), 0);
	EXPECT_EQ(v[0], 0xabcdef01);
	/* The hole that one left is found by the next, as it would have been. */
	EXPECT_EQ(call2(c, SV_OP_cuTexObjectCreate, &t, sizeof(t), NULL, 0, &again, 8), 0);
	EXPECT_EQ(again, tex[1]);
	EXPECT_EQ(CALL(c, SV_OP_cuTexObjectDestroy, (struct sv_tex_end){ c->ctx, tex[2] }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuCtxDestroy_v2, (struct sv_ctx_end){ second }), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuMemUnmap, (struct sv_map){ a, 2 * GRANULE }), 0);
	EXPECT_EQ(late_count(c), 0);
}

TEST_F(restore, a_module_file_must_be_what_it_was)
{
	struct client *c = &self->c;
	struct ctl_restored to;
	struct ctl_restore from;
	struct ctl_info info;
	struct timespec times[2];
	uint64_t mod, f;
	struct stat st;
	char path[128];

	snprintf(path, sizeof(path), "%s/module.ptx", self->dir);
	ASSERT_EQ(module_file(path, kernels, &st), 0);
	mod = load_file(c, path, &st);
	ASSERT_NE(mod, 0);
	f = get_function(c, mod, "count");
	EXPECT_EQ(CALL(c, SV_OP_cuFuncSetAttribute, (struct sv_cuFuncSetAttribute){
			c->ctx, f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024 }), 0);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, f, self->dev, self->pin), 7);
	ASSERT_EQ(save(self), 0);
	end_proxy(self);

	unlink(path);
	ASSERT_EQ(start_restorer(self), 0);
	fill_restore(self, &from);
	EXPECT_EQ(ask(self, CTL_RESTORE, &from, sizeof(from), &to, sizeof(to), NULL), -ENOENT);
	EXPECT_NE(strstr(to.r.why, path), NULL);
	close(self->conn);
	self->conn = -1;
	EXPECT_EQ(client_wait(c), 2);

	/* Another file with the same in it and the same time, as after a copy to another host. */
	times[0] = st.st_atim;
	times[1] = st.st_mtim;
	ASSERT_EQ(module_file(path, kernels, &st), 0);
	ASSERT_EQ(utimensat(AT_FDCWD, path, times, 0), 0);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, f, self->dev, self->pin), 8);

	/* Changed while it runs: then the dump is refused, and the job is not touched. */
	close(self->conn);
	times[1].tv_sec++;
	ASSERT_EQ(utimensat(AT_FDCWD, path, times, 0), 0);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask_info(self, &info), 0);
	EXPECT_EQ(info.can_dump, 0);
	EXPECT_NE(strstr(info.r.why, path), NULL);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, f, self->dev, self->pin), 9);
}

TEST_F(restore, what_failed_fails_no_more_and_is_not_told_twice)
{
	struct client *c = &self->c;
	uint64_t lib, k, none = new_handle(c, SV_T_CUkernel);
	int rc;

	load_text(c, ".version 8.0\n.target sm_75\nnonsense\n", &rc);
	EXPECT_NE(rc, 0);
	lib = load_text(c, kernels, &rc);
	EXPECT_EQ(get_kernel(c, lib, "no_such_kernel", NULL), 0);
	k = get_kernel(c, lib, "count", NULL);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, none, 1, 1, &self->dev, 8), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 1);

	ASSERT_EQ(move(self), 0);
	EXPECT_EQ(late_count(c), 1);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k, self->dev, self->pin), 7);
	EXPECT_EQ(late_count(c), 1);
	EXPECT_EQ(SEND(c, SV_OP_cuEventDestroy_v2,
		       (struct sv_cuEventDestroy_v2){ new_handle(c, SV_T_CUevent) }), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 2);
}

/*
 * Days of a job: what comes and goes would fill the log many times over. A dump must still be
 * possible, and what is live must come back, with all that it refers to.
 */
#define NODES 30

struct many_kernels {
	struct sv_graph g;
	struct {
		struct sv_graph_node n;
		struct sv_launch l;
		uint64_t param;
	} k[NODES];
};

static void describe_many(struct client *c, struct many_kernels *m, uint64_t kernel, uint64_t dev)
{
	memset(m, 0, sizeof(*m));
	m->g.nodes = NODES;
	for (uint32_t i = 0; i < NODES; i++) {
		struct one_kernel one = describe(c, kernel, dev);

		m->k[i].n = one.n;
		m->k[i].n.size = sizeof(m->k[i]);
		m->k[i].n.index = i;
		m->k[i].l = one.l;
		m->k[i].param = dev;
	}
}

static int send_many(struct client *c, uint16_t op, uint64_t exec, const struct many_kernels *m)
{
	struct sv_graph_req a = { .ctx = c->ctx, .exec = exec, .off = SV_GRAPH_INLINE,
				  .len = sizeof(*m) };

	return call2(c, op, &a, sizeof(a), m, sizeof(*m), NULL, 0);
}

TEST_F(restore, what_comes_and_goes_leaves_room_in_the_log)
{
	struct client *c = &self->c;
	uint64_t lib, k, live = new_handle(c, SV_T_CUgraphExec), ev = new_event(c), other, exec, tex;
	uint64_t second = c->window + 16 * GRANULE, at = c->at;
	struct many_kernels m;
	struct {
		struct sv_tex_new n;
		CUDA_RESOURCE_DESC res;
		CUDA_TEXTURE_DESC tex;
	} t = { .n = { .ctx = c->ctx } };
	int rc;

	t.res.resType = CU_RESOURCE_TYPE_LINEAR;
	t.res.res.linear.devPtr = self->dev;
	t.res.res.linear.format = CU_AD_FORMAT_FLOAT;
	t.res.res.linear.numChannels = 1;
	t.res.res.linear.sizeInBytes = 4096;
	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	k = get_kernel(c, lib, "count", NULL);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k, self->dev, self->pin), 7);
	describe_many(c, &m, k, self->dev + 64);
	ASSERT_EQ(send_many(c, SV_OP_X_GRAPH, live, &m), 0);
	at = c->at;
	for (int i = 0; i < 4000; i++) {
		exec = new_handle(c, SV_T_CUgraphExec);
		ASSERT_EQ(send_many(c, SV_OP_X_GRAPH, exec, &m), 0);
		ASSERT_EQ(send_many(c, SV_OP_X_GRAPH_UPDATE, live, &m), 0);
		ASSERT_EQ(SEND(c, SV_OP_cuGraphExecDestroy, (struct sv_graph_end){ exec }), 0);
		ASSERT_EQ(SEND(c, SV_OP_X_MAP, (struct sv_map){ second, 4 * GRANULE }), 0);
		ASSERT_EQ(SEND(c, SV_OP_X_UNMAP, (struct sv_map){ second + GRANULE, GRANULE }), 0);
		ASSERT_EQ(SEND(c, SV_OP_X_UNMAP, (struct sv_map){ second, GRANULE }), 0);
		ASSERT_EQ(SEND(c, SV_OP_X_UNMAP,
			       (struct sv_map){ second + 2 * GRANULE, 2 * GRANULE }), 0);
		ASSERT_EQ(CALL(c, SV_OP_cuKernelSetAttribute, (struct sv_cuKernelSetAttribute){
				.kernel = k, .dev = c->shared->device,
				.attrib = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
				.val = i }), 0);
		ASSERT_EQ(call2(c, SV_OP_cuTexObjectCreate, &t, sizeof(t), NULL, 0, &tex, 8), 0);
		ASSERT_EQ(CALL(c, SV_OP_cuTexObjectDestroy, (struct sv_tex_end){ c->ctx, tex }), 0);
		if (i % 100)
			continue;
		other = load_text(c, kernels, &rc);
		ASSERT_EQ(rc, 0);
		ASSERT_NE(get_kernel(c, other, "count", NULL), 0);
		ASSERT_EQ(CALL(c, SV_OP_cuLibraryUnload, (struct sv_image_end){ other }), 0);
		c->at = at;
	}
	EXPECT_EQ(late_count(c), 0);
	/* The graph that is live names this memory, though it is gone. */
	ASSERT_EQ(save(self), 0);
	EXPECT_EQ(self->saved.info.can_dump, 1);
	EXPECT_EQ(ask_info(self, &self->saved.info), 0);
	EXPECT_LT(self->saved.info.log_bytes, 64 << 10);
	end_proxy(self);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(run_graph(c, live, self->dev + 64, self->pin), 7 + NODES);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k, self->dev, self->pin), 8 + NODES);
	EXPECT_EQ(CALL(c, SV_OP_cuEventSynchronize, (struct sv_sync_on){ c->ctx, ev }), 0);
	EXPECT_EQ(late_count(c), 0);
}

/* A graph outlives the event, the stream's memory and the context's other things that it names. */
TEST_F(restore, what_a_graph_names_comes_back_though_it_is_gone)
{
	struct client *c = &self->c;
	uint64_t exec = new_handle(c, SV_T_CUgraphExec), ev = new_event(c), second;
	struct {
		struct sv_graph g;
		struct sv_graph_node n;
		struct sv_graph_event e;
		struct sv_graph_node m;
		struct sv_graph_set s;
	} d = { .g = { .nodes = 2 },
		.n = { .size = sizeof(d.n) + sizeof(d.e), .type = SV_NODE_RECORD, .ctx = c->ctx },
		.e = { ev },
		.m = { .size = sizeof(d.m) + sizeof(d.s), .index = 1, .type = SV_NODE_SET,
		       .ctx = c->ctx },
		.s = { .width = 16, .height = 1, .elem = 4, .value = 0x77 } };
	struct sv_graph_req a = { .ctx = c->ctx, .exec = exec, .off = SV_GRAPH_INLINE,
				  .len = sizeof(d) };
	uint32_t *v = (void *)(c->arena + self->pin);

	second = c->window + 16 * GRANULE;
	ASSERT_EQ(SEND(c, SV_OP_X_MAP, (struct sv_map){ second, GRANULE }), 0);
	d.s.dst = second;
	ASSERT_EQ(call2(c, SV_OP_X_GRAPH, &a, sizeof(a), &d, sizeof(d), NULL, 0), 0);
	ASSERT_EQ(SEND(c, SV_OP_cuEventDestroy_v2, (struct sv_cuEventDestroy_v2){ ev }), 0);
	ASSERT_EQ(SEND(c, SV_OP_X_UNMAP, (struct sv_map){ second, GRANULE }), 0);
	ASSERT_EQ(ctx_sync(c), 0);
	ASSERT_EQ(move(self), 0);
	ASSERT_EQ(SEND(c, SV_OP_X_MAP, (struct sv_map){ second, GRANULE }), 0);
	v[0] = 0;
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, address(c, self->pin), second, 4), 0);
	EXPECT_EQ(v[0], 0);
	EXPECT_EQ(SEND(c, SV_OP_cuGraphExecDestroy, (struct sv_graph_end){ exec }), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 0);
}

TEST_F(restore, what_was_printed_and_what_is_asked_for)
{
	struct client *c = &self->c;
	const volatile struct sv_print *p = &c->shared->print[0];
	uint64_t word = self->pin + 8, lib, say, st = new_stream(c, CU_STREAM_NON_BLOCKING);
	struct sv_next_call n = { 0 };
	struct ring_ticket t;
	int rc;

	lib = load_text(c, kernels, &rc);
	say = get_kernel(c, lib, "say", NULL);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, say, 1, 2, NULL, 0), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(p->head, 12);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, say, 1, 1, NULL, 0), 0);
	*(uint64_t *)(c->arena + word) = 0;
	/* Asked for before the dump, answered behind it. */
	ASSERT_EQ(save(self), 0);
	EXPECT_EQ(p->head, 18);
	EXPECT_EQ(ring_request_anyway(c->ring, &t, SV_OP_X_NEXT_CALL, NULL, 0, NULL, 0), 0);
	ASSERT_EQ(ask_store(self, CTL_CHANNEL, self->store, &self->saved.channel), 0);
	end_proxy(self);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(SEND(c, SV_OP_cuLaunchHostFunc, (struct sv_host_func){ c->ctx, st, 5, word }), 0);
	EXPECT_EQ(ring_await(c->ring, &t, NULL, &n, sizeof(n), NULL, -1), 0);
	EXPECT_EQ(n.id, 5);
	__atomic_store_n((uint64_t *)(c->arena + word), 5, __ATOMIC_RELEASE);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, say, 1, 1, NULL, 0), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(p->head, 24);
	EXPECT_EQ(memcmp(c->arena + p->off, "hello\nhello\nhello\nhello\n", 24), 0);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }), 0);
}

/* ------------------------------------------------------------------------------ freezing */

TEST_F(restore, a_stream_that_waits_for_memory_is_named_and_goes_on)
{
	struct client *c = &self->c;
	uint64_t st = new_stream(c, CU_STREAM_NON_BLOCKING), at = self->pin + 4096;
	volatile uint32_t *v = (void *)(c->arena + at);
	struct ctl_frozen f;
	struct ctl_info info;

	*v = 0;
	EXPECT_EQ(SEND(c, SV_OP_cuStreamWaitValue32_v2, (struct sv_cuStreamWaitValue32_v2){
			.ctx = c->ctx, .stream = st, .addr = address(c, at), .value = 1 }), 0);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask_freeze(self, 50, &f), -ETIMEDOUT);
	EXPECT_NE(strstr(f.r.why, "stream"), NULL);
	EXPECT_NE(strstr(f.r.why, "a value in memory"), NULL);
	EXPECT_EQ(ask_info(self, &info), 0);
	EXPECT_EQ(info.state, CTL_STATE_RUNNING);
	/* The gate is open, and the other streams work. */
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
	*v = 1;
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }), 0);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), -EALREADY);
	EXPECT_EQ(ask_info(self, &info), 0);
	EXPECT_EQ(info.state, CTL_STATE_FROZEN);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
}

struct caller {
	struct client *c;
	pthread_t t;
	uint64_t word;
	_Atomic int calls, hold;
};

/* As the client's library does it: the thread that asks passes the gate. */
static void *serve_calls(void *arg)
{
	struct caller *h = arg;
	struct sv_next_call n;
	struct ring_ticket t;

	for (;;) {
		n = (struct sv_next_call){ 0 };
		if (ring_request_anyway(h->c->ring, &t, SV_OP_X_NEXT_CALL, NULL, 0, NULL, 0) ||
		    ring_await(h->c->ring, &t, NULL, &n, sizeof(n), NULL, -1))
			return NULL;
		if (n.id == 77)
			return NULL;
		if (!n.id)
			continue;
		while (h->hold)
			usleep(1000);
		h->calls++;
		__atomic_store_n((uint64_t *)(h->c->arena + h->word), n.id, __ATOMIC_RELEASE);
	}
}

TEST_F(restore, host_functions_run_while_the_gate_is_closed)
{
	struct client *c = &self->c;
	struct caller h = { .c = c, .word = self->pin + 8 };
	uint64_t st = new_stream(c, CU_STREAM_NON_BLOCKING);
	struct ctl_frozen f;

	*(uint64_t *)(c->arena + h.word) = 0;
	ASSERT_EQ(conduct(self), 0);
	h.hold = 1;
	pthread_create(&h.t, NULL, serve_calls, &h);
	for (uint64_t id = 1; id <= 20; id++)
		EXPECT_EQ(SEND(c, SV_OP_cuLaunchHostFunc,
			       (struct sv_host_func){ c->ctx, st, id, h.word }), 0);
	EXPECT_EQ(ask_freeze(self, 100, &f), -ETIMEDOUT);
	EXPECT_NE(strstr(f.r.why, "a host function"), NULL);
	h.hold = 0;
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(h.calls, 20);
	EXPECT_EQ(ask_thaw(self), 0);
	/* Its request stood in the ring meanwhile, and is served. */
	EXPECT_EQ(SEND(c, SV_OP_cuLaunchHostFunc,
		       (struct sv_host_func){ c->ctx, st, 77, h.word }), 0);
	pthread_join(h.t, NULL);
	__atomic_store_n((uint64_t *)(c->arena + h.word), 77, __ATOMIC_RELEASE);
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }), 0);
	EXPECT_EQ(late_count(c), 0);
}

TEST_F(restore, what_cannot_be_saved_is_refused_by_name)
{
	struct client *c = &self->c;
	struct ctl_frozen f;
	struct ctl_info info;

	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ring_submit(c->ring, SV_OP_X_BYPASS, "/lib/x.so", 10, NULL, 0), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(ask_info(self, &info), 0);
	EXPECT_EQ(info.can_dump, 0);
	EXPECT_NE(strstr(info.r.why, "driver library"), NULL);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), -ENOTSUP);
	EXPECT_EQ(ctx_sync(c), 0);
}

TEST_F(restore, a_broken_context_is_not_saved)
{
	struct client *c = &self->c;
	uint64_t lib, k, bad = 0x10;
	struct ctl_frozen f;
	int rc;

	lib = load_text(c, kernels, &rc);
	k = get_kernel(c, lib, "store", NULL);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(launch(c, SV_STREAM_LEGACY, k, 1, 1, &bad, 8), 0);
	/* Known when it is asked, or found out by the drain. */
	rc = ask_freeze(self, LONG_MS, &f);
	EXPECT_TRUE(rc == -EIO || rc == -ENOTSUP);
	EXPECT_NE(f.r.why[0], 0);
	EXPECT_EQ(ctx_sync(c), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), -ENOTSUP);
	EXPECT_NE(strstr(f.r.why, "broken"), NULL);
}

/* ------------------------------------------------------------------------------ conductors */

TEST_F(restore, a_client_that_ends_while_frozen_ends_the_proxy)
{
	struct ctl_frozen f;
	struct ctl_dumped d;

	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(ask_store(self, CTL_DUMP, self->store, &d), 0);
	/* As CRIU kills it; the conductor is still there. */
	ring_close(self->c.ring);
	self->c.ring = NULL;
	EXPECT_EQ(client_wait(&self->c), 0);
	EXPECT_EQ(ctl_receive(self->conn, CTL_INFO, &d.r, sizeof(d), NULL, NULL, LONG_MS), -EPIPE);
}

static const uint32_t steps[] = { CTL_INFO, CTL_FREEZE, CTL_DUMP, CTL_CHANNEL };

/* The proxy dies in the middle of each step: the conductor is told, and so is the client. */
TEST_F(restore, a_proxy_that_is_killed_takes_nobody_along)
{
	char big[sizeof(struct ctl_restore)] = { 0 };
	struct client *c = &self->c;
	struct ctl_frozen f;
	struct ctl_dumped d;

	for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
		struct ctl_store *st = (void *)big;

		if (i) {
			ring_close(c->ring);
			c->ring = NULL;
			ASSERT_EQ(client_start(c, (const char *[]){ "--control", self->ctl, NULL }), 0);
			ASSERT_EQ(client_context(c), 0);
		}
		ASSERT_EQ(conduct(self), 0);
		if (i > 1)
			EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
		memset(big, 0, sizeof(big));
		snprintf(st->dir, sizeof(st->dir), "%s", self->store);
		if (steps[i] == CTL_FREEZE)
			((struct ctl_freeze *)big)->deadline_ms = LONG_MS;
		kill(c->proxy, SIGSTOP);
		st->h.op = steps[i];
		st->h.size = i == 0 ? sizeof(struct ctl_head) :
			     i == 1 ? sizeof(struct ctl_freeze) : sizeof(struct ctl_store);
		EXPECT_EQ(ctl_send(self->conn, &st->h), 0);
		kill(c->proxy, SIGKILL);
		waitpid(c->proxy, NULL, 0);
		c->proxy = 0;
		EXPECT_EQ(ctl_receive(self->conn, steps[i], &d.r, sizeof(d), NULL, NULL, LONG_MS),
			  -EPIPE);
		EXPECT_EQ(ctx_sync(c), -EPIPE);
		close(self->conn);
		self->conn = -1;
	}
}

TEST_F(restore, a_conductor_that_goes_leaves_a_job_that_runs)
{
	struct client *c = &self->c;
	struct ctl_freeze fr = { .h = { .op = CTL_FREEZE, .size = sizeof(fr) },
				 .deadline_ms = LONG_MS };
	struct ctl_store st = { .h = { .op = CTL_DUMP, .size = sizeof(st) } };
	struct ctl_frozen f;
	struct ctl_dumped d;

	snprintf(st.dir, sizeof(st.dir), "%s", self->store);
	for (int step = 0; step < 6; step++) {
		ASSERT_EQ(conduct(self), 0);
		if (step == 1)		/* in the middle of a freeze */
			EXPECT_EQ(ctl_send(self->conn, &fr.h), 0);
		if (step > 1)
			EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
		if (step == 3)		/* and of a dump */
			EXPECT_EQ(ctl_send(self->conn, &st.h), 0);
		if (step > 3)
			EXPECT_EQ(ask_store(self, CTL_DUMP, self->store, &d), 0);
		if (step > 4)
			EXPECT_EQ(ask_store(self, CTL_CHANNEL, self->store, &d), 0);
		close(self->conn);
		self->conn = -1;
		EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
	}
	EXPECT_EQ(late_count(c), 0);
}

TEST_F(restore, a_freeze_is_given_up_with_its_conductor)
{
	struct client *c = &self->c;
	uint64_t st = new_stream(c, CU_STREAM_NON_BLOCKING), at = self->pin + 4096;
	struct ctl_freeze fr = { .h = { .op = CTL_FREEZE, .size = sizeof(fr) },
				 .deadline_ms = 86400 * SECOND };

	*(uint32_t *)(c->arena + at) = 0;
	EXPECT_EQ(SEND(c, SV_OP_cuStreamWaitValue32_v2, (struct sv_cuStreamWaitValue32_v2){
			.ctx = c->ctx, .stream = st, .addr = address(c, at), .value = 1 }), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ctl_send(self->conn, &fr.h), 0);
	usleep(20000);
	close(self->conn);
	self->conn = -1;
	/* It is answered, so the gate is open again, though the stream waits as before. */
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
	*(volatile uint32_t *)(c->arena + at) = 1;
	EXPECT_EQ(CALL(c, SV_OP_cuStreamSynchronize, (struct sv_sync_on){ c->ctx, st }), 0);
}

/* What a conductor says that is no request, and what comes then: nothing happens to the job. */
TEST_F(restore, nonsense_is_refused)
{
	static const struct ctl_head heads[] = {
		{ 0, CTL_VERSION, CTL_INFO, sizeof(struct ctl_head) },
		{ CTL_MAGIC, CTL_VERSION + 1, CTL_INFO, sizeof(struct ctl_head) },
		{ CTL_MAGIC, CTL_VERSION, 99, sizeof(struct ctl_head) },
		{ CTL_MAGIC, CTL_VERSION, 0x200, sizeof(struct ctl_head) },
		{ CTL_MAGIC, CTL_VERSION, CTL_PROGRESS, sizeof(struct ctl_head) },
		{ CTL_MAGIC, CTL_VERSION, CTL_INFO, 12345 },
		{ CTL_MAGIC, CTL_VERSION, CTL_INFO, 0 },
	};
	static const uint32_t early[] = { CTL_DUMP, CTL_CHANNEL, CTL_RESTORE, CTL_GO };
	struct client *c = &self->c;
	char big[sizeof(struct ctl_restore) + 4096] = { 0 };
	struct ctl_restored reply;

	for (size_t i = 0; i < sizeof(heads) / sizeof(*heads) + 3; i++) {
		size_t n = sizeof(*heads);

		ASSERT_EQ(conduct(self), 0);
		if (i < sizeof(heads) / sizeof(*heads))
			memcpy(big, &heads[i], n);
		else if (i == sizeof(heads) / sizeof(*heads))
			n = 3;
		else if (i == sizeof(heads) / sizeof(*heads) + 1)
			n = sizeof(big);
		else			/* a path that does not end */
			n = sizeof(struct ctl_store);
		if (n == sizeof(struct ctl_store)) {
			memset(big, 'x', sizeof(big));
			memcpy(big, &(struct ctl_head){ CTL_MAGIC, CTL_VERSION, CTL_DUMP, n }, 16);
		}
		EXPECT_EQ(send(self->conn, big, n, MSG_NOSIGNAL), (ssize_t)n);
		/* One answer, then it is over. */
		memset(&reply, 0, sizeof(reply));
		EXPECT_GE(recv(self->conn, &reply, sizeof(reply), 0), (ssize_t)sizeof(reply.r));
		EXPECT_LT(reply.r.status, 0);
		EXPECT_EQ(recv(self->conn, &reply, sizeof(reply), 0), 0);
		close(self->conn);
		self->conn = -1;
	}
	ASSERT_EQ(conduct(self), 0);
	for (size_t i = 0; i < sizeof(early) / sizeof(*early); i++) {
		memset(big, 0, sizeof(big));
		EXPECT_EQ(ask(self, early[i], big, i < 2 ? sizeof(struct ctl_store) :
			      i == 2 ? sizeof(struct ctl_restore) : sizeof(struct ctl_go),
			      &reply, sizeof(reply), NULL), -EINVAL);
		EXPECT_NE(reply.r.why[0], 0);
	}
	/* No store there, or what is none. */
	{
		struct ctl_frozen f;
		struct ctl_dumped d;

		EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
		EXPECT_EQ(ask_store(self, CTL_DUMP, "/nowhere", &d), -ENOENT);
		EXPECT_LT(ask_store(self, CTL_DUMP, "/tmp", &d), 0);
		EXPECT_EQ(ask_store(self, CTL_DUMP, self->store, &d), 0);
		EXPECT_EQ(ask_thaw(self), 0);
	}
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
	EXPECT_EQ(late_count(c), 0);
}

/* ------------------------------------------------------------------------------ bad restores */

static int restore_as(FIXTURE_DATA(restore) *self, const struct ctl_restore *from, char *why)
{
	struct ctl_restored to;
	struct ctl_restore r = *from;
	int rc = start_restorer(self);

	if (!rc)
		rc = ask(self, CTL_RESTORE, &r, sizeof(r), &to, sizeof(to), NULL);
	memcpy(why, to.r.why, sizeof(to.r.why));
	close(self->conn);
	self->conn = -1;
	/* Nothing can be made of it any more: it ends with its conductor. */
	return client_wait(&self->c) == 2 ? rc : -1000;
}

TEST_F(restore, what_does_not_fit_is_refused_by_name)
{
	struct client *c = &self->c;
	struct ctl_restore good, r;
	char why[512];

	ASSERT_EQ(save(self), 0);
	end_proxy(self);
	fill_restore(self, &good);

	r = good;
	strcpy(r.was.name, "NVIDIA H900");
	EXPECT_EQ(restore_as(self, &r, why), -EXDEV);
	EXPECT_NE(strstr(why, "NVIDIA H900"), NULL);
	r = good;
	r.was.total_mem = 1ull << 50;
	EXPECT_EQ(restore_as(self, &r, why), -EXDEV);
	EXPECT_NE(strstr(why, "memory"), NULL);
	r = good;
	r.budget = 2 * GRANULE;
	EXPECT_EQ(restore_as(self, &r, why), -EDQUOT);
	EXPECT_NE(strstr(why, "device memory"), NULL);
	r = good;
	r.ordinal = 9;
	EXPECT_EQ(restore_as(self, &r, why), -EINVAL);
	EXPECT_NE(strstr(why, "device 9"), NULL);
	r = good;
	strcpy(r.dir, "/nowhere");
	EXPECT_EQ(restore_as(self, &r, why), -ENOENT);
	EXPECT_NE(strstr(why, "/nowhere"), NULL);
	r = good;
	r.window += GRANULE;
	EXPECT_LT(restore_as(self, &r, why), 0);
	/* Each object for each other one. */
	r = good;
	r.channel = good.arena;
	EXPECT_LT(restore_as(self, &r, why), 0);
	EXPECT_NE(why[0], 0);
	r = good;
	r.session = good.device;
	EXPECT_LT(restore_as(self, &r, why), 0);
	r = good;
	r.device = good.session;
	EXPECT_LT(restore_as(self, &r, why), 0);
	r = good;
	memset(&r.channel, 0xff, sizeof(r.channel));
	EXPECT_LT(restore_as(self, &r, why), 0);

	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
}

/* A byte of what the store has is another one: it is refused, or was of nothing that is needed. */
TEST_F(restore, bit_rot_is_refused_by_name)
{
	struct client *c = &self->c;
	struct ctl_restore good;
	char why[512], cmd[256], path[256] = "";
	unsigned int refused = 0, n = 0;
	struct stat st;
	int fd, rc;
	FILE *f;

	load_text(c, kernels, &rc);
	EXPECT_EQ(rc, 0);
	ASSERT_EQ(save(self), 0);
	end_proxy(self);
	fill_restore(self, &good);
	snprintf(cmd, sizeof(cmd), "find %s/seg -type f", self->store);
	f = popen(cmd, "r");
	while (fgets(path, sizeof(path), f)) {
		path[strcspn(path, "\n")] = 0;
		fd = open(path, O_RDWR | O_CLOEXEC);
		ASSERT_GE(fd, 0);
		ASSERT_EQ(fstat(fd, &st), 0);
		for (int i = 0; i < 3; i++, n++) {
			off_t at = st.st_size / 3 * i + 100;
			uint8_t was, is;

			ASSERT_EQ(pread(fd, &was, 1, at), 1);
			is = was ^ 0x10;
			ASSERT_EQ(pwrite(fd, &is, 1, at), 1);
			rc = restore_as(self, &good, why);
			EXPECT_NE(rc, -1000);
			refused += rc < 0;
			if (rc)
				EXPECT_NE(why[0], 0);
			ASSERT_EQ(pwrite(fd, &was, 1, at), 1);
		}
		close(fd);
	}
	pclose(f);
	EXPECT_GT(refused, 0);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(ctx_sync(c), 0);
}

/* With memfd the client can write to the log: what comes of it is its own loss, and is named. */
TEST_F(restore, a_log_that_the_client_has_changed_harms_nobody)
{
	uint64_t seed = 1, at;
	struct client *c = &self->c;
	char why[512];

	for (int round = 0; round < 24; round++) {
		struct ctl_restore from;
		struct one_kernel g;
		uint64_t lib, k;
		uint8_t byte;
		int rc;

		if (round) {
			ASSERT_EQ(client_start(c, (const char *[]){ "--control", self->ctl, NULL }), 0);
			ASSERT_EQ(client_context(c), 0);
			ASSERT_EQ(SEND(c, SV_OP_X_MAP, (struct sv_map){ c->window, 4 * GRANULE }), 0);
		}
		lib = load_text(c, kernels, &rc);
		k = get_kernel(c, lib, "count", NULL);
		g = describe(c, k, c->window);
		ASSERT_EQ(send_graph(c, SV_OP_X_GRAPH, new_handle(c, SV_T_CUgraphExec),
				     SV_GRAPH_INLINE, &g), 0);
		new_stream(c, 0);
		new_event(c);
		ASSERT_EQ(ctx_sync(c), 0);
		for (int i = 0; i < 1 + round % 3; i++) {
			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			at = c->ring->lay.log_off + (seed >> 33) % 900;
			ASSERT_EQ(pread(c->ring->fd, &byte, 1, at), 1);
			byte ^= 1 << (seed >> 20) % 8;
			ASSERT_EQ(pwrite(c->ring->fd, &byte, 1, at), 1);
		}
		rc = save(self);
		if (rc)		/* noticed, and it runs on */
			EXPECT_EQ(ctx_sync(c), 0);
		fill_restore(self, &from);
		end_proxy(self);
		if (!rc) {
			rc = restore_as(self, &from, why);
			EXPECT_NE(rc, -1000);
			EXPECT_TRUE(!rc || why[0]);
		}
		ring_close(c->ring);
		c->ring = NULL;
	}
}

TEST_F(restore, a_proxy_whose_client_never_comes_ends)
{
	struct ctl_restored to;
	struct ctl_restore from;
	struct ctl_go go = { .client_pid = 0x3fffffff };
	struct ctl_reply reply;
	int fd = -1;

	ASSERT_EQ(save(self), 0);
	end_proxy(self);
	ASSERT_EQ(start_restorer(self), 0);
	fill_restore(self, &from);
	ASSERT_EQ(ask(self, CTL_RESTORE, &from, sizeof(from), &to, sizeof(to), &fd), 0);
	EXPECT_GE(fd, 0);
	close(fd);
	EXPECT_EQ(ask(self, CTL_RESTORE, &from, sizeof(from), &to, sizeof(to), NULL), -EINVAL);
	EXPECT_LT(ask(self, CTL_GO, &go, sizeof(go), &reply, sizeof(reply), NULL), 0);
	EXPECT_NE(reply.why[0], 0);
	close(self->conn);
	self->conn = -1;
	EXPECT_EQ(client_wait(&self->c), 2);
	/* Killed while it restores: the next one does. */
	ASSERT_EQ(start_restorer(self), 0);
	from.h.op = CTL_RESTORE;
	from.h.size = sizeof(from);
	EXPECT_EQ(ctl_send(self->conn, &from.h), 0);
	usleep(5000);
	end_proxy(self);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(ctx_sync(&self->c), 0);
}

TEST_HARNESS_MAIN
