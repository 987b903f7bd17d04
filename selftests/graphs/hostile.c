// SPDX-License-Identifier: Apache-2.0
/*
 * hostile.c - descriptions of graphs: a valid one of every node type works; one that breaks a rule
 * ends the session with that rule's name; for any other damage the proxy answers or ends, and never
 * crashes
 */
#include "../uproxy/client.h"

#include "graph.h"

/* A description of 11 nodes, one of each type and another empty one. */
struct description {
	struct sv_graph h;
	struct { struct sv_graph_node h; struct sv_graph_set b; } set;
	struct {
		struct sv_graph_node h;
		struct sv_graph_dep d;
		struct sv_launch l;
		uint64_t p;
	} kernel;
	struct { struct sv_graph_node h; struct sv_graph_dep d; struct sv_copy3d b; } copy;
	struct { struct sv_graph_node h; struct sv_graph_dep d; struct sv_graph_call b; } call;
	struct { struct sv_graph_node h; struct sv_graph_dep d; struct sv_graph_event b; } record;
	struct { struct sv_graph_node h; struct sv_graph_event b; } wait;
	struct {
		struct sv_graph_node h;
		struct sv_graph_dep d[2];
		struct sv_graph_memop b[2];
	} ops;
	struct { struct sv_graph_node h; struct sv_graph_dep d[2]; } empty;
	struct { struct sv_graph_node h; } lone;
	struct { struct sv_graph_node h; struct sv_graph_dep d; struct sv_graph_if b; } cond;
	struct { struct sv_graph_node h; struct sv_graph_set b; } body;	/* of cond, graph 1 */
};

struct game {
	struct client c;
	uint64_t pin, kernel, event, exec, at, root, cond;
	struct description *d;		/* in the arena */
	uint64_t *words;		/* call's, done's, what the copy writes, what ops write */
};

#define NODE(_part, _i, _type, _deps) \
	d->_part.h = (struct sv_graph_node){ sizeof(d->_part), _i, _type, 0, _deps, g->c.ctx, 0, 0 }

static void describe(struct game *g)
{
	struct description *d = g->d;
	uint64_t word = g->pin;

	memset(d, 0, sizeof(*d));
	d->h.nodes = 11;
	d->h.root = g->root;
	NODE(set, 0, SV_NODE_SET, 0);
	d->set.b = (struct sv_graph_set){ g->c.window, 0, 16, 1, 4, 7 };
	NODE(kernel, 1, SV_NODE_KERNEL, 1);
	d->kernel.d.node = 0;
	d->kernel.l = (struct sv_launch){ .ctx = g->c.ctx, .function = g->kernel,
					  .grid = { 1, 1, 1 }, .block = { 1, 1, 1 },
					  .param_bytes = 8 };
	d->kernel.p = g->c.window;
	NODE(copy, 2, SV_NODE_COPY, 1);
	d->copy.d.node = 1;
	d->copy.b = (struct sv_copy3d){
		.dst = { .addr = address(&g->c, word + 16), .pitch = 8, .height = 1 },
		.src = { .addr = g->c.window, .pitch = 8, .height = 1 },
		.width = 8, .height = 1, .depth = 1 };
	NODE(call, 3, SV_NODE_CALL, 1);
	d->call.d.node = 2;
	d->call.b = (struct sv_graph_call){ 42, word };
	NODE(record, 4, SV_NODE_RECORD, 1);
	d->record.d.node = 3;
	d->record.b.event = g->event;
	NODE(wait, 5, SV_NODE_WAIT, 0);
	d->wait.b.event = g->event;
	NODE(ops, 6, SV_NODE_MEMOPS, 2);
	d->ops.d[0].node = 4;
	d->ops.d[1].node = 5;
	d->ops.b[0] = (struct sv_graph_memop){ CU_STREAM_MEM_OP_WRITE_VALUE_64, 0,
					       address(&g->c, word + 24), 99 };
	d->ops.b[1] = (struct sv_graph_memop){ CU_STREAM_MEM_OP_WAIT_VALUE_64,
					       CU_STREAM_WAIT_VALUE_GEQ,
					       address(&g->c, word + 24), 99 };
	NODE(empty, 7, SV_NODE_EMPTY, 2);
	d->empty.h.ctx = 0;
	d->empty.d[0].node = 6;
	d->empty.d[1].node = 0;
	NODE(lone, 8, SV_NODE_EMPTY, 0);
	d->lone.h.ctx = 0;
	NODE(cond, 9, SV_NODE_COND, 1);
	d->cond.d.node = 7;
	d->cond.b = (struct sv_graph_if){ g->cond, CU_GRAPH_COND_TYPE_IF, 2 };
	NODE(body, 10, SV_NODE_SET, 0);
	d->body.h.graph = 1;
	d->body.b = (struct sv_graph_set){ g->c.window + 64, 0, 1, 1, 4, 33 };
}

