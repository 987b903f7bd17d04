// SPDX-License-Identifier: GPL-2.0-only
/*
 * memory.c - the pages of a channel: allocated on first use or by COMMIT, counted, freed
 *
 * For a page in ch->pages the channel holds one reference, one charge of the user and one count in
 * ch->npages. Pages of the control and completion regions and of the ring stay until the channel is
 * freed; those of the arena may be freed before, by DECOMMIT. Code that uses a page without the
 * channel's lock holds a reference; mappings, and devices that pinned the page, have their own.
 */
#include <linux/gfp.h>
#include <linux/pagemap.h>

#include "singvgpu_i.h"

atomic_long_t sgv_pages;

/* Pages requested by a system call: out of memory is an error of the call, without an OOM kill. */
#define GFP_ASKED (GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)

/* A zeroed page, charged to the channel's user and to the memory cgroup of this task. */
static struct page *page_alloc(struct sgv_channel *ch, gfp_t gfp)
{
	struct page *page;
	int err = sgv_user_charge(ch->user);

	if (err)
		return ERR_PTR(err);
	page = alloc_page(gfp | __GFP_ZERO);
	if (!page) {
		sgv_user_uncharge(ch->user, 1);
		return ERR_PTR(-ENOMEM);
	}
	return page;
}

/* Undoes page_alloc(), or drops the channel's reference. */
static void page_drop(struct sgv_channel *ch, struct page *page)
{
	sgv_user_uncharge(ch->user, 1);
	put_page(page);
}

static struct page *page_lookup(struct sgv_channel *ch, pgoff_t index)
{
	struct page *page;

	xa_lock(&ch->pages);
	page = xa_load(&ch->pages, index);
	if (page)
		get_page(page);
	xa_unlock(&ch->pages);
	return page;
}

/*
 * Puts a new page at its index, or drops it if there is one already. Returns the page at the
 * index with a reference, or -ENOMEM. An index that COMMIT has reserved counts as empty.
 */
static struct page *page_insert(struct sgv_channel *ch, pgoff_t index, struct page *new)
{
	XA_STATE(xas, &ch->pages, index);
	struct page *page;

	do {
		xas_lock(&xas);
		page = xas_load(&xas);
		if (!page || xa_is_zero(page)) {
			xas_store(&xas, new);
			page = new;
		}
		if (!xas_error(&xas))
			get_page(page);
		xas_unlock(&xas);
	} while (xas_nomem(&xas, GFP_KERNEL_ACCOUNT));

	if (xas_error(&xas)) {
		page_drop(ch, new);
		return ERR_PTR(xas_error(&xas));
	}
	if (page == new) {
		atomic_long_inc(&ch->npages);
		atomic_long_inc(&sgv_pages);
	} else {
		page_drop(ch, new);
	}
	return page;
}

static struct page *page_get(struct sgv_channel *ch, pgoff_t index, gfp_t gfp)
{
	struct page *page = page_lookup(ch, index);

	if (page)
		return page;
	page = page_alloc(ch, gfp);
	if (IS_ERR(page))
		return page;
	return page_insert(ch, index, page);
}

/* The page with a reference, allocated if need be; -EDQUOT, -ENOMEM. May sleep. */
struct page *sgv_page_get(struct sgv_channel *ch, pgoff_t index)
{
	return page_get(ch, index, GFP_ASKED);
}

/* The same for a fault, which may end in an OOM kill as for any other memory. */
struct page *sgv_page_fault(struct sgv_channel *ch, pgoff_t index)
{
	return page_get(ch, index, GFP_KERNEL_ACCOUNT);
}

/* Allocates the first page, the control page, which lives as long as the channel. */
int sgv_memory_init(struct sgv_channel *ch)
{
	struct page *page;

	xa_init_flags(&ch->pages, XA_FLAGS_ACCOUNT);
	page = sgv_page_get(ch, 0);
	if (IS_ERR(page))
		return PTR_ERR(page);
	ch->ctl = page_address(page);
	put_page(page);
	return 0;
}

/* Frees all pages of a channel that nothing else refers to. */
void sgv_memory_free(struct sgv_channel *ch)
{
	unsigned long index;
	struct page *page;
	long n = 0;

	xa_for_each(&ch->pages, index, page) {
		put_page(page);
		if (!(++n & 1023))
			cond_resched();
	}
	xa_destroy(&ch->pages);
	atomic_long_sub(n, &sgv_pages);
	sgv_user_uncharge(ch->user, n);
}

