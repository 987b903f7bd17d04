/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.c - programs: PTX texts, parsed at each load; machine code, which is read and not run
 */
#include "module_i.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

CUresult program_error(int err)
{
	switch (-err) {
	case 0:
		return CUDA_SUCCESS;
	case ENOMEM:
		return CUDA_ERROR_OUT_OF_MEMORY;
	case ENOEXEC:
		return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	case ELIBACC:
		return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
	default:
		return CUDA_ERROR_INVALID_PTX;
	}
}

static void free_texts(void **texts, unsigned int n)
{
	for (unsigned int i = 0; i < n; i++)
		free(texts[i]);
	free(texts);
}

#define MACHINE_CACHE "/var/cache/singvgpu/kernels"

/* The user's: false: there is none. */
static bool user_cache(char path[4096])
{
	const char *dir = getenv("SINGVGPU_SOFT_CACHE"), *home;

	if (dir)
		return *dir && snprintf(path, 4096, "%s", dir) < 4096;
	home = getenv("XDG_CACHE_HOME");
	if (home && *home)
		return snprintf(path, 4096, "%s/singvgpu", home) < 4096;
	home = getenv("HOME");
	if (!home || !*home || snprintf(path, 4096, "%s/.cache/singvgpu", home) >= 4096)
		return false;
	*strrchr(path, '/') = 0;
	mkdir(path, 0700);
	path[strlen(path)] = '/';
	return true;
}

/*
 * The machine's cache is beside the user's, unless that is named. `singvgpu warm`, by root, sets
 * SINGVGPU_SOFT_WARM: the machine's is then written instead.
 */
static void cache_once(void)
{
	const char *machine = getenv("SINGVGPU_SOFT_MACHINE_CACHE");
	bool warm = getenv("SINGVGPU_SOFT_WARM") && !geteuid();
	char path[4096];
	int err;

	if (!machine)
		machine = getenv("SINGVGPU_SOFT_CACHE") ? "" : MACHINE_CACHE;
	if (user_cache(path)) {
		err = ptx_set_cache(path);
		if (err)
			soft_log("no cache of compiled kernels in %s: %s", path, strerror(-err));
	}
	if (*machine && warm && !strcmp(machine, MACHINE_CACHE))
		mkdir("/var/cache/singvgpu", 0755);
	err = *machine ? ptx_set_machine_cache(machine, warm) : 0;
	if (err)
		soft_log("no cache of compiled kernels in %s: %s", machine, strerror(-err));
}

/* Counts of kernels and images, for the proxy to show. */
__attribute__((visibility("default")))
void softcuda_count_kernels(struct ptx_counts *c)
{
	ptx_set_counts(c);
}

/*
 * Functions of the device runtime library that launch no kernel. Programs call the first without
 * linking the library; cudaCGGetIntrinsicHandle and cudaCGSynchronize call the others. The handle
 * is the grid's workspace, 0 for another scope. Its second word counts arrived blocks; block 0's
 * addend makes the last arrival flip the top bit. Flag 1 of CGS_sync: one thread calls, between
 * barriers of its block.
 */
static const struct builtin {
	const char *extern_of, *text;
} builtins[] = {
	{ ".extern .func cudaGraphSetConditional",
	  ".version 8.0\n.target sm_75\n.address_size 64\n"
	  ".visible .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value)\n{\n"
	  ".reg .b64 %d; .reg .b32 %r;\n"
	  "ld.param.u64 %d, [handle]; ld.param.u32 %r, [value]; st.global.u32 [%d], %r; ret;\n}\n" },
	{ "__cuda_syscall_CGS_sync",
	  ".version 8.0\n.target sm_75\n.address_size 64\n"
	  ".visible .func (.param .b64 out) __cuda_syscall_CGS_get_intrinsic_handle(.param .b32 scope)\n{\n"
	  ".reg .b64 %d, %e; .reg .b32 %s; .reg .pred %p;\n"
	  "mov.u32 %s, %envreg1; cvt.u64.u32 %d, %s; shl.b64 %d, %d, 32;\n"
	  "mov.u32 %s, %envreg2; cvt.u64.u32 %e, %s; or.b64 %d, %d, %e;\n"
	  "ld.param.u32 %s, [scope]; setp.eq.u32 %p, %s, 1; selp.b64 %d, %d, 0, %p;\n"
	  "st.param.b64 [out], %d; ret;\n}\n"
	  ".visible .func (.param .b32 out) __cuda_syscall_CGS_sync(.param .b64 handle, .param .b32 flags)\n{\n"
	  ".reg .b64 %d; .reg .b32 %n, %t, %a, %old, %now; .reg .pred %p, %one;\n"
	  "ld.param.u64 %d, [handle]; ld.param.u32 %t, [flags];\n"
	  "and.b32 %t, %t, 1; setp.ne.u32 %one, %t, 0; @%one bra $leader; barrier.sync 0;\n"
	  "mov.u32 %n, %tid.x; mov.u32 %t, %tid.y; or.b32 %n, %n, %t; mov.u32 %t, %tid.z;\n"
	  "or.b32 %n, %n, %t; setp.ne.u32 %p, %n, 0; @%p bra $done; $leader:\n"
	  "mov.u32 %n, %nctaid.x; mov.u32 %t, %nctaid.y; mul.lo.u32 %n, %n, %t;\n"
	  "mov.u32 %t, %nctaid.z; mul.lo.u32 %n, %n, %t; sub.u32 %n, 0x80000001, %n;\n"
	  "mov.u32 %a, %ctaid.x; mov.u32 %t, %ctaid.y; or.b32 %a, %a, %t; mov.u32 %t, %ctaid.z;\n"
	  "or.b32 %a, %a, %t; setp.eq.u32 %p, %a, 0; selp.u32 %a, %n, 1, %p;\n"
	  "membar.gl; atom.global.add.u32 %old, [%d+4], %a;\n"
	  "$wait: ld.volatile.global.u32 %now, [%d+4]; xor.b32 %now, %now, %old;\n"
	  "setp.ge.s32 %p, %now, 0; @%p bra $wait; membar.gl;\n"
	  "@%one bra $out;\n"
	  "$done: barrier.sync 0; $out: mov.u32 %n, 0; st.param.b32 [out], %n; ret;\n}\n" },
};

