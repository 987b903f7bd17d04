// SPDX-License-Identifier: GPL-2.0-only
/*
 * provoke.c - a module that makes one kernel error when it is loaded: run-vm must notice.
 */
#include <linux/bug.h>
#include <linux/module.h>
#include <linux/slab.h>

static char *what = "";
module_param(what, charp, 0);
MODULE_PARM_DESC(what, "nothing, warn, oops, overrun, use_after_free, leak or hang");

static void overrun(void)
{
	unsigned char *p = kmalloc(64, GFP_KERNEL);

	OPTIMIZER_HIDE_VAR(p);
	if (p)
		p[64] = 1;
	kfree(p);
}

static void use_after_free(void)
{
	struct kmem_cache *cache = kmem_cache_create("provoke", 512, 0, SLAB_POISON, NULL);
	unsigned char *p;

	if (!cache)
		return;
	p = kmem_cache_alloc(cache, GFP_KERNEL);
	OPTIMIZER_HIDE_VAR(p);
	if (p) {
		kmem_cache_free(cache, p);
		p[300] = 1;
	}
	/* The poison is looked at when the object is handed out again, or when its page goes. */
	kmem_cache_free(cache, kmem_cache_alloc(cache, GFP_KERNEL));
	kmem_cache_destroy(cache);
}

static void leak(void)
{
	struct kmem_cache *cache = kmem_cache_create("provoke", 512, 0, 0, NULL);

	if (!cache || !kmem_cache_alloc(cache, GFP_KERNEL))
		return;
	kmem_cache_destroy(cache);
}

static int __init provoke_init(void)
{
	if (!strcmp(what, "nothing"))
		return 0;
	if (!strcmp(what, "warn"))
		WARN(1, "provoked\n");
	else if (!strcmp(what, "oops"))
		*(volatile int *)8 = 0;
	else if (!strcmp(what, "overrun"))
		overrun();
	else if (!strcmp(what, "use_after_free"))
		use_after_free();
	else if (!strcmp(what, "leak"))
		leak();
	else if (!strcmp(what, "hang"))
		while (1)
			cpu_relax();
	else
		return -EINVAL;
	return 0;
}

static void __exit provoke_exit(void)
{
}

module_init(provoke_init);
module_exit(provoke_exit);
MODULE_DESCRIPTION("does one thing wrong, for the tests of run-vm");
MODULE_LICENSE("GPL");
