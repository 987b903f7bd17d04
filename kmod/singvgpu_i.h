/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * singvgpu_i.h - the module's structures: channels, their ends, users, and the locks
 *
 *   open()          CREATE             ATTACH                    last file or last mapping gone
 *   +------+  create_channel()    attach_channel()                        hang_up()
 *   | end, |------------------> proxy end, attached ---------------> proxy end, hung up
 *   | role |
 *   | none |------------------> client end, attached ---------------> client end, hung up
 *   +------+                          ^                                      |
 *                                     '-------- ATTACH of the same file -----'
 *
 * An open file is an end. An end that has a channel holds a reference to it and so to its pages,
 * attached or hung up, until release(). A channel is found by its id from CREATE until its proxy
 * end hangs up.
 *
 * Locks, outer first: mmap_lock or end->setup; ch->commit; page lock; ch->lock; poll queues. The
 * table's lock comes before ch->lock; no lock is taken under the users' or the xarray's lock.
 */
#ifndef _SINGVGPU_I_H
#define _SINGVGPU_I_H

#include <linux/atomic.h>
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/poll.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/xarray.h>

#include <linux/singvgpu.h>

#include "compat.h"

#ifndef CONFIG_64BIT
#error "singvgpu: only 64-bit kernels have the address space for it"
#endif
#if PAGE_SHIFT != 12
#error "singvgpu: the layout of a channel is made of pages of 4 KiB"
#endif

/* What one user holds, over all channels. */
struct sgv_user {
	struct hlist_node node;		/* users' lock */
	kuid_t uid;
	unsigned int refs;		/* users' lock; one a channel */
	atomic_long_t pages;
};

#define SGV_WAIT_BUCKETS 16

struct sgv_channel {
	/* Constant from CREATE on; checked then and never read back from the control page. */
	struct singvgpu_ctl *ctl;	/* page 0 */
	u64 va;
	u64 ring_off;
	u64 arena_off;
	u64 log_off;
	u64 length;
	struct singvgpu_geometry geo;
	u64 id[2];
	u64 cookie[2];
	kuid_t owner;
	struct sgv_user *user;
	struct inode *inode;		/* its i_mapping is that of all files of the channel */

	spinlock_t lock;		/* ends, waiters */
	struct sgv_end *proxy;		/* lock; NULL once it has hung up */
	struct sgv_end *client;		/* lock; NULL while none is attached */
	bool client_gone;		/* lock; a client was attached and has hung up */
	bool frozen;			/* lock */
	u32 generation;			/* lock */
	struct list_head waiters[SGV_WAIT_BUCKETS];	/* lock */

	struct mutex commit;		/* one COMMIT or DECOMMIT at a time */
	struct xarray pages;		/* struct page by page number, from va */
	atomic_long_t npages;

	refcount_t refs;		/* one an end, one while it is found by id */
	struct hlist_node by_id;	/* table's lock; unhashed once the proxy has hung up */
	struct list_head all;		/* table's lock */
};

/* An open file. */
struct sgv_end {
	struct sgv_channel *ch;		/* set once, by CREATE or ATTACH; see end_channel() */
	u32 role;			/* SINGVGPU_ROLE_*, constant once ch is set */
	u32 doorbell_seen;		/* lock; of the proxy's last WAIT on the doorbell */
	bool attached;			/* lock */
	bool news;			/* lock; proxy: a client has attached since GET_INFO */
	struct mm_struct *mm;		/* lock; owner of the mappings; NULL: none yet, or gone */
	unsigned long nmap;		/* lock; mappings in mm; not 0 while mm is set */
	struct sgv_mm *watch;		/* lock; set while mm is */
	struct list_head watched;	/* see sgv_mm.ends */
	wait_queue_head_t poll;
	struct mutex setup;		/* CREATE and ATTACH of this file */
};

/* The channel of an end, or NULL. */
static inline struct sgv_channel *end_channel(struct sgv_end *end)
{
	/* Pairs with the release in set_channel(): what it points to is complete. */
	return smp_load_acquire(&end->ch);
}

