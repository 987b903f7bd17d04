// SPDX-License-Identifier: Apache-2.0
/*
 * hooks.c - the lists of hooks
 */
#include "arena.h"
#include "graphs.h"
#include "hooks.h"
#include "image.h"
#include "managedvar.h"
#include "memory_i.h"

const struct session_hook session_hooks[] = {
	{ .first = pool_init },
	{ .begin = memory_begin, .forked = host_forked },
	{ .begin = arena_begin, .part = arena_part },
	{ .begin = stage_begin },
};
const int session_hooks_n = sizeof(session_hooks) / sizeof(session_hooks[0]);

const struct context_hook context_hooks[] = {
	{ .waited = managedvar_waited_slow, .object_gone = module_object_gone },
	{ .gone = graph_context_gone },
	{ .trim = pool_trim, .gone = memory_context_gone },
};
const int context_hooks_n = sizeof(context_hooks) / sizeof(context_hooks[0]);

const struct graph_hooks graph_hooks = {
	.record = graph_record,
	.memops = graph_memops,
	.alloc = graph_alloc,
	.free = graph_free,
	.stream_gone = graph_stream_gone,
	.memory_freed = graph_memory_freed,
};
