// SPDX-License-Identifier: GPL-2.0-only
/*
 * wait.c - sleeping on a word of the channel, waking the sleepers, and poll
 *
 * A waiter is on its list from before it reads the word until a waker or the waiter itself takes
 * it off, under ch->lock. A waker changes the word before it reads the list, so one of the two
 * sees the other. The waker's last access to a waiter is the store of its result: after that the
 * waiter may return without the lock, and only its task, which RCU keeps, is left to be woken. A
 * spurious wake-up does no harm to a task.
 */
#include <linux/hrtimer.h>
#include <linux/nospec.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>

#include "singvgpu_i.h"

struct sgv_waiter {
	struct list_head node;		/* ch->lock */
	struct task_struct *task;
	u32 off;
	int result;			/* WAITING; then 0 or an error, with release */
};

#define WAITING 1

#define DOORBELL offsetof(struct singvgpu_ctl, doorbell)
#define CONS offsetof(struct singvgpu_ctl, cons)

static struct list_head *bucket(struct sgv_channel *ch, u32 off)
{
	return &ch->waiters[off / SINGVGPU_UNIT % SGV_WAIT_BUCKETS];
}

static bool is_word(const struct sgv_channel *ch, u64 off)
{
	return off < ch->ring_off && !(off % sizeof(u32));
}

static void wake_task(struct task_struct *task, int flags)
{
	struct wait_queue_entry entry = { .private = task };

	default_wake_function(&entry, TASK_NORMAL, flags, NULL);
}

/* Ends a wait. ch->lock is held. The caller wakes the returned task in the same RCU section. */
static struct task_struct *take_off(struct sgv_waiter *w, int result)
{
	struct task_struct *task = w->task;

	list_del(&w->node);
	/* Pairs with the acquire in finish(): the waiter is off the list. */
	smp_store_release(&w->result, result);
	return task;
}

/*
 * Takes up to nr waiters on the word off their list, and wakes all but the last, which it leaves in
 * *last for the caller. Returns their number. ch->lock and the RCU read lock are held.
 */
static u32 take_waiters(struct sgv_channel *ch, u32 off, u32 nr, struct task_struct **last)
{
	struct list_head *head = bucket(ch, off);
	struct sgv_waiter *w, *next;
	u32 n = 0;

	list_for_each_entry_safe(w, next, head, node) {
		if (n == nr)
			break;
		if (w->off != off)
			continue;
		if (n++)
			wake_task(*last, 0);
		*last = take_off(w, 0);
	}
	return n;
}

/* Wakes the proxy's pollers if the word is the doorbell. ch->lock is held. */
static void ring_doorbell(struct sgv_channel *ch, u32 off)
{
	if (off != DOORBELL || !ch->proxy)
		return;
	/* Pairs with the barrier in sgv_poll(). */
	if (wq_has_sleeper(&ch->proxy->poll))
		wake_up_interruptible_poll(&ch->proxy->poll, EPOLLIN | EPOLLRDNORM);
}

long sgv_wake(struct sgv_channel *ch, const struct singvgpu_wake *arg)
{
	struct task_struct *last = NULL;
	u32 n;

	if (arg->flags || !is_word(ch, arg->off))
		return -EINVAL;
	rcu_read_lock();
	spin_lock(&ch->lock);
	n = take_waiters(ch, arg->off, arg->nr, &last);
	ring_doorbell(ch, arg->off);
	spin_unlock(&ch->lock);
	if (last)
		wake_task(last, 0);
	rcu_read_unlock();
	sgv_count(wakes);
	this_cpu_add(sgv_stats.woken, n);
	return n;
}

/* Ends all waits. ch->lock is held. */
void sgv_wake_all(struct sgv_channel *ch, int result)
{
	struct sgv_waiter *w, *next;
	int i;

	rcu_read_lock();
	for (i = 0; i < SGV_WAIT_BUCKETS; i++)
		list_for_each_entry_safe(w, next, &ch->waiters[i], node)
			wake_task(take_off(w, result), 0);
	rcu_read_unlock();
}

/* -EPIPE if this end or its peer has hung up. ch->lock is held. */
static int check_ends(const struct sgv_end *end, const struct sgv_channel *ch)
{
	if (!end->attached)
		return -EPIPE;
	if (end->role == SINGVGPU_ROLE_PROXY)
		return ch->client_gone ? -EPIPE : 0;
	return ch->proxy ? 0 : -EPIPE;
}

/*
 * The kernel's address of the word. Its page is allocated if need be, and stays until the channel
 * is freed.
 */
static u32 *word_at(struct sgv_channel *ch, u32 off)
{
	struct page *page;

	if (off < PAGE_SIZE)
		return (void *)ch->ctl + array_index_nospec(off, PAGE_SIZE);
	page = sgv_page_get(ch, off >> PAGE_SHIFT);
	if (IS_ERR(page))
		return ERR_CAST(page);
	put_page(page);
	return page_address(page) + offset_in_page(off);
}

/* Sleeps once. Returns -ETIME if the timeout has expired, -ERESTARTSYS for a signal, else 0. */
static int sleep_until(ktime_t *due)
{
	if (signal_pending(current))
		return -ERESTARTSYS;
	if (!due)
		schedule();
	else if (!schedule_hrtimeout_range_clock(due, current->timer_slack_ns, HRTIMER_MODE_ABS,
						 CLOCK_MONOTONIC))
		return -ETIME;
	return 0;
}

/* Takes the waiter off its list, unless a waker was faster; then the waker's result counts. */
static int finish(struct sgv_channel *ch, struct sgv_waiter *w, int err)
{
	/* Pairs with the release in take_off(). */
	int result = smp_load_acquire(&w->result);

	if (likely(result != WAITING))
		return result;
	spin_lock(&ch->lock);
	result = w->result;
	if (result == WAITING) {
		list_del(&w->node);
		result = err;
	}
	spin_unlock(&ch->lock);
	return result;
}

