/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.c - CUmodule: a program in a context, its variables and functions; cuLink*.
 *
 * A module's variables are one block of device memory, laid out in the program's order. The block's
 * address depends on the program's text and the context's number only (place.c).
 */
#include "module_i.h"
#include "fatbin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------- variables */

void managed_free(struct program *p, struct mem **managed)
{
	if (!managed)
		return;
	for (unsigned int i = 0; i < program_nvars(p); i++)
		if (managed[i])
			mem_free(managed[i]);
	free(managed);
}

CUresult managed_new(struct program *p, struct ctx *ctx, struct mem ***out)
{
	struct device *dev = ctx ? ctx->dev : &devices[0];
	unsigned int n = program_nvars(p);
	struct mem **m = calloc(n + 1, sizeof(*m));
	CUresult r = m ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	for (unsigned int i = 0; i < n && !r; i++) {
		const struct ptx_var *v = program_var(p, i);

		if (!v->managed || v->external)
			continue;
		r = mem_place(dev, ctx, v->size ? v->size : 16, v->align, MEM_MANAGED,
			      place_variables(place_hash(p->hash, (uint32_t[]){
					      1, ctx ? ctx->place + 1 : 0, i }, 12)),
			      &m[i]);
		if (r)
			break;
		m[i]->flags = CU_MEM_ATTACH_GLOBAL;
		memset((void *)m[i]->va, 0, m[i]->len);
		if (v->init)
			memcpy((void *)m[i]->va, v->init, v->init_len);
	}
	if (r)
		managed_free(p, m);
	else
		*out = m;
	return r;
}

static CUresult place_vars(struct module *m, struct jit_log *log)
{
	size_t len = 0, align = 512;
	CUresult r;

	m->nvars = program_nvars(m->prog);
	m->var_addr = calloc(m->nvars + 1, sizeof(*m->var_addr));
	if (!m->var_addr)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned int i = 0; i < m->nvars; i++) {
		const struct ptx_var *v = program_var(m->prog, i);
		size_t a = v->align < 16 ? 16 : v->align;

		if (v->external && v->space <= PTX_CONST) {
			snprintf(log->err, sizeof(log->err), "undefined reference to '%s'",
				 v->name);
			soft_log("module load: %s", log->err);
			return CUDA_ERROR_INVALID_PTX;
		}
		if (v->size > (size_t)1 << 46)
			return CUDA_ERROR_OUT_OF_MEMORY;
		if (m->managed[i])
			continue;
		/* programs copy to and from visible symbols in bulk: cache lines of their own */
		if (v->visible && a < 256)
			a = 256;
		len = ROUND_UP(len, a);
		m->var_addr[i] = len;
		len += v->size ? v->size : 16;
		if (a > align)
			align = a;
	}
	for (unsigned int i = 0; i < m->nvars; i++)
		if (m->managed[i])
			m->var_addr[i] = m->managed[i]->va;
	if (!len)
		return CUDA_SUCCESS;
	r = mem_place(m->ctx->dev, m->ctx, len, align, MEM_MODULE,
		      place_variables(place_hash(m->prog->hash, &m->ctx->place,
						 sizeof(m->ctx->place))), &m->vars);
	if (r)
		return r;
	m->vars->owner = m;
	for (unsigned int i = 0; i < m->nvars; i++)
		if (!m->managed[i])
			m->var_addr[i] += m->vars->va;
	return CUDA_SUCCESS;
}

static void init_vars(struct module *m)
{
	if (m->vars)
		memset((void *)m->vars->va, 0, m->vars->len);
	for (unsigned int i = 0; i < m->nvars; i++) {
		const struct ptx_var *v = program_var(m->prog, i);
		uint8_t *p = (uint8_t *)m->var_addr[i];

		if (v->init && !m->managed[i])
			memcpy(p, v->init, v->init_len);
		for (uint32_t j = 0; j < v->nrelocs; j++) {
			const struct ptx_reloc *l = &v->relocs[j];
			uint64_t val = l->is_func ? ptx_func_value(l->target) :
						    m->var_addr[l->target];

			val = (val + l->addend) >> l->shift;
			memcpy(p + l->offset, &val, l->size);
		}
	}
}

/* ------------------------------------------------------------------ modules */

