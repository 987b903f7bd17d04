// SPDX-License-Identifier: Apache-2.0
/*
 * fallback.c - refusals in the place of parts that are not built yet: captures, pools
 *
 * NEEDSWORK: goes away with the last of them; the linker takes the real function where there is one.
 */
#include "client.h"
#include "memory_i.h"
#include "cuda_hooks.h"
#define W __attribute__((weak))
W CUresult capture_record(struct stream *s, uint16_t op, const void *a, uint32_t alen, const void *b, uint32_t blen){(void)s;(void)op;(void)a;(void)alen;(void)b;(void)blen;return CUDA_ERROR_NOT_SUPPORTED;}
W CUresult capture_unsafe(void){return 0;}
W CUresult capture_sync(struct stream *s){(void)s;return 0;}
W CUresult capture_legacy(struct stream *s){(void)s;return 0;}
W CUresult sv_hook_cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags, int per_thread, int *done){(void)hStream;(void)hEvent;(void)Flags;(void)per_thread;(void)done;return 0;}
W CUresult sv_hook_cuEventRecord(CUevent hEvent, CUstream hStream, int per_thread, int *done){(void)hStream;(void)hEvent;(void)per_thread;(void)done;return 0;}
W CUresult sv_hook_cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags, int per_thread, int *done){(void)hStream;(void)hEvent;(void)flags;(void)per_thread;(void)done;return 0;}
W uint64_t memory_next_id(void){static uint64_t i;return ++i;}
W bool host_registered(uint64_t addr, struct memory *out){(void)addr;(void)out;return false;}
W void host_context_gone(struct context *ctx){(void)ctx;}
W bool pool_find(uint64_t addr, struct memory *out){(void)addr;(void)out;return false;}
W void pool_context_gone(struct context *ctx){(void)ctx;}

W CUresult vmm_range(uint64_t addr, uint64_t len){(void)addr;(void)len;return 1;}
W void pool_stream_gone(struct stream*s){(void)s;}
W CUresult host_free(uint64_t addr, enum memory_kind kind){(void)addr;(void)kind;return 1;}
#include "capture.h"
W unsigned int capture_live;
W bool capture_on_slow(const struct stream *s) { (void)s; return false; }
W CUresult capture_alloc(struct stream *s, size_t len, CUdeviceptr *out) { (void)s; (void)len; (void)out; return CUDA_ERROR_NOT_SUPPORTED; }
W CUresult capture_free(struct stream *s, CUdeviceptr addr) { (void)s; (void)addr; return CUDA_ERROR_NOT_SUPPORTED; }
W bool graph_memory_freed(CUdeviceptr addr) { (void)addr; return false; }
