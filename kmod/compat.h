/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * compat.h - differences between the kernels that the module is built for, 6.1 to 7.2
 */
#ifndef _SINGVGPU_COMPAT_H
#define _SINGVGPU_COMPAT_H

#include <linux/mm.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags &= ~flags;
}
#endif

/*
 * Flags of try_to_wake_up() (kernel/sched/sched.h), which default_wake_function() passes on.
 * Since 6.6 a flag places the woken task on the waker's CPU; older kernels warn about that flag.
 */
#define SGV_WF_SYNC		0x10
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
#define SGV_WF_HAND_OVER	(SGV_WF_SYNC | 0x40)
#define SGV_FEATURES		SINGVGPU_FEAT_CURRENT_CPU
#else
#define SGV_WF_HAND_OVER	SGV_WF_SYNC
#define SGV_FEATURES		0
#endif

#endif /* _SINGVGPU_COMPAT_H */
