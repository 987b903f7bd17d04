// SPDX-License-Identifier: Apache-2.0
/*
 * memory.c - ncclMemAlloc, and hints: registered buffers and windows
 *
 * Transports use any device memory as it is, so registration has nothing to prepare. Handles are NULL, as
 * NCCL's are where registration is off.
 */
#include "nccl_i.h"

API ncclResult_t ncclMemAlloc(void **out, size_t size)
{
	struct core_place at;
	CUdeviceptr p = 0;
	CUcontext was;
	CUresult rc;

	TRY(given(out, "ncclMemAlloc", "ptr"));
	*out = NULL;
	TRY(core_find());
	TRY(cuda(core->enter(-1, &at), "ncclMemAlloc"));
	rc = cuCtxPushCurrent_v2((CUcontext)at.handle);
	if (!rc && size)
		rc = cuMemAlloc_v2(&p, size);
	cuCtxPopCurrent_v2(&was);
	/* Memory lives no longer than its context: the use of a primary one stays. */
	if (rc || !size)
		core->leave(&at);
	*out = (void *)p;
	return cuda(rc, "ncclMemAlloc");
}

API ncclResult_t ncclMemFree(void *p)
{
	struct core_place at;
	CUcontext was;
	CUresult rc;

	if (!p)
		return ncclSuccess;
	TRY(core_find());
	TRY(cuda(core->enter(-1, &at), "ncclMemFree"));
	rc = cuCtxPushCurrent_v2((CUcontext)at.handle);
	if (!rc)
		rc = cuMemFree_v2((uintptr_t)p);
	cuCtxPopCurrent_v2(&was);
	core->leave(&at);
	return cuda(rc, "ncclMemFree");
}

API ncclResult_t ncclCommRegister(const ncclComm_t c, void *buff, size_t size, void **handle)
{
	(void)size;
	TRY(comm_ready(c, "ncclCommRegister"));
	TRY(given(buff, "ncclCommRegister", "buff"));
	TRY(given(handle, "ncclCommRegister", "handle"));
	*handle = NULL;
	return ncclSuccess;
}

API ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle)
{
	TRY(comm_check(c, "ncclCommDeregister"));
	return handle ? failed(ncclInvalidArgument, "ncclCommDeregister: no such handle") : ncclSuccess;
}

API ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *buff, size_t size, ncclWindow_t *win,
					int flags)
{
	(void)buff;
	(void)size;
	(void)flags;
	TRY(comm_ready(c, "ncclCommWindowRegister"));
	TRY(given(win, "ncclCommWindowRegister", "win"));
	*win = NULL;
	return ncclSuccess;
}

API ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t win)
{
	TRY(comm_check(c, "ncclCommWindowDeregister"));
	return win ? failed(ncclInvalidArgument, "ncclCommWindowDeregister: no such window") : ncclSuccess;
}

API ncclResult_t ncclWinGetUserPtr(ncclComm_t c, ncclWindow_t win, void **out)
{
	(void)win;
	TRY(comm_check(c, "ncclWinGetUserPtr"));
	TRY(given(out, "ncclWinGetUserPtr", "outUserPtr"));
	return failed(ncclInvalidArgument, "ncclWinGetUserPtr: no such window");
}
