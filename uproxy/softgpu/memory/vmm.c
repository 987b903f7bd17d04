/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm.c - virtual memory management: reservations, physical memory and its mappings
 *
 * Physical memory is a part of its device's memfd, so that it can be mapped twice and does not take
 * a descriptor for every 2 MiB. Exportable memory has a memfd of its own, since a descriptor gives
 * access to the whole file. Memory lives while its handle is held or a mapping of it exists. A
 * reservation is a part of the window.
 */
#define _GNU_SOURCE
#include "soft_i.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct phys {
	struct obj o;
	int fd;
	off_t off;			/* in the device's file; 0: in a file of its own */
	bool own;
	size_t len;
	CUmemAllocationProp prop;
	struct device *dev;
	unsigned int handles, maps;
	bool imported;
};

static struct extents reserved;		/* merged: borders are in `borders` */
static struct extents borders;		/* unmerged list of reservations, sorted */

static struct {
	int fd;				/* the descriptor + 1; 0: none yet */
	struct extents free;
} files[SOFT_MAX_DEVICES];

/* A piece of the device's file, all zero. */
static int file_take(struct phys *p)
{
	int i = p->dev->ordinal, fd;
	uint64_t off;

	if (!files[i].fd) {
		fd = memfd_create("softcuda", MFD_CLOEXEC);
		/* offsets start at 2 MiB: 0 means none; twice the memory, against fragmentation */
		if (fd < 0 || ftruncate(fd, 2 * p->dev->total + PAGE_2M) ||
		    ext_put(&files[i].free, PAGE_2M, 2 * p->dev->total)) {
			if (fd >= 0)
				close(fd);
			return -ENOMEM;
		}
		files[i].fd = fd + 1;
	}
	off = ext_take(&files[i].free, p->len, PAGE_2M);
	if (!off)
		return -ENOMEM;
	p->fd = files[i].fd - 1;
	p->off = off;
	return 0;
}

