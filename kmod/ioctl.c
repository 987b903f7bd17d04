// SPDX-License-Identifier: GPL-2.0-only
/*
 * ioctl.c - copies the arguments of each ioctl in and out; the hot ones, WAIT and WAKE, come first
 */
#include "singvgpu_i.h"

static long do_wait(struct sgv_end *end, struct sgv_channel *ch,
		    struct singvgpu_wait __user *uarg)
{
	struct singvgpu_wait arg;
	long err;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	err = sgv_wait(end, ch, &arg, NULL);
	if (unlikely(err == -ETIME || err == -ERESTARTSYS) &&
	    put_user(arg.timeout_ns, &uarg->timeout_ns))
		return -EFAULT;
	return err;
}

static long do_wake(struct sgv_channel *ch, struct singvgpu_wake __user *uarg)
{
	struct singvgpu_wake arg;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	return sgv_wake(ch, &arg);
}

/* Clears wake.nr on a signal, so that a restarted call does not wake again. */
static long do_wake_wait(struct sgv_end *end, struct sgv_channel *ch,
			 struct singvgpu_wake_wait __user *uarg)
{
	struct singvgpu_wake_wait arg;
	long err;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	err = sgv_wait(end, ch, &arg.wait, &arg.wake);
	if (unlikely(err == -ETIME || err == -ERESTARTSYS) &&
	    (put_user(arg.wait.timeout_ns, &uarg->wait.timeout_ns) ||
	     put_user(0, &uarg->wake.nr)))
		return -EFAULT;
	return err;
}

static long do_create(struct file *file, void __user *uarg)
{
	struct singvgpu_create arg;
	long err;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	err = sgv_create(file, &arg);
	memzero_explicit(&arg, sizeof(arg));
	return err;
}

static long do_attach(struct file *file, void __user *uarg)
{
	struct sgv_end *end = file->private_data;
	struct singvgpu_attach arg;
	long err;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	err = sgv_attach(file, &arg);
	if (!err && copy_to_user(uarg, &arg, sizeof(arg))) {
		sgv_hang_up(end);
		err = -EFAULT;
	}
	memzero_explicit(&arg, sizeof(arg));
	return err;
}

static long do_get_info(struct sgv_end *end, void __user *uarg)
{
	struct singvgpu_info info;

	/* In this order: a client that attaches in between is told of once more, not never. */
	sgv_news_read(end);
	sgv_channel_info(end, &info);
	return copy_to_user(uarg, &info, sizeof(info)) ? -EFAULT : 0;
}

static long do_range(struct sgv_end *end, struct sgv_channel *ch, void __user *uarg, bool commit)
{
	struct singvgpu_range arg;

	if (copy_from_user(&arg, uarg, sizeof(arg)))
		return -EFAULT;
	return commit ? sgv_commit(ch, end_length(end, ch), &arg) : sgv_decommit(ch, &arg);
}

/* ioctls of a file that is an end. */
static long end_ioctl(struct sgv_end *end, struct sgv_channel *ch, unsigned int cmd,
		      void __user *uarg)
{
	switch (cmd) {
	case SINGVGPU_IOC_WAKE_WAIT:
		return do_wake_wait(end, ch, uarg);
	case SINGVGPU_IOC_WAIT:
		return do_wait(end, ch, uarg);
	case SINGVGPU_IOC_WAKE:
		return do_wake(ch, uarg);
	case SINGVGPU_IOC_FREEZE:
		return sgv_freeze(end, ch, true);
	case SINGVGPU_IOC_THAW:
		return sgv_freeze(end, ch, false);
	case SINGVGPU_IOC_COMMIT:
		return do_range(end, ch, uarg, true);
	case SINGVGPU_IOC_DECOMMIT:
		return do_range(end, ch, uarg, false);
	default:
		return -ENOTTY;
	}
}

static bool is_end_ioctl(unsigned int cmd)
{
	switch (cmd) {
	case SINGVGPU_IOC_WAKE_WAIT:
	case SINGVGPU_IOC_WAIT:
	case SINGVGPU_IOC_WAKE:
	case SINGVGPU_IOC_FREEZE:
	case SINGVGPU_IOC_THAW:
	case SINGVGPU_IOC_COMMIT:
	case SINGVGPU_IOC_DECOMMIT:
		return true;
	default:
		return false;
	}
}

long sgv_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct sgv_end *end = file->private_data;
	struct sgv_channel *ch = end_channel(end);
	void __user *uarg = (void __user *)arg;

	switch (cmd) {
	case SINGVGPU_IOC_GET_INFO:
		return do_get_info(end, uarg);
	case SINGVGPU_IOC_CREATE:
		return do_create(file, uarg);
	case SINGVGPU_IOC_ATTACH:
		return do_attach(file, uarg);
	}
	if (!ch)
		return is_end_ioctl(cmd) ? -ENOTCONN : -ENOTTY;
	return end_ioctl(end, ch, cmd, uarg);
}
