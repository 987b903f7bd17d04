// SPDX-License-Identifier: Apache-2.0
/*
 * gpu.c - checks of stand-ins, proxy, drivers and their devices, toolkit, NCCL, CRIU
 *
 * Each library is loaded in a process of its own, by absolute path.
 */
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor_i.h"

#define CRIU_LEAST	402	/* 4.2 */
#define CUDA_LEAST	12040	/* 12.4, as CUDA_VERSION */

/* ------------------------------------------------------------------------------ drivers */

/* Prints "VERSION\nCOUNT\nDEVICE 0's name, memory". Returns 0, -ENOENT, or -(100 + CUresult). */
static int ask_driver(const char *path, FILE *out)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int (*init)(unsigned int), (*version)(int *), (*count)(int *), (*get)(int *, int);
	int (*name)(char *, int, int), (*mem)(size_t *, int);
	int v = 0, n = 0, dev, err;
	char text[256] = "?";
	size_t bytes = 0;

	if (!lib) {
		fprintf(out, "%s", dlerror());
		return -ENOENT;
	}
	init = dlsym(lib, "cuInit");
	version = dlsym(lib, "cuDriverGetVersion");
	count = dlsym(lib, "cuDeviceGetCount");
	get = dlsym(lib, "cuDeviceGet");
	name = dlsym(lib, "cuDeviceGetName");
	mem = dlsym(lib, "cuDeviceTotalMem_v2");
	if (!init || !version || !count || !get || !name || !mem) {
		fprintf(out, "%s is no CUDA driver", path);
		return -ENOENT;
	}
	version(&v);
	err = init(0);
	if (err) {
		fprintf(out, "CUDA %d.%d, cuInit gives error %d", v / 1000, v % 1000 / 10, err);
		return -EIO;
	}
	count(&n);
	if (n && !get(&dev, 0)) {
		name(text, sizeof(text), dev);
		mem(&bytes, dev);
	}
	fprintf(out, "CUDA %d.%d, %d device%s", v / 1000, v % 1000 / 10, n, n == 1 ? "" : "s");
	if (n)
		fprintf(out, ": %.80s, %.1f GiB", text, bytes / 0x1p30);
	return n ? 0 : -ENODEV;
}

static int load(const char *path, FILE *out)
{
	if (dlopen(path, RTLD_NOW | RTLD_LOCAL))
		return 0;
	fprintf(out, "%s", dlerror());
	return -ENOENT;
}

/* The text for a probe that failed. */
static const char *failure(int err, const char *text)
{
	return err == -EFAULT ? "it crashed" : err == -ETIMEDOUT ? "it hangs" : text;
}

static void nvidia(struct doctor *d)
{
	char text[320], kernel[256];
	char *path = places_nvidia(&d->places);
	bool module = !first_line("/proc/driver/nvidia/version", kernel, sizeof(kernel));
	int devices = places_nvidia_devices(), err;

	if (!path && !module && !devices) {
		found(d, "NVIDIA driver", WARN, "With an NVIDIA GPU: install its driver "
		      "(Debian: nvidia-driver). Without one the soft device is used.",
		      "neither libcuda.so.1 nor /dev/nvidia* is here");
	} else if (!path) {
		found(d, "NVIDIA driver", MISSING, "Install the user part of the driver (Debian: "
		      "libcuda1), or start the container with --gpus all.",
		      "the kernel part is here, libcuda.so.1 is not");
	} else if (!devices) {
		found(d, "NVIDIA driver", WARN, "Load the kernel module (modprobe nvidia), or "
		      "start the container with --gpus all.",
		      "%s is here, but no device: no /dev/nvidia*", path);
	} else {
		err = probe(ask_driver, path, text, sizeof(text));
		d->nvidia = !err;
		if (err)
			found(d, "NVIDIA driver", MISSING, "See whether nvidia-smi works, and that "
			      "kernel module and library are of one version.", "%s: %s", path,
			      failure(err, text));
		else
			found(d, "NVIDIA driver", OK, NULL, "%s (%s)", text, path);
	}
	free(path);
}

static void soft(struct doctor *d)
{
	const char *remedy = d->places.built ? "'make' in singvgpu's sources." :
					       "'make install' in singvgpu's sources.";
	char text[320], jit[PATH_MAX];
	int err;

	if (access(d->places.softcuda, R_OK)) {
		found(d, "soft device", MISSING, remedy, "%s is not there", d->places.softcuda);
		return;
	}
	err = probe(ask_driver, d->places.softcuda, text, sizeof(text));
	if (err) {
		found(d, "soft device", MISSING, remedy, "%s",
		      failure(err, text));
		return;
	}
	found(d, "soft device", OK, NULL, "%s", text);
	snprintf(jit, sizeof(jit), "%s", d->places.softcuda);
	*strrchr(jit, '/') = 0;
	strncat(jit, "/libsoftjit.so", sizeof(jit) - strlen(jit) - 1);
	err = probe(load, jit, text, sizeof(text));
	d->soft = !err;
	if (err)
		found(d, "kernel compiler", MISSING, "Install LLVM's library (Debian: libllvm19); "
		      "'make' in singvgpu's sources.", "libsoftjit.so: %s",
		      failure(err, text));
	else
		found(d, "kernel compiler", OK, NULL, "libsoftjit.so loads, with LLVM");
}

static void stand_ins(struct doctor *d)
{
	const char *remedy = d->places.built ? "'make' in singvgpu's sources." :
					       "'make install' in singvgpu's sources.";
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/libcuda.so.1", d->places.libdir);
	if (access(path, R_OK))
		found_fatal(d, "stand-ins", remedy, "%s: %s", path, strerror(errno));
	else
		found(d, "stand-ins", OK, NULL, "%s", d->places.libdir);
	if (access(d->places.proxy, X_OK))
		found_fatal(d, "proxy", remedy, "%s: %s", d->places.proxy, strerror(errno));
	else
		found(d, "proxy", OK, NULL, "%s", d->places.proxy);
}

