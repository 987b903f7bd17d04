// SPDX-License-Identifier: Apache-2.0
/*
 * restore.c - a session is frozen and saved, its proxy killed, and another proxy continues it
 *
 * The test's process is both client and conductor. It does by hand what CRIU would do to the
 * client: while the session is frozen the client does nothing, and the new channel's object is
 * mapped at the address of the old one.
 */
#include "fatbin.h"
#include "restore.h"

/* ------------------------------------------------------------------------------ it goes on */

TEST_F(restore, memory_streams_and_kernels)
{
	struct client *c = &self->c;
	uint64_t st = new_stream(c, CU_STREAM_NON_BLOCKING), ev = new_event(c), lib, k, one;
	uint64_t last = c->window + c->shared->window_len - GRANULE;
	uint32_t *v = (void *)(c->arena + self->pin);
	int rc;

	ASSERT_EQ(CALL(c, SV_OP_X_MAP, (struct sv_map){ last, GRANULE }), 0);
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
	EXPECT_EQ(copy(c, st, address(c, self->pin), last, MiB / 2), 0);
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

/* A kernel with 20008 bytes of parameters stores the last word of the first one. */
static const char large_kernel[] =
	".version 8.1\n.target sm_75\n.address_size 64\n"
	".visible .entry large(.param .align 8 .b8 t[20000], .param .u64 p)\n{\n"
	".reg .b64 %rd<3>;\n.reg .b32 %r<2>;\n"
	"ld.param.u64 %rd1, [p];\ncvta.to.global.u64 %rd2, %rd1;\n"
	"ld.param.u32 %r1, [t+19996];\nst.global.u32 [%rd2], %r1;\nret;\n}\n";

struct large_node {
	struct sv_graph g;
	struct sv_graph_node n;
	struct sv_launch l;
	uint32_t t[5000];
	uint64_t out;
};

TEST_F(restore, a_graph_with_large_parameters)
{
	struct client *c = &self->c;
	uint64_t exec = new_handle(c, SV_T_CUgraphExec), at = arena_take(c, 32768), lib, k;
	struct sv_graph_req a = { .ctx = c->ctx, .exec = exec, .off = at,
				  .len = sizeof(struct large_node) };
	struct large_node *g = (void *)(c->arena + at);
	int rc;

	lib = load_text(c, large_kernel, &rc);
	ASSERT_EQ(rc, 0);
	k = get_kernel(c, lib, "large", NULL);
	*g = (struct large_node){
		.g = { .nodes = 1 },
		.n = { .size = sizeof(*g) - sizeof(g->g), .type = SV_NODE_KERNEL, .ctx = c->ctx },
		.l = { .ctx = c->ctx, .function = k, .grid = { 1, 1, 1 }, .block = { 1, 1, 1 },
		       .param_bytes = 20008 },
		.t = { [4999] = 4711 }, .out = self->dev + 64,
	};
	ASSERT_EQ(call2(c, SV_OP_X_GRAPH, &a, sizeof(a), NULL, 0, NULL, 0), 0);
	EXPECT_EQ(run_graph(c, exec, self->dev + 64, self->pin), 4711);
	g->t[4999] = 4712;
	ASSERT_EQ(call2(c, SV_OP_X_GRAPH_UPDATE, &a, sizeof(a), NULL, 0, NULL, 0), 0);
	memset(g, 0xee, sizeof(*g));

	ASSERT_EQ(move(self), 0);
	EXPECT_EQ(run_graph(c, exec, self->dev + 64, self->pin), 4712);
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

static uint64_t session_bytes(FIXTURE_DATA(restore) *self)
{
	struct store_ref ref;

	memcpy(ref.b, self->saved.device.session.bytes, sizeof(ref.b));
	return store_ref_size(&ref);
}

/* Changes the byte at `at` in place, and puts the time of the last change back. */
static int change_byte(const char *path, off_t at, const struct stat *st)
{
	struct timespec times[2] = { st->st_atim, st->st_mtim };
	int fd = open(path, O_RDWR | O_CLOEXEC), rc = -1;
	uint8_t byte;

	if (fd >= 0 && pread(fd, &byte, 1, at) == 1) {
		byte ^= 1;
		rc = pwrite(fd, &byte, 1, at) != 1 || futimens(fd, times);
	}
	if (fd >= 0)
		close(fd);
	return rc;
}

/* What a restore says to the checkpoint as it is. */
static int come_back_says(FIXTURE_DATA(restore) *self, struct ctl_restored *to)
{
	struct ctl_restore from;
	int rc = start_restorer(self);

	fill_restore(self, &from);
	rc = rc ?: ask(self, CTL_RESTORE, &from, sizeof(from), to, sizeof(*to), NULL);
	close(self->conn);
	self->conn = -1;
	if (rc && client_wait(&self->c) != 2)
		rc = 1;
	return rc;
}

TEST_F(restore, a_module_file_must_have_what_it_had)
{
	struct client *c = &self->c;
	struct ctl_restored to;
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
	EXPECT_LT(session_bytes(self), 4096);	/* the file is not in it */
	end_proxy(self);

	unlink(path);
	EXPECT_EQ(come_back_says(self, &to), -ENOENT);
	EXPECT_NE(strstr(to.r.why, path), NULL);

	/* Size and time are the same, and one byte is not; not even one of a kernel. */
	ASSERT_EQ(module_file(path, kernels, &st), 0);
	ASSERT_EQ(change_byte(path, 100 + strstr(kernels, "hello") - kernels, &st), 0);
	EXPECT_EQ(come_back_says(self, &to), -ENOENT);
	EXPECT_NE(strstr(to.r.why, path), NULL);
	EXPECT_NE(strstr(to.r.why, "put it back as it was"), NULL);

	/* Another file with the same in it, as after a copy to another host. */
	ASSERT_EQ(module_file(path, kernels, &st), 0);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, f, self->dev, self->pin), 8);
	ASSERT_EQ(save(self), 0);
	EXPECT_LT(session_bytes(self), 4096);
	end_proxy(self);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, f, self->dev, self->pin), 9);
}

