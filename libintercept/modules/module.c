// SPDX-License-Identifier: Apache-2.0
/*
 * module.c - modules, libraries, and the functions and variables in them
 *
 * The proxy is asked once for a function: its image's list keeps it, with the layout of its
 * parameters and its attributes, so that a launch and most queries need no answer.
 */
#include "arena.h"
#include "context.h"
#include "cuda_hooks.h"
#include "image.h"
#include "managedvar.h"
#include "memory_i.h"
#include "module.h"
#include "object.h"
#include "send.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARAMS_MAX 4096
#define INFO_ROOM (sizeof(struct sv_func_info) + PARAMS_MAX * 8)

static struct lock LOCK_APART lock = LOCK_INIT(LOCK_IMAGES);	/* images' lists of functions */

/* ------------------------------------------------------------------------------ loading, unloading */

static CUresult load(unsigned int type, uint16_t op, const void *image, struct image_options *o,
		     uint64_t *handle)
{
	struct context *ctx = NULL;
	struct image *im;
	CUresult rc;

	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	if (type == SV_T_CUmodule)
		TRY(context_current(&ctx));
	else
		TRY(session_check());
	im = obj_new(type, ctx);
	if (!im)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = image_load(op, im, ctx, image, o);
	if (rc)
		obj_free(type, &im->o);
	else
		*handle = im->o.handle;
	return rc;
}

static CUresult load_module(CUmodule *out, const void *image, struct image_options *o)
{
	uint64_t h;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(load(SV_T_CUmodule, SV_OP_cuModuleLoadDataEx, image, o, &h));
	*out = (CUmodule)(uintptr_t)h;
	return CUDA_SUCCESS;
}

static CUresult load_library(CUlibrary *out, const void *image, struct image_options *o)
{
	uint64_t h;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(load(SV_T_CUlibrary, SV_OP_cuLibraryLoadData, image, o, &h));
	*out = (CUlibrary)(uintptr_t)h;
	return CUDA_SUCCESS;
}

/* A file's content with a NUL behind it, which the caller frees. */
static CUresult read_file(const char *name, void **out)
{
	int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	struct stat st;
	char *p = NULL;
	size_t n = 0;

	if (fd < 0)
		return name ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode))
		p = malloc(st.st_size + 1);
	while (p && n < (size_t)st.st_size) {
		ssize_t r = read(fd, p + n, st.st_size - n);

		if (r <= 0 && errno != EINTR)
			break;
		n += r > 0 ? r : 0;
	}
	close(fd);
	if (!p)
		return CUDA_ERROR_INVALID_IMAGE;
	p[n] = 0;
	*out = p;
	return CUDA_SUCCESS;
}

API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int n, CUjit_option *opt,
				void **values)
{
	struct image_options o = { .n = n, .opt = opt, .values = values };

	if (n && (!opt || !values))
		return CUDA_ERROR_INVALID_VALUE;
	return load_module(out, image, &o);
}

API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	return cuModuleLoadDataEx(out, image, 0, NULL, NULL);
}

API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
	return cuModuleLoadDataEx(out, image, 0, NULL, NULL);
}

API CUresult cuModuleLoad(CUmodule *out, const char *name)
{
	void *image;
	CUresult rc;

	TRY(read_file(name, &image));
	rc = cuModuleLoadData(out, image);
	free(image);
	return rc;
}

API CUresult cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *opt, void **values,
			       unsigned int n, CUlibraryOption *lopt, void **lvalues,
			       unsigned int nl)
{
	struct image_options o = { .n = n, .opt = opt, .values = values, .n_lib = nl,
				   .lib_opt = lopt, .lib_values = lvalues };

	if ((n && (!opt || !values)) || (nl && !lopt))
		return CUDA_ERROR_INVALID_VALUE;
	return load_library(out, code, &o);
}

API CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *name, CUjit_option *opt,
				   void **values, unsigned int n, CUlibraryOption *lopt,
				   void **lvalues, unsigned int nl)
{
	void *image;
	CUresult rc;

	TRY(read_file(name, &image));
	rc = cuLibraryLoadData(out, image, opt, values, n, lopt, lvalues, nl);
	free(image);
	return rc;
}

