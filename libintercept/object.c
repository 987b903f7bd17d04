// SPDX-License-Identifier: Apache-2.0
/*
 * object.c - handles to objects, and each context's list of them
 *
 * A type's objects are found by index in two levels of pointers, which only grow. Each reuse of an
 * index changes the use count in its handle, so that an old handle does not name the new object
 * (until sixteen uses later). Readers take no lock.
 *
 * A process that has had a communicator uses an index again when the proxy has seen the end of its object (seen.c):
 *
 *   freed ── gone ── seen_ask ──► asked ── seen_is ──► free ──► a new object
 */
#include "object.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK 4096
#define TYPES (SV_T_CUstream + 1)

LOCAL struct obj **obj_chunks[TYPES][4096];

static struct lock LOCK_APART lock = LOCK_INIT(LOCK_OBJECTS);
static struct {
	struct obj *free, *gone, *asked;
	uint32_t ngone;
	uint64_t stamp;			/* of `asked` */
} lists[TYPES];
static uint32_t used[TYPES];		/* indices given out so far; index 0 is never used */

/* A freed object keeps the handle for its next use, behind its header. */
struct kept {
	struct obj o;
	uint64_t last;
};

static size_t size_of(unsigned int type)
{
	switch (type) {
	case SV_T_CUcontext:
		return sizeof(struct context);
	case SV_T_CUstream:
		return sizeof(struct stream);
	case SV_T_CUevent:
		return sizeof(struct event);
	case SV_T_CUmodule:
	case SV_T_CUlibrary:
		return sizeof(struct image);
	case SV_T_CUkernel:
	case SV_T_CUfunction:
		return sizeof(struct function);
	default:
		return OBJ_PLAIN_MAX;
	}
}

static void link_to(struct obj *o, struct context *ctx)
{
	struct obj **list = &ctx->o.next;

	/* A context's own `next` is the head of its list of objects; contexts are in no list. */
	o->ctx = ctx;
	o->next = *list;
	if (o->next)
		o->next->prev = &o->next;
	o->prev = list;
	*list = o;
}

static struct obj *fresh(unsigned int type)
{
	uint32_t i = used[type] + 1;
	struct obj **chunk = obj_chunks[type][i / CHUNK];
	struct obj *o;

	if (i >> SV_HANDLE_INDEX_BITS)
		return NULL;
	if (!chunk) {
		chunk = calloc(CHUNK, sizeof(*chunk));
		if (!chunk)
			return NULL;
		__atomic_store_n(&obj_chunks[type][i / CHUNK], chunk, __ATOMIC_RELEASE);
	}
	o = calloc(1, size_of(type));
	if (!o)
		return NULL;
	used[type] = i;
	((struct kept *)o)->last = sv_handle(type, i, 0);
	__atomic_store_n(&chunk[i % CHUNK], o, __ATOMIC_RELEASE);
	return o;
}

/* What the proxies have ended meanwhile is free; and they are asked about what has gone since. */
static void look_for_free(unsigned int type)
{
	if (lists[type].asked && seen_is(lists[type].stamp)) {
		lists[type].free = lists[type].asked;
		lists[type].asked = NULL;
	}
	if (lists[type].asked || lists[type].ngone < SEEN_AFTER)
		return;
	lists[type].stamp = seen_ask();
	if (!lists[type].stamp)
		return;
	lists[type].asked = lists[type].gone;
	lists[type].gone = NULL;
	lists[type].ngone = 0;
}

static struct obj *take_free(unsigned int type)
{
	struct obj *o;

	if (!lists[type].free)
		look_for_free(type);
	o = lists[type].free;
	if (o)
		lists[type].free = o->next;
	return o;
}

static void put_free(unsigned int type, struct obj *o)
{
	bool posts = process_has_posted();
	struct obj **list = posts ? &lists[type].gone : &lists[type].free;

	o->next = *list;
	*list = o;
	lists[type].ngone += posts;
}

void *obj_new(unsigned int type, struct context *ctx)
{
	struct obj *o;
	uint64_t h;

	lock_take(&lock);
	o = take_free(type);
	if (!o)
		o = fresh(type);
	if (o) {
		h = ((struct kept *)o)->last;
		memset(o, 0, size_of(type));
		if (ctx)
			link_to(o, ctx);
		if (type == SV_T_CUstream) {
			struct stream *s = (void *)o;

			s->wire = h;
			s->id = h;
		}
		__atomic_store_n(&o->handle, h, __ATOMIC_RELEASE);
	}
	lock_drop(&lock);
	return o;
}

static void free_locked(unsigned int type, struct obj *o)
{
	uint64_t h = o->handle;

	if (!h)
		return;
	if (o->prev) {
		*o->prev = o->next;
		if (o->next)
			o->next->prev = o->prev;
	}
	__atomic_store_n(&o->handle, 0, __ATOMIC_RELEASE);
	((struct kept *)o)->last = sv_handle(type, sv_handle_index(h), sv_handle_use(h) + 1);
	o->prev = NULL;
	put_free(type, o);
}

void obj_free(unsigned int type, struct obj *o)
{
	lock_take(&lock);
	free_locked(type, o);
	lock_drop(&lock);
}

void obj_free_context(struct context *ctx, void (*gone)(struct obj *o, unsigned int type))
{
	struct obj *o;

	lock_take(&lock);
	while ((o = ctx->o.next)) {
		unsigned int type = obj_type(o);

		/*
		 * Off the list before gone(), which runs without the lock and may free other
		 * objects.
		 */
		ctx->o.next = o->next;
		if (o->next)
			o->next->prev = &ctx->o.next;
		o->prev = NULL;
		lock_drop(&lock);
		gone(o, type);
		lock_take(&lock);
		free_locked(type, o);
	}
	lock_drop(&lock);
}
