/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - launches: checks and packs the arguments, and runs kernels by the executor of ptx.h
 */
#include "module_i.h"
#include "array_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SMEM 232448		/* as CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN says */
#define DEFAULT_SMEM 49152

/* Calls that take a CUfunction also take a CUkernel: its function in the context. */
CUresult func_resolve(CUfunction h, struct ctx *ctx, struct func **out)
{
	struct kernel *k = (struct kernel *)h;
	struct module *m;
	CUresult r;

	if (obj_live(h, OBJ_FUNC)) {
		*out = (struct func *)h;
		return CUDA_SUCCESS;
	}
	if (!obj_live(k, OBJ_KERNEL))
		return CUDA_ERROR_INVALID_HANDLE;
	r = library_module(k->lib, ctx, &m);
	if (r)
		return r;
	if (!m->funcs[k->entry]) {
		if (!module_func(m, k->entry))
			return CUDA_ERROR_OUT_OF_MEMORY;
		m->funcs[k->entry]->attrs = k->attrs;
	}
	*out = m->funcs[k->entry];
	return CUDA_SUCCESS;
}

/* ------------------------------------------------------- ranges of a launch */

static struct ranges *ranges_now;
static uint64_t ranges_gen = ~0ull;

/* The window, and host memory that was made known. big held. */
struct ranges *ranges_get(void)
{
	struct ranges *s;
	struct mem *m;
	uint64_t from = 0;
	unsigned int n = 1;

	if (ranges_now && ranges_gen == mem_host_gen) {
		ranges_now->refs++;
		return ranges_now;
	}
	for (; mem_next(from, &m) && m; from = m->va + m->len)
		n += !in_window(m->va, 1);
	s = calloc(1, sizeof(*s) + n * sizeof(s->r[0]));
	if (!s)
		return NULL;
	s->r[s->n++] = (struct ptx_range){ window_base, window_base + window_len };
	for (from = 0; mem_next(from, &m) && m; from = m->va + m->len)
		if (!in_window(m->va, 1))
			s->r[s->n++] = (struct ptx_range){ m->va, m->va + m->len };
	if (ranges_now && !--ranges_now->refs)
		free(ranges_now);
	ranges_now = s;
	ranges_gen = mem_host_gen;
	s->refs = 2;
	return s;
}

void ranges_put(struct ranges *s)
{
	if (!--s->refs)
		free(s);
}

/* -------------------------------------------------------- device-side malloc */

/*
 * One arena for each context, of the size that CU_LIMIT_MALLOC_HEAP_SIZE has at its first use. A
 * used block begins with its size and the inverted size. Before a dump free blocks get a header,
 * too (FREE_TAG), so that the list of free blocks can be rebuilt from memory.
 */
struct dheap {
	pthread_mutex_t lock;
	struct extents free;
	struct mem *mem;
	bool filled;		/* filled from a dump: `free` must be rebuilt from memory */
};

#define FREE_TAG 0x4652454546524545ull

static struct dheap *dheap_new(struct ctx *ctx, size_t len)
{
	struct dheap *h = calloc(1, sizeof(*h));

	if (!h || mem_place(ctx->dev, ctx, len, 512, MEM_MODULE,
			    place_hash(ctx->place, "heap", 4), &h->mem)) {
		free(h);
		return NULL;
	}
	pthread_mutex_init(&h->lock, NULL);
	ext_put(&h->free, h->mem->va, h->mem->len / 16 * 16);
	ctx->dheap = h;
	return h;
}

static void dheap_mark(struct dheap *h)
{
	for (size_t i = 0; i < h->free.n && !h->filled; i++) {
		uint64_t *p = (uint64_t *)h->free.e[i].va;

		p[0] = h->free.e[i].len;
		p[1] = p[0] ^ FREE_TAG;
	}
}

