// SPDX-License-Identifier: Apache-2.0
/*
 * image.c - libraries and modules, and their kernels, functions and variables
 *
 * All but the unbinding runs on workers. An image's handle and each job that works with the image
 * hold a reference; the driver unloads the image when the last reference is dropped, so that no job
 * loses it. The consumer unbinds the image's handle, and those of everything that came out of it,
 * when it meets the record that unloads it, so that no later record can use them.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "answer.h"
#include "context.h"
#include "device_memory.h"
#include "handle.h"
#include "image_i.h"
#include "modules.h"
#include "print.h"
#include "stat_i.h"
#include "worker.h"

static struct lock lock = LOCK_INIT(PROXY_IMAGES);
static struct image *images;

/* ------------------------------------------------------------------------------ lifetime */

static void image_end(struct image *im)
{
	if (im->names)
		names_free(im->names);
	free(im->names);
	free(im->record);
	free(im->seen);
	free(im);
}

static void image_free(struct image *im)
{
	struct image **p;

	lock_take(&lock);
	for (p = &images; *p && *p != im; p = &(*p)->next)
		;
	if (*p)
		*p = im->next;
	lock_drop(&lock);
	image_release_bytes(im);
	image_end(im);
}

static void unload(void *arg)
{
	struct image *im = arg;
	struct hal *h = &im->session->hal;
	CUresult r = CUDA_SUCCESS;

	if (im->library) {
		h->drv.cuCtxSetCurrent(h->primary);
		context_forget();
		r = h->drv.cuLibraryUnload((CUlibrary)im->real);
	} else if (!im->ctx_gone) {
		r = sv_enter(im->session, im->ctx);
		if (!r)
			r = h->drv.cuModuleUnload((CUmodule)im->real);
	}
	print_pump(im->session);
	if (im->end.s)
		answer_now(&im->end, r, NULL, 0);
	image_free(im);
}

static void image_put(struct image *im)
{
	unsigned int left;

	lock_take(&lock);
	left = --im->refs;
	lock_drop(&lock);
	if (!left && worker_run(unload, im))
		unload(im);
}

/* Takes a reference to the library or module of a handle. NULL: there is none. */
static struct image *image_get(struct sv_session *s, uint64_t handle, void **real)
{
	unsigned int type = sv_is_handle(SV_T_CUmodule, handle) ? SV_T_CUmodule : SV_T_CUlibrary;
	struct image *im;
	uint64_t v;

	lock_take(&lock);
	im = handle_obj(s, type, handle);
	if (im && !sv_real(s, type, handle, 0, &v)) {
		im->refs++;
		if (real)
			*real = (void *)(uintptr_t)v;
	} else {
		im = NULL;
	}
	lock_drop(&lock);
	return im;
}

/* The same for a kernel's or function's image; *real is the driver's function. */
static struct image *func_get(struct sv_session *s, uint64_t handle, CUfunction *real)
{
	unsigned int type = sv_is_handle(SV_T_CUkernel, handle) ? SV_T_CUkernel : SV_T_CUfunction;
	struct image *im = NULL;
	struct func *f;
	uint64_t v;

	lock_take(&lock);
	f = handle_obj(s, type, handle);
	if (f && !sv_real(s, type, handle, 0, &v)) {
		im = f->image;
		im->refs++;
		*real = (CUfunction)(uintptr_t)v;
	}
	lock_drop(&lock);
	return im;
}

int func_find(struct sv_session *s, uint64_t handle, CUfunction *real, struct func **f)
{
	unsigned int type = sv_is_handle(SV_T_CUkernel, handle) ? SV_T_CUkernel : SV_T_CUfunction;
	uint64_t v;
	int rc = sv_real(s, type, handle, 0, &v);

	*real = (CUfunction)(uintptr_t)v;
	*f = rc ? NULL : handle_obj(s, type, handle);
	return rc;
}

/* ------------------------------------------------------------------------------ who knows addresses */

static bool seen_in(const struct image *im, uint64_t ctx, size_t *at)
{
	for (*at = 0; *at < im->nseen; ++*at)
		if (im->seen[*at] == ctx)
			return true;
	return false;
}

