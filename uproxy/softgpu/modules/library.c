/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library.c - CUlibrary and CUkernel: programs without a context, loaded into contexts on demand
 */
#include "module_i.h"

#include <stdlib.h>

static CUresult lib_new(struct program *p, CUlibrary *out)
{
	struct library *lib = calloc(1, sizeof(*lib));
	CUresult r = api_lock();

	if (r) {
		free(lib);
		return r;
	}
	if (lib)
		lib->kernels = calloc(program_nentries(p) + 1, sizeof(*lib->kernels));
	if (!lib || !lib->kernels) {
		program_put(p);
		free(lib);
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	lib->prog = p;
	obj_add(lib, OBJ_LIB);
	*out = (CUlibrary)lib;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
			   void **jitOptionsValues, unsigned int numJitOptions,
			   CUlibraryOption *libraryOptions, void **libraryOptionValues,
			   unsigned int numLibraryOptions)
{
	struct jit_log log = { "", "" };
	struct program *p;
	CUresult r = api_enter();

	if (r)
		return r;
	if (!library || !code || (numJitOptions && (!jitOptions || !jitOptionsValues)) ||
	    (numLibraryOptions && !libraryOptions))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < numLibraryOptions; i++)
		if ((unsigned int)libraryOptions[i] >= CU_LIBRARY_NUM_OPTIONS)
			return CUDA_ERROR_INVALID_VALUE;
	(void)libraryOptionValues;
	r = program_load(code, 0, &p, &log);
	jit_options(numJitOptions, jitOptions, jitOptionsValues, &log);
	return r ?: lib_new(p, library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
			       void **jitOptionsValues, unsigned int numJitOptions,
			       CUlibraryOption *libraryOptions, void **libraryOptionValues,
			       unsigned int numLibraryOptions)
{
	char *image;
	size_t n;
	CUresult r = api_enter();

	if (r)
		return r;
	if (!library || !fileName)
		return CUDA_ERROR_INVALID_VALUE;
	r = module_read_file(fileName, &image, &n);
	if (r)
		return r;
	if (!image_fits(image, n))
		r = CUDA_ERROR_INVALID_IMAGE;
	else
		r = cuLibraryLoadData(library, image, jitOptions, jitOptionsValues, numJitOptions,
				      libraryOptions, libraryOptionValues, numLibraryOptions);
	free(image);
	return r;
}

static CUresult lock_lib(CUlibrary h, struct library **lib)
{
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(h, OBJ_LIB))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	*lib = (struct library *)h;
	return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library)
{
	struct library *lib;
	CUresult r = lock_lib(library, &lib);

	if (r)
		return r;
	for (struct ctx *c = contexts; c; c = c->next)
		if (c->active)
			ctx_drain(c);
	if (!obj_live(lib, OBJ_LIB))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	obj_del(lib);
	for (struct ctx *c = contexts; c; c = c->next)
		for (struct module *m = c->modules, *next; m; m = next) {
			next = m->next;
			if (m->lib == lib)
				module_unload(m);
		}
	for (unsigned int i = 0; i < program_nentries(lib->prog); i++)
		if (lib->kernels[i]) {
			obj_del(lib->kernels[i]);
			free(lib->kernels[i]);
		}
	free(lib->kernels);
	managed_free(lib->prog, lib->managed);
	program_put(lib->prog);
	free(lib);
	return api_unlock(CUDA_SUCCESS);
}

CUresult library_module(struct library *lib, struct ctx *ctx, struct module **out)
{
	struct jit_log log = { "", "" };

	for (struct module *m = ctx->modules; m; m = m->next)
		if (m->lib == lib) {
			*out = m;
			return CUDA_SUCCESS;
		}
	return module_new(lib->prog, ctx, lib, out, &log);
}

static struct kernel *lib_kernel(struct library *lib, unsigned int i)
{
	struct kernel *k = lib->kernels[i];

	if (k)
		return k;
	k = calloc(1, sizeof(*k));
	if (!k)
		return NULL;
	k->lib = lib;
	k->entry = i;
	k->attrs.max_dyn = -1;
	k->attrs.carveout = -1;
	obj_add(k, OBJ_KERNEL);
	lib->kernels[i] = k;
	return k;
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
	struct library *lib;
	struct kernel *k;
	CUresult r;
	int i;