/* The client has mapped a file: another one at its path is not read in its place. */
TEST_F(restore, a_module_comes_from_the_file_that_was_mapped)
{
	struct client *c = &self->c;
	struct stat st, other[5];
	char path[128];

	snprintf(path, sizeof(path), "%s/module.ptx", self->dir);
	ASSERT_EQ(module_file(path, kernels, &st), 0);
	for (int i = 0; i < 5; i++)
		other[i] = st;
	other[0].st_ino++;
	other[1].st_dev++;
	other[2].st_size--;
	other[3].st_mtim.tv_sec++;
	other[4].st_mtim.tv_nsec ^= 1;
	for (int i = 0; i < 5; i++) {
		EXPECT_EQ(load_file(c, path, &other[i]), 0) {
			TH_LOG("%d", i);
		}
	}
	EXPECT_NE(load_file(c, path, &st), 0);
	ASSERT_EQ(unlink(path), 0);
	ASSERT_EQ(mkfifo(path, 0600), 0);
	EXPECT_EQ(load_file(c, path, &st), 0);
	EXPECT_EQ(late_count(c), 0);
}

/* A rebuilt, moved or damaged program does not keep a checkpoint of its running job out. */
TEST_F(restore, a_module_outlives_its_file)
{
	enum { SAME, MOVED, REMOVED, REPLACED, WRITTEN, CUT, ALL };
	struct client *c = &self->c;
	uint64_t f[ALL];
	struct stat st;
	char path[ALL][128], other[140];

	for (int i = 0; i < ALL; i++) {
		snprintf(path[i], sizeof(path[i]), "%s/module%d.ptx", self->dir, i);
		ASSERT_EQ(module_file(path[i], kernels, &st), 0);
		f[i] = get_function(c, load_file(c, path[i], &st), "count");
		ASSERT_NE(f[i], 0);
		EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, f[i], self->dev, self->pin), 7);
	}
	snprintf(other, sizeof(other), "%s.moved", path[MOVED]);
	ASSERT_EQ(rename(path[MOVED], other), 0);
	ASSERT_EQ(unlink(path[REMOVED]), 0);
	snprintf(other, sizeof(other), "%s.new", path[REPLACED]);
	ASSERT_EQ(module_file(other, ".version 8.0\n.target sm_75\n.address_size 64\n", &st), 0);
	ASSERT_EQ(rename(other, path[REPLACED]), 0);
	ASSERT_EQ(stat(path[WRITTEN], &st), 0);
	ASSERT_EQ(change_byte(path[WRITTEN], 100 + strstr(kernels, "counter = 7") + 10 - kernels, &st), 0);
	ASSERT_EQ(truncate(path[CUT], 0), 0);

	for (uint32_t n = 8; n < 10; n++) {	/* what came back is saved again */
		ASSERT_EQ(save(self), 0);
		EXPECT_GT(session_bytes(self), (ALL - 1) * sizeof(kernels));
		EXPECT_LT(session_bytes(self), ALL * (sizeof(kernels) + 4096));
		end_proxy(self);
		ASSERT_EQ(come_back(self), 0);
		for (int i = 0; i < ALL; i++) {
			EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, f[i], self->dev, self->pin), n) {
				TH_LOG("%d", i);
			}
		}
	}
	EXPECT_EQ(late_count(c), 0);
}

/* A restore puts such a file back after the sessions, so a checkpoint and all later ones have what is in it. */
TEST_F(restore, what_the_job_may_have_written_is_saved)
{
	struct client *c = &self->c;
	uint64_t f[2];
	struct stat st;
	char path[2][128];

	for (int i = 0; i < 2; i++) {
		snprintf(path[i], sizeof(path[i]), "%s/module%d.ptx", self->dir, i);
		ASSERT_EQ(module_file(path[i], kernels, &st), 0);
		f[i] = get_function(c, load_file(c, path[i], &st), "count");
		ASSERT_NE(f[i], 0);
	}
	save_since = 1;
	ASSERT_EQ(save(self), 0);
	EXPECT_GT(session_bytes(self), 2 * sizeof(kernels));
	end_proxy(self);
	ASSERT_EQ(come_back(self), 0);
	save_since = UINT64_MAX - 1;	/* none is younger than the job that has come back */
	for (int round = 0; round < 2; round++) {
		ASSERT_EQ(save(self), 0);
		EXPECT_GT(session_bytes(self), 2 * sizeof(kernels));
		end_proxy(self);
		ASSERT_EQ(round ? 0 : unlink(path[0]), 0);
		ASSERT_EQ(come_back(self), 0);
	}
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, f[i], self->dev, self->pin), 7);
	}
	EXPECT_EQ(late_count(c), 0);
}

#define LARGE	(66ul << 20)

