// SPDX-License-Identifier: GPL-2.0-only
/*
 * user.c - limits for each user: channels and pages
 *
 * A channel and all its pages are charged to its creator, whoever touched them. A memory cgroup is
 * charged, too, for the pages that its own tasks touched first.
 */
#include <linux/hashtable.h>
#include <linux/moduleparam.h>

#include "singvgpu_i.h"

static unsigned int user_channels = 1024;
module_param(user_channels, uint, 0644);
MODULE_PARM_DESC(user_channels, "channels that one user may have (1024)");

static unsigned long user_mib;
module_param(user_mib, ulong, 0644);
MODULE_PARM_DESC(user_mib, "MiB of memory that one user's channels may hold (0: half of the RAM)");

static unsigned long channel_mib = 1UL << 20;
module_param(channel_mib, ulong, 0644);
MODULE_PARM_DESC(channel_mib, "MiB of addresses that one channel may span (1 TiB)");

static DEFINE_HASHTABLE(users, 6);
static DEFINE_SPINLOCK(users_lock);	/* users and their reference counts */

#define PAGES_PER_MIB (1UL << (20 - PAGE_SHIFT))

static unsigned long mib_to_pages(unsigned long mib)
{
	return mib > ULONG_MAX / PAGES_PER_MIB ? LONG_MAX : mib * PAGES_PER_MIB;
}

u64 sgv_channel_limit(void)
{
	return (u64)min(mib_to_pages(READ_ONCE(channel_mib)), ULONG_MAX >> PAGE_SHIFT)
		<< PAGE_SHIFT;
}

static struct sgv_user *user_of(kuid_t uid)
{
	struct sgv_user *user;

	hash_for_each_possible(users, user, node, __kuid_val(uid))
		if (uid_eq(user->uid, uid))
			return user;
	return NULL;
}

/* Charges a channel to the user. */
struct sgv_user *sgv_user_get(kuid_t uid)
{
	struct sgv_user *user, *new;

	new = kzalloc(sizeof(*new), GFP_KERNEL_ACCOUNT);
	if (!new)
		return ERR_PTR(-ENOMEM);
	new->uid = uid;

	spin_lock(&users_lock);
	user = user_of(uid);
	if (user ? user->refs >= READ_ONCE(user_channels) : !READ_ONCE(user_channels)) {
		user = ERR_PTR(-EDQUOT);
	} else {
		if (!user) {
			user = new;
			new = NULL;
			hash_add(users, &user->node, __kuid_val(uid));
		}
		user->refs++;
	}
	spin_unlock(&users_lock);
	kfree(new);
	return user;
}

void sgv_user_put(struct sgv_user *user)
{
	spin_lock(&users_lock);
	if (--user->refs)
		user = NULL;
	else
		hash_del(&user->node);
	spin_unlock(&users_lock);
	kfree(user);
}

/* Charges a page to the user. */
int sgv_user_charge(struct sgv_user *user)
{
	unsigned long limit = mib_to_pages(READ_ONCE(user_mib));

	if (!limit)
		limit = totalram_pages() / 2;
	if (atomic_long_inc_return(&user->pages) <= min_t(unsigned long, limit, LONG_MAX))
		return 0;
	atomic_long_dec(&user->pages);
	return -EDQUOT;
}

void sgv_user_uncharge(struct sgv_user *user, long pages)
{
	atomic_long_sub(pages, &user->pages);
}
