// SPDX-License-Identifier: Apache-2.0
/*
 * cupti.cu - a profiler by CUPTI: it sees the kernels, or it is told at its first call that it cannot,
 * as by a driver without the private tables that it needs. The program's own results stay the same,
 * and CUPTI has a version, without which JAX would not use the device.
 */
#include "lib.cuh"

#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 4096

__global__ void step(int *p, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] = p[i] * 3 + i;
}

static int kernels;		/* that CUPTI has told of */

static void CUPTIAPI give(uint8_t **buf, size_t *size, size_t *most)
{
	*size = 1 << 20;
	*buf = (uint8_t *)aligned_alloc(8, *size);
	*most = 0;
}

static void CUPTIAPI take(CUcontext ctx, uint32_t stream, uint8_t *buf, size_t size, size_t valid)
{
	CUpti_Activity *a = NULL;

	while (!cuptiActivityGetNextRecord(buf, valid, &a))
		kernels += a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
	free(buf);
}

static void CUPTIAPI called(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
			    const void *data)
{
}

/* What PyTorch's profiler does at its start. */
static bool profile(CUpti_SubscriberHandle *s)
{
	static const CUpti_ActivityKind kinds[] = {
		CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
		CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,
		CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
	};
	CUptiResult r = cuptiSubscribe(s, (CUpti_CallbackFunc)called, NULL);
	const char *what = "?";
	uint64_t now;

	cuptiGetResultString(r, &what);
	printf("cuptiSubscribe: %d, %s\n", r, what);
	if (!r)
		r = cuptiEnableDomain(1, *s, CUPTI_CB_DOMAIN_RUNTIME_API);
	if (cuptiActivityRegisterCallbacks(give, take) && !r)
		r = CUPTI_ERROR_UNKNOWN;
	for (CUpti_ActivityKind k : kinds) {
		CUptiResult one = cuptiActivityEnable(k);

		EXPECT_EQ(!one, !r);	/* all or nothing */
	}
	cuptiGetTimestamp(&now);
	return !r;
}

static void work(int *d, std::vector<int> &want)
{
	std::vector<int> got;

	step<<<N / 256, 256>>>(d, N);
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceSynchronize());
	for (int i = 0; i < N; i++)
		want[i] = want[i] * 3 + i;
	got = to_host(d, N);
	EXPECT(got == want);
	sum_vector(got);
}

static void unknown_table(void)
{
	static const CUuuid id = { { 's', 'i', 'n', 'g', 'v', 'g', 'p', 'u' } };
	cudaDriverEntryPointQueryResult found;
	decltype(&cuGetExportTable) get;
	const void *table = &id;

	CHECK(cudaGetDriverEntryPointByVersion("cuGetExportTable", (void **)&get, 12000, cudaEnableDefault,
					       &found));
	EXPECT_EQ(found, cudaDriverEntryPointSuccess);
	EXPECT(get(&table, &id) != CUDA_SUCCESS);
	EXPECT(table == NULL || table == &id);
}

/* Asked for by a program that is linked with CUPTI, and by one that opens it. */
static void version(void)
{
	decltype(&cuptiGetVersion) get = cuptiGetVersion;

	for (int i = 0; i < 2; i++) {
		uint32_t v = 0xa5a5a5a5;

		EXPECT_EQ(get(&v), CUPTI_SUCCESS);
		EXPECT(v <= CUPTI_API_VERSION);
		EXPECT(v >= (CUPTI_API_VERSION < 10000 ? 19 : CUPTI_API_VERSION / 10000 * 10000));
		EXPECT(get(NULL) != CUPTI_SUCCESS);
		*(void **)&get = dlsym(RTLD_DEFAULT, "cuptiGetVersion");
		EXPECT(get != NULL);
	}
}

static void run(bool first)
{
	std::vector<int> want(N, 1);
	CUpti_SubscriberHandle s;
	bool works = false;
	int *d;

	version();
	if (first)
		works = profile(&s);
	d = to_device(want);
	work(d, want);
	if (!first)
		works = profile(&s);
	unknown_table();
	for (int i = 0; i < 10; i++)
		work(d, want);
	EXPECT_EQ(!cuptiActivityFlushAll(1), works);
	EXPECT_EQ(!cuptiUnsubscribe(s), works);
	version();
	cuptiFinalize();
	EXPECT(kernels >= 10 || !works);
	work(d, want);
	printf("%s\n", works ? "the kernels are seen" : "events of the host alone");
}

int main(void)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();		/* CUPTI comes once to a process: before its first CUDA call, or later */
	if (!child) {
		run(true);
		fflush(stdout);
		_exit(0);
	}
	EXPECT(waitpid(child, &status, 0) == child && !status);
	run(false);
	return job_passed("cupti");
}