/* A fatbin with the text, and so much behind it that a proxy maps it rather than copies it. */
static int large_file(const char *path, const char *text, struct stat *st)
{
	struct fatbin_entry e = { .kind = FATBIN_KIND_PTX, .version = 0x101, .header = sizeof(e),
				  .padded = LARGE, .major = 8, .arch = 75 };
	struct fatbin head = { FATBIN_MAGIC, FATBIN_VERSION, sizeof(head), sizeof(e) + LARGE };
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), rc;

	rc = fd < 0 || pwrite(fd, &head, sizeof(head), 100) != sizeof(head) ||
	     pwrite(fd, &e, sizeof(e), 100 + sizeof(head)) != sizeof(e) ||
	     pwrite(fd, text, strlen(text), 100 + sizeof(head) + sizeof(e)) != (ssize_t)strlen(text) ||
	     ftruncate(fd, 100 + sizeof(head) + head.size) || fstat(fd, st) ? -1 : 0;
	if (fd >= 0)
		close(fd);
	return rc;
}

static uint64_t load_library(struct client *c, const char *path, const struct stat *st)
{
	uint64_t lib = new_handle(c, SV_T_CUlibrary);
	struct sv_image a = { .handle = lib, .kind = SV_IMAGE_FILE, .off = 100, .len = st->st_size - 100,
			      .dev = st->st_dev, .ino = st->st_ino, .size = st->st_size,
			      .path_len = strlen(path) + 1 };

	a.mtime_ns = st->st_mtim.tv_sec * 1000000000ull + st->st_mtim.tv_nsec;
	return call2(c, SV_OP_cuLibraryLoadData, &a, sizeof(a), path, a.path_len, NULL, 0) ? 0 : lib;
}

/* Whoever writes to the file waits until the proxy has a copy of what it has mapped. */
TEST_F(restore, a_large_library_outlives_its_file)
{
	struct client *c = &self->c;
	uint64_t k[2], lib[2];
	struct stat st;
	char path[128];
	int fd;

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/library%d", self->dir, i);
		ASSERT_EQ(large_file(path, kernels, &st), 0);
		lib[i] = load_library(c, path, &st);
		ASSERT_NE(lib[i], 0);
		k[i] = get_kernel(c, lib[i], "count", NULL);
		EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k[i], self->dev, self->pin), 7);
		ASSERT_EQ(i ? unlink(path) : truncate(path, 50), 0);
	}
	ASSERT_EQ(save(self), 0);
	EXPECT_GT(session_bytes(self), 2 * LARGE);
	end_proxy(self);
	ASSERT_EQ(come_back(self), 0);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k[i], self->dev, self->pin), 8);
	}

	/* One that is open for writing is copied at once, and one that is unloaded is let go. */
	snprintf(path, sizeof(path), "%s/library2", self->dir);
	ASSERT_EQ(large_file(path, kernels, &st), 0);
	fd = open(path, O_RDWR | O_CLOEXEC);
	lib[0] = load_library(c, path, &st);
	ASSERT_NE(lib[0], 0);
	ASSERT_EQ(ftruncate(fd, 50), 0);
	close(fd);
	EXPECT_EQ(CALL(c, SV_OP_cuLibraryUnload, (struct sv_image_end){ lib[1] }), 0);
	k[0] = get_kernel(c, lib[0], "count", NULL);
	ASSERT_EQ(save(self), 0);
	end_proxy(self);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k[0], self->dev, self->pin), 7);
	EXPECT_EQ(late_count(c), 0);
}

/* What is mapped would end the proxy behind the file's end. */
TEST_F(restore, a_large_library_must_be_all_there)
{
	struct client *c = &self->c;
	struct ctl_restored to;
	struct stat st;
	char path[128];
	uint64_t k;

	snprintf(path, sizeof(path), "%s/library", self->dir);
	ASSERT_EQ(large_file(path, kernels, &st), 0);
	k = get_kernel(c, load_library(c, path, &st), "count", NULL);
	ASSERT_NE(k, 0);
	ASSERT_EQ(save(self), 0);
	EXPECT_LT(session_bytes(self), LARGE);
	end_proxy(self);
	ASSERT_EQ(truncate(path, st.st_size / 2), 0);
	EXPECT_EQ(come_back_says(self, &to), -ENOENT);
	EXPECT_NE(strstr(to.r.why, path), NULL);
	ASSERT_EQ(large_file(path, kernels, &st), 0);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k, self->dev, self->pin), 7);
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
/* A program that resets its device again and again, and uses a library of its own each time. */
TEST_F(restore, contexts_that_are_gone_leave_room_in_the_log)
{
	struct client *c = &self->c;
	uint64_t lib, k, ctx;
	int rc;

	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	k = get_kernel(c, lib, "count", NULL);
	for (int i = 0; i < 200; i++) {
		ctx = new_handle(c, SV_T_CUcontext);
		ASSERT_EQ(CALL(c, SV_OP_cuCtxCreate_v4, (struct sv_ctx_new){ ctx, 0, 0 }), 0);
		ASSERT_EQ(CALL(c, SV_OP_X_PREPARE, (struct sv_prepare){ ctx, k }), 0);
		ASSERT_EQ(CALL(c, SV_OP_cuKernelGetFunction, (struct sv_derive){
				ctx, k, new_handle(c, SV_T_CUfunction) }), 0);
		ASSERT_EQ(CALL(c, SV_OP_cuCtxDestroy_v2, (struct sv_ctx_end){ ctx }), 0);
	}
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k, self->dev, self->pin), 7);
	ASSERT_EQ(save(self), 0);
	EXPECT_EQ(ask_info(self, &self->saved.info), 0);
	EXPECT_LT(self->saved.info.log_bytes, 2 << 10);
	end_proxy(self);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k, self->dev, self->pin), 8);
	EXPECT_EQ(late_count(c), 0);
}

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

/* ------------------------------------------------------------------------------ the log */

