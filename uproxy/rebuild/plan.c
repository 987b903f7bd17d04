// SPDX-License-Identifier: Apache-2.0
/*
 * plan.c - lists and sorts the regions of a session's device that a dump saves
 *
 * Variables are found by the names in their images (names.c), which the driver looks up. A library
 * is left out in contexts where nobody can know its variables' addresses (image_seen): they have
 * their initial values, which a restored program finds, too, when it first uses the library. While the session runs, a plan only serves to answer
 * whether it could be saved, and leaves out what needs an idle device.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "content_i.h"
#include "context.h"
#include "device_memory.h"
#include "graphs.h"
#include "handle.h"
#include "image_i.h"
#include "streams.h"

#define CONTEXTS_MAX 64

struct planner {
	struct sv_session *s;
	struct plan *p;
	uint64_t ctx[CONTEXTS_MAX];
	size_t contexts;
	struct why *why;
	int rc;
};

static int refuse(struct planner *x, int rc, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	why_vset(x->why, rc, fmt, ap);
	va_end(ap);
	x->rc = rc;
	return rc;
}

static int add_region(struct planner *x, struct region r, uint64_t real, const char *name)
{
	size_t len = name ? strlen(name) + 1 : 0;
	struct plan *p = x->p;

	if (p->n == p->cap) {
		size_t cap = p->cap ? p->cap * 2 : 256;
		void *q = realloc(p->p, cap * sizeof(*p->p));

		if (!q)
			return refuse(x, -ENOMEM, "out of memory");
		p->p = q;
		p->cap = cap;
	}
	if (p->names_len + len + 1 > p->names_cap) {
		size_t cap = (p->names_cap + len + 1) * 2;
		char *q = realloc(p->names, cap);

		if (!q)
			return refuse(x, -ENOMEM, "out of memory");
		if (!p->names_len)
			q[p->names_len++] = 0;
		p->names = q;
		p->names_cap = cap;
	}
	if (name) {
		r.name = p->names_len;
		memcpy(p->names + p->names_len, name, len);
		p->names_len += len;
	}
	p->p[p->n++] = (struct planned){ r, real };
	p->bytes += r.kind == REGION_EVENT ? 0 : r.len;
	return 0;
}

int plan_enter(struct sv_session *s, uint64_t ctx)
{
	context_forget();
	if (ctx)
		return sv_enter(s, ctx) ? -EIO : 0;
	return s->hal.drv.cuCtxSetCurrent(s->hal.primary) ? -EIO : 0;
}

/* ------------------------------------------------------------------------------ memory */

static int add_memory(struct planner *x)
{
	uint64_t from = x->s->hal.window, va, len;

	while (!x->rc && window_next_run(x->s, from, &va, &len)) {
		add_region(x, (struct region){ .kind = REGION_MEMORY, .at = va, .len = len }, 0,
			   NULL);
		from = va + len;
	}
	for (const struct vmm *m = window_vmm(); m && !x->rc; m = m->next)
		add_region(x,
			   (struct region){ .kind = REGION_PHYSICAL,
					    .handle = m->handle,
					    .len = m->len,
					    .at = m->released ? m->va : 0 },
			   m->real, NULL);
	return x->rc;
}

static void take_condition(void *arg, uint64_t graph, unsigned int i, uint64_t value, bool kept)
{
	struct planner *x = arg;

	(void)graph;
	(void)i;
	(void)value;
	if (kept && !x->rc)
		refuse(x, -ENOTSUP,
		       "a conditional handle of a graph keeps its value from launch to "
		       "launch, and the driver gives no access to that");
}

static int add_driver(struct planner *x)
{
	struct hal_own own;


	for (unsigned int i = 0; !x->rc && hal_own_memory(&x->s->hal, i, &own); i++)
		add_region(
			x,
			(struct region){
				.kind = REGION_DRIVER, .handle = i, .at = own.at, .len = own.len },
			0, own.what);
	return x->rc;
}

/* ------------------------------------------------------------------------------ variables */