void module_put(struct module *m)
{
	if (--m->refs)
		return;
	for (unsigned int i = 0; i < program_nentries(m->prog); i++)
		if (m->funcs && m->funcs[i])
			free(m->funcs[i]);
	free(m->funcs);
	free(m->var_addr);
	program_put(m->prog);
	free(m);
}

CUresult module_new(struct program *p, struct ctx *ctx, struct library *lib, struct module **out,
		    struct jit_log *log)
{
	struct module *m = calloc(1, sizeof(*m));
	CUresult r;

	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->ctx = ctx;
	m->lib = lib;
	m->prog = p;
	m->refs = 1;
	p->refs++;
	m->funcs = calloc(program_nentries(p) + 1, sizeof(*m->funcs));
	r = m->funcs ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	if (!r && lib) {
		r = lib->managed ? CUDA_SUCCESS : managed_new(p, NULL, &lib->managed);
		m->managed = lib->managed;
	} else if (!r) {
		r = managed_new(p, ctx, &m->managed);
	}
	if (!r)
		r = place_vars(m, log);
	if (r) {
		if (!lib)
			managed_free(p, m->managed);
		module_put(m);
		return r;
	}
	init_vars(m);
	obj_add(m, OBJ_MODULE);
	m->next = ctx->modules;
	ctx->modules = m;
	*out = m;
	return CUDA_SUCCESS;
}

void module_unload(struct module *m)
{
	struct module **p;

	for (p = &m->ctx->modules; *p && *p != m; p = &(*p)->next)
		;
	if (*p)
		*p = m->next;
	obj_del(m);
	for (unsigned int i = 0; i < program_nentries(m->prog); i++)
		if (m->funcs[i])
			obj_del(m->funcs[i]);
	if (m->vars)
		mem_free(m->vars);
	if (!m->lib)
		managed_free(m->prog, m->managed);
	m->vars = NULL;
	m->managed = NULL;
	m->dead = true;
	module_put(m);
}

void module_free_ctx(struct ctx *ctx)
{
	while (ctx->modules)
		module_unload(ctx->modules);
}

struct func *module_func(struct module *m, unsigned int entry)
{
	struct func *f = m->funcs[entry];

	if (f)
		return f;
	f = calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	f->mod = m;
	f->entry = entry;
	f->attrs.max_dyn = -1;
	f->attrs.carveout = -1;
	obj_add(f, OBJ_FUNC);
	m->funcs[entry] = f;
	return f;
}

static CUresult load(CUmodule *module, const void *image, size_t size, struct jit_log *log)
{
	struct program *p;
	struct module *m;
	struct ctx *ctx;
	CUresult r = api_lock_ctx(&ctx);

	if (r)
		return r;
	r = capture_forbids();
	pthread_mutex_unlock(&big);
	if (r)
		return r;
	r = program_load(image, size, &p, log);
	if (r)
		return r;
	r = api_lock_ctx(&ctx);
	if (r) {
		pthread_mutex_lock(&big);
		program_put(p);
		return api_unlock(r);
	}
	r = module_new(p, ctx, NULL, &m, log);
	program_put(p);
	if (!r)
		*module = (CUmodule)m;
	return api_unlock(r);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
			    CUjit_option *options, void **optionValues)
{
	struct jit_log log = { "", "" };
	CUresult r;

	if (!module || !image || (numOptions && (!options || !optionValues)))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = load(module, image, 0, &log);
	jit_options(numOptions, options, optionValues, &log);
	return r;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
	return cuModuleLoadDataEx(module, fatCubin, 0, NULL, NULL);
}

/* Reads the whole file, and appends a NUL. */
CUresult module_read_file(const char *name, char **out, size_t *len)
{
	int fd = open(name, O_RDONLY | O_CLOEXEC);
	struct stat st;
	size_t n = 0;
	char *p;

	if (fd < 0)
		return CUDA_ERROR_FILE_NOT_FOUND;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return CUDA_ERROR_FILE_NOT_FOUND;
	}
	p = malloc(st.st_size + 1);
	if (!p) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	while (n < (size_t)st.st_size) {
		ssize_t r = read(fd, p + n, st.st_size - n);

		if (r <= 0)
			break;
		n += r;
	}
	close(fd);
	p[n] = 0;
	*out = p;
	*len = n;
	return CUDA_SUCCESS;
}