/* Stops at a header that a kernel has overwritten: what follows counts as used. lock. */
static void dheap_read(struct dheap *h)
{
	uint64_t at = h->mem->va, end = at + h->mem->len / 16 * 16;

	h->filled = false;
	h->free.n = 0;
	while (at < end) {
		const uint64_t *p = (const uint64_t *)at;

		if (!p[0] || p[0] % 16 || p[0] > end - at ||
		    (p[1] != ~p[0] && p[1] != (p[0] ^ FREE_TAG)))
			break;
		if (p[1] == (p[0] ^ FREE_TAG))
			ext_put(&h->free, at, p[0]);
		at += p[0];
	}
}

static uint64_t device_malloc(void *user, uint64_t size)
{
	struct ctx *ctx = user;
	struct dheap *h;
	uint64_t p = 0;

	pthread_mutex_lock(&big);
	h = ctx->dheap ?: dheap_new(ctx, ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE]);
	pthread_mutex_unlock(&big);
	if (!h || size > h->mem->len)
		return 0;
	size = ROUND_UP(size + 16, 16);
	pthread_mutex_lock(&h->lock);
	if (h->filled)
		dheap_read(h);
	p = ext_take(&h->free, size, 16);
	pthread_mutex_unlock(&h->lock);
	if (!p)
		return 0;
	*(uint64_t *)p = size;
	*(uint64_t *)(p + 8) = ~size;
	return p + 16;
}

static void device_free(void *user, uint64_t addr)
{
	struct ctx *ctx = user;
	struct dheap *h = ctx->dheap;
	uint64_t p = addr - 16, size;

	if (!addr || !h || addr % 16 || p < h->mem->va || addr >= h->mem->va + h->mem->len)
		return;
	size = *(uint64_t *)p;
	if (size != ~*(uint64_t *)(p + 8) || size > h->mem->va + h->mem->len - p)
		return;		/* freed before, or overwritten */
	pthread_mutex_lock(&h->lock);
	if (h->filled)
		dheap_read(h);
	*(uint64_t *)(p + 8) = 0;
	ext_put(&h->free, p, size);
	pthread_mutex_unlock(&h->lock);
}

void dheap_free(struct ctx *ctx)
{
	struct dheap *h = ctx->dheap;

	if (!h)
		return;
	free(h->free.e);
	pthread_mutex_destroy(&h->lock);
	free(h);
	ctx->dheap = NULL;
}

/* The layout of struct hal_own (hal.h). */
struct own {
	uint64_t at, len;
	const char *what;
};

static CUresult own_find(unsigned int i, struct own *o)
{
	struct mem *m;

	for (struct ctx *c = contexts; c; c = c->next) {
		if (!c->dheap || i--)
			continue;
		dheap_mark(c->dheap);
		*o = (struct own){ c->dheap->mem->va, c->dheap->mem->len,
				   "the heap of malloc() in kernels" };
		return CUDA_SUCCESS;
	}
	if (!conds_own(i, &m))
		return CUDA_ERROR_NOT_FOUND;
	*o = (struct own){ m->va, m->len, "the value of a conditional handle" };
	return CUDA_SUCCESS;
}

static CUresult own_make(const struct own *o)
{
	struct mem *m = mem_find(o->at);

	if (m)
		return m->va == o->at && m->len == o->len ? CUDA_SUCCESS :
							    CUDA_ERROR_INVALID_VALUE;
	for (struct ctx *c = contexts; c; c = c->next) {
		if (!c->active || c->dheap || !dheap_new(c, o->len))
			continue;
		c->dheap->filled = true;
		if (c->dheap->mem->va == o->at)
			return CUDA_SUCCESS;
		m = c->dheap->mem;
		dheap_free(c);
		mem_free(m);
	}
	return CUDA_ERROR_NOT_FOUND;
}

/*
 * Memory that kernels write and whose address no CUDA call returns. at 0: describes the i-th in *o.
 * Else makes the memory that *o describes; the caller fills it. The device must be idle.
 */