static void take_context(void *arg, uint64_t handle, uint64_t real, void *obj)
{
	struct planner *x = arg;

	(void)real;
	(void)obj;
	if (x->contexts < CONTEXTS_MAX)
		x->ctx[x->contexts++] = handle;
	else
		refuse(x, -ENOTSUP, "the program has more than %d contexts", CONTEXTS_MAX);
}

/* managed: only if it is a managed variable, which no module is loaded for. */
static CUresult address_of(struct hal *h, const struct image *im, const char *name, bool managed,
			   CUdeviceptr *at, size_t *len)
{
	CUresult r = CUDA_ERROR_NOT_FOUND;

	if (!im->library)
		return h->drv.cuModuleGetGlobal_v2 ?
			h->drv.cuModuleGetGlobal_v2(at, len, im->real, name) : r;
	if (h->drv.cuLibraryGetGlobal && !managed)
		r = h->drv.cuLibraryGetGlobal(at, len, im->real, name);
	if (r == CUDA_ERROR_NOT_FOUND && h->drv.cuLibraryGetManaged)
		r = h->drv.cuLibraryGetManaged(at, len, im->real, name);
	return r;
}

/* Is the variable in the plan already? Managed variables are the same in each context. */
static bool there_is(const struct plan *p, size_t from, uint64_t at)
{
	for (size_t i = from; i < p->n; i++)
		if (p->p[i].r.at == at)
			return true;
	return false;
}

/* ctx 0: of a library, the managed ones that no context has added. */
static int add_variables(struct planner *x, struct image *im, const struct names *names,
			 uint64_t ctx, size_t first)
{
	size_t before = x->p->n;

	if (plan_enter(x->s, ctx))
		return refuse(x, -ENOTSUP, "a context of the program is broken or cannot be used");
	for (size_t i = 0; i < names->n && !x->rc; i++) {
		CUdeviceptr at;
		size_t len;
		CUresult r = address_of(&x->s->hal, im, names->name[i], !ctx, &at, &len);

		if (r == CUDA_ERROR_NOT_FOUND && ctx && !strcmp(names->name[i], names->local))
			refuse(x, -ENOTSUP, "the variable %s is declared inside a function: the "
			       "driver has no name for it", names->local);
		if (r == CUDA_ERROR_NOT_FOUND || (!r && !len))
			continue;	/* its part of the image was not loaded */
		if (r)
			return refuse(x, -EIO, "the driver does not say where the variable %s is: "
				      "error %d", names->name[i], r);
		if (before != first && there_is(x->p, first, at))
			continue;
		add_region(x,
			   (struct region){ .kind = REGION_VARIABLE,
					    .handle = im->handle,
					    .ctx = ctx,
					    .at = at,
					    .len = len },
			   0, names->name[i]);
	}
	return x->rc;
}

static bool is_used(const struct planner *x, const struct image *im)
{
	for (size_t i = 0; i < x->contexts; i++)
		if (image_is_seen(im, x->ctx[i]))
			return true;
	return image_managed_seen(im);
}

static int visit_image(void *arg, struct image *im)
{
	struct planner *x = arg;
	const struct names *names;
	size_t first = x->p->n;
	int rc;

	if (im->library && !is_used(x, im))
		return 0;
	rc = image_names(im, &names);
	if (rc == -ENOMEM)
		return refuse(x, rc, "out of memory");
	if (rc)
		return refuse(x, -ENOTSUP,
			      "an image that the program has loaded cannot be read again "
			      "(has its file been replaced?), so its variables are not known");
	if (*names->twice)
		return refuse(x, -ENOTSUP,
			      "several linked parts have a variable %s of their own: the "
			      "driver has one name for them",
			      names->twice);
	if (names->mallocs && !hal_saves_heap(&x->s->hal))
		return refuse(x, -ENOTSUP,
			      "a kernel of the program may call malloc(), and the driver "
			      "gives no access to the heap of that");
	if (!im->library)
		return add_variables(x, im, names, im->ctx, first);
	for (size_t i = 0; i < x->contexts && names->n && !x->rc; i++)
		if (image_is_seen(im, x->ctx[i]))
			add_variables(x, im, names, x->ctx[i], first);
	if (!x->rc && image_managed_seen(im))
		add_variables(x, im, names, 0, first);
	return x->rc;
}

