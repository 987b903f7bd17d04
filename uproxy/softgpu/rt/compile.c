// SPDX-License-Identifier: Apache-2.0
/*
 * compile.c - compiles an entry into executable code: cache, unit, LLVM, loader
 *
 * The key of the cache covers the module's texts, the entry's name, the compiler's build, the CPU and
 * SINGVGPU_SOFT_CPU.
 */
#include <cpuid.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ptx_i.h"
#include "rt_cache.h"

#ifndef PTX_BUILD_ID
#define PTX_BUILD_ID "unknown"
#endif

static pthread_once_t jit_once = PTHREAD_ONCE_INIT;
static jit_compile_fn jit_fn;
static char jit_error[256];

/* -------------------------------------------------------------------------------- counts */

static pthread_mutex_t counts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ptx_counts own_counts;
static struct ptx_counts *counts = &own_counts;	/* set before the first kernel */
static unsigned int compiling;			/* counts_lock: threads in LLVM */

void ptx_set_counts(struct ptx_counts *c)
{
	counts = c ?: &own_counts;
}

uint64_t ptx_count(size_t field)
{
	return __atomic_fetch_add((uint64_t *)((char *)counts + field), 1, __ATOMIC_RELAXED);
}

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void compile_begins(void)
{
	pthread_mutex_lock(&counts_lock);
	if (!compiling++)
		__atomic_store_n(&counts->since, clock_ns(), __ATOMIC_RELAXED);
	pthread_mutex_unlock(&counts_lock);
}

