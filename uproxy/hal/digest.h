/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest.h - digests of pages of device memory, computed by the device
 */
#ifndef HAL_DIGEST_H
#define HAL_DIGEST_H

#include "store.h"
#include "hal.h"

struct hal_digests;

/*
 * hal_digests_open: loads the kernel into the primary context, which is current. seed: the store's.
 * Not 0: the driver cannot run it, and the host has to hash the pages.
 */
int hal_digests_open(struct hal_digests **d, struct hal *h, uint64_t seed);
void hal_digests_close(struct hal_digests *d);	/* NULL is allowed */

/*
 * hal_digests_start: asks for the digests of `pages` pages of 4096 bytes at va, equal to store_hash's.
 * The device computes them beside other work, after what is complete when this is called.
 * hal_digests_wait: *out has them, until the slot is used again.
 */
#define HAL_DIGESTS	2	/* slots: one is computed while another is read */
CUresult hal_digests_start(struct hal_digests *d, unsigned int slot, uint64_t va, uint64_t pages);
CUresult hal_digests_wait(struct hal_digests *d, unsigned int slot,
			  const struct store_digest **out);

#endif
