// SPDX-License-Identifier: Apache-2.0
/*
 * nvml.c - libnvidia-ml.so.1 for a job: what NCCL and PyTorch query, over the stand-in for libcuda
 *
 * A job sees its own devices, in the order of cuDeviceGet, and nothing of the host's other jobs:
 * memory is the job's budget, the only process is the caller, and there are no links between
 * devices. The toolkit has no nvml.h, so the ABI is repeated here (NVML API reference, "Structs",
 * "Device Queries"). Other functions are in refused.h; newer ones are missing, as with an old
 * driver.
 */
#include <cuda.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
typedef struct nvml_device *nvmlDevice_t;

enum {
	OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, UNKNOWN = 999,
};

struct pci_info {			/* nvmlPciInfo_t */
	char legacy_id[16];
	unsigned int domain, bus, device, device_id, subsystem_id;
	char id[32];
};

struct memory {				/* nvmlMemory_t */
	unsigned long long total, free, used;
};

struct memory_v2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};

struct utilization {
	unsigned int gpu, memory;
};

struct field_value {			/* nvmlFieldValue_t */
	unsigned int id, scope;
	long long timestamp, latency_us;
	unsigned int type;
	nvmlReturn_t result;
	unsigned long long value;
};

struct process_v1 {			/* nvmlProcessInfo_v1_t */
	unsigned int pid;
	unsigned long long used;
};

struct process {			/* nvmlProcessInfo_t */
	unsigned int pid;
	unsigned long long used;
	unsigned int gpu_instance, compute_instance;
};

#define DEVICES_MAX 16

struct nvml_device {
	CUdevice dev;
};

static struct {
	CUresult (*init)(unsigned int);
	CUresult (*version)(int *);
	CUresult (*count)(int *);
	CUresult (*name)(char *, int, CUdevice);
	CUresult (*uuid)(CUuuid *, CUdevice);
	CUresult (*pci)(char *, int, CUdevice);
	CUresult (*total)(size_t *, CUdevice);
	CUresult (*attribute)(int *, CUdevice_attribute, CUdevice);
	CUresult (*memory)(size_t *, size_t *);
} cu;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvml_device devices[DEVICES_MAX];
static int users, count;

static nvmlReturn_t result(CUresult rc)
{
	return rc == CUDA_SUCCESS ? OK : rc == CUDA_ERROR_INVALID_VALUE ? INVALID_ARGUMENT : UNKNOWN;
}

static int load(void)
{
	static const struct {
		const char *name;
		void **to;
	} wanted[] = {
		{ "cuInit", (void **)&cu.init }, { "cuDriverGetVersion", (void **)&cu.version },
		{ "cuDeviceGetCount", (void **)&cu.count },
		{ "cuDeviceGetName", (void **)&cu.name },
		{ "cuDeviceGetUuid_v2", (void **)&cu.uuid },
		{ "cuDeviceGetPCIBusId", (void **)&cu.pci },
		{ "cuDeviceTotalMem_v2", (void **)&cu.total },
		{ "cuDeviceGetAttribute", (void **)&cu.attribute },
		{ "cuMemGetInfo_v2", (void **)&cu.memory },
	};
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);

	for (unsigned int i = 0; lib && i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		*wanted[i].to = dlsym(lib, wanted[i].name);
		if (!*wanted[i].to)
			return -1;
	}
	return lib ? 0 : -1;
}

/* --------------------------------------------------------------------------- library, system */

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	nvmlReturn_t rc = OK;

	(void)flags;
	pthread_mutex_lock(&lock);
	if (!users && (load() || cu.init(0) || cu.count(&count)))
		rc = DRIVER_NOT_LOADED;
	if (!rc) {
		users++;
		for (int i = 0; i < DEVICES_MAX; i++)
			devices[i].dev = i;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

API nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t rc = OK;

	pthread_mutex_lock(&lock);
	if (users)
		users--;
	else
		rc = UNINITIALIZED;
	pthread_mutex_unlock(&lock);
	return rc;
}

