// SPDX-License-Identifier: Apache-2.0
/*
 * comm.c - loads the transport of collective operations, when a job has its first communicator
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "hal.h"

const struct comm_driver *comm_load(struct why *why)
{
	static const struct comm_driver *driver;
	char path[PATH_MAX], *name;
	void *lib;

	if (driver)
		return driver;
	/* It lies beside the soft device's driver. */
	if (hal_soft_path(path, sizeof(path))) {
		why_set(why, -ENOENT, "libsoftcomm.so is not beside this program");
		return NULL;
	}
	name = strrchr(path, '/') + 1;
	snprintf(name, sizeof(path) - (name - path), "libsoftcomm.so");
	if (access(path, R_OK)) {
		why_set(why, -ENOENT, "libsoftcomm.so, the transport of collectives, is not beside the soft device");
		return NULL;
	}
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	driver = lib ? dlsym(lib, COMM_DRIVER_SYMBOL) : NULL;
	if (driver && driver->version == COMM_VERSION)
		return driver;
	why_set(why, -ENOENT, "%s: %s", path, driver ? "another version" : dlerror() ?: "?");
	driver = NULL;
	if (lib)
		dlclose(lib);
	return NULL;
}
