// SPDX-License-Identifier: GPL-2.0-only
/*
 * mm.c - hangs up the ends that an address space has mapped when its teardown begins
 *
 * The mappings of a dying process are closed only after all its memory has been freed, which takes
 * seconds if it is large. An MMU notifier is called before that. Each address space that has mapped
 * ends has one, which does nothing else and does not keep the address space alive.
 */
#include <linux/delay.h>
#include <linux/mmu_notifier.h>
#include <linux/rcupdate.h>

#include "singvgpu_i.h"

static atomic_t watches;		/* not freed yet */

struct sgv_mm {
	struct mmu_notifier mn;
	/*
	 * List of sgv_end.watched: the ends that have mappings here. It changes only with the
	 * mmap_lock of this address space held for writing, or when that has no user left; so
	 * mm_release() needs no lock.
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
 * The address space has no user left, but still has its mappings. These keep the files open, and so
 * the ends on the list alive. Hanging up takes an end off the list.
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
 * Called by mmap, with mmap_lock held for writing. sgv_mm_put() releases the watch. If a signal
 * interrupts it, mmap is restarted, since callers do not expect EINTR from mmap().
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

/* The channel's lock is held. The end takes over the watch. */
void sgv_mm_add(struct sgv_end *end, struct sgv_mm *watch)
{
	end->watch = watch;
	list_add(&end->watched, &watch->ends);
}

/*
 * The channel's lock is held. Returns the watch, which the caller puts without the lock, or NULL.
 */
struct sgv_mm *sgv_mm_del(struct sgv_end *end)
{
	struct sgv_mm *watch = end->watch;

	if (watch)
		list_del(&end->watched);
	end->watch = NULL;
	return watch;
}

/*
 * Notifiers are freed some time after they were put, by callbacks that run with bottom halves
 * off. One grace period after the last of them no CPU runs code of this module any more.
 */
void sgv_mm_exit(void)
{
	mmu_notifier_synchronize();
	while (atomic_read(&watches))
		msleep(20);
	synchronize_rcu();
}