API const char *nvmlErrorString(nvmlReturn_t rc)
{
	switch (rc) {
	case OK:
		return "Success";
	case UNINITIALIZED:
		return "Uninitialized";
	case INVALID_ARGUMENT:
		return "Invalid Argument";
	case NOT_SUPPORTED:
		return "Not Supported";
	case NOT_FOUND:
		return "Not Found";
	case INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case DRIVER_NOT_LOADED:
		return "Driver Not Loaded";
	default:
		return "Unknown Error";
	}
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (!version)
		return INVALID_ARGUMENT;
	return users ? result(cu.version(version)) : UNINITIALIZED;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

static nvmlReturn_t text(char *to, unsigned int len, const char *from)
{
	if (!to)
		return INVALID_ARGUMENT;
	if (strlen(from) >= len)
		return INSUFFICIENT_SIZE;
	strcpy(to, from);
	return OK;
}

/* The driver branch that first had this version of CUDA, in the form that tools expect. */
API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int len)
{
	char s[32];
	int v;

	if (!users)
		return UNINITIALIZED;
	if (cu.version(&v))
		return UNKNOWN;
	snprintf(s, sizeof(s), "%d.%02d", v >= 13000 ? 580 + v % 1000 / 10 : 525, 0);
	return text(version, len, s);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int len)
{
	char driver[32], s[48];
	nvmlReturn_t rc = nvmlSystemGetDriverVersion(driver, sizeof(driver));
	int v;

	if (rc || cu.version(&v))
		return rc ? rc : UNKNOWN;
	snprintf(s, sizeof(s), "%d.%s", v / 1000, driver);
	return text(version, len, s);
}

/* ----------------------------------------------------------------------------- finding devices */

static nvmlReturn_t check(nvmlDevice_t d)
{
	if (!users)
		return UNINITIALIZED;
	return d >= devices && d < devices + count ? OK : INVALID_ARGUMENT;
}

#define CHECK(d, out) \
	do { \
		nvmlReturn_t check_ = check(d); \
		if (check_) \
			return check_; \
		if (!(out)) \
			return INVALID_ARGUMENT; \
	} while (0)

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *out)
{
	if (!users)
		return UNINITIALIZED;
	if (!out)
		return INVALID_ARGUMENT;
	*out = count;
	return OK;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned int *out)
{
	return nvmlDeviceGetCount_v2(out);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *out)
{
	if (!users)
		return UNINITIALIZED;
	if (!out || i >= (unsigned int)count)
		return INVALID_ARGUMENT;
	*out = &devices[i];
	return OK;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int i, nvmlDevice_t *out)
{
	return nvmlDeviceGetHandleByIndex_v2(i, out);
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned int *out)
{
	CHECK(d, out);
	*out = d - devices;
	return OK;
}

static void uuid_text(CUdevice dev, char *to, size_t len)
{
	unsigned char u[16] = { 0 };

	cu.uuid((CUuuid *)u, dev);
	snprintf(to, len, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12],
		 u[13], u[14], u[15]);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *out, unsigned int len)
{
	char s[64];

	CHECK(d, out);
	uuid_text(d->dev, s, sizeof(s));
	return text(out, len, s);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
	char s[64];

	if (!users)
		return UNINITIALIZED;
	if (!uuid || !out)
		return INVALID_ARGUMENT;
	for (int i = 0; i < count; i++) {
		uuid_text(i, s, sizeof(s));
		if (!strcmp(s, uuid)) {
			*out = &devices[i];
			return OK;
		}
	}
	return NOT_FOUND;
}

static int pci_of(CUdevice dev, struct pci_info *p)
{
	char id[32];
	unsigned int fn;

	memset(p, 0, sizeof(*p));
	if (cu.pci(id, sizeof(id), dev) ||
	    sscanf(id, "%x:%x:%x.%x", &p->domain, &p->bus, &p->device, &fn) != 4)
		return -1;
	snprintf(p->id, sizeof(p->id), "%08X:%02X:%02X.%X", p->domain, p->bus, p->device, fn);
	snprintf(p->legacy_id, sizeof(p->legacy_id), "%04X:%02X:%02X.%X", p->domain & 0xffff,
		 p->bus & 0xff, p->device & 0xff, fn & 15);
	return 0;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, struct pci_info *out)
{
	CHECK(d, out);
	return pci_of(d->dev, out) ? UNKNOWN : OK;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *out)
{
	unsigned int domain, bus, device;
	struct pci_info p;

	if (!users)
		return UNINITIALIZED;
	if (!id || !out || (sscanf(id, "%x:%x:%x", &domain, &bus, &device) != 3))
		return INVALID_ARGUMENT;
	for (int i = 0; i < count; i++)
		if (!pci_of(i, &p) && p.domain == domain && p.bus == bus && p.device == device) {
			*out = &devices[i];
			return OK;
		}
	return NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *out)
{
	return nvmlDeviceGetHandleByPciBusId_v2(id, out);
}

