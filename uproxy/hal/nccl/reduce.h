/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.h - tree_reduce() on the device
 */
#ifndef REDUCE_H
#define REDUCE_H

#include "hal.h"
#include "tree.h"

#define REDUCE_PARTS 1024u

struct reduce;

/*
 * Loads the kernels into the current context, for which all other calls are, too. -ENOTSUP: the
 * driver does not take them; -ENOMEM.
 */
int reduce_open(struct reduce **r, struct hal *h, struct why *why);
void reduce_close(struct reduce *r);

/*
 * Queues what tree_reduce() does: data, scale and dst are addresses that the device reaches, and
 * parts are copied. Calls of one struct reduce are queued in one stream. -EINVAL as tree_reduce(), and
 * for more than REDUCE_PARTS parts; -EIO.
 */
int reduce_queue(struct reduce *r, CUstream stream, const struct tree_reduction *red,
		 const struct tree_part *parts, uint32_t nparts, void *dst, size_t count);

#endif /* REDUCE_H */
