// SPDX-License-Identifier: Apache-2.0
/*
 * link.c - cuLink: collects the linker's inputs here; the proxy's driver links them at once
 *
 * So cuLinkComplete reports the errors of inputs, not the calls that add them. The result is
 * memory of this process until cuLinkDestroy.
 */
#include "arena.h"
#include "context.h"
#include "image.h"
#include "object.h"
#include "send.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct input {
	struct input *next;
	uint32_t type;
	uint64_t len;
	uint8_t data[];
};

struct link {
	struct obj o;
	struct input *inputs, **last;
	struct image_options options;	/* arrays that the program keeps valid (cuLinkCreate) */
	void *result;
};

_Static_assert(sizeof(struct link) <= OBJ_PLAIN_MAX, "object.c gives it less");

static CUresult find_link(CUlinkState handle, struct link **out)
{
	TRY(session_check());
	*out = obj_find(SV_T_CUlinkState, sv_u64(handle));
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuLinkCreate_v2(unsigned int n, CUjit_option *opt, void **values, CUlinkState *out)
{
	struct context *ctx;
	struct link *l;

	if (!out || (n && (!opt || !values)) || n > 32)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(context_current(&ctx));
	l = obj_new(SV_T_CUlinkState, ctx);
	if (!l)
		return CUDA_ERROR_OUT_OF_MEMORY;
	l->last = &l->inputs;
	l->options = (struct image_options){ .n = n, .opt = opt, .values = values };
	*out = (CUlinkState)(uintptr_t)l->o.handle;
	return CUDA_SUCCESS;
}

static CUresult add_input(struct link *l, CUjitInputType type, const void *data, size_t len)
{
	struct input *in;

	if (type > CU_JIT_INPUT_OBJECT)
		return sv_unsupported("cuLinkAdd", "libraries and LTO code are not linked; nvcc does that");
	in = malloc(sizeof(*in) + len);
	if (!in)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*in = (struct input){ NULL, type, len };
	memcpy(in->data, data, len);
	*l->last = in;
	l->last = &in->next;
	return CUDA_SUCCESS;
}

API CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t len,
			      const char *name, unsigned int n, CUjit_option *opt, void **values)
{
	struct link *l;

	(void)name;
	if (!data || !len || (n && (!opt || !values)))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_link(state, &l));
	return add_input(l, type, data, len);
}

API CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
			      unsigned int n, CUjit_option *opt, void **values)
{
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	struct stat st;
	struct link *l;
	uint8_t *data;
	size_t got = 0;
	CUresult rc;

	(void)n;
	(void)opt;
	(void)values;
	if (fd < 0)
		return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
	data = fstat(fd, &st) || !S_ISREG(st.st_mode) || !st.st_size ? NULL : malloc(st.st_size);
	while (data && got < (size_t)st.st_size) {
		ssize_t r = read(fd, data + got, st.st_size - got);

		if (r <= 0 && !(r < 0 && errno == EINTR))
			break;
		got += r > 0 ? r : 0;
	}
	close(fd);
	rc = data ? find_link(state, &l) : CUDA_ERROR_INVALID_IMAGE;
	if (!rc)
		rc = add_input(l, type, data, got);
	free(data);
	return rc;
}

/* Copy all inputs into the arena, as proto.h describes; *most: a bound of the result's size. */
static CUresult lay_out(struct link *l, struct sv_image *a, uint64_t *most)
{
	uint64_t n = 0, at;
	struct sv_link_input *to;
	uint8_t *base;

	for (struct input *in = l->inputs; in; in = in->next)
		n++;
	if (!n)
		return CUDA_ERROR_INVALID_VALUE;
	at = sizeof(n) + n * sizeof(*to);
	for (struct input *in = l->inputs; in; in = in->next)
		at = ((at + 7) & -8ull) + in->len;
	a->len = at;
	*most = 16 * at + (4u << 20);
	TRY(arena_alloc(a->len, 64, NULL, &a->off));
	base = arena_at(a->off);
	memcpy(base, &n, sizeof(n));
	to = (void *)(base + sizeof(n));
	at = sizeof(n) + n * sizeof(*to);
	for (struct input *in = l->inputs; in; in = in->next, to++) {
		at = (at + 7) & -8ull;
		*to = (struct sv_link_input){ in->type, 0, at, in->len };
		memcpy(base + at, in->data, in->len);
		at += in->len;
	}
	return CUDA_SUCCESS;
}

static CUresult complete(struct link *l, struct context *ctx, uint64_t *len)
{
	struct sv_image a = { .ctx = ctx->o.handle, .kind = SV_IMAGE_LINK };
	struct sv_jit_opt opt[64] = { 0 };
	CUresult rc;

	image_options_sort(&l->options, opt, &a);
	TRY(lay_out(l, &a, &a.ino));
	rc = arena_alloc(a.ino, 64, NULL, &a.dev);
	if (!rc && a.info_cap + a.error_cap &&
	    !arena_reply(a.info_cap + a.error_cap, &a.log_off))
		rc = CUDA_ERROR_OUT_OF_MEMORY;
	if (!rc) {
		rc = send_sync(SV_OP_cuLinkComplete, &a, sizeof(a), opt, a.n_opt * sizeof(opt[0]),
			       len, sizeof(*len));
		image_options_done(&l->options, &a, 0);
	}
	if (!rc) {
		l->result = malloc(*len);
		if (l->result)
			memcpy(l->result, arena_at(a.dev), *len);
		else
			rc = CUDA_ERROR_OUT_OF_MEMORY;
	}
	arena_free(a.off);
	if (a.dev)
		arena_free(a.dev);
	if (a.log_off)
		arena_reply_done(a.log_off);
	return rc;
}

API CUresult cuLinkComplete(CUlinkState state, void **out, size_t *size)
{
	struct context *ctx;
	struct link *l;
	uint64_t len;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(find_link(state, &l));
	TRY(context_current(&ctx));
	if (l->result)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(complete(l, ctx, &len));
	*out = l->result;
	if (size)
		*size = len;
	return CUDA_SUCCESS;
}

API CUresult cuLinkDestroy(CUlinkState state)
{
	struct link *l;

	TRY(find_link(state, &l));
	for (struct input *in = l->inputs, *next; in; in = next) {
		next = in->next;
		free(in);
	}
	free(l->result);
	obj_free(SV_T_CUlinkState, &l->o);
	return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------ older versions */

API CUresult cuLinkCreate(unsigned int n, CUjit_option *opt, void **values, CUlinkState *out)
{
	return cuLinkCreate_v2(n, opt, values, out);
}

API CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t len,
			   const char *name, unsigned int n, CUjit_option *opt, void **values)
{
	return cuLinkAddData_v2(state, type, data, len, name, n, opt, values);
}

API CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned int n,
			   CUjit_option *opt, void **values)
{
	return cuLinkAddFile_v2(state, type, path, n, opt, values);
}
