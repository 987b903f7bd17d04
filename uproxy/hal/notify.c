// SPDX-License-Identifier: Apache-2.0
/*
 * notify.c - reports when a stream has reached a point, and which errors are sticky
 *
 * Uses cuStreamAddCallback, not cuLaunchHostFunc: only its callback runs in a failed context, with
 * the error, and the driver writes out what kernels have printed before it.
 */
#include <stdlib.h>

#include "hal.h"

struct note {
	hal_fn fn;
	void *arg;
};

static void CUDA_CB called(CUstream stream, CUresult status, void *arg)
{
	struct note n = *(struct note *)arg;

	(void)stream;
	free(arg);
	n.fn(n.arg, status);
}

CUresult hal_notify(struct hal *h, CUstream stream, hal_fn fn, void *arg)
{
	struct note *n = malloc(sizeof(*n));
	CUresult r;

	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*n = (struct note){ fn, arg };
	r = h->drv.cuStreamAddCallback(stream, called, n, 0);
	if (r)
		free(n);
	return r;
}

int hal_sticky(CUresult r)
{
	switch ((int)r) {
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_EXTERNAL_DEVICE:
	case CUDA_ERROR_UNKNOWN:
		return 1;
	}
	return 0;
}
