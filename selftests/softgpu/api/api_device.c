// SPDX-License-Identifier: Apache-2.0
/*
 * api_device.c - devices, contexts and their per-thread stack, limits, names of errors.
 */
#include "api.h"

#include <pthread.h>
#include <sys/wait.h>

TEST(nothing_works_before_init)
{
	int n = -7;

	FAILS(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&n));
	EXPECT_EQ(-7, n);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuInit(1));
	FAILS(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&n));
	OK(cuInit(0));
	OK(cuDeviceGetCount(&n));
	EXPECT_EQ(1, n);
}

TEST(a_forked_child_cannot_use_the_driver)
{
	int n, status;
	pid_t pid;

	OK(cuInit(0));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid)
		_exit(cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED &&
		      cuInit(0) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFEXITED(status) && !WEXITSTATUS(status));
	OK(cuDeviceGetCount(&n));
}

TEST(devices_have_identities_of_their_own)
{
	char bus[32], name[64];
	CUuuid u[3], again;
	CUdevice d;
	int n, v;

	setenv("SINGVGPU_SOFT_DEVICES", "3", 1);
	setenv("SINGVGPU_SOFT_MEM", "64M", 1);
	OK(cuInit(0));
	OK(cuDeviceGetCount(&n));
	ASSERT_EQ(3, n);
	for (int i = 0; i < 3; i++) {
		size_t bytes = 0;

		OK(cuDeviceGet(&d, i));
		OK(cuDeviceGetUuid(&u[i], d));
		OK(cuDeviceGetUuid(&again, d));
		EXPECT_EQ(0, memcmp(&u[i], &again, 16));
		OK(cuDeviceGetPCIBusId(bus, sizeof(bus), d));
		OK(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, d));
		d = -1;
		OK(cuDeviceGetByPCIBusId(&d, bus));
		EXPECT_EQ(i, d);
		OK(cuDeviceTotalMem(&bytes, d));
		EXPECT_EQ(64u << 20, bytes);
	}
	EXPECT_NE(0, memcmp(&u[0], &u[1], 16));
	EXPECT_NE(0, memcmp(&u[1], &u[2], 16));
	FAILS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&d, 3));
	FAILS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&d, -1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuDeviceGet(NULL, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetName(name, 0, 0));
	OK(cuDeviceGetName(name, 5, 0));
	EXPECT_EQ(4, strlen(name));
	OK(cuDeviceCanAccessPeer(&v, 0, 1));
	EXPECT_EQ(1, v);
	OK(cuDeviceCanAccessPeer(&v, 1, 1));
	EXPECT_EQ(0, v);
}

TEST(visible_devices_are_chosen_and_ordered)
{
	char bus[32];
	int n;

	setenv("SINGVGPU_SOFT_DEVICES", "4", 1);
	setenv("CUDA_VISIBLE_DEVICES", "2,0,7,1", 1);	/* ends at what is no device */
	OK(cuInit(0));
	OK(cuDeviceGetCount(&n));
	EXPECT_EQ(2, n);
	OK(cuDeviceGetPCIBusId(bus, sizeof(bus), 0));
	EXPECT_STREQ("0000:03:00.0", bus);
	OK(cuDeviceGetPCIBusId(bus, sizeof(bus), 1));
	EXPECT_STREQ("0000:01:00.0", bus);
}

TEST(no_device_may_be_visible)
{
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	FAILS(CUDA_ERROR_NO_DEVICE, cuInit(0));
}

TEST(every_attribute_of_the_header_has_a_value)
{
	int unknown = 0, v;

	OK(cuInit(0));
	for (int a = 1; a < CU_DEVICE_ATTRIBUTE_MAX; a++)
		unknown += cuDeviceGetAttribute(&v, a, 0) != CUDA_SUCCESS;
	EXPECT_EQ(0, unknown);
	OK(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
	EXPECT_EQ(13, v);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&v, 0, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&v, 100000, 0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(NULL, 1, 0));
	FAILS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&v, 1, 1));
}