/* The size in a fatbin's header must not exceed the file. */
bool image_fits(const char *image, size_t len)
{
	struct fatbin f;

	if (len < sizeof(f))
		return true;
	memcpy(&f, image, sizeof(f));
	if (f.magic == FATBIN_WRAPPER_MAGIC)
		return false;		/* a wrapper holds addresses: not in a file */
	return f.magic != FATBIN_MAGIC || !fatbin_head(image, len, &f);
}

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
	struct jit_log log = { "", "" };
	CUresult r = api_enter();
	size_t len;
	char *image;

	if (r)
		return r;
	if (!module || !fname)
		return CUDA_ERROR_INVALID_VALUE;
	r = module_read_file(fname, &image, &len);
	if (r)
		return r;
	r = image_fits(image, len) ? load(module, image, len, &log) : CUDA_ERROR_INVALID_IMAGE;
	free(image);
	return r;
}

CUresult cuModuleUnload(CUmodule hmod)
{
	struct module *m = (struct module *)hmod;
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(m, OBJ_MODULE))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	if (m->lib)
		return api_unlock(CUDA_ERROR_NOT_PERMITTED);
	r = capture_forbids();
	if (r)
		return api_unlock(r);
	ctx_drain(m->ctx);
	if (obj_live(m, OBJ_MODULE))
		module_unload(m);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	const char *s = getenv("CUDA_MODULE_LOADING");
	CUresult r = api_enter();

	if (r)
		return r;
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = s && !strcmp(s, "EAGER") ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}