static uint64_t log_bytes(FIXTURE_DATA(restore) *self)
{
	struct ctl_info info = { .log_bytes = 0 };
	int rc = self->conn >= 0 ? 0 : conduct(self);

	return rc || ask_info(self, &info) ? 0 : info.log_bytes;
}

/* The budget is there, but the driver has not the memory for it: the array takes more than is spare. */
TEST_F(restore, memory_that_was_not_there_is_not_mapped_again)
{
	struct client *c = &self->c;
	uint64_t at = c->window + 512 * GRANULE, array = new_handle(c, SV_T_CUarray);
	uint64_t rest = c->shared->budget - 4 * GRANULE;

	ASSERT_EQ(CALL(c, SV_OP_cuArrayCreate_v2, (struct sv_cuArrayCreate_v2){ .ctx = c->ctx,
		.pHandle = array, .pAllocateArray = { 16384, 9000, CU_AD_FORMAT_FLOAT, 1 } }), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_MAP_PIECES, (struct sv_pieces){ at, rest, 64 * GRANULE }),
		  CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT_EQ(late_count(c), 0);
	ASSERT_EQ(CALL(c, SV_OP_cuArrayDestroy, (struct sv_cuArrayDestroy){ c->ctx, array }), 0);
	/* All of its budget is there again; the first range stays empty. */
	at += rest;
	ASSERT_EQ(CALL(c, SV_OP_X_MAP_PIECES, (struct sv_pieces){ at, rest, 256 * GRANULE }), 0);
	ASSERT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ at, rest }), 0);
	ASSERT_EQ(CALL(c, SV_OP_X_MAP_PIECES, (struct sv_pieces){ at, 5 * GRANULE, 2 * GRANULE }), 0);
	ASSERT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ at + 2 * GRANULE, 2 * GRANULE }), 0);
	close(self->conn);
	self->conn = -1;
	ASSERT_EQ(move(self), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at - rest, self->dev, 8), CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at + 2 * GRANULE - 8, self->dev, 16),
		  CUDA_ERROR_INVALID_VALUE);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, at + GRANULE - 8, self->dev, 16), 0);
	/* The pieces are the same. */
	EXPECT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ at + 4 * GRANULE, GRANULE }), 0);
	EXPECT_EQ(CALL(c, SV_OP_X_UNMAP, (struct sv_map){ at, 2 * GRANULE }), 0);
}

TEST_F(restore, calls_that_fail_leave_nothing_in_the_log)
{
	struct client *c = &self->c;
	struct {
		struct sv_tex_new n;
		CUDA_RESOURCE_DESC res;
		CUDA_TEXTURE_DESC tex;
	} t = { .n = { .ctx = c->ctx } };
	uint64_t tex, before, lib, k, exec = new_handle(c, SV_T_CUgraphExec), none;
	struct one_kernel g;
	int rc;

	none = new_handle(c, SV_T_CUkernel);
	lib = load_text(c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	k = get_kernel(c, lib, "count", NULL);
	g = describe(c, k, self->dev);
	ASSERT_EQ(send_graph(c, SV_OP_X_GRAPH, exec, SV_GRAPH_INLINE, &g), 0);
	g.param = self->dev + 64;
	ASSERT_EQ(send_graph(c, SV_OP_X_GRAPH_UPDATE, exec, SV_GRAPH_INLINE, &g), 0);

	/* Known when they are answered: they do not come in at all. */
	before = log_bytes(self);
	ASSERT_GT(before, 0);
	t.res.resType = CU_RESOURCE_TYPE_LINEAR;
	t.res.res.linear.devPtr = 8;
	for (int i = 0; i < 20; i++)
		EXPECT_GT(call2(c, SV_OP_cuTexObjectCreate, &t, sizeof(t), NULL, 0, &tex, 8), 0);
	EXPECT_EQ(log_bytes(self), before);
	/* Of a worker's that is known later: the last one that did not fail counts. */
	for (int val = 1000; val <= 1 << 30; val += (1 << 30) - 1000) {
		rc = CALL(c, SV_OP_cuKernelSetAttribute, (struct sv_cuKernelSetAttribute){
				.kernel = k, .dev = c->shared->device, .val = val,
				.attrib = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES });
		EXPECT_EQ(rc, val == 1000 ? 0 : CUDA_ERROR_INVALID_VALUE);
	}
	g.l.function = none;
	EXPECT_GT(send_graph(c, SV_OP_X_GRAPH_UPDATE, exec, SV_GRAPH_INLINE, &g), 0);
	close(self->conn);
	self->conn = -1;
	ASSERT_EQ(move(self), 0);
	EXPECT_EQ(run_graph(c, exec, self->dev + 64, self->pin), 7);
	EXPECT_EQ(late_count(c), 0);
}

/* A job that has made more than the log holds runs on, is told of once, and cannot be saved. */
TEST_F(restore, a_full_log_is_told_of_once_and_stands_against_a_dump)
{
	struct client *c = &self->c;
	struct ctl_frozen f;
	struct ctl_info info;
	char log[80], *text, *at;
	struct stat st;
	int fd, n = 0;

	EXPECT_EQ(client_end(c), 0);
	snprintf(log, sizeof(log), "%s/log", self->dir);
	ASSERT_EQ(client_start(c, (const char *[]){ "--control", self->ctl, "--log", log, NULL }), 0);
	ASSERT_EQ(client_context(c), 0);
	for (int i = 0; i < 240000; i++)
		ASSERT_NE(new_event(c), 0);
	EXPECT_EQ(ctx_sync(c), 0);
	EXPECT_EQ(late_count(c), 0);
	ASSERT_EQ(conduct(self), 0);
	EXPECT_EQ(ask_info(self, &info), 0);
	EXPECT_EQ(info.can_dump, 0);
	EXPECT_NE(strstr(info.r.why, "log"), NULL);
	EXPECT_LE(info.log_bytes, info.log_room);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), -ENOTSUP);
	EXPECT_NE(strstr(f.r.why, "log"), NULL);
	EXPECT_EQ(ctx_sync(c), 0);
	fd = open(log, O_RDONLY | O_CLOEXEC);
	ASSERT_EQ(fstat(fd, &st), 0);
	text = calloc(1, st.st_size + 1);
	EXPECT_EQ(read(fd, text, st.st_size), st.st_size);
	for (at = text; (at = strstr(at, "takes no more")); at++)
		n++;
	EXPECT_EQ(n, 1);
	free(text);
	close(fd);
}