/* ------------------------------------------------------------------------------ toolkit */

/* The version of the toolkit in home, from its headers, as CUDA_VERSION; 0: there is none. */
static int toolkit_version(const char *home)
{
	char path[PATH_MAX], line[256];
	int version = 0;
	FILE *in;

	snprintf(path, sizeof(path), "%s/include/cuda.h", home);
	in = fopen(path, "re");
	while (in && !version && fgets(line, sizeof(line), in))
		if (sscanf(line, "#define CUDA_VERSION %d", &version) != 1)
			version = 0;
	if (in)
		fclose(in);
	return version;
}

static void toolkit(struct doctor *d)
{
	const char *env = getenv("CUDA_HOME"), *home = env && *env ? env : "/usr/local/cuda";
	char built[PATH_MAX] = "", nvcc[PATH_MAX], *slash;
	int version = toolkit_version(home);

	if (!version && d->places.built) {
		snprintf(built, sizeof(built), "%s", d->places.softcuda);
		slash = strstr(built, "/uproxy/softgpu/");
		if (slash)
			strcpy(slash, "/cuda");
		home = built;
		version = toolkit_version(home);
	}
	snprintf(nvcc, sizeof(nvcc), "%s/bin/nvcc", home);
	if (!version)
		found(d, "CUDA toolkit", WARN, "Only for building programs: install the CUDA "
		      "toolkit and set CUDA_HOME; in singvgpu's sources 'make cuda' fetches one.",
		      "none in $CUDA_HOME or /usr/local/cuda");
	else
		found(d, "CUDA toolkit", version < CUDA_LEAST ? WARN : OK, version < CUDA_LEAST ?
		      "Install 12.4 or newer." : NULL, "%d.%d in %s%s", version / 1000,
		      version % 1000 / 10, home, access(nvcc, X_OK) ? ", without nvcc" : "");
}

static int ask_nccl(const char *name, FILE *out)
{
	void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	int (*version)(int *) = lib ? dlsym(lib, "ncclGetVersion") : NULL;
	int v = 0;

	if (!version)
		return -ENOENT;
	version(&v);
	fprintf(out, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
	return 0;
}

static void nccl(struct doctor *d)
{
	char text[64];

	if (probe(ask_nccl, "libnccl.so.2", text, sizeof(text)))
		found(d, "NCCL", WARN, "Only for jobs of several GPUs that bring none (PyTorch "
		      "from pip does): install libnccl2.",
		      "libnccl.so.2 is not in the loader's path");
	else
		found(d, "NCCL", OK, NULL, "%s", text);
}

void doctor_gpu(struct doctor *d)
{
	stand_ins(d);
	nvidia(d);
	soft(d);
	if (!d->nvidia && !d->soft && !d->cannot)
		d->cannot = "soft device";
	toolkit(d);
	nccl(d);
}

/* --------------------------------------------------------------------------------- CRIU */

/* Prints the version of the program at path. */
static int ask_criu(const char *path, FILE *out)
{
	char command[PATH_MAX + 32], line[128], version[64];
	int err = -ENOENT;
	FILE *in;

	if (strchr(path, '\''))
		return -EINVAL;
	snprintf(command, sizeof(command), "'%s' --version 2>/dev/null", path);
	in = popen(command, "re");
	while (in && fgets(line, sizeof(line), in))
		if (sscanf(line, "Version: %63s", version) == 1) {
			fputs(version, out);
			err = 0;
		}
	if (in)
		pclose(in);
	return err;
}

static bool find_criu(const struct doctor *d, char *path, size_t size)
{
	static const char *const dirs[] = { "/usr/local/sbin", "/usr/local/bin", "/usr/sbin",
					    "/usr/bin", "/sbin" };
	const char *all = getenv("PATH"), *slash;

	slash = strstr(d->places.softcuda,
		       d->places.built ? "/uproxy/softgpu/" : "/lib/singvgpu/");
	snprintf(path, size, "%.*s/%s/criu", slash ? (int)(slash - d->places.softcuda) : 0,
		 d->places.softcuda, d->places.built ? "criu" : "libexec/singvgpu/criu");
	if (!access(path, X_OK))
		return true;
	while (all && *all) {
		size_t n = strcspn(all, ":");

		snprintf(path, size, "%.*s/criu", (int)n, all);
		if (n && !access(path, X_OK))
			return true;
		all += n + !!all[n];
	}
	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		snprintf(path, size, "%s/criu", dirs[i]);
		if (!access(path, X_OK))
			return true;
	}
	return false;
}

void doctor_criu(struct doctor *d)
{
	const char *remedy = "Only for checkpoints: install CRIU 4.2 or newer (Debian forky's, or "
			     "'make setup' in singvgpu's sources).";
	char path[PATH_MAX], version[64];
	int major = 0, minor = 0;

	if (!find_criu(d, path, sizeof(path)))
		found(d, "CRIU", MISSING, remedy, "criu is not in PATH");
	else if (probe(ask_criu, path, version, sizeof(version)))
		found(d, "CRIU", MISSING, remedy, "%s does not tell its version", path);
	else if (sscanf(version, "%d.%d", &major, &minor) < 1 || 100 * major + minor < CRIU_LEAST)
		found(d, "CRIU", WARN, remedy, "%s is version %s", path, version);
	else
		found(d, "CRIU", OK, NULL, "%s (%s)", version, path);
}