	if (!pKernel || !name)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_lib(library, &lib);
	if (r)
		return r;
	i = program_find_entry(lib->prog, name);
	if (i < 0)
		return api_unlock(CUDA_ERROR_NOT_FOUND);
	k = lib_kernel(lib, i);
	*pKernel = (CUkernel)k;
	return api_unlock(k ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
	struct library *lib;
	CUresult r;

	if (!count)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_lib(library, &lib);
	if (r)
		return r;
	*count = program_nentries(lib->prog);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary library)
{
	struct library *lib;
	CUresult r;

	if (!kernels || !numKernels)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_lib(library, &lib);
	if (r)
		return r;
	for (unsigned int i = 0; i < numKernels && i < program_nentries(lib->prog); i++) {
		kernels[i] = (CUkernel)lib_kernel(lib, i);
		if (!kernels[i])
			return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	return api_unlock(CUDA_SUCCESS);
}

/* The library's module in the current context. Success: big is held. */
static CUresult lock_lib_module(CUlibrary h, struct library **lib, struct module **m)
{
	struct ctx *ctx;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	*lib = (struct library *)h;
	r = obj_live(*lib, OBJ_LIB) ? library_module(*lib, ctx, m) : CUDA_ERROR_INVALID_HANDLE;
	return r ? api_unlock(r) : r;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
	struct library *lib;
	struct module *m;
	CUresult r;

	if (!pMod)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_lib_module(library, &lib, &m);
	if (r)
		return r;
	*pMod = (CUmodule)m;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
	const struct ptx_var *v;
	struct library *lib;
	struct module *m;
	CUresult r;
	int i;

	if (!name || (!dptr && !bytes))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_lib_module(library, &lib, &m);
	if (r)
		return r;
	i = program_find_var(lib->prog, name);
	v = i < 0 ? NULL : program_var(lib->prog, i);
	if (!v || v->space > PTX_CONST)
		return api_unlock(CUDA_ERROR_NOT_FOUND);
	if (dptr)
		*dptr = m->var_addr[i];
	if (bytes)
		*bytes = v->size;
	return api_unlock(CUDA_SUCCESS);
}

/* Needs no context: cudart calls it before it has made one. */
CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
	struct library *lib;
	CUresult r;
	int i;

	if (!name || (!dptr && !bytes))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_lib(library, &lib);
	if (r)
		return r;
	if (!lib->managed)
		r = managed_new(lib->prog, NULL, &lib->managed);
	i = program_find_var(lib->prog, name);
	if (!r && (i < 0 || !lib->managed[i]))
		r = CUDA_ERROR_NOT_FOUND;
	if (!r && dptr)
		*dptr = lib->managed[i]->va;
	if (!r && bytes)
		*bytes = program_var(lib->prog, i)->size;
	return api_unlock(r);
}

static CUresult lock_kernel(CUkernel h, struct kernel **k)
{
	CUresult r = api_lock_asked();

	if (r)
		return r;
	if (!obj_live(h, OBJ_KERNEL))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	*k = (struct kernel *)h;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
	struct func *f;
	struct ctx *ctx;
	CUresult r;

	if (!pFunc)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock_ctx(&ctx);
	if (r)
		return r;
	if (!obj_live(kernel, OBJ_KERNEL))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	r = func_resolve((CUfunction)kernel, ctx, &f);
	if (!r)
		*pFunc = (CUfunction)f;
	return api_unlock(r);
}

CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
	struct kernel *k;
	CUresult r;

	if (!pLib)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_kernel(kernel, &k);
	if (r)
		return r;
	*pLib = (CUlibrary)k->lib;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
	struct kernel *k;
	CUresult r;

	if (!name)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_kernel(hfunc, &k);
	if (r)
		return r;
	*name = program_entry(k->lib->prog, k->entry)->name;
	return api_unlock(CUDA_SUCCESS);
}

static CUresult param_info(const struct ptx_entry_info *e, size_t i, size_t *off, size_t *size)
{
	if (!off || i >= e->nparams)
		return CUDA_ERROR_INVALID_VALUE;
	*off = e->params[i].offset;
	if (size)
		*size = e->params[i].size;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
			      size_t *paramSize)
{
	struct kernel *k;
	CUresult r = lock_kernel(kernel, &k);

	return r ?: api_unlock(param_info(program_entry(k->lib->prog, k->entry), paramIndex,
					  paramOffset, paramSize));
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset,
			    size_t *paramSize)
{
	struct func *f = (struct func *)func;
	CUresult r = api_lock_asked();

	if (r)
		return r;
	if (obj_live(func, OBJ_KERNEL)) {
		api_unlock(r);
		return cuKernelGetParamInfo((CUkernel)func, paramIndex, paramOffset, paramSize);
	}
	if (!obj_live(f, OBJ_FUNC))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	return api_unlock(param_info(program_entry(f->mod->prog, f->entry), paramIndex,
				     paramOffset, paramSize));
}