static int make_root(struct game *g)
{
	struct sv_graph_cond a = { g->c.ctx, new_handle(&g->c, SV_T_CUgraph), 1,
				   CU_GRAPH_COND_ASSIGN_DEFAULT };

	g->root = a.graph;
	return call2(&g->c, SV_OP_cuGraphConditionalHandleCreate, &a, sizeof(a), NULL, 0, &g->cond,
		     sizeof(g->cond));
}

static int game_start(struct game *g)
{
	struct client *c = &g->c;
	struct sv_cuEventCreate e = { 0 };
	int rc = client_start(c, NULL);
	uint64_t lib;

	if (!rc)
		rc = client_context(c);
	if (rc)
		return rc;
	g->pin = arena_take(c, MiB);
	g->words = (uint64_t *)(c->arena + g->pin);
	g->at = arena_take(c, sizeof(*g->d));
	g->d = (void *)(c->arena + g->at);
	SEND(c, SV_OP_X_MAP, (struct sv_map){ c->window, GRANULE });
	SEND(c, SV_OP_X_PIN, (struct sv_pin){ g->pin, MiB });
	e.ctx = c->ctx;
	e.phEvent = g->event = new_handle(c, SV_T_CUevent);
	ring_submit(c->ring, SV_OP_cuEventCreate, &e, sizeof(e), NULL, 0);
	lib = load_text(c, kernels, &rc);
	g->kernel = get_kernel(c, lib, "store", NULL);
	rc = make_root(g);
	if (rc)
		return rc;
	describe(g);
	return rc ?: ctx_sync(c);
}

static struct sv_graph_req request(struct game *g, bool update)
{
	if (!update)
		g->exec = new_handle(&g->c, SV_T_CUgraphExec);
	return (struct sv_graph_req){ g->c.ctx, g->exec, g->at, sizeof(*g->d), 0 };
}

static int instantiate(struct game *g)
{
	return CALL(&g->c, SV_OP_X_GRAPH, request(g, false));
}

static int update(struct game *g, const void *d, uint32_t len)
{
	struct sv_graph_req r = { g->c.ctx, g->exec, SV_GRAPH_INLINE, len, 0 };

	return call2(&g->c, SV_OP_X_GRAPH_UPDATE, &r, sizeof(r), d, len, NULL, 0);
}

static void launch_graph(struct game *g, uint64_t value)
{
	SEND(&g->c, SV_OP_cuGraphLaunch,
	     (struct sv_graph_launch){ g->c.ctx, SV_STREAM_LEGACY, g->exec, g->pin + 8, value });
}