/* Where the payload of the first entry of that operation is in the channel's object. 0: there is none. */
static uint64_t logged(struct client *c, uint16_t op, int skip)
{
	struct singvgpu_log_entry e;
	uint64_t at = c->ring->lay.log_at;

	for (int i = 0; i < 1000; i++) {
		if (pread(c->ring->fd, &e, sizeof(e), at) != sizeof(e) || !e.end)
			return 0;
		if (e.op == op && !skip--)
			return at + sizeof(e);
		at += sizeof(e) + ((e.len + 7) & ~7u);
	}
	return 0;
}

static int damage(struct client *c, uint64_t at, const void *p, size_t len)
{
	return pwrite(c->ring->fd, p, len, at) == (ssize_t)len ? 0 : -errno;
}

/* A dump looks through the log: what a client has written there does not lead it astray. */
TEST_F(restore, a_log_that_lies_about_memory_and_graphs_is_refused)
{
	struct client *c = &self->c;
	uint64_t lib, k, exec = new_handle(c, SV_T_CUgraphExec), at;
	const uint32_t none = 0;
	const struct sv_map maps[] = {
		{ 0, GRANULE }, { c->window - GRANULE, GRANULE }, { ~0ull - GRANULE + 1, GRANULE },
		{ c->window, ~0ull - GRANULE + 1 }, { c->window + GRANULE, c->shared->window_len },
		{ c->window + c->shared->window_len, GRANULE },
	};
	struct sv_map good = { c->window, 4 * GRANULE };
	struct one_kernel g;
	struct ctl_frozen f;
	int rc;

	lib = load_text(c, kernels, &rc);
	k = get_kernel(c, lib, "count", NULL);
	g = describe(c, k, self->dev);
	ASSERT_EQ(send_graph(c, SV_OP_X_GRAPH, exec, SV_GRAPH_INLINE, &g), 0);
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(send_graph(c, SV_OP_X_GRAPH_UPDATE, exec, SV_GRAPH_INLINE, &g), 0);
	ASSERT_EQ(conduct(self), 0);
	at = logged(c, SV_OP_X_MAP, 0);
	ASSERT_NE(at, 0);
	for (size_t i = 0; i < sizeof(maps) / sizeof(*maps); i++) {
		ASSERT_EQ(damage(c, at, &maps[i], sizeof(maps[i])), 0);
		EXPECT_EQ(ask_freeze(self, LONG_MS, &f), -EBADMSG) {
			TH_LOG("mapping %zu", i);
		}
		EXPECT_EQ(ctx_sync(c), 0);
	}
	ASSERT_EQ(damage(c, at, &good, sizeof(good)), 0);
	/* A node of no length. */
	at = logged(c, SV_OP_X_GRAPH_UPDATE, 1);
	ASSERT_NE(at, 0);
	at += sizeof(struct sv_graph_req) + offsetof(struct one_kernel, n) +
		offsetof(struct sv_graph_node, size);
	ASSERT_EQ(damage(c, at, &none, sizeof(none)), 0);
	EXPECT_EQ(ask_freeze(self, LONG_MS, &f), 0);
	EXPECT_EQ(ask_thaw(self), 0);
	EXPECT_EQ(run_graph(c, exec, self->dev, self->pin), 7);
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
	if (!geteuid()) {
		r = good;
		ASSERT_EQ(chown(self->store, 12345, -1), 0);
		EXPECT_EQ(restore_as(self, &r, why), -EPERM);
		EXPECT_NE(strstr(why, "belongs to user 12345"), NULL);
		r.trust = 12345;
		memset(&r.channel, 0xff, sizeof(r.channel));
		EXPECT_LT(restore_as(self, &r, why), 0);
		EXPECT_EQ(strstr(why, "trusted"), NULL);
		ASSERT_EQ(chown(self->store, 0, -1), 0);
	}
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

/* The object with some bytes changed, as another one. */
static int changed(FIXTURE_DATA(restore) *self, const struct ctl_ref *from, uint64_t at, const void *p,
		   size_t len, struct ctl_ref *to)
{
	struct store_writer *w = NULL;
	struct store_object *o = NULL;
	struct store_reader *r = NULL;
	struct store *st = NULL;
	struct store_ref ref;
	uint8_t *page = malloc(MiB);
	uint64_t off = 0, size;
	struct why why = { 0 };
	ssize_t n = 0;
	int rc = store_open(&st, self->store, STORE_RW, &why);

	memcpy(&ref, from, sizeof(ref));
	rc = rc ?: store_object_open(st, &ref, &r);
	rc = rc ?: store_writer_open(st, 0, &w);
	rc = rc ?: store_object_begin(w, &o);
	size = rc ? 0 : store_size(r);
	/* The arena is large and sparse: only what has data is carried over. */
	while (!rc && off < size) {
		uint64_t end;

		rc = store_next_data(r, off, &off, &end);
		if (rc == -ENXIO) {
			rc = 0;
			break;
		}
		for (; !rc && off < end; off += n) {
			n = store_read(r, off, page, end - off < MiB ? end - off : MiB);
			if (at >= off && n > 0 && at + len <= off + n)
				memcpy(page + (at - off), p, len);
			rc = n <= 0 ? -EIO : store_object_write(o, off, page, n);
		}
	}
	rc = rc ?: store_object_end(o, size, &ref);
	rc = rc ?: store_writer_flush(w);
	memcpy(to, &ref, sizeof(ref));
	if (w)
		store_writer_close(w);
	if (r)
		store_reader_close(r);
	if (st)
		store_close(st);
	free(page);
	if (rc)
		fprintf(stderr, "# %s: %s\n", why.text, store_why()->text);
	return rc;
}

/* What the session shared with its client was in the client's reach: each word is checked. */
TEST_F(restore, what_was_shared_with_the_client_is_checked)
{
#define SHARED(name) offsetof(struct sv_shared, name)
	const struct {
		size_t at;
		uint64_t value;
		size_t size;
		int rc;
		const char *why;
	} lies[] = {
		{ SHARED(magic), 7, 4, -EBADMSG, "damaged" },
		{ SHARED(size), sizeof(struct sv_shared) + 8, 4, -EBADMSG, "damaged" },
		{ SHARED(devices), SV_DEVICES_MAX + 1, 4, -EBADMSG, "damaged" },
		{ SHARED(device), SV_DEVICES_MAX, 4, -EBADMSG, "damaged" },
		{ SHARED(device), 0xffffffff, 4, -EBADMSG, "damaged" },
		{ SHARED(arena_first), 4096, 8, -EBADMSG, "damaged" },
		{ SHARED(version), SV_PROTO_VERSION + 1, 4, -EPROTONOSUPPORT, "version" },
		{ SHARED(window), self->dev + GRANULE, 8, -EBADMSG, "window" },
		{ SHARED(window_len), 1ull << 46, 8, -EBADMSG, "window" },
		{ SHARED(driver_version), 99999, 4, -EXDEV, "driver" },
		{ SHARED(dev[0].total_mem), 1ull << 50, 8, -EXDEV, "memory" },
		{ SHARED(dev[0].attr[1]), 12345, 4, -EXDEV, "attribute 1 " },
		{ SHARED(print[0].size), 12345, 8, 0, NULL },
		{ SHARED(print[0].off), ~0ull - 100, 8, 0, NULL },
	};
	struct ctl_restore good, r;
	char why[512];

	ASSERT_EQ(save(self), 0);
	end_proxy(self);
	fill_restore(self, &good);
	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
		int rc;

		r = good;
		ASSERT_EQ(changed(self, &good.arena, lies[i].at, &lies[i].value, lies[i].size,
				  &r.arena), 0);
		rc = restore_as(self, &r, why);
		if (!lies[i].why) {	/* it does no harm, or is refused */
			EXPECT_NE(rc, -1000);
			continue;
		}
		EXPECT_EQ(rc, lies[i].rc) {
			TH_LOG("word %zu: %s", i, why);
		}
		EXPECT_NE(strstr(why, lies[i].why), NULL) {
			TH_LOG("word %zu: %s", i, why);
		}
	}
	r = good;
	ASSERT_EQ(changed(self, &good.arena, ~0ull - 8, "", 1, &r.arena), 0);
	EXPECT_EQ(memcmp(&r.arena, &good.arena, sizeof(r.arena)), 0);
	ASSERT_EQ(come_back(self), 0);
}

