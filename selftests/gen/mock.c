// SPDX-License-Identifier: Apache-2.0
/*
 * mock.c - the functions that stub.h and dispatch.h require, over two tables and a direct call
 */
#include "mock.h"

struct mock mock;

static uint64_t next;

static struct mock_handle *find(struct mock_handle *t, unsigned int type, uint64_t handle)
{
	for (int i = 0; i < 64; i++)
		if (t[i].type == type && t[i].handle == handle)
			return &t[i];
	return NULL;
}

static int add(struct mock_handle *t, struct mock_handle h)
{
	for (int i = 0; i < 64; i++)
		if (!t[i].type) {
			t[i] = h;
			return 0;
		}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

uint64_t mock_handle(unsigned int type)
{
	uint64_t v = 0x1000 + ++next;
	struct mock_handle h = { type, v, REAL(v), 0 };

	add(mock.client, h);
	add(mock.session.handle, h);
	return h.handle;
}

int mock_dispatch(uint16_t op, uint32_t len, struct sv_call *c)
{
	*c = (struct sv_call){ .session = &mock.session, .driver = &mock.driver,
			       .data = mock.record, .len = len, .op = op };
	mock.rc = cuda_dispatch(c);
	mock.why = c->why;
	return mock.rc;
}

/* ------------------------------------------------------------------------------ client */

void *sv_stub_begins(void)
{
	return NULL;
}

void sv_stub_ends(void **before)
{
	(void)before;
}

int sv_ctx(uint64_t *ctx)
{
	*ctx = MOCK_CTX;
	return 0;
}

uint64_t sv_device(uint64_t device)
{
	return device;
}

uint64_t sv_ctx_named(uint64_t ctx)
{
	return ctx;
}

int sv_use(unsigned int type, uint64_t handle)
{
	return find(mock.client, type, handle) ? 0 : CUDA_ERROR_INVALID_HANDLE;
}

int sv_stream(uint64_t handle, int per_thread, uint64_t *stream)
{
	*stream = handle ? handle : per_thread ? MOCK_PER_THREAD : MOCK_LEGACY;
	return 0;
}

int sv_new(unsigned int type, uint64_t *handle)
{
	*handle = 0x1000 + ++next;
	return add(mock.client, (struct mock_handle){ type, *handle, 0, 0 });
}

void sv_drop(unsigned int type, uint64_t handle)
{
	struct mock_handle *h = find(mock.client, type, handle);

	if (h)
		h->type = 0;
}

int sv_made(unsigned int type, uint64_t handle)
{
	return add(mock.client, (struct mock_handle){ type, handle, handle, 0 });
}

int sv_range(uint64_t addr, uint64_t len, int write)
{
	(void)write;
	return addr >= MOCK_BASE && len <= MOCK_SIZE && addr - MOCK_BASE <= MOCK_SIZE - len ? 0 :
		CUDA_ERROR_INVALID_VALUE;
}

int sv_capturing(uint64_t stream)
{
	return stream == MOCK_CAPTURED;
}

static int keep(uint16_t op, const void *args, uint32_t len, const void *data, uint64_t data_len)
{
	if (len + data_len > sizeof(mock.record))
		return CUDA_ERROR_INVALID_VALUE;
	if (len)
		memcpy(mock.record, args, len);
	if (data_len)
		memcpy(mock.record + len, data, data_len);
	mock.record_len = len + data_len;
	mock.op = op;
	return 0;
}

int sv_capture(uint64_t stream, uint16_t op, const void *args, uint32_t len, const void *data,
	       uint64_t data_len)
{
	(void)stream;
	mock.captured++;
	return keep(op, args, len, data, data_len);
}

int sv_sync(uint16_t op, const void *args, uint32_t len, const void *data, uint64_t data_len,
	    void *reply, uint32_t reply_len)
{
	struct sv_call c;
	int rc = keep(op, args, len, data, data_len);

	if (rc)
		return rc;
	mock.records++;
	if (mock_dispatch(op, mock.record_len, &c))
		return CUDA_ERROR_UNKNOWN;
	if (c.status)
		return c.status;
	if (c.reply_len != reply_len)
		return CUDA_ERROR_UNKNOWN;
	if (reply_len)
		memcpy(reply, c.reply, reply_len);
	return 0;
}

int sv_async(uint16_t op, const void *args, uint32_t len, const void *data, uint64_t data_len)
{
	struct sv_call c;
	int rc = keep(op, args, len, data, data_len);

	if (!rc) {
		mock.records++;
		mock_dispatch(op, mock.record_len, &c);
	}
	return rc;
}

void *sv_scratch(uint64_t len)
{
	static uint64_t room[8192];

	return len <= sizeof(room) ? room : NULL;
}

int sv_unsupported(const char *name, const char *reason)
{
	mock.unsupported++;
	mock.last = name;
	return reason[0] ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_UNKNOWN;
}

CUresult sv_hook_cuEventRecord(CUevent hEvent, CUstream hStream, int per_thread, int *done)
{
	(void)hEvent;
	(void)hStream;
	(void)per_thread;
	*done = mock.hook_done;
	return CUDA_ERROR_NOT_READY;
}

CUresult sv_hook_cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags,
					int per_thread, int *done)
{
	(void)flags;
	return sv_hook_cuEventRecord(hEvent, hStream, per_thread, done);
}