TEST(every_node)
{
	struct sv_next_call due = { 0 };
	struct game g = { 0 };
	uint64_t old;

	ASSERT_EQ(game_start(&g), 0);
	ASSERT_EQ(instantiate(&g), 0);
	for (uint64_t round = 1; round < 4; round++) {
		g.words[2] = g.words[3] = 0;
		launch_graph(&g, round);
		ASSERT_EQ(call2(&g.c, SV_OP_X_NEXT_CALL, NULL, 0, NULL, 0, &due, sizeof(due)), 0);
		EXPECT_EQ(due.id, 42);
		EXPECT_EQ(g.words[2], 7ull << 32 | 1);	/* the kernel stored 1 over the 7 */
		EXPECT_EQ(g.words[3], 0);
		EXPECT_EQ(g.words[1], round - 1);
		__atomic_store_n(&g.words[0], 1, __ATOMIC_RELEASE);
		EXPECT_EQ(ctx_sync(&g.c), 0);
		EXPECT_EQ(g.words[0], 0);
		EXPECT_EQ(g.words[1], round);
		EXPECT_EQ(g.words[3], 99);
		EXPECT_EQ(copy(&g.c, SV_STREAM_LEGACY, address(&g.c, g.pin + 32),
			       g.c.window + 64, 8), 0);
		EXPECT_EQ(g.words[4], 33);
	}
	/* one at a time, and again when it has gone, whatever the graph has become */
	old = g.exec;
	EXPECT_EQ(instantiate(&g), CUDA_ERROR_NOT_SUPPORTED);
	g.exec = old;
	SEND(&g.c, SV_OP_cuGraphExecDestroy, (struct sv_graph_end){ g.exec });
	EXPECT_EQ(instantiate(&g), 0);
	SEND(&g.c, SV_OP_cuGraphDestroy, (struct sv_graph_forget){ g.root });
	SEND(&g.c, SV_OP_cuGraphExecDestroy, (struct sv_graph_end){ g.exec });
	EXPECT_EQ(instantiate(&g), CUDA_ERROR_INVALID_HANDLE);
	EXPECT_EQ(ctx_sync(&g.c), 0);
	EXPECT_EQ(late_count(&g.c), 0);
	EXPECT_EQ(client_end(&g.c), 0);
}

TEST(updates)
{
	struct {
		struct sv_graph h;
		struct { struct sv_graph_node h; struct sv_graph_set b; } n;
	} u;
	struct sv_next_call due = { 0 };
	struct game g = { 0 };

	ASSERT_EQ(game_start(&g), 0);
	ASSERT_EQ(instantiate(&g), 0);
	memset(&u, 0, sizeof(u));
	u.h.nodes = 1;
	memcpy(&u.n, &g.d->set, sizeof(u.n));
	u.n.b.value = 11;
	EXPECT_EQ(update(&g, &u, sizeof(u)), 0);
	launch_graph(&g, 1);
	ASSERT_EQ(call2(&g.c, SV_OP_X_NEXT_CALL, NULL, 0, NULL, 0, &due, sizeof(due)), 0);
	EXPECT_EQ(g.words[2], 11ull << 32 | 1);
	__atomic_store_n(&g.words[0], 1, __ATOMIC_RELEASE);
	EXPECT_EQ(ctx_sync(&g.c), 0);
	/* beyond what the session has: an error of the call, and nothing has changed */
	u.n.b.value = 12;
	u.n.b.width = GRANULE;
	EXPECT_EQ(update(&g, &u, sizeof(u)), CUDA_ERROR_INVALID_VALUE);
	u.n.h.flags = SV_NODE_DISABLED;
	u.n.b.width = 16;
	EXPECT_EQ(update(&g, &u, sizeof(u)), 0);
	launch_graph(&g, 2);
	ASSERT_EQ(call2(&g.c, SV_OP_X_NEXT_CALL, NULL, 0, NULL, 0, &due, sizeof(due)), 0);
	EXPECT_EQ(g.words[2], 11ull << 32 | 1);	/* as the last launch has left it */
	__atomic_store_n(&g.words[0], 1, __ATOMIC_RELEASE);
	EXPECT_EQ(ctx_sync(&g.c), 0);
	EXPECT_EQ(client_end(&g.c), 0);
}

