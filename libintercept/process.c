// SPDX-License-Identifier: Apache-2.0
/*
 * process.c - the state of the process, of its sessions and of its threads (process.h), and what is read of it
 */
#include "log.h"
#include "object.h"

#include <errno.h>
#include <stdarg.h>

LOCAL struct process process = {
	.lock = LOCK_INIT(LOCK_SESSION),
	.locks = {
		.memory = LOCK_INIT(LOCK_MEMORY),
		.registered = LOCK_INIT(LOCK_REGISTERED),
		.arena = LOCK_INIT(LOCK_ARENA),
		.graphs = LOCK_INIT(LOCK_GRAPHS),
		.pools = LOCK_INIT(LOCK_POOLS),
		.crossings = LOCK_INIT(LOCK_CROSSINGS),
		.seen = LOCK_INIT(LOCK_SEEN),
		.hostfunc = LOCK_INIT(LOCK_HOSTFUNC),
		.vmm = LOCK_INIT(LOCK_VMM),
	},
};

LOCAL struct session sessions[SV_DEVICES_MAX] = {
	[0 ... SV_DEVICES_MAX - 1] = {
		.locks = {
			.managedvars = LOCK_INIT(LOCK_MANAGEDVAR),
			.ipc = LOCK_INIT(LOCK_IPC),
			.stage = LOCK_INIT(LOCK_STAGE),
			.textures = LOCK_INIT(LOCK_TEXTURES),
			.tensor_maps = LOCK_INIT(LOCK_TENSOR_MAPS),
			.prints = LOCK_INIT(LOCK_PRINTS),
			.watches = LOCK_INIT(LOCK_WATCHES),
		},
	},
};

LOCAL __thread struct thread thread __attribute__((tls_model("initial-exec")));

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

CUresult session_find(void)
{
	TRY(process_check());
	if (thread.ctx && !thread.ctx->session->ring)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;	/* it never was a live one */
	here = thread.ctx ? thread.ctx->session : process.home;
	return here ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;	/* it moves, or could not */
}

struct session *session_at(uint64_t addr)
{
	for (int i = -1; i < process.devices; i++) {
		struct session *s = i < 0 ? here : &sessions[i];	/* most often the caller's */

		if (s && s->ring && addr - s->shared->window < s->shared->window_len)
			return s;
	}
	return NULL;
}

const struct sv_device *session_device(int device)
{
	if (device < 0 || device >= process.devices)
		return NULL;
	return &process.dev[process.visible[device]];
}
