// SPDX-License-Identifier: GPL-2.0-only
/*
 * channel.c - the life of a channel: made, found by its id, attached, hung up, freed
 *
 * A channel is in the table from CREATE until its proxy end hangs up. So the next proxy can use
 * the id at once, even while a client still holds the old channel's memory.
 */
#include <linux/fs_context.h>
#include <linux/hash.h>
#include <linux/hashtable.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/overflow.h>
#include <linux/pseudo_fs.h>

#include "singvgpu_i.h"

static DEFINE_HASHTABLE(table, 10);	/* by_id; table_lock */
static LIST_HEAD(channels);		/* all; table_lock */
static DEFINE_SPINLOCK(table_lock);

DEFINE_PER_CPU(struct sgv_stats, sgv_stats);
atomic_long_t sgv_channels;

/*
 * Each channel has an inode of this internal file system, for its i_mapping: DECOMMIT must find the
 * mappings of one channel, and the device's own i_mapping is shared by all its files.
 */
static struct vfsmount *channel_mnt;

static int channel_fs_init_context(struct fs_context *fc)
{
	return init_pseudo(fc, SINGVGPU_IOC_MAGIC) ? 0 : -ENOMEM;
}

/* No owner: the module's own mount must not prevent its unloading. */
static struct file_system_type channel_fs = {
	.name			= "singvgpu",
	.init_fs_context	= channel_fs_init_context,
	.kill_sb		= kill_anon_super,
};

int sgv_channel_init(void)
{
	channel_mnt = kern_mount(&channel_fs);
	return PTR_ERR_OR_ZERO(channel_mnt);
}

void sgv_channel_exit(void)
{
	kern_unmount(channel_mnt);
}

static bool is_zero(const u64 v[2])
{
	return !(v[0] | v[1]);
}

/* In constant time, so that the time does not reveal how much of a guess is right. */
static bool is_equal(const u64 a[2], const u64 b[2])
{
	return !((a[0] ^ b[0]) | (a[1] ^ b[1]));
}

static u32 id_hash(const u64 id[2])
{
	return hash_64(id[0] ^ id[1], HASH_BITS(table));
}

/* table_lock is held. A channel whose proxy has hung up is about to be taken out. */
static struct sgv_channel *find_channel(const u64 id[2])
{
	struct sgv_channel *ch;

	hlist_for_each_entry(ch, &table[id_hash(id)], by_id)
		if (is_equal(ch->id, id) && READ_ONCE(ch->proxy))
			return ch;
	return NULL;
}

static void free_channel(struct sgv_channel *ch)
{
	spin_lock(&table_lock);
	list_del(&ch->all);
	spin_unlock(&table_lock);
	sgv_memory_free(ch);
	iput(ch->inode);
	sgv_user_put(ch->user);
	kfree_sensitive(ch);
	atomic_long_dec(&sgv_channels);
}

void sgv_channel_put(struct sgv_channel *ch)
{
	if (refcount_dec_and_test(&ch->refs))
		free_channel(ch);
}

/* Offsets of the regions, checked against overflow and against where mappings commonly end. */
static int set_geometry(struct sgv_channel *ch, const struct singvgpu_geometry *geo)
{
	u64 end;

	if (!is_power_of_2(geo->ring_units) || geo->ring_units < SINGVGPU_RING_UNITS_MIN ||
	    geo->ring_units > SINGVGPU_RING_UNITS_MAX)
		return -EINVAL;
	if (!geo->cpl_slots || geo->cpl_slots > SINGVGPU_CPL_SLOTS_MAX)
		return -EINVAL;
	if (!geo->va || !PAGE_ALIGNED(geo->va | geo->arena_len | geo->log_len))
		return -EINVAL;

	ch->ring_off = PAGE_SIZE + PAGE_ALIGN((u64)geo->cpl_slots * sizeof(struct singvgpu_cpl));
	ch->arena_off = ch->ring_off + PAGE_ALIGN((u64)geo->ring_units * SINGVGPU_UNIT);
	if (check_add_overflow(ch->arena_off, geo->arena_len, &ch->log_off) ||
	    check_add_overflow(ch->log_off, geo->log_len, &ch->length) ||
	    check_add_overflow(ch->length, geo->va, &end) || end > DEFAULT_MAP_WINDOW)
		return -EINVAL;
	if (ch->length > sgv_channel_limit())
		return -EDQUOT;
	ch->va = geo->va;
	ch->geo = *geo;
	return 0;
}

