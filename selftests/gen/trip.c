// SPDX-License-Identifier: Apache-2.0
/*
 * trip.c - round trips of calls: generated stubs, bytes, generated dispatch, a driver, and back
 */
#include <kselftest_harness.h>
#include "../harness/patience.h"

#include "mock.h"
#include "names.h"

FIXTURE(trip) {
};

FIXTURE_SETUP(trip)
{
	mock_reset();
}

FIXTURE_TEARDOWN(trip)
{
}

#define H(type, v) ((type)(uintptr_t)(v))

TEST_F(trip, event_is_created_under_the_clients_handle)
{
	CUevent event = NULL;
	uint64_t real = 0;

	ASSERT_EQ(CUDA_SUCCESS, cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	EXPECT_STREQ("cuEventCreate", mock.last);
	EXPECT_EQ(CU_EVENT_DISABLE_TIMING, mock.arg[0]);
	EXPECT_NE(NULL, event);
	EXPECT_EQ(0, sv_real(&mock.session, SV_T_CUevent, (uintptr_t)event, 0, &real));
	EXPECT_EQ(0xe7, real);
	EXPECT_EQ(1, mock.session.entered);
	EXPECT_GE(48, mock.record_len);	/* one unit of the ring */

	ASSERT_EQ(CUDA_SUCCESS, cuEventDestroy_v2(event));
	EXPECT_EQ(0xe7, mock.arg[0]);
	EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy_v2(event));
	EXPECT_EQ(2, mock.records);
	EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE,
		  sv_real(&mock.session, SV_T_CUevent, (uintptr_t)event, 0, &real));
}

TEST_F(trip, arguments_that_are_wrong_alone_send_nothing)
{
	uint64_t array = mock_handle(SV_T_CUarray);

	EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuEventCreate(NULL, 0));
	EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy_v2(H(CUevent, array)));
	EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
		  cuMemsetD8Async(MOCK_BASE, 1, MOCK_SIZE + 1, NULL));
	EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
		  cuMemsetD2D16Async(MOCK_BASE, 1ull << 40, 1, 8, 1ull << 40, NULL));
	EXPECT_EQ(0, mock.records);
	EXPECT_EQ(0, mock.calls);
}

TEST_F(trip, rows_end_where_the_last_one_ends)
{
	/* 16 rows of 256 bytes: the last one is only 20 elements wide. */
	EXPECT_EQ(CUDA_SUCCESS,
		  cuMemsetD2D16Async(MOCK_BASE + MOCK_SIZE - 15 * 256 - 40, 256, 0xabcd, 20, 16,
				     NULL));
	EXPECT_EQ(0xabcd, mock.arg[2]);
	EXPECT_EQ(20, mock.arg[3]);
	EXPECT_EQ(16, mock.arg[4]);
	EXPECT_EQ(REAL(MOCK_LEGACY), mock.arg[5]);
	EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
		  cuMemsetD2D16Async(MOCK_BASE + MOCK_SIZE - 15 * 256 - 39, 256, 0xabcd, 20, 16,
				     NULL));
	EXPECT_EQ(1, mock.calls);
}

TEST_F(trip, per_thread_forms_use_the_threads_stream)
{
	EXPECT_EQ(CUDA_SUCCESS, cuMemsetD8Async_ptsz(MOCK_BASE, 7, 5, NULL));
	EXPECT_EQ(REAL(MOCK_PER_THREAD), mock.arg[3]);
	EXPECT_EQ(CUDA_SUCCESS, cuMemsetD8Async(MOCK_BASE, 7, 5, NULL));
	EXPECT_EQ(REAL(MOCK_LEGACY), mock.arg[3]);
	EXPECT_EQ(7, mock.arg[1]);
	EXPECT_EQ(5, mock.arg[2]);
}

TEST_F(trip, results_come_back)
{
	CUevent from = H(CUevent, mock_handle(SV_T_CUevent));
	CUevent to = H(CUevent, mock_handle(SV_T_CUevent));
	CUfunc_cache config = 99;
	float ms = 0;

	EXPECT_EQ(CUDA_SUCCESS, cuEventElapsedTime_v2(&ms, from, to));
	EXPECT_EQ(1, ms == 1.5f);
	EXPECT_EQ(REAL((uintptr_t)from), mock.arg[0]);
	EXPECT_EQ(REAL((uintptr_t)to), mock.arg[1]);
	EXPECT_EQ(CUDA_SUCCESS, cuCtxGetCacheConfig(&config));
	EXPECT_EQ(CU_FUNC_CACHE_PREFER_EQUAL, config);

	ms = -1;
	mock.result = CUDA_ERROR_NOT_READY;
	EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventElapsedTime_v2(&ms, from, to));
	EXPECT_EQ(1, ms == -1);
}