/* Under the lock. */
static void functions_gone(struct function *list)
{
	assert_held(&lock);
	for (struct function *f = list, *next; f; f = next) {
		next = f->next;
		functions_gone(f->derived);
		if (!f->kernel)
			free((void *)f->name);
		free(f->info);
		verdict_free(f);
		obj_free(obj_type(&f->o), &f->o);
	}
}

static void function_gone(struct function *f)
{
	struct function **p;

	lock_take(&lock);
	for (p = f->kernel ? &f->kernel->derived : &f->image->functions; *p; p = &(*p)->next) {
		if (*p != f)
			continue;
		*p = f->next;
		f->next = NULL;
		functions_gone(f);
		break;
	}
	lock_drop(&lock);
}

static void leave_library(struct image *im)
{
	struct image **p;

	lock_take(&lock);
	for (p = &im->of->modules; *p && *p != im; p = &(*p)->next)
		;
	if (*p)
		*p = im->next;
	lock_drop(&lock);
}

static void image_gone(struct image *im)
{
	struct image *m;

	while ((m = im->modules)) {
		image_gone(m);
		obj_free(SV_T_CUmodule, &m->o);
	}
	if (im->of)
		leave_library(im);
	lock_take(&lock);
	functions_gone(im->functions);
	im->functions = NULL;
	lock_drop(&lock);
	memory_drop_globals(im);
	managedvar_drop(im);
	if (im->arena)
		arena_free(im->arena);
	im->arena = 0;
	free(im->source);
	im->source = NULL;
}

void module_object_gone(struct obj *o, unsigned int type)
{
	if (type == SV_T_CUmodule)
		image_gone((struct image *)o);
	if (type == SV_T_CUfunction)
		function_gone((struct function *)o);
}

static CUresult unload(struct image *im, uint16_t op, struct session *from)
{
	struct sv_image_end a = { im->o.handle };

	ON(from);
	return send_sync(op, &a, sizeof(a), NULL, 0, NULL, 0);
}

API CUresult cuModuleUnload(CUmodule m)
{
	struct image *im = obj_find(SV_T_CUmodule, sv_u64(m));
	CUresult rc;

	TRY(session_check());
	if (!im)
		return CUDA_ERROR_INVALID_HANDLE;
	if (im->of)
		return CUDA_ERROR_NOT_PERMITTED;	/* it is unloaded with its library */
	rc = unload(im, SV_OP_cuModuleUnload, im->o.ctx->session);
	image_gone(im);
	obj_free(SV_T_CUmodule, &im->o);
	return rc;
}

API CUresult cuLibraryUnload(CUlibrary l)
{
	struct image *im = obj_find(SV_T_CUlibrary, sv_u64(l));
	CUresult rc = CUDA_SUCCESS, one;

	TRY(session_check());
	if (!im)
		return CUDA_ERROR_INVALID_HANDLE;
	for (int i = 0; i < process.devices; i++) {
		if (!(im->in & 1u << i))
			continue;
		one = unload(im, SV_OP_cuLibraryUnload, &sessions[i]);
		rc = rc ? rc : one;
	}
	image_gone(im);
	obj_free(SV_T_CUlibrary, &im->o);
	return rc;
}

/* -------------------------------------------------------------------------------- functions */

/* Whether all parameters lie in the buffer, into which a launch copies them unchecked. */
static bool is_layout(const struct sv_func_info *info)
{
	for (uint32_t i = 0; i < info->params; i++)
		if (info->param[i].size > info->param_bytes ||
		    info->param[i].off > info->param_bytes - info->param[i].size)
			return false;
	return true;
}

