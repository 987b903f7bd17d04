// SPDX-License-Identifier: Apache-2.0
/*
 * vmm.c - reserved addresses, physical memory, and which of it is mapped where
 *
 *   cuMemCreate ─► physical: refs (handles that the program holds) and maps; released in the proxy
 *                  when both are 0, so that a mapping can give a handle again
 *   cuMemAddressReserve ─► reserve: a part of the window, with a space of its mappings
 *
 * The client checks all calls, so only records that make or share memory need answers.
 */
#include "memory_i.h"
#include "object.h"
#include "send.h"
#include "session.h"
#include "space.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BY_FD "memory is shared with other processes by file descriptors alone"

struct physical {
	uint64_t handle, len;		/* len 0: imported, known only to the driver */
	unsigned int refs, maps;
	struct physical *over;		/* in the list of those to be released */
	struct session *session;	/* that made it */
	bool imported;			/* charged to the session that made it */
	CUmemAllocationProp prop;
};

struct mapping {
	uint64_t va, len;
	struct physical *phys;
	CUmemAccess_flags access;
};

struct reserve {
	struct memory m;		/* first: the owner in the window */
	struct space *maps;
};

struct handle {
	struct obj o;
	uint64_t last;			/* object.c's */
	struct physical *phys;
};

static bool whole(uint64_t n)
{
	return n && !(n & (SV_GRANULE - 1));
}

/* The reservation that holds all of a range, or NULL. locks.vmm is held. */
static struct reserve *reserve_of(uint64_t addr, uint64_t len)
{
	struct reserve *r = NULL;
	struct session *s = session_at(addr);
	uint64_t base, room;
	void *owner = NULL;

	assert_held(&process.locks.vmm);
	lock_take(&process.locks.memory);
	if (s && space_find(s->window, addr, &base, &room, &owner) && owner &&
	    ((struct memory *)owner)->kind == MEMORY_RESERVED && len <= room - (addr - base))
		r = owner;
	lock_drop(&process.locks.memory);
	return r;
}

static struct mapping *mapping_of(struct reserve *r, uint64_t addr)
{
	void *owner = NULL;

	return space_find(r->maps, addr, NULL, NULL, &owner) ? owner : NULL;
}

