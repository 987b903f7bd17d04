// SPDX-License-Identifier: Apache-2.0
/*
 * device.c - queries about devices, answered from the proxy's description of them
 */
#include "context.h"
#include "memory_i.h"
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

API CUresult cuInit(unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return session_open();
}

API CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	/* Allowed before cuInit, when only the headers' version is known. */
	*version = process.state == SESSION_OPEN ? process.driver_version : CUDA_VERSION;
	return CUDA_SUCCESS;
}

static CUresult find_device(CUdevice dev, const struct sv_device **out)
{
	TRY(process_check());
	*out = session_device(dev);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
	const struct sv_device *d;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(ordinal, &d));
	*out = ordinal;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count)
{
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_check());
	*count = process.devices;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	const struct sv_device *d;

	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(dev, &d));
	snprintf(name, len, "%.255s", d->name);
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	const struct sv_device *d;

	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(dev, &d));
	memcpy(uuid, d->uuid, sizeof(*uuid));
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	return cuDeviceGetUuid_v2(uuid, dev);
}

API CUresult cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice dev)
{
	const struct sv_device *d;

	if (!luid || !mask)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(dev, &d));
	if (d->luid_ok) {
		memcpy(luid, d->luid, sizeof(d->luid));
		*mask = d->luid_mask;
		return CUDA_SUCCESS;
	}
	return sv_absent("cuDeviceGetLuid", "Windows alone has LUIDs");
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	const struct sv_device *d;

	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(dev, &d));
	*bytes = d->total_mem;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attr, CUdevice dev)
{
	const struct sv_device *d;

	if (!value || (unsigned int)attr >= SV_ATTRS_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(dev, &d));
	if (!d->attr_ok[attr])
		return CUDA_ERROR_INVALID_VALUE;
	*value = device_granted(attr, d);
	if (*value < 0)
		*value = device_denied(attr) ? 0 : d->attr[attr];
	return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev));
	return cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, dev);
}

API CUresult cuDeviceGetProperties(CUdevprop *p, CUdevice dev)
{
	const struct sv_device *d;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(dev, &d));
	p->maxThreadsPerBlock = d->attr[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
	for (int i = 0; i < 3; i++) {
		p->maxThreadsDim[i] = d->attr[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i];
		p->maxGridSize[i] = d->attr[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i];
	}
	p->sharedMemPerBlock = d->attr[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK];
	p->totalConstantMemory = d->attr[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY];
	p->SIMDWidth = d->attr[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
	p->memPitch = d->attr[CU_DEVICE_ATTRIBUTE_MAX_PITCH];
	p->regsPerBlock = d->attr[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK];
	p->clockRate = d->attr[CU_DEVICE_ATTRIBUTE_CLOCK_RATE];
	p->textureAlign = d->attr[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT];
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	const struct sv_device *d;

	if (!id || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(dev, &d));
	if ((int)strnlen(d->pci_bus_id, sizeof(d->pci_bus_id)) >= len)
		return CUDA_ERROR_INVALID_VALUE;
	strcpy(id, d->pci_bus_id);
	return CUDA_SUCCESS;
}

/* A bus id may be written with or without its domain and function. */
static bool same_bus(const char *a, const char *b)
{
	unsigned int x[4] = { 0 }, y[4] = { 0 };

	if (sscanf(a, "%x:%x:%x.%x", &x[0], &x[1], &x[2], &x[3]) < 3)
		if (sscanf(a, "%x:%x.%x", &x[1], &x[2], &x[3]) < 2)
			return false;
	return sscanf(b, "%x:%x:%x.%x", &y[0], &y[1], &y[2], &y[3]) >= 3 &&
		!memcmp(x, y, sizeof(x));
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *id)
{
	if (!out || !id)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(process_check());
	for (int i = 0; i < process.devices; i++)
		if (same_bus(id, session_device(i)->pci_bus_id)) {
			*out = i;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format,
						unsigned int channels, CUdevice dev)
{
	const struct sv_device *d;

	(void)format;
	if (!width || (channels != 1 && channels != 2 && channels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(dev, &d));
	*width = d->attr[CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH];
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev)
{
	const struct sv_device *d;

	if (!pi || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(dev, &d));
	*pi = 0;
	return CUDA_SUCCESS;
}

API CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	struct context *ctx;

	TRY(context_current(&ctx));
	pool_trim(false);
	if (free)
		*free = memory_left();
	if (total)
		*total = session_device(device_of(here))->total_mem;
	return CUDA_SUCCESS;
}

API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	const char *s = getenv("CUDA_MODULE_LOADING");

	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = s && !strcmp(s, "EAGER") ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}

/* Reports no native atomics on host memory, since a job may move to a device without them. */
API CUresult cuDeviceGetHostAtomicCapabilities(unsigned int *capabilities,
					       const CUatomicOperation *ops, unsigned int n,
					       CUdevice dev)
{
	const struct sv_device *d;

	if (!capabilities || !ops || !n)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < n; i++)
		if ((unsigned int)ops[i] >= CU_ATOMIC_OPERATION_MAX)
			return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(dev, &d));
	memset(capabilities, 0, n * sizeof(*capabilities));
	return CUDA_SUCCESS;
}

/*
 * All multiprocessors, which no green context takes a part of. Older headers have fewer fields. The
 * least part and its granularity are those that cuda.h names for each architecture.
 */
API CUresult cuDeviceGetDevResource(CUdevice dev, CUdevResource *out, CUdevResourceType type)
{
	const struct sv_device *d;
	unsigned int sm[3];
	int major;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_device(dev, &d));
	if (type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	major = d->attr[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
	sm[0] = d->attr[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
	sm[1] = major >= 9 ? 8 : major == 8 ? 4 : 2;
	sm[2] = major >= 9 ? 8 : 2;
	memset(out, 0, sizeof(*out));
	out->type = type;
	memcpy(&out->sm, sm, sizeof(sm));
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevResource(CUcontext ctx, CUdevResource *out, CUdevResourceType type)
{
	CUdevice dev;

	TRY(cuCtxGetDevice_v2(&dev, ctx));
	return cuDeviceGetDevResource(dev, out, type);
}