TEST_F(trip, failed_creation_leaves_no_handle)
{
	CUDA_ARRAY_DESCRIPTOR desc = { .Width = 640, .Height = 480, .NumChannels = 4,
				       .Format = CU_AD_FORMAT_FLOAT };
	CUarray array = H(CUarray, 0x33);

	mock.result = CUDA_ERROR_OUT_OF_MEMORY;
	EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuArrayCreate_v2(&array, &desc));
	EXPECT_EQ(H(CUarray, 0x33), array);
	for (int i = 0; i < 64; i++) {
		EXPECT_EQ(0, mock.client[i].type);
		EXPECT_EQ(0, mock.session.handle[i].type);
	}
	mock.result = CUDA_SUCCESS;
	EXPECT_EQ(CUDA_SUCCESS, cuArrayCreate_v2(&array, &desc));
	EXPECT_EQ(0, memcmp(mock.bytes, &desc, sizeof(desc)));
	EXPECT_NE(H(CUarray, 0x33), array);
}

TEST_F(trip, a_captured_stream_keeps_the_record)
{
	CUevent event = H(CUevent, mock_handle(SV_T_CUevent));
	CUstream stream = H(CUstream, MOCK_CAPTURED);
	uint64_t in_record = 0;

	EXPECT_EQ(CUDA_SUCCESS, cuEventRecord(event, stream));
	EXPECT_EQ(1, mock.captured);
	EXPECT_EQ(0, mock.records);
	EXPECT_EQ(SV_OP_cuEventRecord, mock.op);
	ASSERT_NE(0, cuda_ops[mock.op].stream);
	memcpy(&in_record, mock.record + cuda_ops[mock.op].stream - 1, 8);
	EXPECT_EQ(MOCK_CAPTURED, in_record);
}

TEST_F(trip, a_hook_can_answer)
{
	CUevent event = H(CUevent, mock_handle(SV_T_CUevent));

	mock.hook_done = 1;
	EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventRecord(event, NULL));
	EXPECT_EQ(0, mock.records);
	mock.hook_done = 0;
	EXPECT_EQ(CUDA_SUCCESS, cuEventRecord(event, NULL));
	EXPECT_EQ(REAL((uintptr_t)event), mock.arg[0]);
}

TEST_F(trip, unsupported_functions_say_so)
{
	CUgreenCtx green;

	EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuGreenCtxCreate(&green, NULL, 0, 0));
	EXPECT_EQ(1, mock.unsupported);
	EXPECT_STREQ("cuGreenCtxCreate", mock.last);
	EXPECT_EQ(0, mock.records);
}

TEST_F(trip, what_the_driver_lacks_is_not_supported)
{
	EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuFlushGPUDirectRDMAWrites(1, 100));
	EXPECT_EQ(1, mock.records);
	EXPECT_EQ(0, mock.calls);
}

TEST_F(trip, records_of_another_size_are_refused)
{
	CUevent event = H(CUevent, mock_handle(SV_T_CUevent));
	struct sv_call c;
	uint32_t len;

	ASSERT_EQ(CUDA_SUCCESS, cuEventRecord(event, NULL));
	for (len = 0; len < mock.record_len + 16; len++)
		EXPECT_EQ(len == mock.record_len ? 0 : -EBADMSG,
			  mock_dispatch(SV_OP_cuEventRecord, len, &c));
	EXPECT_EQ(2, mock.calls);
	ASSERT_EQ(CUDA_SUCCESS, cuProfilerStop() == CUDA_SUCCESS ? cuProfilerStart() : 1);
	EXPECT_EQ(0, mock_dispatch(SV_OP_cuProfilerStart, 8, &c));
	EXPECT_EQ(-EBADMSG, mock_dispatch(SV_OP_cuProfilerStart, 0, &c));
	EXPECT_NE(NULL, c.why);
}