static void fill_control_page(struct sgv_channel *ch)
{
	struct singvgpu_ctl *ctl = ch->ctl;

	ctl->magic = SINGVGPU_MAGIC;
	ctl->api_version = SINGVGPU_API_VERSION;
	ctl->ring_units = ch->geo.ring_units;
	memcpy(ctl->id, ch->id, sizeof(ctl->id));
	ctl->va = ch->va;
	ctl->cpl_slots = ch->geo.cpl_slots;
	ctl->cpl_off = PAGE_SIZE;
	ctl->ring_off = ch->ring_off;
	ctl->arena_off = ch->arena_off;
	ctl->arena_len = ch->geo.arena_len;
	ctl->log_off = ch->log_off;
	ctl->log_len = ch->geo.log_len;
	ctl->cons = ch->generation << SINGVGPU_CONS_GEN_SHIFT;
}

static struct sgv_channel *new_channel(const struct singvgpu_create *arg)
{
	struct sgv_channel *ch;
	int err, i;

	ch = kzalloc(sizeof(*ch), GFP_KERNEL_ACCOUNT);
	if (!ch)
		return ERR_PTR(-ENOMEM);
	memcpy(ch->id, arg->id, sizeof(ch->id));
	memcpy(ch->cookie, arg->cookie, sizeof(ch->cookie));
	ch->generation = arg->generation;
	ch->owner = current_euid();
	spin_lock_init(&ch->lock);
	mutex_init(&ch->commit);
	refcount_set(&ch->refs, 1);
	for (i = 0; i < SGV_WAIT_BUCKETS; i++)
		INIT_LIST_HEAD(&ch->waiters[i]);

	err = set_geometry(ch, &arg->geo);
	if (err)
		goto free;
	ch->user = sgv_user_get(ch->owner);
	if (IS_ERR(ch->user)) {
		err = PTR_ERR(ch->user);
		goto free;
	}
	ch->inode = alloc_anon_inode(channel_mnt->mnt_sb);
	if (IS_ERR(ch->inode)) {
		err = PTR_ERR(ch->inode);
		goto put_user;
	}
	err = sgv_memory_init(ch);
	if (err)
		goto put_inode;
	fill_control_page(ch);
	atomic_long_inc(&sgv_channels);
	return ch;

put_inode:
	iput(ch->inode);
put_user:
	sgv_user_put(ch->user);
free:
	kfree_sensitive(ch);
	return ERR_PTR(err);
}

/* Makes the file an end of the channel, for good. Takes over a reference. end->setup is held. */
static void set_channel(struct file *file, struct sgv_channel *ch, u32 role)
{
	struct sgv_end *end = file->private_data;

	end->role = role;
	file->f_mapping = ch->inode->i_mapping;
	/* Pairs with end_channel(). */
	smp_store_release(&end->ch, ch);
}

static int create_channel(struct file *file, const struct singvgpu_create *arg)
{
	struct sgv_end *end = file->private_data;
	struct sgv_channel *ch;

	if (end->ch)
		return -EBUSY;
	ch = new_channel(arg);
	if (IS_ERR(ch))
		return PTR_ERR(ch);
	spin_lock(&table_lock);
	list_add(&ch->all, &channels);
	if (find_channel(ch->id)) {
		spin_unlock(&table_lock);
		sgv_channel_put(ch);
		return -EEXIST;
	}
	refcount_inc(&ch->refs);
	ch->proxy = end;
	end->attached = true;
	hlist_add_head(&ch->by_id, &table[id_hash(ch->id)]);
	spin_unlock(&table_lock);
	set_channel(file, ch, SINGVGPU_ROLE_PROXY);
	sgv_count(creates);
	return 0;
}

long sgv_create(struct file *file, const struct singvgpu_create *arg)
{
	struct sgv_end *end = file->private_data;
	u64 id[2], cookie[2];
	int err;

	if (arg->api_version != SINGVGPU_API_VERSION)
		return -EPROTONOSUPPORT;
	memcpy(id, arg->id, sizeof(id));
	memcpy(cookie, arg->cookie, sizeof(cookie));
	if (arg->flags || arg->reserved || is_zero(id) || is_zero(cookie))
		return -EINVAL;
	if (mutex_lock_killable(&end->setup))
		return -EINTR;
	err = create_channel(file, arg);
	mutex_unlock(&end->setup);
	return err;
}