__attribute__((visibility("default")))
CUresult softcuda_own_memory(unsigned int i, CUdeviceptr at, struct own *o)
{
	CUresult r = api_lock();

	if (r)
		return r;
	return api_unlock(at ? own_make(o) : own_find(i, o));
}

static void device_print(void *user, const char *text, size_t len)
{
	(void)user;
	print_text(text, len);
}

static const struct ptx_tex *device_tex(void *user, uint64_t handle)
{
	(void)user;
	return tex_find(handle);
}

/* ---------------------------------------------------------------------- run */

static CUresult from_fault(const struct ptx_fault *f, const char *name)
{
	static const struct {
		CUresult code;
		const char *what;
	} by_kind[] = {
		[PTX_OK] = { CUDA_ERROR_LAUNCH_FAILED, "failure" },
		[PTX_ILLEGAL_ADDRESS] = { CUDA_ERROR_ILLEGAL_ADDRESS, "illegal address" },
		[PTX_MISALIGNED] = { CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address" },
		[PTX_ILLEGAL_SPACE] = { CUDA_ERROR_INVALID_ADDRESS_SPACE, "wrong address space" },
		[PTX_INVALID_PC] = { CUDA_ERROR_INVALID_PC, "call of no function" },
		[PTX_TRAP] = { CUDA_ERROR_LAUNCH_FAILED, "trap" },
		[PTX_ASSERT] = { CUDA_ERROR_ASSERT, "assertion" },
		[PTX_STACK] = { CUDA_ERROR_HARDWARE_STACK_ERROR, "out of stack" },
		[PTX_STOPPED] = { CUDA_ERROR_LAUNCH_FAILED, "stopped" },
		[PTX_DEADLOCK] = { CUDA_ERROR_LAUNCH_FAILED, "barrier that cannot be completed" },
		[PTX_ILLEGAL_INSN] = { CUDA_ERROR_ILLEGAL_INSTRUCTION, "illegal instruction" },
		[PTX_NOMEM] = { CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "out of host memory" },
	};

	if (f->kind == PTX_STOPPED)
		return program_ending ? CUDA_ERROR_DEINITIALIZED : by_kind[f->kind].code;
	if (f->kind == PTX_ASSERT) {
		print_flush();
		print_error(f->text);
	}
	soft_log("kernel %s: %s at 0x%llx, block (%u,%u,%u), thread (%u,%u,%u): %.*s", name,
		 by_kind[f->kind].what, (unsigned long long)f->addr, f->block[0], f->block[1],
		 f->block[2], f->thread[0], f->thread[1], f->thread[2],
		 (int)strcspn(f->text, "\n"), f->text);
	return by_kind[f->kind].code;
}

/* Blocks that are resident at once by the device's attributes: so many may wait for each other. */
static uint32_t blocks_at_once(struct ctx *ctx, const struct launch *k)
{
	int sms = 0;

	device_attr(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ctx->dev->ordinal, &sms);
	return occupancy(k->fn, k->block[0] * k->block[1] * k->block[2], k->smem) * sms;
}

static bool late_stores(void)
{
	static _Atomic int on = -1;
	const char *s;

	if (on < 0) {
		s = getenv("SINGVGPU_SOFT_ORDER");
		on = s && !strcmp(s, "late-store");
		if (s && *s && !on)
			soft_log("SINGVGPU_SOFT_ORDER is late-store, or not set, but not %s", s);
	}
	return on;
}

CUresult launch_run(struct ctx *ctx, struct launch *k)
{
	struct program *p = k->fn->mod->prog;
	struct ptx_kernel *pk;
	struct ptx_host host = { ctx, device_print, device_malloc, device_free, device_tex };
	struct ptx_fault fault = { .kind = PTX_OK };
	struct mem *coop = NULL;
	struct ranges *rs;
	struct ptx_launch l = {
		.grid = { k->grid[0], k->grid[1], k->grid[2] },
		.block = { k->block[0], k->block[1], k->block[2] },
		.cluster = { k->clusters_of[0], k->clusters_of[1], k->clusters_of[2] },
		.dyn_shared = k->smem,
		.params = k->params,
		.params_len = k->params_len,
		.var_addr = k->fn->mod->var_addr,
		.host = &host,
		.stop = &ctx->stop,
		.cooperative = k->cooperative,
		.late_stores = late_stores(),
		.grid_id = next_id(),
	};
	CUresult r = CUDA_SUCCESS;
	int err;

	if (p->cubin)
		return record_launch(k);
	r = program_kernel(p, k->fn->entry, &ctx->stop, &pk);
	if (r)
		return r;
	pthread_mutex_lock(&big);
	rs = ranges_get();
	if ((uint64_t)k->grid[0] * k->grid[1] * k->grid[2] > 64)	/* 64 is the default */
		l.resident = blocks_at_once(ctx, k);
	if (k->cooperative)
		r = mem_alloc(ctx->dev, ctx, 512, 512, MEM_MODULE, &coop);
	pthread_mutex_unlock(&big);
	if (!rs || r)
		return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	l.ranges = rs->r;
	l.nranges = rs->n;
	if (coop) {
		memset((void *)coop->va, 0, 512);
		l.coop_workspace = coop->va;
	}
	err = ptx_run(pk, &l, &fault);
	if (err == -EFAULT) {
		r = from_fault(&fault, ptx_kernel_entry(pk)->name);
	} else if (err) {
		soft_log("kernel %s cannot run: %s", ptx_kernel_entry(pk)->name, fault.text);
		r = err == -ENOMEM ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_ERROR_LAUNCH_FAILED;
	}
	pthread_mutex_lock(&big);
	ranges_put(rs);
	if (coop)
		mem_free(coop);
	pthread_mutex_unlock(&big);
	return r;
}

/* ----------------------------------------------------------- what is launched */

/* Packs the parameters. 0, or -errno with the CUDA error in *err. */
int launch_params(struct func *f, struct launch *k, void **params, void **extra, CUresult *err)
{
	const struct ptx_entry_info *e = program_entry(f->mod->prog, f->entry);
	const size_t *size = NULL;
	const void *buf = NULL;
	size_t len;

	*err = CUDA_ERROR_INVALID_VALUE;
	if (params && extra)
		return -EINVAL;
	for (size_t i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
		if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buf = extra[i + 1];
		else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
			size = extra[i + 1];
		else
			return -EINVAL;
	}
	len = size ? *size : 0;
	if (!size)
		buf = NULL;	/* a buffer without a size has no effect, says cuda.h */
	if ((len && !buf) || (e->nparams && !params && !buf))
		return -EINVAL;
	/* "too many resources requested for launch" is what NVIDIA's driver says, also of padding. */
	if (extra && len != e->param_size) {
		*err = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
		return -EINVAL;
	}
	k->params_len = e->param_size;
	k->params = calloc(1, e->param_size + 8);
	if (!k->params) {
		*err = CUDA_ERROR_OUT_OF_MEMORY;
		return -ENOMEM;
	}
	if (buf && e->param_size)
		memcpy(k->params, buf, e->param_size);
	for (uint32_t i = 0; params && i < e->nparams; i++) {
		if (!params[i]) {
			free(k->params);
			k->params = NULL;
			return -EINVAL;
		}
		memcpy((char *)k->params + e->params[i].offset, params[i], e->params[i].size);
	}
	*err = CUDA_SUCCESS;
	return 0;
}

static CUresult for_caller(CUresult r, const void *handle)
{
	return r == BAD_CONFIG && !obj_live(handle, OBJ_KERNEL) ? CUDA_ERROR_INVALID_VALUE : r;
}

/* Everything about a launch but its parameters. The kernel has been described. */
CUresult launch_check(struct ctx *ctx, struct launch *k)
{
	struct program *p = k->fn->mod->prog;
	const struct ptx_entry_info *e = program_entry(p, k->fn->entry);
	const struct ptx_kernel_info *info = program_info(p, k->fn->entry);
	uint64_t threads = (uint64_t)k->block[0] * k->block[1] * k->block[2];
	uint32_t max = e->maxntid[0];
	int dyn = k->fn->attrs.max_dyn;
	CUresult r;

	if (k->fn->mod->ctx != ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!threads || k->block[0] > 1024 || k->block[1] > 1024 || k->block[2] > 64 ||
	    threads > 1024)
		return BAD_CONFIG;
	if (!k->grid[0] || !k->grid[1] || !k->grid[2] || k->grid[0] > 0x7fffffff ||
	    k->grid[1] > 65535 || k->grid[2] > 65535)
		return BAD_CONFIG;
	if (e->reqntid[0] &&
	    (k->block[0] != e->reqntid[0] ||
	     k->block[1] != (e->reqntid[1] ? e->reqntid[1] : 1) ||
	     k->block[2] != (e->reqntid[2] ? e->reqntid[2] : 1)))
		return BAD_CONFIG;
	if (max) {
		max *= (e->maxntid[1] ? e->maxntid[1] : 1) * (e->maxntid[2] ? e->maxntid[2] : 1);
		if (threads > max)
			return BAD_CONFIG;
	}
	if (dyn < 0)
		dyn = info->static_shared < DEFAULT_SMEM ?
			      (int)(DEFAULT_SMEM - info->static_shared) : 0;
	if (k->smem > (unsigned int)dyn || k->smem + info->static_shared > MAX_SMEM)
		return CUDA_ERROR_INVALID_VALUE;
	r = cluster_launch(k);
	if (r)
		return r;
	if (k->cooperative &&
	    (uint64_t)k->grid[0] * k->grid[1] * k->grid[2] > blocks_at_once(ctx, k))
		return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
	return CUDA_SUCCESS;
}

static CUresult lock_func(CUfunction h, struct func **out, struct ctx **ctx, bool describe)
{
	struct program *p;
	unsigned int entry;
	CUresult r = api_lock_ctx(ctx);

	if (r)
		return r;
	r = func_resolve(h, *ctx, out);
	if (r)
		return api_unlock(r);
	p = (*out)->mod->prog;
	entry = (*out)->entry;
	if (program_ready(p, entry) || (describe && program_info(p, entry)))
		return CUDA_SUCCESS;
	p->refs++;
	pthread_mutex_unlock(&big);
	r = describe ? program_describe(p, entry) : program_compile(p, entry);
	pthread_mutex_lock(&big);
	program_put(p);
	if (!r && (!obj_live(h, OBJ_FUNC) && !obj_live(h, OBJ_KERNEL)))
		r = CUDA_ERROR_INVALID_HANDLE;
	if (!r)
		r = func_resolve(h, *ctx, out);
	return r ? api_unlock(r) : r;
}

CUresult api_lock_func(CUfunction h, struct func **out, struct ctx **ctx)
{
	return lock_func(h, out, ctx, false);
}

CUresult api_lock_described(CUfunction h, struct func **out, struct ctx **ctx)
{
	return lock_func(h, out, ctx, true);
}

struct events {			/* recorded when the launch has completed */
	CUevent ev[2];
	unsigned int n;
};

static CUresult read_attrs(const CUlaunchConfig *c, struct launch *k, struct events *evs)
{
	if (c->numAttrs && !c->attrs)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < c->numAttrs; i++) {
		const CUlaunchAttributeValue *v = &c->attrs[i].value;

		switch ((int)c->attrs[i].id) {
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
			k->cluster[0] = v->clusterDim.x;
			k->cluster[1] = v->clusterDim.y;
			k->cluster[2] = v->clusterDim.z;
			break;
		case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
			k->cooperative = v->cooperative != 0;
			break;
		case CU_LAUNCH_ATTRIBUTE_PRIORITY:
			k->priority = v->priority;
			break;
		case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
		case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
			if (evs->n == 2)
				return CUDA_ERROR_INVALID_VALUE;
			evs->ev[evs->n++] =
				c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ?
					v->programmaticEvent.event :
					v->launchCompletionEvent.event;
			break;
		case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
			if (v->deviceUpdatableKernelNode.deviceUpdatable)
				return CUDA_ERROR_NOT_SUPPORTED;
			break;
		case CU_LAUNCH_ATTRIBUTE_IGNORE:
		case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
		case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
		case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
		case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
		case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
		case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
			break;	/* hints without effect: work is strictly ordered */
		default:
			return CUDA_ERROR_INVALID_VALUE;
		}
	}
	return CUDA_SUCCESS;
}

