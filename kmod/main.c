// SPDX-License-Identifier: GPL-2.0-only
/*
 * main.c - /dev/singvgpu: the device, its file operations, module init and exit
 *
 * The device is for jobs and proxies of ordinary users. The device file's mode decides who may
 * open it (udev: 0660, group singvgpu).
 */
#include <linux/miscdevice.h>
#include <linux/module.h>

#include "singvgpu_i.h"

static int sgv_open(struct inode *inode, struct file *file)
{
	struct sgv_end *end = kzalloc(sizeof(*end), GFP_KERNEL_ACCOUNT);

	if (!end)
		return -ENOMEM;
	mutex_init(&end->setup);
	init_waitqueue_head(&end->poll);
	file->private_data = end;
	return 0;
}

static int sgv_release(struct inode *inode, struct file *file)
{
	struct sgv_end *end = file->private_data;
	struct sgv_channel *ch = end_channel(end);

	if (ch) {
		sgv_hang_up(end);
		sgv_channel_put(ch);
	}
	kfree(end);
	return 0;
}

static void sgv_show_fdinfo(struct seq_file *m, struct file *file)
{
	struct singvgpu_info info;

	sgv_channel_info(file->private_data, &info);
	seq_printf(m, "singvgpu-version:\t%u\nsingvgpu-role:\t%u\n", info.api_version, info.role);
	if (info.role == SINGVGPU_ROLE_NONE)
		return;
	seq_printf(m, "singvgpu-id:\t%16phN\n", info.id);
	seq_printf(m, "singvgpu-generation:\t%u\n", info.generation);
	seq_printf(m, "singvgpu-state:\t%u\n", info.state);
	seq_printf(m, "singvgpu-va:\t0x%llx\n", info.geo.va);
	seq_printf(m, "singvgpu-length:\t%llu\n", info.length);
	seq_printf(m, "singvgpu-ring-units:\t%u\n", info.geo.ring_units);
	seq_printf(m, "singvgpu-cpl-slots:\t%u\n", info.geo.cpl_slots);
	seq_printf(m, "singvgpu-arena-len:\t%llu\n", info.geo.arena_len);
	seq_printf(m, "singvgpu-log-len:\t%llu\n", info.geo.log_len);
	seq_printf(m, "singvgpu-pages:\t%llu\n", info.pages);
}

static const struct file_operations sgv_fops = {
	.owner			= THIS_MODULE,
	.open			= sgv_open,
	.release		= sgv_release,
	.llseek			= sgv_llseek,
	.read_iter		= sgv_read_iter,
	.write_iter		= sgv_write_iter,
	.poll			= sgv_poll,
	.unlocked_ioctl		= sgv_ioctl,
	.compat_ioctl		= compat_ptr_ioctl,
	.mmap			= sgv_mmap,
	.get_unmapped_area	= sgv_get_unmapped_area,
	.show_fdinfo		= sgv_show_fdinfo,
};

static struct miscdevice sgv_device = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= SINGVGPU_DEV_NAME,
	.fops	= &sgv_fops,
	.mode	= 0660,
};

static int __init sgv_init(void)
{
	int err;

	err = sgv_channel_init();
	if (err)
		return err;
	sgv_debugfs_init();
	err = misc_register(&sgv_device);
	if (err) {
		sgv_debugfs_exit();
		sgv_channel_exit();
	}
	return err;
}

static void __exit sgv_exit(void)
{
	misc_deregister(&sgv_device);
	sgv_debugfs_exit();
	sgv_mm_exit();
	sgv_channel_exit();
}

module_init(sgv_init);
module_exit(sgv_exit);

MODULE_DESCRIPTION("Channels between GPU jobs and their proxies");
MODULE_LICENSE("GPL");
