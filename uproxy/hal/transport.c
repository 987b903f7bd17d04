// SPDX-License-Identifier: Apache-2.0
/*
 * transport.c - loads the transport of collective operations, when a job has its first communicator
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport.h"
#include "hal.h"

/* From beside the driver. */
static const struct transport_driver *load(const char *driver_path, const char *name, struct why *why)
{
	const struct transport_driver *driver;
	const char *slash = strrchr(driver_path, '/');
	char path[PATH_MAX];
	void *lib;

	snprintf(path, sizeof(path), "%.*s%s", slash ? (int)(slash + 1 - driver_path) : 0, driver_path,
		 name);
	if (access(path, R_OK)) {
		why_set(why, -ENOENT, "%s, the transport of collectives, is not beside the soft device", name);
		return NULL;
	}
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	driver = lib ? dlsym(lib, TRANSPORT_DRIVER_SYMBOL) : NULL;
	if (driver && driver->version == TRANSPORT_VERSION)
		return driver;
	why_set(why, -ENOENT, "%s: %s", path, driver ? "another version" : dlerror() ?: "?");
	if (lib)
		dlclose(lib);
	return NULL;
}

const struct transport_driver *transport_load(struct hal *h, struct why *why)
{
	const char *forced = getenv("SINGVGPU_COMM");

	if (h->comm_library && !(forced && !strcmp(forced, "nccl")))
		return load(h->path, h->comm_library, why);
#ifdef HAVE_NCCL
	return &transport_nccl;
#else
	why_set(why, -ENOSYS, "NCCL's transport was not built: the CUDA toolkit had no nccl.h, or no nvcc");
	return NULL;
#endif
}