/* What a program could do: errors of the call. */
TEST(mistakes)
{
	struct game g = { 0 };

	ASSERT_EQ(game_start(&g), 0);
	g.d->set.b.dst = g.c.window + GRANULE;
	EXPECT_EQ(instantiate(&g), CUDA_ERROR_INVALID_VALUE);
	describe(&g);
	g.d->copy.b.dst.addr = (uintptr_t)&g;
	EXPECT_EQ(instantiate(&g), CUDA_ERROR_INVALID_VALUE);
	describe(&g);
	g.d->copy.b.dst.addr = address(&g.c, 0);	/* the proxy's own part of the arena */
	EXPECT_EQ(instantiate(&g), CUDA_ERROR_INVALID_VALUE);
	describe(&g);
	g.d->ops.b[0].addr = address(&g.c, 8);
	EXPECT_EQ(instantiate(&g), CUDA_ERROR_INVALID_VALUE);
	describe(&g);
	g.d->kernel.l.function = sv_handle(SV_T_CUkernel, 77777, 1);
	EXPECT_EQ(instantiate(&g), CUDA_ERROR_INVALID_HANDLE);
	describe(&g);
	g.d->kernel.l.grid[0] = 0;
	EXPECT_EQ(instantiate(&g), CUDA_ERROR_INVALID_VALUE);
	describe(&g);
	g.d->record.b.event = sv_handle(SV_T_CUevent, 77777, 1);
	EXPECT_EQ(instantiate(&g), CUDA_ERROR_INVALID_HANDLE);
	describe(&g);
	EXPECT_EQ(instantiate(&g), 0);
	g.exec = sv_handle(SV_T_CUgraphExec, 77777, 1);
	launch_graph(&g, 5);
	EXPECT_EQ(ctx_sync(&g.c), 0);
	EXPECT_EQ(late_code(&g.c), CUDA_ERROR_INVALID_HANDLE);
	EXPECT_EQ(g.words[1], 5);
	EXPECT_EQ(client_end(&g.c), 0);
}

/* The session has ended, and says why. */
static int ended(struct game *g, const char *why)
{
	int rc, ok;

	for (int i = 0; i < 5000 && ctx_sync(&g->c) >= 0; i++)
		usleep(1000);
	ok = ctx_sync(&g->c) == -EPIPE && strstr((const char *)g->c.shared->why, why);
	if (!ok)
		fprintf(stderr, "# '%s': it says '%s'\n", why, g->c.shared->why);
	rc = client_end(&g->c);
	if (rc != 1)
		fprintf(stderr, "# '%s': exit status %d\n", why, rc);
	return ok && rc == 1;
}

#define BREAKS(why, ...) do { \
	struct game g = { 0 }; \
	ASSERT_EQ(game_start(&g), 0); \
	__VA_ARGS__; \
	EXPECT_LT(instantiate(&g), 0); \
	EXPECT_TRUE(ended(&g, why)); \
} while (0)

TEST(broken_rules)
{
	BREAKS("number", g.d->h.nodes = UINT32_MAX);
	BREAKS("number", g.d->h.pad = 1);
	BREAKS("ends early", g.d->h.nodes = 12);
	BREAKS("follows", g.d->h.nodes = 10);
	BREAKS("size of a graph's node", g.d->set.h.size = 0);
	BREAKS("size of a graph's node", g.d->set.h.size = UINT32_MAX & ~7u);
	BREAKS("size of a graph's node", g.d->set.h.deps = UINT32_MAX);
	BREAKS("size or type", g.d->set.h.size += 8);
	BREAKS("size or type", g.d->set.h.type = 0);
	BREAKS("size or type", g.d->set.h.type = SV_NODE_KERNEL);
	BREAKS("size or type", g.d->kernel.l.param_bytes = UINT32_MAX);
	BREAKS("size or type", g.d->kernel.l.attrs = UINT32_MAX);
	BREAKS("flags", g.d->set.h.flags = 2);
	BREAKS("flags", g.d->call.h.flags = SV_NODE_DISABLED);
	BREAKS("order", g.d->set.h.index = 1);
	BREAKS("dependency", g.d->kernel.d.node = 1);		/* itself */
	BREAKS("dependency", g.d->kernel.d.node = UINT32_MAX);
	BREAKS("dependency", g.d->kernel.d.pad = 1);
	BREAKS("dependency", g.d->kernel.d.type = 9);
}

