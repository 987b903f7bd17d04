// SPDX-License-Identifier: Apache-2.0
/*
 * api_symbols.c - every function of cuda.h is exported, under each of its names.
 */
#include "api.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>

static const char *build(void)
{
	const char *b = getenv("SINGVGPU_BUILD");

	return b ? b : "build";
}

TEST(every_prototype_is_a_symbol)
{
	char path[300], line[4096];
	int n = 0, missing = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/uproxy/softgpu/gen/api_protos.txt", build());
	f = fopen(path, "r");
	ASSERT_NE(NULL, f);
	while (fgets(line, sizeof(line), f)) {
		char name[100];

		if (sscanf(line, " CUresult %99[A-Za-z0-9_](", name) != 1)
			continue;
		n++;
		if (!dlsym(RTLD_DEFAULT, name)) {
			TH_LOG("%s is missing", name);
			missing++;
		}
	}
	fclose(f);
	EXPECT_GT(n, 600);
	EXPECT_EQ(0, missing);
}

typedef CUresult (*any_fn)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
			   uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

/* In a child: with a context, or before cuInit; each argument is `a`. Exit status: 0, or a signal. */
static int call_alone(const char *name, bool init, uint64_t a)
{
	any_fn f = (any_fn)dlsym(RTLD_DEFAULT, name);
	int status;
	pid_t pid = fork();

	if (!pid) {
		CUcontext c;

		alarm(20);
		if (init && (cuInit(0) || cuCtxCreate(&c, NULL, 0, 0)))
			_exit(1);
		f(a, a, a, a, a, a, a, a, a, a, a, a);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(null_arguments_crash_and_hang_nothing)
{
	char path[300], line[4096];
	int bad = 0, n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/uproxy/softgpu/gen/api_protos.txt", build());
	f = fopen(path, "re");
	ASSERT_NE(NULL, f);
	while (fgets(line, sizeof(line), f)) {
		char name[100];
		int sig;

		if (sscanf(line, " CUresult %99[A-Za-z0-9_](", name) != 1)
			continue;
		n++;
		sig = call_alone(name, true, 0) ?: call_alone(name, false, 0);
		if (sig) {
			TH_LOG("%s: signal or status %d", name, sig);
			bad++;
		}
	}
	fclose(f);
	EXPECT_GT(n, 600);
	EXPECT_EQ(0, bad);
}

TEST(versions_are_chosen_as_asked)
{
	CUdriverProcAddressQueryResult found = 77;
	void *p = POISON;

	OK(cuGetProcAddress("cuMemAlloc", &p, 13000, 0, &found));
	EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), p);
	EXPECT_EQ(CU_GET_PROC_ADDRESS_SUCCESS, found);
	OK(cuGetProcAddress("cuMemAlloc", &p, 2000, 0, &found));
	EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuMemAlloc"), p);
	OK(cuGetProcAddress("cuMemcpyHtoD", &p, 13000, 0, &found));
	EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuMemcpyHtoD_v2"), p);
	OK(cuGetProcAddress("cuMemcpyHtoD", &p, 13000,
			    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &found));
	EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuMemcpyHtoD_v2_ptds"), p);
	OK(cuGetProcAddress("cuStreamGetCaptureInfo", &p, 11030, 0, &found));
	EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuStreamGetCaptureInfo_v2"), p);
	OK(cuGetProcAddress("cuCtxCreate", &p, 12000, 0, &found));
	EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuCtxCreate_v3"), p);
	OK(cuGetProcAddress("cuGetProcAddress", &p, 13000, 0, &found));
	EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2"), p);
	OK(cuGetProcAddress("cuNothing", &p, 13000, 0, &found));
	EXPECT_EQ(NULL, p);
	EXPECT_EQ(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, found);
	OK(cuGetProcAddress("cuLibraryLoadData", &p, 11000, 0, &found));
	EXPECT_EQ(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, found);
	FAILS(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNothing", &p, 13000, 0, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress(NULL, &p, 13000, 0, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuInit", &p, 13000, 8, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuInit", &p, 14000, 0, NULL));
}

TEST(every_name_that_cudart_asks_for_is_answered)
{
	char line[200];
	FILE *f = fopen("selftests/softgpu/api/cudart_names.txt", "r");
	int unknown = 0;

	ASSERT_NE(NULL, f);
	while (fgets(line, sizeof(line), f)) {
		CUdriverProcAddressQueryResult found;
		void *p;

		line[strcspn(line, "\n")] = 0;
		if (*line == '#' || !*line)
			continue;
		OK(cuGetProcAddress(line, &p, CUDA_VERSION, 0, &found));
		if (!p) {
			TH_LOG("%s has no answer", line);
			unknown++;
		}
	}
	fclose(f);
	EXPECT_EQ(0, unknown);
}

TEST_HARNESS_MAIN