/* Sleeps until the waiter is woken, the word differs, the timeout expires or a signal comes. */
static int wait_on(struct sgv_channel *ch, struct sgv_waiter *w, const u32 *word, u32 expect,
		   ktime_t *due)
{
	int err = 0;

	sgv_count(sleeps);
	for (;;) {
		set_current_state(TASK_INTERRUPTIBLE);
		if (READ_ONCE(w->result) != WAITING)
			break;
		if (READ_ONCE(*word) != expect) {
			err = 0;
			break;
		}
		if (err)
			break;
		err = sleep_until(due);
	}
	__set_current_state(TASK_RUNNING);
	return finish(ch, w, err);
}

/* Does the wake of WAKE_WAIT, then puts the waiter on its list, unless it must not wait. */
static int put_on(struct sgv_end *end, struct sgv_channel *ch, struct sgv_waiter *w,
		  const struct singvgpu_wake *wake, bool may_sleep)
{
	struct task_struct *last = NULL;
	u32 n = 0;
	int err;

	rcu_read_lock();
	spin_lock(&ch->lock);
	if (wake) {
		n = take_waiters(ch, wake->off, wake->nr, &last);
		ring_doorbell(ch, wake->off);
	}
	err = check_ends(end, ch);
	if (!err && !may_sleep)
		err = -ETIME;
	if (!err)
		list_add_tail(&w->node, bucket(ch, w->off));
	spin_unlock(&ch->lock);
	if (last)
		wake_task(last, SGV_WF_HAND_OVER);
	rcu_read_unlock();
	/*
	 * A peer that was woken on this CPU runs now, while this task is still on the run queue;
	 * mostly it answers before this task has to sleep.
	 */
	if (last)
		cond_resched();
	if (wake) {
		sgv_count(wakes);
		this_cpu_add(sgv_stats.woken, n);
	}
	return err;
}

/*
 * WAIT, or WAKE_WAIT if wake is set. Returns what WAIT does, or -ERESTARTSYS for a signal. Then,
 * and with -ETIME, arg has the remaining time.
 */
long sgv_wait(struct sgv_end *end, struct sgv_channel *ch, struct singvgpu_wait *arg,
	      const struct singvgpu_wake *wake)
{
	struct sgv_waiter w = { .task = current, .off = arg->off, .result = WAITING };
	ktime_t due, *limit = NULL;
	u32 *word;
	int err;

	if (arg->flags || !is_word(ch, arg->off))
		return -EINVAL;
	if (wake && (wake->flags || !is_word(ch, wake->off)))
		return -EINVAL;
	word = word_at(ch, arg->off);
	if (IS_ERR(word))
		return PTR_ERR(word);
	if (arg->timeout_ns >= 0) {
		due = ktime_add_safe(ktime_get(), ns_to_ktime(arg->timeout_ns));
		limit = &due;
	}

	sgv_count(waits);
	err = put_on(end, ch, &w, wake, arg->timeout_ns);
	if (!err)
		err = wait_on(ch, &w, word, arg->expect, limit);
	/*
	 * A changed word counts, even if the peer has hung up since or there was no time to wait.
	 */
	if ((err == -EPIPE || err == -ETIME) && READ_ONCE(*word) != arg->expect)
		err = 0;

	if (arg->off == DOORBELL && end->role == SINGVGPU_ROLE_PROXY)
		WRITE_ONCE(end->doorbell_seen, err ? arg->expect : READ_ONCE(*word));
	if (limit && (err == -ETIME || err == -ERESTARTSYS))
		arg->timeout_ns = max_t(s64, ktime_to_ns(ktime_sub(due, ktime_get())), 0);
	return err;
}

/* FREEZE and THAW: -EACCES not the proxy, -EPIPE, -EALREADY. */
int sgv_freeze(struct sgv_end *end, struct sgv_channel *ch, bool freeze)
{
	static const struct singvgpu_wake all = { .off = CONS, .nr = U32_MAX };
	atomic_t *cons = (atomic_t *)&ch->ctl->cons;
	int err = 0;

	if (end->role != SINGVGPU_ROLE_PROXY)
		return -EACCES;
	spin_lock(&ch->lock);
	if (!end->attached) {
		err = -EPIPE;
	} else if (ch->frozen == freeze) {
		err = -EALREADY;
	} else {
		ch->frozen = freeze;
		if (freeze)
			atomic_or(SINGVGPU_CONS_GATE, cons);
		else
			atomic_andnot(SINGVGPU_CONS_GATE, cons);
	}
	spin_unlock(&ch->lock);
	if (!err && !freeze)
		sgv_wake(ch, &all);
	return err;
}

__poll_t sgv_poll(struct file *file, poll_table *pt)
{
	struct sgv_end *end = file->private_data;
	struct sgv_channel *ch;
	__poll_t mask = 0;

	poll_wait(file, &end->poll, pt);
	ch = end_channel(end);
	if (!ch)
		return 0;
	/* Pairs with the barrier in ring_doorbell(): queue first, then read the doorbell. */
	smp_mb();
	spin_lock(&ch->lock);
	if (check_ends(end, ch))
		mask |= EPOLLHUP | EPOLLERR;
	if (end->role == SINGVGPU_ROLE_PROXY) {
		if (READ_ONCE(ch->ctl->doorbell) != READ_ONCE(end->doorbell_seen))
			mask |= EPOLLIN | EPOLLRDNORM;
		if (end->news)
			mask |= EPOLLPRI;
	}
	spin_unlock(&ch->lock);
	return mask;
}