/* How many bytes of the channel an end may map and pass to ioctls. */
static inline u64 end_length(const struct sgv_end *end, const struct sgv_channel *ch)
{
	return end->role == SINGVGPU_ROLE_CLIENT ? ch->log_off : ch->length;
}

/* Statistics for debugfs, per CPU; the reader adds them up. */
struct sgv_stats {
	u64 waits;		/* WAIT and WAKE_WAIT */
	u64 sleeps;		/* of them, those that slept */
	u64 wakes;		/* WAKE and WAKE_WAIT */
	u64 woken;		/* waiters woken by them */
	u64 faults;
	u64 creates;
	u64 attaches;
	u64 hangups;
};

DECLARE_PER_CPU(struct sgv_stats, sgv_stats);
extern atomic_long_t sgv_pages;		/* held by all channels */
extern atomic_long_t sgv_channels;	/* in memory */
#define sgv_count(what) this_cpu_inc(sgv_stats.what)

/* user.c: -EDQUOT where a limit is reached, -ENOMEM. */
struct sgv_user *sgv_user_get(kuid_t uid);
void sgv_user_put(struct sgv_user *user);
int sgv_user_charge(struct sgv_user *user);
void sgv_user_uncharge(struct sgv_user *user, long pages);
u64 sgv_channel_limit(void);

/* channel.c */
int sgv_channel_init(void);
void sgv_channel_exit(void);
long sgv_create(struct file *file, const struct singvgpu_create *arg);
long sgv_attach(struct file *file, struct singvgpu_attach *arg);
void sgv_hang_up(struct sgv_end *end);
struct sgv_mm *sgv_hang_up_locked(struct sgv_end *end, struct sgv_channel *ch);
void sgv_after_hang_up(struct sgv_end *end, struct sgv_channel *ch, struct sgv_mm *watch);
void sgv_channel_put(struct sgv_channel *ch);
void sgv_channel_info(struct sgv_end *end, struct singvgpu_info *info);
void sgv_news_read(struct sgv_end *end);
void sgv_channels_show(struct seq_file *m);

/* memory.c */
int sgv_memory_init(struct sgv_channel *ch);
void sgv_memory_free(struct sgv_channel *ch);
struct page *sgv_page_get(struct sgv_channel *ch, pgoff_t index);
struct page *sgv_page_fault(struct sgv_channel *ch, pgoff_t index);
long sgv_commit(struct sgv_channel *ch, u64 limit, const struct singvgpu_range *range);
long sgv_decommit(struct sgv_channel *ch, const struct singvgpu_range *range);

/* map.c */
int sgv_mmap(struct file *file, struct vm_area_struct *vma);
unsigned long sgv_get_unmapped_area(struct file *file, unsigned long addr, unsigned long len,
				    unsigned long pgoff, unsigned long flags);

/* rw.c */
loff_t sgv_llseek(struct file *file, loff_t off, int whence);
ssize_t sgv_read_iter(struct kiocb *iocb, struct iov_iter *to);
ssize_t sgv_write_iter(struct kiocb *iocb, struct iov_iter *from);

/* mm.c: hangs up an address space's ends as soon as its teardown begins. */
struct sgv_mm *sgv_mm_get(struct mm_struct *mm);
void sgv_mm_put(struct sgv_mm *watch);
void sgv_mm_add(struct sgv_end *end, struct sgv_mm *watch);
struct sgv_mm *sgv_mm_del(struct sgv_end *end);
void sgv_mm_exit(void);

/* wait.c */
long sgv_wake(struct sgv_channel *ch, const struct singvgpu_wake *arg);
long sgv_wait(struct sgv_end *end, struct sgv_channel *ch, struct singvgpu_wait *arg,
	      const struct singvgpu_wake *wake);
void sgv_wake_all(struct sgv_channel *ch, int result);
int sgv_freeze(struct sgv_end *end, struct sgv_channel *ch, bool freeze);
__poll_t sgv_poll(struct file *file, poll_table *pt);

/* ioctl.c */
long sgv_ioctl(struct file *file, unsigned int cmd, unsigned long arg);

/* debugfs.c */
void sgv_debugfs_init(void);
void sgv_debugfs_exit(void);

#endif /* _SINGVGPU_I_H */
