// SPDX-License-Identifier: Apache-2.0
/*
 * places.c - where the stand-ins, the proxy and the drivers are
 *
 *                this program          stand-ins                  proxy
 *   built        B/tools/singvgpu      B/lib/                     B/uproxy/singvgpu-proxy
 *   installed    P/bin/singvgpu        P/lib/singvgpu/            P/libexec/singvgpu/singvgpu-proxy
 *
 * singvgpu-init is beside this program, or beside the proxy.
 */
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tool_i.h"

/* The resolved path, without "..", or the path itself. */
static char *tidy(char *path)
{
	char *real;

	if (!path)
		return NULL;
	real = realpath(path, NULL);
	if (!real)
		return path;
	free(path);
	return real;
}

static char *join(const char *dir, const char *rest)
{
	char *path;

	return asprintf(&path, "%s/%s", dir, rest) < 0 ? NULL : path;
}

int places_find(struct places *p)
{
	const char *libdir = getenv("SINGVGPU_LIBDIR"), *proxy = getenv("SINGVGPU_PROXY");
	char self[PATH_MAX], *dir;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int err;

	memset(p, 0, sizeof(*p));
	if (n < 0) {
		err = -errno;
		say_errno(err, "/proc/self/exe cannot be read");
		return err;
	}
	self[n] = 0;
	*strrchr(self, '/') = 0;
	dir = strrchr(self, '/') ?: self;
	p->built = !strcmp(dir, "/tools");
	*dir = 0;
	p->libdir = tidy(libdir && *libdir ? strdup(libdir) :
			 join(self, p->built ? "lib" : "lib/singvgpu"));
	p->proxy = tidy(proxy && *proxy ? strdup(proxy) :
			join(self, p->built ? "uproxy/singvgpu-proxy" :
					      "libexec/singvgpu/singvgpu-proxy"));
	p->softcuda = tidy(join(self, p->built ? "uproxy/softgpu/libsoftcuda.so" :
						 "lib/singvgpu/libsoftcuda.so"));
	p->init = tidy(join(self, p->built ? "tools/singvgpu-init" :
					     "libexec/singvgpu/singvgpu-init"));
	p->given = libdir && *libdir;
	if (p->libdir && p->proxy && p->softcuda && p->init)
		return 0;
	places_free(p);
	say_errno(ENOMEM, "the libraries' places");
	return -ENOMEM;
}

void places_free(struct places *p)
{
	free(p->libdir);
	free(p->proxy);
	free(p->softcuda);
	free(p->init);
	memset(p, 0, sizeof(*p));
}

char *places_nvidia(const struct places *p)
{
	static const char *const where[] = {
		"/usr/lib/x86_64-linux-gnu/libcuda.so.1",
		"/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1",
		"/usr/lib64/libcuda.so.1",
		"/usr/lib/libcuda.so.1",
		"/usr/local/nvidia/lib64/libcuda.so.1",
		"/usr/local/nvidia/lib/libcuda.so.1",
		"/usr/lib/wsl/lib/libcuda.so.1",
		"/run/opengl-driver/lib/libcuda.so.1",
	};

	for (size_t i = 0; i < sizeof(where) / sizeof(where[0]); i++) {
		char *real = realpath(where[i], NULL);
		size_t n = strlen(p->libdir);

		if (!real)
			continue;
		if (strncmp(real, p->libdir, n) || real[n] != '/')
			return real;
		free(real);
	}
	return NULL;
}

int places_nvidia_devices(void)
{
	glob_t found;
	int n = 0;

	if (access("/dev/nvidiactl", F_OK) && access("/dev/dxg", F_OK))
		return 0;
	if (!glob("/dev/nvidia[0-9]*", 0, NULL, &found)) {
		n = found.gl_pathc;
		globfree(&found);
	}
	return n ?: !access("/dev/dxg", F_OK);
}