CUresult sv_hook_cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int flags,
				   int per_thread, int *done)
{
	(void)flags;
	return sv_hook_cuEventRecord(hEvent, hStream, per_thread, done);
}

#define PASSES(_name, ...) \
CUresult sv_hook_##_name(__VA_ARGS__, int per_thread, int *done) \
{ \
	return sv_hook_cuEventRecord(NULL, NULL, per_thread, done); \
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
PASSES(cuEventCreate, CUevent *phEvent, unsigned int Flags)
PASSES(cuEventDestroy, CUevent hEvent)
PASSES(cuEventDestroy_v2, CUevent hEvent)
PASSES(cuCtxSetLimit, CUlimit limit, size_t value)
PASSES(cuKernelSetAttribute, CUfunction_attribute attr, int value, CUkernel kernel, CUdevice dev)
PASSES(cuFuncSetAttribute, CUfunction f, CUfunction_attribute attr, int value)
PASSES(cuCtxSetCacheConfig, CUfunc_cache config)
PASSES(cuCtxSetSharedMemConfig, CUsharedconfig config)
PASSES(cuFuncSetCacheConfig, CUfunction f, CUfunc_cache config)
PASSES(cuFuncSetSharedMemConfig, CUfunction f, CUsharedconfig config)
PASSES(cuKernelSetCacheConfig, CUkernel kernel, CUfunc_cache config, CUdevice dev)
PASSES(cuMemsetD8Async, CUdeviceptr to, unsigned char v, size_t n, CUstream stream)
PASSES(cuMemsetD16Async, CUdeviceptr to, unsigned short v, size_t n, CUstream stream)
PASSES(cuMemsetD32Async, CUdeviceptr to, unsigned int v, size_t n, CUstream stream)
PASSES(cuMemsetD2D8Async, CUdeviceptr to, size_t pitch, unsigned char v, size_t width,
       size_t height, CUstream stream)
PASSES(cuMemsetD2D16Async, CUdeviceptr to, size_t pitch, unsigned short v, size_t width,
       size_t height, CUstream stream)
PASSES(cuMemsetD2D32Async, CUdeviceptr to, size_t pitch, unsigned int v, size_t width,
       size_t height, CUstream stream)
PASSES(cuStreamCreate, CUstream *stream, unsigned int flags)
PASSES(cuStreamCreateWithPriority, CUstream *stream, unsigned int flags, int priority)
PASSES(cuStreamWaitValue32_v2, CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
PASSES(cuStreamWaitValue64_v2, CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
PASSES(cuStreamWriteValue32_v2, CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
PASSES(cuStreamWriteValue64_v2, CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
PASSES(cuCtxRecordEvent, CUcontext context, CUevent event)
PASSES(cuFuncLoad, CUfunction function)
PASSES(cuCtxWaitEvent, CUcontext context, CUevent event)
#pragma GCC diagnostic pop

/* ------------------------------------------------------------------------------ proxy */

int sv_enter(struct sv_session *s, uint64_t ctx)
{
	s->entered++;
	return ctx == MOCK_CTX ? 0 : -EINVAL;
}

int sv_real(struct sv_session *s, unsigned int type, uint64_t handle, int optional, uint64_t *real)
{
	struct mock_handle *h = find(s->handle, type, handle);

	*real = 0;
	if (!handle && optional)
		return 0;
	if (type == SV_T_CUstream && (handle == MOCK_LEGACY || handle == MOCK_PER_THREAD)) {
		*real = REAL(handle);
		return 0;
	}
	if (!h || h->reserved)
		return CUDA_ERROR_INVALID_HANDLE;
	*real = h->real;
	return 0;
}

int sv_reserve(struct sv_session *s, unsigned int type, uint64_t handle)
{
	if (!handle || find(s->handle, type, handle))
		return -EEXIST;
	return add(s->handle, (struct mock_handle){ type, handle, 0, 1 });
}

void sv_unreserve(struct sv_session *s, unsigned int type, uint64_t handle)
{
	find(s->handle, type, handle)->type = 0;
}

int sv_bind(struct sv_session *s, unsigned int type, uint64_t handle, uint64_t real)
{
	struct mock_handle *h = find(s->handle, type, handle);

	if (!h)
		return -ENOENT;
	h->real = real;
	h->reserved = 0;
	return 0;
}

void sv_unbind(struct sv_session *s, unsigned int type, uint64_t handle)
{
	find(s->handle, type, handle)->type = 0;
}

int sv_window(struct sv_session *s, uint64_t addr, uint64_t len, int write)
{
	(void)s;
	return sv_range(addr, len, write);
}

void *sv_room(struct sv_session *s, unsigned int slot, uint64_t len)
{
	return slot < 8 && len <= sizeof(s->room[0]) ? s->room[slot] : NULL;
}

/* ------------------------------------------------------------------------------ driver */

static CUresult called(const char *name)
{
	mock.calls++;
	mock.last = name;
	return mock.result;
}

static CUresult event_create(CUevent *event, unsigned int flags)
{
	mock.arg[0] = flags;
	*event = (CUevent)0xe7;
	return called("cuEventCreate");
}

static CUresult event_destroy(CUevent event)
{
	mock.arg[0] = (uintptr_t)event;
	return called("cuEventDestroy_v2");
}

static CUresult event_record(CUevent event, CUstream stream)
{
	mock.arg[0] = (uintptr_t)event;
	mock.arg[1] = (uintptr_t)stream;
	return called("cuEventRecord");
}

static CUresult elapsed(float *ms, CUevent from, CUevent to)
{
	mock.arg[0] = (uintptr_t)from;
	mock.arg[1] = (uintptr_t)to;
	*ms = 1.5f;
	return called("cuEventElapsedTime_v2");
}

static CUresult memset_d8(CUdeviceptr to, unsigned char value, size_t n, CUstream stream)
{
	mock.arg[0] = to;
	mock.arg[1] = value;
	mock.arg[2] = n;
	mock.arg[3] = (uintptr_t)stream;
	return called("cuMemsetD8Async");
}

static CUresult memset_2d16(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
			    size_t height, CUstream stream)
{
	mock.arg[0] = to;
	mock.arg[1] = pitch;
	mock.arg[2] = value;
	mock.arg[3] = width;
	mock.arg[4] = height;
	mock.arg[5] = (uintptr_t)stream;
	return called("cuMemsetD2D16Async");
}

static CUresult array_create(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	memcpy(mock.bytes, desc, sizeof(*desc));
	*array = (CUarray)0xa7;
	return called("cuArrayCreate_v2");
}

static CUresult config_get(CUfunc_cache *config)
{
	*config = CU_FUNC_CACHE_PREFER_EQUAL;
	return called("cuCtxGetCacheConfig");
}

static CUresult profiler_start(void)
{
	return called("cuProfilerStart");
}

static void *symbol(void *arg, const char *name)
{
	static const struct {
		const char *name;
		void *fn;
	} have[] = {
		{ "cuEventCreate", event_create },
		{ "cuEventDestroy_v2", event_destroy },
		{ "cuEventRecord", event_record },
		{ "cuEventElapsedTime_v2", elapsed },
		{ "cuMemsetD8Async", memset_d8 },
		{ "cuMemsetD2D16Async", memset_2d16 },
		{ "cuArrayCreate_v2", array_create },
		{ "cuCtxGetCacheConfig", config_get },
		{ "cuProfilerStart", profiler_start },
	};

	++*(int *)arg;
	for (size_t i = 0; i < sizeof(have) / sizeof(*have); i++)
		if (!strcmp(have[i].name, name))
			return have[i].fn;
	return NULL;
}

void mock_reset(void)
{
	int asked = 0;

	memset(&mock, 0, sizeof(mock));
	cuda_driver_load(&mock.driver, symbol, &asked);
	next = 0;
}
