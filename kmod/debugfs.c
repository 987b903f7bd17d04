// SPDX-License-Identifier: GPL-2.0-only
/*
 * debugfs.c - /sys/kernel/debug/singvgpu: `channels`, a line each, and `totals`
 */
#include <linux/debugfs.h>

#include "singvgpu_i.h"

static struct dentry *dir;

static int channels_show(struct seq_file *m, void *v)
{
	sgv_channels_show(m);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(channels);

static int totals_show(struct seq_file *m, void *v)
{
	struct sgv_stats sum = {};
	int cpu;

	for_each_possible_cpu(cpu) {
		const struct sgv_stats *stats = per_cpu_ptr(&sgv_stats, cpu);

		sum.waits += READ_ONCE(stats->waits);
		sum.sleeps += READ_ONCE(stats->sleeps);
		sum.wakes += READ_ONCE(stats->wakes);
		sum.woken += READ_ONCE(stats->woken);
		sum.faults += READ_ONCE(stats->faults);
		sum.creates += READ_ONCE(stats->creates);
		sum.attaches += READ_ONCE(stats->attaches);
		sum.hangups += READ_ONCE(stats->hangups);
	}
	seq_printf(m, "channels %ld\npages %ld\n", atomic_long_read(&sgv_channels),
		   atomic_long_read(&sgv_pages));
	seq_printf(m, "creates %llu\nattaches %llu\nhangups %llu\nfaults %llu\n", sum.creates,
		   sum.attaches, sum.hangups, sum.faults);
	seq_printf(m, "waits %llu\nsleeps %llu\nwakes %llu\nwoken %llu\n", sum.waits, sum.sleeps,
		   sum.wakes, sum.woken);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(totals);

/* Without debugfs there are no statistics, and nothing else is missing. */
void sgv_debugfs_init(void)
{
	dir = debugfs_create_dir("singvgpu", NULL);
	debugfs_create_file("channels", 0400, dir, NULL, &channels_fops);
	debugfs_create_file("totals", 0400, dir, NULL, &totals_fops);
}

void sgv_debugfs_exit(void)
{
	debugfs_remove_recursive(dir);
}