/* Page numbers [*first, *end) of a range, which must be whole pages within [low, high). */
static int range_pages(const struct singvgpu_range *range, u64 low, u64 high,
		       pgoff_t *first, pgoff_t *end)
{
	if (!PAGE_ALIGNED(range->off) || !PAGE_ALIGNED(range->len))
		return -EINVAL;
	if (range->off < low || range->off > high || range->len > high - range->off)
		return -EINVAL;
	*first = range->off >> PAGE_SHIFT;
	*end = *first + (range->len >> PAGE_SHIFT);
	return 0;
}

/*
 * Reserves the indices and allocates all missing pages, so that inserting them cannot fail later. A
 * page that has been inserted must not be removed again on an error, since it may have been written
 * to. *index: where it has stopped.
 */
static int commit_prepare(struct sgv_channel *ch, pgoff_t *index, pgoff_t end,
			  struct list_head *pages)
{
	struct page *page;
	int err;

	for (; *index < end; ++*index) {
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
		if (xa_load(&ch->pages, *index))
			continue;
		page = page_alloc(ch, GFP_ASKED);
		if (IS_ERR(page))
			return PTR_ERR(page);
		list_add(&page->lru, pages);
		err = xa_reserve(&ch->pages, *index, GFP_KERNEL_ACCOUNT);
		if (err)
			return err;
	}
	return 0;
}

/* Releases the indices that commit_prepare() has reserved, except where a fault has put a page. */
static void commit_undo(struct sgv_channel *ch, pgoff_t first, pgoff_t end)
{
	for (; first < end; first++) {
		xa_release(&ch->pages, first);
		cond_resched();
	}
}

static struct page *list_page(struct list_head *pages)
{
	struct page *page = list_first_entry_or_null(pages, struct page, lru);

	if (page)
		list_del(&page->lru);
	return page;
}

static void commit_finish(struct sgv_channel *ch, pgoff_t first, pgoff_t end,
			  struct list_head *pages)
{
	struct page *page;
	pgoff_t index;

	for (index = first; index < end; index++) {
		cond_resched();
		if (xa_load(&ch->pages, index))
			continue;
		page = page_insert(ch, index, list_page(pages));
		if (!WARN_ON_ONCE(IS_ERR(page)))
			put_page(page);
	}
}

long sgv_commit(struct sgv_channel *ch, u64 limit, const struct singvgpu_range *range)
{
	pgoff_t first, end, index;
	struct page *page;
	LIST_HEAD(pages);
	int err;

	err = range_pages(range, 0, limit, &first, &end);
	if (err)
		return err;
	if (mutex_lock_killable(&ch->commit))
		return -EINTR;
	index = first;
	err = commit_prepare(ch, &index, end, &pages);
	if (!err)
		commit_finish(ch, first, end, &pages);
	else
		commit_undo(ch, first, index);
	mutex_unlock(&ch->commit);

	/* The pages for which a fault was faster, or all after an error. */
	while ((page = list_page(&pages)))
		page_drop(ch, page);
	return err;
}

#define DECOMMIT_BATCH 64

/*
 * Removes up to DECOMMIT_BATCH pages from *index on from the channel. A fault takes the page's
 * lock, checks that the page is still in ch->pages, and maps it. So once we hold the lock, a
 * fault has either mapped the page, and unmapping finds it, or will find the page missing in
 * ch->pages.
 */
static unsigned int decommit_batch(struct sgv_channel *ch, pgoff_t *index, pgoff_t end,
				   struct page **pages)
{
	unsigned int n = 0;
	struct page *page;

	while (n < DECOMMIT_BATCH && *index < end) {
		page = xa_find(&ch->pages, index, end - 1, XA_PRESENT);
		if (!page) {
			*index = end;
			break;
		}
		lock_page(page);
		xa_erase(&ch->pages, *index);
		unlock_page(page);
		pages[n++] = page;
		++*index;
	}
	return n;
}

long sgv_decommit(struct sgv_channel *ch, const struct singvgpu_range *range)
{
	struct page *pages[DECOMMIT_BATCH];
	pgoff_t first, start, end;
	unsigned int n, i;
	int err;

	err = range_pages(range, ch->arena_off, ch->log_off, &first, &end);
	if (err)
		return err;
	if (mutex_lock_killable(&ch->commit))
		return -EINTR;
	while (first < end && !err) {
		start = first;
		n = decommit_batch(ch, &first, end, pages);
		if (n)
			unmap_mapping_range(ch->inode->i_mapping, (loff_t)start << PAGE_SHIFT,
					    (loff_t)(first - start) << PAGE_SHIFT, 1);
		for (i = 0; i < n; i++)
			page_drop(ch, pages[i]);
		atomic_long_sub(n, &ch->npages);
		atomic_long_sub(n, &sgv_pages);
		if (fatal_signal_pending(current))
			err = -EINTR;
		cond_resched();
	}
	mutex_unlock(&ch->commit);
	return err;
}
