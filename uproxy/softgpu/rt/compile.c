// SPDX-License-Identifier: Apache-2.0
/*
 * compile.c - compiles an entry into executable code: cache, unit, LLVM, loader
 *
 * Cache file: a struct cache_head, then the object.  The key covers the module's texts, the entry's
 * name, the compiler's build, the CPU and SINGVGPU_SOFT_CPU.  An invalid file is ignored and
 * replaced.
 */
#include <cpuid.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ptx_i.h"
#include "rt_i.h"

#ifndef PTX_BUILD_ID
#define PTX_BUILD_ID "unknown"
#endif

struct cache_head {
	char magic[16];			/* "softgpu object\n" */
	XXH128_hash_t key;
	XXH128_hash_t sum;		/* of everything behind this field, with the object */
	struct ptx_kernel_info info;
	uint8_t spins, calls, pad[6];
	uint64_t len;
};

static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
static char *cache_dir;			/* cache_lock */

static pthread_once_t jit_once = PTHREAD_ONCE_INIT;
static jit_compile_fn jit_fn;
static char jit_error[256];

int ptx_set_cache(const char *dir)
{
	char *d = dir ? strdup(dir) : NULL;

	if (dir && !d)
		return -ENOMEM;
	if (dir && mkdir(dir, 0700) && errno != EEXIST) {
		int e = errno;

		free(d);
		return -e;
	}
	pthread_mutex_lock(&cache_lock);
	free(cache_dir);
	cache_dir = d;
	pthread_mutex_unlock(&cache_lock);
	return 0;
}

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

static bool cache_path(XXH128_hash_t key, char *path, size_t n)
{
	bool ok;

	pthread_mutex_lock(&cache_lock);
	ok = cache_dir && (size_t)snprintf(path, n, "%s/%016llx%016llx.o", cache_dir,
					   (unsigned long long)key.high64,
					   (unsigned long long)key.low64) < n;
	pthread_mutex_unlock(&cache_lock);
	return ok;
}

static XXH128_hash_t sum_of(const struct cache_head *h, size_t total)
{
	size_t off = offsetof(struct cache_head, info);

	return XXH3_128bits((const char *)h + off, total - off);
}

/* Reads and checks a cache file.  NULL: none, or invalid. */
static struct cache_head *cache_read(XXH128_hash_t key)
{
	struct cache_head *h = NULL;
	char path[4200];
	struct stat st;
	int fd;

	if (!cache_path(key, path, sizeof(path)))
		return NULL;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	if (!fstat(fd, &st) && st.st_size >= (off_t)sizeof(*h) && st.st_size < 1 << 30)
		h = malloc(st.st_size);
	if (h && (read(fd, h, st.st_size) != st.st_size ||
		  memcmp(h->magic, "softgpu object\n", 16) || !XXH128_isEqual(h->key, key) ||
		  h->len != st.st_size - sizeof(*h) ||
		  !XXH128_isEqual(h->sum, sum_of(h, st.st_size)))) {
		free(h);
		h = NULL;
	}
	close(fd);
	return h;
}

static void cache_write(XXH128_hash_t key, const struct ptx_kernel *k, const void *obj, size_t len)
{
	size_t total = sizeof(struct cache_head) + len;
	struct cache_head *h = calloc(1, total);
	char path[4200], tmp[4300];
	int fd;

	if (!h || !cache_path(key, path, sizeof(path)))
		goto out;
	memcpy(h->magic, "softgpu object\n", 16);
	h->key = key;
	h->info = k->info;
	h->spins = k->spins;
	h->calls = k->calls;
	h->len = len;
	memcpy(h + 1, obj, len);
	h->sum = sum_of(h, total);
	snprintf(tmp, sizeof(tmp), "%s.%d.%lx.tmp", path, getpid(), (unsigned long)pthread_self());
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		goto out;
	if (write(fd, h, total) != (ssize_t)total || close(fd) || rename(tmp, path))
		unlink(tmp);
out:
	free(h);
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

/* Compiles into @obj.  Locks the module, which holds the offsets of shared variables. */
static int build(struct ptx_module *m, struct pfunc *f, struct ptx_kernel *k, const char *level,
		 void **obj, size_t *len, const struct check *check, char *err, size_t errlen)
{
	struct ptx_guard g = { .err = err, .errlen = errlen }, *outer = *ptx_guard_slot();
	struct unit u = { .check_only = check, .level = level };

	pthread_once(&jit_once, load_jit);
	if (!jit_fn) {
		snprintf(err, errlen, "no compiler: %s", jit_error);
		return -ELIBACC;
	}
	pthread_mutex_lock(&m->lock);
	*ptx_guard_slot() = &g;
	if (!setjmp(g.env))
		ptx_unit_build(&u, m, f);
	*ptx_guard_slot() = outer;
	if (!g.ret && (!check || !check->known || has_new_form(&u, check)))
		g.ret = jit_fn(&u, obj, len, err, errlen);
	k->info = u.info;
	k->spins = u.spins;
	k->calls = u.nfn > 1 || u.indirect;
	pthread_mutex_unlock(&m->lock);
	ptx_arena_free(&u.arena);
	ptx_arena_free(&u.scratch);
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
	return !ret;
}

int ptx_compile(struct ptx_module *m, unsigned int entry, struct ptx_kernel **out, char *err,
		size_t errlen)
{
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
	if (!from_cache(k, key, err, errlen)) {
		ret = build(m, m->entries[entry], k, level, &obj, &len, NULL, err, errlen);
		if (!ret)
			ret = ptx_elf_load(obj, len, &k->code, &k->code_size, &k->fn, err, errlen);
		if (!ret)
			cache_write(key, k, obj, len);
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
	struct ptx_kernel *k;
	struct check c = { 0 };
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
		*out = k;
		return 0;
	}
	ret = build(m, m->entries[entry], k, level, &obj, &len, &c, err, errlen);
	*info = k->info;
	free(k);
	return ret;
}

int ptx_check(struct ptx_module *m, unsigned int entry, ptx_form_fn known, void *user, char *err,
	      size_t errlen)
{
	struct check c = { known, user };
	struct ptx_kernel k = { 0 };
	const char *level;
	void *obj = NULL;
	size_t len = 0;
	int ret = cpu_level(&level, err, errlen);

	if (ret)
		return ret;
	if (entry >= m->nentries) {
		snprintf(err, errlen, "no such entry");
		return -EINVAL;
	}
	return build(m, m->entries[entry], &k, level, &obj, &len, &c, err, errlen);
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
