// SPDX-License-Identifier: Apache-2.0
/*
 * hooks.c - the lists of hooks
 */
#include "comm_i.h"
#include "device_memory.h"
#include "hooks.h"
#include "modules.h"
#include "transfer.h"

const struct context_hook context_hooks[] = {
	{ .gone = images_ctx_gone },
	{ .gone = textures_ctx_gone },
	{ .repin = window_repin },
	{ .repin = ipc_repin },
	{ .reset = comm_reset, .repin = comm_repin },
};
const int context_hooks_n = sizeof(context_hooks) / sizeof(context_hooks[0]);
