// SPDX-License-Identifier: GPL-2.0-only
/*
 * map.c - mappings of a channel: only at its own address; an end hangs up with its last mapping
 *
 * The first address space that maps an end owns it; others may map its arena alone, as guests,
 * whose mappings do not count. When the owner's last mapping is closed (munmap, exec, exit) the
 * end hangs up. Splitting a mapping opens the new half before anything closes, so the count does
 * not touch zero in between. A mapping cannot be moved: get_unmapped_area() knows one address. A
 * child has none (VM_DONTCOPY), and if its parent insists (MADV_DOFORK) the child's do not
 * count. A core dump would allocate all of a sparse arena, so it leaves the mapping out.
 */
#include <linux/mman.h>
#include <linux/pagemap.h>

#include "singvgpu_i.h"

static void vma_open(struct vm_area_struct *vma)
{
	struct sgv_end *end = vma->vm_private_data;
	struct sgv_channel *ch = end_channel(end);

	spin_lock(&ch->lock);
	if (end->mm == vma->vm_mm)
		end->nmap++;
	spin_unlock(&ch->lock);
}

static void vma_close(struct vm_area_struct *vma)
{
	struct sgv_end *end = vma->vm_private_data;
	struct sgv_channel *ch = end_channel(end);
	struct sgv_mm *watch = NULL;

	spin_lock(&ch->lock);
	if (end->mm == vma->vm_mm && !--end->nmap)
		watch = sgv_hang_up_locked(end, ch);
	spin_unlock(&ch->lock);
	sgv_after_hang_up(end, ch, watch);
}

/* get_unmapped_area() already refuses moves; this is a second check. */
static int vma_mremap(struct vm_area_struct *vma)
{
	return -EINVAL;
}

static vm_fault_t vma_fault(struct vm_fault *vmf)
{
	struct sgv_end *end = vmf->vma->vm_private_data;
	struct sgv_channel *ch = end_channel(end);
	struct page *page;

	if (vmf->pgoff >= end_length(end, ch) >> PAGE_SHIFT)
		return VM_FAULT_SIGBUS;
	sgv_count(faults);
	for (;;) {
		page = sgv_page_fault(ch, vmf->pgoff);
		if (IS_ERR(page))
			return PTR_ERR(page) == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
		/* Pairs with decommit_batch(). */
		lock_page(page);
		if (xa_load(&ch->pages, vmf->pgoff) == page)
			break;
		unlock_page(page);
		put_page(page);
	}
	vmf->page = page;
	return VM_FAULT_LOCKED;
}

static const struct vm_operations_struct vma_ops = {
	.open	= vma_open,
	.close	= vma_close,
	.mremap	= vma_mremap,
	.fault	= vma_fault,
};

/* The only address for this range, or -EINVAL, -EACCES. */
static unsigned long address_of(struct sgv_end *end, struct sgv_channel *ch,
				unsigned long pgoff, unsigned long len)
{
	u64 pages = ch->length >> PAGE_SHIFT;

	if (pgoff >= pages || len >> PAGE_SHIFT > pages - pgoff)
		return -EINVAL;
	if ((pgoff << PAGE_SHIFT) + len > end_length(end, ch))
		return -EACCES;
	return ch->va + (pgoff << PAGE_SHIFT);
}

/*
 * Called for MAP_FIXED, too, in which case the kernel then unmaps whatever is at the returned
 * address. So this checks that the range is free. mmap_lock is held, so the result stays valid.
 */
unsigned long sgv_get_unmapped_area(struct file *file, unsigned long addr, unsigned long len,
				    unsigned long pgoff, unsigned long flags)
{
	struct sgv_end *end = file->private_data;
	struct sgv_channel *ch = end_channel(end);
	unsigned long va;

	if (!ch)
		return -ENOTCONN;
	va = address_of(end, ch, pgoff, len);
	if (IS_ERR_VALUE(va))
		return va;
	if ((addr || flags & MAP_FIXED) && addr != va)
		return -EINVAL;
	if (find_vma_intersection(current->mm, va, va + len))
		return -EEXIST;
	return va;
}

static bool in_arena(const struct sgv_channel *ch, const struct vm_area_struct *vma)
{
	u64 off = (u64)vma->vm_pgoff << PAGE_SHIFT;

	return off >= ch->arena_off && off + (vma->vm_end - vma->vm_start) <= ch->log_off;
}

/*
 * Counts the mapping, unless it is a guest's. The first one makes its address space the owner of
 * the end, and takes over *watch.
 */
static int own_mapping(struct sgv_end *end, struct sgv_channel *ch,
		       const struct vm_area_struct *vma, struct sgv_mm **watch)
{
	struct mm_struct *mm = vma->vm_mm;
	int err = 0;

	spin_lock(&ch->lock);
	if (!end->attached) {
		err = -EPIPE;
	} else if (!end->mm) {
		end->mm = mm;
		end->nmap = 1;
		sgv_mm_add(end, *watch);
		*watch = NULL;
	} else if (end->mm == mm) {
		end->nmap++;
	} else if (!in_arena(ch, vma)) {
		err = -EBUSY;
	}
	spin_unlock(&ch->lock);
	return err;
}

int sgv_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct sgv_end *end = file->private_data;
	struct sgv_channel *ch = end_channel(end);
	struct sgv_mm *watch;
	int err;

	if (!ch)
		return -ENOTCONN;
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_flags & VM_EXEC)
		return -EINVAL;
	if (vma->vm_start != address_of(end, ch, vma->vm_pgoff, vma->vm_end - vma->vm_start))
		return -EINVAL;

	watch = sgv_mm_get(vma->vm_mm);
	if (IS_ERR(watch))
		return PTR_ERR(watch);
	err = own_mapping(end, ch, vma, &watch);
	sgv_mm_put(watch);
	if (err)
		return err;
	vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	vm_flags_clear(vma, VM_MAYEXEC);
	vma->vm_private_data = end;
	vma->vm_ops = &vma_ops;
	return 0;
}