TEST(errors_have_names_and_texts)
{
	const char *s = POISON;

	OK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &s));
	EXPECT_STREQ("CUDA_ERROR_ILLEGAL_ADDRESS", s);
	OK(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &s));
	EXPECT_STREQ("an illegal memory access was encountered", s);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(12345, &s));
	EXPECT_EQ(NULL, s);
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(CUDA_SUCCESS, NULL));
}

TEST(the_primary_context_is_counted)
{
	CUcontext a = POISON, b = POISON;
	unsigned int flags = 77;
	int active = 77;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EXPECT_EQ(0, active);
	FAILS(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
	OK(cuDevicePrimaryCtxRetain(&a, 0));
	OK(cuDevicePrimaryCtxRetain(&b, 0));
	EXPECT_EQ(a, b);
	OK(cuDevicePrimaryCtxRelease(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EXPECT_EQ(1, active);
	OK(cuDevicePrimaryCtxRelease(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EXPECT_EQ(0, active);
	/* made current while nobody retains it, as cudart does; nothing works in it */
	OK(cuCtxSetCurrent(a));
	CUdeviceptr p;
	FAILS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&p, 16));
	OK(cuDevicePrimaryCtxRetain(&b, 0));
	EXPECT_EQ(a, b);
	OK(cuMemAlloc(&p, 16));
	OK(cuDevicePrimaryCtxReset(0));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	FAILS(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(a));
}

TEST(contexts_form_a_stack_for_each_thread)
{
	CUcontext a, b, c = POISON;
	CUdeviceptr p;

	OK(cuInit(0));
	OK(cuCtxGetCurrent(&c));
	EXPECT_EQ(NULL, c);
	FAILS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 16));
	FAILS(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&c));
	OK(cuCtxCreate(&a, NULL, 0, 0));
	OK(cuCtxCreate(&b, NULL, 0, 0));
	OK(cuCtxGetCurrent(&c));
	EXPECT_EQ(b, c);
	OK(cuCtxPopCurrent(&c));
	EXPECT_EQ(b, c);
	OK(cuCtxGetCurrent(&c));
	EXPECT_EQ(a, c);
	OK(cuCtxPushCurrent(b));
	OK(cuCtxDestroy(b));
	OK(cuCtxGetCurrent(&c));
	EXPECT_EQ(a, c);
	FAILS(CUDA_ERROR_INVALID_CONTEXT, cuCtxPushCurrent(b));
	FAILS(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(b));
	FAILS(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(POISON));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuCtxCreate(&c, NULL, 0xff00, 0));
	OK(cuCtxSetCurrent(NULL));
	OK(cuCtxGetCurrent(&c));
	EXPECT_EQ(NULL, c);
}

static void *see_destroyed(void *arg)
{
	CUdeviceptr p;
	CUcontext c;

	if (cuCtxSetCurrent(((CUcontext *)arg)[0]))
		return (void *)1;
	pthread_barrier_wait(((void **)arg)[1]);
	pthread_barrier_wait(((void **)arg)[1]);
	if (cuMemAlloc(&p, 16) != CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return (void *)2;
	if (cuCtxGetCurrent(&c) || c != ((CUcontext *)arg)[0])
		return (void *)3;
	return NULL;
}

TEST_F(gpu, another_thread_sees_a_destroyed_context)
{
	pthread_barrier_t b;
	void *arg[2] = { self->ctx, &b }, *ret = POISON;
	pthread_t t;

	pthread_barrier_init(&b, NULL, 2);
	ASSERT_EQ(0, pthread_create(&t, NULL, see_destroyed, arg));
	pthread_barrier_wait(&b);
	OK(cuCtxDestroy(self->ctx));
	pthread_barrier_wait(&b);
	pthread_join(t, &ret);
	EXPECT_EQ(NULL, ret);
}

TEST_F(gpu, limits_are_kept_or_refused)
{
	size_t v = 77;

	OK(cuCtxGetLimit(&v, CU_LIMIT_MALLOC_HEAP_SIZE));
	EXPECT_EQ(8u << 20, v);
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 1 << 20));
	OK(cuCtxGetLimit(&v, CU_LIMIT_MALLOC_HEAP_SIZE));
	EXPECT_EQ(1u << 20, v);
	FAILS(CUDA_ERROR_UNSUPPORTED_LIMIT, cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit(1000, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuCtxGetLimit(NULL, CU_LIMIT_STACK_SIZE));
}

