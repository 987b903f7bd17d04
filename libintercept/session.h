/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - connects the process to the proxy of a device; attributes that it denies, and calls that bypass it
 */
#ifndef SESSION_H
#define SESSION_H

#include "process.h"

/* Implements cuInit. CUDA_ERROR_NO_DEVICE, CUDA_ERROR_SYSTEM_NOT_READY no proxy, … */
LOCAL CUresult session_open(void);

/*
 * The session of one of the program's devices, connected now if it was not. The first one moves
 * there as long as the process has nothing on its device. process.lock is held. DEVICE_UNAVAILABLE.
 */
LOCAL CUresult session_on(int device, struct session **out);

/* session_on() for a caller without process.lock. A host function may only ask for `here`. NOT_PERMITTED. */
LOCAL CUresult session_make(int device, struct session **out);

/* --------------------------------------------------------------------------------------- denied.c */

/* Whether a session reports this attribute as 0, whatever the device's value is. */
LOCAL bool device_denied(CUdevice_attribute attr);

/* The value of an attribute that proxies implement among themselves, else -1. d is the device. */
LOCAL int device_granted(CUdevice_attribute attr, const struct sv_device *d);

/* --------------------------------------------------------------------------------------- bypass.c */

/* Report to the proxy the mappings through which calls may bypass it. */
LOCAL void bypass_check(void);

#endif