static void compile_ends(bool ok)
{
	pthread_mutex_lock(&counts_lock);
	if (!--compiling) {
		__atomic_fetch_add(&counts->ns, clock_ns() - counts->since, __ATOMIC_RELAXED);
		__atomic_store_n(&counts->since, 0, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&counts_lock);
	ptx_count(ok ? offsetof(struct ptx_counts, compiled) : offsetof(struct ptx_counts, failed));
}

/* ------------------------------------------------------------------------------ compiling */

/* libsoftjit.so lies beside the library (or program) that holds this code. */
static void load_jit(void)
{
	char path[4096];
	Dl_info di;
	void *h = NULL;
	char *slash;

	if (dladdr((void *)ptx_compile, &di) && di.dli_fname) {
		snprintf(path, sizeof(path) - 32, "%s", di.dli_fname);
		slash = strrchr(path, '/');
		strcpy(slash ? slash + 1 : path, "libsoftjit.so");
		if (slash)
			h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	}
	if (!h)
		h = dlopen("libsoftjit.so", RTLD_NOW | RTLD_LOCAL);
	if (h)
		jit_fn = (jit_compile_fn)dlsym(h, "jit_compile");
	if (!jit_fn)
		snprintf(jit_error, sizeof(jit_error), "%s", dlerror());
}

/* SINGVGPU_SOFT_CPU: the CPU level to compile for; "": this CPU. */
static int cpu_level(const char **level, char *err, size_t errlen)
{
	const char *s = getenv("SINGVGPU_SOFT_CPU");

	*level = "";
	if (!s || !*s || !strcmp(s, "native"))
		return 0;
	if (!strcmp(s, "x86-64-v3") && __builtin_cpu_supports("x86-64-v3"))
		*level = "x86-64-v3";
	else if (!strcmp(s, "x86-64-v4") && __builtin_cpu_supports("x86-64-v4"))
		*level = "x86-64-v4";
	else
		snprintf(err, errlen, "SINGVGPU_SOFT_CPU is native, x86-64-v3 or x86-64-v4, and "
			 "nothing that this CPU lacks, not %.64s", s);
	return **level ? 0 : -ELIBACC;
}

static XXH128_hash_t key_of(struct ptx_module *m, const struct pfunc *f, const char *level)
{
	XXH3_state_t *s = XXH3_createState();
	XXH128_hash_t h = { 0 };
	unsigned int i, leaf, r[4];

	if (!s)
		return h;
	pthread_mutex_lock(&m->lock);
	if (!m->hashed) {	/* once: texts may have tens of megabytes and thousands of entries */
		XXH3_128bits_reset(s);
		for (i = 0; i < m->nsrc; i++) {
			XXH3_128bits_update(s, m->src[i].text, m->src[i].len);
			XXH3_128bits_update(s, "", 1);
		}
		h = XXH3_128bits_digest(s);
		m->text_hash[0] = h.low64;
		m->text_hash[1] = h.high64;
		m->hashed = true;
	}
	pthread_mutex_unlock(&m->lock);
	XXH3_128bits_reset(s);
	XXH3_128bits_update(s, m->text_hash, sizeof(m->text_hash));
	XXH3_128bits_update(s, f->name, strlen(f->name) + 1);
	XXH3_128bits_update(s, PTX_BUILD_ID PTX_ABI, sizeof(PTX_BUILD_ID PTX_ABI));
	XXH3_128bits_update(s, level, strlen(level) + 1);
	for (leaf = 0; leaf < 8; leaf++) {
		memset(r, 0, sizeof(r));
		__get_cpuid_count(leaf, 0, &r[0], &r[1], &r[2], &r[3]);
		if (leaf == 1)
			r[1] = 0;	/* the number of the current CPU, which varies */
		if (leaf != 2 && leaf != 4 && leaf != 6)
			XXH3_128bits_update(s, r, sizeof(r));
	}
	h = XXH3_128bits_digest(s);
	XXH3_freeState(s);
	return h;
}

struct check {
	ptx_form_fn known;
	void *user;
};

static size_t form_opnd(const struct pbody *b, const struct opnd *o, char *buf, size_t n)
{
	size_t k = 0;
	unsigned int i;

	if (n < 16)
		return 0;
	k = snprintf(buf, n, " %u", o->kind);
	if (o->kind == O_REG || (o->kind == O_MEM && o->reg >= 0))
		k += snprintf(buf + k, n - k, "r%u", b->regtype[o->reg]);
	if (o->kind == O_SREG)
		k += snprintf(buf + k, n - k, "s%u", o->sreg);
	if (o->kind == O_VEC) {
		for (i = 0; i < o->nvec; i++)
			k += form_opnd(b, &o->vec[i], buf + k, n - k);
		if (k + 2 < n)
			k += snprintf(buf + k, n - k, ";");
	}
	return k;
}

/* Whether some instruction has a form that c->known() does not know. */
static bool has_new_form(const struct unit *u, const struct check *c)
{
	char form[1024];
	uint32_t i, j, k;
	bool fresh = false;
	size_t n;

	for (i = 0; i < u->nfn; i++) {
		const struct pbody *b = u->fn[i].b;

		for (j = 0; j < b->ninsn; j++) {
			const struct insn *in = &b->insn[j];

			insn_str(in, form, 200);
			n = strlen(form);
			n += snprintf(form + n, sizeof(form) - n, "%s%s", in->uniform ? " u" : "",
				      in->guard >= 0 ? " @" : "");
			for (k = 0; k < in->nopnd; k++)
				n += form_opnd(b, &in->o[k], form + n, sizeof(form) - n);
			if (!c->known(c->user, form))
				fresh = true;
		}
	}
	return fresh;
}

struct building {
	struct ptx_module *m;
	struct unit u;
	struct ptx_kernel *k;
	const struct check *check;	/* not to be compiled; or NULL */
	const struct ptx_translated *translated;
	bool locked;		/* m->lock, which guards the offsets of shared variables */
};

static void let_go(struct building *b)
{
	b->k->info = b->u.info;
	b->k->spins = b->u.spins;
	b->k->calls = b->u.nfn > 1 || b->u.indirect;
	pthread_mutex_unlock(&b->m->lock);
	b->locked = false;
}

static void is_translated(void *arg)
{
	struct building *b = arg;

	let_go(b);
	if (b->translated)
		b->translated->fn(b->translated->user, &b->k->info);
}

/* Compiles into @obj.  Locks the module until LLVM takes over. */
static int build(struct building *b, struct pfunc *f, void **obj, size_t *len, char *err,
		 size_t errlen)
{
	struct ptx_guard g = { .err = err, .errlen = errlen }, *outer = *ptx_guard_slot();
	const struct check *check = b->check;

	pthread_once(&jit_once, load_jit);
	if (!jit_fn) {
		snprintf(err, errlen, "no compiler: %s", jit_error);
		return -ELIBACC;
	}
	b->u.check_only = check;
	b->u.translated = is_translated;
	b->u.arg = b;
	b->locked = true;
	pthread_mutex_lock(&b->m->lock);
	*ptx_guard_slot() = &g;
	if (!setjmp(g.env))
		ptx_unit_build(&b->u, b->m, f);
	*ptx_guard_slot() = outer;
	if (!g.ret && (!check || !check->known || has_new_form(&b->u, check)))
		g.ret = jit_fn(&b->u, obj, len, err, errlen);
	if (b->locked)
		let_go(b);
	ptx_arena_free(&b->u.arena);
	ptx_arena_free(&b->u.scratch);
	return g.ret;
}

/* NULL: out of memory, or no such entry. */
static struct ptx_kernel *kernel_new(struct ptx_module *m, unsigned int entry, char *err, size_t errlen)
{
	struct ptx_kernel *k = entry < m->nentries ? calloc(1, sizeof(*k)) : NULL;

	if (k) {
		k->m = m;
		k->entry = &m->entries[entry]->info;
	} else {
		snprintf(err, errlen, entry < m->nentries ? "out of memory" : "no such entry");
	}
	return k;
}

/* Loads a kernel from the cache.  False: not there, or it cannot be loaded. */
static bool from_cache(struct ptx_kernel *k, XXH128_hash_t key, char *err, size_t errlen)
{
	struct cache_head *h = cache_read(key);
	int ret;

	if (!h)
		return false;
	k->info = h->info;
	k->spins = h->spins;
	k->calls = h->calls;
	ret = ptx_elf_load(h + 1, h->len, &k->code, &k->code_size, &k->fn, err, errlen);
	free(h);
	if (!ret)
		ptx_count(offsetof(struct ptx_counts, cached));
	return !ret;
}

int ptx_compile(struct ptx_module *m, unsigned int entry, const struct ptx_translated *translated,
		struct ptx_kernel **out, char *err, size_t errlen)
{
	struct building b = { .m = m, .translated = translated };
	struct ptx_kernel *k;
	XXH128_hash_t key;
	const char *level;
	void *obj = NULL;
	size_t len = 0;
	int ret = cpu_level(&level, err, errlen);

	if (ret)
		return ret;
	k = kernel_new(m, entry, err, errlen);
	if (!k)
		return entry < m->nentries ? -ENOMEM : -EINVAL;
	key = key_of(m, m->entries[entry], level);
	ptx_count(offsetof(struct ptx_counts, asked));
	if (!from_cache(k, key, err, errlen)) {
		compile_begins();
		b.k = k;
		b.u.level = level;
		ret = build(&b, m->entries[entry], &obj, &len, err, errlen);
		if (!ret)
			ret = ptx_elf_load(obj, len, &k->code, &k->code_size, &k->fn, err, errlen);
		compile_ends(!ret);
		if (!ret && cache_write(key, k, obj, len))
			ptx_count(offsetof(struct ptx_counts, kept));
		free(obj);
	}
	if (ret) {
		free(k);
		return ret;
	}
	*out = k;
	return 0;
}

int ptx_describe(struct ptx_module *m, unsigned int entry, struct ptx_kernel **out,
		 struct ptx_kernel_info *info, char *err, size_t errlen)
{
	struct check c = { 0 };
	struct building b = { .m = m, .check = &c };
	struct ptx_kernel *k;
	const char *level;
	void *obj = NULL;
	size_t len = 0;
	int ret = cpu_level(&level, err, errlen);

	*out = NULL;
	if (ret)
		return ret;
	k = kernel_new(m, entry, err, errlen);
	if (!k)
		return entry < m->nentries ? -ENOMEM : -EINVAL;
	if (from_cache(k, key_of(m, m->entries[entry], level), err, errlen)) {
		ptx_count(offsetof(struct ptx_counts, asked));
		*out = k;
		return 0;
	}
	b.k = k;
	b.u.level = level;
	ret = build(&b, m->entries[entry], &obj, &len, err, errlen);
	*info = k->info;
	free(k);
	return ret;
}

int ptx_check(struct ptx_module *m, unsigned int entry, ptx_form_fn known, void *user, char *err,
	      size_t errlen)
{
	struct check c = { known, user };
	struct ptx_kernel k = { 0 };
	struct building b = { .m = m, .k = &k, .check = &c };
	void *obj = NULL;
	size_t len = 0;
	int ret = cpu_level(&b.u.level, err, errlen);

	if (ret)
		return ret;
	if (entry >= m->nentries) {
		snprintf(err, errlen, "no such entry");
		return -EINVAL;
	}
	return build(&b, m->entries[entry], &obj, &len, err, errlen);
}

int ptx_shared_size(struct ptx_module *m, unsigned int entry, uint32_t *bytes, char *err,
		    size_t errlen)
{
	struct ptx_guard g = { .err = err, .errlen = errlen }, *outer = *ptx_guard_slot();
	struct unit u = { .layout_only = true };

	if (entry >= m->nentries) {
		snprintf(err, errlen, "no such entry");
		return -EINVAL;
	}
	pthread_mutex_lock(&m->lock);
	*ptx_guard_slot() = &g;
	if (!setjmp(g.env))
		ptx_unit_build(&u, m, m->entries[entry]);
	*ptx_guard_slot() = outer;
	*bytes = u.info.static_shared;
	pthread_mutex_unlock(&m->lock);
	ptx_arena_free(&u.arena);
	ptx_arena_free(&u.scratch);
	return g.ret;
}

void ptx_kernel_free(struct ptx_kernel *k)
{
	if (!k)
		return;
	ptx_elf_free(k->code, k->code_size);
	free(k);
}

const struct ptx_kernel_info *ptx_kernel_info(const struct ptx_kernel *k)
{
	return &k->info;
}

const struct ptx_entry_info *ptx_kernel_entry(const struct ptx_kernel *k)
{
	return k->entry;
}
