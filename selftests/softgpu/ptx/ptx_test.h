/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_test.h - runs PTX text on a window of this process's memory.
 */
#ifndef PTX_TEST_H
#define PTX_TEST_H

/* clang reports sanitizers by __has_feature, gcc by macros. */
#ifdef __has_feature
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kselftest_harness.h"
#include "../../harness/patience.h"
#include "../../../uproxy/softgpu/ptx/ptx.h"

#define WINDOW_SIZE (64ull << 20)

/* Addressable memory in the middle of a larger reservation without access. */
static inline uint8_t *window(void)
{
	static uint8_t *w;

	if (!w) {
		w = mmap(NULL, 3 * WINDOW_SIZE, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (w == MAP_FAILED)
			abort();
		w += WINDOW_SIZE;
		if (mprotect(w, WINDOW_SIZE, PROT_READ | PROT_WRITE))
			abort();
	}
	return w;
}

struct prog {
	char *text;
	struct ptx_module *m;
	struct ptx_kernel *k;
	uint64_t vars[64];
	char err[512];
	struct ptx_fault fault;
	char printed[8192];
	size_t nprinted;
	volatile int stop;
	bool late_stores;
};

static inline void prog_print(void *user, const char *s, size_t n)
{
	struct prog *p = user;

	if (n > sizeof(p->printed) - 1 - p->nprinted)
		n = sizeof(p->printed) - 1 - p->nprinted;
	memcpy(p->printed + p->nprinted, s, n);
	p->nprinted += n;
}

static inline uint64_t prog_malloc(void *user, uint64_t size)
{
	static uint64_t off;
	uint64_t a = (uint64_t)window() + WINDOW_SIZE / 2 + off;

	(void)user;
	if (size > WINDOW_SIZE / 4 || off + size > WINDOW_SIZE / 2)
		return 0;
	off += (size + 255) & ~255ull;
	return a;
}

static inline void prog_free(void *user, uint64_t a)
{
	(void)user;
	(void)a;
}

/* Variables are placed at the end of the window, with their initial values. */
static inline void prog_place_vars(struct prog *p)
{
	uint64_t at = (uint64_t)window() + WINDOW_SIZE - (4 << 20);
	unsigned int i, k;

	for (i = 0; i < ptx_module_nvars(p->m) && i < 64; i++) {
		const struct ptx_var *v = ptx_module_var(p->m, i);

		at = (at + 255) & ~255ull;
		p->vars[i] = at;
		memset((void *)at, 0, v->size);
		if (v->init)
			memcpy((void *)at, v->init, v->init_len);
		at += v->size;
	}
	for (i = 0; i < ptx_module_nvars(p->m) && i < 64; i++) {
		const struct ptx_var *v = ptx_module_var(p->m, i);

		for (k = 0; k < v->nrelocs; k++) {
			const struct ptx_reloc *r = &v->relocs[k];
			uint64_t val = r->is_func ? ptx_func_value(r->target) : p->vars[r->target];

			val = (val + r->addend) >> r->shift;
			memcpy((void *)(p->vars[i] + r->offset), &val, r->size);
		}
	}
}

/* 0, or the error of parse or compile, with its text in p->err. */
static inline int prog_load(struct prog *p, const char *text, const char *entry)
{
	struct ptx_source s;
	int e, ret;

	memset(p, 0, sizeof(*p));
	p->text = strdup(text);
	s.text = p->text;
	s.len = strlen(p->text);
	ret = ptx_module_parse(&s, 1, &p->m, p->err, sizeof(p->err));
	if (ret)
		return ret;
	e = entry ? ptx_module_find_entry(p->m, entry) : 0;
	if (e < 0)
		return e;
	ret = ptx_compile(p->m, e, NULL, &p->k, p->err, sizeof(p->err));
	if (!ret)
		prog_place_vars(p);
	return ret;
}

static inline void prog_free_all(struct prog *p)
{
	ptx_kernel_free(p->k);
	ptx_module_free(p->m);
	free(p->text);
}

static inline int prog_run(struct prog *p, uint32_t grid, uint32_t block, uint32_t dyn,
			   const void *params, size_t len)
{
	struct ptx_range r = { (uint64_t)window(), (uint64_t)window() + WINDOW_SIZE };
	struct ptx_host h = { p, prog_print, prog_malloc, prog_free, NULL };
	struct ptx_launch l = { { grid, 1, 1 }, { block, 1, 1 }, .dyn_shared = dyn,
				.params = params, .params_len = len, .var_addr = p->vars,
				.ranges = &r, .nranges = 1, .host = &h, .stop = &p->stop,
				.late_stores = p->late_stores };

	return ptx_run(p->k, &l, &p->fault);
}

#endif