static int told(int major, const char *rest)
{
	char text[32];
	int v;

	snprintf(text, sizeof(text), "%d%s", major, rest);
	setenv("SINGVGPU_SOFT_DRIVER", text, 1);
	return cuDriverGetVersion(&v) ? -1 : v;
}

TEST(the_driver_may_call_itself_newer)
{
	int base, major;
	void *fn;

	OK(cuDriverGetVersion(&base));
	major = base / 1000;
	FAILS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2("cuInit", &fn, base + 10, 0, NULL));
	EXPECT_EQ(base, told(major - 1, ".9"));
	EXPECT_EQ(base, told(major + 1, ".0"));
	EXPECT_EQ(base, told(major, ""));
	EXPECT_EQ(base, told(major, "."));
	EXPECT_EQ(base, told(major, ".9x"));
	EXPECT_EQ(base, told(major, ".19"));
	EXPECT_EQ(major * 1000 + 90, told(major, ".9"));
	OK(cuGetProcAddress_v2("cuInit", &fn, major * 1000 + 90, 0, NULL));
	FAILS(CUDA_ERROR_INVALID_VALUE,
	      cuGetProcAddress_v2("cuInit", &fn, major * 1000 + 100, 0, NULL));
}

TEST(peers_are_enabled_once)
{
	CUcontext a, b;

	setenv("SINGVGPU_SOFT_DEVICES", "2", 1);
	OK(cuInit(0));
	OK(cuCtxCreate(&a, NULL, 0, 0));
	OK(cuCtxCreate(&b, NULL, 0, 1));
	FAILS(CUDA_ERROR_INVALID_VALUE, cuCtxEnablePeerAccess(a, 1));
	FAILS(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(NULL, 0));
	FAILS(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(a));
	OK(cuCtxEnablePeerAccess(a, 0));
	FAILS(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(a, 0));
	OK(cuCtxDisablePeerAccess(a));
}

TEST_F(gpu, what_is_not_supported_says_so)
{
	CUgreenCtx g;
	CUipcMemHandle h;

	FAILS(CUDA_ERROR_NOT_SUPPORTED, cuGreenCtxCreate(&g, NULL, 0, 0));
	FAILS(CUDA_ERROR_NOT_SUPPORTED, cuIpcGetMemHandle(&h, 0));
}

static CUlibrary late;

/* Registered before the driver begins, so run after it has ended: as cudart does. */
static void unload_late(void)
{
	cuLibraryUnload(late);
}

TEST(a_program_ends_though_a_kernel_does_not)
{
	CUdeviceptr p;
	void *params[] = { &p };
	int status;
	pid_t pid;

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
	SKIP(return, "thread sanitizer waits for the kernel's thread at the end");
#endif
#endif
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		CUcontext c;
		CUkernel k;

		if (atexit(unload_late) || cuInit(0) || cuCtxCreate(&c, NULL, 0, 0) || cuMemAlloc(&p, 4) ||
		    cuMemsetD32(p, 0, 1) ||
		    cuLibraryLoadData(&late, PTX_HEAD PTX_SPIN, NULL, NULL, 0, NULL, NULL, 0) ||
		    cuLibraryGetKernel(&k, late, "spin") ||
		    launch1((CUfunction)k, 1, 1, NULL, params))
			_exit(9);
		nap_ms(20);
		exit(0);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
}

TEST_HARNESS_MAIN