/* Holds the lock. */
static void see(struct image *im, uint64_t ctx)
{
	uint64_t *more;
	size_t at;

	assert_held(&lock);
	if (!im->library || seen_in(im, ctx, &at))
		return;
	more = realloc(im->seen, (im->nseen + 1) * sizeof(*more));
	if (more) {
		im->seen = more;
		im->seen[im->nseen++] = ctx;
	} else {
		im->seen_everywhere = true;
	}
}

void image_seen(struct sv_session *s, uint64_t library, uint64_t ctx)
{
	struct image *im;

	if (!sv_is_handle(SV_T_CUlibrary, library))
		return;
	lock_take(&lock);
	im = handle_obj(s, SV_T_CUlibrary, library);
	if (im)
		see(im, ctx);
	lock_drop(&lock);
}

bool image_is_seen(const struct image *im, uint64_t ctx)
{
	bool is;
	size_t at;

	lock_take(&lock);
	is = im->seen_everywhere || seen_in(im, ctx, &at);
	lock_drop(&lock);
	return is;
}

bool image_managed_seen(const struct image *im)
{
	bool is;

	lock_take(&lock);
	is = im->managed_seen;
	lock_drop(&lock);
	return is;
}

void func_seen(struct sv_session *s, uint64_t handle, uint64_t ctx)
{
	unsigned int type = sv_is_handle(SV_T_CUkernel, handle) ? SV_T_CUkernel : SV_T_CUfunction;
	struct func *f;

	lock_take(&lock);
	f = handle_obj(s, type, handle);
	if (f) {
		see(f->image, ctx);
		__atomic_store_n(&f->seen, ctx, __ATOMIC_RELAXED);
	}
	lock_drop(&lock);
}

static int of_image(void *arg, unsigned int type, uint64_t ctx, void *obj)
{
	struct func *f = obj;

	(void)ctx;
	if (type == SV_T_CUmodule || type == SV_T_CUlibrary)
		return obj == arg;
	if ((type != SV_T_CUkernel && type != SV_T_CUfunction) || !f || f->image != arg)
		return 0;
	free(f);
	return 1;
}

int do_unload(struct call *k)
{
	const struct sv_image_end *a = k->c.data;
	struct sv_session *s = k->c.session;
	unsigned int type = k->c.op == SV_OP_cuLibraryUnload ? SV_T_CUlibrary : SV_T_CUmodule;
	struct image *im;

	if (!sv_is_handle(type, a->handle))
		return sv_bad(&k->c, "handle of an image to unload");
	lock_take(&lock);
	im = handle_obj(s, type, a->handle);
	if (im && im->handle == a->handle) {
		handle_sweep(s, of_image, im);
		globals_drop(im, 0);
		if (k->cpl)
			im->end = answer_later(k);
	} else {
		im = NULL;
	}
	lock_drop(&lock);
	if (!im)
		return fails(k, CUDA_ERROR_INVALID_HANDLE);
	image_put(im);
	return k->cpl ? CALL_LATER : 0;
}

/* Drops the modules of a context that has ended. Their handles are unbound already. */
void images_ctx_gone(uint64_t ctx)
{
	struct image *im, *gone = NULL;
	size_t at;

	globals_drop(NULL, ctx);
	lock_take(&lock);
	for (im = images; im; im = im->next) {
		if (!im->library && im->ctx == ctx && !im->ctx_gone) {
			im->ctx_gone = true;
			im->gone_next = gone;
			gone = im;
		}
		if (seen_in(im, ctx, &at))
			im->seen[at] = im->seen[--im->nseen];
	}
	lock_drop(&lock);
	while ((im = gone)) {
		gone = im->gone_next;
		image_put(im);
	}
}

/* ------------------------------------------------------------------------------ loading */

static CUresult load(struct sv_session *s, const struct sv_image *a, struct image *im,
		     struct jit *j)
{
	struct hal *h = &s->hal;
	CUlibraryOption keep = CU_LIBRARY_BINARY_IS_PRESERVED;
	void *yes = (void *)1;
	CUresult r;