#define BUILTINS (sizeof(builtins) / sizeof(builtins[0]))

/* Appends the builtins that the first n texts declare; returns the new number of sources. */
static unsigned int add_builtins(struct ptx_source *src, void **texts, unsigned int n)
{
	unsigned int all = n;

	for (const struct builtin *b = builtins; b < builtins + BUILTINS; b++) {
		for (unsigned int i = 0; i < n; i++) {
			if (!strstr(texts[i], b->extern_of))
				continue;
			src[all++] = (struct ptx_source){ b->text, strlen(b->text) };
			break;
		}
	}
	return all;
}

CUresult program_link(void **texts, size_t *lens, unsigned int n, struct program **out,
		      struct jit_log *log)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct ptx_source *src = calloc(n + BUILTINS, sizeof(*src));
	unsigned int nsrc = n;
	struct program *p = calloc(1, sizeof(*p));
	int err = -ENOMEM;

	pthread_once(&once, cache_once);
	if (!src || !p)
		goto fail;
	for (unsigned int i = 0; i < n; i++) {
		src[i] = (struct ptx_source){ texts[i], lens[i] };
		p->hash = place_hash(p->hash, texts[i], lens[i]);
	}
	nsrc = add_builtins(src, texts, n);
	err = ptx_module_parse(src, nsrc, &p->pm, log->err, sizeof(log->err));
	if (err)
		goto fail;
	p->kernels = calloc(program_nentries(p) + 1, sizeof(*p->kernels));
	p->infos = calloc(program_nentries(p) + 1, sizeof(*p->infos));
	p->entries = calloc(program_nentries(p) + 1, sizeof(*p->entries));
	if (!p->kernels || !p->infos || !p->entries) {
		ptx_module_free(p->pm);
		free(p->kernels);
		free(p->infos);
		free(p->entries);
		err = -ENOMEM;
		goto fail;
	}
	p->refs = 1;
	p->texts = texts;
	p->ntexts = n;
	pthread_mutex_init(&p->compiling, NULL);
	pthread_cond_init(&p->changed, NULL);
	free(src);
	*out = p;
	return CUDA_SUCCESS;
fail:
	if (*log->err)
		soft_log("PTX is refused: %s", log->err);
	free(src);
	free(p);
	free_texts(texts, n);
	return program_error(err);
}