TEST_F(trip, padding_flags_and_foreign_values_are_refused)
{
	CUevent event = NULL;
	struct sv_cuEventCreate *a = (void *)mock.record;
	struct sv_call c;

	ASSERT_EQ(CUDA_SUCCESS, cuEventCreate(&event, 0));
	mock.calls = 0;
	EXPECT_EQ(-EEXIST, mock_dispatch(SV_OP_cuEventCreate, sizeof(*a), &c));
	a->phEvent++;
	a->pad[3] = 1;
	EXPECT_EQ(-EBADMSG, mock_dispatch(SV_OP_cuEventCreate, sizeof(*a), &c));
	a->pad[3] = 0;
	a->ctx++;
	EXPECT_EQ(-EINVAL, mock_dispatch(SV_OP_cuEventCreate, sizeof(*a), &c));
	a->ctx--;
	EXPECT_EQ(0, mock.calls);
	EXPECT_EQ(0, mock_dispatch(SV_OP_cuEventCreate, sizeof(*a), &c));
	EXPECT_EQ(1, mock.calls);

	EXPECT_EQ(-ENOSYS, mock_dispatch(SV_OP_cuLaunchKernel, 8, &c));
	EXPECT_EQ(-ENOSYS, mock_dispatch(0, 8, &c));
	EXPECT_EQ(-ENOSYS, mock_dispatch(0xffff, 8, &c));
}

TEST_F(trip, a_handle_that_is_gone_is_an_error_of_the_call)
{
	CUevent event = H(CUevent, mock_handle(SV_T_CUevent));
	struct sv_call c;

	ASSERT_EQ(CUDA_SUCCESS, cuEventRecord(event, NULL));
	sv_unbind(&mock.session, SV_T_CUevent, (uintptr_t)event);
	mock.calls = 0;
	EXPECT_EQ(0, mock_dispatch(SV_OP_cuEventRecord, mock.record_len, &c));
	EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, c.status);
	EXPECT_EQ(0, mock.calls);
}

static const char *found(const char *base, int version, int per_thread)
{
	int known;
	const struct names_row *r = names_find(base, version, per_thread, &known);

	return r ? r->symbol : known ? "too new" : "unknown";
}

TEST(names_depend_on_version_and_stream)
{
	EXPECT_STREQ("cuMemAlloc_v2", found("cuMemAlloc", 13000, 0));
	EXPECT_STREQ("cuMemAlloc", found("cuMemAlloc", 3010, 0));
	EXPECT_STREQ("cuMemcpyHtoD_v2_ptds", found("cuMemcpyHtoD", 13000, 1));
	EXPECT_STREQ("cuMemcpyHtoD_v2", found("cuMemcpyHtoD", 13000, 0));
	EXPECT_STREQ("too new", found("cuMemcpyHtoD", 6000, 1));
	EXPECT_STREQ("cuMemAlloc_v2", found("cuMemAlloc", 13000, 1));
	EXPECT_STREQ("cuStreamGetCaptureInfo_v2", found("cuStreamGetCaptureInfo", 11030, 0));
	EXPECT_STREQ("cuStreamGetCaptureInfo", found("cuStreamGetCaptureInfo", 11029, 0));
	EXPECT_STREQ("cuGetProcAddress_v2", found("cuGetProcAddress", 12000, 0));
	EXPECT_STREQ("cuGetProcAddress", found("cuGetProcAddress", 11030, 0));
	EXPECT_STREQ("too new", found("cuLibraryLoadData", 11080, 0));
	EXPECT_STREQ("unknown", found("cuGLGetDevices", 13000, 0));
	EXPECT_STREQ("unknown", found("", 13000, 0));
	EXPECT_STREQ("unknown", found("cuz", 13000, 0));
}

TEST(names_of_the_runtime_are_found)
{
	FILE *f = fopen("selftests/gen/driver-requested.txt", "r");
	int count = 0, missing = 0, known;
	char name[128];

	ASSERT_NE(NULL, f);
	while (fgets(name, sizeof(name), f)) {
		name[strcspn(name, "\n")] = 0;
		count++;
		if (names_find(name, 13000, 0, &known))
			continue;
		missing++;
		/* Only other APIs' names may be missing. */
		EXPECT_TRUE(!*name || strstr(name, "GL") || strstr(name, "VDPAU") ||
			    strstr(name, "D3D") || strstr(name, "EGL") ||
			    strstr(name, "Egl")) {
			TH_LOG("%s is not found", name);
		}
	}
	fclose(f);
	EXPECT_EQ(381, count);
	EXPECT_GE(30, missing);
}

TEST_HARNESS_MAIN