/* ------------------------------------------------------------------------------ events */

struct event_walk {
	struct planner *x;
	uint64_t ctx;
	CUevent now;
};

static void take_event(void *arg, uint64_t handle, uint64_t real, void *obj)
{
	struct event_walk *w = arg;
	struct region r = { .kind = REGION_EVENT, .handle = handle, .ctx = w->ctx };
	float ms;

	(void)obj;
	if (w->x->rc || event_before(w->x->s, handle, real, w->now, &ms))
		return;
	memcpy(&r.row, &ms, sizeof(ms));
	add_region(w->x, r, real, NULL);
}

static int add_events(struct planner *x)
{
	for (size_t i = 0; i < x->contexts && !x->rc; i++) {
		struct event_walk w = { x, x->ctx[i], NULL };

		if (plan_enter(x->s, w.ctx) || event_mark(x->s, &w.now))
			return refuse(x, -EIO, "the driver does not record an event");
		handle_walk(x->s, SV_T_CUevent, take_event, &w);
		event_unmark(x->s, w.now);
	}
	return x->rc;
}

/* ------------------------------------------------------------------------------ arrays */

CUresult plan_array(struct hal *h, const struct planned *p, CUarray *array)
{
	if (!sv_is_handle(SV_T_CUmipmappedArray, p->r.handle)) {
		*array = (CUarray)(uintptr_t)p->real;
		return CUDA_SUCCESS;
	}
	return h->drv.cuMipmappedArrayGetLevel(array, (CUmipmappedArray)(uintptr_t)p->real,
					       p->r.level);
}

static unsigned int texel_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	switch ((int)d->Format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
	case CU_AD_FORMAT_UNORM_INT8X1 ... CU_AD_FORMAT_UNORM_INT8X4:
	case CU_AD_FORMAT_SNORM_INT8X1 ... CU_AD_FORMAT_SNORM_INT8X4:
		return d->NumChannels;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
	case CU_AD_FORMAT_UNORM_INT16X1 ... CU_AD_FORMAT_UNORM_INT16X4:
	case CU_AD_FORMAT_SNORM_INT16X1 ... CU_AD_FORMAT_SNORM_INT16X4:
		return 2 * d->NumChannels;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4 * d->NumChannels;
	}
	return 0;
}

/* Adds an array, or a level of a mipmapped one. */
static int add_array(struct planner *x, uint64_t handle, uint32_t level, uint64_t real)
{
	struct region r = { .kind = REGION_ARRAY, .handle = handle, .level = level };
	struct planned p = { r, real };
	CUDA_ARRAY3D_DESCRIPTOR d;
	struct hal *h = &x->s->hal;
	CUarray a;
	CUresult e = plan_array(h, &p, &a);

	if (e)
		return level ? 1 :
			       refuse(x, -EIO, "the driver has no level 0 of a mipmapped array");
	e = h->drv.cuArray3DGetDescriptor_v2 ? h->drv.cuArray3DGetDescriptor_v2(&d, a) :
					       CUDA_ERROR_NOT_SUPPORTED;
	if (e)
		return refuse(x, -EIO, "the driver does not describe an array: error %d", e);
	r.row = d.Width * texel_bytes(&d);
	r.rows = d.Height ? d.Height : 1;
	r.slices = d.Depth ? d.Depth : 1;
	r.len = (uint64_t)r.row * r.rows * r.slices;
	if (!r.row)
		return refuse(x, -ENOTSUP,
			      "the program has an array of format 0x%x, which cannot be "
			      "copied by the byte",
			      d.Format);
	return add_region(x, r, real, NULL);
}