TEST(broken_rules_of_nodes)
{
	BREAKS("context", g.d->set.h.ctx = 1);
	BREAKS("context", g.d->lone.h.ctx = g.c.ctx);
	BREAKS("element", g.d->set.b.elem = 3);
	BREAKS("launch", g.d->kernel.l.stream = 1);
	BREAKS("launch", g.d->kernel.l.flags = 1);
	BREAKS("launch", g.d->kernel.l.ctx++);
	BREAKS("function", g.d->kernel.l.function = g.event);
	BREAKS("copy", g.d->copy.b.word = 8);
	BREAKS("array", g.d->copy.b.dst.addr = 0, g.d->copy.b.dst.array = g.event);
	BREAKS("id or word", g.d->call.b.id = 0);
	BREAKS("id or word", g.d->call.b.word = 8);		/* the proxy's own */
	BREAKS("id or word", g.d->call.b.word++);
	BREAKS("id or word", g.d->call.b.word = UINT64_MAX - 7);
	BREAKS("event", g.d->wait.b.event = g.c.ctx);
	BREAKS("handle of a conditional", g.d->cond.b.handle++);
	BREAKS("handle of a conditional", g.d->h.root = 0);
	BREAKS("handle of a graph", g.d->h.root = g.event);
	BREAKS("bodies", g.d->cond.b.size = 0);
	BREAKS("bodies", g.d->cond.b.size = UINT32_MAX);
	BREAKS("graph of", g.d->body.h.graph = 3);
	BREAKS("graph of", g.d->cond.h.graph = 1);		/* not there yet */
	BREAKS("another graph", g.d->body.h.deps = 1,
	       g.d->body.h.type = SV_NODE_EMPTY, g.d->body.h.ctx = 0,
	       g.d->body.h.size = sizeof(struct sv_graph_node) + 8,
	       g.d->body.b.dst = 9);
	BREAKS("padding", g.d->set.h.pad = 1);
	BREAKS("memory operation", g.d->ops.b[1].op = 77);
}

TEST(places)
{
	struct sv_graph_req r;
	struct game g = { 0 };

#define PLACE(why, ...) do { \
	ASSERT_EQ(game_start(&g), 0); \
	r = request(&g, false); \
	__VA_ARGS__; \
	EXPECT_LT(CALL(&g.c, SV_OP_X_GRAPH, r), 0); \
	EXPECT_TRUE(ended(&g, why)); \
} while (0)
	PLACE("size", r.len = 0);
	PLACE("size", r.len = UINT64_MAX & ~7ull);
	PLACE("place", r.off = 0);
	PLACE("place", r.off = UINT64_MAX & ~7ull);
	PLACE("place", r.off++);
	PLACE("size", r.off = SV_GRAPH_INLINE);
	PLACE("flags", r.flags = 4);
	PLACE("handle", r.exec = g.event);
	PLACE("context", r.ctx = g.event);
}

/*
 * A worker reads a graph's handles, while the consumer is asked for another one of the same graph. Which comes first is
 * open; an access without order is for a sanitizer to find (SINGVGPU_TEST_WINDOW=0x7ea000000000:8G for threads').
 */