	if (im->library) {
		h->drv.cuCtxSetCurrent(h->primary);
		context_forget();
		return h->drv.cuLibraryLoadData((CUlibrary *)&im->real, im->image, j->opt, j->value,
						j->n, &keep, &yes, im->held ? 1 : 0);
	}
	r = sv_enter(s, a->ctx);
	return r ?: h->drv.cuModuleLoadDataEx((CUmodule *)&im->real, im->image, j->n, j->opt,
					     j->value);
}

static int do_load(struct call *k, unsigned int type)
{
	const struct sv_image *a = k->c.data;
	struct sv_session *s = k->c.session;
	uint64_t begin = now_ns();
	struct image *im;
	struct jit j;
	int rc;

	rc = image_check_record(k, a);
	if (rc)
		return rc;
	rc = sv_reserve(s, type, a->handle);
	if (rc)
		return sv_fails(&k->c, rc, "handle of an image");
	im = calloc(1, sizeof(*im));
	rc = im ? image_read(k, a, im) : CUDA_ERROR_OUT_OF_MEMORY;
	if (!rc) {
		im->session = s;
		im->library = type == SV_T_CUlibrary;
		im->handle = a->handle;
		im->ctx = a->ctx;
		im->seq = k->seq;
		im->refs = 1;
		im->record = malloc(k->c.len);
		rc = im->record ? jit_begin(k, a, &j) : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!rc) {
		memcpy(im->record, a, k->c.len);
		im->record_len = k->c.len;
		rc = load(s, a, im, &j);
		jit_end(s, a, &j);
		print_pump(s);
		if (!im->held || !im->library)
			image_release_bytes(im);
	}
	stat_add(&s->stat->jit_ns, now_ns() - begin);
	if (rc) {
		sv_unreserve(s, type, a->handle);
		if (im) {
			image_release_bytes(im);
			image_end(im);
		}
		return sv_fails(&k->c, rc, k->c.why ?: "context of an image");
	}
	stat_add(&s->stat->modules, 1);
	lock_take(&lock);
	im->next = images;
	images = im;
	lock_drop(&lock);
	return handle_bind(s, type, a->handle, (uintptr_t)im->real, im, im->library ? 0 : a->ctx);
}

int do_load_library(struct call *k)
{
	return do_load(k, SV_T_CUlibrary);
}

int do_load_module(struct call *k)
{
	return do_load(k, SV_T_CUmodule);
}

/* ------------------------------------------------------------------------------ for a dump */

int images_walk(image_visit fn, void *arg)
{
	struct image **all, *im;
	size_t n = 0, i;
	int rc = 0;

	lock_take(&lock);
	for (im = images; im; im = im->next)
		n++;
	all = calloc(n + 1, sizeof(*all));
	/* The list has the newest first. References keep the images while fn runs. */
	for (im = images, i = n; all && im; im = im->next)
		if (im->refs && handle_obj(im->session, im->library ? SV_T_CUlibrary : SV_T_CUmodule,
					   im->handle) == im) {
			im->refs++;
			all[--i] = im;
		}
	lock_drop(&lock);
	if (!all)
		return -ENOMEM;
	for (; i < n; i++) {
		if (!rc)
			rc = fn(arg, all[i]);
		image_put(all[i]);
	}
	free(all);
	return rc;
}

