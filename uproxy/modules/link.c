// SPDX-License-Identifier: Apache-2.0
/*
 * link.c - the driver's linker, run over inputs that a client has collected
 */
#include <stdlib.h>

#include "image_i.h"
#include "modules.h"

#define INPUTS_MAX 4096

/* Checks each input's place, and that its type is plain data. NULL, or the reason. */
static const char *check(const uint8_t *at, uint64_t len, uint64_t *n)
{
	const struct sv_link_input *in = (const void *)(at + sizeof(*n));

	if (len < sizeof(*n))
		return "length of what is to be linked";
	memcpy(n, at, sizeof(*n));
	if (!*n || *n > INPUTS_MAX || *n > (len - sizeof(*n)) / sizeof(*in))
		return "number of inputs of a linker";
	for (uint64_t i = 0; i < *n; i++) {
		if (in[i].pad || in[i].off > len || !in[i].len || in[i].len > len - in[i].off)
			return "place of an input of a linker";
		if (in[i].type > CU_JIT_INPUT_OBJECT)
			return "type of an input of a linker";
	}
	return NULL;
}

static CUresult run(struct call *k, const struct sv_image *a, struct jit *j, uint8_t *at, uint64_t n)
{
	const struct sv_link_input *in = (const void *)(at + sizeof(n));
	struct sv_session *s = k->c.session;
	const struct cuda_driver *d = &s->hal.drv;
	CUlinkState state;
	uint64_t size;
	CUresult r;
	void *out;

	if (!d->cuLinkCreate_v2 || !d->cuLinkAddData_v2 || !d->cuLinkComplete)
		return CUDA_ERROR_NOT_SUPPORTED;
	r = d->cuLinkCreate_v2(j->n, j->opt, j->value, &state);
	if (r)
		return r;
	for (uint64_t i = 0; i < n && !r; i++) {
		/* The driver wants a NUL behind PTX; the copy has one behind every input. */
		char *p = malloc(in[i].len + 1);

		if (!p) {
			r = CUDA_ERROR_OUT_OF_MEMORY;
			break;
		}
		memcpy(p, at + in[i].off, in[i].len);
		p[in[i].len] = 0;
		if (in[i].type != CU_JIT_INPUT_PTX)
			r = image_whole((uint8_t *)p, in[i].len);
		if (!r)
			r = d->cuLinkAddData_v2(state, in[i].type, p, in[i].len, NULL, 0, NULL, NULL);
		free(p);
	}
	if (!r)
		r = d->cuLinkComplete(state, &out, &size);
	if (!r && size > a->ino)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (!r) {
		memcpy(arena_at(s, a->dev), out, size);
		memcpy(k->c.reply, &size, sizeof(size));
		k->c.reply_len = sizeof(size);
	}
	d->cuLinkDestroy(state);
	return r;
}

int do_link(struct call *k)
{
	const struct sv_image *a = k->c.data;
	struct sv_session *s = k->c.session;
	const char *rule;
	struct jit j;
	uint8_t *at;
	uint64_t n;
	int rc;

	rc = image_check_record(k, a);
	if (rc)
		return rc;
	if (a->kind != SV_IMAGE_LINK)
		return sv_bad(&k->c, "kind of what is to be linked");
	rc = sv_enter(s, a->ctx);
	if (rc)
		return sv_fails(&k->c, rc, "context of a linker");
	at = malloc(a->len);
	if (!at)
		return fails(k, CUDA_ERROR_OUT_OF_MEMORY);
	memcpy(at, arena_at(s, a->off), a->len);
	rule = check(at, a->len, &n);
	rc = rule ? sv_bad(&k->c, rule) : jit_begin(k, a, &j);
	if (!rc) {
		rc = run(k, a, &j, at, n);
		jit_end(s, a, &j);
	}
	free(at);
	return rc < 0 ? rc : fails(k, rc);
}
