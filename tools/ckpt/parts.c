// SPDX-License-Identifier: Apache-2.0
/*
 * parts.c - which parts a checkpoint has, and how long they are; checked before anything else is read
 *
 * The manifest lists parts, and a store checks what it reads; only the facts know that a part is missing, or is
 * another one. Without the history a job comes back all the same, so that is not listed.
 */
#include <errno.h>

#include "ckpt_i.h"
#include "store.h"

#define REMEDY "restore another checkpoint of the job, or copy this one again (singvgpu store push)"

int ckpt_parts_check(const struct ckpt_facts *f, struct store *s, const struct store_checkpoint *c, struct why *why)
{
	int err;

	for (int i = 0; i < f->parts; i++) {
		const struct ckpt_part *p = &f->part[i];
		const struct store_ref *ref = store_checkpoint_find(c, p->name);

		if (!ref)
			return why_set(why, -EBADMSG, "its part '%s' is missing: " REMEDY, p->name);
		if (store_ref_size(ref) != p->size)
			return why_set(why, -EBADMSG, "its part '%s' is damaged: it has %llu bytes, and had %llu: " REMEDY,
				       p->name, (unsigned long long)store_ref_size(ref),
				       (unsigned long long)p->size);
	}
	err = s ? store_checkpoint_check(s, c) : 0;
	return err ? why_set(why, err, "its %s: " REMEDY, store_says(err)) : 0;
}