/* What the log refers to: images and graphs, each at its place in one object. See kept_save.c. */
TEST_F(restore, what_the_log_refers_to_is_checked)
{
	const struct {
		size_t at;
		uint64_t value;
		size_t size;
		int rc;
		const char *why;
	} lies[] = {
		{ 0, 7, 4, -EBADMSG, "another one" },
		{ 4, 99, 4, -EPROTONOSUPPORT, "version 99" },
		{ 8, (1u << 24) + 1, 8, -EBADMSG, "another one" },
		{ 8, ~0ull / 24 + 1, 8, -EBADMSG, "another one" },
		{ 8, 3, 8, -EBADMSG, "another one" },
		{ 64, 0, 8, -EBADMSG, "another one" },
		{ 64 + 40, 0, 8, -EBADMSG, "another one" },	/* not ascending */
		{ 64 + 24, 1, 8, -EBADMSG, "another one" },	/* bytes and a digest */
		{ 64 + 32, 1, 8, -EBADMSG, "another one" },
		{ 64 + 8, 0, 8, -EBADMSG, "not kept" },		/* a digest, of no file */
		{ 4, 0, 4, -EPROTONOSUPPORT, "version 0" },
		{ 64 + 8, 4097, 8, -EBADMSG, "another one" },
		{ 64 + 8, 1ull << 40, 8, -EBADMSG, "another one" },
		{ 64 + 16, 0, 8, -EBADMSG, "another one" },
		{ 64 + 16, 1 << 20, 8, -EBADMSG, "another one" },
		{ 64 + 16, ~0ull, 8, -EBADMSG, "another one" },
		{ 64 + 16, (8ull << 30) + 1, 8, -EBADMSG, "another one" },
	};
	struct ctl_restore good, r;
	char why[512];
	int rc;

	load_text(&self->c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	load_text(&self->c, kernels, &rc);
	ASSERT_EQ(rc, 0);
	ASSERT_EQ(save(self), 0);
	end_proxy(self);
	fill_restore(self, &good);
	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
		r = good;
		ASSERT_EQ(changed(self, &good.session, lies[i].at, &lies[i].value, lies[i].size,
				  &r.session), 0);
		EXPECT_EQ(restore_as(self, &r, why), lies[i].rc) {
			TH_LOG("%zu: %s", i, why);
		}
		EXPECT_NE(strstr(why, lies[i].why), NULL) {
			TH_LOG("%zu: %s", i, why);
		}
	}
	ASSERT_EQ(come_back(self), 0);
}