/* Checks a copy, since the answer lies in the arena, where the proxy can still write. */
static CUresult learn(struct function *f, const struct sv_func_info *in)
{
	uint32_t params = __atomic_load_n(&in->params, __ATOMIC_RELAXED);
	size_t len = sizeof(*in) + params * sizeof(in->param[0]);
	struct sv_func_info *info;

	if (params > PARAMS_MAX)
		return CUDA_ERROR_UNKNOWN;
	info = malloc(len);
	if (!info)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(info, in, len);
	info->params = params;
	if (!is_layout(info)) {
		free(info);
		return CUDA_ERROR_UNKNOWN;
	}
	f->info = info;
	f->max_threads = info->attr[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
	f->dynamic_shared = info->attr[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
	return CUDA_SUCCESS;
}

/* Has the proxy look up a function of this name, which is f from then on; learns of it if it is new. */
static CUresult ask(struct image *im, uint16_t op, const char *name, struct function *f)
{
	const struct context *ctx = im->o.ctx ?: thread.ctx;
	struct sv_by_name a = { .ctx = ctx ? ctx->o.handle : 0,
				.from = im->o.handle, .handle = f->o.handle, .cap = INFO_ROOM,
				.name_len = strlen(name) + 1 };
	void *info = arena_reply(INFO_ROOM, &a.info);
	CUresult rc;

	if (!info)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = send_sync(op, &a, sizeof(a), name, a.name_len, NULL, 0);
	if (!rc && !f->info)
		rc = learn(f, info);
	arena_reply_done(a.info);
	return rc;
}

static CUresult get_function(struct image *im, unsigned int type, uint16_t op, const char *name,
			     struct function **out)
{
	struct function *f;
	CUresult rc;

	lock_take(&lock);
	for (f = im->functions; f && strcmp(f->name, name); f = f->next)
		;
	lock_drop(&lock);
	*out = f;
	if (f)
		return CUDA_SUCCESS;
	f = obj_new(type, im->o.ctx);
	if (!f)
		return CUDA_ERROR_OUT_OF_MEMORY;
	f->image = im;
	f->in = 1u << device_of(here);
	f->name = strdup(name);
	rc = f->name ? ask(im, op, name, f) : CUDA_ERROR_OUT_OF_MEMORY;
	if (rc) {
		free((void *)f->name);
		free(f->info);
		obj_free(type, &f->o);
		return rc;
	}
	lock_take(&lock);
	f->next = im->functions;
	im->functions = f;
	lock_drop(&lock);
	*out = f;
	return CUDA_SUCCESS;
}

/* --------------------------------------------------------- libraries and kernels on all devices */

/* The library is loaded for the session `here`. process.lock is held. */
static CUresult library_here(struct image *im)
{
	uint32_t bit = 1u << device_of(here);

	assert_held(&process.lock);
	if (im->in & bit)
		return CUDA_SUCCESS;
	TRY(image_load_again(im));
	__atomic_fetch_or(&im->in, bit, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

/* The same of a kernel, with the attributes that the program has set. process.lock is held. */
static CUresult kernel_here(struct function *k)
{
	uint32_t bit = 1u << device_of(here);

	assert_held(&process.lock);
	if (k->in & bit)
		return CUDA_SUCCESS;
	TRY(library_here(k->image));
	TRY(ask(k->image, SV_OP_cuLibraryGetKernel, k->name, k));
	for (int i = 0; i < SV_FUNC_ATTRS; i++) {
		struct sv_cuKernelSetAttribute a = { .kernel = k->o.handle, .attrib = i,
						     .val = k->info->attr[i],
						     .dev = process.visible[device_of(here)] };

		if (k->set & 1ull << i)
			TRY(send_sync(SV_OP_cuKernelSetAttribute, &a, sizeof(a), NULL, 0, NULL, 0));
	}
	__atomic_fetch_or(&k->in, bit, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

static CUresult bring(const struct obj *o)
{
	CUresult rc;

	if (thread.in_callback)
		return CUDA_ERROR_NOT_PERMITTED;
	lock_take(&process.lock);
	rc = obj_type(o) == SV_T_CUkernel ? kernel_here((struct function *)o) :
		library_here((struct image *)o);
	lock_drop(&process.lock);
	return rc;
}

CUresult image_here(const struct obj *o)
{
	uint32_t in;

	if (obj_type(o) == SV_T_CUkernel)
		/* pairs with kernel_here() */
		in = __atomic_load_n(&((const struct function *)o)->in, __ATOMIC_ACQUIRE);
	else if (obj_type(o) == SV_T_CUlibrary)
		/* pairs with library_here() */
		in = __atomic_load_n(&((const struct image *)o)->in, __ATOMIC_ACQUIRE);
	else
		return CUDA_SUCCESS;
	return likely(in & 1u << device_of(here)) ? CUDA_SUCCESS : bring(o);
}

/* The module m, whose context must be on the device of `here`. */
static CUresult module_here(CUmodule m, struct image **out)
{
	*out = obj_find(SV_T_CUmodule, sv_u64(m));
	return *out && (*out)->o.ctx->session == here ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult library(CUlibrary l, struct image **out)
{
	*out = obj_find(SV_T_CUlibrary, sv_u64(l));
	return *out ? image_here(&(*out)->o) : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name)
{
	struct context *ctx;
	struct function *f;
	struct image *im;

	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(module_here(m, &im));
	TRY(get_function(im, SV_T_CUfunction, SV_OP_cuModuleGetFunction, name, &f));
	*out = (CUfunction)(uintptr_t)f->o.handle;
	return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary l, const char *name)
{
	struct function *f;
	struct image *im;

	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	TRY(library(l, &im));
	TRY(get_function(im, SV_T_CUkernel, SV_OP_cuLibraryGetKernel, name, &f));
	*out = (CUkernel)(uintptr_t)f->o.handle;
	return CUDA_SUCCESS;
}

static CUresult kernel(CUkernel k, struct function **out)
{
	TRY(session_check());
	*out = obj_find(SV_T_CUkernel, sv_u64(k));
	return *out ? image_here(&(*out)->o) : CUDA_ERROR_INVALID_HANDLE;
}

/* A function of a context on the device of `here`, or a kernel. */
static CUresult function(CUfunction f, struct function **out)
{
	TRY(session_check());
	*out = function_find(f);
	if (!*out || ((*out)->o.ctx && (*out)->o.ctx->session != here))
		return CUDA_ERROR_INVALID_HANDLE;
	return image_here(&(*out)->o);
}

/* A new object of the type, which op derives from `from` in the context. */
static CUresult derive(uint16_t op, unsigned int type, const struct obj *from, struct context *ctx,
		       void **out)
{
	struct obj *o = obj_new(type, ctx);
	struct sv_derive a;
	CUresult rc;

	if (!o)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a = (struct sv_derive){ ctx->o.handle, from->handle, o->handle };
	rc = send_sync(op, &a, sizeof(a), NULL, 0, NULL, 0);
	if (rc)
		obj_free(type, o);
	else
		*out = o;
	return rc;
}

static CUresult function_of(struct function *k, struct context *ctx, struct function **out)
{
	struct function *f;
	CUresult rc;
	void *o;

	TRY(derive(SV_OP_cuKernelGetFunction, SV_T_CUfunction, &k->o, ctx, &o));
	f = o;
	rc = learn(f, k->info);
	if (rc) {
		obj_free(SV_T_CUfunction, &f->o);
		return rc;
	}
	f->image = k->image;
	f->kernel = k;
	f->name = k->name;
	lock_take(&lock);
	f->next = k->derived;
	k->derived = f;
	lock_drop(&lock);
	*out = f;
	return CUDA_SUCCESS;
}

static CUresult function_in(struct function *k, struct context *ctx, struct function **out)
{
	struct function *f;

	lock_take(&lock);
	for (f = k->derived; f && f->o.ctx != ctx; f = f->next)
		;
	lock_drop(&lock);
	*out = f;
	return f ? CUDA_SUCCESS : function_of(k, ctx, out);
}

API CUresult cuKernelGetFunction(CUfunction *out, CUkernel handle)
{
	struct context *ctx;
	struct function *k, *f;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(kernel(handle, &k));
	TRY(context_current(&ctx));
	TRY(function_in(k, ctx, &f));
	*out = (CUfunction)(uintptr_t)f->o.handle;
	return CUDA_SUCCESS;
}

static CUresult module_of(struct image *l, struct context *ctx, struct image **out)
{
	struct image *m;
	void *o;

	TRY(derive(SV_OP_cuLibraryGetModule, SV_T_CUmodule, &l->o, ctx, &o));
	m = o;
	m->of = l;
	lock_take(&lock);
	m->next = l->modules;
	l->modules = m;
	lock_drop(&lock);
	*out = m;
	return CUDA_SUCCESS;
}

/* A library outlives contexts, and has one module per context. */
API CUresult cuLibraryGetModule(CUmodule *out, CUlibrary handle)
{
	struct image *l, *m;
	struct context *ctx;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	TRY(library(handle, &l));
	lock_take(&lock);
	for (m = l->modules; m && m->o.ctx != ctx; m = m->next)
		;
	lock_drop(&lock);
	if (!m)
		TRY(module_of(l, ctx, &m));
	*out = (CUmodule)(uintptr_t)m->o.handle;
	return CUDA_SUCCESS;
}

/* A kernel that alternates between contexts has a function in each that knows if it is prepared. */
CUresult function_prepare(struct context *ctx, struct function *fn)
{
	struct function *f = fn;
	struct sv_prepare a;

	if (fn->o.ctx && fn->o.ctx->session != here)
		return CUDA_ERROR_INVALID_HANDLE;
	TRY(image_here(&fn->o));
	if (fn->prepared && !fn->o.ctx)
		TRY(function_in(fn, ctx, &f));
	if (f->prepared != ctx->o.handle) {
		a = (struct sv_prepare){ ctx->o.handle, f->o.handle };
		TRY(send_sync(SV_OP_X_PREPARE, &a, sizeof(a), NULL, 0, NULL, 0));
		f->prepared = ctx->o.handle;
	}
	fn->prepared = ctx->o.handle;
	return CUDA_SUCCESS;
}

CUresult function_load(struct context *ctx, struct function *fn)
{
	struct function *f;

	return fn->o.ctx || fn->prepared == ctx->o.handle ? CUDA_SUCCESS : function_in(fn, ctx, &f);
}

/* By hand, since the proxy's worker has to load it in this thread's current context. */
CUresult sv_hook_cuFuncLoad(CUfunction handle, int per_thread, int *done)
{
	struct context *ctx;
	struct function *f;

	(void)per_thread;
	*done = 1;
	TRY(function(handle, &f));
	TRY(context_current(&ctx));
	return function_ready(ctx, f);
}

/* -------------------------------------------------------------------- attributes of functions */

static CUresult attribute(const struct function *f, CUfunction_attribute attr, int *out)
{
	if (!out || (unsigned int)attr >= SV_FUNC_ATTRS)
		return CUDA_ERROR_INVALID_VALUE;
	if (SV_ATTR_IS_ERROR(f->info->attr[attr]))
		return (CUresult)(f->info->attr[attr] - INT32_MIN);
	*out = f->info->attr[attr];
	return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *out, CUfunction_attribute attr, CUfunction handle)
{
	struct function *f;

	TRY(function(handle, &f));
	return attribute(f, attr, out);
}

API CUresult cuKernelGetAttribute(int *out, CUfunction_attribute attr, CUkernel handle, CUdevice dev)
{
	struct function *f;

	TRY(kernel(handle, &f));
	if (!session_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	return attribute(f, attr, out);
}

/* Libraries set this one before each launch, to what it is. */
static bool same(const struct function *f, CUfunction_attribute attr, int value)
{
	return attr == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && f->dynamic_shared == value;
}

static void changed(struct function *f, CUfunction_attribute attr, int value)
{
	if (same(f, attr, value))
		return;
	__atomic_add_fetch(&f->changes, 1, __ATOMIC_RELEASE);
	if (f->kernel)
		__atomic_add_fetch(&f->kernel->changes, 1, __ATOMIC_RELEASE);
	if ((unsigned int)attr >= SV_FUNC_ATTRS)
		return;
	f->info->attr[attr] = value;
	if (attr == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
		f->dynamic_shared = value;
}

CUresult sv_hook_cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attr, int value,
				    int per_thread, int *done)
{
	struct sv_cuFuncSetAttribute a = { .hfunc = sv_u64(handle), .attrib = attr,
					   .value = value };
	struct context *ctx;
	struct function *f;

	(void)per_thread;
	*done = 1;
	TRY(function(handle, &f));
	TRY(context_current(&ctx));
	if (same(f, attr, value))
		return CUDA_SUCCESS;
	a.ctx = ctx->o.handle;
	TRY(send_sync(SV_OP_cuFuncSetAttribute, &a, sizeof(a), NULL, 0, NULL, 0));
	changed(f, attr, value);
	return CUDA_SUCCESS;
}

CUresult sv_hook_cuKernelSetAttribute(CUfunction_attribute attr, int value, CUkernel handle,
				      CUdevice dev, int per_thread, int *done)
{
	struct sv_cuKernelSetAttribute a = { .kernel = sv_u64(handle), .attrib = attr,
					     .val = value };
	struct function *f, *d;
	bool all;

	(void)per_thread;
	*done = 1;
	TRY(kernel(handle, &f));
	if (!session_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	lock_take(&lock);
	for (d = f->derived; d && same(d, attr, value); d = d->next)
		;
	all = !d && same(f, attr, value);
	lock_drop(&lock);
	if (all)
		return CUDA_SUCCESS;
	/* Devices of the process that have the kernel get the attribute, too: f->info is for all. */
	for (int i = 0; i < process.devices; i++) {
		if (!(f->in & 1u << i))
			continue;
		ON(&sessions[i]);
		a.dev = process.visible[i];
		TRY(send_sync(SV_OP_cuKernelSetAttribute, &a, sizeof(a), NULL, 0, NULL, 0));
	}
	changed(f, attr, value);
	lock_take(&lock);
	if ((unsigned int)attr < SV_FUNC_ATTRS)
		f->set |= 1ull << attr;
	for (f = f->derived; f; f = f->next)
		changed(f, attr, value);
	lock_drop(&lock);
	return CUDA_SUCCESS;
}

static CUresult parameter(const struct function *f, size_t i, size_t *off, size_t *size)
{
	if (!off || i >= f->info->params)
		return CUDA_ERROR_INVALID_VALUE;
	*off = f->info->param[i].off;
	if (size)
		*size = f->info->param[i].size;
	return CUDA_SUCCESS;
}

API CUresult cuFuncGetParamInfo(CUfunction handle, size_t i, size_t *off, size_t *size)
{
	struct function *f;

	TRY(function(handle, &f));
	return parameter(f, i, off, size);
}

API CUresult cuKernelGetParamInfo(CUkernel handle, size_t i, size_t *off, size_t *size)
{
	struct function *f;

	TRY(kernel(handle, &f));
	return parameter(f, i, off, size);
}

API CUresult cuFuncGetName(const char **name, CUfunction handle)
{
	struct function *f;

	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(function(handle, &f));
	*name = f->name;
	return CUDA_SUCCESS;
}

API CUresult cuKernelGetName(const char **name, CUkernel handle)
{
	return cuFuncGetName(name, (CUfunction)handle);
}

API CUresult cuFuncGetModule(CUmodule *out, CUfunction handle)
{
	struct function *f;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(function(handle, &f));
	if (f->kernel)
		return cuLibraryGetModule(out, (CUlibrary)(uintptr_t)f->image->o.handle);
	*out = (CUmodule)(uintptr_t)f->image->o.handle;
	return CUDA_SUCCESS;
}

API CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel handle)
{
	struct function *f;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(kernel(handle, &f));
	*out = (CUlibrary)(uintptr_t)f->image->o.handle;
	return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------ enumeration */

#define NAMES_ROOM (16u << 20)

static CUresult names(struct image *im, uint16_t op, void *arg, unsigned int max,
		      CUresult (*each)(struct image *im, const char *name, unsigned int i,
				       void *arg))
{
	struct sv_enumerate a = { .from = im->o.handle, .cap = NAMES_ROOM };
	char *at = arena_reply(NAMES_ROOM, &a.off), *end = at + NAMES_ROOM;
	uint32_t n;
	CUresult rc;

	if (!at)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = send_sync(op, &a, sizeof(a), NULL, 0, NULL, 0);
	memcpy(&n, at, sizeof(n));
	at += sizeof(n);
	for (unsigned int i = 0; !rc && i < n && i < max; i++) {
		size_t len = strnlen(at, end - at);

		if (at + len == end)
			rc = CUDA_ERROR_UNKNOWN;
		else
			rc = each(im, at, i, arg);
		at += len + 1;
	}
	arena_reply_done(a.off);
	return rc;
}

static CUresult one_function(struct image *im, const char *name, unsigned int i, void *arg)
{
	struct function *f;

	TRY(get_function(im, SV_T_CUfunction, SV_OP_cuModuleGetFunction, name, &f));
	((CUfunction *)arg)[i] = (CUfunction)(uintptr_t)f->o.handle;
	return CUDA_SUCCESS;
}

static CUresult one_kernel(struct image *im, const char *name, unsigned int i, void *arg)
{
	struct function *f;

	TRY(get_function(im, SV_T_CUkernel, SV_OP_cuLibraryGetKernel, name, &f));
	((CUkernel *)arg)[i] = (CUkernel)(uintptr_t)f->o.handle;
	return CUDA_SUCCESS;
}

API CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned int n, CUmodule m)
{
	struct image *im;

	TRY(session_check());
	if (!out || !n)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(module_here(m, &im));
	return names(im, SV_OP_cuModuleEnumerateFunctions, out, n, one_function);
}

API CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned int n, CUlibrary l)
{
	struct image *im;

	TRY(session_check());
	if (!out || !n)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(library(l, &im));
	return names(im, SV_OP_cuLibraryEnumerateKernels, out, n, one_kernel);
}

/* -------------------------------------------------------------------------------- variables */

/* Copies the variable's bytes, too, since the host may read it before the first launch. */
static CUresult bring_managed(struct image *im, uint16_t op, struct sv_by_name *a, const char *name,
			      struct sv_global *g)
{
	void *bytes;
	CUresult rc;

	if (g->len > UINT32_MAX)
		return sv_unsupported("a __managed__ variable", "it has more than 4 GiB");
	bytes = arena_reply(g->len, &a->info);
	if (!bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a->cap = g->len;
	rc = send_sync(op, a, sizeof(*a), name, a->name_len, g, sizeof(*g));
	if (!rc)
		rc = managedvar_add(g->addr, g->len, im, bytes);
	arena_reply_done(a->info);
	return rc;
}

/* Looks up a variable; managed ones belong to no context. */
static CUresult variable(struct image *im, uint16_t op, const char *name, CUdeviceptr *addr,
			 size_t *len)
{
	struct sv_by_name a = { .from = im->o.handle };
	struct sv_global g;

	if (!name || (!addr && !len))
		return CUDA_ERROR_INVALID_VALUE;
	if (op != SV_OP_cuLibraryGetManaged && thread.ctx)
		a.ctx = thread.ctx->o.handle;
	a.name_len = strlen(name) + 1;
	TRY(send_sync(op, &a, sizeof(a), name, a.name_len, &g, sizeof(g)));
	if (g.managed)
		TRY(bring_managed(im, op, &a, name, &g));
	TRY(memory_add_global(g.addr, g.len, im));
	if (addr)
		*addr = g.addr;
	if (len)
		*len = g.len;
	return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *addr, size_t *len, CUmodule m, const char *name)
{
	struct context *ctx;
	struct image *im;

	TRY(context_current(&ctx));
	TRY(module_here(m, &im));
	return variable(im, SV_OP_cuModuleGetGlobal_v2, name, addr, len);
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *addr, size_t *len, CUlibrary l, const char *name)
{
	struct context *ctx;
	struct image *im;

	TRY(context_current(&ctx));
	TRY(library(l, &im));
	return variable(im, SV_OP_cuLibraryGetGlobal, name, addr, len);
}

API CUresult cuLibraryGetManaged(CUdeviceptr *addr, size_t *len, CUlibrary l, const char *name)
{
	struct image *im;

	TRY(session_check());
	TRY(library(l, &im));
	return variable(im, SV_OP_cuLibraryGetManaged, name, addr, len);
}