static int own_file(struct phys *p)
{
	/* An importer must not be able to truncate it while others have it mapped. */
	p->fd = memfd_create("softcuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (p->fd < 0 || ftruncate(p->fd, p->len) ||
	    fcntl(p->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		if (p->fd >= 0)
			close(p->fd);
		return -ENOMEM;
	}
	p->own = true;
	return 0;
}

/* The file of profile_neighbours: what each process has. */
#define NEIGHBOURS 32
static struct neighbour {
	pid_t pid;
	uint64_t used[SOFT_MAX_DEVICES];
} *neighbours, *self;

static bool gone(pid_t pid)
{
	return !pid || (kill(pid, 0) && errno == ESRCH);
}

static void find_neighbours(void)
{
	size_t len = NEIGHBOURS * sizeof(*neighbours);
	int fd = open(profile_neighbours, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	void *p = MAP_FAILED;

	if (fd >= 0 && !ftruncate(fd, len))
		p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (p == MAP_FAILED) {
		soft_log("SINGVGPU_SOFT_PROFILE: %s cannot be shared", profile_neighbours);
		*profile_neighbours = 0;
		return;
	}
	neighbours = p;
	for (int i = 0; i < NEIGHBOURS && !self; i++) {
		pid_t was = __atomic_load_n(&neighbours[i].pid, __ATOMIC_RELAXED);

		/* pairs with itself: one process takes the place */
		if (gone(was) && __atomic_compare_exchange_n(&neighbours[i].pid, &was, getpid(), false,
							     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
			self = &neighbours[i];
			memset(self->used, 0, sizeof(self->used));
		}
	}
}

uint64_t device_room(struct device *dev)
{
	uint64_t room = dev->total - dev->used, theirs = 0;

	if (*profile_neighbours && !neighbours)
		find_neighbours();
	for (int i = 0; neighbours && i < NEIGHBOURS; i++)
		if (&neighbours[i] != self && !gone(neighbours[i].pid))
			theirs += __atomic_load_n(&neighbours[i].used[dev->ordinal], __ATOMIC_RELAXED);
	return theirs < room ? room - theirs : 0;
}

static void use(struct device *dev, int64_t bytes)
{
	dev->used += bytes;
	if (self)
		__atomic_store_n(&self->used[dev->ordinal], dev->used, __ATOMIC_RELAXED);
}

static void phys_put(struct phys *p)
{
	if (p->handles || p->maps)
		return;
	if (p->own) {
		close(p->fd);
	} else {
		fallocate(p->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, p->off, p->len);
		ext_put(&files[p->dev->ordinal].free, p->off, p->len);
	}
	if (p->dev && !p->imported)
		use(p->dev, -(int64_t)p->len);
	obj_del(p);
	free(p);
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
	if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return prop->location.type == CU_MEM_LOCATION_TYPE_INVALID ?
			       CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
	if (prop->location.id < 0 || prop->location.id >= ndevices)
		return CUDA_ERROR_INVALID_DEVICE;
	if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
				       CUmemAllocationGranularity_flags option)
{
	CUresult r = api_enter();

	if (r)
		return r;
	if (!granularity || !prop || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
				      option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
		return CUDA_ERROR_INVALID_VALUE;
	r = check_prop(prop);
	if (!r)
		*granularity = PAGE_2M;
	return r;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
			     unsigned long long flags)
{
	CUresult r;
	uint64_t va;

	if (!ptr || !size || size % PAGE_2M || flags || (alignment & (alignment - 1)))
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	if (profile_late_window && !ctx_current())
		return api_unlock(CUDA_ERROR_INVALID_CONTEXT);
	if (profile_no_hints || (profile_window_taken && addr == window_base))
		va = window_take_own(size, alignment < PAGE_2M ? PAGE_2M : alignment);
	else
		va = window_take(size, alignment < PAGE_2M ? PAGE_2M : alignment, addr);
	if (!va)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	if (ext_put(&reserved, va, size)) {
		window_put(va, size);
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	/* +1 keeps neighbours apart: borders of different reservations never merge */
	ext_put(&borders, va, size - 1);
	*ptr = va;
	return api_unlock(CUDA_SUCCESS);
}

static bool reservation_is(uint64_t va, size_t len)
{
	for (size_t i = 0; i < borders.n; i++)
		if (borders.e[i].va == va)
			return borders.e[i].len == len - 1;
	return false;
}

static bool inside_reserved(uint64_t va, size_t len)
{
	for (size_t i = 0; i < reserved.n; i++) {
		struct ext *e = &reserved.e[i];

		if (va >= e->va && len <= e->len && va - e->va <= e->len - len)
			return true;
	}
	return false;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	struct mem *m;
	CUresult r = api_lock();

	if (r)
		return r;
	if (!ptr || !size || !reservation_is(ptr, size))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (mem_next(ptr, &m) && m->va < ptr + size)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);	/* still mapped */
	ext_take_at(&borders, ptr, size - 1);
	ext_take_at(&reserved, ptr, size);
	window_put(ptr, size);
	return api_unlock(CUDA_SUCCESS);
}

/* Under the profile's slow-maps: waits for the device, and as long as n handles take. */
static void costs(uint64_t n)
{
	if (!profile_slow_maps)
		return;
	pthread_mutex_lock(&big);
	for (struct ctx *c = contexts; c; c = c->next)
		ctx_drain(c);
	pthread_mutex_unlock(&big);
	profile_cost(profile_slow_maps, n);
}

static uint64_t mappings_in(uint64_t ptr, size_t size)
{
	uint64_t n = 0;
	struct mem *m;

	pthread_mutex_lock(&big);
	for (uint64_t at = ptr; mem_next(at, &m) && m->va < ptr + size; at = m->va + m->len)
		n++;
	pthread_mutex_unlock(&big);
	return n;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct phys *p;
	struct device *dev;
	CUresult r;

	if (!handle || !size || size % PAGE_2M || !prop || flags)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	profile_cost(profile_slow_maps, 1);
	r = api_lock();
	if (r)
		return r;
	r = check_prop(prop);
	if (r)
		return api_unlock(r);
	dev = &devices[prop->location.id];
	if (size > device_room(dev))
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	p = calloc(1, sizeof(*p));
	if (!p)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	p->len = size;
	p->prop = *prop;
	p->dev = dev;
	if (prop->requestedHandleTypes ? own_file(p) : file_take(p)) {
		free(p);
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	p->handles = 1;
	use(dev, size);
	obj_add(p, OBJ_PHYS);
	*handle = (uint64_t)p;
	return api_unlock(CUDA_SUCCESS);
}

static struct phys *phys_get(CUmemGenericAllocationHandle h)
{
	struct phys *p = (void *)h;

	return obj_live(p, OBJ_PHYS) && p->handles ? p : NULL;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct phys *p;
	CUresult r = api_lock();

	if (r)
		return r;
	p = phys_get(handle);
	if (!p)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	p->handles--;
	phys_put(p);
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	struct phys *p;
	struct mem *m;
	CUresult r;

	costs(1);
	r = api_lock();
	if (r)
		return r;
	p = phys_get(handle);
	if (!p || flags || !size || size % PAGE_2M || ptr % PAGE_2M || offset ||
	    size > p->len || !inside_reserved(ptr, size))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (mem_next(ptr, &m) && m->va < ptr + size)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);	/* something is mapped there */
	m = mem_insert(ptr, size, MEM_VMM, NULL);
	if (!m)
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	if (mmap((void *)ptr, size, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd, p->off) ==
	    MAP_FAILED) {
		mem_remove(m);
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	m->dev = p->dev;
	m->prot = PROT_NONE;
	m->owner = p;
	p->maps++;
	return api_unlock(CUDA_SUCCESS);
}

/* Calls take whole mappings only: true if [ptr, ptr + size) consists of mappings. */
static bool whole_mappings(uint64_t ptr, size_t size)
{
	while (size) {
		struct mem *m = mem_find(ptr);

		if (!m || m->kind != MEM_VMM || m->va != ptr || m->len > size)
			return false;
		ptr += m->len;
		size -= m->len;
	}
	return true;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUresult r;

	costs(profile_slow_maps ? mappings_in(ptr, size) : 0);
	r = api_lock();
	if (r)
		return r;
	if (!size || !whole_mappings(ptr, size))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	/* Does not wait for running work, which faults if it uses the mapping, as on a device. */
	mmap((void *)ptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
	     -1, 0);
	while (size) {
		struct mem *m = mem_find(ptr);
		struct phys *p = m->owner;

		ptr += m->len;
		size -= m->len;
		mem_remove(m);
		p->maps--;
		phys_put(p);
	}
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	int prot = -1;
	CUresult r;

	if (!desc || !count || !size)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	costs(profile_slow_maps ? mappings_in(ptr, size) : 0);
	r = api_lock();
	if (r)
		return r;
	if (!whole_mappings(ptr, size))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count; i++) {
		int f = desc[i].flags;
		int p = f == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE :
			f == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ :
			f == CU_MEM_ACCESS_FLAGS_PROT_NONE ? PROT_NONE : -1;

		if (p < 0 || desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    desc[i].location.id < 0 || desc[i].location.id >= ndevices)
			return api_unlock(CUDA_ERROR_INVALID_VALUE);
		prot = prot < 0 ? p : prot | p;	/* devices share this address space */
	}
	for (struct mem *m; size; ptr += m->len, size -= m->len) {
		m = mem_find(ptr);
		if (mprotect((void *)ptr, m->len, prot))
			return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
		m->prot = prot;
	}
	return api_unlock(CUDA_SUCCESS);
}

/* The host shares the device's address space, so it has what the device has. */
CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	struct mem *m;
	CUresult r = api_enter();

	if (r)
		return r;
	if (!flags || !location || (location->type != CU_MEM_LOCATION_TYPE_HOST &&
				    (location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
				     location->id < 0 || location->id >= ndevices)))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&big);
	m = mem_find(ptr);
	if (!m || m->kind != MEM_VMM)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*flags = m->prot & PROT_WRITE ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE :
		 m->prot ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType handleType,
				      unsigned long long flags)
{
	struct phys *p;
	CUresult r = api_lock();
	int fd;

	if (r)
		return r;
	p = phys_get(handle);
	if (!p || !shareableHandle || flags)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return api_unlock(CUDA_ERROR_NOT_SUPPORTED);
	if (!(p->prop.requestedHandleTypes & handleType))
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return api_unlock(CUDA_ERROR_OPERATING_SYSTEM);
	*(int *)shareableHandle = fd;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
					CUmemAllocationHandleType shHandleType)
{
	int fd = (int)(intptr_t)osHandle, own, seals;
	struct phys *p;
	struct stat st;
	CUresult r;

	if (!handle)
		return api_enter() ?: CUDA_ERROR_INVALID_VALUE;
	r = api_lock();
	if (r)
		return r;
	if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return api_unlock(CUDA_ERROR_NOT_SUPPORTED);
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || !S_ISREG(st.st_mode) ||
	    !st.st_size || st.st_size % PAGE_2M)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	p = own < 0 ? NULL : calloc(1, sizeof(*p));
	if (!p) {
		if (own >= 0)
			close(own);
		return api_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	p->fd = own;
	p->own = true;
	p->len = st.st_size;
	p->imported = true;
	p->handles = 1;
	p->dev = &devices[0];
	p->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	p->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	obj_add(p, OBJ_PHYS);
	*handle = (uint64_t)p;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct mem *m;
	struct phys *p;
	CUresult r = api_lock();

	if (r)
		return r;
	m = handle ? mem_find((uint64_t)addr) : NULL;
	if (!m || m->kind != MEM_VMM)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	p = m->owner;
	p->handles++;
	*handle = (uint64_t)p;
	return api_unlock(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
						CUmemGenericAllocationHandle handle)
{
	struct phys *p;
	CUresult r = api_lock();

	if (r)
		return r;
	p = phys_get(handle);
	if (!p || !prop)
		return api_unlock(CUDA_ERROR_INVALID_VALUE);
	*prop = p->prop;
	return api_unlock(CUDA_SUCCESS);
}

unsigned long long vmm_handle_types(const struct mem *m)
{
	return ((struct phys *)m->owner)->prop.requestedHandleTypes;
}