/* Version 1 had no digests: entries of three words. */
TEST_F(restore, what_the_log_refers_to_is_read_in_its_first_version)
{
	struct client *c = &self->c;
	struct ctl_restore from;
	struct store_reader *r;
	struct store_ref ref;
	struct why why = { 0 };
	struct store *st;
	uint64_t lib[2], k, is[8 + 2 * 5], was[8 + 2 * 3];
	int rc;

	for (int i = 0; i < 2; i++) {
		lib[i] = load_text(c, kernels, &rc);
		ASSERT_EQ(rc, 0);
	}
	k = get_kernel(c, lib[1], "count", NULL);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k, self->dev, self->pin), 7);
	ASSERT_EQ(save(self), 0);
	end_proxy(self);
	fill_restore(self, &from);
	memcpy(ref.b, from.session.bytes, sizeof(ref.b));
	ASSERT_EQ(store_open(&st, self->store, 0, &why), 0);
	ASSERT_EQ(store_object_open(st, &ref, &r), 0);
	ASSERT_EQ(store_read(r, 0, is, sizeof(is)), sizeof(is));
	store_reader_close(r);
	store_close(st);
	memcpy(was, is, 64);
	((uint32_t *)was)[1] = 1;
	memcpy(was + 8, is + 8, 24);
	memcpy(was + 8 + 3, is + 8 + 5, 24);
	ASSERT_EQ(changed(self, &from.session, 0, was, sizeof(was), &self->saved.device.session), 0);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(run_count(c, SV_STREAM_LEGACY, k, self->dev, self->pin), 8);
}

/* What is asked for is looked at before the store is. */
TEST_F(restore, windows_and_drivers_that_cannot_be_are_refused)
{
	struct ctl_restore good, r;
	char why[512];

	ASSERT_EQ(save(self), 0);
	end_proxy(self);
	fill_restore(self, &good);
	for (int i = 0; i < 4; i++) {
		r = good;
		r.window_len = i == 0 ? 0 : i == 1 ? good.window_len + 4096 : i == 2 ? 1ull << 47 :
			good.window_len;
		r.window += i == 3 ? 4096 : 0;
		EXPECT_EQ(restore_as(self, &r, why), -EINVAL);
		EXPECT_NE(strstr(why, "no device window"), NULL);
	}
	r = good;
	r.was.driver_version = 99999;
	EXPECT_EQ(restore_as(self, &r, why), -EXDEV);
	EXPECT_NE(strstr(why, "99999"), NULL);
	r = good;
	r.was.cc_minor++;
	EXPECT_EQ(restore_as(self, &r, why), -EXDEV);
	EXPECT_NE(strstr(why, "capability"), NULL);
	ASSERT_EQ(come_back(self), 0);
}

/* Records that no log has are not executed because one has them. */
TEST_F(restore, records_that_are_never_logged_are_not_replayed)
{
	static const uint16_t ops[] = { SV_OP_cuCtxSynchronize, SV_OP_cuLaunchKernel, SV_OP_cuMemcpyAsync,
					SV_OP_X_NEXT_CALL, 0, 0xffff };

	for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
		struct client *c = &self->c;
		struct ctl_restore from;
		char why[512];
		uint64_t at;

		if (i) {
			ASSERT_EQ(client_start(c, (const char *[]){ "--control", self->ctl, NULL }), 0);
			ASSERT_EQ(client_context(c), 0);
			ASSERT_EQ(SEND(c, SV_OP_X_MAP, (struct sv_map){ c->window, 4 * GRANULE }), 0);
		}
		ASSERT_EQ(SEND(c, SV_OP_X_PIN, (struct sv_pin){ arena_take(c, MiB), MiB }), 0);
		ASSERT_EQ(ctx_sync(c), 0);
		at = logged(c, SV_OP_X_PIN, 0);
		ASSERT_NE(at, 0);
		at -= sizeof(struct singvgpu_log_entry);
		ASSERT_EQ(damage(c, at + offsetof(struct singvgpu_log_entry, op), &ops[i], 2), 0);
		ASSERT_EQ(save(self), 0);
		fill_restore(self, &from);
		end_proxy(self);
		EXPECT_EQ(restore_as(self, &from, why), -EBADMSG);
		EXPECT_NE(strstr(why, "unknown operation"), NULL) {
			TH_LOG("op %u: %s", ops[i], why);
		}
		ring_close(c->ring);
		c->ring = NULL;
	}
}