int image_names(struct image *im, const struct names **names)
{
	struct call k = { .c = { .session = im->session, .data = im->record,
				 .len = im->record_len,
				 .op = im->library ? SV_OP_cuLibraryLoadData :
						     SV_OP_cuModuleLoadDataEx },
			  .seq = im->seq };
	const struct sv_device *d = &im->session->shared->dev[im->session->shared->device];
	unsigned int cc = d->attr[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] * 10 +
			  d->attr[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
	struct image again = { .session = im->session };
	int rc;

	*names = im->names;
	if (im->names)
		return 0;
	im->names = calloc(1, sizeof(*im->names));
	if (!im->names)
		return -ENOMEM;
	rc = image_read(&k, im->record, &again);
	if (rc > 0)
		rc = rc == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;
	if (!rc)
		rc = names_add(im->names, again.image, cc);
	image_release_bytes(&again);
	if (rc) {
		names_free(im->names);
		free(im->names);
		im->names = NULL;
		return rc;
	}
	names_sort(im->names);
	*names = im->names;
	return 0;
}

/* ------------------------------------------------------------------------------ functions */

static CUresult param_info(struct hal *h, bool kernel, CUfunction f, size_t i, size_t *off,
			   size_t *size)
{
	return kernel ? h->drv.cuKernelGetParamInfo((CUkernel)f, i, off, size) :
			h->drv.cuFuncGetParamInfo(f, i, off, size);
}

/* Single attributes may not exist; a kernel that does not compile has none. */
static void describe_attrs(struct sv_session *s, bool kernel, CUfunction f, int32_t *attr)
{
	struct hal *h = &s->hal;
	CUresult r = CUDA_SUCCESS;

	for (int i = 0; i < SV_FUNC_ATTRS; i++) {
		if (r == CUDA_SUCCESS || r == CUDA_ERROR_INVALID_VALUE) {
			r = CUDA_ERROR_INVALID_VALUE;
			if (kernel && h->drv.cuKernelGetAttribute)
				r = h->drv.cuKernelGetAttribute(&attr[i], i, (CUkernel)f, h->dev);
			else if (!kernel && h->drv.cuFuncGetAttribute)
				r = h->drv.cuFuncGetAttribute(&attr[i], i, f);
		}
		if (r)
			attr[i] = SV_ATTR_ERROR(r);
	}
}

/* Describes a function into at most cap bytes at off of the arena. */
static CUresult describe(struct sv_session *s, bool kernel, CUfunction f, uint64_t at, uint32_t cap,
			 uint32_t *param_bytes)
{
	struct hal *h = &s->hal;
	struct sv_func_info head = { 0 };
	size_t off, size, room;
	uint8_t *to = arena_at(s, at);
	CUresult r;

	if (cap < sizeof(head))
		return CUDA_ERROR_OUT_OF_MEMORY;
	room = (cap - sizeof(head)) / sizeof(head.param[0]);
	for (; !(r = param_info(h, kernel, f, head.params, &off, &size)); head.params++) {
		uint32_t p[2] = { off, size };

		if (head.params == room)
			return CUDA_ERROR_OUT_OF_MEMORY;
		if (!s->replay)		/* in a replay the client has reused the place */
			memcpy(to + sizeof(head) + head.params * sizeof(p), p, sizeof(p));
		if (off + size > head.param_bytes)
			head.param_bytes = off + size;
	}
	if (r != CUDA_ERROR_INVALID_VALUE)	/* which says that there is no such parameter */
		return r;
	describe_attrs(s, kernel, f, head.attr);
	if (!s->replay)
		memcpy(to, &head, sizeof(head));
	*param_bytes = head.param_bytes;
	return CUDA_SUCCESS;
}

static const char *name_of(struct call *k, const struct sv_by_name *a)
{
	const char *name = (const char *)(a + 1);

	if (!a->name_len || !tail_is(&k->c, sizeof(*a), a->name_len) ||
	    strnlen(name, a->name_len) != a->name_len - 1)
		return NULL;
	return name;
}

/* Binds a new kernel or function and describes it. Functions of a library belong to a context. */
static int bind_func(struct call *k, const struct sv_by_name *a, unsigned int type,
		     struct image *im, CUfunction real)
{
	struct sv_session *s = k->c.session;
	struct func *f = calloc(1, sizeof(*f));
	uint64_t ctx = type == SV_T_CUkernel ? 0 : im->library ? a->ctx : im->ctx;
	CUresult r = f ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	int rc;

	if (!r)
		r = describe(s, type == SV_T_CUkernel, real, a->info, a->cap, &f->param_bytes);
	if (r) {
		free(f);
		return r;
	}
	f->image = im;
	f->known = true;
	lock_take(&lock);
	if (!im->library && im->ctx_gone)
		rc = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else if (!handle_obj(s, im->library ? SV_T_CUlibrary : SV_T_CUmodule, im->handle))
		rc = CUDA_ERROR_INVALID_HANDLE;		/* unloaded meanwhile */
	else if (ctx && !handle_obj(s, SV_T_CUcontext, ctx))
		rc = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else
		rc = handle_bind(s, type, a->handle, (uintptr_t)real, f, ctx);
	lock_drop(&lock);
	if (rc)
		free(f);
	return rc;
}

static int get_func(struct call *k, unsigned int from, unsigned int type)
{
	const struct sv_by_name *a = k->c.data;
	struct sv_session *s = k->c.session;
	const char *name = name_of(k, a);
	CUfunction real = NULL;
	struct image *im;
	void *holder;
	int rc;

	if (!name || a->info % 8 || !arena_client(s, a->info, a->cap))
		return sv_bad(&k->c, "name or place of a function's description");
	if (!sv_is_handle(from, a->from))
		return sv_bad(&k->c, "image of a function");
	rc = sv_reserve(s, type, a->handle);
	if (rc)
		return sv_fails(&k->c, rc, "handle of a function");
	im = image_get(s, a->from, &holder);
	rc = im ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
	if (!rc && type == SV_T_CUfunction)
		rc = sv_enter(s, im->library ? a->ctx : im->ctx);
	if (!rc)
		rc = type == SV_T_CUkernel ?
			s->hal.drv.cuLibraryGetKernel((CUkernel *)&real, holder, name) :
			s->hal.drv.cuModuleGetFunction(&real, holder, name);
	if (!rc)
		rc = bind_func(k, a, type, im, real);
	if (rc)
		sv_unreserve(s, type, a->handle);
	if (im)
		image_put(im);
	return sv_fails(&k->c, rc, "context of a function");
}

int do_get_kernel(struct call *k)
{
	return get_func(k, SV_T_CUlibrary, SV_T_CUkernel);
}

int do_get_function(struct call *k)
{
	return get_func(k, SV_T_CUmodule, SV_T_CUfunction);
}

int do_func_info(struct call *k)
{
	const struct sv_func_info_req *a = k->c.data;
	struct sv_session *s = k->c.session;
	uint32_t bytes;
	struct image *im;
	CUfunction real;
	int rc;

	if (a->pad || a->info % 8 || !arena_client(s, a->info, a->cap))
		return sv_bad(&k->c, "place of a function's description");
	rc = sv_enter(s, a->ctx);
	if (rc)
		return sv_fails(&k->c, rc, "context of a function");
	im = func_get(s, a->function, &real);
	if (!im)
		return fails(k, CUDA_ERROR_INVALID_HANDLE);
	rc = describe(s, sv_is_handle(SV_T_CUkernel, a->function), real, a->info, a->cap, &bytes);
	image_put(im);
	return fails(k, rc);
}

int do_prepare(struct call *k)
{
	const struct sv_prepare *a = k->c.data;
	struct sv_session *s = k->c.session;
	uint64_t begin = now_ns();
	struct image *im;
	CUfunction f;
	int rc, regs;

	rc = sv_enter(s, a->ctx);
	if (rc)
		return sv_fails(&k->c, rc, "context of a function to prepare");
	im = func_get(s, a->function, &f);
	if (!im)
		return fails(k, CUDA_ERROR_INVALID_HANDLE);
	if (sv_is_handle(SV_T_CUkernel, a->function) && s->hal.drv.cuKernelGetFunction)
		rc = s->hal.drv.cuKernelGetFunction(&f, (CUkernel)f);
	/* The image is in the context. Several kernels may be compiled at once. */
	worker_end_turn();
	/* A replay needs the image in the context, where its variables get addresses, no more. */
	if (!rc && s->hal.drv.cuFuncLoad && !s->replay)
		rc = s->hal.drv.cuFuncLoad(f);
	else if (!rc && s->hal.drv.cuFuncGetAttribute && !s->replay)
		rc = s->hal.drv.cuFuncGetAttribute(&regs, CU_FUNC_ATTRIBUTE_NUM_REGS, f);
	image_put(im);
	stat_add(&s->stat->jit_ns, now_ns() - begin);
	return fails(k, rc);
}

static unsigned int cluster_attrs(const struct sv_clusters *a, CUlaunchAttribute *attr)
{
	unsigned int n = 0;

	if (a->given & SV_CLUSTER_SIZE) {
		attr[n].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
		memcpy(&attr[n++].value, a->size, sizeof(a->size));
	}
	if (a->given & SV_CLUSTER_PREFERRED) {
		attr[n].id = CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION;
		memcpy(&attr[n++].value, a->preferred, sizeof(a->preferred));
	}
	if (a->given & SV_CLUSTER_POLICY) {
		attr[n].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
		memcpy(&attr[n++].value, &a->policy, sizeof(a->policy));
	}
	if (a->given & SV_CLUSTER_CARVEOUT) {
		attr[n].id = CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
		memcpy(&attr[n++].value, &a->carveout, sizeof(a->carveout));
	}
	return n;
}

int do_clusters(struct call *k)
{
	const struct sv_clusters *a = k->c.data;
	struct sv_session *s = k->c.session;
	CUlaunchAttribute attr[4] = { 0 };
	CUlaunchConfig config = {
		.gridDimX = a->grid[0], .gridDimY = a->grid[1], .gridDimZ = a->grid[2],
		.blockDimX = a->block[0], .blockDimY = a->block[1], .blockDimZ = a->block[2],
		.sharedMemBytes = a->shared, .attrs = attr, .numAttrs = cluster_attrs(a, attr),
	};
	struct sv_cluster_count answer = { 0 };
	CUresult (*ask)(int *, CUfunction, const CUlaunchConfig *) =
		k->c.op == SV_OP_cuOccupancyMaxActiveClusters ?
			s->hal.drv.cuOccupancyMaxActiveClusters :
			s->hal.drv.cuOccupancyMaxPotentialClusterSize;
	struct image *im;
	CUfunction f;
	int rc;

	if (a->given & ~(SV_CLUSTER_SIZE | SV_CLUSTER_PREFERRED | SV_CLUSTER_POLICY |
			 SV_CLUSTER_CARVEOUT))
		return sv_bad(&k->c, "attributes of clusters");
	if (!ask)
		return fails(k, CUDA_ERROR_NOT_SUPPORTED);
	rc = sv_enter(s, a->ctx);
	if (rc)
		return sv_fails(&k->c, rc, "context of clusters");
	im = func_get(s, a->function, &f);
	if (!im)
		return fails(k, CUDA_ERROR_INVALID_HANDLE);
	rc = ask(&answer.n, f, &config);
	image_put(im);
	if (rc)
		return fails(k, rc);
	memcpy(k->c.reply, &answer, sizeof(answer));
	k->c.reply_len = sizeof(answer);
	return 0;
}

/* ------------------------------------------------------------------------------ variables */

static CUresult global_of(struct hal *h, uint16_t op, void *holder, const char *name,
			  CUdeviceptr *addr, size_t *len)
{
	if (op == SV_OP_cuModuleGetGlobal_v2)
		return h->drv.cuModuleGetGlobal_v2 ?
			h->drv.cuModuleGetGlobal_v2(addr, len, holder, name) :
			CUDA_ERROR_NOT_SUPPORTED;
	if (op == SV_OP_cuLibraryGetManaged)
		return h->drv.cuLibraryGetManaged ?
			h->drv.cuLibraryGetManaged(addr, len, holder, name) :
			CUDA_ERROR_NOT_SUPPORTED;
	return h->drv.cuLibraryGetGlobal ? h->drv.cuLibraryGetGlobal(addr, len, holder, name) :
					   CUDA_ERROR_NOT_SUPPORTED;
}

/* CUDA runtimes before 13 ask for a managed variable as for any other one. */
static bool is_managed(struct hal *h, uint16_t op, CUdeviceptr addr)
{
	unsigned int managed = 0;

	if (op == SV_OP_cuLibraryGetManaged)
		return true;
	return h->drv.cuPointerGetAttribute && !h->drv.cuPointerGetAttribute(&managed,
		CU_POINTER_ATTRIBUTE_IS_MANAGED, addr) && managed;
}

static void variable_told(struct image *im, uint16_t op, uint64_t ctx)
{
	lock_take(&lock);
	if (op == SV_OP_cuLibraryGetManaged)
		im->managed_seen = true;
	else if (ctx)
		see(im, ctx);
	else
		im->seen_everywhere = true;	/* in the thread's context, whichever that was */
	lock_drop(&lock);
}

int do_get_global(struct call *k)
{
	const struct sv_by_name *a = k->c.data;
	struct sv_session *s = k->c.session;
	const char *name = name_of(k, a);
	struct sv_global g = { 0 };
	CUdeviceptr addr = 0;
	struct image *im;
	size_t len = 0;
	void *holder;
	int rc = 0;

	if (!name || a->handle || (!a->cap && a->info) ||
	    (a->cap && !arena_client(s, a->info, a->cap)))
		return sv_bad(&k->c, "name of a variable");
	im = image_get(s, a->from, &holder);
	if (!im)
		return fails(k, CUDA_ERROR_INVALID_HANDLE);
	if (im->library == (k->c.op == SV_OP_cuModuleGetGlobal_v2) &&
	    !sv_is_handle(SV_T_CUmodule, a->from))
		rc = CUDA_ERROR_INVALID_HANDLE;
	if (!rc && a->ctx)
		rc = sv_enter(s, a->ctx);
	if (!rc)
		rc = global_of(&s->hal, k->c.op, holder, name, &addr, &len);
	if (!rc)
		g = (struct sv_global){ addr, len, is_managed(&s->hal, k->c.op, addr) };
	if (!rc && a->cap && !g.managed)
		rc = CUDA_ERROR_INVALID_VALUE;
	if (!rc && globals_add(im, a->ctx, addr, len))
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	if (!rc)
		variable_told(im, k->c.op, a->ctx);
	/* The host may read managed memory, and nothing that uses it has been launched yet. */
	if (!rc && a->cap && !s->replay)
		memcpy(arena_at(s, a->info), (void *)addr, len < a->cap ? len : a->cap);
	image_put(im);
	if (rc)
		return sv_fails(&k->c, rc, "context of a variable");
	memcpy(k->c.reply, &g, sizeof(g));
	k->c.reply_len = sizeof(g);
	return 0;
}

/* ------------------------------------------------------------------------------ derived */

static int derive_function(struct call *k, const struct sv_derive *a)
{
	struct sv_session *s = k->c.session;
	struct func *from, *f = calloc(1, sizeof(*f));
	struct image *im;
	CUfunction real;
	int rc;

	im = f ? func_get(s, a->from, &real) : NULL;
	if (!im) {
		free(f);
		return f ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_OUT_OF_MEMORY;
	}
	rc = s->hal.drv.cuKernelGetFunction ?
		s->hal.drv.cuKernelGetFunction(&real, (CUkernel)real) : CUDA_ERROR_NOT_SUPPORTED;
	if (!rc) {
		lock_take(&lock);
		from = handle_obj(s, SV_T_CUkernel, a->from);
		if (from)
			*f = *from;
		rc = from ? handle_bind(s, SV_T_CUfunction, a->handle, (uintptr_t)real, f, a->ctx) :
			CUDA_ERROR_INVALID_HANDLE;
		lock_drop(&lock);
	}
	if (rc)
		free(f);
	image_put(im);
	return rc;
}

static int derive_module(struct call *k, const struct sv_derive *a)
{
	struct sv_session *s = k->c.session;
	struct image *im;
	CUmodule mod;
	void *lib;
	int rc;

	im = image_get(s, a->from, &lib);
	if (!im)
		return CUDA_ERROR_INVALID_HANDLE;
	rc = s->hal.drv.cuLibraryGetModule ? s->hal.drv.cuLibraryGetModule(&mod, lib) :
					     CUDA_ERROR_NOT_SUPPORTED;
	if (!rc) {
		lock_take(&lock);
		rc = handle_obj(s, SV_T_CUlibrary, a->from) == im ?
			handle_bind(s, SV_T_CUmodule, a->handle, (uintptr_t)mod, im, a->ctx) :
			CUDA_ERROR_INVALID_HANDLE;
		lock_drop(&lock);
	}
	image_put(im);
	return rc;
}

int do_derive(struct call *k)
{
	const struct sv_derive *a = k->c.data;
	struct sv_session *s = k->c.session;
	bool module = k->c.op == SV_OP_cuLibraryGetModule;
	unsigned int type = module ? SV_T_CUmodule : SV_T_CUfunction;
	int rc;

	if (!sv_is_handle(module ? SV_T_CUlibrary : SV_T_CUkernel, a->from))
		return sv_bad(&k->c, "what a function or module is made of");
	rc = sv_reserve(s, type, a->handle);
	if (rc)
		return sv_fails(&k->c, rc, "handle of a function or module");
	rc = sv_enter(s, a->ctx);
	if (!rc)
		rc = module ? derive_module(k, a) : derive_function(k, a);
	if (rc)
		sv_unreserve(s, type, a->handle);
	return sv_fails(&k->c, rc, "context of a function or module");
}

/* ------------------------------------------------------------------------------ names */

static CUresult count_names(struct hal *h, bool lib, void *holder, unsigned int *n)
{
	if (lib)
		return h->drv.cuLibraryGetKernelCount ?
			h->drv.cuLibraryGetKernelCount(n, holder) : CUDA_ERROR_NOT_SUPPORTED;
	return h->drv.cuModuleGetFunctionCount ? h->drv.cuModuleGetFunctionCount(n, holder) :
						 CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult put_names(struct sv_session *s, bool lib, void **f, uint32_t n,
			  const struct sv_enumerate *a)
{
	struct hal *h = &s->hal;
	uint64_t at = sizeof(n);
	const char *name;
	CUresult r;

	for (uint32_t i = 0; i < n; i++) {
		size_t len;

		r = lib ? h->drv.cuKernelGetName(&name, f[i]) : h->drv.cuFuncGetName(&name, f[i]);
		if (r)
			return r;
		len = strlen(name) + 1;
		if (len > a->cap - at)
			return CUDA_ERROR_OUT_OF_MEMORY;
		memcpy(arena_at(s, a->off + at), name, len);
		at += len;
	}
	memcpy(arena_at(s, a->off), &n, sizeof(n));
	return CUDA_SUCCESS;
}

int do_enumerate(struct call *k)
{
	const struct sv_enumerate *a = k->c.data;
	struct sv_session *s = k->c.session;
	struct hal *h = &s->hal;
	bool lib = k->c.op == SV_OP_cuLibraryEnumerateKernels;
	void *holder, **f = NULL;
	struct image *im;
	unsigned int n = 0;
	int rc;

	if (a->pad || a->cap < 4 || a->off % 4 || !arena_client(s, a->off, a->cap))
		return sv_bad(&k->c, "place of names");
	if (!(lib ? h->drv.cuLibraryEnumerateKernels && h->drv.cuKernelGetName :
		    h->drv.cuModuleEnumerateFunctions && h->drv.cuFuncGetName))
		return fails(k, CUDA_ERROR_NOT_SUPPORTED);
	if (!sv_is_handle(lib ? SV_T_CUlibrary : SV_T_CUmodule, a->from))
		return sv_bad(&k->c, "image of names");
	im = image_get(s, a->from, &holder);
	if (!im)
		return fails(k, CUDA_ERROR_INVALID_HANDLE);
	rc = im->library ? 0 : sv_enter(s, im->ctx);
	if (!rc)
		rc = count_names(h, lib, holder, &n);
	if (!rc)
		f = calloc(n + 1, sizeof(*f));
	if (!rc && !f)
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	if (!rc && n)
		rc = lib ? h->drv.cuLibraryEnumerateKernels((CUkernel *)f, n, holder) :
			   h->drv.cuModuleEnumerateFunctions((CUfunction *)f, n, holder);
	if (!rc)
		rc = put_names(s, lib, f, n, a);
	free(f);
	image_put(im);
	return sv_fails(&k->c, rc, "context of names");
}