/* Call fn for each mapping in the range. INVALID_VALUE: whole mappings do not fill it exactly. */
static CUresult mappings(uint64_t addr, uint64_t len,
			 CUresult (*fn)(struct reserve *r, struct mapping *m, void *arg), void *arg)
{
	struct reserve *r = reserve_of(addr, len);
	uint64_t at, end = addr + len;
	struct mapping *m;

	if (!r || !whole(len) || !whole(addr))
		return CUDA_ERROR_INVALID_VALUE;
	for (at = addr; at < end; at += m->len) {
		m = mapping_of(r, at);
		if (!m || m->va != at || m->len > end - at)
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (at = addr; at < end;) {
		m = mapping_of(r, at);
		at += m->len;
		TRY(fn(r, m, arg));
	}
	return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------------------- addresses */

static void release(struct reserve *r)
{
	lock_take(&process.locks.memory);
	space_release(r->m.session->window, r->m.base);
	lock_drop(&process.locks.memory);
	space_free(r->maps);
	free(r);
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t len, size_t align, CUdeviceptr hint,
				 unsigned long long flags)
{
	struct reserve *r;
	uint64_t addr = 0;
	CUresult rc;

	if (!out || !whole(len) || (align & (align - 1)) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (align < SV_GRANULE)
		align = SV_GRANULE;
	r = calloc(1, sizeof(*r));
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r->m = (struct memory){ .kind = MEMORY_RESERVED, .len = len, .session = here,
				.id = memory_next_id() };
	lock_take(&process.locks.memory);
	if (whole(hint) && !(hint & (align - 1)) && !space_take(here->window, hint, len, r))
		addr = hint;
	if (!addr)
		addr = space_alloc(here->window, len, align, 0, r);
	r->m.base = addr;
	r->maps = addr ? space_new(addr, len) : NULL;
	if (addr && !r->maps)
		space_release(here->window, addr);
	lock_drop(&process.locks.memory);
	if (!r->maps) {
		free(r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	rc = memory_unmap_cached(addr, len);
	if (rc)
		release(r);
	else
		*out = addr;
	return rc;
}

API CUresult cuMemAddressFree(CUdeviceptr addr, size_t len)
{
	struct reserve *r;

	TRY(session_check());
	lock_take(&process.locks.vmm);
	r = reserve_of(addr, len);
	/* All of its addresses can be taken at once, so nothing is mapped. */
	if (r && r->m.base == addr && r->m.len == len && !space_take(r->maps, addr, len, NULL)) {
		release(r);
	} else {
		r = NULL;
	}
	lock_drop(&process.locks.vmm);
	return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---------------------------------------------------------------------------- physical memory */

static CUresult check_prop(const CUmemAllocationProp *p)
{
	if (p->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return sv_unsupported("cuMemCreate", "physical memory is the device's");
	if (!session_device(p->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop,
					   CUmemAllocationGranularity_flags which)
{
	if (!out || !prop || (which != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
			      which != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	TRY(check_prop(prop));
	*out = SV_GRANULE;
	return CUDA_SUCCESS;
}

static CUresult create(struct handle *h, uint64_t len, uint64_t flags)
{
	struct sv_mem_create a = { .handle = h->o.handle, .len = len, .flags = flags };
	CUresult rc = memory_charge(len);

	if (rc == CUDA_ERROR_OUT_OF_MEMORY) {
		pool_trim(true);
		rc = memory_charge(len);
	}
	if (rc)
		return rc;
	rc = send_sync(SV_OP_cuMemCreate, &a, sizeof(a), NULL, 0, NULL, 0);
	if (rc)
		memory_uncharge(len);
	return rc;
}

/* A new handle, with the program's reference. */
static CUresult new_handle(struct handle **out)
{
	struct physical *p = calloc(1, sizeof(*p));
	struct handle *h = p ? obj_new(SV_T_CUmemGenericAllocationHandle_v1, NULL) : NULL;

	if (!h) {
		free(p);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	p->handle = h->o.handle;
	p->session = here;
	p->refs = 1;
	h->phys = p;
	*out = h;
	return CUDA_SUCCESS;
}

static void no_handle(struct handle *h)
{
	free(h->phys);
	obj_free(SV_T_CUmemGenericAllocationHandle_v1, &h->o);
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t len,
			 const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct physical *p;
	struct session *s;
	struct handle *h;
	CUresult rc;

	if (!out || !prop || !whole(len) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	TRY(check_prop(prop));
	if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return sv_absent("cuMemCreate", BY_FD);
	__atomic_store_n(&process.used, true, __ATOMIC_RELAXED);
	TRY(session_make(prop->location.id, &s));
	ON(s);
	TRY(new_handle(&h));
	rc = create(h, len, prop->requestedHandleTypes ? SV_MEM_SHARED : 0);
	if (rc) {
		no_handle(h);
		return rc;
	}
	p = h->phys;
	p->len = len;
	p->prop = *prop;
	memset(&p->prop.allocFlags, 0, sizeof(p->prop.allocFlags));	/* hints, unused */
	*out = p->handle;
	return CUDA_SUCCESS;
}

/* The physical memory of a handle that the program holds, or NULL. locks.vmm is held. */
static struct physical *held(uint64_t handle)
{
	struct handle *h = obj_find(SV_T_CUmemGenericAllocationHandle_v1, handle);

	assert_held(&process.locks.vmm);
	return h && h->phys && h->phys->refs ? h->phys : NULL;
}

/* Put p on the list for end() if it has no reference or mapping left. locks.vmm is held. */
static void drop(struct physical *p, struct physical **over)
{
	assert_held(&process.locks.vmm);
	if (p->refs || p->maps)
		return;
	p->over = *over;
	*over = p;
}

/* Release the physical memory on the list. A handle can be reused once its record has been sent. */
static CUresult end(struct physical *over)
{
	CUresult rc = CUDA_SUCCESS, one;
	struct physical *p;

	while ((p = over)) {
		struct sv_mem_release a = { p->handle };

		ON(p->session);
		over = p->over;
		one = send_async(SV_OP_cuMemRelease, &a, sizeof(a), NULL, 0);
		rc = rc ? rc : one;
		if (!p->imported)
			memory_uncharge(p->len);
		obj_free(SV_T_CUmemGenericAllocationHandle_v1,
			 obj_find(SV_T_CUmemGenericAllocationHandle_v1, p->handle));
		free(p);
	}
	return rc;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct physical *p, *over = NULL;

	TRY(session_check());
	lock_take(&process.locks.vmm);
	p = held(handle);
	if (p) {
		p->refs--;
		drop(p, &over);
	}
	lock_drop(&process.locks.vmm);
	return p ? end(over) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *addr)
{
	struct reserve *r;
	struct mapping *m;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	lock_take(&process.locks.vmm);
	r = reserve_of(sv_u64(addr), 1);
	m = r ? mapping_of(r, sv_u64(addr)) : NULL;
	if (m) {
		m->phys->refs++;
		*out = m->phys->handle;
	}
	lock_drop(&process.locks.vmm);
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out,
						    CUmemGenericAllocationHandle handle)
{
	struct physical *p;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	lock_take(&process.locks.vmm);
	p = held(handle);
	if (p)
		*out = p->prop;
	lock_drop(&process.locks.vmm);
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ------------------------------------------------------------------- shared with other processes */

/* The proxy takes an fd of this process meanwhile, which Yama must allow; one thread at a time. */
static CUresult share(uint16_t op, const struct sv_mem_share *a, struct sv_mem_imported *in)
{
	static struct lock LOCK_APART one = LOCK_INIT(LOCK_SHARE);
	CUresult rc;

	lock_take(&one);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	rc = send_sync(op, a, sizeof(*a), NULL, 0, in, in ? sizeof(*in) : 0);
	prctl(PR_SET_PTRACER, 0, 0, 0, 0);
	lock_drop(&one);
	return rc;
}

static CUresult export(uint64_t handle, int *fd)
{
	struct sv_mem_share a = { .handle = handle };
	int pair[2];
	CUresult rc;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return CUDA_ERROR_OPERATING_SYSTEM;
	a.fd = pair[1];
	rc = share(SV_OP_cuMemExportToShareableHandle, &a, NULL);
	close(pair[1]);
	if (!rc) {
		*fd = ring_take_fd(pair[0]);
		rc = *fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
	}
	close(pair[0]);
	return rc;
}

API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
					  CUmemAllocationHandleType type, unsigned long long flags)
{
	struct physical *p, *over = NULL;
	CUresult rc, ended;
	int fd = -1;

	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return sv_absent("cuMemExportToShareableHandle", BY_FD);
	lock_take(&process.locks.vmm);
	p = held(handle);
	if (p && !(p->prop.requestedHandleTypes & type))
		p = NULL;
	if (p)
		p->refs++;
	lock_drop(&process.locks.vmm);
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	ON(p->session);
	rc = export(p->handle, &fd);
	lock_take(&process.locks.vmm);
	p->refs--;
	drop(p, &over);
	lock_drop(&process.locks.vmm);
	ended = end(over);
	if (!rc)
		*(int *)out = fd;
	return rc ? rc : ended;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *fd,
					    CUmemAllocationHandleType type)
{
	struct sv_mem_share a = { .fd = (int)(intptr_t)fd };
	struct sv_mem_imported in;
	struct physical *p;
	struct handle *h;
	CUresult rc;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return sv_absent("cuMemImportFromShareableHandle", BY_FD);
	TRY(new_handle(&h));
	a.handle = h->o.handle;
	rc = share(SV_OP_cuMemImportFromShareableHandle, &a, &in);
	if (rc) {
		no_handle(h);
		return rc;
	}
	p = h->phys;
	p->len = in.len;
	p->imported = true;
	p->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p->prop.requestedHandleTypes = type;
	p->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p->prop.location.id = device_of(here);
	*out = p->handle;
	return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------ mapping */

static CUresult map_locked(uint64_t addr, uint64_t len, uint64_t handle)
{
	struct reserve *r = reserve_of(addr, len);
	struct physical *p = held(handle);
	struct sv_mem_map a = { addr, len, handle, 0 };
	struct mapping *m;
	CUresult rc;

	if (!r || !p || (p->len && len > p->len))
		return CUDA_ERROR_INVALID_VALUE;
	if (p->session != here)
		return sv_unsupported("cuMemMap", "the address is another device's than the memory");
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*m = (struct mapping){ addr, len, p, CU_MEM_ACCESS_FLAGS_PROT_NONE };
	if (space_take(r->maps, addr, len, m)) {
		free(m);
		return CUDA_ERROR_INVALID_VALUE;	/* part of the range is mapped already */
	}
	rc = send_try(SV_OP_cuMemMap, &a, sizeof(a));
	if (rc) {
		space_release(r->maps, addr);
		free(m);
		return rc;
	}
	p->maps++;
	return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr addr, size_t len, size_t offset,
		      CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult rc;

	/* An offset "must be zero currently" (cuMemMap). */
	if (!whole(addr) || !whole(len) || offset || flags)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	ON(session_at(addr) ?: here);
	do {
		lock_take(&process.locks.vmm);
		rc = map_locked(addr, len, handle);
		lock_drop(&process.locks.vmm);
	} while (send_again(&rc, sizeof(struct sv_mem_map)));
	return rc;
}

static CUresult unmap(struct reserve *r, struct mapping *m, void *arg)
{
	struct physical *p = m->phys;

	space_release(r->maps, m->va);
	free(m);
	p->maps--;
	drop(p, arg);
	return CUDA_SUCCESS;
}

static CUresult nothing(struct reserve *r, struct mapping *m, void *arg)
{
	(void)r;
	(void)m;
	(void)arg;
	return CUDA_SUCCESS;
}

API CUresult cuMemUnmap(CUdeviceptr addr, size_t len)
{
	struct sv_map a = { addr, len };
	struct physical *over = NULL;
	CUresult rc;

	TRY(session_check());
	ON(session_at(addr) ?: here);
	do {
		lock_take(&process.locks.vmm);
		rc = mappings(addr, len, nothing, NULL);
		if (!rc)
			rc = send_try(SV_OP_cuMemUnmap, &a, sizeof(a));
		if (!rc)
			rc = mappings(addr, len, unmap, &over);
		lock_drop(&process.locks.vmm);
	} while (send_again(&rc, sizeof(a)));
	return rc ? rc : end(over);
}

static CUresult set_access(struct reserve *r, struct mapping *m, void *arg)
{
	(void)r;
	m->access = *(const CUmemAccess_flags *)arg;
	return CUDA_SUCCESS;
}

static CUresult access_locked(uint64_t addr, uint64_t len, const CUmemAccessDesc *d)
{
	struct sv_mem_access a = { addr, len, d->flags, 0 };
	CUmemAccess_flags flags = d->flags;

	if (d->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return sv_unsupported("cuMemSetAccess", "device memory is the device's alone");
	if (!session_device(d->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (d->location.id != device_of(here))
		return d->flags ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : CUDA_SUCCESS;
	if (d->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
	    d->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
	    d->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(mappings(addr, len, nothing, NULL));
	TRY(send_try(SV_OP_cuMemSetAccess, &a, sizeof(a)));
	return mappings(addr, len, set_access, &flags);
}

API CUresult cuMemSetAccess(CUdeviceptr addr, size_t len, const CUmemAccessDesc *desc, size_t n)
{
	CUresult rc = CUDA_SUCCESS;

	if (!desc || !n)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	ON(session_at(addr) ?: here);
	for (size_t i = 0; !rc && i < n; i++)
		do {
			lock_take(&process.locks.vmm);
			rc = access_locked(addr, len, &desc[i]);
			lock_drop(&process.locks.vmm);
		} while (send_again(&rc, sizeof(struct sv_mem_access)));
	return rc;
}

API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *at, CUdeviceptr addr)
{
	struct reserve *r;
	struct mapping *m;

	if (!flags || !at || at->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(session_check());
	if (!session_device(at->id))
		return CUDA_ERROR_INVALID_DEVICE;
	lock_take(&process.locks.vmm);
	r = reserve_of(addr, 1);
	m = r ? mapping_of(r, addr) : NULL;
	if (m)
		*flags = at->id == device_of(r->m.session) ? m->access : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	lock_drop(&process.locks.vmm);
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ----------------------------------------------------------------------- queries of other files */

CUresult vmm_range(uint64_t addr, uint64_t len)
{
	CUresult rc = CUDA_SUCCESS;
	uint64_t at, end = addr + len;
	struct reserve *r;
	struct mapping *m;

	lock_take(&process.locks.vmm);
	r = reserve_of(addr, len);
	if (!r || end < addr)
		rc = CUDA_ERROR_INVALID_VALUE;
	for (at = addr; !rc && at < end; at = m->va + m->len) {
		m = mapping_of(r, at);
		if (!m || m->access == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
			rc = CUDA_ERROR_INVALID_VALUE;
			break;
		}
	}
	lock_drop(&process.locks.vmm);
	return rc;
}

bool vmm_find(uint64_t addr, uint64_t *base, uint64_t *len, uint64_t *handle, unsigned int *access)
{
	struct reserve *r;
	struct mapping *m;

	lock_take(&process.locks.vmm);
	r = reserve_of(addr, 1);
	m = r ? mapping_of(r, addr) : NULL;
	if (m) {
		*base = m->va;
		*len = m->len;
		*handle = m->phys->handle;
		*access = m->access;
	}
	lock_drop(&process.locks.vmm);
	return m;
}