/* A byte of what the store has is another one: it is refused, or was of nothing that is needed. */
/* A copy of an object, at most bytes of it and zeros for the rest, in which a word is another one. */
static int changed_copy(FIXTURE_DATA(restore) *self, const struct ctl_ref *from, size_t most,
			uint64_t off, uint32_t value, struct ctl_ref *to)
{
	char *bytes = calloc(1, most);
	struct why why = { 0 };
	struct store_writer *w = NULL;
	struct store_object *o = NULL;
	struct store_reader *r = NULL;
	struct store_ref ref;
	struct store *st;
	ssize_t n = -ENOMEM;
	int rc = store_open(&st, self->store, STORE_RW, &why);

	memcpy(&ref, from, sizeof(ref));
	rc = rc ?: store_object_open(st, &ref, &r) ?: store_writer_open(st, 0, &w);
	if (!rc)
		n = store_read(r, 0, bytes, most);
	rc = rc ?: n < 0 ? (int)n : store_object_begin(w, &o);
	if (!rc) {
		memcpy(bytes + off, &value, sizeof(value));
		rc = store_object_write(o, 0, bytes, n) ?: store_object_end(o, store_size(r), &ref);
	}
	rc = rc ?: store_writer_flush(w);
	memcpy(to, &ref, sizeof(ref));
	store_writer_close(w);
	store_reader_close(r);
	store_close(st);
	free(bytes);
	return rc;
}

#define PROXY_SPEAKS	"this proxy 5"
_Static_assert(SV_PROTO_VERSION == 5, "PROXY_SPEAKS");

/* Each object says its version: another one is named beside ours, and never called damaged. */
TEST_F(restore, another_version_of_anything_is_named_with_ours)
{
	static const struct {
		const char *says, *ours;
		size_t most, version;		/* where it is */
		size_t ref;
	} objects[] = {
		{ "the saved channel is of version 77,", "version 2", 64 << 20, 8,
		  offsetof(struct ctl_restore, channel) },
		{ "the client speaks version 77 of the protocol", PROXY_SPEAKS, 1 << 20,
		  offsetof(struct sv_shared, version), offsetof(struct ctl_restore, arena) },
		{ "saved in version 77 of its format", "reads version 2", 64, 4,
		  offsetof(struct ctl_restore, session) },
		{ "saved in version 77 of their format", "reads version 1", 4096, 4,
		  offsetof(struct ctl_restore, device) },
	};
	struct client *c = &self->c;
	struct ctl_restore good, r;
	char why[512];

	ASSERT_EQ(save(self), 0);
	end_proxy(self);
	fill_restore(self, &good);
	for (size_t i = 0; i < sizeof(objects) / sizeof(*objects); i++) {
		const struct ctl_ref *from = (void *)((char *)&good + objects[i].ref);
		struct ctl_ref *to = (void *)((char *)&r + objects[i].ref), again;

		r = good;
		ASSERT_EQ(changed_copy(self, from, objects[i].most, objects[i].version, 77, to), 0);
		EXPECT_EQ(restore_as(self, &r, why), -EPROTONOSUPPORT);
		EXPECT_NE(strstr(why, objects[i].says), NULL);
		EXPECT_NE(strstr(why, objects[i].ours), NULL);
		EXPECT_EQ(strstr(why, "damaged"), NULL);
		if (i != 1)
			continue;
		/* The client's struct may well have another size then. */
		ASSERT_EQ(changed_copy(self, to, objects[i].most, offsetof(struct sv_shared, size), 8,
				       &again), 0);
		*to = again;
		EXPECT_EQ(restore_as(self, &r, why), -EPROTONOSUPPORT);
		EXPECT_NE(strstr(why, objects[i].says), NULL);
	}
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(copy(c, SV_STREAM_LEGACY, self->dev, address(c, self->pin), 64), 0);
}

/* What a proxy of another version answers is not taken for an answer. */
TEST_F(restore, a_proxy_of_another_version_is_named_with_ours)
{
	struct ctl_head h = { .op = CTL_INFO, .size = sizeof(h) };
	struct ctl_info info = { .r.h = { CTL_MAGIC, CTL_VERSION + 4, CTL_INFO, sizeof(info) } };
	int pair[2];

	ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	ASSERT_EQ(send(pair[1], &info, sizeof(info), 0), (ssize_t)sizeof(info));
	EXPECT_EQ(ctl_call(pair[0], &h, &info.r, sizeof(info), NULL, NULL, NULL, 1000),
		  -EPROTONOSUPPORT);
	EXPECT_NE(strstr(info.r.why, "the proxy speaks version 5"), NULL);
	EXPECT_NE(strstr(info.r.why, "this program version 1"), NULL);
	close(pair[0]);
	close(pair[1]);
}

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
			at = c->ring->lay.log_at + (seed >> 33) % 900;
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

/* The channel whose arena a guest uses has to come before the request, and to be one. */
TEST_F(restore, a_guest_needs_a_channel)
{
	struct ctl_restored to = { .generation = 0 };
	struct ctl_restore from;
	int null = open("/dev/null", O_RDWR), page = memfd_create("page", 0);

	ASSERT_EQ(save(self), 0);
	end_proxy(self);
	for (int i = 0; i < 4; i++) {
		ASSERT_EQ(start_restorer(self), 0);
		fill_restore(self, &from);
		from.guest = i == 1 ? 2 : 1;
		/* Each descriptor replaces the one before, and only the last request has it. */
		for (int n = 0; n < 100 && i; n++)
			ASSERT_EQ(ctl_give(self->conn, i == 2 ? null : page), 0);
		EXPECT_LT(ask(self, CTL_RESTORE, &from, sizeof(from), &to, sizeof(to), NULL), 0);
		EXPECT_NE(NULL, strstr(to.r.why, i < 2 ? "lacks the channel" :
				       "arena cannot be used"));
		end_proxy(self);
	}
	close(null);
	close(page);
	ASSERT_EQ(come_back(self), 0);
	EXPECT_EQ(ctx_sync(&self->c), 0);
}

TEST_HARNESS_MAIN