static void take_mipmap(void *arg, uint64_t handle, uint64_t real, void *obj)
{
	struct planner *x = arg;

	(void)obj;
	for (uint32_t level = 0; level < 32 && !x->rc && !add_array(x, handle, level, real);
	     level++)
		;
}

/* Is the array a level of a mipmapped one, which the plan has already? */
static bool is_level(struct planner *x, uint64_t real)
{
	CUarray a;

	for (size_t i = 0; i < x->p->n; i++)
		if (x->p->p[i].r.kind == REGION_ARRAY && !plan_array(&x->s->hal, &x->p->p[i], &a) &&
		    sv_is_handle(SV_T_CUmipmappedArray, x->p->p[i].r.handle) &&
		    (uintptr_t)a == real)
			return true;
	return false;
}

static void take_array(void *arg, uint64_t handle, uint64_t real, void *obj)
{
	struct planner *x = arg;

	(void)obj;
	if (!x->rc && !is_level(x, real))
		add_array(x, handle, 0, real);
}

/* ------------------------------------------------------------------------------ order */

int region_compare(const struct region *a, const char *an, const struct region *b, const char *bn)
{
	const uint64_t x[] = { a->kind, a->handle, a->level, a->ctx };
	const uint64_t y[] = { b->kind, b->handle, b->level, b->ctx };
	int c;

	for (int i = 0; i < 4; i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	c = strcmp(an + a->name, bn + b->name);
	if (c || a->kind == REGION_EVENT)
		return c;
	return a->at == b->at ? 0 : a->at < b->at ? -1 : 1;
}

void region_say(const struct region *r, const char *names, char *text, size_t n)
{
	switch (r->kind) {
	case REGION_MEMORY:
		snprintf(text, n, "device memory at 0x%llx, %llu bytes", (unsigned long long)r->at,
			 (unsigned long long)r->len);
		break;
	case REGION_PHYSICAL:
		snprintf(text, n, "memory of cuMemCreate, %llu bytes", (unsigned long long)r->len);
		break;
	case REGION_VARIABLE:
		snprintf(text, n, "the variable %s at 0x%llx, %llu bytes", names + r->name,
			 (unsigned long long)r->at, (unsigned long long)r->len);
		break;
	case REGION_ARRAY:
		snprintf(text, n, "an array of %u x %u x %u bytes, level %u", r->row, r->rows,
			 r->slices, r->level);
		break;
	case REGION_DRIVER:
		snprintf(text, n, "%s at 0x%llx, %llu bytes", names + r->name,
			 (unsigned long long)r->at, (unsigned long long)r->len);
		break;
	default:
		snprintf(text, n, "an event");
	}
}

static int order(const void *a, const void *b, void *names)
{
	return region_compare(&((const struct planned *)a)->r, names,
			      &((const struct planned *)b)->r, names);
}

int plan_make(struct sv_session *s, struct plan *p, bool idle, struct why *why)
{
	struct planner x = { .s = s, .p = p, .why = why };

	*p = (struct plan){ 0 };
	add_memory(&x);
	handle_walk(s, SV_T_CUcontext, take_context, &x);
	if (!x.rc)
		x.rc = images_walk(visit_image, &x) ?: x.rc;
	if (!x.rc)
		handle_walk(s, SV_T_CUmipmappedArray, take_mipmap, &x);
	if (!x.rc)
		handle_walk(s, SV_T_CUarray, take_array, &x);
	if (!hal_saves_heap(&s->hal))
		graph_conditions(s, take_condition, &x);
	if (!x.rc && idle)
		add_driver(&x);
	if (!x.rc && idle)
		add_events(&x);
	if (x.rc) {
		plan_free(p);
		return why_text(why, x.rc, "");
	}
	if (p->n)
		qsort_r(p->p, p->n, sizeof(*p->p), order, p->names);
	return 0;
}

void plan_free(struct plan *p)
{
	free(p->p);
	free(p->names);
	*p = (struct plan){ 0 };
}
