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
 * hal_digests_run: the digests of `pages` pages of 4096 bytes at va, equal to store_hash's. Waits
 * for the device; *out is valid until the next call.
 */
CUresult hal_digests_run(struct hal_digests *d, uint64_t va, uint64_t pages,
			 struct store_digest **out);

#endif