TEST(handles_made_while_their_graph_is_instantiated)
{
	int32_t made = 0, instantiated = 0, status;
	struct game g = { 0 };

	ASSERT_EQ(game_start(&g), 0);
	for (int i = 0; i < 100; i++) {
		struct sv_graph_cond a = { g.c.ctx, g.root, 1, CU_GRAPH_COND_ASSIGN_DEFAULT };
		struct sv_graph_req r = request(&g, false);
		struct ring_ticket t;
		uint64_t cond;
		int rc;

		ASSERT_EQ(ring_request(g.c.ring, &t, SV_OP_X_GRAPH, &r, sizeof(r), NULL, 0), 0);
		rc = call2(&g.c, SV_OP_cuGraphConditionalHandleCreate, &a, sizeof(a), NULL, 0, &cond,
			   sizeof(cond));
		ASSERT_TRUE(!rc || rc == CUDA_ERROR_NOT_SUPPORTED)
			TH_LOG("a handle: %d", rc);
		made += !rc;
		ASSERT_EQ(ring_await(g.c.ring, &t, &status, NULL, 0, NULL, -1), 0);
		ASSERT_TRUE(!status || status == CUDA_ERROR_NOT_SUPPORTED)
			TH_LOG("a graph: %d", status);
		instantiated += !status;
		if (!status) {
			ASSERT_EQ(CALL(&g.c, SV_OP_cuGraphExecDestroy, (struct sv_graph_end){ r.exec }), 0);
		}
	}
	EXPECT_GT(made + instantiated, 99);
	EXPECT_EQ(client_end(&g.c), 0);
}

static uint64_t seed = 0x9e3779b97f4a7c15ull;

static uint64_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

/* Any change to any word, also in what goes on to be launched; nobody answers its calls. */
/* A number, not a time: a faster machine would see other mutants. The harness gives them 30 s. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MUTANTS 250
#else
#define MUTANTS 1000
#endif

TEST(mutants)
{
	static const uint64_t odd[] = {
		0, 1, 7, 8, 0x7fffffff, 0xffffffff, 1ull << 63, UINT64_MAX
	};
	unsigned int sessions = 0, made = 0, refused = 0;
	int left = MUTANTS;
	struct game g = { 0 };

	ASSERT_EQ(game_start(&g), 0);
	while (left--) {
		int n = 1 + rnd() % 3, rc;

		describe(&g);
		while (n--) {
			uint64_t *w = (uint64_t *)g.d + rnd() % (sizeof(*g.d) / 8);

			switch (rnd() % 3) {
			case 0:
				*w ^= 1ull << rnd() % 64;
				break;
			case 1:
				*w = odd[rnd() % 8];
				break;
			default:
				*w = ((uint64_t *)g.d)[rnd() % (sizeof(*g.d) / 8)];
			}
		}
		rc = instantiate(&g);
		if (!rc) {
			made++;
			launch_graph(&g, 1);
			if (rnd() % 4)
				SEND(&g.c, SV_OP_cuGraphExecDestroy,
				     (struct sv_graph_end){ g.exec });
			else
				g.root = 0;		/* the next has none, or one of its own */
			/* The client leaves while the graph waits for it, or where a
			 * mutant's kernel has faulted: its context is of no use.
			 */
			rc = rnd() % 8 ? 0 : -EPIPE;
			if (!g.root && rnd() & 1 && make_root(&g))
				rc = -EPIPE;
			if (!rc)
				continue;
		}
		if (rc > 0) {
			refused++;
			continue;
		}
		rc = client_end(&g.c);
		if (rc != 0 && rc != 1)
			TH_LOG("a proxy ended with %d", rc);
		ASSERT_TRUE(rc == 0 || rc == 1);
		sessions++;
		memset(&g, 0, sizeof(g));
		ASSERT_EQ(game_start(&g), 0);
	}
	EXPECT_GE(client_end(&g.c), 0);
	printf("# %u sessions, %u graphs made, %u refused\n", sessions, made, refused);
	EXPECT_GT(made, 0);
	EXPECT_GT(refused, 0);
	EXPECT_GT(sessions, 0);
}

TEST_HARNESS_MAIN
