// SPDX-License-Identifier: GPL-2.0-only
/*
 * rw.c - a channel as a sparse file: lseek, pread and pwrite, for saving and re-creating it
 *
 * Pages that are not allocated are holes, and read as zeros.
 */
#include <linux/uio.h>

#include "singvgpu_i.h"

/* The first page number from index on that holds no page. -EINTR: the task is being killed. */
static loff_t next_hole(struct sgv_channel *ch, pgoff_t index, pgoff_t end)
{
	while (index < end && xa_load(&ch->pages, index)) {
		if (++index & 1023)
			continue;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return index;
}

static loff_t seek_pages(struct sgv_channel *ch, loff_t off, int whence, u64 length)
{
	pgoff_t end = length >> PAGE_SHIFT;
	unsigned long index = off >> PAGE_SHIFT;
	loff_t found;

	if (off < 0 || off >= length)
		return -ENXIO;
	if (whence == SEEK_DATA) {
		if (!xa_find(&ch->pages, &index, end - 1, XA_PRESENT))
			return -ENXIO;
		found = index;
	} else {
		found = next_hole(ch, index, end);
		if (found < 0)
			return found;
	}
	return max_t(loff_t, off, found << PAGE_SHIFT);
}

loff_t sgv_llseek(struct file *file, loff_t off, int whence)
{
	struct sgv_end *end = file->private_data;
	struct sgv_channel *ch = end_channel(end);
	u64 length;

	if (!ch)
		return -ENOTCONN;
	length = end_length(end, ch);
	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		return generic_file_llseek_size(file, off, whence, length, length);
	off = seek_pages(ch, off, whence, length);
	return off < 0 ? off : vfs_setpos(file, off, length);
}

/* The proxy's channel, or an error. */
static struct sgv_channel *proxy_channel(struct file *file)
{
	struct sgv_end *end = file->private_data;
	struct sgv_channel *ch = end_channel(end);

	if (!ch)
		return ERR_PTR(-ENOTCONN);
	return end->role == SINGVGPU_ROLE_PROXY ? ch : ERR_PTR(-EACCES);
}

/* Bytes from pos to the first of: the end of its page, of the channel, of the iterator. */
static size_t chunk(struct sgv_channel *ch, loff_t pos, struct iov_iter *iter)
{
	size_t n = min_t(u64, ch->length - pos, PAGE_SIZE - offset_in_page(pos));

	return min(n, iov_iter_count(iter));
}

static size_t read_chunk(struct sgv_channel *ch, loff_t pos, size_t n, struct iov_iter *to)
{
	struct page *page;
	size_t done;

	xa_lock(&ch->pages);
	page = xa_load(&ch->pages, pos >> PAGE_SHIFT);
	if (page)
		get_page(page);
	xa_unlock(&ch->pages);
	if (!page)
		return iov_iter_zero(n, to);
	done = copy_page_to_iter(page, offset_in_page(pos), n, to);
	put_page(page);
	return done;
}

static ssize_t write_chunk(struct sgv_channel *ch, loff_t pos, size_t n, struct iov_iter *from)
{
	struct page *page = sgv_page_get(ch, pos >> PAGE_SHIFT);
	size_t done;

	if (IS_ERR(page))
		return PTR_ERR(page);
	done = copy_page_from_iter(page, offset_in_page(pos), n, from);
	put_page(page);
	return done;
}

static ssize_t transfer(struct kiocb *iocb, struct iov_iter *iter, bool write)
{
	struct sgv_channel *ch = proxy_channel(iocb->ki_filp);
	ssize_t done, total = 0;
	loff_t pos = iocb->ki_pos;
	size_t n;

	if (IS_ERR(ch))
		return PTR_ERR(ch);
	if (write && iov_iter_count(iter) && pos >= ch->length)
		return -ENOSPC;
	while (iov_iter_count(iter) && pos < ch->length) {
		n = chunk(ch, pos, iter);
		done = write ? write_chunk(ch, pos, n, iter) : read_chunk(ch, pos, n, iter);
		if (done > 0) {
			pos += done;
			total += done;
		} else if (!total) {
			total = done ? done : -EFAULT;
		}
		if (done != n)
			break;
		if (signal_pending(current)) {
			total = total ? total : -EINTR;
			break;
		}
		cond_resched();
	}
	iocb->ki_pos = pos;
	return total;
}

ssize_t sgv_read_iter(struct kiocb *iocb, struct iov_iter *to)
{
	return transfer(iocb, to, false);
}

ssize_t sgv_write_iter(struct kiocb *iocb, struct iov_iter *from)
{
	return transfer(iocb, from, true);
}