/* From a cubin, which it takes over. */
static CUresult program_machine(void *elf, size_t len, struct program **out, struct jit_log *log)
{
	struct program *p = calloc(1, sizeof(*p));
	uint64_t hash = place_hash(0, elf, len);
	int err;

	if (!p) {
		free(elf);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	err = sass_read(elf, len, &p->cubin);
	if (err) {
		snprintf(log->err, sizeof(log->err), "the machine code is damaged");
		soft_log("module load: %s", log->err);
		free(p);
		return err == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_IMAGE;
	}
	if (sass_arch(p->cubin) / 10 != profile->cc / 10 || sass_arch(p->cubin) > profile->cc) {
		snprintf(log->err, sizeof(log->err), "the machine code is for sm_%u",
			 sass_arch(p->cubin));
		soft_log("module load: %s", log->err);
		sass_free(p->cubin);
		free(p);
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	}
	p->hash = hash;
	p->refs = 1;
	pthread_mutex_init(&p->compiling, NULL);
	pthread_cond_init(&p->changed, NULL);
	*out = p;
	return CUDA_SUCCESS;
}

CUresult program_load(const void *image, size_t size, struct program **out, struct jit_log *log)
{
	void **texts = NULL;
	size_t *lens = NULL;
	unsigned int n = 0;
	bool first = true;
	size_t len;
	void *elf;
	CUresult r = fatbin_cubin(image, size, &elf, &len);

	if (!r)
		return program_machine(elf, len, out, log);
	if (r == CUDA_ERROR_NOT_FOUND)
		r = fatbin_texts(image, size, &texts, &lens, &n);
	if (r) {
		free_texts(texts, n);
		/* a framework has dozens: the first has a line, all are counted */
		if (r == CUDA_ERROR_NO_BINARY_FOR_GPU && !profile->machine_code)
			first = !ptx_count(offsetof(struct ptx_counts, no_ptx));
		if (r == CUDA_ERROR_NO_BINARY_FOR_GPU)
			snprintf(log->err, sizeof(log->err),
				 "the image holds no %sPTX for compute capability %u.%u or lower",
				 profile->machine_code ? "machine code and no " : "",
				 profile->cc / 10, profile->cc % 10);
		else
			snprintf(log->err, sizeof(log->err), "the image is not understood");
		if (first)
			soft_log("module load: %s", log->err);
	} else {
		r = program_link(texts, lens, n, out, log);
	}
	free(lens);
	return r;
}

void program_put(struct program *p)
{
	if (!p || --p->refs)
		return;
	for (unsigned int i = 0; p->pm && i < program_nentries(p); i++) {
		ptx_kernel_free(p->kernels[i]);
		free(p->infos[i]);
	}
	if (p->pm)
		ptx_module_free(p->pm);
	sass_free(p->cubin);
	free_texts(p->texts, p->ntexts);
	free(p->kernels);
	free(p->infos);
	free(p->entries);
	pthread_mutex_destroy(&p->compiling);
	pthread_cond_destroy(&p->changed);
	free(p);
}

/*
 * Does not compile: libraries raise the limit of shared memory for every kernel that they might
 * launch.
 */
CUresult program_shared(struct program *p, unsigned int entry, uint32_t *bytes)
{
	char err[256];
	int ret;

	if (program_info(p, entry)) {
		*bytes = program_info(p, entry)->static_shared;
		return CUDA_SUCCESS;
	}
	ret = ptx_shared_size(p->pm, entry, bytes, err, sizeof(err));
	if (ret)
		soft_log("kernel %s cannot be read: %s", program_entry(p, entry)->name, err);
	return program_error(ret);
}

unsigned int program_nentries(const struct program *p)
{
	return p->cubin ? sass_nentries(p->cubin) : ptx_module_nentries(p->pm);
}

const struct ptx_entry_info *program_entry(const struct program *p, unsigned int i)
{
	return p->cubin ? sass_entry(p->cubin, i) : ptx_module_entry(p->pm, i);
}

int program_find_entry(const struct program *p, const char *name)
{
	return p->cubin ? sass_find_entry(p->cubin, name) : ptx_module_find_entry(p->pm, name);
}

unsigned int program_nvars(const struct program *p)
{
	return p->cubin ? sass_nvars(p->cubin) : ptx_module_nvars(p->pm);
}

const struct ptx_var *program_var(const struct program *p, unsigned int i)
{
	return p->cubin ? sass_var(p->cubin, i) : ptx_module_var(p->pm, i);
}

int program_find_var(const struct program *p, const char *name)
{
	return p->cubin ? sass_find_var(p->cubin, name) : ptx_module_find_var(p->pm, name);
}

unsigned int program_target(const struct program *p)
{
	return p->cubin ? sass_arch(p->cubin) : ptx_module_target(p->pm);
}

void jit_options(unsigned int n, CUjit_option *opts, void **values, const struct jit_log *log)
{
	char *buf[2] = { NULL, NULL };
	size_t len[2] = { 0, 0 };
	const char *text[2] = { log->info, log->err };

	for (unsigned int i = 0; i < n; i++) {
		if (opts[i] == CU_JIT_INFO_LOG_BUFFER)
			buf[0] = values[i];
		else if (opts[i] == CU_JIT_ERROR_LOG_BUFFER)
			buf[1] = values[i];
		else if (opts[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
			len[0] = (unsigned int)(uintptr_t)values[i];
		else if (opts[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
			len[1] = (unsigned int)(uintptr_t)values[i];
	}
	for (unsigned int i = 0; i < n; i++) {
		unsigned int which = opts[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
		size_t used = strlen(text[which]);

		if (opts[i] == CU_JIT_WALL_TIME) {
			float zero = 0;

			memcpy(&values[i], &zero, sizeof(zero));
			continue;
		}
		if (opts[i] != CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES && !which)
			continue;
		if (buf[which] && len[which]) {
			snprintf(buf[which], len[which], "%s", text[which]);
			used = used < len[which] ? used + 1 : len[which];
		}
		values[i] = (void *)(uintptr_t)(*text[which] ? used : 0);
	}
}
