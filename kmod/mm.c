// SPDX-License-Identifier: GPL-2.0-only
/*
 * mm.c - tells the peers of an address space that it has begun to go
 *
 * The mappings of a process that dies are closed only after all its memory has been freed, which
 * takes seconds where it is large. An MMU notifier is told first. There is one in each address
 * space that has mapped ends, and it has no other part in the life of that address space.
 */
#include <linux/delay.h>
#include <linux/mmu_notifier.h>
#include <linux/rcupdate.h>

#include "singvgpu_i.h"

static atomic_t watches;		/* not freed yet */

struct sgv_mm {
	struct mmu_notifier mn;
	/*
	 * sgv_end.watched: the ends that have mappings here. Changed with the mmap_lock of this
	 * address space held for writing, or when it has no user left; so mm_release() has it
	 * for itself.
	 */
	struct list_head ends;
};

static struct mmu_notifier *mm_alloc_notifier(struct mm_struct *mm)
{
	struct sgv_mm *watch = kzalloc(sizeof(*watch), GFP_KERNEL_ACCOUNT);

	if (!watch)
		return ERR_PTR(-ENOMEM);
	INIT_LIST_HEAD(&watch->ends);
	atomic_inc(&watches);
	return &watch->mn;
}

static void mm_free_notifier(struct mmu_notifier *mn)
{
	kfree(container_of(mn, struct sgv_mm, mn));
	atomic_dec(&watches);
}

/*
 * The address space has no user left and all its mappings yet, which keep the files, and so the
 * ends on the list. Hanging up takes an end off the list.
 */
static void mm_release(struct mmu_notifier *mn, struct mm_struct *mm)
{
	struct sgv_mm *watch = container_of(mn, struct sgv_mm, mn);
	struct sgv_end *end, *next;

	list_for_each_entry_safe(end, next, &watch->ends, watched)
		sgv_hang_up(end);
}

static const struct mmu_notifier_ops mm_ops = {
	.release	= mm_release,
	.alloc_notifier	= mm_alloc_notifier,
	.free_notifier	= mm_free_notifier,
};

/*
 * From mmap, with mmap_lock held for writing. The watch is released by sgv_mm_put(). A signal can
 * get in the way, which nobody expects of mmap(): the call is then made again.
 */
struct sgv_mm *sgv_mm_get(struct mm_struct *mm)
{
	struct mmu_notifier *mn = mmu_notifier_get_locked(&mm_ops, mm);

	if (PTR_ERR_OR_ZERO(mn) == -EINTR)
		return ERR_PTR(-ERESTARTNOINTR);
	return IS_ERR(mn) ? ERR_CAST(mn) : container_of(mn, struct sgv_mm, mn);
}

void sgv_mm_put(struct sgv_mm *watch)
{
	if (watch)
		mmu_notifier_put(&watch->mn);
}

/* The end's lock is held. The watch is the end's from now on. */
void sgv_mm_add(struct sgv_end *end, struct sgv_mm *watch)
{
	end->watch = watch;
	list_add(&end->watched, &watch->ends);
}

/* The end's lock is held. Returns what is to be put after that, or NULL. */
struct sgv_mm *sgv_mm_del(struct sgv_end *end)
{
	struct sgv_mm *watch = end->watch;

	if (watch)
		list_del(&end->watched);
	end->watch = NULL;
	return watch;
}

/*
 * Notifiers are freed some time after they were put, by callbacks that run with bottom halves off:
 * the last of them has returned to the kernel's own code one grace period later.
 */
void sgv_mm_exit(void)
{
	mmu_notifier_synchronize();
	while (atomic_read(&watches))
		msleep(20);
	synchronize_rcu();
}