static bool may_attach(const struct sgv_channel *ch)
{
	/* Root restores other users' jobs. */
	return uid_eq(current_euid(), ch->owner) || capable(CAP_SYS_PTRACE) ||
	       capable(CAP_SYS_ADMIN);
}

/* The channel with a reference, or NULL, whether it does not exist or may not be attached. */
static struct sgv_channel *find_and_get(const struct singvgpu_attach *arg)
{
	u64 id[2], cookie[2];
	struct sgv_channel *ch;

	memcpy(id, arg->id, sizeof(id));
	memcpy(cookie, arg->cookie, sizeof(cookie));
	spin_lock(&table_lock);
	ch = find_channel(id);
	if (ch)
		refcount_inc(&ch->refs);
	spin_unlock(&table_lock);
	if (ch && !(is_equal(ch->cookie, cookie) && may_attach(ch))) {
		sgv_channel_put(ch);
		ch = NULL;
	}
	return ch;
}

/*
 * Writes the generation into its bits of `cons`, while the proxy may change the other bits. The
 * number of tries is limited, since a hostile proxy could change them all the time.
 */
static void publish_generation(struct sgv_channel *ch)
{
	u32 *cons = &ch->ctl->cons, old, new;
	const u32 flags = (1U << SINGVGPU_CONS_GEN_SHIFT) - 1;
	int tries;

	for (tries = 0; tries < 1000; tries++) {
		old = READ_ONCE(*cons);
		new = (old & flags) | ch->generation << SINGVGPU_CONS_GEN_SHIFT;
		if (cmpxchg(cons, old, new) == old)
			return;
	}
	WRITE_ONCE(*cons, new);
}

/* ch->lock is held. */
static int attach_channel(struct sgv_end *end, struct sgv_channel *ch)
{
	struct singvgpu_ctl *ctl = ch->ctl;

	if (!ch->proxy)
		return -EPIPE;
	if (ch->client)
		return -EBUSY;
	if (ch->client_gone) {
		ch->generation++;
		publish_generation(ch);
		atomic_andnot(SINGVGPU_LIFE_DIED, (atomic_t *)&ctl->client_life);
		ch->client_gone = false;
	}
	ch->client = end;
	end->attached = true;
	ch->proxy->news = true;
	wake_up_interruptible_poll(&ch->proxy->poll, EPOLLPRI);
	return 0;
}

/* end->setup is held. Takes over a reference to the channel. */
static int attach_end(struct file *file, struct sgv_channel *ch, struct singvgpu_attach *arg)
{
	struct sgv_end *end = file->private_data;
	struct sgv_channel *old = end->ch;
	int err;

	if (old && (old != ch || end->role != SINGVGPU_ROLE_CLIENT)) {
		sgv_channel_put(ch);
		return -EBUSY;
	}
	spin_lock(&ch->lock);
	err = attach_channel(end, ch);
	arg->generation = ch->generation;
	spin_unlock(&ch->lock);
	if (err || old)
		sgv_channel_put(ch);
	else
		set_channel(file, ch, SINGVGPU_ROLE_CLIENT);
	return err;
}

long sgv_attach(struct file *file, struct singvgpu_attach *arg)
{
	struct sgv_end *end = file->private_data;
	struct sgv_channel *ch;
	int err;

	if (arg->api_version != SINGVGPU_API_VERSION)
		return -EPROTONOSUPPORT;
	if (arg->flags || arg->reserved)
		return -EINVAL;
	ch = find_and_get(arg);
	if (!ch)
		return -ENOENT;
	arg->geo = ch->geo;
	if (mutex_lock_killable(&end->setup)) {
		sgv_channel_put(ch);
		return -EINTR;
	}
	err = attach_end(file, ch, arg);
	mutex_unlock(&end->setup);
	if (!err)
		sgv_count(attaches);
	return err;
}

/*
 * Hangs up an end if it is attached, and wakes the waiters and pollers of both ends. ch->lock is
 * held. The caller releases the lock and passes the result to sgv_after_hang_up().
 */
struct sgv_mm *sgv_hang_up_locked(struct sgv_end *end, struct sgv_channel *ch)
{
	struct sgv_end *peer;