static CUresult launch(CUstream h, struct launch *k, CUfunction fn, void **params, void **extra,
		       const struct events *evs)
{
	struct desc d = { .kind = D_KERNEL };
	struct stream *st;
	struct ctx *ctx;
	CUresult r = api_lock_func(fn, &k->fn, &ctx);

	if (r)
		return r;
	r = stream_get(h, &st);
	if (!r)
		r = st->ctx->sticky;
	if (!r && st->ctx != ctx && obj_live(fn, OBJ_KERNEL))
		r = func_resolve(fn, st->ctx, &k->fn);	/* in the stream's context */
	if (!r)
		r = for_caller(launch_check(st->ctx, k), fn);
	if (!r)
		r = cluster_given(k);
	if (r || launch_params(k->fn, k, params, extra, &r))
		return api_unlock(r);
	trace_detail("%s, grid %ux%ux%u, block %ux%ux%u, %u bytes, clusters of %ux%ux%u%s",
		     program_entry(k->fn->mod->prog, k->fn->entry)->name, k->grid[0], k->grid[1],
		     k->grid[2], k->block[0], k->block[1], k->block[2], k->smem, k->cluster[0],
		     k->cluster[1], k->cluster[2], k->fn->mod->prog->cubin ? ", recorded" : "");
	d.k = *k;
	d.k.fn->mod->refs++;
	r = stream_submit(st, &d, NULL);
	pthread_mutex_unlock(&big);
	for (unsigned int i = 0; evs && i < evs->n && !r; i++)
		r = cuEventRecord(evs->ev[i], h);
	return r;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
			unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
			unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
			void **kernelParams, void **extra)
{
	struct launch k = {
		.grid = { gridDimX, gridDimY, gridDimZ },
		.block = { blockDimX, blockDimY, blockDimZ },
		.smem = sharedMemBytes,
	};

	return launch(hStream, &k, f, kernelParams, extra, NULL);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
			  void **extra)
{
	struct events evs = { .n = 0 };
	struct launch k;
	CUresult r;

	if (!config)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	k = (struct launch){
		.grid = { config->gridDimX, config->gridDimY, config->gridDimZ },
		.block = { config->blockDimX, config->blockDimY, config->blockDimZ },
		.smem = config->sharedMemBytes,
	};
	r = read_attrs(config, &k, &evs);
	return r ?: launch(config->hStream, &k, f, kernelParams, extra, &evs);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
				   unsigned int gridDimZ, unsigned int blockDimX,
				   unsigned int blockDimY, unsigned int blockDimZ,
				   unsigned int sharedMemBytes, CUstream hStream,
				   void **kernelParams)
{
	struct launch k = {
		.grid = { gridDimX, gridDimY, gridDimZ },
		.block = { blockDimX, blockDimY, blockDimZ },
		.smem = sharedMemBytes,
		.cooperative = true,
	};

	return launch(hStream, &k, f, kernelParams, NULL, NULL);
}