static CUresult lock_module(CUmodule h, struct module **m)
{
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(h, OBJ_MODULE))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	*m = (struct module *)h;
	return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
	struct module *m;
	struct func *f;
	CUresult r;
	int i;

	if (!hfunc || !name)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_module(hmod, &m);
	if (r)
		return r;
	i = program_find_entry(m->prog, name);
	if (i < 0)
		return api_unlock(CUDA_ERROR_NOT_FOUND);
	f = module_func(m, i);
	*hfunc = (CUfunction)f;
	return api_unlock(f ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
	struct module *m;
	CUresult r;

	if (!count)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_module(mod, &m);
	if (r)
		return r;
	*count = program_nentries(m->prog);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
	struct module *m;
	CUresult r;

	if (!functions || !numFunctions)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_module(mod, &m);
	if (r)
		return r;
	for (unsigned int i = 0; i < numFunctions && i < program_nentries(m->prog); i++) {
		functions[i] = (CUfunction)module_func(m, i);
		if (!functions[i])
			return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
	struct module *m;
	CUresult r;
	int i;

	if (!name || (!dptr && !bytes))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = lock_module(hmod, &m);
	if (r)
		return r;
	i = program_find_var(m->prog, name);
	if (i < 0 || program_var(m->prog, i)->space > PTX_CONST)
		return api_unlock(CUDA_ERROR_NOT_FOUND);
	if (dptr)
		*dptr = m->var_addr[i];
	if (bytes)
		*bytes = program_var(m->prog, i)->size;
	return api_unlock(CUDA_SUCCESS);
}

/* ------------------------------------------------------------------- linker */

/* CUlinkState: the PTX texts added so far, and the image made of them. */
struct link {
	struct obj o;
	void **texts;
	size_t *lens;
	unsigned int n;
	unsigned int nopts;
	CUjit_option *opts;
	void **values;
	char *image;
};

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues,
			 CUlinkState *stateOut)
{
	struct link *l;
	CUresult r;

	if (!stateOut || (numOptions && (!options || !optionValues)))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	l = calloc(1, sizeof(*l));
	if (!l)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	l->nopts = numOptions;
	l->opts = options;		/* the caller's, until cuLinkDestroy: as in CUDA */
	l->values = optionValues;
	obj_add(l, OBJ_LINK);
	*stateOut = (CUlinkState)l;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuLinkCreate(unsigned int numOptions, CUjit_option *options, void **optionValues,
		      CUlinkState *stateOut)
{
	return cuLinkCreate_v2(numOptions, options, optionValues, stateOut);
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
			  const char *name, unsigned int numOptions, CUjit_option *options,
			  void **optionValues)
{
	struct link *l = (struct link *)state;
	CUresult r;

	(void)name;
	(void)options;
	(void)optionValues;
	if (!data || !size || (numOptions && (!options || !optionValues)))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	if (!obj_live(l, OBJ_LINK))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	/* a "cubin" is NVRTC's PTX or an image of cuLinkComplete (libintercept/rtc) */
	if (type == CU_JIT_INPUT_OBJECT)
		r = CUDA_ERROR_NO_BINARY_FOR_GPU;
	else if (type != CU_JIT_INPUT_PTX && type != CU_JIT_INPUT_FATBINARY &&
		 type != CU_JIT_INPUT_CUBIN)
		r = type == CU_JIT_INPUT_LIBRARY ? CUDA_ERROR_NOT_SUPPORTED :
						   CUDA_ERROR_INVALID_VALUE;
	else
		r = fatbin_texts(data, size, &l->texts, &l->lens, &l->n);
	return api_unlock(r);
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size,
		       const char *name, unsigned int numOptions, CUjit_option *options,
		       void **optionValues)
{
	return cuLinkAddData_v2(state, type, data, size, name, numOptions, options, optionValues);
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
			  unsigned int numOptions, CUjit_option *options, void **optionValues)
{
	CUresult r = api_enter();
	size_t len;
	char *data;

	if (r)
		return r;
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	r = module_read_file(path, &data, &len);
	if (r)
		return r;
	if (len && image_fits(data, len))
		r = cuLinkAddData_v2(state, type, data, len, path, numOptions, options,
				     optionValues);
	else
		r = CUDA_ERROR_INVALID_IMAGE;
	free(data);
	return r;
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path,
		       unsigned int numOptions, CUjit_option *options, void **optionValues)
{
	return cuLinkAddFile_v2(state, type, path, numOptions, options, optionValues);
}

/*
 * Makes the linker's image: a fatbin of version FATBIN_LINKED with a raw PTX entry for each input,
 * which program_load() links again.
 */
static char *pack(const struct link *l, size_t *len)
{
	struct fatbin_entry e = { .kind = FATBIN_KIND_PTX, .header = sizeof(e) };
	size_t n = sizeof(struct fatbin);
	char *image, *p;

	for (unsigned int i = 0; i < l->n; i++)
		n += sizeof(e) + ROUND_UP(l->lens[i] + 1, 8);
	image = calloc(1, n);
	if (!image)
		return NULL;
	memcpy(image, &(struct fatbin){ FATBIN_MAGIC, FATBIN_LINKED, sizeof(struct fatbin),
					n - sizeof(struct fatbin) }, sizeof(struct fatbin));
	p = image + sizeof(struct fatbin);
	for (unsigned int i = 0; i < l->n; i++) {
		e.padded = ROUND_UP(l->lens[i] + 1, 8);
		memcpy(p, &e, sizeof(e));
		memcpy(p + sizeof(e), l->texts[i], l->lens[i]);
		p += sizeof(e) + e.padded;
	}
	*len = n;
	return image;
}

CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
	struct link *l = (struct link *)state;
	struct jit_log log = { "", "" };
	struct program *p;
	void **texts;
	size_t len = 0;
	CUresult r;

	if (!cubinOut)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	if (!obj_live(l, OBJ_LINK))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	texts = l->n && !l->image ? calloc(l->n, sizeof(*texts)) : NULL;
	if (!texts)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	for (unsigned int i = 0; i < l->n; i++)
		texts[i] = strdup(l->texts[i]);
	r = program_link(texts, l->lens, l->n, &p, &log);	/* only for its errors */
	if (!r) {
		program_put(p);
		l->image = pack(l, &len);
		*cubinOut = l->image;
		if (sizeOut)
			*sizeOut = len;
		r = l->image ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	jit_options(l->nopts, l->opts, l->values, &log);
	return api_unlock(r);
}

CUresult cuLinkDestroy(CUlinkState state)
{
	struct link *l = (struct link *)state;
	CUresult r = api_lock();

	if (r)
		return r;
	if (!obj_live(l, OBJ_LINK))
		return api_unlock(CUDA_ERROR_INVALID_HANDLE);
	obj_del(l);
	for (unsigned int i = 0; i < l->n; i++)
		free(l->texts[i]);
	free(l->texts);
	free(l->lens);
	free(l->image);
	free(l);
	return api_unlock(CUDA_SUCCESS);
}