	if (!end->attached)
		return NULL;
	end->attached = false;
	end->mm = NULL;
	end->nmap = 0;
	if (end == ch->proxy) {
		peer = ch->client;
		WRITE_ONCE(ch->proxy, NULL);
		atomic_or(SINGVGPU_LIFE_DIED, (atomic_t *)&ch->ctl->life);
	} else {
		peer = ch->proxy;
		ch->client = NULL;
		ch->client_gone = true;
		atomic_or(SINGVGPU_LIFE_DIED, (atomic_t *)&ch->ctl->client_life);
	}
	sgv_wake_all(ch, -EPIPE);
	wake_up_interruptible_poll(&end->poll, EPOLLHUP | EPOLLERR);
	if (peer)
		wake_up_interruptible_poll(&peer->poll, EPOLLHUP | EPOLLERR);
	sgv_count(hangups);
	return sgv_mm_del(end);
}

/* The part of a hang-up that is done without the lock. Harmless if the end has not hung up. */
void sgv_after_hang_up(struct sgv_end *end, struct sgv_channel *ch, struct sgv_mm *watch)
{
	bool found = false;

	if (end->role == SINGVGPU_ROLE_PROXY && !READ_ONCE(end->attached)) {
		spin_lock(&table_lock);
		found = !hlist_unhashed(&ch->by_id);
		if (found)
			hlist_del_init(&ch->by_id);
		spin_unlock(&table_lock);
	}
	sgv_mm_put(watch);
	/* The table's reference; the end still has its own. */
	if (found)
		sgv_channel_put(ch);
}

void sgv_hang_up(struct sgv_end *end)
{
	struct sgv_channel *ch = end_channel(end);
	struct sgv_mm *watch;

	spin_lock(&ch->lock);
	watch = sgv_hang_up_locked(end, ch);
	spin_unlock(&ch->lock);
	sgv_after_hang_up(end, ch, watch);
}

/* Fills in GET_INFO's answer. */
void sgv_channel_info(struct sgv_end *end, struct singvgpu_info *info)
{
	struct sgv_channel *ch = end_channel(end);

	memset(info, 0, sizeof(*info));
	info->api_version = SINGVGPU_API_VERSION;
	info->features = SGV_FEATURES;
	if (!ch)
		return;
	info->role = end->role;
	memcpy(info->id, ch->id, sizeof(info->id));
	info->geo = ch->geo;
	info->length = end_length(end, ch);
	info->pages = atomic_long_read(&ch->npages);
	spin_lock(&ch->lock);
	info->generation = ch->generation;
	if (end->attached && (end->role == SINGVGPU_ROLE_PROXY ? ch->client : ch->proxy))
		info->state |= SINGVGPU_STATE_PEER;
	if (ch->frozen)
		info->state |= SINGVGPU_STATE_FROZEN;
	spin_unlock(&ch->lock);
}

/* GET_INFO is about to be answered: end EPOLLPRI. */
void sgv_news_read(struct sgv_end *end)
{
	struct sgv_channel *ch = end_channel(end);

	if (ch) {
		spin_lock(&ch->lock);
		end->news = false;
		spin_unlock(&ch->lock);
	}
}

static unsigned int count_waiters(struct sgv_channel *ch)
{
	struct list_head *pos;
	unsigned int n = 0;
	int i;

	for (i = 0; i < SGV_WAIT_BUCKETS; i++)
		list_for_each(pos, &ch->waiters[i])
			n++;
	return n;
}

static void channel_show(struct seq_file *m, struct sgv_channel *ch)
{
	spin_lock(&ch->lock);
	seq_printf(m, "%16phN %u %u 0x%llx %llu %ld %s %s %s %u\n", ch->id,
		   from_kuid_munged(&init_user_ns, ch->owner), ch->generation, ch->va,
		   ch->length, atomic_long_read(&ch->npages),
		   ch->proxy ? "alive" : "gone",
		   ch->client ? "alive" : ch->client_gone ? "gone" : "none",
		   ch->frozen ? "frozen" : "open", count_waiters(ch));
	spin_unlock(&ch->lock);
}

void sgv_channels_show(struct seq_file *m)
{
	struct sgv_channel *ch;

	seq_puts(m, "id uid generation va length pages proxy client gate waiters\n");
	spin_lock(&table_lock);
	list_for_each_entry(ch, &channels, all)
		channel_show(m, ch);
	spin_unlock(&table_lock);
}