/* ---------------------------------------------------------------------- properties of a device */

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *out, unsigned int len)
{
	char s[256];

	CHECK(d, out);
	return cu.name(s, sizeof(s), d->dev) ? UNKNOWN : text(out, len, s);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
	CHECK(d, major && minor);
	if (cu.attribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d->dev))
		return UNKNOWN;
	return result(cu.attribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d->dev));
}

/* The caller's own use; without a current context all memory counts as free. */
static nvmlReturn_t memory_of(nvmlDevice_t d, size_t *total, size_t *free)
{
	size_t all;

	if (cu.total(total, d->dev))
		return UNKNOWN;
	if (cu.memory(free, &all))
		*free = *total;
	return OK;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, struct memory *out)
{
	size_t total, free;

	CHECK(d, out);
	if (memory_of(d, &total, &free))
		return UNKNOWN;
	*out = (struct memory){ total, free, total - free };
	return OK;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, struct memory_v2 *out)
{
	size_t total, free;

	CHECK(d, out);
	if (memory_of(d, &total, &free))
		return UNKNOWN;
	out->total = total;
	out->free = free;
	out->reserved = 0;
	out->used = total - free;
	return OK;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, struct utilization *out)
{
	CHECK(d, out);
	return NOT_SUPPORTED;
}

/*
 * The driver API does not tell the link. XLA asks whenever it describes a device, and takes this when
 * it gets no answer, with an error on stderr.
 */
#define LINK(name, value)									\
API nvmlReturn_t name(nvmlDevice_t d, unsigned int *out)						\
{												\
	CHECK(d, out);										\
	*out = value;										\
	return OK;										\
}

LINK(nvmlDeviceGetCurrPcieLinkGeneration, 3)
LINK(nvmlDeviceGetMaxPcieLinkGeneration, 3)
LINK(nvmlDeviceGetCurrPcieLinkWidth, 16)
LINK(nvmlDeviceGetMaxPcieLinkWidth, 16)

API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t d, unsigned int *out)
{
	CHECK(d, out);
	*out = 1;
	return OK;
}

/* The only process is the caller; PyTorch asks what it uses when memory has run out. */
static nvmlReturn_t processes(nvmlDevice_t d, unsigned int *n, const void *out,
			      unsigned long long *used)
{
	size_t total, free;

	CHECK(d, n);
	if (*n < 1) {
		*n = 1;
		return INSUFFICIENT_SIZE;
	}
	if (!out)
		return INVALID_ARGUMENT;
	if (memory_of(d, &total, &free))
		return UNKNOWN;
	*n = 1;
	*used = total - free;
	return OK;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned int *n,
						      struct process_v1 *out)
{
	unsigned long long used;
	nvmlReturn_t rc = processes(d, n, out, &used);

	if (!rc)
		*out = (struct process_v1){ getpid(), used };
	return rc;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *n,
							 struct process *out)
{
	unsigned long long used;
	nvmlReturn_t rc = processes(d, n, out, &used);

	if (!rc)
		*out = (struct process){ getpid(), used, ~0u, ~0u };
	return rc;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned int *n,
							 struct process *out)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(d, n, out);
}

/* ------------------------------------------------------------------------------ links: none */

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int index, int *out)
{
	(void)index;
	CHECK(a, out);
	CHECK(b, out);
	*out = 3;	/* NVML_P2P_STATUS_DISABLED_BY_REGKEY: not between proxies */
	return OK;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned int link, unsigned int *out)
{
	(void)link;
	CHECK(d, out);
	return NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t d, unsigned int link, int capability,
					       unsigned int *out)
{
	(void)link;
	(void)capability;
	CHECK(d, out);
	return NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned int link,
						     struct pci_info *out)
{
	(void)link;
	CHECK(d, out);
	return NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, struct field_value *values)
{
	CHECK(d, values);
	for (int i = 0; i < n; i++)
		values[i].result = NOT_SUPPORTED;
	return OK;
}

/* --------------------------------------------------------------------- unsupported functions */

static nvmlReturn_t refuse(const char *name)
{
	const char *log = getenv("SINGVGPU_LOG");

	if (log && *log)
		fprintf(stderr, "singvgpu: %s is not supported\n", name);
	return users ? NOT_SUPPORTED : UNINITIALIZED;
}

#define R(_name) API nvmlReturn_t _name(void); API nvmlReturn_t _name(void) { return refuse(#_name); }
#include "refused.h"
