// SPDX-License-Identifier: Apache-2.0
/*
 * otherdev.c - the soft device's driver, but the property that $OTHER_DEVICE names differs
 *
 * A driver for `--driver`. Properties: name, cc, driver; all else is the soft device's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

static int differs(const char *what)
{
	const char *other = getenv("OTHER_DEVICE");

	return other && !strcmp(other, what);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	CUresult (*next)(char *, int, CUdevice) = dlsym(RTLD_NEXT, __func__);
	CUresult r = next(name, len, dev);

	if (!r && differs("name"))
		snprintf(name, len, "Some other GPU");
	return r;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attr, CUdevice dev)
{
	CUresult (*next)(int *, CUdevice_attribute, CUdevice) = dlsym(RTLD_NEXT, __func__);
	CUresult r = next(value, attr, dev);

	if (!r && attr == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR && differs("cc"))
		*value -= 4;
	return r;
}

CUresult cuDriverGetVersion(int *version)
{
	CUresult (*next)(int *) = dlsym(RTLD_NEXT, __func__);
	CUresult r = next(version);

	if (!r && differs("driver"))
		*version -= 1000;
	return r;
}
